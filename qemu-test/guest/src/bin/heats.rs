//! `heats MS PAGES CPUS APART [huge]`: three blocks of PAGES pages, each of which begins APART pages after the
//! one before. For MS ms, one block is written all the time, one is read all the time, and the third one,
//! which was written once, is left alone.
//!
//! With 0 CPUS, one thread does all of that. Else there is a thread for each of the two blocks: that which
//! writes stays on CPU 0, and that which reads stays on the last one of CPUS CPUs. With `huge`, the blocks
//! may have huge pages.
//! Prints where the blocks lie, what they hold, and the KiB that they have in huge pages, which is the same
//! each time. To stderr it prints "steady BEGIN END": when these ms began and ended, in ns.
use kvmtrace_guest::{PAGE, arg, check, map_at, now_ns, read, smaps, stay_on, sum, write};
use std::io::{Error, Result};

/// Where the first block lies.
const BASE: usize = 0x1000_0000_0000;

/// The blocks, in the order of their addresses: none that is in use lies beside another one.
const NAMES: [&str; 3] = ["written", "idle", "read"];

#[derive(Clone, Copy)]
struct Block {
    at: usize,
    pages: usize,
}

impl Block {
    fn new(at: usize, pages: usize, huge: bool) -> Result<Self> {
        let base = map_at(at, pages)?;
        let advice = match huge {
            true => libc::MADV_HUGEPAGE,
            false => libc::MADV_NOHUGEPAGE,
        };
        // SAFETY: The mapping is this program's.
        check(unsafe { libc::madvise(base.cast(), pages * PAGE, advice) })?;
        let block = Block { at, pages };
        block.write();
        Ok(block)
    }

    fn base(self) -> *mut u8 {
        self.at as *mut u8
    }

    /// Writes to each page, and always the same.
    fn write(self) {
        (0..self.pages).for_each(|page| write(self.base(), page, page as u8));
    }

    /// Reads from each page.
    fn read(self) {
        (0..self.pages).for_each(|page| {
            read(self.base(), page);
        });
    }
}

/// Does `work` again and again until `end`.
fn until(end: u64, work: impl Fn()) {
    while now_ns() < end {
        work();
    }
}

fn main() -> Result<()> {
    let (ms, pages, cpus) = (arg(1, 1000), arg(2, 256), arg(3, 0));
    let apart = arg(4, 8192);
    let huge = std::env::args().nth(5).is_some_and(|a| a == "huge");
    if pages > apart / 2 {
        return Err(Error::other("blocks are to be apart"));
    }
    let place = |number: usize| BASE + number * apart * PAGE;
    let [written, _, read] = [
        Block::new(place(0), pages, huge)?,
        Block::new(place(1), pages, huge)?,
        Block::new(place(2), pages, huge)?,
    ];
    let begin = now_ns();
    let end = begin + ms as u64 * 1_000_000;
    if cpus == 0 {
        until(end, || {
            written.write();
            read.read();
        });
    } else {
        let reads = std::thread::spawn(move || -> Result<()> {
            stay_on(cpus - 1)?;
            until(end, || read.read());
            Ok(())
        });
        stay_on(0)?;
        until(end, || written.write());
        reads
            .join()
            .map_err(|_| Error::other("the thread that reads failed"))??;
    }
    eprintln!("steady {begin} {}", now_ns());
    for (number, name) in NAMES.iter().enumerate() {
        let at = place(number);
        let sum = sum(at as *mut u8, pages);
        println!("{name} {at:#x} {:#x} {sum}", at + pages * PAGE);
    }
    println!("huge {}", smaps("AnonHugePages"));
    Ok(())
}
