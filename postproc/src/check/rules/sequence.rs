//! `sequence`: every sequence number occurs once, except those of aborted and lost records.

use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Batch, Outcome, World};
use crate::space::Issue;
use crate::trace::{Event, Trace};

#[derive(Default)]
pub(super) struct Sequence {
    last: u64,
    seen: u64,
}

impl Sequence {
    /// Takes the next number; false if it does not ascend.
    fn next(&mut self, seq: u64) -> bool {
        if seq <= self.last {
            return false;
        }
        self.last = seq;
        self.seen += 1;
        true
    }
}

impl Rule for Sequence {
    fn id(&self) -> &'static str {
        "sequence"
    }

    fn about(&self) -> &'static str {
        "sequence numbers ascend over all streams, and only aborted and lost ones are missing"
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Findings) {
        for r in batch.refs {
            let last = self.last;
            if !self.next(r.seq) {
                out.error(|| {
                    Draft::new(format!("sequence number {} follows {last}", r.seq))
                        .record(Cited::reference(r, batch.world))
                });
            }
        }
    }

    fn event(&mut self, e: &Event<'_>, _world: &World, _issues: &[Issue], out: &mut Findings) {
        let last = self.last;
        // The description of a piece has no numbers of its own.
        if !e.is_state() && !self.next(e.seq) {
            out.error(|| {
                Draft::new(format!("sequence number {} follows {last}", e.seq))
                    .record(Cited::event(e))
            });
        }
    }

    fn finish(&mut self, trace: &Trace, _outcome: &Outcome, out: &mut Findings) {
        let Some(end) = &trace.index().end else {
            return;
        };
        let s = &end.status;
        if self.last > s.last_seq {
            out.error(|| {
                Draft::new(format!(
                    "sequence number {} is in the trace, although the kernel's last one was {}",
                    self.last, s.last_seq
                ))
                .at(end.offset)
            });
            return;
        }
        let given = s.last_seq.saturating_sub(trace.index().first_seq);
        let missing = given - self.seen.min(given);
        let accounted = s.aborted.saturating_add(s.lost());
        if missing != accounted {
            out.error(|| {
                Draft::new(format!(
                    "{missing} of {given} sequence numbers are missing, although {} aborted and {} \
                     lost ones explain only {accounted}",
                    s.aborted,
                    s.lost()
                ))
                .at(end.offset)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{TraceBuilder, check_bytes};

    #[test]
    fn a_number_used_twice_is_found() {
        let mut builder = TraceBuilder::sample();
        builder.repeat_sequence_number();
        builder.touch(1, 10, 1, 0x1000);
        assert!(
            check_bytes(&builder.finish())
                .rule("sequence")
                .unwrap()
                .errors
                >= 1
        );
    }

    #[test]
    fn an_unexplained_gap_is_found() {
        let mut builder = TraceBuilder::sample();
        builder.skip_sequence_number();
        builder.touch(0, 10, 1, 0x1000);
        assert_eq!(
            check_bytes(&builder.finish())
                .rule("sequence")
                .unwrap()
                .errors,
            1
        );
    }

    #[test]
    fn an_aborted_admission_is_no_gap() {
        let mut builder = TraceBuilder::sample();
        builder.abort();
        builder.touch(0, 10, 1, 0x1000);
        let report = check_bytes(&builder.finish());
        assert!(report.good, "{report:#?}");
    }
}
