//! The exact LRU curve of all sizes, from chunks of references that are computed by themselves.
//!
//! The references are cut into chunks, and each chunk goes through four stages:
//!
//! 1. *By itself* ([`chunk`]): references to pages that the chunk has referenced before are
//!    resolved. The others, and the ends of pages, are its steps.
//! 2. *In order* ([`stack`]): the steps are applied to the stack that the chunks before have
//!    left, and the chunk's pages are put on top.
//! 3. *By itself* ([`removed`]): the distances of the steps are completed.
//! 4. *In order* ([`counts`]): the counts are added up.
//!
//! A thread takes one chunk through all stages, so that several threads work on several chunks.
//! The result does not depend on how the references are cut or on the number of threads: it is
//! that of [`super::LruCurve`], in each number.
//!
//! PARDA also leaves only first references unresolved (Niu, Dinan, Lu, Sadayappan, "PARDA: a fast
//! parallel reuse distance analysis algorithm", IPDPS 2012). Increment-and-Freeze showed that curves
//! are slow because their tables are read at random, and that better locality makes them faster even
//! on one core (Bender, DeLayo, Kuszmaul, Kuszmaul, West, "Increment-and-Freeze: every cache,
//! everywhere, all of the time", SPAA 2023). Here, chunks fit in a cache, and steps do not wait for
//! each other when they read the large tables.

mod chunk;
mod counts;
mod holes;
mod in_order;
mod marks;
mod removed;
mod stack;
#[cfg(test)]
mod tests;
mod threads;

use std::cell::RefCell;

use chunk::Chunk;
use counts::Counts;
use removed::Removed;
use stack::{Found, Stack};
use threads::Threads;

use super::{Access, Curve, CurveSimulation};

/// Accesses of a chunk, unless a test wants another number.
const CHUNK: usize = 1 << 15;
/// Accesses of the first chunk. Each chunk has twice as many as the one before, up to the largest,
/// so that a short simulation has small tables.
const FIRST_CHUNK: usize = 1 << 10;
/// The most threads of a curve. Of the time of one thread, 45 % went to the merges in a profile, and
/// merges wait for each other. So more than about three threads would wait most of the time.
const MOST_THREADS: usize = 4;

/// A chunk and what is computed of it.
struct Work {
    chunk: Chunk,
    found: Vec<Found>,
    removed: Removed,
}

impl Default for Work {
    fn default() -> Self {
        Work {
            chunk: Chunk::new(1),
            found: Vec::new(),
            removed: Removed::default(),
        }
    }
}

impl Work {
    /// The second stage; gives the numbers of blocks and of places.
    fn merge(&mut self, stack: &mut Stack) -> (usize, u32) {
        stack.merge(&self.chunk, &mut self.found);
        (stack.blocks(), stack.places())
    }
}

/// Where chunks go.
enum Where {
    /// The thread that brings the references.
    Here(Box<(Stack, Counts, Work)>),
    Threads(Threads),
}

/// Computes the LRU curve in chunks; see the module's description.
///
/// Takes at most 16 bytes for each page, or 20 if pages are written. Each thread takes up to 2.5 MB
/// for its chunks, and up to 0.05 bytes for each page: `Removed` has 2.1 bytes for each block of
/// the window, which has at most six positions for each page. The curve itself takes 24 bytes for
/// each page.
pub struct LruChunks(RefCell<State>);

struct State {
    /// Accesses of the largest chunk.
    most: usize,
    /// Accesses of the next chunk.
    capacity: usize,
    /// Accesses that no chunk has yet.
    accesses: Vec<Access>,
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
        let most = accesses.clamp(1, chunk::MOST);
        LruChunks(RefCell::new(State {
            most,
            capacity: most.min(FIRST_CHUNK),
            accesses: Vec::new(),
            place: Where::Here(Box::default()),
            threads: 1,
        }))
    }
}

impl State {
    fn send(&mut self) {
        // A short simulation is over before threads would help.
        if self.threads > 1 && self.accesses.len() == self.most {
            self.start_threads();
        }
        match &mut self.place {
            Where::Here(here) => {
                let (stack, counts, work) = &mut **here;
                work.chunk.compute(&self.accesses);
                let (blocks, places) = work.merge(stack);
                work.removed.complete(blocks, &mut work.found);
                counts.add(&work.chunk, &work.found, places);
            }
            Where::Threads(threads) => threads.send(&mut self.accesses),
        }
        self.accesses.clear();
        self.capacity = (self.capacity * 2).min(self.most);
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

impl CurveSimulation for LruChunks {
    fn references(&mut self, batch: &[Access]) {
        let state = self.0.get_mut();
        let mut batch = batch;
        while !batch.is_empty() {
            let room = state.capacity - state.accesses.len();
            let (now, later) = batch.split_at(room.min(batch.len()));
            state.accesses.extend_from_slice(now);
            if state.accesses.len() == state.capacity {
                state.send();
            }
            batch = later;
        }
    }

    fn use_threads(&mut self, threads: usize) {
        self.0.get_mut().threads = threads.min(MOST_THREADS);
    }

    fn curve(&self) -> Curve {
        // What has come so far becomes a chunk, which no result depends on.
        let state = &mut *self.0.borrow_mut();
        if !state.accesses.is_empty() {
            state.send();
        }
        match &mut state.place {
            Where::Here(here) => here.1.curve(&mut here.0),
            Where::Threads(threads) => threads.curve(),
        }
    }
}
