//! `mapped`: every reference lies in a mapping that exists.

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

impl Rule for Mapped {
    fn id(&self) -> &'static str {
        "mapped"
    }

    fn about(&self) -> &'static str {
        "every reference lies in a mapping that exists at that moment"
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Findings) {
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
    use crate::testing::{TraceBuilder, check_bytes};

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
