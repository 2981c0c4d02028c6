//! CLOCK, or second chance.
//!
//! Corbató, "A paging experiment with the Multics system", MIT Project MAC,
//! MAC-M-384, 1968. The frames form a circle, and a hand moves around it. A page
//! whose bit is set loses the bit and stays. The first page whose bit is clear is
//! replaced, and the hand moves on to the next frame. If a page was freed, the next
//! page is loaded into its frame, wherever the hand is. If several were freed, the
//! frame that was freed last is used first.
//!
//! The paper's processor sets the bit at every reference, including the one that
//! loads the page: this is `clock-set`. Most simulators, libCacheSim among them, load
//! pages with the bit clear, so a single reference does not protect a page: this is
//! `clock`.

use crate::sim::{Engine, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "clock",
    about: "second chance with one bit, which is clear when a page is loaded",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(Clock::new(0), size)) },
    curve: None,
};

/// The registry's line of the variant.
pub const SET: PolicyEntry = PolicyEntry {
    id: "clock-set",
    about: "second chance with one bit, which is set when a page is loaded",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(Clock::new(1), size)) },
    curve: None,
};

/// A circle of frames.
///
/// Needs five bytes a page and four bytes a page in memory.
pub struct Clock {
    frames: Vec<u32>,
    bits: Vec<u8>,
    /// By page: the frame that it was loaded into last.
    frame_of: Vec<u32>,
    hand: usize,
    /// The victim's frame: the hand is there.
    empty: bool,
    /// Frames of pages that were freed.
    free: Vec<u32>,
    on_load: u8,
}

impl Clock {
    /// Pages are loaded with this bit.
    pub fn new(on_load: u8) -> Self {
        Clock {
            frames: Vec::new(),
            bits: Vec::new(),
            frame_of: Vec::new(),
            hand: 0,
            empty: false,
            free: Vec::new(),
            on_load,
        }
    }
}

impl Policy for Clock {
    fn grow(&mut self, pages: usize) {
        self.bits.resize(pages, 0);
        self.frame_of.resize(pages, 0);
    }

    #[inline]
    fn hit(&mut self, page: CanonPage) {
        self.bits[page.index()] = 1;
    }

    fn victim(&mut self, _incoming: CanonPage) -> Option<CanonPage> {
        self.empty = true;
        loop {
            let page = *self.frames.get(self.hand)?;
            if std::mem::take(&mut self.bits[page as usize]) == 0 {
                return Some(CanonPage(page));
            }
            self.hand += 1;
            if self.hand == self.frames.len() {
                self.hand = 0;
            }
        }
    }

    fn insert(&mut self, page: CanonPage) {
        self.bits[page.index()] = self.on_load;
        if std::mem::take(&mut self.empty) {
            self.frame_of[page.index()] = self.hand as u32;
            self.frames[self.hand] = page.0;
            self.hand += 1;
            if self.hand == self.frames.len() {
                self.hand = 0;
            }
        } else if let Some(frame) = self.free.pop() {
            self.frame_of[page.index()] = frame;
            self.frames[frame as usize] = page.0;
        } else {
            self.frame_of[page.index()] = self.frames.len() as u32;
            self.frames.push(page.0);
        }
    }

    fn forget(&mut self, page: CanonPage) {
        let frame = self.frame_of[page.index()];
        // The entry of a replaced page still has its old frame, which holds another page now.
        if self.frames[frame as usize] == page.0 {
            self.frames[frame as usize] = 0;
            self.free.push(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::testing::misses;

    #[test]
    fn a_reference_gives_a_second_chance() {
        // 1 stays because of its bit, and 2 is replaced.
        assert_eq!(misses(ENTRY, 2, &[1, 2, 1, 3, 1]), 3);
        assert_eq!(misses(ENTRY, 2, &[1, 2, 1, 3, 2]), 4);
    }

    #[test]
    fn the_bit_at_loading_matters() {
        // All bits are set: the oldest page is replaced, whether it was referenced again or not.
        assert_eq!(misses(SET, 2, &[1, 2, 1, 3, 1]), 4);
    }
}
