//! How much memory is enough: the smallest memory whose misses stay within a limit.
//!
//! The misses of LRU and OPT never grow with memory. So the sizes that are enough are those from
//! some size on, the *need*. The trace's own curve gives an estimate. Bounds on the need follow from
//! the bounds on the misses of all references ([`super::band`]):
//!
//! - Where the lower bound on the misses is above the limit, memory is too small. The lower bounds
//!   hold at all sizes, also at those that have no band.
//! - Where the upper bound is within the limit, memory is enough.
//! - A memory of all pages that exist at one time, the *footprint*, is enough for every limit that is
//!   no less than the cold misses: it never replaces a page. The footprint is the same for all
//!   references as for the trace, because every page's first reference is in the trace, and every
//!   page is freed at the same place of both sequences.

use serde::Serialize;

use super::{Certificate, Curve};

/// A need, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Need {
    /// By the trace's references. If there are bounds, it lies between them.
    #[serde(rename = "size_pages")]
    pub pages: u64,
    /// The bounds on the need of all references of the run.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
}

/// Bounds on a size of memory, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Bounds {
    /// Every smaller memory has more misses than the limit.
    #[serde(rename = "low_pages")]
    pub low: u64,
    /// This memory has no more misses than the limit.
    #[serde(rename = "high_pages")]
    pub high: u64,
}

/// The smallest size from 1 to `most` that is enough. Every size above one that is enough must be
/// enough, and so must `most`. 0 if `most` is 0: there is nothing to keep in memory.
fn smallest(most: u64, enough: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (most.min(1), most);
    while low < high {
        let middle = low + (high - low) / 2;
        match enough(middle) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    low
}

impl Need {
    /// Of LRU, for at most `limit` misses, which must be no fewer than the cold ones; `curve` is
    /// LRU's.
    pub fn lru(curve: &Curve, certificate: Option<&Certificate>, limit: u64) -> Need {
        let footprint = curve.footprint();
        let of = |certificate: &Certificate| Bounds {
            low: smallest(footprint, |size| certificate.lru_low(size) <= limit),
            high: smallest(footprint, |size| {
                let band = certificate.lru(size);
                size == footprint || band.is_some_and(|band| band.high <= limit)
            }),
        };
        Need::within(curve, certificate.map(of), limit)
    }

    /// The same of OPT; `curve` is OPT's. No policy needs less than OPT.
    pub fn opt(curve: &Curve, certificate: Option<&Certificate>, limit: u64) -> Need {
        let footprint = curve.footprint();
        let misses = |size| curve.at(size).misses;
        let of = |certificate: &Certificate| Bounds {
            low: smallest(footprint, |size| certificate.opt_low(misses, size) <= limit),
            high: smallest(footprint, |size| {
                let band = certificate.opt(misses, size);
                size == footprint || band.is_some_and(|band| band.high <= limit)
            }),
        };
        Need::within(curve, certificate.map(of), limit)
    }

    fn within(curve: &Curve, bounds: Option<Bounds>, limit: u64) -> Need {
        let own = smallest(curve.footprint(), |size| curve.at(size).misses <= limit);
        let pages = bounds.map_or(own, |bounds| own.max(bounds.low).min(bounds.high));
        Need { pages, bounds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Access, CurveSimulation, LruCurve, OptCurve};
    use crate::units::CanonPage;

    fn curve(mut of: impl CurveSimulation, pages: impl Iterator<Item = u32>) -> Curve {
        let accesses: Vec<_> = pages
            .map(|page| Access::reference(CanonPage(page), false))
            .collect();
        of.references(&accesses);
        of.curve()
    }

    #[test]
    fn the_smallest_size_is_found() {
        for most in 1..20 {
            for needed in 1..=most {
                assert_eq!(smallest(most, |size| size >= needed), needed);
            }
        }
        assert_eq!(smallest(0, |_| false), 0);
    }

    /// LRU misses everything in a loop that does not fit, so a loop over P pages needs P. OPT keeps
    /// all pages except one, and trades with the limit.
    #[test]
    fn a_loop_needs_all_its_pages() {
        let rounds = |pages: u32, rounds| (0..rounds).flat_map(move |_| 1..=pages);
        let lru = curve(LruCurve::default(), rounds(50, 10));
        assert_eq!(Need::lru(&lru, None, 50).pages, 50);
        // Even nine times as many misses need all pages: each round misses all or none.
        assert_eq!(Need::lru(&lru, None, 499).pages, 50);
        assert_eq!(Need::lru(&lru, None, 500).pages, 1);
        let opt = curve(OptCurve::default(), rounds(50, 10));
        let need = |limit| Need::opt(&opt, None, limit).pages;
        assert_eq!(need(50), 50);
        assert!(need(70) < 50 && need(70) > 25, "{}", need(70));
        assert_eq!(Need::lru(&Curve::default(), None, 0).pages, 0);
    }
}
