//! The command `postproc`.

mod commands;

use std::process::ExitCode;

use clap::Parser;
use commands::signals;
use postproc::error::Error;

fn main() -> ExitCode {
    signals::watch();
    let cli = commands::Cli::parse();
    let error = match commands::run(cli) {
        Ok(code) => return code,
        Err(error) => error,
    };
    // After a signal, an error may be a mere consequence of it.
    if let Some(code) = signals::exit_code() {
        eprintln!("{}", signals::message());
        return ExitCode::from(code);
    }
    match error.downcast_ref::<Error>() {
        // The reader of the output has closed its end, as `head` does.
        Some(e) if e.is_broken_pipe() => ExitCode::SUCCESS,
        _ => {
            eprintln!("postproc: {error:#}");
            ExitCode::from(commands::FAILED)
        }
    }
}
