//! Safely allowed drop.
//!
//! Kaplan, Smaragdakis, Wilson, "Trace reduction for virtual memory
//! simulations", SIGMETRICS 1999; "Flexible reference trace reduction for VM
//! simulations", ACM TOMACS 13(1), 2003.
//!
//! Of three references to a page the middle one is dropped if fewer than `k`
//! other pages are referenced between the first and the third. In a memory of
//! `k` pages and more, neither LRU nor OPT replaces the page in between, and what
//! they know of it at the third reference is the same: their misses stay as they
//! are. What a dropped reference wrote is written by the third, so that
//! write-backs stay, too.
//!
//! # How
//!
//! The number of pages referenced since a moment is that of pages whose *last*
//! reference is later, so that it does not matter what was dropped before. It is
//! smaller than `k` if the last reference to the `k`th other page in LRU order
//! lies before that moment. A reference that may yet be dropped is the last of
//! its page, and what comes behind it waits: since its page's reference before,
//! fewer than `k` others were referenced, of each of which two references are
//! left at most.
//!
//! # Pages that are freed
//!
//! A page that is freed leaves memory, and what is loaded next replaces nothing. Let the
//! middle one of three references to `p` be dropped, and let `q` be another page that was
//! referenced last between the first and the third, and is referenced again. The dropped
//! reference makes a difference to `q` only up to the third. Up to there fewer than `k`
//! pages besides `p` were referenced since `q`'s last reference, freed ones included, so
//! that a memory of `k` pages has replaced neither `p` nor `q`. So misses and write-backs
//! stay for LRU; OPT's misses do not depend on freeing at all. That a page was freed is
//! left in its place among the references.
//!
//! Where the number of a freed page is given to another page, the two count as one among
//! those referenced since a moment. That is enough: never more pages live at one time than
//! there are numbers, and a page that is loaded takes a free frame if there is one.

use super::recent::Recent;
use super::{MethodEntry, Reducer};
use crate::sim::Access;
use crate::units::CanonPage;

/// The registry's line.
pub(super) const ENTRY: MethodEntry = MethodEntry {
    id: "sad",
    about: "safely allowed drop: exact for LRU and OPT from k pages on",
    make: |k| Box::new(Sad::new(k)),
    valid_from_times: 1,
    exact_for: &["lru", "opt"],
    write_backs: true,
    source: "Kaplan, Smaragdakis, Wilson, SIGMETRICS 1999: exact",
};

/// No entry.
const NONE: u32 = u32::MAX;

/// A reference that waits.
#[derive(Clone, Copy)]
struct Waiting {
    access: Access,
    before: u32,
    behind: u32,
}

#[derive(Clone, Copy)]
struct PageState {
    /// Position of the reference before the last that was not dropped, plus one;
    /// 0 if there was none.
    first: u64,
    /// Position of the last reference, plus one; 0 if there was none.
    last: u64,
    /// The last reference, if it waits.
    waiting: u32,
    /// It was freed since its last reference. Another page may get its number.
    freed: bool,
}

const UNSEEN: PageState = PageState {
    first: 0,
    last: 0,
    waiting: NONE,
    freed: false,
};

/// Needs 32 bytes a page.
pub(super) struct Sad {
    recent: Recent,
    pages: Vec<PageState>,
    /// References in order, as a list in a table; entry 0 is its head.
    waiting: Vec<Waiting>,
    free: Vec<u32>,
    position: u64,
}

impl Sad {
    pub fn new(k: u64) -> Self {
        let head = Waiting {
            access: Access::free(CanonPage(0)),
            before: 0,
            behind: 0,
        };
        Sad {
            // The k others that count, and the page itself.
            recent: Recent::new(k.saturating_add(1)),
            pages: Vec::new(),
            waiting: vec![head],
            free: Vec::new(),
            position: 0,
        }
    }

    /// Whether fewer than `k` others were referenced since the page's reference
    /// before its last.
    fn is_open(&self, page: u32) -> bool {
        let state = self.pages[page as usize];
        state.first != 0
            && self
                .recent
                .last_but(page)
                .is_none_or(|other| self.pages[other as usize].last < state.first)
    }

    fn unlink(&mut self, at: u32) -> Access {
        let entry = self.waiting[at as usize];
        self.waiting[entry.before as usize].behind = entry.behind;
        self.waiting[entry.behind as usize].before = entry.before;
        self.free.push(at);
        entry.access
    }

    fn append(&mut self, access: Access) -> u32 {
        let last = self.waiting[0].before;
        let entry = Waiting {
            access,
            before: last,
            behind: 0,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.waiting[at as usize] = entry;
                at
            }
            None => {
                self.waiting.push(entry);
                self.waiting.len() as u32 - 1
            }
        };
        self.waiting[last as usize].behind = at;
        self.waiting[0].before = at;
        at
    }

    /// Passes on the references that no longer wait.
    fn release(&mut self, to: &mut Vec<Access>) {
        loop {
            let at = self.waiting[0].behind;
            if at == 0 {
                return;
            }
            let page = self.waiting[at as usize].access.page;
            let is_last = self.pages[page.index()].waiting == at;
            if is_last && self.is_open(page.0) {
                return;
            }
            if is_last {
                self.pages[page.index()].waiting = NONE;
            }
            to.push(self.unlink(at));
        }
    }
}

impl Reducer for Sad {
    fn reference(&mut self, mut access: Access, to: &mut Vec<Access>) {
        let at = access.page.index();
        if at >= self.pages.len() {
            self.pages.resize((at + 1).next_power_of_two(), UNSEEN);
        }
        if !access.is_reference() {
            // No third reference comes. The page still counts among those that were
            // referenced last: it was in memory then.
            self.pages[at].waiting = NONE;
            self.pages[at].freed = true;
            self.append(access);
            self.release(to);
            return;
        }
        self.position += 1;
        let waiting = self.pages[at].waiting;
        if waiting != NONE && self.is_open(access.page.0) {
            let written = access.writes() | self.unlink(waiting).writes();
            access = Access::reference(access.page, written);
        } else {
            let state = &mut self.pages[at];
            let freed = std::mem::take(&mut state.freed);
            state.first = if freed { 0 } else { state.last };
        }
        let waiting = self.append(access);
        self.pages[at].last = self.position;
        self.pages[at].waiting = waiting;
        self.recent.touch(access.page.0);
        self.release(to);
    }

    fn finish(&mut self, to: &mut Vec<Access>) {
        while self.waiting[0].behind != 0 {
            let at = self.waiting[0].behind;
            to.push(self.unlink(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::testing::reduced;

    #[test]
    fn the_middle_one_of_three_goes() {
        assert_eq!(reduced(ENTRY, 1, "a a a a"), "a a");
        assert_eq!(reduced(ENTRY, 2, "a b a b a"), "a b b a");
        // Two others between the first and the third are too many for k = 2.
        assert_eq!(reduced(ENTRY, 2, "a b a c a"), "a b a c a");
        assert_eq!(reduced(ENTRY, 3, "a b a c a"), "a b c a");
    }

    #[test]
    fn what_was_dropped_was_written() {
        assert_eq!(reduced(ENTRY, 2, "a A b a"), "a b A");
    }

    /// A page that rests holds up what follows, but only a few of each page.
    #[test]
    fn what_waits_is_bounded_by_k() {
        let k = 8;
        let mut sad = Sad::new(k);
        let mut kept = Vec::new();
        for i in 0..100_000u32 {
            let page = CanonPage(if i < 2 { 1 } else { 2 + i % 7 * (i % 5) % 7 });
            sad.reference(Access::reference(page, false), &mut kept);
        }
        assert!(kept.len() < 3, "page 1 may still be referenced again");
        assert!(
            sad.waiting.len() as u64 <= 2 * k + 2,
            "{}",
            sad.waiting.len()
        );
    }
}
