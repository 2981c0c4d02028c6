//! Commands of `kvmtrace` that the documents and its own help show can be parsed. The tests of the
//! tools run what can be run: postproc/tests/docs.rs on the host, and the guest test shell-documents.

use std::sync::LazyLock;

use crate::parsed::{all_wrong, wrong_in_documents, wrong_in_helps};
use crate::shown::{self, commands};
use clap::Command;

/// The definition. It takes a while to make.
static COMMAND: LazyLock<Command> = LazyLock::new(|| {
    let mut command = kvmtrace::command();
    command.build();
    command
});

#[test]
fn commands_in_documents() {
    let (found, wrong) = wrong_in_documents(&COMMAND);
    assert_eq!(wrong, "");
    assert!(found >= 8, "only {found} commands were found");
}

/// The guest test shell-documents runs all that the activator has.
#[test]
fn commands_of_the_kernel_are_the_activators() {
    let activator = <activator::cli::Cli as clap::CommandFactory>::command();
    let names = activator.get_subcommands().map(Command::get_name);
    let mut names: Vec<_> = names
        .filter(|name| !kvmtrace::OF_BOTH.contains(name))
        .collect();
    let mut known = shown::OF_KERNEL.to_vec();
    names.sort_unstable();
    known.sort_unstable();
    assert_eq!(names, known);
}

#[test]
fn commands_in_helps() {
    let (found, wrong) = wrong_in_helps(&COMMAND);
    assert_eq!(wrong, "");
    assert!(found >= 60, "only {found} commands were found");
}

#[test]
fn what_is_wrong_is_found() {
    let wrong = |text: &str| all_wrong(&COMMAND, &commands("d", text)).1;
    for good in [
        "    kvmtrace record -n 16MiB -o t.vmt sh -c 'a | b' --all\n",
        "Give `kvmtrace check --frames` or `kvmtrace COMMAND --help`.\n",
    ] {
        assert_eq!(wrong(good), "", "{good}");
    }
    for bad in [
        "    kvmtrace start --all\n",
        "    kvmtrace record --all ls\n",
        "    kvmtrace simulate t.vmt --size 1MB --policy lru\n",
        "Give `kvmtrace record --agian`.\n",
        "Give `kvmtrace begin`.\n",
    ] {
        assert!(
            wrong(bad).starts_with("d:1: kvmtrace "),
            "{bad}: {}",
            wrong(bad)
        );
    }
}
