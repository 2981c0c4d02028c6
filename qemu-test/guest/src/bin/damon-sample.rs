//! `damon-sample NAME [MS]`: waits for a process of this name that begins later than this one, and has DAMON
//! sample it until it ends, with an aggregation interval of so many ms (100) that has 20 sampling
//! intervals. Prints the process's number, and what DAMON said by its tracepoint.
use kvmtrace_guest::{arg, mount, set};
use std::io::{Error, Result, Write};
use std::time::Duration;

const DAMON: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const TRACING: &str = "/sys/kernel/tracing";
/// Between two looks for the process, and at it.
const PAUSE: Duration = Duration::from_millis(1);
/// Until the process begins.
const PATIENCE: u32 = 60_000;

/// The number that the last new task got.
fn last_pid() -> Result<u32> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    let last = text.split_whitespace().last().map(str::parse);
    match last {
        Some(Ok(pid)) => Ok(pid),
        _ => Err(Error::other(format!("/proc/loadavg: {text}"))),
    }
}

fn is_called(pid: u32, name: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
}

fn find(name: &str) -> Result<u32> {
    for _ in 0..PATIENCE {
        let mut later = std::process::id() + 1..=last_pid()?;
        if let Some(pid) = later.find(|pid| is_called(*pid, name)) {
            return Ok(pid);
        }
        std::thread::sleep(PAUSE);
    }
    Err(Error::other(format!("no process {name} has begun")))
}

/// With 100 ms, these are DAMON's defaults, except that new mappings are looked for in each aggregation
/// interval. By default, DAMON looks each second, and programs that begin to run may end before.
fn sample(pid: u32, aggregation_ms: usize) -> Result<()> {
    set(&format!("{DAMON}/nr_kdamonds"), "1")?;
    set(&format!("{DAMON}/0/contexts/nr_contexts"), "1")?;
    let c = format!("{DAMON}/0/contexts/0");
    set(&format!("{c}/operations"), "vaddr")?;
    for (name, us) in [
        ("sample_us", aggregation_ms * 50),
        ("aggr_us", aggregation_ms * 1000),
        ("update_us", aggregation_ms * 1000),
    ] {
        let path = format!("{c}/monitoring_attrs/intervals/{name}");
        set(&path, &us.to_string())?;
    }
    set(&format!("{c}/targets/nr_targets"), "1")?;
    set(&format!("{c}/targets/0/pid_target"), &pid.to_string())?;
    set(&format!("{DAMON}/0/state"), "on")
}

fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or_default();
    mount(c"tracefs", c"/sys/kernel/tracing")?;
    set(&format!("{TRACING}/trace_clock"), "mono")?;
    set(&format!("{TRACING}/buffer_size_kb"), "16384")?;
    set(&format!("{TRACING}/trace"), "\n")?;
    let event = format!("{TRACING}/events/damon/damon_aggregated/enable");
    set(&event, "1")?;
    let pid = find(&name)?;
    sample(pid, arg(2, 100))?;
    // What the traced shell runs is reaped at once, and its name is gone.
    while is_called(pid, &name) {
        std::thread::sleep(5 * PAUSE);
    }
    // A kdamond ends with its target, so this may find nothing to end.
    let _ = set(&format!("{DAMON}/0/state"), "off");
    set(&event, "0")?;
    let record = std::fs::read(format!("{TRACING}/trace"))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{pid}")?;
    out.write_all(&record)
}
