//! `activator` controls kVMTrace: it starts, ends and shows the trace that the
//! kernel writes, and runs commands under it.
//!
//! It gives the kernel a descriptor to write to, and is not needed after that.
//! If the activator ends, the trace goes on, and another activator can show or
//! end it. Commands reach the kernel through [`control::Control`], so that tests
//! can use [`fake::Fake`] instead of the kernel.

pub mod budget;
mod calibrate;
pub mod cli;
pub mod commands;
pub mod control;
pub mod counts;
pub mod error;
pub mod fake;
pub mod filter;
pub mod keeper;
pub mod output;
pub mod pace;
pub mod pieces;
pub mod rings;
pub mod rotate;
pub mod sampling;
pub mod scope;
pub mod snapshots;
pub mod status;
pub mod summary;
mod sys;
pub mod table;
pub mod triggers;
pub mod units;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use clap::{CommandFactory, Parser};
use serde_json::Value;

use crate::cli::{Cli, Command};
use crate::control::Control;
use crate::error::{Failure, USAGE};

/// Where a command's result and its notices go.
pub struct Io<'a> {
    /// The result: standard output.
    pub out: &'a mut dyn Write,
    /// Notices and errors: standard error.
    pub err: &'a mut dyn Write,
    /// Whether a command may leave a process behind that goes on. The calling process has one
    /// thread only then.
    pub background: bool,
    /// Whether `out` is the standard output of this process.
    pub is_stdout: bool,
    /// The command that people have called.
    pub name: Name,
}

/// The command that people have called, by which messages name commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Name {
    /// `activator`, whose traces `postproc` reads.
    #[default]
    Activator,
    /// `kvmtrace`, which has the commands of both.
    Kvmtrace,
}

impl Name {
    /// What messages begin with.
    pub fn own(self) -> &'static str {
        match self {
            Self::Activator => "activator",
            Self::Kvmtrace => "kvmtrace",
        }
    }

    /// The command that reads traces.
    pub fn reader(self) -> &'static str {
        match self {
            Self::Activator => "postproc",
            Self::Kvmtrace => "kvmtrace",
        }
    }

    /// A message with its commands under this name.
    pub fn named(self, text: &str) -> String {
        text.replace("`activator ", &format!("`{} ", self.own()))
            .replace("`postproc ", &format!("`{} ", self.reader()))
    }

    /// A result with its commands under this name. JSON names commands in its problems only, and all else
    /// stays as it is: it may be the name of a program, or of a file.
    fn result(self, text: &str) -> String {
        let named = self.named(text);
        if named == text {
            return named;
        }
        let Ok(Value::Object(mut map)) = serde_json::from_str(text) else {
            return named;
        };
        let problems = map.get_mut("problems").and_then(Value::as_array_mut);
        for problem in problems.into_iter().flatten() {
            if let Value::String(problem) = problem {
                *problem = self.named(problem);
            }
        }
        format!("{}\n", Value::from(map))
    }
}

impl Io<'_> {
    /// Writes the result. A reader that has closed its end is no error.
    pub fn print(&mut self, text: &str) -> Result<(), Failure> {
        self.offer(text).map(drop)
    }

    /// Writes a part of the result; gives whether there is a reader.
    pub fn offer(&mut self, text: &str) -> Result<bool, Failure> {
        let written = self.out.write_all(self.name.result(text).as_bytes());
        match written.and_then(|()| self.out.flush()) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(e) => Err(Failure::usage(format!("can't write the result: {e}"))),
        }
    }

    /// Writes a notice. If that fails, the failure cannot be reported.
    pub fn note(&mut self, text: &str) {
        let _ = writeln!(self.err, "{}: {}", self.name.own(), self.name.named(text));
    }
}

/// Opens the control device; [`control::connect`] is the real one.
pub type Connect<'a> = &'a dyn Fn(&Path) -> Result<Box<dyn Control>, Failure>;

/// Does what the command line `args` asks for; returns the exit code.
pub fn run(args: impl IntoIterator<Item = OsString>, connect: Connect<'_>, io: &mut Io<'_>) -> u8 {
    match Cli::try_parse_from(args) {
        Ok(cli) => execute(&cli, connect, io),
        Err(e) => usage(&e, io),
    }
}

/// Does what a command line asks for; returns the exit code.
pub fn execute(cli: &Cli, connect: Connect<'_>, io: &mut Io<'_>) -> u8 {
    let connect = || connect(&cli.device);
    cli.command.hints().for_each(|hint| io.note(hint));
    let done = match &cli.command {
        Command::On(args) => commands::on::execute(args, &connect, io),
        Command::Off(args) => commands::off::execute(args, &connect, io),
        Command::Status(args) => commands::status::execute(args, &connect, io),
        Command::Resize(args) => commands::resize::execute(args, &connect, io),
        Command::Filter(args) => commands::filter::execute(args, &connect, io),
        Command::Pause(args) => commands::pause::execute(false, args, &connect, io),
        Command::Resume(args) => commands::pause::execute(true, args, &connect, io),
        Command::Rotate(args) => commands::rotate::execute(args, &connect, io),
        Command::Snapshot(args) => commands::snapshot::execute(args, &connect, io),
        Command::Run(args) => commands::run::execute(args, &connect, io),
        Command::Record(args) => commands::record::execute(args, &connect, io),
        Command::Top(args) => commands::top::execute(args, &connect, io),
        Command::Man(args) => commands::man::execute(args, io),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "activator", &mut script);
            io.print(&String::from_utf8_lossy(&script)).map(|()| 0)
        }
    };
    done.unwrap_or_else(|failure| {
        io.note(&failure.to_string());
        failure.code
    })
}

fn usage(e: &clap::Error, io: &mut Io<'_>) -> u8 {
    let text = e.render();
    if e.use_stderr() {
        let _ = write!(io.err, "{text}");
        USAGE
    } else {
        io.print(&text.to_string()).map_or_else(|f| f.code, |()| 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_names_commands_in_its_problems_only() {
        let text =
            r#"{"comm":"`activator on`","problems":["`activator off` ends it"]}"#.to_owned() + "\n";
        assert_eq!(Name::Activator.result(&text), text);
        let want =
            r#"{"comm":"`activator on`","problems":["`kvmtrace off` ends it"]}"#.to_owned() + "\n";
        assert_eq!(Name::Kvmtrace.result(&text), want);
        let other = "{\"comm\":\"`postproc info\"}\n";
        assert_eq!(Name::Kvmtrace.result(other), other);
        assert_eq!(
            Name::Kvmtrace.result("`postproc info`\n"),
            "`kvmtrace info`\n"
        );
    }
}
