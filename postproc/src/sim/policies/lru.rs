//! Least recently used.

use crate::sim::{CurveSimulation, Engine, LruChunks, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "lru",
    about: "least recently used; exact curve of all sizes in one pass",
    simulate: |size| -> Box<dyn Simulation> { Box::new(Engine::new(Lru::default(), size)) },
    curve: Some(|| -> Box<dyn CurveSimulation> { Box::new(LruChunks::default()) }),
};

/// A queue of uses: each page occurs as often as it was used. A use that is not its page's
/// last is skipped when it reaches the front. So a reference waits for one memory access, that
/// to its page's entry. With a linked list in order of last use, it would wait for three. The
/// oldest uses are examined in batches, without a branch on the result, so no examination
/// waits for another. If a use is its page's last when it is examined, it is nearly always
/// still the last when the page is replaced.
///
/// Takes four bytes a page, and 8 to 32 a page in memory.
pub struct Lru {
    /// By page: the position of its last use, modulo 2^32.
    last: Vec<u32>,
    /// Pages by position modulo its length, a power of two.
    uses: Vec<u32>,
    /// The oldest position that `uses` holds, and the next one.
    head: u32,
    tail: u32,
    /// Of the uses before `head`, those that were their page's last when they were examined:
    /// position and page. The first `taken` of them have been used.
    oldest: [(u32, u32); AT_ONCE],
    taken: usize,
    found: usize,
}

/// Number of uses in a batch that is examined together.
const AT_ONCE: usize = 64;

impl Default for Lru {
    fn default() -> Self {
        Lru {
            last: Vec::new(),
            uses: Vec::new(),
            head: 0,
            tail: 0,
            oldest: [(0, 0); AT_ONCE],
            taken: 0,
            found: 0,
        }
    }
}

/// Initial capacity for uses.
const FIRST: usize = 1 << 10;

impl Lru {
    #[inline]
    fn at(&self, position: u32) -> usize {
        position as usize & (self.uses.len() - 1)
    }

    /// Whether the use at a position is its page's last. No page in memory has a last use
    /// older than those of `oldest`, so that a position stands for one use only.
    #[inline]
    fn is_last(&self, position: u32, page: u32) -> bool {
        self.last[page as usize] == position
    }

    #[inline]
    fn push(&mut self, page: CanonPage) {
        if self.tail.wrapping_sub(self.head) as usize == self.uses.len() {
            self.compact();
        }
        let at = self.at(self.tail);
        self.uses[at] = page.0;
        self.last[page.index()] = self.tail;
        self.tail = self.tail.wrapping_add(1);
    }

    /// Removes all uses that are not last uses, and makes room for at least as many new ones.
    #[cold]
    fn compact(&mut self) {
        let positions = 0..self.tail.wrapping_sub(self.head);
        let uses = positions
            .map(|i| self.head.wrapping_add(i))
            .map(|position| (position, self.uses[self.at(position)]));
        let oldest = self.oldest[self.taken..self.found].iter().copied();
        let mut left: Vec<u32> = oldest
            .chain(uses)
            .filter(|&(position, page)| self.is_last(position, page))
            .map(|(_, page)| page)
            .collect();
        for (position, &page) in (0..).zip(&left) {
            self.last[page as usize] = position;
        }
        (self.head, self.tail) = (0, left.len() as u32);
        let room = (left.len() * 4).next_power_of_two().max(FIRST);
        left.resize(room, 0);
        self.uses = left;
        (self.taken, self.found) = (0, 0);
    }

    /// Takes the next uses into `oldest`, which must be used up.
    fn look(&mut self) {
        let count = (self.tail.wrapping_sub(self.head) as usize).min(AT_ONCE);
        (self.taken, self.found) = (0, 0);
        for _ in 0..count {
            let position = self.head;
            let page = self.uses[self.at(position)];
            self.oldest[self.found] = (position, page);
            self.found += usize::from(self.is_last(position, page));
            self.head = position.wrapping_add(1);
        }
    }
}

impl Policy for Lru {
    #[inline]
    fn hit(&mut self, page: CanonPage) {
        if !self.is_last(self.tail.wrapping_sub(1), page.0) {
            self.push(page);
        }
    }

    fn grow(&mut self, pages: usize) {
        self.last.resize(pages, 0);
    }

    #[inline]
    fn insert(&mut self, page: CanonPage) {
        self.push(page);
    }

    #[inline]
    fn victim(&mut self, _incoming: CanonPage) -> Option<CanonPage> {
        loop {
            while self.taken < self.found {
                let (position, page) = self.oldest[self.taken];
                self.taken += 1;
                if self.is_last(position, page) {
                    return Some(CanonPage(page));
                }
            }
            if self.head == self.tail {
                return None;
            }
            self.look();
        }
    }

    fn forget(&mut self, page: CanonPage) {
        // No use of the page stands at the next position, so none is its last any more.
        self.last[page.index()] = self.tail;
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

    /// The wrap-around of positions, and the removal of uses when there is no room, do not
    /// change the result.
    #[test]
    fn as_a_list_in_order_of_last_use() {
        for (size, pages) in [(1, 3), (7, 300), (100, 300), (290, 300), (600, 600)] {
            let policy = Lru {
                head: u32::MAX - 500,
                tail: u32::MAX - 500,
                uses: vec![0; FIRST],
                ..Lru::default()
            };
            let mut engine = Engine::new(policy, size);
            let mut list: Vec<u32> = Vec::new();
            let mut random = 1u64;
            for i in 0..20_000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005) + 1;
                let page = (random >> 33) as u32 % pages + 1;
                let found = list.iter().position(|&p| p == page);
                if let Some(at) = found.or((list.len() as u64 == size).then_some(0)) {
                    list.remove(at);
                }
                list.push(page);
                let before = engine.counts.misses;
                engine.reference(CanonPage(page), false);
                let missed = engine.counts.misses > before;
                assert_eq!(missed, found.is_none(), "reference {i}, size {size}");
            }
            let room = (4 * size as usize).next_power_of_two().max(FIRST);
            assert!(engine.policy.uses.len() <= room);
        }
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
        assert_eq!((counts.write_backs, counts.dirty_left), (Some(1), 1));
        assert_eq!(counts.misses, 4);
    }
}
