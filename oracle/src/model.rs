//! The set, as plainly as it can be said.
//!
//! The set is the last N admissions. A page whose stay ends early keeps its
//! place until N later admissions have come, and so does an admission that was
//! given up. A stay is over when its place is lost, or before if its PTE is
//! cleared. Records are in order of admission.

use std::collections::{HashMap, VecDeque};

/// What kind of access brought a page in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Exec,
}

/// A page of an address space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Page {
    /// The address space's number in the trace.
    pub mm: u32,
    /// Address of the page's first byte.
    pub addr: u64,
}

/// Why a stay ended: `VMTRACE_WHY_*`. The model itself only knows two of them.
pub type Why = u8;
/// Its place was lost.
pub const EVICTED: Why = 0;
/// Tracing stopped.
pub const DRAINED: Why = 7;

/// One stay of a page in the set: what a record of the trace must say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stay {
    /// The page.
    pub page: Page,
    /// The access that brought it in.
    pub access: Access,
    /// That access was the kernel's.
    pub kernel: bool,
    /// The page was written during the stay.
    pub dirtied: bool,
    /// Why the stay ended.
    pub why: Why,
}

/// The order in which places are lost: N places, first in, first out. A set
/// with another policy replaces this type; the rest of the model only asks who
/// must go when a newcomer takes a place.
struct Places {
    size: usize,
    /// Indices into the model's stays; `None` is an admission given up.
    taken: VecDeque<Option<usize>>,
}

impl Places {
    /// Gives `who` a place; returns who lost one.
    fn take(&mut self, who: Option<usize>) -> Option<usize> {
        let lost = if self.taken.len() == self.size {
            self.taken.pop_front().flatten()
        } else {
            None
        };
        self.taken.push_back(who);
        lost
    }
}

/// The set and the record of all stays.
pub struct Model {
    places: Places,
    members: HashMap<Page, usize>,
    stays: Vec<Stay>,
    /// Pages looked up last, for most accesses are to the same few. Emptied
    /// whenever the set changes.
    recent: [Option<(Page, usize)>; 64],
}

impl Model {
    /// An empty set of at most `size` pages.
    ///
    /// # Panics
    ///
    /// If `size` is 0.
    pub fn new(size: usize) -> Self {
        assert!(size > 0, "a set of no pages");
        Model {
            places: Places {
                size,
                taken: VecDeque::new(),
            },
            members: HashMap::new(),
            stays: Vec::new(),
            recent: [None; 64],
        }
    }

    /// Stays so far, those that last included.
    pub fn admissions(&self) -> usize {
        self.stays.len()
    }

    fn find(&mut self, page: Page) -> Option<usize> {
        let at = (page.addr >> 12) as usize % self.recent.len();
        match self.recent[at] {
            Some((known, index)) if known == page => return Some(index),
            _ => {}
        }
        let index = *self.members.get(&page)?;
        self.recent[at] = Some((page, index));
        Some(index)
    }

    /// Whether a page is in the set.
    pub fn is_member(&mut self, page: Page) -> bool {
        self.find(page).is_some()
    }

    /// Brings a page in that is not a member.
    ///
    /// # Panics
    ///
    /// If it is one.
    pub fn admit(&mut self, page: Page, access: Access, kernel: bool) {
        let index = self.stays.len();
        self.make_room(Some(index));
        self.stays.push(Stay {
            page,
            access,
            kernel,
            dirtied: access == Access::Write,
            why: DRAINED,
        });
        let before = self.members.insert(page, index);
        assert!(before.is_none(), "{page:?} is a member already");
    }

    /// Takes a place without a page.
    pub fn give_up(&mut self) {
        self.make_room(None);
    }

    fn make_room(&mut self, who: Option<usize>) {
        self.recent = [None; 64];
        if let Some(lost) = self.places.take(who) {
            let page = self.stays[lost].page;
            // Its stay may be over, and the page may be a member by a later one.
            if self.members.get(&page) == Some(&lost) {
                self.members.remove(&page);
                self.stays[lost].why = EVICTED;
            }
        }
    }

    /// Notes a store to a member; false if it is none.
    pub fn store(&mut self, page: Page) -> bool {
        match self.find(page) {
            Some(index) => {
                self.stays[index].dirtied = true;
                true
            }
            None => false,
        }
    }

    /// Which stay of a member is on, for [`Model::store_in`].
    pub fn stay_of(&mut self, page: Page) -> Option<usize> {
        self.find(page)
    }

    /// Notes a store in a stay that may be over.
    pub fn store_in(&mut self, stay: usize) {
        if let Some(stay) = self.stays.get_mut(stay) {
            stay.dirtied = true;
        }
    }

    /// Ends a member's stay early; false if it is none.
    pub fn close(&mut self, page: Page, why: Why) -> bool {
        self.recent = [None; 64];
        match self.members.remove(&page) {
            Some(index) => {
                self.stays[index].why = why;
                true
            }
            None => false,
        }
    }

    /// All stays in order of admission; those that last end here.
    pub fn finish(self) -> Vec<Stay> {
        self.stays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(n: u64) -> Page {
        Page {
            mm: 1,
            addr: n << 12,
        }
    }

    fn read(m: &mut Model, n: u64) {
        if !m.is_member(page(n)) {
            m.admit(page(n), Access::Read, false);
        }
    }

    fn whys(m: Model) -> Vec<(u64, Why)> {
        m.finish()
            .iter()
            .map(|s| (s.page.addr >> 12, s.why))
            .collect()
    }

    #[test]
    fn a_cycle_longer_than_the_set_admits_every_time() {
        let mut m = Model::new(3);
        for i in 0..12 {
            read(&mut m, i % 4);
        }
        assert_eq!(m.admissions(), 12);
        let mut m = Model::new(4);
        for i in 0..12 {
            read(&mut m, i % 4);
        }
        assert_eq!(m.admissions(), 4);
    }

    #[test]
    fn a_page_whose_stay_ended_keeps_its_place() {
        let mut m = Model::new(2);
        read(&mut m, 1);
        assert!(m.close(page(1), 1));
        read(&mut m, 2);
        // The place of 1 is lost now, not that of 2.
        read(&mut m, 3);
        assert!(m.is_member(page(2)) && m.is_member(page(3)));
        assert_eq!(whys(m), [(1, 1), (2, DRAINED), (3, DRAINED)]);
    }

    #[test]
    fn a_closed_page_that_came_again_is_not_lost_with_its_old_place() {
        let mut m = Model::new(2);
        read(&mut m, 1);
        assert!(m.close(page(1), 2));
        read(&mut m, 1);
        read(&mut m, 2);
        assert!(m.is_member(page(1)));
        read(&mut m, 3);
        assert!(!m.is_member(page(1)));
        assert_eq!(whys(m), [(1, 2), (1, EVICTED), (2, DRAINED), (3, DRAINED)]);
    }

    #[test]
    fn an_admission_given_up_takes_a_place() {
        let mut m = Model::new(2);
        read(&mut m, 1);
        m.give_up();
        assert!(m.is_member(page(1)));
        m.give_up();
        assert!(!m.is_member(page(1)));
        assert_eq!(whys(m), [(1, EVICTED)]);
    }

    #[test]
    fn stores_count_for_the_stay_they_fall_in() {
        let mut m = Model::new(1);
        read(&mut m, 1);
        assert!(m.store(page(1)));
        read(&mut m, 2);
        assert!(!m.store(page(1)));
        read(&mut m, 1);
        m.close(page(1), 1);
        m.admit(page(1), Access::Write, true);
        let dirtied: Vec<_> = m.finish().iter().map(|s| s.dirtied).collect();
        assert_eq!(dirtied, [true, false, false, true]);
    }

    #[test]
    fn the_same_address_in_two_spaces_is_two_pages() {
        let mut m = Model::new(2);
        let (a, b) = (Page { mm: 1, addr: 0 }, Page { mm: 2, addr: 0 });
        m.admit(a, Access::Exec, false);
        assert!(!m.is_member(b));
        m.admit(b, Access::Exec, false);
        assert!(m.close(a, 6) && m.is_member(b) && !m.close(a, 6));
    }

    #[test]
    #[should_panic(expected = "is a member already")]
    fn a_member_is_not_admitted() {
        let mut m = Model::new(2);
        m.admit(page(1), Access::Read, false);
        m.admit(page(1), Access::Read, false);
    }
}
