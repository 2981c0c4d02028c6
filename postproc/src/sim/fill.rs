//! References that are not in a trace but follow from it.
//!
//! A record describes a stay of a page among the N enabled pages. The references within
//! the stay are not in the trace. Something is known about them nevertheless, and the
//! references that follow from it are filled in:
//!
//! - *A second reference, at once.* An instruction is fetched from the page of the last
//!   one, and a program that reads a byte reads the next byte: nine of ten stays have more
//!   than one reference. For LRU, OPT, FIFO and 2Q this makes no difference. CLOCK and ARC
//!   treat a page differently that is never hit.
//! - *A later reference*, if the record says that the page was referenced again in the
//!   second segment (`--again`, CLOCK). It is put halfway between the moment at which the
//!   page entered the second segment, F admissions after its own, and the end of the stay, N
//!   admissions after its own. With batches of K, a stay may end K - 1 admissions earlier, and
//!   the earliest end counts, so that the reference is never put after the stay. If the stay
//!   was cut short (unmapped, copied on write), it is put at the end of the stay.
//!
//! # The quality of the estimate
//!
//! Filling gives a better estimate. Proven bounds on the misses that all references would give
//! follow from the records alone, whatever is filled in: see [`super::Witness`].
//!
//! The last reference of a stay is the important one: *if the last reference of each stay stood
//! at its true place, LRU's misses would be those of all references, at all sizes from 2 N
//! on*, as long as nothing is renewed. The proof: a stay then lasts for at most N numbers, and
//! the set has at most N members. The distance of a reference is the number of pages that were
//! referenced since the page's last reference, itself included; memories of fewer pages miss.
//! Call the sequence of all references and that of the filled trace *both sequences*. A
//! reference to a member has a distance of at most 2 N in both sequences: since its stay began,
//! only pages were referenced that were members then or have become members since. Now let a
//! page `p` be referenced again at `t`, and let its last reference be at `u`. Every page that
//! began or ended its references in a stay between `u` and `t` counts in both sequences. Any
//! other page that was referenced has a stay that spans `u` and `t`. So there are at most N
//! numbers between `u` and `t`, and the distance is at most 2 N in both sequences.
//!
//! Batches do not change this bound. They end stays earlier and make the set smaller, and the
//! proof needs only that a stay lasts for at most N numbers, and that the set has at most N
//! members.
//!
//! In a trace of several sets, the proof holds for the references to each set by themselves: a stay
//! in a set lasts for at most N numbers of the same set, and the references to other sets are in
//! neither sequence. It does not hold for all references together. A page of one set may be
//! referenced while the set rests, for any number of references to others.
//!
//! Without filling, the last reference stands where the stay begins, which is always too early,
//! so there are too many misses. Halfway, it is too early as often as too late, which makes the
//! error small. docs/fidelity.md has the measured errors, also those of other policies, for
//! which nothing was proven.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rustc_hash::FxHashMap;

use super::Access;
use crate::pipeline::{Batch, Place};
use crate::trace::{Header, Ref, Why};
use crate::units::{self, CanonPage};

/// Turns a trace's records, continuations included, into references.
///
/// A stay lasts for a number of records of its own set, so these are counted for each set.
///
/// Takes 16 bytes for each page of the set, or of each.
pub struct Filler {
    /// Number of records from a stay's beginning to the moment of its later reference.
    after: u64,
    stay_shift: u32,
    records: u64,
    sets: FxHashMap<u32, Turns>,
    /// Later references of stays that were cut short, by time, with the numbers of their
    /// records.
    cut: BinaryHeap<Reverse<(u64, u32, u64)>>,
    /// By page: the records whose later references are still to come.
    pending: FxHashMap<CanonPage, Vec<u64>>,
}

/// What is still to come of a set.
#[derive(Default)]
struct Turns {
    records: u64,
    /// Later references by the number of the set's record that they precede, with the numbers of
    /// their own records among all.
    due: VecDeque<(u64, CanonPage, u64)>,
}

impl Filler {
    /// For a trace with this header.
    pub fn new(header: &Header) -> Self {
        Filler {
            after: (u64::from(header.evms_size) + 1)
                .saturating_sub(header.batch.into())
                .saturating_add(header.first_segment.into())
                / 2,
            stay_shift: header.stay_shift,
            records: 0,
            sets: FxHashMap::default(),
            cut: BinaryHeap::new(),
            pending: FxHashMap::default(),
        }
    }

    /// Adds the references of a batch that has continuations.
    pub fn batch(&mut self, batch: &Batch<'_>, to: &mut Vec<Access>) {
        let all = batch.refs.iter().zip(batch.places).zip(batch.pages);
        for ((r, place), &page) in all {
            self.record(r, matches!(place, Place::Mapped { .. }), page, to);
        }
    }

    /// A record of a page that is mapped, or not any more.
    pub fn record(&mut self, r: &Ref, mapped: bool, page: CanonPage, to: &mut Vec<Access>) {
        let hit = |page| Access::reference(page, false);
        while let Some(&Reverse((end, page, record))) = self.cut.peek() {
            if end > r.time_ns {
                break;
            }
            self.cut.pop();
            self.give(CanonPage(page), record, to);
        }
        let turns = self.sets.entry(r.set).or_default();
        let place = turns.records;
        turns.records += 1;
        while let Some((page, record)) = self.next_due(r.set, place) {
            self.give(page, record, to);
        }
        let flags = r.flags();
        let seen = flags.access() == units::Access::Seen;
        if !flags.continues() && (mapped || !seen) {
            let write = flags.writes();
            to.push(Access::reference(page, write));
            if !seen {
                to.push(hit(page));
            }
        }
        if flags.again() {
            let record = self.records;
            match r.end_ns(self.stay_shift) {
                Some(end) if cut_short(flags.why()) => {
                    self.cut.push(Reverse((end, page.0, record)));
                }
                _ => {
                    let turns = self.sets.entry(r.set).or_default();
                    turns.due.push_back((place + self.after, page, record));
                }
            }
            self.pending.entry(page).or_default().push(record);
        }
        self.records += 1;
    }

    /// Takes out a later reference that comes before the record of a set with this number.
    fn next_due(&mut self, set: u32, place: u64) -> Option<(CanonPage, u64)> {
        let due = &mut self.sets.get_mut(&set)?.due;
        let &(_, page, record) = due.front().filter(|first| first.0 <= place)?;
        due.pop_front();
        Some((page, record))
    }

    /// Adds a later reference, unless it was added when the page was freed.
    fn give(&mut self, page: CanonPage, record: u64, to: &mut Vec<Access>) {
        let Some(records) = self.pending.get_mut(&page) else {
            return;
        };
        let Some(at) = records.iter().position(|&r| r == record) else {
            return;
        };
        records.swap_remove(at);
        if records.is_empty() {
            self.pending.remove(&page);
        }
        to.push(Access::reference(page, false));
    }

    /// Pages are freed. Their later references came before that, because the stay ended when
    /// the page was unmapped, or earlier. So these references are added first.
    pub fn freed(&mut self, pages: &[CanonPage], to: &mut Vec<Access>) {
        for &page in pages {
            let records = self.pending.remove(&page).unwrap_or_default();
            to.extend(records.iter().map(|_| Access::reference(page, false)));
            to.push(Access::free(page));
        }
    }

    /// After the last record.
    pub fn finish(&mut self, to: &mut Vec<Access>) {
        for Reverse((_, page, record)) in std::mem::take(&mut self.cut) {
            self.give(CanonPage(page), record, to);
        }
        let sets = std::mem::take(&mut self.sets).into_values();
        let mut due: Vec<_> = sets.flat_map(|turns| turns.due).collect();
        // In the order of their records.
        due.sort_unstable_by_key(|(_, _, record)| *record);
        for (_, page, record) in due {
            self.give(page, record, to);
        }
    }
}

/// Whether the stay ended before the page's turn to be evicted.
fn cut_short(why: Why) -> bool {
    !matches!(
        why,
        Why::Evicted | Why::Renewed | Why::Chance | Why::Drained
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TraceBuilder;
    use crate::trace::Trace;
    use crate::units::Mm;
    use rust_mm_trace::uapi;

    /// A record of the page with number `page`, which came at `time` and stayed
    /// for `stay` ns.
    fn record(page: u32, flags: u32, why: Why, time: u64, stay: u32) -> (Ref, CanonPage) {
        let number = Why::ALL.iter().position(|&w| w == why).expect("a number");
        let r = Ref {
            seq: time,
            time_ns: time,
            offset: 0,
            page: u64::from(page << 12 | flags | (number as u32) << uapi::VMTRACE_REF_WHY_SHIFT),
            tid_cpu: 1,
            mm: Mm(1),
            stay,
            pfn: 0,
            set: 0,
            vtime: 0,
            within: crate::trace::wire::NO_OFFSET,
        };
        (r, CanonPage(page))
    }

    /// For N = 4 and F = 2.
    fn filler() -> Filler {
        let mut builder = TraceBuilder::new(1, 4);
        builder.header_mut().first_segment = 2;
        builder.header_mut().stay_shift = 0;
        let trace = Trace::from_bytes("memory", builder.finish()).expect("a trace");
        Filler::new(trace.header())
    }

    /// Numbers of pages.
    fn filled(records: &[(Ref, CanonPage)]) -> Vec<u32> {
        let mut filler = filler();
        let mut to = Vec::new();
        for (r, page) in records {
            filler.record(r, true, *page, &mut to);
        }
        filler.finish(&mut to);
        to.iter().map(|a| a.page.0).collect()
    }

    const AGAIN: u32 = uapi::VMTRACE_REF_AGAIN;

    #[test]
    fn a_reference_is_followed_by_another_and_by_a_later_one_if_told() {
        let mut records: Vec<_> = (1..6)
            .map(|p| record(p, 0, Why::Evicted, u64::from(p), 9))
            .collect();
        assert_eq!(filled(&records), [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
        records[0] = record(1, AGAIN, Why::Evicted, 1, 9);
        records[2] = record(3, AGAIN, Why::Drained, 3, 9);
        // After three, between its coming into the second segment and its end.
        assert_eq!(filled(&records), [1, 1, 2, 2, 3, 3, 1, 4, 4, 5, 5, 3]);
    }

    /// Records of other sets make no difference.
    #[test]
    fn a_later_reference_comes_after_records_of_its_own_set() {
        let mut records = Vec::new();
        for page in 1..6 {
            let flags = if page == 1 { AGAIN } else { 0 };
            records.push(record(page, flags, Why::Evicted, u64::from(page), 9));
            for other in 0..page {
                let (mut r, page) = record(10 * page + other, 0, Why::Evicted, 1, 9);
                r.set = 1 + other % 2;
                records.push((r, page));
            }
        }
        let filled = filled(&records);
        let own: Vec<u32> = filled.iter().copied().filter(|p| *p < 10).collect();
        assert_eq!(own, [1, 1, 2, 2, 3, 3, 1, 4, 4, 5, 5]);
    }

    #[test]
    fn a_stay_that_is_cut_short_has_its_reference_at_its_end() {
        let mut records: Vec<_> = (1..4)
            .map(|p| record(p, 0, Why::Evicted, u64::from(p) * 10, 99))
            .collect();
        records[0] = record(1, AGAIN, Why::Unmapped, 10, 15);
        assert_eq!(filled(&records), [1, 1, 2, 2, 1, 3, 3]);
        records[0] = record(1, AGAIN, Why::Cow, 10, 25);
        assert_eq!(filled(&records), [1, 1, 2, 2, 3, 3, 1]);
        // Its length is not known.
        records[0] = record(1, AGAIN, Why::Unmapped, 10, u32::MAX);
        assert_eq!(filled(&records), [1, 1, 2, 2, 3, 3, 1]);
    }

    #[test]
    fn what_goes_on_is_no_reference_and_a_second_chance_is_one() {
        let seen = record(1, uapi::VMTRACE_REF_SEEN, Why::Evicted, 2, 9);
        let goes_on = record(2, uapi::VMTRACE_REF_CONT | AGAIN, Why::Evicted, 3, 9);
        let first = record(1, 0, Why::Chance, 1, 9);
        assert_eq!(filled(&[first, seen, goes_on]), [1, 1, 1, 2]);
    }

    #[test]
    fn stores_are_told_once() {
        let (r, page) = record(7, uapi::VMTRACE_REF_DIRTIED | AGAIN, Why::Evicted, 1, 9);
        let mut filler = filler();
        let mut to = Vec::new();
        filler.record(&r, true, page, &mut to);
        filler.finish(&mut to);
        let writes: Vec<_> = to.iter().map(|a| a.writes()).collect();
        assert_eq!(writes, [true, false, false]);
    }

    /// The later reference of a page that is freed comes before that, and never again, not
    /// even if another page has its number then.
    #[test]
    fn what_is_pending_comes_before_the_page_is_freed() {
        // Of stays that end in their turn, and of stays that were cut short.
        for why in [Why::Evicted, Why::Unmapped] {
            let mut filler = filler();
            let mut to = Vec::new();
            let step = |filler: &mut Filler, page, flags, time, to: &mut Vec<Access>| {
                let (r, page) = record(page, flags, why, time, 25);
                filler.record(&r, true, page, to);
            };
            step(&mut filler, 1, AGAIN, 10, &mut to);
            step(&mut filler, 2, AGAIN, 11, &mut to);
            filler.freed(&[CanonPage(1), CanonPage(9)], &mut to);
            // Another page, two of whose stays have a later reference.
            step(&mut filler, 1, AGAIN, 12, &mut to);
            step(&mut filler, 1, AGAIN, 13, &mut to);
            filler.freed(&[CanonPage(1)], &mut to);
            step(&mut filler, 1, AGAIN, 14, &mut to);
            for time in 100..110 {
                step(&mut filler, 3, 0, time, &mut to);
            }
            // How often each is referenced, up to where it is freed.
            let lives = |page: u32| -> Vec<usize> {
                let own: Vec<_> = to.iter().filter(|a| a.page == CanonPage(page)).collect();
                let lives = own.split(|a| !a.is_reference());
                lives.map(<[_]>::len).collect()
            };
            assert_eq!(lives(1), [3, 6, 3], "{why:?}");
            assert_eq!((lives(2), lives(9)), (vec![3], vec![0, 0]), "{why:?}");
            assert!(filler.pending.is_empty());
        }
    }

    /// Nothing grows with the trace.
    #[test]
    fn memory_is_bounded_by_the_set() {
        let mut filler = filler();
        let mut to = Vec::new();
        for i in 0..1000u32 {
            let why = if i % 2 == 0 { Why::Evicted } else { Why::Exit };
            let (r, page) = record(i % 9 + 1, AGAIN, why, u64::from(i), 3);
            filler.record(&r, true, page, &mut to);
            let due: usize = filler.sets.values().map(|turns| turns.due.len()).sum();
            assert!(due + filler.cut.len() <= 8);
        }
    }
}
