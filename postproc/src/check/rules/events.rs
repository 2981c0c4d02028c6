//! `events`: every event fits the state that the events before it produced.

use rustc_hash::FxHashMap;

use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Batch, World};
use crate::space::{Issue, MmState};
use crate::trace::wire::event_name;
use crate::trace::{Body, Event, Sets, Trace};
use crate::units::Mm;

#[derive(Default)]
pub(super) struct Events {
    sets: Option<Sets>,
    /// By set: the address space or the control group that it is of.
    owners: FxHashMap<u32, u64>,
    /// The address space of the last reference, if that was in its own set.
    last: Option<(Mm, u32)>,
}

impl Events {
    /// What is wrong with the set that an event names.
    fn wrong(&mut self, e: &Event<'_>) -> Option<String> {
        let Body::Set { set, cgroup } = e.body else {
            return None;
        };
        let (owner, whose) = match self.sets? {
            Sets::Process => (u64::from(e.mm.0), "address space"),
            Sets::Cgroup => (cgroup, "control group"),
            Sets::One | Sets::Unknown => {
                return Some(format!(
                    "puts an address space in set {set}, although there is one set for all"
                ));
            }
        };
        if set == 0 {
            return Some("puts an address space in set 0, in which it would be anyway".into());
        }
        let before = *self.owners.entry(set).or_insert(owner);
        (before != owner).then(|| format!("set {set} is that of {whose} {before} already"))
    }
}

impl Rule for Events {
    fn id(&self) -> &'static str {
        "events"
    }

    fn about(&self) -> &'static str {
        "events about mappings fit the mappings that exist: none is mapped over another, and only \
         existing ones are changed; each address space is in one set, and so are its references"
    }

    fn begin(&mut self, trace: &Trace, _out: &mut Findings) {
        self.sets = Some(trace.header().sets);
    }

    fn wants_continuations(&self) -> bool {
        self.sets.is_some_and(Sets::are_several)
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Findings) {
        if !self.wants_continuations() {
            return;
        }
        let space = &batch.world.space;
        for r in batch.refs {
            let this = (r.mm, r.set);
            if self.last == Some(this) {
                continue;
            }
            let own = space.set_of(r.mm);
            // One that has ended is another rule's finding.
            if own == r.set || space.state(r.mm) == MmState::Ended {
                self.last = (own == r.set).then_some(this);
                continue;
            }
            out.error(|| {
                Draft::new(format!(
                    "a reference in set {}, although its address space is in set {own}",
                    r.set
                ))
                .record(Cited::reference(r, batch.world))
            });
        }
    }

    fn event(&mut self, e: &Event<'_>, _world: &World, issues: &[Issue], out: &mut Findings) {
        self.last = None;
        if let Some(wrong) = self.wrong(e) {
            out.error(|| Draft::new(wrong).record(Cited::event(e)));
        }
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

    /// The errors of a trace whose address space 1 is in set 1, after a change.
    fn of_sets(change: impl FnOnce(&mut TraceBuilder)) -> u64 {
        let mut b = TraceBuilder::new(1, 4);
        b.several_sets();
        b.set(0, 10, 1, 1);
        b.program();
        b.touch(0, 10, 1, 0x1000);
        change(&mut b);
        b.touch(0, 10, 1, 0x2000);
        let report = check_bytes(&b.finish());
        report.rule("events").unwrap().errors
    }

    #[test]
    fn references_are_in_the_set_of_their_address_space() {
        assert_eq!(of_sets(|_| {}), 0);
        // One is in set 0, and is told so by nobody.
        let other = |b: &mut TraceBuilder| {
            b.task(0, 20, 20, 2, "other");
            b.map_anon(0, 20, 2, 0x1000, 0x9000, Prot(3));
            b.touch(0, 20, 2, 0x1000);
        };
        assert_eq!(of_sets(other), 0);
        // In the stream of another set, for one reference and for the rest.
        let stray = |b: &mut TraceBuilder| {
            b.set_quietly(1, 2);
            b.touch(0, 10, 1, 0x3000);
            b.set_quietly(1, 1);
        };
        assert_eq!(of_sets(stray), 1);
        assert_eq!(of_sets(|b| b.set_quietly(1, 0)), 1);
    }

    #[test]
    fn an_address_space_is_in_one_set_and_a_set_has_one() {
        // After the mappings, and another set; the same set once more.
        assert_eq!(of_sets(|b| b.set_event(0, 10, 1, 1, 0)), 1);
        assert!(of_sets(|b| b.set_event(0, 10, 1, 2, 0)) >= 1);
        let second = |set: u32| {
            move |b: &mut TraceBuilder| {
                b.set(0, 20, 2, set);
                b.task(0, 20, 20, 2, "other");
            }
        };
        assert_eq!([of_sets(second(2)), of_sets(second(1))], [0, 1]);
        assert_eq!(of_sets(second(0)), 1);
        // Two sets of one address space, none, and one that has ended.
        assert_eq!(
            of_sets(|b| {
                b.set(0, 20, 2, 2);
                b.set(0, 20, 2, 3);
            }),
            1
        );
        assert_eq!(of_sets(|b| b.set_event(0, 20, 0, 2, 0)), 1);
        assert_eq!(
            of_sets(|b| {
                b.task(0, 20, 20, 2, "other");
                b.mm_end(0, 20, 2);
                b.set_event(0, 20, 2, 2, 0);
            }),
            1
        );
        // In a trace of one set.
        let mut b = TraceBuilder::sample();
        b.set_event(0, 20, 2, 2, 0);
        let report = check_bytes(&b.finish());
        assert_eq!(report.rule("events").unwrap().errors, 1);
    }

    #[test]
    fn a_control_groups_set_has_all_its_address_spaces() {
        let of = |second: (u32, u64)| {
            let mut b = TraceBuilder::new(1, 4);
            b.header_mut().sets = rust_mm_trace::uapi::VMTRACE_SETS_CGROUP;
            b.set_with(0, 10, 1, 1, 77);
            b.set_with(0, 20, 2, second.0, second.1);
            b.set_with(0, 30, 3, 1, 77);
            check_bytes(&b.finish()).rule("events").unwrap().errors
        };
        assert_eq!([of((1, 77)), of((2, 78)), of((1, 78))], [0, 0, 1]);
    }
}
