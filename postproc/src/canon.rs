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
//! page until one of them copies it on write. A move keeps identities.
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

use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::radix::{Keyed, Radix};
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

/// For [`Canon::identify_known`]: nothing is known about a page.
pub(crate) const UNKNOWN: u32 = NO_PAGE;

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

#[derive(Clone, Default)]
struct PageTable {
    leaves: Radix<Leaf>,
}

impl PageTable {
    /// The place of a page's identity, if the page's leaf has ever had one.
    fn slot(&self, vpn: u64) -> Option<&u32> {
        let leaf = self.leaves.get(vpn / LEAF)?;
        Some(&leaf.pages[(vpn % LEAF) as usize])
    }

    fn get(&self, vpn: u64) -> u32 {
        self.slot(vpn).map_or(NO_PAGE, |&page| page)
    }

    /// Gives a page an identity, and takes the one that it had.
    fn set(&mut self, vpn: u64, page: u32, holders: &mut Holders) -> u32 {
        let number = vpn / LEAF;
        let leaf = self.leaves.entry(number, || Rc::new(Leaf::empty(number)));
        let at = (vpn % LEAF) as usize;
        if leaf.pages[at] == page {
            return NO_PAGE;
        }
        std::mem::replace(&mut holders.own(leaf).pages[at], page)
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
    /// Names of freed pages, for reuse.
    spare: Vec<u32>,
    next: u32,
    named: u64,
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
            spare: Vec::new(),
            next: NO_PAGE + 1,
            named: 0,
        }
    }

    /// Pages named so far, each once, whatever their names.
    pub fn pages(&self) -> u64 {
        self.named
    }

    /// Pages that the last event freed, in the order of their addresses or of their places
    /// in the file. This order is the same whether names are given again or not, which a
    /// clock of frames needs: it is the order in which frames become free.
    pub fn freed(&self) -> &[CanonPage] {
        &self.holders.freed
    }

    fn fresh(&mut self) -> Result<u32> {
        self.named += 1;
        if let Some(page) = self.spare.pop() {
            return Ok(page);
        }
        let page = self.next;
        if page > MAX_PAGES {
            return Err(Exhausted);
        }
        self.next = page + 1;
        Ok(page)
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
        self.identify_known(mm, vpn, backing, NO_PAGE)
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
            if known != NO_PAGE {
                return Ok(CanonPage(known));
            }
            if let Some(table) = self.mms.get(&mm) {
                let page = table.get(vpn.0);
                if page != NO_PAGE {
                    return Ok(CanonPage(page));
                }
            }
        }
        self.identify_object(mm, vpn, object)
    }

    /// A page that no table of its address space contains.
    #[inline(never)]
    fn identify_object(
        &mut self,
        mm: Mm,
        vpn: VirtPage,
        object: Option<Backing>,
    ) -> Result<CanonPage> {
        let Some(backing) = object else {
            let page = self.fresh()?;
            let table = self.mms.entry(mm).or_default();
            table.set(vpn.0, page, &mut self.holders);
            return Ok(CanonPage(page));
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
        let page = self.fresh()?;
        let table = self.objects.entry(backing.object).or_default();
        table.set(number, page, &mut self.holders);
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
        let page = self.fresh()?;
        let table = self.files.entry(file).or_default();
        table.set(number, page, &mut self.holders);
        Ok(CanonPage(page))
    }

    /// Applies an event; true if a virtual page may now be another page than before.
    ///
    /// # Errors
    ///
    /// [`Exhausted`].
    pub fn apply(&mut self, event: &Event<'_>) -> Result<bool> {
        if self.ends == Ends::Reused {
            self.spare
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
                let fresh = self.fresh()?;
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
                let moved = table.take(old_start >> shift, old_end, holders);
                table.forget(new_start >> shift, new_end, holders);
                for (vpn, page) in moved {
                    let vpn = vpn - (old_start >> shift) + (new_start >> shift);
                    if vpn < new_end {
                        table.set(vpn, page, holders);
                    } else {
                        holders.release([page]);
                    }
                }
            }
            Body::MmDup { parent } => {
                // Shared mappings have no entries in the table, so all entries are private
                // and are copied.
                if let Some(table) = self.mms.get(&parent).cloned() {
                    self.end_mm(event.mm);
                    self.mms.insert(event.mm, table);
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
