//! passes-by DEVICE: memory that the kernel reaches past the page tables: O_DIRECT,
//! process_vm_readv and _writev, ptrace, /proc/PID/mem, vmsplice, io_uring's
//! registered buffers. Each has 16 pages of its own, at 0x1000_0000_0000 and every
//! 64 pages further, that the program itself reads once after.
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
    ring.register(fixed)?;
    for (op, at) in [(Ring::READ_FIXED, 0), (Ring::WRITE_FIXED, LEN)] {
        sum(cold, 600);
        ring.submit(op, disk.as_raw_fd(), fixed, at as u64)?;
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
    ring.submit_with(Ring::READ, file.as_raw_fd(), plain, 0, 1 << 4)?;
    println!("worker {}", sum(plain, PAGES));
    Ok(())
}

/// A ring of io_uring's with one entry: what io_uring_setup(2) describes.
struct Ring {
    fd: i32,
    sq: *mut u8,
    cq: *mut u8,
    sqes: *mut u8,
    params: [u32; 30],
}

impl Ring {
    const READ: u8 = 22;
    const READ_FIXED: u8 = 4;
    const WRITE_FIXED: u8 = 5;

    fn new() -> Result<Self> {
        let mut params = [0u32; 30];
        // SAFETY: The structure has 120 bytes.
        let fd = check(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, &mut params) } as i32)?;
        let map = |offset: i64| {
            // SAFETY: A new mapping, where the kernel likes.
            let p = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    PAGE,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_POPULATE,
                    fd,
                    offset,
                )
            };
            if p == libc::MAP_FAILED {
                return Err(Error::last_os_error());
            }
            Ok(p.cast::<u8>())
        };
        Ok(Ring {
            fd,
            sq: map(0)?,
            cq: map(0x800_0000)?,
            sqes: map(0x1000_0000)?,
            params,
        })
    }

    fn register(&self, base: *mut u8) -> Result<()> {
        let v = iov(base, LEN);
        // SAFETY: One vector.
        check(unsafe { libc::syscall(libc::SYS_io_uring_register, self.fd, 0, &v, 1) } as i32)
            .map(drop)
    }

    fn submit(&mut self, op: u8, fd: i32, base: *mut u8, offset: u64) -> Result<()> {
        self.submit_with(op, fd, base, offset, 0)
    }

    fn submit_with(&mut self, op: u8, fd: i32, base: *mut u8, at: u64, flags: u8) -> Result<()> {
        let mut e = [0u8; 64];
        e[0] = op;
        e[1] = flags;
        e[4..8].copy_from_slice(&fd.to_le_bytes());
        e[8..16].copy_from_slice(&at.to_le_bytes());
        e[16..24].copy_from_slice(&(base as u64).to_le_bytes());
        e[24..28].copy_from_slice(&(LEN as u32).to_le_bytes());
        // struct io_uring_params: sq_off from word 10, cq_off from word 20.
        let (tail, array) = (self.params[11] as usize, self.params[16] as usize);
        let (cq_head, cqes) = (self.params[20] as usize, self.params[25] as usize);
        // SAFETY: Offsets are the kernel's, one entry, one thread.
        unsafe {
            self.sqes.copy_from_nonoverlapping(e.as_ptr(), 64);
            self.sq.add(array).cast::<u32>().write_volatile(0);
            let t = self.sq.add(tail).cast::<u32>();
            t.write_volatile(t.read_volatile().wrapping_add(1));
            check(libc::syscall(libc::SYS_io_uring_enter, self.fd, 1, 1, 1, 0, 0) as i32)?;
            let head = self.cq.add(cq_head).cast::<u32>();
            let n = head.read_volatile();
            // Two completions for one submission.
            let done = self.cq.add(cqes + (n as usize % 2) * 16 + 8).cast::<i32>();
            let result = done.read_volatile();
            head.write_volatile(n.wrapping_add(1));
            if result != LEN as i32 {
                return Err(Error::other(format!("operation {op}: {result}")));
            }
        }
        Ok(())
    }
}
