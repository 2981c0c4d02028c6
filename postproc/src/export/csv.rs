//! `csv`: a line of named columns for each reference, and for each page that is freed.
//!
//! | column | |
//! |---|---|
//! | seq | global sequence number of the admission; empty where a page is freed |
//! | time_ns | time of the admission, or of the freeing, since the trace's start |
//! | page | page number, as in the other formats |
//! | access | read, write, exec; seen, for an access of unknown kind; or free, which is no reference: the page leaves memory, and all other columns except time_ns are empty |
//! | mode | user or kernel |
//! | dirtied | 1 if a store to the page was made or begun in this stay |
//! | again | 1 if the page was referenced in the second segment, if the trace records that |
//! | why | why the stay ended |
//! | stay_ns | length of the stay; empty if it saturated |
//! | tid, cpu, mm | thread, CPU, address space |
//! | address | virtual address of the page, hexadecimal |
//! | pfn | page frame number |
//! | vtime | the thread's virtual time, in ticks, if the trace has it |
//! | offset | bytes from address to the access that began the stay, if the trace has offsets; empty if it is not known |

use std::io::Write;

use super::text::{decimal, first, hexadecimal};
use super::{Exporter, FormatEntry, Make};
use crate::error::{OutputContext, Result};
use crate::output::Output;
use crate::pipeline::Batch;
use crate::trace::{Header, RefFlags};
use crate::units::CanonPage;

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "csv",
    about: "for spreadsheets and pandas: a line of named columns for each reference and each freed page",
    make: Make::File(|_| Ok(Box::new(Csv::default()))),
};

const COLUMNS: &str =
    "seq,time_ns,page,access,mode,dirtied,again,why,stay_ns,tid,cpu,mm,address,pfn";
const VTIME: &str = ",vtime";
const OFFSET: &str = ",offset";

/// What the columns from access to why are at most, commas included.
const WORDS: usize = 40;

#[derive(Default)]
struct Csv {
    lines: Vec<u8>,
    /// By flags, the columns from access to why, and how long they are.
    words: Vec<([u8; WORDS], usize)>,
    start_ns: u64,
    stay_shift: u32,
    vtime: bool,
    offsets: bool,
}

/// The columns that flags make, and their length.
fn words(flags: usize) -> ([u8; WORDS], usize) {
    let flags = RefFlags(flags as u16);
    let text = format!(
        "{},{},{},{},{},",
        flags.access().name(),
        if flags.kernel() { "kernel" } else { "user" },
        u8::from(flags.dirtied()),
        u8::from(flags.again()),
        flags.why().name()
    );
    let mut bytes = [0; WORDS];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    (bytes, text.len())
}

impl Exporter for Csv {
    fn begin(&mut self, header: &Header, out: &mut Output) -> Result<()> {
        self.start_ns = header.start_time_ns;
        self.stay_shift = header.stay_shift;
        self.vtime = header.has_vtime();
        self.words = (0..RefFlags::INDEXES).map(words).collect();
        self.offsets = header.has_offsets();
        let vtime = if self.vtime { VTIME } else { "" };
        let offset = if self.offsets { OFFSET } else { "" };
        writeln!(out, "{COLUMNS}{vtime}{offset}").writing(out.name())
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Output) -> Result<()> {
        let b = &mut self.lines;
        b.clear();
        for (r, page) in batch.refs.iter().zip(batch.pages) {
            let flags = r.flags();
            let number = |b: &mut Vec<u8>, n: u64| {
                decimal(b, n);
                b.push(b',');
            };
            number(b, r.seq);
            number(b, r.time_ns.saturating_sub(self.start_ns));
            number(b, page.0.into());
            let (words, len) = &self.words[flags.index()];
            first(b, words, *len);
            match r.end_ns(self.stay_shift) {
                Some(end) => number(b, end - r.time_ns),
                None => b.push(b','),
            }
            number(b, r.tid().0.into());
            number(b, r.cpu().into());
            number(b, r.mm.0.into());
            b.extend_from_slice(b"0x");
            hexadecimal(b, r.address());
            b.push(b',');
            decimal(b, r.pfn.into());
            if self.vtime {
                b.push(b',');
                decimal(b, r.vtime);
            }
            if self.offsets {
                b.push(b',');
                if let Some(offset) = r.within() {
                    decimal(b, offset);
                }
            }
            b.push(b'\n');
        }
        out.write_all(&self.lines).writing(out.name())
    }

    fn freed(&mut self, pages: &[CanonPage], time_ns: u64, out: &mut Output) -> Result<()> {
        let b = &mut self.lines;
        b.clear();
        for page in pages {
            b.push(b',');
            decimal(b, time_ns.saturating_sub(self.start_ns));
            b.push(b',');
            decimal(b, page.0.into());
            b.extend_from_slice(b",free,,,,,,,,,,");
            for _ in [self.vtime, self.offsets].iter().filter(|has| **has) {
                b.push(b',');
            }
            b.push(b'\n');
        }
        out.write_all(&self.lines).writing(out.name())
    }
}
