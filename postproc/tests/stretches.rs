//! Stretches of traces: each is read by itself, and all together give what one pass gives.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;

use crate::properties::{Script, ops};
use crate::support::random::Random;
use postproc::canon::{Origin, PageMode};
use postproc::error::{Error, Result};
use postproc::pipeline::{
    self, Batch, Consumer, Freeing, Observer, Outcome, Place, Unwatched, World,
};
use postproc::space::Issue;
use postproc::stretch::{Names, cut, names, run};
use postproc::testing::{TraceBuilder, mend_checksums, packets_of};
use postproc::trace::wire::HEAD_SIZE;
use postproc::trace::{
    By, Damage, Event, Form, PacketSeen, StreamKind, Trace, divide, plan, repack, split,
};
use postproc::units::{CanonPage, Prot};
use proptest::prelude::*;
use rust_mm_trace::uapi;

const PAGE: u64 = 4096;

/// What consumers are asked for.
#[derive(Clone, Copy, Debug)]
struct Wants {
    mode: PageMode,
    freeing: Freeing,
    follows_freed: bool,
    io: bool,
}

/// All that names of pages can depend on.
fn all_wants() -> Vec<Wants> {
    let ends = [
        (Freeing::Kept, false, false),
        (Freeing::Freed, false, true),
        (Freeing::Freed, true, false),
        (Freeing::Freed, true, true),
    ];
    let modes = [PageMode::Canonical, PageMode::Virtual];
    let of = |mode| {
        ends.map(|(freeing, follows_freed, io)| Wants {
            mode,
            freeing,
            follows_freed,
            io,
        })
    };
    modes.into_iter().flat_map(of).collect()
}

/// All that a consumer gets of a trace or a part of it, apart from packets and damage.
#[derive(Default, PartialEq, Debug)]
struct Got {
    /// Sequence number, time, page and place.
    refs: Vec<(u64, u64, CanonPage, Place)>,
    origins: Vec<(CanonPage, Origin)>,
    io: Vec<(u64, CanonPage)>,
    /// Sequence number, and what the world has counted.
    events: Vec<(u64, [u64; 4], bool)>,
    freed: Vec<(u64, Vec<CanonPage>)>,
}

struct Log {
    wants: Wants,
    got: Got,
    /// Records before.
    before: u64,
    packets: Vec<PacketSeen>,
    damage: BTreeSet<u64>,
}

impl Log {
    fn new(wants: Wants) -> Self {
        Log {
            wants,
            got: Got::default(),
            before: 0,
            packets: Vec::new(),
            damage: BTreeSet::new(),
        }
    }
}

impl Consumer for Log {
    fn packet(&mut self, packet: &PacketSeen) -> Result<()> {
        self.packets.push(*packet);
        Ok(())
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn wants_origins(&self) -> bool {
        true
    }

    fn origins(&mut self, pages: &[(CanonPage, Origin)]) -> Result<()> {
        self.got.origins.extend_from_slice(pages);
        Ok(())
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        let so_far = self.before + self.got.refs.len() as u64;
        assert_eq!(batch.world.records, so_far);
        let all = batch.refs.iter().zip(batch.pages).zip(batch.places);
        let all = all.map(|((r, page), place)| (r.seq, r.time_ns, *page, *place));
        self.got.refs.extend(all);
        Ok(())
    }

    fn wants_io(&self) -> bool {
        self.wants.io
    }

    fn io(&mut self, batch: &Batch<'_>) -> Result<()> {
        let all = batch.refs.iter().zip(batch.pages);
        self.got.io.extend(all.map(|(r, page)| (r.seq, *page)));
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, world: &World, _: &[Issue]) -> Result<()> {
        let counts = [
            world.events,
            world.records,
            world.references,
            world.renewals,
        ];
        let one = (event.seq, counts, world.has_several_sets());
        self.got.events.push(one);
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        self.wants.follows_freed
    }

    fn freed(&mut self, pages: &[CanonPage], _: &World) -> Result<()> {
        let seq = self.got.events.last().unwrap().0;
        self.got.freed.push((seq, pages.to_vec()));
        Ok(())
    }

    fn damage(&mut self, damage: &Damage) -> Result<()> {
        self.damage.insert(damage.start);
        Ok(())
    }
}

fn whole(trace: &Trace, wants: Wants) -> (Log, Outcome) {
    let mut log = Log::new(wants);
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut log];
    let (mode, freeing) = (wants.mode, wants.freeing);
    let outcome = pipeline::run_with(trace, mode, freeing, &mut Unwatched, consumers).unwrap();
    (log, outcome)
}

/// The stretches that begin at these numbers, and at 0.
fn stretches(starts: &[u64]) -> Vec<Range<u64>> {
    let mut starts = starts.to_vec();
    starts.retain(|&start| start > 0);
    starts.push(0);
    starts.sort_unstable();
    starts.dedup();
    let ends = starts[1..].iter().copied().chain([u64::MAX]);
    starts
        .iter()
        .copied()
        .zip(ends)
        .map(|(s, e)| s..e)
        .collect()
}

/// The names of each stretch, made on a thread of its own, and sent as bytes.
fn all_names(trace: &Trace, mode: PageMode, stretches: &[Range<u64>]) -> Vec<Names> {
    thread::scope(|scope| {
        let one = |range: Range<u64>| names(trace, mode, range, &mut Unwatched).unwrap();
        let threads: Vec<_> = stretches
            .iter()
            .map(|range| scope.spawn(move || one(range.clone())))
            .collect();
        let all = threads.into_iter().map(|thread| thread.join().unwrap());
        all.map(|made| {
            let back = Names::from_bytes(&made.to_bytes()).unwrap();
            assert_eq!(back, made);
            back
        })
        .collect()
    })
}

/// All stretches, one after the other. `spoil` may change the names before one.
fn in_stretches(
    trace: &Trace,
    wants: Wants,
    stretches: &[Range<u64>],
    spoil: impl Fn(&mut Vec<Names>),
) -> (Vec<Log>, Outcome) {
    let mut all = all_names(trace, wants.mode, stretches);
    spoil(&mut all);
    let (mut logs, mut before, mut last) = (Vec::new(), 0, None);
    for (i, range) in stretches.iter().enumerate() {
        let mut log = Log::new(wants);
        log.before = before;
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut log];
        let (mode, freeing, range) = (wants.mode, wants.freeing, range.clone());
        let earlier = &all[..i];
        let outcome = run(
            trace,
            mode,
            freeing,
            range,
            earlier,
            &mut Unwatched,
            consumers,
        );
        last = Some(outcome.unwrap());
        before += log.got.refs.len() as u64;
        logs.push(log);
    }
    (logs, last.unwrap())
}

fn joined(logs: Vec<Log>) -> Got {
    let mut all = Got::default();
    for log in logs {
        all.refs.extend(log.got.refs);
        all.origins.extend(log.got.origins);
        all.io.extend(log.got.io);
        all.events.extend(log.got.events);
        all.freed.extend(log.got.freed);
    }
    all
}

#[track_caller]
fn same<T: PartialEq + std::fmt::Debug>(name: &str, what: &str, one: &[T], other: &[T]) {
    for (i, (one, other)) in one.iter().zip(other).enumerate() {
        assert_eq!(one, other, "{name}: {what} {i}");
    }
    assert_eq!(one.len(), other.len(), "{name}: {what}");
}

/// Demands that stretches together are the whole trace.
#[track_caller]
fn judge(name: &str, trace: &Trace, wants: Wants, stretches: &[Range<u64>]) {
    let name = &format!("{name} {wants:?} {stretches:?}");
    let (expected, outcome) = whole(trace, wants);
    let (logs, last) = in_stretches(trace, wants, stretches, |_| {});
    let damage: BTreeSet<u64> = logs.iter().flat_map(|log| &log.damage).copied().collect();
    assert_eq!(damage, expected.damage, "{name}");
    let offsets = |log: &Log| {
        let offsets = log.packets.iter().map(|packet| packet.offset);
        offsets.collect::<BTreeSet<u64>>()
    };
    let packets = logs.iter().flat_map(offsets).collect::<BTreeSet<u64>>();
    assert_eq!(packets, offsets(&expected), "{name}");
    let got = joined(logs);
    let expected = expected.got;
    same(name, "reference", &got.refs, &expected.refs);
    same(name, "origin", &got.origins, &expected.origins);
    same(name, "read or written page", &got.io, &expected.io);
    same(name, "event", &got.events, &expected.events);
    same(name, "freed", &got.freed, &expected.freed);
    assert_eq!(last.pages, outcome.pages, "{name}");
    let counts = |w: &World| [w.events, w.records, w.references, w.renewals];
    assert_eq!(counts(&last.world), counts(&outcome.world), "{name}");
}

/// Some ways to cut a trace.
fn some_cuts(trace: &Trace, random: &mut Random) -> Vec<Vec<Range<u64>>> {
    let last = trace.index().end.as_ref().map(|end| end.status.last_seq);
    let last = last.unwrap_or(1_000);
    let count = 1 + random.below(8);
    let starts: Vec<u64> = (0..count).map(|_| random.below(last + 3)).collect();
    vec![
        cut(trace, 2 + random.below(6) as usize).unwrap(),
        stretches(&starts),
    ]
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Traces of this version that a kernel wrote.
fn fixtures() -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1");
    let of = |path: PathBuf| {
        let packed = fs::read(&path).unwrap();
        let bytes = zstd::decode_all(&packed[..]).unwrap();
        (path.file_name().unwrap().to_string_lossy().into(), bytes)
    };
    let all = files(&directory).into_iter();
    all.filter(|path| path.extension().is_some_and(|e| e == "zst"))
        .map(of)
        .collect()
}

fn opened(bytes: &[u8]) -> Trace {
    Trace::from_bytes("memory", bytes.to_vec()).unwrap()
}

#[test]
fn traces_of_kernels() {
    let mut random = Random::new(1);
    for (name, bytes) in fixtures() {
        let trace = opened(&bytes);
        for wants in all_wants() {
            for count in [2, 7] {
                judge(&name, &trace, wants, &cut(&trace, count).unwrap());
            }
            for stretches in &some_cuts(&trace, &mut random)[1..] {
                judge(&name, &trace, wants, stretches);
            }
        }
    }
}

/// A trace of events in an order that no kernel gives: mappings over others, and pages that are
/// referenced before they are mapped.
fn wild(random: &mut Random) -> Vec<u8> {
    let (mut b, cpus) = random.trace();
    let sets = random.below(3) == 0;
    if sets {
        b.several_sets();
    }
    let mut last = 4;
    for mm in 1..=last {
        if sets {
            b.set(0, 10 * mm, mm, 1 + mm / 2);
        }
        b.task(0, 10 * mm, 10 * mm, mm, "program");
    }
    // Some leaves of the tables, with a few pages each.
    let page = |random: &mut Random| (0x100 + random.below(12) * 64 + random.below(3)) * PAGE;
    let length = |random: &mut Random| {
        let pages = [1, 2, 3, 64, 130, 300, 640][random.below(7) as usize];
        pages * PAGE
    };
    for _ in 0..200 + random.below(600) {
        let mm = 1 + random.below(last.into()) as u32;
        let (tid, cpu) = (10 * mm, random.below(cpus.into()) as u32);
        let (start, bytes) = (page(random), length(random));
        let (end, ino) = (start + bytes, 1 + random.below(3));
        match random.below(50) {
            0 | 1 => b.map_anon(cpu, tid, mm, start, end, Prot(3)),
            2..=5 => {
                let (shared, offset) = (random.below(2) == 0, random.below(9) * 64 * PAGE);
                b.map_file(cpu, tid, mm, start, end, Prot(3), shared, ino, offset);
            }
            6 | 7 => b.unmap(cpu, tid, mm, start, end),
            8 => b.advise(cpu, tid, mm, start, end, 4),
            9..=11 => b.cow(cpu, tid, mm, start),
            12..=14 => {
                let new = page(random);
                let more = if random.below(4) == 0 { 64 * PAGE } else { 0 };
                let to = new..new + bytes + more;
                b.relocate(cpu, tid, mm, start..end, to, random.below(3) == 0);
            }
            15 | 16 => {
                // Of an address space that is there, also.
                let child = 1 + random.below(u64::from(last) + 1) as u32;
                if child > last {
                    last = child;
                    if sets {
                        b.set(cpu, 10 * child, child, child);
                    }
                }
                b.fork(cpu, tid, mm, 10 * child, child);
            }
            17 => b.mm_end(cpu, tid, mm),
            18 => b.truncate(cpu, tid, ino, start % (400 * PAGE)),
            19 => b.io(
                (cpu, tid, mm),
                [uapi::VMTRACE_EV_READ, uapi::VMTRACE_EV_WRITE][random.below(2) as usize],
                ino,
                start % (600 * PAGE),
                3 * PAGE,
            ),
            20 if random.below(8) == 0 => b.event(0, 0, 0, uapi::VMTRACE_EV_SNAP_BEGIN, &[]),
            21 => b.renew(cpu, tid, random.below(2) == 0),
            22 => b.read_early(random.below(500)),
            _ => {
                for _ in 0..1 + random.below(12) {
                    let at = page(random);
                    b.touch(cpu, tid, mm, at);
                }
            }
        }
    }
    b.finish()
}

#[test]
fn wild_traces() {
    for seed in 0..if cfg!(debug_assertions) { 150 } else { 3_000 } {
        let mut random = Random::new(seed);
        let trace = opened(&wild(&mut random));
        let all = all_wants();
        let wants = all[random.below(all.len() as u64) as usize];
        for stretches in some_cuts(&trace, &mut random) {
            judge(&format!("seed {seed}"), &trace, wants, &stretches);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn any_program(
        ops in ops(160),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
        which in any::<prop::sample::Index>(),
    ) {
        let mut script = Script::new();
        for op in &ops {
            script.step(op);
        }
        let last = script.builder.last_seq() as usize;
        let trace = opened(&script.builder.finish());
        let starts: Vec<u64> = cuts.iter().map(|at| at.index(last + 2) as u64).collect();
        let all = all_wants();
        judge("program", &trace, all[which.index(all.len())], &stretches(&starts));
    }
}

/// Without the notes of one stretch, pages later have other numbers.
#[test]
fn all_names_are_needed() {
    let mut others = 0;
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let trace = opened(&wild(&mut random));
        let wants = all_wants()[2];
        let stretches = cut(&trace, 4).unwrap();
        let expected = whole(&trace, wants).0.got;
        let at = random.below(3) as usize;
        let spoil = |all: &mut Vec<Names>| all[at] = all[at].without_notes();
        let (logs, _) = in_stretches(&trace, wants, &stretches, spoil);
        let got = joined(logs);
        assert_eq!(got.refs.len(), expected.refs.len());
        others += u32::from(got.refs != expected.refs);
    }
    assert!(others > 15, "{others}");
}

/// A program on two CPUs, which makes many packets.
fn long() -> Vec<u8> {
    let mut b = TraceBuilder::new(2, 4);
    b.header_mut().buffer_size = 1024;
    b.program();
    b.map_anon(0, 10, 1, 0x10_0000, 0x90_0000, Prot(3));
    for i in 0..6_000 {
        b.touch((i / 3 % 2) as u32, 10, 1, 0x10_0000 + i * 7 % 500 * PAGE);
        if i % 200 == 0 {
            b.unmap(0, 10, 1, 0x10_0000, 0x11_0000);
            b.map_anon(0, 10, 1, 0x10_0000, 0x11_0000, Prot(3));
        }
    }
    b.finish()
}

fn of_refs(packets: &[PacketSeen]) -> usize {
    let kinds = packets.iter().map(|packet| packet.head.stream.kind);
    kinds.filter(|kind| *kind == StreamKind::Ref).count()
}

#[test]
fn packets_of_other_stretches_are_not_read() {
    let bytes = long();
    let trace = opened(&bytes);
    let wants = all_wants()[2];
    let stretches = cut(&trace, 10).unwrap();
    assert_eq!(stretches.len(), 10);
    let all = of_refs(&whole(&trace, wants).0.packets);
    let (logs, _) = in_stretches(&trace, wants, &stretches, |_| {});
    let counts: Vec<usize> = logs.iter().map(|log| of_refs(&log.packets)).collect();
    // Of each CPU, one packet lies on both sides.
    let sum: usize = counts.iter().sum();
    assert!((all..=all + 2 * 9).contains(&sum), "{counts:?} of {all}");
    assert!(counts.iter().all(|&count| count <= all / 10 + 4));
    // What is not read cannot be found to be damaged.
    let mut spoiled = bytes.clone();
    let first = logs[0].packets.iter().map(|p| p.offset as usize);
    let second: BTreeSet<usize> = logs[1].packets.iter().map(|p| p.offset as usize).collect();
    let mut damaged = 0;
    for at in first.filter(|at| !second.contains(at)) {
        let is_of_refs = logs[0]
            .packets
            .iter()
            .any(|p| p.offset as usize == at && p.head.stream.kind == StreamKind::Ref);
        if is_of_refs {
            spoiled[at + HEAD_SIZE + 9] ^= 1;
            damaged += 1;
        }
    }
    assert!(damaged > 10);
    let spoiled = opened(&spoiled);
    let made = all_names(&trace, wants.mode, &stretches[..1]);
    let mut log = Log::new(wants);
    log.before = logs[0].got.refs.len() as u64;
    let outcome = run(
        &spoiled,
        wants.mode,
        wants.freeing,
        stretches[1].clone(),
        &made,
        &mut Unwatched,
        &mut [&mut log],
    );
    assert!(outcome.unwrap().damage.is_empty());
    same("spoiled", "reference", &log.got.refs, &logs[1].got.refs);
    let again = names(&spoiled, wants.mode, stretches[1].clone(), &mut Unwatched).unwrap();
    let good = names(&trace, wants.mode, stretches[1].clone(), &mut Unwatched).unwrap();
    assert_eq!(again, good);
    let (whole, outcome) = whole(&spoiled, wants);
    assert_eq!(
        (whole.damage.len(), outcome.damage.len()),
        (damaged, damaged)
    );
}

/// Damage costs stretches what it costs the whole trace, wherever it is.
#[test]
fn damaged_traces() {
    for seed in 0..if cfg!(debug_assertions) { 60 } else { 1_000 } {
        let mut random = Random::new(seed);
        let mut bytes = wild(&mut random);
        let packets = packets_of(&bytes);
        for _ in 0..1 + random.below(4) {
            let (start, end) = packets[random.below(packets.len() as u64) as usize];
            // In every other one, the head.
            let size = match random.below(2) {
                0 => HEAD_SIZE,
                _ => end - start,
            };
            let at = start + random.below(size as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        let trace = opened(&bytes);
        let all = all_wants();
        let wants = all[random.below(all.len() as u64) as usize];
        for stretches in some_cuts(&trace, &mut random) {
            judge(&format!("seed {seed}"), &trace, wants, &stretches);
        }
    }
}

/// A head that claims the numbers of another stretch, in a damaged packet.
#[test]
fn a_damaged_head_hides_no_other_packet() {
    let good = long();
    let trace = opened(&good);
    let stretches = cut(&trace, 3).unwrap();
    let (log, _) = whole(&trace, all_wants()[2]);
    let of_refs = |p: &&PacketSeen| p.head.stream.kind == StreamKind::Ref;
    let of_refs: Vec<_> = log.packets.iter().filter(of_refs).collect();
    for (packet, claimed) in of_refs.iter().step_by(9).zip([1 << 40, 1, 3_000, 1 << 62]) {
        let mut bytes = good.clone();
        type P = uapi::vmtrace_packet;
        let (first, last) = (
            std::mem::offset_of!(P, first_seq),
            std::mem::offset_of!(P, last_seq),
        );
        for field in [first, last] {
            let at = packet.offset as usize + field;
            bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(claimed));
        }
        judge("claims", &opened(&bytes), all_wants()[2], &stretches);
    }
}

/// Whatever a trace says with good checksums: nothing panics.
#[test]
fn hostile_traces() {
    for seed in 0..if cfg!(debug_assertions) { 60 } else { 1_000 } {
        let mut random = Random::new(seed);
        let mut bytes = wild(&mut random);
        let packets = packets_of(&bytes);
        for _ in 0..1 + random.below(8) {
            let (start, end) = packets[random.below(packets.len() as u64) as usize];
            let at = start + 24 + random.below((end - start - 24) as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        mend_checksums(&mut bytes);
        let Ok(trace) = Trace::from_bytes("memory", bytes) else {
            continue;
        };
        let all = all_wants();
        let wants = all[random.below(all.len() as u64) as usize];
        for stretches in some_cuts(&trace, &mut random) {
            let mut made = Vec::new();
            for range in stretches {
                let (mode, freeing) = (wants.mode, wants.freeing);
                let none: &mut [&mut dyn Consumer] = &mut [];
                let next = range.clone();
                let done = run(&trace, mode, freeing, next, &made, &mut Unwatched, none);
                assert!(done.is_ok() || matches!(done, Err(Error::TooManyPages { .. })));
                made.push(names(&trace, mode, range, &mut Unwatched).unwrap());
            }
        }
    }
}

/// Pieces of a trace alone and together, parts by process, windows, and packed traces.
#[test]
fn other_forms_of_traces() {
    let mut random = Random::new(7);
    let chosen = ["fork-exec", "windows", "two-cpus", "file-io"];
    let is_chosen = |name: &str| chosen.iter().any(|chosen| name.starts_with(chosen));
    for (name, bytes) in fixtures().into_iter().filter(|f| is_chosen(&f.0)) {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (pieces, parts) = (
            directory.path().join("pieces"),
            directory.path().join("parts"),
        );
        let trace = opened(&bytes);
        let by = By::Bytes(trace.file_bytes() / 4);
        let plan = plan(&trace, by, &mut Unwatched).unwrap();
        split(&trace, &plan, &pieces, &mut Unwatched).unwrap();
        divide(&trace, &parts, &mut Unwatched).unwrap();
        let mut all: Vec<(String, Trace)> = vec![("pieces".into(), Trace::open(&pieces).unwrap())];
        for path in files(&pieces).iter().chain(&files(&parts)) {
            if let Ok(trace) = Trace::open(path) {
                all.push((path.display().to_string(), trace));
            }
        }
        for number in trace.window_numbers() {
            all.push((format!("{number}"), trace.only_window(number).unwrap()));
        }
        let mut packed = Vec::new();
        repack(
            &trace,
            Form::Packed(Some(1)),
            &mut packed,
            "memory",
            &mut Unwatched,
        )
        .unwrap();
        all.push(("packed".into(), opened(&packed)));
        assert!(all.len() > 4, "{name}");
        for (form, trace) in all {
            for wants in [all_wants()[1], all_wants()[2], all_wants()[6]] {
                for stretches in some_cuts(&trace, &mut random) {
                    judge(&format!("{name} {form}"), &trace, wants, &stretches);
                }
            }
        }
    }
}

/// A packed trace takes the names of the trace that it was; others do not.
#[test]
fn names_that_do_not_fit_are_refused() {
    let bytes = long();
    let trace = opened(&bytes);
    let mode = PageMode::Canonical;
    let stretches = cut(&trace, 3).unwrap();
    let made = all_names(&trace, mode, &stretches);
    let last = stretches[2].clone();
    let why = |trace: &Trace, mode, before: &[Names]| {
        let (freeing, range) = (Freeing::Freed, last.clone());
        let none: &mut [&mut dyn Consumer] = &mut [];
        match run(trace, mode, freeing, range, before, &mut Unwatched, none) {
            Ok(_) => String::new(),
            Err(error @ Error::NamesUnfit { .. }) => error.to_string(),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(why(&trace, mode, &made[..2]), "");
    let mut packed = Vec::new();
    let form = Form::Packed(None);
    repack(&trace, form, &mut packed, "memory", &mut Unwatched).unwrap();
    assert_eq!(why(&opened(&packed), mode, &made[..2]), "");
    let swapped = [made[1].clone(), made[0].clone()];
    let (first, second) = (stretches[0].end, stretches[1].end);
    for (found, expected) in [
        (
            why(&trace, PageMode::Virtual, &made[..2]),
            "in another way".into(),
        ),
        (why(&trace, mode, &[]), format!("at 0, not at {second}")),
        (
            why(&trace, mode, &made[..1]),
            format!("at {first}, not at {second}"),
        ),
        (
            why(&trace, mode, &made[1..2]),
            format!("at {first}, not at 0"),
        ),
        (why(&trace, mode, &swapped), "not at 0".into()),
        (why(&trace, mode, &made), format!("not at {second}")),
        (
            why(&opened(&bytes[..bytes.len() / 2]), mode, &made[..2]),
            "was longer or shorter".into(),
        ),
    ] {
        assert!(found.contains(&expected), "{found}: {expected}");
    }
    let mut other = bytes.clone();
    let at = std::mem::offset_of!(uapi::vmtrace_header, uuid);
    let crc = std::mem::offset_of!(uapi::vmtrace_header, crc);
    other[at] ^= 1;
    let sum = crc32c::crc32c(&other[..crc]);
    other[crc..crc + 4].copy_from_slice(&sum.to_le_bytes());
    let other = opened(&other);
    assert!(why(&other, mode, &made[..2]).contains("this is"));
}

/// Ends whatever it observes.
struct Impatient;

impl Observer for Impatient {
    fn progress(&mut self, _: u64, _: u64) -> bool {
        false
    }
}

#[test]
fn observers_end_stretches() {
    let trace = opened(&long());
    let mode = PageMode::Canonical;
    let noted = names(&trace, mode, 0..100, &mut Impatient);
    assert!(matches!(noted, Err(Error::Interrupted)));
    let none: &mut [&mut dyn Consumer] = &mut [];
    let freeing = Freeing::Freed;
    let ran = run(&trace, mode, freeing, 0..9, &[], &mut Impatient, none);
    assert!(matches!(ran, Err(Error::Interrupted)));
}
