//! Events: what the kernel did to tasks, address spaces and files.

use super::{Fields, c_text, prefix};
use crate::units::{Mm, VirtPage};
use rust_mm_trace::uapi;
use std::mem::offset_of;

/// `struct vmtrace_event` with its payload.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// VMTRACE_EV_*.
    pub kind: u16,
    /// VMTRACE_EVF_*.
    pub flags: u32,
    /// Sequence number.
    pub seq: u64,
    /// Time, ns.
    pub time: u64,
    /// Thread that caused it.
    pub tid: u32,
    /// Its process.
    pub tgid: u32,
    /// Address space it is about; 0 if none.
    pub mm: Mm,
    /// Where it happened.
    pub cpu: u32,
    /// What it says.
    pub payload: Payload<'a>,
}

/// The payload by type.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[allow(missing_docs)] // One per VMTRACE_EV_*.
pub enum Payload<'a> {
    Map(MapEvent<'a>),
    Unmap(RangeEvent),
    Move(MoveEvent),
    Protect(RangeEvent),
    Advise(RangeEvent),
    Cow(PageEvent),
    MmDup {
        parent: Mm,
    },
    MmEnd,
    Fork(ForkEvent),
    Exec(ExecEvent<'a>),
    Exit(ExitEvent),
    Task(TaskEvent),
    Switch {
        prev: u32,
        next: u32,
    },
    Cgroup {
        id: u64,
        name: &'a [u8],
    },
    Shm(ShmEvent),
    File(FileEvent<'a>),
    Io(IoEvent),
    /// Swap, KSM, migration, GUP.
    Page(PageEvent),
    /// Uncovered, loss.
    Range(RangeEvent),
    SnapBegin,
    SnapEnd,
    /// A type this program does not know: skipped, never an error.
    Unknown,
}

/// `struct vmtrace_ev_map`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct MapEvent<'a> {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    pub dev: u64,
    pub ino: u64,
    pub generation: u32,
    pub prot: u32,
    pub flags: u32,
    pub kind: u16,
    pub cause: u16,
    pub name: &'a [u8],
}

/// `struct vmtrace_ev_range`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct RangeEvent {
    pub start: u64,
    pub end: u64,
    pub arg: u64,
}

/// `struct vmtrace_ev_move`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct MoveEvent {
    pub old_start: u64,
    pub old_len: u64,
    pub new_start: u64,
    pub new_len: u64,
    pub flags: u64,
}

/// `struct vmtrace_ev_page`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct PageEvent {
    pub page: VirtPage,
    pub old_pfn: u64,
    pub new_pfn: u64,
    pub arg: u64,
}

/// `struct vmtrace_ev_fork`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct ForkEvent {
    pub child_tid: u32,
    pub child_tgid: u32,
    pub child_mm: Mm,
    pub clone_flags: u64,
}

/// `struct vmtrace_ev_exec`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct ExecEvent<'a> {
    pub old_mm: Mm,
    pub dev: u64,
    pub ino: u64,
    pub comm: &'a [u8],
    pub name: &'a [u8],
}

/// `struct vmtrace_ev_exit`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct ExitEvent {
    pub utime: u64,
    pub stime: u64,
    pub code: i32,
}

/// `struct vmtrace_ev_task`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct TaskEvent {
    pub tid: u32,
    pub tgid: u32,
    pub parent: u32,
    pub comm: [u8; 16],
}

/// `struct vmtrace_ev_shm`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct ShmEvent {
    pub start: u64,
    pub end: u64,
    pub dev: u64,
    pub ino: u64,
    pub shmid: i32,
}

/// `struct vmtrace_ev_file`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct FileEvent<'a> {
    pub dev: u64,
    pub ino: u64,
    pub length: u64,
    pub generation: u32,
    pub kind: u32,
    pub name: &'a [u8],
}

/// `struct vmtrace_ev_io`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct IoEvent {
    pub dev: u64,
    pub ino: u64,
    pub offset: u64,
    pub bytes: u64,
    pub generation: u32,
}

/// The name of an event type.
pub fn event_name(kind: u16) -> &'static str {
    match u32::from(kind) {
        uapi::VMTRACE_EV_MAP => "map",
        uapi::VMTRACE_EV_UNMAP => "unmap",
        uapi::VMTRACE_EV_MOVE => "move",
        uapi::VMTRACE_EV_PROTECT => "protect",
        uapi::VMTRACE_EV_ADVISE => "advise",
        uapi::VMTRACE_EV_COW => "cow",
        uapi::VMTRACE_EV_MM_DUP => "mm-dup",
        uapi::VMTRACE_EV_MM_END => "mm-end",
        uapi::VMTRACE_EV_FORK => "fork",
        uapi::VMTRACE_EV_EXEC => "exec",
        uapi::VMTRACE_EV_EXIT => "exit",
        uapi::VMTRACE_EV_TASK => "task",
        uapi::VMTRACE_EV_SWITCH => "switch",
        uapi::VMTRACE_EV_CGROUP => "cgroup",
        uapi::VMTRACE_EV_SHMAT => "shmat",
        uapi::VMTRACE_EV_SHMDT => "shmdt",
        uapi::VMTRACE_EV_SHM_DESTROY => "shm-destroy",
        uapi::VMTRACE_EV_OPEN => "open",
        uapi::VMTRACE_EV_CLOSE => "close",
        uapi::VMTRACE_EV_READ => "read",
        uapi::VMTRACE_EV_WRITE => "write",
        uapi::VMTRACE_EV_TRUNCATE => "truncate",
        uapi::VMTRACE_EV_PUNCH => "punch",
        uapi::VMTRACE_EV_DELETE => "delete",
        uapi::VMTRACE_EV_SWAP_IN => "swap-in",
        uapi::VMTRACE_EV_SWAP_OUT => "swap-out",
        uapi::VMTRACE_EV_KSM => "ksm",
        uapi::VMTRACE_EV_MIGRATE => "migrate",
        uapi::VMTRACE_EV_GUP => "gup",
        uapi::VMTRACE_EV_UNCOVERED => "uncovered",
        uapi::VMTRACE_EV_LOSS => "loss",
        uapi::VMTRACE_EV_SNAP_BEGIN => "snapshot-begin",
        uapi::VMTRACE_EV_SNAP_END => "snapshot-end",
        _ => "unknown",
    }
}

/// Why bytes are no event record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BadEvent {
    /// Fewer bytes than a head.
    Short,
    /// A size below the head's, past the end of the content or not a multiple
    /// of 8.
    Size(u16),
    /// A payload or name longer than the record.
    Payload(u16),
}

/// Decodes the event at the start of `content`; gives it and its size.
pub(super) fn decode(content: &[u8]) -> Result<(Event<'_>, usize), BadEvent> {
    use uapi::vmtrace_event as E;
    let b = prefix::<E>(content).ok_or(BadEvent::Short)?;
    let kind = b.u16_at(offset_of!(E, type_));
    let size = b.u16_at(offset_of!(E, size));
    let len = usize::from(size);
    if len < size_of::<E>() || len % 8 != 0 {
        return Err(BadEvent::Size(size));
    }
    let whole = content.get(..len).ok_or(BadEvent::Size(size))?;
    let payload =
        payload(u32::from(kind), &whole[size_of::<E>()..]).ok_or(BadEvent::Payload(kind))?;
    let event = Event {
        kind,
        flags: b.u32_at(offset_of!(E, flags)),
        seq: b.u64_at(offset_of!(E, seq)),
        time: b.u64_at(offset_of!(E, time)),
        tid: b.u32_at(offset_of!(E, tid)),
        tgid: b.u32_at(offset_of!(E, tgid)),
        mm: Mm(b.u32_at(offset_of!(E, mm))),
        cpu: b.u32_at(offset_of!(E, cpu)),
        payload,
    };
    Ok((event, len))
}

/// The name behind a payload of type `T`.
fn name<T>(b: &[u8], len: u32) -> Option<&[u8]> {
    b.get(size_of::<T>()..)?.get(..len as usize)
}

fn payload(kind: u32, b: &[u8]) -> Option<Payload<'_>> {
    Some(match kind {
        uapi::VMTRACE_EV_MAP => Payload::Map(map(b)?),
        uapi::VMTRACE_EV_UNMAP => Payload::Unmap(range(b)?),
        uapi::VMTRACE_EV_PROTECT => Payload::Protect(range(b)?),
        uapi::VMTRACE_EV_ADVISE => Payload::Advise(range(b)?),
        uapi::VMTRACE_EV_UNCOVERED | uapi::VMTRACE_EV_LOSS => Payload::Range(range(b)?),
        uapi::VMTRACE_EV_MOVE => {
            use uapi::vmtrace_ev_move as T;
            let b = prefix::<T>(b)?;
            Payload::Move(MoveEvent {
                old_start: b.u64_at(offset_of!(T, old_start)),
                old_len: b.u64_at(offset_of!(T, old_len)),
                new_start: b.u64_at(offset_of!(T, new_start)),
                new_len: b.u64_at(offset_of!(T, new_len)),
                flags: b.u64_at(offset_of!(T, flags)),
            })
        }
        uapi::VMTRACE_EV_COW => Payload::Cow(page(b)?),
        uapi::VMTRACE_EV_SWAP_IN
        | uapi::VMTRACE_EV_SWAP_OUT
        | uapi::VMTRACE_EV_KSM
        | uapi::VMTRACE_EV_MIGRATE
        | uapi::VMTRACE_EV_GUP => Payload::Page(page(b)?),
        uapi::VMTRACE_EV_MM_DUP => {
            use uapi::vmtrace_ev_mm_dup as T;
            let b = prefix::<T>(b)?;
            Payload::MmDup {
                parent: Mm(b.u32_at(offset_of!(T, parent))),
            }
        }
        uapi::VMTRACE_EV_MM_END => Payload::MmEnd,
        uapi::VMTRACE_EV_FORK => {
            use uapi::vmtrace_ev_fork as T;
            let b = prefix::<T>(b)?;
            Payload::Fork(ForkEvent {
                child_tid: b.u32_at(offset_of!(T, child_tid)),
                child_tgid: b.u32_at(offset_of!(T, child_tgid)),
                child_mm: Mm(b.u32_at(offset_of!(T, child_mm))),
                clone_flags: b.u64_at(offset_of!(T, clone_flags)),
            })
        }
        uapi::VMTRACE_EV_EXEC => {
            use uapi::vmtrace_ev_exec as T;
            let h = prefix::<T>(b)?;
            Payload::Exec(ExecEvent {
                old_mm: Mm(h.u32_at(offset_of!(T, old_mm))),
                dev: h.u64_at(offset_of!(T, dev)),
                ino: h.u64_at(offset_of!(T, ino)),
                comm: h.get(offset_of!(T, comm)..offset_of!(T, comm) + 16)?,
                name: name::<T>(b, h.u32_at(offset_of!(T, name_len)))?,
            })
        }
        uapi::VMTRACE_EV_EXIT => {
            use uapi::vmtrace_ev_exit as T;
            let b = prefix::<T>(b)?;
            Payload::Exit(ExitEvent {
                utime: b.u64_at(offset_of!(T, utime)),
                stime: b.u64_at(offset_of!(T, stime)),
                code: b.u32_at(offset_of!(T, code)) as i32,
            })
        }
        uapi::VMTRACE_EV_TASK => {
            use uapi::vmtrace_ev_task as T;
            let b = prefix::<T>(b)?;
            let mut comm = [0; 16];
            comm.copy_from_slice(b.get(offset_of!(T, comm)..offset_of!(T, comm) + 16)?);
            Payload::Task(TaskEvent {
                tid: b.u32_at(offset_of!(T, tid)),
                tgid: b.u32_at(offset_of!(T, tgid)),
                parent: b.u32_at(offset_of!(T, parent)),
                comm,
            })
        }
        uapi::VMTRACE_EV_SWITCH => {
            use uapi::vmtrace_ev_switch as T;
            let b = prefix::<T>(b)?;
            Payload::Switch {
                prev: b.u32_at(offset_of!(T, prev)),
                next: b.u32_at(offset_of!(T, next)),
            }
        }
        uapi::VMTRACE_EV_CGROUP => {
            use uapi::vmtrace_ev_name as T;
            let h = prefix::<T>(b)?;
            Payload::Cgroup {
                id: h.u64_at(offset_of!(T, id)),
                name: name::<T>(b, h.u32_at(offset_of!(T, name_len)))?,
            }
        }
        uapi::VMTRACE_EV_SHMAT | uapi::VMTRACE_EV_SHMDT | uapi::VMTRACE_EV_SHM_DESTROY => {
            use uapi::vmtrace_ev_shm as T;
            let b = prefix::<T>(b)?;
            Payload::Shm(ShmEvent {
                start: b.u64_at(offset_of!(T, start)),
                end: b.u64_at(offset_of!(T, end)),
                dev: b.u64_at(offset_of!(T, dev)),
                ino: b.u64_at(offset_of!(T, ino)),
                shmid: b.u32_at(offset_of!(T, shmid)) as i32,
            })
        }
        uapi::VMTRACE_EV_OPEN | uapi::VMTRACE_EV_CLOSE => {
            use uapi::vmtrace_ev_file as T;
            let h = prefix::<T>(b)?;
            Payload::File(FileEvent {
                dev: h.u64_at(offset_of!(T, dev)),
                ino: h.u64_at(offset_of!(T, ino)),
                length: h.u64_at(offset_of!(T, length)),
                generation: h.u32_at(offset_of!(T, generation)),
                kind: h.u32_at(offset_of!(T, kind)),
                name: name::<T>(b, h.u32_at(offset_of!(T, name_len)))?,
            })
        }
        uapi::VMTRACE_EV_READ
        | uapi::VMTRACE_EV_WRITE
        | uapi::VMTRACE_EV_TRUNCATE
        | uapi::VMTRACE_EV_PUNCH
        | uapi::VMTRACE_EV_DELETE => {
            use uapi::vmtrace_ev_io as T;
            let b = prefix::<T>(b)?;
            Payload::Io(IoEvent {
                dev: b.u64_at(offset_of!(T, dev)),
                ino: b.u64_at(offset_of!(T, ino)),
                offset: b.u64_at(offset_of!(T, offset)),
                bytes: b.u64_at(offset_of!(T, bytes)),
                generation: b.u32_at(offset_of!(T, generation)),
            })
        }
        uapi::VMTRACE_EV_SNAP_BEGIN => Payload::SnapBegin,
        uapi::VMTRACE_EV_SNAP_END => Payload::SnapEnd,
        _ => Payload::Unknown,
    })
}

fn range(b: &[u8]) -> Option<RangeEvent> {
    use uapi::vmtrace_ev_range as T;
    let b = prefix::<T>(b)?;
    Some(RangeEvent {
        start: b.u64_at(offset_of!(T, start)),
        end: b.u64_at(offset_of!(T, end)),
        arg: b.u64_at(offset_of!(T, arg)),
    })
}

fn page(b: &[u8]) -> Option<PageEvent> {
    use uapi::vmtrace_ev_page as T;
    let b = prefix::<T>(b)?;
    Some(PageEvent {
        page: VirtPage(b.u64_at(offset_of!(T, page))),
        old_pfn: b.u64_at(offset_of!(T, old_pfn)),
        new_pfn: b.u64_at(offset_of!(T, new_pfn)),
        arg: b.u64_at(offset_of!(T, arg)),
    })
}

fn map(b: &[u8]) -> Option<MapEvent<'_>> {
    use uapi::vmtrace_ev_map as T;
    let h = prefix::<T>(b)?;
    Some(MapEvent {
        start: h.u64_at(offset_of!(T, start)),
        end: h.u64_at(offset_of!(T, end)),
        offset: h.u64_at(offset_of!(T, offset)),
        dev: h.u64_at(offset_of!(T, dev)),
        ino: h.u64_at(offset_of!(T, ino)),
        generation: h.u32_at(offset_of!(T, generation)),
        prot: h.u32_at(offset_of!(T, prot)),
        flags: h.u32_at(offset_of!(T, flags)),
        kind: h.u16_at(offset_of!(T, kind)),
        cause: h.u16_at(offset_of!(T, cause)),
        name: name::<T>(b, h.u32_at(offset_of!(T, name_len)))?,
    })
}

impl TaskEvent {
    /// The task's name.
    pub fn comm_text(&self) -> String {
        c_text(&self.comm)
    }
}

impl ExecEvent<'_> {
    /// The task's new name.
    pub fn comm_text(&self) -> String {
        c_text(self.comm)
    }
}
