//! What each subcommand does: a file each.

use crate::cli::TraceArgs;
use crate::control::{Config, Control, Scope, refused};
use crate::error::{Errno, Failure};
use crate::output::Output;
use crate::status::Status;
use crate::{Io, summary};

pub mod man;
pub mod off;
pub mod on;
pub mod resize;
pub mod run;
pub mod status;

/// Opens the control device.
pub type Connect<'a> = &'a dyn Fn() -> Result<Box<dyn Control>, Failure>;

fn open_output(args: &TraceArgs, io: &mut Io<'_>) -> Result<Output, Failure> {
    let output = Output::open(&args.output, args.force)?;
    if let Some(warning) = output.warning() {
        io.note(warning);
    }
    Ok(output)
}

fn config(args: &TraceArgs, scope: Scope, output: &Output) -> Config {
    Config {
        scope,
        evms_size: args.n,
        evms_max: args.max,
        first_segment: args.first,
        policy: args.policy,
        again: args.again,
        virtual_time: args.virtual_time,
        windows: args.windows(),
        classes: args.events.clone(),
        nr_buffers: args.buffers,
        buffer_size: args.buffer_size,
        output: output.name(),
    }
}

/// Ends the trace and gives what was counted, `None` if no trace was on.
fn stop(control: &dyn Control) -> Result<Option<Status>, Failure> {
    match control.stop() {
        Ok(status) => Ok(Some(status)),
        // The output had failed: the numbers are there all the same.
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
