//! ARC: adaptive replacement cache.
//!
//! Megiddo, Modha, "ARC: a self-tuning, low overhead replacement cache", FAST
//! 2003, figure 4. T1 holds pages that were referenced only once recently, and T2
//! those that were referenced more often, both in LRU order. B1 and B2 remember the
//! pages that were replaced in T1 and T2. A reference to a page in B1 makes the
//! target size `p` of T1 larger, and a reference to a page in B2 makes it smaller.
//!
//! `p` is a real number, as in the paper and in libCacheSim; implementations
//! that round it differ.

use crate::sim::lists::Lists;
use crate::sim::{Engine, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "arc",
    about: "balances recency and frequency by the pages that it remembers",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(Arc::new(size), size)) },
    curve: None,
};

const T1: usize = 0;
const T2: usize = 1;
const B1: usize = 2;
const B2: usize = 3;

/// The lists.
///
/// Needs 12 bytes a page.
pub struct Arc {
    lists: Lists<4>,
    size: usize,
    /// The paper's `p`: the target size of T1, in pages.
    target: f64,
    /// Where the incoming page goes, if it was looked up by `victim`.
    admitted: Option<usize>,
}

/// How room is made for an incoming page when memory is full.
enum Room {
    /// By the paper's `REPLACE`; `in_b2` if B2 remembered the incoming page.
    Replace { in_b2: bool },
    /// T1 fills memory and B1 is empty: T1's oldest page is replaced and not remembered.
    DropT1,
}

impl Arc {
    /// For a memory of `size` pages.
    pub fn new(size: u64) -> Self {
        Arc {
            lists: Lists::default(),
            size: size as usize,
            target: 0.0,
            admitted: None,
        }
    }

    /// The paper's `REPLACE`.
    fn replace(&mut self, in_b2: bool) -> Option<CanonPage> {
        let t1 = self.lists.len(T1) as f64;
        let first = t1 > self.target || in_b2 && t1 == self.target;
        let first = first && self.lists.len(T1) > 0 || self.lists.len(T2) == 0;
        let (from, to) = if first { (T1, B1) } else { (T2, B2) };
        let page = self.lists.pop(from)?;
        self.lists.push(to, page);
        Some(page)
    }

    /// The paper's cases I to IV up to `REPLACE`: adapts `p`, limits B1 and B2, and returns the
    /// list for the incoming page and how room is made for it.
    fn admit(&mut self, incoming: CanonPage) -> (usize, Room) {
        let l1 = self.lists.len(T1) + self.lists.len(B1);
        let l2 = self.lists.len(T2) + self.lists.len(B2);
        match self.lists.list_of(incoming) {
            Some(B1) => {
                self.target = (self.target + self.step(B1, B2)).min(self.size as f64);
                self.lists.remove(incoming);
                (T2, Room::Replace { in_b2: false })
            }
            Some(B2) => {
                self.target = (self.target - self.step(B2, B1)).max(0.0);
                self.lists.remove(incoming);
                (T2, Room::Replace { in_b2: true })
            }
            _ if l1 == self.size => match self.lists.pop(B1) {
                None => (T1, Room::DropT1),
                Some(_) => (T1, Room::Replace { in_b2: false }),
            },
            _ => {
                if l1 + l2 == 2 * self.size {
                    self.lists.pop(B2);
                }
                (T1, Room::Replace { in_b2: false })
            }
        }
    }

    /// By how much a reference to a page in B1 or B2 moves `p`.
    fn step(&self, own: usize, other: usize) -> f64 {
        (self.lists.len(other) as f64 / self.lists.len(own) as f64).max(1.0)
    }
}

impl Policy for Arc {
    fn grow(&mut self, pages: usize) {
        self.lists.grow(pages);
    }

    #[inline]
    fn hit(&mut self, page: CanonPage) {
        self.lists.move_to(T2, page);
    }

    fn victim(&mut self, incoming: CanonPage) -> Option<CanonPage> {
        let (to, room) = self.admit(incoming);
        self.admitted = Some(to);
        match room {
            Room::Replace { in_b2 } => self.replace(in_b2),
            Room::DropT1 => self.lists.pop(T1),
        }
    }

    fn insert(&mut self, page: CanonPage) {
        let to = match self.admitted.take() {
            Some(to) => to,
            // Memory has room, but B1 and B2 are limited all the same.
            None => self.admit(page).0,
        };
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
    fn pages_referenced_twice_outlive_a_scan() {
        let mut pages = vec![1, 2, 1, 2];
        pages.extend(10..30);
        pages.extend([1, 2]);
        assert_eq!(misses(ENTRY, 4, &pages), 22);
    }
}
