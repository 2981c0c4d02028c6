//! `health`: the kernel found nothing wrong with itself.

use rust_mm_trace::uapi;

use crate::check::{Draft, Findings, Rule};
use crate::pipeline::Outcome;
use crate::trace::Trace;

pub(super) struct Health;

impl Rule for Health {
    fn id(&self) -> &'static str {
        "health"
    }

    fn about(&self) -> &'static str {
        "the kernel found no funny PTE, no stuck victim, no dangling member, no set larger than N, \
         no process without the set that was asked for, no failed output"
    }

    fn finish(&mut self, trace: &Trace, _outcome: &Outcome, out: &mut Findings) {
        let header = trace.header();
        if header.debug_break != 0 {
            out.error(|| {
                Draft::new(format!(
                    "protections were removed for a negative control (debug_break {:#x})",
                    header.debug_break
                ))
            });
        }
        // The account of a window alone is also that of the trace.
        if trace.window().is_none() {
            for w in trace
                .index()
                .windows
                .iter()
                .filter(|w| w.account.funny != 0)
            {
                out.error(|| {
                    Draft::new(format!(
                        "window {}: {} funny PTEs: enabled pages that were not in the set",
                        w.account.number, w.account.funny
                    ))
                    .at(w.offset)
                });
            }
        }
        let Some(end) = &trace.index().end else {
            return;
        };
        let s = &end.status;
        let mut bad = |condition: bool, message: String| {
            if condition {
                out.error(|| Draft::new(message).at(end.offset));
            }
        };
        bad(
            s.funny != 0,
            format!(
                "{} funny PTEs: enabled pages that were not in the set",
                s.funny
            ),
        );
        bad(
            s.stuck != 0,
            format!(
                "{} stuck victims: pages that could not be disabled",
                s.stuck
            ),
        );
        bad(
            s.dangling != 0,
            format!(
                "{} dangling members: pages of the set that were not enabled",
                s.dangling
            ),
        );
        bad(
            s.miscounted != 0,
            format!("{} counts of the set contradicted each other", s.miscounted),
        );
        let (n, sets) = (
            s.evms_peak.max(header.evms_size),
            s.sets_max.saturating_add(1),
        );
        bad(
            s.members_max > u64::from(n).saturating_mul(sets),
            match header.sets.are_several() {
                false => format!(
                    "{} pages were enabled at one time, although N was never above {n}",
                    s.members_max
                ),
                true => format!(
                    "{} pages were enabled at one time, although there were never more than {sets} \
                     sets, with N never above {n}",
                    s.members_max
                ),
            },
        );
        bad(
            s.sets_shared != 0,
            format!(
                "{} address spaces share set 0, because there was no memory for a set of their \
                 own: what is recorded of one of them depends on the others",
                s.sets_shared
            ),
        );
        bad(
            s.state == uapi::VMTRACE_STATE_FAILED || s.error != 0,
            format!(
                "the trace ended by itself: writing failed with errno {}",
                s.error.unsigned_abs()
            ),
        );
        if s.unaudited != 0 {
            out.note(|| {
                Draft::new(format!(
                    "{} address spaces were locked for so long that they could not be audited",
                    s.unaudited
                ))
                .at(end.offset)
            });
        }
        if s.uncovered != 0 {
            out.note(|| {
                Draft::new(format!(
                    "{} accesses cannot be traced (huge pages, devices)",
                    s.uncovered
                ))
                .at(end.offset)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use rust_mm_trace::uapi::{VMTRACE_STATE_FAILED, vmtrace_status};

    use crate::canon::PageMode;
    use crate::check::{CheckOptions, Checker};
    use crate::pipeline::{self, Unwatched};
    use crate::testing::{TraceBuilder, check_bytes, packets_of};
    use crate::trace::Trace;

    fn counts(change: impl FnOnce(&mut vmtrace_status) + 'static) -> (u64, u64) {
        let mut builder = TraceBuilder::sample();
        builder.on_status(change);
        let report = check_bytes(&builder.finish());
        let rule = report.rule("health").unwrap();
        (rule.errors, rule.notes)
    }

    #[test]
    fn each_trouble_is_an_error() {
        assert_eq!(counts(|_| {}), (0, 0));
        assert_eq!(counts(|s| s.funny = 1), (1, 0));
        assert_eq!(counts(|s| s.stuck = 2), (1, 0));
        assert_eq!(counts(|s| s.dangling = 3), (1, 0));
        assert_eq!(counts(|s| s.miscounted = 4), (1, 0));
        assert_eq!(counts(|s| s.members_max = 1 << 20), (1, 0));
        assert_eq!(counts(|s| s.sets_shared = 1), (1, 0));
        assert_eq!(counts(|s| s.state = VMTRACE_STATE_FAILED), (1, 0));
        assert_eq!(counts(|s| s.error = -28), (1, 0));
        assert_eq!(counts(|s| s.uncovered = 1), (0, 1));
        assert_eq!(counts(|s| s.unaudited = 1), (0, 1));
    }

    /// Each set has N pages, and set 0 is one of them.
    #[test]
    fn all_sets_together_have_so_many_members() {
        let errors = |members: u64, max: u64| {
            let mut builder = TraceBuilder::new(1, 4);
            builder.several_sets();
            builder.program();
            builder.on_status(move |s| {
                s.members_max = members;
                (s.sets_made, s.sets_max) = (max, max);
            });
            let report = check_bytes(&builder.finish());
            report.rule("health").unwrap().errors
        };
        assert_eq!([errors(4, 0), errors(12, 2)], [0, 0]);
        assert_eq!([errors(5, 0), errors(13, 2)], [1, 1]);
        assert_eq!(errors(u64::MAX, u64::MAX), 0);
    }

    /// Whatever the END packet says, and also if the trace has none.
    #[test]
    fn a_funny_pte_of_a_window_is_an_error() {
        let of = |funny: u64, end: bool, only: bool| {
            let mut builder = TraceBuilder::new(2, 4);
            for mm in 1..3 {
                builder.begin_window(8);
                builder.task(0, 10, 10, mm, "program");
                builder.end_window(|w| w.funny = funny * u64::from(mm == 2));
            }
            builder.on_status(move |s| s.funny = funny);
            let mut bytes = builder.finish();
            if !end {
                let last = packets_of(&bytes).last().map_or(0, |packet| packet.1);
                bytes.truncate(last);
            }
            let mut trace = Trace::from_bytes("memory", bytes).expect("a trace");
            if only {
                trace = trace.only_window(1).expect("there");
            }
            let mut checker = Checker::new(CheckOptions::default());
            pipeline::run(
                &trace,
                PageMode::Canonical,
                &mut Unwatched,
                &mut [&mut checker],
            )
            .expect("read");
            checker.report().rule("health").unwrap().errors
        };
        assert_eq!(of(0, true, false), 0);
        // Of the trace, and of the window.
        assert_eq!(of(3, true, false), 2);
        assert_eq!(of(3, false, false), 1);
        assert_eq!(of(3, true, true), 1);
    }

    #[test]
    fn a_negative_control_is_no_good_trace() {
        let mut builder = TraceBuilder::sample();
        builder.header_mut().debug_break = 1;
        assert_eq!(
            check_bytes(&builder.finish())
                .rule("health")
                .unwrap()
                .errors,
            1
        );
    }
}
