//! What looks after a trace in pieces as long as it is on: it begins pieces, removes old ones, and
//! takes snapshots. `run` does so while it waits for its command. `on` leaves a process behind for
//! it, which is the one that started the trace: a trace of all processes leaves that process out.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Io;
use crate::cli::{PiecesArgs, TraceArgs};
use crate::control::Control;
use crate::error::Failure;
use crate::rotate::Rotor;
use crate::snapshots::{MOST, Snapshots, plain};
use crate::status::Status;
use crate::sys::{Ready, Signals, Watched};
use crate::triggers::Triggers;

/// The file in the directory of the pieces that has the errors of a process in the background.
pub const LOG: &str = ".keeper.log";

/// Looks after a trace in pieces.
#[derive(Debug)]
pub struct Keeper {
    rotor: Rotor,
    snapshots: Option<Snapshots>,
}

/// Signals that are triggers of snapshots.
pub fn signals(args: &PiecesArgs) -> Vec<libc::c_int> {
    Triggers::signals(&plain(&args.snapshot_on))
}

/// Prepares for what snapshots are taken for, before there is a trace.
pub fn prepare(args: &TraceArgs, quiet: bool) -> Result<Option<Snapshots>, Failure> {
    let pieces = &args.pieces;
    if pieces.snapshot_on.is_empty() {
        return Ok(None);
    }
    let beside = || {
        let mut name = args.output.file_name().unwrap_or_default().to_owned();
        name.push(".snapshots");
        args.output.with_file_name(name)
    };
    let into = pieces.snapshots.clone().unwrap_or_else(beside);
    let into = std::path::absolute(&into)
        .map_err(|e| Failure::usage(format!("{}: {e}", into.display())))?;
    let parent = into.parent().unwrap_or(Path::new("/"));
    if !parent.is_dir() {
        return Err(Failure::usage(format!(
            "there is no directory {} for --snapshots",
            parent.display()
        )));
    }
    let most = pieces.snapshot_most.unwrap_or(MOST);
    Snapshots::new(&pieces.snapshot_on, into, most, quiet).map(Some)
}

impl Keeper {
    /// Begins to look after the trace that is on. `None` if it is not in pieces. With a limit,
    /// files are created by other processes, because that may hang.
    pub fn new(
        args: &PiecesArgs,
        snapshots: Option<Snapshots>,
        status: &Status,
        limit: Option<Duration>,
    ) -> Option<Self> {
        let (plan, directory) = (args.plan()?, status.directory()?);
        let rotor = Rotor::new(plan, directory, status, limit);
        let mut snapshots = snapshots;
        if let Some(snapshots) = &mut snapshots {
            snapshots.begin(Instant::now());
        }
        Some(Self { rotor, snapshots })
    }

    /// To wait for.
    pub fn fds(&self) -> [Option<RawFd>; 2] {
        let making = self.snapshots.as_ref().and_then(Snapshots::fd);
        [self.rotor.fd(), making]
    }

    /// When it is to look next.
    pub fn next_at(&self) -> Option<Instant> {
        let snapshots = self.snapshots.as_ref().and_then(Snapshots::next_at);
        let snapshots = snapshots.filter(|_| !self.rotor.is_over());
        [self.rotor.next_at(), snapshots]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether the trace has ended.
    pub fn is_over(&self) -> bool {
        self.rotor.is_over()
    }

    /// Does what is due.
    pub fn look(&mut self, control: &dyn Control, io: &mut Io<'_>) {
        self.rotor.look(control, io);
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.look(control, &mut self.rotor, io);
        }
    }

    /// Takes a signal, if it is a trigger.
    pub fn signal(&mut self, signal: libc::c_int) -> bool {
        self.snapshots.as_mut().is_some_and(|s| s.signal(signal))
    }

    /// The traced program has ended.
    pub fn exited(&mut self, code: u8) {
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.exited(code);
        }
    }

    /// The trace has ended. Gives what went wrong about its pieces.
    pub fn end(
        &mut self,
        status: &Status,
        signals: &mut Signals,
        io: &mut Io<'_>,
    ) -> Option<Failure> {
        self.rotor.end(status);
        let snapshots = self.snapshots.as_mut();
        let snapshots = snapshots.map(|s| s.end(status, &self.rotor, signals, io));
        self.rotor.failure().or(snapshots.and_then(Result::err))
    }

    /// Looks after the trace until it ends, or a signal ends that. `process` is the traced one.
    pub fn until_end(
        &mut self,
        control: &dyn Control,
        mut process: Option<Watched>,
        signals: &mut Signals,
        io: &mut Io<'_>,
    ) {
        let mut next_look = None;
        while !self.is_over() {
            let [rotor, making] = self.fds();
            // The descriptor of a zombie is ready all the time.
            let watched = process.as_ref().filter(|_| next_look.is_none());
            let fds = [rotor, making, Some(signals.fd()), watched.map(Watched::fd)];
            let now = Instant::now();
            let next = [self.next_at(), next_look].into_iter().flatten().min();
            let rest = next.map_or(SECOND, |at| at.saturating_duration_since(now));
            let Ok(ready) = Ready::wait(&fds, rest) else {
                std::thread::sleep(SECOND);
                continue;
            };
            while let Some(signal) = signals.next() {
                if self.signal(signal) {
                    continue;
                }
                if matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGQUIT) {
                    io.note("ended by a signal: nobody rotates this trace any more");
                    return;
                }
            }
            if ready.is(3) || next_look.is_some_and(|at| at <= Instant::now()) {
                match process.as_ref().and_then(Watched::ended) {
                    Some(ended) => {
                        self.exited(ended.code());
                        (process, next_look) = (None, None);
                    }
                    None => next_look = process.as_ref().map(|_| now + SECOND),
                }
            }
            self.look(control, io);
        }
        if let Ok(status) = control.status() {
            // What went wrong was reported.
            let _ = self.end(&status, signals, io);
        }
    }

    /// Whether it waits for the end of the traced program.
    pub fn awaits_exit(&self) -> bool {
        self.snapshots.as_ref().is_some_and(Snapshots::awaits_exit)
    }

    /// Where a process in the background writes its errors.
    pub fn log(&self) -> Log {
        Log {
            path: self.rotor.directory().join(LOG),
            file: None,
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// A file that is made when there is something to write to it.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: Option<File>,
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.file {
            Some(file) => file.write(bytes),
            None => {
                let mut options = File::options();
                let file = options.append(true).create(true).open(&self.path)?;
                self.file.insert(file).write(bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
