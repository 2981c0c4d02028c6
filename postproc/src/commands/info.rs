//! `postproc info`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::canon::PageMode;
use crate::filter::{Filter, Filtered, Filters, LeftOut};
use crate::pipeline::{self, Consumer};
use crate::process::Tasks;
use crate::streams::Selected;
use crate::trace::{
    Body, Damage, Event, Header, Merge, NoNews, Part, Piece, Status, Step, StreamId, StreamKind,
    Trace, WindowAccount, WindowPlan,
};
use clap::Args;
use rust_mm_trace::uapi;
use serde::Serialize;

use super::regions::sampling_text;
use super::screen::{Progress, grouped, print, print_json, stop_flag};
use super::{BAD_TRACE, Input, Where, filtered_text, left_out_text, name_of};

/// The owner of a set, and what is recorded of it.
#[derive(Default, Serialize)]
struct SetInfo {
    set: u32,
    /// The first address space of the set, and the process that it was of last.
    #[serde(skip_serializing_if = "Option::is_none")]
    mm: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comm: Option<String>,
    /// The control group, if the set is that of one: the inode number of its directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    cgroup: Option<u64>,
    packets: u64,
    /// Including renewals.
    records: u64,
}

/// Follows which sets there are, and whose they are.
#[derive(Default)]
struct Owners {
    tasks: Tasks,
    sets: BTreeMap<u32, SetInfo>,
    /// By address space.
    set_of: BTreeMap<u32, u32>,
}

impl Owners {
    fn event(&mut self, event: &Event<'_>) {
        self.tasks.apply(event);
        let (mm, tid) = match event.body {
            Body::Set { set, cgroup } => {
                self.set_of.insert(event.mm.0, set);
                let info = self.sets.entry(set).or_default();
                info.mm.get_or_insert(event.mm.0);
                info.cgroup = Some(cgroup).filter(|id| *id != 0);
                return;
            }
            Body::Fork {
                child_mm,
                child_tid,
                ..
            } => (child_mm, child_tid),
            Body::Exec { .. } => (event.mm, event.tid),
            Body::Task { tid, .. } => (event.mm, tid),
            _ => return,
        };
        let set = self
            .set_of
            .get(&mm.0)
            .and_then(|set| self.sets.get_mut(set));
        // Several address spaces of a control group have a set together.
        let Some(info) = set.filter(|info| info.mm == Some(mm.0) && info.cgroup.is_none()) else {
            return;
        };
        if let Some(process) = self.tasks.find(tid).map(|id| self.tasks.process(id)) {
            info.pid = Some(process.tgid.0);
            info.comm = Some(process.comm.clone());
        }
    }

    /// All sets, with what the streams have of each.
    fn sets(mut self, trace: &Trace) -> Vec<SetInfo> {
        if !trace.header().sets.are_several() {
            return Vec::new();
        }
        let streams = trace.index().streams.iter();
        for stream in streams.filter(|s| s.id.kind == StreamKind::Ref) {
            let info = self.sets.entry(stream.id.set).or_default();
            info.packets += stream.packets.len() as u64;
            info.records = info.records.saturating_add(stream.records);
        }
        let numbered = self.sets.into_iter();
        numbered
            .map(|(set, info)| SetInfo { set, ..info })
            .collect()
    }
}

/// Sets in the table.
const SETS: usize = 20;

/// Show a trace's header, streams and counts
///
/// Reads the headers of all packets, and the event streams. Does not read the content of
/// the packets of references, unless --where asks for a count. `postproc check` reads
/// everything.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc info run.vmt\n  \
    postproc info run.vmt --where 'kind == write && mapping ~ \"*.so*\"'\n  \
    postproc info --json /dev/vdb | jq .status.refs")]
pub struct InfoArgs {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    only: Where,
}

#[derive(Serialize)]
struct StreamInfo {
    #[serde(flatten)]
    id: StreamId,
    packets: u64,
    records: u64,
}

#[derive(Serialize)]
struct Info<'a> {
    path: String,
    header: &'a Header,
    /// Which piece of a trace the file is.
    #[serde(skip_serializing_if = "Option::is_none")]
    piece: Option<&'a Piece>,
    /// Which process's part of a trace the file is.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<&'a Part>,
    /// Files in the directory of the pieces that were made for pieces that did not begin.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    left_out: &'a [PathBuf],
    /// Events about address spaces that were ending when the piece began, so that no description tells
    /// of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    undescribed_events: Option<u64>,
    complete: bool,
    packets: u64,
    /// Records in the streams of references, including renewals: `postproc check` counts
    /// references and renewals apart.
    reference_records: u64,
    events: u64,
    event_types: BTreeMap<&'static str, u64>,
    /// Time from the first to the last record.
    span_ns: u64,
    /// Time from the trace's start to the first reference that could be recorded, if
    /// references began later than events.
    refs_begin_ns: Option<u64>,
    streams: Vec<StreamInfo>,
    /// The sets, if the trace has several: whose they are, and what is recorded of each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sets: Vec<SetInfo>,
    /// The kernel's accounts of the trace's windows.
    windows: Vec<&'a WindowAccount>,
    status: Option<&'a Status>,
    /// How many references fit the expression of `--where`.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<Filtered>,
    /// What the kernel's filter has left out, if the trace may have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    filtered: Option<LeftOut>,
    damage: Vec<Damage>,
    bytes: u64,
    file_bytes: u64,
}

pub fn run(args: &InfoArgs) -> anyhow::Result<ExitCode> {
    args.input.each(|trace| run_one(args, trace))
}

fn run_one(args: &InfoArgs, trace: &Trace) -> anyhow::Result<ExitCode> {
    let index = trace.index();
    let mut merge = Merge::of_kinds(trace, &[StreamKind::Event]);
    let (mut event_types, mut refs_begin_ns) = (BTreeMap::new(), None);
    let mut damage = index.damage.clone();
    let (mut owners, mut filters) = (Owners::default(), Filters::default());
    let mut undescribed = 0;
    loop {
        match merge.fill(&mut Vec::new(), 1)? {
            Step::Event(event) => {
                // The description of a piece is no part of the trace.
                if !event.is_state() {
                    *event_types.entry(event.name()).or_insert(0) += 1;
                }
                filters.apply(&event);
                undescribed += u64::from(event.aside == Some(NoNews::Undescribed));
                if trace.header().sets.are_several() {
                    owners.event(&event);
                }
                if matches!(event.body, Body::RefsBegin) && trace.header().is_from_boot() {
                    let start = trace.header().start_time_ns;
                    refs_begin_ns = Some(event.time_ns.saturating_sub(start));
                }
            }
            Step::Full => {}
            Step::End => break,
        }
    }
    damage.extend(merge.take_damage());
    let (first, last) = index.time_span().unwrap_or((0, 0));
    let info = Info {
        path: name_of(trace),
        header: trace.header(),
        piece: trace.piece(),
        part: trace.part(),
        left_out: trace.left_out(),
        undescribed_events: Some(undescribed).filter(|&count| count > 0),
        complete: index.end.is_some(),
        packets: index.packets(),
        // The packets of a piece may have records of others.
        reference_records: match trace.piece().and_then(|piece| piece.end) {
            Some(end) => end.refs,
            None => index.records(StreamKind::Ref),
        },
        events: event_types.values().sum(),
        event_types,
        span_ns: last.saturating_sub(first),
        refs_begin_ns,
        streams: index
            .streams
            .iter()
            .map(|s| StreamInfo {
                id: s.id,
                packets: s.packets.len() as u64,
                records: s.records,
            })
            .collect(),
        sets: owners.sets(trace),
        windows: index.windows.iter().map(|w| &w.account).collect(),
        status: index.end.as_ref().map(|e| &e.status),
        filter: count(args, trace)?,
        filtered: LeftOut::of(trace, &filters),
        damage,
        bytes: index.stop,
        file_bytes: trace.file_bytes(),
    };
    if args.input.json {
        print_json(&info)?;
    } else {
        print(text(&info)?.as_bytes())?;
    }
    let good = info.complete && info.damage.is_empty();
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(BAD_TRACE)
    })
}

/// Which piece of a trace it is, in words.
fn piece_text(piece: &Piece) -> String {
    let (mut text, last) = match piece.last_number {
        // Those of a trace whose later pieces are not there.
        last if last > piece.number => (
            format!("pieces {} to {last} of a trace", piece.number),
            "up to the last one",
        ),
        _ => (format!("number {}", piece.number), "the last one"),
    };
    if piece.is_last() {
        text += &format!(", {last}");
    }
    text += &format!(", from sequence number {}", grouped(piece.first_seq));
    match piece.end.filter(|end| !end.is_last) {
        Some(end) => text += &format!(" to {}", grouped(end.next_seq.saturating_sub(1))),
        None => text += " on",
    }
    if piece.is_checkpoint {
        text += &format!(
            "; begins with empty sets, described from {} on",
            grouped(piece.state_seq)
        );
    } else if piece.is_middle {
        text += "; begins in the middle of the trace or a window";
    }
    text
}

/// Wants nothing but the pass.
struct Nothing;

impl Consumer for Nothing {}

/// How many references fit the expression, if there is one.
fn count(args: &InfoArgs, trace: &Trace) -> anyhow::Result<Option<Filtered>> {
    let Some(clause) = args.only.clause(trace, false, false)? else {
        return Ok(None);
    };
    trace.demand_references()?;
    let mut progress = Progress::new("counting", stop_flag());
    let mut nothing = Nothing;
    let mut counted = Selected::filtered(None, Some(Filter::new(&clause)), &mut nothing);
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut counted];
    pipeline::run(trace, PageMode::Unnamed, &mut progress, consumers)?;
    Ok(counted.kept())
}

/// The plan of windows in words.
fn plan_text(plan: &WindowPlan) -> String {
    let seconds = |ns: u64| format!("{} s", ns as f64 / 1e9);
    let mut lengths = Vec::new();
    if plan.time_ns != 0 {
        lengths.push(seconds(plan.time_ns));
    }
    if plan.references != 0 {
        lengths.push(format!("{} references", grouped(plan.references)));
    }
    if plan.on_request {
        let mut text = "on request".to_owned();
        if plan.count != 0 {
            text += &format!(", {} at most", grouped(plan.count.into()));
        }
        if !lengths.is_empty() {
            text += &format!(", each of {} at most", lengths.join(" or "));
        }
        if plan.skip_ns != 0 {
            text += &format!(
                ", {} at least before one for a change",
                seconds(plan.skip_ns)
            );
        }
        return text;
    }
    let mut text = match plan.count {
        0 => "without limit".into(),
        n => grouped(n.into()),
    };
    text += &format!(", of {}", lengths.join(" or "));
    if plan.skip_ns != 0 {
        text += &format!(", {} between two", seconds(plan.skip_ns));
    }
    if plan.warmup_ns != 0 {
        text += &format!(", the first after {}", seconds(plan.warmup_ns));
    }
    text
}

/// Packets and records by kind and CPU, whatever the set.
fn by_cpu(streams: &[StreamInfo]) -> Vec<(StreamId, u64, u64)> {
    let mut sums: BTreeMap<StreamId, (u64, u64)> = BTreeMap::new();
    for s in streams {
        let sum = sums.entry(StreamId { set: 0, ..s.id }).or_default();
        sum.0 += s.packets;
        sum.1 = sum.1.saturating_add(s.records);
    }
    sums.into_iter()
        .map(|(id, sum)| (id, sum.0, sum.1))
        .collect()
}

/// A table of the sets with the most records.
fn sets_text(sets: &[SetInfo], t: &mut String) -> std::fmt::Result {
    if sets.is_empty() {
        return Ok(());
    }
    writeln!(t, "\nset           packets        records  of")?;
    let mut most: Vec<&SetInfo> = sets.iter().collect();
    most.sort_by_key(|s| std::cmp::Reverse(s.records));
    for s in most.iter().take(SETS) {
        let of = match (s.set, s.cgroup, s.pid, s.mm) {
            (0, ..) => "whatever has no other".into(),
            (_, Some(id), ..) => format!("control group {id}"),
            (_, _, Some(pid), _) => format!(
                "process {pid}, {}",
                printable(s.comm.as_deref().unwrap_or_default())
            ),
            (_, _, _, Some(mm)) => format!("address space {mm}"),
            _ => "unknown".into(),
        };
        let (packets, records) = (grouped(s.packets), grouped(s.records));
        writeln!(t, "{:<10} {packets:>10} {records:>14}  {of}", s.set)?;
    }
    if most.len() > SETS {
        let more = grouped((most.len() - SETS) as u64);
        writeln!(t, "{more} more sets; --json lists all")?;
    }
    Ok(())
}

/// A name that a traced program chose, as a terminal can show it.
pub(super) fn printable(name: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    name.chars().map(shown).collect()
}

fn text(info: &Info<'_>) -> Result<String, std::fmt::Error> {
    let h = info.header;
    let mut t = String::new();
    let seconds = |ns: u64| ns as f64 / 1e9;
    writeln!(t, "{}", info.path)?;
    writeln!(t, "  trace      {}, format version {}", h.uuid, h.version)?;
    writeln!(t, "  kernel     {} {}", h.release, h.arch)?;
    writeln!(t, "  scope      {}", h.scope_text())?;
    if let Some(piece) = info.piece {
        writeln!(t, "  piece      {}", piece_text(piece))?;
    }
    if let Some(part) = info.part {
        let comm = printable(&part.comm);
        writeln!(
            t,
            "  part       number {} of {}: process {} {comm}; {} other records and events of the trace \
             are in other parts{}",
            part.number,
            grouped(part.parts.into()),
            part.pid.0,
            grouped(part.left_out),
            match info.filtered.as_ref().is_some_and(|f| f.is_any) {
                true => ", or were left out by a filter of the kernel",
                false => "",
            }
        )?;
    }
    for path in info.left_out {
        let path = path.display();
        writeln!(
            t,
            "  left out   {path}, which was made for a piece that did not begin"
        )?;
    }
    if let Some(count) = info.undescribed_events {
        writeln!(
            t,
            "  note       {} events are about address spaces that were ending when it began",
            grouped(count)
        )?;
    }
    if h.is_from_boot() {
        writeln!(
            t,
            "  from boot  records are lost that found no room before `activator on --early`; \
             references {}",
            match info.refs_begin_ns {
                Some(ns) => format!("from {:.3} s on", ns as f64 / 1e9),
                None => "from the start on".into(),
            }
        )?;
    }
    if let Some(sampling) = &h.sampling {
        writeln!(
            t,
            "  regions    {}, adapted to the mappings each {} ms; {}",
            sampling_text(sampling),
            sampling.update_ns as f64 / 1e6,
            match (&h.windows, sampling.change) {
                (None, _) => "no references".into(),
                (Some(_), 0) => "references in windows".into(),
                (Some(_), change) => format!(
                    "references in windows, which also begin when {} % of the memory in use change",
                    f64::from(change) / 10.0
                ),
            }
        )?;
    }
    writeln!(
        t,
        "  EVMS       N = {} pages of {} bytes{} ({}), {} CPUs, first segments of {}, batches of {}",
        grouped(h.evms_size.into()),
        h.page_size(),
        match h.sets.are_several() {
            true => " in each set",
            false => "",
        },
        match h.policy {
            uapi::VMTRACE_POLICY_FIFO => "FIFO",
            uapi::VMTRACE_POLICY_CLOCK => "CLOCK",
            _ => "unknown policy",
        },
        h.nr_cpus,
        h.first_segment,
        h.batch
    )?;
    if h.interval_ns != 0 {
        writeln!(
            t,
            "  interval   all stays end each {} ms",
            h.interval_ns as f64 / 1e6
        )?;
    }
    if h.sets.are_several() {
        writeln!(t, "  sets       {}", h.sets.counted(info.status))?;
    }
    writeln!(
        t,
        "  ring       {} sub-buffers of {} bytes for each stream, {}",
        h.nr_buffers,
        h.buffer_size,
        match h.loss_mode {
            uapi::VMTRACE_MODE_BLOCK => "a full ring makes the task wait",
            uapi::VMTRACE_MODE_DISCARD => "a full ring drops records",
            _ => "a full ring does what this program does not know",
        }
    )?;
    if let Some(plan) = &h.windows {
        writeln!(t, "  windows    {}", plan_text(plan))?;
    }
    if h.debug_break != 0 {
        writeln!(
            t,
            "  WARNING    protections were removed for a negative control: {:#x}",
            h.debug_break
        )?;
    }
    writeln!(
        t,
        "  time       {:.3} s from the first to the last record",
        seconds(info.span_ns)
    )?;
    if h.has_vtime() {
        writeln!(
            t,
            "  virtual    {}, {} ticks a millisecond; {} subtracted for each fault",
            h.vtime_text(),
            grouped(h.vtime_khz.into()),
            h.vtime_skip
        )?;
    }
    if h.has_offsets() {
        writeln!(
            t,
            "  offsets    of accesses within their pages, in each reference"
        )?;
    }
    writeln!(
        t,
        "  size       {} bytes in {} packets{}",
        grouped(info.bytes),
        grouped(info.packets),
        if info.file_bytes > info.bytes {
            format!(
                "; {} bytes after them do not belong to the trace",
                grouped(info.file_bytes - info.bytes)
            )
        } else {
            String::new()
        }
    )?;
    writeln!(
        t,
        "\nreference records {:>12}{}",
        grouped(info.reference_records),
        match info.status.map(|status| status.renewed) {
            Some(renewed @ 1..) => {
                format!(
                    "  {} of them are renewals, which do not count as references",
                    grouped(renewed)
                )
            }
            _ => String::new(),
        }
    )?;
    if let Some(left_out) = &info.filtered {
        writeln!(t, "{}", left_out_text(left_out))?;
    }
    if let Some(filtered) = &info.filter {
        writeln!(t, "{}", filtered_text(filtered))?;
    }
    writeln!(t, "events            {:>12}", grouped(info.events))?;
    for (name, count) in &info.event_types {
        writeln!(t, "  {name:<12} {:>12}", grouped(*count))?;
    }
    writeln!(t, "\nstream        packets        records")?;
    for (id, packets, records) in by_cpu(&info.streams) {
        writeln!(
            t,
            "{:<10} {:>10} {:>14}",
            id.to_string(),
            grouped(packets),
            grouped(records)
        )?;
    }
    sets_text(&info.sets, &mut t)?;
    if !info.windows.is_empty() {
        writeln!(
            t,
            "\nwindow     begins  seconds  ref. records       events   lost  ended by{}",
            if h.has_regions() { "    of" } else { "" }
        )?;
    }
    for w in &info.windows {
        writeln!(
            t,
            "{:<6} {:>8.3} s {:>8.3} {:>13} {:>12} {:>6}  {}{}",
            w.number,
            seconds(w.start_time_ns.saturating_sub(h.start_time_ns)),
            seconds(w.stop_time_ns.saturating_sub(w.start_time_ns)),
            grouped(w.refs),
            grouped(w.events),
            grouped(w.lost()),
            w.why.name(),
            match (h.has_regions(), w.why.is_of_regions()) {
                (false, _) => String::new(),
                (true, true) => format!("{:1$}regions", "", 12 - w.why.name().len()),
                (true, false) => format!("{:1$}references", "", 12 - w.why.name().len()),
            }
        )?;
    }
    match info.status {
        Some(s) => {
            writeln!(t, "\nkernel's account (END packet)")?;
            let mut line =
                |name: &str, value: u64| writeln!(t, "  {name:<16} {:>16}", grouped(value));
            line("admissions", s.admissions)?;
            line("aborted", s.aborted)?;
            if h.is_filtered() {
                line("left out", s.left_out)?;
            }
            line("last sequence", s.last_seq)?;
            line("most members", s.members_max)?;
            line("address spaces", s.mms)?;
            if s.ran_ns > 0 {
                line("CPU time, us", s.ran_ns / 1000)?;
            }
            line("waits for room", s.waits)?;
            line("uncovered", s.uncovered)?;
            if h.sets.are_several() {
                line("sets made", s.sets_made)?;
                line("most sets", s.sets_max)?;
                line("in set 0 for want of memory", s.sets_shared)?;
            }
            line("lost", s.lost())?;
            line("funny PTEs", s.funny)?;
            line("stuck victims", s.stuck)?;
            line("audits", s.audits)?;
            line("not audited", s.unaudited.into())?;
            line("dangling", s.dangling)?;
            line("miscounted", s.miscounted)?;
            writeln!(t, "\ncomplete")?;
        }
        None => writeln!(
            t,
            "\nTRUNCATED: no END packet up to byte {}; the records before it are whole",
            info.bytes
        )?,
    }
    for damage in &info.damage {
        writeln!(t, "DAMAGED: {damage}")?;
    }
    Ok(t)
}
