//! The tasks of a trace and the processes they belong to.

use rust_mm_trace::uapi;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::trace::{Body, Event};
use crate::units::{Mm, Tid};

/// A process of the trace: an index into [`Tasks::processes`]. If a process id is used
/// again, it is another process. A process in several windows of a trace is one process. The
/// time of creation distinguishes these cases.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub struct ProcessId(pub u32);

/// What is known about a process.
#[derive(Clone, Debug, Serialize)]
pub struct Process {
    /// Its id.
    pub tgid: Tid,
    /// When the process was created, ns; 0 if the trace does not say.
    pub start_ns: u64,
    /// Its latest name.
    pub comm: String,
    /// The file that the process executed last; empty if the trace does not say.
    pub exe: String,
    /// Its latest control group; empty if the trace does not say.
    pub cgroup: String,
    /// Its latest address space.
    pub mm: Mm,
    /// User time at exit, of all its tasks that ended.
    pub utime_ns: u64,
    /// System time at exit, of all its tasks that ended.
    pub stime_ns: u64,
}

/// What else is known about a process.
#[derive(Default)]
struct Ties {
    parent: Parent,
    /// The control group of those of its threads that have none of their own, if it is not that
    /// of its leader: the leader alone was moved.
    cgroup_of_others: Option<Box<str>>,
    /// Whether [`Process::cgroup`] is that of another thread than the leader, whose own one is not
    /// known.
    is_guess: bool,
    /// When all its threads were moved to a control group last: [`Tasks::epoch`].
    moved: u64,
}

/// What is known about the parent of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Parent {
    #[default]
    Unknown,
    /// The process that forked it.
    Process(ProcessId),
    /// It was made before its first event, which says that its parent has this id.
    Id(Tid),
}

/// What a thread has that may differ from its process's, which is its leader's.
#[derive(Clone, Default)]
struct Own {
    comm: Option<Box<str>>,
    cgroup: Option<Box<str>>,
    /// When it was moved to that control group: [`Tasks::epoch`].
    moved: u64,
}

#[derive(Clone, Copy)]
struct Task {
    process: ProcessId,
    alive: bool,
}

/// Thread ids and their processes.
#[derive(Default)]
pub struct Tasks {
    by_tid: Vec<Option<Task>>,
    processes: Vec<Process>,
    /// Of each process.
    ties: Vec<Ties>,
    /// By id and time of making, if that is known.
    by_identity: FxHashMap<(Tid, u64), ProcessId>,
    /// Of threads other than leaders.
    own: FxHashMap<Tid, Own>,
    /// Processes of the present snapshot whose parents may be listed behind them.
    orphans: Vec<ProcessId>,
    epoch: u64,
}

impl Tasks {
    /// All processes so far; [`ProcessId`]s are indexes.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// A process.
    pub fn process(&self, id: ProcessId) -> &Process {
        &self.processes[id.0 as usize]
    }

    /// All processes whose leader lives, in no particular order.
    pub fn living(&self) -> impl Iterator<Item = &Process> {
        self.by_tid.iter().enumerate().filter_map(|(tid, task)| {
            let task = (*task)?;
            let process = self.process(task.process);
            (task.alive && process.tgid.0 as usize == tid).then_some(process)
        })
    }

    /// All threads that live, in the order of their ids, and their processes.
    pub(crate) fn living_threads(&self) -> impl Iterator<Item = (Tid, ProcessId)> {
        self.by_tid.iter().enumerate().filter_map(|(tid, task)| {
            let task = (*task).filter(|task| task.alive)?;
            Some((Tid(tid as u32), task.process))
        })
    }

    /// The path of the control group of those threads of a process that have none of their own;
    /// empty if the trace does not say.
    pub(crate) fn shared_cgroup(&self, id: ProcessId) -> &str {
        let ties = &self.ties[id.0 as usize];
        match &ties.cgroup_of_others {
            Some(path) => path,
            None if ties.is_guess => "",
            None => &self.process(id).cgroup,
        }
    }

    /// The id of the next ancestor of a process that `lives`, or that is not traced; 0 if the trace
    /// does not say.
    pub(crate) fn living_ancestor(&self, id: ProcessId, lives: impl Fn(ProcessId) -> bool) -> Tid {
        let mut id = id;
        for _ in 0..=self.processes.len() {
            id = match self.ties[id.0 as usize].parent {
                Parent::Unknown => break,
                Parent::Process(parent) => parent,
                Parent::Id(tgid) => match self.find(tgid) {
                    Some(parent) => parent,
                    None => return tgid,
                },
            };
            if lives(id) {
                return self.process(id).tgid;
            }
        }
        Tid(0)
    }

    /// The process of a thread. A thread that has ended is still found until its id is used
    /// again.
    #[inline]
    pub fn find(&self, tid: Tid) -> Option<ProcessId> {
        self.by_tid.get(tid.0 as usize)?.map(|task| task.process)
    }

    /// The process that forked a process, or is the parent that its first event names.
    pub(crate) fn parent(&self, id: ProcessId) -> Option<ProcessId> {
        match self.ties[id.0 as usize].parent {
            Parent::Unknown => None,
            Parent::Process(id) => Some(id),
            Parent::Id(tgid) => self.find(tgid),
        }
    }

    /// A number that changes whenever the process, the name, the control group or an ancestor of
    /// any thread may have changed.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The thread's present name; empty if the trace does not say.
    pub fn comm(&self, tid: Tid) -> &str {
        let own = self.own.get(&tid).and_then(|own| own.comm.as_deref());
        own.or_else(|| Some(self.process(self.find(tid)?).comm.as_str()))
            .unwrap_or_default()
    }

    /// The path of the thread's present control group; empty if the trace does not say.
    pub fn cgroup(&self, tid: Tid) -> &str {
        let Some(id) = self.find(tid) else {
            return "";
        };
        let (process, ties) = (self.process(id), &self.ties[id.0 as usize]);
        let own = self.own.get(&tid).filter(|own| own.moved > ties.moved);
        match own.and_then(|own| own.cgroup.as_deref()) {
            Some(path) => path,
            None if ties.is_guess => "",
            None if tid == process.tgid => &process.cgroup,
            None => ties.cgroup_of_others.as_deref().unwrap_or(&process.cgroup),
        }
    }

    /// Whether `fits` is true of the id of a process, or of one of its ancestors': of those that
    /// forked it, and of the parents that processes had which are older than the trace or window.
    pub fn any_ancestor(&self, id: ProcessId, fits: &mut dyn FnMut(Tid) -> bool) -> bool {
        let mut next = Some(id);
        // A forged trace may say that two processes are each other's parents.
        for _ in 0..=self.processes.len() {
            let Some(id) = next else {
                return false;
            };
            if fits(self.process(id).tgid) {
                return true;
            }
            next = match self.ties[id.0 as usize].parent {
                Parent::Unknown => None,
                Parent::Process(id) => Some(id),
                Parent::Id(tgid) => match self.find(tgid) {
                    Some(id) => Some(id),
                    // It is not traced.
                    None => return fits(tgid),
                },
            };
        }
        false
    }

    /// Applies an event.
    pub fn apply(&mut self, event: &Event<'_>) {
        if let Body::Fork { .. }
        | Body::Task { .. }
        | Body::Cgroup { .. }
        | Body::Exec { .. }
        | Body::SnapBegin
        | Body::SnapEnd = event.body
        {
            self.epoch += 1;
        }
        match event.body {
            Body::Fork {
                child_tid,
                child_tgid,
                child_mm,
                child_start,
            } => {
                let parent = self.find(event.tid).or_else(|| self.find(event.tgid));
                // A child is like the thread that makes it.
                let comm = Some(self.comm(event.tid)).filter(|name| !name.is_empty());
                let cgroup = Some(self.cgroup(event.tid)).filter(|path| !path.is_empty());
                let (comm, cgroup) = (comm.map(Box::from), cgroup.map(Box::<str>::from));
                if child_tid == child_tgid {
                    let mut like = parent.map(|p| self.process(p).clone());
                    let mut is_guess = false;
                    if let Some(like) = &mut like {
                        like.comm = comm.map_or_else(|| like.comm.clone(), String::from);
                        is_guess = cgroup.is_none() && !like.cgroup.is_empty();
                        like.cgroup = cgroup.map_or_else(|| like.cgroup.clone(), String::from);
                    }
                    let child = self.add_process(child_tgid, like.as_ref(), child_mm);
                    let ties = &mut self.ties[child.0 as usize];
                    ties.parent = parent.map_or(Parent::Unknown, Parent::Process);
                    ties.is_guess = is_guess;
                    self.identify(child, child_start);
                    self.set(child_tid, child);
                } else {
                    let process = self.ensure(child_tgid, child_mm);
                    self.set(child_tid, process);
                    self.own.remove(&child_tid);
                    // Most threads are in the group of all threads of their process.
                    let shared = self.cgroup(child_tid);
                    let cgroup = cgroup.filter(|path| **path != *shared);
                    let moved = self.epoch;
                    self.own.insert(
                        child_tid,
                        Own {
                            comm,
                            cgroup,
                            moved,
                        },
                    );
                }
            }
            Body::Task {
                tid,
                tgid,
                start,
                comm,
                parent,
            } => {
                if tid == tgid {
                    self.recognise(tgid, start, event.mm);
                }
                let process = self.ensure(tgid, event.mm);
                if tid == tgid || self.processes[process.0 as usize].comm.is_empty() {
                    self.processes[process.0 as usize].comm = text(comm);
                }
                self.set(tid, process);
                if tid != tgid {
                    self.own.entry(tid).or_default().comm = Some(text(comm).into());
                }
                self.adopt(process, parent, event.is_snapshot());
            }
            Body::Cgroup { tid, tgid, path } => {
                let process = match tgid.0 {
                    0 => self.find(tid),
                    _ => Some(self.ensure(tgid, event.mm)),
                };
                if let Some(id) = process {
                    let process = &mut self.processes[id.0 as usize];
                    let ties = &mut self.ties[id.0 as usize];
                    if tgid.0 != 0 {
                        (ties.moved, ties.cgroup_of_others) = (self.epoch, None);
                    } else if tid != process.tgid {
                        let own = self.own.entry(tid).or_default();
                        (own.cgroup, own.moved) = (Some(text(path).into()), self.epoch);
                    } else if ties.cgroup_of_others.is_none() {
                        let known = Some(&process.cgroup).filter(|_| !ties.is_guess);
                        ties.cgroup_of_others = Some(known.cloned().unwrap_or_default().into());
                    }
                    // A thread may be in another one; the leader's counts.
                    let of_leader = tgid.0 != 0 || tid == process.tgid;
                    if of_leader || process.cgroup.is_empty() {
                        ties.is_guess = !of_leader;
                        process.cgroup = text(path);
                    }
                }
            }
            Body::Exec { comm, name, .. } => {
                let process = self.ensure(event.tgid, event.mm);
                let process_entry = &mut self.processes[process.0 as usize];
                process_entry.comm = text(comm);
                process_entry.exe = text(name);
                process_entry.mm = event.mm;
                self.set(event.tid, process);
                self.set(event.tgid, process);
                // The thread that calls exec becomes the leader.
                self.own.remove(&event.tid);
            }
            Body::Exit {
                utime_ns, stime_ns, ..
            } => {
                if let Some(process) = self.find(event.tid) {
                    let entry = &mut self.processes[process.0 as usize];
                    entry.utime_ns = entry.utime_ns.saturating_add(utime_ns);
                    entry.stime_ns = entry.stime_ns.saturating_add(stime_ns);
                }
                if let Some(Some(task)) = self.by_tid.get_mut(event.tid.0 as usize) {
                    task.alive = false;
                }
            }
            // The snapshot lists the tasks that exist.
            Body::SnapBegin => {
                self.by_tid.clear();
                self.own.clear();
            }
            Body::SnapEnd => {
                for orphan in std::mem::take(&mut self.orphans) {
                    let Parent::Id(tgid) = self.ties[orphan.0 as usize].parent else {
                        continue;
                    };
                    // Its id may be another process's later.
                    if let Some(parent) = self.find(tgid) {
                        self.ties[orphan.0 as usize].parent = Parent::Process(parent);
                    }
                }
            }
            // It says nothing of whoever causes it.
            Body::Aside => {}
            // Some tasks cause events about an address space that is not theirs: a debugger, a
            // task that swaps, merges or migrates its pages, a kernel thread that borrows it.
            _ if event.body.is_by_others() => {}
            // The same holds for a task that truncates a mapped file, or takes the snapshot.
            _ if event.mm.0 == 0 || event.is_snapshot() => {}
            _ if event.tid.0 != 0 && event.tgid.0 != 0 && self.find(event.tid).is_none() => {
                let process = self.ensure(event.tgid, event.mm);
                self.set(event.tid, process);
            }
            _ => {}
        }
    }

    fn add_process(&mut self, tgid: Tid, like: Option<&Process>, mm: Mm) -> ProcessId {
        let id = ProcessId(u32::try_from(self.processes.len()).unwrap_or(u32::MAX));
        let name = |of: fn(&Process) -> &String| like.map(of).cloned().unwrap_or_default();
        self.processes.push(Process {
            tgid,
            start_ns: 0,
            comm: name(|p| &p.comm),
            exe: name(|p| &p.exe),
            cgroup: name(|p| &p.cgroup),
            mm,
            utime_ns: 0,
            stime_ns: 0,
        });
        self.ties.push(Ties::default());
        id
    }

    /// Records the id of the parent of a process that no fork has told.
    fn adopt(&mut self, id: ProcessId, parent: Tid, in_snapshot: bool) {
        let is_new = self.ties[id.0 as usize].parent == Parent::Unknown;
        if !is_new || parent.0 == 0 || parent == self.process(id).tgid {
            return;
        }
        self.ties[id.0 as usize].parent = match self.find(parent) {
            Some(parent) if !in_snapshot => Parent::Process(parent),
            _ => Parent::Id(parent),
        };
        if in_snapshot {
            self.orphans.push(id);
        }
    }

    /// Records when a process was created.
    fn identify(&mut self, id: ProcessId, start_ns: u64) {
        if start_ns != 0 {
            let process = &mut self.processes[id.0 as usize];
            process.start_ns = start_ns;
            self.by_identity.insert((process.tgid, start_ns), id);
        }
    }

    /// Finds the process of a leader from its id and its time of creation.
    fn recognise(&mut self, tgid: Tid, start_ns: u64, mm: Mm) {
        if let Some(&id) = self.by_identity.get(&(tgid, start_ns)) {
            self.processes[id.0 as usize].mm = mm;
            self.set(tgid, id);
            return;
        }
        let known = self.find(tgid).map(|id| (id, self.process(id).start_ns));
        let id = match known {
            Some((id, 0)) => {
                self.processes[id.0 as usize].mm = mm;
                id
            }
            // The id was another process's, whose end was not recorded.
            Some(_) if start_ns != 0 => self.add_process(tgid, None, mm),
            Some((id, _)) => id,
            None => self.ensure(tgid, mm),
        };
        self.identify(id, start_ns);
        self.set(tgid, id);
    }

    /// The process of a live leader, which is created if necessary.
    fn ensure(&mut self, tgid: Tid, mm: Mm) -> ProcessId {
        match self.by_tid.get(tgid.0 as usize) {
            Some(Some(task)) => task.process,
            _ => {
                let process = self.add_process(tgid, None, mm);
                self.set(tgid, process);
                process
            }
        }
    }

    fn set(&mut self, tid: Tid, process: ProcessId) {
        // Thread ids have 22 bits in a reference, which bounds the table.
        if tid.0 >= 1 << uapi::VMTRACE_TID_BITS {
            return;
        }
        let at = tid.0 as usize;
        if self.by_tid.len() <= at {
            self.by_tid.resize(at + 1, None);
        }
        if self.by_tid[at].is_none_or(|task| task.process != process) {
            self.epoch += 1;
            self.own.remove(&tid);
        }
        self.by_tid[at] = Some(Task {
            process,
            alive: true,
        });
    }

    /// Tasks that have not ended.
    pub fn alive(&self) -> usize {
        self.by_tid
            .iter()
            .flatten()
            .filter(|task| task.alive)
            .count()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use crate::testing::TraceBuilder;
    use crate::trace::{Body, Merge, Step, Trace};
    use crate::units::Tid;
    use rust_mm_trace::uapi;

    use super::Tasks;

    #[test]
    fn a_process_is_in_the_group_of_its_leader() {
        let mut builder = TraceBuilder::new(1, 4);
        builder.program();
        builder.task(0, 11, 10, 1, "thread");
        builder.cgroup(0, (11, 0), "/first");
        builder.cgroup(0, (11, 0), "/second");
        let mut groups = vec![];
        let mut follow = |bytes| {
            let trace = Trace::from_bytes("groups", bytes).unwrap();
            let mut tasks = Tasks::default();
            let mut merge = Merge::new(&trace);
            let mut refs = Vec::new();
            while let Step::Event(event) = merge.fill(&mut refs, 1).expect("reads") {
                tasks.apply(&event);
                if let (Body::Cgroup { .. }, Some(id)) = (event.body, tasks.find(Tid(10))) {
                    groups.push(tasks.process(id).cgroup.clone());
                }
            }
            tasks
        };
        builder.cgroup(0, (10, 0), "/leader");
        builder.cgroup(0, (11, 0), "/thread");
        builder.cgroup(0, (10, 10), "/all");
        builder.fork(0, 10, 1, 12, 2);
        let tasks = follow(builder.finish());
        assert_eq!(groups, ["/first", "/first", "/leader", "/leader", "/all"]);
        let child = tasks.find(Tid(12)).unwrap();
        assert_eq!(tasks.process(child).cgroup, "/all");
    }

    #[test]
    fn who_takes_a_snapshot_is_no_process_of_it() {
        let mut builder = TraceBuilder::new(1, 4);
        builder.snapshot(true);
        builder.map_anon(0, 77, 1, 0x1000, 0x9000, crate::units::Prot(3));
        builder.task(0, 10, 10, 1, "program");
        let trace = Trace::from_bytes("snapshot", builder.finish()).unwrap();
        let mut tasks = Tasks::default();
        let mut merge = Merge::new(&trace);
        let mut refs = Vec::new();
        while let Step::Event(event) = merge.fill(&mut refs, 1).expect("reads") {
            tasks.apply(&event);
        }
        let living: Vec<_> = tasks.living().map(|p| p.tgid).collect();
        assert_eq!(living, [Tid(10)]);
    }

    #[test]
    fn who_looks_at_memory_is_no_process_of_it() {
        let mut builder = TraceBuilder::sample();
        builder.gup(0, 4321, 1, 0x1000, true);
        let trace = Trace::from_bytes("gup", builder.finish()).unwrap();
        let mut tasks = Tasks::default();
        let mut seen = 0;
        let mut merge = Merge::new(&trace);
        let mut refs = Vec::new();
        loop {
            match merge.fill(&mut refs, 1000).expect("reads") {
                Step::Full => refs.clear(),
                Step::Event(event) => {
                    if let Body::Gup {
                        page,
                        write,
                        long_term,
                        ..
                    } = event.body
                    {
                        assert_eq!((page, write, long_term), (0x1000, true, false));
                        seen += 1;
                    }
                    tasks.apply(&event);
                }
                Step::End => break,
            }
        }
        assert_eq!(seen, 1);
        assert!(tasks.find(Tid(4321)).is_none());
    }

    #[test]
    fn who_works_for_others_is_no_process_of_theirs() {
        let words = |words: [u64; 4]| words.map(u64::to_le_bytes).concat();
        let none = u64::MAX;
        let slot = 3 << uapi::VMTRACE_SWAP_AREA_SHIFT | 9;
        let mut builder = TraceBuilder::sample();
        for (number, payload) in [
            (uapi::VMTRACE_EV_SWAP_OUT, words([0x1000, 5, none, slot])),
            (uapi::VMTRACE_EV_SWAP_IN, words([0x1000, none, 6, slot])),
            (uapi::VMTRACE_EV_KSM, words([0x1000, 6, 7, 0])),
            (uapi::VMTRACE_EV_MIGRATE, words([0x1000, 7, 8, 0])),
            (
                uapi::VMTRACE_EV_SWITCH,
                [10u32, 4321].map(u32::to_le_bytes).concat(),
            ),
        ] {
            builder.event(0, 4321, 1, number, &payload);
        }
        let trace = Trace::from_bytes("others", builder.finish()).unwrap();
        let mut tasks = Tasks::default();
        let mut told = Vec::new();
        let mut merge = Merge::new(&trace);
        let mut refs = Vec::new();
        loop {
            match merge.fill(&mut refs, 1000).expect("reads") {
                Step::Full => refs.clear(),
                Step::Event(event) => {
                    if event.tid == Tid(4321) {
                        told.push(format!("{:?}", event.body));
                    }
                    tasks.apply(&event);
                }
                Step::End => break,
            }
        }
        assert_eq!(
            told,
            [
                "SwapOut(SwapBody { page: 4096, pfn: 5, area: 3, slot: 9 })",
                "SwapIn(SwapBody { page: 4096, pfn: 6, area: 3, slot: 9 })",
                "Ksm(FrameBody { page: 4096, old_pfn: 6, new_pfn: 7 })",
                "Migrate(FrameBody { page: 4096, old_pfn: 7, new_pfn: 8 })",
                "Switch { prev: Tid(10), next: Tid(4321) }",
            ]
        );
        assert!(tasks.find(Tid(4321)).is_none());
    }
}
