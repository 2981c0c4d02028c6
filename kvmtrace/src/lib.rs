//! `kvmtrace` is one command for people: it has the commands of `activator`, which
//! controls traces, and of `postproc`, which reads them.
//!
//! Both define their commands, options and texts. [`command`] puts the definitions together, and
//! [`main`] hands what was parsed to the tool that has defined it. So a command that is added to a
//! tool is a command of `kvmtrace`, too.

mod text;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use activator::{Io, Name};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};

/// The name of the command.
const NAME: &str = "kvmtrace";

/// Commands that both tools have. `kvmtrace` has them once: those of `postproc`, about itself.
pub const OF_BOTH: [&str; 2] = ["completions", "man"];

/// The commands as `--help` shows them: headings, and what is below each.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Record a trace", &["record", "top", "status"]),
    (
        "Read a trace",
        &[
            "check", "report", "info", "events", "maps", "simulate", "advise", "compare", "damon",
            "regions", "reduce", "export", "dataset", "summary", "merge",
        ],
    ),
    (
        "Control tracing",
        &[
            "run", "on", "off", "resize", "filter", "pause", "resume", "rotate", "snapshot",
        ],
    ),
    (
        "Change the file of a trace",
        &["pack", "unpack", "split", "join", "recover"],
    ),
    ("More", &["man", "completions", "help"]),
];

const ABOUT: &str = "Records which pages programs reference, and reads such traces: checks them, \
                     draws them, and simulates memories with them";

const EXAMPLES: &str = "\
Examples:
  kvmtrace record -o ls.vmt ls -lR /usr      trace a command and its children
  kvmtrace record -p 1234 --for 30s          trace a process for 30 seconds
  kvmtrace top                               count references live, without a trace
  kvmtrace check ls.vmt                      is the trace good?
  kvmtrace report ls.vmt                     a page of pictures, for a browser
  kvmtrace simulate ls.vmt --size 16MiB --policy lru,opt
  kvmtrace compare base.vmt new.vmt --fail-above 5%
  kvmtrace export ls.vmt --format csv -o ls.csv

`kvmtrace COMMAND --help` explains the options of a command, and gives examples. The
commands are those of `activator` (record and control) and `postproc` (read and change),
which scripts may call instead.

Exit codes:
  0    good
  1    the trace is bad: it failed its checks, lost records or broke an invariant
  2    wrong usage, or input or output failed, or the kernel refused
  3    more memory is needed than `kvmtrace compare --fail-above` permits
  129, 130, 131, 143  ended by SIGHUP, SIGINT (Ctrl-C), SIGQUIT, SIGTERM
`record`, `run` and `top` exit with the code of the command that they ran, if the trace
is good.";

/// The most characters of a line of help.
const WIDTH: usize = 90;

/// Which tool has defined a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// It controls the kernel.
    Activator,
    /// It reads traces.
    Postproc,
}

/// The tool that does what a command of `kvmtrace` asks for; `None` if there is no such command.
pub fn tool_of(name: &str) -> Option<Tool> {
    let has = |command: Command| command.find_subcommand(name).is_some();
    if has(postproc::commands::Cli::command()) {
        Some(Tool::Postproc)
    } else if has(activator::cli::Cli::command()) {
        Some(Tool::Activator)
    } else {
        None
    }
}

/// The definition of `kvmtrace`: the commands of both tools, with texts that name `kvmtrace`.
pub fn command() -> Command {
    let tools = [
        activator::cli::Cli::command(),
        postproc::commands::Cli::command(),
    ];
    let texts = text::Texts::new(&tools);
    let [activator, postproc] = tools;
    let mut command = Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .max_term_width(WIDTH)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(EXAMPLES);
    // What the activator has for all of its commands. Commands that read traces do not have it.
    let of_all: Vec<_> = activator.get_arguments().cloned().collect();
    let of_all: Vec<_> = of_all.into_iter().map(|arg| arg.global(false)).collect();
    command = command.args(&of_all);
    let of_both = |name: &str| OF_BOTH.contains(&name);
    let controls = activator.get_subcommands();
    let controls = controls.filter(|c| !of_both(c.get_name()));
    for subcommand in controls {
        command = command.subcommand(texts.named(subcommand.clone()).args(&of_all));
    }
    for subcommand in postproc.get_subcommands() {
        command = command.subcommand(texts.named(subcommand.clone()));
    }
    let template = template(&command);
    command.help_template(template)
}

/// The help of the command itself, with its commands below headings.
fn template(command: &Command) -> String {
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    let about = |name: &str| match command.find_subcommand(name) {
        Some(found) => found.get_about().map(ToString::to_string),
        None => Some("Print the help of a command".into()),
    };
    for (heading, names) in GROUPS {
        text += &format!("\n{heading}:\n");
        for name in names {
            text += &format!("  {name:<11}  {}\n", about(name).unwrap_or_default());
        }
    }
    text + "\nOptions:\n{options}{after-help}"
}

/// Does what the command line `args` asks for. The calling process has one thread.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let matches = command().get_matches_from(args);
    let tool = matches.subcommand_name().and_then(tool_of);
    let done = match tool {
        Some(Tool::Activator) => control(&matches),
        _ => read(&matches),
    };
    done.unwrap_or_else(|e| e.exit())
}

/// The option of the activator that stands before a command, or behind it.
const DEVICE: &str = "device";

fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::CommandLine)
}

fn control(matches: &ArgMatches) -> Result<ExitCode, clap::Error> {
    let mut cli = activator::cli::Cli::from_arg_matches(matches)?;
    let behind = matches.subcommand().map(|(_, behind)| behind);
    let behind = behind.filter(|behind| is_given(behind, DEVICE));
    if let Some(device) = behind.and_then(|behind| behind.get_one::<PathBuf>(DEVICE)) {
        cli.device.clone_from(device);
    }
    let mut io = Io {
        out: &mut std::io::stdout(),
        err: &mut std::io::stderr(),
        background: true,
        is_stdout: true,
        name: Name::Kvmtrace,
    };
    let code = activator::execute(&cli, &activator::control::connect, &mut io);
    Ok(ExitCode::from(code))
}

fn read(matches: &ArgMatches) -> Result<ExitCode, clap::Error> {
    if is_given(matches, DEVICE) {
        return Err(command().error(
            ErrorKind::ArgumentConflict,
            "--device is for commands that control tracing, and this one reads a trace",
        ));
    }
    let cli = postproc::commands::Cli::from_arg_matches(matches)?;
    Ok(postproc::commands::execute_as(cli, command()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn lines_of_help_are_not_wrapped() {
        for line in EXAMPLES.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        for subcommand in command().get_subcommands() {
            let help = subcommand.get_after_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            // Commands that are shown cannot be shorter.
            for line in help.lines().filter(|line| !line.starts_with("  ")) {
                let length = line.chars().count();
                assert!(length <= WIDTH, "{}: {line}", subcommand.get_name());
            }
        }
    }

    #[test]
    fn each_command_is_below_one_heading() {
        let mut below: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).collect();
        below.sort();
        let command = command();
        let mut all: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
        all.push("help");
        all.sort_unstable();
        assert!(below.into_iter().eq(all.iter()), "{all:?}");
    }
}
