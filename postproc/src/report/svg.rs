//! SVG without a library: pictures need only lines, boxes and words.
//!
//! The viewer chooses the fonts. The width of a text is estimated from the number of
//! letters where something stands beside it.

use std::fmt::Write;

/// Ink for titles and axes.
pub const INK: &str = "#1f2937";
/// Ink for notes.
pub const SOFT: &str = "#6b7280";
/// Lines of the grid.
pub const GRID: &str = "#e5e7eb";

/// Which end of a text is at the point given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Anchor {
    /// It begins there.
    Start,
    /// It is centred there.
    Middle,
    /// It ends there.
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// Text in which characters are replaced that XML forbids or treats as markup.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// How wide a text of this size is, about.
pub fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.55
}

/// A coordinate, short: a tenth of a pixel is all that can be seen.
pub fn px(value: f64) -> String {
    let tenths = (value * 10.0).round() as i64;
    match (tenths / 10, (tenths % 10).abs()) {
        (whole, 0) => whole.to_string(),
        (0, tenth) if tenths < 0 => format!("-0.{tenth}"),
        (whole, tenth) => format!("{whole}.{tenth}"),
    }
}

/// A picture under way.
pub struct Svg {
    text: String,
}

impl Svg {
    /// An empty picture; screen readers read the `title`.
    pub fn new(width: f64, height: f64, title: &str) -> Self {
        let (w, h) = (px(width), px(height));
        Svg {
            text: format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" \
                 height=\"{h}\" font-family=\"sans-serif\" role=\"img\">\n<title>{}</title>\n\
                 <rect width=\"{w}\" height=\"{h}\" fill=\"#fff\"/>\n",
                escape(title)
            ),
        }
    }

    /// Adds what is SVG already.
    pub fn raw(&mut self, svg: &str) {
        self.text.push_str(svg);
    }

    /// A filled box; `tip` is shown when the pointer rests on it.
    pub fn rect(&mut self, x: f64, y: f64, w: f64, h: f64, fill: &str, tip: Option<&str>) {
        // Writing to a string cannot fail.
        let _ = write!(
            self.text,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{fill}\"",
            px(x),
            px(y),
            px(w.max(0.0)),
            px(h.max(0.0))
        );
        match tip {
            Some(tip) => {
                let _ = writeln!(self.text, "><title>{}</title></rect>", escape(tip));
            }
            None => self.text.push_str("/>\n"),
        }
    }

    /// An image that fills a box; each pixel becomes a box of one colour.
    pub fn image(&mut self, (x, y): (f64, f64), (w, h): (f64, f64), address: &str) {
        let _ = writeln!(
            self.text,
            "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" \
             image-rendering=\"pixelated\" href=\"{address}\"/>",
            px(x),
            px(y),
            px(w),
            px(h)
        );
    }

    /// A straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str, dashed: bool) {
        let _ = writeln!(
            self.text,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{stroke}\"{}/>",
            px(from.0),
            px(from.1),
            px(to.0),
            px(to.1),
            if dashed {
                " stroke-dasharray=\"5 4\""
            } else {
                ""
            }
        );
    }

    /// A line through points.
    pub fn polyline(&mut self, points: &[(f64, f64)], stroke: &str, width: f64, dash: &str) {
        self.text.push_str("<polyline fill=\"none\" points=\"");
        for (i, (x, y)) in points.iter().enumerate() {
            let _ = write!(
                self.text,
                "{}{},{}",
                if i > 0 { " " } else { "" },
                px(*x),
                px(*y)
            );
        }
        let _ = write!(
            self.text,
            "\" stroke=\"{stroke}\" stroke-width=\"{}\"",
            px(width)
        );
        if !dash.is_empty() {
            let _ = write!(self.text, " stroke-dasharray=\"{dash}\"");
        }
        self.text.push_str("/>\n");
    }

    /// A see-through area between a line and one below it, which have the same x.
    pub fn area(&mut self, upper: &[(f64, f64)], lower: &[(f64, f64)], fill: &str) {
        if upper.is_empty() {
            return;
        }
        let points: Vec<String> = upper
            .iter()
            .chain(lower.iter().rev())
            .map(|&(x, y)| format!("{},{}", px(x), px(y)))
            .collect();
        self.raw(&format!(
            "<polygon points=\"{}\" fill=\"{fill}\" fill-opacity=\"0.22\"/>\n",
            points.join(" ")
        ));
    }

    /// A dot with what it stands for.
    pub fn dot(&mut self, at: (f64, f64), radius: f64, fill: &str, tip: &str) {
        let _ = writeln!(
            self.text,
            "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{fill}\"><title>{}</title></circle>",
            px(at.0),
            px(at.1),
            px(radius),
            escape(tip)
        );
    }

    /// Words; `y` is their base line.
    pub fn text(&mut self, text: &str, (x, y): (f64, f64), size: f64, fill: &str, anchor: Anchor) {
        let _ = writeln!(
            self.text,
            "<text x=\"{}\" y=\"{}\" font-size=\"{}\" fill=\"{fill}\" text-anchor=\"{}\">{}</text>",
            px(x),
            px(y),
            px(size),
            anchor.name(),
            escape(text)
        );
    }

    /// Words that begin at a point, and are legible across lines.
    pub fn text_over(&mut self, text: &str, (x, y): (f64, f64), size: f64, fill: &str) {
        let _ = writeln!(
            self.text,
            "<text x=\"{}\" y=\"{}\" font-size=\"{}\" fill=\"{fill}\" text-anchor=\"start\" \
             stroke=\"#fff\" stroke-width=\"4\" paint-order=\"stroke\">{}</text>",
            px(x),
            px(y),
            px(size),
            escape(text)
        );
    }

    /// Words that go upwards, centred.
    pub fn upright(&mut self, text: &str, (x, y): (f64, f64), size: f64, fill: &str) {
        let (x, y) = (px(x), px(y));
        let _ = writeln!(
            self.text,
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{}\" fill=\"{fill}\" text-anchor=\"middle\" \
             transform=\"rotate(-90 {x} {y})\">{}</text>",
            px(size),
            escape(text)
        );
    }

    /// The picture's text.
    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_become_markup() {
        assert_eq!(escape("a<b>&\"'\n"), "a&lt;b&gt;&amp;&quot;&#39;\u{fffd}");
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!(px(3.0), "3");
        assert_eq!(px(-0.24), "-0.2");
        assert_eq!(px(12.36), "12.4");
        assert_eq!(px(-0.01), "0");
    }
}
