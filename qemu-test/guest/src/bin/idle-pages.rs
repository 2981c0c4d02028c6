//! What others are told of accesses: idle page tracking, soft-dirty bits, the
//! referenced and the dirty memory of smaps. The same with and without a tracer.
use kvmtrace_guest::{
    PAGE, check, flush_tlb, map_at, map_with, pagemap, read, set, smaps, sum, write,
};
use std::fs::File;
use std::io::Result;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

const PAGES: usize = 128;
/// In place of those in the last part of memory.
const MORE: usize = 64;
const BITMAP: &str = "/sys/kernel/mm/page_idle/bitmap";

/// The word of a frame; none in the last part of memory, if that is not whole.
fn bitmap_word(f: &File, pfn: u64) -> Result<Option<u64>> {
    let mut word = [0; 8];
    let n = f.read_at(&mut word, pfn / 64 * 8)?;
    Ok((n == 8).then(|| u64::from_le_bytes(word)))
}

/// Whether each page is idle.
fn idle(pfns: &[u64]) -> Result<Vec<bool>> {
    let f = File::open(BITMAP)?;
    pfns.iter()
        .map(|pfn| Ok(bitmap_word(&f, *pfn)?.unwrap_or(0) >> (pfn % 64) & 1 == 1))
        .collect()
}

fn make_idle(pfns: &[u64]) -> Result<()> {
    let f = File::options().write(true).open(BITMAP)?;
    for pfn in pfns {
        f.write_all_at(&(1u64 << (pfn % 64)).to_le_bytes(), pfn / 64 * 8)?;
    }
    Ok(())
}

fn count(bits: &[bool], step: usize, first: usize) -> usize {
    bits.iter()
        .skip(first)
        .step_by(step)
        .filter(|b| **b)
        .count()
}

/// What one mapping has of something that smaps tells, in KiB.
fn of(base: *mut u8, what: &str) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps")?;
    Ok(text
        .split_once(&format!("{:x}-", base as usize))
        .and_then(|(_, rest)| rest.split_once(&format!("{what}:")))
        .and_then(|(_, rest)| rest.split_ascii_whitespace().next())
        .and_then(|n| n.parse().ok())
        .unwrap_or(0))
}

/// Pages of a disk, mapped, that are clean until they are written, and clean again
/// when they were written back.
fn clean(other: *mut u8) -> Result<()> {
    let disk = File::options().read(true).write(true).open("/dev/small")?;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    let base = map_with(0x1200_0000_0000, PAGES, flags, disk.as_raw_fd())?;
    let dirty = |when: &str| -> Result<()> {
        sum(base, PAGES);
        sum(other, 300);
        let pages = (of(base, "Shared_Dirty")? + of(base, "Private_Dirty")?) * 1024;
        println!("{when}: {} dirty pages", pages / PAGE as u64);
        Ok(())
    };
    dirty("read")?;
    for round in 0..2u8 {
        for i in (0..PAGES).step_by(3) {
            write(base, i, round);
        }
        dirty("written")?;
        // SAFETY: The range is the program's own.
        check(unsafe { libc::msync(base.cast(), PAGES * PAGE, libc::MS_SYNC) })?;
        dirty("written back")?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let base = map_at(0x1000_0000_0000, PAGES + MORE)?;
    let other = map_at(0x1100_0000_0000, 300)?;
    for i in 0..PAGES + MORE {
        write(base, i, i as u8);
    }
    // What lies in a CPU's batch is not on a list, and so not tracked.
    set("/proc/sys/vm/drop_caches", "1")?;
    let f = File::open(BITMAP)?;
    // Those that can be tracked, by their frames and numbers.
    let mut pfns = Vec::new();
    let mut numbers = Vec::new();
    for (i, bits) in pagemap(base, PAGES + MORE)?.iter().enumerate() {
        let pfn = bits & ((1 << 55) - 1);
        if pfns.len() < PAGES && bitmap_word(&f, pfn)?.is_some() {
            pfns.push(pfn);
            numbers.push(i);
        }
    }
    for step in [2, 3, 7] {
        make_idle(&pfns)?;
        let before = idle(&pfns)?;
        flush_tlb(base, PAGES + MORE)?;
        for i in numbers.iter().step_by(step) {
            read(base, *i);
        }
        // So that those go through the set, and out of it.
        let mut n = 0;
        for _ in 0..2 {
            n += sum(other, 300);
        }
        let after = idle(&pfns)?;
        println!(
            "every {step}: {} were idle, {} of the touched and {} of the others are; {n}",
            count(&before, 1, 0),
            count(&after, step, 0),
            count(&after, 1, 0) - count(&after, step, 0),
        );
    }
    // Clears accessed bits: then what is referenced is told by smaps.
    for step in [2, 5] {
        set("/proc/self/clear_refs", "1")?;
        let before = smaps("Referenced");
        flush_tlb(base, PAGES + MORE)?;
        for i in (0..PAGES).step_by(step) {
            read(base, i);
        }
        sum(other, 300);
        let kib = of(base, "Referenced")?;
        println!("referenced {} pages", kib * 1024 / PAGE as u64);
        assert!(before < 4 * PAGES as u64, "{before} KiB stayed referenced");
    }
    for step in [2, 3] {
        set("/proc/self/clear_refs", "4")?;
        for i in 0..PAGES {
            read(base, i);
        }
        for i in (0..PAGES).step_by(step) {
            write(base, i, step as u8);
        }
        sum(other, 300);
        let bits: Vec<bool> = pagemap(base, PAGES)?
            .iter()
            .map(|b| b >> 55 & 1 == 1)
            .collect();
        println!(
            "soft-dirty: {} of the written, {} in all",
            count(&bits, step, 0),
            count(&bits, 1, 0)
        );
    }
    clean(other)
}
