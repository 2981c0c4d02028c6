//! The documents as a book: each page is in it once, links lead somewhere, and the tutorial's program
//! can be compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::shown::{documents, top};

/// The parts of the book, in order.
const PARTS: [&str; 5] = [
    "Tutorial",
    "Gallery",
    "How-to guides",
    "Reference",
    "Explanation",
];

/// A text without its code: blocks become empty lines, so that lines keep their numbers.
fn prose(text: &str) -> String {
    let mut out = String::new();
    let (mut fenced, mut blank, mut block) = (false, true, false);
    for line in text.lines() {
        let fence = line.trim().starts_with("```");
        fenced ^= fence;
        block = line.starts_with("    ") && (blank || block);
        blank = line.trim().is_empty();
        if !(fenced || fence || block) {
            // Code within the line.
            let parts = line.split('`').step_by(2);
            out += &parts.collect::<Vec<_>>().join("``");
        }
        out.push('\n');
    }
    out
}

/// The links of a text: the line, and where each leads.
fn links(text: &str) -> Vec<(usize, String)> {
    let text = prose(text);
    let ends = text.match_indices("](");
    let link = |(at, _): (usize, &str)| {
        let target = text[at + 2..].split(')').next().unwrap_or_default();
        let line = text[..at].matches('\n').count() + 1;
        (line, target.to_owned())
    };
    ends.map(link).collect()
}

/// The places of a page that links can lead to: its headings, as GitHub and mdBook name them.
fn places(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = BTreeSet::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.trim().starts_with("```");
        let heading = line.trim_start_matches('#').strip_prefix(' ');
        let Some(heading) = heading.filter(|_| !fenced && line.starts_with('#')) else {
            continue;
        };
        let kept = heading.trim().chars().filter_map(|c| match c {
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
            c if c.is_whitespace() => Some('-'),
            _ => None,
        });
        let name: String = kept.collect();
        let times = seen.entry(name.clone()).or_default();
        all.insert(match *times {
            0 => name,
            times => format!("{name}-{times}"),
        });
        *times += 1;
    }
    all
}

/// A path without `..`, unless it leads out of the tree.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if out.pop() => {}
            Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

/// The links that lead nowhere.
fn wrong(name: &str, text: &str, all: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let page = Path::new(name);
    let leads_nowhere = |target: &str| {
        if target.contains("://") {
            return false;
        }
        let (file, place) = target.split_once('#').unwrap_or((target, ""));
        let path = match file {
            "" => page.to_owned(),
            file => plain(&page.with_file_name("").join(file)),
        };
        let there = match all.get(&path) {
            Some(text) => place.is_empty() || places(text).contains(place),
            None => place.is_empty() && !path.starts_with("..") && top().join(&path).exists(),
        };
        !there
    };
    let links = links(text).into_iter();
    let wrong = links.filter(|(_, target)| leads_nowhere(target));
    wrong
        .map(|(line, target)| format!("{name}:{line}: {target} leads nowhere"))
        .collect()
}

fn all() -> BTreeMap<PathBuf, String> {
    let all = documents().into_iter();
    all.map(|(name, text)| (name.into(), text)).collect()
}

#[test]
fn links_lead_somewhere() {
    let all = all();
    let (mut found, mut links_found) = (Vec::new(), 0);
    for (path, text) in &all {
        links_found += links(text).len();
        found.extend(wrong(&path.display().to_string(), text, &all));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(links_found > 100, "only {links_found} links were found");
}

/// The control.
#[test]
fn a_link_that_leads_nowhere_is_found() {
    let mut all = all();
    all.insert("docs/a.md".into(), "# A page\n\n## Its part: one\n".into());
    let found_in = |text: &str| {
        let mut all = all.clone();
        all.insert("docs/b.md".into(), text.into());
        wrong("docs/b.md", text, &all)
    };
    for good in [
        "[a](a.md) and [b](a.md#its-part-one), [c](../README.md), [d](#e)\n\n# E\n",
        "[a](https://example.org/x.md)",
        "`[a](none.md)`\n\n    [a](none.md)\n\n```\n[a](none.md)\n```\n",
    ] {
        assert_eq!(found_in(good), [""; 0], "{good}");
    }
    for (bad, line) in [
        ("[a](none.md)", 1),
        ("\n[a\nb](a.md#no-part)", 3),
        ("[a](../../README.md)", 1),
        ("[a](#nothing)", 1),
    ] {
        let found = found_in(bad);
        assert_eq!(found.len(), 1, "{bad}");
        assert!(
            found[0].starts_with(&format!("docs/b.md:{line}: ")),
            "{found:?}"
        );
    }
}

#[test]
fn each_page_is_in_the_book_once() {
    let all = all();
    let summary = &all[Path::new("docs/SUMMARY.md")];
    let headings = summary.lines().filter_map(|line| line.strip_prefix("# "));
    let headings: Vec<_> = headings.skip(1).collect();
    assert_eq!(headings, PARTS);
    let mut pages: Vec<PathBuf> = links(summary)
        .into_iter()
        .map(|(_, target)| plain(&Path::new("docs").join(target)))
        .collect();
    pages.sort();
    let expected: Vec<&PathBuf> = all
        .keys()
        .filter(|path| *path != Path::new("docs/SUMMARY.md"))
        .collect();
    assert_eq!(pages.iter().collect::<Vec<_>>(), expected);
}

/// The program of docs/tutorial.md compiles without a warning, and ends well.
#[test]
fn the_program_of_the_tutorial_runs() {
    let text = fs::read_to_string(top().join("docs/tutorial.md")).unwrap();
    let program = text.split("```c\n").nth(1).unwrap();
    let program = program.split("```").next().unwrap();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (source, made) = (directory.path().join("p.c"), directory.path().join("p"));
    fs::write(&source, program).unwrap();
    let compiler = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&made, &source])
        .output()
        .unwrap();
    assert!(compiler.status.success(), "{compiler:?}");
    let run = Command::new(&made).output().unwrap();
    // 4096 bytes of 1 three times, and 20,000 more.
    assert_eq!(run.stdout, b"32288\n", "{run:?}");
    assert!(run.status.success());
}
