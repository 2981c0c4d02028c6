//! What is counted by bins of time: references, members of sets, and working sets.
//!
//! A reference changes a working set, and a stay the size of a set, from one bin's end to another
//! one's. Both bins are known at once. So each is two changes, which wait until their bins are over.
//! Memory: the changes that wait, and for each page 24 bytes, and 16 more for each process but one that
//! has referenced it.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::export::slices::Slices;
use crate::process::ProcessId;
use crate::trace::Header;
use crate::units::CanonPage;

/// What a number is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Whose {
    /// All of the export.
    Trace,
    /// Threads of which no event says the process.
    Unknown,
    /// A process.
    Process(ProcessId),
    /// One of several sets.
    Set(u32),
}

/// What a number is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Figure {
    /// References in a second of a bin.
    Faults,
    /// Members of the set, or of all sets, at the end of a bin.
    SetSize,
    /// W(t, τ) at the end of a bin.
    WorkingSet,
}

/// A sequence of numbers.
pub type Series = (Whose, Figure);

/// One of them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// From when on, ns on the trace's clock.
    pub time_ns: u64,
    /// Which sequence.
    pub series: Series,
    /// The number: of references in the bin, or of pages.
    pub count: u64,
}

/// Until which bin's end a page is in the working set of a process.
#[derive(Clone, Copy)]
struct Member {
    whose: Whose,
    /// The first bin at whose end it is not.
    until: u64,
}

/// Counts, and has samples of what has changed.
pub struct Counts {
    bins: Slices,
    bin_ns: u64,
    tau_ns: u64,
    start_ns: u64,
    /// References in the present bin.
    faults: FxHashMap<Whose, u64>,
    /// What the sequences of faults have, and of which bin that is.
    shown: FxHashMap<Whose, u64>,
    shown_of: u64,
    /// What changes at the ends of bins.
    changes: BTreeMap<u64, FxHashMap<Series, i64>>,
    levels: FxHashMap<Series, i64>,
    /// By page: until when it is in the working set of the whole trace.
    all: Vec<u64>,
    /// By page: of the first process.
    first: Vec<Member>,
    /// Of other processes.
    others: FxHashMap<u32, Vec<Member>>,
    /// The last bin at whose end a page may be in a set.
    last_member: u64,
    used: BTreeSet<Series>,
    samples: Vec<Sample>,
}

const NOBODY: Member = Member {
    whose: Whose::Trace,
    until: 0,
};

impl Counts {
    /// Bins of `bin_ns`, and working sets of the last `tau_ns`, ns.
    pub fn new(header: &Header, bin_ns: u64, tau_ns: u64) -> Self {
        let mut bins = Slices::new(bin_ns);
        bins.begin(header);
        Counts {
            bins,
            bin_ns: bin_ns.max(1),
            tau_ns,
            start_ns: header.start_time_ns,
            faults: FxHashMap::default(),
            shown: FxHashMap::default(),
            shown_of: 0,
            changes: BTreeMap::new(),
            levels: FxHashMap::default(),
            all: Vec::new(),
            first: Vec::new(),
            others: FxHashMap::default(),
            last_member: 0,
            used: BTreeSet::new(),
            samples: Vec::new(),
        }
    }

    /// All sequences so far.
    pub fn used(&self) -> &BTreeSet<Series> {
        &self.used
    }

    /// What has changed since this was called last, nearly in the order of time.
    pub fn samples(&mut self) -> std::vec::Drain<'_, Sample> {
        self.samples.drain(..)
    }

    /// Time goes on to this moment.
    #[inline]
    pub fn go_to(&mut self, time_ns: u64) {
        if self.bins.is_over(time_ns) {
            self.end_bins(time_ns);
        }
    }

    /// A page is a member of a set from `time_ns` to before `end_ns`; `None` if the end is not known.
    pub fn stay(&mut self, set: Option<u32>, time_ns: u64, end_ns: Option<u64>) {
        self.go_to(time_ns);
        let from = self.bins.present();
        let until = end_ns.map_or(u64::MAX, |end| self.first_end_from(end));
        if until <= from {
            return;
        }
        if end_ns.is_some() {
            self.last_member = self.last_member.max(until);
        }
        for whose in [Some(Whose::Trace), set.map(Whose::Set)]
            .into_iter()
            .flatten()
        {
            self.change((whose, Figure::SetSize), from, until);
        }
    }

    /// A process references a page.
    pub fn reference(&mut self, whose: Whose, time_ns: u64, page: CanonPage) {
        self.go_to(time_ns);
        *self.faults.entry(Whose::Trace).or_default() += 1;
        *self.faults.entry(whose).or_default() += 1;
        let from = self.bins.present();
        let until = self.first_end_from(time_ns.saturating_add(self.tau_ns));
        let at = page.index();
        if at >= self.all.len() {
            let len = (at + 1).next_power_of_two();
            self.all.resize(len, 0);
            self.first.resize(len, NOBODY);
        }
        let before = std::mem::replace(&mut self.all[at], until);
        self.change((Whose::Trace, Figure::WorkingSet), from.max(before), until);
        let first = &mut self.first[at];
        if first.whose == Whose::Trace || first.until <= from {
            // Nobody, or one who has it no more.
            if first.whose != whose && self.others.contains_key(&page.0) {
                return self.reference_shared(whose, page, from, until);
            }
            *first = Member { whose, until: 0 };
        }
        if first.whose != whose {
            return self.reference_shared(whose, page, from, until);
        }
        let before = std::mem::replace(&mut first.until, until);
        self.change((whose, Figure::WorkingSet), from.max(before), until);
    }

    #[cold]
    fn reference_shared(&mut self, whose: Whose, page: CanonPage, from: u64, until: u64) {
        let others = self.others.entry(page.0).or_default();
        others.retain(|m| m.whose == whose || m.until > from);
        let before = match others.iter_mut().find(|m| m.whose == whose) {
            Some(member) => std::mem::replace(&mut member.until, until),
            None => {
                others.push(Member { whose, until });
                0
            }
        };
        self.change((whose, Figure::WorkingSet), from.max(before), until);
    }

    /// A page is freed.
    pub fn free(&mut self, time_ns: u64, page: CanonPage) {
        self.go_to(time_ns);
        let at = page.index();
        if at >= self.all.len() {
            return;
        }
        let all = Member {
            whose: Whose::Trace,
            until: std::mem::take(&mut self.all[at]),
        };
        let first = std::mem::replace(&mut self.first[at], NOBODY);
        let others = self.others.remove(&page.0).unwrap_or_default();
        let present = self.bins.present();
        for member in [all, first].into_iter().chain(others) {
            if member.until > present {
                self.change((member.whose, Figure::WorkingSet), member.until, present);
            }
        }
    }

    /// The trace ends.
    pub fn finish(&mut self) {
        let last = self.bins.present().max(self.last_member);
        // Faults end with the last bin that has some.
        self.end_bin();
        self.end_changes(last.saturating_add(1));
        self.end_faults();
    }

    /// The first bin whose end is at this moment or after it.
    fn first_end_from(&self, time_ns: u64) -> u64 {
        let since = time_ns.saturating_sub(self.start_ns);
        since.div_ceil(self.bin_ns).saturating_sub(1)
    }

    /// The sequence has one more from the end of bin `from` to before that of bin `until`; one less if
    /// `until` is smaller.
    fn change(&mut self, series: Series, from: u64, until: u64) {
        if from == until {
            return;
        }
        // At the end of the smaller one it becomes what it is; at that of the greater one, what it was.
        let (first, second) = (from.min(until), from.max(until));
        let sign = if from < until { 1 } else { -1 };
        *self
            .changes
            .entry(first)
            .or_default()
            .entry(series)
            .or_default() += sign;
        if second != u64::MAX {
            *self
                .changes
                .entry(second)
                .or_default()
                .entry(series)
                .or_default() -= sign;
        }
    }

    #[cold]
    fn end_bins(&mut self, time_ns: u64) {
        self.end_bin();
        self.bins.go_to(time_ns);
        self.end_changes(self.bins.present());
    }

    fn beginning_ns(&self, bin: u64) -> u64 {
        self.start_ns.saturating_add(self.bins.beginning_ns(bin))
    }

    /// Shows the present bin's faults.
    fn end_bin(&mut self) {
        if self.faults.is_empty() {
            return;
        }
        let present = self.bins.present();
        if self.shown_of.saturating_add(1) < present {
            self.end_faults();
        }
        let time_ns = self.beginning_ns(present);
        for whose in self.shown.keys() {
            self.faults.entry(*whose).or_default();
        }
        let mut counts: Vec<(Whose, u64)> = self.faults.drain().collect();
        counts.sort_unstable();
        for (whose, count) in counts {
            let before = match count {
                0 => self.shown.remove(&whose),
                _ => self.shown.insert(whose, count),
            };
            if before != Some(count) {
                self.sample(time_ns, (whose, Figure::Faults), count);
            }
        }
        self.shown_of = present;
    }

    /// There are none behind the bin that was shown last.
    fn end_faults(&mut self) {
        let time_ns = self.beginning_ns(self.shown_of.saturating_add(1));
        let mut shown: Vec<Whose> = self.shown.drain().map(|(whose, _)| whose).collect();
        shown.sort_unstable();
        for whose in shown {
            self.sample(time_ns, (whose, Figure::Faults), 0);
        }
    }

    /// Shows what changes at the ends of the bins before `end`.
    fn end_changes(&mut self, end: u64) {
        while let Some(entry) = self.changes.first_entry() {
            if *entry.key() >= end {
                break;
            }
            let (bin, changes) = entry.remove_entry();
            let mut changes: Vec<(Series, i64)> =
                changes.into_iter().filter(|(_, by)| *by != 0).collect();
            changes.sort_unstable();
            let time_ns = self.beginning_ns(bin.saturating_add(1));
            for (series, by) in changes {
                let level = self.levels.entry(series).or_default();
                *level += by;
                let count = u64::try_from(*level).unwrap_or(0);
                self.sample(time_ns, series, count);
            }
        }
    }

    fn sample(&mut self, time_ns: u64, series: Series, count: u64) {
        self.used.insert(series);
        self.samples.push(Sample {
            time_ns,
            series,
            count,
        });
    }
}
