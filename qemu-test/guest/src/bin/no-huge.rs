//! `no-huge PROGRAM ARGUMENT…`: executes a program that gets no transparent huge page
//! (PR_SET_THP_DISABLE).
use kvmtrace_guest::check;
use std::io::{Error, Result};
use std::os::unix::process::CommandExt;
use std::process::Command;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [program, args @ ..] = &args[..] else {
        return Err(Error::other("no-huge PROGRAM ARGUMENT…"));
    };
    // SAFETY: No memory is passed.
    check(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) })?;
    Err(Command::new(program).args(args).exec())
}
