//! Futexes on pages that are cold each time: waits that end at once, wake-ups with
//! an operation, priority inheritance, requeueing, shared ones, and two threads
//! that wait for each other through words on many pages.
//! `futexes loop`: locks with priority inheritance and wake-ups with an operation, on cold pages,
//! until it is killed.
use kvmtrace_guest::{PAGE, check, map_at, map_with, sum};
use std::io::{Error, Result};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const PAGES: usize = 70;

fn futex(at: *const AtomicU32, op: i32, value: u32, time: usize, other: *const AtomicU32) -> i64 {
    // SAFETY: Words of mappings that stay.
    let n = unsafe { libc::syscall(libc::SYS_futex, at, op, value, time, other, 0) };
    if n < 0 {
        -i64::from(Error::last_os_error().raw_os_error().unwrap_or(0))
    } else {
        n
    }
}

fn word(base: usize, i: usize) -> &'static AtomicU32 {
    // SAFETY: Inside a mapping that stays, aligned.
    unsafe { &*((base + i % PAGES * PAGE + 64) as *const AtomicU32) }
}

/// All that one thread can do, over all words.
fn alone(base: usize, more: usize, private: i32, what: &str) {
    let mut results = [0i64; 6];
    for i in 0..PAGES {
        let (a, b) = (word(base, i), word(more, PAGES - 1 - i));
        results[0] += futex(a, libc::FUTEX_WAIT | private, 1, 0, std::ptr::null());
        results[1] += futex(a, libc::FUTEX_WAKE | private, 1, 0, std::ptr::null());
        // Adds 3 to b, wakes its waiters if it was 0.
        let add = libc::FUTEX_WAKE_OP | private;
        // SAFETY: As in futex().
        results[2] +=
            unsafe { libc::syscall(libc::SYS_futex, a, add, 1, 1usize, b, (1 << 28) | (3 << 12)) };
        results[3] += futex(a, libc::FUTEX_LOCK_PI | private, 0, 0, std::ptr::null());
        results[4] += futex(a, libc::FUTEX_UNLOCK_PI | private, 0, 0, std::ptr::null());
        results[5] += futex(a, libc::FUTEX_TRYLOCK_PI | private, 0, 0, std::ptr::null());
        results[5] += futex(a, libc::FUTEX_UNLOCK_PI | private, 0, 0, std::ptr::null());
    }
    let total: u32 = (0..PAGES).map(|i| word(more, i).swap(0, SeqCst)).sum();
    println!("{what}: {results:?} {total}");
}

/// Two threads hand a turn to each other, by another word each time.
fn turns(base: usize, rounds: usize) -> Result<()> {
    let player = move |me: u32| {
        for i in 0..rounds {
            // Each word once in a lap.
            let w = word(base, i * 9);
            let (lap, turn) = ((i / PAGES) as u32, me);
            let mine = lap * 2 + turn;
            loop {
                let now = w.load(SeqCst);
                if now == mine {
                    break;
                }
                let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
                futex(w, wait, now, 0, std::ptr::null());
            }
            w.store(mine + 1, SeqCst);
            futex(
                w,
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                i32::MAX as u32,
                0,
                std::ptr::null(),
            );
        }
    };
    let other = std::thread::spawn(move || player(1));
    player(0);
    other.join().map_err(|_| Error::other("a thread failed"))?;
    let total: u64 = (0..PAGES)
        .map(|i| u64::from(word(base, i).load(SeqCst)))
        .sum();
    println!("turns {total}");
    Ok(())
}

/// Threads that contend for one lock with priority inheritance on a cold page.
fn contended(base: usize, cold: *mut u8) -> Result<()> {
    let cold = cold as usize;
    let lock = word(base, 0);
    let count = word(base, 9);
    let workers: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn(move || {
                // SAFETY: No arguments.
                let me = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
                for _ in 0..40 {
                    let private = libc::FUTEX_PRIVATE_FLAG;
                    if lock.compare_exchange(0, me, SeqCst, SeqCst).is_err() {
                        let r = futex(lock, libc::FUTEX_LOCK_PI | private, 0, 0, std::ptr::null());
                        assert_eq!(r, 0, "FUTEX_LOCK_PI");
                    }
                    let n = count.load(SeqCst);
                    sum(cold as *mut u8, PAGES);
                    count.store(n + 1, SeqCst);
                    if lock.compare_exchange(me, 0, SeqCst, SeqCst).is_err() {
                        let op = libc::FUTEX_UNLOCK_PI | private;
                        let r = futex(lock, op, 0, 0, std::ptr::null());
                        assert_eq!(r, 0, "FUTEX_UNLOCK_PI");
                    }
                }
            })
        })
        .collect();
    for w in workers {
        w.join().map_err(|_| Error::other("a thread failed"))?;
    }
    println!("contended {} {}", count.load(SeqCst), lock.load(SeqCst));
    Ok(())
}

/// Only the kernel touches the words, and finds their pages cold. It faults them in with the
/// address space locked.
fn for_ever(base: usize, more: usize) -> Result<()> {
    let private = libc::FUTEX_PRIVATE_FLAG;
    let ok = |n: i64| match n {
        0.. => Ok(()),
        n => Err(Error::from_raw_os_error(n.unsigned_abs() as i32)),
    };
    for i in (0..).map(|i: usize| i * 9) {
        let (a, b) = (word(base, i), word(more, i));
        ok(futex(
            a,
            libc::FUTEX_LOCK_PI | private,
            0,
            0,
            std::ptr::null(),
        ))?;
        ok(futex(
            a,
            libc::FUTEX_UNLOCK_PI | private,
            0,
            0,
            std::ptr::null(),
        ))?;
        // Adds 0 to b.
        let (wake, add) = (libc::FUTEX_WAKE_OP | private, 1 << 28);
        // SAFETY: As in futex().
        check(unsafe { libc::syscall(libc::SYS_futex, a, wake, 1, 1usize, b, add) } as i32)?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let base = map_at(0x1000_0000_0000, PAGES)? as usize;
    let more = map_at(0x1100_0000_0000, PAGES)? as usize;
    if std::env::args().nth(1).as_deref() == Some("loop") {
        return for_ever(base, more);
    }
    alone(base, more, libc::FUTEX_PRIVATE_FLAG, "private");
    let shared = |at| -> Result<usize> {
        // SAFETY: A string with its end.
        let fd = check(unsafe { libc::memfd_create(c"shared".as_ptr(), 0) })?;
        // SAFETY: A descriptor of ours.
        check(unsafe { libc::ftruncate(fd, (PAGES * PAGE) as i64) })?;
        Ok(map_with(at, PAGES, libc::MAP_SHARED | libc::MAP_FIXED, fd)? as usize)
    };
    let (one, two) = (shared(0x1200_0000_0000)?, shared(0x1300_0000_0000)?);
    alone(one, two, 0, "shared");
    let fresh = map_at(0x1400_0000_0000, PAGES)? as usize;
    turns(fresh, 4 * PAGES)?;
    let lock = map_at(0x1500_0000_0000, PAGES)? as usize;
    contended(lock, base as *mut u8)
}
