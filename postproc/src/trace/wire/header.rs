//! The head of a trace: how it was made.

use rust_mm_trace::record::Extras;
use rust_mm_trace::uapi;
use serde::Serialize;

use super::{EVENT_SIZE, HEADER_SIZE, OFFSET_SIZE, REF_SIZE, Status, Uuid, VTIME_SIZE, text};
use crate::trace::part;

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

view! {
    /// `struct vmtrace_header`, without its magic, padding and checksum.
    #[derive(Clone, Debug, Serialize)]
    #[allow(missing_docs, reason = "the UAPI header documents each field")]
    pub struct Header of |raw: uapi::vmtrace_header| {
        pub version: u32,
        pub uuid: Uuid = Uuid(raw.uuid),
        pub start_time_ns: u64 = raw.start_time,
        pub realtime_offset_ns: i64 = raw.realtime_offset,
        pub features: u64,
        /// N, in pages.
        pub evms_size: u32,
        pub first_segment: u32,
        pub policy: u32,
        pub scope: u32,
        pub scope_pid: i32,
        /// The path of the control group, or the pattern for names, that is traced; else empty.
        pub scope_name: String = text(&raw.scope_name),
        /// All stays end each so many ns; 0 in traces whose stays do not end so.
        pub interval_ns: u64 = raw.interval,
        /// How regions of memory are sampled; `None` in traces of references.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub sampling: Option<Sampling> = Sampling::decode(&raw.sampling, raw.features),
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
        pub batch: u32 = raw.batch.max(1),
        /// What has an EVMS of its own.
        pub sets: Sets = Sets::decode(raw.sets),
        /// `None` if the whole run was traced, from the start to the end.
        pub windows: Option<WindowPlan> = {
            let plan = WindowPlan {
                count: raw.windows,
                time_ns: raw.window_time,
                references: raw.window_refs,
                warmup_ns: raw.warmup,
                skip_ns: raw.skip,
                on_request: raw.features & u64::from(uapi::VMTRACE_PAUSABLE) != 0,
            };
            let has_any = plan.time_ns != 0 || plan.references != 0 || plan.on_request;
            has_any.then_some(plan)
        },
        pub release: String = text(&raw.release),
        pub arch: String = text(&raw.arch),
    }
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
    pub(super) fn decode(number: u32) -> Self {
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
            SampledBy::Unknown => "something that this program does not know",
        }
    }
}

view! {
    /// `struct vmtrace_sampling`: how regions of memory are sampled.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
    pub struct Sampling of |raw: uapi::vmtrace_sampling| {
        /// From one look at a page of each region to the next, ns.
        pub sample_ns: u64 = raw.sample,
        /// From one report to the next, ns.
        pub aggregate_ns: u64 = raw.aggregate,
        /// After so long, regions are adapted to the mappings, ns.
        pub update_ns: u64 = raw.update,
        /// The least regions of an address space that has as many pages.
        pub min_regions: u32,
        /// The most regions of an address space.
        pub max_regions: u32,
        /// What shows an access.
        pub by: SampledBy = match raw.by {
            uapi::VMTRACE_BY_ACCESSED => SampledBy::Accessed,
            uapi::VMTRACE_BY_FAULT => SampledBy::Fault,
            _ => SampledBy::Unknown,
        },
        /// A window of references begins when so many thousandths of the memory in use change; 0: on
        /// request only.
        pub change: u32,
    }
}

impl Sampling {
    /// Decodes what a header with these features has: `None` if regions are not sampled, and the
    /// header has nothing about them.
    fn decode(raw: &uapi::vmtrace_sampling, features: u64) -> Option<Self> {
        let is_sampled = features & u64::from(uapi::VMTRACE_REGIONS) != 0;
        (is_sampled || *raw != Default::default()).then(|| Sampling::of(raw))
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
    /// Time between two windows, ns, in which no reference is recorded. If regions are sampled between
    /// windows, the least time before one that begins because of a change.
    pub skip_ns: u64,
    /// Windows begin on request, and end on request or at their limit (`activator pause`).
    pub on_request: bool,
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
        Header::of(&zerocopy::transmute!(*b))
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

    /// Whether regions of memory were sampled: `VMTRACE_REGIONS`. Then references are recorded in some of
    /// the windows only, or not at all if there are no windows.
    pub fn has_regions(&self) -> bool {
        self.features & u64::from(uapi::VMTRACE_REGIONS) != 0
    }

    /// Whether a kernel made the trace that records what the filter leaves out, too, and marks it:
    /// see [`super::RefFlags::is_left_out`].
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
