//! What a command says when input or output fails: what, why, and each once.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};

use postproc::testing::TraceBuilder;

/// Runs a command with its standard output in a file of this name; gives its messages.
fn messages(directory: &Path, output: &str, args: &[&str]) -> String {
    let output = OpenOptions::new().write(true).open(output).unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_postproc"))
        .args(args)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(output)
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(2), "{args:?}");
    String::from_utf8(ended.stderr).unwrap()
}

#[test]
fn a_cause_is_named_once() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("good"), TraceBuilder::sample().finish()).unwrap();
    std::fs::create_dir_all(at("full/of")).unwrap();
    File::create(at("file")).unwrap();
    let (none, room) = (
        "No such file or directory (os error 2)",
        "No space left on device (os error 28)",
    );
    let not = "Not a directory (os error 20)";
    let simulate = ["simulate", "--from", "txt", "--size", "1"];
    let txt = ["export", "good", "--format", "txt", "-o"];
    let ctf = ["export", "good", "--format", "ctf", "-o"];
    let next_use = ["export", "good", "--format", "oracleGeneral", "-o"];
    let sad = ["reduce", "good", "--method", "sad", "--size", "1", "-o"];
    for (args, message) in [
        (
            &["check", "missing"][..],
            format!("missing: cannot read: {none}"),
        ),
        (&["info", "file/x"], format!("file/x: cannot read: {not}")),
        (
            &[&simulate[..], &["missing"]].concat(),
            format!("missing: cannot read: {none}"),
        ),
        (
            &[&simulate[..], &["full"]].concat(),
            "full: cannot read: is a directory".into(),
        ),
        (
            &["damon", "good", "--record", "missing", "--space", "1"],
            format!("missing: cannot read: {none}"),
        ),
        (
            &[&txt[..], &["no/such/o"]].concat(),
            format!("no/such/o: cannot write: {none}"),
        ),
        (
            &[&txt[..], &["full"]].concat(),
            "full: cannot write: is a directory".into(),
        ),
        (
            &[&txt[..], &["/dev/full"]].concat(),
            format!("/dev/full: cannot write: {room}"),
        ),
        (
            &[&next_use[..], &["no/such/o"]].concat(),
            format!("temporary file in no/such: cannot write: {none}"),
        ),
        (
            &[&ctf[..], &["full"]].concat(),
            "full: cannot write: it is not empty".into(),
        ),
        (
            &[&sad[..], &["/dev/full"]].concat(),
            format!("/dev/full: cannot write: {room}"),
        ),
        (
            &["report", "good", "-o", "file/o"],
            format!("file/o: cannot write: {not}"),
        ),
        (
            &["report", "good", "-o", "no/o.html"],
            format!("no/o.html: cannot write: {none}"),
        ),
        (
            &["man", "-o", "file/o"],
            format!("file/o: cannot write: {not}"),
        ),
    ] {
        let said = messages(directory.path(), "/dev/null", args);
        assert_eq!(said, format!("postproc: {message}\n"), "{args:?}");
    }
    for args in [
        &["check", "good"][..],
        &["check", "good", "--json"],
        &["info", "good"],
        &["events", "good"],
        &["maps", "good"],
        &["simulate", "good", "--size", "1"],
        &["damon", "good"],
        &["man"],
        &["completions", "bash"],
        &[&txt[..], &["-"]].concat(),
    ] {
        let said = messages(directory.path(), "/dev/full", args);
        let message = format!("postproc: standard output: cannot write: {room}\n");
        assert_eq!(said, message, "{args:?}");
    }
}
