//! OPT: the optimal policy, computed without looking ahead.
//!
//! Belady, "A study of replacement algorithms for a virtual-storage computer",
//! IBM Systems Journal 5(2), 1966: MIN replaces the page whose next use is
//! farthest away. The paper does not define the order among pages that are never used
//! again. Here the one that was used longest ago is replaced first. This decides which
//! pages are written back, not how many misses there are.
//!
//! # Why the future is not needed
//!
//! Whether a reference hits under MIN is known at the reference itself. A page that
//! is kept from one use to the next takes up a frame in between; the page that is
//! used at a moment takes up a frame at that moment. So at most `size - 1` pages can
//! be kept across a moment. MIN considers the intervals in order of their ends, earliest
//! first, and keeps each one that still fits. This is the order in which intervals end in
//! the trace. (OPTgen has the same view: Jain, Lin, "Back to the future: leveraging
//! Belady's algorithm for improved cache replacement", ISCA 2016.)
//!
//! Whether an interval fits is found with `size - 1` *keepers*, which stand for frames. Each
//! keeper has the moment at which it was last busy: the reference before the one that
//! ended its interval. An interval is assigned to a keeper that was last busy before the
//! interval began; if there are several, to the one that was busy latest. If there is no
//! such keeper, the interval does not fit. This choice wastes the least time, so an
//! interval finds a keeper if any assignment has keepers for all intervals. An interval
//! without a reference in between needs no keeper.
//!
//! The keepers' moments are a set of positions. When the window of positions is
//! used up, the positions that are still needed are moved together at its beginning.
//!
//! # Pages that are freed
//!
//! A page that is freed is never used again, so MIN replaces it before any page that is
//! used again. Here it is also replaced before pages that stay to the end. Freeing does not
//! change misses, but it changes write-backs: a dirty page that is replaced before it is
//! freed is written back, and one that is freed first is not. Which of the two happens
//! depends on intervals that end after the freeing, which a single pass does not know. So
//! write-backs are not given if a dirty page was freed.

use crate::sim::positions::Positions;
use crate::sim::{Access, Counts, CurveSimulation, Kind, OptCurve, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "opt",
    about: "Belady's MIN: the fewest misses possible; exact curve of all sizes in one pass",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Opt::new(size)) },
    curve: Some(|| -> Box<dyn CurveSimulation> { Box::new(OptCurve::default()) }),
};

/// Positions of the first window.
const FIRST_WINDOW: usize = 1 << 14;

#[derive(Clone, Copy, Default)]
struct PageState {
    /// Position of the last reference, plus one; 0 if there was none.
    last: u32,
    /// Whether the page is dirty, if it is still in memory.
    dirty: bool,
}

/// Simulates OPT; see the module's description.
///
/// Takes 8 bytes a page, and up to 17 a page for the window.
pub struct Opt {
    /// The moments of keepers that have had an interval.
    busy_until: Positions,
    /// Keepers that had none.
    unused: u64,
    pages: Vec<PageState>,
    /// The page that was referenced at a position.
    owner: Vec<u32>,
    /// The next position.
    tail: usize,
    write_backs: u64,
    /// A dirty page was freed.
    unknown: bool,
    counts: Counts,
}

impl Opt {
    /// Empty memory of `size` pages; a size of 0 counts as 1.
    pub fn new(size: u64) -> Self {
        let size = size.max(1);
        Opt {
            busy_until: Positions::new(FIRST_WINDOW),
            unused: size - 1,
            pages: Vec::new(),
            owner: vec![0; FIRST_WINDOW],
            tail: 0,
            write_backs: 0,
            unknown: false,
            counts: Counts {
                size_pages: size,
                ..Counts::default()
            },
        }
    }

    /// One reference.
    #[inline]
    pub fn reference(&mut self, page: CanonPage, write: bool) {
        let at = page.index();
        if at >= self.pages.len() {
            self.pages
                .resize((at + 1).next_power_of_two(), PageState::default());
        }
        if self.tail == self.owner.len() {
            self.compact();
        }
        self.counts.references += 1;
        let state = self.pages[at];
        let last = state.last as usize;
        let mut dirty = write;
        if last == 0 {
            self.counts.misses += 1;
            self.counts.cold += 1;
        } else if last == self.tail || self.keep(last - 1) {
            dirty |= state.dirty;
        } else {
            self.counts.misses += 1;
            self.write_backs += u64::from(state.dirty);
        }
        self.owner[self.tail] = page.0;
        self.tail += 1;
        self.pages[at] = PageState {
            last: self.tail as u32,
            dirty,
        };
    }

    /// A page was freed; nothing happens if it was never referenced.
    pub fn free(&mut self, page: CanonPage) {
        if let Some(state) = self.pages.get_mut(page.index()) {
            self.unknown |= std::mem::take(state).dirty;
        }
    }

    /// Finds a keeper for an interval from a position to the present reference.
    #[inline]
    fn keep(&mut self, since: usize) -> bool {
        if let Some(keeper) = self.busy_until.at_or_before(since) {
            self.busy_until.remove(keeper);
        } else if self.unused > 0 {
            self.unused -= 1;
        } else {
            return false;
        }
        self.busy_until.insert(self.tail - 1);
        true
    }

    /// Whether a position is some page's last reference.
    fn is_last(&self, position: usize) -> bool {
        self.pages[self.owner[position] as usize].last as usize == position + 1
    }

    /// Moves the positions that are needed to the window's beginning, in order;
    /// makes the window larger if they fill more than half of it.
    fn compact(&mut self) {
        let mut to = 0;
        let mut moved = Vec::new();
        for position in 0..self.tail {
            let last = self.is_last(position);
            let busy = self.busy_until.contains(position);
            if busy {
                moved.push(to);
            }
            if last || busy {
                let page = self.owner[position];
                self.owner[to] = page;
                to += 1;
                if last {
                    self.pages[page as usize].last = to as u32;
                }
            }
        }
        let mut window = self.owner.len();
        while 2 * to > window {
            window *= 2;
        }
        self.owner.resize(window, 0);
        self.busy_until = Positions::new(window);
        for position in moved {
            self.busy_until.insert(position);
        }
        self.tail = to;
    }
}

impl Simulation for Opt {
    fn references(&mut self, batch: &[Access]) {
        for access in batch {
            match access.kind {
                Kind::Free => self.free(access.page),
                kind => self.reference(access.page, kind == Kind::Write),
            }
        }
    }

    fn counts(&self) -> Counts {
        let mut counts = self.counts;
        let mut write_backs = self.write_backs;
        // The pages that are kept to the end: as if all pages were used again, and those that
        // were used last came first.
        let mut busy_until = self.busy_until.clone();
        let mut unused = self.unused;
        for position in (0..self.tail).rev().filter(|&at| self.is_last(at)) {
            let kept = if position + 1 == self.tail {
                true
            } else if let Some(keeper) = busy_until.at_or_before(position) {
                busy_until.remove(keeper);
                true
            } else {
                let kept = unused > 0;
                unused -= u64::from(kept);
                kept
            };
            if self.pages[self.owner[position] as usize].dirty {
                if kept {
                    counts.dirty_left += 1;
                } else {
                    write_backs += 1;
                }
            }
        }
        counts.write_backs = (!self.unknown).then_some(write_backs);
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::testing::misses;

    #[test]
    fn belady_s_sequence() {
        let pages = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
        assert_eq!(misses(ENTRY, 3, &pages), 7);
        assert_eq!(misses(ENTRY, 4, &pages), 6);
        assert_eq!(misses(ENTRY, 1, &[1, 1, 2, 2, 1]), 3);
    }
}
