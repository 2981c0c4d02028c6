//! `din`: the text input of Dinero and of simulators after it.
//!
//! A line a reference, `label address` (Hill, Elder, "Dinero IV trace-driven
//! uniprocessor cache simulator", 1998: format "din"): the label is 0 for a
//! read, 1 for a write, 2 for an instruction fetch, the address hexadecimal
//! without a prefix.
//!
//! The address is the page's number times the size of a page, so that a page
//! has one address, no matter how many processes map it. If the trace has offsets, the offset of
//! the access that began the stay is added. The other accesses of the stay are not in a trace. If
//! it has none, caches must have blocks of whole pages. A page counts as written if a store
//! to it was made or begun in this stay, whatever access began the stay, as in `postproc
//! simulate`.

use std::io::Write;

use super::text::hexadecimal;
use super::{Exporter, FormatEntry, Make};
use crate::error::{OutputContext, Result};
use crate::output::Output;
use crate::pipeline::Batch;
use crate::units::Access;

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "din",
    about: "for Dinero: 0, 1 or 2 for read, write or fetch, and an address",
    make: Make::File(|_| Ok(Box::new(Din::default()))),
};

#[derive(Default)]
struct Din {
    lines: Vec<u8>,
}

impl Exporter for Din {
    fn references(&mut self, batch: &Batch<'_>, out: &mut Output) -> Result<()> {
        let shift = batch.world.header.page_shift;
        self.lines.clear();
        for (r, page) in batch.refs.iter().zip(batch.pages) {
            let flags = r.flags();
            self.lines.extend_from_slice(if flags.writes() {
                b"1 "
            } else if flags.access() == Access::Exec {
                b"2 "
            } else {
                b"0 "
            });
            // That of a huge page is a number of pages, which are counted already.
            let within = r.within().unwrap_or(0) & ((1 << shift) - 1);
            hexadecimal(&mut self.lines, u64::from(page.0) << shift | within);
            self.lines.push(b'\n');
        }
        out.write_all(&self.lines).writing(out.name())
    }
}
