//! Heatmaps: which pages were referenced when, by canonical page and by address.
//!
//! Memory use is bounded: a map has a limited number of columns and rows, which become
//! coarser if more would be needed. Only the busiest address spaces are kept.

use std::collections::BTreeMap;
use std::fmt::Write;

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use super::Figure;
use super::chart::{Axis, LEFT, Unit, WIDTH, count_text, cut, heading, notes, time_text};
use super::embed;
use super::pixels::Pixels;
use super::svg::{Anchor, GRID, INK, SOFT, Svg};
use super::timeline::{Moved, Row, Timeline};
use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, Place, World};
use crate::space::{Issue, ObjectId};
use crate::trace::{Body, Event, Trace};
use crate::units::Mm;

/// The largest number of rows of a map.
const ROWS: usize = 256;
/// The largest number of address spaces that are followed at one time.
const GRIDS: usize = 48;
/// The largest number of address spaces that are drawn.
const DRAWN: usize = 6;
/// Colours from light to dark, on a logarithmic scale of counts.
const LEVELS: [&str; 9] = [
    "#dbeafe", "#b3d0f7", "#86b6f2", "#5598e7", "#2f7bd6", "#1b5fb4", "#17488c", "#123262",
    "#0a1c38",
];

/// References to pages, in the order of the pages' first reference, over time.
///
/// Needs eight bytes a page.
pub struct PageHeat {
    line: Timeline,
    /// By number: which page in that order has the number, from 1; 0 if none has it.
    order: Vec<u64>,
    /// Pages so far.
    pages: u64,
    /// Pages in a row.
    block: u64,
    rows: Vec<Row>,
}

impl PageHeat {
    /// For references from `start` on; `length` is what is expected.
    pub fn new(start: u64, length: u64) -> Self {
        PageHeat {
            line: Timeline::new(start, length),
            order: Vec::new(),
            pages: 0,
            block: 1,
            rows: Vec::new(),
        }
    }

    /// A page was freed. Its number may be given to another page.
    pub fn free(&mut self, page: u32) {
        if let Some(order) = self.order.get_mut(page as usize) {
            *order = 0;
        }
    }

    /// One reference. Returns whether it is the first one to the page.
    #[inline]
    pub fn reference(&mut self, moment: u64, page: u32) -> bool {
        while let Some(moved) = self.line.step(moment) {
            if moved == Moved::Doubled {
                self.rows.iter_mut().for_each(Row::double);
            }
        }
        let at = page as usize;
        if at >= self.order.len() {
            self.order.resize((at + 1).next_power_of_two(), 0);
        }
        let first = self.order[at] == 0;
        if first {
            self.pages += 1;
            self.order[at] = self.pages;
        }
        let page = self.order[at] - 1;
        let mut row = page / self.block;
        while row >= ROWS as u64 {
            self.block *= 2;
            row = page / self.block;
            let mut halved: Vec<Row> = Vec::with_capacity(ROWS);
            for (i, old) in self.rows.drain(..).enumerate() {
                match halved.get_mut(i / 2) {
                    Some(to) => to.add(&old),
                    None => halved.push(old),
                }
            }
            self.rows = halved;
        }
        let row = row as usize;
        if row >= self.rows.len() {
            self.rows.resize_with(row + 1, Row::default);
        }
        self.rows[row].count(self.line.present());
        first
    }

    /// The picture; time is of `unit`.
    pub fn figure(&self, unit: Unit, start: u64, subtitle: &str) -> Figure {
        let map = Map {
            id: "heatmap-pages".into(),
            title: "References by page and time".into(),
            subtitle: subtitle.into(),
            unit,
            start,
            line: &self.line,
            rows: self
                .rows
                .iter()
                .enumerate()
                .map(|(i, counts)| MapRow {
                    from: i as u64 * self.block + 1,
                    to: (i as u64 + 1) * self.block + 1,
                    name: None,
                    counts,
                })
                .collect(),
            block: self.block,
            addresses: None,
        };
        map.figure(
            "Each row is a block of canonical pages, which are numbered in the order in which they \
             were first referenced. The upper edge shows how the footprint grows. Dark pages are \
             referenced often, by all processes and mappings together.",
        )
    }
}

/// The name that the majority of a stream has, if one has the majority (Boyer and Moore
/// 1981).
#[derive(Clone, Copy, Default)]
struct Majority {
    name: Option<ObjectId>,
    lead: u64,
}

impl Majority {
    fn vote(&mut self, name: Option<ObjectId>, weight: u64) {
        if self.name == name {
            self.lead += weight;
        } else if self.lead >= weight {
            self.lead -= weight;
        } else {
            *self = Majority {
                name,
                lead: weight - self.lead,
            };
        }
    }
}

#[derive(Clone, Default)]
struct GridRow {
    counts: Row,
    object: Majority,
}

/// One address space.
struct Grid {
    label: String,
    /// log2 of the pages in a row.
    block_shift: u32,
    rows: BTreeMap<u64, GridRow>,
    references: u64,
    ended: bool,
    /// References are missing, because the address space was not followed for a while.
    partial: bool,
}

impl Grid {
    fn coarsen(&mut self) {
        self.block_shift += 1;
        let mut merged: BTreeMap<u64, GridRow> = BTreeMap::new();
        for (block, row) in std::mem::take(&mut self.rows) {
            let to = merged.entry(block >> 1).or_default();
            to.counts.add(&row.counts);
            to.object.vote(row.object.name, row.object.lead);
        }
        self.rows = merged;
    }
}

/// References to addresses over time, for each address space.
pub struct AddressHeat {
    line: Timeline,
    start: u64,
    page_shift: u32,
    grids: FxHashMap<Mm, Grid>,
    forgotten: FxHashMap<Mm, ()>,
    names: Vec<Box<str>>,
}

impl AddressHeat {
    /// For references from `start` on; `length` is what is expected.
    pub fn new(start: u64, length: u64) -> Self {
        AddressHeat {
            line: Timeline::new(start, length),
            start,
            page_shift: 12,
            grids: FxHashMap::default(),
            forgotten: FxHashMap::default(),
            names: Vec::new(),
        }
    }

    fn make_room(&mut self) {
        if self.grids.len() < GRIDS {
            return;
        }
        // Address spaces that have ended go first, those with the fewest references before others.
        let least = self
            .grids
            .iter()
            .min_by_key(|(mm, grid)| (!grid.ended, grid.references, mm.0))
            .map(|(&mm, _)| mm);
        if let Some(mm) = least {
            self.grids.remove(&mm);
            self.forgotten.insert(mm, ());
        }
    }

    /// The pictures of the busiest address spaces.
    pub fn figures(&self, subtitle: &str) -> Vec<Figure> {
        let mut busiest: Vec<(&Mm, &Grid)> = self.grids.iter().collect();
        busiest.sort_by_key(|(mm, grid)| (std::cmp::Reverse(grid.references), mm.0));
        busiest.truncate(DRAWN);
        busiest
            .into_iter()
            .map(|(mm, grid)| self.figure(*mm, grid, subtitle))
            .collect()
    }

    fn figure(&self, mm: Mm, grid: &Grid, subtitle: &str) -> Figure {
        let shift = self.page_shift + grid.block_shift;
        let rows = grid
            .rows
            .iter()
            .map(|(&block, row)| MapRow {
                from: block << shift,
                to: (block << shift).saturating_add(1 << shift),
                name: Some(
                    row.object
                        .name
                        .and_then(|id| self.names.get(id.0 as usize))
                        .map_or("(not mapped)", |n| n),
                ),
                counts: &row.counts,
            })
            .collect();
        let partial = if grid.partial {
            "; the beginning is missing, because there were too many address spaces"
        } else {
            ""
        };
        let map = Map {
            id: format!("heatmap-addresses-{}", mm.0),
            title: format!("References by address and time: {}", grid.label),
            subtitle: format!(
                "address space {}; {} of {subtitle} references{partial}",
                mm.0,
                count_text(grid.references as f64)
            ),
            unit: Unit::Nanos,
            start: self.start,
            line: &self.line,
            rows,
            block: 1 << grid.block_shift,
            addresses: Some(()),
        };
        map.figure(
            "Each row is a block of addresses, in ascending order. Blocks that were never referenced \
             have no row; a line marks each such gap. The names at the right are those of the \
             mappings.",
        )
    }
}

impl Consumer for AddressHeat {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        self.page_shift = trace.header().page_shift;
        Ok(())
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for (r, place) in batch.refs.iter().zip(batch.places) {
            while let Some(moved) = self.line.step(r.time_ns) {
                if moved == Moved::Doubled {
                    let rows = self.grids.values_mut().flat_map(|g| g.rows.values_mut());
                    rows.for_each(|row| row.counts.double());
                }
            }
            if !self.grids.contains_key(&r.mm) {
                self.make_room();
                let process = batch.world.tasks.find(r.tid());
                let label = process.map_or_else(String::new, |id| {
                    let process = batch.world.tasks.process(id);
                    format!("{} ({})", process.comm, process.tgid.0)
                });
                self.grids.insert(
                    r.mm,
                    Grid {
                        label,
                        block_shift: 0,
                        rows: BTreeMap::new(),
                        references: 0,
                        ended: false,
                        partial: self.forgotten.contains_key(&r.mm),
                    },
                );
            }
            let Some(grid) = self.grids.get_mut(&r.mm) else {
                continue;
            };
            grid.references += 1;
            let vpn = r.vpn(self.page_shift).0;
            let mut block = vpn >> grid.block_shift;
            while grid.rows.len() >= ROWS && !grid.rows.contains_key(&block) {
                grid.coarsen();
                block = vpn >> grid.block_shift;
            }
            let row = grid.rows.entry(block).or_default();
            row.counts.count(self.line.present());
            let object = match place {
                Place::Mapped { object, .. } => Some(*object),
                _ => None,
            };
            row.object.vote(object, 1);
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, _world: &World, _issues: &[Issue]) -> Result<()> {
        match event.body {
            Body::Exec { comm, .. } => {
                if let Some(grid) = self.grids.get_mut(&event.mm) {
                    grid.label = format!("{} ({})", String::from_utf8_lossy(comm), event.tgid.0);
                }
            }
            Body::MmEnd => {
                if let Some(grid) = self.grids.get_mut(&event.mm) {
                    grid.ended = true;
                }
                // Its number is never used again.
                self.forgotten.remove(&event.mm);
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, _trace: &Trace, outcome: &Outcome) -> Result<()> {
        let objects = outcome.world.space.objects();
        self.names = objects.iter().map(|object| object.name.clone()).collect();
        Ok(())
    }
}

struct MapRow<'a> {
    from: u64,
    to: u64,
    name: Option<&'a str>,
    counts: &'a Row,
}

/// A map to draw.
struct Map<'a> {
    id: String,
    title: String,
    subtitle: String,
    unit: Unit,
    start: u64,
    line: &'a Timeline,
    rows: Vec<MapRow<'a>>,
    /// Pages in a row.
    block: u64,
    /// Rows are blocks of addresses, not of page numbers.
    addresses: Option<()>,
}

const TOP: f64 = 76.0;
const HIGH: f64 = 448.0;

/// The level of a count, if the largest is `most`.
fn level(count: u32, most: u32) -> usize {
    let share = f64::from(count).ln_1p() / f64::from(most.max(1)).ln_1p();
    ((share * LEVELS.len() as f64) as usize).min(LEVELS.len() - 1)
}

impl Map<'_> {
    fn figure(&self, about: &str) -> Figure {
        let columns = self.line.present() + 1;
        let most = self
            .rows
            .iter()
            .flat_map(|row| &row.counts.cells()[..columns])
            .copied()
            .max()
            .unwrap_or(0);
        let mut csv = String::from(match self.addresses {
            Some(()) => "time,address,end,mapping,references\n",
            None => "time,page,end,mapping,references\n",
        });
        let mut cells = Vec::new();
        for row in &self.rows {
            let name = row.name.unwrap_or("");
            let mut used = Vec::new();
            for (column, &count) in row.counts.cells()[..columns].iter().enumerate() {
                if count == 0 {
                    continue;
                }
                used.push(column as u64);
                used.push(u64::from(count));
                let time = column as u64 * self.line.width();
                // Writing to a string cannot fail.
                let _ = match self.addresses {
                    Some(()) => writeln!(
                        csv,
                        "{time},{:#x},{:#x},{},{count}",
                        row.from,
                        row.to,
                        super::quoted(name)
                    ),
                    None => writeln!(csv, "{time},{},{},,{count}", row.from, row.to),
                };
            }
            cells.push(used);
        }
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| json!([row.from, row.to, row.name]))
            .collect();
        Figure {
            id: self.id.clone(),
            title: self.title.clone(),
            section: match self.addresses {
                Some(()) => "Address space",
                None => "",
            },
            about: about.into(),
            svg: self.draw(columns, most),
            explored: self.explored(columns, most),
            csv,
            json: json!({
                "kind": "heatmap",
                "time_unit": if self.unit == Unit::Nanos { "ns" } else { "references" },
                "column_width": self.line.width(),
                "columns": columns,
                "start": self.start,
                "rows_are": if self.addresses.is_some() { "addresses" } else { "pages" },
                "pages_in_a_row": self.block,
                "rows": rows,
                "cells": cells,
            }),
        }
    }

    /// What the page's script draws. The cells are packed, from the first row on: a row has a count
    /// for each column.
    fn explored(&self, columns: usize, most: u32) -> Value {
        let cells = self.rows.iter().map(|row| &row.counts.cells()[..columns]);
        let counts = cells.flatten().copied();
        json!({
            "title": self.title,
            "subtitle": self.subtitle,
            "notes": [self.note()],
            "over_time": true,
            "colors": LEVELS,
            "most": most,
            "packed": embed::base64(&embed::pack(counts)),
        })
    }

    /// How large a cell is.
    fn note(&self) -> String {
        let width = match self.unit {
            Unit::Nanos => time_text(self.line.width() as f64),
            _ => format!("{} references", count_text(self.line.width() as f64)),
        };
        let pages = match self.block {
            1 => "1 page".into(),
            n => format!("{} pages", super::grouped(n)),
        };
        format!("A cell is {width} wide and {pages} high.")
    }

    fn right(&self) -> f64 {
        WIDTH - 230.0
    }

    fn draw(&self, columns: usize, most: u32) -> String {
        let (right, bottom) = (self.right(), TOP + HIGH);
        let mut svg = Svg::new(WIDTH, bottom + 92.0, &self.title);
        heading(&mut svg, &self.title, &self.subtitle);
        let rows = self.rows.len().max(1);
        let h = HIGH / rows as f64;
        let mut image = Pixels::new(columns, rows);
        for (i, row) in self.rows.iter().enumerate() {
            for (column, &count) in row.counts.cells()[..columns].iter().enumerate() {
                if count > 0 {
                    // Rows go upwards.
                    image.set(column, rows - 1 - i, level(count, most) as u8 + 1);
                }
            }
        }
        svg.image((LEFT, TOP), (right - LEFT, HIGH), &image.address(&LEVELS));
        for (a, b) in [((LEFT, TOP), (right, TOP)), ((right, TOP), (right, bottom))] {
            svg.line(a, b, GRID, false);
        }
        svg.line((LEFT, bottom), (right, bottom), SOFT, false);
        svg.line((LEFT, TOP), (LEFT, bottom), SOFT, false);
        let time = Axis {
            log: false,
            range: (0.0, (columns as u64 * self.line.width()) as f64),
            span: (LEFT, right),
            unit: self.unit,
        };
        for value in time.ticks(9) {
            let at = time.at(value);
            svg.line((at, bottom), (at, bottom + 5.0), SOFT, false);
            svg.text(
                &self.unit.text(value),
                (at, bottom + 18.0),
                12.0,
                INK,
                Anchor::Middle,
            );
        }
        let name = match self.unit {
            Unit::Nanos => "time since the trace began",
            _ => "references so far",
        };
        svg.text(
            name,
            ((LEFT + right) / 2.0, bottom + 38.0),
            13.0,
            INK,
            Anchor::Middle,
        );
        match self.addresses {
            Some(()) => self.bands(&mut svg, h),
            None => self.numbers(&mut svg, rows),
        }
        self.scale(&mut svg, most, bottom + 56.0);
        notes(&mut svg, &[self.note()], bottom + 84.0);
        svg.finish()
    }

    /// Numbers of pages beside the rows.
    fn numbers(&self, svg: &mut Svg, rows: usize) {
        let axis = Axis {
            log: false,
            range: (0.0, (rows as u64 * self.block) as f64),
            span: (TOP + HIGH, TOP),
            unit: Unit::Count,
        };
        for value in axis.ticks(8) {
            let at = axis.at(value);
            svg.text(
                &count_text(value),
                (LEFT - 8.0, at + 4.0),
                12.0,
                SOFT,
                Anchor::End,
            );
        }
        svg.upright(
            "pages, in order of first reference",
            (24.0, TOP + HIGH / 2.0),
            13.0,
            INK,
        );
    }

    /// Names of mappings beside the rows, as far as there is room.
    fn bands(&self, svg: &mut Svg, h: f64) {
        let bottom = TOP + HIGH;
        let right = self.right();
        // Runs of rows without a gap and of one name.
        let mut bands: Vec<(usize, usize, u64, &str)> = Vec::new();
        for (i, row) in self.rows.iter().enumerate() {
            let name = row.name.unwrap_or("");
            match bands.last_mut() {
                Some(last) if last.3 == name && self.rows[i - 1].to == row.from => last.1 = i + 1,
                _ => {
                    if i > 0 && self.rows[i - 1].to != row.from {
                        let y = bottom - i as f64 * h;
                        svg.line((LEFT - 4.0, y), (right + 4.0, y), "#d1d5db", false);
                    }
                    bands.push((i, i + 1, row.from, name));
                }
            }
        }
        // The tallest are named first; a name that would overlap another is left out.
        bands.sort_by_key(|band| (std::cmp::Reverse(band.1 - band.0), band.0));
        let mut taken: Vec<f64> = Vec::new();
        for (from, to, address, name) in bands {
            let y = bottom - (from + to) as f64 / 2.0 * h;
            if taken.iter().any(|other| (other - y).abs() < 12.5) {
                continue;
            }
            taken.push(y);
            svg.polyline(
                &[
                    (right + 5.0, bottom - to as f64 * h + 0.5),
                    (right + 5.0, bottom - from as f64 * h - 0.5),
                ],
                SOFT,
                2.0,
                "",
            );
            let words = cut(name, 11.0, WIDTH - right - 16.0);
            svg.text(&words, (right + 11.0, y + 4.0), 11.0, INK, Anchor::Start);
            svg.text(
                &format!("{address:x}"),
                (LEFT - 6.0, y + 4.0),
                10.0,
                SOFT,
                Anchor::End,
            );
        }
    }

    /// The key to the colours.
    fn scale(&self, svg: &mut Svg, most: u32, y: f64) {
        let right = self.right();
        let cell = 26.0;
        let left = right - cell * LEVELS.len() as f64;
        for (i, fill) in LEVELS.iter().enumerate() {
            svg.rect(left + cell * i as f64, y, cell, 10.0, fill, None);
        }
        svg.text("1", (left, y + 22.0), 11.0, SOFT, Anchor::Middle);
        let last = count_text(f64::from(most));
        svg.text(&last, (right, y + 22.0), 11.0, SOFT, Anchor::Middle);
        svg.text(
            "references in a cell, logarithmic",
            (left - 10.0, y + 9.0),
            11.0,
            SOFT,
            Anchor::End,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::timeline::COLUMNS;
    use super::*;

    fn total(rows: &[Row]) -> u64 {
        let cells = rows.iter().flat_map(|row| row.cells());
        cells.map(|&c| u64::from(c)).sum()
    }

    #[test]
    fn no_reference_is_lost_by_coarser_rows() {
        let mut heat = PageHeat::new(0, 100);
        for i in 0..5_000u32 {
            heat.reference(u64::from(i) * 7, i % 1_234 + 1);
        }
        assert_eq!(total(&heat.rows), 5_000);
        assert_eq!(heat.block, 8);
        assert_eq!(heat.rows.len(), 1_234usize.div_ceil(8));
        // Pages 1 to 8 came in each of the first four rounds, and in the last.
        assert_eq!(total(&heat.rows[..1]), 8 * 5);
    }

    #[test]
    fn the_name_that_most_have_stays() {
        let mut majority = Majority::default();
        let (a, b) = (Some(ObjectId(1)), Some(ObjectId(2)));
        for name in [a, b, b, a, b, None, b] {
            majority.vote(name, 1);
        }
        assert_eq!(majority.name, b);
    }

    /// Of any trace: here, each cell has more references than a program makes in days.
    #[test]
    fn the_data_of_a_map_have_a_bound() {
        let mut heat = PageHeat::new(0, 100);
        heat.rows.resize_with(ROWS, Row::default);
        for column in 0..COLUMNS {
            for (i, row) in heat.rows.iter_mut().enumerate() {
                row.set(
                    column,
                    (1 << 26) - ((column * 31 + i * 17) % 50_000_000) as u32,
                );
            }
        }
        let width = heat.line.width();
        while heat.line.step(width * COLUMNS as u64 - 1).is_some() {}
        assert_eq!(heat.line.present(), COLUMNS - 1);
        let figure = heat.figure(Unit::Nanos, 0, "");
        let explored = figure.explored.to_string().len();
        assert!((400_000..480_000).contains(&explored), "{explored}");
        assert!(figure.svg.len() < 120_000, "{}", figure.svg.len());
    }

    #[test]
    fn levels_go_from_one_to_most() {
        assert_eq!(level(1_000_000, 1_000_000), LEVELS.len() - 1);
        assert_eq!(level(1, 1_000_000), 0);
        assert_eq!(level(1, 1), LEVELS.len() - 1);
    }
}
