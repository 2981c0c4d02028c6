//! Charts: axes, lines, and texts beside them.

use serde_json::{Value, json};

use super::grouped;
use super::summary::bytes_text;
use super::svg::{Anchor, GRID, INK, SOFT, Svg, text_width};

/// Colours that differ in print and for the colour-blind. Further series use them again, with
/// dashed lines.
const COLORS: [&str; 8] = [
    "#1d4ed8", "#b45309", "#047857", "#be185d", "#6d28d9", "#0e7490", "#4b5563", "#a3a012",
];

/// The colour of the `i`th series.
pub fn color(i: usize) -> &'static str {
    COLORS[i % COLORS.len()]
}

/// How values are written beside an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Counts.
    Count,
    /// Pages of so many bytes; the size in bytes stands below.
    Pages(u64),
    /// Nanoseconds.
    Nanos,
    /// Shares of one, in percent.
    Share,
}

impl Unit {
    /// What the page's script calls it.
    fn name(self) -> &'static str {
        match self {
            Unit::Count => "count",
            Unit::Pages(_) => "pages",
            Unit::Nanos => "ns",
            Unit::Share => "share",
        }
    }

    /// What is drawn instead of 0 on a logarithmic scale.
    pub fn least(self) -> f64 {
        match self {
            Unit::Count | Unit::Pages(_) | Unit::Nanos => 0.5,
            Unit::Share => 1e-9,
        }
    }

    /// Bytes of a page, if pages are counted.
    fn page_size(self) -> Option<u64> {
        match self {
            Unit::Pages(size) => Some(size),
            _ => None,
        }
    }

    /// A value in words.
    pub fn text(self, value: f64) -> String {
        match self {
            Unit::Pages(_) if value < 1e6 => grouped(value as u64),
            Unit::Count | Unit::Pages(_) => count_text(value),
            Unit::Nanos => time_text(value),
            Unit::Share => format!("{} %", short(value * 100.0)),
        }
    }
}

/// A number with few digits and no zeros at its end.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

/// A count, short.
pub fn count_text(n: f64) -> String {
    if n < 0.0 {
        format!("-{}", count_text(-n))
    } else if n >= 1e9 {
        format!("{} G", short(n / 1e9))
    } else if n >= 1e6 {
        format!("{} M", short(n / 1e6))
    } else if n >= 1e4 {
        format!("{} k", short(n / 1e3))
    } else if n == n.trunc() {
        grouped(n as u64)
    } else {
        short(n)
    }
}

/// A time, short.
pub fn time_text(ns: f64) -> String {
    let (value, unit) = match ns.abs() {
        v if v >= 1e9 => (ns / 1e9, "s"),
        v if v >= 1e6 => (ns / 1e6, "ms"),
        v if v >= 1e3 => (ns / 1e3, "µs"),
        v if v > 0.0 => (ns, "ns"),
        _ => return "0".into(),
    };
    format!("{} {unit}", short(value))
}

/// A range of values and where it lies in a picture.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Whether the scale is logarithmic.
    pub log: bool,
    /// The values at the ends.
    pub range: (f64, f64),
    /// Where the ends lie.
    pub span: (f64, f64),
    /// How values are written.
    pub unit: Unit,
}

impl Axis {
    /// Where a value lies; at the end next to it if it is outside.
    pub fn at(&self, value: f64) -> f64 {
        let (min, max) = self.range;
        let share = if max <= min {
            0.0
        } else if self.log {
            (value.max(min) / min).ln() / (max / min).ln()
        } else {
            (value - min) / (max - min)
        };
        self.span.0 + share.clamp(0.0, 1.0) * (self.span.1 - self.span.0)
    }

    /// Values at which to draw lines, so that `count` of them, about, have room.
    pub fn ticks(&self, count: usize) -> Vec<f64> {
        let (min, max) = self.range;
        if max <= min {
            return vec![min];
        }
        if !self.log {
            let step = nice((max - min) / count.max(1) as f64);
            let first = (min / step).ceil() as i64;
            return (first..)
                .map(|i| i as f64 * step)
                .take_while(|v| *v <= max * (1.0 + 1e-9))
                .collect();
        }
        if matches!(self.unit, Unit::Pages(_)) {
            let (first, last) = (min.log2().ceil() as i32, max.log2().floor() as i32);
            let every = ((last - first).max(0) as usize / count.max(1) + 1).max(1);
            return (first..=last)
                .step_by(every)
                .map(|p| 2f64.powi(p))
                .collect();
        }
        let decades = (max / min).log10();
        let times: &[f64] = if decades * 3.0 <= count as f64 * 1.5 {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0]
        };
        let every = (decades / count.max(1) as f64).ceil().max(1.0) as usize;
        (min.log10().floor() as i32..=max.log10().ceil() as i32)
            .step_by(every)
            .flat_map(|p| times.iter().map(move |t| t * 10f64.powi(p)))
            .filter(|v| (min..=max).contains(v))
            .collect()
    }
}

/// The next number of the form 1, 2 or 5 times a power of ten, from `value` on.
pub fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.max(f64::MIN_POSITIVE).log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0];
    let found = times.iter().find(|t| *t * power >= value * (1.0 - 1e-9));
    found.unwrap_or(&10.0) * power
}

/// A line of a chart.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// Its points, in order.
    pub points: Vec<(f64, f64)>,
    /// A value holds up to the next point, instead of changing evenly.
    pub steps: bool,
    /// Points are drawn as dots, too.
    pub dots: bool,
    /// The band around the line: x, and the least and the greatest y.
    pub band: Vec<(f64, f64, f64)>,
}

/// A shaded part of the chart.
#[derive(Clone, Debug)]
pub struct Zone {
    /// From where to where, on the x axis.
    pub range: (f64, f64),
    /// Its colour, light enough to draw on.
    pub fill: &'static str,
}

/// A line across the chart at a value, with a word.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Where.
    pub at: f64,
    /// What it means.
    pub name: String,
    /// Its colour.
    pub color: &'static str,
}

/// Lines over two axes.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// Above it.
    pub title: String,
    /// Below the title.
    pub subtitle: String,
    /// Below the x axis.
    pub x_label: String,
    /// Beside the y axis.
    pub y_label: String,
    /// Unit and scale of x.
    pub x: (Unit, bool),
    /// Unit and scale of y.
    pub y: (Unit, bool),
    /// Values at the ends of x.
    pub x_range: (f64, f64),
    /// Values at the ends of y.
    pub y_range: (f64, f64),
    /// The lines.
    pub series: Vec<Series>,
    /// Shaded parts.
    pub zones: Vec<Zone>,
    /// Upright lines, named above the chart.
    pub uprights: Vec<Rule>,
    /// Level lines, named on them.
    pub levels: Vec<Rule>,
    /// Notes below the chart, one a line.
    pub notes: Vec<String>,
    /// x is the time of the trace. On the page, all such charts show the same time.
    pub over_time: bool,
}

/// Width of all pictures.
pub const WIDTH: f64 = 1000.0;
/// Left end of what is drawn.
pub const LEFT: f64 = 92.0;
const LEGEND: f64 = 150.0;

impl LineChart {
    /// Draws it.
    pub fn draw(&self) -> String {
        let legend = if self.series.len() > 1 { LEGEND } else { 34.0 };
        let (right, top) = (
            WIDTH - legend,
            if self.uprights.is_empty() { 76.0 } else { 96.0 },
        );
        let bottom = top + 370.0;
        let below = if matches!(self.x.0, Unit::Pages(_)) {
            62.0
        } else {
            46.0
        };
        let height = bottom + below + 15.0 * self.notes.len() as f64 + 12.0;
        let mut svg = Svg::new(WIDTH, height, &self.title);
        let x = Axis {
            log: self.x.1,
            range: self.x_range,
            span: (LEFT, right),
            unit: self.x.0,
        };
        let y = Axis {
            log: self.y.1,
            range: self.y_range,
            span: (bottom, top),
            unit: self.y.0,
        };
        heading(&mut svg, &self.title, &self.subtitle);
        for zone in &self.zones {
            let (from, to) = (x.at(zone.range.0), x.at(zone.range.1));
            svg.rect(from, top, to - from, bottom - top, zone.fill, None);
        }
        axes(&mut svg, &x, &y, &self.x_label, &self.y_label);
        for rule in &self.uprights {
            let at = x.at(rule.at);
            svg.line((at, top), (at, bottom), rule.color, true);
            svg.text(
                &rule.name,
                (at, top - 6.0),
                12.0,
                rule.color,
                Anchor::Middle,
            );
        }
        for rule in &self.levels {
            let at = y.at(rule.at);
            svg.line((LEFT, at), (right, at), rule.color, true);
            svg.text_over(&rule.name, (LEFT + 8.0, at + 15.0), 12.0, rule.color);
        }
        for (i, series) in self.series.iter().enumerate() {
            self.area(&mut svg, i, series, &x, &y);
            self.line(&mut svg, i, series, &x, &y);
        }
        if self.series.len() > 1 {
            let names: Vec<(&str, &str, &str)> = self
                .series
                .iter()
                .enumerate()
                .map(|(i, s)| (s.name.as_str(), color(i), dash(i)))
                .collect();
            key(&mut svg, &names, right + 16.0, top + 8.0);
        }
        if self.series.iter().all(|s| s.points.is_empty()) {
            let middle = ((LEFT + right) / 2.0, (top + bottom) / 2.0);
            svg.text("no references", middle, 16.0, SOFT, Anchor::Middle);
        }
        notes(&mut svg, &self.notes, bottom + below + 14.0);
        svg.finish()
    }

    /// The chart as the page's script draws it: all series have the same x then, and no value where
    /// they have no point.
    pub fn explored(&self) -> Value {
        let axis = |(unit, log): (Unit, bool), label: &str, range: (f64, f64)| {
            json!({"unit": unit.name(), "page_size": unit.page_size(), "log": log, "label": label,
                "least": unit.least(), "range": [number(range.0), number(range.1)]})
        };
        // The ends are points, too: a browser shows all x at first.
        let ends = [self.x_range.0, self.x_range.1];
        let mut xs: Vec<f64> = ends.into();
        for series in &self.series {
            xs.extend(series.points.iter().map(|p| p.0));
            xs.extend(series.band.iter().map(|p| p.0));
        }
        xs.retain(|x| (ends[0]..=ends[1]).contains(x));
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let series: Vec<Value> = self
            .series
            .iter()
            .enumerate()
            .map(|(i, s)| {
                let band = |of: fn(&(f64, f64, f64)) -> f64| {
                    let points = s.band.iter().map(|p| (p.0, of(p)));
                    (!s.band.is_empty()).then(|| aligned(&xs, points))
                };
                json!({"name": s.name, "color": color(i), "dashed": !dash(i).is_empty(),
                    "steps": s.steps, "dots": s.dots, "y": aligned(&xs, s.points.iter().copied()),
                    "low": band(|p| p.1), "high": band(|p| p.2)})
            })
            .collect();
        let rules = |rules: &[Rule]| -> Vec<Value> {
            let rule = |r: &Rule| json!([number(r.at), r.name, r.color]);
            rules.iter().map(rule).collect()
        };
        let zones: Vec<Value> = self
            .zones
            .iter()
            .map(|z| json!([number(z.range.0), number(z.range.1), z.fill]))
            .collect();
        json!({
            "title": self.title,
            "subtitle": self.subtitle,
            "notes": self.notes,
            "over_time": self.over_time,
            "x": axis(self.x, &self.x_label, self.x_range),
            "y": axis(self.y, &self.y_label, self.y_range),
            "xs": xs.iter().map(|&x| number(x)).collect::<Vec<_>>(),
            "series": series,
            "zones": zones,
            "uprights": rules(&self.uprights),
            "levels": rules(&self.levels),
        })
    }

    /// The band of a line.
    fn area(&self, svg: &mut Svg, i: usize, series: &Series, x: &Axis, y: &Axis) {
        let of = |value: fn(&(f64, f64, f64)) -> f64| -> Vec<(f64, f64)> {
            let points = series.band.iter();
            points.map(|p| (x.at(p.0), y.at(value(p)))).collect()
        };
        svg.area(&of(|p| p.2), &of(|p| p.1), color(i));
    }

    fn line(&self, svg: &mut Svg, i: usize, series: &Series, x: &Axis, y: &Axis) {
        let mut line: Vec<(f64, f64)> = Vec::with_capacity(series.points.len() * 2);
        for &(a, b) in &series.points {
            let point = (x.at(a), y.at(b));
            if let (true, Some(before)) = (series.steps, line.last()) {
                let before = before.1;
                line.push((point.0, before));
            }
            line.push(point);
        }
        line.dedup();
        svg.polyline(&line, color(i), 2.0, dash(i));
        if series.dots {
            for &(a, b) in &series.points {
                let tip = format!("{}: {}, {}", series.name, x.unit.text(a), y.unit.text(b));
                svg.dot((x.at(a), y.at(b)), 3.0, color(i), &tip);
            }
        }
    }
}

/// A number without digits that say nothing.
fn number(value: f64) -> Value {
    if value == value.trunc() && value.abs() < 9e15 {
        return json!(value as i64);
    }
    // Seven digits.
    format!("{value:.6e}")
        .parse::<f64>()
        .map_or(Value::Null, |short| json!(short))
}

/// The values at each x, null where there is none. Of several points at one x, the last counts.
fn aligned(xs: &[f64], points: impl Iterator<Item = (f64, f64)>) -> Vec<Value> {
    let mut values = vec![Value::Null; xs.len()];
    for (x, y) in points {
        if let Ok(at) = xs.binary_search_by(|other| other.total_cmp(&x)) {
            values[at] = number(y);
        }
    }
    values
}

fn dash(i: usize) -> &'static str {
    if i < COLORS.len() { "" } else { "6 3" }
}

/// Title and subtitle of a picture.
pub fn heading(svg: &mut Svg, title: &str, subtitle: &str) {
    svg.text(title, (LEFT, 32.0), 20.0, INK, Anchor::Start);
    svg.text(subtitle, (LEFT, 54.0), 13.0, SOFT, Anchor::Start);
}

/// Grid, numbers and names of two axes.
pub fn axes(svg: &mut Svg, x: &Axis, y: &Axis, x_label: &str, y_label: &str) {
    let (left, right) = x.span;
    let (bottom, top) = y.span;
    for value in y.ticks(8) {
        let at = y.at(value);
        svg.line((left, at), (right, at), GRID, false);
        svg.text(
            &y.unit.text(value),
            (left - 8.0, at + 4.0),
            12.0,
            SOFT,
            Anchor::End,
        );
    }
    let mut label_y = bottom + 40.0;
    for value in x.ticks(11) {
        let at = x.at(value);
        svg.line((at, top), (at, bottom), GRID, false);
        svg.line((at, bottom), (at, bottom + 5.0), SOFT, false);
        svg.text(
            &x.unit.text(value),
            (at, bottom + 18.0),
            12.0,
            INK,
            Anchor::Middle,
        );
        if let Unit::Pages(size) = x.unit {
            let bytes = bytes_text((value as u64).saturating_mul(size)).replace(".0 ", " ");
            svg.text(&bytes, (at, bottom + 33.0), 11.0, SOFT, Anchor::Middle);
            label_y = bottom + 54.0;
        }
    }
    svg.line((left, bottom), (right, bottom), SOFT, false);
    svg.text(
        x_label,
        ((left + right) / 2.0, label_y),
        13.0,
        INK,
        Anchor::Middle,
    );
    svg.upright(y_label, (24.0, (top + bottom) / 2.0), 13.0, INK);
}

/// The names of colours, one below the other.
pub fn key(svg: &mut Svg, names: &[(&str, &str, &str)], x: f64, y: f64) {
    for (i, (name, color, dash)) in names.iter().enumerate() {
        let at = y + 19.0 * i as f64;
        svg.polyline(&[(x, at), (x + 20.0, at)], color, 4.0, dash);
        let fits = cut(name, 12.0, WIDTH - x - 30.0);
        svg.text(&fits, (x + 26.0, at + 4.0), 12.0, INK, Anchor::Start);
    }
}

/// Lines of small print.
pub fn notes(svg: &mut Svg, notes: &[String], y: f64) {
    for (i, note) in notes.iter().enumerate() {
        let at = (LEFT, y + 15.0 * i as f64);
        svg.text(note, at, 11.0, SOFT, Anchor::Start);
    }
}

/// A text that is cut at the front so that it fits: the end of a path is its most useful part.
pub fn cut(text: &str, size: f64, width: f64) -> String {
    if text_width(text, size) <= width {
        return text.into();
    }
    let room = (width / (size * 0.55)) as usize;
    let skip = text.chars().count() + 1 - room.max(1);
    format!("…{}", text.chars().skip(skip).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(log: bool, min: f64, max: f64, unit: Unit) -> Axis {
        Axis {
            log,
            range: (min, max),
            span: (0.0, 100.0),
            unit,
        }
    }

    #[test]
    fn an_axis_has_lines() {
        let count = |min, max| axis(true, min, max, Unit::Count).ticks(8);
        assert_eq!(count(9.0, 120.0), [10.0, 20.0, 50.0, 100.0]);
        assert_eq!(count(0.5, 1e6).len(), 7);
        let pages = axis(true, 3.0, 70.0, Unit::Pages(4096)).ticks(11);
        assert_eq!(pages, [4.0, 8.0, 16.0, 32.0, 64.0]);
        assert_eq!(
            axis(false, 0.0, 9.0, Unit::Count).ticks(5),
            [0.0, 2.0, 4.0, 6.0, 8.0]
        );
    }

    #[test]
    fn values_lie_between_the_ends() {
        let log = axis(true, 1.0, 100.0, Unit::Count);
        assert_eq!((log.at(0.0), log.at(10.0), log.at(1e9)), (0.0, 50.0, 100.0));
        assert_eq!(axis(false, 5.0, 5.0, Unit::Count).at(5.0), 0.0);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(count_text(2_000.0), "2,000");
        assert_eq!(count_text(50_000.0), "50 k");
        assert_eq!(count_text(1_000_000.0), "1 M");
        assert_eq!(count_text(-50_000.0), "-50 k");
        assert_eq!(time_text(1_500_000.0), "1.5 ms");
        assert_eq!(time_text(0.0), "0");
        assert_eq!(Unit::Share.text(0.125), "12.5 %");
        assert_eq!(nice(0.03), 0.05);
        assert_eq!(nice(5.0), 5.0);
    }

    #[test]
    fn points_within_the_axis_share_their_x() {
        let series = |points: &[(f64, f64)]| Series {
            points: points.into(),
            ..Series::default()
        };
        let chart = LineChart {
            title: String::new(),
            subtitle: String::new(),
            x_label: String::new(),
            y_label: String::new(),
            x: (Unit::Count, false),
            y: (Unit::Count, false),
            x_range: (0.0, 4.0),
            y_range: (0.0, 9.0),
            series: vec![
                series(&[(1.0, 7.0), (9.0, 1.0)]),
                series(&[(1.0, 2.0), (2.5, 1.0 / 3.0)]),
            ],
            zones: Vec::new(),
            uprights: Vec::new(),
            levels: Vec::new(),
            notes: Vec::new(),
            over_time: true,
        };
        let explored = chart.explored();
        assert_eq!(explored["xs"], json!([0, 1, 2.5, 4]));
        assert_eq!(explored["series"][0]["y"], json!([null, 7, null, null]));
        assert_eq!(
            explored["series"][1]["y"],
            json!([null, 2, 0.3333333, null])
        );
        assert_eq!(explored["series"][1]["low"], Value::Null);
        assert_eq!(explored["y"]["least"], json!(0.5));
    }

    #[test]
    fn of_a_long_name_the_end_is_left() {
        assert_eq!(cut("/usr/lib/libc.so.6", 10.0, 44.0), "…bc.so.6");
        assert_eq!(cut("short", 10.0, 100.0), "short");
    }
}
