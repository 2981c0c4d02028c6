//! names: is given names and control groups, and prints what events should tell of it.
use kvmtrace_guest::{cgroups, check, set, wait_child};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;

/// A thread's id.
fn tid() -> i32 {
    // SAFETY: No arguments.
    unsafe { libc::gettid() }
}

fn named(name: &std::ffi::CStr) -> Result<String> {
    // SAFETY: A C string.
    check(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) })?;
    let pid = std::process::id();
    Ok(format!("task {} {pid} {}", tid(), name.to_string_lossy()))
}

fn main() -> Result<()> {
    let pid = std::process::id();
    cgroups(c"/tmp/names")?;
    std::fs::create_dir_all("/tmp/names/outer/inner")?;
    let mut lines = vec![named(c"first")?, named(c"second name")?];
    // Another thread, by itself and by this one.
    let (to, from) = std::sync::mpsc::channel();
    let (end, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let line = named(c"worker");
        let _ = to.send((tid(), line));
        let _ = wait.recv();
    });
    let (other, line) = from.recv().map_err(Error::other)?;
    lines.push(line?);
    set(&format!("/proc/self/task/{other}/comm"), "renamed")?;
    lines.push(format!("task {other} {pid} renamed"));
    // Too long a name is cut by the kernel.
    named(c"a name that is too long")?;
    lines.push(format!("task {pid} {pid} a name that is "));
    for group in ["/outer", "/outer/inner"] {
        set(&format!("/tmp/names{group}/cgroup.procs"), "0")?;
        lines.push(format!("cgroup {pid} {pid} {group}"));
    }
    drop(end);
    let _ = thread.join();
    // A child that begins elsewhere.
    let group = std::fs::File::open("/tmp/names/outer")?;
    let mut args = [0u64; 11];
    args[0] = 0x2_0000_0000; // CLONE_INTO_CGROUP
    args[4] = libc::SIGCHLD as u64;
    args[10] = group.as_raw_fd() as u64;
    // SAFETY: struct clone_args; the child ends at once.
    let child = unsafe {
        let child = libc::syscall(libc::SYS_clone3, args.as_ptr(), size_of_val(&args)) as i32;
        if child == 0 {
            libc::_exit(0);
        }
        check(child)?
    };
    lines.push(format!("cgroup {child} {child} /outer"));
    wait_child(child)?;
    set("/tmp/names/cgroup.procs", "0")?;
    lines.push(format!("cgroup {pid} {pid} /"));
    for line in &lines {
        println!("{line}");
    }
    Ok(())
}
