//! Events: what changed an address space, and what else happened.

use std::mem::offset_of;

use byteorder::{ByteOrder, LittleEndian as LE};
use rust_mm_trace::events;
use rust_mm_trace::uapi;
use serde::Serialize;

use super::{EVENT_SIZE, Header, MOST};
use crate::trace::fields::Fields;
use crate::units::{Mm, Prot, Tid};

/// An event record.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Where the record lies in the file.
    pub offset: u64,
    /// `VMTRACE_EV_*`.
    pub number: u16,
    /// `VMTRACE_EVF_*`.
    pub flags: u32,
    /// Global sequence number.
    pub seq: u64,
    /// When it happened.
    pub time_ns: u64,
    /// The thread that caused it.
    pub tid: Tid,
    /// Its process.
    pub tgid: Tid,
    /// The address space that it is about, 0 if none.
    pub mm: Mm,
    /// Where it happened.
    pub cpu: u32,
    /// The thread's virtual time, in ticks, if the trace has it.
    pub vtime: Option<u64>,
    /// The rest.
    pub body: Body<'a>,
    /// Why the event is no news, if it is none. Then [`Event::body`] is [`Body::Aside`], so that nobody
    /// follows what it says, and [`Event::said`] is that.
    pub aside: Option<NoNews>,
    /// Its own fields, as they are in the trace.
    pub(crate) payload: &'a [u8],
    /// All of it, as it is in the trace.
    pub(crate) raw: &'a [u8],
}

/// Why an event is no news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoNews {
    /// It is of a checkpoint: it describes what earlier events have recorded.
    Repeats,
    /// It is about an address space that was ending when the piece began, so no description has that
    /// address space.
    Undescribed,
}

impl<'a> Event<'a> {
    /// Whether the event describes something that existed before tracing began.
    pub fn is_snapshot(&self) -> bool {
        self.flags & uapi::VMTRACE_EVF_SNAPSHOT != 0
    }

    /// What the event says, also if that is no news.
    pub fn said(&self) -> Body<'a> {
        match self.aside {
            None => self.body,
            // It could be decoded before.
            Some(_) => decode_body(self.number, self.payload).unwrap_or(Body::Unknown),
        }
    }

    /// The same event, as one that is no news.
    pub(in crate::trace) fn set_aside(self, why: NoNews) -> Self {
        Event {
            body: Body::Aside,
            aside: Some(why),
            ..self
        }
    }

    /// Whether it is of the description of a piece. It has no sequence number of its own then.
    pub fn is_state(&self) -> bool {
        self.flags & uapi::VMTRACE_EVF_STATE != 0
    }

    /// The event's name, as in `VMTRACE_EV_*`.
    pub fn name(&self) -> &'static str {
        event_name(self.number)
    }
}

/// A file, as the kernel knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FileId {
    /// Device: `major << 20 | minor`.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Generation of the inode.
    pub generation: u32,
}

/// The kind of object that a mapping maps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the UAPI header documents each value")]
pub enum MapKind {
    Anon,
    File,
    Shmem,
    Device,
    Special,
    Hugetlb,
    /// A value this version does not know.
    Unknown,
}

impl MapKind {
    /// `VMTRACE_MAP_*`; `None` if this version does not know it.
    pub fn number(self) -> Option<u32> {
        Some(match self {
            MapKind::Anon => uapi::VMTRACE_MAP_ANON,
            MapKind::File => uapi::VMTRACE_MAP_FILE,
            MapKind::Shmem => uapi::VMTRACE_MAP_SHMEM,
            MapKind::Device => uapi::VMTRACE_MAP_DEVICE,
            MapKind::Special => uapi::VMTRACE_MAP_SPECIAL,
            MapKind::Hugetlb => uapi::VMTRACE_MAP_HUGETLB,
            MapKind::Unknown => return None,
        })
    }

    /// In lower case.
    pub fn name(self) -> &'static str {
        match self {
            MapKind::Anon => "anon",
            MapKind::File => "file",
            MapKind::Shmem => "shmem",
            MapKind::Device => "device",
            MapKind::Special => "special",
            MapKind::Hugetlb => "hugetlb",
            MapKind::Unknown => "unknown",
        }
    }
}

/// An event's own fields.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the UAPI header documents each field")]
pub enum Body<'a> {
    Map(MapBody<'a>),
    Unmap {
        start: u64,
        end: u64,
    },
    Move {
        old_start: u64,
        old_len: u64,
        new_start: u64,
        new_len: u64,
        dontunmap: bool,
    },
    Protect {
        start: u64,
        end: u64,
        prot: Prot,
    },
    Advise {
        start: u64,
        end: u64,
        advice: u64,
    },
    /// The old frame is ~0 if there was none, as for the first write to a private page of a file.
    Cow(FrameBody),
    Gup {
        page: u64,
        pfn: u64,
        write: bool,
        long_term: bool,
    },
    SwapIn(SwapBody),
    SwapOut(SwapBody),
    Ksm(FrameBody),
    Migrate(FrameBody),
    /// Thread 0 is the idle task.
    Switch {
        prev: Tid,
        next: Tid,
    },
    MmDup {
        parent: Mm,
    },
    MmEnd,
    Fork {
        child_tid: Tid,
        child_tgid: Tid,
        child_mm: Mm,
        /// When it was made, ns.
        child_start: u64,
    },
    Exec {
        old_mm: Mm,
        file: FileId,
        comm: &'a [u8],
        name: &'a [u8],
    },
    Exit {
        utime_ns: u64,
        stime_ns: u64,
        code: i32,
    },
    Task {
        tid: Tid,
        tgid: Tid,
        /// The process of its parent; 0 if the trace does not say.
        parent: Tid,
        /// When it was made, ns.
        start: u64,
        comm: &'a [u8],
    },
    Cgroup {
        tid: Tid,
        tgid: Tid,
        path: &'a [u8],
    },
    Truncate {
        file: FileId,
        length: u64,
    },
    Punch {
        file: FileId,
        offset: u64,
        bytes: u64,
    },
    Delete {
        file: FileId,
        length: u64,
    },
    Open(FileBody<'a>),
    Close(FileBody<'a>),
    Read(IoBody),
    Write(IoBody),
    ShmAt(ShmBody),
    ShmDt(ShmBody),
    ShmDestroy(ShmBody),
    Resize {
        from: u32,
        to: u32,
    },
    /// The address space is in this EVMS from its beginning to its end.
    Set {
        set: u32,
        cgroup: u64,
    },
    SnapBegin,
    SnapEnd,
    /// What looks at a region have found since the last report.
    Region(RegionBody),
    /// From here on, the references are recorded that fit the expression. Without tests, all are.
    Filter {
        tests: u32,
        expr: &'a [u8],
    },
    /// References are recorded from here on.
    RefsBegin,
    /// A description begins of all that exists, by events that are asides. No address space has a
    /// greater number than this yet.
    Checkpoint {
        last_mm: Mm,
    },
    /// Everything was described.
    CheckpointEnd,
    /// No news: see [`Event::aside`].
    Aside,
    /// An event of a type that this version does not know.
    Unknown,
}

/// The kind of file of a descriptor: `VMTRACE_FILE_*`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the UAPI header documents each value")]
pub enum FileKind {
    Regular,
    Directory,
    Pipe,
    Socket,
    Char,
    Block,
    Other,
}

impl FileKind {
    fn decode(number: u32) -> Self {
        match number {
            uapi::VMTRACE_FILE_REGULAR => FileKind::Regular,
            uapi::VMTRACE_FILE_DIRECTORY => FileKind::Directory,
            uapi::VMTRACE_FILE_PIPE => FileKind::Pipe,
            uapi::VMTRACE_FILE_SOCKET => FileKind::Socket,
            uapi::VMTRACE_FILE_CHAR => FileKind::Char,
            uapi::VMTRACE_FILE_BLOCK => FileKind::Block,
            _ => FileKind::Other,
        }
    }

    /// In lower case.
    pub fn name(self) -> &'static str {
        match self {
            FileKind::Regular => "regular",
            FileKind::Directory => "directory",
            FileKind::Pipe => "pipe",
            FileKind::Socket => "socket",
            FileKind::Char => "char",
            FileKind::Block => "block",
            FileKind::Other => "other",
        }
    }
}

/// How bytes were read or written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the UAPI header documents each value")]
pub enum Call {
    Rw,
    Kernel,
    Sendfile,
    Copy,
    Splice,
    Tee,
    Vmsplice,
    Uring,
    Aio,
    Other,
}

impl Call {
    fn decode(number: u32) -> Self {
        match number {
            uapi::VMTRACE_CALL_RW => Call::Rw,
            uapi::VMTRACE_CALL_KERNEL => Call::Kernel,
            uapi::VMTRACE_CALL_SENDFILE => Call::Sendfile,
            uapi::VMTRACE_CALL_COPY => Call::Copy,
            uapi::VMTRACE_CALL_SPLICE => Call::Splice,
            uapi::VMTRACE_CALL_TEE => Call::Tee,
            uapi::VMTRACE_CALL_VMSPLICE => Call::Vmsplice,
            uapi::VMTRACE_CALL_URING => Call::Uring,
            uapi::VMTRACE_CALL_AIO => Call::Aio,
            _ => Call::Other,
        }
    }

    /// In lower case.
    pub fn name(self) -> &'static str {
        match self {
            Call::Rw => "rw",
            Call::Kernel => "kernel",
            Call::Sendfile => "sendfile",
            Call::Copy => "copy",
            Call::Splice => "splice",
            Call::Tee => "tee",
            Call::Vmsplice => "vmsplice",
            Call::Uring => "uring",
            Call::Aio => "aio",
            Call::Other => "other",
        }
    }
}

/// Fields of `struct vmtrace_ev_file`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the UAPI header documents each field")]
pub struct FileBody<'a> {
    pub file: FileId,
    pub length: u64,
    pub kind: FileKind,
    pub name: &'a [u8],
}

/// A page that was swapped out or in, from `struct vmtrace_ev_page`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapBody {
    /// Virtual page address.
    pub page: u64,
    /// The frame that it had, or has now.
    pub pfn: u64,
    /// Number of the swap area.
    pub area: u8,
    /// The page within the area.
    pub slot: u64,
}

/// A page that got another frame, from `struct vmtrace_ev_page`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameBody {
    /// Virtual page address.
    pub page: u64,
    /// The frame before.
    pub old_pfn: u64,
    /// The frame after.
    pub new_pfn: u64,
}

/// Fields of `struct vmtrace_ev_io`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the UAPI header documents each field")]
pub struct IoBody {
    pub file: FileId,
    pub offset: u64,
    pub bytes: u64,
    pub kind: FileKind,
    pub call: Call,
    /// Whether the descriptor bypasses the page cache.
    pub direct: bool,
}

/// Fields of `struct vmtrace_ev_shm`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the UAPI header documents each field")]
pub struct ShmBody {
    pub start: u64,
    pub end: u64,
    pub file: FileId,
    pub shmid: i32,
}

/// Fields of `struct vmtrace_ev_map`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the UAPI header documents each field")]
pub struct MapBody<'a> {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    pub file: FileId,
    pub prot: Prot,
    pub flags: u32,
    pub kind: MapKind,
    pub cause: u16,
    /// Bytes of a page, if they are not those of the header.
    pub huge: Option<u64>,
    pub name: &'a [u8],
}

/// Fields of `struct vmtrace_ev_region`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the UAPI header documents each field")]
pub struct RegionBody {
    pub start: u64,
    pub end: u64,
    pub looks: u32,
    pub accesses: u32,
    pub writes: u32,
    pub age: u32,
    pub cpus: u64,
    /// Of the region in its report, from 0.
    pub index: u32,
    /// Regions of the report.
    pub regions: u32,
}

/// The sizes that a huge page can have, by log2: those of any machine that Linux runs on.
const HUGE_SHIFTS: std::ops::RangeInclusive<u32> = 13..=39;

/// The name of an event's number, as in `VMTRACE_EV_*`.
pub fn event_name(number: u16) -> &'static str {
    events::NAMES
        .iter()
        .find(|(n, _)| *n == u32::from(number))
        .map_or("unknown", |(_, name)| name)
}

/// All names that [`event_name`] gives.
pub fn event_names() -> Vec<&'static str> {
    events::NAMES.iter().map(|(_, name)| *name).collect()
}

/// More bytes than the own fields of any type of event have, apart from names.
const MOST_FIELDS: usize = 256;

/// Gives the own fields of events of this name, all of them zero or empty: so a table of events can
/// be made before there is an event. An unknown name has none.
pub fn event_fields(name: &str, to: &mut dyn Fields) {
    let number = events::NAMES.iter().find(|(_, known)| *known == name);
    let number = number.and_then(|(number, _)| u16::try_from(*number).ok());
    if let Some(Ok(body)) = number.map(|number| decode_body(number, &[0; MOST_FIELDS])) {
        body.fields(to);
    }
}

/// Why an event record cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed(pub &'static str);

fn until_nul(b: &[u8]) -> &[u8] {
    &b[..b.iter().position(|&c| c == 0).unwrap_or(b.len())]
}

/// Marks an event without virtual time; bindgen makes it a signed number.
pub(crate) const NO_VTIME: u64 = uapi::VMTRACE_VTIME_NONE as u64;

/// The sequence number of the event at the start of `b`.
pub(crate) fn peek_event_seq(b: &[u8]) -> Option<u64> {
    (b.len() >= EVENT_SIZE).then(|| get!(b, uapi::vmtrace_event, seq, u64))
}

/// The time of the event at the start of `b`.
pub(crate) fn peek_event_time(b: &[u8]) -> Option<u64> {
    (b.len() >= EVENT_SIZE).then(|| get!(b, uapi::vmtrace_event, time, u64))
}

/// Decodes the event at the start of `b`, in a trace with this header. Also returns the size
/// of the event.
pub(crate) fn decode_event<'b>(
    b: &'b [u8],
    offset: u64,
    header: &Header,
) -> Result<(Event<'b>, usize), Malformed> {
    type E = uapi::vmtrace_event;
    let head_size = header.event_head_size();
    if b.len() < head_size {
        return Err(Malformed("the content ends inside an event's head"));
    }
    let size = usize::from(get!(b, E, size, u16));
    if size < head_size || size % 8 != 0 {
        return Err(Malformed("an event's size is impossible"));
    }
    if size > b.len() {
        return Err(Malformed("an event is longer than the rest of its packet"));
    }
    let number = get!(b, E, type_, u16);
    let (seq, time_ns, cpu) = (
        get!(b, E, seq, u64),
        get!(b, E, time, u64),
        get!(b, E, cpu, u32),
    );
    if seq > MOST || time_ns > MOST || cpu >= header.nr_cpus {
        return Err(Malformed(
            "an event with an impossible sequence number, time or CPU",
        ));
    }
    let vtime = b[EVENT_SIZE..head_size]
        .first_chunk()
        .map(|raw| u64::from_le_bytes(*raw));
    let payload = &b[head_size..size];
    let body = decode_body(number, payload)?;
    let event = Event {
        offset,
        number,
        flags: get!(b, E, flags, u32),
        seq,
        time_ns,
        tid: Tid(get!(b, E, tid, u32)),
        tgid: Tid(get!(b, E, tgid, u32)),
        mm: Mm(get!(b, E, mm, u32)),
        cpu,
        vtime: vtime.filter(|&ticks| ticks != NO_VTIME),
        body,
        aside: None,
        payload,
        raw: &b[..size],
    };
    let repeats = event.flags & uapi::VMTRACE_EVF_CHECKPOINT != 0
        && !matches!(body, Body::Checkpoint { .. } | Body::CheckpointEnd);
    let event = match repeats {
        true => event.set_aside(NoNews::Repeats),
        false => event,
    };
    Ok((event, size))
}

fn decode_body(number: u16, p: &[u8]) -> Result<Body<'_>, Malformed> {
    let need = |len: usize| {
        if p.len() < len {
            Err(Malformed("an event is shorter than its type needs"))
        } else {
            Ok(())
        }
    };
    let name = |at: usize, len: u32| {
        if len > uapi::VMTRACE_NAME_MAX {
            return Err(Malformed("an event's name is longer than names can be"));
        }
        p.get(at..)
            .and_then(|rest| rest.get(..len as usize))
            .ok_or(Malformed("an event's name is longer than the event"))
    };
    let address = |at: u64| match at {
        0..=MOST => Ok(at),
        _ => Err(Malformed("an address that no process can use")),
    };
    let range = || {
        type R = uapi::vmtrace_ev_range;
        need(size_of::<R>())?;
        let (start, end) = (get!(p, R, start, u64), get!(p, R, end, u64));
        if start > end || end > MOST {
            return Err(Malformed(
                "a range ends before it starts, or has addresses that no process can use",
            ));
        }
        Ok((start, end, get!(p, R, arg, u64)))
    };
    let io = || {
        type I = uapi::vmtrace_ev_io;
        need(size_of::<I>())?;
        Ok(IoBody {
            file: FileId {
                dev: get!(p, I, dev, u64),
                ino: get!(p, I, ino, u64),
                generation: get!(p, I, generation, u32),
            },
            offset: get!(p, I, offset, u64),
            bytes: get!(p, I, bytes, u64),
            kind: FileKind::decode(get!(p, I, kind, u16).into()),
            call: Call::decode(p[offset_of!(I, call)].into()),
            direct: u32::from(p[offset_of!(I, flags)]) & uapi::VMTRACE_IO_DIRECT != 0,
        })
    };
    let file = || {
        type F = uapi::vmtrace_ev_file;
        need(size_of::<F>())?;
        Ok(FileBody {
            file: FileId {
                dev: get!(p, F, dev, u64),
                ino: get!(p, F, ino, u64),
                generation: get!(p, F, generation, u32),
            },
            length: get!(p, F, length, u64),
            kind: FileKind::decode(get!(p, F, kind, u32)),
            name: name(size_of::<F>(), get!(p, F, name_len, u32))?,
        })
    };
    let shm = || {
        type S = uapi::vmtrace_ev_shm;
        need(size_of::<S>())?;
        Ok(ShmBody {
            start: address(get!(p, S, start, u64))?,
            end: address(get!(p, S, end, u64))?,
            file: FileId {
                dev: get!(p, S, dev, u64),
                ino: get!(p, S, ino, u64),
                generation: get!(p, S, generation, u32),
            },
            shmid: get!(p, S, shmid, i32),
        })
    };
    let frame = || {
        type P = uapi::vmtrace_ev_page;
        need(size_of::<P>())?;
        Ok(FrameBody {
            page: address(get!(p, P, page, u64))?,
            old_pfn: get!(p, P, old_pfn, u64),
            new_pfn: get!(p, P, new_pfn, u64),
        })
    };
    let swap = |pfn: fn(&FrameBody) -> u64| {
        let frame = frame()?;
        let arg = get!(p, uapi::vmtrace_ev_page, arg, u64);
        Ok(SwapBody {
            page: frame.page,
            pfn: pfn(&frame),
            area: (arg >> uapi::VMTRACE_SWAP_AREA_SHIFT) as u8,
            slot: arg & ((1 << uapi::VMTRACE_SWAP_AREA_SHIFT) - 1),
        })
    };
    Ok(match u32::from(number) {
        uapi::VMTRACE_EV_MAP => {
            type M = uapi::vmtrace_ev_map;
            need(size_of::<M>())?;
            let (start, end) = (get!(p, M, start, u64), get!(p, M, end, u64));
            if start > end || end > MOST {
                return Err(Malformed(
                    "a mapping ends before it starts, or has addresses that no process can use",
                ));
            }
            let flags = get!(p, M, flags, u32);
            let huge = match (flags & uapi::VMTRACE_MAP_PAGE) >> uapi::VMTRACE_MAP_PAGE_SHIFT {
                0 => None,
                shift if HUGE_SHIFTS.contains(&shift) => Some(1 << shift),
                _ => return Err(Malformed("a mapping whose pages have an impossible size")),
            };
            Body::Map(MapBody {
                start,
                end,
                offset: get!(p, M, offset, u64),
                file: FileId {
                    dev: get!(p, M, dev, u64),
                    ino: get!(p, M, ino, u64),
                    generation: get!(p, M, generation, u32),
                },
                prot: Prot((get!(p, M, prot, u32) & 7) as u8),
                flags,
                kind: match u32::from(get!(p, M, kind, u16)) {
                    uapi::VMTRACE_MAP_ANON => MapKind::Anon,
                    uapi::VMTRACE_MAP_FILE => MapKind::File,
                    uapi::VMTRACE_MAP_SHMEM => MapKind::Shmem,
                    uapi::VMTRACE_MAP_DEVICE => MapKind::Device,
                    uapi::VMTRACE_MAP_SPECIAL => MapKind::Special,
                    uapi::VMTRACE_MAP_HUGETLB => MapKind::Hugetlb,
                    _ => MapKind::Unknown,
                },
                cause: get!(p, M, cause, u16),
                huge,
                name: name(size_of::<M>(), get!(p, M, name_len, u32))?,
            })
        }
        uapi::VMTRACE_EV_UNMAP => {
            let (start, end, _) = range()?;
            Body::Unmap { start, end }
        }
        uapi::VMTRACE_EV_MOVE => {
            type M = uapi::vmtrace_ev_move;
            need(size_of::<M>())?;
            let body = (
                get!(p, M, old_start, u64),
                get!(p, M, old_len, u64),
                get!(p, M, new_start, u64),
                get!(p, M, new_len, u64),
            );
            let end = |start: u64, len| start.checked_add(len).filter(|&end| end <= MOST);
            if end(body.0, body.1).is_none() || end(body.2, body.3).is_none() {
                return Err(Malformed(
                    "a move from or to addresses that no process can use",
                ));
            }
            Body::Move {
                old_start: body.0,
                old_len: body.1,
                new_start: body.2,
                new_len: body.3,
                dontunmap: get!(p, M, flags, u64) & u64::from(uapi::VMTRACE_MOVE_DONTUNMAP) != 0,
            }
        }
        uapi::VMTRACE_EV_PROTECT => {
            let (start, end, arg) = range()?;
            Body::Protect {
                start,
                end,
                prot: Prot((arg & 7) as u8),
            }
        }
        uapi::VMTRACE_EV_ADVISE => {
            let (start, end, advice) = range()?;
            Body::Advise { start, end, advice }
        }
        uapi::VMTRACE_EV_RESIZE => {
            need(size_of::<uapi::vmtrace_ev_resize>())?;
            Body::Resize {
                from: get!(p, uapi::vmtrace_ev_resize, from, u32),
                to: get!(p, uapi::vmtrace_ev_resize, to, u32),
            }
        }
        uapi::VMTRACE_EV_SET => {
            need(size_of::<uapi::vmtrace_ev_set>())?;
            Body::Set {
                set: get!(p, uapi::vmtrace_ev_set, set, u32),
                cgroup: get!(p, uapi::vmtrace_ev_set, cgroup, u64),
            }
        }
        uapi::VMTRACE_EV_FILTER => {
            type F = uapi::vmtrace_ev_filter;
            need(size_of::<F>())?;
            let len = get!(p, F, expr_len, u32);
            if len > uapi::VMTRACE_FILTER_EXPR {
                return Err(Malformed(
                    "a filter's expression is longer than expressions can be",
                ));
            }
            let expr = p[size_of::<F>()..].get(..len as usize);
            Body::Filter {
                tests: get!(p, F, nr_tests, u32),
                expr: expr.ok_or(Malformed("a filter's expression is longer than the event"))?,
            }
        }
        uapi::VMTRACE_EV_REGION => {
            type R = uapi::vmtrace_ev_region;
            need(size_of::<R>())?;
            let (start, end) = (get!(p, R, start, u64), get!(p, R, end, u64));
            if start > end || end > MOST {
                return Err(Malformed(
                    "a region ends before it starts, or has addresses that no process can use",
                ));
            }
            Body::Region(RegionBody {
                start,
                end,
                looks: get!(p, R, looks, u32),
                accesses: get!(p, R, accesses, u32),
                writes: get!(p, R, writes, u32),
                age: get!(p, R, age, u32),
                cpus: get!(p, R, cpus, u64),
                index: get!(p, R, index, u32),
                regions: get!(p, R, regions, u32),
            })
        }
        uapi::VMTRACE_EV_COW => Body::Cow(frame()?),
        uapi::VMTRACE_EV_GUP => {
            type P = uapi::vmtrace_ev_page;
            need(size_of::<P>())?;
            let arg = get!(p, P, arg, u64);
            Body::Gup {
                page: address(get!(p, P, page, u64))?,
                pfn: get!(p, P, new_pfn, u64),
                write: arg & u64::from(uapi::VMTRACE_GUP_WRITE) != 0,
                long_term: arg & u64::from(uapi::VMTRACE_GUP_LONGTERM) != 0,
            }
        }
        uapi::VMTRACE_EV_SWAP_IN => Body::SwapIn(swap(|f| f.new_pfn)?),
        uapi::VMTRACE_EV_SWAP_OUT => Body::SwapOut(swap(|f| f.old_pfn)?),
        uapi::VMTRACE_EV_KSM => Body::Ksm(frame()?),
        uapi::VMTRACE_EV_MIGRATE => Body::Migrate(frame()?),
        uapi::VMTRACE_EV_SWITCH => {
            need(size_of::<uapi::vmtrace_ev_switch>())?;
            Body::Switch {
                prev: Tid(get!(p, uapi::vmtrace_ev_switch, prev, u32)),
                next: Tid(get!(p, uapi::vmtrace_ev_switch, next, u32)),
            }
        }
        uapi::VMTRACE_EV_MM_DUP => {
            need(size_of::<uapi::vmtrace_ev_mm_dup>())?;
            Body::MmDup {
                parent: Mm(get!(p, uapi::vmtrace_ev_mm_dup, parent, u32)),
            }
        }
        uapi::VMTRACE_EV_MM_END => Body::MmEnd,
        uapi::VMTRACE_EV_FORK => {
            type F = uapi::vmtrace_ev_fork;
            need(size_of::<F>())?;
            Body::Fork {
                child_tid: Tid(get!(p, F, child_tid, u32)),
                child_tgid: Tid(get!(p, F, child_tgid, u32)),
                child_mm: Mm(get!(p, F, child_mm, u32)),
                child_start: get!(p, F, child_start, u64),
            }
        }
        uapi::VMTRACE_EV_EXEC => {
            type X = uapi::vmtrace_ev_exec;
            need(size_of::<X>())?;
            let comm = offset_of!(X, comm);
            Body::Exec {
                old_mm: Mm(get!(p, X, old_mm, u32)),
                file: FileId {
                    dev: get!(p, X, dev, u64),
                    ino: get!(p, X, ino, u64),
                    generation: get!(p, X, generation, u32),
                },
                comm: until_nul(&p[comm..comm + 16]),
                name: name(size_of::<X>(), get!(p, X, name_len, u32))?,
            }
        }
        uapi::VMTRACE_EV_EXIT => {
            type X = uapi::vmtrace_ev_exit;
            need(size_of::<X>())?;
            Body::Exit {
                utime_ns: get!(p, X, utime, u64),
                stime_ns: get!(p, X, stime, u64),
                code: get!(p, X, code, i32),
            }
        }
        uapi::VMTRACE_EV_TASK => {
            type T = uapi::vmtrace_ev_task;
            need(size_of::<T>())?;
            let comm = offset_of!(T, comm);
            Body::Task {
                tid: Tid(get!(p, T, tid, u32)),
                tgid: Tid(get!(p, T, tgid, u32)),
                parent: Tid(get!(p, T, parent, u32)),
                start: get!(p, T, start, u64),
                comm: until_nul(&p[comm..comm + 16]),
            }
        }
        uapi::VMTRACE_EV_CGROUP => {
            type C = uapi::vmtrace_ev_cgroup;
            need(size_of::<C>())?;
            Body::Cgroup {
                tid: Tid(get!(p, C, tid, u32)),
                tgid: Tid(get!(p, C, tgid, u32)),
                path: name(size_of::<C>(), get!(p, C, name_len, u32))?,
            }
        }
        uapi::VMTRACE_EV_TRUNCATE => {
            let IoBody { file, offset, .. } = io()?;
            Body::Truncate {
                file,
                length: offset,
            }
        }
        uapi::VMTRACE_EV_PUNCH => {
            let IoBody {
                file,
                offset,
                bytes,
                ..
            } = io()?;
            Body::Punch {
                file,
                offset,
                bytes,
            }
        }
        uapi::VMTRACE_EV_DELETE => {
            let IoBody { file, bytes, .. } = io()?;
            Body::Delete {
                file,
                length: bytes,
            }
        }
        uapi::VMTRACE_EV_OPEN => Body::Open(file()?),
        uapi::VMTRACE_EV_CLOSE => Body::Close(file()?),
        uapi::VMTRACE_EV_READ => Body::Read(io()?),
        uapi::VMTRACE_EV_WRITE => Body::Write(io()?),
        uapi::VMTRACE_EV_SHMAT => Body::ShmAt(shm()?),
        uapi::VMTRACE_EV_SHMDT => Body::ShmDt(shm()?),
        uapi::VMTRACE_EV_SHM_DESTROY => Body::ShmDestroy(shm()?),
        uapi::VMTRACE_EV_SNAP_BEGIN => Body::SnapBegin,
        uapi::VMTRACE_EV_SNAP_END => Body::SnapEnd,
        uapi::VMTRACE_EV_REFS_BEGIN => Body::RefsBegin,
        uapi::VMTRACE_EV_CHECKPOINT => {
            type C = uapi::vmtrace_ev_checkpoint;
            need(size_of::<C>())?;
            Body::Checkpoint {
                last_mm: Mm(get!(p, C, last_mm, u32)),
            }
        }
        uapi::VMTRACE_EV_CHECKPOINT_END => Body::CheckpointEnd,
        _ => Body::Unknown,
    })
}
