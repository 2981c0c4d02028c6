//! `cow-race PAGES`: two threads write each of the pages that a child shares at the
//! same moment, so that both copy it and one of them loses. Prints the faults.
use kvmtrace_guest::{PAGE, Sharer, arg, check, map_at, write};
use std::io::Result;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const BASE: usize = 0x1000_0000_0000;

fn faults() -> Result<i64> {
    // SAFETY: A plain struct, that the call fills in.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: As above.
    check(unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut used) })?;
    Ok(used.ru_minflt)
}

fn main() -> Result<()> {
    let pages = arg(1, 1000);
    let base = map_at(BASE, pages)?;
    for i in 0..pages {
        write(base, i, 1);
    }
    let sharer = Sharer::new()?;
    let before = faults()?;
    let (here, there) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let meet = |mine: &AtomicUsize, other: &AtomicUsize| {
        for i in 0..pages {
            mine.store(i + 1, SeqCst);
            while other.load(SeqCst) <= i {
                std::hint::spin_loop();
            }
            write((BASE + i * PAGE) as *mut u8, 0, 2);
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| meet(&there, &here));
        meet(&here, &there);
    });
    println!("faults {}", faults()? - before);
    sharer.end()
}
