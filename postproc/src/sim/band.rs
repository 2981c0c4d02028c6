//! Bounds on the misses of all references, from a trace that has one record a stay.
//!
//! Most references of a run are not in its trace, so a simulation of the trace gives an
//! estimate. For LRU and OPT, the number of misses on *all* references of the run lies
//! between two numbers that follow from the trace alone: the band. This module computes the
//! two numbers and proves that they are bounds. No measurement and no probability is
//! involved: the misses lie in the band unless a premise below is violated.
//!
//! # Premises
//!
//! The set has at most `N` members. If its size was changed, `N` is the largest size.
//!
//! 1. The run is a sequence of references, one after another. Each reference goes through a
//!    page table entry that is a member of the set at that moment. If the entry is not a
//!    member, the reference makes it one, which takes a number. This is an *admission*, and
//!    its record contains the page. The time from the admission to the end of membership is
//!    a *stay*.
//! 2. Numbers are taken one by one. A stay that has number `o` ends before number `o + N` is
//!    taken, unless the stay is *continued* with a new number. There are two kinds of
//!    continuation. A *renewal* has a record that is not a reference. A *second chance* has a
//!    record that counts as a reference: the entry was used at some time since the stay got
//!    its previous number. A number may be given up, and then has no record. A stay may end
//!    at any time before number `o + N` is taken. In a batch, it ends for an earlier number.
//! 3. All records are there, in the order of their numbers. Each entry leads to the page that
//!    its record names, until the stay ends. Several entries may lead to one page.
//! 4. A page that is freed leaves memory at once, at the same place of both sequences (all
//!    references, and the records of the trace). It is not referenced any more, because its
//!    identity is not used again. (The theorems also hold if freed pages are kept, or if no
//!    page is freed.)
//! 5. This premise concerns traces that show whether a page was referenced *again*. If a
//!    record does not have that mark, the entry was not used, during this record's part of
//!    the stay, after the admission had left its CPU's first segment. The admission leaves the
//!    first segment at the latest at the `F`-th later admission on the same CPU. Its stay is
//!    renewed only while it is in the first segment.
//!
//! The references of several CPUs are a sequence, too, in which each number stands where it was
//! taken. If one CPU references a page through an entry that another CPU is about to disable,
//! or through a stale entry of its TLB, the reference counts as before that number. The kernel
//! orders events and admissions. Where references of different CPUs are concurrent, any order
//! of them will do.
//!
//! The premises are violated by a trace that lost records, by a damaged trace, and by a trace
//! that was made under `vmtrace_break`. References by file descriptor are in neither sequence.
//!
//! # LRU: notation
//!
//! Let a page `p` be referenced at `t`, and before that at `u`, with no reference to `p` in
//! between. Let `A(s)` be the number of pages other than `p` that were referenced in `(u, s]`
//! and are not freed at `s`. LRU keeps `p` until `A(s)` reaches the size of memory: these pages
//! are younger than `p`, so they are in memory as long as `p` is. Let the *distance* `d` be the
//! greatest `A(s)` for `s` in `(u, t)`. Then the reference misses in memories of `d` pages and
//! fewer, and hits in all larger memories.
//!
//! The same holds for the sequence of records that count as references. In that sequence, let
//! `u'` be the last such record of `p` before `t`, with the count `A'` and the distance `d'`.
//! Freed pages leave both counts at the same moments. So if a bound on the pages that are in
//! one count and not in the other holds at all `s`, it is a bound on the difference of the
//! distances.
//!
//! # LRU: without second chances
//!
//! Let `t` be an admission. Then `u'` is an admission. It is one of all references, so
//! `u' <= u`.
//!
//! *`d <= d' + h`, where `h` is the number of other members at `u'` that are still to be
//! referenced in their stays.* If `q` counts in `A(s)` and not in `A'(s)`, then `q` was
//! referenced in `(u, s]` and has no record in `(u', s]`. So the stay of that reference began
//! before `u'` and lasted beyond `u'`. There are at most `N - 1` other members, so
//! `h <= N - 1`.
//!
//! *`d' <= d + e` or `d' <= e`, where `e` is the number of records that count as references
//! after `u'`, up to the last moment at which `p` can have been referenced.* If `q` counts in
//! `A'(s)` and not in `A(s)`, all records of `q` in `(u', s]` are in `(u', u]`. For `s <= u`,
//! `A'(s)` itself is at most `e`. If the stays of `p` were not renewed, `u` lies before the
//! number that is `N` after that of `u'`, so `e <= N - 1`.
//!
//! Neither bound can be improved for all traces: tests/bands.rs has runs that reach both.
//!
//! *So an admission misses in memories of `d' - e` pages and fewer, and hits in memories of
//! more than `d' + h` pages.* This covers the references that the trace shows. The first
//! reference to a page is an admission, and misses in both sequences.
//!
//! *A reference that is not an admission misses in a memory of `M >= 2 N - 1` pages only if
//! there were `M - N + 1` admissions since `u`.* To miss, `M` pages must have counted in
//! `A(s)`. Those of them that have no record since `u` were members at `u`, and there are at
//! most `N - 1` of these. Without a renewal in between, there are fewer than `N` admissions in
//! `(u, t)`, because `u` is not before the number that the stay had. Then the reference hits.
//!
//! *Let there be `e` records after an admission of `p`, up to the last moment at which `p` can
//! have been referenced before its next admission. Then at most `e / (M - N + 1)` of the
//! references in between miss.* The intervals `(u, t)` of those that miss lie one after another
//! within these `e` records, and each of them takes `M - N + 1` records. The sum of these
//! numbers over all admissions is what renewals make uncertain. Without renewals it is 0, and
//! it is at most 1 for each renewal.
//!
//! So for all `M`, the misses are at least the first references plus the admissions with
//! `d' - e >= M`. For `M >= 2 N - 1`, they are at most the first references, plus the
//! admissions with `d' + h >= M`, plus the sum. In particular, without renewals, they lie
//! between the trace's misses in `M + N - 1` pages and those in `M - N + 1` pages.
//!
//! # LRU: with second chances
//!
//! A second chance at `c` shows that the entry was used since the stay's last number, which is
//! at most `N` before `c`. The band still counts admissions only, but now `u'` may be a second
//! chance, and so may records of `q`.
//!
//! *If `u'` is an admission, `d <= d' + h` as before. If `u'` is a second chance, the same holds
//! with `h = 2 N - 2`.* If `u >= u'`, the proof is that above. Otherwise `u` is at most `N`
//! numbers before `u'`. If `q` was referenced in `(u, s]` and has no record in `(u', s]`, the
//! stay of that reference has a number between `u'` and the number that is `2 N` before it.
//! These are `2 N - 2` numbers without those of `p`. For `s <= u'`, that is a bound on `A(s)`
//! itself.
//!
//! *`d' <= d + N - 1`, or `d' <= d + e + N - 1` if `p` was renewed since `u'`.* If `q` counts in
//! `A'(s)` only, its record may be a second chance after `u` for a reference before `u`. Then
//! `q` was a member at `u`, and there are `N - 1` of these. If `u < u'`, only such `q` count.
//! Otherwise the `e` records after `u'` count, too. Without a renewal, all of these pages have
//! one of the last `N` numbers at `u`, as members have, so they are `N - 1` together.
//!
//! *A reference that is not an admission hits in memories of `M >= 3 N - 2` pages, apart from
//! renewals.* Between `u` and `t`, the stay can have had at most one second chance, because it
//! was referenced between any two. If `r` is the last record of `p` that counts as a reference,
//! and `r` is a second chance, then `u` is at most `N` numbers before `r`. So the sum also has
//! the term `(e + N - 1) / (M - N + 1)` for each second chance.
//!
//! With second chances, narrower bounds may hold: as a rule, a member that is referenced gets a
//! second chance, which takes the number of an admission. But `h = N - 1` is wrong: with it,
//! random runs are outside of their bands.
//!
//! # OPT
//!
//! The misses of OPT are the least number of loads with which a schedule of a memory can do.
//! A schedule may load pages before their use, because this saves no load. Freeing changes
//! nothing, because a freed page is not used any more.
//!
//! *OPT on all references has no fewer misses than OPT on the admissions, in `M` pages.* The
//! admissions are among all references, so a schedule for all references is a schedule for
//! the admissions.
//!
//! *OPT on all references in `M + N - 1` pages has no more misses than OPT on the trace in `M`
//! pages.* Take OPT's memory for the trace, and `N - 1` more frames for those members that are
//! not in it. These are enough, because the page that was referenced last is in OPT's memory,
//! or is a member too. Every page that is referenced in a stay is then in memory. An admission
//! loads a page only where OPT for the trace loads it.
//!
//! *With second chances, OPT on all references in `M` pages has no fewer misses than OPT on the
//! trace in `M + N - 1` pages.* Take OPT's memory for all references, and add the members. A
//! page that gets a second chance is a member, so it is in memory.
//!
//! So renewals do not matter to OPT, and the band needs only the trace's own curve:
//! [`opt_band`].
//!
//! # Other policies
//!
//! CLOCK has no such theorem. tests/bands.rs has a family of runs for which the trace always
//! misses, whereas all references together nearly never miss, at every size up to any multiple
//! of `N`. The references that set a page's bit lie in the stay that loaded the page, and the
//! trace does not contain them. FIFO has no such theorem either.

use std::collections::{BTreeMap, VecDeque};

use rust_mm_trace::uapi;
use serde::Serialize;

use crate::trace::{Header, Ref};
use crate::units::{Access, CanonPage};

/// Bounds on the number of misses on all references.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Band {
    /// The misses are no fewer than this.
    pub low: u64,
    /// The misses are no more than this.
    pub high: u64,
}

/// The band of OPT in a memory of `size` pages, for a set of `n` pages. `misses` gives the
/// misses of the trace's references by size. With `chances`, some references of the trace are
/// second chances. `None` for memories of fewer pages than the set.
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

/// The kind of part of a stay that a record begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// A stay: an admission.
    Stay,
    /// A stay's next part, by a second chance.
    Chance,
    /// A stay's next part, by a renewal: no reference.
    Renewal,
}

/// The fields of a record that bounds depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The kind of part that the record begins.
    pub begin: Begin,
    /// The page, if it still has a name.
    pub page: Option<CanonPage>,
    /// The CPU of the admission.
    pub cpu: u32,
    /// Marked as referenced again.
    pub again: bool,
}

impl Part {
    /// The part that a record begins; `mapped` if its page is still mapped. A second chance of
    /// a page that is no longer mapped is not a reference, as in all of postproc.
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

/// What is known about a page since its last record that counts as a reference.
#[derive(Clone, Copy, Default)]
struct Since {
    /// References of the trace up to and including that record; 0 if there is no such record.
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
    /// The page was renewed since that record.
    renewed: bool,
}

/// A number of the set.
#[derive(Clone, Copy)]
struct Number {
    page: Option<CanonPage>,
    /// The page can still be referenced through this part of the stay.
    open: bool,
    /// The page was referenced after it left the first segment, or this is unknown.
    again: bool,
}

/// Follows a trace's records, and bounds the misses on all references under LRU.
///
/// Needs 24 bytes for each page, 16 for each page of the greatest distance, and 16 for each
/// page of the set.
pub struct Witness {
    n: u64,
    /// The size of first segments, if the trace shows which pages were referenced again.
    first: Option<usize>,
    /// The last `n` numbers.
    numbers: VecDeque<Number>,
    /// How many numbers have left `numbers`.
    left: u64,
    /// Number of open parts of all pages.
    open: u32,
    /// By CPU: its last admissions, as many as its first segment has.
    firsts: Vec<VecDeque<u64>>,
    pages: Vec<Since>,
    references: u64,
    cold: u64,
    chances: u64,
    renewals: u64,
    /// Admissions by the size up to which they certainly miss.
    certain: Vec<u64>,
    /// Admissions by the size up to which they may miss.
    possible: Vec<u64>,
    /// Number of intervals in which references that are not in the trace may miss, by length of
    /// the interval in references of the trace.
    blind: BTreeMap<u64, u64>,
}

/// CPUs whose first segments are followed. A page of any other CPU counts as in the first
/// segment to the end of its stay.
const CPUS: usize = 1 << 13;

impl Witness {
    /// For a set of at most `n` pages. `first` is the size of a CPU's first segment, if the
    /// trace shows whether pages were referenced again after they left it.
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

    /// Takes the next record of the trace, also if it is not a reference. For a reference,
    /// `distance` is the size of the largest LRU memory in which it misses, by the references of
    /// the trace; `None` for the first reference to a page.
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
        // The stay that a renewal continues is known if it had a record.
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

    /// Notes that a page was freed. The page is not referenced any more, and its number may be
    /// given to another page.
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

    /// Removes the oldest number from the set.
    fn expire(&mut self) {
        if let Some(number) = self.numbers.pop_front() {
            self.left += 1;
            self.close(number);
        }
    }

    /// Ends a part: its page is not referenced through it any more.
    fn close(&mut self, number: Number) {
        let Some(page) = number.page.filter(|_| number.open) else {
            return;
        };
        let since = &mut self.pages[page.index()];
        since.open -= 1;
        since.extent = clamp(self.references - since.start);
        self.open -= 1;
    }

    /// Notes that a CPU admits a page. Another page leaves the CPU's first segment.
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

    /// Counts a reference of the trace to a page.
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

    /// Ends the interval that began with a page's last record, before the reference with number
    /// `now`; returns its length.
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

/// The number of references of the trace after a page's last record, up to the last moment at
/// which the page can have been referenced, before the reference with number `now`, counted
/// from 1.
fn extent(since: &Since, now: u64) -> u32 {
    match since.open {
        0 => since.extent,
        _ => clamp(now - 1 - since.start),
    }
}

/// Adds an interval in which references may miss. Leaves out an interval whose references hit
/// in all memories that have a band.
fn note(blind: &mut BTreeMap<u64, u64>, n: u64, extent: u32, chance: bool) {
    let extent = u64::from(extent);
    let (length, needed) = match chance {
        false => (extent, n),
        true => (extent + n - 1, 2 * n - 1),
    };
    if length >= needed {
        // Lengths are rounded up by at most a thousandth, which keeps the bound valid and the map
        // small.
        let unit = 1u64 << (length.ilog2().saturating_sub(10));
        *blind.entry(length.next_multiple_of(unit)).or_default() += 1;
    }
}

fn clamp(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Adds one to the count at `at`. Distances count pages, so a table is no larger than the tables
/// of pages and of the set.
fn count(counts: &mut Vec<u64>, at: u32) {
    let at = at as usize;
    if at >= counts.len() {
        counts.resize((at + 1).next_power_of_two(), 0);
    }
    counts[at] += 1;
}

/// For each place, the sum of the counts at this place and at all later ones.
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
    /// By size: admissions that certainly miss.
    certain: Vec<u64>,
    /// By size: admissions that may miss.
    possible: Vec<u64>,
    blind: BTreeMap<u64, u64>,
}

impl Bands {
    /// The smallest size that has a band.
    pub fn least(&self) -> u64 {
        self.least
    }

    /// The bounds on the misses in a memory of `size` pages; `None` for memories that are too
    /// small.
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

    /// The lower bound on the misses in a memory of `size` pages. It holds at all sizes, also at
    /// those that have no band.
    pub fn low(&self, size: u64) -> u64 {
        self.cold + at(&self.certain, size)
    }

    /// The same for admissions only, without the misses that renewals hide.
    pub fn visible(&self, size: u64) -> Option<Band> {
        if size < self.least {
            return None;
        }
        Some(Band {
            low: self.low(size),
            high: self.cold + at(&self.possible, size),
        })
    }
}

/// The sum at a size.
fn at(sums: &[u64], size: u64) -> u64 {
    let place = usize::try_from(size).unwrap_or(usize::MAX);
    sums.get(place).copied().unwrap_or(0)
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
            set: 0,
            vtime: 0,
            within: crate::trace::wire::NO_OFFSET,
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

    /// The header shows whether the trace has marks for pages that were referenced again. It
    /// also contains N, unless N was larger later.
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
