//! First in, first out.

use std::collections::VecDeque;

use crate::sim::{Engine, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "fifo",
    about: "first in, first out",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(Fifo::default(), size)) },
    curve: None,
};

/// Pages in order of loading; a hit changes nothing.
///
/// A page that is freed leaves a gap in the queue, so that nothing has to be moved.
///
/// Needs four bytes a page, and four to eight a page in memory.
#[derive(Default)]
pub struct Fifo {
    /// Pages, or [`GAP`].
    queue: VecDeque<u32>,
    /// The position of the queue's front, modulo 2^32.
    head: u32,
    /// By page: the position of its last loading.
    at: Vec<u32>,
    gaps: usize,
}

/// No page has this number.
const GAP: u32 = 0;

/// Gaps that are not worth closing.
const FEW_GAPS: usize = 64;

impl Fifo {
    fn close_gaps(&mut self) {
        self.queue.retain(|&page| page != GAP);
        for (i, &page) in (0..).zip(&self.queue) {
            self.at[page as usize] = self.head.wrapping_add(i);
        }
        self.gaps = 0;
    }
}

impl Policy for Fifo {
    fn grow(&mut self, pages: usize) {
        self.at.resize(pages, 0);
    }

    fn hit(&mut self, _page: CanonPage) {}

    fn victim(&mut self, _incoming: CanonPage) -> Option<CanonPage> {
        loop {
            let page = self.queue.pop_front()?;
            self.head = self.head.wrapping_add(1);
            if page != GAP {
                return Some(CanonPage(page));
            }
            self.gaps -= 1;
        }
    }

    fn insert(&mut self, page: CanonPage) {
        self.at[page.index()] = self.head.wrapping_add(self.queue.len() as u32);
        self.queue.push_back(page.0);
    }

    fn forget(&mut self, page: CanonPage) {
        let since = self.at[page.index()].wrapping_sub(self.head);
        // The entry of a replaced page still has its old position, which holds another page now.
        match self.queue.get_mut(since as usize) {
            Some(found) if *found == page.0 => *found = GAP,
            _ => return,
        }
        self.gaps += 1;
        if self.gaps > self.queue.len() / 2 + FEW_GAPS {
            self.close_gaps();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::testing::misses;

    /// Belady, Nelson, Shedler, "An anomaly in space-time characteristics of
    /// certain programs running in a paging machine", CACM 12(6), 1969.
    #[test]
    fn belady_s_anomaly() {
        let pages = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
        assert_eq!(misses(ENTRY, 3, &pages), 9);
        assert_eq!(misses(ENTRY, 4, &pages), 10);
    }
}
