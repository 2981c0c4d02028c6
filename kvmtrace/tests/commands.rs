//! `kvmtrace` has all commands of the tools, and does what they do.

use std::process::{Command as Process, Output};

use clap::{Command, CommandFactory};
use kvmtrace::{OF_BOTH, Tool, command, tool_of};

/// The tools' own definitions.
fn tools() -> [(Tool, Command); 2] {
    [
        (Tool::Activator, activator::cli::Cli::command()),
        (Tool::Postproc, postproc::commands::Cli::command()),
    ]
}

/// Commands of tools that `whole` does not have as they are.
fn missing(tools: &[(Tool, Command)], whole: &Command) -> Vec<String> {
    let options = |command: &Command| -> Vec<_> {
        let ids = command.get_arguments().map(|a| a.get_id().to_string());
        // Commands of the activator have it from the activator itself.
        ids.filter(|id| id != "device").collect()
    };
    let mut missing = Vec::new();
    for (tool, its) in tools {
        for subcommand in its.get_subcommands() {
            let name = subcommand.get_name();
            let is_there = whole.find_subcommand(name).is_some_and(|found| {
                options(found) == options(subcommand)
                    && (tool_of(name) == Some(*tool) || OF_BOTH.contains(&name))
            });
            if !is_there {
                missing.push(name.to_owned());
            }
        }
    }
    missing
}

#[test]
fn has_each_command_of_the_tools() {
    let mut tools = tools();
    assert_eq!(missing(&tools, &command()), Vec::<String>::new());
    let number = |command: &Command| command.get_subcommands().count();
    let all: usize = tools.iter().map(|(_, its)| number(its)).sum();
    // Names that both have would hide each other.
    assert_eq!(number(&command()), all - OF_BOTH.len());

    // A command, and an option, that only a tool has.
    let [(_, activator), (_, postproc)] = &mut tools;
    *activator = activator.clone().subcommand(Command::new("new"));
    let check = |check: Command| check.arg(clap::Arg::new("new").long("new"));
    *postproc = postproc.clone().mut_subcommand("check", check);
    assert_eq!(missing(&tools, &command()), ["new", "check"]);
}

fn kvmtrace(args: &[&str]) -> Output {
    Process::new(env!("CARGO_BIN_EXE_kvmtrace"))
        .args(args)
        .env("COLUMNS", "90")
        .output()
        .expect("starts")
}

#[test]
fn each_tool_does_its_part() {
    for (args, code, says) in [
        (
            &["check", "/no/such.vmt"][..],
            2,
            "kvmtrace: /no/such.vmt: cannot read",
        ),
        (
            &["--device", "/dev/no-vmtrace", "status"],
            2,
            "kvmtrace: /dev/no-vmtrace does not exist",
        ),
        (
            &["record", "/no/such/command"],
            127,
            "kvmtrace: /no/such/command: command not found",
        ),
        (
            &["status", "--device", "/dev/no-vmtrace"],
            2,
            "kvmtrace: /dev/no-vmtrace does not exist",
        ),
        (
            &["check", "--device", "/dev/no-vmtrace", "t.vmt"],
            2,
            "unexpected argument '--device'",
        ),
        (
            &["--device", "/dev/no-vmtrace", "check", "t.vmt"],
            2,
            "--device is for commands that control tracing",
        ),
        (&["record"], 2, "Usage: kvmtrace record <CMD|--all|"),
        (&["recrod", "ls"], 2, "'record'"),
        (&["simulate", "t.vmt"], 2, "Usage: kvmtrace simulate"),
    ] {
        let output = kvmtrace(args);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {err}");
        assert!(err.contains(says), "{args:?}: {err}");
        assert!(
            !err.contains("a similar argument exists: '--device'"),
            "{err}"
        );
    }
}

#[test]
fn helps_name_no_command_of_a_tool() {
    for subcommand in command().get_subcommands() {
        let output = kvmtrace(&[subcommand.get_name(), "--help"]);
        assert!(output.status.success());
        let help = String::from_utf8(output.stdout).expect("UTF-8");
        for (_, tool) in tools() {
            let name = tool.get_name();
            for its in tool.get_subcommands() {
                let other = format!("  {name} {}", its.get_name());
                assert!(!help.contains(&other), "{help}");
            }
        }
    }
    let help = String::from_utf8(kvmtrace(&["--help"]).stdout).expect("UTF-8");
    let record = help.find("Record a trace:\n  record ");
    assert!(record < help.find("Read a trace:\n  check "), "{help}");
}

#[test]
fn manual_pages_and_completions_are_its_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().display().to_string();
    let output = kvmtrace(&["man", "-o", &path]);
    assert!(output.status.success(), "{output:?}");
    for page in ["kvmtrace.1", "kvmtrace-record.1", "kvmtrace-simulate.1"] {
        let text = std::fs::read_to_string(directory.path().join(page)).expect(page);
        assert!(text.contains("kvmtrace"), "{page}");
    }
    let script = kvmtrace(&["completions", "bash"]);
    let script = String::from_utf8_lossy(&script.stdout);
    assert!(script.contains("kvmtrace__subcmd__record") || script.contains("kvmtrace__record"));
}
