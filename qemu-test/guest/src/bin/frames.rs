//! `frames`: pages that go to a swap area and come back by being touched and by
//! swapoff(), that move to another node, and that KSM merges; a child that shares them.
//! Prints what happened to each page, as /proc/self/pagemap tells before and after.
use kvmtrace_guest::{
    PAGE, check, fork_child, map_at, move_pages, pagemap, set, sum, swap_on, wait_child, wait_for,
    write,
};
use std::io::{Error, Read, Result, Write};
use std::os::unix::net::UnixStream;

const PAGES: usize = 40;
const BASE: usize = 0x1000_0000_0000;
const DEVICE: &std::ffi::CStr = c"/dev/swap";

/// Of a page, from Documentation/admin-guide/mm/pagemap.rst.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Frame(u64),
    Swap { area: u64, slot: u64 },
    Nowhere,
}

fn places(base: *mut u8) -> Result<Vec<Where>> {
    let bits = |p: u64, from: u32, to: u32| p >> from & ((1 << (to - from)) - 1);
    let place = |p: u64| match (p >> 63 & 1, p >> 62 & 1) {
        (1, _) => Where::Frame(bits(p, 0, 55)),
        (_, 1) => Where::Swap {
            area: bits(p, 0, 5),
            slot: bits(p, 5, 55),
        },
        _ => Where::Nowhere,
    };
    Ok(pagemap(base, PAGES)?.into_iter().map(place).collect())
}

/// A line for each page whose place is another one.
fn tell(base: *mut u8, moved: &str, before: &[Where], after: &[Where]) {
    for (i, (old, new)) in before.iter().zip(after).enumerate() {
        let page = base as usize + i * PAGE;
        match (*old, *new) {
            (Where::Frame(pfn), Where::Swap { area, slot }) => {
                println!("swap_out {page:#x} {pfn} {area} {slot}");
            }
            (Where::Swap { area, slot }, Where::Frame(pfn)) => {
                println!("swap_in {page:#x} {pfn} {area} {slot}");
            }
            (Where::Frame(old), Where::Frame(new)) if old != new => {
                println!("{moved} {page:#x} {old} {new}");
            }
            _ => {}
        }
    }
}

fn page_out(base: *mut u8) -> Result<Vec<Where>> {
    let mut places = places(base)?;
    wait_for(20, "swapping", || {
        // SAFETY: The range is the program's own.
        unsafe { libc::madvise(base.cast(), PAGES * PAGE, libc::MADV_PAGEOUT) };
        places = self::places(base).unwrap_or_default();
        !places.is_empty() && places.iter().all(|p| matches!(p, Where::Swap { .. }))
    })?;
    Ok(places)
}

fn swapping() -> Result<()> {
    let base = map_at(BASE, PAGES)?;
    for i in 0..PAGES {
        write(base, i, i as u8);
    }
    let there = places(base)?;
    let gone = page_out(base)?;
    tell(base, "", &there, &gone);
    eprintln!("{}", sum(base, PAGES));
    let back = places(base)?;
    tell(base, "", &gone, &back);
    // A child has them, too, and waits while both get them back.
    let gone = page_out(base)?;
    tell(base, "", &back, &gone);
    let (mut wake, mut go) = UnixStream::pair()?;
    let child = fork_child(|| {
        let _ = wake.read(&mut [0]);
        (sum(base, PAGES) % 100) as i32
    })?;
    // SAFETY: A C string.
    check(unsafe { libc::swapoff(DEVICE.as_ptr()) })?;
    let back = places(base)?;
    tell(base, "", &gone, &back);
    // In the same frames.
    for (i, old) in gone.iter().enumerate() {
        if let (Where::Swap { area, slot }, Where::Frame(pfn)) = (*old, back[i]) {
            let page = BASE + i * PAGE;
            println!("child swap_in {page:#x} {pfn} {area} {slot}");
        }
    }
    go.write_all(&[1])?;
    eprintln!("child {:#x}, {}", wait_child(child)?, sum(base, PAGES));
    Ok(())
}

fn moving() -> Result<()> {
    let base = map_at(BASE + (1 << 30), PAGES)?;
    for i in 0..PAGES {
        write(base, i, i as u8);
    }
    for node in [1, 0, 0] {
        let there = places(base)?;
        let there_now = move_pages(base, PAGES, node)?;
        if there_now != PAGES {
            return Err(Error::other(format!("{there_now} pages on node {node}")));
        }
        tell(base, "migrate", &there, &places(base)?);
    }
    Ok(())
}

fn merging() -> Result<()> {
    const KSM: &str = "/sys/kernel/mm/ksm";
    let base = map_at(BASE + (2 << 30), PAGES)?;
    // SAFETY: The range is the program's own.
    check(unsafe { libc::madvise(base.cast(), PAGES * PAGE, libc::MADV_MERGEABLE) })?;
    for i in 0..PAGES {
        write(base, i, 77);
    }
    set(&format!("{KSM}/pages_to_scan"), "2000")?;
    set(&format!("{KSM}/sleep_millisecs"), "5")?;
    let there = places(base)?;
    set(&format!("{KSM}/run"), "1")?;
    wait_for(20, "merging", || {
        let sharing = std::fs::read_to_string(format!("{KSM}/pages_sharing"));
        sharing.is_ok_and(|s| s.trim().parse().is_ok_and(|n: usize| n >= PAGES - 1))
    })?;
    set(&format!("{KSM}/run"), "0")?;
    tell(base, "ksm", &there, &places(base)?);
    // Parted again, by copies on write.
    for i in 0..PAGES {
        write(base, i, i as u8);
    }
    Ok(())
}

fn main() -> Result<()> {
    swap_on("/dev/swap")?;
    swapping()?;
    moving()?;
    merging()
}
