//! Bounds on the misses of all references, from a trace that has one record a stay.
//!
//! What a trace gives for a memory is an estimate: most references are not in the
//! trace. For LRU and OPT, the misses of *all* references of the run lie between two
//! numbers that follow from the trace alone. This module finds the two numbers and
//! proves them. Nothing is measured and nothing is likely: either a premise below is
//! violated, or the misses lie in the band.
//!
//! # Premises
//!
//! The set has at most `N` members. If its size was changed, `N` is the largest one.
//!
//! 1. The run is a sequence of references, one after another. A reference goes to a
//!    page through a page table entry that is a member of the set at that moment. If
//!    the entry is none, the reference makes it a member, which takes a number: that
//!    is an *admission*, and its record bears the page. From the admission to the end
//!    of membership is a *stay*.
//! 2. Numbers are taken one by one. A stay that has number `o` ends before the number
//!    `o + N` is taken, unless it is given a new number: then it is *continued*, by a
//!    *renewal* (a record that is no reference) or by a *second chance* (a record that
//!    counts as a reference: the entry was used at some time since the stay had its
//!    previous number). A number may be given up, and then has no record.
//! 3. All records are there, in the order of their numbers. All entries lead to the
//!    page that their record names, until the stay ends. Several entries may lead to
//!    one page.
//! 4. A page that is freed leaves memory at once, at the same place of both sequences,
//!    and is not referenced any more: its identity does not come back. (If freed pages
//!    are kept, or if there are none, all of this holds too.)
//! 5. Where the trace says whether a page was referenced *again*: a record without that
//!    mark means that the entry was not used, through this record's part of the stay,
//!    after the admission had left its CPU's first segment. A page leaves it at the
//!    `F`-th admission on the same CPU after its own at the latest, and is renewed only
//!    while it is in there.
//!
//! Two processors at once are a sequence too, in which a number stands where it was
//! taken. What one CPU references through an entry that another one is just about to
//! disable, or through a stale entry of its TLB, counts as before that number. Events
//! and admissions are ordered by the kernel; where two references of different CPUs are
//! concurrent, any order is as good.
//! A trace that lost records, that is damaged, or that was made under `vmtrace_break`,
//! violates the premises. So do references by file descriptor: they are in neither sequence.
//!
//! # LRU: notation
//!
//! Let a page `p` be referenced at `t`, and before that at `u`, with no reference to
//! `p` in between. Let `A(s)` be how many pages other than `p` were referenced in
//! `(u, s]` and are not freed at `s`. LRU has `p` until `A(s)` reaches the size of
//! memory: all these pages are younger than `p`, so they are in memory as long as `p`
//! is. So the reference misses in memories of `d` pages and fewer, and hits in all
//! others, where the *distance* `d` is the greatest `A(s)` for `s` in `(u, t)`.
//!
//! The same can be said of the sequence of records that count as references. There,
//! let `u'` be the last such record of `p` before `t`, with the count `A'` and the
//! distance `d'`. Both counts are about the same pages being freed, so whatever is said
//! of the pages that one count has and the other has not, at all `s`, is said of
//! distances.
//!
//! # LRU: without second chances
//!
//! Let `t` be an admission. Then `u'` is an admission, a reference like others, and
//! `u' <= u`.
//!
//! *`d <= d' + h`, where `h` is the number of other members at `u'` that are still to be
//! referenced in their stays.* If `q` counts in `A(s)` and not in `A'(s)`, it was referenced in
//! `(u, s]` and has no record in `(u', s]`. So the stay of this reference began before
//! `u'` and lasted beyond. There are `N - 1` other members at most, thus `h <= N - 1`.
//!
//! *`d' <= d + e` or `d' <= e`, where `e` is the number of records that count as
//! references after `u'`, up to the last moment at which `p` can have been referenced.*
//! If `q` counts in `A'(s)` and not in `A(s)`, all records of `q` in `(u', s]` are in
//! `(u', u]`. For `s <= u`, `A'(s)` itself is no more than that. If the stays of `p` were
//! not renewed, `u` lies before the number `N` after that of `u'`: so `e <= N - 1`.
//!
//! Neither can be improved for all traces: tests/bands.rs has runs that reach both.
//!
//! *So an admission misses in memories of `d' - e` pages and fewer, and hits in memories
//! of more than `d' + h`.* These are the references that can be seen. A first
//! reference is an admission in both sequences, and misses in both.
//!
//! *A reference that is no admission misses in memories of `M >= 2 N - 1` pages only if
//! there were `M - N + 1` admissions since `u`.* For `M` pages must have counted in
//! `A(s)`; those that have no record since `u` were members at `u`, `N - 1` at most. Without a
//! renewal in between there are less than `N` admissions in `(u, t)`, for `u` is not before the
//! number that the stay had: then it hits.
//!
//! *If there are `e` records after an admission of `p`, up to the last moment at which
//! `p` can have been referenced before its next admission, at most
//! `e / (M - N + 1)` references in between miss.* For the intervals `(u, t)` of those
//! that miss lie in there, one after another, and each takes `M - N + 1`.
//! That sum over all admissions is what renewals make uncertain. It is 0 without
//! renewals, and for each renewal it is at most 1.
//!
//! So, for all `M`, the misses are no fewer than the first references and the
//! admissions with `d' - e >= M`; and for `M >= 2 N - 1` no more than first references,
//! admissions with `d' + h >= M`, and the sum. In particular, without
//! renewals, they lie between the trace's misses of `M + N - 1` and of `M - N + 1` pages.
//!
//! # LRU: with second chances
//!
//! A second chance at `c` says that the entry was used since the stay's last number, `N`
//! before `c` at most. The band counts admissions only, but `u'` may be a second
//! chance now, and records of `q` too.
//!
//! *`d <= d' + h` still, if `u'` is an admission, and `h = 2 N - 2` if `u'` is a
//! second chance.* If `u >= u'`, as above. Else `u` is at most `N` numbers before `u'`.
//! If `q` was referenced in `(u, s]` and has no record in `(u', s]`, the stay of that
//! reference has a number of those between `2 N` before `u'` and `u'`, which are
//! `2 N - 2` without those of `p`; for `s <= u'`, that is a bound on `A(s)` itself.
//!
//! *`d' <= d + N - 1`, or `d' <= d + e + N - 1` if `p` was renewed since `u'`.* If `q`
//! counts in `A'(s)` only, its record may be a second chance after `u` for a reference
//! before `u`. Then it was a member at `u`, one of `N - 1`. If `u < u'`, only such `q`
//! count. Else there are the `e` records after `u'` too. Without a renewal, all of these
//! have one of the last `N` numbers at `u`, as members have: they are `N - 1` together.
//!
//! *A reference that is no admission hits in memories of `M >= 3 N - 2` pages, but for
//! renewals.* Between `u` and `t`, the stay can have had one second chance, and no two,
//! for between two it was referenced. If `r` is the last record of `p` that counts as a
//! reference, and a second chance, then `u` is at most `N` numbers before `r`. So the
//! sum is over second chances too, of `(e + N - 1) / (M - N + 1)` for each.
//!
//! Narrower bounds may be true with second chances: a member that is referenced has one, as a
//! rule, and what has one takes the number of an admission. Not `h = N - 1`, with which random
//! runs are outside of their bands.
//!
//! # OPT
//!
//! OPT is the least number of loads that a schedule of a memory can do with: it may
//! load pages before their use, for that saves nothing. Freeing changes nothing, for a
//! freed page is not used any more.
//!
//! *OPT of all references has no fewer misses than OPT of the admissions, in `M`
//! pages.* Admissions are among all references: a schedule for all is one for them.
//!
//! *OPT of all references in `M + N - 1` pages has no more misses than OPT of the trace in
//! `M`.* Take OPT's memory for the trace, and `N - 1` frames for those members that are
//! not in it: the page that was referenced last is in it, or is a member too. Whatever is
//! referenced in a stay is there; an admission loads a page only where OPT for
//! the trace loads it.
//!
//! *With second chances, OPT of all references in `M` pages has no fewer misses than
//! OPT of the trace in `M + N - 1`.* Take OPT's memory for all, and the members in
//! addition: a page that gets a second chance is a member, and is there.
//!
//! So renewals do not matter at all to OPT, and the band needs nothing but the
//! trace's own curve: [`opt_band`].
//!
//! # Others
//!
//! CLOCK has no such theorem: tests/bands.rs has a family of runs for which
//! the trace misses always and all references together nearly never, at every size up
//! to any multiple of `N`. The references that set a page's bit lie in the stay that
//! loaded it, where the trace is blind. FIFO has none either.

use std::collections::{BTreeMap, VecDeque};

use rust_mm_trace::uapi;
use serde::Serialize;

use crate::trace::{Header, Ref};
use crate::units::{Access, CanonPage};

/// Between these lie the misses of all references.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Band {
    /// No fewer.
    pub low: u64,
    /// No more.
    pub high: u64,
}

/// The band of OPT in a memory of `size` pages, from the misses of the trace's
/// references by size, for a set of `n` pages. With `chances`, references of the trace are
/// second chances too. `None` for memories of fewer pages than the set.
pub fn opt_band(misses: impl Fn(u64) -> u64, n: u64, chances: bool, size: u64) -> Option<Band> {
    let more = n.max(1) - 1;
    let least = size.checked_sub(more).filter(|&least| least > 0)?;
    let low = if chances {
        size.saturating_add(more)
    } else {
        size
    };
    Some(Band {
        low: misses(low),
        high: misses(least),
    })
}

/// What begins with a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// A stay: an admission.
    Stay,
    /// A stay's next part, by a second chance.
    Chance,
    /// A stay's next part, by a renewal: no reference.
    Renewal,
}

/// A record, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// What it is the beginning of.
    pub begin: Begin,
    /// The page, if it has a name still.
    pub page: Option<CanonPage>,
    /// The CPU of the admission.
    pub cpu: u32,
    /// Marked as referenced again.
    pub again: bool,
}

impl Part {
    /// What a record says, which is of a page that is mapped or not any more. A second
    /// chance of the latter is no reference, as everywhere.
    pub fn of(r: &Ref, mapped: bool, page: CanonPage) -> Self {
        let flags = r.flags();
        let seen = flags.access() == Access::Seen;
        let (begin, named) = match (flags.continues(), seen) {
            (true, _) => (Begin::Renewal, mapped),
            (false, true) if mapped => (Begin::Chance, true),
            (false, true) => (Begin::Renewal, false),
            (false, false) => (Begin::Stay, true),
        };
        Part {
            begin,
            page: named.then_some(page),
            cpu: r.cpu(),
            again: flags.again(),
        }
    }
}

/// What is known of a page since its last record that counts as a reference.
#[derive(Clone, Copy, Default)]
struct Since {
    /// References of the trace up to that record, itself included; 0: none.
    start: u64,
    /// References of the trace after it up to the last moment at which the page can
    /// have been referenced, if no part is open.
    extent: u32,
    /// Parts of stays in which it can still be referenced.
    open: u32,
    /// `h` of the module's description.
    hidden: u32,
    /// The record is a second chance.
    chance: bool,
    /// It was renewed since.
    renewed: bool,
}

/// A number of the set.
#[derive(Clone, Copy)]
struct Number {
    page: Option<CanonPage>,
    /// References can still come.
    open: bool,
    /// It was referenced after it left the first segment, or that is not known.
    again: bool,
}

/// Follows a trace's records, and says between what the misses of all references lie
/// under LRU.
///
/// Needs 24 bytes for each page, 16 for each page of the greatest distance, and 16 for each
/// page of the set.
pub struct Witness {
    n: u64,
    /// The size of first segments, if the trace says what was referenced again.
    first: Option<usize>,
    numbers: VecDeque<Number>,
    /// How many have left `numbers`.
    left: u64,
    /// Open parts of all pages.
    open: u32,
    /// By CPU: its last admissions, as many as its first segment has.
    firsts: Vec<VecDeque<u64>>,
    pages: Vec<Since>,
    references: u64,
    cold: u64,
    chances: u64,
    renewals: u64,
    /// Admissions by the size up to which they miss for certain.
    certain: Vec<u64>,
    /// Admissions by the size up to which they may miss.
    possible: Vec<u64>,
    /// Intervals with references that are not in the trace and may miss, by their length
    /// in references of the trace.
    blind: BTreeMap<u64, u64>,
}

/// CPUs whose first segments are followed; pages of others count as in the first
/// segment to the end.
const CPUS: usize = 1 << 13;

impl Witness {
    /// For a set of `n` pages at most. `first` is the size of a CPU's first segment, for
    /// traces that say whether pages were referenced again after they left it.
    pub fn new(n: u64, first: Option<u32>) -> Self {
        Witness {
            n: n.clamp(1, 1 << 30),
            first: first.map(|first| first as usize),
            numbers: VecDeque::new(),
            left: 0,
            open: 0,
            firsts: Vec::new(),
            pages: Vec::new(),
            references: 0,
            cold: 0,
            chances: 0,
            renewals: 0,
            certain: Vec::new(),
            possible: Vec::new(),
            blind: BTreeMap::new(),
        }
    }

    /// For a trace with this header, whose set was never larger than `largest`.
    pub fn of(header: &Header, largest: u32) -> Self {
        let again = header.features & u64::from(uapi::VMTRACE_AGAIN) != 0
            || header.policy == uapi::VMTRACE_POLICY_CLOCK;
        let n = u64::from(largest.max(header.evms_size));
        Self::new(n, again.then_some(header.first_segment))
    }

    /// A record, in the trace's order, of those too that are no references. For a
    /// reference, `distance` is the greatest size of an LRU memory in which it misses, by the
    /// references of the trace; `None` for a page's first.
    pub fn record(&mut self, part: Part, distance: Option<u32>) {
        if self.numbers.len() as u64 == self.n {
            self.expire();
        }
        if part.begin == Begin::Stay {
            self.admission(part.cpu);
        }
        let page = part.page.map(CanonPage::index);
        if let Some(at) = page {
            if at >= self.pages.len() {
                self.pages
                    .resize((at + 1).next_power_of_two(), Since::default());
            }
        }
        if part.begin == Begin::Renewal {
            self.renewals += 1;
            if let Some(at) = page {
                self.pages[at].renewed = true;
            }
        } else {
            self.references += 1;
            self.chances += u64::from(part.begin == Begin::Chance);
            if let Some(at) = page {
                self.reference(at, part.begin == Begin::Chance, distance);
            }
        }
        // What a renewal goes on with is known if it had a record.
        let known = page.is_some_and(|at| self.pages[at].start > 0);
        let again = part.again || self.first.is_none() || part.begin == Begin::Renewal;
        let open = known && (again || part.begin == Begin::Stay);
        if let (true, Some(at)) = (open, page) {
            self.pages[at].open += 1;
            self.open += 1;
        }
        self.numbers.push_back(Number {
            page: part.page,
            open,
            again,
        });
    }

    /// A page was freed: it is not referenced any more, and its number may be given to
    /// another page.
    pub fn freed(&mut self, page: CanonPage) {
        let at = page.index();
        if self.pages.get(at).is_some_and(|since| since.start > 0) {
            self.settle(at, self.references + 1);
            let since = &mut self.pages[at];
            since.start = self.references;
            since.extent = 0;
            since.chance = false;
            since.renewed = false;
        }
    }

    /// The oldest number leaves the set.
    fn expire(&mut self) {
        if let Some(number) = self.numbers.pop_front() {
            self.left += 1;
            self.close(number);
        }
    }

    /// A part in which no references can come any more.
    fn close(&mut self, number: Number) {
        let Some(page) = number.page.filter(|_| number.open) else {
            return;
        };
        let since = &mut self.pages[page.index()];
        since.open -= 1;
        since.extent = clamp(self.references - since.start);
        self.open -= 1;
    }

    /// A CPU admits a page; another one leaves its first segment.
    fn admission(&mut self, cpu: u32) {
        let Some(first) = self.first else {
            return;
        };
        let cpu = cpu as usize;
        if cpu >= CPUS {
            return;
        }
        if cpu >= self.firsts.len() {
            self.firsts.resize(cpu + 1, VecDeque::new());
        }
        self.firsts[cpu].push_back(self.left + self.numbers.len() as u64);
        if self.firsts[cpu].len() <= first {
            return;
        }
        let passed = self.firsts[cpu].pop_front();
        let place = passed.and_then(|number| number.checked_sub(self.left));
        let Some(number) = place.and_then(|at| self.numbers.get_mut(at as usize)) else {
            return;
        };
        if !number.again {
            let was = std::mem::replace(
                number,
                Number {
                    open: false,
                    ..*number
                },
            );
            self.close(was);
        }
    }

    /// A reference of the trace to a page.
    fn reference(&mut self, at: usize, chance: bool, distance: Option<u32>) {
        let n = self.n as u32;
        let before = self.pages[at];
        let extent = self.settle(at, self.references);
        match distance {
            _ if chance => {}
            Some(distance) if before.start > 0 => {
                let extent = match (self.chances, before.renewed) {
                    (0, _) => extent,
                    (_, false) => extent.max(n - 1),
                    (_, true) => extent.saturating_add(n - 1),
                };
                count(&mut self.certain, distance.saturating_sub(extent));
                count(&mut self.possible, distance.saturating_add(before.hidden));
            }
            _ => self.cold += 1,
        }
        let numbers = clamp(self.left + self.numbers.len() as u64);
        let hidden = match chance {
            true => numbers.min(2 * n - 2),
            false => self.open,
        };
        self.pages[at] = Since {
            start: self.references,
            extent: 0,
            open: before.open,
            hidden,
            chance,
            renewed: false,
        };
    }

    /// Ends what began with a page's last record, before the reference with number `now`;
    /// gives its length.
    fn settle(&mut self, at: usize, now: u64) -> u32 {
        let since = &self.pages[at];
        let (extent, chance) = (extent(since, now), since.chance);
        note(&mut self.blind, self.n, extent, chance);
        extent
    }

    /// The bands of all sizes.
    pub fn bands(&self) -> Bands {
        let mut blind = self.blind.clone();
        for since in self.pages.iter().filter(|since| since.start > 0) {
            // The reference that would come next does not count.
            let extent = extent(since, self.references + 1);
            note(&mut blind, self.n, extent, since.chance);
        }
        Bands {
            least: match self.chances {
                0 => 2 * self.n - 1,
                _ => 3 * self.n - 2,
            },
            n: self.n,
            cold: self.cold,
            certain: from(&self.certain),
            possible: from(&self.possible),
            blind,
        }
    }

    /// Second chances so far.
    pub fn chances(&self) -> u64 {
        self.chances
    }

    /// Renewals so far.
    pub fn renewals(&self) -> u64 {
        self.renewals
    }
}

/// The references of the trace after a page's last record in which the page can have been
/// referenced, before that with number `now`, counted from 1.
fn extent(since: &Since, now: u64) -> u32 {
    match since.open {
        0 => since.extent,
        _ => clamp(now - 1 - since.start),
    }
}

/// Adds an interval to those with references that may miss, unless they hit in all memories
/// that have a band.
fn note(blind: &mut BTreeMap<u64, u64>, n: u64, extent: u32, chance: bool) {
    let extent = u64::from(extent);
    let (length, needed) = match chance {
        false => (extent, n),
        true => (extent + n - 1, 2 * n - 1),
    };
    if length >= needed {
        // Few lengths are told apart: longer by a thousandth is still a bound.
        let unit = 1u64 << (length.ilog2().saturating_sub(10));
        *blind.entry(length.next_multiple_of(unit)).or_default() += 1;
    }
}

fn clamp(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Counts one more; distances are of pages, so that tables are no larger than those of
/// pages and the set.
fn count(counts: &mut Vec<u64>, at: u32) {
    let at = at as usize;
    if at >= counts.len() {
        counts.resize((at + 1).next_power_of_two(), 0);
    }
    counts[at] += 1;
}

/// By place, all that is there and behind.
fn from(counts: &[u64]) -> Vec<u64> {
    let mut sums = counts.to_vec();
    let mut sum = 0;
    for count in sums.iter_mut().rev() {
        sum += *count;
        *count = sum;
    }
    sums
}

/// Bands of LRU, by size of memory.
pub struct Bands {
    least: u64,
    n: u64,
    cold: u64,
    /// By size: admissions that miss for certain.
    certain: Vec<u64>,
    /// By size: admissions that may miss.
    possible: Vec<u64>,
    blind: BTreeMap<u64, u64>,
}

impl Bands {
    /// The least size that has a band.
    pub fn least(&self) -> u64 {
        self.least
    }

    /// Between what the misses of a memory of `size` pages lie; `None` for memories that
    /// are too small.
    pub fn at(&self, size: u64) -> Option<Band> {
        let visible = self.visible(size)?;
        let each = size - self.n + 1;
        let blind = self.blind.range(each..);
        let blind: u64 = blind.map(|(length, count)| length / each * count).sum();
        Some(Band {
            high: visible.high + blind,
            ..visible
        })
    }

    /// The same of admissions only: without what renewals hide.
    pub fn visible(&self, size: u64) -> Option<Band> {
        if size < self.least {
            return None;
        }
        let place = usize::try_from(size).unwrap_or(usize::MAX);
        let of = |sums: &[u64]| sums.get(place).copied().unwrap_or(0);
        Some(Band {
            low: self.cold + of(&self.certain),
            high: self.cold + of(&self.possible),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TraceBuilder;
    use crate::trace::Trace;
    use crate::units::Mm;

    fn part(flags: u32, mapped: bool) -> Part {
        let r = Ref {
            seq: 1,
            time_ns: 1,
            offset: 0,
            page: 0x7000 | u64::from(flags),
            tid_cpu: 3 << uapi::VMTRACE_TID_BITS | 10,
            mm: Mm(1),
            stay: 1,
            pfn: 0,
            vtime: 0,
        };
        Part::of(&r, mapped, CanonPage(7))
    }

    #[test]
    fn parts_are_what_flags_say() {
        let stay = Part {
            begin: Begin::Stay,
            page: Some(CanonPage(7)),
            cpu: 3,
            again: false,
        };
        let renewal = Part {
            begin: Begin::Renewal,
            ..stay
        };
        let unnamed = Part {
            page: None,
            ..renewal
        };
        assert_eq!(part(uapi::VMTRACE_REF_WRITE, true), stay);
        // A reference where nothing is mapped has a page of its own.
        assert_eq!(part(0, false), stay);
        let again = Part {
            again: true,
            ..stay
        };
        assert_eq!(part(uapi::VMTRACE_REF_AGAIN, true), again);
        assert_eq!(part(uapi::VMTRACE_REF_CONT, true), renewal);
        assert_eq!(part(uapi::VMTRACE_REF_CONT, false), unnamed);
        let chance = Part {
            begin: Begin::Chance,
            ..stay
        };
        assert_eq!(part(uapi::VMTRACE_REF_SEEN, true), chance);
        assert_eq!(part(uapi::VMTRACE_REF_SEEN, false), unnamed);
    }

    /// Whether the trace says what was referenced again is in its header, and so is N, unless
    /// it was larger later.
    #[test]
    fn a_witness_knows_its_trace() {
        let mut builder = TraceBuilder::new(1, 4);
        builder.header_mut().first_segment = 2;
        let of = |builder: TraceBuilder, largest| {
            let trace = Trace::from_bytes("memory", builder.finish()).expect("a trace");
            let witness = Witness::of(trace.header(), largest);
            (witness.n, witness.first)
        };
        assert_eq!(of(builder, 0), (4, None));
        let mut builder = TraceBuilder::new(1, 4);
        builder.header_mut().first_segment = 2;
        builder.header_mut().features = uapi::VMTRACE_AGAIN.into();
        assert_eq!(of(builder, 9), (9, Some(2)));
        let mut builder = TraceBuilder::new(1, 4);
        builder.header_mut().first_segment = 2;
        builder.header_mut().policy = uapi::VMTRACE_POLICY_CLOCK;
        assert_eq!(of(builder, 4), (4, Some(2)));
    }
}
