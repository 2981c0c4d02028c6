//! S3-FIFO: three static FIFO queues.
//!
//! Yang, Zhang, Qiu, Yue, Rashmi, "FIFO queues are all you need for cache
//! eviction", SOSP 2023, algorithm 1. New pages enter the small queue, which has a
//! tenth of memory. At the end of the small queue, a page that was referenced twice
//! since it was loaded moves to the main queue. Any other page is replaced and remembered
//! in the ghost queue. A page that is remembered is loaded into the main queue. At the end
//! of the main queue, a page is inserted again once for each of up to three references.
//!
//! The authors' implementation (libCacheSim 0.3.5) defines some points that the paper
//! leaves open, and differs from the paper in others. This module follows the
//! implementation:
//!
//! - Until memory is full for the first time, pages for which the small queue has no
//!   room go to the main queue. In the paper, and in libCacheSim until 2024, all go to
//!   the small queue, and most of them leave memory as soon as it is full.
//! - A page that moves to a main queue that is full does not replace a page at once. The
//!   main queue is reduced when room is needed next. With the paper's algorithm, one load
//!   would replace two pages.
//! - The ghost queue remembers as many pages as nine tenths of memory. A page that is
//!   referenced leaves the ghost queue before the victim enters it.
//! - Sizes are rounded down. libCacheSim loads nothing into a small queue of one page, which
//!   makes every reference a miss, so sizes below 20 are not comparable.

use crate::sim::lists::Lists;
use crate::sim::{Engine, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "s3-fifo",
    about: "small, main and ghost FIFO queues (10 %, 90 %, 90 % of memory)",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(S3Fifo::new(size), size)) },
    curve: None,
};

/// The small queue.
pub(super) const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOST: usize = 2;

/// References in the small queue that lead to the main one.
const TO_MAIN: u8 = 2;
/// References are counted up to this number.
const MOST: u8 = 3;

/// The queues; a page's note counts its references.
///
/// Needs 12 bytes a page.
pub struct S3Fifo {
    pub(super) lists: Lists<3>,
    small_size: usize,
    main_size: usize,
    ghost_size: usize,
    /// Memory has not been full yet.
    filling: bool,
    /// Where the incoming page goes.
    to: usize,
}

impl S3Fifo {
    /// For a memory of `size` pages.
    pub fn new(size: u64) -> Self {
        S3Fifo {
            lists: Lists::default(),
            small_size: (size / 10) as usize,
            main_size: (size - size / 10) as usize,
            ghost_size: (u128::from(size) * 9 / 10) as usize,
            filling: true,
            to: SMALL,
        }
    }

    fn pop_small(&mut self) -> Option<CanonPage> {
        loop {
            let page = self.lists.pop(SMALL)?;
            if std::mem::take(self.lists.note(page)) >= TO_MAIN {
                self.lists.push(MAIN, page);
                continue;
            }
            if self.ghost_size > 0 {
                if self.lists.len(GHOST) == self.ghost_size {
                    self.lists.pop(GHOST);
                }
                self.lists.push(GHOST, page);
            }
            return Some(page);
        }
    }

    fn pop_main(&mut self) -> Option<CanonPage> {
        loop {
            let page = self.lists.pop(MAIN)?;
            match self.lists.note(page) {
                0 => return Some(page),
                references => *references -= 1,
            }
            self.lists.push(MAIN, page);
        }
    }
}

impl Policy for S3Fifo {
    fn grow(&mut self, pages: usize) {
        self.lists.grow(pages);
    }

    #[inline]
    fn hit(&mut self, page: CanonPage) {
        let references = self.lists.note(page);
        *references = (*references + 1).min(MOST);
    }

    fn victim(&mut self, incoming: CanonPage) -> Option<CanonPage> {
        self.filling = false;
        self.to = SMALL;
        if self.lists.list_of(incoming) == Some(GHOST) {
            self.lists.remove(incoming);
            self.to = MAIN;
        }
        if self.lists.len(MAIN) <= self.main_size {
            if let Some(page) = self.pop_small() {
                return Some(page);
            }
        }
        self.pop_main()
    }

    fn insert(&mut self, page: CanonPage) {
        let mut to = std::mem::replace(&mut self.to, SMALL);
        if self.filling && self.lists.len(SMALL) == self.small_size {
            to = MAIN;
        }
        // The page is remembered, and no victim was needed because a page was freed.
        if self.lists.list_of(page) == Some(GHOST) {
            self.lists.remove(page);
            to = MAIN;
        }
        self.lists.push(to, page);
    }

    fn forget(&mut self, page: CanonPage) {
        *self.lists.note(page) = 0;
        self.lists.remove(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::testing::misses;

    #[test]
    fn one_pass_of_new_pages_leaves_the_main_queue() {
        // Two pages fill the small queue, and eighteen the main queue. Pages that are referenced
        // once pass through the small queue, and the eighteen pages stay.
        let mut pages: Vec<u32> = (1..=20).collect();
        pages.extend(100..400);
        pages.extend(3..=20);
        assert_eq!(misses(ENTRY, 20, &pages), 20 + 300);
    }
}
