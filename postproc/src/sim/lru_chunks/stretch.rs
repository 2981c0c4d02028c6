//! A long stretch of the references, computed by itself: what several machines compute of one trace.
//!
//! A stretch is like a large chunk ([`super::chunk`]): the pages that it references lie
//! above all others in the LRU stack. References to them are resolved, and its steps are left, at most
//! two for each page: the first access to the page, and a new page that may fill a hole below. So a
//! stretch becomes small if it references its pages often, whatever its length.
//!
//! [`Stretches`] puts stretches together, in their order: the steps of each are applied to the stack that
//! those before it have left. The result is the curve of all references, or a stretch that has all of
//! them and can itself be put together with others.
//!
//! A stretch is computed from chunks: each is merged into a stack that begins empty with the stretch.
//! What that stack cannot resolve becomes a step of the stretch.

use super::chunk::{Chunk, DIRTY, FILL, FREE, GONE, OVER_HOLE, SETTLED, Step};
use super::counts::{Totals, curve};
use super::pages::grow;
use super::removed::Removed;
use super::stack::{Found, Stack};
use super::{CHUNK, Curve, Cutter};
use crate::sim::Access;

/// Steps that are applied at a time: [`Removed`] counts less than 65,536.
const STEPS: usize = 1 << 15;

/// A stretch of the references, in so far as the LRU curve needs it.
///
/// Takes 20 bytes for each page that the stretch references, 20 more for each that is new and may fill a
/// hole, 4 for each hole, and 16 for each size of memory up to the largest number of pages that it had at
/// one time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LruStretch {
    pub(super) steps: Vec<Step<u32>>,
    /// How many places its part of the stack has.
    pub(super) places: u32,
    /// From the bottom.
    pub(super) holes: Vec<u32>,
    pub(super) references: u64,
    /// References to pages that are known to be new.
    pub(super) cold: u64,
    /// References that were resolved, by their distance less one.
    pub(super) hits: Vec<i64>,
    /// Differences of the write-backs that are known, by size less one.
    pub(super) write_back_steps: Vec<i64>,
}

/// Bytes are no stretch, or one of another version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// All stretches together have more places than a window, or more references than are believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLarge;

/// More references than this are not believed, so that sums of differences fit into 64 bits.
pub(super) const MOST: u64 = 1 << 48;

impl LruStretch {
    /// The curve of these references, if none precede them.
    pub fn into_curve(self) -> Curve {
        let mut totals = Totals::default();
        totals.add_stretch(&self);
        let first = self.steps.iter().filter(|step| !step.is(FREE | FILL));
        totals.cold += first.count() as u64;
        let mut dirty_left = vec![0; self.places as usize];
        for step in self.steps.iter().filter(|step| step.is(DIRTY)) {
            let distance = self.places - 1 - step.place;
            let from = totals.replaced(step.dirty_from, distance);
            dirty_left[from as usize] += 1;
        }
        let places = self.places;
        drop(self);
        curve(totals, places, dirty_left)
    }
}

/// Computes a stretch, or puts stretches together.
///
/// Takes 8 bytes for each page of the trace; 31 for each page that is referenced, or up to twice as many if
/// each of them fills a hole; and 3 MB. The next stretch takes what its pages would take here, while it is
/// added.
pub struct Stretches {
    cutter: Cutter,
    chunk: Chunk,
    states: Vec<u32>,
    found: Vec<Found>,
    removed: Removed,
    stack: Stack,
    /// By page: the number of its step, plus one; 0 if it has none.
    step_of: Vec<u32>,
    steps: Vec<Step<u32>>,
    totals: Totals,
}

impl Default for Stretches {
    fn default() -> Self {
        Stretches::of(CHUNK)
    }
}

impl Stretches {
    /// With chunks of at most so many accesses, and of at most 65,536. The result does not depend
    /// on it.
    pub fn of(accesses: usize) -> Self {
        Stretches {
            cutter: Cutter::of(accesses),
            chunk: Chunk::new(1),
            states: Vec::new(),
            found: Vec::new(),
            removed: Removed::default(),
            stack: Stack::default(),
            step_of: Vec::new(),
            steps: Vec::new(),
            totals: Totals::default(),
        }
    }

    /// References so far.
    pub fn references_so_far(&self) -> u64 {
        self.totals.references + self.cutter.references()
    }

    /// Takes the next references.
    pub fn references(&mut self, accesses: &[Access]) {
        let mut batch = accesses;
        while self.cutter.cut(&mut batch) {
            self.send();
        }
    }

    /// What has come so far becomes a chunk, which no result depends on.
    fn send(&mut self) {
        let mut chunk = std::mem::replace(&mut self.chunk, Chunk::new(1));
        chunk.compute(&self.cutter.accesses);
        self.cutter.next();
        self.stack.make_room_for(&chunk);
        self.totals.add_chunk(&chunk);
        self.apply(chunk.steps());
        self.stack.put_on_top(chunk.places(), chunk.holes());
        self.chunk = chunk;
    }

    /// Takes a stretch, whose references follow those before.
    ///
    /// # Errors
    ///
    /// The stretch is too large together with those before. It was not taken then.
    pub fn stretch(&mut self, stretch: &LruStretch) -> Result<(), TooLarge> {
        if !self.cutter.accesses.is_empty() {
            self.send();
        }
        let references = self.totals.references.checked_add(stretch.references);
        if references.is_none_or(|all| all >= MOST) || !self.stack.make_room(stretch.places) {
            return Err(TooLarge);
        }
        self.totals.add_stretch(stretch);
        self.apply(&stretch.steps);
        let holes = stretch.holes.iter().copied();
        self.stack.put_on_top(stretch.places, holes);
        Ok(())
    }

    /// Applies the steps of an upper part. What the stack resolves is counted, and the rest becomes steps
    /// of the stretch.
    fn apply<P: Copy + Into<u32>>(&mut self, steps: &[Step<P>]) {
        let mut above = 0;
        for steps in steps.chunks(STEPS) {
            let (states, found) = (&mut self.states, &mut self.found);
            above = self.stack.apply(steps, above, states, found);
            self.removed.complete(self.stack.marks.blocks(), found);
            for (step, at) in steps.iter().zip(0..) {
                self.step(step, self.found[at]);
            }
        }
    }

    /// A step of an upper part, and what the stack says of it.
    fn step<P: Copy + Into<u32>>(&mut self, step: &Step<P>, found: Found) {
        // It takes a place that no page of the stretch has had.
        let grows = !step.is(FREE | OVER_HOLE) && found.removed().is_none();
        if step.is(FILL) {
            return self.fill(grows);
        }
        let page = step.page as usize;
        if page >= self.step_of.len() {
            grow(&mut self.step_of, page + 1, 0);
        }
        let known = self.step_of[page].checked_sub(1);
        match (known, found.block()) {
            (None, _) => {
                let over_hole = u8::from(!grows && !step.is(FREE)) * OVER_HOLE;
                self.push(Step {
                    page: step.page,
                    place: 0,
                    reach: step.reach.into(),
                    dirty_from: step.dirty_from.into(),
                    flags: step.flags & !OVER_HOLE | over_hole,
                });
                self.step_of[page] = self.steps.len() as u32;
            }
            (Some(at), Some(_)) => self.again(at as usize, step, found.distance),
            (Some(at), None) => self.anew(at as usize, step, grows),
        }
    }

    fn push(&mut self, step: Step<u32>) {
        if self.steps.len() == self.steps.capacity() {
            self.steps.reserve_exact(self.steps.len() / 8 + 64);
        }
        self.steps.push(step);
    }

    /// A new page takes a place. If no hole of the stretch was filled, one below may be.
    fn fill(&mut self, grows: bool) {
        if grows {
            self.push(Step {
                page: 0,
                place: 0,
                reach: 0,
                dirty_from: 0,
                flags: FILL | GONE | SETTLED,
            });
        }
    }

    /// The stretch has the page at a distance, and it is referenced again or freed.
    fn again<P: Copy + Into<u32>>(&mut self, at: usize, step: &Step<P>, distance: u32) {
        if !step.is(FREE) {
            self.totals.hit(distance);
        }
        let reach = distance.max(step.reach.into());
        let of = &mut self.steps[at];
        if !of.is(SETTLED) {
            of.reach = of.reach.max(reach);
        } else if of.is(DIRTY) {
            of.dirty_from = self.totals.replaced(of.dirty_from, reach);
        }
        if step.is(SETTLED) {
            settle(of, step);
        }
    }

    /// The stretch has freed the page, and its number is referenced or freed again.
    fn anew<P: Copy + Into<u32>>(&mut self, at: usize, step: &Step<P>, grows: bool) {
        if !step.is(FREE) {
            self.totals.cold += 1;
            self.fill(grows);
        }
        // Its state is known, for a page that is new is clean.
        settle(&mut self.steps[at], step);
    }

    /// The stretch of all references.
    pub fn finish(mut self) -> LruStretch {
        if !self.cutter.accesses.is_empty() {
            self.send();
        }
        let Stretches {
            mut stack,
            mut steps,
            totals,
            ..
        } = self;
        stack.sum();
        for step in &mut steps {
            if !step.is(GONE) {
                step.place = stack.place_of(step.page);
            }
            // A page that is clean is dirty in no size.
            if !step.is(DIRTY) {
                step.dirty_from = 0;
            }
        }
        let (places, holes) = (stack.places(), stack.holes());
        drop(stack);
        let (references, cold) = (totals.references, totals.cold);
        let (hits, write_back_steps) = totals.into_values(places);
        LruStretch {
            steps,
            places,
            holes,
            references,
            cold,
            hits,
            write_back_steps,
        }
    }
}

/// From this step of its upper part on, it is known whether the page is dirty.
fn settle<P: Copy + Into<u32>>(of: &mut Step<u32>, step: &Step<P>) {
    of.dirty_from = step.dirty_from.into();
    of.flags &= !(DIRTY | GONE);
    of.flags |= SETTLED | step.flags & (DIRTY | GONE);
}
