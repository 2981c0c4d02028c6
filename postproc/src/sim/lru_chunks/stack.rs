//! The LRU stack between two chunks, to which the steps of the next chunk are applied.
//!
//! As in [`super::super::LruCurve`], each page has a mark at a position of a window, and a hole is a
//! mark without a page. The window is divided into blocks of [`BLOCK`] positions. When a chunk is
//! merged, the number of marks before each block is known, and is not changed by the steps of the
//! chunk. So a step reads the numbers of one block only, and no step waits for the one before.
//! What is missing from the distance, the marks that earlier steps of the chunk have taken from
//! higher blocks, is counted later ([`super::removed`]).
//!
//! A merge has two parts: the pages of the steps are moved ([`super::pages`]), and then their marks. So
//! one thread can move the pages of a chunk while another one moves the marks of the chunk before.

use super::chunk::{self, Chunk, FREE, OVER_HOLE, Step};
use super::holes::Holes;
use super::pages::{Pages, WAS_DIRTY, place};
use crate::canon::MAX_PAGES;

const WORD: usize = 64;
/// Words of a block.
const WORDS: usize = 4;
/// Positions of a block.
pub const BLOCK: usize = WORD * WORDS;
/// Positions of the first window.
const FIRST_WINDOW: usize = 1 << 14;
/// Positions of the largest window: one more than the last one that fits beside [`WAS_DIRTY`].
const LARGEST_WINDOW: u64 = WAS_DIRTY as u64;
// With chunks, no window is larger.
const _: () = assert!(3 * (MAX_PAGES as u64 + chunk::MOST as u64) <= LARGEST_WINDOW);
const _: () = assert!(LARGEST_WINDOW.is_power_of_two() && FIRST_WINDOW.is_power_of_two());

/// Of a step: no block.
const NO_BLOCK: u32 = WAS_DIRTY - 1;

/// What the part below says of a step.
#[derive(Clone, Copy)]
pub struct Found {
    /// The distance, less one, but for the marks that earlier steps have taken from higher blocks.
    pub distance: u32,
    /// The block of the page, or [`NO_BLOCK`]; [`WAS_DIRTY`] is added.
    block: u32,
    /// The block that loses a mark, or [`NO_BLOCK`].
    removed: u32,
}

impl Found {
    /// The block of the page, if it was in the part below.
    #[inline]
    pub fn block(self) -> Option<u32> {
        let block = self.block & !WAS_DIRTY;
        (block != NO_BLOCK).then_some(block)
    }

    /// The block that loses a mark, if one does.
    #[inline]
    pub fn removed(self) -> Option<u32> {
        (self.removed != NO_BLOCK).then_some(self.removed)
    }

    /// Whether the page was dirty in some size.
    #[inline]
    pub fn was_dirty(self) -> bool {
        self.block & WAS_DIRTY != 0
    }
}

#[derive(Clone, Copy, Default)]
struct Block {
    /// Marks in this block and in those before it, when the present chunk began.
    upto: u32,
    /// Marks now.
    marks: u32,
}

/// The marks of the stack.
///
/// Takes less than 2 bytes a page.
#[derive(Clone)]
pub struct Marks {
    bits: Vec<u64>,
    blocks: Vec<Block>,
    holes: Holes,
    count: u32,
    /// The next position.
    tail: usize,
}

impl Marks {
    fn new(window: usize) -> Self {
        Marks {
            bits: vec![0; window / WORD],
            blocks: vec![Block::default(); window / BLOCK],
            holes: Holes::new(window),
            count: 0,
            tail: 0,
        }
    }

    /// How many blocks the window has.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Applies steps of an upper part, whose pages had these states. The steps before have made `above`
    /// places of it; gives their number afterwards. At most 65,536 steps are applied at a time
    /// ([`super::removed`]). For each step, `found` gets what the part below says of it.
    pub fn apply<P: Copy + Into<u32>>(
        &mut self,
        steps: &[Step<P>],
        states: &[u32],
        mut above: u32,
        found: &mut Vec<Found>,
    ) -> u32 {
        self.sum_blocks();
        found.clear();
        let start = self.count;
        let applied = steps.iter().zip(states).map(|(step, &state)| {
            let grows = !step.is(FREE | OVER_HOLE);
            let Some(place) = place(state) else {
                // Nothing, unless a page that is new fills a hole.
                let removed = if grows { self.fill_topmost() } else { NO_BLOCK };
                above += u32::from(grows);
                return Found {
                    distance: 0,
                    block: NO_BLOCK,
                    removed,
                };
            };
            let block = place / BLOCK;
            let upto = self.blocks[block].upto;
            let mut found = Found {
                distance: above + start - upto + self.behind_in_block(place),
                block: block as u32 | state & WAS_DIRTY,
                removed: NO_BLOCK,
            };
            if !grows {
                self.holes.insert(place);
                return found;
            }
            above += 1;
            found.removed = match self.holes.topmost() {
                Some(hole) if hole > place => {
                    let removed = self.fill_topmost();
                    self.holes.insert(place);
                    removed
                }
                _ => self.take(place),
            };
            found
        });
        found.extend(applied);
        above
    }

    /// How many marks of its block lie behind a position.
    #[inline]
    fn behind_in_block(&self, position: usize) -> u32 {
        let word = position / WORD;
        let behind = self.bits[word] >> (position % WORD) >> 1;
        let others = &self.bits[word + 1..(word | (WORDS - 1)) + 1];
        behind.count_ones() + others.iter().map(|bits| bits.count_ones()).sum::<u32>()
    }

    /// Fills the topmost hole; gives the block that loses a mark.
    #[inline]
    fn fill_topmost(&mut self) -> u32 {
        let Some(hole) = self.holes.topmost() else {
            return NO_BLOCK;
        };
        self.holes.remove(hole);
        self.take(hole)
    }

    /// Takes a mark away; gives its block.
    #[inline]
    fn take(&mut self, place: usize) -> u32 {
        self.bits[place / WORD] &= !(1 << (place % WORD));
        self.blocks[place / BLOCK].marks -= 1;
        self.count -= 1;
        (place / BLOCK) as u32
    }

    fn sum_blocks(&mut self) {
        let mut upto = 0;
        for block in &mut self.blocks {
            upto += block.marks;
            block.upto = upto;
        }
    }

    /// Applies the steps of the next chunk, whose pages had these states, and puts its upper part on top.
    pub fn merge(&mut self, chunk: &Chunk, states: &[u32], found: &mut Vec<Found>) {
        let above = self.apply(chunk.steps(), states, 0, found);
        debug_assert_eq!(above, chunk.places());
        self.put_on_top(chunk.places(), chunk.holes());
    }

    /// Adds the marks of an upper part, and its holes, when all of its steps were applied.
    fn put_on_top(&mut self, places: u32, holes: impl Iterator<Item = u32>) {
        let end = self.tail + places as usize;
        for hole in holes {
            self.holes.insert(self.tail + hole as usize);
        }
        mark(&mut self.bits, &mut self.blocks, self.tail, end);
        self.count += places;
        self.tail = end;
    }

    /// How many marks lie before a marked position, if the blocks are summed.
    fn before(&self, position: usize) -> u32 {
        self.blocks[position / BLOCK].upto - self.behind_in_block(position) - 1
    }
}

/// Marks the positions from `start` to `end`, which have no mark.
fn mark(bits: &mut [u64], blocks: &mut [Block], start: usize, end: usize) {
    let mut at = start;
    while at < end {
        let next = (at / WORD * WORD + WORD).min(end);
        let ones = u64::MAX >> (WORD - (next - at));
        bits[at / WORD] |= ones << (at % WORD);
        blocks[at / BLOCK].marks += (next - at) as u32;
        at = next;
    }
}

/// Moves all marks to the window's beginning, in order; makes the window larger if more than a third of it
/// would be marked with so many `more`. All chunks before were merged.
pub fn compact(pages: &mut Pages, marks: &mut Marks, more: u32) {
    marks.sum_blocks();
    let places = marks.count as usize;
    let mut window = marks.bits.len() * WORD;
    while (places + more as usize) * 3 > window && window < LARGEST_WINDOW as usize {
        window *= 2;
    }
    pages.relocate(|place| marks.before(place), places, window);
    let mut moved = Marks::new(window);
    for at in marks.holes.below(marks.tail) {
        moved.holes.insert(marks.before(at) as usize);
    }
    mark(&mut moved.bits, &mut moved.blocks, 0, places);
    (moved.count, moved.tail) = (marks.count, places);
    *marks = moved;
}

/// The stack.
///
/// Takes less than 6 bytes a page.
#[derive(Clone)]
pub struct Stack {
    pub pages: Pages,
    pub marks: Marks,
}

impl Default for Stack {
    fn default() -> Self {
        Stack {
            pages: Pages::new(FIRST_WINDOW),
            marks: Marks::new(FIRST_WINDOW),
        }
    }
}

impl Stack {
    /// How many places the stack has: the most pages that existed at one time.
    pub fn places(&self) -> u32 {
        self.marks.count
    }

    /// Makes room for an upper part of so many places. Returns false if there are too many.
    pub fn make_room(&mut self, places: u32) -> bool {
        if u64::from(self.places()) + u64::from(places) >= LARGEST_WINDOW {
            return false;
        }
        if !self.pages.have_room(places) {
            compact(&mut self.pages, &mut self.marks, places);
        }
        true
    }

    /// The same for a chunk, which is never too large: the largest window has room for as many pages as
    /// there can be, and a chunk.
    pub fn make_room_for(&mut self, chunk: &Chunk) {
        self.make_room(chunk.places());
    }

    /// Applies the steps of the next chunk, and puts its upper part on top. For each step, `found` gets
    /// what the part below says of it; `states` is memory for that.
    pub fn merge(&mut self, chunk: &Chunk, states: &mut Vec<u32>, found: &mut Vec<Found>) {
        self.make_room_for(chunk);
        self.apply(chunk.steps(), 0, states, found);
        self.put_on_top(chunk.places(), chunk.holes());
    }

    /// Applies steps of an upper part that has room, of which those before have made so many places; gives
    /// their number afterwards. For each step, `found` gets what the part below says of it, and `states`
    /// is memory for that. When all were applied, [`Stack::put_on_top`] must follow.
    pub fn apply<P: Copy + Into<u32>>(
        &mut self,
        steps: &[Step<P>],
        above: u32,
        states: &mut Vec<u32>,
        found: &mut Vec<Found>,
    ) -> u32 {
        self.pages.move_up(steps, states);
        self.marks.apply(steps, states, above, found)
    }

    /// Adds the marks of an upper part, and its holes, when all of its steps were applied.
    pub fn put_on_top(&mut self, places: u32, holes: impl Iterator<Item = u32>) {
        self.pages.pass(places);
        self.marks.put_on_top(places, holes);
    }

    /// The dirty pages and the places above each.
    pub fn dirty(&mut self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.marks.sum_blocks();
        let marks = &self.marks;
        let dirty = self.pages.marked().filter(|&(.., dirty)| dirty);
        dirty.map(|(page, place, _)| (page, marks.count - marks.before(place) - 1))
    }

    /// Where a page lies in the stack that is there, counted from the bottom. No page was moved since the
    /// blocks were summed.
    pub fn place_of(&self, page: u32) -> u32 {
        let position = self.pages.position(page);
        position.map_or(0, |position| self.marks.before(position))
    }

    /// Sums the blocks.
    pub fn sum(&mut self) {
        self.marks.sum_blocks();
    }

    /// The holes, counted from the bottom.
    pub fn holes(&mut self) -> Vec<u32> {
        self.marks.sum_blocks();
        let holes = self.marks.holes.below(self.marks.tail);
        holes.map(|at| self.marks.before(at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Access;
    use crate::units::CanonPage;

    /// No page is at the last position, whose state would say that the page is dirty.
    #[test]
    fn the_last_position_is_never_used() {
        let (mut stack, mut chunk) = (Stack::default(), Chunk::new(1));
        let (mut states, mut found) = (Vec::new(), Vec::new());
        let accesses: Vec<Access> = (1..=1 << 10)
            .map(|page| Access::reference(CanonPage(page), false))
            .collect();
        // The chunks fill the first window to its last position.
        assert_eq!(FIRST_WINDOW % accesses.len(), 0);
        for _ in 0..2 * FIRST_WINDOW / accesses.len() {
            chunk.compute(&accesses);
            stack.merge(&chunk, &mut states, &mut found);
            assert_eq!(stack.marks.bits.len() * WORD, FIRST_WINDOW);
            assert!(stack.marks.tail < FIRST_WINDOW);
        }
    }
}
