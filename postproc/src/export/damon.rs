//! `damon`: what DAMON would have recorded, had it looked at every page.
//!
//! The file is a record of `damo record` (damo 3.x, `json_compressed`: JSON in a
//! zlib stream), so that `damo report access`, `heatmap` and the like draw it. An
//! address space is a monitoring target with its number as id.
//!
//! DAMON (Park, Lee, Yeom, Middleware 2019 Industry; Documentation/mm/damon/design.rst
//! of Linux) looks at one page of a region at each sampling interval and counts,
//! per aggregation interval, at how many the page had been accessed. Here this is
//! counted for every page, and a region is a run of pages that agree: nothing is
//! sampled, merged or split by chance.
//!
//! - `nr_accesses` of a page: sampling intervals (`--sampling`) of an aggregation
//!   interval (`--interval`) in which the page was admitted by a reference. A page
//!   that stays in the set of N enabled pages is referenced unseen, and when a second
//!   chance was earned is not known: what is counted is the least there was, by the
//!   definition of `postproc damon` ([`is_timed`]).
//! - A target's regions are the pages that were referenced since it began, less
//!   those unmapped; what was not referenced in an interval has 0.
//! - `age` of a region: aggregation intervals since its count last changed.
//!   Neighbours with 0 are one region, their age the mean by size, as DAMON
//!   merges.

use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::slices::Slices;
use super::spool::Spool;
use super::{ExportContext, Exporter, FormatEntry, Make};
use crate::damon::{Counter, is_timed};
use crate::error::{OutputContext, Result};
use crate::output::Output;
use crate::pipeline::{Batch, World};
use crate::trace::{Body, Event, Header};
use crate::units::Mm;

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "damon",
    about: "a record for damo: access counts of regions by interval, exact",
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

struct Damon {
    spool: Spool,
    slices: Slices,
    interval_ns: u64,
    sampling_ns: u64,
    page_shift: u32,
    start_ns: u64,
    /// Its times are since the trace's start.
    counter: Counter,
    targets: BTreeMap<Mm, Vec<Region>>,
}

impl Damon {
    fn new(context: &ExportContext<'_>) -> Result<Self> {
        let options = &context.options;
        let sampling_ns = options.sampling_ns.clamp(1, options.interval_ns);
        Ok(Damon {
            spool: Spool::new(context)?,
            slices: Slices::new(options.interval_ns),
            interval_ns: options.interval_ns,
            sampling_ns,
            page_shift: 0,
            start_ns: 0,
            counter: Counter::new(sampling_ns),
            targets: BTreeMap::new(),
        })
    }

    /// Ends slices until a moment lies in the present one.
    fn advance(&mut self, time_ns: u64) -> Result<()> {
        while self.slices.is_over(time_ns) {
            self.end_slice()?;
            self.slices.next();
            self.begin_slice();
        }
        Ok(())
    }

    fn begin_slice(&mut self) {
        let present = self.slices.present();
        let (from, to) = (
            self.slices.beginning_ns(present),
            self.slices.beginning_ns(present + 1),
        );
        self.counter.begin(from, to);
    }

    fn end_slice(&mut self) -> Result<()> {
        let pages = self.counter.pages();
        let hot: Vec<(Mm, u64, u32)> = pages.iter().map(|p| (p.mm, p.vpn.0, p.least)).collect();
        for pages in hot.chunk_by(|a, b| a.0 == b.0) {
            self.targets.entry(pages[0].0).or_default();
        }
        let present = self.slices.present();
        let (from, to) = (
            self.slices.beginning_ns(present),
            self.slices.beginning_ns(present + 1),
        );
        for (&mm, regions) in &mut self.targets {
            let first = hot.partition_point(|page| page.0 < mm);
            let last = hot.partition_point(|page| page.0 <= mm);
            *regions = follow(regions, &hot[first..last]);
            if !regions.is_empty() {
                let text = snapshot(from, to, regions, self.page_shift);
                self.spool.push(mm.0, text.as_bytes())?;
            }
        }
        Ok(())
    }

    fn forget(&mut self, mm: Mm, start: u64, end: u64) {
        if let Some(regions) = self.targets.get_mut(&mm) {
            *regions = without(regions, start >> self.page_shift, end >> self.page_shift);
        }
    }
}

/// The regions of the next interval; `hot` are pages in order, with their counts.
fn follow(old: &[Region], hot: &[(Mm, u64, u32)]) -> Vec<Region> {
    let mut regions: Vec<Region> = Vec::new();
    let mut add = |region: Region| {
        if region.start == region.end {
            return;
        }
        if let Some(last) = regions.last_mut() {
            let alike = last.accesses == region.accesses
                && (last.age == region.age || region.accesses == 0);
            if last.end == region.start && alike {
                let (a, b) = (last.end - last.start, region.end - region.start);
                let ages =
                    u128::from(last.age) * u128::from(a) + u128::from(region.age) * u128::from(b);
                last.age = (ages / u128::from(a + b)) as u64;
                last.end = region.end;
                return;
            }
        }
        regions.push(region);
    };
    let page = |vpn: u64, accesses: u32, before: Option<&Region>| Region {
        start: vpn,
        end: vpn + 1,
        accesses,
        age: before.map_or(0, |r| if r.accesses == accesses { r.age + 1 } else { 0 }),
    };
    let mut hot = hot.iter().peekable();
    for region in old {
        while let Some(&(_, vpn, accesses)) = hot.next_if(|p| p.1 < region.start) {
            add(page(vpn, accesses, None));
        }
        let idle = |start, end| Region {
            start,
            end,
            accesses: 0,
            age: if region.accesses == 0 {
                region.age + 1
            } else {
                0
            },
        };
        let mut at = region.start;
        while let Some(&(_, vpn, accesses)) = hot.next_if(|p| p.1 < region.end) {
            add(idle(at, vpn));
            add(page(vpn, accesses, Some(region)));
            at = vpn + 1;
        }
        add(idle(at, region.end));
    }
    for &(_, vpn, accesses) in hot {
        add(page(vpn, accesses, None));
    }
    regions
}

/// Regions less pages `start..end`.
fn without(regions: &[Region], start: u64, end: u64) -> Vec<Region> {
    let parts = regions.iter().flat_map(|r| {
        let left = Region {
            end: r.end.min(start),
            ..*r
        };
        let right = Region {
            start: r.start.max(end),
            ..*r
        };
        [left, right]
    });
    parts.filter(|r| r.start < r.end).collect()
}

/// A snapshot in damo's JSON.
fn snapshot(from_ns: u64, to_ns: u64, regions: &[Region], page_shift: u32) -> String {
    use std::fmt::Write;
    let mut text = format!(r#"{{"start_time":{from_ns},"end_time":{to_ns},"regions":["#);
    for (i, r) in regions.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            r#"{}{{"start":{},"end":{},"nr_accesses":{{"samples":{},"percent":null}},"age":{{"usec":null,"aggr_intervals":{}}}}}"#,
            if i == 0 { "" } else { "," },
            r.start << page_shift,
            r.end << page_shift,
            r.accesses,
            r.age
        );
    }
    text.push_str(r#"],"total_bytes":null}"#);
    text
}

impl Exporter for Damon {
    fn begin(&mut self, header: &Header, _out: &mut Output) -> Result<()> {
        self.slices.begin(header);
        self.page_shift = header.page_shift;
        self.start_ns = header.start_time_ns;
        self.begin_slice();
        Ok(())
    }

    fn references(&mut self, batch: &Batch<'_>, _out: &mut Output) -> Result<()> {
        for r in batch.refs {
            self.advance(r.time_ns)?;
            // When a second chance was earned is not known.
            if !is_timed(r) {
                continue;
            }
            // What comes late counts to the present slice.
            let begun = self.slices.beginning_ns(self.slices.present());
            let time = r.time_ns.saturating_sub(self.start_ns).max(begun);
            // The least there was: of the rest of a stay nothing is said.
            let page = (r.mm, r.vpn(self.page_shift));
            self.counter.observe(page, time, time, true);
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, _world: &World, _out: &mut Output) -> Result<()> {
        match event.body {
            Body::Unmap { start, end } => {
                self.advance(event.time_ns)?;
                self.forget(event.mm, start, end);
            }
            Body::Move {
                old_start, old_len, ..
            } => {
                self.advance(event.time_ns)?;
                self.forget(event.mm, old_start, old_start.saturating_add(old_len));
            }
            Body::MmEnd => {
                self.advance(event.time_ns)?;
                self.targets.remove(&event.mm);
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Output) -> Result<()> {
        self.end_slice()?;
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        let mut write = |bytes: &[u8]| -> Result<()> {
            zlib.write_all(bytes).writing(out.name())?;
            out.write_all(zlib.get_ref()).writing(out.name())?;
            zlib.get_mut().clear();
            Ok(())
        };
        let intervals = format!(
            r#"{{"sample_us":"{}","aggr_us":"{}","ops_update_us":"{}"}}"#,
            self.sampling_ns / 1000,
            self.interval_ns / 1000,
            self.interval_ns / 1000
        );
        for (i, target) in self.spool.lists().into_iter().enumerate() {
            let head = format!(
                r#"{}{{"kdamond_idx":0,"context_idx":0,"intervals":{intervals},"scheme_idx":null,"target_id":{target},"scheme_filters":[],"snapshots":["#,
                if i == 0 { "[" } else { "," },
            );
            write(head.as_bytes())?;
            let mut first = true;
            self.spool.read(target, |snapshot| {
                if !std::mem::take(&mut first) {
                    write(b",")?;
                }
                write(snapshot)
            })?;
            write(b"]}")?;
        }
        write(if self.spool.lists().is_empty() {
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
            without(&regions, 7, 10),
            [
                region(5, 7, 1, 0),
                region(10, 12, 2, 0),
                region(20, 21, 0, 4)
            ]
        );
        assert_eq!(without(&regions, 0, 100), []);
    }
}
