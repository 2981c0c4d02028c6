//! `lifecycle`: references are made by known tasks, to address spaces that exist.

use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Batch, Place};

pub(super) struct Lifecycle;

impl Rule for Lifecycle {
    fn id(&self) -> &'static str {
        "lifecycle"
    }

    fn about(&self) -> &'static str {
        "every reference is to an address space that was created and has not ended"
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Findings) {
        for (r, place) in batch.refs.iter().zip(batch.places) {
            let what = match place {
                Place::UnknownMm => "which no event created",
                Place::EndedMm => "which has ended",
                Place::Mapped { .. } | Place::Unmapped => {
                    if batch.world.tasks.find(r.tid()).is_none() {
                        out.note(|| {
                            Draft::new(format!("no event mentions thread {}", r.tid().0))
                                .record(Cited::reference(r, batch.world))
                        });
                    }
                    continue;
                }
            };
            out.error(|| {
                Draft::new(format!("a reference to address space {}, {what}", r.mm.0))
                    .record(Cited::reference(r, batch.world))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{TraceBuilder, check_bytes};

    #[test]
    fn unknown_and_ended_address_spaces_are_found() {
        let mut builder = TraceBuilder::sample();
        builder.touch(0, 10, 99, 0x1000);
        builder.mm_end(0, 10, 1);
        builder.touch(0, 10, 1, 0x1000);
        assert_eq!(
            check_bytes(&builder.finish())
                .rule("lifecycle")
                .unwrap()
                .errors,
            2
        );
    }

    #[test]
    fn an_unknown_thread_is_but_a_note() {
        let mut builder = TraceBuilder::sample();
        builder.touch(0, 4321, 1, 0x1000);
        let report = check_bytes(&builder.finish());
        assert!(report.good);
        assert_eq!(report.rule("lifecycle").unwrap().notes, 1);
    }
}
