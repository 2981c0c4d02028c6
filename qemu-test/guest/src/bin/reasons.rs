//! `reasons FILE`: ends the stays of pages in several ways, each page in one. The first
//! page of each way lies at 1 << 44 and then every 1 << 30 bytes.
use kvmtrace_guest::{PAGE, check, map_at, map_with, new_file, write};
use std::os::fd::AsRawFd;

const BASE: usize = 0x1000_0000_0000;
const STEP: usize = 1 << 30;

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_default();
    let file = new_file(&path, 3)?;
    let fd = file.as_raw_fd();
    let shared = libc::MAP_SHARED | libc::MAP_FIXED;
    let private = libc::MAP_PRIVATE | libc::MAP_FIXED;
    let [free, dontneed, guard] = [0, 1, 2].map(|i| map_at(BASE + i * STEP, 1));
    let (free, dontneed, guard) = (free?, dontneed?, guard?);
    let hole = map_with(BASE + 3 * STEP, 1, shared, fd)?;
    // The file's third page, and a copy of it.
    let [end, copy] = [(4, shared), (5, private)].map(|(i, flags)| {
        let base = map_with(BASE + i * STEP, 3, flags, fd);
        base.map(|base| base.wrapping_add(2 * PAGE))
    });
    let (end, copy) = (end?, copy?);
    for page in [free, dontneed, guard, hole, end, copy] {
        write(page, 0, 1);
    }
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const MADV_GUARD_INSTALL: i32 = 102;
    // SAFETY: Pages that are mapped, and a file of ours.
    unsafe {
        for (page, advice) in [
            (free, libc::MADV_FREE),
            (dontneed, libc::MADV_DONTNEED),
            (guard, MADV_GUARD_INSTALL),
        ] {
            check(libc::madvise(page.cast(), PAGE, advice))?;
        }
        check(libc::fallocate(fd, punch, 0, PAGE as i64))?;
    }
    file.set_len(2 * PAGE as u64)?;
    println!("done");
    Ok(())
}
