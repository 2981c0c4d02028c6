//! Finding a trace's packets by their heads.

use std::collections::BTreeMap;
use std::io;

use memchr::memmem;
use rust_mm_trace::uapi;

use super::codec::Unpacker;
use super::damage::{Damage, DamageKind};
use super::merge::PacketSeen;
use super::offsets::{Growing, Offsets, Spill};
use super::piece::{NO_PIECE, Piece};
use super::source::Bytes;
use super::wire::{
    HEAD_SIZE, HEADER_SIZE, Header, PacketHead, Ref, Status, StreamId, StreamKind, Uuid,
    WindowAccount, packet_crc, packet_magic, packet_uuid,
};

/// The packets of one stream, in the order of the file.
#[derive(Clone, Debug)]
pub struct StreamIndex {
    /// Which stream.
    pub id: StreamId,
    /// Where its packets begin, in bytes.
    pub packets: Offsets,
    /// Records that their heads claim.
    pub records: u64,
    /// Time of the first record, and the latest one of all, as the packets claim them, in ns.
    pub span_ns: (u64, u64),
    /// The smallest sequence number with which one of its packets begins, as the heads claim.
    pub first_seq: u64,
    /// The first and the last window that its packets belong to, as the heads claim.
    windows: (u32, u32),
}

/// The packet that ends a trace.
#[derive(Clone, Debug)]
pub struct EndPacket {
    /// Where it begins.
    pub offset: u64,
    /// The first byte after it.
    pub end: u64,
    /// Its head.
    pub head: PacketHead,
    /// What the kernel counted.
    pub status: Status,
}

/// A packet that ends a window.
#[derive(Clone, Copy, Debug)]
pub struct WindowPacket {
    /// Where it begins.
    pub offset: u64,
    /// The first byte after it.
    pub end: u64,
    /// Its head.
    pub head: PacketHead,
    /// What the kernel counted.
    pub account: WindowAccount,
}

/// All packets of a trace.
#[derive(Clone, Debug, Default)]
pub struct PacketIndex {
    /// By stream, in order of kind, CPU and set.
    pub streams: Vec<StreamIndex>,
    /// Parts of the file where no packet could be found. Packets whose content
    /// is damaged are found when they are read.
    pub damage: Vec<Damage>,
    /// The last packet; without it the trace was cut short.
    pub end: Option<EndPacket>,
    /// The packets that end windows. Of a window alone, that one is also `end`.
    pub windows: Vec<WindowPacket>,
    /// Of a window alone, the last packet before it of each stream.
    pub before: BTreeMap<StreamId, PacketSeen>,
    /// Packets of the trace that only describe what existed when a piece began.
    describing: u64,
    /// By number of a window, the first sequence number that a head claims for it.
    window_starts: BTreeMap<u32, u64>,
    /// Sequence numbers given out before.
    pub first_seq: u64,
    /// Bytes that the file would have more if no packet were packed.
    pub saved: u64,
    /// Where reading of heads stopped: bytes behind belong to nobody.
    pub stop: u64,
}

/// What stands at a place where a packet should begin.
enum Found {
    /// A packet, and its head as it lies in the file.
    Packet(PacketHead, [u8; HEAD_SIZE]),
    /// The same, of which the head says what cannot be.
    Nonsense(PacketHead, [u8; HEAD_SIZE], &'static str),
    /// A packet of which the end is missing.
    Cut(PacketHead),
    Foreign,
    Nothing(&'static str),
    /// The end of the file.
    Over,
}

/// When a packet counts as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strictness {
    /// If its head leads to another packet, or its checksum holds: quick, and what is damaged in
    /// its content is found when it is read.
    Heads,
    /// If its checksum holds: so nothing that is untouched is lost behind a wrong head.
    Checksums,
}

/// Looks for packets, and remembers what that took.
struct Search<'b> {
    bytes: &'b Bytes,
    header: &'b Header,
    /// Holds a packet's content, or a part of the file that is searched.
    buffer: Vec<u8>,
    needle: memmem::Finder<'static>,
    /// Bytes that may still be read for packets that turn out to be none.
    patience: u64,
}

/// The first part of the file that is searched for a packet, and the largest.
const PART: usize = 4 << 10;
const MOST: usize = 1 << 20;

/// The head at a place, if there are bytes enough for one.
fn raw_head(bytes: &Bytes, at: u64) -> io::Result<Option<[u8; HEAD_SIZE]>> {
    if bytes.len().saturating_sub(at) < HEAD_SIZE as u64 {
        return Ok(None);
    }
    let mut raw = [0; HEAD_SIZE];
    bytes.read(at, &mut raw)?;
    Ok(Some(raw))
}

/// The head of a packet that was found before.
pub(super) fn head_at(bytes: &Bytes, at: u64) -> io::Result<Option<PacketHead>> {
    Ok(raw_head(bytes, at)?.and_then(|raw| PacketHead::decode(&raw)))
}

/// The next place from `at` on where `needle` stands. `buffer` is for parts of the file.
fn next_place(
    bytes: &Bytes,
    needle: &memmem::Finder<'_>,
    buffer: &mut Vec<u8>,
    mut at: u64,
) -> io::Result<Option<u64>> {
    let overlap = needle.needle().len() - 1;
    let mut part = PART;
    loop {
        let left = bytes.len().saturating_sub(at);
        if left <= overlap as u64 {
            return Ok(None);
        }
        let len = left.min(part as u64) as usize;
        buffer.resize(len, 0);
        bytes.read(at, buffer)?;
        if let Some(skip) = needle.find(buffer) {
            return Ok(Some(at + skip as u64));
        }
        at += (len - overlap) as u64;
        part = (part * 2).min(MOST);
    }
}

/// The traces that packets in a file claim to be of, and how many packets, most first. For a file
/// whose header is lost: nothing but the magic is verified.
pub(super) fn uuids(bytes: &Bytes) -> io::Result<Vec<(Uuid, u64)>> {
    let magic = uapi::VMTRACE_PACKET_MAGIC.to_le_bytes();
    let needle = memmem::Finder::new(&magic);
    let mut counts: Vec<(Uuid, u64)> = Vec::new();
    let (mut buffer, mut at) = (Vec::new(), 0);
    while let Some(place) = next_place(bytes, &needle, &mut buffer, at)? {
        at = place + magic.len() as u64;
        let Some(raw) = raw_head(bytes, place)? else {
            break;
        };
        let uuid = packet_uuid(&raw);
        match counts.iter().position(|c| c.0 == uuid) {
            Some(which) => counts[which].1 += 1,
            // A block device may have the rests of some older traces, not of very many.
            None if counts.len() < 16 => counts.push((uuid, 1)),
            None => {}
        }
    }
    counts.sort_by_key(|c| std::cmp::Reverse(c.1));
    Ok(counts)
}

impl<'b> Search<'b> {
    fn new(bytes: &'b Bytes, header: &'b Header) -> Self {
        let mut needle = uapi::VMTRACE_PACKET_MAGIC.to_le_bytes().to_vec();
        needle.extend_from_slice(&header.uuid.0);
        Search {
            bytes,
            header,
            buffer: Vec::new(),
            needle: memmem::Finder::new(&needle).into_owned(),
            // Packets do not overlap in a file that is only damaged. In one that is made to
            // look so, each byte may lie in very many.
            patience: bytes.len().saturating_mul(8).max(1 << 26),
        }
    }

    fn look(&self, at: u64) -> io::Result<Found> {
        if at >= self.bytes.len() {
            return Ok(Found::Over);
        }
        let Some(raw) = raw_head(self.bytes, at)? else {
            return Ok(Found::Nothing("fewer bytes than a packet's head"));
        };
        if packet_magic(&raw) != uapi::VMTRACE_PACKET_MAGIC {
            return Ok(Found::Nothing("no packet begins here"));
        }
        if packet_uuid(&raw) != self.header.uuid {
            return Ok(Found::Foreign);
        }
        let Some(head) = PacketHead::decode(&raw) else {
            return Ok(Found::Nothing("a packet of unknown kind"));
        };
        if u64::from(head.content_size) > self.header.most_content() {
            return Ok(Found::Nothing("a packet longer than a sub-buffer"));
        }
        if self.bytes.len() - at - (HEAD_SIZE as u64) < u64::from(head.content_size) {
            return Ok(Found::Cut(head));
        }
        Ok(match head.nonsense(self.header) {
            Some(why) => Found::Nonsense(head, raw, why),
            None => Found::Packet(head, raw),
        })
    }

    /// Reads a packet's content; whether its checksum holds.
    fn crc_holds(&mut self, at: u64, head: &PacketHead, raw: &[u8; HEAD_SIZE]) -> io::Result<bool> {
        self.buffer.resize(head.content_size as usize, 0);
        self.bytes.read(at + HEAD_SIZE as u64, &mut self.buffer)?;
        Ok(packet_crc(raw, &self.buffer) == head.crc)
    }

    /// The same for a packet that may be none.
    fn believable(
        &mut self,
        at: u64,
        head: &PacketHead,
        raw: &[u8; HEAD_SIZE],
    ) -> io::Result<bool> {
        let Some(left) = self.patience.checked_sub(head.content_size.into()) else {
            return Ok(false);
        };
        let good = self.crc_holds(at, head, raw)?;
        if !good {
            self.patience = left;
        }
        Ok(good)
    }

    /// The next place from `at` on where one of our packets begins.
    fn next(&mut self, at: u64) -> io::Result<Option<u64>> {
        next_place(self.bytes, &self.needle, &mut self.buffer, at)
    }
}

/// A stream while its packets are found.
#[derive(Default)]
struct Growth {
    packets: Growing,
    records: u64,
    span_ns: Option<(u64, u64)>,
    first_seq: Option<u64>,
    windows: Option<(u32, u32)>,
}

/// The span of a stream's packets so far, and of the one at `at`.
///
/// A base of times that is earlier than the first record is no record's time. Of such a stream, the
/// first record of the first packet is looked at.
fn span(
    first_times: &mut FirstTimes,
    one: Option<(u64, u64)>,
    bytes: &Bytes,
    header: &Header,
    at: u64,
    head: &PacketHead,
) -> io::Result<(u64, u64)> {
    let first = match one {
        Some((first, _)) if head.is_early(header) => first,
        None if head.is_early(header) && head.records > 0 => {
            let time = first_times.read(bytes, header, at, head)?;
            // A good packet has none that is later.
            Ref::time_of(time, head.first_time_ns).min(head.last_time_ns)
        }
        _ => one
            .map_or(u64::MAX, |(first, _)| first)
            .min(head.first_time_ns),
    };
    let last = one.map_or(0, |(_, last)| last);
    Ok((first, last.max(head.last_time_ns)))
}

/// Reads the times of packets' first records.
#[derive(Default)]
struct FirstTimes {
    unpacker: Unpacker,
    stored: Vec<u8>,
    content: Vec<u8>,
}

impl FirstTimes {
    /// As it is written in the record. 0 if the packet is damaged.
    fn read(
        &mut self,
        bytes: &Bytes,
        header: &Header,
        at: u64,
        head: &PacketHead,
    ) -> io::Result<[u8; 4]> {
        let mut time = [0; 4];
        let content = at + HEAD_SIZE as u64;
        if let Some(place) = head.place_of_first_time() {
            bytes.read(content + place, &mut time)?;
            return Ok(time);
        }
        self.stored.resize(head.content_size as usize, 0);
        bytes.read(content, &mut self.stored)?;
        let content = &mut self.content;
        let unpacked = self.unpacker.unpack(header, head, &self.stored, content);
        let field = unpacked
            .ok()
            .and_then(|()| self.content.get(Ref::TIME as usize..)?.first_chunk());
        Ok(field.copied().unwrap_or_default())
    }
}

/// The smallest of the sequence numbers with which a stream's packets so far begin, and this one.
fn earlier(first_seq: Option<u64>, head: &PacketHead) -> Option<u64> {
    Some(first_seq.map_or(head.first_seq, |first| first.min(head.first_seq)))
}

impl PacketIndex {
    /// Walks the heads from the header to the END packet.
    ///
    /// With [`Strictness::Heads`], content is looked at only where a head leads nowhere: then its
    /// checksum decides whether the packet or what follows is at fault.
    ///
    /// # Errors
    ///
    /// Reading failed, or a temporary file cannot be mapped.
    pub(super) fn build(
        bytes: &Bytes,
        header: &Header,
        strictness: Strictness,
        piece: Option<&Piece>,
    ) -> io::Result<Self> {
        let ending = piece.and_then(|piece| piece.end);
        // The END packet of the trace, if a piece has it.
        let mut whole = None;
        let mut search = Search::new(bytes, header);
        let mut first_times = FirstTimes::default();
        let mut streams: BTreeMap<StreamId, Growth> = BTreeMap::new();
        let mut spill = Spill::new();
        let mut index = PacketIndex {
            first_seq: piece.map_or(0, |piece| piece.first_seq.saturating_sub(1)),
            ..PacketIndex::default()
        };
        if header.is_piece() && piece.is_none() {
            index.malformed((HEADER_SIZE as u64, HEADER_SIZE as u64), None, NO_PIECE);
        }
        let mut at = HEADER_SIZE as u64;
        let mut found = search.look(at)?;
        loop {
            let (kind, detail, stream) = match found {
                Found::Over => break,
                Found::Packet(head, raw) if ending.is_some_and(|end| end.at == at) => {
                    // It was verified before.
                    let end = at + head.size();
                    if let (Some(ending), true) = (&ending, search.believable(at, &head, &raw)?) {
                        index.end = ending.packet(bytes, header, whole.as_ref())?;
                    }
                    at = end;
                    break;
                }
                Found::Packet(head, raw) => {
                    let end = at + head.size();
                    let behind = search.look(end)?;
                    let follows = strictness == Strictness::Heads
                        && matches!(
                            behind,
                            Found::Over | Found::Packet(..) | Found::Nonsense(..) | Found::Cut(_)
                        );
                    match head.stream.kind {
                        StreamKind::End if search.believable(at, &head, &raw)? => {
                            if let Some(status) = Status::decode(&search.buffer) {
                                let packet = EndPacket {
                                    offset: at,
                                    end,
                                    head,
                                    status,
                                };
                                if header.is_piece() {
                                    whole = Some(packet);
                                    (at, found) = (end, behind);
                                    continue;
                                }
                                index.end = Some(packet);
                                at = end;
                                break;
                            }
                            index.malformed(
                                (at, end),
                                None,
                                "an END packet whose account is too short, or cannot be",
                            );
                            (at, found) = (end, behind);
                            continue;
                        }
                        StreamKind::End => {}
                        StreamKind::Piece
                        | StreamKind::Own
                        | StreamKind::PieceEnd
                        | StreamKind::Part
                            if follows || search.believable(at, &head, &raw)? =>
                        {
                            (at, found) = (end, behind);
                            continue;
                        }
                        _ if piece.is_some_and(|piece| !piece.has(&head))
                            && (follows || search.believable(at, &head, &raw)?) =>
                        {
                            // Its records are those of other pieces.
                            (at, found) = (end, behind);
                            continue;
                        }
                        _ if follows || search.believable(at, &head, &raw)? => {
                            if head.stream.kind == StreamKind::Window {
                                let good = search.crc_holds(at, &head, &raw)?;
                                let content = good.then_some(&search.buffer[..]);
                                index.find_window(content, at, end, head);
                            }
                            let stream = streams.entry(head.stream).or_default();
                            spill.push(&mut stream.packets, at);
                            let more = head.unpacked_size().saturating_sub(head.size());
                            index.saved = index.saved.saturating_add(more);
                            if piece.is_some_and(|piece| piece.describes(&head))
                                && !head.stream.kind.is_of_piece()
                            {
                                // Its records are not those of the piece.
                                index.describing += 1;
                                (at, found) = (end, behind);
                                continue;
                            }
                            stream.records = stream.records.saturating_add(head.records.into());
                            stream.span_ns = Some(span(
                                &mut first_times,
                                stream.span_ns,
                                bytes,
                                header,
                                at,
                                &head,
                            )?);
                            stream.first_seq = earlier(stream.first_seq, &head);
                            let (first, last) =
                                stream.windows.unwrap_or((head.window, head.window));
                            stream.windows = Some((first.min(head.window), last.max(head.window)));
                            if head.stream.kind == StreamKind::Context {
                                (at, found) = (end, behind);
                                continue;
                            }
                            let start = index.window_starts.entry(head.window);
                            let start = start.or_insert(head.first_seq);
                            *start = head.first_seq.min(*start);
                            (at, found) = (end, behind);
                            continue;
                        }
                        _ => {}
                    }
                    let detail = match strictness {
                        Strictness::Heads => {
                            "a packet's checksum is wrong, and no packet follows it"
                        }
                        Strictness::Checksums => "a packet's checksum is wrong",
                    };
                    (DamageKind::Checksum, detail, Some(head.stream))
                }
                Found::Nonsense(head, raw, why) => {
                    if search.believable(at, &head, &raw)? {
                        let end = at + head.size();
                        index.malformed((at, end), Some(head.stream), why);
                        (at, found) = (end, search.look(end)?);
                        continue;
                    }
                    (DamageKind::NotAPacket, why, None)
                }
                Found::Cut(head) => {
                    let detail = "the file ends inside a packet";
                    (DamageKind::Truncated, detail, Some(head.stream))
                }
                Found::Foreign => {
                    let detail = "a packet of another trace (with another UUID)";
                    (DamageKind::ForeignUuid, detail, None)
                }
                Found::Nothing(detail) => (DamageKind::NotAPacket, detail, None),
            };
            // On to the next place where one of our packets begins.
            let next = search.next(at + 8)?;
            index.damage.push(Damage {
                kind,
                start: at,
                end: next.unwrap_or(bytes.len()),
                stream: stream.filter(|s| s.kind != StreamKind::End),
                gap: None,
                detail: detail.into(),
            });
            match next {
                Some(next) => (at, found) = (next, search.look(next)?),
                None => break,
            }
        }
        index.stop = at;
        let spilled = spill.finish()?;
        let stream = |(id, found): (_, Growth)| StreamIndex {
            id,
            packets: found.packets.finish(spilled.as_ref()),
            records: found.records,
            span_ns: found.span_ns.unwrap_or_default(),
            first_seq: found.first_seq.unwrap_or_default(),
            windows: found.windows.unwrap_or_default(),
        };
        index.streams = streams.into_iter().map(stream).collect();
        index.find_gaps(bytes)?;
        Ok(index)
    }

    fn malformed(&mut self, (start, end): (u64, u64), stream: Option<StreamId>, detail: &str) {
        self.damage.push(Damage {
            kind: DamageKind::Malformed,
            start,
            end,
            stream: stream.filter(|s| s.kind != StreamKind::End),
            gap: None,
            detail: detail.into(),
        });
    }

    /// Takes a window's account from the content of its packet, if that is believable.
    fn find_window(&mut self, content: Option<&[u8]>, at: u64, end: u64, head: PacketHead) {
        match content.and_then(WindowAccount::decode) {
            Some(account) => self.windows.push(WindowPacket {
                offset: at,
                end,
                head,
                account,
            }),
            None => self.malformed(
                (at, end),
                None,
                "a window's account whose checksum or length is wrong, or which cannot be",
            ),
        }
    }

    /// What there is of one window: `None` if nothing is.
    ///
    /// # Errors
    ///
    /// Reading failed.
    pub(super) fn window(
        &self,
        bytes: &Bytes,
        header: &Header,
        number: u32,
    ) -> io::Result<Option<PacketIndex>> {
        let closing = self.windows.iter().find(|w| w.account.number == number);
        let mut window = PacketIndex {
            stop: self.stop,
            first_seq: closing.map_or(0, |w| w.account.first_seq.saturating_sub(1)),
            windows: closing.copied().into_iter().collect(),
            ..PacketIndex::default()
        };
        let start = self.window_starts.get_key_value(&number);
        window.window_starts.extend(start);
        let (mut from, mut to) = (u64::MAX, 0);
        let mut first_times = FirstTimes::default();
        for stream in self
            .streams
            .iter()
            .filter(|s| s.id.kind != StreamKind::Window)
            // A set belongs to one window, and there may be very many of both.
            .filter(|s| (s.windows.0..=s.windows.1).contains(&number))
        {
            let mut failed = None;
            let mut head = |at: u64| {
                let head = head_at(bytes, at);
                head.unwrap_or_else(|error| {
                    failed = Some(error);
                    None
                })
            };
            // A stream's packets are in order of their windows.
            let first = stream
                .packets
                .partition_point(|at| head(at).is_some_and(|h| h.window < number));
            let packets = stream.packets.slice(first, usize::MAX);
            let count = packets.partition_point(|at| head(at).is_some_and(|h| h.window == number));
            let packets = packets.slice(0, count);
            if let Some(offset) = first.checked_sub(1).and_then(|i| stream.packets.get(i)) {
                let seen = head(offset).map(|head| PacketSeen { offset, head });
                window.before.extend(seen.map(|seen| (stream.id, seen)));
            }
            let mut records = 0u64;
            let (mut span_ns, mut first_seq) = (None, None);
            for (at, head) in packets.iter().map_while(|at| Some((at, head(at)?))) {
                records = records.saturating_add(head.records.into());
                span_ns = Some(span(&mut first_times, span_ns, bytes, header, at, &head)?);
                first_seq = earlier(first_seq, &head);
            }
            if let Some(error) = failed {
                return Err(error);
            }
            let (Some(one), Some(last)) = (packets.first(), packets.last()) else {
                continue;
            };
            (from, to) = (from.min(one), to.max(last));
            window.streams.push(StreamIndex {
                id: stream.id,
                records,
                packets,
                span_ns: span_ns.unwrap_or_default(),
                first_seq: first_seq.unwrap_or_default(),
                windows: (number, number),
            });
        }
        if let Some(w) = closing {
            (from, to) = (from.min(w.offset), w.end);
        }
        // What is damaged between its packets may be its own.
        let near = |d: &&Damage| d.end > from && d.start < to;
        window.damage = self.damage.iter().filter(near).cloned().collect();
        let whole = self.end.as_ref().map(|e| &e.status);
        window.end = closing.map(|w| EndPacket {
            offset: w.offset,
            end: w.end,
            head: w.head,
            // Its own packet is one of those that the kernel counts.
            status: w.account.status(header, window.packets() + 1, whole),
        });
        // Of a window whose packets stand where nobody looks for them, nothing is left but that
        // there is one.
        let known = start.is_some() || closing.is_some();
        Ok((known || !window.streams.is_empty()).then_some(window))
    }

    /// Says for each damaged packet of a known stream what it cost.
    fn find_gaps(&mut self, bytes: &Bytes) -> io::Result<()> {
        for damage in &mut self.damage {
            let Some(id) = damage.stream else { continue };
            if let Ok(at) = self.streams.binary_search_by_key(&id, |s| s.id) {
                damage.gap = Some(self.streams[at].gap(bytes, damage.start)?);
            }
        }
        Ok(())
    }

    /// Time of the first record, and the latest one of all, as the packets claim them, in ns.
    pub fn time_span(&self) -> Option<(u64, u64)> {
        // A stream may have no record but those of a piece's description.
        let streams = || {
            let of_trace = self.streams.iter().filter(|s| !s.id.kind.is_of_part());
            of_trace.filter(|s| s.records > 0)
        };
        let spans = || streams().map(|s| s.span_ns);
        Some((spans().map(|s| s.0).min()?, spans().map(|s| s.1).max()?))
    }

    /// The trace's windows, as the heads claim them: the first sequence number of
    /// each, and its number, in order.
    pub(crate) fn windows(&self) -> Vec<(u64, u64)> {
        let starts = self.window_starts.iter();
        let mut windows: Vec<(u64, u64)> =
            starts.map(|(&window, &seq)| (seq, window.into())).collect();
        windows.sort_unstable();
        windows
    }

    /// Lets go of the memory behind what was read of the offsets.
    pub(crate) fn release(&self) {
        // All lie in one file.
        if let Some(stream) = self.streams.first() {
            stream.packets.release();
        }
    }

    /// Packets before the END packet, without those of a piece's description.
    pub fn packets(&self) -> u64 {
        let is_of_trace = |kind: StreamKind| !kind.is_of_piece() && !kind.is_of_part();
        let of_trace = self.streams.iter().filter(|s| is_of_trace(s.id.kind));
        let all: u64 = of_trace.map(|s| s.packets.len() as u64).sum();
        all.saturating_sub(self.describing)
    }

    /// Records that the heads of one kind claim.
    pub fn records(&self, kind: StreamKind) -> u64 {
        self.streams
            .iter()
            .filter(|s| s.id.kind == kind)
            .fold(0, |sum, s| sum.saturating_add(s.records))
    }
}

impl StreamIndex {
    /// The first window that its packets belong to, as the heads claim.
    pub(super) fn first_window(&self) -> u32 {
        self.windows.0
    }

    /// Last and first sequence number of the packets around `offset`.
    ///
    /// # Errors
    ///
    /// Reading failed.
    pub(super) fn gap(&self, bytes: &Bytes, offset: u64) -> io::Result<(u64, u64)> {
        let head = |at: Option<u64>| match at {
            Some(at) => head_at(bytes, at),
            None => Ok(None),
        };
        let before = self.packets.partition_point(|p| p < offset);
        let after = self.packets.partition_point(|p| p <= offset);
        let last = before.checked_sub(1).and_then(|i| self.packets.get(i));
        let last = head(last)?.map_or(0, |h| h.last_seq);
        let first = head(self.packets.get(after))?.map_or(u64::MAX, |h| h.first_seq);
        Ok((last, first))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::TraceBuilder;
    use crate::trace::Trace;

    /// The base of times of a packet is the time of nothing.
    #[test]
    fn a_trace_does_not_begin_before_its_first_record() {
        for cpus in [1, 2] {
            let mut b = TraceBuilder::new(cpus, 4);
            b.leap(1 << 30);
            let begun = 1_000 + (1 << 30);
            for i in 0..9 {
                b.read_early(if cpus > 1 { i % 3 * 100 } else { 0 });
                b.touch(i as u32 % cpus, 10, 1, 0x1000 + i * 0x1000);
            }
            let trace = Trace::from_bytes("memory", b.finish()).unwrap();
            let latest = if cpus > 1 { 700 } else { 900 };
            let span = trace.index().time_span();
            assert_eq!(span, Some((begun + 100, begun + latest)));
        }
    }
}
