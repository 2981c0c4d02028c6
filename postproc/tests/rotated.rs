//! Pieces as a kernel writes them that rotates its output.

use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::slice::from_ref;

use crate::support::postproc;
use crate::support::random::Random;
use postproc::canon::PageMode;
use postproc::check::{CheckOptions, CheckReport, Checker};
use postproc::error::Result;
use postproc::pipeline::{self, Batch, Consumer, Place, Unwatched};
use postproc::testing::{Asked, TraceBuilder, check_bytes, mend_checksums};
use postproc::trace::wire::{HEAD_SIZE, HEADER_SIZE};
use postproc::trace::{Body, Merge, NoNews, Step, StreamKind, Trace, Why, join};
use postproc::units::{Mm, Prot};
use proptest::prelude::*;
use rust_mm_trace::uapi;
use tempfile::TempDir;

const RW: Prot = Prot(3);

fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn report(trace: &Trace) -> CheckReport {
    let options = CheckOptions {
        allow_loss: false,
        examples: 3,
    };
    let mut checker = Checker::new(options);
    let mode = PageMode::Canonical;
    pipeline::run(trace, mode, &mut Unwatched, &mut [&mut checker]).unwrap();
    checker.report()
}

fn found(report: &CheckReport) -> String {
    serde_json::to_string(report).unwrap()
}

/// The rules with errors, and how many.
fn errors(bytes: &[u8]) -> Vec<(&'static str, u64)> {
    let report = check_bytes(bytes);
    let rules = report.rules.iter().filter(|rule| rule.errors > 0);
    rules.map(|rule| (rule.id, rule.errors)).collect()
}

/// Demands that a file is good by itself.
#[track_caller]
fn good(name: &str, bytes: &[u8]) {
    let report = check_bytes(bytes);
    assert!(report.good, "{name}: {report:#?}");
    // No rule was left out.
    let notes = |id: &str| report.rule(id).unwrap().examples.iter().map(|f| &f.message);
    let left_out: Vec<_> = notes("checkpoint").chain(notes("residency")).collect();
    assert!(
        !left_out.iter().any(|m| m.contains("not applied")),
        "{name}: {left_out:?}"
    );
}

/// Writes files into a directory as pieces, from number `from` on.
fn write(directory: &Path, files: &[Vec<u8>], from: usize) -> Vec<PathBuf> {
    fs::create_dir_all(directory).unwrap();
    let path = |(i, bytes): (usize, &Vec<u8>)| {
        let path = directory.join(format!("{i:05}.vmtrace"));
        fs::write(&path, bytes).unwrap();
        path
    };
    files.iter().enumerate().skip(from).map(path).collect()
}

fn joined(paths: &[PathBuf]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    join(paths, &mut out, "memory", &mut Unwatched)?;
    Ok(out)
}

/// Three programs, each of which may have a set.
fn programs(cpus: u32, several: bool, pack: bool) -> TraceBuilder {
    let mut b = TraceBuilder::new(cpus, 16);
    if several {
        b.several_sets();
    }
    b.header_mut().buffer_size = 1024;
    b.in_pieces(pack);
    for mm in 1..=3 {
        if several {
            b.set(0, 10 * mm, mm, mm);
        }
        b.task(0, 10 * mm, 10 * mm, mm, "program");
        b.cgroup(0, (10 * mm, 10 * mm), "/some/group");
        b.map_anon(0, 10 * mm, mm, 0x10_0000, 0x20_0000, RW);
        b.map_file(0, 10 * mm, mm, 0x40_0000, 0x48_0000, Prot(5), false, 7, 0);
    }
    b
}

fn work(b: &mut TraceBuilder, cpus: u32, references: u64) {
    for i in 0..references {
        let mm = 1 + (i / 20 % 3) as u32;
        let cpu = i as u32 % cpus;
        b.touch(cpu, 10 * mm, mm, 0x10_0000 + ((i * 7 % 101) << 12));
        if i % 13 == 0 {
            b.protect(cpu, 10 * mm, mm, 0x10_0000, 0x11_0000, RW);
        }
    }
}

/// The same in this many pieces.
fn rotated(cpus: u32, several: bool, pack: bool, pieces: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut b = programs(cpus, several, pack);
    for _ in 1..pieces {
        work(&mut b, cpus, 300);
        b.rotate(0);
    }
    work(&mut b, cpus, 300);
    b.finish_pieces()
}

const WAYS: [(u32, bool, bool); 4] = [
    (1, false, false),
    (2, false, true),
    (1, true, true),
    (3, true, false),
];

/// Demands all that pieces must have, and that the trace must have.
fn judge(name: &str, whole: &[u8], files: &[Vec<u8>]) {
    good(name, whole);
    for (number, file) in files.iter().enumerate() {
        good(&format!("{name}, piece {number}"), file);
    }
    let directory = scratch();
    write(&directory.path().join("all"), files, 0);
    let all = directory.path().join("all");
    assert!(joined(from_ref(&all)).unwrap() == whole, "{name}");
    let of_all = report(&Trace::open(&all).unwrap());
    let of_whole = report(&Trace::from_bytes("memory", whole.to_vec()).unwrap());
    assert_eq!(found(&of_all), found(&of_whole), "{name}");
    for from in 1..files.len() {
        let some = directory.path().join(format!("from {from}"));
        write(&some, files, from);
        let one = joined(from_ref(&some)).unwrap();
        good(&format!("{name}, from piece {from} on"), &one);
        let of_some = report(&Trace::open(&some).unwrap());
        let of_one = report(&Trace::from_bytes("memory", one).unwrap());
        assert_eq!(found(&of_some), found(&of_one), "{name}");
    }
}

#[test]
fn each_piece_is_readable_and_all_are_the_trace() {
    for (cpus, several, pack) in WAYS {
        let (whole, files) = rotated(cpus, several, pack, 4);
        assert_eq!(files.len(), 4);
        judge(&format!("{cpus} {several} {pack}"), &whole, &files);
    }
}

/// A packet may have events of two pieces. Then both have it.
#[test]
fn a_packet_of_events_may_span_the_boundary() {
    let mut b = programs(2, false, false);
    work(&mut b, 2, 100);
    b.open_next(0);
    for mm in b.living() {
        b.describe(0, mm);
    }
    b.end_checkpoint(0);
    b.cut();
    let first_seq = b.last_seq() + 1;
    for i in 0..3 {
        b.protect(0, 10, 1, 0x10_0000, 0x11_0000 + (i << 12), RW);
        b.touch(1, 10, 1, 0x10_0000 + (i << 12));
    }
    b.switch();
    work(&mut b, 2, 100);
    let (whole, files) = b.finish_pieces();
    let spans = |file: &[u8]| {
        let heads = kinds(file).into_iter();
        let number = |at: usize| u64::from_le_bytes(file[at..][..8].try_into().unwrap());
        let numbers = heads.filter(|head| head.0 == EVENT).map(|(_, at, _)| {
            let first = number(at + offset_of!(uapi::vmtrace_packet, first_seq));
            (
                first,
                number(at + offset_of!(uapi::vmtrace_packet, last_seq)),
            )
        });
        numbers
            .filter(|n| n.0 < first_seq && n.1 >= first_seq)
            .count()
    };
    assert_eq!((spans(&files[0]), spans(&files[1])), (1, 1));
    judge("spanning", &whole, &files);
}

const EVENT: u16 = uapi::VMTRACE_STREAM_EVENT as u16;
const OWN: u16 = uapi::VMTRACE_STREAM_OWN as u16;

/// The packets of a piece, with their kinds.
fn kinds(bytes: &[u8]) -> Vec<(u16, usize, usize)> {
    let kind = offset_of!(uapi::vmtrace_packet, kind);
    let size = offset_of!(uapi::vmtrace_packet, content_size);
    let mut at = HEADER_SIZE;
    let mut packets = Vec::new();
    while at + HEAD_SIZE <= bytes.len() {
        let content = u32::from_le_bytes(bytes[at + size..][..4].try_into().unwrap());
        let of = u16::from_le_bytes(bytes[at + kind..][..2].try_into().unwrap());
        let end = at + HEAD_SIZE + content as usize;
        packets.push((of, at, end));
        at = end;
    }
    packets
}

/// Without any packet before its own part, what is described is not known, and that is found.
#[test]
fn a_description_is_complete_or_not_good() {
    let mut b = programs(1, false, false);
    work(&mut b, 1, 50);
    b.rotate(0);
    work(&mut b, 1, 50);
    let (_, files) = b.finish_pieces();
    let packets = kinds(&files[1]);
    let own = packets.iter().position(|p| p.0 == OWN).unwrap();
    assert!(own > 3);
    for (gone, &(_, start, end)) in packets.iter().enumerate().take(own).skip(1) {
        let bytes = [&files[1][..start], &files[1][end..]].concat();
        let errors = errors(&bytes);
        assert!(
            errors
                .iter()
                .any(|e| ["checkpoint", "packet-order"].contains(&e.0)),
            "{gone}: {errors:?}"
        );
    }
}

/// What a reader of a trace gets of its events: each as its name, whether it is of the description,
/// and why it is no news.
fn seen(bytes: &[u8]) -> Vec<(String, bool, Option<NoNews>)> {
    let trace = Trace::from_bytes("memory", bytes.to_vec()).unwrap();
    let mut merge = Merge::of_kinds(&trace, &[StreamKind::Event]);
    let mut seen = Vec::new();
    while let Step::Event(e) = merge.fill(&mut Vec::new(), 1).unwrap() {
        let name = match e.mm.0 {
            0 => e.name().to_string(),
            mm => format!("{} {mm}", e.name()),
        };
        assert_eq!(e.aside.is_some(), matches!(e.body, Body::Aside));
        seen.push((name, e.is_state(), e.aside));
    }
    seen
}

/// The names of events of a piece's description.
fn description(bytes: &[u8]) -> Vec<String> {
    let seen = seen(bytes);
    let of = seen.into_iter().filter(|e| e.1);
    of.map(|(name, _, why)| {
        assert_eq!(why, None);
        name
    })
    .collect()
}

fn two() -> TraceBuilder {
    let mut b = TraceBuilder::new(1, 8);
    b.in_pieces(false);
    for mm in 1..=2 {
        b.task(0, 10 * mm, 10 * mm, mm, "program");
        b.map_anon(0, 10 * mm, mm, 0x10_0000, 0x12_0000, RW);
    }
    b
}

/// References of the address spaces with these numbers, which must be good.
fn finish(mut b: TraceBuilder, living: &[u32]) -> (Vec<u8>, Vec<Vec<u8>>) {
    for &mm in living {
        b.touch(0, 10 * mm, mm, 0x10_0000);
        b.touch(0, 10 * mm, mm, 0x11_0000);
    }
    let (whole, files) = b.finish_pieces();
    judge("", &whole, &files);
    (whole, files)
}

#[test]
fn a_description_begins_as_that_of_a_window() {
    let mut b = two();
    b.rotate(0);
    let (whole, files) = finish(b, &[1, 2]);
    let all = [
        "snap_begin",
        "task 1",
        "map 1",
        "task 2",
        "map 2",
        "snap_end",
    ];
    assert_eq!(description(&files[1]), all);
    // To others, it is no news.
    let repeats = seen(&whole)
        .into_iter()
        .filter(|e| e.2 == Some(NoNews::Repeats));
    let repeats: Vec<_> = repeats.map(|e| e.0).collect();
    assert_eq!(repeats, ["task 1", "map 1", "task 2", "map 2"]);
    // Neither pages nor events of it are counted.
    let trace = Trace::from_bytes("memory", files[1].clone()).unwrap();
    let outcome = pipeline::run(&trace, PageMode::Unnamed, &mut Unwatched, &mut []).unwrap();
    assert_eq!((outcome.world.records, outcome.world.events), (4, 0));
}

/// What happens to an address space before it is described says nothing to who begins here.
#[test]
fn changes_before_a_description_are_left_out() {
    let mut b = two();
    b.map_anon(0, 20, 2, 0x50_0000, 0x60_0000, RW);
    b.open_next(0);
    b.unmap(0, 20, 2, 0x50_0000, 0x58_0000);
    b.describe(0, 1);
    b.unmap(0, 10, 1, 0x11_0000, 0x12_0000);
    b.protect(0, 20, 2, 0x58_0000, 0x60_0000, Prot(1));
    b.map_anon(0, 10, 1, 0x11_0000, 0x12_0000, RW);
    b.describe(0, 2);
    b.protect(0, 20, 2, 0x58_0000, 0x59_0000, RW);
    b.end_checkpoint(0);
    b.unmap(0, 20, 2, 0x59_0000, 0x60_0000);
    b.cut();
    b.switch();
    b.touch(0, 20, 2, 0x58_0000);
    let (_, files) = finish(b, &[1, 2]);
    let all = [
        "snap_begin",
        "task 1",
        "map 1",
        "unmap 1",
        "map 1",
        "task 2",
        "map 2",
        "map 2",
        "protect 2",
        "snap_end",
        "unmap 2",
    ];
    assert_eq!(description(&files[1]), all);
}

#[test]
fn copies_are_known_from_their_beginning_or_their_description() {
    let mut b = two();
    b.open_next(0);
    // Of one that is not described yet, and of the copy.
    b.fork_pinned(0, 20, 2, 30, 3, &[0x10_0000]);
    b.fork(0, 30, 3, 40, 4);
    b.unmap(0, 30, 3, 0x11_8000, 0x12_0000);
    b.describe(0, 1);
    // Of one that is.
    b.fork_pinned(0, 10, 1, 50, 5, &[0x10_0000]);
    b.fork(0, 50, 5, 60, 6);
    b.unmap(0, 50, 5, 0x11_8000, 0x12_0000);
    for mm in 2..=4 {
        b.describe(0, mm);
    }
    // It is known already.
    b.describe(0, 5);
    b.end_checkpoint(0);
    b.fork(0, 40, 4, 70, 7);
    b.cut();
    b.switch();
    b.fork(0, 30, 3, 80, 8);
    let (_, files) = finish(b, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let all = description(&files[1]);
    let of = |name: &str| all.iter().filter(|n| *n == name).count();
    assert_eq!(
        [of("cow 3"), of("unmap 3"), of("mm_dup 3"), of("mm_dup 4")],
        [0; 4]
    );
    assert_eq!(
        [of("map 3"), of("map 4"), of("task 3"), of("task 4")],
        [1; 4]
    );
    assert_eq!(
        [of("cow 5"), of("mm_dup 5"), of("mm_dup 6"), of("unmap 5")],
        [1; 4]
    );
    assert_eq!(
        [of("map 5"), of("task 5"), of("mm_dup 7"), of("mm_dup 8")],
        [0, 1, 1, 0]
    );
}

/// Its number was given out before the checkpoint, and it was made a copy later.
#[test]
fn a_copy_with_an_older_number_is_known() {
    for described in [true, false] {
        let mut b = TraceBuilder::new(1, 8);
        b.several_sets();
        b.in_pieces(false);
        for mm in 1..=2 {
            b.set(0, 10 * mm, mm, mm);
            b.task(0, 10 * mm, 10 * mm, mm, "program");
            b.map_anon(0, 10 * mm, mm, 0x10_0000, 0x12_0000, RW);
        }
        if described {
            b.set(0, 10, 3, 3);
        } else {
            // So 3 is not greater than the greatest number.
            b.set(0, 40, 4, 4);
            b.task(0, 40, 40, 4, "program");
            b.map_anon(0, 40, 4, 0x10_0000, 0x12_0000, RW);
        }
        b.open_next(0);
        for mm in [1, 2] {
            b.describe(0, mm);
        }
        if described {
            b.fork(0, 10, 1, 30, 3);
            b.describe(0, 3);
        } else {
            b.describe(0, 4);
            b.set(0, 10, 3, 3);
            b.fork(0, 10, 1, 30, 3);
        }
        b.end_checkpoint(0);
        b.cut();
        b.switch();
        let (_, files) = finish(b, &[1, 2, 3]);
        let all = description(&files[1]);
        let of = |name: &str| all.iter().filter(|n| *n == name).count();
        assert_eq!(of("set 3"), 1, "{all:?}");
        assert_eq!(
            [of("map 3"), of("mm_dup 3")],
            [usize::from(described), usize::from(!described)]
        );
    }
}

#[test]
fn an_address_space_with_a_new_number_is_known_from_its_beginning() {
    let mut b = two();
    b.open_next(0);
    b.describe(0, 1);
    b.exec(0, 20, 2, 3, "another");
    b.map_anon(0, 20, 3, 0x10_0000, 0x14_0000, RW);
    b.unmap(0, 20, 3, 0x12_0000, 0x14_0000);
    b.mm_end(0, 20, 2);
    b.describe(0, 3);
    b.end_checkpoint(0);
    b.cut();
    b.switch();
    b.touch(0, 20, 3, 0x10_0000);
    let (_, files) = finish(b, &[1]);
    let all = description(&files[1]);
    let expected = [
        "snap_begin",
        "task 1",
        "map 1",
        "exec 3",
        "map 3",
        "unmap 3",
        "task 3",
        "snap_end",
    ];
    assert_eq!(all, expected);
}

/// A program is being executed: nothing is mapped in its address space yet.
#[test]
fn an_address_space_without_mappings_is_described_by_its_task() {
    let mut b = two();
    b.exec(0, 20, 2, 3, "another");
    b.mm_end(0, 20, 2);
    b.open_next(0);
    b.describe(0, 1);
    b.describe(0, 3);
    b.end_checkpoint(0);
    b.cut();
    b.switch();
    b.map_anon(0, 20, 3, 0x10_0000, 0x14_0000, RW);
    b.touch(0, 20, 3, 0x10_0000);
    let (_, files) = finish(b, &[1]);
    let all = description(&files[1]);
    let expected = ["snap_begin", "task 1", "map 1", "task 3", "snap_end"];
    assert_eq!(all, expected);
}

/// Nothing describes an address space that was ending, and its last events are no news.
#[test]
fn the_last_events_of_an_address_space_that_was_ending_are_left_out() {
    let mut b = two();
    b.open_next(0);
    b.exit(0, 20, 2);
    b.describe(0, 1);
    b.end_checkpoint(0);
    b.cut();
    b.switch();
    b.unmap(0, 20, 2, 0x10_0000, 0x12_0000);
    b.mm_end(0, 20, 2);
    b.file((0, 20, 2), uapi::VMTRACE_EV_CLOSE, 7, 0, "data");
    let (whole, files) = finish(b, &[1]);
    let undescribed = |bytes: &[u8]| {
        let seen = seen(bytes).into_iter();
        let left_out = seen.filter(|e| e.2 == Some(NoNews::Undescribed));
        left_out.map(|e| e.0).collect::<Vec<_>>()
    };
    assert_eq!(undescribed(&files[1]), ["unmap 2", "mm_end 2", "close 2"]);
    assert_eq!(undescribed(&whole), [""; 0]);
    let report = check_bytes(&files[1]);
    let notes = &report.rule("checkpoint").unwrap().examples;
    assert!(
        notes[0].message.starts_with("3 events are about"),
        "{notes:?}"
    );
    let directory = scratch();
    fs::write(directory.path().join("p"), &files[1]).unwrap();
    let info = postproc(&["info", "p"], directory.path());
    let info = String::from_utf8(info.stdout).unwrap();
    assert!(info.contains("3 events are about"), "{info}");
    // A reference of it is an error all the same.
    let mut b = two();
    b.open_next(0);
    b.exit(0, 20, 2);
    b.describe(0, 1);
    b.end_checkpoint(0);
    b.cut();
    b.switch();
    b.touch(0, 20, 2, 0x10_0000);
    let (_, files) = b.finish_pieces();
    assert_eq!(errors(&files[1]), [("lifecycle", 1)]);
}

/// A description that was given up says nothing to anybody.
#[test]
fn a_checkpoint_may_be_given_up() {
    let mut b = two();
    b.open_next(0);
    b.describe(0, 1);
    b.touch(0, 10, 1, 0x10_0000);
    b.abandon();
    let unborn = b.unborn();
    assert_eq!(unborn.len(), 1);
    b.touch(0, 10, 1, 0x11_0000);
    b.open_next(0);
    b.describe(0, 1);
    b.describe(0, 2);
    b.end_checkpoint(0);
    b.abandon();
    b.rotate(0);
    let (_, files) = finish(b, &[1, 2]);
    let directory = scratch();
    let pieces = directory.path().join("pieces");
    write(&pieces, &files, 0);
    fs::write(pieces.join("99999.vmtrace"), &unborn[0]).unwrap();
    fs::write(pieces.join("empty"), "").unwrap();
    let trace = Trace::open(&pieces).unwrap();
    assert_eq!(trace.left_out().len(), 2);
    let report = report(&trace);
    assert!(report.good, "{report:#?}");
    assert_eq!(report.rule("complete").unwrap().notes, 2);
    let info = postproc(&["info", "pieces"], directory.path());
    let info = String::from_utf8(info.stdout).unwrap();
    assert!(info.contains("99999.vmtrace, which was made for"), "{info}");
    let joined = postproc(&["join", "pieces", "-o", "whole"], directory.path());
    assert!(joined.status.success(), "{joined:?}");
    let said = String::from_utf8(joined.stderr).unwrap();
    assert!(said.contains("99999.vmtrace is left out"), "{said}");
    // Alone, it is no trace that can be read.
    fs::write(directory.path().join("alone"), &unborn[0]).unwrap();
    let alone = postproc(&["check", "alone"], directory.path());
    assert_eq!(alone.status.code(), Some(1), "{alone:?}");
}

/// The machine has stopped while it rotated.
#[test]
fn a_rotation_may_be_cut_short() {
    let mut b = two();
    b.rotate(0);
    b.touch(0, 10, 1, 0x10_0000);
    b.rotate(0);
    b.touch(0, 10, 1, 0x10_0000);
    b.open_next(0);
    b.describe(0, 1);
    b.abandon();
    let unborn = b.unborn();
    b.touch(0, 10, 1, 0x11_0000);
    let (_, mut files) = b.finish_pieces();
    let last = files.pop().unwrap();
    for from in [0, 1] {
        let directory = scratch();
        let pieces = directory.path().join("pieces");
        // Between the end of the former piece and the beginning of the next one.
        write(&pieces, &files, from);
        let judged = report(&Trace::open(&pieces).unwrap());
        assert!(judged.good, "{judged:#?}");
        fs::write(pieces.join("next"), &unborn[0]).unwrap();
        let trace = Trace::open(&pieces).unwrap();
        assert_eq!(trace.left_out().len(), 1);
        assert!(!trace.piece().unwrap().is_last());
        let judged = report(&trace);
        assert!(judged.good, "{judged:#?}");
        // Before that.
        let packets = kinds(&last);
        let cut = packets[packets.len() - 2].1;
        fs::write(pieces.join("last"), &last[..cut]).unwrap();
        let judged = report(&Trace::open(&pieces).unwrap());
        let bad: Vec<_> = judged.rules.iter().filter(|r| r.errors > 0).collect();
        assert!(bad.len() == 1 && bad[0].id == "complete", "{bad:#?}");
        assert!(joined(from_ref(&pieces)).is_err());
    }
}

#[test]
fn pieces_in_between_must_be_there() {
    let (_, files) = rotated(1, false, false, 6);
    let directory = scratch();
    let all = write(&directory.path().join("pieces"), &files, 2);
    let without = |gone: usize| {
        let left = all.iter().enumerate().filter(|(i, _)| *i != gone);
        joined(&left.map(|(_, path)| path.clone()).collect::<Vec<_>>())
    };
    let error = without(1).unwrap_err().to_string();
    assert!(error.contains("piece 3 of the trace"), "{error}");
    // The first and the last ones may be missing.
    for some in [&all[1..], &all[..3], &all[1..3], &all[1..2]] {
        good("some", &joined(some).unwrap());
    }
    let first = write(&directory.path().join("first"), &files[..3], 0);
    for some in [&first[..], &first[..2], &first[..1]] {
        let some = joined(some).unwrap();
        good("the first ones", &some);
        let trace = Trace::from_bytes("memory", some).unwrap();
        assert!(!trace.piece().unwrap().is_last());
    }
    assert!(joined(&first[..1]).unwrap() == files[0]);
    assert!(joined(&all[1..2]).unwrap() == files[3]);
    // What was joined is a piece that others may follow.
    let some = directory.path().join("some");
    fs::write(&some, joined(&all[..2]).unwrap()).unwrap();
    let again = [from_ref(&some), &all[2..]].concat();
    assert!(joined(&again).unwrap() == joined(&all).unwrap());
    let gap = [from_ref(&some), &all[3..]].concat();
    let error = joined(&gap).unwrap_err().to_string();
    assert!(error.contains("piece 4 of the trace"), "{error}");
    let info = postproc(&["info", "pieces"], directory.path());
    let info = String::from_utf8(info.stdout).unwrap();
    assert!(
        info.contains("piece      pieces 2 to 5 of a trace, up to the last one"),
        "{info}"
    );
    // A changed byte of any of them is found.
    let at = files[3].len() - 700;
    let mut changed = files[3].clone();
    changed[at] ^= 1;
    fs::write(&all[1], changed).unwrap();
    let error = joined(&all).unwrap_err().to_string();
    assert!(error.contains("00003.vmtrace: this piece"), "{error}");
}

/// All sets are empty where a piece begins, so results have bounds, as those of a trace.
#[test]
fn results_of_a_piece_have_bounds() {
    let (_, files) = rotated(2, false, false, 2);
    let directory = scratch();
    fs::write(directory.path().join("p"), &files[1]).unwrap();
    let args = ["simulate", "p", "--policy", "lru", "--size", "60", "--json"];
    let done = postproc(&args, directory.path());
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    let done = String::from_utf8(done.stdout).unwrap();
    assert!(done.contains("\"low\""), "{done}");
}

fn resize(b: &mut TraceBuilder, from: u32, to: u32) {
    let payload = [from, to].map(u32::to_le_bytes).concat();
    b.event(0, 1, 0, uapi::VMTRACE_EV_RESIZE, &payload);
}

/// The account of a piece does not say which N the trace had at most, but its events do.
#[test]
fn a_larger_set_has_no_bounds() {
    let mut b = programs(2, false, false);
    work(&mut b, 2, 300);
    resize(&mut b, 16, 32);
    b.rotate(0);
    work(&mut b, 2, 300);
    let (_, files) = b.finish_pieces();
    let directory = scratch();
    fs::write(directory.path().join("p"), &files[0]).unwrap();
    let args = ["simulate", "p", "--policy", "lru", "--size", "60", "--json"];
    let done = postproc(&args, directory.path());
    assert!(done.status.success(), "{done:?}");
    let done = String::from_utf8(done.stdout).unwrap();
    assert!(!done.contains("\"low\""), "{done}");
}

/// A description tells N, if that is not the header's.
#[test]
fn the_description_tells_n() {
    for (several, told) in [(false, 16), (false, 8), (true, 16), (true, 8)] {
        let mut b = programs(1, several, false);
        b.open_next(0);
        if told != 16 {
            b.describes(|b| resize(b, 16, told));
        }
        for mm in b.living() {
            b.describe(0, mm);
        }
        b.end_checkpoint(0);
        b.cut();
        b.switch();
        for i in 0..100 {
            b.touch(0, 10, 1, 0x10_0000 + ((i % 40) << 12));
        }
        let (whole, files) = b.finish_pieces();
        good("", &whole);
        // It has 16 pages, whatever is told.
        let errors = errors(&files[1]);
        assert_eq!(errors.is_empty(), told == 16, "{told}: {errors:?}");
        assert!(errors.iter().all(|e| e.0 == "residency"), "{errors:?}");
    }
}

/// Each command that reads a trace; `t` is the trace.
const COMMANDS: &[&[&str]] = &[
    &["check", "t"],
    &["check", "--json", "t"],
    &["info", "t"],
    &["info", "--json", "t"],
    &["events", "t"],
    &["events", "--json", "t"],
    &["maps", "t"],
    &[
        "simulate",
        "t",
        "--policy",
        "lru,opt,clock",
        "--size",
        "40,60",
        "--json",
    ],
    &["simulate", "t", "--policy", "lru", "--curve"],
    &["export", "t", "--format", "csv", "-o", "-"],
    &["export", "t", "--format", "oracleGeneral", "-o", "-"],
    &["reduce", "t", "--method", "sad", "--size", "20", "-o", "-"],
    &["damon", "t", "--sampling", "5us", "--aggregation", "100us"],
    &["pack", "t", "-o", "-"],
    &["recover", "t", "-o", "-"],
];

/// A directory of pieces gives what the joined pieces give, to the last byte.
#[test]
fn commands_give_the_same_of_a_directory() {
    for (cpus, several, pack) in WAYS {
        let (_, files) = rotated(cpus, several, pack, 4);
        for from in [0, 2] {
            let directory = scratch();
            let (one, many) = (directory.path().join("one"), directory.path().join("many"));
            write(&many.join("t"), &files, from);
            fs::create_dir(&one).unwrap();
            fs::write(one.join("t"), joined(&[many.join("t")]).unwrap()).unwrap();
            for command in COMMANDS {
                let (of_one, of_many) = (postproc(command, &one), postproc(command, &many));
                // A piece is not packed anew.
                let refused = from > 0 && command[0] == "pack";
                let expected = if refused { 2 } else { 0 };
                assert_eq!(
                    of_one.status.code(),
                    Some(expected),
                    "{command:?} {of_one:?}"
                );
                assert_eq!(of_one.status, of_many.status, "{command:?} {of_many:?}");
                assert!(of_one.stdout == of_many.stdout, "{command:?}");
                assert!(of_one.stderr == of_many.stderr, "{command:?} {of_many:?}");
            }
            for args in [
                &["report", "t", "-o", "report"][..],
                &["export", "t", "--format", "ctf", "-o", "ctf"],
            ] {
                assert!(postproc(args, &one).status.success());
                assert!(postproc(args, &many).status.success());
                let name = args[args.len() - 1];
                let files = |of: &Path| {
                    let files = fs::read_dir(of.join(name)).unwrap();
                    let mut files: Vec<_> = files.map(|f| f.unwrap().file_name()).collect();
                    files.sort();
                    files
                };
                assert_eq!(files(&one), files(&many));
                for file in files(&one) {
                    let of = |of: &Path| fs::read(of.join(name).join(&file)).unwrap();
                    assert!(of(&one) == of(&many), "{file:?}");
                }
            }
        }
    }
}

/// The errors of `checkpoint` in a trace of which address space 1 is described as `describe` says.
fn described(describe: impl FnOnce(&mut TraceBuilder)) -> u64 {
    described_after(|_| {}, describe)
}

fn described_after(
    before: impl FnOnce(&mut TraceBuilder),
    describe: impl FnOnce(&mut TraceBuilder),
) -> u64 {
    let mut b = two();
    b.map_file(0, 10, 1, 0x40_0000, 0x44_0000, Prot(5), false, 7, 0x1000);
    before(&mut b);
    b.open_next(0);
    b.describes(describe);
    b.describe(0, 2);
    b.end_checkpoint(0);
    b.cut();
    b.switch();
    // What a fork, an exec or an exit that follows could explain is an error when the next
    // checkpoint begins.
    b.open_next(0);
    b.describes(|b| {
        task(b);
        data(b);
        code(b);
    });
    b.describe(0, 2);
    b.end_checkpoint(0);
    b.cut();
    b.switch();
    let (whole, _) = b.finish_pieces();
    let report = check_bytes(&whole);
    let errors = report.rule("checkpoint").unwrap().errors;
    assert_eq!(report.errors(), errors, "{report:#?}");
    errors
}

fn task(b: &mut TraceBuilder) {
    b.task(0, 10, 10, 1, "program");
}

fn code(b: &mut TraceBuilder) {
    b.map_file(0, 1, 1, 0x40_0000, 0x44_0000, Prot(5), false, 7, 0x1000);
}

fn data(b: &mut TraceBuilder) {
    b.map_anon(0, 1, 1, 0x10_0000, 0x12_0000, RW);
}

#[test]
fn a_description_is_what_events_have_made() {
    let same = |b: &mut TraceBuilder| {
        task(b);
        data(b);
        code(b);
    };
    assert_eq!(described(same), 0);
    // Mappings may be merged and cut in two, named anew, and anonymous pages numbered anew.
    let cut = |b: &mut TraceBuilder| {
        task(b);
        b.map_anon(0, 1, 1, 0x10_0000, 0x10_1000, RW);
        b.map_anon(0, 1, 1, 0x10_1000, 0x12_0000, RW);
        b.map_file(0, 1, 1, 0x40_0000, 0x41_0000, Prot(5), false, 7, 0x1000);
        b.map_file(0, 1, 1, 0x41_0000, 0x44_0000, Prot(5), false, 7, 0x1_1000);
    };
    assert_eq!(described(cut), 0);
    let split = |b: &mut TraceBuilder| {
        b.protect(0, 10, 1, 0x11_0000, 0x12_0000, Prot(1));
        b.protect(0, 10, 1, 0x11_0000, 0x12_0000, RW);
    };
    assert_eq!(described_after(split, same), 0);
}

/// As if an event were missing, or another one had happened.
#[test]
fn what_events_have_not_told_is_found() {
    type Change = fn(&mut TraceBuilder);
    let all: Change = |b| {
        task(b);
        data(b);
        code(b);
    };
    let data_as = |change: Change| {
        move |b: &mut TraceBuilder| {
            task(b);
            change(b);
            code(b);
        }
    };
    let code_as = |change: Change| {
        move |b: &mut TraceBuilder| {
            task(b);
            data(b);
            change(b);
        }
    };
    // A mapping that no event made, at the end, at the beginning and in between.
    let more: Change = |b| {
        code(b);
        b.map_anon(0, 1, 1, 0x90_0000, 0x91_0000, RW);
    };
    assert_eq!(described(code_as(more)), 1);
    let more: Change = |b| {
        b.map_anon(0, 1, 1, 0x1000, 0x2000, RW);
        data(b);
    };
    assert_eq!(described(data_as(more)), 1);
    let longer: Change = |b| b.map_anon(0, 1, 1, 0x10_0000, 0x12_1000, RW);
    assert_eq!(described(data_as(longer)), 1);
    // One that no event removed.
    assert_eq!(described(data_as(|_| {})), 1);
    assert_eq!(described(code_as(|_| {})), 1);
    let shorter: Change = |b| b.map_anon(0, 1, 1, 0x10_1000, 0x12_0000, RW);
    assert_eq!(described(data_as(shorter)), 1);
    // Another protection, file, offset and flag.
    let protected: Change = |b| b.map_anon(0, 1, 1, 0x10_0000, 0x12_0000, Prot(1));
    assert_eq!(described(data_as(protected)), 1);
    let file: Change = |b| b.map_file(0, 1, 1, 0x40_0000, 0x44_0000, Prot(5), false, 8, 0x1000);
    let offset: Change = |b| b.map_file(0, 1, 1, 0x40_0000, 0x44_0000, Prot(5), false, 7, 0x2000);
    let shared: Change = |b| b.map_file(0, 1, 1, 0x40_0000, 0x44_0000, Prot(5), true, 7, 0x1000);
    for change in [file, offset, shared] {
        assert_eq!(described(code_as(change)), 1);
    }
    // An address space that does not exist.
    let unknown: Change = |b| {
        code(b);
        b.map_anon(0, 1, 9, 0x1000, 0x2000, RW);
    };
    assert_eq!(described(code_as(unknown)), 1);
    // One that is not described, although a task is in it.
    assert_eq!(described(|_| {}), 1);
    // A task that is not described, that no event reports, or that is of another process.
    let no_task: Change = |b| {
        data(b);
        code(b);
    };
    assert_eq!(described(no_task), 1);
    for (tid, tgid) in [(99, 10), (20, 10)] {
        let more = |b: &mut TraceBuilder| {
            b.task(0, tid, tgid, 1, "program");
            all(b);
        };
        assert_eq!(described(more), 1, "{tid}");
    }
    assert_eq!(described_after(|b| b.thread(0, 10, 10, 1, 11), all), 1);
    // Unless it has exited, or was made meanwhile.
    let gone: Change = |b| {
        b.thread(0, 10, 10, 1, 11);
        b.exit(0, 11, 1);
    };
    assert_eq!(described_after(gone, all), 0);
    let meanwhile: Change = |b| {
        b.set_flags(0);
        b.thread(0, 10, 10, 1, 11);
        b.set_flags(uapi::VMTRACE_EVF_SNAPSHOT | uapi::VMTRACE_EVF_CHECKPOINT);
        task(b);
        data(b);
        code(b);
    };
    assert_eq!(described(meanwhile), 0);
}

/// A set that events tell in another way.
#[test]
fn another_set_is_found() {
    let of = |set: u32| {
        let mut b = TraceBuilder::new(1, 8);
        b.several_sets();
        b.in_pieces(false);
        b.set(0, 10, 1, 1);
        b.program();
        b.open_next(0);
        b.describes(|b| {
            b.task(0, 10, 10, 1, "sample");
            if set > 0 {
                b.set_event(0, 1, 1, set, 0);
            }
            b.map_anon(0, 1, 1, 0x1000, 0x9000, RW);
        });
        b.end_checkpoint(0);
        b.cut();
        b.switch();
        b.finish_pieces().0
    };
    assert_eq!(errors(&of(1)), []);
    assert_eq!(errors(&of(2)), [("checkpoint", 1)]);
    assert_eq!(errors(&of(0)), [("checkpoint", 1)]);
}

/// In a trace as a whole, a lost event makes the comparison fail. Each is dropped from the file: all
/// other rules may find that, too.
#[test]
fn a_dropped_event_is_found() {
    let (whole, _) = {
        // Each of the events is in a packet of its own.
        let mut b = TraceBuilder::new(4, 8);
        b.in_pieces(false);
        b.program();
        b.map_anon(1, 10, 1, 0x20_0000, 0x21_0000, RW);
        b.unmap(2, 10, 1, 0x5000, 0x6000);
        b.protect(3, 10, 1, 0x8000, 0x9000, Prot(1));
        b.rotate(0);
        b.finish_pieces()
    };
    assert_eq!(errors(&whole), []);
    let cpu = |at: usize| whole[at + offset_of!(uapi::vmtrace_packet, cpu)];
    let of_events = |p: &&(u16, usize, usize)| p.0 == EVENT;
    let packets = kinds(&whole);
    for (number, name) in [(1, "map"), (2, "unmap"), (3, "protect")] {
        let events = packets.iter().filter(of_events);
        let mut of_cpu = events.filter(|p| cpu(p.1) == number);
        let &(_, start, end) = of_cpu.next().unwrap();
        assert!(of_cpu.next().is_none());
        // As a number that was given up, so that the rule is applied.
        let mut bytes = [&whole[..start], &whole[end..]].concat();
        let at = bytes.len() - size_of::<uapi::vmtrace_status>();
        let mut change = |field: usize, by: i64| {
            let at = at + field;
            let value = u64::from_le_bytes(bytes[at..][..8].try_into().unwrap());
            let value = value.checked_add_signed(by).unwrap();
            bytes[at..][..8].copy_from_slice(&value.to_le_bytes());
        };
        type S = uapi::vmtrace_status;
        change(offset_of!(S, events), -1);
        change(offset_of!(S, packets), -1);
        change(offset_of!(S, aborted), 1);
        change(offset_of!(S, bytes), -((end - start) as i64));
        mend_checksums(&mut bytes);
        let errors = errors(&bytes);
        let of = errors.iter().find(|e| e.0 == "checkpoint");
        assert_eq!(of, Some(&("checkpoint", 1)), "{name}: {errors:?}");
    }
}

/// What the rule about stays finds after a change before the boundary.
fn stays(change: impl FnOnce(&mut TraceBuilder)) -> u64 {
    let mut b = two();
    for i in 0..30 {
        b.touch(0, 10, 1, 0x10_0000 + ((i % 12) << 12));
    }
    b.open_next(0);
    b.describe(0, 1);
    b.describe(0, 2);
    b.end_checkpoint(0);
    b.touch(0, 20, 2, 0x10_0000);
    change(&mut b);
    b.cut();
    b.switch();
    for i in 0..30 {
        b.touch(0, 10, 1, 0x10_0000 + ((i % 12) << 12));
    }
    let (whole, _) = b.finish_pieces();
    let report = check_bytes(&whole);
    let errors = report.rule("residency").unwrap().errors;
    assert_eq!(report.errors(), errors, "{report:#?}");
    errors
}

#[test]
fn stays_end_at_a_boundary_and_nowhere_else() {
    assert_eq!(stays(|_| {}), 0);
    assert_eq!(stays(|b| b.close(2, 0x10_0000, Why::Unmapped)), 0);
    // One goes on, and is evicted later, or not at all.
    assert!(stays(|b| b.close_after(2, 0x10_0000, Why::Evicted, 10_000)) > 0);
    assert!(stays(|b| b.close_after(2, 0x10_0000, Why::Piece, 10_000)) > 0);
    // The kernel ends most of them before the others, while admissions go on.
    let rounds = |b: &mut TraceBuilder| {
        b.close(1, 0x10_5000, Why::Piece);
        for i in 0..30 {
            b.touch(0, 10, 1, 0x10_0000 + ((i % 12) << 12));
        }
    };
    assert_eq!(stays(rounds), 0);
    // There is no boundary.
    let mut b = two();
    b.touch(0, 10, 1, 0x10_0000);
    b.close(1, 0x10_0000, Why::Piece);
    let (whole, _) = b.finish_pieces();
    assert_eq!(errors(&whole), [("residency", 1)]);
    // Admitted before one boundary, and ended by the next.
    let mut b = two();
    b.touch(0, 10, 1, 0x10_0000);
    b.touch(0, 20, 2, 0x10_0000);
    b.open_next(0);
    b.describe(0, 1);
    b.describe(0, 2);
    b.end_checkpoint(0);
    b.close_after(1, 0x10_0000, Why::Piece, 20_000);
    b.cut();
    b.switch();
    b.leap(15_000);
    b.rotate(0);
    let (whole, _) = b.finish_pieces();
    assert_eq!(errors(&whole), [("residency", 1)]);
}

/// Counts references that lie in no mapping.
#[derive(Default)]
struct Unplaced(u64);

impl Consumer for Unplaced {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        let places = batch.places.iter();
        self.0 += places
            .filter(|p| !matches!(p, Place::Mapped { .. }))
            .count() as u64;
        Ok(())
    }
}

/// A process of a random trace.
#[derive(Clone)]
struct Running {
    tid: u32,
    mm: u32,
    extra: Vec<u64>,
    /// It has a second thread.
    two: bool,
}

/// The world of a random trace.
struct Machine {
    b: TraceBuilder,
    r: Random,
    cpus: u32,
    several: bool,
    filters: bool,
    all: Vec<Running>,
    /// Address spaces whose tasks have exited.
    ending: Vec<(u32, u32)>,
    next: u32,
    /// Address spaces and what they are copies of, if that is anything, since it was looked last.
    made: Vec<(u32, Option<u32>)>,
}

impl Machine {
    fn new(seed: u64) -> Self {
        let mut r = Random::new(seed);
        let (mut b, cpus) = r.trace();
        let several = r.below(2) == 0;
        if several {
            b.several_sets();
        }
        let filters = r.below(3) == 0;
        if filters {
            b.filtered();
        }
        b.in_pieces(r.below(2) == 0);
        if filters {
            filter(&mut b, &mut r, 0);
        }
        let mut machine = Machine {
            b,
            r,
            cpus,
            several,
            filters,
            all: Vec::new(),
            ending: Vec::new(),
            next: 1,
            made: Vec::new(),
        };
        machine.begin();
        machine
    }

    fn begin(&mut self) {
        let (mm, tid) = (self.next, 10 * self.next);
        self.next += 1;
        self.made.push((mm, None));
        if self.several {
            self.b.set(0, tid, mm, mm);
        }
        self.b.task(0, tid, tid, mm, "program");
        self.b.map_anon(0, tid, mm, 0x10_0000, 0x20_0000, RW);
        self.all.push(Running {
            tid,
            mm,
            extra: Vec::new(),
            two: false,
        });
    }

    fn step(&mut self) {
        let (b, r) = (&mut self.b, &mut self.r);
        let cpu = r.below(self.cpus.into()) as u32;
        let which = r.below(self.all.len() as u64) as usize;
        let (tid, mm) = (self.all[which].tid, self.all[which].mm);
        match r.below(100) {
            0..70 => {
                b.read_early(r.below(3) * 50);
                for i in 0..1 + r.below(6) {
                    b.touch(cpu, tid, mm, 0x10_0000 + ((r.below(40) + i) << 12));
                }
            }
            70..75 => {
                let start = 0x100_0000 + u64::from(self.next) * 0x10_0000;
                b.map_anon(cpu, tid, mm, start, start + 0x4000, RW);
                b.touch(cpu, tid, mm, start);
                self.all[which].extra.push(start);
                self.next += 1;
            }
            75..79 => {
                if let Some(start) = self.all[which].extra.pop() {
                    b.unmap(cpu, tid, mm, start, start + 0x4000);
                }
            }
            79..82 if self.all.len() < 12 => {
                let (child, child_mm) = (10 * self.next, self.next);
                self.next += 1;
                self.made.push((child_mm, Some(mm)));
                if self.several {
                    b.set(cpu, tid, child_mm, child_mm);
                }
                match r.below(2) {
                    0 => b.fork(cpu, tid, mm, child, child_mm),
                    _ => b.fork_pinned(cpu, tid, mm, child, child_mm, &[0x10_0000]),
                }
                let extra = self.all[which].extra.clone();
                self.all.push(Running {
                    tid: child,
                    mm: child_mm,
                    extra,
                    two: false,
                });
            }
            82 if self.all.len() < 9 => self.begin(),
            83..86 if self.all.len() > 1 => {
                if self.all[which].two {
                    b.exit(cpu, tid + 1, mm);
                }
                b.exit(cpu, tid, mm);
                self.ending.push((tid, mm));
                self.all.remove(which);
            }
            86 => {
                let new = self.next;
                self.next += 1;
                if self.all[which].two {
                    b.exit(cpu, tid + 1, mm);
                }
                self.made.push((new, None));
                if self.several {
                    b.set(cpu, tid, new, new);
                }
                b.exec(cpu, tid, mm, new, "another");
                b.map_anon(cpu, tid, new, 0x10_0000, 0x20_0000, RW);
                b.mm_end(cpu, tid, mm);
                self.all[which] = Running {
                    tid,
                    mm: new,
                    extra: Vec::new(),
                    two: false,
                };
            }
            87 => b.cgroup(cpu, (tid, tid), "/a/group"),
            88 => b.file((cpu, tid, mm), uapi::VMTRACE_EV_OPEN, 7, 0, "data"),
            89 => b.file((cpu, tid, mm), uapi::VMTRACE_EV_CLOSE, 7, 0, "data"),
            90 if !self.all[which].two => {
                b.thread(cpu, tid, tid, mm, tid + 1);
                self.all[which].two = true;
            }
            91 if self.all[which].two => {
                b.exit(cpu, tid + 1, mm);
                self.all[which].two = false;
            }
            92 => b.protect(cpu, tid, mm, 0x10_0000, 0x11_0000, RW),
            93 => b.abort(),
            99 if self.filters => match r.below(3) {
                0 => filter(b, r, cpu),
                other => b.renew(cpu, tid, other == 1),
            },
            94 => b.leap(r.below(5_000)),
            95 => b.cow(cpu, tid, mm, 0x10_0000),
            96 => b.io((cpu, tid, mm), uapi::VMTRACE_EV_READ, 7, 0, 9000),
            97..99 => {
                if let Some((tid, mm)) = self.ending.pop() {
                    b.unmap(cpu, tid, mm, 0x10_0000, 0x20_0000);
                    b.mm_end(cpu, tid, mm);
                }
            }
            _ => b.touch(cpu, tid, mm, 0x10_0000),
        }
    }

    fn steps(&mut self, most: u64) {
        for _ in 0..self.r.below(most) {
            self.step();
        }
    }

    /// Rotates while the programs go on; it may be given up.
    fn rotate(&mut self) {
        let cpu = self.r.below(self.cpus.into()) as u32;
        self.b.open_next(cpu);
        let mut living = self.b.living();
        self.made.clear();
        let mut known = Vec::new();
        self.steps(6);
        loop {
            // What is made later is known from its beginning, or is a copy of something unknown.
            for (mm, origin) in std::mem::take(&mut self.made) {
                match origin.is_none_or(|origin| known.contains(&origin)) {
                    true => known.push(mm),
                    false => living.push(mm),
                }
                // Who describes may come to it all the same.
                if self.r.below(3) == 0 {
                    living.push(mm);
                }
            }
            if living.is_empty() {
                break;
            }
            let mm = living.remove(self.r.below(living.len() as u64) as usize);
            living.retain(|other| *other != mm);
            let is_ending = self.ending.iter().any(|e| e.1 == mm);
            // It may have ended meanwhile, and one that has no task is not found.
            if self.b.living().contains(&mm) && !is_ending {
                self.b.describe(cpu, mm);
                known.push(mm);
            }
            self.steps(6);
        }
        if self.r.below(5) == 0 {
            self.b.abandon();
            return;
        }
        self.b.end_checkpoint(cpu);
        self.steps(6);
        self.b.cut();
        if self.r.below(2) == 0 {
            self.step();
        }
        self.b.switch();
    }
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

fn random(seed: u64, steps: u64, rotations: u64) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut machine = Machine::new(seed);
    for _ in 0..rotations {
        machine.steps(steps);
        machine.rotate();
    }
    machine.steps(steps);
    machine.b.finish_pieces()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Whatever happens while a piece is described.
    #[test]
    fn any_trace_in_pieces(seed in any::<u64>(), steps in 1..200u64, rotations in 0..5u64) {
        let (whole, files) = random(seed, steps, rotations);
        judge(&format!("{seed} {steps} {rotations}"), &whole, &files);
        let mut unplaced = 0;
        for file in files {
            let trace = Trace::from_bytes("memory", file).unwrap();
            let mut consumer = Unplaced::default();
            let consumers: &mut [&mut dyn Consumer] = &mut [&mut consumer];
            pipeline::run(&trace, PageMode::Canonical, &mut Unwatched, consumers).unwrap();
            unplaced += consumer.0;
        }
        prop_assert_eq!(unplaced, 0);
    }

    /// Pieces that are cut, exchanged or changed, with checksums that hold, give an error or the trace.
    #[test]
    fn hostile_pieces(
        seed in any::<u64>(),
        changes in prop::collection::vec((any::<u64>(), 0..6u32), 1..5),
    ) {
        let (whole, files) = random(seed % 16, 60, 4);
        let from = (seed % 2) as usize;
        prop_assume!(files.len() > from + 1);
        let directory = scratch();
        let pieces = directory.path().join("pieces");
        let all = write(&pieces, &files, from);
        let back = joined(from_ref(&pieces)).unwrap();
        prop_assert!(from > 0 || back == whole);
        for (number, how) in changes {
            let mut r = Random::new(number);
            let path = &all[r.below(all.len() as u64) as usize];
            let other = &all[r.below(all.len() as u64) as usize];
            let (Ok(mut piece), Ok(exchanged)) = (fs::read(path), fs::read(other)) else {
                continue;
            };
            let mut packets = kinds(&piece);
            packets.retain(|packet| packet.2 <= piece.len());
            if packets.is_empty() {
                continue;
            }
            let (_, start, end) = packets[r.below(packets.len() as u64) as usize];
            let mut flip = |at: usize, bit: u64| {
                if let Some(byte) = piece.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            };
            match how {
                0 => piece.truncate(r.below(piece.len() as u64) as usize),
                1 => drop(piece.drain(start..end)),
                2 => {
                    fs::write(other, &piece).unwrap();
                    piece = exchanged;
                }
                3 | 4 => {
                    let (_, start, end) = match how {
                        3 => packets[0],
                        _ => packets[packets.len() - 1],
                    };
                    let at = start + HEAD_SIZE + r.below((end - start - HEAD_SIZE) as u64) as usize;
                    flip(at, r.below(8));
                }
                _ => flip(start + 24 + r.below((end - start - 24) as u64) as usize, r.below(8)),
            }
            mend_checksums(&mut piece);
            fs::write(path, &piece).unwrap();
        }
        let _ = joined(from_ref(&pieces));
        let all = all.iter().chain([&pieces]);
        for trace in all.filter_map(|path| Trace::open(path).ok()) {
            report(&trace);
        }
    }
}

/// The admission that evicts a page while stays end has a stay of its own, which ends later. A filter may
/// leave that out.
#[test]
fn what_evicts_while_stays_end_may_be_left_out() {
    let with = |filter: bool| {
        let mut b = TraceBuilder::new(1, 4);
        if filter {
            b.filtered();
        }
        b.in_pieces(false);
        b.task(0, 10, 10, 1, "program");
        b.map_anon(0, 10, 1, 0x10_0000, 0x20_0000, RW);
        if filter {
            b.filter(0, "addr < 0x110000", |a| a.address < 0x11_0000);
        }
        b.open_next(0);
        b.describe(0, 1);
        b.end_checkpoint(0);
        for page in [0x10_0000, 0x10_1000, 0x11_0000, 0x11_1000] {
            b.touch(0, 10, 1, page);
        }
        // Most stays end while admissions go on.
        b.close(1, 0x10_1000, Why::Piece);
        b.leap(10_000);
        b.touch(0, 10, 1, 0x11_2000);
        b.cut();
        b.switch();
        b.touch(0, 10, 1, 0x10_0000);
        b.finish_pieces()
    };
    for filter in [false, true] {
        let (whole, files) = with(filter);
        judge(&format!("filter {filter}"), &whole, &files);
    }
}

#[test]
fn an_address_space_without_a_number_is_kept() {
    let mut b = two();
    b.open_next(0);
    b.truncate(0, 10, 7, 0x1000);
    b.describe(0, 1);
    b.describe(0, 2);
    b.end_checkpoint(0);
    b.cut();
    b.switch();
    let (_, files) = finish(b, &[1, 2]);
    assert!(description(&files[1]).contains(&"truncate".to_string()));
    assert_eq!(Mm(0).0, 0);
}
