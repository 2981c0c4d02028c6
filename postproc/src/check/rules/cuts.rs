//! The part of `residency` that is about the beginnings of pieces: all stays of all sets end there.
//!
//! The kernel writes a checkpoint, ends all stays while no page is admitted, and begins the next piece
//! with the next number. So of the stays that a piece has ended,
//!
//! - each ends after the end of a checkpoint, and before that of the next one; and
//! - those of one checkpoint have numbers before the piece's. A stay with a number up to the greatest
//!   of these was there, too, so it ended before the piece began. If it was evicted, the admission that
//!   has done so has a stay of its own, which was evicted likewise, or ended for another reason. So no
//!   eviction is later than all stays that ended for another reason.
//!
//! The kernel ends most stays while admissions go on, and then all that are left while none can begin.
//! So the stays that a piece ends do not all end at the same time.
//!
//! If a filter may have left stays out, one of them may be the last one that ended for another reason. So
//! evictions are not judged then.
//!
//! The end of a stay is before or at the time of the end of a checkpoint if the whole unit in which it
//! is counted is.
//!
//! Memory: 56 bytes for each stay that a piece has ended, until the next checkpoint.

use crate::check::{Cited, Draft, Findings};
use crate::pipeline::World;
use crate::trace::{Body, Event, Ref, Trace, Why};

/// A stay that a piece has ended.
struct Ended {
    record: Ref,
    end_ns: u64,
    /// The latest end of all stays with smaller numbers that an admission has ended.
    evicted: Option<(u64, Ref)>,
    /// The same of those that ended for another reason.
    closed: Option<(u64, Ref)>,
}

/// Follows the ends of stays.
pub(super) struct Cuts {
    shift: u32,
    /// Stays may be missing.
    may_lack: bool,
    /// When the last checkpoint ended.
    checkpoint_ns: Option<u64>,
    evicted: Option<(u64, Ref)>,
    closed: Option<(u64, Ref)>,
    ended: Vec<Ended>,
    /// The greatest number of a stay that the last piece has ended.
    last_seq: u64,
}

fn later(one: &mut Option<(u64, Ref)>, end_ns: u64, r: &Ref) {
    if one.is_none_or(|(latest, _)| latest < end_ns) {
        *one = Some((end_ns, *r));
    }
}

impl Cuts {
    pub fn new(trace: &Trace) -> Self {
        Cuts {
            shift: trace.header().stay_shift,
            may_lack: trace.may_lack_references(),
            checkpoint_ns: None,
            evicted: None,
            closed: None,
            ended: Vec::new(),
            last_seq: 0,
        }
    }

    pub fn references(&mut self, refs: &[Ref]) {
        for r in refs {
            // If its length saturated, it ended later than this.
            let end_ns = r.end_ns(self.shift);
            let least_ns = r.time_ns.saturating_add(u64::from(r.stay) << self.shift);
            match r.flags().why() {
                Why::Piece => self.ended.push(Ended {
                    record: *r,
                    end_ns: end_ns.unwrap_or(u64::MAX),
                    evicted: self.evicted,
                    closed: self.closed,
                }),
                Why::Evicted | Why::Renewed | Why::Chance => {
                    later(&mut self.evicted, least_ns, r);
                }
                _ => later(&mut self.closed, least_ns, r),
            }
        }
    }

    pub fn event(&mut self, e: &Event<'_>, world: &World, out: &mut Findings) {
        if matches!(e.body, Body::CheckpointEnd) {
            self.settle(e.time_ns, world, out);
            self.checkpoint_ns = Some(e.time_ns);
        }
    }

    /// Judges the stays that ended before the next checkpoint did.
    fn settle(&mut self, next_ns: u64, world: &World, out: &mut Findings) {
        let unit = 1u64 << self.shift;
        let is_before = |e: &Ended| e.end_ns.saturating_add(unit) <= next_ns;
        let is_known = |e: &&Ended| e.end_ns != u64::MAX && is_before(e);
        let known = || self.ended.iter().filter(is_known);
        let last_seq = known().map(|e| e.record.seq).max();
        let last_ns = known().map(|e| e.end_ns).max();
        // A stay whose end is not known ended with the next ones that have greater numbers.
        let is_due = |e: &Ended| match e.end_ns {
            u64::MAX => next_ns == u64::MAX || last_seq.is_some_and(|last| e.record.seq < last),
            _ => is_before(e),
        };
        let (due, rest) = std::mem::take(&mut self.ended)
            .into_iter()
            .partition::<Vec<_>, _>(is_due);
        self.ended = rest;
        for e in &due {
            let what = match self.checkpoint_ns {
                None => "ended by the beginning of another piece, although no checkpoint had ended",
                Some(_) if e.record.seq <= self.last_seq => {
                    "went on although another piece of the trace began"
                }
                Some(_) => continue,
            };
            out.error(|| Draft::new(what).record(Cited::reference(&e.record, world)));
        }
        let (Some(last_ns), Some(last)) = (last_ns, due.iter().max_by_key(|e| e.record.seq)) else {
            return;
        };
        self.last_seq = last.record.seq;
        let most_ns = last.closed.map_or(last_ns, |closed| closed.0.max(last_ns));
        let is_late = |e: &(u64, Ref)| !self.may_lack && e.0 >= most_ns.saturating_add(unit);
        let evicted = last.evicted.filter(is_late);
        let closed = last.closed.filter(|e| e.0 > next_ns);
        for (_, r) in evicted.into_iter().chain(closed) {
            out.error(|| {
                let why = r.flags().why().name();
                Draft::new(format!("{why} after another piece of the trace began"))
                    .record(Cited::reference(&r, world))
                    .related(Some(Cited::reference(&last.record, world)))
            });
        }
    }

    /// No record is left.
    pub fn finish(&mut self, world: &World, out: &mut Findings) {
        self.settle(u64::MAX, world, out);
    }
}
