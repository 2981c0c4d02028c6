//! DAMON's answer, from an exact trace.
//!
//! DAMON (Park, Lee, Yeom, Middleware 2019 Industry; Documentation/mm/damon/design.rst
//! of Linux) looks at one page of a region at each *sampling interval* and counts, per
//! *aggregation interval*, in how many of them the page had been accessed:
//! `nr_accesses`. Here the same is counted for every page, from what a trace says.
//!
//! A trace has one record for a page's stay among the N enabled ones. That the page was
//! referenced at the stay's beginning is certain; whether it was again, before the stay
//! ended, is not. So there are two counts of sampling intervals:
//!
//! - *least*: those in which a stay began by a reference;
//! - *most*: those which a stay touches.
//!
//! What the page's accessed bit would have told a sampler that never misses lies between
//! them. The smaller N, and the longer the sampling interval, the closer they are.
//!
//! [`record`] reads what a real DAMON said, [`compare`] holds it against this.

pub mod compare;
pub mod record;

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, World};
use crate::process::Process;
use crate::space::Issue;
use crate::trace::{Body, Event, Ref, Trace};
use crate::units::{Access, Mm, VirtPage};

/// Whether a record says when its page was referenced.
///
/// The record of an admission does. One that says that a stay goes on is no reference.
/// A second chance is given because the accessed bit was found set: some reference had
/// set it since the bit was last cleared, which may be many sampling intervals before.
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

#[derive(Clone, Copy, Default)]
struct Cell {
    least: u32,
    most: u32,
    /// The first sampling interval that is not counted yet.
    least_from: u64,
    most_from: u64,
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
            if sample >= cell.least_from {
                cell.least += 1;
                cell.least_from = sample + 1;
            }
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
        let cell = self.cells.entry(key).or_default();
        let first = first.max(cell.most_from);
        if first <= last {
            cell.most += u32::try_from(last - first + 1).unwrap_or(u32::MAX);
            cell.most_from = last + 1;
        }
    }

    /// The pages of the interval, in order.
    pub fn pages(&self) -> Vec<PageCount> {
        let mut pages: Vec<PageCount> = self
            .cells
            .iter()
            .map(|(&(mm, vpn), cell)| PageCount {
                mm,
                vpn: VirtPage(vpn),
                least: cell.least,
                most: cell.most,
            })
            .collect();
        pages.sort_unstable_by_key(|p| (p.mm, p.vpn));
        pages
    }
}

/// When aggregation intervals begin and end.
#[derive(Clone, Debug)]
pub enum Intervals {
    /// One after the other, of this length, from the trace's start.
    Every(u64),
    /// These, in order; they do not overlap.
    These(Vec<(u64, u64)>),
}

/// Takes the pages of each interval.
pub trait Sink {
    /// An address space is referenced for the first time, by this process.
    fn first(&mut self, _mm: Mm, _process: &Process) {}
    /// An interval is complete; pages are in order of address space and address.
    fn interval(&mut self, start: u64, end: u64, pages: &[PageCount], world: &World);
}

/// Counts the references of a pass.
pub struct Exact<S> {
    counter: Counter,
    intervals: Intervals,
    /// The interval under way.
    present: Option<(u64, u64)>,
    next: usize,
    page_shift: u32,
    stay_shift: u32,
    last_ns: u64,
    complete: u64,
    /// Address spaces that were referenced; their numbers are never used again.
    seen: FxHashSet<Mm>,
    /// What takes the intervals.
    pub sink: S,
}

impl<S: Sink> Exact<S> {
    /// Counts for a sink.
    pub fn new(intervals: Intervals, sampling_ns: u64, sink: S) -> Self {
        Exact {
            counter: Counter::new(sampling_ns),
            intervals,
            present: None,
            next: 0,
            page_shift: 12,
            stay_shift: 0,
            last_ns: 0,
            complete: 0,
            seen: FxHashSet::default(),
            sink,
        }
    }

    /// Intervals that were complete.
    pub fn complete(&self) -> u64 {
        self.complete
    }

    fn begin_next(&mut self) {
        self.present = match (&self.intervals, self.present) {
            (Intervals::Every(length), Some((_, end))) => Some((end, end.saturating_add(*length))),
            (Intervals::Every(_), None) => None,
            (Intervals::These(all), _) => all.get(self.next).copied(),
        };
        self.next += 1;
        if let Some((start, end)) = self.present {
            self.counter.begin(start, end);
        }
    }

    /// Ends intervals that lie before a moment.
    fn advance(&mut self, time: u64, world: &World) {
        while let Some((start, end)) = self.present.filter(|p| time >= p.1) {
            let pages = self.counter.pages();
            self.sink.interval(start, end, &pages, world);
            self.complete += 1;
            self.begin_next();
        }
    }
}

impl<S: Sink> Consumer for Exact<S> {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        let header = trace.header();
        self.page_shift = header.page_shift;
        self.stay_shift = header.stay_shift;
        let start = header.start_time_ns;
        if let Intervals::Every(length) = self.intervals {
            self.present = Some((start, start.saturating_add(length)));
            self.counter.begin(start, start.saturating_add(length));
        } else {
            self.begin_next();
        }
        Ok(())
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for r in batch.refs {
            self.advance(r.time_ns, batch.world);
            self.last_ns = self.last_ns.max(r.time_ns);
            let referenced = is_timed(r);
            let until = r.end_ns(self.stay_shift).unwrap_or(u64::MAX);
            if self.seen.insert(r.mm) {
                if let Some(id) = batch.world.tasks.find(r.tid()) {
                    self.sink.first(r.mm, batch.world.tasks.process(id));
                }
            }
            let page = (r.mm, r.vpn(self.page_shift));
            self.counter.observe(page, r.time_ns, until, referenced);
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, world: &World, _issues: &[Issue]) -> Result<()> {
        self.advance(event.time_ns, world);
        self.last_ns = self.last_ns.max(event.time_ns);
        if let Body::MmEnd = event.body {
            self.counter.open.retain(|(mm, _), _| *mm != event.mm);
        }
        Ok(())
    }

    fn finish(&mut self, trace: &Trace, outcome: &Outcome) -> Result<()> {
        let stop = trace
            .index()
            .end
            .as_ref()
            .map_or(0, |end| end.status.stop_time_ns);
        self.advance(self.last_ns.max(stop), &outcome.world);
        // Of a trace that is shorter than an interval, this is all there is.
        if let (0, Some((start, end)), Intervals::Every(_)) =
            (self.complete, self.present, &self.intervals)
        {
            let pages = self.counter.pages();
            self.sink.interval(start, end, &pages, &outcome.world);
        }
        Ok(())
    }
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
}

/// Tenths of the largest possible `nr_accesses`.
pub const TENTHS: usize = 10;

/// What is known of an address space.
#[derive(Clone, Debug, Serialize)]
pub struct TargetSummary {
    /// Its number.
    pub mm: u32,
    /// Its process.
    pub pid: u32,
    /// The process's name.
    pub comm: String,
    /// Intervals from its first reference on.
    pub intervals: u64,
    /// Bytes that certainly were referenced, by interval.
    pub working_set_least: Percentiles,
    /// Bytes that may have been referenced.
    pub working_set_most: Percentiles,
    /// Regions of equal `nr_accesses` (least), a mean of intervals.
    pub regions: f64,
    /// Pages times intervals by `nr_accesses` (least), in tenths of what is possible;
    /// those with none are left out.
    pub by_accesses: [u64; TENTHS],
}

#[derive(Default)]
struct Target {
    pid: u32,
    comm: String,
    /// By the process whose address space it is, not only by who referenced it first.
    named: bool,
    least: Vec<u64>,
    most: Vec<u64>,
    regions: u64,
    by_accesses: [u64; TENTHS],
}

impl Target {
    fn name(&mut self, process: &Process) {
        self.pid = process.tgid.0;
        self.comm.clone_from(&process.comm);
    }
}

/// Summarises all address spaces.
pub struct Summaries {
    page_size: u64,
    largest: u64,
    targets: BTreeMap<Mm, Target>,
    ended: FxHashMap<Mm, ()>,
}

impl Summaries {
    /// For pages of so many bytes, and so many sampling intervals in an interval.
    pub fn new(page_size: u64, largest: u64) -> Self {
        Summaries {
            page_size,
            largest: largest.max(1),
            targets: BTreeMap::new(),
            ended: FxHashMap::default(),
        }
    }

    /// The address spaces, the one with the largest working set first.
    pub fn targets(&self) -> Vec<TargetSummary> {
        let mut all: Vec<TargetSummary> = self
            .targets
            .iter()
            .filter(|(_, t)| !t.least.is_empty())
            .map(|(mm, t)| TargetSummary {
                mm: mm.0,
                pid: t.pid,
                comm: t.comm.clone(),
                intervals: t.least.len() as u64,
                working_set_least: Percentiles::of(t.least.clone()),
                working_set_most: Percentiles::of(t.most.clone()),
                regions: t.regions as f64 / t.least.len().max(1) as f64,
                by_accesses: t.by_accesses,
            })
            .collect();
        all.sort_by_key(|t| (std::cmp::Reverse(t.working_set_most.max), t.mm));
        all
    }
}

impl Sink for Summaries {
    fn first(&mut self, mm: Mm, process: &Process) {
        self.targets.entry(mm).or_default().name(process);
    }

    fn interval(&mut self, _start: u64, _end: u64, pages: &[PageCount], world: &World) {
        for pages in pages.chunk_by(|a, b| a.mm == b.mm) {
            self.targets.entry(pages[0].mm).or_default();
        }
        for (&mm, target) in &mut self.targets {
            let of = |p: &PageCount| p.mm < mm;
            let first = pages.partition_point(of);
            let last = pages.partition_point(|p| p.mm <= mm);
            let pages = &pages[first..last];
            let live = world.space.get(mm).is_some();
            // It has its last interval when it ends.
            if !live && (pages.is_empty() || self.ended.insert(mm, ()).is_some()) {
                continue;
            }
            // Of a program that was executed the name comes after the first references.
            if !target.named {
                let processes = world.tasks.processes();
                if let Some(process) = processes.iter().rfind(|p| p.mm == mm) {
                    target.name(process);
                    target.named = true;
                }
            }
            let least = pages.iter().filter(|p| p.least > 0).count() as u64;
            target.least.push(least * self.page_size);
            target.most.push(pages.len() as u64 * self.page_size);
            let mut before: Option<&PageCount> = None;
            for page in pages.iter().filter(|p| p.least > 0) {
                let joined = |b: &PageCount| b.vpn.0 + 1 == page.vpn.0 && b.least == page.least;
                target.regions += u64::from(!before.is_some_and(joined));
                before = Some(page);
                let tenth = u64::from(page.least - 1) * TENTHS as u64 / self.largest;
                target.by_accesses[(tenth as usize).min(TENTHS - 1)] += 1;
            }
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
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }
}
