//! virtual-time THREADS PAGES LONG: each thread touches new pages one by one, with
//! known numbers of instructions in between: of each PAGES, the fourth has LONG turns of
//! a loop before the next, others up to 30. Then it prints what getrusage() says.
//!
//! Thread i has its pages at (i + 1) << 40. From one touch to the next 2 * turns + 6
//! instructions are executed, the first touch included and the second one not.
use kvmtrace_guest::{PAGE, arg, check, map_at};

/// Turns after touch `i`, of so many.
fn turns(i: usize, pages: usize, long: usize) -> u32 {
    if i % pages == 3 {
        long as u32
    } else {
        1 + (i as u32 * 7) % 30
    }
}

/// Touches `turns.len()` pages from `base` on.
fn touch(base: *mut u8, turns: &[u32]) {
    // SAFETY: The pages are mapped, there are as many as turns, and there is one.
    unsafe {
        core::arch::asm!(
            ".balign 64",
            "2:",
            "mov byte ptr [{page}], 1",
            "mov {left:e}, dword ptr [{turns}]",
            "3:",
            "dec {left:e}",
            "jnz 3b",
            "add {page}, 4096",
            "add {turns}, 4",
            "dec {pages}",
            "jnz 2b",
            page = inout(reg) base => _,
            turns = inout(reg) turns.as_ptr() => _,
            pages = inout(reg) turns.len() => _,
            left = out(reg) _,
        );
    }
}

/// User and system time of this thread, in ns.
fn usage() -> std::io::Result<(i64, i64)> {
    // SAFETY: All zeroes are a value.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: The struct is there.
    check(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) })?;
    let ns = |t: libc::timeval| t.tv_sec * 1_000_000_000 + t.tv_usec * 1000;
    Ok((ns(usage.ru_utime), ns(usage.ru_stime)))
}

fn main() -> std::io::Result<()> {
    let (threads, pages, long) = (arg(1, 1), arg(2, 64), arg(3, 100));
    let work = move |thread: usize| -> std::io::Result<()> {
        let turns: Vec<u32> = (0..pages).map(|i| turns(i, pages, long)).collect();
        let base = map_at((thread + 1) << 40, pages)?;
        touch(base, &turns);
        // SAFETY: The mapping just made, which nobody uses any more.
        check(unsafe { libc::munmap(base.cast(), pages * PAGE) })?;
        Ok(())
    };
    let others: Vec<_> = (1..threads)
        .map(|thread| std::thread::spawn(move || work(thread)))
        .collect();
    work(0)?;
    for other in others {
        other
            .join()
            .map_err(|_| std::io::Error::other("a thread failed"))??;
    }
    let (user, system) = usage()?;
    println!("{user} {system}");
    // SAFETY: The end; nothing is left to be flushed.
    unsafe { libc::_exit(0) }
}
