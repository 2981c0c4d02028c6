//! The guest's first process: runs the job and reports on a disk.

use kvmtrace_guest::{Step, StepResult, check};
use std::ffi::CString;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn mount(source: &str, target: &str, fs_type: &str, flags: u64) -> std::io::Result<()> {
    let _ = fs::create_dir_all(target);
    let s = CString::new(source)?;
    let t = CString::new(target)?;
    let f = CString::new(fs_type)?;
    // SAFETY: The strings live until the call returns.
    check(unsafe { libc::mount(s.as_ptr(), t.as_ptr(), f.as_ptr(), flags, std::ptr::null()) })?;
    Ok(())
}

/// The virtio disk with a serial, by which the host names disks.
fn disk(serial: &str) -> Option<String> {
    for entry in fs::read_dir("/sys/block").ok()? {
        let name = entry.ok()?.file_name().into_string().ok()?;
        // Other block devices have no such file.
        let found = fs::read_to_string(format!("/sys/block/{name}/serial"));
        if found.is_ok_and(|found| found.trim() == serial) {
            return Some(format!("/dev/{name}"));
        }
    }
    None
}

fn prepare() -> std::io::Result<bool> {
    mount("proc", "/proc", "proc", 0)?;
    mount("sysfs", "/sys", "sysfs", 0)?;
    mount("devtmpfs", "/dev", "devtmpfs", 0)?;
    std::fs::create_dir_all("/dev/shm")?;
    mount("tmpfs", "/tmp", "tmpfs", 0)?;
    mount("debugfs", "/sys/kernel/debug", "debugfs", 0)?;
    let names = ["trace", "swap", "small", "slow"].map(String::from);
    // A job with many traces has a disk for each.
    let more = (1..).map(|n| format!("trace{n}"));
    for name in names.into_iter().chain(more) {
        match disk(&name) {
            Some(d) => symlink(d, format!("/dev/{name}"))?,
            None if name.starts_with("trace") => break,
            None => {}
        }
    }
    let shared = disk("shared");
    let Some(root) = disk("root") else {
        if let Some(shared) = shared {
            mount(&shared, "/shared", "ext4", 0)?;
        }
        return Ok(false);
    };
    mount(&root, "/root", "ext4", 0)?;
    if let Some(shared) = shared {
        mount(&shared, "/root/shared", "ext4", 0)?;
        // Of no use to people; e2fsck makes one if it needs it.
        let _ = fs::remove_dir("/root/shared/lost+found");
    }
    for dir in ["/proc", "/sys", "/dev", "/tmp"] {
        mount(dir, &format!("/root{dir}"), "", libc::MS_BIND)?;
    }
    fs::create_dir_all("/root/opt/kvmtrace/bin")?;
    for entry in fs::read_dir("/bin")? {
        let path = entry?.path();
        if let Some(name) = path.file_name() {
            fs::copy(
                &path,
                format!("/root/opt/kvmtrace/bin/{}", name.to_string_lossy()),
            )?;
        }
    }
    if fs::exists("/files")? {
        for entry in fs::read_dir("/files")? {
            let path = entry?.path();
            if let Some(name) = path.file_name() {
                fs::copy(&path, format!("/root/work/{}", name.to_string_lossy()))?;
            }
        }
    }
    Ok(true)
}

/// Where the job and who does it are while another init runs.
const JOB: &str = "/work/job.json";
const WORKER: &str = "/opt/kvmtrace/bin/init";

/// Lets `step`, an init of the Debian root, be the first process from here on. It boots
/// as it does, and then starts the rest of the job.
fn hand_over(step: &Step, rest: &[Step]) -> std::io::Result<()> {
    fs::write(format!("/root{JOB}"), serde_json::to_vec(rest)?)?;
    fs::copy("/init", format!("/root{WORKER}"))?;
    // There are no virtual terminals for its getty's.
    let table = fs::read_to_string("/root/etc/inittab")?;
    let mut table: String = table
        .lines()
        .filter(|l| !l.contains("getty"))
        .flat_map(|l| [l, "\n"])
        .collect();
    table += &format!("kv:2:once:{WORKER} >/dev/console 2>&1\n");
    fs::write("/root/etc/inittab", table)?;
    let mut c = command(step);
    Err(c.exec())
}

/// Whether this process is not the first one, but was started by another init.
fn is_worker() -> bool {
    std::process::id() != 1
}

fn command(step: &Step) -> Command {
    let program = step.argv.first().map(String::as_str).unwrap_or("");
    let mut c = Command::new(program);
    c.args(step.argv.iter().skip(1))
        .env_clear()
        .env("PATH", "/opt/kvmtrace/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .env("HOME", "/tmp")
        .env("TERM", "dumb")
        .envs(step.env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::null());
    let chroot = step.chroot && !is_worker();
    let inside = step.chroot;
    let uid = step.uid;
    // SAFETY: Only system calls between fork and exec.
    unsafe {
        c.pre_exec(move || {
            if chroot {
                check(libc::chroot(c"/root".as_ptr()))?;
            }
            check(libc::chdir(if inside {
                c"/work".as_ptr()
            } else {
                c"/tmp".as_ptr()
            }))?;
            if uid != 0 {
                check(libc::setuid(uid))?;
            }
            Ok(())
        });
    }
    c
}

fn spawn(step: &Step, piped: bool) -> std::io::Result<Child> {
    let mut c = command(step);
    if piped {
        c.stdout(Stdio::piped()).stderr(Stdio::piped());
    } else {
        c.stdin(Stdio::inherit());
    }
    c.spawn()
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut p) = pipe {
            let _ = p.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn run(step: &Step) -> StepResult {
    let start = Instant::now();
    let failed = |why: String, start: Instant| StepResult {
        name: step.name.clone(),
        rc: 255,
        stdout: String::new(),
        stderr: why,
        ns: start.elapsed().as_nanos() as u64,
    };
    let mut child = match spawn(step, true) {
        Ok(c) => c,
        Err(e) => return failed(format!("can't start {:?}: {e}", step.argv), start),
    };
    let out = collect(child.stdout.take());
    let err = collect(child.stderr.take());
    let deadline = start + Duration::from_secs(step.timeout_s);
    let late = || {
        let after = Instant::now() >= deadline;
        if !after {
            std::thread::sleep(Duration::from_millis(2));
        }
        after
    };
    let status = loop {
        match child.try_wait() {
            Ok(Some(s)) => break Some(s),
            Ok(None) if !late() => {}
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        }
    };
    let ns = start.elapsed().as_nanos() as u64;
    let Some(status) = status else {
        return failed(format!("no end after {} s", step.timeout_s), start);
    };
    // What it left behind may hold its output.
    while !(out.is_finished() && err.is_finished()) {
        if late() {
            return failed(
                format!(
                    "ended ({status}), but what it started had its output after {} s",
                    step.timeout_s
                ),
                start,
            );
        }
    }
    StepResult {
        name: step.name.clone(),
        rc: status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or(127)),
        stdout: out.join().unwrap_or_default(),
        stderr: err.join().unwrap_or_default(),
        ns,
    }
}

fn job() -> std::io::Result<i32> {
    let file = if is_worker() {
        JOB
    } else {
        println!("BOOTED root={}", prepare()?);
        "/job.json"
    };
    let steps: Vec<Step> = serde_json::from_str(&fs::read_to_string(file)?)?;
    if let Some((first, rest)) = steps.split_first().filter(|(s, _)| s.name == "init") {
        hand_over(first, rest)?;
    }
    let mut results = Vec::new();
    let mut background = Vec::new();
    for step in &steps {
        if step.name == "shell" {
            let mut child = spawn(step, false)?;
            child.wait()?;
            continue;
        }
        println!("STEP {}", step.name);
        if step.background {
            background.push(spawn(step, true)?);
            continue;
        }
        results.push(run(step));
    }
    for mut b in background {
        let _ = b.kill();
        let _ = b.wait();
    }
    // SAFETY: No arguments.
    unsafe { libc::sync() };
    if let Some(out) = disk("out") {
        let json = serde_json::to_vec(&results)?;
        let mut f = fs::OpenOptions::new().write(true).open(out)?;
        f.write_all(&(json.len() as u64).to_le_bytes())?;
        f.write_all(&json)?;
        f.sync_all()?;
    } else {
        println!("RESULTS {}", serde_json::to_string(&results)?);
    }
    Ok(0)
}

fn main() {
    let rc = job().unwrap_or_else(|e| {
        println!("init: {e}");
        1
    });
    done(rc);
    // SAFETY: The end of the guest.
    unsafe {
        libc::sync();
        libc::reboot(libc::RB_POWER_OFF);
    }
}

/// Says that the guest is done, on a line of its own: what goes to a terminal may have
/// the kernel's messages in the midst of a line, and the kernel's own have none.
fn done(rc: i32) {
    // SAFETY: Waits until the terminal has sent what it got; no memory is passed.
    unsafe { libc::tcdrain(1) };
    let line = format!("DONE rc={rc}");
    // Level 1 is shown whatever the console's is.
    if fs::write("/dev/kmsg", format!("<1>{line}\n")).is_err() {
        println!("{line}");
    }
}
