//! What is proven of references within stays (`sim::Filler`), on random programs.

use std::collections::VecDeque;

use postproc::sim::{Access, CurveSimulation, LruCurve};
use postproc::units::CanonPage;
use proptest::prelude::*;

/// The places of a stay's first and last reference, and how long it could have
/// lasted: up to what place.
struct Stay {
    page: u32,
    first: usize,
    last: usize,
    end: usize,
}

/// Stays of a FIFO of `n` pages, of which some are cut short. An admission that evicts a page also
/// evicts those of the next `batch - 1` that are in the first few page tables, of eight pages here: as
/// many as `tables`, that of the page included.
fn stays(pages: &[(u32, bool)], n: usize, batch: usize, tables: usize) -> Vec<Stay> {
    let mut all: Vec<Stay> = Vec::new();
    let mut members: VecDeque<(usize, bool)> = VecDeque::new();
    for (now, &(page, cut)) in pages.iter().enumerate() {
        let known = members.iter().find(|m| m.1 && all[m.0].page == page);
        let index = match known {
            Some(m) => m.0,
            None => {
                let full = members.len() == n;
                let victim = full.then(|| members.pop_front()).flatten();
                if let Some((victim, true)) = victim {
                    let mut locked = vec![all[victim].page / 8];
                    for m in members.iter_mut().take(batch - 1).filter(|m| m.1) {
                        let table = all[m.0].page / 8;
                        if !locked.contains(&table) && locked.len() < tables {
                            locked.push(table);
                        }
                        m.1 = !locked.contains(&table);
                    }
                }
                members.push_back((all.len(), true));
                all.push(Stay {
                    page,
                    first: now,
                    last: now,
                    end: now,
                });
                all.len() - 1
            }
        };
        all[index].last = now;
        for m in members.iter_mut().filter(|m| m.1) {
            all[m.0].end = now;
            // Its PTE is cleared; it keeps its place.
            m.1 = !(cut && m.0 == index);
        }
    }
    all
}

/// LRU misses of sizes 1 to `upto`, of references at places.
fn misses(mut references: Vec<(usize, u32)>, upto: usize) -> Vec<u64> {
    references.sort_unstable();
    let mut curve = LruCurve::default();
    let accesses: Vec<_> = references
        .iter()
        .map(|&(_, page)| Access::reference(CanonPage(page), false))
        .collect();
    curve.references(&accesses);
    let curve = curve.curve();
    (1..=upto)
        .map(|size| curve.at(size as u64).misses)
        .collect()
}

fn programs() -> impl Strategy<Value = Vec<(u32, bool)>> {
    // Loops over few pages, walks over many.
    let step = prop_oneof![
        (1u32..60, 1u32..12, 1usize..60).prop_map(|(base, span, times)| {
            (0..times as u32)
                .map(|i| base + i % span)
                .collect::<Vec<_>>()
        }),
        prop::collection::vec(1u32..70, 1..30),
    ];
    (
        prop::collection::vec(step, 1..30),
        prop::collection::vec(0u8..40, 1..50),
    )
        .prop_map(|(steps, cuts)| {
            let pages = steps.into_iter().flatten().enumerate();
            pages
                .map(|(i, page)| (page, cuts[i % cuts.len()] == 0))
                .collect()
        })
}

proptest! {
    #[test]
    fn with_first_and_last_references_lru_is_exact_from_twice_n_on(
        pages in programs(), n in 1usize..12, batch in 1usize..12, tables in 1usize..6
    ) {
        let full = misses(pages.iter().map(|p| p.0).enumerate().collect(), 80);
        let all = stays(&pages, n, batch.min(n), tables);
        let ends = all.iter().flat_map(|s| [(s.first, s.page), (s.last, s.page)]);
        let reduced = misses(ends.collect(), 80);
        prop_assert_eq!(&full[2 * n - 1..], &reduced[2 * n - 1..]);
    }

    #[test]
    fn wherever_the_last_reference_is_put_misses_are_those_of_2_n_more_or_less(
        pages in programs(), n in 1usize..10, batch in 1usize..10, tables in 1usize..6,
        shares in prop::collection::vec(0usize..=8, 1..40)
    ) {
        let full = misses(pages.iter().map(|p| p.0).enumerate().collect(), 80);
        let all = stays(&pages, n, batch.min(n), tables);
        let put = all.iter().enumerate().flat_map(|(i, s)| {
            let at = s.first + (s.end - s.first) * shares[i % shares.len()] / 8;
            [(s.first, s.page), (at, s.page)]
        });
        let estimate = misses(put.collect(), 80);
        for size in 4 * n..80 - 2 * n {
            prop_assert!(full[size + 2 * n - 1] <= estimate[size - 1]);
            prop_assert!(estimate[size - 1] <= full[size - 2 * n - 1]);
        }
    }
}
