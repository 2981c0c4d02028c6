//! Memory divided between processes.
//!
//! A [`Limit`] gives some processes a memory of their own with a size. All other
//! processes share another memory, or are left out. Each memory is simulated alone, with
//! the references of its processes in order.
//!
//! Two simplifications: a page that is referenced from two memories is in both and counts
//! in both, whereas the kernel charges it to the one that touched it first. And a process
//! that comes under another limit, by exec() or because it is moved, leaves its pages where
//! they are.

use std::str::FromStr;

use rustc_hash::FxHashMap;

use super::{Access, Counts, PolicyEntry, Simulation};
use crate::amount::MemorySize;
use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, World};
use crate::process::{Process, ProcessId};
use crate::space::Issue;
use crate::streams::Numbers;
use crate::trace::{Body, Event, Trace};
use crate::units::{CanonPage, Tid};

/// The processes that a memory is for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Whose {
    /// Each process has a memory of its own.
    Process,
    /// All processes of one name share a memory.
    Comm(String),
    /// All processes in a control group, or below it, share a memory.
    Cgroup(String),
}

/// A memory of a size for some processes: `process=SIZE`, `comm:NAME=SIZE` or
/// `cgroup:/PATH=SIZE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    whose: Whose,
    size: MemorySize,
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        // A name may have an equals sign in it.
        let (whose, size) = text.rsplit_once('=').unwrap_or((text, ""));
        let whose = match whose.split_once(':') {
            None if whose == "process" => Whose::Process,
            Some(("comm", name)) if !name.is_empty() => Whose::Comm(name.into()),
            Some(("cgroup", path)) if path.starts_with('/') => {
                Whose::Cgroup(path.trim_end_matches('/').into())
            }
            _ => return Err("expected process=SIZE, comm:NAME=SIZE or cgroup:/PATH=SIZE".into()),
        };
        let size = MemorySize::absolute(
            size,
            "a share would be of the footprint of these processes, which is not known before",
        )?;
        Ok(Limit { whose, size })
    }
}

/// Size of a page, if nobody says another one.
const PAGE_SIZE: u64 = 4096;

impl Limit {
    /// The same limit as a number of pages of this size in bytes.
    ///
    /// # Errors
    ///
    /// If it is less than a page.
    pub fn in_pages(self, page_size: u64) -> std::result::Result<Limit, String> {
        let size = MemorySize::Pages(self.size.pages(page_size, 0)?);
        Ok(Limit { size, ..self })
    }

    fn pages(&self) -> u64 {
        self.size.pages(PAGE_SIZE, 0).unwrap_or(1)
    }

    fn is_for(&self, process: &Process) -> bool {
        match &self.whose {
            Whose::Process => true,
            Whose::Comm(name) => process.comm == *name,
            Whose::Cgroup(path) => {
                let below = process.cgroup.strip_prefix(path.as_str());
                below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }
}

/// One memory, under each of the policies.
pub struct Memory {
    /// The name of the memory; for a process, its id and last name.
    pub name: String,
    process: Option<ProcessId>,
    set: Option<u32>,
    several_sets: bool,
    simulations: Vec<Box<dyn Simulation>>,
    /// The memory's own numbers of pages, so that the tables of a simulation are no larger
    /// than necessary.
    pages: Numbers,
    accesses: Vec<Access>,
}

impl Memory {
    fn feed(&mut self) {
        for simulation in &mut self.simulations {
            simulation.references(&self.accesses);
        }
        self.accesses.clear();
    }

    /// Whether several processes with sets of their own share the memory. A process alone has one
    /// set at a time, until it executes another program.
    pub fn has_several_sets(&self) -> bool {
        self.several_sets && self.process.is_none()
    }

    /// The counts of each policy.
    pub fn counts(&self) -> impl Iterator<Item = Counts> + '_ {
        self.simulations
            .iter()
            .map(|simulation| simulation.counts())
    }
}

/// The memory of a process.
#[derive(Clone, Copy)]
enum Known {
    /// Not known yet.
    No,
    /// The process has no memory.
    None,
    Memory(usize),
}

/// Simulates memories that have limits.
pub struct Limits {
    limits: Vec<Limit>,
    policies: Vec<&'static PolicyEntry>,
    /// The size of the memory that all others share.
    rest: Option<u64>,
    memories: Vec<Memory>,
    /// By the limit's place, and by process if each has its own.
    numbers: FxHashMap<(usize, Option<ProcessId>), usize>,
    by_process: Vec<Known>,
    left_out: u64,
    /// The memories from which each page was referenced.
    holders: FxHashMap<CanonPage, Vec<u32>>,
}

impl Limits {
    /// If several limits fit a process, the first one is used. Processes that no limit fits
    /// share a memory of `rest` pages, or are left out if that is `None`.
    pub fn new(limits: Vec<Limit>, policies: Vec<&'static PolicyEntry>, rest: Option<u64>) -> Self {
        Limits {
            limits,
            policies,
            rest,
            memories: Vec::new(),
            numbers: FxHashMap::default(),
            by_process: Vec::new(),
            left_out: 0,
            holders: FxHashMap::default(),
        }
    }

    /// The memories that were referenced, in order of first reference.
    pub fn memories(&self) -> &[Memory] {
        &self.memories
    }

    /// References of processes that have no memory.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    fn memory_of(&mut self, tid: Tid, world: &World) -> Option<usize> {
        let process = world.tasks.find(tid);
        let at = process.map(|id| id.0 as usize);
        match at.and_then(|at| self.by_process.get(at)) {
            Some(Known::Memory(memory)) => return Some(*memory),
            Some(Known::None) => return None,
            _ => {}
        }
        let memory = self.look_up(process, world);
        if let Some(at) = at {
            if at >= self.by_process.len() {
                self.by_process.resize(at + 1, Known::No);
            }
            self.by_process[at] = memory.map_or(Known::None, Known::Memory);
        }
        memory
    }

    fn look_up(&mut self, id: Option<ProcessId>, world: &World) -> Option<usize> {
        let process = id.map(|id| world.tasks.process(id));
        let limit = process.and_then(|p| self.limits.iter().position(|limit| limit.is_for(p)));
        let (key, name, size) = match (limit, process) {
            (Some(at), Some(process)) => {
                let limit = &self.limits[at];
                let (own, name) = match &limit.whose {
                    Whose::Process => (id, name_of(process)),
                    Whose::Comm(name) => (None, format!("comm:{name}")),
                    Whose::Cgroup(path) if path.is_empty() => (None, "cgroup:/".into()),
                    Whose::Cgroup(path) => (None, format!("cgroup:{path}")),
                };
                ((at, own), name, limit.pages())
            }
            _ => ((self.limits.len(), None), "others".into(), self.rest?),
        };
        if let Some(&known) = self.numbers.get(&key) {
            return Some(known);
        }
        let number = self.memories.len();
        self.numbers.insert(key, number);
        self.memories.push(Memory {
            name,
            process: key.1,
            set: None,
            several_sets: false,
            simulations: self.policies.iter().map(|p| (p.simulate)(size)).collect(),
            pages: Numbers::default(),
            accesses: Vec::new(),
        });
        Some(number)
    }
}

fn name_of(process: &Process) -> String {
    format!("{} {}", process.tgid.0, process.comm)
}

impl Consumer for Limits {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for (r, &page) in batch.refs.iter().zip(batch.pages) {
            let Some(memory) = self.memory_of(r.tid(), batch.world) else {
                self.left_out += 1;
                continue;
            };
            let at = memory;
            let memory = &mut self.memories[at];
            memory.several_sets |= memory.set.replace(r.set).is_some_and(|set| set != r.set);
            let number = memory.pages.find(page).unwrap_or_else(|| {
                self.holders.entry(page).or_default().push(at as u32);
                memory.pages.of(page)
            });
            memory
                .accesses
                .push(Access::reference(number, r.flags().writes()));
        }
        for memory in &mut self.memories {
            memory.feed();
        }
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> Result<()> {
        for page in pages {
            for at in self.holders.remove(page).unwrap_or_default() {
                let memory = &mut self.memories[at as usize];
                if let Some(number) = memory.pages.free(*page, true) {
                    memory.accesses.push(Access::free(number));
                    memory.feed();
                }
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, _world: &World, _issues: &[Issue]) -> Result<()> {
        // The process may have another name or control group, or its id another process.
        if let Body::Fork { .. } | Body::Exec { .. } | Body::Task { .. } | Body::Cgroup { .. } =
            event.body
        {
            self.by_process.clear();
        }
        Ok(())
    }

    fn finish(&mut self, _trace: &Trace, outcome: &Outcome) -> Result<()> {
        for memory in &mut self.memories {
            if let Some(id) = memory.process {
                memory.name = name_of(outcome.world.tasks.process(id));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(comm: &str, cgroup: &str) -> Process {
        Process {
            tgid: Tid(7),
            start_ns: 0,
            comm: comm.into(),
            exe: String::new(),
            cgroup: cgroup.into(),
            mm: crate::units::Mm(1),
            utime_ns: 0,
            stime_ns: 0,
        }
    }

    #[test]
    fn limits_are_read() {
        let limit = |text: &str| text.parse::<Limit>();
        assert_eq!(limit("process=10").unwrap().pages(), 10);
        let bytes = limit("comm:x=1MiB").unwrap();
        assert_eq!(bytes.clone().in_pages(1 << 16).map(|l| l.pages()), Ok(16));
        assert_eq!(bytes.pages(), 256);
        assert!(limit("process=1K").unwrap().in_pages(4096).is_err());
        let share = limit("process=0.1").expect_err("no share");
        assert!(share.contains("footprint"), "{share}");
        assert_eq!(
            limit("comm:a=b=3").unwrap().whose,
            Whose::Comm("a=b".into())
        );
        for wrong in [
            "",
            "process",
            "process=",
            "process=0",
            "process=-1",
            "process:x=1",
            "comm=1",
            "comm:=1",
            "cgroup:a=1",
            "gcc=1",
        ] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn who_a_limit_is_for() {
        let is_for = |text: &str, comm, cgroup| {
            let limit: Limit = text.parse().unwrap();
            limit.is_for(&process(comm, cgroup))
        };
        assert!(is_for("comm:gcc=1", "gcc", ""));
        assert!(!is_for("comm:gcc=1", "gcc2", ""));
        for inside in ["/a/b", "/a/b/c"] {
            assert!(is_for("cgroup:/a/b=1", "gcc", inside), "{inside}");
            assert!(is_for("cgroup:/a/b/=1", "gcc", inside), "{inside}");
        }
        for outside in ["", "/a", "/a/bc", "/b"] {
            assert!(!is_for("cgroup:/a/b=1", "gcc", outside), "{outside}");
        }
        // All processes whose group the trace has.
        assert!(is_for("cgroup:/=1", "gcc", "/"));
        assert!(is_for("cgroup:/=1", "gcc", "/a"));
    }
}
