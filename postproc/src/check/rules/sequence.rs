//! `sequence`: every sequence number occurs once, except those of aborted and lost records, and of those
//! that a filter has left out.

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
        "sequence numbers ascend over all streams, and only aborted and lost ones are missing, and \
         those that a filter has left out"
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
        // A window of the part of a process does not say how many records of it are in other parts.
        if trace.part().is_some() && trace.window().is_some() {
            return;
        }
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
        // What a part lacks is in the other parts.
        let elsewhere = trace.part().map_or(0, |part| part.left_out);
        let accounted = [s.lost(), s.left_out, elsewhere]
            .into_iter()
            .fold(s.aborted, u64::saturating_add);
        // How many of a window's losses are references that the filter has kept is not known.
        let is_of_window = trace.window().is_some() && trace.header().is_filtered();
        let most = match is_of_window {
            true => accounted
                .saturating_add(s.lost_full)
                .saturating_add(s.lost_io),
            false => accounted,
        };
        if !(accounted..=most).contains(&missing) {
            out.error(|| {
                let left_out = match (trace.part(), trace.header().is_filtered()) {
                    (Some(part), _) => {
                        format!(", and {} that the part does not have,", part.left_out)
                    }
                    (None, true) => format!(", and {} that a filter has left out,", s.left_out),
                    (None, false) => String::new(),
                };
                Draft::new(format!(
                    "{missing} of {given} sequence numbers are missing, although {} aborted and {} \
                     lost ones{left_out} explain only {accounted}",
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

    /// The errors of this rule and of `conservation` if so many more records are said to be left out.
    fn left_out(change: fn(&mut rust_mm_trace::uapi::vmtrace_status)) -> (u64, u64) {
        let mut builder = TraceBuilder::sample_of_filtered();
        builder.on_status(change);
        let report = check_bytes(&builder.finish());
        let errors = |id| report.rule(id).unwrap().errors;
        (errors("sequence"), errors("conservation"))
    }

    #[test]
    fn what_a_filter_left_out_is_no_gap() {
        assert_eq!(left_out(|_| {}), (0, 0));
        assert_eq!(left_out(|s| s.left_out += 1), (1, 1));
        assert_eq!(left_out(|s| s.left_out -= 1), (1, 1));
        assert_eq!(left_out(|s| s.left_out = 0), (1, 1));
        // An admission of which nobody knows what has become of it.
        assert_eq!(left_out(|s| s.admissions += 1), (0, 1));
        let mut builder = TraceBuilder::sample_of_filtered();
        builder.skip_sequence_number();
        builder.touch(0, 10, 1, 0x1000);
        let report = check_bytes(&builder.finish());
        assert_eq!(report.rule("sequence").unwrap().errors, 1);
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
