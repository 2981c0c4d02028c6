//! Least recently used.

use crate::sim::{CurveSimulation, Engine, LruCurve, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "lru",
    about: "least recently used; exact curve of all sizes in one pass",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(Lru::default(), size)) },
    curve: Some(|| -> Box<dyn CurveSimulation> { Box::new(LruCurve::default()) }),
};

/// A list in order of last use, threaded through a table by page.
///
/// Needs eight bytes a page.
#[derive(Default)]
pub struct Lru {
    /// (towards the older, towards the newer); entry 0 is the list's head,
    /// since no page has number 0.
    links: Vec<(u32, u32)>,
}

impl Lru {
    fn unlink(&mut self, at: usize) {
        let (older, newer) = self.links[at];
        self.links[older as usize].1 = newer;
        self.links[newer as usize].0 = older;
    }

    fn link_newest(&mut self, at: usize) {
        let newest = self.links[0].0;
        self.links[at] = (newest, 0);
        self.links[newest as usize].1 = at as u32;
        self.links[0].0 = at as u32;
    }
}

impl Policy for Lru {
    fn hit(&mut self, page: CanonPage) {
        if self.links[0].0 != page.0 {
            self.unlink(page.index());
            self.link_newest(page.index());
        }
    }

    fn grow(&mut self, pages: usize) {
        self.links.resize(pages, (0, 0));
    }

    fn insert(&mut self, page: CanonPage) {
        self.link_newest(page.index());
    }

    fn victim(&mut self, _incoming: CanonPage) -> Option<CanonPage> {
        let oldest = self.links.first()?.1;
        if oldest == 0 {
            return None;
        }
        self.unlink(oldest as usize);
        Some(CanonPage(oldest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Counts;

    fn run(size: u64, pages: &[(u32, bool)]) -> Counts {
        let mut engine = Engine::new(Lru::default(), size);
        for &(page, write) in pages {
            engine.reference(CanonPage(page), write);
        }
        engine.counts()
    }

    #[test]
    fn a_cycle_one_page_too_large_always_misses() {
        let cycle: Vec<_> = (0..40).map(|i| (i % 4 + 1, false)).collect();
        assert_eq!(run(3, &cycle).misses, 40);
        assert_eq!(run(4, &cycle).misses, 4);
    }

    #[test]
    fn belady_s_sequence() {
        let pages: Vec<_> = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5]
            .into_iter()
            .map(|p| (p, false))
            .collect();
        assert_eq!(run(3, &pages).misses, 10);
        assert_eq!(run(4, &pages).misses, 8);
        assert_eq!(run(4, &pages).cold, 5);
    }

    #[test]
    fn dirty_pages_are_written_back_when_replaced() {
        let counts = run(
            2,
            &[(1, true), (2, false), (3, false), (1, false), (3, true)],
        );
        assert_eq!((counts.write_backs, counts.dirty_left), (1, 1));
        assert_eq!(counts.misses, 4);
    }
}
