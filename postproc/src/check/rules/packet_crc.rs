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
            (page, why(uapi::VMTRACE_WHY_PIECE)),
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

    /// The findings of a trace of some CPUs, of which the times in the head of a packet of
    /// references, and those of its records, are changed.
    fn retimed(cpus: u32, base: i64, records: i64, last: i64) -> Vec<String> {
        type P = uapi::vmtrace_packet;
        type R = uapi::vmtrace_ref;
        let mut b = TraceBuilder::new(cpus, 4);
        b.program();
        b.leap(1 << 30);
        for i in 0..6 {
            b.read_early(u64::from(i % 2 == 1) * 150);
            b.touch(0, 10, 1, 0x1000 + i * 0x1000);
            b.touch(cpus - 1, 10, 1, 0x9000 + i * 0x1000);
        }
        let mut bytes = b.finish();
        let kind = offset_of!(P, kind);
        let is_refs = |p: &(usize, usize)| LE::read_u32(&bytes[p.0 + kind..]) == 1;
        let (start, end) = packets_of(&bytes).into_iter().find(is_refs).unwrap();
        for (at, by) in [
            (offset_of!(P, first_time), base),
            (offset_of!(P, last_time), last),
        ] {
            let field = &mut bytes[start + at..];
            let old = LE::read_u64(field);
            LE::write_u64(field, old.wrapping_add_signed(by));
        }
        for record in bytes[start + HEAD_SIZE..end].chunks_exact_mut(size_of::<R>()) {
            let field = &mut record[offset_of!(R, time)..];
            let old = LE::read_u32(field);
            LE::write_u32(field, old.wrapping_add_signed(records as i32));
        }
        mend_checksums(&mut bytes);
        let report = check_bytes(&bytes);
        messages(&report).iter().map(|&m| m.into()).collect()
    }

    #[test]
    fn the_times_in_a_head_bound_those_of_its_records() {
        let good = [""; 0];
        let (first, latest) = ("the first record's time", "the latest record's time");
        for cpus in [1, 2] {
            assert_eq!(retimed(cpus, 0, 0, 0), good);
            for by in [-1, 1] {
                let found = retimed(cpus, 0, 0, by);
                assert!(found.len() == 1 && found[0].contains(latest), "{found:?}");
            }
            // The base of times is earlier, and no record is.
            let found = retimed(cpus, -1, 1, 0);
            assert!(found.len() == 1 && found[0].contains(first), "{found:?}");
        }
        // The base may be closer to the records, up to the first one.
        assert_eq!(retimed(2, 1, -1, 0), good);
        assert_eq!(retimed(2, 200_000_000, -200_000_000, 0), good);
    }
}
