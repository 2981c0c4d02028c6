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
//! # Pages that are freed
//!
//! An LRU stack has a hole where a page was freed, and a load moves only the pages above the
//! first hole. So what happens below the first `k` places follows from the loads, the
//! replacements and the frees, in their order, and misses stay equal in all sizes from `k` on.
//! A free waits between loads as these do. A page that is freed needs no touch from then on;
//! one that it needs already is written at once. Its load may still wait, so that more loads
//! and frees may wait than `k`. If they become too many, everything is written: first the
//! touches that are due, then what waits. Pages keep their order of `L`, so the result is
//! exact, but some touches may be more than the fewest.
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

/// A load that waits, the free of a page, or a load or touch that was written and has its place
/// in the order of `L`.
#[derive(Clone, Copy)]
struct Waiting {
    access: Access,
    /// The number of the page's load; of a free, that of the load before it.
    load: u64,
    written: bool,
}

/// Loads and frees that may wait beside the loads of the `k` pages in memory.
const MOST: usize = 1 << 16;

/// Needs 32 bytes a page.
pub(super) struct Olr {
    k: u64,
    most: usize,
    lru: Lru,
    resident: u64,
    pages: Vec<PageState>,
    loads: u64,
    /// Pages whose loads, or touches, lie behind the last `L`, in order, and frees.
    loaded: VecDeque<Waiting>,
    /// Pages that need a touch and before which load, in that order; what does
    /// not agree with the page's state is void.
    due: VecDeque<(u32, u64)>,
}

impl Olr {
    pub fn new(k: u64) -> Self {
        Olr {
            k,
            lru: Lru::default(),
            most: MOST.saturating_add(usize::try_from(k).unwrap_or(MOST)),
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

    /// Writes what has waited. Returns the page if it is in memory since that load.
    fn pass(&mut self, waiting: Waiting, to: &mut Vec<Access>) -> Option<u32> {
        let page = waiting.access.page.0;
        let state = self.pages.get(page as usize).copied().unwrap_or_default();
        let lives = waiting.access.is_reference() && state.resident && state.load == waiting.load;
        match waiting.written {
            true => {}
            false if lives => self.leave(page, to),
            false => to.push(waiting.access),
        }
        lives.then_some(page)
    }

    /// Writes everything. The order of `L` stays.
    fn pass_all(&mut self, to: &mut Vec<Access>) {
        let mut order = VecDeque::new();
        let mut place = |page: u32, load: u64| {
            order.push_back(Waiting {
                access: Access::reference(CanonPage(page), false),
                load,
                written: true,
            });
        };
        // What was written before comes first, for it lies before all that is written now.
        while let Some(&waiting) = self.loaded.front().filter(|w| w.written) {
            self.loaded.pop_front();
            if let Some(page) = self.pass(waiting, to) {
                place(page, waiting.load);
            }
        }
        while let Some((page, before)) = self.due.pop_front() {
            let state = &mut self.pages[page as usize];
            if state.due == before {
                state.due = 0;
                place(page, state.load);
                self.leave(page, to);
            }
        }
        while let Some(waiting) = self.loaded.pop_front() {
            if let Some(page) = self.pass(waiting, to) {
                place(page, waiting.load);
            }
        }
        self.loaded = order;
    }

    fn wait(&mut self, access: Access, to: &mut Vec<Access>) {
        self.loaded.push_back(Waiting {
            access,
            load: self.loads,
            written: false,
        });
        if self.loaded.len() > self.most {
            self.pass_all(to);
        }
    }

    /// A page is freed.
    fn free(&mut self, page: CanonPage, to: &mut Vec<Access>) {
        let at = page.index();
        let state = self.pages.get(at).copied().unwrap_or_default();
        if state.resident {
            if state.due != 0 {
                self.leave(page.0, to);
            }
            // What is not yet written is in order, loads before the frees that follow them.
            let waits = self
                .loaded
                .partition_point(|w| w.written || w.load < state.load);
            let waits = self.loaded.get_mut(waits);
            if let Some(load) = waits.filter(|w| w.access.page == page && w.load == state.load) {
                load.access = Access::reference(page, state.written);
            }
            self.lru.forget(page);
            self.resident -= 1;
            self.pages[at] = PageState::default();
        }
        self.wait(Access::free(page), to);
    }

    /// A page is replaced by the load with number `now`.
    fn replace(&mut self, page: u32, now: u64, to: &mut Vec<Access>) {
        let state = self.pages[page as usize];
        if state.due != 0 {
            // Its load lies before the last L: the touch is its own L.
            self.leave(page, to);
            // Where everything was written, the touch lies behind these.
            while let Some(&waiting) = self.loaded.front().filter(|w| w.written) {
                self.loaded.pop_front();
                if let Some(other) = self.pass(waiting, to) {
                    self.needs_touch(other, now);
                }
            }
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
            while let Some(waiting) = self.loaded.pop_front() {
                match self.pass(waiting, to) {
                    Some(other) if other == page => break,
                    Some(other) => self.needs_touch(other, now),
                    None => {}
                }
            }
        }
        self.pages[page as usize] = PageState::default();
    }
}

impl Reducer for Olr {
    fn reference(&mut self, access: Access, to: &mut Vec<Access>) {
        let page = access.page;
        if !access.is_reference() {
            self.free(page, to);
            return;
        }
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
        self.wait(Access::reference(page, false), to);
    }

    fn finish(&mut self, to: &mut Vec<Access>) {
        self.pass_all(to);
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

    /// Frees, and loads of pages that are freed, may wait without end. Where they are too many,
    /// all are written, and the result is as exact.
    #[test]
    fn what_waits_is_bounded_with_pages_that_are_freed() {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 20) % below
        };
        for k in 1..9u64 {
            let mut trace = Vec::new();
            for _ in 0..20_000 {
                let page = CanonPage(1 + next(4) as u32 * (1 + next(4) as u32));
                trace.push(match next(5) {
                    0 => Access::free(page),
                    _ => Access::reference(page, false),
                });
            }
            let mut olr = Olr::new(k);
            olr.most = k as usize + 3;
            let mut kept = Vec::new();
            let mut most = 0;
            for &access in &trace {
                olr.reference(access, &mut kept);
                most = most.max(olr.loaded.len());
            }
            olr.finish(&mut kept);
            assert_eq!(most, olr.most);
            for size in k..k + 10 {
                let misses = |accesses: &[Access]| {
                    let mut simulation = (crate::sim::policies::lru::ENTRY.simulate)(size);
                    simulation.references(accesses);
                    let counts = simulation.counts();
                    (counts.misses, counts.cold)
                };
                assert_eq!(misses(&kept), misses(&trace), "{k} {size}");
            }
            let references = |of: &[Access]| of.iter().filter(|a| a.is_reference()).count();
            assert!(references(&kept) < references(&trace));
        }
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
