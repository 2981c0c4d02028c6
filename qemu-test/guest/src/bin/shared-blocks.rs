//! `shared-blocks DIR [unpolled]`: has files in DIR, of a file system that can, share their blocks,
//! and, without `unpolled`, reads and writes them past the cache by a ring whose requests are
//! polled for.
//! What events should tell of it are lines on standard output, in order, as `file-calls`
//! writes them; the first one is "polled N", with how many requests were polled for.
use kvmtrace_guest::calls::{Id, Log, done};
use kvmtrace_guest::ring::{Ring, Sqe};
use kvmtrace_guest::{PAGE, check};
use std::io::{Error, Result};

/// From linux/fs.h.
const FICLONE: u64 = 0x4004_9409;
const FICLONERANGE: u64 = 0x4020_940d;
const FIDEDUPERANGE: u64 = 0xc018_9436;

const FILE: usize = 16 * PAGE;

/// As a call between two files is told: a read of the one, a write to the other.
fn copied(log: &mut Log, from: (&Id, usize), to: (&Id, usize), bytes: usize) {
    log.io("read", from.0, from.1 as u64, bytes, "regular copy");
    log.io("write", to.0, to.1 as u64, bytes, "regular copy");
}

fn shared(log: &mut Log, buf: &[u8]) -> Result<()> {
    let create = libc::O_CREAT | libc::O_RDWR;
    let (fd, f) = log.open("from", create, 0)?;
    let (to, t) = log.open("to", create, 0)?;
    // SAFETY: Descriptors, buffers and structures of this program, as long as said.
    unsafe {
        done(libc::write(fd, buf.as_ptr().cast(), FILE))?;
        log.io("write", &f, 0, FILE, "regular rw");
        // All of it; then a part, elsewhere; then to the end, which need not be whole.
        check(libc::ioctl(to, FICLONE as _, fd))?;
        copied(log, (&f, 0), (&t, 0), FILE);
        for (from, len, at) in [(4 * PAGE, 3 * PAGE, 20 * PAGE), (12 * PAGE, 0, 32 * PAGE)] {
            let range = [fd as u64, from as u64, len as u64, at as u64];
            check(libc::ioctl(to, FICLONERANGE as _, &range))?;
            let bytes = if len == 0 { FILE - from } else { len };
            copied(log, (&f, from), (&t, at), bytes);
        }
        // A copy of whole blocks shares them, too; one of a part can't.
        let (mut from, mut at) = ((2 * PAGE) as i64, (40 * PAGE) as i64);
        done(libc::copy_file_range(
            fd,
            &mut from,
            to,
            &mut at,
            2 * PAGE,
            0,
        ))?;
        copied(log, (&f, 2 * PAGE), (&t, 40 * PAGE), 2 * PAGE);
        let (mut from, mut at) = (7i64, 9i64);
        done(libc::copy_file_range(fd, &mut from, to, &mut at, 100, 0))?;
        copied(log, (&f, 7), (&t, 9), 100);
        // What fails is not told of.
        let range = [fd as u64, 1, 2, 3];
        if libc::ioctl(to, FICLONERANGE as _, &range) == 0 {
            return Err(Error::other("parts of blocks can be shared"));
        }
        // What is the same already stays what it was.
        let mut same = [0u64; 7];
        same[1] = PAGE as u64;
        same[2] = 1;
        same[3] = to as u64;
        same[4] = (32 * PAGE) as u64;
        same[0] = (12 * PAGE) as u64;
        check(libc::ioctl(fd, FIDEDUPERANGE as _, &mut same))?;
        if same[5] != PAGE as u64 {
            return Err(Error::other(format!("not shared: {same:?}")));
        }
    }
    log.close(to, &t, 42 * PAGE as u64, "regular", "to")?;
    log.close(fd, &f, FILE as u64, "regular", "from")
}

fn polled(log: &mut Log, buf: &mut [u8]) -> Result<usize> {
    let (fd, f) = log.open("from", libc::O_RDWR | libc::O_DIRECT, FILE as u64)?;
    let mut ring = Ring::polled()?;
    log.made(ring.fd, "other", "[io_uring]")?;
    let base = buf.as_mut_ptr();
    // SAFETY: Inside the buffer, which has a page more than the file.
    let aligned = unsafe { base.add(base.align_offset(PAGE)) };
    let requests = [
        (Sqe::READ, "read", 3 * PAGE, 2 * PAGE),
        (Sqe::WRITE, "write", 2 * PAGE, 5 * PAGE),
        // Up to the end.
        (Sqe::READ, "read", 8 * PAGE, 12 * PAGE),
    ];
    for (op, what, len, at) in requests {
        let n = ring.submit(&Sqe::new(op, fd, aligned, len, at as u64))?;
        if n as usize != len.min(FILE - at) {
            return Err(Error::other(format!("{what} of {len} at {at}: {n}")));
        }
        log.direct(what, &f, at as u64, n as usize, "regular uring");
    }
    log.close(fd, &f, FILE as u64, "regular", "from")?;
    Ok(requests.len())
}

fn main() -> Result<()> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "/tmp".into());
    let mut log = Log::new(dir);
    let mut buf = vec![7u8; FILE + PAGE];
    shared(&mut log, &buf)?;
    let n = match std::env::args().nth(2).as_deref() {
        Some("unpolled") => 0,
        _ => polled(&mut log, &mut buf)?,
    };
    println!("polled {n}");
    log.print();
    Ok(())
}
