//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::control::{Class, Policy, Windows};
use crate::units::{
    Length, Pages, Ticks, parse_buffer_size, parse_length, parse_pages, parse_seconds, parse_ticks,
    parse_time,
};

/// Records every reference to virtual memory that leaves a small set of N
/// pages: turns the kernel's tracing on and off, or traces a command.
#[derive(Debug, Parser)]
#[command(
    name = "activator",
    version,
    long_version = concat!(env!("CARGO_PKG_VERSION"), " (kernel interface 1)"),
    max_term_width = 90,
    after_help = "\
Examples:
  activator run -o ls.vmt -- ls -lR /usr      trace a command and its children
  activator on --pid 1234 -o server.vmt       trace what runs already
  activator status --watch                    see how it goes
  activator off                               end it and print the summary

Exit codes:
  0    good
  1    the trace lost records or broke an invariant, or its output failed
  2    usage or I/O, or the kernel refused; the message says what to do
  129, 130, 131, 143  ended by SIGHUP, SIGINT, SIGQUIT, SIGTERM
Exit codes of `run` beside those:
  126  the command can't be executed
  127  the command does not exist
  128 and more  a signal killed the command: 128 and the signal's number
  any  the command's own exit code, if the trace is good

The kernel writes the trace; the activator is not needed meanwhile. If it is
killed nothing is lost: `activator off` ends the trace. One trace at a time."
)]
pub struct Cli {
    /// The control device
    #[arg(long, global = true, hide = true, default_value = "/dev/vmtrace")]
    pub device: PathBuf,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start tracing a running process, or everything
    On(OnArgs),
    /// End tracing and print the summary
    Off(OffArgs),
    /// Show the trace that is on, or the last one
    Status(StatusArgs),
    /// Trace a command and its children; exit with its code
    Run(RunArgs),
    /// Change N of the trace that is on
    Resize(ResizeArgs),
    /// Write a completion script for a shell
    #[command(after_help = "\
Examples:
  activator completions bash >/etc/bash_completion.d/activator
  activator completions zsh >~/.zfunc/_activator")]
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write those of all commands
    Man(ManArgs),
}

/// Options of `man`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator man | man -l -
  activator man -o /usr/local/share/man/man1")]
pub struct ManArgs {
    /// Directory for a page of each command; made if it does not exist
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// Options of every command that starts a trace.
#[derive(Args, Debug)]
pub struct TraceArgs {
    /// Pages that may be touched without a record; 4k is 4096 pages
    ///
    /// N is the size of the EVMS, the set of pages that traced processes can
    /// reach without a fault, first in, first out. A touch of any other page
    /// faults and becomes a record, so a smaller N records more: runs get
    /// slower and traces larger. A record costs about as much time as a minor
    /// page fault, and 32 bytes of output. Simulated memories should have 4 N
    /// pages or more: what happened within N pages is not in the trace.
    ///
    /// N=512 (2 MiB, the default) suits memories from 8 MiB; N=64 is for small
    /// memories and short runs; N=4k (16 MiB) is light and suits memories from
    /// 64 MiB. How much slower a program runs depends on the program; README
    /// has what was measured. The machine's minimum is 16 pages for each CPU.
    #[arg(
        short = 'n',
        value_name = "N",
        default_value = "512",
        value_parser = parse_pages,
        allow_negative_numbers = true
    )]
    pub n: Pages,

    /// Pages of each CPU's first segment of N [default: 16, the least]
    ///
    /// The last so many pages that a CPU faulted in are its own: no other CPU can
    /// take from it what its instruction needs. The rest of N is the second segment,
    /// which all CPUs share.
    #[arg(long, value_name = "F", value_parser = parse_pages)]
    pub first: Option<Pages>,

    /// What the second segment does with a page whose turn to go has come
    #[arg(long, value_enum, default_value_t)]
    pub policy: Policy,

    /// Tell of each page whether it was referenced in the second segment
    ///
    /// The accessed bit is cleared as a page comes there, with a TLB flush: about
    /// half as much again for each record. --policy clock implies it.
    #[arg(long)]
    pub again: bool,

    /// Tell of each record how long its task had run in user mode
    ///
    /// Virtual time: neither the kernel's time counts, with the faults that tracing
    /// makes, nor that of others. In ticks of the time stamp counter; 8 bytes more for
    /// each record. TICKS are taken off for each fault and interrupt, for the way from
    /// the program to the clock and back takes some, as long each time. Without a number
    /// they are measured, which takes a moment.
    #[arg(
        long,
        value_name = "TICKS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "measured",
        value_parser = parse_ticks
    )]
    pub virtual_time: Option<Ticks>,

    /// Events to log beyond those that say which page was meant
    ///
    /// Mappings, forks, copies, truncations and the like are always logged. file: files
    /// as they are opened and closed, with names, kinds and lengths; io: what is read
    /// and written through descriptors, with offsets and bytes; shm: attachments of
    /// System V shared memory; gup: pages that the kernel reaches past the page tables.
    /// These four are the usual ones. Of the machine tell swap: pages that go to swap and
    /// come back, with their places there; frame: pages whose frame KSM or migration
    /// changes; switch: context switches from and to what is traced.
    #[arg(
        long,
        value_enum,
        value_name = "CLASS,...",
        value_delimiter = ',',
        default_value = "usual"
    )]
    pub events: Vec<Class>,

    /// Trace windows of this length, and nothing between them
    ///
    /// A time with its unit (500us, 200ms, 1.5s, 2min), a count of references (300, 10k,
    /// 2M), or both with a comma between: then what comes first ends a window. Each
    /// window begins with an empty set and a snapshot of all that is traced, so it stands
    /// for itself: postproc takes --window K and --per-window. What a traced process
    /// forks is traced in the next windows, too, whoever of them lives then.
    #[arg(
        long,
        value_name = "LENGTH",
        value_delimiter = ',',
        value_parser = parse_length,
        help_heading = "Windows"
    )]
    pub trace: Vec<Length>,

    /// Time from the end of a window to the next one [default: none]
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "trace", help_heading = "Windows")]
    pub skip: Option<u64>,

    /// How many windows [default: 1; with --skip, as many as there come]
    #[arg(
        long,
        value_name = "K",
        value_parser = clap::value_parser!(u32).range(1..),
        requires = "trace",
        help_heading = "Windows"
    )]
    pub repeat: Option<u32>,

    /// Time before the first window [default: none]
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "trace", help_heading = "Windows")]
    pub warmup: Option<u64>,

    /// The greatest N that `activator resize` can set [default: 4 N]
    #[arg(long, value_name = "N", value_parser = parse_pages)]
    pub max: Option<Pages>,

    /// Where the trace goes: a new file, or an unmounted block device
    #[arg(short, long, value_name = "OUTPUT", default_value = "trace.vmt")]
    pub output: PathBuf,

    /// Overwrite OUTPUT if it is a file that exists
    #[arg(long)]
    pub force: bool,

    /// Sub-buffers of each CPU's streams [default: the kernel's]
    ///
    /// When they are all full the traced task waits; nothing is dropped. More
    /// or larger ones bridge longer pauses of a slow output.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(4..=65536))]
    pub buffers: Option<u32>,

    /// Bytes of a sub-buffer: a power of two from 4k to 1M [default: the
    /// kernel's]
    #[arg(long, value_name = "BYTES", value_parser = parse_buffer_size)]
    pub buffer_size: Option<u32>,

    /// Print JSON: the kernel's status, all fields
    #[arg(long)]
    pub json: bool,
}

impl TraceArgs {
    /// The windows that are asked for, if any are.
    pub fn windows(&self) -> Option<Windows> {
        let mut windows = Windows {
            count: match (self.repeat, self.skip) {
                (Some(count), _) => count,
                (None, Some(_)) => 0,
                (None, None) => 1,
            },
            warmup: self.warmup.unwrap_or(0),
            skip: self.skip.unwrap_or(0),
            ..Windows::default()
        };
        for length in &self.trace {
            let (limit, new) = match length {
                Length::Time(ns) => (&mut windows.time, *ns),
                Length::References(n) => (&mut windows.references, *n),
            };
            // Of two of a kind, the shorter one comes first.
            if *limit == 0 || new < *limit {
                *limit = new;
            }
        }
        (!self.trace.is_empty()).then_some(windows)
    }
}

/// Arguments of `resize`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator resize 4k       fewer records from here on
  activator resize 64       more of them

The trace goes on; it says where N changed. N can grow to what --max was when the
trace was started.")]
pub struct ResizeArgs {
    /// Pages that may be touched without a record
    #[arg(value_name = "N", value_parser = parse_pages)]
    pub n: Pages,
    /// Print JSON: the kernel's status, all fields
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `on`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator on --pid 1234                     into ./trace.vmt with N=512
  activator on -n 4k --all -o /data/all.vmt   the whole system, lightly
  activator on --pid 1234 -o /dev/vdb         straight to a disk, from its start;
                                              what it held is overwritten
  activator on --pid 1234 --trace 10M --skip 1min
                                              windows of 10 million references, a
                                              minute between them
  activator on --early -o boot.vmt            what vmtrace=early on the kernel command
                                              line has kept since boot, and all from
                                              now on

The trace goes on when this command has ended: `activator off` ends it.")]
pub struct OnArgs {
    /// What to trace
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// How to trace
    #[command(flatten)]
    pub trace: TraceArgs,
}

/// What `on` traces.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct ScopeArgs {
    /// Trace every process, present and to come
    #[arg(long)]
    pub all: bool,
    /// Trace this process and all it forks from now on
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
    /// Take the trace that the kernel began at boot
    ///
    /// With vmtrace=early on its command line the kernel records the events of all
    /// processes from the first one on, and keeps them in memory. They come first in
    /// OUTPUT; from here on references are traced, too. vmtrace=early,size=SIZE says how
    /// much memory there is for them (64M), refs traces references from boot on, evms=N
    /// and classes=CLASS+... are -n and --events.
    #[arg(long, conflicts_with_all = [
        "n", "first", "policy", "again", "events", "max", "buffers", "buffer_size", "trace",
    ])]
    pub early: bool,
}

/// Arguments of `off`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator off
  activator off --json | jq .refs

Exits with 1 if the trace lost records, broke an invariant or its output failed,
and with 2 if tracing was not on.")]
pub struct OffArgs {
    /// Print JSON: the kernel's status, all fields
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator status
  activator status --watch          a line each second until the trace ends
  activator status --watch=0.2 --json

Exits with 1 if the trace lost records, broke an invariant or its output failed.")]
pub struct StatusArgs {
    /// Print JSON: the kernel's status, all fields
    #[arg(long)]
    pub json: bool,
    /// Print a line every SECS seconds until the trace ends
    #[arg(
        long,
        value_name = "SECS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = parse_seconds
    )]
    pub watch: Option<Duration>,
}

/// Arguments of `run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator run -- ls -lR /usr                    into ./trace.vmt with N=512
  activator run -n 64 -o db.vmt -- sqlite3 test.db <queries.sql
  activator run --warmup 10s --trace 200ms --skip 5s --repeat 10 -- ./simulation
  activator run --wait-all -- sh -c 'daemon & exit'
  activator run -- runuser -u alice -- make       not as root

Tracing starts just before CMD is executed and stops when CMD itself has ended;
children that outlive it go on untraced, unless --wait-all is given. The summary
goes to standard error: standard output is CMD's. Interrupts from the terminal
reach CMD and not the activator; SIGTERM and SIGHUP are passed on to it. If the
activator is killed, CMD and the trace go on: `activator off` ends the trace.

Exit codes: CMD's, or 128 + the signal that killed it; 1 if the trace is bad,
whatever CMD's was; 2 if tracing could not start; 126 if CMD can't be executed;
127 if it does not exist; 129, 130, 131 or 143 if SIGHUP, SIGINT, SIGQUIT or
SIGTERM came before CMD was started.")]
pub struct RunArgs {
    /// How to trace
    #[command(flatten)]
    pub trace: TraceArgs,
    /// Go on until all descendants of CMD have ended
    #[arg(long)]
    pub wait_all: bool,
    /// Print no summary
    #[arg(short, long)]
    pub quiet: bool,
    /// Write the final status as JSON to FILE, too
    #[arg(long, value_name = "FILE")]
    pub status_file: Option<PathBuf>,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn is_consistent() {
        Cli::command().debug_assert();
    }

    fn run_args(line: &[&str]) -> RunArgs {
        match Cli::try_parse_from(line).map(|c| c.command) {
            Ok(Command::Run(args)) => args,
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn command_keeps_its_options() {
        for line in [
            &["activator", "run", "-n", "4k", "--", "ls", "-l", "--json"][..],
            &["activator", "run", "-n", "4k", "ls", "-l", "--json"],
        ] {
            let args = run_args(line);
            assert_eq!(args.command, ["ls", "-l", "--json"]);
            assert_eq!(args.trace.n, Pages(4096));
            assert!(!args.trace.json);
        }
    }

    #[test]
    fn windows() {
        let windows = |args: &[&str]| {
            let line = [&["activator", "run"], args, &["--", "ls"]].concat();
            run_args(&line).trace.windows()
        };
        assert_eq!(windows(&[]), None);
        let ms = 1_000_000;
        let mut want = Windows {
            count: 1,
            time: 200 * ms,
            ..Windows::default()
        };
        assert_eq!(windows(&["--trace", "200ms"]), Some(want));
        (want.count, want.skip, want.references) = (0, 5000 * ms, 300_000);
        assert_eq!(
            windows(&["--trace", "300k,200ms", "--skip", "5s"]),
            Some(want)
        );
        (want.count, want.warmup) = (10, ms / 1000);
        let all = "--trace 1M,200ms,300k --skip 5s --repeat 10 --warmup 1us";
        let all: Vec<_> = all.split(' ').collect();
        assert_eq!(windows(&all), Some(want));
        for line in [
            "--skip 5s",
            "--repeat 2",
            "--warmup 1s",
            "--trace 1s --repeat 0",
        ] {
            let line = format!("activator run {line} -- ls");
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn defaults() {
        let args = run_args(&["activator", "run", "--", "ls"]);
        assert_eq!(args.trace.n, Pages(512));
        assert_eq!(args.trace.output, PathBuf::from("trace.vmt"));
        assert_eq!((args.trace.buffers, args.trace.buffer_size), (None, None));
    }
}
