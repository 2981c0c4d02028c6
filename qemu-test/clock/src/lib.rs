//! A clock for guests that are to repeat. QEMU loads this library before all others
//! (LD_PRELOAD), so that it calls this `gettimeofday`.
//!
//! Under icount a guest depends on the host's time at one point. When a CPU's TLB is flushed,
//! QEMU chooses the size of the next one by how much of it was used in the last 100 ms of the
//! host (`tlb_mmu_resize_locked()` in accel/tcg/cputlb.c). The size decides which entries stay
//! until the kernel flushes them, and so when the CPU walks the page tables again and sets the
//! bits A and D. Reclaim and KSM clear the bit A without a flush.

use libc::{c_int, c_void, suseconds_t, timeval};
use std::cell::Cell;

/// Microseconds from a look at the clock to the next one, about as on an idle host.
const STEP: u64 = 1000;

thread_local! {
    /// Looks by this thread: one runs all CPUs, and what the other threads do is up to the host.
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

/// Each thread's looks find times of equal distance.
///
/// # Safety
///
/// `time` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(time: *mut timeval, _: *mut c_void) -> c_int {
    let us = LOOKS.get() * STEP;
    LOOKS.set(LOOKS.get() + 1);
    if !time.is_null() {
        let (seconds, rest) = (us / 1_000_000, us % 1_000_000);
        // SAFETY: As the caller says.
        unsafe {
            (*time).tv_sec = seconds as libc::time_t;
            (*time).tv_usec = rest as suseconds_t;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_finds_the_same_times() {
        let times = || {
            let mut time = timeval {
                tv_sec: 0,
                tv_usec: 0,
            };
            let mut look = || {
                // SAFETY: A variable.
                let rc = unsafe { gettimeofday(&raw mut time, std::ptr::null_mut()) };
                assert_eq!(rc, 0);
                time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64
            };
            (0..2001).map(|_| look()).collect::<Vec<_>>()
        };
        let found = std::thread::spawn(times).join().unwrap();
        assert_eq!(found[2000] - found[0], 2000 * STEP);
        assert!(found.is_sorted());
        assert_eq!(std::thread::spawn(times).join().unwrap(), found);
    }
}
