//! What docs/gallery.md shows: traces that are good, and pictures that `postproc report` draws of them.
//!
//! If a picture changes on purpose,
//!
//! ```text
//! KVMTRACE_ACCEPT=1 cargo test -p postproc --test it gallery::
//! ```
//!
//! draws all of them anew. `make gallery` makes the traces anew, too.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shown::top;
use crate::support::{ACCEPT, postproc};

const TRACES: [&str; 5] = ["sqlite3", "gcc", "python3", "redis", "boot"];

/// Pictures of a report, and what they are called in the gallery.
const PICTURES: [(&str, &str); 2] = [("heatmap-pages", "pages"), ("fault-curve", "curve")];

fn gallery() -> PathBuf {
    top().join("docs/gallery")
}

/// Draws a trace into `into`.
fn draw(name: &str, into: &Path) {
    let trace = format!("{name}.vmt");
    let into = into.to_str().expect("a path");
    let out = postproc(&["report", &trace, "-o", into], &gallery());
    assert!(out.status.success(), "{name}: {out:?}");
}

#[test]
fn pictures_are_those_of_the_traces() {
    let accept = std::env::var_os(ACCEPT).is_some_and(|v| !v.is_empty());
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut other = Vec::new();
    for name in TRACES {
        let report = directory.path().join(name);
        draw(name, &report);
        for (drawn, shown) in PICTURES {
            let drawn = fs::read_to_string(report.join(format!("{drawn}.svg"))).expect("a picture");
            let shown = gallery().join(format!("{name}-{shown}.svg"));
            if accept {
                fs::write(&shown, drawn).expect("written");
            } else if fs::read_to_string(&shown).unwrap_or_default() != drawn {
                other.push(shown);
            }
        }
    }
    assert!(
        other.is_empty(),
        "postproc draws other pictures than {other:?}; if that is right, set {ACCEPT}=1"
    );
}

#[test]
fn the_page_has_each_file() {
    let page = fs::read_to_string(top().join("docs/gallery.md")).expect("the page");
    let mut files = 0;
    for entry in fs::read_dir(gallery()).expect("the gallery") {
        let name = entry.expect("an entry").file_name();
        let name = format!("gallery/{}", name.to_str().expect("a name"));
        assert!(page.contains(&name), "docs/gallery.md does not show {name}");
        files += 1;
    }
    // A trace, the commands that made it, and the pictures.
    assert_eq!(files, TRACES.len() * (2 + PICTURES.len()));
}

/// A good trace has no finding; and one with a byte changed has.
#[test]
fn traces_are_good() {
    for name in TRACES {
        let trace = format!("{name}.vmt");
        let out = postproc(&["check", "--frames", &trace], &gallery());
        assert!(out.status.success(), "{name}: {out:?}");
        let mut bytes = fs::read(gallery().join(trace)).expect("a trace");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        fs::write(directory.path().join("wrong.vmt"), bytes).expect("written");
        let out = postproc(&["check", "wrong.vmt"], directory.path());
        assert_eq!(out.status.code(), Some(1), "{name}: {out:?}");
    }
}
