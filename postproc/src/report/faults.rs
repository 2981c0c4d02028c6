//! Faults a second, over time.
//!
//! Each reference in a trace is a page fault, so their number a second shows when the programs
//! touch more pages than the set holds, and when they are slowed down.

use std::fmt::Write;

use serde_json::json;

use super::Figure;
use super::chart::{LineChart, Series, Unit};
use super::timeline::{COLUMNS, Moved, Row, Timeline};

/// Columns of time. A reader may look closely: there are more of them than a picture has pixels.
const FINE: usize = 8 * COLUMNS;

/// Counts references by time.
pub struct Faults {
    line: Timeline<FINE>,
    start: u64,
    newest: u64,
    all: Row<FINE>,
    first: Row<FINE>,
}

impl Faults {
    /// For references from `start` on; `length` is what is expected.
    pub fn new(start: u64, length: u64) -> Self {
        Faults {
            line: Timeline::new(start, length),
            start,
            newest: start,
            all: Row::default(),
            first: Row::default(),
        }
    }

    /// One reference; `first` is whether its page was not referenced before.
    #[inline]
    pub fn reference(&mut self, moment: u64, first: bool) {
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

    /// The picture. Time is in nanoseconds.
    pub fn figure(&self, subtitle: &str) -> Figure {
        let width = self.line.width();
        let columns = self.line.present() + 1;
        let length = self.newest.saturating_sub(self.start).max(1);
        let (all, first) = (&self.all.cells()[..columns], &self.first.cells()[..columns]);
        let begin = |column: usize| column as u64 * width;
        // The last column may not be full.
        let seconds = |column: usize| {
            let end = begin(column + 1).min(length + 1);
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
        let series: Vec<Series> = [("all", all), ("first references", first)]
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
                "Each value is a mean over {}. At that scale, no peak is lost.",
                Unit::Nanos.text(width as f64)
            )],
        };
        let mut csv = String::from("t,references,first_references\n");
        for (column, (all, first)) in all.iter().zip(first).enumerate() {
            // Writing to a string cannot fail.
            let _ = writeln!(csv, "{},{all},{first}", begin(column));
        }
        Figure {
            id: "faults".into(),
            title: chart.title.clone(),
            section: "",
            about: "Each reference in the trace is a page fault that the tracer has caused. The first \
                    reference to a page would be a fault without a tracer, too. Where there are many \
                    others, the programs use more pages at a time than the set holds, and are slow."
                .into(),
            svg: chart.draw(),
            csv,
            json: json!({"kind": "faults", "column_width": width, "length": length,
                "references": all, "first_references": first}),
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
            faults.reference(1_000 + i, i % 4 == 0);
        }
        let json = faults.figure("").json;
        let counts = |name: &str| -> Vec<u64> {
            let counts = json[name].as_array().expect("a list");
            counts.iter().filter_map(|n| n.as_u64()).collect()
        };
        let all = counts("references");
        assert!(all.len() <= FINE && all.len() > FINE / 2, "{}", all.len());
        assert_eq!(all.iter().sum::<u64>(), moments);
        let width = json["column_width"].as_u64().expect("a number");
        assert!(all[..all.len() - 1].iter().all(|&n| n == width));
        assert_eq!(counts("first_references").iter().sum::<u64>(), moments / 4);
    }

    #[test]
    fn the_last_column_has_its_own_length() {
        let mut faults = Faults::new(0, 10 * FINE as u64);
        // A column is 11 ns wide.
        for moment in [0, 1, 2, 11, 12] {
            faults.reference(moment, false);
        }
        let csv = faults.figure("").csv;
        assert_eq!(csv, "t,references,first_references\n0,3,0\n11,2,0\n");
        let svg = faults.figure("").svg;
        // 3 in 11 ns, and 2 in 2 ns.
        assert!(svg.contains(">1 G<"), "{svg}");
    }
}
