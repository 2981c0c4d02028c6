//! The exact LRU curve of all sizes, from chunks of references that are computed by themselves.
//!
//! The references are cut into chunks, and each chunk goes through five stages:
//!
//! 1. *By itself* ([`chunk`]): references to pages that the chunk has referenced before are
//!    resolved. The others, and the ends of pages, are its steps.
//! 2. *In order* ([`pages`]): the pages of the steps are moved to the top of the stack.
//! 3. *In order* ([`stack`]): the steps are applied to the marks that the chunks before have
//!    left, and the chunk's marks are put on top.
//! 4. *By itself* ([`removed`]): the distances of the steps are completed.
//! 5. *In order* ([`counts`]): the counts are added up.
//!
//! Several threads work on stages of several chunks ([`threads`]). The result does not depend on how the
//! references are cut or on the number of threads: it is
//! that of [`super::LruCurve`], in each number.
//!
//! A long stretch of the references can be computed by itself in the same way, by another process or on
//! another machine: [`stretch`] says how.
//!
//! PARDA also leaves only first references unresolved (Niu, Dinan, Lu, Sadayappan, "PARDA: a fast
//! parallel reuse distance analysis algorithm", IPDPS 2012). Increment-and-Freeze showed that curves
//! are slow because their tables are read at random, and that better locality makes them faster even
//! on one core (Bender, DeLayo, Kuszmaul, Kuszmaul, West, "Increment-and-Freeze: every cache,
//! everywhere, all of the time", SPAA 2023). Here, chunks fit in a cache, and steps do not wait for
//! each other when they read the large tables.

mod bytes;
mod chunk;
mod counts;
mod holes;
mod marks;
mod pages;
mod removed;
mod stack;
mod stretch;
#[cfg(test)]
mod tests;
mod threads;

use std::cell::RefCell;

use chunk::Chunk;
use counts::Counts;
use removed::Removed;
use stack::{Found, Marks, Stack};
use threads::Threads;

use super::{Access, Curve, CurveSimulation};

pub use stretch::{LruStretch, Malformed, Stretches, TooLarge};

/// Accesses of a chunk, unless a test wants another number.
const CHUNK: usize = 1 << 15;
/// Accesses of the first chunk. Each chunk has twice as many as the one before, up to the largest,
/// so that a short simulation has small tables.
const FIRST_CHUNK: usize = 1 << 10;
/// The most threads of a curve. In a profile of one thread, 45 % of the time went to the second and the third
/// stage together, which are done in order. So a fourth thread hardly helps.
const MOST_THREADS: usize = 4;

/// A chunk and what is computed of it.
struct Work {
    /// Its number.
    turn: u64,
    chunk: Chunk,
    /// The states of the pages of its steps.
    states: Vec<u32>,
    found: Vec<Found>,
    removed: Removed,
    /// Blocks of the marks.
    blocks: usize,
}

impl Default for Work {
    fn default() -> Self {
        Work {
            turn: 0,
            chunk: Chunk::new(1),
            states: Vec::new(),
            found: Vec::new(),
            removed: Removed::default(),
            blocks: 0,
        }
    }
}

impl Work {
    /// The second and the third stage.
    fn merge(&mut self, stack: &mut Stack) {
        stack.merge(&self.chunk, &mut self.states, &mut self.found);
        self.blocks = stack.marks.blocks();
    }

    fn merge_marks(&mut self, marks: &mut Marks) {
        marks.merge(&self.chunk, &self.states, &mut self.found);
        self.blocks = marks.blocks();
    }

    fn complete(&mut self) {
        self.removed.complete(self.blocks, &mut self.found);
    }

    fn count(&self, counts: &mut Counts) {
        counts.add(&self.chunk, &self.found);
    }
}

/// Where chunks go.
enum Where {
    /// The thread that brings the references.
    Here(Box<(Stack, Counts, Work)>),
    Threads(Threads),
}

/// Cuts references into chunks.
struct Cutter {
    /// Accesses of the largest chunk.
    most: usize,
    /// Accesses of the next chunk.
    capacity: usize,
    /// Accesses that no chunk has yet.
    accesses: Vec<Access>,
}

impl Cutter {
    /// Into chunks of at most so many accesses, and of at most 65,536.
    fn of(accesses: usize) -> Self {
        let most = accesses.clamp(1, chunk::MOST);
        Cutter {
            most,
            capacity: most.min(FIRST_CHUNK),
            accesses: Vec::new(),
        }
    }

    /// Takes accesses from the front of a batch. Returns whether a chunk is complete.
    fn cut(&mut self, batch: &mut &[Access]) -> bool {
        let room = self.capacity - self.accesses.len();
        let (now, later) = batch.split_at(room.min(batch.len()));
        self.accesses.extend_from_slice(now);
        *batch = later;
        self.accesses.len() == self.capacity
    }

    /// Begins the next chunk.
    fn next(&mut self) {
        self.accesses.clear();
        self.capacity = (self.capacity * 2).min(self.most);
    }

    /// References that no chunk has yet.
    fn references(&self) -> u64 {
        let references = self.accesses.iter().filter(|access| access.is_reference());
        references.count() as u64
    }
}

/// Computes the LRU curve in chunks; see the module's description.
///
/// Takes at most 16 bytes for each page, or 20 if pages are written. A chunk takes up to 2.5 MB, and up to
/// 0.05 bytes for each page: `Removed` has 2.1 bytes for each block of the window, which has at most six
/// positions for each page. There are two chunks more than threads. [`CurveSimulation::finish`] makes a
/// curve, which has 24 bytes for each page. While it is made, it and what is left of the tables take at
/// most 28 bytes for each page.
pub struct LruChunks(RefCell<State>);

struct State {
    cutter: Cutter,
    place: Where,
    /// Threads that are started when the first chunk of the largest size is complete.
    threads: usize,
}

impl Default for LruChunks {
    fn default() -> Self {
        LruChunks::of(CHUNK)
    }
}

impl LruChunks {
    /// With chunks of at most so many accesses, and of at most 65,536. The result does not depend
    /// on it.
    pub fn of(accesses: usize) -> Self {
        LruChunks(RefCell::new(State {
            cutter: Cutter::of(accesses),
            place: Where::Here(Box::default()),
            threads: 1,
        }))
    }
}

impl State {
    fn send(&mut self) {
        // A short simulation is over before threads would help.
        if self.threads > 1 && self.cutter.accesses.len() == self.cutter.most {
            self.start_threads();
        }
        let accesses = &mut self.cutter.accesses;
        match &mut self.place {
            Where::Here(here) => {
                let (stack, counts, work) = &mut **here;
                work.chunk.compute(accesses);
                work.merge(stack);
                work.complete();
                work.count(counts);
            }
            Where::Threads(threads) => threads.send(accesses),
        }
        self.cutter.next();
    }

    /// The stack and the counts of all references: themselves, or copies of them.
    fn all(&mut self, take: bool) -> (Stack, Counts) {
        // What has come so far becomes a chunk, which no result depends on.
        if !self.cutter.accesses.is_empty() {
            self.send();
        }
        match &mut self.place {
            Where::Here(here) => all(&mut here.0, &mut here.1, take),
            Where::Threads(threads) => threads.all(take),
        }
    }

    /// Starts the threads, if they have not been started.
    fn start_threads(&mut self) {
        if let Where::Here(here) = &mut self.place {
            let stack = std::mem::take(&mut here.0);
            let counts = std::mem::take(&mut here.1);
            self.place = Where::Threads(Threads::start(self.threads, stack, counts));
        }
    }
}

fn all(stack: &mut Stack, counts: &mut Counts, take: bool) -> (Stack, Counts) {
    match take {
        true => (std::mem::take(stack), std::mem::take(counts)),
        false => (stack.clone(), counts.clone()),
    }
}

impl CurveSimulation for LruChunks {
    fn references(&mut self, batch: &[Access]) {
        let state = self.0.get_mut();
        let mut batch = batch;
        while state.cutter.cut(&mut batch) {
            state.send();
        }
    }

    fn use_threads(&mut self, threads: usize) {
        self.0.get_mut().threads = threads.min(MOST_THREADS);
    }

    fn curve(&self) -> Curve {
        let (stack, counts) = self.0.borrow_mut().all(false);
        counts.into_curve(stack)
    }

    fn finish(self: Box<Self>) -> Curve {
        let mut state = self.0.into_inner();
        let (stack, counts) = state.all(true);
        drop(state);
        counts.into_curve(stack)
    }
}
