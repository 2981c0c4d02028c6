//! What was mapped at a moment, by a replay of all events up to that moment.

use std::iter::from_fn;
use std::ops::RangeInclusive;

use crate::error::Error;
use crate::filter::Filters;
use crate::process::{Process, Tasks};
use crate::select::{Addresses, Moment, Unselectable, is_mapping};
use crate::space::{Mapping, MmState, Space};
use crate::trace::{Body, Damage, Merge, Step, StreamKind, Trace};
use crate::units::Mm;
use serde::Serialize;

/// The moment. Without any of these, it is the end of the trace.
#[derive(Clone, Default, Debug)]
pub struct When {
    /// After the event with this number.
    pub seq: Option<u64>,
    /// Before the first event at this time or later.
    pub until: Option<Moment>,
    /// When a file of this name was first opened.
    pub at_open: Option<String>,
    /// The event with this number is left out, as if it had not happened.
    pub without: Option<u64>,
}

/// Why a moment cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum NoMoment {
    /// The trace cannot be read, or nobody wants the answer any more.
    #[error(transparent)]
    Trace(#[from] Error),
    /// A share of a length that is not known.
    #[error(transparent)]
    Share(#[from] Unselectable),
    /// The trace has no such moment.
    #[error("the trace ends before that moment")]
    Later,
    /// There is no event to leave out.
    #[error("no event before that moment has the number that --without gives")]
    NothingLeftOut,
}

/// What the events up to a moment say.
pub struct State {
    /// The address spaces.
    pub space: Space,
    /// The processes.
    pub tasks: Tasks,
    /// The kernel's filters so far.
    pub filters: Filters,
    /// Number of the last event that counts.
    pub seq: u64,
    /// Events that contradict others.
    pub issues: usize,
    /// What was damaged of the part that was read.
    pub damage: Vec<Damage>,
}

impl State {
    /// Replays the events of a trace up to a moment, as long as `go_on` says so.
    ///
    /// # Errors
    ///
    /// See [`NoMoment`].
    pub fn at(
        when: &When,
        trace: &Trace,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<State, NoMoment> {
        let (mut space, mut tasks) = (Space::default(), Tasks::default());
        let mut filters = Filters::default();
        let mut merge = Merge::of_kinds(trace, &[StreamKind::Event]);
        let mut found = when.seq.is_none() && when.at_open.is_none();
        let (mut seq, mut issues, mut left_out) = (0, 0, false);
        let limit = when.seq.unwrap_or(u64::MAX);
        let begin = trace.header().start_time_ns;
        let until = when
            .until
            .map(|moment| moment.after_begin("--until", trace));
        let until = until.transpose()?.map(|ns| begin.saturating_add(ns));
        while let Step::Event(event) = merge.fill(&mut Vec::new(), 1)? {
            if event.seq > limit {
                found = true;
                break;
            }
            if until.is_some_and(|ns| event.time_ns >= ns) {
                break;
            }
            if !go_on() {
                return Err(Error::Interrupted.into());
            }
            seq = event.seq;
            if when.without == Some(event.seq) {
                left_out = true;
                continue;
            }
            issues += space.apply(&event).len();
            tasks.apply(&event);
            filters.apply(&event);
            let here = |name: &[u8]| when.at_open.as_ref().is_some_and(|n| n.as_bytes() == name);
            if matches!(event.body, Body::Open(open) if here(open.name)) {
                found = true;
                break;
            }
        }
        if !found && seq != limit {
            return Err(NoMoment::Later);
        }
        if when.without.is_some() && !left_out {
            return Err(NoMoment::NothingLeftOut);
        }
        let damage = merge.take_damage().collect();
        Ok(State {
            space,
            tasks,
            filters,
            seq,
            issues,
            damage,
        })
    }

    /// The processes that live at the moment and have an address space, by their ids.
    pub fn living(&self) -> Vec<&Process> {
        let living = self.tasks.living();
        let mut all: Vec<_> = living
            .filter(|p| self.space.state(p.mm) == MmState::Live)
            .collect();
        all.sort_by_key(|p| p.tgid.0);
        all
    }

    /// What of an address space is shown.
    pub fn ranges<'s>(&'s self, mm: Mm, only: &'s Only) -> impl Iterator<Item = Range<'s>> {
        let space = &self.space;
        let mappings = space.get(mm).into_iter().flat_map(|s| s.mappings());
        let mut ranges = mappings
            .map(|mapping| Range::new(space, &mapping))
            .peekable();
        let whole = from_fn(move || {
            let mut range = ranges.next()?;
            while let Some(next) = ranges.next_if(|next| range.goes_on(next)) {
                range.end = next.end;
            }
            Some(range)
        });
        whole.filter(|range| only.has(range))
    }
}

/// Which mappings are shown: those that fit one of the names, and one of the ranges of addresses.
#[derive(Clone, Default, Debug)]
pub struct Only {
    mapping: Vec<String>,
    address: Vec<RangeInclusive<u64>>,
}

impl Only {
    /// As the options `--mapping` and `--address` say. Without a name, any name fits, and so do any
    /// addresses.
    pub fn new(mapping: &[String], address: &[Addresses], trace: &Trace) -> Self {
        let page_size = trace.header().page_size();
        Only {
            mapping: mapping.to_vec(),
            address: address.iter().map(|a| a.bounds(page_size)).collect(),
        }
    }

    /// Whether all mappings are shown.
    pub fn is_all(&self) -> bool {
        self.mapping.is_empty() && self.address.is_empty()
    }

    /// Whether a name is asked for.
    pub fn names_some(&self) -> bool {
        !self.mapping.is_empty()
    }

    /// Whether a name fits, or none is asked for.
    pub fn has_name(&self, name: &str) -> bool {
        let fits = |wanted: &String| is_mapping(wanted, name);
        !self.names_some() || self.mapping.iter().any(fits)
    }

    /// Whether a part of a range of addresses fits, or none is asked for.
    pub fn has_part_of(&self, start: u64, end: u64) -> bool {
        let overlaps = |a: &RangeInclusive<u64>| *a.start() < end && *a.end() >= start;
        self.address.is_empty() || self.address.iter().any(overlaps)
    }

    fn has(&self, range: &Range<'_>) -> bool {
        self.has_name(range.name) && self.has_part_of(range.start, range.end)
    }
}

/// A range of an address space, as /proc/PID/maps has it: adjacent mappings of the same object with the
/// same protection are one.
#[derive(Clone, Debug, Serialize)]
pub struct Range<'s> {
    /// First byte.
    pub start: u64,
    /// First byte after.
    pub end: u64,
    /// The protection: the bits of PROT_*.
    pub prot: u8,
    /// Whether a write goes to the object itself.
    pub shared: bool,
    /// Offset in the file of the first byte; 0 for a mapping that has no file.
    pub offset: u64,
    /// The file's device; 0 without a file, as `ino` is.
    pub dev: u64,
    /// The file's inode.
    pub ino: u64,
    /// The name of what is mapped.
    pub name: &'s str,
}

impl<'s> Range<'s> {
    fn new(space: &'s Space, mapping: &Mapping) -> Self {
        let file = space.object(mapping.object).file;
        Range {
            start: mapping.start,
            end: mapping.end,
            prot: mapping.prot.0,
            shared: mapping.is_shared(),
            offset: if file.ino == 0 { 0 } else { mapping.offset },
            dev: file.dev,
            ino: file.ino,
            name: space.name(mapping),
        }
    }

    /// Whether the next range is shown as a part of this one.
    fn goes_on(&self, next: &Range<'_>) -> bool {
        let like = |r: &Range<'_>| (r.prot, r.shared, r.dev, r.ino);
        let offset = self.offset.wrapping_add(self.end - self.start);
        self.end == next.start
            && like(self) == like(next)
            && self.name == next.name
            && (next.ino == 0 || offset == next.offset)
    }
}
