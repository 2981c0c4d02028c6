//! Page-replacement simulation.
//!
//! A policy decides which page to replace, and nothing else. The engine keeps
//! which pages are in memory and which are dirty, and counts. A new policy is a
//! file in `policies/`, a line of [`registry`] and a test.
//!
//! # Conventions
//!
//! - A *miss* is a reference to a page that is not in memory. A *cold* miss is a
//!   page's first reference; misses include cold ones.
//! - A page becomes dirty when a reference writes it (the access was a write, or a store
//!   to the page was made or begun in this stay). A *write-back* is a dirty page that is
//!   replaced. Pages that are dirty at the end are counted apart: `dirty_left`.
//! - All processes share memory, except those that have a memory of their own
//!   ([`Limits`]).
//! - A page that is *freed* ([`Kind::Free`]: its last mapping was unmapped, its process
//!   ended, its file was truncated) leaves memory at once, without a write-back, and the
//!   policy forgets it. The next page that is loaded takes the free frame and replaces
//!   nothing. Without [`Kind::Free`], a simulation makes the assumption of older
//!   simulators: a page keeps its place until the policy replaces it.

mod balance;
mod band;
mod banded;
mod counting;
mod curve;
mod fill;
mod footprint;
mod limits;
mod lists;
mod lru_chunks;
mod lru_curve;
pub mod measured;
mod minima;
mod need;
mod opt_curve;
pub mod policies;
mod positions;
mod sampled;
mod tally;
mod workers;

use serde::Serialize;

use crate::error::Result;
use crate::pipeline::{Batch, Consumer, World};
use crate::units::CanonPage;

pub use band::{Band, Bands, Begin, Part, Witness, opt_band};
pub use banded::{Certificate, Certifier};
pub use curve::{Curve, CurvePoint};
pub use fill::Filler;
pub use footprint::Footprint;
pub use limits::{Limit, Limits, Memory};
pub use lru_chunks::{LruChunks, LruStretch, Malformed, Stretches, TooLarge};
pub use lru_curve::{Again, LruCurve};
pub use need::{Bounds, Need};
pub use opt_curve::OptCurve;
pub use sampled::{Estimate, GROUPS, Sampler};
pub use workers::{Job, Workers};

/// A replacement policy.
///
/// The engine calls `hit` for a page in memory, `insert` for a page that was
/// loaded, and `victim` before `insert` if memory is full. Memory that was full
/// has room again after `forget`. Pages are nearly dense numbers from 1, so that
/// tables can be indexed by them.
pub trait Policy {
    /// From now on, numbers of pages are below `pages`, which never decreases.
    fn grow(&mut self, _pages: usize) {}
    /// A page in memory was referenced.
    fn hit(&mut self, page: CanonPage);
    /// Chooses the page to replace. Called only if memory has a page; `incoming` is inserted
    /// next.
    fn victim(&mut self, incoming: CanonPage) -> Option<CanonPage>;
    /// A page was loaded.
    fn insert(&mut self, page: CanonPage);
    /// A page that was inserted before, and may have been replaced since, was freed. The
    /// policy must not return it from `victim` and must not remember that it was
    /// replaced. Its number may be given to another page later.
    fn forget(&mut self, page: CanonPage);
}

/// What happens to a page in a simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The page is referenced, and not written.
    Read,
    /// The page is referenced, and written.
    Write,
    /// The page is freed: no reference to it follows. Its number may be used again for
    /// another page.
    Free,
}

/// A reference, or the end of a page, in a simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The page.
    pub page: CanonPage,
    /// What happens to the page.
    pub kind: Kind,
}

impl Access {
    /// A reference; `write` says whether it writes.
    #[inline]
    pub const fn reference(page: CanonPage, write: bool) -> Self {
        let kind = if write { Kind::Write } else { Kind::Read };
        Access { page, kind }
    }

    /// The end of a page.
    #[inline]
    pub const fn free(page: CanonPage) -> Self {
        let kind = Kind::Free;
        Access { page, kind }
    }

    /// Whether it is a reference.
    #[inline]
    pub fn is_reference(self) -> bool {
        self.kind != Kind::Free
    }

    /// Whether it is a reference that writes.
    #[inline]
    pub fn writes(self) -> bool {
        self.kind == Kind::Write
    }
}

/// The counts of a simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Size of memory in pages.
    pub size_pages: u64,
    /// References.
    pub references: u64,
    /// References to pages that were not in memory.
    pub misses: u64,
    /// Cold misses: first references to pages.
    pub cold: u64,
    /// Dirty pages that were replaced. `None` if the number cannot be known: OPT cannot know
    /// whether it replaced a dirty page before that page was freed.
    pub write_backs: Option<u64>,
    /// Dirty pages in memory at the end.
    pub dirty_left: u64,
}

impl Counts {
    /// References to pages that were in memory.
    pub fn hits(&self) -> u64 {
        self.references - self.misses
    }

    /// Capacity misses: those of pages that had been in memory. A larger memory or a better
    /// policy may avoid them.
    pub fn capacity(&self) -> u64 {
        self.misses - self.cold
    }
}

/// A simulation that runs.
pub trait Simulation: Send {
    /// Takes references.
    fn references(&mut self, batch: &[Access]);
    /// The counts so far.
    fn counts(&self) -> Counts;
}

const RESIDENT: u8 = 1;
const DIRTY: u8 = 2;
const SEEN: u8 = 4;

/// Memory of a fixed size under a policy.
///
/// Takes a byte a page, besides the policy.
pub struct Engine<P> {
    policy: P,
    size: u64,
    resident: u64,
    state: Vec<u8>,
    write_backs: u64,
    counts: Counts,
}

impl<P: Policy> Engine<P> {
    /// Empty memory of `size` pages; a size of 0 counts as 1.
    pub fn new(policy: P, size: u64) -> Self {
        let size = size.max(1);
        Engine {
            policy,
            size,
            resident: 0,
            state: Vec::new(),
            write_backs: 0,
            counts: Counts {
                size_pages: size,
                ..Counts::default()
            },
        }
    }

    #[cold]
    fn grow(&mut self, at: usize) {
        let pages = (at + 1).next_power_of_two();
        self.state.resize(pages, 0);
        self.policy.grow(pages);
    }

    /// One reference.
    #[inline]
    pub fn reference(&mut self, page: CanonPage, write: bool) {
        let at = page.index();
        if at >= self.state.len() {
            self.grow(at);
        }
        self.counts.references += 1;
        let dirty = u8::from(write) * DIRTY;
        if self.state[at] & RESIDENT != 0 {
            self.state[at] |= dirty;
            self.policy.hit(page);
            return;
        }
        self.counts.misses += 1;
        self.counts.cold += u64::from(self.state[at] & SEEN == 0);
        if self.resident == self.size {
            if let Some(victim) = self.policy.victim(page) {
                let state = &mut self.state[victim.index()];
                self.write_backs += u64::from(*state & DIRTY != 0);
                *state = SEEN;
                self.resident -= 1;
            }
        }
        self.resident += 1;
        self.state[at] = RESIDENT | SEEN | dirty;
        self.policy.insert(page);
    }

    /// A page was freed; nothing happens if it was never referenced.
    pub fn free(&mut self, page: CanonPage) {
        let Some(state) = self.state.get_mut(page.index()) else {
            return;
        };
        let before = std::mem::take(state);
        if before & SEEN != 0 {
            self.resident -= u64::from(before & RESIDENT != 0);
            self.policy.forget(page);
        }
    }
}

impl<P: Policy + Send> Simulation for Engine<P> {
    fn references(&mut self, batch: &[Access]) {
        for access in batch {
            match access.kind {
                Kind::Free => self.free(access.page),
                kind => self.reference(access.page, kind == Kind::Write),
            }
        }
    }

    fn counts(&self) -> Counts {
        let dirty = |&&s: &&u8| s & (RESIDENT | DIRTY) == RESIDENT | DIRTY;
        Counts {
            write_backs: Some(self.write_backs),
            dirty_left: self.state.iter().filter(dirty).count() as u64,
            ..self.counts
        }
    }
}

/// A policy in the registry.
pub struct PolicyEntry {
    /// Its stable name.
    pub id: &'static str,
    /// The policy in a line.
    pub about: &'static str,
    /// Creates a simulation of a memory of this many pages.
    pub simulate: fn(size_pages: u64) -> Box<dyn Simulation>,
    /// Finds the counts of all sizes in one pass, for policies that allow it.
    pub curve: Option<fn() -> Box<dyn CurveSimulation>>,
}

/// Computes the counts of every size of memory in one pass.
pub trait CurveSimulation: Send {
    /// Takes references.
    fn references(&mut self, batch: &[Access]);
    /// From now on, it may compute with up to so many threads of its own. A simulation that cannot,
    /// ignores this.
    fn use_threads(&mut self, _threads: usize) {}
    /// The curve so far. May copy all memory, which [`CurveSimulation::finish`] does not.
    fn curve(&self) -> Curve;
    /// The curve, if nothing follows.
    fn finish(self: Box<Self>) -> Curve {
        self.curve()
    }
}

/// All policies.
pub fn registry() -> &'static [PolicyEntry] {
    use policies::{
        active_inactive, arc, car, clock, clock_pro, fifo, lirs, lru, mglru, opt, s3_fifo, s4_fifo,
        segq, sieve, two_q, ws_clock,
    };
    &[
        lru::ENTRY,
        fifo::ENTRY,
        clock::ENTRY,
        clock::SET,
        sieve::ENTRY,
        s3_fifo::ENTRY,
        s4_fifo::ENTRY,
        two_q::ENTRY,
        segq::ENTRY,
        arc::ENTRY,
        car::ENTRY,
        lirs::ENTRY,
        clock_pro::ENTRY,
        ws_clock::ENTRY,
        active_inactive::ENTRY,
        mglru::ENTRY,
        opt::ENTRY,
    ]
}

/// Adds a run of references in the form for simulations.
pub fn push_accesses(batch: &Batch<'_>, to: &mut Vec<Access>) {
    let writes = batch.refs.iter().map(|r| r.flags().writes());
    let accesses = batch.pages.iter().zip(writes);
    to.extend(accesses.map(|(&page, write)| Access::reference(page, write)));
}

/// Adds the ends of pages in the form for simulations.
pub fn push_freed(pages: &[CanonPage], to: &mut Vec<Access>) {
    to.extend(pages.iter().map(|&page| Access::free(page)));
}

/// Passes the references of a pass to simulations.
#[derive(Default)]
pub struct SimulationConsumer {
    /// One of a size each.
    pub sizes: Vec<Box<dyn Simulation>>,
    /// For all sizes.
    pub curve: Option<Box<dyn CurveSimulation>>,
    accesses: Vec<Access>,
}

impl SimulationConsumer {
    fn feed(&mut self) {
        for simulation in &mut self.sizes {
            simulation.references(&self.accesses);
        }
        if let Some(curve) = &mut self.curve {
            curve.references(&self.accesses);
        }
        self.accesses.clear();
    }
}

impl Consumer for SimulationConsumer {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        push_accesses(batch, &mut self.accesses);
        self.feed();
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> Result<()> {
        push_freed(pages, &mut self.accesses);
        self.feed();
        Ok(())
    }
}

#[cfg(test)]
mod testing {
    use super::{Access, PolicyEntry};
    use crate::units::CanonPage;

    /// Misses of a memory of `size` pages.
    pub fn misses(entry: PolicyEntry, size: u64, pages: &[u32]) -> u64 {
        let accesses: Vec<Access> = pages
            .iter()
            .map(|&page| Access::reference(CanonPage(page), false))
            .collect();
        let mut simulation = (entry.simulate)(size);
        simulation.references(&accesses);
        simulation.counts().misses
    }
}
