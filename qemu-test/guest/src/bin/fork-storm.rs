//! Children that live shortly, so that victims' address spaces end while they
//! are evicted.
use kvmtrace_guest::{arg, check, map_at, sum, write};

fn main() -> std::io::Result<()> {
    const PAGES: usize = 60;
    let base = map_at(0x1000_0000_0000, PAGES)?;
    let mut total = 0i64;
    for n in 0..arg(1, 60) {
        for i in 0..PAGES {
            write(base, i, (n + i) as u8);
        }
        let mut pids = Vec::new();
        for c in 0..3u8 {
            // SAFETY: One thread.
            let pid = check(unsafe { libc::fork() })?;
            if pid == 0 {
                for i in (0..PAGES).step_by(usize::from(c) + 1) {
                    write(base, i, c);
                }
                // SAFETY: The end of the child.
                unsafe { libc::_exit((sum(base, PAGES) % 100) as i32) };
            }
            pids.push(pid);
        }
        for pid in pids {
            let mut status = 0;
            // SAFETY: A child of ours.
            check(unsafe { libc::waitpid(pid, &mut status, 0) })?;
            total += i64::from(libc::WEXITSTATUS(status));
        }
    }
    println!("{total} {}", sum(base, PAGES));
    Ok(())
}
