//! The holes of the LRU stack, or of the part of the stack that a chunk has made.

use crate::sim::positions::Positions;

/// Positions of holes, and their number: while there is none, as in most traces, no position is read.
#[derive(Clone)]
pub(super) struct Holes {
    positions: Positions,
    count: usize,
}

impl Holes {
    /// No hole; for positions below `window`.
    pub fn new(window: usize) -> Self {
        Holes {
            positions: Positions::new(window),
            count: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub fn topmost(&self) -> Option<usize> {
        match self.count {
            0 => None,
            _ => self.positions.last(),
        }
    }

    /// Adds a hole where there is none.
    #[inline]
    pub fn insert(&mut self, position: usize) {
        self.positions.insert(position);
        self.count += 1;
    }

    /// Removes a hole that is there.
    #[inline]
    pub fn remove(&mut self, position: usize) {
        self.positions.remove(position);
        self.count -= 1;
    }

    /// All holes below `end`, from the bottom.
    pub fn below(&self, end: usize) -> impl Iterator<Item = usize> {
        let end = if self.is_empty() { 0 } else { end };
        (0..end).filter(|&at| self.positions.contains(at))
    }
}
