//! Runs, or policies, side by side.
//!
//! A *run* is a trace, or a window of one. A *column* is a run under a policy. Columns are compared
//! with the *base*: the first run under the same policy, or the first policy if there is one run.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::classes::Class;
use super::contents::{Changed, Contents, PageRange};
use super::working_set::SizeByTau;
use crate::amount::Percent;
use crate::filter::{Filtered, LeftOut};
use crate::sim::{Band, Bounds, Need};

/// Mappings that tables list. JSON has all.
pub const LISTED: usize = 40;

/// Mappings whose new or gone pages are listed, of each run.
pub const LISTED_PAGES: usize = 15;

/// A trace, or a window of one.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The letter by which tables call it.
    pub label: String,
    /// The trace's name.
    pub path: String,
    /// The window's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// References.
    pub references: u64,
    /// First references to pages: the misses that no memory avoids.
    pub cold: u64,
    /// The largest number of pages that existed at one time.
    pub footprint_pages: u64,
    /// The size N of the set; 0 for another program's trace.
    pub evms_size: u32,
    /// Whether it passed its checks.
    pub good: bool,
    /// Whether LRU's and OPT's misses have bounds that are proven.
    pub certified: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not_certified: Option<&'static str>,
    /// What `--where` has kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filtered>,
    /// What the kernel's filter has left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filtered: Option<LeftOut>,
    /// The least memory under LRU that keeps the misses within the slack.
    pub need: Need,
    /// The same under OPT.
    pub opt: Need,
    /// The working set.
    pub working_set: Vec<SizeByTau>,
}

/// A difference of two counts, with the bounds on the difference for all references.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Difference {
    /// By the traces' references.
    pub misses: i64,
    /// It is no less than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<i64>,
    /// It is no more than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<i64>,
}

/// The misses of a column in a memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Cell {
    /// By the trace's references.
    pub misses: u64,
    /// The bounds for all references.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
    /// Compared with the base; `None` for the base.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<Difference>,
}

impl Cell {
    /// A cell that is not compared yet.
    pub fn new(misses: u64, band: Option<Band>) -> Self {
        Cell {
            misses,
            band,
            difference: None,
        }
    }

    fn minus(&self, base: &Cell) -> Difference {
        let minus = |a: u64, b: u64| {
            let difference = i128::from(a) - i128::from(b);
            difference.clamp(i64::MIN.into(), i64::MAX.into()) as i64
        };
        let bands = self.band.zip(base.band);
        Difference {
            misses: minus(self.misses, base.misses),
            low: bands.map(|(own, base)| minus(own.low, base.high)),
            high: bands.map(|(own, base)| minus(own.high, base.low)),
        }
    }
}

/// A run under a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Under {
    /// The run's place in the list.
    pub run: usize,
    /// The policy.
    pub policy: &'static str,
}

/// The misses of a run under a policy, at each size of the comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// Whose misses these are.
    #[serde(flatten)]
    pub under: Under,
    /// With what they are compared.
    pub base: Under,
    /// By size.
    pub cells: Vec<Cell>,
}

/// The pages of a mapping in a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Mapped {
    /// References.
    pub references: u64,
    /// Pages. One that was freed and is made again counts twice.
    pub pages: u64,
    /// How they differ from those of the first run; `None` for the first run, and for pages that
    /// have no identity in both.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub changed: Option<Changed>,
}

/// The mappings of a name in all runs.
#[derive(Clone, Debug, Serialize)]
pub struct Mapping {
    /// A file's name without its directories, or a name in brackets.
    pub name: String,
    /// What it is for.
    pub class: Class,
    /// By run.
    pub runs: Vec<Mapped>,
}

/// The pages of a run, compared with those of the first one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Pages {
    /// The run.
    pub run: usize,
    /// Pages that the first run did not reference.
    pub new: u64,
    /// Pages that only the first run referenced.
    pub gone: u64,
    /// Pages that both referenced.
    pub both: u64,
    /// Pages that cannot be recognised in another run, by what they are for.
    pub uncompared: Vec<Uncompared>,
}

/// Pages that cannot be recognised in another run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Uncompared {
    /// What they are for.
    pub class: Class,
    /// Pages of the run.
    pub pages: u64,
    /// Pages of the first run.
    pub base_pages: u64,
}

/// Pages of two runs that only one of them referenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Pages that the first run did not reference.
    New,
    /// Pages that only the first run referenced.
    Gone,
}

/// The pages of a mapping that only one of two runs referenced.
#[derive(Clone, Copy, Debug)]
pub struct OnlyThere<'c> {
    /// The mapping.
    pub mapping: &'c Mapping,
    /// How many pages these are.
    pub pages: u64,
    /// Which ones.
    pub ranges: &'c [PageRange],
}

/// Ranges of a mapping that a table names.
const RANGES: usize = 4;

impl OnlyThere<'_> {
    /// Which pages these are, in words: numbers of pages in the file, or addresses.
    pub fn which(&self, page_size: u64) -> String {
        let text = |range: &PageRange| {
            let end = range.first.saturating_add(range.pages);
            match (range.pid, range.pages) {
                (Some(pid), _) => format!(
                    "{pid}: {:#x}..{:#x}",
                    range.first.saturating_mul(page_size),
                    end.saturating_mul(page_size)
                ),
                (None, 1) => range.first.to_string(),
                (None, _) => format!("{}-{}", range.first, end - 1),
            }
        };
        let named: Vec<String> = self.ranges.iter().take(RANGES).map(text).collect();
        match self.ranges.len().saturating_sub(RANGES) {
            0 => named.join(", "),
            more => format!("{} and {more} more", named.join(", ")),
        }
    }
}

/// Whether a run needs more memory than the first one.
#[derive(Clone, Debug, Serialize)]
pub struct Growth {
    /// The run.
    pub run: usize,
    /// How much more it needs, as a fraction; `None` if the first run needs nothing.
    pub more: Option<f64>,
    /// It is no less than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// It is no more than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// Whether this is more than was permitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub too_much: Option<TooMuch>,
}

/// The answer to `--fail-above`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct TooMuch {
    /// By the traces' references.
    pub failed: bool,
    /// The bounds prove it: every size that they permit gives the same answer.
    pub proven: bool,
}

impl Growth {
    /// From the needs of the first run and of another one. `permitted` is the growth that is still
    /// good.
    pub fn new(run: usize, base: Need, need: Need, permitted: Option<Percent>) -> Self {
        let ratio = |need: u64, base: u64| match base {
            0 => None,
            _ => Some((need as f64 - base as f64) / base as f64),
        };
        let bounds = need.bounds.zip(base.bounds);
        let above = |need: u64, base: u64, permitted: Percent| need > permitted.above(base);
        let too_much = permitted.map(|permitted| {
            let failed = above(need.pages, base.pages, permitted);
            let certain = |(own, base): (Bounds, Bounds)| match failed {
                true => above(own.low, base.high, permitted),
                false => !above(own.high, base.low, permitted),
            };
            TooMuch {
                failed,
                proven: bounds.is_some_and(certain),
            }
        });
        Growth {
            run,
            more: ratio(need.pages, base.pages),
            low: bounds.and_then(|(own, base)| ratio(own.low, base.high)),
            high: bounds.and_then(|(own, base)| ratio(own.high, base.low)),
            too_much,
        }
    }
}

/// Everything that is compared.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Bytes of a page.
    pub page_size: u64,
    /// How many more misses than the cold ones a need permits.
    pub slack: Percent,
    /// The growth that `--fail-above` permits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fail_above: Option<Percent>,
    /// The policy of [`Comparison::growth`].
    pub need_policy: &'static str,
    /// The runs; all others are compared with the first one.
    pub runs: Vec<Run>,
    /// Of each run except the first one.
    pub growth: Vec<Growth>,
    /// The sizes of memory, in pages.
    pub sizes: Vec<u64>,
    /// The curves.
    pub columns: Vec<Column>,
    /// Of each run except the first one.
    pub pages: Vec<Pages>,
    /// What is mapped; those that changed most come first.
    pub mappings: Vec<Mapping>,
}

/// Compares each column with its base, if that is among them.
pub fn compare(columns: &mut [Column]) {
    let bases: Vec<Option<Vec<Cell>>> = columns
        .iter()
        .map(|column| {
            let is_base = |other: &&Column| other.under == column.base;
            let base = columns.iter().find(is_base)?;
            (column.under != column.base).then(|| base.cells.clone())
        })
        .collect();
    for (column, base) in columns.iter_mut().zip(bases) {
        for (cell, base) in column.cells.iter_mut().zip(base.iter().flatten()) {
            cell.difference = Some(cell.minus(base));
        }
    }
}

impl Comparison {
    /// The name of a run under a policy, as short as possible.
    pub fn name(&self, under: Under) -> String {
        let policies: BTreeSet<_> = self.columns.iter().map(|c| c.under.policy).collect();
        let run = self.runs.get(under.run).map_or("", |run| &run.label);
        match (self.runs.len(), policies.len()) {
            (1, _) => under.policy.into(),
            (_, 1) => run.into(),
            _ => format!("{run} {}", under.policy),
        }
    }

    /// The mappings with pages that only a run or only the first run referenced, those with most such
    /// pages first.
    pub fn only_there(&self, run: usize, side: Side) -> Vec<OnlyThere<'_>> {
        let there = self.mappings.iter().filter_map(|mapping| {
            let changed = mapping.runs.get(run)?.changed.as_ref()?;
            let (pages, ranges) = match side {
                Side::New => (changed.new, &changed.new_pages),
                Side::Gone => (changed.gone, &changed.gone_pages),
            };
            (pages > 0).then_some(OnlyThere {
                mapping,
                pages,
                ranges: ranges.as_deref().unwrap_or_default(),
            })
        });
        let mut there: Vec<_> = there.collect();
        there.sort_by(|a, b| {
            let by_name = || a.mapping.name.cmp(&b.mapping.name);
            b.pages.cmp(&a.pages).then_with(by_name)
        });
        there
    }

    /// Finds out which pages are new and gone: of all mappings, or of those alone that tables list.
    pub fn find_pages(&mut self, contents: &[&Contents], of_all: bool) {
        let Some((base, others)) = contents.split_first() else {
            return;
        };
        for (run, own) in (1..).zip(others) {
            for side in [Side::New, Side::Gone] {
                let listed = self.only_there(run, side).into_iter().take(LISTED_PAGES);
                let listed: BTreeSet<String> =
                    listed.map(|only| only.mapping.name.clone()).collect();
                for mapping in &mut self.mappings {
                    let name = &mapping.name;
                    let mapped = mapping.runs.get_mut(run);
                    let Some(changed) = mapped.and_then(|mapped| mapped.changed.as_mut()) else {
                        continue;
                    };
                    if !of_all && !listed.contains(name) {
                        continue;
                    }
                    match side {
                        Side::New => changed.new_pages = Some(own.pages_only_here(base, name)),
                        Side::Gone => changed.gone_pages = Some(base.pages_only_here(own, name)),
                    }
                }
            }
        }
    }

    /// The same with the mappings that tables list, and without ranges of pages: for a page that is to
    /// stay small.
    pub fn shortened(&self) -> Self {
        let counts = |mapped: &Mapped| Mapped {
            changed: mapped.changed.as_ref().map(Changed::counts),
            ..*mapped
        };
        let short = |mapping: &Mapping| Mapping {
            name: mapping.name.clone(),
            class: mapping.class,
            runs: mapping.runs.iter().map(counts).collect(),
        };
        Comparison {
            page_size: self.page_size,
            slack: self.slack,
            fail_above: self.fail_above,
            need_policy: self.need_policy,
            runs: self.runs.clone(),
            growth: self.growth.clone(),
            sizes: self.sizes.clone(),
            columns: self.columns.clone(),
            pages: self.pages.clone(),
            mappings: self.mappings.iter().take(LISTED).map(short).collect(),
        }
    }
}

/// The pages of each run except the first one, by what is mapped.
pub fn pages(mappings: &[Mapping], runs: usize) -> Vec<Pages> {
    (1..runs).map(|run| pages_of(mappings, run)).collect()
}

fn pages_of(mappings: &[Mapping], run: usize) -> Pages {
    let mut pages = Pages {
        run,
        new: 0,
        gone: 0,
        both: 0,
        uncompared: Vec::new(),
    };
    for mapping in mappings {
        let (Some(base), Some(own)) = (mapping.runs.first(), mapping.runs.get(run)) else {
            continue;
        };
        if let Some(changed) = &own.changed {
            pages.new += changed.new;
            pages.gone += changed.gone;
            pages.both += changed.both;
            continue;
        }
        // It is in another run only.
        if own.pages == 0 && base.pages == 0 {
            continue;
        }
        let same = |known: &&mut Uncompared| known.class == mapping.class;
        match pages.uncompared.iter_mut().find(same) {
            Some(known) => {
                known.pages += own.pages;
                known.base_pages += base.pages;
            }
            None => pages.uncompared.push(Uncompared {
                class: mapping.class,
                pages: own.pages,
                base_pages: base.pages,
            }),
        }
    }
    let most = |of: &Uncompared| of.pages.max(of.base_pages);
    pages
        .uncompared
        .sort_by_key(|of| std::cmp::Reverse(most(of)));
    pages
}

/// What is mapped in each run.
pub fn mappings(contents: &[&Contents]) -> Vec<Mapping> {
    let mut names: BTreeMap<&str, Class> = BTreeMap::new();
    for (name, content) in contents.iter().flat_map(|contents| contents.by_name()) {
        let class = names.entry(name).or_insert(content.class);
        *class = content.class.min(*class);
    }
    let Some(base) = contents.first() else {
        return Vec::new();
    };
    let of = |name: &str, run: usize, contents: &Contents| {
        let content = contents.find(name);
        Mapped {
            references: content.map_or(0, |content| content.references),
            pages: content.map_or(0, |content| content.pages),
            changed: match run {
                0 => None,
                _ => contents.changed(base, name),
            },
        }
    };
    let mut rows: Vec<Mapping> = names
        .into_iter()
        .map(|(name, class)| Mapping {
            name: name.into(),
            class,
            runs: contents
                .iter()
                .enumerate()
                .map(|(run, contents)| of(name, run, contents))
                .collect(),
        })
        .collect();
    let change = |row: &Mapping| {
        let base = row.runs.first().map_or(0, |mapped| mapped.pages);
        let change = |mapped: &Mapped| match &mapped.changed {
            Some(changed) => changed.new.max(changed.gone),
            None => mapped.pages.abs_diff(base),
        };
        row.runs.iter().map(change).max().unwrap_or(0)
    };
    let pages = |row: &Mapping| row.runs.iter().map(|mapped| mapped.pages).max();
    rows.sort_by_cached_key(|row| {
        let order = (change(row), pages(row));
        (std::cmp::Reverse(order), row.name.clone())
    });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(low: u64, pages: u64, high: u64) -> Need {
        let bounds = Some(Bounds { low, high });
        Need { pages, bounds }
    }

    #[test]
    fn growth_is_proven_if_all_sizes_that_are_possible_agree() {
        let five: Percent = "5%".parse().expect("good");
        let answer = |base, need| {
            let growth = Growth::new(1, base, need, Some(five));
            let too_much = growth.too_much.expect("asked");
            (too_much.failed, too_much.proven)
        };
        let base = need(98, 100, 102);
        assert_eq!(answer(base, need(100, 105, 106)), (false, false));
        assert_eq!(answer(base, need(95, 96, 102)), (false, true));
        assert_eq!(answer(base, need(104, 106, 110)), (true, false));
        // 5 % more than 102 are 107.
        assert_eq!(answer(base, need(107, 108, 110)), (true, false));
        assert_eq!(answer(base, need(108, 109, 110)), (true, true));
        let unbounded = Need {
            pages: 106,
            bounds: None,
        };
        assert_eq!(answer(base, unbounded), (true, false));
        // From nothing, everything is too much.
        let nothing = need(0, 0, 0);
        assert_eq!(answer(nothing, need(1, 1, 1)), (true, true));
        assert_eq!(answer(nothing, nothing), (false, true));
        assert_eq!(Growth::new(1, nothing, base, None).more, None);
    }

    #[test]
    fn a_difference_has_the_bounds_of_both() {
        let cell = |misses, low, high| Cell::new(misses, Some(Band { low, high }));
        let difference = cell(50, 40, 70).minus(&cell(60, 55, 61));
        let expected = Difference {
            misses: -10,
            low: Some(-21),
            high: Some(15),
        };
        assert_eq!(difference, expected);
        assert_eq!(Cell::new(1, None).minus(&cell(0, 0, 0)).low, None);
    }
}
