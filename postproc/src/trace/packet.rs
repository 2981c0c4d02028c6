//! The head of a packet.

use super::{Fields, prefix};
use rust_mm_trace::uapi::{self, vmtrace_packet as P};
use std::mem::offset_of;

/// Bytes of a packet's head.
pub const PACKET_SIZE: usize = size_of::<P>();

/// `struct vmtrace_packet`, as found: nothing in it is to be trusted before
/// [`Packet::crc_of`] agrees.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Packet {
    /// VMTRACE_STREAM_*.
    pub kind: u32,
    /// The stream's CPU.
    pub cpu: u32,
    /// Number within the stream.
    pub seq: u64,
    /// Sequence number of the first record.
    pub first_seq: u64,
    /// Sequence number of the last record.
    pub last_seq: u64,
    /// Time of the first record, ns.
    pub first_time: u64,
    /// Time of the last record, ns.
    pub last_time: u64,
    /// Records lost so far for want of room.
    pub lost_full: u64,
    /// Events lost so far where the kernel could not wait.
    pub lost_atomic: u64,
    /// Records of earlier packets that could not be written.
    pub lost_io: u64,
    /// Records in the content.
    pub records: u32,
    /// Bytes that follow the head.
    pub content_size: u32,
    /// Ordinal of the window.
    pub window: u32,
    /// CRC32C of head and content.
    pub crc: u32,
}

impl Packet {
    /// The head at the start of `bytes`; none if they are too few or begin
    /// otherwise.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let b = prefix::<P>(bytes)?;
        if b.u64_at(offset_of!(P, magic)) != uapi::VMTRACE_PACKET_MAGIC {
            return None;
        }
        Some(Self {
            kind: b.u32_at(offset_of!(P, kind)),
            cpu: b.u32_at(offset_of!(P, cpu)),
            seq: b.u64_at(offset_of!(P, seq)),
            first_seq: b.u64_at(offset_of!(P, first_seq)),
            last_seq: b.u64_at(offset_of!(P, last_seq)),
            first_time: b.u64_at(offset_of!(P, first_time)),
            last_time: b.u64_at(offset_of!(P, last_time)),
            lost_full: b.u64_at(offset_of!(P, lost_full)),
            lost_atomic: b.u64_at(offset_of!(P, lost_atomic)),
            lost_io: b.u64_at(offset_of!(P, lost_io)),
            records: b.u32_at(offset_of!(P, records)),
            content_size: b.u32_at(offset_of!(P, content_size)),
            window: b.u32_at(offset_of!(P, window)),
            crc: b.u32_at(offset_of!(P, crc)),
        })
    }

    /// The identity of the trace that a head belongs to.
    pub(super) fn uuid(bytes: &[u8]) -> Option<&[u8]> {
        bytes.get(offset_of!(P, uuid)..offset_of!(P, uuid) + 16)
    }

    /// CRC32C of a whole packet, its checksum taken as zero.
    pub(super) fn crc_of(packet: &[u8]) -> u32 {
        let (head, rest) = packet.split_at(offset_of!(P, crc));
        let crc = crc32c::crc32c(head);
        let crc = crc32c::crc32c_append(crc, &[0; 4]);
        crc32c::crc32c_append(crc, &rest[4..])
    }

    /// Bytes of head and content.
    pub fn total(&self) -> u64 {
        PACKET_SIZE as u64 + u64::from(self.content_size)
    }
}

const _: () = assert!(offset_of!(P, crc) + 4 == size_of::<P>());
