//! `toggles perf|trace TIMES`: patches static branches of the page fault path TIMES on and
//! off again while two threads fault. `perf` counts page faults by perf's software
//! event, whose static key the unpatched kernel has, too. `trace` starts and stops traces.
use kvmtrace_guest::{PAGE, activator, check, map_at};
use std::io::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const BASE: usize = 0x1000_0000_0000;
const PAGES: usize = 64;

/// Takes the pages away and touches them again until it is enough.
fn fault(base: usize, stop: &AtomicBool, rounds: &AtomicU64) -> Result<()> {
    while !stop.load(Relaxed) {
        for i in 0..PAGES {
            // SAFETY: Inside a mapping of this thread's own.
            unsafe { ((base + i * PAGE) as *mut u64).write_volatile(1) };
        }
        // SAFETY: As above.
        check(unsafe { libc::madvise(base as *mut _, PAGES * PAGE, libc::MADV_DONTNEED) })?;
        rounds.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// One key on and off: the software event of page faults, of this process.
fn perf() -> Result<()> {
    // The first version of struct perf_event_attr: type, size, config.
    let mut attr = [0u64; 8];
    attr[0] = 1 | 64 << 32;
    attr[1] = 2;
    // SAFETY: A structure of 64 bytes, as it says.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), 0, -1, -1, 0) };
    let fd = check(i32::try_from(fd).unwrap_or(-1))?;
    // SAFETY: A descriptor of ours.
    check(unsafe { libc::close(fd) })?;
    Ok(())
}

fn trace() -> Result<()> {
    let pid = std::process::id();
    activator(&format!("on -n 64 --pid {pid} --force -o /dev/trace"))?;
    activator("off")?;
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let (what, times) = match args.as_slice() {
        [_, what, times] => (what.as_str(), times.parse().map_err(Error::other)?),
        _ => return Err(Error::other("usage: toggles perf|trace TIMES")),
    };
    let toggle = match what {
        "perf" => perf,
        "trace" => trace,
        other => return Err(Error::other(format!("{other}: perf or trace"))),
    };
    for thread in 0..2 {
        map_at(BASE + thread * PAGES * PAGE, PAGES)?;
    }
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..2)
            .map(|t| {
                s.spawn({
                    let (stop, rounds) = (&stop, &rounds);
                    move || fault(BASE + t * PAGES * PAGE, stop, rounds)
                })
            })
            .collect();
        let mut done = Ok(());
        for _ in 0..times {
            done = toggle();
            if done.is_err() {
                break;
            }
        }
        stop.store(true, Relaxed);
        for t in threads {
            t.join().map_err(|_| Error::other("a thread failed"))??;
        }
        done
    })?;
    println!("{what}: {times} times, {} rounds", rounds.load(Relaxed));
    Ok(())
}
