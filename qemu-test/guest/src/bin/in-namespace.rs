//! `in-namespace PROGRAM ARG…`: executes a program as root of a new user namespace, who is the
//! caller outside it.
use std::fs;
use std::io::{Error, Result};
use std::os::unix::process::CommandExt;
use std::process::Command;

fn main() -> Result<()> {
    let mut words = std::env::args_os().skip(1);
    let program = words.next().ok_or(Error::other("a program is missing"))?;
    // SAFETY: Numbers.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    // SAFETY: There is one thread, which keeps its memory and files.
    kvmtrace_guest::check(unsafe { libc::unshare(libc::CLONE_NEWUSER) })?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
    Err(Command::new(program).args(words).exec())
}
