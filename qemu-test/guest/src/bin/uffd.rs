//! Memory that a handler of this program's own supplies and protects with
//! userfaultfd: missing pages, write protection, read-write protection, pages
//! moved in. The handler must be asked exactly once per page.
use kvmtrace_guest::uffd::{
    COPY, MISSING, MOVE, REGISTER, RWP, RWPROTECT, UNREGISTER, WP, WRITEPROTECT, ioctl, open,
};
use kvmtrace_guest::{PAGE, check, map_at, read, sum, write};
use std::io::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const PAGES: usize = 96;
const LEN: u64 = (PAGES * PAGE) as u64;
const AREA: usize = 0x1000_0000_0000;
const FULL: usize = 0x1100_0000_0000;

const FEATURE_MOVE: u64 = 1 << 16;
const FEATURE_RWP: u64 = 1 << 17;
const FEATURE_RWP_ASYNC: u64 = 1 << 18;

/// Answers faults, and counts what it was asked: missing, WP, RWP.
fn handler(fd: i32, asked: &[AtomicUsize; 3]) {
    let mut page = vec![0u64; PAGE / 8];
    loop {
        let mut message = [0u64; 4];
        // SAFETY: Room for a message.
        let n = unsafe { libc::read(fd, message.as_mut_ptr().cast(), 32) };
        if n != 32 {
            return;
        }
        let (flags, at) = (message[1], message[2] & !(PAGE as u64 - 1));
        let i = (at - AREA as u64) / PAGE as u64;
        // Counted first: an answer lets go on who waits for it.
        let count = |kind: usize| asked[kind].fetch_add(1, SeqCst);
        let done = if flags & 8 != 0 {
            count(2);
            ioctl(fd, RWPROTECT, &mut [at, PAGE as u64, 0])
        } else if flags & 2 != 0 {
            count(1);
            ioctl(fd, WRITEPROTECT, &mut [at, PAGE as u64, 0])
        } else if i % 3 == 2 {
            count(0);
            let from = FULL as u64 + i * PAGE as u64;
            ioctl(fd, MOVE, &mut [at, from, PAGE as u64, 0, 0])
        } else {
            count(0);
            page.fill(i);
            let from = page.as_ptr() as u64;
            ioctl(fd, COPY, &mut [at, from, PAGE as u64, 0, 0])
        };
        if let Err(e) = done {
            eprintln!("fault on page {i}, flags {flags:#x}: {e}");
            std::process::exit(1);
        }
    }
}

fn take(asked: &[AtomicUsize; 3]) -> [usize; 3] {
    [0, 1, 2].map(|k| asked[k].swap(0, SeqCst))
}

fn main() -> Result<()> {
    let full = map_at(FULL, PAGES)?;
    let area = map_at(AREA, PAGES)?;
    for i in 0..PAGES {
        write(full, i, 200);
    }
    let fd = open(FEATURE_MOVE | FEATURE_RWP)?;
    let asked = Arc::new([const { AtomicUsize::new(0) }; 3]);
    let counts = asked.clone();
    std::thread::spawn(move || handler(fd, &counts));

    ioctl(fd, REGISTER, &mut [AREA as u64, LEN, MISSING | WP, 0])?;
    for _ in 0..2 {
        println!("missing {} {:?}", sum(area, PAGES), take(&asked));
    }
    for round in 0..2u8 {
        ioctl(fd, WRITEPROTECT, &mut [AREA as u64, LEN, 1])?;
        let before = sum(area, PAGES);
        println!("reads of protected pages {before} {:?}", take(&asked));
        for _ in 0..2 {
            for i in 0..PAGES {
                write(area, i, (i as u8).wrapping_add(round));
            }
            println!("writes {} {:?}", sum(area, PAGES), take(&asked));
        }
    }
    ioctl(fd, UNREGISTER, &mut [AREA as u64, LEN])?;

    ioctl(fd, REGISTER, &mut [AREA as u64, LEN, RWP, 0])?;
    for round in 0..3u8 {
        ioctl(fd, RWPROTECT, &mut [AREA as u64, LEN, 1])?;
        for _ in 0..2 {
            for i in 0..PAGES {
                if round == 1 {
                    write(area, i, 3);
                } else {
                    read(area, i);
                }
            }
            println!(
                "accesses of protected pages {} {:?}",
                sum(area, PAGES),
                take(&asked)
            );
        }
    }
    ioctl(fd, UNREGISTER, &mut [AREA as u64, LEN])?;

    // Nobody is asked, but which pages were accessed is told: what a tracer of
    // user space would do.
    let quiet = open(FEATURE_RWP | FEATURE_RWP_ASYNC)?;
    ioctl(quiet, REGISTER, &mut [AREA as u64, LEN, RWP, 0])?;
    for step in [2, 5] {
        ioctl(quiet, RWPROTECT, &mut [AREA as u64, LEN, 1])?;
        for i in (0..PAGES).step_by(step) {
            read(area, i);
        }
        sum(full, PAGES);
        println!("accessed {}", accessed()?);
    }
    println!("{}", sum(area, PAGES));
    Ok(())
}

/// Pages of the area that PAGEMAP_SCAN calls accessed.
fn accessed() -> Result<u64> {
    use std::os::fd::AsRawFd;
    const SCAN: u64 = 0xc060_6610;
    const IS_ACCESSED: u64 = 1 << 9;
    let f = std::fs::File::open("/proc/self/pagemap")?;
    let mut regions = [[0u64; 3]; PAGES];
    let mut scan = [
        96,
        0,
        AREA as u64,
        AREA as u64 + LEN,
        0,
        regions.as_mut_ptr() as u64,
        PAGES as u64,
        0,
        0,
        IS_ACCESSED,
        0,
        IS_ACCESSED,
    ];
    // SAFETY: The structure of 96 bytes that the kernel wants.
    let n = check(unsafe { libc::ioctl(f.as_raw_fd(), SCAN, scan.as_mut_ptr()) })?;
    let pages = regions
        .get(..n as usize)
        .ok_or_else(|| Error::other("more regions than pages"))?
        .iter()
        .map(|r| (r[1] - r[0]) / PAGE as u64)
        .sum();
    Ok(pages)
}
