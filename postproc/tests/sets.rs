//! Traces of several sets: what is exact in them, and what every command says about them.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::support::postproc;
use postproc::canon::PageMode;
use postproc::check::{CheckOptions, Checker};
use postproc::error::Result;
use postproc::pipeline::{self, Batch, Consumer, Freeing, Unwatched, World};
use postproc::sim::{
    Access, Certificate, Certifier, CurveSimulation, Filler, LruCurve, Part, Witness,
};
use postproc::streams::{Selected, Selection};
use postproc::testing::{TraceBuilder, check_bytes};
use postproc::trace::{Merge, Ready, StreamKind, Trace, Why};
use postproc::units::{CanonPage, Prot, Tid};
use rust_mm_trace::uapi;
use serde_json::Value;

const N: u32 = 8;
const START: u64 = 0x10_0000;
const PAGES: u64 = 0x1_0000;

/// A number below `n`; the same ones in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// An access of a program: its address space, and the page.
type Step = (u32, u64);

/// Programs of which one is busy while others rest, and then another.
fn steps(programs: u32, count: usize, seed: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let mut steps = Vec::new();
    while steps.len() < count {
        let mm = 1 + random.below(programs.into()) as u32;
        for _ in 0..1 + random.below(60) {
            let page = match random.below(3) {
                0 => random.below(200),
                1 => random.below(40),
                _ => random.below(6),
            };
            steps.push((mm, page));
        }
    }
    steps
}

/// A trace of these accesses, with what `build` sets up; each address space has a set, if `sets`.
fn traced(steps: &[Step], cpus: u32, sets: bool, build: impl FnOnce(&mut TraceBuilder)) -> Vec<u8> {
    let mut b = TraceBuilder::new(cpus, N);
    if sets {
        b.several_sets();
    }
    build(&mut b);
    let mut mms: Vec<u32> = steps.iter().map(|step| step.0).collect();
    mms.sort_unstable();
    mms.dedup();
    for &mm in &mms {
        if sets {
            b.set(0, 10 * mm, mm, mm);
        }
        b.task(0, 10 * mm, 10 * mm, mm, &format!("program-{mm}"));
        b.map_anon(0, 10 * mm, mm, START, START + PAGES * 4096, Prot(3));
    }
    for (i, &(mm, page)) in steps.iter().enumerate() {
        let cpu = (i / 7) as u32 % cpus;
        b.touch(cpu, 10 * mm, mm, START + page * 4096);
    }
    b.finish()
}

fn open(bytes: &[u8]) -> Trace {
    assert!(check_bytes(bytes).good, "{:#?}", check_bytes(bytes));
    Trace::from_bytes("memory", bytes.to_vec()).unwrap()
}

/// LRU's misses at all sizes up to this one, and the certified bands of the references of a set,
/// or of all.
const UPTO: u64 = 260;

fn certified(trace: &Trace, set: Option<u32>) -> (Vec<u64>, Option<Certificate>) {
    let mut certifier = Certifier::of_set(set);
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut certifier];
    let (mode, freeing) = (PageMode::Canonical, Freeing::Freed);
    pipeline::run_with(trace, mode, freeing, &mut Unwatched, consumers).unwrap();
    let curve = certifier.lru();
    let misses = (1..=UPTO).map(|size| curve.at(size).misses).collect();
    (misses, certifier.certificate())
}

/// LRU's misses by simulating each access.
fn true_misses(accesses: impl Iterator<Item = Step>) -> Vec<u64> {
    let mut curve = LruCurve::default();
    let mut numbers = std::collections::HashMap::new();
    for step in accesses {
        let next = numbers.len() as u32 + 1;
        let page = CanonPage(*numbers.entry(step).or_insert(next));
        CurveSimulation::references(&mut curve, &[Access::reference(page, false)]);
    }
    let curve = curve.curve();
    (1..=UPTO).map(|size| curve.at(size).misses).collect()
}

/// A set's references are those of the trace of one set of the program alone.
#[test]
fn a_sets_references_are_those_of_a_trace_of_its_own() {
    for (programs, cpus) in [(2, 1), (3, 2), (5, 2)] {
        let steps = steps(programs, 6_000, programs.into());
        let several = open(&traced(&steps, cpus, true, |_| {}));
        for mm in 1..=programs {
            let own: Vec<Step> = steps.iter().copied().filter(|s| s.0 == mm).collect();
            let alone = open(&traced(&own, cpus, false, |_| {}));
            let (misses, bands) = certified(&several, Some(mm));
            let (expected, expected_bands) = certified(&alone, None);
            assert_eq!(misses, expected);
            let (bands, expected_bands) = (bands.unwrap(), expected_bands.unwrap());
            assert_eq!(bands.least(), 2 * u64::from(N) - 1);
            let truth = true_misses(own.iter().copied());
            for size in 1..=UPTO {
                assert_eq!(bands.lru(size), expected_bands.lru(size), "{mm} {size}");
                let Some(band) = bands.lru(size) else {
                    assert!(size < bands.least());
                    continue;
                };
                let true_misses = truth[size as usize - 1];
                assert!(
                    (band.low..=band.high).contains(&true_misses),
                    "{mm} {size}: {band:?} {true_misses}"
                );
            }
        }
        // All together have no band.
        assert!(certified(&several, None).1.is_none());
    }
}

/// Keeps the end of the pass from a certifier.
struct Endless(Certifier);

impl Consumer for Endless {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        self.0.begin(trace)
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.0.references(batch)
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], world: &World) -> Result<()> {
        self.0.freed(pages, world)
    }
}

/// A certifier that did not see the end of the pass gives no bounds before `complete()`, whether a thread
/// counts or not. After `complete()`, the bounds are those of the whole trace.
#[test]
fn bounds_of_a_part_are_never_given() {
    // The second one is less than a block.
    for count in [10_000, 1_000] {
        let trace = open(&traced(&steps(1, count, 1), 1, false, |_| {}));
        let mut endless = Endless(Certifier::default());
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut endless];
        let (mode, freeing) = (PageMode::Canonical, Freeing::Freed);
        pipeline::run_with(&trace, mode, freeing, &mut Unwatched, consumers).unwrap();
        let Endless(mut certifier) = endless;
        assert!(certifier.certificate().is_none());
        assert_eq!(certifier.lru().references, 0);
        certifier.complete();
        let (misses, expected) = certified(&trace, None);
        let (bands, expected) = (certifier.certificate().unwrap(), expected.unwrap());
        assert_eq!(bands.least(), expected.least());
        let curve = certifier.lru();
        for size in 1..=UPTO {
            assert_eq!(curve.at(size).misses, misses[size as usize - 1]);
            assert_eq!(bands.lru(size), expected.lru(size), "{count} {size}");
        }
    }
}

/// Bands of all records as if they were of one set.
struct Careless {
    lru: LruCurve,
    witness: Witness,
}

impl Consumer for Careless {
    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for (r, &page) in batch.refs.iter().zip(batch.pages) {
            let again = self.lru.reference(page, false);
            let distance = again.map(|again| again.distance);
            self.witness.record(Part::of(r, true, page), distance);
        }
        Ok(())
    }
}

/// While one program uses its few pages all the time, another goes over very many.
fn two_at_once() -> Vec<Step> {
    let mut steps = Vec::new();
    for i in 0..4_000 {
        steps.push((1, i % 4));
        for j in 0..10 {
            steps.push((2, (i * 10 + j) % 200));
        }
    }
    steps
}

#[test]
fn the_bounds_of_one_set_are_wrong_for_several() {
    let steps = two_at_once();
    let trace = open(&traced(&steps, 1, true, |_| {}));
    let mut careless = Careless {
        lru: LruCurve::default(),
        witness: Witness::of(trace.header(), N),
    };
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut careless];
    pipeline::run(&trace, PageMode::Canonical, &mut Unwatched, consumers).unwrap();
    let truth = true_misses(steps.iter().copied());
    let size = 4 * u64::from(N);
    let band = careless.witness.bands().at(size).unwrap();
    assert!(truth[size as usize - 1] > band.high + 3_000, "{band:?}");
    // In a trace of one set, they are right.
    let trace = open(&traced(&steps, 1, false, |_| {}));
    let band = certified(&trace, None).1.unwrap().lru(size).unwrap();
    assert!((band.low..=band.high).contains(&truth[size as usize - 1]));
}

/// What is filled in of a set, as pages in order.
struct Filled {
    filler: Filler,
    pages: Vec<u32>,
}

impl Filled {
    fn of(trace: &Trace, which: Option<Selection>) -> Vec<u32> {
        let mut filled = Filled {
            filler: Filler::new(trace.header()),
            pages: Vec::new(),
        };
        let run = |consumer: &mut dyn Consumer| {
            let consumers: &mut [&mut dyn Consumer] = &mut [consumer];
            pipeline::run(trace, PageMode::Canonical, &mut Unwatched, consumers).unwrap();
        };
        match which {
            Some(which) => run(&mut Selected::new(which, &mut filled)),
            None => run(&mut filled),
        }
        let mut rest = Vec::new();
        filled.filler.finish(&mut rest);
        filled.pages.extend(rest.iter().map(|a| a.page.0));
        filled.pages
    }
}

impl Consumer for Filled {
    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        let mut to = Vec::new();
        self.filler.batch(batch, &mut to);
        self.pages.extend(to.iter().map(|a| a.page.0));
        Ok(())
    }
}

/// The pages that a program referenced again get their later reference where they have it in a
/// trace of their own, also if the sets are not taken apart.
#[test]
fn what_is_filled_in_is_counted_by_sets() {
    let again = |mut bytes: Vec<u8>| {
        // Each record says so.
        use postproc::trace::wire::{HEAD_SIZE, REF_SIZE};
        let kind = std::mem::offset_of!(uapi::vmtrace_packet, kind);
        for (start, end) in postproc::testing::packets_of(&bytes) {
            if u32::from(bytes[start + kind]) == uapi::VMTRACE_STREAM_REF {
                for at in (start + HEAD_SIZE..end).step_by(REF_SIZE) {
                    bytes[at] |= uapi::VMTRACE_REF_AGAIN as u8;
                }
            }
        }
        postproc::testing::mend_checksums(&mut bytes);
        Trace::from_bytes("memory", bytes).unwrap()
    };
    let steps = steps(3, 3_000, 9);
    let several = again(traced(&steps, 1, true, |_| {}));
    let all = Filled::of(&several, None);
    for mm in 1..=3 {
        let own: Vec<Step> = steps.iter().copied().filter(|s| s.0 == mm).collect();
        let alone = Filled::of(&again(traced(&own, 1, false, |_| {})), None);
        let of_set = Filled::of(&several, Some(Selection::Set(mm)));
        assert_eq!(of_set, alone);
        // No two programs share a page.
        let (mut numbers, mut own_of_all) = (std::collections::HashMap::new(), Vec::new());
        let pages_of = pages_of(&several, mm);
        for &page in all.iter().filter(|page| pages_of.contains(page)) {
            let next = numbers.len() as u32 + 1;
            own_of_all.push(*numbers.entry(page).or_insert(next));
        }
        assert_eq!(own_of_all, alone);
    }
}

/// The pages that a set has references to.
fn pages_of(trace: &Trace, set: u32) -> std::collections::HashSet<u32> {
    struct Pages(u32, std::collections::HashSet<u32>);
    impl Consumer for Pages {
        fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
            let of_set = batch.refs.iter().zip(batch.pages);
            let of_set = of_set.filter(|(r, _)| r.set == self.0);
            self.1.extend(of_set.map(|(_, page)| page.0));
            Ok(())
        }
    }
    let mut pages = Pages(set, Default::default());
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut pages];
    pipeline::run(trace, PageMode::Canonical, &mut Unwatched, consumers).unwrap();
    pages.1
}

/// The set of a process that runs alone has the references of the process.
#[test]
fn a_process_alone_is_its_set() {
    let trace = open(&traced(&steps(3, 3_000, 5), 2, true, |_| {}));
    let count = |which| {
        struct Nothing;
        impl Consumer for Nothing {}
        let mut nothing = Nothing;
        let mut selected = Selected::new(which, &mut nothing);
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut selected];
        pipeline::run(&trace, PageMode::Canonical, &mut Unwatched, consumers).unwrap();
        selected.references()
    };
    for mm in 1..=3 {
        let set = count(Selection::Set(mm));
        assert!(set > 100);
        assert_eq!(set, count(Selection::Process(Tid(10 * mm))));
    }
    assert_eq!(count(Selection::Set(4)), 0);
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn directory(bytes: &[u8]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("t"), bytes).unwrap();
    directory
}

fn good(args: &[&str], directory: &Path) -> Output {
    let output = postproc(args, directory);
    assert!(output.status.success(), "{args:?}: {output:?}");
    output
}

#[test]
fn simulate_gives_bounds_for_one_set_only() {
    let directory = directory(&traced(&steps(3, 3_000, 7), 2, true, |_| {}));
    let directory = directory.path();
    for how in [&["--size", "40"][..], &["--curve", "--points", "9"]] {
        let args = ["simulate", "t", "--policy", "lru,opt,clock"];
        let args = &args[..if how[0] == "--curve" { 2 } else { 4 }];
        let plain = [args, how].concat();
        let all = good(&plain, directory);
        assert!(said(&all).contains("no proven bounds"), "{all:?}");
        let text = printed(&all);
        assert!(text.contains("several sets in one memory"), "{text}");
        assert!(!text.contains("is proven to lie"), "{text}");
        assert!(!text.contains("With four measured programs"), "{text}");
        let all = json(&good(&[&plain[..], &["--json"]].concat(), directory));
        assert_eq!(all["exact"], false);
        assert!(all["why_not_exact"].as_str().unwrap().contains("--set"));
        let rows = |v: &Value| {
            let rows = v.get("sizes").or(v.get("curve")).unwrap();
            rows.as_array().unwrap().clone()
        };
        assert!(rows(&all).iter().all(|row| row.get("low").is_none()));
        assert!(rows(&all).iter().all(|r| r.get("measured_error").is_none()));
        let one = [&plain[..], &["--set", "2"]].concat();
        let own = good(&one, directory);
        assert_eq!(said(&own), "");
        assert!(printed(&own).contains("set 2; N = 8"), "{own:?}");
        assert!(printed(&own).contains("is proven to lie"));
        let own = json(&good(&[&one[..], &["--json"]].concat(), directory));
        assert_eq!((&own["exact"], &own["set"]), (&true.into(), &2.into()));
        assert!(own.get("why_not_exact").is_none());
        assert!(rows(&own).iter().any(|row| row.get("low").is_some()));
        assert!(own["references"].as_u64() < all["references"].as_u64());
    }
    // Other ways to put several sets in one memory, and ways to keep them apart.
    let warns = |args: &[&str]| {
        let args = [&["simulate", "t"], args].concat();
        said(&good(&args, directory)).contains("no proven bounds")
    };
    assert!(warns(&["--size", "40", "--fill"]));
    assert!(warns(&["--size", "40", "--sample", "0.9"]));
    assert!(warns(&["--limit", "comm:program-1=9", "--size", "40"]));
    assert!(!warns(&["--limit", "process=40"]));
    assert!(!warns(&["--limit", "comm:program-1=9"]));
    assert!(!warns(&["--size", "40", "--process", "20"]));
    assert!(!warns(&["--size", "40", "--set", "1", "--fill"]));
    // What there is not.
    let none = postproc(&["simulate", "t", "--size", "4", "--set", "9"], directory);
    assert_eq!(none.status.code(), Some(2));
    assert!(said(&none).contains("postproc info"), "{none:?}");
    for other in [["--process", "10"], ["--limit", "process=4"]] {
        let args = ["simulate", "t", "--size", "4", "--set", "1"];
        let both = postproc(&[&args[..], &other].concat(), directory);
        assert_eq!(both.status.code(), Some(2));
    }
}

/// A trace of several sets of which one has all references, and a trace of one set.
#[test]
fn one_set_alone_is_as_usual() {
    let steps = steps(1, 2_000, 3);
    let mut results = Vec::new();
    for sets in [true, false] {
        let directory = directory(&traced(&steps, 1, sets, |_| {}));
        let args = [
            "simulate",
            "t",
            "--policy",
            "lru,opt,clock",
            "--size",
            "20,40",
        ];
        let output = good(&args, directory.path());
        assert_eq!(said(&output), "");
        results.push(printed(&output));
        let both = good(&[&args[..], &["--json"]].concat(), directory.path());
        assert_eq!(json(&both)["exact"], true);
        let set = if sets { "1" } else { "0" };
        let own = good(&[&args[..], &["--set", set]].concat(), directory.path());
        let own = printed(&own).replace(&format!("; set {set}"), "");
        assert_eq!(own, printed(&output));
    }
    assert_eq!(results[0], results[1]);
    assert!(results[0].contains("is proven to lie"));
}

#[test]
fn info_lists_the_sets() {
    let steps = steps(3, 2_000, 1);
    let bytes = traced(&steps, 2, true, |b| {
        // In the common set.
        b.task(0, 1, 1, 99, "init");
        b.map_anon(0, 1, 99, START, START + 4096, Prot(3));
        b.touch(0, 1, 99, START);
    });
    let directory = directory(&bytes);
    let output = good(&["info", "t"], directory.path());
    let text = printed(&output);
    assert!(
        text.contains("sets       one for each process (3 made, 3 at once)"),
        "{text}"
    );
    assert!(text.contains("bytes in each set"), "{text}");
    assert!(text.contains("process 20, program-2"), "{text}");
    assert!(text.contains("whatever has no other"), "{text}");
    // One line for a CPU, whatever the sets.
    assert_eq!(text.lines().filter(|l| l.starts_with("ref/")).count(), 2);
    let info = json(&good(&["info", "t", "--json"], directory.path()));
    assert_eq!(info["header"]["sets"], "process");
    assert_eq!(info["status"]["sets_made"], 3);
    let sets = info["sets"].as_array().unwrap();
    assert_eq!(sets.len(), 4);
    assert_eq!((&sets[2]["set"], &sets[2]["pid"]), (&2.into(), &20.into()));
    let records: u64 = sets.iter().map(|s| s["records"].as_u64().unwrap()).sum();
    assert_eq!(Some(records), info["reference_records"].as_u64());
    let streams = info["streams"].as_array().unwrap();
    assert!(streams.iter().any(|s| s["set"] == 3), "{streams:?}");
    // The other commands read it.
    for args in [&["events", "t"][..], &["maps", "t"], &["check", "t"]] {
        good(args, directory.path());
    }
    let events = printed(&good(&["events", "t"], directory.path()));
    assert!(events.contains("set"), "{events}");
}

#[test]
fn a_report_says_that_there_are_no_bands() {
    let why = "no proven bands";
    for (programs, exact) in [(3, false), (1, true)] {
        let directory = directory(&traced(&steps(programs, 3_000, 2), 1, true, |_| {}));
        let args = ["report", "t", "-o", "r", "--policy", "lru,opt,clock"];
        let output = good(&args, directory.path());
        assert_eq!(said(&output).contains("several sets"), !exact);
        let text = printed(&output);
        assert!(text.contains("each set has N = 8 pages"), "{text}");
        let file = |name: &str| fs::read_to_string(directory.path().join("r").join(name)).unwrap();
        let summary: Value = serde_json::from_str(&file("summary.json")).unwrap();
        assert_eq!(summary["sets"]["exact"], exact);
        let curve = file("fault-curve.json");
        assert_eq!(curve.contains(why), !exact);
        assert_eq!(curve.contains("\"low\""), exact);
        assert_eq!(curve.contains("mean_percent"), exact);
        let page = file("report.html");
        assert!(
            page.contains("in each set, one for each process"),
            "no sets"
        );
        assert!(page.contains("without a set of their own"));
        let svg = file("fault-curve.svg");
        assert_eq!(svg.contains("They are proven"), exact);
        assert_eq!(svg.contains("several sets"), !exact);
    }
}

#[test]
fn a_set_can_be_exported_and_reduced() {
    let steps = steps(3, 3_000, 4);
    let directory = directory(&traced(&steps, 1, true, |_| {}));
    let own: Vec<Step> = steps.iter().copied().filter(|s| s.0 == 3).collect();
    let alone = self::directory(&traced(&own, 1, false, |_| {}));
    let txt = |directory: &Path, more: &[&str]| {
        let args = ["export", "t", "--format", "txt", "-o", "-"];
        printed(&good(&[&args[..], more].concat(), directory))
    };
    let set = txt(directory.path(), &["--set", "3"]);
    assert_eq!(set, txt(alone.path(), &[]));
    assert_ne!(set, txt(directory.path(), &[]));
    let csv = |directory: &Path, more: &[&str]| {
        let args = ["reduce", "t", "--method", "sad", "--size", "20", "-o", "-"];
        let output = good(&[&args[..], more].concat(), directory);
        (printed(&output), said(&output).contains("several sets"))
    };
    let (set, warned) = csv(directory.path(), &["--set", "3"]);
    assert_eq!((set.lines().count() > 50, warned), (true, false));
    let own = |csv: &str| csv.lines().count();
    assert_eq!(own(&set), own(&csv(alone.path(), &[]).0));
    assert!(csv(directory.path(), &[]).1);
}

/// A machine without memory for all sets did not do what was asked for.
#[test]
fn a_set_that_is_shared_for_want_of_memory_is_an_error() {
    let bytes = traced(&steps(2, 500, 6), 1, true, TraceBuilder::share_set);
    let directory = directory(&bytes);
    let check = postproc(&["check", "t"], directory.path());
    assert_eq!(check.status.code(), Some(1), "{check:?}");
    assert!(printed(&check).contains("no memory for a set"), "{check:?}");
    let args = ["simulate", "t", "--size", "40", "--set", "1"];
    let simulated = postproc(&args, directory.path());
    assert_eq!(simulated.status.code(), Some(1), "{simulated:?}");
    assert!(!printed(&simulated).contains("is proven to lie"));
}

/// A trace of another version is refused, and the message says what to do.
#[test]
fn another_version_is_refused() {
    let mut builder = TraceBuilder::sample();
    builder.header_mut().version = 9;
    let directory = directory(&builder.finish());
    let output = postproc(&["check", "t"], directory.path());
    assert_eq!(output.status.code(), Some(2));
    let said = said(&output);
    assert!(
        said.contains("version 9") && said.contains("use the tools that came with"),
        "{said}"
    );
}

/// Thousands of sets, on few CPUs, of which each has a few records: the index, the merge and the
/// rules take little memory for each.
#[test]
fn thousands_of_sets_are_read() {
    let mut b = TraceBuilder::new(4, N);
    b.several_sets();
    for mm in 1..=3_000u32 {
        b.set(0, mm, mm, mm);
        b.task(0, mm, mm, mm, "short");
        b.map_anon(0, mm, mm, START, START + PAGES * 4096, Prot(3));
        for i in 0..16 {
            b.touch(i % 4, mm, mm, START + u64::from(i) * 4096);
        }
        // Most end soon, and some rest until the end.
        if mm % 10 > 0 {
            b.mm_end(0, mm, mm);
        } else {
            b.close(mm, START + 15 * 4096, Why::Reclaimed);
        }
    }
    let trace = open(&b.finish());
    assert!(trace.index().streams.len() > 9_000);
    let mut checker = Checker::new(CheckOptions::default());
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut checker];
    let outcome = pipeline::run(&trace, PageMode::Canonical, &mut Unwatched, consumers).unwrap();
    assert_eq!(outcome.world.references, 3_000 * 16);
    assert!(outcome.world.has_several_sets());
    assert!(checker.report().good);
}

/// Each window has sets of its own, and is a trace by itself.
#[test]
fn windows_of_several_sets_are_traces() {
    let mut b = TraceBuilder::new(2, N);
    b.several_sets();
    b.header_mut().buffer_size = 320;
    for window in 0..3 {
        b.begin_window(500);
        for mm in 2 * window + 1..2 * window + 3 {
            b.set(0, 10, mm, mm);
            b.task(0, 10, 10, mm, "program");
            b.map_anon(0, 10, mm, START, START + PAGES * 4096, Prot(3));
        }
        for i in 0..300u64 {
            // One of them rests.
            let mm = 2 * window + 1 + u32::from(i > 20);
            b.touch((i & 1) as u32, 10, mm, START + i % 50 * 4096);
        }
        b.end_window(|_| {});
    }
    let whole = open(&b.finish());
    for number in whole.window_numbers() {
        let window = whole.only_window(number).unwrap();
        let mut checker = Checker::new(CheckOptions::default());
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut checker];
        let read = pipeline::run(&window, PageMode::Canonical, &mut Unwatched, consumers);
        let outcome = read.unwrap();
        let report = checker.report();
        assert!(report.good, "{number}: {report:#?}");
        assert!(outcome.world.references > 290 && outcome.world.has_several_sets());
        let sets: std::collections::BTreeSet<u32> =
            window.index().streams.iter().map(|s| s.id.set).collect();
        assert!(sets.into_iter().eq([0, 2 * number + 1, 2 * number + 2]));
    }
}

/// What there is of a trace that was cut off comes in order, and is no more than there is.
#[test]
fn a_trace_that_is_cut_off_is_read_up_to_there() {
    let steps = steps(4, 4_000, 8);
    let bytes = traced(&steps, 2, true, |b| b.header_mut().buffer_size = 512);
    let packets = postproc::testing::packets_of(&bytes);
    for (i, &(start, end)) in packets.iter().enumerate().step_by(packets.len() / 20) {
        for cut in [start, start + 50, end - 1] {
            let trace = Trace::from_bytes("memory", bytes[..cut].to_vec()).unwrap();
            let mut merge = Merge::new(&trace);
            let (mut batch, mut last, mut records) = (Vec::new(), 0, 0u64);
            loop {
                let ready = merge.advance(&mut batch, 7).unwrap();
                let refs = batch.drain(..).map(|r| r.seq);
                for seq in refs.chain(merge.event().map(|e| e.seq)) {
                    assert!(seq > last, "{seq} after {last}");
                    (last, records) = (seq, records + 1);
                }
                if ready == Ready::End {
                    break;
                }
            }
            let index = trace.index();
            assert_eq!(index.packets(), i as u64);
            let kinds = [StreamKind::Ref, StreamKind::Event];
            assert_eq!(
                records,
                kinds.map(|kind| index.records(kind)).iter().sum::<u64>()
            );
            assert!(index.end.is_none());
        }
    }
}
