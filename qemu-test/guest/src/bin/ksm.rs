//! Lets the kernel merge pages of one content, reads them, writes some.
use kvmtrace_guest::{PAGE, check, map_at, set, sum, wait_for, write};

const KSM: &str = "/sys/kernel/mm/ksm";

fn number(name: &str) -> u64 {
    std::fs::read_to_string(format!("{KSM}/{name}"))
        .ok()
        .and_then(|s| s.trim().parse().ok())
        .unwrap_or(0)
}

fn main() -> std::io::Result<()> {
    const PAGES: usize = 128;
    let base = map_at(0x1000_0000_0000, PAGES)?;
    // SAFETY: The range is the program's own.
    check(unsafe { libc::madvise(base.cast(), PAGES * PAGE, libc::MADV_MERGEABLE) })?;
    set(&format!("{KSM}/pages_to_scan"), "2000")?;
    set(&format!("{KSM}/sleep_millisecs"), "5")?;
    set(&format!("{KSM}/use_zero_pages"), "0")?;
    for round in 0..3u8 {
        for i in 0..PAGES {
            write(base, i, 100 + round);
        }
        set(&format!("{KSM}/run"), "1")?;
        wait_for(20, "merging", || {
            number("pages_sharing") >= PAGES as u64 - 1
        })?;
        set(&format!("{KSM}/run"), "0")?;
        println!("merged {}", sum(base, PAGES));
        for i in (0..PAGES).step_by(2) {
            write(base, i, i as u8);
        }
        println!("parted {}", sum(base, PAGES));
    }
    set(&format!("{KSM}/run"), "2")?;
    println!("unmerged {} {}", sum(base, PAGES), number("pages_shared"));
    set(&format!("{KSM}/run"), "0")
}
