//! `defects`: what kVMTrace 0.6 told wrongly, each done once. Prints the events that
//! must be told, in order, of its pages and of processes with large numbers; those of
//! a child's address space begin with `child`.
use kvmtrace_guest::ring::Ring;
use kvmtrace_guest::{PAGE, check, map_at, map_with, pagemap, read, wait_child, write};
use std::io::{Error, Result};

const BASE: usize = 0x1000_0000_0000;
/// Places far from each other.
const FROM: usize = BASE;
const TO: usize = BASE + (1 << 30);
const FILE: usize = BASE + (2 << 30);
/// The frame of a page, from Documentation/admin-guide/mm/pagemap.rst.
const FRAME: u64 = (1 << 55) - 1;
const STACK: usize = BASE + (3 << 30);
const PINNED: usize = BASE + (4 << 30);

/// `mremap()` to a fixed place, or without one where it is.
fn mremap(old: usize, pages: usize, new_pages: usize, to: Option<usize>) -> Result<()> {
    let flags = match to {
        Some(_) => libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
        None => 0,
    };
    let old = old as *mut libc::c_void;
    // SAFETY: Mappings of ours, that nothing refers to.
    let got = unsafe {
        libc::mremap(
            old,
            pages * PAGE,
            new_pages * PAGE,
            flags,
            to.unwrap_or_default(),
        )
    };
    if got == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    Ok(())
}

fn refused(result: Result<()>, with: i32) {
    let error = result.err().and_then(|e| e.raw_os_error());
    assert_eq!(error, Some(with), "it is refused");
}

fn map(addr: usize, pages: usize) -> Result<*mut u8> {
    println!("map {addr:#x} {:#x}", addr + pages * PAGE);
    map_at(addr, pages)
}

/// Forks a child of a number that 16 bits do not hold.
fn fork_as(number: i32, body: impl FnOnce() -> i32) -> Result<i32> {
    // SAFETY: A plain struct, which is nothing but numbers.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    args.set_tid = (&raw const number) as u64;
    args.set_tid_size = 1;
    // SAFETY: As fork(); the program has one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    if pid == 0 {
        let code = body();
        // SAFETY: The end of the child.
        unsafe { libc::_exit(code) };
    }
    check(pid as i32)
}

/// Runs a child, prints what is told of it, and gives its status.
fn child(number: i32, told: &[String], body: impl FnOnce() -> i32) -> Result<i32> {
    let pid = fork_as(number, body)?;
    println!("fork {pid} {pid} by {}", std::process::id());
    for line in told {
        println!("child {line}");
    }
    let status = wait_child(pid)?;
    println!("exit {pid}");
    Ok(status)
}

fn main() -> Result<()> {
    std::fs::write("/proc/sys/kernel/pid_max", "200000")?;
    assert_eq!(child(100_000, &[], || 0)?, 0);

    // Moves that fail, over themselves and of nothing; growth where there is no room.
    let from = map(FROM, 4)?;
    for page in 0..4 {
        write(from, page, 1);
    }
    refused(mremap(FROM, 4, 4, Some(FROM + 2 * PAGE)), libc::EINVAL);
    refused(mremap(FROM + 64 * PAGE, 4, 4, Some(TO)), libc::EFAULT);
    map(FROM + 4 * PAGE, 1)?;
    refused(mremap(FROM, 4, 5, None), libc::ENOMEM);

    // One that takes another mapping's place: what it covers is unmapped, and what it
    // leaves is not. One that shrinks only unmaps.
    let to = map(TO, 4)?;
    mremap(FROM, 4, 4, Some(TO))?;
    println!("unmap {TO:#x} {:#x}", TO + 4 * PAGE);
    println!("move {FROM:#x} {TO:#x} {}", 4 * PAGE);
    assert_eq!(read(to, 3), 1);
    mremap(TO, 4, 2, None)?;
    println!("unmap {:#x} {:#x}", TO + 2 * PAGE, TO + 4 * PAGE);

    // A page that is shared is not copied, whoever maps it; one that is private is.
    let cow = [format!("cow {TO:#x}")];
    assert_eq!(
        child(100_001, &cow, || {
            write(to, 0, 2);
            0
        })?,
        0
    );
    // SAFETY: A C string.
    let fd = check(unsafe { libc::memfd_create(c"file".as_ptr(), 0) })?;
    // SAFETY: Our file.
    check(unsafe { libc::ftruncate(fd, 2 * PAGE as i64) })?;
    let fixed = libc::MAP_FIXED;
    println!("map {FILE:#x} {:#x}", FILE + PAGE);
    let shared = map_with(FILE, 1, libc::MAP_SHARED | fixed, fd)?;
    let (start, end) = (FILE + 4 * PAGE, FILE + 5 * PAGE);
    println!("map {start:#x} {end:#x}");
    let private = map_with(start, 1, libc::MAP_PRIVATE | fixed, fd)?;
    let frame = || pagemap(private, 1).map(|bits| bits[0] & FRAME);
    read(shared, 0);
    write(shared, 0, 1);
    read(private, 0);
    let before = frame()?;
    write(private, 0, 1);
    println!("cow {start:#x} {before} {}", frame()?);
    assert_eq!(
        child(100_002, &[], || {
            write(shared, 0, 2);
            0
        })?,
        0
    );

    // fork copies a page that is pinned, before the child is there; the child has it alone.
    let pinned = map(PINNED, 2)?;
    for page in 0..2 {
        write(pinned, page, 1);
    }
    Ring::new()?.register(pinned, PAGE)?;
    println!("child cow {PINNED:#x}");
    let cow = [format!("cow {:#x}", PINNED + PAGE)];
    assert_eq!(
        child(100_003, &cow, || {
            write(pinned, 0, 2);
            write(pinned, 1, 2);
            0
        })?,
        0
    );
    assert_eq!((read(pinned, 0), read(pinned, 1)), (1, 1));

    // A stack that grows, and one that may not.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed | libc::MAP_GROWSDOWN;
    println!("map {STACK:#x} {:#x}", STACK + 2 * PAGE);
    let stack = map_with(STACK, 2, flags, -1)?;
    println!("map {:#x} {STACK:#x}", STACK - PAGE);
    write(stack.wrapping_sub(PAGE), 0, 1);
    // It is pinned still.
    println!("child cow {PINNED:#x}");
    let status = child(199_999, &[], || {
        let most = 4 * PAGE as u64;
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        // SAFETY: A limit of this process.
        unsafe { libc::setrlimit(libc::RLIMIT_STACK, &limit) };
        write(stack.wrapping_sub(8 * PAGE), 0, 1);
        0
    })?;
    assert_eq!(status & 0x7f, libc::SIGSEGV, "it may not grow");
    Ok(())
}
