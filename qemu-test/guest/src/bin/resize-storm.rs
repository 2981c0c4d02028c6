//! resize-storm ROUNDS N...: changes the size of the set through the activator, to
//! each N in turn, while children touch more pages than it has.
use kvmtrace_guest::{arg, check, map_at, write};
use std::process::Command;

/// Children that touch pages.
const CHILDREN: usize = 3;

fn main() -> std::io::Result<()> {
    let rounds = arg(1, 5);
    let sizes: Vec<String> = std::env::args().skip(2).collect();
    let base = map_at(0x1000_0000_0000, 400)?;
    let mut children = Vec::new();
    for _ in 0..CHILDREN {
        // SAFETY: One thread.
        let pid = check(unsafe { libc::fork() })?;
        if pid == 0 {
            loop {
                for i in 0..400 {
                    write(base, i, i as u8);
                }
            }
        }
        children.push(pid);
    }
    let mut done = 0;
    for _ in 0..rounds {
        for n in &sizes {
            let status = Command::new("/bin/activator")
                .args(["resize", n])
                .status()?;
            if status.success() {
                done += 1;
            }
        }
    }
    for pid in children {
        // SAFETY: Children of ours that have not been waited for.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
    }
    println!("resized {done} times");
    Ok(())
}
