//! The segmented queue: first a FIFO segment, then an LRU segment.
//!
//! Turner, Levy, "Segmented FIFO page replacement", SIGMETRICS 1981. Pages are
//! loaded into the primary segment, a FIFO queue of mapped pages, in which hits
//! have no effect. Pages that leave it enter the secondary segment, an LRU list of
//! pages that are unmapped and still in memory. A reference there faults without
//! input, and moves the page back to the primary segment; here it counts as a hit.
//! The oldest page of the secondary segment is replaced.
//!
//! The primary segment has half of memory, rounded up. (VMS and the paper vary the
//! share. With one primary page or none, the policy is LRU; with all pages in the
//! primary segment, it is FIFO.) If a page of the primary segment was freed, the next page
//! that is loaded or moved back takes its place, and no page leaves the segment.

use crate::sim::lists::Lists;
use crate::sim::{Engine, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "segq",
    about: "a FIFO segment, then an LRU segment (50 % each)",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(SegQ::new(size), size)) },
    curve: None,
};

const PRIMARY: usize = 0;
const SECONDARY: usize = 1;

/// The segments.
///
/// Needs 12 bytes a page.
pub struct SegQ {
    lists: Lists<2>,
    primary_size: usize,
}

impl SegQ {
    /// For a memory of `size` pages.
    pub fn new(size: u64) -> Self {
        SegQ {
            lists: Lists::default(),
            primary_size: size.div_ceil(2) as usize,
        }
    }

    #[inline]
    fn load(&mut self, page: CanonPage) {
        if self.lists.len(PRIMARY) == self.primary_size {
            if let Some(oldest) = self.lists.pop(PRIMARY) {
                self.lists.push(SECONDARY, oldest);
            }
        }
        self.lists.push(PRIMARY, page);
    }
}

impl Policy for SegQ {
    fn grow(&mut self, pages: usize) {
        self.lists.grow(pages);
    }

    #[inline]
    fn hit(&mut self, page: CanonPage) {
        if self.lists.list_of(page) == Some(SECONDARY) {
            self.lists.remove(page);
            self.load(page);
        }
    }

    fn victim(&mut self, _incoming: CanonPage) -> Option<CanonPage> {
        self.lists
            .pop(SECONDARY)
            .or_else(|| self.lists.pop(PRIMARY))
    }

    fn insert(&mut self, page: CanonPage) {
        self.load(page);
    }

    fn forget(&mut self, page: CanonPage) {
        self.lists.remove(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::testing::misses;

    #[test]
    fn a_hit_in_front_is_not_seen_and_one_behind_is() {
        // 1 is referenced in the primary segment, leaves it, and is replaced.
        assert_eq!(misses(ENTRY, 2, &[1, 1, 2, 3, 1]), 4);
        // 1 is referenced in the secondary segment, so 2 is replaced.
        assert_eq!(misses(ENTRY, 2, &[1, 2, 1, 3, 1]), 3);
    }
}
