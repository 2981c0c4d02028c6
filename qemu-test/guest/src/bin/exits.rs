//! exits PAGES ROUNDS: threads that touch pages and end, one after the other, each of which
//! another one waits for; and a process that ends with a lock which another one waits for.
//! exits heir: the same once, with a child that does not end by itself: prints its pid, and
//! whether the lock was inherited from it.
use kvmtrace_guest::{arg, check, fork_child, map_at, map_with, sum, wait_child, write};
use std::io::{Error, Result};

const BASE: usize = 0x1000_0000_0000;
const SHARED: usize = 0x1200_0000_0000;

/// A child takes a robust lock and ends without a word, or `stays` until it is killed; its
/// parent gets the lock.
fn inherited(pages: usize, stays: bool) -> Result<i32> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let page = map_with(SHARED, 1, flags, -1)?;
    let taken = page.wrapping_add(kvmtrace_guest::PAGE / 2);
    let lock = page.cast::<libc::pthread_mutex_t>();
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
        loop {
            sum(BASE as *mut u8, pages);
            // SAFETY: The page is shared, and is mapped in both processes.
            unsafe { taken.write_volatile(1) };
            if !stays {
                return 0;
            }
        }
    })?;
    if stays {
        // SAFETY: As above.
        while unsafe { taken.read_volatile() } == 0 {
            std::thread::yield_now();
        }
        println!("{child}");
    } else {
        wait_child(child)?;
    }
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
    if std::env::args().nth(1).as_deref() == Some("heir") {
        map_at(BASE, 100)?;
        println!("{}", inherited(100, true)? == libc::EOWNERDEAD);
        return Ok(());
    }
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
        owners += i32::from(inherited(pages, false)? == libc::EOWNERDEAD);
    }
    println!("{owners} {}", sum(base as *mut u8, pages));
    Ok(())
}
