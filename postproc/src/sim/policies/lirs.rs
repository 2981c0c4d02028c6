//! LIRS: low inter-reference recency set.
//!
//! Jiang, Zhang, "LIRS: an efficient low inter-reference recency set replacement
//! policy to improve buffer cache performance", SIGMETRICS 2002, section 3.3.
//! Pages that were referenced again soon (LIR) get 99 % of memory. The others (HIR)
//! get the rest, at least one page. Stack S is in order of last reference. It contains
//! the LIR pages, and the HIR pages that were referenced since the oldest LIR page's
//! last reference, whether they are in memory or not. A reference to one of these HIR
//! pages makes it LIR, and makes the oldest LIR page HIR. Queue Q contains the HIR
//! pages that are in memory. The page at its front is replaced.
//!
//! As in the paper, S remembers any number of replaced pages. libCacheSim 0.3.5
//! counts a different number of misses, for three reasons:
//!
//! - In the paper, a hit in Q on a page that is not in S only moves the page to the end
//!   of Q. In libCacheSim it also turns the oldest LIR page into an HIR page, which
//!   replaces the page at the front of Q. So a hit replaces a page, and there is one LIR
//!   page too few until the next new page.
//! - If Q has one page (memories below 200), the replaced page is the page that is being
//!   referenced. Later it may be found in S and counted as a hit, although it was
//!   replaced.
//! - S is limited to twice the size of memory. The page that was replaced longest ago is
//!   forgotten first.
//!
//! Two tests show this: a model with these three differences counts the same misses as
//! libCacheSim, and a model without them the same as this module.

use crate::sim::lists::Lists;
use crate::sim::{Engine, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "lirs",
    about: "keeps pages that were referenced again soon (in 99 % of memory)",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(Lirs::new(size), size)) },
    curve: None,
};

const LIST: usize = 0;

/// S and Q; a page's note in S is 1 if it is LIR.
///
/// Needs 24 bytes a page.
pub struct Lirs {
    stack: Lists<1>,
    queue: Lists<1>,
    lir: usize,
    lir_size: usize,
}

impl Lirs {
    /// For a memory of `size` pages.
    pub fn new(size: u64) -> Self {
        Lirs {
            stack: Lists::default(),
            queue: Lists::default(),
            lir: 0,
            lir_size: (size - (size / 100).max(1)) as usize,
        }
    }

    /// Makes the HIR page at the top of S an LIR page. If there are too many LIR pages then,
    /// the one at the bottom of S becomes HIR.
    fn promote(&mut self, page: CanonPage) {
        *self.stack.note(page) = 1;
        self.lir += 1;
        // If an LIR page was freed, no LIR page has to become HIR.
        if self.lir > self.lir_size {
            self.lir -= 1;
            if let Some(bottom) = self.stack.pop(LIST) {
                *self.stack.note(bottom) = 0;
                self.queue.push(LIST, bottom);
            }
        }
        self.prune();
    }

    /// Takes HIR pages off the bottom of S.
    fn prune(&mut self) {
        while let Some(bottom) = self.stack.oldest(LIST) {
            if *self.stack.note(bottom) == 1 {
                return;
            }
            self.stack.remove(bottom);
        }
    }
}

impl Policy for Lirs {
    fn grow(&mut self, pages: usize) {
        self.stack.grow(pages);
        self.queue.grow(pages);
    }

    #[inline]
    fn hit(&mut self, page: CanonPage) {
        let in_stack = self.stack.list_of(page).is_some();
        self.stack.move_to(LIST, page);
        if *self.stack.note(page) == 1 {
            self.prune();
        } else if in_stack {
            self.queue.remove(page);
            self.promote(page);
        } else {
            self.queue.move_to(LIST, page);
            self.prune();
        }
    }

    fn victim(&mut self, _incoming: CanonPage) -> Option<CanonPage> {
        self.queue.pop(LIST)
    }

    fn insert(&mut self, page: CanonPage) {
        let in_stack = self.stack.list_of(page).is_some();
        self.stack.move_to(LIST, page);
        if in_stack {
            self.promote(page);
        } else if self.lir < self.lir_size {
            self.lir += 1;
            *self.stack.note(page) = 1;
        } else {
            self.queue.push(LIST, page);
            self.prune();
        }
    }

    fn forget(&mut self, page: CanonPage) {
        self.lir -= usize::from(std::mem::take(self.stack.note(page)));
        self.stack.remove(page);
        self.queue.remove(page);
        self.prune();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::testing::misses;

    #[test]
    fn a_loop_a_little_too_large_hits_mostly() {
        // LRU would always miss. One page of four is HIR, so three pages stay.
        let pages: Vec<u32> = (0..100).map(|i| i % 5 + 1).collect();
        assert_eq!(misses(ENTRY, 4, &pages), 5 + 2 * 19);
    }
}
