//! The ring: every record that is taken comes out once, in order, in packets
//! whose bases reach all of their deltas.

use proptest::prelude::*;
use rust_mm_trace::record::{self, EventHead, PacketHead, EVENT_SIZE, REF_SIZE};
use rust_mm_trace::ring::{share_out, Base, Before, Meta, Only, Packet, Ring, Stream, HEAD};
use rust_mm_trace::uapi;
use std::cell::Cell;
use std::collections::VecDeque;

fn ring(buffers: usize, size: usize) -> Ring {
    Ring::new(
        (0..buffers).map(|_| Some(vec![0; size])).collect(),
        (0..buffers).map(|_| None).collect(),
    )
}

proptest! {
    #[test]
    fn nothing_is_lost_or_mangled(
        buffers in 1usize..5,
        room in 8usize..200,
        ops in prop::collection::vec((any::<bool>(), 0u64..1 << 33), 1..300),
        grow in prop::collection::vec((0usize..300, 0usize..9), 0..4),
    ) {
        let mut ring = ring(buffers, HEAD + room);
        let (mut seq, mut time) = (0u64, 0u64);
        let (mut put, mut got) = (Vec::new(), Vec::new());
        let mut packets = 0;
        let mut read = |mut p: Packet, got: &mut Vec<u64>, ring: &mut Ring| {
            let (all, last, before) = (p.records(), p.last_seq(), got.len());
            p.each(|bytes, meta| {
                assert_eq!(bytes.len(), meta.used);
                assert_eq!((meta.set, meta.before.packets), (0, packets));
                packets += 1;
                let content = &bytes[HEAD..];
                assert_eq!(content.len() / 8, meta.records as usize);
                assert!(meta.records > 0);
                for c in content.chunks(8) {
                    got.push(u64::from_le_bytes(c.try_into().expect("8 bytes")));
                }
                assert_eq!(got.last(), Some(&meta.last_seq));
                assert!(meta.last_seq - meta.first_seq <= u64::from(u32::MAX));
                assert!(meta.last_time - meta.first_time <= u64::from(u32::MAX));
            });
            assert_eq!((all, Some(&last)), ((got.len() - before) as u64, got.last()));
            ring.give(p.buf);
        };
        for (i, (take, step)) in ops.into_iter().enumerate() {
            for (_, more) in grow.iter().filter(|(at, _)| *at == i) {
                let free = ring.free();
                let places = ring.places(*more);
                let mut bufs: Vec<_> = (0..*more).map(|_| Some(vec![0; HEAD + room])).collect();
                // Too few places change nothing.
                let (mut few, mut none) = (vec![], vec![]);
                ring.grow(&mut bufs, &mut few, &mut none);
                prop_assert!(ring.free() == free && bufs.iter().all(|b| b.is_some()));
                let mut empty: Vec<_> = (0..places).map(|_| None).collect();
                let mut full = (0..places).map(|_| None).collect();
                ring.grow(&mut bufs, &mut empty, &mut full);
                prop_assert_eq!(ring.free(), free + more);
                prop_assert!(empty.iter().all(|b| b.is_none()));
            }
            seq += 1 + step / 7;
            time += step;
            let write = |out: &mut [u8], base: &Base| {
                assert!(base.seq <= seq && base.time <= time);
                out.copy_from_slice(&seq.to_le_bytes());
            };
            if ring.push(8, seq, time, &Only, write) {
                put.push(seq);
            } else {
                prop_assert_eq!(ring.free(), 0);
            }
            if take {
                if let Some(p) = ring.take() {
                    read(p, &mut got, &mut ring);
                }
            }
        }
        ring.flush();
        while let Some(p) = ring.take() {
            read(p, &mut got, &mut ring);
        }
        prop_assert_eq!(got, put);
        // What was given back before left the ring, as far as it was more than there was.
        prop_assert!(ring.free() >= buffers);
        prop_assert_eq!(ring.total(), buffers);
        // The rest leaves it as it is used.
        for _ in 0..64 {
            while ring.push(8, seq, time, &Only, |_, _| {}) {}
            ring.flush();
            while let Some(p) = ring.take() {
                ring.give(p.buf);
            }
        }
        prop_assert_eq!(ring.free(), buffers);
    }

    /// If nothing is missing, all records find room, whatever their sizes are.
    #[test]
    fn room_that_is_there_is_enough(
        buffers in 4usize..40,
        lengths in prop::collection::vec(1usize..64, 0..2000),
    ) {
        const LONGEST: usize = 512;
        let mut ring = ring(buffers, 4096);
        let bytes = lengths.iter().map(|l| l * 8).sum::<usize>() as u64;
        let more = ring.missing(bytes, LONGEST);
        let places = ring.places(more);
        let mut bufs = (0..more).map(|_| Some(vec![0; 4096])).collect();
        let mut free = (0..places).map(|_| None).collect();
        let mut full = (0..places).map(|_| None).collect();
        ring.grow(&mut bufs, &mut free, &mut full);
        prop_assert_eq!(ring.missing(bytes, LONGEST), 0);
        for (i, l) in lengths.iter().enumerate() {
            prop_assert!(ring.push(l * 8, i as u64, 0, &Only, |_, _| {}), "record {}", i);
        }
        prop_assert!(ring.free() >= ring.total() / 4);
    }
}

proptest! {
    /// A CPU uses its own ring if it has one. The others are spread evenly over those there are.
    #[test]
    fn each_cpu_has_a_ring(has in prop::collection::vec(prop::bool::ANY, 1..70)) {
        let mut of = vec![u16::MAX; has.len()];
        let any = share_out(&mut of, |cpu| has[cpu]);
        prop_assert_eq!(any, has.contains(&true));
        let mut guests = vec![0; has.len()];
        for (cpu, to) in of.iter().map(|to| usize::from(*to)).enumerate().filter(|_| any) {
            prop_assert!(has[to] && (to == cpu || !has[cpu]));
            guests[to] += usize::from(to != cpu);
        }
        let used = guests.iter().zip(&has).filter(|(_, has)| **has).map(|(n, _)| *n);
        let most = used.clone().max().unwrap_or(0);
        prop_assert!(most - used.min().unwrap_or(0) <= 1, "{:?} of {:?}", of, has);
    }
}

#[test]
fn what_came_before_can_be_taken_early() {
    let mut ring = ring(3, HEAD + 64);
    ring.flush_before(u64::MAX);
    assert!(!ring.has_full());
    for seq in [5, 9] {
        assert!(ring.push(8, seq, 0, &Only, |_, _| {}));
    }
    ring.flush_before(5);
    assert!(!ring.has_full());
    ring.flush_before(6);
    let mut packet = ring.take().expect("full");
    let mut packets = 0;
    packet.each(|_, meta| {
        assert_eq!((meta.first_seq, meta.last_seq, meta.records), (5, 9, 2));
        packets += 1;
    });
    assert_eq!(packets, 1);
    ring.give(packet.buf);
    assert_eq!((ring.free(), ring.records()), (3, 0));
    // The oldest ones are found, wherever they lie.
    for seq in [10, 20, 30] {
        assert!(ring.push(8, seq, 0, &Only, |_, _| {}));
        ring.flush();
    }
    let counts = [10, 11, 30, 31].map(|seq| ring.full_before(seq));
    assert_eq!((counts, ring.full()), ([0, 1, 2, 3], 3));
}

/// The stream of a set, as the caller of a ring keeps it.
#[derive(Default)]
struct Flow {
    set: u32,
    had: Cell<Before>,
    /// What the ring says that it has had, when a packet begins.
    own: Cell<Before>,
}

impl Flow {
    fn lose(&self, ring: &mut Ring) {
        let more = |had: Before| Before {
            lost_full: had.lost_full + 1,
            ..had
        };
        self.had.set(more(self.had.get()));
        ring.had = more(ring.had);
    }
}

impl Stream for Flow {
    fn set(&self) -> u32 {
        self.set
    }

    fn begin(&self, own: Before) -> Before {
        let before = self.had.get();
        self.had.set(Before {
            packets: before.packets + 1,
            ..before
        });
        self.own.set(own);
        before
    }
}

/// A record, which says of itself what it is; and what its stream had lost before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rec {
    seq: u64,
    time: u64,
    len: usize,
    lost: u64,
}

impl Rec {
    /// Bytes of the shortest one.
    const LEAST: usize = 32;

    fn write(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len);
        out.fill(self.seq as u8);
        let words = [self.seq, self.time, self.len as u64, self.lost];
        for (word, out) in words.iter().zip(out.chunks_exact_mut(8)) {
            out.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// The first one, and what is behind it.
    fn read(bytes: &[u8]) -> (Rec, &[u8]) {
        let word = |i: usize| u64::from_le_bytes(bytes[i * 8..][..8].try_into().expect("8 bytes"));
        let rec = Rec {
            seq: word(0),
            time: word(1),
            len: word(2) as usize,
            lost: word(3),
        };
        let (own, behind) = bytes.split_at(rec.len);
        assert!(own[Rec::LEAST..].iter().all(|b| *b == rec.seq as u8));
        (rec, behind)
    }
}

/// What is known of a sub-buffer.
#[derive(Clone, Debug, Default)]
struct Sub {
    used: usize,
    /// Of its last packet.
    set: u32,
    seq: u64,
    time: u64,
    recs: Vec<(u32, Rec)>,
    packets: u64,
}

impl Sub {
    /// Whether it has a record with a smaller number.
    fn has_before(&self, seq: u64) -> bool {
        self.recs.iter().any(|(_, r)| r.seq < seq)
    }
}

/// A ring of several sets' records, and what must be in it.
struct Rig {
    ring: Ring,
    size: usize,
    early: u64,
    flows: Vec<Flow>,
    current: Option<Sub>,
    full: VecDeque<Sub>,
    free: usize,
    /// Records put, and those that were read, of each set; and packets read.
    put: Vec<Vec<Rec>>,
    got: Vec<Vec<Rec>>,
    packets: Vec<u64>,
    lost: Vec<u64>,
    begun: u64,
}

const SETS: usize = 4;

impl Rig {
    fn new(buffers: usize, room: usize, early: u64) -> Rig {
        let size = HEAD + room;
        let mut ring = ring(buffers, size);
        ring.expect_early(early);
        let flows = (0..SETS as u32).map(|set| Flow {
            set,
            ..Flow::default()
        });
        Rig {
            ring,
            size,
            early,
            flows: flows.collect(),
            current: None,
            full: VecDeque::new(),
            free: buffers,
            put: vec![Vec::new(); SETS],
            got: vec![Vec::new(); SETS],
            packets: vec![0; SETS],
            lost: vec![0; SETS],
            begun: 0,
        }
    }

    fn close(&mut self) {
        self.full.extend(self.current.take());
    }

    /// Puts a record, and finds out whether it had to find room: a packet goes on if it can, another
    /// one begins in the same sub-buffer if it can, and else in a free one.
    fn push(&mut self, set: usize, seq: u64, time: u64, len: usize) -> bool {
        let rec = Rec {
            seq,
            time,
            len,
            lost: self.lost[set],
        };
        let fits = |s: &Sub| {
            let deltas = [seq.wrapping_sub(s.seq), time.wrapping_sub(s.time)];
            s.set == set as u32
                && s.used + len <= self.size
                && deltas.iter().all(|d| *d <= u64::from(u32::MAX))
        };
        let goes_on = self.current.as_ref().is_some_and(fits);
        let has_room = |s: &Sub| s.used + HEAD + len <= self.size;
        let mut is_put = goes_on;
        if !goes_on {
            if !self.current.as_ref().is_some_and(has_room) {
                self.close();
                if self.free > 0 {
                    self.free -= 1;
                    self.current = Some(Sub::default());
                }
            }
            if let Some(s) = &mut self.current {
                is_put = true;
                s.used += HEAD;
                s.packets += 1;
                (s.set, s.seq) = (set as u32, seq);
                s.time = time.saturating_sub(self.early);
            }
        }
        let mut base = None;
        let pushed = self.ring.push(len, seq, time, &self.flows[set], |out, b| {
            rec.write(out);
            base = Some(*b);
        });
        assert_eq!((pushed, self.ring.free()), (is_put, self.free));
        let Some(s) = self.current.as_mut().filter(|_| is_put) else {
            self.flows[set].lose(&mut self.ring);
            self.lost[set] += 1;
            return false;
        };
        let (seq, time) = (s.seq, s.time);
        assert_eq!(base, Some(Base { seq, time }));
        s.used += len;
        s.recs.push((set as u32, rec));
        self.put[set].push(rec);
        if !goes_on {
            // The counts of the whole ring, which it gets.
            let own = Before {
                packets: self.begun,
                lost_full: self.lost.iter().sum(),
                lost_atomic: 0,
            };
            assert_eq!(self.flows[set].own.get(), own);
            self.begun += 1;
        }
        true
    }

    fn take(&mut self) -> bool {
        let Some(mut packet) = self.ring.take() else {
            assert!(self.full.is_empty());
            return false;
        };
        let sub = self.full.pop_front().expect("it is full");
        let recs = sub.recs.iter();
        assert_eq!(packet.records(), recs.clone().count() as u64);
        assert_eq!(Some(packet.last_seq()), recs.map(|(_, r)| r.seq).max());
        assert_eq!(packet.bytes().len(), sub.used);
        assert!(sub.used <= self.size);
        let begin = packet.buf.as_ptr() as usize;
        let (mut at, mut packets, mut recs) = (begin, 0, Vec::new());
        packet.each(|bytes, meta| {
            // One lies behind the other.
            assert_eq!((bytes.as_ptr() as usize, bytes.len()), (at, meta.used));
            at += bytes.len();
            packets += 1;
            let (head, content) = bytes.split_at_mut(HEAD);
            // A head is written here.
            head.fill(0xa5);
            let mut content = &*content;
            let set = meta.set as usize;
            assert_eq!(meta.before.packets, self.packets[set]);
            self.packets[set] += 1;
            let mut own = Vec::new();
            while !content.is_empty() {
                let (rec, behind) = Rec::read(content);
                own.push(rec);
                content = behind;
            }
            let (first, last) = (own[0], own[own.len() - 1]);
            assert_eq!(meta.records as usize, own.len());
            assert_eq!((meta.first_seq, meta.last_seq), (first.seq, last.seq));
            assert_eq!(meta.first_time, first.time.saturating_sub(self.early));
            assert_eq!(Some(meta.last_time), own.iter().map(|r| r.time).max());
            for rec in &own {
                assert!(rec.seq - meta.first_seq <= u64::from(u32::MAX));
                assert!(rec.time - meta.first_time <= u64::from(u32::MAX));
                // While a packet takes records, none is lost.
                assert_eq!(meta.before.lost_full, rec.lost);
            }
            assert_eq!(meta.before.lost_atomic, 0);
            self.got[set].extend(&own);
            recs.extend(own.iter().map(|rec| (meta.set, *rec)));
        });
        assert_eq!((at - begin, packets), (sub.used, sub.packets));
        assert_eq!(recs, sub.recs);
        self.ring.give(packet.buf);
        self.free += 1;
        true
    }

    fn flush(&mut self) {
        self.ring.flush();
        self.close();
    }

    fn flush_before(&mut self, seq: u64) {
        self.ring.flush_before(seq);
        if self.current.as_ref().is_some_and(|s| s.has_before(seq)) {
            self.close();
        }
    }

    fn check(&mut self, seq: u64) {
        assert_eq!(self.ring.free(), self.free);
        assert_eq!(self.ring.full(), self.full.len());
        let first = self.full.iter().take_while(|s| s.has_before(seq));
        assert_eq!(self.ring.full_before(seq), first.count());
        let records = self.full.iter().chain(&self.current).map(|s| s.recs.len());
        assert_eq!(self.ring.records(), records.sum::<usize>() as u64);
    }

    fn finish(&mut self) {
        self.flush();
        while self.take() {}
        assert_eq!(self.got, self.put);
        assert_eq!(self.ring.free(), self.ring.total());
        let packets: u64 = self.packets.iter().sum();
        assert_eq!((packets, self.ring.had.packets), (self.begun, self.begun));
        for (flow, packets) in self.flows.iter().zip(&self.packets) {
            assert_eq!(flow.had.get().packets, *packets);
        }
    }
}

/// What happens to a ring.
#[derive(Clone, Debug)]
enum Turn {
    /// A record of a set, whose number is so far behind the last one of all; and so much later than
    /// the record before, or earlier.
    Put {
        set: usize,
        words: usize,
        behind: u64,
        step: u64,
        earlier: u64,
    },
    /// As many records of a set as a sub-buffer has room for.
    Burst {
        set: usize,
    },
    Take,
    Flush,
    /// What is so far behind the last number is to be taken.
    Before {
        behind: u64,
    },
}

fn turn() -> impl Strategy<Value = Turn> {
    let behind = || prop_oneof![4 => Just(0u64), 2 => 0u64..30, 1 => 0u64..1 << 34];
    let step = prop_oneof![20 => 1u64..50, 1 => 0u64..1 << 33];
    let earlier = prop_oneof![3 => Just(0u64), 1 => 0u64..200];
    let put = (0..SETS, 4usize..20, behind(), step, earlier);
    prop_oneof![
        40 => put.prop_map(|(set, words, behind, step, earlier)| Turn::Put {
            set, words, behind, step, earlier,
        }),
        2 => (0..SETS).prop_map(|set| Turn::Burst { set }),
        4 => Just(Turn::Take),
        1 => Just(Turn::Flush),
        3 => behind().prop_map(|behind| Turn::Before { behind }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Records of several sets: each set's come out in order, in packets with numbers of its own, and
    /// a packet is told what its stream has lost. A packet has a sub-buffer for itself only if there is
    /// no room for it behind the one before.
    #[test]
    fn sets_share_a_ring(
        buffers in 1usize..6,
        room in 160usize..1500,
        early in prop_oneof![Just(0u64), Just(100)],
        in_order in any::<bool>(),
        sets in 1..=SETS,
        turns in prop::collection::vec(turn(), 1..300),
    ) {
        let mut rig = Rig::new(buffers, room, early);
        // The numbers of a set are in order.
        let (mut last, mut time, mut of_set) = (1u64 << 35, 1u64 << 35, vec![0; SETS]);
        for turn in turns {
            match turn {
                Turn::Put { set, words, behind, step, earlier } => {
                    let set = set % sets;
                    last += 1 + step / 7;
                    time += step;
                    let behind = if in_order { 0 } else { behind };
                    let seq = (last - behind).max(of_set[set] + 1);
                    (last, of_set[set]) = (last.max(seq), seq);
                    rig.push(set, seq, time - earlier, words * 8);
                }
                Turn::Burst { set } => {
                    // An admission begins if a sub-buffer is free: then its records have room.
                    let set = set % sets;
                    let had_room = rig.ring.free() > 0;
                    for _ in 0..room / Rec::LEAST {
                        last += 1;
                        of_set[set] = last;
                        let pushed = rig.push(set, last, time, Rec::LEAST);
                        prop_assert!(pushed || !had_room);
                    }
                }
                Turn::Take => {
                    rig.take();
                }
                Turn::Flush => rig.flush(),
                Turn::Before { behind } => {
                    let seq = last - behind;
                    rig.flush_before(seq);
                    if in_order {
                        let many = rig.ring.full_before(seq);
                        let later = rig.full.range(many..).chain(&rig.current);
                        prop_assert!(!later.clone().any(|s| s.has_before(seq)));
                    }
                    rig.check(seq);
                }
            }
            rig.check(last - 20);
        }
        rig.finish();
    }
}

/// A CPU goes from one set to another and back for each record. That costs heads, and no sub-buffers.
#[test]
fn another_set_costs_a_head() {
    const RECORDS: usize = 4096 / (HEAD + 32);
    let mut rig = Rig::new(2, 4096 - HEAD, 0);
    for i in 0..RECORDS {
        assert!(rig.push(i % 2, i as u64, 0, 32), "record {i}");
        assert_eq!(rig.ring.free(), 1);
    }
    // Then there is no room for another one.
    assert!(rig.push(RECORDS % 2, RECORDS as u64, 0, 32));
    assert_eq!(
        (rig.ring.free(), rig.full[0].used),
        (0, RECORDS * (HEAD + 32))
    );
    rig.finish();
}

/// A set that rests has older records than the packets before it. They are found.
#[test]
fn an_old_record_behind_new_ones_is_flushed() {
    let mut rig = Rig::new(2, 1000, 0);
    assert!(rig.push(0, 100, 0, 32));
    rig.flush_before(100);
    assert!(!rig.ring.has_full());
    assert!(rig.push(1, 50, 0, 32) && rig.push(0, 101, 0, 32));
    rig.flush_before(50);
    assert!(!rig.ring.has_full());
    rig.flush_before(51);
    assert_eq!((rig.ring.full(), rig.ring.full_before(51)), (1, 1));
    assert_eq!(rig.ring.full_before(50), 0);
    rig.finish();
}

#[test]
fn layouts_are_those_of_the_header() {
    assert_eq!(size_of::<uapi::vmtrace_ref>(), REF_SIZE);
    assert_eq!(size_of::<uapi::vmtrace_event>(), EVENT_SIZE);
    assert_eq!(size_of::<uapi::vmtrace_packet>(), HEAD);

    let meta = Meta {
        first_seq: 5,
        last_seq: 6,
        first_time: 7,
        last_time: 8,
        records: 9,
        used: HEAD + 10,
        set: 16,
        before: Before {
            packets: 13,
            lost_full: 11,
            lost_atomic: 12,
        },
    };
    let mut out = vec![0xff; HEAD];
    let head = PacketHead {
        magic: 1,
        uuid: &[2; 16],
        kind: 3,
        cpu: 4,
        window: 15,
        packed: None,
    };
    // Events are of no set, and references are not lost in that way.
    for (set, lost_or_set) in [(0, 12), (16, 16)] {
        record::put_packet(&mut out, &head, &Meta { set, ..meta });
        // SAFETY: The struct is plain integers, and the bytes are as many.
        let p: uapi::vmtrace_packet = unsafe { std::ptr::read_unaligned(out.as_ptr().cast()) };
        assert_eq!(
            (p.magic, p.uuid, p.kind, p.cpu, p.seq),
            (1, [2; 16], 3, 4, 13)
        );
        assert_eq!(
            (p.first_seq, p.last_seq, p.first_time, p.last_time),
            (5, 6, 7, 8)
        );
        assert_eq!((p.lost_full, p.lost_io), (11, 0));
        // SAFETY: Both are integers of one size.
        let both = unsafe { (p.__bindgen_anon_1.lost_atomic, p.__bindgen_anon_1.set) };
        assert_eq!(both, (lost_or_set, lost_or_set));
        assert_eq!((p.records, p.content_size, p.window, p.crc), (9, 10, 15, 0));
        assert_eq!((p.codec, p.raw_size), (0, 0));
    }
    let packed = PacketHead {
        packed: Some((3, 7)),
        ..head
    };
    record::put_packet(&mut out, &packed, &meta);
    // SAFETY: As above.
    let p: uapi::vmtrace_packet = unsafe { std::ptr::read_unaligned(out.as_ptr().cast()) };
    assert_eq!((p.kind, p.codec, p.lost_io), (3, 3, 0));
    assert_eq!((p.content_size, p.raw_size), (7, 10));
    let crc = std::mem::offset_of!(uapi::vmtrace_packet, crc);
    assert_eq!(record::PACKET_CRC_AT, crc);

    let size = record::event_size(false, 8, 3).expect("small");
    assert_eq!(size, 56);
    let mut out = vec![0xff; usize::from(size)];
    let mut head = EventHead {
        kind: 1,
        size,
        flags: 2,
        seq: 3,
        time: 4,
        tid: 5,
        tgid: 6,
        mm: 7,
        cpu: 8,
        vtime: None,
    };
    record::put_event(&mut out, &head, &[9; 8], b"abc");
    // SAFETY: As above.
    let e: uapi::vmtrace_event = unsafe { std::ptr::read_unaligned(out.as_ptr().cast()) };
    assert_eq!((e.type_, e.size, e.flags, e.seq, e.time), (1, 56, 2, 3, 4));
    assert_eq!((e.tid, e.tgid, e.mm, e.cpu), (5, 6, 7, 8));
    assert_eq!(&out[40..], b"\x09\x09\x09\x09\x09\x09\x09\x09abc\0\0\0\0\0");
    assert_eq!(record::event_size(false, 70000, 0), None);

    head.size = record::event_size(true, 8, 3).expect("small");
    assert_eq!(head.size, 64);
    head.vtime = Some(0x0807_0605_0403_0201);
    let mut long = vec![0xff; 64];
    record::put_event(&mut long, &head, &[9; 8], b"abc");
    assert_eq!(long[4..40], out[4..40]);
    assert_eq!(long[40..48], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(long[48..], out[40..]);
}

#[test]
fn a_part_is_kept_for_who_cannot_wait() {
    let mut ring = ring(4, 1024);
    assert!(ring.has_spare(8));
    let mut left = 0;
    for seq in 0.. {
        let spare = ring.has_spare(8);
        if !ring.push(16, seq, 0, &Only, |_, _| {}) {
            break;
        }
        left += usize::from(!spare) * 16;
    }
    // An eighth, but for what the record before it took.
    assert!((512 - 16..=512).contains(&left), "{left} bytes");
    let packet = ring.take().expect("full");
    ring.give(packet.buf);
    assert!(ring.has_spare(8));
}

/// A record comes out after the second tick at the latest, without any other call, and not one tick
/// after it was put. What is put later is not lost by that.
#[test]
fn records_come_out_by_ticks() {
    let mut ring = ring(8, HEAD + 80);
    let put = |ring: &mut Ring, seq| {
        assert!(ring.push(8, seq, seq, &Only, |out, _| out.fill(0)));
    };
    ring.tick();
    ring.tick();
    assert!(!ring.has_full(), "there was nothing to come out");
    put(&mut ring, 1);
    ring.tick();
    put(&mut ring, 2);
    assert!(!ring.has_full(), "too early");
    ring.tick();
    let packet = ring.take().expect("it is due");
    assert_eq!((packet.records(), packet.last_seq()), (2, 2));
    ring.give(packet.buf);
    // A sub-buffer that becomes full between two ticks begins anew.
    put(&mut ring, 3);
    ring.tick();
    (4..=13).for_each(|seq| put(&mut ring, seq));
    assert_eq!(ring.full(), 1);
    ring.tick();
    assert_eq!(
        ring.full(),
        1,
        "the second sub-buffer is younger than a tick"
    );
    ring.tick();
    assert_eq!(ring.full(), 2);
}

/// A tick takes no sub-buffer from a ring that is short of them: who can't wait needs them more.
#[test]
fn ticks_leave_the_last_room() {
    let mut ring = ring(4, HEAD + 16);
    ring.keep(2);
    let put = |ring: &mut Ring, seq| ring.push(8, seq, seq, &Only, |out, _| out.fill(0));
    for seq in 1..=3 {
        assert!(put(&mut ring, seq));
    }
    assert_eq!((ring.free(), ring.full()), (2, 1));
    ring.tick();
    ring.tick();
    ring.tick();
    assert_eq!((ring.free(), ring.full()), (2, 1));
}

#[test]
fn what_begins_later_is_not_taken() {
    let mut ring = ring(4, HEAD + 16);
    assert!(ring.take_before(u64::MAX).is_none());
    for seq in [3u64, 4, 9, 10] {
        assert!(ring.push(8, seq, seq, &Only, |_, _| ()));
    }
    // The second sub-buffer is not full.
    assert_eq!(ring.take_before(3).map(|p| p.first_seq()), None);
    assert_eq!(ring.take_before(4).map(|p| p.first_seq()), Some(3));
    assert!(ring.take_before(u64::MAX).is_none());
    ring.flush();
    assert!(ring.take_before(9).is_none());
    assert_eq!(ring.full(), 1);
    assert_eq!(ring.take_before(10).map(|p| p.first_seq()), Some(9));
}
