//! The kernel reads and writes the program's memory: pipes, files, vectors,
//! what the time and the current folder are. With an argument only that part:
//! pipe, file, vectors, segments, results.
use kvmtrace_guest::{PAGE, check, map_at, read, sum, write};
use std::io::Error;

fn done(n: isize, want: usize) -> std::io::Result<()> {
    match usize::try_from(n) {
        Ok(n) if n == want => Ok(()),
        Ok(n) => Err(Error::other(format!("{n} bytes instead of {want}"))),
        Err(_) => Err(Error::last_os_error()),
    }
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
    println!("{}", sum(to, PAGES));
    Ok(())
}
