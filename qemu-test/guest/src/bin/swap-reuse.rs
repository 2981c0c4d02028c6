//! swap-reuse DEVICE: pages memory out to swap, reads it back, writes it.
use kvmtrace_guest::{PAGE, check, map_at, sum, swap_on, write};

fn main() -> std::io::Result<()> {
    const PAGES: usize = 400;
    let device = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "/dev/swap".into());
    swap_on(&device)?;
    let name = std::ffi::CString::new(device)?;
    let base = map_at(0x1000_0000_0000, PAGES)?;
    for round in 0..3u8 {
        for i in 0..PAGES {
            write(base, i, (i as u8).wrapping_add(round));
        }
        // SAFETY: The range is the program's own.
        check(unsafe { libc::madvise(base.cast(), PAGES * PAGE, libc::MADV_PAGEOUT) })?;
        println!("{round}: {}", sum(base, PAGES));
        for i in (0..PAGES).step_by(2) {
            write(base, i, round);
        }
        println!("{round}: {}", sum(base, PAGES));
    }
    // Pages that a child shared when they went out are not exclusive when they
    // come back, so a store reuses them through do_wp_page().
    for i in 0..PAGES {
        write(base, i, 7);
    }
    // SAFETY: One thread.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        // SAFETY: As above, and the end of the child.
        unsafe {
            libc::madvise(base.cast(), PAGES * PAGE, libc::MADV_PAGEOUT);
            libc::_exit(0);
        }
    }
    // SAFETY: A child of ours; the range is the program's own.
    unsafe {
        check(libc::waitpid(pid, std::ptr::null_mut(), 0))?;
        check(libc::madvise(base.cast(), PAGES * PAGE, libc::MADV_PAGEOUT))?;
    }
    for i in 0..PAGES {
        write(base, i, i as u8);
    }
    println!("shared {}", sum(base, PAGES));
    // SAFETY: As above.
    check(unsafe { libc::swapoff(name.as_ptr()) })?;
    println!("off {}", sum(base, PAGES));
    Ok(())
}
