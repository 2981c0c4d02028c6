//! `windows`: each window is whole, and a trace by itself.

use std::collections::BTreeMap;

use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Outcome, World};
use crate::space::Issue;
use crate::trace::{Body, Event, PacketSeen, StreamId, StreamKind, Trace, WindowAccount};

/// The content of a window's packets.
#[derive(Default)]
struct Seen {
    refs: u64,
    events: u64,
    /// The first event was the beginning of a snapshot.
    opened: bool,
}

#[derive(Default)]
pub(super) struct Windows {
    /// Whether the trace has windows.
    planned: bool,
    last: BTreeMap<StreamId, u32>,
    seen: BTreeMap<u32, Seen>,
    /// For each account: the first and last sequence number, and the window's number.
    spans: Vec<(u64, u64, u32)>,
}

impl Windows {
    fn at(&self, seq: u64) -> Option<u32> {
        let after = self.spans.partition_point(|s| s.0 <= seq);
        let span = after.checked_sub(1).map(|i| self.spans[i])?;
        (seq <= span.1).then_some(span.2)
    }
}

/// A figure of a window's account.
type Figure = fn(&WindowAccount) -> u64;

/// Compares the END packet with the accounts of all windows together: the kernel counts nothing
/// between windows.
fn add_up(trace: &Trace, out: &mut Findings) {
    let windows = &trace.index().windows;
    let Some(end) = &trace.index().end else {
        return;
    };
    let s = &end.status;
    // Otherwise an account is missing, which `account` reports.
    if s.windows_ended as usize != windows.len() {
        return;
    }
    let figures: [(&str, u64, Figure); 8] = [
        ("admissions", s.admissions, |a| a.admissions),
        ("renewals", s.renewed, |a| a.renewed),
        ("second chances", s.chances, |a| a.chances),
        ("numbers given up", s.aborted, |a| a.aborted),
        ("funny PTEs", s.funny, |a| a.funny),
        ("records lost for want of room", s.lost_full, |a| {
            a.lost_full
        }),
        ("events lost without a wait", s.lost_atomic, |a| {
            a.lost_atomic
        }),
        ("records lost by the output", s.lost_io, |a| a.lost_io),
    ];
    for (what, whole, of) in figures {
        let accounts = windows.iter().map(|w| of(&w.account));
        let sum = accounts.fold(0, u64::saturating_add);
        // If the output failed, the last records were lost after the last account.
        let fits = match s.error {
            0 => sum == whole,
            _ => sum <= whole,
        };
        if !fits {
            out.error(|| {
                Draft::new(format!(
                    "{what}: {whole} in the END packet, {sum} in the accounts of all windows"
                ))
                .at(end.offset)
            });
        }
    }
}

/// Compares what a filter has left out in all windows with the END packet's count: the accounts do not
/// tell how many of their losses are of references.
fn add_up_left_out(trace: &Trace, out: &mut Findings) {
    let windows = &trace.index().windows;
    let Some(end) = &trace.index().end else {
        return;
    };
    let s = &end.status;
    let is_comparable = trace.header().is_filtered() && s.error == 0;
    if !is_comparable || s.windows_ended as usize != windows.len() {
        return;
    }
    let add = |sum: (u64, u64), one: (u64, u64)| {
        (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1))
    };
    let all = windows.iter().map(|w| w.account.left_out());
    let (least, most) = all.fold((0, 0), add);
    if !(least..=most).contains(&s.left_out) {
        out.error(|| {
            Draft::new(format!(
                "records that a filter has left out: {} in the END packet, {least} to {most} by the \
                 accounts of all windows",
                s.left_out
            ))
            .at(end.offset)
        });
    }
}

impl Rule for Windows {
    fn id(&self) -> &'static str {
        "windows"
    }

    fn about(&self) -> &'static str {
        "each window begins with a snapshot, has its own packets, and contains as many records as \
         the kernel counted; the END packet counts what the windows count together"
    }

    fn begin(&mut self, trace: &Trace, _out: &mut Findings) {
        self.planned = trace.header().windows.is_some();
        let accounts = trace.index().windows.iter().map(|w| &w.account);
        self.spans = accounts
            .map(|a| (a.first_seq, a.last_seq, a.number))
            .collect();
        self.spans.sort_unstable();
    }

    fn packet(&mut self, packet: &PacketSeen, out: &mut Findings) {
        let head = &packet.head;
        let wrong = match self.last.insert(head.stream, head.window) {
            Some(last) if last > head.window => Some(format!("after a packet of window {last}")),
            _ if head.window != 0 && !self.planned => {
                Some("although the trace has no windows".into())
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            out.error(|| {
                Draft::new(format!(
                    "stream {}: packet {} belongs to window {}, {wrong}",
                    head.stream, head.seq, head.window
                ))
                .at(packet.offset)
            });
        }
        let seen = self.seen.entry(head.window).or_default();
        match head.stream.kind {
            StreamKind::Ref => seen.refs += u64::from(head.records),
            StreamKind::Event => seen.events += u64::from(head.records),
            _ => {}
        }
        let span = self.spans.iter().find(|s| s.2 == head.window);
        if let Some(span) = span.filter(|s| head.first_seq < s.0 || head.last_seq > s.1) {
            out.error(|| {
                Draft::new(format!(
                    "stream {}: packet {} has records {} to {}, although its window {} has only {} \
                     to {}",
                    head.stream,
                    head.seq,
                    head.first_seq,
                    head.last_seq,
                    head.window,
                    span.0,
                    span.1
                ))
                .at(packet.offset)
            });
        }
    }

    fn event(&mut self, e: &Event<'_>, _world: &World, _issues: &[Issue], out: &mut Findings) {
        if !self.planned {
            return;
        }
        let Some(window) = self.at(e.seq) else { return };
        let seen = self.seen.entry(window).or_default();
        // If N differs from the header's, an event about N comes first. So may that of the filter.
        if matches!(e.body, Body::SnapBegin) {
            seen.opened = true;
        } else if !seen.opened && !matches!(e.body, Body::Resize { .. } | Body::Filter { .. }) {
            seen.opened = true;
            out.error(|| {
                Draft::new(format!("window {window} does not begin with a snapshot"))
                    .record(Cited::event(e))
            });
        }
    }

    fn finish(&mut self, trace: &Trace, _outcome: &Outcome, out: &mut Findings) {
        if !self.planned {
            return;
        }
        let windows = &trace.index().windows;
        let end = trace.index().end.as_ref();
        let stop_ns = end.map_or(u64::MAX, |end| end.status.stop_time_ns);
        // A piece may begin with any window, and in the middle of one.
        let first = trace.piece().and(windows.first());
        let first = first.map_or(0, |window| window.account.number);
        let part = trace.described_window();
        for (at, window) in windows.iter().enumerate() {
            let a = &window.account;
            let number = trace
                .window()
                .unwrap_or_else(|| first.saturating_add(at as u32));
            if a.number != number {
                out.error(|| {
                    Draft::new(format!(
                        "the account of window {} stands where that of window {number} should stand",
                        a.number
                    ))
                    .at(window.offset)
                });
            }
            let head = &window.head;
            let moments = [head.first_time_ns, head.last_time_ns];
            let numbers = [head.first_seq, head.last_seq];
            if head.window != a.number
                || head.records != 1
                || moments != [a.stop_time_ns; 2]
                || numbers != [a.last_seq; 2]
            {
                out.error(|| {
                    Draft::new(format!(
                        "the packet of window {}'s account has window {}, time {} and sequence \
                         number {}; the account itself has time {} and number {}",
                        a.number,
                        head.window,
                        head.last_time_ns,
                        head.last_seq,
                        a.stop_time_ns,
                        a.last_seq
                    ))
                    .at(window.offset)
                });
            }
            if a.start_time_ns > a.stop_time_ns || a.stop_time_ns > stop_ns {
                out.error(|| {
                    Draft::new(format!(
                        "window {} began at {} ns and ended at {} ns; the trace ended at {stop_ns} ns",
                        a.number, a.start_time_ns, a.stop_time_ns
                    ))
                    .at(window.offset)
                });
            }
            let seen = self.seen.remove(&a.number).unwrap_or_default();
            if part == Some(a.number) {
                continue;
            }
            let mut equal = |what: &str, counted: u64, seen: u64| {
                if counted != seen {
                    out.error(|| {
                        Draft::new(format!(
                            "the kernel wrote {counted} {what} in window {}, but {seen} are in the \
                             file",
                            a.number
                        ))
                        .at(window.offset)
                    });
                }
            };
            equal("records of references", a.refs, seen.refs);
            equal("events", a.events, seen.events);
            let due = a.due();
            let lost = a.lost_full.saturating_add(a.lost_io);
            // Of a trace with a filter, what is missing was left out.
            let most = match trace.header().is_filtered() {
                true => u64::MAX,
                false => a.refs.saturating_add(lost),
            };
            if !(a.refs..=most).contains(&due) {
                out.error(|| {
                    Draft::new(format!(
                        "window {}: {due} admissions, renewals and second chances do not fit {} \
                         records and up to {lost} lost records",
                        a.number, a.refs
                    ))
                    .at(window.offset)
                });
            }
            if a.refs == 0 {
                out.note(|| {
                    Draft::new(format!("window {} has no reference", a.number)).at(window.offset)
                });
            }
        }
        if trace.window().is_none() && trace.piece().is_none() {
            add_up(trace, out);
            add_up_left_out(trace, out);
        }
        // The last window of a piece may go on in the next one.
        if trace.piece().is_some_and(|piece| !piece.is_last()) {
            let accounted = windows.last().map(|window| window.account.number);
            if let Some(last) = self.seen.last_entry() {
                if accounted.is_none_or(|number| number < *last.key()) {
                    last.remove();
                }
            }
        }
        // A window without an account was cut short, and so was the trace.
        for (number, seen) in std::mem::take(&mut self.seen) {
            out.error(|| {
                Draft::new(format!(
                    "window {number} has no account; the file has {} of its records of references \
                     and {} of its events",
                    seen.refs, seen.events
                ))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use rust_mm_trace::uapi::{vmtrace_status, vmtrace_window};

    use crate::canon::PageMode;
    use crate::check::{CheckOptions, CheckReport, Checker};
    use crate::pipeline::{self, Unwatched};
    use crate::testing::{TraceBuilder, check_bytes, check_bytes_with};
    use crate::trace::Trace;
    use crate::units::Prot;

    /// Three windows: of 8 references, none, and 8.
    fn windows(change: impl Fn(&mut vmtrace_window)) -> TraceBuilder {
        windows_of(8, change)
    }

    fn windows_of(limit: u64, change: impl Fn(&mut vmtrace_window)) -> TraceBuilder {
        let mut builder = TraceBuilder::new(2, 4);
        for (mm, references) in [(1, 8), (2, 0), (3, 8)] {
            builder.begin_window(limit);
            builder.task(0, 10, 10, mm, "program");
            builder.map_anon(0, 10, mm, 0x1000, 0x9000, Prot(3));
            for i in 0..references {
                builder.touch(i & 1, 10, mm, 0x1000 + u64::from(i) * 0x1000);
            }
            builder.end_window(&change);
        }
        builder
    }

    fn errors(report: &CheckReport) -> u64 {
        report.rule("windows").map_or(0, |r| r.errors)
    }

    #[test]
    fn good_windows() {
        let report = check_bytes(&windows(|_| {}).finish());
        assert!(report.good, "{report:#?}");
        assert_eq!(report.rule("windows").map(|r| r.notes), Some(1));
    }

    #[test]
    fn each_is_a_trace_of_its_own() {
        let trace = Trace::from_bytes("windows", windows(|_| {}).finish()).expect("a trace");
        assert_eq!(trace.window_numbers(), [0, 1, 2]);
        let mut refs = Vec::new();
        for number in trace.window_numbers() {
            let window = trace.only_window(number).expect("there");
            let mut checker = Checker::new(CheckOptions::default());
            let outcome = pipeline::run(
                &window,
                PageMode::Canonical,
                &mut Unwatched,
                &mut [&mut checker],
            );
            let outcome = outcome.expect("read");
            let report = checker.report();
            assert!(report.good, "{number}: {report:#?}");
            refs.push((outcome.world.records, outcome.pages));
        }
        assert_eq!(refs, [(8, 8), (0, 0), (8, 8)]);
        let message = trace.only_window(3).err().map(|e| e.to_string());
        assert_eq!(
            message.as_deref(),
            Some("windows: there is no window 3: it has 0 to 2")
        );
    }

    #[test]
    fn each_trouble_is_an_error() {
        let of = |change: fn(&mut vmtrace_window)| errors(&check_bytes(&windows(change).finish()));
        assert_eq!(of(|_| {}), 0);
        assert_eq!(of(|w| w.events += u64::from(w.number == 1)), 1);
        // The records in the window, and the admissions in the END packet.
        assert_eq!(of(|w| w.admissions += u64::from(w.number == 2)), 2);
        // A record behind the last one, and the packet's head.
        assert_eq!(of(|w| w.last_seq -= u64::from(w.number == 2)), 2);
        assert_eq!(of(|w| w.stop_time -= u64::from(w.number == 2)), 1);
        assert_eq!(of(|w| w.start_time += u64::from(w.number == 2) << 40), 1);
        // One under another's number, and one that is not there.
        assert!(of(|w| w.number += u32::from(w.number == 2)) >= 2);
    }

    /// The kernel counts nothing between windows.
    #[test]
    fn the_accounts_must_add_up_to_that_of_the_trace() {
        let of = |change: fn(&mut vmtrace_window)| errors(&check_bytes(&windows(change).finish()));
        let changes: [fn(&mut vmtrace_window); 5] = [
            |w| w.aborted = 1,
            |w| w.lost_full = 1,
            |w| w.lost_atomic = 1,
            |w| w.lost_io = 1,
            |w| {
                // As many records as before.
                let one = u64::from(w.number == 0);
                w.admissions -= one;
                w.renewed += one;
            },
        ];
        for (i, change) in changes.into_iter().enumerate() {
            let expected = if i == 4 { 2 } else { 1 };
            assert_eq!(of(change), expected, "change {i}");
        }
        let whole = |change: fn(&mut vmtrace_status)| {
            let mut builder = windows(|_| {});
            builder.on_status(change);
            errors(&check_bytes(&builder.finish()))
        };
        assert_eq!(whole(|s| s.aborted = 1), 1);
        assert_eq!(whole(|s| s.lost_atomic = 1), 1);
        assert_eq!(whole(|s| s.funny = 1), 1);
        assert_eq!(whole(|s| s.chances = 1), 1);
        // What the output did not take any more is in no account of a window.
        assert_eq!(
            whole(|s| {
                s.lost_io = 1;
                s.error = -5;
            }),
            0
        );
    }

    /// Two windows of a trace with a filter, and losses if `loses`.
    fn filtered(loses: bool) -> TraceBuilder {
        let mut builder = TraceBuilder::new(2, 4);
        builder.filtered();
        for mm in [1, 2] {
            builder.begin_window(8);
            if mm == 1 {
                builder.filter(0, "addr < 0x5000", |a| a.address < 0x5000);
            }
            builder.task(0, 10, 10, mm, "program");
            builder.map_anon(0, 10, mm, 0x1000, 0x9000, Prot(3));
            for i in 0..24u64 {
                builder.touch((i & 1) as u32, 10, mm, 0x1000 + i % 8 * 0x1000);
                if loses && i == 12 {
                    builder.lose_reference(0);
                }
            }
            builder.end_window(|_| {});
        }
        builder
    }

    #[test]
    fn a_window_counts_what_a_filter_left_out() {
        for loses in [false, true] {
            let options = CheckOptions {
                allow_loss: loses,
                examples: 3,
            };
            let bytes = filtered(loses).finish();
            let report = check_bytes_with(&bytes, options);
            assert!(report.good, "{report:#?}");
            let trace = Trace::from_bytes("windows", bytes).expect("a trace");
            for number in [0, 1] {
                let window = trace.only_window(number).expect("there");
                let status = &window.index().end.as_ref().expect("an end").status;
                assert_eq!(status.left_out, 12);
                let mut checker = Checker::new(options);
                let consumers: &mut [&mut dyn pipeline::Consumer] = &mut [&mut checker];
                let mode = PageMode::Canonical;
                pipeline::run(&window, mode, &mut Unwatched, consumers).expect("read");
                let report = checker.report();
                assert!(report.good, "{report:#?}");
            }
        }
        let of = |change: fn(&mut vmtrace_status)| {
            let mut builder = filtered(false);
            builder.on_status(change);
            errors(&check_bytes(&builder.finish()))
        };
        assert_eq!(of(|_| {}), 0);
        assert_eq!(of(|s| s.left_out -= 1), 1);
        assert_eq!(of(|s| s.left_out += 1), 1);
    }

    #[test]
    fn losses_of_a_window_that_the_trace_counts_can_be_waived() {
        let mut builder = TraceBuilder::new(2, 4);
        builder.begin_window(8);
        builder.task(0, 10, 10, 1, "program");
        builder.map_anon(0, 10, 1, 0x1000, 0x9000, Prot(3));
        builder.touch(0, 10, 1, 0x1000);
        builder.lose_reference(0);
        builder.abort();
        builder.touch(0, 10, 1, 0x2000);
        builder.end_window(|_| {});
        let options = CheckOptions {
            allow_loss: true,
            examples: 3,
        };
        let report = check_bytes_with(&builder.finish(), options);
        assert!(report.good, "{report:#?}");
    }

    #[test]
    fn a_window_without_end_or_beginning_is_found() {
        let mut builder = windows(|_| {});
        builder.begin_window(8);
        builder.task(0, 10, 10, 4, "program");
        assert_eq!(errors(&check_bytes(&builder.finish())), 1);
        let mut builder = windows(|_| {});
        builder.task(0, 10, 10, 4, "program");
        builder.begin_window(8);
        builder.end_window(|w| w.first_seq -= 1);
        assert!(errors(&check_bytes(&builder.finish())) >= 1);
    }

    #[test]
    fn a_packet_of_a_window_in_a_trace_without() {
        let bytes = windows_of(0, |_| {}).finish();
        assert!(errors(&check_bytes(&bytes)) >= 1);
    }
}
