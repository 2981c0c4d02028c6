//! One pass over a trace that feeds many consumers.
//!
//! Between two events no mapping changes. So references are passed on in runs, and their
//! mappings and pages are looked up once for all consumers.

use std::ops::RangeInclusive;

use serde::Serialize;

use crate::canon::{self, Backing, Canon, Ends, Exhausted, Origin, PageMode, UNKNOWN};
use crate::error::{Error, Result};
use crate::filter::Filters;
use crate::process::Tasks;
use crate::space::{Issue, MmState, ObjectId, Space};
use crate::trace::part::CONTEXT;
use crate::trace::{
    Body, Damage, Event, FileId, FileKind, Header, MapKind, Merge, PacketHead, PacketSeen, Ready,
    Ref, StreamKind, Trace,
};
use crate::units::{Access, CanonPage, Mm, Prot, VirtPage};

/// The largest number of references in a batch.
const BATCH: usize = 4096;

/// Where a reference lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In a mapping.
    Mapped {
        /// The mapping's protection.
        prot: Prot,
        /// What is mapped.
        object: ObjectId,
    },
    /// In an address space that exists, and in no mapping.
    Unmapped,
    /// In an address space that has ended.
    EndedMm,
    /// In an address space that no event created.
    UnknownMm,
}

/// A run of references without an event between them.
pub struct Batch<'b> {
    /// The references in order.
    pub refs: &'b [Ref],
    /// The place of each reference.
    pub places: &'b [Place],
    /// The page of each reference.
    pub pages: &'b [CanonPage],
    /// The world at that time.
    pub world: &'b World,
}

/// The state that the events so far have produced.
pub struct World {
    /// The trace header.
    pub header: Header,
    /// Address spaces.
    pub space: Space,
    /// Processes.
    pub tasks: Tasks,
    /// Events so far.
    pub events: u64,
    /// Records in the streams of references so far, without those of the present batch:
    /// references, renewals, and second chances of pages that have no name.
    pub records: u64,
    /// References so far, without those of the present batch. A reference is a record that
    /// begins a stay, or a second chance. Every ratio has this number as its divisor, and
    /// every count called references is this number.
    pub references: u64,
    /// Renewals so far: records of stays that went on, which do not count as references.
    pub renewals: u64,
    /// The filters so far, if the kernel may leave references out.
    pub filters: Filters,
    /// The set of the first record.
    first_set: Option<u32>,
    several_sets: bool,
}

impl World {
    /// Whether the records so far, without those of the present batch, are of more than one set.
    pub fn has_several_sets(&self) -> bool {
        self.several_sets
    }

    fn count(&mut self, records: &[Ref], references: usize) {
        let renewals = records.iter().filter(|r| r.flags().continues()).count();
        self.records += records.len() as u64;
        self.first_set = self.first_set.or(records.first().map(|r| r.set));
        if self.header.sets.are_several() && !self.several_sets {
            self.several_sets = records.iter().any(|r| Some(r.set) != self.first_set);
        }
        self.references += references as u64;
        self.renewals += renewals as u64;
    }
}

/// The result of a pass.
pub struct Outcome {
    /// The world at the end.
    pub world: World,
    /// The number of pages that got a name.
    pub pages: u64,
    /// Packets that were read.
    pub packets: u64,
    /// All damage, in the order found.
    pub damage: Vec<Damage>,
}

/// Receives the content of a trace during a pass.
///
/// An error of a method ends the pass. Consumers never print.
pub trait Consumer {
    /// The pass is about to begin.
    fn begin(&mut self, _trace: &Trace) -> Result<()> {
        Ok(())
    }
    /// A packet was opened; its records are still to come.
    fn packet(&mut self, _packet: &PacketSeen) -> Result<()> {
        Ok(())
    }
    /// Whether the consumer also wants renewals, which are no references, and second chances of
    /// pages whose unmapping had begun, which have no name any more.
    fn wants_continuations(&self) -> bool {
        false
    }
    /// Whether the consumer wants the times that records contain. Others get times that do not go
    /// back.
    fn wants_raw_times(&self) -> bool {
        false
    }
    /// Whether the consumer wants [`Consumer::origins`].
    fn wants_origins(&self) -> bool {
        false
    }
    /// The pages of files and of other objects that the batch which follows references first, and
    /// what they are pages of. All other pages are those of address spaces.
    fn origins(&mut self, _pages: &[(CanonPage, Origin)]) -> Result<()> {
        Ok(())
    }
    /// A run of references.
    fn references(&mut self, _batch: &Batch<'_>) -> Result<()> {
        Ok(())
    }
    /// Whether the consumer wants [`Consumer::io`], which may name pages that nothing else
    /// names.
    fn wants_io(&self) -> bool {
        false
    }
    /// The file pages that the last event read or wrote, as references. Only their pages are
    /// meaningful: these references have no address, no frame, stays of unknown length, and
    /// meaningless places. Only with canonical pages.
    fn io(&mut self, _batch: &Batch<'_>) -> Result<()> {
        Ok(())
    }
    /// An event; it has been applied to `world` already, and `issues` lists its faults.
    fn event(&mut self, _event: &Event<'_>, _world: &World, _issues: &[Issue]) -> Result<()> {
        Ok(())
    }
    /// Whether the consumer learns the ends of pages from [`Consumer::freed`] alone. If all
    /// consumers of a pass do, names of freed pages are used again, so that tables by page do
    /// not grow with the length of the trace.
    fn follows_freed(&self) -> bool {
        false
    }
    /// Pages that the event just handed on has freed, in the order of their addresses.
    /// Called only in a pass in which pages are freed; see [`Freeing`].
    fn freed(&mut self, _pages: &[CanonPage], _world: &World) -> Result<()> {
        Ok(())
    }
    /// A part of the trace was skipped.
    fn damage(&mut self, _damage: &Damage) -> Result<()> {
        Ok(())
    }
    /// The pass is over.
    fn finish(&mut self, _trace: &Trace, _outcome: &Outcome) -> Result<()> {
        Ok(())
    }
}

/// What happens to a freed page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Freeing {
    /// The page leaves memory at once, as in a kernel.
    #[default]
    Freed,
    /// The page stays until it is replaced, as older simulators assume.
    Kept,
}

impl Freeing {
    /// The assumption in words, for the heading of a result.
    pub fn text(self) -> &'static str {
        match self {
            Freeing::Freed => "freed pages leave memory",
            Freeing::Kept => "freed pages stay until they are replaced",
        }
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

/// Observes the progress of a pass.
pub trait Observer {
    /// `done` of `total` bytes have been read; returning false ends the pass.
    fn progress(&mut self, done: u64, total: u64) -> bool;
}

/// Never ends a pass.
pub struct Unwatched;

impl Observer for Unwatched {
    fn progress(&mut self, _done: u64, _total: u64) -> bool {
        true
    }
}

/// A cache of pages by virtual page, valid while nothing changes.
#[derive(Clone, Copy)]
struct Line {
    mm: Mm,
    vpn: VirtPage,
    epoch: u64,
    place: Place,
    page: CanonPage,
}

const LINES: usize = 1 << 12;

/// A cache of the part of a mapping that lies in a region, valid while nothing changes.
#[derive(Clone, Copy)]
struct Area {
    mm: Mm,
    epoch: u64,
    first: VirtPage,
    /// The page after its last.
    end: VirtPage,
    place: Place,
    backing: Backing,
}

/// Pages of a region, as the power of two: as many as one page table has. Each has
/// one area, of the mapping that was needed last.
const REGION_SHIFT: u32 = 9;

/// Regions that are remembered: 4 GiB with pages of 4 KiB.
const REGIONS: usize = 1 << 11;

struct Lookup {
    lines: Vec<Line>,
    areas: Vec<Option<Area>>,
    /// The number in every valid line; it changes when a mapping or a page changes.
    epoch: u64,
    /// Look-ups that found no valid line.
    misses: usize,
    canon: Canon,
    page_shift: u32,
}

impl Lookup {
    fn new(mode: PageMode, ends: Ends, page_shift: u32) -> Self {
        let empty = Line {
            mm: Mm(0),
            vpn: VirtPage(0),
            epoch: 0,
            place: Place::UnknownMm,
            page: CanonPage(0),
        };
        Lookup {
            lines: vec![empty; LINES],
            areas: vec![None; REGIONS],
            epoch: 1,
            misses: 0,
            canon: Canon::new(mode, ends, page_shift),
            page_shift,
        }
    }

    #[inline]
    fn at(mm: Mm, vpn: VirtPage) -> usize {
        (vpn.0 ^ u64::from(mm.0).wrapping_mul(0x9e37_79b9)) as usize % LINES
    }

    #[inline]
    fn region(mm: Mm, vpn: VirtPage) -> usize {
        Self::at(mm, VirtPage(vpn.0 >> REGION_SHIFT)) % REGIONS
    }

    #[inline]
    fn get(
        &mut self,
        mm: Mm,
        vpn: VirtPage,
        known: u32,
        space: &Space,
    ) -> canon::Result<(Place, CanonPage)> {
        let at = Self::at(mm, vpn);
        let line = &self.lines[at];
        if line.epoch == self.epoch && line.mm == mm && line.vpn == vpn {
            return Ok((line.place, line.page));
        }
        self.miss(at, mm, vpn, known, space)
    }

    #[cold]
    fn miss(
        &mut self,
        at: usize,
        mm: Mm,
        vpn: VirtPage,
        known: u32,
        space: &Space,
    ) -> canon::Result<(Place, CanonPage)> {
        self.misses += 1;
        let (place, backing) = self.locate(mm, vpn, space);
        let page = self.canon.identify_known(mm, vpn, backing, known)?;
        self.lines[at] = Line {
            mm,
            vpn,
            epoch: self.epoch,
            place,
            page,
        };
        Ok((place, page))
    }

    /// The first page that begins at an address or above.
    fn page_up(&self, address: u64) -> u64 {
        address.div_ceil(1 << self.page_shift)
    }

    /// An event changed what is mapped in a range of one address space, and nothing else.
    fn forget(&mut self, mm: Mm, start: u64, end: u64) {
        let (first, last) = (start >> self.page_shift, self.page_up(end));
        if last.saturating_sub(first) > FEW {
            self.epoch += 1;
            return;
        }
        for vpn in (first..last).map(VirtPage) {
            let line = &mut self.lines[Self::at(mm, vpn)];
            if line.mm == mm && line.vpn == vpn {
                line.epoch = 0;
            }
        }
        // As few as they are, they lie in one region or two.
        for vpn in [first, last.saturating_sub(1)].map(VirtPage) {
            let area = &mut self.areas[Self::region(mm, vpn)];
            if area.is_some_and(|a| a.mm == mm && a.first.0 < last && first < a.end.0) {
                *area = None;
            }
        }
    }

    fn locate(&mut self, mm: Mm, vpn: VirtPage, space: &Space) -> (Place, Option<Backing>) {
        let at = Self::region(mm, vpn);
        if let Some(a) = &self.areas[at] {
            if a.epoch == self.epoch && a.mm == mm && (a.first..a.end).contains(&vpn) {
                return (a.place, Some(a.backing));
            }
        }
        let mapping = match space.get(mm).map(|s| s.find(vpn.0 << self.page_shift)) {
            Some(Some(mapping)) => mapping,
            Some(None) => return (Place::Unmapped, None),
            None if space.state(mm) == MmState::Ended => return (Place::EndedMm, None),
            None => return (Place::UnknownMm, None),
        };
        let is_file = matches!(mapping.kind, MapKind::File | MapKind::Shmem);
        let first = mapping.start >> self.page_shift;
        let region = vpn.0 >> REGION_SHIFT << REGION_SHIFT;
        let area = Area {
            mm,
            epoch: self.epoch,
            first: VirtPage(self.page_up(mapping.start).max(region)),
            end: VirtPage((mapping.end >> self.page_shift).min(region + (1 << REGION_SHIFT))),
            place: Place::Mapped {
                prot: mapping.prot,
                object: mapping.object,
            },
            backing: Backing {
                object: mapping.object,
                kind: mapping.kind,
                file: is_file.then(|| space.object(mapping.object).file),
                shared: mapping.is_shared() || mapping.kind == MapKind::Special,
                delta: (mapping.offset >> self.page_shift).wrapping_sub(first),
            },
        };
        self.areas[at] = Some(area);
        (area.place, Some(area.backing))
    }

    /// Finds the places and pages of a batch.
    fn batch(
        &mut self,
        refs: &[Ref],
        space: &Space,
        places: &mut Vec<Place>,
        pages: &mut Vec<CanonPage>,
    ) -> canon::Result<()> {
        let shift = self.page_shift;
        for part in refs.chunks(AHEAD) {
            // The look-ups before show for how many this is worth while.
            let known = if self.misses * 4 > AHEAD {
                self.canon.known(part.iter().map(|r| (r.mm, r.vpn(shift))))
            } else {
                [UNKNOWN; AHEAD]
            };
            self.misses = 0;
            for (r, known) in part.iter().zip(known) {
                let (place, page) = self.get(r.mm, r.vpn(shift), known, space)?;
                places.push(place);
                pages.push(page);
            }
        }
        Ok(())
    }
}

/// Pages of a range that are looked for one by one.
const FEW: u64 = 64;

/// References whose pages are looked for in the tables at a time.
const AHEAD: usize = 64;

/// The most that the kernel reads or writes at once, whatever a record says:
/// MAX_RW_COUNT.
const MOST_BYTES: u64 = 1 << 31;

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

/// Whether a record is a reference: neither a renewal nor the second chance of a page that
/// has no name any more.
pub(crate) fn is_reference(r: &Ref, place: &Place) -> bool {
    let flags = r.flags();
    let named = matches!(place, Place::Mapped { .. });
    !flags.continues() && (named || flags.access() != Access::Seen)
}

/// What is left of a batch without continuations, if it has any.
pub(crate) fn without_continuations(
    batch: &Batch<'_>,
) -> Option<(Vec<Ref>, Vec<Place>, Vec<CanonPage>)> {
    let renewed = |r: &Ref| r.flags().continues() || r.flags().access() == Access::Seen;
    if !batch.refs.iter().any(renewed) {
        return None;
    }
    let all = batch.refs.iter().zip(batch.places).zip(batch.pages);
    let mut left = (Vec::new(), Vec::new(), Vec::new());
    for ((r, place), page) in all {
        if !is_reference(r, place) {
            continue;
        }
        left.0.push(*r);
        left.1.push(*place);
        left.2.push(*page);
    }
    Some(left)
}

/// Leaves out what only names pages.
fn drop_context(refs: &mut Vec<Ref>, places: &mut Vec<Place>, pages: &mut Vec<CanonPage>) {
    let kept: Vec<bool> = refs.iter().map(|r| r.page & CONTEXT == 0).collect();
    if kept.iter().all(|&kept| kept) {
        return;
    }
    let mut next = kept.iter().copied();
    refs.retain(|_| next.next().unwrap_or(true));
    let mut next = kept.iter().copied();
    places.retain(|_| next.next().unwrap_or(true));
    let mut next = kept.iter().copied();
    pages.retain(|_| next.next().unwrap_or(true));
}

fn hand_on_origins(canon: &mut Canon, consumers: &mut [&mut dyn Consumer]) -> Result<()> {
    let pages = canon.take_origins();
    if pages.is_empty() {
        return Ok(());
    }
    let mut wanting = consumers.iter_mut().filter(|c| c.wants_origins());
    wanting.try_for_each(|consumer| consumer.origins(&pages))
}

/// Reads a whole trace in order and passes it to every consumer.
///
/// # Errors
///
/// The error of a consumer, [`Error::TooManyPages`], or [`Error::Interrupted`] if the
/// observer ends the pass. Damage is no error.
pub fn run(
    trace: &Trace,
    mode: PageMode,
    observer: &mut dyn Observer,
    consumers: &mut [&mut dyn Consumer],
) -> Result<Outcome> {
    run_with(trace, mode, Freeing::Kept, observer, consumers)
}

/// The same, with a choice of what happens to freed pages.
///
/// # Errors
///
/// As [`run`].
pub fn run_with(
    trace: &Trace,
    mode: PageMode,
    freeing: Freeing,
    observer: &mut dyn Observer,
    consumers: &mut [&mut dyn Consumer],
) -> Result<Outcome> {
    let ends = match freeing {
        Freeing::Kept => Ends::Unnoticed,
        Freeing::Freed if consumers.iter().all(|c| c.follows_freed()) => Ends::Reused,
        Freeing::Freed => Ends::Freed,
    };
    let exhausted = |_: Exhausted| Error::TooManyPages {
        path: trace.path().into(),
    };
    let with_context = trace.is_partial();
    let mut merge = match with_context {
        true => Merge::of_kinds(
            trace,
            &[StreamKind::Ref, StreamKind::Event, StreamKind::Context],
        ),
        false => Merge::new(trace),
    };
    let mut world = World {
        header: trace.header().clone(),
        space: Space::default(),
        tasks: Tasks::default(),
        events: 0,
        records: 0,
        references: 0,
        renewals: 0,
        filters: Filters::default(),
        first_set: None,
        several_sets: false,
    };
    let shift = world.header.page_shift;
    let mut lookup = Lookup::new(mode, ends, shift);
    let origins = consumers.iter().any(|c| c.wants_origins());
    if origins {
        lookup.canon.note_origins();
    }
    let mut refs: Vec<Ref> = Vec::with_capacity(BATCH);
    let mut places = Vec::with_capacity(BATCH);
    let mut pages = Vec::with_capacity(BATCH);
    let mut damage = trace.index().damage.clone();
    let mut packets = 0;
    let total = trace.index().stop;
    for consumer in consumers.iter_mut() {
        consumer.begin(trace)?;
    }
    for found in &damage {
        for consumer in consumers.iter_mut() {
            consumer.damage(found)?;
        }
    }
    let describes = |head: &PacketHead| {
        head.stream.kind.is_of_piece() || trace.piece().is_some_and(|piece| piece.describes(head))
    };
    let mut ascending = Ascending::default();
    let stay_shift = world.header.stay_shift;
    let io = mode == PageMode::Canonical && consumers.iter().any(|c| c.wants_io());
    let mut since_progress = 0;
    loop {
        refs.clear();
        let ready = merge.advance(&mut refs, BATCH)?;
        for packet in merge.take_opened() {
            if packet.head.stream.kind.is_of_part() {
                continue;
            }
            packets += u64::from(!describes(&packet.head));
            for consumer in consumers.iter_mut() {
                consumer.packet(&packet)?;
            }
        }
        for found in merge.take_damage() {
            for consumer in consumers.iter_mut() {
                consumer.damage(&found)?;
            }
            damage.push(found);
        }
        // Only the identities of pages depend on it. It is read in any case, so that damage is found.
        if with_context && mode != PageMode::Canonical {
            refs.retain(|r| r.page & CONTEXT == 0);
        }
        if !refs.is_empty() {
            places.clear();
            pages.clear();
            lookup
                .batch(&refs, &world.space, &mut places, &mut pages)
                .map_err(exhausted)?;
            if with_context {
                drop_context(&mut refs, &mut places, &mut pages);
            }
        }
        if origins {
            hand_on_origins(&mut lookup.canon, consumers)?;
        }
        if !refs.is_empty() {
            let raw = Batch {
                refs: &refs,
                places: &places,
                pages: &pages,
                world: &world,
            };
            let changed = ascending.changed(&refs, stay_shift);
            let batch = Batch {
                refs: changed.unwrap_or(&refs),
                ..raw
            };
            let references = without_continuations(&batch);
            let raw_references = match changed {
                Some(_) => without_continuations(&raw),
                None => None,
            };
            for consumer in consumers.iter_mut() {
                let (all, references) = match changed {
                    Some(_) if consumer.wants_raw_times() => (&raw, &raw_references),
                    _ => (&batch, &references),
                };
                let part = match references {
                    Some((refs, places, pages)) if !consumer.wants_continuations() => Batch {
                        refs,
                        places,
                        pages,
                        world: &world,
                    },
                    _ => Batch { ..*all },
                };
                consumer.references(&part)?;
            }
            let left = references.map_or(refs.len(), |(refs, ..)| refs.len());
            world.count(&refs, left);
        }
        match ready {
            Ready::Full => {}
            Ready::Event => {
                let Some(event) = merge.event() else { continue };
                let before = world.space.epoch();
                // Of an address space that lives on, these change a range. One that
                // the event makes known changes as a whole.
                let range = match event.body {
                    Body::Map(map) => Some((map.start, map.end)),
                    Body::Unmap { start, end } => Some((start, end)),
                    _ => None,
                }
                .filter(|_| world.space.state(event.mm) == MmState::Live);
                let issues = world.space.apply(&event);
                let renamed = lookup.canon.apply(&event).map_err(exhausted)?;
                if let Body::Truncate { file, length } = event.body {
                    let page = (1 << shift) - 1;
                    let from = length.saturating_add(page) & !page;
                    for (mm, start, end, shared) in world.space.parts_of(file, from, u64::MAX) {
                        if !shared {
                            lookup.canon.end_copies(mm, start, end);
                        }
                    }
                }
                if let Some((start, end)) = range {
                    lookup.forget(event.mm, start, end);
                } else if renamed || world.space.epoch() != before {
                    lookup.epoch += 1;
                }
                world.tasks.apply(&event);
                world.filters.apply(&event);
                // The description of a piece is no part of the trace.
                world.events += u64::from(!event.is_state());
                for consumer in consumers.iter_mut() {
                    consumer.event(&event, &world, &issues)?;
                }
                if !lookup.canon.freed().is_empty() {
                    for consumer in consumers.iter_mut() {
                        consumer.freed(lookup.canon.freed(), &world)?;
                    }
                }
                if let (true, Some((file, range, write))) = (io, touched(&event, shift)) {
                    let r = Ref::of_io(&event, write);
                    let (mut next, last) = range.into_inner();
                    while next <= last {
                        pages.clear();
                        while next <= last && pages.len() < BATCH {
                            next = lookup
                                .canon
                                .identify_some_in_file(file, next, last, &mut pages)
                                .map_err(exhausted)?;
                        }
                        if origins {
                            hand_on_origins(&mut lookup.canon, consumers)?;
                        }
                        refs.clear();
                        refs.resize(pages.len(), r);
                        places.clear();
                        places.resize(pages.len(), Place::Unmapped);
                        for consumer in consumers.iter_mut().filter(|c| c.wants_io()) {
                            consumer.io(&Batch {
                                refs: &refs,
                                places: &places,
                                pages: &pages,
                                world: &world,
                            })?;
                        }
                    }
                }
            }
            Ready::End => break,
        }
        since_progress += refs.len() + 1;
        if since_progress >= 1 << 16 {
            since_progress = 0;
            if !observer.progress(merge.bytes_read().min(total), total) {
                return Err(Error::Interrupted);
            }
        }
    }
    if !observer.progress(total, total) {
        return Err(Error::Interrupted);
    }
    let outcome = Outcome {
        world,
        pages: lookup.canon.pages(),
        packets,
        damage,
    };
    for consumer in consumers.iter_mut() {
        consumer.finish(trace, &outcome)?;
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TraceBuilder, check_bytes};

    #[derive(Default)]
    struct Count {
        all: bool,
        records: u64,
        seen: u64,
    }

    impl Consumer for Count {
        fn wants_continuations(&self) -> bool {
            self.all
        }

        fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
            assert_eq!(batch.refs.len(), batch.pages.len());
            assert_eq!(batch.refs.len(), batch.places.len());
            self.records += batch.refs.len() as u64;
            let seen = |r: &&Ref| r.flags().access() == Access::Seen;
            self.seen += batch.refs.iter().filter(seen).count() as u64;
            Ok(())
        }
    }

    #[derive(Default)]
    struct Places(Vec<Place>);

    impl Consumer for Places {
        fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
            self.0.extend(batch.places);
            Ok(())
        }
    }

    /// What is remembered of a page ends with the mapping that it lay in, and with the
    /// event that makes its address space known, wherever that maps.
    #[test]
    fn places_follow_the_events() {
        // Of one page, so that each of these is a record.
        let mut builder = TraceBuilder::new(1, 1);
        let page = 0x1000;
        builder.touch(0, 10, 1, page);
        builder.map_anon(0, 10, 1, 140 * page, 200 * page, Prot(3));
        builder.touch(0, 10, 1, 150 * page);
        builder.touch(0, 10, 1, 151 * page);
        builder.touch(0, 10, 1, page);
        builder.unmap(0, 10, 1, 150 * page, 151 * page);
        builder.touch(0, 10, 1, 150 * page);
        builder.touch(0, 10, 1, 151 * page);
        builder.map_anon(0, 10, 1, 150 * page, 151 * page, Prot(1));
        builder.touch(0, 10, 1, 150 * page);
        builder.touch(0, 10, 1, 151 * page);
        builder.unmap(0, 10, 1, 140 * page, 200 * page);
        builder.touch(0, 10, 1, 150 * page);
        builder.touch(0, 10, 1, 151 * page);
        // In two regions.
        builder.map_anon(0, 10, 1, 500 * page, 600 * page, Prot(3));
        for hole in [505..513, 511..560] {
            let (first, last) = (hole.start * page, (hole.end - 1) * page);
            builder.touch(0, 10, 1, first);
            builder.touch(0, 10, 1, last);
            builder.unmap(0, 10, 1, first, last + page);
            builder.touch(0, 10, 1, last);
            builder.touch(0, 10, 1, first);
            builder.map_anon(0, 10, 1, first, last + page, Prot(3));
        }
        let trace = Trace::from_bytes("memory", builder.finish()).expect("a trace");
        let mut places = Places::default();
        let mode = PageMode::Canonical;
        run(&trace, mode, &mut Unwatched, &mut [&mut places]).expect("no consumer fails");
        let mapped = |prot| Place::Mapped {
            prot: Prot(prot),
            object: ObjectId(0),
        };
        let expected = [
            vec![Place::UnknownMm],
            vec![mapped(3), mapped(3), Place::Unmapped],
            vec![Place::Unmapped, mapped(3)],
            vec![mapped(1), mapped(3)],
            vec![Place::Unmapped; 2],
            vec![mapped(3), mapped(3), Place::Unmapped, Place::Unmapped],
            vec![mapped(3), mapped(3), Place::Unmapped, Place::Unmapped],
        ];
        assert_eq!(places.0, expected.concat());
    }

    /// A stay that goes on is no reference; a second chance is one.
    #[test]
    fn continuations_are_for_who_wants_them() {
        let mut builder = TraceBuilder::new(1, 4);
        builder.program();
        for i in 0..8 {
            builder.touch(0, 10, 1, 0x1000 + i * 0x1000);
        }
        builder.renew(0, 10, false);
        builder.renew(0, 10, true);
        let bytes = builder.finish();
        assert_eq!(check_bytes(&bytes).errors(), 0);
        let trace = Trace::from_bytes("memory", bytes).expect("a trace");
        let mut all = Count {
            all: true,
            ..Count::default()
        };
        let mut references = Count::default();
        let outcome = run(
            &trace,
            PageMode::Canonical,
            &mut Unwatched,
            &mut [&mut all, &mut references],
        )
        .expect("no consumer fails");
        assert_eq!((all.records, all.seen), (10, 1));
        assert_eq!((references.records, references.seen), (9, 1));
        let world = &outcome.world;
        assert_eq!(
            (world.records, world.references, world.renewals),
            (10, 9, 1)
        );
    }

    /// The number, the time and the end of each record.
    #[derive(Default)]
    struct Times {
        raw: bool,
        of: Vec<(u64, u64, u64)>,
    }

    impl Consumer for Times {
        fn wants_raw_times(&self) -> bool {
            self.raw
        }

        fn wants_continuations(&self) -> bool {
            true
        }

        fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
            let of = |r: &Ref| (r.seq, r.time_ns, r.end_ns(6).unwrap());
            self.of.extend(batch.refs.iter().map(of));
            Ok(())
        }
    }

    #[test]
    fn times_go_back_for_those_only_who_ask_for_it() {
        let mut b = TraceBuilder::new(2, 4);
        b.program();
        for i in 0..20_000 {
            b.read_early(if i % 7 < 3 { i % 7 * 150 } else { 0 });
            if i % 11 == 10 {
                b.renew(1, 10, i % 2 == 0);
            } else {
                b.touch((i % 7 % 2) as u32, 10, 1, 0x1000 + i % 8 * 0x1000);
            }
            if i % 5_000 == 9 {
                b.protect(0, 10, 1, 0x8000, 0x9000, Prot(3));
            }
        }
        let trace = Trace::from_bytes("memory", b.finish()).unwrap();
        let mut raw = Times {
            raw: true,
            ..Times::default()
        };
        let mut even = Times::default();
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut raw, &mut even];
        run(&trace, PageMode::Canonical, &mut Unwatched, consumers).unwrap();
        let (mut latest, mut changed) = (0, 0);
        assert_eq!(raw.of.len(), even.of.len());
        for (raw, even) in raw.of.iter().zip(&even.of) {
            latest = latest.max(raw.1);
            // The stay ends when it did, to the unit in which it is counted, or at once.
            let end = raw.2.max(latest);
            assert!(end - even.2 < 64, "{raw:?} {even:?}");
            assert_eq!((raw.0, latest), (even.0, even.1));
            changed += u32::from(raw.1 < latest);
            assert!(raw.1 < latest || raw == even);
        }
        assert!(changed > 1_000, "{changed}");
    }
}
