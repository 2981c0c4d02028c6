//! Which events are about a place: addresses, or what is mapped there.

use crate::maps::Only;
use crate::select::Options;
use crate::space::Space;
use crate::trace::{Event, Trace};

/// Selects events by `--mapping` and `--address`.
///
/// An event is about the pages or the range of addresses that it has as fields, in one address space. It
/// is about a mapping if a part of that range is mapped so, before the event or after it. Events without
/// such fields, as those of files, are about no place.
pub struct Places {
    only: Only,
    page_size: u64,
    space: Space,
}

impl Places {
    /// `None` if the options select no place.
    pub fn new(options: &Options, trace: &Trace) -> Option<Self> {
        let only = Only::new(&options.mapping, &options.address, trace);
        (!only.is_all()).then(|| Places {
            only,
            page_size: trace.header().page_size(),
            space: Space::default(),
        })
    }

    /// Whether an event is selected. Needs all events, each once and in their order.
    pub fn judge(&mut self, event: &Event<'_>) -> bool {
        if !self.only.names_some() {
            let mut places = event.said().places(self.page_size);
            return places.any(|place| self.only.has_part_of(place.start, place.end));
        }
        let before = self.is_there(event);
        self.space.apply(event);
        before || self.is_there(event)
    }

    /// Whether the event is about a place that is wanted, by what is mapped now.
    fn is_there(&self, event: &Event<'_>) -> bool {
        let Some(mappings) = self.space.get(event.mm) else {
            return false;
        };
        event.said().places(self.page_size).any(|place| {
            mappings.overlapping(place.start, place.end).any(|mapping| {
                let (start, end) = (mapping.start.max(place.start), mapping.end.min(place.end));
                self.only.has_part_of(start, end) && self.only.has_name(self.space.name(&mapping))
            })
        })
    }
}
