//! `checkpoint`: what the kernel describes is what the events have made.
//!
//! A checkpoint describes everything that exists, for readers who begin behind it. To others it
//! repeats what they know, so it proves that they know it: no event was missed or wrong. It is
//! compared with the state that the events before have produced, at the same number, in both
//! directions. The description of an address space is made under the lock that changes of its
//! mappings need, so nothing changes in between.
//!
//! These are compared: which addresses are mapped; the protection, the kind, the file and the flags
//! of each; the set; and the tasks. These may differ, and are not compared:
//!
//! - Where one mapping ends and the next begins, if they are alike. The kernel merges mappings and
//!   cuts them in two without an event, so addresses are compared instead.
//! - Names. They may change, and events do not always record that.
//! - The offset of what is no file. The kernel may renumber the pages of anonymous memory that it
//!   moves.
//! - Whether a mapping is locked or its pages may be merged. No event records mlock(), and that of
//!   madvise() is about pages.
//! - Tasks that are made or execute a program while the checkpoint is made: these have events of their
//!   own, which may follow the description. A task that is about to exit is not described any more, so one that a checkpoint lacks must
//!   have exited when the next one begins.
//! - Address spaces that are made meanwhile, or that no task has any more.

use rust_mm_trace::uapi;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Outcome, World};
use crate::space::{AddressSpace, Issue, Mapping, MmState, Space};
use crate::trace::{Body, Damage, Event, MapBody, MapKind, NoNews, Trace};
use crate::units::{Mm, Tid};

/// Flags of a mapping that events record, and that do not change.
const FLAGS: u32 = uapi::VMTRACE_MAP_SHARED
    | uapi::VMTRACE_MAP_GROWSDOWN
    | uapi::VMTRACE_MAP_PFN
    | uapi::VMTRACE_MAP_UNCOVERED
    | uapi::VMTRACE_MAP_PAGE;

/// An address space that is being described.
struct Current {
    mm: Mm,
    set: u32,
    /// What was described ends here.
    next: u64,
    /// What the events have mapped behind that first.
    rest: Option<Mapping>,
    /// The last event of the description.
    last: Cited,
}

/// A checkpoint that is being made.
struct Making {
    last_mm: Mm,
    current: Option<Current>,
    described: FxHashSet<Mm>,
    tasks: FxHashSet<Tid>,
    /// Tasks that were made meanwhile.
    made: FxHashSet<Tid>,
    /// Threads that were described in another address space than the one in which events had put
    /// them, which one that follows may do.
    early: Vec<(Tid, Mm, String, Cited)>,
}

/// Memory: the threads at one time, by process; and while a checkpoint is made, these and the
/// address spaces.
#[derive(Default)]
pub(super) struct Checkpoint {
    /// Why nothing can be compared, if nothing can.
    blind: Option<&'static str>,
    making: Option<Making>,
    /// Threads that events have reported, by process.
    threads: FxHashMap<Tid, Vec<Tid>>,
    /// Threads that the last checkpoint lacks, and its end. A task that exits is not described from
    /// the moment on at which it is about to say so.
    absent: Vec<(Mm, Tid, Tid)>,
    absent_from: Option<Cited>,
    /// [`Making::early`] of the last checkpoint.
    early: Vec<(Tid, Mm, String, Cited)>,
    /// The description of a piece: whether it began, and whether it ended.
    description: (bool, bool),
    /// Events that are no news because nothing describes their address spaces.
    undescribed: u64,
}

/// The first mapping of an address space that does not end before an address.
fn first_from(space: &AddressSpace, address: u64) -> Option<Mapping> {
    let within = space.find(address);
    within.or_else(|| space.neighbours(address).1)
}

/// What is different between a part of a mapping and its description.
fn difference(space: &Space, mapping: &Mapping, described: &MapBody<'_>) -> Option<&'static str> {
    let start = mapping.start.max(described.start);
    let offset = |of: u64, from: u64| of.wrapping_add(start - from);
    let is_file = matches!(
        mapping.kind,
        MapKind::File | MapKind::Shmem | MapKind::Hugetlb
    );
    let object = space.object(mapping.object);
    let has_file = object.file != Default::default();
    Some(if mapping.kind != described.kind {
        "kind"
    } else if mapping.prot != described.prot {
        "protection"
    } else if (mapping.flags ^ described.flags) & FLAGS != 0 {
        "flags"
    } else if has_file && object.file != described.file {
        "file"
    } else if is_file
        && offset(mapping.offset, mapping.start) != offset(described.offset, described.start)
    {
        "offset"
    } else {
        return None;
    })
}

impl Making {
    /// Takes an event of the description of an address space, other than of a task.
    fn describe(&mut self, e: &Event<'_>, world: &World, out: &mut Findings) {
        if self.current.as_ref().is_none_or(|c| c.mm != e.mm) {
            self.close(world, out);
            if self.described.contains(&e.mm) {
                return;
            }
            if world.space.state(e.mm) != MmState::Live {
                out.error(|| {
                    let what = match world.space.state(e.mm) {
                        MmState::Ended => "which has ended",
                        _ => "which no event created",
                    };
                    Draft::new(format!("describes address space {}, {what}", e.mm.0))
                        .record(Cited::event(e))
                });
            }
            let space = world.space.get(e.mm);
            self.current = Some(Current {
                mm: e.mm,
                set: 0,
                next: 0,
                rest: space.and_then(|space| first_from(space, 0)),
                last: Cited::event(e),
            });
        }
        let Some(current) = &mut self.current else {
            return;
        };
        current.last = Cited::event(e);
        match e.said() {
            Body::Set { set, .. } => current.set = set,
            Body::Map(map) => {
                if let Some(space) = world.space.get(e.mm).filter(|_| map.start < map.end) {
                    current.map(e, &map, space, world, out);
                }
            }
            _ => {}
        }
    }

    /// The description of the present address space is over, if there is one.
    fn close(&mut self, world: &World, out: &mut Findings) {
        let Some(current) = self.current.take() else {
            return;
        };
        self.described.insert(current.mm);
        if let Some(rest) = &current.rest {
            out.error(|| {
                lacks(current.mm, rest, current.next, rest.end).related(Some(current.last))
            });
        }
        let set = world.space.set_of(current.mm);
        if set != current.set && world.space.state(current.mm) == MmState::Live {
            out.error(|| {
                Draft::new(format!(
                    "address space {} is described as one of set {}, although events have put it in \
                     set {set}",
                    current.mm.0, current.set
                ))
            });
        }
    }

    fn task(&mut self, e: &Event<'_>, world: &World, out: &mut Findings) {
        let Body::Task {
            tid, tgid, start, ..
        } = e.said()
        else {
            return;
        };
        self.tasks.insert(tid);
        let process = world.tasks.find(tid).map(|id| world.tasks.process(id));
        let differs =
            |there: u64, described: u64| there != 0 && described != 0 && there != described;
        let wrong = match process {
            None => "no event reports that thread".to_string(),
            Some(p) if p.tgid != tgid => {
                format!("according to earlier events, it is of process {}", p.tgid.0)
            }
            Some(p) if p.mm != e.mm => {
                format!(
                    "according to earlier events, its process is in address space {}",
                    p.mm.0
                )
            }
            Some(p) if tid == tgid && differs(p.start_ns, start) => {
                format!(
                    "according to earlier events, it was made at {} ns",
                    p.start_ns
                )
            }
            Some(_) => return,
        };
        let message = format!(
            "describes thread {} of process {} in address space {}: {wrong}",
            tid.0, tgid.0, e.mm.0
        );
        // It can be found before the event of its fork or exec is logged.
        match process {
            Some(p) if p.tgid == tgid && p.mm == e.mm => {
                out.error(|| Draft::new(message).record(Cited::event(e)));
            }
            _ => self.early.push((tid, e.mm, message, Cited::event(e))),
        }
    }

    /// Everything was described: what was not is no more.
    ///
    /// Gives the threads that are missing in address spaces that were described.
    fn end(
        &self,
        e: &Event<'_>,
        threads: &FxHashMap<Tid, Vec<Tid>>,
        world: &World,
        out: &mut Findings,
    ) -> Vec<(Mm, Tid, Tid)> {
        let mut left: Vec<(Mm, Tid, Tid)> = Vec::new();
        for (&tgid, threads) in threads {
            for &tid in threads {
                let is_told = self.tasks.contains(&tid) || self.made.contains(&tid);
                let process = world.tasks.find(tid).filter(|_| !is_told);
                let mm = process.map(|id| world.tasks.process(id).mm);
                let mm = mm.filter(|&mm| world.space.state(mm) == MmState::Live);
                left.extend(mm.map(|mm| (mm, tgid, tid)));
            }
        }
        left.sort_unstable();
        let (absent, left): (Vec<_>, Vec<_>) = left
            .into_iter()
            .partition(|(mm, ..)| self.described.contains(mm));
        let mut last = None;
        for (mm, tgid, tid) in left {
            if mm <= self.last_mm && last.replace(mm) != Some(mm) {
                let message = format!(
                    "the checkpoint lacks address space {}, in which thread {} of process {} is",
                    mm.0, tid.0, tgid.0
                );
                out.error(|| Draft::new(message).record(Cited::event(e)));
            }
        }
        absent
    }
}

/// Says that a description lacks a part of a mapping.
fn lacks(mm: Mm, mapping: &Mapping, from: u64, to: u64) -> Draft {
    let (start, end) = (mapping.start.max(from), mapping.end.min(to));
    let text = "caused that state";
    Draft::new(format!(
        "the description of address space {} lacks {start:#x}..{end:#x}, which events have mapped",
        mm.0
    ))
    .record(Cited::source(&mapping.changed, text))
}

impl Current {
    fn map(
        &mut self,
        e: &Event<'_>,
        map: &MapBody<'_>,
        space: &AddressSpace,
        world: &World,
        out: &mut Findings,
    ) {
        if map.start < self.next {
            let next = self.next;
            out.error(|| {
                Draft::new(format!(
                    "describes {:#x}..{:#x} of address space {} after what lies up to {next:#x}",
                    map.start, map.end, e.mm.0
                ))
                .record(Cited::event(e))
            });
            return;
        }
        if let Some(before) = self.rest.filter(|m| m.start.max(self.next) < map.start) {
            out.error(|| lacks(e.mm, &before, self.next, map.start).related(Some(Cited::event(e))));
        }
        let mut at = map.start;
        while at < map.end {
            let Some(mapping) = space.find(at) else {
                let next = space.neighbours(at).1.map_or(map.end, |m| m.start);
                let end = next.min(map.end);
                out.error(|| {
                    Draft::new(format!(
                        "describes {at:#x}..{end:#x} of address space {}, where events have mapped \
                         nothing",
                        e.mm.0
                    ))
                    .record(Cited::event(e))
                    .related(
                        space
                            .last_removal(at)
                            .map(|r| Cited::source(&r.by, "removed it")),
                    )
                });
                at = end;
                continue;
            };
            let end = mapping.end.min(map.end);
            if let Some(what) = difference(&world.space, &mapping, map) {
                out.error(|| {
                    Draft::new(format!(
                        "describes {at:#x}..{end:#x} of address space {} with another {what} than \
                         events have given it",
                        e.mm.0
                    ))
                    .record(Cited::event(e))
                    .related(Some(Cited::source(&mapping.changed, "caused that state")))
                });
            }
            at = end;
        }
        self.next = map.end;
        self.rest = first_from(space, map.end);
    }
}

impl Checkpoint {
    /// Another checkpoint begins: the threads that the last one lacks must be gone.
    fn lacked(&mut self, out: &mut Findings) {
        for (_, _, message, cited) in self.early.drain(..) {
            out.error(|| Draft::new(message).record(cited));
        }
        for (mm, tgid, tid) in self.absent.drain(..) {
            if self
                .threads
                .get(&tgid)
                .is_some_and(|all| all.contains(&tid))
            {
                let message = format!(
                    "the checkpoint lacks thread {} of process {} in address space {}",
                    tid.0, tgid.0, mm.0
                );
                let end = self.absent_from.clone();
                out.error(|| Draft::new(message).related(end));
            }
        }
    }

    /// Follows which threads there are.
    fn follow(&mut self, e: &Event<'_>) {
        let made = match e.body {
            Body::Fork {
                child_tid,
                child_tgid,
                ..
            } => (child_tgid, child_tid),
            Body::Task { tid, tgid, .. } => (tgid, tid),
            Body::Exec { .. } => {
                // All other threads of the process are gone, and one may have left its id.
                self.threads.remove(&e.tgid);
                (e.tgid, e.tid)
            }
            Body::Exit { .. } => {
                if let Some(threads) = self.threads.get_mut(&e.tgid) {
                    threads.retain(|&tid| tid != e.tid);
                    if threads.is_empty() {
                        self.threads.remove(&e.tgid);
                    }
                }
                return;
            }
            Body::SnapBegin => {
                self.threads.clear();
                return;
            }
            _ => return,
        };
        let mm = match e.body {
            Body::Fork { child_mm, .. } => child_mm,
            _ => e.mm,
        };
        let early = match &mut self.making {
            Some(making) => &mut making.early,
            None => &mut self.early,
        };
        early.retain(|early| (early.0, early.1) != (made.1, mm));
        let threads = self.threads.entry(made.0).or_default();
        if !threads.contains(&made.1) {
            threads.push(made.1);
        }
        if let Some(making) = &mut self.making {
            making.made.insert(made.1);
        }
    }
}

impl Rule for Checkpoint {
    fn id(&self) -> &'static str {
        "checkpoint"
    }

    fn about(&self) -> &'static str {
        "what a checkpoint describes is what the events before it have made: mappings, sets and \
         tasks; and the description of a piece is complete"
    }

    fn begin(&mut self, trace: &Trace, _out: &mut Findings) {
        let index = trace.index();
        self.blind = if index.end.as_ref().is_none_or(|e| e.status.lost() > 0) {
            Some("the trace has losses or no end")
        } else if !index.damage.is_empty() {
            Some("the trace is damaged")
        } else if trace.is_partial() {
            Some("the file is the part of one process")
        } else {
            None
        };
    }

    fn damage(&mut self, _damage: &Damage, _out: &mut Findings) {
        self.blind = Some("the trace is damaged");
    }

    fn event(&mut self, e: &Event<'_>, world: &World, _issues: &[Issue], out: &mut Findings) {
        match e.body {
            Body::SnapBegin if e.is_state() => self.description.0 = true,
            Body::SnapEnd if e.is_state() => self.description.1 = true,
            _ => {}
        }
        self.undescribed += u64::from(e.aside == Some(NoNews::Undescribed));
        if let Some(why) = self.blind {
            if matches!(e.body, Body::CheckpointEnd) {
                out.note(|| {
                    Draft::new(format!("not applied: {why}, so events may be missing"))
                        .record(Cited::event(e))
                });
            }
            return;
        }
        self.follow(e);
        if matches!(e.body, Body::Checkpoint { .. }) {
            self.lacked(out);
        }
        let Some(making) = &mut self.making else {
            if let Body::Checkpoint { last_mm } = e.body {
                self.making = Some(Making {
                    last_mm,
                    current: None,
                    described: FxHashSet::default(),
                    tasks: FxHashSet::default(),
                    made: FxHashSet::default(),
                    early: Vec::new(),
                });
            }
            return;
        };
        match (&e.body, e.said()) {
            // The one before was given up.
            (Body::Checkpoint { .. }, _) => {
                self.making = None;
                self.event(e, world, &[], out);
            }
            (Body::CheckpointEnd, _) => {
                making.close(world, out);
                self.absent = making.end(e, &self.threads, world, out);
                self.early = std::mem::take(&mut making.early);
                self.absent_from = Some(Cited::event(e));
                self.making = None;
            }
            (Body::Aside, said) if e.aside == Some(NoNews::Repeats) => match said {
                Body::Task { .. } => making.task(e, world, out),
                Body::Set { .. } | Body::Map(_) => making.describe(e, world, out),
                _ => {}
            },
            // It ends the description, if it is about the address space.
            (Body::Map(_) | Body::Unmap { .. } | Body::Move { .. } | Body::MmEnd, _)
                if making.current.as_ref().is_some_and(|c| c.mm == e.mm) =>
            {
                making.close(world, out);
            }
            _ => {}
        }
    }

    fn finish(&mut self, trace: &Trace, _outcome: &Outcome, out: &mut Findings) {
        if self.undescribed > 0 {
            out.note(|| {
                Draft::new(format!(
                    "{} events are about address spaces that were ending when the piece began, so \
                     nothing describes them; they are left out",
                    self.undescribed
                ))
            });
        }
        for (_, _, message, cited) in self.early.drain(..) {
            out.note(|| Draft::new(message).record(cited));
        }
        for (mm, tgid, tid) in self.absent.drain(..) {
            let threads = self.threads.get(&tgid);
            if threads.is_some_and(|all| all.contains(&tid)) {
                out.note(|| {
                    Draft::new(format!(
                        "the last checkpoint lacks thread {} of process {} in address space {}, \
                         which was perhaps about to exit",
                        tid.0, tgid.0, mm.0
                    ))
                });
            }
        }
        let is_checkpoint = trace.piece().is_some_and(|piece| piece.is_checkpoint);
        if is_checkpoint && self.description != (true, true) {
            out.error(|| {
                Draft::new(
                    "the description of what existed when the piece began is not complete: events \
                     of its checkpoint are missing",
                )
            });
        }
    }
}
