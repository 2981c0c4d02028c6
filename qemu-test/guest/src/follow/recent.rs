//! The pages of an address space that are accessible: those that became so last.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// A page's place.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The number of its entry in the queue.
    number: u64,
    /// So many tasks need it to stay.
    pins: u32,
}

/// Pages by number, first in, first out.
#[derive(Clone, Default, Debug)]
pub struct Recent {
    size: usize,
    /// Numbers and pages. An entry counts only if the page has this number.
    queue: VecDeque<(u64, u64)>,
    places: HashMap<u64, Place>,
    next: u64,
    /// Pages that must stay.
    pinned: usize,
}

impl Recent {
    /// Room for so many pages besides those that must stay.
    pub fn new(size: usize) -> Self {
        Recent {
            size,
            ..Recent::default()
        }
    }

    /// Whether a page is accessible.
    pub fn has(&self, page: u64) -> bool {
        self.places.contains_key(&page)
    }

    /// Whether one of these pages is.
    pub fn any(&self, pages: &Range<u64>) -> bool {
        self.places.keys().any(|page| pages.contains(page))
    }

    /// A page becomes accessible. A page that is so keeps its place.
    pub fn add(&mut self, page: u64) {
        if !self.has(page) {
            let place = Place {
                number: self.next,
                pins: 0,
            };
            self.places.insert(page, place);
            self.queue.push_back((self.next, page));
            self.next += 1;
        }
    }

    /// An accessible page stays until it is unpinned as often. Another page can't be pinned.
    pub fn pin(&mut self, page: u64) -> bool {
        match self.places.get_mut(&page) {
            Some(place) => {
                self.pinned += usize::from(place.pins == 0);
                place.pins += 1;
                true
            }
            None => false,
        }
    }

    /// The opposite of [`Recent::pin`]. The page may have been unmapped since.
    pub fn unpin(&mut self, page: u64) {
        if let Some(place) = self.places.get_mut(&page).filter(|p| p.pins > 0) {
            place.pins -= 1;
            self.pinned -= usize::from(place.pins == 0);
        }
    }

    /// Nobody needs any page: this is the copy of an address space, whose tasks are in no call.
    pub fn unpin_all(&mut self) {
        self.places.values_mut().for_each(|place| place.pins = 0);
        self.pinned = 0;
    }

    /// Pages are accessible no more.
    pub fn remove(&mut self, pages: Range<u64>) {
        if pages.end - pages.start < self.places.len() as u64 {
            for page in pages {
                let gone = self.places.remove(&page);
                self.pinned -= usize::from(gone.is_some_and(|p| p.pins > 0));
            }
        } else {
            self.places.retain(|page, _| !pages.contains(page));
            self.pinned = self.places.values().filter(|p| p.pins > 0).count();
        }
        // Entries that do not count are left behind. They must not become many.
        if self.queue.len() > 2 * self.places.len() + 64 {
            let places = &self.places;
            self.queue
                .retain(|(number, page)| places.get(page).is_some_and(|p| p.number == *number));
        }
    }

    /// Takes out the oldest pages, as many as are too many, but none that must stay.
    pub fn evict(&mut self) -> Vec<u64> {
        let mut out = Vec::new();
        for _ in 0..self.queue.len() {
            if self.places.len() - self.pinned <= self.size {
                break;
            }
            let Some((number, page)) = self.queue.pop_front() else {
                break;
            };
            match self.places.get_mut(&page) {
                Some(place) if place.number == number && place.pins == 0 => {
                    self.places.remove(&page);
                    out.push(page);
                }
                Some(place) if place.number == number => {
                    place.number = self.next;
                    self.queue.push_back((self.next, page));
                    self.next += 1;
                }
                _ => {}
            }
        }
        out
    }
}

/// Pages as ranges of pages, in order.
pub fn runs(mut pages: Vec<u64>) -> Vec<Range<u64>> {
    pages.sort_unstable();
    let mut runs: Vec<Range<u64>> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(run) if run.end == page => run.end += 1,
            Some(run) if run.contains(&page) => {}
            _ => runs.push(page..page + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(size: usize, pages: &[u64]) -> Recent {
        let mut recent = Recent::new(size);
        pages.iter().for_each(|page| recent.add(*page));
        recent
    }

    #[test]
    fn the_oldest_pages_leave() {
        let mut recent = with(2, &[5, 6, 5, 7, 8]);
        assert_eq!(recent.evict(), [5, 6]);
        assert!(!recent.has(5) && recent.has(7) && recent.has(8));
        assert!(recent.any(&(8..10)) && !recent.any(&(4..7)));
        assert!(recent.evict().is_empty());
        // It comes back behind all others.
        recent.add(5);
        assert_eq!(recent.evict(), [7]);
    }

    #[test]
    fn a_page_that_is_needed_stays() {
        let mut recent = with(1, &[1, 2]);
        assert!(recent.pin(1) && recent.pin(1) && !recent.pin(9));
        recent.add(3);
        // It does not count, so another page has its room.
        assert_eq!(recent.evict(), [2]);
        recent.unpin(1);
        recent.add(4);
        assert_eq!(recent.evict(), [3]);
        recent.unpin(1);
        recent.unpin(1);
        recent.unpin(7);
        assert_eq!(recent.evict(), [1]);
        // All are needed.
        let mut all = with(1, &[1, 2]);
        assert!(all.pin(1) && all.pin(2));
        assert!(all.evict().is_empty());
        let mut copy = all.clone();
        copy.unpin_all();
        assert_eq!(copy.evict(), [1]);
        // What is unmapped is needed no more.
        all.remove(1..2);
        all.unpin(1);
        all.add(3);
        all.add(4);
        assert_eq!(all.evict(), [3]);
        all.remove(0..u64::MAX);
        assert_eq!(all.pinned, 0);
    }

    #[test]
    fn pages_that_were_unmapped_have_no_place() {
        let mut recent = with(2, &[1, 2, 3, 4]);
        recent.remove(2..4);
        assert!(!recent.has(2) && !recent.has(3));
        recent.add(2);
        // The entry of the first page 2 does not count.
        assert_eq!(recent.evict(), [1]);
        assert!(recent.has(2));
        for page in 0..1000 {
            recent.add(page);
            recent.remove(page..page + 1);
        }
        assert!(recent.queue.len() < 200);
        recent.remove(0..u64::MAX);
        assert!(recent.places.is_empty());
    }

    #[test]
    fn neighbours_are_a_run() {
        assert_eq!(runs(vec![7, 3, 4, 3, 9, 8]), [3..5, 7..10]);
        assert!(runs(vec![]).is_empty());
    }
}
