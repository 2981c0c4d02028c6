//! Virtual time in place of real time.
//!
//! A task's virtual time stands still while other tasks run, and in the kernel. So it is
//! the program's own time, whatever the cost of tracing. Here all tasks together have one
//! clock: the sum of the times that each has spent since its first record. For a single
//! thread, this is Denning's process time.

use std::collections::HashMap;

use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, World};
use crate::space::Issue;
use crate::trace::wire::MOST;
use crate::trace::{Body, Damage, Event, Header, Merge, PacketSeen, Ref, Step, StreamKind, Trace};
use crate::units::{Access, CanonPage, Tid};

/// The clock of all tasks together.
#[derive(Default)]
struct Clock {
    last: HashMap<Tid, u64>,
    ticks: u64,
}

impl Clock {
    /// A task's own clock is at `ticks`. Time that decreases is ignored.
    fn advance(&mut self, tid: Tid, ticks: u64) {
        let last = self.last.insert(tid, ticks).unwrap_or(ticks);
        self.ticks = self.ticks.saturating_add(ticks.saturating_sub(last));
    }

    fn reference(&mut self, r: &Ref) {
        // A second chance has the time of its stay's first admission.
        if r.flags().access() != Access::Seen && !r.flags().continues() {
            self.advance(r.tid(), r.vtime);
        }
    }

    fn event(&mut self, e: &Event<'_>) {
        match e.body {
            Body::Fork { child_tid, .. } => {
                self.last.insert(child_tid, 0);
            }
            // The trace does not contain the time between two windows.
            Body::SnapBegin => self.last.clear(),
            _ => {}
        }
        if let Some(ticks) = e.vtime {
            self.advance(e.tid, ticks);
        }
    }

    /// How long this clock has run.
    fn length_ns(&self, header: &Header) -> u64 {
        header.vtime_ns(self.ticks).min(MOST)
    }

    /// The time on the trace's clock, as if it had run only while this clock ran.
    fn ns(&self, header: &Header) -> u64 {
        (header.start_time_ns + self.length_ns(header)).min(MOST)
    }
}

/// The length of a trace in virtual time, as far as its events show it: up to the ends of all
/// tasks that have ended.
///
/// # Errors
///
/// Reading the trace failed.
pub fn length_ns(trace: &Trace) -> Result<u64> {
    let mut merge = Merge::of_kinds(trace, &[StreamKind::Event]);
    let mut clock = Clock::default();
    loop {
        match merge.fill(&mut Vec::new(), 1)? {
            Step::Event(event) => clock.event(&event),
            Step::Full => {}
            Step::End => break,
        }
    }
    Ok(clock.length_ns(trace.header()))
}

/// Passes on a pass with each record's virtual time as its time.
pub struct InVirtualTime<'c> {
    inner: &'c mut dyn Consumer,
    clock: Clock,
    refs: Vec<Ref>,
}

impl<'c> InVirtualTime<'c> {
    /// Passes to `inner`; the trace must have virtual time.
    pub fn new(inner: &'c mut dyn Consumer) -> Self {
        InVirtualTime {
            inner,
            clock: Clock::default(),
            refs: Vec::new(),
        }
    }
}

impl Consumer for InVirtualTime<'_> {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        self.inner.begin(trace)
    }

    fn packet(&mut self, packet: &PacketSeen) -> Result<()> {
        self.inner.packet(packet)
    }

    fn wants_continuations(&self) -> bool {
        self.inner.wants_continuations()
    }

    fn wants_raw_times(&self) -> bool {
        self.inner.wants_raw_times()
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.refs.clear();
        for r in batch.refs {
            self.clock.reference(r);
            self.refs.push(Ref {
                time_ns: self.clock.ns(&batch.world.header),
                ..*r
            });
        }
        self.inner.references(&Batch {
            refs: &self.refs,
            ..*batch
        })
    }

    fn event(&mut self, event: &Event<'_>, world: &World, issues: &[Issue]) -> Result<()> {
        self.clock.event(event);
        let event = Event {
            time_ns: self.clock.ns(&world.header),
            ..*event
        };
        self.inner.event(&event, world, issues)
    }

    fn follows_freed(&self) -> bool {
        self.inner.follows_freed()
    }

    fn freed(&mut self, pages: &[CanonPage], world: &World) -> Result<()> {
        self.inner.freed(pages, world)
    }

    fn damage(&mut self, damage: &Damage) -> Result<()> {
        self.inner.damage(damage)
    }

    fn finish(&mut self, trace: &Trace, outcome: &Outcome) -> Result<()> {
        self.inner.finish(trace, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canon::PageMode;
    use crate::pipeline::{self, Unwatched};
    use crate::testing::TraceBuilder;
    use crate::units::Prot;

    /// What each record's time was.
    #[derive(Default)]
    struct Times {
        refs: Vec<(u32, u64)>,
        last_event: u64,
    }

    impl Consumer for Times {
        fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
            self.refs
                .extend(batch.refs.iter().map(|r| (r.tid().0, r.time_ns)));
            Ok(())
        }

        fn event(&mut self, event: &Event<'_>, _world: &World, _issues: &[Issue]) -> Result<()> {
            self.last_event = event.time_ns;
            Ok(())
        }
    }

    #[test]
    fn times_of_tasks_are_added_up() {
        let mut builder = TraceBuilder::new(2, 4);
        // Two ticks are a microsecond.
        builder.virtual_time(2_000);
        builder.program();
        let mut first = 0;
        // Each touch takes its task ten ticks, or as much more as is said.
        for (i, (tid, more)) in [(10, 0), (10, 90), (11, 0), (11, 30), (10, 0)]
            .into_iter()
            .enumerate()
        {
            if tid == 10 {
                first += more;
                builder.set_vtime(10, 1_000 + first);
                first += 10;
            } else if more > 0 {
                builder.set_vtime(11, 10 + more);
            }
            builder.touch(0, tid, 1, 0x1000 + i as u64 * 0x1000);
        }
        let trace = Trace::from_bytes("memory", builder.finish()).expect("a trace");
        let start = trace.header().start_time_ns;
        let mut times = Times::default();
        let mut virtually = InVirtualTime::new(&mut times);
        pipeline::run(
            &trace,
            PageMode::Canonical,
            &mut Unwatched,
            &mut [&mut virtually],
        )
        .expect("no consumer fails");
        let base = times.refs[0].1;
        let since: Vec<_> = times.refs.iter().map(|(tid, t)| (*tid, t - base)).collect();
        // In ticks: 100 of the first, 40 of the second, 10 of the first.
        let wanted = [
            (10, 0),
            (10, 50_000),
            (11, 50_000),
            (11, 70_000),
            (10, 75_000),
        ];
        assert_eq!(since, wanted);
        assert!(times.last_event >= start && base >= start);
        assert!(length_ns(&trace).is_ok_and(|length| length <= base - start));
    }

    /// A trace may claim any time, and those who count by time rely on a greatest one.
    #[test]
    fn no_time_is_larger_than_all_times() {
        let mut builder = TraceBuilder::new(1, 4);
        builder.virtual_time(1);
        builder.program();
        builder.touch(0, 10, 1, 0x1000);
        builder.set_vtime(10, u64::MAX - 100);
        builder.touch(0, 10, 1, 0x2000);
        builder.protect(0, 10, 1, 0x8000, 0x9000, Prot(3));
        let trace = Trace::from_bytes("memory", builder.finish()).expect("a trace");
        let mut times = Times::default();
        let mut virtually = InVirtualTime::new(&mut times);
        let mode = PageMode::Canonical;
        pipeline::run(&trace, mode, &mut Unwatched, &mut [&mut virtually])
            .expect("no consumer fails");
        assert_eq!(times.refs.last(), Some(&(10, MOST)));
        assert_eq!(times.last_event, MOST);
        assert_eq!(length_ns(&trace).ok(), Some(MOST));
    }
}
