//! `hotplug ROUNDS`: all CPUs but the first go offline and come back, while threads touch
//! memory and programs begin and end. Prints a sum.
use kvmtrace_guest::{PAGE, arg, map_at};
use std::io::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const BASE: usize = 0x1000_0000_0000;
const PAGES: usize = 200;

fn main() -> Result<()> {
    let rounds = arg(1, 3);
    if rounds == 0 {
        return Ok(());
    }
    let over = Arc::new(AtomicBool::new(false));
    let base = map_at(BASE, PAGES)? as usize;
    let workers: Vec<_> = (0..4usize)
        .map(|t| {
            let over = over.clone();
            std::thread::spawn(move || {
                let mut touches = 0u64;
                while !over.load(SeqCst) {
                    let p = (base + touches as usize % PAGES * PAGE + t * 64) as *mut u64;
                    // SAFETY: Inside the mapping; each thread has its own line.
                    unsafe { p.write_volatile(p.read_volatile() + 1) };
                    touches += 1;
                }
                touches
            })
        })
        .collect();
    let me = std::env::current_exe()?;
    let set = |cpu: usize, on: &str| {
        std::fs::write(format!("/sys/devices/system/cpu/cpu{cpu}/online"), on)
    };
    // SAFETY: It has no memory to go wrong with.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) } as usize;
    let mut moves = 0;
    for _ in 0..rounds {
        for on in ["0", "1"] {
            for cpu in 1..cpus {
                set(cpu, on)?;
                moves += 1;
                let child = std::process::Command::new(&me).arg("0").status()?;
                if !child.success() {
                    return Err(Error::other("a child failed"));
                }
            }
        }
    }
    over.store(true, SeqCst);
    let mut touches = 0;
    for w in workers {
        touches += w.join().map_err(|_| Error::other("a thread failed"))?;
    }
    let sum: u64 = (0..PAGES)
        .flat_map(|i| (0..4).map(move |t| (base + i * PAGE + t * 64) as *const u64))
        // SAFETY: As above; all threads have ended.
        .map(|p| unsafe { p.read_volatile() })
        .sum();
    println!("{moves} {}", sum == touches);
    Ok(())
}
