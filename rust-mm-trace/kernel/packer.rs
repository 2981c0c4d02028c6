// SPDX-License-Identifier: GPL-2.0

//! Memory for packing, and the packets of one sub-buffer as they are to be written.

use crate::{
    machine::zeroed,
    pack::{self, Hint, Tables},
    pack_events, pack_refs,
    record::{put, Extras},
    ring::HEAD,
    zstd::Zstd,
    Store,
};
use core::mem::size_of;
use kernel::{bindings, prelude::*};
use pin_init::Zeroable;

const EVENTS: u16 = bindings::VMTRACE_CODEC_PACK as u16;
const REFS: u16 = bindings::VMTRACE_CODEC_PACK2 as u16;
const ZSTD: u16 = bindings::VMTRACE_CODEC_ZSTD as u16;

// SAFETY: It has integers, which may be 0.
unsafe impl Zeroable for pack::Page {}

/// Packs the packets of one sub-buffer after the other.
pub(crate) struct Packer {
    tables: Tables,
    hint: Hint,
    extras: Extras,
    /// Compresses what is packed, if that is wanted.
    zstd: Option<Zstd>,
    /// As large as a sub-buffer and what packing needs beyond it; the packets in it.
    out: Store<u8>,
    len: usize,
    /// A packet of the sub-buffer had no room. It has, for none is larger than it was.
    failed: bool,
}

impl Packer {
    /// Bytes that a packer takes for sub-buffers of `size` bytes.
    pub(crate) fn bytes(size: usize, extras: Extras) -> u64 {
        let (pages, successors) = Tables::SIZES;
        let words = successors + Tables::offsets(extras);
        let tables = pages * size_of::<pack::Page>() + 4 * words;
        tables.saturating_add(size).saturating_add(pack_refs::SPARE) as u64
    }

    /// For sub-buffers of `size` bytes, of a trace with sets of `n` pages. ENOMEM rather than to end
    /// programs that have memory. It sleeps.
    pub(crate) fn new(size: usize, n: usize, extras: Extras, zstd: Option<Zstd>) -> Result<Packer> {
        let (pages, successors) = Tables::SIZES;
        let tables = Tables::new(
            zeroed(pages)?,
            zeroed(successors)?,
            zeroed(Tables::offsets(extras))?,
        );
        Ok(Packer {
            tables: tables.ok_or(EINVAL)?,
            hint: Hint {
                lag: n as u32,
                shift: bindings::VMTRACE_STAY_SHIFT,
            },
            extras,
            zstd,
            out: zeroed(size.saturating_add(pack_refs::SPARE))?,
            len: 0,
            failed: false,
        })
    }

    /// A new sub-buffer.
    pub(crate) fn begin(&mut self) {
        (self.len, self.failed) = (0, false);
    }

    /// Packs a packet behind the last one. `None` if that is not possible: then it is to be written
    /// as it is.
    pub(crate) fn pack(&mut self, kind: u32, packet: &[u8]) -> Option<(u16, u32)> {
        let content = packet.get(HEAD..)?;
        let out = self.out.get_mut(self.len..)?;
        // What does not get smaller is left as it is.
        let room = packet.len().saturating_add(pack_refs::SPARE);
        let out = out.get_mut(..room)?.get_mut(HEAD..)?;
        let (codec, len) = match kind {
            bindings::VMTRACE_STREAM_EVENT => (EVENTS, pack_events::pack(content, out)),
            bindings::VMTRACE_STREAM_REF => {
                let (tables, hint) = (&mut self.tables, self.hint);
                let len = pack_refs::pack(tables, self.extras, hint, content, out);
                (REFS, len)
            }
            _ => return None,
        };
        let len = len.filter(|len| *len < content.len())?;
        let smaller = self.zstd.as_mut().zip(out.get_mut(..len));
        match smaller.and_then(|(zstd, packed)| zstd.compress(packed)) {
            Some(len) => Some((codec | ZSTD, len as u32)),
            None => Some((codec, len as u32)),
        }
    }

    /// Adds a packet: as it was packed just now, or else as it is. `seal` writes its head.
    pub(crate) fn seal(
        &mut self,
        packet: &[u8],
        packed: Option<(u16, u32)>,
        seal: impl Fn(&mut [u8]),
    ) {
        let start = self.len;
        let len = match packed {
            Some((_, len)) => HEAD.saturating_add(len as usize),
            None => packet.len(),
        };
        let end = start.saturating_add(len);
        let Some(out) = self.out.get_mut(start..end) else {
            self.failed = true;
            return;
        };
        if packed.is_none() {
            put(out, 0, packet);
        }
        seal(out);
        self.len = end;
    }

    /// The packets of the sub-buffer. EIO if one is missing.
    pub(crate) fn packed(&self) -> Result<&[u8]> {
        let packets = self.out.get(..self.len).filter(|_| !self.failed);
        packets.ok_or(EIO)
    }
}
