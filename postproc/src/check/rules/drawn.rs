//! When numbers were drawn, as far as times show it.
//!
//! A CPU reads the time of an admission, and then draws its number. It may be interrupted in
//! between. So the number was drawn at the admission's time or later. How much later is not in the
//! trace, but it is bounded:
//!
//! - A CPU draws its numbers one after the other. So it has drawn a number before the time of its
//!   next admission, and all smaller numbers were drawn before that.
//! - The time of an event is read after its number is drawn.

use std::collections::BTreeMap;

use crate::trace::{Header, Ref};
use crate::units::Access;

/// Whether a record continues a stay. It has the time of the access that renewed it, which may be
/// of another CPU.
pub(super) fn goes_on(r: &Ref) -> bool {
    r.flags().continues() || r.flags().access() == Access::Seen
}

/// The last admission of each CPU.
#[derive(Default)]
pub(super) struct Drawn {
    start_ns: u64,
    last: Vec<Option<(u64, u64)>>,
    /// See [`Drawn::earliest_ns`]; and the CPU whose time that is.
    earliest: Option<(u64, usize)>,
}

impl Drawn {
    /// Before the first record.
    pub fn new(header: &Header) -> Self {
        Drawn {
            start_ns: header.start_time_ns,
            last: vec![None; header.nr_cpus as usize],
            earliest: None,
        }
    }

    /// Takes the next record and its number. Gives the greatest number that was drawn before the
    /// record's time for sure. All smaller ones were, too.
    pub fn record(&mut self, number: u64, r: &Ref) -> Option<u64> {
        if goes_on(r) {
            return None;
        }
        let cpu = r.cpu() as usize;
        let last = self.last.get_mut(cpu)?.replace((number, r.time_ns));
        self.earliest = self.earliest.filter(|earliest| earliest.1 != cpu);
        last.map(|(number, _)| number)
    }

    /// No admission that is still to come has an earlier time, whether it has a record or not.
    pub fn earliest_ns(&mut self) -> u64 {
        let start_ns = self.start_ns;
        let times = self.last.iter().map(|last| last.map_or(start_ns, |l| l.1));
        let least = || times.enumerate().map(|(cpu, ns)| (ns, cpu)).min();
        let earliest = self.earliest.or_else(least).unwrap_or((start_ns, 0));
        self.earliest = Some(earliest);
        earliest.0
    }
}

/// What is to be judged when it is known by when a number was drawn.
pub(super) struct Waiting<T> {
    by_number: BTreeMap<(u64, u64), T>,
    added: u64,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Waiting {
            by_number: BTreeMap::new(),
            added: 0,
        }
    }
}

impl<T> Waiting<T> {
    /// Adds something that waits for this number.
    pub fn add(&mut self, number: u64, what: T) {
        self.by_number.insert((number, self.added), what);
        self.added += 1;
    }

    /// Takes something out that waits for this number, or a smaller one.
    pub fn take(&mut self, number: u64) -> Option<T> {
        let first = self.by_number.first_entry()?;
        (first.key().0 <= number).then(|| first.remove())
    }
}
