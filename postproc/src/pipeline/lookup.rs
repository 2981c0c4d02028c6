//! The place and the page of each reference.
//!
//! References repeat, and nothing changes between two events. So what was found is remembered
//! until an event changes it.

use std::convert::Infallible;

use super::Place;
use crate::canon::{self, Backing, Canon, Ends, PageMode, UNKNOWN};
use crate::space::{Issue, MmState, Space};
use crate::stretch::Earlier;
use crate::trace::{Body, Event, MapKind, Ref};
use crate::units::{CanonPage, Mm, VirtPage};

/// A cache of the part of a mapping that lies in a region, valid while nothing changes.
#[derive(Clone, Copy)]
struct Area {
    mm: Mm,
    epoch: u64,
    first: VirtPage,
    /// The page after its last.
    end: VirtPage,
    place: Place,
    backing: Backing,
}

/// Pages of a region, as the power of two: as many as one page table has. Each has
/// one area, of the mapping that was needed last.
const REGION_SHIFT: u32 = 9;

/// Regions that are remembered: 4 GiB with pages of 4 KiB.
const REGIONS: usize = 1 << 11;

/// Pages of a range that are looked for one by one.
const FEW: u64 = 64;

/// A number for a page that spreads well.
#[inline]
fn spread(mm: Mm, vpn: VirtPage) -> usize {
    (vpn.0 ^ u64::from(mm.0).wrapping_mul(0x9e37_79b9)) as usize
}

/// What of the mappings an event has changed.
enum Changed {
    /// Nothing else but a range of an address space: its first page, and the one after its last.
    Range(Mm, u64, u64),
    Anything,
    Nothing,
}

/// Finds where pages lie, and what is mapped there.
pub(crate) struct Areas {
    areas: Vec<Option<Area>>,
    /// The number in everything that is remembered and valid; it changes when a mapping or a page
    /// changes.
    epoch: u64,
    page_shift: u32,
}

impl Areas {
    pub fn new(page_shift: u32) -> Self {
        Areas {
            areas: vec![None; REGIONS],
            epoch: 1,
            page_shift,
        }
    }

    #[inline]
    fn region(mm: Mm, vpn: VirtPage) -> usize {
        spread(mm, VirtPage(vpn.0 >> REGION_SHIFT)) % REGIONS
    }

    /// The first page that begins at an address or above.
    fn page_up(&self, address: u64) -> u64 {
        address.div_ceil(1 << self.page_shift)
    }

    /// Applies an event to the address spaces, with what else `apply` does; that says whether a
    /// virtual page may now be another page than before.
    fn change<E>(
        &self,
        event: &Event<'_>,
        space: &mut Space,
        apply: impl FnOnce(&Space) -> Result<bool, E>,
    ) -> Result<(Vec<Issue>, Changed), E> {
        let before = space.epoch();
        // Of an address space that lives on, these change a range. One that
        // the event makes known changes as a whole.
        let range = match event.body {
            Body::Map(map) => Some((map.start, map.end)),
            Body::Unmap { start, end } => Some((start, end)),
            _ => None,
        }
        .filter(|_| space.state(event.mm) == MmState::Live);
        let issues = space.apply(event);
        let renamed = apply(space)?;
        let changed = match range {
            Some((start, end)) => {
                Changed::Range(event.mm, start >> self.page_shift, self.page_up(end))
            }
            None if renamed || space.epoch() != before => Changed::Anything,
            None => Changed::Nothing,
        };
        Ok((issues, changed))
    }

    /// Applies an event to the address spaces.
    pub fn apply(&mut self, event: &Event<'_>, space: &mut Space) {
        let Ok((_, changed)) = self.change(event, space, |_| Ok::<_, Infallible>(false));
        self.forget(&changed);
    }

    /// Forgets what an event has changed; true if that is everything.
    fn forget(&mut self, changed: &Changed) -> bool {
        let (mm, first, last) = match *changed {
            Changed::Nothing => return false,
            Changed::Range(mm, first, last) if last.saturating_sub(first) <= FEW => {
                (mm, first, last)
            }
            _ => {
                self.epoch += 1;
                return true;
            }
        };
        // As few as they are, they lie in one region or two.
        for vpn in [first, last.saturating_sub(1)].map(VirtPage) {
            let area = &mut self.areas[Self::region(mm, vpn)];
            if area.is_some_and(|a| a.mm == mm && a.first.0 < last && first < a.end.0) {
                *area = None;
            }
        }
        false
    }

    /// The place of a page, and what is mapped there.
    pub fn locate(&mut self, mm: Mm, vpn: VirtPage, space: &Space) -> (Place, Option<Backing>) {
        let at = Self::region(mm, vpn);
        if let Some(a) = &self.areas[at] {
            if a.epoch == self.epoch && a.mm == mm && (a.first..a.end).contains(&vpn) {
                return (a.place, Some(a.backing));
            }
        }
        let mapping = match space.get(mm).map(|s| s.find(vpn.0 << self.page_shift)) {
            Some(Some(mapping)) => mapping,
            Some(None) => return (Place::Unmapped, None),
            None if space.state(mm) == MmState::Ended => return (Place::EndedMm, None),
            None => return (Place::UnknownMm, None),
        };
        let is_file = matches!(mapping.kind, MapKind::File | MapKind::Shmem);
        let first = mapping.start >> self.page_shift;
        let region = vpn.0 >> REGION_SHIFT << REGION_SHIFT;
        let area = Area {
            mm,
            epoch: self.epoch,
            first: VirtPage(self.page_up(mapping.start).max(region)),
            end: VirtPage((mapping.end >> self.page_shift).min(region + (1 << REGION_SHIFT))),
            place: Place::Mapped {
                prot: mapping.prot,
                object: mapping.object,
            },
            backing: Backing {
                object: mapping.object,
                kind: mapping.kind,
                file: is_file.then(|| space.object(mapping.object).file),
                shared: mapping.is_shared() || mapping.kind == MapKind::Special,
                delta: (mapping.offset >> self.page_shift).wrapping_sub(first),
            },
        };
        self.areas[at] = Some(area);
        (area.place, Some(area.backing))
    }
}

/// What a truncation ends besides pages of the file: ranges of address spaces with private copies.
pub(crate) fn cut_copies(
    event: &Event<'_>,
    space: &Space,
    page_shift: u32,
) -> impl Iterator<Item = (Mm, u64, u64)> {
    let parts = match event.body {
        Body::Truncate { file, length } => {
            let page = (1 << page_shift) - 1;
            let from = length.saturating_add(page) & !page;
            space.parts_of(file, from, u64::MAX)
        }
        _ => Vec::new(),
    };
    let private = parts.into_iter().filter(|&(.., shared)| !shared);
    private.map(|(mm, start, end, _)| (mm, start, end))
}

/// A cache of pages by virtual page, valid while nothing changes.
#[derive(Clone, Copy)]
struct Line {
    mm: Mm,
    vpn: VirtPage,
    epoch: u64,
    place: Place,
    page: CanonPage,
}

const LINES: usize = 1 << 12;

/// References whose pages are looked for in the tables at a time.
const AHEAD: usize = 64;

/// Finds the places and the pages of references.
pub(crate) struct Lookup {
    lines: Vec<Line>,
    areas: Areas,
    /// Look-ups that found no valid line.
    misses: usize,
    pub canon: Canon,
}

impl Lookup {
    pub fn new(mode: PageMode, ends: Ends, page_shift: u32) -> Self {
        let empty = Line {
            mm: Mm(0),
            vpn: VirtPage(0),
            epoch: 0,
            place: Place::UnknownMm,
            page: CanonPage(0),
        };
        Lookup {
            lines: vec![empty; LINES],
            areas: Areas::new(page_shift),
            misses: 0,
            canon: Canon::new(mode, ends, page_shift),
        }
    }

    #[inline]
    fn at(mm: Mm, vpn: VirtPage) -> usize {
        spread(mm, vpn) % LINES
    }

    /// The place and the page of a reference, of which [`Canon::known`] may have given something.
    #[inline]
    pub fn get(
        &mut self,
        mm: Mm,
        vpn: VirtPage,
        known: u32,
        space: &Space,
    ) -> canon::Result<(Place, CanonPage)> {
        let at = Self::at(mm, vpn);
        let line = &self.lines[at];
        if line.epoch == self.areas.epoch && line.mm == mm && line.vpn == vpn {
            return Ok((line.place, line.page));
        }
        self.miss(at, mm, vpn, known, space)
    }

    #[cold]
    fn miss(
        &mut self,
        at: usize,
        mm: Mm,
        vpn: VirtPage,
        known: u32,
        space: &Space,
    ) -> canon::Result<(Place, CanonPage)> {
        self.misses += 1;
        let (place, backing) = self.areas.locate(mm, vpn, space);
        let page = self.canon.identify_known(mm, vpn, backing, known)?;
        self.lines[at] = Line {
            mm,
            vpn,
            epoch: self.areas.epoch,
            place,
            page,
        };
        Ok((place, page))
    }

    /// Finds the places and pages of a batch.
    pub fn batch(
        &mut self,
        refs: &[Ref],
        space: &Space,
        places: &mut Vec<Place>,
        pages: &mut Vec<CanonPage>,
    ) -> canon::Result<()> {
        let shift = self.areas.page_shift;
        for part in refs.chunks(AHEAD) {
            // The look-ups before show for how many this is worth while.
            let known = if self.misses * 4 > AHEAD {
                self.canon.known(part.iter().map(|r| (r.mm, r.vpn(shift))))
            } else {
                [UNKNOWN; AHEAD]
            };
            self.misses = 0;
            for (r, known) in part.iter().zip(known) {
                let (place, page) = self.get(r.mm, r.vpn(shift), known, space)?;
                places.push(place);
                pages.push(page);
            }
        }
        Ok(())
    }

    /// Gives names to pages by the records before a stretch, up to a sequence number.
    pub fn name_earlier(
        &mut self,
        earlier: &mut Earlier<'_>,
        seq: u64,
        space: &Space,
    ) -> canon::Result<()> {
        loop {
            let pages = earlier.take(seq, AHEAD);
            if pages.is_empty() {
                return Ok(());
            }
            let known: [u32; AHEAD] = self.canon.known(pages.iter().copied());
            for (&(mm, vpn), known) in pages.iter().zip(known) {
                self.get(mm, vpn, known, space)?;
            }
            // Who reads the stretches before hands on their origins.
            self.canon.take_origins();
        }
    }

    /// Applies an event to the address spaces and to the names of pages.
    pub fn apply(&mut self, event: &Event<'_>, space: &mut Space) -> canon::Result<Vec<Issue>> {
        let (canon, shift) = (&mut self.canon, self.areas.page_shift);
        let (issues, changed) = self.areas.change(event, space, |space| {
            let renamed = canon.apply(event)?;
            for (mm, start, end) in cut_copies(event, space, shift) {
                canon.end_copies(mm, start, end);
            }
            Ok(renamed)
        })?;
        if let (false, Changed::Range(mm, first, last)) = (self.areas.forget(&changed), changed) {
            self.forget(mm, first, last);
        }
        Ok(issues)
    }

    /// Forgets few pages of an address space.
    fn forget(&mut self, mm: Mm, first: u64, last: u64) {
        for vpn in (first..last).map(VirtPage) {
            let line = &mut self.lines[Self::at(mm, vpn)];
            if line.mm == mm && line.vpn == vpn {
                line.epoch = 0;
            }
        }
    }
}
