//! `postproc advise` on runs of which the answer is known, and sizes of memory in all their forms.

use std::path::Path;
use std::process::Output;

use crate::support;
use crate::support::postproc;
use postproc::sim::{Access, CurveSimulation, LruCurve, OptCurve};
use postproc::testing::TraceBuilder;
use postproc::units::{CanonPage, Prot};
use serde_json::Value;

const BASE: u64 = 0x10_0000;

/// What a process does with its memory.
#[derive(Clone, Copy)]
enum Step {
    Touch(u64),
    /// Gives up the page and maps another one in its place.
    Free(u64),
}

/// The trace of these steps, with a set of `n` pages.
fn traced(n: u32, pages: u64, steps: &[Step]) -> Vec<u8> {
    let mut t = TraceBuilder::new(1, n);
    let prot = Prot(3);
    t.task(0, 42, 42, 1, "cc1");
    t.map_anon(0, 42, 1, BASE, BASE + pages * 4096, prot);
    for step in steps {
        match *step {
            Step::Touch(page) => t.touch(0, 42, 1, BASE + page * 4096),
            Step::Free(page) => {
                let at = BASE + page * 4096;
                t.unmap(0, 42, 1, at, at + 4096);
                t.map_anon(0, 42, 1, at, at + 4096, prot);
            }
        }
    }
    t.finish()
}

/// The least memory in which all these steps have at most `limit` misses.
fn truth(mut curve: impl CurveSimulation, steps: &[Step], limit: impl Fn(u64) -> u64) -> u64 {
    let accesses: Vec<_> = steps
        .iter()
        .map(|step| match *step {
            Step::Touch(page) => Access::reference(CanonPage(page as u32 + 1), false),
            Step::Free(page) => Access::free(CanonPage(page as u32 + 1)),
        })
        .collect();
    curve.references(&accesses);
    let curve = curve.curve();
    let limit = limit(curve.cold);
    let mut sizes = 1..=curve.footprint();
    sizes.find(|&size| curve.at(size).misses <= limit).unwrap()
}

fn rounds(pages: u64, count: u64) -> Vec<Step> {
    (0..count)
        .flat_map(|_| (0..pages).map(Step::Touch))
        .collect()
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Files(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: Vec<u8>) {
        std::fs::write(self.0.path().join(name), bytes).unwrap();
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, args: &[&str]) -> Output {
        postproc(args, self.path())
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        let output = self.run(&[args, &["--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    #[track_caller]
    fn text(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Exit code 2, and what was said.
    #[track_caller]
    fn refusal(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// A need: pages, and the bounds.
fn need(advice: &Value, of: &str) -> (u64, u64, u64) {
    let number = |name| advice[of][name].as_u64().unwrap();
    (
        number("size_pages"),
        number("low_pages"),
        number("high_pages"),
    )
}

/// Under LRU, a loop over P pages misses always with fewer pages, and never with P.
#[test]
fn a_loop_needs_all_its_pages() {
    let files = Files::new();
    files.write("loop.vmt", traced(8, 100, &rounds(100, 10)));
    for slack in ["0", "1%", "100%", "8.9"] {
        let advice = files.json(&["advise", "loop.vmt", "--slack", slack]);
        let (pages, low, high) = need(&advice, "need");
        assert_eq!((pages, high), (100, 100), "{slack}");
        // 7 of the other pages may be enabled, so that a trace does not show their references.
        assert_eq!(low, 93, "{slack}");
        assert_eq!(advice["footprint_pages"], 100);
        assert_eq!(advice["memory_high"], 100 * 4096);
        assert_eq!(advice["memory_max"], 100 * 4096);
    }
    // Ten rounds that miss all are permitted.
    let advice = files.json(&["advise", "loop.vmt", "--slack", "900%"]);
    assert_eq!(advice["faults_allowed"], 1000);
    assert_eq!(need(&advice, "need").0, 1);
    let text = files.text(&["advise", "loop.vmt"]);
    let first = text.lines().next().unwrap();
    assert_eq!(
        first,
        "loop.vmt needs 400 KiB (100 pages; proven: 93 to 100) for at most 1 % more faults than with \
         all the memory it wants, 400 KiB (100 pages)."
    );
}

/// A small loop, pages that are used once, and the small loop again: its pages come back for the
/// price of the loop, or everything must stay.
#[test]
fn slack_buys_memory() {
    let files = Files::new();
    let mut steps = rounds(30, 50);
    steps.extend((30..1000).map(Step::Touch));
    steps.extend(rounds(30, 50));
    files.write("scan.vmt", traced(4, 1000, &steps));
    let of = |slack: &str| {
        need(
            &files.json(&["advise", "scan.vmt", "--slack", slack]),
            "need",
        )
    };
    // 30 more faults on 1000.
    let (pages, low, high) = of("3%");
    assert_eq!(pages, 30);
    assert!(
        (27..=30).contains(&low) && (30..=33).contains(&high),
        "{low} to {high}"
    );
    let (pages, low, high) = of("2.9%");
    assert_eq!((pages, high), (1000, 1000));
    assert!(low >= 997, "{low}");
    assert_eq!(of("0").0, 1000);
}

/// The bounds hold for all references of runs of every kind: loops of changing size, walks, and
/// pages that are freed.
#[test]
fn the_truth_lies_in_the_bounds() {
    let files = Files::new();
    let mut random = support::random::Random::new(7);
    let mut narrow = 0;
    for case in 0..12 {
        let n = [3, 4, 8, 16][case % 4];
        let pages = 60 + random.below(120);
        let mut steps = Vec::new();
        for _ in 0..40 {
            let (base, span) = (random.below(pages), 1 + random.below(pages));
            let kind = random.below(3);
            for i in 0..1 + random.below(3 * pages) {
                let page = match kind {
                    0 => base + i % span,
                    1 => base + random.below(span),
                    _ => random.below(pages),
                };
                steps.push(Step::Touch(page % pages));
                if random.below(60) == 0 {
                    steps.push(Step::Free(random.below(pages)));
                }
            }
        }
        files.write("run.vmt", traced(n, pages, &steps));
        for (slack, percent) in [
            ("0", 0),
            ("1%", 1),
            ("20%", 20),
            ("100%", 100),
            ("400%", 400),
        ] {
            let advice = files.json(&["advise", "run.vmt", "--slack", slack]);
            assert_eq!(advice["certified"], true);
            let limit = |cold: u64| cold + cold * percent / 100;
            for (of, all) in [
                ("need", truth(LruCurve::default(), &steps, limit)),
                ("opt", truth(OptCurve::default(), &steps, limit)),
            ] {
                let (pages, low, high) = need(&advice, of);
                let case = format!("case {case}, {of}, {slack}: {all}, {low} to {high}");
                assert!(low <= all && all <= high, "{case}");
                assert!(low <= pages && pages <= high, "{case}: {pages}");
                narrow += u64::from(high - low <= 2 * u64::from(n));
            }
        }
    }
    // As a rule, the bounds are as close as the set is small.
    assert!(narrow > 90, "{narrow}");
}

#[test]
fn what_is_selected_has_no_bounds_except_a_set() {
    let files = Files::new();
    files.write("run.vmt", traced(8, 100, &rounds(100, 10)));
    for selection in [["--where", "comm == \"cc1\""], ["--process", "42"]] {
        let args = [&["advise", "run.vmt"], &selection[..]].concat();
        let advice = files.json(&args);
        assert_eq!(advice["certified"], false);
        assert_eq!(advice["need"]["size_pages"], 100);
        assert!(advice["need"]["low_pages"].is_null());
        let text = files.text(&args);
        assert!(text.contains("100 pages; not proven)"), "{text}");
        assert!(text.contains("No bound is proven: --"), "{text}");
        assert!(text.contains("--set-per"), "{text}");
        assert!(text.contains("--set NUMBER"), "{text}");
    }
    let none = files.refusal(&["advise", "run.vmt", "--where", "comm == \"none\""]);
    assert!(none.contains("keeps no reference"), "{none}");
    let mut t = TraceBuilder::new(2, 8);
    t.several_sets();
    for (mm, pid, set) in [(1, 42, 17), (2, 43, 18)] {
        t.set(0, pid, mm, set);
        t.task(0, pid, pid, mm, "cc1");
        t.map_anon(0, pid, mm, BASE, BASE + 100 * 4096, Prot(3));
    }
    for i in 0..1000 {
        t.touch(0, 42, 1, BASE + i % 100 * 4096);
        t.touch(0, 43, 2, BASE + i % 50 * 4096);
    }
    files.write("sets.vmt", t.finish());
    let all = files.json(&["advise", "sets.vmt"]);
    assert_eq!(all["certified"], false);
    let of = |set| need(&files.json(&["advise", "sets.vmt", "--set", set]), "need");
    assert_eq!(of("17"), (100, 93, 100));
    assert_eq!(of("18"), (50, 43, 50));
}

/// A trace that fails its checks proves nothing, and the exit code says so.
#[test]
fn a_bad_trace_proves_nothing() {
    let files = Files::new();
    let mut t = TraceBuilder::new(1, 8);
    t.task(0, 42, 42, 1, "cc1");
    t.map_anon(0, 42, 1, BASE, BASE + 100 * 4096, Prot(3));
    for i in 0..1000 {
        t.touch(0, 42, 1, BASE + i % 100 * 4096);
    }
    t.lose_reference(0);
    files.write("lossy.vmt", t.finish());
    let output = files.run(&["advise", "lossy.vmt", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let advice: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&advice["certified"], &advice["good"]),
        (&false.into(), &false.into())
    );
    let allowed = files.json(&["advise", "lossy.vmt", "--allow-loss"]);
    assert_eq!(allowed["certified"], false);
}

#[test]
fn windows_and_other_programs_traces_are_read() {
    let files = Files::new();
    let mut t = TraceBuilder::new(1, 4);
    for (window, pages) in [(0, 40), (1, 60)] {
        t.begin_window(30_000);
        t.task(0, 42, 42, window + 1, "cc1");
        t.map_anon(0, 42, window + 1, BASE, BASE + pages * 4096, Prot(3));
        for i in 0..10 * pages {
            t.touch(0, 42, window + 1, BASE + i % pages * 4096);
        }
        t.end_window(|_| {});
    }
    files.write("windows.vmt", t.finish());
    let of = |window| files.json(&["advise", "windows.vmt", "--window", window]);
    assert_eq!(need(&of("0"), "need").0, 40);
    assert_eq!(need(&of("1"), "need").0, 60);
    assert_eq!(of("1")["window"], 1);
    let both = files.text(&["advise", "windows.vmt", "--per-window"]);
    assert_eq!(both.matches(" needs ").count(), 4, "{both}");
    let log: String = (0..1000)
        .map(|i| format!(" L {:x},4\n", i % 25 * 4096))
        .collect();
    files.write("lackey.log", log.into_bytes());
    let advice = files.json(&["advise", "--from", "lackey", "lackey.log"]);
    assert_eq!(advice["need"]["size_pages"], 25);
    assert_eq!(advice["certified"], false);
    // A trace without a reference needs nothing.
    let mut t = TraceBuilder::new(1, 4);
    t.task(0, 42, 42, 1, "cc1");
    files.write("none.vmt", t.finish());
    assert_eq!(files.json(&["advise", "none.vmt"])["need"]["size_pages"], 0);
}

/// Pages, bytes and shares of the footprint mean the same everywhere.
#[test]
fn sizes_of_memory_have_three_forms() {
    let files = Files::new();
    files.write("run.vmt", traced(8, 100, &rounds(100, 10)));
    let rows = |args: &[&str]| files.json(args)["sizes"].clone();
    let pages = rows(&["simulate", "run.vmt", "--size", "50,100"]);
    assert_eq!(pages[0]["size_pages"], 50);
    for sizes in [
        "200KiB,400KiB",
        "0.5,1.0",
        "200K,0.991",
        "50%,100%",
        "200k,0.390625m",
    ] {
        assert_eq!(
            rows(&["simulate", "run.vmt", "--size", sizes]),
            pages,
            "{sizes}"
        );
    }
    // The footprint is that of the references that are simulated.
    let half = rows(&[
        "simulate",
        "run.vmt",
        "--size",
        "0.5",
        "--where",
        "page < 0x150",
    ]);
    assert_eq!(half[0]["size_pages"], 40);
    let curve = files.json(&[
        "advise",
        "run.vmt",
        "--points",
        "0",
        "--size",
        "0.5,200K,13",
    ]);
    let sizes: Vec<_> = curve["curve"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["size_pages"].clone())
        .collect();
    assert_eq!(sizes, [13, 50, 93, 100].map(Value::from));
    for bad in ["16MB", "0", "1.5", "x", "1K", "4 KiB"] {
        files.refusal(&["simulate", "run.vmt", "--size", bad]);
        files.refusal(&["advise", "run.vmt", "--size", bad]);
    }
    let two = files.refusal(&["advise", "run.vmt", "--size", "16MB"]);
    assert!(two.contains("write MiB"), "{two}");
    let near = files.refusal(&["advise", "run.vmt", "--size", "16 mib"]);
    assert!(near.contains("did you mean 16MiB?"), "{near}");
    let share = files.refusal(&["simulate", "run.vmt", "--limit", "comm:x=10%"]);
    assert!(share.contains("is not known before"), "{share}");
    let bare = files.refusal(&["advise", "run.vmt", "--slack", "1"]);
    assert!(bare.contains("write 1%"), "{bare}");
    let limits = [
        "simulate", "run.vmt", "--limit", "comm:x=5", "--size", "0.5",
    ];
    assert!(files.refusal(&limits).contains("--limit"));
    let log: String = (0..1000)
        .map(|i| format!(" L {:x},4\n", i % 25 * 4096))
        .collect();
    files.write("lackey.log", log.into_bytes());
    let foreign = rows(&[
        "simulate",
        "--from",
        "lackey",
        "lackey.log",
        "--size",
        "0.2",
    ]);
    assert_eq!(foreign[0]["size_pages"], 5);
    let piped = files.refusal(&["simulate", "--from", "lackey", "-", "--size", "0.2"]);
    assert!(piped.contains("two passes"), "{piped}");
}

/// The example of docs/memory.md is what the command prints.
#[test]
fn the_example_of_the_documentation_is_so() {
    let files = Files::new();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fixture = manifest.join("tests/fixtures/v1/fifo.vmt.zst");
    std::fs::copy(fixture, files.path().join("fifo.vmt")).unwrap();
    let text = files.text(&["advise", "fifo.vmt"]);
    let document = std::fs::read_to_string(manifest.join("../docs/memory.md")).unwrap();
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = flat(text.lines().next().unwrap());
    assert!(flat(&document).contains(&first), "{first}");
}
