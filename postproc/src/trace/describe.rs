//! What exists at a moment of a trace, as events that describe it.
//!
//! The events are those with which the kernel begins a window: address spaces and their sets,
//! mappings, tasks, control groups and open files, between `SNAP_BEGIN` and `SNAP_END`. What the
//! events before that moment do not tell is not described. Nor is what has ended: an ancestor, or a
//! name of a file by which nothing is mapped any more.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem::offset_of;

use rust_mm_trace::uapi;
use rustc_hash::FxHashSet;

use super::piece::put;
use super::wire::{Body, EVENT_SIZE, Event, FileId, FileKind, Header, MapKind, NO_VTIME, Ref};
use crate::error::Result;
use crate::process::{ProcessId, Tasks};
use crate::space::{MmState, Object, Space};
use crate::units::{Mm, Tid};

/// Device, inode and generation of a file.
type FileKey = (u64, u64, u32);

/// A file that somebody has open.
struct Opened {
    tid: Tid,
    mm: Mm,
    length: u64,
    kind: FileKind,
    name: Box<[u8]>,
}

/// The state that the events so far have produced.
///
/// Memory: as [`Space`], and what is open at one time.
pub(super) struct Described {
    space: Space,
    tasks: Tasks,
    /// The last change of N: what it was changed to, and the sequence number of the event.
    resized: Option<(u32, u64)>,
    /// The filter in force: its tests, and its expression.
    filter: Option<(u32, Box<[u8]>)>,
    /// The sets of address spaces, and the control groups that the sets are of.
    sets: BTreeMap<Mm, (u32, u64)>,
    /// By the file, and the process that has opened it.
    open: BTreeMap<(FileKey, Tid), Vec<Opened>>,
    time_ns: u64,
}

/// Writes events one by one.
pub(super) struct Writer<'a> {
    header: &'a Header,
    seq: u64,
    time_ns: u64,
    event: Vec<u8>,
    /// Takes the bytes of each event.
    to: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl Writer<'_> {
    fn put(
        &mut self,
        number: u32,
        who: (Tid, Tid),
        mm: Mm,
        body: &[u8],
        name: &[u8],
    ) -> Result<()> {
        type E = uapi::vmtrace_event;
        let b = &mut self.event;
        b.clear();
        b.resize(EVENT_SIZE, 0);
        if self.header.has_vtime() {
            b.extend_from_slice(&NO_VTIME.to_le_bytes());
        }
        b.extend_from_slice(body);
        b.extend_from_slice(name);
        b.resize(b.len().next_multiple_of(8), 0);
        let size = b.len() as u16;
        put!(b, E, type_, (number as u16));
        put!(b, E, size, size);
        put!(
            b,
            E,
            flags,
            (uapi::VMTRACE_EVF_SNAPSHOT | uapi::VMTRACE_EVF_STATE)
        );
        put!(b, E, seq, self.seq);
        put!(b, E, time, self.time_ns);
        put!(b, E, tid, who.0.0);
        put!(b, E, tgid, who.1.0);
        put!(b, E, mm, mm.0);
        (self.to)(&self.event)
    }
}

/// Nobody in particular: whoever describes an address space need not be a task of it.
const NOBODY: (Tid, Tid) = (Tid(0), Tid(0));

/// As much of a name as an event can hold.
fn short(name: &[u8]) -> &[u8] {
    &name[..name.len().min(uapi::VMTRACE_NAME_MAX as usize)]
}

/// The same of a text, which ends between two characters.
fn short_text(name: &str) -> &[u8] {
    let mut end = name.len().min(uapi::VMTRACE_NAME_MAX as usize);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name.as_bytes()[..end]
}

fn comm(name: &str) -> [u8; 16] {
    let mut comm = [0; 16];
    // The kernel's names end with a NUL.
    for (to, from) in comm.iter_mut().zip(name.bytes().take(15)) {
        *to = from;
    }
    comm
}

fn key(file: FileId) -> FileKey {
    (file.dev, file.ino, file.generation)
}

fn map_kind(kind: MapKind) -> u16 {
    let number = match kind {
        MapKind::Anon => uapi::VMTRACE_MAP_ANON,
        MapKind::File => uapi::VMTRACE_MAP_FILE,
        MapKind::Shmem => uapi::VMTRACE_MAP_SHMEM,
        MapKind::Device => uapi::VMTRACE_MAP_DEVICE,
        MapKind::Special => uapi::VMTRACE_MAP_SPECIAL,
        MapKind::Hugetlb => uapi::VMTRACE_MAP_HUGETLB,
        MapKind::Unknown => u32::from(u16::MAX),
    };
    number as u16
}

fn file_kind(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => uapi::VMTRACE_FILE_REGULAR,
        FileKind::Directory => uapi::VMTRACE_FILE_DIRECTORY,
        FileKind::Pipe => uapi::VMTRACE_FILE_PIPE,
        FileKind::Socket => uapi::VMTRACE_FILE_SOCKET,
        FileKind::Char => uapi::VMTRACE_FILE_CHAR,
        FileKind::Block => uapi::VMTRACE_FILE_BLOCK,
        FileKind::Other => uapi::VMTRACE_FILE_OTHER,
    }
}

impl Described {
    pub fn new(header: &Header) -> Self {
        Described {
            space: Space::default(),
            tasks: Tasks::default(),
            resized: None,
            filter: None,
            sets: BTreeMap::new(),
            open: BTreeMap::new(),
            time_ns: header.start_time_ns,
        }
    }

    /// Follows a reference.
    pub fn reference(&mut self, r: &Ref) {
        // A CPU reads the time of an admission before it draws the number. So no later event is
        // earlier than this.
        self.time_ns = self.time_ns.max(r.time_ns);
    }

    /// Follows an event.
    pub fn event(&mut self, e: &Event<'_>) {
        // Descriptions are on CPU 0, on which times of events do not decrease.
        if e.cpu == 0 {
            self.time_ns = self.time_ns.max(e.time_ns);
        }
        self.space.apply(e);
        self.tasks.apply(e);
        match &e.body {
            Body::Resize { to, .. } => self.resized = Some((*to, e.seq)),
            Body::Filter { tests, expr } => self.filter = Some((*tests, (*expr).into())),
            Body::Set { set, cgroup } => {
                self.sets.insert(e.mm, (*set, *cgroup));
            }
            Body::MmEnd => {
                self.sets.remove(&e.mm);
            }
            Body::SnapBegin => {
                self.sets.clear();
                self.open.clear();
            }
            Body::Open(file) => {
                let opened = Opened {
                    tid: e.tid,
                    mm: e.mm,
                    length: file.length,
                    kind: file.kind,
                    name: short(file.name).into(),
                };
                let all = self.open.entry((key(file.file), e.tgid)).or_default();
                all.push(opened);
            }
            Body::Close(file) => {
                let file = key(file.file);
                // A descriptor may have been passed on to the task that closes the file.
                let by = match self.open.contains_key(&(file, e.tgid)) {
                    true => Some((file, e.tgid)),
                    false => {
                        let others = (file, Tid(0))..=(file, Tid(u32::MAX));
                        self.open.range(others).next().map(|(by, _)| *by)
                    }
                };
                if let Some(Entry::Occupied(mut all)) = by.map(|by| self.open.entry(by)) {
                    all.get_mut().pop();
                    if all.get().is_empty() {
                        all.remove();
                    }
                }
            }
            _ => {}
        }
    }

    /// The time of a description that is made now, in ns.
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// Gives the events that describe what exists, one after the other. They have the sequence
    /// number `seq`, which is that of no record from now on. The window that is open, if the trace
    /// has windows, has begun with the number `since`.
    ///
    /// # Errors
    ///
    /// The errors of `to`.
    pub fn describe(
        &self,
        header: &Header,
        seq: u64,
        since: u64,
        to: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut w = Writer {
            header,
            seq,
            time_ns: self.time_ns,
            event: Vec::new(),
            to,
        };
        // Each window begins with the N of the header, or with an event.
        let resized = self
            .resized
            .filter(|(n, at)| *at >= since && *n != header.evms_size);
        if let Some((n, _)) = resized {
            let body = [header.evms_size, n].map(u32::to_le_bytes).concat();
            w.put(uapi::VMTRACE_EV_RESIZE, NOBODY, Mm(0), &body, &[])?;
        }
        w.put(uapi::VMTRACE_EV_SNAP_BEGIN, NOBODY, Mm(0), &[], &[])?;
        if let Some((tests, expr)) = &self.filter {
            type F = uapi::vmtrace_ev_filter;
            let mut b = [0; size_of::<F>()];
            put!(b, F, nr_tests, *tests);
            put!(b, F, expr_len, (expr.len() as u32));
            w.put(uapi::VMTRACE_EV_FILTER, NOBODY, Mm(0), &b, expr)?;
        }
        for (&mm, &(set, cgroup)) in &self.sets {
            type S = uapi::vmtrace_ev_set;
            let mut b = [0; size_of::<S>()];
            put!(b, S, set, set);
            put!(b, S, cgroup, cgroup);
            w.put(uapi::VMTRACE_EV_SET, NOBODY, mm, &b, &[])?;
        }
        self.mappings(&mut w)?;
        self.tasks(&mut w)?;
        for (&((dev, ino, generation), tgid), all) in &self.open {
            type F = uapi::vmtrace_ev_file;
            for o in all {
                let mut b = [0; size_of::<F>()];
                put!(b, F, dev, dev);
                put!(b, F, ino, ino);
                put!(b, F, length, o.length);
                put!(b, F, generation, generation);
                put!(b, F, kind, file_kind(o.kind));
                put!(b, F, name_len, (o.name.len() as u32));
                w.put(uapi::VMTRACE_EV_OPEN, (o.tid, tgid), o.mm, &b, &o.name)?;
            }
        }
        w.put(uapi::VMTRACE_EV_SNAP_END, NOBODY, Mm(0), &[], &[])
    }

    fn mappings(&self, w: &mut Writer<'_>) -> Result<()> {
        type M = uapi::vmtrace_ev_map;
        for mm in self.space.living() {
            let Some(space) = self.space.get(mm) else {
                continue;
            };
            let mut b = [0; size_of::<M>()];
            put!(b, M, cause, (uapi::VMTRACE_BY_SNAPSHOT as u16));
            let mut empty = true;
            for m in space.mappings() {
                empty = false;
                let Object { file, .. } = self.space.object(m.object);
                let name = match self.space.name(&m) {
                    // That is what a mapping without a name is called.
                    "[anon]" => &[],
                    name => short_text(name),
                };
                put!(b, M, start, m.start);
                put!(b, M, end, m.end);
                put!(b, M, offset, m.offset);
                put!(b, M, dev, file.dev);
                put!(b, M, ino, file.ino);
                put!(b, M, generation, file.generation);
                put!(b, M, prot, u32::from(m.prot.0));
                put!(b, M, flags, m.flags);
                put!(b, M, kind, map_kind(m.kind));
                put!(b, M, name_len, (name.len() as u32));
                w.put(uapi::VMTRACE_EV_MAP, NOBODY, mm, &b, name)?;
            }
            if empty {
                // It exists, and nothing is mapped in it.
                w.put(uapi::VMTRACE_EV_MAP, NOBODY, mm, &b, &[])?;
            }
        }
        Ok(())
    }

    fn tasks(&self, w: &mut Writer<'_>) -> Result<()> {
        type T = uapi::vmtrace_ev_task;
        type C = uapi::vmtrace_ev_cgroup;
        // A process exists for as long as one of its threads does.
        let threads: Vec<(Tid, ProcessId)> = self.tasks.living_threads().collect();
        let mut processes: BTreeMap<Tid, (ProcessId, Vec<Tid>)> = BTreeMap::new();
        for &(tid, id) in &threads {
            let tgid = self.tasks.process(id).tgid;
            let of = processes.entry(tgid).or_insert((id, Vec::new()));
            if tid != tgid {
                of.1.push(tid);
            }
        }
        let living: FxHashSet<ProcessId> = processes.values().map(|of| of.0).collect();
        let leaders = processes.iter().map(|(&tgid, of)| (tgid, of.0));
        let others = processes
            .values()
            .flat_map(|(id, others)| others.iter().map(|&tid| (tid, *id)));
        for (tid, id) in leaders.chain(others) {
            let p = self.tasks.process(id);
            let mm = match self.space.state(p.mm) {
                MmState::Live => p.mm,
                MmState::Unknown | MmState::Ended => Mm(0),
            };
            let parent = self.tasks.living_ancestor(id, |id| living.contains(&id));
            let name = match tid == p.tgid {
                true => &p.comm,
                false => self.tasks.comm(tid),
            };
            let mut b = [0; size_of::<T>()];
            put!(b, T, tid, tid.0);
            put!(b, T, tgid, p.tgid.0);
            put!(b, T, parent, parent.0);
            b[offset_of!(T, comm)..][..16].copy_from_slice(&comm(name));
            if tid == p.tgid {
                put!(b, T, start, p.start_ns);
            }
            w.put(uapi::VMTRACE_EV_TASK, (tid, p.tgid), mm, &b, &[])?;
        }
        for (tgid, (id, mut others)) in processes {
            let p = self.tasks.process(id);
            let shared = self.tasks.shared_cgroup(id);
            let mut cgroup = |tid: Tid, tgid: Tid, path: &str| {
                let path = short_text(path);
                let mut b = [0; size_of::<C>()];
                put!(b, C, tid, tid.0);
                put!(b, C, tgid, tgid.0);
                put!(b, C, name_len, (path.len() as u32));
                w.put(uapi::VMTRACE_EV_CGROUP, NOBODY, p.mm, &b, path)
            };
            if !shared.is_empty() {
                cgroup(tgid, tgid, shared)?;
            }
            // If the leader's is not known, the first one is the process's.
            others.sort_by_key(|&tid| *self.tasks.cgroup(tid) != *p.cgroup);
            for tid in [tgid].into_iter().chain(others) {
                let own = self.tasks.cgroup(tid);
                if own != shared {
                    cgroup(tid, Tid(0), own)?;
                }
            }
        }
        Ok(())
    }
}
