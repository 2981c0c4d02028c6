//! What follows from a chunk of references by itself.
//!
//! The pages that a chunk references lie above all others in the LRU stack: they are the *upper
//! part* of the stack. How the upper part changes does not depend on the part below it:
//!
//! - A page of the upper part is referenced again. The distance is a number of places of the
//!   upper part. The topmost hole matters only if it lies above the page, and then it is in the
//!   upper part, too.
//! - A page is referenced that is not in the upper part. If the upper part has a hole, the
//!   topmost one is filled. Otherwise the upper part becomes one place longer.
//! - A page of the upper part is freed: its place becomes a hole.
//!
//! The part below is needed for the first access to each page only, and to fill a hole
//! there. These are the chunk's [`Step`]s, in order. They are applied to the part below when
//! that is known: see [`super::stack`].
//!
//! # Pages that are dirty
//!
//! Whether a page was dirty before the chunk is not known here. Until the first write to the
//! page, only the largest of its distances matters. Each distance beyond the size from which a
//! page is dirty writes it back in the sizes between them, and these ranges follow each other
//! without a gap. So the ranges are one range, which ends at the largest distance.

use super::holes::Holes;
use super::marks::Marks;
use crate::sim::{Access, Kind};
use crate::units::CanonPage;

/// The most accesses of a chunk: places of the upper part are 16-bit numbers.
pub const MOST: usize = 1 << 16;

/// The step is about the end of a page, not a reference.
pub const FREE: u8 = 1;
/// The step is about no page: the topmost hole is filled by a page that is known to be new.
pub const FILL: u8 = 2;
/// The upper part had a hole at this step.
pub const OVER_HOLE: u8 = 4;
/// The page is not in the upper part, for it was freed.
pub const GONE: u8 = 8;
/// Whether the page is dirty does not depend on what was before the chunk.
pub const SETTLED: u8 = 16;
/// If it is settled: the page is dirty in some size.
pub const DIRTY: u8 = 32;

/// What the part below is needed for: the first access to a page, or a new page that may fill
/// a hole there. Later accesses to the page change the step.
///
/// `P` has a number for each place: 16 bits suffice for a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step<P = u16> {
    /// The page, 0 for [`FILL`].
    pub page: u32,
    /// The page's place in the upper part. Counted from the bottom, once the chunk is complete.
    pub place: P,
    /// The largest distance, less one, at which the chunk referenced the page again or freed it,
    /// before it was settled.
    pub reach: P,
    /// The smallest size, less one, in which the page is dirty, if it is settled and dirty.
    pub dirty_from: P,
    pub flags: u8,
}

impl<P> Step<P> {
    #[inline]
    pub fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A chunk of references, computed by itself.
///
/// Takes about 30 bytes for each access.
pub struct Chunk {
    steps: Vec<Step>,
    index: Index,
    marks: Marks,
    holes: Holes,
    /// Places of the upper part.
    places: u32,
    tail: usize,
    hits: Vec<u32>,
    write_back_steps: Vec<i32>,
    references: u64,
    cold: u64,
}

impl Chunk {
    /// A chunk without references, for at most so many accesses.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, MOST);
        Chunk {
            steps: Vec::with_capacity(capacity),
            index: Index::new(capacity),
            marks: Marks::new(capacity),
            holes: Holes::new(capacity),
            places: 0,
            tail: 0,
            hits: vec![0; capacity],
            write_back_steps: vec![0; capacity + 1],
            references: 0,
            cold: 0,
        }
    }

    /// Forgets what it has, and takes these accesses, which are at most [`MOST`].
    pub fn compute(&mut self, accesses: &[Access]) {
        if accesses.len() > self.hits.len() {
            *self = Chunk::new(accesses.len());
        } else {
            self.reset();
        }
        for access in accesses {
            match access.kind {
                Kind::Free => self.free(access.page),
                kind => self.reference(access.page, kind == Kind::Write),
            }
        }
        self.settle_places();
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// How many places the upper part has.
    pub fn places(&self) -> u32 {
        self.places
    }

    /// The places of the upper part that are holes, counted from the bottom.
    pub fn holes(&self) -> impl Iterator<Item = u32> {
        let holes = self.holes.below(self.tail);
        holes.map(|at| self.marks.before(at))
    }

    /// References.
    pub fn references(&self) -> u64 {
        self.references
    }

    /// First references to pages that are known to be new.
    pub fn cold(&self) -> u64 {
        self.cold
    }

    /// References that were resolved, by their distance less one.
    pub fn hits(&self) -> &[u32] {
        &self.hits[..self.places as usize]
    }

    /// Differences of the write-backs that are known, by size less one.
    pub fn write_back_steps(&self) -> &[i32] {
        &self.write_back_steps[..self.places as usize]
    }

    fn reset(&mut self) {
        let places = self.places as usize;
        self.hits[..places].fill(0);
        self.write_back_steps[..places].fill(0);
        if !self.holes.is_empty() {
            self.holes = Holes::new(self.hits.len());
        }
        self.marks.reset(self.tail);
        self.index.reset();
        self.steps.clear();
        (self.places, self.tail) = (0, 0);
        (self.references, self.cold) = (0, 0);
    }

    #[inline]
    fn reference(&mut self, page: CanonPage, write: bool) {
        self.references += 1;
        let Some(at) = self.index.find_or_insert(page.0, &self.steps) else {
            let over_hole = u8::from(self.load()) * OVER_HOLE;
            let written = if write { SETTLED | DIRTY } else { 0 };
            self.steps.push(Step {
                page: page.0,
                place: self.tail as u16,
                reach: 0,
                dirty_from: 0,
                flags: written | over_hole,
            });
            return self.push();
        };
        if self.steps[at].is(GONE) {
            self.cold += 1;
            if !self.load() {
                self.steps.push(Step {
                    page: 0,
                    place: 0,
                    reach: 0,
                    dirty_from: 0,
                    flags: FILL | GONE | SETTLED,
                });
            }
            let step = &mut self.steps[at];
            step.flags &= !(GONE | DIRTY);
            step.flags |= SETTLED | if write { DIRTY } else { 0 };
            step.dirty_from = 0;
            step.place = self.tail as u16;
        } else {
            let place = usize::from(self.steps[at].place);
            let before = match self.holes.topmost() {
                Some(hole) if hole > place => {
                    let before = self.marks.before(place);
                    self.fill(hole);
                    self.holes.insert(place);
                    before
                }
                _ => self.marks.clear(place),
            };
            let distance = self.places - 1 - before;
            self.hits[distance as usize] += 1;
            self.replaced(at, distance as u16);
            let step = &mut self.steps[at];
            step.place = self.tail as u16;
            if write {
                step.flags |= SETTLED | DIRTY;
                step.dirty_from = 0;
            }
        }
        self.push();
    }

    /// Puts a page on top.
    #[inline]
    fn push(&mut self) {
        self.marks.push(self.tail);
        self.tail += 1;
    }

    /// Makes room on top for a page that was not in the upper part. Returns whether a hole of the upper
    /// part was filled.
    #[inline]
    fn load(&mut self) -> bool {
        match self.holes.topmost() {
            Some(hole) => {
                self.fill(hole);
                true
            }
            None => {
                self.places += 1;
                false
            }
        }
    }

    fn fill(&mut self, hole: usize) {
        self.marks.clear(hole);
        self.holes.remove(hole);
    }

    /// Sizes up to a distance have replaced the page.
    #[inline]
    fn replaced(&mut self, at: usize, distance: u16) {
        let step = &mut self.steps[at];
        if !step.is(SETTLED) {
            step.reach = step.reach.max(distance);
        } else if step.is(DIRTY) && step.dirty_from < distance {
            self.write_back_steps[usize::from(step.dirty_from)] += 1;
            self.write_back_steps[usize::from(distance)] -= 1;
            step.dirty_from = distance;
        }
    }

    fn free(&mut self, page: CanonPage) {
        let Some(at) = self.index.find_or_insert(page.0, &self.steps) else {
            self.steps.push(Step {
                page: page.0,
                place: 0,
                reach: 0,
                dirty_from: 0,
                flags: FREE | GONE | SETTLED,
            });
            return;
        };
        if self.steps[at].is(GONE) {
            return;
        }
        let place = usize::from(self.steps[at].place);
        let distance = self.places - 1 - self.marks.before(place);
        self.replaced(at, distance as u16);
        let step = &mut self.steps[at];
        step.flags |= GONE | SETTLED;
        step.flags &= !DIRTY;
        self.holes.insert(place);
    }

    /// From here on, places are counted from the bottom.
    fn settle_places(&mut self) {
        for step in &mut self.steps {
            if !step.is(GONE) {
                step.place = self.marks.before(usize::from(step.place)) as u16;
            }
        }
    }
}

/// Finds the step of a page: a hash table with open addresses.
///
/// An entry is the number of a step, with some bits of its page's hash, so that nearly no other
/// page's step is looked at.
struct Index {
    entries: Vec<u32>,
    shift: u32,
}

/// The entry is used.
const USED: u32 = 1 << 31;
/// The bits of an entry that are the number of the step.
const NUMBER: u32 = MOST as u32 - 1;

impl Index {
    fn new(capacity: usize) -> Self {
        let entries = (capacity * 2).next_power_of_two();
        Index {
            entries: vec![0; entries],
            shift: 64 - entries.trailing_zeros(),
        }
    }

    fn reset(&mut self) {
        self.entries.fill(0);
    }

    /// The number of a page's step. `None` if the page is new: then its step will be the next one.
    #[inline]
    fn find_or_insert(&mut self, page: u32, steps: &[Step]) -> Option<usize> {
        // Fibonacci hashing: neighbours go to places far apart.
        let hash = u64::from(page).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let wanted = USED | hash as u32 & !NUMBER;
        let mask = self.entries.len() - 1;
        let mut at = (hash >> self.shift) as usize;
        loop {
            let entry = &mut self.entries[at & mask];
            if *entry == 0 {
                *entry = wanted | steps.len() as u32;
                return None;
            }
            let number = (*entry & NUMBER) as usize;
            if *entry & !NUMBER == wanted && steps[number].page == page {
                return Some(number);
            }
            at += 1;
        }
    }
}
