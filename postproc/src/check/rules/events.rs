//! `events`: every event fits the state that the events before it produced.

use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::World;
use crate::space::Issue;
use crate::trace::Event;
use crate::trace::wire::event_name;

pub(super) struct Events;

impl Rule for Events {
    fn id(&self) -> &'static str {
        "events"
    }

    fn about(&self) -> &'static str {
        "events about mappings fit the mappings that exist: none is mapped over another, and only \
         existing ones are changed"
    }

    fn event(&mut self, e: &Event<'_>, _world: &World, issues: &[Issue], out: &mut Findings) {
        for issue in issues {
            out.error(|| {
                let related = issue.with.map(|s| {
                    Cited::source(&s, format!("{} caused that state", event_name(s.number)))
                });
                Draft::new(issue.what.clone())
                    .record(Cited::event(e))
                    .related(related)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{TraceBuilder, check_bytes};
    use crate::units::Prot;

    #[test]
    fn mapping_over_a_live_mapping_is_found_with_both_records() {
        let mut builder = TraceBuilder::sample();
        builder.map_anon(0, 10, 1, 0x1000, 0x3000, Prot(3));
        let report = check_bytes(&builder.finish());
        let rule = report.rule("events").unwrap();
        assert_eq!(rule.errors, 1);
        assert!(rule.examples[0].record.is_some() && rule.examples[0].related.is_some());
    }

    #[test]
    fn changing_nothing_is_found() {
        let mut builder = TraceBuilder::sample();
        builder.protect(0, 10, 1, 0x5000_0000, 0x5000_1000, Prot(1));
        builder.unmap(0, 10, 77, 0x1000, 0x2000);
        assert_eq!(
            check_bytes(&builder.finish())
                .rule("events")
                .unwrap()
                .errors,
            2
        );
    }
}
