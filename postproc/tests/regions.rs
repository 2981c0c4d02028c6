//! Traces of regions: `postproc regions`, and what other commands make of such a trace.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;

use clap::CommandFactory;
use postproc::commands::Cli;
use postproc::damon::record::Record;
use postproc::testing::{TraceBuilder, check_bytes};
use postproc::trace::RegionBody;
use postproc::units::Prot;
use rust_mm_trace::uapi;
use serde_json::Value;

use crate::support;

const NAME: &str = "run.vmt";

/// Two processes, of which one ends in the middle of a report.
fn builder() -> TraceBuilder {
    let mut b = TraceBuilder::sample_of_regions(uapi::VMTRACE_BY_FAULT);
    b.task(0, 20, 20, 2, "other");
    b.map_anon(0, 20, 2, 0x10_0000, 0x20_0000, Prot(3));
    let region = |index: u64, accesses| RegionBody {
        start: 0x10_0000 + index * 0x8_0000,
        end: 0x18_0000 + index * 0x8_0000,
        looks: 20,
        accesses,
        writes: 0,
        age: 7,
        cpus: 2,
        index: 0,
        regions: 0,
    };
    for round in 0..40 {
        b.leap(100_000_000);
        b.report(1, 2, &[region(0, 20), region(1, round % 2)]);
    }
    let cut = RegionBody {
        index: 0,
        regions: 3,
        ..region(0, 5)
    };
    b.region(1, 2, &cut);
    b.mm_end(0, 20, 2);
    b
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join(NAME), builder().finish()).unwrap();
    let references = TraceBuilder::sample().finish();
    std::fs::write(directory.path().join("references.vmt"), references).unwrap();
    directory
}

#[track_caller]
fn good(directory: &Path, args: &[&str]) -> String {
    let output = support::postproc(args, directory);
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a command says that fails.
#[track_caller]
fn refused(directory: &Path, args: &[&str]) -> String {
    let output = support::postproc(args, directory);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    said(&output)
}

#[test]
fn the_table_has_a_line_for_each_address_space() {
    let at = directory();
    let text = good(at.path(), &["regions", NAME]);
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert!(text.contains("a look each 5 ms by faults, a report each 100 ms, 10 to 1,000 regions"));
    assert_eq!(
        lines[3],
        [
            "10", "sample", "1", "2", "3.0", "32", "KiB", "8", "KiB", "10", "KiB", "2", "KiB"
        ]
    );
    // 512 KiB, and a twentieth of 512 KiB in half of the reports.
    assert_eq!(
        lines[4],
        [
            "20", "other", "2", "40", "2.0", "1,024", "KiB", "512", "KiB", "537", "KiB", "0", "KiB"
        ]
    );
    assert!(text.ends_with("1 reports are left out, because a part of them is missing\n"));
    let json: Value = serde_json::from_str(&good(at.path(), &["regions", NAME, "--json"])).unwrap();
    assert_eq!(json["sampling"]["by"], "fault");
    assert_eq!(json["sampling"]["aggregate_ns"], 100_000_000);
    assert_eq!(json["spaces"][1]["working_set"]["p50"], 512 << 10);
    assert_eq!((&json["good"], &json["cut"]), (&true.into(), &1.into()));
    let args = ["regions", NAME, "--json", "--process", "20"];
    let json: Value = serde_json::from_str(&good(at.path(), &args)).unwrap();
    let spaces = json["spaces"].as_array().unwrap();
    assert_eq!((spaces.len(), &spaces[0]["pid"]), (1, &20.into()));
    for name in ["other", "o*r", "?ther"] {
        let args = ["regions", NAME, "--json", "--process", name];
        let same: Value = serde_json::from_str(&good(at.path(), &args)).unwrap();
        assert_eq!(same["spaces"], json["spaces"], "{name}");
    }
    // A part of the time, and of the addresses.
    let spaces = |more: &[&str]| {
        let args = [&["regions", NAME, "--json"], more].concat();
        let json: Value = serde_json::from_str(&good(at.path(), &args)).unwrap();
        let spaces = json["spaces"].as_array().unwrap().clone();
        let of = |s: &Value| {
            let n = |v: &Value| v.as_u64().unwrap();
            let p50 = (n(&s["bytes"]["p50"]), n(&s["working_set"]["p50"]));
            (n(&s["pid"]), n(&s["reports"]), p50)
        };
        spaces.iter().map(of).collect::<Vec<_>>()
    };
    let half = ["--address", "0x100000..0x140000"];
    assert_eq!(spaces(&half), [(20, 40, (0x4_0000, 0x4_0000))]);
    assert_eq!(spaces(&["--since", "2s"])[0].0, 20);
    let reports = |more: &[&str]| spaces(more).iter().map(|s| s.1).sum::<u64>();
    let (early, late) = (reports(&["--until", "2s"]), reports(&["--since", "2s"]));
    assert!(
        early > 0 && late > 0 && early + late == 42,
        "{early} {late}"
    );
    let args = ["regions", NAME, "--address", "0..4096"];
    assert!(good(at.path(), &args).contains("no report is selected"));
    let csv = good(
        at.path(),
        &[&["regions", NAME, "--csv"], &half[..]].concat(),
    );
    assert_eq!(csv.lines().count(), 1 + 40 + 1, "{csv}");
    // Accessed bits do not show writes, so there is no column for them.
    let accessed = TraceBuilder::sample_of_regions(uapi::VMTRACE_BY_ACCESSED).finish();
    std::fs::write(at.path().join("accessed.vmt"), accessed).unwrap();
    let text = good(at.path(), &["regions", "accessed.vmt"]);
    assert!(
        !text.contains("written") && text.contains("by accessed bits"),
        "{text}"
    );
    let mut none = TraceBuilder::new(2, 64);
    none.sample_regions(uapi::VMTRACE_BY_ACCESSED);
    std::fs::write(at.path().join("none.vmt"), none.finish()).unwrap();
    let text = good(at.path(), &["regions", "none.vmt"]);
    assert!(text.contains("\nno reports: "), "{text}");
}

#[test]
fn csv_has_a_line_for_each_region() {
    let at = directory();
    let text = good(at.path(), &["regions", NAME, "--csv"]);
    let mut lines = text.lines();
    let head = "time_ns,process,mm,start,end,looks,accesses,writes,age,cpus";
    assert_eq!(lines.next(), Some(head));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 6 + 80 + 1);
    assert_eq!(
        rows[0][1..],
        ["10", "1", "0x1000", "0x2000", "20", "20", "4", "0", "0x1"]
    );
    let times: Vec<u64> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
    assert!(times.is_sorted() && times[0] > 100_000_000 && times[0] < 101_000_000);
    let text = good(at.path(), &["regions", NAME, "--csv", "--process", "10"]);
    assert_eq!(text.lines().count(), 7);
    let named = ["regions", NAME, "--csv", "--process", "sample"];
    assert_eq!(good(at.path(), &named), text);
}

#[test]
fn what_is_not_there_is_refused() {
    let at = directory();
    for args in [&["--json"][..], &["--csv"], &[]] {
        let args = [&["regions", NAME, "--process", "77"], args].concat();
        let output = support::postproc(&args, at.path());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            said(&output).contains("process 77 has no regions"),
            "{}",
            said(&output)
        );
    }
    let message = refused(at.path(), &["regions", "references.vmt"]);
    assert!(
        message.contains("has references, and no regions"),
        "{message}"
    );
    assert!(message.contains("`activator run --sample`"), "{message}");
}

/// A trace that breaks a rule is shown, and the exit code says so.
#[test]
fn a_bad_trace_is_told() {
    let at = directory();
    let mut b = builder();
    b.touch(0, 10, 1, 0x1000);
    std::fs::write(at.path().join(NAME), b.finish()).unwrap();
    for args in [&["--json"][..], &["--csv"], &[]] {
        let output = support::postproc(&[&["regions", NAME], args].concat(), at.path());
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(said(&output).contains("a reference in a trace of regions"));
        assert!(!output.stdout.is_empty());
    }
}

/// All commands, so that a new one is thought of.
#[test]
fn commands_that_need_references_refuse() {
    let at = directory();
    let refusing: &[&[&str]] = &[
        &["simulate", NAME, "--size", "10"],
        &["advise", NAME],
        &["compare", "references.vmt", NAME],
        &["summary", NAME, "-o", "out"],
        &["dataset", NAME, "-o", "out"],
        &[
            "reduce", NAME, "--method", "sad", "--size", "4", "-o", "out",
        ],
        &["report", NAME, "-o", "out"],
        &["damon", NAME],
        &["split", NAME, "--by", "process", "-o", "out"],
        &["export", NAME, "--format", "csv", "-o", "out"],
    ];
    let mut seen = BTreeSet::new();
    for args in refusing {
        let message = refused(at.path(), args);
        let expected =
            "the trace has samples of regions, and no references: use `postproc regions`";
        assert!(message.contains(expected), "{args:?}: {message}");
        seen.insert(args[0]);
    }
    assert!(!at.path().join("out").exists());
    let message = refused(at.path(), &["info", NAME, "--where", "kind == write"]);
    assert!(message.contains("samples of regions"), "{message}");
    let others = [
        "info",
        "events",
        "maps",
        "check",
        "merge",
        "pack",
        "unpack",
        "recover",
        "split",
        "join",
        "regions",
        "completions",
        "man",
    ];
    seen.extend(others);
    for command in Cli::command().get_subcommands() {
        assert!(seen.contains(command.get_name()), "{}", command.get_name());
    }
}

#[test]
fn formats_with_events_take_it() {
    let at = directory();
    let formats = postproc::export::registry().iter().map(|f| f.id);
    for format in formats {
        let out = format!("out.{format}");
        let args = ["export", NAME, "--format", format, "-o", &out];
        if ["damon", "ctf", "ctf2"].contains(&format) {
            good(at.path(), &args);
            assert!(at.path().join(&out).exists());
            continue;
        }
        let message = refused(at.path(), &args);
        assert!(
            message.contains("samples of regions"),
            "{format}: {message}"
        );
        assert!(!at.path().join(&out).exists());
    }
    for option in [&["--per-process"][..], &["--process", "10"]] {
        let args = [&["export", NAME, "--format", "damon", "-o", "no"], option].concat();
        let message = refused(at.path(), &args);
        assert!(
            message.contains("no references that could be selected"),
            "{message}"
        );
    }
}

/// The record is read as a real DAMON's is.
#[test]
fn a_record_has_the_reports() {
    let at = directory();
    good(
        at.path(),
        &["export", NAME, "--format", "damon", "-o", "damon.data"],
    );
    let record = Record::open(&at.path().join("damon.data"), 1).unwrap();
    assert_eq!(record.sampling_ns, Some(5_000_000));
    let targets: Vec<u64> = record.targets.keys().copied().collect();
    assert_eq!(targets, [1, 2]);
    let snapshots = &record.targets[&1];
    assert_eq!(snapshots.len(), 2);
    let regions = |i: usize| {
        let all = snapshots[i].regions.iter();
        let all: Vec<_> = all.map(|r| (r.start, r.end, r.accesses)).collect();
        all
    };
    assert_eq!(
        regions(0),
        [
            (0x1000, 0x2000, 20),
            (0x2000, 0x5000, 10),
            (0x5000, 0x9000, 0)
        ]
    );
    assert_eq!(regions(1)[1], (0x2000, 0x4000, 10));
    assert_eq!(snapshots[0].end, snapshots[1].start);
    assert!(snapshots[1].end - snapshots[1].start > 99_000_000);
    // The report that was cut short is no snapshot.
    assert_eq!(record.targets[&2].len(), 40);
}

#[test]
fn info_says_how_regions_were_sampled() {
    let at = directory();
    let text = good(at.path(), &["info", NAME]);
    let line = "  regions    a look each 5 ms by faults, a report each 100 ms, 10 to 1,000 regions, adapted \
                to the mappings each 1000 ms; no references";
    assert!(text.contains(line), "{text}");
    let json: Value = serde_json::from_str(&good(at.path(), &["info", NAME, "--json"])).unwrap();
    let sampling = &json["header"]["sampling"];
    assert_eq!(sampling["sample_ns"], 5_000_000);
    assert_eq!(sampling["max_regions"], 1000);
    assert_eq!(json["event_types"]["region"], 87);
    let args = ["info", "references.vmt", "--json"];
    let json: Value = serde_json::from_str(&good(at.path(), &args)).unwrap();
    assert!(json["header"].get("sampling").is_none());
}

#[test]
fn events_have_their_fields() {
    let at = directory();
    let args = ["events", NAME, "--type", "region", "--mm", "1"];
    let text = good(at.path(), &args);
    let fields = "mm=1 region start=0x1000 end=0x2000 looks=20 accesses=20 writes=4 age=0 cpus=0x1 \
                  index=0 regions=3";
    assert!(text.lines().next().unwrap().contains(fields), "{text}");
}

/// Packed, in pieces, by processes, and after a part was lost.
#[test]
fn other_forms_are_the_same_trace() {
    let at = directory();
    let csv = |name: &str| good(at.path(), &["regions", name, "--csv"]);
    let plain = csv(NAME);
    good(at.path(), &["pack", NAME, "--zstd", "-o", "packed.vmt"]);
    assert_eq!(csv("packed.vmt"), plain);
    let size = |name: &str| std::fs::metadata(at.path().join(name)).unwrap().len();
    assert!(size("packed.vmt") < size(NAME));
    good(
        at.path(),
        &["split", NAME, "--by", "time=1s", "-o", "pieces"],
    );
    assert_eq!(csv("pieces"), plain);
    let mut pieces: Vec<_> = std::fs::read_dir(at.path().join("pieces"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    pieces.sort();
    assert!(pieces.len() > 3, "{pieces:?}");
    let mut rows = 0;
    for piece in &pieces {
        let piece = piece.to_str().unwrap();
        good(at.path(), &["check", piece]);
        let output = support::postproc(&["regions", piece, "--csv"], at.path());
        rows += String::from_utf8(output.stdout).unwrap().lines().count() - 1;
    }
    assert_eq!(rows, plain.lines().count() - 1);
    let bytes = std::fs::read(at.path().join(NAME)).unwrap();
    assert!(check_bytes(&bytes).good);
    // Without its account. All reports are there.
    std::fs::write(at.path().join("cut.vmt"), &bytes[..bytes.len() - 10]).unwrap();
    let args = ["recover", "cut.vmt", "-o", "again.vmt"];
    assert_eq!(support::postproc(&args, at.path()).status.code(), Some(1));
    let output = support::postproc(&["regions", "again.vmt", "--csv"], at.path());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), plain);
}
