//! Commands of `kvmtrace` that the documents and its own help show can be parsed. The tests of the
//! tools run what can be run: postproc/tests/docs.rs on the host, and the guest test shell-documents.

#[path = "../../postproc/tests/support/shown.rs"]
mod shown;

use std::sync::LazyLock;

use shown::{Shown, commands, documents, examples, options};

/// The definition. It takes a while to make.
static COMMAND: LazyLock<clap::Command> = LazyLock::new(|| {
    let mut command = kvmtrace::command();
    command.build();
    command
});

/// What is wrong with a command, if something is.
fn wrong(shown: &Shown) -> Option<String> {
    let command = COMMAND.clone();
    let wrong = if shown.in_block {
        let parsed = command.try_get_matches_from(&shown.words);
        parsed.err().map(|e| e.to_string())
    } else {
        let subcommand = match shown.words.get(1).filter(|w| !w.starts_with('-')) {
            None => Some(&command),
            // A place holder.
            Some(name) if name == "COMMAND" => return None,
            Some(name) => command.find_subcommand(name),
        };
        let has = |subcommand: &clap::Command, option: &String| {
            subcommand.get_arguments().any(|argument| {
                let long = argument.get_long().map(|l| format!("--{l}"));
                let short = argument.get_short().map(|s| format!("-{s}"));
                long.as_ref() == Some(option) || short.as_ref() == Some(option)
            })
        };
        match subcommand {
            None => Some("there is no such command".into()),
            Some(subcommand) => options(&shown.words)
                .into_iter()
                .find(|option| !has(subcommand, option))
                .map(|option| format!("it has no option {option}")),
        }
    };
    wrong.map(|wrong| format!("{}: {}: {wrong}", shown.place, shown.words.join(" ")))
}

fn all_wrong(shown: &[Shown]) -> (usize, String) {
    let ours = || shown.iter().filter(|s| s.words[0] == "kvmtrace");
    let wrong: Vec<_> = ours().filter_map(wrong).collect();
    (ours().count(), wrong.join("\n"))
}

#[test]
fn commands_in_documents() {
    let shown: Vec<_> = documents()
        .iter()
        .flat_map(|(name, text)| commands(name, text))
        .collect();
    let (found, wrong) = all_wrong(&shown);
    assert_eq!(wrong, "");
    assert!(found >= 8, "only {found} commands were found");
}

/// The guest test shell-documents runs all that the activator has.
#[test]
fn commands_of_the_kernel_are_the_activators() {
    let activator = <activator::cli::Cli as clap::CommandFactory>::command();
    let names = activator.get_subcommands().map(clap::Command::get_name);
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
    let mut command = kvmtrace::command();
    command.build();
    let helped = std::iter::once(&command).chain(command.get_subcommands());
    let mut shown = Vec::new();
    for command in helped.filter(|c| c.get_name() != "help") {
        let text = command.get_after_help().map(ToString::to_string);
        let found = examples(command.get_name(), &text.unwrap_or_default());
        assert!(!found.is_empty(), "{} has no example", command.get_name());
        shown.extend(found);
    }
    assert_eq!(all_wrong(&shown).1, "");
    assert!(shown.len() >= 60, "only {} commands", shown.len());
}

#[test]
fn what_is_wrong_is_found() {
    let wrong = |text: &str| all_wrong(&commands("d", text)).1;
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
