//! The kernel reads and writes the program's memory: pipes, files, vectors,
//! what the time and the current folder are. With an argument only that part:
//! pipe, file, vectors, segments, results; or large, which is done only if asked for.
use kvmtrace_guest::{PAGE, check, map_at, read, sum, write};
use std::io::Error;

fn done(n: isize, want: usize) -> std::io::Result<()> {
    match usize::try_from(n) {
        Ok(n) if n == want => Ok(()),
        Ok(n) => Err(Error::other(format!("{n} bytes instead of {want}"))),
        Err(_) => Err(Error::last_os_error()),
    }
}

/// Two megabytes by one write() into one folio of as many, and back.
fn large() -> std::io::Result<()> {
    const PAGES: usize = 512;
    let from = map_at(0x1300_0000_0000, PAGES)?;
    let to = map_at(0x1400_0000_0000, PAGES)?;
    for i in 0..PAGES {
        write(from, i, i as u8);
    }
    std::fs::create_dir_all("/tmp/large")?;
    let (tmpfs, at) = (c"tmpfs".as_ptr(), c"/tmp/large".as_ptr());
    let huge = c"huge=always".as_ptr().cast();
    // SAFETY: Strings with their ends; the file is unlinked with what it is on.
    unsafe {
        check(libc::mount(tmpfs, at, tmpfs, 0, huge))?;
        let flags = libc::O_RDWR | libc::O_CREAT;
        let fd = check(libc::open(c"/tmp/large/file".as_ptr(), flags, 0o600))?;
        done(libc::write(fd, from.cast(), PAGES * PAGE), PAGES * PAGE)?;
        let memory = std::fs::read_to_string("/proc/meminfo")?;
        let huge = memory
            .lines()
            .find_map(|l| l.strip_prefix("ShmemHugePages:"));
        if huge.map(str::trim) != Some("2048 kB") {
            return Err(Error::other(format!("no large folio: {huge:?}")));
        }
        done(libc::pread(fd, to.cast(), PAGES * PAGE, 0), PAGES * PAGE)?;
        check(libc::close(fd))?;
        check(libc::umount2(at, 0))?;
    }
    println!("large {}", sum(to, PAGES));
    Ok(())
}

fn main() -> std::io::Result<()> {
    const PAGES: usize = 64;
    let from = map_at(0x1000_0000_0000, PAGES)?;
    let to = map_at(0x1100_0000_0000, PAGES)?;
    for i in 0..PAGES {
        write(from, i, i as u8);
    }
    let mut pipe = [0; 2];
    // SAFETY: Room for two descriptors.
    check(unsafe { libc::pipe(pipe.as_mut_ptr()) })?;
    let wanted = std::env::args().nth(1);
    let part = |name: &str| wanted.as_deref().is_none_or(|w| w == name);
    for i in (0..PAGES - 3).filter(|_| part("pipe")) {
        // Two pages and a bit, from the middle of one; every second target is
        // new memory.
        let len = 2 * PAGE + 17;
        // SAFETY: Inside the mappings.
        unsafe {
            done(
                libc::write(pipe[1], from.add(i * PAGE + 100).cast(), len),
                len,
            )?;
            done(libc::read(pipe[0], to.add(i * PAGE + 9).cast(), len), len)?;
        }
        if i % 3 == 0 {
            read(to, i);
        }
        if i % 5 == 0 {
            write(to, i + 2, 3);
        }
    }
    let path = c"/tmp/kernel-copies";
    // SAFETY: A string with its end, and vectors inside the mappings.
    unsafe {
        let fd = check(libc::open(
            path.as_ptr(),
            libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC,
            0o600,
        ))?;
        if part("file") {
            done(libc::write(fd, from.cast(), PAGES * PAGE), PAGES * PAGE)?;
        }
        check(libc::ftruncate(fd, (PAGES * PAGE) as i64))?;
        let parts: Vec<libc::iovec> = (0..PAGES / 2)
            .map(|i| libc::iovec {
                iov_base: to.add(2 * i * PAGE + PAGE - 8).cast(),
                iov_len: 24,
            })
            .collect();
        if part("vectors") {
            done(
                libc::preadv(fd, parts.as_ptr(), parts.len() as i32, 5),
                parts.len() * 24,
            )?;
            done(
                libc::pwritev(fd, parts.as_ptr(), parts.len() as i32, 7),
                parts.len() * 24,
            )?;
        }
        if part("segments") {
            // More pages than most sets have, in fewer bytes than a page.
            let many = map_at(0x1200_0000_0000, 1000)?;
            let bytes: Vec<libc::iovec> = (0..1000)
                .map(|i| libc::iovec {
                    iov_base: many.add(i * PAGE).cast(),
                    iov_len: 1,
                })
                .collect();
            done(libc::pwritev(fd, bytes.as_ptr(), 1000, 0), 1000)?;
        }
        for i in (1..PAGES).filter(|_| part("results")) {
            // Results that lie on two pages.
            check(libc::fstat(fd, to.add(i * PAGE - 40).cast()))?;
            check(libc::clock_gettime(
                libc::CLOCK_REALTIME,
                from.add(i * PAGE - 8).cast(),
            ))?;
            // What the vdso does not do itself.
            check(libc::clock_getres(
                libc::CLOCK_PROCESS_CPUTIME_ID,
                from.add(i * PAGE - 8).cast(),
            ))?;
            if libc::getcwd(to.add(i * PAGE - 2).cast(), 100).is_null() {
                return Err(Error::last_os_error());
            }
        }
        check(libc::unlink(path.as_ptr()))?;
    }
    if wanted.as_deref() == Some("large") {
        large()?;
    }
    println!("{}", sum(to, PAGES));
    Ok(())
}
