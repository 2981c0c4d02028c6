//! The trace header.

use super::{Fields, c_text};
use crate::error::{Error, Result};
use rust_mm_trace::uapi::{self, vmtrace_header as H};
use serde::Serialize;
use std::mem::offset_of;
use std::path::Path;

/// `struct vmtrace_header`, checked.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Header {
    /// Format version.
    pub version: u32,
    /// Identity of the trace, as 32 hexadecimal digits.
    #[serde(serialize_with = "hex")]
    pub uuid: [u8; 16],
    /// Start, ns of `clock`.
    pub start_time: u64,
    /// Add to a time to get ns since the Unix epoch.
    pub realtime_offset: i64,
    /// Bits of recorded extras.
    pub features: u64,
    /// N: most pages enabled at once.
    pub evms_size: u32,
    /// Entries of the first segment; 0 when there is one segment.
    pub first_segment: u32,
    /// 0 FIFO.
    pub policy: u32,
    /// VMTRACE_SCOPE_*.
    pub scope: u32,
    /// Root of the traced tree; 0 for the whole system.
    pub scope_pid: i32,
    /// log2 of the page size.
    pub page_shift: u32,
    /// Possible CPUs.
    pub nr_cpus: u32,
    /// VMTRACE_CLOCK_*.
    pub clock: u32,
    /// VMTRACE_OFF_* bits.
    pub forced_off: u32,
    /// 0 block.
    pub loss_mode: u32,
    /// Bytes of a sub-buffer.
    pub buffer_size: u32,
    /// Sub-buffers of each stream.
    pub nr_buffers: u32,
    /// Unit of a stay is `1 << stay_shift` ns.
    pub stay_shift: u32,
    /// Protections taken away for a negative control; 0 normally.
    pub debug_break: u32,
    /// Kernel release.
    pub release: String,
    /// Machine.
    pub arch: String,
}

fn hex<S: serde::Serializer>(uuid: &[u8; 16], s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&uuid_text(uuid))
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|b| format!("{b:02x}")).collect()
}

impl Header {
    /// Decodes and checks the first bytes of a file.
    pub(super) fn decode(path: &Path, bytes: &[u8]) -> Result<Self> {
        let mut word = [0; 8];
        let n = bytes.len().min(8);
        word[..n].copy_from_slice(&bytes[..n]);
        let found = u64::from_le_bytes(word);
        if found != uapi::VMTRACE_MAGIC {
            return Err(Error::NotATrace {
                path: path.to_owned(),
                found,
                expected: uapi::VMTRACE_MAGIC,
            });
        }
        let size = uapi::VMTRACE_HEADER_SIZE as usize;
        let Some(b) = bytes.get(..size) else {
            return Err(Error::ShortHeader {
                path: path.to_owned(),
                len: bytes.len() as u64,
                expected: size as u64,
            });
        };
        let version = b.u32_at(offset_of!(H, version));
        if version != uapi::VMTRACE_VERSION {
            return Err(Error::UnknownVersion {
                path: path.to_owned(),
                found: version,
                known: uapi::VMTRACE_VERSION,
            });
        }
        let computed = crc32c::crc32c(&b[..offset_of!(H, crc)]);
        let recorded = b.u32_at(offset_of!(H, crc));
        if computed != recorded {
            return Err(Error::BadHeaderCrc {
                path: path.to_owned(),
                end: offset_of!(H, crc) as u64 - 1,
                computed,
                recorded,
            });
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&b[offset_of!(H, uuid)..][..16]);
        let header = Self {
            version,
            uuid,
            start_time: b.u64_at(offset_of!(H, start_time)),
            realtime_offset: b.u64_at(offset_of!(H, realtime_offset)) as i64,
            features: b.u64_at(offset_of!(H, features)),
            evms_size: b.u32_at(offset_of!(H, evms_size)),
            first_segment: b.u32_at(offset_of!(H, first_segment)),
            policy: b.u32_at(offset_of!(H, policy)),
            scope: b.u32_at(offset_of!(H, scope)),
            scope_pid: b.u32_at(offset_of!(H, scope_pid)) as i32,
            page_shift: b.u32_at(offset_of!(H, page_shift)),
            nr_cpus: b.u32_at(offset_of!(H, nr_cpus)),
            clock: b.u32_at(offset_of!(H, clock)),
            forced_off: b.u32_at(offset_of!(H, forced_off)),
            loss_mode: b.u32_at(offset_of!(H, loss_mode)),
            buffer_size: b.u32_at(offset_of!(H, buffer_size)),
            nr_buffers: b.u32_at(offset_of!(H, nr_buffers)),
            stay_shift: b.u32_at(offset_of!(H, stay_shift)),
            debug_break: b.u32_at(offset_of!(H, debug_break)),
            release: c_text(&b[offset_of!(H, release)..][..128]),
            arch: c_text(&b[offset_of!(H, arch)..][..64]),
        };
        let bad = |field, value: u32, offset: usize| {
            Err(Error::BadHeaderField {
                path: path.to_owned(),
                field,
                value: value.into(),
                offset: offset as u64,
            })
        };
        let header_size = b.u32_at(offset_of!(H, header_size));
        if header_size != uapi::VMTRACE_HEADER_SIZE {
            return bad("header_size", header_size, offset_of!(H, header_size));
        }
        if !(12..=24).contains(&header.page_shift) {
            return bad("page_shift", header.page_shift, offset_of!(H, page_shift));
        }
        if header.stay_shift > 32 {
            return bad("stay_shift", header.stay_shift, offset_of!(H, stay_shift));
        }
        if header.evms_size == 0 {
            return bad("evms_size", 0, offset_of!(H, evms_size));
        }
        if header.nr_cpus == 0 {
            return bad("nr_cpus", 0, offset_of!(H, nr_cpus));
        }
        Ok(header)
    }

    /// Bytes of a page.
    pub fn page_size(&self) -> u64 {
        1 << self.page_shift
    }

    /// The identity as 32 hexadecimal digits.
    pub fn uuid_text(&self) -> String {
        uuid_text(&self.uuid)
    }

    /// What was traced, for people.
    pub fn scope_text(&self) -> String {
        match self.scope {
            uapi::VMTRACE_SCOPE_ALL => "whole system".into(),
            uapi::VMTRACE_SCOPE_TREE => format!("process tree of pid {}", self.scope_pid),
            other => format!("unknown ({other})"),
        }
    }
}
