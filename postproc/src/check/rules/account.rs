//! `account`: the END packet repeats the header, and its figures are possible.

use std::collections::BTreeSet;

use rust_mm_trace::{events, uapi};
use rustc_hash::FxHashSet;

use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Outcome, World};
use crate::space::Issue;
use crate::trace::{Body, Event, MapKind, Sets, Trace, WindowEnd, part};

#[derive(Default)]
pub(super) struct Account {
    /// Classes of events in the header.
    classes: u32,
    /// The latest N and the largest N, by the header and the events.
    n: u32,
    peak: u32,
    /// The types of events that cannot be in the trace, and are.
    strange: BTreeSet<u16>,
    /// Flags of events that no kernel of this version writes.
    flags: BTreeSet<u32>,
    /// The sets of address spaces.
    sets: FxHashSet<u32>,
    /// There is a mapping of an unknown kind.
    has_unknown_map: bool,
}

/// What to do about a value that this version does not know.
const NEWER: &str = "which this program does not know: use the tools that came with the kernel that \
                     wrote the trace, or newer ones";

impl Rule for Account {
    fn id(&self) -> &'static str {
        "account"
    }

    fn about(&self) -> &'static str {
        "the END packet repeats the header's configuration, its counts are possible, and all \
         events, mappings and ends of windows are of kinds that the header and this version allow"
    }

    fn begin(&mut self, trace: &Trace, _out: &mut Findings) {
        let header = trace.header();
        self.classes = header.classes;
        (self.n, self.peak) = (header.evms_size, header.evms_size);
    }

    fn event(&mut self, e: &Event<'_>, _world: &World, _issues: &[Issue], out: &mut Findings) {
        if let Body::Resize { from, to } = e.body {
            self.n = to;
            self.peak = self.peak.max(from).max(to);
        }
        if let Body::Set { set, .. } = e.body {
            self.sets.insert(set);
        }
        let unknown = matches!(e.said(), Body::Unknown);
        let excluded = events::class(e.number) & !self.classes != 0;
        if (unknown || excluded) && self.strange.insert(e.number) {
            out.error(|| {
                let message = if unknown {
                    format!("events of type {} are in the trace, {NEWER}", e.number)
                } else {
                    format!(
                        "{} events are in the trace, although the header's classes {:#x} exclude them",
                        e.name(),
                        self.classes
                    )
                };
                Draft::new(message).record(Cited::event(e))
            });
        }
        let known =
            uapi::VMTRACE_EVF_SNAPSHOT | uapi::VMTRACE_EVF_STATE | uapi::VMTRACE_EVF_CHECKPOINT;
        let flags = e.flags & !known;
        if flags != 0 && self.flags.insert(flags) {
            out.error(|| {
                let message = format!("an event has the flags {flags:#x}, {NEWER}");
                Draft::new(message).record(Cited::event(e))
            });
        }
        let unknown_map = matches!(e.said(), Body::Map(m) if m.kind == MapKind::Unknown);
        if unknown_map && !std::mem::replace(&mut self.has_unknown_map, true) {
            out.error(|| {
                let message = format!("a mapping is of a kind {NEWER}");
                Draft::new(message).record(Cited::event(e))
            });
        }
    }

    fn finish(&mut self, trace: &Trace, _outcome: &Outcome, out: &mut Findings) {
        for window in &trace.index().windows {
            if window.account.why == WindowEnd::Unknown {
                out.error(|| {
                    let number = window.account.number;
                    let message = format!("window {number} ended for a reason {NEWER}");
                    Draft::new(message).at(window.offset)
                });
            }
        }
        let Some(end) = &trace.index().end else {
            return;
        };
        // The account of a window alone is made from the WINDOW packet, that of a piece from its end.
        if trace.window().is_some() || trace.piece().is_some() {
            return;
        }
        let (s, h) = (&end.status, trace.header());
        let at = end.offset;
        let mut same = |what: &str, account: u64, header: u64| {
            if account != header {
                out.error(|| {
                    Draft::new(format!(
                        "{what}: {account} in the END packet, {header} expected"
                    ))
                    .at(at)
                });
            }
        };
        same("size", s.size.into(), end.head.content_size.into());
        same("number of CPUs", s.nr_cpus.into(), h.nr_cpus.into());
        same("time of the start", s.start_time_ns, h.start_time_ns);
        // Packets may have been packed or unpacked since, and pieces joined. That the kernel counted
        // is no feature of a trace.
        let changed =
            uapi::VMTRACE_PACK | uapi::VMTRACE_ZSTD | uapi::VMTRACE_PIECE | uapi::VMTRACE_COUNTED;
        let kept = |flags: u64| flags & !(u64::from(changed) | part::FEATURE);
        same("flags", kept(s.flags.into()), kept(h.features));
        same("scope", s.scope.into(), h.scope.into());
        let pid = |pid: i32| u64::from(pid.unsigned_abs());
        same("process of the scope", pid(s.pid), pid(h.scope_pid));
        same(
            "first segment",
            s.first_segment.into(),
            h.first_segment.into(),
        );
        same("policy", s.policy.into(), h.policy.into());
        let number = |sets: Sets| u64::from(sets as u8);
        same("sets", number(s.sets), number(h.sets));
        same("classes of events", s.classes.into(), h.classes.into());
        let planned = h.windows.map_or(0, |plan| plan.count);
        same("windows planned", s.windows.into(), planned.into());
        let windows = match h.windows {
            Some(_) => trace.index().windows.len() as u64,
            None => 0,
        };
        same("windows begun", s.windows_begun.into(), windows);
        same("windows ended", s.windows_ended.into(), windows);
        same(
            "the smallest N",
            s.evms_min.into(),
            h.least_n(uapi::VMTRACE_FIRST_MIN),
        );
        same("state", s.state.into(), uapi::VMTRACE_STATE_OFF.into());
        let index = trace.index();
        // Nobody knows how long a damaged packet was before it was packed.
        if index.saved == 0 || index.damage.is_empty() {
            let unpacked = end.offset.saturating_add(index.saved);
            same("bytes before the packet", s.bytes, unpacked);
        }
        let packed = s.flags & uapi::VMTRACE_PACK != 0;
        if s.stored != 0 && !packed {
            same("bytes stored", s.stored, s.bytes);
        }
        same("pages still enabled", s.members, 0);
        // Changes of N between windows are not recorded, and lost events may have changed N.
        if s.lost() == 0 && h.windows.is_none() {
            same("N", s.evms_size.into(), self.n.into());
            same("the largest N", s.evms_peak.into(), self.peak.into());
            let batch = u64::from(h.batch).min(h.most_batch(self.n.into()));
            same("batch", s.batch.into(), batch);
        }
        // The packet's header repeats the time and the sequence number of the content.
        let head = &end.head;
        same("number of the packet", head.seq, 0);
        same("records in the packet", head.records.into(), 1);
        same("first sequence number", head.first_seq, s.last_seq);
        same("last sequence number", head.last_seq, s.last_seq);
        same(
            "first time of the packet",
            head.first_time_ns,
            s.stop_time_ns,
        );
        same("last time of the packet", head.last_time_ns, s.stop_time_ns);
        same("losses in the packet", head.lost(), 0);

        let mut never = |condition: bool, message: String| {
            if condition {
                out.error(|| Draft::new(message).at(at));
            }
        };
        never(
            s.stored > s.bytes,
            format!("{} bytes were packed into {}", s.bytes, s.stored),
        );
        never(
            s.uuid != h.uuid,
            format!("the END packet belongs to another trace, {}", s.uuid),
        );
        never(
            s.evms_peak < s.evms_size.max(h.evms_size)
                || s.evms_max < s.evms_peak
                || s.evms_max > uapi::VMTRACE_EVMS_MAX,
            format!(
                "impossible sizes: N was {} at the start and {} at the end, {} at most, with room \
                 for {}",
                h.evms_size, s.evms_size, s.evms_peak, s.evms_max
            ),
        );
        let sets = self.sets.len() as u64;
        never(
            s.sets_max > s.sets_made || s.sets_made < sets,
            format!(
                "impossible sets: {} were made, {} at once, and {sets} are in the events",
                s.sets_made, s.sets_max
            ),
        );
        never(
            !h.sets.are_several() && (s.sets_made > 0 || s.sets_shared > 0),
            format!(
                "{} sets were made and {} address spaces share one, although the header says that \
                 there is one for all",
                s.sets_made, s.sets_shared
            ),
        );
        never(
            s.left_out > 0 && !h.is_filtered(),
            format!(
                "{} records were left out by a filter, although the header says that there is none",
                s.left_out
            ),
        );
        never(
            s.left_out > 0 && h.keeps_left_out(),
            format!(
                "{} records were left out by a filter, although the kernel was to record all",
                s.left_out
            ),
        );
        let last = trace.index().time_span().map_or(0, |(_, last)| last);
        never(
            s.stop_time_ns < last.max(s.start_time_ns),
            format!(
                "the trace ended at {} ns, although it began at {} ns and its last record has the \
                 time {last} ns",
                s.stop_time_ns, s.start_time_ns
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use rust_mm_trace::uapi::{
        VMTRACE_CLASS_IO, VMTRACE_COUNTED, VMTRACE_EV_READ, VMTRACE_MAP_ANON, VMTRACE_MAP_HUGETLB,
        VMTRACE_WINDOW_NEXT, VMTRACE_WINDOW_PAUSE, VMTRACE_WINDOW_STOP, vmtrace_status,
    };

    use crate::testing::{TraceBuilder, check_bytes};
    use crate::trace::FileId;
    use crate::units::Prot;

    fn errors(change: impl FnOnce(&mut vmtrace_status) + 'static) -> u64 {
        let mut builder = TraceBuilder::sample();
        builder.on_status(change);
        check_bytes(&builder.finish())
            .rule("account")
            .unwrap()
            .errors
    }

    #[test]
    fn the_account_must_repeat_the_header() {
        assert_eq!(errors(|_| {}), 0);
        assert_eq!(errors(|s| s.flags ^= VMTRACE_COUNTED), 0);
        let changes: [fn(&mut vmtrace_status); 22] = [
            |s| s.size -= 8,
            |s| s.nr_cpus += 1,
            |s| s.start_time -= 1,
            |s| s.flags ^= 1,
            |s| s.scope ^= 1,
            |s| s.pid += 1,
            |s| s.first_segment += 1,
            |s| s.policy ^= 1,
            |s| s.sets = 1,
            |s| s.sets_made = 1,
            |s| s.sets_max = 1,
            |s| s.batch = 2,
            |s| s.classes ^= VMTRACE_CLASS_IO,
            |s| s.windows += 1,
            |s| s.windows_begun += 1,
            |s| s.windows_ended += 1,
            |s| s.evms_min += 1,
            |s| s.bytes += 1,
            |s| s.members = 1,
            |s| s.uuid[0] ^= 1,
            |s| s.evms_max = s.evms_peak - 1,
            |s| s.evms_max = 1 << 30,
        ];
        for (i, change) in changes.into_iter().enumerate() {
            assert_eq!(errors(change), 1, "change {i}");
        }
    }

    #[test]
    fn only_a_filter_leaves_out() {
        assert_eq!(errors(|s| s.left_out = 1), 1);
        let mut builder = TraceBuilder::sample_of_filtered();
        builder.keep_left_out();
        builder.on_status(|s| s.left_out = 1);
        let report = check_bytes(&builder.finish());
        assert_eq!(report.rule("account").unwrap().errors, 1);
    }

    #[test]
    fn n_must_be_what_the_events_made_it() {
        // Its size, and what it was at most.
        assert_eq!(errors(|s| s.evms_size -= 1), 1);
        assert_eq!(errors(|s| s.evms_peak += 1), 1);
        assert!(errors(|s| s.evms_peak -= 1) >= 1);
        // A lost record may have been an event about another N.
        assert_eq!(
            errors(|s| {
                s.evms_peak += 1;
                s.lost_full = 1;
            }),
            0
        );
    }

    #[test]
    fn the_end_is_after_all_records() {
        assert!(errors(|s| s.stop_time = 0) >= 1);
        assert!(errors(|s| s.last_seq += 1) == 0);
    }

    #[test]
    fn an_event_that_nobody_asked_for_is_found() {
        let mut builder = TraceBuilder::sample();
        builder.header_mut().classes &= !VMTRACE_CLASS_IO;
        for _ in 0..3 {
            builder.io((0, 10, 1), VMTRACE_EV_READ, 7, 0, 100);
        }
        let report = check_bytes(&builder.finish());
        // One for all of a type.
        assert_eq!(report.rule("account").unwrap().errors, 1);
        assert_eq!(report.errors(), 1, "{report:#?}");
    }

    /// A newer kernel may write it, and then this version cannot know what it means for pages.
    #[test]
    fn an_event_of_an_unknown_type_is_found() {
        for number in [0, 9, 81, 101, 0xffff] {
            let mut builder = TraceBuilder::sample();
            for _ in 0..3 {
                builder.event(0, 10, 1, number, &[1; 24]);
            }
            let report = check_bytes(&builder.finish());
            let rule = report.rule("account").unwrap();
            // One for all of a type.
            assert_eq!(rule.errors, 1);
            assert!(
                rule.examples[0].message.contains(&format!("type {number}")),
                "{rule:?}"
            );
            assert_eq!(report.errors(), 1, "{report:#?}");
        }
    }

    #[test]
    fn an_unknown_kind_of_mapping_and_unknown_flags_are_found() {
        let judge = |change: &dyn Fn(&mut TraceBuilder<Vec<u8>>)| {
            let mut builder = TraceBuilder::sample();
            change(&mut builder);
            check_bytes(&builder.finish())
        };
        let map = |builder: &mut TraceBuilder<Vec<u8>>, kind| {
            let (range, file) = (0x70_0000..0x70_1000, FileId::default());
            builder.map(0, 10, 1, range, Prot(3), kind, 0, file, 0, "");
        };
        let good = judge(&|b| map(b, VMTRACE_MAP_HUGETLB));
        assert_eq!(good.errors(), 0, "{good:#?}");
        let kind = judge(&|b| map(b, VMTRACE_MAP_HUGETLB + 1));
        let flags = judge(&|b| {
            b.set_flags(1 << 3);
            map(b, VMTRACE_MAP_ANON);
        });
        for report in [kind, flags] {
            assert_eq!(report.rule("account").unwrap().errors, 1, "{report:#?}");
            assert_eq!(report.errors(), 1, "{report:#?}");
        }
    }

    #[test]
    fn an_unknown_end_of_a_window_is_found() {
        for (why, errors) in [
            (VMTRACE_WINDOW_STOP, 0),
            (VMTRACE_WINDOW_PAUSE, 0),
            (VMTRACE_WINDOW_NEXT + 1, 1),
        ] {
            let mut builder = TraceBuilder::new(1, 64);
            builder.begin_window(8);
            builder.program();
            builder.touch(0, 10, 1, 0x1000);
            builder.end_window(move |w| w.why = why);
            let report = check_bytes(&builder.finish());
            let rule = report.rule("account").unwrap();
            assert_eq!(rule.errors, errors, "{report:#?}");
        }
    }
}
