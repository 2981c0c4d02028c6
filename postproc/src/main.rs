//! The command `postproc`; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    postproc::commands::main(std::env::args_os())
}
