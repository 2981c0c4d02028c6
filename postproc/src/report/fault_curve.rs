//! The fault curve as a picture.
//!
//! Text is left to the viewer's fonts; widths are taken from the size of the
//! letters where something must be placed beside text.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontTransform, RGBAColor};

use super::grouped;
use super::summary::{Summary, bytes_text};
use crate::error::{Error, Result};
use crate::sim::Curve;

const WIDTH: i32 = 1000;
const HEIGHT: i32 = 600;
const LEFT: i32 = 92;
const RIGHT: i32 = WIDTH - 34;
const TOP: i32 = 92;
const BOTTOM: i32 = HEIGHT - 118;
/// Points of the line, at most.
const POINTS: usize = 600;

const INK: RGBColor = RGBColor(31, 41, 55);
const SOFT: RGBColor = RGBColor(107, 114, 128);
const GRID: RGBColor = RGBColor(229, 231, 235);
const LINE: RGBColor = RGBColor(29, 78, 216);
const COLD: RGBColor = RGBColor(180, 83, 9);
const BOUND: RGBColor = RGBColor(185, 28, 28);
const VALID: RGBAColor = RGBAColor(16, 185, 129, 0.10);
const NOTHING: RGBAColor = RGBAColor(107, 114, 128, 0.10);
const VALID_INK: RGBColor = RGBColor(4, 120, 87);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn drawing<E: std::error::Error + Send + Sync>(e: DrawingAreaErrorKind<E>) -> Error {
    Error::Draw {
        what: "fault-curve.svg",
        why: e.to_string(),
    }
}

/// Both axes are logarithmic: memory and misses span orders of magnitude.
struct Picture<'a, 'b> {
    area: &'a Area<'b>,
    x_range: (f64, f64),
    y_range: (f64, f64),
}

/// Where a value lies on a logarithmic axis, from 0 to 1.
fn share(value: f64, (min, max): (f64, f64)) -> f64 {
    ((value.max(min) / min).ln() / (max / min).ln()).min(1.0)
}

impl Picture<'_, '_> {
    fn x(&self, pages: f64) -> i32 {
        LEFT + (share(pages, self.x_range) * f64::from(RIGHT - LEFT)).round() as i32
    }

    fn y(&self, misses: f64) -> i32 {
        BOTTOM - (share(misses, self.y_range) * f64::from(BOTTOM - TOP)).round() as i32
    }

    fn text(
        &self,
        text: &str,
        at: (i32, i32),
        size: i32,
        color: RGBColor,
        h: HPos,
        v: VPos,
    ) -> Result<()> {
        let style = ("sans-serif", size)
            .into_font()
            .color(&color)
            .pos(Pos::new(h, v));
        self.area
            .draw(&Text::new(text.to_string(), at, style))
            .map_err(drawing)
    }

    fn upright(&self, text: &str, at: (i32, i32), size: i32, color: RGBColor) -> Result<()> {
        let font = ("sans-serif", size)
            .into_font()
            .transform(FontTransform::Rotate270);
        let style = font.color(&color).pos(Pos::new(HPos::Center, VPos::Center));
        self.area
            .draw(&Text::new(text.to_string(), at, style))
            .map_err(drawing)
    }

    fn line(&self, points: Vec<(i32, i32)>, color: impl Into<ShapeStyle>) -> Result<()> {
        self.area
            .draw(&PathElement::new(points, color))
            .map_err(drawing)
    }

    fn dashed(&self, from: (i32, i32), to: (i32, i32), color: RGBColor) -> Result<()> {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = f64::from(dx).hypot(f64::from(dy));
        let dashes = (length / 9.0) as i32;
        for i in 0..dashes {
            let at = |part: f64| {
                let share = (f64::from(i) * 9.0 + part) / length;
                (
                    from.0 + (f64::from(dx) * share).round() as i32,
                    from.1 + (f64::from(dy) * share).round() as i32,
                )
            };
            self.line(vec![at(0.0), at(5.0)], color.stroke_width(1))?;
        }
        Ok(())
    }
}

/// Values at which to draw lines between two bounds: all of 1, 2 and 5 times a
/// power of ten, or the powers only where there are many.
fn grid((min, max): (f64, f64)) -> Vec<f64> {
    let decades = (max / min).log10();
    let times: &[f64] = if decades <= 3.5 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let powers = min.log10().floor() as i32..=max.log10().ceil() as i32;
    powers
        .flat_map(|p| times.iter().map(move |t| t * 10f64.powi(p)))
        .filter(|v| (min..=max).contains(v))
        .collect()
}

fn count_text(n: f64) -> String {
    let whole = |v: f64| format!("{}", (v * 100.0).round() / 100.0);
    if n >= 1e9 {
        format!("{} G", whole(n / 1e9))
    } else if n >= 1e6 {
        format!("{} M", whole(n / 1e6))
    } else if n >= 1e4 {
        format!("{} k", whole(n / 1e3))
    } else {
        grouped(n as u64)
    }
}

/// What the picture says beside the curve.
#[derive(Clone, Copy, Debug)]
pub struct Caption<'a> {
    /// References.
    pub references: u64,
    /// Distinct pages.
    pub distinct_pages: u64,
    /// Bytes of a page.
    pub page_size: u64,
    /// What was traced.
    pub scope: &'a str,
    /// N of the FIFO that reduced the trace; 0 if none did.
    pub evms_size: u32,
}

impl<'a> From<&'a Summary> for Caption<'a> {
    fn from(s: &'a Summary) -> Self {
        Caption {
            references: s.references,
            distinct_pages: s.distinct_pages,
            page_size: s.page_size,
            scope: &s.scope,
            evms_size: s.evms_size,
        }
    }
}

/// Draws LRU misses by size of memory; gives the SVG's text.
///
/// # Errors
///
/// [`Error::Draw`].
pub fn draw(caption: &Caption<'_>, curve: &Curve) -> Result<String> {
    let mut svg = String::new();
    {
        let area =
            SVGBackend::with_string(&mut svg, (WIDTH as u32, HEIGHT as u32)).into_drawing_area();
        area.fill(&WHITE).map_err(drawing)?;
        paint(&area, caption, curve)?;
        area.present().map_err(drawing)?;
    }
    Ok(svg)
}

fn paint(area: &Area<'_>, s: &Caption<'_>, curve: &Curve) -> Result<()> {
    use HPos::{Center as HC, Left as HL, Right as HR};
    use VPos::{Bottom as VB, Center as VC, Top as VT};

    let footprint = curve.footprint() as f64;
    let cold = curve.cold as f64;
    let n = f64::from(s.evms_size);
    let p = Picture {
        area,
        // From half of N, for there is nothing to see before N, with room to the
        // right, so that the flat end can be seen.
        x_range: ((n / 2.0).max(1.0), (footprint * 1.5).max(n * 6.0).max(16.0)),
        // Room below for the words under the floor.
        y_range: (
            (cold * 0.45).max(0.5),
            (curve.references as f64 * 1.25).max(cold * 8.0).max(10.0),
        ),
    };

    p.text("LRU misses by size of memory", (LEFT, 22), 22, INK, HL, VT)?;
    let mut subtitle = format!(
        "{} references to {} distinct pages ({}), {}",
        grouped(s.references),
        grouped(s.distinct_pages),
        bytes_text(s.distinct_pages.saturating_mul(s.page_size)),
        s.scope
    );
    let reduced = s.evms_size > 0;
    if reduced {
        let n = grouped(s.evms_size.into());
        subtitle.push_str(&format!(", reduced by a FIFO of N = {n} pages"));
    }
    p.text(&subtitle, (LEFT, 52), 13, SOFT, HL, VT)?;

    let zone = |from: i32, to: i32, style: ShapeStyle| {
        area.draw(&Rectangle::new([(from, TOP), (to, BOTTOM)], style))
            .map_err(drawing)
    };
    let (bound, valid) = (p.x(n), p.x(4.0 * n));
    if reduced {
        zone(LEFT, bound, NOTHING.filled())?;
        zone(valid, RIGHT, VALID.filled())?;
    }

    for value in grid(p.y_range) {
        let y = p.y(value);
        p.line(vec![(LEFT, y), (RIGHT, y)], GRID.stroke_width(1))?;
        p.text(&count_text(value), (LEFT - 10, y), 12, SOFT, HR, VC)?;
    }
    // Powers of two, as many as have room for their labels.
    let (first, last) = (p.x_range.0.log2().ceil() as u32, p.x_range.1.log2() as u32);
    let every = ((last - first) / 11 + 1) as usize;
    for power in (first..=last).step_by(every) {
        let pages = 1u64 << power;
        let x = p.x(pages as f64);
        p.line(vec![(x, TOP), (x, BOTTOM)], GRID.stroke_width(1))?;
        p.line(vec![(x, BOTTOM), (x, BOTTOM + 5)], SOFT.stroke_width(1))?;
        p.text(&grouped(pages), (x, BOTTOM + 9), 12, INK, HC, VT)?;
        let size = bytes_text(pages.saturating_mul(s.page_size)).replace(".0 ", " ");
        p.text(&size, (x, BOTTOM + 26), 11, SOFT, HC, VT)?;
    }
    p.line(vec![(LEFT, BOTTOM), (RIGHT, BOTTOM)], SOFT.stroke_width(1))?;
    p.text(
        "size of memory: pages, bytes",
        ((LEFT + RIGHT) / 2, BOTTOM + 46),
        13,
        INK,
        HC,
        VT,
    )?;
    p.upright("misses", (24, (TOP + BOTTOM) / 2), 13, INK)?;

    if reduced {
        p.dashed((bound, TOP), (bound, BOTTOM), BOUND)?;
        p.text("N", (bound, TOP - 5), 13, BOUND, HC, VB)?;
    }
    for times in [4, 10, 30].into_iter().filter(|_| reduced) {
        let pages = n * f64::from(times);
        if pages <= p.x_range.1 * 0.97 {
            let x = p.x(pages);
            p.line(vec![(x, TOP), (x, TOP + 7)], VALID_INK.stroke_width(1))?;
            p.text(&format!("{times} N"), (x, TOP - 5), 12, VALID_INK, HC, VB)?;
        }
    }

    if curve.references == 0 {
        let middle = ((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2);
        p.text("no references", middle, 16, SOFT, HC, VC)?;
    } else {
        // What no memory avoids.
        let floor = p.y(cold);
        p.dashed((LEFT, floor), (RIGHT, floor), COLD)?;
        let label = format!(
            "first references, which no memory avoids: {}",
            grouped(curve.cold)
        );
        p.text(&label, (bound + 8, floor + 7), 12, COLD, HL, VT)?;

        // Misses change at a size and hold up to the next.
        let points = curve.sampled(POINTS);
        let mut line = vec![(LEFT, p.y(curve.at(p.x_range.0 as u64).misses as f64))];
        for point in points
            .iter()
            .filter(|point| point.size_pages as f64 >= p.x_range.0)
        {
            let (x, y) = (p.x(point.size_pages as f64), p.y(point.misses as f64));
            if let Some(&(_, before)) = line.last() {
                line.push((x, before));
            }
            line.push((x, y));
        }
        line.push((RIGHT, floor));
        line.dedup();
        p.line(line, LINE.stroke_width(2))?;
        let end = (p.x(footprint), floor);
        area.draw(&Circle::new(end, 4, LINE.filled()))
            .map_err(drawing)?;
        let label = format!(
            "everything fits: {} pages, {}",
            grouped(curve.footprint()),
            bytes_text(curve.footprint().saturating_mul(s.page_size))
        );
        p.text(&label, (RIGHT - 8, floor + 7), 12, LINE, HR, VT)?;
    }

    let notes = [
        "Green, 4 N and more: the reduced trace stands for the full one. LRU misses differed from those of four full traces, as a share",
        "of misses and footprint, by 0.5 % on average and 5.6 % at worst; at 10 N and more by 0.13 % and 1.7 %; at 30 N and more by",
        "0.03 % and 0.4 %. Grey, below N: the reduction leaves nearly every reference a miss, whatever the program did.",
    ];
    for (i, note) in notes.iter().enumerate().filter(|_| reduced) {
        p.text(note, (LEFT, BOTTOM + 72 + 15 * i as i32), 11, SOFT, HL, VT)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_lines() {
        assert_eq!(grid((9.0, 120.0)), [10.0, 20.0, 50.0, 100.0]);
        assert_eq!(grid((0.5, 1e6)).len(), 7);
    }

    #[test]
    fn counts_are_short() {
        assert_eq!(count_text(2_000.0), "2,000");
        assert_eq!(count_text(50_000.0), "50 k");
        assert_eq!(count_text(1_000_000.0), "1 M");
    }
}
