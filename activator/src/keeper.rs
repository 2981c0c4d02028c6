//! What looks after a trace as long as it is on: it begins pieces, removes old ones, takes snapshots,
//! and changes N so that programs lose no more time than they may. `run` does so while it waits for
//! its command. `on` leaves a process behind for it, which is the one that started the trace: a trace
//! of all processes leaves that process out. Only a trace from boot has that process, too.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Io;
use crate::budget::Budget;
use crate::cli::{PiecesArgs, TraceArgs};
use crate::control::Control;
use crate::error::Failure;
use crate::pace::Pace;
use crate::rotate::Rotor;
use crate::snapshots::{MOST, Snapshots, plain};
use crate::status::Status;
use crate::sys::{Ready, Signals, Watched};
use crate::triggers::Triggers;

/// The file in the directory of the pieces that has the errors of a process in the background. Of
/// a trace in one file, this follows the name of the file.
pub const LOG: &str = ".keeper.log";

/// Looks after a trace.
#[derive(Debug)]
pub struct Keeper {
    /// Of a trace in pieces.
    rotor: Option<Rotor>,
    snapshots: Option<Snapshots>,
    /// Of a trace with a budget.
    pace: Option<Pace>,
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
    /// Begins to look after the trace that is on. `None` if it needs nobody. With a limit,
    /// files are created by other processes, because that may hang.
    pub fn new(
        args: &PiecesArgs,
        snapshots: Option<Snapshots>,
        budget: Option<Budget>,
        status: &Status,
        limit: Option<Duration>,
    ) -> Option<Self> {
        let pieces = args.plan().zip(status.directory());
        let rotor = pieces.map(|(plan, directory)| Rotor::new(plan, directory, status, limit));
        let pace = budget.map(|budget| Pace::new(budget, status));
        if rotor.is_none() && pace.is_none() {
            return None;
        }
        let mut snapshots = snapshots;
        if let Some(snapshots) = &mut snapshots {
            snapshots.begin(Instant::now());
        }
        Some(Self {
            rotor,
            snapshots,
            pace,
        })
    }

    /// To wait for.
    pub fn fds(&self) -> [Option<RawFd>; 2] {
        let making = self.snapshots.as_ref().and_then(Snapshots::fd);
        [self.rotor.as_ref().and_then(Rotor::fd), making]
    }

    /// When it is to look next.
    pub fn next_at(&self) -> Option<Instant> {
        let snapshots = self.snapshots.as_ref().and_then(Snapshots::next_at);
        [
            self.rotor.as_ref().and_then(Rotor::next_at),
            snapshots.filter(|_| !self.is_over()),
            self.pace.as_ref().and_then(Pace::next_at),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether the trace has ended.
    pub fn is_over(&self) -> bool {
        match (&self.rotor, &self.pace) {
            (Some(rotor), _) => rotor.is_over(),
            (None, pace) => pace.as_ref().is_none_or(Pace::is_over),
        }
    }

    /// Does what is due.
    pub fn look(&mut self, control: &dyn Control, io: &mut Io<'_>) {
        if let Some(rotor) = &mut self.rotor {
            rotor.look(control, io);
            if let Some(snapshots) = &mut self.snapshots {
                snapshots.look(control, rotor, io);
            }
        }
        if let Some(pace) = &mut self.pace {
            pace.look(control, io);
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

    /// How the trace has kept to its budget.
    pub fn pace(&self) -> Option<&Pace> {
        self.pace.as_ref()
    }

    /// The trace has ended. Gives what went wrong about its pieces.
    pub fn end(
        &mut self,
        status: &Status,
        signals: &mut Signals,
        io: &mut Io<'_>,
    ) -> Option<Failure> {
        let rotor = self.rotor.as_mut()?;
        rotor.end(status);
        let snapshots = self.snapshots.as_mut();
        let snapshots = snapshots.map(|s| s.end(status, rotor, signals, io));
        rotor.failure().or(snapshots.and_then(Result::err))
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
                    let task = match self.rotor {
                        Some(_) => "rotates this trace",
                        None => self.task(),
                    };
                    io.note(&format!("ended by a signal: nobody {task} any more"));
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

    /// Where a process in the background writes its errors, if the trace is in `output`. Of a trace
    /// on a device, nowhere.
    pub fn log(&self, output: &Path) -> Log {
        let path = match &self.rotor {
            Some(rotor) => Some(rotor.directory().join(LOG)),
            None if output.is_file() => {
                let mut name = output.as_os_str().to_owned();
                name.push(LOG);
                Some(name.into())
            }
            None => None,
        };
        Log { path, file: None }
    }

    /// What it does, for people: "process 12 begins pieces".
    pub fn task(&self) -> &'static str {
        match (&self.rotor, &self.pace) {
            (Some(_), None) => "begins pieces",
            (None, _) => "changes N",
            (Some(_), Some(_)) => "begins pieces and changes N",
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// A file that is made when there is something to write to it.
#[derive(Debug)]
pub struct Log {
    path: Option<PathBuf>,
    file: Option<File>,
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match (&mut self.file, &self.path) {
            (Some(file), _) => file.write(bytes),
            (None, None) => Ok(bytes.len()),
            (file @ None, Some(path)) => {
                let mut options = File::options();
                let opened = options.append(true).create(true).open(path)?;
                file.insert(opened).write(bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
