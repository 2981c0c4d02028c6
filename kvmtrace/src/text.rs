//! The tools' texts, under the name `kvmtrace`.

use clap::builder::StyledStr;
use clap::{Arg, Command};

use crate::NAME;

/// Names commands of the tools as those of `kvmtrace`.
pub struct Texts {
    /// Each tool, and its commands.
    tools: Vec<(String, Vec<String>)>,
}

impl Texts {
    /// For the commands of these tools.
    pub fn new(tools: &[Command]) -> Self {
        let named = |command: &Command| command.get_name().to_owned();
        let tools = tools.iter();
        Self {
            tools: tools
                .map(|tool| (named(tool), tool.get_subcommands().map(named).collect()))
                .collect(),
        }
    }

    /// A command with its texts, and those of its options, under the new name.
    pub fn named(&self, command: Command) -> Command {
        let text = |old: Option<&StyledStr>| old.map(|old| self.styled(old));
        let about = text(command.get_about());
        let long_about = text(command.get_long_about());
        let after_help = text(command.get_after_help());
        let after_long_help = text(command.get_after_long_help());
        let mut command = command.mut_args(|arg| self.named_arg(arg));
        if let Some(about) = about {
            command = command.about(about);
        }
        if let Some(about) = long_about {
            command = command.long_about(about);
        }
        if let Some(help) = after_help {
            command = command.after_help(help);
        }
        if let Some(help) = after_long_help {
            command = command.after_long_help(help);
        }
        command
    }

    fn named_arg(&self, mut arg: Arg) -> Arg {
        if let Some(help) = arg.get_help().map(|old| self.styled(old)) {
            arg = arg.help(help);
        }
        if let Some(help) = arg.get_long_help().map(|old| self.styled(old)) {
            arg = arg.long_help(help);
        }
        arg
    }

    fn styled(&self, text: &StyledStr) -> StyledStr {
        StyledStr::from(self.text(&text.to_string()))
    }

    fn text(&self, text: &str) -> String {
        let lines: Vec<_> = text.split('\n').map(|line| self.line(line)).collect();
        lines.join("\n")
    }

    /// A line. What stands behind three spaces, and says what a command does, stays where it is.
    fn line(&self, line: &str) -> String {
        let mut text = line.to_owned();
        for (tool, commands) in &self.tools {
            text = text.replace(&format!("`{tool}`"), &format!("`{NAME}`"));
            text = text.replace(
                &format!("completion.d/{tool}"),
                &format!("completion.d/{NAME}"),
            );
            text = text.replace(&format!("zfunc/_{tool}"), &format!("zfunc/_{NAME}"));
            for command in commands {
                text = renamed(&text, &format!("{tool} {command}"), tool.len());
            }
        }
        let shorter = line.len().saturating_sub(text.len());
        match text.trim_start().find("   ") {
            Some(at) if shorter > 0 && text.trim_start().starts_with(NAME) => {
                let at = at + text.len() - text.trim_start().len();
                text.insert_str(at, &" ".repeat(shorter));
                text
            }
            _ => text,
        }
    }
}

/// The text with another first word of `what`, wherever `what` stands as whole words.
fn renamed(text: &str, what: &str, first: usize) -> String {
    let mut done = String::new();
    let mut rest = text;
    let is_of_word = |c: char| c.is_alphanumeric() || "-_/.".contains(c);
    while let Some(at) = rest.find(what) {
        let (before, from) = rest.split_at(at);
        let (found, after) = from.split_at(what.len());
        done += before;
        let is_whole = !done.ends_with(is_of_word)
            && !after.starts_with(|c: char| c.is_alphanumeric() || "-_".contains(c));
        match is_whole {
            true => done = done + NAME + &found[first..],
            false => done += found,
        }
        rest = after;
    }
    done + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_get_the_name_that_people_know() {
        let tool = |name: &'static str, commands: &[&'static str]| {
            Command::new(name).subcommands(commands.iter().map(|c| Command::new(*c)))
        };
        let texts = Texts::new(&[
            tool("activator", &["on", "off"]),
            tool("postproc", &["check"]),
        ]);
        for (old, new) in [
            ("`activator off` ends it", "`kvmtrace off` ends it"),
            (
                "  activator on -n 4     into",
                "  kvmtrace on -n 4      into",
            ),
            (
                "  postproc check a     good?",
                "  kvmtrace check a     good?",
            ),
            ("the activator offers", "the activator offers"),
            ("two\n  activator off", "two\n  kvmtrace off"),
            ("a | postproc check -", "a | kvmtrace check -"),
            ("/bin/activator on", "/bin/activator on"),
            ("commands of `postproc`", "commands of `kvmtrace`"),
            ("postproc checks it", "postproc checks it"),
        ] {
            assert_eq!(texts.text(old), new);
        }
    }
}
