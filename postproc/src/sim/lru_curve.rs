//! The exact LRU curve of all sizes in one pass.
//!
//! A reference hits in LRU memories of `d` pages and more, where `d` is its stack
//! distance: the number of distinct pages that were referenced since the page's last
//! reference, itself included. To find the distance, every page has a mark at the
//! position of its last reference; the distance is the number of marks from there on.
//!
//! Marks are bits of a window of positions, counted by a tree of fan-out 16. Each
//! node holds, for each of its children, the number of marks in the children before it,
//! as sixteen 32-bit numbers: one cache line. Counting reads one number a level. Moving
//! a mark adds to the tail of one node a level; this is a masked addition of fixed size,
//! which compilers turn into vector code. At the end of the window, the marks are moved
//! together at its beginning.
//!
//! # Pages that are freed
//!
//! A page that is freed leaves a *hole* at its place in the stack: its mark stays and has
//! no page. A memory of `m` pages has as many free frames as there are holes in the
//! first `m` places. When a page below the topmost hole is referenced, memories that
//! reach the hole and not the page load it into the free frame and replace nothing, and
//! in memories that reach the page its old place becomes free: so the hole moves down
//! to the page's old place. A page's first reference fills the topmost hole. If the
//! page lies above all holes, they stay where they are. All sizes are exact.

use super::curve::Curve;
use super::positions::{Positions, levels};
use super::tally::{CLEAN, Tally};
use super::{Access, CurveSimulation, Kind};
use crate::units::CanonPage;

const FANOUT: usize = 16;
const WORD: usize = 64;
/// Positions of the first window.
const FIRST_WINDOW: usize = 1 << 14;

/// Lanes behind the `i`th: `MASK[i][j]` is all ones if `j > i`.
const MASK: [[u32; FANOUT]; FANOUT] = {
    let mut mask = [[0; FANOUT]; FANOUT];
    let mut i = 0;
    while i < FANOUT {
        let mut j = i + 1;
        while j < FANOUT {
            mask[i][j] = u32::MAX;
            j += 1;
        }
        i += 1;
    }
    mask
};

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Node([u32; FANOUT]);

/// Marks over a window of positions.
struct Marks {
    bits: Vec<u64>,
    /// From the words' parents up to the root.
    levels: Vec<Vec<Node>>,
}

impl Marks {
    /// Nothing marked; a window of at least so many positions.
    fn new(positions: usize) -> Self {
        let words = positions.div_ceil(WORD);
        Marks {
            bits: vec![0; words],
            levels: levels(words, FANOUT),
        }
    }

    /// Adds `delta`, modulo 2^32, to all counts behind a word.
    #[inline]
    fn add(&mut self, word: usize, delta: u32) {
        let mut at = word;
        for level in &mut self.levels {
            let mask = &MASK[at % FANOUT];
            at /= FANOUT;
            let node = &mut level[at].0;
            for lane in 0..FANOUT {
                node[lane] = node[lane].wrapping_add(mask[lane] & delta);
            }
        }
    }

    #[inline]
    fn set(&mut self, position: usize) {
        self.bits[position / WORD] |= 1 << (position % WORD);
        self.add(position / WORD, 1);
    }

    /// How many marks lie before a position.
    fn before(&self, position: usize) -> u32 {
        let (word, bit) = (position / WORD, 1u64 << (position % WORD));
        let mut rank = (self.bits[word] & (bit - 1)).count_ones();
        let mut at = word;
        for level in &self.levels {
            let lane = at % FANOUT;
            at /= FANOUT;
            rank = rank.wrapping_add(level[at].0[lane]);
        }
        rank
    }

    /// Takes a mark away; gives how many marks lie before it.
    #[inline]
    fn clear(&mut self, position: usize) -> u32 {
        let (word, bit) = (position / WORD, 1u64 << (position % WORD));
        let mut rank = (self.bits[word] & (bit - 1)).count_ones();
        self.bits[word] &= !bit;
        let mut at = word;
        for level in &mut self.levels {
            let lane = at % FANOUT;
            at /= FANOUT;
            let node = &mut level[at].0;
            rank = rank.wrapping_add(node[lane]);
            for (count, mask) in node.iter_mut().zip(&MASK[lane]) {
                *count = count.wrapping_sub(mask & 1);
            }
        }
        rank
    }

    /// Marks the first `count` positions and no others.
    fn fill(&mut self, count: usize) {
        let ones = |start: usize, len: usize| count.saturating_sub(start).min(len);
        for (i, word) in self.bits.iter_mut().enumerate() {
            *word = match ones(i * WORD, WORD) {
                WORD => u64::MAX,
                n => (1 << n) - 1,
            };
        }
        let mut span = WORD;
        for level in &mut self.levels {
            for (i, node) in level.iter_mut().enumerate() {
                let start = i * span * FANOUT;
                for (lane, before) in node.0.iter_mut().enumerate() {
                    *before = ones(start, lane * span) as u32;
                }
            }
            span *= FANOUT;
        }
    }
}

#[derive(Clone, Copy)]
struct PageState {
    /// Position of the last reference, plus one; 0 if there was none.
    last: u32,
    /// The smallest size, less one, in which the page is dirty, or [`CLEAN`].
    dirty_from: u32,
}

const NEVER: PageState = PageState {
    last: 0,
    dirty_from: CLEAN,
};

/// Computes the curve; see the module's description. [`super::LruChunks`] is faster where the
/// distance of each reference need not be known at once.
///
/// Takes 8 bytes a page, and about 20 a page for the window and the counts.
pub struct LruCurve {
    marks: Marks,
    /// The page whose mark is, or was, at a position; [`HOLE`] if it was freed.
    owner: Vec<u32>,
    pages: Vec<PageState>,
    /// The positions of holes.
    holes: Positions,
    /// How many marks there are: of pages and of holes.
    marked: u32,
    /// The next position.
    tail: usize,
    tally: Tally,
}

/// No page has this number.
const HOLE: u32 = 0;

impl Default for LruCurve {
    fn default() -> Self {
        LruCurve {
            marks: Marks::new(FIRST_WINDOW),
            owner: vec![0; FIRST_WINDOW],
            pages: Vec::new(),
            holes: Positions::new(FIRST_WINDOW),
            marked: 0,
            tail: 0,
            tally: Tally::default(),
        }
    }
}

/// The effect of a reference on each size, for a page that was referenced before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Again {
    /// The reference misses in memories of this many pages and fewer.
    pub distance: u32,
    /// Memories of more pages than this had the page dirty, if they had it. Those of them
    /// in which the reference misses have written the page back.
    pub dirty_from: Option<u32>,
}

impl LruCurve {
    /// One reference; returns `None` for a page's first.
    #[inline]
    pub fn reference(&mut self, page: CanonPage, write: bool) -> Option<Again> {
        let at = page.index();
        if at >= self.pages.len() {
            self.pages.resize((at + 1).next_power_of_two(), NEVER);
        }
        if self.tail == self.owner.len() {
            self.compact();
        }
        let state = self.pages[at];
        let mut dirty_from = state.dirty_from;
        let mut again = None;
        let hole = self.holes.last();
        if state.last == 0 {
            self.tally.first();
            match hole {
                Some(hole) => self.fill(hole),
                None => self.marked += 1,
            }
        } else {
            let place = state.last as usize - 1;
            let marked = self.marked;
            let before = match hole {
                Some(hole) if hole > place => {
                    let before = self.marks.before(place);
                    self.fill(hole);
                    self.owner[place] = HOLE;
                    self.holes.insert(place);
                    before
                }
                _ => self.marks.clear(place),
            };
            let distance = marked - 1 - before;
            again = Some(Again {
                distance,
                dirty_from: (dirty_from != CLEAN).then_some(dirty_from),
            });
            dirty_from = self.tally.again(distance, dirty_from);
        }
        self.marks.set(self.tail);
        self.owner[self.tail] = page.0;
        self.tail += 1;
        self.pages[at] = PageState {
            last: self.tail as u32,
            dirty_from: if write { 0 } else { dirty_from },
        };
        again
    }

    /// A hole is filled.
    fn fill(&mut self, hole: usize) {
        self.marks.clear(hole);
        self.holes.remove(hole);
    }

    /// A page was freed; nothing happens if it was never referenced.
    pub fn free(&mut self, page: CanonPage) {
        let Some(state) = self.pages.get_mut(page.index()) else {
            return;
        };
        let before = std::mem::replace(state, NEVER);
        let Some(place) = (before.last as usize).checked_sub(1) else {
            return;
        };
        let distance = self.marked - 1 - self.marks.before(place);
        self.tally.freed(distance, before.dirty_from);
        self.owner[place] = HOLE;
        self.holes.insert(place);
    }

    /// Moves all marks to the window's beginning, in order; makes the window
    /// larger if more than a third of it is marked.
    fn compact(&mut self) {
        let mut to = 0;
        for word in 0..self.marks.bits.len() {
            let mut bits = self.marks.bits[word];
            while bits != 0 {
                let position = word * WORD + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let page = self.owner[position];
                self.owner[to] = page;
                if page == HOLE {
                    self.holes.remove(position);
                    self.holes.insert(to);
                } else {
                    self.pages[page as usize].last = to as u32 + 1;
                }
                to += 1;
            }
        }
        let mut window = self.owner.len();
        while self.marked as usize * 3 > window {
            window *= 2;
        }
        if window > self.owner.len() {
            self.owner.resize(window, 0);
            self.marks = Marks::new(window);
            self.holes = self.holes.widened(window);
        }
        self.marks.fill(to);
        self.tail = to;
    }

    /// The stack from its top: pages, or `None` for a hole.
    fn stack(&self) -> impl Iterator<Item = Option<&PageState>> {
        let is_marked = |&at: &usize| self.marks.bits[at / WORD] >> (at % WORD) & 1 != 0;
        let marked = (0..self.tail).rev().filter(is_marked);
        marked.map(|at| match self.owner[at] {
            HOLE => None,
            page => Some(&self.pages[page as usize]),
        })
    }
}

impl CurveSimulation for LruCurve {
    fn references(&mut self, batch: &[Access]) {
        for access in batch {
            match access.kind {
                Kind::Free => self.free(access.page),
                kind => {
                    self.reference(access.page, kind == Kind::Write);
                }
            }
        }
    }

    fn curve(&self) -> Curve {
        // From one to the next older one, the distance grows by one.
        let left = self.stack().zip(0..);
        let pages = left.filter_map(|(page, distance)| Some((distance, page?.dirty_from)));
        self.tally.curve(pages)
    }
}
