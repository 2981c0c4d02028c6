//! Records of all streams in the order of their sequence numbers.
//!
//! One cursor a stream, and a heap of the cursors by their next sequence
//! number. The cursor at the top is read until the next best one comes first,
//! so that a run of references costs the heap once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::damage::{Damage, DamageKind};
use super::index::head_at;
use super::source::Trace;
use super::wire::{
    Event, HEAD_SIZE, PacketHead, Ref, StreamKind, decode_event, packet_crc, peek_event_seq,
    peek_event_time,
};
use crate::error::Result;

/// A packet that was opened, and its head.
#[derive(Clone, Copy, Debug)]
pub struct PacketSeen {
    /// Where it begins.
    pub offset: u64,
    /// Its head, the checksum of which holds.
    pub head: PacketHead,
}

/// The reason why a batch ended.
#[derive(Debug)]
pub enum Step<'m> {
    /// The batch is full; more may follow.
    Full,
    /// An event comes after the batch's references.
    Event(Event<'m>),
    /// No record is left.
    End,
}

/// The same, without the event itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ready {
    /// The batch is full; more may follow.
    Full,
    /// An event comes after the batch's references: [`Merge::event`] gives it.
    Event,
    /// No record is left.
    End,
}

struct Cursor {
    stream: usize,
    next_packet: usize,
    kind: StreamKind,
    head: Option<PacketHead>,
    /// The packet's content, and what of it was read.
    content: Vec<u8>,
    read: usize,
    /// Where the content begins in the file.
    offset: u64,
    /// Events of the packet so far; of references the length tells.
    events: u32,
    first: (u64, u64),
    last: (u64, u64),
    /// The latest time of the packet's records so far.
    latest_ns: u64,
}

impl Cursor {
    /// What is left of the packet's content.
    fn rest(&self) -> &[u8] {
        self.content.get(self.read..).unwrap_or_default()
    }

    /// Where that begins in the file.
    fn at(&self) -> u64 {
        self.offset + self.read as u64
    }

    fn skip_rest(&mut self) {
        self.read = self.content.len();
    }
}

/// Reads a trace's records in order.
///
/// Memory: the content of one packet of each stream.
pub struct Merge<'a> {
    trace: &'a Trace,
    cursors: Vec<Cursor>,
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    /// The cursor that an event was taken from, and where in its content that begins.
    pending: Option<(usize, usize)>,
    opened: Vec<PacketSeen>,
    damage: Vec<Damage>,
    bytes_read: u64,
    /// When the memory behind what was read is given back next.
    release_at: u64,
}

/// Bytes to read before the memory behind the list of packets is given back.
const RELEASE_EVERY: u64 = 8 << 20;

impl<'a> Merge<'a> {
    /// Stands before the first record of every stream.
    pub fn new(trace: &'a Trace) -> Self {
        Self::of_kinds(trace, &[StreamKind::Ref, StreamKind::Event])
    }

    /// The same, for streams of some kinds only.
    pub fn of_kinds(trace: &'a Trace, kinds: &[StreamKind]) -> Self {
        let streams = trace.index().streams.iter().enumerate();
        let cursors: Vec<Cursor> = streams
            .filter(|(_, index)| kinds.contains(&index.id.kind))
            .map(|(stream, index)| Cursor {
                stream,
                next_packet: 0,
                kind: index.id.kind,
                head: None,
                content: Vec::new(),
                read: 0,
                offset: 0,
                events: 0,
                first: (0, 0),
                last: (0, 0),
                latest_ns: 0,
            })
            .collect();
        Merge {
            trace,
            // Numbers begin with 1: each is looked at before any record is given.
            heap: (0..cursors.len())
                .map(|number| Reverse((0, number)))
                .collect(),
            cursors,
            pending: None,
            opened: Vec::new(),
            damage: Vec::new(),
            bytes_read: 0,
            release_at: RELEASE_EVERY,
        }
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
    ///
    /// # Errors
    ///
    /// Reading the trace failed.
    pub fn fill(&mut self, batch: &mut Vec<Ref>, max: usize) -> Result<Step<'_>> {
        let ready = self.advance(batch, max)?;
        Ok(match (ready, self.event()) {
            (Ready::Event, Some(event)) => Step::Event(event),
            (Ready::End, _) => Step::End,
            _ => Step::Full,
        })
    }

    /// The same, and leaves the event with [`Merge::event`].
    ///
    /// # Errors
    ///
    /// Reading the trace failed.
    pub fn advance(&mut self, batch: &mut Vec<Ref>, max: usize) -> Result<Ready> {
        if let Some((number, _)) = self.pending.take() {
            self.requeue(number)?;
        }
        loop {
            let Some(Reverse((_, number))) = self.heap.pop() else {
                return Ok(Ready::End);
            };
            let cursor = &self.cursors[number];
            if cursor.rest().is_empty() {
                // Nothing of the stream was read yet.
                self.requeue(number)?;
                continue;
            }
            if cursor.kind == StreamKind::Event {
                let at = cursor.read;
                if self.take_event(number)? {
                    self.pending = Some((number, at));
                    return Ok(Ready::Event);
                }
                self.requeue(number)?;
                continue;
            }
            let limit = self.heap.peek().map_or(u64::MAX, |Reverse((seq, _))| *seq);
            let full = self.run(number, limit, batch, max)?;
            self.requeue(number)?;
            if full {
                return Ok(Ready::Full);
            }
        }
    }

    /// The event that stopped [`Merge::advance`], until that is called again.
    pub fn event(&self) -> Option<Event<'_>> {
        let (number, at) = self.pending?;
        let cursor = self.cursors.get(number)?;
        let offset = cursor.offset + at as u64;
        let bytes = cursor.content.get(at..)?;
        let (event, _) = decode_event(bytes, offset, self.trace.header()).ok()?;
        Some(event)
    }

    fn requeue(&mut self, number: usize) -> Result<()> {
        if let Some(seq) = self.peek(number)? {
            self.heap.push(Reverse((seq, number)));
        }
        Ok(())
    }

    /// Takes references of one cursor, the first of which is due, up to
    /// `limit`; true if the batch is full.
    fn run(&mut self, number: usize, limit: u64, batch: &mut Vec<Ref>, max: usize) -> Result<bool> {
        let cursor = &mut self.cursors[number];
        let Some(head) = cursor.head else {
            return Ok(false);
        };
        let header = self.trace.header();
        let (size, bounds) = (header.ref_size(), header.ref_bounds());
        let content = &cursor.content[..];
        let mut full = false;
        while let Some(raw) = content.get(cursor.read..cursor.read + size) {
            let record = Ref::decode(raw, cursor.at(), head.first_seq, head.first_time_ns);
            // Equal numbers are a fault of the trace, not of the order.
            if record.seq > limit {
                break;
            }
            if !bounds.hold(&record) {
                self.spoil(number, bounds.broken(&record))?;
                break;
            }
            cursor.read += size;
            cursor.last = (record.seq, record.time_ns);
            cursor.latest_ns = cursor.latest_ns.max(record.time_ns);
            batch.push(record);
            if batch.len() >= max {
                full = true;
                break;
            }
        }
        Ok(full)
    }

    /// Moves on to the record after an event; false if no event can be read.
    fn take_event(&mut self, number: usize) -> Result<bool> {
        let cursor = &mut self.cursors[number];
        match decode_event(cursor.rest(), cursor.at(), self.trace.header()) {
            Ok((event, _)) if cursor.head.is_some_and(|head| !head.spans(&event)) => {
                self.spoil(
                    number,
                    "an event outside its packet's CPU, numbers and times",
                )?;
                Ok(false)
            }
            Ok((event, size)) => {
                let (seq, time_ns) = (event.seq, event.time_ns);
                cursor.last = (seq, time_ns);
                cursor.latest_ns = cursor.latest_ns.max(time_ns);
                cursor.read += size;
                cursor.events = cursor.events.saturating_add(1);
                Ok(true)
            }
            Err(why) => {
                self.spoil(number, why.0)?;
                Ok(false)
            }
        }
    }

    /// Skips the rest of a packet, because its next record is faulty.
    fn spoil(&mut self, number: usize, why: &str) -> Result<()> {
        let first_seq = self.next_first_seq(number)?;
        let cursor = &mut self.cursors[number];
        self.damage.push(Damage {
            kind: DamageKind::Malformed,
            start: cursor.at(),
            end: cursor.offset + cursor.content.len() as u64,
            stream: Some(self.trace.index().streams[cursor.stream].id),
            gap: Some((cursor.last.0, first_seq)),
            detail: format!("{why}; the rest of the packet is skipped"),
        });
        cursor.skip_rest();
        cursor.head = None;
        Ok(())
    }

    fn next_first_seq(&self, number: usize) -> Result<u64> {
        let cursor = &self.cursors[number];
        let packets = &self.trace.index().streams[cursor.stream].packets;
        let head = match packets.get(cursor.next_packet) {
            Some(at) => head_at(self.trace.bytes(), at).map_err(|e| self.trace.unreadable(e))?,
            None => None,
        };
        Ok(head.map_or(u64::MAX, |head| head.first_seq))
    }

    /// The sequence number of a cursor's next record; opens packets as needed.
    fn peek(&mut self, number: usize) -> Result<Option<u64>> {
        loop {
            let cursor = &self.cursors[number];
            let rest = cursor.rest();
            if !rest.is_empty() {
                let Some(head) = &cursor.head else {
                    return Ok(None);
                };
                return Ok(match cursor.kind {
                    StreamKind::Ref => rest
                        .first_chunk()
                        .map(|raw| Ref::peek_seq(raw, head.first_seq)),
                    // Too short for a head: take_event() will say so.
                    _ => Some(peek_event_seq(rest).unwrap_or(cursor.last.0)),
                });
            }
            self.close(number);
            if !self.open_next(number)? {
                self.cursors[number].content = Vec::new();
                return Ok(None);
            }
        }
    }

    /// Compares a packet's head with its content.
    fn close(&mut self, number: usize) {
        let cursor = &mut self.cursors[number];
        let Some(head) = cursor.head.take() else {
            return;
        };
        let some = head.records != 0;
        let events = cursor.kind == StreamKind::Event;
        let mistimed = || head.mistimed(self.trace.header(), cursor.first.1, cursor.latest_ns);
        let wrong = if events && cursor.events < head.records {
            "fewer events than the packet's head claims"
        } else if events && cursor.events > head.records {
            "more events than the packet's head claims"
        } else if some && cursor.first.0 != head.first_seq {
            "the first record's sequence number differs from the one in the packet's head"
        } else if some && cursor.last.0 != head.last_seq {
            "the last record's sequence number differs from the one in the packet's head"
        } else if let Some(wrong) = some.then(mistimed).flatten() {
            wrong
        } else {
            return;
        };
        self.damage.push(Damage {
            kind: DamageKind::Malformed,
            start: cursor.offset - HEAD_SIZE as u64,
            end: cursor.offset + cursor.content.len() as u64,
            stream: Some(head.stream),
            gap: None,
            detail: wrong.into(),
        });
    }

    /// Opens a stream's next believable packet; false after the last.
    fn open_next(&mut self, number: usize) -> Result<bool> {
        let header = self.trace.header();
        let bytes = self.trace.bytes();
        let failed = |source| self.trace.unreadable(source);
        loop {
            let cursor = &mut self.cursors[number];
            let index = &self.trace.index().streams[cursor.stream];
            let Some(offset) = index.packets.get(cursor.next_packet) else {
                return Ok(false);
            };
            cursor.next_packet += 1;
            let mut raw = [0; HEAD_SIZE];
            bytes.read(offset, &mut raw).map_err(failed)?;
            // It was good when it was found, but the file may have changed since.
            let head = PacketHead::decode(&raw)
                .filter(|h| h.nonsense(header).is_none() && h.stream == index.id)
                .filter(|h| u64::from(h.content_size) <= header.most_content());
            let size = head.map_or(0, |head| head.content_size as usize);
            cursor.content.resize(size, 0);
            cursor.offset = offset + HEAD_SIZE as u64;
            bytes
                .read(cursor.offset, &mut cursor.content)
                .map_err(failed)?;
            self.bytes_read += (HEAD_SIZE + size) as u64;
            if self.bytes_read >= self.release_at {
                self.trace.index().release();
                self.release_at = self.bytes_read + RELEASE_EVERY;
            }
            let damage = match head {
                Some(head) if packet_crc(&raw, &cursor.content) == head.crc => None,
                Some(_) => Some("a packet's checksum is wrong"),
                None => Some("a packet has changed since the trace was opened"),
            };
            if let Some(detail) = damage {
                cursor.skip_rest();
                self.damage.push(Damage {
                    kind: DamageKind::Checksum,
                    start: offset,
                    end: cursor.at(),
                    stream: Some(index.id),
                    gap: Some(index.gap(bytes, offset).map_err(failed)?),
                    detail: detail.into(),
                });
                continue;
            }
            let Some(head) = head else { continue };
            cursor.head = Some(head);
            cursor.read = 0;
            cursor.events = 0;
            cursor.latest_ns = 0;
            cursor.first = match cursor.kind {
                StreamKind::Ref => cursor.content.get(..header.ref_size()).map(|raw| {
                    let first = Ref::decode(raw, offset, head.first_seq, head.first_time_ns);
                    (first.seq, first.time_ns)
                }),
                _ => peek_event_seq(&cursor.content).zip(peek_event_time(&cursor.content)),
            }
            .unwrap_or((head.first_seq, head.first_time_ns));
            self.opened.push(PacketSeen { offset, head });
            if !cursor.content.is_empty() {
                return Ok(true);
            }
        }
    }
}
