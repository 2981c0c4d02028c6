//! Two threads load from and store to each page of fresh memory at the same time.
use kvmtrace_guest::{PAGE, arg, map_at};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

fn main() -> std::io::Result<()> {
    const THREADS: usize = 2;
    let pages = arg(1, 1000);
    let base = map_at(0x1000_0000_0000, pages)? as usize;
    let arrived = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let arrived = &arrived;
            scope.spawn(move || {
                for i in 0..pages {
                    arrived.fetch_add(1, SeqCst);
                    while arrived.load(SeqCst) < (i + 1) * THREADS {
                        std::thread::yield_now();
                    }
                    let p = (base + i * PAGE + t * 64) as *mut u64;
                    // SAFETY: Inside the mapping; each thread has its own line.
                    unsafe { p.write_volatile(p.read_volatile() + 1) };
                }
            });
        }
    });
    let total: u64 = (0..pages)
        .flat_map(|i| (0..THREADS).map(move |t| (base + i * PAGE + t * 64) as *const u64))
        // SAFETY: As above; all threads have ended.
        .map(|p| unsafe { p.read_volatile() })
        .sum();
    println!("{total}");
    Ok(())
}
