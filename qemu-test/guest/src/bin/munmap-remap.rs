//! Maps new memory where old memory lay: it must read as zero.
use kvmtrace_guest::{PAGE, check, map_at, sum, write};

fn main() -> std::io::Result<()> {
    const PAGES: usize = 64;
    for round in 0..8u8 {
        let base = map_at(0x1000_0000_0000, PAGES)?;
        println!("{round}: new {}", sum(base, PAGES));
        for i in 0..PAGES {
            write(base, i, round);
        }
        println!("{round}: written {}", sum(base, PAGES));
        if round % 2 == 0 {
            // SAFETY: The range is the program's own and not used after.
            check(unsafe { libc::munmap(base.cast(), PAGES * PAGE) })?;
        } else {
            // SAFETY: As above; the next mapping replaces it.
            check(unsafe { libc::madvise(base.cast(), PAGES * PAGE, libc::MADV_DONTNEED) })?;
            println!("{round}: dropped {}", sum(base, PAGES));
        }
    }
    Ok(())
}
