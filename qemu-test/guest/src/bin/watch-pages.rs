//! `watch-pages WAY NUMBER FILE PROGRAM ARGUMENT…`: runs an unmodified program, and writes to FILE which of its
//! pages, and of those of all that it starts, were used when. WAY is one of
//!
//! - `mprotect`: in each address space, NUMBER pages are accessible at a time, by mprotect().
//! - `rwp`: the same, by userfaultfd's RWP. Memory of files is not watched.
//! - `rwp-async`: every NUMBER ms, the kernel is asked which pages were accessed.
//!
//! Exits with the program's code: 128 and the signal, if it was killed. When the program ends, or this one does,
//! all that still runs is killed.
use kvmtrace_guest::follow::{Way, follower};
use std::process::ExitCode;

const USAGE: &str = "usage: watch-pages mprotect|rwp|rwp-async NUMBER FILE PROGRAM [ARGUMENT…]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [way, number, file, argv @ ..] = &args[..] else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if argv.is_empty() {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let way = match Way::named(way, number) {
        Ok(way) => way,
        Err(e) => {
            eprintln!("watch-pages: {e}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match follower::run(way, file, argv) {
        Ok(code) => ExitCode::from(code as u8),
        Err(e) => {
            // The program ends with this process.
            eprintln!("watch-pages: {e}");
            ExitCode::from(2)
        }
    }
}
