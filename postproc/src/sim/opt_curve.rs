//! The exact OPT curve of all sizes in one pass, without looking ahead, in a time
//! that grows with the logarithm of the number of pages.
//!
//! For one size, [`super::policies::opt`] has a set of positions, one for each
//! keeper that has had an interval: the moment at which the keeper was last busy. An
//! interval that begins at `p` removes the largest position up to `p` from the
//! set, and adds the present. If there is no such position, a keeper is used that had
//! no interval yet. If there is no such keeper either, the reference misses.
//!
//! The set of one size is that of the next smaller size, plus one position. (At the
//! beginning all sets are empty; a keeper without an interval counts as a position
//! before all others. Let two sets differ in `x`. Either the larger one removes the
//! same position as the smaller one, and they still differ in `x`. Or the larger one
//! removes `x`, and then they differ in the position that the smaller one removed. Or
//! the smaller one finds no position and the larger one finds `x`, and then they
//! differ in the present.) So all sets are one set of positions with ranks. The rank
//! of a position is the smallest size whose set contains it. A reference hits from
//! the least rank among the positions up to `p` on. Following the ranks directly would
//! be slow, because the ranks of many positions up to `p` change at a reference.
//!
//! It is not necessary. Let each rank have a *marker*: the position that the rank got
//! when it was last given to the present. A reference moves only one marker. From its
//! marker, a rank can only have moved back in time. Its present position is found like
//! this: going back in time, ranks are picked up at their markers, and at each position
//! of the set the largest rank that was picked up stays. (When a position is removed,
//! its rank moves to the next position before it; there the larger of the two ranks
//! stays, and the other one moves on.) The rank that moves on at the end is the least
//! one, and stays nowhere. So nothing else changes when its marker is moved to the
//! present.
//!
//! The distance is the least rank up to `p`. Up to any position, there are never fewer
//! positions of the set than markers. If there are as many, the ranks up to there are
//! those of the markers up to there, because no rank is carried across. Let `e` be the
//! first position from `p` on for which this holds. Across each position before `e`,
//! from `p` on, some rank is carried. So the least rank up to `e`, which stays only
//! where it is alone, does not stay at a position after `p`. Hence the distance is the
//! least rank whose marker lies up to `e`.
//!
//! Both searches take logarithmic time: [`super::balance`], [`super::minima`]. This
//! bound, and the insight that one marker for each size suffices, are from the Critical
//! Stack Algorithm: Bilardi, Ekanadham, Pattnaik, "Optimal on-line computation of stack
//! distances for MIN and OPT", Computing Frontiers 2017. With a set of positions in
//! place of the pages in the order of their use, first references need no work.
//!
//! A page that is freed ends no interval, so freeing changes no distance. Write-backs are
//! not given then (see [`super::policies::opt`]).
//!
//! At the end, pages are treated as OPT for one size treats them: as if all were used
//! again, the newest first.

use super::balance::{Balance, Moves};
use super::curve::Curve;
use super::minima::Minima;
use super::positions::Positions;
use super::tally::{CLEAN, Tally};
use super::{Access, CurveSimulation, Kind};
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

const NEVER: PageState = PageState {
    last: 0,
    dirty_from: CLEAN,
};

/// Computes the curve; see the module's description.
///
/// Takes 29 bytes a page, and up to 12 a page for the window.
pub struct OptCurve {
    keepers: Keepers,
    pages: Vec<PageState>,
    tally: Tally,
    /// A dirty page was freed.
    unknown: bool,
}

/// The keepers' sets of all sizes.
#[derive(Clone)]
struct Keepers {
    /// The positions that are in any of the sets.
    busy_until: Positions,
    /// These, and those of markers.
    balance: Balance,
    /// The markers' positions, by rank: size less one.
    markers: Minima,
    /// The largest rank that has a marker.
    largest: usize,
    /// The next position.
    tail: usize,
    window: usize,
}

impl Keepers {
    /// A reference to a page that was last referenced at a position. Returns the least size,
    /// less one, in which the reference hits.
    #[inline]
    fn again(&mut self, since: usize) -> u32 {
        let now = self.tail - 1;
        if since == now {
            // Nothing in between: no keeper is needed.
            return 0;
        }
        let rank = match self.busy_until.at_or_before(since) {
            Some(keeper) => {
                // In the end, they are always even.
                let even = self.balance.even(since).unwrap_or(now);
                let rank = self.markers.first_upto(even as u32).unwrap_or(0);
                let marker = self.markers.get(rank) as usize;
                self.busy_until.remove(keeper);
                self.balance.remove(keeper, marker);
                rank
            }
            None => {
                self.largest += 1;
                self.largest
            }
        };
        self.busy_until.insert(now);
        self.balance.add(now);
        self.markers.set(rank, now as u32);
        rank as u32
    }

    /// Moves all positions to the window's beginning, in order; makes the window larger if
    /// they fill more than a third of it.
    #[cold]
    fn compact(&mut self, pages: &mut [PageState]) {
        let referenced = |page: &&PageState| page.last != 0;
        let lasts = pages.iter().filter(referenced);
        let lasts = lasts.map(|page| page.last as usize - 1);
        let kept = (0..self.tail).filter(|&at| self.balance.contains(at) != (false, false));
        let moves = Moves::new(self.window, lasts.chain(kept));
        for page in pages.iter_mut().filter(|page| page.last != 0) {
            page.last = moves.to(page.last as usize - 1) as u32 + 1;
        }
        self.markers.map(|at| moves.to(at as usize) as u32);
        self.balance = self.balance.compacted(&moves);
        self.busy_until = Positions::new(moves.window);
        for at in (0..moves.used).filter(|&at| self.balance.contains(at).0) {
            self.busy_until.insert(at);
        }
        self.tail = moves.used;
        self.window = moves.window;
    }
}

impl Default for OptCurve {
    fn default() -> Self {
        OptCurve {
            keepers: Keepers {
                busy_until: Positions::new(FIRST_WINDOW),
                balance: Balance::new(FIRST_WINDOW),
                markers: Minima::default(),
                largest: 0,
                tail: 0,
                window: FIRST_WINDOW,
            },
            pages: Vec::new(),
            tally: Tally::default(),
            unknown: false,
        }
    }
}

impl OptCurve {
    /// One reference.
    #[inline]
    pub fn reference(&mut self, page: CanonPage, write: bool) {
        let at = page.index();
        if at >= self.pages.len() {
            self.pages.resize((at + 1).next_power_of_two(), NEVER);
        }
        if self.keepers.tail == self.keepers.window {
            self.keepers.compact(&mut self.pages);
        }
        let state = self.pages[at];
        let mut dirty_from = state.dirty_from;
        if state.last == 0 {
            self.tally.first();
        } else {
            let distance = self.keepers.again(state.last as usize - 1);
            dirty_from = self.tally.again(distance, dirty_from);
        }
        self.keepers.tail += 1;
        self.pages[at] = PageState {
            last: self.keepers.tail as u32,
            dirty_from: if write { 0 } else { dirty_from },
        };
    }
}

impl OptCurve {
    /// A page was freed; nothing happens if it was never referenced.
    pub fn free(&mut self, page: CanonPage) {
        let Some(state) = self.pages.get_mut(page.index()) else {
            return;
        };
        let before = std::mem::replace(state, NEVER);
        if before.last != 0 {
            self.unknown |= before.dirty_from != CLEAN;
            self.tally.freed_anywhere();
        }
    }
}

impl CurveSimulation for OptCurve {
    fn references(&mut self, batch: &[Access]) {
        for access in batch {
            match access.kind {
                Kind::Free => self.free(access.page),
                kind => self.reference(access.page, kind == Kind::Write),
            }
        }
    }

    fn curve(&self) -> Curve {
        let mut keepers = self.keepers.clone();
        let referenced = |page: &&PageState| page.last != 0;
        let mut pages: Vec<PageState> = self.pages.iter().filter(referenced).copied().collect();
        pages.sort_unstable_by_key(|page| std::cmp::Reverse(page.last));
        let mut left = Vec::with_capacity(pages.len());
        for at in 0..pages.len() {
            if keepers.tail == keepers.window {
                keepers.compact(&mut pages);
            }
            let distance = keepers.again(pages[at].last as usize - 1);
            keepers.tail += 1;
            pages[at].last = keepers.tail as u32;
            left.push((distance, pages[at].dirty_from));
        }
        let mut curve = self.tally.curve(left);
        if self.unknown {
            curve.write_backs = None;
        }
        curve
    }
}
