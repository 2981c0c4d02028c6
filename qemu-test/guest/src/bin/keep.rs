//! keep SLOT FILE: copies a file to the trace disk, each slot 64 MiB, its length in
//! bytes first; and removes the file.
use kvmtrace_guest::arg;
use std::io::{Error, Result, Seek, SeekFrom, Write};

/// Bytes of the disk that each file has.
const SLOT: u64 = 64 << 20;

fn main() -> Result<()> {
    let path = std::env::args().nth(2).unwrap_or_default();
    let mut from = std::fs::File::open(&path)?;
    let len = from.metadata()?.len();
    if len + 8 > SLOT {
        return Err(Error::other(format!("{path} has {len} bytes")));
    }
    let mut disk = std::fs::File::options().write(true).open("/dev/trace")?;
    disk.seek(SeekFrom::Start(arg(1, 0) as u64 * SLOT))?;
    disk.write_all(&len.to_le_bytes())?;
    std::io::copy(&mut from, &mut disk)?;
    disk.sync_all()?;
    std::fs::remove_file(path)
}
