//! The ring: every record that is taken comes out once, in order, in packets
//! whose bases reach all of their deltas.

use proptest::prelude::*;
use rust_mm_trace::record::{self, EventHead, PacketHead, EVENT_SIZE, REF_SIZE};
use rust_mm_trace::ring::{share_out, Base, Meta, Ring, HEAD};
use rust_mm_trace::uapi;

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
        let read = |p: rust_mm_trace::ring::Packet, got: &mut Vec<u64>, ring: &mut Ring| {
            let content = &p.buf[HEAD..p.meta.used];
            assert_eq!(content.len() / 8, p.meta.records as usize);
            for c in content.chunks(8) {
                got.push(u64::from_le_bytes(c.try_into().expect("8 bytes")));
            }
            assert!(p.meta.last_seq - p.meta.first_seq <= u64::from(u32::MAX));
            assert!(p.meta.last_time - p.meta.first_time <= u64::from(u32::MAX));
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
            if ring.push(8, seq, time, write) {
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
            while ring.push(8, seq, time, |_, _| {}) {}
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
            prop_assert!(ring.push(l * 8, i as u64, 0, |_, _| {}), "record {}", i);
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
        assert!(ring.push(8, seq, 0, |_, _| {}));
    }
    ring.flush_before(5);
    assert!(!ring.has_full());
    ring.flush_before(6);
    let packet = ring.take().expect("full");
    assert_eq!((packet.meta.first_seq, packet.meta.records), (5, 2));
    ring.give(packet.buf);
    assert_eq!((ring.free(), ring.records()), (3, 0));
    // The oldest ones are found, wherever they lie.
    for seq in [10, 20, 30] {
        assert!(ring.push(8, seq, 0, |_, _| {}));
        ring.flush();
    }
    let counts = [10, 11, 30, 31].map(|seq| ring.full_before(seq));
    assert_eq!((counts, ring.full()), ([0, 1, 2, 3], 3));
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
        lost_full: 11,
        lost_atomic: 12,
    };
    let mut out = vec![0xff; HEAD];
    let head = PacketHead {
        magic: 1,
        uuid: &[2; 16],
        kind: 3,
        cpu: 4,
        seq: 13,
        lost_io: 14,
        window: 15,
    };
    record::put_packet(&mut out, &head, &meta);
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
    assert_eq!((p.lost_full, p.lost_atomic, p.lost_io), (11, 12, 14));
    assert_eq!((p.records, p.content_size, p.window, p.crc), (9, 10, 15, 0));

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
        if !ring.push(16, seq, 0, |_, _| {}) {
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
