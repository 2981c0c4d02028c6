//! Parts of traces, one for each process: each is readable by itself, and with the frame all are the
//! trace again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::slice::from_ref;

use crate::support::postproc;
use crate::support::random::Random;
use postproc::canon::PageMode;
use postproc::check::{CheckOptions, CheckReport, Checker};
use postproc::error::{Error, Result};
use postproc::filter::LeftOut;
use postproc::pipeline::{self, Batch, Consumer, Freeing, Place, Unwatched, World};
use postproc::sim::Certifier;
use postproc::streams::{Selected, Selection, Whose};
use postproc::testing::{Asked, TraceBuilder, mend_checksums, packets_of};
use postproc::trace::wire::HEAD_SIZE;
use postproc::trace::{
    DividedTrace, FRAME_NAME, FileId, Form, Merge, Step, Trace, divide, repack, unite,
};
use postproc::units::{CanonPage, Prot, Tid};
use proptest::prelude::*;
use rust_mm_trace::uapi;
use tempfile::TempDir;

fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Divides a trace into the directory `parts`.
fn divided(directory: &Path, bytes: &[u8]) -> Result<DividedTrace> {
    let trace = Trace::from_bytes("memory", bytes.to_vec())?;
    divide(&trace, &directory.join("parts"), &mut Unwatched)
}

fn united(paths: &[PathBuf]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    unite(paths, &mut out, "memory", &mut Unwatched)?;
    Ok(out)
}

/// The files in a directory, in order.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn report(trace: &Trace) -> CheckReport {
    let options = CheckOptions {
        allow_loss: true,
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

fn packed(bytes: &[u8], level: Option<i32>) -> Vec<u8> {
    let trace = Trace::from_bytes("memory", bytes.to_vec()).unwrap();
    let mut out = Vec::new();
    let form = Form::Packed(level);
    repack(&trace, form, &mut out, "memory", &mut Unwatched).unwrap();
    out
}

/// What a simulator gets: references with their pages, and pages that are freed.
#[derive(Debug, PartialEq)]
enum Got {
    Reference(u64, u64, CanonPage, Option<Prot>),
    Freed(Vec<CanonPage>),
}

#[derive(Default)]
struct Getter(Vec<Got>);

impl Consumer for Getter {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for ((r, place), page) in batch.refs.iter().zip(batch.places).zip(batch.pages) {
            let prot = match place {
                Place::Mapped { prot, .. } => Some(*prot),
                _ => None,
            };
            self.0.push(Got::Reference(r.seq, r.time_ns, *page, prot));
        }
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> Result<()> {
        let mut pages = pages.to_vec();
        // At the beginning of a window all are freed, in no order.
        pages.sort();
        self.0.push(Got::Freed(pages));
        Ok(())
    }
}

/// What a simulator gets of a process.
fn got(trace: &Trace, pid: Tid, freeing: Freeing) -> Vec<Got> {
    let mut getter = Getter::default();
    let mut selected = Selected::new(Selection::Process(pid), &mut getter);
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut selected];
    let mode = PageMode::Canonical;
    pipeline::run_with(trace, mode, freeing, &mut Unwatched, consumers).unwrap();
    getter.0
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
    mapping: Option<String>,
}

#[derive(Default)]
struct Teller(Vec<Told>);

impl Consumer for Teller {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        let world = batch.world;
        for (r, place) in batch.refs.iter().zip(batch.places) {
            let mut ancestors = BTreeSet::new();
            if let Whose::Process(id) = Whose::of(r.tid(), world) {
                world.tasks.any_ancestor(id, &mut |tgid| {
                    ancestors.insert(tgid.0);
                    false
                });
            }
            let mapping = world.space.get(r.mm).and_then(|s| s.find(r.address()));
            let mapping = mapping.filter(|_| matches!(place, Place::Mapped { .. }));
            self.0.push(Told {
                seq: r.seq,
                ancestors,
                set: world.space.set_of(r.mm),
                comm: world.tasks.comm(r.tid()).into(),
                cgroup: world.tasks.cgroup(r.tid()).into(),
                mapping: mapping.map(|m| {
                    let name = world.space.name(&m);
                    format!("{name} {:?} {:?} {:x}", m.kind, m.prot, m.flags)
                }),
            });
        }
        Ok(())
    }
}

fn told(trace: &Trace) -> BTreeMap<u64, Told> {
    let mut teller = Teller::default();
    pipeline::run(trace, PageMode::Unnamed, &mut Unwatched, &mut [&mut teller]).unwrap();
    teller.0.into_iter().map(|told| (told.seq, told)).collect()
}

/// The records of a trace, whatever they are of: sequence numbers, and all else but the place.
fn records(trace: &Trace) -> Vec<(u64, String)> {
    let (mut merge, mut batch, mut all) = (Merge::new(trace), Vec::new(), Vec::new());
    loop {
        batch.clear();
        let step = merge.fill(&mut batch, 100).unwrap();
        let done = matches!(step, Step::End);
        all.extend(batch.iter().map(|r| {
            let r = postproc::trace::Ref { offset: 0, ..*r };
            (r.seq, format!("{r:?}"))
        }));
        if done {
            assert_eq!(merge.take_damage().count(), 0);
            return all;
        }
    }
}

/// The rules that find errors.
fn broken(report: &CheckReport) -> BTreeSet<&'static str> {
    let rules = report.rules.iter().filter(|rule| rule.errors > 0);
    rules.map(|rule| rule.id).collect()
}

/// Records of which rule `filter` says that they fit, and that they are marked because they do not; and
/// what else it says. `None` if the trace has no filter.
fn fitting(report: &CheckReport) -> Option<(u64, u64, usize)> {
    let examples = &report.rule("filter").unwrap().examples;
    let first = &examples.first()?.message;
    let numbers = first
        .split_whitespace()
        .filter_map(|word| word.parse().ok());
    let numbers: Vec<u64> = numbers.collect();
    let marked = numbers.get(1).copied().unwrap_or(0);
    Some((*numbers.first()?, marked, examples.len() - 1))
}

/// What filters of the kernel have left out.
fn left_out(trace: &Trace) -> Option<LeftOut> {
    let outcome = pipeline::run(trace, PageMode::Unnamed, &mut Unwatched, &mut []).unwrap();
    LeftOut::of(trace, &outcome.world.filters)
}

fn has_bounds(trace: &Trace) -> bool {
    let mut certifier = Certifier::of_set(None);
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut certifier];
    pipeline::run(trace, PageMode::Canonical, &mut Unwatched, consumers).unwrap();
    certifier.certificate().is_some()
}

/// Demands what a part says of the filters of its trace.
fn judge_filters(part: &Trace, whole: &Trace) {
    assert!(!has_bounds(part));
    let (of_part, of_whole) = (left_out(part), left_out(whole));
    let (Some(of_part), Some(of_whole)) = (&of_part, &of_whole) else {
        assert_eq!(of_part, of_whole);
        return;
    };
    assert_eq!(of_part.filter, of_whole.filter);
    let keeps = whole.header().keeps_left_out();
    // Nobody knows which of them are the process's.
    assert_eq!(of_part.left_out, of_whole.left_out.filter(|_| keeps));
    let is_any = of_part.filter.iter().any(|filter| !filter.text.is_empty());
    assert_eq!(of_part.is_any, !keeps && is_any);
    assert_eq!(part.may_lack_references(), !keeps);
}

/// Divides a trace, and demands all that parts must have. Gives how many there were.
fn judge(name: &str, bytes: &[u8]) -> usize {
    let directory = scratch();
    let made = divided(directory.path(), bytes).unwrap();
    let parts = directory.path().join("parts");
    let there = files(&parts);
    assert_eq!(there.len(), made.parts.len() + 1, "{name}");
    let back = united(from_ref(&parts)).unwrap();
    assert!(back == bytes, "{name}: other bytes came back");
    let whole = Trace::from_bytes("memory", bytes.to_vec()).unwrap();
    let whole_report = report(&whole);
    let good = whole_report.good;
    let mut fit = (0, 0);
    let expected = records(&whole);
    let whole_told = told(&whole);
    let mut all = Vec::new();
    let pids: Vec<u32> = made.parts.iter().map(|part| part.pid).collect();
    for part in &made.parts {
        let path = parts.join(&part.file);
        let trace = Trace::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), part.bytes);
        let says = trace.part().unwrap();
        assert_eq!((says.number, says.pid.0), (part.number, part.pid));
        let judged = report(&trace);
        assert!(judged.good || !good, "{name} {path:?}: {judged:#?}");
        let more = &broken(&judged) - &broken(&whole_report);
        assert!(more.is_empty(), "{name} {path:?}: {judged:#?}");
        if let Some((kept, marked, _)) = fitting(&judged) {
            fit = (fit.0 + kept, fit.1 + marked);
        }
        judge_filters(&trace, &whole);
        let of_part = records(&trace);
        assert_eq!(of_part.len() as u64, part.reference_records);
        all.extend(of_part);
        // A process id that was used again, or in another window, is of several parts.
        if pids.iter().filter(|&&pid| pid == part.pid).count() == 1 {
            for freeing in [Freeing::Freed, Freeing::Kept] {
                let of_part = got(&trace, Tid(part.pid), freeing);
                let of_whole = got(&whole, Tid(part.pid), freeing);
                for (one, other) in of_part.iter().zip(&of_whole) {
                    assert_eq!(one, other, "{name} {path:?} {freeing:?}");
                }
                assert_eq!(of_part.len(), of_whole.len(), "{name} {path:?}");
            }
        }
        for (seq, one) in told(&trace) {
            assert_eq!(one, whole_told[&seq], "{name} {path:?}");
        }
        for window in trace.window_numbers() {
            let only = report(&trace.only_window(window).unwrap());
            assert!(only.good || !good, "{name} {path:?} {window}: {only:#?}");
            let more = &broken(&only) - &broken(&whole_report);
            assert!(more.is_empty(), "{name} {path:?} {window}: {only:#?}");
        }
    }
    all.sort();
    assert!(all == expected, "{name}: not each record once");
    // Each record is judged in its part as in the trace. (What is not judged is counted apart.)
    if let Some((kept, marked, 0)) = fitting(&whole_report) {
        assert_eq!(fit, (kept, marked), "{name}");
    }
    made.parts.len()
}

/// Two processes of several sets, of which the packets come late.
fn sets() -> Vec<u8> {
    let mut b = TraceBuilder::new(2, 16);
    b.several_sets();
    b.header_mut().buffer_size = 1024;
    for mm in 1..=8 {
        b.set(0, 10 * mm, mm, mm);
        b.task(0, 10 * mm, 10 * mm, mm, "program");
        b.map_anon(0, 10 * mm, mm, 0x10_0000, 0x20_0000, Prot(3));
        for i in 0..400u64 {
            let of = 1 + (i / 40) as u32 % mm;
            let page = 0x10_0000 + ((i * 7 % 101) << 12);
            b.touch((i & 1) as u32, 10 * of, of, page);
        }
    }
    b.finish()
}

#[test]
fn each_fixture_comes_back() {
    let mut all = fixtures();
    all.push(("sets".into(), sets()));
    let mut parts = 0;
    for (name, bytes) in all {
        parts += judge(&name, &bytes);
        for level in [None, Some(1), Some(3)] {
            parts += judge(&format!("packed {level:?} {name}"), &packed(&bytes, level));
        }
    }
    assert!(parts > 60, "{parts}");
}

/// Packets that this version would pack in another way are kept as they are.
#[test]
fn packets_of_other_packers_come_back() {
    let bytes = sets();
    let other = {
        // Each packet as a frame that says less than it could: level 0 is a level, too.
        let trace = Trace::from_bytes("memory", packed(&bytes, Some(-7))).unwrap();
        trace.file_bytes()
    };
    let fast = packed(&bytes, Some(-7));
    assert_eq!(other, fast.len() as u64);
    judge("fast", &fast);
    let directory = scratch();
    let made = divided(directory.path(), &fast).unwrap();
    assert!(made.frame_bytes > fast.len() as u64 / 3);
}

/// A trace that was cut between two packets has no END packet, and neither have its parts.
#[test]
fn a_trace_without_an_end_comes_back() {
    let whole = sets();
    let packets = packets_of(&whole);
    for &(_, end) in packets.iter().skip(3).step_by(11) {
        judge("cut", &whole[..end]);
    }
}

/// The pages of a child are those of its parent, and are freed when the last of all lets go of them.
#[test]
fn what_a_fork_shares_is_freed_as_in_the_whole_trace() {
    let mut b = TraceBuilder::new(1, 4);
    b.task(0, 10, 10, 1, "parent");
    b.map_anon(0, 10, 1, 0x1000, 0x9000, Prot(3));
    for page in 1..9u64 {
        b.touch(0, 10, 1, page << 12);
    }
    b.fork(0, 10, 1, 20, 2);
    b.fork(0, 10, 1, 30, 3);
    for page in 1..6u64 {
        b.touch(0, 20, 2, page << 12);
    }
    // Its parent has the pages, so nothing is freed.
    b.unmap(0, 20, 2, 0x1000, 0x3000);
    b.unmap(0, 10, 1, 0x1000, 0x3000);
    b.touch(0, 20, 2, 0x6000);
    // Now the last one lets go of them.
    b.mm_end(0, 30, 3);
    b.touch(0, 20, 2, 0x4000);
    b.cow(0, 20, 2, 0x5000);
    b.touch(0, 20, 2, 0x5000);
    let bytes = b.finish();
    assert_eq!(judge("fork", &bytes), 2);
    let directory = scratch();
    let made = divided(directory.path(), &bytes).unwrap();
    // All eight pages have their names from the parent.
    assert_eq!(made.parts[1].context_records, 8);
    let path = directory.path().join("parts").join(&made.parts[1].file);
    let of_child = got(&Trace::open(path).unwrap(), Tid(20), Freeing::Freed);
    let freed = |got: &&Got| matches!(got, Got::Freed(_));
    let at = of_child.iter().position(|got| freed(&got));
    assert_eq!(at, Some(6), "{of_child:?}");
    assert_eq!(of_child.iter().filter(freed).count(), 1, "{of_child:?}");
}

/// A checkpoint of the kernel describes what is in each part only.
#[test]
fn a_trace_that_the_kernel_wrote_in_pieces_comes_back() {
    for (several, is_filtered) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut b = TraceBuilder::new(2, 16);
        if several {
            b.several_sets();
        }
        if is_filtered {
            b.filtered();
        }
        b.header_mut().buffer_size = 1024;
        b.in_pieces(true);
        for mm in 1..=3 {
            if several {
                b.set(0, 10 * mm, mm, mm);
            }
            b.task(0, 10 * mm, 10 * mm, mm, "program");
            b.map_anon(0, 10 * mm, mm, 0x10_0000, 0x20_0000, Prot(3));
        }
        if is_filtered {
            b.filter(0, "addr < 0x130000", |a| a.address < 0x13_0000);
        }
        for round in 0..3u64 {
            for i in 0..300u64 {
                let mm = 1 + ((i / 20 + round) % 3) as u32;
                let page = 0x10_0000 + ((i * 7 % 101) << 12);
                b.touch((i & 1) as u32, 10 * mm, mm, page);
            }
            if round < 2 {
                b.rotate(0);
            }
        }
        let (whole, files) = b.finish_pieces();
        assert_eq!(judge("rotated", &whole), 3);
        // A part knows nothing of address spaces that others have, so it is no piece.
        let directory = scratch();
        let piece = Trace::from_bytes("piece", files[1].clone()).unwrap();
        let error = divide(&piece, &directory.path().join("parts"), &mut Unwatched);
        assert!(matches!(error, Err(Error::IsPiece { .. })), "{error:?}");
    }
}

/// Without references there is no part, and the frame is the trace.
#[test]
fn a_trace_without_references_comes_back() {
    let mut b = TraceBuilder::new(1, 4);
    b.program();
    assert_eq!(judge("no references", &b.finish()), 0);
    assert_eq!(judge("nothing", &TraceBuilder::new(1, 4).finish()), 0);
}

/// How a trace of two programs is filtered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Whole,
    Filtered,
    /// What does not fit is there, too, and marked.
    Marked,
}

/// Two programs with several sets or one, with windows or without, and with a filter that changes.
fn filtered(how: How, several: bool, windows: bool) -> Vec<u8> {
    let mut b = TraceBuilder::new(2, 8);
    b.header_mut().buffer_size = 1024;
    match how {
        How::Whole => {}
        How::Filtered => b.filtered(),
        How::Marked => b.keep_left_out(),
    }
    if several {
        b.several_sets();
    }
    let is_first = |a: Asked| a.tid == 10 || a.tid == 11;
    let mut next = 1;
    for window in 0..1 + u32::from(windows) {
        if windows {
            b.begin_window(1_000_000);
            b.snapshot(true);
        }
        let mms = [next, next + 1];
        next += 2;
        for (tid, mm, comm) in [(10, mms[0], "first"), (20, mms[1], "second")] {
            if several {
                b.set(0, tid, mm, mm);
            }
            b.task(0, tid, tid, mm, comm);
            b.map_anon(0, tid, mm, 0x10_0000, 0x20_0000, Prot(3));
        }
        b.snapshot(false);
        b.thread(0, 10, 10, mms[0], 11);
        let work = |b: &mut TraceBuilder| {
            for i in 0..200u64 {
                let which = (i / 20 % 2) as usize;
                let tid = [10 + (i % 2) as u32, 20][which];
                let page = 0x10_0000 + ((i * 7 % 32) << 12);
                b.touch((i / 3 % 2) as u32, tid, mms[which], page);
                if i % 11 == 0 {
                    b.renew_own((i % 2) as u32, i % 2 == 0);
                }
            }
        };
        if window == 0 && how != How::Whole {
            b.filter(0, "comm == \"first\" || addr < 0x110000", move |a| {
                is_first(a) || a.address < 0x11_0000
            });
        }
        work(&mut b);
        if window == 0 && how != How::Whole {
            b.filter(1, "pid != 10 || addr < 0x108000", move |a| {
                !is_first(a) || a.address < 0x10_8000
            });
        }
        work(&mut b);
        if windows {
            b.end_window(|_| {});
        }
    }
    b.finish()
}

/// Parts of a trace with a filter have the filter, and what fits it.
#[test]
fn a_trace_with_a_filter_comes_back() {
    for several in [false, true] {
        for windows in [false, true] {
            let [whole, left, marked] = [How::Whole, How::Filtered, How::Marked].map(|how| {
                let bytes = filtered(how, several, windows);
                let judged = report(&Trace::from_bytes("memory", bytes.clone()).unwrap());
                let health = how == How::Marked;
                let bad = broken(&judged);
                assert_eq!(bad, health.then_some("health").into_iter().collect());
                let name = format!("{how:?} {several} {windows}");
                assert_eq!(judge(&name, &bytes), if windows { 4 } else { 2 }, "{name}");
                for level in [None, Some(3)] {
                    judge(&format!("packed {level:?} {name}"), &packed(&bytes, level));
                }
                judged
            });
            assert_eq!(fitting(&whole), None);
            let (kept, none, more) = fitting(&left).unwrap();
            let (fit, marked, more_marked) = fitting(&marked).unwrap();
            assert_eq!((none, more, more_marked), (0, 0, 0));
            assert!(kept > 0 && marked > 0 && fit == kept, "{left:#?}");
        }
    }
}

/// Nothing of the filter can be missing from a part, or be another one.
#[test]
fn a_part_with_another_filter_is_not_good() {
    let directory = scratch();
    let bytes = filtered(How::Filtered, false, false);
    let made = divided(directory.path(), &bytes).unwrap();
    for part in &made.parts {
        let path = directory.path().join("parts").join(&part.file);
        let mut bytes = fs::read(path).unwrap();
        let text = b"pid != 10";
        let at = bytes.windows(text.len()).position(|other| other == text);
        let number = at.unwrap() + text.len() - 2;
        bytes[number..number + 2].copy_from_slice(match part.pid {
            10 => b"99",
            _ => b"20",
        });
        mend_checksums(&mut bytes);
        let judged = report(&Trace::from_bytes("part", bytes).unwrap());
        // All that fits the filter of the trace fits the one of the first part.
        let expected = if part.pid == 10 { &[][..] } else { &["filter"] };
        assert_eq!(broken(&judged).into_iter().collect::<Vec<_>>(), expected);
    }
}

/// What a filter of the kernel has left out is in no part either.
#[test]
fn references_that_were_left_out_are_counted_apart() {
    let mut bytes = TraceBuilder::sample().finish();
    let end = packets_of(&bytes).last().unwrap().1;
    bytes[end + HEAD_SIZE + offset_of!(uapi::vmtrace_status, left_out)] = 7;
    mend_checksums(&mut bytes);
    let directory = scratch();
    let made = divided(directory.path(), &bytes).unwrap();
    let others = made
        .parts
        .iter()
        .map(|part| part.reference_records)
        .sum::<u64>();
    for part in &made.parts {
        let path = directory.path().join("parts").join(&part.file);
        let bytes = fs::read(path).unwrap();
        let trace = Trace::from_bytes("part", bytes.clone()).unwrap();
        let events = trace.index().end.as_ref().unwrap().offset as usize;
        let at = events + HEAD_SIZE + offset_of!(uapi::vmtrace_status, left_out);
        assert_eq!(bytes[at..at + 8], [0; 8]);
        let left_out = trace.part().unwrap().left_out;
        assert!(left_out >= 7 + others - part.reference_records);
    }
    assert!(!made.parts.is_empty());
}

/// Whoever truncates a file ends its pages, and their private copies.
#[test]
fn files_end_for_all_who_have_mapped_them() {
    let mut b = TraceBuilder::new(1, 4);
    b.task(0, 10, 10, 1, "reader");
    b.task(0, 20, 20, 2, "another");
    b.task(0, 30, 30, 3, "stranger");
    b.map_anon(0, 20, 2, 0x1000, 0x9000, Prot(3));
    b.map_anon(0, 30, 3, 0x1000, 0x9000, Prot(3));
    let file = FileId {
        dev: 8 << 20 | 1,
        ino: 7,
        generation: 0,
    };
    let kind = uapi::VMTRACE_MAP_FILE;
    b.map(0, 10, 1, 0x1000..0x9000, Prot(3), kind, 0, file, 0, "/file");
    for page in 1..9u64 {
        b.touch(0, 10, 1, page << 12);
        b.touch(0, 30, 3, page << 12);
    }
    b.cow(0, 10, 1, 0x7000);
    b.touch(0, 10, 1, 0x7000);
    b.truncate(0, 20, 7, 0x3000);
    b.touch(0, 10, 1, 0x1000);
    b.touch(0, 20, 2, 0x1000);
    let bytes = b.finish();
    judge("file", &bytes);
    let directory = scratch();
    let made = divided(directory.path(), &bytes).unwrap();
    let path = |n: usize| directory.path().join("parts").join(&made.parts[n].file);
    let of_reader = got(&Trace::open(path(0)).unwrap(), Tid(10), Freeing::Freed);
    let freed = of_reader.iter().find_map(|got| match got {
        Got::Freed(pages) => Some(pages.len()),
        Got::Reference(..) => None,
    });
    assert_eq!(freed, Some(6), "{of_reader:?}");
    // It is no business of whoever has not mapped the file.
    let events: Vec<u64> = made.parts.iter().map(|part| part.events).collect();
    assert_eq!(events, [4, 2, 3]);
}

/// The times of context are of several CPUs, which may be far apart.
#[test]
fn context_of_cpus_that_were_interrupted_for_long() {
    let mut b = TraceBuilder::new(2, 8);
    b.task(0, 10, 10, 1, "parent");
    b.thread(0, 10, 10, 1, 11);
    b.map_anon(0, 10, 1, 0x1000, 0x40000, Prot(3));
    b.leap(1 << 33);
    for page in 1..30u64 {
        b.touch(0, 10, 1, page << 12);
        if page % 5 == 0 {
            b.read_early(1 << 29);
            b.touch(1, 11, 1, (page + 30) << 12);
        }
        b.leap(1000);
    }
    b.fork(0, 10, 1, 20, 2);
    b.touch(0, 20, 2, 0x5000);
    b.leap(1 << 33);
    b.touch(0, 20, 2, 0x6000);
    assert_eq!(judge("early", &b.finish()), 2);
}

/// A part is checked like a trace: nothing can be missing or changed.
#[test]
fn a_part_that_lacks_something_is_not_good() {
    let fixture = fixtures().into_iter().find(|f| f.0.starts_with("fork"));
    let directory = scratch();
    let made = divided(directory.path(), &fixture.unwrap().1).unwrap();
    let mut kinds = BTreeSet::new();
    for part in &made.parts {
        let path = directory.path().join("parts").join(&part.file);
        let good = fs::read(path).unwrap();
        for (start, end) in packets_of(&good) {
            kinds.insert(good[start + offset_of!(uapi::vmtrace_packet, kind)]);
            let cut = [&good[..start], &good[end..]].concat();
            let mut flipped = good.clone();
            flipped[(start + end) / 2] ^= 1;
            for bytes in [cut, flipped] {
                let trace = Trace::from_bytes("part", bytes).unwrap();
                assert!(!report(&trace).good);
                // No pages are named.
                let mut checker = Checker::new(CheckOptions::default());
                let consumers: &mut [&mut dyn Consumer] = &mut [&mut checker];
                pipeline::run(&trace, PageMode::Unnamed, &mut Unwatched, consumers).unwrap();
                assert!(!checker.report().good);
            }
        }
    }
    // References, events, which part it is, and context.
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), [1, 2, 32, 33]);
}

/// A process of a random trace.
struct Running {
    tid: u32,
    mm: u32,
    extra: Vec<u64>,
}

fn begin(b: &mut TraceBuilder, several: bool, tid: u32, mm: u32, comm: &str) -> Running {
    if several {
        b.set(0, tid, mm, mm);
    }
    b.task(0, tid, tid, mm, comm);
    b.map_anon(0, tid, mm, 0x10_0000, 0x20_0000, Prot(3));
    Running {
        tid,
        mm,
        extra: Vec::new(),
    }
}

/// Filters of [`filter`].
const FILTERS: u64 = 5;

/// The kernel judges by this filter from here on.
fn filter(b: &mut TraceBuilder, number: u64) {
    let (expr, keeps): (&str, fn(Asked) -> bool) = match number {
        0 => ("", |_| true),
        1 => ("addr < 0x110000", |a| a.address < 0x11_0000),
        2 => ("tid in (10, 20, 40)", |a| matches!(a.tid, 10 | 20 | 40)),
        3 => ("!(cpu == 0 && page > 0x108)", |a| {
            a.cpu != 0 || a.address < 0x10_9000
        }),
        _ => ("kind == write", |_| false),
    };
    b.filter(0, expr, keeps);
}

/// A good trace of random events.
fn random(seed: u64, steps: u64) -> Vec<u8> {
    let mut r = Random::new(seed);
    let (mut b, cpus) = r.trace();
    let several = r.below(3) == 0;
    if several {
        b.several_sets();
    }
    let windows = [0, 1 + r.below(4)][r.below(2) as usize];
    let is_filtered = match r.below(4) {
        0 => {
            b.filtered();
            true
        }
        1 => {
            b.keep_left_out();
            true
        }
        _ => false,
    };
    let mut next = 1;
    for _ in 0..windows.max(1) {
        if windows > 0 {
            b.begin_window(1_000_000);
            b.snapshot(true);
        }
        let mut all = vec![begin(&mut b, several, 10 * next, next, "pro/gram é")];
        b.snapshot(false);
        if is_filtered && next == 1 {
            filter(&mut b, r.below(FILTERS));
        }
        next += 1;
        for _ in 0..steps {
            let cpu = r.below(cpus.into()) as u32;
            let which = r.below(all.len() as u64) as usize;
            let (tid, mm) = (all[which].tid, all[which].mm);
            let page = 0x10_0000 + (r.below(40) << 12);
            match r.below(100) {
                0..60 => {
                    b.read_early(r.below(3) * 50);
                    for i in 0..1 + r.below(6) {
                        b.touch(cpu, tid, mm, page + (i << 12));
                    }
                }
                60..68 => {
                    b.cow(cpu, tid, mm, page);
                    b.touch(cpu, tid, mm, page);
                }
                68..71 => b.advise(cpu, tid, mm, page, page + 0x4000, 4),
                71..74 => {
                    let start = 0x100_0000 + u64::from(next) * 0x10_0000;
                    b.map_anon(cpu, tid, mm, start, start + 0x4000, Prot(3));
                    b.touch(cpu, tid, mm, start);
                    all[which].extra.push(start);
                    next += 1;
                }
                74..78 => {
                    let start = 0x100_0000 + u64::from(next) * 0x10_0000;
                    let file = FileId {
                        dev: 8 << 20 | 1,
                        ino: 1 + r.below(3),
                        generation: 0,
                    };
                    let flags = [0, uapi::VMTRACE_MAP_SHARED][r.below(2) as usize];
                    let kind = uapi::VMTRACE_MAP_FILE;
                    let range = start..start + 0x4000;
                    b.map(cpu, tid, mm, range, Prot(3), kind, flags, file, 0, "/file");
                    b.touch(cpu, tid, mm, start);
                    all[which].extra.push(start);
                    next += 1;
                }
                78 | 79 => {
                    if let Some(start) = all[which].extra.pop() {
                        b.unmap(cpu, tid, mm, start, start + 0x4000);
                    }
                }
                80 => {
                    if let Some(&start) = all[which].extra.last() {
                        b.touch(cpu, tid, mm, start + 0x1000);
                        b.cow(cpu, tid, mm, start + 0x1000);
                        b.touch(cpu, tid, mm, start + 0x1000);
                    }
                }
                81 | 82 => b.truncate(cpu, tid, 1 + r.below(3), 0x1000),
                83..87 if !several && all.len() < 9 => {
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
                // A child in the same address space.
                87 if !several => {
                    b.thread(cpu, tid, 10 * next, mm, 10 * next);
                    b.touch(cpu, 10 * next, mm, page);
                    b.exit(cpu, 10 * next, mm);
                    next += 1;
                }
                88 | 89 if !several => {
                    let new_mm = next;
                    next += 1;
                    b.exec(cpu, tid, mm, new_mm, "other");
                    b.map_anon(cpu, tid, new_mm, 0x10_0000, 0x20_0000, Prot(3));
                    b.mm_end(cpu, tid, mm);
                    all[which] = Running {
                        tid,
                        mm: new_mm,
                        extra: Vec::new(),
                    };
                }
                90 if all.len() < 9 => {
                    all.push(begin(&mut b, several, 10 * next, next, "another"));
                    next += 1;
                }
                91 | 92 if all.len() > 1 => {
                    b.exit(cpu, tid, mm);
                    b.mm_end(cpu, tid, mm);
                    all.remove(which);
                }
                93 => b.cgroup(cpu, (tid, tid), "/a/group"),
                94 => {
                    let kind = uapi::VMTRACE_FILE_REGULAR;
                    b.file((cpu, tid, mm), uapi::VMTRACE_EV_OPEN, 7, kind, "data");
                    b.io((cpu, tid, mm), uapi::VMTRACE_EV_READ, 7, 0, 9000);
                }
                95 => {
                    b.thread(cpu, tid, tid, mm, tid + 2);
                    b.touch(cpu, tid + 2, mm, page);
                }
                96 => b.abort(),
                97 => b.leap(r.below(5_000)),
                98 => b.renew_own(cpu, r.below(2) == 0),
                99 if is_filtered => filter(&mut b, r.below(FILTERS)),
                _ => b.touch(cpu, tid, mm, page),
            }
        }
        if windows > 0 {
            b.end_window(|_| {});
            b.leap(r.below(20_000));
        }
    }
    b.finish()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_trace_comes_back(seed in any::<u64>(), steps in 20..400u64, level in 0..3) {
        let mut trace = random(seed, steps);
        if level > 0 {
            trace = packed(&trace, Some(level - 1).filter(|&level| level > 0));
        }
        let parts = judge(&format!("{seed}"), &trace);
        // A filter may have left all out.
        let trace = Trace::from_bytes("memory", trace).unwrap();
        prop_assert!(parts > 0 || trace.header().is_filtered());
    }

    /// Files that are cut, exchanged or changed, with checksums that hold, give an error or the trace.
    #[test]
    fn hostile_parts(
        seed in any::<u64>(),
        changes in prop::collection::vec((any::<u64>(), 0..4u32), 1..4),
    ) {
        let bytes = random(seed % 16, 150);
        let directory = scratch();
        divided(directory.path(), &bytes).unwrap();
        let parts = directory.path().join("parts");
        let all = files(&parts);
        for (number, how) in changes {
            let mut r = Random::new(number);
            let path = &all[r.below(all.len() as u64) as usize];
            let other = &all[r.below(all.len() as u64) as usize];
            let (mut one, exchanged) = (fs::read(path).unwrap(), fs::read(other).unwrap());
            match how {
                0 => one.truncate(r.below(one.len() as u64) as usize),
                1 => {
                    fs::write(other, &one).unwrap();
                    one = exchanged;
                }
                2 if !one.is_empty() => {
                    let at = r.below(one.len() as u64) as usize;
                    one[at] ^= 1 << r.below(8);
                }
                _ if one.len() > 8192 && !path.ends_with(FRAME_NAME) => {
                    let at = 4096 + r.below(4096) as usize;
                    one[at] ^= 1 << r.below(8);
                    mend_checksums(&mut one);
                }
                _ => {}
            }
            fs::write(path, &one).unwrap();
        }
        if let Ok(back) = united(from_ref(&parts)) {
            prop_assert!(back == bytes, "other bytes came back");
        }
        for trace in all.iter().filter_map(|path| Trace::open(path).ok()) {
            report(&trace);
        }
    }
}

/// The same trace as if it were another one.
fn with_another_uuid(bytes: &[u8]) -> Vec<u8> {
    let mut other = bytes.to_vec();
    other[offset_of!(uapi::vmtrace_header, uuid)] ^= 1;
    let crc = offset_of!(uapi::vmtrace_header, crc);
    let sum = crc32c::crc32c(&other[..crc]);
    other[crc..crc + 4].copy_from_slice(&sum.to_le_bytes());
    let packets = packets_of(bytes);
    // The END packet is the last one.
    let end = packets.last().map(|packet| packet.1);
    for start in packets.iter().map(|packet| packet.0).chain(end) {
        other[start + offset_of!(uapi::vmtrace_packet, uuid)] ^= 1;
    }
    mend_checksums(&mut other);
    other
}

/// What is wrong is said of the file that it is wrong with.
#[test]
fn files_that_do_not_fit_are_refused_by_name() {
    let bytes = sets();
    let of_another = scratch();
    divided(of_another.path(), &with_another_uuid(&bytes)).unwrap();
    let of_another = files(&of_another.path().join("parts"));
    let copied = |_: u64| ();
    type Change<'c> = &'c dyn Fn(&Path, &[PathBuf]);
    let cut = |path: &Path, len: usize| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..len.min(bytes.len() - 1)]).unwrap();
    };
    let flip = |path: &Path, at: usize| {
        let mut bytes = fs::read(path).unwrap();
        let at = at.min(bytes.len() - 1);
        bytes[at] ^= 1;
        fs::write(path, &bytes).unwrap();
    };
    type Expected = fn(&Error) -> bool;
    let cases: [(Change<'_>, &str, Expected); 13] = [
        (
            &|_, all| fs::remove_file(&all[3]).unwrap(),
            "00003-40-program.vmtrace",
            |e| matches!(e, Error::PartMissing { .. }),
        ),
        (
            &|d, _| fs::remove_file(d.join(FRAME_NAME)).unwrap(),
            "parts",
            |e| matches!(e, Error::FrameMissing { .. }),
        ),
        (
            &|_, all| copied(fs::copy(&all[2], &all[3]).unwrap()),
            "00003-40-program",
            |e| matches!(e, Error::PartTwice { .. }),
        ),
        (
            &|d, _| copied(fs::copy(d.join(FRAME_NAME), d.join("second")).unwrap()),
            FRAME_NAME,
            |e| matches!(e, Error::PartTwice { .. }),
        ),
        (
            &|_, all| copied(fs::copy(&of_another[0], &all[3]).unwrap()),
            "00003-40-program",
            |e| matches!(e, Error::PartOfAnother { .. }),
        ),
        (
            &|d, _| copied(fs::copy(of_another.last().unwrap(), d.join(FRAME_NAME)).unwrap()),
            "00000-10-program",
            |e| matches!(e, Error::PartOfAnother { .. }),
        ),
        (
            &|_, all| cut(&all[3], usize::MAX),
            "00003-40-program",
            |e| matches!(e, Error::PartDamaged { .. }),
        ),
        (&|_, all| cut(&all[3], 4200), "00003-40-program", |e| {
            matches!(e, Error::PartDamaged { .. })
        }),
        (&|_, all| cut(&all[3], 100), "00003-40-program", |e| {
            matches!(e, Error::ShortHeader { .. })
        }),
        (&|_, all| flip(&all[3], 6000), "00003-40-program", |e| {
            matches!(e, Error::PartDamaged { .. })
        }),
        (&|d, _| flip(&d.join(FRAME_NAME), 6000), FRAME_NAME, |e| {
            matches!(e, Error::FrameDamaged { .. })
        }),
        (&|d, _| flip(&d.join(FRAME_NAME), 3), FRAME_NAME, |e| {
            matches!(e, Error::FrameDamaged { .. })
        }),
        (
            &|d, _| fs::write(d.join("notes"), "of mine").unwrap(),
            "notes",
            |e| matches!(e, Error::NotAPart { .. }),
        ),
    ];
    for (number, (change, name, expected)) in cases.into_iter().enumerate() {
        let directory = scratch();
        divided(directory.path(), &bytes).unwrap();
        let parts = directory.path().join("parts");
        change(&parts, &files(&parts));
        let error = united(from_ref(&parts)).expect_err("an error");
        assert!(expected(&error), "{number}: {error:?}");
        let text = error.to_string();
        assert!(text.contains(name), "{number}: {text}");
        let run = postproc(&["join", "parts", "-o", "whole.vmt"], directory.path());
        assert_eq!(run.status.code(), Some(2), "{number}");
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(said.contains(name), "{number}: {said}");
        assert!(!directory.path().join("whole.vmt").exists());
    }
}

/// Names do not matter, nor does the order; hidden files are none.
#[test]
fn parts_may_be_renamed_and_compressed() {
    let bytes = sets();
    let directory = scratch();
    divided(directory.path(), &bytes).unwrap();
    let parts = directory.path().join("parts");
    let all = files(&parts);
    fs::rename(&all[0], parts.join("x")).unwrap();
    fs::rename(&all[1], &all[0]).unwrap();
    fs::rename(parts.join("x"), &all[1]).unwrap();
    fs::rename(parts.join(FRAME_NAME), parts.join("a frame")).unwrap();
    fs::write(parts.join(".hidden"), "notes").unwrap();
    let packed = zstd::encode_all(&fs::read(&all[2]).unwrap()[..], 1).unwrap();
    fs::write(&all[2], packed).unwrap();
    assert!(united(from_ref(&parts)).unwrap() == bytes);
    fs::remove_file(parts.join(".hidden")).unwrap();
    let mut one_by_one = files(&parts);
    one_by_one.reverse();
    assert!(united(&one_by_one).unwrap() == bytes);
}

/// What cannot be divided is left alone, and so is what takes no part.
#[test]
fn some_traces_are_refused() {
    let whole = sets();
    let mut damaged = vec![whole[..whole.len() - 700].to_vec()];
    let (start, end) = packets_of(&whole)[5];
    let mut flipped = whole.clone();
    flipped[(start + end) / 2] ^= 1;
    damaged.push(flipped);
    let mut b = TraceBuilder::sample();
    b.repeat_sequence_number();
    b.touch(0, 10, 1, 0x1000);
    damaged.push(b.finish());
    for bytes in damaged {
        let directory = scratch();
        let error = divided(directory.path(), &bytes).expect_err("an error");
        assert!(matches!(error, Error::NotDivided { .. }), "{error}");
        assert!(files(directory.path()).is_empty());
    }
    let directory = scratch();
    let path = directory.path();
    fs::write(path.join("t.vmt"), &whole).unwrap();
    let run = |args: &[&str]| {
        let run = postproc(args, path);
        let said = String::from_utf8(run.stderr).unwrap();
        (run.status.code(), said)
    };
    let done = run(&["split", "t.vmt", "--by", "process", "-o", "parts"]);
    assert_eq!(done.0, Some(0), "{done:?}");
    let part = "parts/00000-10-program.vmtrace";
    for args in [
        &["split", part, "--by", "process", "-o", "again"][..],
        &["split", part, "--by", "size=1MiB", "-o", "again"],
        &["pack", part, "-o", "again"],
        &["unpack", part, "-o", "again"],
        &["check", "parts"],
        &["join", part, "-o", "again"],
        &["split", "t.vmt", "--by", "process", "-o", "parts"],
    ] {
        let (code, said) = run(args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(!said.is_empty() && !path.join("again").exists(), "{args:?}");
    }
    // Pieces are divided when they are joined.
    run(&["split", "t.vmt", "--by", "size=10KiB", "-o", "pieces"]);
    let (code, said) = run(&[
        "split",
        "pieces/00001.vmtrace",
        "--by",
        "process",
        "-o",
        "p2",
    ]);
    assert_eq!(code, Some(2), "{said}");
    let (code, said) = run(&["split", "pieces", "--by", "process", "-o", "p2"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run(&["join", "p2", "-o", "again.vmt"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(fs::read(path.join("again.vmt")).unwrap() == whole);
}

/// Each command reads a part, and says what its results are not.
#[test]
fn commands_read_a_part() {
    let (_, bytes) = fixtures()
        .into_iter()
        .find(|f| f.0.starts_with("fork"))
        .unwrap();
    let directory = scratch();
    let path = directory.path();
    fs::write(path.join("t.vmt"), &bytes).unwrap();
    let json = |args: &[&str]| -> serde_json::Value {
        let run = postproc(args, path);
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(run.status.success(), "{args:?}: {said}");
        serde_json::from_slice(&run.stdout).unwrap()
    };
    let split = json(&["split", "t.vmt", "--by", "process", "--json", "-o", "parts"]);
    let parts = split["parts"].as_array().unwrap();
    assert!(parts.len() > 1, "{split}");
    let mut by_pid: BTreeMap<u64, usize> = BTreeMap::new();
    for part in parts {
        *by_pid.entry(part["pid"].as_u64().unwrap()).or_default() += 1;
    }
    for part in parts {
        let file = format!("parts/{}", part["file"].as_str().unwrap());
        let pid = part["pid"].as_u64().unwrap();
        assert!(file.contains(&format!("-{pid}")), "{file}");
        let info = json(&["info", &file, "--json"]);
        assert_eq!(info["part"]["pid"], part["pid"]);
        assert_eq!(info["reference_records"], part["reference_records"]);
        let checked = json(&["check", &file, "--json"]);
        let rules = checked["rules"].as_array().unwrap();
        let residency = rules.iter().find(|rule| rule["id"] == "residency").unwrap();
        assert_eq!(residency["notes"], 1, "{residency}");
        if by_pid[&pid] > 1 {
            continue;
        }
        let filter = format!("pid == {pid}");
        let simulate = ["simulate", "--policy", "lru,opt", "--curve", "--json"];
        let of_part = json(&[&simulate[..], &[&file]].concat());
        let of_whole = json(&[&simulate[..], &["t.vmt", "--where", &filter]].concat());
        assert_eq!(of_part["exact"], false);
        for field in ["references", "cold", "sizes", "curve"] {
            assert_eq!(of_part[field], of_whole[field], "{file} {field}");
        }
        for args in [
            &["report", &file, "-o", "report"][..],
            &["export", &file, "--format", "csv", "-o", "out.csv"],
            &["events", &file],
            &["maps", &file],
        ] {
            let run = postproc(args, path);
            let said = String::from_utf8_lossy(&run.stderr).into_owned();
            assert!(run.status.success(), "{args:?}: {said}");
        }
        fs::remove_dir_all(path.join("report")).unwrap();
    }
    let joined = json(&["join", "parts", "--json", "-o", "again.vmt"]);
    assert_eq!(joined["parts"], parts.len());
    assert!(fs::read(path.join("again.vmt")).unwrap() == bytes);
}

/// A part of a trace with a filter: commands say what is missing, and results have neither bounds nor
/// errors that were measured with whole traces.
#[test]
fn commands_read_a_part_of_a_trace_with_a_filter() {
    let directory = scratch();
    let path = directory.path();
    let run = |args: &[&str]| {
        let run = postproc(args, path);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (run.status.code(), text(run.stdout), text(run.stderr))
    };
    for how in [How::Whole, How::Filtered] {
        let (trace, parts) = (format!("{how:?}.vmt"), format!("{how:?}"));
        fs::write(path.join(&trace), filtered(how, false, false)).unwrap();
        assert_eq!(
            run(&["split", &trace, "--by", "process", "-o", &parts]).0,
            Some(0)
        );
        let part = format!("{parts}/00000-10-first.vmtrace");
        let line = "filter: an unknown number of references was left out by: comm == \"first\" || ";
        let is_filtered = how == How::Filtered;
        let simulate = ["simulate", &part, "--size", "40", "--policy", "lru,opt,arc"];
        for args in [&["info", &part][..], &["check", &part], &simulate] {
            let (code, said, _) = run(args);
            assert_eq!(code, Some(0));
            assert_eq!(said.contains(line), is_filtered, "{args:?}: {said}");
        }
        let (_, said, _) = run(&["info", &part]);
        let elsewhere = "are in other parts, or were left out by a filter of the kernel\n";
        assert_eq!(said.contains(elsewhere), is_filtered, "{said}");
        let (_, said, _) = run(&[&simulate[..], &["--json"]].concat());
        let value: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(value["exact"], false);
        let why = value["why_not_exact"].as_str().unwrap();
        assert!(why.starts_with("this is the part of one process."), "{why}");
        let rows = value["sizes"].as_array().unwrap();
        assert_eq!(rows.len(), 3);
        for row in rows {
            let has = |field| row.get(field).is_some();
            assert!(!has("low") && !has("measured_error"), "{row}");
        }
        let (code, _, said) = run(&["simulate", &part, "--size", "40", "--fill"]);
        assert_eq!(code == Some(2), is_filtered, "{said}");
        let page = format!("{parts}.html");
        let (code, said, _) = run(&["report", &part, "-o", &page]);
        assert_eq!(code, Some(0));
        let page = fs::read_to_string(path.join(page)).unwrap();
        let bounds = ["none: one process's part", "none: some are left out"];
        assert!(said.contains(bounds[usize::from(is_filtered)]), "{said}");
        assert!(
            said.contains("  this is the part of process 10 first\n"),
            "{said}"
        );
        assert!(page.contains("This is the part of one process. The bands"));
        assert!(!page.contains("They are proven"));
    }
}
