//! Canonical pages: the identity of a page, independent of its mappings.
//!
//! | the reference lies in | canonical page |
//! |---|---|
//! | a shared mapping of a file or of shared memory | (dev, inode, generation, page of the file) |
//! | a private mapping of a file, before a copy on write | the file's page |
//! | the same, after the copy | a new page, in that address space alone |
//! | anonymous memory | a new page at the first reference |
//! | vdso, vvar and the like | (name, page) |
//!
//! A fork copies the identities of private pages: parent and child share a
//! page until one of them copies it on write. A page that is pinned is copied by the fork:
//! the copy's event precedes that of the fork. A move keeps identities.
//! `munmap`, the end of an address space, `MADV_DONTNEED` and guard pages end the identities
//! of private pages. Truncation and deletion of a file, and holes punched in it,
//! end the identities of the file's pages. Truncation also ends the identities of the
//! private copies of these pages.
//!
//! # Pages that are freed
//!
//! A page is *freed* when its identity ends in the last place that has it. The kernel
//! frees the page's frame at that moment. Each address space that has a private page in its
//! table holds the page. So a page that a fork has shared is freed when the last of these
//! address spaces unmaps it, copies it or ends. The file holds its pages, which outlive their
//! mappings: the kernel's page cache keeps them. [`Canon::freed`] gives the freed pages
//! after each event.
//!
//! # Simplifications
//!
//! - A private page that existed before a fork and was never referenced since tracing
//!   began has no identity to copy, so parent and child get one each. In a trace of a
//!   process tree, this concerns only pages that nobody touched; in a trace of the whole
//!   system, all pages that existed when tracing began.
//! - A page that a process copied on write from a private mapping of a file before tracing
//!   began counts as the file's page.
//! - A reference outside all mappings (which `check` reports) is treated as one to anonymous
//!   memory of its address space.
//! - `read()` and `write()` reference the file's pages only on request
//!   ([`crate::pipeline::Consumer::io`]).
//! - A window has no knowledge of the window before it: all pages are freed, and get new
//!   identities, as if each window were a trace by itself.
//! - Pages that KSM merges stay different pages. A page that is swapped out keeps its
//!   identity, as it should. `MADV_FREE` is treated as if it kept the page.
//! - If a range of a file is removed (`FALLOC_FL_COLLAPSE_RANGE`), private copies keep their
//!   identities. It depends on the file system whether they do in the kernel.
//! - A read of anonymous memory maps the shared zero page. The later copy on write gives a
//!   new identity, although nothing had to be read in: so the first write counts as one
//!   more cold miss.

mod certain;

use std::rc::Rc;

use rustc_hash::FxHashMap;

pub(crate) use self::certain::Certain;
use crate::radix::{Keyed, Radix};
use crate::ranges::{Ranged, Ranges};
use crate::space::ObjectId;
use crate::trace::{Body, Event, FileId, FrameBody, MapKind};
use crate::units::{CanonPage, Mm, VirtPage};

/// Pages of one leaf of a page table. A leaf is shared between parent and child
/// after a fork until one of them changes it.
const LEAF: u64 = 64;

#[derive(Clone)]
struct Leaf {
    /// The number of its first page, divided by [`LEAF`].
    number: u64,
    pages: [u32; LEAF as usize],
}

impl Leaf {
    fn empty(number: u64) -> Self {
        Leaf {
            number,
            pages: [NO_PAGE; LEAF as usize],
        }
    }
}

impl Keyed for Leaf {
    fn key(&self) -> u64 {
        self.number
    }
}

const NO_PAGE: u32 = 0;

/// For [`Canon::identify_known`]: nobody has looked for a page.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// The limit keeps tables by page, and windows of a few positions a page, within 32 bits.
pub(crate) const MAX_PAGES: u32 = 1 << 29;

/// All identities are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exhausted;

/// What names pages.
pub type Result<T> = std::result::Result<T, Exhausted>;

/// What counts as one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PageMode {
    /// The page itself, no matter how many processes map it.
    #[default]
    Canonical,
    /// Each page of each address space.
    Virtual,
    /// Pages have no names: every page is number 0.
    Unnamed,
}

/// What happens to a page's name at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ends {
    /// The name is never given again. A page named by its address has the name as long as
    /// its address space lives, whatever is mapped there.
    #[default]
    Unnoticed,
    /// The name is never given again, and the page is freed.
    Freed,
    /// The page is freed, and its name may be given to another page from the next event
    /// on. So there are no more names than pages live at one time, and as many as one event
    /// frees.
    Reused,
}

/// The facts about a reference's mapping that determine the canonical page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backing {
    /// What is mapped.
    pub object: ObjectId,
    /// What it is.
    pub kind: MapKind,
    /// Which file, if it is one.
    pub file: Option<FileId>,
    /// Whether writes go to the object.
    pub shared: bool,
    /// Add to a virtual page's number to get the object's page.
    pub delta: u64,
}

/// The identities of pages, by numbers.
#[derive(Clone, Default)]
struct Leaves {
    leaves: Radix<Leaf>,
}

impl Leaves {
    /// The place of a page's identity, if the page's leaf has ever had one.
    #[inline]
    fn slot(&self, vpn: u64) -> Option<&u32> {
        let leaf = self.leaves.get(vpn / LEAF)?;
        Some(&leaf.pages[(vpn % LEAF) as usize])
    }

    /// The place of a page's identity, in a leaf that nobody shares.
    fn own(&mut self, vpn: u64, holders: &mut Holders) -> &mut u32 {
        let number = vpn / LEAF;
        let leaf = self.leaves.entry(number, || Rc::new(Leaf::empty(number)));
        &mut holders.own(leaf).pages[(vpn % LEAF) as usize]
    }

    /// Gives a page an identity, and takes the one that it had.
    fn set(&mut self, vpn: u64, page: u32, holders: &mut Holders) -> u32 {
        std::mem::replace(self.own(vpn, holders), page)
    }

    /// Forgets all pages.
    fn end(self, holders: &mut Holders) {
        self.leaves.end(&mut |leaf| holders.end(leaf));
    }

    /// Forgets pages `from..to`.
    fn forget(&mut self, from: u64, to: u64, holders: &mut Holders) {
        // Leaves that end as a whole are not copied, nor are the nodes above them.
        let (first, last) = (from.div_ceil(LEAF), to / LEAF);
        if first >= last {
            let taken = self.take(from, to, holders);
            holders.release(taken.into_iter().map(|(_, page)| page));
            return;
        }
        // In the order of addresses.
        let taken = self.take(from, first * LEAF, holders);
        holders.release(taken.into_iter().map(|(_, page)| page));
        self.leaves
            .cut(first, last - 1, &mut |leaf| holders.end(leaf));
        let taken = self.take(last * LEAF, to, holders);
        holders.release(taken.into_iter().map(|(_, page)| page));
    }

    /// Forgets pages `from..to`, giving them with their identities.
    fn take(&mut self, from: u64, to: u64, holders: &mut Holders) -> Vec<(u64, u32)> {
        let mut taken = Vec::new();
        if from >= to {
            return taken;
        }
        let leaves = self.leaves.range(from / LEAF, (to - 1) / LEAF);
        let numbers: Vec<u64> = leaves.map(|leaf| leaf.number).collect();
        for number in numbers {
            let base = number * LEAF;
            let inside = |i: usize| (from..to).contains(&(base + i as u64));
            let known = |(i, &page): (usize, &u32)| page != NO_PAGE && inside(i);
            let leaf = self.leaves.get(number);
            if !leaf.is_some_and(|leaf| leaf.pages.iter().enumerate().any(known)) {
                continue;
            }
            let Some(leaf) = self.leaves.get_mut(number) else {
                continue;
            };
            let leaf = holders.own(leaf);
            for (i, page) in leaf.pages.iter_mut().enumerate() {
                if *page != NO_PAGE && inside(i) {
                    taken.push((base + i as u64, std::mem::take(page)));
                }
            }
            if leaf.pages.iter().all(|&page| page == NO_PAGE) {
                self.leaves.cut(number, number, &mut drop);
            }
        }
        taken
    }
    /// Takes out pages from one on.
    fn split_off(&mut self, from: u64, holders: &mut Holders) -> Self {
        // The leaf that has pages on both sides becomes two.
        let next = from.next_multiple_of(LEAF);
        let taken = self.take(from, next, holders);
        let mut upper = Leaves {
            leaves: self.leaves.split_off(next / LEAF),
        };
        for (vpn, page) in taken {
            upper.set(vpn, page, holders);
        }
        upper
    }

    /// Puts in pages that are behind all others.
    fn append(&mut self, mut upper: Self, from: u64, holders: &mut Holders) {
        let next = from.next_multiple_of(LEAF);
        let taken = upper.take(from, next, holders);
        self.leaves.append(upper.leaves);
        for (vpn, page) in taken {
            self.set(vpn, page, holders);
        }
    }

    /// Whether pages `from..to` have at most so many leaves.
    fn has_few(&self, from: u64, to: u64, leaves: usize) -> bool {
        let range = || self.leaves.range(from / LEAF, (to - 1) / LEAF);
        from >= to || range().nth(leaves).is_none()
    }
}

/// Pages from an address on, as far as the next of these, with numbers of their own.
#[derive(Clone)]
struct Graft {
    start: u64,
    /// Add to an address's page to get its number.
    add: u64,
    pages: Leaves,
}

impl Ranged for Graft {
    type Edit = ();

    fn start(&self) -> u64 {
        self.start
    }

    fn length(&self) -> u64 {
        0
    }

    fn shift(&mut self, by: u64) {
        self.start = self.start.wrapping_add(by);
        self.add = self.add.wrapping_sub(by);
    }

    fn edit(&mut self, (): &()) {}

    fn then((): &mut (), (): &()) {}
}

/// The identities of an address space's pages, or of a file's.
///
/// A move of few pages gives them other numbers. A move of many pages makes a graft of
/// them, in which they keep their numbers: so it costs no more, and a child shares with its
/// parent what it moves.
#[derive(Clone, Default)]
struct PageTable {
    /// All pages, by address, as long as nothing is grafted.
    plain: Leaves,
    /// All pages, then.
    grafts: Ranges<Graft>,
}

/// Leaves that a move gives other numbers.
const FEW: usize = 4;

impl PageTable {
    /// The place of a page's identity, if the page's leaf has ever had one.
    #[inline]
    fn slot(&self, vpn: u64) -> Option<&u32> {
        if !self.grafts.is_empty() {
            return self.grafted(vpn);
        }
        self.plain.slot(vpn)
    }

    #[cold]
    fn grafted(&self, vpn: u64) -> Option<&u32> {
        let graft = self.grafts.at_or_below(vpn)?;
        let number = vpn.wrapping_add(graft.value.add);
        let pages = &graft.value.pages;
        pages.slot(number.wrapping_sub(graft.by()))
    }

    fn get(&self, vpn: u64) -> u32 {
        self.slot(vpn).map_or(NO_PAGE, |&page| page)
    }

    /// Where a page stands, and what to add to get its number there.
    fn at(&mut self, vpn: u64) -> (&mut Leaves, u64) {
        if self.grafts.is_empty() {
            return (&mut self.plain, 0);
        }
        match self.grafts.get_mut(vpn) {
            Some(graft) => (&mut graft.pages, graft.add),
            // Nothing is below address 0.
            None => (&mut self.plain, 0),
        }
    }

    /// The place of a page's identity, in a leaf that nobody shares.
    #[inline]
    fn own(&mut self, vpn: u64, holders: &mut Holders) -> &mut u32 {
        if self.grafts.is_empty() {
            return self.plain.own(vpn, holders);
        }
        let (pages, add) = self.at(vpn);
        pages.own(vpn.wrapping_add(add), holders)
    }

    /// Gives a page an identity, and takes the one that it had.
    fn set(&mut self, vpn: u64, page: u32, holders: &mut Holders) -> u32 {
        std::mem::replace(self.own(vpn, holders), page)
    }

    /// Forgets all pages.
    fn end(self, holders: &mut Holders) {
        self.plain.end(holders);
        self.grafts.end(&mut |graft| graft.pages.end(holders));
    }

    /// All pages of a table in which nothing was moved; pages of others are forgotten.
    fn into_pages(mut self, holders: &mut Holders) -> Vec<(u64, u32)> {
        let pages = match self.grafts.is_empty() {
            true => self.plain.take(0, u64::MAX, holders),
            false => Vec::new(),
        };
        self.end(holders);
        pages
    }

    /// The first address of the graft behind a page's.
    fn next(&self, vpn: u64) -> u64 {
        let next = self.grafts.at_or_above(vpn.saturating_add(1));
        next.map_or(u64::MAX, |graft| graft.value.start.wrapping_add(graft.by()))
    }

    /// Forgets pages `from..to`.
    fn forget(&mut self, from: u64, to: u64, holders: &mut Holders) {
        if from >= to {
            return;
        }
        if to <= self.next(from) {
            let (pages, add) = self.at(from);
            pages.forget(from.wrapping_add(add), to.wrapping_add(add), holders);
            return;
        }
        let above = self.split_off(to, holders);
        let part = self.split_off(from, holders);
        part.end(&mut |graft| graft.pages.end(holders));
        self.append(above, holders);
    }

    /// Takes out grafts from an address on.
    fn split_off(&mut self, from: u64, holders: &mut Holders) -> Ranges<Graft> {
        if let Some(graft) = self.grafts.get_mut(from).filter(|g| g.start < from) {
            let add = graft.add;
            let pages = graft.pages.split_off(from.wrapping_add(add), holders);
            // What nothing is known of belongs to whatever is below it.
            if !pages.leaves.is_empty() {
                let start = from;
                self.grafts.insert(Graft { start, add, pages });
            }
        }
        self.grafts.split_off(from)
    }

    /// Puts in grafts that are behind all others.
    fn append(&mut self, mut upper: Ranges<Graft>, holders: &mut Holders) {
        let first = upper.at_or_above(0).map(|graft| graft.get());
        let last = self.grafts.at_or_below(u64::MAX).map(|graft| graft.get());
        match (last, first) {
            // The first begins at address 0.
            (None, first) if first.as_ref().is_none_or(|first| first.start > 0) => {
                let (start, add, pages) = (0, 0, Leaves::default());
                self.grafts.insert(Graft { start, add, pages });
            }
            // What a move has parted becomes one again.
            (Some(last), Some(first)) if last.add == first.add => {
                drop((last, upper.pop_first()));
                if let Some(last) = self.grafts.get_mut(u64::MAX) {
                    let number = first.start.wrapping_add(first.add);
                    last.pages.append(first.pages, number, holders);
                }
            }
            _ => {}
        }
        self.grafts.append(upper);
    }

    /// Moves pages `old..old + n` to `new`. Pages that were there are forgotten, then
    /// those that have no room in `new`.
    fn relocate(
        &mut self,
        old: std::ops::Range<u64>,
        new: std::ops::Range<u64>,
        holders: &mut Holders,
    ) {
        let within = old.end <= self.next(old.start);
        let (pages, add) = self.at(old.start);
        let (from, to) = (old.start.wrapping_add(add), old.end.wrapping_add(add));
        if within && pages.has_few(from, to, FEW) {
            let moved = pages.take(from, to, holders);
            self.forget(new.start, new.end, holders);
            for (number, page) in moved {
                let vpn = number.wrapping_sub(add) - old.start + new.start;
                if vpn < new.end {
                    self.set(vpn, page, holders);
                } else {
                    holders.release([page]);
                }
            }
            return;
        }
        if self.grafts.is_empty() {
            let (start, add, pages) = (0, 0, std::mem::take(&mut self.plain));
            self.grafts.insert(Graft { start, add, pages });
        }
        let above = self.split_off(old.end, holders);
        let moved = self.split_off(old.start, holders);
        self.append(above, holders);
        self.forget(new.start, new.end, holders);
        let above = self.split_off(new.end, holders);
        // Nothing is known there any more.
        self.split_off(new.start, holders);
        let mut moved = PageTable {
            plain: Leaves::default(),
            grafts: moved,
        };
        let length = new.end.saturating_sub(new.start);
        let lost = moved.split_off(old.start.saturating_add(length), holders);
        lost.end(&mut |graft| graft.pages.end(holders));
        moved.grafts.change(new.start.wrapping_sub(old.start), ());
        self.append(moved.grafts, holders);
        self.append(above, holders);
    }
}

/// The holders of each page, and the pages that have lost their last holder.
///
/// Each leaf that contains a page holds it once. So a fork, which shares leaves, costs
/// nothing.
#[derive(Default)]
struct Holders {
    /// Of pages that more than one leaf holds: how many more.
    more: FxHashMap<u32, u32>,
    /// Freed by the last event.
    freed: Vec<CanonPage>,
    /// Whether anybody wants to know.
    wanted: bool,
}

impl Holders {
    /// A leaf that may be changed; a shared one is copied.
    fn own<'l>(&mut self, leaf: &'l mut Rc<Leaf>) -> &'l mut Leaf {
        if self.wanted && Rc::get_mut(leaf).is_none() {
            for &page in leaf.pages.iter().filter(|&&page| page != NO_PAGE) {
                *self.more.entry(page).or_insert(0) += 1;
            }
        }
        Rc::make_mut(leaf)
    }

    /// A tree has a leaf no more.
    fn end(&mut self, leaf: Rc<Leaf>) {
        // Of a leaf that others have too, nothing ends.
        if let Some(leaf) = Rc::into_inner(leaf) {
            self.release(leaf.pages);
        }
    }

    /// Pages are held once less.
    fn release(&mut self, pages: impl IntoIterator<Item = u32>) {
        if !self.wanted {
            return;
        }
        for page in pages.into_iter().filter(|&page| page != NO_PAGE) {
            match self.more.get_mut(&page) {
                None => self.freed.push(CanonPage(page)),
                Some(1) => {
                    self.more.remove(&page);
                }
                Some(more) => *more -= 1,
            }
        }
    }
}

/// What a page is a page of, if it is not one of an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A file, and the number of the page in the file.
    File(FileId, u64),
    /// Something else that is mapped, and the number of the page in it.
    Object(ObjectId, u64),
}

/// The names of pages.
#[derive(Default)]
struct Names {
    /// Of freed pages, for reuse.
    spare: Vec<u32>,
    last: u32,
    given: u64,
}

impl Names {
    fn fresh(&mut self) -> Result<u32> {
        self.given += 1;
        if let Some(page) = self.spare.pop() {
            return Ok(page);
        }
        if self.last == MAX_PAGES {
            return Err(Exhausted);
        }
        self.last += 1;
        Ok(self.last)
    }
}

/// Assigns a page to every reference.
///
/// Memory use is proportional to the pages that exist at one time, not to the trace's
/// length: four bytes a page, in leaves of 64.
pub struct Canon {
    mode: PageMode,
    ends: Ends,
    page_shift: u32,
    mms: FxHashMap<Mm, PageTable>,
    /// The pages of each file, however the file is mapped or read.
    files: FxHashMap<FileId, PageTable>,
    objects: FxHashMap<ObjectId, PageTable>,
    holders: Holders,
    names: Names,
    /// Pages with an origin that got a name, if somebody wants to know.
    origins: Option<Vec<(CanonPage, Origin)>>,
}

impl Canon {
    /// Knows no page yet.
    pub fn new(mode: PageMode, ends: Ends, page_shift: u32) -> Self {
        Canon {
            mode,
            ends,
            page_shift,
            mms: FxHashMap::default(),
            files: FxHashMap::default(),
            objects: FxHashMap::default(),
            holders: Holders {
                wanted: ends != Ends::Unnoticed,
                ..Holders::default()
            },
            names: Names::default(),
            origins: None,
        }
    }

    /// From now on, [`Canon::take_origins`] gives the origins of pages.
    pub(crate) fn note_origins(&mut self) {
        self.origins = Some(Vec::new());
    }

    /// The pages with an origin that got a name since the last call.
    pub(crate) fn take_origins(&mut self) -> Vec<(CanonPage, Origin)> {
        self.origins
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    fn note(&mut self, page: u32, origin: Origin) {
        if let Some(origins) = &mut self.origins {
            origins.push((CanonPage(page), origin));
        }
    }

    /// Pages named so far, each once, whatever their names.
    pub fn pages(&self) -> u64 {
        self.names.given
    }

    /// Pages that the last event freed, in the order of their addresses or of their places
    /// in the file. This order is the same whether names are given again or not, which a
    /// clock of frames needs: it is the order in which frames become free.
    pub fn freed(&self) -> &[CanonPage] {
        &self.holders.freed
    }

    /// The page behind a virtual page at this moment; `backing` describes the mapping.
    ///
    /// # Errors
    ///
    /// [`Exhausted`].
    pub fn identify(
        &mut self,
        mm: Mm,
        vpn: VirtPage,
        backing: Option<Backing>,
    ) -> Result<CanonPage> {
        self.identify_known(mm, vpn, backing, UNKNOWN)
    }

    /// The same, for a page about which [`Canon::known`] gave something.
    #[inline]
    pub(crate) fn identify_known(
        &mut self,
        mm: Mm,
        vpn: VirtPage,
        backing: Option<Backing>,
        known: u32,
    ) -> Result<CanonPage> {
        if self.mode == PageMode::Unnamed {
            return Ok(CanonPage(NO_PAGE));
        }
        let object = match (self.mode, backing) {
            (PageMode::Canonical, Some(b)) if b.kind != MapKind::Anon => Some(b),
            _ => None,
        };
        // A private page of the address space hides the page of the object.
        if object.is_none_or(|b| !b.shared) {
            let page = match known {
                UNKNOWN => self.mms.get(&mm).map_or(NO_PAGE, |table| table.get(vpn.0)),
                page => page,
            };
            if page != NO_PAGE {
                return Ok(CanonPage(page));
            }
        }
        self.identify_object(mm, vpn, object)
    }

    /// A page that the table of its address space did not contain when it was looked for.
    #[inline(never)]
    fn identify_object(
        &mut self,
        mm: Mm,
        vpn: VirtPage,
        object: Option<Backing>,
    ) -> Result<CanonPage> {
        let Some(backing) = object else {
            let table = self.mms.entry(mm).or_default();
            let page = table.own(vpn.0, &mut self.holders);
            // A reference shortly before may have named it since.
            if *page == NO_PAGE {
                *page = self.names.fresh()?;
            }
            return Ok(CanonPage(*page));
        };
        let number = vpn.0.wrapping_add(backing.delta);
        if let Some(file) = backing.file {
            return self.identify_in_file(file, number);
        }
        let table = self.objects.get(&backing.object);
        let known = table.map_or(NO_PAGE, |t| t.get(number));
        if known != NO_PAGE {
            return Ok(CanonPage(known));
        }
        let page = self.names.fresh()?;
        let table = self.objects.entry(backing.object).or_default();
        table.set(number, page, &mut self.holders);
        self.note(page, Origin::Object(backing.object, number));
        Ok(CanonPage(page))
    }

    /// The entries of pages in the tables of address spaces, for
    /// [`Canon::identify_known`]. They are valid until the next event, because until then
    /// entries are only added.
    ///
    /// If tables are larger than the processor's cache, each page costs a wait for memory.
    /// So all entries are located first and then read: no read depends on another, and the
    /// processor waits for many reads at once.
    pub(crate) fn known<const N: usize>(
        &self,
        pages: impl Iterator<Item = (Mm, VirtPage)>,
    ) -> [u32; N] {
        let mut last: Option<(Mm, Option<&PageTable>)> = None;
        let mut slots = [&NO_PAGE; N];
        for (slot, (mm, vpn)) in slots.iter_mut().zip(pages) {
            let table = match last {
                Some((same, table)) if same == mm => table,
                _ => self.mms.get(&mm),
            };
            last = Some((mm, table));
            if let Some(found) = table.and_then(|t| t.slot(vpn.0)) {
                *slot = found;
            }
        }
        slots.map(|&page| page)
    }

    /// A page of a file, by its number in the file.
    ///
    /// # Errors
    ///
    /// [`Exhausted`].
    pub fn identify_in_file(&mut self, file: FileId, number: u64) -> Result<CanonPage> {
        let known = self.files.get(&file).map_or(NO_PAGE, |t| t.get(number));
        if known != NO_PAGE {
            return Ok(CanonPage(known));
        }
        let page = self.names.fresh()?;
        let table = self.files.entry(file).or_default();
        table.set(number, page, &mut self.holders);
        self.note(page, Origin::File(file, number));
        Ok(CanonPage(page))
    }

    /// The pages of a file from one on, as far as they lie in one leaf with it, up to
    /// `last`; gives the number behind them.
    ///
    /// # Errors
    ///
    /// [`Exhausted`].
    pub(crate) fn identify_some_in_file(
        &mut self,
        file: FileId,
        first: u64,
        last: u64,
        pages: &mut Vec<CanonPage>,
    ) -> Result<u64> {
        let last = last.min(first | (LEAF - 1));
        let number = first / LEAF;
        let leaves = &mut self.files.entry(file).or_default().plain.leaves;
        let leaf = leaves.entry(number, || Rc::new(Leaf::empty(number)));
        let leaf = self.holders.own(leaf);
        let (from, to) = ((first % LEAF) as usize, (last % LEAF) as usize);
        for (page, number) in leaf.pages[from..=to].iter_mut().zip(first..) {
            if *page == NO_PAGE {
                *page = self.names.fresh()?;
                if let Some(origins) = &mut self.origins {
                    origins.push((CanonPage(*page), Origin::File(file, number)));
                }
            }
            pages.push(CanonPage(*page));
        }
        Ok(last + 1)
    }

    /// Applies an event; true if a virtual page may now be another page than before.
    ///
    /// # Errors
    ///
    /// [`Exhausted`].
    pub fn apply(&mut self, event: &Event<'_>) -> Result<bool> {
        if self.ends == Ends::Reused {
            self.names
                .spare
                .extend(self.holders.freed.iter().map(|page| page.0));
        }
        self.holders.freed.clear();
        let changed = match self.mode {
            _ if matches!(event.body, Body::SnapBegin) => {
                // No record says what happened to pages since the last window.
                let tables = self.mms.drain().map(|(_, table)| table);
                let tables = tables.chain(self.files.drain().map(|(_, table)| table));
                let tables = tables.chain(self.objects.drain().map(|(_, table)| table));
                for table in tables {
                    table.end(&mut self.holders);
                }
                true
            }
            PageMode::Canonical => self.apply_canonical(event)?,
            PageMode::Virtual => self.apply_virtual(event),
            PageMode::Unnamed => false,
        };
        Ok(changed)
    }

    /// For pages that are named by addresses: an unmapped address has no page until it is
    /// mapped again, if the ends of pages matter.
    fn apply_virtual(&mut self, event: &Event<'_>) -> bool {
        let noticed = self.ends != Ends::Unnoticed;
        match event.body {
            Body::MmEnd => {
                // The address space's number is never used again.
                self.end_mm(event.mm);
                noticed
            }
            Body::Unmap { start, end } if noticed => {
                self.end_private(event.mm, start, end);
                true
            }
            Body::Advise { start, end, advice } if noticed && drops_private(advice) => {
                self.end_private(event.mm, start, end);
                true
            }
            Body::Move {
                old_start, old_len, ..
            } if noticed => {
                self.end_private(event.mm, old_start, old_start.saturating_add(old_len));
                true
            }
            _ => false,
        }
    }

    fn end_mm(&mut self, mm: Mm) {
        if let Some(table) = self.mms.remove(&mm) {
            table.end(&mut self.holders);
        }
    }

    fn apply_canonical(&mut self, event: &Event<'_>) -> Result<bool> {
        let shift = self.page_shift;
        let up = |bytes: u64| (bytes >> shift) + u64::from(bytes & ((1 << shift) - 1) != 0);
        match event.body {
            Body::Cow(FrameBody { page, .. }) => {
                let fresh = self.names.fresh()?;
                let table = self.mms.entry(event.mm).or_default();
                let copied = table.set(page >> shift, fresh, &mut self.holders);
                self.holders.release([copied]);
            }
            Body::Unmap { start, end } => self.end_private(event.mm, start, end),
            Body::Advise { start, end, advice } if drops_private(advice) => {
                self.end_private(event.mm, start, end);
            }
            Body::Move {
                old_start,
                old_len,
                new_start,
                new_len,
                ..
            } => {
                let Some(table) = self.mms.get_mut(&event.mm) else {
                    return Ok(false);
                };
                let holders = &mut self.holders;
                let (old_end, new_end) = (
                    old_start.saturating_add(old_len) >> shift,
                    new_start.saturating_add(new_len) >> shift,
                );
                let (old, new) = (old_start >> shift..old_end, new_start >> shift..new_end);
                if old != new {
                    table.relocate(old, new, holders);
                }
            }
            Body::MmDup { parent } => {
                // Shared mappings have no entries in the table, so all entries are private
                // and are copied.
                if let Some(table) = self.mms.get(&parent).cloned() {
                    // Pages that fork copied at once, because they are pinned, are the
                    // child's alone.
                    let early = self.mms.insert(event.mm, table);
                    let early = early.map(|early| early.into_pages(&mut self.holders));
                    let table = self.mms.entry(event.mm).or_default();
                    for (vpn, page) in early.into_iter().flatten() {
                        let shared = table.set(vpn, page, &mut self.holders);
                        self.holders.release([shared]);
                    }
                }
            }
            Body::MmEnd => self.end_mm(event.mm),
            Body::Truncate { file, length } => self.end_file(file, up(length), u64::MAX),
            Body::Punch {
                file,
                offset,
                bytes,
            } => {
                let end = offset.saturating_add(bytes) >> shift;
                self.end_file(file, up(offset), end);
            }
            Body::Delete { file, .. } => self.end_file(file, 0, u64::MAX),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Ends the private pages from `start` to `end` of an address space: copies of a file's
    /// pages, which end when the file is truncated.
    pub fn end_copies(&mut self, mm: Mm, start: u64, end: u64) {
        if self.mode == PageMode::Canonical {
            self.end_private(mm, start, end);
        }
    }

    fn end_private(&mut self, mm: Mm, start: u64, end: u64) {
        if let Some(table) = self.mms.get_mut(&mm) {
            let (from, to) = (start >> self.page_shift, end >> self.page_shift);
            table.forget(from, to, &mut self.holders);
        }
    }

    fn end_file(&mut self, file: FileId, from: u64, to: u64) {
        if let Some(table) = self.files.get_mut(&file) {
            table.forget(from, to, &mut self.holders);
        }
    }
}

/// Advice that frees private pages at once (include/uapi/asm-generic/mman-common.h).
pub(crate) fn drops_private(advice: u64) -> bool {
    const MADV_DONTNEED: u64 = 4;
    const MADV_REMOVE: u64 = 9;
    const MADV_DONTNEED_LOCKED: u64 = 24;
    const MADV_GUARD_INSTALL: u64 = 102;
    matches!(
        advice,
        MADV_DONTNEED | MADV_REMOVE | MADV_DONTNEED_LOCKED | MADV_GUARD_INSTALL
    )
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::{Holders, NO_PAGE, PageTable};
    use crate::units::CanonPage;

    #[derive(Clone, Debug)]
    enum Step {
        /// So many pages from one on.
        Set(u64, u64),
        Forget(u64, u64),
        Move(u64, u64, u64, u64),
        Fork,
        Swap,
        End,
    }

    const PAGES: u64 = 2000;

    fn steps() -> impl Strategy<Value = Step> {
        let page = || prop_oneof![0..PAGES, (0..PAGES / 64).prop_map(|n| n * 64)];
        let count = || prop_oneof![1..4u64, 1..300u64, Just(640u64)];
        prop_oneof![
            6 => (page(), count()).prop_map(|(p, n)| Step::Set(p, n)),
            2 => (page(), count()).prop_map(|(p, n)| Step::Forget(p, n)),
            5 => (page(), count(), page(), count()).prop_map(|(a, n, b, m)| Step::Move(a, n, b, m)),
            2 => (page(), 300..900u64, page()).prop_map(|(a, n, b)| Step::Move(a, n, b, n)),
            2 => Just(Step::Fork),
            2 => Just(Step::Swap),
            1 => Just(Step::End),
        ]
    }

    type Model = BTreeMap<u64, u32>;

    /// Pages that the model has in any table.
    fn held(tables: &[(PageTable, Model)]) -> BTreeSet<u32> {
        tables
            .iter()
            .flat_map(|(_, model)| model.values().copied())
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 60 } else { 2000 }))]

        /// Each table is a map, whatever is shared, and a page is freed once, with the last
        /// table that has it.
        #[test]
        fn tables_are_maps(steps in prop::collection::vec(steps(), 1..60)) {
            let mut holders = Holders { wanted: true, ..Holders::default() };
            let mut tables = vec![(PageTable::default(), Model::new())];
            let mut next = 1;
            for step in steps {
                let before = held(&tables);
                let (table, model) = tables.last_mut().unwrap();
                match step {
                    Step::Set(from, n) => {
                        for vpn in from..from + n {
                            let old = table.set(vpn, next, &mut holders);
                            holders.release([old]);
                            prop_assert_eq!(old, model.insert(vpn, next).unwrap_or(NO_PAGE));
                            next += 1;
                        }
                    }
                    Step::Forget(from, n) => {
                        table.forget(from, from + n, &mut holders);
                        model.retain(|vpn, _| !(from..from + n).contains(vpn));
                    }
                    Step::Move(from, n, to, m) => {
                        table.relocate(from..from + n, to..to + m, &mut holders);
                        let moved: Vec<_> = model.range(from..from + n).map(|(&k, &v)| (k, v)).collect();
                        model.retain(|vpn, _| !(from..from + n).contains(vpn));
                        model.retain(|vpn, _| !(to..to + m).contains(vpn));
                        let moved = moved.into_iter().map(|(vpn, page)| (vpn - from + to, page));
                        model.extend(moved.filter(|(vpn, _)| *vpn < to + m));
                    }
                    Step::Fork => {
                        let copy = (table.clone(), model.clone());
                        tables.push(copy);
                    }
                    Step::Swap => tables.rotate_left(1),
                    Step::End => {
                        if let Some((table, _)) = (tables.len() > 1).then(|| tables.pop()).flatten() {
                            table.end(&mut holders);
                        }
                    }
                }
                let mut freed: Vec<u32> = holders.freed.drain(..).map(|CanonPage(page)| page).collect();
                freed.sort_unstable();
                let after = held(&tables);
                prop_assert_eq!(freed, before.difference(&after).copied().collect::<Vec<_>>());
            }
            for (table, model) in tables {
                for vpn in 0..PAGES + 1000 {
                    let known = model.get(&vpn).copied().unwrap_or(NO_PAGE);
                    prop_assert_eq!(table.get(vpn), known);
                }
                table.end(&mut holders);
            }
            prop_assert!(holders.more.is_empty());
        }

        /// What is moved back and forth leaves nothing behind.
        #[test]
        fn grafts_do_not_pile_up(moves in prop::collection::vec((0..PAGES, 300..900u64), 1..40)) {
            let mut holders = Holders { wanted: true, ..Holders::default() };
            let mut table = PageTable::default();
            for vpn in 0..PAGES + 900 {
                table.set(vpn, vpn as u32 + 1, &mut holders);
            }
            for (from, n) in moves {
                let away = 1 << 30;
                table.relocate(from..from + n, away..away + n, &mut holders);
                table.relocate(away..away + n, from..from + n, &mut holders);
                prop_assert!(table.grafts.iter().count() <= 2);
            }
            prop_assert!((0..PAGES + 900).all(|vpn| table.get(vpn) == vpn as u32 + 1));
        }
    }
}
