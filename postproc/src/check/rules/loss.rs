//! `loss`: no record was lost.

use std::collections::BTreeMap;

use crate::check::{Draft, Findings, Rule, Severity};
use crate::pipeline::Outcome;
use crate::trace::{PacketSeen, StreamId, Trace};

#[derive(Default)]
pub(super) struct Loss {
    last: BTreeMap<StreamId, PacketSeen>,
    /// It is a piece: what was lost before its first packets may be in earlier pieces. Its end
    /// says what is lost in it.
    is_piece: bool,
}

fn severity(out: &Findings) -> Severity {
    if out.options().allow_loss {
        Severity::Warning
    } else {
        Severity::Error
    }
}

impl Rule for Loss {
    fn id(&self) -> &'static str {
        "loss"
    }

    fn about(&self) -> &'static str {
        "no record was lost; --allow-loss waives this"
    }

    fn begin(&mut self, trace: &Trace, _out: &mut Findings) {
        self.last.clone_from(&trace.index().before);
        // A window of a piece is no piece, and its streams begin where they do in the piece.
        self.is_piece =
            trace.header().is_piece() && trace.piece().is_none_or(|piece| piece.number > 0);
    }

    fn packet(&mut self, packet: &PacketSeen, out: &mut Findings) {
        let head = packet.head;
        let first = if self.is_piece { head.lost() } else { 0 };
        let before = self
            .last
            .insert(head.stream, *packet)
            .map_or(first, |last| last.head.lost());
        if head.lost() > before {
            out.add(severity(out), || {
                Draft::new(format!(
                    "stream {}: {} records lost before the end of packet {} (so far: {} because the \
                     buffers were full, {} where the kernel could not wait, {} because the output \
                     failed)",
                    head.stream,
                    head.lost() - before,
                    head.seq,
                    head.lost_full,
                    head.lost_atomic,
                    head.lost_io
                ))
                .at(packet.offset)
            });
        }
    }

    fn finish(&mut self, trace: &Trace, _outcome: &Outcome, out: &mut Findings) {
        if let Some(end) = trace.index().end.as_ref().filter(|e| e.status.lost() > 0) {
            let s = &end.status;
            out.add(severity(out), || {
                Draft::new(format!(
                    "{} records lost: {} because the buffers were full, {} where the kernel could \
                     not wait, {} because the output failed",
                    s.lost(),
                    s.lost_full,
                    s.lost_atomic,
                    s.lost_io
                ))
                .at(end.offset)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::CheckOptions;
    use crate::testing::{TraceBuilder, check_bytes, check_bytes_with};

    #[test]
    fn loss_makes_a_trace_bad_unless_allowed() {
        let mut builder = TraceBuilder::sample();
        builder.lose_reference(0);
        let bytes = builder.finish();
        let report = check_bytes(&bytes);
        assert!(!report.good);
        assert!(report.rule("loss").unwrap().errors > 0);
        let waived = check_bytes_with(
            &bytes,
            CheckOptions {
                allow_loss: true,
                examples: 3,
            },
        );
        assert!(waived.good, "{waived:#?}");
        assert!(waived.rule("loss").unwrap().warnings > 0);
    }
}
