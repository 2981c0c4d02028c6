//! `heatmap`: numbers of references by time and address, for each address space.
//!
//! Text, a line a cell, numbers separated by blanks, as gnuplot's `plot with
//! image` and numpy's `loadtxt` read it; a line that begins with `#` names the
//! columns:
//!
//! | column | |
//! |---|---|
//! | time_ns | beginning of the slice of time, since the trace's start |
//! | address | virtual address of the block's first byte |
//! | count | references to the block in the slice of time: never 0 |
//! | mm | address space |
//!
//! Slices are of `--interval`, blocks of `--block` pages. Memory holds the cells
//! of one slice.

use std::io::Write;

use rustc_hash::FxHashMap;

use super::slices::Slices;
use super::text::decimal;
use super::{ExportOptions, Exporter, FormatEntry, Make};
use crate::error::{OutputContext, Result};
use crate::output::Output;
use crate::pipeline::{Batch, Outcome};
use crate::trace::Header;
use crate::units::Mm;

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "heatmap",
    about: "for gnuplot and numpy: counts of references by time, address and address space, as text",
    make: Make::File(|context| Ok(Box::new(Heatmap::new(&context.options)))),
};

struct Heatmap {
    slices: Slices,
    block_pages: u64,
    page_shift: u32,
    counts: FxHashMap<(Mm, u64), u64>,
    lines: Vec<u8>,
}

impl Heatmap {
    fn new(options: &ExportOptions) -> Self {
        Heatmap {
            slices: Slices::new(options.interval_ns),
            block_pages: options.block_pages.max(1),
            page_shift: 0,
            counts: FxHashMap::default(),
            lines: Vec::new(),
        }
    }

    fn end_slice(&mut self, out: &mut Output) -> Result<()> {
        let mut cells: Vec<_> = self.counts.drain().collect();
        cells.sort_unstable();
        self.lines.clear();
        let time = self.slices.beginning_ns(self.slices.present());
        let block_bytes = self.block_pages << self.page_shift;
        for ((mm, block), count) in cells {
            for number in [time, block.saturating_mul(block_bytes), count] {
                decimal(&mut self.lines, number);
                self.lines.push(b' ');
            }
            decimal(&mut self.lines, mm.0.into());
            self.lines.push(b'\n');
        }
        out.write_all(&self.lines).writing(out.name())
    }
}

impl Exporter for Heatmap {
    fn begin(&mut self, header: &Header, out: &mut Output) -> Result<()> {
        self.slices.begin(header);
        self.page_shift = header.page_shift;
        out.write_all(b"# time_ns address count mm\n")
            .writing(out.name())
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Output) -> Result<()> {
        for r in batch.refs {
            if self.slices.is_over(r.time_ns) {
                self.end_slice(out)?;
                self.slices.go_to(r.time_ns);
            }
            let block = r.vpn(self.page_shift).0 / self.block_pages;
            *self.counts.entry((r.mm, block)).or_default() += 1;
        }
        Ok(())
    }

    fn finish(&mut self, _outcome: &Outcome, out: &mut Output) -> Result<()> {
        self.end_slice(out)
    }
}
