//! Records of all streams in the order of their sequence numbers.
//!
//! One cursor a stream, and a heap of the cursors by their next sequence
//! number. The cursor at the top is read until the next best one comes first,
//! so that a run of references costs the heap once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::damage::{Damage, DamageKind};
use super::source::Trace;
use super::wire::{
    Event, HEAD_SIZE, PacketHead, Ref, StreamKind, decode_event, packet_crc, peek_event_seq,
};

/// A packet that was opened: its head, and what its records turned out to be.
#[derive(Clone, Copy, Debug)]
pub struct PacketSeen {
    /// Where it begins.
    pub offset: u64,
    /// Its head, the checksum of which holds.
    pub head: PacketHead,
}

/// What stopped a batch.
#[derive(Debug)]
pub enum Step<'a> {
    /// The batch is full; more may follow.
    Full,
    /// An event comes after the batch's references.
    Event(Event<'a>),
    /// No record is left.
    End,
}

struct Cursor<'a> {
    stream: usize,
    next_packet: usize,
    kind: StreamKind,
    head: Option<PacketHead>,
    /// What is left of the packet's content.
    rest: &'a [u8],
    /// Where `rest` begins in the file.
    offset: u64,
    left: u32,
    first_seq: u64,
    last_seq: u64,
}

/// Reads a trace's records in order.
pub struct Merge<'a> {
    trace: &'a Trace,
    cursors: Vec<Cursor<'a>>,
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    opened: Vec<PacketSeen>,
    damage: Vec<Damage>,
    bytes_read: u64,
    /// When the memory behind what was read is given back next.
    release_at: u64,
}

/// Bytes to read before the memory behind them is given back.
const RELEASE_EVERY: u64 = 8 << 20;

impl<'a> Merge<'a> {
    /// Stands before the first record of every stream.
    pub fn new(trace: &'a Trace) -> Self {
        Self::of_kinds(trace, &[StreamKind::Ref, StreamKind::Event])
    }

    /// The same, for streams of some kinds only.
    pub fn of_kinds(trace: &'a Trace, kinds: &[StreamKind]) -> Self {
        let mut merge = Merge {
            trace,
            cursors: Vec::new(),
            heap: BinaryHeap::new(),
            opened: Vec::new(),
            damage: Vec::new(),
            bytes_read: 0,
            release_at: RELEASE_EVERY,
        };
        for (stream, index) in trace.index().streams.iter().enumerate() {
            if !kinds.contains(&index.id.kind) {
                continue;
            }
            let number = merge.cursors.len();
            merge.cursors.push(Cursor {
                stream,
                next_packet: 0,
                kind: index.id.kind,
                head: None,
                rest: &[],
                offset: 0,
                left: 0,
                first_seq: 0,
                last_seq: 0,
            });
            if let Some(seq) = merge.peek(number) {
                merge.heap.push(Reverse((seq, number)));
            }
        }
        merge
    }

    /// Packets opened since the last call, in order of their opening.
    pub fn take_opened(&mut self) -> std::vec::Drain<'_, PacketSeen> {
        self.opened.drain(..)
    }

    /// Damage found since the last call, in packets whose heads were good.
    pub fn take_damage(&mut self) -> std::vec::Drain<'_, Damage> {
        self.damage.drain(..)
    }

    /// Bytes of packets opened so far, for a progress bar.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Appends references to `batch` until it holds `max`, an event is next,
    /// or nothing is left.
    pub fn fill(&mut self, batch: &mut Vec<Ref>, max: usize) -> Step<'a> {
        loop {
            let Some(Reverse((_, number))) = self.heap.pop() else {
                return Step::End;
            };
            let limit = self.heap.peek().map_or(u64::MAX, |Reverse((seq, _))| *seq);
            if self.cursors[number].kind == StreamKind::Event {
                let event = self.next_event(number);
                self.requeue(number);
                match event {
                    Some(event) => return Step::Event(event),
                    None => continue,
                }
            }
            let full = self.run(number, limit, batch, max);
            self.requeue(number);
            if full {
                return Step::Full;
            }
        }
    }

    fn requeue(&mut self, number: usize) {
        if let Some(seq) = self.peek(number) {
            self.heap.push(Reverse((seq, number)));
        }
    }

    /// Takes references of one cursor, the first of which is due, up to
    /// `limit`; true if the batch is full.
    fn run(&mut self, number: usize, limit: u64, batch: &mut Vec<Ref>, max: usize) -> bool {
        let cursor = &mut self.cursors[number];
        let Some(head) = cursor.head else {
            return false;
        };
        let size = self.trace.header().ref_size();
        loop {
            let Some((raw, rest)) = cursor.rest.split_at_checked(size) else {
                return false;
            };
            let record = Ref::decode(raw, cursor.offset, head.first_seq, head.first_time_ns);
            // Equal numbers are a fault of the trace, not of the order.
            if record.seq > limit {
                return false;
            }
            cursor.rest = rest;
            cursor.offset += size as u64;
            cursor.last_seq = record.seq;
            batch.push(record);
            if batch.len() >= max {
                return true;
            }
        }
    }

    fn next_event(&mut self, number: usize) -> Option<Event<'a>> {
        let cursor = &mut self.cursors[number];
        let head_size = self.trace.header().event_head_size();
        match decode_event(cursor.rest, cursor.offset, head_size) {
            Ok((event, size)) => {
                cursor.rest = &cursor.rest[size..];
                cursor.offset += size as u64;
                cursor.left = cursor.left.saturating_sub(1);
                cursor.last_seq = event.seq;
                Some(event)
            }
            Err(why) => {
                let end = cursor.offset + cursor.rest.len() as u64;
                let damage = Damage {
                    kind: DamageKind::Malformed,
                    start: cursor.offset,
                    end,
                    stream: Some(self.trace.index().streams[cursor.stream].id),
                    gap: Some((cursor.last_seq, self.next_first_seq(number))),
                    detail: format!("{}; the rest of the packet is passed over", why.0),
                };
                let cursor = &mut self.cursors[number];
                cursor.rest = &[];
                cursor.head = None;
                self.damage.push(damage);
                None
            }
        }
    }

    fn next_first_seq(&self, number: usize) -> u64 {
        let cursor = &self.cursors[number];
        let packets = &self.trace.index().streams[cursor.stream].packets;
        packets
            .get(cursor.next_packet)
            .and_then(|at| self.trace.bytes()[at as usize..].first_chunk())
            .and_then(PacketHead::decode)
            .map_or(u64::MAX, |head| head.first_seq)
    }

    /// The sequence number of a cursor's next record; opens packets as needed.
    fn peek(&mut self, number: usize) -> Option<u64> {
        loop {
            let cursor = &mut self.cursors[number];
            if !cursor.rest.is_empty() {
                let head = cursor.head.as_ref()?;
                return match cursor.kind {
                    StreamKind::Ref => cursor
                        .rest
                        .first_chunk()
                        .map(|raw| Ref::peek_seq(raw, head.first_seq)),
                    // Too short for a head: next_event() will say so.
                    _ => Some(peek_event_seq(cursor.rest).unwrap_or(cursor.last_seq)),
                };
            }
            self.close(number);
            self.open_next(number)?;
        }
    }

    /// Compares what a packet's head promised with what its content held.
    fn close(&mut self, number: usize) {
        let cursor = &mut self.cursors[number];
        let Some(head) = cursor.head.take() else {
            return;
        };
        let wrong = if cursor.kind == StreamKind::Event && cursor.left != 0 {
            "fewer events than the head says"
        } else if head.records != 0 && cursor.first_seq != head.first_seq {
            "the first record has another sequence number than the head says"
        } else if head.records != 0 && cursor.last_seq != head.last_seq {
            "the last record has another sequence number than the head says"
        } else {
            return;
        };
        self.damage.push(Damage {
            kind: DamageKind::Malformed,
            start: cursor.offset - u64::from(head.content_size) - HEAD_SIZE as u64,
            end: cursor.offset,
            stream: Some(head.stream),
            gap: None,
            detail: wrong.into(),
        });
    }

    /// Opens a stream's next believable packet; `None` after the last.
    fn open_next(&mut self, number: usize) -> Option<()> {
        loop {
            let cursor = &mut self.cursors[number];
            let index = &self.trace.index().streams[cursor.stream];
            let offset = index.packets.get(cursor.next_packet)?;
            cursor.next_packet += 1;
            let bytes = &self.trace.bytes()[offset as usize..];
            // The index holds only heads that decode and fit the file.
            let raw: &[u8; HEAD_SIZE] = bytes.first_chunk()?;
            let head = PacketHead::decode(raw)?;
            let content = bytes.get(HEAD_SIZE..HEAD_SIZE + head.content_size as usize)?;
            self.bytes_read += (HEAD_SIZE + content.len()) as u64;
            if self.bytes_read >= self.release_at {
                self.trace.release();
                self.release_at = self.bytes_read + RELEASE_EVERY;
            }
            let damage = if packet_crc(raw, content) != head.crc {
                Some((
                    DamageKind::Checksum,
                    "a packet's checksum does not hold".into(),
                ))
            } else if cursor.kind == StreamKind::Ref
                && content.len() as u64
                    != u64::from(head.records) * self.trace.header().ref_size() as u64
            {
                let detail = format!(
                    "{} bytes cannot be {} references",
                    content.len(),
                    head.records
                );
                Some((DamageKind::Malformed, detail))
            } else {
                None
            };
            if let Some((kind, detail)) = damage {
                self.damage.push(Damage {
                    kind,
                    start: offset,
                    end: offset + (HEAD_SIZE + content.len()) as u64,
                    stream: Some(index.id),
                    gap: Some(index.gap(self.trace.bytes(), offset)),
                    detail,
                });
                continue;
            }
            cursor.head = Some(head);
            cursor.rest = content;
            cursor.offset = offset + HEAD_SIZE as u64;
            cursor.left = head.records;
            cursor.first_seq = match cursor.kind {
                StreamKind::Ref => content
                    .first_chunk()
                    .map(|raw| Ref::peek_seq(raw, head.first_seq)),
                _ => peek_event_seq(content),
            }
            .unwrap_or(head.first_seq);
            self.opened.push(PacketSeen { offset, head });
            if content.is_empty() {
                continue;
            }
            return Some(());
        }
    }
}
