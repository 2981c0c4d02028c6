//! `packet-order`: the packets of a stream are numbered from 0 without a gap.

use std::collections::BTreeMap;

use crate::check::{Draft, Findings, Rule};
use crate::trace::{PacketSeen, StreamId, Trace};

#[derive(Default)]
pub(super) struct PacketOrder {
    last: BTreeMap<StreamId, PacketSeen>,
}

impl Rule for PacketOrder {
    fn id(&self) -> &'static str {
        "packet-order"
    }

    fn about(&self) -> &'static str {
        "the packets of a stream are numbered from 0 without a gap, and their records ascend"
    }

    fn begin(&mut self, trace: &Trace, _out: &mut Findings) {
        self.last.clone_from(&trace.index().before);
    }

    fn packet(&mut self, packet: &PacketSeen, out: &mut Findings) {
        let head = &packet.head;
        let last = self.last.insert(head.stream, *packet);
        let want = last.map_or(0, |l| l.head.seq.wrapping_add(1));
        if head.seq != want {
            out.error(|| {
                Draft::new(format!(
                    "stream {}: packet {} stands where packet {want} should stand",
                    head.stream, head.seq
                ))
                .at(packet.offset)
            });
        }
        if head.records != 0 && head.first_seq > head.last_seq {
            out.error(|| {
                Draft::new(format!(
                    "stream {}: packet {} begins with sequence number {} and ends with the lower {}",
                    head.stream, head.seq, head.first_seq, head.last_seq
                ))
                .at(packet.offset)
            });
        }
        if let Some(last) = last.filter(|l| l.head.last_seq >= head.first_seq) {
            out.error(|| {
                Draft::new(format!(
                    "stream {}: packet {} begins with sequence number {}, although the packet before \
                     it, at byte {}, ended with {}",
                    head.stream, head.seq, head.first_seq, last.offset, last.head.last_seq
                ))
                .at(packet.offset)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{TraceBuilder, check_bytes, packets_of};

    #[test]
    fn a_packet_that_is_missing_leaves_a_gap() {
        let bytes = TraceBuilder::sample_of_many_packets().finish();
        let packets = packets_of(&bytes);
        // Any packet but the last of its stream will do.
        let (start, end) = packets[0];
        let mut cut = bytes[..start].to_vec();
        cut.extend_from_slice(&bytes[end..]);
        assert!(check_bytes(&bytes).good);
        assert_eq!(check_bytes(&cut).rule("packet-order").unwrap().errors, 1);
    }
}
