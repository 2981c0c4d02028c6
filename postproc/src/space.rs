//! The address spaces of a trace: which ranges are mapped, to which objects, and with
//! which protection, according to the events.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use rust_mm_trace::uapi;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use crate::radix::Keyed;
use crate::ranges::{Ranged, Ranges};
use crate::trace::{Body, Event, FileId, MapBody, MapKind};
use crate::units::{Mm, Prot};

/// The number of removed ranges that an address space remembers, so that findings can cite them.
const REMEMBERED: usize = 64;

/// The event that caused a mapping's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Source {
    /// `VMTRACE_EV_*`.
    pub number: u16,
    /// The event's sequence number.
    pub seq: u64,
    /// Where the event lies in the file.
    pub offset: u64,
}

impl Source {
    fn of(event: &Event<'_>) -> Self {
        Source {
            number: event.number,
            seq: event.seq,
            offset: event.offset,
        }
    }
}

/// The object that a mapping maps: an index for [`Space::object`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub struct ObjectId(pub u32);

impl Keyed for ObjectId {
    fn key(&self) -> u64 {
        self.0.into()
    }
}

/// A name by which a file was mapped that is not the first one: a path that it got later, or that
/// of another link to it. An index for [`Space::name`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AliasId(u32);

impl AliasId {
    /// The names before it.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// Something that can be mapped: a file, or a kind of anonymous memory.
#[derive(Clone, Debug)]
pub struct Object {
    /// What it is.
    pub kind: MapKind,
    /// The file; zero if the object is no file.
    pub file: FileId,
    /// The name by which it was mapped first: a file's name, which in traces of the kernel has no
    /// directories, or a name in brackets.
    pub name: Box<str>,
    /// Whether it was mapped by another name, too: [`Mapping::alias`].
    pub has_aliases: bool,
    /// Bytes of a page, if its pages are huge. All records of such a page have the address
    /// of its first byte.
    pub huge: Option<u64>,
}

/// One mapped range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First byte.
    pub start: u64,
    /// First byte after.
    pub end: u64,
    /// Offset in the object of the first byte, in bytes.
    pub offset: u64,
    /// What is mapped.
    pub object: ObjectId,
    /// The name by which it was mapped, if that is not [`Object::name`].
    pub alias: Option<AliasId>,
    /// What it is.
    pub kind: MapKind,
    /// The protection.
    pub prot: Prot,
    /// `VMTRACE_MAP_*` bits.
    pub flags: u32,
    /// The event that created the mapping.
    pub born: Source,
    /// The event that last changed the mapping.
    pub changed: Source,
}

impl Mapping {
    /// Whether a write goes to the object itself.
    pub fn is_shared(&self) -> bool {
        self.flags & uapi::VMTRACE_MAP_SHARED != 0
    }

    /// The part from `start` to `end`, which must lie inside.
    fn part(&self, start: u64, end: u64) -> Mapping {
        debug_assert!(self.start <= start && start < end && end <= self.end);
        Mapping {
            start,
            end,
            offset: self.offset.wrapping_add(start - self.start),
            ..*self
        }
    }
}

/// What can happen to a mapping, besides that it is moved.
#[derive(Clone, Copy, Default)]
pub(crate) struct Edit {
    prot: Option<Prot>,
    changed: Option<Source>,
}

impl Ranged for Mapping {
    type Edit = Edit;

    fn start(&self) -> u64 {
        self.start
    }

    fn length(&self) -> u64 {
        self.end - self.start
    }

    fn shift(&mut self, by: u64) {
        self.start = self.start.wrapping_add(by);
        self.end = self.end.wrapping_add(by);
    }

    fn edit(&mut self, edit: &Edit) {
        self.prot = edit.prot.unwrap_or(self.prot);
        self.changed = edit.changed.unwrap_or(self.changed);
    }

    fn then(first: &mut Edit, next: &Edit) {
        first.prot = next.prot.or(first.prot);
        first.changed = next.changed.or(first.changed);
    }
}

/// A range that is no longer mapped.
#[derive(Clone, Copy, Debug)]
pub struct Removed {
    /// First byte.
    pub start: u64,
    /// First byte after.
    pub end: u64,
    /// The event that removed it.
    pub by: Source,
}

/// One address space. A copy shares what neither it nor its origin has changed since.
#[derive(Clone, Default)]
pub struct AddressSpace {
    /// By first byte; ranges do not overlap.
    maps: Ranges<Mapping>,
    removed: Rc<VecDeque<Removed>>,
}

impl AddressSpace {
    /// The mapping that an address lies in.
    pub fn find(&self, address: u64) -> Option<Mapping> {
        let mapping = self.maps.at_or_below(address)?.get();
        (address < mapping.end).then_some(mapping)
    }

    /// All mappings in order of address.
    pub fn mappings(&self) -> impl Iterator<Item = Mapping> {
        self.maps.iter()
    }

    /// The mappings of which a part lies in a range, the highest first.
    pub fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = Mapping> {
        let mut end = end;
        std::iter::from_fn(move || {
            let mapping = self.overlap(start, end)?;
            end = mapping.start;
            Some(mapping)
        })
    }

    /// The latest remembered removal that covers an address.
    pub fn last_removal(&self, address: u64) -> Option<&Removed> {
        self.removed
            .iter()
            .rev()
            .find(|r| r.start <= address && address < r.end)
    }

    /// The mappings next to an unmapped address, below and above.
    pub fn neighbours(&self, address: u64) -> (Option<Mapping>, Option<Mapping>) {
        (
            self.maps.at_or_below(address).map(|seen| seen.get()),
            self.maps.at_or_above(address).map(|seen| seen.get()),
        )
    }

    fn overlap(&self, start: u64, end: u64) -> Option<Mapping> {
        if start >= end {
            return None;
        }
        let mapping = self.maps.at_or_below(end - 1)?.get();
        (mapping.end > start).then_some(mapping)
    }

    /// Takes out what is mapped in a range, and what is mapped above it.
    fn take(&mut self, start: u64, end: u64) -> (Ranges<Mapping>, Ranges<Mapping>) {
        split(&mut self.maps, start);
        split(&mut self.maps, end);
        let mut part = self.maps.split_off(start);
        let above = part.split_off(end);
        (part, above)
    }

    /// Removes the mappings in a range.
    fn cut(&mut self, start: u64, end: u64) {
        let Some(mapping) = self.overlap(start, end) else {
            return;
        };
        if mapping.start > start && self.overlap(start, mapping.start).is_some() {
            let (_, above) = self.take(start, end);
            self.maps.append(above);
            return;
        }
        // There is only one.
        match mapping.start < start {
            true => self.maps.insert(mapping.part(mapping.start, start)),
            false => self.maps.remove(mapping.start),
        }
        if mapping.end > end {
            self.maps.insert(mapping.part(end, mapping.end));
        }
    }

    fn remember(&mut self, start: u64, end: u64, by: Source) {
        let removed = Rc::make_mut(&mut self.removed);
        if removed.len() == REMEMBERED {
            removed.pop_front();
        }
        removed.push_back(Removed { start, end, by });
    }
}

/// Cuts mappings in two so that none crosses `at`.
fn split(maps: &mut Ranges<Mapping>, at: u64) {
    let below = at.checked_sub(1).and_then(|below| maps.at_or_below(below));
    let Some(mapping) = below.map(|seen| seen.get()).filter(|m| m.end > at) else {
        return;
    };
    maps.insert(mapping.part(mapping.start, at));
    maps.insert(mapping.part(at, mapping.end));
}

/// A fault of an event.
#[derive(Clone, Debug)]
pub struct Issue {
    /// The fault in words.
    pub what: String,
    /// The event that it contradicts.
    pub with: Option<Source>,
}

/// The state of an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MmState {
    /// No event has created it.
    Unknown,
    /// It exists.
    Live,
    /// It has ended.
    Ended,
}

#[derive(PartialEq, Eq, Hash)]
enum ObjectKey {
    File(MapKind, FileId),
    Named(MapKind, Box<str>),
}

/// All address spaces of a trace.
///
/// Memory use is proportional to the mappings at one time, the distinct files and the number
/// of processes, not to the trace's length.
#[derive(Default)]
pub struct Space {
    live: FxHashMap<Mm, AddressSpace>,
    ended: FxHashSet<Mm>,
    /// The sets of those that are not in set 0.
    sets: FxHashMap<Mm, u32>,
    objects: Vec<Object>,
    by_key: FxHashMap<ObjectKey, ObjectId>,
    aliases: Vec<Rc<str>>,
    by_alias: FxHashMap<Rc<str>, AliasId>,
    huge: BTreeSet<u64>,
    epoch: u64,
}

impl Space {
    /// A number that changes whenever a mapping does.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The state of an address space.
    pub fn state(&self, mm: Mm) -> MmState {
        if self.live.contains_key(&mm) {
            MmState::Live
        } else if self.ended.contains(&mm) {
            MmState::Ended
        } else {
            MmState::Unknown
        }
    }

    /// The EVMS that an address space is in.
    pub fn set_of(&self, mm: Mm) -> u32 {
        self.sets.get(&mm).copied().unwrap_or_default()
    }

    /// An address space that exists.
    pub fn get(&self, mm: Mm) -> Option<&AddressSpace> {
        self.live.get(&mm)
    }

    /// All address spaces that exist, in the order of their numbers.
    pub(crate) fn living(&self) -> Vec<Mm> {
        let mut all: Vec<Mm> = self.live.keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// A mapped object.
    pub fn object(&self, id: ObjectId) -> &Object {
        &self.objects[id.0 as usize]
    }

    /// The name by which a mapping was made: see [`Object::name`].
    pub fn name(&self, mapping: &Mapping) -> &str {
        match mapping.alias {
            Some(AliasId(number)) => &self.aliases[number as usize],
            None => &self.object(mapping.object).name,
        }
    }

    /// The sizes of huge pages that were mapped, in bytes.
    pub fn huge_pages(&self) -> &BTreeSet<u64> {
        &self.huge
    }

    /// All mapped objects so far; [`ObjectId`]s are indexes.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// The parts of mappings that bytes `from` to `to` of a file lie in, and whether they
    /// are shared: in the order of address spaces and addresses.
    pub fn parts_of(&self, file: FileId, from: u64, to: u64) -> Vec<(Mm, u64, u64, bool)> {
        let kinds = [MapKind::File, MapKind::Shmem, MapKind::Hugetlb];
        let ids = kinds.map(|kind| self.by_key.get(&ObjectKey::File(kind, file)));
        let mut parts = Vec::new();
        if ids.iter().all(|id| id.is_none()) {
            return parts;
        }
        for (&mm, space) in &self.live {
            for m in space.mappings() {
                if !ids.contains(&Some(&m.object)) {
                    continue;
                }
                let at = |byte: u64| m.start.saturating_add(byte.saturating_sub(m.offset));
                let (start, end) = (at(from), at(to).min(m.end));
                if start < end {
                    parts.push((mm, start, end, m.is_shared()));
                }
            }
        }
        parts.sort_unstable();
        parts
    }

    /// Applies an event; returns the event's faults.
    pub fn apply(&mut self, event: &Event<'_>) -> Vec<Issue> {
        let by = Source::of(event);
        let mut issues = Vec::new();
        match event.body {
            Body::Map(map) => self.map(event, &map, by, &mut issues),
            Body::Unmap { start, end } => {
                self.touch(event.mm, &mut issues);
                if let Some(space) = self.live.get_mut(&event.mm) {
                    space.cut(start, end);
                    space.remember(start, end, by);
                }
            }
            Body::Move {
                old_start,
                old_len,
                new_start,
                new_len,
                dontunmap,
            } => {
                self.touch(event.mm, &mut issues);
                let (old_end, new_end) = (old_start + old_len, new_start + new_len);
                if let Some(space) = self.live.get_mut(&event.mm) {
                    space.relocate(
                        old_start..old_end,
                        new_start..new_end,
                        dontunmap,
                        by,
                        &mut issues,
                    );
                }
            }
            Body::Protect { start, end, prot } => {
                self.touch(event.mm, &mut issues);
                if let Some(space) = self.live.get_mut(&event.mm) {
                    space.protect(start, end, prot, by, &mut issues);
                }
            }
            Body::MmDup { parent } => {
                self.epoch += 1;
                if self.state(event.mm) != MmState::Unknown {
                    issues.push(Issue {
                        what: format!(
                            "copies into address space {}, which exists already",
                            event.mm.0
                        ),
                        with: None,
                    });
                }
                let copy = self.live.get(&parent).cloned();
                if copy.is_none() {
                    issues.push(Issue {
                        what: format!("copies address space {}, which does not exist", parent.0),
                        with: None,
                    });
                }
                self.ended.remove(&event.mm);
                self.live.insert(event.mm, copy.unwrap_or_default());
            }
            Body::Set { set, .. } => {
                // It comes before everything else about the address space.
                let mapped = self.live.get(&event.mm);
                let wrong = if event.mm.0 == 0 {
                    Some("puts no address space in a set".to_string())
                } else if self.ended.contains(&event.mm) {
                    Some(format!(
                        "puts address space {}, which has ended, in a set",
                        event.mm.0
                    ))
                } else if mapped.is_some_and(|space| space.mappings().next().is_some()) {
                    Some(format!(
                        "puts address space {} in a set after it was mapped",
                        event.mm.0
                    ))
                } else {
                    let before = self.sets.insert(event.mm, set);
                    before.map(|before| {
                        format!(
                            "puts address space {} in a set a second time: it was in set {before}",
                            event.mm.0
                        )
                    })
                };
                issues.extend(wrong.map(|what| Issue { what, with: None }));
            }
            Body::MmEnd => {
                self.epoch += 1;
                self.sets.remove(&event.mm);
                // An address space may end without ever having been mapped.
                self.live.remove(&event.mm);
                if event.mm.0 != 0 && !self.ended.insert(event.mm) {
                    issues.push(Issue {
                        what: format!("address space {} ends a second time", event.mm.0),
                        with: None,
                    });
                }
            }
            // The address spaces from before are not traced any more; their numbers are not used
            // again.
            Body::SnapBegin => {
                self.epoch += 1;
                self.ended.extend(self.live.drain().map(|(mm, _)| mm));
                self.sets.clear();
            }
            Body::Exec { .. } | Body::Task { .. } if event.mm.0 != 0 => self.introduce(event.mm),
            Body::Fork { child_mm, .. } if child_mm.0 != 0 => self.introduce(child_mm),
            _ => {}
        }
        issues
    }

    /// Adds an address space that may have no mapping yet.
    fn introduce(&mut self, mm: Mm) {
        if self.state(mm) == MmState::Unknown {
            self.epoch += 1;
            self.live.entry(mm).or_default();
        }
    }

    /// Before a change to an address space that must exist.
    fn touch(&mut self, mm: Mm, issues: &mut Vec<Issue>) {
        self.epoch += 1;
        match self.state(mm) {
            MmState::Live => {}
            MmState::Unknown => issues.push(Issue {
                what: format!("changes address space {}, which no event created", mm.0),
                with: None,
            }),
            MmState::Ended => issues.push(Issue {
                what: format!("changes address space {}, which has ended", mm.0),
                with: None,
            }),
        }
    }

    fn map(&mut self, event: &Event<'_>, map: &MapBody<'_>, by: Source, issues: &mut Vec<Issue>) {
        self.epoch += 1;
        if self.ended.contains(&event.mm) {
            issues.push(Issue {
                what: format!("maps into address space {}, which has ended", event.mm.0),
                with: None,
            });
        }
        let object = self.intern(map);
        let alias = self.alias(object, map);
        let space = self.live.entry(event.mm).or_default();
        if map.start >= map.end {
            return;
        }
        if let Some(other) = space.overlap(map.start, map.end) {
            if !event.is_snapshot() {
                issues.push(Issue {
                    what: format!(
                        "maps {:#x}..{:#x} of address space {} over the mapping {:#x}..{:#x}",
                        map.start, map.end, event.mm.0, other.start, other.end
                    ),
                    with: Some(other.changed),
                });
            }
            space.cut(map.start, map.end);
        }
        space.maps.insert(Mapping {
            start: map.start,
            end: map.end,
            offset: map.offset,
            object,
            alias,
            kind: map.kind,
            prot: map.prot,
            flags: map.flags,
            born: by,
            changed: by,
        });
    }

    fn intern(&mut self, map: &MapBody<'_>) -> ObjectId {
        let text = || String::from_utf8_lossy(map.name);
        let name = || match (map.kind, u32::from(map.cause)) {
            _ if !map.name.is_empty() => text().into_owned(),
            (MapKind::Anon, uapi::VMTRACE_BY_BRK) => "[heap]".into(),
            (MapKind::Anon, uapi::VMTRACE_BY_STACK) => "[stack]".into(),
            (MapKind::Anon, _) if map.flags & uapi::VMTRACE_MAP_GROWSDOWN != 0 => "[stack]".into(),
            (MapKind::Anon, _) => "[anon]".into(),
            (MapKind::Special, _) => "[special]".into(),
            (kind, _) => format!("[{kind:?} {:x}:{}]", map.file.dev, map.file.ino).to_lowercase(),
        };
        let is_file = match map.kind {
            MapKind::Anon | MapKind::Special => false,
            MapKind::File | MapKind::Shmem => true,
            MapKind::Device | MapKind::Hugetlb | MapKind::Unknown => map.file.ino != 0,
        };
        let key = if is_file {
            ObjectKey::File(map.kind, map.file)
        } else {
            ObjectKey::Named(map.kind, name().into())
        };
        if let Some(&id) = self.by_key.get(&key) {
            return id;
        }
        let id = ObjectId(u32::try_from(self.objects.len()).unwrap_or(u32::MAX));
        self.huge.extend(map.huge);
        self.objects.push(Object {
            kind: map.kind,
            file: if is_file { map.file } else { FileId::default() },
            name: name().into(),
            has_aliases: false,
            huge: map.huge,
        });
        self.by_key.insert(key, id);
        id
    }

    /// The name of a mapping of an object, if it is not the object's.
    fn alias(&mut self, object: ObjectId, map: &MapBody<'_>) -> Option<AliasId> {
        let object = &mut self.objects[object.0 as usize];
        // What has no name got one from its identity.
        if map.name.is_empty() || map.name == object.name.as_bytes() {
            return None;
        }
        let name = String::from_utf8_lossy(map.name);
        if *name == *object.name {
            return None;
        }
        object.has_aliases = true;
        if let Some(&id) = self.by_alias.get(&*name) {
            return Some(id);
        }
        let id = AliasId(u32::try_from(self.aliases.len()).unwrap_or(u32::MAX));
        let name: Rc<str> = name.into();
        self.aliases.push(name.clone());
        self.by_alias.insert(name, id);
        Some(id)
    }
}

impl AddressSpace {
    fn protect(&mut self, start: u64, end: u64, prot: Prot, by: Source, issues: &mut Vec<Issue>) {
        if start >= end {
            return;
        }
        let edit = Edit {
            prot: Some(prot),
            changed: Some(by),
        };
        let within = |m: &Mapping| m.start <= start && end <= m.end;
        let covered = if let Some(mapping) = self.find(start).filter(within) {
            split(&mut self.maps, start);
            split(&mut self.maps, end);
            let mut part = mapping.part(start, end);
            part.edit(&edit);
            self.maps.insert(part);
            end - start
        } else {
            let (mut part, above) = self.take(start, end);
            let covered = part.covered();
            part.change(0, edit);
            self.maps.append(part);
            self.maps.append(above);
            covered
        };
        if covered != end - start {
            issues.push(Issue {
                what: format!(
                    "protects {start:#x}..{end:#x}, of which {} bytes are not mapped",
                    end - start - covered
                ),
                with: self.last_removal(start).map(|r| r.by),
            });
        }
    }

    fn relocate(
        &mut self,
        old: std::ops::Range<u64>,
        new: std::ops::Range<u64>,
        dontunmap: bool,
        by: Source,
        issues: &mut Vec<Issue>,
    ) {
        let mut moved = Ranges::default();
        if !old.is_empty() {
            let above;
            (moved, above) = self.take(old.start, old.end);
            if dontunmap {
                self.maps.append(moved.clone());
            }
            self.maps.append(above);
        }
        if moved.is_empty() && !old.is_empty() {
            issues.push(Issue {
                what: format!(
                    "moves {:#x}..{:#x}, where nothing is mapped",
                    old.start, old.end
                ),
                with: self.last_removal(old.start).map(|r| r.by),
            });
        }
        if !dontunmap {
            self.remember(old.start, old.end, by);
        }
        if let Some(other) = self.overlap(new.start, new.end) {
            issues.push(Issue {
                what: format!(
                    "moves to {:#x}..{:#x}, over the mapping {:#x}..{:#x}",
                    new.start, new.end, other.start, other.end
                ),
                with: Some(other.changed),
            });
            self.cut(new.start, new.end);
        }
        // The range lost its tail, or grew behind its last piece.
        let length = new.end - new.start;
        let end = old.start.saturating_add(length);
        split(&mut moved, end);
        moved.split_off(end);
        if let Some(mut last) = moved.pop_last() {
            if last.end == old.end {
                last.end = end;
            }
            moved.insert(last);
        }
        let edit = Edit {
            changed: Some(by),
            ..Edit::default()
        };
        moved.change(new.start.wrapping_sub(old.start), edit);
        let above = self.maps.split_off(new.start);
        self.maps.append(moved);
        self.maps.append(above);
    }
}
