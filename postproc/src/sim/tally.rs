//! Computes the counts of all sizes from distances.
//!
//! Under a stack policy (LRU, OPT), a memory holds all pages that smaller memories hold
//! (Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage
//! hierarchies", IBM Systems Journal 9(2), 1970). So a reference hits in all sizes from
//! its distance on.
//!
//! Write-backs follow, too. After a write, a page is dirty in every size; while its
//! distances stay at most `m`, it is dirty in sizes of `m` and more. At a reference with
//! distance `d`, the sizes below `d` have replaced the page, and those of them that held
//! it dirty, `m..d`, have written it back. When a dirty page is freed, the sizes below its
//! place in the stack have written it back.

use super::curve::Curve;

/// Not dirty in any size.
pub(super) const CLEAN: u32 = u32::MAX;

/// Counts by size. All sizes and distances are less one here.
///
/// Takes 16 bytes for each page that exists at one time.
#[derive(Clone)]
pub(super) struct Tally {
    references: u64,
    cold: u64,
    /// Pages that live now.
    live: usize,
    /// By distance.
    hits: Vec<u64>,
    /// By size: differences, whose sums are the write-backs.
    write_back_steps: Vec<i64>,
}

impl Default for Tally {
    fn default() -> Self {
        Tally {
            references: 0,
            cold: 0,
            live: 0,
            hits: Vec::new(),
            write_back_steps: vec![0],
        }
    }
}

impl Tally {
    /// The largest number of pages that existed at one time: no distance is larger.
    pub fn most(&self) -> usize {
        self.hits.len()
    }

    /// A page's first reference.
    pub fn first(&mut self) {
        self.references += 1;
        self.cold += 1;
        self.live += 1;
        if self.live > self.hits.len() {
            self.hits.push(0);
            self.write_back_steps.push(0);
        }
    }

    /// A page that was referenced is freed. Sizes up to `distance` have already replaced it;
    /// it was dirty in sizes from `dirty_from` on.
    pub fn freed(&mut self, distance: u32, dirty_from: u32) {
        self.live -= 1;
        self.replaced(distance, dirty_from);
    }

    /// The same, if it is not known which sizes have replaced it.
    pub fn freed_anywhere(&mut self) {
        self.live -= 1;
    }

    /// A reference at a distance to a page that is dirty in sizes from `dirty_from` on.
    /// Returns the least size in which it is dirty now, except for this reference.
    #[inline]
    pub fn again(&mut self, distance: u32, dirty_from: u32) -> u32 {
        self.references += 1;
        self.hits[distance as usize] += 1;
        self.replaced(distance, dirty_from)
    }

    #[inline]
    fn replaced(&mut self, distance: u32, dirty_from: u32) -> u32 {
        if dirty_from >= distance {
            return dirty_from;
        }
        self.write_back_steps[dirty_from as usize] += 1;
        self.write_back_steps[distance as usize] -= 1;
        distance
    }

    /// The curve, if sizes up to `distance` have replaced each page at the end,
    /// which was dirty from `dirty_from` on: pairs of these.
    pub fn curve(&self, left: impl IntoIterator<Item = (u32, u32)>) -> Curve {
        let mut end = self.clone();
        let mut dirty_steps = vec![0i64; end.write_back_steps.len()];
        for (distance, dirty_from) in left {
            if dirty_from != CLEAN {
                dirty_steps[end.replaced(distance, dirty_from) as usize] += 1;
            }
        }
        let sum = |steps: &[i64]| -> Vec<u64> {
            let mut total = 0i64;
            steps[..end.most()]
                .iter()
                .map(|step| {
                    total += step;
                    total as u64
                })
                .collect()
        };
        Curve {
            references: self.references,
            cold: self.cold,
            write_backs: Some(sum(&end.write_back_steps)),
            dirty_left: sum(&dirty_steps),
            hits_from: end.hits,
        }
    }
}
