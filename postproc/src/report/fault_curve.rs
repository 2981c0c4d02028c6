//! The fault curves of several policies.

use std::fmt::Write;

use serde::Serialize;
use serde_json::json;

use super::chart::{LineChart, Rule, Series, Unit, Zone};
use super::summary::{SetsSummary, Summary, bytes_text};
use super::{Figure, grouped};
use crate::filter::{Filtered, LeftOut};
use crate::sim::measured::{self, How};
use crate::sim::{Band, Certificate, Curve};

/// Points of a line, at most.
const POINTS: usize = 400;

const COLD: &str = "#92400e";
const BOUND: &str = "#b91c1c";
const VALID: &str = "#e7f7f1";
const NOTHING: &str = "#eef0f2";
const VALID_INK: &str = "#047857";

/// One size of a policy's line.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LinePoint {
    /// Size of memory in pages.
    pub size_pages: u64,
    /// References to pages that were not in memory.
    pub misses: f64,
    /// Dirty pages that were replaced; see [`crate::sim::Counts::write_backs`].
    pub write_backs: Option<f64>,
    /// `low` and `high`: the proven bounds on the misses that all references of the run would
    /// give.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
    /// The error of the misses, if they are an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses_error: Option<f64>,
}

/// The misses of a policy by size of memory.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyLine {
    /// The policy's name.
    pub policy: &'static str,
    /// Whether all sizes are known, not only those of the points.
    pub all_sizes: bool,
    /// The share of pages from which estimates were made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<f64>,
    /// The error that was measured with other programs at [`measured::LEAST`] N and more, if
    /// the policy has no band.
    #[serde(rename = "measured_error", skip_serializing_if = "Option::is_none")]
    pub measured: Option<measured::Error>,
    /// The points, in ascending order of size.
    pub points: Vec<LinePoint>,
}

impl PolicyLine {
    /// The line of a curve, which has all sizes.
    pub fn of_curve(policy: &'static str, curve: &Curve) -> Self {
        PolicyLine {
            policy,
            all_sizes: true,
            sample: None,
            measured: None,
            points: curve
                .sampled(POINTS)
                .into_iter()
                .map(|p| LinePoint {
                    size_pages: p.size_pages,
                    misses: p.misses as f64,
                    write_backs: p.write_backs.map(|count| count as f64),
                    band: None,
                    misses_error: None,
                })
                .collect(),
        }
    }

    /// Adds the error that was measured with traces that were made and simulated like this one,
    /// if the policy has no band.
    pub fn measure(&mut self, how: How) {
        if !matches!(self.policy, "lru" | "opt") {
            self.measured = measured::error(self.policy, how, f64::from(measured::LEAST));
        }
    }

    /// Gives each point its band, if the policy has bands; `curve` is the policy's own.
    pub fn certify(&mut self, certificate: &Certificate, curve: &Curve) {
        for point in &mut self.points {
            point.band = match self.policy {
                "lru" => certificate.lru(point.size_pages),
                "opt" => certificate.opt(|size| curve.at(size).misses, point.size_pages),
                _ => None,
            };
        }
    }
}

/// The facts that the picture shows besides the curves.
#[derive(Clone, Copy, Debug)]
pub struct Caption<'a> {
    /// References.
    pub references: u64,
    /// Distinct pages.
    pub distinct_pages: u64,
    /// Bytes of a page.
    pub page_size: u64,
    /// The processes that were traced.
    pub scope: &'a str,
    /// The size N of the set; 0 for another program's trace.
    pub evms_size: u32,
    /// The sets, if there are several, and why there are no bands then.
    pub sets: Option<&'a SetsSummary>,
    /// What a filter has left out, if there is one. Then there are no bands.
    pub filter: Option<&'a Filtered>,
    /// The same of the kernel's filter.
    pub filtered: Option<&'a LeftOut>,
    /// Whether this is the part of one process. Then there are no bands either.
    pub is_part: bool,
}

impl<'a> From<&'a Summary> for Caption<'a> {
    fn from(s: &'a Summary) -> Self {
        Caption {
            references: s.references,
            distinct_pages: s.distinct_pages,
            page_size: s.page_size,
            scope: &s.scope,
            evms_size: s.evms_size,
            sets: s.sets.as_ref(),
            filter: s.filter.as_ref(),
            filtered: s.filtered.as_ref().filter(|left_out| left_out.is_any),
            is_part: s.part.is_some(),
        }
    }
}

impl Caption<'_> {
    /// The facts in a line.
    pub fn subtitle(&self) -> String {
        let mut text = format!(
            "{} references to {} distinct pages ({}), {}",
            grouped(self.references),
            grouped(self.distinct_pages),
            bytes_text(self.distinct_pages.saturating_mul(self.page_size)),
            self.scope
        );
        if self.evms_size > 0 {
            let n = grouped(self.evms_size.into());
            match self.sets {
                None => text.push_str(&format!("; a set of N = {n} pages")),
                Some(sets) => text.push_str(&format!("; sets of N = {n} pages, {}", sets.of)),
            }
        }
        if let Some(filter) = self.filter {
            text.push_str(&format!(
                "; {} left out by --where",
                grouped(filter.left_out)
            ));
        }
        if let Some(left_out) = self.filtered {
            text.push_str(&match left_out.left_out {
                Some(count) => format!("; {} left out by the kernel's filter", grouped(count)),
                None => "; some left out by the kernel's filter".into(),
            });
        }
        text
    }
}

/// The band of a line: for each size that has a band, the least and the most misses. The last
/// one extends to `right`.
fn band(line: &PolicyLine, right: f64) -> Vec<(f64, f64, f64)> {
    let bounded = line.points.iter().filter_map(|p| {
        let band = p.band?;
        let least = Unit::Count.least();
        let (low, high) = (band.low as f64, band.high as f64);
        Some((p.size_pages as f64, low.max(least), high.max(least)))
    });
    let mut band: Vec<_> = bounded.collect();
    if let Some(&(_, low, high)) = band.last() {
        band.push((right, low, high));
    }
    band
}

/// Why there are no bands for references that a filter has kept.
const FILTERED: &str = "A filter (--where) has left references out. The bands follow from the \
                        references of all pages of a set, so there are none here.";

/// The same for a trace with a filter.
const LEFT_OUT: &str = "A filter of the kernel has left references out of the trace. The bands follow \
                        from the references of all pages of a set, so there are none here.";

/// The same for the part of one process.
const PART: &str = "This is the part of one process. The bands follow from the references of all pages \
                    of a set, so there are none here.";

/// Letters of a line below the figure.
const NOTE: usize = 150;

/// The measured errors of policies that have no band, in lines of words.
fn measured_errors(lines: &[PolicyLine]) -> Vec<String> {
    let of = |line: &PolicyLine| {
        let error = line.measured?;
        let (mean, worst) = (error.mean_percent, error.worst_percent);
        Some(format!("{} {mean} % and {worst} %,", line.policy))
    };
    let mut errors: Vec<String> = lines.iter().filter_map(of).collect();
    let Some(last) = errors.last_mut() else {
        return vec!["see docs/fidelity.md.".into()];
    };
    last.pop();
    last.push_str(" (docs/fidelity.md).");
    let mut notes = Vec::new();
    let mut note = format!("at {} N pages and more, mean and worst:", measured::LEAST);
    for error in errors {
        if note.len() + error.len() > NOTE {
            notes.push(std::mem::take(&mut note));
        }
        if !note.is_empty() {
            note.push(' ');
        }
        note.push_str(&error);
    }
    notes.push(note);
    notes
}

/// A sentence in lines.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let full = |line: &&mut String| line.len() + word.len() >= NOTE;
        if lines.last_mut().as_ref().is_some_and(full) {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// Misses by size of memory.
pub fn figure(s: &Caption<'_>, lines: &[PolicyLine], cold: u64) -> Figure {
    let footprint = s.distinct_pages.max(1) as f64;
    let n = f64::from(s.evms_size);
    let reduced = s.evms_size > 0;
    // From half of N, because the trace shows nothing below N; with room to the right, so that
    // the flat end can be seen.
    let x_range = ((n / 2.0).max(1.0), (footprint * 1.5).max(n * 6.0).max(16.0));
    let most = lines
        .iter()
        .flat_map(|line| &line.points)
        .filter(|p| p.size_pages as f64 >= x_range.0)
        .fold(cold as f64 * 2.0, |most, p| most.max(p.misses));
    let series = lines
        .iter()
        .map(|line| {
            let mut points: Vec<(f64, f64)> = Vec::new();
            let mut before = None;
            for p in &line.points {
                let point = (p.size_pages as f64, p.misses.max(Unit::Count.least()));
                if point.0 < x_range.0 {
                    before = Some(point.1);
                    continue;
                }
                // The value at the left end is that of the last point before it.
                if let (true, Some(misses), true) = (line.all_sizes, before, points.is_empty()) {
                    points.push((x_range.0, misses));
                }
                points.push(point);
            }
            if let (true, Some(&(_, last))) = (line.all_sizes, points.last()) {
                points.push((x_range.1, last));
            }
            Series {
                name: match line.sample {
                    Some(_) => format!("{} (sampled)", line.policy),
                    None => line.policy.into(),
                },
                points,
                steps: line.all_sizes,
                dots: !line.all_sizes,
                band: band(line, x_range.1),
            }
        })
        .collect();
    let mut zones = Vec::new();
    let mut uprights = Vec::new();
    let mut notes = Vec::new();
    let of_sets = s.sets.and_then(|sets| sets.why_not_exact);
    let unbounded = of_sets.or(s.filter.map(|_| FILTERED));
    let unbounded = unbounded.or(s.is_part.then_some(PART));
    let unbounded = unbounded.or(s.filtered.map(|_| LEFT_OUT));
    if let Some(why) = unbounded {
        uprights.push(Rule {
            at: n,
            name: "N".into(),
            color: BOUND,
        });
        notes.extend(wrapped(why));
    } else if reduced {
        zones = vec![
            Zone {
                range: (x_range.0, n),
                fill: NOTHING,
            },
            Zone {
                range: (4.0 * n, x_range.1),
                fill: VALID,
            },
        ];
        uprights.push(Rule {
            at: n,
            name: "N".into(),
            color: BOUND,
        });
        for times in measured::FROM.map(f64::from).into_iter().skip(1) {
            if n * times <= x_range.1 * 0.97 {
                uprights.push(Rule {
                    at: n * times,
                    name: format!("{times} N"),
                    color: VALID_INK,
                });
            }
        }
        notes.extend([
            format!(
                "The shaded bands around LRU and OPT bound the misses that all references of the run \
                 would give. They are proven, for every trace from {} N pages on (green).",
                measured::LEAST
            ),
            "Below N (grey), nearly every reference in the trace is a miss. Other policies have no \
             proven band, only errors that were measured with four programs:"
                .into(),
        ]);
        notes.extend(measured_errors(lines));
    }
    if let Some(share) = lines.iter().find_map(|line| line.sample) {
        notes.push(format!(
            "Estimated from {} of the pages (SHARDS); the data contains the error of each point.",
            Unit::Share.text(share)
        ));
    }
    let chart = LineChart {
        over_time: false,
        title: "Misses by size of memory".into(),
        subtitle: s.subtitle(),
        x_label: "size of memory: pages, bytes".into(),
        y_label: "misses".into(),
        x: (Unit::Pages(s.page_size), true),
        y: (Unit::Count, true),
        x_range,
        // Room for the words below the level line.
        y_range: ((cold as f64 * 0.6).max(0.5), (most * 1.25).max(10.0)),
        series,
        zones,
        uprights,
        levels: match cold {
            0 => Vec::new(),
            cold => vec![Rule {
                at: cold as f64,
                name: format!("cold misses, which no memory avoids: {}", grouped(cold)),
                color: COLD,
            }],
        },
        notes,
    };
    let mut csv = String::from("policy,size_pages,misses,write_backs,misses_error,low,high\n");
    for line in lines {
        for p in &line.points {
            let error = p.misses_error.map_or(String::new(), |e| format!("{e:.1}"));
            let write_backs = p
                .write_backs
                .map_or(String::new(), |w| w.round().to_string());
            let band = p
                .band
                .map_or(",".into(), |b| format!("{},{}", b.low, b.high));
            // Writing to a string cannot fail.
            let _ = writeln!(
                csv,
                "{},{},{},{write_backs},{error},{band}",
                line.policy,
                p.size_pages,
                p.misses.round()
            );
        }
    }
    Figure {
        id: "fault-curve".into(),
        title: chart.title.clone(),
        section: "",
        about:
            "The misses of the trace's references in a memory of each size, under each policy. lru \
                and opt are computed for all sizes, the other policies for the sizes that have a \
                dot."
                .into(),
        svg: chart.draw(),
        explored: chart.explored(),
        csv,
        json: json!({"kind": "fault-curve", "cold": cold, "page_size": s.page_size,
            "evms_size": s.evms_size, "sets": s.sets, "policies": lines}),
    }
}
