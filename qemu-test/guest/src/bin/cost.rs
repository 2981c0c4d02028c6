//! cost WHAT: time-stamp counter ticks of one operation: the least of several
//! batches, the mean, or the 5th percentile of single ones. Under icount a tick is an instruction.
use kvmtrace_guest::{PAGE, arg, check, map_at, map_with, read, ticks, write};

/// Ticks per operation of the cheapest of `batches` batches of `n`.
fn least(
    batches: usize,
    n: usize,
    mut op: impl FnMut(usize) -> std::io::Result<()>,
) -> std::io::Result<u64> {
    let mut best = u64::MAX;
    for _ in 0..batches {
        let start = ticks();
        for i in 0..n {
            op(i)?;
        }
        best = best.min((ticks() - start) / n as u64);
    }
    Ok(best)
}

/// Ticks of one of `n` single operations at the 5th percentile: what it takes when
/// neither the timer's tick nor a batch of the page allocator or of RCU falls into
/// it. A mean has all those, and they fall differently into any two kernels.
fn undisturbed(n: usize, mut op: impl FnMut() -> std::io::Result<()>) -> std::io::Result<u64> {
    let mut all = Vec::with_capacity(n);
    for _ in 0..n {
        let start = ticks();
        op()?;
        all.push(ticks() - start);
    }
    all.sort_unstable();
    Ok(all[n / 20])
}

fn child(run: impl FnOnce()) -> std::io::Result<()> {
    // SAFETY: One thread.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        run();
        // SAFETY: The end of the child.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: A child of ours.
    check(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) })?;
    Ok(())
}

/// A file of one page.
fn file() -> std::io::Result<i32> {
    // SAFETY: The name is a C string.
    let fd = check(unsafe { libc::memfd_create(c"cost".as_ptr(), 0) })?;
    // SAFETY: Our file.
    check(unsafe { libc::ftruncate(fd, PAGE as i64) })?;
    Ok(fd)
}

fn main() -> std::io::Result<()> {
    let what = std::env::args().nth(1).unwrap_or_default();
    let value = match what.as_str() {
        // More pages than the set has, in a cycle: each touch is admitted anew.
        // A batch is shorter than a sub-buffer.
        "rereference" | "rereference-mean" => {
            let pages = arg(2, 1024);
            let base = map_at(0x1000_0000_0000, pages)?;
            for i in 0..pages {
                write(base, i, 1);
            }
            let start = ticks();
            let best = least(20, pages, |i| {
                read(base, i);
                Ok(())
            })?;
            if what == "rereference" {
                best
            } else {
                (ticks() - start) / (20 * pages as u64)
            }
        }
        // A fault on a page of a memfd that is in memory but not mapped.
        "minor-fault" => {
            let pages = 512;
            // SAFETY: The name is a C string.
            let fd = check(unsafe { libc::memfd_create(c"cost".as_ptr(), 0) })?;
            // SAFETY: Our file.
            check(unsafe { libc::ftruncate(fd, (pages * PAGE) as i64) })?;
            let base = map_with(
                0x1000_0000_0000,
                pages,
                libc::MAP_SHARED | libc::MAP_FIXED,
                fd,
            )?;
            for i in 0..pages {
                write(base, i, 1);
            }
            let mut best = u64::MAX;
            for _ in 0..20 {
                // SAFETY: Our mapping; the file keeps the pages. Every 16th page
                // only, so that fault-around maps none that is measured.
                check(unsafe { libc::madvise(base.cast(), pages * PAGE, libc::MADV_DONTNEED) })?;
                let start = ticks();
                for i in (0..pages).step_by(16) {
                    write(base, i, 2);
                }
                best = best.min((ticks() - start) / (pages as u64 / 16));
            }
            best
        }
        "fork" => undisturbed(1000, || child(|| ()))?,
        "exec" => undisturbed(500, || {
            child(|| {
                let name = c"/bin/cost".as_ptr();
                let args = [name, c"nothing".as_ptr(), std::ptr::null()];
                // SAFETY: C strings and a list that ends with null.
                unsafe { libc::execv(name, args.as_ptr()) };
            })
        })?,
        "mmap" => undisturbed(20_000, || {
            let base = map_at(0x1000_0000_0000, 16)?;
            // SAFETY: The mapping just made.
            check(unsafe { libc::munmap(base.cast(), 16 * PAGE) })?;
            Ok(())
        })?,
        // What the hooks of events are in, one kind each.
        "read" | "write" => {
            let fd = file()?;
            let mut byte = 0u8;
            let at = (&raw mut byte).cast();
            undisturbed(20_000, || {
                // SAFETY: A byte of ours.
                let done = unsafe {
                    match what.as_str() {
                        "read" => libc::pread(fd, at, 1, 0),
                        _ => libc::pwrite(fd, at, 1, 0),
                    }
                };
                check(done as i32).map(drop)
            })?
        }
        // As much at once as lmbench's bw_file_rd reads.
        "read-block" => {
            const BLOCK: usize = 64 << 10;
            let (fd, mut block) = (file()?, vec![1u8; BLOCK]);
            let at = block.as_mut_ptr().cast::<libc::c_void>();
            // SAFETY: Our file, and a buffer of so many bytes.
            check(unsafe { libc::pwrite(fd, at, BLOCK, 0) } as i32)?;
            undisturbed(2000, || {
                // SAFETY: As above.
                check(unsafe { libc::pread(fd, at, BLOCK, 0) } as i32).map(drop)
            })?
        }
        "pipe" => {
            let mut ends = [0; 2];
            // SAFETY: Room for two descriptors.
            check(unsafe { libc::pipe(ends.as_mut_ptr()) })?;
            let mut byte = 0u8;
            let at = (&raw mut byte).cast();
            undisturbed(20_000, || {
                // SAFETY: A byte of ours.
                check(unsafe { libc::write(ends[1], at, 1) } as i32)?;
                // SAFETY: As above.
                check(unsafe { libc::read(ends[0], at, 1) } as i32).map(drop)
            })?
        }
        // To another process and back.
        "switch" => {
            let (mut there, mut back) = ([0; 2], [0; 2]);
            // SAFETY: Room for two descriptors each.
            check(unsafe { libc::pipe(there.as_mut_ptr()) })?;
            // SAFETY: As above.
            check(unsafe { libc::pipe(back.as_mut_ptr()) })?;
            let mut byte = 0u8;
            let at = (&raw mut byte).cast();
            // SAFETY: The child only reads and writes, and exits.
            let child = check(unsafe { libc::fork() })?;
            if child == 0 {
                // SAFETY: Descriptors and a byte of ours.
                unsafe {
                    libc::close(there[1]);
                    while libc::read(there[0], at, 1) == 1 {
                        libc::write(back[1], at, 1);
                    }
                    libc::_exit(0)
                }
            }
            let ticks = undisturbed(20_000, || {
                // SAFETY: A byte of ours.
                check(unsafe { libc::write(there[1], at, 1) } as i32)?;
                // SAFETY: As above.
                check(unsafe { libc::read(back[0], at, 1) } as i32).map(drop)
            })?;
            // SAFETY: A descriptor of ours.
            check(unsafe { libc::close(there[1]) })?;
            // SAFETY: A child of ours; no status is asked for.
            check(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) })?;
            ticks
        }
        "open-close" => undisturbed(20_000, || {
            // SAFETY: A C string.
            let fd = check(unsafe { libc::open(c"/bin/cost".as_ptr(), libc::O_RDONLY) })?;
            // SAFETY: The descriptor just made.
            check(unsafe { libc::close(fd) }).map(drop)
        })?,
        "truncate" => {
            let fd = file()?;
            undisturbed(20_000, || {
                // SAFETY: Our file.
                check(unsafe { libc::ftruncate(fd, 100) })?;
                // SAFETY: As above.
                check(unsafe { libc::ftruncate(fd, PAGE as i64) }).map(drop)
            })?
        }
        "mprotect" | "madvise" | "gup" => {
            let base = map_at(0x1000_0000_0000, 1)?;
            write(base, 0, 1);
            let mut byte = 0u8;
            let vector = |base: *mut u8| libc::iovec {
                iov_base: base.cast(),
                iov_len: 1,
            };
            let (to, from) = (vector(&raw mut byte), vector(base));
            let pid = std::process::id() as i32;
            undisturbed(20_000, || match what.as_str() {
                "mprotect" => {
                    for prot in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
                        // SAFETY: Our page, which nobody uses meanwhile.
                        check(unsafe { libc::mprotect(base.cast(), PAGE, prot) })?;
                    }
                    Ok(())
                }
                "madvise" => {
                    // SAFETY: As above.
                    check(unsafe { libc::madvise(base.cast(), PAGE, libc::MADV_DONTNEED) })?;
                    write(base, 0, 1);
                    Ok(())
                }
                // SAFETY: A byte each.
                _ => check(unsafe { libc::process_vm_readv(pid, &to, 1, &from, 1, 0) } as i32)
                    .map(drop),
            })?
        }
        "mremap" => {
            let [here, there] = [0x1000_0000_0000, 0x2000_0000_0000];
            let mut base = map_at(here, 1)?;
            write(base, 0, 1);
            undisturbed(20_000, || {
                for to in [there, here] {
                    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                    // SAFETY: Our page; nothing lies at either place.
                    let moved = unsafe {
                        libc::mremap(base.cast(), PAGE, PAGE, flags, to as *mut libc::c_void)
                    };
                    if moved == libc::MAP_FAILED {
                        return Err(std::io::Error::last_os_error());
                    }
                    base = moved.cast();
                }
                Ok(())
            })?
        }
        "shm" => {
            // SAFETY: Plain numbers.
            let id = check(unsafe { libc::shmget(libc::IPC_PRIVATE, PAGE, 0o600) })?;
            let value = undisturbed(20_000, || {
                // SAFETY: The kernel chooses the place.
                let at = unsafe { libc::shmat(id, std::ptr::null(), 0) };
                // SAFETY: What was just attached, if it was.
                check(unsafe { libc::shmdt(at) }).map(drop)
            });
            // SAFETY: Our segment.
            check(unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) })?;
            value?
        }
        // First touches of anonymous memory.
        "fault" => {
            let mut best = u64::MAX;
            for _ in 0..10 {
                let base = map_at(0x1000_0000_0000, 256)?;
                let start = ticks();
                for i in 0..256 {
                    write(base, i, 1);
                }
                best = best.min((ticks() - start) / 256);
                // SAFETY: The mapping just made.
                check(unsafe { libc::munmap(base.cast(), 256 * PAGE) })?;
            }
            best
        }
        _ => return Ok(()),
    };
    println!("{value}");
    Ok(())
}
