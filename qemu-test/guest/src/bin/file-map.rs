//! `file-map [FOLDER]`: shared and private mappings of a file, write-back, truncation.
use kvmtrace_guest::{PAGE, check, map_with, read, sum, write};
use std::os::fd::AsRawFd;

fn main() -> std::io::Result<()> {
    const PAGES: usize = 128;
    let folder = std::env::args().nth(1).unwrap_or_else(|| "/tmp".into());
    let path = format!("{folder}/file-map.{}", std::process::id());
    let f = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    f.set_len((PAGES * PAGE) as u64)?;
    let fixed = libc::MAP_FIXED;
    let shared = map_with(
        0x1000_0000_0000,
        PAGES,
        libc::MAP_SHARED | fixed,
        f.as_raw_fd(),
    )?;
    let private = map_with(
        0x1100_0000_0000,
        PAGES,
        libc::MAP_PRIVATE | fixed,
        f.as_raw_fd(),
    )?;
    for i in 0..PAGES {
        write(shared, i, i as u8);
    }
    println!("seen {}", sum(private, PAGES));
    for i in (0..PAGES).step_by(2) {
        write(private, i, 200);
    }
    // SAFETY: The range is the program's own.
    check(unsafe { libc::msync(shared.cast(), PAGES * PAGE, libc::MS_SYNC) })?;
    println!(
        "shared {} private {}",
        sum(shared, PAGES),
        sum(private, PAGES)
    );
    for i in 0..PAGES {
        let old = read(shared, i);
        write(shared, i, old.wrapping_add(1));
    }
    f.set_len((PAGES / 2 * PAGE) as u64)?;
    f.set_len((PAGES * PAGE) as u64)?;
    println!("cut {}", sum(shared, PAGES));
    Ok(())
}
