//! The certified bands of a trace, computed in the pass that simulates it.
//!
//! [`super::band`] has the theorem; here its premises are looked at. A band is given only
//! if the pass met no damage, and the trace has an end that counts no loss, no funny PTE, no
//! stuck victim and no uncovered access, and no record that a filter has left out, and was made by a kernel with all protections.
//!
//! The theorem is about one set. Of a trace of several, the references to each have bands by
//! themselves, and all together have none.

use super::band::{Band, Bands, Part, Witness, opt_band};
use super::counting::Counting;
use crate::error::Result;
use crate::filter::LeftOut;
use crate::pipeline::{Batch, Consumer, Outcome, Place, World};
use crate::space::Issue;
use crate::trace::{Body, Damage, Event, Piece, Status, Trace};
use crate::units::CanonPage;

/// Bounds the misses that all references of the run would give, in a pass.
///
/// Takes the memory of [`super::LruCurve`] and [`Witness`]. If there are several processors, the
/// counting has a thread of its own.
#[derive(Default)]
pub struct Certifier {
    /// From the trace's beginning on.
    counting: Option<Counting>,
    n: u64,
    /// The one set whose references count, if not all do.
    set: Option<u32>,
    /// A premise of the theorem does not hold.
    broken: bool,
}

/// The result of a [`Certifier`].
pub struct Certificate {
    bands: Bands,
    n: u64,
    chances: bool,
}

impl Certifier {
    /// For the references to one set, or for all if that is `None`.
    pub fn of_set(set: Option<u32>) -> Self {
        Certifier {
            set,
            ..Certifier::default()
        }
    }

    fn largest(trace: &Trace) -> u32 {
        let end = trace.index().end.as_ref();
        let peak = end.map_or(0, |end| end.status.evms_peak);
        peak.max(trace.header().evms_size)
    }

    /// The most members that the trace's set could have, at least 1.
    pub fn members(trace: &Trace) -> u64 {
        u64::from(Self::largest(trace)).max(1)
    }

    /// All has come: waits until it is counted. The end of a pass does this. Only a consumer that
    /// keeps the end of the pass from its certifier calls it.
    ///
    /// # Panics
    ///
    /// If the thread that counts panicked.
    pub fn complete(&mut self) {
        if let Some(counting) = &mut self.counting {
            counting.finish();
        }
    }

    /// The bands; `None` if a premise does not hold, or before [`Certifier::complete`].
    pub fn certificate(&self) -> Option<Certificate> {
        let counting = self.counting.as_ref().filter(|_| !self.broken)?;
        let witness = &counting.counted()?.witness;
        Some(Certificate {
            bands: witness.bands(),
            n: self.n,
            chances: witness.chances() > 0,
        })
    }

    /// The exact LRU curve of the trace's references; an empty one before [`Certifier::complete`].
    pub fn lru(&self) -> super::Curve {
        let counted = self.counting.as_ref().and_then(Counting::counted);
        counted.map(|counted| counted.curve()).unwrap_or_default()
    }
}

impl Certificate {
    /// The bounds on the misses that all references would give under LRU, in a memory of `size`
    /// pages; `None` for memories that are too small.
    pub fn lru(&self, size: u64) -> Option<Band> {
        self.bands.at(size)
    }

    /// The lower bound of [`Certificate::lru`], which holds at all sizes.
    pub fn lru_low(&self, size: u64) -> u64 {
        self.bands.low(size)
    }

    /// [`Certificate::lru`] for OPT; `misses` gives the misses of the trace's references by size.
    pub fn opt(&self, misses: impl Fn(u64) -> u64, size: u64) -> Option<Band> {
        opt_band(misses, self.n, self.chances, size)
    }

    /// The lower bound of [`Certificate::opt`], which holds at all sizes.
    pub fn opt_low(&self, misses: impl Fn(u64) -> u64, size: u64) -> u64 {
        let more = if self.chances { self.n - 1 } else { 0 };
        misses(size.saturating_add(more))
    }

    /// The sizes whose misses [`Certificate::opt`] needs.
    pub fn sizes_for_opt(&self, size: u64) -> [u64; 2] {
        let more = self.n.saturating_sub(1);
        [
            size.saturating_sub(more).max(1),
            if self.chances { size + more } else { size },
        ]
    }

    /// The smallest size that has a band under LRU.
    pub fn least(&self) -> u64 {
        self.bands.least()
    }
}

impl Consumer for Certifier {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        self.n = Self::members(trace);
        let witness = Witness::of(trace.header(), Self::largest(trace));
        self.counting = Some(Counting::of(witness));
        let end = trace.index().end.as_ref().map(|end| &end.status);
        // References that the kernel could not see are in no record.
        let unseen = |s: &Status| s.lost() > 0 || s.funny > 0 || s.stuck > 0 || s.uncovered > 0;
        // The set of a piece that begins in the middle has pages that no record of it tells of.
        let is_middle = trace.piece().is_some_and(Piece::begins_blindly);
        self.broken = trace.header().debug_break != 0
            || end.is_none_or(unseen)
            || is_middle
            || trace.is_partial();
        Ok(())
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        let Some(counting) = &mut self.counting else {
            return Ok(());
        };
        for ((r, place), &page) in batch.refs.iter().zip(batch.places).zip(batch.pages) {
            if self.set.is_some_and(|set| set != r.set) {
                continue;
            }
            let part = Part::of(r, matches!(place, Place::Mapped { .. }), page);
            counting.part(part, r.flags().writes());
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, _world: &World, _issues: &[Issue]) -> Result<()> {
        // The account of a piece does not say how large its set was at most.
        if let Body::Resize { from, to } = event.body {
            self.broken |= u64::from(from.max(to)) > self.n;
        }
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> Result<()> {
        if let Some(counting) = &mut self.counting {
            pages.iter().for_each(|&page| counting.free(page));
        }
        Ok(())
    }

    fn damage(&mut self, _damage: &Damage) -> Result<()> {
        self.broken = true;
        Ok(())
    }

    fn finish(&mut self, trace: &Trace, outcome: &Outcome) -> Result<()> {
        self.complete();
        self.broken |= !outcome.damage.is_empty();
        self.broken |= self.set.is_none() && outcome.world.has_several_sets();
        let left_out = LeftOut::of(trace, &outcome.world.filters);
        self.broken |= left_out.is_some_and(|left_out| left_out.is_any);
        Ok(())
    }
}
