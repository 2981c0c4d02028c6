//! CLOCK-Pro: LIRS with clock hands.
//!
//! Jiang, Chen, Zhang, "CLOCK-Pro: an effective improvement of the CLOCK
//! replacement", USENIX ATC 2005, section 4. One circle holds hot pages, cold
//! pages, and cold pages that were replaced while in their *test period*. New
//! entries are inserted behind the hot hand, which is the last hand to reach them.
//!
//! - The cold hand finds the page to replace: the next cold page in memory whose bit
//!   is clear. A cold page whose bit is set moves to the head, and its bit is
//!   cleared. It becomes hot if it is in its test period; otherwise a test period
//!   begins.
//! - While there are more than `m - m_c` hot pages, the hot hand makes those cold
//!   whose bits are clear. It ends the test periods of the cold pages that it passes.
//! - The test hand ends test periods while more than `m` replaced pages are kept.
//! - `m_c` is the target number of cold pages. A reference to a page in its test
//!   period makes it larger by one. A test period that ends without a reference makes
//!   it smaller by one.
//!
//! The paper does not define the initial state. Here `m_c` begins at 1, its minimum,
//! because a LIRS of this size has one HIR page. While memory fills, pages are loaded
//! as hot until there are `m - m_c` hot pages.

use crate::sim::{Engine, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "clock-pro",
    about: "LIRS with clock hands and an adaptive target",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(ClockPro::new(size), size)) },
    curve: None,
};

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Kind {
    /// Not in the circle.
    #[default]
    Absent,
    Hot,
    Cold,
    /// Cold, and replaced.
    Gone,
}

#[derive(Clone, Copy, Default)]
struct Node {
    /// The neighbours: first in the direction from which hands come, then where they go.
    behind: u32,
    ahead: u32,
    kind: Kind,
    accessed: bool,
    test: bool,
}

#[derive(Clone, Copy)]
enum Hand {
    Hot,
    Cold,
    Test,
}

/// The circle and its hands.
///
/// Needs 12 bytes a page.
pub struct ClockPro {
    nodes: Vec<Node>,
    /// Pages, by [`Hand`]; 0 if the circle is empty.
    hands: [u32; 3],
    size: u64,
    cold_target: u64,
    hot: u64,
    resident: u64,
    gone: u64,
}

impl ClockPro {
    /// For a memory of `size` pages.
    pub fn new(size: u64) -> Self {
        ClockPro {
            nodes: Vec::new(),
            hands: [0; 3],
            size: size.max(1),
            cold_target: 1,
            hot: 0,
            resident: 0,
            gone: 0,
        }
    }

    fn node(&mut self, page: u32) -> &mut Node {
        &mut self.nodes[page as usize]
    }

    /// Takes a page out of the circle. Hands that are at the page move on.
    fn unlink(&mut self, page: u32) {
        let Node { behind, ahead, .. } = *self.node(page);
        for hand in &mut self.hands {
            if *hand == page {
                *hand = if ahead == page { 0 } else { ahead };
            }
        }
        self.node(behind).ahead = ahead;
        self.node(ahead).behind = behind;
    }

    /// Puts a page behind the hot hand.
    fn link(&mut self, page: u32) {
        let ahead = self.hands[Hand::Hot as usize];
        if ahead == 0 {
            self.hands = [page; 3];
            let node = self.node(page);
            (node.behind, node.ahead) = (page, page);
            return;
        }
        let behind = self.node(ahead).behind;
        let node = self.node(page);
        (node.behind, node.ahead) = (behind, ahead);
        self.node(behind).ahead = page;
        self.node(ahead).behind = page;
    }

    /// Moves a hand on; returns the page that it leaves.
    fn step(&mut self, hand: Hand) -> u32 {
        let page = self.hands[hand as usize];
        self.hands[hand as usize] = self.nodes[page as usize].ahead;
        page
    }

    /// A page was referenced in its test period.
    fn more_cold(&mut self) {
        self.cold_target = (self.cold_target + 1).min(self.size);
    }

    /// Ends the test period of a cold page, if it is in one.
    fn end_test(&mut self, page: u32) {
        let node = self.node(page);
        if !std::mem::take(&mut node.test) {
            return;
        }
        if node.kind == Kind::Gone {
            node.kind = Kind::Absent;
            self.gone -= 1;
            self.unlink(page);
        }
        self.cold_target = (self.cold_target - 1).max(1);
    }

    fn run_hot_hand(&mut self) {
        while self.hot > self.size - self.cold_target {
            let page = self.step(Hand::Hot);
            let node = self.node(page);
            if node.kind != Kind::Hot {
                self.end_test(page);
            } else if !std::mem::take(&mut node.accessed) {
                node.kind = Kind::Cold;
                self.hot -= 1;
            }
        }
    }

    fn run_test_hand(&mut self) {
        while self.gone > self.size {
            let page = self.step(Hand::Test);
            if self.node(page).kind != Kind::Hot {
                self.end_test(page);
            }
        }
    }

    /// Adds a page that is not in the circle at its head.
    fn add(&mut self, page: u32, kind: Kind) {
        *self.node(page) = Node {
            kind,
            test: kind == Kind::Cold,
            ..Node::default()
        };
        self.link(page);
        if kind == Kind::Hot {
            self.hot += 1;
            self.run_hot_hand();
        }
    }
}

impl Policy for ClockPro {
    fn grow(&mut self, pages: usize) {
        self.nodes.resize(pages, Node::default());
    }

    #[inline]
    fn hit(&mut self, page: CanonPage) {
        self.nodes[page.index()].accessed = true;
    }

    fn victim(&mut self, _incoming: CanonPage) -> Option<CanonPage> {
        if self.resident == 0 {
            return None;
        }
        loop {
            let page = self.step(Hand::Cold);
            let node = *self.node(page);
            if node.kind != Kind::Cold {
                continue;
            }
            if !node.accessed {
                self.resident -= 1;
                if node.test {
                    self.node(page).kind = Kind::Gone;
                    self.gone += 1;
                    self.run_test_hand();
                } else {
                    self.node(page).kind = Kind::Absent;
                    self.unlink(page);
                }
                return Some(CanonPage(page));
            }
            self.unlink(page);
            if node.test {
                self.more_cold();
                self.add(page, Kind::Hot);
            } else {
                self.add(page, Kind::Cold);
            }
        }
    }

    fn insert(&mut self, page: CanonPage) {
        self.resident += 1;
        if self.node(page.0).kind == Kind::Gone {
            self.gone -= 1;
            self.unlink(page.0);
            self.more_cold();
            self.add(page.0, Kind::Hot);
        } else if self.resident < self.size && self.hot < self.size - self.cold_target {
            self.add(page.0, Kind::Hot);
        } else {
            self.add(page.0, Kind::Cold);
        }
    }

    fn forget(&mut self, page: CanonPage) {
        match std::mem::take(&mut self.node(page.0).kind) {
            Kind::Absent => return,
            Kind::Hot => {
                self.hot -= 1;
                self.resident -= 1;
            }
            Kind::Cold => self.resident -= 1,
            Kind::Gone => self.gone -= 1,
        }
        self.unlink(page.0);
        *self.node(page.0) = Node::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::testing::misses;

    #[test]
    fn a_loop_too_large_keeps_a_part() {
        // In a loop of 10 pages, an LRU memory of 8 pages always misses. Here the hot pages stay.
        let pages: Vec<u32> = (0..1000).map(|i| i % 10 + 1).collect();
        assert!(misses(ENTRY, 8, &pages) < 400);
    }
}
