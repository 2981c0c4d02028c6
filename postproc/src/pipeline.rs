//! One pass over a trace that feeds many consumers.
//!
//! Between two events no mapping changes. So references are passed on in runs, and their
//! mappings and pages are looked up once for all consumers.

mod lookup;
mod pass;

use std::ops::Range;

use serde::Serialize;

pub(crate) use self::lookup::{Areas, cut_copies};
use self::pass::Pass;
pub(crate) use self::pass::{BATCH, REPORT_EVERY, kinds_of};
use crate::canon::{Origin, PageMode};
use crate::error::Result;
use crate::filter::Filters;
use crate::process::Tasks;
use crate::space::{Issue, ObjectId, Space};
use crate::stretch::Earlier;
use crate::trace::{Damage, Event, Header, Merge, PacketSeen, Ref, Trace};
use crate::units::{Access, CanonPage, Prot};

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

/// What is known of the records before a part of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Counted {
    pub records: u64,
    pub references: u64,
    pub renewals: u64,
    /// The latest time of a record, in ns.
    pub latest_ns: u64,
    pub first_set: Option<u32>,
    pub several_sets: bool,
}

impl World {
    /// Before the first event.
    pub(crate) fn new(header: &Header) -> Self {
        World {
            header: header.clone(),
            space: Space::default(),
            tasks: Tasks::default(),
            events: 0,
            records: 0,
            references: 0,
            renewals: 0,
            filters: Filters::default(),
            first_set: None,
            several_sets: false,
        }
    }

    /// Whether the records so far, without those of the present batch, are of more than one set.
    pub fn has_several_sets(&self) -> bool {
        self.several_sets
    }

    /// Follows an event that was applied to the address spaces.
    fn apply(&mut self, event: &Event<'_>) {
        self.tasks.apply(event);
        self.filters.apply(event);
        // The description of a piece is no part of the trace.
        self.events += u64::from(!event.is_state());
    }

    /// What was counted, of records the latest of which has this time, in ns.
    pub(crate) fn counted(&self, latest_ns: u64) -> Counted {
        Counted {
            records: self.records,
            references: self.references,
            renewals: self.renewals,
            latest_ns,
            first_set: self.first_set,
            several_sets: self.several_sets,
        }
    }

    /// Counts records that others have read.
    fn add(&mut self, counted: &Counted) {
        self.records = self.records.saturating_add(counted.records);
        self.references = self.references.saturating_add(counted.references);
        self.renewals = self.renewals.saturating_add(counted.renewals);
        self.first_set = self.first_set.or(counted.first_set);
        let is_other = counted.first_set.is_some() && counted.first_set != self.first_set;
        self.several_sets |= counted.several_sets || is_other;
    }

    pub(crate) fn count(&mut self, records: &[Ref], references: usize) {
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

/// Reads a whole trace in order and passes it to every consumer.
///
/// # Errors
///
/// The error of a consumer, [`TooManyPages`], or [`Interrupted`] if the observer ends the pass. Damage is
/// no error.
///
/// [`TooManyPages`]: crate::error::Error::TooManyPages
/// [`Interrupted`]: crate::error::Error::Interrupted
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
    let merge = Merge::of_kinds(trace, kinds_of(trace));
    Pass::new(trace, mode, freeing, merge, consumers).run(observer)
}

/// The same, of the records and events with numbers in a range, after the records that are `earlier`.
pub(crate) fn run_within(
    trace: &Trace,
    mode: PageMode,
    freeing: Freeing,
    range: Range<u64>,
    earlier: Earlier<'_>,
    observer: &mut dyn Observer,
    consumers: &mut [&mut dyn Consumer],
) -> Result<Outcome> {
    let merge = Merge::within(trace, kinds_of(trace), &range)?;
    let pass = Pass::new(trace, mode, freeing, merge, consumers);
    pass.within(range, earlier).run(observer)
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
