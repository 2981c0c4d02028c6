//! Accessed bits that others clear, or look at, while pages are sampled.
//!
//! `young clear MS PAGES PAUSE`: for MS ms, PAGES pages are read, then the kernel clears all accessed bits of
//! this process, and then nothing happens for PAUSE us, again and again. To stderr it prints
//! "steady BEGIN END": when these ms began and ended, in ns.
//! `young see MS PAGES`: PAGES pages are written once. For MS ms, /proc/self/smaps is read again and again.
//! Prints the fewest KiB of these pages that it has as referenced.
use kvmtrace_guest::{arg, map_at, now_ns, read, write};
use std::io::{Error, Result, Write};
use std::time::Duration;

const BASE: usize = 0x1000_0000_0000;

/// KiB of the pages that smaps has as referenced.
fn referenced() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps")?;
    let mut lines = text
        .lines()
        .skip_while(|l| !l.starts_with(&format!("{BASE:x}-")));
    lines
        .find_map(|l| l.strip_prefix("Referenced:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .ok_or_else(|| Error::other("smaps does not have the pages"))
}

fn main() -> Result<()> {
    let (ms, pages, pause) = (arg(2, 400), arg(3, 64), arg(4, 2000));
    let base = map_at(BASE, pages)?;
    (0..pages).for_each(|page| write(base, page, 1));
    let begin = now_ns();
    let end = begin + ms as u64 * 1_000_000;
    match std::env::args().nth(1).as_deref() {
        Some("clear") => {
            let mut clear = std::fs::OpenOptions::new()
                .write(true)
                .open("/proc/self/clear_refs")?;
            while now_ns() < end {
                (0..pages).for_each(|page| {
                    read(base, page);
                });
                clear.write_all(b"1")?;
                std::thread::sleep(Duration::from_micros(pause as u64));
            }
            println!("cleared");
        }
        Some("see") => {
            let mut fewest = u64::MAX;
            while now_ns() < end {
                fewest = fewest.min(referenced()?);
            }
            println!("{fewest} KiB are referenced");
        }
        part => return Err(Error::other(format!("no part {part:?}"))),
    }
    eprintln!("steady {begin} {}", now_ns());
    Ok(())
}
