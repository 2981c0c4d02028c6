//! Requests with the index of the page's next one, for formats of fixed records.
//!
//! Next uses are found by reading the references backwards. For that, they are kept in
//! temporary files in the directory of the output, 14 bytes a reference. Memory holds one
//! number a page.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use byteorder::{ByteOrder, LittleEndian as LE};
use rustc_hash::FxHashSet;

use super::{ExportContext, Exporter};
use crate::canon::MAX_PAGES;
use crate::error::{Error, OutputContext, Result};
use crate::output::Output;
use crate::pipeline::{Batch, Outcome};
use crate::trace::Header;
use crate::units::CanonPage;

/// A reference whose next use is known.
#[derive(Clone, Copy)]
pub(super) struct Request {
    /// Whole seconds of the trace clock since the trace's start.
    pub time_s: u32,
    /// Page number.
    pub page: u32,
    /// Whether a store to the page was made or begun in this stay.
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

/// Bytes of an [`Entry`] in the one temporary file.
const ENTRY_SIZE: usize = 8;
/// Bytes of a reference in the other: how many references later the page's next one
/// is, or 0 for never. No file holds as many references as this can count.
const GAP_SIZE: usize = 6;
/// References that are read back at once: what fits a cache.
const BLOCK: usize = 1 << 13;
/// Bytes that are written at once.
const WRITE_AT_ONCE: usize = 1 << 17;
const NS_PER_S: u64 = 1_000_000_000;
const SCRATCH: &str = "temporary file";

/// A reference before its future is known: its page, its process, whether it wrote, and
/// how many seconds later it came than the one before.
///
/// | bits | |
/// |---|---|
/// | 0 to 29 | page: [`MAX_PAGES`] is less |
/// | 30 to 53 | process |
/// | 54 | write |
/// | 55 to 63 | seconds, and [`NO_STEP`]; or [`JUMP`], if they are too many |
#[derive(Clone, Copy)]
struct Entry(u64);

const PROCESS_AT: u32 = 30;
const WRITE_AT: u32 = 54;
const STEP_AT: u32 = 55;
/// In the place of 0 seconds, for time may go back.
const NO_STEP: i64 = 255;
/// When the reference came stands in memory.
const JUMP: u64 = 511;

const _: () = assert!(MAX_PAGES < 1 << PROCESS_AT);

impl Entry {
    #[inline]
    fn new(page: CanonPage, process: u32, write: bool, step: u64) -> Self {
        Entry(
            u64::from(page.0)
                | u64::from(process & 0xff_ffff) << PROCESS_AT
                | u64::from(write) << WRITE_AT
                | step << STEP_AT,
        )
    }

    /// How much later `seconds` is than `before`, or [`JUMP`].
    #[inline]
    fn step(before: u32, seconds: u32) -> u64 {
        let step = u64::try_from(i64::from(seconds) - i64::from(before) + NO_STEP);
        step.unwrap_or(JUMP).min(JUMP)
    }

    /// The time of one whose step is none to a jump.
    #[inline]
    fn after(self, before: u32) -> Option<u32> {
        let step = self.0 >> STEP_AT;
        // In range, for it was made from two that are.
        (step != JUMP).then(|| (i64::from(before) + step as i64 - NO_STEP) as u32)
    }

    #[inline]
    fn page(self) -> u32 {
        (self.0 & ((1 << PROCESS_AT) - 1)) as u32
    }
}

/// What is known of references, and what is found out, a fixed number of bytes each.
struct Scratch {
    file: File,
    size: usize,
}

impl Scratch {
    fn new(context: &ExportContext<'_>, size: usize) -> Result<Self> {
        let file = crate::unfinished::nameless_in(context.scratch)
            .writing(format!("{SCRATCH} in {}", context.scratch.display()))?;
        Ok(Scratch { file, size })
    }

    fn read<'b>(&self, first: u64, count: usize, buffer: &'b mut [u8]) -> Result<&'b [u8]> {
        let bytes = &mut buffer[..count * self.size];
        self.file
            .read_exact_at(bytes, first * self.size as u64)
            .writing(SCRATCH)?;
        Ok(bytes)
    }

    fn write(&self, first: u64, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all_at(bytes, first * self.size as u64)
            .writing(SCRATCH)
    }
}

/// Exports requests with their next use in a format's layout.
pub(super) struct NextUse {
    layout: Layout,
    known: Scratch,
    gaps: Scratch,
    /// What was not written to `known` yet.
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
    /// When references came that came minutes after the one before, in order.
    jumps: Vec<u32>,
}

impl NextUse {
    pub fn boxed(context: &ExportContext<'_>, layout: Layout) -> Result<Box<dyn Exporter>> {
        Ok(Box::new(NextUse {
            layout,
            known: Scratch::new(context, ENTRY_SIZE)?,
            gaps: Scratch::new(context, GAP_SIZE)?,
            entries: Vec::new(),
            stop: context.stop.clone(),
            start_ns: 0,
            totals: Totals::default(),
            largest: 0,
            processes: FxHashSet::default(),
            last: None,
            second: (0, 0, NS_PER_S),
            jumps: Vec::new(),
        }))
    }

    fn flush(&mut self) -> Result<()> {
        let written = self.totals.requests - (self.entries.len() / ENTRY_SIZE) as u64;
        self.known.write(written, &self.entries)?;
        self.entries.clear();
        Ok(())
    }

    /// All references in blocks: the first of each, and how many.
    fn blocks(&self) -> impl DoubleEndedIterator<Item = (u64, usize)> + use<> {
        let requests = self.totals.requests;
        (0..requests.div_ceil(BLOCK as u64)).map(move |number| {
            let first = number * BLOCK as u64;
            (first, (requests - first).min(BLOCK as u64) as usize)
        })
    }

    fn go_on(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    }

    /// Finds next use, from the last block to the first.
    fn look_ahead(&mut self, entries: &mut [u8], gaps: &mut [u8]) -> Result<()> {
        // Index, from 1; 0 for never.
        let mut next_use = vec![0u64; self.largest + 1];
        for (first, count) in self.blocks().rev() {
            self.go_on()?;
            let entries = self.known.read(first, count, entries)?;
            let gaps = &mut gaps[..count * GAP_SIZE];
            let chunks = entries
                .chunks_exact(ENTRY_SIZE)
                .zip(gaps.chunks_exact_mut(GAP_SIZE));
            for (i, (entry, gap)) in chunks.enumerate().rev() {
                let index = first + 1 + i as u64;
                let next = &mut next_use[Entry(LE::read_u64(entry)).page() as usize];
                LE::write_u48(gap, next.saturating_sub(index));
                *next = index;
            }
            self.gaps.write(first, gaps)?;
        }
        self.totals.pages = next_use.iter().filter(|&&next| next > 0).count() as u64;
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
            let before = self.second.0;
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
            let step = Entry::step(before, seconds);
            if step == JUMP {
                self.jumps.push(seconds);
            }
            LE::write_u64(entry, Entry::new(*page, process, write, step).0);
        }
        if self.entries.len() >= WRITE_AT_ONCE {
            self.flush()?;
        }
        Ok(())
    }

    fn finish(&mut self, _outcome: &Outcome, out: &mut Output) -> Result<()> {
        self.flush()?;
        self.entries = Vec::new();
        self.totals.processes = self.processes.len() as u64;
        let (mut entries, mut gaps) = (vec![0; BLOCK * ENTRY_SIZE], vec![0; BLOCK * GAP_SIZE]);
        self.look_ahead(&mut entries, &mut gaps)?;

        let header = (self.layout.header)(&self.totals);
        out.write_all(&header).writing(out.name())?;
        let size = self.layout.record_size;
        let mut records = vec![0; BLOCK * size];
        let mut jumps = self.jumps.iter().copied();
        let mut time_s = 0;
        for (first, count) in self.blocks() {
            self.go_on()?;
            let entries = self.known.read(first, count, &mut entries)?;
            let gaps = self.gaps.read(first, count, &mut gaps)?;
            let known = entries
                .chunks_exact(ENTRY_SIZE)
                .zip(gaps.chunks_exact(GAP_SIZE));
            let indexed = (first + 1..).zip(known);
            for ((index, (entry, gap)), record) in indexed.zip(records.chunks_exact_mut(size)) {
                let entry = Entry(LE::read_u64(entry));
                let gap = LE::read_u48(gap);
                time_s = entry
                    .after(time_s)
                    .or_else(|| jumps.next())
                    .unwrap_or(time_s);
                let request = Request {
                    time_s,
                    page: entry.page(),
                    write: entry.0 >> WRITE_AT & 1 != 0,
                    process: (entry.0 >> PROCESS_AT) as u32 & 0xff_ffff,
                    next: (gap > 0).then(|| index + gap),
                };
                (self.layout.record)(&request, record);
            }
            out.write_all(&records[..count * size])
                .writing(out.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canon::PageMode;
    use crate::export::{ExportConsumer, ExportOptions, registry};
    use crate::pipeline::{Consumer, Outcome, Unwatched, run};
    use crate::testing::TraceBuilder;
    use crate::trace::{Ref, Trace};
    use crate::units::Prot;

    /// Moves references to other times.
    struct At<'t> {
        seconds: &'t [u32],
        next: usize,
        export: ExportConsumer,
    }

    impl Consumer for At<'_> {
        fn begin(&mut self, trace: &Trace) -> Result<()> {
            self.export.begin(trace)
        }

        fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
            let start_ns = batch.world.header.start_time_ns;
            let moved = |r: &Ref| {
                let seconds = self.seconds[self.next];
                self.next += 1;
                Ref {
                    time_ns: start_ns + u64::from(seconds) * NS_PER_S + 999_999_999,
                    ..*r
                }
            };
            let refs: Vec<Ref> = batch.refs.iter().map(moved).collect();
            self.export.references(&Batch {
                refs: &refs,
                ..*batch
            })
        }

        fn finish(&mut self, trace: &Trace, outcome: &Outcome) -> Result<()> {
            self.export.finish(trace, outcome)
        }
    }

    #[test]
    fn times_may_leap() {
        let mut seconds = vec![0, 0, 1, 5, 260, 5, 261, 5, 4_000_000_000, 3_999_999_999, 0];
        let mut random = 1u64;
        for _ in 0..3 * BLOCK {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let far = random >> 60 == 0;
            seconds.push((random >> 33) as u32 % if far { 1 << 31 } else { 300 });
        }
        let mut builder = TraceBuilder::new(1, 1);
        builder.map_anon(0, 10, 1, 0x1000, 0x9000, Prot(3));
        for i in 0..seconds.len() as u64 {
            builder.touch(0, 10, 1, (i % 8 + 1) * 0x1000);
        }
        let trace = Trace::from_bytes("t", builder.finish()).expect("a trace");
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("out");
        let format = registry().iter().find(|f| f.id == "oracleGeneral");
        let export = ExportConsumer::create(
            format.expect("it is there"),
            &path,
            ExportOptions::default(),
            Arc::default(),
        );
        let mut at = At {
            seconds: &seconds,
            next: 0,
            export: export.expect("room"),
        };
        run(&trace, PageMode::Canonical, &mut Unwatched, &mut [&mut at]).expect("written");
        at.export.commit().expect("room");
        let written = std::fs::read(path).expect("there");
        let times = written.chunks(24).map(|r| LE::read_u32(&r[..4]));
        assert_eq!(times.collect::<Vec<_>>(), seconds);
    }

    #[test]
    fn an_entry_holds_the_largest() {
        let entry = Entry::new(CanonPage(MAX_PAGES), 0xff_ffff, true, 0);
        assert_eq!(entry.page(), MAX_PAGES);
        assert_eq!(entry.0 >> PROCESS_AT & 0xff_ffff, 0xff_ffff);
        assert_eq!(entry.after(1000), Some(745));
        for (before, after) in [
            (0, 255),
            (255, 0),
            (7, 7),
            (1000, 1255),
            (u32::MAX, u32::MAX - 255),
        ] {
            let entry = Entry::new(CanonPage(1), 1, false, Entry::step(before, after));
            assert_eq!(entry.after(before), Some(after));
        }
        for (before, after) in [(0, 256), (256, 0), (0, u32::MAX), (u32::MAX, 0)] {
            assert_eq!(Entry::step(before, after), JUMP);
        }
    }
}
