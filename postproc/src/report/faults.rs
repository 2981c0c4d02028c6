//! Faults a second, over time.
//!
//! Each reference in a trace is a page fault, unless it is a second chance. So the number of faults a
//! second shows when the programs use more pages than the set holds, and when tracing slows them down.

use std::fmt::Write;

use serde_json::json;

use super::Figure;
use super::chart::{LineChart, Series, Unit};
use super::timeline::{COLUMNS, Moved, Row, Timeline};

/// Columns of time. A reader may look closely: there are more of them than a picture has pixels.
const FINE: usize = 8 * COLUMNS;
/// Columns are not merged if there are so few of them.
const COARSE: usize = COLUMNS / 4;
/// Columns are merged until they have so many faults, on average.
const ENOUGH: u64 = 16;

/// Counts faults by time.
pub struct Faults {
    line: Timeline<FINE>,
    start: u64,
    newest: u64,
    all: Row<FINE>,
    first: Row<FINE>,
}

impl Faults {
    /// For faults from `start` on; `length` is what is expected.
    pub fn new(start: u64, length: u64) -> Self {
        Faults {
            line: Timeline::new(start, length),
            start,
            newest: start,
            all: Row::default(),
            first: Row::default(),
        }
    }

    /// One fault; `first` is whether its page was not referenced before.
    #[inline]
    pub fn fault(&mut self, moment: u64, first: bool) {
        while let Some(moved) = self.line.step(moment) {
            if moved == Moved::Doubled {
                self.all.double();
                self.first.double();
            }
        }
        self.newest = self.newest.max(moment);
        self.all.count(self.line.present());
        if first {
            self.first.count(self.line.present());
        }
    }

    /// The width of a column, and the counts of all columns. The last one extends to the end, and is
    /// half as wide as the others at least: a few faults in a moment are no rate.
    fn columns(&self) -> (u64, Vec<u32>, Vec<u32>) {
        let mut width = self.line.width();
        let used = self.line.present() + 1;
        let (mut all, mut first) = (self.all.clone(), self.first.clone());
        let faults: u64 = all.cells().iter().map(|&count| u64::from(count)).sum();
        let mut columns = used;
        while columns > COARSE && faults < ENOUGH * columns as u64 {
            all.double();
            first.double();
            width = width.saturating_mul(2);
            columns = columns.div_ceil(2);
        }
        let cells = |row: &Row<FINE>| row.cells()[..columns].to_vec();
        let (mut all, mut first) = (cells(&all), cells(&first));
        let last = self.newest.saturating_sub(self.start) + 1 - (columns as u64 - 1) * width;
        if columns > 1 && last < width / 2 {
            for counts in [&mut all, &mut first] {
                if let (Some(rest), Some(to)) = (counts.pop(), counts.last_mut()) {
                    *to = to.saturating_add(rest);
                }
            }
        }
        (width, all, first)
    }

    /// The picture. Time is in nanoseconds.
    pub fn figure(&self, subtitle: &str) -> Figure {
        let (width, all, first) = self.columns();
        let length = self.newest.saturating_sub(self.start).max(1);
        let begin = |column: usize| column as u64 * width;
        let seconds = |column: usize| {
            let end = match column + 1 == all.len() {
                true => length + 1,
                false => begin(column + 1),
            };
            end.saturating_sub(begin(column)).max(1) as f64 / 1e9
        };
        let points = |counts: &[u32]| -> Vec<(f64, f64)> {
            let rate = |(column, &count): (usize, &u32)| {
                (begin(column) as f64, f64::from(count) / seconds(column))
            };
            let mut points: Vec<_> = counts.iter().enumerate().map(rate).collect();
            // The rate of the last column holds up to the end.
            points.extend(points.last().map(|last| (length as f64, last.1)));
            points
        };
        let series: Vec<Series> = [("all", &all), ("new pages", &first)]
            .into_iter()
            .map(|(name, counts)| Series {
                name: name.into(),
                points: points(counts),
                steps: true,
                ..Series::default()
            })
            .collect();
        let highest = series
            .iter()
            .flat_map(|s| &s.points)
            .fold(1.0f64, |most, p| most.max(p.1));
        let chart = LineChart {
            over_time: true,
            title: "Faults a second".into(),
            subtitle: subtitle.into(),
            x_label: "time since the trace began, t".into(),
            y_label: "faults a second".into(),
            x: (Unit::Nanos, false),
            y: (Unit::Count, false),
            x_range: (0.0, length as f64),
            y_range: (0.0, highest * 1.05),
            series,
            zones: Vec::new(),
            uprights: Vec::new(),
            levels: Vec::new(),
            notes: vec![format!(
                "Each value is a mean over {}.",
                Unit::Nanos.text(width as f64)
            )],
        };
        let mut csv = String::from("t,faults,first_references\n");
        for (column, (all, first)) in all.iter().zip(&first).enumerate() {
            // Writing to a string cannot fail.
            let _ = writeln!(csv, "{},{all},{first}", begin(column));
        }
        Figure {
            id: "faults".into(),
            title: chart.title.clone(),
            section: "",
            about: "The page faults that the trace has as references. A high rate of faults that are no first \
                    references means that the programs use more pages at a time than the set holds. Tracing \
                    then slows the programs down."
                .into(),
            svg: chart.draw(),
            explored: chart.explored(),
            csv,
            json: json!({"kind": "faults", "column_width": width, "length": length,
                "faults": all, "first_references": first}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However long it takes: nothing is lost, and a column has its own references.
    #[test]
    fn counts_are_complete_and_bounded() {
        let mut faults = Faults::new(1_000, 10);
        let moments = 10 * FINE as u64;
        for i in 0..moments {
            faults.fault(1_000 + i, i % 4 == 0);
        }
        let json = faults.figure("").json;
        let counts = |name: &str| -> Vec<u64> {
            let counts = json[name].as_array().expect("a list");
            counts.iter().filter_map(|n| n.as_u64()).collect()
        };
        let all = counts("faults");
        assert!(all.len() <= FINE && all.len() > FINE / 4, "{}", all.len());
        assert_eq!(all.iter().sum::<u64>(), moments);
        let width = json["column_width"].as_u64().expect("a number");
        assert!(all[..all.len() - 1].iter().all(|&n| n == width));
        assert_eq!(counts("first_references").iter().sum::<u64>(), moments / 4);
    }

    /// A column is 11 ns wide, and there are few faults.
    #[test]
    fn a_short_rest_is_no_column() {
        let csv = |moments: &[u64]| {
            let mut faults = Faults::new(0, 10 * FINE as u64);
            for &moment in moments {
                faults.fault(moment, false);
            }
            faults.figure("").csv
        };
        let head = "t,faults,first_references\n";
        assert_eq!(csv(&[0, 1, 2, 11, 12]), format!("{head}0,5,0\n"));
        assert_eq!(csv(&[0, 1, 2, 11, 19]), format!("{head}0,3,0\n11,2,0\n"));
        // One fault in each of many columns would be noise.
        let mut each = Faults::new(0, 10 * FINE as u64);
        for column in 0..FINE as u64 {
            each.fault(column * 11, false);
        }
        let json = each.figure("").json;
        assert_eq!(json["column_width"], 11 * 16);
        assert_eq!(json["faults"].as_array().map(Vec::len), Some(FINE / 16));
    }
}
