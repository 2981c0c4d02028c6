//! SIEVE.
//!
//! Zhang, Yang, Yue, Vigfusson, Rashmi, "SIEVE is simpler than LRU: an efficient
//! turn-key eviction algorithm for web caches", NSDI 2024. Pages stand in order
//! of loading. A hand moves from the oldest to the newest: a page that was
//! referenced loses its mark and keeps its place, and the first page without a
//! mark is replaced. New pages are added at the newest end, wherever the hand is.
//! After the newest page, the hand begins again at the oldest.

use crate::sim::lists::Lists;
use crate::sim::{Engine, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "sieve",
    about: "a FIFO queue whose hand replaces the first page without a new reference",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(Sieve::default(), size)) },
    curve: None,
};

/// The queue and the hand; a page's note is 1 if it was referenced.
///
/// Needs 12 bytes a page.
#[derive(Default)]
pub struct Sieve {
    lists: Lists<1>,
    /// The next page to look at; none: the oldest.
    hand: Option<CanonPage>,
}

const QUEUE: usize = 0;

impl Policy for Sieve {
    fn grow(&mut self, pages: usize) {
        self.lists.grow(pages);
    }

    #[inline]
    fn hit(&mut self, page: CanonPage) {
        *self.lists.note(page) = 1;
    }

    fn victim(&mut self, _incoming: CanonPage) -> Option<CanonPage> {
        loop {
            let page = self.hand.or_else(|| self.lists.oldest(QUEUE))?;
            self.hand = self.lists.newer(page);
            if std::mem::take(self.lists.note(page)) == 0 {
                self.lists.remove(page);
                return Some(page);
            }
        }
    }

    fn insert(&mut self, page: CanonPage) {
        self.lists.push(QUEUE, page);
    }

    fn forget(&mut self, page: CanonPage) {
        if self.lists.list_of(page).is_none() {
            return;
        }
        if self.hand == Some(page) {
            self.hand = self.lists.newer(page);
        }
        *self.lists.note(page) = 0;
        self.lists.remove(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::testing::misses;

    #[test]
    fn a_kept_page_keeps_its_place() {
        // The hand passes 1 and replaces 2. When 4 is loaded, the hand is at 3, so 3 is replaced
        // although 1 is older.
        assert_eq!(misses(ENTRY, 3, &[1, 2, 3, 1, 4, 5, 1, 4, 5]), 5);
    }
}
