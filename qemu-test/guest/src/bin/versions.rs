//! `versions FILE PID`: asks /dev/vmtrace as programs do that were made for other versions of its
//! interface, and fails if an answer is not what they can live with. The trace of PID's tree
//! goes to FILE.
use kvmtrace_guest::arg;
use rust_mm_trace::ioctl;
use rust_mm_trace::uapi::{self, vmtrace_config, vmtrace_status};
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;

/// Bytes that no version has yet.
const MORE: usize = 64;

/// The request of a structure of another size.
const fn sized(request: u32, size: usize) -> u32 {
    request & !(0x3fff << 16) | (size as u32) << 16
}

/// Gives a request; the errno, or 0.
fn call(device: &File, request: u32, bytes: &mut [u8]) -> i32 {
    let fd = device.as_raw_fd();
    // SAFETY: The request's size is that of the memory, or smaller.
    match unsafe { libc::ioctl(fd, request as libc::Ioctl, bytes.as_mut_ptr()) } {
        0 => 0,
        _ => Error::last_os_error().raw_os_error().unwrap_or(-1),
    }
}

/// The bytes of a configuration of so many bytes, of which the kernel may know fewer.
fn config(out: &File, pid: i32, size: usize) -> Vec<u8> {
    let c = vmtrace_config {
        size: size as u32,
        out_fd: out.as_raw_fd(),
        scope: uapi::VMTRACE_SCOPE_TREE,
        pid,
        evms_size: 64,
        ..Default::default()
    };
    let known = size_of::<vmtrace_config>();
    let mut bytes = vec![0; size.max(known)];
    // SAFETY: A structure of integers without padding is bytes.
    let of = unsafe { std::slice::from_raw_parts((&raw const c).cast::<u8>(), known) };
    bytes[..known].copy_from_slice(of);
    bytes.truncate(size);
    bytes
}

fn expect(what: &str, found: i32, expected: i32) -> Result<()> {
    println!("{what}: {found}");
    match found == expected {
        true => Ok(()),
        false => Err(Error::other(format!(
            "{what}: errno {found}, not {expected}"
        ))),
    }
}

fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or_default();
    let pid = arg(2, 0) as i32;
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/vmtrace")?;
    let out = File::create(path)?;
    let first = uapi::VMTRACE_CONFIG_SIZE_VER0 as usize;
    let known = size_of::<vmtrace_config>();
    let start = |bytes: &mut [u8], size: usize| call(&device, sized(ioctl::START, size), bytes);

    let mut shorter = config(&out, pid, first - 8);
    expect(
        "before the first version",
        start(&mut shorter, first - 8),
        libc::EINVAL,
    )?;
    let mut none = [];
    expect("nothing", start(&mut none, 0), libc::EINVAL)?;
    let mut other = config(&out, pid, known);
    other[0] ^= 8;
    expect(
        "another size within",
        start(&mut other, known),
        libc::EINVAL,
    )?;
    for at in [known, known + MORE - 1] {
        let mut longer = config(&out, pid, known + MORE);
        longer[at] = 1;
        let found = start(&mut longer, known + MORE);
        expect("a field that the kernel does not know", found, libc::E2BIG)?;
    }
    // Both programs of the first version and those of a later one that want nothing new.
    for size in [first, known + MORE] {
        let mut good = config(&out, pid, size);
        expect("start", start(&mut good, size), 0)?;
        let size = size_of::<vmtrace_status>();
        for given in [8, 16, size, size + MORE] {
            let mut status = vec![0xee; size + MORE];
            let request = sized(ioctl::STATUS, given);
            expect("status", call(&device, request, &mut status), 0)?;
            let says = u32::from_ne_bytes([status[0], status[1], status[2], status[3]]);
            let untouched = status[given.min(size)..].iter().all(|b| *b == 0xee);
            let touched = status[..given.min(size)].iter().any(|b| *b != 0xee);
            if !untouched || !touched || says as usize != size {
                return Err(Error::other(format!(
                    "a status of {given} bytes: {status:?}"
                )));
            }
        }
        let mut status = vec![0; 8];
        expect("stop", call(&device, sized(ioctl::STOP, 8), &mut status), 0)?;
    }
    Ok(())
}
