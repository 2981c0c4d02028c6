//! `permitted`: the mapping allowed the access.

use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Batch, Place};
use crate::trace::wire::event_name;

pub(super) struct Permitted;

impl Rule for Permitted {
    fn id(&self) -> &'static str {
        "permitted"
    }

    fn about(&self) -> &'static str {
        "the mapping allowed each reference: a read needs any right, a write w, a fetch x"
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Findings) {
        for (r, place) in batch.refs.iter().zip(batch.places) {
            let Place::Mapped { prot, .. } = place else {
                continue;
            };
            let access = r.flags().access();
            if prot.allows(access) {
                continue;
            }
            out.error(|| {
                let mapping = batch
                    .world
                    .space
                    .get(r.mm)
                    .and_then(|s| s.find(r.address()));
                let related = mapping.map(|m| {
                    let text = format!(
                        "{} made {:#x}..{:#x} {} {}",
                        event_name(m.changed.number),
                        m.start,
                        m.end,
                        m.prot,
                        batch.world.space.object(m.object).name
                    );
                    Cited::source(&m.changed, text)
                });
                Draft::new(format!(
                    "{} of a page with protection {prot}",
                    access.name()
                ))
                .record(Cited::reference(r, batch.world))
                .related(related)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{TraceBuilder, check_bytes};
    use crate::units::{Access, Prot};

    #[test]
    fn each_kind_needs_its_right() {
        for (prot, access, errors) in [
            (Prot(1), Access::Write, 1),
            (Prot(3), Access::Exec, 1),
            (Prot(0), Access::Read, 1),
            (Prot(4), Access::Read, 0),
            (Prot(3), Access::Write, 0),
        ] {
            let mut builder = TraceBuilder::sample();
            builder.protect(1, 10, 1, 0x1000, 0x2000, prot);
            builder.touch_as(0, 10, 1, 0x1000, access);
            let report = check_bytes(&builder.finish());
            let rule = report.rule("permitted").unwrap();
            assert_eq!(rule.errors, errors, "{prot} {access:?}");
            if errors > 0 {
                let related = rule.examples[0].related.as_ref().unwrap();
                assert!(related.text.starts_with("protect made"), "{related:?}");
            }
        }
    }
}
