//! `cow-race PAGES`: two threads write each of the pages that a child shares at the
//! same moment, so that both copy it and one of them loses. Prints the faults.
use kvmtrace_guest::{PAGE, arg, check, fork_child, map_at, wait_child, write};
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
    let mut ends = [0; 2];
    // SAFETY: Room for two descriptors.
    check(unsafe { libc::pipe(ends.as_mut_ptr()) })?;
    // It has the pages until the pipe is closed.
    let child = fork_child(|| {
        let mut byte = 0u8;
        // SAFETY: Descriptors and a byte of ours.
        unsafe {
            libc::close(ends[1]);
            libc::read(ends[0], (&raw mut byte).cast(), 1);
        }
        0
    })?;
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
    // SAFETY: A descriptor of ours.
    check(unsafe { libc::close(ends[1]) })?;
    wait_child(child)?;
    Ok(())
}
