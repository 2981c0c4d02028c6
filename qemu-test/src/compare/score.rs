//! How much of what is true an observer reports, and how much of what it reports is true. Nothing here
//! knows which observer it is.
//!
//! A *use* is a page and an interval in which a program or the kernel referenced the page. A *claim* is a
//! page and an interval in which the page was used as the observer reports it.

use postproc::sim::Curve;
use serde::Serialize;

/// A page of an address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The address space.
    pub mm: u32,
    /// The page's number: its address by the size of a page.
    pub vpn: u64,
}

/// What an observer reports: that some pages were used at some moment of a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// The first page.
    pub at: Place,
    /// How many pages, from that one on.
    pub pages: u64,
    /// When the span begins, ns.
    pub from: u64,
    /// The span's last moment, ns.
    pub to: u64,
    /// The pages were used when the span begins.
    pub timed: bool,
}

/// Time in intervals, which have numbers from 0 on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Grid {
    /// Intervals of equal length.
    Equal {
        /// When the first one begins, ns. Whatever is earlier is in it, too.
        begin: u64,
        /// Of each, ns; not 0.
        length: u64,
    },
    /// Intervals that end at these moments, in order, and one more.
    Ends(Vec<u64>),
}

impl Grid {
    /// The interval that a moment lies in.
    #[inline]
    pub fn interval(&self, time: u64) -> usize {
        match self {
            Grid::Equal { begin, length } => (time.saturating_sub(*begin) / length) as usize,
            Grid::Ends(ends) => ends.partition_point(|end| *end <= time),
        }
    }

    /// When an interval begins, ns.
    fn begin(&self, interval: usize) -> u64 {
        match self {
            Grid::Equal { begin, length } => begin + interval as u64 * length,
            Grid::Ends(ends) => interval
                .checked_sub(1)
                .and_then(|before| ends.get(before))
                .copied()
                .unwrap_or(0),
        }
    }
}

/// A use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// The number of the page among all pages of the truth.
    pub page: u32,
    /// A program made one of the references, and not only the kernel.
    pub program: bool,
}

/// All uses, by interval, in the order of the first references.
#[derive(Default, Debug)]
pub struct Uses {
    intervals: Vec<Vec<Use>>,
    /// Of each page: the interval of its last use, plus one, and the place of this use in it.
    last: Vec<(usize, usize)>,
}

impl Uses {
    /// A reference, not before those that came earlier.
    #[inline]
    pub fn reference(&mut self, page: u32, interval: usize, kernel: bool) {
        let at = page as usize;
        if at >= self.last.len() {
            self.last.resize(at + 1, (0, 0));
        }
        if interval >= self.intervals.len() {
            self.intervals.resize_with(interval + 1, Vec::new);
        }
        let (last, place) = self.last[at];
        let uses = &mut self.intervals[interval];
        if last == interval + 1 {
            uses[place].program |= !kernel;
        } else {
            self.last[at] = (interval + 1, uses.len());
            uses.push(Use {
                page,
                program: !kernel,
            });
        }
    }

    /// The uses of each interval.
    pub fn intervals(&self) -> &[Vec<Use>] {
        &self.intervals
    }
}

/// What is claimed in an interval.
#[derive(Default)]
struct Claims {
    /// By address space: pages from one number to before another one, in order and apart.
    ranges: Vec<(u32, u64, u64)>,
    /// Pages that are claimed with the moment of a use in the interval, in order; and the moment and place
    /// of the first such report.
    timed: Vec<(Place, (u64, usize))>,
}

impl Claims {
    /// Pages.
    fn count(&self) -> u64 {
        self.ranges.iter().map(|(_, first, end)| end - first).sum()
    }

    fn has(&self, page: Place) -> bool {
        let after = self
            .ranges
            .partition_point(|(mm, first, _)| (*mm, *first) <= (page.mm, page.vpn));
        let range = after.checked_sub(1).and_then(|at| self.ranges.get(at));
        range.is_some_and(|(mm, _, end)| *mm == page.mm && page.vpn < *end)
    }

    fn order(&self, page: Place) -> Option<(u64, usize)> {
        let at = self.timed.binary_search_by_key(&page, |(p, _)| *p).ok()?;
        self.timed.get(at).map(|(_, order)| *order)
    }

    fn settle(&mut self) {
        self.ranges.sort_unstable();
        let mut apart: Vec<(u32, u64, u64)> = Vec::with_capacity(self.ranges.len());
        for &(mm, first, end) in &self.ranges {
            match apart.last_mut() {
                Some(last) if last.0 == mm && first <= last.2 => last.2 = last.2.max(end),
                _ => apart.push((mm, first, end)),
            }
        }
        self.ranges = apart;
        self.timed.sort_unstable();
        self.timed.dedup_by_key(|(page, _)| *page);
    }
}

/// The claims of each of so many intervals.
fn claims(reports: &[Report], grid: &Grid, intervals: usize) -> Vec<Claims> {
    let mut all: Vec<Claims> = Vec::new();
    all.resize_with(intervals, Claims::default);
    for (place, r) in reports.iter().enumerate() {
        let (first, last) = (grid.interval(r.from), grid.interval(r.to.max(r.from)));
        for (interval, claims) in all.iter_mut().enumerate().take(last + 1).skip(first) {
            let range = (r.at.mm, r.at.vpn, r.at.vpn.saturating_add(r.pages));
            claims.ranges.push(range);
            if r.timed && interval == first && r.from >= grid.begin(interval) {
                claims.timed.push((r.at, (r.from, place)));
            }
        }
    }
    for claims in &mut all {
        claims.settle();
    }
    all
}

/// What came out for one length of intervals.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
pub struct Score {
    /// Intervals, from the first use to the last one.
    pub intervals: u64,
    /// Uses.
    pub uses: u64,
    /// Claims in these intervals.
    pub claims: u64,
    /// Uses that are claimed.
    pub both: u64,
    /// Uses in which all references are the kernel's.
    pub kernel: u64,
    /// Of these, those that are claimed.
    pub kernel_seen: u64,
    /// Pairs of uses in one interval.
    pub pairs: u64,
    /// Pairs whose reports have the order of the first references of both.
    pub in_order: u64,
    /// Pages used in an interval that has uses: the median, and what 95 % of these intervals do not exceed.
    pub working_set: [u64; 2],
    /// The same by the claims.
    pub working_set_claimed: [u64; 2],
}

impl Score {
    /// The share of the uses that are claimed.
    pub fn seen(&self) -> Option<f64> {
        share(self.both, self.uses)
    }

    /// The share of the claims that are true.
    pub fn precision(&self) -> Option<f64> {
        share(self.both, self.claims)
    }

    /// The share of the kernel's uses that are claimed.
    pub fn kernel(&self) -> Option<f64> {
        share(self.kernel_seen, self.kernel)
    }

    /// The share of the pairs that are in order.
    pub fn order(&self) -> Option<f64> {
        share(self.in_order, self.pairs)
    }

    /// The error of the working set: of its median, and of what 95 % of the intervals do not exceed. It has
    /// a sign: claims that are too many give a positive error.
    pub fn working_set_errors(&self) -> [Option<f64>; 2] {
        let both = self.working_set.iter().zip(self.working_set_claimed);
        let mut errors = both.map(|(&truth, claimed)| {
            (truth > 0).then(|| (claimed as f64 - truth as f64) / truth as f64)
        });
        std::array::from_fn(|_| errors.next().flatten())
    }
}

/// A share; none of nothing.
pub fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

/// The smallest of these numbers that so many percent of them do not exceed; 0 if there are none. They need
/// not be in order.
pub fn percentile(numbers: &[u64], percent: usize) -> u64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

/// How many pairs have keys in ascending order. Pairs in which one has no key are not in order.
fn ascending<K: Ord + Copy>(keys: impl Iterator<Item = Option<K>>) -> u64 {
    let mut before: Vec<K> = Vec::new();
    let mut pairs = 0;
    for key in keys.flatten() {
        let at = before.partition_point(|other| *other < key);
        pairs += at as u64;
        before.insert(at, key);
    }
    pairs
}

/// Compares reports with uses. `names` are the pages of the truth by their numbers. Intervals before the
/// first use and after the last one do not count.
pub fn score(uses: &Uses, names: &[Place], reports: &[Report], grid: &Grid) -> Score {
    let claims = claims(reports, grid, uses.intervals().len());
    let mut s = Score::default();
    let mut sizes: [Vec<u64>; 2] = Default::default();
    let of_both = uses.intervals().iter().zip(&claims);
    for (uses, claims) in of_both.skip_while(|(uses, _)| uses.is_empty()) {
        s.intervals += 1;
        if !uses.is_empty() {
            sizes[0].push(uses.len() as u64);
            sizes[1].push(claims.count());
        }
        s.uses += uses.len() as u64;
        s.claims += claims.count();
        s.pairs += (uses.len() * uses.len().saturating_sub(1) / 2) as u64;
        let name = |u: &Use| names.get(u.page as usize).copied();
        s.in_order += ascending(uses.iter().map(|u| claims.order(name(u)?)));
        for u in uses {
            let seen = u64::from(name(u).is_some_and(|page| claims.has(page)));
            s.both += seen;
            if !u.program {
                s.kernel += 1;
                s.kernel_seen += seen;
            }
        }
    }
    let of = |sizes: &[u64]| [50, 95].map(|percent| percentile(sizes, percent));
    s.working_set = of(&sizes[0]);
    s.working_set_claimed = of(&sizes[1]);
    s
}

/// The share of the pages that at least one report is about.
pub fn pages_seen(names: &[Place], reports: &[Report]) -> Option<f64> {
    let whole = Grid::Ends(Vec::new());
    let claims = claims(reports, &whole, 1);
    let claims = claims.first()?;
    let seen = names.iter().filter(|page| claims.has(**page)).count();
    share(seen as u64, names.len() as u64)
}

/// The mean error of the misses under LRU, in memories of `from` pages and more: |misses of the reports -
/// misses of all references| / (misses of all references + pages). Each memory is larger than the one
/// before by a factor of the square root of two, up to the number of pages. `None` if that is not above
/// `from`.
pub fn lru_error(full: &Curve, reported: &Curve, from: u64, pages: u64) -> Option<f64> {
    let sizes = (0..).map(|step| (from as f64 * 2f64.powf(f64::from(step) / 2.0)).round() as u64);
    let errors: Vec<f64> = sizes
        .take_while(|size| *size < pages)
        .map(|size| {
            let (full, reported) = (full.at(size).misses, reported.at(size).misses);
            reported.abs_diff(full) as f64 / (full + pages) as f64
        })
        .collect();
    (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MM: u32 = 7;

    fn place(vpn: u64) -> Place {
        Place { mm: MM, vpn }
    }

    fn names(pages: u64) -> Vec<Place> {
        (0..pages).map(|page| place(100 + page)).collect()
    }

    fn grid() -> Grid {
        Grid::Equal {
            begin: 1000,
            length: 10,
        }
    }

    /// References: time, page, and whether they are the kernel's.
    fn uses(references: &[(u64, u32, bool)]) -> Uses {
        let mut uses = Uses::default();
        for &(time, page, kernel) in references {
            uses.reference(page, grid().interval(time), kernel);
        }
        uses
    }

    /// A page's use at a moment.
    fn report(page: u64, time: u64) -> Report {
        stay(page, time, time)
    }

    fn stay(page: u64, from: u64, to: u64) -> Report {
        Report {
            at: place(100 + page),
            pages: 1,
            from,
            to,
            timed: true,
        }
    }

    #[test]
    fn moments_lie_in_intervals() {
        let at = |grid: &Grid| [0, 1000, 1009, 1010, 1029].map(|time| grid.interval(time));
        assert_eq!(at(&grid()), [0, 0, 0, 1, 2]);
        let own = Grid::Ends(vec![1000, 1010]);
        assert_eq!(at(&own), [0, 1, 1, 2, 2]);
        assert_eq!([0, 1, 2].map(|i| own.begin(i)), [0, 1000, 1010]);
        assert_eq!([0, 1, 2].map(|i| grid().begin(i)), [1000, 1010, 1020]);
    }

    #[test]
    fn a_page_is_used_once_in_an_interval() {
        let of = |page, program| Use { page, program };
        let uses = uses(&[
            (1000, 1, true),
            (1001, 0, false),
            (1009, 1, true),
            (1030, 1, true),
            (1031, 0, true),
            (1032, 1, false),
        ]);
        let first = vec![of(1, false), of(0, true)];
        let last = vec![of(1, true), of(0, false)];
        assert_eq!(uses.intervals(), [first, vec![], vec![], last]);
    }

    #[test]
    fn shares_of_uses_and_of_claims() {
        let uses = uses(&[
            (1000, 0, false),
            (1001, 1, true),
            (1011, 0, false),
            (1012, 2, false),
        ]);
        // Pages 0 and 1 in time; page 0 again in no report; page 9 was never used.
        let reports = [report(0, 1000), report(1, 1001), report(9, 1015)];
        let s = score(&uses, &names(3), &reports, &grid());
        assert_eq!((s.intervals, s.uses, s.claims, s.both), (2, 4, 3, 2));
        assert_eq!(s.seen(), Some(0.5));
        assert_eq!(s.precision(), Some(2.0 / 3.0));
        assert_eq!((s.kernel, s.kernel_seen), (1, 1));
        assert_eq!((s.pairs, s.in_order), (2, 1));
        assert_eq!((s.working_set, s.working_set_claimed), ([2, 2], [1, 2]));
        assert_eq!(s.working_set_errors(), [Some(-0.5), Some(0.0)]);
        assert_eq!(pages_seen(&names(3), &reports), Some(2.0 / 3.0));
        // Of the same page in another address space.
        let mut others = reports;
        others.iter_mut().for_each(|r| r.at.mm += 1);
        let none = score(&uses, &names(3), &others, &grid());
        assert_eq!((none.both, none.claims), (0, 3));
        assert_eq!(pages_seen(&names(3), &others), Some(0.0));
    }

    #[test]
    fn a_report_that_is_left_out_lowers_the_share() {
        let all: Vec<(u64, u32, bool)> = (0..30)
            .map(|i| (1000 + u64::from(i), i % 7, false))
            .collect();
        let reports: Vec<Report> = all.iter().map(|r| report(r.1.into(), r.0)).collect();
        let whole = score(&uses(&all), &names(7), &reports, &grid());
        assert_eq!((whole.seen(), whole.precision()), (Some(1.0), Some(1.0)));
        assert_eq!(whole.order(), Some(1.0));
        // Each page was referenced more than once in no interval but for three of each.
        let fewer: Vec<Report> = reports.iter().copied().filter(|r| r.from != 1005).collect();
        let s = score(&uses(&all), &names(7), &fewer, &grid());
        assert_eq!((s.both, s.claims), (whole.both - 1, whole.claims - 1));
        assert!(s.order() < whole.order());
    }

    #[test]
    fn a_stay_claims_each_interval_that_it_touches_and_has_an_order_in_the_first_one() {
        let uses = uses(&[
            (1000, 0, false),
            (1001, 1, false),
            (1010, 0, false),
            (1011, 1, false),
            (1020, 1, false),
        ]);
        let reports = [stay(0, 1000, 1029), stay(1, 1001, 1015)];
        let s = score(&uses, &names(2), &reports, &grid());
        assert_eq!((s.claims, s.both), (5, 4));
        assert_eq!((s.pairs, s.in_order), (2, 1));
        // A stay that began before the first interval has no order there.
        let early = [stay(0, 999, 1029), stay(1, 1001, 1015)];
        assert_eq!(score(&uses, &names(2), &early, &grid()).in_order, 0);
    }

    #[test]
    fn regions_claim_all_their_pages_once() {
        let uses = uses(&[(1000, 0, false), (1001, 5, false), (1012, 1, false)]);
        let region = |first: u64, pages, from, to| Report {
            at: place(100 + first),
            pages,
            from,
            to,
            timed: false,
        };
        let reports = [
            region(0, 4, 1000, 1009),
            region(2, 4, 1005, 1009),
            region(8, 2, 1000, 1009),
        ];
        let s = score(&uses, &names(6), &reports, &grid());
        assert_eq!((s.claims, s.both, s.in_order), (8, 2, 0));
        assert_eq!(pages_seen(&names(6), &reports), Some(1.0));
    }

    #[test]
    fn intervals_in_which_nothing_is_used_count_between_uses() {
        let uses = uses(&[(1025, 0, false), (1045, 0, false)]);
        let s = score(&uses, &names(1), &[report(0, 1035)], &grid());
        assert_eq!((s.intervals, s.uses, s.claims, s.both), (3, 2, 1, 0));
        assert_eq!((s.seen(), s.precision()), (Some(0.0), Some(0.0)));
        assert_eq!(s.kernel(), None);
    }

    #[test]
    fn percentiles_are_by_rank() {
        let numbers: Vec<u64> = (1..=20).rev().collect();
        assert_eq!(percentile(&numbers, 50), 10);
        assert_eq!(percentile(&numbers, 95), 19);
        assert_eq!(percentile(&[4], 95), 4);
        assert_eq!(percentile(&[], 50), 0);
    }

    #[test]
    fn pairs_in_order_are_counted() {
        let of = |keys: &[Option<u32>]| ascending(keys.iter().copied());
        assert_eq!(of(&[Some(1), Some(2), Some(3)]), 3);
        assert_eq!(of(&[Some(3), Some(2), Some(1)]), 0);
        assert_eq!(of(&[Some(1), Some(1), Some(2)]), 2);
        assert_eq!(of(&[Some(1), None, Some(2)]), 1);
    }

    /// A curve by its misses in 1, 2, … pages.
    fn curve(misses: &[u64]) -> Curve {
        let references = misses[0] + 5;
        let mut before = references;
        let hits_from = misses
            .iter()
            .map(|m| std::mem::replace(&mut before, *m) - m);
        Curve {
            references,
            cold: 0,
            hits_from: hits_from.collect(),
            write_backs: None,
            dirty_left: Vec::new(),
        }
    }

    #[test]
    fn errors_of_curves() {
        let full = curve(&[90, 80, 70, 60, 50, 40]);
        assert_eq!(lru_error(&full, &full, 2, 6), Some(0.0));
        assert_eq!(lru_error(&full, &full, 6, 6), None);
        // At 4 pages, and not at 5.66, which is above 5.
        let other = curve(&[90, 80, 70, 53, 50, 40]);
        assert_eq!(lru_error(&full, &other, 4, 5), Some(7.0 / 65.0));
    }
}
