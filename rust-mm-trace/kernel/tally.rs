// SPDX-License-Identifier: GPL-2.0

//! Counts of references by process and mapping, as pure logic: a table of limited size. See `struct
//! vmtrace_counts` in include/uapi/linux/vmtrace.h.
//!
//! A count is looked for in a few places, which its process and mapping give. If another one is in
//! each of these, the one that was not counted in for the longest time is given up. What it had is
//! counted as gone, so that no reference is lost.

use crate::Store;

/// Bytes of a thread's name.
pub const COMM: usize = 16;
/// Bytes of a mapping's name.
pub const NAME: usize = 48;
/// Places of a count.
pub const WAYS: usize = 8;

/// References of a process to what it has mapped: `struct vmtrace_count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Count {
    /// Loads, stores, fetches, and all by the kernel.
    pub made: [u64; 4],
    /// Device of a file, or 0.
    pub dev: u64,
    /// Inode of a file, or 0.
    pub ino: u64,
    /// Number of the address space.
    pub mm: u32,
    /// Process that was counted last.
    pub pid: u32,
    /// VMTRACE_MAP_*
    pub kind: u32,
    /// Zero.
    pub pad: u32,
    /// Name of the thread that was counted last.
    pub comm: [u8; COMM],
    /// Name of the mapping.
    pub name: [u8; NAME],
}

impl Count {
    /// Nothing.
    pub const NONE: Count = Count {
        made: [0; 4],
        dev: 0,
        ino: 0,
        mm: 0,
        pid: 0,
        kind: 0,
        pad: 0,
        comm: [0; COMM],
        name: [0; NAME],
    };

    /// Whether both are of one process and one mapping. Files are told apart by their inodes, all else
    /// by its name.
    fn is_like(&self, other: &Count) -> bool {
        (self.mm, self.kind, self.dev, self.ino) == (other.mm, other.kind, other.dev, other.ino)
            && (self.ino != 0 || self.name == other.name)
    }

    fn hash(&self) -> u64 {
        let mix = |h: u64, word: u64| {
            (h ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        };
        let own = u64::from(self.mm) << 32 | u64::from(self.kind);
        let h = mix(mix(mix(0, own), self.dev), self.ino);
        match self.ino {
            0 => self.name.chunks_exact(8).fold(h, |h, part| {
                let word = part.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
                mix(h, word)
            }),
            _ => h,
        }
    }

    /// All references.
    pub fn sum(&self) -> u64 {
        self.made.iter().fold(0, |sum, n| sum.wrapping_add(*n))
    }
}

/// A count, and when it was counted in last; 0: never.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    count: Count,
    last: u64,
}

impl Place {
    /// One that is free.
    pub const FREE: Place = Place {
        count: Count::NONE,
        last: 0,
    };

    /// What is counted here, if anything.
    pub fn get(&self) -> Option<&Count> {
        (self.last > 0).then_some(&self.count)
    }
}

/// The table.
pub struct Tally {
    places: Store<Place>,
    /// References whose counts were given up, by the [`WAYS`] places in which these were.
    gone: Store<u64>,
    time: u64,
}

/// Some places, and the references whose counts were given up there.
pub struct Part<'t> {
    /// The places.
    pub places: &'t [Place],
    /// References.
    pub gone: u64,
    /// Where to go on; `None` if there is no other place.
    pub next: Option<usize>,
}

impl Tally {
    /// One in these places, which are free, and of which there are [`WAYS`] for each number in `gone`.
    pub fn new(places: Store<Place>, gone: Store<u64>) -> Tally {
        Tally {
            places,
            gone,
            time: 0,
        }
    }

    /// Places from `at` on, `groups` times [`WAYS`] of them; `at` is 0, or what such a call gave. Each
    /// reference is in one place, or is gone from there.
    pub fn part(&self, at: usize, groups: usize) -> Part<'_> {
        let many = groups.saturating_mul(WAYS);
        let places = self.places.get(at..).unwrap_or_default();
        let gone = self.gone.iter().skip(at / WAYS).take(groups);
        Part {
            places: places.get(..many).unwrap_or(places),
            gone: gone.fold(0, |sum, n| sum.wrapping_add(*n)),
            next: (places.len() > many).then(|| at.saturating_add(many)),
        }
    }

    /// Counts the references that `made` has.
    pub fn add(&mut self, made: &Count) {
        let groups = self.gone.len().max(1) as u64;
        let at = ((made.hash() >> 16) % groups) as usize;
        self.time = self.time.wrapping_add(1);
        let ways = self.places.chunks_exact_mut(WAYS).nth(at);
        let (Some(ways), Some(gone)) = (ways, self.gone.get_mut(at)) else {
            return;
        };
        let like = ways
            .iter()
            .position(|p| p.last > 0 && p.count.is_like(made));
        let oldest = || ways.iter().enumerate().min_by_key(|(_, p)| p.last);
        let Some(way) = like.or_else(|| Some(oldest()?.0)) else {
            return;
        };
        let Some(place) = ways.get_mut(way) else {
            return;
        };
        if like.is_none() {
            *gone = gone.wrapping_add(place.count.sum());
            place.count = Count {
                made: [0; 4],
                ..*made
            };
        }
        place.last = self.time;
        let count = &mut place.count;
        (count.pid, count.comm) = (made.pid, made.comm);
        for (to, from) in count.made.iter_mut().zip(made.made) {
            *to = to.wrapping_add(from);
        }
    }
}
