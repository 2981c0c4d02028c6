//! Parent and child write to memory that fork made them share.
use kvmtrace_guest::{check, map_at, sum, write};

fn main() -> std::io::Result<()> {
    const PAGES: usize = 200;
    let base = map_at(0x1000_0000_0000, PAGES)?;
    for i in 0..PAGES {
        write(base, i, i as u8);
    }
    // SAFETY: One thread.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        for i in (0..PAGES).step_by(2) {
            write(base, i, 1);
        }
        println!("child {}", sum(base, PAGES));
        return Ok(());
    }
    // SAFETY: Waits for the child just made.
    check(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) })?;
    for i in (0..PAGES).step_by(3) {
        write(base, i, 2);
    }
    println!("parent {}", sum(base, PAGES));
    Ok(())
}
