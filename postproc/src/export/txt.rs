//! `txt`: one decimal page number a line.

use std::io::Write;

use super::text::decimal;
use super::{Exporter, FormatEntry, Make};
use crate::error::{OutputContext, Result};
use crate::output::Output;
use crate::pipeline::Batch;

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "txt",
    about: "for any program: one decimal page number a line",
    make: Make::File(|_| Ok(Box::new(Txt::default()))),
};

#[derive(Default)]
struct Txt {
    lines: Vec<u8>,
}

impl Exporter for Txt {
    fn references(&mut self, batch: &Batch<'_>, out: &mut Output) -> Result<()> {
        self.lines.clear();
        for page in batch.pages {
            decimal(&mut self.lines, page.0.into());
            self.lines.push(b'\n');
        }
        out.write_all(&self.lines).writing(out.name())
    }
}
