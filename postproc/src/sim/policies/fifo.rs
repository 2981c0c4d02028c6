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
/// Needs four bytes a page in memory.
#[derive(Default)]
pub struct Fifo {
    queue: VecDeque<u32>,
}

impl Policy for Fifo {
    fn hit(&mut self, _page: CanonPage) {}

    fn victim(&mut self, _incoming: CanonPage) -> Option<CanonPage> {
        self.queue.pop_front().map(CanonPage)
    }

    fn insert(&mut self, page: CanonPage) {
        self.queue.push_back(page.0);
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
