//! Memory that is freed, and stays that go on: what the commands say of both, against
//! figures that follow from how the traces were made.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support;
use postproc::canon::PageMode;
use postproc::check::{CheckOptions, Checker};
use postproc::error::Result;
use postproc::pipeline::{self, Batch, Consumer, Freeing, Unwatched, World};
use postproc::report::{Report, Statistics, Summary, Views};
use postproc::sim::{self, Access};
use postproc::testing::TraceBuilder;
use postproc::trace::Trace;
use postproc::units::{self, CanonPage, Prot, Tid};
use serde_json::Value;

const PAGE: u64 = 4096;
const KEPT: u64 = 0x100_0000;
const SHORT: u64 = 0x200_0000;

#[track_caller]
fn postproc(directory: &Path, line: &str) -> (Option<i32>, String, String) {
    let args: Vec<&str> = line.split_whitespace().collect();
    let output = support::postproc(&args, directory);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[track_caller]
fn done(directory: &Path, line: &str) -> String {
    let (code, out, errors) = postproc(directory, line);
    assert_eq!(code, Some(0), "{line}: {errors}");
    out
}

#[track_caller]
fn json(directory: &Path, line: &str) -> Value {
    serde_json::from_str(&done(directory, &format!("{line} --json"))).unwrap()
}

/// Misses of the sizes, in the order asked for.
fn misses(result: &Value) -> Vec<u64> {
    let rows = result["sizes"].as_array().unwrap().iter();
    rows.map(|row| row["misses"].as_u64().unwrap()).collect()
}

/// A reference is a record that begins a stay. A record that a stay goes on is none, in
/// no command and in no divisor.
#[test]
fn renewals_are_no_references() {
    let directory = tempfile::tempdir().unwrap();
    let d = directory.path();
    let mut b = TraceBuilder::new(1, 32);
    b.header_mut().first_segment = 8;
    b.program();
    b.map_anon(0, 10, 1, KEPT, KEPT + 1000 * PAGE, Prot(3));
    let (mut touched, mut renewed) = (0, 0);
    for i in 0..4_000 {
        b.touch(0, 10, 1, KEPT + i % 1000 * PAGE);
        // What is in the set still makes no record. Before the set is full there is nothing
        // to renew.
        let admitted = b.admissions() > touched;
        touched = b.admissions();
        for _ in 0..if admitted && touched > 32 { 7 } else { 0 } {
            b.renew(0, 10, false);
            renewed += 1;
        }
    }
    assert!(touched > 3_800 && renewed > 26_000);
    std::fs::write(d.join("t"), b.finish()).unwrap();

    let checked = json(d, "check t");
    assert_eq!(
        (&checked["references"], &checked["renewals"]),
        (&touched.into(), &renewed.into())
    );
    let sizes = "--policy lru,clock --size 64,1000";
    let whole = json(d, &format!("simulate t {sizes}"));
    assert_eq!(whole["references"], touched);
    // A loop of 1,000 pages misses always in 64, and once in 1,000.
    assert_eq!(misses(&whole), [touched, 1000, touched, 1000]);
    for row in whole["sizes"].as_array().unwrap() {
        assert_eq!(row["references"], touched);
    }
    let text = done(d, "simulate t --policy lru --size 64");
    let grouped = format!("3,{:03} references, 1,000 cold", touched - 3_000);
    assert!(text.contains(&grouped), "{text}");
    assert!(
        text.contains("100.0") && !text.contains("12.5"),
        "the divisor: {text}"
    );
    // Bounds and errors are of the whole trace.
    let mut whole = whole;
    for row in whole["sizes"].as_array_mut().unwrap() {
        let row = row.as_object_mut().unwrap();
        assert_eq!(row.remove("low").is_some(), row.remove("high").is_some());
        row.remove("measured_error");
        row.remove("measured_error_with_fill");
    }
    let own = json(d, &format!("simulate t {sizes} --process 10"));
    assert_eq!(
        (&own["references"], &own["sizes"]),
        (&whole["references"], &whole["sizes"])
    );
    done(d, "export t --format txt -o t.txt");
    let lines = std::fs::read_to_string(d.join("t.txt")).unwrap();
    assert_eq!(lines.lines().count() as u64, touched);
    let text = json(d, &format!("simulate --from txt t.txt {sizes}"));
    assert_eq!(
        (&text["references"], &text["sizes"]),
        (&whole["references"], &whole["sizes"])
    );
    // What follows from a stay is put in once for a stay, and not for its renewals.
    let filled = json(d, &format!("simulate t {sizes} --fill"));
    assert_eq!(filled["references"], touched);
    assert_eq!(misses(&filled)[0], touched);
    let summary = json(d, "report t -o report.html");
    assert_eq!(
        (&summary["references"], &summary["renewals"]),
        (&touched.into(), &renewed.into())
    );
    // Records are what the file has.
    let info = json(d, "info t");
    assert_eq!(info["reference_records"], touched + renewed);
    assert_eq!(info["references"], Value::Null);
}

/// Rounds in which 40 pages are referenced that stay, and ten times eight pages are
/// mapped, referenced and unmapped.
fn rounds(rounds: u64) -> Vec<u8> {
    let mut b = TraceBuilder::new(1, 4);
    b.program();
    b.map_anon(0, 10, 1, KEPT, KEPT + 40 * PAGE, Prot(3));
    for _ in 0..rounds {
        for page in 0..40 {
            b.touch_as(0, 10, 1, KEPT + page * PAGE, units::Access::Write);
        }
        for _ in 0..10 {
            b.map_anon(0, 10, 1, SHORT, SHORT + 8 * PAGE, Prot(3));
            for page in 0..8 {
                b.touch_as(0, 10, 1, SHORT + page * PAGE, units::Access::Write);
            }
            b.unmap(0, 10, 1, SHORT, SHORT + 8 * PAGE);
        }
    }
    b.finish()
}

#[test]
fn freed_pages_make_room() {
    let directory = tempfile::tempdir().unwrap();
    let d = directory.path();
    std::fs::write(d.join("t"), rounds(20)).unwrap();
    let (cold, all) = (40 + 20 * 80, 20 * 120);
    let sizes = "--policy lru,opt --size 47,48,64,119,120";
    let freed = json(d, &format!("simulate t {sizes}"));
    assert_eq!(freed["freeing"], "freed");
    assert_eq!(
        (&freed["references"], &freed["cold"]),
        (&all.into(), &cold.into())
    );
    let misses_freed = misses(&freed);
    // 48 pages live at one time. Pages that were unmapped are in nobody's way.
    assert_eq!(misses_freed[1..5], [cold; 4]);
    assert_eq!(misses_freed[6..], [cold; 4]);
    assert!(misses_freed[0] > cold);
    for row in &freed["sizes"].as_array().unwrap()[1..5] {
        // They were dirty, and nothing had to be written back.
        assert_eq!(
            (&row["write_backs"], &row["dirty_left"]),
            (&0.into(), &40.into())
        );
    }
    assert_eq!(freed["sizes"][6]["write_backs"], Value::Null, "OPT's");

    let kept = json(d, &format!("simulate t {sizes} --keep-freed"));
    assert_eq!(kept["freeing"], "kept");
    let misses_kept = misses(&kept);
    // A page comes back after 40 + 80 pages.
    assert_eq!(misses_kept[..5], [all, all, all, all, cold]);
    // OPT keeps what is used again.
    assert_eq!(misses_kept[5..], misses_freed[5..]);
    assert!(kept["sizes"][6]["write_backs"].is_u64());
    for (more, phrase) in [
        ("", "freed pages leave memory"),
        ("--keep-freed", "freed pages stay until they are replaced"),
    ] {
        let text = done(d, &format!("simulate t --size 64 {more}"));
        assert!(text.contains(phrase), "{more}: {text}");
    }
    // Numbers are given again: the curve ends where all pages that live at one time fit.
    let curve = json(d, "simulate t --policy lru,opt --curve --points 0");
    let rows = curve["curve"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 48);
    for row in [&rows[47], &rows[95]] {
        assert_eq!(
            (&row["size_pages"], &row["misses"]),
            (&48.into(), &cold.into())
        );
    }
}

#[test]
fn reductions_of_memory_that_is_freed() {
    let directory = tempfile::tempdir().unwrap();
    let d = directory.path();
    std::fs::write(d.join("t"), rounds(20)).unwrap();
    let sizes = "--policy lru,opt --size 16,17,30,47,48,100";
    let full = json(d, &format!("simulate t {sizes}"));
    let made = json(d, "reduce t --method sad --size 16 -o sad.csv");
    assert_eq!(made["references"], full["references"]);
    let csv = std::fs::read_to_string(d.join("sad.csv")).unwrap();
    let frees = csv.lines().filter(|line| line.ends_with(",free")).count();
    assert_eq!(frees, 20 * 80);
    let lines = csv.lines().count() - frees - 2;
    assert_eq!(made["left"], lines as u64);
    let short = json(d, &format!("simulate --from csv sad.csv {sizes}"));
    assert_eq!(short["freeing"], "freed");
    assert_eq!(misses(&short), misses(&full));
    assert_ne!(misses(&full)[3], misses(&full)[4]);
    // No more numbers than pages that live at one time.
    let number = |line: &str| line.split(',').next().unwrap().parse::<u64>().unwrap();
    assert_eq!(csv.lines().skip(2).map(number).max(), Some(48));
    // Reduced once more, from the csv, in which frees are rows.
    json(
        d,
        "reduce --from csv sad.csv --method sad --size 30 -o again.csv",
    );
    let again = json(d, &format!("simulate --from csv again.csv {sizes}"));
    assert_eq!(misses(&again)[2..6], misses(&full)[2..6]);
    // As if nothing was freed.
    let kept = json(d, &format!("simulate t {sizes} --keep-freed"));
    json(
        d,
        "reduce t --method sad --size 16 -o kept.csv --keep-freed",
    );
    assert!(
        !std::fs::read_to_string(d.join("kept.csv"))
            .unwrap()
            .contains("free\n")
    );
    let short = json(d, &format!("simulate --from csv kept.csv {sizes}"));
    assert_eq!(misses(&short), misses(&kept));

    for method in ["olr", "fifo", "clock"] {
        for (option, of, frees) in [("", &full, 20 * 80), ("--keep-freed", &kept, 0)] {
            let line = format!("reduce t --method {method} --size 16 -o {method}.csv {option}");
            json(d, &line);
            let csv = std::fs::read_to_string(d.join(format!("{method}.csv"))).unwrap();
            let found = csv.lines().filter(|line| line.ends_with(",free")).count();
            assert_eq!(found, frees, "{line}");
            let short = json(d, &format!("simulate --from csv {method}.csv {sizes}"));
            match method {
                "olr" => assert_eq!(misses(&short)[..6], misses(of)[..6], "{line}"),
                // From four times the size on, nearly.
                _ => assert_eq!(misses(&short)[5], misses(of)[5], "{line}"),
            }
        }
        // From a csv in which frees are rows, too.
        json(
            d,
            &format!("reduce --from csv sad.csv --method {method} --size 16 -o {method}.csv"),
        );
    }
}

/// References of a process, and ends of pages that it has referenced.
struct Of {
    tgid: u32,
    seen: BTreeSet<CanonPage>,
    accesses: Vec<Access>,
}

impl Consumer for Of {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for (r, &page) in batch.refs.iter().zip(batch.pages) {
            let id = batch.world.tasks.find(r.tid()).unwrap();
            if batch.world.tasks.process(id).tgid == Tid(self.tgid) {
                self.seen.insert(page);
                self.accesses
                    .push(Access::reference(page, r.flags().writes()));
            }
        }
        Ok(())
    }

    fn freed(&mut self, pages: &[CanonPage], _: &World) -> Result<()> {
        let mine = pages.iter().filter(|page| self.seen.remove(page));
        self.accesses.extend(mine.map(|&page| Access::free(page)));
        Ok(())
    }
}

/// A parent and its children, which share pages until one of them copies or unmaps them.
fn family() -> Vec<u8> {
    let mut b = TraceBuilder::new(2, 3);
    b.program();
    b.map_anon(0, 10, 1, KEPT, KEPT + 60 * PAGE, Prot(3));
    let mut random = 0x1234_5678u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (random >> 33) % below
    };
    let mut child: Option<u32> = None;
    let mut last = 1;
    for _ in 0..30_000 {
        let (tid, mm) = match child {
            Some(child) if next(2) == 0 => (10 + child, child),
            _ => (10, 1),
        };
        let page = KEPT + next(60) * PAGE;
        match next(400) {
            0 | 1 => {
                let end = (page + 7 * PAGE).min(KEPT + 60 * PAGE);
                b.unmap(0, tid, mm, page, end);
                b.map_anon(0, tid, mm, page, end, Prot(3));
            }
            2 => b.advise(0, tid, mm, page, page + 5 * PAGE, 4),
            3..=9 => b.cow(0, tid, mm, page),
            10..=11 => match child.take() {
                Some(child) => {
                    b.exit(0, 10 + child, child);
                    b.mm_end(0, 10 + child, child);
                }
                None => {
                    last += 1;
                    b.fork(0, 10, 1, 10 + last, last);
                    child = Some(last);
                }
            },
            _ => {
                let access = match next(4) {
                    0 => units::Access::Write,
                    _ => units::Access::Read,
                };
                b.touch_as(0, tid, mm, page, access);
            }
        }
    }
    b.finish()
}

#[test]
fn one_process_and_a_sample_of_all() {
    let directory = tempfile::tempdir().unwrap();
    let d = directory.path();
    let bytes = family();
    std::fs::write(d.join("t"), &bytes).unwrap();
    let trace = Trace::from_bytes("memory", bytes).unwrap();
    let mut own = Of {
        tgid: 10,
        seen: BTreeSet::new(),
        accesses: Vec::new(),
    };
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut own];
    let (mode, freeing) = (PageMode::Canonical, Freeing::Freed);
    pipeline::run_with(&trace, mode, freeing, &mut Unwatched, consumers).unwrap();
    assert!(own.accesses.iter().filter(|a| !a.is_reference()).count() > 200);
    let policies: Vec<&str> = sim::registry().iter().map(|entry| entry.id).collect();
    let sizes = [5, 20, 45];
    let asked = format!("--policy {} --size 5,20,45", policies.join(","));
    let alone = json(d, &format!("simulate t --process 10 {asked}"));
    let kept = json(d, &format!("simulate t --process 10 {asked} --keep-freed"));
    assert_ne!(misses(&alone), misses(&kept));
    let mut rows = alone["sizes"].as_array().unwrap().iter();
    for entry in sim::registry() {
        for size in sizes {
            let mut simulation = (entry.simulate)(size);
            simulation.references(&own.accesses);
            let counts = simulation.counts();
            let row = rows.next().unwrap();
            let expected = serde_json::to_value(counts).unwrap();
            for (name, value) in expected.as_object().unwrap() {
                assert_eq!(&row[name], value, "{name} of {} at {size}", entry.id);
            }
        }
    }
    // A sample of all pages is no estimate.
    let asked = format!("--policy {} --size 20,45", policies.join(","));
    let whole = json(d, &format!("simulate t {asked}"));
    let sample = json(d, &format!("simulate t {asked} --sample 1"));
    let estimates = sample["estimates"].as_array().unwrap();
    assert_eq!(sample["cold"], whole["cold"]);
    for (found, row) in estimates.iter().zip(whole["sizes"].as_array().unwrap()) {
        assert_eq!(found["misses"].as_f64(), row["misses"].as_f64(), "{found}");
    }
}

/// Sees the largest number of a page. Without `follows`, no number may be given twice.
struct Largest {
    follows: bool,
    number: u32,
}

impl Consumer for Largest {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        let largest = batch.pages.iter().map(|page| page.0).max();
        self.number = self.number.max(largest.unwrap_or(0));
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        self.follows
    }
}

/// Writes the report of a trace, as the command does; gives the largest number of a page.
fn report(trace: &Trace, again: bool, to: &Path) -> u32 {
    let mut largest = Largest {
        follows: again,
        number: 0,
    };
    let mut checker = Checker::new(CheckOptions::default());
    let mut statistics = Statistics::default();
    let mut certifier = sim::Certifier::default();
    let mut views = Views::new(trace);
    let outcome = {
        let consumers: &mut [&mut dyn Consumer] = &mut [
            &mut checker,
            &mut statistics,
            &mut certifier,
            &mut views,
            &mut largest,
        ];
        let (mode, freeing) = (PageMode::Canonical, Freeing::Freed);
        pipeline::run_with(trace, mode, freeing, &mut Unwatched, consumers).unwrap()
    };
    let (curve, check) = (views.reuse.curve(), checker.report());
    assert!(check.good);
    let certificate = certifier.certificate();
    let summary = Summary::new(
        trace,
        &outcome,
        &statistics,
        check,
        &curve,
        certificate.as_ref(),
        Freeing::Freed,
    );
    Report::new(summary, &views, &curve, &[]).write(to).unwrap();
    largest.number
}

/// A report needs no more numbers than pages that live at one time, and is the same as with a
/// number for each page.
#[test]
fn a_report_is_the_same_with_numbers_that_are_given_again() {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes, live) in [("rounds", rounds(20), 48), ("family", family(), 200)] {
        let trace = Trace::from_bytes(name, bytes).unwrap();
        let of = |again: bool| {
            let to = directory.path().join(format!("{name}-{again}"));
            let largest = report(&trace, again, &to);
            let mut files: Vec<(String, Vec<u8>)> = to
                .read_dir()
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .map(|path| (path.file_name().unwrap().to_string_lossy().into(), path))
                .map(|(name, path): (String, _)| (name, std::fs::read(path).unwrap()))
                .collect();
            files.sort();
            (largest, files)
        };
        let ((few, with_few), (many, with_many)) = (of(true), of(false));
        assert!(few <= live && many > 2 * live, "{name}: {few}, {many}");
        assert!(with_few.len() > 20);
        for ((name, one), (_, other)) in with_few.iter().zip(&with_many) {
            assert!(one == other, "{name} differs");
        }
        assert_eq!(with_few.len(), with_many.len());
    }
    // The command gives numbers again, too: what it reads with follows the ends of pages.
    assert!(Views::new(&Trace::from_bytes("rounds", rounds(1)).unwrap()).follows_freed());
    assert!(Statistics::default().follows_freed());
}

/// OPT's bounds come from OPT's misses, also where another policy is simulated at the size
/// that they need.
#[test]
fn bounds_of_opt_are_those_of_its_curve() {
    let directory = tempfile::tempdir().unwrap();
    let d = directory.path();
    let mut b = TraceBuilder::new(1, 8);
    b.program();
    b.map_anon(0, 10, 1, 0x10_0000, 0x18_0000, Prot(3));
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..4_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        b.touch(0, 10, 1, 0x10_0000 + (random >> 20) % 64 * 4096);
    }
    std::fs::write(d.join("t"), b.finish()).unwrap();
    // N = 8: the bound at 27 pages needs OPT's misses at 20.
    let found = json(d, "simulate t --policy lru,opt --size 27,20");
    let curve = json(d, "simulate t --policy opt --curve --points 0");
    let mut compared = 0;
    for row in found["sizes"].as_array().unwrap() {
        if row["policy"] == "opt" {
            let points = curve["curve"].as_array().unwrap();
            let point = points.iter().find(|p| p["size_pages"] == row["size_pages"]);
            let point = point.expect("the curve has all sizes");
            assert!(point["high"].is_u64(), "{point}");
            assert_eq!((&row["low"], &row["high"]), (&point["low"], &point["high"]));
            compared += 1;
        }
    }
    assert_eq!(compared, 2);
}
