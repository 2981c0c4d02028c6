//! `stop-large PAGES N HOW OUTPUT`: a child refers to its pages with a set of N, so that
//! all are members. HOW is `off`; or `resize`, which makes the set small first; or `both`, where
//! `off` comes while the set is made small. Prints the ns that each took.
use kvmtrace_guest::{PAGE, activator, arg, check, fork_child, map_with, read, wait_child};
use std::io::{Error, Result};
use std::time::Instant;

/// Waits for the other side, or lets it go on.
fn take(fd: i32) -> bool {
    let mut byte = 0u8;
    // SAFETY: A byte of ours.
    unsafe { libc::read(fd, (&raw mut byte).cast(), 1) == 1 }
}

fn give(fd: i32) {
    // SAFETY: A byte of ours.
    unsafe { libc::write(fd, [0u8].as_ptr().cast(), 1) };
}

fn pipe() -> Result<[i32; 2]> {
    let mut ends = [0; 2];
    // SAFETY: Room for two descriptors.
    check(unsafe { libc::pipe(ends.as_mut_ptr()) })?;
    Ok(ends)
}

fn timed(what: &str) -> Result<u64> {
    let begin = Instant::now();
    activator(what)?;
    Ok(begin.elapsed().as_nanos() as u64)
}

fn main() -> Result<()> {
    let (pages, n) = (arg(1, 1000), arg(2, 1000));
    let how = std::env::args().nth(3).unwrap_or_default();
    let output = std::env::args().nth(4).unwrap_or_default();
    let (go, done) = (pipe()?, pipe()?);
    // The pages are more than the memory of the machine.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let base = map_with(0x1000_0000_0000, pages, flags, -1)?;
    // SAFETY: Mapped above. Of a huge page there would be one member only.
    check(unsafe { libc::madvise(base.cast(), pages * PAGE, libc::MADV_NOHUGEPAGE) })?;
    let child = fork_child(|| {
        // If the parent fails, this is to end, too.
        // SAFETY: Descriptors of ours.
        unsafe {
            libc::close(go[1]);
            libc::close(done[0]);
        }
        if !take(go[0]) {
            return 1;
        }
        // Never written: all have the zero page, so that a small machine has enough.
        (0..pages).for_each(|i| {
            read(base, i);
        });
        give(done[1]);
        take(go[0]);
        0
    })?;
    activator(&format!("on --pid {child} -n {n} --force -o {output}"))?;
    give(go[1]);
    if !take(done[0]) {
        return Err(Error::other("the child has gone"));
    }
    if how == "resize" {
        println!("resize {}", timed("resize 64")?);
    }
    let resizing = match how.as_str() {
        "both" => {
            let child = std::process::Command::new("/bin/activator")
                .args(["resize", "64"])
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()?;
            // It has begun by then, and has much left to do.
            std::thread::sleep(std::time::Duration::from_millis(50));
            Some(child)
        }
        _ => None,
    };
    println!("off {}", timed("off")?);
    if let Some(mut child) = resizing {
        println!("exit {}", child.wait()?.code().unwrap_or(-1));
    }
    give(go[1]);
    wait_child(child)?;
    Ok(())
}
