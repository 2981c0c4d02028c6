//! Makes `rust-mm-trace/src/uapi.rs` of the UAPI header: what bindgen makes, and the list of events.
//!
//! The file is kept, so that nothing else needs bindgen and a libclang. The test here compares the file with the
//! header. After a change of the header,
//!
//! ```text
//! KVMTRACE_ACCEPT=1 cargo test -p uapi-bindings
//! ```
//!
//! writes the file anew. This is a crate of its own, and does not need rust-mm-trace, which may not compile
//! before the file is made.

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use bindgen::callbacks::{DeriveInfo, ParseCallbacks};
use bindgen::{Builder, Formatter, RustEdition, RustTarget};

const FIRST_LINES: &str = "\
// SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note
// Made of uapi/linux/vmtrace.h by bindgen. After a change of the header, this makes the file anew:
// KVMTRACE_ACCEPT=1 cargo test -p uapi-bindings
";

/// Each structure can be read from bytes.
#[derive(Debug)]
struct FromBytes;

impl ParseCallbacks for FromBytes {
    fn add_derives(&self, _info: &DeriveInfo<'_>) -> Vec<String> {
        vec!["zerocopy::FromBytes".into()]
    }
}

/// The events of a header, as a table in Rust: the number of each, its name and its class, 0 if it is always
/// recorded. The name is that of the number in lower case. The comment of a class names the events of the class.
fn events(header: &str) -> Result<String, Box<dyn Error>> {
    let defined = |prefix| {
        let lines = header.lines();
        lines.filter_map(move |line| line.strip_prefix("#define ")?.strip_prefix(prefix))
    };
    let word = |rest: &str| rest.split_whitespace().next().map(str::to_owned);
    let events: Vec<String> = defined("VMTRACE_EV_").filter_map(word).collect();
    let mut classes = Vec::new();
    for line in defined("VMTRACE_CLASS_") {
        let class = word(line).unwrap_or_default();
        let (_, comment) = line.split_once("/*").unwrap_or_default();
        for event in comment.trim_end_matches("*/").split(',').map(str::trim) {
            if !events.iter().any(|known| known == event) {
                return Err(format!(
                    "VMTRACE_CLASS_{class} is said to have {event}, which is no event"
                )
                .into());
            }
            classes.push((event, class.clone()));
        }
    }
    let mut made = String::from(
        "\n/// Each event: its number, its name, and its class, 0 if it is always recorded.\n",
    );
    writeln!(
        made,
        "pub const VMTRACE_EVENTS: [(u32, &str, u32); {}] = [",
        events.len()
    )?;
    for event in &events {
        let class = classes.iter().find(|(of, _)| of == event);
        let class = class.map_or("0".into(), |(_, class)| format!("VMTRACE_CLASS_{class}"));
        writeln!(
            made,
            "    (VMTRACE_EV_{event}, \"{}\", {class}),",
            event.to_lowercase()
        )?;
    }
    made.push_str("];\n");
    Ok(made)
}

/// The file that is made of a header, whichever versions of rustc and rustfmt there are. Fails if the header is
/// not C, or if a class has an event that does not exist. Panics if there is no libclang.
pub fn made_of(header: &Path) -> Result<String, Box<dyn Error>> {
    let rust = RustTarget::stable(85, 0).unwrap_or_default();
    let bindings = Builder::default()
        .header(header.to_string_lossy())
        .rust_target(rust)
        .rust_edition(RustEdition::Edition2024)
        .formatter(Formatter::Prettyplease)
        .disable_header_comment()
        .allowlist_type("vmtrace_.*")
        .allowlist_var("VMTRACE_.*")
        .derive_default(true)
        .derive_partialeq(true)
        .parse_callbacks(Box::new(FromBytes))
        .layout_tests(true)
        .generate_comments(false)
        .use_core()
        // _IOW() is no plain constant; the ioctl numbers are made in rust-mm-trace/src/lib.rs.
        .blocklist_var("VMTRACE_IOC_(START|STOP|STATUS|RESIZE|WINDOW|ROTATE|FILTER|COUNTS|RINGS)")
        .generate()?;
    let events = events(&fs::read_to_string(header)?)?;
    Ok(format!("{FIRST_LINES}\n{bindings}{events}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set, and not empty: a file that differs is written, not reported.
    const ACCEPT: &str = "KVMTRACE_ACCEPT";

    fn home() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn the_file_is_made_of_the_header() {
        let file = home().join("src/uapi.rs");
        let made = made_of(&home().join("uapi/linux/vmtrace.h")).expect("a header of C");
        if std::env::var_os(ACCEPT).is_some_and(|word| !word.is_empty()) {
            fs::write(&file, &made).expect("the bindings");
        }
        let kept = fs::read_to_string(&file).expect("the bindings");
        let mut lines = kept.lines().zip(made.lines());
        let differs = lines.find(|(kept, made)| kept != made);
        assert!(
            kept == made,
            "src/uapi.rs is not what is made of the header; the first line that differs: {differs:?}\n\
             After a change of the header, {ACCEPT}=1 writes the file anew"
        );
    }

    #[test]
    fn a_class_has_only_events_that_exist() {
        let header = "#define VMTRACE_EV_OPEN\t48\n#define VMTRACE_EV_MAP\t1\n";
        let file =
            |comment| format!("{header}#define VMTRACE_CLASS_FILE\t(1 << 0) /* {comment} */\n");
        let good = events(&file("OPEN")).expect("a list");
        assert!(
            good.contains("(VMTRACE_EV_OPEN, \"open\", VMTRACE_CLASS_FILE),"),
            "{good}"
        );
        assert!(good.contains("(VMTRACE_EV_MAP, \"map\", 0),"), "{good}");
        assert!(events(&file("OPEN, CLOSED")).is_err());
        assert!(events(&file("")).is_err());
    }

    /// A header that differs by one value gives another file.
    #[test]
    fn a_change_of_the_header_changes_the_file() {
        let header = fs::read_to_string(home().join("uapi/linux/vmtrace.h")).expect("the header");
        let changed = header.replace("VMTRACE_HEADER_SIZE\t4096", "VMTRACE_HEADER_SIZE\t8192");
        assert_ne!(header, changed);
        let file = std::env::temp_dir().join(format!("vmtrace-{}.h", std::process::id()));
        fs::write(&file, changed).expect("a changed header");
        let made = made_of(&file);
        fs::remove_file(&file).expect("removed");
        let kept = fs::read_to_string(home().join("src/uapi.rs")).expect("the bindings");
        assert_ne!(made.expect("a header of C"), kept);
    }
}
