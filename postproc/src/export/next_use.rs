//! Requests with the index of the page's next one, for formats of fixed records.
//!
//! Next use is found by walking the references backwards, for which they lie in
//! a temporary file of 20 bytes each beside the output; memory holds one number
//! a page.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use byteorder::{ByteOrder, LittleEndian as LE};
use rustc_hash::FxHashSet;

use super::{ExportContext, Exporter};
use crate::error::{Error, OutputContext, Result};
use crate::output::Output;
use crate::pipeline::Batch;
use crate::trace::Header;

/// A reference whose future is known.
#[derive(Clone, Copy)]
pub(super) struct Request {
    /// Whole seconds of the trace clock since the trace's start.
    pub time_s: u32,
    /// Page number.
    pub page: u32,
    /// Whether the page was written during its stay.
    pub write: bool,
    /// The process, in 24 bits.
    pub process: u32,
    /// Index, from 1, of the page's next reference.
    pub next: Option<u64>,
}

/// What is known of all requests once they have been walked through.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub requests: u64,
    pub writes: u64,
    pub pages: u64,
    pub processes: u64,
    pub first_s: u32,
    pub last_s: u32,
}

/// How a format lays its records.
pub(super) struct Layout {
    /// What comes before the records.
    pub header: fn(&Totals) -> Vec<u8>,
    /// Bytes of a record.
    pub record_size: usize,
    /// Fills a record; it holds anything before.
    pub record: fn(&Request, &mut [u8]),
}

/// Bytes of a reference in the temporary file: time, page, process and write,
/// next use.
const ENTRY_SIZE: usize = 20;
/// References that are read back at once: what fits a cache.
const BLOCK: usize = 1 << 13;
/// Bytes that are written at once.
const WRITE_AT_ONCE: usize = 1 << 17;
/// The process fills the other bits.
const WRITE: u32 = 1 << 31;

const NS_PER_S: u64 = 1_000_000_000;
const SCRATCH: &str = "temporary file";

/// Exports requests with their next use in a format's layout.
pub(super) struct NextUse {
    layout: Layout,
    scratch: File,
    /// What was not written to it yet.
    entries: Vec<u8>,
    stop: Arc<AtomicBool>,
    start_ns: u64,
    totals: Totals,
    largest: usize,
    processes: FxHashSet<u32>,
    /// The process of the last reference.
    last: Option<u32>,
    /// The second that the last reference was in: its number, and its first moment
    /// and the next one's since the trace's start.
    second: (u32, u64, u64),
}

impl NextUse {
    pub fn boxed(context: &ExportContext<'_>, layout: Layout) -> Result<Box<dyn Exporter>> {
        let file = tempfile::tempfile_in(context.scratch)
            .writing(format!("{SCRATCH} in {}", context.scratch.display()))?;
        Ok(Box::new(NextUse {
            layout,
            scratch: file,
            entries: Vec::new(),
            stop: context.stop.clone(),
            start_ns: 0,
            totals: Totals::default(),
            largest: 0,
            processes: FxHashSet::default(),
            last: None,
            second: (0, 0, NS_PER_S),
        }))
    }

    fn flush(&mut self) -> Result<()> {
        self.scratch.write_all(&self.entries).writing(SCRATCH)?;
        self.entries.clear();
        Ok(())
    }

    fn block(&self, number: u64) -> (u64, usize) {
        let first = number * BLOCK as u64;
        let entries = (self.totals.requests - first).min(BLOCK as u64) as usize;
        (first, entries * ENTRY_SIZE)
    }

    fn go_on(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    }

    /// Fills in next use, from the last block to the first.
    fn look_ahead(&mut self, buffer: &mut [u8]) -> Result<()> {
        let file = &self.scratch;
        let mut next_use = vec![-1i64; self.largest + 1];
        for number in (0..self.totals.requests.div_ceil(BLOCK as u64)).rev() {
            self.go_on()?;
            let (first, bytes) = self.block(number);
            let block = &mut buffer[..bytes];
            let at = first * ENTRY_SIZE as u64;
            file.read_exact_at(block, at).writing(SCRATCH)?;
            for (i, entry) in block.chunks_exact_mut(ENTRY_SIZE).enumerate().rev() {
                let next = &mut next_use[LE::read_u32(&entry[4..]) as usize];
                LE::write_i64(&mut entry[12..], *next);
                *next = (first + i as u64 + 1) as i64;
            }
            file.write_all_at(block, at).writing(SCRATCH)?;
        }
        self.totals.pages = next_use.iter().filter(|&&next| next >= 0).count() as u64;
        Ok(())
    }
}

impl Exporter for NextUse {
    fn begin(&mut self, header: &Header, _out: &mut Output) -> Result<()> {
        self.start_ns = header.start_time_ns;
        Ok(())
    }

    fn references(&mut self, batch: &Batch<'_>, _out: &mut Output) -> Result<()> {
        let tasks = &batch.world.tasks;
        let before = self.entries.len();
        self.entries
            .resize(before + batch.refs.len() * ENTRY_SIZE, 0);
        let entries = self.entries[before..].chunks_exact_mut(ENTRY_SIZE);
        for ((r, page), entry) in batch.refs.iter().zip(batch.pages).zip(entries) {
            let time_ns = r.time_ns.saturating_sub(self.start_ns);
            if time_ns < self.second.1 || time_ns >= self.second.2 {
                let whole = time_ns / NS_PER_S;
                let first = whole * NS_PER_S;
                self.second = (
                    u32::try_from(whole).unwrap_or(u32::MAX),
                    first,
                    first.saturating_add(NS_PER_S),
                );
            }
            let seconds = self.second.0;
            let tid = r.tid();
            // A process id has as few bits as a thread id, 22.
            let process = tasks.find(tid).map_or(tid, |p| tasks.process(p).tgid).0;
            let write = r.flags().writes();
            if self.totals.requests == 0 {
                self.totals.first_s = seconds;
            }
            self.totals.last_s = seconds;
            self.totals.requests += 1;
            self.totals.writes += u64::from(write);
            if self.last != Some(process) {
                self.last = Some(process);
                self.processes.insert(process);
            }
            self.largest = self.largest.max(page.index());
            LE::write_u32(&mut entry[0..], seconds);
            LE::write_u32(&mut entry[4..], page.0);
            let who = process & 0xff_ffff;
            LE::write_u32(&mut entry[8..], if write { who | WRITE } else { who });
        }
        if self.entries.len() >= WRITE_AT_ONCE {
            self.flush()?;
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Output) -> Result<()> {
        self.flush()?;
        self.entries = Vec::new();
        self.totals.processes = self.processes.len() as u64;
        let mut buffer = vec![0; BLOCK * ENTRY_SIZE];
        self.look_ahead(&mut buffer)?;

        let header = (self.layout.header)(&self.totals);
        out.write_all(&header).writing(out.name())?;
        let file = &self.scratch;
        let size = self.layout.record_size;
        let mut records = vec![0; BLOCK * size];
        for number in 0..self.totals.requests.div_ceil(BLOCK as u64) {
            self.go_on()?;
            let (first, bytes) = self.block(number);
            let block = &mut buffer[..bytes];
            file.read_exact_at(block, first * ENTRY_SIZE as u64)
                .writing(SCRATCH)?;
            let entries = block.chunks_exact(ENTRY_SIZE);
            for (entry, record) in entries.zip(records.chunks_exact_mut(size)) {
                let who = LE::read_u32(&entry[8..]);
                let request = Request {
                    time_s: LE::read_u32(&entry[0..]),
                    page: LE::read_u32(&entry[4..]),
                    write: who & WRITE != 0,
                    process: who & !WRITE,
                    next: u64::try_from(LE::read_i64(&entry[12..])).ok(),
                };
                (self.layout.record)(&request, record);
            }
            out.write_all(&records[..bytes / ENTRY_SIZE * size])
                .writing(out.name())?;
        }
        Ok(())
    }
}
