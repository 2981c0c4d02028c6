//! Reports of regions: what a trace has instead of references if regions of memory were sampled.
//!
//! The kernel looks at one page of each region at a time, and reports how many of these looks found
//! an access. So *accesses / looks* estimates how many of a region's pages were accessed in the time
//! of a look, and the sum of size * accesses / looks over a report estimates the working set.
//!
//! Memory: 16 bytes for each report, 24 if writes are known.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::error::Result;
use crate::pipeline::{Consumer, World};
use crate::process::Tasks;
use crate::space::Issue;
use crate::trace::{Body, Event, RegionBody, SampledBy, Trace};
use crate::units::Mm;

/// What looks at an address space have found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The address space.
    pub mm: Mm,
    /// When its last region was reported, ns.
    pub time_ns: u64,
    /// Its regions, in the order of addresses.
    pub regions: Vec<RegionBody>,
}

impl Report {
    /// Bytes in all regions.
    pub fn bytes(&self) -> u64 {
        let sizes = self.regions.iter().map(|r| r.end.saturating_sub(r.start));
        sizes.fold(0, u64::saturating_add)
    }

    /// The estimate of the working set, in bytes.
    pub fn working_set(&self) -> u64 {
        self.estimate(|r| r.accesses)
    }

    /// The estimate of the bytes that were written; 0 if writes are not known.
    pub fn written(&self) -> u64 {
        self.estimate(|r| r.writes)
    }

    /// Of its regions, what lies in these ranges, which are in order and do not overlap.
    fn within(mut self, ranges: &[RangeInclusive<u64>]) -> Self {
        let parts = |region: &RegionBody| {
            let (region, start, end) = (*region, region.start, region.end);
            ranges.iter().filter_map(move |range| {
                let part = RegionBody {
                    start: start.max(*range.start()),
                    end: end.min(range.end().saturating_add(1)),
                    ..region
                };
                (part.start < part.end).then_some(part)
            })
        };
        self.regions = self.regions.iter().flat_map(parts).collect();
        self
    }

    fn estimate(&self, found: impl Fn(&RegionBody) -> u32) -> u64 {
        let of = |r: &RegionBody| {
            let size = u128::from(r.end.saturating_sub(r.start));
            size * u128::from(found(r).min(r.looks)) / u128::from(r.looks.max(1))
        };
        let sum: u128 = self.regions.iter().map(of).sum();
        u64::try_from(sum).unwrap_or(u64::MAX)
    }
}

/// Puts regions together to reports.
#[derive(Default)]
pub struct Reports {
    open: FxHashMap<Mm, Vec<RegionBody>>,
    cut: u64,
}

impl Reports {
    /// Follows an event. Gives the report that it completes, if it completes one.
    pub fn event(&mut self, event: &Event<'_>) -> Option<Report> {
        let mm = event.mm;
        let region = match event.body {
            Body::Region(region) => region,
            Body::MmEnd => {
                // One more region may come, which may be the last one of the report.
                let open = self.open.get(&mm)?;
                let regions = open.first().map_or(0, |r| r.regions as usize);
                if regions > open.len() + 1 {
                    self.open.remove(&mm);
                    self.cut += 1;
                }
                return None;
            }
            _ => return None,
        };
        if region.index == 0 {
            let cut = self.open.insert(mm, vec![region]);
            self.cut += u64::from(cut.is_some());
        } else {
            let open = self.open.get_mut(&mm)?;
            let follows = open.len() == region.index as usize
                && open.first().is_some_and(|r| r.regions == region.regions);
            if !follows {
                self.open.remove(&mm);
                self.cut += 1;
                return None;
            }
            open.push(region);
        }
        let is_whole = region.index.saturating_add(1) >= region.regions;
        let regions = is_whole.then(|| self.open.remove(&mm)).flatten()?;
        Some(Report {
            mm,
            time_ns: event.time_ns,
            regions,
        })
    }

    /// Reports that were not complete, with those that are not complete yet.
    pub fn cut(&self) -> u64 {
        self.cut + self.open.len() as u64
    }
}

/// The processes that address spaces are of: by address space, the process's id and name, which it
/// had last while it had that address space.
#[derive(Default)]
pub struct Owners(FxHashMap<Mm, (u32, String)>);

impl Owners {
    /// Follows an event, which `tasks` has followed already.
    pub fn event(&mut self, event: &Event<'_>, tasks: &Tasks) {
        let (mm, tid, is_new) = match event.body {
            Body::Task { tid, .. } => (event.mm, tid, true),
            Body::Exec { .. } => (event.mm, event.tid, true),
            // A thread, or vfork(), uses that of its parent.
            Body::Fork {
                child_mm,
                child_tid,
                ..
            } => (child_mm, child_tid, false),
            _ => return,
        };
        if mm.0 == 0 || !is_new && self.0.contains_key(&mm) {
            return;
        }
        if let Some(process) = tasks.find(tid).map(|id| tasks.process(id)) {
            self.0.insert(mm, (process.tgid.0, process.comm.clone()));
        }
    }

    /// The process's id and name; 0 and an empty name if the trace does not say.
    pub fn of(&self, mm: Mm) -> (u32, &str) {
        self.0
            .get(&mm)
            .map_or((0, ""), |(pid, comm)| (*pid, comm.as_str()))
    }
}

/// How a figure is distributed over reports, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Spread {
    /// The least.
    pub min: u64,
    /// Half of the reports have no more.
    pub p50: u64,
    /// 95 of 100 reports have no more.
    pub p95: u64,
    /// The most.
    pub max: u64,
}

impl Spread {
    /// That of these values, in any order; all zero if there is none.
    pub fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        // The least value that so many of a hundred do not exceed.
        let rank = |share: usize| (values.len() * share).div_ceil(100).max(1) - 1;
        let at = |rank: usize| values.get(rank).copied().unwrap_or(0);
        Spread {
            min: at(0),
            p50: at(rank(50)),
            p95: at(rank(95)),
            max: values.last().copied().unwrap_or(0),
        }
    }
}

/// The figures of an address space.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SpaceSummary {
    /// Its process; 0 if the trace does not say.
    pub pid: u32,
    /// The process's name.
    pub comm: String,
    /// Its number.
    pub mm: u32,
    /// Reports of it.
    pub reports: u64,
    /// Regions of a report, a mean.
    pub regions: f64,
    /// Bytes in all regions.
    pub bytes: Spread,
    /// Estimates of the working set.
    pub working_set: Spread,
    /// Estimates of the bytes that were written, if writes are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<Spread>,
}

#[derive(Default)]
struct Figures {
    regions: u64,
    bytes: Vec<u64>,
    working_set: Vec<u64>,
    written: Vec<u64>,
}

/// Which reports are read, and which addresses of their regions.
#[derive(Clone, Debug)]
pub struct Part {
    time_ns: Range<u64>,
    /// In order, and without overlaps; all addresses if there are none.
    addresses: Vec<RangeInclusive<u64>>,
}

impl Default for Part {
    /// All.
    fn default() -> Self {
        Part::new(0..u64::MAX, Vec::new())
    }
}

impl Part {
    /// The reports of a time, in ns since the beginning of the trace, and these addresses in any order;
    /// all addresses if there are none.
    pub fn new(time_ns: Range<u64>, mut addresses: Vec<RangeInclusive<u64>>) -> Self {
        addresses.sort_by_key(|range| *range.start());
        let mut merged: Vec<RangeInclusive<u64>> = Vec::new();
        for range in addresses {
            match merged.last_mut() {
                Some(last) if range.start() <= last.end() => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => merged.push(range),
            }
        }
        Part {
            time_ns,
            addresses: merged,
        }
    }

    /// Whether a report of this time is read.
    pub fn has_time(&self, ns: u64) -> bool {
        self.time_ns.contains(&ns)
    }

    /// Whether an address of a region is read.
    pub fn has_region(&self, region: &RegionBody) -> bool {
        let overlaps = |range: &RangeInclusive<u64>| {
            *range.start() < region.end && *range.end() >= region.start
        };
        self.addresses.is_empty() || self.addresses.iter().any(overlaps)
    }

    fn of(&self, report: Report) -> Report {
        match self.addresses.is_empty() {
            true => report,
            false => report.within(&self.addresses),
        }
    }
}

/// The figures of all address spaces.
#[derive(Default)]
pub struct Summaries {
    reports: Reports,
    owners: Owners,
    part: Part,
    start_ns: u64,
    shows_writes: bool,
    figures: BTreeMap<Mm, Figures>,
}

impl Summaries {
    /// Those of a part of the reports.
    pub fn of(part: Part) -> Self {
        Summaries {
            part,
            ..Summaries::default()
        }
    }

    /// Reports that are left out because they are not complete.
    pub fn cut(&self) -> u64 {
        self.reports.cut()
    }

    /// After the pass: one for each address space that has a report, in the order of processes.
    pub fn spaces(self) -> Vec<SpaceSummary> {
        let mut all: Vec<_> = self
            .figures
            .into_iter()
            .map(|(mm, figures)| {
                let (pid, comm) = self.owners.of(mm);
                let reports = figures.bytes.len() as u64;
                SpaceSummary {
                    pid,
                    comm: comm.into(),
                    mm: mm.0,
                    reports,
                    regions: figures.regions as f64 / reports.max(1) as f64,
                    bytes: Spread::of(figures.bytes),
                    working_set: Spread::of(figures.working_set),
                    written: self.shows_writes.then(|| Spread::of(figures.written)),
                }
            })
            .collect();
        all.sort_by_key(|s| (s.pid, s.mm));
        all
    }
}

impl Consumer for Summaries {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        let sampling = trace.header().sampling;
        self.shows_writes = sampling.is_some_and(|s| s.by == SampledBy::Fault);
        self.start_ns = trace.header().start_time_ns;
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, world: &World, _issues: &[Issue]) -> Result<()> {
        self.owners.event(event, &world.tasks);
        let Some(report) = self.reports.event(event) else {
            return Ok(());
        };
        if !self
            .part
            .has_time(report.time_ns.saturating_sub(self.start_ns))
        {
            return Ok(());
        }
        let report = self.part.of(report);
        if report.regions.is_empty() {
            return Ok(());
        }
        let figures = self.figures.entry(report.mm).or_default();
        figures.regions += report.regions.len() as u64;
        figures.bytes.push(report.bytes());
        figures.working_set.push(report.working_set());
        if self.shows_writes {
            figures.written.push(report.written());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rust_mm_trace::uapi;

    use super::*;
    use crate::canon::PageMode;
    use crate::pipeline::{self, Unwatched};
    use crate::testing::TraceBuilder;

    fn region(index: u32, regions: u32) -> RegionBody {
        RegionBody {
            start: 0x1000 * u64::from(index + 1),
            end: 0x1000 * u64::from(index + 2),
            looks: 4,
            accesses: index.min(4),
            writes: 0,
            age: 0,
            cpus: 0,
            index,
            regions,
        }
    }

    fn summed(builder: TraceBuilder) -> (Vec<SpaceSummary>, u64) {
        let trace = Trace::from_bytes("memory", builder.finish()).expect("a trace");
        let mut summaries = Summaries::default();
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut summaries];
        pipeline::run(&trace, PageMode::Unnamed, &mut Unwatched, consumers).expect("reads");
        let cut = summaries.cut();
        (summaries.spaces(), cut)
    }

    #[test]
    fn working_sets_are_sizes_times_shares() {
        let (spaces, cut) = summed(TraceBuilder::sample_of_regions(uapi::VMTRACE_BY_FAULT));
        assert_eq!((spaces.len(), cut), (1, 0));
        let space = &spaces[0];
        let owner = (space.pid, &*space.comm, space.mm);
        assert_eq!(owner, (10, "sample", 1));
        assert_eq!((space.reports, space.regions), (2, 3.0));
        let same = |bytes| Spread {
            min: bytes,
            p50: bytes,
            p95: bytes,
            max: bytes,
        };
        assert_eq!(space.bytes, same(0x8000));
        // A page always, and half of three pages, or of two.
        let working = Spread {
            min: 0x2000,
            p50: 0x2000,
            p95: 0x2800,
            max: 0x2800,
        };
        assert_eq!(space.working_set, working);
        // 4 of 20 looks in each of the two regions.
        let written = space.written.expect("known");
        assert_eq!((written.min, written.max), (0x3000 / 5, 819 + 2457));
        // A part of a region has its part of the accesses.
        let part = |ranges: Vec<RangeInclusive<u64>>| {
            let report = Report {
                mm: Mm(1),
                time_ns: 0,
                regions: (0..3).map(|index| region(index, 3)).collect(),
            };
            let report = Part::new(0..1, ranges).of(report);
            (report.bytes(), report.working_set())
        };
        assert_eq!(part(vec![]), (0x3000, 0x1000 / 4 + 0x1000 / 2));
        assert_eq!(part(vec![0x2800..=0x37ff]), (0x1000, 0x800 / 4 + 0x800 / 2));
        // Overlaps count once.
        let twice = vec![0x3000..=0x37ff, 0x2800..=0x37ff, 0..=0];
        assert_eq!(part(twice), (0x1000, 0x800 / 4 + 0x800 / 2));
        assert_eq!(part(vec![0x9000..=u64::MAX]), (0, 0));
        let (spaces, _) = summed(TraceBuilder::sample_of_regions(uapi::VMTRACE_BY_ACCESSED));
        assert_eq!(spaces[0].working_set, working);
        assert_eq!(spaces[0].written, None);
    }

    #[test]
    fn reports_that_are_not_complete_are_left_out() {
        let mut b = TraceBuilder::sample_of_regions(uapi::VMTRACE_BY_ACCESSED);
        // It ends before the last region, which is the last one of the report.
        b.region(0, 1, &region(0, 2));
        b.mm_end(0, 10, 1);
        b.region(0, 1, &region(1, 2));
        // With two regions to come; with one that does not come.
        for (mm, regions) in [(2, 3), (3, 2)] {
            b.task(0, 10 * mm, 10 * mm, mm, "other");
            b.region(0, mm, &region(0, regions));
            b.mm_end(0, 10 * mm, mm);
        }
        b.region(0, 2, &region(1, 3));
        // One without its beginning, one in which another begins, and one without a region.
        b.task(0, 40, 40, 4, "other");
        b.region(0, 4, &region(1, 2));
        b.region(0, 4, &region(0, 2));
        b.region(0, 4, &region(0, 3));
        b.region(0, 4, &region(2, 3));
        let (spaces, cut) = summed(b);
        let reports: Vec<_> = spaces.iter().map(|s| (s.mm, s.reports)).collect();
        assert_eq!(reports, [(1, 3)]);
        assert_eq!(cut, 4);
    }

    #[test]
    fn an_address_space_keeps_the_name_that_it_had() {
        let mut b = TraceBuilder::sample_of_regions(uapi::VMTRACE_BY_ACCESSED);
        b.exec(0, 10, 1, 2, "after");
        b.report(0, 2, &[region(0, 1)]);
        b.fork(0, 10, 2, 30, 3);
        b.report(0, 3, &[region(0, 1)]);
        b.report(0, 9, &[region(0, 1)]);
        let (spaces, _) = summed(b);
        let owners: Vec<_> = spaces.iter().map(|s| (s.pid, &*s.comm, s.mm)).collect();
        let expected = [
            (0, "", 9),
            (10, "sample", 1),
            (10, "after", 2),
            (30, "after", 3),
        ];
        assert_eq!(owners, expected);
    }

    #[test]
    fn spreads_are_of_ranks() {
        let spread = Spread::of((1..=100).rev().collect());
        let found = (spread.min, spread.p50, spread.p95, spread.max);
        assert_eq!(found, (1, 50, 95, 100));
        assert_eq!(Spread::of(vec![7]).p95, 7);
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }
}
