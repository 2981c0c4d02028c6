//! `residency`: stays in the EVMS are what a FIFO of N gives.
//!
//! Admissions are numbered; aborted ones take a number too and leave a gap in
//! the sequence numbers. A page keeps its place when its stay ends early, so
//! admission number `o` has to go for number `o + N`, at that one's time, and
//! for no other: it is evicted, or renewed with a number of its own, as what a CPU
//! may still need and what has a second chance is.
//!
//! If admissions evict in batches of up to K pages, a page may be evicted for any number from
//! `o + N - K + 1` to `o + N`, together with the page that has to go for that number. Renewals have no batches.
//!
//! The end of a stay is the time of one of these admissions, to the unit in which stays are
//! counted. An admission that was given up has no record, so its time is unknown:
//!
//! - On one CPU, it is between the times of the records around it.
//! - On several, times may go back in the order of numbers: see [`super::drawn`]. The admission is
//!   not earlier than the earliest of the last admissions of all CPUs, and not later than the
//!   first moment by which its number is sure to have been drawn.
//!
//! Number `o + N` may be given up because its CPU is slow. Then the CPU with number `o + 2 N` evicts
//! the page, or the one with `o + 3 N` if both are slow, and so on: each CPU has one number at a time.
//!
//! A page that gets another frame, by a copy on write, swapping, KSM or migration, has its
//! PTE cleared before the event is recorded. So no stay goes on at such an event. A stay
//! that does has a number before the event, and the frame of after it: another CPU changed
//! the page while it was being admitted, and nobody noticed. The same holds for pages that
//! `MADV_DONTNEED`, truncation and holes drop.
//!
//! What a filter has left out took its number, and evicted what was due for it, too. So such a number is
//! like one that was given up: its time is between bounds.
//!
//! In a trace of several sets, each has a FIFO: see [`super::residency_sets`].
//!
//! All stays of all sets end where another piece of the trace begins: see [`super::cuts`].

use std::collections::{BTreeMap, VecDeque};

use rust_mm_trace::uapi;

use super::cuts::Cuts;
use super::drawn::{Drawn, Waiting, goes_on};
use super::residency_sets::Several;
use crate::canon::drops_private;
use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Batch, Outcome, World};
use crate::space::Issue;
use crate::trace::{Body, Damage, Event, Header, Ref, Trace, Why};
use crate::units::{Access, Mm};

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Slot {
    ordinal: u64,
    record: Ref,
    next: u32,
}

/// One of the last records.
#[derive(Clone, Copy)]
struct Recent {
    ordinal: u64,
    time_ns: u64,
    /// It continues a stay, so it has evicted nothing.
    goes_on: bool,
    /// The number of the record before. Those between were given up, and are not earlier than this.
    before: u64,
    since_ns: u64,
}

impl Recent {
    /// The first and the last of these numbers that were given up between this record and the one
    /// before; the first is greater if there are none.
    fn given_up(&self, from: u64, to: u64) -> (u64, u64) {
        let first = from.max(self.before.saturating_add(1));
        (first, to.min(self.ordinal.saturating_sub(1)))
    }
}

/// Whether an admission took a page's place at the end of its stay.
pub(super) enum Took {
    Yes,
    No,
    /// One that was given up may have done so. The earliest time of such, and the last number.
    Perhaps(u64, u64),
}

/// What can't be judged before later records are known.
enum Waits {
    /// A stay that a number ended that was given up, at this time or later.
    Evicted(Overdue, u64),
    /// The same, before the page was admitted again with this record.
    Again(Ref, Ref, u64),
    /// A stay that ended for another reason, before the page was admitted again.
    Ended(Ref, Ref),
}

/// A stay that was to end at a number that was given up.
struct Overdue {
    record: Ref,
    ordinal: u64,
    /// The number whose turn it was to evict the page, if that was given up.
    turn: Option<u64>,
    /// Numbers whose turn it was.
    turns: u64,
}

/// The last N admissions, and a hash of their pages.
///
/// Memory: 88 bytes for each page of the EVMS, and up to twice that: sizes are powers of
/// two, and most buckets are empty, so that a page that is not there costs one look. On several
/// CPUs, 200 bytes for each stay that a number that was given up may have ended, until that is
/// known: a few records later, or with the last of its turns.
#[derive(Default)]
pub(super) struct Residency {
    n: u64,
    /// K, the pages that one admission evicts at most.
    batch: u64,
    shift: u32,
    page_shift: u32,
    one_cpu: bool,
    /// Why admissions cannot be numbered, if they cannot.
    blind: Option<&'static str>,
    /// Records of references that the heads of packets claim.
    refs: u64,
    slots: Vec<Slot>,
    buckets: Vec<u32>,
    /// Number of records that have left; the oldest of the others is in the slot of this number.
    head: usize,
    len: usize,
    /// The records with the last K numbers.
    recent: VecDeque<Recent>,
    /// The last record's number, and the latest time of all.
    last: u64,
    latest_ns: u64,
    drawn: Drawn,
    waiting: Waiting<Waits>,
    /// Stays that no number before has ended, by the number whose turn it is, and their own.
    overdue: BTreeMap<(u64, u64), Overdue>,
    cpus: u64,
    /// Where other pieces of the trace began.
    cuts: Option<Box<Cuts>>,
    /// All this for a trace of several sets, which has none of the above.
    several: Option<Box<Several>>,
}

impl Residency {
    fn bucket(&self, mm: u32, page: u64) -> usize {
        let key = (page >> self.page_shift) ^ (u64::from(mm) << 36);
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.buckets.len() - 1)
    }

    fn same(&self, at: u32, mm: Mm, page: u64) -> bool {
        let other = &self.slots[at as usize].record;
        other.mm == mm && (other.page ^ page) >> self.page_shift == 0
    }

    /// The latest admission of a page among the last N.
    fn find(&self, mm: Mm, page: u64) -> Option<&Slot> {
        let mut at = self.buckets[self.bucket(mm.0, page)];
        while at != NIL {
            if self.same(at, mm, page) {
                return Some(&self.slots[at as usize]);
            }
            at = self.slots[at as usize].next;
        }
        None
    }

    /// The slot of a record, by the number of records before it.
    fn at(&self, record: usize) -> usize {
        record & (self.slots.len() - 1)
    }

    /// The number of later admissions that a page is sure to stay for.
    fn least(&self) -> u64 {
        (self.n + 1).saturating_sub(self.batch)
    }

    fn push(&mut self, ordinal: u64, r: &Ref) {
        let at = self.at(self.head + self.len);
        let bucket = self.bucket(r.mm.0, r.page);
        self.slots[at] = Slot {
            ordinal,
            record: *r,
            next: self.buckets[bucket],
        };
        self.buckets[bucket] = at as u32;
        self.len += 1;
    }

    fn pop(&mut self) -> Slot {
        let at = self.at(self.head) as u32;
        let slot = self.slots[at as usize];
        let bucket = self.bucket(slot.record.mm.0, slot.record.page);
        if self.buckets[bucket] == at {
            self.buckets[bucket] = slot.next;
        } else {
            let mut walk = self.buckets[bucket];
            while walk != NIL {
                let next = self.slots[walk as usize].next;
                if next == at {
                    self.slots[walk as usize].next = slot.next;
                    break;
                }
                walk = next;
            }
        }
        self.head += 1;
        self.len -= 1;
        slot
    }

    /// Before any record.
    fn set_n(&mut self, n: u64, header: &Header) {
        self.n = n;
        self.batch = u64::from(header.batch)
            .min(header.most_batch(self.n))
            .max(1);
        if let Some(several) = &mut self.several {
            several.set_n(n, header);
            return;
        }
        // N slots at most are taken: the slots that the header asks for, but no
        // more than there are references.
        let slots = (self.n.min(self.refs) + 1).next_power_of_two() as usize;
        let empty = Ref {
            seq: 0,
            time_ns: 0,
            offset: 0,
            page: 0,
            tid_cpu: 0,
            mm: Mm(0),
            stay: 0,
            pfn: 0,
            set: 0,
            vtime: 0,
            within: crate::trace::wire::NO_OFFSET,
        };
        self.slots = vec![
            Slot {
                ordinal: 0,
                record: empty,
                next: NIL
            };
            slots
        ];
        self.buckets = vec![NIL; slots * 4];
    }

    /// Requires that a stay of a page has ended when an event is recorded.
    fn ended(&self, e: &Event<'_>, r: &Ref, what: &str, world: &World, out: &mut Findings) {
        if r.end_ns(self.shift).is_some_and(|end| end > e.time_ns) {
            out.error(|| {
                Draft::new(format!("goes on although a later {} {what}", e.name()))
                    .record(Cited::reference(r, world))
                    .related(Some(Cited::event(e)))
            });
        }
    }

    /// The same of all pages of a range that an event drops.
    fn dropped(
        &self,
        e: &Event<'_>,
        mm: Mm,
        start: u64,
        end: u64,
        world: &World,
        out: &mut Findings,
    ) {
        const WHAT: &str = "dropped the page";
        let (first, last) = (start >> self.page_shift, end >> self.page_shift);
        if let Some(several) = &self.several {
            let inside =
                |r: &&Ref| r.mm == mm && (first..last).contains(&(r.page >> self.page_shift));
            let is_last = |r: &&Ref| several.find(mm, r.page) == Some(*r);
            for r in several.all_of(mm).filter(inside).filter(is_last) {
                self.ended(e, r, WHAT, world, out);
            }
            return;
        }
        if last.saturating_sub(first) < self.len as u64 {
            for page in first..last {
                if let Some(slot) = self.find(mm, page << self.page_shift) {
                    self.ended(e, &slot.record, WHAT, world, out);
                }
            }
            return;
        }
        for at in 0..self.len {
            let r = &self.slots[self.at(self.head + at)].record;
            if r.mm == mm && (first..last).contains(&(r.page >> self.page_shift)) {
                self.ended(e, r, WHAT, world, out);
            }
        }
    }

    /// Whether the stay ended because its place was taken.
    fn gave_way(r: &Ref) -> bool {
        matches!(r.flags().why(), Why::Evicted | Why::Renewed | Why::Chance)
    }

    /// Notes the next record.
    fn arrive(&mut self, ordinal: u64, time_ns: u64, goes_on: bool) {
        let since_ns = match self.recent.back() {
            Some(last) if self.one_cpu => last.time_ns,
            // Nothing was given up.
            _ if ordinal == self.last.wrapping_add(1) => 0,
            _ => self.drawn.earliest_ns(),
        };
        self.recent.push_back(Recent {
            ordinal,
            time_ns,
            goes_on,
            before: self.last,
            since_ns,
        });
        self.last = ordinal;
        self.latest_ns = self.latest_ns.max(time_ns);
    }

    /// The length that a stay has if it ends at a moment.
    fn units(&self, r: &Ref, ns: u64) -> u64 {
        (ns.saturating_sub(r.time_ns) >> self.shift).min(u32::MAX.into())
    }

    /// Whether a stay ended at the time of a number among these.
    fn took(&self, r: &Ref, from: u64, to: u64) -> Took {
        let stay = u64::from(r.stay);
        let mut given_up: Option<(u64, u64)> = None;
        for at in &self.recent {
            let (first, last) = at.given_up(from, to);
            if first <= last && self.one_cpu {
                let (low, high) = (self.units(r, at.since_ns), self.units(r, at.time_ns));
                if (low..=high).contains(&stay) {
                    return Took::Yes;
                }
            } else if first <= last {
                let low_ns = given_up.map_or(at.since_ns, |found| found.0);
                given_up = Some((low_ns, last));
            }
            if at.ordinal > to {
                break;
            }
            if at.ordinal >= from && !at.goes_on && self.units(r, at.time_ns) == stay {
                return Took::Yes;
            }
        }
        match given_up {
            Some((low_ns, number)) if self.units(r, low_ns) <= stay => {
                Took::Perhaps(low_ns, number)
            }
            _ => Took::No,
        }
    }

    /// Says what is wrong with the end of a stay: it is not the time of any of these numbers.
    fn astray(&self, r: &Ref, from: u64, to: u64, world: &World) -> Draft {
        let (mut low, mut high) = (u64::MAX, 0);
        for at in &self.recent {
            let (first, last) = at.given_up(from, to);
            if first <= last {
                low = low.min(self.units(r, at.since_ns));
                high = high.max(self.units(r, at.time_ns));
            }
            if (from..=to).contains(&at.ordinal) {
                low = low.min(self.units(r, at.time_ns));
                high = high.max(self.units(r, at.time_ns));
            }
        }
        let (stay, why) = (u64::from(r.stay), r.flags().why());
        let message = if stay < low {
            let number = match why {
                Why::Evicted => self.least(),
                _ => self.n,
            };
            let ns = (low - stay) << self.shift;
            format!(
                "{} {ns} ns before the {number}th later admission",
                why.name()
            )
        } else if stay > high {
            format!(
                "stayed {} ns longer than until the {}th later admission took its place",
                (stay - high) << self.shift,
                self.n
            )
        } else {
            format!(
                "{} at a time that no admission has which may have taken its place",
                why.name()
            )
        };
        Draft::new(message).record(Cited::reference(r, world))
    }

    /// Says that a stay was too long: whoever took its place had its number by this time.
    fn too_long(&self, r: &Ref, by_ns: u64, world: &World) -> Draft {
        let more = u64::from(r.stay).saturating_sub(self.units(r, by_ns));
        Draft::new(format!(
            "stayed {} ns longer than until the {}th later admission took its place",
            more << self.shift,
            self.n
        ))
        .record(Cited::reference(r, world))
    }

    /// Judges a stay that was to end at or before the present record.
    fn judge(&mut self, slot: &Slot, present: Option<&Ref>, world: &World, out: &mut Findings) {
        let r = &slot.record;
        let turn = slot.ordinal.saturating_add(self.n);
        match r.flags().why() {
            Why::Evicted => {
                let from = slot.ordinal.saturating_add(self.least());
                match self.took(r, from, turn) {
                    Took::Yes => {}
                    Took::No => out.error(|| self.astray(r, from, turn, world)),
                    Took::Perhaps(low_ns, number) => {
                        let overdue = Overdue {
                            record: *r,
                            ordinal: slot.ordinal,
                            turn: (number == turn).then_some(turn),
                            turns: 1,
                        };
                        self.waiting.add(number, Waits::Evicted(overdue, low_ns));
                    }
                }
            }
            why @ (Why::Renewed | Why::Chance) => {
                let present = present.filter(|_| self.last == turn);
                let at = |p: &Ref| self.units(r, p.time_ns) == u64::from(r.stay);
                if !present.is_none_or(at) {
                    out.error(|| self.astray(r, turn, turn, world));
                } else if !present.is_some_and(|p| continues(p, r)) {
                    out.error(|| {
                        Draft::new(format!(
                            "{}, although the {}th later admission does not continue it",
                            why.name(),
                            self.n
                        ))
                        .record(Cited::reference(r, world))
                        .related(present.map(|p| Cited::reference(p, world)))
                    });
                }
            }
            why => {
                let high_ns = match present {
                    Some(present) if self.one_cpu => present.time_ns,
                    Some(_) => self.latest_ns,
                    None => return,
                };
                let (stay, high) = (r.stay, self.units(r, high_ns));
                if stay == u32::MAX || u64::from(stay) <= high {
                    return;
                }
                // Another CPU may take the place of a page while it is unmapped;
                // alone, a CPU cannot.
                let draft = || {
                    Draft::new(format!(
                        "{} {} ns after the {}th later admission took its place",
                        why.name(),
                        (u64::from(stay) - high) << self.shift,
                        self.n
                    ))
                    .record(Cited::reference(r, world))
                };
                if self.one_cpu {
                    out.error(draft)
                } else {
                    out.note(draft)
                }
            }
        }
    }

    /// Judges what waits for a number, or a smaller one: these were drawn by this time.
    fn settle(&mut self, number: u64, by_ns: u64, world: &World, out: &mut Findings) {
        while let Some(waits) = self.waiting.take(number) {
            match waits {
                Waits::Evicted(o, low_ns) => {
                    if self.is_between(&o.record, low_ns, by_ns) {
                        continue;
                    }
                    match o.turn.filter(|_| o.turns < self.cpus) {
                        // Its CPU was slow, so it is another one's turn.
                        Some(turn) => {
                            let next = (turn.saturating_add(self.n), o.ordinal);
                            self.overdue.insert(next, o);
                        }
                        None => out.error(|| self.too_long(&o.record, by_ns, world)),
                    }
                }
                Waits::Again(former, r, low_ns) => {
                    if !self.is_between(&former, low_ns, by_ns) {
                        out.error(|| not_ended(&former, &r, world));
                    }
                }
                Waits::Ended(former, r) => {
                    if former.end_ns(self.shift).is_some_and(|end| end > by_ns) {
                        out.error(|| not_ended(&former, &r, world));
                    }
                }
            }
        }
    }

    /// Whether a stay may have ended between two moments.
    fn is_between(&self, r: &Ref, low_ns: u64, high_ns: u64) -> bool {
        (self.units(r, low_ns)..=self.units(r, high_ns)).contains(&r.stay.into())
    }

    /// Judges overdue stays whose turn it is when a record comes.
    fn turn(&mut self, ordinal: u64, r: &Ref, world: &World, out: &mut Findings) {
        while let Some(first) = self.overdue.first_entry() {
            let turn = first.key().0;
            if turn > ordinal {
                return;
            }
            let mut o = first.remove();
            o.turns += 1;
            if turn < ordinal {
                o.turn = Some(turn);
                let low_ns = self.recent.back().map_or(0, |last| last.since_ns);
                self.waiting.add(turn, Waits::Evicted(o, low_ns));
            } else if goes_on(r) || self.units(&o.record, r.time_ns) != u64::from(o.record.stay) {
                out.error(|| self.too_long(&o.record, r.time_ns, world));
            }
        }
    }

    /// Judges a page's former stay when the page is admitted again, with a number less than N after
    /// that stay's.
    fn again(&mut self, slot: &Slot, ordinal: u64, r: &Ref, world: &World, out: &mut Findings) {
        let (before, former) = (slot.ordinal, &slot.record);
        let is_later = former.end_ns(self.shift).is_some_and(|end| end > r.time_ns);
        match former.flags().why() {
            Why::Evicted if !(self.one_cpu && is_later) => {
                // On several CPUs, another one may have admitted the page meanwhile, and the
                // number that ends that stay is the one that admits the page again.
                let last = ordinal.saturating_sub(self.one_cpu.into());
                let from = before.saturating_add(self.least());
                if last < from {
                    out.error(|| {
                        Draft::new(format!(
                            "evicted and admitted again within {} admissions",
                            self.least()
                        ))
                        .record(Cited::reference(r, world))
                        .related(Some(Cited::reference(former, world)))
                    });
                    return;
                }
                match self.took(former, from, last) {
                    Took::Yes => {}
                    Took::No => out.error(|| not_ended(former, r, world)),
                    Took::Perhaps(low_ns, number) => {
                        self.waiting.add(number, Waits::Again(*former, *r, low_ns));
                    }
                }
            }
            // Its number is still to come.
            Why::Renewed | Why::Chance => out.error(|| not_ended(former, r, world)),
            _ if !is_later => {}
            why if self.one_cpu || matches!(why, Why::Drained | Why::Piece) => {
                out.error(|| not_ended(former, r, world));
            }
            _ => self.waiting.add(ordinal, Waits::Ended(*former, *r)),
        }
    }
}

/// Whether a record continues a renewed stay.
pub(super) fn continues(r: &Ref, former: &Ref) -> bool {
    let flags = r.flags();
    let as_told = match former.flags().why() {
        Why::Renewed => flags.continues(),
        _ => !flags.continues() && flags.access() == Access::Seen,
    };
    as_told && r.mm == former.mm && r.address() == former.address()
}

/// A page was admitted although its former stay went on.
pub(super) fn not_ended(former: &Ref, r: &Ref, world: &World) -> Draft {
    Draft::new("admitted while its former stay had not ended")
        .record(Cited::reference(r, world))
        .related(Some(Cited::reference(former, world)))
}

impl Rule for Residency {
    fn id(&self) -> &'static str {
        "residency"
    }

    fn about(&self) -> &'static str {
        "stays are those of a FIFO of N: a page leaves or is renewed at the Nth later admission \
         (with batches of K, it may leave at one of the K - 1 admissions before), no page is in \
         the FIFO twice, and no stay goes on when its page gets another frame or is dropped, or when \
         another piece of the trace begins"
    }

    fn begin(&mut self, trace: &Trace, out: &mut Findings) {
        let header = trace.header();
        self.shift = header.stay_shift;
        self.page_shift = header.page_shift;
        self.cpus = header.nr_cpus.into();
        self.one_cpu = self.cpus == 1;
        self.drawn = Drawn::new(header);
        self.cuts = Some(Box::new(Cuts::new(trace)));
        self.last = trace.index().first_seq;
        self.blind = if trace
            .index()
            .end
            .as_ref()
            .is_none_or(|e| e.status.lost() > 0)
        {
            Some("the trace has losses or no end")
        } else if !trace.index().damage.is_empty() {
            Some("the trace is damaged")
        } else if trace.is_partial() {
            Some("the file has the references of one process only")
        } else {
            None
        };
        if let Some(why) = self.blind {
            out.note(|| {
                Draft::new(format!(
                    "not applied: {why}, so admissions cannot be numbered"
                ))
            });
            return;
        }
        if header.sets.are_several() {
            self.n = u64::from(header.evms_size);
            let first_seq = trace.index().first_seq;
            self.several = Some(Box::new(Several::new(header, first_seq)));
            let given_up = trace.index().end.as_ref().map_or(0, |e| e.status.aborted);
            if let Some(several) = self
                .several
                .as_mut()
                .filter(|_| trace.may_lack_references())
            {
                several.lacks();
            }
            if given_up > 0 {
                out.note(|| {
                    Draft::new(format!(
                        "{given_up} numbers were given up, and a trace of several sets does not say \
                         in which: a stay is judged by bounds if one of them may have ended it"
                    ))
                });
            }
            return;
        }
        self.refs = trace.index().records(crate::trace::StreamKind::Ref);
        self.set_n(u64::from(header.evms_size), header);
    }

    fn event(&mut self, e: &Event<'_>, world: &World, _issues: &[Issue], out: &mut Findings) {
        if self.blind.is_some() {
            return;
        }
        if let Some(cuts) = &mut self.cuts {
            cuts.event(e, world, out);
        }
        // Its number is greater, and was drawn before its time.
        match &mut self.several {
            Some(several) => {
                several.settle(u64::MAX, e.time_ns, world, out);
                several.event(e, world, out);
            }
            None => self.settle(u64::MAX, e.time_ns, world, out),
        }
        let up = |bytes: u64| bytes.div_ceil(1 << self.page_shift) << self.page_shift;
        let down = |bytes: u64| bytes >> self.page_shift << self.page_shift;
        let page = match &e.body {
            Body::Advise { start, end, advice } if drops_private(*advice) => {
                self.dropped(e, e.mm, *start, *end, world, out);
                return;
            }
            Body::Truncate { file, length } => {
                for (mm, start, end, _) in world.space.parts_of(*file, up(*length), u64::MAX) {
                    self.dropped(e, mm, start, end, world, out);
                }
                return;
            }
            Body::Punch {
                file,
                offset,
                bytes,
            } => {
                let to = down(offset.saturating_add(*bytes));
                for (mm, start, end, shared) in world.space.parts_of(*file, up(*offset), to) {
                    // Private copies remain.
                    if shared {
                        self.dropped(e, mm, start, end, world, out);
                    }
                }
                return;
            }
            // It says which N a piece begins with.
            Body::Resize { to, .. } if e.is_state() => {
                let n = u64::from(*to).min(uapi::VMTRACE_EVMS_MAX.into());
                self.set_n(n.max(1), &world.header);
                return;
            }
            Body::Resize { from, to } => {
                self.blind = Some("N was changed");
                out.note(|| {
                    Draft::new(format!(
                        "not applied from here on: N was changed from {from} to {to}"
                    ))
                });
                return;
            }
            Body::Cow(f) | Body::Ksm(f) | Body::Migrate(f) => f.page,
            Body::SwapIn(s) | Body::SwapOut(s) => s.page,
            _ => return,
        };
        let last = match &self.several {
            Some(several) => several.find(e.mm, page),
            None => self.find(e.mm, page).map(|slot| &slot.record),
        };
        if let Some(r) = last {
            self.ended(e, r, "gave the page another frame", world, out);
        }
    }

    fn damage(&mut self, _damage: &Damage, _out: &mut Findings) {
        self.blind = Some("the trace is damaged");
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Findings) {
        if self.blind.is_some() {
            return;
        }
        let world = batch.world;
        if let Some(cuts) = &mut self.cuts {
            cuts.references(batch.refs);
        }
        if let Some(several) = &mut self.several {
            for r in batch.refs {
                several.record(r, world, out);
            }
            return;
        }
        for r in batch.refs {
            let ordinal = r.seq.wrapping_sub(world.events);
            self.arrive(ordinal, r.time_ns, goes_on(r));
            if !self.one_cpu {
                if let Some(number) = self.drawn.record(ordinal, r) {
                    self.settle(number, r.time_ns, world, out);
                }
                self.turn(ordinal, r, world, out);
            }
            while self.len > 0 {
                let oldest = self.slots[self.at(self.head)].ordinal;
                // A sequence out of order is another rule's finding.
                if ordinal.wrapping_sub(oldest) < self.n && self.len < self.slots.len() {
                    break;
                }
                let slot = self.pop();
                self.judge(&slot, Some(r), world, out);
            }
            if let Some(&slot) = self.find(r.mm, r.page) {
                self.again(&slot, ordinal, r, world, out);
            }
            self.push(ordinal, r);
            // The next page that has to go is evicted by none of these.
            let gone = |first: &Recent| first.ordinal.saturating_add(self.batch) <= ordinal;
            while self.recent.front().is_some_and(gone) || self.recent.len() as u64 > self.batch {
                self.recent.pop_front();
            }
        }
    }

    fn finish(&mut self, trace: &Trace, outcome: &Outcome, out: &mut Findings) {
        let Some(end) = trace.index().end.as_ref().filter(|_| self.blind.is_none()) else {
            return;
        };
        if let Some(cuts) = &mut self.cuts {
            cuts.finish(&outcome.world, out);
        }
        // The admissions that end the last stays of a piece are in the next one.
        if trace.piece().is_some_and(|piece| !piece.is_last()) {
            if let Some(several) = &self.several {
                several.tell(out);
            }
            return;
        }
        let world = &outcome.world;
        // What was aborted behind the last reference may still have evicted.
        let last = end.status.last_seq.wrapping_sub(world.events);
        let stop_ns = end.status.stop_time_ns;
        if let Some(several) = &mut self.several {
            several.finish(last, stop_ns, world, out);
            several.tell(out);
            return;
        }
        self.arrive(last.saturating_add(1), stop_ns, true);
        while self.len > 0 {
            let slot = self.pop();
            if !Self::gave_way(&slot.record) {
                continue;
            }
            let least = match slot.record.flags().why() {
                Why::Evicted => self.least(),
                _ => self.n,
            };
            if last.wrapping_sub(slot.ordinal) < least {
                out.error(|| {
                    Draft::new(format!(
                        "evicted although fewer than {least} admissions followed"
                    ))
                    .record(Cited::reference(&slot.record, world))
                });
            } else {
                self.judge(&slot, None, world, out);
            }
        }
        self.settle(u64::MAX, stop_ns, world, out);
        for ((turn, _), o) in std::mem::take(&mut self.overdue) {
            let low_ns = self.recent.back().map_or(0, |last| last.since_ns);
            if turn > last || !self.is_between(&o.record, low_ns, stop_ns) {
                out.error(|| self.too_long(&o.record, stop_ns, world));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{TraceBuilder, check_bytes};
    use crate::trace::Why;
    use crate::units::Prot;
    use rust_mm_trace::uapi;

    /// The errors of a FIFO of eight with a filter that leaves out a third of the pages, or two thirds,
    /// after a change in the middle.
    fn filtered(cpus: u32, thirds: u64, change: impl FnOnce(&mut TraceBuilder)) -> u64 {
        let mut b = TraceBuilder::new(cpus, 8);
        b.filtered();
        b.task(0, 10, 10, 1, "program");
        b.map_anon(0, 10, 1, 0x10_0000, 0x20_0000, Prot(3));
        let (expr, end) = match thirds {
            1 => ("page < 0x109 || page >= 0x110", 0x109),
            _ => ("page < 0x104 || page >= 0x110", 0x104),
        };
        b.filter(0, expr, move |a| {
            let page = a.address >> 12;
            page < end || page >= 0x110
        });
        let go = |b: &mut TraceBuilder| {
            for i in 0..90u64 {
                b.leap(i % 7 * 30);
                b.touch(i as u32 / 3 % cpus, 10, 1, 0x10_0000 + ((i * 5 % 13) << 12));
                if i % 11 == 0 {
                    b.renew(i as u32 % cpus, 10, i % 2 == 0);
                }
            }
        };
        go(&mut b);
        change(&mut b);
        go(&mut b);
        let report = check_bytes(&b.finish());
        let others = report.rules.iter().filter(|rule| rule.id != "residency");
        assert_eq!(
            others.map(|rule| rule.errors).sum::<u64>(),
            0,
            "{report:#?}"
        );
        let rule = report.rule("residency").unwrap();
        assert_eq!(rule.notes, 0, "{rule:#?}");
        rule.errors
    }

    #[test]
    fn what_a_filter_leaves_out_has_its_place() {
        for cpus in [1, 2, 3] {
            for thirds in [1, 2] {
                assert_eq!(filtered(cpus, thirds, |_| {}), 0, "{cpus} {thirds}");
                assert_eq!(filtered(cpus, thirds, |b| b.abort()), 0);
                // The page that goes next is one that is recorded.
                let astray = |ns| {
                    filtered(cpus, thirds, |b| {
                        b.touch(0, 10, 1, 0x10_0000);
                        for i in 0..8 {
                            if i == 7 {
                                b.end_astray(ns);
                            }
                            b.touch(0, 10, 1, 0x11_0000 + (i << 12));
                        }
                    })
                };
                assert_eq!(astray(0), 0, "{cpus} {thirds}");
                for ns in [-3_000, 1_000_000] {
                    assert_eq!(astray(ns), 1, "{cpus} {thirds} {ns}");
                }
                // Long before its turn.
                let early = filtered(cpus, thirds, |b| {
                    b.touch(0, 10, 1, 0x10_0000);
                    b.leap(10_000);
                    b.close(1, 0x10_0000, Why::Evicted);
                });
                assert!(early > 0, "{cpus} {thirds}");
                let renewed = filtered(cpus, thirds, |b| {
                    b.touch(0, 10, 1, 0x10_0000);
                    b.close(1, 0x10_0000, Why::Renewed);
                });
                assert!(renewed > 0, "{cpus} {thirds}");
            }
        }
    }

    /// A FIFO of four over six pages, and what the rule says after a change.
    fn errors(change: impl FnOnce(&mut TraceBuilder)) -> u64 {
        let mut builder = TraceBuilder::new(1, 4);
        builder.program();
        for i in 0..30 {
            builder.touch(0, 10, 1, 0x1000 + (i % 6) * 0x1000);
        }
        change(&mut builder);
        for i in 0..30 {
            builder.touch(0, 10, 1, 0x1000 + (i % 6) * 0x1000);
        }
        check_bytes(&builder.finish())
            .rule("residency")
            .unwrap()
            .errors
    }

    #[test]
    fn renewals_take_a_number() {
        for chance in [false, true] {
            assert_eq!(errors(|b| b.renew(0, 10, chance)), 0);
        }
        // Renewed before its turn.
        assert!(errors(|b| b.close(1, 0x6000, Why::Renewed)) > 0);
    }

    #[test]
    fn a_fifo_is_a_fifo() {
        assert_eq!(errors(|_| {}), 0);
        assert_eq!(errors(|b| b.abort()), 0);
        assert_eq!(errors(|b| b.close(1, 0x6000, Why::Unmapped)), 0);
    }

    #[test]
    fn eviction_too_early_is_found() {
        assert!(errors(|b| b.close(1, 0x6000, Why::Evicted)) >= 1);
    }

    #[test]
    fn eviction_too_late_is_found() {
        assert!(errors(|b| b.stretch_last_stay(1 << 20)) >= 1);
    }

    /// A FIFO of eight that evicts in batches of `batch`, whose header says `header`; and what
    /// the rule says after a change in the middle. With `cycle`, pages come again.
    fn batched(
        batch: u32,
        header: u32,
        cycle: u64,
        change: impl FnOnce(&mut TraceBuilder),
    ) -> Vec<String> {
        let mut builder = TraceBuilder::new(1, 8);
        builder.header_mut().batch = batch;
        builder.program();
        for i in 0..42 {
            builder.touch(0, 10, 1, 0x1000 + i % cycle * 0x1000);
        }
        change(&mut builder);
        for i in 42..90 {
            builder.touch(0, 10, 1, 0x1000 + i % cycle * 0x1000);
        }
        builder.header_mut().batch = header;
        let report = check_bytes(&builder.finish());
        let rule = report.rule("residency").unwrap();
        assert_eq!(rule.errors == 0, rule.examples.is_empty());
        rule.examples.iter().map(|e| e.message.clone()).collect()
    }

    #[test]
    fn with_batches_a_stay_may_be_shorter_and_not_too_short() {
        for cycle in [9, 11, 90] {
            for (batch, header, good) in [
                (1, 1, true),
                (3, 3, true),
                (8, 8, true),
                // Longer stays than the shortest ones are as good.
                (1, 3, true),
                (3, 4, true),
                (3, 1, false),
                (3, 0, false),
                (3, 2, false),
                (8, 7, false),
            ] {
                let found = batched(batch, header, cycle, |_| {});
                assert_eq!(
                    found.is_empty(),
                    good,
                    "{batch} {header} {cycle}: {found:?}"
                );
                if !good && cycle == 90 {
                    let least = 9 - header.max(1);
                    let text = format!("before the {least}th later admission");
                    assert!(found.iter().all(|f| f.contains(&text)), "{found:?}");
                }
            }
        }
    }

    #[test]
    fn with_batches_both_bounds_are_the_nearest_ones() {
        // The page 0x29000 was admitted when page 0x2a000 is the last one: one admission before.
        for (later, good) in [(0, false), (4, false), (5, true), (7, true)] {
            let found = batched(1, 3, 90, |b| {
                for i in 100..100 + later {
                    b.touch(0, 10, 1, i << 12);
                }
                b.close(1, 0x29000, Why::Evicted);
            });
            assert_eq!(found.is_empty(), good, "{later}: {found:?}");
        }
        // The oldest page is due at the next admission, which comes 100 ns later.
        for (ns, good) in [(0, true), (100, true), (200, false)] {
            let found = batched(1, 3, 90, |b| b.stretch_last_stay(ns));
            assert_eq!(found.is_empty(), good, "{ns}: {found:?}");
        }
    }

    #[test]
    fn with_batches_other_ends_are_as_before() {
        for batch in [1, 3] {
            let close = |why| batched(batch, batch, 90, move |b| b.close(1, 0x29000, why));
            assert_eq!(close(Why::Unmapped), [""; 0]);
            // A renewal has no batch, so it is at its turn or wrong.
            let renewed = close(Why::Renewed);
            assert!(
                renewed[0].contains("the 8th later admission"),
                "{renewed:?}"
            );
            assert_eq!(
                batched(batch, batch, 90, |b| b.renew(0, 10, false)),
                [""; 0]
            );
            assert_eq!(batched(batch, batch, 11, |b| b.abort()), [""; 0]);
        }
    }

    #[test]
    fn with_batches_the_last_evictions_need_their_admissions_too() {
        // Admissions after the first page until the trace ends.
        let found = |batch, later: u64| {
            let mut b = TraceBuilder::new(1, 8);
            b.header_mut().batch = batch;
            b.program();
            for i in 1..=1 + later {
                b.touch(0, 10, 1, i << 12);
            }
            b.close(1, 0x1000, Why::Evicted);
            check_bytes(&b.finish()).rule("residency").unwrap().errors
        };
        assert_eq!([found(1, 7), found(3, 5)], [1, 1]);
        assert_eq!([found(3, 6), found(3, 7)], [0, 0]);
        // There were enough, and the eviction was before them.
        let mut b = TraceBuilder::new(1, 8);
        b.header_mut().batch = 3;
        b.program();
        b.touch(0, 10, 1, 0x1000);
        b.close(1, 0x1000, Why::Evicted);
        for i in 2..9 {
            b.touch(0, 10, 1, i << 12);
        }
        assert_eq!(
            check_bytes(&b.finish()).rule("residency").unwrap().errors,
            1
        );
    }

    #[test]
    fn a_stay_that_a_copy_does_not_end_is_found() {
        assert_eq!(errors(|b| b.cow(0, 10, 1, 0x6000)), 0);
        // The event of a copy, without the end of the stay.
        let event = |b: &mut TraceBuilder, page: u64| {
            let mut payload = [0; size_of::<uapi::vmtrace_ev_page>()];
            payload[..8].copy_from_slice(&page.to_le_bytes());
            b.event(0, 10, 1, uapi::VMTRACE_EV_COW, &payload);
        };
        assert_eq!(errors(|b| event(b, 0x6000)), 1);
        // A page whose stay has ended.
        assert_eq!(errors(|b| event(b, 0x2000)), 0);
    }

    #[test]
    fn a_stay_of_a_dropped_page_is_found() {
        const MADV_DONTNEED: u64 = 4;
        const MADV_FREE: u64 = 8;
        // The event, without the end of the stay.
        let advise = |pages: u64, advice: u64| {
            errors(|b| {
                let words = [0x6000, 0x6000 + pages * 0x1000, advice];
                let payload: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
                b.event(0, 10, 1, uapi::VMTRACE_EV_ADVISE, &payload);
            })
        };
        let found = [advise(1, MADV_DONTNEED), advise(9, MADV_DONTNEED)];
        let free = advise(1, MADV_FREE);
        assert!(
            found.iter().all(|&n| n > 0) && free == 0,
            "{found:?} {free}"
        );
        let after = errors(|b| b.advise(0, 10, 1, 0x6000, 0x7000, MADV_DONTNEED));
        assert_eq!(after, 0);
        let truncate = |close: bool| {
            let mut b = TraceBuilder::new(1, 4);
            b.program();
            b.map_file(0, 10, 1, 0x40_0000, 0x40_4000, Prot(3), true, 7, 0x2000);
            b.touch(0, 10, 1, 0x40_1000);
            if close {
                b.close(1, 0x40_1000, Why::Truncated);
            }
            b.truncate(0, 10, 7, 0x2001);
            b.touch(0, 10, 1, 0x40_0000);
            check_bytes(&b.finish()).rule("residency").unwrap().errors
        };
        assert_eq!((truncate(true), truncate(false)), (0, 1));
    }

    #[test]
    fn a_page_twice_in_the_set_is_found() {
        assert!(errors(|b| b.admit_member_again()) >= 1);
    }

    /// The number of errors of a FIFO of `n` with batches of `batch`. Two CPUs, or one, touch new
    /// pages in turn, 100 ns apart; the last one is CPU 1. `change` comes in the middle, and gets
    /// the address of the page that is `back` admissions back.
    fn in_turn(
        (cpus, n, batch): (u32, u32, u32),
        change: impl FnOnce(&mut TraceBuilder, &dyn Fn(u64) -> u64),
    ) -> u64 {
        let mut b = TraceBuilder::new(cpus, n);
        b.header_mut().batch = batch;
        b.program();
        b.map_anon(0, 10, 1, 0x10_0000, 0x30_0000, Prot(3));
        let page = |i: u64| 0x10_0000 + (i << 12);
        let cpu = |i: u64| (i & 1) as u32 % cpus;
        for i in 0..80 {
            b.touch(cpu(i), 10, 1, page(i));
        }
        change(&mut b, &|back| page(80 - back));
        for i in 80..160 {
            b.touch(cpu(i), 10, 1, page(i));
        }
        let report = check_bytes(&b.finish());
        let others = report.rules.iter().filter(|r| r.id != "residency");
        assert!(others.clone().all(|r| r.errors == 0), "{report:#?}");
        report.rule("residency").unwrap().errors
    }

    #[test]
    fn a_stay_ends_at_the_time_of_the_admission_that_evicts() {
        let at = |how, early, astray| {
            in_turn(how, |b, _| {
                b.read_early(early);
                b.end_astray(astray);
            })
        };
        // One unit, or one admission.
        let [unit, step] = [64, 100];
        for how in [(1, 4, 1), (2, 4, 1)] {
            for by in [-step, -unit, unit, step] {
                assert_eq!([at(how, 0, 0), at(how, 0, by)], [0, 1], "{how:?} {by}");
            }
        }
        // CPU 0 may be as early as its last admission.
        for by in [-step, -unit, unit, step] {
            let of_two = (2, 4, 1);
            assert_eq!([at(of_two, 180, 0), at(of_two, 180, by)], [0, 1], "{by}");
        }
        // The evicted page is the one that came last, and its stay has no length.
        let early = |astray| {
            in_turn((2, 1, 1), |b, _| {
                b.read_early(150);
                b.end_astray(astray);
            })
        };
        assert_eq!([early(0), early(50), early(149)], [0, 0, 1]);
    }

    #[test]
    fn a_stay_of_a_batch_ends_at_the_time_of_one_of_its_admissions() {
        // The page is evicted at the time of its sixth, seventh or eighth later admission. These
        // are 10 us apart, and the last of them is early.
        for cpus in [1, 2] {
            let at = |since: u64| {
                in_turn((cpus, 8, 1), |b, page| {
                    b.close_after(1, page(6), Why::Evicted, since);
                    b.leap(10_000);
                    b.touch(0, 10, 1, 0x10_0000);
                    b.leap(10_000);
                    b.touch(0, 10, 1, 0x10_1000);
                    b.leap(10_000);
                    b.read_early(if cpus > 1 { 5_000 } else { 0 });
                    b.touch(0, 10, 1, 0x10_2000);
                    b.header_mut().batch = 3;
                })
            };
            let third = if cpus > 1 { 25_300 } else { 30_300 };
            for good in [10_100, 20_200, third] {
                let found = [good - 64, good, good + 64].map(at);
                // Only the page itself, not the number that is given again.
                assert_eq!(found, [1, 0, 1], "{cpus} {good}");
            }
            assert_eq!([0, 15_000, 40_400].map(at), [1; 3], "{cpus}");
        }
    }

    #[test]
    fn the_time_of_an_admission_that_was_given_up_is_bounded() {
        // The page of 400 ns before is evicted. On one CPU, that is between the records around.
        let at = |cpus, astray| {
            in_turn((cpus, 4, 1), |b, _| {
                b.end_astray(astray);
                b.abort();
            })
        };
        // A stay of 3 * 64 ns at least, and of less than 11 * 64 ns: that is when CPU 1 has
        // admitted a page after the next one.
        for (by, good) in [(-209, false), (-208, true), (239, true), (240, false)] {
            let bound = if by > 0 { by + 64 } else { by };
            assert_eq!(at(2, bound), u64::from(!good), "{bound}");
        }
        // 4 * 64 ns, and less than 8 * 64.
        for (by, good) in [(-145, false), (-144, true), (111, true), (112, false)] {
            assert_eq!(at(1, by), u64::from(!good), "{by}");
        }
        // An event shows that the number was drawn.
        let event = |astray| {
            in_turn((2, 4, 1), |b, _| {
                b.end_astray(astray);
                b.abort();
                b.touch(1, 10, 1, 0x10_0000);
                b.protect(0, 10, 1, 0x2f_0000, 0x2f_1000, Prot(1));
            })
        };
        // Less than 10 * 64 ns.
        assert_eq!([event(239), event(240)], [0, 1]);
    }

    #[test]
    fn another_cpu_evicts_what_a_slow_one_has_left() {
        // The number of N later evicts both.
        let at = |slow: u64, astray| {
            in_turn((2, 4, 1), |b, _| {
                for _ in 0..slow {
                    b.abort_slow();
                    for i in 1..4 {
                        b.touch(i & 1, 10, 1, 0x10_0000 + (u64::from(i) << 12));
                    }
                }
                b.end_astray(astray);
            })
        };
        assert_eq!(at(1, 0), 0);
        for by in [-64, 64, 100] {
            assert_eq!(at(1, by), 1, "{by}");
        }
        // Nothing shows that the slow one had its number before this.
        assert_eq!(at(1, -100), 0);
        // There are two CPUs only.
        assert_eq!(at(2, 0), 1);
        // Alone, a CPU waits for nobody.
        let alone = in_turn((1, 4, 1), |b, _| {
            b.abort_slow();
        });
        assert_eq!(alone, 1);
    }

    #[test]
    fn a_renewal_is_the_nth_later_number() {
        for (cpus, early) in [(1, 0), (2, 0), (2, 150)] {
            for chance in [false, true] {
                let at = |astray| {
                    in_turn((cpus, 4, 1), |b, _| {
                        b.read_early(early);
                        b.end_astray(astray);
                        b.renew(0, 10, chance);
                    })
                };
                assert_eq!([-64, 0, 64].map(at), [1, 0, 1], "{cpus} {early} {chance}");
                // It has a record, and that is of the same page and kind.
                let why = if chance { Why::Chance } else { Why::Renewed };
                let other = |touch: bool| {
                    in_turn((cpus, 4, 1), |b, page| {
                        b.close_after(1, page(4), why, 100);
                        match touch {
                            true => b.touch(0, 10, 1, 0x10_0000),
                            false => b.abort(),
                        }
                    })
                };
                assert_eq!([other(true), other(false)], [1, 1]);
                // Of another kind, at the right time.
                let kind = in_turn((cpus, 4, 1), |b, page| {
                    b.close_after(1, page(4), why, 100);
                    b.admit_as_renewal(0, 10, 1, page(4), !chance);
                });
                assert_eq!(kind, 1);
                let kind = in_turn((cpus, 4, 1), |b, page| {
                    b.close_after(1, page(4), why, 100);
                    b.admit_as_renewal(0, 10, 1, page(4), chance);
                });
                assert_eq!(kind, 0);
            }
            // An admission that continues a stay evicts nothing.
            let evicted = in_turn((cpus, 4, 1), |b, page| {
                b.close_after(1, page(4), Why::Evicted, 100);
                b.admit_as_renewal(0, 10, 1, page(4), false);
            });
            assert_eq!(evicted, 1);
        }
    }

    #[test]
    fn a_page_is_admitted_again_when_its_former_stay_has_ended() {
        // The page of six numbers before has its batch's first turn now. It comes again with the
        // next number, or one later.
        let evicted = |cpus, ends: u64, comes: u64| {
            in_turn((cpus, 8, 1), |b, page| {
                b.close_after(1, page(6), Why::Evicted, ends);
                for i in 0..3 {
                    let other = 0x10_0000 + (i << 12);
                    b.touch(1 % cpus, 10, 1, if i == comes { page(6) } else { other });
                }
                b.header_mut().batch = 3;
            })
        };
        for (cpus, ends, comes, good) in [
            (1, 100, 1, true),
            (1, 200, 2, true),
            (1, 200, 1, false),
            // Another CPU may have had the page when the number that evicts it was drawn.
            (2, 100, 0, true),
            (2, 200, 1, true),
            (2, 200, 0, false),
            (2, 300, 1, false),
        ] {
            let found = evicted(cpus, ends, comes);
            assert_eq!(found, u64::from(!good), "{cpus} {ends} {comes}");
        }
        // Times may go back.
        let early = |ns| {
            in_turn((2, 8, 1), |b, page| {
                b.close_after(1, page(6), Why::Evicted, 100);
                b.touch(0, 10, 1, 0x10_0000);
                b.read_early(ns);
                b.touch(1, 10, 1, page(6));
                b.header_mut().batch = 3;
            })
        };
        assert_eq!([early(0), early(199)], [0, 0]);
        // A stay that ended otherwise did so before CPU 1, which comes next, comes once more.
        let unmapped = |cpus, ends| {
            in_turn((cpus, 8, 1), |b, page| {
                b.close_after(1, page(4), Why::Unmapped, ends);
                b.touch(1 % cpus, 10, 1, page(4));
            })
        };
        // Stays are of 300 ns and so much more.
        assert_eq!([unmapped(2, 339), unmapped(2, 340)], [0, 1]);
        assert_eq!([unmapped(1, 147), unmapped(1, 148)], [0, 1]);
        // A stay that goes on with a later number.
        let renewed = in_turn((2, 8, 1), |b, page| {
            b.close_after(1, page(7), Why::Renewed, 200);
            b.touch(0, 10, 1, page(7));
            b.admit_as_renewal(0, 10, 1, page(7), false);
        });
        // It is there twice.
        assert_eq!(renewed, 2);
    }

    /// Any change of any stay that gave way is found, whatever the times are.
    #[test]
    fn no_stay_can_be_changed() {
        use crate::trace::wire::{HEAD_SIZE, REF_SIZE};
        let mut state = 1u64;
        let mut random = move |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let errors = |bytes: &[u8]| {
            let report = check_bytes(bytes);
            (
                report.rule("residency").unwrap().errors,
                report.errors(),
                report,
            )
        };
        let (mut changed, mut found) = (0, 0);
        for round in 0..60 {
            let (cpus, gaps) = (round % 4 + 1, round / 12 % 2 == 0);
            let mut b = TraceBuilder::new(cpus, 16);
            b.header_mut().batch = round % 3 + 1;
            b.program();
            b.map_anon(0, 10, 1, 0x10_0000, 0x20_0000, Prot(3));
            // When each CPU had drawn its last number.
            let mut drawn = vec![1_000u64; cpus as usize];
            let mut now = 1_200u64;
            for _ in 0..200 {
                let cpu = random(cpus.into()) as usize;
                let pause = random(5_000);
                b.leap(pause);
                now += pause + 100;
                if cpus > 1 {
                    b.read_early(random(now - drawn[cpu]));
                }
                let seq = b.last_seq();
                match random(10) {
                    0 => b.renew(cpu as u32, 10, random(2) == 0),
                    1 if gaps => b.abort(),
                    _ => b.touch(cpu as u32, 10, 1, 0x10_0000 + (random(40) << 12)),
                }
                match b.last_seq() == seq {
                    true => now -= 100,
                    false => drawn[cpu] = now,
                }
                b.read_early(0);
            }
            let bytes = b.finish();
            let (of_rule, all, report) = errors(&bytes);
            assert_eq!((of_rule, all), (0, 0), "{round} {report:#?}");
            let kind = std::mem::offset_of!(uapi::vmtrace_packet, kind);
            for (start, end) in crate::testing::packets_of(&bytes) {
                if u32::from(bytes[start + kind]) != uapi::VMTRACE_STREAM_REF {
                    continue;
                }
                for at in (start + HEAD_SIZE..end).step_by(REF_SIZE) {
                    let why = bytes[at..at + 2]
                        .iter()
                        .rev()
                        .fold(0, |n, b| n << 8 | u32::from(*b));
                    let why = (why & uapi::VMTRACE_REF_WHY) >> uapi::VMTRACE_REF_WHY_SHIFT;
                    if !matches!(why, 0 | 12 | 13) || random(4) > 0 {
                        continue;
                    }
                    let mut bytes = bytes.clone();
                    let stay = at + std::mem::offset_of!(uapi::vmtrace_ref, stay);
                    let old = u32::from_le_bytes(bytes[stay..stay + 4].try_into().unwrap());
                    let new = if random(2) == 0 && old > 0 {
                        old - 1
                    } else {
                        old + 1
                    };
                    bytes[stay..stay + 4].copy_from_slice(&new.to_le_bytes());
                    crate::testing::mend_checksums(&mut bytes);
                    let is_found = errors(&bytes).0 > 0;
                    // The times of numbers that were given up are not known.
                    changed += u32::from(!gaps);
                    found += u32::from(!gaps && is_found);
                }
            }
        }
        // A few are those of other admissions of the batch.
        assert!(
            changed > 500 && found * 100 >= changed * 98,
            "{found} of {changed}"
        );
    }
}
