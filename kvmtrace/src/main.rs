//! The command `kvmtrace`; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvmtrace::main(std::env::args_os())
}
