// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of regions. Those in user space (rust-mm-trace/tests) try more areas and limits; these
//! show that the kernel's build of it does the same.

use crate::{
    regions::{Areas, Limits, Look, Region, Regions, PAGE, ROOM},
    Store,
};
use kernel::prelude::*;

/// Looks of an interval.
const LOOKS: u32 = 20;

fn room(many: usize) -> Result<Store<Region>> {
    Ok(Store::from_elem(Region::default(), many, GFP_KERNEL)?)
}

fn regions(min: u32, max: u32) -> Result<Regions> {
    Ok(Regions::new(room(ROOM)?, Limits { min, max }, 1))
}

/// Areas of mappings, in pages.
fn areas(mappings: &[(u64, u64)]) -> Areas {
    let mut areas = Areas::new();
    for (start, end) in mappings {
        areas.add(start * PAGE, end * PAGE);
    }
    areas
}

fn bytes(areas: &Areas) -> u64 {
    areas.list().iter().map(|a| a.end - a.start).sum()
}

/// An interval in which the pages from `start` on and before `end` are accessed.
fn aggregate(all: &mut Regions, start: u64, end: u64) {
    for _ in 0..LOOKS {
        all.aim();
        for r in all.list_mut() {
            let accessed = r.at >= start * PAGE && r.at < end * PAGE;
            r.note(Look {
                accessed,
                written: false,
                cpus: u64::from(accessed),
            });
        }
    }
    all.merge(LOOKS);
}

/// Whether the regions are in order, and have just the bytes of `areas`.
fn are_sound(all: &Regions, areas: &Areas) -> bool {
    let list = all.list();
    let next = list.iter().skip(1);
    list.iter().zip(next).all(|(a, b)| a.end <= b.start)
        && list.iter().all(|r| r.start < r.end)
        && list.iter().all(|r| {
            areas
                .list()
                .iter()
                .any(|a| r.start >= a.start && r.end <= a.end)
        })
        && all.bytes() == bytes(areas)
}

#[kunit_tests(rust_vmtrace_regions)]
mod tests {
    use super::*;

    #[test]
    fn areas_leave_out_the_largest_gaps() -> Result {
        let areas = areas(&[(10, 20), (20, 30), (1000, 1010), (1015, 1020), (9000, 9010)]);
        let list = areas.list();
        assert_eq!(list.len(), 3);
        let middle = list.get(1).ok_or(EINVAL)?;
        assert_eq!((middle.start, middle.end), (1000 * PAGE, 1020 * PAGE));
        assert_eq!(bytes(&areas), 50 * PAGE);
        Ok(())
    }

    #[test]
    fn regions_follow_mappings() -> Result {
        let mut all = regions(10, 40)?;
        let first = areas(&[(0, 100), (1000, 1100), (9000, 9200)]);
        all.update(&first);
        assert_eq!(all.list().len(), 10);
        assert!(are_sound(&all, &first));
        let second = areas(&[(50, 60), (1020, 1300), (20000, 20001)]);
        all.update(&second);
        assert!(are_sound(&all, &second));
        assert!(!are_sound(&all, &first));
        assert!((10..=40).contains(&all.list().len()));
        all.update(&Areas::new());
        assert!(all.list().is_empty());
        Ok(())
    }

    #[test]
    fn an_accessed_block_is_found() -> Result {
        let areas = areas(&[(0, 100_000)]);
        let mut all = regions(10, 60)?;
        all.update(&areas);
        let (start, end) = (73_000, 77_000);
        let near = |all: &Regions, page: u64| {
            let mut list = all.list().iter();
            list.any(|r| r.start.abs_diff(page * PAGE) < 1000 * PAGE)
        };
        assert!(!near(&all, start) && !near(&all, end));
        for _ in 0..200 {
            all.reset();
            all.split();
            aggregate(&mut all, start, end);
            assert!(are_sound(&all, &areas));
            assert!((10..=60).contains(&all.list().len()));
        }
        assert!(near(&all, start) && near(&all, end));
        assert!(all.list().iter().any(|r| r.accesses == 0 && r.age > 50));
        Ok(())
    }

    #[test]
    fn regions_move_to_a_larger_room() -> Result {
        let mut all = regions(40, 200)?;
        let areas = areas(&[(0, 1000)]);
        all.update(&areas);
        assert!(all.lacks_room());
        assert_eq!(all.set_room(room(4 * ROOM)?).len(), ROOM);
        assert!(!all.lacks_room());
        assert!(are_sound(&all, &areas));
        all.split();
        assert_eq!(all.list().len(), 80);
        // A smaller one is given back.
        assert_eq!(all.set_room(room(79)?).len(), 79);
        assert!(are_sound(&all, &areas));
        Ok(())
    }
}
