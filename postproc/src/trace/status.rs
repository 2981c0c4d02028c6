//! What the kernel counted.

use super::{Fields, c_text, prefix};
use rust_mm_trace::uapi::{self, vmtrace_status as S};
use serde::Serialize;
use std::mem::offset_of;

/// `struct vmtrace_status`, the content of the packet that ends a trace.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)] // As in the UAPI header, where each is described.
pub struct Status {
    pub state: u32,
    pub error: i32,
    pub evms_size: u32,
    pub evms_min: u32,
    pub nr_cpus: u32,
    pub start_time: u64,
    pub stop_time: u64,
    pub last_seq: u64,
    pub admissions: u64,
    pub refs: u64,
    pub events: u64,
    pub aborted: u64,
    pub members: u64,
    pub members_max: u64,
    pub funny: u64,
    pub stuck: u64,
    pub uncovered: u64,
    pub lost_full: u64,
    pub lost_atomic: u64,
    pub lost_io: u64,
    pub waits: u64,
    pub packets: u64,
    pub bytes: u64,
    pub mms: u64,
    pub output: String,
}

impl Status {
    /// Decodes the content of an END packet; none if it is too short.
    pub(super) fn decode(content: &[u8]) -> Option<Self> {
        let b = prefix::<S>(content)?;
        Some(Self {
            state: b.u32_at(offset_of!(S, state)),
            error: b.u32_at(offset_of!(S, error)) as i32,
            evms_size: b.u32_at(offset_of!(S, evms_size)),
            evms_min: b.u32_at(offset_of!(S, evms_min)),
            nr_cpus: b.u32_at(offset_of!(S, nr_cpus)),
            start_time: b.u64_at(offset_of!(S, start_time)),
            stop_time: b.u64_at(offset_of!(S, stop_time)),
            last_seq: b.u64_at(offset_of!(S, last_seq)),
            admissions: b.u64_at(offset_of!(S, admissions)),
            refs: b.u64_at(offset_of!(S, refs)),
            events: b.u64_at(offset_of!(S, events)),
            aborted: b.u64_at(offset_of!(S, aborted)),
            members: b.u64_at(offset_of!(S, members)),
            members_max: b.u64_at(offset_of!(S, members_max)),
            funny: b.u64_at(offset_of!(S, funny)),
            stuck: b.u64_at(offset_of!(S, stuck)),
            uncovered: b.u64_at(offset_of!(S, uncovered)),
            lost_full: b.u64_at(offset_of!(S, lost_full)),
            lost_atomic: b.u64_at(offset_of!(S, lost_atomic)),
            lost_io: b.u64_at(offset_of!(S, lost_io)),
            waits: b.u64_at(offset_of!(S, waits)),
            packets: b.u64_at(offset_of!(S, packets)),
            bytes: b.u64_at(offset_of!(S, bytes)),
            mms: b.u64_at(offset_of!(S, mms)),
            output: c_text(&b[offset_of!(S, output)..]),
        })
    }

    /// Records lost, whatever the cause.
    pub fn lost(&self) -> u64 {
        self.lost_full
            .saturating_add(self.lost_atomic)
            .saturating_add(self.lost_io)
    }

    /// The state, for people.
    pub fn state_text(&self) -> &'static str {
        match self.state {
            uapi::VMTRACE_STATE_OFF => "ended well",
            uapi::VMTRACE_STATE_ON => "on",
            uapi::VMTRACE_STATE_FAILED => "failed",
            _ => "unknown",
        }
    }
}
