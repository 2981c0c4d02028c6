//! The subcommands, each in a file.

use crate::cli::TraceArgs;
use crate::control::{Config, Control, Scope, refused};
use crate::error::{Errno, Failure};
use crate::output::Output;
use crate::status::Status;
use crate::sys::Signals;
use crate::units::Ticks;
use crate::{Io, calibrate, summary};

pub mod man;
pub mod off;
pub mod on;
pub mod resize;
pub mod run;
pub mod status;

/// Opens the control device.
pub type Connect<'a> = &'a dyn Fn() -> Result<Box<dyn Control>, Failure>;

/// Blocks signals, so that none ends the activator between two steps of a start.
fn hold_signals() -> Result<Signals, Failure> {
    Signals::hold().map_err(|e| Failure::usage(format!("can't block signals: {e}")))
}

/// Fails if a signal has come that ends the program.
fn go_on(signals: &mut Signals) -> Result<(), Failure> {
    signals.ending().map_or(Ok(()), |s| Err(Failure::signal(s)))
}

fn open_output(args: &TraceArgs, io: &mut Io<'_>) -> Result<Output, Failure> {
    let output = Output::open(&args.output, args.force)?;
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

fn config(args: &TraceArgs, scope: Scope, virtual_time: Option<u32>, output: &Output) -> Config {
    Config {
        scope,
        evms_size: args.n,
        evms_max: args.max,
        first_segment: args.first,
        policy: args.policy,
        again: args.again,
        virtual_time,
        windows: args.windows(),
        classes: args.events.clone(),
        nr_buffers: args.buffers,
        buffer_size: args.buffer_size,
        output: output.name(),
    }
}

/// Ends the trace and gives its counts; `None` if no trace was on.
fn stop(control: &dyn Control) -> Result<Option<Status>, Failure> {
    match control.stop() {
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
