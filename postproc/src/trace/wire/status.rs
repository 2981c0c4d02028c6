//! The kernel's accounts: of a trace, and of each window.

use std::mem::offset_of;

use rust_mm_trace::uapi;
use serde::Serialize;

use super::{Header, MOST, Sets, Uuid, read, text};

view! {
    /// `struct vmtrace_status`: the kernel's own account, the END packet's content.
    #[derive(Clone, Debug, Serialize)]
    #[allow(missing_docs, reason = "the UAPI header documents each field")]
    pub struct Status of |raw: uapi::vmtrace_status| {
        pub size: u32,
        pub state: u32,
        pub error: i32,
        pub scope: u32,
        pub pid: i32,
        pub evms_size: u32,
        pub evms_min: u32,
        pub nr_cpus: u32,
        pub uuid: Uuid = Uuid(raw.uuid),
        pub start_time_ns: u64 = raw.start_time,
        pub stop_time_ns: u64 = raw.stop_time,
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
        pub policy: u32 = raw.policy.into(),
        /// K at the end; 1 in traces of kernels without batches.
        pub batch: u32 = u32::from(raw.batch).max(1),
        pub evms_max: u32,
        pub evms_peak: u32,
        pub classes: u32,
        pub windows: u32,
        pub windows_begun: u32,
        pub windows_ended: u32,
        pub sets: Sets = Sets::decode(raw.sets),
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
        pub ran_ns: u64 = raw.ran,
        pub output: String = text(&raw.output),
    }
}

impl Status {
    /// Decodes the content of an END packet; `None` if it is too short, or contains impossible
    /// values.
    pub(crate) fn decode(b: &[u8]) -> Option<Self> {
        type S = uapi::vmtrace_status;
        // Kernels without several sets had none of what follows the output's name.
        let mut whole = [0u8; size_of::<S>()];
        let len = b.len().min(whole.len());
        if len < offset_of!(S, sets) {
            return None;
        }
        whole[..len].copy_from_slice(&b[..len]);
        let status = Status::of(&zerocopy::transmute!(whole));
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
    /// A window of regions: the use of memory changed, so a window of references follows.
    Change,
    /// A window of regions: a window of references was asked for.
    Resume,
    /// A window of regions: another one follows in the next piece.
    Piece,
    /// A window of regions: the trace was ended.
    #[serde(rename = "stop")]
    Over,
    /// A window of regions: the time came for a window of references.
    #[serde(rename = "time")]
    Next,
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
            WindowEnd::Change => "change",
            WindowEnd::Resume => "resume",
            WindowEnd::Piece => "piece",
            WindowEnd::Over => "stop",
            WindowEnd::Next => "time",
            WindowEnd::Unknown => "unknown",
        }
    }

    /// Whether the window was one of regions, in which no references are recorded.
    pub fn is_of_regions(self) -> bool {
        matches!(
            self,
            WindowEnd::Change
                | WindowEnd::Resume
                | WindowEnd::Piece
                | WindowEnd::Over
                | WindowEnd::Next
        )
    }
}

view! {
    /// `struct vmtrace_window`: the kernel's account of a window.
    #[derive(Clone, Copy, Debug, Serialize)]
    #[allow(missing_docs, reason = "the UAPI header documents each field")]
    pub struct WindowAccount of |raw: uapi::vmtrace_window| {
        pub number: u32,
        pub why: WindowEnd = match raw.why {
            uapi::VMTRACE_WINDOW_TIME => WindowEnd::Time,
            uapi::VMTRACE_WINDOW_REFS => WindowEnd::References,
            uapi::VMTRACE_WINDOW_STOP => WindowEnd::Stop,
            uapi::VMTRACE_WINDOW_PAUSE => WindowEnd::Pause,
            uapi::VMTRACE_WINDOW_CHANGE => WindowEnd::Change,
            uapi::VMTRACE_WINDOW_RESUME => WindowEnd::Resume,
            uapi::VMTRACE_WINDOW_PIECE => WindowEnd::Piece,
            uapi::VMTRACE_WINDOW_OVER => WindowEnd::Over,
            uapi::VMTRACE_WINDOW_NEXT => WindowEnd::Next,
            _ => WindowEnd::Unknown,
        },
        pub start_time_ns: u64 = raw.start_time,
        pub stop_time_ns: u64 = raw.stop_time,
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
}

impl WindowAccount {
    /// Decodes the content of a WINDOW packet; `None` if it is too short, or contains impossible
    /// values.
    pub(crate) fn decode(b: &[u8]) -> Option<Self> {
        let account = WindowAccount::of(&read(b)?);
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
