//! io_uring, as io_uring_setup(2) describes it: a ring, and requests to one with one entry.

use crate::{PAGE, check};
use std::io::{Error, Result};

/// A request.
pub struct Sqe([u8; 64]);

impl Sqe {
    /// Reads into plain memory.
    pub const READ: u8 = 22;
    /// Writes from plain memory.
    pub const WRITE: u8 = 23;
    /// Reads into registered memory.
    pub const READ_FIXED: u8 = 4;
    /// Writes from registered memory.
    pub const WRITE_FIXED: u8 = 5;
    const SPLICE: u8 = 30;

    /// `op` on `len` bytes of `fd` from `at` on and of memory from `base` on.
    pub fn new(op: u8, fd: i32, base: *mut u8, len: usize, at: u64) -> Self {
        let mut e = [0u8; 64];
        e[0] = op;
        e[4..8].copy_from_slice(&fd.to_le_bytes());
        e[8..16].copy_from_slice(&at.to_le_bytes());
        e[16..24].copy_from_slice(&(base as u64).to_le_bytes());
        e[24..28].copy_from_slice(&(len as u32).to_le_bytes());
        Sqe(e)
    }

    /// splice() of `len` bytes of `from`, a file, from `at` on to `to`, a pipe.
    pub fn splice(from: i32, at: u64, to: i32, len: usize) -> Self {
        let mut e = Self::new(Self::SPLICE, to, std::ptr::null_mut(), len, u64::MAX);
        e.0[16..24].copy_from_slice(&at.to_le_bytes());
        e.0[44..48].copy_from_slice(&from.to_le_bytes());
        e
    }

    /// Done by a thread of the kernel's.
    pub fn by_worker(mut self) -> Self {
        self.0[1] |= 1 << 4;
        self
    }
}

/// A ring.
pub struct Ring {
    /// Its descriptor.
    pub fd: i32,
    /// The queue of submissions.
    pub sq: *mut u8,
    /// The queue of completions.
    pub cq: *mut u8,
    /// The submissions.
    pub sqes: *mut u8,
    /// struct io_uring_params.
    pub params: [u32; 30],
}

impl Ring {
    /// A new one.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn new() -> Result<Self> {
        Self::with(1, 0)
    }

    /// A new one whose requests are polled for; no interrupt tells that they are done.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn polled() -> Result<Self> {
        /// IORING_SETUP_IOPOLL
        const POLL: u32 = 1;
        Self::with(1, POLL)
    }

    /// One with so many entries, which fit into a page, and IORING_SETUP_*.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn with(entries: usize, flags: u32) -> Result<Self> {
        let mut params = [0u32; 30];
        // struct io_uring_params: flags are word 2.
        params[2] = flags;
        // SAFETY: The structure has 120 bytes.
        let setup = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, &mut params) };
        let fd = check(setup as i32)?;
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

    /// Registers memory.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn register(&self, base: *mut u8, len: usize) -> Result<()> {
        let v = libc::iovec {
            iov_base: base.cast(),
            iov_len: len,
        };
        // SAFETY: One vector.
        check(unsafe { libc::syscall(libc::SYS_io_uring_register, self.fd, 0, &v, 1) } as i32)
            .map(drop)
    }

    /// Submits a request, waits for it, and gives its result.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn submit(&mut self, sqe: &Sqe) -> Result<i32> {
        // struct io_uring_params: sq_off from word 10, cq_off from word 20.
        let (tail, array) = (self.params[11] as usize, self.params[16] as usize);
        let (cq_head, cq_tail) = (self.params[20] as usize, self.params[21] as usize);
        let cqes = self.params[25] as usize;
        // SAFETY: Offsets are the kernel's, one entry, one thread.
        unsafe {
            self.sqes.copy_from_nonoverlapping(sqe.0.as_ptr(), 64);
            self.sq.add(array).cast::<u32>().write_volatile(0);
            let t = self.sq.add(tail).cast::<u32>();
            t.write_volatile(t.read_volatile().wrapping_add(1));
            let head = self.cq.add(cq_head).cast::<u32>();
            let n = head.read_volatile();
            let mut new = 1;
            // Polling ends early as long as a worker has the request.
            while self.cq.add(cq_tail).cast::<u32>().read_volatile() == n {
                let enter = libc::SYS_io_uring_enter;
                check(libc::syscall(enter, self.fd, new, 1, 1, 0, 0) as i32)?;
                new = 0;
            }
            // Two completions for one submission.
            let done = self.cq.add(cqes + (n as usize % 2) * 16 + 8).cast::<i32>();
            let result = done.read_volatile();
            head.write_volatile(n.wrapping_add(1));
            if result < 0 {
                return Err(Error::from_raw_os_error(-result));
            }
            Ok(result)
        }
    }
}
