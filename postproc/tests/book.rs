//! The documents as a book: each page is in it once, links lead somewhere, nothing is loaded from
//! elsewhere, and the tutorial's program can be compiled.

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

/// What a browser fetches for a page without being asked: the line, and the file or address.
fn loaded(text: &str) -> Vec<(usize, String)> {
    let text = prose(text);
    let pictures = text.match_indices("![").filter_map(|(at, _)| {
        let (_, target) = text[at..].split_once("](")?;
        Some((at, target.split(')').next()?))
    });
    let tags = text.match_indices(" src=\"").map(|(at, attribute)| {
        let target = text[at + attribute.len()..].split('"').next();
        (at, target.unwrap_or_default())
    });
    let all = pictures.chain(tags);
    all.map(|(at, target)| (text[..at].matches('\n').count() + 1, target.to_owned()))
        .collect()
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

/// The links that lead nowhere, and what a page loads from elsewhere.
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
    let elsewhere = |target: &str| target.contains("://") || target.starts_with("//");
    let loaded = loaded(text).into_iter();
    let from_elsewhere = loaded.filter(|(_, target)| elsewhere(target));
    wrong
        .map(|(line, target)| format!("{name}:{line}: {target} leads nowhere"))
        .chain(from_elsewhere.map(|(line, target)| {
            format!("{name}:{line}: {target} is loaded, and the book is to need no network")
        }))
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
        "![a](gallery/gcc-curve.svg) and `<img src=\"https://example.org/x\">`",
        "`[a](none.md)`\n\n    [a](none.md)\n\n```\n[a](none.md)\n```\n",
    ] {
        assert_eq!(found_in(good), [""; 0], "{good}");
    }
    for (bad, line) in [
        ("[a](none.md)", 1),
        ("\n[a\nb](a.md#no-part)", 3),
        ("[a](../../README.md)", 1),
        ("[a](#nothing)", 1),
        ("\n![a](https://example.org/x.png)", 2),
        ("a\n\n<script src=\"//example.org/x.js\">", 3),
    ] {
        let found = found_in(bad);
        assert_eq!(found.len(), 1, "{bad}");
        assert!(
            found[0].starts_with(&format!("docs/b.md:{line}: ")),
            "{found:?}"
        );
    }
}

/// The check of the book that is made, scripts/book_links.py, on a page, a style sheet and a picture.
#[test]
fn what_a_book_needs_is_in_it() {
    let check = |page: &str, style: &str, picture: &str| {
        let book = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let files = [("a.html", page), ("b.css", style), ("c.svg", picture)];
        for (name, text) in files {
            fs::write(book.path().join(name), text).unwrap();
        }
        Command::new("python3")
            .arg(top().join("scripts/book_links.py"))
            .arg(book.path())
            .output()
            .unwrap()
    };
    let (page, style, picture) = (
        "<link rel=\"stylesheet\" href=\"b.css\"><style>p { background: url(c.svg) }</style>\n\
         <p id=\"p\"><a href=\"https://example.org/\">a</a> <a href=\"#p\">p</a> https://example.org/\n\
         <img src=\"c.svg\"> &lt;img src=\"https://example.org/\"&gt;\n",
        "a { background: url('data:image/svg+xml,<svg width=\"1\">') } p { src: url( \"c.svg\" ) }\n",
        "<svg xmlns=\"http://www.w3.org/2000/svg\"><image href=\"data:image/png;base64,AA\"/></svg>\n",
    );
    let good = check(page, style, picture);
    assert!(good.status.success(), "{good:?}");
    assert_eq!(good.stdout, b"3\n");
    let elsewhere = |output: std::process::Output, what: &str| {
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{what}: {said}");
        assert!(
            said.contains(": loads ") && said.lines().count() == 1,
            "{what}: {said}"
        );
    };
    // The controls.
    for bad in [
        "<script src=\"https://example.org/x.js\"></script>",
        "<script src='http://example.org/x.js'></script>",
        "<img alt=\"x\" src=//example.org/x.png>",
        "<img srcset=\"c.svg 1x, https://example.org/x.png 2x\">",
        "<LINK href=\"https://example.org/x.css\" rel=\"stylesheet\">",
        "<style>@import 'https://example.org/x.css';</style>",
        "<p style=\"background: url(https://example.org/x.png)\">",
        "<iframe src=\"https://example.org/\"></iframe>",
        "<pre class=\"playground\"><code>fn main() {}</code></pre>",
    ] {
        elsewhere(check(&format!("{page}{bad}"), style, picture), bad);
    }
    for bad in [
        "@import \"https://example.org/x.css\";",
        "@import url(//example.org/x.css);",
        "p { src: url('https://example.org/x.woff2') }",
    ] {
        elsewhere(check(page, bad, picture), bad);
    }
    let bad = "<svg><image href=\"https://example.org/x.png\"/></svg>";
    elsewhere(check(page, style, bad), bad);
    for bad in ["<a href=\"d.html\">d</a>", "<a href=\"#q\">q</a>"] {
        let output = check(&format!("{page}{bad}"), style, picture);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(1) && said.contains("leads nowhere"),
            "{said}"
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
