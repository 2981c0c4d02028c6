// SPDX-License-Identifier: GPL-2.0

//! In which parts the output is written back to its disk.
//!
//! What is written back is waited for in parts, so that it can be seen that this goes on. While one
//! part is waited for, the next one is on its way, so that the disk does not idle. A part is as
//! large as the disk is fast: a slow one is seen to get on, and a fast one has large writes.
//!
//! Sizes and positions are in bytes.

/// The least part.
pub const LEAST: u64 = 64 << 10;
/// The largest part.
pub const LARGEST: u64 = 8 << 20;

/// What is still to be written back.
#[derive(Debug)]
pub struct Rest {
    /// All before this was waited for, and all before `sent` is on its way.
    from: u64,
    sent: u64,
    size: u64,
    /// The size of the next part.
    part: u64,
}

/// The first and the last byte.
pub type Range = (u64, u64);

/// The next part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What is to be sent to the disk first, if anything is.
    pub send: Option<Range>,
    /// What is then to be waited for.
    pub wait: Range,
}

impl Rest {
    /// All `size` bytes.
    pub fn new(size: u64) -> Rest {
        Rest {
            from: 0,
            sent: 0,
            size,
            part: LEAST,
        }
    }

    /// The next part, if one is left.
    pub fn part(&mut self) -> Option<Part> {
        if self.from >= self.size {
            return None;
        }
        let end = |parts: u64| {
            let bytes = self.part.saturating_mul(parts);
            self.from.saturating_add(bytes).min(self.size)
        };
        let (to, ahead) = (end(1), end(2));
        let part = Part {
            send: (self.sent < ahead).then_some((self.sent, ahead.wrapping_sub(1))),
            wait: (self.from, to.wrapping_sub(1)),
        };
        self.sent = self.sent.max(ahead);
        self.from = to;
        Some(part)
    }

    /// The last part took this time. `fast` and `slow` are times of a part that is too small and of
    /// one that is too large.
    pub fn took(&mut self, time: u64, fast: u64, slow: u64) {
        if time < fast {
            self.part = self.part.saturating_mul(2).min(LARGEST);
        } else if time > slow {
            self.part = (self.part / 2).max(LEAST);
        }
    }
}
