//! Linux's two lists: active and inactive.
//!
//! After mm/vmscan.c and mm/workingset.c of Linux 7.3 with CONFIG_LRU_GEN off, for
//! one kind of pages, all mapped, in one cgroup:
//!
//! - A loaded page goes on the inactive list, and the fault sets its accessed bit.
//!   A page that refaults soon goes on the active list at once. Soon means that no
//!   more pages were replaced or activated since its replacement than the active
//!   list holds (`workingset_test_recent()`).
//! - At the end of the inactive list, a page whose bit is clear is replaced. A page
//!   whose bit is set loses the bit. If it is not marked yet, it is marked and goes
//!   to the head of the list; if it is marked, it is activated
//!   (`folio_check_references()`).
//! - While the inactive list is smaller than the active list (divided by the ratio
//!   of `inactive_is_low()`, which is 1 below 1 GiB), the page at the end of the
//!   active list is deactivated. Its bit is cleared, and its mark is kept
//!   (`shrink_active_list()`).
//!
//! Simplifications: pages are scanned one by one, whereas the kernel scans 32 at a time and
//! compares the lists' sizes before. Reclaim makes room for one page. Executable file pages
//! are not preferred. Shadows of replaced pages are never forgotten.

use crate::sim::lists::Lists;
use crate::sim::{Engine, Policy, PolicyEntry, Simulation};
use crate::units::CanonPage;

/// The registry's line.
pub const ENTRY: PolicyEntry = PolicyEntry {
    id: "active-inactive",
    about: "Linux's active and inactive lists, with refault distance",
    simulate: |size| -> Box<dyn Simulation> {
        Box::new(Engine::new(ActiveInactive::default(), size))
    },
    curve: None,
};

const INACTIVE: usize = 0;
const ACTIVE: usize = 1;

/// Bits of a page's note.
const ACCESSED: u8 = 1;
const MARKED: u8 = 2;

/// Pages of 4 KiB in 1 GiB, as a shift.
const GIB_SHIFT: u32 = 18;

/// The two lists and the clock of replacements.
///
/// Needs 20 bytes a page.
#[derive(Default)]
pub struct ActiveInactive {
    lists: Lists<2>,
    /// Pages replaced or activated.
    age: u64,
    /// The age at which a page was replaced, plus one; 0 if it was not.
    shadows: Vec<u64>,
}

impl ActiveInactive {
    fn inactive_is_low(&self) -> bool {
        let (inactive, active) = (self.lists.len(INACTIVE), self.lists.len(ACTIVE));
        let gib = (inactive + active) >> GIB_SHIFT;
        let ratio = if gib == 0 { 1 } else { (10 * gib).isqrt() };
        inactive * ratio < active
    }

    fn activate(&mut self, page: CanonPage) {
        self.lists.push(ACTIVE, page);
        self.age += 1;
    }
}

impl Policy for ActiveInactive {
    fn grow(&mut self, pages: usize) {
        self.lists.grow(pages);
        self.shadows.resize(pages, 0);
    }

    #[inline]
    fn hit(&mut self, page: CanonPage) {
        *self.lists.note(page) |= ACCESSED;
    }

    fn victim(&mut self, _incoming: CanonPage) -> Option<CanonPage> {
        loop {
            while self.inactive_is_low() {
                let page = self.lists.pop(ACTIVE)?;
                *self.lists.note(page) &= !ACCESSED;
                self.lists.push(INACTIVE, page);
            }
            let page = self.lists.pop(INACTIVE)?;
            let note = std::mem::take(self.lists.note(page));
            if note & ACCESSED == 0 {
                self.shadows[page.index()] = self.age + 1;
                self.age += 1;
                return Some(page);
            }
            *self.lists.note(page) = MARKED;
            if note & MARKED != 0 {
                self.activate(page);
            } else {
                self.lists.push(INACTIVE, page);
            }
        }
    }

    fn insert(&mut self, page: CanonPage) {
        *self.lists.note(page) = ACCESSED;
        let shadow = std::mem::take(&mut self.shadows[page.index()]);
        let distance = (self.age + 1).checked_sub(shadow).filter(|_| shadow != 0);
        if distance.is_some_and(|distance| distance <= self.lists.len(ACTIVE) as u64) {
            self.activate(page);
        } else {
            self.lists.push(INACTIVE, page);
        }
    }

    fn forget(&mut self, page: CanonPage) {
        *self.lists.note(page) = 0;
        self.shadows[page.index()] = 0;
        self.lists.remove(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::testing::misses;

    #[test]
    fn what_is_used_again_is_activated() {
        // When 3 is loaded, the bits of all pages are set by their faults, so 1 is replaced
        // after one round. When 4 is loaded, 2 is marked and accessed, so 2 is activated. From
        // then on 3, 4, 3 and 5 are replaced.
        assert_eq!(misses(ENTRY, 2, &[1, 2, 1, 3, 2, 4, 3, 2]), 5);
        assert_eq!(misses(ENTRY, 2, &[1, 2, 1, 3, 2, 4, 3, 2, 5, 2, 6, 2]), 7);
    }
}
