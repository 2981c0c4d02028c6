//! One trace, read in stretches at the same time.
//!
//! A stretch is a range of sequence numbers. Each can be read by itself, on a thread or on another machine:
//! its references get the same pages, and its events free the same pages, by the same numbers, as in
//! one pass over the whole trace ([`crate::pipeline::run_with`]). That takes two steps.
//!
//! 1. [`names`] notes the records of a stretch that may give a page its name. No other stretch
//!    need be known.
//! 2. [`run`] reads a stretch. It is given the [`Names`] of all stretches before, so that it
//!    can name pages as these do.
//!
//! Both apply all events from the beginning of the trace on. But neither opens packets of references
//! that have none of the stretch.
//!
//! ```no_run
//! use postproc::canon::PageMode;
//! use postproc::pipeline::{Freeing, Unwatched};
//! use postproc::stretch::{cut, names, run};
//! use postproc::trace::Trace;
//!
//! let trace = Trace::open("run.vmt")?;
//! let mode = PageMode::Canonical;
//! let stretches = cut(&trace, 8)?;
//! // Each of these can be made anywhere, and so can each of the passes below.
//! let all = stretches.iter().map(|range| names(&trace, mode, range.clone(), &mut Unwatched));
//! let all = all.collect::<Result<Vec<_>, _>>()?;
//! for (i, range) in stretches.into_iter().enumerate() {
//!     run(&trace, mode, Freeing::Freed, range, &all[..i], &mut Unwatched, &mut [])?;
//! }
//! # Ok::<(), postproc::error::Error>(())
//! ```
//!
//! # Why the numbers are the same
//!
//! What the pass over the whole trace knows of pages changes in two ways: by events, and by records of
//! pages that have no name. Any other record finds its page and changes nothing. [`run`]
//! applies all events, and looks up the noted records before its stretch, each at its place among the
//! events. If each record that names a page was noted, then [`run`] knows at each place what the
//! pass over the whole trace knows there, and has given names in the same order. So its next name is the same
//! number, whether or not names of freed pages are given again. A record that was noted, but names
//! no page, changes nothing.
//!
//! [`names`] does not know the pages that were named before the stretch. So it notes too
//! much, but misses no record that names a page: `canon/certain.rs` says why. There are about as
//! many notes as virtual pages that the stretch references, and one more each time a page has ended and is
//! referenced again.
//!
//! # What consumers get
//!
//! - Consumers get the references, events and freed pages of the stretch, and packets whose heads claim
//!   numbers in it. A packet with records of two stretches is opened by both.
//! - [`World`] is as in the pass over the whole trace, counts included. So are the
//!   times of references, which do not go back.
//! - Consumers of all stretches must be of the same kinds: names are given again if all consumers
//!   follow freed pages, and events that read or write files name pages if a consumer wants those.
//! - Consumers get the damage of packets of references with numbers in the stretch, and that of packets of events
//!   from the beginning on. Damage that was found when the trace was opened is reported by every stretch.
//! - [`Outcome::pages`] counts from the beginning of the trace to the end of the stretch.
//! - A piece, a directory of pieces, a window or the part of a process has stretches, too. Its names fit no
//!   other form of the trace. A packed trace is no other form.
//!
//! In each stream, sequence numbers must ascend, and heads must say which numbers their packets have. If a
//! trace is wrong about that without any damage, which `postproc check` reports, then stretches of the
//! trace may lack records.

mod cuts;
mod notes;

use std::ops::Range;

pub use self::cuts::cut;
pub(crate) use self::notes::Earlier;
pub use self::notes::Names;
use crate::canon::{Certain, PageMode};
use crate::error::{Error, Result};
use crate::pipeline::{
    self, Areas, BATCH, Consumer, Freeing, Observer, Outcome, REPORT_EVERY, World, cut_copies,
    is_reference, kinds_of,
};
use crate::trace::part::CONTEXT;
use crate::trace::{Event, Merge, Ready, Ref, Trace};

/// Notes the records of a stretch that may give names to pages.
///
/// `range` is of sequence numbers. `mode` must be that of the pass that uses the names.
///
/// # Errors
///
/// Reading failed, or [`Error::Interrupted`] if the observer says so. Damage is no error.
pub fn names(
    trace: &Trace,
    mode: PageMode,
    range: Range<u64>,
    observer: &mut dyn Observer,
) -> Result<Names> {
    let mut merge = Merge::within(trace, kinds_of(trace), &range)?;
    let mut noting = Noting::new(trace, mode, range);
    let total = trace.index().stop;
    let mut refs = Vec::with_capacity(BATCH);
    let mut since_report = 0;
    loop {
        refs.clear();
        let ready = merge.advance(&mut refs, BATCH)?;
        merge.take_opened();
        merge.take_damage();
        noting.records(&refs);
        match (ready, merge.event()) {
            (Ready::End, _) => break,
            (_, Some(event)) => noting.event(&event),
            _ => {}
        }
        since_report += refs.len() + 1;
        if since_report >= REPORT_EVERY {
            since_report = 0;
            if !observer.progress(merge.bytes_read().min(total), total) {
                return Err(Error::Interrupted);
            }
        }
    }
    match observer.progress(total, total) {
        true => Ok(noting.finish()),
        false => Err(Error::Interrupted),
    }
}

/// What is known while a stretch's records are noted.
struct Noting {
    mode: PageMode,
    world: World,
    areas: Areas,
    certain: Certain,
    latest_ns: u64,
    names: Names,
}

impl Noting {
    fn new(trace: &Trace, mode: PageMode, range: Range<u64>) -> Self {
        let shift = trace.header().page_shift;
        Noting {
            mode,
            world: World::new(trace.header()),
            areas: Areas::new(shift),
            certain: Certain::new(mode, shift),
            latest_ns: 0,
            names: Names::of(trace, mode, range),
        }
    }

    fn records(&mut self, refs: &[Ref]) {
        for r in refs {
            self.record(r);
        }
    }

    fn record(&mut self, r: &Ref) {
        let is_context = r.page & CONTEXT != 0;
        // Only the identities of pages depend on it.
        if is_context && self.mode != PageMode::Canonical {
            return;
        }
        let vpn = r.vpn(self.world.header.page_shift);
        let (place, backing) = self.areas.locate(r.mm, vpn, &self.world.space);
        if self.certain.may_name(r.mm, vpn, backing) {
            self.names.push(r.seq, r.mm, vpn);
        }
        if !is_context {
            self.latest_ns = self.latest_ns.max(r.time_ns);
            let references = usize::from(is_reference(r, &place));
            self.world.count(std::slice::from_ref(r), references);
        }
    }

    fn event(&mut self, event: &Event<'_>) {
        let (space, shift) = (&mut self.world.space, self.world.header.page_shift);
        self.areas.apply(event, space);
        self.certain.apply(event);
        for (mm, start, end) in cut_copies(event, space, shift) {
            self.certain.end_copies(mm, start, end);
        }
    }

    fn finish(mut self) -> Names {
        self.names.count(self.world.counted(self.latest_ns));
        self.names
    }
}

/// Reads a stretch, and passes it to every consumer.
///
/// `range` is of sequence numbers. `before` are the names of all stretches before it, in order: the first
/// begins at 0, each ends where the next one begins, and the last one ends where the range begins.
///
/// # Errors
///
/// As [`pipeline::run_with`]; [`Error::NamesUnfit`] if `before` is something else, or of another trace or
/// page mode.
pub fn run(
    trace: &Trace,
    mode: PageMode,
    freeing: Freeing,
    range: Range<u64>,
    before: &[Names],
    observer: &mut dyn Observer,
    consumers: &mut [&mut dyn Consumer],
) -> Result<Outcome> {
    let earlier = Earlier::all(trace, mode, before, range.start)?;
    pipeline::run_within(trace, mode, freeing, range, earlier, observer, consumers)
}
