//! `file-calls DIR [all|remote|cached]`: each way to read, write and change files, in DIR, and what
//! events should tell of it: a line each on standard output, in order, from the open
//! of DIR/begin to that of DIR/end. A `-` stands for what this program can't know.
//! With `all`, what only some file systems can, too; with `remote`, only what one can whose
//! files are those of a server; with `cached`, the same without requests that are queued and
//! bypass the cache.
//!
//! file-calls DIR held: opens files, and has itself traced then.
use kvmtrace_guest::calls::{Id, Log, done, id, iov};
use kvmtrace_guest::ring::{Ring, Sqe};
use kvmtrace_guest::{PAGE, activator, check};
use std::ffi::CString;
use std::io::{Error, Result};

fn long(n: libc::c_long) -> Result<i32> {
    check(n as i32)
}

/// All of rchar and wchar, by one read of /proc/self/io, which is told of.
fn counted(log: &mut Log, fd: i32, io: &Id, buf: &mut [u8]) -> Result<(u64, u64)> {
    // SAFETY: The buffer is as long as said.
    let n = done(unsafe { libc::pread(fd, buf.as_mut_ptr().cast(), buf.len(), 0) })?;
    log.io("read", io, 0, n, "regular rw");
    let text = String::from_utf8_lossy(&buf[..n]).into_owned();
    let field = |key: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(key)?.trim().parse().ok())
            .ok_or_else(|| Error::other(format!("no {key} in {text}")))
    };
    Ok((field("rchar:")?, field("wchar:")?))
}

fn plain(log: &mut Log, buf: &mut [u8]) -> Result<()> {
    let rw = "regular rw";
    let create = libc::O_CREAT | libc::O_RDWR | libc::O_TRUNC;
    let (fd, f) = log.open("data", create, 0)?;
    let (a, b) = buf.split_at_mut(100);
    let p = a.as_mut_ptr().cast::<libc::c_void>();
    let q = b.as_mut_ptr().cast::<libc::c_void>();
    // SAFETY: All descriptors and buffers are this program's, of the sizes said.
    unsafe {
        done(libc::write(fd, q, 10_000))?;
        log.io("write", &f, 0, 10_000, rw);
        done(libc::pwrite(fd, p, 50, 20_000))?;
        log.io("write", &f, 20_000, 50, rw);
        // Not where the position is, and not all that was asked for.
        done(libc::pread(fd, q, 4096, 19_000))?;
        log.io("read", &f, 19_000, 1050, rw);
        check(libc::lseek(fd, 100, libc::SEEK_SET) as i32)?;
        done(libc::read(fd, p, 30))?;
        log.io("read", &f, 100, 30, rw);
        // Nothing is read at the end, and nothing written from where nothing is.
        if libc::pread(fd, p, 100, 30_000) != 0 || libc::pwrite(fd, 8 as _, 10, 0) != -1 {
            return Err(Error::other("the end can be read, or the void written"));
        }
        let v = [iov(a), iov(&mut b[..200])];
        done(libc::readv(fd, v.as_ptr(), 2))?;
        log.io("read", &f, 130, 300, rw);
        done(libc::writev(fd, v.as_ptr(), 2))?;
        log.io("write", &f, 430, 300, rw);
        done(libc::preadv(fd, v.as_ptr(), 1, 5))?;
        log.io("read", &f, 5, 100, rw);
        done(libc::pwritev(fd, v.as_ptr(), 2, 7))?;
        log.io("write", &f, 7, 300, rw);
        done(libc::preadv2(fd, v.as_ptr(), 2, 11, 0))?;
        log.io("read", &f, 11, 300, rw);
        done(libc::pwritev2(fd, v.as_ptr(), 1, 11, libc::RWF_APPEND))?;
        log.io("write", &f, 20_050, 100, rw);
        let (more, _) = log.open("data", libc::O_WRONLY | libc::O_APPEND, 20_150)?;
        done(libc::write(more, p, 50))?;
        log.io("write", &f, 20_150, 50, rw);
        // Its last descriptor counts.
        let two = check(libc::dup(more))?;
        check(libc::close(two))?;
        log.close(more, &f, 20_200, "regular", "data")?;

        let (to, t) = log.open("copy", create, 0)?;
        let mut off = 1000i64;
        done(libc::sendfile(to, fd, &mut off, 3000))?;
        log.io("read", &f, 1000, 3000, "regular sendfile");
        log.io("write", &t, 0, 3000, "regular sendfile");
        let (mut from, mut at) = (20_000i64, 3000i64);
        done(libc::copy_file_range(fd, &mut from, to, &mut at, 9000, 0))?;
        log.io("read", &f, 20_000, 200, "regular copy");
        log.io("write", &t, 3000, 200, "regular copy");

        let direct = libc::O_RDWR | libc::O_DIRECT;
        let (raw, _) = log.open("data", direct, 20_200)?;
        let q = b.as_mut_ptr();
        let q = q.add(q.align_offset(PAGE)).cast::<libc::c_void>();
        done(libc::pread(raw, q, 8192, 4096))?;
        log.direct("read", &f, 4096, 8192, rw);
        done(libc::pwrite(raw, q, 4096, 8192))?;
        log.direct("write", &f, 8192, 4096, rw);
        log.close(raw, &f, 20_200, "regular", "data")?;
        log.close(fd, &f, 20_200, "regular", "data")?;
        log.close(to, &t, 3200, "regular", "copy")
    }
}

fn pipes(log: &mut Log, buf: &mut [u8]) -> Result<()> {
    let mut ends = [[0i32; 2]; 2];
    let mut ids = Vec::new();
    for pair in &mut ends {
        // SAFETY: Two numbers.
        check(unsafe { libc::pipe(pair.as_mut_ptr()) })?;
        for fd in *pair {
            ids.push(log.made(fd, "pipe", "")?);
        }
    }
    let [one, two] = ends;
    let (p, q) = (ids[0].clone(), ids[2].clone());
    let (fd, f) = log.open("copy", libc::O_RDWR, 3200)?;
    let base = buf.as_mut_ptr().cast::<libc::c_void>();
    // SAFETY: As above.
    unsafe {
        done(libc::write(one[1], base, 100))?;
        log.io("write", &p, 0, 100, "pipe rw");
        let mut at = 8192i64;
        let none = std::ptr::null_mut();
        done(libc::splice(one[0], none, fd, &mut at, 60, 0))?;
        log.io("read", &p, 0, 60, "pipe splice");
        log.io("write", &f, 8192, 60, "regular splice");
        done(libc::read(one[0], base, 1000))?;
        log.io("read", &p, 0, 40, "pipe rw");
        let mut at = 200i64;
        done(libc::splice(fd, &mut at, one[1], none, 128, 0))?;
        log.io("read", &f, 200, 128, "regular splice");
        log.io("write", &p, 0, 128, "pipe splice");
        done(libc::tee(one[0], two[1], 100, 0))?;
        log.io("read", &p, 0, 100, "pipe tee");
        log.io("write", &q, 0, 100, "pipe tee");
        done(libc::splice(one[0], none, two[1], none, 128, 0))?;
        log.io("read", &p, 0, 128, "pipe splice");
        log.io("write", &q, 0, 128, "pipe splice");
        let v = iov(&mut buf[4096..4160]);
        done(libc::vmsplice(one[1], &v, 1, 0))?;
        log.io("write", &p, 0, 64, "pipe vmsplice");
        let v = iov(&mut buf[..500]);
        done(libc::vmsplice(two[0], &v, 1, 0))?;
        log.io("read", &q, 0, 228, "pipe vmsplice");
        done(libc::sendfile(one[1], fd, std::ptr::null_mut(), 70))?;
        log.io("read", &f, 0, 70, "regular sendfile");
        log.io("write", &p, 0, 70, "pipe sendfile");
    }
    log.close(fd, &f, 8252, "regular", "copy")?;
    for (fd, id) in one.iter().chain(&two).zip(&ids) {
        log.close(*fd, id, 0, "pipe", "")?;
    }

    let mut pair = [0i32; 2];
    // SAFETY: Two numbers; buffers as long as said.
    unsafe {
        let stream = libc::SOCK_STREAM;
        check(libc::socketpair(
            libc::AF_UNIX,
            stream,
            0,
            pair.as_mut_ptr(),
        ))?;
        let base = buf.as_mut_ptr().cast::<libc::c_void>();
        let ids = [
            log.made(pair[0], "socket", "UNIX-STREAM")?,
            log.made(pair[1], "socket", "UNIX-STREAM")?,
        ];
        done(libc::write(pair[0], base, 33))?;
        log.io("write", &ids[0], 0, 33, "socket rw");
        done(libc::read(pair[1], base, 99))?;
        log.io("read", &ids[1], 0, 33, "socket rw");
        log.close(pair[0], &ids[0], 0, "socket", "UNIX-STREAM")?;
        log.close(pair[1], &ids[1], 0, "socket", "UNIX-STREAM")?;
        let fd = check(libc::open(c"/dev/zero".as_ptr(), libc::O_RDWR))?;
        let zero = log.made(fd, "char", "zero")?;
        done(libc::pread(fd, base, 500, 1 << 20))?;
        log.io("read", &zero, 0, 500, "char rw");
        log.close(fd, &zero, 0, "char", "zero")?;
        let fd = check(libc::eventfd(0, 0))?;
        let event = log.made(fd, "other", "[eventfd]")?;
        done(libc::write(fd, [1u64].as_ptr().cast(), 8))?;
        log.io("write", &event, 0, 8, "other rw");
        log.close(fd, &event, 0, "other", "[eventfd]")
    }
}

fn queued(log: &mut Log, aio: u64, buf: &mut [u8], bypass: bool) -> Result<()> {
    let (fd, f) = log.open("data", libc::O_RDWR, 20_200)?;
    let (direct, _) = log.open("data", libc::O_RDWR | libc::O_DIRECT, 20_200)?;
    let base = buf.as_mut_ptr();
    // SAFETY: Inside the buffer, which has two pages more.
    let aligned = unsafe { base.add(base.align_offset(PAGE)) };
    let how = "regular uring";
    let mut ring = Ring::new()?;
    let r = log.made(ring.fd, "other", "[io_uring]")?;
    let sqe = |op, fd, len, at| Sqe::new(op, fd, aligned, len, at);
    let mut run = |log: &mut Log, sqe: Sqe, what: &str, at: u64, bytes: usize| {
        let n = ring.submit(&sqe)?;
        if n as usize != bytes {
            return Err(Error::other(format!("{what} of {bytes}: {n}")));
        }
        log.io(what, &f, at, bytes, how);
        Ok(())
    };
    run(log, sqe(Sqe::READ, fd, 5000, 300), "read", 300, 5000)?;
    run(log, sqe(Sqe::WRITE, fd, 600, 700), "write", 700, 600)?;
    let worker = sqe(Sqe::READ, fd, 5000, 20_000).by_worker();
    run(log, worker, "read", 20_000, 200)?;
    for (op, what, bytes, at) in [
        (Sqe::READ, "read", 4096, 0),
        (Sqe::WRITE, "write", 8192, 4096),
    ]
    .into_iter()
    .filter(|_| bypass)
    {
        let n = ring.submit(&sqe(op, direct, bytes, at))?;
        if n as usize != bytes {
            return Err(Error::other(format!("{what} of {bytes}: {n}")));
        }
        log.direct(what, &f, at, bytes, how);
    }
    let nothing = ring.submit(&sqe(Sqe::READ, fd, 10, 50_000))?;
    let mut pair = [0i32; 2];
    // SAFETY: Two numbers.
    check(unsafe { libc::pipe(pair.as_mut_ptr()) } + nothing)?;
    let p = log.made(pair[0], "pipe", "")?;
    log.made(pair[1], "pipe", "")?;
    ring.submit(&Sqe::splice(fd, 900, pair[1], 50))?;
    log.io("read", &f, 900, 50, "regular splice");
    log.io("write", &p, 0, 50, "pipe splice");
    log.close(pair[0], &p, 0, "pipe", "")?;
    log.close(pair[1], &p, 0, "pipe", "")?;

    // Linux AIO, on what is cached: done when it was submitted; and past the cache, where
    // a disk's interrupt tells that it is done.
    for (by, op, what, at, len) in [
        (fd, 0u16, "read", 50u64, 60u64),
        (fd, 1, "write", 70, 80),
        (direct, 0, "read", 4096, 8192),
        (direct, 1, "write", 8192, 4096),
    ]
    .into_iter()
    .filter(|request| bypass || request.0 == fd)
    {
        let mut cb = [0u64; 8];
        cb[2] = u64::from(op);
        cb[2] |= (by as u64) << 32;
        cb[3] = aligned as u64;
        cb[4] = len;
        cb[5] = at;
        let list = [cb.as_ptr()];
        let mut event = [0u64; 4];
        // SAFETY: struct iocb and struct io_event, of this program.
        unsafe {
            long(libc::syscall(libc::SYS_io_submit, aio, 1, list.as_ptr()))?;
            let none = std::ptr::null::<u8>();
            let get = libc::SYS_io_getevents;
            long(libc::syscall(get, aio, 1, 1, event.as_mut_ptr(), none))?;
        }
        if event[2] != len {
            return Err(Error::other(format!("AIO: {} of {len}", event[2] as i64)));
        }
        if by == direct {
            log.direct(what, &f, at, len as usize, "regular aio");
        } else {
            log.io(what, &f, at, len as usize, "regular aio");
        }
    }
    log.close(direct, &f, 20_200, "regular", "data")?;
    log.close(fd, &f, 20_200, "regular", "data")?;
    drop(r);
    Ok(())
}

/// The length of an open file, by each way to set it.
fn lengths(log: &mut Log) -> Result<(i32, Id)> {
    let path = log.path("data")?;
    let (fd, f) = log.open("data", libc::O_RDWR, 20_200)?;
    // SAFETY: Descriptors and paths of this program.
    unsafe {
        check(libc::ftruncate(fd, 5000))?;
        log.note(format!("truncate {} 5000", f));
        check(libc::truncate(path.as_ptr(), 30_001))?;
        log.note(format!("truncate {} 30001", f));
        if libc::ftruncate(fd, -1) == 0 {
            return Err(Error::other("a negative length"));
        }
    }
    Ok((fd, f))
}

fn ends(log: &mut Log, all: bool) -> Result<()> {
    const LIVE: u64 = 0x1000_0000_0000;
    let path = log.path("data")?;
    let (fd, f) = lengths(log)?;
    // SAFETY: Descriptors, paths and mappings of this program.
    unsafe {
        check(libc::fallocate(fd, 0, 0, 65_536))?;
        log.note(format!("truncate {} 65536", f));
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        check(libc::fallocate(fd, hole, 8192, 5000))?;
        log.note(format!("punch {} 8192 5000", f));
        check(libc::fallocate(fd, libc::FALLOC_FL_KEEP_SIZE, 0, 90_000))?;
        if all {
            check(libc::fallocate(fd, libc::FALLOC_FL_ZERO_RANGE, 4096, 4096))?;
            log.note(format!("punch {} 4096 4096", f));
            let collapse = libc::FALLOC_FL_COLLAPSE_RANGE;
            check(libc::fallocate(fd, collapse, 4096, 4096))?;
            log.note(format!("punch {} 4096 {}", f, i64::MAX - 4096));
            check(libc::ftruncate(fd, 65_536))?;
            log.note(format!("truncate {} 65536", f));
        }
        // A mapping keeps the file open; advice about it.
        let p = libc::mmap(
            LIVE as *mut libc::c_void,
            16 * PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            fd,
            0,
        );
        if p == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        check(libc::close(fd))?;
        let range = |first: u64, last: u64| {
            format!(
                "{} {}",
                LIVE + first * PAGE as u64,
                LIVE + last * PAGE as u64
            )
        };
        check(libc::madvise(p, 4 * PAGE, libc::MADV_DONTNEED))?;
        log.note(format!("advise {} {}", range(0, 4), libc::MADV_DONTNEED));
        check(libc::madvise(p.add(4 * PAGE), 2 * PAGE, libc::MADV_REMOVE))?;
        log.note(format!("punch {} {} {}", f, 4 * PAGE, 2 * PAGE));
        log.note(format!("advise {} {}", range(4, 6), libc::MADV_REMOVE));
        if libc::madvise(p, PAGE, libc::MADV_FREE) == 0 {
            return Err(Error::other("pages of a file can be freed"));
        }
        check(libc::munmap(p, 16 * PAGE))?;
        log.file("close", &f, 65_536, "regular", "data");

        let (fd, f) = log.open("data", libc::O_WRONLY | libc::O_TRUNC, 0)?;
        check(libc::unlink(path.as_ptr()))?;
        done(libc::write(fd, path.as_ptr().cast(), 5))?;
        log.io("write", &f, 0, 5, "regular rw");
        log.close(fd, &f, 5, "regular", "data")?;
        log.note(format!("delete {} 5", f));

        let (fd, old) = log.open("copy", libc::O_RDONLY, 8252)?;
        log.close(fd, &old, 8252, "regular", "copy")?;
        let (fd, new) = log.open("new", libc::O_CREAT | libc::O_RDWR, 0)?;
        log.close(fd, &new, 0, "regular", "new")?;
        let (from, to) = (log.path("new")?, log.path("copy")?);
        check(libc::rename(from.as_ptr(), to.as_ptr()))?;
        log.note(format!("delete {} 8252", old));
        check(libc::unlink(to.as_ptr()))?;
        log.note(format!("delete {} 0", new));

        let dir = CString::new(log.dir.as_str())?;
        let fd = check(libc::open(
            dir.as_ptr(),
            libc::O_TMPFILE | libc::O_RDWR,
            0o600,
        ))?;
        let t = id(fd)?;
        log.file("open", &t, 0, "regular", "-");
        done(libc::write(fd, path.as_ptr().cast(), 3))?;
        log.io("write", &t, 0, 3, "regular rw");
        log.close(fd, &t, 3, "regular", "-")?;
        log.note(format!("delete {} 3", t));

        let fd = check(libc::memfd_create(c"made".as_ptr(), 0))?;
        let m = log.made(fd, "regular", "memfd:made")?;
        check(libc::ftruncate(fd, 8192))?;
        log.note(format!("truncate {} 8192", m));
        log.close(fd, &m, 8192, "regular", "memfd:made")?;
        log.note(format!("delete {} 8192", m));

        let path = log.path("folder")?;
        check(libc::mkdir(path.as_ptr(), 0o700))?;
        let fd = check(libc::open(path.as_ptr(), libc::O_PATH))?;
        let d = id(fd)?;
        log.note(format!("open {} - directory folder", d));
        check(libc::close(fd))?;
        log.note(format!("close {} - directory folder", d));
        check(libc::rmdir(path.as_ptr()))?;

        // System V: a file of its own, another at each attachment.
        let shm = check(libc::shmget(libc::IPC_PRIVATE, 10_000, 0o600))?;
        let at = libc::shmat(shm, (LIVE + (1 << 30)) as *const libc::c_void, 0);
        if at as isize == -1 {
            return Err(Error::last_os_error());
        }
        check(libc::shmdt(at))?;
        check(libc::shmctl(shm, libc::IPC_RMID, std::ptr::null_mut()))?;
        let (start, end) = (LIVE + (1 << 30), LIVE + (1 << 30) + 3 * PAGE as u64);
        for line in [
            "open - - - 10000 regular SYSV00000000".into(),
            "open - - - 10000 regular SYSV00000000".into(),
            format!("shmat {start} {end} - - - {shm}"),
            format!("shmdt {start} {end} - - - {shm}"),
            "close - - - 10000 regular SYSV00000000".into(),
            format!("shm_destroy 0 0 - - - {shm}"),
            "close - - - 10000 regular SYSV00000000".into(),
            "delete - - - 10000".into(),
        ] {
            log.note(line);
        }
    }
    Ok(())
}

fn held(log: &mut Log) -> Result<()> {
    let (fd, _) = log.open("held", libc::O_CREAT | libc::O_RDWR, 0)?;
    let mut pair = [0; 2];
    // SAFETY: Descriptors of this program.
    unsafe {
        check(libc::ftruncate(fd, 12_345))?;
        check(libc::pipe(pair.as_mut_ptr()))?;
        check(libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0))?;
    }
    let held = id(fd)?;
    let pipe = id(pair[0])?;
    let pid = std::process::id();
    activator(&format!("on -n 64 --pid {pid} -o {}/held.vmt", log.dir))?;
    activator("off")?;
    println!("open {} 12345 regular held", held);
    println!("open {} 0 pipe ", pipe);
    println!("open - - - 0 socket UNIX");
    println!("open - - - 0 char null");
    Ok(())
}

fn main() -> Result<()> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "/tmp".into());
    let mode = std::env::args().nth(2).unwrap_or_default();
    let mut log = Log::new(dir);
    if mode == "held" {
        return held(&mut log);
    }
    let mut buf = vec![7u8; 32 << 10];
    let mut aio = 0u64;
    let create = libc::O_CREAT | libc::O_RDWR;
    // SAFETY: A word for the context, a C string.
    let io = unsafe {
        long(libc::syscall(libc::SYS_io_setup, 4, &mut aio))?;
        check(libc::open(c"/proc/self/io".as_ptr(), libc::O_RDONLY))?
    };
    let counts = id(io)?;
    // Open to the very end.
    log.open("left", create, 0)?;
    log.clear();
    log.open("begin", create, 0)?;
    let first = counted(&mut log, io, &counts, &mut buf)?;
    plain(&mut log, &mut buf)?;
    pipes(&mut log, &mut buf)?;
    queued(&mut log, aio, &mut buf, mode != "cached")?;
    if mode == "remote" || mode == "cached" {
        let (fd, f) = lengths(&mut log)?;
        log.close(fd, &f, 30_001, "regular", "data")?;
        let (fd, f) = log.open("data", libc::O_WRONLY | libc::O_TRUNC, 0)?;
        log.close(fd, &f, 0, "regular", "data")?;
    } else {
        ends(&mut log, mode == "all")?;
    }
    let last = counted(&mut log, io, &counts, &mut buf)?;
    log.open("end", create, 0)?;
    println!("counted {} {}", last.0 - first.0, last.1 - first.1);
    log.print();
    Ok(())
}
