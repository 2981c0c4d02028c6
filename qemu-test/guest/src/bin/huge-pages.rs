//! `huge-pages thp|shmem|others|mthp [traced]`: large pages of all kinds. With
//! `traced` the first two begin untraced, and have themselves traced while huge
//! pages are there. `others` has itself traced, too, and another process is not traced.
use kvmtrace_guest::{
    PAGE, activator, arg, check, counter, fork_child, map_at, map_with, set, smaps, sum, swap_on,
    wait_child, wait_for, write,
};
use std::io::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const HUGE: usize = 512;
const BASE: usize = 0x1000_0000_0000;
const THP: &str = "/sys/kernel/mm/transparent_hugepage";

fn advise(base: *mut u8, pages: usize, advice: i32) -> Result<()> {
    // SAFETY: Ranges are the program's own.
    check(unsafe { libc::madvise(base.cast(), pages * PAGE, advice) }).map(drop)
}

fn expect(what: &str, is: u64, want: bool) -> Result<()> {
    if (is > 0) == want {
        return Ok(());
    }
    Err(Error::other(format!("{what}: {is}")))
}

/// Fills huge pages, has itself traced over them, touches every small page.
fn collapse(base: *mut u8, more: *mut u8, key: &str, traced: bool) -> Result<()> {
    const COUNT: usize = 4;
    let pages = COUNT * HUGE;
    for m in [base, more] {
        advise(m, pages, libc::MADV_HUGEPAGE)?;
    }
    for i in 0..COUNT {
        write(base, i * HUGE, 1);
    }
    expect("KiB in huge pages before", smaps(key), true)?;
    if traced {
        let pid = std::process::id();
        activator(&format!("on -n 64 --pid {pid} -o {}", trace()))?;
        // File mappings are not split but unmapped.
        expect("KiB in huge pages while traced", smaps(key), false)?;
    }
    for round in 0..2u8 {
        for i in 0..pages {
            write(base, i, (i as u8).wrapping_add(round));
        }
    }
    for i in 0..pages {
        write(more, i, i as u8);
    }
    println!("{} {}", sum(base, pages), sum(more, pages));
    if traced {
        expect("KiB in new huge pages", smaps(key), false)?;
        if advise(base, HUGE, libc::MADV_COLLAPSE).is_ok() && smaps(key) != 0 {
            return Err(Error::other("MADV_COLLAPSE made a huge page"));
        }
        activator("off")?;
    }
    // Whatever is left over, huge pages can be made again.
    advise(base, HUGE, libc::MADV_COLLAPSE)?;
    write(base, 0, 0);
    expect("KiB in huge pages after", smaps(key), true)?;
    println!("{}", sum(base, pages));
    Ok(())
}

fn trace() -> String {
    std::env::args()
        .nth(3)
        .unwrap_or_else(|| "/dev/trace".into())
}

fn shmem(at: usize, pages: usize) -> Result<*mut u8> {
    // SAFETY: A string with its end.
    let fd = check(unsafe { libc::memfd_create(c"huge".as_ptr(), 0) })?;
    // SAFETY: A descriptor of ours.
    check(unsafe { libc::ftruncate(fd, (pages * PAGE) as i64) })?;
    map_with(at, pages, libc::MAP_SHARED | libc::MAP_FIXED, fd)
}

/// A process that is not traced collapses pages of a file that is mapped here, too: first while nothing
/// is accessed here, which takes page tables away, and then while all of it is read.
fn others(traced: bool) -> Result<()> {
    const AREAS: usize = 8;
    const QUIET: usize = 4;
    let base = shmem(BASE, AREAS * HUGE)?;
    let area = |n: usize| base.wrapping_add(n * HUGE * PAGE);
    for i in 0..AREAS * HUGE {
        write(base, i, i as u8);
    }
    let words = map_with(0, 1, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)?;
    // SAFETY: The page is aligned, full of zeros, and never unmapped.
    let [asked, done, failed] = unsafe { &*words.cast::<[AtomicUsize; 3]>() };
    let pause = || std::thread::sleep(std::time::Duration::from_millis(1));
    let collapse = |n| {
        // Who holds a page for a moment makes that fail.
        for _ in 0..1000 {
            match advise(area(n), HUGE, libc::MADV_COLLAPSE).map_err(|e| e.raw_os_error()) {
                Err(Some(libc::EAGAIN)) => pause(),
                Err(code) => return code.unwrap_or(libc::EIO),
                Ok(()) => return 0,
            }
        }
        libc::EAGAIN
    };
    let me = std::process::id() as i32;
    let work = || {
        for n in 0..AREAS {
            while asked.load(SeqCst) <= n {
                // SAFETY: It only looks whether the process is there.
                if unsafe { libc::kill(me, 0) } != 0 {
                    return 1;
                }
                pause();
            }
            let code = collapse(n);
            failed.fetch_max(code as usize, SeqCst);
            done.store(n + 1, SeqCst);
        }
        0
    };
    // Descendants are traced, too. So the one that collapses has lost its parent.
    wait_child(fork_child(|| fork_child(work).map_or(1, |_| 0))?)?;
    if traced {
        let pid = std::process::id();
        activator(&format!("on -n 64 --pid {pid} -o {}", trace()))?;
    }
    let whole = sum(base, AREAS * HUGE);
    let tables = || counter("/proc/self/status", "VmPTE");
    let before = tables();
    asked.store(QUIET, SeqCst);
    wait_for(60, "four areas", || done.load(SeqCst) == QUIET)?;
    let taken = before.saturating_sub(tables());
    expect("KiB of page tables taken away", taken, true)?;
    let each = sum(area(0), HUGE);
    let mut rounds = 0u64;
    for n in QUIET..AREAS {
        asked.store(n + 1, SeqCst);
        while done.load(SeqCst) <= n {
            if sum(area(n), HUGE) != each {
                return Err(Error::other(format!("area {n} has other bytes")));
            }
            rounds += 1;
            if rounds > 100_000 {
                return Err(Error::other(format!("area {n} is not collapsed")));
            }
        }
    }
    println!("{}", sum(base, AREAS * HUGE) == whole);
    if traced {
        expect("KiB in huge pages", smaps("ShmemPmdMapped"), false)?;
        activator("off")?;
    }
    match failed.load(SeqCst) {
        0 => Ok(()),
        code => Err(Error::from_raw_os_error(code as i32)),
    }
}

/// Folios of 64 KiB, mapped by PTEs, in all ways that take several at once.
fn mthp() -> Result<()> {
    const PAGES: usize = 256;
    let size = format!("{THP}/hugepages-64kB");
    set(&format!("{size}/enabled"), "always")?;
    swap_on("/dev/swap")?;
    let stat = |name: &str| {
        std::fs::read_to_string(format!("{size}/stats/{name}"))
            .ok()
            .and_then(|s| s.trim().parse::<u64>().ok())
            .unwrap_or(0)
    };
    let before = stat("anon_fault_alloc");
    let base = map_at(BASE, PAGES)?;
    for i in 0..PAGES {
        write(base, i, i as u8);
    }
    expect("folios", stat("anon_fault_alloc") - before, true)?;
    // COW of a part, by both.
    let child = fork_child(|| {
        for i in (0..PAGES).step_by(3) {
            write(base, i, 1);
        }
        (sum(base, PAGES) % 100) as i32
    })?;
    for i in (0..PAGES).step_by(5) {
        write(base, i, 2);
    }
    println!(
        "{} {}",
        libc::WEXITSTATUS(wait_child(child)?),
        sum(base, PAGES)
    );
    // SAFETY: The ranges are the program's own.
    unsafe {
        let at = |page: usize| base.add(page * PAGE).cast::<libc::c_void>();
        check(libc::mprotect(at(8), 24 * PAGE, libc::PROT_READ))?;
        println!("{}", sum(base, PAGES));
        check(libc::mprotect(
            at(8),
            24 * PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
        ))?;
        check(libc::madvise(at(40), 13 * PAGE, libc::MADV_DONTNEED))?;
        check(libc::madvise(at(64), 21 * PAGE, libc::MADV_FREE))?;
        for i in 64..85 {
            write(base, i, 9);
        }
        check(libc::madvise(base.cast(), PAGES * PAGE, libc::MADV_PAGEOUT))?;
        println!("{}", sum(base, PAGES));
        let to = 0x1100_0000_0000usize + 3 * PAGE;
        let p = libc::mremap(
            at(96),
            64 * PAGE,
            64 * PAGE,
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            to as *mut libc::c_void,
        );
        if p == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        println!("{}", sum(p.cast(), 64));
    }
    set(&format!("{size}/enabled"), "never")
}

fn main() -> Result<()> {
    let traced = arg(2, 0) != 0;
    let pages = 4 * HUGE;
    match std::env::args().nth(1).as_deref() {
        Some("thp") => collapse(
            map_at(BASE, pages)?,
            map_at(BASE << 1, pages)?,
            "AnonHugePages",
            traced,
        ),
        Some("shmem") => {
            set(&format!("{THP}/shmem_enabled"), "advise")?;
            collapse(
                shmem(BASE, pages)?,
                shmem(BASE << 1, pages)?,
                "ShmemPmdMapped",
                traced,
            )
        }
        Some("others") => others(traced),
        Some("mthp") => mthp(),
        other => Err(Error::other(format!("no kind of large page: {other:?}"))),
    }
}
