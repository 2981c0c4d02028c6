//! MGLRU: Linux's multi-generational LRU.
//!
//! After mm/vmscan.c, mm/workingset.c and include/linux/mm_inline.h of Linux 7.3
//! with CONFIG_LRU_GEN, for anonymous pages in one cgroup; see
//! Documentation/mm/multigen_lru.rst. Generations have increasing numbers,
//! `min_seq..=max_seq`, at least 2, at most 4.
//!
//! - A loaded page goes into the second youngest generation, and the fault sets its
//!   accessed bit. It goes into the youngest generation if it was replaced fewer than
//!   4 generations ago and was then in the working set (`lru_gen_folio_seq()`,
//!   `lru_gen_refault()`).
//! - Aging takes place when fewer than three generations are left
//!   (`should_run_aging()`). The walk over page tables clears all accessed bits. The
//!   first time that a page is found accessed, it is marked. After that it is promoted
//!   to the youngest generation, and belongs to the working set
//!   (`folio_update_gen()`). Then a new youngest generation is begun.
//! - Eviction takes the page at the end of the oldest generation. If the page was
//!   promoted since, it moves to its own generation (`sort_folio()`). If it is found
//!   accessed, this is counted, and the page goes to the second youngest generation;
//!   the third time it joins the working set and goes to the youngest
//!   (`lru_gen_set_refs()`). Any other page is replaced.
//!
//! Simplifications: the walk covers all page tables, without Bloom filter and without
//! look-around at eviction. Pages are scanned one by one, at the default priority. Tiers
//! and their feedback, which concern pages read by file descriptor, are left out.

use crate::sim::lists::Lists;
use crate::sim::{Engine, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "mglru",
    about: "Linux's multi-generational LRU",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(Mglru::default(), size)) },
    curve: None,
};

const MIN_NR_GENS: u64 = 2;
const MAX_NR_GENS: u64 = 4;

#[derive(Clone, Copy, Default)]
struct PageState {
    /// The generation the page belongs to; it may still be in the list of an
    /// older one.
    seq: u64,
    /// `min_seq` when it was replaced, plus one; 0 if it was not.
    shadow: u64,
    resident: bool,
    accessed: bool,
    /// The page is in [`Mglru::accessed`], perhaps since before it was freed.
    listed: bool,
    workingset: bool,
    /// `folio_lru_refs()`.
    references: u8,
}

/// Generations as lists, by number modulo their greatest count.
///
/// Needs 36 bytes a page.
pub struct Mglru {
    lists: Lists<4>,
    pages: Vec<PageState>,
    /// Pages whose accessed bit may be set, each once.
    accessed: Vec<CanonPage>,
    min_seq: u64,
    max_seq: u64,
}

impl Default for Mglru {
    fn default() -> Self {
        Mglru {
            lists: Lists::default(),
            pages: Vec::new(),
            accessed: Vec::new(),
            min_seq: 0,
            max_seq: MIN_NR_GENS + 1,
        }
    }
}

fn list(seq: u64) -> usize {
    (seq % MAX_NR_GENS) as usize
}

impl Mglru {
    /// The walk over page tables, and a new generation.
    fn age(&mut self) {
        for page in std::mem::take(&mut self.accessed) {
            let state = &mut self.pages[page.index()];
            state.listed = false;
            if !state.resident || !std::mem::take(&mut state.accessed) {
                continue;
            }
            if state.references == 0 && !state.workingset {
                state.references = 1;
            } else {
                state.seq = self.max_seq;
                state.workingset = true;
                state.references = 0;
            }
        }
        self.max_seq += 1;
    }

    fn access(&mut self, page: CanonPage) {
        let state = &mut self.pages[page.index()];
        state.accessed = true;
        if !std::mem::replace(&mut state.listed, true) {
            self.accessed.push(page);
        }
    }

    /// The generation for a page that faulted, or that was found accessed.
    fn young_seq(&self, workingset: bool) -> u64 {
        self.min_seq.max(self.max_seq - 1 + u64::from(workingset))
    }
}

impl Policy for Mglru {
    fn grow(&mut self, pages: usize) {
        self.lists.grow(pages);
        self.pages.resize(pages, PageState::default());
    }

    #[inline]
    fn hit(&mut self, page: CanonPage) {
        self.access(page);
    }

    fn victim(&mut self, _incoming: CanonPage) -> Option<CanonPage> {
        loop {
            if self.min_seq + MIN_NR_GENS > self.max_seq {
                self.age();
            }
            let Some(page) = self.lists.oldest(list(self.min_seq)) else {
                self.min_seq += 1;
                continue;
            };
            let state = &mut self.pages[page.index()];
            if state.seq == self.min_seq {
                if !std::mem::take(&mut state.accessed) {
                    state.resident = false;
                    state.shadow = self.min_seq + 1;
                    self.lists.remove(page);
                    return Some(page);
                }
                if state.references > 1 {
                    state.workingset = true;
                    state.references = 0;
                } else {
                    state.references += 1;
                }
                let workingset = state.workingset;
                self.pages[page.index()].seq = self.young_seq(workingset);
            }
            let to = list(self.pages[page.index()].seq);
            self.lists.move_to(to, page);
        }
    }

    fn insert(&mut self, page: CanonPage) {
        let state = self.pages[page.index()];
        let recent = state.shadow != 0 && self.max_seq - (state.shadow - 1) < MAX_NR_GENS;
        let workingset = state.workingset && recent;
        let seq = self.young_seq(workingset);
        self.pages[page.index()] = PageState {
            seq,
            shadow: 0,
            resident: true,
            accessed: false,
            listed: state.listed,
            workingset,
            references: 0,
        };
        self.access(page);
        self.lists.push(list(seq), page);
    }

    fn forget(&mut self, page: CanonPage) {
        let state = &mut self.pages[page.index()];
        *state = PageState {
            listed: state.listed,
            ..PageState::default()
        };
        self.lists.remove(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Access;
    use crate::sim::testing::misses;

    /// If memory is never full, there is no aging. Even then, nothing grows with the trace.
    #[test]
    fn memory_is_bounded_by_the_pages() {
        let mut engine = Engine::new(Mglru::default(), 100);
        for i in 0..10_000 {
            let page = CanonPage(1 + i % 7);
            engine.references(&[Access::reference(page, false), Access::free(page)]);
        }
        assert!(engine.policy.accessed.len() <= 7);
    }

    #[test]
    fn generations_by_hand() {
        // When 3 is loaded, 1 and 2 are found accessed once, by their faults, and 1 is
        // replaced. The evictions for 4 and 5 find 2 accessed. With the second of these, 2
        // belongs to the working set. 6 replaces 2. Then 2 is loaded into the youngest
        // generation, so 7 replaces 6.
        assert_eq!(misses(ENTRY, 2, &[1, 2, 3, 2, 4, 2, 5, 6, 2, 7, 2]), 8);
        // 3 replaces a page that was used once, and 2 replaces 3: there is no working set.
        assert_eq!(misses(ENTRY, 2, &[1, 2, 3, 1, 2]), 5);
    }
}
