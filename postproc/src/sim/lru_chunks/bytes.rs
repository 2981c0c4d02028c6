//! A stretch as bytes, for another process or machine.
//!
//! | what | as |
//! |---|---|
//! | [`MAGIC`], with the version of this form | 8 bytes |
//! | CRC32C of all that follows | 4 bytes, little-endian |
//! | places, references, cold | numbers |
//! | holes: how many, and the distance of each from the one below | numbers |
//! | resolved references, and write-backs: how many sizes have any; of each size the distance from the one before, and the number | numbers, the last with a sign |
//! | steps: how many, and of each | a number |
//! | its flags | a byte |
//! | its page, except of a hole that is filled: the difference from the page of the step before | a number with a sign |
//! | its place, if the page is there at the end: likewise | a number with a sign |
//! | its reach; and the size from which the page is dirty, if it is | numbers |
//!
//! Numbers are those of [`crate::varint`].

use byteorder::{ByteOrder, LittleEndian as LE};

use super::chunk::{DIRTY, FILL, FREE, GONE, OVER_HOLE, SETTLED, Step};
use super::stretch::{LruStretch, MOST, Malformed};
use crate::canon::MAX_PAGES;
use crate::varint;

/// Bytes of another version begin with another one.
const MAGIC: &[u8; 8] = b"VMTlru\0\x01";
const HEAD: usize = MAGIC.len() + 4;

impl LruStretch {
    /// As bytes, for [`LruStretch::from_bytes`]: mostly 6 to 12 for each page that the stretch references.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = MAGIC.to_vec();
        to.extend([0; 4]);
        for value in [self.places.into(), self.references, self.cold] {
            varint::put(value, &mut to);
        }
        varint::put(self.holes.len() as u64, &mut to);
        let mut last = 0;
        for &hole in &self.holes {
            varint::put(u64::from(hole - last), &mut to);
            last = hole;
        }
        for values in [&self.hits, &self.write_back_steps] {
            let some = || values.iter().enumerate().filter(|&(_, &value)| value != 0);
            varint::put(some().count() as u64, &mut to);
            let mut last = 0;
            for (at, &value) in some() {
                varint::put((at - last) as u64, &mut to);
                varint::put_signed(value, &mut to);
                last = at;
            }
        }
        varint::put(self.steps.len() as u64, &mut to);
        let (mut page, mut place) = (0, 0);
        for step in &self.steps {
            to.push(step.flags);
            if !step.is(FILL) {
                varint::put_signed(i64::from(step.page) - page, &mut to);
                page = step.page.into();
            }
            if !step.is(GONE) {
                varint::put_signed(i64::from(step.place) - place, &mut to);
                place = step.place.into();
            }
            varint::put(step.reach.into(), &mut to);
            if step.is(DIRTY) {
                varint::put(step.dirty_from.into(), &mut to);
            }
        }
        let crc = crc32c::crc32c(&to[HEAD..]);
        LE::write_u32(&mut to[MAGIC.len()..HEAD], crc);
        to
    }

    /// What [`LruStretch::to_bytes`] has made. Numbers of pages may be as large as those of any trace, so
    /// who puts hostile stretches together may need 4 GiB.
    ///
    /// # Errors
    ///
    /// The bytes are no stretch, or one of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let (head, rest) = bytes.split_at_checked(HEAD).ok_or(Malformed)?;
        let crc = LE::read_u32(&head[MAGIC.len()..]);
        if !head.starts_with(MAGIC) || crc != crc32c::crc32c(rest) {
            return Err(Malformed);
        }
        let stretch = parse(rest).ok_or(Malformed)?;
        match stretch.is_sound() {
            true => Ok(stretch),
            false => Err(Malformed),
        }
    }

    /// Whether the stretch can be used without a panic, even if the bytes are hostile.
    fn is_sound(&self) -> bool {
        // Each place is that of one page or of a hole.
        let mut taken = vec![false; self.places as usize];
        let mut take = |place: u32| {
            let taken = taken.get_mut(place as usize);
            taken.is_some_and(|taken| !std::mem::replace(taken, true))
        };
        let there = self.steps.iter().filter(|step| !step.is(GONE));
        let mut places = there
            .map(|step| step.place)
            .chain(self.holes.iter().copied());
        if !places.all(&mut take) || taken.contains(&false) {
            return false;
        }
        let mut pages: Vec<u32> = Vec::with_capacity(self.steps.len());
        let mut made = 0u64;
        for step in &self.steps {
            let known = FREE | FILL | OVER_HOLE | GONE | SETTLED | DIRTY;
            let fill_only = !step.is(FILL) || step.flags == FILL | GONE | SETTLED;
            // After a step that frees a page, or makes it dirty, its state is known.
            let settled = !step.is(FREE | GONE | DIRTY) || step.is(SETTLED);
            let clean = !step.is(GONE) || !step.is(DIRTY);
            let sizes = step.reach < self.places.max(1) && step.dirty_from < self.places.max(1);
            if step.flags & !known != 0 || !(fill_only && settled && clean && sizes) {
                return false;
            }
            made += u64::from(!step.is(FREE | OVER_HOLE));
            if !step.is(FILL) {
                pages.push(step.page);
            }
        }
        pages.sort_unstable();
        let first = self.steps.iter().filter(|step| !step.is(FREE | FILL));
        let resolved = self.hits.iter().try_fold(0i64, |sum, &hits| {
            sum.checked_add(hits).filter(|_| hits >= 0)
        });
        let all = resolved.and_then(|hits| {
            let seen = (hits as u64).checked_add(self.cold)?;
            seen.checked_add(first.count() as u64)
        });
        let steps = self.write_back_steps.iter();
        let counts = self.references < MOST
            && all == Some(self.references)
            && steps
                .map(|step| step.unsigned_abs())
                .all(|step| step <= self.references);
        let in_range = pages.iter().all(|page| (1..=MAX_PAGES).contains(page));
        let once = pages.windows(2).all(|pair| pair[0] != pair[1]);
        counts && in_range && once && made == u64::from(self.places)
    }
}

fn parse(mut from: &[u8]) -> Option<LruStretch> {
    let from = &mut from;
    let places = small(varint::take(from)?)?;
    let references = varint::take(from)?;
    let cold = varint::take(from)?;
    // Each place has a step, which has two bytes or more. So the tables are at most 45 times as large as
    // the bytes.
    if places as usize > from.len() {
        return None;
    }
    let holes = list(from, |from, last: Option<&u32>| {
        let hole = u64::from(last.copied().unwrap_or(0)).checked_add(varint::take(from)?)?;
        small(hole)
    })?;
    let hits = sparse(from, places)?;
    let write_back_steps = sparse(from, places)?;
    let (mut page, mut place) = (0, 0);
    let steps = list(from, |from, _| {
        let (&flags, rest) = from.split_first()?;
        *from = rest;
        let mut step = Step {
            page: 0,
            place: 0,
            reach: 0,
            dirty_from: 0,
            flags,
        };
        if !step.is(FILL) {
            step.page = next(from, &mut page)?;
        }
        if !step.is(GONE) {
            step.place = next(from, &mut place)?;
        }
        step.reach = small(varint::take(from)?)?;
        if step.is(DIRTY) {
            step.dirty_from = small(varint::take(from)?)?;
        }
        Some(step)
    })?;
    from.is_empty().then_some(LruStretch {
        steps,
        places,
        holes,
        references,
        cold,
        hits,
        write_back_steps,
    })
}

fn small(value: u64) -> Option<u32> {
    u32::try_from(value).ok()
}

/// A number that differs so much from the last one.
fn next(from: &mut &[u8], last: &mut i64) -> Option<u32> {
    *last = last.checked_add(varint::take_signed(from)?)?;
    u32::try_from(*last).ok()
}

/// Items, each of which has at least a byte. `item` gets the one before.
fn list<T>(
    from: &mut &[u8],
    mut item: impl FnMut(&mut &[u8], Option<&T>) -> Option<T>,
) -> Option<Vec<T>> {
    let count = usize::try_from(varint::take(from)?).ok()?;
    if count > from.len() {
        return None;
    }
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        let item = item(from, items.last())?;
        items.push(item);
    }
    Some(items)
}

/// Numbers by size, of which most are 0.
fn sparse(from: &mut &[u8], places: u32) -> Option<Vec<i64>> {
    let count = varint::take(from)?;
    let mut values = vec![0; places as usize];
    let mut at = 0usize;
    for _ in 0..count {
        at = at.checked_add(usize::try_from(varint::take(from)?).ok()?)?;
        *values.get_mut(at)? = varint::take_signed(from)?;
    }
    Some(values)
}
