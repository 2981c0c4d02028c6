//! The loop of a pass, and what it remembers.

use std::ops::{Range, RangeInclusive};

use super::lookup::Lookup;
use super::{Batch, Consumer, Freeing, Observer, Outcome, Place, World, without_continuations};
use crate::canon::{Canon, Ends, Exhausted, PageMode};
use crate::error::{Error, Result};
use crate::space::Issue;
use crate::stretch::Earlier;
use crate::trace::merge::overlaps;
use crate::trace::part::CONTEXT;
use crate::trace::{
    Body, Damage, Event, FileId, FileKind, Merge, PacketHead, Ready, Ref, StreamKind, Trace,
};
use crate::units::CanonPage;

/// The largest number of references in a batch.
pub(crate) const BATCH: usize = 4096;

/// The most that the kernel reads or writes at once, whatever a record says:
/// MAX_RW_COUNT.
const MOST_BYTES: u64 = 1 << 31;

/// Records to read between two reports of progress.
pub(crate) const REPORT_EVERY: usize = 1 << 16;

/// The pages of a file that an event read or wrote, and whether it wrote.
fn touched(event: &Event<'_>, page_shift: u32) -> Option<(FileId, RangeInclusive<u64>, bool)> {
    let (io, write) = match &event.body {
        Body::Read(io) => (io, false),
        Body::Write(io) => (io, true),
        _ => return None,
    };
    // An access that bypasses the page cache references none of its pages.
    if io.kind != FileKind::Regular || io.bytes == 0 || io.direct {
        return None;
    }
    let last = io.offset.checked_add(io.bytes.min(MOST_BYTES) - 1)?;
    let pages = io.offset >> page_shift..=last >> page_shift;
    Some((io.file, pages, write))
}

/// The streams that a pass reads.
pub(crate) fn kinds_of(trace: &Trace) -> &'static [StreamKind] {
    match trace.is_partial() {
        true => &[StreamKind::Ref, StreamKind::Event, StreamKind::Context],
        false => &[StreamKind::Ref, StreamKind::Event],
    }
}

/// What names of pages that run out mean.
fn too_many_pages(trace: &Trace) -> Error {
    Error::TooManyPages {
        path: trace.path().into(),
    }
}

/// Makes times of records go back never.
///
/// A CPU reads the time of an admission before it takes the admission's number, and may be
/// interrupted in between. So in the order of numbers, times of several CPUs may go back. An
/// admission happens when it takes its number, which is not before the time of any admission with a
/// smaller number. So the latest of these times is as good, and closer to the truth.
#[derive(Default)]
struct Ascending {
    latest_ns: u64,
    refs: Vec<Ref>,
}

impl Ascending {
    /// The same records with such times, if any time had to be changed.
    fn changed(&mut self, refs: &[Ref], stay_shift: u32) -> Option<&[Ref]> {
        self.refs.clear();
        for (at, r) in refs.iter().enumerate() {
            if r.time_ns < self.latest_ns {
                if self.refs.is_empty() {
                    self.refs.extend_from_slice(refs);
                }
                self.refs[at] = r.at(self.latest_ns, stay_shift);
            } else {
                self.latest_ns = r.time_ns;
            }
        }
        (!self.refs.is_empty()).then_some(&self.refs)
    }
}

/// Records with their places and pages.
#[derive(Default)]
struct Located {
    refs: Vec<Ref>,
    places: Vec<Place>,
    pages: Vec<CanonPage>,
}

impl Located {
    fn new() -> Self {
        Located {
            refs: Vec::with_capacity(BATCH),
            places: Vec::with_capacity(BATCH),
            pages: Vec::with_capacity(BATCH),
        }
    }

    /// Leaves out what only names pages.
    fn drop_context(&mut self) {
        let kept: Vec<bool> = self.refs.iter().map(|r| r.page & CONTEXT == 0).collect();
        if kept.iter().all(|&kept| kept) {
            return;
        }
        let mut next = kept.iter().copied();
        self.refs.retain(|_| next.next().unwrap_or(true));
        let mut next = kept.iter().copied();
        self.places.retain(|_| next.next().unwrap_or(true));
        let mut next = kept.iter().copied();
        self.pages.retain(|_| next.next().unwrap_or(true));
    }

    fn batch<'b>(&'b self, world: &'b World) -> Batch<'b> {
        Batch {
            refs: &self.refs,
            places: &self.places,
            pages: &self.pages,
            world,
        }
    }
}

/// The consumers of a pass, and what some of them want.
struct Receivers<'p, 'c> {
    consumers: &'p mut [&'c mut dyn Consumer],
    origins: bool,
    io: bool,
}

impl<'p, 'c> Receivers<'p, 'c> {
    fn new(consumers: &'p mut [&'c mut dyn Consumer], mode: PageMode) -> Self {
        Receivers {
            origins: consumers.iter().any(|c| c.wants_origins()),
            io: mode == PageMode::Canonical && consumers.iter().any(|c| c.wants_io()),
            consumers,
        }
    }

    fn each(&mut self, mut call: impl FnMut(&mut dyn Consumer) -> Result<()>) -> Result<()> {
        let mut all = self.consumers.iter_mut();
        all.try_for_each(|consumer| call(*consumer))
    }

    fn origins(&mut self, canon: &mut Canon) -> Result<()> {
        if !self.origins {
            return Ok(());
        }
        let pages = canon.take_origins();
        if pages.is_empty() {
            return Ok(());
        }
        let mut wanting = self.consumers.iter_mut().filter(|c| c.wants_origins());
        wanting.try_for_each(|consumer| consumer.origins(&pages))
    }

    /// Hands on records; gives how many of them are references.
    fn records(
        &mut self,
        located: &Located,
        world: &World,
        ascending: &mut Ascending,
    ) -> Result<usize> {
        let raw = located.batch(world);
        let changed = ascending.changed(&located.refs, world.header.stay_shift);
        let batch = Batch {
            refs: changed.unwrap_or(&located.refs),
            ..raw
        };
        let references = without_continuations(&batch);
        let raw_references = match changed {
            Some(_) => without_continuations(&raw),
            None => None,
        };
        self.each(|consumer| {
            let (all, references) = match changed {
                Some(_) if consumer.wants_raw_times() => (&raw, &raw_references),
                _ => (&batch, &references),
            };
            let part = match references {
                Some((refs, places, pages)) if !consumer.wants_continuations() => Batch {
                    refs,
                    places,
                    pages,
                    world,
                },
                _ => Batch { ..*all },
            };
            consumer.references(&part)
        })?;
        Ok(references.map_or(located.refs.len(), |(refs, ..)| refs.len()))
    }

    fn event(&mut self, event: &Event<'_>, world: &World, issues: &[Issue]) -> Result<()> {
        self.each(|consumer| consumer.event(event, world, issues))
    }

    fn freed(&mut self, canon: &Canon, world: &World) -> Result<()> {
        match canon.freed() {
            [] => Ok(()),
            pages => self.each(|consumer| consumer.freed(pages, world)),
        }
    }

    fn io(&mut self, batch: &Batch<'_>) -> Result<()> {
        let mut wanting = self.consumers.iter_mut().filter(|c| c.wants_io());
        wanting.try_for_each(|consumer| consumer.io(batch))
    }
}

/// A pass: see [`super::run_with`].
pub(crate) struct Pass<'p, 'c> {
    trace: &'p Trace,
    mode: PageMode,
    merge: Merge<'p>,
    /// The sequence numbers of what is handed on. The merge gives events before these, too.
    numbers: Range<u64>,
    /// Records before these numbers that name pages.
    earlier: Earlier<'p>,
    world: World,
    lookup: Lookup,
    to: Receivers<'p, 'c>,
    located: Located,
    ascending: Ascending,
    packets: u64,
    damage: Vec<Damage>,
}

impl<'p, 'c> Pass<'p, 'c> {
    pub fn new(
        trace: &'p Trace,
        mode: PageMode,
        freeing: Freeing,
        merge: Merge<'p>,
        consumers: &'p mut [&'c mut dyn Consumer],
    ) -> Self {
        let ends = match freeing {
            Freeing::Kept => Ends::Unnoticed,
            Freeing::Freed if consumers.iter().all(|c| c.follows_freed()) => Ends::Reused,
            Freeing::Freed => Ends::Freed,
        };
        let world = World::new(trace.header());
        let mut lookup = Lookup::new(mode, ends, world.header.page_shift);
        let to = Receivers::new(consumers, mode);
        if to.origins {
            lookup.canon.note_origins();
        }
        Pass {
            trace,
            mode,
            merge,
            numbers: 0..u64::MAX,
            earlier: Earlier::default(),
            world,
            lookup,
            to,
            located: Located::new(),
            ascending: Ascending::default(),
            packets: 0,
            damage: trace.index().damage.clone(),
        }
    }

    /// The same of a part of the trace, before which are these records.
    pub fn within(mut self, numbers: Range<u64>, earlier: Earlier<'p>) -> Self {
        for counted in earlier.counted() {
            self.world.add(counted);
            let latest_ns = &mut self.ascending.latest_ns;
            *latest_ns = counted.latest_ns.max(*latest_ns);
        }
        self.numbers = numbers;
        self.earlier = earlier;
        self
    }

    pub fn run(mut self, observer: &mut dyn Observer) -> Result<Outcome> {
        let total = self.trace.index().stop;
        self.begin()?;
        let mut since_report = 0;
        loop {
            self.located.refs.clear();
            let ready = self.merge.advance(&mut self.located.refs, BATCH)?;
            self.opened()?;
            self.records()?;
            match ready {
                Ready::Full => {}
                Ready::Event => self.event()?,
                Ready::End => break,
            }
            since_report += self.located.refs.len() + 1;
            if since_report >= REPORT_EVERY {
                since_report = 0;
                let done = self.merge.bytes_read().min(total);
                if !observer.progress(done, total) {
                    return Err(Error::Interrupted);
                }
            }
        }
        if !observer.progress(total, total) {
            return Err(Error::Interrupted);
        }
        self.finish()
    }

    fn begin(&mut self) -> Result<()> {
        self.to.each(|consumer| consumer.begin(self.trace))?;
        let mut damage = self.damage.iter();
        damage.try_for_each(|found| self.to.each(|consumer| consumer.damage(found)))
    }

    /// Hands on the packets that were opened, and the damage that was found.
    fn opened(&mut self) -> Result<()> {
        for packet in self.merge.take_opened() {
            let head = &packet.head;
            if head.stream.kind.is_of_part() || !overlaps(head, &self.numbers) {
                continue;
            }
            self.packets += u64::from(!describes(self.trace, head));
            self.to.each(|consumer| consumer.packet(&packet))?;
        }
        for found in self.merge.take_damage() {
            self.to.each(|consumer| consumer.damage(&found))?;
            self.damage.push(found);
        }
        Ok(())
    }

    /// Looks up the records that were read, and hands them on.
    fn records(&mut self) -> Result<()> {
        let located = &mut self.located;
        let with_context = self.trace.is_partial();
        // Only the identities of pages depend on it. It is read in any case, so that damage is found.
        if with_context && self.mode != PageMode::Canonical {
            located.refs.retain(|r| r.page & CONTEXT == 0);
        }
        if located.refs.is_empty() {
            return Ok(());
        }
        located.places.clear();
        located.pages.clear();
        let (lookup, space) = (&mut self.lookup, &self.world.space);
        // The earlier ones come before all of these.
        lookup
            .name_earlier(&mut self.earlier, u64::MAX, space)
            .and_then(|()| {
                let (places, pages) = (&mut located.places, &mut located.pages);
                lookup.batch(&located.refs, space, places, pages)
            })
            .map_err(|Exhausted| too_many_pages(self.trace))?;
        if with_context {
            located.drop_context();
        }
        self.to.origins(&mut self.lookup.canon)?;
        if located.refs.is_empty() {
            return Ok(());
        }
        let references = self.to.records(located, &self.world, &mut self.ascending)?;
        self.world.count(&located.refs, references);
        Ok(())
    }

    /// Applies the event that comes next, and hands it on.
    fn event(&mut self) -> Result<()> {
        let (world, lookup, to) = (&mut self.world, &mut self.lookup, &mut self.to);
        let Some(event) = self.merge.event() else {
            return Ok(());
        };
        let is_within = self.numbers.contains(&event.seq);
        let issues = lookup
            .name_earlier(&mut self.earlier, event.seq, &world.space)
            .and_then(|()| lookup.apply(&event, &mut world.space))
            .map_err(|Exhausted| too_many_pages(self.trace))?;
        world.apply(&event);
        if is_within {
            to.event(&event, world, &issues)?;
            to.freed(&lookup.canon, world)?;
        }
        match touched(&event, world.header.page_shift).filter(|_| to.io) {
            Some((file, pages, write)) => {
                let r = Ref::of_io(&event, write);
                self.io(file, pages, r, is_within)
            }
            None => Ok(()),
        }
    }

    /// Names pages of a file, and hands them on as references like `r` if the event is within the stretch.
    fn io(
        &mut self,
        file: FileId,
        pages: RangeInclusive<u64>,
        r: Ref,
        is_within: bool,
    ) -> Result<()> {
        let (canon, located) = (&mut self.lookup.canon, &mut self.located);
        let (mut next, last) = pages.into_inner();
        while next <= last {
            located.pages.clear();
            while next <= last && located.pages.len() < BATCH {
                next = canon
                    .identify_some_in_file(file, next, last, &mut located.pages)
                    .map_err(|Exhausted| too_many_pages(self.trace))?;
            }
            if !is_within {
                canon.take_origins();
                continue;
            }
            self.to.origins(canon)?;
            located.refs.clear();
            located.refs.resize(located.pages.len(), r);
            located.places.clear();
            located.places.resize(located.pages.len(), Place::Unmapped);
            self.to.io(&located.batch(&self.world))?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Outcome> {
        self.lookup
            .name_earlier(&mut self.earlier, u64::MAX, &self.world.space)
            .map_err(|Exhausted| too_many_pages(self.trace))?;
        let outcome = Outcome {
            world: self.world,
            pages: self.lookup.canon.pages(),
            packets: self.packets,
            damage: self.damage,
        };
        self.to
            .each(|consumer| consumer.finish(self.trace, &outcome))?;
        Ok(outcome)
    }
}

/// Whether a packet is no part of the trace, but says what existed when a piece began.
fn describes(trace: &Trace, head: &PacketHead) -> bool {
    head.stream.kind.is_of_piece() || trace.piece().is_some_and(|piece| piece.describes(head))
}
