//! Counts the marks that the steps of a chunk have taken from higher blocks.
//!
//! A tree of fan-out 32. Each node has, for each of its children, the number of marks that were
//! taken from the children behind it. Counting reads one number a level. A removal adds to the
//! head of one node a level, which compilers turn into vector code.

use super::marks::ROW;
use super::stack::Found;
use crate::sim::positions::levels;

/// Numbers before the `i`th: `AHEAD[i][j]` is 1 if `j < i`.
const AHEAD: [[u16; ROW]; ROW] = {
    let mut ahead = [[0; ROW]; ROW];
    let mut i = 0;
    while i < ROW {
        let mut j = 0;
        while j < i {
            ahead[i][j] = 1;
            j += 1;
        }
        i += 1;
    }
    ahead
};

/// Sixteen bits suffice: a number that is read counts steps before the present one, of which a
/// chunk has less than 65,536.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Node([u16; ROW]);

/// The marks that were taken, by block.
///
/// Takes 2.1 bytes a block.
#[derive(Default)]
pub struct Removed {
    levels: Vec<Vec<Node>>,
}

impl Removed {
    /// Completes the distances of a chunk's steps, of a window of so many blocks.
    pub fn complete(&mut self, blocks: usize, found: &mut [Found]) {
        self.reset(blocks);
        for step in found {
            if let Some(block) = step.block() {
                step.distance -= self.behind(block as usize);
            }
            if let Some(block) = step.removed() {
                self.add(block as usize);
            }
        }
    }

    fn reset(&mut self, blocks: usize) {
        if self.levels.first().map(Vec::len) == Some(blocks.div_ceil(ROW)) {
            self.levels
                .iter_mut()
                .for_each(|level| level.fill(Node::default()));
        } else {
            self.levels = levels(blocks, ROW);
        }
    }

    #[inline]
    fn behind(&self, block: usize) -> u32 {
        let mut at = block;
        let mut count = 0;
        for level in &self.levels {
            count += u32::from(level[at / ROW].0[at % ROW]);
            at /= ROW;
        }
        count
    }

    #[inline]
    fn add(&mut self, block: usize) {
        let mut at = block;
        for level in &mut self.levels {
            let node = &mut level[at / ROW].0;
            for (count, one) in node.iter_mut().zip(&AHEAD[at % ROW]) {
                *count = count.wrapping_add(*one);
            }
            at /= ROW;
        }
    }
}
