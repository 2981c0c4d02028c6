//! DAMON's figures, computed from an exact trace.
//!
//! DAMON (Park, Lee, Yeom, Middleware 2019 Industry; Documentation/mm/damon/design.rst
//! of Linux) looks at one page of a region at each *sampling interval*. Per *aggregation
//! interval*, it counts the sampling intervals in which that page had been accessed:
//! `nr_accesses`. Here the same is counted for every page, from a trace.
//!
//! A trace has one record for a page's stay among the N enabled pages. A reference at the
//! beginning of the stay is certain; further references before the end of the stay are
//! possible. So there are two counts of sampling intervals:
//!
//! - *least*: the intervals in which a reference began a stay;
//! - *most*: the intervals that overlap a stay.
//!
//! The count of a sampler that reads the page's accessed bit in every interval lies between
//! the two. They are the closer, the smaller N is and the longer the sampling interval.
//!
//! [`Summaries`] has the working set of each address space. [`record`] reads a real DAMON's
//! record, and [`compare`] compares it with the exact counts.

pub mod compare;
pub mod record;
mod summary;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, World};
use crate::space::Issue;
use crate::trace::{Body, Event, Ref, Trace};
use crate::units::{Access, Mm, VirtPage};

pub use summary::{Summaries, TENTHS, TargetSummary};

/// Whether a record says when its page was referenced.
///
/// The record of an admission does. A renewal is no reference. A second chance is given
/// because the accessed bit was found set: some reference has set the bit since it was last
/// cleared, which may be many sampling intervals ago.
pub fn is_timed(r: &Ref) -> bool {
    let flags = r.flags();
    !flags.continues() && flags.access() != Access::Seen
}

/// A page's counts in an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageCount {
    /// The address space.
    pub mm: Mm,
    /// The page.
    pub vpn: VirtPage,
    /// Sampling intervals in which it certainly was referenced.
    pub least: u32,
    /// Sampling intervals in which it may have been.
    pub most: u32,
}

/// How many sampling intervals are counted for a page in an aggregation interval.
#[derive(Clone, Copy, Default)]
pub(crate) struct Samples {
    /// So many.
    pub count: u32,
    /// The first sampling interval that is not counted yet.
    from: u64,
}

impl Samples {
    /// Counts those of `first..=last` that are not counted yet. Later calls have no
    /// smaller numbers.
    pub fn add(&mut self, first: u64, last: u64) {
        let first = first.max(self.from);
        if first <= last {
            let more = u32::try_from(last - first).unwrap_or(u32::MAX);
            self.count = self.count.saturating_add(more).saturating_add(1);
            self.from = last.saturating_add(1);
        }
    }
}

/// The pages of the interval under way that were referenced at a known time.
#[derive(Default)]
pub(crate) struct Referenced(FxHashMap<(Mm, u64), Samples>);

/// A page, and in how many sampling intervals it was referenced.
pub(crate) type Hot = (Mm, u64, u32);

impl Referenced {
    /// A reference in a sampling interval.
    pub fn add(&mut self, mm: Mm, page: u64, sample: u64) {
        self.0.entry((mm, page)).or_default().add(sample, sample);
    }

    /// The pages in order; none are left.
    pub fn take(&mut self) -> Vec<Hot> {
        let (room, used) = (self.0.capacity(), self.0.len());
        let cells = self.0.drain();
        let mut pages: Vec<Hot> = cells.map(|((mm, p), s)| (mm, p, s.count)).collect();
        // To empty a table costs as much as it has room: an interval with many pages must
        // not burden all that follow.
        if room > 1024 + 8 * used {
            self.0 = FxHashMap::default();
        }
        pages.sort_unstable();
        pages
    }
}

#[derive(Clone, Copy, Default)]
struct Cell {
    least: Samples,
    most: Samples,
}

/// Counts sampling intervals, page by page, in one aggregation interval after the
/// other.
///
/// Memory holds the pages of an interval, and those whose stay goes on behind it.
pub struct Counter {
    sampling_ns: u64,
    start: u64,
    end: u64,
    cells: FxHashMap<(Mm, u64), Cell>,
    /// Stays that go on behind the interval, and until when.
    open: FxHashMap<(Mm, u64), u64>,
}

impl Counter {
    /// For sampling intervals of this length; an interval must begin before anything is
    /// counted.
    pub fn new(sampling_ns: u64) -> Self {
        Counter {
            sampling_ns: sampling_ns.max(1),
            start: 0,
            end: 0,
            cells: FxHashMap::default(),
            open: FxHashMap::default(),
        }
    }

    /// Begins an aggregation interval, `start..end`.
    pub fn begin(&mut self, start: u64, end: u64) {
        (self.start, self.end) = (start, end);
        self.cells.clear();
        let open = std::mem::take(&mut self.open);
        for (page, until) in open {
            if until >= start {
                self.stay(page, start, until);
            }
        }
    }

    /// A stay from `time` to `until`, which began by a reference or goes on since before.
    pub fn observe(&mut self, page: (Mm, VirtPage), time: u64, until: u64, referenced: bool) {
        let key = (page.0, page.1.0);
        if referenced && (self.start..self.end).contains(&time) {
            let sample = (time - self.start) / self.sampling_ns;
            let cell = self.cells.entry(key).or_default();
            cell.least.add(sample, sample);
        }
        self.stay(key, time, until.max(time));
    }

    fn stay(&mut self, key: (Mm, u64), time: u64, until: u64) {
        if until >= self.end {
            let open = self.open.entry(key).or_insert(until);
            *open = until.max(*open);
        }
        let (from, to) = (time.max(self.start), until.min(self.end.saturating_sub(1)));
        if from > to {
            return;
        }
        let sample = |t: u64| (t - self.start) / self.sampling_ns;
        let (first, last) = (sample(from), sample(to));
        self.cells.entry(key).or_default().most.add(first, last);
    }

    /// The pages of the interval, in order.
    pub fn pages(&self) -> Vec<PageCount> {
        let mut pages: Vec<PageCount> = self
            .cells
            .iter()
            .map(|(&(mm, vpn), cell)| PageCount {
                mm,
                vpn: VirtPage(vpn),
                least: cell.least.count,
                most: cell.most.count,
            })
            .collect();
        pages.sort_unstable_by_key(|p| (p.mm, p.vpn));
        pages
    }
}

/// Takes the pages of each interval.
pub trait Sink {
    /// An interval is complete; pages are in order of address.
    fn interval(&mut self, start: u64, end: u64, pages: &[PageCount]);
}

/// Counts an address space's references of a pass, in given intervals.
pub struct Exact<S> {
    counter: Counter,
    mm: Mm,
    intervals: Vec<(u64, u64)>,
    /// The interval under way.
    present: usize,
    page_shift: u32,
    stay_shift: u32,
    last_ns: u64,
    /// What takes the intervals.
    pub sink: S,
}

impl<S: Sink> Exact<S> {
    /// Counts for a sink; the intervals are in order and do not overlap.
    pub fn new(mm: Mm, intervals: Vec<(u64, u64)>, sampling_ns: u64, sink: S) -> Self {
        Exact {
            counter: Counter::new(sampling_ns),
            mm,
            intervals,
            present: 0,
            page_shift: 12,
            stay_shift: 0,
            last_ns: 0,
            sink,
        }
    }

    fn begin_present(&mut self) {
        if let Some(&(start, end)) = self.intervals.get(self.present) {
            self.counter.begin(start, end);
        }
    }

    /// Ends intervals that lie before a moment.
    fn advance(&mut self, time: u64) {
        self.last_ns = self.last_ns.max(time);
        while let Some(&(start, end)) = self.intervals.get(self.present) {
            if time < end {
                break;
            }
            self.sink.interval(start, end, &self.counter.pages());
            self.present += 1;
            self.begin_present();
        }
    }
}

impl<S: Sink> Consumer for Exact<S> {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        let header = trace.header();
        self.page_shift = header.page_shift;
        self.stay_shift = header.stay_shift;
        self.begin_present();
        Ok(())
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for r in batch.refs {
            self.advance(r.time_ns);
            if r.mm == self.mm {
                let until = r.end_ns(self.stay_shift).unwrap_or(u64::MAX);
                let page = (r.mm, r.vpn(self.page_shift));
                self.counter.observe(page, r.time_ns, until, is_timed(r));
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, _world: &World, _issues: &[Issue]) -> Result<()> {
        // Another CPU's references may still be a little earlier than an event.
        self.last_ns = self.last_ns.max(event.time_ns);
        match event.body {
            Body::MmEnd if event.mm == self.mm => self.counter.open.clear(),
            Body::SnapBegin => self.counter.open.clear(),
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, trace: &Trace, _outcome: &Outcome) -> Result<()> {
        self.advance(self.last_ns.max(stop_time(trace)));
        Ok(())
    }
}

/// When the trace stopped, as its account has it; 0 if it has none.
fn stop_time(trace: &Trace) -> u64 {
    let end = trace.index().end.as_ref();
    end.map_or(0, |end| end.status.stop_time_ns)
}

/// Least, quartiles and largest of several sizes, and their mean; in bytes.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Percentiles {
    pub min: u64,
    pub p25: u64,
    pub p50: u64,
    pub p75: u64,
    pub max: u64,
    pub mean: f64,
}

impl Percentiles {
    /// Of these; nearest ranks.
    pub fn of(mut sizes: Vec<u64>) -> Self {
        if sizes.is_empty() {
            return Percentiles::default();
        }
        sizes.sort_unstable();
        let at = |share: usize| sizes[(sizes.len() - 1) * share / 100];
        Percentiles {
            min: at(0),
            p25: at(25),
            p50: at(50),
            p75: at(75),
            max: at(100),
            mean: sizes.iter().map(|&s| s as f64).sum::<f64>() / sizes.len() as f64,
        }
    }

    /// The same of sizes in order, each with how often it occurs.
    pub(crate) fn of_counts(sizes: impl Iterator<Item = (u64, u64)> + Clone) -> Self {
        let total: u128 = sizes.clone().map(|(_, n)| u128::from(n)).sum();
        let Some(last) = total.checked_sub(1) else {
            return Percentiles::default();
        };
        let at = |share: u128| {
            let mut before = 0;
            let mut upto = sizes.clone().map(|(size, n)| {
                before += u128::from(n);
                (size, before)
            });
            upto.find(|&(_, upto)| upto > last * share / 100)
                .map_or(0, |(size, _)| size)
        };
        let sum: f64 = sizes.clone().map(|(size, n)| size as f64 * n as f64).sum();
        Percentiles {
            min: at(0),
            p25: at(25),
            p50: at(50),
            p75: at(75),
            max: at(100),
            mean: sum / total as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stay: page, from, to, and whether it began by a reference.
    type Stay = (u64, u64, u64, bool);

    /// Looks at every nanosecond.
    fn brute(stays: &[Stay], start: u64, end: u64, sampling: u64) -> Vec<(u64, u32, u32)> {
        let mut found = Vec::new();
        for page in 0..8 {
            let (mut least, mut most) = (0, 0);
            let mut at = start;
            while at < end {
                let sample = at..(at + sampling).min(end);
                let mine = || stays.iter().filter(|s| s.0 == page);
                least += u32::from(mine().any(|s| s.3 && sample.contains(&s.1)));
                most += u32::from(mine().any(|s| sample.clone().any(|t| s.1 <= t && t <= s.2)));
                at += sampling;
            }
            if most > 0 {
                found.push((page, least, most));
            }
        }
        found
    }

    #[test]
    fn counts_are_those_of_looking_at_every_moment() {
        let mut random = 99u64;
        let mut next = |below: u64| {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        for round in 0..200 {
            let (sampling, aggregation) = (1 + next(9), 10 + next(40));
            let mut stays: Vec<Stay> = Vec::new();
            let mut free_at = [0u64; 8];
            for time in 0..200 {
                let page = next(8);
                if next(3) == 0 && free_at[page as usize] <= time {
                    let until = time + next(60);
                    stays.push((page, time, until, next(5) > 0));
                    free_at[page as usize] = until + 1;
                }
            }
            let mut counter = Counter::new(sampling);
            let mut rest = stays.iter().peekable();
            let mut start = 0;
            while start < 260 {
                let end = start + aggregation;
                counter.begin(start, end);
                while let Some(&(page, from, to, referenced)) = rest.next_if(|s| s.1 < end) {
                    counter.observe((Mm(1), VirtPage(page)), from, to, referenced);
                }
                let found: Vec<_> = counter
                    .pages()
                    .iter()
                    .map(|p| (p.vpn.0, p.least, p.most))
                    .collect();
                let expected = brute(&stays, start, end, sampling);
                assert_eq!(
                    found, expected,
                    "round {round}, {start}..{end} by {sampling}"
                );
                start = end;
            }
        }
    }

    #[test]
    fn percentiles_are_of_nearest_ranks() {
        let p = Percentiles::of(vec![40, 10, 30, 20, 50]);
        assert_eq!((p.min, p.p25, p.p50, p.p75, p.max), (10, 20, 30, 40, 50));
        assert_eq!(p.mean, 30.0);
        let counts = [(10, 1), (20, 1), (30, 1), (40, 1), (50, 1)];
        assert_eq!(Percentiles::of_counts(counts.into_iter()), p);
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
        assert_eq!(
            Percentiles::of_counts([(7, 0)].into_iter()),
            Percentiles::default()
        );
        let same = Percentiles::of_counts([(0, 3), (4, 1), (9, 2)].into_iter());
        assert_eq!(same, Percentiles::of(vec![0, 0, 0, 4, 9, 9]));
    }
}
