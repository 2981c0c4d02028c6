//! The part of `residency` that is about traces of several sets: a FIFO for each.
//!
//! A stay in a set ends for a number of the same set. The records of a set are in its own order, so
//! they are counted. Numbers that were given up are not: they have no record, and the trace does not
//! say which set they were of. So of a record and a later one of its set, two counts are known:
//!
//! - `c`, how many records of the set later it is, and
//! - `g`, how many numbers the whole machine gave up in between.
//!
//! The later one has the number of the set that is `c` to `c + g` after the first one's. A number
//! may have ended the stay if one of these can be from N - K + 1 to N: if `c <= N` and `c + g >= N -
//! K + 1`. Without numbers that were given up, this is what the rule demands in a trace of one set.
//!
//! A number that was given up may have ended the stay as well. Its time is between bounds, as in a
//! trace of one set. The bounds are wider here, because the records around it are those of the set.
//!
//! If a filter has left records out, their numbers are like those that were given up. If there are more than
//! [`VAGUE`] of them during a stay, nearly any end of it is possible, and to look at all of them would take
//! long. So its eviction is not judged then. What else the rule demands, it demands still.
//!
//! Memory: 130 bytes for each of the last N records of each set whose address spaces have not
//! ended.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::drawn::{Drawn, Waiting, goes_on};
use super::residency::{Took, continues, not_ended};
use crate::check::{Cited, Draft, Findings};
use crate::pipeline::World;
use crate::trace::{Body, Event, Header, Ref, Sets, Why};
use crate::units::Mm;

/// Numbers without a record during a stay from which on its eviction is not judged, in a trace of which a
/// filter may have left records out.
const VAGUE: u64 = 256;

/// One of the last N records of a set.
struct Entry {
    record: Ref,
    /// Its number among all numbers of the machine.
    number: u64,
    /// Numbers that the machine gave up before it, since the trace began, and since the record of
    /// the set before it.
    given_up: u64,
    gap: u64,
    /// None of the latter is earlier than this.
    since_ns: u64,
    /// Its end was judged already.
    judged: bool,
}

/// A stay, and where it stands among the records of its set.
#[derive(Clone, Copy)]
struct Placed {
    set: u32,
    record: Ref,
    place: u64,
    given_up: u64,
    /// For which of its turns it is judged, from 1 on: see [`Several::settle`].
    turn: u64,
}

/// Numbers after the last record of a set.
#[derive(Clone, Copy)]
struct Tail {
    /// The last of these, among all numbers of the machine.
    number: u64,
    given_up: u64,
    /// They were drawn by this time.
    by_ns: u64,
}

/// What can't be judged before later records are known.
enum Waits {
    /// A stay that a number ended that was given up, at this time or later; whether it was its
    /// turn.
    Evicted(Placed, u64, bool),
    /// The same, before the page was admitted again with this record.
    Again(Ref, Ref, u64),
    /// A stay that ended for another reason, before the page was admitted again.
    Ended(Ref, Ref),
}

#[derive(Default)]
struct Fifo {
    entries: VecDeque<Entry>,
    /// The place of the next record: how many came before it.
    next: u64,
    /// For the gap before the next record.
    given_up: u64,
    since_ns: u64,
    /// Stays that wait for their next turn.
    overdue: Vec<Placed>,
    /// Address spaces that use the set.
    users: u32,
}

/// What the header says.
#[derive(Clone, Copy)]
struct Terms {
    n: u64,
    /// The number of later admissions that a page is sure to stay for.
    least: u64,
    shift: u32,
    page_shift: u32,
    cpus: u64,
    one_cpu: bool,
    /// Records may be missing.
    lacks: bool,
}

/// A FIFO of N for each set.
pub(super) struct Several {
    terms: Terms,
    /// Numbers that were given out before the trace, which is a piece or a window.
    first_seq: u64,
    fifos: FxHashMap<u32, Fifo>,
    /// The place of the last record of each page among the last N of its set.
    places: FxHashMap<(Mm, u64), u64>,
    set_of: FxHashMap<Mm, u32>,
    /// Records so far, and numbers that were given up before the last one.
    records: u64,
    given_up: u64,
    /// The latest time of all records.
    latest_ns: u64,
    drawn: Drawn,
    waiting: Waiting<Waits>,
    /// Evictions that are not judged.
    vague: u64,
}

/// The numbers that were given up and may have ended a stay.
#[derive(Default)]
struct Gaps {
    /// The earliest time of one, and the last number.
    found: Option<(u64, u64)>,
    /// One may be the last number whose turn it was.
    at_turn: bool,
    /// The stay ended between two records of one CPU, between which one was given up.
    sure: bool,
}

impl Terms {
    /// The length that a stay has if it ends at a moment.
    fn units(&self, r: &Ref, ns: u64) -> u64 {
        (ns.saturating_sub(r.time_ns) >> self.shift).min(u32::MAX.into())
    }

    fn is_between(&self, r: &Ref, low_ns: u64, high_ns: u64) -> bool {
        (self.units(r, low_ns)..=self.units(r, high_ns)).contains(&r.stay.into())
    }

    fn key(&self, r: &Ref) -> (Mm, u64) {
        (r.mm, r.page >> self.page_shift)
    }

    /// The first and last of the numbers for which a stay may end.
    fn turn(&self, stay: &Placed) -> (u64, u64) {
        match stay.turn {
            // Only the page itself is left by a CPU that was slow.
            2.. => (
                self.n.saturating_mul(stay.turn),
                self.n.saturating_mul(stay.turn),
            ),
            _ => match stay.record.flags().why() {
                Why::Evicted => (self.least, self.n),
                _ => (self.n, self.n),
            },
        }
    }
}

impl Fifo {
    fn first(&self) -> u64 {
        self.next - self.entries.len() as u64
    }

    fn at(&self, place: u64) -> Option<&Entry> {
        let at = place.checked_sub(self.first())?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    fn at_mut(&mut self, place: u64) -> Option<&mut Entry> {
        let at = place.checked_sub(self.first())?;
        self.entries.get_mut(usize::try_from(at).ok()?)
    }

    /// The later records of the set that may have a number from `from` to `to` after a stay's, the
    /// last one first; and how many records after the stay's each is.
    fn later(
        &self,
        stay: &Placed,
        (from, to): (u64, u64),
    ) -> impl Iterator<Item = (u64, &Entry)> + use<'_> {
        let (next, given_up) = (self.next - stay.place, stay.given_up);
        (1..)
            .zip(self.entries.iter().rev())
            .map(move |(back, e): (u64, _)| (next.saturating_sub(back), e))
            .skip_while(move |(c, _)| *c > to)
            .take_while(move |(c, e)| *c > 0 && c + e.given_up.saturating_sub(given_up) >= from)
    }

    /// The numbers from `from` to `to` after a stay's that were perhaps given up.
    fn gaps(
        &self,
        stay: &Placed,
        (from, to): (u64, u64),
        tail: Option<Tail>,
        terms: &Terms,
    ) -> Gaps {
        let mut gaps = Gaps::default();
        let r = &stay.record;
        // Those before a record that is `c` records later, and how many were given up until then.
        let mut add = |c: u64, total: u64, count: u64, since_ns: u64, number: u64, by_ns: u64| {
            if count == 0 || c > to || (c - 1).saturating_add(total) < from {
                return;
            }
            gaps.at_turn |= (c - 1).saturating_add(total) >= to;
            gaps.sure |= terms.one_cpu && terms.is_between(r, since_ns, by_ns);
            let last = gaps.found.map_or(number, |found| found.1);
            gaps.found = Some((since_ns, last));
        };
        if let Some(t) = tail {
            let c = self.next.saturating_sub(stay.place);
            let total = t.given_up.saturating_sub(stay.given_up);
            let count = t.given_up.saturating_sub(self.given_up);
            add(c, total, count, self.since_ns, t.number, t.by_ns);
        }
        // What is given up just before a record has a smaller number than that.
        for (c, e) in self.later(stay, (from, to)) {
            let total = e.given_up.saturating_sub(stay.given_up);
            let number = e.number.saturating_sub(1);
            add(c, total, e.gap, e.since_ns, number, e.record.time_ns);
        }
        gaps
    }

    /// Whether too many numbers have no record to judge by what number a stay was ended.
    fn is_vague(&self, stay: &Placed, tail: Option<Tail>, terms: &Terms) -> bool {
        let given_up = tail.map_or(self.given_up, |tail| tail.given_up);
        terms.lacks && given_up.saturating_sub(stay.given_up) > VAGUE
    }

    /// Whether a stay ended at the time of a number of this span after its own; of those that have
    /// a record, at most the one `last` records later. If it is not known: whether the last number
    /// of the span may be the one.
    fn took(
        &self,
        stay: &Placed,
        span: (u64, u64),
        last: u64,
        tail: Option<Tail>,
        terms: &Terms,
    ) -> (Took, bool) {
        let r = &stay.record;
        let at = |e: &Entry| terms.units(r, e.record.time_ns) == u64::from(r.stay);
        let mut later = self.later(stay, (span.0, last));
        if later.any(|(_, e)| !goes_on(&e.record) && at(e)) {
            return (Took::Yes, false);
        }
        let gaps = self.gaps(stay, span, tail, terms);
        match gaps.found {
            Some(_) if terms.one_cpu && gaps.sure => (Took::Yes, false),
            Some((low_ns, number))
                if !terms.one_cpu && terms.units(r, low_ns) <= u64::from(r.stay) =>
            {
                (Took::Perhaps(low_ns, number), gaps.at_turn)
            }
            _ => (Took::No, false),
        }
    }
}

impl Several {
    /// For a trace with this header.
    pub fn new(header: &Header, first_seq: u64) -> Self {
        let mut several = Several {
            terms: Terms {
                n: 0,
                least: 0,
                shift: header.stay_shift,
                page_shift: header.page_shift,
                cpus: header.nr_cpus.into(),
                one_cpu: header.nr_cpus == 1,
                lacks: false,
            },
            first_seq,
            fifos: FxHashMap::default(),
            places: FxHashMap::default(),
            set_of: FxHashMap::default(),
            records: 0,
            given_up: 0,
            latest_ns: 0,
            drawn: Drawn::new(header),
            waiting: Waiting::default(),
            vague: 0,
        };
        several.set_n(header.evms_size.into(), header);
        several
    }

    /// Before any record.
    pub fn set_n(&mut self, n: u64, header: &Header) {
        let batch = u64::from(header.batch).min(header.most_batch(n)).max(1);
        self.terms.n = n;
        self.terms.least = (n + 1).saturating_sub(batch);
    }

    /// A filter may have left records out.
    pub fn lacks(&mut self) {
        self.terms.lacks = true;
    }

    /// Records that are kept.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.fifos.values().map(|fifo| fifo.entries.len()).sum()
    }

    /// The last record of a page, if it is one of the last N of its set.
    pub fn find(&self, mm: Mm, page: u64) -> Option<&Ref> {
        let place = *self.places.get(&(mm, page >> self.terms.page_shift))?;
        let set = self.set_of.get(&mm).copied().unwrap_or_default();
        let record = &self.fifos.get(&set)?.at(place)?.record;
        // By a fault of the trace, the page may have been in another set.
        (self.terms.key(record) == (mm, page >> self.terms.page_shift)).then_some(record)
    }

    /// The last N records of an address space's set, which others may use, too.
    pub fn all_of(&self, mm: Mm) -> impl Iterator<Item = &Ref> {
        let set = self.set_of.get(&mm).copied().unwrap_or_default();
        let fifo = self.fifos.get(&set);
        fifo.into_iter()
            .flat_map(|fifo| fifo.entries.iter().map(|e| &e.record))
    }

    /// Takes the next record.
    pub fn record(&mut self, r: &Ref, world: &World, out: &mut Findings) {
        let terms = self.terms;
        self.records += 1;
        let number = r.seq.saturating_sub(world.events);
        // Numbers that do not ascend are another rule's finding.
        self.give_up(number);
        self.latest_ns = self.latest_ns.max(r.time_ns);
        if !terms.one_cpu {
            if let Some(drawn) = self.drawn.record(number, r) {
                self.settle(drawn, r.time_ns, world, out);
            }
        }
        let start_ns = world.header.start_time_ns;
        let fifo = self.fifos.entry(r.set).or_insert_with(|| Fifo {
            since_ns: start_ns,
            ..Fifo::default()
        });
        let place = fifo.next;
        fifo.next += 1;
        fifo.entries.push_back(Entry {
            record: *r,
            number,
            given_up: self.given_up,
            gap: self.given_up.saturating_sub(fifo.given_up),
            since_ns: fifo.since_ns,
            judged: false,
        });
        fifo.given_up = self.given_up;
        fifo.since_ns = match terms.one_cpu {
            true => r.time_ns,
            false => self.drawn.earliest_ns(),
        };
        // A page may be in another set by a fault of the trace: then it is not in this FIFO.
        if let Some(former) = self.places.insert(terms.key(r), place) {
            self.again(former, place, r, world, out);
        }
        self.turn(place, r, world, out);
    }

    /// Judges the stays of a record's set for which the record comes in turn.
    fn turn(&mut self, place: u64, r: &Ref, world: &World, out: &mut Findings) {
        let n = self.terms.n;
        let Some(fifo) = self.fifos.get_mut(&r.set) else {
            return;
        };
        let mut due = Vec::new();
        if !fifo.overdue.is_empty() {
            let is_due = |o: &Placed| place - o.place >= n.saturating_mul(o.turn);
            due.extend(fifo.overdue.iter().copied().filter(is_due));
            fifo.overdue.retain(|o| !is_due(o));
        }
        for stay in due {
            // What could have ended it is not known any more if the set went on too fast.
            if place - stay.place < n.saturating_mul(stay.turn + 1) {
                self.judge(&stay, Some(r), None, world, out);
            }
        }
        while let Some(fifo) = self.fifos.get(&r.set) {
            let first = fifo.first();
            if place - first < n {
                break;
            }
            let Some(stay) = fifo.entries.front().filter(|e| !e.judged) else {
                self.pop(r.set);
                continue;
            };
            let stay = Placed {
                set: r.set,
                record: stay.record,
                place: first,
                given_up: stay.given_up,
                turn: 1,
            };
            self.judge(&stay, Some(r), None, world, out);
            self.pop(r.set);
        }
    }

    fn pop(&mut self, set: u32) {
        let Some(fifo) = self.fifos.get_mut(&set) else {
            return;
        };
        let place = fifo.first();
        if let Some(entry) = fifo.entries.pop_front() {
            let key = self.terms.key(&entry.record);
            if self.places.get(&key) == Some(&place) {
                self.places.remove(&key);
            }
        }
    }

    /// Judges a stay whose turn it is when a record of its set comes, or when there will be no
    /// other.
    fn judge(
        &mut self,
        stay: &Placed,
        present: Option<&Ref>,
        tail: Option<Tail>,
        world: &World,
        out: &mut Findings,
    ) {
        let terms = self.terms;
        let r = &stay.record;
        match r.flags().why() {
            Why::Evicted => {
                let span = terms.turn(stay);
                let Some(fifo) = self.fifos.get(&stay.set) else {
                    return;
                };
                if fifo.is_vague(stay, tail, &terms) {
                    self.vague += 1;
                    return;
                }
                match fifo.took(stay, span, span.1, tail, &terms) {
                    (Took::Yes, _) => {}
                    (Took::No, _) => out.error(|| self.astray(stay, tail, world)),
                    (Took::Perhaps(low_ns, number), at_turn) => {
                        let waits = Waits::Evicted(*stay, low_ns, at_turn);
                        self.waiting.add(number, waits);
                    }
                }
            }
            why @ (Why::Renewed | Why::Chance) => out.error(|| {
                Draft::new(format!(
                    "{}, although the {}th later admission to set {} does not continue it",
                    why.name(),
                    terms.n,
                    stay.set
                ))
                .record(Cited::reference(r, world))
                .related(present.map(|p| Cited::reference(p, world)))
            }),
            why => {
                let high_ns = match present {
                    Some(present) if terms.one_cpu => present.time_ns,
                    Some(_) => self.latest_ns,
                    None => return,
                };
                let high = terms.units(r, high_ns);
                if r.stay == u32::MAX || u64::from(r.stay) <= high {
                    return;
                }
                let draft = || {
                    Draft::new(format!(
                        "{} {} ns after the {}th later admission to set {} took its place",
                        why.name(),
                        (u64::from(r.stay) - high) << terms.shift,
                        terms.n,
                        stay.set
                    ))
                    .record(Cited::reference(r, world))
                };
                // As in a trace of one set.
                if terms.one_cpu {
                    out.error(draft)
                } else {
                    out.note(draft)
                }
            }
        }
    }

    /// Says what is wrong with the end of a stay: it is not the time of any number that may have
    /// ended it.
    fn astray(&self, stay: &Placed, tail: Option<Tail>, world: &World) -> Draft {
        let terms = &self.terms;
        let (r, span) = (&stay.record, terms.turn(stay));
        let (mut low, mut high) = (u64::MAX, 0);
        if let Some(fifo) = self.fifos.get(&stay.set) {
            for (_, e) in fifo.later(stay, span) {
                low = low.min(terms.units(r, e.record.time_ns));
                high = high.max(terms.units(r, e.record.time_ns));
            }
            if let (Some((low_ns, _)), Some(t)) = (fifo.gaps(stay, span, tail, terms).found, tail) {
                low = low.min(terms.units(r, low_ns));
                high = high.max(terms.units(r, t.by_ns));
            }
        }
        let (length, why) = (u64::from(r.stay), r.flags().why().name());
        let message = if low > high {
            format!(
                "{why} although fewer than {} admissions to set {} followed",
                span.0, stay.set
            )
        } else if length < low {
            format!(
                "{why} {} ns before the {}th later admission to set {}",
                (low - length) << terms.shift,
                span.0,
                stay.set
            )
        } else if length > high {
            format!(
                "stayed {} ns longer than until the {}th later admission to set {} took its place",
                (length - high) << terms.shift,
                span.1,
                stay.set
            )
        } else {
            format!(
                "{why} at a time that no admission to set {} has which may have taken its place",
                stay.set
            )
        };
        Draft::new(message).record(Cited::reference(r, world))
    }

    /// Says that a stay was too long: whoever took its place had its number by this time.
    fn too_long(&self, stay: &Placed, by_ns: u64, world: &World) -> Draft {
        let r = &stay.record;
        let more = u64::from(r.stay).saturating_sub(self.terms.units(r, by_ns));
        Draft::new(format!(
            "stayed {} ns longer than until the {}th later admission to set {} took its place",
            more << self.terms.shift,
            self.terms.n,
            stay.set
        ))
        .record(Cited::reference(r, world))
    }

    /// Judges what waits for a number of the machine, or a smaller one: these were drawn by this
    /// time.
    pub fn settle(&mut self, number: u64, by_ns: u64, world: &World, out: &mut Findings) {
        let terms = self.terms;
        while let Some(waits) = self.waiting.take(number) {
            match waits {
                Waits::Evicted(stay, low_ns, at_turn) => {
                    if terms.is_between(&stay.record, low_ns, by_ns) {
                        continue;
                    }
                    let fifo = self.fifos.get_mut(&stay.set);
                    match fifo.filter(|_| at_turn && stay.turn < terms.cpus) {
                        // Its CPU was slow, so it is another one's turn.
                        Some(fifo) => fifo.overdue.push(Placed {
                            turn: stay.turn + 1,
                            ..stay
                        }),
                        None => out.error(|| self.too_long(&stay, by_ns, world)),
                    }
                }
                Waits::Again(former, r, low_ns) => {
                    if !terms.is_between(&former, low_ns, by_ns) {
                        out.error(|| not_ended(&former, &r, world));
                    }
                }
                Waits::Ended(former, r) => {
                    if former.end_ns(terms.shift).is_some_and(|end| end > by_ns) {
                        out.error(|| not_ended(&former, &r, world));
                    }
                }
            }
        }
    }

    /// Judges a page's former stay when the page is admitted again.
    fn again(&mut self, place: u64, now: u64, r: &Ref, world: &World, out: &mut Findings) {
        let terms = self.terms;
        let Some(fifo) = self.fifos.get_mut(&r.set) else {
            return;
        };
        let Some(entry) = fifo
            .at_mut(place)
            .filter(|e| terms.key(&e.record) == terms.key(r))
        else {
            return;
        };
        let stay = Placed {
            set: r.set,
            record: entry.record,
            place,
            given_up: entry.given_up,
            turn: 1,
        };
        let (c, total) = (now - place, self.given_up.saturating_sub(entry.given_up));
        let former = &stay.record;
        let is_later = former
            .end_ns(terms.shift)
            .is_some_and(|end| end > r.time_ns);
        match former.flags().why() {
            Why::Renewed | Why::Chance => {
                // There is one record that can continue it, and this is it.
                entry.judged = true;
                if c > terms.n || c.saturating_add(total) < terms.n || !continues(r, former) {
                    out.error(|| not_ended(former, r, world));
                } else if terms.units(former, r.time_ns) != u64::from(former.stay) {
                    out.error(|| self.astray(&stay, None, world));
                }
            }
            // Its turn is now.
            _ if c >= terms.n => {}
            Why::Evicted if !(terms.one_cpu && is_later) => {
                // As in a trace of one set: the number that ends the stay may be the one that
                // admits the page again.
                let last = c - u64::from(terms.one_cpu);
                if last.saturating_add(total) < terms.least {
                    out.error(|| {
                        Draft::new(format!(
                            "evicted and admitted again within {} admissions to set {}",
                            terms.least, r.set
                        ))
                        .record(Cited::reference(r, world))
                        .related(Some(Cited::reference(former, world)))
                    });
                    return;
                }
                if fifo.is_vague(&stay, None, &terms) {
                    self.vague += 1;
                    return;
                }
                // What was given up before this record may have ended it, too.
                let (took, _) = fifo.took(&stay, (terms.least, c), last, None, &terms);
                match took {
                    Took::Yes => {}
                    Took::No => out.error(|| not_ended(former, r, world)),
                    Took::Perhaps(low_ns, number) => {
                        self.waiting.add(number, Waits::Again(*former, *r, low_ns));
                    }
                }
            }
            _ if !is_later => {}
            why if terms.one_cpu || matches!(why, Why::Drained | Why::Piece) => {
                out.error(|| not_ended(former, r, world));
            }
            _ => {
                let number = r.seq.saturating_sub(world.events);
                self.waiting.add(number, Waits::Ended(*former, *r));
            }
        }
    }

    /// Follows the sets that events make and end.
    pub fn event(&mut self, e: &Event<'_>, world: &World, out: &mut Findings) {
        let ended: Vec<u32> = match e.body {
            Body::Set { set, .. } => {
                if self.set_of.insert(e.mm, set).is_none() {
                    self.fifos
                        .entry(set)
                        .or_insert_with(|| Fifo {
                            since_ns: world.header.start_time_ns,
                            ..Fifo::default()
                        })
                        .users += 1;
                }
                return;
            }
            Body::MmEnd => {
                let set = self.set_of.remove(&e.mm);
                let fifo = set.and_then(|set| self.fifos.get_mut(&set));
                let Some((set, fifo)) = set.filter(|set| *set != 0).zip(fifo) else {
                    return;
                };
                fifo.users = fifo.users.saturating_sub(1);
                if fifo.users > 0 {
                    return;
                }
                vec![set]
            }
            // A window begins: what was traced before has ended.
            Body::SnapBegin => {
                self.set_of.clear();
                let mut sets: Vec<u32> = self.fifos.keys().copied().filter(|s| *s != 0).collect();
                sets.sort_unstable();
                sets
            }
            _ => return,
        };
        let tail = self.tail(e.seq.saturating_sub(world.events), e.time_ns);
        // A control group may get another process.
        let may_go_on = world.header.sets == Sets::Cgroup && matches!(e.body, Body::MmEnd);
        for set in ended {
            if may_go_on {
                self.shorten(set, tail);
            } else {
                self.end(set, tail, world, out);
            }
        }
        self.settle(u64::MAX, e.time_ns, world, out);
    }

    /// Counts what was given up before a number of the machine.
    fn give_up(&mut self, number: u64) {
        let given_out = number.saturating_sub(self.first_seq);
        self.given_up = given_out.saturating_sub(self.records).max(self.given_up);
    }

    fn tail(&mut self, number: u64, by_ns: u64) -> Tail {
        self.give_up(number);
        Tail {
            number,
            given_up: self.given_up,
            by_ns,
        }
    }

    /// Nobody uses a set, but it may be used again: what can be judged already is forgotten.
    fn shorten(&mut self, set: u32, tail: Tail) {
        let terms = self.terms;
        while let Some(fifo) = self.fifos.get(&set) {
            let Some(entry) = fifo.entries.front() else {
                if fifo.overdue.is_empty() {
                    self.fifos.remove(&set);
                }
                return;
            };
            let stay = Placed {
                set,
                record: entry.record,
                place: fifo.first(),
                given_up: entry.given_up,
                turn: 1,
            };
            let is_settled = match stay.record.flags().why() {
                Why::Renewed | Why::Chance => entry.judged,
                Why::Evicted => {
                    let span = terms.turn(&stay);
                    let (took, _) = fifo.took(&stay, span, span.1, Some(tail), &terms);
                    matches!(took, Took::Yes)
                }
                _ => true,
            };
            if !is_settled {
                return;
            }
            self.pop(set);
        }
    }

    /// A set has ended: no record of it comes any more.
    fn end(&mut self, set: u32, tail: Tail, world: &World, out: &mut Findings) {
        while let Some(fifo) = self.fifos.get_mut(&set) {
            let place = fifo.first();
            if let Some(stay) = fifo.overdue.pop() {
                self.judge(&stay, None, Some(tail), world, out);
                continue;
            }
            let Some(entry) = fifo.entries.front() else {
                break;
            };
            let stay = Placed {
                set,
                record: entry.record,
                place,
                given_up: entry.given_up,
                turn: 1,
            };
            if !entry.judged {
                self.judge(&stay, None, Some(tail), world, out);
            }
            self.pop(set);
        }
        self.fifos.remove(&set);
    }

    /// The trace has ended.
    pub fn finish(&mut self, number: u64, stop_ns: u64, world: &World, out: &mut Findings) {
        let tail = self.tail(number, stop_ns);
        let mut sets: Vec<u32> = self.fifos.keys().copied().collect();
        sets.sort_unstable();
        for set in sets {
            self.end(set, tail, world, out);
        }
        self.settle(u64::MAX, stop_ns, world, out);
    }

    /// Says what was not judged.
    pub fn tell(&self, out: &mut Findings) {
        if self.vague > 0 {
            out.note(|| {
                Draft::new(format!(
                    "{} evictions are not judged: a trace of several sets does not say of which set \
                     the records were that a filter has left out, and more than {VAGUE} were left out \
                     meanwhile",
                    self.vague
                ))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use rust_mm_trace::uapi;

    use super::*;
    use crate::canon::PageMode;
    use crate::check::{CheckOptions, CheckReport, RuleReport};
    use crate::error::Result;
    use crate::pipeline::{self, Batch, Consumer, Unwatched};
    use crate::space::Issue;
    use crate::testing::{TraceBuilder, check_bytes};
    use crate::trace::Trace;
    use crate::units::Prot;

    /// Address spaces with a set of four pages each: 1 of task 10, 2 of task 20 and so on.
    fn programs(cpus: u32, n: u32, programs: u32) -> TraceBuilder {
        let mut b = TraceBuilder::new(cpus, n);
        b.several_sets();
        for mm in 1..=programs {
            begin(&mut b, mm);
        }
        b
    }

    fn begin(b: &mut TraceBuilder, mm: u32) {
        b.set(0, 10 * mm, mm, mm);
        b.task(0, 10 * mm, 10 * mm, mm, "program");
        b.map_anon(0, 10 * mm, mm, 0x10_0000, 0x30_0000, Prot(3));
    }

    fn page(i: u64) -> u64 {
        0x10_0000 + (i << 12)
    }

    fn errors(report: &CheckReport) -> u64 {
        let others = report.rules.iter().filter(|r| r.id != "residency");
        assert!(others.clone().all(|r| r.errors == 0), "{report:#?}");
        report.rule("residency").unwrap().errors
    }

    /// Two address spaces take turns, the second one more often; the residency errors after a
    /// change in the middle.
    fn found(cpus: u32, batch: u32, change: impl FnOnce(&mut TraceBuilder)) -> u64 {
        let mut b = programs(cpus, 4, 2);
        b.header_mut().batch = batch;
        let mut next = [0u64; 2];
        let mut touch = |b: &mut TraceBuilder, i: u64| {
            let mm = u32::from(i % 3 > 0);
            let next = &mut next[mm as usize];
            b.touch(i as u32 / 2 % cpus, 10 * (mm + 1), mm + 1, page(*next));
            *next += 1;
        };
        (0..60).for_each(|i| touch(&mut b, i));
        change(&mut b);
        (60..120).for_each(|i| touch(&mut b, i));
        errors(&check_bytes(&b.finish()))
    }

    #[test]
    fn each_set_is_a_fifo() {
        for (cpus, batch) in [(1, 1), (2, 1), (1, 3), (2, 3)] {
            assert_eq!(found(cpus, batch, |_| {}), 0, "{cpus} {batch}");
        }
    }

    /// The same trace, judged as one FIFO: the rule is about sets.
    #[test]
    fn a_fifo_for_all_would_be_wrong() {
        let mut b = programs(1, 4, 2);
        for i in 0..60 {
            let mm = 1 + i as u32 % 2;
            b.touch(0, 10 * mm, mm, page(i / 2));
        }
        let bytes = b.finish();
        assert_eq!(errors(&check_bytes(&bytes)), 0);
        // Stays that last until the fourth later record of all.
        let mut b = programs(1, 4, 2);
        for i in 0..60u64 {
            let mm = 1 + i as u32 % 2;
            if let Some(old) = i.checked_sub(4) {
                let mm = 1 + old as u32 % 2;
                b.close_after(mm, page(old / 2), Why::Evicted, 100);
            }
            b.touch(0, 10 * mm, mm, page(i / 2));
        }
        assert!(errors(&check_bytes(&b.finish())) > 40);
    }

    #[test]
    fn a_stay_that_ends_at_another_time_is_found() {
        for cpus in [1, 2] {
            for by in [-200, -100, -64, 64, 100, 200] {
                assert_eq!(found(cpus, 1, |b| b.end_astray(by)), 1, "{cpus} {by}");
            }
            // Evicted before its turn, after it, and never continued.
            let early =
                |mm: u32, at: u64| move |b: &mut TraceBuilder| b.close(mm, page(at), Why::Evicted);
            assert!(found(cpus, 1, early(2, 39)) > 0);
            assert!(found(cpus, 1, early(1, 19)) > 0);
            assert!(found(cpus, 1, |b| b.close(2, page(39), Why::Renewed)) > 0);
            assert!(found(cpus, 1, |b| b.close(2, page(39), Why::Chance)) > 0);
        }
        // With batches of three, after two later ones of the set at the soonest.
        assert!(found(1, 3, |b| b.close(2, page(39), Why::Evicted)) > 0);
        assert_eq!(found(1, 3, |b| b.close(2, page(37), Why::Evicted)), 0);
    }

    #[test]
    fn renewals_are_of_their_set() {
        for cpus in [1, 2] {
            for chance in [false, true] {
                assert_eq!(found(cpus, 1, |b| b.renew(0, 20, chance)), 0);
                for by in [-64, 64] {
                    let astray = found(cpus, 1, |b| {
                        b.end_astray(by);
                        b.renew(0, 20, chance);
                    });
                    assert_eq!(astray, 1);
                }
            }
        }
    }

    /// The trace does not say in which set a number was given up.
    #[test]
    fn a_number_that_was_given_up_may_be_of_any_set() {
        for cpus in [1, 2] {
            assert_eq!(found(cpus, 1, |b| b.abort()), 0);
            assert_eq!(found(cpus, 1, |b| (0..3).for_each(|_| b.abort())), 0);
            assert_eq!(found(cpus, 3, |b| (0..3).for_each(|_| b.abort())), 0);
            // It does not excuse what happens far from it.
            let far = found(cpus, 1, |b| {
                b.abort();
                for i in 0..20 {
                    b.touch(0, 20, 2, page(100 + i));
                }
                b.end_astray(300);
            });
            assert_eq!(far, 1);
            // One more than given up is too many.
            let few = found(cpus, 1, |b| {
                b.abort();
                b.close(2, page(38), Why::Evicted);
            });
            assert!(few > 0, "{cpus}");
        }
    }

    #[test]
    fn a_slow_cpu_leaves_pages_of_its_set() {
        let at = |cpus: u32, astray| {
            found(cpus, 1, |b| {
                b.abort_slow();
                for i in 1..4 {
                    b.touch(i % cpus, 20, 2, page(100 + u64::from(i)));
                }
                b.end_astray(astray);
                b.touch(1 % cpus, 20, 2, page(200));
            })
        };
        assert_eq!(at(2, 0), 0);
        assert_eq!([at(2, 64), at(2, 300)], [1, 1]);
        assert_eq!(at(1, 0), 1);
    }

    /// Whatever sets, CPUs and batches there are, a good trace is good, and any change of any stay
    /// that gave way is found.
    #[test]
    fn no_stay_can_be_changed() {
        use crate::testing::{mend_checksums, packets_of};
        use crate::trace::wire::{HEAD_SIZE, REF_SIZE};
        let mut state = 1u64;
        let mut random = move |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let (mut changed, mut found) = ([0, 0], [0, 0]);
        for round in 0..80 {
            let (cpus, given_up) = (round % 4 + 1, round / 8 % 2 == 1);
            let cgroups = round % 5 == 0;
            let mut b = TraceBuilder::new(cpus, 16);
            b.header_mut().batch = round % 3 + 1;
            b.header_mut().sets = match cgroups {
                true => uapi::VMTRACE_SETS_CGROUP,
                false => uapi::VMTRACE_SETS_PROCESS,
            };
            // When each CPU had drawn its last number.
            let mut drawn = vec![b.now(); cpus as usize];
            let (mut mms, mut next) = (Vec::new(), 1);
            for _ in 0..600 {
                if mms.len() < 2 || mms.len() < 6 && random(60) == 0 {
                    // Two address spaces of a control group have a set together.
                    match cgroups {
                        true => {
                            let group = next % 3 + 1;
                            b.set_with(0, 10 * next, next, group, group.into());
                        }
                        false => b.set(0, 10 * next, next, next),
                    }
                    b.map_anon(0, 10 * next, next, 0x10_0000, 0x30_0000, Prot(3));
                    mms.push(next);
                    next += 1;
                }
                // The first ones are busy, and the others rest.
                let among = 1 + random(mms.len() as u64);
                let which = random(among) as usize;
                let mm = mms[which];
                if random(150) == 0 && mms.len() > 2 {
                    mms.remove(which);
                    b.mm_end(0, 10 * mm, mm);
                    continue;
                }
                let cpu = random(cpus.into()) as usize;
                b.leap(random(5_000));
                if cpus > 1 {
                    b.read_early(random(b.now() + 100 - drawn[cpu]));
                }
                let seq = b.last_seq();
                match random(10) {
                    0 => b.renew(cpu as u32, 10, random(2) == 0),
                    1 if given_up => b.abort(),
                    _ => b.touch(cpu as u32, 10 * mm, mm, page(random(40))),
                }
                if b.last_seq() > seq {
                    drawn[cpu] = b.now();
                }
                b.read_early(0);
            }
            let bytes = b.finish();
            assert_eq!(errors(&check_bytes(&bytes)), 0, "{round}");
            let kind = std::mem::offset_of!(uapi::vmtrace_packet, kind);
            for (start, end) in packets_of(&bytes) {
                if u32::from(bytes[start + kind]) != uapi::VMTRACE_STREAM_REF {
                    continue;
                }
                for at in (start + HEAD_SIZE..end).step_by(REF_SIZE) {
                    let page = u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
                    let why = (page & uapi::VMTRACE_REF_WHY) >> uapi::VMTRACE_REF_WHY_SHIFT;
                    if !matches!(why, 0 | 12 | 13) || random(12) > 0 {
                        continue;
                    }
                    let mut bytes = bytes.clone();
                    let stay = at + std::mem::offset_of!(uapi::vmtrace_ref, stay);
                    let raw = &mut bytes[stay..stay + 4];
                    let old = u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
                    // By a little; or by a lot, which is found wherever a number was given up.
                    let new = match (given_up, random(2) == 0) {
                        (false, true) => old.saturating_sub(1),
                        (false, false) => old + 1,
                        (true, _) => old + (1 << 20),
                    };
                    raw.copy_from_slice(&new.to_le_bytes());
                    mend_checksums(&mut bytes);
                    let report = check_bytes(&bytes);
                    changed[usize::from(given_up)] += u32::from(new != old);
                    let is_found = report.rule("residency").unwrap().errors > 0;
                    found[usize::from(given_up)] += u32::from(is_found && new != old);
                }
            }
        }
        for (found, changed) in found.into_iter().zip(changed) {
            // A few are those of other admissions of the batch.
            assert!(
                changed > 300 && found * 100 >= changed * 98,
                "{found} of {changed}"
            );
        }
    }

    /// Passes a trace on, and notes how many records were held at most.
    struct Held {
        several: Several,
        out: Findings,
        most: usize,
    }

    impl Consumer for Held {
        fn wants_continuations(&self) -> bool {
            true
        }

        fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
            for r in batch.refs {
                self.several.record(r, batch.world, &mut self.out);
                self.most = self.most.max(self.several.held());
            }
            Ok(())
        }

        fn event(&mut self, e: &Event<'_>, world: &World, _issues: &[Issue]) -> Result<()> {
            self.several.event(e, world, &mut self.out);
            Ok(())
        }
    }

    /// Thousands of sets, most of which have ended: memory has those that have not.
    #[test]
    fn sets_that_have_ended_are_forgotten() {
        for sets in [uapi::VMTRACE_SETS_PROCESS, uapi::VMTRACE_SETS_CGROUP] {
            let mut b = TraceBuilder::new(2, 8);
            b.header_mut().sets = sets;
            for mm in 1..=1_000u32 {
                // Control group 0 is that of all.
                b.set_with(0, 10 * mm, mm, mm, mm.into());
                b.map_anon(0, 10 * mm, mm, 0x10_0000, 0x30_0000, Prot(3));
                for i in 0..20 {
                    b.touch(i & 1, 10 * mm, mm, page(u64::from(i)));
                }
                if mm % 50 != 0 {
                    b.mm_end(0, 10 * mm, mm);
                }
            }
            let bytes = b.finish();
            assert_eq!(errors(&check_bytes(&bytes)), 0);
            let trace = Trace::from_bytes("memory", bytes).unwrap();
            let report = RuleReport {
                id: "residency",
                about: "",
                errors: 0,
                warnings: 0,
                notes: 0,
                examples: Vec::new(),
            };
            let mut held = Held {
                several: Several::new(trace.header(), 0),
                out: Findings {
                    report,
                    keep: 0,
                    options: CheckOptions::default(),
                },
                most: 0,
            };
            let mode = PageMode::Canonical;
            pipeline::run(&trace, mode, &mut Unwatched, &mut [&mut held]).unwrap();
            // Those of twenty sets, and of one that has not ended yet.
            assert!(held.most <= 21 * 8 + 1, "{}", held.most);
            assert_eq!(held.several.places.len(), 20 * 8);
            assert_eq!(held.several.fifos.len(), 20);
        }
    }
}
