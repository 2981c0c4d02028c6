// SPDX-License-Identifier: GPL-2.0

//! Records as bytes: the layouts of include/uapi/linux/vmtrace.h, written field
//! by field in little-endian order, as pure logic.

use crate::ring::{Base, Meta};
use crate::stay::Slot;

/// Bytes of `struct vmtrace_ref`.
pub const REF_SIZE: usize = 32;
/// Bytes of `struct vmtrace_event`, the head of an event.
pub const EVENT_SIZE: usize = 40;
/// Bytes of the virtual time that follows either of them with VMTRACE_VTIME.
pub const VTIME_SIZE: usize = 8;
/// Bytes of the offset that ends a reference with VMTRACE_OFFSETS.
pub const OFFSET_SIZE: usize = 8;

/// What references have beyond [`REF_SIZE`] bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras(u8);

impl Extras {
    /// Nothing.
    pub const NONE: Extras = Extras(0);
    /// Virtual time.
    pub const VTIME: Extras = Extras(1);
    /// The offset of the access within its page.
    pub const OFFSET: Extras = Extras(2);
    /// Both of them.
    pub const BOTH: Extras = Extras(3);

    /// Those that a trace has.
    pub fn new(vtime: bool, offset: bool) -> Extras {
        Extras(u8::from(vtime) | u8::from(offset) << 1)
    }
}

/// Bytes of a reference.
pub fn ref_size(extras: Extras) -> usize {
    let vtime = usize::from(extras.0 & 1).saturating_mul(VTIME_SIZE);
    let offset = usize::from(extras.0 >> 1).saturating_mul(OFFSET_SIZE);
    REF_SIZE.saturating_add(vtime).saturating_add(offset)
}

/// Copies `src` to `out` from `at` on, as far as there is room.
pub fn put(out: &mut [u8], at: usize, src: &[u8]) {
    if let Some(dst) = at
        .checked_add(src.len())
        .and_then(|end| out.get_mut(at..end))
    {
        dst.copy_from_slice(src);
    }
}

/// Writes the record of a stay into `out`, `SIZE` bytes of the packet that begins
/// at `base`: [`REF_SIZE`], and [`VTIME_SIZE`] more for its virtual time. If `OFFSET`, the last
/// [`OFFSET_SIZE`] bytes are its offset.
#[inline]
pub fn put_ref<const SIZE: usize, const OFFSET: bool>(out: &mut [u8], slot: &Slot, base: &Base) {
    let Some(out) = out.first_chunk_mut::<SIZE>() else {
        return;
    };
    // A packet ends before either of them needs more bits.
    let seq = slot.seq.wrapping_sub(base.seq) as u32;
    let time = slot.time.wrapping_sub(base.time) as u32;
    put(out, 0, &slot.page.to_le_bytes());
    put(out, 8, &seq.to_le_bytes());
    put(out, 12, &time.to_le_bytes());
    put(out, 16, &slot.tid_cpu.to_le_bytes());
    put(out, 20, &slot.mm.to_le_bytes());
    put(out, 24, &slot.stay.to_le_bytes());
    put(out, 28, &slot.pfn.to_le_bytes());
    put(out, REF_SIZE, &slot.vtime.to_le_bytes());
    if OFFSET {
        put(out, SIZE - OFFSET_SIZE, &slot.offset().to_le_bytes());
    }
}

/// The head of an event.
pub struct EventHead {
    /// VMTRACE_EV_*
    pub kind: u16,
    /// Bytes of head, payload and name, padded to 8.
    pub size: u16,
    /// VMTRACE_EVF_*
    pub flags: u32,
    /// Sequence number.
    pub seq: u64,
    /// Time, ns.
    pub time: u64,
    /// Thread.
    pub tid: u32,
    /// Process.
    pub tgid: u32,
    /// Address space.
    pub mm: u32,
    /// CPU.
    pub cpu: u32,
    /// Virtual time, if it is recorded.
    pub vtime: Option<u64>,
}

/// Bytes of an event with these parts; `None` if it is too large for a record.
pub fn event_size(vtime: bool, payload: usize, name: usize) -> Option<u16> {
    let size = EVENT_SIZE
        .checked_add(if vtime { VTIME_SIZE } else { 0 })?
        .checked_add(payload)?
        .checked_add(name)?
        .checked_next_multiple_of(8)?;
    u16::try_from(size).ok()
}

/// Writes an event into `out`, which has `head.size` bytes.
pub fn put_event(out: &mut [u8], head: &EventHead, payload: &[u8], name: &[u8]) {
    out.fill(0);
    put(out, 0, &head.kind.to_le_bytes());
    put(out, 2, &head.size.to_le_bytes());
    put(out, 4, &head.flags.to_le_bytes());
    put(out, 8, &head.seq.to_le_bytes());
    put(out, 16, &head.time.to_le_bytes());
    put(out, 24, &head.tid.to_le_bytes());
    put(out, 28, &head.tgid.to_le_bytes());
    put(out, 32, &head.mm.to_le_bytes());
    put(out, 36, &head.cpu.to_le_bytes());
    let mut at = EVENT_SIZE;
    if let Some(vtime) = head.vtime {
        put(out, at, &vtime.to_le_bytes());
        at = at.saturating_add(VTIME_SIZE);
    }
    put(out, at, payload);
    put(out, at.saturating_add(payload.len()), name);
}

/// What the head of a packet says beyond its [`Meta`].
pub struct PacketHead<'a> {
    /// VMTRACE_PACKET_MAGIC
    pub magic: u64,
    /// The trace.
    pub uuid: &'a [u8; 16],
    /// VMTRACE_STREAM_*
    pub kind: u32,
    /// The stream's CPU.
    pub cpu: u32,
    /// Ordinal of the window.
    pub window: u32,
    /// If the content is packed: VMTRACE_CODEC_*, and bytes of the content as it is stored.
    pub packed: Option<(u16, u32)>,
}

/// Where the checksum lies in a packet's head.
pub const PACKET_CRC_AT: usize = 108;

/// Writes the head of a packet, with a checksum of zero, into the front of
/// `out`. See `struct vmtrace_packet`.
pub fn put_packet(out: &mut [u8], head: &PacketHead<'_>, meta: &Meta) {
    let raw = meta.used.saturating_sub(crate::ring::HEAD) as u32;
    let (codec, content, raw) = match head.packed {
        Some((codec, stored)) => (codec, stored, raw),
        None => (0, raw, 0),
    };
    put(out, 0, &head.magic.to_le_bytes());
    put(out, 8, head.uuid);
    put(out, 24, &(head.kind as u16).to_le_bytes());
    put(out, 26, &codec.to_le_bytes());
    put(out, 28, &head.cpu.to_le_bytes());
    put(out, 32, &meta.before.packets.to_le_bytes());
    put(out, 40, &meta.first_seq.to_le_bytes());
    put(out, 48, &meta.last_seq.to_le_bytes());
    put(out, 56, &meta.first_time.to_le_bytes());
    put(out, 64, &meta.last_time.to_le_bytes());
    put(out, 72, &meta.before.lost_full.to_le_bytes());
    let lost_or_set = match meta.set {
        0 => meta.before.lost_atomic,
        set => u64::from(set),
    };
    put(out, 80, &lost_or_set.to_le_bytes());
    // Records that were not written: when there are such, nothing is written any more.
    put(out, 88, &0u32.to_le_bytes());
    put(out, 92, &raw.to_le_bytes());
    put(out, 96, &meta.records.to_le_bytes());
    put(out, 100, &content.to_le_bytes());
    put(out, 104, &head.window.to_le_bytes());
    put(out, PACKET_CRC_AT, &0u32.to_le_bytes());
}
