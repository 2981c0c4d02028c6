//! `postproc maps`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::filter::LeftOut;
use crate::maps::{Only, Range, State, When};
use crate::select::{Addresses, Moment, Who};
use crate::trace::Trace;
use crate::units::Mm;
use clap::Args;
use serde::{Serialize, Serializer};

use super::note;
use super::screen::{grouped, print_json, print_with};
use super::{BAD_TRACE, NoBegin, NoReferences, Windows, left_out_text, name_of};

/// Show what was mapped at a moment, by replaying all events up to that moment
///
/// Prints the address space of each process that lives at that moment, as /proc/PID/maps
/// showed it. Adjacent ranges that map the same object with the same protection are
/// printed as one.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc maps run.vmt --process 42\n  \
    postproc maps run.vmt --process cc1 --until 50%\n  \
    postproc maps run.vmt --mapping 'libc*' --mapping '[heap]'\n  \
    postproc maps run.vmt --address 0x7ffff7c00000\n  \
    postproc maps run.vmt --seq 100000 --json\n  \
    postproc maps run.vmt --at-open marker")]
pub struct MapsArgs {
    /// The trace: a file, a block device or a pipe; `-` is standard input. It may be compressed by
    /// Zstandard. A directory has the pieces of a trace, and is read as that trace
    trace: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    windows: Windows,
    #[command(flatten)]
    no_references: NoReferences,
    #[command(flatten)]
    no_begin: NoBegin,
    /// Show only this process: its id, or its name, which may be a pattern such as 'python*'
    #[arg(long, visible_alias = "pid", value_name = "PID|NAME")]
    process: Option<Who>,
    /// Show only mappings of this name; can be given several times
    ///
    /// A file's name without its directories (libc.so.6), a name in brackets ([heap]), or a pattern
    /// ('*.so*').
    #[arg(long, value_name = "NAME")]
    mapping: Vec<String>,
    /// Show only mappings that have one of these addresses: 0x7f00..0x8f00 (the end is not included),
    /// a range as in /proc/PID/maps (7f00-8f00), or an address, which stands for its page; can be
    /// given several times
    #[arg(long, value_name = "RANGE")]
    address: Vec<Addresses>,
    /// Show the moment after the event with this number [default: the trace's end]
    #[arg(long, value_name = "NUMBER", conflicts_with = "at_open")]
    seq: Option<u64>,
    /// Show this moment: 1.5s, 250ms, or 90% of the trace
    ///
    /// The time counts from the beginning of the trace; with --window or --per-window, from that of
    /// the window.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["at_open", "seq"])]
    until: Option<Moment>,
    /// Leave out the event with this number, as if it had not happened
    #[arg(long, value_name = "NUMBER")]
    without: Option<u64>,
    /// Show the moment when a file of this name was first opened
    #[arg(long, value_name = "NAME")]
    at_open: Option<String>,
    /// Print all mappings, even if there are more than a million
    #[arg(long)]
    all: bool,
}

/// More mappings are printed on request only: a trace of a megabyte may have ten million.
const MOST: usize = 1_000_000;

/// The ranges of an address space. There may be many more in all address spaces than a trace
/// has bytes, so they are made as they are printed.
struct Ranges<'s> {
    state: &'s State,
    mm: Mm,
    only: &'s Only,
}

impl<'s> Ranges<'s> {
    fn iter(&self) -> impl Iterator<Item = Range<'s>> + use<'s> {
        self.state.ranges(self.mm, self.only)
    }
}

impl Serialize for Ranges<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

#[derive(Serialize)]
struct Process<'s> {
    pid: u32,
    comm: &'s str,
    mm: u32,
    maps: Ranges<'s>,
}

#[derive(Serialize)]
struct Maps<'s> {
    /// Number of the last event that counts.
    seq: u64,
    processes: Vec<Process<'s>>,
    /// What the kernel's filter has left out of the whole trace, if it may have one until the moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    filtered: Option<LeftOut>,
}

pub fn run(args: &MapsArgs) -> anyhow::Result<ExitCode> {
    args.no_references.refuse(
        "maps shows no references, and no threads: --process, --mapping and --address select what is \
         shown",
    )?;
    args.no_begin.refuse(
        "all events up to a moment are needed to know what was mapped then; --until shows another moment",
    )?;
    args.windows.each(&args.trace, |trace| run_one(args, trace))
}

fn run_one(args: &MapsArgs, trace: &Trace) -> anyhow::Result<ExitCode> {
    let when = When {
        seq: args.seq,
        until: args.until,
        at_open: args.at_open.clone(),
        without: args.without,
    };
    let state = State::at(&when, trace, || true)?;
    let process = args.process.as_ref();
    let only = Only::new(&args.mapping, &args.address, trace);
    if !args.all && only.is_all() && exceeds(&state, process) {
        anyhow::bail!(
            "{}: the processes have more than {} mappings at that moment: give --process for one \
             process, or --all for all of them",
            name_of(trace),
            grouped(MOST as u64)
        );
    }
    let maps = Maps {
        seq: state.seq,
        processes: processes(&state, process, &only),
        filtered: LeftOut::of(trace, &state.filters),
    };
    match (process, maps.processes.is_empty()) {
        (_, true) if !only.is_all() => {
            note!(
                "nothing that is mapped at that moment is selected; without --mapping and --address, \
                   all is shown"
            );
        }
        (Some(who), true) => {
            note!(
                "no process {who} lives at that moment; without --process, all processes are shown"
            );
        }
        _ => {}
    }
    if args.json {
        print_json(&maps)?;
    } else {
        print_with(|out| text(&maps, out))?;
        if let Some(left_out) = &maps.filtered {
            note!("{}", left_out_text(left_out));
        }
    }
    for d in trace.index().damage.iter().chain(&state.damage) {
        note!("{d}");
    }
    if state.issues > 0 {
        note!(
            "{} events contradict others: see `postproc check`",
            state.issues
        );
    }
    Ok(
        if state.issues == 0 && state.damage.is_empty() && trace.index().damage.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(BAD_TRACE)
        },
    )
}

fn processes<'s>(state: &'s State, process: Option<&Who>, only: &'s Only) -> Vec<Process<'s>> {
    let living = state.living().into_iter();
    living
        .filter(|p| process.is_none_or(|who| who.is(p.tgid.0, &p.comm)))
        .map(|p| Process {
            pid: p.tgid.0,
            comm: &p.comm,
            mm: p.mm.0,
            maps: Ranges {
                state,
                mm: p.mm,
                only,
            },
        })
        .filter(|p| only.is_all() || p.maps.iter().next().is_some())
        .collect()
}

/// Whether there are more than [`MOST`] mappings. No more are counted.
fn exceeds(state: &State, process: Option<&Who>) -> bool {
    let all = Only::default();
    let processes = processes(state, process, &all);
    let spaces = processes.iter().filter_map(|p| state.space.get(p.maps.mm));
    spaces.flat_map(|s| s.mappings()).nth(MOST).is_some()
}

fn text(maps: &Maps<'_>, out: &mut dyn Write) -> std::io::Result<()> {
    for p in &maps.processes {
        writeln!(out, "{} {} (address space {})", p.pid, p.comm, p.mm)?;
        for r in p.maps.iter() {
            let may = |bit: u8, letter: char| if r.prot & bit != 0 { letter } else { '-' };
            let shared = if r.shared { 's' } else { 'p' };
            writeln!(
                out,
                "{:08x}-{:08x} {}{}{}{shared} {:08x} {:02x}:{:02x} {} {}",
                r.start,
                r.end,
                may(1, 'r'),
                may(2, 'w'),
                may(4, 'x'),
                r.offset,
                r.dev >> 20,
                r.dev & 0xf_ffff,
                r.ino,
                r.name
            )?;
        }
    }
    Ok(())
}
