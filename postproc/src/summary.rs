//! One row for each trace, which can be added up.
//!
//! A [`Summary`] has what is asked of many traces: the misses of all sizes of memory under LRU and OPT,
//! working sets, what is mapped, losses, and the verdict of the rules. Everything in it is a sum, a
//! largest value, or a histogram of whole numbers. So the summary of several traces, or of several such
//! summaries, is exact whatever the order in which they are added. docs/fleet.md describes the fields.

mod rows;
mod stored;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use rust_mm_trace::filter::Field;
use serde::{Deserialize, Serialize};

use crate::canon::PageMode;
use crate::check::{CheckReport, Checker};
use crate::dataset::{Facts, Taken, selected_text};
use crate::error::Result;
use crate::filter::{Chosen, Filter};
use crate::pipeline::{self, Consumer, Freeing, Observer, Outcome};
use crate::report::{Counters, Statistics, Working, WorkingSet};
use crate::select::{Unselectable, Where};
use crate::sim::{Curve, CurveSimulation, Job, LruChunks, OptCurve, Workers};
use crate::streams::Selected;
use crate::tee::Tee;
use crate::trace::Trace;

pub use rows::Rows;
pub use stored::{Stored, read_table};

/// The version of a summary's fields. Version 1 has no selections.
pub const SUMMARY_VERSION: u64 = 2;

/// References to pages outside all mappings.
const UNMAPPED: &str = "(not mapped)";

/// The misses of all sizes of memory, as a histogram.
///
/// Of several traces, each has a memory of that size to itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Misses {
    /// References.
    pub references: u64,
    /// First references to pages, which miss in every size.
    pub cold: u64,
    /// The largest number of pages that exist at one time; of several traces, the largest of these.
    pub footprint: u64,
    /// Sizes of memory in pages, ascending: under LRU, stack distances.
    pub sizes: Vec<u64>,
    /// References that hit in the size with the same index, and in no smaller one.
    pub hits: Vec<u64>,
}

impl From<&Curve> for Misses {
    fn from(curve: &Curve) -> Self {
        let from = (1..).zip(curve.hits_from.iter().copied());
        let (sizes, hits) = from.filter(|&(_, hits)| hits > 0).unzip();
        Misses {
            references: curve.references,
            cold: curve.cold,
            footprint: curve.footprint(),
            sizes,
            hits,
        }
    }
}

impl Misses {
    /// Misses of a memory of `size` pages; a size of 0 counts as 1.
    pub fn at(&self, size: u64) -> u64 {
        let upto = self.sizes.partition_point(|&s| s <= size.max(1));
        self.references - self.hits[..upto].iter().sum::<u64>()
    }

    fn check(&self, of: &str) -> Checked {
        is_histogram(&self.sizes, &self.hits, || format!("the sizes of {of}"))?;
        let hits = self.hits.iter().copied().try_fold(0, u64::checked_add);
        match hits {
            Some(hits) if hits <= self.references => Ok(()),
            _ => Err(format!(
                "the hits of {of} are more than its references: make the summary again"
            )),
        }
    }

    /// The sum of both; `None` if a number is too large.
    fn plus(&self, other: &Self) -> Option<Self> {
        let (sizes, hits) = added((&self.sizes, &self.hits), (&other.sizes, &other.hits))?;
        Some(Misses {
            references: self.references.checked_add(other.references)?,
            cold: self.cold.checked_add(other.cold)?,
            footprint: self.footprint.max(other.footprint),
            sizes,
            hits,
        })
    }
}

/// What is wrong with a summary, in words.
type Checked = std::result::Result<(), String>;

/// Checks that there is a count for each key, and that the keys are ascending.
fn is_histogram(keys: &[u64], counts: &[u64], what: impl Fn() -> String) -> Checked {
    if keys.len() != counts.len() {
        return Err(format!(
            "{} and their counts are lists of different lengths: make the summary again",
            what()
        ));
    }
    ascend(keys, u64::cmp, what)
}

/// Checks that a list is ascending, and has nothing twice.
fn ascend<T>(list: &[T], order: impl Fn(&T, &T) -> Ordering, what: impl Fn() -> String) -> Checked {
    match list.windows(2).all(|two| order(&two[0], &two[1]).is_lt()) {
        true => Ok(()),
        false => Err(format!(
            "{} are not ascending, or have one twice: make the summary again",
            what()
        )),
    }
}

/// Adds two histograms with ascending keys; `None` if a count is too large.
fn added(a: (&[u64], &[u64]), b: (&[u64], &[u64])) -> Option<(Vec<u64>, Vec<u64>)> {
    let mut a = a.0.iter().copied().zip(a.1.iter().copied()).peekable();
    let mut b = b.0.iter().copied().zip(b.1.iter().copied()).peekable();
    let mut sum = (Vec::new(), Vec::new());
    loop {
        let key = match (a.peek(), b.peek()) {
            (Some(a), Some(b)) => a.0.min(b.0),
            (Some(one), None) | (None, Some(one)) => one.0,
            (None, None) => return Some(sum),
        };
        let of = |next: Option<(u64, u64)>| next.map_or(0, |(_, count)| count);
        let counts = of(a.next_if(|a| a.0 == key)).checked_add(of(b.next_if(|b| b.0 == key)));
        sum.0.push(key);
        sum.1.push(counts?);
    }
}

/// The working set for a τ, as a histogram of its sizes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WorkingSets {
    /// τ.
    pub tau_ns: u64,
    /// Moments at which it was counted: up to 320 for each trace.
    pub samples: u64,
    /// The sum of the sizes, in pages. Divided by `samples`, it is the mean size.
    pub pages: u64,
    /// The largest size.
    pub most_pages: u64,
    /// Least sizes of classes, ascending. A class ends where the next one of [`class`] begins.
    pub sizes: Vec<u64>,
    /// Moments whose size is of the class with the same index.
    pub counts: Vec<u64>,
}

/// The class of a size: the size itself up to 15, and eight classes for each power of two above.
pub fn class(size: u64) -> u64 {
    match size.checked_ilog2() {
        Some(log) if log > 3 => size >> (log - 3) << (log - 3),
        _ => size,
    }
}

impl WorkingSets {
    fn of(set: &WorkingSet) -> Vec<Self> {
        let row = |(tau_ns, sizes): (u64, Vec<u32>)| {
            let mut classes = BTreeMap::new();
            for &size in &sizes {
                *classes.entry(class(size.into())).or_insert(0) += 1;
            }
            let (least, counts) = classes.into_iter().unzip();
            WorkingSets {
                tau_ns,
                samples: sizes.len() as u64,
                pages: sizes.iter().map(|&size| u64::from(size)).sum(),
                most_pages: sizes.into_iter().max().unwrap_or(0).into(),
                sizes: least,
                counts,
            }
        };
        set.sizes_by_tau().map(row).collect()
    }

    fn check(&self) -> Checked {
        let what = || format!("the sizes of working sets for {} ns", self.tau_ns);
        is_histogram(&self.sizes, &self.counts, what)
    }

    /// The sum of both; `None` if a number is too large.
    fn plus(&self, other: &Self) -> Option<Self> {
        let (sizes, counts) = added((&self.sizes, &self.counts), (&other.sizes, &other.counts))?;
        Some(WorkingSets {
            tau_ns: self.tau_ns,
            samples: self.samples.checked_add(other.samples)?,
            pages: self.pages.checked_add(other.pages)?,
            most_pages: self.most_pages.max(other.most_pages),
            sizes,
            counts,
        })
    }

    fn order(&self, other: &Self) -> Ordering {
        self.tau_ns.cmp(&other.tau_ns)
    }
}

/// What is mapped under a name, and the references to it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Mapped {
    /// The name: a file's name without its directories, or a name in brackets.
    pub name: String,
    /// The kind of mapping: file, anon and others.
    pub kind: String,
    /// Traces that have references to it.
    pub traces: u64,
    /// References.
    pub references: u64,
    /// Pages that were first referenced there.
    pub pages: u64,
    /// Bytes of these pages.
    pub bytes: u64,
    /// Stays in which a store was made or begun.
    pub dirtied: u64,
}

impl Mapped {
    /// The numbers that are added.
    fn numbers(&self) -> [u64; 5] {
        [
            self.traces,
            self.references,
            self.pages,
            self.bytes,
            self.dirtied,
        ]
    }

    /// Whether no sum of both is too large.
    fn fits(&self, other: &Self) -> bool {
        let mut numbers = self.numbers().into_iter().zip(other.numbers());
        numbers.all(|(own, other)| own.checked_add(other).is_some())
    }

    /// Adds what [`Mapped::fits`].
    fn add(&mut self, other: &Self) {
        self.traces += other.traces;
        self.references += other.references;
        self.pages += other.pages;
        self.bytes += other.bytes;
        self.dirtied += other.dirtied;
    }

    fn order(&self, other: &Self) -> Ordering {
        (&self.name, &self.kind).cmp(&(&other.name, &other.kind))
    }
}

/// Demands that the time of a selection is given by options. For a row has a duration and working sets.
///
/// # Errors
///
/// [`Unselectable::Expression`] if `--where` selects by a moment.
pub fn demand_times(only: &Where) -> std::result::Result<(), Unselectable> {
    only.refuse(
        &[Field::Time, Field::Seq, Field::Window],
        &[],
        "a row has a duration and working sets, which need to know where the selected time begins and \
         ends: use --since and --until",
    )
}

/// Where curves are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threads {
    /// In threads of their own: for a program that reads one trace at a time.
    Several,
    /// In the calling thread: for programs that read as many traces at the same time as there are
    /// processors.
    One,
}

/// What a summary is to be of.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Where the trace was made, if that is known.
    pub host: Option<&'a str>,
    /// Which references are taken, if not all.
    pub chosen: Option<&'a Chosen>,
    /// Where curves are computed.
    pub threads: Threads,
}

/// What is known of one trace, or of several ones together.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// The version of these fields.
    pub summary_version: u64,
    /// How many traces it is of.
    pub traces: u64,
    /// What the table `traces` of a dataset has, if it is of one trace.
    pub trace: Option<Facts>,
    /// The options that selected the references, if not all were taken.
    pub selection: Option<String>,
    /// Bytes of a page.
    pub page_size: u64,
    /// Traces that passed their checks.
    pub good: u64,
    /// Traces that have their end.
    pub complete: u64,
    /// Bytes of the traces.
    pub bytes: u64,
    /// From the beginning of each trace to its end, added up.
    pub duration_ns: u64,
    /// References.
    pub references: u64,
    /// Renewals.
    pub renewals: u64,
    /// Events.
    pub events: u64,
    /// Distinct pages. Each trace has its own.
    pub pages: u64,
    /// Records that were lost, as far as that is known.
    pub lost: u64,
    /// Misses under LRU.
    pub lru: Misses,
    /// Misses under OPT.
    pub opt: Misses,
    /// Working sets, by τ.
    pub working_sets: Vec<WorkingSets>,
    /// What is mapped, by name and kind.
    pub mapped: Vec<Mapped>,
}

impl Summary {
    /// Reads a trace, and applies the rules of `checker`.
    ///
    /// # Errors
    ///
    /// The trace cannot be read, nothing of it is chosen, or the observer ended the pass.
    pub fn of(
        trace: &Trace,
        wanted: &Wanted<'_>,
        mut checker: Checker,
        observer: &mut dyn Observer,
    ) -> Result<(Self, CheckReport)> {
        let chosen = wanted.chosen;
        let mut statistics = Statistics::default();
        let mut working = match chosen {
            Some(chosen) => Working::within(trace, &chosen.time),
            None => Working::of(trace),
        };
        let (mut taken, mut filtered) = (None, None);
        let (outcome, curves) = std::thread::scope(|scope| {
            let jobs = vec![
                Job::Curve(Box::<LruChunks>::default() as Box<dyn CurveSimulation>),
                Job::Curve(Box::<OptCurve>::default()),
            ];
            let mut workers = match wanted.threads {
                Threads::Several => Workers::start(scope, jobs),
                Threads::One => Workers::without_threads(jobs),
            };
            let mut run = |consumers: &mut [&mut dyn Consumer]| {
                let mode = PageMode::Canonical;
                pipeline::run_with(trace, mode, Freeing::Freed, observer, consumers)
            };
            let outcome = match chosen {
                None => run(&mut [&mut checker, &mut statistics, &mut working, &mut workers])?,
                Some(chosen) => {
                    let mut tee = Tee::new(vec![&mut statistics, &mut working, &mut workers]);
                    let filter = Some(Filter::new(&chosen.clause));
                    let mut selected = Selected::filtered(None, filter, &mut tee);
                    let outcome = run(&mut [&mut checker, &mut selected])?;
                    taken = Some(selected.references());
                    filtered = selected.kept();
                    outcome
                }
            };
            let curves = workers.join().into_iter().filter_map(|job| match job {
                Job::Curve(curve) => Some(Misses::from(&curve.finish())),
                Job::Size(_) => None,
            });
            Ok::<_, crate::error::Error>((outcome, curves.collect::<Vec<_>>()))
        })?;
        let report = checker.report();
        let all = outcome.world.references;
        let taken = Taken {
            chosen,
            references: taken.unwrap_or(all),
            pages: statistics.distinct_pages(),
        };
        if let Some((chosen, filtered)) = chosen.zip(filtered) {
            chosen.demand(trace, taken.references, &filtered)?;
        }
        let facts = Facts::new(trace, wanted.host, &outcome, taken, &report);
        let mut curves = curves.into_iter();
        let summary = Summary {
            summary_version: SUMMARY_VERSION,
            traces: 1,
            page_size: facts.page_size,
            good: facts.good.into(),
            complete: facts.complete.into(),
            bytes: facts.bytes,
            duration_ns: facts.duration_ns,
            references: facts.references,
            renewals: facts.renewals,
            events: facts.events,
            pages: facts.pages,
            lost: facts.lost(),
            lru: curves.next().unwrap_or_default(),
            opt: curves.next().unwrap_or_default(),
            working_sets: WorkingSets::of(&working.set),
            mapped: mapped(&outcome, &statistics, facts.page_size),
            selection: facts.selection.clone(),
            trace: Some(facts),
        };
        Ok((summary, report))
    }

    /// Checks what sums rely on: another program may have made the summary.
    ///
    /// # Errors
    ///
    /// What is wrong, in words.
    pub fn check(&self) -> std::result::Result<(), String> {
        if !(1..=SUMMARY_VERSION).contains(&self.summary_version) {
            return Err(format!(
                "a summary of version {}, and this is version {SUMMARY_VERSION}: make it again",
                self.summary_version
            ));
        }
        if self.traces == 0 {
            return Err("a summary of 0 traces: make it again".into());
        }
        self.lru.check("lru")?;
        self.opt.check("opt")?;
        let taus = || "the times of working_sets".into();
        ascend(&self.working_sets, WorkingSets::order, taus)?;
        for set in &self.working_sets {
            set.check()?;
        }
        let names = || "the names and kinds of mapped".into();
        ascend(&self.mapped, Mapped::order, names)
    }

    /// Adds another summary, of other traces. After an error, this one is what it was.
    ///
    /// # Errors
    ///
    /// Why they cannot be added, in words.
    pub fn add(&mut self, other: &Self) -> std::result::Result<(), String> {
        other.check()?;
        if self.traces == 0 {
            *self = Summary {
                summary_version: SUMMARY_VERSION,
                ..other.clone()
            };
            return Ok(());
        }
        if self.selection != other.selection {
            return Err(format!(
                "a summary of {} cannot be added to one of {}: merge summaries of one selection only",
                selected_text(other.selection.as_deref()),
                selected_text(self.selection.as_deref())
            ));
        }
        if self.page_size != other.page_size {
            return Err(format!(
                "pages of {} bytes cannot be added to pages of {} bytes",
                other.page_size, self.page_size
            ));
        }
        let mapped = (&self.mapped[..], &other.mapped[..]);
        let fits = alike(mapped, Mapped::order).all(|(own, other)| own.fits(other));
        let sum = self.sum_without_mapped(other).filter(|_| fits);
        let sum = sum
            .ok_or("the sum has a number that does not fit into 64 bits: leave this summary out")?;
        let (mut mapped, selection) = (std::mem::take(&mut self.mapped), self.selection.take());
        add_mapped(&mut mapped, &other.mapped);
        *self = Summary {
            mapped,
            selection,
            ..sum
        };
        Ok(())
    }

    /// The sum of both, without a selection and without what is mapped; `None` if a number is too large.
    fn sum_without_mapped(&self, other: &Self) -> Option<Self> {
        Some(Summary {
            summary_version: SUMMARY_VERSION,
            traces: self.traces.checked_add(other.traces)?,
            trace: None,
            selection: None,
            page_size: self.page_size,
            good: self.good.checked_add(other.good)?,
            complete: self.complete.checked_add(other.complete)?,
            bytes: self.bytes.checked_add(other.bytes)?,
            duration_ns: self.duration_ns.checked_add(other.duration_ns)?,
            references: self.references.checked_add(other.references)?,
            renewals: self.renewals.checked_add(other.renewals)?,
            events: self.events.checked_add(other.events)?,
            pages: self.pages.checked_add(other.pages)?,
            // A trace without an account may have lost any number.
            lost: self.lost.saturating_add(other.lost),
            lru: self.lru.plus(&other.lru)?,
            opt: self.opt.plus(&other.opt)?,
            working_sets: sum_of_sets(&self.working_sets, &other.working_sets)?,
            mapped: Vec::new(),
        })
    }
}

/// Adds summaries up, each trace once.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    summary: Summary,
    /// The ids of traces, as far as the summaries have them.
    ids: BTreeSet<String>,
}

impl Sum {
    /// Adds a summary.
    ///
    /// # Errors
    ///
    /// Why it cannot be added, in words. The sum is what it was.
    pub fn add(&mut self, summary: &Summary) -> std::result::Result<(), String> {
        let id = summary.trace.as_ref().map(|facts| &*facts.trace);
        self.add_trace(summary, id)
    }

    /// Adds a summary of the trace with this id, if it is of one.
    ///
    /// # Errors
    ///
    /// As those of [`Sum::add`].
    pub fn add_trace(
        &mut self,
        summary: &Summary,
        id: Option<&str>,
    ) -> std::result::Result<(), String> {
        if let Some(id) = id.filter(|id| self.ids.contains(*id)) {
            return Err(format!(
                "trace {id} was added already: leave out one of the two"
            ));
        }
        self.summary.add(summary)?;
        self.ids.extend(id.map(Into::into));
        Ok(())
    }

    /// The sum.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }
}

/// The items of two ascending lists that are in both.
fn alike<'a, T>(
    (own, others): (&'a [T], &'a [T]),
    order: impl Fn(&T, &T) -> Ordering,
) -> impl Iterator<Item = (&'a T, &'a T)> {
    let mut others = others.iter().peekable();
    own.iter().filter_map(move |one| {
        while others.next_if(|other| order(other, one).is_lt()).is_some() {}
        let same = others.next_if(|other| order(other, one).is_eq())?;
        Some((one, same))
    })
}

/// The sum of working sets by τ; `None` if a number is too large.
fn sum_of_sets(own: &[WorkingSets], others: &[WorkingSets]) -> Option<Vec<WorkingSets>> {
    let mut by_tau: BTreeMap<u64, WorkingSets> = BTreeMap::new();
    for set in own.iter().chain(others) {
        let sum = match by_tau.get(&set.tau_ns) {
            Some(known) => known.plus(set)?,
            None => set.clone(),
        };
        by_tau.insert(set.tau_ns, sum);
    }
    Some(by_tau.into_values().collect())
}

/// Adds one list to another. Both are ascending, and the sums fit.
fn add_mapped(to: &mut Vec<Mapped>, from: &[Mapped]) {
    let mut merged: Vec<Mapped> = Vec::with_capacity(to.len().max(from.len()));
    let mut from = from.iter().peekable();
    for mut item in to.drain(..) {
        while let Some(other) = from.next_if(|other| other.order(&item).is_lt()) {
            merged.push(other.clone());
        }
        if let Some(same) = from.next_if(|other| other.order(&item).is_eq()) {
            item.add(same);
        }
        merged.push(item);
    }
    merged.extend(from.cloned());
    *to = merged;
}

/// What was mapped, ascending by name and kind.
fn mapped(outcome: &Outcome, statistics: &Statistics, page_size: u64) -> Vec<Mapped> {
    let (by_object, outside) = statistics.by_object();
    let row = |name: &str, kind: &str, counters: &Counters, page_size: u64| Mapped {
        name: name.into(),
        kind: kind.into(),
        traces: 1,
        references: counters.references,
        pages: counters.new_pages,
        bytes: counters.new_pages.saturating_mul(page_size),
        dirtied: counters.dirtied,
    };
    let mut by_key: BTreeMap<(String, String), Mapped> = BTreeMap::new();
    let mut put = |new: Mapped| {
        let key = (new.name.clone(), new.kind.clone());
        match by_key.get_mut(&key) {
            // Another file had the name before.
            Some(known) => known.add(&Mapped { traces: 0, ..new }),
            None => drop(by_key.insert(key, new)),
        }
    };
    let objects = outcome.world.space.objects().iter().zip(by_object);
    for (object, counters) in objects.filter(|(_, counters)| counters.references > 0) {
        let size = object.huge.unwrap_or(page_size);
        put(row(&object.name, object.kind.name(), counters, size));
    }
    if outside.references > 0 {
        put(row(UNMAPPED, "unknown", outside, page_size));
    }
    by_key.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_begins_with_its_least_size() {
        for size in 0..5_000u64 {
            let least = class(size);
            assert_eq!(class(least), least);
            assert!(least <= size && size - least <= size / 8, "{size} {least}");
        }
        assert_eq!(class(u64::MAX), 15 << 60);
    }

    #[test]
    fn histograms_are_added_by_key() {
        let sum = added((&[1, 3, 4], &[1, 1, 1]), (&[2, 3, 9], &[5, 6, 7]));
        assert_eq!(sum, Some((vec![1, 2, 3, 4, 9], vec![1, 5, 7, 1, 7])));
        let empty: (&[u64], &[u64]) = (&[], &[]);
        assert_eq!(added(empty, (&[2], &[5])), Some((vec![2], vec![5])));
        assert_eq!(added((&[2], &[u64::MAX]), (&[2], &[1])), None);
    }

    fn one() -> Summary {
        let misses = Misses {
            references: 10,
            cold: 2,
            footprint: 2,
            sizes: vec![1, 2],
            hits: vec![3, 5],
        };
        let set = |tau_ns| WorkingSets {
            tau_ns,
            samples: 2,
            pages: 3,
            most_pages: 2,
            sizes: vec![1, 2],
            counts: vec![1, 1],
        };
        let mapped = |name: &str| Mapped {
            name: name.into(),
            kind: "file".into(),
            traces: 1,
            references: 5,
            pages: 1,
            bytes: 4096,
            dirtied: 0,
        };
        Summary {
            summary_version: SUMMARY_VERSION,
            traces: 1,
            page_size: 4096,
            references: 10,
            lru: misses.clone(),
            opt: misses,
            working_sets: vec![set(100), set(200)],
            mapped: vec![mapped("a"), mapped("b")],
            ..Summary::default()
        }
    }

    /// A change of a summary.
    type Change = fn(&mut Summary);

    #[test]
    fn what_sums_rely_on_is_checked() {
        assert_eq!(one().check(), Ok(()));
        let changes: [(Change, &str); 13] = [
            (|s| s.summary_version = 0, "version 0"),
            (
                |s| s.summary_version = SUMMARY_VERSION + 1,
                "this is version",
            ),
            (|s| s.traces = 0, "0 traces"),
            (
                |s| s.lru.sizes = vec![2, 1],
                "the sizes of lru are not ascending",
            ),
            (|s| s.lru.sizes = vec![2, 2], "or have one twice"),
            (
                |s| s.opt.sizes = vec![1],
                "the sizes of opt and their counts",
            ),
            (|s| s.opt.references = 7, "the hits of opt are more"),
            (
                |s| s.opt.hits = vec![9, u64::MAX],
                "the hits of opt are more",
            ),
            (
                |s| s.working_sets[1].tau_ns = 100,
                "the times of working_sets",
            ),
            (|s| s.working_sets.reverse(), "the times of working_sets"),
            (
                |s| s.working_sets[1].sizes = vec![2, 1],
                "for 200 ns are not ascending",
            ),
            (
                |s| s.working_sets[0].counts.clear(),
                "for 100 ns and their counts",
            ),
            (
                |s| s.mapped[1].name = "a".into(),
                "the names and kinds of mapped",
            ),
        ];
        for (change, why) in changes {
            let mut wrong = one();
            change(&mut wrong);
            let found = wrong.check().expect_err(why);
            assert!(found.contains(why), "{found}");
            let mut sum = one();
            assert_eq!(sum.add(&wrong), Err(found));
            assert_eq!(sum, one());
            assert!(Summary::default().add(&wrong).is_err());
        }
    }

    #[test]
    fn a_sum_that_does_not_fit_changes_nothing() {
        let changes: [Change; 16] = [
            |s| s.traces = u64::MAX,
            |s| s.good = u64::MAX,
            |s| s.complete = u64::MAX,
            |s| s.bytes = u64::MAX,
            |s| s.duration_ns = u64::MAX,
            |s| s.references = u64::MAX,
            |s| s.renewals = u64::MAX,
            |s| s.events = u64::MAX,
            |s| s.pages = u64::MAX,
            |s| s.lru.references = u64::MAX,
            |s| s.opt.cold = u64::MAX,
            |s| s.working_sets[0].samples = u64::MAX,
            |s| s.working_sets[1].counts[0] = u64::MAX,
            |s| s.mapped[0].bytes = u64::MAX,
            |s| s.mapped[1].traces = u64::MAX,
            |s| s.mapped[1].dirtied = u64::MAX,
        ];
        let mut own = one();
        // Each number is above 0.
        for number in [
            &mut own.good,
            &mut own.complete,
            &mut own.bytes,
            &mut own.duration_ns,
            &mut own.renewals,
            &mut own.events,
            &mut own.pages,
            &mut own.mapped[1].dirtied,
        ] {
            *number = 1;
        }
        for change in changes {
            let (mut sum, mut large) = (own.clone(), one());
            change(&mut large);
            let why = sum.add(&large).expect_err("it does not fit");
            assert!(why.contains("does not fit into 64 bits"), "{why}");
            assert_eq!(sum, own);
            // By itself it is good.
            assert_eq!(Summary::default().add(&large), Ok(()));
        }
        let mut sum = own.clone();
        assert_eq!(sum.add(&one()), Ok(()));
        assert_eq!((sum.traces, sum.references), (2, 20));
        assert_eq!(sum.lru.hits, [6, 10]);
        assert_eq!(sum.working_sets[1].counts, [2, 2]);
        let bytes: Vec<u64> = sum.mapped.iter().map(|mapped| mapped.bytes).collect();
        assert_eq!(bytes, [8192, 8192]);
    }
}
