//! The LRU stack between two chunks, to which the steps of the next chunk are applied.
//!
//! As in [`super::super::LruCurve`], each page has a mark at a position of a window, and a hole is a
//! mark without a page. The window is divided into blocks of [`BLOCK`] positions. When a chunk is
//! merged, the number of marks before each block is known, and is not changed by the steps of the
//! chunk. So a step reads the numbers of one block only, and no step waits for the one before.
//! What is missing from the distance, the marks that earlier steps of the chunk have taken from
//! higher blocks, is counted later ([`super::removed`]).

use super::chunk::{self, Chunk, DIRTY, FREE, GONE, OVER_HOLE, SETTLED, Step};
use super::holes::Holes;
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
// [`Stack::compact`] makes no window that is larger.
const _: () = assert!(3 * (MAX_PAGES as u64 + chunk::MOST as u64) <= LARGEST_WINDOW);

/// In [`Stack::pages`]: the page is dirty in some size.
const WAS_DIRTY: u32 = 1 << 31;
/// Of a step: no block.
const NO_BLOCK: u32 = WAS_DIRTY - 1;

/// What the part below says of a step.
#[derive(Clone, Copy)]
pub struct Found {
    /// The distance, less one, but for the marks that earlier steps have taken from higher blocks.
    pub distance: u32,
    /// The block of the page, or [`NO_BLOCK`]; [`WAS_DIRTY`] is added. Before the step is applied,
    /// the state of the page.
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

    /// The place of the page, before the step is applied.
    #[inline]
    fn place(self) -> Option<usize> {
        ((self.block & !WAS_DIRTY) as usize).checked_sub(1)
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

/// The stack.
///
/// Takes 4 bytes a page, and less than 2 a page for the window.
pub struct Stack {
    /// Position of the page's mark, plus one; 0 if it has none. With [`WAS_DIRTY`].
    pages: Vec<u32>,
    bits: Vec<u64>,
    blocks: Vec<Block>,
    holes: Holes,
    /// Marks.
    places: u32,
    /// The next position.
    tail: usize,
}

impl Default for Stack {
    fn default() -> Self {
        Stack {
            pages: Vec::new(),
            bits: vec![0; FIRST_WINDOW / WORD],
            blocks: vec![Block::default(); FIRST_WINDOW / BLOCK],
            holes: Holes::new(FIRST_WINDOW),
            places: 0,
            tail: 0,
        }
    }
}

impl Stack {
    /// How many places the stack has: the most pages that existed at one time.
    pub fn places(&self) -> u32 {
        self.places
    }

    /// How many blocks the window has.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Applies the steps of the next chunk, and puts its upper part on top. For each step,
    /// `found` gets what the part below says of it.
    pub fn merge(&mut self, chunk: &Chunk, found: &mut Vec<Found>) {
        // The last position of the largest window, plus one, would be `WAS_DIRTY`. No window has a
        // mark there.
        if self.tail + chunk.places() as usize >= self.bits.len() * WORD {
            self.compact(chunk.places() as usize);
        }
        self.sum_blocks();
        self.move_pages(chunk, found);
        let start = self.places;
        // Places of the upper part at the step.
        let mut above = 0;
        for (step, found) in chunk.steps().iter().zip(found) {
            let grows = !step.is(FREE | OVER_HOLE);
            let Some(place) = found.place() else {
                // Nothing, unless a page that is new fills a hole.
                found.removed = if grows { self.fill_topmost() } else { NO_BLOCK };
                above += u32::from(grows);
                found.block = NO_BLOCK;
                continue;
            };
            let block = place / BLOCK;
            let upto = self.blocks[block].upto;
            found.distance = above + start - upto + self.behind_in_block(place);
            found.block = block as u32 | found.block & WAS_DIRTY;
            found.removed = NO_BLOCK;
            if !grows {
                self.holes.insert(place);
                continue;
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
        }
        debug_assert_eq!(above, chunk.places());
        self.put_on_top(chunk);
    }

    /// Moves the pages of a chunk's steps to where the chunk leaves them. `found` gets where they were.
    /// This is apart from the rest of the merge, so that the processor reads the table at many
    /// places at the same time.
    fn move_pages(&mut self, chunk: &Chunk, found: &mut Vec<Found>) {
        found.clear();
        let moved = chunk.steps().iter().map(|step| Found {
            distance: 0,
            block: self.move_page(step),
            removed: NO_BLOCK,
        });
        found.extend(moved);
    }

    /// Moves the page of a step to where the chunk leaves it; gives its state before.
    #[inline]
    fn move_page(&mut self, step: &Step) -> u32 {
        let at = step.page as usize;
        if at >= self.pages.len() {
            // Pages that were never referenced may be freed.
            if step.is(GONE) {
                return 0;
            }
            grow(&mut self.pages, at + 1, 0);
        }
        let page = &mut self.pages[at];
        let dirty = match step.is(SETTLED) {
            true => u32::from(step.is(DIRTY)) * WAS_DIRTY,
            false => *page & WAS_DIRTY,
        };
        let after = match step.is(GONE) {
            true => 0,
            false => (self.tail as u32 + u32::from(step.place) + 1) | dirty,
        };
        std::mem::replace(page, after)
    }

    /// The dirty pages and the places above each.
    pub fn dirty(&mut self) -> impl Iterator<Item = (usize, u32)> {
        self.sum_blocks();
        let pages = self.pages.iter().enumerate();
        pages.filter_map(|(page, &state)| {
            let place = (state & !WAS_DIRTY).checked_sub(1)? as usize;
            let distance =
                self.places - self.blocks[place / BLOCK].upto + self.behind_in_block(place);
            (state & WAS_DIRTY != 0).then_some((page, distance))
        })
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
        self.places -= 1;
        (place / BLOCK) as u32
    }

    fn sum_blocks(&mut self) {
        let mut upto = 0;
        for block in &mut self.blocks {
            upto += block.marks;
            block.upto = upto;
        }
    }

    /// Adds the marks of a chunk's upper part, and its holes.
    fn put_on_top(&mut self, chunk: &Chunk) {
        let end = self.tail + chunk.places() as usize;
        for hole in chunk.holes() {
            self.holes.insert(self.tail + hole as usize);
        }
        mark(&mut self.bits, &mut self.blocks, self.tail, end);
        self.places += chunk.places();
        self.tail = end;
    }

    /// Moves all marks to the window's beginning, in order; makes the window larger if more than
    /// a third of it would be marked with so many `more`.
    fn compact(&mut self, more: usize) {
        self.sum_blocks();
        for i in 0..self.pages.len() {
            let state = self.pages[i];
            if let Some(place) = (state & !WAS_DIRTY).checked_sub(1) {
                let to = self.before(place as usize);
                self.pages[i] = (to + 1) | state & WAS_DIRTY;
            }
        }
        let places = self.places as usize;
        let mut window = self.bits.len() * WORD;
        while (places + more) * 3 > window {
            window *= 2;
        }
        let mut holes = Holes::new(window);
        for at in self.holes.below(self.tail) {
            holes.insert(self.before(at) as usize);
        }
        self.holes = holes;
        self.bits.clear();
        self.bits.resize(window / WORD, 0);
        self.blocks.clear();
        self.blocks.resize(window / BLOCK, Block::default());
        mark(&mut self.bits, &mut self.blocks, 0, places);
        self.tail = places;
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

/// Makes a table longer, by an eighth or more, so that no entry is copied often.
pub fn grow<T: Clone>(table: &mut Vec<T>, len: usize, value: T) {
    let len = len.max(table.len() + table.len() / 8);
    table.reserve_exact(len - table.len());
    table.resize(len, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Access;
    use crate::units::CanonPage;

    /// No page is at the last position, whose state would say that the page is dirty.
    #[test]
    fn the_last_position_is_never_used() {
        let (mut stack, mut chunk, mut found) = (Stack::default(), Chunk::new(1), Vec::new());
        let accesses: Vec<Access> = (1..=1 << 10)
            .map(|page| Access::reference(CanonPage(page), false))
            .collect();
        // The chunks fill the first window to its last position.
        assert_eq!(FIRST_WINDOW % accesses.len(), 0);
        for _ in 0..2 * FIRST_WINDOW / accesses.len() {
            chunk.compute(&accesses);
            stack.merge(&chunk, &mut found);
            assert_eq!(stack.bits.len() * WORD, FIRST_WINDOW);
            assert!(stack.tail < FIRST_WINDOW);
        }
    }
}
