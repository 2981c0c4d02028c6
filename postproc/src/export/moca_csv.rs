//! `moca-csv`: the trace of Moca.
//!
//! Moca (Beniamine, Corre, Dosimont, Huard, "Memory organisation cartography &
//! analysis", Inria RR-8694, 2015) has a chunk of accesses for each task and
//! slice of time, in it each address once. Its columns, after the line that
//! names them:
//!
//! | column | here |
//! |---|---|
//! | @Virt | virtual address, hexadecimal without a prefix: of the access if the trace has offsets, or else of the page |
//! | @Phy | physical address of the same byte when it was last referenced in the chunk, likewise |
//! | Nreads, Nwrites | references of the task to the address; a page counts as written if a store to it was made or begun in this stay |
//! | CPUMask | binary digits, the last is CPU 0 |
//! | Start, End | Moca's clock, which moves on at every fault: references before the chunk, and at its end |
//! | TaskId | thread id |
//!
//! Slices have the length `--interval`; Moca's have 50 ms. Two things differ from
//! Moca: every fault is counted, not one per page and chunk; and a thread id that is
//! used again is not another task. The address spaces of one thread (before and after
//! exec) have separate chunks.

use std::io::Write;

use rustc_hash::FxHashMap;

use super::slices::Slices;
use super::text::{decimal, hexadecimal};
use super::{Exporter, FormatEntry, Make};
use crate::error::{OutputContext, Result};
use crate::output::Output;
use crate::pipeline::{Batch, Outcome};
use crate::trace::Header;
use crate::units::{Mm, Tid};

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "moca-csv",
    about: "for Moca's tools: reads and writes by task, page and slice of time, as CSV",
    make: Make::File(|context| {
        Ok(Box::new(Moca {
            slices: Slices::new(context.options.interval_ns),
            page_shift: 0,
            cpus: 0,
            clock: 0,
            slice_start: 0,
            cells: FxHashMap::default(),
            lines: Vec::new(),
        }))
    }),
};

const COLUMNS: &[u8] = b"@Virt, @Phy, Nreads, Nwrites, CPUMask, Start, End, TaskId\n";

#[derive(Clone, Default)]
struct Cell {
    pfn: u32,
    within: u64,
    reads: u64,
    writes: u64,
    /// Bit n of word n / 64.
    cpus: Vec<u64>,
}

struct Moca {
    slices: Slices,
    page_shift: u32,
    cpus: u32,
    clock: u64,
    slice_start: u64,
    cells: FxHashMap<(Tid, Mm, u64), Cell>,
    lines: Vec<u8>,
}

impl Moca {
    fn end_slice(&mut self, out: &mut Output) -> Result<()> {
        let mut cells: Vec<_> = self.cells.drain().collect();
        cells.sort_unstable_by_key(|(key, _)| *key);
        self.lines.clear();
        let b = &mut self.lines;
        for ((tid, _, address), cell) in cells {
            hexadecimal(b, address);
            b.extend_from_slice(b", ");
            hexadecimal(b, (u64::from(cell.pfn) << self.page_shift) + cell.within);
            for number in [cell.reads, cell.writes] {
                b.extend_from_slice(b", ");
                decimal(b, number);
            }
            b.extend_from_slice(b", ");
            for cpu in (0..self.cpus).rev() {
                let word = cell.cpus.get(cpu as usize / 64).copied().unwrap_or(0);
                b.push(b'0' + (word >> (cpu % 64) & 1) as u8);
            }
            for number in [self.slice_start, self.clock, tid.0.into()] {
                b.extend_from_slice(b", ");
                decimal(b, number);
            }
            b.push(b'\n');
        }
        self.slice_start = self.clock;
        out.write_all(&self.lines).writing(out.name())
    }
}

impl Exporter for Moca {
    fn begin(&mut self, header: &Header, out: &mut Output) -> Result<()> {
        self.slices.begin(header);
        self.page_shift = header.page_shift;
        self.cpus = header.nr_cpus;
        out.write_all(COLUMNS).writing(out.name())
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Output) -> Result<()> {
        for r in batch.refs {
            if self.slices.is_over(r.time_ns) {
                self.end_slice(out)?;
                self.slices.go_to(r.time_ns);
            }
            let key = (r.tid(), r.mm, r.exact());
            let cell = self.cells.entry(key).or_default();
            (cell.pfn, cell.within) = (r.pfn, r.within().unwrap_or(0));
            if r.flags().writes() {
                cell.writes += 1;
            } else {
                cell.reads += 1;
            }
            // A CPU number has ten bits, whatever the header says.
            let word = r.cpu() as usize / 64;
            if cell.cpus.len() <= word {
                cell.cpus.resize(word + 1, 0);
            }
            cell.cpus[word] |= 1 << (r.cpu() % 64);
            self.clock += 1;
        }
        Ok(())
    }

    fn finish(&mut self, _outcome: &Outcome, out: &mut Output) -> Result<()> {
        self.end_slice(out)
    }
}
