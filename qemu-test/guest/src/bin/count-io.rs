//! count-io SCRIPT: runs a shell's script, and prints its process id, and what it and
//! all whom it waited for have read and written by system calls: rchar and wchar.
use std::io::{Error, Result};
use std::process::{Command, Stdio};

fn main() -> Result<()> {
    let script = std::env::args().nth(1).unwrap_or_default();
    let child = Command::new("/bin/sh")
        .args(["-c", &script])
        .stdout(Stdio::null())
        .spawn()?;
    let pid = child.id();
    // Its counts are there as long as nobody has waited for it.
    // SAFETY: Zeros are a siginfo, which the kernel fills in.
    let status = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOWAIT;
        if libc::waitid(libc::P_PID, pid, &mut info, flags) != 0 {
            return Err(Error::last_os_error());
        }
        info.si_status()
    };
    let io = std::fs::read_to_string(format!("/proc/{pid}/io"))?;
    let field = |key: &str| io.lines().find_map(|l| l.strip_prefix(key)).unwrap_or("");
    println!("{pid}{}{}", field("rchar:"), field("wchar:"));
    std::process::exit(status)
}
