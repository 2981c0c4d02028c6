//! No reference is lost from a table of counts, however small it is, and what stays is right.

use proptest::prelude::*;
use rust_mm_trace::tally::{Count, Place, Tally, COMM, NAME};
use rust_mm_trace::uapi::vmtrace_count;
use std::collections::HashMap;
use std::mem::{offset_of, size_of};

fn made(mm: u32, file: u64, kind: u32, by: usize) -> Count {
    let mut count = Count {
        mm,
        kind,
        pid: mm + 100,
        comm: [b'c'; COMM],
        ..Count::NONE
    };
    match file {
        0..4 => count.name = [file as u8 + b'a'; NAME],
        _ => (count.dev, count.ino) = (7, file),
    }
    count.made[by] = 1;
    count
}

#[test]
fn counts_are_laid_out_as_user_space_gets_them() {
    assert_eq!(size_of::<Count>(), size_of::<vmtrace_count>());
    assert_eq!(
        offset_of!(Count, made) + 24,
        offset_of!(vmtrace_count, kernel)
    );
    assert_eq!(offset_of!(Count, dev), offset_of!(vmtrace_count, dev));
    assert_eq!(offset_of!(Count, ino), offset_of!(vmtrace_count, ino));
    assert_eq!(offset_of!(Count, mm), offset_of!(vmtrace_count, mm));
    assert_eq!(offset_of!(Count, pid), offset_of!(vmtrace_count, pid));
    assert_eq!(offset_of!(Count, kind), offset_of!(vmtrace_count, kind));
    assert_eq!(offset_of!(Count, comm), offset_of!(vmtrace_count, comm));
    assert_eq!(offset_of!(Count, name), offset_of!(vmtrace_count, name));
}

#[test]
fn the_count_that_rests_longest_is_given_up() {
    let mut tally = Tally::new(vec![Place::FREE; 8]);
    for file in 10..18 {
        tally.add(&made(1, file, 1, 0));
    }
    tally.add(&made(1, 10, 1, 1));
    assert_eq!(tally.elsewhere(), 0);
    tally.add(&made(1, 18, 1, 0));
    assert_eq!(tally.elsewhere(), 1);
    let files: Vec<u64> = tally
        .places()
        .iter()
        .map(|p| p.get().unwrap().ino)
        .collect();
    assert!(files.contains(&10) && !files.contains(&11) && files.contains(&18));
}

proptest! {
    #[test]
    fn no_reference_is_lost(
        refs in prop::collection::vec((1u32..6, 0u64..12, 1u32..3, 0usize..4), 0..600),
        sets in 1usize..16,
    ) {
        let mut tally = Tally::new(vec![Place::FREE; sets * 8]);
        let mut right: HashMap<(u32, u64, u32), [u64; 4]> = HashMap::new();
        for &(mm, file, kind, by) in &refs {
            tally.add(&made(mm, file, kind, by));
            right.entry((mm, file, kind)).or_default()[by] += 1;
        }
        let counts: Vec<&Count> = tally.places().iter().filter_map(Place::get).collect();
        let sum: u64 = counts.iter().map(|c| c.sum()).sum();
        prop_assert_eq!(sum + tally.elsewhere(), refs.len() as u64);
        for c in &counts {
            let file = if c.ino == 0 { u64::from(c.name[0] - b'a') } else { c.ino };
            let all = right[&(c.mm, file, c.kind)];
            // One that was given up and came back has less.
            prop_assert!(c.made.iter().zip(all).all(|(some, all)| *some <= all));
            prop_assert!(tally.elsewhere() > 0 || c.made == all);
            prop_assert_eq!(c.pid, c.mm + 100);
            let same = |o: &&&Count| {
                let key = |c: &Count| (c.mm, c.kind, c.ino, c.name);
                key(o) == key(c)
            };
            prop_assert_eq!(counts.iter().filter(same).count(), 1);
        }
    }
}
