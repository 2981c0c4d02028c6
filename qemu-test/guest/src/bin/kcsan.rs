//! `kcsan SKIP DELAY PROGRAM [ARGUMENT…]`: runs a program while KCSAN watches one of at most SKIP
//! accesses, for at most DELAY microseconds each. Afterwards KCSAN does as before. Prints to
//! stderr how many accesses KCSAN has watched meanwhile, and how often another CPU came by.
use kvmtrace_guest::set;
use std::fs::read_to_string;
use std::io::{Error, Result};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

const COUNTERS: &str = "/sys/kernel/debug/kcsan";

/// A parameter, with the value that it had before.
struct Changed(String, String);

impl Changed {
    fn new(name: &str, value: &str) -> Result<Self> {
        let file = format!("/sys/module/kcsan/parameters/{name}");
        let before = read_to_string(&file)?;
        set(&file, value)?;
        Ok(Changed(file, before))
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        if let Err(e) = set(&self.0, self.1.trim()) {
            eprintln!("{}: {e}", self.0);
        }
    }
}

/// What KCSAN has counted: watched accesses, and accesses that met one of these.
fn counted() -> Result<[u64; 2]> {
    let text = read_to_string(COUNTERS)?;
    let count = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(": "));
        let value = lines.find_map(|(n, value)| (n == name).then_some(value));
        value
            .and_then(|value| value.trim().parse().ok())
            .ok_or_else(|| Error::other(format!("{COUNTERS} has no {name}")))
    };
    Ok([count("setup_watchpoints")?, count("data_races")?])
}

fn main() -> Result<ExitCode> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let [skip, delay, program, arguments @ ..] = words.as_slice() else {
        return Err(Error::other("usage: kcsan SKIP DELAY PROGRAM [ARGUMENT…]"));
    };
    let before = counted()?;
    let status = {
        let _skip = Changed::new("skip_watch", skip)?;
        let _tasks = Changed::new("udelay_task", delay)?;
        let _interrupts = Changed::new("udelay_interrupt", delay)?;
        Command::new(program).args(arguments).status()?
    };
    let after = counted()?;
    eprintln!(
        "{} watched, {} met",
        after[0] - before[0],
        after[1] - before[1]
    );
    // As a shell has it.
    let rc = status.code().or(status.signal().map(|s| 128 + s));
    Ok(ExitCode::from(rc.unwrap_or(255) as u8))
}
