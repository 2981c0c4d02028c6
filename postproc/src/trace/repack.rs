//! Copies a trace with all its packets packed, or with none of them packed.
//!
//! What is unpacked again is the trace as it was, byte for byte. Packets that are damaged, and
//! bytes that belong to no packet, are copied as they are. Bytes behind the END packet are left
//! out: they belong to nobody.

use std::io::Write;
use std::mem::offset_of;

use byteorder::{ByteOrder, LittleEndian as LE};
use rust_mm_trace::uapi;
use serde::Serialize;

use super::codec::{Packer, Unpacker};
use super::source::Trace;
use super::wire::{HEAD_SIZE, HEADER_SIZE, PacketHead, StreamKind, packet_crc, packet_uuid};
use crate::error::{Error, OutputContext, Result};
use crate::pipeline::Observer;

/// The form in which packets are to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As the records are.
    Unpacked,
    /// Packed, and then compressed by Zstandard if a level is given.
    Packed(Option<i32>),
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Repacked {
    /// Packets of references and events, with those that are damaged.
    pub packets: u64,
    /// Of these, packets that are packed now.
    pub packed: u64,
    /// Of these, packets that are damaged, and were copied as they are.
    pub damaged: u64,
    /// References that the packets hold.
    pub references: u64,
    /// Events that the packets hold.
    pub events: u64,
    /// Bytes of the packets of references, as they were and as they are now.
    pub reference_bytes: (u64, u64),
    /// Bytes of the packets of events, likewise.
    pub event_bytes: (u64, u64),
    /// Bytes of all, likewise.
    pub bytes: (u64, u64),
}

/// Bytes that are copied at a time.
const PART: u64 = 1 << 20;

/// Copies packets to an output.
struct Copying<'a, W: Write> {
    trace: &'a Trace,
    packer: Option<Packer>,
    /// Of the header's features, those about packing.
    packing: u32,
    unpacker: Unpacker,
    stored: Vec<u8>,
    content: Vec<u8>,
    out: W,
    name: &'a str,
    /// Where the trace ends.
    stop: u64,
    done: Repacked,
}

impl<W: Write> Copying<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.done.bytes.1 += bytes.len() as u64;
        self.out.write_all(bytes).writing(self.name)
    }

    fn read(&self, at: u64, to: &mut [u8]) -> Result<()> {
        let read = self.trace.bytes().read(at, to);
        read.map_err(|source| self.trace.unreadable(source))
    }

    fn header(&mut self) -> Result<()> {
        type H = uapi::vmtrace_header;
        let mut header = [0; HEADER_SIZE];
        self.read(0, &mut header)?;
        let features = LE::read_u64(&header[offset_of!(H, features)..]);
        let packing = u64::from(uapi::VMTRACE_PACK | uapi::VMTRACE_ZSTD);
        let features = features & !packing | u64::from(self.packing);
        LE::write_u64(&mut header[offset_of!(H, features)..], features);
        let at = offset_of!(H, crc);
        let crc = crc32c::crc32c(&header[..at]);
        LE::write_u32(&mut header[at..], crc);
        self.write(&header)
    }

    /// Copies bytes as they are.
    fn verbatim(&mut self, mut from: u64, to: u64) -> Result<()> {
        let mut part = std::mem::take(&mut self.content);
        while from < to {
            part.resize((to - from).min(PART) as usize, 0);
            self.read(from, &mut part)?;
            self.write(&part)?;
            from += part.len() as u64;
        }
        self.content = part;
        Ok(())
    }

    /// Copies the packet that begins at a place. Gives where it ends; `None` if there is no packet.
    fn packet(&mut self, at: u64) -> Result<Option<u64>> {
        let mut raw = [0; HEAD_SIZE];
        self.read(at, &mut raw)?;
        // It was good when it was found, but the file may have changed since.
        let header = self.trace.header();
        let head = PacketHead::decode(&raw)
            .filter(|head| packet_uuid(&raw) == header.uuid && head.nonsense(header).is_none())
            .filter(|head| u64::from(head.content_size) <= header.most_content());
        let Some(head) = head.filter(|head| at + head.size() <= self.stop) else {
            return Ok(None);
        };
        let end = at + head.size();
        let before = self.done.bytes.1;
        let copied = match head.stream.kind {
            StreamKind::Ref | StreamKind::Event => {
                self.done.packets += 1;
                self.records(at, &raw, &head)?
            }
            _ => false,
        };
        if !copied {
            self.verbatim(at, end)?;
        }
        let sizes = (head.size(), self.done.bytes.1 - before);
        let (records, bytes) = match head.stream.kind {
            StreamKind::Ref => (&mut self.done.references, &mut self.done.reference_bytes),
            StreamKind::Event => (&mut self.done.events, &mut self.done.event_bytes),
            _ => return Ok(Some(end)),
        };
        *records += u64::from(head.records);
        *bytes = (bytes.0 + sizes.0, bytes.1 + sizes.1);
        Ok(Some(end))
    }

    /// Copies a packet of records in the form that is wanted. False if that is not possible.
    fn records(&mut self, at: u64, raw: &[u8; HEAD_SIZE], head: &PacketHead) -> Result<bool> {
        type P = uapi::vmtrace_packet;
        let header = self.trace.header();
        let mut stored = std::mem::take(&mut self.stored);
        stored.resize(head.content_size as usize, 0);
        let read = self.read(at + HEAD_SIZE as u64, &mut stored);
        let mut content = std::mem::take(&mut self.content);
        let mut good = read.is_ok() && packet_crc(raw, &stored) == head.crc;
        if good && head.is_packed() {
            let unpacked = self.unpacker.unpack(header, head, &stored, &mut content);
            good = unpacked.is_ok();
        } else if good {
            std::mem::swap(&mut stored, &mut content);
        }
        let result = read.and_then(|()| {
            if !good {
                self.done.damaged += 1;
                return Ok(false);
            }
            let mut new = *raw;
            let name = self.name;
            let packed = match &mut self.packer {
                Some(packer) => {
                    let packed = packer.pack(header, head.stream.kind, &content);
                    packed.writing(name)?
                }
                None => None,
            };
            let (codec, raw_size, bytes) = match packed {
                Some((codec, bytes)) => (codec, content.len() as u32, bytes),
                None => (0, 0, &content[..]),
            };
            LE::write_u16(&mut new[offset_of!(P, codec)..], codec);
            LE::write_u32(&mut new[offset_of!(P, raw_size)..], raw_size);
            LE::write_u32(&mut new[offset_of!(P, content_size)..], bytes.len() as u32);
            let crc = packet_crc(&new, bytes);
            LE::write_u32(&mut new[offset_of!(P, crc)..], crc);
            self.done.packed += u64::from(codec != 0);
            self.done.bytes.1 += (new.len() + bytes.len()) as u64;
            let written = self.out.write_all(&new);
            written
                .and_then(|()| self.out.write_all(bytes))
                .writing(name)?;
            Ok(true)
        });
        (self.stored, self.content) = (stored, content);
        result
    }
}

/// Copies a trace to `out`, which messages call `name`, with its packets in another form.
///
/// # Errors
///
/// Reading or writing failed, there is no such level of Zstandard, or [`Error::Interrupted`].
/// [`Error::IsPiece`]: a piece has sums of its bytes, and of those of other pieces.
pub fn repack(
    trace: &Trace,
    form: Form,
    out: impl Write,
    name: &str,
    observer: &mut dyn Observer,
) -> Result<Repacked> {
    if trace.header().is_piece() {
        return Err(Error::IsPiece {
            path: trace.path().into(),
        });
    }
    if trace.is_partial() {
        return Err(Error::IsPart {
            path: trace.path().into(),
        });
    }
    let index = trace.index();
    let packer = match form {
        Form::Packed(level) => Some(Packer::new(level).writing(name)?),
        Form::Unpacked => None,
    };
    let stop = index.end.as_ref().map_or(trace.file_bytes(), |end| end.end);
    let mut copying = Copying {
        trace,
        packer,
        packing: match form {
            Form::Unpacked => 0,
            Form::Packed(None) => uapi::VMTRACE_PACK,
            Form::Packed(Some(_)) => uapi::VMTRACE_PACK | uapi::VMTRACE_ZSTD,
        },
        unpacker: Unpacker::default(),
        stored: Vec::new(),
        content: Vec::new(),
        out,
        name,
        stop,
        done: Repacked::default(),
    };
    copying.header()?;
    let mut damage: Vec<(u64, u64)> = index.damage.iter().map(|d| (d.start, d.end)).collect();
    damage.sort_unstable();
    let mut damage = damage.into_iter().peekable();
    let mut at = HEADER_SIZE as u64;
    while at < stop {
        if !observer.progress(at, stop) {
            return Err(Error::Interrupted);
        }
        while damage.next_if(|d| d.1 <= at).is_some() {}
        let spoiled = damage.next_if(|d| d.0 <= at).map(|d| d.1.min(stop));
        at = match spoiled {
            Some(end) => {
                copying.verbatim(at, end)?;
                end
            }
            None => match copying.packet(at)? {
                Some(end) => end,
                // It has changed since it was found.
                None => {
                    copying.verbatim(at, stop)?;
                    stop
                }
            },
        };
    }
    copying.done.bytes.0 = stop;
    copying.out.flush().writing(name)?;
    Ok(copying.done)
}
