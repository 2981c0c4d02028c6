//! Moves memory by page tables (2 MiB aligned) and by pages, and touches it.
use kvmtrace_guest::{PAGE, map_at, read, sum, write};

fn main() -> std::io::Result<()> {
    const PAGES: usize = 512 * 4;
    let old = map_at(0x1000_0000_0000, PAGES)?;
    // Away from THP: the pages are to be moved as page tables.
    // SAFETY: The range was mapped just now.
    unsafe { libc::madvise(old.cast(), PAGES * PAGE, libc::MADV_NOHUGEPAGE) };
    for i in 0..PAGES {
        write(old, i, i as u8);
    }
    for (round, to) in [0x1100_0000_0000usize, 0x1200_0000_1000, 0x1300_0000_0000]
        .into_iter()
        .enumerate()
    {
        let from = if round == 0 {
            old as usize
        } else {
            [0, 0x1100_0000_0000, 0x1200_0000_1000][round]
        };
        // SAFETY: Both ranges belong to this program.
        let p = unsafe {
            libc::mremap(
                from as *mut libc::c_void,
                PAGES * PAGE,
                PAGES * PAGE,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                to as *mut libc::c_void,
            )
        };
        if p == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        // These were touched last, at the old place. At the new place they must fault.
        for i in (PAGES - 8..PAGES).rev() {
            read(p.cast(), i);
        }
        println!("move {round}: {}", sum(p.cast(), PAGES));
        for i in (0..PAGES).step_by(5) {
            write(p.cast(), i, round as u8);
        }
    }
    println!("{}", sum(0x1300_0000_0000 as *mut u8, PAGES));
    Ok(())
}
