//! What commands read a trace from: files, pipes, and what Zstandard compressed.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use postproc::testing::TraceBuilder;

/// A command with its temporary files in a directory of their own.
fn command(directory: &Path, args: &[&str]) -> Command {
    let scratch = directory.join("tmp");
    fs::create_dir_all(&scratch).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_postproc"));
    command
        .args(args)
        .current_dir(directory)
        .env("TMPDIR", scratch)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a command with these bytes in a pipe that is its standard input.
#[track_caller]
fn piped(directory: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut child = command(directory, args)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // The command may end before it has read all.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let left = fs::read_dir(directory.join("tmp")).unwrap().count();
    assert_eq!(left, 0, "{args:?} left something in TMPDIR");
    output
}

fn of_file(directory: &Path, args: &[&str]) -> Output {
    command(directory, args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

/// Several frames, with one in front and one in between that is to be skipped.
fn in_frames(bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![0x5e, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    for part in bytes.chunks(bytes.len() / 3) {
        all.extend(compressed(part));
        all.extend([0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0]);
    }
    all
}

/// Each command that reads a trace; `T` stands for the trace.
const COMMANDS: &[&[&str]] = &[
    &["check", "T"],
    &["check", "--frames", "--json", "T"],
    &["info", "--json", "T"],
    &["events", "T"],
    &["maps", "T"],
    &["simulate", "T", "--policy", "lru", "--curve", "--json"],
    &["advise", "T", "--json"],
    &["compare", "T", "--policy", "lru,opt", "--json"],
    &["export", "T", "--format", "csv", "-o", "-"],
    &["reduce", "T", "--method", "sad", "--size", "4", "-o", "-"],
    &["pack", "T", "-o", "-"],
    &["unpack", "T", "-o", "-"],
    &["recover", "T", "-o", "-"],
    &["damon", "T", "--json"],
    &["report", "T", "-o", "report"],
];

fn with<'a>(args: &[&'a str], trace: &'a str) -> Vec<&'a str> {
    args.iter()
        .map(|&arg| if arg == "T" { trace } else { arg })
        .collect()
}

#[test]
fn each_command_reads_each_kind_of_input() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let good = TraceBuilder::sample_of_many_packets().finish();
    fs::write(at("trace"), &good).unwrap();
    // The name does not matter.
    fs::write(at("t.one"), compressed(&good)).unwrap();
    fs::write(at("t.several"), in_frames(&good)).unwrap();
    for args in COMMANDS {
        let plain = of_file(directory.path(), &with(args, "trace"));
        assert_eq!(plain.status.code(), Some(0), "{args:?}: {}", said(&plain));
        let name = |output: &Output, name: &str| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            // Those name the trace and count the bytes of its file.
            text.replace(name, "trace")
        };
        let expected = name(&plain, "trace");
        let same = |output: Output, called: &str| {
            assert_eq!(output.status.code(), Some(0), "{args:?}: {}", said(&output));
            assert_eq!(name(&output, called), expected, "{args:?} of {called}");
        };
        same(
            piped(directory.path(), &with(args, "-"), &good),
            "standard input",
        );
        same(
            piped(directory.path(), &with(args, "-"), &in_frames(&good)),
            "standard input",
        );
        same(
            piped(directory.path(), &with(args, "/dev/stdin"), &good),
            "/dev/stdin",
        );
        same(of_file(directory.path(), &with(args, "t.one")), "t.one");
        same(
            of_file(directory.path(), &with(args, "t.several")),
            "t.several",
        );
    }
}

#[test]
fn a_named_pipe_and_a_file_as_standard_input() {
    let directory = tempfile::tempdir().unwrap();
    let good = TraceBuilder::sample().finish();
    let fifo = directory.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let bytes = good.clone();
    let writer = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::write(fifo, bytes).unwrap()
    });
    let output = of_file(directory.path(), &["check", "fifo"]);
    writer.join().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    // A file from its beginning, and from where another program stopped.
    for before in [0, 5] {
        let path = directory.path().join("file");
        fs::write(&path, [&vec![1; before][..], &good].concat()).unwrap();
        let mut file = File::open(&path).unwrap();
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(before as u64)).unwrap();
        let output = command(directory.path(), &["check", "-"])
            .stdin(file)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    }
}

#[test]
fn what_is_no_trace_is_refused_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let zeros = vec![0; 1 << 20];
    for (input, message) in [
        (vec![], "postproc: standard input: empty file"),
        (
            b"not a trace at all".to_vec(),
            "standard input: not a kVMTrace trace",
        ),
        (zeros.clone(), "standard input: not a kVMTrace trace"),
        (compressed(&zeros), "standard input: not a kVMTrace trace"),
        (compressed(b""), "standard input: empty file"),
        (
            vec![0x28, 0xb5, 0x2f, 0xfd],
            "standard input: the Zstandard stream is cut off",
        ),
        (
            [&[0x28, 0xb5, 0x2f, 0xfd][..], &[0xff; 100]].concat(),
            "standard input: the Zstandard stream is damaged",
        ),
    ] {
        let output = piped(path, &["check", "-"], &input);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(said(&output).contains(message), "{}", said(&output));
    }
    // An endless one is not read to its end.
    let mut child = command(path, &["check", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    while stdin.write_all(&zeros).is_ok() {}
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let output = of_file(path, &["check", "-"]);
    assert!(
        said(&output).contains("a character device, not a trace"),
        "{}",
        said(&output)
    );
    let good = TraceBuilder::sample().finish();
    let twice = ["recover", "-", "--header-of", "/dev/stdin", "-o", "out"];
    let output = piped(path, &twice, &good);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("can be read only once"),
        "{}",
        said(&output)
    );
    let output = command(path, &["check", "/dev/stdin"])
        .env("TMPDIR", path.join("none"))
        .stdin(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("TMPDIR"), "{}", said(&output));
}

/// What comes before the end or the damage of a stream is read.
#[test]
fn a_stream_that_is_cut_or_damaged_is_read_so_far() {
    let directory = tempfile::tempdir().unwrap();
    let good = TraceBuilder::sample_of_many_packets().finish();
    // Frames of 1 KiB: the cut costs at most one of them.
    let frames: Vec<Vec<u8>> = good.chunks(1 << 10).map(compressed).collect();
    let all = frames.concat();
    let cut = &all[..all.len() - frames[frames.len() - 1].len() - 3];
    let mut damaged = all.clone();
    let middle: usize = frames[..frames.len() / 2].iter().map(Vec::len).sum();
    damaged[middle..middle + 4].fill(0xff);
    for (input, message) in [(cut, "is cut off"), (&damaged, "is damaged near")] {
        let checked = piped(directory.path(), &["check", "-"], input);
        assert_eq!(checked.status.code(), Some(1), "{}", said(&checked));
        let text = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(
            text.contains(message) && text.contains("NOT GOOD"),
            "{text}"
        );
        assert!(!text.contains(": 0 references"), "{text}");
        let info = piped(directory.path(), &["info", "-"], input);
        assert_eq!(info.status.code(), Some(1));
        let recovered = piped(directory.path(), &["recover", "-", "-o", "out"], input);
        assert_eq!(recovered.status.code(), Some(1));
        let text = String::from_utf8_lossy(&recovered.stdout).into_owned();
        assert!(text.contains(message), "{text}");
    }
    // All records are there, but the stream's last bytes are not.
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(&good).unwrap();
    let whole = encoder.finish().unwrap();
    let checked = piped(directory.path(), &["check", "-"], &whole[..whole.len() - 1]);
    assert_eq!(checked.status.code(), Some(1));
}

/// A frame that needs a window of a gigabyte, and one that says a byte very many times.
#[test]
fn hostile_frames_take_neither_memory_nor_disk() {
    let directory = tempfile::tempdir().unwrap();
    let window = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 20 << 3, 0x01, 0, 0];
    let output = piped(directory.path(), &["check", "-"], &window);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("--long=31"), "{}", said(&output));
    let good = TraceBuilder::sample().finish();
    let after = |byte: u8, blocks: usize| {
        let mut bomb = compressed(&good);
        bomb.extend([0x28, 0xb5, 0x2f, 0xfd, 0x00, 7 << 3]);
        for block in 0..blocks {
            // A block that is one byte, 128 KiB times.
            let last = u32::from(block + 1 == blocks);
            let head = (1 << 17 << 3) | 1 << 1 | last;
            bomb.extend(&head.to_le_bytes()[..3]);
            bomb.push(byte);
        }
        bomb
    };
    let output = piped(directory.path(), &["check", "-"], &after(1, 4_000));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("1000 times"), "{}", said(&output));
    // Zeros take no disk. They are behind the trace, as on a block device.
    let output = piped(directory.path(), &["check", "-"], &after(0, 4_000));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

#[test]
fn a_signal_while_a_pipe_is_read_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let good = TraceBuilder::sample().finish();
    let mut child: Child = command(directory.path(), &["check", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&good).unwrap();
    // The pipe stays open: the command waits for more.
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none());
    let since = Instant::now();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(since.elapsed() < Duration::from_secs(5));
    assert_eq!(
        fs::read_dir(directory.path().join("tmp")).unwrap().count(),
        0
    );
}
