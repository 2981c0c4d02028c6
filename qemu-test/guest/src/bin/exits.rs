//! exits PAGES ROUNDS: threads that touch pages and end, one after the other, each of which
//! another one waits for; and a process that ends with a lock which another one waits for.
use kvmtrace_guest::{arg, check, fork_child, map_at, map_with, sum, wait_child, write};
use std::io::{Error, Result};

const BASE: usize = 0x1000_0000_0000;
const SHARED: usize = 0x1200_0000_0000;

/// A child takes a robust lock and ends without a word; its parent gets the lock.
fn inherited(pages: usize) -> Result<i32> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let lock = map_with(SHARED, 1, flags, -1)?.cast::<libc::pthread_mutex_t>();
    // SAFETY: The attributes live here, and the lock in memory that both processes share.
    unsafe {
        let mut attributes = std::mem::zeroed();
        libc::pthread_mutexattr_init(&mut attributes);
        libc::pthread_mutexattr_setpshared(&mut attributes, libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_mutexattr_setrobust(&mut attributes, libc::PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutex_init(lock, &attributes);
    }
    let child = fork_child(|| {
        // SAFETY: As above.
        if unsafe { libc::pthread_mutex_lock(lock) } != 0 {
            return 1;
        }
        sum(BASE as *mut u8, pages);
        0
    })?;
    wait_child(child)?;
    // SAFETY: As above.
    unsafe {
        let got = libc::pthread_mutex_lock(lock);
        libc::pthread_mutex_consistent(lock);
        libc::pthread_mutex_unlock(lock);
        libc::pthread_mutex_destroy(lock);
        check(libc::munmap(lock.cast(), kvmtrace_guest::PAGE))?;
        Ok(got)
    }
}

fn main() -> Result<()> {
    let (pages, rounds) = (arg(1, 100), arg(2, 10));
    let base = map_at(BASE, pages)? as usize;
    let mut owners = 0;
    for round in 0..rounds {
        let worker = std::thread::spawn(move || {
            for i in 0..pages {
                write(base as *mut u8, i, (round + i) as u8);
            }
        });
        worker.join().map_err(|_| Error::other("a thread failed"))?;
        // EOWNERDEAD each time.
        owners += i32::from(inherited(pages)? == libc::EOWNERDEAD);
    }
    println!("{owners} {}", sum(base as *mut u8, pages));
    Ok(())
}
