//! passes-by DEVICE: memory that the kernel reaches past the page tables: O_DIRECT,
//! process_vm_readv and _writev, ptrace, /proc/PID/mem, vmsplice, io_uring's
//! registered buffers. Each has 16 pages of its own, at 0x1000_0000_0000 and every
//! 64 pages further, that the program itself reads once after.
use kvmtrace_guest::ring::{Ring, Sqe};
use kvmtrace_guest::{PAGE, check, fork_child, map_at, sum, wait_child, write};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

const BASE: usize = 0x1000_0000_0000;
const PAGES: usize = 16;
const LEN: usize = PAGES * PAGE;

fn area(n: usize) -> Result<*mut u8> {
    map_at(BASE + n * 64 * PAGE, PAGES)
}

fn bytes<'a>(base: *mut u8) -> &'a mut [u8] {
    // SAFETY: An area of this program, used by one way at a time.
    unsafe { std::slice::from_raw_parts_mut(base, LEN) }
}

fn iov(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast(),
        iov_len: len,
    }
}

fn all(n: isize) -> Result<()> {
    match n {
        n if n == LEN as isize => Ok(()),
        n if n < 0 => Err(Error::last_os_error()),
        n => Err(Error::other(format!("{n} bytes instead of {LEN}"))),
    }
}

/// What a child does while others look: it stops, and goes on, and tells what its
/// area holds.
fn subject(base: *mut u8) -> Result<i32> {
    fork_child(|| {
        for i in 0..PAGES {
            write(base, i, 3);
        }
        // So that its pages are cold.
        if let Ok(other) = map_at(0x1100_0000_0000, 600) {
            sum(other, 600);
        }
        // SAFETY: Stops this process until its parent lets it go on.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
        }
        (sum(base, PAGES) % 128) as i32
    })
}

fn main() -> Result<()> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "/dev/small".into());
    let disk = std::fs::File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)?;
    let cold = map_at(0x1100_0000_0000, 600)?;

    // 0: written to a disk, having been filled; 1: read from it, never touched.
    let from = area(0)?;
    for i in 0..PAGES {
        write(from, i, 10 + i as u8);
    }
    sum(cold, 600);
    disk.write_all_at(bytes(from), 0)?;
    let to = area(1)?;
    disk.read_exact_at(bytes(to), 0)?;
    sum(cold, 600);
    println!("direct {} {}", sum(from, PAGES), sum(to, PAGES));

    // 2: the child's; 3: this process's end of it.
    let theirs = area(2)?;
    let ours = area(3)?;
    let child = subject(theirs)?;
    wait_child(child)?;
    // SAFETY: The areas are there in both.
    unsafe {
        let (mine, other) = (iov(ours, LEN), iov(theirs, LEN));
        all(libc::process_vm_readv(child, &mine, 1, &other, 1, 0))?;
        println!("readv {}", sum(ours, PAGES));
        for i in 0..PAGES {
            write(ours, i, 4);
        }
        all(libc::process_vm_writev(child, &mine, 1, &other, 1, 0))?;
        let word = libc::ptrace(libc::PTRACE_PEEKDATA, child, theirs.add(PAGE), 0);
        println!("peek {word}");
        for i in 0..4 {
            check(libc::ptrace(libc::PTRACE_POKEDATA, child, theirs.add(i * PAGE), 9u64) as i32)?;
        }
        let mem = std::fs::File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{child}/mem"))?;
        let mut byte = [0];
        mem.read_exact_at(&mut byte, theirs as u64 + 5 * PAGE as u64)?;
        mem.write_all_at(&[byte[0] + 1], theirs as u64 + 6 * PAGE as u64)?;
        check(libc::ptrace(libc::PTRACE_DETACH, child, 0, 0) as i32)?;
    }
    println!("child {:#x}", wait_child(child)?);

    // 4: given to a pipe as it is.
    let given = area(4)?;
    for i in 0..PAGES {
        write(given, i, 50 + i as u8);
    }
    sum(cold, 600);
    // SAFETY: A pipe of ours, an area of ours that is not changed meanwhile.
    unsafe {
        let mut pipe = [0; 2];
        check(libc::pipe(pipe.as_mut_ptr()))?;
        let v = iov(given, LEN);
        all(libc::vmsplice(pipe[1], &v, 1, 0))?;
        let mut n = 0u64;
        for _ in 0..PAGES {
            let mut page = [0u8; PAGE];
            check(libc::read(pipe[0], page.as_mut_ptr().cast(), PAGE) as i32)?;
            n += u64::from(page[0]);
        }
        println!("pipe {n} {}", sum(given, PAGES));
    }

    // 5: registered with io_uring, then read into and written from.
    let fixed = area(5)?;
    let mut ring = Ring::new()?;
    ring.register(fixed, LEN)?;
    for (op, at) in [(Sqe::READ_FIXED, 0), (Sqe::WRITE_FIXED, LEN)] {
        sum(cold, 600);
        let sqe = Sqe::new(op, disk.as_raw_fd(), fixed, LEN, at as u64);
        all(ring.submit(&sqe)? as isize)?;
    }
    println!("ring {}", sum(fixed, PAGES));
    let mut copy = vec![0u8; LEN];
    std::fs::File::open(&path)?.read_exact_at(&mut copy, LEN as u64)?;
    println!(
        "file {}",
        copy.iter()
            .step_by(PAGE)
            .map(|b| u64::from(*b))
            .sum::<u64>()
    );
    // Not direct, and by a thread of the kernel's: plain references of that.
    let plain = area(6)?;
    let file = std::fs::File::open(&path)?;
    let sqe = Sqe::new(Sqe::READ, file.as_raw_fd(), plain, LEN, 0).by_worker();
    all(ring.submit(&sqe)? as isize)?;
    println!("worker {}", sum(plain, PAGES));
    Ok(())
}
