//! `postproc events`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::filter::{Clause, EventFilter};
use crate::places::Places;
use crate::select::Options;
use crate::trace::wire::event_names;
use crate::trace::{Event, Fields, MapKind, Members, Merge, NoNews, Step, StreamKind, Trace};
use clap::Args;
use rust_mm_trace::filter::Subject;
use serde_json::json;

use super::note;
use super::screen::{grouped, standard_output};
use super::{BAD_TRACE, Windows, clause_of_events};

/// List a trace's kernel events, one a line, in the order in which they happened
///
/// Each line has these fields, in this order: the event's sequence number; its time in
/// seconds since the trace began; the CPU; the thread and the process that caused the
/// event; the number of the address space (mm) that the event is about; the event's name;
/// the thread's virtual time in ticks, if the trace has virtual time; and the fields of
/// this type of event. The number of an address space is never used again. A + after the
/// name marks an event of a snapshot. Such an event describes something that existed
/// before the trace. A * marks an event that tells nothing new: one of a checkpoint, or one about an
/// address space that was ending when the piece began.
#[derive(Args)]
#[command(
    mut_arg("mapping", |arg| arg
        .help("Take only events about mappings of this name; can be given several times")
        .long_help(MAPPING)),
    mut_arg("address", |arg| arg
        .help("Take only events about these addresses: 0x7f00..0x8f00, 7f00-8f00 or an address")
        .long_help(ADDRESS))
)]
#[command(after_help = "Examples:\n  \
    postproc events run.vmt\n  \
    postproc events run.vmt --type open,read,write --pid 42\n  \
    postproc events run.vmt --mapping '[heap]' --since 50%\n  \
    postproc events run.vmt --where 'comm ~ \"sqlite*\" && class in (file, io)'\n  \
    postproc events run.vmt --json | jq 'select(.event == \"exec\").name'")]
pub struct EventsArgs {
    /// The trace: a file, a block device or a pipe; `-` is standard input. It may be compressed by
    /// Zstandard. A directory has the pieces of a trace, and is read as that trace
    trace: PathBuf,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    windows: Windows,
    /// List only events with these names
    #[arg(long = "type", value_name = "NAME,...", value_delimiter = ',', value_parser = event_names())]
    types: Vec<String>,
    /// List only events that this process caused
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// List only events about this address space
    #[arg(long, value_name = "NUMBER")]
    mm: Option<u32>,
    /// List only events that fit an expression, such as 'comm == "cc1" && event in (open, read)'
    ///
    /// Fields: pid, tid, tree (a process and its descendants), process (its name), comm, cgroup, set,
    /// cpu, window, time, seq, event (the names), class (file, io, shm, gup, swap, frame, switch,
    /// always). A time is a whole number with a unit, such as 5ms. Operators: ==, !=, <, <=, >, >=, in (a list
    /// or a range), ~ and !~ (a pattern), &&, ||, and ! before parentheses. Each event is judged by
    /// what its thread was called after it. How many events were left out is printed on standard
    /// error, and with --json in the last line. docs/using.md describes the language ("Filters").
    #[arg(long = "where", id = "where", value_name = "EXPR", value_parser = clause_of_events)]
    clause: Option<Clause>,
    #[command(flatten)]
    options: Options,
}

/// The help of `--mapping` and `--address`.
const MAPPING: &str = "Take only events about mappings of this name; can be given several times\n\n\
    These are the events that have a page or a range of addresses of which a part is mapped by this name, \
    before the event or after it: map, unmap, move, protect, advise, cow, swap_in and others. The name is a \
    file's without its directories (libc.so.6), a name in brackets ([heap]), or a pattern ('*.so*').";
const ADDRESS: &str = "Take only events about these addresses: 0x7f00..0x8f00 (the end is not included), a \
    range as in /proc/PID/maps (7f00-8f00), or an address, which stands for its page; can be given several \
    times. These are the events that have a page or a range of addresses which overlaps one of these ranges";

pub fn run(args: &EventsArgs) -> anyhow::Result<ExitCode> {
    args.windows.each(&args.trace, |trace| run_one(args, trace))
}

fn run_one(args: &EventsArgs, trace: &Trace) -> anyhow::Result<ExitCode> {
    let start = trace.header().start_time_ns;
    let clause = args.clause.as_ref();
    let options = args.options.without_places();
    let clause = options.clause(clause, Subject::Events, trace, true)?;
    let mut places = Places::new(&args.options, trace);
    let types: BTreeSet<_> = args.types.iter().map(String::as_str).collect();
    let wanted = |event: &Event<'_>| {
        (types.is_empty() || types.contains(event.name()))
            && args.pid.is_none_or(|pid| event.tgid.0 == pid)
            && args.mm.is_none_or(|mm| event.mm.0 == mm)
    };
    let mut merge = Merge::of_kinds(trace, &[StreamKind::Event]);
    let mut filter = clause.as_ref().map(|c| EventFilter::new(c, trace));
    let mut out = BufWriter::new(io::stdout().lock());
    let result = loop {
        match merge.fill(&mut Vec::new(), 1)? {
            Step::Event(event) => {
                if let Some(filter) = &mut filter {
                    filter.follow(&event);
                }
                let is_there = places.as_mut().is_none_or(|places| places.judge(&event));
                if !is_there || !wanted(&event) || !filter.as_mut().is_none_or(|f| f.judge(&event))
                {
                    continue;
                }
                let line = if args.json {
                    object(&event, start)
                } else {
                    text(&event, start)
                };
                if let Err(e) = writeln!(out, "{line}") {
                    break Err(e);
                }
            }
            Step::Full => {}
            Step::End => break Ok(()),
        }
    };
    let filtered = filter.map(|filter| filter.filtered());
    let last = filtered.as_ref().filter(|_| args.json);
    let result = result.and_then(|()| {
        if let Some(filtered) = last {
            writeln!(out, "{}", json!({ "filter": filtered }))?;
        }
        out.flush()
    });
    drop(out);
    result.map_err(standard_output)?;
    if let Some(filtered) = filtered.filter(|_| !args.json) {
        eprintln!(
            "{}: {} of {} events kept, {} left out",
            filtered.by,
            grouped(filtered.kept),
            grouped(filtered.kept + filtered.left_out),
            grouped(filtered.left_out)
        );
    }
    let mut damage = trace.index().damage.clone();
    damage.extend(merge.take_damage());
    for d in &damage {
        note!("{d}");
    }
    if trace.index().end.is_none() {
        note!("the trace was cut short: events may be missing at its end");
    } else if damage.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(BAD_TRACE))
}

/// `name=value` for people.
struct Text(String);

impl Text {
    fn put(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = write!(self.0, " {name}={value}");
    }
}

impl Fields for Text {
    fn u64(&mut self, name: &str, value: u64) {
        self.put(name, value);
    }
    fn hex(&mut self, name: &str, value: u64) {
        self.put(name, format_args!("{value:#x}"));
    }
    fn u32(&mut self, name: &str, value: u32) {
        self.put(name, value);
    }
    fn i32(&mut self, name: &str, value: i32) {
        self.put(name, value);
    }
    fn u8(&mut self, name: &str, value: u8) {
        self.put(name, value);
    }
    fn kind(&mut self, name: &str, value: MapKind) {
        self.put(name, value.name());
    }
    fn text(&mut self, name: &str, value: &[u8]) {
        self.put(name, value.escape_ascii());
    }
}

fn text(event: &Event<'_>, start_ns: u64) -> String {
    let since = event.time_ns.saturating_sub(start_ns) as f64 / 1e9;
    let mut line = Text(format!(
        "{:>10} {since:>12.6} cpu={} tid={} pid={} mm={} {}{}",
        event.seq,
        event.cpu,
        event.tid.0,
        event.tgid.0,
        event.mm.0,
        event.name(),
        match event.aside {
            Some(_) => "*",
            None if event.is_snapshot() => "+",
            None => "",
        }
    ));
    if let Some(ticks) = event.vtime {
        line.put("vtime", ticks);
    }
    event.said().fields(&mut line);
    line.0
}

fn object(event: &Event<'_>, start_ns: u64) -> String {
    let mut members = Members::default();
    members.put("seq", json!(event.seq));
    members.put("ns", json!(event.time_ns.saturating_sub(start_ns)));
    members.put("cpu", json!(event.cpu));
    members.put("tid", json!(event.tid.0));
    members.put("pid", json!(event.tgid.0));
    members.put("mm", json!(event.mm.0));
    members.put("event", json!(event.name()));
    members.put("snapshot", json!(event.is_snapshot()));
    if let Some(why) = event.aside {
        let why = match why {
            NoNews::Repeats => "checkpoint",
            NoNews::Undescribed => "undescribed",
        };
        members.put("no_news", json!(why));
    }
    if let Some(ticks) = event.vtime {
        members.put("vtime", json!(ticks));
    }
    event.said().fields(&mut members);
    members.to_string()
}
