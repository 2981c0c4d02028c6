//! Which address spaces a reader knows who begins with a checkpoint.
//!
//! The description of a piece with `VMTRACE_PIECE_CHECKPOINT` is a part of the trace: all events from
//! `VMTRACE_EV_CHECKPOINT` to before the piece's first number. Things change while it is written. So
//! it has events about address spaces that it has not described yet, which mean nothing to a reader
//! who begins here, and are left out. An address space is known
//!
//! - from the first event of its description on, which is about one of its tasks; or
//! - from its beginning, if that is among these events: its number is greater than all that were given
//!   out when the checkpoint began, or it is a copy of one that was known.
//!
//! The second kind may be described, too. These events repeat what is known, as in the whole trace.
//!
//! Two cases need a look at all of the description before any of it is read. A copy has events before
//! the one that says whose copy it is: about its set, and about pages that are pinned. And if an
//! address space got its number before the checkpoint, and was made a copy after that, the reader may
//! lack the event about its set; if it is described, its description has the set, so it is known from
//! there on.
//!
//! An address space that is not known when the description is over was ending. It is not referenced
//! any more, and what other events there are about it are no news.

use rustc_hash::{FxHashMap, FxHashSet};

use rust_mm_trace::uapi;

use super::wire::{Body, Event, NoNews};
use crate::units::Mm;

/// What a reader of a piece knows.
pub(super) struct Known {
    /// The number of the event that begins the description, and the first one of the piece.
    state_seq: u64,
    first_seq: u64,
    /// The greatest number of an address space when the description began.
    last_mm: Mm,
    /// The first event of each address space's description, and whether that has a mapping. If it has
    /// none, nothing is mapped yet, or only tasks of something that is known are described.
    described: FxHashMap<Mm, (u64, bool)>,
    /// Copies of known address spaces, with numbers that are not greater than `last_mm`.
    copies: FxHashSet<Mm>,
    /// Copies of unknown ones, with greater numbers.
    strangers: FxHashSet<Mm>,
    /// While the description is looked at: copies and their origins, and when they were made.
    made: Vec<(u64, Mm, Mm)>,
}

impl Known {
    pub fn new(state_seq: u64, first_seq: u64) -> Self {
        Known {
            state_seq,
            first_seq,
            last_mm: Mm(u32::MAX),
            described: FxHashMap::default(),
            copies: FxHashSet::default(),
            strangers: FxHashSet::default(),
            made: Vec::new(),
        }
    }

    /// Looks at an event of the description, each of which is to be shown once, in order.
    pub fn look(&mut self, e: &Event<'_>) {
        match e.said() {
            Body::Checkpoint { last_mm } if e.seq == self.state_seq => self.last_mm = last_mm,
            Body::MmDup { parent } => self.made.push((e.seq, e.mm, parent)),
            Body::Task { .. } | Body::Set { .. } | Body::Map(_)
                if e.aside.is_some() && e.mm.0 != 0 =>
            {
                let described = self.described.entry(e.mm).or_insert((e.seq, false));
                described.1 |= matches!(e.said(), Body::Map(_));
            }
            _ => {}
        }
    }

    /// All were shown.
    pub fn looked(&mut self) {
        for (seq, mm, origin) in std::mem::take(&mut self.made) {
            self.copy(seq, mm, origin);
        }
    }

    fn copy(&mut self, seq: u64, mm: Mm, origin: Mm) {
        match (self.is_known(origin, seq), mm > self.last_mm) {
            (true, false) => self.copies.insert(mm),
            (false, true) => self.strangers.insert(mm),
            _ => false,
        };
    }

    /// Whether an address space is known from its beginning on.
    fn is_new(&self, mm: Mm) -> bool {
        mm > self.last_mm && !self.strangers.contains(&mm)
    }

    fn is_known(&self, mm: Mm, seq: u64) -> bool {
        self.is_new(mm)
            || match self.described.get(&mm) {
                Some(&(from, true)) => from <= seq,
                Some(&(from, false)) => from <= seq || self.copies.contains(&mm),
                None => self.copies.contains(&mm),
            }
    }

    /// Follows an event behind the description.
    pub fn follow(&mut self, e: &Event<'_>) {
        if let (Body::MmDup { parent }, true) = (e.said(), e.seq >= self.first_seq) {
            self.copy(e.seq, e.mm, parent);
        }
    }

    /// The event as a reader of the piece is to see it; `None` if not at all.
    pub fn view<'e>(&self, e: Event<'e>) -> Option<Event<'e>> {
        let is_known = e.mm.0 == 0 || self.is_known(e.mm, e.seq);
        if e.seq >= self.first_seq {
            return Some(match is_known {
                true => e,
                false => e.set_aside(NoNews::Undescribed),
            });
        }
        let flags = e.flags & !uapi::VMTRACE_EVF_CHECKPOINT | uapi::VMTRACE_EVF_STATE;
        let e = Event { flags, ..e };
        // The description is to look like that at the beginning of a window.
        match e.body {
            Body::Checkpoint { .. } => Some(Event {
                number: uapi::VMTRACE_EV_SNAP_BEGIN as u16,
                body: Body::SnapBegin,
                ..e
            }),
            Body::CheckpointEnd => Some(Event {
                number: uapi::VMTRACE_EV_SNAP_END as u16,
                body: Body::SnapEnd,
                ..e
            }),
            // They are of what happened, not of what exists.
            Body::Read(_) | Body::Write(_) | Body::Switch { .. } => None,
            // What is known from its beginning is not mapped a second time.
            Body::Aside
                if self.is_new(e.mm) && matches!(e.said(), Body::Set { .. } | Body::Map(_)) =>
            {
                None
            }
            _ if !is_known => None,
            _ => Some(Event {
                body: e.said(),
                aside: None,
                ..e
            }),
        }
    }
}
