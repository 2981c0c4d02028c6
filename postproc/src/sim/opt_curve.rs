//! The exact OPT curve of all sizes in one pass, without looking ahead.
//!
//! For one size, [`super::policies::opt`] has a set of positions, one for each
//! keeper that has had an interval: the moment at which it was last busy. An
//! interval that begins at `p` takes the largest position up to `p` out of the
//! set, and puts the present in; if there is none, a keeper is used that had no
//! interval yet, and if there is none of those, the reference misses.
//!
//! The set of one size is that of the next smaller size and one position more:
//! the position of *rank* `i` is in the sets of the sizes above `i`. (At the
//! beginning all sets are empty, keepers without an interval counting as a
//! position before all others. If two sets differ in `x`, the larger one takes
//! out the same as the smaller one, and they still differ in `x`; or it takes
//! out `x`, and then they differ in what the smaller one took out; or the smaller
//! one finds nothing and the larger one `x`, and then they differ in the
//! present.) So all sets together are one, of positions with ranks, and the
//! distance of a reference is found and followed like this:
//!
//! - the position that the largest set takes out is the last one up to `p`; its
//!   rank is carried on;
//! - going back from there, at each position of a rank less than the carried one
//!   the two are exchanged: that is a position which sets of fewer sizes take
//!   out;
//! - the rank carried at the end is the least there was. The present gets it, and
//!   the sizes above it hit.
//!
//! Positions are searched by ranks in a tree of minima. What is exchanged is
//! mostly few; in the worst case all ranks are. This is the stack of Mattson et
//! al. 1970 with its priorities, in another order. Equal results and a bound for
//! the worst case: Bilardi, Ekanadham, Pattnaik, "Optimal on-line computation of
//! stack distances for MIN and OPT", Computing Frontiers 2017.
//!
//! Which pages are left at the end is settled as OPT for one size does: as if all
//! were used again, the newest first.

use super::curve::Curve;
use super::ranks::{NONE, Ranks};
use super::tally::{CLEAN, Tally};
use super::{Access, CurveSimulation};
use crate::units::CanonPage;

/// Positions of the first window.
const FIRST_WINDOW: usize = 1 << 14;

#[derive(Clone, Copy)]
struct PageState {
    /// Position of the last reference, plus one; 0 if there was none.
    last: u32,
    /// The smallest size, less one, in which the page is dirty, or [`CLEAN`].
    dirty_from: u32,
}

/// Follows references; see the module's description.
///
/// Needs 24 bytes a page and up to 34 a page for the window.
pub struct OptCurve {
    keepers: Keepers,
    /// The page that was referenced at a position.
    owner: Vec<u32>,
    pages: Vec<PageState>,
    /// The next position.
    tail: usize,
    tally: Tally,
}

/// The keepers' sets of all sizes.
#[derive(Clone)]
struct Keepers {
    ranks: Ranks,
    /// The largest rank.
    largest: u32,
}

impl Keepers {
    /// Takes positions up to `since` out of the sets; gives the least size, less
    /// one, in which there was one, the rank of what is to be put in.
    #[inline]
    fn take(&mut self, since: usize) -> u32 {
        let Some(mut at) = self.ranks.last_below(since + 1, NONE) else {
            self.largest += 1;
            return self.largest;
        };
        let mut carried = self.ranks.get(at);
        self.ranks.set(at, NONE);
        while let Some(before) = self.ranks.last_below(at, carried) {
            let rank = self.ranks.get(before);
            self.ranks.set(before, carried);
            (at, carried) = (before, rank);
        }
        carried
    }
}

impl Default for OptCurve {
    fn default() -> Self {
        OptCurve {
            keepers: Keepers {
                ranks: Ranks::new(FIRST_WINDOW),
                largest: 0,
            },
            owner: vec![0; FIRST_WINDOW],
            pages: Vec::new(),
            tail: 0,
            tally: Tally::default(),
        }
    }
}

impl OptCurve {
    /// One reference.
    #[inline]
    pub fn reference(&mut self, page: CanonPage, write: bool) {
        let at = page.index();
        if at >= self.pages.len() {
            let none = PageState {
                last: 0,
                dirty_from: CLEAN,
            };
            self.pages.resize((at + 1).next_power_of_two(), none);
        }
        if self.tail == self.owner.len() {
            self.compact();
        }
        let state = self.pages[at];
        let last = state.last as usize;
        let mut dirty_from = state.dirty_from;
        if last == 0 {
            self.tally.first();
        } else if last == self.tail {
            // Nothing in between: no keeper is needed.
            dirty_from = self.tally.again(0, dirty_from);
        } else {
            let distance = self.keepers.take(last - 1);
            self.keepers.ranks.set(self.tail - 1, distance);
            dirty_from = self.tally.again(distance, dirty_from);
        }
        self.owner[self.tail] = page.0;
        self.tail += 1;
        self.pages[at] = PageState {
            last: self.tail as u32,
            dirty_from: if write { 0 } else { dirty_from },
        };
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
            let rank = self.keepers.ranks.get(position);
            if rank != NONE {
                moved.push((to, rank));
            }
            if last || rank != NONE {
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
        self.keepers.ranks = Ranks::new(window);
        for (position, rank) in moved {
            self.keepers.ranks.set(position, rank);
        }
        self.tail = to;
    }
}

impl CurveSimulation for OptCurve {
    fn references(&mut self, batch: &[Access]) {
        for access in batch {
            self.reference(access.page, access.write);
        }
    }

    fn curve(&self) -> Curve {
        let mut keepers = self.keepers.clone();
        let newest_first = (0..self.tail).rev().filter(|&at| self.is_last(at));
        self.tally.curve(newest_first.map(|at| {
            let distance = match at + 1 == self.tail {
                true => 0,
                false => keepers.take(at),
            };
            let page = &self.pages[self.owner[at] as usize];
            (distance, page.dirty_from)
        }))
    }
}
