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
    use crate::testing::{TraceBuilder, check_bytes};
    use crate::trace::wire::{HEAD_SIZE, HEADER_SIZE};

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
}
