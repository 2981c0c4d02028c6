//! `activator run` as a process of its own, with signals and orphans, on a
//! kernel in memory: this program starts itself again as the activator.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio, exit};
use std::rc::Rc;
use std::time::{Duration, Instant};

use activator::fake::Fake;
use activator::{Io, run};
use rust_mm_trace::uapi::vmtrace_count;

const ARGS: &str = "ACTIVATOR_TEST_ARGS";
/// After how many looks somebody ends the trace.
const OFF_AFTER: &str = "ACTIVATOR_TEST_OFF_AFTER";
/// How many milliseconds a start takes.
const START_TAKES: &str = "ACTIVATOR_TEST_START_TAKES";

/// Tests by name, as the usual harness would list them. That one runs them
/// beside a main thread, which signals would reach; here the activator must
/// have the process to itself.
macro_rules! tests {
    ($($name:ident)*) => {
        const TESTS: &[(&str, fn())] = &[$((stringify!($name), $name)),*];
    };
}

tests! {
    output_is_the_commands_alone
    termination_is_passed_on
    interrupts_are_left_to_the_command
    command_gets_its_signals_back
    ends_with_the_command_itself
    wait_all_waits_for_orphans
    wait_all_can_be_interrupted
    killed_activator_leaves_the_command_alone
    a_signal_before_the_start_leaves_nothing
    a_signal_ends_a_watch
    a_recording_ends_at_a_signal
    a_recording_ends_with_its_process
    a_recording_of_a_command
    signals_begin_and_end_windows
    a_trigger_before_the_start_ends_nothing
    on_leaves_a_keeper_behind
    on_leaves_a_keeper_of_a_budget_behind
    a_keeper_takes_snapshots
    a_signal_before_the_start_leaves_no_keeper
    a_signal_is_a_trigger_of_run
    a_signal_ends_top_and_its_trace
    a_signal_for_top_reaches_its_command
    top_ends_when_its_reader_does
    top_keeps_its_output_for_itself
    top_is_redrawn_on_a_terminal
}

fn main() {
    if let Ok(args) = std::env::var(ARGS) {
        be_activator(&args);
    }
    // Under nohup, or in the background, the programs of these tests would ignore signals.
    // SAFETY: No thread runs yet, and the default needs no handler.
    unsafe {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
    let filters: Vec<_> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(f));
    let (mut passed, mut failed) = (0, 0);
    println!(
        "\nrunning {} tests",
        TESTS.iter().filter(|t| wanted(t.0)).count()
    );
    for (name, test) in TESTS.iter().filter(|t| wanted(t.0)) {
        let good = std::panic::catch_unwind(test).is_ok();
        println!("test {name} ... {}", if good { "ok" } else { "FAILED" });
        *if good { &mut passed } else { &mut failed } += 1;
    }
    let filtered = TESTS.len() - passed - failed;
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {filtered} \
         filtered out\n",
        if failed == 0 { "ok" } else { "FAILED" }
    );
    exit(if failed == 0 { 0 } else { 101 });
}

/// References of a process whose name is not for terminals.
const COUNT: vmtrace_count = vmtrace_count {
    reads: 100,
    writes: 20,
    fetches: 3,
    kernel: 4,
    dev: 0,
    ino: 0,
    mm: 5,
    pid: 77,
    kind: 0,
    pad: 0,
    comm: [27, 91, 50, 74, 120, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    name: [b'a' as libc::c_char; 48],
};

fn be_activator(args: &str) -> ! {
    let fake = Rc::new(Fake::default());
    if let Some(ms) = std::env::var(START_TAKES)
        .ok()
        .and_then(|ms| ms.parse().ok())
    {
        fake.start_takes.set(Duration::from_millis(ms));
    }
    if let Some(looks) = std::env::var(OFF_AFTER)
        .ok()
        .and_then(|looks| looks.parse().ok())
    {
        fake.off_after(looks);
    }
    if args.contains("\ntop\n") {
        let process = |pid| vmtrace_count {
            mm: pid,
            pid,
            ..COUNT
        };
        fake.count([(77..117).map(process).collect()]);
    }
    if args.contains("--watch") {
        // A trace that somebody has started.
        fake.boot_early();
    }
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let code = run(
        args.split('\n').map(Into::into),
        &|_| Ok(Box::new(fake.clone())),
        &mut Io {
            out: &mut out,
            err: &mut err,
            background: true,
            is_stdout: true,
            name: activator::Name::Activator,
        },
    );
    let _ = writeln!(
        err,
        "starts {} stops {}",
        fake.starts.get(),
        fake.stops.get()
    );
    exit(code.into());
}

struct Activator {
    child: Child,
    dir: tempfile::TempDir,
    began: Instant,
}

impl Activator {
    /// Starts `activator run` on a shell script that is in its directory.
    fn run(options: &[&str], script: &str) -> Self {
        Self::start(
            &[&["run"], options, &["--", "sh", "-c", script]].concat(),
            0,
        )
    }

    /// Starts the activator on a machine where a start takes so long.
    fn start(args: &[&str], start_takes_ms: u32) -> Self {
        let dir = tempfile::tempdir().expect("tempdir");
        let args = [&["activator"], args].concat();
        let child = Command::new(std::env::current_exe().expect("own path"))
            .env(ARGS, args.join("\n"))
            .env(START_TAKES, start_takes_ms.to_string())
            .current_dir(&dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        Self {
            child,
            dir,
            began: Instant::now(),
        }
    }

    fn exists(&self, name: &str) -> bool {
        self.dir.path().join(name).exists()
    }

    fn wait_for(&self, name: &str) {
        while !self.exists(name) {
            assert!(
                self.began.elapsed() < Duration::from_secs(20),
                "{name} did not come"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let done = Command::new("sh")
            .args(["-c", "kill -s \"$0\" \"$1\"", name, &pid])
            .status();
        assert!(done.expect("kill").success());
    }

    /// Waits for its end; expects that it stopped the trace it started.
    fn end(mut self, code: i32) -> (String, String, tempfile::TempDir) {
        let (mut out, mut err) = (String::new(), String::new());
        let status = self.child.wait().expect("wait");
        self.child
            .stderr
            .take()
            .expect("piped")
            .read_to_string(&mut err)
            .expect("UTF-8");
        self.child
            .stdout
            .take()
            .expect("piped")
            .read_to_string(&mut out)
            .expect("UTF-8");
        assert_eq!(status.code(), Some(code), "{out}\n{err}");
        assert!(err.ends_with("starts 1 stops 1\n"), "{err}");
        (out, err, self.dir)
    }
}

fn output_is_the_commands_alone() {
    let (out, err, _dir) = Activator::run(&[], "echo result; echo problem >&2; exit 5").end(5);
    assert_eq!(out, "result\n");
    assert!(
        err.starts_with("problem\ncommand    exited with 5\n"),
        "{err}"
    );
}

fn termination_is_passed_on() {
    for (signal, number) in [("TERM", 15), ("HUP", 1)] {
        let activator = Activator::run(&[], "touch ready; exec sleep 20");
        activator.wait_for("ready");
        activator.signal(signal);
        let (_, err, _dir) = activator.end(128 + number);
        assert!(
            err.starts_with(&format!("command    killed by signal {number}\n")),
            "{err}"
        );
    }
}

fn interrupts_are_left_to_the_command() {
    for signal in ["INT", "QUIT"] {
        let script = "touch ready; while ! [ -e go ]; do sleep 0.05; done; exit 7";
        let activator = Activator::run(&[], script);
        activator.wait_for("ready");
        activator.signal(signal);
        std::thread::sleep(Duration::from_millis(100));
        std::fs::write(activator.dir.path().join("go"), "").expect("write");
        activator.end(7);
    }
}

fn command_gets_its_signals_back() {
    // SIGPIPE is 1 << 12 in the masks; a Rust program ignores it.
    let script = "sed -n 's/^Sig\\(Blk\\|Ign\\):/\\1/p' /proc/self/status";
    let (out, _, _dir) = Activator::run(&[], script).end(0);
    let mask = |line: &str| u64::from_str_radix(line[3..].trim(), 16).expect("hex");
    // A shell starts background jobs with SIGINT and SIGQUIT ignored, this test
    // among them perhaps; the command then has them as they were.
    let own = fs::read_to_string("/proc/self/status").expect("procfs");
    let inherited = own
        .lines()
        .find_map(|l| l.strip_prefix("Sig").filter(|l| l.starts_with("Ign:")))
        .map(|l| mask(&l.replacen(':', "", 1)) & 0b111)
        .expect("SigIgn");
    for line in out
        .lines()
        .filter(|l| l.starts_with("Blk") || l.starts_with("Ign"))
    {
        let expected = if line.starts_with("Ign") {
            inherited
        } else {
            0
        };
        assert_eq!(
            mask(line) & (1 << 12 | 1 << 16 | 1 << 14 | 0b111),
            expected,
            "{line}"
        );
    }
    assert!(out.contains("Blk") && out.contains("Ign"), "{out}");
}

fn ends_with_the_command_itself() {
    let script = "(sleep 0.7; touch late) >/dev/null 2>&1 & exit 3";
    let (.., dir) = Activator::run(&[], script).end(3);
    assert!(!dir.path().join("late").exists());
    // The directory is to be there for the straggler.
    std::thread::sleep(Duration::from_secs(1));
}

fn wait_all_waits_for_orphans() {
    // The inner shell ends at once, so its child becomes an orphan.
    let script = "sh -c '(sleep 0.7; touch late) &' >/dev/null 2>&1; exit 3";
    let (_, err, dir) = Activator::run(&["--wait-all"], script).end(3);
    assert!(dir.path().join("late").exists(), "{err}");
}

fn wait_all_can_be_interrupted() {
    let script = "sleep 5 >/dev/null 2>&1 & touch ready; exit 3";
    let activator = Activator::run(&["--wait-all"], script);
    activator.wait_for("ready");
    std::thread::sleep(Duration::from_millis(300));
    activator.signal("INT");
    let began = activator.began;
    let (_, err, _dir) = activator.end(3);
    assert!(began.elapsed() < Duration::from_secs(4));
    assert!(
        err.starts_with("activator: interrupted: the command's descendants go on untraced\n"),
        "{err}"
    );
}

fn killed_activator_leaves_the_command_alone() {
    let mut activator = Activator::run(&[], "touch ready; sleep 0.5; touch done");
    activator.wait_for("ready");
    activator.child.kill().expect("kill");
    activator.child.wait().expect("wait");
    activator.wait_for("done");
}

fn a_signal_before_the_start_leaves_nothing() {
    let run = ["run", "--status-file", "s", "--", "touch", "made"];
    let measured = ["run", "--virtual-time", "--status-file", "s", "--", "true"];
    let on = ["on", "--all"];
    for (args, sign) in [
        (&run[..], "trace.vmt"),
        (&measured, "s"),
        (&on, "trace.vmt"),
    ] {
        for (signal, number) in [("INT", 2), ("TERM", 15), ("HUP", 1), ("QUIT", 3)] {
            let mut activator = Activator::start(args, 500);
            activator.wait_for(sign);
            activator.signal(signal);
            let sent = Instant::now();
            let status = activator.child.wait().expect("wait");
            assert!(sent.elapsed() < Duration::from_secs(1), "{args:?} {signal}");
            let mut err = String::new();
            let mut stderr = activator.child.stderr.take().expect("piped");
            stderr.read_to_string(&mut err).expect("UTF-8");
            assert_eq!(
                status.code(),
                Some(128 + number),
                "{args:?} {signal}: {err}"
            );
            assert_eq!(
                err,
                format!(
                    "activator: ended by SIG{signal} before the trace began; nothing is left \
                     behind\nstarts 1 stops 1\n"
                ),
                "{args:?}"
            );
            let left = fs::read_dir(activator.dir.path()).expect("dir").count();
            assert_eq!(left, 0, "{args:?} {signal}");
        }
    }
}

fn signals_begin_and_end_windows() {
    let on_signals = "--resume-on signal:USR1 --pause-on signal:USR2 --repeat 1 --status-file s";
    let options: Vec<_> = on_signals.split(' ').collect();
    // The activator is the parent of the command.
    let script = "kill -USR1 $PPID; sleep 0.2; kill -USR2 $PPID; sleep 0.2; exit 7";
    let mut activator = Activator::run(&options, script);
    let status = activator.child.wait().expect("wait");
    assert_eq!(status.code(), Some(7));
    let json = fs::read_to_string(activator.dir.path().join("s")).expect("a status");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&json["windows_begun"], &json["windows_ended"]),
        (&1.into(), &1.into())
    );
}

fn a_trigger_before_the_start_ends_nothing() {
    let mut activator = Activator::start(
        &["run", "--resume-on", "signal:USR1", "--", "touch", "made"],
        500,
    );
    activator.wait_for("trace.vmt");
    activator.signal("USR1");
    let status = activator.child.wait().expect("wait");
    assert_eq!(status.code(), Some(0));
    assert!(activator.exists("made"));
}

fn a_signal_ends_a_watch() {
    use std::os::unix::process::ExitStatusExt;
    for (signal, number) in [("INT", 2), ("TERM", 15)] {
        let mut activator = Activator::start(&["status", "--watch=30"], 0);
        let mut line = [0; 1];
        let mut out = activator.child.stdout.take().expect("piped");
        out.read_exact(&mut line).expect("a line");
        activator.signal(signal);
        let sent = Instant::now();
        let status = activator.child.wait().expect("wait");
        assert!(sent.elapsed() < Duration::from_secs(1));
        // Shells report it as 128 and the number.
        assert_eq!(status.signal(), Some(number));
    }
}

/// Waits for a message.
fn first_message(activator: &mut Activator) -> String {
    let err = activator.child.stderr.as_mut().expect("piped");
    let (mut line, mut byte) = (Vec::new(), [0]);
    while byte != *b"\n" {
        err.read_exact(&mut byte).expect("a message");
        line.extend(byte);
    }
    String::from_utf8(line).expect("UTF-8")
}

fn a_recording_ends_at_a_signal() {
    for signal in ["INT", "TERM"] {
        let mut activator = Activator::start(&["record", "--all"], 0);
        let begun = first_message(&mut activator);
        assert!(begun.ends_with("; Ctrl-C ends it\n"), "{begun}");
        activator.signal(signal);
        let (out, err, dir) = activator.end(0);
        assert_eq!(out, "", "{signal}");
        assert!(err.starts_with("trace.vmt: "), "{err}");
        assert!(err.contains("next:\n  postproc check trace.vmt\n"), "{err}");
        assert!(dir.path().join("trace.vmt").exists());
    }
}

fn a_recording_ends_with_its_process() {
    let mut process = Command::new("sleep").arg("1000").spawn().expect("sleep");
    let pid = process.id().to_string();
    let mut activator = Activator::start(&["record", "-p", &pid], 0);
    let begun = first_message(&mut activator);
    assert!(begun.contains(&pid), "{begun}");
    process.kill().expect("kill");
    let (_, err, _dir) = activator.end(0);
    process.wait().expect("wait");
    assert!(err.contains("next:\n"), "{err}");
}

fn a_recording_of_a_command() {
    let activator = Activator::start(
        &["record", "-n", "64", "sh", "-c", "echo result; exit 5"],
        0,
    );
    let (out, err, _dir) = activator.end(5);
    assert_eq!(out, "result\n");
    assert!(err.starts_with("trace.vmt: "), "{err}");
    assert!(err.contains("next:\n  postproc check trace.vmt\n"), "{err}");
}

/// The arguments of `top` for intervals that are short, and with JSON.
const TOP: [&str; 6] = ["top", "--cost", "500", "--json", "-d", "0.05"];

/// Waits for the first interval of `top`.
fn first_line(activator: &mut Activator) -> std::process::ChildStdout {
    let mut out = activator.child.stdout.take().expect("piped");
    let mut byte = [0; 1];
    while byte != *b"\n" {
        out.read_exact(&mut byte).expect("a line");
    }
    out
}

/// Waits for the end of `top`, which has ended the trace that it began, within a second.
fn end_of_top(mut activator: Activator, code: i32, told: &str) {
    let began = Instant::now();
    let status = activator.child.wait().expect("wait");
    assert!(began.elapsed() < Duration::from_secs(3));
    let mut err = String::new();
    let mut stderr = activator.child.stderr.take().expect("piped");
    stderr.read_to_string(&mut err).expect("UTF-8");
    assert_eq!(status.code(), Some(code), "{err}");
    assert_eq!(err, format!("{told}starts 1 stops 1\n"));
}

fn a_signal_ends_top_and_its_trace() {
    for (signal, number) in [("INT", 2), ("TERM", 15), ("HUP", 1), ("QUIT", 3)] {
        let mut activator = Activator::start(&TOP, 0);
        let _out = first_line(&mut activator);
        activator.signal(signal);
        end_of_top(activator, 128 + number, "");
    }
}

fn a_signal_for_top_reaches_its_command() {
    let untraced = "activator: the command goes on untraced\n";
    for (signal, script, code, told) in [
        ("TERM", "exec sleep 20", 143, ""),
        (
            "HUP",
            "trap 'exit 7' HUP; while :; do sleep 0.05; done",
            7,
            "",
        ),
        (
            "TERM",
            "trap '' TERM; while [ ! -e go ]; do sleep 0.05; done; touch gone",
            143,
            untraced,
        ),
        // The terminal would send it to the command, too.
        (
            "INT",
            "while [ ! -e go ]; do sleep 0.05; done; touch gone",
            130,
            untraced,
        ),
    ] {
        let script = format!("touch ready; exec >/dev/null 2>&1; {script}");
        let command = ["--", "sh", "-c", &script];
        let mut activator = Activator::start(&[&TOP[..], &command].concat(), 0);
        let _out = first_line(&mut activator);
        activator.wait_for("ready");
        std::thread::sleep(Duration::from_millis(100));
        activator.signal(signal);
        let dir = activator.dir.path().to_owned();
        let kept = std::mem::replace(&mut activator.dir, tempfile::tempdir().expect("tempdir"));
        end_of_top(activator, code, told);
        fs::write(dir.join("go"), "").expect("written");
        if !told.is_empty() {
            let began = Instant::now();
            while !dir.join("gone").exists() {
                assert!(began.elapsed() < Duration::from_secs(20), "{script}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        drop(kept);
    }
}

fn top_ends_when_its_reader_does() {
    // It notices that before the interval is over.
    for delay in ["0.05", "600"] {
        let args = ["top", "--cost", "5", "-d", delay];
        let mut activator = Activator::start(&args, 0);
        if delay != "600" {
            drop(first_line(&mut activator));
        }
        drop(activator.child.stdout.take());
        end_of_top(activator, 0, "");
    }
}

fn top_keeps_its_output_for_itself() {
    let once = ["top", "--cost", "5", "--once", "--json", "--"];
    let command = ["sh", "-c", "echo result; exit 3"];
    let activator = Activator::start(&[&once[..], &command].concat(), 0);
    let (out, err, _dir) = activator.end(3);
    assert_eq!(out.lines().count(), 1);
    let json: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(json["processes"][0]["pid"], 77);
    assert_eq!(err, "result\nstarts 1 stops 1\n");
}

/// Both ends of a terminal with so many columns and lines.
fn terminal(columns: u16, lines: u16) -> (fs::File, fs::File) {
    use std::os::fd::FromRawFd;
    let (mut ours, mut theirs) = (-1, -1);
    let size = libc::winsize {
        ws_row: lines,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let (name, termios) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the pointers are to what the call wants, or null.
    let got = unsafe { libc::openpty(&mut ours, &mut theirs, name, termios, &size) };
    assert_eq!(got, 0);
    // SAFETY: the call has made both, and nothing else owns them.
    unsafe { (fs::File::from_raw_fd(ours), fs::File::from_raw_fd(theirs)) }
}

fn top_is_redrawn_on_a_terminal() {
    let (mut ours, theirs) = terminal(60, 10);
    let dir = tempfile::tempdir().expect("tempdir");
    let line = "activator top --cost 5 -d 0.05 -- sh -c";
    let mut args: Vec<_> = line.split(' ').collect();
    // Neither the terminal nor anybody else gets what the command writes.
    args.push("echo result; while :; do sleep 0.1; done");
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .env(ARGS, args.join("\n"))
        .env("TERM", "xterm")
        .current_dir(&dir)
        .stdout(theirs)
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut got = Vec::new();
    let mut part = [0; 4096];
    while got.windows(3).filter(|w| w == b"\x1b[H").count() < 3 {
        let n = ours.read(&mut part).expect("read");
        got.extend_from_slice(&part[..n]);
    }
    let pid = libc::pid_t::try_from(child.id()).expect("a pid");
    // SAFETY: numbers only. The child was not waited for.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    // After the end of the child, reading fails.
    while let Ok(n @ 1..) = ours.read(&mut part) {
        got.extend_from_slice(&part[..n]);
    }
    assert_eq!(child.wait().expect("wait").code(), Some(143));
    let mut err = String::new();
    let mut stderr = child.stderr.take().expect("piped");
    stderr.read_to_string(&mut err).expect("UTF-8");
    assert_eq!(err, "starts 1 stops 1\n");
    let got = String::from_utf8(got).expect("UTF-8");
    let begin = "\x1b[?25l\x1b[?7l\x1b[2J\x1b[H";
    assert!(got.starts_with(begin), "{got:?}");
    assert!(got.ends_with("\x1b[J\x1b[?7h\x1b[?25h"), "{got:?}");
    assert!(
        !got.contains("result") && !got.contains("\x1b[2Jx"),
        "{got:?}"
    );
    assert!(got.contains("     77 "), "{got:?}");
    for frame in got.split("\x1b[H").skip(1) {
        let (frame, _) = frame.split_once("\x1b[J").expect("an end");
        let lines: Vec<_> = frame
            .lines()
            .map(|l| l.trim_end_matches(['\r', '\x1b', '[', 'K']))
            .collect();
        assert!(lines.len() <= 9, "{frame:?}");
        assert!(lines.iter().all(|l| l.chars().count() <= 60), "{frame:?}");
    }
}

/// A trace in pieces that `on` has started, in a directory of its own.
struct Kept {
    dir: tempfile::TempDir,
    /// The process that begins the pieces.
    keeper: u32,
}

impl Kept {
    fn on(more: &[&str], off_after: u32) -> Self {
        Self::on_with(&[&["--rotate", "100ms"], more].concat(), off_after)
    }

    fn on_with(more: &[&str], off_after: u32) -> Self {
        let dir = tempfile::tempdir().expect("tempdir");
        let on = ["activator", "on", "--all", "-o", "t"];
        let output = Command::new(std::env::current_exe().expect("own path"))
            .env(ARGS, [&on[..], more].concat().join("\n"))
            .env(OFF_AFTER, off_after.to_string())
            .current_dir(&dir)
            .output()
            .expect("runs");
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        let pid = said
            .split_once("; process ")
            .and_then(|(_, rest)| rest.split_once(' '));
        let keeper = pid.and_then(|(pid, _)| pid.parse().ok());
        let keeper = keeper.unwrap_or_else(|| panic!("{said}"));
        Self { dir, keeper }
    }

    fn is_alive(&self) -> bool {
        // Nobody may wait for it here, so a zombie has ended.
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.keeper));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn wait_for(&self, what: &str, done: impl Fn() -> bool) {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.keeper.to_string();
        let done = Command::new("sh")
            .args(["-c", "kill -s \"$0\" \"$1\"", name, &pid])
            .status();
        assert!(done.expect("kill").success());
    }

    fn files(&self, directory: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.dir.path().join(directory)) else {
            return Vec::new();
        };
        let name = |e: std::io::Result<fs::DirEntry>| e.expect("entry").file_name();
        let mut names: Vec<_> = entries
            .map(|e| name(e).into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    }
}

fn on_leaves_a_keeper_behind() {
    // It ends with the trace, and leaves nothing but pieces.
    let kept = Kept::on(&[], 15);
    kept.wait_for("the keeper ends", || !kept.is_alive());
    let files = kept.files("t");
    let want: Vec<_> = (0..files.len())
        .map(|n| format!("{n:05}.vmtrace"))
        .collect();
    assert_eq!(files, want);
    assert!(files.len() > 2, "{files:?}");

    // If it is told to end, the trace goes on in the last piece.
    let kept = Kept::on(&[], 100_000);
    kept.wait_for("pieces", || kept.files("t").len() > 2);
    assert!(kept.is_alive());
    kept.signal("HUP");
    let files = kept.files("t").len();
    kept.wait_for("more pieces", || kept.files("t").len() > files);
    kept.signal("TERM");
    kept.wait_for("the keeper ends", || !kept.is_alive());
    let log = kept.dir.path().join("t/.keeper.log");
    let log = fs::read_to_string(log).expect("a log");
    assert_eq!(
        log,
        "activator: ended by a signal: nobody rotates this trace any more\n"
    );
}

fn on_leaves_a_keeper_of_a_budget_behind() {
    let budget = ["--slowdown", "1.1", "--cost", "800"];
    let kept = Kept::on_with(&budget, 15);
    kept.wait_for("the keeper ends", || !kept.is_alive());
    assert_eq!(kept.files(""), ["t"]);

    let kept = Kept::on_with(&budget, 100_000);
    kept.signal("HUP");
    assert!(kept.is_alive());
    kept.signal("TERM");
    kept.wait_for("the keeper ends", || !kept.is_alive());
    let log = fs::read_to_string(kept.dir.path().join("t.keeper.log")).expect("a log");
    assert_eq!(
        log,
        "activator: ended by a signal: nobody changes N any more\n"
    );
}

fn a_keeper_takes_snapshots() {
    let kept = Kept::on(
        &[
            "--keep",
            "1",
            "--snapshot-on",
            "signal:USR2",
            "--snapshot-most",
            "2",
        ],
        100_000,
    );
    kept.wait_for("old pieces go", || {
        kept.files("t")
            .first()
            .is_some_and(|f| f != "00000.vmtrace")
    });
    for count in 1..=2 {
        kept.signal("USR2");
        kept.wait_for("a snapshot", || kept.files("t.snapshots").len() == count);
    }
    let made = kept.files("t.snapshots");
    assert_eq!(made, ["00000", "00001"]);
    assert!(!kept.files("t.snapshots/00000").is_empty());
    // There are to be no more.
    kept.signal("USR2");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(kept.files("t.snapshots").len(), 2);
    kept.signal("TERM");
    kept.wait_for("the keeper ends", || !kept.is_alive());
}

fn a_signal_before_the_start_leaves_no_keeper() {
    let on = ["on", "--all", "--rotate", "1s", "-o", "t"];
    for (signal, number) in [("INT", 2), ("TERM", 15), ("HUP", 1), ("QUIT", 3)] {
        let mut activator = Activator::start(&on, 500);
        activator.wait_for("t/00000.vmtrace");
        activator.signal(signal);
        let status = activator.child.wait().expect("wait");
        let mut err = String::new();
        let mut stderr = activator.child.stderr.take().expect("piped");
        stderr.read_to_string(&mut err).expect("UTF-8");
        assert_eq!(status.code(), Some(128 + number), "{signal}: {err}");
        let told = format!("activator: ended by SIG{signal} before the trace began; nothing");
        assert!(err.starts_with(&told), "{err}");
        let left = fs::read_dir(activator.dir.path()).expect("dir").count();
        assert_eq!(left, 0, "{signal}");
    }
}

fn a_signal_is_a_trigger_of_run() {
    let script = "touch ready; while ! [ -e t.snapshots/00000 ]; do sleep 0.05; done; exit 7";
    let options = ["--rotate", "1G", "-o", "t", "--snapshot-on", "signal:USR2"];
    let activator = Activator::run(&options, script);
    activator.wait_for("ready");
    activator.signal("USR2");
    let (_, err, _dir) = activator.end(7);
    let told = "activator: because of a signal, pieces 0 to 0 (";
    assert!(err.starts_with(told), "{err}");
}
