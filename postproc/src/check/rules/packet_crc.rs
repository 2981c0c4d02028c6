//! `packet-crc`: every byte up to the END packet belongs to a packet whose
//! checksum is right and whose content is possible.

use crate::check::{Draft, Findings, Rule};
use crate::trace::Damage;

pub(super) struct PacketCrc;

impl Rule for PacketCrc {
    fn id(&self) -> &'static str {
        "packet-crc"
    }

    fn about(&self) -> &'static str {
        "every packet is whole: checksum, length, content"
    }

    fn damage(&mut self, damage: &Damage, out: &mut Findings) {
        out.error(|| Draft::new(damage.to_string()).at(damage.start));
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use byteorder::{ByteOrder, LittleEndian as LE};
    use rust_mm_trace::uapi;

    use crate::check::CheckReport;
    use crate::testing::{TraceBuilder, check_bytes, mend_checksums, packets_of};
    use crate::trace::wire::{HEAD_SIZE, HEADER_SIZE};

    /// The findings of a check of a sample, of which a packet of this kind was changed.
    fn changed(kind: u32, change: impl FnOnce(&mut [u8])) -> CheckReport {
        let mut bytes = TraceBuilder::sample().finish();
        let at = offset_of!(uapi::vmtrace_packet, kind);
        let of_kind = |packet: &(usize, usize)| LE::read_u32(&bytes[packet.0 + at..]) == kind;
        let (start, end) = packets_of(&bytes).into_iter().find(of_kind).unwrap();
        change(&mut bytes[start..end]);
        mend_checksums(&mut bytes);
        check_bytes(&bytes)
    }

    fn messages(report: &CheckReport) -> Vec<&str> {
        let rule = report.rule("packet-crc").unwrap();
        rule.examples.iter().map(|f| &f.message[..]).collect()
    }

    #[test]
    fn a_flipped_bit_is_found_where_it_is() {
        let mut bytes = TraceBuilder::sample().finish();
        bytes[HEADER_SIZE + HEAD_SIZE + 5] ^= 4;
        let report = check_bytes(&bytes);
        let rule = report.rule("packet-crc").unwrap();
        assert_eq!(rule.errors, 1);
        assert_eq!(rule.examples[0].offset, Some(HEADER_SIZE as u64));
        assert!(
            rule.examples[0].message.contains("sequence number"),
            "{:?}",
            rule.examples
        );
    }

    #[test]
    fn a_packet_has_as_many_events_as_its_head_claims() {
        for (add, what) in [
            (1, "fewer events than the packet's head claims"),
            (u32::MAX, "more events than the packet's head claims"),
        ] {
            let report = changed(uapi::VMTRACE_STREAM_EVENT, |packet| {
                let records = &mut packet[offset_of!(uapi::vmtrace_packet, records)..];
                let old = LE::read_u32(records);
                LE::write_u32(records, old.wrapping_add(add));
            });
            let found = messages(&report);
            assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
            // All of them were read.
            assert_eq!(report.errors(), 1, "{report:#?}");
        }
        // Of a head that claims none, too.
        let report = changed(uapi::VMTRACE_STREAM_EVENT, |packet| {
            LE::write_u32(&mut packet[offset_of!(uapi::vmtrace_packet, records)..], 0);
        });
        assert_eq!(report.errors(), 1, "{report:#?}");
    }

    #[test]
    fn a_reference_with_impossible_values_is_found() {
        type R = uapi::vmtrace_ref;
        let (page, cpu) = (offset_of!(R, page), offset_of!(R, tid_cpu));
        let why = |why: u32| why << uapi::VMTRACE_REF_WHY_SHIFT;
        // The sample has CPUs 0 and 1.
        let changes = [
            (cpu, 2 << uapi::VMTRACE_TID_BITS, "on a CPU"),
            (cpu, 1023 << uapi::VMTRACE_TID_BITS, "on a CPU"),
            (page, why(14), "for a reason"),
            (page, why(15), "for a reason"),
            (page, 0x400, "with flags"),
            (page, 0x800, "with flags"),
        ];
        for (at, bits, what) in changes {
            let report = changed(uapi::VMTRACE_STREAM_REF, |packet| {
                let field = &mut packet[HEAD_SIZE + at..];
                let old = LE::read_u32(field);
                LE::write_u32(field, old | bits);
            });
            let found = messages(&report);
            assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
        }
        // What exists, whatever other rules say about it.
        let exists = [
            (cpu, 1 << uapi::VMTRACE_TID_BITS),
            (page, why(uapi::VMTRACE_WHY_CHANCE)),
            (page, uapi::VMTRACE_REF_CONT),
        ];
        for (at, bits) in exists {
            let report = changed(uapi::VMTRACE_STREAM_REF, |packet| {
                let field = &mut packet[HEAD_SIZE + at..];
                let old = LE::read_u32(field);
                LE::write_u32(field, old | bits);
            });
            assert_eq!(messages(&report), [""; 0]);
        }
    }
}
