//! FIFO and CLOCK filters, which do the same as the tracer's set of enabled pages.
//!
//! A reference is kept if its page is not among the `k` pages that a FIFO holds. A
//! trace of kVMTrace was filtered in this way while it was made (with N for `k`).
//! CLOCK gives a second chance to a page that was referenced since. The second chance
//! is kept as a reference, so that a page that is in use is never missing for long.
//!
//! A reference is written when its page's stay ends, with the information whether the
//! page was written meanwhile. Stays end in the order in which they begin.

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
    freed: false,
    source: "LRU misses of four programs were off by 0.17 % on average and 2.83 % at worst",
};

/// The registry's line.
pub(super) const CLOCK: MethodEntry = MethodEntry {
    id: "clock",
    about: "CLOCK filter of k pages; close for LRU from 4 k pages on",
    make: |k| Box::new(Filter::new(k, true)),
    valid_from_times: 4,
    exact_for: &[],
    write_backs: false,
    freed: false,
    source: "like a FIFO of k pages, which was measured, or better",
};

#[derive(Clone, Copy, Default)]
struct PageState {
    resident: bool,
    referenced: bool,
    written: bool,
}

/// Needs three bytes a page.
struct Filter {
    k: u64,
    second_chance: bool,
    /// Stays in order.
    stays: VecDeque<Access>,
    pages: Vec<PageState>,
}

impl Filter {
    fn new(k: u64, second_chance: bool) -> Self {
        Filter {
            k,
            second_chance,
            stays: VecDeque::new(),
            pages: Vec::new(),
        }
    }

    /// Ends the oldest stay; true if its page is in no other.
    fn end_stay(&mut self, to: &mut Vec<Access>) -> bool {
        let Some(mut stay) = self.stays.pop_front() else {
            return true;
        };
        let state = &mut self.pages[stay.page.index()];
        stay = Access::reference(stay.page, state.written);
        to.push(stay);
        let again = self.second_chance && state.referenced;
        *state = PageState {
            resident: again,
            ..PageState::default()
        };
        if again {
            self.stays.push_back(stay);
        }
        !again
    }
}

impl Reducer for Filter {
    fn reference(&mut self, access: Access, to: &mut Vec<Access>) {
        let at = access.page.index();
        if at >= self.pages.len() {
            let pages = (at + 1).next_power_of_two();
            self.pages.resize(pages, PageState::default());
        }
        let state = &mut self.pages[at];
        state.written |= access.writes();
        if state.resident {
            state.referenced = true;
            return;
        }
        state.resident = true;
        if self.stays.len() as u64 == self.k {
            while !self.end_stay(to) {}
        }
        self.stays.push_back(access);
    }

    fn finish(&mut self, to: &mut Vec<Access>) {
        self.second_chance = false;
        while !self.stays.is_empty() {
            self.end_stay(to);
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
