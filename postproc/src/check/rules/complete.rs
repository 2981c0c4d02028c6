//! `complete`: the trace has its END packet.

use crate::check::{Draft, Findings, Rule};
use crate::pipeline::Outcome;
use crate::trace::Trace;

pub(super) struct Complete;

impl Rule for Complete {
    fn id(&self) -> &'static str {
        "complete"
    }

    fn about(&self) -> &'static str {
        "the trace ends with the kernel's account (END packet)"
    }

    fn finish(&mut self, trace: &Trace, outcome: &Outcome, out: &mut Findings) {
        if outcome.world.records == 0 {
            out.note(|| Draft::new("no references: the rules about references checked nothing"));
        }
        for path in trace.left_out() {
            out.note(|| {
                Draft::new(format!(
                    "{} is left out: it was made for a piece that did not begin",
                    path.display()
                ))
            });
        }
        if trace.index().end.is_some() {
            return;
        }
        let at = trace.index().stop;
        let good = outcome.world.records + outcome.world.events;
        out.error(|| {
            Draft::new(format!(
                "no END packet up to byte {at}: the trace was cut short; the {good} records before \
                 that byte are whole"
            ))
            .at(at)
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{TraceBuilder, check_bytes};

    #[test]
    fn a_trace_without_end_is_not_complete() {
        let mut bytes = TraceBuilder::sample().finish();
        assert!(check_bytes(&bytes).good);
        bytes.truncate(bytes.len() - 1);
        assert_eq!(check_bytes(&bytes).rule("complete").unwrap().errors, 1);
    }
}
