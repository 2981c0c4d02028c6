//! keep SLOT FILE: copies a file to the trace disk, each slot 64 MiB, its length in
//! bytes first; and removes the file. On a machine without that disk, memory that it shares
//! with the host takes its place.
use kvmtrace_guest::arg;
use std::fs::File;
use std::io::{Error, Result, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

/// Bytes of the disk that each file has.
const SLOT: u64 = 64 << 20;

fn main() -> Result<()> {
    let path = std::env::args().nth(2).unwrap_or_default();
    let mut from = File::open(&path)?;
    let len = from.metadata()?.len();
    if len + 8 > SLOT {
        return Err(Error::other(format!("{path} has {len} bytes")));
    }
    let at = arg(1, 0) as u64 * SLOT;
    if Path::new("/dev/trace").exists() {
        let mut disk = File::options().write(true).open("/dev/trace")?;
        disk.seek(SeekFrom::Start(at))?;
        disk.write_all(&len.to_le_bytes())?;
        std::io::copy(&mut from, &mut disk)?;
        disk.sync_all()?;
    } else {
        let bytes = std::fs::read(&path)?;
        share(at, &[&len.to_le_bytes()[..], &bytes].concat())?;
    }
    std::fs::remove_file(path)
}

/// Copies to QEMU's device of memory that is a file of the host.
fn share(at: u64, bytes: &[u8]) -> Result<()> {
    let device = std::fs::read_dir("/sys/bus/pci/devices")?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            let id = |name| std::fs::read_to_string(path.join(name)).unwrap_or_default();
            (id("vendor").trim(), id("device").trim()) == ("0x1af4", "0x1110")
        })
        .ok_or_else(|| Error::other("no disk and no shared memory"))?;
    std::fs::write(device.join("enable"), "1")?;
    let file = File::options()
        .read(true)
        .write(true)
        .open(device.join("resource2"))?;
    let (sharing, rights) = (libc::MAP_SHARED, libc::PROT_READ | libc::PROT_WRITE);
    let (null, fd) = (std::ptr::null_mut(), file.as_raw_fd());
    // SAFETY: A new mapping, where the kernel likes.
    let to = unsafe { libc::mmap(null, bytes.len(), rights, sharing, fd, at as i64) };
    if to == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    // SAFETY: The mapping is so long, and stays until this program ends.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    Ok(())
}
