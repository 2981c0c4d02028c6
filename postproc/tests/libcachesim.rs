//! libCacheSim from PyPI reads what `postproc export` writes, and its LRU counts
//! the same misses as `postproc simulate`, to the last one.
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

fn compare(python: &Path, trace: &str, directory: &Path) {
    let curve: serde_json::Value = serde_json::from_str(&postproc(&[
        "simulate", "--json", "--curve", "--points", "2", trace,
    ]))
    .unwrap();
    let footprint = curve["cold"].as_u64().unwrap();
    let sizes = [
        footprint / 50,
        footprint / 10,
        footprint / 4,
        footprint / 2,
        footprint,
    ]
    .map(|s| s.max(1).to_string());
    let list = sizes.join(",");
    let both: serde_json::Value = serde_json::from_str(&postproc(&[
        "simulate", "--json", "--policy", "lru", "--size", &list, "--curve", "--points", "0", trace,
    ]))
    .unwrap();
    for name in ["out.oracleGeneral", "out.oracleGeneral.zst"] {
        let path = directory.join(name);
        let path = path.to_str().unwrap();
        postproc(&["export", trace, "--format", "oracleGeneral", "-o", path]);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lru_by_libcachesim.py");
        let theirs: serde_json::Value = serde_json::from_str(&run(
            Command::new(python).arg(script).arg(path).args(&sizes),
            "run libcachesim",
        ))
        .unwrap();
        assert_eq!(theirs["requests"], both["references"]);
        for (i, size) in sizes.iter().enumerate() {
            let ours = &both["sizes"][i]["misses"];
            assert_eq!(
                &theirs[size.as_str()],
                ours,
                "{trace}, {size} pages, {name}"
            );
            let at = size.parse::<usize>().unwrap() - 1;
            assert_eq!(
                &both["curve"][at]["misses"], ours,
                "{trace}, {size} pages, curve"
            );
            println!("{trace}: {size} pages: {ours} misses");
        }
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn lru_misses_are_those_of_libcachesim() {
    let python = python();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let trace = directory.path().join("random.vmtrace");
    let mut builder = TraceBuilder::to(BufWriter::new(File::create(&trace).unwrap()), 2, 64);
    builder.program();
    let base = 0x10_0000;
    builder.map_anon(0, 10, 1, base, base + 4096 * 10_000, Prot(3));
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for i in 0..200_000u64 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Half of the time near a place that wanders.
        let page = if random >> 63 == 0 {
            random % 9_000
        } else {
            i / 40 + random % 400
        };
        let access = if random >> 60 & 3 == 0 {
            Access::Write
        } else {
            Access::Read
        };
        builder.touch_as((i / 100 % 2) as u32, 10, 1, base + page * 4096, access);
    }
    builder.finish_to().unwrap();
    compare(&python, trace.to_str().unwrap(), directory.path());
    if let Ok(trace) = std::env::var("KVMTRACE_TEST_TRACE") {
        compare(&python, &trace, directory.path());
    }
}
