//! A trace that somebody truncates while it is read: an error like any other, after which
//! nothing is left behind.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use postproc::testing::TraceBuilder;
use postproc::trace::wire::HEADER_SIZE;
use postproc::units::Prot;

/// A trace of so many references, with an event for each ten of them.
fn write(path: &Path, references: u64) {
    let mut trace = TraceBuilder::to(std::io::BufWriter::new(File::create(path).unwrap()), 1, 16);
    trace.task(0, 10, 10, 1, "sample");
    trace.map_anon(0, 10, 1, 0x10_0000, 0x1010_0000, Prot(3));
    for i in 0..references {
        trace.touch(0, 10, 1, 0x10_0000 + i * 7 % 0x1_0000 * 4096);
        if i % 10 == 0 {
            trace.protect(0, 10, 1, 0x10_0000, 0x10_1000, Prot(3));
        }
    }
    trace.finish_to().unwrap();
}

fn postproc(args: &[&str], directory: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_postproc"))
        .args(args)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Leaves the trace's header.
fn truncate(directory: &Path) {
    let file = OpenOptions::new()
        .write(true)
        .open(directory.join("t.vmtrace"))
        .unwrap();
    file.set_len(HEADER_SIZE as u64).unwrap();
}

#[track_caller]
fn assert_said_so(output: &Output, directory: &Path) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{}: {said}", output.status);
    assert!(
        said.contains("t.vmtrace: the trace was truncated while it was read"),
        "{said}"
    );
    let left: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["t.vmtrace"]);
}

/// It stops when the pipe is full, and reads on when the trace is gone.
#[test]
fn while_it_waits_for_who_reads_its_output() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write(&directory.join("t.vmtrace"), 200_000);
    let mut child = postproc(&["events", "t.vmtrace"], directory);
    let mut out = child.stdout.take().unwrap();
    // It has begun, and cannot be far: all it says is many times what the pipe holds.
    out.read_exact(&mut [0; 1000]).unwrap();
    truncate(directory);
    std::io::copy(&mut out, &mut std::io::sink()).unwrap();
    assert_said_so(&child.wait_with_output().unwrap(), directory);
}

/// Its temporary file shows that it is at work.
#[test]
fn while_it_writes_a_file() {
    // Whoever is fast enough may be done before the trace is truncated.
    for references in [300_000, 3_000_000] {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        write(&directory.join("t.vmtrace"), references);
        let args = ["export", "t.vmtrace", "--format", "csv", "-o", "out.csv"];
        let child = postproc(&args, directory);
        let patience = Instant::now() + Duration::from_secs(60);
        while std::fs::read_dir(directory).unwrap().count() < 2 {
            assert!(Instant::now() < patience, "it does not begin");
            std::thread::sleep(Duration::from_millis(1));
        }
        truncate(directory);
        let output = child.wait_with_output().unwrap();
        if output.status.success() {
            continue;
        }
        assert_said_so(&output, directory);
        return;
    }
    panic!("it was always done before");
}
