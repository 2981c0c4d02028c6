//! The own fields of events.
//!
//! The table [`Body`] has an entry for each event, and each field is in it once. The type of the fields, how they
//! are decoded, and what is output of them all follow from the table. Several events may have the same fields,
//! which are a structure of their own then.
//!
//! An entry begins with the event's number. `of |raw: S|` says that the event has the structure `S` of the UAPI
//! header, and that the values below are made of `raw`. With `of |raw: S, bytes|`, also of all bytes of the
//! event's own fields. `where` begins a check of them. A field is output by its name and type, unless something
//! follows its value:
//!
//! - `hex`: as an address.
//! - `named "other"`: by another name.
//! - `unlisted`: not at all.
//!
//! `by others` behind the number says that a task can cause the event about an address space that is not its own.
//! The addresses that an event is about are in its fields of some names: see [`Body::places`].

use std::mem::offset_of;
use std::ops::Range;

use rust_mm_trace::uapi;
use serde::Serialize;
use zerocopy::FromBytes;

use super::event::Malformed;
use super::{MOST, read};
use crate::trace::fields::{Fields, Given};
use crate::units::{Mm, Prot, Tid};

/// The file that a structure names.
macro_rules! file {
    ($raw:ident) => {
        FileId {
            dev: $raw.dev,
            ino: $raw.ino,
            generation: $raw.generation,
        }
    };
}
/// Outputs a field.
macro_rules! give {
    ($to:ident $field:ident) => {
        Given::give(*$field, stringify!($field), $to)
    };
    ($to:ident $field:ident hex) => {
        $to.hex(stringify!($field), *$field)
    };
    ($to:ident $field:ident named $name:literal) => {
        Given::give(*$field, $name, $to)
    };
    ($to:ident $field:ident unlisted) => {
        let _ = $field;
    };
}

/// Fields that several events have, or that have a type of their own.
macro_rules! part {
    (
        $(#[$meta:meta])*
        pub struct $name:ident $(<$life:lifetime>)? of |$raw:ident: $uapi:ident $(, $bytes:ident)?|
            $(where $check:block)?
        {
            $(
                $(#[$of_field:meta])*
                $field:ident: $type:ty = $value:expr $(, $how:ident $($other:literal)?)?;
            )*
        }
    ) => {
        $(#[$meta])*
        pub struct $name $(<$life>)? {
            $($(#[$of_field])* pub $field: $type,)*
        }

        impl $(<$life>)? $name $(<$life>)? {
            fn decode(payload: & $($life)? [u8]) -> Result<Self, Malformed> {
                let $raw: uapi::$uapi = own(payload)?;
                $(let $bytes = payload;)?
                $($check)?
                Ok($name { $($field: $value,)* })
            }

            fn fields(&self, to: &mut dyn Fields) {
                let $name { $($field,)* } = self;
                $(give!(to $field $($how $($other)?)?);)*
            }
        }
    };
}

/// Who else causes an event.
macro_rules! by {
    (others) => {
        true
    };
}

/// Decodes what an entry of the table says.
macro_rules! decoded {
    ($payload:ident $variant:ident) => {
        Body::$variant
    };
    ($payload:ident $variant:ident ($part:ty)) => {
        Body::$variant(<$part>::decode($payload)?)
    };
    ($payload:ident $variant:ident ($part:ty) = $decode:ident) => {
        Body::$variant($decode($payload)?)
    };
    (
        $payload:ident $variant:ident of |$raw:ident: $uapi:ident $(, $bytes:ident)?|
            $(where $check:block)?
        {
            $($field:ident = $value:expr;)*
        }
    ) => {{
        let $raw: uapi::$uapi = own($payload)?;
        $(let $bytes = $payload;)?
        $($check)?
        Body::$variant { $($field: $value,)* }
    }};
}

/// The table.
macro_rules! bodies {
    (
        $(#[$meta:meta])*
        pub enum Body<$life:lifetime> {
            $(
                $(#[$of_event:meta])*
                $event:ident $(by $others:ident)? => $variant:ident
                    $(($part:ty) $(= $decode:ident)?)?
                    $(of |$raw:ident: $uapi:ident $(, $bytes:ident)?| $(where $check:block)? {
                        $(
                            $(#[$of_field:meta])*
                            $field:ident: $type:ty = $value:expr $(, $how:ident $($other:literal)?)?;
                        )*
                    })?,
            )*
        }
    ) => {
        $(#[$meta])*
        pub enum Body<$life> {
            $(
                $(#[$of_event])*
                $variant $(($part))? $({ $($(#[$of_field])* $field: $type,)* })?,
            )*
            /// No news: see [`super::Event::aside`].
            Aside,
            /// An event of a type that this version does not know.
            Unknown,
        }

        impl<$life> Body<$life> {
            /// Decodes the own fields of an event of this number.
            pub(super) fn decode(number: u16, payload: &$life [u8]) -> Result<Self, Malformed> {
                Ok(match u32::from(number) {
                    $(uapi::$event => decoded!(
                        payload $variant
                        $(($part) $(= $decode)?)?
                        $(of |$raw: $uapi $(, $bytes)?| $(where $check)? {
                            $($field = $value;)*
                        })?
                    ),)*
                    _ => Body::Unknown,
                })
            }

            /// Whether a task can cause the event about an address space that is not its own.
            pub(crate) fn is_by_others(&self) -> bool {
                match self {
                    $($(Body::$variant { .. } => by!($others),)?)*
                    _ => false,
                }
            }

            /// Gives an event's own fields; which these are depends on its number alone.
            pub fn fields(&self, to: &mut dyn Fields) {
                match self {
                    $(
                        $(Body::$variant(part) => <$part>::fields(part, to),)?
                        $(Body::$variant { $($field,)* } => {
                            $(give!(to $field $($how $($other)?)?);)*
                        })?
                    )*
                    _ => {}
                }
            }
        }
    };
}

bodies! {
    /// An event's own fields.
    #[derive(Clone, Copy, Debug)]
    #[allow(missing_docs, reason = "the UAPI header documents each field")]
    pub enum Body<'a> {
        VMTRACE_EV_MAP => Map(MapBody<'a>),
        VMTRACE_EV_UNMAP => Unmap of |raw: vmtrace_ev_range| where { range(raw.start, raw.end, IN_RANGE)? } {
            start: u64 = raw.start, hex;
            end: u64 = raw.end, hex;
        },
        VMTRACE_EV_MOVE => Move of |raw: vmtrace_ev_move| where { movable(&raw)? } {
            old_start: u64 = raw.old_start, hex;
            old_len: u64 = raw.old_len;
            new_start: u64 = raw.new_start, hex;
            new_len: u64 = raw.new_len;
            dontunmap: bool = raw.flags & u64::from(uapi::VMTRACE_MOVE_DONTUNMAP) != 0;
        },
        VMTRACE_EV_PROTECT => Protect of |raw: vmtrace_ev_range| where { range(raw.start, raw.end, IN_RANGE)? } {
            start: u64 = raw.start, hex;
            end: u64 = raw.end, hex;
            prot: Prot = Prot((raw.arg & 7) as u8);
        },
        VMTRACE_EV_ADVISE => Advise of |raw: vmtrace_ev_range| where { range(raw.start, raw.end, IN_RANGE)? } {
            start: u64 = raw.start, hex;
            end: u64 = raw.end, hex;
            advice: u64 = raw.arg;
        },
        /// The old frame is ~0 if there was none, as for the first write to a private page of a file.
        VMTRACE_EV_COW => Cow(FrameBody),
        VMTRACE_EV_MM_DUP => MmDup of |raw: vmtrace_ev_mm_dup| {
            parent: Mm = Mm(raw.parent);
        },
        VMTRACE_EV_MM_END => MmEnd,
        VMTRACE_EV_FORK => Fork of |raw: vmtrace_ev_fork| {
            child_tid: Tid = Tid(raw.child_tid);
            child_tgid: Tid = Tid(raw.child_tgid);
            child_mm: Mm = Mm(raw.child_mm);
            /// When it was made, ns.
            child_start: u64 = raw.child_start, named "child_start_ns";
        },
        VMTRACE_EV_EXEC => Exec of |raw: vmtrace_ev_exec, bytes| {
            old_mm: Mm = Mm(raw.old_mm);
            file: FileId = file!(raw);
            comm: &'a [u8] = comm(bytes, offset_of!(uapi::vmtrace_ev_exec, comm));
            name: &'a [u8] = name_behind(&raw, bytes, raw.name_len)?;
        },
        VMTRACE_EV_EXIT => Exit of |raw: vmtrace_ev_exit| {
            utime_ns: u64 = raw.utime;
            stime_ns: u64 = raw.stime;
            code: i32 = raw.code;
        },
        VMTRACE_EV_TASK => Task of |raw: vmtrace_ev_task, bytes| {
            tid: Tid = Tid(raw.tid), named "task_tid";
            tgid: Tid = Tid(raw.tgid), named "task_tgid";
            /// The process of its parent; 0 if the trace does not say.
            parent: Tid = Tid(raw.parent), unlisted;
            /// When it was made, ns.
            start: u64 = raw.start, named "task_start_ns";
            comm: &'a [u8] = comm(bytes, offset_of!(uapi::vmtrace_ev_task, comm));
        },
        /// Thread 0 is the idle task.
        VMTRACE_EV_SWITCH by others => Switch of |raw: vmtrace_ev_switch| {
            prev: Tid = Tid(raw.prev);
            next: Tid = Tid(raw.next);
        },
        VMTRACE_EV_CGROUP => Cgroup of |raw: vmtrace_ev_cgroup, bytes| {
            tid: Tid = Tid(raw.tid), named "task_tid";
            tgid: Tid = Tid(raw.tgid), named "task_tgid";
            path: &'a [u8] = name_behind(&raw, bytes, raw.name_len)?;
        },
        VMTRACE_EV_SHMAT => ShmAt(ShmBody),
        VMTRACE_EV_SHMDT => ShmDt(ShmBody),
        VMTRACE_EV_SHM_DESTROY => ShmDestroy(ShmBody),
        VMTRACE_EV_OPEN => Open(FileBody<'a>),
        VMTRACE_EV_CLOSE => Close(FileBody<'a>),
        VMTRACE_EV_READ => Read(IoBody),
        VMTRACE_EV_WRITE => Write(IoBody),
        VMTRACE_EV_TRUNCATE => Truncate of |raw: vmtrace_ev_io| {
            file: FileId = file!(raw);
            length: u64 = raw.offset;
        },
        VMTRACE_EV_PUNCH => Punch of |raw: vmtrace_ev_io| {
            file: FileId = file!(raw);
            offset: u64 = raw.offset;
            bytes: u64 = raw.bytes;
        },
        VMTRACE_EV_DELETE => Delete of |raw: vmtrace_ev_io| {
            file: FileId = file!(raw);
            length: u64 = raw.bytes;
        },
        VMTRACE_EV_SWAP_IN by others => SwapIn(SwapBody),
        VMTRACE_EV_SWAP_OUT by others => SwapOut(SwapBody) = swapped_out,
        VMTRACE_EV_KSM by others => Ksm(FrameBody),
        VMTRACE_EV_MIGRATE by others => Migrate(FrameBody),
        VMTRACE_EV_GUP by others => Gup of |raw: vmtrace_ev_page| {
            page: u64 = address(raw.page)?, hex;
            pfn: u64 = raw.new_pfn;
            write: bool = raw.arg & u64::from(uapi::VMTRACE_GUP_WRITE) != 0;
            long_term: bool = raw.arg & u64::from(uapi::VMTRACE_GUP_LONGTERM) != 0;
        },
        VMTRACE_EV_RESIZE => Resize of |raw: vmtrace_ev_resize| {
            from: u32 = raw.from;
            to: u32 = raw.to;
        },
        /// The address space is in this EVMS from its beginning to its end.
        VMTRACE_EV_SET => Set of |raw: vmtrace_ev_set| {
            set: u32 = raw.set;
            cgroup: u64 = raw.cgroup;
        },
        /// From here on, the references are recorded that fit the expression. Without tests, all are.
        VMTRACE_EV_FILTER => Filter of |raw: vmtrace_ev_filter, bytes| {
            tests: u32 = raw.nr_tests;
            expr: &'a [u8] = expression(&raw, bytes)?;
        },
        /// What looks at a region have found since the last report.
        VMTRACE_EV_REGION => Region(RegionBody),
        VMTRACE_EV_SNAP_BEGIN => SnapBegin,
        VMTRACE_EV_SNAP_END => SnapEnd,
        /// References are recorded from here on.
        VMTRACE_EV_REFS_BEGIN => RefsBegin,
        /// A description begins of all that exists, by events that are asides. No address space has a
        /// greater number than this yet.
        VMTRACE_EV_CHECKPOINT => Checkpoint of |raw: vmtrace_ev_checkpoint| {
            last_mm: Mm = Mm(raw.last_mm);
        },
        /// Everything was described.
        VMTRACE_EV_CHECKPOINT_END => CheckpointEnd,
    }
}

/// What an event is about, of its address space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// The page with this address, which may be a huge one.
    Page(u64),
    /// Addresses.
    Range(Range<u64>),
}

/// Finds addresses by the names of fields.
#[derive(Default)]
struct Addresses {
    page: Option<u64>,
    /// From the first one to before the second one. A move has two.
    ranges: [(u64, u64); 2],
}

impl Fields for Addresses {
    fn u64(&mut self, name: &str, value: u64) {
        let [first, second] = &mut self.ranges;
        match name {
            "page" => self.page = Some(value),
            "start" | "old_start" => first.0 = value,
            "end" => first.1 = value,
            "old_len" => first.1 = first.0.saturating_add(value),
            "new_start" => second.0 = value,
            "new_len" => second.1 = second.0.saturating_add(value),
            _ => {}
        }
    }
    fn hex(&mut self, name: &str, value: u64) {
        self.u64(name, value);
    }
    fn u32(&mut self, _: &str, _: u32) {}
    fn i32(&mut self, _: &str, _: i32) {}
    fn u8(&mut self, _: &str, _: u8) {}
    fn kind(&mut self, _: &str, _: MapKind) {}
    fn text(&mut self, _: &str, _: &[u8]) {}
}

impl Body<'_> {
    /// The places that the event is about: none, one, or for a move two. They are in the fields `page`, `start` and
    /// `end`, and in those of a move.
    pub fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let mut found = Addresses::default();
        self.fields(&mut found);
        let ranges = found.ranges.into_iter().filter(|(start, end)| start < end);
        let page = found.page.into_iter().map(Place::Page);
        page.chain(ranges.map(|(start, end)| Place::Range(start..end)))
    }
}

part! {
    /// Fields of `struct vmtrace_ev_map`.
    #[derive(Clone, Copy, Debug)]
    #[allow(missing_docs, reason = "the UAPI header documents each field")]
    pub struct MapBody<'a> of |raw: vmtrace_ev_map, bytes| where { range(raw.start, raw.end, IN_MAPPING)? } {
        start: u64 = raw.start, hex;
        end: u64 = raw.end, hex;
        offset: u64 = raw.offset;
        file: FileId = file!(raw);
        prot: Prot = Prot((raw.prot & 7) as u8);
        flags: u32 = raw.flags;
        kind: MapKind = MapKind::decode(raw.kind.into());
        cause: u16 = raw.cause, unlisted;
        /// Bytes of a page, if they are not those of the header.
        huge: Option<u64> = huge(raw.flags)?, unlisted;
        name: &'a [u8] = name_behind(&raw, bytes, raw.name_len)?;
    }
}

part! {
    /// Fields of `struct vmtrace_ev_file`.
    #[derive(Clone, Copy, Debug)]
    #[allow(missing_docs, reason = "the UAPI header documents each field")]
    pub struct FileBody<'a> of |raw: vmtrace_ev_file, bytes| {
        file: FileId = file!(raw);
        length: u64 = raw.length;
        kind: FileKind = FileKind::decode(raw.kind);
        name: &'a [u8] = name_behind(&raw, bytes, raw.name_len)?;
    }
}

part! {
    /// Fields of `struct vmtrace_ev_io`.
    #[derive(Clone, Copy, Debug)]
    #[allow(missing_docs, reason = "the UAPI header documents each field")]
    pub struct IoBody of |raw: vmtrace_ev_io| {
        file: FileId = file!(raw);
        offset: u64 = raw.offset;
        bytes: u64 = raw.bytes;
        kind: FileKind = FileKind::decode(raw.kind.into());
        call: Call = Call::decode(raw.call.into());
        /// Whether the descriptor bypasses the page cache.
        direct: bool = u32::from(raw.flags) & uapi::VMTRACE_IO_DIRECT != 0;
    }
}

part! {
    /// Fields of `struct vmtrace_ev_shm`.
    #[derive(Clone, Copy, Debug)]
    #[allow(missing_docs, reason = "the UAPI header documents each field")]
    pub struct ShmBody of |raw: vmtrace_ev_shm| {
        start: u64 = address(raw.start)?, hex;
        end: u64 = address(raw.end)?, hex;
        file: FileId = file!(raw);
        shmid: i32 = raw.shmid;
    }
}

part! {
    /// A page that got another frame, from `struct vmtrace_ev_page`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct FrameBody of |raw: vmtrace_ev_page| {
        /// Virtual page address.
        page: u64 = address(raw.page)?, hex;
        /// The frame before.
        old_pfn: u64 = raw.old_pfn;
        /// The frame after.
        new_pfn: u64 = raw.new_pfn;
    }
}

part! {
    /// A page that was swapped out or in, from `struct vmtrace_ev_page`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct SwapBody of |raw: vmtrace_ev_page| {
        /// Virtual page address.
        page: u64 = address(raw.page)?, hex;
        /// The frame that it had, or has now.
        pfn: u64 = raw.new_pfn;
        /// Number of the swap area.
        area: u8 = (raw.arg >> uapi::VMTRACE_SWAP_AREA_SHIFT) as u8;
        /// The page within the area.
        slot: u64 = raw.arg & ((1 << uapi::VMTRACE_SWAP_AREA_SHIFT) - 1);
    }
}

/// The frame is the one that the page had.
fn swapped_out(payload: &[u8]) -> Result<SwapBody, Malformed> {
    let FrameBody { old_pfn, .. } = FrameBody::decode(payload)?;
    let swap = SwapBody::decode(payload)?;
    Ok(SwapBody {
        pfn: old_pfn,
        ..swap
    })
}

part! {
    /// Fields of `struct vmtrace_ev_region`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[allow(missing_docs, reason = "the UAPI header documents each field")]
    pub struct RegionBody of |raw: vmtrace_ev_region| where { range(raw.start, raw.end, IN_REGION)? } {
        start: u64 = raw.start, hex;
        end: u64 = raw.end, hex;
        looks: u32 = raw.looks;
        accesses: u32 = raw.accesses;
        writes: u32 = raw.writes;
        age: u32 = raw.age;
        cpus: u64 = raw.cpus, hex;
        /// Of the region in its report, from 0.
        index: u32 = raw.index;
        /// Regions of the report.
        regions: u32 = raw.regions;
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
    fn decode(number: u32) -> Self {
        match number {
            uapi::VMTRACE_MAP_ANON => MapKind::Anon,
            uapi::VMTRACE_MAP_FILE => MapKind::File,
            uapi::VMTRACE_MAP_SHMEM => MapKind::Shmem,
            uapi::VMTRACE_MAP_DEVICE => MapKind::Device,
            uapi::VMTRACE_MAP_SPECIAL => MapKind::Special,
            uapi::VMTRACE_MAP_HUGETLB => MapKind::Hugetlb,
            _ => MapKind::Unknown,
        }
    }

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

/// The structure at the start of an event's own fields.
fn own<T: FromBytes>(payload: &[u8]) -> Result<T, Malformed> {
    read(payload).ok_or(Malformed("an event is shorter than its type needs"))
}

const IN_RANGE: &str = "a range ends before it starts, or has addresses that no process can use";
const IN_MAPPING: &str =
    "a mapping ends before it starts, or has addresses that no process can use";
const IN_REGION: &str = "a region ends before it starts, or has addresses that no process can use";

fn range(start: u64, end: u64, otherwise: &'static str) -> Result<(), Malformed> {
    match start > end || end > MOST {
        true => Err(Malformed(otherwise)),
        false => Ok(()),
    }
}

fn address(at: u64) -> Result<u64, Malformed> {
    match at {
        0..=MOST => Ok(at),
        _ => Err(Malformed("an address that no process can use")),
    }
}

fn movable(raw: &uapi::vmtrace_ev_move) -> Result<(), Malformed> {
    let end = |start: u64, len| start.checked_add(len).filter(|&end| end <= MOST);
    match end(raw.old_start, raw.old_len).and(end(raw.new_start, raw.new_len)) {
        Some(_) => Ok(()),
        None => Err(Malformed(
            "a move from or to addresses that no process can use",
        )),
    }
}

/// The sizes that a huge page can have, by log2: those of any machine that Linux runs on.
const HUGE_SHIFTS: std::ops::RangeInclusive<u32> = 13..=39;

/// Bytes of a page of a mapping with these flags, if they say so.
fn huge(flags: u32) -> Result<Option<u64>, Malformed> {
    match (flags & uapi::VMTRACE_MAP_PAGE) >> uapi::VMTRACE_MAP_PAGE_SHIFT {
        0 => Ok(None),
        shift if HUGE_SHIFTS.contains(&shift) => Ok(Some(1 << shift)),
        _ => Err(Malformed("a mapping whose pages have an impossible size")),
    }
}

/// The name behind a structure.
fn name_behind<'a, T>(_: &T, bytes: &'a [u8], len: u32) -> Result<&'a [u8], Malformed> {
    if len > uapi::VMTRACE_NAME_MAX {
        return Err(Malformed("an event's name is longer than names can be"));
    }
    let name = bytes.get(size_of::<T>()..);
    name.and_then(|rest| rest.get(..len as usize))
        .ok_or(Malformed("an event's name is longer than the event"))
}

/// The expression behind a filter.
fn expression<'a>(raw: &uapi::vmtrace_ev_filter, bytes: &'a [u8]) -> Result<&'a [u8], Malformed> {
    if raw.expr_len > uapi::VMTRACE_FILTER_EXPR {
        return Err(Malformed(
            "a filter's expression is longer than expressions can be",
        ));
    }
    bytes[size_of::<uapi::vmtrace_ev_filter>()..]
        .get(..raw.expr_len as usize)
        .ok_or(Malformed("a filter's expression is longer than the event"))
}

/// The name of a task, which lies here.
fn comm(bytes: &[u8], at: usize) -> &[u8] {
    let field = &bytes[at..at + 16];
    &field[..field.iter().position(|&c| c == 0).unwrap_or(field.len())]
}

#[cfg(test)]
mod tests {
    use rust_mm_trace::events;

    use super::*;

    #[test]
    fn each_event_of_the_header_has_an_entry() {
        assert!(!events::ALL.is_empty());
        for &(number, name, _) in events::ALL {
            let number = u16::try_from(number).expect("a number of 16 bits");
            let body = Body::decode(number, &[0; 256]);
            let known = body.is_ok_and(|body| !matches!(body, Body::Unknown | Body::Aside));
            assert!(known, "the table has no entry for {name}");
        }
    }
}
