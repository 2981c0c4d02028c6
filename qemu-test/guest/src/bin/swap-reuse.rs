//! swap-reuse DEVICE: pages memory out to swap, reads it back, writes it.
use kvmtrace_guest::{PAGE, check, map_at, sum, write};

/// Makes a swap area of a device, as mkswap does (include/linux/swap.h).
fn make_swap(device: &str) -> std::io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    let mut f = std::fs::OpenOptions::new().write(true).open(device)?;
    let pages = (f.seek(SeekFrom::End(0))? / PAGE as u64) as u32;
    let mut head = vec![0u8; PAGE];
    head[1024..1028].copy_from_slice(&1u32.to_le_bytes());
    head[1028..1032].copy_from_slice(&(pages - 1).to_le_bytes());
    head[PAGE - 10..].copy_from_slice(b"SWAPSPACE2");
    f.seek(SeekFrom::Start(0))?;
    f.write_all(&head)?;
    f.sync_all()
}

fn main() -> std::io::Result<()> {
    const PAGES: usize = 400;
    let device = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "/dev/swap".into());
    make_swap(&device)?;
    let name = std::ffi::CString::new(device)?;
    // SAFETY: The name is a C string. EBUSY: on since an earlier run.
    let on = unsafe { libc::swapon(name.as_ptr(), 0) };
    if on < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EBUSY) {
        return Err(std::io::Error::last_os_error());
    }
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
