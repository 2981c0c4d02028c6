// SPDX-License-Identifier: GPL-2.0

//! Time in which kvmtraced got nothing done.
//!
//! Time alone does not end a wait for the output, for a slow output is not one that has stopped.
//! What counts is time without progress, and only time that somebody has waited for. So no timer is
//! needed.
//!
//! All times are in jiffies. Progress is a number that changes.

/// A time that never passes.
pub const FOREVER: u64 = i64::MAX as u64;

/// A limit has passed after so many waits of a part of it. A clock that leaps on, as after a pause
/// of a virtual machine, ends one of them and not all.
pub const PARTS: u32 = 8;

/// A wait for progress.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    /// The last progress.
    seen: u64,
    /// Parts of the limit that have passed since then.
    parts: u32,
}

impl Stall {
    /// A wait that begins, when progress is `now`.
    pub fn new(now: u64) -> Stall {
        Stall {
            seen: now,
            parts: 0,
        }
    }

    /// How long to wait before the next look at progress, if `limit` is the whole time, which is
    /// not 0.
    pub fn part(limit: u64) -> u64 {
        limit.div_ceil(u64::from(PARTS))
    }

    /// One more part has passed, and progress is `now`. Gives whether the limit has passed. Once it
    /// has, each further part without progress gives the same.
    pub fn passed(&mut self, now: u64) -> bool {
        if now != self.seen {
            *self = Stall::new(now);
            return false;
        }
        self.parts = self.parts.saturating_add(1);
        self.parts >= PARTS
    }

    /// The progress that was seen last.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

/// The stall limit for somebody who waits `most` at most; 0: for ever. A `limit` of 0 is none.
pub fn limit(limit: u64, most: u64) -> u64 {
    match (limit, most) {
        (0, _) | (_, 0) => FOREVER,
        (limit, most) => limit.min(most),
    }
}
