//! What is mapped, by name, and which pages were referenced there: to be compared with another run.
//!
//! Pages of files have the same identity in each run: the file's name, and their number in the file. The
//! number of the file's inode is no identity: a program that writes a file anew, as a compiler does, gives
//! it another inode, and inodes of two machines have nothing to do with each other. Traces of the kernel have
//! names without directories, so files of one name in several directories are taken for one. A name of shared
//! memory can stand for several objects of a run. Then its pages have no identity.
//! Pages of other mappings have one within a trace only: the process and the virtual page. So
//! of different traces, only the numbers of these pages can be compared. Within a trace, the number of the
//! inode says which file it is.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::classes::Class;
use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, Place, World};
use crate::space::Object;
use crate::trace::{FileId, MapKind, Ref, Trace};
use crate::units::CanonPage;

/// What makes a page of one run the same as a page of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identity {
    /// The runs are of different traces: only pages of files can be the same.
    OfFiles,
    /// The runs are of one trace, maybe windows of it: pages of files are the same if they are of the same
    /// inode, and others if they have the same address in the same process.
    OfTrace,
}

/// What has the page of a place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Owner {
    /// The file of this name.
    File,
    /// One of the files of this name.
    Inode(FileId),
    /// A process.
    Process(u32),
}

impl Owner {
    /// The process.
    fn pid(self) -> Option<u32> {
        match self {
            Owner::Process(pid) => Some(pid),
            Owner::File | Owner::Inode(_) => None,
        }
    }

    /// Files come before processes.
    fn order(self) -> (Option<u32>, u64, u64, u32) {
        let file = match self {
            Owner::Inode(file) => file,
            Owner::File | Owner::Process(_) => FileId::default(),
        };
        (self.pid(), file.dev, file.ino, file.generation)
    }
}

/// Numbers of pages, by what has them.
type Places = FxHashMap<Owner, FxHashSet<u64>>;

/// The references to the mappings of one name.
#[derive(Clone, Debug)]
pub struct Content {
    /// What the mappings are for.
    pub class: Class,
    /// References.
    pub references: u64,
    /// Pages. One that was freed and is made again counts twice.
    pub pages: u64,
    /// The pages that have an identity.
    places: Places,
    /// The places stand for all pages.
    has_places: bool,
}

impl Content {
    fn new() -> Self {
        Content {
            // The last of all classes.
            class: Class::Unmapped,
            references: 0,
            pages: 0,
            places: Places::default(),
            has_places: true,
        }
    }

    fn add(&mut self, other: Content) {
        // The order in which the objects of a name came must not matter.
        self.class = self.class.min(other.class);
        self.references += other.references;
        self.pages += other.pages;
        self.has_places &= other.has_places;
        for (owner, pages) in other.places {
            match self.places.entry(owner) {
                Entry::Vacant(entry) => drop(entry.insert(pages)),
                Entry::Occupied(mut entry) => entry.get_mut().extend(pages),
            }
        }
    }
}

/// The objects of a name.
struct Named {
    content: Content,
    /// The file of the first one.
    first: FileId,
    /// Whether one is of another file.
    several: bool,
    /// Whether one is shared memory.
    shared: bool,
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

/// How many pages of `own` others have, too.
fn common(own: &Places, others: &Places) -> u64 {
    let both = own.iter().filter_map(|(owner, own)| {
        let others = others.get(owner)?;
        Some(own.intersection(others).count() as u64)
    });
    both.sum()
}

/// The pages of `own` that others do not have, as ranges in their order.
fn only(own: &Places, others: &Places) -> Vec<PageRange> {
    let mut owners: Vec<Owner> = own.keys().copied().collect();
    owners.sort_unstable_by_key(|owner| owner.order());
    let mut ranges: Vec<PageRange> = Vec::new();
    for owner in owners {
        let has =
            |places: &Places, page: &u64| places.get(&owner).is_some_and(|p| p.contains(page));
        let pages = own.get(&owner).into_iter().flatten().copied();
        let mut pages: Vec<u64> = pages.filter(|page| !has(others, page)).collect();
        pages.sort_unstable();
        // A range has pages of one owner only.
        let begin = ranges.len();
        for page in pages {
            match ranges[begin..].last_mut() {
                Some(last) if last.first + last.pages == page => last.pages += 1,
                _ => ranges.push(PageRange {
                    pid: owner.pid(),
                    first: page,
                    pages: 1,
                }),
            }
        }
    }
    ranges
}

fn count(places: &Places) -> u64 {
    places.values().map(|pages| pages.len() as u64).sum()
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
    /// Which pages are new; `None` if that is not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_pages: Option<Vec<PageRange>>,
    /// Which pages are gone; `None` if that is not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone_pages: Option<Vec<PageRange>>,
}

impl Changed {
    /// The same without the answer to which pages these are.
    pub fn counts(&self) -> Self {
        Changed {
            new_pages: None,
            gone_pages: None,
            ..*self
        }
    }
}

/// Collects what is mapped, in a pass.
///
/// Takes a bit a page, and about 16 bytes for each page that has an identity.
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
            nowhere: Content::new(),
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

    /// The pages of this name that have an identity: none, if nothing is mapped by it.
    fn places(&self, name: &str) -> Cow<'_, Places> {
        let content = self.find(name);
        content.map_or_else(Cow::default, |content| Cow::Borrowed(&content.places))
    }

    /// How many pages of this name differ from those of `base`; `None` if pages of the two runs cannot
    /// be told to be the same.
    pub fn changed(&self, base: &Contents, name: &str) -> Option<Changed> {
        let contents = || [self.find(name), base.find(name)].into_iter().flatten();
        if contents().next().is_none() || contents().any(|content| !content.has_places) {
            return None;
        }
        let (own, others) = (self.places(name), base.places(name));
        let both = common(&own, &others);
        Some(Changed {
            new: count(&own) - both,
            gone: count(&others) - both,
            both,
            new_pages: None,
            gone_pages: None,
        })
    }

    /// The pages of this name that `other` did not reference.
    pub fn pages_only_here(&self, other: &Contents, name: &str) -> Vec<PageRange> {
        only(&self.places(name), &other.places(name))
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
    fn place(&self, r: &Ref, object: &Object, world: &World) -> Option<(Owner, u64)> {
        let shift = world.header.page_shift;
        match (object.kind, self.identity) {
            // Files of a tmpfs are shared memory with a name.
            (MapKind::File | MapKind::Shmem, identity) => {
                let mapping = world.space.get(r.mm)?.find(r.address())?;
                let offset = r.address().wrapping_sub(mapping.start);
                let owner = match identity {
                    Identity::OfFiles => Owner::File,
                    Identity::OfTrace => Owner::Inode(object.file),
                };
                Some((owner, mapping.offset.wrapping_add(offset) >> shift))
            }
            // A window gives the address spaces new numbers.
            (_, Identity::OfTrace) => {
                let process = world.tasks.find(r.tid())?;
                let owner = Owner::Process(world.tasks.process(process).tgid.0);
                Some((owner, r.address() >> shift))
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
            let mapped = batch.world.space.object(object);
            let named = new.then(|| self.place(r, mapped, batch.world));
            let at = object.0 as usize;
            if at >= self.by_object.len() {
                self.by_object.resize(at + 1, Content::new());
            }
            let content = &mut self.by_object[at];
            content.references += 1;
            if let Some(place) = named {
                content.pages += 1;
                content.has_places &= place.is_some();
                if let Some((owner, page)) = place {
                    content.places.entry(owner).or_default().insert(page);
                }
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
        let mut by_name: BTreeMap<Box<str>, Named> = BTreeMap::new();
        for (object, mut content) in objects.iter().zip(std::mem::take(&mut self.by_object)) {
            if content.references == 0 {
                continue;
            }
            let name = match &*object.name {
                "" => ANONYMOUS.into(),
                _ => object.name.clone(),
            };
            let new = || Named {
                content: Content::new(),
                first: object.file,
                several: false,
                shared: false,
            };
            content.class = Class::of(object, &outcome.world);
            let named = by_name.entry(name).or_insert_with(new);
            named.several |= object.file != named.first;
            named.shared |= object.kind == MapKind::Shmem;
            named.content.add(content);
        }
        let by_names_only = self.identity == Identity::OfFiles;
        let contents = by_name.into_iter().map(|(name, mut named)| {
            let is_unknown = by_names_only && named.several && named.shared;
            named.content.has_places &= !is_unknown;
            (name, named.content)
        });
        self.by_name = contents.collect();
        let nowhere = std::mem::replace(&mut self.nowhere, Content::new());
        if nowhere.references > 0 {
            let name = NOWHERE.into();
            let known = self.by_name.entry(name).or_insert_with(Content::new);
            known.add(nowhere);
        }
        Ok(())
    }
}
