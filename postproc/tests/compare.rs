//! `postproc compare` on runs whose differences are known.

use std::path::Path;
use std::process::Output;

use crate::support::postproc;
use postproc::testing::TraceBuilder;
use postproc::trace::FileId;
use postproc::units::Prot;
use rust_mm_trace::uapi::{VMTRACE_MAP_FILE, VMTRACE_MAP_SHMEM};
use serde_json::{Value, json};

const ANON: u64 = 0x10_0000;
const LIBRARY: u64 = 0x7000_0000;

/// The trace of a program that goes ten times through pages `pages` of its memory and through these
/// pages of a library.
fn program(n: u32, pages: u64, library: std::ops::Range<u64>) -> TraceBuilder {
    let mut t = TraceBuilder::new(1, n);
    t.task(0, 42, 42, 1, "cc1");
    load(&mut t, 1, pages, library);
    t
}

fn load(t: &mut TraceBuilder, mm: u32, pages: u64, library: std::ops::Range<u64>) {
    t.map_anon(0, 42, mm, ANON, ANON + pages * 4096, Prot(3));
    let end = LIBRARY + 100 * 4096;
    t.map_file(0, 42, mm, LIBRARY, end, Prot(5), false, 7, 0);
    for _ in 0..10 {
        for page in 0..pages {
            t.touch(0, 42, mm, ANON + page * 4096);
        }
        for page in library.clone() {
            t.touch(0, 42, mm, LIBRARY + page * 4096);
        }
    }
}

struct Files(tempfile::TempDir);

impl Files {
    /// base.vmt needs 100 pages, of which 20 are the library's; same.vmt does the same; more.vmt
    /// needs 130, and 20 others of the library.
    fn new() -> Self {
        let files = Files(tempfile::tempdir().unwrap());
        files.write("base.vmt", program(4, 80, 0..20));
        files.write("same.vmt", program(4, 80, 0..20));
        files.write("more.vmt", program(4, 110, 10..30));
        files
    }

    fn write(&self, name: &str, trace: TraceBuilder) {
        std::fs::write(self.path().join(name), trace.finish()).unwrap();
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, args: &[&str]) -> Output {
        postproc(args, self.path())
    }

    /// The comparison of these arguments, and the exit code.
    #[track_caller]
    fn compare(&self, args: &[&str]) -> (Value, i32) {
        let output = self.run(&[&["compare"], args, &["--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        let json = serde_json::from_slice(&output.stdout);
        let json = json.unwrap_or_else(|e| panic!("{args:?}: {e}: {said}"));
        (json, output.status.code().unwrap())
    }

    fn code(&self, args: &[&str]) -> i32 {
        let output = self.run(&[&["compare"], args].concat());
        output.status.code().unwrap()
    }

    #[track_caller]
    fn refusal(&self, args: &[&str]) -> String {
        let output = self.run(&[&["compare"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// The numbers of a cell at a size.
fn cell(c: &Value, column: usize, size: u64) -> &Value {
    let sizes = c["sizes"].as_array().unwrap();
    let at = sizes.iter().position(|s| *s == size).unwrap();
    &c["columns"][column]["cells"][at]
}

fn row<'v>(c: &'v Value, name: &str) -> &'v Value {
    let rows = c["mappings"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap()
}

#[test]
fn runs_stand_side_by_side() {
    let files = Files::new();
    let (c, code) = files.compare(&["base.vmt", "more.vmt", "--size", "50,0.5,120"]);
    assert_eq!(code, 0);
    let run = |at: usize, name: &str| c["runs"][at][name].clone();
    assert_eq!((run(0, "label"), run(1, "label")), ("A".into(), "B".into()));
    assert_eq!((run(0, "cold"), run(1, "cold")), (100.into(), 130.into()));
    assert_eq!(c["runs"][0]["need"]["size_pages"], 100);
    assert_eq!(c["runs"][1]["need"]["size_pages"], 130);
    let growth = &c["growth"][0];
    assert!((growth["more"].as_f64().unwrap() - 0.3).abs() < 1e-9);
    // From 97 to 100 pages, and from 127 to 130.
    let bound = |name: &str| growth[name].as_f64().unwrap();
    assert!((bound("low") - 0.27).abs() < 1e-9, "{growth}");
    assert!(
        (bound("high") - (130.0 / 97.0 - 1.0)).abs() < 1e-9,
        "{growth}"
    );
    // Half of A's footprint misses everything: 1000 and 1300 references.
    let (a, b) = (cell(&c, 0, 50), cell(&c, 1, 50));
    assert_eq!((&a["misses"], &b["misses"]), (&1000.into(), &1300.into()));
    assert!(a["difference"].is_null());
    assert_eq!(b["difference"]["misses"], 300);
    // At 120 pages, A has its cold misses only.
    let b = cell(&c, 1, 120);
    assert_eq!(b["difference"]["misses"], 1200);
    let bands = [cell(&c, 0, 120), b].map(|cell| {
        let bound = |name: &str| cell[name].as_i64().unwrap();
        (bound("low"), bound("high"))
    });
    assert_eq!(b["difference"]["low"], bands[1].0 - bands[0].1);
    assert_eq!(b["difference"]["high"], bands[1].1 - bands[0].0);
    assert!(!c["runs"][0]["working_set"].as_array().unwrap().is_empty());
}

#[test]
fn another_n_is_named() {
    let files = Files::new();
    files.write("other.vmt", program(8, 80, 0..20));
    let said = |args: &[&str]| {
        let output = files.run(&[&["compare"], args].concat());
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("different N")
    };
    assert!(said(&["base.vmt", "other.vmt"]));
    assert!(!said(&["base.vmt", "more.vmt"]));
    // What a run needs does not depend on N.
    let same = ["base.vmt", "other.vmt", "--fail-above", "0%"];
    assert_eq!(files.code(&same), 0);
}

#[test]
fn pages_of_files_are_known_again() {
    let files = Files::new();
    let (c, _) = files.compare(&["base.vmt", "more.vmt"]);
    let library = row(&c, "/lib/file-7.so");
    assert_eq!(library["class"], "library");
    assert_eq!(library["runs"][0]["pages"], 20);
    let of = &library["runs"][1];
    assert_eq!(
        (&of["new"], &of["gone"], &of["both"]),
        (&10.into(), &10.into(), &10.into())
    );
    // Memory without a file has only a number.
    let rows = c["mappings"].as_array().unwrap();
    let anonymous = rows.iter().find(|row| row["class"] == "anonymous").unwrap();
    assert_eq!(anonymous["runs"][0]["pages"], 80);
    assert_eq!(anonymous["runs"][1]["pages"], 110);
    assert!(anonymous["runs"][1]["new"].is_null());
    let text = String::from_utf8(files.run(&["compare", "base.vmt", "more.vmt"]).stdout).unwrap();
    let line = text.lines().find(|line| line.contains("file-7")).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words, ["/lib/file-7.so", "library", "20", "20", "10", "10"]);
}

/// Which pages are new, and which are gone: those with most pages first, and all of them in JSON.
#[test]
fn pages_that_only_one_run_references_are_listed() {
    let files = Files::new();
    // Sixty files: of file f, the first run reads pages 0 to f, and the second one pages 1 to f + 1.
    for (name, first) in [("first.vmt", 0), ("second.vmt", 1)] {
        let mut t = program(4, 80, 0..20);
        for file in 0..60u64 {
            let at = 0x1_0000_0000 + file * 0x10_0000;
            t.map_file(0, 42, 1, at, at + 0x10_0000, Prot(5), false, 100 + file, 0);
            for page in first..=file + first {
                t.touch(0, 42, 1, at + page * 4096);
            }
        }
        files.write(name, t);
    }
    let (c, _) = files.compare(&["first.vmt", "second.vmt"]);
    // All mappings, with those that did not change: the library, and memory.
    assert_eq!(c["mappings"].as_array().unwrap().len(), 62);
    for file in 0..60 {
        let of = &row(&c, &format!("/lib/file-{}.so", 100 + file))["runs"][1];
        let one = |first: u64| json!([{"first": first, "pages": 1}]);
        assert_eq!(
            (&of["new_pages"], &of["gone_pages"]),
            (&one(file + 1), &one(0))
        );
        assert_eq!((&of["new"], &of["gone"]), (&1.into(), &1.into()));
    }
    let pages = &c["pages"][0];
    assert_eq!(
        (&pages["run"], &pages["new"], &pages["gone"]),
        (&1.into(), &60.into(), &60.into())
    );
    // 20 of the library, and file pages of file f.
    assert_eq!(pages["both"], 20 + 59 * 60 / 2);
    let memory = json!([{"class": "anonymous", "pages": 80, "base_pages": 80}]);
    assert_eq!(pages["uncompared"], memory);

    let text = |args: &[&str]| {
        let output = files.run(&[&["compare"], args].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    let told = text(&["first.vmt", "second.vmt"]);
    for line in [
        "22 more mappings changed less: --json has them",
        "Pages that B references and A does not: 60 (240 KiB) in 60 mappings",
        "Pages that A references and B does not: 60 (240 KiB) in 60 mappings",
        "and 45 (180 KiB) in 45 mappings that have fewer: --json has all pages",
        "Pages that cannot be recognised in the other run",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    let words = |told: &str, name: &str| -> Vec<Vec<String>> {
        let lines = told.lines().filter(|line| line.starts_with(name));
        lines
            .map(|line| line.split_whitespace().map(Into::into).collect())
            .collect()
    };
    let told = text(&["base.vmt", "more.vmt"]);
    let of_library = words(&told, "/lib/file-7.so");
    assert_eq!(of_library[1][2..], ["20-29", "10"]);
    assert_eq!(of_library[2][2..], ["0-9", "10"]);
    assert_eq!(
        words(&told, "anonymous").last().unwrap()[1..],
        ["110", "80"]
    );
    assert!(
        text(&["base.vmt", "same.vmt"]).contains("Pages that B references and A does not: none\n")
    );

    // What did not change has no such pages, and says so.
    let of = &row(&c, "/lib/file-7.so")["runs"];
    assert_eq!(of[1]["new_pages"], json!([]));
    assert_eq!(of[1]["gone_pages"], json!([]));
    assert!(of[0]["new_pages"].is_null());

    files.code(&["first.vmt", "second.vmt", "-o", "page.html", "--json"]);
    let html = std::fs::read_to_string(files.path().join("page.html")).unwrap();
    for part in [
        "New pages",
        "Gone pages",
        "Pages that cannot be recognised in the other run",
        "45 more mappings",
    ] {
        assert!(html.contains(part), "{part}");
    }
    // The page has what its tables list.
    assert!(!html.contains("new_pages"));
}

/// One is no plural: one page, one reference, one mapping that is not listed.
#[test]
fn one_is_said_of_one() {
    let files = Files::new();
    let mut one = TraceBuilder::new(1, 4);
    one.task(0, 42, 42, 1, "cc1");
    one.map_anon(0, 42, 1, ANON, ANON + 4096, Prot(3));
    one.touch(0, 42, 1, ANON);
    files.write("one.vmt", one);
    // So many files that one is listed nowhere, each with pages that the other run does not reference: the
    // first with two, and the last with one.
    let many = |first: u64, files: u64| {
        let mut t = TraceBuilder::new(1, 4);
        t.task(0, 42, 42, 1, "cc1");
        for file in 0..files {
            let at = 0x1_0000_0000 + file * 0x10_0000;
            t.map_file(0, 42, 1, at, at + 0x10_0000, Prot(5), false, 100 + file, 0);
            for page in 0..if file + 1 == files { 1 } else { 2 } {
                t.touch(0, 42, 1, at + (first + page) * 4096);
            }
        }
        t
    };
    for (count, name) in [(16, "of16"), (41, "of41")] {
        files.write(&format!("{name}-a.vmt"), many(0, count));
        files.write(&format!("{name}-b.vmt"), many(8, count));
    }
    let told = |names: [&str; 2]| {
        let output = files.run(&["compare", names[0], names[1], "-o", "page.html"]);
        let page = std::fs::read_to_string(files.path().join("page.html")).unwrap();
        (String::from_utf8(output.stdout).unwrap(), page)
    };
    let (text, page) = told(["one.vmt", "one.vmt"]);
    for line in [
        "A needs 4.0 KiB (1 page, proven)\n",
        "A  one.vmt: 1 reference, 1 cold, footprint 4.0 KiB (1 page); N = 4\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(page.contains("(1 page, proven)"));
    let (text, page) = told(["of16-a.vmt", "of16-b.vmt"]);
    let line = "\nand 1 (4.0 KiB) in 1 mapping that has fewer: --json has all pages\n";
    assert_eq!(text.matches(line).count(), 2, "{text}");
    assert!(page.contains(">1 more mapping<"));
    let (text, page) = told(["of41-a.vmt", "of41-b.vmt"]);
    assert!(
        text.contains("\n1 more mapping changed less: --json has it\n"),
        "{text}"
    );
    assert!(page.contains("come first, and 1 more is left out. New pages"));
    for text in [text, page] {
        let words: Vec<_> = text.split([' ', '\n', '(', '>', ':']).collect();
        let plurals = ["pages", "references", "mappings"];
        let is_wrong =
            |two: &&[&str]| two[0] == "1" && plurals.iter().any(|p| two[1].starts_with(p));
        assert_eq!(words.windows(2).find(is_wrong), None);
    }
}

/// In one trace, pages without a file are recognised by their addresses.
#[test]
fn pages_of_windows_are_listed_by_their_addresses() {
    let files = Files::new();
    let mut t = TraceBuilder::new(1, 4);
    for (mm, pages) in [(1, 40), (2, 60)] {
        t.begin_window(30_000);
        t.task(0, 42, 42, mm, "cc1");
        load(&mut t, mm, pages, 0..10);
        t.end_window(|_| {});
    }
    files.write("windows.vmt", t);
    let (c, _) = files.compare(&["windows.vmt", "--per-window"]);
    let pages = &c["pages"][0];
    assert_eq!(
        (&pages["new"], &pages["gone"], &pages["both"]),
        (&20.into(), &0.into(), &50.into())
    );
    assert_eq!(pages["uncompared"], json!([]));
    let text = String::from_utf8(
        files
            .run(&["compare", "windows.vmt", "--per-window"])
            .stdout,
    )
    .unwrap();
    let range = format!("42: {:#x}..{:#x}", ANON + 40 * 4096, ANON + 60 * 4096);
    assert!(text.contains(&range), "{range}: {text}");
}

/// Maps objects of one name, each by its kind and its inode, and references the first page of each.
fn map_data(t: &mut TraceBuilder, mm: u32, objects: &[(u32, u64)]) {
    for (at, &(kind, ino)) in (1..).zip(objects) {
        let file = FileId {
            dev: kind.into(),
            ino,
            generation: 0,
        };
        let start = LIBRARY + at * 0x10_0000;
        let range = start..start + 0x10_0000;
        t.map(0, 42, mm, range, Prot(3), kind, 0, file, 0, "data");
        t.touch(0, 42, mm, start);
    }
}

/// A name of shared memory stands for several objects, whichever of them comes first.
#[test]
fn a_name_of_several_objects_of_shared_memory_is_not_compared() {
    let files = Files::new();
    let (file, shmem) = ((VMTRACE_MAP_FILE, 1), (VMTRACE_MAP_SHMEM, 2));
    let of = |objects: &[(u32, u64)]| {
        let mut t = program(4, 80, 0..20);
        map_data(&mut t, 1, objects);
        files.write("data.vmt", t);
        let (c, _) = files.compare(&["one.vmt", "data.vmt"]);
        let (there, _) = files.compare(&["data.vmt", "one.vmt"]);
        let (row, back) = (row(&c, "data"), row(&there, "data"));
        assert_eq!(row["class"], back["class"]);
        let pages = |row: &Value, run: usize| row["runs"][run]["pages"].clone();
        assert_eq!(pages(row, 1), objects.len());
        assert_eq!(
            (pages(row, 0), pages(row, 1)),
            (pages(back, 1), pages(back, 0))
        );
        let counts = ["new", "gone", "both"].map(|name| row["runs"][1][name].clone());
        (json!(counts), row["class"].clone())
    };
    let mut one = program(4, 80, 0..20);
    map_data(&mut one, 1, &[file]);
    files.write("one.vmt", one);
    let nothing = json!([null, null, null]);
    let mixed = (nothing.clone(), json!("file"));
    assert_eq!(of(&[file, shmem]), mixed);
    assert_eq!(of(&[shmem, file]), mixed);
    assert_eq!(of(&[shmem, (VMTRACE_MAP_SHMEM, 3)]).0, nothing);
    // One object is as good as a file, and files of one name are one file.
    assert_eq!(of(&[shmem]).0, json!([0, 0, 1]));
    assert_eq!(of(&[file, (VMTRACE_MAP_FILE, 3)]).0, json!([0, 0, 1]));
}

/// In one trace, an inode is a file, and objects of one name are told apart.
#[test]
fn files_of_windows_are_recognised_by_their_inodes() {
    let files = Files::new();
    let (file, shmem) = (VMTRACE_MAP_FILE, VMTRACE_MAP_SHMEM);
    let windows: [&[(u32, u64)]; 3] = [
        &[(file, 1), (shmem, 1), (shmem, 2)],
        &[(shmem, 2), (file, 2), (file, 3), (shmem, 1)],
        &[(file, 1), (shmem, 2), (shmem, 1)],
    ];
    let mut t = TraceBuilder::new(1, 4);
    for (mm, objects) in (1..).zip(windows) {
        t.begin_window(30_000);
        t.task(0, 42, 42, mm, "cc1");
        map_data(&mut t, mm, objects);
        t.end_window(|_| {});
    }
    files.write("windows.vmt", t);
    let (c, _) = files.compare(&["windows.vmt", "--per-window"]);
    let of = |run: usize, name: &str| row(&c, "data")["runs"][run][name].clone();
    let counts = |run| ["new", "gone", "both"].map(|name| of(run, name));
    assert_eq!(json!(counts(1)), json!([2, 1, 2]));
    let page = json!({"first": 0, "pages": 1});
    assert_eq!(of(1, "new_pages"), json!([page, page]));
    assert_eq!(of(1, "gone_pages"), json!([page]));
    assert_eq!(json!(counts(2)), json!([0, 0, 3]));
    assert_eq!(c["pages"][0]["uncompared"], json!([]));
}

/// The exit code is 3 if and only if a run needs more than is permitted.
#[test]
fn growth_fails_a_build() {
    let files = Files::new();
    for (args, code) in [
        (&["base.vmt", "more.vmt"][..], 0),
        (&["base.vmt", "more.vmt", "--fail-above", "5%"], 3),
        (&["base.vmt", "more.vmt", "--fail-above", "29%"], 3),
        (&["base.vmt", "more.vmt", "--fail-above", "30%"], 0),
        (&["base.vmt", "same.vmt", "--fail-above", "0%"], 0),
        // Less memory is never too much.
        (&["more.vmt", "base.vmt", "--fail-above", "0%"], 0),
        // Any of the runs counts.
        (
            &["base.vmt", "same.vmt", "more.vmt", "--fail-above", "5%"],
            3,
        ),
        // B needs 127 pages at least, and A 100 at most.
        (
            &["base.vmt", "more.vmt", "--fail-above", "26%", "--proven"],
            3,
        ),
        (
            &["base.vmt", "more.vmt", "--fail-above", "28%", "--proven"],
            0,
        ),
        (
            &[
                "base.vmt",
                "more.vmt",
                "--fail-above",
                "5%",
                "--policy",
                "opt,lru",
            ],
            3,
        ),
    ] {
        assert_eq!(files.code(args), code, "{args:?}");
    }
    let of = |percent: &str| {
        let (c, _) = files.compare(&["base.vmt", "more.vmt", "--fail-above", percent]);
        let too_much = &c["growth"][0]["too_much"];
        (too_much["failed"].clone(), too_much["proven"].clone())
    };
    assert_eq!(of("5%"), (true.into(), true.into()));
    assert_eq!(of("29%"), (true.into(), false.into()));
    assert_eq!(of("30%"), (false.into(), false.into()));
    assert_eq!(of("50%"), (false.into(), true.into()));
    let output = files.run(&["compare", "base.vmt", "more.vmt", "--fail-above", "5%"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("B needs 520 KiB (130 pages; proven: 127 to 130), 30.0 % more than A"),
        "{text}"
    );
    assert!(
        text.contains("B fails: it needs more than 5 % more memory than A; this is proven."),
        "{text}"
    );
}

/// A trace that is not good must not pass a build, and does not fail it for its memory.
#[test]
fn a_bad_trace_is_no_answer() {
    let files = Files::new();
    let mut lossy = program(4, 80, 0..20);
    lossy.lose_reference(0);
    files.write("lossy.vmt", lossy);
    for args in [["base.vmt", "lossy.vmt"], ["lossy.vmt", "more.vmt"]] {
        let args = [&args[..], &["--fail-above", "5%"]].concat();
        assert_eq!(files.code(&args), 1, "{args:?}");
    }
    assert_eq!(
        files.code(&[
            "base.vmt",
            "lossy.vmt",
            "--fail-above",
            "5%",
            "--allow-loss"
        ]),
        0
    );
    let refused = [
        "base.vmt",
        "lossy.vmt",
        "--fail-above",
        "5%",
        "--allow-loss",
        "--proven",
    ];
    assert!(files.refusal(&refused).contains("lossy.vmt has no bounds"));
    assert_eq!(
        files.code(&["base.vmt", "missing.vmt", "--fail-above", "5%"]),
        2
    );
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let files = Files::new();
    assert!(files.refusal(&["base.vmt"]).contains("nothing to compare"));
    assert!(
        files
            .refusal(&["base.vmt", "--per-window"])
            .contains("window")
    );
    let alone = ["base.vmt", "--policy", "lru,opt", "--fail-above", "5%"];
    assert!(files.refusal(&alone).contains("several traces"));
    let fifo = [
        "base.vmt",
        "same.vmt",
        "--policy",
        "fifo",
        "--fail-above",
        "5%",
    ];
    assert!(files.refusal(&fifo).contains("name lru or opt first"));
    let filtered = [
        "base.vmt",
        "same.vmt",
        "--where",
        "pid == 42",
        "--fail-above",
        "5%",
        "--proven",
    ];
    assert!(files.refusal(&filtered).contains("no bounds"));
    files.refusal(&["base.vmt", "same.vmt", "--proven"]);
    files.refusal(&["base.vmt", "same.vmt", "--fail-above", "5"]);
}

#[test]
fn policies_stand_side_by_side() {
    let files = Files::new();
    let policies = ["base.vmt", "--policy", "lru,opt,fifo", "--size", "50"];
    let (c, code) = files.compare(&policies);
    assert_eq!(code, 0);
    let columns = c["columns"].as_array().unwrap();
    let names: Vec<_> = columns
        .iter()
        .map(|column| column["policy"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["lru", "opt", "fifo"]);
    // The same misses as simulate's.
    let output = files.run(&[
        "simulate",
        "base.vmt",
        "--policy",
        "lru,opt,fifo",
        "--size",
        "50",
        "--json",
    ]);
    let simulated: Value = serde_json::from_slice(&output.stdout).unwrap();
    for row in simulated["sizes"].as_array().unwrap() {
        let at = names
            .iter()
            .position(|name| row["policy"] == **name)
            .unwrap();
        let cell = cell(&c, at, 50);
        for field in ["misses", "low", "high"] {
            assert_eq!(cell[field], row[field], "{row}");
        }
        let less = row["misses"].as_i64().unwrap() - 1000;
        match at {
            0 => assert!(cell["difference"].is_null()),
            _ => assert_eq!(cell["difference"]["misses"], less),
        }
    }
    // With several runs, each policy is compared with itself.
    let (c, _) = files.compare(&[
        "base.vmt", "more.vmt", "--policy", "lru,fifo", "--size", "50",
    ]);
    assert_eq!(cell(&c, 2, 50)["difference"]["misses"], 300);
    assert_eq!(cell(&c, 3, 50)["difference"]["misses"], 300);
}

#[test]
fn windows_stand_side_by_side() {
    let files = Files::new();
    let mut t = TraceBuilder::new(1, 4);
    // The kernel numbers address spaces anew in each window.
    for (mm, pages, library) in [(1, 40, 0..10), (2, 60, 5..15), (3, 40, 0..10)] {
        t.begin_window(30_000);
        t.task(0, 42, 42, mm, "cc1");
        load(&mut t, mm, pages, library);
        t.end_window(|_| {});
    }
    files.write("windows.vmt", t);
    let (c, _) = files.compare(&["windows.vmt", "--per-window"]);
    let needs: Vec<_> = c["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| &run["need"]["size_pages"])
        .collect();
    assert_eq!(needs, [50, 70, 50]);
    // In one trace, addresses mean something.
    let rows = c["mappings"].as_array().unwrap();
    let anonymous = rows.iter().find(|row| row["class"] == "anonymous").unwrap();
    let of = |run: usize, name: &str| anonymous["runs"][run][name].clone();
    assert_eq!(
        (of(1, "new"), of(1, "gone"), of(1, "both")),
        (20.into(), 0.into(), 40.into())
    );
    assert_eq!((of(2, "new"), of(2, "gone")), (0.into(), 0.into()));
    assert_eq!(row(&c, "/lib/file-7.so")["runs"][1]["new"], 5);
    let (c, _) = files.compare(&["windows.vmt", "--window", "2,1"]);
    assert_eq!(c["runs"][0]["window"], 2);
    assert_eq!(
        files.code(&["windows.vmt", "--window", "0,1", "--fail-above", "39%"]),
        3
    );
    assert_eq!(
        files.code(&["windows.vmt", "--window", "0,2", "--fail-above", "0"]),
        0
    );
    assert!(
        files
            .refusal(&["windows.vmt", "--window", "0,9"])
            .contains("no window 9")
    );
}

#[test]
fn other_programs_traces_are_compared() {
    let files = Files::new();
    for (name, pages) in [("base.log", 25), ("new.log", 30)] {
        let log: String = (0..1000)
            .map(|i| format!(" L {:x},4\n", i % pages * 4096))
            .collect();
        std::fs::write(files.path().join(name), log).unwrap();
    }
    let args = [
        "--from",
        "lackey",
        "base.log",
        "new.log",
        "--policy",
        "lru,clock",
    ];
    let (c, code) = files.compare(&args);
    assert_eq!((code, &c["growth"][0]["more"]), (0, &0.2.into()));
    assert_eq!(
        files.code(&[&args[..], &["--fail-above", "19%"]].concat()),
        3
    );
    assert_eq!(
        files.code(&[&args[..], &["--fail-above", "20%"]].concat()),
        0
    );
}

/// The page has the pictures and the answer, and loads nothing.
#[test]
fn the_page_stands_alone() {
    let files = Files::new();
    let page = |args: &[&str]| {
        let code = files.code(&[args, &["-o", "page.html"]].concat());
        let html = std::fs::read_to_string(files.path().join("page.html")).unwrap();
        (code, html)
    };
    let (code, html) = page(&[
        "base.vmt",
        "more.vmt",
        "--fail-above",
        "5%",
        "--policy",
        "lru,opt,clock",
    ]);
    assert_eq!(code, 3);
    for figure in ["misses", "differences", "working-sets"] {
        assert!(
            html.contains(&format!("<figure id=\"{figure}\">")),
            "{figure}"
        );
    }
    assert_eq!(html.matches("</svg>").count(), 3);
    assert!(
        html.contains(
            "<p class=\"verdict bad\">B fails: it needs more than 5 % more memory than A"
        )
    );
    assert!(html.contains("/lib/file-7.so") && html.contains("A clock"));
    assert!(!html.contains("NaN") && !html.contains("src=") && !html.contains("href="));
    let data = html.split("id=\"summary\">").nth(1).unwrap();
    let data: Value = serde_json::from_str(data.split("</script>").next().unwrap()).unwrap();
    assert_eq!(data["runs"][1]["need"]["size_pages"], 130);
    let (code, html) = page(&["base.vmt", "same.vmt", "--fail-above", "5%"]);
    assert_eq!(code, 0);
    assert!(html.contains("<p class=\"verdict good\">B passes"));
    // Nothing is asked, so nothing is passed or failed.
    let (_, html) = page(&["base.vmt", "--policy", "opt,lru"]);
    assert!(!html.contains("class=\"verdict"));
    files.refusal(&["base.vmt", "more.vmt", "-o", "no/such/page.html"]);
}
