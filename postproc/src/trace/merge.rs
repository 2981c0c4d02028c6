//! Records of all streams in the order of their sequence numbers.
//!
//! One cursor a stream, and a heap of the cursors by their next sequence
//! number. The cursor at the top is read until the next best one comes first,
//! so that a run of references costs the heap once.
//!
//! A trace of many sets has very many streams, and most of them rest at any moment. A packet of
//! such a stream is opened only when its first number is due. Until then the heap has that number,
//! as the packets' heads claim it. So memory has only packets whose numbers overlap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use super::codec::Unpacker;
use super::damage::{Damage, DamageKind};
use super::index::head_at;
use super::known::Known;
use super::part::CONTEXT;
use super::piece::Piece;
use super::source::Trace;
use super::wire::{
    Event, HEAD_SIZE, PacketHead, Ref, StreamId, StreamKind, decode_event, packet_crc,
    peek_event_seq, peek_event_time,
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
    next_packet: usize,
    kind: StreamKind,
    /// Its packets are opened when they are due, and not before.
    is_lazy: bool,
    head: Option<PacketHead>,
    /// The packet's content, and what of it was read.
    content: Vec<u8>,
    read: usize,
    /// Where the content begins and ends in the file.
    offset: u64,
    end: u64,
    /// The content lies there in another form.
    is_packed: bool,
    /// Events of the packet so far; of references the length tells.
    events: u32,
    first: (u64, u64),
    last: (u64, u64),
    /// The latest time of the packet's records so far.
    latest_ns: u64,
}

impl Cursor {
    /// Before the first packet of a stream.
    fn new(id: StreamId) -> Self {
        Cursor {
            next_packet: 0,
            kind: id.kind,
            is_lazy: is_lazy(id),
            head: None,
            content: Vec::new(),
            read: 0,
            offset: 0,
            end: 0,
            is_packed: false,
            events: 0,
            first: (0, 0),
            last: (0, 0),
            latest_ns: 0,
        }
    }

    /// What is left of the packet's content.
    fn rest(&self) -> &[u8] {
        self.content.get(self.read..).unwrap_or_default()
    }

    /// Where that begins in the file; of packed content, where all of it begins.
    fn at(&self) -> u64 {
        self.place(self.read)
    }

    /// Where a byte of the content lies in the file, likewise.
    fn place(&self, byte: usize) -> u64 {
        match self.is_packed {
            true => self.offset,
            false => self.offset + byte as u64,
        }
    }

    fn skip_rest(&mut self) {
        self.read = self.content.len();
    }
}

/// Whether a stream is one of very many.
///
/// The streams of set 0 and of events are few. Their packets are opened as soon as those before
/// them are read, so a wrong number in a damaged head delays no record.
fn is_lazy(id: StreamId) -> bool {
    id.set != 0
}

/// So many packets in a row whose heads claim later numbers than are read end a stream. Fewer may
/// have damaged heads.
const LATER: u32 = 16;

/// Whether a packet may have records with numbers in a range, as its head claims.
pub(crate) fn overlaps(head: &PacketHead, numbers: &Range<u64>) -> bool {
    // The numbers in a damaged head may be in no order.
    let first = head.first_seq.min(head.last_seq);
    let last = head.first_seq.max(head.last_seq);
    first < numbers.end && last >= numbers.start
}

/// Reads a trace's records in order.
///
/// Memory: the content of one packet of each stream of set 0 and of events, and of each other
/// stream that has a packet with numbers before and after the present one.
pub struct Merge<'a> {
    trace: &'a Trace,
    /// The sequence numbers of records that are given. The packets of a piece may have others.
    numbers: Range<u64>,
    /// The same of references, if these are only some of a trace.
    only: Option<Range<u64>>,
    /// Of a piece whose description is a checkpoint: which events are read, and what is known of them
    /// when the first one is.
    state_seq: Option<u64>,
    known: Option<Box<Known>>,
    /// By stream. There is none of a stream that was not looked at yet, or is over.
    cursors: Vec<Option<Box<Cursor>>>,
    /// Memory for the content of the next packet, and for that as it is stored.
    spare: Vec<u8>,
    stored: Vec<u8>,
    unpacker: Unpacker,
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
    /// A piece's description comes with its events. Of a piece, only its own records are given.
    pub fn of_kinds(trace: &'a Trace, kinds: &[StreamKind]) -> Self {
        let streams = &trace.index().streams;
        let is_wanted = |kind: StreamKind| match kind {
            StreamKind::State => kinds.contains(&StreamKind::Event),
            kind => kinds.contains(&kind),
        };
        let wanted = streams.iter().enumerate();
        let piece = trace.piece().filter(|piece| piece.is_checkpoint);
        Merge {
            trace,
            numbers: trace.piece().map_or(0..u64::MAX, Piece::numbers),
            only: None,
            state_seq: piece.map(|piece| piece.state_seq),
            known: None,
            cursors: streams.iter().map(|_| None).collect(),
            spare: Vec::new(),
            stored: Vec::new(),
            unpacker: Unpacker::default(),
            // Numbers begin with 1: those that are no later are looked at before any record is given.
            heap: wanted
                .filter(|(_, index)| is_wanted(index.id.kind))
                .map(|(stream, index)| match is_lazy(index.id) {
                    true => Reverse((index.first_seq, stream)),
                    false => Reverse((0, stream)),
                })
                .collect(),
            pending: None,
            opened: Vec::new(),
            damage: Vec::new(),
            bytes_read: 0,
            release_at: RELEASE_EVERY,
        }
    }

    /// The same, up to the end of a range of sequence numbers, and without references before it. Only
    /// those packets of references are opened whose heads claim numbers in the range.
    ///
    /// # Errors
    ///
    /// Reading the trace failed.
    pub(crate) fn within(
        trace: &'a Trace,
        kinds: &[StreamKind],
        range: &Range<u64>,
    ) -> Result<Self> {
        let mut merge = Self::of_kinds(trace, kinds);
        let numbers = &mut merge.numbers;
        numbers.end = numbers.end.min(range.end);
        merge.only = Some(numbers.start.max(range.start)..numbers.end);
        let streams = std::mem::take(&mut merge.heap).into_iter();
        for Reverse((seq, number)) in streams {
            let next = match is_lazy(trace.index().streams[number].id) {
                true => merge.due(number)?,
                false => Some(seq),
            };
            match next {
                Some(seq) => merge.heap.push(Reverse((seq, number))),
                None => merge.cursors[number] = None,
            }
        }
        Ok(merge)
    }

    /// Packets opened since the last call, in order of their opening.
    pub fn take_opened(&mut self) -> std::vec::Drain<'_, PacketSeen> {
        self.opened.drain(..)
    }

    /// Damage found since the last call, in packets whose heads were good.
    pub fn take_damage(&mut self) -> std::vec::Drain<'_, Damage> {
        self.damage.drain(..)
    }

    /// Bytes of packets opened or passed over so far, for a progress bar.
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
        if let (Some(state_seq), None) = (self.state_seq, &self.known) {
            self.known = Some(Box::new(Self::look(self.trace, state_seq)?));
        }
        loop {
            let Some(Reverse((seq, number))) = self.heap.pop() else {
                return Ok(Ready::End);
            };
            if seq >= self.numbers.end {
                // What is left is of later pieces.
                self.heap.clear();
                return Ok(Ready::End);
            }
            let first = self.numbers.start;
            let cursor = self.cursor(number);
            if cursor.rest().is_empty() {
                // Nothing of the stream, or of its next packet, was read yet.
                self.queue(number)?;
                continue;
            }
            if cursor.kind.is_of_events() {
                let at = cursor.read;
                let is_given =
                    cursor.kind == StreamKind::State || seq >= self.state_seq.unwrap_or(first);
                if self.take_event(number)? && is_given && self.follow(number, at) {
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
        let event = self.event_at(number, at)?;
        match &self.known {
            Some(known) => known.view(event),
            None => Some(event),
        }
    }

    /// The event that a cursor was taken from, as it is in the trace.
    fn event_at(&self, number: usize, at: usize) -> Option<Event<'_>> {
        let cursor = self.cursors.get(number)?.as_ref()?;
        let offset = cursor.place(at);
        let bytes = cursor.content.get(at..)?;
        let (event, _) = decode_event(bytes, offset, self.trace.header()).ok()?;
        Some(event)
    }

    /// What is to be known of a piece before it is read.
    fn look(trace: &'a Trace, state_seq: u64) -> Result<Known> {
        let mut all = Self::of_kinds(trace, &[StreamKind::Event]);
        let first = all.numbers.start;
        all.state_seq = None;
        all.numbers = state_seq..first;
        let mut known = Known::new(state_seq, first);
        while all.advance(&mut Vec::new(), 1)? != Ready::End {
            if let Some(event) = all.event() {
                known.look(&event);
            }
        }
        known.looked();
        Ok(known)
    }

    /// Follows an event that was taken; false if a reader of a piece is not to see it.
    fn follow(&mut self, number: usize, at: usize) -> bool {
        let Some(mut known) = self.known.take() else {
            return true;
        };
        let is_seen = self.event_at(number, at).is_some_and(|event| {
            known.follow(&event);
            known.view(event).is_some()
        });
        self.known = Some(known);
        is_seen
    }

    fn cursor(&mut self, number: usize) -> &mut Cursor {
        let id = self.trace.index().streams[number].id;
        self.cursors[number].get_or_insert_with(|| Box::new(Cursor::new(id)))
    }

    /// Puts a cursor back that was read.
    fn requeue(&mut self, number: usize) -> Result<()> {
        let cursor = self.cursor(number);
        if !cursor.is_lazy || !cursor.rest().is_empty() {
            return self.queue(number);
        }
        self.close(number);
        self.spare = std::mem::take(&mut self.cursor(number).content);
        match self.due(number)? {
            Some(seq) => self.heap.push(Reverse((seq, number))),
            None => self.cursors[number] = None,
        }
        Ok(())
    }

    /// Puts a cursor back, and opens packets until it has a record.
    fn queue(&mut self, number: usize) -> Result<()> {
        match self.peek(number)? {
            Some(seq) => self.heap.push(Reverse((seq, number))),
            None => self.cursors[number] = None,
        }
        Ok(())
    }

    /// No record of a stream's next packet has a number below this one; `None` after the last.
    ///
    /// The packets ascend. So the head of the one after tells, too, if the first head is damaged.
    fn due(&mut self, number: usize) -> Result<Option<u64>> {
        self.pass_over(number)?;
        let next = self.cursor(number).next_packet;
        let packets = &self.trace.index().streams[number].packets;
        let mut due = None;
        for at in (next..next.saturating_add(2)).map_while(|i| packets.get(i)) {
            let head = head_at(self.trace.bytes(), at).map_err(|e| self.trace.unreadable(e))?;
            // What is no packet any more is to be reported at once.
            let seq = head.map_or(0, |head| head.first_seq);
            due = Some(due.map_or(seq, |due: u64| due.min(seq)));
        }
        Ok(due)
    }

    /// Passes over packets of a stream that have no reference that is to be given.
    ///
    /// Each head is looked at, because one that is damaged says nothing about the others.
    fn pass_over(&mut self, number: usize) -> Result<()> {
        let Some(only) = self.only.clone() else {
            return Ok(());
        };
        let stream = &self.trace.index().streams[number];
        if !stream.id.kind.is_of_refs() {
            return Ok(());
        }
        let mut next = self.cursor(number).next_packet;
        let mut later = 0;
        while let Some(at) = stream.packets.get(next) {
            let head = head_at(self.trace.bytes(), at).map_err(|e| self.trace.unreadable(e))?;
            // What is no packet any more is to be reported.
            let Some(head) = head.filter(|head| !overlaps(head, &only)) else {
                break;
            };
            later = match head.first_seq >= only.end {
                true => later + 1,
                false => 0,
            };
            next = match later {
                LATER => stream.packets.len(),
                _ => next + 1,
            };
            self.bytes_read += head.size();
        }
        self.cursor(number).next_packet = next;
        Ok(())
    }

    /// Takes references of one cursor, the first of which is due, up to
    /// `limit`; true if the batch is full.
    fn run(&mut self, number: usize, limit: u64, batch: &mut Vec<Ref>, max: usize) -> Result<bool> {
        let header = self.trace.header();
        let Some(cursor) = &mut self.cursors[number] else {
            return Ok(false);
        };
        let Some(head) = cursor.head else {
            return Ok(false);
        };
        let (size, bounds) = (header.ref_size(), header.ref_bounds());
        let limit = limit.min(self.numbers.end.saturating_sub(1));
        let first = self.only.as_ref().map_or(self.numbers.start, |o| o.start);
        let extras = header.extras();
        let content = &cursor.content[..];
        let mark = match cursor.kind {
            StreamKind::Context => CONTEXT,
            _ => 0,
        };
        let mut full = false;
        while let Some(raw) = content.get(cursor.read..cursor.read + size) {
            let mut record = Ref::decode(raw, cursor.at(), &head, extras);
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
            if record.seq < first {
                continue;
            }
            record.page |= mark;
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
        let header = self.trace.header();
        let cursor = self.cursor(number);
        match decode_event(cursor.rest(), cursor.at(), header) {
            Ok((event, _)) if cursor.head.is_some_and(|head| !head.spans(&event)) => {
                self.spoil(
                    number,
                    "an event outside its packet's CPU, numbers and times",
                )?;
                Ok(false)
            }
            Ok((event, _)) if event.is_state() != (cursor.kind == StreamKind::State) => {
                self.spoil(
                    number,
                    "an event of a piece's description among others, or another one there",
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
        let stream = self.trace.index().streams[number].id;
        let cursor = self.cursor(number);
        let damage = Damage {
            kind: DamageKind::Malformed,
            start: cursor.at(),
            end: cursor.end,
            stream: Some(stream),
            gap: Some((cursor.last.0, first_seq)),
            detail: format!("{why}; the rest of the packet is skipped"),
        };
        cursor.skip_rest();
        cursor.head = None;
        self.damage.push(damage);
        Ok(())
    }

    fn next_first_seq(&mut self, number: usize) -> Result<u64> {
        let next = self.cursor(number).next_packet;
        let packets = &self.trace.index().streams[number].packets;
        let head = match packets.get(next) {
            Some(at) => head_at(self.trace.bytes(), at).map_err(|e| self.trace.unreadable(e))?,
            None => None,
        };
        Ok(head.map_or(u64::MAX, |head| head.first_seq))
    }

    /// The sequence number of a cursor's next record; opens packets as needed.
    fn peek(&mut self, number: usize) -> Result<Option<u64>> {
        loop {
            let cursor = self.cursor(number);
            let rest = cursor.rest();
            if !rest.is_empty() {
                let Some(head) = &cursor.head else {
                    return Ok(None);
                };
                return Ok(match cursor.kind {
                    kind if kind.is_of_refs() => rest
                        .first_chunk()
                        .map(|raw| Ref::peek_seq(raw, head.first_seq)),
                    // Too short for a head: take_event() will say so.
                    _ => Some(peek_event_seq(rest).unwrap_or(cursor.last.0)),
                });
            }
            self.close(number);
            if !self.open_next(number)? {
                return Ok(None);
            }
        }
    }

    /// Compares a packet's head with its content.
    fn close(&mut self, number: usize) {
        let header = self.trace.header();
        let cursor = self.cursor(number);
        let Some(head) = cursor.head.take() else {
            return;
        };
        let some = head.records != 0;
        let events = cursor.kind.is_of_events();
        let mistimed = || head.mistimed(header, cursor.first.1, cursor.latest_ns);
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
        let damage = Damage {
            kind: DamageKind::Malformed,
            start: cursor.offset - HEAD_SIZE as u64,
            end: cursor.end,
            stream: Some(head.stream),
            gap: None,
            detail: wrong.into(),
        };
        self.damage.push(damage);
    }

    /// Opens a stream's next packet, which has no content if it is not believable; false after the last.
    fn open_next(&mut self, number: usize) -> Result<bool> {
        self.pass_over(number)?;
        let header = self.trace.header();
        let bytes = self.trace.bytes();
        let failed = |source| self.trace.unreadable(source);
        let index = &self.trace.index().streams[number];
        let spare = std::mem::take(&mut self.spare);
        let cursor = self.cursor(number);
        if cursor.content.capacity() == 0 {
            cursor.content = spare;
        }
        let Some(cursor) = &mut self.cursors[number] else {
            return Ok(false);
        };
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
        cursor.is_packed = head.is_some_and(|head| head.is_packed());
        cursor.offset = offset + HEAD_SIZE as u64;
        cursor.end = cursor.offset + size as u64;
        let stored = match cursor.is_packed {
            true => &mut self.stored,
            false => &mut cursor.content,
        };
        stored.resize(size, 0);
        bytes.read(cursor.offset, stored).map_err(failed)?;
        self.bytes_read += (HEAD_SIZE + size) as u64;
        if self.bytes_read >= self.release_at {
            self.trace.index().release();
            self.release_at = self.bytes_read + RELEASE_EVERY;
        }
        let damage = match head {
            Some(head) if packet_crc(&raw, stored) == head.crc => match cursor.is_packed {
                true => self
                    .unpacker
                    .unpack(header, &head, &self.stored, &mut cursor.content)
                    .err()
                    .map(|why| (DamageKind::Malformed, why)),
                false => None,
            },
            Some(_) => Some((DamageKind::Checksum, "a packet's checksum is wrong")),
            None => Some((
                DamageKind::Checksum,
                "a packet has changed since the trace was opened",
            )),
        };
        if let Some((kind, detail)) = damage {
            cursor.content.clear();
            cursor.skip_rest();
            self.damage.push(Damage {
                kind,
                start: offset,
                end: cursor.end,
                stream: Some(index.id),
                gap: Some(index.gap(bytes, offset).map_err(failed)?),
                detail: detail.into(),
            });
            return Ok(true);
        }
        let Some(head) = head else { return Ok(true) };
        cursor.head = Some(head);
        cursor.read = 0;
        cursor.events = 0;
        cursor.latest_ns = 0;
        cursor.first = match cursor.kind {
            kind if kind.is_of_refs() => cursor.content.get(..header.ref_size()).map(|raw| {
                let first = Ref::decode(raw, offset, &head, header.extras());
                (first.seq, first.time_ns)
            }),
            _ => peek_event_seq(&cursor.content).zip(peek_event_time(&cursor.content)),
        }
        .unwrap_or((head.first_seq, head.first_time_ns));
        self.opened.push(PacketSeen { offset, head });
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use rust_mm_trace::uapi;

    use super::*;
    use crate::testing::{TraceBuilder, mend_checksums, packets_of};
    use crate::trace::wire::HEADER_SIZE;
    use crate::units::Prot;

    /// Sets of address spaces of which some rest for a long time, on two CPUs. `sets` end before
    /// the trace does.
    fn resting(sets: u32, ended: u32) -> TraceBuilder {
        let mut b = TraceBuilder::new(2, 4);
        b.several_sets();
        b.header_mut().buffer_size = 320;
        for mm in 1..=sets {
            b.set(0, 10 * mm, mm, mm);
            b.task(0, 10 * mm, 10 * mm, mm, "program");
            b.map_anon(0, 10 * mm, mm, 0x10_0000, 0x50_0000, Prot(3));
            for i in 0..30 {
                b.touch((i / 3) & 1, 10 * mm, mm, 0x10_0000 + (u64::from(i) << 12));
            }
            if mm <= ended {
                b.mm_end(0, 10 * mm, mm);
            }
        }
        for i in 0..200 {
            let mm = sets - i as u32 % 2;
            b.touch(i as u32 & 1, 10 * mm, mm, 0x20_0000 + (i << 12));
        }
        b
    }

    /// The numbers of all records, in the order in which they are given, and the most packets that
    /// were open at a time.
    fn read(trace: &Trace) -> (Vec<(u64, u32)>, usize) {
        let mut merge = Merge::new(trace);
        let (mut numbers, mut open) = (Vec::new(), 0);
        let mut batch = Vec::new();
        loop {
            batch.clear();
            let ready = merge.advance(&mut batch, 16).unwrap();
            numbers.extend(batch.iter().map(|r| (r.seq, r.set)));
            numbers.extend(merge.event().map(|event| (event.seq, 0)));
            let holds = |c: &&Option<Box<Cursor>>| {
                c.as_ref()
                    .is_some_and(|c| c.is_lazy && c.content.capacity() > 0)
            };
            open = open.max(merge.cursors.iter().filter(holds).count());
            if ready == Ready::End {
                assert_eq!(merge.take_damage().count(), 0);
                return (numbers, open);
            }
        }
    }

    #[test]
    fn packets_of_resting_sets_come_in_order_of_their_numbers() {
        let bytes = resting(100, 0).finish();
        let trace = Trace::from_bytes("memory", bytes).unwrap();
        let streams = &trace.index().streams;
        let last = streams.last().unwrap();
        assert!(streams.len() > 200, "{}", streams.len());
        // The order of the file is another one.
        let all = || streams.iter().flat_map(|s| s.packets.iter());
        let mut packets: Vec<u64> = all().collect();
        packets.sort_unstable();
        let heads = packets
            .iter()
            .map(|&at| head_at(trace.bytes(), at).unwrap().unwrap());
        assert!(!heads.map(|h| h.first_seq).is_sorted());
        assert_eq!(last.id.to_string(), "event/0");
        let (numbers, open) = read(&trace);
        assert_eq!(
            numbers.len() as u64,
            trace.index().end.as_ref().unwrap().status.last_seq
        );
        assert!(numbers.is_sorted_by(|a, b| a.0 < b.0));
        assert!(numbers.iter().any(|n| n.1 == 77));
        // The last records of each set are in packets that begin when it was busy last.
        assert!(open <= 12, "{open} packets are open");
    }

    #[test]
    fn streams_have_names() {
        let trace = Trace::from_bytes("memory", resting(3, 0).finish()).unwrap();
        let streams = trace.index().streams.iter().map(|s| s.id.to_string());
        let names: Vec<String> = streams.collect();
        let expected = [
            "ref/0/set 1",
            "ref/0/set 2",
            "ref/0/set 3",
            "ref/1/set 1",
            "ref/1/set 2",
            "ref/1/set 3",
            "event/0",
        ];
        assert_eq!(names, expected);
    }

    /// A head that claims a later number than the packet has, in a damaged packet.
    #[test]
    fn a_damaged_head_delays_no_other_packet() {
        let good = resting(4, 0).finish();
        let first_seq = std::mem::offset_of!(uapi::vmtrace_packet, first_seq);
        let set = std::mem::offset_of!(uapi::vmtrace_packet, __bindgen_anon_1);
        let (mut spoiled, mut all) = (0, packets_of(&good));
        all.retain(|&(start, _)| good[start + set] == 2);
        assert!(all.len() > 4);
        for (start, _) in all {
            let mut bytes = good.clone();
            bytes[start + first_seq..][..8].copy_from_slice(&(1u64 << 40).to_le_bytes());
            let trace = Trace::from_bytes("memory", bytes).unwrap();
            let mut merge = Merge::new(&trace);
            let (mut batch, mut last) = (Vec::new(), 0);
            while merge.advance(&mut batch, 1).unwrap() != Ready::End {
                let now = batch.drain(..).map(|r| r.seq);
                let now = now
                    .chain(merge.event().map(|e| e.seq))
                    .max()
                    .unwrap_or(last);
                assert!(now >= last, "{now} after {last}");
                last = now;
            }
            spoiled += merge.take_damage().count();
        }
        assert!(spoiled > 4);
    }

    #[test]
    fn a_packet_of_a_set_that_cannot_be_is_found() {
        let set = std::mem::offset_of!(uapi::vmtrace_packet, __bindgen_anon_1);
        let sets = std::mem::offset_of!(uapi::vmtrace_header, sets);
        let damage = |bytes: Vec<u8>| {
            let trace = Trace::from_bytes("memory", bytes).unwrap();
            trace.index().damage.clone()
        };
        let mut b = TraceBuilder::sample();
        b.several_sets();
        let good = b.finish();
        assert!(damage(good.clone()).is_empty());
        for (start, _) in packets_of(&good) {
            if u32::from(good[start + 16 + 8]) != uapi::VMTRACE_STREAM_REF {
                continue;
            }
            let mut bytes = good.clone();
            bytes[start + set] = 3;
            mend_checksums(&mut bytes);
            assert!(damage(bytes.clone()).is_empty());
            // There is one set for all.
            bytes[sets] = 0;
            let crc = std::mem::offset_of!(uapi::vmtrace_header, crc);
            let sum = crc32c::crc32c(&bytes[..crc]);
            bytes[crc..HEADER_SIZE].copy_from_slice(&sum.to_le_bytes());
            let found = damage(bytes);
            assert_eq!(found.len(), 1);
            assert!(found[0].detail.contains("a set that does not exist"));
        }
    }
}
