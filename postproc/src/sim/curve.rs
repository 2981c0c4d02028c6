//! The counts of every size of memory.

use serde::Serialize;

use super::Counts;

/// Misses and write-backs of all sizes of memory at once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Curve {
    /// References.
    pub references: u64,
    /// First references to pages, which miss in every size.
    pub cold: u64,
    /// By size in pages less one: references that hit in that size and in no smaller one.
    pub hits_from: Vec<u64>,
    /// By size in pages less one: write-backs; see [`Counts::write_backs`].
    pub write_backs: Option<Vec<u64>>,
    /// By size in pages less one: pages dirty in memory at the end.
    pub dirty_left: Vec<u64>,
}

/// One size of a curve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct CurvePoint {
    /// Size of memory in pages.
    pub size_pages: u64,
    /// References to pages that were not in memory.
    pub misses: u64,
    /// Dirty pages that were replaced; see [`Counts::write_backs`].
    pub write_backs: Option<u64>,
}

impl Curve {
    /// The largest number of pages that existed at one time: the smallest size that has only
    /// cold misses.
    pub fn footprint(&self) -> u64 {
        self.hits_from.len() as u64
    }

    /// All sizes from 1 to the footprint, ascending.
    pub fn points(&self) -> impl Iterator<Item = CurvePoint> + '_ {
        let mut misses = self.references;
        self.hits_from.iter().enumerate().map(move |(i, hits)| {
            misses -= hits;
            CurvePoint {
                size_pages: i as u64 + 1,
                misses,
                write_backs: self.write_backs.as_ref().map(|w| w[i]),
            }
        })
    }

    /// The counts of one size; a size of 0 counts as 1.
    pub fn at(&self, size: u64) -> Counts {
        let size = size.max(1);
        let upto = usize::try_from(size)
            .unwrap_or(usize::MAX)
            .min(self.hits_from.len());
        let hits: u64 = self.hits_from[..upto].iter().sum();
        let of = |v: &[u64]| {
            upto.checked_sub(1)
                .and_then(|i| v.get(i))
                .copied()
                .unwrap_or(0)
        };
        Counts {
            size_pages: size,
            references: self.references,
            misses: self.references - hits,
            cold: self.cold,
            write_backs: self.write_backs.as_deref().map(of),
            dirty_left: of(&self.dirty_left),
        }
    }

    /// At most `count` points that show the curve's shape on a logarithmic axis: the first, the
    /// last, and points between them, each size the same factor above the one before it.
    pub fn sampled(&self, count: usize) -> Vec<CurvePoint> {
        let last = self.footprint();
        if last == 0 {
            return Vec::new();
        }
        let step = (last as f64).powf(1.0 / (count.max(2) - 1) as f64);
        let mut wanted: Vec<u64> = (0..count)
            .map(|i| (step.powi(i as i32).round() as u64).clamp(1, last))
            .collect();
        wanted.push(last);
        wanted.dedup();
        let mut wanted = wanted.into_iter().peekable();
        self.points()
            .filter(|p| wanted.next_if_eq(&p.size_pages).is_some())
            .collect()
    }
}
