//! The largest number of pages that exist at one time.

use super::{Access, Kind};
use crate::error::Result;
use crate::pipeline::{Batch, Consumer, World};
use crate::units::CanonPage;

/// Counts the pages that exist: a page exists from its first reference until it is freed.
///
/// Takes a bit a page.
#[derive(Default)]
pub struct Footprint {
    exists: Vec<u64>,
    now: u64,
    most: u64,
}

impl Footprint {
    /// The largest number so far.
    pub fn pages(&self) -> u64 {
        self.most
    }

    fn reference(&mut self, page: CanonPage) {
        let (word, bit) = (page.index() / 64, 1u64 << (page.index() % 64));
        if word >= self.exists.len() {
            self.exists.resize((word + 1).next_power_of_two(), 0);
        }
        self.now += u64::from(self.exists[word] & bit == 0);
        self.exists[word] |= bit;
        self.most = self.most.max(self.now);
    }

    fn free(&mut self, page: CanonPage) {
        let (word, bit) = (page.index() / 64, 1u64 << (page.index() % 64));
        if let Some(exists) = self.exists.get_mut(word) {
            self.now -= u64::from(*exists & bit != 0);
            *exists &= !bit;
        }
    }

    /// Takes references.
    pub fn accesses(&mut self, accesses: &[Access]) {
        for access in accesses {
            match access.kind {
                Kind::Free => self.free(access.page),
                _ => self.reference(access.page),
            }
        }
    }
}

impl Consumer for Footprint {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for &page in batch.pages {
            self.reference(page);
        }
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> Result<()> {
        for &page in pages {
            self.free(page);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_exist_at_one_time_count() {
        let of = |page| Access::reference(CanonPage(page), false);
        let end = |page| Access::free(CanonPage(page));
        let mut footprint = Footprint::default();
        footprint.accesses(&[of(1), of(2), of(1), end(1), end(1), end(900), of(70), of(2)]);
        assert_eq!(footprint.pages(), 2);
        footprint.accesses(&[of(1), end(2), of(3)]);
        assert_eq!(footprint.pages(), 3);
    }
}
