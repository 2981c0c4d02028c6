//! The commands that documents show: in blocks of code and in words of code.
//!
//! A comment before a block leaves the block out, and must say why:
//! `<!-- not checked: REASON -->`; `<!-- not run: REASON -->` has it read only.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};

/// A command that a document shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The document and the line, to be named in messages.
    pub place: String,
    /// Its words, without those of the shell.
    pub words: Vec<String>,
    /// Whether it stands in a block, complete, rather than in a sentence.
    pub in_block: bool,
    /// Whether it is to be read only.
    pub only_read: bool,
}

/// The top of the source tree.
pub fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All documents: those at the top, and all below docs/.
pub fn documents() -> Vec<(String, String)> {
    let mut names = Vec::new();
    let mut below = vec![top().join("docs")];
    while let Some(directory) = below.pop() {
        for entry in directory.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                below.push(path);
            } else {
                names.push(path);
            }
        }
    }
    names.extend(top().read_dir().unwrap().map(|entry| entry.unwrap().path()));
    names.retain(|path| path.extension().is_some_and(|e| e == "md"));
    names.sort();
    assert!(names.len() >= 5, "where are the documents? {names:?}");
    let read = |path: PathBuf| {
        let name = path.strip_prefix(top()).unwrap().display().to_string();
        (name, std::fs::read_to_string(path).unwrap())
    };
    names.into_iter().map(read).collect()
}

/// The commands that a document shows.
pub fn commands(name: &str, text: &str) -> Vec<Shown> {
    let blocks = blocks(name, text);
    let in_blocks = blocks.iter().flat_map(Block::commands);
    in_blocks.chain(in_sentences(name, text)).collect()
}

/// What a document shows as the output of commands.
#[derive(Debug)]
pub struct Output {
    /// The document and the line where it begins.
    pub place: String,
    /// The commands of the block before it.
    pub of: Vec<Shown>,
    /// Its lines.
    pub lines: Vec<String>,
}

/// The outputs that a document shows: blocks of `text` that follow a block of commands. Outputs of
/// commands that are not checked or not run are left out.
pub fn outputs(name: &str, text: &str) -> Vec<Output> {
    let blocks = blocks(name, text);
    let pairs = blocks.windows(2).filter(|pair| {
        let is_output = pair[1].language == "text" && pair[1].mark.is_none();
        is_output && pair[0].mark.is_none() && !pair[1].lines.is_empty()
    });
    let outputs = pairs.map(|pair| Output {
        place: pair[1].lines[0].0.clone(),
        of: pair[0].commands(),
        lines: pair[1].lines.iter().map(|(_, line)| line.clone()).collect(),
    });
    outputs.filter(|output| !output.of.is_empty()).collect()
}

/// The blocks of code of a document.
fn blocks(name: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut block: Option<Block> = None;
    let (mut fenced, mut blank) = (false, true);
    let mut mark = None;
    for (number, line) in (1..).zip(text.lines()) {
        let place = format!("{name}:{number}");
        let trimmed = line.trim();
        if let Some(comment) = trimmed.strip_prefix("<!-- not ") {
            let (what, reason) = comment.split_once(':').unwrap_or((comment, ""));
            let reason = reason.trim().trim_end_matches("-->").trim();
            assert!(reason.len() > 4, "{place}: say why it is not {what}");
            assert!(["checked", "run"].contains(&what), "{place}: not {what}?");
            mark = Some(what.to_string());
            continue;
        }
        if trimmed.starts_with("```") {
            fenced = !fenced;
            match block.take() {
                Some(block) if !fenced => blocks.push(block),
                before => {
                    blocks.extend(before);
                    block = Some(Block::new(mark.take(), trimmed.trim_start_matches('`')));
                }
            }
            continue;
        }
        let indented = line.starts_with("    ") || line.starts_with('\t');
        if !fenced && indented && (blank || block.is_some()) {
            let new = || Block::new(mark.take(), "");
            block
                .get_or_insert_with(new)
                .lines
                .push((place, line.into()));
        } else if fenced {
            let block = block.as_mut().unwrap();
            block.lines.push((place, line.into()));
        } else if !trimmed.is_empty() {
            blocks.extend(block.take());
            mark = None;
        }
        blank = trimmed.is_empty();
    }
    assert!(!fenced, "{name}: a block does not end");
    blocks.extend(block);
    blocks
}

struct Block {
    /// How it is marked: `checked` if it is not to be checked, `run` if it is not to be run.
    mark: Option<String>,
    /// What stands behind the fence.
    language: String,
    lines: Vec<(String, String)>,
}

impl Block {
    fn new(mark: Option<String>, language: &str) -> Self {
        Block {
            mark,
            language: language.into(),
            lines: Vec::new(),
        }
    }

    fn commands(&self) -> Vec<Shown> {
        if self.mark.as_deref() == Some("checked") {
            return Vec::new();
        }
        let mut shown = Vec::new();
        let (mut whole, mut begin) = (String::new(), None);
        for (place, line) in &self.lines {
            begin.get_or_insert(place.clone());
            match line.trim_end().strip_suffix('\\') {
                Some(part) => whole = whole + part.trim() + " ",
                None => {
                    whole += line.trim();
                    let place = begin.take().unwrap();
                    for mut command in of_line(&place, &whole) {
                        command.only_read = self.mark.is_some();
                        shown.push(command);
                    }
                    whole.clear();
                }
            }
        }
        shown
    }
}

/// The commands between backquotes of sentences.
fn in_sentences(name: &str, text: &str) -> Vec<Shown> {
    let mut shown = Vec::new();
    let mut fenced = false;
    let mut paragraph = String::new();
    let mut begin = 1;
    for (number, line) in (1..).zip(text.lines().chain([""])) {
        fenced ^= line.trim().starts_with("```");
        let code = fenced || line.starts_with("    ") && paragraph.is_empty();
        if !code && !line.trim().is_empty() && !line.trim().starts_with("```") {
            if paragraph.is_empty() {
                begin = number;
            }
            paragraph += line;
            paragraph.push(' ');
            continue;
        }
        for span in paragraph.split('`').skip(1).step_by(2) {
            let place = format!("{name}:{begin}");
            for mut command in of_line(&place, span) {
                command.in_block = false;
                shown.push(command);
            }
        }
        paragraph.clear();
    }
    shown
}

const PROGRAMS: [&str; 4] = ["kvmtrace", "postproc", "activator", "make"];

/// Commands of `kvmtrace` that need the patched kernel: those of the activator.
pub const OF_KERNEL: &[&str] = &[
    "record", "run", "on", "off", "status", "top", "resize", "filter", "pause", "resume", "rotate",
    "snapshot",
];

/// The commands of a shell's line that are ours. What stands three spaces behind one
/// says what it does.
pub fn of_line(place: &str, line: &str) -> Vec<Shown> {
    let line = line
        .trim()
        .trim_start_matches("$ ")
        .trim_start_matches("# ");
    let line = line.split("   ").next().unwrap_or_default();
    let mut shown = Vec::new();
    for words in simple_commands(line) {
        let mut words = words.as_slice();
        let is_setting = |word: &String| {
            word.split_once('=').is_some_and(|(name, _)| {
                !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
            })
        };
        while words
            .first()
            .is_some_and(|w| is_setting(w) || ["sudo", "time", "run:"].contains(&w.as_str()))
        {
            words = &words[1..];
        }
        let Some(first) = words.first() else {
            continue;
        };
        // Another program that is given a command of ours.
        let at = if PROGRAMS.contains(&first.as_str()) {
            Some(0)
        } else {
            let given = |pair: &[String]| match pair[0].as_str() {
                "activator" | "postproc" => true,
                // The name of a group and of a package, too.
                "kvmtrace" => OF_KERNEL.contains(&pair[1].as_str()),
                _ => false,
            };
            words.windows(2).position(given)
        };
        if let Some(at) = at {
            shown.push(Shown {
                place: place.into(),
                words: words[at..].to_vec(),
                in_block: true,
                only_read: false,
            });
        }
    }
    shown
}

/// Takes a shell's line apart into commands and words. Redirections and comments are
/// left out.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut chars = line.chars().peekable();
    let mut word: Option<String> = None;
    let mut redirected = false;
    loop {
        let c = chars.next();
        match c {
            Some(quote @ ('\'' | '"')) => {
                let word = word.get_or_insert_default();
                for c in chars.by_ref().take_while(|&c| c != quote) {
                    word.push(c);
                }
            }
            Some('#') if word.is_none() => break,
            Some(c) if !c.is_whitespace() && !matches!(c, '|' | '&' | ';' | '<' | '>') => {
                word.get_or_insert_default().push(c);
            }
            _ => {
                // A number before a redirection is the descriptor's.
                let descriptor = matches!(c, Some('<' | '>'))
                    && word
                        .as_ref()
                        .is_some_and(|w| w.bytes().all(|b| b.is_ascii_digit()));
                if let Some(word) = word.take().filter(|_| !descriptor) {
                    if !std::mem::take(&mut redirected) {
                        commands.last_mut().unwrap().push(word);
                    }
                }
                match c {
                    Some('<' | '>') => {
                        while chars.next_if(|c| matches!(c, '<' | '>' | '&')).is_some() {}
                        redirected = true;
                    }
                    Some('|' | '&' | ';') => commands.push(Vec::new()),
                    Some(_) => {}
                    None => break,
                }
            }
        }
    }
    if let Some(word) = word.filter(|_| !redirected) {
        commands.last_mut().unwrap().push(word);
    }
    commands.retain(|words| !words.is_empty());
    commands
}

/// The examples in a command's help.
pub fn examples(name: &str, help: &str) -> Vec<Shown> {
    let mut shown = Vec::new();
    let mut whole = String::new();
    for (number, line) in (1..).zip(help.lines()) {
        if !line.starts_with("  ") {
            continue;
        }
        match line.trim_end().strip_suffix('\\') {
            Some(part) => whole = whole + part.trim() + " ",
            None => {
                whole += line.trim();
                let line = std::mem::take(&mut whole);
                let first = line.trim_start().split(' ').next().unwrap_or_default();
                if PROGRAMS.contains(&first)
                    || ["| postproc ", "| kvmtrace "]
                        .iter()
                        .any(|w| line.contains(w))
                {
                    shown.extend(of_line(&format!("{name} --help, line {number}"), &line));
                }
            }
        }
    }
    shown
}

/// The options among the words of a command, those of another command behind `--` left
/// out.
pub fn options(words: &[String]) -> Vec<String> {
    let own = words.iter().take_while(|w| *w != "--");
    own.filter(|w| w.starts_with('-') && w.len() > 1)
        .filter(|w| !w[1..].starts_with(|c: char| c.is_ascii_digit()))
        .map(|w| w.split('=').next().unwrap_or_default().to_string())
        .collect()
}
