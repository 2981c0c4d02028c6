//! The pages that were referenced last.

/// Up to `limit` pages in order of last reference.
///
/// Needs eight bytes a page.
pub(super) struct Recent {
    /// (towards the older, towards the newer); entry 0 is the list's head, since
    /// no page has number 0. A page that is not in the list has [`ABSENT`].
    links: Vec<(u32, u32)>,
    length: u64,
    limit: u64,
}

const ABSENT: (u32, u32) = (u32::MAX, u32::MAX);

impl Recent {
    pub fn new(limit: u64) -> Self {
        Recent {
            links: vec![(0, 0)],
            length: 0,
            limit,
        }
    }

    fn unlink(&mut self, page: u32) {
        let (older, newer) = self.links[page as usize];
        self.links[older as usize].1 = newer;
        self.links[newer as usize].0 = older;
        self.links[page as usize] = ABSENT;
        self.length -= 1;
    }

    /// A page is referenced; what is too many is forgotten.
    pub fn touch(&mut self, page: u32) {
        let at = page as usize;
        if at >= self.links.len() {
            self.links.resize((at + 1).next_power_of_two(), ABSENT);
        }
        if self.links[at] != ABSENT {
            self.unlink(page);
        }
        let newest = self.links[0].0;
        self.links[at] = (newest, 0);
        self.links[newest as usize].1 = page;
        self.links[0].0 = page;
        self.length += 1;
        if self.length > self.limit {
            let oldest = self.links[0].1;
            self.unlink(oldest);
        }
    }

    /// Of the pages but one, the one that is `limit - 1`st from the newest.
    pub fn last_but(&self, page: u32) -> Option<u32> {
        let present = self.links.get(page as usize).is_some_and(|&l| l != ABSENT);
        let others = self.length - u64::from(present);
        let oldest = self.links[0].1;
        if others + 1 < self.limit {
            return None;
        }
        // There are limit - 1 others, or limit if the page is not present.
        let spare = others + 1 > self.limit || oldest == page;
        Some(if spare {
            self.links[oldest as usize].1
        } else {
            oldest
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_from_the_newest_but_one() {
        let mut recent = Recent::new(3);
        recent.touch(5);
        assert_eq!(recent.last_but(5), None);
        recent.touch(6);
        assert_eq!(recent.last_but(5), None);
        assert_eq!(recent.last_but(9), Some(5));
        recent.touch(7);
        assert_eq!(recent.last_but(5), Some(6));
        assert_eq!(recent.last_but(6), Some(5));
        assert_eq!(recent.last_but(7), Some(5));
        assert_eq!(recent.last_but(9), Some(6));
        recent.touch(5);
        recent.touch(8);
        assert_eq!(recent.last_but(6), Some(5));
        assert_eq!(recent.last_but(8), Some(7));
    }
}
