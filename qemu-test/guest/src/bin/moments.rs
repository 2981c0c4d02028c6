//! moments N OUTPUT SCRIPT: runs a shell's script again and again in a control group of
//! its own, freezes the group N times at random moments, and writes to OUTPUT what
//! /proc/PID/maps of all its processes says then. At each moment it opens a file
//! `moment-K`, so that its event tells when that was.
use kvmtrace_guest::{arg, cgroups, set, wait_for};
use std::io::{Result, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

const GROUP: &str = "/tmp/cgroup/moments";

fn frozen() -> bool {
    std::fs::read_to_string(format!("{GROUP}/cgroup.events"))
        .is_ok_and(|t| t.lines().any(|l| l == "frozen 1"))
}

fn main() -> Result<()> {
    let output = std::env::args().nth(2).unwrap_or_default();
    let script = std::env::args().nth(3).unwrap_or_default();
    cgroups(c"/tmp/cgroup")?;
    std::fs::create_dir_all(GROUP)?;
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", &format!("while :; do {script}; done")])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // SAFETY: A plain write between fork and exec.
    unsafe { shell.pre_exec(|| set(&format!("{GROUP}/cgroup.procs"), "0")) };
    let mut shell = shell.spawn()?;
    let mut out = std::fs::File::create(&output)?;
    let mut seed = 1u64;
    for k in 0..arg(1, 10) {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        std::thread::sleep(Duration::from_millis(300 + (seed >> 33) % 1500));
        set(&format!("{GROUP}/cgroup.freeze"), "1")?;
        wait_for(60, "frozen", frozen)?;
        drop(std::fs::File::create(format!("{output}.moment-{k}"))?);
        for pid in std::fs::read_to_string(format!("{GROUP}/cgroup.procs"))?.lines() {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"))?;
            // Who ends has left its address space.
            if !maps.is_empty() {
                write!(out, "moment {k} {pid} {comm}{maps}")?;
            }
        }
        set(&format!("{GROUP}/cgroup.freeze"), "0")?;
    }
    set(&format!("{GROUP}/cgroup.kill"), "1")?;
    shell.wait()?;
    println!("{} moments", arg(1, 10));
    Ok(())
}
