//! damon-record SECONDS: a child uses parts of its memory more often than others,
//! traced from an attach on, while DAMON samples it. Prints the child's number, and
//! what DAMON said by its tracepoint.
use kvmtrace_guest::{activator, arg, check, fork_child, map_at, mount, set, wait_child, write};
use std::io::{Error, Read, Result};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const DAMON: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const TRACING: &str = "/sys/kernel/tracing";

/// Where, how many pages, and every how many rounds they are written to.
const PARTS: [(usize, usize, usize); 4] = [
    (0x1000_0000_0000, 64, 1),
    (0x1000_0100_0000, 256, 4),
    (0x1000_0200_0000, 512, 40),
    (0x1000_0300_0000, 2048, usize::MAX),
];
/// Between two rounds: a fifth of a sampling interval.
const PAUSE: Duration = Duration::from_millis(1);

fn work() -> i32 {
    let mut parts = Vec::new();
    for (at, pages, every) in PARTS {
        let Ok(base) = map_at(at, pages) else {
            return 1;
        };
        for i in 0..pages {
            write(base, i, 1);
        }
        parts.push((base, pages, every));
    }
    for round in 1.. {
        for &(base, pages, every) in &parts {
            if round % every == 0 {
                for i in 0..pages {
                    write(base, i, round as u8);
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
    0
}

fn damon(pid: i32) -> Result<()> {
    set(&format!("{DAMON}/nr_kdamonds"), "1")?;
    set(&format!("{DAMON}/0/contexts/nr_contexts"), "1")?;
    let c = format!("{DAMON}/0/contexts/0");
    set(&format!("{c}/operations"), "vaddr")?;
    for (name, us) in [
        ("sample_us", 5000),
        ("aggr_us", 100_000),
        ("update_us", 1_000_000),
    ] {
        let path = format!("{c}/monitoring_attrs/intervals/{name}");
        set(&path, &us.to_string())?;
    }
    set(&format!("{c}/targets/nr_targets"), "1")?;
    set(&format!("{c}/targets/0/pid_target"), &pid.to_string())?;
    set(&format!("{DAMON}/0/state"), "on")
}

fn main() -> Result<()> {
    let seconds = arg(1, 4) as u64;
    mount(c"tracefs", c"/sys/kernel/tracing")?;
    let child = fork_child(work)?;
    std::thread::sleep(Duration::from_millis(300));
    activator(&format!(
        "on --pid {child} -n 64 --events none -o /dev/trace"
    ))?;
    set(&format!("{TRACING}/trace_clock"), "mono")?;
    set(
        &format!("{TRACING}/events/damon/damon_aggregated/enable"),
        "1",
    )?;
    damon(child)?;
    let over = AtomicBool::new(false);
    let record = std::thread::scope(|scope| -> Result<Vec<u8>> {
        let reader = scope.spawn(|| -> Result<Vec<u8>> {
            let mut pipe = std::fs::File::open(format!("{TRACING}/trace_pipe"))?;
            let (mut all, mut some) = (Vec::new(), vec![0; 64 << 10]);
            while !over.load(SeqCst) {
                let n = pipe.read(&mut some)?;
                all.extend(&some[..n]);
            }
            Ok(all)
        });
        std::thread::sleep(Duration::from_secs(seconds));
        over.store(true, SeqCst);
        // What comes now lets the reader look.
        std::thread::sleep(Duration::from_millis(300));
        set(&format!("{DAMON}/0/state"), "off")?;
        reader
            .join()
            .map_err(|_| Error::other("the reader failed"))?
    })?;
    activator("off")?;
    // SAFETY: A child of ours that has not been waited for.
    check(unsafe { libc::kill(child, libc::SIGKILL) })?;
    wait_child(child)?;
    println!("{child}");
    print!("{}", String::from_utf8_lossy(&record));
    Ok(())
}
