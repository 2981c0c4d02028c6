//! Counts by kind, process and mapping.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Place, World};
use crate::space::Issue;
use crate::trace::{Event, RefFlags};
use crate::units::{Access, CanonPage};

/// References of one process, or to one mapped object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counters {
    /// All references.
    pub references: u64,
    /// References by a read.
    pub reads: u64,
    /// References by a write.
    pub writes: u64,
    /// References by an instruction fetch.
    pub execs: u64,
    /// Second chances, whose kind of access is unknown.
    pub seen: u64,
    /// References that the kernel made on behalf of a program.
    pub kernel: u64,
    /// Stays in which a store to the page was made or begun.
    pub dirtied: u64,
    /// Pages whose first reference in the trace counts here.
    pub new_pages: u64,
}

impl Counters {
    fn add(&mut self, flags: RefFlags, new: bool) {
        self.references += 1;
        match flags.access() {
            Access::Read => self.reads += 1,
            Access::Write => self.writes += 1,
            Access::Exec => self.execs += 1,
            Access::Seen => self.seen += 1,
        }
        self.kernel += u64::from(flags.kernel());
        self.dirtied += u64::from(flags.dirtied());
        self.new_pages += u64::from(new);
    }
}

/// Counts references and events in a pass.
pub struct Statistics {
    pub(super) by_flags: [u64; RefFlags::INDEXES],
    pub(super) by_process: Vec<Counters>,
    pub(super) unknown_process: Counters,
    pub(super) by_object: Vec<Counters>,
    pub(super) no_object: Counters,
    pub(super) events: BTreeMap<&'static str, u64>,
    pub(super) first_ns: Option<u64>,
    pub(super) last_ns: u64,
    seen: Vec<u64>,
    pub(super) distinct_pages: u64,
}

impl Default for Statistics {
    fn default() -> Self {
        Statistics {
            by_flags: [0; RefFlags::INDEXES],
            by_process: Vec::new(),
            unknown_process: Counters::default(),
            by_object: Vec::new(),
            no_object: Counters::default(),
            events: BTreeMap::new(),
            first_ns: None,
            last_ns: 0,
            seen: Vec::new(),
            distinct_pages: 0,
        }
    }
}

impl Statistics {
    /// Distinct pages that were referenced.
    pub fn distinct_pages(&self) -> u64 {
        self.distinct_pages
    }

    /// References to each mapped object, by its number, as far as there are any; and those outside
    /// all mappings.
    pub fn by_object(&self) -> (&[Counters], &Counters) {
        (&self.by_object, &self.no_object)
    }

    /// Whether this is the page's first reference.
    fn first_sight(&mut self, page: usize) -> bool {
        let (word, bit) = (page / 64, 1u64 << (page % 64));
        if word >= self.seen.len() {
            self.seen.resize((word + 1).next_power_of_two(), 0);
        }
        let new = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        self.distinct_pages += u64::from(new);
        new
    }
}

fn slot(counters: &mut Vec<Counters>, at: u32) -> &mut Counters {
    let at = at as usize;
    if at >= counters.len() {
        counters.resize(at + 1, Counters::default());
    }
    &mut counters[at]
}

impl Consumer for Statistics {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for ((r, place), page) in batch.refs.iter().zip(batch.places).zip(batch.pages) {
            let flags = r.flags();
            let new = self.first_sight(page.index());
            self.by_flags[flags.index()] += 1;
            match batch.world.tasks.find(r.tid()) {
                Some(process) => slot(&mut self.by_process, process.0).add(flags, new),
                None => self.unknown_process.add(flags, new),
            }
            match place {
                Place::Mapped { object, .. } => slot(&mut self.by_object, object.0).add(flags, new),
                _ => self.no_object.add(flags, new),
            }
        }
        if let (Some(first), Some(last)) = (batch.refs.first(), batch.refs.last()) {
            self.first_ns.get_or_insert(first.time_ns);
            self.last_ns = self.last_ns.max(last.time_ns);
        }
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> Result<()> {
        for page in pages {
            let (word, bit) = (page.index() / 64, 1u64 << (page.index() % 64));
            if let Some(seen) = self.seen.get_mut(word) {
                *seen &= !bit;
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, _world: &World, _issues: &[Issue]) -> Result<()> {
        *self.events.entry(event.name()).or_insert(0) += 1;
        self.first_ns.get_or_insert(event.time_ns);
        self.last_ns = self.last_ns.max(event.time_ns);
        Ok(())
    }
}
