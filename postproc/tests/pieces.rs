//! Pieces of traces: each is readable by itself, and all are the trace again.

use std::collections::BTreeSet;
use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::slice::from_ref;
use std::time::Instant;

use crate::support::postproc;
use crate::support::random::Random;
use postproc::canon::PageMode;
use postproc::check::{CheckOptions, CheckReport, Checker};
use postproc::error::{Error, Result};
use postproc::pipeline::{self, Batch, Consumer, Place, Unwatched};
use postproc::streams::Whose;
use postproc::testing::{Asked, TraceBuilder, check_bytes, mend_checksums, packets_of};
use postproc::trace::wire::{HEAD_SIZE, HEADER_SIZE};
use postproc::trace::{
    Body, By, FileId, Form, Merge, SplitTrace, Step, StreamKind, Trace, join, plan, repack, split,
};
use postproc::units::Prot;
use proptest::prelude::*;
use rust_mm_trace::uapi;
use tempfile::TempDir;

fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Splits a trace into the directory `pieces`.
fn split_into(directory: &Path, bytes: &[u8], by: By) -> Result<SplitTrace> {
    let trace = Trace::from_bytes("memory", bytes.to_vec())?;
    let plan = plan(&trace, by, &mut Unwatched)?;
    split(&trace, &plan, &directory.join("pieces"), &mut Unwatched)
}

fn joined(paths: &[PathBuf]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    join(paths, &mut out, "memory", &mut Unwatched)?;
    Ok(out)
}

/// The files in a directory, in order.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn report(trace: &Trace, allow_loss: bool) -> CheckReport {
    let options = CheckOptions {
        allow_loss,
        examples: 3,
    };
    // The frames of synthetic traces are those of any page.
    let mut checker = match trace.header().release.contains("synthetic") {
        true => Checker::new(options),
        false => Checker::with_pages(options),
    };
    let mode = PageMode::Canonical;
    pipeline::run(trace, mode, &mut Unwatched, &mut [&mut checker]).unwrap();
    checker.report()
}

/// What the rules find, without the paths.
fn found(report: &CheckReport) -> String {
    serde_json::to_string(report).unwrap()
}

/// Traces of this version that a kernel wrote.
fn fixtures() -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1");
    let of = |path: PathBuf| {
        let packed = fs::read(&path).unwrap();
        (
            path.display().to_string(),
            zstd::decode_all(&packed[..]).unwrap(),
        )
    };
    let all = files(&directory).into_iter();
    all.filter(|path| path.extension().is_some_and(|e| e == "zst"))
        .map(of)
        .collect()
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let trace = Trace::from_bytes("memory", bytes.to_vec()).unwrap();
    let mut out = Vec::new();
    let form = Form::Packed(Some(1));
    repack(&trace, form, &mut out, "memory", &mut Unwatched).unwrap();
    out
}

/// A trace of several sets, of which some rest, and whose packets come late.
fn sets() -> Vec<u8> {
    let mut b = TraceBuilder::new(2, 16);
    b.several_sets();
    b.header_mut().buffer_size = 1024;
    for mm in 1..=8 {
        b.set(0, 10 * mm, mm, mm);
        b.task(0, 10 * mm, 10 * mm, mm, "program");
        b.cgroup(0, (10 * mm, 10 * mm), "/some/group");
        b.map_anon(0, 10 * mm, mm, 0x10_0000, 0x20_0000, Prot(3));
        for i in 0..400u64 {
            // Address space 2 has ended by then.
            let of = match 1 + (i / 40) as u32 % mm {
                2 if mm > 4 => 1,
                of => of,
            };
            b.touch(
                (i & 1) as u32,
                10 * of,
                of,
                0x10_0000 + ((i * 7 % 101) << 12),
            );
        }
        if mm == 4 {
            b.mm_end(0, 20, 2);
            b.map_anon(1, 30, 3, 0x50_0000, 0x51_0000, Prot(1));
        }
    }
    b.finish()
}

/// Three windows; the second one is empty.
fn windows() -> Vec<u8> {
    let mut b = TraceBuilder::new(2, 4);
    b.header_mut().buffer_size = 512;
    for (mm, references) in [(1, 200u64), (2, 0), (3, 200)] {
        b.begin_window(200);
        b.task(0, 10, 10, mm, "program");
        b.map_anon(0, 10, mm, 0x1000, 0x9000, Prot(3));
        for i in 0..references {
            b.touch((i & 1) as u32, 10, mm, 0x1000 + ((i * 5 % 8) << 12));
        }
        b.end_window(|_| {});
        b.leap(1_000_000);
    }
    b.finish()
}

/// What the events before a reference say of it: all that a filter can ask for.
#[derive(Debug, PartialEq)]
struct Told {
    seq: u64,
    /// The process and its ancestors.
    ancestors: BTreeSet<u32>,
    set: u32,
    comm: String,
    cgroup: String,
    mapping: Option<(String, String)>,
}

#[derive(Default)]
struct Teller {
    told: Vec<Told>,
    /// The ancestors that still live.
    living: Vec<BTreeSet<u32>>,
}

impl Consumer for Teller {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        let world = batch.world;
        let alive: BTreeSet<u32> = world.tasks.living().map(|p| p.tgid.0).collect();
        for (r, place) in batch.refs.iter().zip(batch.places) {
            let mut ancestors = BTreeSet::new();
            match Whose::of(r.tid(), world) {
                Whose::Process(id) => {
                    world.tasks.any_ancestor(id, &mut |tgid| {
                        ancestors.insert(tgid.0);
                        false
                    });
                }
                Whose::Thread(tid) => drop(ancestors.insert(tid.0)),
            }
            let mapping = world.space.get(r.mm).and_then(|s| s.find(r.address()));
            let mapping = mapping.filter(|_| matches!(place, Place::Mapped { .. }));
            self.living.push(&ancestors & &alive);
            self.told.push(Told {
                seq: r.seq,
                ancestors,
                set: world.space.set_of(r.mm),
                comm: world.tasks.comm(r.tid()).into(),
                cgroup: world.tasks.cgroup(r.tid()).into(),
                mapping: mapping.map(|m| {
                    let kind = format!("{:?} {:?} {:x}", m.kind, m.prot, m.flags);
                    (world.space.name(&m).into(), kind)
                }),
            });
        }
        Ok(())
    }
}

fn told(trace: &Trace) -> Teller {
    let mut teller = Teller::default();
    pipeline::run(trace, PageMode::Unnamed, &mut Unwatched, &mut [&mut teller]).unwrap();
    teller
}

/// Demands that pieces tell of their references what the trace tells, but for ancestors that have
/// ended.
fn tell_the_same(name: &str, whole: &Trace, pieces: &[PathBuf]) {
    let whole = told(whole);
    let mut expected = whole.told.into_iter().zip(whole.living);
    for path in pieces {
        for mut of_piece in told(&Trace::open(path).unwrap()).told {
            let (of_trace, living) = expected.next().unwrap();
            assert!(
                of_piece.ancestors.is_superset(&living)
                    && of_piece.ancestors.is_subset(&of_trace.ancestors),
                "{name} {path:?}: {of_piece:?} {of_trace:?}"
            );
            of_piece.ancestors = of_trace.ancestors.clone();
            assert_eq!(of_piece, of_trace, "{name} {path:?}");
        }
    }
    assert!(expected.next().is_none());
}

/// Ways that make several pieces of the traces of this test.
const WAYS: [By; 5] = [
    By::Windows(1),
    By::Windows(2),
    By::Bytes(20_000),
    By::Bytes(2_000),
    By::Time(100_000_000),
];

/// Splits a trace, and demands all that pieces must have. Gives how many there were.
fn judge(name: &str, bytes: &[u8], by: By) -> usize {
    let directory = scratch();
    let made = match split_into(directory.path(), bytes, by) {
        // That is said, and nothing is left.
        Err(Error::NoWindows { .. } | Error::ManyPieces { .. }) => {
            assert!(files(directory.path()).is_empty());
            return 0;
        }
        made => made.unwrap(),
    };
    let pieces = directory.path().join("pieces");
    let all = files(&pieces);
    assert_eq!(all.len(), made.pieces.len(), "{name} {by:?}");
    let back = joined(from_ref(&pieces)).unwrap();
    assert!(back == bytes, "{name} {by:?}: other bytes came back");
    let whole = Trace::from_bytes("memory", bytes.to_vec()).unwrap();
    let judged = report(&whole, true);
    assert!(judged.good || name.contains("loss"), "{name}: {judged:#?}");
    // As one trace.
    let again = Trace::open(&pieces).unwrap();
    assert_eq!(again.file_bytes(), bytes.len() as u64);
    assert_eq!(
        found(&report(&again, true)),
        found(&judged),
        "{name} {by:?}"
    );
    // One by one.
    let (mut references, mut events) = (0, 0);
    for (path, piece) in all.iter().zip(&made.pieces) {
        assert_eq!(fs::metadata(path).unwrap().len(), piece.bytes);
        let trace = Trace::open(path).unwrap();
        let judged_piece = report(&trace, true);
        assert!(
            judged_piece.good || !judged.good,
            "{name} {by:?} {path:?}: {judged_piece:#?}"
        );
        references += piece.reference_records;
        events += piece.events;
    }
    let outcome = pipeline::run(&whole, PageMode::Unnamed, &mut Unwatched, &mut []).unwrap();
    let there = (outcome.world.records, outcome.world.events);
    assert_eq!((references, events), there, "{name} {by:?}");
    if judged.good {
        tell_the_same(&format!("{name} {by:?}"), &whole, &all);
    }
    all.len()
}

#[test]
fn pieces_are_readable_and_all_are_the_trace() {
    let mut all = fixtures();
    all.push(("sets".into(), sets()));
    all.push(("windows".into(), windows()));
    all.push((
        "many packets".into(),
        TraceBuilder::sample_of_many_packets().finish(),
    ));
    let mut pieces = [0; WAYS.len()];
    for (name, bytes) in all {
        let packed = packed(&bytes);
        for (by, count) in WAYS.iter().zip(&mut pieces) {
            *count += judge(&name, &bytes, *by);
            *count += judge(&format!("packed {name}"), &packed, *by);
        }
    }
    assert!(pieces.iter().all(|&n| n >= 6), "{pieces:?}");
}

/// A trace that was cut short or is damaged comes back as it was, damage and all.
#[test]
fn damaged_traces_come_back() {
    let whole = sets();
    let packets = packets_of(&whole);
    let mut damaged = Vec::new();
    for &(start, end) in packets.iter().step_by(9) {
        damaged.push(whole[..(start + end) / 2].to_vec());
        damaged.push(whole[..end].to_vec());
        let mut flipped = whole.clone();
        flipped[(start + end) / 2] ^= 16;
        damaged.push(flipped);
        // A head that claims a number far away.
        let mut far = whole.clone();
        far[start + offset_of!(uapi::vmtrace_packet, last_seq) + 5] ^= 16;
        damaged.push(far);
        let mut torn = whole.clone();
        torn[start..start + HEAD_SIZE].fill(7);
        damaged.push(torn);
        damaged.push([&whole[..start], &whole[end..]].concat());
    }
    let builders: [fn(&mut TraceBuilder); 4] = [
        |b| b.skip_sequence_number(),
        |b| b.on_status(|s| s.refs += 1),
        |b| b.on_status(|s| s.events -= 1),
        |b| b.on_status(|s| s.aborted += 1),
    ];
    for spoil in builders {
        let mut b = TraceBuilder::new(2, 4);
        b.header_mut().buffer_size = 320;
        b.program();
        for i in 0..160 {
            if i == 70 {
                spoil(&mut b);
            }
            b.touch(i as u32 & 1, 10, 1, 0x1000 + (i % 8) * 0x1000);
        }
        damaged.push(b.finish());
    }
    for bytes in damaged {
        for by in [By::Bytes(5_000), By::Time(10_000)] {
            let directory = scratch();
            split_into(directory.path(), &bytes, by).unwrap();
            let pieces = directory.path().join("pieces");
            assert!(joined(from_ref(&pieces)).unwrap() == bytes);
            let of = |trace: &Trace| found(&report(trace, false));
            let trace = Trace::from_bytes("memory", bytes.clone()).unwrap();
            assert_eq!(of(&Trace::open(&pieces).unwrap()), of(&trace));
            // What is missing is missing from a piece.
            let pieces = files(&pieces);
            let good = |path: &PathBuf| report(&Trace::open(path).unwrap(), false).good;
            assert!(!pieces.iter().all(good));
        }
    }
}

/// Names and control groups of threads, parents, and names of mappings are those of the moment.
#[test]
fn a_description_tells_what_differs_from_the_process() {
    let mut b = TraceBuilder::new(1, 4);
    b.header_mut().buffer_size = 512;
    let file = FileId {
        dev: 8 << 20 | 1,
        ino: 7,
        generation: 0,
    };
    let map = |b: &mut TraceBuilder, start: u64, name: &str| {
        let kind = uapi::VMTRACE_MAP_FILE;
        b.map(
            0,
            10,
            1,
            start..start + 0x4000,
            Prot(1),
            kind,
            0,
            file,
            0,
            name,
        );
    };
    b.task_of(0, (10, 10), 1, "leader", 5);
    b.cgroup(0, (10, 10), "/all");
    map(&mut b, 0x10_0000, "/first");
    map(&mut b, 0x20_0000, "/second");
    for tid in 11..=15 {
        b.thread(0, 10, 10, 1, tid);
    }
    b.task(0, 11, 10, 1, "worker");
    // Its name is that of the thread that made it, and not the process's.
    b.task(0, 10, 10, 1, "renamed");
    b.cgroup(0, (12, 0), "/other");
    b.cgroup(0, (10, 0), "/of leader");
    b.fork(0, 11, 1, 20, 2);
    b.fork(0, 20, 2, 30, 3);
    b.fork(0, 30, 3, 40, 4);
    // A process between 20 and 40 ends.
    b.exit(0, 30, 3);
    b.mm_end(0, 30, 3);
    // A process of which only a thread's control group is known.
    b.task(0, 50, 50, 5, "fifty");
    b.thread(0, 50, 50, 5, 51);
    b.cgroup(0, (51, 0), "/of 51");
    b.map_anon(0, 50, 5, 0x10_0000, 0x10_8000, Prot(3));
    for i in 0..200u64 {
        let (tid, mm) = [
            (10, 1),
            (11, 1),
            (12, 1),
            (13, 1),
            (20, 2),
            (40, 4),
            (50, 5),
            (51, 5),
        ][i as usize % 8];
        let start = if i % 3 == 0 && mm != 5 {
            0x20_0000
        } else {
            0x10_0000
        };
        b.touch(0, tid, mm, start + (i / 8 % 4) * 0x1000);
    }
    assert!(judge("threads", &b.finish(), By::Bytes(1_000)) > 4);
}

/// Files that are opened very often and closed by others take no time that grows with their number
/// squared.
#[test]
fn a_file_may_be_open_very_often() {
    let mut b = TraceBuilder::new(1, 4);
    b.header_mut().buffer_size = 1 << 16;
    b.program();
    let kind = uapi::VMTRACE_FILE_REGULAR;
    for _ in 0..200_000 {
        b.file((0, 10, 1), uapi::VMTRACE_EV_OPEN, 7, kind, "data");
    }
    b.touch(0, 10, 1, 0x1000);
    for _ in 0..199_990 {
        b.file((0, 20, 1), uapi::VMTRACE_EV_CLOSE, 7, kind, "data");
    }
    b.touch(0, 10, 1, 0x2000);
    let bytes = b.finish();
    let began = Instant::now();
    let directory = scratch();
    split_into(directory.path(), &bytes, By::Bytes(2 << 20)).unwrap();
    assert!(began.elapsed().as_secs() < 15, "{:?}", began.elapsed());
    let last = files(&directory.path().join("pieces")).pop().unwrap();
    let trace = Trace::open(last).unwrap();
    let mut merge = Merge::of_kinds(&trace, &[StreamKind::Event]);
    let mut open = 0;
    while let Step::Event(event) = merge.fill(&mut Vec::new(), 1).unwrap() {
        open += i32::from(matches!(event.body, Body::Open(_)));
        open -= i32::from(matches!(event.body, Body::Close(_)));
    }
    assert_eq!(open, 10);
}

/// Each window begins with the N of the header, unless an event says something else.
#[test]
fn a_description_has_the_n_of_its_window() {
    let mut b = TraceBuilder::new(1, 4);
    b.header_mut().buffer_size = 512;
    for window in 0..2 {
        b.begin_window(1_000_000);
        b.task(0, 10, 10, window + 1, "program");
        b.map_anon(0, 10, window + 1, 0x1000, 0x9000, Prot(3));
        if window == 0 {
            let resized = [4, 3u32].map(u32::to_le_bytes).concat();
            b.event(0, 10, 0, uapi::VMTRACE_EV_RESIZE, &resized);
        }
        for i in 0..100u64 {
            b.touch(0, 10, window + 1, 0x1000 + (i % 8) * 0x1000);
        }
        b.end_window(|_| {});
    }
    let directory = scratch();
    split_into(directory.path(), &b.finish(), By::Bytes(1_000)).unwrap();
    let resized = |path: &PathBuf| {
        let trace = Trace::open(path).unwrap();
        let mut merge = Merge::of_kinds(&trace, &[StreamKind::Event]);
        let mut any = false;
        while let Step::Event(event) = merge.fill(&mut Vec::new(), 1).unwrap() {
            any |= event.is_state() && matches!(event.body, Body::Resize { .. });
        }
        let end = trace.piece().unwrap().end.unwrap();
        (trace.window_numbers(), end.refs, any)
    };
    let pieces = files(&directory.path().join("pieces"));
    let all: Vec<_> = pieces.iter().skip(1).map(resized).collect();
    let of = |window: u32| all.iter().filter(move |p| p.0 == [window]);
    assert!(of(0).count() > 1 && of(0).all(|p| p.2), "{all:?}");
    assert!(of(1).count() > 1 && of(1).all(|p| !p.2), "{all:?}");
}

#[test]
fn bytes_behind_the_end_are_left_out() {
    let bytes = TraceBuilder::sample().finish();
    let directory = scratch();
    let more = [&bytes[..], &[9; 5000]].concat();
    split_into(directory.path(), &more, By::Bytes(600)).unwrap();
    assert!(joined(&[directory.path().join("pieces")]).unwrap() == bytes);
}

/// The packets of a piece, with their kinds.
fn kinds(bytes: &[u8]) -> Vec<(u16, usize, usize)> {
    let kind = offset_of!(uapi::vmtrace_packet, kind);
    let mut at = HEADER_SIZE;
    let mut packets = Vec::new();
    while at + HEAD_SIZE <= bytes.len() {
        let size = offset_of!(uapi::vmtrace_packet, content_size);
        let size = u32::from_le_bytes(bytes[at + size..][..4].try_into().unwrap()) as usize;
        let of = u16::from_le_bytes(bytes[at + kind..][..2].try_into().unwrap());
        let end = at + HEAD_SIZE + size;
        packets.push((of, at, end));
        at = end;
    }
    packets
}

const STATE: u16 = uapi::VMTRACE_STREAM_STATE as u16;
const OWN: u16 = uapi::VMTRACE_STREAM_OWN as u16;
const REF: u16 = uapi::VMTRACE_STREAM_REF as u16;

fn errors(bytes: &[u8]) -> Vec<&'static str> {
    let report = check_bytes(bytes);
    let rules = report.rules.iter().filter(|rule| rule.errors > 0);
    rules.map(|rule| rule.id).collect()
}

/// What each part of a piece is good for: without it, the piece is bad.
#[test]
fn a_piece_needs_each_of_its_parts() {
    let directory = scratch();
    split_into(directory.path(), &sets(), By::Bytes(20_000)).unwrap();
    let all = files(&directory.path().join("pieces"));
    assert!(all.len() > 3);
    let good = fs::read(&all[1]).unwrap();
    assert_eq!(errors(&good), [""; 0]);
    let packets = kinds(&good);
    let without = |which: &dyn Fn(usize, u16) -> bool| {
        let mut bytes = good[..HEADER_SIZE].to_vec();
        for (i, &(kind, start, end)) in packets.iter().enumerate() {
            if !which(i, kind) {
                bytes.extend_from_slice(&good[start..end]);
            }
        }
        errors(&bytes)
    };
    // Without the description, nothing is known of what is referenced.
    let blind = without(&|_, kind| kind == STATE);
    assert!(blind.contains(&"lifecycle"), "{blind:?}");
    // Without its end, it was cut short.
    let last = packets.len() - 1;
    let cut = without(&|i, _| i == last);
    assert!(cut.contains(&"complete"), "{cut:?}");
    // Without one of its packets, own or copied, records are missing.
    let own = packets.iter().position(|p| p.0 == OWN).unwrap();
    let references = || (own..last).filter(|&i| packets[i].0 == REF);
    for gone in [
        references().next().unwrap(),
        references().next_back().unwrap(),
    ] {
        let short = without(&|i, _| i == gone);
        assert!(short.contains(&"conservation"), "{gone}: {short:?}");
        assert!(short.contains(&"sequence"), "{gone}: {short:?}");
    }
    // Without what says which piece it is, records of others are in it.
    let nameless = without(&|i, _| i == 0);
    assert!(nameless.contains(&"packet-crc"), "{nameless:?}");
}

/// Postprocs that do not know pieces refuse features that they do not know.
#[test]
fn a_piece_has_a_feature_that_older_readers_refuse() {
    let directory = scratch();
    let bytes = sets();
    split_into(directory.path(), &bytes, By::Bytes(20_000)).unwrap();
    let features = offset_of!(uapi::vmtrace_header, features);
    let of = |bytes: &[u8]| u64::from_le_bytes(bytes[features..][..8].try_into().unwrap());
    for path in files(&directory.path().join("pieces")) {
        let piece = fs::read(path).unwrap();
        assert_eq!(of(&piece), of(&bytes) | u64::from(uapi::VMTRACE_PIECE));
    }
}

#[test]
fn windows_of_pieces() {
    let bytes = windows();
    let directory = scratch();
    split_into(directory.path(), &bytes, By::Windows(2)).unwrap();
    let all = files(&directory.path().join("pieces"));
    assert_eq!(all.len(), 2);
    // Whole windows need no description.
    assert!(
        kinds(&fs::read(&all[1]).unwrap())
            .iter()
            .all(|p| p.0 != STATE)
    );
    let first = Trace::open(&all[0]).unwrap();
    assert_eq!(first.window_numbers(), [0, 1]);
    assert!(report(&first.only_window(1).unwrap(), false).good);
    let second = Trace::open(&all[1]).unwrap();
    assert_eq!(second.window_numbers(), [2]);
    assert!(report(&second.only_window(2).unwrap(), false).good);
    // In the middle of a window.
    let directory = scratch();
    split_into(directory.path(), &bytes, By::Bytes(3_000)).unwrap();
    let all = files(&directory.path().join("pieces"));
    let parts = all.iter().map(|path| Trace::open(path).unwrap());
    let parts: Vec<_> = parts
        .filter(|trace| trace.piece().unwrap().is_middle)
        .map(|trace| trace.only_window(0).err().map(|e| e.to_string()))
        .collect();
    let a_part = |e: &Option<String>| e.as_ref().is_some_and(|e| e.contains("only a part"));
    assert!(parts.iter().any(a_part), "{parts:?}");
}

/// The message of an error, with the names of files alone.
fn said(result: Result<Vec<u8>>, directory: &Path) -> String {
    let error = result
        .expect_err("pieces that cannot be joined")
        .to_string();
    error.replace(&format!("{}/", directory.display()), "")
}

#[test]
fn what_cannot_be_joined_is_named() {
    let directory = scratch();
    split_into(directory.path(), &sets(), By::Bytes(20_000)).unwrap();
    let pieces = directory.path().join("pieces");
    let all = files(&pieces);
    assert!(all.len() > 4);
    let says = |files: &[PathBuf]| said(joined(files), &pieces);
    // In any order.
    let mut turned = all.clone();
    turned.reverse();
    assert!(joined(&turned).unwrap() == sets());
    let without = |gone: &[usize]| {
        let left = all.iter().enumerate().filter(|(i, _)| !gone.contains(i));
        says(&left.map(|(_, path)| path.clone()).collect::<Vec<_>>())
    };
    assert!(without(&[0]).contains("missing: piece 0 of the trace"));
    assert!(without(&[1, 2]).contains("missing: pieces 1 to 2 of the trace"));
    let last = all.len() - 1;
    assert!(without(&[last]).contains(&format!("piece {last} and perhaps")));
    // Twice.
    let twice = pieces.join("twice.vmtrace");
    fs::copy(&all[1], &twice).unwrap();
    let both = says(&files(&pieces));
    assert!(
        both.contains("twice.vmtrace") && both.contains("piece 1"),
        "{both}"
    );
    fs::remove_file(&twice).unwrap();
    // Something else.
    let other = pieces.join("notes.txt");
    fs::write(&other, "a note").unwrap();
    assert!(says(from_ref(&pieces)).starts_with("notes.txt: this is no piece"));
    fs::write(&other, TraceBuilder::sample().finish()).unwrap();
    assert!(says(from_ref(&pieces)).starts_with("notes.txt: this is no piece"));
    fs::remove_file(&other).unwrap();
    fs::create_dir(&other).unwrap();
    assert!(says(from_ref(&pieces)).starts_with("notes.txt: this is no piece"));
    fs::remove_dir(&other).unwrap();
    // Of the same trace in another form, and split in another way.
    for (bytes, by) in [
        (packed(&sets()), By::Bytes(20_000)),
        (sets(), By::Bytes(15_000)),
    ] {
        let others = scratch();
        split_into(others.path(), &bytes, by).unwrap();
        let mut mixed = all.clone();
        mixed[1] = others.path().join("pieces/00001.vmtrace");
        let mixed = says(&mixed);
        assert!(mixed.contains("00001.vmtrace"), "{mixed}");
    }
    // Cut and changed ones. Own bytes are found wrong by the sum over them.
    let good = fs::read(&all[2]).unwrap();
    let own = kinds(&good).iter().find(|p| p.0 == OWN).unwrap().2;
    for at in [HEADER_SIZE + 3, own + 200, good.len() - 9] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        fs::write(&all[2], &bytes).unwrap();
        let bad = says(from_ref(&pieces));
        assert!(bad.starts_with("00002.vmtrace: this piece"), "{at}: {bad}");
        bytes = good[..at].to_vec();
        fs::write(&all[2], &bytes).unwrap();
        let bad = says(from_ref(&pieces));
        assert!(bad.starts_with("00002.vmtrace: this "), "{at}: {bad}");
    }
    fs::write(&all[2], good).unwrap();
    assert!(joined(from_ref(&pieces)).unwrap() == sets());
    // A compressed one.
    let whole = fs::read(&all[3]).unwrap();
    fs::remove_file(&all[3]).unwrap();
    fs::write(
        all[3].with_extension("vmtrace.zst"),
        zstd::encode_all(&whole[..], 1).unwrap(),
    )
    .unwrap();
    assert!(joined(from_ref(&pieces)).unwrap() == sets());
    assert!(report(&Trace::open(&pieces).unwrap(), false).good);
}

/// There may be more pieces than files can be open, whether or not they are compressed.
#[test]
fn many_pieces_are_read() {
    let mut b = TraceBuilder::new(1, 4);
    b.header_mut().buffer_size = 512;
    b.program();
    for i in 0..2_000 {
        b.touch(0, 10, 1, 0x1000 + (i % 8) * 0x1000);
    }
    let bytes = b.finish();
    let directory = scratch();
    split_into(directory.path(), &bytes, By::Bytes(600)).unwrap();
    let pieces = directory.path().join("pieces");
    let all = files(&pieces);
    assert!(all.len() > 120, "{}", all.len());
    let read = |command: &str| {
        let script = format!("ulimit -n 120; exec \"$0\" {command}");
        let done = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_postproc")])
            .current_dir(directory.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{command}: {done:?}");
        done.stdout
    };
    for _ in 0..2 {
        read("check pieces");
        assert!(read("join pieces -o -") == bytes);
        for path in files(&pieces) {
            let piece = fs::read(&path).unwrap();
            fs::write(&path, zstd::encode_all(&piece[..], 1).unwrap()).unwrap();
        }
    }
}

/// A last piece that was cut short is that of a trace that was cut short.
#[test]
fn a_set_whose_last_piece_was_cut_is_a_trace_that_was_cut() {
    let directory = scratch();
    split_into(directory.path(), &sets(), By::Bytes(20_000)).unwrap();
    let pieces = directory.path().join("pieces");
    let all = files(&pieces);
    let last = all.last().unwrap();
    let bytes = fs::read(last).unwrap();
    let packets = kinds(&bytes);
    fs::write(last, &bytes[..packets[packets.len() - 3].1]).unwrap();
    let report = report(&Trace::open(&pieces).unwrap(), false);
    let bad: Vec<_> = report.rules.iter().filter(|r| r.errors > 0).collect();
    assert!(
        bad.iter().all(|r| ["complete", "windows"].contains(&r.id)),
        "{bad:#?}"
    );
    assert!(!report.good);
    let short = said(joined(from_ref(&pieces)), &pieces);
    assert!(short.contains("cut short"), "{short}");
}

/// `recover` copies the own parts that are left.
#[test]
fn what_is_left_of_pieces_is_recovered() {
    let bytes = sets();
    let directory = scratch();
    split_into(directory.path(), &bytes, By::Bytes(15_000)).unwrap();
    let pieces = directory.path().join("pieces");
    let all = files(&pieces);
    let own = |path: &PathBuf| {
        let trace = Trace::open(path).unwrap();
        let piece = trace.piece().unwrap();
        let start = piece.offset as usize;
        start..start + piece.end.unwrap().size as usize
    };
    let parts: Vec<_> = all.iter().map(own).collect();
    let expected = |gone: &[usize]| {
        let kept = parts.iter().enumerate().filter(|p| !gone.contains(&p.0));
        let kept = kept.map(|(_, part)| &bytes[part.clone()]);
        [&[&bytes[..HEADER_SIZE]], &kept.collect::<Vec<_>>()[..]]
            .concat()
            .concat()
    };
    let recovered = |gone: &[usize], said: &[&str]| {
        let done = postproc(
            &["recover", "pieces", "-o", "out", "--json"],
            directory.path(),
        );
        let text = String::from_utf8(done.stdout.clone()).unwrap();
        assert_eq!(
            done.status.code(),
            Some(i32::from(!said.is_empty())),
            "{text} {done:?}"
        );
        let out = fs::read(directory.path().join("out")).unwrap();
        assert!(out == expected(gone), "{gone:?}");
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let skipped = json["skipped"].as_array().unwrap();
        assert_eq!(skipped.len(), said.len(), "{text}");
        for (skipped, said) in skipped.iter().zip(said) {
            assert!(skipped["detail"].as_str().unwrap().contains(said), "{text}");
            assert_eq!(skipped["kind"], "piece");
        }
    };
    assert!(all.len() > 5, "{}", all.len());
    let last = all.len() - 1;
    recovered(&[], &[]);
    // The copies behind the own part do not stand in it.
    let whole = fs::read(&all[1]).unwrap();
    let end = kinds(&whole).last().unwrap().1;
    assert!(end > parts[1].len() + HEADER_SIZE);
    fs::write(&all[1], &whole[..end]).unwrap();
    recovered(&[], &["00001.vmtrace: it was cut short"]);
    fs::remove_file(&all[2]).unwrap();
    fs::remove_file(&all[3]).unwrap();
    fs::write(&all[1], whole).unwrap();
    recovered(&[2, 3], &["missing: pieces 2 to 3 of the trace"]);
    let mut header = fs::read(&all[0]).unwrap();
    header[100] ^= 1;
    fs::write(&all[0], &header).unwrap();
    fs::write(pieces.join("notes"), "a note").unwrap();
    fs::copy(&all[last], pieces.join("twice")).unwrap();
    fs::create_dir(pieces.join("z")).unwrap();
    recovered(
        &[0, 2, 3],
        &[
            "00000.vmtrace",
            "notes: this is no piece",
            "z: this is no piece",
            &format!("this is piece {last}, and so is"),
            "missing: piece 0 of the trace",
            "missing: pieces 2 to 3 of the trace",
        ],
    );
    let text = postproc(&["recover", "pieces", "-o", "out"], directory.path());
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("not all pieces were copied whole:\n  pieces/00000.vmtrace: ")
            && text.contains("no bytes were left out"),
        "{text}"
    );
    // Other commands need all of them.
    let refused = postproc(&["check", "pieces"], directory.path());
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    for path in &all[1..] {
        let _ = fs::remove_file(path);
    }
    fs::remove_file(pieces.join("twice")).unwrap();
    let nothing = postproc(&["recover", "pieces", "-o", "none"], directory.path());
    assert_eq!(nothing.status.code(), Some(2), "{nothing:?}");
    assert!(!directory.path().join("none").exists());
}

/// The account of a piece does not say how large the set was at most, but its events do.
#[test]
fn a_piece_in_which_the_set_grows_has_no_bounds() {
    let directory = scratch();
    for grows in [false, true] {
        let mut b = TraceBuilder::new(1, 16);
        b.header_mut().buffer_size = 512;
        b.program();
        b.map_anon(0, 10, 1, 0x10_0000, 0x20_0000, Prot(3));
        let n = if grows { 32u32 } else { 8 };
        let payload = [16, n].map(u32::to_le_bytes).concat();
        b.event(0, 1, 0, uapi::VMTRACE_EV_RESIZE, &payload);
        for i in 0..600 {
            b.touch(0, 10, 1, 0x10_0000 + ((i * 7 % 101) << 12));
        }
        let pieces = directory.path().join(format!("{grows}"));
        let bytes = b.finish();
        let trace = Trace::from_bytes("memory", bytes).unwrap();
        let parts = plan(&trace, By::Bytes(10_000), &mut Unwatched).unwrap();
        split(&trace, &parts, &pieces, &mut Unwatched).unwrap();
        let args = [
            "simulate",
            "00000.vmtrace",
            "--policy",
            "lru",
            "--size",
            "60",
            "--json",
        ];
        let done = postproc(&args, &pieces);
        let bounds = String::from_utf8(done.stdout).unwrap().contains("\"low\"");
        assert_eq!(bounds, !grows, "{:?}", String::from_utf8(done.stderr));
    }
}

/// The mark before the own part has no content, whatever its head says.
#[test]
fn a_mark_that_is_longer_than_its_file_is_found() {
    let directory = scratch();
    split_into(directory.path(), &sets(), By::Bytes(20_000)).unwrap();
    let pieces = directory.path().join("pieces");
    let all = files(&pieces);
    let last = all.last().unwrap();
    let mut bytes = fs::read(last).unwrap();
    let &(_, start, end) = kinds(&bytes).iter().find(|p| p.0 == OWN).unwrap();
    bytes.truncate(end);
    let size = start + offset_of!(uapi::vmtrace_packet, content_size);
    bytes[size..][..4].copy_from_slice(&1000u32.to_le_bytes());
    fs::write(last, bytes).unwrap();
    let error = Trace::open(&pieces).err().map(|e| e.to_string());
    assert!(
        error.as_ref().is_some_and(|e| e.contains("no mark tells")),
        "{error:?}"
    );
}

#[test]
fn what_is_no_whole_trace_is_not_split_or_packed() {
    let directory = scratch();
    split_into(directory.path(), &sets(), By::Bytes(20_000)).unwrap();
    let piece = directory.path().join("pieces/00001.vmtrace");
    let trace = Trace::open(&piece).unwrap();
    let refused = plan(&trace, By::Bytes(1), &mut Unwatched).err();
    assert!(
        matches!(refused, Some(Error::IsPiece { .. })),
        "{refused:?}"
    );
    let refused = repack(&trace, Form::Unpacked, Vec::new(), "m", &mut Unwatched).err();
    assert!(
        matches!(refused, Some(Error::IsPiece { .. })),
        "{refused:?}"
    );
    // All together can be split anew.
    let again = scratch();
    let whole = Trace::open(directory.path().join("pieces")).unwrap();
    let other = plan(&whole, By::Bytes(9_000), &mut Unwatched).unwrap();
    let pieces = again.path().join("pieces");
    split(&whole, &other, &pieces, &mut Unwatched).unwrap();
    assert!(joined(from_ref(&pieces)).unwrap() == sets());
    // Nothing is written into a directory that has files.
    let taken = split(&whole, &other, directory.path(), &mut Unwatched).err();
    assert!(matches!(taken, Some(Error::Output { .. })), "{taken:?}");
}

/// Each command that reads a trace; `t` is the trace.
const COMMANDS: &[&[&str]] = &[
    &["check", "t"],
    &["check", "--frames", "--json", "t"],
    &["info", "t"],
    &["info", "--json", "t"],
    &["events", "t"],
    &["maps", "t"],
    &[
        "simulate",
        "t",
        "--policy",
        "lru,opt,clock",
        "--size",
        "100,300",
        "--json",
    ],
    &["simulate", "t", "--policy", "lru", "--curve"],
    &["export", "t", "--format", "csv", "-o", "-"],
    &["export", "t", "--format", "oracleGeneral", "-o", "-"],
    &["reduce", "t", "--method", "sad", "--size", "100", "-o", "-"],
    &["damon", "t", "--sampling", "5ms", "--aggregation", "100ms"],
    &["pack", "t", "-o", "-"],
    &["unpack", "t", "-o", "-"],
    &["recover", "t", "-o", "-"],
];

/// A directory of pieces gives what the trace gives, to the last byte.
#[test]
fn commands_give_the_same_of_a_directory() {
    let mut all = fixtures();
    all.push(("windows".into(), windows()));
    for (name, bytes) in all {
        let directory = scratch();
        split_into(directory.path(), &bytes, By::Bytes(20_000)).unwrap();
        let (one, many) = (directory.path().join("one"), directory.path().join("many"));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&many).unwrap();
        fs::write(one.join("t"), &bytes).unwrap();
        fs::rename(directory.path().join("pieces"), many.join("t")).unwrap();
        for command in COMMANDS {
            let of = |directory: &Path| -> Output { postproc(command, directory) };
            let (of_one, of_many) = (of(&one), of(&many));
            assert_eq!(
                of_one.status, of_many.status,
                "{name} {command:?}: {of_many:?}"
            );
            assert!(of_one.stdout == of_many.stdout, "{name} {command:?}");
            assert!(
                of_one.stderr == of_many.stderr,
                "{name} {command:?}: {of_many:?}"
            );
        }
        let report = ["report", "t", "-o", "report"];
        assert_eq!(
            postproc(&report, &one).status,
            postproc(&report, &many).status
        );
        let (of_one, of_many) = (files(&one.join("report")), files(&many.join("report")));
        assert_eq!(of_one.len(), of_many.len());
        for (of_one, of_many) in of_one.iter().zip(&of_many) {
            assert!(
                fs::read(of_one).unwrap() == fs::read(of_many).unwrap(),
                "{of_one:?}"
            );
        }
    }
}

#[test]
fn the_commands_say_what_they_did() {
    let directory = scratch();
    fs::write(directory.path().join("t"), windows()).unwrap();
    let run = |args: &[&str]| postproc(args, directory.path());
    let made = run(&["split", "t", "--by", "windows", "-o", "d", "--json"]);
    assert!(made.status.success(), "{made:?}");
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(made["pieces"].as_array().unwrap().len(), 3);
    assert_eq!(made["pieces"][2]["reference_records"], 200);
    let table = run(&["split", "t", "--by", "size=3KiB", "-o", "e"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("00001.vmtrace"), "{table}");
    let info = run(&["info", "e/00001.vmtrace"]);
    let info = String::from_utf8(info.stdout).unwrap();
    assert!(
        info.contains("piece      number 1, from sequence number"),
        "{info}"
    );
    // Each command whose result lacks something says so, of a piece that begins in the middle.
    for (command, warning) in [
        ("simulate P --policy lru --size 40", "no proven bounds"),
        ("reduce P --method sad --size 100 -o -", "no proven bounds"),
        ("report P -o r", "no proven bounds"),
        ("export P --format csv -o -", "they are missing until"),
        (
            "damon P --sampling 5ms --aggregation 100ms",
            "they seem to be unused until",
        ),
    ] {
        let said = |piece: &str| {
            let args: Vec<_> = command.split(' ').collect();
            let args = args.iter().map(|&arg| if arg == "P" { piece } else { arg });
            let done = run(&args.collect::<Vec<_>>());
            assert!(done.status.success(), "{command}: {done:?}");
            String::from_utf8(done.stderr).unwrap()
        };
        let of_middle = said("e/00001.vmtrace");
        assert!(of_middle.contains(warning), "{command}: {of_middle}");
        let of_window = said("d/00002.vmtrace");
        assert!(!of_window.contains("warning"), "{command}: {of_window}");
    }
    fs::remove_dir_all(directory.path().join("r")).unwrap();
    let joined = run(&["join", "d", "-o", "j", "--json"]);
    let joined: serde_json::Value = serde_json::from_slice(&joined.stdout).unwrap();
    assert_eq!(joined["pieces"], 3);
    assert!(fs::read(directory.path().join("j")).unwrap() == windows());
    fs::remove_file(directory.path().join("d/00001.vmtrace")).unwrap();
    for args in [
        &["join", "d", "-o", "k"][..],
        &["check", "d"],
        &["split", "t", "--by", "time=1s", "-o", "e"],
        &["split", "t", "--by", "weeks", "-o", "f"],
        &["join", "t", "-o", "k"],
        &["pack", "e/00001.vmtrace", "-o", "k"],
    ] {
        let refused = run(args);
        assert_eq!(refused.status.code(), Some(2), "{args:?} {refused:?}");
        assert!(!refused.stderr.is_empty());
    }
    // The directory replaces an empty one, and cannot replace a link to one. That is said at once.
    fs::create_dir(directory.path().join("empty")).unwrap();
    std::os::unix::fs::symlink("empty", directory.path().join("link")).unwrap();
    let refused = run(&["split", "t", "--by", "windows", "-o", "link"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("symbolic link"), "{said}");
    assert_eq!(refused.status.code(), Some(2));
    let again = run(&["split", "t", "--by", "windows", "-o", "empty"]);
    assert!(again.status.success(), "{again:?}");
    assert_eq!(files(&directory.path().join("empty")).len(), 3);
    fs::remove_dir_all(directory.path().join("empty")).unwrap();
    fs::remove_file(directory.path().join("link")).unwrap();
    let left: Vec<_> = files(directory.path());
    let names = left
        .iter()
        .map(|p| p.file_name().unwrap().to_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["d", "e", "j", "t"]);
}

/// Flips a bit, if there is such a byte.
fn flip(bytes: &mut [u8], at: usize, bit: u64) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << bit;
    }
}

/// A process of a random trace.
struct Running {
    tid: u32,
    mm: u32,
    extra: Vec<u64>,
}

/// Filters that a kernel can have, with what fits them.
fn filter(b: &mut TraceBuilder, r: &mut Random, cpu: u32) {
    let low = |a: Asked| a.address < 0x11_0000;
    match r.below(7) {
        0 => b.filter(cpu, "", |_| true),
        1 => b.filter(cpu, "addr < 0x110000", low),
        2 => b.filter(cpu, "page >= 0x110 && mode == user", move |a| !low(a)),
        3 => b.filter(cpu, "cpu == 0 || tid in (10, 20)", |a| {
            a.cpu == 0 || [10, 20].contains(&a.tid)
        }),
        4 => b.filter(cpu, "kind == write", |_| false),
        5 => b.filter(cpu, "mapping_kind == anon && addr < 0x110000", low),
        _ => b.filter(cpu, "tid in 10..=30", |a| (10..=30).contains(&a.tid)),
    }
}

/// A good trace of random events.
fn random(seed: u64, steps: u64) -> Vec<u8> {
    let mut r = Random::new(seed);
    let (mut b, cpus) = r.trace();
    let several = r.below(2) == 0;
    if several {
        b.several_sets();
    }
    let windows = match r.below(2) {
        0 => 0,
        _ => 1 + r.below(4),
    };
    let filters = r.below(3) == 0;
    if filters {
        b.filtered();
    }
    let mut next = 1;
    for window in 0..windows.max(1) {
        if windows > 0 {
            b.begin_window(1_000_000);
            b.snapshot(true);
        }
        // The next windows repeat it.
        if filters && window == 0 {
            filter(&mut b, &mut r, 0);
        }
        let first = 10 * next;
        let mut all = Vec::new();
        begin(&mut b, several, first, next, "program");
        b.snapshot(false);
        all.push(Running {
            tid: first,
            mm: next,
            extra: Vec::new(),
        });
        next += 1;
        for _ in 0..steps {
            let cpu = r.below(cpus.into()) as u32;
            let which = r.below(all.len() as u64) as usize;
            let (tid, mm) = (all[which].tid, all[which].mm);
            match r.below(100) {
                0..80 => {
                    b.read_early(r.below(3) * 50);
                    for i in 0..1 + r.below(6) {
                        b.touch(cpu, tid, mm, 0x10_0000 + ((r.below(40) + i) << 12));
                    }
                }
                80..83 => {
                    let start = 0x100_0000 + u64::from(next) * 0x10_0000;
                    b.map_anon(cpu, tid, mm, start, start + 0x4000, Prot(3));
                    b.touch(cpu, tid, mm, start);
                    all[which].extra.push(start);
                    next += 1;
                }
                83..85 => {
                    if let Some(start) = all[which].extra.pop() {
                        b.unmap(cpu, tid, mm, start, start + 0x4000);
                    }
                }
                85 if !several => {
                    let (child, child_mm) = (10 * next, next);
                    next += 1;
                    b.fork(cpu, tid, mm, child, child_mm);
                    let extra = all[which].extra.clone();
                    all.push(Running {
                        tid: child,
                        mm: child_mm,
                        extra,
                    });
                }
                86 if all.len() < 9 => {
                    begin(&mut b, several, 10 * next, next, "another");
                    all.push(Running {
                        tid: 10 * next,
                        mm: next,
                        extra: Vec::new(),
                    });
                    next += 1;
                }
                87 if all.len() > 1 => {
                    b.exit(cpu, tid, mm);
                    b.mm_end(cpu, tid, mm);
                    all.remove(which);
                }
                88 => b.cgroup(cpu, (tid, tid), "/a/group"),
                89 => {
                    let kind = uapi::VMTRACE_FILE_REGULAR;
                    b.file((cpu, tid, mm), uapi::VMTRACE_EV_OPEN, 7, kind, "data");
                }
                90 => {
                    let kind = uapi::VMTRACE_FILE_REGULAR;
                    b.file((cpu, tid, mm), uapi::VMTRACE_EV_CLOSE, 7, kind, "data");
                }
                91 => b.task(cpu, tid + 1, tid, mm, "thread"),
                // Another thread.
                95..98 => match r.below(6) {
                    0 => b.thread(cpu, tid, tid, mm, tid + 2),
                    1 => b.task(cpu, tid + 2, tid, mm, "worker"),
                    2 => b.task(cpu, tid, tid, mm, "renamed"),
                    3 => b.cgroup(cpu, (tid + 2, 0), "/of/thread"),
                    4 => b.cgroup(cpu, (tid, 0), "/of/leader"),
                    _ => b.touch(cpu, tid + 2, mm, 0x10_0000),
                },
                98 => {
                    let start = 0x100_0000 + u64::from(next) * 0x10_0000;
                    let name = ["/one", "/two"][r.below(2) as usize];
                    let file = FileId {
                        dev: 9,
                        ino: 1 + r.below(3),
                        generation: 0,
                    };
                    let kind = uapi::VMTRACE_MAP_FILE;
                    let range = start..start + 0x4000;
                    b.map(cpu, tid, mm, range, Prot(1), kind, 0, file, 0, name);
                    b.touch(cpu, tid, mm, start);
                    all[which].extra.push(start);
                    next += 1;
                }
                92 => b.protect(cpu, tid, mm, 0x10_0000, 0x11_0000, Prot(3)),
                93 => b.abort(),
                99 if filters => match r.below(3) {
                    0 => filter(&mut b, &mut r, cpu),
                    other => b.renew(cpu, tid, other == 1),
                },
                94 => b.leap(r.below(5_000)),
                _ => b.touch(cpu, tid, mm, 0x10_0000),
            }
        }
        if windows > 0 {
            b.end_window(|_| {});
            b.leap(r.below(20_000));
        }
    }
    b.finish()
}

fn begin(b: &mut TraceBuilder, several: bool, tid: u32, mm: u32, comm: &str) {
    if several {
        b.set(0, tid, mm, mm);
    }
    b.task(0, tid, tid, mm, comm);
    b.map_anon(0, tid, mm, 0x10_0000, 0x20_0000, Prot(3));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Whatever the trace is and wherever it is split.
    #[test]
    fn any_trace_in_any_pieces(
        seed in any::<u64>(),
        steps in 20..400u64,
        bytes in 600..20_000u64,
        time in 2_000..200_000u64,
        count in 1..4u32,
        pack in any::<bool>(),
    ) {
        let mut trace = random(seed, steps);
        if pack {
            trace = packed(&trace);
        }
        for by in [By::Bytes(bytes), By::Time(time), By::Windows(count)] {
            judge(&format!("{seed}"), &trace, by);
        }
    }

    /// Pieces that are cut, exchanged, repeated or changed, with checksums that hold, give an error
    /// or the trace.
    #[test]
    fn hostile_pieces(
        seed in any::<u64>(),
        changes in prop::collection::vec((any::<u64>(), 0..6u32), 1..5),
    ) {
        let bytes = random(seed % 16, 150);
        let directory = scratch();
        split_into(directory.path(), &bytes, By::Bytes(bytes.len() as u64 / 5)).unwrap();
        let pieces = directory.path().join("pieces");
        let all = files(&pieces);
        for (number, how) in changes {
            let mut r = Random::new(number);
            let path = &all[r.below(all.len() as u64) as usize];
            let other = &all[r.below(all.len() as u64) as usize];
            let (Ok(mut piece), Ok(exchanged)) = (fs::read(path), fs::read(other)) else {
                continue;
            };
            let mut packets = kinds(&piece);
            // It may have been cut before.
            packets.retain(|packet| packet.2 <= piece.len());
            if packets.is_empty() {
                continue;
            }
            let (_, start, end) = packets[r.below(packets.len() as u64) as usize];
            match how {
                0 => piece.truncate(r.below(piece.len() as u64) as usize),
                1 => drop(piece.drain(start..end)),
                2 => {
                    fs::write(other, &piece).unwrap();
                    piece = exchanged;
                }
                // What says which piece it is, or what it has.
                3 | 4 => {
                    let (_, start, end) = match how {
                        3 => packets[0],
                        _ => packets[packets.len() - 1],
                    };
                    let at = start + HEAD_SIZE + r.below((end - start - HEAD_SIZE) as u64) as usize;
                    flip(&mut piece, at, r.below(8));
                }
                _ => {
                    let at = start + 24 + r.below((end - start - 24) as u64) as usize;
                    flip(&mut piece, at, r.below(8));
                }
            }
            mend_checksums(&mut piece);
            fs::write(path, &piece).unwrap();
        }
        if let Ok(back) = joined(from_ref(&pieces)) {
            prop_assert!(back == bytes, "other bytes came back");
        }
        let all = all.iter().chain([&pieces]);
        for trace in all.filter_map(|path| Trace::open(path).ok()) {
            report(&trace, true);
            let _ = plan(&trace, By::Bytes(700), &mut Unwatched);
        }
    }
}
