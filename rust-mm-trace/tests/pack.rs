//! Packing of references: whatever is packed comes back, and what is no packed content is refused. The
//! bytes are those of a model, and of golden packets.

use proptest::prelude::*;
use rust_mm_trace::pack::{Hint, Tables};
use rust_mm_trace::pack_refs::{pack, SPARE};
use rust_mm_trace::record::Extras;
use rust_mm_trace::stay::NO_OFFSET;
use rust_mm_trace::unpack_refs::unpack;
use rust_mm_trace::{pack_events, pack_first};

mod model;

const NONE: Extras = Extras::NONE;
const ALL: [Extras; 4] = [NONE, Extras::VTIME, Extras::OFFSET, Extras::BOTH];

fn tables() -> Tables {
    let (pages, successors) = Tables::SIZES;
    Tables::new(
        vec![Default::default(); pages],
        vec![0; successors],
        vec![0; Tables::offsets(Extras::BOTH)],
    )
    .expect("all of the memory")
}

/// Packs and unpacks; gives the packed bytes.
fn there_and_back(extras: Extras, content: &[u8], hint: Hint, room: usize) -> Option<Vec<u8>> {
    let mut t = tables();
    let mut out = vec![0xa5; room];
    let len = pack(&mut t, extras, hint, content, &mut out)?;
    out.truncate(len);
    let mut back = vec![0x5a; content.len()];
    assert!(unpack(&mut t, extras, &out, &mut back));
    assert!(back == content, "another content came back");
    let model = model::pack(extras, hint.lag, hint.shift, &records(extras, content));
    assert!(out == model, "other bytes than the model");
    Some(out)
}

/// The records of a content.
fn records(extras: Extras, content: &[u8]) -> Vec<Record> {
    let word = |r: &[u8], at| u64::from_le_bytes(r[at..at + 8].try_into().expect("eight"));
    let record = |r: &[u8]| Record {
        page: word(r, 0),
        seq: word(r, 8) as u32,
        time: (word(r, 8) >> 32) as u32,
        thread: word(r, 16) as u32,
        mm: (word(r, 16) >> 32) as u32,
        stay: word(r, 24) as u32,
        pfn: (word(r, 24) >> 32) as u32,
        vtime: match has(extras, Extras::VTIME) {
            true => word(r, 32),
            false => 0,
        },
        offset: match has(extras, Extras::OFFSET) {
            true => word(r, r.len() - 8),
            false => 0,
        },
    };
    content.chunks_exact(size(extras)).map(record).collect()
}

/// A record as the kernel writes it.
#[derive(Clone, Copy, Debug)]
struct Record {
    page: u64,
    seq: u32,
    time: u32,
    thread: u32,
    mm: u32,
    stay: u32,
    pfn: u32,
    vtime: u64,
    offset: u64,
}

fn has(extras: Extras, which: Extras) -> bool {
    extras == which || extras == Extras::BOTH
}

/// Bytes of a record.
fn size(extras: Extras) -> usize {
    32 + 8 * [Extras::VTIME, Extras::OFFSET]
        .map(|e| usize::from(has(extras, e)))
        .iter()
        .sum::<usize>()
}

fn bytes(extras: Extras, records: &[Record]) -> Vec<u8> {
    let mut all = Vec::new();
    for r in records {
        all.extend(r.page.to_le_bytes());
        for field in [r.seq, r.time, r.thread, r.mm, r.stay, r.pfn] {
            all.extend(field.to_le_bytes());
        }
        if has(extras, Extras::VTIME) {
            all.extend(r.vtime.to_le_bytes());
        }
        if has(extras, Extras::OFFSET) {
            all.extend(r.offset.to_le_bytes());
        }
    }
    all
}

/// Programs that take turns and go round in loops, with a set of `n` pages, FIFO.
fn looping(records: u32, n: usize) -> Vec<Record> {
    let mut all: Vec<Record> = Vec::new();
    for i in 0..records {
        let mm = 1 + (i / 700) % 3;
        let page = u64::from(i % 200 * (i % 200) % 911 + mm * 1000 + u32::from(i % 97 == 0));
        all.push(Record {
            page: (0x7f00_0000_0000 + (page << 12)) | u64::from(page % 3 == 0),
            seq: i + i / 50,
            time: i * 6_000 + i * 7919 % 801,
            thread: 100 + mm,
            mm,
            stay: 0,
            pfn: page as u32 ^ 0x1234,
            vtime: u64::from(i) * 1000,
            offset: match i % 211 {
                0 => u64::from(i) % 4096,
                _ => page * 72 % 4096,
            },
        });
    }
    for i in 0..all.len() {
        let end = all.get(i + n).map_or(all[all.len() - 1].time, |r| r.time);
        all[i].stay = (end - all[i].time) >> 6;
    }
    all
}

#[test]
fn what_a_program_does_again_takes_few_bytes() {
    let hint = Hint { lag: 64, shift: 6 };
    let content = bytes(NONE, &looping(8000, 64));
    let packed = there_and_back(NONE, &content, hint, content.len()).expect("room");
    let each = packed.len() as f64 / 8000.0;
    assert!(each < 3.0, "{each} bytes each");
    // Without the lag, a time takes two bytes instead of bits of the token.
    let without = there_and_back(NONE, &content, Hint { lag: 0, shift: 6 }, content.len());
    let more = (without.expect("room").len() - packed.len()) as f64 / 8000.0;
    assert!((1.8..2.1).contains(&more), "{more} bytes more");
    let content = bytes(Extras::VTIME, &looping(8000, 64));
    let packed = there_and_back(Extras::VTIME, &content, hint, content.len()).expect("room");
    let each = packed.len() as f64 / 8000.0;
    assert!(each < 7.1, "{each} bytes each");
    // Most offsets are as before, those of new and of other pages take up to two bytes.
    let without = there_and_back(NONE, &bytes(NONE, &looping(8000, 64)), hint, 300_000);
    let content = bytes(Extras::OFFSET, &looping(8000, 64));
    let packed = there_and_back(Extras::OFFSET, &content, hint, content.len()).expect("room");
    let more = (packed.len() - without.expect("room").len()) as f64 / 8000.0;
    assert!((0.0..0.6).contains(&more), "{more} bytes more");
}

#[test]
fn what_is_cut_off_or_of_another_length_is_refused() {
    let content = bytes(NONE, &looping(300, 16));
    let hint = Hint { lag: 16, shift: 6 };
    let packed = there_and_back(NONE, &content, hint, content.len()).expect("room");
    let mut t = tables();
    for len in 0..packed.len() {
        let mut back = vec![0; content.len()];
        assert!(
            !unpack(&mut t, NONE, &packed[..len], &mut back),
            "{len} bytes"
        );
    }
    for records in (0..320).filter(|records| *records != 300) {
        let mut back = vec![0; records * 32];
        assert!(
            !unpack(&mut t, NONE, &packed, &mut back),
            "{records} records"
        );
    }
    assert!(!unpack(&mut t, NONE, &packed, &mut vec![0; 300 * 32 + 1]));
}

/// What kernels wrote before is still read.
#[test]
fn the_first_form_is_read() {
    let (pages, ages, successors, ends) = pack_first::Tables::SIZES;
    let first = pack_first::Tables::new(
        vec![Default::default(); pages],
        vec![0; ages],
        vec![0; successors],
        vec![0; ends],
        vec![0; pack_first::Tables::offsets(Extras::BOTH)],
    );
    let mut t = first.expect("all of the memory");
    for extras in ALL {
        let content = bytes(extras, &looping(8000, 64));
        let hint = pack_first::Hint { lag: 64, shift: 6 };
        let mut out = vec![0; content.len()];
        let len = pack_first::pack(&mut t, extras, hint, &content, &mut out).expect("room");
        let mut back = vec![0; content.len()];
        assert!(pack_first::unpack(&mut t, extras, &out[..len], &mut back));
        assert!(back == content, "{extras:?}");
        // It is none of the second form, and that is none of it.
        let other = unpack(&mut tables(), extras, &out[..len], &mut back);
        assert!(!other || back != content, "{extras:?}");
        let hint = Hint { lag: 64, shift: 6 };
        let second = there_and_back(extras, &content, hint, content.len()).expect("room");
        assert!(
            second.len() < len,
            "{extras:?}: {} bytes of {len}",
            second.len()
        );
        let other = pack_first::unpack(&mut t, extras, &second, &mut back);
        assert!(!other || back != content, "{extras:?}");
    }
}

/// Both sides have tables that were used before, by different numbers of packets.
#[test]
fn tables_are_used_for_many_packets() {
    let (mut one, mut other) = (tables(), tables());
    let hint = Hint { lag: 64, shift: 6 };
    let all = bytes(NONE, &looping(4000, 64));
    let mut out = vec![0; all.len()];
    let len = pack(&mut one, NONE, hint, &all, &mut out).expect("room");
    for round in 0..700 {
        let content = &all[round * 32..(round + 1 + round * 7 % 300) * 32];
        let mut out = vec![0; 12_000];
        let len = pack(&mut one, NONE, hint, content, &mut out).expect("room");
        let mut back = vec![0; content.len()];
        assert!(unpack(&mut other, NONE, &out[..len], &mut back), "{round}");
        assert!(back == content, "{round}");
    }
    // What was before makes no difference.
    let mut again = vec![0; all.len()];
    let same = pack(&mut one, NONE, hint, &all, &mut again).expect("room");
    assert!(again[..same] == out[..len]);
}

/// As many records as the largest sub-buffer has, and lags about as large as the head has room for.
#[test]
fn large_packets_and_large_lags() {
    for n in [8193, 32_699, 32_700, 40_000, (1 << 24) - 1, 1 << 24] {
        let hint = Hint {
            lag: n as u32,
            shift: 6,
        };
        let content = bytes(NONE, &looping(32_700, n));
        let packed = there_and_back(NONE, &content, hint, content.len()).expect("room");
        assert_eq!(
            u32::from_le_bytes(packed[12..16].try_into().expect("four")) & 0xff_ffff,
            if n < 1 << 24 { n as u32 } else { 0 }
        );
    }
}

#[test]
fn a_packet_of_one_record_can_be_packed() {
    for extras in ALL {
        let content = vec![0xff; size(extras)];
        assert!(there_and_back(extras, &content, Hint::default(), 200).is_some());
    }
}

/// Each way in which an offset is written.
#[test]
fn offsets_come_back() {
    let few = [
        0,
        1,
        7,
        8,
        255,
        256,
        896,
        897,
        904,
        2048,
        4094,
        4095,
        4096,
        4104,
        0x1f_fff8,
        0x3fff_ffff,
        0x7fff_ffff,
        0x8000_0000,
        u64::from(u32::MAX),
        1 << 32,
        NO_OFFSET,
        NO_OFFSET | 1,
        u64::MAX,
    ];
    let mut records = looping(few.len() as u32 * few.len() as u32 * 3, 64);
    for (i, r) in records.iter_mut().enumerate() {
        // One page; pages that take turns; and new ones.
        let page = match i / (few.len() * few.len()) {
            0 => 1,
            1 => i as u64 % 3,
            _ => i as u64,
        };
        r.page = page << 12;
        r.offset = match i % 2 {
            0 => few[i / 2 % few.len()],
            _ => few[i / 2 / few.len() % few.len()],
        };
    }
    for extras in [Extras::OFFSET, Extras::BOTH] {
        let content = bytes(extras, &records);
        let hint = Hint { lag: 64, shift: 6 };
        let room = content.len() * 2;
        assert!(there_and_back(extras, &content, hint, room).is_some());
    }
}

/// One token is of traces with offsets only, and each content is of one size of records.
#[test]
fn offsets_are_not_taken_for_something_else() {
    let hint = Hint { lag: 64, shift: 6 };
    let records = looping(1000, 64);
    let mut t = tables();
    for one in ALL {
        let packed = there_and_back(one, &bytes(one, &records), hint, 100_000).expect("room");
        for other in ALL {
            let mut back = vec![0; 1000 * size(other)];
            assert_eq!(
                unpack(&mut t, other, &packed, &mut back),
                one == other,
                "{one:?} {other:?}"
            );
        }
    }
    // Without a table for them, they are refused.
    let (pages, successors) = Tables::SIZES;
    let mut small = Tables::new(vec![Default::default(); pages], vec![0; successors], vec![])
        .expect("all of the memory");
    let content = bytes(Extras::OFFSET, &records);
    let mut out = vec![0; content.len()];
    assert_eq!(
        pack(&mut small, Extras::OFFSET, hint, &content, &mut out),
        None
    );
    let len = pack(&mut t, Extras::OFFSET, hint, &content, &mut out).expect("room");
    assert!(!unpack(
        &mut small,
        Extras::OFFSET,
        &out[..len],
        &mut vec![0; content.len()]
    ));
    assert!(unpack(
        &mut t,
        Extras::OFFSET,
        &out[..len],
        &mut vec![0; content.len()]
    ));
}

#[test]
fn without_room_nothing_is_packed() {
    let hint = Hint { lag: 64, shift: 6 };
    let content = bytes(NONE, &looping(100, 64));
    let least = there_and_back(NONE, &content, hint, content.len())
        .expect("room")
        .len()
        + SPARE;
    assert!(there_and_back(NONE, &content, hint, least).is_some());
    let needs = there_and_back(NONE, &content, hint, content.len())
        .expect("room")
        .len();
    for room in 0..needs {
        assert_eq!(there_and_back(NONE, &content, hint, room), None);
    }
    let mut t = tables();
    let mut out = vec![0; 4096];
    for wrong in [0, 1, 31, 33, 65] {
        assert_eq!(pack(&mut t, NONE, hint, &content[..wrong], &mut out), None);
    }
    // A lag that is too large is none.
    let far = Hint {
        lag: 1 << 24,
        shift: 6,
    };
    let none = Hint { lag: 0, shift: 6 };
    let packed = |hint| there_and_back(NONE, &content, hint, content.len());
    assert!(packed(far).is_some() && packed(far) == packed(none));
    let far = Hint { lag: 1, shift: 9 };
    assert_eq!(pack(&mut t, NONE, far, &content, &mut out), None);
}

fn record() -> impl Strategy<Value = Record> {
    let word = prop_oneof![
        Just(0u64),
        Just(u64::MAX),
        0u64..16,
        0u64..1 << 20,
        any::<u64>()
    ];
    let half = prop_oneof![
        Just(0u32),
        Just(u32::MAX),
        0u32..70,
        0u32..1 << 17,
        any::<u32>()
    ];
    (
        (word.clone(), 0u64..8),
        half.clone(),
        half.clone(),
        half.clone(),
        0u32..3,
        half.clone(),
        half,
        word.clone(),
        prop_oneof![Just(NO_OFFSET), 0u64..4096, 0u64..1 << 30, word],
    )
        .prop_map(
            |((page, few), seq, time, thread, mm, stay, pfn, vtime, offset)| Record {
                page: if page < 16 { few << 12 | page } else { page },
                seq,
                time,
                thread,
                mm,
                stay,
                pfn,
                vtime,
                offset,
            },
        )
}

proptest! {
    #[test]
    fn any_records_come_back(
        few in prop::collection::vec(record(), 1..40),
        order in prop::collection::vec(any::<prop::sample::Index>(), 1..300),
        lag in 0u32..20,
        shift in 0u32..=8,
    ) {
        let hint = Hint { lag, shift };
        let records: Vec<Record> = order.iter().map(|i| *i.get(&few)).collect();
        let room = records.len() * 80 + 500;
        for extras in ALL {
            prop_assert!(there_and_back(extras, &bytes(extras, &records), hint, room).is_some());
        }
    }

    #[test]
    fn any_bytes_come_back(content in prop::collection::vec(any::<u8>(), 48..4000)) {
        let hint = Hint { lag: 3, shift: 6 };
        for extras in ALL {
            let content = &content[..content.len() / size(extras) * size(extras)];
            prop_assert!(there_and_back(extras, content, hint, 12_000).is_some());
        }
    }

    /// A checksum finds such bytes. They are read all the same, without a panic.
    #[test]
    fn what_has_changed_can_be_unpacked(
        at in any::<prop::sample::Index>(), bit in 0u32..8, more in any::<prop::sample::Index>(),
    ) {
        let hint = Hint { lag: 16, shift: 6 };
        for extras in ALL {
            let content = bytes(extras, &looping(300, 16));
            let packed = there_and_back(extras, &content, hint, content.len()).expect("room");
            let mut back = vec![0; content.len()];
            let mut t = tables();
            let mut changed = packed.clone();
            changed[at.index(packed.len())] ^= 1 << bit;
            unpack(&mut t, extras, &changed, &mut back);
            changed.insert(more.index(packed.len()), 0x11);
            unpack(&mut t, extras, &changed, &mut back);
        }
    }

    #[test]
    fn any_bytes_can_be_unpacked(
        mut packed in prop::collection::vec(any::<u8>(), 0..2000), records in 0usize..300, numbers in 0u32..500,
    ) {
        if packed.len() > 16 {
            packed[..4].copy_from_slice(&numbers.to_le_bytes());
            packed[15] &= 7;
        }
        let mut t = tables();
        for extras in ALL {
            unpack(&mut t, extras, &packed, &mut vec![0; records * size(extras)]);
        }
    }
}

/// Events of some kinds, with payloads that differ in a few bytes.
fn events(shapes: &[(u16, u8, u64)]) -> Vec<u8> {
    let mut all = Vec::new();
    for (i, (kind, words, payload)) in shapes.iter().enumerate() {
        let size = 40 + 8 * u16::from(*words);
        all.extend(kind.to_le_bytes());
        all.extend(size.to_le_bytes());
        all.extend((i as u32 % 5).to_le_bytes());
        all.extend((i as u64 * 3).to_le_bytes());
        all.extend((i as u64 * 977).to_le_bytes());
        all.extend([7u32, 7, 1, 0].into_iter().flat_map(u32::to_le_bytes));
        for word in 0..u64::from(*words) {
            all.extend((payload ^ word).to_le_bytes());
        }
    }
    all
}

/// Packs and unpacks; gives the packed bytes.
fn events_there_and_back(content: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0xa5; content.len() * 2];
    let len = pack_events::pack(content, &mut out)?;
    out.truncate(len);
    let mut back = vec![0x5a; content.len()];
    assert!(pack_events::unpack(&out, &mut back));
    assert!(back == content, "other events came back");
    Some(out)
}

#[test]
fn events_that_are_alike_take_few_bytes() {
    let shapes: Vec<_> = (0..500u64)
        .map(|i| (2 + i as u16 % 2, 3, 0x7000_0000 + i))
        .collect();
    let packed = events_there_and_back(&events(&shapes)).expect("events");
    assert!(packed.len() < 500 * 22, "{} bytes", packed.len());
    let mut back = vec![0; 500 * 64];
    for len in 0..packed.len() {
        assert!(
            !pack_events::unpack(&packed[..len], &mut back),
            "{len} bytes"
        );
    }
    assert!(!pack_events::unpack(&packed, &mut back[..499 * 64]));
    assert!(!pack_events::unpack(
        &[&packed[..], &[0]].concat(),
        &mut back
    ));
}

#[test]
fn what_is_no_event_is_not_packed() {
    let good = events(&[(1, 2, 3)]);
    let mut out = vec![0; 200];
    for len in 1..good.len() {
        assert_eq!(pack_events::pack(&good[..len], &mut out), None);
    }
    for (at, value) in [(0, 128), (1, 1), (2, 39), (2, 44), (2, 255)] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(
            pack_events::pack(&bad, &mut out),
            None,
            "byte {at} is {value}"
        );
    }
    let needs = events_there_and_back(&good).expect("an event").len();
    for room in 0..needs {
        assert_eq!(pack_events::pack(&good, &mut out[..room]), None);
    }
    assert_eq!(pack_events::pack(&[], &mut []), Some(0));
}

proptest! {
    #[test]
    fn any_events_come_back(
        shapes in prop::collection::vec(
            (0u16..128, 0u8..20, prop_oneof![0u64..9, any::<u64>()]), 1..60),
        noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..50),
    ) {
        let mut content = events(&shapes);
        let mut starts = vec![0];
        for (_, words, _) in &shapes {
            starts.push(starts[starts.len() - 1] + 40 + 8 * usize::from(*words));
        }
        for (at, byte) in noise {
            let at = at.index(content.len());
            // Not the kind, nor the size.
            if !starts.iter().any(|start| (*start..start + 4).contains(&at)) {
                content[at] = byte;
            }
        }
        prop_assert!(events_there_and_back(&content).is_some());
    }

    #[test]
    fn any_bytes_can_be_unpacked_as_events(
        packed in prop::collection::vec(any::<u8>(), 0..500), room in 0usize..1000,
    ) {
        pack_events::unpack(&packed, &mut vec![0; room]);
        let mut out = vec![0; room];
        pack_events::pack(&packed, &mut out);
    }
}
