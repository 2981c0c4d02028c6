//! `activator run`

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Connect, config, open_output, status_of, stop};
use crate::cli::RunArgs;
use crate::control::{Control, Scope, check_ready, start};
use crate::error::{BAD_TRACE, Failure, NOT_EXECUTABLE, NOT_FOUND};
use crate::output::Output;
use crate::status::{State, Status};
use crate::summary::Ended;
use crate::sys::{self, Child, Exec, Held, Ready, Signals};
use crate::{Io, summary};

/// How often a look is taken whether the trace goes on.
const LOOK: Duration = Duration::from_secs(1);

/// Traces a command.
pub fn execute(args: &RunArgs, connect: Connect<'_>, io: &mut Io<'_>) -> Result<u8, Failure> {
    check_command(&args.command)?;
    let control = connect()?;
    let control = control.as_ref();
    check_ready(control, args.trace.n)?;
    let output = open_output(&args.trace, io)?;
    let child = match begin(args, control, &output) {
        Ok(child) => child,
        Err(failure) => {
            output.discard();
            return Err(failure);
        }
    };
    // From here on the trace is ended whatever happens.
    let mut watch = Watch {
        control,
        output,
        child: child.release(),
        uuid: control.status().map(|s| s.raw.uuid).ok(),
        bad: false,
    };
    let exec = watch.until_end(args.wait_all, child_signals(), io);
    todo!()
}
