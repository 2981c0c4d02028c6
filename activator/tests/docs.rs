//! Commands of the activator that the documents and its own help show can be parsed.

use std::sync::LazyLock;

use crate::parsed::{all_wrong, wrong_in_documents, wrong_in_helps};
use crate::shown::commands;
use clap::{Command, CommandFactory};

/// The definition.
static COMMAND: LazyLock<Command> = LazyLock::new(|| {
    let mut command = activator::cli::Cli::command();
    command.build();
    command
});

#[test]
fn commands_in_documents() {
    let (found, wrong) = wrong_in_documents(&COMMAND);
    assert_eq!(wrong, "");
    assert!(found >= 8, "only {found} commands were found");
}

#[test]
fn commands_in_helps() {
    let (found, wrong) = wrong_in_helps(&COMMAND);
    assert_eq!(wrong, "");
    assert!(found >= 20, "only {found} commands were found");
}

#[test]
fn what_is_wrong_is_found() {
    let wrong = |text: &str| all_wrong(&COMMAND, &commands("d", text)).1;
    for good in [
        "    activator run -n 4096 -o t.vmt -- sh -c 'a | b' --all\n",
        "```\n# activator off   # ends it\n```\n",
        "Give `activator run --again --first N/4`.\n",
        "    trace-cmd record -e vmtrace activator run -o t.vmt -- make\n",
    ] {
        assert_eq!(wrong(good), "", "{good}");
    }
    for bad in [
        "    activator start --all\n",
        "    activator on\n",
        "    activator run -n many -- true\n",
        "Give `activator run --agian`.\n",
        "Give `activator begin`.\n",
        "    trace-cmd record -e vmtrace activator run --all -- make\n",
    ] {
        assert!(
            wrong(bad).starts_with("d:1: activator "),
            "{bad}: {}",
            wrong(bad)
        );
    }
}
