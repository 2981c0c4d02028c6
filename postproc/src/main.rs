//! The command `postproc`.

mod commands;

use std::process::ExitCode;

use clap::Parser;
use postproc::error::Error;

fn main() -> ExitCode {
    let cli = commands::Cli::parse();
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => match error.downcast_ref::<Error>() {
            // The reader has seen enough.
            Some(e) if e.is_broken_pipe() => ExitCode::SUCCESS,
            Some(Error::Interrupted) => {
                eprintln!("postproc: interrupted; nothing was left behind");
                ExitCode::from(commands::INTERRUPTED)
            }
            _ => {
                eprintln!("postproc: {error:#}");
                ExitCode::from(commands::FAILED)
            }
        },
    }
}
