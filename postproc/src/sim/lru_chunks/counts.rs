//! The counts of all sizes, to which chunks add in order.
//!
//! As [`crate::sim::tally`], in half the memory: a count has 32 bits, and the rare one that
//! overflows is kept apart.

use rustc_hash::FxHashMap;

use super::chunk::{Chunk, DIRTY, FILL, FREE, GONE, SETTLED};
use super::stack::{Found, Stack, grow};
use crate::sim::Curve;

/// Numbers of 64 bits, of which few need more than 32.
#[derive(Default)]
struct Small {
    low: Vec<i32>,
    /// What does not fit, by place.
    rest: FxHashMap<usize, i64>,
}

impl Small {
    fn grow(&mut self, len: usize) {
        if len > self.low.len() {
            grow(&mut self.low, len, 0);
        }
    }

    #[inline]
    fn add(&mut self, at: usize, more: i32) {
        match self.low[at].checked_add(more) {
            Some(sum) => self.low[at] = sum,
            None => self.spill(at, more),
        }
    }

    #[cold]
    fn spill(&mut self, at: usize, more: i32) {
        *self.rest.entry(at).or_default() += i64::from(self.low[at]);
        self.low[at] = more;
    }

    fn values(&self, len: usize) -> Vec<i64> {
        let mut values: Vec<i64> = self.low[..len].iter().map(|&low| low.into()).collect();
        for (&at, rest) in &self.rest {
            values[at] += rest;
        }
        values
    }
}

/// Counts by size. All sizes and distances are less one here.
///
/// Takes 8 bytes for each page that exists at one time, and 4 for each page if pages are
/// written.
#[derive(Default)]
pub struct Counts {
    references: u64,
    cold: u64,
    hits: Small,
    write_back_steps: Small,
    /// By page: the smallest size in which the page is dirty, if it is dirty in any.
    dirty_from: Vec<u32>,
}

impl Counts {
    /// Adds the next chunk. `found` has the distances of its steps, and the stack has so many
    /// places with the chunk.
    pub fn add(&mut self, chunk: &Chunk, found: &[Found], places: u32) {
        self.hits.grow(places as usize);
        self.write_back_steps.grow(places as usize);
        self.references += chunk.references();
        self.cold += chunk.cold();
        for (distance, &hits) in chunk.hits().iter().enumerate() {
            // A chunk has too few references for more than 17 bits.
            self.hits.add(distance, hits as i32);
        }
        for (size, &step) in chunk.write_back_steps().iter().enumerate() {
            self.write_back_steps.add(size, step);
        }
        for (step, found) in chunk.steps().iter().zip(found) {
            if step.is(FILL) {
                continue;
            }
            let is_reference = !step.is(FREE);
            let is_below = found.block().is_some();
            if is_reference && is_below {
                self.hits.add(found.distance as usize, 1);
            }
            self.cold += u64::from(is_reference && !is_below);
            let page = step.page as usize;
            let mut dirty_from = 0;
            if found.was_dirty() {
                dirty_from = self.dirty_from[page];
                let reach = found.distance.max(step.reach.into());
                if dirty_from < reach {
                    self.write_back_steps.add(dirty_from as usize, 1);
                    self.write_back_steps.add(reach as usize, -1);
                    dirty_from = reach;
                }
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

    /// The curve, with what is left in the stack.
    pub fn curve(&self, stack: &mut Stack) -> Curve {
        let places = stack.places() as usize;
        let mut write_backs = self.write_back_steps.values(places);
        let mut dirty_left = vec![0i64; places];
        for (page, distance) in stack.dirty() {
            let from = self.dirty_from[page];
            if from < distance {
                write_backs[from as usize] += 1;
                write_backs[distance as usize] -= 1;
            }
            dirty_left[from.max(distance) as usize] += 1;
        }
        let sum = |steps: Vec<i64>| -> Vec<u64> {
            let mut total = 0;
            let steps = steps.into_iter();
            let sums = steps.map(|step| {
                total += step;
                total as u64
            });
            sums.collect()
        };
        let hits = self.hits.values(places);
        Curve {
            references: self.references,
            cold: self.cold,
            hits_from: hits.into_iter().map(|hits| hits as u64).collect(),
            write_backs: Some(sum(write_backs)),
            dirty_left: sum(dirty_left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts at the ends of 32 bits, which no trace of a test reaches.
    #[test]
    fn what_does_not_fit_is_kept_apart() {
        let mut counts = Small::default();
        counts.grow(4);
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
            assert_eq!(counts.values(4), expected);
        }
        assert!(expected[0] > i64::from(u32::MAX), "{expected:?}");
        assert_eq!(counts.rest.len(), 3);
        // They stay when the table grows.
        counts.grow(100);
        assert_eq!(counts.values(4), expected);
    }
}
