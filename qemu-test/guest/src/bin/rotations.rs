//! `rotations refused`: gives /dev/vmtrace requests for the next piece, and starts of traces in
//! pieces, that it is to refuse, and prints what it says to each. The directory /tmp/rotations is
//! to be new.
//! `rotations nobody`: the same request by somebody who may not.
//! `rotations many TASKS TIMES`: so many threads begin pieces of the trace that is on at a time, in
//! the directory of its present piece, as often as each succeeds. Prints how often, and how many
//! requests came while another one was under way.
use kvmtrace_guest::{arg, check};
use rust_mm_trace::ioctl;
use rust_mm_trace::uapi::{
    VMTRACE_COUNTED, VMTRACE_EARLY, VMTRACE_PIECE, VMTRACE_UNWRITTEN, vmtrace_config,
    vmtrace_rotate, vmtrace_status,
};
use std::fs::{self, File};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const DIR: &str = "/tmp/rotations";

fn device() -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true).open("/dev/vmtrace")
}

fn name(errno: i32) -> String {
    match errno {
        0 => "0".into(),
        libc::EAGAIN => "EAGAIN".into(),
        libc::EBADF => "EBADF".into(),
        libc::EBUSY => "EBUSY".into(),
        libc::EFAULT => "EFAULT".into(),
        libc::EINPROGRESS => "EINPROGRESS".into(),
        libc::EINVAL => "EINVAL".into(),
        libc::ENODATA => "ENODATA".into(),
        libc::ENOTTY => "ENOTTY".into(),
        libc::EOPNOTSUPP => "EOPNOTSUPP".into(),
        libc::EPERM => "EPERM".into(),
        n => format!("error-{n}"),
    }
}

/// Gives one request; the errno or 0.
fn call<T>(device: &File, request: u32, argument: *mut T) -> i32 {
    // SAFETY: The kernel refuses what it can't read or write.
    let ret = unsafe { libc::ioctl(device.as_raw_fd(), request as libc::Ioctl, argument) };
    match ret {
        0.. => 0,
        _ => Error::last_os_error().raw_os_error().unwrap_or(-1),
    }
}

fn status(device: &File) -> Result<vmtrace_status> {
    let mut status = vmtrace_status::default();
    match call(device, ioctl::STATUS, &raw mut status) {
        0 => Ok(status),
        errno => Err(Error::from_raw_os_error(errno)),
    }
}

fn text(chars: &[libc::c_char]) -> String {
    let bytes = chars.iter().map(|c| *c as u8).take_while(|b| *b != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

fn argument(fd: RawFd, path: &Path) -> vmtrace_rotate {
    let mut argument = vmtrace_rotate {
        size: size_of::<vmtrace_rotate>() as u32,
        out_fd: fd,
        ..Default::default()
    };
    let name = path.to_string_lossy();
    for (to, from) in argument.output[..255].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    argument
}

fn rotate(device: &File, fd: RawFd, path: &Path) -> i32 {
    let mut argument = argument(fd, path);
    call(device, ioctl::ROTATE, &raw mut argument)
}

fn config(out: &File, flags: u32) -> vmtrace_config {
    vmtrace_config {
        size: size_of::<vmtrace_config>() as u32,
        flags,
        out_fd: out.as_raw_fd(),
        scope: 2,
        pid: 1,
        evms_size: 64,
        ..Default::default()
    }
}

/// What makes a start wrong.
type Change = fn(&mut vmtrace_config);

fn refused() -> Result<()> {
    fs::create_dir(DIR)?;
    let path = |name: &str| Path::new(DIR).join(name);
    let new = |name: &str| File::create_new(path(name));
    let device = device()?;
    let say = |what: &str, errno| println!("{what} {}", name(errno));
    let start =
        |config: &mut vmtrace_config| call(&device, ioctl::START, std::ptr::from_mut(config));
    let stop = || {
        let mut status = vmtrace_status::default();
        call(&device, ioctl::STOP, &raw mut status)
    };

    let next = new("next")?;
    let fd = next.as_raw_fd();
    say("off", rotate(&device, fd, &path("next")));

    let out = new("refused")?;
    let refused: [(&str, Change); 3] = [
        ("unwritten", |c| {
            c.out_fd = -1;
            c.flags |= VMTRACE_UNWRITTEN | VMTRACE_COUNTED;
        }),
        ("early", |c| {
            *c = vmtrace_config {
                size: c.size,
                out_fd: c.out_fd,
                flags: VMTRACE_EARLY | VMTRACE_PIECE,
                scope: 1,
                ..Default::default()
            }
        }),
        ("unknown", |c| c.flags |= 1 << 17),
    ];
    for (what, change) in refused {
        let mut c = config(&out, VMTRACE_PIECE);
        change(&mut c);
        say(what, start(&mut c));
    }

    let out = new("whole")?;
    say("whole start", start(&mut config(&out, 0)));
    say("whole", rotate(&device, fd, &path("next")));
    say("whole stop", stop());

    let out = new("00000.vmtrace")?;
    let mut c = config(&out, VMTRACE_PIECE);
    c.output = argument(-1, &path("00000.vmtrace")).output;
    say("pieces start", start(&mut c));
    for (what, fd) in [("none", -1), ("closed", 1000)] {
        say(what, rotate(&device, fd, &path("next")));
    }
    let reader = File::open(path("next"))?;
    say("reader", rotate(&device, reader.as_raw_fd(), &path("next")));
    let null = File::options().write(true).open("/dev/null")?;
    say("null", rotate(&device, null.as_raw_fd(), &path("next")));
    let directory = File::open(DIR)?;
    say(
        "directory",
        rotate(&device, directory.as_raw_fd(), &path("next")),
    );
    let mut ends = [0; 2];
    // SAFETY: Room for two descriptors.
    check(unsafe { libc::pipe(ends.as_mut_ptr()) })?;
    say("pipe", rotate(&device, ends[1], &path("next")));
    for (what, size) in [("small", 4), ("short", 263), ("long", 265), ("nothing", 0)] {
        let mut a = argument(fd, &path("next"));
        a.size = size;
        say(what, call(&device, ioctl::ROTATE, &raw mut a));
    }
    let mut a = argument(fd, &path("next"));
    a.output.fill(b'x' as libc::c_char);
    say("unterminated", call(&device, ioctl::ROTATE, &raw mut a));
    say(
        "address",
        call(&device, ioctl::ROTATE, 8 as *mut vmtrace_rotate),
    );
    let other = ioctl::ROTATE ^ (4 << 16);
    say("other", call(&device, other, &raw mut a));
    println!("piece {}", status(&device)?.piece);
    // After all that, it still does what it is to do.
    fs::rename(path("next"), path("00001.vmtrace"))?;
    say("good", rotate(&device, fd, &path("00001.vmtrace")));
    let now = status(&device)?;
    println!("piece {} in {}", now.piece, text(&now.output));
    say("pieces stop", stop());
    say("over", rotate(&device, fd, &path("next")));
    for name in ["refused", "whole"] {
        fs::remove_file(path(name))?;
    }
    Ok(())
}

fn nobody() -> Result<()> {
    let device = device()?;
    let out = File::create("/tmp/nobody")?;
    // SAFETY: Numbers.
    check(unsafe { libc::setuid(65534) })?;
    let errno = rotate(&device, out.as_raw_fd(), Path::new("/tmp/nobody"));
    println!("nobody {}", name(errno));
    Ok(())
}

/// Begins a piece in a new file. Prints what came of it, and how long it took.
fn one(path: &Path) -> Result<()> {
    let file = File::create_new(path)?;
    let begin = std::time::Instant::now();
    let errno = rotate(&device()?, file.as_raw_fd(), path);
    println!("{} after {} ms", name(errno), begin.elapsed().as_millis());
    Ok(())
}

fn many(tasks: usize, times: usize) -> Result<()> {
    let device = device()?;
    let output = text(&status(&device)?.output);
    let directory: PathBuf = Path::new(&output).parent().unwrap_or(Path::new("/")).into();
    let (done, busy, again) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let work = |task: usize| -> Result<()> {
        let mut left = times;
        while left > 0 {
            // A name of its own, until it has a number.
            let path = directory.join(format!(".{task}-{left}"));
            let file = File::create_new(&path)?;
            match rotate(&device, file.as_raw_fd(), &path) {
                0 => {
                    // The piece says its number behind the header and the head of its packet.
                    let mut number = [0; 4];
                    let at = 4096 + size_of::<rust_mm_trace::uapi::vmtrace_packet>() as u64;
                    std::os::unix::fs::FileExt::read_exact_at(
                        &File::open(&path)?,
                        &mut number,
                        at,
                    )?;
                    let number = u32::from_le_bytes(number);
                    fs::rename(&path, directory.join(format!("{number:05}.vmtrace")))?;
                    done.fetch_add(1, SeqCst);
                    left -= 1;
                    continue;
                }
                libc::EBUSY => busy.fetch_add(1, SeqCst),
                libc::EAGAIN => again.fetch_add(1, SeqCst),
                errno => return Err(Error::from_raw_os_error(errno)),
            };
            fs::remove_file(&path)?;
            std::thread::yield_now();
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..tasks)
            .map(|task| scope.spawn(move || work(task)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            let failed = |_| Error::other("a thread failed");
            thread.join().map_err(failed)?
        })
    })?;
    let [done, busy, again] = [done, busy, again].map(|n| n.load(SeqCst));
    println!("rotated {done}");
    println!("busy {busy}");
    println!("again {again}");
    println!("piece {}", status(&device)?.piece);
    Ok(())
}

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("refused") => refused(),
        Some("nobody") => nobody(),
        Some("one") => one(Path::new(&std::env::args().nth(2).unwrap_or_default())),
        Some("many") => many(arg(2, 4), arg(3, 20)),
        _ => Err(Error::other("give refused, nobody or many")),
    }
}
