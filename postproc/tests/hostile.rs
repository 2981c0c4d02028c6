//! Traces that lie, with checksums that fit: no panic, no second, no 100 MiB.
//!
//! Small traces are changed at random, their checksums are mended, and every part of the
//! library that a command is made of reads them. What once failed is kept in `hostile/`.
//!
//! `HOSTILE=1000000 cargo test --release -p postproc --test hostile` goes on for longer;
//! `HOSTILE_FROM` is where it begins. A trace that fails is left in the target directory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postproc::canon::PageMode;
use postproc::check::{CheckOptions, Checker};
use postproc::damon::Summaries;
use postproc::error::{Error, Result};
use postproc::export::{self, ExportConsumer, ExportOptions};
use postproc::filter::{Clause, EventFilter, Filter};
use postproc::pipeline::{self, Batch, Consumer, Freeing, Outcome, Unwatched, World};
use postproc::process::Tasks;
use postproc::reduce::{self, Reduction};
use postproc::report::comparison::mappings;
use postproc::report::{self, Contents, Identity, Report, Statistics, Summary, Views};
use postproc::sim::{
    self, Access, Bounds, Certifier, LruCurve, Need, OptCurve, SimulationConsumer, push_accesses,
    push_freed,
};
use postproc::space::Space;
use postproc::streams::Selected;
use postproc::tee::Tee;
use postproc::testing::{TraceBuilder, mend_checksums, packets_of};
use postproc::trace::wire::{HEAD_SIZE, HEADER_SIZE};
use postproc::trace::{
    By, Fields, FileId, Form, MapKind, Merge, Step, Trace, Why, join, plan, repack, split,
};
use postproc::units::{Access as Kind, CanonPage, Prot};
use postproc::virtual_time::InVirtualTime;
use rust_mm_trace::filter::Subject;
use rust_mm_trace::uapi;

/// What is allocated now, and the most since that was set.
static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Counts, and gives nobody so much that the machine would suffer.
struct Counting;

const FAR_TOO_MUCH: usize = 2 << 30;

// SAFETY: all is left to the system's allocator, which keeps the contract; a null pointer
// means that there is no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        if now > FAR_TOO_MUCH {
            return std::ptr::null_mut();
        }
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Memory and processor time that a trace of a megabyte may take.
const MEMORY: usize = 100 << 20;
const TICKS: u64 = if cfg!(debug_assertions) { 1500 } else { 100 };

/// Hundredths of a second of the processor that this process has had.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = behind.split_whitespace().collect();
    let field = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok());
    field(11).unwrap_or(0) + field(12).unwrap_or(0)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n.max(1)
    }
}

/// A program that does a bit of everything.
fn everything(mut b: TraceBuilder) -> TraceBuilder {
    b.snapshot(true);
    b.program();
    b.snapshot(false);
    b.cgroup(0, (10, 10), "/user.slice");
    let file = |ino| FileId {
        dev: 8 << 20,
        ino,
        generation: 0,
    };
    b.map_file(0, 10, 1, 0x40_0000, 0x48_0000, Prot(5), false, 7, 0);
    b.map_file(1, 10, 1, 0x50_0000, 0x58_0000, Prot(3), true, 8, 4096);
    let (shm, special) = (uapi::VMTRACE_MAP_SHMEM, uapi::VMTRACE_MAP_SPECIAL);
    let range = 0x60_0000..0x60_8000;
    b.map(0, 10, 1, range, Prot(3), shm, 1, file(9), 0, "/dev/shm/x");
    let range = 0x7000_0000..0x7000_2000;
    b.map(0, 10, 1, range, Prot(5), special, 0, file(0), 0, "[vdso]");
    for i in 0..40u64 {
        let cpu = (i / 3 % 2) as u32;
        b.touch(cpu, 10, 1, 0x1000 + i % 8 * 0x1000);
        b.touch_as(cpu, 10, 1, 0x40_0000 + i % 5 * 0x1000, Kind::Exec);
        b.touch_as(cpu, 10, 1, 0x50_0000 + i % 7 * 0x1000, Kind::Write);
    }
    b.fork(0, 10, 1, 20, 2);
    for i in 0..12u64 {
        b.touch(1, 20, 2, 0x1000 + i % 8 * 0x1000);
        b.cow(1, 20, 2, 0x1000 + i % 8 * 0x1000);
        b.touch_as(1, 20, 2, 0x1000 + i % 8 * 0x1000, Kind::Write);
    }
    b.exec(1, 20, 2, 3, "other");
    b.map_anon(1, 20, 3, 0x10_0000, 0x20_0000, Prot(3));
    for i in 0..30u64 {
        b.touch(0, 20, 3, 0x10_0000 + i * 0x2000);
        if i == 10 {
            b.renew(0, 20, true);
            b.renew(0, 20, false);
            b.abort();
        }
    }
    b.advise(1, 20, 3, 0x10_0000, 0x11_0000, 4);
    b.relocate(0, 20, 3, 0x12_0000..0x13_0000, 0x40_0000..0x41_0000, false);
    b.protect(0, 20, 3, 0x14_0000, 0x15_0000, Prot(1));
    b.file((0, 10, 1), uapi::VMTRACE_EV_OPEN, 8, 0, "/data");
    b.io((0, 10, 1), uapi::VMTRACE_EV_READ, 8, 100, 9000);
    b.io((0, 10, 1), uapi::VMTRACE_EV_WRITE, 8, 0, 5000);
    b.gup(0, 10, 1, 0x2000, true);
    for i in 0..7 {
        b.close(1, 0x50_0000 + i * 0x1000, Why::Truncated);
    }
    b.truncate(0, 10, 8, 4096);
    b.file((0, 10, 1), uapi::VMTRACE_EV_CLOSE, 8, 0, "/data");
    for i in 0..20u64 {
        b.touch(0, 10, 1, 0x50_0000 + i % 7 * 0x1000);
        b.touch(1, 20, 3, 0x40_0000 + i % 9 * 0x1000);
    }
    b.unmap(0, 10, 1, 0x40_0000, 0x48_0000);
    b.exit(1, 20, 3);
    b.mm_end(1, 20, 3);
    b
}

/// Where a packet begins, and where it ends.
type Packet = (usize, usize);

/// The traces of the corpus that are good, before those that once failed.
const GOOD: usize = 40;

/// A piece of a trace, neither the first nor the last one.
fn middle_piece(bytes: &[u8]) -> Option<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let trace = Trace::from_bytes("memory", bytes.to_vec()).ok()?;
    let by = By::Bytes((bytes.len() - HEADER_SIZE) as u64 / 3);
    let plan = plan(&trace, by, &mut Unwatched).ok()?;
    let pieces = directory.path().join("pieces");
    let made = split(&trace, &plan, &pieces, &mut Unwatched).ok()?;
    let middle = &made.pieces[made.pieces.len() / 2];
    std::fs::read(pieces.join(&middle.file)).ok()
}

/// What mutations begin with.
fn corpus() -> Vec<Vec<u8>> {
    let small = |n| {
        let mut b = TraceBuilder::new(2, n);
        b.header_mut().buffer_size = 1024;
        b
    };
    let mut virtually = small(8);
    virtually.virtual_time(2_000_000);
    let mut windows = small(8);
    for mm in 1..4 {
        windows.begin_window(40);
        windows.task(0, 10, 10, mm, "program");
        windows.map_anon(0, 10, mm, 0x1000, 0x20_0000, Prot(3));
        for i in 0..30u64 {
            windows.touch((i & 1) as u32, 10, mm, 0x1000 + i % 13 * 0x1000);
        }
        windows.end_window(|_| {});
    }
    let mut large = small(8);
    large.header_mut().page_shift = 16;
    large.task(0, 10, 10, 1, "program");
    large.map_anon(0, 10, 1, 0x10_0000, 0x80_0000, Prot(3));
    for i in 0..60u64 {
        large.touch((i & 1) as u32, 10, 1, 0x10_0000 + i % 23 * 0x1_0000);
    }
    let mut filtered = small(8);
    filtered.filtered();
    filtered.filter(0, "kind == write || addr in 0x100000..0x200000", |a| {
        a.access == Kind::Write || (0x10_0000..0x20_0000).contains(&a.address)
    });
    // Two windows of three sets, of which one ends early and one rests.
    let mut sets = small(8);
    sets.several_sets();
    for window in 0..2 {
        sets.begin_window(100);
        for mm in 3 * window + 1..3 * window + 4 {
            sets.set(0, 10 * mm, mm, mm);
            sets.task(0, 10 * mm, 10 * mm, mm, "program");
            sets.map_anon(0, 10 * mm, mm, 0x1000, 0x20_0000, Prot(3));
            for i in 0..30u64 {
                sets.touch((i & 1) as u32, 10 * mm, mm, 0x1000 + i % 13 * 0x1000);
            }
            if mm % 3 == 0 {
                sets.mm_end(0, 10 * mm, mm);
            }
        }
        sets.touch(0, 30 * window + 10, 3 * window + 1, 0x10_0000);
        sets.end_window(|_| {});
    }
    let mut all = vec![
        TraceBuilder::sample().finish(),
        TraceBuilder::sample_of_many_packets().finish(),
        everything(small(4)).finish(),
        everything(small(64)).finish(),
        large.finish(),
        everything(virtually).finish(),
        windows.finish(),
        sets.finish(),
        TraceBuilder::sample_of_filtered().finish(),
        everything(filtered).finish(),
    ];
    // The same packed, so that the columns and frames are changed too.
    for form in [Form::Packed(None), Form::Packed(Some(1))] {
        for i in 0..10 {
            let packed = Trace::from_bytes("memory", all[i].clone()).and_then(|trace| {
                let mut out = Vec::new();
                repack(&trace, form, &mut out, "memory", &mut Unwatched).map(|_| out)
            });
            all.extend(packed);
        }
    }
    for i in 0..10 {
        all.extend(middle_piece(&all[i]));
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for directory in ["hostile", "fixtures/v1"] {
        let Ok(entries) = std::fs::read_dir(here.join(directory)) else {
            continue;
        };
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let Ok(bytes) = std::fs::read(&path) else {
                continue;
            };
            let bytes = zstd::decode_all(&bytes[..]).unwrap_or(bytes);
            // A longer one would be read a few times only.
            if bytes.starts_with(&uapi::VMTRACE_MAGIC.to_le_bytes()) && bytes.len() < 1 << 20 {
                all.push(bytes);
            }
        }
    }
    all
}

/// A number that code may be wrong about.
fn interesting(random: &mut Random, old: u64) -> u64 {
    let bit = 1u64 << random.below(64);
    match random.below(12) {
        0 => 0,
        1 => u64::MAX,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 => bit,
        5 => bit.wrapping_sub(1),
        6 => old ^ bit,
        7 => u64::MAX >> 1,
        8 => old.wrapping_shl(random.below(64) as u32),
        9 => 4096 << random.below(40),
        10 => old & 0xffff_ffff | bit,
        _ => random.next(),
    }
}

/// Puts a number of 1, 2, 4 or 8 bytes somewhere in a part of the trace.
fn poke(bytes: &mut [u8], (from, to): Packet, random: &mut Random) {
    let size = 1usize << random.below(4);
    let places = (to.min(bytes.len()).saturating_sub(from) / size).max(1);
    let at = from + random.below(places) * size;
    let Some(field) = bytes.get_mut(at..at + size) else {
        return;
    };
    let mut raw = [0; 8];
    raw[..size].copy_from_slice(field);
    let new = interesting(random, u64::from_le_bytes(raw));
    field.copy_from_slice(&new.to_le_bytes()[..size]);
}

fn mutate(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = corpus[random.below(corpus.len())].clone();
    for _ in 0..1 + random.below(5) {
        let mut packets = packets_of(&bytes);
        packets.retain(|packet| packet.1 <= bytes.len());
        if packets.is_empty() {
            break;
        }
        let (start, end) = packets[random.below(packets.len())];
        match random.below(20) {
            // The header's fields, and those at its end.
            0 | 1 => poke(&mut bytes, (16, 112), random),
            2 => poke(&mut bytes, (HEADER_SIZE - 56, HEADER_SIZE - 4), random),
            // A packet's head, whose magic and identity would cost all of it.
            3..=5 => poke(&mut bytes, (start + 24, start + HEAD_SIZE), random),
            // The END packet, or what comes last.
            6 | 7 => {
                let last = packets.last().map_or(0, |packet| packet.1);
                poke(&mut bytes, (last, last + HEAD_SIZE + 320), random);
            }
            8 => {
                let twice = bytes[start..end].to_vec();
                let (at, _) = packets[random.below(packets.len())];
                bytes.splice(at..at, twice);
            }
            9 => drop(bytes.drain(start..end)),
            10 => {
                let (at, _) = packets[random.below(packets.len())];
                let moved: Vec<u8> = bytes.drain(start..end).collect();
                let at = at.min(bytes.len());
                bytes.splice(at..at, moved);
            }
            _ => poke(&mut bytes, (start + HEAD_SIZE, end), random),
        }
    }
    mend(&mut bytes);
    bytes
}

/// Makes all checksums hold, that of the header too.
fn mend(bytes: &mut [u8]) {
    let at = offset_of!(uapi::vmtrace_header, crc);
    let crc = crc32c::crc32c(&bytes[..at]);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    mend_checksums(bytes);
}

/// Takes all fields of events.
struct Text(String);

impl Fields for Text {
    fn u64(&mut self, name: &str, value: u64) {
        let _ = write!(self.0, " {name}={value}");
    }
    fn hex(&mut self, name: &str, value: u64) {
        let _ = write!(self.0, " {name}={value:#x}");
    }
    fn u32(&mut self, name: &str, value: u32) {
        self.u64(name, value.into());
    }
    fn i32(&mut self, name: &str, value: i32) {
        let _ = write!(self.0, " {name}={value}");
    }
    fn u8(&mut self, name: &str, value: u8) {
        self.u64(name, value.into());
    }
    fn kind(&mut self, name: &str, value: MapKind) {
        let _ = write!(self.0, " {name}={}", value.name());
    }
    fn text(&mut self, name: &str, value: &[u8]) {
        let _ = write!(self.0, " {name}={}", String::from_utf8_lossy(value));
    }
}

fn pass(trace: &Trace, mode: PageMode, consumer: &mut dyn Consumer) -> Result<Outcome> {
    let mut virtually;
    let consumer: &mut dyn Consumer = match trace.header().has_vtime() {
        true => {
            virtually = InVirtualTime::new(consumer);
            &mut virtually
        }
        false => consumer,
    };
    pipeline::run_with(trace, mode, FREED, &mut Unwatched, &mut [consumer])
}

const FREED: Freeing = Freeing::Freed;

fn check(trace: &Trace, _: &Path) -> Result<()> {
    let options = CheckOptions {
        allow_loss: true,
        examples: 5,
    };
    for mut checker in [Checker::with_pages(options), Checker::integrity(options)] {
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut checker];
        pipeline::run(trace, PageMode::Canonical, &mut Unwatched, consumers)?;
        serde_json::to_string(&checker.report()).unwrap();
    }
    Ok(())
}

/// What `info`, `events` and `maps` look at.
fn look(trace: &Trace, _: &Path) -> Result<()> {
    let index = trace.index();
    let (mut space, mut tasks) = (Space::default(), Tasks::default());
    let mut text = Text(String::new());
    let mut merge = Merge::new(trace);
    let mut refs = Vec::new();
    loop {
        refs.clear();
        match merge.fill(&mut refs, 100)? {
            Step::Full => {}
            Step::Event(event) => {
                text.0.clear();
                event.body.fields(&mut text);
                space.apply(&event);
                tasks.apply(&event);
            }
            Step::End => break,
        }
    }
    for process in tasks.living() {
        let maps = space.get(process.mm).map(|s| s.mappings().count());
        let _ = write!(text.0, "{maps:?} {:?}", space.state(process.mm));
    }
    for damage in index
        .damage
        .iter()
        .chain(&merge.take_damage().collect::<Vec<_>>())
    {
        let _ = write!(text.0, "{damage}");
    }
    let status = index.end.as_ref().map(|end| &end.status);
    serde_json::to_string(&(trace.header(), status)).unwrap();
    let _ = (index.time_span(), index.packets(), trace.windows());
    Ok(())
}

fn windows(trace: &Trace, directory: &Path) -> Result<()> {
    for number in trace.window_numbers().into_iter().take(5) {
        let window = trace.only_window(number)?;
        check(&window, directory)?;
        look(&window, directory)?;
    }
    Ok(())
}

fn simulate(trace: &Trace, _: &Path) -> Result<()> {
    for mode in [PageMode::Canonical, PageMode::Virtual] {
        let mut simulation = SimulationConsumer::default();
        let entries = sim::registry().iter();
        simulation.sizes = entries
            .flat_map(|entry| [1, 16].map(|size| (entry.simulate)(size)))
            .collect();
        simulation.curve = Some(Box::new(LruCurve::default()));
        pass(trace, mode, &mut simulation)?;
        simulation.sizes.clear();
        simulation.curve = Some(Box::new(OptCurve::default()));
        pass(trace, mode, &mut simulation)?;
    }
    Ok(())
}

struct Reducing {
    reduction: Reduction,
    accesses: Vec<Access>,
}

impl Consumer for Reducing {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.accesses.clear();
        push_accesses(batch, &mut self.accesses);
        self.reduction.accesses(&self.accesses)
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> Result<()> {
        self.accesses.clear();
        push_freed(pages, &mut self.accesses);
        self.reduction.accesses(&self.accesses)
    }
}

fn reduce(trace: &Trace, directory: &Path) -> Result<()> {
    for method in reduce::registry() {
        let path = directory.join("reduced");
        let n = trace.header().evms_size;
        let mut reducing = Reducing {
            reduction: Reduction::create(method, 8, n, &path)?,
            accesses: Vec::new(),
        };
        pass(trace, PageMode::Canonical, &mut reducing)?;
        reducing.reduction.commit()?;
        std::fs::remove_file(path).unwrap();
    }
    Ok(())
}

fn exports(trace: &Trace, directory: &Path) -> Result<()> {
    for format in export::registry() {
        let options = ExportOptions {
            io: true,
            ..ExportOptions::default()
        };
        let path = directory.join("export");
        let mut export = ExportConsumer::create(format, &path, options, Default::default())?;
        let done = pass(trace, PageMode::Canonical, &mut export);
        match done.and_then(|_| export.commit()) {
            // What a format cannot hold, or what there is too much of.
            Ok(_) | Err(Error::TimeGoesBack { .. } | Error::NoFrame { .. }) => {}
            Err(error) => return Err(error),
        }
        let _ = std::fs::remove_dir_all(&path);
        let _ = std::fs::remove_file(&path);
    }
    Ok(())
}

fn report(trace: &Trace, _: &Path) -> Result<()> {
    let mut checker = Checker::new(CheckOptions::default());
    let mut statistics = Statistics::default();
    let mut certifier = Certifier::default();
    let mut views = match trace.header().has_vtime() {
        true => Views::in_virtual_time(trace),
        false => Views::new(trace),
    };
    let outcome = {
        let mut virtually;
        let viewer: &mut dyn Consumer = match trace.header().has_vtime() {
            true => {
                virtually = InVirtualTime::new(&mut views);
                &mut virtually
            }
            false => &mut views,
        };
        let consumers: &mut [&mut dyn Consumer] =
            &mut [&mut checker, &mut statistics, &mut certifier, viewer];
        pipeline::run_with(trace, PageMode::Canonical, FREED, &mut Unwatched, consumers)?
    };
    let curve = views.reuse.curve();
    let certificate = certifier.certificate();
    let certificate = certificate.as_ref();
    let check = checker.report();
    let summary = Summary::new(
        trace,
        &outcome,
        &statistics,
        check,
        &curve,
        certificate,
        FREED,
    );
    report::text(&summary);
    Report::new(summary, &views, &curve, &[]).html()?;
    Ok(())
}

/// What `advise` and `compare` find in a run.
fn compared(trace: &Trace, _: &Path) -> Result<()> {
    for identity in [Identity::OfFiles, Identity::OfTrace] {
        let mut certifier = Certifier::default();
        let mut contents = Contents::new(identity);
        let mut tee = Tee::new(vec![&mut contents]);
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut certifier, &mut tee];
        pipeline::run_with(trace, PageMode::Canonical, FREED, &mut Unwatched, consumers)?;
        let curve = certifier.lru();
        let certificate = certifier.certificate();
        for limit in [curve.cold, curve.references] {
            let need = Need::lru(&curve, certificate.as_ref(), limit);
            assert!(need.pages <= curve.footprint());
            let ordered = |b: Bounds| b.low <= need.pages && need.pages <= b.high;
            assert!(need.bounds.is_none_or(ordered));
        }
        let rows = mappings(&[&contents, &contents]);
        for row in &rows {
            if let Some(changed) = &row.runs[1].changed {
                assert_eq!((changed.new, changed.gone), (0, 0));
                assert_eq!(contents.pages_only_here(&contents, &row.name), []);
            }
        }
    }
    Ok(())
}

fn damon(trace: &Trace, _: &Path) -> Result<()> {
    let (interval, sampling) = (100_000_000, 5_000_000);
    let mut summaries = Summaries::new(interval, sampling);
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut summaries];
    pipeline::run(trace, PageMode::Unnamed, &mut Unwatched, consumers)?;
    serde_json::to_string(&summaries.targets()).unwrap();
    Ok(())
}

/// Whatever a trace is, its pieces are the trace again.
fn splits(trace: &Trace, directory: &Path) -> Result<()> {
    let directory = tempfile::tempdir_in(directory).unwrap();
    let bytes = trace.index().end.as_ref();
    let bytes = bytes.map_or(trace.file_bytes(), |end| end.end);
    let by = match trace.header().windows {
        Some(_) => By::Windows(1),
        None => By::Bytes((bytes / 4).max(500)),
    };
    let pieces = directory.path().join("pieces");
    let made = plan(trace, by, &mut Unwatched)
        .and_then(|plan| split(trace, &plan, &pieces, &mut Unwatched));
    match made {
        Err(Error::IsPiece { .. } | Error::ManyPieces { .. }) => return Ok(()),
        made => made?,
    };
    let mut out = std::io::sink();
    let joined = join(
        std::slice::from_ref(&pieces),
        &mut out,
        "nowhere",
        &mut Unwatched,
    )?;
    assert_eq!(joined.bytes, bytes);
    Trace::open(&pieces).map(|_| ())
}

/// Takes what it is given.
struct Taker(bool);

impl Consumer for Taker {
    fn wants_continuations(&self) -> bool {
        self.0
    }
}

/// Expressions about everything that a reference has, and about what an event has.
const OF_REFERENCES: [&str; 2] = [
    r#"!(comm ~ "*a*" && cgroup !~ "/user*") || tree in (1, 10, 20..30) || tid > 10 && pid != 20"#,
    r#"(mapping ~ "*/*.so" || mapping_kind in (anon, none)) && addr in 0x1000..0x600000 && page < 0x7000
       && kind != exec && mode == user && set < 5 && cpu == 0 && window <= 1 && time < 1s || seq > 100"#,
];
const OF_EVENTS: &str = r#"(comm ~ "*" && tree != 20 || cgroup == "/a") && set in (0, 1) && cpu < 2
    && time < 5s && window == 0 || event in (map, fork) || class != always"#;

/// What filters follow, remember and give.
fn filters(trace: &Trace, _: &Path) -> Result<()> {
    for text in OF_REFERENCES {
        let clause = Clause::parse(text, Subject::References).unwrap();
        for renewals in [false, true] {
            let mut taker = Taker(renewals);
            let filter = Some(Filter::new(&clause));
            let mut selected = Selected::filtered(None, filter, &mut taker);
            let outcome = pass(trace, PageMode::Canonical, &mut selected)?;
            let filtered = selected.kept().unwrap();
            let all = filtered.kept + filtered.left_out;
            assert_eq!(all, outcome.world.references);
            assert_eq!(selected.references(), filtered.kept);
        }
    }
    let clause = Clause::parse(OF_EVENTS, Subject::Events).unwrap();
    let mut filter = EventFilter::new(&clause, trace);
    let mut merge = Merge::new(trace);
    let mut refs = Vec::new();
    loop {
        refs.clear();
        match merge.fill(&mut refs, 100)? {
            Step::Full => {}
            Step::Event(event) => {
                filter.follow(&event);
                filter.judge(&event);
            }
            Step::End => return Ok(()),
        }
    }
}

type Part = fn(&Trace, &Path) -> Result<()>;

const PARTS: [(&str, Part); 11] = [
    ("check", check),
    ("info, events and maps", look),
    ("windows", windows),
    ("simulate", simulate),
    ("reduce", reduce),
    ("export", exports),
    ("report", report),
    ("advise and compare", compared),
    ("damon", damon),
    ("split", splits),
    ("filters", filters),
];

/// Memory and time are those of the process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Reads a trace by some parts of the library; what is wrong with that, if anything.
fn trouble(bytes: &[u8], directory: &Path, wanted: impl Fn(usize) -> bool) -> Option<String> {
    for (_, (name, part)) in PARTS.iter().enumerate().filter(|(i, _)| wanted(*i)) {
        let (before, begun) = (NOW.load(Relaxed), ticks());
        PEAK.store(before, Relaxed);
        let done = catch_unwind(AssertUnwindSafe(|| {
            let trace = Trace::from_bytes("hostile", bytes.to_vec())?;
            part(&trace, directory)
        }));
        let took = ticks() - begun;
        if number("HOSTILE_KEEP", 0) != 0 {
            eprintln!("{name}: {took} ticks");
        }
        let memory = PEAK.load(Relaxed).saturating_sub(before);
        let wrong = match done {
            Err(_) => "panics".into(),
            // The trace is refused.
            Ok(Err(
                Error::HeaderField { .. }
                | Error::Features { .. }
                | Error::Version { .. }
                | Error::Foreign { .. }
                | Error::ShortHeader { .. }
                | Error::Empty { .. }
                | Error::PartOfWindow { .. }
                | Error::TimeGoesBack { .. }
                | Error::NoFrame { .. },
            ))
            | Ok(Ok(()))
                if took <= TICKS && memory <= MEMORY =>
            {
                continue;
            }
            Ok(Err(error)) => format!("gives {error}"),
            Ok(Ok(())) => format!("takes {took} ticks and {} KiB", memory >> 10),
        };
        return Some(format!("{name} {wrong}"));
    }
    None
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn lies_cost_no_panic_and_no_memory() {
    static ROUND: AtomicU64 = AtomicU64::new(0);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let corpus = corpus();
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // What hangs is not heard of otherwise.
    std::thread::spawn(|| {
        let mut last = (u64::MAX, 0);
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let (round, now) = (ROUND.load(Relaxed), ticks());
            if round != last.0 {
                last = (round, now);
            } else if now - last.1 > 10 * TICKS {
                // The test's own output would be lost.
                let _ = writeln!(std::io::stderr(), "round {round} does not end");
                std::process::abort();
            }
        }
    });
    for (i, bytes) in corpus.iter().enumerate() {
        ROUND.store(u64::MAX / 2 + i as u64, Relaxed);
        if let Some(wrong) = trouble(bytes, directory.path(), |_| true) {
            panic!("trace {i} of the corpus: {wrong}");
        }
    }
    let from = number("HOSTILE_FROM", 0);
    let rounds = number("HOSTILE", if cfg!(debug_assertions) { 300 } else { 3000 });
    let mut failed = Vec::new();
    for round in from..from + rounds {
        ROUND.store(round, Relaxed);
        let mut random = Random((round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let bytes = mutate(&corpus, &mut random);
        // All parts of each would take too long: two of them.
        let (one, other) = (random.below(PARTS.len()), random.below(PARTS.len()));
        let path = kept.join("hostile-now.vmtrace");
        if number("HOSTILE_KEEP", 0) != 0 {
            std::fs::write(&path, &bytes).unwrap();
        }
        if let Some(wrong) = trouble(&bytes, directory.path(), |i| i == one || i == other) {
            let path = kept.join(format!("hostile-{round}.vmtrace"));
            std::fs::write(&path, &bytes).unwrap();
            failed.push(format!("{wrong}: {}", path.display()));
            if failed.len() > 20 {
                break;
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// What a kernel wrote is in the corpus, too.
#[test]
fn the_corpus_has_the_fixtures() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1");
    let traces = fixtures.read_dir().unwrap().flatten();
    let traces: Vec<_> = traces
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "zst"))
        .collect();
    assert!(traces.len() >= 13, "{traces:?}");
    let corpus = corpus();
    for path in traces {
        let bytes = zstd::decode_all(&std::fs::read(&path).unwrap()[..]).unwrap();
        assert!(corpus.contains(&bytes), "{}", path.display());
    }
}

/// The traces of the corpus are good before they are changed, those that once failed apart.
#[test]
fn the_corpus_is_good() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (i, bytes) in corpus().iter().take(GOOD).enumerate() {
        let trace = Trace::from_bytes("corpus", bytes.clone()).unwrap();
        let mut checker = Checker::new(CheckOptions::default());
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut checker];
        pipeline::run(&trace, PageMode::Canonical, &mut Unwatched, consumers).unwrap();
        let report = checker.report();
        assert!(report.good, "trace {i}: {report:#?}");
    }
}

/// Heads that lie in one another, so that each byte is in thousands of packets: checksums of
/// all would take hours for a trace that is large.
fn overlapping(bytes: usize) -> Vec<u8> {
    let mut trace = TraceBuilder::sample().finish();
    trace.truncate(HEADER_SIZE);
    // Each begins in the middle of the one before, at a field that is a number there; the
    // length of a content is then four bytes of the identity, which the header gives.
    let id = offset_of!(uapi::vmtrace_header, uuid);
    trace[id..id + 16].fill(1);
    trace[id + 12..id + 16].copy_from_slice(&0xf_0000u32.to_le_bytes());
    let size = offset_of!(uapi::vmtrace_header, buffer_size);
    trace[size..size + 4].copy_from_slice(&(1u32 << 20).to_le_bytes());
    let mut head = uapi::VMTRACE_PACKET_MAGIC.to_le_bytes().to_vec();
    head.extend_from_slice(&trace[id..id + 16]);
    head.extend_from_slice(&uapi::VMTRACE_STREAM_WINDOW.to_le_bytes());
    head.resize(40, 0);
    while trace.len() < bytes {
        trace.extend_from_slice(&head);
    }
    mend(&mut trace);
    trace
}

/// An EVMS as large as can be, and packets that claim to hold as many references.
fn counts_that_are_not_there() -> Vec<u8> {
    let mut b = TraceBuilder::new(2, uapi::VMTRACE_EVMS_MAX);
    b.program();
    for i in 0..16 {
        b.touch(i as u32 & 1, 10, 1, 0x1000 + (i % 8) * 0x1000);
    }
    let mut bytes = b.finish();
    for (start, _) in packets_of(&bytes) {
        let records = start + offset_of!(uapi::vmtrace_packet, records);
        bytes[records..records + 4].copy_from_slice(&0x3f_ffffu32.to_le_bytes());
    }
    mend(&mut bytes);
    bytes
}

/// A process of a long name, and all its children.
fn names() -> Vec<u8> {
    let mut b = TraceBuilder::new(1, 4);
    b.program();
    let long = "x".repeat(60_000);
    b.cgroup(0, (10, 10), &long);
    b.cgroup(0, (10, 10), &long[..200]);
    for child in 0..6_000 {
        b.fork(0, 10, 1, 100 + child, 2 + child);
    }
    b.finish()
}

/// What a child does with the memory that it gets from its parent.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Child {
    Nothing,
    Ends,
    Touches,
    Unmaps,
    UnmapsAll,
    Protects,
    /// All but the ends of the first and of the last.
    ProtectsAll,
    /// Another half than the child before.
    ProtectsHalf,
    MovesAll,
    MovesHalf,
    /// Moves all, and unmaps half of that.
    MovesAndUnmaps,
    AdvisesAll,
}

/// What a parent has much of.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Much {
    Mappings,
    /// Mapped before the trace.
    Files,
    /// Far from each other.
    Pages,
}

/// A process of much memory; where that begins, how far it is from one to the next, and how
/// many there are.
fn parent(much: Much) -> (TraceBuilder, u64, u64, u64) {
    let mut b = TraceBuilder::new(1, 4);
    b.task(0, 10, 10, 1, "program");
    let (base, step) = (0x1000_0000, 0x10_0000);
    let many = if much == Much::Pages { 10_000 } else { 3000 };
    match much {
        Much::Pages => b.map_anon(0, 10, 1, base, base + many * step, Prot(3)),
        Much::Files => b.snapshot(true),
        Much::Mappings => {}
    }
    for (i, at) in (0..many).map(|i| (i, base + i * step)) {
        match much {
            Much::Mappings => b.map_anon(0, 10, 1, at, at + 0x2000, Prot(3)),
            Much::Files => b.map_file(0, 10, 1, at, at + 0x2000, Prot(3), false, i + 1, 0),
            Much::Pages => b.touch(0, 10, 1, at),
        }
    }
    b.snapshot(false);
    (b, base, step, many)
}

/// A process of much memory, and its children; or children of children.
fn forks(much: Much, chain: bool, child: Child) -> Vec<u8> {
    let (mut b, base, step, many) = parent(much);
    let end = base + many * step;
    let away = 0x5000_0000_7000;
    for i in 0..3000u32 {
        let parent = if chain { 1 + i } else { 1 };
        let mm = 2 + i;
        b.fork(0, 10, parent, 100 + i, mm);
        let (tid, at) = (100 + i, base + u64::from(i) % many * step);
        let half = base + u64::from(i) % (many / 2) * step + 0x1000;
        let half = half..half + many / 2 * step;
        match child {
            Child::Nothing => {}
            Child::Ends => b.mm_end(0, tid, parent),
            Child::Touches => {
                b.cow(0, tid, mm, at);
                b.touch(0, tid, mm, at);
            }
            Child::Unmaps => b.unmap(0, tid, mm, at, at + 0x1000),
            Child::UnmapsAll => b.unmap(0, tid, mm, base, end),
            Child::Protects => b.protect(0, tid, mm, at, at + 0x1000, Prot(1)),
            Child::ProtectsAll => b.protect(0, tid, mm, base + 0x1000, end - 0x1000, Prot(1)),
            Child::ProtectsHalf => b.protect(0, tid, mm, half.start, half.end, Prot(1)),
            Child::MovesAll => b.relocate(0, tid, mm, base..end, away..away + (end - base), false),
            Child::MovesHalf => {
                let to = away..away + (half.end - half.start);
                b.relocate(0, tid, mm, half, to, false);
            }
            Child::MovesAndUnmaps => {
                b.relocate(0, tid, mm, base..end, away..away + (end - base), false);
                b.unmap(0, tid, mm, away + (end - base) / 2, away + (end - base));
            }
            Child::AdvisesAll => b.advise(0, tid, mm, base, end, 4),
        }
    }
    b.finish()
}

/// A process of much memory that does the same with all of it again and again.
fn again(much: Much, what: Child) -> Vec<u8> {
    let (mut b, base, step, many) = parent(much);
    let size = many * step;
    let (mut here, mut there) = (base, 0x5000_0000_7000);
    for i in 0..5000u64 {
        match what {
            Child::MovesAll => {
                b.relocate(0, 10, 1, here..here + size, there..there + size, false);
                std::mem::swap(&mut here, &mut there);
            }
            // Each time the range loses a page at its beginning, which stays behind.
            Child::MovesHalf => {
                let from = here + i * 0x1000;
                let to = there + i * 0x1000;
                let size = size - i * 0x1000;
                b.relocate(0, 10, 1, from..from + size, to..to + size, false);
                std::mem::swap(&mut here, &mut there);
            }
            _ => b.protect(0, 10, 1, base, base + size, Prot(1 + (i as u8 & 2))),
        }
    }
    b.finish()
}

/// What is done to a whole address space costs no more than what is done to a page of it,
/// for each of thousands of children.
#[test]
fn a_megabyte_of_whole_address_spaces() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let mut failed = Vec::new();
    let mut read = |name: String, bytes: Vec<u8>| {
        assert!(bytes.len() <= 5 << 18, "{name}: {} bytes", bytes.len());
        let wrong = trouble(&bytes, directory.path(), |part| part != 2);
        failed.extend(wrong.map(|wrong| format!("{name}: {wrong}")));
    };
    for much in [Much::Mappings, Much::Pages] {
        for child in [
            Child::ProtectsAll,
            Child::ProtectsHalf,
            Child::MovesAll,
            Child::MovesHalf,
            Child::MovesAndUnmaps,
            Child::AdvisesAll,
        ] {
            // A build that does not optimise would take minutes for all.
            if !cfg!(debug_assertions) || matches!(child, Child::ProtectsHalf | Child::MovesHalf) {
                read(format!("{much:?}, {child:?}"), forks(much, false, child));
            }
        }
        for what in [Child::ProtectsAll, Child::MovesAll, Child::MovesHalf] {
            read(format!("{much:?}, again {what:?}"), again(much, what));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// What a fork shares is not paid for by each child.
#[test]
fn a_megabyte_of_forks() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    for much in [Much::Mappings, Much::Files, Much::Pages] {
        for (chain, child) in [
            (false, Child::Nothing),
            (false, Child::Touches),
            (false, Child::UnmapsAll),
            (false, Child::Protects),
            (true, Child::Ends),
            (true, Child::Touches),
            (true, Child::Unmaps),
        ] {
            let name = format!("{much:?}, chain {chain}, {child:?}");
            let bytes = forks(much, chain, child);
            assert!(bytes.len() <= 5 << 18, "{name}: {} bytes", bytes.len());
            let wrong = trouble(&bytes, directory.path(), |part| part != 2);
            assert_eq!(wrong, None, "{name}");
        }
    }
}

/// What a megabyte can be made to cost by who knows the code.
#[test]
fn a_megabyte_of_lies() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in [
        ("overlapping", overlapping(1 << 20)),
        ("counts", counts_that_are_not_there()),
        ("names", names()),
    ] {
        let wrong = trouble(&bytes, directory.path(), |part| part < 3);
        assert_eq!(wrong, None, "{name}");
    }
}
