//! What looks after a trace in pieces as long as it is on: it begins pieces, and removes old ones. `run` does so while it waits for its command. `on` leaves a process behind for
//! it, which is the one that started the trace: a trace of all processes leaves that process out.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::Io;
use crate::cli::PiecesArgs;
use crate::control::Control;
use crate::error::Failure;
use crate::rotate::Rotor;
use crate::status::Status;
use crate::sys::{Ready, Signals};

/// The file in the directory of the pieces that has the errors of a process in the background.
pub const LOG: &str = ".keeper.log";

/// Looks after a trace in pieces.
#[derive(Debug)]
pub struct Keeper {
    rotor: Rotor,
}

impl Keeper {
    /// Begins to look after the trace that is on. `None` if it is not in pieces. With a limit,
    /// files are created by other processes, because that may hang.
    pub fn new(args: &PiecesArgs, status: &Status, limit: Option<Duration>) -> Option<Self> {
        let (plan, directory) = (args.plan()?, status.directory()?);
        let rotor = Rotor::new(plan, directory, status, limit);
        Some(Self { rotor })
    }

    /// To wait for.
    pub fn fd(&self) -> Option<RawFd> {
        self.rotor.fd()
    }

    /// When it is to look next.
    pub fn next_at(&self) -> Option<Instant> {
        self.rotor.next_at()
    }

    /// Whether the trace has ended.
    pub fn is_over(&self) -> bool {
        self.rotor.is_over()
    }

    /// Does what is due.
    pub fn look(&mut self, control: &dyn Control, io: &mut Io<'_>) {
        self.rotor.look(control, io);
    }

    /// The trace has ended. Gives what went wrong about its pieces.
    pub fn end(&mut self, status: &Status) -> Option<Failure> {
        self.rotor.end(status);
        self.rotor.failure()
    }

    /// Looks after the trace until it ends, or a signal ends that.
    pub fn until_end(&mut self, control: &dyn Control, signals: &mut Signals, io: &mut Io<'_>) {
        while !self.is_over() {
            let rest = self
                .next_at()
                .map_or(SECOND, |at| at.saturating_duration_since(Instant::now()));
            if Ready::wait(&[self.fd(), Some(signals.fd())], rest).is_err() {
                std::thread::sleep(SECOND);
            }
            while let Some(signal) = signals.next() {
                if matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGQUIT) {
                    io.note("ended by a signal: nobody rotates this trace any more");
                    return;
                }
            }
            self.look(control, io);
        }
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
