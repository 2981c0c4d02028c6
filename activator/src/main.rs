//! The `activator` command; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(activator::run(
        std::env::args_os(),
        &activator::control::connect,
        &mut activator::Io {
            out: &mut std::io::stdout(),
            err: &mut std::io::stderr(),
            background: true,
            is_stdout: true,
            name: activator::Name::Activator,
        },
    ))
}
