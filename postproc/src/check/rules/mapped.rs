//! `mapped`: every reference lies in a mapping that exists, and is to a whole page of it.

use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Batch, Place};
use crate::trace::Ref;
use crate::trace::wire::event_name;

pub(super) struct Mapped;

/// The event that best explains why nothing is mapped at a reference.
fn nearest(r: &Ref, batch: &Batch<'_>) -> Option<Cited> {
    let space = batch.world.space.get(r.mm)?;
    let address = r.address();
    if let Some(removed) = space.last_removal(address) {
        let text = format!(
            "{} removed {:#x}..{:#x}",
            event_name(removed.by.number),
            removed.start,
            removed.end
        );
        return Some(Cited::source(&removed.by, text));
    }
    let (below, above) = space.neighbours(address);
    let distance = |m: &crate::space::Mapping| {
        if m.start > address {
            m.start - address
        } else {
            address.saturating_sub(m.end)
        }
    };
    let mapping = below.into_iter().chain(above).min_by_key(distance)?;
    let text = format!(
        "nearest mapping {:#x}..{:#x} {} {}",
        mapping.start,
        mapping.end,
        mapping.prot,
        batch.world.space.object(mapping.object).name
    );
    Some(Cited::source(&mapping.changed, text))
}

impl Mapped {
    /// A huge page has one name, the address of its first byte.
    fn huge(&self, batch: &Batch<'_>, out: &mut Findings) {
        for (r, place) in batch.refs.iter().zip(batch.places) {
            let Place::Mapped { object, .. } = *place else {
                continue;
            };
            let object = batch.world.space.object(object);
            if object.huge.is_some_and(|size| r.address() % size != 0) {
                out.error(|| {
                    Draft::new(format!("{:#x} lies within a huge page", r.address()))
                        .record(Cited::reference(r, batch.world))
                });
            }
        }
    }
}

impl Rule for Mapped {
    fn id(&self) -> &'static str {
        "mapped"
    }

    fn about(&self) -> &'static str {
        "every reference lies in a mapping that exists at that moment"
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Findings) {
        if !batch.world.space.huge_pages().is_empty() {
            self.huge(batch, out);
        }
        for (r, place) in batch.refs.iter().zip(batch.places) {
            if *place == Place::Unmapped {
                out.error(|| {
                    Draft::new(format!("nothing is mapped at {:#x}", r.address()))
                        .record(Cited::reference(r, batch.world))
                        .related(nearest(r, batch))
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rust_mm_trace::uapi;

    use crate::testing::{TraceBuilder, check_bytes};
    use crate::units::Prot;

    #[test]
    fn a_reference_after_unmap_is_found_with_the_unmap() {
        let mut builder = TraceBuilder::sample();
        builder.unmap(0, 10, 1, 0x1000, 0x2000);
        builder.touch(1, 10, 1, 0x1000);
        builder.touch(1, 10, 1, 0x2000);
        let report = check_bytes(&builder.finish());
        let rule = report.rule("mapped").unwrap();
        assert_eq!(rule.errors, 1);
        let related = rule.examples[0].related.as_ref().unwrap();
        assert!(
            related.text.contains("unmap removed 0x1000..0x2000"),
            "{related:?}"
        );
    }

    /// The findings of this rule, and whether the trace is readable, with references to a
    /// mapping of huge pages of a size.
    fn of_huge(shift: u32, addresses: &[u64]) -> (u64, bool) {
        let mut builder = TraceBuilder::sample();
        let file = crate::trace::FileId {
            ino: 7,
            ..Default::default()
        };
        builder.map(
            0,
            10,
            1,
            0x20_0000..0x80_0000,
            Prot(Prot::READ | Prot::WRITE),
            uapi::VMTRACE_MAP_HUGETLB,
            uapi::VMTRACE_MAP_SHARED | shift << uapi::VMTRACE_MAP_PAGE_SHIFT,
            file,
            0,
            "memfd:huge",
        );
        for &address in addresses {
            builder.touch(1, 10, 1, address);
        }
        let report = check_bytes(&builder.finish());
        (report.rule("mapped").unwrap().errors, report.good)
    }

    #[test]
    fn a_huge_page_has_the_name_of_its_first_byte() {
        assert_eq!(of_huge(21, &[0x20_0000, 0x60_0000]), (0, true));
        assert_eq!(of_huge(21, &[0x20_1000, 0x60_0000]), (1, false));
        // Pages that are not huge.
        assert_eq!(of_huge(0, &[0x20_1000, 0x60_0000]), (0, true));
        // Of a size that no page has: the packet is damaged.
        assert!(!of_huge(12, &[0x20_0000]).1);
        assert!(!of_huge(63, &[0x20_0000]).1);
    }

    #[test]
    fn a_reference_where_nothing_ever_was_cites_the_neighbour() {
        let mut builder = TraceBuilder::sample();
        builder.touch(1, 10, 1, 0x7000_0000);
        let report = check_bytes(&builder.finish());
        let related = report.rule("mapped").unwrap().examples[0]
            .related
            .clone()
            .unwrap();
        assert!(related.text.contains("nearest mapping"), "{related:?}");
    }
}
