//! Progress, interruption and printing.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::pipeline::Observer;
use crate::trace::UNKNOWN;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

pub use super::signals::stop_flag;

/// Shows a pass's progress on standard error if that is a terminal.
pub struct Progress {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

impl Progress {
    pub fn new(what: &'static str, stop: Arc<AtomicBool>) -> Self {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let template = "{msg} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what);
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress { bar, stop }
    }
}

impl Observer for Progress {
    fn progress(&mut self, done: u64, total: u64) -> bool {
        if total == UNKNOWN {
            if let Ok(style) = ProgressStyle::with_template("{msg} {bytes} {bytes_per_sec}") {
                self.bar.set_style(style);
            }
        } else {
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
        !self.stop.load(Ordering::Relaxed)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The progress of opening a trace. Nothing is shown for a file that is read where it is.
#[derive(Default)]
pub struct Opening(Option<Progress>);

impl Observer for Opening {
    fn progress(&mut self, done: u64, total: u64) -> bool {
        let new = || Progress::new("reading", stop_flag());
        self.0.get_or_insert_with(new).progress(done, total)
    }
}

/// The error for a failed write to standard output.
pub fn standard_output(source: io::Error) -> Error {
    Error::Output {
        what: "standard output".into(),
        source,
    }
}

/// Prints bytes on standard output.
pub fn print(bytes: &[u8]) -> Result<()> {
    print_with(|out| out.write_all(bytes))
}

/// Prints on standard output as it is made.
pub fn print_with(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    // Standard output itself looks for ends of lines.
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    write(&mut out)
        .and_then(|()| out.flush())
        .map_err(standard_output)
}

/// Prints a value as JSON on standard output.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print_with(|out| {
        serde_json::to_writer_pretty(&mut *out, value)?;
        out.write_all(b"\n")
    })
}

/// Digits in groups of three.
pub use crate::report::{grouped, numbered};
