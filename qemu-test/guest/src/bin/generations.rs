//! `generations HOW ROUNDS [FILE]`: one thread drops a page while another one refers to it.
//! HOW is `dontneed`, for anonymous memory, or `punch`, for a shared mapping of FILE.
//!
//! The thread that refers to the page stores a number there each time, and reads what was
//! there before. A new page is empty; the page of the time before has a number. In between,
//! the thread touches more pages of its own than the set holds, so that each time has a
//! record. The program prints a 1 for each time that the page was new, or else a 0.
use kvmtrace_guest::{PAGE, arg, check, map_at, map_with, new_file, stay_on, write};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

const BASE: usize = 0x1000_0000_0000;
/// The thread's own pages, more than the set has.
const OWN: usize = 0x2000_0000_0000;
const PUSH: usize = 80;

fn main() -> Result<()> {
    let how = std::env::args().nth(1).unwrap_or_default();
    let rounds = arg(2, 200);
    let file = match (how.as_str(), std::env::args().nth(3)) {
        ("dontneed", _) => {
            map_at(BASE, 1)?;
            None
        }
        ("punch", Some(path)) => {
            let file = new_file(&path, 1)?;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            map_with(BASE, 1, flags, file.as_raw_fd())?;
            Some(file)
        }
        _ => return Err(Error::other("dontneed, or punch and a file?")),
    };
    let drop_page = || -> Result<()> {
        // SAFETY: A page that is mapped, or a file of ours.
        check(unsafe {
            match &file {
                None => libc::madvise(BASE as *mut _, PAGE, libc::MADV_DONTNEED),
                Some(f) => libc::fallocate(
                    f.as_raw_fd(),
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    0,
                    PAGE as i64,
                ),
            }
        })?;
        Ok(())
    };
    let own = map_at(OWN, PUSH)? as usize;
    // SAFETY: Mapped from here on.
    let word = unsafe { &*(BASE as *const AtomicU64) };
    let (round, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let refer = || -> Result<String> {
        // What another CPU has in its first segment would stay enabled.
        stay_on(1)?;
        let mut found = String::new();
        for i in 1..=rounds {
            while round.load(SeqCst) < i {
                std::hint::spin_loop();
            }
            // The page is dropped at any moment of this.
            for _ in 0..i * 7919 % 3000 {
                std::hint::spin_loop();
            }
            // Once each way: as its own record, and before and after the drop.
            for _ in 0..2 {
                let before = word.swap(i as u64, SeqCst);
                found.push(if before == 0 { '1' } else { '0' });
                (0..PUSH).for_each(|page| write(own as *mut u8, page, i as u8));
            }
            done.store(i, SeqCst);
        }
        Ok(found)
    };
    let found = std::thread::scope(|s| -> Result<String> {
        let thread = s.spawn(refer);
        stay_on(0)?;
        for i in 1..=rounds {
            round.store(i, SeqCst);
            for _ in 0..i * 104_729 % 3000 {
                std::hint::spin_loop();
            }
            drop_page()?;
            while done.load(SeqCst) < i && !thread.is_finished() {
                std::thread::yield_now();
            }
        }
        thread.join().map_err(|_| Error::other("it panicked"))?
    })?;
    println!("{found}");
    Ok(())
}
