//! Pages that have a name for certain, whatever a reader has not read.
//!
//! A reader that begins in the middle of a trace lacks the records before. So it does not know all
//! pages that have a name by then, but of some it is certain. [`Certain`] finds each record that may
//! give a name to a page: all records that do give one in a pass over the whole trace, and some more.
//!
//! # Why none is missed
//!
//! The pass over the whole trace knows some pages of address spaces by their addresses, and some
//! pages of files and of other objects by their numbers. A record gives a name if the page is in
//! neither. The following holds before and after each record and each event:
//!
//! 1. What is certain here is known there: pages of address spaces that are not marked [`HIDDEN`], and
//!    pages of objects that are marked [`SURE`].
//! 2. If a page of an address space has the mark [`HIDDEN`] and the number of an object's page, then one
//!    of the two is known there.
//!
//! Events keep both, because they do the same with the tables of either: they end entries, move them,
//! copy the table of a parent, or give a page of an address space a name of its own (copy on write).
//! Where the pass over the whole trace may forget more, which is when a child had pages before the
//! fork, all of these pages are forgotten here. Forgetting is never wrong, so that is also what happens if
//! numbers run out, and where it depends on how pages are freed.
//!
//! Records keep both, too. After a record, its page is known there. Outside of objects, that is
//! the page of the address space, and in a shared mapping that of the object. In a private mapping of
//! an object, it may be either: a private page hides the object's, and may have been there before
//! the reader began. So the record makes no page certain, but only rule 2 true of the two. As a
//! consequence, the record of another address space may be noted once more, where only the first one gave
//! the name.

use super::{Backing, Canon, Ends, NO_PAGE, PageMode};
use crate::trace::{Body, Event, MapKind};
use crate::units::{Mm, VirtPage};

/// In a table of an address space: the number is that of an object's page, which a private page may hide.
const HIDDEN: u32 = 1 << 31;
/// In a table of an object: the page has a name for certain.
const SURE: u32 = 1 << 30;

/// The pages that have a name for certain.
pub(crate) struct Certain {
    /// The tables. Names in them are never given again, so that each stands for one page.
    canon: Canon,
    page_shift: u32,
}

impl Certain {
    /// Certain of nothing.
    pub fn new(mode: PageMode, page_shift: u32) -> Self {
        // All that ends in any pass ends here.
        let mut canon = Canon::new(mode, Ends::Freed, page_shift);
        // But nobody wants to know the freed pages.
        canon.holders.wanted = false;
        Certain { canon, page_shift }
    }

    fn forget_all(&mut self) {
        *self = Self::new(self.canon.mode, self.page_shift);
    }

    /// A name for a page of an address space, or the number of a page of an object.
    fn fresh(&mut self) -> u32 {
        if let Ok(fresh) = self.canon.names.fresh() {
            return fresh;
        }
        self.forget_all();
        self.canon.names.fresh().unwrap_or(1)
    }

    /// Whether a record of this page may give a name to it. It has one afterwards.
    pub fn may_name(&mut self, mm: Mm, vpn: VirtPage, backing: Option<Backing>) -> bool {
        match (self.canon.mode, backing) {
            (PageMode::Unnamed, _) => false,
            (PageMode::Canonical, Some(b)) if b.kind != MapKind::Anon => {
                self.may_name_object(mm, vpn, &b)
            }
            _ => self.may_name_private(mm, vpn),
        }
    }

    fn may_name_private(&mut self, mm: Mm, vpn: VirtPage) -> bool {
        let known = self.private(mm, vpn);
        let is_known = known != NO_PAGE && known & HIDDEN == 0;
        if !is_known {
            let name = self.fresh();
            self.set_private(mm, vpn, name);
        }
        !is_known
    }

    fn may_name_object(&mut self, mm: Mm, vpn: VirtPage, backing: &Backing) -> bool {
        let number = vpn.0.wrapping_add(backing.delta);
        let found = self.object(backing, number);
        let is_sure = found & SURE != 0;
        if backing.shared {
            if !is_sure {
                let number_of_page = self.number_of(backing, number, found);
                self.set_object(backing, number, number_of_page | SURE);
            }
            return !is_sure;
        }
        let known = self.private(mm, vpn);
        let is_private = known != NO_PAGE && known & HIDDEN == 0;
        if is_private || is_sure || (found != NO_PAGE && known == found | HIDDEN) {
            return false;
        }
        let number_of_page = self.number_of(backing, number, found);
        self.set_private(mm, vpn, number_of_page | HIDDEN);
        true
    }

    /// The number of an object's page, which gets one if it has none.
    fn number_of(&mut self, backing: &Backing, number: u64, found: u32) -> u32 {
        if found != NO_PAGE {
            return found & !SURE;
        }
        let fresh = self.fresh();
        self.set_object(backing, number, fresh);
        fresh
    }

    fn private(&self, mm: Mm, vpn: VirtPage) -> u32 {
        self.canon.mms.get(&mm).map_or(NO_PAGE, |t| t.get(vpn.0))
    }

    fn set_private(&mut self, mm: Mm, vpn: VirtPage, value: u32) {
        let table = self.canon.mms.entry(mm).or_default();
        table.set(vpn.0, value, &mut self.canon.holders);
    }

    fn object(&self, backing: &Backing, number: u64) -> u32 {
        let table = match backing.file {
            Some(file) => self.canon.files.get(&file),
            None => self.canon.objects.get(&backing.object),
        };
        table.map_or(NO_PAGE, |table| table.get(number))
    }

    fn set_object(&mut self, backing: &Backing, number: u64, value: u32) {
        let canon = &mut self.canon;
        let table = match backing.file {
            Some(file) => canon.files.entry(file).or_default(),
            None => canon.objects.entry(backing.object).or_default(),
        };
        table.set(number, value, &mut canon.holders);
    }

    /// Follows an event.
    pub fn apply(&mut self, event: &Event<'_>) {
        match event.body {
            // What the child had before may stay or not.
            Body::MmDup { parent } if parent != event.mm => self.canon.end_mm(event.mm),
            _ => {}
        }
        if self.canon.apply(event).is_err() {
            self.forget_all();
        }
    }

    /// Follows a truncation: see [`Canon::end_copies`].
    pub fn end_copies(&mut self, mm: Mm, start: u64, end: u64) {
        self.canon.end_copies(mm, start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::Certain;
    use crate::canon::{Backing, PageMode};
    use crate::space::ObjectId;
    use crate::trace::{FileId, MapKind};
    use crate::units::{Mm, VirtPage};

    fn backing(shared: bool) -> Option<Backing> {
        Some(Backing {
            object: ObjectId(0),
            kind: MapKind::File,
            file: Some(FileId {
                dev: 1,
                ino: 2,
                generation: 0,
            }),
            shared,
            delta: 0,
        })
    }

    /// A private page may hide a file's page that another address space has as well.
    #[test]
    fn a_private_mapping_makes_no_file_page_certain() {
        let mut certain = Certain::new(PageMode::Canonical, 12);
        let page = VirtPage(7);
        assert!(certain.may_name(Mm(1), page, backing(false)));
        assert!(!certain.may_name(Mm(1), page, backing(false)));
        assert!(certain.may_name(Mm(2), page, backing(false)));
        assert!(certain.may_name(Mm(3), page, backing(true)));
        // Now the file's page has a name.
        assert!(!certain.may_name(Mm(3), page, backing(true)));
        assert!(!certain.may_name(Mm(4), page, backing(false)));
        // What hides nothing is no private page.
        assert!(certain.may_name(Mm(1), page, None));
        assert!(!certain.may_name(Mm(1), page, None));
    }
}
