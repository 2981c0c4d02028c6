// SPDX-License-Identifier: GPL-2.0

//! One stream's ring of sub-buffers, as pure logic.
//!
//! A sub-buffer is owned by one party at a time and moves between them: free →
//! being filled → full → taken by the drain thread → free. So no party reads
//! what another one writes, and no reference outlives a lock.
//!
//! A sub-buffer has one packet or several, one behind the other. A packet ends where the next record is
//! of another set, or is too far away from the packet's first one. The head of a packet is left free,
//! and whoever takes the sub-buffer writes it. Until then, the heads of all packets but the last one
//! have what is to be written there: see [`Packet::each`].
//!
//! The caller holds the stream's lock around every call, brings all memory
//! when it makes the ring, and writes its records into the bytes it is given.

use crate::{record::put, Store};

/// Room is scarce while at most one in so many of the ring's sub-buffers is free.
pub const SCARCE: usize = 4;

/// Bytes that a ring of references keeps for those who must not wait: some thousand records of one set. Whoever
/// needs more waits all the same, for it may log events, too, which have less room.
pub const RESERVE: usize = 40 << 10;

/// Bytes of a packet's head (`struct vmtrace_packet`), left free in front.
pub const HEAD: usize = 112;

/// What the head of a packet will say of its content.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Sequence number of the first record; base of the records' deltas.
    pub first_seq: u64,
    /// Sequence number of the last record.
    pub last_seq: u64,
    /// Base of the records' deltas, ns: no record is earlier.
    pub first_time: u64,
    /// The latest time of a record, ns.
    pub last_time: u64,
    /// Records.
    pub records: u32,
    /// Bytes used, head included.
    pub used: usize,
    /// The set that the records are of.
    pub set: u32,
    /// What was before it in its stream.
    pub before: Before,
}

/// What a stream has had before a packet. While a packet takes records, none is lost.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Before {
    /// Packets.
    pub packets: u64,
    /// Records lost for want of room.
    pub lost_full: u64,
    /// Of events, those lost where the kernel could not wait.
    pub lost_atomic: u64,
}

/// Whose records a ring takes: a stream.
pub trait Stream {
    /// The set.
    fn set(&self) -> u32;
    /// A packet begins: what was before it. `own` is what the whole ring has had.
    fn begin(&self, own: Before) -> Before;
}

/// The only stream of a ring.
pub struct Only;

impl Stream for Only {
    #[inline(always)]
    fn set(&self) -> u32 {
        0
    }

    fn begin(&self, own: Before) -> Before {
        own
    }
}

impl Meta {
    /// Keeps this where the head of its packet will be.
    fn put(&self, out: &mut [u8]) {
        let words = [
            self.first_seq,
            self.last_seq,
            self.first_time,
            self.last_time,
            u64::from(self.records),
            self.used as u64,
            u64::from(self.set),
            self.before.packets,
            self.before.lost_full,
            self.before.lost_atomic,
        ];
        for (word, out) in words.iter().zip(out.chunks_exact_mut(8)) {
            put(out, 0, &word.to_le_bytes());
        }
    }

    /// What [`Meta::put`] has kept. `None` if there is no room for a head.
    fn get(from: &[u8]) -> Option<Meta> {
        let word = |i: usize| {
            let at = i.checked_mul(8)?;
            let bytes = from.get(at..)?.first_chunk::<8>()?;
            Some(u64::from_le_bytes(*bytes))
        };
        Some(Meta {
            first_seq: word(0)?,
            last_seq: word(1)?,
            first_time: word(2)?,
            last_time: word(3)?,
            records: word(4)? as u32,
            used: word(5)? as usize,
            set: word(6)? as u32,
            before: Before {
                packets: word(7)?,
                lost_full: word(8)?,
                lost_atomic: word(9)?,
            },
        })
    }
}

/// What the deltas of a packet's records are counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// Sequence number of the first record.
    pub seq: u64,
    /// [`Meta::first_time`].
    pub time: u64,
}

/// A sub-buffer and the packets in it.
pub struct Packet {
    /// The memory, all of one sub-buffer.
    pub buf: Store<u8>,
    /// The last packet, without its bytes.
    meta: Meta,
    /// Where it begins and ends.
    start: usize,
    end: usize,
    /// Of the packets before it: records, and the greatest number of one.
    records: u64,
    last_seq: u64,
    /// Number of the first record of all.
    first_seq: u64,
}

impl Packet {
    /// One packet in `buf`.
    pub fn new(buf: Store<u8>, meta: Meta) -> Packet {
        Packet {
            buf,
            meta,
            start: 0,
            end: meta.used,
            records: 0,
            last_seq: 0,
            first_seq: meta.first_seq,
        }
    }

    /// There are no records in its content.
    pub fn without_records(&mut self) {
        self.meta.records = 0;
    }

    /// The bytes that are used.
    pub fn bytes(&self) -> &[u8] {
        self.buf.get(..self.end).unwrap_or_default()
    }

    fn unused(&self) -> usize {
        self.buf.len().saturating_sub(self.end)
    }

    /// What is to be said of the last packet.
    fn last(&self) -> Meta {
        Meta {
            used: self.end.saturating_sub(self.start),
            ..self.meta
        }
    }

    /// Records of all packets.
    pub fn records(&self) -> u64 {
        self.records.wrapping_add(u64::from(self.meta.records))
    }

    /// The number that it begins with: no record has a smaller one.
    pub fn first_seq(&self) -> u64 {
        self.first_seq
    }

    /// The greatest number of a record.
    pub fn last_seq(&self) -> u64 {
        self.last_seq.max(self.meta.last_seq)
    }

    /// Does `f` with each packet in turn: its bytes, and what is to be said of it. To be called once,
    /// if `f` writes heads.
    pub fn each(&mut self, mut f: impl FnMut(&mut [u8], &Meta)) {
        let mut at = 0usize;
        while at < self.start {
            let Some(meta) = self.buf.get(at..).and_then(Meta::get) else {
                return;
            };
            let end = at.saturating_add(meta.used.max(HEAD));
            if let Some(bytes) = self.buf.get_mut(at..end) {
                f(bytes, &meta);
            }
            at = end;
        }
        let last = self.last();
        if let Some(bytes) = self.buf.get_mut(self.start..self.end) {
            f(bytes, &last);
        }
    }

    /// Begins a packet behind the last one, if a record of `len` bytes has room in it.
    fn append(&mut self, len: usize) -> bool {
        if self.unused() < HEAD.saturating_add(len) {
            return false;
        }
        let last = self.last();
        if let Some(head) = self.buf.get_mut(self.start..self.end) {
            last.put(head);
        }
        self.records = self.records();
        self.last_seq = self.last_seq();
        self.start = self.end;
        true
    }
}

/// Maps each CPU to a ring: to its own if it `has` one. The other CPUs are spread evenly over the
/// rings that there are. False if there is none.
pub fn share_out(of: &mut [u16], has: impl Fn(usize) -> bool) -> bool {
    let cpus = of.len();
    let Some(mut next) = (0..cpus).find(|cpu| has(*cpu)) else {
        return false;
    };
    for (cpu, of) in of.iter_mut().enumerate() {
        if has(cpu) {
            *of = cpu as u16;
            continue;
        }
        *of = next as u16;
        let mut later = (next.wrapping_add(1)..cpus).chain(0..cpus);
        next = later.find(|cpu| has(*cpu)).unwrap_or(next);
    }
    true
}

/// The number that a full sub-buffer begins with.
fn first_seq(packet: &Option<Packet>) -> u64 {
    packet.as_ref().map_or(u64::MAX, |p| p.first_seq)
}

/// A stream's ring.
///
/// # Invariants
///
/// Each of the sub-buffers is in `free`, in `full`, in `current` or with the
/// drain thread; `free` and `full` have a place for each.
pub struct Ring {
    /// Sub-buffers that the ring was made with, and bytes of one; more that it has for
    /// a time.
    total: usize,
    size: usize,
    extra: usize,
    /// See [`Ring::keep`].
    kept: usize,
    free: Store<Option<Store<u8>>>,
    nr_free: usize,
    full: Store<Option<Packet>>,
    first: usize,
    nr_full: usize,
    current: Option<Packet>,
    /// See [`Ring::expect_early`].
    early: u64,
    /// A sub-buffer has become full since somebody has looked.
    turned: bool,
    /// The sub-buffer that is being filled had a record when [`Ring::tick`] was called last.
    ticked: bool,
    /// What it has had ever.
    pub had: Before,
}

impl Ring {
    /// A ring of the sub-buffers in `free`, all of one size above [`HEAD`];
    /// `full` has as many places, all `None`.
    pub fn new(free: Store<Option<Store<u8>>>, full: Store<Option<Packet>>) -> Ring {
        let nr_free = free.len();
        let size = free
            .first()
            .map_or(0, |b| b.as_ref().map_or(0, |b| b.len()));
        Ring {
            total: nr_free,
            size,
            extra: 0,
            kept: 0,
            free,
            nr_free,
            full,
            first: 0,
            nr_full: 0,
            current: None,
            early: 0,
            turned: false,
            ticked: false,
            had: Before::default(),
        }
    }

    /// From now on, a record may be earlier than the first one of its packet. If it is so by not more
    /// than `ns`, that needs no new packet.
    pub fn expect_early(&mut self, ns: u64) {
        self.early = ns;
    }

    /// Sub-buffers that nothing is in.
    pub fn free(&self) -> usize {
        self.nr_free
    }

    /// Sub-buffers that wait for the drain thread.
    pub fn full(&self) -> usize {
        self.nr_full
    }

    /// How many of them have a smaller number than `seq`. They are the oldest ones in a ring of one
    /// stream, which is what this is for.
    pub fn full_before(&self, seq: u64) -> usize {
        let places = self.full.len().max(1);
        let at = |i: usize| self.full.get(self.first.wrapping_add(i) % places);
        let begins = |i: &usize| at(*i).is_some_and(|p| first_seq(p) < seq);
        (0..self.nr_full).take_while(begins).count()
    }

    /// See [`SCARCE`].
    pub fn is_scarce(&self) -> bool {
        self.nr_free <= self.total / SCARCE
    }

    /// Sub-buffers that the ring was made with.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Bytes of a sub-buffer.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether more than one part in `share` of the ring has nothing in it.
    pub fn has_spare(&self, share: usize) -> bool {
        let begun = self.current.as_ref().map_or(0, Packet::unused);
        let empty = self.nr_free.saturating_mul(self.size);
        let all = self.total.saturating_mul(self.size);
        empty.saturating_add(begun) > all / share.max(1)
    }

    /// From now on, so many sub-buffers are kept for those who must not wait.
    pub fn keep(&mut self, many: usize) {
        self.kept = many;
    }

    /// Whether there is no more room than what is kept.
    #[inline(always)]
    pub fn is_low(&self) -> bool {
        self.nr_free <= self.kept
    }

    /// Whether less than one part in `share` of what is kept is taken.
    pub fn has_reserve(&self, share: usize) -> bool {
        let begun = self.current.as_ref().map_or(0, Packet::unused);
        let left = self.nr_free.saturating_mul(self.size).saturating_add(begun);
        let first = self.kept.saturating_add(1).saturating_mul(self.size);
        // Who does not wait must find room for a record.
        self.nr_free > 0 && first.saturating_sub(left) < RESERVE / share.max(1)
    }

    /// Sub-buffers missing until `bytes` of records, none above `longest`, have room beside
    /// the part that is kept for who can't wait. Others may log meanwhile, so this asks
    /// for a quarter more.
    pub fn missing(&self, bytes: u64, longest: usize) -> usize {
        let each = self
            .size
            .saturating_sub(HEAD)
            .saturating_sub(longest)
            .max(1);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let needed = bytes.saturating_add(bytes / 4) / each;
        let wanted = needed.saturating_add(2).saturating_add(self.total / SCARCE);
        wanted.saturating_sub(self.nr_free)
    }

    /// Places that [`Ring::grow`] needs for `more` sub-buffers.
    pub fn places(&self, more: usize) -> usize {
        let all = self.total.saturating_add(self.extra);
        all.saturating_add(more).max(self.free.len())
    }

    /// Adds sub-buffers for a time: those that are given back leave the ring until it is as
    /// large as it was made. `free` and `full` have [`Ring::places`], all `None`, or nothing
    /// is done. What is left of the three is the caller's to free.
    pub fn grow(
        &mut self,
        more: &mut Store<Option<Store<u8>>>,
        free: &mut Store<Option<Store<u8>>>,
        full: &mut Store<Option<Packet>>,
    ) {
        let places = self.places(more.len());
        if free.len() < places || full.len() < places {
            return;
        }
        for (to, from) in free.iter_mut().zip(self.free.iter_mut()) {
            *to = from.take();
        }
        core::mem::swap(&mut self.free, free);
        for to in full.iter_mut().take(self.nr_full) {
            *to = self.take_at(self.first);
            self.first = self.first.wrapping_add(1) % self.full.len().max(1);
        }
        core::mem::swap(&mut self.full, full);
        self.first = 0;
        for buf in more.iter_mut() {
            if let Some(place) = self.free.get_mut(self.nr_free) {
                *place = buf.take();
                self.nr_free = self.nr_free.wrapping_add(1);
                self.extra = self.extra.wrapping_add(1);
            }
        }
    }

    fn take_at(&mut self, at: usize) -> Option<Packet> {
        self.full.get_mut(at)?.take()
    }

    /// True if a sub-buffer waits for the drain thread.
    pub fn has_full(&self) -> bool {
        self.nr_full > 0
    }

    /// Whether a sub-buffer has become full since this was called last.
    #[inline(always)]
    pub fn has_turned(&mut self) -> bool {
        self.turned && core::mem::take(&mut self.turned)
    }

    /// Records that nobody has taken.
    pub fn records(&self) -> u64 {
        let places = self.full.len().max(1);
        let at = |i: usize| self.full.get(self.first.wrapping_add(i) % places)?.as_ref();
        (0..self.nr_full)
            .filter_map(at)
            .chain(&self.current)
            .fold(0u64, |n, p| n.wrapping_add(p.records()))
    }

    fn close(&mut self) {
        let Some(p) = self.current.take() else {
            return;
        };
        self.ticked = false;
        let places = self.full.len().max(1);
        let at = self.first.wrapping_add(self.nr_full) % places;
        if let Some(place) = self.full.get_mut(at) {
            *place = Some(p);
            self.nr_full = self.nr_full.wrapping_add(1);
            self.turned = true;
        }
    }

    /// Whether the present packet can take a record of a set. One packet's deltas are
    /// 32 bits wide.
    #[inline]
    fn fits(&self, len: usize, seq: u64, time: u64, set: u32) -> bool {
        self.current.as_ref().is_some_and(|p| {
            // No buffer is so large that this wraps.
            p.end.wrapping_add(len) <= p.buf.len()
                && p.meta.set == set
                && (seq.wrapping_sub(p.meta.first_seq) | time.wrapping_sub(p.meta.first_time))
                    <= u64::from(u32::MAX)
        })
    }

    /// Begins a packet with the record to come. False if there is no room for it.
    #[cold]
    fn open(&mut self, len: usize, seq: u64, time: u64, of: &impl Stream) -> bool {
        if !self.current.as_mut().is_some_and(|p| p.append(len)) {
            self.close();
            let Some(last) = self.nr_free.checked_sub(1) else {
                return false;
            };
            let Some(buf) = self.free.get_mut(last).and_then(Option::take) else {
                return false;
            };
            self.nr_free = last;
            let none = Meta {
                first_seq: seq,
                ..Meta::default()
            };
            self.current = Some(Packet::new(buf, none));
        }
        let before = of.begin(self.had);
        self.had.packets = self.had.packets.wrapping_add(1);
        let Some(p) = self.current.as_mut() else {
            return false;
        };
        // A packet of another set may have had greater numbers.
        p.first_seq = p.first_seq.min(seq);
        p.end = p.start.wrapping_add(HEAD);
        p.meta = Meta {
            first_seq: seq,
            first_time: time.saturating_sub(self.early),
            set: of.set(),
            before,
            ..Meta::default()
        };
        true
    }

    /// Adds a record of `len` bytes, which `write` gets, with what its packet begins at. False if
    /// there is no room.
    //
    // This runs for each reference. So there are two copies of put(): in the usual one, the
    // compiler sees that nothing needs to be checked again after fits().
    #[inline(always)]
    pub fn push(
        &mut self,
        len: usize,
        seq: u64,
        time: u64,
        of: &impl Stream,
        write: impl FnOnce(&mut [u8], &Base),
    ) -> bool {
        if self.fits(len, seq, time, of.set()) {
            self.put(len, seq, time, write)
        } else {
            self.push_first(len, seq, time, of, write)
        }
    }

    /// The same in a new packet.
    #[cold]
    #[inline(never)]
    fn push_first(
        &mut self,
        len: usize,
        seq: u64,
        time: u64,
        of: &impl Stream,
        write: impl FnOnce(&mut [u8], &Base),
    ) -> bool {
        self.open(len, seq, time, of) && self.put(len, seq, time, write)
    }

    /// The same in the present packet.
    #[inline(always)]
    fn put(
        &mut self,
        len: usize,
        seq: u64,
        time: u64,
        write: impl FnOnce(&mut [u8], &Base),
    ) -> bool {
        let Some(p) = self.current.as_mut() else {
            return false;
        };
        let Some(end) = p.end.checked_add(len) else {
            return false;
        };
        let Some(bytes) = p.buf.get_mut(p.end..end) else {
            return false;
        };
        let base = Base {
            seq: p.meta.first_seq,
            time: p.meta.first_time,
        };
        write(bytes, &base);
        p.end = end;
        p.meta.records = p.meta.records.wrapping_add(1);
        p.meta.last_seq = seq;
        p.meta.last_time = p.meta.last_time.max(time);
        true
    }

    /// Ends the packet that is being filled, so that it can be taken.
    pub fn flush(&mut self) {
        if self.current.as_ref().is_some_and(|p| p.records() > 0) {
            self.close();
        }
    }

    /// Some time has passed. A record that was there before it can be taken from now on. So a record
    /// can be taken after twice the time between calls at the latest. If room is low, its sub-buffer
    /// will be full soon.
    pub fn tick(&mut self) {
        if self.ticked && !self.is_low() && !self.is_scarce() {
            self.flush();
        }
        self.ticked = self.current.as_ref().is_some_and(|p| p.records() > 0);
    }

    /// Ends the packet that is being filled if it has a record of a smaller number than `seq`.
    pub fn flush_before(&mut self, seq: u64) {
        if self
            .current
            .as_ref()
            .is_some_and(|p| p.records() > 0 && p.first_seq < seq)
        {
            self.close();
        }
    }

    /// Takes the oldest full sub-buffer, if it begins with a smaller number than `seq`.
    pub fn take_before(&mut self, seq: u64) -> Option<Packet> {
        let oldest = self.full.get(self.first).map_or(u64::MAX, first_seq);
        (oldest < seq).then(|| self.take()).flatten()
    }

    /// Takes the oldest full sub-buffer.
    pub fn take(&mut self) -> Option<Packet> {
        if self.nr_full == 0 {
            return None;
        }
        let p = self.take_at(self.first);
        self.first = self.first.wrapping_add(1) % self.full.len().max(1);
        self.nr_full = self.nr_full.wrapping_sub(1);
        p
    }

    /// Gives back a sub-buffer that was taken. If the ring has more than it was made with,
    /// the caller gets one to free.
    pub fn give(&mut self, buf: Store<u8>) -> Option<Store<u8>> {
        if let Some(less) = self.extra.checked_sub(1) {
            self.extra = less;
            return Some(buf);
        }
        if let Some(place) = self.free.get_mut(self.nr_free) {
            *place = Some(buf);
            self.nr_free = self.nr_free.wrapping_add(1);
        }
        None
    }
}
