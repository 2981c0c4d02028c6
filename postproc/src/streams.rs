//! The references of one process, or to one set, or those that a filter keeps, apart from all
//! others.
//!
//! Pages get new numbers, from 1 without a gap, in the order in which they first appear.
//! The identity of pages still depends on all processes: after a fork, a page is the
//! parent's page until one of them copies it.

use rustc_hash::FxHashMap;

use crate::error::Result;
use crate::filter::{Filter, Filtered};
use crate::pipeline::{Batch, Consumer, Outcome, Place, World, is_reference};
use crate::process::ProcessId;
use crate::space::Issue;
use crate::trace::{Damage, Event, PacketSeen, Ref, Trace};
use crate::units::{CanonPage, Tid};

/// A process, or a thread whose process the trace does not say.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Whose {
    /// Of this process.
    Process(ProcessId),
    /// A thread that no event mentions.
    Thread(Tid),
}

impl Whose {
    /// The process that has a thread's references at this moment.
    pub fn of(tid: Tid, world: &World) -> Self {
        match world.tasks.find(tid) {
            Some(process) => Whose::Process(process),
            None => Whose::Thread(tid),
        }
    }

    /// The process id; the thread id if nothing else is known.
    pub fn tgid(self, world: &World) -> Tid {
        match self {
            Whose::Process(id) => world.tasks.process(id).tgid,
            Whose::Thread(tid) => tid,
        }
    }
}

/// New numbers for pages, from 1 without a gap. The number of a freed page is used again if
/// [`Numbers::free`] is called with `again`.
#[derive(Default)]
pub(crate) struct Numbers {
    numbers: FxHashMap<CanonPage, CanonPage>,
    given: u32,
    spare: Vec<CanonPage>,
}

impl Numbers {
    /// The page's number.
    pub fn of(&mut self, page: CanonPage) -> CanonPage {
        *self.numbers.entry(page).or_insert_with(|| {
            self.spare.pop().unwrap_or_else(|| {
                // No page has number 0, and there are fewer than fit.
                self.given += 1;
                CanonPage(self.given)
            })
        })
    }

    /// The number of a page, if it has one.
    pub fn find(&self, page: CanonPage) -> Option<CanonPage> {
        self.numbers.get(&page).copied()
    }

    /// A page was freed; returns its number.
    pub fn free(&mut self, page: CanonPage, again: bool) -> Option<CanonPage> {
        let number = self.numbers.remove(&page)?;
        if again {
            self.spare.push(number);
        }
        Some(number)
    }
}

/// The references of one process in the present batch.
#[derive(Default)]
pub struct Stream {
    numbers: Numbers,
    refs: Vec<Ref>,
    places: Vec<Place>,
    pages: Vec<CanonPage>,
    references: u64,
}

impl Stream {
    /// Adds the reference at `i` of a batch.
    pub fn push(&mut self, batch: &Batch<'_>, i: usize) {
        let r = batch.refs[i];
        let page = self.numbers.of(batch.pages[i]);
        self.references += u64::from(is_reference(&r, &batch.places[i]));
        self.refs.push(r);
        self.places.push(batch.places[i]);
        self.pages.push(page);
    }

    /// Passes the added references on, if there are any, and begins again.
    ///
    /// # Errors
    ///
    /// The errors of `to`.
    pub fn pass_on(
        &mut self,
        world: &World,
        to: impl FnOnce(&Batch<'_>) -> Result<()>,
    ) -> Result<()> {
        if self.refs.is_empty() {
            return Ok(());
        }
        to(&Batch {
            refs: &self.refs,
            places: &self.places,
            pages: &self.pages,
            world,
        })?;
        self.refs.clear();
        self.places.clear();
        self.pages.clear();
        Ok(())
    }

    /// The numbers of these pages, as far as the process has referenced them. With `again`, the
    /// numbers are later used for other pages.
    pub fn freed(&mut self, pages: &[CanonPage], again: bool) -> Vec<CanonPage> {
        let numbers = pages
            .iter()
            .filter_map(|&page| self.numbers.free(page, again));
        numbers.collect()
    }

    /// References so far, without renewals.
    pub fn references(&self) -> u64 {
        self.references
    }
}

/// Which references are meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Selection {
    /// Those of the process with this id. If the id was used again, it stands for all processes
    /// that had it.
    Process(Tid),
    /// Those to the set with this number.
    Set(u32),
}

/// Passes on some of the references only, and everything else of a pass.
pub struct Selected<'c> {
    which: Option<Selection>,
    filter: Option<Filter>,
    inner: &'c mut dyn Consumer,
    stream: Stream,
}

impl<'c> Selected<'c> {
    /// Passes these references to `inner`.
    pub fn new(which: Selection, inner: &'c mut dyn Consumer) -> Self {
        Selected::filtered(Some(which), None, inner)
    }

    /// Passes those of these references to `inner` that the filter keeps. The filter judges and
    /// counts no others.
    pub fn filtered(
        which: Option<Selection>,
        filter: Option<Filter>,
        inner: &'c mut dyn Consumer,
    ) -> Self {
        Selected {
            which,
            filter,
            inner,
            stream: Stream::default(),
        }
    }

    /// References passed on, without renewals.
    pub fn references(&self) -> u64 {
        self.stream.references()
    }

    /// What the filter has kept and left out, if there is one.
    pub fn kept(&self) -> Option<Filtered> {
        self.filter.as_ref().map(Filter::filtered)
    }

    fn select(&mut self, batch: &Batch<'_>) {
        let mut last = None;
        for (i, r) in batch.refs.iter().enumerate() {
            let mine = match self.which {
                None => true,
                Some(Selection::Set(set)) => r.set == set,
                Some(Selection::Process(tgid)) => {
                    let tid = r.tid();
                    let mine = match last {
                        Some((same, mine)) if same == tid => mine,
                        _ => Whose::of(tid, batch.world).tgid(batch.world) == tgid,
                    };
                    last = Some((tid, mine));
                    mine
                }
            };
            let keeps = |f: &mut Filter| f.judge(r, &batch.places[i], batch.world);
            if mine && self.filter.as_mut().is_none_or(keeps) {
                self.stream.push(batch, i);
            }
        }
    }
}

impl Consumer for Selected<'_> {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        if let Some(filter) = &mut self.filter {
            filter.begin(trace, self.inner.wants_continuations());
        }
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
        self.select(batch);
        let inner = &mut self.inner;
        self.stream
            .pass_on(batch.world, |part| inner.references(part))
    }

    fn wants_io(&self) -> bool {
        self.inner.wants_io()
    }

    fn io(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.select(batch);
        let inner = &mut self.inner;
        self.stream.pass_on(batch.world, |part| inner.io(part))
    }

    fn event(&mut self, event: &Event<'_>, world: &World, issues: &[Issue]) -> Result<()> {
        self.inner.event(event, world, issues)
    }

    fn follows_freed(&self) -> bool {
        self.inner.follows_freed()
    }

    fn freed(&mut self, pages: &[CanonPage], world: &World) -> Result<()> {
        let again = self.inner.follows_freed();
        let numbers = self.stream.freed(pages, again);
        match numbers.is_empty() {
            true => Ok(()),
            false => self.inner.freed(&numbers, world),
        }
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
    use rust_mm_trace::uapi;

    use super::*;
    use crate::canon::PageMode;
    use crate::pipeline::{self, Unwatched};
    use crate::testing::TraceBuilder;

    struct All;

    impl Consumer for All {
        fn wants_continuations(&self) -> bool {
            true
        }
    }

    /// Whatever the consumer wants to see, a process has the references that the pass has.
    #[test]
    fn what_has_no_name_is_no_reference() {
        let mut builder = TraceBuilder::new(1, 2);
        builder.program();
        builder.touch(0, 10, 1, 0x1000);
        builder.touch(0, 10, 1, 0x2000);
        builder.renew(0, 10, false);
        // Its unmapping had begun when it got its second chance.
        let range: Vec<u8> = [0x2000u64, 0x3000, 0, 0]
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect();
        let size = size_of::<uapi::vmtrace_ev_range>();
        builder.event(0, 10, 1, uapi::VMTRACE_EV_UNMAP, &range[..size]);
        builder.renew(0, 10, true);
        let trace = Trace::from_bytes("memory", builder.finish()).expect("a trace");
        let mut all = All;
        let mut own = Selected::new(Selection::Process(Tid(10)), &mut all);
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut own];
        let mode = PageMode::Canonical;
        let outcome = pipeline::run(&trace, mode, &mut Unwatched, consumers).expect("no failure");
        assert_eq!((outcome.world.records, outcome.world.references), (4, 2));
        assert_eq!(own.references(), 2);
    }
}
