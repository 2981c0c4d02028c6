//! `conservation`: the file contains as many records as the kernel counted.

use crate::check::{Draft, Findings, Rule};
use crate::pipeline::Outcome;
use crate::trace::Trace;

pub(super) struct Conservation;

impl Rule for Conservation {
    fn id(&self) -> &'static str {
        "conservation"
    }

    fn about(&self) -> &'static str {
        "records, events and packets are as many as the kernel counted; admissions, renewals and \
         second chances are all recorded, or counted as lost or left out"
    }

    fn finish(&mut self, trace: &Trace, outcome: &Outcome, out: &mut Findings) {
        let Some(end) = &trace.index().end else {
            return;
        };
        let status = &end.status;
        let piece = trace.piece().and_then(|piece| piece.end);
        if let Some(more @ 1..) = piece.map(|piece| piece.unaccounted) {
            out.error(|| {
                Draft::new(format!(
                    "the trace that this is a piece of was not good: {more} packets were missing, \
                     or figures of its account wrong; `postproc check` on the directory with all \
                     pieces says which"
                ))
                .at(end.offset)
            });
        }
        let mut equal = |what: &str, counted: u64, seen: u64| {
            if counted != seen {
                out.error(|| {
                    Draft::new(format!(
                        "the kernel wrote {counted} {what}, but {seen} are in the file"
                    ))
                    .at(end.offset)
                });
            }
        };
        equal("records of references", status.refs, outcome.world.records);
        equal("events", status.events, outcome.world.events);
        let windows = trace.index().windows.len() as u64;
        equal("packets", status.packets, outcome.packets + windows);
        // Losses are counted for references and events together, so with losses there is only
        // an upper bound.
        let lost = status.lost_full.saturating_add(status.lost_io);
        let least = status.refs.saturating_add(status.left_out);
        let most = least.saturating_add(lost);
        let due = [status.renewed, status.chances]
            .into_iter()
            .fold(status.admissions, u64::saturating_add);
        if !(least..=most).contains(&due) {
            out.error(|| {
                Draft::new(format!(
                    "{due} admissions, renewals and second chances do not fit {} records{} and up to \
                     {lost} lost records",
                    status.refs,
                    match trace.header().is_filtered() {
                        true => format!(", {} that a filter has left out,", status.left_out),
                        false => String::new(),
                    }
                ))
                .at(end.offset)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{TraceBuilder, check_bytes};

    fn errors(change: impl FnOnce(&mut rust_mm_trace::uapi::vmtrace_status) + 'static) -> u64 {
        let mut builder = TraceBuilder::sample();
        builder.on_status(change);
        check_bytes(&builder.finish())
            .rule("conservation")
            .unwrap()
            .errors
    }

    #[test]
    fn each_count_must_agree() {
        assert_eq!(errors(|_| {}), 0);
        assert_eq!(errors(|s| s.events += 1), 1);
        assert_eq!(errors(|s| s.packets -= 1), 1);
        assert_eq!(errors(|s| s.admissions += 1), 1);
        assert_eq!(
            errors(|s| {
                s.refs += 1;
                s.admissions += 1;
            }),
            1
        );
    }

    #[test]
    fn admissions_may_be_lost_if_they_are_counted() {
        assert_eq!(
            errors(|s| {
                s.admissions += 2;
                s.lost_full = 3;
            }),
            0
        );
    }
}
