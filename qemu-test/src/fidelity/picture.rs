//! The plot: errors by size of memory, a panel a policy.

use std::fmt::Write;

/// A line of a panel: sizes in multiples of N, and errors.
pub struct Line {
    /// Which entry of the legend.
    pub kind: usize,
    /// Points, ascending.
    pub points: Vec<(f64, f64)>,
}

/// A policy's.
pub struct Panel {
    /// What stands above.
    pub title: String,
    /// What is drawn.
    pub lines: Vec<Line>,
}

const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 40.0;
const COLUMNS: usize = 3;
const COLORS: [&str; 7] = [
    "#b91c1c", "#be185d", "#1d4ed8", "#b45309", "#0891b2", "#7c3aed", "#047857",
];
/// Errors from and to; less is drawn as the least, more as the most.
const ERRORS: (f64, f64) = (1e-5, 1.0);

/// Draws panels and a legend in the place of one more; sizes go up to `largest`.
pub fn draw(title: &str, legend: &[&str], panels: &[Panel], largest: f64) -> String {
    let rows = (panels.len() + 1).div_ceil(COLUMNS);
    let (width, height) = (COLUMNS as f64 * WIDTH, rows as f64 * HEIGHT + 34.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\" \
         fill=\"#1f2937\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    text(&mut svg, (width / 2.0, 22.0), "middle", 15, title);
    for (i, panel) in panels.iter().enumerate() {
        paint(&mut svg, corner(i), panel, largest);
    }
    let (x, y) = corner(panels.len());
    for (kind, name) in legend.iter().enumerate() {
        let y = y + TOP + 16.0 + 26.0 * kind as f64;
        let (from, to) = (x + LEFT, x + LEFT + 28.0);
        let color = COLORS[kind % COLORS.len()];
        let _ = writeln!(
            svg,
            "<path d=\"M{from} {y}H{to}\" stroke=\"{color}\" stroke-width=\"2.5\"/>"
        );
        text(&mut svg, (to + 8.0, y + 4.0), "start", 12, name);
    }
    svg.push_str("</svg>\n");
    svg
}

fn corner(i: usize) -> (f64, f64) {
    let (column, row) = (i % COLUMNS, i / COLUMNS);
    (column as f64 * WIDTH, 34.0 + row as f64 * HEIGHT)
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, size: u32, text: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{text}</text>"
    );
}

fn paint(svg: &mut String, (x0, y0): (f64, f64), panel: &Panel, largest: f64) {
    let x = |times: f64| {
        let share = times.max(1.0).ln() / largest.ln();
        x0 + LEFT + share * (WIDTH - LEFT - RIGHT)
    };
    let y = |error: f64| {
        let share = (error.clamp(ERRORS.0, ERRORS.1) / ERRORS.0).ln() / (ERRORS.1 / ERRORS.0).ln();
        y0 + HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    };
    text(
        svg,
        (x0 + LEFT + (WIDTH - LEFT - RIGHT) / 2.0, y0 + 20.0),
        "middle",
        13,
        &panel.title,
    );
    for (error, label) in [
        (1e-5, "≤ 0.001 %"),
        (1e-4, "0.01 %"),
        (1e-3, "0.1 %"),
        (1e-2, "1 %"),
        (1e-1, "10 %"),
        (1.0, "≥ 100 %"),
    ] {
        let at = y(error);
        let _ = writeln!(
            svg,
            "<path d=\"M{:.1} {at:.1}H{:.1}\" stroke=\"#e5e7eb\"/>",
            x(1.0),
            x(largest)
        );
        text(svg, (x(1.0) - 4.0, at + 4.0), "end", 9, label);
    }
    for times in [1.0, 4.0, 10.0, 30.0, 100.0] {
        if times > largest {
            break;
        }
        let at = x(times);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {:.1}V{:.1}\" stroke=\"{}\"/>",
            y(ERRORS.1),
            y(ERRORS.0),
            if times == 4.0 { "#9ca3af" } else { "#e5e7eb" }
        );
        let below = y(ERRORS.0) + 14.0;
        text(svg, (at, below), "middle", 10, &format!("{times} N"));
    }
    for line in &panel.lines {
        let mut path = String::new();
        for (i, &(times, error)) in line.points.iter().enumerate() {
            let step = if i == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{step}{:.1} {:.1}", x(times), y(error));
        }
        let color = COLORS[line.kind % COLORS.len()];
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_sizes_lie_where_they_should() {
        let panel = Panel {
            title: "LRU".into(),
            lines: vec![Line {
                kind: 1,
                points: vec![(1.0, 1.0), (100.0, 0.0)],
            }],
        };
        let svg = draw("title", &["a", "b"], &[panel], 100.0);
        // From the upper left corner to the lower right one.
        assert!(svg.contains("M52.0 64.0L328.0 254.0"), "{svg}");
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
        assert!(svg.contains(">b</text>") && svg.contains(COLORS[1]));
    }
}
