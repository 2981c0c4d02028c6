//! The subcommands, each in a file.

use std::path::PathBuf;
use std::time::Duration;

use rust_mm_trace::uapi::VMTRACE_STALL_DEFAULT;

use crate::budget::Budget;
use crate::cli::TraceArgs;
use crate::control::{Config, Control, Pack, Scope, Writing, refused};
use crate::error::{BAD_TRACE, Errno, Failure};
use crate::output::Output;
use crate::status::{State, Status};
use crate::sys::Signals;
use crate::units::Ticks;
use crate::{Io, calibrate, pace, summary};

pub mod filter;
pub mod man;
pub mod off;
pub mod on;
pub mod pause;
pub mod record;
pub mod resize;
pub mod rotate;
pub mod run;
pub mod snapshot;
pub mod status;
pub mod top;

/// Opens the control device.
pub type Connect<'a> = &'a dyn Fn() -> Result<Box<dyn Control>, Failure>;

/// Blocks signals, `more` among them, so that none ends the activator between two steps of a start.
fn hold_signals(more: &[libc::c_int]) -> Result<Signals, Failure> {
    Signals::hold(more).map_err(|e| Failure::usage(format!("can't block signals: {e}")))
}

/// Fails if a signal has come that ends the program.
fn go_on(signals: &mut Signals) -> Result<(), Failure> {
    signals.ending().map_or(Ok(()), |s| Err(Failure::signal(s)))
}

/// The kernel's stall limit: that of its command line, if there is one, or 10 s.
fn default_limit() -> Duration {
    let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let booted = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("vmtrace_stall=")?.parse().ok());
    match booted {
        // There is none.
        Some(0) => Duration::from_secs(u32::MAX.into()),
        Some(seconds) => Duration::from_secs(seconds),
        None => Duration::from_millis(VMTRACE_STALL_DEFAULT.into()),
    }
}

/// How long another process may take to create the file of a piece.
const CREATION: Duration = Duration::from_secs(5);

/// The directory of the pieces of a trace, if it is where the status says.
fn directory_of(status: &Status) -> Result<PathBuf, Failure> {
    if status.state() == State::Early {
        return Err(Failure::usage(
            "the trace from boot has no output yet: `activator on --early --rotate` takes it over \
             in pieces",
        ));
    }
    let Some(directory) = status.directory() else {
        return Err(Failure::usage(
            "the trace is not written in pieces: start it with --rotate",
        ));
    };
    if !directory.is_dir() {
        return Err(Failure::usage(format!(
            "there is no directory {} any more, or not for this process",
            directory.display()
        )));
    }
    Ok(directory)
}

fn open_output(args: &TraceArgs, io: &mut Io<'_>) -> Result<Output, Failure> {
    if let Some(why) = args.sampling.contradiction() {
        return Err(Failure::usage(why));
    }
    let limit = args.stall_limit.map(|ms| Duration::from_millis(ms.into()));
    let limit = limit.unwrap_or_else(default_limit);
    let output = match args.pieces.rotate {
        Some(_) => Output::pieces_within(&args.output, limit)?,
        None => Output::open_within(&args.output, args.force, limit)?,
    };
    if let Some(warning) = output.warning() {
        io.note(warning);
    }
    Ok(output)
}

/// The ticks that virtual time excludes for each fault, if virtual time is recorded.
fn virtual_time(args: &TraceArgs, control: &dyn Control) -> Result<Option<u32>, Failure> {
    match args.virtual_time {
        None => Ok(None),
        Some(Ticks::Given(ticks)) => Ok(Some(ticks)),
        Some(Ticks::Measured) => calibrate::measure(control).map(Some),
    }
}

/// What programs may lose, if there is a limit. To learn what a reference costs, it makes a short
/// trace.
fn budget(
    args: &TraceArgs,
    virtual_time: Option<u32>,
    control: &dyn Control,
) -> Result<Option<Budget>, Failure> {
    let config = Config {
        // Nothing of these matters for one thread, and no window is begun.
        windows: None,
        unwritten: true,
        writing: Writing {
            pack: Pack::No,
            in_pieces: false,
            ..writing(args)
        },
        output: "no file (a measurement of time)".into(),
        ..config_of(args, Scope::All, virtual_time, String::new())
    };
    pace::budget(args, control, &config)
}

fn writing(args: &TraceArgs) -> Writing {
    Writing {
        stall_limit: args.stall_limit,
        flush: args.flush,
        pack: args.pack,
        in_pieces: args.pieces.rotate.is_some(),
    }
}

fn config(args: &TraceArgs, scope: Scope, virtual_time: Option<u32>, output: &Output) -> Config {
    config_of(args, scope, virtual_time, output.name())
}

fn config_of(args: &TraceArgs, scope: Scope, virtual_time: Option<u32>, output: String) -> Config {
    Config {
        scope,
        set_per: args.set_per,
        evms_size: args.n(),
        evms_max: args.most(),
        interval: args.interval.unwrap_or(0),
        sampling: args.sampling.sampling(),
        first_segment: args.first,
        policy: args.policy,
        batch: args.batch,
        again: args.again,
        offsets: args.offsets,
        virtual_time,
        windows: args.windows(),
        filter: args.filter.clone(),
        counted: args.count,
        unwritten: false,
        classes: args.events.clone(),
        nr_buffers: args.buffers,
        buffer_size: args.buffer_size,
        mode: args.mode,
        writing: writing(args),
        output,
    }
}

/// How often the end of a trace is waited for while its output takes nothing: a second each.
const PATIENCE: u32 = 10;

/// Ends the trace and gives its counts; `None` if no trace was on. The kernel ends the trace
/// in any case. An output that takes nothing is waited for, but not for ever.
fn stop(control: &dyn Control) -> Result<Option<Status>, Failure> {
    let (mut waits, mut written) = (0, None);
    let stopped = loop {
        match control.stop() {
            Err(Errno(libc::EINPROGRESS)) if waits < PATIENCE => {
                let now = control.status().ok().map(|s| s.raw.bytes);
                waits = if now == written { waits + 1 } else { 0 };
                written = now;
            }
            stopped => break stopped,
        }
    };
    match stopped {
        Err(Errno(libc::EINPROGRESS)) => {
            let output = status_of(control)?.output();
            Err(Failure::new(
                BAD_TRACE,
                format!(
                    "{output} takes no data; all processes go on untraced, and the trace will be \
                     complete when {output} has taken the rest; `activator off` waits for that"
                ),
            ))
        }
        Ok(status) => Ok(Some(status)),
        // The output had failed, but the counts exist.
        Err(Errno(libc::EIO)) => status_of(control).map(Some),
        Err(Errno(libc::ENODATA)) => Ok(None),
        Err(errno) => Err(refused("end the trace", errno)),
    }
}

fn status_of(control: &dyn Control) -> Result<Status, Failure> {
    crate::control::status(control)
}

fn text(status: &Status, json: bool) -> String {
    if json {
        summary::json(status, None)
    } else {
        summary::human(status, None)
    }
}
