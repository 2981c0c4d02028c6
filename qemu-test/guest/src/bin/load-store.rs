//! `load-store KIND PAGES [WORK]`: one thread only loads and one only stores the same pages,
//! each page at the same moment. KIND is what the pages are before the store copies them:
//! `file`, pages of a file that is mapped privately; `zero`, anonymous memory that was never
//! written; `fork`, memory that a child shares. WORK spreads the store over that many turns
//! of a loop. Prints the sum of what is in the pages at the end.
use kvmtrace_guest::{PAGE, Sharer, arg, map_at, map_with, read, sum, write};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const BASE: usize = 0x1000_0000_0000;

/// Pages of a file, each with a one, mapped privately.
fn file(pages: usize) -> Result<*mut u8> {
    let path = "/tmp/load-store";
    std::fs::write(path, vec![1; pages * PAGE])?;
    let file = std::fs::File::open(path)?;
    let base = map_with(
        BASE,
        pages,
        libc::MAP_PRIVATE | libc::MAP_FIXED,
        file.as_raw_fd(),
    )?;
    std::fs::remove_file(path)?;
    Ok(base)
}

fn race(pages: usize, work: usize) {
    let (loads, stores) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let meet = |mine: &AtomicUsize, other: &AtomicUsize, page: usize| {
        mine.store(page + 1, SeqCst);
        while other.load(SeqCst) <= page {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0..pages {
                meet(&loads, &stores, i);
                read(BASE as *mut u8, i);
            }
        });
        for i in 0..pages {
            meet(&stores, &loads, i);
            // Each part of the load's fault has its turn.
            for _ in 0..i * 7919 % work {
                std::hint::spin_loop();
            }
            write(BASE as *mut u8, i, 2);
        }
    });
}

fn main() -> Result<()> {
    let kind = std::env::args().nth(1).unwrap_or_default();
    let (pages, work) = (arg(2, 1000), arg(3, 400));
    let base = match kind.as_str() {
        "file" => file(pages)?,
        "zero" => map_at(BASE, pages)?,
        "fork" => {
            let base = map_at(BASE, pages)?;
            (0..pages).for_each(|i| write(base, i, 1));
            base
        }
        _ => return Err(Error::other("file, zero or fork?")),
    };
    let sharer = Sharer::new()?;
    race(pages, work);
    println!("{}", sum(base, pages));
    sharer.end()
}
