//! needed yes|no PAGES: declares that others need it to get on, or does not. Each time it
//! gets SIGUSR1 it touches so many new pages and prints a line.
use kvmtrace_guest::{arg, map_at, write};
use std::io::{Result, Write};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// include/uapi/linux/prctl.h
const PR_SET_IO_FLUSHER: i32 = 57;

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: i32) {
    SIGNALS.fetch_add(1, SeqCst);
}

fn main() -> Result<()> {
    let needed = std::env::args().nth(1).as_deref() == Some("yes");
    let pages = arg(2, 100);
    // SAFETY: A handler that only counts; numbers.
    unsafe {
        let handler: extern "C" fn(i32) = count;
        libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t);
        if needed && libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    for round in 0.. {
        while SIGNALS.load(SeqCst) <= round {
            // A second at most, lest a signal be missed that comes before.
            // SAFETY: No memory is involved.
            unsafe { libc::usleep(1_000_000) };
        }
        let base = map_at(0x1000_0000_0000 + ((round as usize) << 32), pages)?;
        for i in 0..pages {
            write(base, i, 1);
        }
        println!("touched {round}");
        std::io::stdout().flush()?;
    }
    Ok(())
}
