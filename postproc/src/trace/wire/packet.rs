//! Packets: their heads and checksums.

use std::mem::offset_of;

use byteorder::{ByteOrder, LittleEndian as LE};
use rust_mm_trace::uapi;
use serde::Serialize;

use super::{Event, HEAD_SIZE, HEADER_SIZE, Header, MOST, Ref, Uuid};
use crate::trace::part;

/// The kind of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamKind {
    /// References.
    Ref,
    /// Events.
    Event,
    /// The kernel's closing account.
    End,
    /// The kernel's accounts of windows.
    Window,
    /// Which piece of a trace a file is.
    Piece,
    /// Events that describe what existed when a piece began.
    State,
    /// The mark before the part of a piece that is its own.
    Own,
    /// What a piece has.
    PieceEnd,
    /// Which part of a trace a file is.
    Part,
    /// Records of other processes that name pages.
    Context,
}

impl StreamKind {
    fn decode(kind: u32) -> Option<Self> {
        match kind {
            uapi::VMTRACE_STREAM_REF => Some(StreamKind::Ref),
            uapi::VMTRACE_STREAM_EVENT => Some(StreamKind::Event),
            uapi::VMTRACE_STREAM_END => Some(StreamKind::End),
            uapi::VMTRACE_STREAM_WINDOW => Some(StreamKind::Window),
            uapi::VMTRACE_STREAM_PIECE => Some(StreamKind::Piece),
            uapi::VMTRACE_STREAM_STATE => Some(StreamKind::State),
            uapi::VMTRACE_STREAM_OWN => Some(StreamKind::Own),
            uapi::VMTRACE_STREAM_PIECE_END => Some(StreamKind::PieceEnd),
            part::KIND_PART => Some(StreamKind::Part),
            part::KIND_CONTEXT => Some(StreamKind::Context),
            _ => None,
        }
    }

    /// Whether its packets hold events.
    pub fn is_of_events(self) -> bool {
        matches!(self, StreamKind::Event | StreamKind::State)
    }

    /// Whether its packets have records as those of references.
    pub fn is_of_refs(self) -> bool {
        matches!(self, StreamKind::Ref | StreamKind::Context)
    }

    /// Whether its packets are only in parts, and not of the trace.
    pub fn is_of_part(self) -> bool {
        matches!(self, StreamKind::Part | StreamKind::Context)
    }

    /// Whether its packets are only in pieces, and not of the trace.
    pub fn is_of_piece(self) -> bool {
        matches!(
            self,
            StreamKind::Piece | StreamKind::State | StreamKind::Own | StreamKind::PieceEnd
        )
    }
}

/// A stream of packets: one of each kind per CPU, and of references one per CPU and set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub struct StreamId {
    /// The kind of records in its packets.
    pub kind: StreamKind,
    /// The CPU that filled them.
    pub cpu: u32,
    /// The EVMS that its references are of; 0 for other kinds.
    pub set: u32,
}

impl std::fmt::Display for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            StreamKind::Ref if self.set == 0 => write!(f, "ref/{}", self.cpu),
            StreamKind::Ref => write!(f, "ref/{}/set {}", self.cpu, self.set),
            StreamKind::Event => write!(f, "event/{}", self.cpu),
            StreamKind::End => write!(f, "end"),
            StreamKind::Window => write!(f, "window"),
            StreamKind::Piece => write!(f, "piece"),
            StreamKind::State => write!(f, "state/{}", self.cpu),
            StreamKind::Own => write!(f, "own"),
            StreamKind::PieceEnd => write!(f, "end of piece"),
            StreamKind::Part => write!(f, "part"),
            StreamKind::Context => write!(f, "context/{}", self.cpu),
        }
    }
}

view! {
    /// `struct vmtrace_packet`, without its magic and identity.
    #[derive(Clone, Copy, Debug, Serialize)]
    #[allow(missing_docs, reason = "the UAPI header documents each field")]
    pub struct PacketHead of |raw: uapi::vmtrace_packet, stream: StreamId, lost_atomic: u64| {
        pub stream: StreamId = stream,
        pub seq: u64,
        pub first_seq: u64,
        pub last_seq: u64,
        pub first_time_ns: u64 = raw.first_time,
        pub last_time_ns: u64 = raw.last_time,
        pub lost_full: u64,
        pub lost_atomic: u64 = lost_atomic,
        pub lost_io: u64 = raw.lost_io.into(),
        /// How the content is stored; 0: as it is.
        pub codec: u16,
        /// Bytes of the content before it was packed; 0 if it is not packed.
        pub raw_size: u32,
        pub records: u32,
        /// Bytes of the content as it is stored.
        pub content_size: u32,
        pub window: u32,
        pub crc: u32,
    }
}

/// The ways of packing that are known.
const CODECS: u16 =
    (uapi::VMTRACE_CODEC_PACK | uapi::VMTRACE_CODEC_ZSTD | uapi::VMTRACE_CODEC_PACK2) as u16;

/// The most that the base of times lies before a packet's first record, in a trace of several
/// CPUs, in ns.
pub(crate) const EARLY_NS: u64 = 1 << 28;

impl PacketHead {
    /// Decodes a head whose magic was checked before; `None` if its kind is unknown.
    pub(crate) fn decode(b: &[u8; HEAD_SIZE]) -> Option<Self> {
        type P = uapi::vmtrace_packet;
        let raw: P = zerocopy::transmute!(*b);
        let kind = StreamKind::decode(raw.kind.into())?;
        // The set of references, or what events have lost.
        let word = get!(b, P, __bindgen_anon_1, u64);
        let (set, lost_atomic) = match kind {
            StreamKind::Ref => (u32::try_from(word).unwrap_or(u32::MAX), 0),
            _ => (0, word),
        };
        let cpu = raw.cpu;
        Some(PacketHead::of(
            &raw,
            StreamId { kind, cpu, set },
            lost_atomic,
        ))
    }

    /// Bytes of the packet.
    pub(crate) fn size(&self) -> u64 {
        HEAD_SIZE as u64 + u64::from(self.content_size)
    }

    /// Whether its content is not stored as it is.
    pub fn is_packed(&self) -> bool {
        self.codec != 0
    }

    /// Where in its content the time of the first reference is; `None` if it is compressed.
    pub(crate) fn place_of_first_time(&self) -> Option<u64> {
        const PACK: u16 = uapi::VMTRACE_CODEC_PACK as u16;
        const PACK2: u16 = uapi::VMTRACE_CODEC_PACK2 as u16;
        match self.codec {
            0 => Some(Ref::TIME),
            PACK | PACK2 => Some(offset_of!(uapi::vmtrace_packed, time) as u64),
            _ => None,
        }
    }

    /// Bytes of the content when it is not packed.
    pub(crate) fn unpacked_content(&self) -> u32 {
        match self.is_packed() {
            true => self.raw_size,
            false => self.content_size,
        }
    }

    /// Bytes of the packet when its content is not packed.
    pub(crate) fn unpacked_size(&self) -> u64 {
        HEAD_SIZE as u64 + u64::from(self.unpacked_content())
    }

    /// What is impossible for a packet of a trace with this header, if anything is.
    pub(crate) fn nonsense(&self, header: &Header) -> Option<&'static str> {
        let (records, content) = (u64::from(self.records), u64::from(self.unpacked_content()));
        let room = |size: usize| records * size as u64;
        if self.stream.cpu >= header.nr_cpus {
            return Some("a packet of a CPU that does not exist");
        }
        if self.first_seq.max(self.last_seq) > MOST {
            return Some("a packet with an impossible sequence number");
        }
        if self.first_time_ns.max(self.last_time_ns) > MOST {
            return Some("a packet with an impossible time");
        }
        if self.stream.set != 0
            && !(header.sets.are_several() && self.stream.kind == StreamKind::Ref)
        {
            return Some("a packet of a set that does not exist");
        }
        if self.stream.kind.is_of_piece() && !header.is_piece() {
            return Some("a packet that only a piece of a trace has");
        }
        if self.stream.kind.is_of_part() && !header.is_part() {
            return Some("a packet that only the part of a process has");
        }
        let may_be_packed = self.stream.kind.is_of_refs() || self.stream.kind.is_of_events();
        // Of references or events, whether or not the header says that there are such packets: in a
        // trace that was unpacked, damaged packets are left as they were.
        if self.is_packed() && !may_be_packed {
            return Some("a packed packet where none can be");
        }
        let twice = (uapi::VMTRACE_CODEC_PACK | uapi::VMTRACE_CODEC_PACK2) as u16;
        let only_refs = uapi::VMTRACE_CODEC_PACK2 as u16;
        if self.codec & !CODECS != 0
            || self.codec & twice == twice
            || self.codec & only_refs != 0 && !self.stream.kind.is_of_refs()
        {
            return Some("a packet that is packed in an unknown way");
        }
        if self.raw_size != 0 && !self.is_packed() {
            return Some("the size of packed content in a packet that is not packed");
        }
        if content > header.most_content() {
            return Some("a packet that is longer than a sub-buffer when it is unpacked");
        }
        match self.stream.kind {
            StreamKind::Ref | StreamKind::Context if room(header.ref_size()) != content => {
                Some("a packet whose content has another length than its references")
            }
            StreamKind::Event | StreamKind::State if room(header.event_head_size()) > content => {
                Some("a packet whose content is shorter than its events")
            }
            _ => None,
        }
    }

    /// Whether its base of times may be earlier than its first record.
    pub(crate) fn is_early(&self, header: &Header) -> bool {
        self.stream.kind.is_of_refs() && header.nr_cpus > 1
    }

    /// What the times of its records contradict, if they contradict anything: the time of the first
    /// record, and the latest one.
    pub(crate) fn mistimed(
        &self,
        header: &Header,
        first_ns: u64,
        latest_ns: u64,
    ) -> Option<&'static str> {
        let early = if self.is_early(header) { EARLY_NS } else { 0 };
        // None can be before the base: the format has no number for that.
        if first_ns.wrapping_sub(self.first_time_ns) > early {
            return Some(match early {
                0 => "the first record's time differs from the one in the packet's head",
                _ => "the first record's time is too far from the one in the packet's head",
            });
        }
        (latest_ns != self.last_time_ns)
            .then_some("the latest record's time differs from the one in the packet's head")
    }

    /// Whether an event's number and time lie within the bounds in the head. Its CPU may be
    /// another one than the stream's, which was offline when the trace began.
    pub(crate) fn spans(&self, event: &Event<'_>) -> bool {
        (self.first_seq..=self.last_seq).contains(&event.seq)
            && (self.first_time_ns..=self.last_time_ns).contains(&event.time_ns)
    }

    /// Records lost in this stream until this packet, whatever the cause.
    pub fn lost(&self) -> u64 {
        self.lost_full
            .saturating_add(self.lost_atomic)
            .saturating_add(self.lost_io)
    }
}

/// The identity in a packet's head.
pub(crate) fn packet_uuid(b: &[u8; HEAD_SIZE]) -> Uuid {
    let (_, from) = b.split_at(offset_of!(uapi::vmtrace_packet, uuid));
    Uuid(from.first_chunk().copied().unwrap_or_default())
}

/// The magic in a packet's head.
pub(crate) fn packet_magic(b: &[u8; HEAD_SIZE]) -> u64 {
    LE::read_u64(&b[..8])
}

/// The checksum that a head and its content should carry.
pub(crate) fn packet_crc(head: &[u8; HEAD_SIZE], content: &[u8]) -> u32 {
    let at = offset_of!(uapi::vmtrace_packet, crc);
    let mut zeroed = *head;
    zeroed[at..at + 4].fill(0);
    crc32c::crc32c_append(crc32c::crc32c(&zeroed), content)
}

/// Corrects the checksums of all packets of a trace that was changed, up to the first head that is invalid.
pub fn mend_checksums(trace: &mut [u8]) {
    type P = uapi::vmtrace_packet;
    let crc_at = offset_of!(P, crc);
    let mut rest = trace.get_mut(HEADER_SIZE..).unwrap_or_default();
    while let Some((head, after)) = rest.split_first_chunk_mut::<HEAD_SIZE>() {
        let size = get!(head, P, content_size, u32) as usize;
        let Some((content, after)) = after.split_at_mut_checked(size) else {
            return;
        };
        let crc = packet_crc(head, content);
        LE::write_u32(&mut head[crc_at..], crc);
        rest = after;
    }
}
