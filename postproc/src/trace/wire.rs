//! Decoding of the structures of `vmtrace.h`.
//!
//! Field offsets come from the header by bindgen, so they always agree with the
//! header. No length in the file is trusted: each read is from a slice whose size
//! was checked before.

use std::mem::offset_of;

use byteorder::{ByteOrder, LittleEndian as LE};
use rust_mm_trace::events;
use rust_mm_trace::record::Extras;
pub(crate) use rust_mm_trace::stay::NO_OFFSET;
use rust_mm_trace::uapi;
use serde::Serialize;

use super::fields::Fields;
use super::part;
use crate::units::{Access, Mm, Prot, Tid, VirtPage};

/// Bytes of a packet's head.
pub const HEAD_SIZE: usize = size_of::<uapi::vmtrace_packet>();
/// Bytes of a reference record.
pub const REF_SIZE: usize = size_of::<uapi::vmtrace_ref>();
/// Bytes of an event record's head.
pub const EVENT_SIZE: usize = size_of::<uapi::vmtrace_event>();
/// Bytes of the virtual time that follows a reference record or an event's head, if the trace
/// has virtual time.
pub const VTIME_SIZE: usize = size_of::<u64>();
/// Bytes of the offset that ends a reference record, if the trace has offsets.
pub const OFFSET_SIZE: usize = size_of::<u64>();
/// Bytes of the trace header.
pub const HEADER_SIZE: usize = uapi::VMTRACE_HEADER_SIZE as usize;

/// The feature bits that this version knows. The effect of any other bit is unknown:
/// VMTRACE_VTIME, for example, makes every record longer.
pub(crate) const KNOWN_FEATURES: u64 = (uapi::VMTRACE_AGAIN
    | uapi::VMTRACE_VTIME
    | uapi::VMTRACE_EARLY
    | uapi::VMTRACE_PACK
    | uapi::VMTRACE_OFFSETS
    | uapi::VMTRACE_ZSTD
    | uapi::VMTRACE_PAUSABLE
    | uapi::VMTRACE_FILTERED
    | uapi::VMTRACE_REGIONS
    | uapi::VMTRACE_PIECE) as u64
    | part::FEATURE;

/// The bit of `debug_break` of a kernel that records what a filter leaves out, too, and marks it:
/// `vmtrace_break=keepleft`, VMTRACE_BREAK_KEEPLEFT.
pub(crate) const KEEPLEFT: u32 = 1 << 31;

/// No time in ns, sequence number or user address is larger than this, so the sum of two of
/// them does not overflow.
pub(crate) const MOST: u64 = u64::MAX >> 1;

macro_rules! get {
    ($b:expr, $t:ty, $f:ident, u64) => {
        LE::read_u64(&$b[offset_of!($t, $f)..])
    };
    ($b:expr, $t:ty, $f:ident, i64) => {
        LE::read_i64(&$b[offset_of!($t, $f)..])
    };
    ($b:expr, $t:ty, $f:ident, u32) => {
        LE::read_u32(&$b[offset_of!($t, $f)..])
    };
    ($b:expr, $t:ty, $f:ident, i32) => {
        LE::read_i32(&$b[offset_of!($t, $f)..])
    };
    ($b:expr, $t:ty, $f:ident, u16) => {
        LE::read_u16(&$b[offset_of!($t, $f)..])
    };
}

/// An identity of a trace, shown as hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Uuid(pub [u8; 16]);

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl Serialize for Uuid {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

fn uuid_at(b: &[u8], at: usize) -> Uuid {
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&b[at..at + 16]);
    Uuid(uuid)
}

fn text_at(b: &[u8], at: usize, len: usize) -> String {
    let field = &b[at..at + len];
    let end = field.iter().position(|&c| c == 0).unwrap_or(len);
    String::from_utf8_lossy(&field[..end]).into_owned()
}

/// `struct vmtrace_header`, without its magic, padding and checksum.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the UAPI header documents each field")]
pub struct Header {
    pub version: u32,
    pub uuid: Uuid,
    pub start_time_ns: u64,
    pub realtime_offset_ns: i64,
    pub features: u64,
    /// N, in pages.
    pub evms_size: u32,
    pub first_segment: u32,
    pub policy: u32,
    pub scope: u32,
    pub scope_pid: i32,
    /// The path of the control group, or the pattern for names, that is traced; else empty.
    pub scope_name: String,
    /// All stays end each so many ns; 0 in traces whose stays do not end so.
    pub interval_ns: u64,
    /// How regions of memory are sampled; `None` in traces of references.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    pub page_shift: u32,
    pub nr_cpus: u32,
    pub clock: u32,
    pub forced_off: u32,
    pub loss_mode: u32,
    pub buffer_size: u32,
    pub nr_buffers: u32,
    pub stay_shift: u32,
    pub debug_break: u32,
    pub vtime_clock: u32,
    pub vtime_khz: u32,
    pub vtime_skip: u32,
    pub classes: u32,
    /// K, the pages that one admission evicts at most; 1 in traces of kernels without batches.
    pub batch: u32,
    /// What has an EVMS of its own.
    pub sets: Sets,
    /// `None` if the whole run was traced, from the start to the end.
    pub windows: Option<WindowPlan>,
    pub release: String,
    pub arch: String,
}

/// What has an EVMS of its own: `VMTRACE_SETS_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sets {
    /// Nothing: there is one EVMS for the whole trace, set 0.
    One,
    /// Each address space.
    Process,
    /// Each control group.
    Cgroup,
    /// A value this version does not know.
    Unknown,
}

impl Sets {
    fn decode(number: u32) -> Self {
        match number {
            uapi::VMTRACE_SETS_ONE => Sets::One,
            uapi::VMTRACE_SETS_PROCESS => Sets::Process,
            uapi::VMTRACE_SETS_CGROUP => Sets::Cgroup,
            _ => Sets::Unknown,
        }
    }

    /// Whether there may be other sets than set 0.
    pub fn are_several(self) -> bool {
        self != Sets::One
    }

    /// What the sets are of, in words, with the counts of the kernel's account.
    pub fn counted(self, status: Option<&Status>) -> String {
        match status {
            Some(s) => format!(
                "{} ({} made, {} at once)",
                self.text(),
                s.sets_made,
                s.sets_max
            ),
            None => self.text().into(),
        }
    }

    /// What the sets are of, in words.
    pub fn text(self) -> &'static str {
        match self {
            Sets::One => "one for all processes",
            Sets::Process => "one for each process",
            Sets::Cgroup => "one for each control group",
            Sets::Unknown => "of an unknown kind",
        }
    }
}

/// What shows that a page of a region was accessed: `VMTRACE_BY_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SampledBy {
    /// The accessed bit of its page table entry.
    Accessed,
    /// A fault of the access.
    Fault,
    /// A value this version does not know.
    Unknown,
}

impl SampledBy {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            SampledBy::Accessed => "accessed bits",
            SampledBy::Fault => "faults",
            SampledBy::Unknown => "something that this postproc does not know",
        }
    }
}

/// `struct vmtrace_sampling`: how regions of memory are sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Sampling {
    /// From one look at a page of each region to the next, ns.
    pub sample_ns: u64,
    /// From one report to the next, ns.
    pub aggregate_ns: u64,
    /// After so long, regions are adapted to the mappings, ns.
    pub update_ns: u64,
    /// The least regions of an address space that has as many pages.
    pub min_regions: u32,
    /// The most regions of an address space.
    pub max_regions: u32,
    /// What shows an access.
    pub by: SampledBy,
}

impl Sampling {
    /// Decodes what a header with these features has: `None` if regions are not sampled, and the
    /// header has nothing about them.
    fn decode(b: &[u8], features: u64) -> Option<Self> {
        type S = uapi::vmtrace_sampling;
        let is_sampled = features & u64::from(uapi::VMTRACE_REGIONS) != 0;
        if !is_sampled && b[..size_of::<S>()].iter().all(|byte| *byte == 0) {
            return None;
        }
        Some(Sampling {
            sample_ns: get!(b, S, sample, u64),
            aggregate_ns: get!(b, S, aggregate, u64),
            update_ns: get!(b, S, update, u64),
            min_regions: get!(b, S, min_regions, u32),
            max_regions: get!(b, S, max_regions, u32),
            by: match get!(b, S, by, u32) {
                uapi::VMTRACE_BY_ACCESSED => SampledBy::Accessed,
                uapi::VMTRACE_BY_FAULT => SampledBy::Fault,
                _ => SampledBy::Unknown,
            },
        })
    }

    /// The most looks at a region between two reports.
    pub fn most_looks(&self) -> u64 {
        let whole = self.aggregate_ns.div_ceil(self.sample_ns.max(1));
        whole.saturating_add(1)
    }
}

/// Which parts of a run were to be traced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct WindowPlan {
    /// Number of windows; 0: no limit.
    pub count: u32,
    /// Length of a window, ns; 0: no limit.
    pub time_ns: u64,
    /// Length of a window, references; 0: no limit.
    pub references: u64,
    /// Time before the first window, ns.
    pub warmup_ns: u64,
    /// Time between two windows, ns, in which no reference is recorded.
    pub skip_ns: u64,
    /// Windows begin on request, and end on request or at their limit (`activator pause`).
    pub on_request: bool,
}

/// Why a window ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WindowEnd {
    /// The window reached its limit of time.
    Time,
    /// The window reached its limit of references.
    References,
    /// The trace was ended.
    Stop,
    /// The window was ended on request.
    Pause,
    /// A value this version does not know.
    Unknown,
}

impl WindowEnd {
    /// In lower case.
    pub fn name(self) -> &'static str {
        match self {
            WindowEnd::Time => "time",
            WindowEnd::References => "references",
            WindowEnd::Stop => "stop",
            WindowEnd::Pause => "pause",
            WindowEnd::Unknown => "unknown",
        }
    }
}

/// `struct vmtrace_window`: the kernel's account of a window.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs, reason = "the UAPI header documents each field")]
pub struct WindowAccount {
    pub number: u32,
    pub why: WindowEnd,
    pub start_time_ns: u64,
    pub stop_time_ns: u64,
    pub first_seq: u64,
    pub last_seq: u64,
    pub admissions: u64,
    pub refs: u64,
    pub events: u64,
    pub aborted: u64,
    pub renewed: u64,
    pub chances: u64,
    pub lost_full: u64,
    pub lost_atomic: u64,
    pub lost_io: u64,
    pub funny: u64,
}

impl WindowAccount {
    /// Decodes the content of a WINDOW packet; `None` if it is too short, or contains impossible
    /// values.
    pub(crate) fn decode(b: &[u8]) -> Option<Self> {
        type W = uapi::vmtrace_window;
        if b.len() < size_of::<W>() {
            return None;
        }
        let account = WindowAccount {
            number: get!(b, W, number, u32),
            why: match get!(b, W, why, u32) {
                uapi::VMTRACE_WINDOW_TIME => WindowEnd::Time,
                uapi::VMTRACE_WINDOW_REFS => WindowEnd::References,
                uapi::VMTRACE_WINDOW_STOP => WindowEnd::Stop,
                uapi::VMTRACE_WINDOW_PAUSE => WindowEnd::Pause,
                _ => WindowEnd::Unknown,
            },
            start_time_ns: get!(b, W, start_time, u64),
            stop_time_ns: get!(b, W, stop_time, u64),
            first_seq: get!(b, W, first_seq, u64),
            last_seq: get!(b, W, last_seq, u64),
            admissions: get!(b, W, admissions, u64),
            refs: get!(b, W, refs, u64),
            events: get!(b, W, events, u64),
            aborted: get!(b, W, aborted, u64),
            renewed: get!(b, W, renewed, u64),
            chances: get!(b, W, chances, u64),
            lost_full: get!(b, W, lost_full, u64),
            lost_atomic: get!(b, W, lost_atomic, u64),
            lost_io: get!(b, W, lost_io, u64),
            funny: get!(b, W, funny, u64),
        };
        let times = [account.start_time_ns, account.stop_time_ns];
        let numbers = [account.first_seq, account.last_seq];
        let mut all = times.iter().chain(&numbers);
        all.all(|&n| n <= MOST).then_some(account)
    }

    /// Records lost, whatever the cause.
    pub fn lost(&self) -> u64 {
        self.lost_full
            .saturating_add(self.lost_atomic)
            .saturating_add(self.lost_io)
    }

    /// Records that begin stays or continue them, whether they were written or not.
    pub fn due(&self) -> u64 {
        let more = self.renewed.saturating_add(self.chances);
        self.admissions.saturating_add(more)
    }

    /// The least and the most records that a filter has left out: losses are counted for references
    /// and events together.
    pub(crate) fn left_out(&self) -> (u64, u64) {
        let most = self.due().saturating_sub(self.refs);
        let lost = self.lost_full.saturating_add(self.lost_io);
        (most.saturating_sub(lost), most)
    }

    /// The account of this window as a trace by itself, which has `packets` packets. Counts that
    /// exist only for all windows together are taken from `whole`, if it is given.
    pub(crate) fn status(&self, header: &Header, packets: u64, whole: Option<&Status>) -> Status {
        Status {
            size: size_of::<uapi::vmtrace_status>() as u32,
            state: uapi::VMTRACE_STATE_OFF,
            error: 0,
            scope: header.scope,
            pid: header.scope_pid,
            evms_size: header.evms_size,
            evms_min: whole.map_or(0, |s| s.evms_min),
            nr_cpus: header.nr_cpus,
            uuid: header.uuid,
            start_time_ns: self.start_time_ns,
            stop_time_ns: self.stop_time_ns,
            last_seq: self.last_seq,
            admissions: self.admissions,
            refs: self.refs,
            events: self.events,
            aborted: self.aborted,
            members: 0,
            members_max: whole.map_or(0, |s| s.members_max),
            funny: self.funny,
            stuck: whole.map_or(0, |s| s.stuck),
            audits: whole.map_or(0, |s| s.audits),
            unaudited: whole.map_or(0, |s| s.unaudited),
            dangling: whole.map_or(0, |s| s.dangling),
            miscounted: whole.map_or(0, |s| s.miscounted),
            uncovered: whole.map_or(0, |s| s.uncovered),
            lost_full: self.lost_full,
            lost_atomic: self.lost_atomic,
            lost_io: self.lost_io,
            waits: whole.map_or(0, |s| s.waits),
            packets,
            bytes: 0,
            mms: 0,
            renewed: self.renewed,
            chances: self.chances,
            flags: header.features as u32,
            first_segment: header.first_segment,
            policy: header.policy,
            batch: header.batch,
            evms_max: whole.map_or(header.evms_size, |s| s.evms_max),
            evms_peak: whole.map_or(header.evms_size, |s| s.evms_peak),
            classes: header.classes,
            windows: header.windows.map_or(0, |w| w.count),
            windows_begun: 1,
            windows_ended: 1,
            sets: header.sets,
            sets_made: whole.map_or(0, |s| s.sets_made),
            sets_max: whole.map_or(0, |s| s.sets_max),
            sets_shared: whole.map_or(0, |s| s.sets_shared),
            stored: 0,
            piece: whole.map_or(0, |s| s.piece),
            piece_bytes: whole.map_or(0, |s| s.piece_bytes),
            left_out: match header.is_filtered() {
                true => self.left_out().0,
                false => 0,
            },
            ran_ns: 0,
            output: whole.map_or_else(String::new, |s| s.output.clone()),
        }
    }
}

impl Header {
    /// The smallest N that the kernel accepts with first segments of this size.
    pub fn least_n(&self, first: u32) -> u64 {
        u64::from(first) * u64::from(self.nr_cpus.min(uapi::VMTRACE_EVMS_MIN_CPUS))
    }

    /// The largest batch that the kernel accepts for a set of `n`: what is left of the set has
    /// room for all first segments. Sets with a CLOCK have no batches.
    pub fn most_batch(&self, n: u64) -> u64 {
        if self.policy == uapi::VMTRACE_POLICY_CLOCK {
            return 1;
        }
        let spare = n.saturating_sub(self.least_n(self.first_segment));
        (spare + 1).min(uapi::VMTRACE_BATCH_MAX.into())
    }

    /// Decodes the first [`HEADER_SIZE`] bytes of a trace, whose magic, version and checksum
    /// were checked before.
    pub(crate) fn decode(b: &[u8; HEADER_SIZE]) -> Self {
        type H = uapi::vmtrace_header;
        Header {
            version: get!(b, H, version, u32),
            uuid: uuid_at(b, offset_of!(H, uuid)),
            start_time_ns: get!(b, H, start_time, u64),
            realtime_offset_ns: get!(b, H, realtime_offset, i64),
            features: get!(b, H, features, u64),
            evms_size: get!(b, H, evms_size, u32),
            first_segment: get!(b, H, first_segment, u32),
            policy: get!(b, H, policy, u32),
            scope: get!(b, H, scope, u32),
            scope_pid: get!(b, H, scope_pid, i32),
            scope_name: text_at(b, offset_of!(H, scope_name), 256),
            interval_ns: get!(b, H, interval, u64),
            sampling: Sampling::decode(&b[offset_of!(H, sampling)..], get!(b, H, features, u64)),
            page_shift: get!(b, H, page_shift, u32),
            nr_cpus: get!(b, H, nr_cpus, u32),
            clock: get!(b, H, clock, u32),
            forced_off: get!(b, H, forced_off, u32),
            loss_mode: get!(b, H, loss_mode, u32),
            buffer_size: get!(b, H, buffer_size, u32),
            nr_buffers: get!(b, H, nr_buffers, u32),
            stay_shift: get!(b, H, stay_shift, u32),
            debug_break: get!(b, H, debug_break, u32),
            vtime_clock: get!(b, H, vtime_clock, u32),
            vtime_khz: get!(b, H, vtime_khz, u32),
            vtime_skip: get!(b, H, vtime_skip, u32),
            classes: get!(b, H, classes, u32),
            batch: get!(b, H, batch, u32).max(1),
            sets: Sets::decode(get!(b, H, sets, u32)),
            windows: {
                let plan = WindowPlan {
                    count: get!(b, H, windows, u32),
                    time_ns: get!(b, H, window_time, u64),
                    references: get!(b, H, window_refs, u64),
                    warmup_ns: get!(b, H, warmup, u64),
                    skip_ns: get!(b, H, skip, u64),
                    on_request: get!(b, H, features, u64) & u64::from(uapi::VMTRACE_PAUSABLE) != 0,
                };
                let has_any = plan.time_ns != 0 || plan.references != 0 || plan.on_request;
                has_any.then_some(plan)
            },
            release: text_at(b, offset_of!(H, release), 128),
            arch: text_at(b, offset_of!(H, arch), 64),
        }
    }

    /// Whether the trace began at boot.
    pub fn is_from_boot(&self) -> bool {
        self.features & u64::from(uapi::VMTRACE_EARLY) != 0
    }

    /// Bytes of a page.
    pub fn page_size(&self) -> u64 {
        1 << self.page_shift
    }

    /// Whether records carry their task's virtual time.
    pub fn has_vtime(&self) -> bool {
        self.features & u64::from(uapi::VMTRACE_VTIME) != 0
    }

    /// Whether the file is a piece of a trace.
    pub fn is_piece(&self) -> bool {
        self.features & u64::from(uapi::VMTRACE_PIECE) != 0
    }

    /// Whether the kernel may have left references out: `VMTRACE_FILTERED`.
    pub fn is_filtered(&self) -> bool {
        self.features & u64::from(uapi::VMTRACE_FILTERED) != 0
    }

    /// Whether regions of memory were sampled, and no reference was recorded: `VMTRACE_REGIONS`.
    pub fn has_regions(&self) -> bool {
        self.features & u64::from(uapi::VMTRACE_REGIONS) != 0
    }

    /// Whether a kernel made the trace that records what the filter leaves out, too, and marks it:
    /// see [`RefFlags::is_left_out`].
    pub fn keeps_left_out(&self) -> bool {
        self.is_filtered() && self.debug_break & KEEPLEFT != 0
    }

    /// Whether the file is the part of one process.
    pub fn is_part(&self) -> bool {
        self.features & part::FEATURE != 0
    }

    /// Whether references carry the offset of the access within its page.
    pub fn has_offsets(&self) -> bool {
        self.features & u64::from(uapi::VMTRACE_OFFSETS) != 0
    }

    /// What references carry besides.
    pub(crate) fn extras(&self) -> Extras {
        Extras::new(self.has_vtime(), self.has_offsets())
    }

    /// Bytes of content that a packet can have.
    pub(crate) fn most_content(&self) -> u64 {
        u64::from(self.buffer_size).max(size_of::<uapi::vmtrace_status>() as u64)
    }

    /// What holds for every reference.
    pub(crate) fn ref_bounds(&self) -> RefBounds {
        let offset = (1 << self.page_shift) - 1;
        RefBounds {
            offsets: self.has_offsets(),
            no_page: offset & !u64::from(uapi::VMTRACE_REF_FLAGS) | !MOST,
            no_flags: match self.keeps_left_out() {
                true => NO_FLAGS & !u64::from(uapi::VMTRACE_REF_LEFT),
                false => NO_FLAGS,
            },
            end: u64::from(self.nr_cpus) << uapi::VMTRACE_TID_BITS,
            last_why: u64::from(match self.interval_ns {
                0 => uapi::VMTRACE_WHY_PIECE,
                _ => uapi::VMTRACE_WHY_INTERVAL,
            }) << uapi::VMTRACE_REF_WHY_SHIFT,
        }
    }

    /// The clock of virtual time, in words.
    pub fn vtime_text(&self) -> &'static str {
        match self.vtime_clock {
            uapi::VMTRACE_VTIME_TSC => "time stamp counter",
            _ => "unknown clock",
        }
    }

    /// Ticks of virtual time as time.
    pub fn vtime_ns(&self, ticks: u64) -> u64 {
        let ns = u128::from(ticks) * 1_000_000 / u128::from(self.vtime_khz.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Bytes of a reference record.
    pub fn ref_size(&self) -> usize {
        REF_SIZE + self.vtime_size() + if self.has_offsets() { OFFSET_SIZE } else { 0 }
    }

    fn vtime_size(&self) -> usize {
        if self.has_vtime() { VTIME_SIZE } else { 0 }
    }

    /// Bytes of an event before its payload.
    pub(crate) fn event_head_size(&self) -> usize {
        EVENT_SIZE + self.vtime_size()
    }

    /// The traced processes, in words.
    pub fn scope_text(&self) -> String {
        match self.scope {
            uapi::VMTRACE_SCOPE_ALL => "whole system".into(),
            uapi::VMTRACE_SCOPE_TREE => format!("process tree of pid {}", self.scope_pid),
            uapi::VMTRACE_SCOPE_CGROUP => format!("control group {}", self.scope_name),
            uapi::VMTRACE_SCOPE_COMM => format!("processes named {}", self.scope_name),
            other => format!("unknown scope {other}"),
        }
    }
}

/// The kind of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamKind {
    /// References.
    Ref,
    /// Events.
    Event,
    /// The kernel's closing account.
    End,
    /// The kernel's accounts of windows.
    Window,
    /// Which piece of a trace a file is.
    Piece,
    /// Events that describe what existed when a piece began.
    State,
    /// The mark before the part of a piece that is its own.
    Own,
    /// What a piece has.
    PieceEnd,
    /// Which part of a trace a file is.
    Part,
    /// Records of other processes that name pages.
    Context,
}

impl StreamKind {
    fn decode(kind: u32) -> Option<Self> {
        match kind {
            uapi::VMTRACE_STREAM_REF => Some(StreamKind::Ref),
            uapi::VMTRACE_STREAM_EVENT => Some(StreamKind::Event),
            uapi::VMTRACE_STREAM_END => Some(StreamKind::End),
            uapi::VMTRACE_STREAM_WINDOW => Some(StreamKind::Window),
            uapi::VMTRACE_STREAM_PIECE => Some(StreamKind::Piece),
            uapi::VMTRACE_STREAM_STATE => Some(StreamKind::State),
            uapi::VMTRACE_STREAM_OWN => Some(StreamKind::Own),
            uapi::VMTRACE_STREAM_PIECE_END => Some(StreamKind::PieceEnd),
            part::KIND_PART => Some(StreamKind::Part),
            part::KIND_CONTEXT => Some(StreamKind::Context),
            _ => None,
        }
    }

    /// Whether its packets hold events.
    pub fn is_of_events(self) -> bool {
        matches!(self, StreamKind::Event | StreamKind::State)
    }

    /// Whether its packets have records as those of references.
    pub fn is_of_refs(self) -> bool {
        matches!(self, StreamKind::Ref | StreamKind::Context)
    }

    /// Whether its packets are only in parts, and not of the trace.
    pub fn is_of_part(self) -> bool {
        matches!(self, StreamKind::Part | StreamKind::Context)
    }

    /// Whether its packets are only in pieces, and not of the trace.
    pub fn is_of_piece(self) -> bool {
        matches!(
            self,
            StreamKind::Piece | StreamKind::State | StreamKind::Own | StreamKind::PieceEnd
        )
    }
}

/// A stream of packets: one of each kind per CPU, and of references one per CPU and set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub struct StreamId {
    /// The kind of records in its packets.
    pub kind: StreamKind,
    /// The CPU that filled them.
    pub cpu: u32,
    /// The EVMS that its references are of; 0 for other kinds.
    pub set: u32,
}

impl std::fmt::Display for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            StreamKind::Ref if self.set == 0 => write!(f, "ref/{}", self.cpu),
            StreamKind::Ref => write!(f, "ref/{}/set {}", self.cpu, self.set),
            StreamKind::Event => write!(f, "event/{}", self.cpu),
            StreamKind::End => write!(f, "end"),
            StreamKind::Window => write!(f, "window"),
            StreamKind::Piece => write!(f, "piece"),
            StreamKind::State => write!(f, "state/{}", self.cpu),
            StreamKind::Own => write!(f, "own"),
            StreamKind::PieceEnd => write!(f, "end of piece"),
            StreamKind::Part => write!(f, "part"),
            StreamKind::Context => write!(f, "context/{}", self.cpu),
        }
    }
}

/// `struct vmtrace_packet`, without its magic and identity.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs, reason = "the UAPI header documents each field")]
pub struct PacketHead {
    pub stream: StreamId,
    pub seq: u64,
    pub first_seq: u64,
    pub last_seq: u64,
    pub first_time_ns: u64,
    pub last_time_ns: u64,
    pub lost_full: u64,
    pub lost_atomic: u64,
    pub lost_io: u64,
    /// How the content is stored; 0: as it is.
    pub codec: u16,
    /// Bytes of the content before it was packed; 0 if it is not packed.
    pub raw_size: u32,
    pub records: u32,
    /// Bytes of the content as it is stored.
    pub content_size: u32,
    pub window: u32,
    pub crc: u32,
}

/// The ways of packing that are known.
const CODECS: u16 =
    (uapi::VMTRACE_CODEC_PACK | uapi::VMTRACE_CODEC_ZSTD | uapi::VMTRACE_CODEC_PACK2) as u16;

/// The most that the base of times lies before a packet's first record, in a trace of several
/// CPUs, in ns.
pub(crate) const EARLY_NS: u64 = 1 << 28;

impl PacketHead {
    /// Decodes a head whose magic was checked before; `None` if its kind is unknown.
    pub(crate) fn decode(b: &[u8; HEAD_SIZE]) -> Option<Self> {
        type P = uapi::vmtrace_packet;
        let kind = StreamKind::decode(get!(b, P, kind, u16).into())?;
        // The set of references, or what events have lost.
        let word = LE::read_u64(&b[offset_of!(P, __bindgen_anon_1)..]);
        let (set, lost_atomic) = match kind {
            StreamKind::Ref => (u32::try_from(word).unwrap_or(u32::MAX), 0),
            _ => (0, word),
        };
        Some(PacketHead {
            stream: StreamId {
                kind,
                cpu: get!(b, P, cpu, u32),
                set,
            },
            seq: get!(b, P, seq, u64),
            first_seq: get!(b, P, first_seq, u64),
            last_seq: get!(b, P, last_seq, u64),
            first_time_ns: get!(b, P, first_time, u64),
            last_time_ns: get!(b, P, last_time, u64),
            lost_full: get!(b, P, lost_full, u64),
            lost_atomic,
            lost_io: get!(b, P, lost_io, u32).into(),
            codec: get!(b, P, codec, u16),
            raw_size: get!(b, P, raw_size, u32),
            records: get!(b, P, records, u32),
            content_size: get!(b, P, content_size, u32),
            window: get!(b, P, window, u32),
            crc: get!(b, P, crc, u32),
        })
    }

    /// Bytes of the packet.
    pub(crate) fn size(&self) -> u64 {
        HEAD_SIZE as u64 + u64::from(self.content_size)
    }

    /// Whether its content is not stored as it is.
    pub fn is_packed(&self) -> bool {
        self.codec != 0
    }

    /// Where in its content the time of the first reference is; `None` if it is compressed.
    pub(crate) fn place_of_first_time(&self) -> Option<u64> {
        const PACK: u16 = uapi::VMTRACE_CODEC_PACK as u16;
        const PACK2: u16 = uapi::VMTRACE_CODEC_PACK2 as u16;
        match self.codec {
            0 => Some(Ref::TIME),
            PACK | PACK2 => Some(offset_of!(uapi::vmtrace_packed, time) as u64),
            _ => None,
        }
    }

    /// Bytes of the content when it is not packed.
    pub(crate) fn unpacked_content(&self) -> u32 {
        match self.is_packed() {
            true => self.raw_size,
            false => self.content_size,
        }
    }

    /// Bytes of the packet when its content is not packed.
    pub(crate) fn unpacked_size(&self) -> u64 {
        HEAD_SIZE as u64 + u64::from(self.unpacked_content())
    }

    /// What is impossible for a packet of a trace with this header, if anything is.
    pub(crate) fn nonsense(&self, header: &Header) -> Option<&'static str> {
        let (records, content) = (u64::from(self.records), u64::from(self.unpacked_content()));
        let room = |size: usize| records * size as u64;
        if self.stream.cpu >= header.nr_cpus {
            return Some("a packet of a CPU that does not exist");
        }
        if self.first_seq.max(self.last_seq) > MOST {
            return Some("a packet with an impossible sequence number");
        }
        if self.first_time_ns.max(self.last_time_ns) > MOST {
            return Some("a packet with an impossible time");
        }
        if self.stream.set != 0
            && !(header.sets.are_several() && self.stream.kind == StreamKind::Ref)
        {
            return Some("a packet of a set that does not exist");
        }
        if self.stream.kind.is_of_piece() && !header.is_piece() {
            return Some("a packet that only a piece of a trace has");
        }
        if self.stream.kind.is_of_part() && !header.is_part() {
            return Some("a packet that only the part of a process has");
        }
        let may_be_packed = self.stream.kind.is_of_refs() || self.stream.kind.is_of_events();
        // Of references or events, whether or not the header says that there are such packets: in a
        // trace that was unpacked, damaged packets are left as they were.
        if self.is_packed() && !may_be_packed {
            return Some("a packed packet where none can be");
        }
        let twice = (uapi::VMTRACE_CODEC_PACK | uapi::VMTRACE_CODEC_PACK2) as u16;
        let only_refs = uapi::VMTRACE_CODEC_PACK2 as u16;
        if self.codec & !CODECS != 0
            || self.codec & twice == twice
            || self.codec & only_refs != 0 && !self.stream.kind.is_of_refs()
        {
            return Some("a packet that is packed in an unknown way");
        }
        if self.raw_size != 0 && !self.is_packed() {
            return Some("the size of packed content in a packet that is not packed");
        }
        if content > header.most_content() {
            return Some("a packet that is longer than a sub-buffer when it is unpacked");
        }
        match self.stream.kind {
            StreamKind::Ref | StreamKind::Context if room(header.ref_size()) != content => {
                Some("a packet whose content has another length than its references")
            }
            StreamKind::Event | StreamKind::State if room(header.event_head_size()) > content => {
                Some("a packet whose content is shorter than its events")
            }
            _ => None,
        }
    }

    /// Whether its base of times may be earlier than its first record.
    pub(crate) fn is_early(&self, header: &Header) -> bool {
        self.stream.kind.is_of_refs() && header.nr_cpus > 1
    }

    /// What the times of its records contradict, if they contradict anything: the time of the first
    /// record, and the latest one.
    pub(crate) fn mistimed(
        &self,
        header: &Header,
        first_ns: u64,
        latest_ns: u64,
    ) -> Option<&'static str> {
        let early = if self.is_early(header) { EARLY_NS } else { 0 };
        // None can be before the base: the format has no number for that.
        if first_ns.wrapping_sub(self.first_time_ns) > early {
            return Some(match early {
                0 => "the first record's time differs from the one in the packet's head",
                _ => "the first record's time is too far from the one in the packet's head",
            });
        }
        (latest_ns != self.last_time_ns)
            .then_some("the latest record's time differs from the one in the packet's head")
    }

    /// Whether an event's number and time lie within the bounds in the head. Its CPU may be
    /// another one than the stream's, which was offline when the trace began.
    pub(crate) fn spans(&self, event: &Event<'_>) -> bool {
        (self.first_seq..=self.last_seq).contains(&event.seq)
            && (self.first_time_ns..=self.last_time_ns).contains(&event.time_ns)
    }

    /// Records lost in this stream until this packet, whatever the cause.
    pub fn lost(&self) -> u64 {
        self.lost_full
            .saturating_add(self.lost_atomic)
            .saturating_add(self.lost_io)
    }
}

/// The identity in a packet's head.
pub(crate) fn packet_uuid(b: &[u8; HEAD_SIZE]) -> Uuid {
    uuid_at(b, offset_of!(uapi::vmtrace_packet, uuid))
}

/// The magic in a packet's head.
pub(crate) fn packet_magic(b: &[u8; HEAD_SIZE]) -> u64 {
    LE::read_u64(&b[..8])
}

/// The checksum that a head and its content should carry.
pub(crate) fn packet_crc(head: &[u8; HEAD_SIZE], content: &[u8]) -> u32 {
    let at = offset_of!(uapi::vmtrace_packet, crc);
    let mut zeroed = *head;
    zeroed[at..at + 4].fill(0);
    crc32c::crc32c_append(crc32c::crc32c(&zeroed), content)
}

/// Corrects the checksums of all packets of a trace that was changed, up to the first head that is invalid.
pub fn mend_checksums(trace: &mut [u8]) {
    type P = uapi::vmtrace_packet;
    let crc_at = offset_of!(P, crc);
    let mut rest = trace.get_mut(HEADER_SIZE..).unwrap_or_default();
    while let Some((head, after)) = rest.split_first_chunk_mut::<HEAD_SIZE>() {
        let size = get!(head, P, content_size, u32) as usize;
        let Some((content, after)) = after.split_at_mut_checked(size) else {
            return;
        };
        let crc = packet_crc(head, content);
        LE::write_u32(&mut head[crc_at..], crc);
        rest = after;
    }
}

/// Why a residency ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the UAPI header documents each value")]
pub enum Why {
    Evicted,
    Unmapped,
    Cow,
    Protected,
    Reclaimed,
    Moved,
    Exit,
    Drained,
    Migrated,
    Advised,
    Truncated,
    Other,
    Renewed,
    Chance,
    Piece,
    Interval,
}

impl Why {
    /// Every value, in the order of their numbers.
    pub const ALL: [Why; 16] = [
        Why::Evicted,
        Why::Unmapped,
        Why::Cow,
        Why::Protected,
        Why::Reclaimed,
        Why::Moved,
        Why::Exit,
        Why::Drained,
        Why::Migrated,
        Why::Advised,
        Why::Truncated,
        Why::Other,
        Why::Renewed,
        Why::Chance,
        Why::Piece,
        Why::Interval,
    ];

    fn from_number(number: u64) -> Self {
        Self::ALL[(number as usize).min(Self::ALL.len() - 1)]
    }

    /// The name used in all output.
    pub fn name(self) -> &'static str {
        match self {
            Why::Evicted => "evicted",
            Why::Unmapped => "unmapped",
            Why::Cow => "cow",
            Why::Protected => "protected",
            Why::Reclaimed => "reclaimed",
            Why::Moved => "moved",
            Why::Exit => "exit",
            Why::Drained => "drained",
            Why::Migrated => "migrated",
            Why::Advised => "advised",
            Why::Truncated => "truncated",
            Why::Other => "other",
            Why::Renewed => "renewed",
            Why::Chance => "chance",
            Why::Piece => "piece",
            Why::Interval => "interval",
        }
    }
}

/// The flags of a reference: the low bits of `vmtrace_ref.page`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefFlags(pub u16);

impl RefFlags {
    /// The number of values of [`RefFlags::index`].
    pub const INDEXES: usize = 1024;

    /// The defined flags, as an index into a histogram.
    pub fn index(self) -> usize {
        usize::from(self.0) & (Self::INDEXES - 1)
    }

    /// The kind of the admitting access.
    pub fn access(self) -> Access {
        match u32::from(self.0) & uapi::VMTRACE_REF_KIND {
            uapi::VMTRACE_REF_READ => Access::Read,
            uapi::VMTRACE_REF_WRITE => Access::Write,
            uapi::VMTRACE_REF_EXEC => Access::Exec,
            _ => Access::Seen,
        }
    }

    /// Whether the record is a renewal, which is not a reference: the stay of the page's last
    /// record goes on.
    #[inline]
    pub fn continues(self) -> bool {
        u32::from(self.0) & uapi::VMTRACE_REF_CONT != 0
    }

    /// Whether the filter would have left the record out. Only in traces of a negative control: see
    /// [`Header::keeps_left_out`].
    pub fn is_left_out(self) -> bool {
        u32::from(self.0) & uapi::VMTRACE_REF_LEFT != 0
    }

    /// Whether the kernel made the access on behalf of the program.
    pub fn kernel(self) -> bool {
        u32::from(self.0) & uapi::VMTRACE_REF_KERNEL != 0
    }

    /// Whether a store to the page was made or begun in this stay.
    pub fn dirtied(self) -> bool {
        u32::from(self.0) & uapi::VMTRACE_REF_DIRTIED != 0
    }

    /// Whether the page was referenced in the second segment.
    pub fn again(self) -> bool {
        u32::from(self.0) & uapi::VMTRACE_REF_AGAIN != 0
    }

    /// Why the residency ended.
    pub fn why(self) -> Why {
        let number = u32::from(self.0) & uapi::VMTRACE_REF_WHY;
        Why::from_number(u64::from(number >> uapi::VMTRACE_REF_WHY_SHIFT))
    }

    /// Whether the page must be written back when it is replaced.
    pub fn writes(self) -> bool {
        self.access() == Access::Write || self.dirtied()
    }
}

/// A reference: one residency in the EVMS.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ref {
    /// Global sequence number of the admission.
    pub seq: u64,
    /// Time of the admission.
    pub time_ns: u64,
    /// Where the record lies in the file.
    pub offset: u64,
    /// Virtual page address and flags.
    pub page: u64,
    /// Thread and CPU.
    pub tid_cpu: u32,
    /// The address space.
    pub mm: Mm,
    /// Length of the residency in units of `header.stay_shift`.
    pub stay: u32,
    /// Page frame number, saturating.
    pub pfn: u32,
    /// The EVMS that the page was in.
    pub set: u32,
    /// The task's virtual time, in ticks; 0 if the trace has none.
    pub vtime: u64,
    /// The offset of the access within its page; [`NO_OFFSET`] if it is not known.
    pub within: u64,
}

impl Ref {
    /// Decodes one record with these extras, of a packet with this head.
    #[inline]
    pub(crate) fn decode(b: &[u8], offset: u64, head: &PacketHead, extras: Extras) -> Self {
        type R = uapi::vmtrace_ref;
        let first = b.get(REF_SIZE..).and_then(|rest| rest.first_chunk());
        let first = first.map(|raw| u64::from_le_bytes(*raw));
        let last = b.last_chunk().map_or(0, |raw| u64::from_le_bytes(*raw));
        let (vtime, within) = match extras {
            Extras::NONE => (0, NO_OFFSET),
            Extras::VTIME => (first.unwrap_or(0), NO_OFFSET),
            Extras::OFFSET => (0, last),
            _ => (first.unwrap_or(0), last),
        };
        Ref {
            vtime,
            within,
            seq: head.first_seq.wrapping_add(u64::from(get!(b, R, seq, u32))),
            time_ns: head
                .first_time_ns
                .wrapping_add(u64::from(get!(b, R, time, u32))),
            offset,
            page: get!(b, R, page, u64),
            tid_cpu: get!(b, R, tid_cpu, u32),
            mm: Mm(get!(b, R, mm, u32)),
            stay: get!(b, R, stay, u32),
            pfn: get!(b, R, pfn, u32),
            set: head.stream.set,
        }
    }

    /// A reference to a page of a file that was read or written. Only its thread and its time are
    /// known.
    pub(crate) fn of_io(event: &Event<'_>, write: bool) -> Self {
        let kind = match write {
            true => uapi::VMTRACE_REF_WRITE,
            false => uapi::VMTRACE_REF_READ,
        };
        let tid = event.tid.0 & ((1 << uapi::VMTRACE_TID_BITS) - 1);
        Ref {
            seq: event.seq,
            time_ns: event.time_ns,
            vtime: event.vtime.unwrap_or(0),
            offset: event.offset,
            page: u64::from(kind | uapi::VMTRACE_REF_KERNEL),
            tid_cpu: tid | event.cpu << uapi::VMTRACE_TID_BITS,
            mm: event.mm,
            stay: u32::MAX,
            pfn: u32::MAX,
            set: 0,
            within: NO_OFFSET,
        }
    }

    /// The offset of the access within its page, if it is known. Of a huge page, it may be larger
    /// than a page.
    #[inline]
    pub fn within(&self) -> Option<u64> {
        (self.within != NO_OFFSET).then_some(self.within)
    }

    /// The address of the access, or of its page if the offset is not known.
    #[inline]
    pub fn exact(&self) -> u64 {
        self.address() | self.within().unwrap_or(0)
    }

    /// The time alone, of the bytes that [`Ref::TIME`] says.
    pub(crate) fn time_of(b: [u8; 4], base_time: u64) -> u64 {
        base_time.wrapping_add(u64::from(u32::from_le_bytes(b)))
    }

    /// Where in a record its time lies.
    pub(crate) const TIME: u64 = offset_of!(uapi::vmtrace_ref, time) as u64;

    /// The sequence number alone.
    #[inline]
    pub(crate) fn peek_seq(b: &[u8; REF_SIZE], base_seq: u64) -> u64 {
        base_seq.wrapping_add(u64::from(get!(b, uapi::vmtrace_ref, seq, u32)))
    }

    /// Address of the page's first byte.
    pub fn address(&self) -> u64 {
        self.page & !u64::from(uapi::VMTRACE_REF_FLAGS)
    }

    /// The virtual page.
    #[inline]
    pub fn vpn(&self, page_shift: u32) -> VirtPage {
        VirtPage(self.page >> page_shift)
    }

    /// The flags.
    #[inline]
    pub fn flags(&self) -> RefFlags {
        RefFlags((self.page & u64::from(uapi::VMTRACE_REF_FLAGS)) as u16)
    }

    /// The thread that made the access.
    #[inline]
    pub fn tid(&self) -> Tid {
        Tid(self.tid_cpu & ((1 << uapi::VMTRACE_TID_BITS) - 1))
    }

    /// The CPU on which that thread ran.
    pub fn cpu(&self) -> u32 {
        self.tid_cpu >> uapi::VMTRACE_TID_BITS
    }

    /// When the residency ended; `None` if its length saturated.
    #[inline]
    pub fn end_ns(&self, stay_shift: u32) -> Option<u64> {
        (self.stay != u32::MAX).then(|| {
            self.time_ns
                .saturating_add(u64::from(self.stay) << stay_shift)
        })
    }

    /// The same reference with a later time. Its stay ends when it did, or at once.
    pub(crate) fn at(&self, time_ns: u64, stay_shift: u32) -> Ref {
        let stay = match self.end_ns(stay_shift) {
            // Not more than it was.
            Some(end) => (end.saturating_sub(time_ns) >> stay_shift) as u32,
            None => self.stay,
        };
        Ref {
            time_ns,
            stay,
            ..*self
        }
    }
}

/// Bytes of the largest huge page.
const MOST_OFFSET: u64 = 1 << 30;

/// What holds for every reference of a trace.
pub(crate) struct RefBounds {
    /// Whether they have offsets.
    offsets: bool,
    /// Bits of [`Ref::page`] that are clear: those of the offset within a page, except the flags,
    /// and the highest bit, which only kernel addresses have.
    no_page: u64,
    /// Flags that the trace cannot have.
    no_flags: u64,
    /// [`Ref::tid_cpu`] is below this.
    end: u64,
    /// The last reason why a record ends, where it lies in [`Ref::page`].
    last_why: u64,
}

/// The low bits of [`Ref::page`] that mean nothing.
const NO_FLAGS: u64 = (uapi::VMTRACE_REF_FLAGS
    & !(uapi::VMTRACE_REF_KIND
        | uapi::VMTRACE_REF_KERNEL
        | uapi::VMTRACE_REF_DIRTIED
        | uapi::VMTRACE_REF_AGAIN
        | uapi::VMTRACE_REF_WHY
        | uapi::VMTRACE_REF_CONT)) as u64;

impl RefBounds {
    /// Whether they hold for a reference, each of which is asked about.
    #[inline]
    pub(crate) fn hold(&self, r: &Ref) -> bool {
        let clear = r.page & (self.no_page | self.no_flags) == 0;
        let why = r.page & u64::from(uapi::VMTRACE_REF_WHY);
        // One branch.
        clear & (why <= self.last_why) & (u64::from(r.tid_cpu) < self.end) & self.is_within(r)
    }

    /// Whether the offset is one that the page can have, or none. A huge page has 1 GiB at most,
    /// and its size divides its address. Only an access that the accessed bit has shown has none.
    #[inline]
    fn is_within(&self, r: &Ref) -> bool {
        let seen = r.page & u64::from(uapi::VMTRACE_REF_KIND) == u64::from(uapi::VMTRACE_REF_SEEN);
        let room = 1u64 << (r.address() | MOST_OFFSET).trailing_zeros();
        let none = r.within == NO_OFFSET;
        none & (seen | !self.offsets) | (r.within < room) & !seen
    }

    /// Which one does not hold, in words.
    #[cold]
    pub(crate) fn broken(&self, r: &Ref) -> &'static str {
        if !self.is_within(r) {
            return "a reference with an impossible offset within its page";
        }
        if r.page & self.no_page != 0 {
            "a reference to an address where no page can be"
        } else if r.page & self.no_flags != 0 {
            "a reference with flags that do not exist"
        } else if u64::from(r.tid_cpu) >= self.end {
            "a reference on a CPU that does not exist"
        } else {
            "a reference whose record ended for a reason that does not exist"
        }
    }
}

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
    pub(super) fn set_aside(self, why: NoNews) -> Self {
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

/// `struct vmtrace_status`: the kernel's own account, the END packet's content.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the UAPI header documents each field")]
pub struct Status {
    pub size: u32,
    pub state: u32,
    pub error: i32,
    pub scope: u32,
    pub pid: i32,
    pub evms_size: u32,
    pub evms_min: u32,
    pub nr_cpus: u32,
    pub uuid: Uuid,
    pub start_time_ns: u64,
    pub stop_time_ns: u64,
    pub last_seq: u64,
    pub admissions: u64,
    pub refs: u64,
    pub events: u64,
    pub aborted: u64,
    pub members: u64,
    pub members_max: u64,
    pub funny: u64,
    pub stuck: u64,
    pub audits: u64,
    /// Address spaces that an audit could not look at, because a task kept them locked.
    pub unaudited: u32,
    pub dangling: u64,
    pub miscounted: u64,
    pub uncovered: u64,
    pub lost_full: u64,
    pub lost_atomic: u64,
    pub lost_io: u64,
    pub waits: u64,
    pub packets: u64,
    pub bytes: u64,
    pub mms: u64,
    pub renewed: u64,
    pub chances: u64,
    pub flags: u32,
    pub first_segment: u32,
    pub policy: u32,
    /// K at the end; 1 in traces of kernels without batches.
    pub batch: u32,
    pub evms_max: u32,
    pub evms_peak: u32,
    pub classes: u32,
    pub windows: u32,
    pub windows_begun: u32,
    pub windows_ended: u32,
    pub sets: Sets,
    /// Sets made, without set 0.
    pub sets_made: u64,
    /// The most of these that there were at once.
    pub sets_max: u64,
    /// Address spaces that use set 0 because there was no memory for a set of their own.
    pub sets_shared: u64,
    /// Bytes written; less than `bytes` if packets were packed. 0 in traces of kernels that do not
    /// pack.
    pub stored: u64,
    /// The last piece, and bytes of its own part, of a trace that was written in pieces; else 0.
    pub piece: u32,
    pub piece_bytes: u64,
    /// Records of references that a filter has left out. 0 in traces of kernels without filters, and
    /// of a piece alone, whose end does not tell these from numbers that were given up. Of a window
    /// alone that has losses, at least so many.
    pub left_out: u64,
    /// For how long traced tasks had a CPU, ns, also between windows. 0 in traces of older kernels,
    /// and of a window or a piece alone.
    pub ran_ns: u64,
    pub output: String,
}

impl Status {
    /// Decodes the content of an END packet; `None` if it is too short, or contains impossible
    /// values.
    pub(crate) fn decode(b: &[u8]) -> Option<Self> {
        type S = uapi::vmtrace_status;
        // Kernels without several sets had none of what follows the output's name.
        let mut whole = [0; size_of::<S>()];
        let len = b.len().min(whole.len());
        if len < offset_of!(S, sets) {
            return None;
        }
        whole[..len].copy_from_slice(&b[..len]);
        let b = &whole;
        let status = Status {
            size: get!(b, S, size, u32),
            state: get!(b, S, state, u32),
            error: get!(b, S, error, i32),
            scope: get!(b, S, scope, u32),
            pid: get!(b, S, pid, i32),
            evms_size: get!(b, S, evms_size, u32),
            evms_min: get!(b, S, evms_min, u32),
            nr_cpus: get!(b, S, nr_cpus, u32),
            uuid: uuid_at(b, offset_of!(S, uuid)),
            start_time_ns: get!(b, S, start_time, u64),
            stop_time_ns: get!(b, S, stop_time, u64),
            last_seq: get!(b, S, last_seq, u64),
            admissions: get!(b, S, admissions, u64),
            refs: get!(b, S, refs, u64),
            events: get!(b, S, events, u64),
            aborted: get!(b, S, aborted, u64),
            members: get!(b, S, members, u64),
            members_max: get!(b, S, members_max, u64),
            funny: get!(b, S, funny, u64),
            stuck: get!(b, S, stuck, u64),
            audits: get!(b, S, audits, u64),
            unaudited: get!(b, S, unaudited, u32),
            dangling: get!(b, S, dangling, u64),
            miscounted: get!(b, S, miscounted, u64),
            uncovered: get!(b, S, uncovered, u64),
            lost_full: get!(b, S, lost_full, u64),
            lost_atomic: get!(b, S, lost_atomic, u64),
            lost_io: get!(b, S, lost_io, u64),
            waits: get!(b, S, waits, u64),
            packets: get!(b, S, packets, u64),
            bytes: get!(b, S, bytes, u64),
            mms: get!(b, S, mms, u64),
            renewed: get!(b, S, renewed, u64),
            chances: get!(b, S, chances, u64),
            flags: get!(b, S, flags, u32),
            first_segment: get!(b, S, first_segment, u32),
            policy: get!(b, S, policy, u16).into(),
            batch: u32::from(get!(b, S, batch, u16)).max(1),
            evms_max: get!(b, S, evms_max, u32),
            evms_peak: get!(b, S, evms_peak, u32),
            classes: get!(b, S, classes, u32),
            windows: get!(b, S, windows, u32),
            windows_begun: get!(b, S, windows_begun, u32),
            windows_ended: get!(b, S, windows_ended, u32),
            sets: Sets::decode(get!(b, S, sets, u32)),
            sets_made: get!(b, S, sets_made, u64),
            sets_max: get!(b, S, sets_max, u64),
            sets_shared: get!(b, S, sets_shared, u64),
            stored: get!(b, S, stored, u64),
            piece: get!(b, S, piece, u32),
            piece_bytes: get!(b, S, piece_bytes, u64),
            left_out: get!(b, S, left_out, u64),
            ran_ns: get!(b, S, ran, u64),
            output: text_at(b, offset_of!(S, output), 256),
        };
        let all = [status.start_time_ns, status.stop_time_ns, status.last_seq];
        all.iter().all(|&n| n <= MOST).then_some(status)
    }

    /// Records lost, whatever the cause.
    pub fn lost(&self) -> u64 {
        self.lost_full
            .saturating_add(self.lost_atomic)
            .saturating_add(self.lost_io)
    }
}
