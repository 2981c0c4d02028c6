//! Whether the commands that documents and helps show can be parsed, by a definition of clap.

use clap::Command;

use crate::shown::{Shown, commands, documents, examples, options};

/// What is wrong with a command, if something is. `command` is built.
fn wrong(command: &Command, shown: &Shown) -> Option<String> {
    let wrong = if shown.in_block {
        let parsed = command.clone().try_get_matches_from(&shown.words);
        parsed.err().map(|e| e.to_string())
    } else {
        let subcommand = match shown.words.get(1).filter(|w| !w.starts_with('-')) {
            None => Some(command),
            // A place holder.
            Some(name) if name == "COMMAND" => return None,
            Some(name) => command.find_subcommand(name),
        };
        let has = |subcommand: &Command, option: &String| {
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

/// How many of the commands are of this program, and what is wrong with these. `command` is built.
pub fn all_wrong(command: &Command, shown: &[Shown]) -> (usize, String) {
    let ours = || shown.iter().filter(|s| s.words[0] == command.get_name());
    let wrong: Vec<_> = ours().filter_map(|shown| wrong(command, shown)).collect();
    (ours().count(), wrong.join("\n"))
}

/// The same, of the documents.
pub fn wrong_in_documents(command: &Command) -> (usize, String) {
    let shown: Vec<_> = documents()
        .iter()
        .flat_map(|(name, text)| commands(name, text))
        .collect();
    all_wrong(command, &shown)
}

/// The same, of the helps of all subcommands. Each of them must have an example.
pub fn wrong_in_helps(command: &Command) -> (usize, String) {
    let helped = std::iter::once(command).chain(command.get_subcommands());
    let mut shown = Vec::new();
    for command in helped.filter(|c| c.get_name() != "help") {
        let text = command.get_after_help().map(ToString::to_string);
        let found = examples(command.get_name(), &text.unwrap_or_default());
        assert!(!found.is_empty(), "{} has no example", command.get_name());
        shown.extend(found);
    }
    (shown.len(), all_wrong(command, &shown).1)
}
