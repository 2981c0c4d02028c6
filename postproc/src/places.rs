//! Which events are about a place: addresses, or what is mapped there.

use std::ops::Range;

use crate::maps::Only;
use crate::process::Tasks;
use crate::select::Options;
use crate::space::{AddressSpace, MmState, Space};
use crate::trace::{Event, Place, Trace};

/// Selects events by `--mapping` and `--address`.
///
/// An event is about the page or the range of addresses that it has as fields, in one address space. It
/// is about a mapping if a part of that range is mapped so, before the event or after it. Events without
/// such fields, as those of files and of whole address spaces, are about no place.
pub struct Places {
    only: Only,
    page_size: u64,
    space: Space,
    tasks: Tasks,
}

impl Places {
    /// `None` if the options select no place.
    pub fn new(options: &Options, trace: &Trace) -> Option<Self> {
        let only = Only::new(&options.mapping, &options.address, trace);
        (!only.is_all()).then(|| Places {
            only,
            page_size: trace.header().page_size(),
            space: Space::default(),
            tasks: Tasks::default(),
        })
    }

    /// Whether an event is selected. Needs all events, each once and in their order, for they say what
    /// is mapped.
    pub fn judge(&mut self, event: &Event<'_>) -> bool {
        let before = self.is_there(event);
        self.space.apply(event);
        self.tasks.apply(event);
        before || self.is_there(event)
    }

    /// Whether the event is about a place that is wanted, by what is mapped now.
    fn is_there(&self, event: &Event<'_>) -> bool {
        let mappings = self.mappings(event);
        let mut places = event.said().places();
        places.any(|place| {
            let place = self.range(place, mappings);
            if !self.only.names_some() {
                return self.only.has_part_of(place.start, place.end);
            }
            let mut there = mappings
                .into_iter()
                .flat_map(|m| m.overlapping(place.start, place.end));
            there.any(|mapping| {
                let (start, end) = (mapping.start.max(place.start), mapping.end.min(place.end));
                self.only.has_part_of(start, end) && self.only.has_name(self.space.name(&mapping))
            })
        })
    }

    /// The address space that the event is about. Pages that fork copies at once have their events
    /// before the address space is a copy: then that of the process that forks.
    fn mappings(&self, event: &Event<'_>) -> Option<&AddressSpace> {
        if self.space.state(event.mm) != MmState::Unknown {
            return self.space.get(event.mm);
        }
        let process = self.tasks.process(self.tasks.find(event.tid)?);
        self.space.get(process.mm)
    }

    /// The addresses of a place.
    fn range(&self, place: Place, mappings: Option<&AddressSpace>) -> Range<u64> {
        let page = match place {
            Place::Range(range) => return range,
            Place::Page(page) => page,
        };
        let mapping = mappings.and_then(|mappings| mappings.find(page));
        let huge = mapping.and_then(|mapping| self.space.object(mapping.object).huge);
        page..page.saturating_add(huge.unwrap_or(self.page_size))
    }
}
