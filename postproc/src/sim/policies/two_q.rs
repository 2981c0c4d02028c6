//! 2Q, in its full version.
//!
//! Johnson, Shasha, "2Q: a low overhead high performance buffer management
//! replacement algorithm", VLDB 1994, section 2.2. New pages enter A1in, a FIFO queue
//! in which hits change nothing. When A1in holds more than a quarter of memory, its
//! oldest page is replaced and remembered in A1out, which remembers half as many pages
//! as memory holds. A page that A1out remembers is loaded into Am, an LRU list.
//!
//! Kin is 25 % and Kout 50 % of memory, rounded down, as the paper advises. The
//! paper does not define when a page that is loaded leaves A1out. Here, as in
//! libCacheSim, it does so before the victim enters A1out. In memories below four pages,
//! libCacheSim has Kin = 0 and loads nothing. Here A1in then has one page, which is always
//! replaced first.

use crate::sim::lists::Lists;
use crate::sim::{Engine, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "2q",
    about: "a FIFO queue, the pages it replaced last, and an LRU list (Kin 25 %, Kout 50 %)",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(TwoQ::new(size), size)) },
    curve: None,
};

const A1_IN: usize = 0;
const A1_OUT: usize = 1;
const AM: usize = 2;

/// The queues.
///
/// Needs 12 bytes a page.
pub struct TwoQ {
    lists: Lists<3>,
    k_in: usize,
    k_out: usize,
    /// The queue for the incoming page.
    to: usize,
}

impl TwoQ {
    /// For a memory of `size` pages.
    pub fn new(size: u64) -> Self {
        TwoQ {
            lists: Lists::default(),
            k_in: (size / 4) as usize,
            k_out: (size / 2) as usize,
            to: A1_IN,
        }
    }
}

impl Policy for TwoQ {
    fn grow(&mut self, pages: usize) {
        self.lists.grow(pages);
    }

    #[inline]
    fn hit(&mut self, page: CanonPage) {
        if self.lists.list_of(page) == Some(AM) {
            self.lists.move_to(AM, page);
        }
    }

    fn victim(&mut self, incoming: CanonPage) -> Option<CanonPage> {
        self.to = A1_IN;
        if self.lists.list_of(incoming) == Some(A1_OUT) {
            self.lists.remove(incoming);
            self.to = AM;
        }
        if self.lists.len(A1_IN) <= self.k_in {
            if let Some(page) = self.lists.pop(AM) {
                return Some(page);
            }
        }
        let page = self.lists.pop(A1_IN)?;
        if self.k_out > 0 {
            if self.lists.len(A1_OUT) == self.k_out {
                self.lists.pop(A1_OUT);
            }
            self.lists.push(A1_OUT, page);
        }
        Some(page)
    }

    fn insert(&mut self, page: CanonPage) {
        let mut to = std::mem::replace(&mut self.to, A1_IN);
        // The page is remembered, and no victim was needed because a page was freed.
        if self.lists.list_of(page) == Some(A1_OUT) {
            self.lists.remove(page);
            to = AM;
        }
        self.lists.push(to, page);
    }

    fn forget(&mut self, page: CanonPage) {
        self.lists.remove(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::testing::misses;

    #[test]
    fn a_page_has_to_come_twice() {
        // 1 is replaced, remembered, and loaded into Am. A scan does not replace it there.
        let mut pages = vec![1, 2, 3, 4, 5, 1];
        pages.extend(10..30);
        pages.push(1);
        assert_eq!(misses(ENTRY, 4, &pages), 26);
    }
}
