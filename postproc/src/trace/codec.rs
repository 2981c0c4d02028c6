//! Packing and unpacking of packets' content: see `vmtrace_packet.codec`.

use std::io;

use rust_mm_trace::pack::{Hint, Tables};
use rust_mm_trace::record::Extras;
use rust_mm_trace::{pack_events, pack_first, pack_refs, uapi, unpack_refs};

use super::wire::{Header, PacketHead, StreamKind};

const PACK: u16 = uapi::VMTRACE_CODEC_PACK as u16;
const PACK2: u16 = uapi::VMTRACE_CODEC_PACK2 as u16;
const PACKS: u16 = PACK | PACK2;
const ZSTD: u16 = uapi::VMTRACE_CODEC_ZSTD as u16;

/// Memory of what was before in a packet. It is the same for all packets, and made for the first.
#[derive(Default)]
struct Memory(Option<Tables>);

impl Memory {
    fn tables(&mut self) -> Option<&mut Tables> {
        if self.0.is_none() {
            let (pages, successors) = Tables::SIZES;
            self.0 = Tables::new(
                vec![Default::default(); pages],
                vec![0; successors],
                vec![0; Tables::offsets(Extras::BOTH)],
            );
        }
        self.0.as_mut()
    }
}

/// The same for the first form of packed references.
#[derive(Default)]
struct FirstMemory(Option<pack_first::Tables>);

impl FirstMemory {
    fn tables(&mut self) -> Option<&mut pack_first::Tables> {
        if self.0.is_none() {
            let (pages, ages, successors, ends) = pack_first::Tables::SIZES;
            self.0 = pack_first::Tables::new(
                vec![Default::default(); pages],
                vec![0; ages],
                vec![0; successors],
                vec![0; ends],
                vec![0; pack_first::Tables::offsets(Extras::BOTH)],
            );
        }
        self.0.as_mut()
    }
}

/// Unpacks the content of packets.
#[derive(Default)]
pub(crate) struct Unpacker {
    memory: Memory,
    first_memory: FirstMemory,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    /// What a frame of Zstandard holds.
    columns: Vec<u8>,
}

/// Why content cannot be unpacked.
const BAD_ZSTD: &str =
    "a packet's content is no frame of Zstandard that is as long as its head says";
const BAD_COLUMNS: &str =
    "a packet's content cannot be unpacked into as many records as its head says";

impl Unpacker {
    /// Unpacks `stored` into `content`, which gets as many bytes as the head says. The head makes
    /// sense for the header. `stored` may be any bytes.
    pub(crate) fn unpack(
        &mut self,
        header: &Header,
        head: &PacketHead,
        stored: &[u8],
        content: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        // Each byte is written: what a packet before has left need not be cleared.
        content.resize(head.raw_size as usize, 0);
        if head.codec & ZSTD == 0 {
            return self.columns(header, head, stored, content);
        }
        if head.codec & PACKS == 0 {
            return match self.decompress(stored, content) {
                Some(len) if len == content.len() => Ok(()),
                _ => Err(BAD_ZSTD),
            };
        }
        // What is packed is no longer than it was.
        let mut columns = std::mem::take(&mut self.columns);
        columns.resize(head.raw_size as usize, 0);
        let done = match self.decompress(stored, &mut columns) {
            Some(len) => self.columns(header, head, &columns[..len], content),
            None => Err(BAD_ZSTD),
        };
        self.columns = columns;
        done
    }

    /// The N with which the packet of references that was unpacked last was packed: see
    /// `vmtrace_packed.lag`.
    pub(crate) fn lag(&self, head: &PacketHead, stored: &[u8]) -> u32 {
        let columns = match (head.codec & PACKS, head.codec & ZSTD) {
            (0, _) => return 0,
            (_, 0) => stored,
            _ => &self.columns[..],
        };
        let at = std::mem::offset_of!(uapi::vmtrace_packed, lag);
        let lag = columns.get(at..).and_then(|rest| rest.first_chunk());
        lag.map_or(0, |lag| u32::from_le_bytes(*lag) & 0xff_ffff)
    }

    fn decompress(&mut self, stored: &[u8], to: &mut [u8]) -> Option<usize> {
        if self.zstd.is_none() {
            self.zstd = zstd::bulk::Decompressor::new().ok();
        }
        let frame = zstd::zstd_safe::find_frame_compressed_size(stored).ok()?;
        if frame != stored.len() {
            return None;
        }
        self.zstd.as_mut()?.decompress_to_buffer(stored, to).ok()
    }

    fn columns(
        &mut self,
        header: &Header,
        head: &PacketHead,
        packed: &[u8],
        content: &mut [u8],
    ) -> Result<(), &'static str> {
        let good = match head.stream.kind {
            StreamKind::Event | StreamKind::State => pack_events::unpack(packed, content),
            _ if head.codec & PACK2 == 0 => self
                .first_memory
                .tables()
                .is_some_and(|tables| pack_first::unpack(tables, header.extras(), packed, content)),
            _ => self.memory.tables().is_some_and(|tables| {
                unpack_refs::unpack(tables, header.extras(), packed, content)
            }),
        };
        good.then_some(()).ok_or(BAD_COLUMNS)
    }
}

/// Packs the content of packets, as the kernel does.
pub(crate) struct Packer {
    memory: Memory,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    columns: Vec<u8>,
    frame: Vec<u8>,
}

impl Packer {
    /// With a level of Zstandard, that is applied too.
    ///
    /// # Errors
    ///
    /// There is no such level, or no memory.
    pub(crate) fn new(level: Option<i32>) -> io::Result<Self> {
        Ok(Packer {
            memory: Memory::default(),
            zstd: level.map(zstd::bulk::Compressor::new).transpose()?,
            columns: Vec::new(),
            frame: Vec::new(),
        })
    }

    /// The codec and the content as it is to be stored. `None` if that would take as many bytes as
    /// the content.
    pub(crate) fn pack(
        &mut self,
        header: &Header,
        kind: StreamKind,
        content: &[u8],
    ) -> io::Result<Option<(u16, &[u8])>> {
        self.pack_with(header.evms_size, header, kind, content)
    }

    /// The same, with an N that is not that of the header: see [`Unpacker::lag`].
    pub(crate) fn pack_with(
        &mut self,
        lag: u32,
        header: &Header,
        kind: StreamKind,
        content: &[u8],
    ) -> io::Result<Option<(u16, &[u8])>> {
        self.columns.resize(content.len() + pack_refs::SPARE, 0);
        let hint = Hint {
            lag,
            shift: header.stay_shift,
        };
        let columns = &mut self.columns;
        let (pack, packed) = match kind {
            StreamKind::Event | StreamKind::State => (PACK, pack_events::pack(content, columns)),
            kind if kind.is_of_refs() => {
                let packed = self.memory.tables().and_then(|tables| {
                    pack_refs::pack(tables, header.extras(), hint, content, columns)
                });
                (PACK2, packed)
            }
            _ => return Ok(None),
        };
        let packed = packed.filter(|&len| len < content.len());
        if let Some(zstd) = &mut self.zstd {
            let (codec, columns) = match packed {
                Some(len) => (pack, &self.columns[..len]),
                None => (0, content),
            };
            self.frame.clear();
            self.frame
                .reserve(zstd::zstd_safe::compress_bound(columns.len()));
            zstd.compress_to_buffer(columns, &mut self.frame)?;
            if self.frame.len() < columns.len() {
                return Ok(Some((codec | ZSTD, &self.frame)));
            }
        }
        Ok(packed.map(|len| (pack, &self.columns[..len])))
    }
}
