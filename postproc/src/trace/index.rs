//! Finding a trace's packets by their heads.

use std::collections::BTreeMap;
use std::io;

use memchr::memmem;
use rust_mm_trace::uapi;

use super::damage::{Damage, DamageKind};
use super::merge::PacketSeen;
use super::offsets::{Growing, Offsets, Spill};
use super::wire::{
    HEAD_SIZE, HEADER_SIZE, Header, PacketHead, Status, StreamId, StreamKind, Uuid, WindowAccount,
    packet_crc, packet_magic, packet_uuid,
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
    /// By stream, in order of kind and CPU.
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
    /// Sequence numbers given out before.
    pub first_seq: u64,
    /// Where reading of heads stopped: bytes behind belong to nobody.
    pub stop: u64,
}

/// Heads to look at before their memory is given back: the system maps some
/// tens of kilobytes around each.
const HEADS_AT_ONCE: u64 = 128;

/// What stands at a place where a packet should begin.
enum Found {
    Packet(PacketHead),
    Foreign,
    Nothing(&'static str),
    Cut(PacketHead),
}

fn head_at(bytes: &[u8], at: usize) -> Option<&[u8; HEAD_SIZE]> {
    bytes.get(at..)?.first_chunk()
}

fn look(bytes: &[u8], at: usize, uuid: Uuid, limit: u64) -> Found {
    let Some(raw) = head_at(bytes, at) else {
        return Found::Nothing("fewer bytes than a packet's head");
    };
    if packet_magic(raw) != uapi::VMTRACE_PACKET_MAGIC {
        return Found::Nothing("no packet begins here");
    }
    if packet_uuid(raw) != uuid {
        return Found::Foreign;
    }
    let Some(head) = PacketHead::decode(raw) else {
        return Found::Nothing("a packet of unknown kind");
    };
    if u64::from(head.content_size) > limit {
        return Found::Nothing("a packet longer than a sub-buffer");
    }
    if bytes.len() - at - HEAD_SIZE < head.content_size as usize {
        return Found::Cut(head);
    }
    Found::Packet(head)
}

impl PacketIndex {
    /// Walks the heads from the header to the END packet.
    ///
    /// Content is looked at only where a head leads nowhere: then its checksum
    /// decides whether the packet or what follows is at fault. Calls `release`
    /// from time to time, for heads that were looked at stay in memory.
    ///
    /// # Errors
    ///
    /// A temporary file cannot be mapped.
    pub(crate) fn build(bytes: &[u8], header: &Header, release: impl Fn()) -> io::Result<Self> {
        let uuid = header.uuid;
        let limit = u64::from(header.buffer_size).max(size_of::<uapi::vmtrace_status>() as u64);
        let finder = {
            let mut needle = uapi::VMTRACE_PACKET_MAGIC.to_le_bytes().to_vec();
            needle.extend_from_slice(&uuid.0);
            memmem::Finder::new(&needle).into_owned()
        };
        let mut streams: BTreeMap<StreamId, (Growing, u64)> = BTreeMap::new();
        let mut spill = Spill::new();
        let mut index = PacketIndex::default();
        let mut at = HEADER_SIZE;
        let mut heads = 0u64;
        while at < bytes.len() {
            let found = look(bytes, at, uuid, limit);
            let (kind, detail, stream) = match found {
                Found::Packet(head) => {
                    let end = at + HEAD_SIZE + head.content_size as usize;
                    let follows = end == bytes.len()
                        || matches!(
                            look(bytes, end, uuid, limit),
                            Found::Packet(_) | Found::Cut(_)
                        );
                    let last = head.stream.kind == StreamKind::End;
                    if (follows && !last) || crc_holds(bytes, at, &head) {
                        if last {
                            let content = &bytes[at + HEAD_SIZE..end];
                            if let Some(status) = Status::decode(content) {
                                index.end = Some(EndPacket {
                                    offset: at as u64,
                                    end: end as u64,
                                    head,
                                    status,
                                });
                                at = end;
                                break;
                            }
                            index.damage.push(Damage {
                                kind: DamageKind::Malformed,
                                start: at as u64,
                                end: end as u64,
                                stream: None,
                                gap: None,
                                detail: "an END packet too short for the kernel's account".into(),
                            });
                        } else {
                            if head.stream.kind == StreamKind::Window {
                                index.find_window(bytes, at, end, head);
                            }
                            let (packets, records) = streams.entry(head.stream).or_default();
                            spill.push(packets, at as u64);
                            heads += 1;
                            if heads % HEADS_AT_ONCE == 0 {
                                release();
                            }
                            *records = records.saturating_add(u64::from(head.records));
                        }
                        at = end;
                        continue;
                    }
                    let detail = "a packet's checksum does not hold and no packet follows it";
                    (DamageKind::Checksum, detail, Some(head.stream))
                }
                Found::Cut(head) => {
                    let detail = "the file ends inside a packet";
                    (DamageKind::Truncated, detail, Some(head.stream))
                }
                Found::Foreign => {
                    let detail = "a packet of another trace (different uuid)";
                    (DamageKind::ForeignUuid, detail, None)
                }
                Found::Nothing(detail) => (DamageKind::NotAPacket, detail, None),
            };
            // On to the next place where one of our packets begins.
            let next = finder
                .find(bytes.get(at + 8..).unwrap_or_default())
                .map(|skip| at + 8 + skip);
            index.damage.push(Damage {
                kind,
                start: at as u64,
                end: next.unwrap_or(bytes.len()) as u64,
                stream: stream.filter(|s| s.kind != StreamKind::End),
                gap: None,
                detail: detail.into(),
            });
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        index.stop = at as u64;
        let spilled = spill.finish()?;
        let stream = |(id, (packets, records)): (_, (Growing, _))| StreamIndex {
            id,
            packets: packets.finish(spilled.as_ref()),
            records,
        };
        index.streams = streams.into_iter().map(stream).collect();
        index.find_gaps(bytes);
        Ok(index)
    }

    /// Takes a window's account, if the packet at `at` is believable.
    fn find_window(&mut self, bytes: &[u8], at: usize, end: usize, head: PacketHead) {
        let account = WindowAccount::decode(&bytes[at + HEAD_SIZE..end]);
        match account.filter(|_| crc_holds(bytes, at, &head)) {
            Some(account) => self.windows.push(WindowPacket {
                offset: at as u64,
                end: end as u64,
                head,
                account,
            }),
            None => self.damage.push(Damage {
                kind: DamageKind::Malformed,
                start: at as u64,
                end: end as u64,
                stream: None,
                gap: None,
                detail: "a window's account whose checksum or length is wrong".into(),
            }),
        }
    }

    /// What there is of one window: `None` if nothing is.
    pub(crate) fn window(
        &self,
        bytes: &[u8],
        header: &Header,
        number: u32,
        release: impl Fn(),
    ) -> Option<PacketIndex> {
        let closing = self.windows.iter().find(|w| w.account.number == number);
        let mut window = PacketIndex {
            stop: self.stop,
            first_seq: closing.map_or(0, |w| w.account.first_seq.saturating_sub(1)),
            windows: closing.copied().into_iter().collect(),
            ..PacketIndex::default()
        };
        let head = |at: u64| head_at(bytes, at as usize).and_then(PacketHead::decode);
        let (mut from, mut to) = (u64::MAX, 0);
        for stream in self
            .streams
            .iter()
            .filter(|s| s.id.kind != StreamKind::Window)
        {
            // A stream's packets are in order of their windows.
            let first = stream
                .packets
                .partition_point(|at| head(at).is_some_and(|h| h.window < number));
            release();
            let packets = stream.packets.slice(first, usize::MAX);
            let count = packets.partition_point(|at| head(at).is_some_and(|h| h.window == number));
            release();
            let packets = packets.slice(0, count);
            if let Some(offset) = first.checked_sub(1).and_then(|i| stream.packets.get(i)) {
                let seen = head(offset).map(|head| PacketSeen { offset, head });
                window.before.extend(seen.map(|seen| (stream.id, seen)));
            }
            let (Some(one), Some(last)) = (packets.first(), packets.last()) else {
                continue;
            };
            (from, to) = (from.min(one), to.max(last));
            let records = packets.iter().enumerate().filter_map(|(i, at)| {
                if i as u64 % HEADS_AT_ONCE == HEADS_AT_ONCE - 1 {
                    release();
                }
                head(at)
            });
            window.streams.push(StreamIndex {
                id: stream.id,
                records: records.fold(0, |n, h| n.saturating_add(h.records.into())),
                packets,
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
        (closing.is_some() || !window.streams.is_empty()).then_some(window)
    }

    /// Says for each damaged packet of a known stream what it cost.
    fn find_gaps(&mut self, bytes: &[u8]) {
        for damage in &mut self.damage {
            let Some(stream) = self.streams.iter().find(|s| Some(s.id) == damage.stream) else {
                continue;
            };
            damage.gap = Some(stream.gap(bytes, damage.start));
        }
    }

    /// Time of the first and of the last record, as the heads claim it, in ns.
    pub fn time_span(&self, bytes: &[u8]) -> Option<(u64, u64)> {
        let head = |at: u64| head_at(bytes, at as usize).and_then(PacketHead::decode);
        let heads = || {
            self.streams
                .iter()
                .flat_map(|s| [s.packets.first(), s.packets.last()])
        };
        let heads = || heads().flatten().filter_map(head);
        Some((
            heads().map(|h| h.first_time_ns).min()?,
            heads().map(|h| h.last_time_ns).max()?,
        ))
    }

    /// The trace's windows, as the heads claim them: the first sequence number of
    /// each, and its number, in order. `release` is called now and then, when what
    /// was read may be let go of.
    pub(crate) fn windows(&self, bytes: &[u8], release: impl Fn()) -> Vec<(u64, u64)> {
        let mut first = BTreeMap::new();
        let packets = self.streams.iter().flat_map(|s| s.packets.iter());
        for (i, at) in packets.enumerate() {
            if let Some(head) = head_at(bytes, at as usize).and_then(PacketHead::decode) {
                let seq = first.entry(head.window).or_insert(head.first_seq);
                *seq = head.first_seq.min(*seq);
            }
            if i as u64 % HEADS_AT_ONCE == HEADS_AT_ONCE - 1 {
                release();
            }
        }
        let mut windows: Vec<(u64, u64)> = first
            .into_iter()
            .map(|(window, seq)| (seq, window.into()))
            .collect();
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

    /// Packets before the END packet.
    pub fn packets(&self) -> u64 {
        self.streams.iter().map(|s| s.packets.len() as u64).sum()
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
    /// Last and first sequence number of the packets around `offset`.
    pub(crate) fn gap(&self, bytes: &[u8], offset: u64) -> (u64, u64) {
        let head = |at: u64| head_at(bytes, at as usize).and_then(PacketHead::decode);
        let before = self.packets.partition_point(|p| p < offset);
        let after = self.packets.partition_point(|p| p <= offset);
        let last = before
            .checked_sub(1)
            .and_then(|i| self.packets.get(i))
            .and_then(head)
            .map_or(0, |h| h.last_seq);
        let first = self
            .packets
            .get(after)
            .and_then(head)
            .map_or(u64::MAX, |h| h.first_seq);
        (last, first)
    }
}

fn crc_holds(bytes: &[u8], at: usize, head: &PacketHead) -> bool {
    let Some(raw) = head_at(bytes, at) else {
        return false;
    };
    let content = &bytes[at + HEAD_SIZE..at + HEAD_SIZE + head.content_size as usize];
    packet_crc(raw, content) == head.crc
}
