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
const VALID_INK: RGBColor = RGBColor(4, 120, 87);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn drawing<E: std::error::Error + Send + Sync>(e: DrawingAreaErrorKind<E>) -> Error {
    Error::Draw { what: "fault-curve.svg", why: e.to_string() }
}

struct Picture<'a, 'b> {
    area: &'a Area<'b>,
    x_max: f64,
    y_max: f64,
}

impl Picture<'_, '_> {
    fn x(&self, pages: f64) -> i32 {
        let share = pages.max(1.0).ln() / self.x_max.ln();
        LEFT + (share.min(1.0) * f64::from(RIGHT - LEFT)).round() as i32
    }

    fn y(&self, misses: f64) -> i32 {
        BOTTOM - (misses / self.y_max * f64::from(BOTTOM - TOP)).round() as i32
    }

    fn text(&self, text: &str, at: (i32, i32), size: i32, color: RGBColor, h: HPos, v: VPos) -> Result<()> {
        let style = ("sans-serif", size).into_font().color(&color).pos(Pos::new(h, v));
        self.area.draw(&Text::new(text.to_string(), at, style)).map_err(drawing)
    }

    fn upright(&self, text: &str, at: (i32, i32), size: i32, color: RGBColor) -> Result<()> {
        let font = ("sans-serif", size).into_font().transform(FontTransform::Rotate270);
        let style = font.color(&color).pos(Pos::new(HPos::Center, VPos::Center));
        self.area.draw(&Text::new(text.to_string(), at, style)).map_err(drawing)
    }

    fn line(&self, points: Vec<(i32, i32)>, color: impl Into<ShapeStyle>) -> Result<()> {
        self.area.draw(&PathElement::new(points, color)).map_err(drawing)
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

/// A step between grid lines of 1, 2 or 5 times a power of ten, for about
/// five of them.
fn grid_step(max: f64) -> f64 {
    let rough = max / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let times = rough / power;
    power * if times <= 1.0 { 1.0 } else if times <= 2.0 { 2.0 } else if times <= 5.0 { 5.0 } else { 10.0 }
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

/// Draws LRU misses by size of memory; gives the SVG's text.
///
/// # Errors
///
/// [`Error::Draw`].
pub fn draw(summary: &Summary, curve: &Curve) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH as u32, HEIGHT as u32)).into_drawing_area();
        area.fill(&WHITE).map_err(drawing)?;
        paint(&area, summary, curve)?;
        area.present().map_err(drawing)?;
    }
    Ok(svg)
}

fn paint(area: &Area<'_>, s: &Summary, curve: &Curve) -> Result<()> {
    let points = curve.sampled(POINTS);
    let footprint = curve.footprint() as f64;
    let n = f64::from(s.evms_size);
    // Room to the right, so that the flat end can be seen.
    let p = Picture {
        area,
        x_max: (footprint * 1.6).max(n * 6.0).max(16.0),
        y_max: (curve.references as f64 * 1.06).max(1.0),
    };
    use {HPos::{Center as HC, Left as HL, Right as HR}, VPos::{Bottom as VB, Center as VC, Top as VT}};

    p.text("LRU misses by size of memory", (LEFT, 24), 22, INK, HL, VT)?;
    let subtitle = format!(
        "{} references to {} distinct pages ({}), {}; reduced by a FIFO of N = {} pages",
        grouped(s.references),
        grouped(s.distinct_pages),
        bytes_text(s.distinct_pages.saturating_mul(s.page_size)),
        s.scope,
        grouped(s.evms_size.into())
    );
    p.text(&subtitle, (LEFT, 54), 13, SOFT, HL, VT)?;

    // Where the reduced trace can be trusted.
    let valid = p.x(4.0 * n);
    let shade = Rectangle::new([(valid, TOP), (RIGHT, BOTTOM)], VALID.filled());
    area.draw(&shade).map_err(drawing)?;

    let step = grid_step(p.y_max);
    let mut at = 0.0;
    while at <= p.y_max {
        let y = p.y(at);
        p.line(vec![(LEFT, y), (RIGHT, y)], GRID.stroke_width(1))?;
        p.text(&count_text(at), (LEFT - 10, y), 12, SOFT, HR, VC)?;
        at += step;
    }
    // Powers of two, as many as have room for their labels.
    let octaves = p.x_max.log2();
    let every = (octaves / 10.0).ceil().max(1.0) as u32;
    for power in (0..=octaves as u32).step_by(every as usize) {
        let pages = 1u64 << power;
        let x = p.x(pages as f64);
        p.line(vec![(x, TOP), (x, BOTTOM)], GRID.stroke_width(1))?;
        p.line(vec![(x, BOTTOM), (x, BOTTOM + 5)], SOFT.stroke_width(1))?;
        p.text(&grouped(pages), (x, BOTTOM + 10), 12, INK, HC, VT)?;
        let size = bytes_text(pages.saturating_mul(s.page_size)).replace(".0 ", " ");
        p.text(&size, (x, BOTTOM + 28), 11, SOFT, HC, VT)?;
    }
    p.line(vec![(LEFT, BOTTOM), (RIGHT, BOTTOM)], SOFT.stroke_width(1))?;
    p.text("size of memory, in pages and bytes", ((LEFT + RIGHT) / 2, BOTTOM + 50), 13, INK, HC, VT)?;
    p.upright("misses", (22, (TOP + BOTTOM) / 2), 13, INK)?;

    // What no memory avoids.
    let cold = p.y(curve.cold as f64);
    p.dashed((LEFT, cold), (RIGHT, cold), COLD)?;
    let label = format!("first references: {}", grouped(curve.cold));
    p.text(&label, (LEFT + 8, cold - 4), 12, COLD, HL, VB)?;

    let bound = p.x(n);
    p.dashed((bound, TOP), (bound, BOTTOM), BOUND)?;
    p.text("N", (bound, TOP - 4), 13, BOUND, HC, VB)?;
    for (times, name) in [(4.0, "4 N"), (10.0, "10 N"), (30.0, "30 N")] {
        let pages = n * times;
        if pages <= p.x_max * 0.98 {
            let x = p.x(pages);
            p.line(vec![(x, TOP), (x, TOP + 7)], VALID_INK.stroke_width(1))?;
            p.text(name, (x, TOP - 4), 12, VALID_INK, HC, VB)?;
        }
    }

    // A step line: misses change at a size and hold up to the next.
    let mut line = vec![(LEFT, p.y(curve.references as f64))];
    for point in &points {
        let (x, y) = (p.x(point.size_pages as f64), p.y(point.misses as f64));
        if let Some(&(_, before)) = line.last() {
            line.push((x, before));
        }
        line.push((x, y));
    }
    line.push((RIGHT, cold));
    line.dedup();
    let mut under = line.clone();
    under.extend([(RIGHT, BOTTOM), (LEFT, BOTTOM)]);
    area.draw(&Polygon::new(under, LINE.mix(0.06).filled())).map_err(drawing)?;
    p.line(line, LINE.stroke_width(2))?;
    if footprint > 0.0 {
        let end = (p.x(footprint), cold);
        area.draw(&Circle::new(end, 4, LINE.filled())).map_err(drawing)?;
        let label = format!("everything fits: {} pages", grouped(curve.footprint()));
        p.text(&label, (end.0.min(RIGHT - 4), end.1 - 22), 12, LINE, HR, VB)?;
    }

    let notes = [
        "Green: memories of 4 N and more, where the reduced trace stands for the full one. Difference of LRU misses from",
        "the full trace, over misses and footprint, on four full traces: at 4 N and more 0.5 % on average, 5.6 % at worst;",
        "at 10 N and more 0.13 % and 1.7 %; at 30 N and more 0.03 % and 0.4 %. Left of N the curve says nothing.",
    ];
    for (i, note) in notes.iter().enumerate() {
        p.text(note, (LEFT, BOTTOM + 72 + 15 * i as i32), 11, SOFT, HL, VT)?;
    }
    Ok(())
}
