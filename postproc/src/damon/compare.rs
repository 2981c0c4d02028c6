//! The error of a real DAMON, compared with the exact counts of the same intervals.
//!
//! Exact counts are bounds ([`super`]). The error is the distance to the nearer bound, so
//! that DAMON is not blamed for what the trace does not contain.

use serde::Serialize;

use super::record::Snapshot;
use super::{PageCount, Percentiles, Sink};

/// How far DAMON was off, over all snapshots.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Comparison {
    /// Snapshots that lie within the trace.
    pub snapshots: u64,
    /// Snapshots that do not.
    pub outside: u64,
    /// DAMON's working set by snapshot: bytes of regions with any access.
    pub damon: Percentiles,
    /// Bytes that certainly were referenced.
    pub least: Percentiles,
    /// Bytes that may have been referenced.
    pub most: Percentiles,
    /// Error of DAMON's working set, as a share of the nearer bound; a mean of snapshots.
    pub working_set_error: f64,
    /// Regions by snapshot, a mean.
    pub regions: f64,
    /// Pages of all regions of all snapshots.
    pub pages: u64,
    /// Error of their `nr_accesses`, a mean.
    pub accesses_error: f64,
    /// The same with its sign: above 0, DAMON's counts are too high.
    pub accesses_bias: f64,
    /// Share of these pages whose `nr_accesses` is wrong.
    pub wrong: f64,
    /// Share of the pages that certainly were referenced and that DAMON calls accessed.
    pub found: f64,
    /// Share of the pages that DAMON calls accessed that certainly were not.
    pub false_share: f64,
    /// Pages that certainly were referenced and lie in no region, of all snapshots.
    pub missed: u64,
}

/// Compares as intervals come.
pub struct Comparer {
    page_shift: u32,
    snapshots: Vec<Snapshot>,
    next: usize,
    damon: Vec<u64>,
    least: Vec<u64>,
    most: Vec<u64>,
    error_sum: f64,
    regions: u64,
    pages: u64,
    accesses_error: u128,
    accesses_bias: i128,
    wrong: u64,
    referenced: u64,
    found: u64,
    called: u64,
    false_calls: u64,
    missed: u64,
}

impl Comparer {
    /// Compares snapshots, in order, with the references of their address space.
    pub fn new(page_shift: u32, snapshots: Vec<Snapshot>) -> Self {
        Comparer {
            page_shift,
            snapshots,
            next: 0,
            damon: Vec::new(),
            least: Vec::new(),
            most: Vec::new(),
            error_sum: 0.0,
            regions: 0,
            pages: 0,
            accesses_error: 0,
            accesses_bias: 0,
            wrong: 0,
            referenced: 0,
            found: 0,
            called: 0,
            false_calls: 0,
            missed: 0,
        }
    }

    fn snapshot(&mut self, at: usize, pages: &[PageCount]) {
        let size = 1u64 << self.page_shift;
        let snapshot = &self.snapshots[at];
        let (mut damon, mut inside) = (0, 0);
        let certainly = |pages: &[PageCount]| pages.iter().filter(|p| p.least > 0).count() as u64;
        for region in &snapshot.regions {
            let (first, last) = (
                region.start >> self.page_shift,
                region
                    .end
                    .div_ceil(size)
                    .max(region.start >> self.page_shift),
            );
            let from = pages.partition_point(|p| p.vpn.0 < first);
            let to = pages.partition_point(|p| p.vpn.0 < last);
            let known = &pages[from..to];
            let total = last - first;
            let a = region.accesses;
            self.pages = self.pages.saturating_add(total);
            inside += certainly(known);
            if a > 0 {
                damon = u64::saturating_add(damon, total);
                self.called = self.called.saturating_add(total);
                self.found += certainly(known);
                self.false_calls = self.false_calls.saturating_add(total - known.len() as u64);
            }
            // Of pages without a count it is certain that there was no reference.
            let idle = total - known.len() as u64;
            self.accesses_error += u128::from(a) * u128::from(idle);
            self.accesses_bias += i128::from(a) * i128::from(idle);
            self.wrong = self.wrong.saturating_add(if a > 0 { idle } else { 0 });
            for page in known {
                let nearest = a.clamp(page.least, page.most.max(page.least));
                self.accesses_error += u128::from(a.abs_diff(nearest));
                self.accesses_bias += i128::from(a) - i128::from(nearest);
                self.wrong = self.wrong.saturating_add((a != nearest).into());
            }
        }
        let (least, most) = (certainly(pages), pages.len() as u64);
        self.regions += snapshot.regions.len() as u64;
        self.referenced += least;
        self.missed += least - inside.min(least);
        self.error_sum += {
            let nearest = damon.clamp(least, most.max(least));
            damon.abs_diff(nearest) as f64 / nearest.max(1) as f64
        };
        self.damon.push(damon.saturating_mul(size));
        self.least.push(least * size);
        self.most.push(most * size);
    }

    /// The result.
    pub fn comparison(&self) -> Comparison {
        let compared = self.damon.len() as u64;
        let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
        Comparison {
            snapshots: compared,
            outside: self.snapshots.len() as u64 - compared,
            damon: Percentiles::of(self.damon.clone()),
            least: Percentiles::of(self.least.clone()),
            most: Percentiles::of(self.most.clone()),
            working_set_error: self.error_sum / compared.max(1) as f64,
            regions: share(self.regions, compared),
            pages: self.pages,
            accesses_error: self.accesses_error as f64 / self.pages.max(1) as f64,
            accesses_bias: self.accesses_bias as f64 / self.pages.max(1) as f64,
            wrong: share(self.wrong, self.pages),
            found: share(self.found, self.referenced),
            false_share: share(self.false_calls, self.called),
            missed: self.missed,
        }
    }
}

impl Sink for Comparer {
    fn interval(&mut self, start: u64, end: u64, pages: &[PageCount]) {
        let this = |s: &Snapshot| (s.start, s.end) == (start, end);
        let Some(at) = self.snapshots[self.next..].iter().position(this) else {
            return;
        };
        let at = self.next + at;
        self.next = at + 1;
        self.snapshot(at, pages);
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Region;
    use super::*;
    use crate::units::{Mm, VirtPage};

    fn page(vpn: u64, least: u32, most: u32) -> PageCount {
        PageCount {
            mm: Mm(1),
            vpn: VirtPage(vpn),
            least,
            most,
        }
    }

    #[test]
    fn errors_are_distances_to_the_nearer_bound() {
        let region = |start: u64, end: u64, accesses| Region {
            start: start * 4096,
            end: end * 4096,
            accesses,
        };
        let snapshot = Snapshot {
            start: 0,
            end: 100,
            // Four pages said to have been accessed 5 times, two not at all.
            regions: vec![region(10, 14, 5), region(14, 16, 0)],
        };
        let mut comparer = Comparer::new(12, vec![snapshot]);
        // 10 agrees, 11 is off by 2, 12 by 1, 13 was not accessed, 14 was, 15 may have
        // been; 20 is in no region.
        let pages = [
            page(10, 3, 6),
            page(11, 1, 3),
            page(12, 6, 8),
            page(14, 2, 2),
            page(15, 0, 4),
            page(20, 1, 1),
        ];
        comparer.snapshot(0, &pages);
        let c = comparer.comparison();
        assert_eq!((c.snapshots, c.outside, c.pages, c.missed), (1, 0, 6, 1));
        assert_eq!(c.accesses_error, f64::from(2 + 1 + 5 + 2) / 6.0);
        assert_eq!(c.accesses_bias, f64::from(2 - 1 + 5 - 2) / 6.0);
        assert_eq!(c.wrong, 4.0 / 6.0);
        assert_eq!(c.found, 3.0 / 5.0);
        assert_eq!(c.false_share, 1.0 / 4.0);
        assert_eq!(
            (c.damon.p50, c.least.p50, c.most.p50),
            (4 * 4096, 5 * 4096, 6 * 4096)
        );
        assert_eq!(c.working_set_error, 1.0 / 5.0);
    }
}
