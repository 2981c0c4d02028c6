//! SIGINT and SIGTERM end every command at once and leave nothing unfinished behind.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use postproc::testing::TraceBuilder;
use postproc::units::Prot;

/// A command ends within this time of a signal.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Between two looks at a command.
const LOOK: Duration = Duration::from_millis(2);
/// Further signals, each nearer to the beginning, if no signal came in time.
const TRIES: usize = 8;
/// Processes and windows of the trace.
const PROCESSES: u32 = 4;
const WINDOWS: u32 = 3;

/// The directory of a trace of three windows, and of the same references as text.
fn traces() -> &'static Path {
    static TRACES: OnceLock<PathBuf> = OnceLock::new();
    TRACES.get_or_init(|| {
        // Always the same one, for a static is not dropped.
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("signals");
        std::fs::create_dir_all(&directory).unwrap();
        let create = |name: &str| BufWriter::new(File::create(directory.join(name)).unwrap());
        let mut text = create("run.txt");
        let mut trace = TraceBuilder::to(create("run.vmtrace"), 1, 16);
        for window in 0..WINDOWS {
            trace.begin_window(12_000);
            let mm = |process: u32| window * PROCESSES + process + 1;
            for process in 0..PROCESSES {
                trace.task(0, 10 + process, 10 + process, mm(process), "program");
                let (start, end) = (0x10_0000, 0x10_0000 + 4096 * 5000);
                trace.map_anon(0, 10 + process, mm(process), start, end, Prot(3));
            }
            for i in 0..12_000u64 {
                let process = (i / 100) as u32 % PROCESSES;
                let page = i * 7 % 4999;
                trace.touch(0, 10 + process, mm(process), 0x10_0000 + page * 4096);
                if i % 5 == 0 {
                    let address = 0x4000_0000 + i * 4096;
                    trace.map_anon(0, 10, mm(0), address, address + 4096, Prot(3));
                }
                writeln!(text, "{page}").unwrap();
            }
            trace.end_window(|_| {});
        }
        trace.finish_to().unwrap();
        directory
    })
}

/// What a command is run with.
#[derive(Clone, Copy, PartialEq)]
enum Streams {
    /// Its output is read.
    Read,
    /// Nobody reads its output, which is larger than a pipe's buffer.
    Full,
    /// Its input has an end that does not come.
    Endless,
}

/// A command under way in directories of its own: one it is in, one for temporary files.
struct Running {
    child: Child,
    directory: tempfile::TempDir,
    _input: Option<std::process::ChildStdin>,
}

impl Running {
    fn start(args: &[&str], streams: Streams) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for name in ["out", "tmp"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let output = || match streams {
            Streams::Full => Stdio::piped(),
            _ => Stdio::null(),
        };
        let mut child = Command::new(env!("CARGO_BIN_EXE_postproc"))
            .args(args.iter().map(|a| match *a {
                "run.vmtrace" | "run.txt" => traces().join(a),
                a => a.into(),
            }))
            .current_dir(directory.path().join("out"))
            .env("TMPDIR", directory.path().join("tmp"))
            .stdin(match streams {
                Streams::Endless => Stdio::piped(),
                _ => Stdio::null(),
            })
            .stdout(output())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take();
        if let Some(input) = &mut input {
            input.write_all(b"1\n2\n3\n").unwrap();
        }
        Running {
            child,
            directory,
            _input: input,
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// The CPU time of all its threads, until somebody has taken note of its end.
    fn used(&self) -> Duration {
        let clock = clock_getcpuclockid(self.pid()).and_then(clock_gettime);
        clock.map_or(Duration::ZERO, Duration::from)
    }

    /// Waits until it has used so much CPU time, or has ended. So it is about as far as ever,
    /// whatever else the machine does.
    fn use_up(&mut self, time: Duration) {
        while self.used() < time && !self.has_ended() {
            std::thread::sleep(LOOK / 8);
        }
    }

    fn signal(&mut self, signal: Signal) {
        // As long as nobody has taken note of its end, the number is its own.
        if !self.has_ended() {
            kill(self.pid(), signal).unwrap();
        }
    }

    /// Waits for its end, but not for ever. Gives how long that was, and the CPU time of the command.
    ///
    /// The time is that of the looks alone: if the machine has other work, or stands still, this
    /// process waits like the command.
    fn wait(&mut self, longest: Duration) -> Option<(ExitStatus, Duration, Duration)> {
        let mut waited = Duration::ZERO;
        loop {
            let used = self.used();
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some((status, waited, used));
            }
            if waited > longest {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                return None;
            }
            std::thread::sleep(LOOK);
            waited += LOOK;
        }
    }

    /// All files and directories it has left, by name; what is in the files.
    fn left(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let mut left = BTreeMap::new();
        let mut below = vec![self.directory.path().to_path_buf()];
        while let Some(directory) = below.pop() {
            for entry in directory.read_dir().unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(self.directory.path()).unwrap().into();
                if path.is_dir() {
                    left.insert(name, None);
                    below.push(path);
                } else {
                    left.insert(name, Some(std::fs::read(path).unwrap()));
                }
            }
        }
        left
    }

    fn message(&mut self) -> String {
        let mut text = String::new();
        let mut err = self.child.stderr.take().unwrap();
        err.read_to_string(&mut text).unwrap();
        text
    }
}

/// Interrupts a command at moments all over the time that it takes. `products` are the
/// names of what it makes, each of which must be there whole or not at all.
#[track_caller]
fn interrupt(args: &[&str], streams: Streams, products: &[&str]) {
    traces();
    let (time, whole) = if streams == Streams::Read {
        let mut undisturbed = Running::start(args, streams);
        let (status, _, used) = undisturbed
            .wait(Duration::from_secs(120))
            .unwrap_or_else(|| panic!("{args:?}: no end"));
        let message = undisturbed.message();
        assert_eq!(status.code(), Some(0), "{args:?}: {message}");
        assert!(!used.is_zero());
        (used, undisturbed.left())
    } else {
        (Duration::from_millis(400), BTreeMap::new())
    };
    let of = |left: &BTreeMap<PathBuf, _>, product: &str| {
        let root = Path::new("out").join(product);
        left.keys().filter(|name| name.starts_with(&root)).count()
    };
    for product in products {
        assert!(of(&whole, product) > 0, "{args:?} makes no {product}");
    }
    let mut ended_by_signal = 0;
    let moments = (0..6).map(|i| time * (2 * i + 1) / 13);
    let nearer = (0..TRIES).map(|i| time / (26 << i));
    let signals = [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)];
    for (i, (moment, (signal, code))) in moments
        .chain(nearer)
        .zip(signals.into_iter().cycle())
        .enumerate()
    {
        if i >= 6 && ended_by_signal > 0 {
            break;
        }
        let mut running = Running::start(args, streams);
        match streams {
            Streams::Read => running.use_up(moment),
            _ => {
                std::thread::sleep(moment);
                assert!(!running.has_ended(), "{args:?}");
            }
        }
        running.signal(signal);
        let what = format!("{args:?}, {signal:?} as number {i}, after {moment:?}");
        let (status, waited, _) = running
            .wait(4 * AT_ONCE)
            .unwrap_or_else(|| panic!("{what}: no end"));
        assert!(waited < AT_ONCE, "{what}: {waited:?}");
        // Before the first line of main() the signal itself ends it; shells call that the same.
        let ended = status.code().or(status.signal().map(|s| 128 + s));
        let message = running.message();
        if ended == Some(code) {
            ended_by_signal += u32::from(status.code().is_some());
        } else {
            // The signal may have come after its end.
            assert_eq!(
                (ended, streams),
                (Some(0), Streams::Read),
                "{what}: {message}"
            );
        }
        let left = running.left();
        for (name, content) in &left {
            assert!(
                whole.contains_key(name) || name.as_os_str() == "out" || name.as_os_str() == "tmp",
                "{what}: left {}",
                name.display()
            );
            assert!(
                whole.get(name).is_none_or(|whole| whole == content),
                "{what}: {} is not whole",
                name.display()
            );
        }
        for product in products {
            let (files, all) = (of(&left, product), of(&whole, product));
            assert!(
                files == 0 || files == all,
                "{what}: {files} of {all} of {product}"
            );
        }
    }
    assert!(ended_by_signal >= 1, "{args:?}: no signal came in time");
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Streams::Read => "its output is read",
            Streams::Full => "nobody reads its output",
            Streams::Endless => "its input does not end",
        })
    }
}

fn each_window(name: &str) -> [String; WINDOWS as usize] {
    [0, 1, 2].map(|k| {
        postproc::export::before_endings(Path::new(name), &k.to_string())
            .display()
            .to_string()
    })
}

#[test]
fn checks() {
    interrupt(&["check", "run.vmtrace"], Streams::Read, &[]);
    interrupt(
        &["check", "--frames", "--per-window", "run.vmtrace"],
        Streams::Read,
        &[],
    );
}

#[test]
fn simulations() {
    let all = [
        "simulate",
        "run.vmtrace",
        "--policy",
        "lru,arc,lirs",
        "--size",
        "1000,4000",
    ];
    interrupt(&all, Streams::Read, &[]);
    interrupt(&[&all[..], &["--per-window"]].concat(), Streams::Read, &[]);
    let curve = [
        "simulate", "--from", "txt", "run.txt", "--policy", "lru,opt", "--curve",
    ];
    interrupt(&curve, Streams::Read, &[]);
    let limits = [
        "simulate",
        "run.vmtrace",
        "--limit",
        "process=1000",
        "--policy",
        "lru,arc",
    ];
    interrupt(&limits, Streams::Read, &[]);
    let sample = [
        "simulate",
        "run.vmtrace",
        "--policy",
        "lru,clock",
        "--size",
        "4000",
        "--sample",
        "0.5",
    ];
    interrupt(&sample, Streams::Read, &[]);
}

#[test]
fn advice_and_comparisons() {
    interrupt(&["advise", "run.vmtrace"], Streams::Read, &[]);
    let compare = [
        "compare",
        "run.vmtrace",
        "run.vmtrace",
        "--policy",
        "lru,arc",
        "-o",
        "page.html",
    ];
    interrupt(&compare, Streams::Read, &["page.html"]);
}

#[test]
fn exports_of_one_file() {
    for (format, name) in [
        ("csv", "o.csv.zst"),
        ("oracleGeneral", "o.bin"),
        ("damon", "o.data"),
    ] {
        let args = ["export", "run.vmtrace", "--format", format, "-o", name];
        interrupt(&args, Streams::Read, &[name]);
    }
}

#[test]
fn exports_of_directories() {
    for format in ["parquet", "ctf"] {
        let args = ["export", "run.vmtrace", "--format", format, "-o", "o"];
        interrupt(&args, Streams::Read, &["o"]);
    }
}

#[test]
fn pieces() {
    for by in ["windows", "size=50KiB", "time=100us"] {
        let args = ["split", "run.vmtrace", "--by", by, "-o", "o"];
        interrupt(&args, Streams::Read, &["o"]);
    }
}

#[test]
fn exports_of_each_window_and_process() {
    for (format, name) in [("oracleGeneral", "o.bin.zst"), ("parquet", "o")] {
        let args = [
            "export",
            "run.vmtrace",
            "--per-window",
            "--format",
            format,
            "-o",
            name,
        ];
        let products = each_window(name);
        interrupt(
            &args,
            Streams::Read,
            &products.each_ref().map(|p| p.as_str()),
        );
    }
    let args = [
        "export",
        "run.vmtrace",
        "--per-process",
        "--format",
        "lcs",
        "-o",
        "o.lcs",
    ];
    interrupt(&args, Streams::Read, &["o.10.lcs", "o.13.lcs"]);
}

#[test]
fn reductions() {
    for method in ["sad", "olr"] {
        let args = [
            "reduce",
            "run.vmtrace",
            "--method",
            method,
            "--size",
            "500",
            "--keep-freed",
            "-o",
            "o.csv.zst",
        ];
        interrupt(&args, Streams::Read, &["o.csv.zst"]);
    }
    let args = [
        "reduce",
        "run.vmtrace",
        "--per-window",
        "--method",
        "sad",
        "--size",
        "50",
        "-o",
        "o.csv",
    ];
    interrupt(
        &args,
        Streams::Read,
        &each_window("o.csv").each_ref().map(|p| p.as_str()),
    );
}

#[test]
fn reports() {
    interrupt(
        &["report", "run.vmtrace", "-o", "o.html"],
        Streams::Read,
        &["o.html"],
    );
    interrupt(&["report", "run.vmtrace", "-o", "o"], Streams::Read, &["o"]);
    interrupt(
        &["report", "--from", "txt", "run.txt", "-o", "o"],
        Streams::Read,
        &["o"],
    );
    let windows = ["report", "run.vmtrace", "--per-window", "-o", "o"];
    interrupt(
        &windows,
        Streams::Read,
        &each_window("o").each_ref().map(|p| p.as_str()),
    );
}

#[test]
fn others() {
    interrupt(&["damon", "run.vmtrace"], Streams::Read, &[]);
    interrupt(&["maps", "run.vmtrace", "--per-window"], Streams::Read, &[]);
}

#[test]
fn pipes_that_nobody_reads() {
    interrupt(&["events", "run.vmtrace"], Streams::Full, &[]);
    interrupt(&["maps", "run.vmtrace"], Streams::Full, &[]);
    for (format, name) in [("csv", "-"), ("oracleGeneral", "/dev/stdout")] {
        let args = ["export", "run.vmtrace", "--format", format, "-o", name];
        interrupt(&args, Streams::Full, &[]);
    }
    interrupt(
        &[
            "reduce",
            "run.vmtrace",
            "--method",
            "sad",
            "--size",
            "9",
            "-o",
            "-",
        ],
        Streams::Full,
        &[],
    );
}

#[test]
fn standard_input_that_does_not_end() {
    interrupt(
        &["simulate", "--from", "txt", "-", "--size", "9"],
        Streams::Endless,
        &[],
    );
    interrupt(
        &["report", "--from", "txt", "-", "-o", "o"],
        Streams::Endless,
        &[],
    );
    let args = [
        "reduce", "--from", "txt", "-", "--method", "sad", "--size", "9", "-o", "o.csv",
    ];
    interrupt(&args, Streams::Endless, &[]);
}
