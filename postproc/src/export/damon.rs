//! `damon`: the record that DAMON would have made if it had looked at every page.
//!
//! The file is a record of `damo record` (damo 3.x, `json_compressed`: JSON in a
//! zlib stream), so that `damo report access`, `heatmap` and the like draw it. An
//! address space is a monitoring target with its number as id.
//!
//! DAMON (Park, Lee, Yeom, Middleware 2019 Industry; Documentation/mm/damon/design.rst
//! of Linux) looks at one page of a region at each sampling interval. Per aggregation
//! interval, it counts the sampling intervals in which that page had been accessed. Here
//! every page is counted, and a region is a run of pages with equal counts. Nothing is
//! sampled, merged or split by chance.
//!
//! - `nr_accesses` of a page: the number of sampling intervals (`--sampling`) of an
//!   aggregation interval (`--interval`) in which a reference admitted the page. References
//!   to the N enabled pages are not in the trace, and the time of the reference that earned
//!   a second chance is unknown. So this is the least possible count, as `postproc damon`
//!   defines it ([`is_timed`]).
//! - A target's regions cover the pages that were referenced since the target began, except
//!   those that were unmapped, in three spans as in DAMON: the two largest gaps are left
//!   out, and smaller gaps belong to the regions around them. Pages that were not referenced
//!   in an interval have the count 0.
//! - `age` of a region: the number of aggregation intervals since its count last changed.
//!   Neighbours with the count 0 are one region, whose age is the mean by size, as in
//!   DAMON's merging.
//! - An idle time of a target is written interval by interval, because `damo report wss`
//!   counts snapshots, as long as the target has no more idle snapshots than regions that
//!   were referenced. A longer idle time is a single snapshot. damo's heatmap is the same,
//!   because it goes by time.
//!
//! A trace of regions has what a sampler has found already. Then the snapshots are the kernel's
//! reports, with its own counts and intervals, and none of the above is done.
//!
//! Otherwise, a snapshot has at most two regions for each region that was referenced, plus three. The
//! size of the record, and the memory for writing it, depend on what was active, and not on
//! the length of the trace or its times.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::Range;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::slices::Slices;
use super::spool::Spool;
use super::{ExportContext, Exporter, FormatEntry, Make};
use crate::damon::{Hot, Referenced, is_timed};
use crate::error::{OutputContext, Result};
use crate::output::Output;
use crate::pipeline::{Batch, Outcome, World};
use crate::regions::{Report, Reports};
use crate::trace::{Body, Event, Header, Sampling};
use crate::units::Mm;

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "damon",
    about: "for damo: access counts of regions by interval, exact; of a trace of regions, those \
            that the kernel has sampled",
    make: Make::File(|context| Ok(Box::new(Damon::new(context)?))),
};

/// Pages that agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Region {
    start: u64,
    end: u64,
    accesses: u32,
    age: u64,
}

/// An address space.
#[derive(Default)]
struct Target {
    /// Those of the last slice that was written, less what was unmapped before the
    /// present one.
    regions: Vec<Region>,
    /// The first slice that is not written yet.
    next: u64,
    /// Idle slices that may be written one by one.
    credit: u64,
    /// What was unmapped in the present slice: ranges of pages.
    unmapped: Vec<(u64, u64)>,
    /// How many of these it takes to make it worth while to join them.
    join_at: usize,
    /// The first slice that it is no part of, if it has ended.
    ended: Option<u64>,
}

/// Ranges of which it is not worth while to look for those that touch.
const JOIN_AT: usize = 1024;

impl Target {
    fn unmap(&mut self, start: u64, end: u64) {
        self.unmapped.push((start, end));
        if self.unmapped.len() >= self.join_at {
            self.unmapped = joined(std::mem::take(&mut self.unmapped));
            self.join_at = JOIN_AT.max(2 * self.unmapped.len());
        }
    }
}

/// Writes snapshots.
struct Snapshots {
    spool: Spool,
    slices: Slices,
    page_shift: u32,
}

impl Snapshots {
    fn write(&mut self, mm: Mm, slices: Range<u64>, regions: &[Region]) -> Result<()> {
        if regions.is_empty() {
            return Ok(());
        }
        let from = self.slices.beginning_ns(slices.start);
        let to = self.slices.beginning_ns(slices.end);
        self.put(mm, from..to, regions)
    }

    fn put(&mut self, mm: Mm, times: Range<u64>, regions: &[Region]) -> Result<()> {
        let text = snapshot(times.start, times.end, regions, self.page_shift);
        self.spool.push(mm.0, text.as_bytes())
    }

    /// Writes slices up to one, in which nothing of a target was referenced.
    fn idle(&mut self, mm: Mm, target: &mut Target, upto: u64) -> Result<()> {
        let slices = upto.saturating_sub(target.next);
        if slices == 0 {
            return Ok(());
        }
        if slices <= target.credit {
            target.credit -= slices;
            for slice in target.next..upto {
                target.regions = follow(&target.regions, &[]);
                self.write(mm, slice..slice + 1, &target.regions)?;
            }
        } else {
            // Each slice more makes what is idle older, and does nothing else.
            target.regions = follow(&target.regions, &[]);
            for region in &mut target.regions {
                region.age = region.age.saturating_add(slices - 1);
            }
            self.write(mm, target.next..upto, &target.regions)?;
        }
        target.next = upto;
        Ok(())
    }

    /// Ends a slice of a target, of which pages were referenced or unmapped in it.
    fn slice(&mut self, mm: Mm, target: &mut Target, slice: u64, hot: &[Hot]) -> Result<()> {
        self.idle(mm, target, slice)?;
        let unmapped = joined(std::mem::take(&mut target.unmapped));
        let rest = without(&target.regions, &unmapped);
        if hot.is_empty() {
            target.regions = spanned(rest);
            return Ok(());
        }
        target.regions = spanned(follow(&rest, hot));
        self.write(mm, slice..slice + 1, &target.regions)?;
        target.next = slice + 1;
        let referenced = target.regions.iter().filter(|r| r.accesses > 0).count();
        target.credit = target.credit.saturating_add(referenced as u64);
        Ok(())
    }
}

/// What a sampler has found.
struct Sampled {
    how: Sampling,
    reports: Reports,
    /// By target: when its last report was made, ns since the trace's start.
    last: BTreeMap<Mm, u64>,
}

impl Sampled {
    fn report(&mut self, report: &Report, start_ns: u64, to: &mut Snapshots) -> Result<()> {
        let time = report.time_ns.saturating_sub(start_ns);
        let first = || time.saturating_sub(self.how.aggregate_ns);
        let from = self.last.insert(report.mm, time).unwrap_or_else(first);
        // damo takes this as the most that there can be. A look more is possible if one was late.
        let most = self.how.aggregate_ns / self.how.sample_ns.max(1);
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let shift = to.page_shift;
        let regions = report.regions.iter().map(|r| Region {
            start: r.start >> shift,
            end: r.end >> shift,
            accesses: r.accesses.min(most),
            age: r.age.into(),
        });
        to.put(report.mm, from..time, &regions.collect::<Vec<_>>())
    }
}

struct Damon {
    /// If the trace has regions, and no references.
    sampled: Option<Sampled>,
    snapshots: Snapshots,
    interval_ns: u64,
    sampling_ns: u64,
    start_ns: u64,
    last_ns: u64,
    referenced: Referenced,
    targets: BTreeMap<Mm, Target>,
    /// Targets that were referenced in the present slice, and others of which something
    /// was unmapped or that have ended in it.
    changed: BTreeSet<Mm>,
}

impl Damon {
    fn new(context: &ExportContext<'_>) -> Result<Self> {
        let options = &context.options;
        Ok(Damon {
            sampled: None,
            snapshots: Snapshots {
                spool: Spool::new(context)?,
                slices: Slices::new(options.interval_ns),
                page_shift: 0,
            },
            interval_ns: options.interval_ns,
            sampling_ns: options.sampling_ns.clamp(1, options.interval_ns.max(1)),
            start_ns: 0,
            last_ns: 0,
            referenced: Referenced::default(),
            targets: BTreeMap::new(),
            changed: BTreeSet::new(),
        })
    }

    /// Ends the present slice if a moment lies behind it.
    fn advance(&mut self, time_ns: u64) -> Result<()> {
        self.last_ns = self.last_ns.max(time_ns);
        if self.snapshots.slices.is_over(time_ns) {
            self.end_slice()?;
            self.snapshots.slices.go_to(time_ns);
        }
        Ok(())
    }

    fn end_slice(&mut self) -> Result<()> {
        let present = self.snapshots.slices.present();
        let hot = self.referenced.take();
        for mm in std::mem::take(&mut self.changed) {
            let Some(target) = self.targets.get_mut(&mm) else {
                continue;
            };
            let first = hot.partition_point(|page| page.0 < mm);
            let last = hot.partition_point(|page| page.0 <= mm);
            let hot = &hot[first..last];
            self.snapshots.slice(mm, target, present, hot)?;
            if let Some(ended) = target.ended {
                self.snapshots.idle(mm, target, ended)?;
                self.targets.remove(&mm);
            }
        }
        Ok(())
    }

    fn unmap(&mut self, mm: Mm, start: u64, end: u64) {
        let Some(target) = self.targets.get_mut(&mm) else {
            return;
        };
        let shift = self.snapshots.page_shift;
        let (start, end) = (start >> shift, end >> shift);
        // What was referenced in the present slice remains in it.
        let (Some(first), Some(last)) = (target.regions.first(), target.regions.last()) else {
            return;
        };
        if start < end && start < last.end && end > first.start {
            target.unmap(start, end);
            self.changed.insert(mm);
        }
    }

    /// A target has ended.
    fn end(&mut self, mm: Mm, time_ns: u64) {
        if let Some(target) = self.targets.get_mut(&mm) {
            let mut slices = self.snapshots.slices;
            slices.go_to(time_ns);
            target.ended = Some(slices.present());
            self.changed.insert(mm);
        }
    }
}

/// Regions in order of address.
#[derive(Default)]
struct Regions(Vec<Region>);

impl Regions {
    /// The next one; one that is like its neighbour is a part of it.
    fn add(&mut self, region: Region) {
        if region.start >= region.end {
            return;
        }
        if let Some(last) = self.0.last_mut() {
            let alike = last.accesses == region.accesses
                && (last.age == region.age || region.accesses == 0);
            if last.end == region.start && alike {
                let (a, b) = (last.end - last.start, region.end - region.start);
                let ages =
                    u128::from(last.age) * u128::from(a) + u128::from(region.age) * u128::from(b);
                last.age = (ages / (u128::from(a) + u128::from(b))) as u64;
                last.end = region.end;
                return;
            }
        }
        self.0.push(region);
    }
}

/// The regions of the next interval; `hot` are pages in order, with their counts.
fn follow(old: &[Region], hot: &[Hot]) -> Vec<Region> {
    let mut regions = Regions::default();
    let page = |vpn: u64, accesses: u32, before: Option<&Region>| Region {
        start: vpn,
        end: vpn + 1,
        accesses,
        age: before.map_or(0, |r| match r.accesses == accesses {
            true => r.age.saturating_add(1),
            false => 0,
        }),
    };
    let mut hot = hot.iter().peekable();
    for region in old {
        while let Some(&(_, vpn, accesses)) = hot.next_if(|p| p.1 < region.start) {
            regions.add(page(vpn, accesses, None));
        }
        let idle = |start, end| Region {
            start,
            end,
            accesses: 0,
            age: match region.accesses {
                0 => region.age.saturating_add(1),
                _ => 0,
            },
        };
        let mut at = region.start;
        while let Some(&(_, vpn, accesses)) = hot.next_if(|p| p.1 < region.end) {
            regions.add(idle(at, vpn));
            regions.add(page(vpn, accesses, Some(region)));
            at = vpn + 1;
        }
        regions.add(idle(at, region.end));
    }
    for &(_, vpn, accesses) in hot {
        regions.add(page(vpn, accesses, None));
    }
    regions.0
}

/// The same in three spans at most: of the gaps between them, all but the two largest are
/// filled.
fn spanned(regions: Vec<Region>) -> Vec<Region> {
    let gap = |pair: &[Region]| pair[1].start - pair[0].end;
    // The largest and the one after it; of equal ones those at lower addresses.
    let mut largest = [(0, 0); 2];
    let mut gaps = 0;
    for (i, pair) in regions.windows(2).enumerate() {
        let size = gap(pair);
        gaps += usize::from(size > 0);
        if size > largest[0].0 {
            largest = [(size, i), largest[0]];
        } else if size > largest[1].0 {
            largest[1] = (size, i);
        }
    }
    if gaps <= largest.len() {
        return regions;
    }
    let mut filled = Regions::default();
    for (i, region) in regions.iter().enumerate() {
        filled.add(*region);
        if let (Some(next), false) = (regions.get(i + 1), largest.iter().any(|l| l.1 == i)) {
            filled.add(Region {
                start: region.end,
                end: next.start,
                accesses: 0,
                age: 0,
            });
        }
    }
    filled.0
}

/// Ranges in order; those that touch are one.
fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let touches = next.0 <= last.1;
        if touches {
            last.1 = last.1.max(next.1);
        }
        touches
    });
    ranges
}

/// Regions less ranges of pages, which are [`joined`].
fn without(regions: &[Region], ranges: &[(u64, u64)]) -> Vec<Region> {
    let mut rest = Vec::new();
    let mut ranges = ranges.iter().peekable();
    for region in regions {
        let mut at = region.start;
        while ranges.next_if(|range| range.1 <= at).is_some() {}
        let mut inside = ranges.clone();
        while let Some(&(start, end)) = inside.next_if(|range| range.0 < region.end) {
            rest.push(Region {
                start: at,
                end: start.max(at),
                ..*region
            });
            at = end.min(region.end);
            // It may cut the next region, too.
            if end <= region.end {
                ranges = inside.clone();
            }
        }
        rest.push(Region {
            start: at,
            ..*region
        });
    }
    rest.retain(|region| region.start < region.end);
    rest
}

/// A snapshot in damo's JSON.
fn snapshot(from_ns: u64, to_ns: u64, regions: &[Region], page_shift: u32) -> String {
    use std::fmt::Write;
    let address = |page: u64| u128::from(page) << page_shift;
    let mut text = format!(r#"{{"start_time":{from_ns},"end_time":{to_ns},"regions":["#);
    for (i, r) in regions.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            r#"{}{{"start":{},"end":{},"nr_accesses":{{"samples":{},"percent":null}},"age":{{"usec":null,"aggr_intervals":{}}}}}"#,
            if i == 0 { "" } else { "," },
            address(r.start),
            address(r.end),
            r.accesses,
            r.age
        );
    }
    text.push_str(r#"],"total_bytes":null}"#);
    text
}

impl Exporter for Damon {
    fn begin(&mut self, header: &Header, _out: &mut Output) -> Result<()> {
        self.snapshots.slices.begin(header);
        self.snapshots.page_shift = header.page_shift;
        self.start_ns = header.start_time_ns;
        // Regions in some windows, and references in others, are read by their references.
        let how = header
            .sampling
            .filter(|_| header.has_regions() && header.windows.is_none());
        self.sampled = how.map(|how| Sampled {
            how,
            reports: Reports::default(),
            last: BTreeMap::new(),
        });
        Ok(())
    }

    fn references(&mut self, batch: &Batch<'_>, _out: &mut Output) -> Result<()> {
        let mut last = None;
        for r in batch.refs {
            let before = self.snapshots.slices.present();
            self.advance(r.time_ns)?;
            // When a second chance was earned is not known.
            if !is_timed(r) {
                continue;
            }
            let present = self.snapshots.slices.present();
            if last != Some(r.mm) || present != before {
                last = Some(r.mm);
                self.changed.insert(r.mm);
                self.targets.entry(r.mm).or_insert_with(|| Target {
                    next: present,
                    join_at: JOIN_AT,
                    ..Target::default()
                });
            }
            // What comes late counts to the present slice.
            let begun = self.snapshots.slices.beginning_ns(present);
            let since = r.time_ns.saturating_sub(self.start_ns);
            let sample = since.saturating_sub(begun) / self.sampling_ns;
            let page = r.vpn(self.snapshots.page_shift);
            self.referenced.add(r.mm, page.0, sample);
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, _world: &World, _out: &mut Output) -> Result<()> {
        if let Some(sampled) = &mut self.sampled {
            return match sampled.reports.event(event) {
                Some(report) => sampled.report(&report, self.start_ns, &mut self.snapshots),
                None => Ok(()),
            };
        }
        // It ends no slice: another CPU's references may still be a little earlier.
        self.last_ns = self.last_ns.max(event.time_ns);
        match event.body {
            Body::Unmap { start, end } => self.unmap(event.mm, start, end),
            Body::Move {
                old_start, old_len, ..
            } => self.unmap(event.mm, old_start, old_start.saturating_add(old_len)),
            Body::MmEnd => self.end(event.mm, event.time_ns),
            // What was before is not traced any more.
            Body::SnapBegin => {
                let all: Vec<Mm> = self.targets.keys().copied().collect();
                for mm in all {
                    self.end(mm, event.time_ns);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, _outcome: &Outcome, out: &mut Output) -> Result<()> {
        if self.sampled.is_none() {
            self.advance(self.last_ns)?;
            self.end_slice()?;
            let end = self.snapshots.slices.present().saturating_add(1);
            for (&mm, target) in &mut self.targets {
                self.snapshots.idle(mm, target, end)?;
            }
        }
        let spool = &self.snapshots.spool;
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        let mut write = |bytes: &[u8]| -> Result<()> {
            zlib.write_all(bytes).writing(out.name())?;
            out.write_all(zlib.get_ref()).writing(out.name())?;
            zlib.get_mut().clear();
            Ok(())
        };
        let intervals = match &self.sampled {
            Some(sampled) => {
                let how = &sampled.how;
                [how.sample_ns, how.aggregate_ns, how.update_ns]
            }
            None => [self.sampling_ns, self.interval_ns, self.interval_ns],
        };
        let [sample, aggregate, update] = intervals.map(|ns| ns / 1000);
        let intervals = format!(
            r#"{{"sample_us":"{sample}","aggr_us":"{aggregate}","ops_update_us":"{update}"}}"#
        );
        for (i, target) in spool.lists().into_iter().enumerate() {
            let head = format!(
                r#"{}{{"kdamond_idx":0,"context_idx":0,"intervals":{intervals},"scheme_idx":null,"target_id":{target},"scheme_filters":[],"snapshots":["#,
                if i == 0 { "[" } else { "," },
            );
            write(head.as_bytes())?;
            let mut first = true;
            spool.read(target, |snapshot| {
                if !std::mem::take(&mut first) {
                    write(b",")?;
                }
                write(snapshot)
            })?;
            write(b"]}")?;
        }
        write(if spool.lists().is_empty() {
            b"[]"
        } else {
            b"]"
        })?;
        let rest = zlib.finish().writing(out.name())?;
        out.write_all(&rest).writing(out.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, end: u64, accesses: u32, age: u64) -> Region {
        Region {
            start,
            end,
            accesses,
            age,
        }
    }

    #[test]
    fn pages_that_agree_are_one_region() {
        let hot = [(Mm(1), 5, 2), (Mm(1), 6, 2), (Mm(1), 7, 3), (Mm(1), 9, 3)];
        let first = follow(&[], &hot);
        assert_eq!(
            first,
            [region(5, 7, 2, 0), region(7, 8, 3, 0), region(9, 10, 3, 0)]
        );
        // 6 and 7 as before, 5 and 9 idle, 8 new.
        let second = follow(&first, &[(Mm(1), 6, 2), (Mm(1), 7, 3), (Mm(1), 8, 1)]);
        assert_eq!(
            second,
            [
                region(5, 6, 0, 0),
                region(6, 7, 2, 1),
                region(7, 8, 3, 1),
                region(8, 9, 1, 0),
                region(9, 10, 0, 0),
            ]
        );
        // Idle neighbours are one, of mean age.
        let third = follow(&second, &[(Mm(1), 9, 1)]);
        assert_eq!(third, [region(5, 9, 0, 0), region(9, 10, 1, 0)]);
    }

    #[test]
    fn what_is_unmapped_is_forgotten() {
        let regions = [
            region(5, 9, 1, 0),
            region(9, 12, 2, 0),
            region(20, 21, 0, 4),
        ];
        assert_eq!(
            without(&regions, &[(7, 10)]),
            [
                region(5, 7, 1, 0),
                region(10, 12, 2, 0),
                region(20, 21, 0, 4)
            ]
        );
        assert_eq!(without(&regions, &[(0, 100)]), []);
        assert_eq!(
            joined(vec![(8, 10), (1, 3), (3, 6), (2, 4)]),
            [(1, 6), (8, 10)]
        );
    }

    /// Page by page, for all ways to cut sixteen pages by two ranges.
    #[test]
    fn ranges_cut_what_lies_in_them() {
        let regions = [region(1, 4, 1, 0), region(4, 9, 2, 0), region(11, 15, 0, 3)];
        let pages = |regions: &[Region]| {
            let all = regions
                .iter()
                .flat_map(|r| (r.start..r.end).map(|p| (p, r.accesses)));
            all.collect::<Vec<_>>()
        };
        for code in 0..1u64 << 16 {
            let of = |shift: u32| code >> shift & 15;
            let cuts = [(of(0), of(4)), (of(8), of(12))];
            let cuts = cuts.into_iter().filter(|cut: &(u64, u64)| cut.0 < cut.1);
            let cuts = joined(cuts.collect());
            let mut expected = pages(&regions);
            expected.retain(|(page, _)| !cuts.iter().any(|cut| (cut.0..cut.1).contains(page)));
            assert_eq!(pages(&without(&regions, &cuts)), expected, "{cuts:?}");
        }
    }

    #[test]
    fn all_but_the_two_largest_gaps_are_filled() {
        let apart = [
            region(0, 1, 1, 0),
            region(5, 6, 0, 3),
            region(20, 21, 1, 0),
            region(23, 24, 1, 0),
            region(40, 41, 1, 0),
        ];
        let whole = [
            region(0, 1, 1, 0),
            region(1, 6, 0, 0),
            region(20, 21, 1, 0),
            region(21, 23, 0, 0),
            region(23, 24, 1, 0),
            region(40, 41, 1, 0),
        ];
        assert_eq!(spanned(apart.to_vec()), whole);
        assert_eq!(spanned(apart[1..4].to_vec()), apart[1..4]);
    }
}
