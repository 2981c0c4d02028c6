//! `huge-tlb run|table|giant` and `huge-tlb before 0|1 TRACE`: huge pages of hugetlb, in all
//! ways to make, copy, move, hand out and drop them. With `table` and `before`, two processes
//! share a table of huge pages; with `before 1`, they are traced when they have it already.
//! `giant` has pages of 1 GiB.
use kvmtrace_guest::uffd::{self, ioctl};
use kvmtrace_guest::{
    PAGE, activator, arg, check, counter, fork_child, map_at, map_with, move_pages, read, set, sum,
    wait_child, write,
};
use std::io::{Error, Result};
use std::os::fd::{FromRawFd, OwnedFd};

/// Small pages of a huge one.
const HUGE: usize = 512;
/// Each part has a place of its own. qemu-test/src/scenarios/corners.rs knows them.
const ROUNDS: usize = 0x1000_0000_0000;
const PRIVATE: usize = 0x1010_0000_0000;
const MOVED: usize = 0x1020_0000_0000;
const SHARED: usize = 0x1030_0000_0000;
const FILE: usize = 0x1040_0000_0000;
const TABLE: usize = 0x1050_0000_0000;
const SMALL: usize = 0x1060_0000_0000;
const NODES: usize = 0x1070_0000_0000;
const COPIED: usize = 0x1080_0000_0000;

const ANON: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_HUGETLB;
const SHARE: i32 = libc::MAP_SHARED | libc::MAP_FIXED;
const NORESERVE: i32 = libc::MAP_NORESERVE;

/// A call whose answer is 0 on success.
fn done(ret: i32) -> Result<()> {
    check(ret).map(drop)
}

fn address(base: *mut u8, huge: usize) -> *mut libc::c_void {
    // SAFETY: Only the address is used, and it is within the mapping.
    unsafe { base.add(huge * HUGE * PAGE).cast() }
}

fn file(huge: usize) -> Result<OwnedFd> {
    // SAFETY: A string with its end.
    let fd = check(unsafe { libc::memfd_create(c"huge".as_ptr(), libc::MFD_HUGETLB) })?;
    // SAFETY: A descriptor of ours, which nobody else has.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    resize(&fd, huge)?;
    Ok(fd)
}

fn raw(fd: &OwnedFd) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(fd)
}

fn resize(fd: &OwnedFd, huge: usize) -> Result<()> {
    // SAFETY: A descriptor of ours.
    done(unsafe { libc::ftruncate(raw(fd), (huge * HUGE * PAGE) as i64) })
}

/// The same pages again and again, with so many small ones in between that no set of 64
/// keeps them. Reads and writes are to different small pages of each huge one.
fn rounds() -> Result<()> {
    const PAGES: usize = 8;
    const OTHERS: usize = 200;
    let huge = map_with(ROUNDS, PAGES * HUGE, ANON, -1)?;
    let small = map_at(SMALL, OTHERS)?;
    let mut sums = 0u64;
    for round in 0..10usize {
        for i in 0..PAGES {
            // What a round has written, the next one reads.
            let at = i * HUGE + (round / 2 * 106 + i * 7) % HUGE;
            if round % 2 == 0 {
                write(huge, at, (round + i) as u8);
            } else {
                sums = sums * 3 + u64::from(read(huge, at));
            }
        }
        for i in 0..OTHERS {
            write(small, i, round as u8);
        }
    }
    println!("rounds {sums} {}", sum(huge, PAGES * HUGE));
    // SAFETY: The range is the program's own.
    done(unsafe { libc::munmap(huge.cast(), PAGES * HUGE * PAGE) })
}

/// Pages that go from one node of memory to another, and back.
fn nodes() -> Result<()> {
    const PAGES: usize = 3;
    let base = map_with(NODES, PAGES * HUGE, ANON, -1)?;
    let mut moved = 0;
    for round in 0..4 {
        for i in 0..PAGES {
            write(base, i * HUGE + round, 1);
            moved += move_pages(address(base, i).cast(), 1, (round % 2) as i32)?;
        }
    }
    println!("nodes {moved} {}", sum(base, PAGES * HUGE));
    // SAFETY: The range is the program's own.
    done(unsafe { libc::munmap(base.cast(), PAGES * HUGE * PAGE) })
}

/// A page is copied by userfaultfd from one that other pages have put out of reach, into the
/// last page that the pool has.
fn copied() -> Result<()> {
    const OTHERS: usize = 200;
    const POOL: &str = "/proc/sys/vm/nr_hugepages";
    let size = HUGE * PAGE;
    let from = map_with(COPIED, HUGE, ANON, -1)?;
    let to = map_with(COPIED + size, HUGE, ANON | NORESERVE, -1)?;
    let small = map_at(SMALL + size, OTHERS)?;
    for i in 0..HUGE {
        write(from, i, i as u8);
    }
    let fd = uffd::open(0)?;
    let [source, target, len] = [COPIED, COPIED + size, size].map(|n| n as u64);
    ioctl(fd, uffd::REGISTER, &mut [target, len, uffd::MISSING, 0])?;
    let pages = |what| counter("/proc/meminfo", what);
    let before = pages("HugePages_Total");
    let used = before - pages("HugePages_Free");
    set(POOL, &(used + 1).to_string())?;
    for i in 0..OTHERS {
        write(small, i, 1);
    }
    ioctl(fd, uffd::COPY, &mut [target, source, len, 0, 0])?;
    println!("copied {} {}", sum(to, HUGE), pages("HugePages_Free"));
    set(POOL, &before.to_string())?;
    // SAFETY: The range is the program's own, and so is the descriptor.
    unsafe {
        done(libc::munmap(from.cast(), 2 * size))?;
        done(libc::close(fd))
    }
}

/// Copies on write by both, also of a page that is pinned; protections; moves; drops.
fn private() -> Result<()> {
    const PAGES: usize = 4;
    let base = map_with(PRIVATE, PAGES * HUGE, ANON, -1)?;
    for i in 0..3 * HUGE {
        write(base, i, i as u8);
    }
    let mut pipe = [0; 2];
    // SAFETY: The pipe's ends go to `pipe`, and the vector names a page of ours.
    unsafe {
        done(libc::pipe(pipe.as_mut_ptr()))?;
        let one = libc::iovec {
            iov_base: address(base, 2),
            iov_len: PAGE,
        };
        check(libc::vmsplice(pipe[1], &raw const one, 1, 0) as i32)?;
    }
    let child = fork_child(|| {
        write(base, 1, 77);
        // Nobody has touched this one before.
        write(base, 3 * HUGE + 5, 5);
        (sum(base, PAGES * HUGE) % 100) as i32
    })?;
    write(base, HUGE + 1, 78);
    let status = libc::WEXITSTATUS(wait_child(child)?);
    write(base, 3 * HUGE, 1);
    println!("private {status} {}", sum(base, PAGES * HUGE));

    let all = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: The ranges are the program's own.
    unsafe {
        done(libc::mprotect(
            address(base, 0),
            HUGE * PAGE,
            libc::PROT_READ,
        ))?;
        print!("{} ", sum(base, HUGE));
        done(libc::mprotect(
            address(base, 1),
            HUGE * PAGE,
            libc::PROT_NONE,
        ))?;
        done(libc::mprotect(address(base, 0), 2 * HUGE * PAGE, all))?;
        write(base, 3, 3);
        write(base, HUGE + 3, 3);
        println!("protected {}", sum(base, PAGES * HUGE));
        let moved = libc::mremap(
            address(base, 0),
            2 * HUGE * PAGE,
            2 * HUGE * PAGE,
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            MOVED as *mut libc::c_void,
        );
        if moved == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let moved = moved.cast::<u8>();
        println!("moved {}", sum(moved, 2 * HUGE));
        done(libc::madvise(
            moved.cast(),
            HUGE * PAGE,
            libc::MADV_DONTNEED,
        ))?;
        println!("dropped {}", sum(moved, 2 * HUGE));
        write(moved, 0, 9);
        let mut buffer = [0u8; 64];
        let to = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let from = libc::iovec {
            iov_base: moved.cast(),
            iov_len: buffer.len(),
        };
        let n = libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0);
        println!("handed out {n} {}", buffer[0]);
        done(libc::munmap(moved.cast(), 2 * HUGE * PAGE))?;
        done(libc::munmap(address(base, 2), 2 * HUGE * PAGE))?;
        done(libc::close(pipe[0]))?;
        done(libc::close(pipe[1]))
    }
}

/// A file in two processes, privately too; holes; truncation; pages made by fallocate().
fn shared() -> Result<()> {
    const PAGES: usize = 4;
    let fd = file(PAGES)?;
    let base = map_with(SHARED, PAGES * HUGE, SHARE, raw(&fd))?;
    for i in 0..2 {
        write(base, i * HUGE, 1 + i as u8);
    }
    let child = fork_child(|| {
        write(base, HUGE + 9, 4);
        write(base, 2 * HUGE, 5);
        (sum(base, 3 * HUGE) % 100) as i32
    })?;
    let status = libc::WEXITSTATUS(wait_child(child)?);
    println!("shared {status} {}", sum(base, PAGES * HUGE));
    let own = map_with(
        FILE,
        PAGES * HUGE,
        libc::MAP_PRIVATE | libc::MAP_FIXED | NORESERVE,
        raw(&fd),
    )?;
    print!("file {} ", sum(own, PAGES * HUGE));
    write(own, 1, 6);
    write(own, 3 * HUGE, 7);
    println!("{} {}", sum(own, PAGES * HUGE), sum(base, PAGES * HUGE));
    let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let huge = (HUGE * PAGE) as i64;
    // SAFETY: A descriptor of ours, and ranges of ours.
    unsafe {
        done(libc::fallocate(raw(&fd), hole, huge, huge))?;
        print!("hole {} ", sum(base, PAGES * HUGE));
        write(base, HUGE, 8);
        println!("{}", sum(base, PAGES * HUGE));
        done(libc::fallocate(raw(&fd), 0, huge * 4, huge))?;
        resize(&fd, 1)?;
        resize(&fd, PAGES)?;
        write(base, 2 * HUGE + 1, 9);
        println!("cut {}", sum(base, PAGES * HUGE));
        done(libc::munmap(base.cast(), PAGES * HUGE * PAGE))?;
        done(libc::munmap(own.cast(), PAGES * HUGE * PAGE))
    }
}

/// 1 GiB of a file, so that two processes have one table for it, which the first one made.
/// Both refer to the same pages in turn.
fn table(traced: bool) -> Result<()> {
    const ALL: usize = 512;
    const PAGES: usize = 6;
    let fd = file(ALL)?;
    let base = map_with(TABLE, ALL * HUGE, SHARE | NORESERVE, raw(&fd))?;
    for i in 0..PAGES {
        write(base, i * HUGE, i as u8);
    }
    let word = |i: usize| {
        // SAFETY: Within the mapping, aligned; all processes use it like this.
        unsafe { &*address(base, i).cast::<std::sync::atomic::AtomicU32>() }
    };
    use std::sync::atomic::Ordering::SeqCst;
    let child = fork_child(|| {
        for round in 0..20 {
            for i in 0..PAGES {
                let own = word(i);
                while own.load(SeqCst) >> 8 != 2 * round + 1 {
                    std::thread::yield_now();
                }
                own.fetch_add(0x101, SeqCst);
            }
        }
        0
    })?;
    if traced {
        let pid = std::process::id();
        let trace = std::env::args().nth(3).unwrap_or_default();
        activator(&format!("on -n 64 --pid {pid} -o {trace}"))?;
    }
    for round in 0..20 {
        for i in 0..PAGES {
            let own = word(i);
            own.fetch_add(0x101, SeqCst);
            while own.load(SeqCst) >> 8 != 2 * round + 2 {
                std::thread::yield_now();
            }
        }
    }
    wait_child(child)?;
    if traced {
        activator("off")?;
    }
    println!("table {}", sum(base, PAGES * HUGE));
    // SAFETY: The range is the program's own.
    done(unsafe { libc::munmap(base.cast(), ALL * HUGE * PAGE) })
}

/// A page of 1 GiB, which the kernel's command line has made, and another one for its copy.
fn giant() -> Result<()> {
    const GIB: usize = 1 << 30;
    let base = map_with(ROUNDS, GIB / PAGE, ANON | libc::MAP_HUGE_1GB, -1)?;
    let small = map_at(SMALL, 200)?;
    for round in 0..10 {
        write(base, round * 1001, round as u8 + 1);
        for i in 0..200 {
            write(small, i, 1);
        }
    }
    // While it is disabled.
    let mut buffer = [0u8; 64];
    let to = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let from = libc::iovec {
        iov_base: base.cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: Both vectors name memory of ours.
    let n =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    let child = fork_child(|| {
        write(base, 0, 50);
        i32::from(read(base, 9 * 1001)) + i32::from(read(base, 0))
    })?;
    let status = libc::WEXITSTATUS(wait_child(child)?);
    let sum: u64 = (0..10).map(|i| u64::from(read(base, i * 1001))).sum();
    println!("giant {n} {} {status} {sum}", buffer[0]);
    // SAFETY: The range is the program's own.
    done(unsafe { libc::munmap(base.cast(), GIB) })
}

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("giant") {
        return giant();
    }
    set("/proc/sys/vm/nr_hugepages", "24")?;
    match std::env::args().nth(1).as_deref() {
        Some("run") => {
            rounds()?;
            nodes()?;
            copied()?;
            private()?;
            shared()?;
            table(false)?;
        }
        Some("table") => table(false)?,
        Some("before") => table(arg(2, 0) != 0)?,
        other => return Err(Error::other(format!("no such part: {other:?}"))),
    }
    set("/proc/sys/vm/nr_hugepages", "0")?;
    println!("{}", counter("/proc/meminfo", "HugePages_Total"));
    Ok(())
}
