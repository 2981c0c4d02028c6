//! Commands of the activator that the documents and its own help show can be parsed.

#[path = "../../postproc/tests/support/shown.rs"]
mod shown;

use activator::cli::Cli;
use clap::{CommandFactory, Parser};
use shown::{Shown, commands, documents, examples, options};

/// What is wrong with a command, if something is.
fn wrong(shown: &Shown) -> Option<String> {
    let wrong = if shown.in_block {
        Cli::try_parse_from(&shown.words)
            .err()
            .map(|e| e.to_string())
    } else {
        let mut command = Cli::command();
        command.build();
        let subcommand = match shown.words.get(1).filter(|w| !w.starts_with('-')) {
            None => Some(&command),
            Some(name) => command.find_subcommand(name),
        };
        match subcommand {
            None => Some("there is no such command".into()),
            Some(subcommand) => options(&shown.words)
                .into_iter()
                .find(|option| {
                    !subcommand.get_arguments().any(|argument| {
                        let long = argument.get_long().map(|l| format!("--{l}"));
                        let short = argument.get_short().map(|s| format!("-{s}"));
                        long.as_ref() == Some(option) || short.as_ref() == Some(option)
                    })
                })
                .map(|option| format!("it has no option {option}")),
        }
    };
    wrong.map(|wrong| format!("{}: {}: {wrong}", shown.place, shown.words.join(" ")))
}

fn all_wrong(shown: &[Shown]) -> (usize, String) {
    let ours = || shown.iter().filter(|s| s.words[0] == "activator");
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

#[test]
fn commands_in_helps() {
    let mut command = Cli::command();
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
    assert!(
        shown.len() >= 20,
        "only {} commands were found",
        shown.len()
    );
}

#[test]
fn what_is_wrong_is_found() {
    let wrong = |text: &str| all_wrong(&commands("d", text)).1;
    for good in [
        "    activator run -n 4k -o t.vmt -- sh -c 'a | b' --all\n",
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
