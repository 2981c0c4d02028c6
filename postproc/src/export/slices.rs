//! Time in slices of equal length, for formats that count by them.

use crate::trace::Header;

/// Finds when a slice is over.
///
/// Slices are numbered from 0 and begin when the trace begins. A moment before the
/// present slice counts as in it. No reference has such a moment: see
/// [`Consumer::wants_raw_times`](crate::pipeline::Consumer::wants_raw_times).
#[derive(Clone, Copy)]
pub(super) struct Slices {
    start_ns: u64,
    length_ns: u64,
    present: u64,
}

impl Slices {
    /// `length_ns` is at least 1.
    pub fn new(length_ns: u64) -> Self {
        Slices {
            start_ns: 0,
            length_ns: length_ns.max(1),
            present: 0,
        }
    }

    /// Sets the trace's start.
    pub fn begin(&mut self, header: &Header) {
        self.start_ns = header.start_time_ns;
    }

    /// The slice under way.
    pub fn present(&self) -> u64 {
        self.present
    }

    /// When a slice begins, since the trace's start.
    pub fn beginning_ns(&self, slice: u64) -> u64 {
        slice.saturating_mul(self.length_ns)
    }

    /// Whether a moment lies behind the present slice.
    #[inline]
    pub fn is_over(&self, time_ns: u64) -> bool {
        self.of(time_ns) > self.present
    }

    /// Moves on to the slice of a moment, if it is a later one.
    pub fn go_to(&mut self, time_ns: u64) {
        self.present = self.present.max(self.of(time_ns));
    }

    #[inline]
    fn of(&self, time_ns: u64) -> u64 {
        time_ns.saturating_sub(self.start_ns) / self.length_ns
    }
}
