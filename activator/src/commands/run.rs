//! `activator run`

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{
    CREATION, Connect, budget, config, go_on, hold_signals, open_output, status_of, stop,
    virtual_time,
};
use crate::Io;
use crate::budget::Budget;
use crate::cli::RunArgs;
use crate::control::{Control, Scope, check_ready, start, window};
use crate::error::{BAD_TRACE, Errno, Failure, NOT_EXECUTABLE, NOT_FOUND};
use crate::keeper::{self, Keeper};
use crate::output::Output;
use crate::pace::Pace;
use crate::status::{State, Status};
use crate::summary::{self, Command, Ended};
use crate::sys::{self, Child, Exec, Held, Ready, Signals};
use crate::triggers::{Triggers, read_steps};

/// Time between two checks of whether the trace is still on.
const LOOK: Duration = Duration::from_secs(1);

/// Traces a command.
pub fn execute(args: &RunArgs, connect: Connect<'_>, io: &mut Io<'_>) -> Result<u8, Failure> {
    execute_with(args, connect, io, |status, command, pace| {
        let pace = pace.map(|pace| format!("slowdown   {}\n", pace.text(status)));
        summary::human(status, command) + &pace.unwrap_or_default()
    })
}

/// The same with another summary.
pub(super) fn execute_with(
    args: &RunArgs,
    connect: Connect<'_>,
    io: &mut Io<'_>,
    shown: impl Fn(&Status, Option<Command>, Option<&Pace>) -> String,
) -> Result<u8, Failure> {
    check_command(&args.command)?;
    let steps = args.windows.as_deref().map(read_steps).transpose()?;
    let triggers = args.triggers();
    let pieces = &args.trace.pieces;
    let held = [Triggers::signals(&triggers), keeper::signals(pieces)].concat();
    let mut signals = hold_signals(&held)?;
    let snapshots = keeper::prepare(&args.trace, args.quiet)?;
    let triggers = Triggers::new(steps.unwrap_or_default(), triggers)?;
    let control = connect()?;
    let control = control.as_ref();
    check_ready(control, &args.trace.sizes())?;
    let path = args.status_file.as_deref();
    let file = path.map(StatusFile::open).transpose()?;
    let (output, child, budget) = match begin(args, control, &mut signals, io) {
        Ok(begun) => begun,
        Err(failure) => {
            if let Some(file) = file {
                file.discard();
            }
            return Err(failure);
        }
    };
    // From here on, the trace is ended in every case.
    let begun = control.status().ok();
    let mut run = Run {
        control,
        uuid: begun.as_ref().map(|s| s.raw.uuid),
        name: begun.as_ref().map_or_else(|| output.name(), summary::trace),
        keeper: begun.and_then(|s| Keeper::new(pieces, snapshots, budget, &s, Some(CREATION))),
        output: Some(output),
        signals,
        child: child.release(),
        wait_all: args.wait_all,
        told: false,
        exec_error: None,
        misplaced: None,
        triggers,
    };
    run.triggers.begin(Instant::now());
    if let Err(e) = run.until_end(io) {
        io.note(&format!("can't wait for events: {e}"));
        run.child.reap(true);
    }
    let (status, cut_short) = run.end()?;
    if let Some(errno) = run.exec_error {
        if let Some(output) = run.output {
            output.discard();
        }
        return Err(cant_execute(&args.command[0], errno));
    }
    let unkept = run.end_pieces(&status, io);
    let pace = run.keeper.as_ref().and_then(Keeper::pace);

    let command = Command {
        ended: run.child.ended().unwrap_or(Ended::Exited(BAD_TRACE)),
        cut_short,
    };
    let json = || match pace {
        Some(pace) => pace.json(&status, summary::json(&status, Some(command))),
        None => summary::json(&status, Some(command)),
    };
    let text = match args.trace.json {
        true => json(),
        false => shown(&status, Some(command), pace),
    };
    let problems = summary::problems(&status, Some(command));
    if args.quiet {
        problems.iter().for_each(|p| io.note(p));
    } else {
        // If that fails, the failure cannot be reported.
        let _ = io.err.write_all(text.as_bytes());
    }
    if let Some(file) = file {
        file.write(&json())?;
    }
    match (run.misplaced, unkept) {
        (Some(failure), _) => Err(failure),
        (None, _) if !problems.is_empty() => Ok(BAD_TRACE),
        (None, Some(failure)) => Err(failure),
        (None, None) => Ok(command.ended.code()),
    }
}

/// Creates the output and the child, and starts tracing the child. If that fails, or a
/// signal comes meanwhile, both are removed.
fn begin(
    args: &RunArgs,
    control: &dyn Control,
    signals: &mut Signals,
    io: &mut Io<'_>,
) -> Result<(Output, Held, Option<Budget>), Failure> {
    let ticks = virtual_time(&args.trace, control);
    go_on(signals)?;
    let ticks = ticks?;
    let budget = budget(&args.trace, ticks, control);
    go_on(signals)?;
    let budget = budget?;
    let output = open_output(&args.trace, io)?;
    match begin_child(args, control, signals, ticks, &output) {
        Ok(child) => Ok((output, child, budget)),
        Err(failure) => {
            output.discard();
            Err(failure)
        }
    }
}

fn begin_child(
    args: &RunArgs,
    control: &dyn Control,
    signals: &mut Signals,
    virtual_time: Option<u32>,
    output: &Output,
) -> Result<Held, Failure> {
    let failed = |e: io::Error| Failure::usage(format!("can't create a child process: {e}"));
    if args.wait_all {
        sys::become_subreaper().map_err(failed)?;
    }
    let child = Held::new(args.command.clone(), signals).map_err(failed)?;
    let scope = Scope::Tree(child.pid());
    let mut config = config(&args.trace, scope, virtual_time, output);
    if args.is_on_request() {
        config.windows = Some(args.trace.windows_as(true));
    }
    if let Err(failure) = start(control, &config, output.fd()) {
        child.abandon();
        return Err(failure);
    }
    let begun = match args.is_on_request() && !args.begins_paused() {
        true => window(control, true),
        false => Ok(()),
    };
    // From here on, signals are for the command.
    if let Err(failure) = begun.and_then(|()| go_on(signals)) {
        let _ = stop(control);
        child.abandon();
        return Err(failure);
    }
    Ok(child)
}

/// The file that the final status goes to. Its old content is kept until then.
struct StatusFile {
    file: File,
    path: PathBuf,
    is_new: bool,
}

impl StatusFile {
    fn open(path: &Path) -> Result<Self, Failure> {
        let is_new = !path.exists();
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|e| {
            Failure::usage(format!("can't write the status to {}: {e}", path.display()))
        })?;
        Ok(Self {
            file,
            path: path.into(),
            is_new,
        })
    }

    fn write(mut self, status: &str) -> Result<(), Failure> {
        // This fails for a pipe, which has no length.
        let _ = self.file.set_len(0);
        self.file
            .write_all(status.as_bytes())
            .map_err(|e| Failure::usage(format!("can't write the status to its file: {e}")))
    }

    /// Restores the state before [`StatusFile::open`], because there was no trace.
    fn discard(self) {
        if self.is_new {
            let _ = fs::remove_file(self.path);
        }
    }
}

/// A command that is being traced.
struct Run<'a> {
    control: &'a dyn Control,
    /// The UUID of our trace, which distinguishes it from a trace that somebody starts after it.
    uuid: Option<[u8; 16]>,
    /// The output's, or that of the directory of the pieces.
    name: String,
    /// Of a trace that needs one.
    keeper: Option<Keeper>,
    /// Until the command runs.
    output: Option<Output>,
    signals: Signals,
    child: Child,
    wait_all: bool,
    /// Whether the user has been informed that tracing ended before the command.
    told: bool,
    exec_error: Option<i32>,
    misplaced: Option<Failure>,
    triggers: Triggers,
}

impl Run<'_> {
    /// Waits for the command, and with `wait_all` for its descendants.
    fn until_end(&mut self, io: &mut Io<'_>) -> io::Result<()> {
        let mut next_look = Instant::now() + LOOK;
        loop {
            let [exec, end] = self.child.fds();
            // Until the command runs, the output may still be removed.
            let keeper = self.keeper.as_ref().filter(|_| self.output.is_none());
            let [rotor, making] = keeper.map_or([None; 2], Keeper::fds);
            let next = [self.triggers.next_at(), keeper.and_then(Keeper::next_at)];
            let next = next.into_iter().flatten().fold(next_look, Instant::min);
            let ready = Ready::wait(
                &[exec, end, Some(self.signals.fd()), rotor, making],
                next.saturating_duration_since(Instant::now()),
            )?;
            if ready.is(0) {
                self.take_exec();
            }
            for begin in self.triggers.due(Instant::now()) {
                self.window(begin, io);
            }
            if self.signalled(io) {
                io.note("interrupted: the command's descendants go on untraced");
                return Ok(());
            }
            let is_running = self.output.is_none();
            if let Some(keeper) = self.keeper.as_mut().filter(|_| is_running) {
                keeper.look(self.control, io);
            }
            let over = if self.wait_all {
                self.child.reap_all()
            } else {
                self.child.reap(false);
                self.child.ended().is_some()
            };
            if over {
                // A child that has ended has reported its exec, perhaps after the last look.
                if self.child.fds()[0].is_some() {
                    self.take_exec();
                }
                return Ok(());
            }
            if Instant::now() >= next_look {
                self.look(io);
                next_look = Instant::now() + LOOK;
            }
        }
    }

    fn take_exec(&mut self) {
        match self.child.exec() {
            Exec::Done => {
                self.misplaced = self.output.take().and_then(|output| output.commit().err());
            }
            Exec::Failed(errno) => self.exec_error = Some(errno),
        }
    }

    /// Begins or ends a window.
    fn window(&self, begin: bool, io: &mut Io<'_>) {
        // Once tracing has ended, look() informs the user.
        if self.told {
            return;
        }
        if let Err(failure) = window(self.control, begin) {
            let what = if begin { "begins" } else { "ends" };
            io.note(&format!("no window {what}: {failure}"));
        }
    }

    /// Passes signals on; returns whether to stop waiting.
    fn signalled(&mut self, io: &mut Io<'_>) -> bool {
        let mut leave = false;
        while let Some(signal) = self.signals.next() {
            if self.keeper.as_mut().is_some_and(|k| k.signal(signal)) {
                continue;
            }
            if let Some(begin) = self.triggers.signal(signal) {
                self.window(begin, io);
                continue;
            }
            let alive = self.child.ended().is_none();
            match signal {
                libc::SIGCHLD => {}
                libc::SIGTERM | libc::SIGHUP if alive => self.child.signal(signal),
                // The terminal sends these to the command, too.
                libc::SIGINT | libc::SIGQUIT if alive => {}
                _ => leave = true,
            }
        }
        leave
    }

    fn is_ours(&self, status: &Status) -> bool {
        self.uuid.is_none_or(|uuid| uuid == status.raw.uuid)
    }

    /// Informs the user at once when tracing has ended before the command.
    fn look(&mut self, io: &mut Io<'_>) {
        if self.told {
            return;
        }
        // A failed request means nothing for the trace.
        let Ok(status) = self.control.status() else {
            return;
        };
        let why = match (self.is_ours(&status), status.state()) {
            (true, State::On) => return,
            (true, State::Failed) => {
                let why = status.failure().unwrap_or_default();
                format!("the output {} failed: {why}", self.name)
            }
            _ => "somebody ended the trace".to_owned(),
        };
        io.note(&format!("{why}; the command goes on untraced"));
        self.told = true;
    }

    /// Ends what was done about the pieces; gives what went wrong.
    fn end_pieces(&mut self, status: &Status, io: &mut Io<'_>) -> Option<Failure> {
        let keeper = self.keeper.as_mut()?;
        if let Some(ended) = self.child.ended() {
            keeper.exited(ended.code());
        }
        keeper.end(status, &mut self.signals, io)
    }

    /// Ends the trace; returns its counts, and whether somebody else had ended it.
    fn end(&self) -> Result<(Status, bool), Failure> {
        let status = status_of(self.control)?;
        if !self.is_ours(&status) {
            return Err(Failure::new(
                BAD_TRACE,
                format!(
                    "somebody ended the trace before the command ended, and started another one; \
                     `postproc info {}` shows what the trace contains",
                    self.name
                ),
            ));
        }
        if status.state() == State::Off {
            return Ok((status, true));
        }
        match stop(self.control)? {
            Some(status) => Ok((status, false)),
            // Somebody ended the trace between the two calls.
            None => Ok((status_of(self.control)?, true)),
        }
    }
}

/// Checks whether the command can be executed, before anything is created.
pub(super) fn check_command(command: &[OsString]) -> Result<(), Failure> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let name = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    check_command_in(name, &path)
}

fn check_command_in(name: &OsStr, path: &OsStr) -> Result<(), Failure> {
    let not_found = |hint: &str| {
        Err(Failure::new(
            NOT_FOUND,
            format!("{}: command not found{hint}", name.to_string_lossy()),
        ))
    };
    let not_executable = |why: &str| {
        Err(Failure::new(
            NOT_EXECUTABLE,
            format!("{}: {why}", name.to_string_lossy()),
        ))
    };
    if name.as_bytes().contains(&b'/') {
        let file = Path::new(name);
        return match fs::metadata(file) {
            Ok(meta) if meta.is_dir() => not_executable("is a directory"),
            Ok(_) if sys::may_execute(file) => Ok(()),
            Ok(_) => not_executable("is not executable: `chmod +x` it, or name its interpreter"),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                not_executable("permission denied")
            }
            Err(_) => not_found(""),
        };
    }
    let files: Vec<_> = std::env::split_paths(path)
        .map(|dir| dir.join(name))
        .filter(|file| file.is_file() && !name.is_empty())
        .collect();
    if files.iter().any(|file| sys::may_execute(file)) {
        Ok(())
    } else if files.is_empty() {
        not_found(if Path::new(name).is_file() {
            " in PATH; to run the file in this directory, put ./ before its name"
        } else {
            ""
        })
    } else {
        not_executable("is in PATH but not executable")
    }
}

/// The failure that only execve() finds.
pub(super) fn cant_execute(name: &OsStr, errno: i32) -> Failure {
    let (code, hint) = match errno {
        libc::ENOENT => (NOT_FOUND, " (its interpreter or loader is missing)"),
        _ => (NOT_EXECUTABLE, ""),
    };
    Failure::new(
        code,
        format!(
            "can't execute {}: {}{hint}",
            name.to_string_lossy(),
            Errno(errno)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Bench;
    use std::os::unix::fs::PermissionsExt;

    fn run(bench: &Bench, options: &[&str], command: &[&str]) -> crate::fake::Got {
        bench.activator(&[&["run", "-o", "t.vmt"], options, &["--"], command].concat())
    }

    #[test]
    fn exit_code_is_the_commands() {
        for (script, code, line) in [
            ("exit 0", 0, "command    exited with 0\n"),
            ("exit 3", 3, "command    exited with 3\n"),
            ("kill -9 $$", 137, "command    killed by signal 9\n"),
        ] {
            let bench = Bench::new();
            let got = run(&bench, &[], &["sh", "-c", script]);
            assert!(got.expect(code).err.starts_with(line), "{}", got.err);
            assert_eq!(got.out, "");
            assert_eq!((bench.fake.starts.get(), bench.fake.stops.get()), (1, 1));
            assert!(bench.path("t.vmt").exists());
        }
    }

    #[test]
    fn traced_before_it_is_executed() {
        let bench = Bench::new();
        let pid = bench.path("pid");
        let script = format!("echo $$ >{}", pid.display());
        let got = run(&bench, &["--json"], &["sh", "-c", &script]);
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).err).expect("JSON");
        let pid = fs::read_to_string(pid).expect("pid");
        assert_eq!(json["pid"].to_string(), pid.trim());
        assert_eq!(
            (&json["scope"], &json["command_exit_code"]),
            (&2.into(), &0.into())
        );
    }

    #[test]
    fn windows_begin_and_end_on_request() {
        let bench = Bench::new();
        let go = bench.path("go");
        let list = bench.path("list.csv");
        fs::write(&list, "0,1ms\n2ms,3ms\n").expect("written");
        let touch = format!("sleep 0.1; touch {}; sleep 0.3", go.display());
        let (go, list) = (format!("file:{}", go.display()), list.display().to_string());
        for (options, script, begun, ended) in [
            (&["--pausable"][..], "true", 1, 0),
            (&["--paused"], "true", 0, 0),
            (&["--pause-on", &go], touch.as_str(), 1, 1),
            (&["--resume-on", &go], &touch, 1, 0),
            (&["--resume-on", &go, "--repeat", "1"], &touch, 1, 0),
            (&["--windows", &list], "sleep 0.3", 2, 2),
            (&["--windows", &list, "--repeat", "2"], "sleep 0.3", 2, 2),
        ] {
            let _ = fs::remove_file(bench.path("go"));
            let all = [options, &["--json", "--force"]].concat();
            let got = run(&bench, &all, &["sh", "-c", script]);
            let json: serde_json::Value = serde_json::from_str(&got.expect(0).err).expect("JSON");
            assert_eq!(
                (&json["windows_begun"], &json["windows_ended"]),
                (&begun.into(), &ended.into()),
                "{options:?}"
            );
        }
        fs::write(bench.path("go"), "").expect("written");
        fs::write(bench.path("list.csv"), "2s,1s\n").expect("written");
        for (options, why) in [
            (&["--pause-on", &go][..], "exists already"),
            (&["--windows", &list], "list.csv: line 1: "),
            (&["--windows", "none.csv"], "can't read none.csv"),
            (&["--pause-on", "signal:KILL"], "signal:USR1"),
            (&["--paused", "--skip", "1s"], "cannot be used with"),
        ] {
            let got = run(&bench, &[options, &["--force"]].concat(), &["true"]);
            assert!(got.expect(2).err.contains(why), "{options:?}: {}", got.err);
        }
    }

    /// Runs a command that takes a while, with pieces in t.
    fn run_in_pieces(bench: &Bench, options: &[&str], script: &str) -> crate::fake::Got {
        let line = [
            &["run", "-o", "t", "--json"],
            options,
            &["--", "sh", "-c", script],
        ];
        bench.activator(&line.concat())
    }

    /// A script that ends when this is true of a file, and fails after a minute.
    fn until(bench: &Bench, test: &str) -> String {
        format!(
            "cd '{}'; for i in $(seq 3000); do [ {test} ] && exit 0; sleep 0.02; done; exit 9",
            bench.path("").display()
        )
    }

    fn files(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).expect("a directory");
        let mut names: Vec<_> = entries
            .map(|e| {
                e.expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("UTF-8")
            })
            .collect();
        names.sort();
        names
    }

    #[test]
    fn pieces_begin_by_size_and_by_time() {
        for (when, least) in [("64k", 2), ("100ms", 4), ("1G,200ms", 2)] {
            let bench = Bench::new();
            let begun = until(&bench, &format!("-s t/{least:05}.vmtrace"));
            let got = run_in_pieces(&bench, &["--rotate", when], &begun);
            let json: serde_json::Value = serde_json::from_str(&got.expect(0).err).expect("JSON");
            let last = json["piece"].as_u64().expect("a number");
            assert!(last >= least, "{when}: {last}");
            let want: Vec<_> = (0..=last).map(|n| format!("{n:05}.vmtrace")).collect();
            assert_eq!(files(&bench.path("t")), want);
        }
        let bench = Bench::new();
        run_in_pieces(&bench, &["--rotate", "1G"], "true").expect(0);
        assert_eq!(files(&bench.path("t")), ["00000.vmtrace"]);
    }

    #[test]
    fn rotations_that_fail_are_told_once() {
        let bench = Bench::new();
        bench.fake.refuse_rotations(&[libc::ENOSPC; 100]);
        let got = bench.activator(&[
            "run",
            "-o",
            "t",
            "--rotate",
            "100ms",
            "--",
            "sh",
            "-c",
            // The second one comes after a second, the third one after three.
            "sleep 2; exit 3",
        ]);
        let err = &got.expect(2).err;
        assert_eq!(
            err.matches("no piece begins: no room for ").count(),
            1,
            "{err}"
        );
        assert!(err.contains("free some space; the trace goes on in piece 0\n"));
        assert!(
            err.contains("\nactivator: 2 rotations failed, the last one, too: "),
            "{err}"
        );
        assert_eq!(files(&bench.path("t")), ["00000.vmtrace"]);
        // Once is no harm, if the next one does not fail.
        let bench = Bench::new();
        bench
            .fake
            .refuse_rotations(&[libc::EIO, libc::EBUSY, libc::EAGAIN]);
        let line = [
            "run", "-q", "-o", "t", "--rotate", "100ms", "--", "sh", "-c",
        ];
        let script = format!("({}); exit 3", until(&bench, "-s t/00001.vmtrace"));
        let got = bench.activator(&[&line[..], &[&script]].concat());
        assert!(
            got.expect(3).err.contains("Input/output error"),
            "{}",
            got.err
        );
        assert!(files(&bench.path("t")).len() > 1);
    }

    #[test]
    fn a_rotation_that_the_kernel_goes_on_with() {
        let bench = Bench::new();
        bench.fake.refuse_rotations(&[libc::EINPROGRESS]);
        bench.fake.rotated_after(20);
        // The kernel begins it with its first packet.
        let begun = until(&bench, "-s t/00001.vmtrace");
        let got = run_in_pieces(&bench, &["--rotate", "100ms"], &begun);
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).err).expect("JSON");
        assert!(json["piece"].as_u64() > Some(0), "{json}");
        // Or the trace ends before it has done so.
        let bench = Bench::new();
        bench.fake.refuse_rotations(&[libc::EINPROGRESS]);
        let made = until(&bench, "-e t/00001.vmtrace");
        run_in_pieces(&bench, &["--rotate", "100ms"], &made).expect(0);
        assert_eq!(files(&bench.path("t")), ["00000.vmtrace"]);
    }

    #[test]
    fn the_newest_pieces_are_kept() {
        let bench = Bench::new();
        let keep = ["--rotate", "100ms", "--keep", "1"];
        let got = run_in_pieces(&bench, &keep, &until(&bench, "-s t/00003.vmtrace"));
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).err).expect("JSON");
        let last = json["piece"].as_u64().expect("a number");
        let want: Vec<_> = (last - 1..=last)
            .map(|n| format!("{n:05}.vmtrace"))
            .collect();
        assert_eq!(files(&bench.path("t")), want);
    }

    #[test]
    fn snapshots_when_something_happens() {
        let bench = Bench::new();
        let go = bench.path("go");
        let touch = format!("sleep 0.2; touch {}; sleep 0.4; exit 3", go.display());
        let (go, rate) = (format!("file:{}", go.display()), "rate:1".to_owned());
        for (triggers, want, told) in [
            (&["exit:0"][..], 0, "{"),
            (
                &["exit:!0"],
                1,
                "activator: because of the exit code 3, pieces 0 to 0 (",
            ),
            (&[&go], 1, "activator: because of a file, pieces 0 to 0 ("),
            (&[&go, "exit:3"], 2, "activator: because of a file, "),
            (&[&rate], 1, "activator: because of 1"),
        ] {
            let _ = fs::remove_file(bench.path("go"));
            let _ = fs::remove_dir_all(bench.path("t"));
            let _ = fs::remove_dir_all(bench.path("t.snapshots"));
            let on = triggers.iter().flat_map(|t| ["--snapshot-on", t]);
            let all: Vec<_> = ["--rotate", "1G"].into_iter().chain(on).collect();
            let script = if triggers == [&rate] {
                "sleep 2.5; exit 3"
            } else {
                &touch
            };
            let got = run_in_pieces(&bench, &all, script);
            assert!(
                got.expect(3).err.starts_with(told),
                "{triggers:?}: {}",
                got.err
            );
            let into = bench.path("t.snapshots");
            let made: Vec<_> = (0..want).map(|n| format!("{n:05}")).collect();
            assert_eq!(into.exists(), want > 0);
            if want > 0 {
                assert_eq!(files(&into), made, "{triggers:?}");
                assert_eq!(files(&into.join("00000")), ["00000.vmtrace"]);
            }
            if want == 2 {
                // With the end of the trace.
                let both = ["00000.vmtrace", "00001.vmtrace"];
                assert_eq!(files(&into.join("00001")), both);
            }
        }
    }

    #[test]
    fn snapshots_have_a_limit() {
        let bench = Bench::new();
        let go = bench.path("go");
        let touch = format!("sleep 0.2; touch {}; sleep 0.4; exit 3", go.display());
        let go = format!("file:{}", go.display());
        let into = bench.path("all").to_string_lossy().into_owned();
        let options = [
            "--rotate",
            "1G",
            "--snapshot-on",
            &go,
            "--snapshot-on",
            "exit:3",
            "--snapshots",
            &into,
            "--snapshot-most",
            "1",
        ];
        let got = run_in_pieces(&bench, &options, &touch);
        let err = &got.expect(3).err;
        assert!(
            err.contains("activator: 1 triggers came after the last snapshot"),
            "{err}"
        );
        assert_eq!(files(&bench.path("all")), ["00000"]);
        // Where there is no room, that is told.
        let nowhere = bench.path("no/such").to_string_lossy().into_owned();
        let options = [
            "--rotate",
            "1G",
            "--snapshot-on",
            "exit:3",
            "--snapshots",
            &nowhere,
        ];
        let got = run_in_pieces(&bench, &options, "exit 3");
        assert!(got.expect(2).err.contains("there is no directory"));
        fs::write(bench.path("file"), "").expect("written");
        let file = bench.path("file").to_string_lossy().into_owned();
        let options = [
            "--rotate",
            "1G",
            "--snapshot-on",
            "exit:3",
            "--snapshots",
            &file,
        ];
        fs::remove_dir_all(bench.path("t")).expect("removed");
        let got = run_in_pieces(&bench, &options, "exit 3");
        assert!(
            got.expect(2).err.contains("no snapshot was made: "),
            "{}",
            got.err
        );
    }

    #[test]
    fn bad_trace_is_1_whatever_the_command_was() {
        for script in ["exit 0", "exit 3"] {
            let bench = Bench::new();
            bench.fake.change(|s| s.funny = 1);
            let got = run(&bench, &[], &["sh", "-c", script]);
            assert!(
                got.expect(1).err.contains("BAD        1 funny PTEs"),
                "{}",
                got.err
            );
            let bench = Bench::new();
            bench.fake.change(|s| s.funny = 1);
            let got = run(&bench, &["-q"], &["sh", "-c", script]);
            assert_eq!(
                got.expect(1).err,
                "activator: 1 funny PTEs: enabled pages that are not in the set\n"
            );
        }
    }

    #[test]
    fn sets_that_there_is_no_memory_for() {
        for (shared, code) in [(0, 3), (2, 1)] {
            let bench = Bench::new();
            bench.fake.change(|s| s.sets_shared = shared);
            let got = run(&bench, &["--set-per", "process"], &["sh", "-c", "exit 3"]);
            let told = "BAD        2 address spaces share set 0";
            assert_eq!(got.expect(code).err.contains(told), shared != 0);
            assert!(got.err.contains("\nsets       one for each process; "));
        }
    }

    #[test]
    fn quiet_and_status_file() {
        let bench = Bench::new();
        assert_eq!(run(&bench, &["-q"], &["true"]).expect(0).err, "");
        let file = bench.path("status");
        let name = file.to_str().expect("UTF-8");
        let got = run(&bench, &["--force", "--status-file", name], &["false"]);
        assert!(got.expect(1).err.starts_with("command    exited with 1\n"));
        let text = fs::read_to_string(&file).expect("status");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (&json["evms_size"], &json["command_exit_code"]),
            (&512.into(), &1.into())
        );

        let got = run(
            &bench,
            &["--force", "--status-file", "/no/such/file"],
            &["true"],
        );
        assert!(
            got.expect(2)
                .err
                .contains("can't write the status to /no/such/file")
        );
        assert_eq!(bench.fake.starts.get(), 2);
    }

    #[test]
    fn full_output_is_told_at_once() {
        let bench = Bench::new();
        // The look after the start is the first.
        bench.fake.full_after(2);
        let got = run(&bench, &[], &["sleep", "1.5"]);
        assert!(
            got.expect(1).err.starts_with("activator: the output "),
            "{}",
            got.err
        );
        assert!(got.err.contains(
            "t.vmt failed: No space left on device; the command goes on untraced\ncommand "
        ));
        assert_eq!(got.err.matches("activator: ").count(), 1);
        assert!(
            got.err
                .contains("BAD        the output failed: No space left on device\n")
        );
    }

    #[test]
    fn trace_that_somebody_ended() {
        let bench = Bench::new();
        bench.fake.off_after(2);
        let got = run(&bench, &[], &["sleep", "1.5"]);
        assert!(got.expect(1).err.starts_with(
            "activator: somebody ended the trace; the command goes on untraced\ncommand "
        ));
        assert!(
            got.err
                .ends_with("BAD        the trace was ended before the command ended\n"),
            "{}",
            got.err
        );
        assert_eq!(bench.fake.stops.get(), 0);
    }

    #[test]
    fn trace_of_somebody_else_is_left_alone() {
        let bench = Bench::new();
        bench.fake.replaced_after(2);
        let got = run(&bench, &[], &["true"]);
        assert!(
            got.expect(1)
                .err
                .contains("and started another one; `postproc info ")
        );
        assert_eq!(bench.fake.stops.get(), 0);
    }

    #[test]
    fn command_that_is_not_there() {
        let bench = Bench::new();
        let script = bench.path("script");
        let name = script.to_str().expect("UTF-8");
        fs::write(&script, "#!/no/such/interpreter\n").expect("write");
        for (command, code, want) in [
            (
                "no-such-command",
                127,
                "no-such-command: command not found\n",
            ),
            (
                "/no/such/command",
                127,
                "/no/such/command: command not found\n",
            ),
            ("", 127, ": command not found\n"),
            ("/", 126, "/: is a directory\n"),
            (name, 126, "is not executable: `chmod +x` it"),
        ] {
            let got = run(&bench, &[], &[command]);
            assert!(got.expect(code).err.contains(want), "{}", got.err);
            assert!(!bench.path("t.vmt").exists());
        }
        assert_eq!(bench.fake.starts.get(), 0);

        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
        let pieces = ["run", "-o", "d", "--rotate", "1G", "--", name];
        bench.activator(&pieces).expect(127);
        assert!(!bench.path("d").exists(), "no pieces of nothing");
        bench.fake.starts.set(0);
        bench.fake.stops.set(0);
        let got = run(&bench, &[], &[name]);
        assert!(
            got.expect(127)
                .err
                .contains("(its interpreter or loader is missing)"),
            "{}",
            got.err
        );
        assert_eq!((bench.fake.starts.get(), bench.fake.stops.get()), (1, 1));
        assert!(!bench.path("t.vmt").exists(), "no trace of nothing");
    }

    #[test]
    fn search_in_path() {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::write(dir.path().join("plain"), "").expect("write");
        let check = |name: &str| check_command_in(OsStr::new(name), dir.path().as_os_str());
        assert_eq!(check("plain").expect_err("refused").code, NOT_EXECUTABLE);
        assert_eq!(check("other").expect_err("refused").code, NOT_FOUND);
        // The tests run in the crate's directory.
        let here = check("Cargo.toml").expect_err("refused");
        assert!(here.message.ends_with("put ./ before its name"), "{here}");
    }

    #[test]
    fn refused_start_executes_nothing() {
        let bench = Bench::new();
        bench.fake.refuse_start(libc::ENOMEM);
        let made = bench.path("made");
        let got = run(&bench, &[], &["touch", made.to_str().expect("UTF-8")]);
        assert!(
            got.expect(2).err.contains("use a smaller -n"),
            "{}",
            got.err
        );
        assert!(!made.exists() && !bench.path("t.vmt").exists());
    }

    #[test]
    fn old_output_is_replaced_only_by_force() {
        let bench = Bench::new();
        fs::write(bench.path("t.vmt"), "old").expect("write");
        let got = run(&bench, &[], &["true"]);
        assert!(
            got.expect(2).err.contains("or --force to overwrite it"),
            "{}",
            got.err
        );
        run(&bench, &["--force"], &["true"]).expect(0);
        assert_eq!(fs::read(bench.path("t.vmt")).expect("read"), b"");
    }

    /// A program that makes fewer references if N is larger. A reference takes 1000 ns.
    fn references_for_n(n: u32) -> (u64, u64) {
        let references = 20_000_000 / u64::from(n);
        (references, 100_000_000 + references * 1000)
    }

    fn paced(bench: &Bench, options: &[&str]) -> serde_json::Value {
        let options = [&["--json", "--cost", "1000"], options].concat();
        let got = run(bench, &options, &["sleep", "1.2"]);
        serde_json::from_str(&got.expect(0).err).expect("JSON")
    }

    #[test]
    fn budget_changes_n() {
        let bench = Bench::new();
        bench.fake.program.set(references_for_n);
        let json = paced(&bench, &["--slowdown", "1.1"]);
        // 20,000,000 / N references take a tenth of 100 ms if N is 2,000.
        let n = json["evms_size"].as_u64().expect("a number");
        assert!((1000..4000).contains(&n), "{json}");
        let slowdown = json["slowdown"].as_f64().expect("a number");
        assert!((1.05..1.15).contains(&slowdown), "{json}");
        assert_eq!(
            (&json["slowdown_asked"], &json["slowdown_exceeded"]),
            (&1.1.into(), &false.into())
        );
        assert_eq!(
            (&json["evms_max"], &json["reference_ns"]),
            (&65536.into(), &1000.0.into())
        );
        // Without a budget, N stays.
        let got = run(&bench, &["--json", "--force"], &["sleep", "0.3"]);
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).err).expect("JSON");
        assert_eq!(
            (&json["evms_size"], &json["slowdown"]),
            (&512.into(), &json["none"])
        );
    }

    #[test]
    fn budget_that_the_largest_n_exceeds() {
        let bench = Bench::new();
        bench.fake.program.set(|_| (100_000, 200_000_000));
        let json = paced(&bench, &["--slowdown", "1.1", "--max", "1024"]);
        assert_eq!(
            (
                &json["evms_size"],
                &json["slowdown_exceeded"],
                &json["windows_begun"]
            ),
            (&1024.into(), &true.into(), &0.into())
        );
        let options = [
            "--slowdown",
            "1.1",
            "--memory",
            "8MiB",
            "--force",
            "--pausable",
        ];
        let json = paced(&bench, &options);
        assert_eq!(
            (&json["evms_size"], &json["evms_max"]),
            (&256.into(), &256.into())
        );
        assert!(json["windows_ended"].as_u64() > Some(0), "{json}");
        let options = [
            "--slowdown",
            "1.1",
            "--max",
            "1024",
            "--force",
            "--cost",
            "1000",
        ];
        let got = run(&bench, &options, &["sleep", "0.5"]);
        let told = ", at most 1.1 asked; 1000 ns for a reference, 600 ns for an event; N from 512 to 1,024, ";
        assert!(got.expect(0).err.contains(told), "{}", got.err);
        assert!(
            got.err.contains("give a larger --max, or --pausable"),
            "{}",
            got.err
        );
    }

    #[test]
    fn budget_without_a_cost() {
        let bench = Bench::new();
        // Nothing faults here, so no cost can be measured.
        let got = run(&bench, &["--slowdown", "1.1"], &["true"]);
        assert!(
            got.expect(2).err.contains("or give --cost NS"),
            "{}",
            got.err
        );
        assert!(!bench.path("t.vmt").exists());
        for wrong in ["1", "1.0", "0.5", "101", "x"] {
            let got = run(&bench, &["--slowdown", wrong], &["true"]);
            assert!(
                got.expect(2).err.contains("from 1.01 to 100"),
                "{}",
                got.err
            );
        }
        for more in [
            "--interval=1s",
            "--trace=1s",
            "--paused",
            "--resume-on=signal:USR1",
        ] {
            let got = run(&bench, &["--slowdown", "2", more], &["true"]);
            assert!(
                got.expect(2).err.contains("cannot be used with"),
                "{more}: {}",
                got.err
            );
        }
    }

    #[test]
    fn memory_gives_n() {
        let bench = Bench::new();
        for (memory, n) in [("16MiB", 512), ("1024", 128), ("4M", 128)] {
            let options = ["--json", "--force", "--memory", memory];
            let got = run(&bench, &options, &["true"]);
            let json: serde_json::Value = serde_json::from_str(&got.expect(0).err).expect("JSON");
            assert_eq!(json["evms_size"], n);
        }
        let got = run(&bench, &["--memory", "65536", "-n", "64"], &["true"]);
        assert!(
            got.expect(2).err.contains("cannot be used with"),
            "{}",
            got.err
        );
        let got = run(&bench, &["--memory", "100", "--force"], &["true"]);
        assert!(
            got.expect(2)
                .err
                .contains("N=12 is too small: this machine needs at least 32; use --memory 256 or"),
            "{}",
            got.err
        );
    }
}
