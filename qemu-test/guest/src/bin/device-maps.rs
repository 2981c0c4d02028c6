//! Memory of devices, uncached and write-combining, at fixed addresses; /dev/zero;
//! the vdso with the kernel's data.
use kvmtrace_guest::{PAGE, map_at, map_with, read, stay_on, sum, write};
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;

const ROUNDS: usize = 10;

/// The first word of a device's memory, read again and again with other pages
/// between.
fn device(name: &str, at: usize, cold: *mut u8) -> Result<()> {
    let mut found = None;
    for entry in std::fs::read_dir("/sys/bus/pci/devices")? {
        let path = entry?.path().join(name);
        if path.exists() {
            found = Some(path);
        }
    }
    let Some(path) = found else {
        return Err(Error::other(format!("no device has {name}")));
    };
    let f = File::options().read(true).write(true).open(&path)?;
    let base = map_with(at, 1, libc::MAP_SHARED | libc::MAP_FIXED, f.as_raw_fd())?;
    let mut same = 0;
    // SAFETY: A register that is not changed by being read.
    let word = || unsafe { base.add(4).cast::<u32>().read_volatile() };
    let first = word();
    for _ in 1..ROUNDS {
        sum(cold, 600);
        same += usize::from(word() == first);
    }
    println!("{name}: {same} of {}", ROUNDS - 1);
    Ok(())
}

fn main() -> Result<()> {
    // What is in the first segment of a CPU that the program has left stays there, and is
    // not referenced anew.
    stay_on(0)?;
    let cold = map_at(0x1000_0000_0000, 600)?;
    // What virtio has there by its specification: the driver's features.
    device("resource4", 0x1100_0000_0000, cold)?;
    device("resource4_wc", 0x1200_0000_0000, cold)?;
    let zero = File::options().read(true).write(true).open("/dev/zero")?;
    for (what, flags) in [("private", libc::MAP_PRIVATE), ("shared", libc::MAP_SHARED)] {
        let base = map_with(
            0x1300_0000_0000,
            20,
            flags | libc::MAP_FIXED,
            zero.as_raw_fd(),
        )?;
        let mut n = 0;
        for i in 0..20 {
            n += u64::from(read(base, i));
            write(base, i, i as u8);
        }
        sum(cold, 600);
        println!("{what} zeroes {n} {}", sum(base, 20));
    }
    // The clock goes forward, whether it is read through the vdso or not.
    let mut last = 0;
    let mut backward = 0;
    for i in 0..60 {
        let mut t = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: Room for the time.
        unsafe {
            if i % 3 == 0 {
                libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &mut t);
            } else {
                libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t);
            }
        }
        let now = t.tv_sec * 1_000_000_000 + t.tv_nsec;
        backward += usize::from(now < last);
        last = now;
        sum(cold, 600);
    }
    println!("{backward} times backward, {} bytes a page", PAGE);
    Ok(())
}
