//! The counts of all sizes, to which chunks add in order.
//!
//! As [`crate::sim::tally`], in half the memory: a count has 32 bits, and the rare one that
//! overflows is kept apart.

use rustc_hash::FxHashMap;

use super::chunk::{Chunk, DIRTY, FILL, FREE, GONE, SETTLED};
use super::pages::grow;
use super::stack::{Found, Stack};
use super::stretch::LruStretch;
use crate::sim::Curve;

/// Numbers of 64 bits, of which few need more than 32. Those that nothing was added to take no memory
/// behind the last one.
#[derive(Clone, Default)]
struct Small {
    low: Vec<i32>,
    /// What does not fit, by place.
    rest: FxHashMap<usize, i64>,
}

impl Small {
    #[inline]
    fn add(&mut self, at: usize, more: i32) {
        match self.low.get(at).map(|low| low.checked_add(more)) {
            Some(Some(sum)) => self.low[at] = sum,
            Some(None) => self.spill(at, more),
            None => self.grow(at, more),
        }
    }

    #[cold]
    fn grow(&mut self, at: usize, more: i32) {
        grow(&mut self.low, at + 1, 0);
        self.low[at] = more;
    }

    #[cold]
    fn spill(&mut self, at: usize, more: i32) {
        *self.rest.entry(at).or_default() += i64::from(self.low[at]);
        self.low[at] = more;
    }

    /// The same for more than 32 bits.
    fn add_much(&mut self, at: usize, more: i64) {
        match i32::try_from(more) {
            Ok(more) => self.add(at, more),
            Err(_) => *self.rest.entry(at).or_default() += more,
        }
    }

    /// The first numbers.
    fn into_values(self, len: usize) -> Vec<i64> {
        let mut values: Vec<i64> = self.low.iter().map(|&low| low.into()).collect();
        drop(self.low);
        values.resize(len, 0);
        for (at, rest) in self.rest {
            values[at] += rest;
        }
        values
    }
}

/// Counts that do not depend on the state of pages. All sizes and distances are less one here.
///
/// Takes 8 bytes for each page that exists at one time.
#[derive(Clone, Default)]
pub struct Totals {
    /// References.
    pub references: u64,
    /// First references to pages that are known to be new.
    pub cold: u64,
    hits: Small,
    write_back_steps: Small,
}

impl Totals {
    /// Adds what a chunk has counted by itself.
    pub fn add_chunk(&mut self, chunk: &Chunk) {
        self.references += chunk.references();
        self.cold += chunk.cold();
        for (distance, &hits) in chunk.hits().iter().enumerate() {
            // A chunk has too few references for more than 17 bits.
            self.hits.add(distance, hits as i32);
        }
        for (size, &step) in chunk.write_back_steps().iter().enumerate() {
            self.write_back_steps.add(size, step);
        }
    }

    /// Adds what a stretch has counted by itself.
    pub fn add_stretch(&mut self, stretch: &LruStretch) {
        self.references += stretch.references;
        self.cold += stretch.cold;
        for (distance, &hits) in stretch.hits.iter().enumerate().filter(|&(_, &n)| n != 0) {
            self.hits.add_much(distance, hits);
        }
        let steps = stretch.write_back_steps.iter().enumerate();
        for (size, &step) in steps.filter(|&(_, &step)| step != 0) {
            self.write_back_steps.add_much(size, step);
        }
    }

    /// A reference at a distance.
    #[inline]
    pub fn hit(&mut self, distance: u32) {
        self.hits.add(distance as usize, 1);
    }

    /// A page that is dirty in sizes from `dirty_from` on was replaced by sizes up to `reach`. Returns
    /// the least size in which it is dirty now.
    #[inline]
    pub fn replaced(&mut self, dirty_from: u32, reach: u32) -> u32 {
        if dirty_from >= reach {
            return dirty_from;
        }
        self.write_back_steps.add(dirty_from as usize, 1);
        self.write_back_steps.add(reach as usize, -1);
        reach
    }

    /// Hits by distance, and differences of write-backs by size, of so many places.
    pub fn into_values(self, places: u32) -> (Vec<i64>, Vec<i64>) {
        let places = places as usize;
        let steps = self.write_back_steps.into_values(places);
        (self.hits.into_values(places), steps)
    }
}

/// Counts by size.
///
/// Takes 8 bytes for each page that exists at one time, and 4 for each page if pages are
/// written.
#[derive(Clone, Default)]
pub struct Counts {
    totals: Totals,
    /// By page: the smallest size in which the page is dirty, if it is dirty in any.
    dirty_from: Vec<u32>,
}

impl Counts {
    /// Adds the next chunk. `found` has the distances of its steps.
    pub fn add(&mut self, chunk: &Chunk, found: &[Found]) {
        self.totals.add_chunk(chunk);
        for (step, found) in chunk.steps().iter().zip(found) {
            if step.is(FILL) {
                continue;
            }
            if !step.is(FREE) {
                match found.block() {
                    Some(_) => self.totals.hit(found.distance),
                    None => self.totals.cold += 1,
                }
            }
            let page = step.page as usize;
            let mut dirty_from = 0;
            if found.was_dirty() {
                let reach = found.distance.max(step.reach.into());
                dirty_from = self.totals.replaced(self.dirty_from[page], reach);
            }
            let is_dirty = match step.is(SETTLED) {
                true => step.is(DIRTY),
                false => found.was_dirty(),
            };
            if is_dirty && !step.is(GONE) {
                if step.is(SETTLED) {
                    dirty_from = step.dirty_from.into();
                }
                if page >= self.dirty_from.len() {
                    grow(&mut self.dirty_from, page + 1, 0);
                }
                self.dirty_from[page] = dirty_from;
            }
        }
    }

    /// The curve, with what is left in the stack. Memory that is no longer needed is given back on the
    /// way: see [`super::LruChunks`].
    pub fn into_curve(self, mut stack: Stack) -> Curve {
        let Counts {
            mut totals,
            dirty_from,
        } = self;
        let places = stack.places();
        let mut dirty_left = vec![0i64; places as usize];
        for (page, distance) in stack.dirty() {
            let from = totals.replaced(dirty_from[page], distance);
            dirty_left[from as usize] += 1;
        }
        drop((stack, dirty_from));
        curve(totals, places, dirty_left)
    }
}

/// The curve of so many places. `dirty_left` has, by size, the pages that are dirty at the end in this
/// size and in no smaller one.
pub fn curve(totals: Totals, places: u32, dirty_left: Vec<i64>) -> Curve {
    let (references, cold) = (totals.references, totals.cold);
    let dirty_left = sums(dirty_left);
    let (hits, steps) = totals.into_values(places);
    Curve {
        references,
        cold,
        hits_from: hits.into_iter().map(|hits| hits as u64).collect(),
        write_backs: Some(sums(steps)),
        dirty_left,
    }
}

/// Each with all before it, in the same memory.
fn sums(steps: Vec<i64>) -> Vec<u64> {
    let mut total = 0;
    let steps = steps.into_iter();
    let sums = steps.map(|step| {
        total += step;
        total as u64
    });
    sums.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts at the ends of 32 bits, which no trace of a test reaches.
    #[test]
    fn what_does_not_fit_is_kept_apart() {
        let mut counts = Small::default();
        let mut expected = [0i64; 4];
        let steps = [
            (0, i32::MAX),
            (0, 1),
            (0, i32::MAX),
            (0, i32::MAX),
            (1, i32::MIN),
            (1, -1),
            (1, i32::MIN),
            (2, i32::MAX),
            (2, 1),
            (2, i32::MIN),
            (2, -5),
        ];
        for (at, more) in steps {
            counts.add(at, more);
            expected[at] += i64::from(more);
            assert_eq!(counts.clone().into_values(4), expected);
        }
        assert!(expected[0] > i64::from(u32::MAX), "{expected:?}");
        assert_eq!(counts.rest.len(), 3);
        for more in [i64::from(u32::MAX) + 1, -1 << 40, 7] {
            counts.add_much(3, more);
            expected[3] += more;
        }
        assert_eq!(counts.clone().into_values(4), expected);
        // They stay when the table grows.
        counts.add(99, 1);
        let values = counts.into_values(200);
        assert_eq!((&values[..4], values[99]), (&expected[..], 1));
        assert_eq!(values.len(), 200);
    }
}
