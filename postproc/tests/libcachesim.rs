//! libCacheSim from PyPI reads what `postproc export` writes, and its policies
//! count the same misses as those of `postproc simulate --keep-freed`, to the last one.
//! libCacheSim keeps freed pages.
//!
//! Makes a virtual environment in the target directory, once. A trace of real programs is compared by
//! `KVMTRACE_TEST_TRACE=run.vmt cargo test -p postproc --test it libcachesim:: -- --ignored`, which
//! `qemu-test run workload-512-fast` does with its own.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::Command;

use crate::support;
use postproc::testing::TraceBuilder;
use postproc::units::{Access, Prot};

use crate::support::run;

const PACKAGES: &[&str] = &["libcachesim==0.3.5", "numpy"];

fn postproc(args: &[&str]) -> String {
    run(
        Command::new(env!("CARGO_BIN_EXE_postproc")).args(args),
        "run postproc",
    )
}

/// Policies that libCacheSim has with the same definition, and the smallest size
/// at which it has it: one at which none of its queues rounds to one page.
const POLICIES: [(&str, u64); 8] = [
    ("lru", 1),
    ("fifo", 1),
    ("clock", 1),
    ("sieve", 1),
    ("s3-fifo", 20),
    ("2q", 4),
    ("arc", 1),
    ("opt", 1),
];

/// Misses of libCacheSim by "policy:size".
fn misses_by_libcachesim(python: &Path, requests: &str, jobs: &[String]) -> serde_json::Value {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/misses_by_libcachesim.py"
    );
    serde_json::from_str(&run(
        Command::new(python).arg(script).arg(requests).args(jobs),
        "run libcachesim",
    ))
    .unwrap()
}

fn compare(trace: &Path) {
    let python = support::python("libcachesim", PACKAGES);
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let trace = trace.to_str().unwrap();
    compare_exact(&python, trace, directory.path());
    compare_lirs(&python, trace, directory.path());
}

/// All policies but LIRS.
fn compare_exact(python: &Path, trace: &str, directory: &Path) {
    let curve: serde_json::Value = serde_json::from_str(&postproc(&[
        "simulate",
        "--json",
        "--keep-freed",
        "--curve",
        "--points",
        "2",
        trace,
    ]))
    .unwrap();
    let footprint = curve["cold"].as_u64().unwrap();
    let sizes = [
        footprint / 200,
        footprint / 50,
        footprint / 10 + 1,
        footprint / 4,
        footprint / 2,
        footprint * 9 / 10,
        footprint,
    ];
    let list = sizes.map(|size| size.max(1).to_string()).join(",");
    let names: Vec<&str> = POLICIES.iter().map(|p| p.0).collect();
    let ours: serde_json::Value = serde_json::from_str(&postproc(&[
        "simulate",
        "--json",
        "--keep-freed",
        "--policy",
        &names.join(","),
        "--size",
        &list,
        "--curve",
        "--points",
        "0",
        trace,
    ]))
    .unwrap();
    let rows: Vec<(String, u64, u64)> = ours["sizes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let number = |key: &str| row[key].as_u64().unwrap();
            let policy = row["policy"].as_str().unwrap();
            (policy.to_string(), number("size_pages"), number("misses"))
        })
        .filter(|(policy, size, _)| POLICIES.iter().any(|p| p.0 == policy && p.1 <= *size))
        .collect();
    assert!(rows.len() >= POLICIES.len() * (sizes.len() - 1));
    let jobs: Vec<String> = rows
        .iter()
        .map(|(policy, size, _)| format!("{policy}:{size}"))
        .collect();
    for (format, name) in [
        ("oracleGeneral", "out.oracleGeneral"),
        ("oracleGeneral", "out.oracleGeneral.zst"),
        ("lcs", "out.lcs"),
        ("lcs-v2", "out-v2.lcs"),
    ] {
        let path = directory.join(name);
        let path = path.to_str().unwrap();
        postproc(&["export", trace, "--format", format, "-o", path]);
        // What is compressed is read the same way for all.
        let asked = if name.ends_with("zst") {
            sizes.len()
        } else {
            jobs.len()
        };
        let theirs = misses_by_libcachesim(python, path, &jobs[..asked]);
        assert_eq!(theirs["requests"], ours["references"]);
        let mut unequal = Vec::new();
        for ((policy, size, misses), job) in rows.iter().zip(&jobs[..asked]) {
            println!("{trace}: {policy}, {size} pages: {misses} misses");
            if theirs[job] != *misses {
                unequal.push(format!("{job}: {misses} here, {} there", theirs[job]));
            }
            if policy == "lru" {
                let point = &ours["curve"][*size as usize - 1];
                assert_eq!(point["policy"], "lru");
                assert_eq!(point["misses"], *misses, "{trace}, {size} pages, curve");
            }
        }
        assert!(unequal.is_empty(), "{trace}, {name}: {unequal:#?}");
        std::fs::remove_file(path).unwrap();
    }
}

/// Pages in order, each once.
#[derive(Default)]
struct Order {
    pages: BTreeMap<u64, u64>,
    stamps: HashMap<u64, u64>,
    clock: u64,
}

impl Order {
    fn contains(&self, page: u64) -> bool {
        self.stamps.contains_key(&page)
    }

    fn push(&mut self, page: u64) {
        self.remove(page);
        self.clock += 1;
        self.pages.insert(self.clock, page);
        self.stamps.insert(page, self.clock);
    }

    fn remove(&mut self, page: u64) -> bool {
        let stamp = self.stamps.remove(&page);
        stamp.is_some_and(|stamp| self.pages.remove(&stamp).is_some())
    }

    fn oldest(&self) -> Option<u64> {
        self.pages.first_key_value().map(|(_, &page)| page)
    }

    fn newest(&self) -> Option<u64> {
        self.pages.last_key_value().map(|(_, &page)| page)
    }

    fn pop(&mut self) -> u64 {
        let page = self.oldest().unwrap();
        self.remove(page);
        page
    }
}

/// LIRS as libCacheSim 0.3.5 has it, or without what sets it apart.
#[derive(Default)]
struct Lirs {
    like_libcachesim: bool,
    size: usize,
    s: Order,
    q: Order,
    /// What was replaced, but is still in S.
    gone: Order,
    lir: HashSet<u64>,
}

impl Lirs {
    fn hir_size(&self) -> usize {
        (self.size / 100).max(1)
    }

    fn lir_is_full(&self) -> bool {
        self.lir.len() == self.size - self.hir_size()
    }

    /// Takes HIR pages off the bottom of S, but never the page on its top.
    fn prune(&mut self) {
        while self.s.oldest() != self.s.newest() {
            let page = self.s.oldest().unwrap();
            if self.lir.contains(&page) {
                return;
            }
            self.s.remove(page);
            self.gone.remove(page);
        }
    }

    fn replace(&mut self) {
        let page = self.q.pop();
        if self.s.contains(page) {
            self.gone.push(page);
        }
    }

    fn demote(&mut self) {
        let page = self.s.pop();
        self.lir.remove(&page);
        if self.q.stamps.len() == self.hir_size() {
            self.replace();
        }
        self.q.push(page);
        self.prune();
    }

    /// True for a hit.
    fn reference(&mut self, page: u64) -> bool {
        let in_s = self.s.contains(page);
        let in_q = self.q.contains(page);
        let hit = if self.lir.contains(&page) {
            self.s.push(page);
            self.prune();
            true
        } else if in_s {
            let hit = !self.gone.contains(page);
            self.s.push(page);
            self.q.remove(page);
            if self.lir_is_full() {
                self.demote();
            }
            self.gone.remove(page);
            self.lir.insert(page);
            hit
        } else if in_q {
            self.q.push(page);
            if self.like_libcachesim && self.lir_is_full() {
                self.demote();
            }
            self.s.push(page);
            true
        } else {
            if self.lir_is_full() {
                if self.q.stamps.len() == self.hir_size() {
                    self.replace();
                }
                self.q.push(page);
            } else {
                self.lir.insert(page);
            }
            self.s.push(page);
            false
        };
        while self.like_libcachesim && self.s.stamps.len() > 2 * self.size {
            if self.gone.oldest().is_none() {
                break;
            }
            let page = self.gone.pop();
            self.s.remove(page);
        }
        hit
    }
}

/// See policies/lirs.rs: what is counted here is LIRS of the paper; three things
/// make libCacheSim's of it.
fn compare_lirs(python: &Path, trace: &str, directory: &Path) {
    let path = |name: &str| directory.join(name).to_str().unwrap().to_string();
    let (pages, requests) = (path("out.txt"), path("out.oracleGeneral"));
    postproc(&["export", trace, "--format", "txt", "-o", &pages]);
    postproc(&[
        "export",
        trace,
        "--format",
        "oracleGeneral",
        "-o",
        &requests,
    ]);
    let pages: Vec<u64> = std::fs::read_to_string(&pages)
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    let footprint = pages.iter().collect::<HashSet<_>>().len();
    for size in [footprint / 50, footprint / 10, footprint / 4, footprint / 2] {
        let misses = |like_libcachesim| {
            let mut model = Lirs {
                like_libcachesim,
                size,
                ..Lirs::default()
            };
            let miss = |&&page: &&u64| !model.reference(page);
            pages.iter().filter(miss).count()
        };
        let job = format!("lirs:{size}");
        let theirs = misses_by_libcachesim(python, &requests, std::slice::from_ref(&job));
        let ours: serde_json::Value = serde_json::from_str(&postproc(&[
            "simulate",
            "--json",
            "--keep-freed",
            "--policy",
            "lirs",
            "--size",
            &size.to_string(),
            trace,
        ]))
        .unwrap();
        println!(
            "{trace}: {job} pages: {} here, {} there",
            ours["sizes"][0]["misses"], theirs[&job]
        );
        assert_eq!(ours["sizes"][0]["misses"], misses(false), "{trace}, {job}");
        assert_eq!(theirs[&job], misses(true), "{trace}, {job}, as libCacheSim");
    }
}

/// Writes a trace of one process that references the pages that `page` names.
fn write(path: &Path, references: u64, pages: u64, mut page: impl FnMut(u64, u64) -> u64) {
    let mut builder = TraceBuilder::to(BufWriter::new(File::create(path).unwrap()), 2, 64);
    builder.program();
    let base = 0x10_0000;
    builder.map_anon(0, 10, 1, base, base + 4096 * pages, Prot(3));
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for i in 0..references {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let access = if random >> 60 & 3 == 0 {
            Access::Write
        } else {
            Access::Read
        };
        let address = base + page(i, random) * 4096;
        builder.touch_as((i / 100 % 2) as u32, 10, 1, address, access);
    }
    builder.finish_to().unwrap();
}

#[test]
fn misses_are_those_of_libcachesim() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let trace = directory.path().join("random.vmtrace");
    // Half of the time near a place that wanders.
    write(&trace, 200_000, 10_000, |i, random| {
        if random >> 63 == 0 {
            random % 9_000
        } else {
            i / 40 + random % 400
        }
    });
    compare(&trace);

    let trace = directory.path().join("zipf.vmtrace");
    // Zipf's law with exponent 1, and a scan now and then.
    let last = 20_000f64;
    write(&trace, 200_000, 21_000, |i, random| {
        if i / 1000 % 40 == 39 {
            20_000 + i % 1000
        } else {
            let uniform = (random >> 11) as f64 / (1u64 << 53) as f64;
            last.powf(uniform) as u64
        }
    });
    compare(&trace);

    let trace = directory.path().join("loop.vmtrace");
    // Loops of several lengths, which are hard for most.
    write(&trace, 100_000, 3_000, |i, random| match i / 10_000 % 3 {
        0 => i % 1_500,
        1 => i % 2_500,
        _ => random % 3_000,
    });
    compare(&trace);
}

/// The reader of lcs knows deletions, but the simulator does not look at operations: a deletion
/// counts as one more reference. So `postproc export` writes none, and this test says when
/// that may change.
#[test]
fn libcachesim_takes_a_deletion_for_a_reference() {
    const OP_DELETE: u8 = 9;
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
    write(
        &directory.path().join("t.vmtrace"),
        5_000,
        400,
        |_, random| random % 400,
    );
    let (trace, plain, deleting) = (path("t.vmtrace"), path("plain.lcs"), path("deleting.lcs"));
    postproc(&["export", &trace, "--format", "lcs-v2", "-o", &plain]);
    let mut bytes = std::fs::read(&plain).unwrap();
    let mut deletions = 0;
    for record in bytes[8192..].chunks_mut(28).step_by(3) {
        assert!([12, 13].contains(&record[16]));
        record[16] = OP_DELETE;
        deletions += 1;
    }
    assert!(deletions > 1_000);
    std::fs::write(&deleting, bytes).unwrap();
    let python = support::python("libcachesim", PACKAGES);
    let jobs = ["lru:20", "lru:300", "fifo:300", "sieve:100"].map(String::from);
    let mut counts = [&plain, &deleting].map(|path| misses_by_libcachesim(&python, path, &jobs));
    for counts in &mut counts {
        counts.as_object_mut().unwrap().remove("seconds");
    }
    assert_eq!(counts[0], counts[1]);
}

#[test]
#[ignore = "needs the trace of a guest"]
fn misses_of_real_programs_are_those_of_libcachesim() {
    let trace = std::env::var("KVMTRACE_TEST_TRACE").expect("KVMTRACE_TEST_TRACE names a trace");
    compare(Path::new(&trace));
}
