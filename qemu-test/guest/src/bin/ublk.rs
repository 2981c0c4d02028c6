//! `ublk MIB [copies]`: a disk in this process's memory, /dev/ublkb0, which it serves through
//! io_uring by the protocol of ublk(4) (include/uapi/linux/ublk_cmd.h), until it gets SIGTERM.
//! The kernel copies the data of a request to and from the server's memory; with `copies`, the
//! server has it copied, by pread() and pwrite(). Prints "serves PID" when there is a disk,
//! and at the end how many requests there were.
use kvmtrace_guest::{PAGE, arg, check, ring};
use std::fs::{File, OpenOptions};
use std::io::{Error, Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};

const DEPTH: usize = 16;
/// Of a request.
const MOST: usize = 128 << 10;
const SECTOR: usize = 512;

// Commands to /dev/ublk-control, with a struct ublksrv_ctrl_cmd, and to /dev/ublkc0, with a
// struct ublksrv_io_cmd.
const ADD_DEV: u32 = command(0x04, 32);
const DEL_DEV: u32 = command(0x05, 32);
const START_DEV: u32 = command(0x06, 32);
const STOP_DEV: u32 = command(0x07, 32);
const SET_PARAMS: u32 = command(0x08, 32);
const FETCH: u32 = command(0x20, 16);
const COMMIT_AND_FETCH: u32 = command(0x21, 16);

const USER_COPY: u64 = 1 << 7;
const IOCTL_ENCODE: u64 = 1 << 6;
/// Where pread() and pwrite() find the data of the requests.
const DATA: u64 = 0x8000_0000;

const READ: u8 = 0;
const WRITE: u8 = 1;
const FLUSH: u8 = 2;

/// _IOWR('u', number, size bytes)
const fn command(number: u32, size: u32) -> u32 {
    3 << 30 | size << 16 | (b'u' as u32) << 8 | number
}

/// A ring with entries of 128 bytes.
struct Ring(ring::Ring);

impl Ring {
    fn new(entries: usize) -> Result<Ring> {
        /// IORING_SETUP_SQE128
        const LARGE: u32 = 1 << 10;
        ring::Ring::with(entries, LARGE).map(Ring)
    }

    /// A word of the rings.
    fn word(base: *mut u8, at: u32) -> *const AtomicU32 {
        base.wrapping_add(at as usize).cast()
    }

    /// Queues IORING_OP_URING_CMD: `op` to `fd`, with `data` for it.
    fn queue(&self, fd: i32, op: u32, data: &[u8], user: u64) {
        const URING_CMD: u8 = 46;
        let mut e = [0u8; 128];
        e[0] = URING_CMD;
        e[4..8].copy_from_slice(&fd.to_le_bytes());
        e[8..12].copy_from_slice(&op.to_le_bytes());
        e[32..40].copy_from_slice(&user.to_le_bytes());
        e[48..48 + data.len()].copy_from_slice(data);
        // SAFETY: Offsets are the kernel's. No more requests are under way than there are
        // entries.
        unsafe {
            let tail = &*Self::word(self.0.sq, self.0.params[11]);
            let n = tail.load(Ordering::Relaxed);
            let entry = n % self.0.params[0];
            let at = self.0.sqes.add(entry as usize * e.len());
            at.copy_from_nonoverlapping(e.as_ptr(), e.len());
            (*Self::word(self.0.sq, self.0.params[16] + 4 * entry)).store(entry, Ordering::Relaxed);
            tail.store(n.wrapping_add(1), Ordering::Release);
        }
    }

    /// Submits what is queued, and waits for a completion. False if a signal came first.
    fn enter(&self) -> Result<bool> {
        // SAFETY: As above.
        let queued = unsafe {
            let head = &*Self::word(self.0.sq, self.0.params[10]);
            let tail = &*Self::word(self.0.sq, self.0.params[11]);
            tail.load(Ordering::Relaxed)
                .wrapping_sub(head.load(Ordering::Acquire))
        };
        // SAFETY: No memory is passed.
        let n = unsafe { libc::syscall(libc::SYS_io_uring_enter, self.0.fd, queued, 1, 1, 0, 0) };
        match check(n as i32) {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => Ok(false),
            other => other.map(|_| true),
        }
    }

    /// What was completed next: the user's number, and the result.
    fn next(&self) -> Option<(u64, i32)> {
        // SAFETY: As above.
        unsafe {
            let head = &*Self::word(self.0.cq, self.0.params[20]);
            let tail = &*Self::word(self.0.cq, self.0.params[21]);
            let n = head.load(Ordering::Relaxed);
            if n == tail.load(Ordering::Acquire) {
                return None;
            }
            let at = self.0.params[25] as usize + (n % self.0.params[1]) as usize * 16;
            let at = self.0.cq.add(at);
            let done = (at.cast::<u64>().read(), at.add(8).cast::<i32>().read());
            head.store(n.wrapping_add(1), Ordering::Release);
            Some(done)
        }
    }
}

/// A command about device 0, with a structure or a number.
fn control(op: u32, with: &mut [u8], number: u64) -> Result<()> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/ublk-control")?;
    let ring = Ring::new(1)?;
    // struct ublksrv_ctrl_cmd
    let mut data = Vec::new();
    data.extend(0u32.to_le_bytes());
    data.extend(u16::MAX.to_le_bytes());
    data.extend((with.len() as u16).to_le_bytes());
    data.extend((with.as_mut_ptr() as u64).to_le_bytes());
    data.extend(number.to_le_bytes());
    data.extend([0; 8]);
    ring.queue(device.as_raw_fd(), op, &data, 0);
    loop {
        ring.enter()?;
        match ring.next() {
            Some((_, n)) if n < 0 => return Err(Error::from_raw_os_error(-n)),
            Some(_) => return Ok(()),
            None => {}
        }
    }
}

/// struct ublksrv_ctrl_dev_info
fn info(flags: u64) -> [u8; 64] {
    let mut info = [0u8; 64];
    info[0..2].copy_from_slice(&1u16.to_le_bytes());
    info[2..4].copy_from_slice(&(DEPTH as u16).to_le_bytes());
    info[8..12].copy_from_slice(&(MOST as u32).to_le_bytes());
    info[24..32].copy_from_slice(&flags.to_le_bytes());
    info
}

/// struct ublk_params with the basic ones.
fn params(bytes: usize) -> [u8; 40] {
    let mut p = [0u8; 40];
    p[0..4].copy_from_slice(&40u32.to_le_bytes());
    p[4..8].copy_from_slice(&1u32.to_le_bytes());
    // Sizes of blocks.
    p[12..16].copy_from_slice(&[9, 12, 12, 12]);
    p[16..20].copy_from_slice(&((MOST / SECTOR) as u32).to_le_bytes());
    p[24..32].copy_from_slice(&((bytes / SECTOR) as u64).to_le_bytes());
    p
}

/// What a request asks for: struct ublksrv_io_desc of its tag.
struct Request {
    op: u8,
    len: usize,
    at: usize,
}

impl Request {
    fn new(descriptors: *const u8, tag: usize) -> Request {
        // SAFETY: As many descriptors as tags, of 24 bytes.
        let (flags, sectors, start) = unsafe {
            let d = descriptors.add(tag * 24);
            (
                d.cast::<u32>().read_volatile(),
                d.add(4).cast::<u32>().read_volatile(),
                d.add(8).cast::<u64>().read_volatile(),
            )
        };
        Request {
            op: flags as u8,
            len: sectors as usize * SECTOR,
            at: start as usize * SECTOR,
        }
    }
}

struct Server {
    device: File,
    disk: Vec<u8>,
    /// Of each tag.
    buffers: Vec<Vec<u8>>,
    copies: bool,
    reads: u64,
    writes: u64,
}

impl Server {
    /// Serves a request. Gives its result.
    fn answer(&mut self, tag: usize, r: &Request) -> i32 {
        let Some(disk) = self.disk.get_mut(r.at..r.at + r.len) else {
            return -libc::EIO;
        };
        let data = &mut self.buffers[tag][..r.len.min(MOST)];
        // Queue 0: the tag from bit 25 on.
        let place = DATA + ((tag as u64) << 25);
        let copied = match r.op {
            READ => {
                self.reads += 1;
                data.copy_from_slice(disk);
                !self.copies || self.device.write_all_at(data, place).is_ok()
            }
            WRITE => {
                self.writes += 1;
                let there = !self.copies || self.device.read_exact_at(data, place).is_ok();
                disk.copy_from_slice(data);
                there
            }
            FLUSH => return 0,
            _ => return -libc::EOPNOTSUPP,
        };
        if copied { r.len as i32 } else { -libc::EIO }
    }

    /// struct ublksrv_io_cmd
    fn command(&self, tag: usize, result: i32) -> Vec<u8> {
        let address = if self.copies {
            0
        } else {
            self.buffers[tag].as_ptr() as u64
        };
        let mut c = 0u16.to_le_bytes().to_vec();
        c.extend((tag as u16).to_le_bytes());
        c.extend(result.to_le_bytes());
        c.extend(address.to_le_bytes());
        c
    }

    /// Serves requests until the disk is gone.
    fn serve(&mut self) -> Result<()> {
        let len = (DEPTH * 24).next_multiple_of(PAGE);
        // SAFETY: A new mapping of what the kernel writes requests to.
        let descriptors = unsafe {
            let fd = self.device.as_raw_fd();
            let none = std::ptr::null_mut();
            libc::mmap(none, len, libc::PROT_READ, libc::MAP_SHARED, fd, 0)
        };
        if descriptors == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let fd = self.device.as_raw_fd();
        let ring = Ring::new(DEPTH)?;
        for tag in 0..DEPTH {
            ring.queue(fd, FETCH, &self.command(tag, 0), tag as u64);
        }
        let mut left = DEPTH;
        while left > 0 {
            ring.enter()?;
            while let Some((tag, result)) = ring.next() {
                if result != 0 {
                    // -ENODEV: no more requests.
                    left -= 1;
                    continue;
                }
                let tag = tag as usize;
                let request = Request::new(descriptors.cast(), tag);
                let result = self.answer(tag, &request);
                let data = self.command(tag, result);
                ring.queue(fd, COMMIT_AND_FETCH, &data, tag as u64);
            }
        }
        // The mapping keeps the disk.
        // SAFETY: The mapping above, which nothing uses any more.
        check(unsafe { libc::munmap(descriptors, len) }).map(drop)
    }
}

/// Waits for SIGTERM, and ends the disk.
fn stop() -> Result<()> {
    let mut signal = 0;
    // SAFETY: An empty set, which the calls fill in and read.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        check(libc::sigaddset(&mut set, libc::SIGTERM))?;
        check(-libc::sigwait(&set, &mut signal))?;
    }
    control(STOP_DEV, &mut [], 0)
}

fn main() -> Result<()> {
    let bytes = arg(1, 48) << 20;
    let copies = std::env::args().nth(2).as_deref() == Some("copies");
    // No thread gets it but the one that waits for it.
    // SAFETY: An empty set, which the calls fill in and read.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        check(libc::sigaddset(&mut set, libc::SIGTERM))?;
        let none = std::ptr::null_mut();
        check(libc::sigprocmask(libc::SIG_BLOCK, &set, none))?;
    }
    let stopping = std::thread::spawn(stop);
    let flags = IOCTL_ENCODE | if copies { USER_COPY } else { 0 };
    control(ADD_DEV, &mut info(flags), 0)?;
    control(SET_PARAMS, &mut params(bytes), 0)?;
    let mut server = Server {
        device: OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/ublkc0")?,
        disk: vec![0; bytes],
        buffers: vec![vec![0; MOST]; DEPTH],
        copies,
        reads: 0,
        writes: 0,
    };
    // It waits until all requests can be taken, and reads the disk then.
    let start = std::thread::spawn(|| {
        let pid = std::process::id();
        control(START_DEV, &mut [], u64::from(pid))?;
        println!("serves {pid}");
        std::io::stdout().flush()
    });
    server.serve()?;
    start
        .join()
        .unwrap_or_else(|_| Err(Error::other("no start")))?;
    stopping
        .join()
        .unwrap_or_else(|_| Err(Error::other("no end")))?;
    println!("{} reads, {} writes", server.reads, server.writes);
    let device = server.device;
    drop(device);
    control(DEL_DEV, &mut [], 0)
}
