//! Memory that the kernel itself has no mapping of (memfd_secret): two processes write it
//! and read it, and no system call reaches it. Prints the sum, and the error of a write()
//! from it.
use kvmtrace_guest::{PAGE, check, fork_child, map_with, read, sum, wait_child, write};
use std::io::{Error, Result};

const PAGES: usize = 96;

fn main() -> Result<()> {
    // SAFETY: No memory is passed.
    let fd = check(unsafe { libc::syscall(libc::SYS_memfd_secret, 0) } as i32)?;
    // SAFETY: A descriptor of ours.
    check(unsafe { libc::ftruncate(fd, (PAGES * PAGE) as libc::off_t) })?;
    let base = map_with(
        0x1000_0000_0000,
        PAGES,
        libc::MAP_SHARED | libc::MAP_FIXED,
        fd,
    )?;
    for round in 1..=3u8 {
        for i in 0..PAGES {
            write(base, i, read(base, i).wrapping_add(round));
        }
        let child = fork_child(|| {
            for i in (0..PAGES).rev() {
                write(base, i, read(base, i) ^ 1);
            }
            0
        })?;
        if wait_child(child)? != 0 {
            return Err(Error::other("the child failed"));
        }
    }
    // O_DIRECT and the like would need the page's frame.
    let mut ends = [0; 2];
    let part = libc::iovec {
        iov_base: base.cast(),
        iov_len: PAGE,
    };
    // SAFETY: Room for two descriptors; a page of ours.
    let n = unsafe {
        check(libc::pipe(ends.as_mut_ptr()))?;
        libc::vmsplice(ends[1], &part, 1, 0)
    };
    let error = Error::last_os_error().raw_os_error().unwrap_or(0);
    let refused = if n < 0 { error } else { 0 };
    println!("sum {} refused {refused}", sum(base, PAGES));
    Ok(())
}
