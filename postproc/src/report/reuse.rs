//! Reuse distances, the misses of each mapping, and the differences between parts of a trace.
//!
//! Everything comes from one LRU stack over the whole trace: a reference whose stack
//! distance is `d` misses in memories of `d - 1` pages and fewer (Mattson et al. 1970).
//! Sizes are powers of two here, so that the counts of a mapped object take half a KiB,
//! whatever the trace's length.

use std::fmt::Write;

use serde::Serialize;
use serde_json::json;

use super::Figure;
use super::chart::{
    Axis, LEFT, LineChart, Series, Unit, WIDTH, axes, color, count_text, heading, key, notes,
};
use super::classes::Class;
use super::svg::Svg;
use super::{grouped, quoted};
use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, Place, World};
use crate::sim::{Again, Curve, CurveSimulation, LruCurve};
use crate::trace::{Ref, Trace};
use crate::units::{Access, CanonPage};

/// Number of sizes of memory, by their logarithm: 1, 2, 4 … pages.
pub const SIZES: usize = 30;
/// Bins for each factor of two, into which distances are sorted for the curves of slices.
const FINE: usize = 8;
/// The largest number of slices.
const SLICES: usize = 12;
/// The number of slices of time, if the trace has no windows.
const EQUAL: u64 = 6;

/// Misses and write-backs by size of memory, of a part of the references.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BySize {
    /// First references.
    pub cold: u64,
    /// Capacity misses in memories of 2^i pages.
    pub capacity: [u64; SIZES],
    /// Pages that memories of 2^i pages wrote back; counted at the page's next reference.
    pub write_backs: [u64; SIZES],
}

impl BySize {
    fn add(&mut self, again: Option<Again>) {
        let Some(again) = again else {
            self.cold += 1;
            return;
        };
        // Distances are less one: sizes up to `distance` miss.
        let misses = (32 - again.distance.leading_zeros()) as usize;
        for count in &mut self.capacity[..misses.min(SIZES)] {
            *count += 1;
        }
        if let Some(from) = again.dirty_from {
            // Sizes above `from` had it dirty.
            let first = (32 - from.leading_zeros()) as usize;
            for count in &mut self.write_backs[first.min(SIZES)..misses.max(first).min(SIZES)] {
                *count += 1;
            }
        }
    }

    fn merge(&mut self, other: &BySize) {
        self.cold += other.cold;
        for i in 0..SIZES {
            self.capacity[i] += other.capacity[i];
            self.write_backs[i] += other.write_backs[i];
        }
    }
}

/// A part of the trace: a window, or a slice of time.
#[derive(Clone, Debug, Serialize)]
pub struct Slice {
    /// The window's number, or the slice's.
    pub number: u64,
    /// Time of the first reference, ns since the trace began.
    pub from_ns: u64,
    /// Time of the last reference.
    pub to_ns: u64,
    /// References.
    pub references: u64,
    /// Pages that were referenced in it.
    pub pages: u64,
    /// Pages that were referenced for the first time ever.
    pub new_pages: u64,
    /// By kind.
    pub reads: u64,
    /// By kind.
    pub writes: u64,
    /// By kind.
    pub execs: u64,
    /// Made by the kernel on behalf of a program.
    pub kernel: u64,
    /// Stays in which a store to the page was made or begun.
    pub dirtied: u64,
    /// Misses by size, in a memory that keeps the pages of earlier slices.
    #[serde(flatten)]
    pub by_size: BySize,
    #[serde(skip)]
    distances: Vec<u64>,
}

/// Follows the references of a pass.
#[derive(Default)]
pub struct Reuse {
    lru: LruCurve,
    by_object: Vec<BySize>,
    elsewhere: BySize,
    /// First sequence number of each window, and its number.
    windows: Vec<(u64, u64)>,
    has_windows: bool,
    slices: Vec<Slice>,
    /// By page: the slice in which it was referenced last, plus one.
    last_slice: Vec<u8>,
    start_ns: u64,
    length_ns: u64,
    classes: Vec<Class>,
    names: Vec<Box<str>>,
}

impl Reuse {
    /// For a trace, or part, that begins at `start_ns` and takes `length_ns`.
    pub fn new(start_ns: u64, length_ns: u64) -> Self {
        Reuse {
            start_ns,
            length_ns,
            ..Reuse::default()
        }
    }

    /// The exact LRU curve.
    pub fn curve(&self) -> Curve {
        self.lru.curve()
    }

    /// The parts of the trace.
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// Whether parts are the trace's own windows.
    pub fn has_windows(&self) -> bool {
        self.has_windows
    }

    /// Misses by class of mapping, for classes that have references.
    pub fn by_class(&self) -> Vec<(Class, BySize)> {
        let mut sums = vec![(BySize::default(), false); Class::ALL.len()];
        let place = |class| Class::ALL.iter().position(|c| *c == class).unwrap_or(0);
        for (counts, &class) in self.by_object.iter().zip(&self.classes) {
            let sum = &mut sums[place(class)];
            sum.0.merge(counts);
            sum.1 |= counts.cold > 0 || counts.capacity[0] > 0;
        }
        let sum = &mut sums[place(Class::Unmapped)];
        sum.0.merge(&self.elsewhere);
        sum.1 |= self.elsewhere.cold > 0 || self.elsewhere.capacity[0] > 0;
        let all = Class::ALL.into_iter().zip(sums);
        all.filter(|(_, (_, any))| *any)
            .map(|(class, (counts, _))| (class, counts))
            .collect()
    }

    /// Of an object.
    pub fn of_object(&self, object: usize) -> Option<&BySize> {
        self.by_object.get(object)
    }

    /// Of references that lie in no mapping.
    pub fn elsewhere(&self) -> &BySize {
        &self.elsewhere
    }

    fn slice_of(&self, r: &Ref) -> u64 {
        if self.has_windows {
            let at = self.windows.partition_point(|w| w.0 <= r.seq);
            at.checked_sub(1).map_or(0, |at| self.windows[at].1)
        } else {
            let since = r.time_ns.saturating_sub(self.start_ns);
            let share = u128::from(since) * u128::from(EQUAL) / u128::from(self.length_ns.max(1));
            (share as u64).min(EQUAL - 1)
        }
    }

    fn slice(&mut self, r: &Ref) -> usize {
        let number = self.slice_of(r);
        if let Some(last) = self.slices.last() {
            // References of several CPUs may be out of order around the border of a window.
            if last.number == number || self.slices.len() == SLICES {
                return self.slices.len() - 1;
            }
            if let Some(at) = self.slices.iter().rposition(|s| s.number == number) {
                return at;
            }
        }
        let from_ns = r.time_ns.saturating_sub(self.start_ns);
        self.slices.push(Slice {
            number,
            from_ns,
            to_ns: from_ns,
            references: 0,
            pages: 0,
            new_pages: 0,
            reads: 0,
            writes: 0,
            execs: 0,
            kernel: 0,
            dirtied: 0,
            by_size: BySize::default(),
            distances: vec![0; 32 * FINE],
        });
        self.slices.len() - 1
    }
}

/// Where a distance, less one, is counted: `FINE` bins to a ratio of two.
fn bin(distance: u32) -> usize {
    let d = distance + 1;
    let log = 31 - d.leading_zeros();
    let part = (u64::from(d) << 3 >> log) as usize - FINE;
    log as usize * FINE + part
}

/// The smallest distance, less one, that is counted in a bin.
fn least(bin: usize) -> u64 {
    let (log, part) = (bin / FINE, (bin % FINE) as u64);
    ((FINE as u64 + part) << log).div_ceil(FINE as u64) - 1
}

impl Consumer for Reuse {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        self.windows = trace.windows();
        self.has_windows = self.windows.len() > 1;
        Ok(())
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for ((r, place), &page) in batch.refs.iter().zip(batch.places).zip(batch.pages) {
            let flags = r.flags();
            let again = self.lru.reference(page, flags.writes());
            let counts = match place {
                Place::Mapped { object, .. } => {
                    let at = object.0 as usize;
                    if at >= self.by_object.len() {
                        self.by_object.resize_with(at + 1, BySize::default);
                    }
                    &mut self.by_object[at]
                }
                _ => &mut self.elsewhere,
            };
            counts.add(again);
            let at = self.slice(r);
            if page.index() >= self.last_slice.len() {
                let pages = (page.index() + 1).next_power_of_two();
                self.last_slice.resize(pages, 0);
            }
            let seen = std::mem::replace(&mut self.last_slice[page.index()], at as u8 + 1);
            let slice = &mut self.slices[at];
            slice.to_ns = slice.to_ns.max(r.time_ns.saturating_sub(self.start_ns));
            slice.references += 1;
            slice.pages += u64::from(seen != at as u8 + 1);
            slice.new_pages += u64::from(again.is_none());
            match flags.access() {
                Access::Read => slice.reads += 1,
                Access::Write => slice.writes += 1,
                Access::Exec => slice.execs += 1,
                Access::Seen => {}
            }
            slice.kernel += u64::from(flags.kernel());
            slice.dirtied += u64::from(flags.dirtied());
            slice.by_size.add(again);
            if let Some(again) = again {
                slice.distances[bin(again.distance)] += 1;
            }
        }
        Ok(())
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> Result<()> {
        for &page in pages {
            self.lru.free(page);
            // Another page may get its number, in the same slice.
            if let Some(slice) = self.last_slice.get_mut(page.index()) {
                *slice = 0;
            }
        }
        Ok(())
    }

    fn finish(&mut self, _trace: &Trace, outcome: &Outcome) -> Result<()> {
        let world: &World = &outcome.world;
        let objects = world.space.objects();
        self.classes = objects.iter().map(|o| Class::of(o, world)).collect();
        self.names = objects.iter().map(|o| o.name.clone()).collect();
        Ok(())
    }
}

/// Sizes that a picture shows, as logarithms: up to the first that holds all. Below N there is nothing to see.
fn shown_sizes(footprint: u64, evms: u32) -> std::ops::Range<usize> {
    let last = (64 - footprint.max(1).leading_zeros()) as usize;
    let last = last.min(SIZES - 1);
    let least = (31 - evms.max(1).leading_zeros()) as usize;
    last.saturating_sub(13)
        .max(least.min(last.saturating_sub(3)))..last + 1
}

/// A stacked bar chart over sizes of memory.
struct Bars<'a> {
    id: &'a str,
    title: &'a str,
    about: &'a str,
    subtitle: String,
    y_label: &'a str,
    page_size: u64,
    sizes: std::ops::Range<usize>,
    /// Name, and a height by size.
    parts: Vec<(String, Vec<u64>)>,
    notes: Vec<String>,
}

impl Bars<'_> {
    fn figure(&self) -> Figure {
        let mut csv = String::from("size_pages");
        for (name, _) in &self.parts {
            // Writing to a string cannot fail.
            let _ = write!(csv, ",{}", quoted(name));
        }
        csv.push('\n');
        for (i, log) in self.sizes.clone().enumerate() {
            let _ = write!(csv, "{}", 1u64 << log);
            for (_, heights) in &self.parts {
                let _ = write!(csv, ",{}", heights[i]);
            }
            csv.push('\n');
        }
        let sizes: Vec<u64> = self.sizes.clone().map(|log| 1 << log).collect();
        let parts: Vec<_> = self
            .parts
            .iter()
            .map(|(name, counts)| json!({"name": name, "counts": counts}))
            .collect();
        Figure {
            id: self.id.into(),
            title: self.title.into(),
            section: "",
            about: self.about.into(),
            svg: self.draw(),
            explored: serde_json::Value::Null,
            csv,
            json: json!({"kind": "bars", "size_pages": sizes, "parts": parts}),
        }
    }

    fn draw(&self) -> String {
        let (right, top) = (WIDTH - 180.0, 76.0);
        let bottom = top + 340.0;
        let height = bottom + 76.0 + 15.0 * self.notes.len() as f64;
        let mut svg = Svg::new(WIDTH, height, self.title);
        heading(&mut svg, self.title, &self.subtitle);
        let count = self.sizes.len();
        let sum = |i: usize| self.parts.iter().map(|p| p.1[i]).sum::<u64>();
        let most = (0..count).map(sum).max().unwrap_or(0).max(1) as f64;
        let y = Axis {
            log: false,
            range: (0.0, most * 1.05),
            span: (bottom, top),
            unit: Unit::Count,
        };
        // Bars stand on powers of two, which lie in their middle.
        let ratio = 2f64.powf(0.5);
        let (first, last) = (self.sizes.start, self.sizes.end - 1);
        let x = Axis {
            log: true,
            range: (
                2f64.powi(first as i32) / ratio,
                2f64.powi(last as i32) * ratio,
            ),
            span: (LEFT, right),
            unit: Unit::Pages(self.page_size),
        };
        axes(
            &mut svg,
            &x,
            &y,
            "size of memory: pages, bytes",
            self.y_label,
        );
        let width = (right - LEFT) / count as f64 * 0.72;
        for (i, log) in self.sizes.clone().enumerate() {
            let pages = 1u64 << log;
            let left = x.at(pages as f64) - width / 2.0;
            let mut base = 0u64;
            for (part, (name, heights)) in self.parts.iter().enumerate() {
                let n = heights[i];
                if n == 0 {
                    continue;
                }
                let (low, high) = (y.at(base as f64), y.at((base + n) as f64));
                let tip = format!("{name}: {} at {} pages", grouped(n), grouped(pages));
                svg.rect(left, high, width, low - high, color(part), Some(&tip));
                base += n;
            }
        }
        let names: Vec<_> = self
            .parts
            .iter()
            .enumerate()
            .map(|(i, (name, _))| (name.as_str(), color(i), ""))
            .collect();
        key(&mut svg, &names, right + 14.0, top + 8.0);
        notes(&mut svg, &self.notes, bottom + 74.0);
        svg.finish()
    }
}

/// Reuse distances as a histogram.
pub fn histogram(curve: &Curve, page_size: u64, subtitle: &str) -> Figure {
    let largest = curve.footprint().max(1) - 1;
    let sizes = 0..(65 - largest.leading_zeros() as usize).min(40);
    let mut counts = vec![0u64; sizes.len()];
    for (distance, hits) in curve.hits_from.iter().enumerate() {
        // A distance of 2^(i-1)+1 to 2^i pages hits first in a memory of 2^i.
        let log = 64 - (distance as u64).leading_zeros() as usize;
        if let Some(count) = counts.get_mut(log) {
            *count += hits;
        }
    }
    // Of a reduced trace the small ones are empty.
    let first = counts.iter().position(|&n| n > 0).unwrap_or(0);
    let first = first.saturating_sub(1).min(counts.len().saturating_sub(4));
    let (sizes, counts) = (first..sizes.end, counts.split_off(first));
    let mut figure = Bars {
        id: "reuse-distances",
        title: "Reuse distances",
        about: "The reuse distance is the number of distinct pages from one reference to a page up \
                to the next reference to it. Under LRU, a reference hits if memory has at least \
                that many pages. A larger memory would save the misses at the right.",
        subtitle: subtitle.into(),
        y_label: "references",
        page_size,
        sizes,
        parts: vec![("references".into(), counts)],
        notes: vec![
            "A bar counts the references that hit in an LRU memory of the size below it, and miss in \
             one of half that size."
                .into(),
            format!("{} first references have no distance.", grouped(curve.cold)),
        ],
    }
    .figure();
    figure.json["cold"] = json!(curve.cold);
    figure
}

impl Reuse {
    /// Misses and write-backs by kind of mapping.
    pub fn breakdown(
        &self,
        curve: &Curve,
        page_size: u64,
        evms: u32,
        subtitle: &str,
    ) -> Vec<Figure> {
        let sizes = shown_sizes(curve.footprint(), evms);
        let classes = self.by_class();
        let part = |of: &dyn Fn(&BySize, usize) -> u64| -> Vec<(String, Vec<u64>)> {
            classes
                .iter()
                .map(|(class, counts)| {
                    let heights = sizes.clone().map(|i| of(counts, i)).collect();
                    (class.name().to_string(), heights)
                })
                .collect()
        };
        let mut colds: Vec<(&str, u64)> = Vec::new();
        for (class, counts) in &classes {
            let how = class.first_reference();
            match colds.iter_mut().find(|c| c.0 == how) {
                Some(found) => found.1 += counts.cold,
                None => colds.push((how, counts.cold)),
            }
        }
        let colds: Vec<String> = colds
            .iter()
            .map(|(how, n)| format!("{}: {}", how, grouped(*n)))
            .collect();
        let mut misses = part(&|counts, i| counts.capacity[i]);
        // First references form one part: a table shows them by kind of mapping.
        let cold: u64 = classes.iter().map(|c| c.1.cold).sum();
        misses.insert(0, ("first references".into(), vec![cold; sizes.len()]));
        vec![
            Bars {
                id: "misses-by-mapping",
                title: "LRU misses by kind of mapping",
                about: "Capacity misses, by the mapping of the reference that missed. First \
                        references, which no memory avoids, are at the bottom of each bar.",
                subtitle: subtitle.into(),
                y_label: "misses",
                page_size,
                sizes: sizes.clone(),
                parts: misses,
                notes: vec![format!("First references: {}.", colds.join("; "))],
            }
            .figure(),
            Bars {
                id: "write-backs-by-mapping",
                title: "LRU write-backs by kind of mapping",
                about: "Dirty pages that the memory had to write back when it replaced them, by the \
                        mapping of the page's next reference.",
                subtitle: subtitle.into(),
                y_label: "write-backs",
                page_size,
                sizes: sizes.clone(),
                parts: part(&|counts, i| counts.write_backs[i]),
                notes: vec![
                    "Pages that were written back and never referenced again are not in this picture; \
                     `postproc simulate` counts them."
                        .into(),
                ],
            }
            .figure(),
        ]
    }

    /// The fault curves of slices, side by side.
    pub fn slices_figure(
        &self,
        footprint: u64,
        page_size: u64,
        evms: u32,
        subtitle: &str,
    ) -> Figure {
        let word = if self.has_windows { "window" } else { "slice" };
        let mut csv = format!("{word},size_pages,references,misses\n");
        let mut series = Vec::new();
        let mut lowest = 1.0f64;
        let first = f64::from(evms / 2).max(1.0);
        for slice in &self.slices {
            let mut misses = slice.references;
            let mut points = vec![(1.0, 1.0)];
            for (i, hits) in slice.distances.iter().enumerate() {
                // Distances of this bin hit in sizes above the largest of them.
                misses -= hits;
                let size = least(i + 1);
                let repeated = size == least(i);
                if repeated || size > footprint * 2 {
                    continue;
                }
                let _ = writeln!(csv, "{},{size},{},{misses}", slice.number, slice.references);
                let share = misses as f64 / slice.references.max(1) as f64;
                points.push((size as f64, share.max(Unit::Share.least())));
                if misses > 0 {
                    lowest = lowest.min(share);
                }
            }
            // What holds at the left end is what held before it.
            let before = points.iter().rfind(|p| p.0 <= first).copied();
            points.retain(|p| p.0 > first);
            points.insert(0, (first, before.map_or(1.0, |p| p.1)));
            series.push(Series {
                name: format!("{word} {}", slice.number),
                points,
                steps: false,
                dots: false,
                band: Vec::new(),
            });
        }
        let chart = LineChart {
            over_time: false,
            title: format!("LRU misses {word} by {word}"),
            subtitle: subtitle.into(),
            x_label: "size of memory: pages, bytes".into(),
            y_label: "misses as a share of references".into(),
            x: (Unit::Pages(page_size), true),
            y: (Unit::Share, true),
            x_range: (first, (footprint as f64 * 1.3).max(first * 4.0)),
            y_range: ((lowest * 0.7).max(1e-6), 1.0),
            series,
            zones: Vec::new(),
            uprights: Vec::new(),
            levels: Vec::new(),
            notes: vec![format!(
                "Each {word} begins with the memory that the {word} before it left. First references \
                 in a {word} count as its misses."
            )],
        };
        Figure {
            id: "slices".into(),
            title: chart.title.clone(),
            section: "",
            about: if self.has_windows {
                "The trace's windows side by side: equal curves mean equal behaviour.".into()
            } else {
                "Slices of equal time side by side: differences show phases of the program.".into()
            },
            svg: chart.draw(),
            explored: chart.explored(),
            csv,
            json: json!({"kind": "slices", "windows": self.has_windows, "slices": self.slices}),
        }
    }
}

/// In words: what most of a slice's references were.
pub fn slice_cells(slice: &Slice) -> [String; 9] {
    let share = |n: u64| format!("{:.1} %", 100.0 * n as f64 / slice.references.max(1) as f64);
    [
        format!(
            "{} – {}",
            super::chart::time_text(slice.from_ns as f64),
            super::chart::time_text(slice.to_ns as f64)
        ),
        grouped(slice.references),
        grouped(slice.pages),
        grouped(slice.new_pages),
        share(slice.reads),
        share(slice.writes),
        share(slice.execs),
        share(slice.dirtied),
        count_text(slice.references as f64 / (slice.to_ns - slice.from_ns).max(1) as f64 * 1e9),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::CanonPage;

    #[test]
    fn bins_hold_what_they_say() {
        let mut before = 0;
        for distance in 0..100_000u32 {
            let at = bin(distance);
            assert!(at >= before && least(at) <= u64::from(distance));
            assert!(u64::from(distance) < least(at + 1), "{distance}");
            before = at;
        }
        assert!(bin(u32::MAX - 1) < 32 * FINE);
    }

    /// By size: the same as the curve.
    #[test]
    fn misses_and_write_backs_are_those_of_the_curve() {
        let mut lru = LruCurve::default();
        let mut counts = BySize::default();
        let mut random = 7u64;
        let mut reference = |page: u64, write| {
            counts.add(lru.reference(CanonPage(page as u32), write));
        };
        for _ in 0..20_000 {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let page = (random >> 33) % 300 * ((random >> 50) % 3 + 1) / 3 + 1;
            reference(page, random >> 62 == 0);
        }
        // Twice over all pages, so that each comes back and all is clean in the end:
        // the curve counts write-backs of pages, too, that never come back.
        for page in (1..=300).chain(1..=300) {
            reference(page, false);
        }
        let curve = lru.curve();
        assert_eq!((counts.cold, curve.cold), (300, 300));
        for log in 0..SIZES {
            let at = curve.at(1 << log);
            assert_eq!(counts.cold + counts.capacity[log], at.misses, "2^{log}");
            assert_eq!(Some(counts.write_backs[log]), at.write_backs, "2^{log}");
        }
        assert!(counts.write_backs[3] > 1_000);
    }
}
