//! The working set W(t, τ): how many pages were referenced in the time τ before t.
//!
//! (Denning, "The working set model for program behavior", CACM 11(5), 1968.) It is
//! exact for the references in the trace: at the end of each column of time, pages are
//! counted by the time since their last reference, for all τ at once. Memory use is eight
//! bytes a page, whatever the trace's length.
//!
//! A page that is freed leaves the working set at that moment: although it was referenced
//! within τ, it is no longer memory.
//!
//! References to the N enabled pages are not recorded. So the program's own working set is
//! between the counted one and N pages more.

use std::fmt::Write;
use std::ops::Range;

use serde::Serialize;
use serde_json::json;

use super::Figure;
use super::chart::{LineChart, Series, Unit};
use super::timeline::{COLUMNS, Moved, Timeline};
use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, World};
use crate::space::Issue;
use crate::trace::{Event, Trace};
use crate::units::CanonPage;

/// 1, 2 and 5 times powers of ten: the values that τ can have.
const WINDOWS: usize = 48;

fn window(i: usize) -> u64 {
    [1, 2, 5][i % 3] * 10u64.pow(i as u32 / 3)
}

/// Counts working sets in a pass over the references.
pub struct WorkingSet {
    line: Timeline,
    /// By page: the time of its last reference, plus one.
    last: Vec<u64>,
    pages: u64,
    /// By column: for each window, the number of pages referenced within it.
    samples: Vec<[u32; WINDOWS]>,
    start: u64,
    newest: u64,
}

/// The size of the working set for a τ.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SizeByTau {
    /// τ.
    pub tau_ns: u64,
    /// Mean over the trace.
    pub mean_pages: f64,
    /// The largest size.
    pub most_pages: u32,
}

/// The sets whose pages can be referenced without a record.
#[derive(Clone, Copy, Debug)]
pub struct EnabledPages {
    /// N, the pages of each.
    pub n: u32,
    /// There are several.
    pub several: bool,
}

impl EnabledPages {
    fn note(&self) -> String {
        let n = super::grouped(self.n.into());
        match self.several {
            false => format!(
                "References to the N = {n} enabled pages are not in the trace, so the program's working \
                 set may be up to N pages larger."
            ),
            true => format!(
                "References to the N = {n} enabled pages of each set are not in the trace, so the \
                 programs' working set may be larger, by up to N pages for each set."
            ),
        }
    }
}

impl WorkingSet {
    /// For references from `start` on; `length` is the expected length.
    pub fn new(start: u64, length: u64) -> Self {
        WorkingSet {
            line: Timeline::new(start, length),
            last: Vec::new(),
            pages: 0,
            samples: Vec::new(),
            start,
            newest: start,
        }
    }

    /// One reference.
    #[inline]
    pub fn reference(&mut self, moment: u64, page: u32) {
        if moment >= self.line.until() {
            self.advance(moment);
        }
        let at = page as usize;
        if at >= self.last.len() {
            self.last.resize((at + 1).next_power_of_two(), 0);
        }
        self.pages += u64::from(self.last[at] == 0);
        self.last[at] = moment.saturating_sub(self.start) + 1;
        self.newest = self.newest.max(moment);
    }

    /// A page was freed; nothing happens if it was never referenced.
    ///
    /// Counts up to the end of the column before do not change.
    pub fn free(&mut self, moment: u64, page: u32) {
        if moment >= self.line.until() {
            self.advance(moment);
        }
        if let Some(last) = self.last.get_mut(page as usize) {
            *last = 0;
        }
    }

    #[cold]
    fn advance(&mut self, moment: u64) {
        while moment >= self.line.until() {
            // Columns without a reference have ends, too.
            let end = self.line.until();
            self.sample(end);
            if self.line.present() + 1 < COLUMNS {
                self.line.step(end);
                continue;
            }
            // The next column would be one too many: every other sample is kept.
            if self.line.step(end) == Some(Moved::Doubled) {
                let mut odd = false;
                self.samples.retain(|_| {
                    odd = !odd;
                    !odd
                });
            }
            while self.line.until() <= end {
                self.line.step(end);
            }
        }
    }

    /// Counts pages by the time since their last reference.
    fn sample(&mut self, end: u64) {
        let now = end.saturating_sub(self.start);
        let mut counts = [0u32; WINDOWS];
        let windows: [u64; WINDOWS] = std::array::from_fn(window);
        for &last in &self.last {
            if last > 0 {
                // Referenced in (now - τ, now]: by less than τ ago. A column's end is
                // the first moment behind it.
                let ago = now - last.min(now);
                let first = windows.partition_point(|&w| w <= ago);
                if let Some(count) = counts.get_mut(first) {
                    *count += 1;
                }
            }
        }
        let mut sum = 0u32;
        for count in &mut counts {
            sum += *count;
            *count = sum;
        }
        self.samples.push(counts);
    }

    /// Ends the last column.
    pub fn finish(&mut self) {
        if self.pages > 0 {
            self.sample(self.newest.saturating_add(1));
        }
    }

    /// W at the column's end, for a window of `τ = window(i)`.
    #[cfg(test)]
    fn at(&self, column: usize, i: usize) -> u32 {
        self.samples[column][i]
    }

    /// Its size at each moment that counts, for each τ that is not longer than the trace and not shorter than
    /// the time between two samples.
    pub fn sizes_by_tau(&self) -> impl Iterator<Item = (u64, Vec<u32>)> + '_ {
        let length = self.newest.saturating_sub(self.start).max(1);
        let width = self.line.width();
        let known = (0..WINDOWS).filter(move |&i| window(i) >= width && window(i) <= length);
        known.filter_map(move |i| {
            // Only windows that lie within the trace.
            let whole = |column: &usize| (*column as u64 + 1) * width >= window(i);
            let columns = (0..self.samples.len()).filter(whole);
            let sizes: Vec<u32> = columns.map(|column| self.samples[column][i]).collect();
            (!sizes.is_empty()).then(|| (window(i), sizes))
        })
    }

    /// The mean and the largest of these sizes, for each τ.
    pub fn by_tau(&self) -> Vec<SizeByTau> {
        let row = |(tau_ns, sizes): (u64, Vec<u32>)| {
            let sum: f64 = sizes.iter().map(|&size| f64::from(size)).sum();
            SizeByTau {
                tau_ns,
                mean_pages: sum / sizes.len() as f64,
                most_pages: sizes.into_iter().max().unwrap_or(0),
            }
        };
        self.sizes_by_tau().map(row).collect()
    }

    /// The pictures: over time, and by τ.
    ///
    /// `sets` says what sets of enabled pages the trace was made with, if any.
    pub fn figures(
        &self,
        unit: Unit,
        page_size: u64,
        sets: Option<EnabledPages>,
        subtitle: &str,
    ) -> Vec<Figure> {
        let width = self.line.width();
        let length = self.newest.saturating_sub(self.start).max(1);
        let end = |column: usize| ((column as u64 + 1) * width).min(length);
        // Windows that a column can show, and that do not take the whole trace.
        let first = (0..WINDOWS)
            .find(|&i| window(i) >= width)
            .unwrap_or(WINDOWS - 1);
        let last = (0..WINDOWS).rfind(|&i| window(i) <= length).unwrap_or(0);
        let last = last.max(first);
        let shown: Vec<usize> = {
            let step = ((last - first) as f64 / 4.0).max(1.0);
            let mut shown: Vec<usize> = (0..5)
                .map(|i| (last as f64 - step * f64::from(i)).round() as usize)
                .take_while(|i| *i >= first && *i <= last)
                .collect();
            shown.dedup();
            shown
        };
        let note: Vec<String> = sets.iter().map(EnabledPages::note).collect();
        let series: Vec<Series> = shown
            .iter()
            .map(|&i| Series {
                name: format!("τ = {}", unit.text(window(i) as f64)),
                points: self
                    .samples
                    .iter()
                    .enumerate()
                    .map(|(column, counts)| (end(column) as f64, f64::from(counts[i])))
                    .collect(),
                ..Series::default()
            })
            .collect();
        let most = series
            .iter()
            .flat_map(|s| &s.points)
            .fold(1.0f64, |most, p| most.max(p.1));
        let over_time = LineChart {
            over_time: true,
            title: "Working set over time, W(t, τ)".into(),
            subtitle: subtitle.into(),
            x_label: match unit {
                Unit::Nanos => "time since the trace began, t".into(),
                _ => "references so far, t".into(),
            },
            y_label: "pages referenced in the time τ before t".into(),
            x: (unit, false),
            y: (Unit::Count, false),
            x_range: (0.0, length as f64),
            y_range: (0.0, most * 1.05),
            series,
            zones: Vec::new(),
            uprights: Vec::new(),
            levels: Vec::new(),
            notes: note.clone(),
        };
        let mut csv = String::from("t");
        for i in first..=last {
            // Writing to a string cannot fail.
            let _ = write!(csv, ",tau_{}", window(i));
        }
        csv.push('\n');
        for (column, counts) in self.samples.iter().enumerate() {
            let _ = write!(csv, "{}", end(column));
            for count in &counts[first..=last] {
                let _ = write!(csv, ",{count}");
            }
            csv.push('\n');
        }
        let taus: Vec<u64> = (first..=last).map(window).collect();
        let rows: Vec<_> = self
            .samples
            .iter()
            .enumerate()
            .map(|(column, counts)| json!({"t": end(column), "pages": &counts[first..=last]}))
            .collect();
        let mut figures = vec![Figure {
            id: "working-set".into(),
            title: over_time.title.clone(),
            section: "",
            about:
                "The pages that the programs referenced within the last time τ, for several τ. A \
                    short τ shows phases; a long τ shows how much memory the programs need."
                    .into(),
            svg: over_time.draw(),
            explored: over_time.explored(),
            csv,
            json: json!({"kind": "working-set", "page_size": page_size, "tau": taus, "samples": rows}),
        }];
        figures.push(self.by_window(unit, first..=last, length, subtitle, note));
        figures
    }

    fn by_window(
        &self,
        unit: Unit,
        windows: std::ops::RangeInclusive<usize>,
        length: u64,
        subtitle: &str,
        notes: Vec<String>,
    ) -> Figure {
        let width = self.line.width();
        let mut csv = String::from("tau,mean,p5,p50,p95,max\n");
        let mut lines: [Vec<(f64, f64)>; 4] = Default::default();
        let mut rows = Vec::new();
        for i in windows.clone() {
            // Only windows that lie within the trace.
            let whole = |column: &usize| (*column as u64 + 1) * width >= window(i);
            let mut sizes: Vec<u32> = (0..self.samples.len())
                .filter(whole)
                .map(|column| self.samples[column][i])
                .collect();
            if sizes.is_empty() {
                continue;
            }
            sizes.sort_unstable();
            let mean = sizes.iter().map(|&s| f64::from(s)).sum::<f64>() / sizes.len() as f64;
            let at = |share: f64| sizes[((sizes.len() - 1) as f64 * share).round() as usize];
            let (p5, p50, p95) = (at(0.05), at(0.5), at(0.95));
            let most = at(1.0);
            let _ = writeln!(csv, "{},{mean:.2},{p5},{p50},{p95},{most}", window(i));
            rows.push(json!({"tau": window(i), "mean": mean, "p5": p5, "p50": p50, "p95": p95, "max": most}));
            for (line, value) in
                lines
                    .iter_mut()
                    .zip([mean, f64::from(p5), f64::from(p95), f64::from(most)])
            {
                line.push((window(i) as f64, value.max(Unit::Count.least())));
            }
        }
        let names = ["mean", "5th percentile", "95th percentile", "largest"];
        let highest = lines[3].iter().fold(1.0f64, |most, p| most.max(p.1));
        let lowest = lines[1].iter().fold(highest, |least, p| least.min(p.1));
        let chart = LineChart {
            over_time: false,
            title: "Size of the working set by window, s(τ)".into(),
            subtitle: subtitle.into(),
            x_label: match unit {
                Unit::Nanos => "length of the window, τ".into(),
                _ => "length of the window in references, τ".into(),
            },
            y_label: "pages".into(),
            x: (unit, true),
            y: (Unit::Count, true),
            x_range: (
                window(*windows.start()) as f64,
                (window(*windows.end()) as f64).max(length as f64),
            ),
            y_range: ((lowest * 0.7).max(0.5), highest * 1.4),
            series: names
                .into_iter()
                .zip(lines)
                .map(|(name, points)| Series {
                    name: name.into(),
                    points,
                    dots: true,
                    ..Series::default()
                })
                .collect(),
            zones: Vec::new(),
            uprights: Vec::new(),
            levels: Vec::new(),
            notes,
        };
        Figure {
            id: "working-set-by-window".into(),
            title: chart.title.clone(),
            section: "",
            about: "Percentiles of the working set over the whole trace, by the length τ of the \
                    window. Only windows that lie within the trace count."
                .into(),
            svg: chart.draw(),
            explored: chart.explored(),
            csv,
            json: json!({"kind": "working-set-by-window", "rows": rows}),
        }
    }
}

/// Follows the working set in a pass.
pub struct Working {
    /// The counts.
    pub set: WorkingSet,
    event_ns: u64,
    /// No reference is counted from this moment on, so pages that are freed later do not count either.
    until: u64,
}

impl Working {
    /// From `start` on; `length` is the expected length.
    pub fn new(start: u64, length: u64) -> Self {
        Working {
            set: WorkingSet::new(start, length),
            event_ns: start,
            until: u64::MAX,
        }
    }

    /// Over the whole of a trace.
    pub fn of(trace: &Trace) -> Self {
        Working::within(trace, &(0..u64::MAX))
    }

    /// Over a time, in ns from the beginning of a trace.
    pub fn within(trace: &Trace, time: &Range<u64>) -> Self {
        let begin = trace.header().start_time_ns;
        let (first, last) = trace.index().time_span().unwrap_or((begin, begin));
        let start = match time.start {
            0 => begin.min(first),
            since => begin.saturating_add(since),
        };
        // A trace may end long after its last reference.
        let until = begin.saturating_add(time.end);
        let end = last.min(until);
        Working {
            until,
            ..Working::new(start, end.saturating_sub(start))
        }
    }
}

impl Consumer for Working {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for (r, page) in batch.refs.iter().zip(batch.pages) {
            self.set.reference(r.time_ns, page.0);
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, _world: &World, _issues: &[Issue]) -> Result<()> {
        self.event_ns = event.time_ns;
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> Result<()> {
        if self.event_ns < self.until {
            for page in pages {
                self.set.free(self.event_ns, page.0);
            }
        }
        Ok(())
    }

    fn finish(&mut self, _trace: &Trace, _outcome: &Outcome) -> Result<()> {
        self.set.finish();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten pages in turn, one a millisecond.
    #[test]
    fn a_loop_is_in_the_set_if_the_window_is_long_enough() {
        let mut set = WorkingSet::new(0, 1_000_000_000);
        for i in 0..1000u64 {
            set.reference(i * 1_000_000, (i % 10) as u32 + 1);
        }
        set.finish();
        let rows = set.by_tau();
        let most = |ms: u64| {
            let row = rows.iter().find(|row| row.tau_ns == ms * 1_000_000);
            let row = row.expect("a row");
            assert!(row.mean_pages <= row.most_pages.into());
            assert!(row.mean_pages > f64::from(row.most_pages) - 1.0);
            row.most_pages
        };
        assert_eq!([5, 10, 20, 500].map(most), [5, 10, 10, 10]);
    }

    /// All of it by definition, at every column's end: of each page counts what happened to
    /// it last.
    #[test]
    fn as_defined_with_pages_that_are_freed() {
        let mut random = 12345u64;
        let mut steps = Vec::new();
        let mut moment = 1_000;
        for _ in 0..3_000 {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            moment += random >> 60;
            let (page, freed) = ((random >> 40) as u32 % 50 + 1, random >> 36 & 7 == 0);
            steps.push((moment, page, freed));
            if random >> 30 & 63 == 0 {
                // As if a process ended.
                steps.extend((1..=25).map(|page| (moment, page, true)));
            }
        }
        for expected in [steps.last().unwrap().0 - 1_000, 100] {
            let mut set = WorkingSet::new(1_000, expected);
            for &(moment, page, freed) in &steps {
                match freed {
                    true => set.free(moment, page),
                    false => set.reference(moment, page),
                }
            }
            set.finish();
            let width = set.line.width();
            assert!(set.samples.len() > COLUMNS / 3);
            let mut smaller = 0;
            for column in 0..set.samples.len() - 1 {
                let end = 1_000 + (column as u64 + 1) * width;
                let before: Vec<_> = steps.iter().filter(|step| step.0 < end).collect();
                for i in 0..15 {
                    let last = |page| before.iter().rev().find(|step| step.1 == page);
                    let within = |step: &&&(u64, u32, bool)| end - step.0 <= window(i);
                    let all = (1..=50).filter_map(last).filter(within);
                    let brute = all.clone().filter(|step| !step.2).count() as u32;
                    smaller += usize::from((brute as usize) < all.count());
                    assert_eq!(set.at(column, i), brute, "column {column}, τ {}", window(i));
                }
            }
            assert!(smaller > 100);
        }
    }

    /// All of it by definition, at every column's end.
    #[test]
    fn as_defined() {
        let mut random = 12345u64;
        let mut references = Vec::new();
        let mut moment = 1_000;
        for _ in 0..3_000 {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            moment += random >> 60;
            references.push((moment, (random >> 40) as u32 % 50 + 1));
        }
        for expected in [references.last().unwrap().0 - 1_000, 100] {
            let mut set = WorkingSet::new(1_000, expected);
            for &(moment, page) in &references {
                set.reference(moment, page);
            }
            set.finish();
            let width = set.line.width();
            assert!(set.samples.len() > COLUMNS / 3);
            for column in 0..set.samples.len() - 1 {
                let end = 1_000 + (column as u64 + 1) * width;
                for i in 0..15 {
                    let mut pages: Vec<u32> = references
                        .iter()
                        .filter(|(m, _)| *m < end && end - m <= window(i))
                        .map(|(_, page)| *page)
                        .collect();
                    pages.sort_unstable();
                    pages.dedup();
                    let brute = pages.len() as u32;
                    assert_eq!(set.at(column, i), brute, "column {column}, τ {}", window(i));
                }
            }
        }
    }
}
