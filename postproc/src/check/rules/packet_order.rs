//! `packet-order`: the packets of a stream are numbered from 0 without a gap.

use std::collections::BTreeMap;

use crate::check::{Draft, Findings, Rule};
use crate::trace::{PacketSeen, StreamId, Trace};

#[derive(Default)]
pub(super) struct PacketOrder {
    last: BTreeMap<StreamId, PacketSeen>,
    /// It is a piece: earlier packets of the trace's streams are in earlier pieces.
    is_piece: bool,
}

impl Rule for PacketOrder {
    fn id(&self) -> &'static str {
        "packet-order"
    }

    fn about(&self) -> &'static str {
        "the packets of a stream are numbered without a gap, from 0 unless it is a later piece of a \
         trace, and their records ascend"
    }

    fn begin(&mut self, trace: &Trace, _out: &mut Findings) {
        self.last.clone_from(&trace.index().before);
        // A window of a piece is no piece, and its streams begin where they do in the piece.
        self.is_piece =
            trace.header().is_piece() && trace.piece().is_none_or(|piece| piece.number > 0);
    }

    fn packet(&mut self, packet: &PacketSeen, out: &mut Findings) {
        let head = &packet.head;
        let last = self.last.insert(head.stream, *packet);
        let want = last.map_or(0, |l| l.head.seq.wrapping_add(1));
        let may_begin = self.is_piece && last.is_none() && !head.stream.kind.is_of_piece();
        if head.seq != want && !may_begin {
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
        let last = last.filter(|_| !head.stream.kind.is_of_piece());
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
    use crate::units::Prot;

    /// Each set has streams of its own, which are numbered from 0.
    #[test]
    fn a_packet_that_a_set_misses_is_found() {
        let mut b = TraceBuilder::new(2, 4);
        b.several_sets();
        b.header_mut().buffer_size = 320;
        for mm in 1..4 {
            b.set(0, 10, mm, mm);
            b.task(0, 10, 10, mm, "program");
            b.map_anon(0, 10, mm, 0x1000, 0x9000, Prot(3));
        }
        for i in 0..300u64 {
            let mm = 1 + (i / 9 % 3) as u32;
            b.touch((i & 1) as u32, 10, mm, 0x1000 + i % 8 * 0x1000);
        }
        let bytes = b.finish();
        assert!(check_bytes(&bytes).good);
        let set = std::mem::offset_of!(rust_mm_trace::uapi::vmtrace_packet, __bindgen_anon_1);
        let mut packets = packets_of(&bytes);
        packets.retain(|&(start, _)| bytes[start + set] == 2);
        assert!(packets.len() > 6);
        let (start, end) = packets[2];
        let cut = [&bytes[..start], &bytes[end..]].concat();
        let report = check_bytes(&cut);
        let rule = report.rule("packet-order").unwrap();
        assert_eq!(rule.errors, 1);
        assert!(rule.examples[0].message.contains("/set 2"), "{rule:?}");
    }

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
