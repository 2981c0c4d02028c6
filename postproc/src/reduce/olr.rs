//! Optimal LRU reduction.
//!
//! Kaplan, Smaragdakis, Wilson, "Trace reduction for virtual memory
//! simulations", SIGMETRICS 1999; "Flexible reference trace reduction for VM
//! simulations", ACM TOMACS 13(1), 2003: of all traces that have the loads and
//! replacements of an LRU memory of `k` pages in common with the given one, the
//! shortest. What LRU does in larger memories follows from these (a page that
//! leaves the first `k` places of the LRU stack enters the others in that
//! order), so that misses are equal in all sizes from `k` on.
//!
//! # How
//!
//! The algorithm here is new. The loads are given, in order. The algorithm adds the
//! fewest further references, *touches*, that make LRU replace the right pages: when
//! `e` is replaced, every other page in memory must have been loaded or touched later
//! than `e`. Let `L(e)` be the place of the last touch of `e`, or of its load if it has
//! none.
//!
//! - `L` of a page lies behind `L` of the page replaced before it, if that was
//!   in memory at the same time. The sooner it is, the more touches of others
//!   lie behind it anyway. So: its load, if that lies behind, otherwise a touch
//!   immediately behind.
//! - A page `q` that stays when `e` is replaced needs a touch between `L(e)` and
//!   the replacement, unless it was loaded in between. One touch serves for all
//!   replacements whose spans have a place in common. Spans move forwards from
//!   one replacement to the next, so the touch is put off until a span begins
//!   behind the end of the first that needs it; then it is put immediately behind
//!   the last `L` before, which all the others contain.
//!
//! All places are immediately behind the last `L`, or loads: touches are written
//! when they are decided, and loads wait in order until `L` passes them. A page
//! whose load waits has not been replaced, so that at most `k` wait.
//!
//! Touches are the page's, not the program's: a write is put on the next
//! reference to the page that is left. If there is none, it is lost, which is
//! why write-backs are not equal.

use std::collections::VecDeque;

use super::{MethodEntry, Reducer};
use crate::sim::policies::lru::Lru;
use crate::sim::{Access, Policy};
use crate::units::CanonPage;

/// The registry's line.
pub(super) const ENTRY: MethodEntry = MethodEntry {
    id: "olr",
    about: "optimal LRU reduction: exact for LRU from k pages on; the shortest such trace",
    make: |k| Box::new(Olr::new(k)),
    valid_from_times: 1,
    exact_for: &["lru"],
    write_backs: false,
    freed: false,
    source: "Kaplan, Smaragdakis, Wilson, SIGMETRICS 1999: exact for LRU",
};

#[derive(Clone, Copy, Default)]
struct PageState {
    resident: bool,
    /// Written since the last reference that was left.
    written: bool,
    /// The number of its load, from 1.
    load: u64,
    /// If it needs a touch: the number of the load before which it needs it;
    /// otherwise 0.
    due: u64,
}

/// Needs 32 bytes a page.
pub(super) struct Olr {
    k: u64,
    lru: Lru,
    resident: u64,
    pages: Vec<PageState>,
    loads: u64,
    /// Pages whose loads lie behind the last `L`, in order.
    loaded: VecDeque<u32>,
    /// Pages that need a touch and before which load, in that order; what does
    /// not agree with the page's state is void.
    due: VecDeque<(u32, u64)>,
}

impl Olr {
    pub fn new(k: u64) -> Self {
        Olr {
            k,
            lru: Lru::default(),
            resident: 0,
            pages: Vec::new(),
            loads: 0,
            loaded: VecDeque::new(),
            due: VecDeque::new(),
        }
    }

    fn leave(&mut self, page: u32, to: &mut Vec<Access>) {
        let written = &mut self.pages[page as usize].written;
        let written = std::mem::take(written);
        to.push(Access::reference(CanonPage(page), written));
    }

    fn needs_touch(&mut self, page: u32, before: u64) {
        self.pages[page as usize].due = before;
        self.due.push_back((page, before));
    }

    /// A page is replaced by the load with number `now`.
    fn replace(&mut self, page: u32, now: u64, to: &mut Vec<Access>) {
        let state = self.pages[page as usize];
        if state.due != 0 {
            // Its load lies before the last L: the touch is its own L.
            self.leave(page, to);
        } else {
            // Its load becomes the last L. Touches that are due before come
            // behind the L before.
            while let Some(&(other, before)) = self.due.front().filter(|d| d.1 <= state.load) {
                self.due.pop_front();
                if self.pages[other as usize].due == before {
                    self.leave(other, to);
                    self.needs_touch(other, now);
                }
            }
            while let Some(other) = self.loaded.pop_front() {
                self.leave(other, to);
                if other == page {
                    break;
                }
                self.needs_touch(other, now);
            }
        }
        self.pages[page as usize] = PageState::default();
    }
}

impl Reducer for Olr {
    fn reference(&mut self, access: Access, to: &mut Vec<Access>) {
        let page = access.page;
        let at = page.index();
        if at >= self.pages.len() {
            let pages = (at + 1).next_power_of_two();
            self.pages.resize(pages, PageState::default());
            self.lru.grow(pages);
        }
        if self.pages[at].resident {
            self.lru.hit(page);
            self.pages[at].written |= access.writes();
            return;
        }
        self.loads += 1;
        if self.resident < self.k {
            self.resident += 1;
        } else if let Some(victim) = self.lru.victim(page) {
            self.replace(victim.0, self.loads, to);
        }
        self.lru.insert(page);
        self.pages[at] = PageState {
            resident: true,
            written: access.writes(),
            load: self.loads,
            due: 0,
        };
        self.loaded.push_back(page.0);
    }

    fn finish(&mut self, to: &mut Vec<Access>) {
        while let Some((page, before)) = self.due.pop_front() {
            if self.pages[page as usize].due == before {
                self.leave(page, to);
            }
        }
        while let Some(page) = self.loaded.pop_front() {
            self.leave(page, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::testing::reduced;

    #[test]
    fn only_order_is_left() {
        // c must replace a, so nothing but the loads is needed.
        assert_eq!(reduced(ENTRY, 2, "a b a b a b c"), "a b c");
        // c must replace b: a is touched behind b.
        assert_eq!(reduced(ENTRY, 2, "a b a a a c"), "a b a c");
    }

    #[test]
    fn memory_is_bounded_by_k() {
        let k = 16;
        let mut olr = Olr::new(k);
        let mut kept = Vec::new();
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut most = 0;
        for i in 0..200_000u64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Some stay for ever, some wander, some are far.
            let page = match random % 4 {
                0 => 1 + random / 8 % 5,
                1 => 10 + (i / 50 + random / 8 % 12) % 90,
                _ => 100 + random / 8 % 30,
            };
            let page = CanonPage(page as u32);
            olr.reference(Access::reference(page, false), &mut kept);
            most = most.max(olr.due.len() + olr.loaded.len());
        }
        assert!(most as u64 <= 4 * k, "{most}");
    }
}
