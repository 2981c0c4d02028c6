// SPDX-License-Identifier: GPL-2.0

//! The regions of an address space, as pure logic. The kernel looks at one page of each region at a time: see
//! `struct vmtrace_sampling` in include/uapi/linux/vmtrace.h.
//!
//! The algorithm is DAMON's (mm/damon). A region should have pages that are accessed alike. So
//! neighbours with like counts are merged, and each region is split at a random place, since it may
//! have pages that are not alike. A wrong split is undone by the next merge, and a right one stays.
//!
//! Addresses are in bytes, and those of borders are multiples of [`PAGE`].

use crate::Store;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// The page that is looked at, if there is none.
pub const NOWHERE: u64 = u64::MAX;
/// Areas of an address space, at most.
pub const AREAS: usize = 3;
/// Places to begin with.
pub const ROOM: usize = 64;

/// What a look at a page has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The page was accessed since the look before.
    pub accessed: bool,
    /// It was written; then it was accessed too.
    pub written: bool,
    /// The CPUs that did, as far as they are known: bit (CPU modulo 64).
    pub cpus: u64,
}

/// Neighbouring pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first byte.
    pub start: u64,
    /// The byte after the last one.
    pub end: u64,
    /// Looks since the last report.
    pub looks: u32,
    /// Those that found an access.
    pub accesses: u32,
    /// Those of them that found a write.
    pub writes: u32,
    /// Reports for which `accesses` has stayed about the same.
    pub age: u32,
    /// The CPUs of these accesses.
    pub cpus: u64,
    /// `accesses` of the last report, and of the one before.
    pub last: u32,
    /// See `last`.
    pub earlier: u32,
    /// Address of the page that is looked at, or [`NOWHERE`].
    pub at: u64,
}

impl Default for Region {
    fn default() -> Region {
        Region::new(0, 0)
    }
}

impl Region {
    /// One that was not looked at.
    pub const fn new(start: u64, end: u64) -> Region {
        Region {
            start,
            end,
            looks: 0,
            accesses: 0,
            writes: 0,
            age: 0,
            cpus: 0,
            last: 0,
            earlier: 0,
            at: NOWHERE,
        }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    fn pages(&self) -> u64 {
        self.bytes() / PAGE
    }

    fn is_in(&self, area: &Span) -> bool {
        self.start < area.end && self.end > area.start
    }

    /// Counts a look. One that could not be made is not counted at all.
    pub fn note(&mut self, look: Look) {
        let Some(looks) = self.looks.checked_add(1) else {
            return;
        };
        self.looks = looks;
        if look.accessed || look.written {
            self.accesses = self.accesses.saturating_add(1);
            self.cpus |= look.cpus;
        }
        if look.written {
            self.writes = self.writes.saturating_add(1);
        }
    }

    /// The pages from `start` on and before `end`. All else stays.
    fn part(mut self, start: u64, end: u64) -> Region {
        (self.start, self.end) = (start, end);
        if self.at < start || self.at >= end {
            self.at = NOWHERE;
        }
        self
    }

    /// This one and the next one. Counts are weighted by size. They are rounded up or down at random:
    /// if it were always down, a large region would lose the few accesses of each small one that it
    /// takes in.
    fn with(self, next: &Region, random: &mut Random) -> Region {
        // Each count has 32 bits, so the product has 64 at most.
        let (own, other) = (self.pages(), next.pages());
        let bits = 64u32.saturating_sub(own.saturating_add(other).leading_zeros());
        let shift = bits.saturating_sub(32);
        let narrow = |pages: u64| pages.checked_shr(shift).unwrap_or(0);
        let (own, other) = (narrow(own), narrow(other));
        let all = own.saturating_add(other).max(1);
        // The same for all counts, so that none gets greater than one that it is a part of.
        let up = random.below(all);
        let mean = |a: u32, b: u32| {
            let sum = u64::from(a)
                .saturating_mul(own)
                .saturating_add(u64::from(b).saturating_mul(other));
            sum.saturating_add(up).checked_div(all).unwrap_or(0) as u32
        };
        Region {
            start: self.start,
            end: next.end,
            looks: mean(self.looks, next.looks),
            accesses: mean(self.accesses, next.accesses),
            writes: mean(self.writes, next.writes),
            age: mean(self.age, next.age),
            cpus: self.cpus | next.cpus,
            last: mean(self.last, next.last),
            earlier: mean(self.earlier, next.earlier),
            at: self.at,
        }
    }
}

/// Bytes from `start` on and before `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// The byte after the last one.
    pub end: u64,
}

/// What of an address space has regions: all from its first mapping to its last one, but for the two
/// largest gaps. Those are usually between program and heap, mapped files, and the stack.
#[derive(Clone, Copy, Debug, Default)]
pub struct Areas {
    spans: [Span; AREAS],
    many: usize,
}

impl Areas {
    /// None.
    pub fn new() -> Areas {
        Areas::default()
    }

    /// Takes a mapping. No mapping begins before the one that was taken last.
    pub fn add(&mut self, start: u64, end: u64) {
        let start = start & !(PAGE - 1);
        let end = end.saturating_add(PAGE - 1) & !(PAGE - 1);
        if start >= end {
            return;
        }
        let new = Span { start, end };
        if let Some(last) = self.many.checked_sub(1).and_then(|i| self.spans.get_mut(i)) {
            if start <= last.end {
                last.end = last.end.max(end);
                return;
            }
        }
        if let Some(free) = self.spans.get_mut(self.many) {
            *free = new;
            self.many = self.many.saturating_add(1);
            return;
        }
        // There are three gaps now: the smallest one gets a part of an area.
        let [first, second, third] = self.spans;
        let gap = |a: Span, b: Span| b.start.saturating_sub(a.end);
        let joint = |a: Span, b: Span| Span {
            start: a.start,
            end: b.end,
        };
        let gaps = [gap(first, second), gap(second, third), gap(third, new)];
        let least = gaps.iter().copied().min().unwrap_or(0);
        let [before, between, _] = gaps;
        self.spans = if before == least {
            [joint(first, second), third, new]
        } else if between == least {
            [first, joint(second, third), new]
        } else {
            [first, second, joint(third, new)]
        };
    }

    /// The areas, in the order of addresses. There is a gap between each two of them.
    pub fn list(&self) -> &[Span] {
        self.spans.get(..self.many).unwrap_or_default()
    }
}

/// What the last intervals say about the use of memory: see [`Regions::turnover`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turnover {
    /// Bytes in use in one of them.
    pub used: u64,
    /// Those that are in use in the last one and idle in an earlier one, or the other way round.
    pub changed: u64,
}

impl Turnover {
    /// That of another address space comes to it.
    pub fn add(&mut self, other: Turnover) {
        self.used = self.used.saturating_add(other.used);
        self.changed = self.changed.saturating_add(other.changed);
    }

    /// Whether at least `share` thousandths of what is in use have changed.
    pub fn is_change(&self, share: u32) -> bool {
        let least = u128::from(self.used).saturating_mul(u128::from(share));
        self.changed > 0 && u128::from(self.changed).saturating_mul(1000) >= least
    }
}

/// How many regions there shall be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// At least, as far as there are as many pages: 3 or more.
    pub min: u32,
    /// At most: twice `min`, or more.
    pub max: u32,
}

/// Random numbers: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One less than `many`, or 0. As there are far less than 2^64 pages, each is as likely.
    fn below(&mut self, many: u64) -> u64 {
        self.next().checked_rem(many).unwrap_or(0)
    }
}

/// The regions of an address space.
pub struct Regions {
    /// The first `many` places have the regions, in the order of addresses.
    room: Store<Region>,
    many: usize,
    min: usize,
    max: usize,
    random: Random,
    /// How many there were before the last split.
    before: usize,
}

/// Regions that are replaced one by one: the old ones are at the end of the room, the new ones at its
/// beginning. What is written must not reach what is still to be read. It does not if each old one
/// gives at least one new one, and there is room for all new ones.
struct Rewrite<'r> {
    room: &'r mut [Region],
    read: usize,
    many: usize,
}

impl<'r> Rewrite<'r> {
    fn new(room: &'r mut [Region], many: usize) -> Rewrite<'r> {
        let read = room.len().saturating_sub(many);
        for i in (0..many).rev() {
            let old = room.get(i).copied();
            if let (Some(to), Some(old)) = (room.get_mut(read.saturating_add(i)), old) {
                *to = old;
            }
        }
        Rewrite {
            room,
            read,
            many: 0,
        }
    }

    fn next(&mut self) -> Option<Region> {
        let old = self.room.get(self.read).copied()?;
        self.read = self.read.saturating_add(1);
        Some(old)
    }

    fn put(&mut self, new: Region) {
        // Less than `read`, so it is not read any more.
        if self.many < self.read {
            if let Some(to) = self.room.get_mut(self.many) {
                *to = new;
                self.many = self.many.saturating_add(1);
            }
        }
    }

    fn last(&mut self) -> Option<&mut Region> {
        self.room.get_mut(self.many.checked_sub(1)?)
    }
}

impl Regions {
    /// None, with room for as many as `room` has. It should have [`ROOM`] places, or more if
    /// [`Regions::lacks_room`] says so. What it has is overwritten.
    pub fn new(room: Store<Region>, limits: Limits, seed: u64) -> Regions {
        let min = limits.min.max(AREAS as u32);
        Regions {
            room,
            many: 0,
            min: min as usize,
            max: limits.max.max(min.saturating_mul(2)) as usize,
            random: Random(seed),
            before: 0,
        }
    }

    /// The regions, in the order of addresses.
    pub fn list(&self) -> &[Region] {
        self.room.get(..self.many).unwrap_or_default()
    }

    /// The same, so that looks can be noted. Their borders must stay.
    pub fn list_mut(&mut self) -> &mut [Region] {
        self.room.get_mut(..self.many).unwrap_or_default()
    }

    /// Bytes of all regions.
    pub fn bytes(&self) -> u64 {
        let all = self.list().iter();
        all.fold(0, |sum, r| sum.saturating_add(r.bytes()))
    }

    /// Whether the next [`Regions::update`] or [`Regions::split`] may want more places than there are.
    /// Twice as many are to be given by [`Regions::set_room`]. Without them, there are less regions.
    pub fn lacks_room(&self) -> bool {
        let split = if self.many > self.max / 2 {
            0
        } else {
            self.many.saturating_mul(self.parts())
        };
        let update = self.min.max(self.many).saturating_add(AREAS);
        self.room.len() < split.max(update).min(self.max)
    }

    /// Places, some of them free.
    pub fn room(&self) -> usize {
        self.room.len()
    }

    /// Moves the regions to `room`, and gives the places that they had. If `room` is too small, nothing is
    /// moved, and it is given back.
    pub fn set_room(&mut self, mut room: Store<Region>) -> Store<Region> {
        if room.len() < self.many {
            return room;
        }
        for (to, from) in room.iter_mut().zip(self.list()) {
            *to = *from;
        }
        core::mem::replace(&mut self.room, room)
    }

    /// How many there may be now.
    fn most(&self) -> usize {
        self.max.min(self.room.len())
    }

    /// How many there must be, of `bytes`.
    fn least(&self, bytes: u64) -> usize {
        (self.min as u64).min(bytes / PAGE) as usize
    }

    /// Adapts the regions to the mappings that there are: they have all bytes of `areas` afterwards, and
    /// no others.
    pub fn update(&mut self, areas: &Areas) {
        let areas = areas.list();
        self.retain(|r| areas.iter().any(|a| r.is_in(a)));
        // A region that areas have parts of gives several, and an area without one gets one.
        let wanted = |all: &[Region]| {
            areas.iter().fold(0usize, |sum, a| {
                let parts = all.iter().filter(|r| r.is_in(a)).count();
                sum.saturating_add(parts.max(1))
            })
        };
        while wanted(self.list()) > self.most() && self.join_likest() {}
        let mut to = Rewrite::new(&mut self.room, self.many);
        let mut old = to.next();
        for area in areas {
            let mut is_first = true;
            while let Some(r) = old {
                if r.start >= area.end {
                    break;
                }
                if r.end > area.start {
                    let start = if is_first {
                        area.start
                    } else {
                        r.start.max(area.start)
                    };
                    // What was a gap goes to the region before it.
                    if let (false, Some(last)) = (is_first, to.last()) {
                        last.end = start;
                    }
                    to.put(r.part(start, r.end.min(area.end)));
                    is_first = false;
                }
                if r.end > area.end {
                    break;
                }
                old = to.next();
            }
            match to.last() {
                Some(last) if !is_first => last.end = area.end,
                _ => to.put(Region::new(area.start, area.end)),
            }
        }
        self.many = to.many;
        self.refine();
    }

    fn retain(&mut self, stays: impl Fn(&Region) -> bool) {
        let mut many = 0usize;
        for i in 0..self.many {
            let Some(r) = self.room.get(i).copied() else {
                break;
            };
            if let (true, Some(to)) = (stays(&r), self.room.get_mut(many)) {
                *to = r;
                many = many.saturating_add(1);
            }
        }
        self.many = many;
    }

    /// Joins the two neighbours that differ least. `false` if no two regions touch.
    fn join_likest(&mut self) -> bool {
        let differ = |a: &Region, b: &Region| {
            let now = a.accesses.abs_diff(b.accesses);
            let then = a.last.abs_diff(b.last);
            (now.saturating_add(then), b.end.saturating_sub(a.start))
        };
        let pairs = self.list().iter().zip(self.list().iter().skip(1));
        let touch = pairs.enumerate().filter(|(_, (a, b))| a.end == b.start);
        let Some((i, (a, b))) = touch.min_by_key(|(_, (a, b))| differ(a, b)) else {
            return false;
        };
        let (a, b) = (*a, *b);
        let (joint, gone) = (a.with(&b, &mut self.random), b.start);
        if let Some(to) = self.room.get_mut(i) {
            *to = joint;
        }
        self.retain(|r| r.start != gone);
        true
    }

    /// Splits regions evenly, so that there are not too few.
    fn refine(&mut self) {
        let pages = self.bytes() / PAGE;
        let least = self.least(self.bytes()) as u64;
        if self.many as u64 >= least {
            return;
        }
        // Parts of all regions up to a page, which come to `least` at the last page.
        let parts_to = |page: u64| {
            let parts = page.saturating_mul(least);
            parts.checked_div(pages).unwrap_or(0)
        };
        let mut free = self.most().saturating_sub(self.many) as u64;
        let mut done = 0u64;
        let many = self.many;
        let mut to = Rewrite::new(&mut self.room, many);
        for _ in 0..many {
            let Some(r) = to.next() else {
                break;
            };
            let own = r.pages();
            let all = done.saturating_add(own);
            let parts = parts_to(all).saturating_sub(parts_to(done));
            let parts = parts.clamp(1, free.saturating_add(1));
            free = free.saturating_sub(parts.saturating_sub(1));
            done = all;
            let border = |part: u64| {
                let page = own.saturating_mul(part).checked_div(parts).unwrap_or(0);
                r.start.saturating_add(page.saturating_mul(PAGE))
            };
            for part in 1..=parts {
                to.put(r.part(border(part.saturating_sub(1)), border(part)));
            }
        }
        self.many = to.many;
    }

    /// Chooses a page of each region, at which the next look will be.
    pub fn aim(&mut self) {
        let list = self.room.get_mut(..self.many).unwrap_or_default();
        for r in list {
            let page = self.random.below(r.pages());
            r.at = r.start.saturating_add(page.saturating_mul(PAGE));
        }
    }

    /// Merges neighbours that were accessed alike, at the end of an interval that had time for `most`
    /// looks.
    pub fn merge(&mut self, most: u32) {
        let differ = most / 10;
        for r in self.list_mut() {
            r.age = match r.accesses.abs_diff(r.last) <= differ {
                true => r.age.saturating_add(1),
                false => 0,
            };
        }
        let bytes = self.bytes();
        let least = self.least(bytes);
        let mut size = bytes.checked_div(self.min as u64).unwrap_or(0).max(PAGE);
        self.join(differ, size, least);
        // If there is no room for a split, nothing new would ever be found. So large regions that are
        // alike are merged too.
        while self.many > self.max / 2 && size < bytes {
            size = size.saturating_mul(2);
            self.join(differ, size, least);
        }
    }

    /// Joins neighbours that differ by at most `differ` accesses to such of at most `size` bytes, as long
    /// as there are more than `least`.
    fn join(&mut self, differ: u32, size: u64, least: usize) {
        let mut left = self.many;
        let mut many = 0usize;
        for i in 0..self.many {
            let Some(r) = self.room.get(i).copied() else {
                break;
            };
            let before = many.checked_sub(1).and_then(|i| self.room.get_mut(i));
            if let Some(before) = before {
                if before.end == r.start
                    && before.accesses.abs_diff(r.accesses) <= differ
                    && r.end.saturating_sub(before.start) <= size
                    && left > least
                {
                    *before = before.with(&r, &mut self.random);
                    left = left.saturating_sub(1);
                    continue;
                }
            }
            if let Some(to) = self.room.get_mut(many) {
                *to = r;
                many = many.saturating_add(1);
            }
        }
        self.many = many;
    }

    /// Compares the interval that ends with the two before, of which the program may have changed in the
    /// middle of one. A region is in use if at least four fifths of its looks have found an access,
    /// and idle if at most a fifth has. What is in between may be two parts that differ: if a split tells
    /// them apart, that is no change. To be asked before [`Regions::merge`], which takes means.
    pub fn turnover(&self) -> Turnover {
        let mut all = Turnover::default();
        for r in self.list().iter().filter(|r| r.looks > 0) {
            let idle = r.looks / 5;
            let used = r.looks.saturating_sub(idle);
            let (least, most) = (r.last.min(r.earlier), r.last.max(r.earlier));
            if r.accesses.max(most) >= used {
                all.used = all.used.saturating_add(r.bytes());
            }
            let begins = r.accesses >= used && least <= idle;
            let ends = r.accesses <= idle && most >= used;
            if begins || ends {
                all.changed = all.changed.saturating_add(r.bytes());
            }
        }
        all
    }

    /// Begins the next interval, after the report.
    pub fn reset(&mut self) {
        for r in self.list_mut() {
            (r.last, r.earlier) = (r.accesses, r.last);
            (r.looks, r.accesses, r.writes, r.cpus) = (0, 0, 0, 0);
        }
    }

    /// In how many parts the next split splits a region. Two may have found nothing, as the merge has
    /// undone them all: three may.
    fn parts(&self) -> usize {
        if self.many == self.before && self.many < self.max / 3 {
            3
        } else {
            2
        }
    }

    /// Splits each region at random pages, unless there are too many already.
    pub fn split(&mut self) {
        let parts = self.parts();
        self.before = self.many;
        if self.many > self.max / 2 {
            return;
        }
        let mut free = self.most().saturating_sub(self.many);
        let many = self.many;
        let mut to = Rewrite::new(&mut self.room, many);
        for _ in 0..many {
            let Some(mut rest) = to.next() else {
                break;
            };
            for _ in 1..parts {
                let pages = rest.pages();
                if pages < 2 || free == 0 {
                    break;
                }
                // From 10 to 90 %.
                let low = (pages / 10).max(1);
                let high = pages.saturating_sub(low);
                let page = low.saturating_add(
                    self.random
                        .below(high.saturating_sub(low).saturating_add(1)),
                );
                let border = rest.start.saturating_add(page.saturating_mul(PAGE));
                to.put(rest.part(rest.start, border));
                rest = rest.part(border, rest.end);
                free = free.saturating_sub(1);
            }
            to.put(rest);
        }
        self.many = to.many;
    }
}
