//! What went wrong, what to do about it, and the exit code.

use std::fmt;

/// Exit code of a trace that was lost in part or broke an invariant.
pub const BAD_TRACE: u8 = 1;
/// Exit code of wrong usage, of a refusal by the kernel and of I/O errors.
pub const USAGE: u8 = 2;
/// Exit code of `run` for a command that can't be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// Exit code of `run` for a command that does not exist.
pub const NOT_FOUND: u8 = 127;

/// An error that ends the program: a message for people and an exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Exit code.
    pub code: u8,
    /// What is wrong and what to do, without the program's name.
    pub message: String,
}

impl Failure {
    /// A failure with an exit code.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }

    /// The end by a signal before there was a trace.
    pub fn signal(signal: i32) -> Self {
        Self::ended_by(signal, " before the trace began; nothing is left behind")
    }

    /// The end by a signal of a command that does not end the trace.
    pub fn interrupted(signal: i32, then: &str) -> Self {
        Self::ended_by(signal, &format!("; {then}"))
    }

    fn ended_by(signal: i32, then: &str) -> Self {
        let name = match signal {
            libc::SIGHUP => "SIGHUP",
            libc::SIGINT => "SIGINT",
            libc::SIGQUIT => "SIGQUIT",
            _ => "SIGTERM",
        };
        // As shells report it; the signals that are held have numbers up to 15.
        Self::new(128 + signal as u8, format!("ended by {name}{then}"))
    }

    /// A failure with exit code [`USAGE`].
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// That of the last system call of this thread.
    pub fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // std adds " (os error 28)", which does not help the reader.
        let text = std::io::Error::from_raw_os_error(self.0).to_string();
        match text.split_once(" (os error") {
            Some((words, _)) => f.write_str(words),
            None => f.write_str(&text),
        }
    }
}
