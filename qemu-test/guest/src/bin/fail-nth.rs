//! `fail-nth`: each ioctl of the tracer again and again, with the first, the second, the
//! third … operation of its task failing that can fail (/proc/thread-self/fail-nth), until
//! none is left that fails. A child is traced meanwhile. Prints for each ioctl how many
//! operations there were and which errors came of them, whether a trace that began and lost
//! nothing is good by `postproc check`, and how much memory is available before and after.
use kvmtrace_guest::{counter, set};
use rust_mm_trace::ioctl;
use rust_mm_trace::uapi::{VMTRACE_PIECE, vmtrace_config, vmtrace_rotate, vmtrace_status};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TRACE: &str = "/tmp/nth.vmt";
/// The same in pieces.
const PIECES: &str = "/tmp/nth";
const FIRST: &str = "/tmp/nth/00000.vmtrace";
const SECOND: &str = "/tmp/nth/00001.vmtrace";
/// Which operation of this thread is to fail; what is left of it.
const NTH: &str = "/proc/thread-self/fail-nth";

fn memory() -> Result<u64> {
    set("/proc/sys/vm/drop_caches", "3")?;
    Ok(counter("/proc/meminfo", "MemAvailable"))
}

struct Tracer {
    device: File,
    nth: File,
    child: Child,
}

/// 0, or the error.
fn call<T>(device: &File, request: u32, argument: &mut T) -> i32 {
    // SAFETY: Each request is called with its structure.
    let ret = unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            request as libc::Ioctl,
            std::ptr::from_mut(argument),
        )
    };
    match ret {
        0.. => 0,
        _ => Error::last_os_error().raw_os_error().unwrap_or(-1),
    }
}

impl Tracer {
    fn start(&self, windows: bool, pieces: bool) -> Result<(File, vmtrace_config)> {
        let out = File::create(if pieces { FIRST } else { TRACE })?;
        let config = vmtrace_config {
            size: size_of::<vmtrace_config>() as u32,
            flags: if pieces { VMTRACE_PIECE } else { 0 },
            out_fd: out.as_raw_fd(),
            scope: 2,
            pid: self.child.id() as i32,
            evms_size: 64,
            nr_buffers: 8,
            buffer_size: 16384,
            stall_ms: 10_000,
            classes: 0x7f,
            windows: if windows { u32::MAX } else { 0 },
            window_time: if windows { 10_000_000 } else { 0 },
            skip: if windows { 1_000_000 } else { 0 },
            ..Default::default()
        };
        Ok((out, config))
    }

    /// The error of one ioctl whose n-th operation fails, and whether one failed.
    fn failing<T>(&self, n: u32, request: u32, argument: &mut T) -> Result<(i32, bool)> {
        self.nth.write_all_at(n.to_string().as_bytes(), 0)?;
        let ret = call(&self.device, request, argument);
        let mut left = [0u8; 16];
        // If this fails, the ioctl had fewer operations.
        let failed = self
            .nth
            .read_at(&mut left, 0)
            .is_ok_and(|_| left[0] == b'0');
        while self.nth.write_all_at(b"0", 0).is_err() {}
        Ok((ret, failed))
    }

    /// Ends the trace, and gives its last status.
    fn end(&self) -> Result<vmtrace_status> {
        let mut status = vmtrace_status::default();
        let limit = Instant::now() + Duration::from_secs(30);
        loop {
            match call(&self.device, ioctl::STOP, &mut status) {
                0 | libc::EIO | libc::EINPROGRESS | libc::EBUSY => {}
                libc::ENODATA => break,
                e => return Err(Error::from_raw_os_error(e)),
            }
            if Instant::now() > limit {
                return Err(Error::other("the trace does not end"));
            }
        }
        match call(&self.device, ioctl::STATUS, &mut status) {
            0 => Ok(status),
            e => Err(Error::from_raw_os_error(e)),
        }
    }

    /// What a trace that has ended is like.
    fn judge(&self, status: &vmtrace_status, path: &str) -> Result<String> {
        let lost = status.lost_full + status.lost_atomic + status.lost_io;
        let wrong = status.funny + status.stuck + status.dangling + status.miscounted;
        let sound = status.error == 0 && lost == 0 && wrong == 0;
        let rc = Command::new("/bin/postproc")
            .args(["check", path])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?
            .code();
        Ok(match (sound, rc) {
            (true, Some(0)) => "good".into(),
            (false, Some(1 | 2)) => "bad".into(),
            (sound, rc) => format!("DISAGREES: {sound} {rc:?}"),
        })
    }

    /// The same of the request for the second piece. If it is refused, its file is removed.
    fn rotate(&self, n: u32) -> Result<(i32, bool)> {
        let _ = std::fs::remove_file(SECOND);
        let out = File::create(SECOND)?;
        let mut next = vmtrace_rotate {
            size: size_of::<vmtrace_rotate>() as u32,
            out_fd: out.as_raw_fd(),
            ..Default::default()
        };
        let (ret, failed) = self.failing(n, ioctl::ROTATE, &mut next)?;
        if !matches!(ret, 0 | libc::EINPROGRESS) {
            std::fs::remove_file(SECOND)?;
        }
        Ok((ret, failed))
    }

    fn each(&self, name: &str, windows: bool) -> Result<()> {
        let mut results: BTreeMap<String, u32> = BTreeMap::new();
        let mut n = 0;
        loop {
            n += 1;
            let pieces = name == "ROTATE";
            let (out, mut config) = self.start(windows, pieces)?;
            let mut status = vmtrace_status::default();
            let mut size = 128u32;
            let (ret, failed) = if name == "START" {
                self.failing(n, ioctl::START, &mut config)?
            } else {
                let ret = call(&self.device, ioctl::START, &mut config);
                if ret != 0 {
                    return Err(Error::other(format!("START: {ret}")));
                }
                std::thread::sleep(Duration::from_millis(20));
                match name {
                    "STATUS" => self.failing(n, ioctl::STATUS, &mut status)?,
                    "RESIZE" => self.failing(n, ioctl::RESIZE, &mut size)?,
                    "ROTATE" => self.rotate(n)?,
                    _ => self.failing(n, ioctl::STOP, &mut status)?,
                }
            };
            drop(out);
            let began = name != "START" || ret == 0;
            let last = self.end()?;
            let judged = match (began, pieces) {
                (true, false) => self.judge(&last, TRACE)?,
                (true, true) => {
                    // The piece is there if, and only if, the request said so.
                    let has_begun = matches!(ret, 0 | libc::EINPROGRESS);
                    if last.error == 0 && last.piece != u32::from(has_begun) {
                        format!("DISAGREES: piece {}", last.piece)
                    } else {
                        self.judge(&last, PIECES)?
                    }
                }
                (false, _) => "none".into(),
            };
            *results
                .entry(format!("error {ret} trace {judged}"))
                .or_default() += 1;
            if !failed {
                break;
            }
            if n > 5000 {
                return Err(Error::other("no end"));
            }
        }
        let windows = if windows { " windows" } else { "" };
        for (result, many) in results {
            println!("{name}{windows} {result}: {many}");
        }
        println!("{name}{windows} operations {}", n - 1);
        // For who looks at the console.
        let _ = std::fs::write("/dev/kmsg", format!("{name}{windows}: {n}\n"));
        Ok(())
    }
}

fn main() -> Result<()> {
    for kind in ["fail_page_alloc", "failslab"] {
        set(&format!("/sys/kernel/debug/{kind}/ignore-gfp-wait"), "N")?;
    }
    set("/sys/kernel/debug/fail_page_alloc/min-order", "0")?;
    set("/sys/kernel/debug/fail_page_alloc/ignore-gfp-highmem", "N")?;
    let child = Command::new("/bin/touch-loop")
        .args(["200", "100000000"])
        .stdout(Stdio::null())
        .spawn()?;
    let mut both = OpenOptions::new();
    both.read(true).write(true);
    let tracer = Tracer {
        device: both.open("/dev/vmtrace")?,
        nth: both.open(NTH)?,
        child,
    };
    std::fs::create_dir(PIECES)?;
    let mut before = 0;
    for round in 0..2 {
        for name in ["START", "STATUS", "RESIZE", "ROTATE", "STOP"] {
            tracer.each(name, false)?;
        }
        tracer.each("START", true)?;
        // The first round fills what the kernel keeps.
        if round == 0 {
            before = memory()?;
        }
    }
    let after = memory()?;
    println!("memory {before} {after}");
    let mut child = tracer.child;
    child.kill()?;
    child.wait()?;
    Ok(())
}
