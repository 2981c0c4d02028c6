//! libCacheSim from PyPI reads what `postproc export` writes, and its policies
//! count the same misses as those of `postproc simulate`, to the last one.
//!
//! Makes a virtual environment in the target directory, once. Set
//! `KVMTRACE_TEST_TRACE` to a trace to compare on that one, too.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use postproc::testing::TraceBuilder;
use postproc::units::{Access, Prot};

const VERSION: &str = "0.3.5";

fn run(command: &mut Command, purpose: &str) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("cannot {purpose}: {command:?}: {e}"));
    assert!(
        output.status.success(),
        "cannot {purpose}: {command:?} gave {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// A Python that has libcachesim.
fn python() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("libcachesim-{VERSION}"));
    let (python, done) = (directory.join("bin/python"), directory.join("done"));
    if !done.exists() {
        run(
            Command::new("python3")
                .args(["-m", "venv", "--clear"])
                .arg(&directory),
            "make a Python environment (Debian: apt-get install python3-venv)",
        );
        run(
            Command::new(&python)
                .args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                ])
                .args(["--only-binary", ":all:", "--no-deps", "numpy"])
                .arg(format!("libcachesim=={VERSION}")),
            "install libcachesim from PyPI (the comparison needs it)",
        );
        std::fs::write(done, "").unwrap();
    }
    python
}

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

fn compare(python: &Path, trace: &str, directory: &Path) {
    let curve: serde_json::Value = serde_json::from_str(&postproc(&[
        "simulate", "--json", "--curve", "--points", "2", trace,
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
    for name in ["out.oracleGeneral", "out.oracleGeneral.zst"] {
        let path = directory.join(name);
        let path = path.to_str().unwrap();
        postproc(&["export", trace, "--format", "oracleGeneral", "-o", path]);
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/misses_by_libcachesim.py"
        );
        // What is compressed is read the same way for all.
        let asked = if name.ends_with("zst") {
            sizes.len()
        } else {
            jobs.len()
        };
        let theirs: serde_json::Value = serde_json::from_str(&run(
            Command::new(python)
                .arg(script)
                .arg(path)
                .args(&jobs[..asked]),
            "run libcachesim",
        ))
        .unwrap();
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
    let python = python();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let compare = |trace: &Path| compare(&python, trace.to_str().unwrap(), directory.path());

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

    if let Ok(trace) = std::env::var("KVMTRACE_TEST_TRACE") {
        compare(Path::new(&trace));
    }
}
