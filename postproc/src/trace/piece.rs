//! What makes a file a piece of a trace: see `struct vmtrace_piece` in the UAPI header.
//!
//! A trace may be kept in several files. Two needs meet in a piece: all pieces together must be the
//! trace again, byte for byte; and each must be readable by itself. The first is met by the *own
//! part*: the bytes of the trace from one place to another, whatever they are. The second is met by
//! what stands around the own part:
//!
//! - A *description* of what existed when the piece began, as a window begins with one. That of a piece
//!   that the kernel made is a checkpoint, which is a part of the trace: see [`super::known`].
//! - *Copies* of the packets of other pieces' own parts that have records of this piece. Streams are
//!   not in order with each other, so no place in a file divides the records by their sequence
//!   numbers. A piece therefore says which numbers are its own, and readers leave out the others.
//! - An *end* with counts of these records, which the rules of `check` compare with the records.
//!
//! The header says that the file is a piece by a feature bit. Readers that do not know pieces refuse
//! the file, because they refuse unknown features.

use std::io;
use std::mem::offset_of;
use std::ops::Range;

use byteorder::{ByteOrder, LittleEndian as LE};
use rust_mm_trace::uapi;
use serde::Serialize;

use super::index::{EndPacket, head_at};
use super::source::Bytes;
use super::wire::{
    HEAD_SIZE, HEADER_SIZE, Header, MOST, PacketHead, Status, StreamKind, Uuid, WindowAccount,
    WindowEnd, packet_crc, packet_magic, packet_uuid, read, view,
};

macro_rules! put {
    ($b:expr, $t:ty, $f:ident, $v:expr) => {{
        let bytes = $v.to_le_bytes();
        $b[std::mem::offset_of!($t, $f)..][..bytes.len()].copy_from_slice(&bytes);
    }};
}
pub(super) use put;

/// Which piece of a trace a file is: `struct vmtrace_piece`.
#[derive(Clone, Debug, Serialize)]
pub struct Piece {
    /// Ordinal, from 0.
    pub number: u32,
    /// It begins in the middle of a window, or of a trace without windows. So it has a description.
    pub is_middle: bool,
    /// Its description is a checkpoint, which has the events from `state_seq` to before `first_seq`,
    /// and all sets are empty when it begins.
    pub is_checkpoint: bool,
    /// The first number of that, or 0.
    pub state_seq: u64,
    /// Its records have this sequence number or a greater one.
    pub first_seq: u64,
    /// Bytes of the trace before its own part.
    pub offset: u64,
    /// CRC32C of these bytes.
    pub crc: u32,
    /// The last piece, if several are read as one or were joined; else as `number`.
    pub last_number: u32,
    /// `None` if the piece was cut short.
    pub end: Option<PieceEnd>,
}

view! {
    /// What a piece has: `struct vmtrace_piece_end`.
    #[derive(Clone, Copy, Debug, Default, Serialize)]
    #[allow(missing_docs, reason = "the UAPI header documents each field")]
    pub struct PieceEnd of |raw: uapi::vmtrace_piece_end, at: u64| {
        pub number: u32,
        pub is_last: bool = raw.flags & uapi::VMTRACE_PIECE_LAST != 0,
        pub size: u64,
        pub crc: u32,
        pub unaccounted: u32,
        pub next_seq: u64,
        pub start_time_ns: u64 = raw.start_time,
        pub stop_time_ns: u64 = raw.stop_time,
        pub packets: u64,
        pub admissions: u64,
        pub refs: u64,
        pub events: u64,
        pub aborted: u64,
        pub renewed: u64,
        pub chances: u64,
        pub lost_full: u64,
        pub lost_atomic: u64,
        pub lost_io: u64,
        /// Where its packet begins in the file.
        #[serde(skip)]
        pub at: u64 = at,
    }
}

const PIECE_SIZE: usize = size_of::<uapi::vmtrace_piece>();
const END_SIZE: usize = size_of::<uapi::vmtrace_piece_end>();

/// Why a file whose header says that it is a piece is none.
pub(super) const NO_PIECE: &str =
    "the packet that says which piece of the trace this is, is missing or damaged";

/// A packet of a piece, with its content if the checksum holds.
pub(super) fn verified(
    bytes: &Bytes,
    header: &Header,
    at: u64,
    kind: StreamKind,
    size: usize,
) -> io::Result<Option<Vec<u8>>> {
    if bytes.len().saturating_sub(at) < (HEAD_SIZE + size) as u64 {
        return Ok(None);
    }
    let mut raw = [0; HEAD_SIZE];
    bytes.read(at, &mut raw)?;
    let head = PacketHead::decode(&raw)
        .filter(|_| packet_magic(&raw) == uapi::VMTRACE_PACKET_MAGIC)
        .filter(|head| packet_uuid(&raw) == header.uuid && head.nonsense(header).is_none())
        .filter(|head| head.stream.kind == kind && head.content_size as usize == size);
    let Some(head) = head else { return Ok(None) };
    let mut content = vec![0; size];
    bytes.read(at + HEAD_SIZE as u64, &mut content)?;
    Ok((packet_crc(&raw, &content) == head.crc).then_some(content))
}

impl Piece {
    /// Reads which piece a file is, whose header says that it is one. `None` if that is missing or
    /// damaged.
    ///
    /// # Errors
    ///
    /// Reading failed.
    pub(super) fn read(bytes: &Bytes, header: &Header) -> io::Result<Option<Self>> {
        let at = HEADER_SIZE as u64;
        let content = verified(bytes, header, at, StreamKind::Piece, PIECE_SIZE)?;
        let Some(raw) = content.as_deref().and_then(read::<uapi::vmtrace_piece>) else {
            return Ok(None);
        };
        let (number, first_seq) = (raw.number, raw.first_seq);
        let is_checkpoint = raw.flags & uapi::VMTRACE_PIECE_CHECKPOINT != 0;
        let piece = Piece {
            number,
            is_middle: raw.flags & uapi::VMTRACE_PIECE_MIDDLE != 0,
            is_checkpoint,
            state_seq: match is_checkpoint {
                true => raw.state_seq.min(first_seq),
                false => 0,
            },
            first_seq,
            offset: raw.offset,
            crc: raw.crc,
            last_number: number,
            end: PieceEnd::read(bytes, header)?
                .filter(|end| end.number >= number && end.next_seq >= first_seq),
        };
        let piece = Piece {
            last_number: piece.end.map_or(number, |end| end.number),
            ..piece
        };
        Ok((first_seq <= MOST && piece.offset <= MOST).then_some(piece))
    }

    /// The sequence numbers that its records have.
    pub fn numbers(&self) -> Range<u64> {
        let end = self.end.filter(|end| !end.is_last);
        self.first_seq..end.map_or(u64::MAX, |end| end.next_seq.max(1))
    }

    /// Whether no piece follows. Nobody knows that of a piece that was cut short.
    pub fn is_last(&self) -> bool {
        self.end.is_some_and(|end| end.is_last)
    }

    /// Whether a packet is one that the piece is read with.
    pub(super) fn has(&self, head: &PacketHead) -> bool {
        let numbers = self.numbers();
        let first = match head.stream.kind {
            StreamKind::Event if self.is_checkpoint => self.state_seq,
            _ => numbers.start,
        };
        // The description comes before all numbers, and a packet without records has none.
        head.stream.kind == StreamKind::State
            || head.records == 0
            || (head.first_seq < numbers.end && head.last_seq >= first)
    }

    /// Whether a packet is one of the description alone.
    pub(crate) fn describes(&self, head: &PacketHead) -> bool {
        head.stream.kind == StreamKind::State
            || (self.is_checkpoint
                && head.stream.kind == StreamKind::Event
                && head.records != 0
                && head.last_seq < self.first_seq)
    }

    /// Whether pages were enabled when it began, of whose references it has no record.
    pub fn begins_blindly(&self) -> bool {
        self.is_middle && !self.is_checkpoint
    }

    /// The content of its packet.
    pub(crate) fn encode(&self) -> Vec<u8> {
        type P = uapi::vmtrace_piece;
        let mut b = vec![0; PIECE_SIZE];
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        let flags = flag(self.is_middle, uapi::VMTRACE_PIECE_MIDDLE)
            | flag(self.is_checkpoint, uapi::VMTRACE_PIECE_CHECKPOINT);
        put!(b, P, number, self.number);
        put!(b, P, flags, flags);
        put!(b, P, first_seq, self.first_seq);
        put!(b, P, offset, self.offset);
        put!(b, P, crc, self.crc);
        put!(b, P, state_seq, self.state_seq);
        b
    }

    /// Whether the place of a piece's packet has nothing yet: a kernel has made the file for a piece
    /// that did not begin.
    ///
    /// # Errors
    ///
    /// Reading failed.
    pub(super) fn is_unborn(bytes: &Bytes) -> io::Result<bool> {
        let at = HEADER_SIZE as u64;
        let mut place = [0; HEAD_SIZE + PIECE_SIZE];
        let len = bytes.len().saturating_sub(at).min(place.len() as u64) as usize;
        bytes.read(at, &mut place[..len])?;
        Ok(place.iter().all(|&b| b == 0))
    }

    /// Where the own part begins in a piece: behind the mark. And how many packets before that have
    /// records of the piece and of the one before.
    ///
    /// # Errors
    ///
    /// Reading failed.
    pub(super) fn own_part(
        &self,
        bytes: &Bytes,
        header: &Header,
    ) -> io::Result<Option<(u64, u64)>> {
        let mut common = 0;
        let mut at = HEADER_SIZE as u64;
        loop {
            let mut raw = [0; HEAD_SIZE];
            if bytes.len().saturating_sub(at) < HEAD_SIZE as u64 {
                return Ok(None);
            }
            bytes.read(at, &mut raw)?;
            let good = packet_magic(&raw) == uapi::VMTRACE_PACKET_MAGIC
                && packet_uuid(&raw) == header.uuid;
            let head = PacketHead::decode(&raw).filter(|_| good);
            let Some(head) = head else { return Ok(None) };
            at += head.size();
            if at > bytes.len() {
                return Ok(None);
            }
            if head.stream.kind == StreamKind::Own {
                return Ok(Some((at, common)));
            }
            let is_common = head.first_seq < self.first_seq && head.last_seq >= self.first_seq;
            common += u64::from(is_common && head.stream.kind == StreamKind::Event);
        }
    }
}

impl PieceEnd {
    /// The last packet of a file, if it ends a piece.
    fn read(bytes: &Bytes, header: &Header) -> io::Result<Option<Self>> {
        let Some(at) = bytes.len().checked_sub((HEAD_SIZE + END_SIZE) as u64) else {
            return Ok(None);
        };
        let content = verified(bytes, header, at, StreamKind::PieceEnd, END_SIZE)?;
        let Some(raw) = content.as_deref().and_then(read) else {
            return Ok(None);
        };
        let end = PieceEnd::of(&raw, at);
        let all = [end.start_time_ns, end.stop_time_ns, end.size];
        let good = all.iter().all(|&n| n <= MOST) && end.next_seq <= MOST + 1;
        Ok(good.then_some(end))
    }

    /// The content of its packet.
    pub(crate) fn encode(&self) -> Vec<u8> {
        type E = uapi::vmtrace_piece_end;
        let mut b = vec![0; END_SIZE];
        let flags = match self.is_last {
            true => uapi::VMTRACE_PIECE_LAST,
            false => 0,
        };
        put!(b, E, number, self.number);
        put!(b, E, flags, flags);
        put!(b, E, size, self.size);
        put!(b, E, crc, self.crc);
        put!(b, E, unaccounted, self.unaccounted);
        put!(b, E, next_seq, self.next_seq);
        put!(b, E, start_time, self.start_time_ns);
        put!(b, E, stop_time, self.stop_time_ns);
        put!(b, E, packets, self.packets);
        put!(b, E, admissions, self.admissions);
        put!(b, E, refs, self.refs);
        put!(b, E, events, self.events);
        put!(b, E, aborted, self.aborted);
        put!(b, E, renewed, self.renewed);
        put!(b, E, chances, self.chances);
        put!(b, E, lost_full, self.lost_full);
        put!(b, E, lost_atomic, self.lost_atomic);
        put!(b, E, lost_io, self.lost_io);
        b
    }

    /// Records lost, whatever the cause.
    pub fn lost(&self) -> u64 {
        self.lost_full
            .saturating_add(self.lost_atomic)
            .saturating_add(self.lost_io)
    }

    /// The piece's end as that of a trace by itself. `whole` is the END packet of the trace, if the
    /// piece has it.
    pub(super) fn packet(
        &self,
        bytes: &Bytes,
        header: &Header,
        whole: Option<&EndPacket>,
    ) -> io::Result<Option<EndPacket>> {
        // The last piece of a trace that was cut short is cut short, too.
        if self.is_last && whole.is_none() {
            return Ok(None);
        }
        let Some(head) = head_at(bytes, self.at)? else {
            return Ok(None);
        };
        let account = WindowAccount {
            number: 0,
            why: WindowEnd::Stop,
            start_time_ns: self.start_time_ns,
            stop_time_ns: self.stop_time_ns,
            first_seq: 0,
            last_seq: self.next_seq.saturating_sub(1),
            admissions: self.admissions,
            refs: self.refs,
            events: self.events,
            aborted: self.aborted,
            renewed: self.renewed,
            chances: self.chances,
            lost_full: self.lost_full,
            lost_atomic: self.lost_atomic,
            lost_io: self.lost_io,
            funny: whole.map_or(0, |w| w.status.funny),
        };
        let whole = whole.map(|w| &w.status);
        let status = Status {
            state: whole.map_or(uapi::VMTRACE_STATE_OFF, |s| s.state),
            error: whole.map_or(0, |s| s.error),
            left_out: 0,
            ran_ns: 0,
            ..account.status(header, self.packets, whole)
        };
        Ok(Some(EndPacket {
            offset: self.at,
            end: self.at + head.size(),
            head,
            status,
        }))
    }
}

/// A packet that only a piece has.
pub(crate) struct Parcel<'a> {
    pub kind: u32,
    pub uuid: Uuid,
    /// Its number in its stream.
    pub number: u64,
    /// The sequence number and the time, in ns, of its records.
    pub seq: u64,
    pub time_ns: u64,
    pub records: u32,
    pub window: u32,
    /// How the content is packed, and its length before that.
    pub codec: u16,
    pub raw_size: u32,
    pub content: &'a [u8],
}

impl Parcel<'_> {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        type P = uapi::vmtrace_packet;
        let mut head = [0; HEAD_SIZE];
        put!(head, P, magic, uapi::VMTRACE_PACKET_MAGIC);
        head[offset_of!(P, uuid)..][..16].copy_from_slice(&self.uuid.0);
        put!(head, P, kind, (self.kind as u16));
        put!(head, P, codec, self.codec);
        put!(head, P, seq, self.number);
        put!(head, P, first_seq, self.seq);
        put!(head, P, last_seq, self.seq);
        put!(head, P, first_time, self.time_ns);
        put!(head, P, last_time, self.time_ns);
        put!(head, P, raw_size, self.raw_size);
        put!(head, P, records, self.records);
        put!(head, P, content_size, (self.content.len() as u32));
        put!(head, P, window, self.window);
        let crc = packet_crc(&head, self.content);
        put!(head, P, crc, crc);
        [&head[..], self.content].concat()
    }
}

/// A header with the feature of pieces, or without it.
pub(crate) fn header_of(raw: &[u8], is_piece: bool) -> Vec<u8> {
    type H = uapi::vmtrace_header;
    let mut header = raw.to_vec();
    let bit = u64::from(uapi::VMTRACE_PIECE);
    let features = LE::read_u64(&header[offset_of!(H, features)..]);
    let features = match is_piece {
        true => features | bit,
        false => features & !bit,
    };
    put!(header, H, features, features);
    let crc = crc32c::crc32c(&header[..offset_of!(H, crc)]);
    put!(header, H, crc, crc);
    header
}
