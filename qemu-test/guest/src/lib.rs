//! What the guest's programs share: the job that the host hands over, and
//! memory at known addresses.

use serde::{Deserialize, Serialize};

/// One program to run.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Step {
    /// Name in the results.
    pub name: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Run in the Debian root instead of the initramfs.
    #[serde(default)]
    pub chroot: bool,
    /// Seconds until it is killed.
    pub timeout_s: u64,
    /// Do not wait; it is killed at the end of the job.
    #[serde(default)]
    pub background: bool,
    /// User to run as; 0 is root.
    #[serde(default)]
    pub uid: u32,
    /// Environment, beyond what every step has.
    #[serde(default)]
    pub env: Vec<(String, String)>,
}

/// What became of a step.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct StepResult {
    /// The step.
    pub name: String,
    /// Exit code; 128 + signal if killed; 255 if it could not be started or
    /// ran out of time.
    pub rc: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Wall time, ns.
    pub ns: u64,
}

/// Size of a page.
pub const PAGE: usize = 4096;

/// Anonymous private memory of `pages` pages at exactly `addr`, readable and
/// writable.
///
/// # Errors
///
/// The system's error if the kernel refuses.
pub fn map_at(addr: usize, pages: usize) -> std::io::Result<*mut u8> {
    map_with(
        addr,
        pages,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
        -1,
    )
}

/// Memory of `pages` pages at `addr` with mmap's `flags` and file `fd`.
///
/// # Errors
///
/// The system's error if the kernel refuses.
pub fn map_with(addr: usize, pages: usize, flags: i32, fd: i32) -> std::io::Result<*mut u8> {
    // SAFETY: The programs use fixed addresses that nothing else lies at.
    let p = unsafe {
        libc::mmap(
            addr as *mut libc::c_void,
            pages * PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            fd,
            0,
        )
    };
    if p == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(p.cast())
}

/// Turns a system call's answer into a result.
///
/// # Errors
///
/// The system's error if `ret` is negative.
pub fn check(ret: i32) -> std::io::Result<i32> {
    if ret < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(ret)
}

/// Reads a byte of page `i`.
#[allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "programs whose whole purpose is to touch raw memory"
)]
pub fn read(base: *mut u8, i: usize) -> u8 {
    // SAFETY: The programs only ask for pages that they have mapped.
    unsafe { base.add(i * PAGE).read_volatile() }
}

/// Writes a byte to page `i`.
#[allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "programs whose whole purpose is to touch raw memory"
)]
pub fn write(base: *mut u8, i: usize, value: u8) {
    // SAFETY: The programs only ask for pages that they have mapped.
    unsafe { base.add(i * PAGE).write_volatile(value) }
}

/// Sum of the first bytes of `pages` pages.
pub fn sum(base: *mut u8, pages: usize) -> u64 {
    (0..pages).map(|i| u64::from(read(base, i))).sum()
}

/// Argument `n`, a number, or `default`.
pub fn arg(n: usize, default: usize) -> usize {
    std::env::args()
        .nth(n)
        .and_then(|a| a.parse().ok())
        .unwrap_or(default)
}

/// Makes a swap area of a device, as mkswap does (include/linux/swap.h).
fn make_swap(device: &str) -> std::io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    let mut f = std::fs::OpenOptions::new().write(true).open(device)?;
    let pages = (f.seek(SeekFrom::End(0))? / PAGE as u64) as u32;
    let mut head = vec![0u8; PAGE];
    head[1024..1028].copy_from_slice(&1u32.to_le_bytes());
    head[1028..1032].copy_from_slice(&(pages - 1).to_le_bytes());
    head[PAGE - 10..].copy_from_slice(b"SWAPSPACE2");
    f.seek(SeekFrom::Start(0))?;
    f.write_all(&head)?;
    f.sync_all()
}

/// Swaps to a device, unless that is on since an earlier run. What is on it is
/// lost.
///
/// # Errors
///
/// The system's error if the device or the kernel refuses.
pub fn swap_on(device: &str) -> std::io::Result<()> {
    match make_swap(device) {
        // Swap is on, and may not be written.
        Err(e) if e.raw_os_error() == Some(libc::ETXTBSY) => return Ok(()),
        made => made?,
    }
    let name = std::ffi::CString::new(device)?;
    // SAFETY: The name is a C string.
    let on = unsafe { libc::swapon(name.as_ptr(), 0) };
    if on < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EBUSY) {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}
