//! CAR: clock with adaptive replacement.
//!
//! Bansal, Modha, "CAR: clock with adaptive replacement", FAST 2004, figure 2:
//! ARC's four sets with T1 and T2 as clocks. A hit only sets a bit. If a page's bit is
//! set, the hand of T1 moves the page to T2, and the hand of T2 keeps it in T2.

use crate::sim::lists::Lists;
use crate::sim::{Engine, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "car",
    about: "ARC with clocks in place of LRU lists",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(Car::new(size), size)) },
    curve: None,
};

const T1: usize = 0;
const T2: usize = 1;
const B1: usize = 2;
const B2: usize = 3;

/// The clocks T1 and T2, as queues that begin at the hand, and the lists B1 and B2 of
/// replaced pages. A page's note is its bit.
///
/// Needs 12 bytes a page.
pub struct Car {
    lists: Lists<4>,
    size: usize,
    /// The paper's `p`: the target size of T1, in pages.
    target: f64,
}

impl Car {
    /// For a memory of `size` pages.
    pub fn new(size: u64) -> Self {
        Car {
            lists: Lists::default(),
            size: size as usize,
            target: 0.0,
        }
    }

    /// The paper's `replace()`.
    fn replace(&mut self) -> Option<CanonPage> {
        loop {
            let first = self.lists.len(T1) as f64 >= self.target.max(1.0);
            let (from, to) = if first { (T1, B1) } else { (T2, B2) };
            let page = self.lists.pop(from)?;
            if std::mem::take(self.lists.note(page)) == 0 {
                self.lists.push(to, page);
                return Some(page);
            }
            self.lists.push(T2, page);
        }
    }

    /// By how much a reference to a page in B1 or B2 moves `p`.
    fn step(&self, own: usize, other: usize) -> f64 {
        (self.lists.len(other) as f64 / self.lists.len(own) as f64).max(1.0)
    }
}

impl Policy for Car {
    fn grow(&mut self, pages: usize) {
        self.lists.grow(pages);
    }

    #[inline]
    fn hit(&mut self, page: CanonPage) {
        *self.lists.note(page) = 1;
    }

    fn victim(&mut self, _incoming: CanonPage) -> Option<CanonPage> {
        self.replace()
    }

    fn insert(&mut self, page: CanonPage) {
        let to = match self.lists.list_of(page) {
            Some(B1) => {
                self.target = (self.target + self.step(B1, B2)).min(self.size as f64);
                self.lists.remove(page);
                T2
            }
            Some(B2) => {
                self.target = (self.target - self.step(B2, B1)).max(0.0);
                self.lists.remove(page);
                T2
            }
            _ => {
                let l1 = self.lists.len(T1) + self.lists.len(B1);
                let l2 = self.lists.len(T2) + self.lists.len(B2);
                if l1 == self.size {
                    self.lists.pop(B1);
                } else if l1 + l2 == 2 * self.size {
                    self.lists.pop(B2);
                }
                T1
            }
        };
        *self.lists.note(page) = 0;
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
