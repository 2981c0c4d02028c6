//! What commands take whose work is much more than the trace has bytes: no more memory, and
//! no more time than the work is worth.

mod support;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use postproc::testing::TraceBuilder;
use postproc::units::Prot;
use rust_mm_trace::uapi;

/// Memory that a command may take, in KiB.
const MEMORY: u64 = 100 << 10;

/// A build that does not optimise takes so many times the time.
const SLOW: f64 = if cfg!(debug_assertions) { 15.0 } else { 1.0 };

/// The time of children counts for the process: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Seconds of the processor that the children of this process have had.
fn seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks = |i: usize| fields[i].parse::<f64>().unwrap();
    (ticks(13) + ticks(14)) / 100.0
}

/// Runs a command in so much memory. Gives the bytes that it printed, and the time that it took.
fn bounded(args: &[&str], directory: &Path) -> (u64, f64) {
    let before = seconds();
    let mut child = Command::new("sh")
        .args(["-c", &format!("ulimit -d {MEMORY} && exec \"$@\""), "sh"])
        .arg(env!("CARGO_BIN_EXE_postproc"))
        .args(args)
        .current_dir(directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let (mut printed, mut part) = (0, vec![0; 1 << 20]);
    loop {
        match out.read(&mut part).unwrap() {
            0 => break,
            n => printed += n as u64,
        }
    }
    let status = child.wait().unwrap();
    // The trace is not good: what is protected has gaps.
    assert!(matches!(status.code(), Some(0 | 1)), "{args:?}: {status}");
    let took = seconds() - before;
    eprintln!("{args:?}: {printed} bytes in {took} s");
    (printed, took)
}

/// All that children have mapped is printed, and none of it is kept.
#[test]
fn all_maps_of_all_children() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let many = if cfg!(debug_assertions) { 1000 } else { 3000 };
    let mut b = TraceBuilder::new(1, 4);
    b.task(0, 10, 10, 1, "program");
    let (base, step) = (0x1000_0000, 0x10_0000);
    for at in (0..many).map(|i| base + i * step) {
        b.map_anon(0, 10, 1, at, at + 0x2000, Prot(3));
    }
    for i in 0..many as u32 {
        b.fork(0, 10, 1, 100 + i, 2 + i);
        b.protect(0, 100 + i, 2 + i, base, base + many * step, Prot(1));
    }
    let bytes = b.finish();
    assert!(bytes.len() <= 1 << 20);
    fs::write(directory.path().join("trace"), bytes).unwrap();
    for args in [&["maps", "trace"][..], &["maps", "trace", "--json"]] {
        let before = seconds();
        let output = support::postproc(args, directory.path());
        assert!(seconds() - before <= SLOW, "{args:?}");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("more than 1,000,000 mappings"), "{error}");
        let args = &[args, &["--all"]].concat();
        let (printed, took) = bounded(args, directory.path());
        assert!(printed >= many * many * 40);
        assert!(
            took <= SLOW * (1.0 + printed as f64 / 100e6),
            "{args:?}: {took} s"
        );
    }
    let (printed, took) = bounded(&["maps", "trace", "--pid", "100"], directory.path());
    assert!(printed <= many * 100);
    assert!(took <= SLOW);
}

/// Each page that is read is a reference, which takes time, and memory once. So there is a
/// limit, unless another one is asked for.
#[test]
fn reads_of_two_gibibytes() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let (reads, pages) = (20, 1 << 19);
    let mut b = TraceBuilder::new(1, 4);
    b.program();
    for _ in 0..reads {
        b.io((0, 10, 1), uapi::VMTRACE_EV_READ, 7, 0, pages << 12);
    }
    fs::write(directory.path().join("trace"), b.finish()).unwrap();
    let simulate = [
        "simulate", "trace", "--io", "--policy", "lru", "--size", "1000",
    ];
    let export = [
        "export",
        "trace",
        "--io",
        "--format",
        "txt",
        "-o",
        "/dev/null",
    ];
    for args in [&simulate[..], &export[..]] {
        let begin = seconds();
        let output = support::postproc(args, directory.path());
        assert!(seconds() - begin <= SLOW);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("--io-limit"), "{errors}");
        let all = (reads * pages).to_string();
        let args = [args, &["--io-limit", &all]].concat();
        let (_, took) = bounded(&args, directory.path());
        let most = SLOW * (1.0 + (reads * pages) as f64 / 10e6);
        assert!(took <= most, "{args:?}: {took} s");
    }
}
