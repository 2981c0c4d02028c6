//! FIFO and CLOCK filters, which do the same as the tracer's set of enabled pages.
//!
//! A reference is kept if its page is not among the `k` pages that a FIFO holds. A
//! trace of kVMTrace was filtered in this way while it was made (with N for `k`).
//! CLOCK gives a second chance to a page that was referenced since. The second chance
//! is kept as a reference, so that a page that is in use is never missing for long.
//!
//! A reference is written when its page's stay ends, with the information whether the
//! page was written meanwhile. Stays end in the order in which they begin.
//!
//! A page that is freed is in no stay any more, as in the tracer, where the end of a mapping
//! closes the stay. The stay keeps its place among the `k` until its turn comes. The free has
//! a place in the same order, so it comes behind all references before it and before all
//! references behind it. Bounds such as those of [`crate::sim`]'s certified bands are about
//! sequences with frees in the same places.

use std::collections::VecDeque;

use super::{MethodEntry, Reducer};
use crate::sim::Access;

/// The registry's line.
pub(super) const FIFO: MethodEntry = MethodEntry {
    id: "fifo",
    about: "FIFO filter of k pages, like the tracer's; close for LRU from 4 k pages on",
    make: |k| Box::new(Filter::new(k, false)),
    valid_from_times: 4,
    exact_for: &[],
    write_backs: false,
    source: "LRU misses of four programs were off by 0.16 % on average and 2.82 % at worst",
};

/// The registry's line.
pub(super) const CLOCK: MethodEntry = MethodEntry {
    id: "clock",
    about: "CLOCK filter of k pages; close for LRU from 4 k pages on",
    make: |k| Box::new(Filter::new(k, true)),
    valid_from_times: 4,
    exact_for: &[],
    write_backs: false,
    source: "like a FIFO of k pages, which was measured, or better",
};

#[derive(Clone, Copy, Default)]
struct PageState {
    /// The number of the entry that began its stay, from 1; 0 if it is in none.
    entry: u64,
    referenced: bool,
    written: bool,
}

/// Needs 16 bytes a page.
struct Filter {
    k: u64,
    second_chance: bool,
    /// Stays and frees in order.
    entries: VecDeque<Access>,
    /// The number of the first of these, from 1.
    first: u64,
    stays: u64,
    pages: Vec<PageState>,
}

impl Filter {
    fn new(k: u64, second_chance: bool) -> Self {
        Filter {
            k,
            second_chance,
            entries: VecDeque::new(),
            first: 1,
            stays: 0,
            pages: Vec::new(),
        }
    }

    fn begin_stay(&mut self, access: Access) {
        self.entries.push_back(access);
        self.stays += 1;
        let entry = self.first + self.entries.len() as u64 - 1;
        self.pages[access.page.index()] = PageState {
            entry,
            referenced: false,
            written: access.writes(),
        };
    }

    /// Writes the oldest entry, and ends its stay if it is one.
    fn end_entry(&mut self, to: &mut Vec<Access>) {
        let Some(access) = self.entries.pop_front() else {
            return;
        };
        let entry = self.first;
        self.first += 1;
        if !access.is_reference() {
            to.push(access);
            return;
        }
        self.stays -= 1;
        let state = self.pages[access.page.index()];
        if state.entry != entry {
            // The page was freed meanwhile.
            to.push(access);
            return;
        }
        to.push(Access::reference(access.page, state.written));
        self.pages[access.page.index()] = PageState::default();
        if self.second_chance && state.referenced {
            self.begin_stay(Access::reference(access.page, false));
        }
    }

    fn free(&mut self, access: Access, to: &mut Vec<Access>) {
        if let Some(state) = self.pages.get_mut(access.page.index()) {
            let state = std::mem::take(state);
            let at = state.entry.checked_sub(self.first);
            if let Some(stay) = at.and_then(|at| self.entries.get_mut(at as usize)) {
                *stay = Access::reference(access.page, state.written);
            }
        }
        match self.entries.is_empty() {
            true => to.push(access),
            false => self.entries.push_back(access),
        }
    }
}

impl Reducer for Filter {
    fn reference(&mut self, access: Access, to: &mut Vec<Access>) {
        if !access.is_reference() {
            self.free(access, to);
            return;
        }
        let at = access.page.index();
        if at >= self.pages.len() {
            let pages = (at + 1).next_power_of_two();
            self.pages.resize(pages, PageState::default());
        }
        let state = &mut self.pages[at];
        if state.entry != 0 {
            state.written |= access.writes();
            state.referenced = true;
            return;
        }
        while self.stays == self.k {
            self.end_entry(to);
        }
        self.begin_stay(access);
    }

    fn finish(&mut self, to: &mut Vec<Access>) {
        self.second_chance = false;
        while !self.entries.is_empty() {
            self.end_entry(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::testing::reduced;

    #[test]
    fn fifo_forgets_the_oldest() {
        assert_eq!(reduced(FIFO, 2, "a b a c a b"), "a b c a b");
        assert_eq!(reduced(FIFO, 2, "a A b c"), "A b c");
    }

    #[test]
    fn clock_gives_a_second_chance_and_says_so() {
        // c finds a referenced: a is left again, b goes.
        assert_eq!(reduced(CLOCK, 2, "a b a c a b"), "a b a c a b");
        assert_eq!(reduced(CLOCK, 2, "a b A c"), "A b a c");
    }
}
