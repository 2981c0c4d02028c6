//! `perfetto`: tracks of numbers over time, for the Perfetto UI and trace_processor.
//!
//! A file of `TracePacket`s with `TrackEvent`s, after Perfetto's protocol (perfetto.dev/docs). It has no
//! event for each reference: time is cut into bins of `--bin`, and each number is written once for
//! each bin in which it changes. So the size does not grow with the number of references.
//!
//! | track | |
//! |---|---|
//! | each process | its id, latest name, program and creation; instants `fork`, `exec` and `exit` of its threads |
//! | faults a second | of each process and of the trace: references of a bin, divided by its length. From the bin's beginning on |
//! | set size | members of the set at the end of a bin, or of all sets, and of each set |
//! | working set | of each process and of the trace: W(t, τ) at the end of a bin t, with τ from `--tau`, in pages |
//! | kVMTrace | what concerns the trace: slices `checkpoint`; instants `references begin`, `resize`, `filter`, and one for each later piece of a directory of pieces |
//! | windows | a slice for each window that has the kernel's account |
//!
//! - Times are ns of CLOCK_MONOTONIC, as in the trace. A `ClockSnapshot` has the time since the Unix epoch
//!   at the trace's start.
//! - A faults counter is a number of references times 10^9, divided by the ns of a bin, as a double. The
//!   number of references is what remains if that is undone and rounded, up to 2^53.
//! - A page leaves working sets when it is freed, unless `--keep-freed` is given.
//! - A stay is as long as its record says, to the unit in which the trace counts stays. A stay whose
//!   length saturated lasts until the trace ends. With a filter, only stays that are in the export count.
//! - All processes and kernel events are there, also with `--process`, `--set` and `--where`.
//!
//! Memory holds the tables of [`counts`]. The packets wait in a temporary file, because the tracks,
//! which come first, have the processes' latest names.

mod counts;
mod messages;

use std::collections::BTreeSet;
use std::io::Write;

use prost::Message;

use self::counts::{Counts, Figure, Sample, Series, Whose};
use self::messages::{
    Clock, ClockSnapshot, CounterDescriptor, Data, DebugAnnotation, MONOTONIC, ProcessDescriptor,
    REALTIME, TracePacket, TrackDescriptor, TrackEvent, Type, Value,
};
use super::spool::Spool;
use super::{ExportContext, Exporter, FormatEntry, Make};
use crate::error::{OutputContext, Result};
use crate::output::Output;
use crate::pipeline::{Batch, Outcome, World, is_reference};
use crate::process::ProcessId;
use crate::report::chart::time_text;
use crate::trace::{Body, Event, Header, Trace};
use crate::units::{CanonPage, Tid};

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "perfetto",
    about: "for Perfetto: tracks of processes, with faults, set size and working sets",
    make: Make::File(|context| Ok(Box::new(Perfetto::new(context)?))),
};

/// The greatest number of bins of a trace, if the user gives no length.
const BINS: u64 = 2_000;
/// The greatest number of bins that a user may ask for.
pub const MOST_BINS: u64 = 1_000_000;
/// All packets are of one sequence.
const SEQUENCE: u32 = 1;
/// Bytes of packets that are written together.
const BLOCK: usize = 1 << 16;

/// Tracks of the trace as a whole.
const UNKNOWN_PROCESS: u64 = 1;
const ROOT: u64 = 2;
const WINDOWS: u64 = 3;

/// The shortest bin of 1, 2 or 5 times a power of ten ns with which a trace of this length has at most
/// `BINS`; at least 1 µs.
pub fn automatic_bin(length_ns: u64) -> u64 {
    let mut power = 1_000u64;
    loop {
        for factor in [1, 2, 5] {
            let bin = power.saturating_mul(factor);
            if length_ns / bin < BINS || bin == u64::MAX {
                return bin;
            }
        }
        power = power.saturating_mul(10);
    }
}

/// The identity of a process's track.
fn process_track(id: ProcessId) -> u64 {
    1 << 32 | u64::from(id.0)
}

/// The identity of a track of numbers.
fn track(series: Series) -> u64 {
    let kind: u64 = match series.1 {
        Figure::Faults => 1,
        Figure::SetSize => 2,
        Figure::WorkingSet => 3,
    };
    let whose = match series.0 {
        Whose::Trace => 0,
        Whose::Unknown => 1,
        Whose::Process(id) => process_track(id),
        Whose::Set(set) => 1 << 33 | u64::from(set),
    };
    kind << 40 | whose
}

fn whose(tid: Tid, world: &World) -> Whose {
    match world.tasks.find(tid) {
        Some(id) => Whose::Process(id),
        None => Whose::Unknown,
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn annotation(name: &str, value: Value) -> DebugAnnotation {
    DebugAnnotation {
        name: Some(name.into()),
        value: Some(value),
    }
}

fn number(name: &str, value: u64) -> DebugAnnotation {
    annotation(name, Value::Uint(value))
}

fn packet(time_ns: Option<u64>, data: Data) -> TracePacket {
    TracePacket {
        timestamp: time_ns,
        timestamp_clock_id: time_ns.map(|_| MONOTONIC),
        trusted_packet_sequence_id: Some(SEQUENCE),
        data: Some(data),
    }
}

/// Appends a packet as a field of the message `Trace`.
fn append(to: &mut Vec<u8>, packet: &TracePacket) {
    // Field 1, with a length.
    to.push(1 << 3 | 2);
    to.extend_from_slice(&packet.encode_length_delimited_to_vec());
}

struct Perfetto {
    bin_ns: u64,
    tau_ns: u64,
    spool: Spool,
    /// Packets that are not in the spool yet.
    block: Vec<u8>,
    /// From [`Exporter::trace`] on.
    counts: Option<Counts>,
    stay_shift: u32,
    several_sets: bool,
    has_windows: bool,
    /// Tracks of the trace as a whole that have something.
    used: BTreeSet<u64>,
}

impl Perfetto {
    fn new(context: &ExportContext<'_>) -> Result<Self> {
        Ok(Perfetto {
            bin_ns: context.options.bin_ns,
            tau_ns: context.options.tau_ns,
            spool: Spool::new(context)?,
            block: Vec::with_capacity(BLOCK + 4096),
            counts: None,
            stay_shift: 0,
            several_sets: false,
            has_windows: false,
            used: BTreeSet::new(),
        })
    }

    fn put(&mut self, packet: &TracePacket) -> Result<()> {
        append(&mut self.block, packet);
        if self.block.len() < BLOCK {
            return Ok(());
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        self.spool.push(0, &self.block)?;
        self.block.clear();
        Ok(())
    }

    /// A slice begins or ends, or something happens.
    fn happens(
        &mut self,
        time_ns: u64,
        on: u64,
        kind: Type,
        name: Option<&str>,
        annotations: Vec<DebugAnnotation>,
    ) -> Result<()> {
        self.used.insert(on);
        let event = TrackEvent {
            r#type: Some(kind as i32),
            track_uuid: Some(on),
            name: name.map(str::to_string),
            categories: name.map(|_| "kvmtrace".to_string()).into_iter().collect(),
            debug_annotations: annotations,
            ..TrackEvent::default()
        };
        self.put(&packet(Some(time_ns), Data::TrackEvent(event)))
    }

    fn put_samples(&mut self) -> Result<()> {
        let Some(mut counts) = self.counts.take() else {
            return Ok(());
        };
        let mut done = Ok(());
        for sample in counts.samples() {
            done = self.put(&self.of_sample(&sample));
            if done.is_err() {
                break;
            }
        }
        self.counts = Some(counts);
        done
    }

    fn of_sample(&self, sample: &Sample) -> TracePacket {
        let rate = sample.count as f64 * 1e9 / self.bin_ns as f64;
        let is_rate = sample.series.1 == Figure::Faults;
        let event = TrackEvent {
            r#type: Some(Type::Counter as i32),
            track_uuid: Some(track(sample.series)),
            counter_value: (!is_rate).then_some(sample.count as i64),
            double_counter_value: is_rate.then_some(rate),
            ..TrackEvent::default()
        };
        packet(Some(sample.time_ns), Data::TrackEvent(event))
    }

    /// What comes before everything else.
    fn preamble(&self, outcome: &Outcome) -> Vec<u8> {
        let header = &outcome.world.header;
        let mut to = Vec::new();
        append(&mut to, &packet(None, Data::ClockSnapshot(clocks(header))));
        let describes = format!(
            "N = {} pages; bins of {}; Linux {}",
            header.evms_size,
            time_text(self.bin_ns as f64),
            header.release
        );
        let mut tracks = vec![TrackDescriptor {
            uuid: Some(ROOT),
            name: Some("kVMTrace".into()),
            description: Some(describes),
            ..TrackDescriptor::default()
        }];
        if self.has_windows {
            tracks.push(TrackDescriptor {
                uuid: Some(WINDOWS),
                parent_uuid: Some(ROOT),
                name: Some("windows".into()),
                ..TrackDescriptor::default()
            });
        }
        let used = self.counts.as_ref().map(Counts::used);
        let used = || used.into_iter().flatten();
        if used().any(|series| series.0 == Whose::Unknown) || self.used.contains(&UNKNOWN_PROCESS) {
            tracks.push(TrackDescriptor {
                uuid: Some(UNKNOWN_PROCESS),
                parent_uuid: Some(ROOT),
                name: Some("unknown process".into()),
                ..TrackDescriptor::default()
            });
        }
        let processes = outcome.world.tasks.processes();
        for (id, process) in (0..).map(ProcessId).zip(processes) {
            let said = |text: &String| (!text.is_empty()).then(|| text.clone());
            tracks.push(TrackDescriptor {
                uuid: Some(process_track(id)),
                process: Some(ProcessDescriptor {
                    pid: i32::try_from(process.tgid.0).ok(),
                    cmdline: said(&process.exe).into_iter().collect(),
                    process_name: said(&process.comm),
                    start_timestamp_ns: i64::try_from(process.start_ns).ok().filter(|ns| *ns > 0),
                }),
                ..TrackDescriptor::default()
            });
        }
        tracks.extend(used().map(|series| self.of_series(*series)));
        for track in tracks {
            append(&mut to, &packet(None, Data::TrackDescriptor(track)));
        }
        to
    }

    fn of_series(&self, series: Series) -> TrackDescriptor {
        let (name, unit) = match series.1 {
            Figure::Faults => ("faults a second".into(), "/s"),
            Figure::SetSize => match series.0 {
                Whose::Set(set) => (format!("size of set {set}"), "pages"),
                _ if self.several_sets => ("size of all sets".into(), "pages"),
                _ => ("set size".into(), "pages"),
            },
            Figure::WorkingSet => {
                let tau = time_text(self.tau_ns as f64);
                (format!("working set, τ = {tau}"), "pages")
            }
        };
        TrackDescriptor {
            uuid: Some(track(series)),
            parent_uuid: Some(match series.0 {
                Whose::Trace | Whose::Set(_) => ROOT,
                Whose::Unknown => UNKNOWN_PROCESS,
                Whose::Process(id) => process_track(id),
            }),
            name: Some(name),
            counter: Some(CounterDescriptor {
                unit_name: Some(unit.into()),
            }),
            ..TrackDescriptor::default()
        }
    }
}

/// The clocks at the trace's start.
fn clocks(header: &Header) -> ClockSnapshot {
    let start_ns = header.start_time_ns;
    let clock = |id, timestamp| Clock {
        clock_id: Some(id),
        timestamp: Some(timestamp),
    };
    ClockSnapshot {
        clocks: vec![
            clock(MONOTONIC, start_ns),
            clock(
                REALTIME,
                start_ns.saturating_add_signed(header.realtime_offset_ns),
            ),
        ],
        primary_trace_clock: Some(MONOTONIC),
    }
}

impl Exporter for Perfetto {
    fn trace(&mut self, trace: &Trace) -> Result<()> {
        let header = trace.header();
        if self.bin_ns == 0 {
            let (first, last) = trace.index().time_span().unwrap_or_default();
            self.bin_ns = automatic_bin(last.saturating_sub(first));
        }
        self.counts = Some(Counts::new(header, self.bin_ns, self.tau_ns));
        self.stay_shift = header.stay_shift;
        self.several_sets = header.sets.are_several();
        for window in &trace.index().windows {
            let account = &window.account;
            self.has_windows = true;
            let name = format!("window {}", account.number);
            let about = vec![
                number("references", account.refs.saturating_sub(account.renewed)),
                number("events", account.events),
                annotation("ended by", Value::Text(account.why.name().into())),
            ];
            let (begin, end) = (Type::SliceBegin, Type::SliceEnd);
            self.happens(account.start_time_ns, WINDOWS, begin, Some(&name), about)?;
            self.happens(account.stop_time_ns, WINDOWS, end, None, Vec::new())?;
        }
        // Of a window of the trace, other pieces are elsewhere.
        let (first, last) = trace.index().time_span().unwrap_or_default();
        let mut later = trace.later_pieces();
        later.retain(|piece| (first..=last).contains(&piece.time_ns));
        for later in later {
            let name = match later.is_rotation {
                true => format!("rotation: piece {}", later.number),
                false => format!("piece {}", later.number),
            };
            self.happens(later.time_ns, ROOT, Type::Instant, Some(&name), Vec::new())?;
        }
        Ok(())
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>, _out: &mut Output) -> Result<()> {
        let Some(counts) = &mut self.counts else {
            return Ok(());
        };
        let mut last = None;
        for ((r, place), page) in batch.refs.iter().zip(batch.places).zip(batch.pages) {
            let set = self.several_sets.then_some(r.set);
            counts.stay(set, r.time_ns, r.end_ns(self.stay_shift));
            if !is_reference(r, place) {
                continue;
            }
            let tid = r.tid();
            let of = match last {
                Some((same, of)) if same == tid => of,
                _ => whose(tid, batch.world),
            };
            last = Some((tid, of));
            counts.reference(of, r.time_ns, *page);
        }
        self.put_samples()
    }

    fn event(&mut self, event: &Event<'_>, world: &World, _out: &mut Output) -> Result<()> {
        if let Some(counts) = &mut self.counts {
            counts.go_to(event.time_ns);
        }
        self.put_samples()?;
        if event.is_snapshot() || event.is_state() {
            return Ok(());
        }
        let of = match world.tasks.find(event.tid).or(world.tasks.find(event.tgid)) {
            Some(id) => process_track(id),
            None => UNKNOWN_PROCESS,
        };
        let tid = number("tid", event.tid.0.into());
        let seq = number("seq", event.seq);
        let (on, kind, name, more) = match event.body {
            Body::Fork {
                child_tid,
                child_tgid,
                ..
            } => {
                let child = vec![
                    number("child_tid", child_tid.0.into()),
                    number("child_tgid", child_tgid.0.into()),
                ];
                (of, Type::Instant, "fork", child)
            }
            Body::Exec { comm, name, .. } => {
                let program = vec![
                    annotation("comm", Value::Text(text(comm))),
                    annotation("name", Value::Text(text(name))),
                ];
                (of, Type::Instant, "exec", program)
            }
            Body::Exit { code, .. } => {
                let code = annotation("code", Value::Int(code.into()));
                (of, Type::Instant, "exit", vec![code])
            }
            Body::Resize { from, to } => {
                let sizes = vec![number("from", from.into()), number("to", to.into())];
                (ROOT, Type::Instant, "resize", sizes)
            }
            Body::Filter { expr, .. } => {
                let expr = annotation("expr", Value::Text(text(expr)));
                (ROOT, Type::Instant, "filter", vec![expr])
            }
            Body::RefsBegin => (ROOT, Type::Instant, "references begin", Vec::new()),
            Body::Checkpoint { .. } => (ROOT, Type::SliceBegin, "checkpoint", Vec::new()),
            Body::CheckpointEnd => {
                return self.happens(event.time_ns, ROOT, Type::SliceEnd, None, Vec::new());
            }
            _ => return Ok(()),
        };
        let annotations = [tid, seq].into_iter().chain(more).collect();
        self.happens(event.time_ns, on, kind, Some(name), annotations)
    }

    fn freed(&mut self, pages: &[CanonPage], time_ns: u64, _out: &mut Output) -> Result<()> {
        let Some(counts) = &mut self.counts else {
            return Ok(());
        };
        for page in pages {
            counts.free(time_ns, *page);
        }
        self.put_samples()
    }

    fn finish(&mut self, outcome: &Outcome, out: &mut Output) -> Result<()> {
        if let Some(counts) = &mut self.counts {
            counts.finish();
        }
        self.put_samples()?;
        self.flush()?;
        let preamble = self.preamble(outcome);
        out.write_all(&preamble).writing(out.name())?;
        self.spool
            .read(0, |block| out.write_all(block).writing(out.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_few_whatever_the_length() {
        for length in [0, 1, 999, 1_999_999, 2_000_000, 60_000_000_000, u64::MAX] {
            let bin = automatic_bin(length);
            assert!(length / bin < BINS, "{length} {bin}");
            assert!(
                bin == 1_000 || length / (bin / 5) + 1 >= BINS / 5,
                "{length} {bin}"
            );
        }
        assert_eq!(automatic_bin(60_000_000_000), 50_000_000);
    }
}
