// SPDX-License-Identifier: GPL-2.0

//! Which pages of a file a call of fallocate() ends, and which of them have been logged.
//!
//! File systems drop pages in several steps, some of them more than they were asked for, and some
//! of them in ways of their own. Each page that ends is logged as soon as its step is done. What no
//! step has shown is logged at the end of the call. A page may be logged twice, which is harmless,
//! but no page may be left out, and no page that stays may be logged.
//!
//! Positions are in bytes.

/// Bytes of a page.
const PAGE: i64 = 4096;

/// Bytes of a file from `start` on and before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: i64,
    /// The byte after the last one. If it is not greater, the span is empty.
    pub end: i64,
}

impl Span {
    fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// The first whole page begins here.
    fn first(self) -> i64 {
        self.start.wrapping_add(PAGE - 1) & -PAGE
    }

    /// The last whole page ends here.
    fn last(self) -> i64 {
        self.end & -PAGE
    }

    /// Whether no whole page of it is outside `other`.
    fn is_within(self, other: Span) -> bool {
        other.start <= self.first() && other.end >= self.last()
    }
}

/// A call that goes on.
#[derive(Clone, Copy, Debug)]
pub struct Hole {
    /// What ends if the call succeeds.
    pub whole: Span,
    /// What of it has been logged.
    pub logged: Span,
}

impl Hole {
    /// The file system has dropped `dropped`. Gives what is to be logged of it, if anything is.
    pub fn dropped(&mut self, dropped: Span) -> Option<Span> {
        // Whole pages end. What is cleared of others is no matter here.
        let ends = if self.whole.is_within(dropped) {
            self.whole
        } else {
            // A file system may drop more, after it has written that back.
            Span {
                start: dropped.start.max(self.whole.start),
                end: dropped.end.min(self.whole.end),
            }
        };
        if ends.is_empty() {
            return None;
        }
        let logged = &mut self.logged;
        if logged.is_empty() {
            *logged = ends;
        } else if ends.start <= logged.end && ends.end >= logged.start {
            logged.start = logged.start.min(ends.start);
            logged.end = logged.end.max(ends.end);
        }
        Some(ends)
    }

    /// Whether whole pages end that have not been logged: the file system has dropped them in a way
    /// of its own.
    pub fn is_left(&self) -> bool {
        !self.whole.is_empty() && (self.logged.is_empty() || !self.whole.is_within(self.logged))
    }
}
