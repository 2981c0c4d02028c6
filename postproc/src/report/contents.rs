//! What is mapped, by name, and which pages were referenced there: to be compared with another run.
//!
//! Pages of files have the same identity in each run: the file's name, and their number in the file. The
//! number of the file's inode is no identity: a program that writes a file anew, as a compiler does, gives
//! it another inode, and inodes of two machines have nothing to do with each other. Traces of the kernel have
//! names without directories, so files of one name in several directories are taken for one. A name of shared
//! memory can stand for several objects of a run. Then its pages have no identity.
//! Pages of other mappings have one within a trace only: the address space and the virtual page. So
//! of different traces, only the numbers of these pages can be compared.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;
use serde::Serialize;

use super::classes::Class;
use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, Place, World};
use crate::trace::{FileId, MapKind, Ref, Trace};
use crate::units::CanonPage;

/// What makes a page of one run the same as a page of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identity {
    /// The runs are of different traces: only pages of files can be the same.
    OfFiles,
    /// The runs are of one trace, maybe windows of it: others are the same if they have the same
    /// address in the same process.
    OfTrace,
}

/// The references to the mappings of one name.
#[derive(Clone, Debug)]
pub struct Content {
    /// What the mappings are for.
    pub class: Class,
    /// References.
    pub references: u64,
    /// Pages. One that was freed and is made again counts twice.
    pub pages: u64,
    /// An address space, or 0 for a file, and the number of the page there.
    places: FxHashSet<(u32, u64)>,
    /// The places stand for all pages.
    has_places: bool,
    /// The file, if it is one.
    file: FileId,
}

impl Content {
    fn new(class: Class) -> Self {
        Content {
            class,
            references: 0,
            pages: 0,
            places: FxHashSet::default(),
            has_places: true,
            file: FileId::default(),
        }
    }

    fn add(&mut self, other: Content) {
        self.references += other.references;
        self.pages += other.pages;
        self.has_places &= other.has_places;
        self.places.extend(other.places);
    }
}

/// Pages that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct PageRange {
    /// The process that has them; `None` for pages of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The number of the first one in the file, or that of its virtual page.
    pub first: u64,
    /// How many they are.
    pub pages: u64,
}

/// The places as ranges, in their order.
fn ranges(places: impl Iterator<Item = (u32, u64)>) -> Vec<PageRange> {
    let mut places: Vec<_> = places.collect();
    places.sort_unstable();
    let mut ranges: Vec<PageRange> = Vec::new();
    for (space, page) in places {
        let pid = Some(space).filter(|&space| space != 0);
        match ranges.last_mut() {
            Some(last) if last.pid == pid && last.first + last.pages == page => last.pages += 1,
            _ => ranges.push(PageRange {
                pid,
                first: page,
                pages: 1,
            }),
        }
    }
    ranges
}

/// How the pages of a run differ from those of another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Changed {
    /// Pages that the other run did not reference.
    pub new: u64,
    /// Pages that only the other run referenced.
    pub gone: u64,
    /// Pages that both referenced.
    pub both: u64,
    /// Which pages are new.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub new_pages: Vec<PageRange>,
    /// Which pages are gone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gone_pages: Vec<PageRange>,
}

/// Collects what is mapped, in a pass.
///
/// Takes a bit a page, and about 24 bytes for each page that has an identity.
pub struct Contents {
    identity: Identity,
    seen: Vec<u64>,
    by_object: Vec<Content>,
    nowhere: Content,
    by_name: BTreeMap<Box<str>, Content>,
}

/// The name of references that lie in no mapping.
const NOWHERE: &str = "(not mapped)";

/// The name of memory that has none.
const ANONYMOUS: &str = "(anonymous)";

impl Contents {
    /// For runs whose pages have this identity.
    pub fn new(identity: Identity) -> Self {
        Contents {
            identity,
            seen: Vec::new(),
            by_object: Vec::new(),
            nowhere: Content::new(Class::Unmapped),
            by_name: BTreeMap::new(),
        }
    }

    /// By name, after the pass.
    pub fn by_name(&self) -> impl Iterator<Item = (&str, &Content)> {
        self.by_name
            .iter()
            .map(|(name, content)| (&**name, content))
    }

    /// What is mapped by this name.
    pub fn find(&self, name: &str) -> Option<&Content> {
        self.by_name.get(name)
    }

    /// How the pages of this name differ from those of `base`; `None` if pages of the two runs cannot
    /// be told to be the same.
    pub fn changed(&self, base: &Contents, name: &str) -> Option<Changed> {
        let (own, others) = (self.find(name), base.find(name));
        let contents = || [own, others].into_iter().flatten();
        if contents().next().is_none() || contents().any(|content| !content.has_places) {
            return None;
        }
        let empty = FxHashSet::default();
        let own = own.map_or(&empty, |content| &content.places);
        let others = others.map_or(&empty, |content| &content.places);
        let both = own.intersection(others).count() as u64;
        Some(Changed {
            new: own.len() as u64 - both,
            gone: others.len() as u64 - both,
            both,
            new_pages: ranges(own.difference(others).copied()),
            gone_pages: ranges(others.difference(own).copied()),
        })
    }

    /// Whether this is the page's first reference.
    fn first_sight(&mut self, page: CanonPage) -> bool {
        let (word, bit) = (page.index() / 64, 1u64 << (page.index() % 64));
        if word >= self.seen.len() {
            self.seen.resize((word + 1).next_power_of_two(), 0);
        }
        let new = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        new
    }

    /// What makes the page the same as one of another run.
    fn place(&self, r: &Ref, kind: MapKind, world: &World) -> Option<(u32, u64)> {
        let shift = world.header.page_shift;
        match (kind, self.identity) {
            // Files of a tmpfs are shared memory with a name.
            (MapKind::File | MapKind::Shmem, _) => {
                let mapping = world.space.get(r.mm)?.find(r.address())?;
                let offset = r.address().wrapping_sub(mapping.start);
                Some((0, mapping.offset.wrapping_add(offset) >> shift))
            }
            // A window gives the address spaces new numbers.
            (_, Identity::OfTrace) => {
                let process = world.tasks.find(r.tid())?;
                Some((world.tasks.process(process).tgid.0, r.address() >> shift))
            }
            (_, Identity::OfFiles) => None,
        }
    }
}

impl Consumer for Contents {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for ((r, place), &page) in batch.refs.iter().zip(batch.places).zip(batch.pages) {
            let new = self.first_sight(page);
            let Place::Mapped { object, .. } = *place else {
                self.nowhere.references += 1;
                self.nowhere.pages += u64::from(new);
                self.nowhere.has_places = false;
                continue;
            };
            // A page's identity is that of the mapping where it is referenced first.
            let kind = batch.world.space.object(object).kind;
            let named = new.then(|| self.place(r, kind, batch.world));
            let at = object.0 as usize;
            if at >= self.by_object.len() {
                self.by_object.resize(at + 1, Content::new(Class::Unmapped));
            }
            let content = &mut self.by_object[at];
            content.references += 1;
            if let Some(place) = named {
                content.pages += 1;
                content.has_places &= place.is_some();
                content.places.extend(place);
            }
        }
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> Result<()> {
        for page in pages {
            if let Some(seen) = self.seen.get_mut(page.index() / 64) {
                *seen &= !(1 << (page.index() % 64));
            }
        }
        Ok(())
    }

    fn finish(&mut self, _trace: &Trace, outcome: &Outcome) -> Result<()> {
        let objects = outcome.world.space.objects();
        for (object, mut content) in objects.iter().zip(std::mem::take(&mut self.by_object)) {
            if content.references == 0 {
                continue;
            }
            let name = match &*object.name {
                "" => ANONYMOUS.into(),
                _ => object.name.clone(),
            };
            let new = || Content {
                file: object.file,
                ..Content::new(Class::of(object, &outcome.world))
            };
            let known = self.by_name.entry(name).or_insert_with(new);
            content.has_places &= object.kind != MapKind::Shmem || known.file == object.file;
            known.add(content);
        }
        let nowhere = std::mem::replace(&mut self.nowhere, Content::new(Class::Unmapped));
        if nowhere.references > 0 {
            let new = || Content::new(Class::Unmapped);
            let name = NOWHERE.into();
            self.by_name.entry(name).or_insert_with(new).add(nowhere);
        }
        Ok(())
    }
}
