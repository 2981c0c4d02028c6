//! `file-storm FILE ROUNDS`: a file is made, mapped, touched, punched, truncated and deleted
//! again and again; for ever if ROUNDS is no number. The last one of a number stays.
use kvmtrace_guest::{PAGE, check, map_with, write};
use std::os::fd::AsRawFd;

const PAGES: usize = 8;

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_default();
    let rounds = std::env::args().nth(2).and_then(|n| n.parse().ok());
    let rounds: u64 = rounds.unwrap_or(u64::MAX);
    for i in 1..=rounds {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        file.set_len((PAGES * PAGE) as u64)?;
        let base = map_with(0, PAGES, libc::MAP_SHARED, file.as_raw_fd())?;
        (0..PAGES).for_each(|page| write(base, page, 1));
        let (fd, page) = (file.as_raw_fd(), PAGE as i64);
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: A file of ours.
        check(unsafe { libc::fallocate(fd, punch, page, 2 * page) })?;
        write(base, 1, 2);
        file.set_len(5 * PAGE as u64)?;
        // SAFETY: Mapped above.
        check(unsafe { libc::munmap(base.cast(), PAGES * PAGE) })?;
        if i < rounds {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}
