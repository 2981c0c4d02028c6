//! WSClock: the working set with a clock hand.
//!
//! Carr, Hennessy, "WSClock: a simple and effective algorithm for virtual memory
//! management", SOSP 1981. The hand goes round the frames. If a page's bit is set, the
//! page counts as used at this moment, and the bit is cleared. Any other page is replaced
//! if its last use was noticed longer ago than the working set's window τ. If a page was
//! freed, the next page is loaded into its frame.
//!
//! The paper leaves these points open, or uses information that a simulation lacks:
//!
//! - Time is counted in references of all processes together. τ is as many references as
//!   memory has pages.
//! - If a round finds no page that is old enough, the paper's load control suspends a
//!   process. Here the page whose last use was noticed longest ago is replaced. If there
//!   are several, it is the first one from the hand on.
//! - Dirty pages are replaced like other pages, because cleaning takes no time here.

use crate::sim::{Engine, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "wsclock",
    about: "working set with a clock hand; the window in references equals the memory in pages",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(WsClock::new(size), size)) },
    curve: None,
};

#[derive(Clone, Copy)]
struct Frame {
    page: u32,
    last_used: u64,
}

/// A circle of frames.
///
/// Needs five bytes a page and 16 bytes a page in memory.
pub struct WsClock {
    frames: Vec<Frame>,
    accessed: Vec<bool>,
    /// By page: the frame that it was loaded into last.
    frame_of: Vec<u32>,
    hand: usize,
    /// The victim's frame.
    empty: Option<usize>,
    /// Frames of pages that were freed; the last is used first.
    free: Vec<u32>,
    window: u64,
    /// References so far.
    now: u64,
}

impl WsClock {
    /// For a memory of `size` pages.
    pub fn new(size: u64) -> Self {
        WsClock {
            frames: Vec::new(),
            accessed: Vec::new(),
            frame_of: Vec::new(),
            hand: 0,
            empty: None,
            free: Vec::new(),
            window: size,
            now: 0,
        }
    }

    /// The frame to empty.
    fn choose(&mut self) -> usize {
        let mut oldest = (u64::MAX, self.hand);
        for _ in 0..self.frames.len() {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.frames.len();
            let frame = &mut self.frames[at];
            if std::mem::take(&mut self.accessed[frame.page as usize]) {
                frame.last_used = self.now;
            } else if self.now - frame.last_used > self.window {
                return at;
            }
            if frame.last_used < oldest.0 {
                oldest = (frame.last_used, at);
            }
        }
        self.hand = (oldest.1 + 1) % self.frames.len();
        oldest.1
    }
}

impl Policy for WsClock {
    fn grow(&mut self, pages: usize) {
        self.accessed.resize(pages, false);
        self.frame_of.resize(pages, 0);
    }

    #[inline]
    fn hit(&mut self, page: CanonPage) {
        self.now += 1;
        self.accessed[page.index()] = true;
    }

    fn victim(&mut self, _incoming: CanonPage) -> Option<CanonPage> {
        if self.frames.is_empty() {
            return None;
        }
        let at = self.choose();
        self.empty = Some(at);
        Some(CanonPage(self.frames[at].page))
    }

    fn insert(&mut self, page: CanonPage) {
        self.accessed[page.index()] = false;
        let frame = Frame {
            page: page.0,
            last_used: self.now,
        };
        let free = self
            .empty
            .take()
            .or_else(|| self.free.pop().map(|at| at as usize));
        let at = free.unwrap_or(self.frames.len());
        match self.frames.get_mut(at) {
            Some(old) => *old = frame,
            None => self.frames.push(frame),
        }
        self.frame_of[page.index()] = at as u32;
        self.now += 1;
    }

    fn forget(&mut self, page: CanonPage) {
        let at = self.frame_of[page.index()];
        // A page that was replaced has its old frame, where another page is now.
        if self.frames[at as usize].page == page.0 {
            self.frames[at as usize].page = 0;
            self.free.push(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::testing::misses;

    #[test]
    fn what_was_used_within_the_window_stays() {
        // 4 finds 1 accessed, and of 2 and 3, both young, 2 the older.
        assert_eq!(misses(ENTRY, 3, &[1, 2, 3, 1, 4, 1, 3]), 4);
        assert_eq!(misses(ENTRY, 3, &[1, 2, 3, 1, 4, 2]), 5);
        // After many references to 1 all others are old.
        assert_eq!(misses(ENTRY, 3, &[1, 2, 3, 1, 1, 1, 1, 4, 5, 1]), 5);
    }
}
