//! swap-disk: whole pages go out to a disk and come back from it, by access, by
//! swapoff, by a write of the kernel, and in a child.
use kvmtrace_guest::{PAGE, check, counter, fork_child, map_at, swap_on, wait_child};
use std::io::{Error, Result};

const PAGES: usize = 600;

fn word(page: usize, at: usize, round: usize) -> u64 {
    (page as u64 * 512 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 + 2 * round as u64)
}

fn fill(base: *mut u8, round: usize) {
    for page in 0..PAGES {
        for at in 0..PAGE / 8 {
            // SAFETY: Inside the mapping.
            unsafe {
                base.add(page * PAGE + at * 8)
                    .cast::<u64>()
                    .write(word(page, at, round));
            }
        }
    }
}

/// Pages whose every word is right.
fn right(base: *mut u8, round: usize) -> usize {
    (0..PAGES)
        .filter(|page| {
            (0..PAGE / 8).all(|at| {
                // SAFETY: Inside the mapping.
                let got = unsafe { base.add(page * PAGE + at * 8).cast::<u64>().read() };
                got == word(*page, at, round)
            })
        })
        .count()
}

fn out(base: *mut u8) -> Result<()> {
    // SAFETY: The range is the program's own.
    check(unsafe { libc::madvise(base.cast(), PAGES * PAGE, libc::MADV_PAGEOUT) }).map(drop)
}

fn grew(key: &str, before: u64) -> Result<()> {
    if counter("/proc/vmstat", key) > before {
        return Ok(());
    }
    Err(Error::other(format!("{key} did not grow")))
}

fn main() -> Result<()> {
    swap_on("/dev/swap")?;
    let base = map_at(0x1000_0000_0000, PAGES)?;
    let (reads, writes) = (
        counter("/proc/vmstat", "pswpin"),
        counter("/proc/vmstat", "pswpout"),
    );
    for round in 0..2 {
        fill(base, round);
        out(base)?;
        println!("back {}", right(base, round));
    }
    out(base)?;
    let child = fork_child(|| if right(base, 1) == PAGES { 0 } else { 1 })?;
    println!("child {} {}", wait_child(child)?, right(base, 1));
    out(base)?;
    // SAFETY: A pipe of ours, and memory of ours that is on the disk.
    unsafe {
        let mut pipe = [0; 2];
        check(libc::pipe(pipe.as_mut_ptr()))?;
        for page in 0..PAGES {
            let at = base.add(page * PAGE);
            check(libc::write(pipe[1], at.cast(), 64) as i32)?;
            check(libc::read(pipe[0], at.cast(), 64) as i32)?;
        }
    }
    println!("copied {}", right(base, 1));
    out(base)?;
    // SAFETY: A string with its end.
    check(unsafe { libc::swapoff(c"/dev/swap".as_ptr()) })?;
    println!("off {}", right(base, 1));
    grew("pswpin", reads)?;
    grew("pswpout", writes)
}
