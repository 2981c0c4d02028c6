//! `ramulator`: the memory trace of the DRAM simulator Ramulator.
//!
//! A line a reference, `0xADDRESS R` or `0xADDRESS W` (Kim, Yang, Mutlu,
//! "Ramulator: a fast and extensible DRAM simulator", IEEE CAL 15(1), 2016; mode
//! "dram" of its README).
//!
//! DRAM has physical addresses: the address is that of the page's frame. If the trace has
//! offsets, the offset of the access that began the stay is added. If it has none, every
//! reference is to the first byte of a frame: rows, banks and channels above the size of a
//! page are meaningful, columns are not. `W` marks a
//! stay in which a store to the page was made or begun.

use std::io::Write;

use super::text::hexadecimal;
use super::{Exporter, FormatEntry, Make};
use crate::error::{Error, OutputContext, Result};
use crate::output::Output;
use crate::pipeline::Batch;

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "ramulator",
    about: "for Ramulator: physical address, R or W",
    make: Make::File(|_| Ok(Box::new(Ramulator::default()))),
};

#[derive(Default)]
struct Ramulator {
    lines: Vec<u8>,
}

impl Exporter for Ramulator {
    fn references(&mut self, batch: &Batch<'_>, out: &mut Output) -> Result<()> {
        let shift = batch.world.header.page_shift;
        self.lines.clear();
        for r in batch.refs {
            // The number saturates in a trace.
            if r.pfn == u32::MAX {
                return Err(Error::NoFrame { seq: r.seq });
            }
            self.lines.extend_from_slice(b"0x");
            let frame = u64::from(r.pfn) << shift;
            hexadecimal(&mut self.lines, frame + r.within().unwrap_or(0));
            self.lines
                .extend_from_slice(if r.flags().writes() { b" W\n" } else { b" R\n" });
        }
        out.write_all(&self.lines).writing(out.name())
    }
}
