//! `switches N`: a child answers N times, so that both have to wait. Prints what the
//! kernel says of the child when it is gone.
use kvmtrace_guest::{arg, check, fork_child};
use std::io::{Read, Result, Write};
use std::os::unix::net::UnixStream;

fn main() -> Result<()> {
    let n = arg(1, 100);
    let (mut here, mut there) = UnixStream::pair()?;
    let child = fork_child(|| {
        for _ in 0..n {
            let mut byte = [0];
            let _ = there.read(&mut byte);
            let _ = there.write(&byte);
        }
        0
    })?;
    for i in 0..n {
        here.write_all(&[i as u8])?;
        here.read_exact(&mut [0])?;
    }
    // SAFETY: A plain struct, that the call fills in.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    // SAFETY: A child of ours.
    check(unsafe { libc::wait4(child, &mut status, 0, &mut used) })?;
    println!(
        "parent {} child {child} switches {}",
        std::process::id(),
        used.ru_nvcsw + used.ru_nivcsw
    );
    Ok(())
}
