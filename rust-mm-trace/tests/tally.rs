//! No reference is lost from a table of counts, however small it is, and what stays is right.

use proptest::prelude::*;
use rust_mm_trace::tally::{Count, Place, Tally, COMM, NAME, WAYS};
use rust_mm_trace::uapi::vmtrace_count;
use std::collections::HashMap;
use std::mem::{offset_of, size_of};

fn tally(groups: usize) -> Tally {
    Tally::new(vec![Place::FREE; groups * WAYS], vec![0; groups])
}

/// All counts, in steps, and the references that are gone. Between two steps, `between` is done.
fn all(t: &mut Tally, step: usize, mut between: impl FnMut(&mut Tally)) -> (Vec<Count>, u64) {
    let (mut counts, mut gone, mut at) = (Vec::new(), 0, Some(0));
    while let Some(from) = at {
        let part = t.part(from, step);
        counts.extend(part.places.iter().filter_map(Place::get).copied());
        gone += part.gone;
        at = part.next;
        between(t);
    }
    (counts, gone)
}

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
    let mut t = tally(1);
    for file in 10..18 {
        t.add(&made(1, file, 1, 0));
    }
    t.add(&made(1, 10, 1, 1));
    assert_eq!(all(&mut t, 1, |_| ()).1, 0);
    t.add(&made(1, 18, 1, 0));
    let (counts, gone) = all(&mut t, 1, |_| ());
    assert_eq!(gone, 1);
    let files: Vec<u64> = counts.iter().map(|c| c.ino).collect();
    assert!(files.contains(&10) && !files.contains(&11) && files.contains(&18));
}

#[test]
fn what_is_given_up_while_counts_are_read_is_counted_once() {
    // Old counts that are large, of which new ones take the places between two steps.
    let mut t = tally(8);
    for file in 100..140 {
        for _ in 0..1000 {
            t.add(&made(1, file, 1, 0));
        }
    }
    let mut new = 0u64;
    let (counts, gone) = all(&mut t, 1, |t| {
        for file in 200 + new * 64..264 + new * 64 {
            t.add(&made(2, file, 1, 0));
        }
        new += 1;
    });
    let sum: u64 = counts.iter().map(Count::sum).sum();
    let (least, most) = (40_000, 40_000 + 64 * new);
    assert!((least..=most).contains(&(sum + gone)), "{sum} + {gone}");
}

proptest! {
    #[test]
    fn no_reference_is_lost(
        refs in prop::collection::vec((1u32..6, 0u64..12, 1u32..3, 0usize..4), 0..600),
        groups in 1usize..16,
        step in 1usize..5,
    ) {
        let mut t = tally(groups);
        let mut right: HashMap<(u32, u64, u32), [u64; 4]> = HashMap::new();
        for &(mm, file, kind, by) in &refs {
            t.add(&made(mm, file, kind, by));
            right.entry((mm, file, kind)).or_default()[by] += 1;
        }
        let (counts, gone) = all(&mut t, step, |_| ());
        let sum: u64 = counts.iter().map(Count::sum).sum();
        prop_assert_eq!(sum + gone, refs.len() as u64);
        for c in &counts {
            let file = if c.ino == 0 { u64::from(c.name[0] - b'a') } else { c.ino };
            let all = right[&(c.mm, file, c.kind)];
            // One that was given up and came back has less.
            prop_assert!(c.made.iter().zip(all).all(|(some, all)| *some <= all));
            prop_assert!(gone > 0 || c.made == all);
            prop_assert_eq!(c.pid, c.mm + 100);
            let key = |c: &Count| (c.mm, c.kind, c.ino, c.name);
            prop_assert_eq!(counts.iter().filter(|o| key(o) == key(c)).count(), 1);
        }
    }
}
