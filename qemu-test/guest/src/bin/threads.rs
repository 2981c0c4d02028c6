//! Four threads touch shared memory, each its own bytes.
use kvmtrace_guest::{PAGE, arg, map_at};

fn main() -> std::io::Result<()> {
    const PAGES: usize = 256;
    let rounds = arg(1, 30);
    let base = map_at(0x1000_0000_0000, PAGES)? as usize;
    let workers: Vec<_> = (0..4usize)
        .map(|t| {
            std::thread::spawn(move || {
                let mut at = t;
                for _ in 0..rounds * PAGES {
                    at = (at * 5 + 1 + t) % PAGES;
                    let p = (base + at * PAGE + t * 64) as *mut u64;
                    // SAFETY: Inside the mapping; each thread has its own line.
                    unsafe { p.write_volatile(p.read_volatile() + 1) };
                }
            })
        })
        .collect();
    for w in workers {
        w.join()
            .map_err(|_| std::io::Error::other("a thread failed"))?;
    }
    let total: u64 = (0..PAGES)
        .flat_map(|i| (0..4).map(move |t| (base + i * PAGE + t * 64) as *const u64))
        // SAFETY: As above; all threads have ended.
        .map(|p| unsafe { p.read_volatile() })
        .sum();
    println!("{total}");
    Ok(())
}
