//! `oracleGeneral`: libCacheSim's binary format with the time of next use.
//!
//! 24 bytes a request, little-endian, packed, no header:
//!
//! | bytes | field | here |
//! |---|---|---|
//! | 0..4 | u32 time | whole seconds of the trace clock since the trace's start |
//! | 4..12 | u64 object | page number |
//! | 12..16 | u32 size | 1: sizes of caches are then in pages |
//! | 16..24 | i64 next access | index, from 1, of the page's next reference; -1 if there is none |
//!
//! Next use is found by walking the references backwards, for which they lie in
//! a temporary file of 16 bytes each beside the output; memory holds one number
//! a page.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use byteorder::{ByteOrder, LittleEndian as LE};

use super::{ExportContext, Exporter, FormatEntry};
use crate::error::{Error, OutputContext, Result};
use crate::output::Output;
use crate::pipeline::Batch;
use crate::trace::Header;

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "oracleGeneral",
    about: "libCacheSim's binary format with the time of next use",
    make: |context| Ok(Box::new(OracleGeneral::new(context)?)),
};

/// Bytes of a reference in the temporary file: time, page, next use.
const ENTRY_SIZE: usize = 16;
/// Bytes of a reference in the output.
const RECORD_SIZE: usize = 24;
/// References that are read back at once.
const BLOCK: usize = 1 << 16;

const NS_PER_S: u64 = 1_000_000_000;
const SCRATCH: &str = "temporary file";

struct OracleGeneral {
    scratch: BufWriter<File>,
    stop: Arc<AtomicBool>,
    start_ns: u64,
    count: u64,
    largest: usize,
}

impl OracleGeneral {
    fn new(context: &ExportContext<'_>) -> Result<Self> {
        let file = tempfile::tempfile_in(context.scratch)
            .writing(format!("{SCRATCH} in {}", context.scratch.display()))?;
        Ok(OracleGeneral {
            scratch: BufWriter::with_capacity(1 << 20, file),
            stop: context.stop.clone(),
            start_ns: 0,
            count: 0,
            largest: 0,
        })
    }

    fn block(&self, number: u64) -> (u64, usize) {
        let first = number * BLOCK as u64;
        let entries = (self.count - first).min(BLOCK as u64) as usize;
        (first, entries * ENTRY_SIZE)
    }

    fn go_on(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    }
}

impl Exporter for OracleGeneral {
    fn begin(&mut self, header: &Header, _out: &mut Output) -> Result<()> {
        self.start_ns = header.start_time_ns;
        Ok(())
    }

    fn references(&mut self, batch: &Batch<'_>, _out: &mut Output) -> Result<()> {
        for (r, page) in batch.refs.iter().zip(batch.pages) {
            let mut entry = [0; ENTRY_SIZE];
            let seconds = r.time_ns.saturating_sub(self.start_ns) / NS_PER_S;
            LE::write_u32(&mut entry[0..], u32::try_from(seconds).unwrap_or(u32::MAX));
            LE::write_u32(&mut entry[4..], page.0);
            self.scratch.write_all(&entry).writing(SCRATCH)?;
            self.largest = self.largest.max(page.index());
        }
        self.count += batch.refs.len() as u64;
        Ok(())
    }

    fn finish(&mut self, out: &mut Output) -> Result<()> {
        self.scratch.flush().writing(SCRATCH)?;
        let file = self.scratch.get_ref();
        let blocks = self.count.div_ceil(BLOCK as u64);
        let mut buffer = vec![0; BLOCK * ENTRY_SIZE];

        let mut next_use = vec![-1i64; self.largest + 1];
        for number in (0..blocks).rev() {
            self.go_on()?;
            let (first, bytes) = self.block(number);
            let block = &mut buffer[..bytes];
            let at = first * ENTRY_SIZE as u64;
            file.read_exact_at(block, at).writing(SCRATCH)?;
            for (i, entry) in block.chunks_exact_mut(ENTRY_SIZE).enumerate().rev() {
                let next = &mut next_use[LE::read_u32(&entry[4..]) as usize];
                LE::write_i64(&mut entry[8..], *next);
                *next = (first + i as u64 + 1) as i64;
            }
            file.write_all_at(block, at).writing(SCRATCH)?;
        }

        let mut records = vec![0; BLOCK * RECORD_SIZE];
        for number in 0..blocks {
            self.go_on()?;
            let (first, bytes) = self.block(number);
            let block = &mut buffer[..bytes];
            file.read_exact_at(block, first * ENTRY_SIZE as u64)
                .writing(SCRATCH)?;
            let length = bytes / ENTRY_SIZE * RECORD_SIZE;
            let entries = block.chunks_exact(ENTRY_SIZE);
            for (entry, record) in entries.zip(records.chunks_exact_mut(RECORD_SIZE)) {
                record[0..4].copy_from_slice(&entry[0..4]);
                LE::write_u64(&mut record[4..], LE::read_u32(&entry[4..]).into());
                LE::write_u32(&mut record[12..], 1);
                record[16..24].copy_from_slice(&entry[8..16]);
            }
            out.write_all(&records[..length]).writing(out.name())?;
        }
        Ok(())
    }
}
