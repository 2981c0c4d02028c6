//! Regions keep their limits and all bytes of the areas, and find what is accessed.

use proptest::prelude::*;
use rust_mm_trace::regions::{
    Areas, Limits, Look, Region, Regions, Span, Turnover, NOWHERE, PAGE, ROOM,
};

/// Regions with little room at first, which get more when they lack it.
fn regions(min: u32, max: u32, seed: u64) -> Regions {
    Regions::new(room(ROOM), Limits { min, max }, seed)
}

fn room(many: usize) -> Vec<Region> {
    vec![Region::default(); many]
}

fn grow(all: &mut Regions) {
    while all.lacks_room() {
        let (old, many) = (all.list().to_vec(), all.room());
        assert_eq!(all.set_room(room(2 * many)).len(), many);
        assert_eq!(all.list(), old);
    }
}

/// Areas of mappings, in pages.
fn areas(mappings: &[(u64, u64)]) -> Areas {
    let mut areas = Areas::new();
    for (start, end) in mappings {
        areas.add(start * PAGE, end * PAGE);
    }
    areas
}

/// Mappings in ascending order, in pages.
fn mappings(most: u64) -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0..most, 1..most), 1..12).prop_map(|parts| {
        let mut at = 0;
        let mapping = |(gap, len)| {
            let start = at + gap;
            at = start + len;
            (start, at)
        };
        parts.into_iter().map(mapping).collect()
    })
}

/// Of all areas.
fn bytes(areas: &Areas) -> u64 {
    areas.list().iter().map(|a| a.end - a.start).sum()
}

/// What holds at any time.
fn check(all: &Regions, areas: &Areas, min: u32, max: u32) {
    let list = all.list();
    let pages = bytes(areas) / PAGE;
    assert!(list.len() as u64 >= pages.min(min.into()), "{}", list.len());
    assert!(list.len() <= max as usize, "{}", list.len());
    assert!(list.windows(2).all(|two| two[0].end <= two[1].start));
    for r in list {
        assert!(r.start < r.end && r.start % PAGE == 0 && r.end % PAGE == 0);
        assert!(r.writes <= r.accesses && r.accesses <= r.looks);
        assert!(r.at == NOWHERE || (r.start..r.end).contains(&r.at) && r.at % PAGE == 0);
    }
    // Regions that touch make up the areas.
    let mut spans: Vec<Span> = Vec::new();
    for r in list {
        match spans.last_mut() {
            Some(last) if last.end == r.start => last.end = r.end,
            _ => spans.push(Span {
                start: r.start,
                end: r.end,
            }),
        }
    }
    assert_eq!(spans, areas.list());
}

/// An aggregation of `looks` looks, and its merge. `hot` says of an address whether it is accessed.
fn aggregate(all: &mut Regions, looks: u32, hot: impl Fn(u64) -> bool) {
    for _ in 0..looks {
        all.aim();
        for r in all.list_mut() {
            let accessed = hot(r.at);
            r.note(Look {
                accessed,
                written: accessed && r.at % (2 * PAGE) == 0,
                cpus: 1 << (r.at / PAGE % 64),
            });
        }
    }
    all.merge(looks);
}

/// Bytes that are accessed, as the regions estimate them.
fn estimate(all: &Regions) -> f64 {
    let list = all.list().iter();
    list.map(|r| r.bytes() as f64 * f64::from(r.accesses) / f64::from(r.looks))
        .sum()
}

const HOT: std::ops::Range<u64> = 730_000 * PAGE..770_000 * PAGE;

/// The mean estimate of the last 100 of 200 aggregations, and the regions at the end. Of 1000000
/// pages, those of [`HOT`] are accessed.
fn simulate(splits: bool) -> (f64, Vec<Region>) {
    let areas = areas(&[(0, 1_000_000)]);
    let mut all = regions(10, 100, 1);
    all.update(&areas);
    let (mut sum, mut last) = (0.0, Vec::new());
    for i in 0..200 {
        aggregate(&mut all, 20, |at| HOT.contains(&at));
        check(&all, &areas, 10, 100);
        if i >= 100 {
            sum += estimate(&all) / 100.0;
        }
        last = all.list().to_vec();
        all.reset();
        grow(&mut all);
        if splits {
            all.split();
        }
    }
    (sum, last)
}

/// Whether a region's border is at an address, but for 1 % of the memory.
fn has_border(list: &[Region], at: u64) -> bool {
    let near = 10_000 * PAGE;
    list.iter().any(|r| r.start.abs_diff(at) < near)
}

#[test]
fn a_hot_block_is_found() {
    let (estimate, list) = simulate(true);
    let bytes = (HOT.end - HOT.start) as f64;
    assert!((estimate / bytes - 1.0).abs() < 0.1, "{}", estimate / bytes);
    assert!(has_border(&list, HOT.start) && has_border(&list, HOT.end));
    // What has not been accessed for long is known as such.
    assert!(list.iter().any(|r| r.accesses == 0 && r.age > 50));
}

/// The negative control: it is the splits that find it.
#[test]
fn without_splits_a_hot_block_is_not_found() {
    let (_, list) = simulate(false);
    assert!(!has_border(&list, HOT.start) && !has_border(&list, HOT.end));
}

#[test]
fn regions_are_even_at_first() {
    let areas = areas(&[(0, 100), (1000, 1100), (9000, 9200)]);
    let mut all = regions(10, 40, 1);
    all.update(&areas);
    check(&all, &areas, 10, 40);
    assert_eq!(all.list().len(), 10);
    assert!(all.list().iter().all(|r| r.bytes() <= 50 * PAGE));
}

#[test]
fn few_pages_have_a_region_each() {
    let areas = areas(&[(0, 3), (10, 12)]);
    let mut all = regions(10, 40, 1);
    all.update(&areas);
    assert_eq!(all.list().len(), 5);
    all.split();
    all.merge(10);
    assert_eq!(all.list().len(), 5);
}

#[test]
fn likes_are_merged_and_counts_weighted() {
    let areas = areas(&[(0, 4000)]);
    let mut all = regions(3, 100, 1);
    // As many as 40, of which some are alike.
    all.update(&areas);
    while all.list().len() < 40 {
        all.split();
    }
    let mut bytes = [0; 2];
    for r in all.list_mut() {
        (r.looks, r.accesses, r.writes) = match r.start < 2000 * PAGE {
            true => (20, 19 + (r.start / PAGE % 2) as u32, 4),
            false => (20, 0, 0),
        };
        bytes[usize::from(r.accesses > 0)] += r.bytes();
    }
    let many = all.list().len();
    all.merge(20);
    assert!(all.list().len() < many / 2);
    check(&all, &areas, 3, 100);
    // The two kinds are kept apart.
    assert!(all.list().iter().all(|r| [0, 19, 20].contains(&r.accesses)));
    let hot = all.list().iter().filter(|r| r.accesses > 0);
    assert_eq!(hot.clone().map(Region::bytes).sum::<u64>(), bytes[1]);
    assert!(hot.clone().all(|r| r.writes == 4 && r.looks == 20));
}

#[test]
fn what_changes_is_young() {
    let areas = areas(&[(0, 1000)]);
    let mut all = regions(3, 40, 1);
    all.update(&areas);
    let ages = |all: &Regions| all.list().iter().map(|r| r.age).collect::<Vec<_>>();
    for i in 1..4 {
        aggregate(&mut all, 10, |_| false);
        assert_eq!(ages(&all), [i; 3]);
        all.reset();
    }
    aggregate(&mut all, 10, |_| true);
    assert_eq!(ages(&all), [0; 3]);
    all.reset();
    assert!(all.list().iter().all(|r| r.last == 10 && r.looks == 0));
    assert!(all
        .list()
        .iter()
        .all(|r| (r.accesses, r.writes, r.cpus) == (0, 0, 0)));
}

/// With a minimum near half of the maximum, merges must leave room for splits.
#[test]
fn splits_go_on_if_limits_are_near() {
    let areas = areas(&[(0, 1000), (5000, 5100), (9000, 9700)]);
    let mut all = regions(10, 20, 1);
    all.update(&areas);
    for _ in 0..50 {
        aggregate(&mut all, 10, |_| false);
        check(&all, &areas, 10, 20);
        let many = all.list().len();
        all.reset();
        all.split();
        assert!(all.list().len() > many);
    }
}

#[test]
fn three_parts_are_tried_if_two_found_nothing() {
    let areas = areas(&[(0, 100_000)]);
    let mut all = regions(10, 1000, 1);
    all.update(&areas);
    for parts in [2, 3, 3] {
        grow(&mut all);
        aggregate(&mut all, 10, |_| false);
        while all.list().len() > 10 {
            all.merge(10);
            all.update(&self::areas(&[(0, 10)]));
            all.update(&areas);
        }
        all.reset();
        let many = all.list().len();
        all.split();
        assert_eq!(all.list().len(), parts * many);
    }
}

#[test]
fn a_smaller_room_is_refused() {
    let mut all = regions(32, 64, 1);
    all.update(&areas(&[(0, 100)]));
    let old = all.list().to_vec();
    assert_eq!(all.set_room(room(31)).len(), 31);
    assert_eq!((all.list(), all.room()), (&old[..], ROOM));
    assert_eq!(all.set_room(room(32)).len(), ROOM);
    assert_eq!((all.list(), all.room()), (&old[..], 32));
    assert!(all.lacks_room());
    // Without more, it goes on.
    all.split();
    assert_eq!(all.list(), old);
}

#[test]
fn pages_are_chosen_uniformly() {
    let mut all = regions(3, 6, 1);
    all.update(&areas(&[(7, 307)]));
    let mut seen = [0; 300];
    for _ in 0..100_000 {
        all.aim();
        for r in all.list() {
            seen[(r.at / PAGE - 7) as usize] += 1;
        }
    }
    // Each 1000 times, with a deviation of 32.
    assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
}

#[test]
fn a_look_is_counted() {
    let mut r = Region::new(0, PAGE);
    let look = |accessed, written, cpu: u32| Look {
        accessed,
        written,
        cpus: 1 << cpu,
    };
    r.note(look(false, false, 1));
    r.note(look(true, false, 2));
    r.note(look(true, true, 3));
    r.note(look(false, true, 4));
    assert_eq!((r.looks, r.accesses, r.writes, r.cpus), (4, 3, 2, 0b11100));
    r.looks = u32::MAX;
    r.note(look(true, true, 5));
    assert_eq!(
        (r.looks, r.accesses, r.writes, r.cpus),
        (u32::MAX, 3, 2, 0b11100)
    );
}

#[test]
fn a_new_mapping_begins_without_looks() {
    let mut all = regions(3, 100, 1);
    all.update(&areas(&[(0, 100)]));
    aggregate(&mut all, 10, |_| true);
    let both = areas(&[(0, 100), (1000, 1010)]);
    all.update(&both);
    check(&all, &both, 3, 100);
    let new = all.list().last().unwrap();
    assert_eq!(*new, Region::new(1000 * PAGE, 1010 * PAGE));
    all.update(&Areas::new());
    assert!(all.list().is_empty());
}

/// Looks at all regions: so many at each, of which `accesses` of the region's number find an access.
fn look(all: &mut Regions, looks: u32, accesses: impl Fn(usize) -> u32) {
    for (number, r) in all.list_mut().iter_mut().enumerate() {
        for i in 0..looks {
            r.note(Look {
                accessed: i < accesses(number),
                ..Look::default()
            });
        }
    }
}

#[test]
fn a_change_is_of_memory_that_is_in_use_and_idle() {
    let mut all = regions(3, 6, 1);
    all.update(&areas(&[(0, 300)]));
    assert_eq!(all.list().len(), 3);
    let mut next = |accesses: [u32; 3]| {
        look(&mut all, 20, |number| accesses[number]);
        let found = all.turnover();
        all.reset();
        (found.used / (100 * PAGE), found.changed / (100 * PAGE))
    };
    // What was not there before is new, for two intervals.
    assert_eq!(next([20, 0, 0]), (1, 1));
    assert_eq!(next([20, 0, 0]), (1, 1));
    assert_eq!(next([20, 0, 0]), (1, 0));
    // What is neither in use nor idle makes no change.
    assert_eq!(next([16, 15, 0]), (1, 0));
    assert_eq!(next([15, 15, 5]), (1, 0));
    assert_eq!(next([16, 15, 15]), (1, 0));
    assert_eq!(next([20, 0, 0]), (1, 0));
    // A change in the middle of an interval is known after the next one.
    assert_eq!(next([10, 10, 0]), (1, 0));
    assert_eq!(next([4, 16, 0]), (2, 2));
    assert_eq!(next([0, 20, 0]), (1, 0));
    assert_eq!(next([0, 20, 20]), (2, 1));
    assert_eq!(next([0, 4, 4]), (2, 2));
    assert_eq!(next([0, 0, 0]), (2, 2));
    assert_eq!(next([0, 0, 0]), (0, 0));
    // What was not looked at is not known.
    look(&mut all, 20, |_| 20);
    all.reset();
    assert_eq!(all.turnover(), Turnover::default());
}

#[test]
fn a_change_has_a_least_share() {
    let mut all = Turnover::default();
    assert!(!all.is_change(1));
    for (used, changed) in [(600, 0), (400, 300)] {
        all.add(Turnover { used, changed });
    }
    assert!(all.is_change(300) && !all.is_change(301));
    let most = Turnover {
        used: u64::MAX,
        changed: u64::MAX,
    };
    all.add(most);
    assert_eq!(all, most);
    assert!(all.is_change(1000));
}

proptest! {
    #[test]
    fn areas_leave_out_the_largest_gaps(mappings in mappings(20)) {
        let list = areas(&mappings);
        let gaps = mappings.windows(2).map(|two| two[1].0 - two[0].1);
        let mut gaps: Vec<u64> = gaps.filter(|gap| *gap > 0).collect();
        gaps.sort_unstable_by(|a, b| b.cmp(a));
        let out: u64 = gaps.iter().take(2).sum();
        let whole = mappings.last().unwrap().1 - mappings[0].0;
        prop_assert_eq!(bytes(&list), (whole - out) * PAGE);
        prop_assert_eq!(list.list().len(), gaps.len().min(2) + 1);
        prop_assert!(list.list().windows(2).all(|two| two[0].end < two[1].start));
        for (start, end) in mappings {
            let has = |s: &Span| s.start <= start * PAGE && s.end >= end * PAGE;
            prop_assert!(list.list().iter().any(has));
        }
    }

    #[test]
    fn limits_and_bytes_are_kept(
        steps in prop::collection::vec(
            (prop_oneof![mappings(10), mappings(5000)], 0u64..64, any::<bool>()), 1..12),
        min in 3u32..80,
        more in 0u32..100,
        seed in any::<u64>(),
    ) {
        let max = 2 * min + more;
        let mut all = regions(min, max, seed);
        for (mappings, mask, late) in steps {
            let areas = areas(&mappings);
            grow(&mut all);
            all.update(&areas);
            check(&all, &areas, min, max);
            for _ in 0..4 {
                let are_new = all.list().iter().all(|r| r.looks == 0);
                aggregate(&mut all, 10, |at| mask >> (at / PAGE / 7 % 6) & 1 == 1);
                check(&all, &areas, min, max);
                prop_assert!(!are_new || all.list().iter().all(|r| r.looks == 10));
                // An update may come before the report.
                if late {
                    continue;
                }
                all.reset();
                grow(&mut all);
                let before = all.list().to_vec();
                all.split();
                check(&all, &areas, min, max);
                if before.len() > max as usize / 2 {
                    prop_assert_eq!(all.list(), before);
                } else {
                    for r in all.list() {
                        let of = before.iter().find(|o| o.start <= r.start && o.end >= r.end);
                        let of = of.unwrap();
                        prop_assert_eq!((r.age, r.last), (of.age, of.last));
                        prop_assert!(r.bytes() < of.bytes() || of.bytes() == PAGE);
                    }
                }
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_again(seed in any::<u64>()) {
        let run = || {
            let mut all = regions(10, 40, seed);
            all.update(&areas(&[(0, 1000)]));
            for _ in 0..5 {
                aggregate(&mut all, 10, |at| at < 300 * PAGE);
                all.reset();
                all.split();
            }
            all.list().to_vec()
        };
        prop_assert_eq!(run(), run());
    }
}
