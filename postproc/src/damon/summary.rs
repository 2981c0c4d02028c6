//! Working sets of all address spaces, interval by interval.
//!
//! Costs depend on what is active: work for an address space is done when one of its pages
//! is referenced or a stay ends, never for an interval in which nothing changes. The number of
//! idle intervals is computed, so a trace whose times leap by years costs no more than its
//! records. Memory holds the pages of the present interval, the stays that extend beyond it,
//! and the distinct sizes of working sets.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{Hot, Percentiles, Referenced, is_timed, stop_time};
use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, World};
use crate::process::Process;
use crate::space::Issue;
use crate::trace::{Body, Event, Trace};
use crate::units::Mm;

/// Tenths of the largest possible `nr_accesses`.
pub const TENTHS: usize = 10;

/// The figures of an address space.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TargetSummary {
    /// Its number.
    pub mm: u32,
    /// Its process.
    pub pid: u32,
    /// The process's name.
    pub comm: String,
    /// Intervals from its first reference on, to its end.
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

/// How often a working set had how many pages.
#[derive(Default)]
struct Sizes(BTreeMap<u64, u64>);

impl Sizes {
    fn add(&mut self, pages: u64, intervals: u64) {
        let count = self.0.entry(pages).or_default();
        *count = count.saturating_add(intervals);
    }

    /// Of so many intervals; in those that were not counted it was empty.
    fn percentiles(&self, intervals: u64, page_size: u64) -> Percentiles {
        let counted = self.0.values().fold(0u64, |sum, &n| sum.saturating_add(n));
        let empty = (0, intervals.saturating_sub(counted));
        let sizes = self.0.iter();
        let sizes = sizes.map(|(&pages, &n)| (pages.saturating_mul(page_size), n));
        Percentiles::of_counts(std::iter::once(empty).chain(sizes))
    }
}

#[derive(Default)]
struct Target {
    pid: u32,
    comm: String,
    /// By the process whose address space it is, not by who referenced it first.
    named: bool,
    /// The interval of its first record.
    first: u64,
    /// The first interval that it is no part of.
    ended: Option<u64>,
    least: Sizes,
    most: Sizes,
    regions: u64,
    by_accesses: [u64; TENTHS],
    /// Pages that a stay touches in interval `since`; intervals before are counted.
    open: u64,
    since: u64,
    /// Of how many of these no stay touches an interval any more.
    closing: BTreeMap<u64, u64>,
}

impl Target {
    fn name(&mut self, process: &Process) {
        self.pid = process.tgid.0;
        self.comm.clone_from(&process.comm);
    }

    /// Counts intervals up to one.
    fn settle(&mut self, upto: u64) {
        loop {
            while let Some(entry) = self.closing.first_entry() {
                if *entry.key() > self.since {
                    break;
                }
                self.open = self.open.saturating_sub(entry.remove());
            }
            if self.since >= upto {
                return;
            }
            let next = self.closing.first_key_value();
            let next = next.map_or(upto, |(&at, _)| at.min(upto));
            self.most.add(self.open, next - self.since);
            self.since = next;
        }
    }

    /// A page's stay goes on until an interval, or longer than was known.
    fn extend(&mut self, known: Option<u64>, until: u64) {
        match known {
            Some(known) => {
                let at = known.saturating_add(1);
                if let Some(count) = self.closing.get_mut(&at) {
                    *count -= 1;
                    if *count == 0 {
                        self.closing.remove(&at);
                    }
                }
            }
            None => self.open += 1,
        }
        *self.closing.entry(until.saturating_add(1)).or_default() += 1;
    }

    /// The address space ends in an interval, which it is a part of if it was in use.
    fn end(&mut self, at: u64) {
        if self.ended.is_none() {
            let at = at.max(self.since);
            self.settle(at);
            self.closing = BTreeMap::new();
            self.ended = Some(at.saturating_add((self.open > 0).into()));
        }
    }

    fn interval(&mut self, pages: &[Hot], largest: u64) {
        self.least.add(pages.len() as u64, 1);
        let mut before: Option<&Hot> = None;
        for page in pages {
            let joined = |b: &Hot| b.1.wrapping_add(1) == page.1 && b.2 == page.2;
            self.regions += u64::from(!before.is_some_and(joined));
            before = Some(page);
            let tenth = u64::from(page.2.saturating_sub(1)) * TENTHS as u64 / largest;
            self.by_accesses[(tenth as usize).min(TENTHS - 1)] += 1;
        }
    }
}

/// Summarises all address spaces.
pub struct Summaries {
    aggregation_ns: u64,
    sampling_ns: u64,
    start_ns: u64,
    page_shift: u32,
    stay_shift: u32,
    page_size: u64,
    last_ns: u64,
    /// The interval under way; those before it are complete.
    present: u64,
    referenced: Referenced,
    targets: BTreeMap<Mm, Target>,
    /// Pages, and the last interval that a stay of theirs touches.
    until: FxHashMap<(Mm, u64), u64>,
    /// When there are so many, those that are over are forgotten.
    forget_at: usize,
    total: u64,
}

/// Pages of which it is not worth while to look for those that are over.
const FORGET_AT: usize = 4096;

impl Summaries {
    /// For aggregation intervals of this length, from the trace's start on, and sampling
    /// intervals of that one.
    pub fn new(aggregation_ns: u64, sampling_ns: u64) -> Self {
        let aggregation_ns = aggregation_ns.max(1);
        Summaries {
            aggregation_ns,
            sampling_ns: sampling_ns.clamp(1, aggregation_ns),
            start_ns: 0,
            page_shift: 12,
            stay_shift: 0,
            page_size: 4096,
            last_ns: 0,
            present: 0,
            referenced: Referenced::default(),
            targets: BTreeMap::new(),
            until: FxHashMap::default(),
            forget_at: FORGET_AT,
            total: 0,
        }
    }

    /// The largest possible `nr_accesses`.
    pub fn largest(&self) -> u64 {
        self.aggregation_ns.div_ceil(self.sampling_ns)
    }

    /// The address spaces, the one with the largest working set first.
    pub fn targets(&self) -> Vec<TargetSummary> {
        let all = self.targets.iter().filter_map(|(mm, t)| {
            let end = t.ended.map_or(self.total, |end| end.min(self.total));
            let intervals = end.checked_sub(t.first).filter(|n| *n > 0)?;
            Some(TargetSummary {
                mm: mm.0,
                pid: t.pid,
                comm: t.comm.clone(),
                intervals,
                working_set_least: t.least.percentiles(intervals, self.page_size),
                working_set_most: t.most.percentiles(intervals, self.page_size),
                regions: t.regions as f64 / intervals as f64,
                by_accesses: t.by_accesses,
            })
        });
        let mut all: Vec<TargetSummary> = all.collect();
        all.sort_by_key(|t| (std::cmp::Reverse(t.working_set_most.max), t.mm));
        all
    }

    /// The interval of a moment. What comes late counts to the one under way: in a good
    /// trace no reference does.
    fn interval_of(&self, time_ns: u64) -> u64 {
        let since = time_ns.saturating_sub(self.start_ns);
        (since / self.aggregation_ns).max(self.present)
    }

    fn end_interval(&mut self) {
        let largest = self.largest();
        let pages = self.referenced.take();
        for pages in pages.chunk_by(|a, b| a.0 == b.0) {
            if let Some(target) = self.targets.get_mut(&pages[0].0) {
                target.interval(pages, largest);
            }
        }
    }

    /// Ends intervals that lie before a moment.
    fn advance(&mut self, time_ns: u64) {
        self.last_ns = self.last_ns.max(time_ns);
        let present = self.interval_of(time_ns);
        if present > self.present {
            self.end_interval();
            self.present = present;
        }
    }

    /// Forgets stays that are over, and those of address spaces that have ended.
    fn forget(&mut self) {
        let (present, targets) = (self.present, &self.targets);
        let lives = |mm: &Mm| targets.get(mm).is_some_and(|t| t.ended.is_none());
        self.until
            .retain(|(mm, _), until| *until >= present && lives(mm));
        self.forget_at = FORGET_AT.max(2 * self.until.len());
    }
}

impl Consumer for Summaries {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        let header = trace.header();
        self.start_ns = header.start_time_ns;
        self.page_shift = header.page_shift;
        self.stay_shift = header.stay_shift;
        self.page_size = header.page_size();
        Ok(())
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for r in batch.refs {
            self.advance(r.time_ns);
            let present = self.present;
            let target = self.targets.entry(r.mm).or_insert_with(|| {
                let mut target = Target {
                    first: present,
                    since: present,
                    ..Target::default()
                };
                if let Some(id) = batch.world.tasks.find(r.tid()) {
                    let process = batch.world.tasks.process(id);
                    target.name(process);
                    target.named = process.mm == r.mm;
                }
                target
            });
            // Numbers of address spaces are not used again.
            if target.ended.is_some() {
                continue;
            }
            let page = r.page >> self.page_shift;
            let end = r.end_ns(self.stay_shift).unwrap_or(u64::MAX);
            let last = (end.saturating_sub(self.start_ns) / self.aggregation_ns).max(present);
            target.settle(present);
            let known = self.until.get(&(r.mm, page)).copied();
            let known = known.filter(|known| *known >= present);
            if known.is_none_or(|known| known < last) {
                target.extend(known, last);
                self.until.insert((r.mm, page), last);
            }
            if is_timed(r) {
                let begun = present.saturating_mul(self.aggregation_ns);
                let since = r
                    .time_ns
                    .saturating_sub(self.start_ns)
                    .saturating_sub(begun);
                self.referenced.add(r.mm, page, since / self.sampling_ns);
            }
            if self.until.len() >= self.forget_at {
                self.forget();
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, world: &World, _issues: &[Issue]) -> Result<()> {
        // It ends no interval: another CPU's references may still be a little earlier.
        self.last_ns = self.last_ns.max(event.time_ns);
        let at = self.interval_of(event.time_ns);
        match event.body {
            Body::MmEnd => {
                if let Some(target) = self.targets.get_mut(&event.mm) {
                    target.end(at);
                }
            }
            // What was before is not traced any more.
            Body::SnapBegin => {
                for target in self.targets.values_mut() {
                    target.end(at);
                }
            }
            // Of a program that was executed the name comes after the first references.
            Body::Exec { .. } => {
                let id = world.tasks.find(event.tid);
                let process = id.map(|id| world.tasks.process(id));
                let process = process.filter(|process| process.mm == event.mm);
                let target = self.targets.get_mut(&event.mm);
                if let (Some(process), Some(target)) = (process, target) {
                    target.name(process);
                    target.named = true;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, trace: &Trace, outcome: &Outcome) -> Result<()> {
        self.advance(self.last_ns.max(stop_time(trace)));
        self.total = self.present;
        // Of a trace that is shorter than an interval, this is all there is.
        if self.total == 0 {
            self.end_interval();
            self.total = 1;
        }
        let processes = outcome.world.tasks.processes();
        let owners: FxHashMap<Mm, &Process> = processes.iter().map(|p| (p.mm, p)).collect();
        for (mm, target) in &mut self.targets {
            target.settle(target.ended.unwrap_or(u64::MAX).min(self.total));
            if let (false, Some(owner)) = (target.named, owners.get(mm)) {
                target.name(owner);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::canon::PageMode;
    use crate::pipeline::{Unwatched, run};
    use crate::testing::TraceBuilder;
    use crate::units::{Access, Prot};

    const YEAR_NS: u64 = 365 * 24 * 3600 * 1_000_000_000;

    /// What a pass says, as it is.
    #[derive(Default)]
    struct Records {
        start: u64,
        last: u64,
        /// Address space, page, from and to, and whether there was a reference at first.
        stays: Vec<(Mm, u64, u64, u64, bool)>,
        ends: BTreeMap<Mm, u64>,
        owners: BTreeMap<Mm, (u32, String)>,
    }

    impl Consumer for Records {
        fn begin(&mut self, trace: &Trace) -> Result<()> {
            self.start = trace.header().start_time_ns;
            Ok(())
        }

        fn wants_continuations(&self) -> bool {
            true
        }

        fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
            for r in batch.refs {
                let from = r.time_ns - self.start;
                let to = r.end_ns(6).map_or(u64::MAX, |end| end - self.start);
                self.stays.push((r.mm, r.page >> 12, from, to, is_timed(r)));
            }
            Ok(())
        }

        fn event(&mut self, event: &Event<'_>, _: &World, _: &[Issue]) -> Result<()> {
            if let Body::MmEnd = event.body {
                self.ends.insert(event.mm, event.time_ns - self.start);
            }
            Ok(())
        }

        fn finish(&mut self, trace: &Trace, outcome: &Outcome) -> Result<()> {
            self.last = stop_time(trace) - self.start;
            for p in outcome.world.tasks.processes() {
                self.owners.insert(p.mm, (p.tgid.0, p.comm.clone()));
            }
            Ok(())
        }
    }

    /// Looks at each interval of each address space, and in it at each stay.
    fn brute(all: &Records, aggregation: u64, sampling: u64) -> Vec<TargetSummary> {
        let total = (all.last / aggregation).max(1);
        let largest = aggregation.div_ceil(sampling);
        let spaces: BTreeSet<Mm> = all.stays.iter().map(|stay| stay.0).collect();
        let mut targets = Vec::new();
        for mm in spaces {
            let stays: Vec<_> = all.stays.iter().filter(|stay| stay.0 == mm).collect();
            let (mut least, mut most, mut regions) = (Vec::new(), Vec::new(), 0);
            let mut by_accesses = [0; TENTHS];
            let end = all.ends.get(&mm).copied().unwrap_or(u64::MAX);
            for i in stays[0].2 / aggregation..total {
                let (from, to) = (i * aggregation, (i + 1) * aggregation);
                let here = stays.iter().filter(|s| s.2 < to && s.3.min(end) >= from);
                let pages: BTreeSet<u64> = here.map(|stay| stay.1).collect();
                if end < to && pages.is_empty() || end < from {
                    break;
                }
                let mut samples: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
                for stay in stays.iter().filter(|s| s.4 && (from..to).contains(&s.2)) {
                    let sample = (stay.2 - from) / sampling;
                    samples.entry(stay.1).or_default().insert(sample);
                }
                least.push(4096 * samples.len() as u64);
                most.push(4096 * pages.len() as u64);
                for (page, its) in &samples {
                    let before = page.checked_sub(1).and_then(|page| samples.get(&page));
                    regions += u64::from(before.map(BTreeSet::len) != Some(its.len()));
                    let tenth = (its.len() as u64 - 1) * 10 / largest;
                    by_accesses[tenth as usize] += 1;
                }
            }
            if least.is_empty() {
                continue;
            }
            let (pid, comm) = all.owners[&mm].clone();
            targets.push(TargetSummary {
                mm: mm.0,
                pid,
                comm,
                intervals: least.len() as u64,
                regions: regions as f64 / least.len() as f64,
                working_set_least: Percentiles::of(least),
                working_set_most: Percentiles::of(most),
                by_accesses,
            });
        }
        targets.sort_by_key(|t| (std::cmp::Reverse(t.working_set_most.max), t.mm));
        targets
    }

    #[test]
    fn figures_are_those_of_looking_at_every_interval() {
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        for round in 0..40 {
            let mut b = TraceBuilder::new(1, 8);
            for i in 1..=4 {
                b.task(0, 10 * i, 10 * i, i, "program");
                b.map_anon(0, 10 * i, i, 0x1000, 0x20_000, Prot(3));
            }
            let mut living = 4;
            for _ in 0..300 {
                let mm = 1 + next(living) as u32;
                match next(40) {
                    0 => b.leap(next(300_000)),
                    1..5 if b.admissions() > 8 => b.renew(0, 10 * mm, next(2) == 0),
                    5 if living > 2 => {
                        b.exit(0, 10 * living as u32, living as u32);
                        b.mm_end(0, 10 * living as u32, living as u32);
                        living -= 1;
                    }
                    _ => {
                        let page = 0x1000 * (1 + next(12));
                        b.touch_as(0, 10 * mm, mm, page, Access::Read);
                    }
                }
            }
            let trace = Trace::from_bytes("t", b.finish()).unwrap();
            let aggregation = 1_000 + next(40_000);
            let sampling = 1 + next(aggregation);
            let mut records = Records::default();
            let mut summaries = Summaries::new(aggregation, sampling);
            let consumers: &mut [&mut dyn Consumer] = &mut [&mut records, &mut summaries];
            run(&trace, PageMode::Unnamed, &mut Unwatched, consumers).unwrap();
            let expected = brute(&records, aggregation, sampling);
            assert_eq!(summaries.targets(), expected, "round {round}");
            assert!(expected.len() > 1 && summaries.present > 5);
        }
    }

    /// Memory and time are those of the records.
    #[test]
    fn times_may_leap_by_years() {
        let mut b = TraceBuilder::new(1, 64);
        b.program();
        for i in 0..200 {
            b.leap(YEAR_NS);
            b.touch(0, 10, 1, 0x1000 + i % 100 * 0x1000);
        }
        let trace = Trace::from_bytes("t", b.finish()).unwrap();
        let mut summaries = Summaries::new(1_000, 50);
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut summaries];
        run(&trace, PageMode::Unnamed, &mut Unwatched, consumers).unwrap();
        let targets = summaries.targets();
        assert!(targets[0].intervals > 199 * (YEAR_NS / 1_000));
        assert_eq!(targets[0].working_set_least.p75, 0);
        assert_eq!(targets[0].working_set_least.max, 4096);
        // Stays of unknown length go on.
        assert_eq!(targets[0].working_set_most.max, 100 * 4096);
        assert!(summaries.targets[&Mm(1)].most.0.len() <= 101);
        assert!(summaries.until.len() <= 100);
    }
}
