//! What the guest's programs share: the job that the host hands over, and
//! memory at known addresses.

use serde::{Deserialize, Serialize};

pub mod calls;
pub mod follow;
pub mod ring;
pub mod tracers;
pub mod uffd;

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

/// The time-stamp counter.
pub fn ticks() -> u64 {
    // SAFETY: Every x86-64 CPU has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The time by CLOCK_MONOTONIC, ns.
pub fn now_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` has room for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Keeps this thread on a CPU.
///
/// # Errors
///
/// The system's error.
pub fn stay_on(cpu: usize) -> std::io::Result<()> {
    // SAFETY: Zeros are an empty set, which the call reads.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        check(libc::sched_setaffinity(0, size_of_val(&set), &set))?;
    }
    Ok(())
}

/// A new file of `pages` empty pages.
///
/// # Errors
///
/// The system's error.
pub fn new_file(path: &str, pages: usize) -> std::io::Result<std::fs::File> {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    file.set_len((pages * PAGE) as u64)?;
    Ok(file)
}

/// A child that shares all private pages of this process, and does nothing.
pub struct Sharer {
    child: i32,
    pipe: i32,
}

impl Sharer {
    /// Forks it.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn new() -> std::io::Result<Self> {
        let mut ends = [0; 2];
        // SAFETY: Room for two descriptors.
        check(unsafe { libc::pipe(ends.as_mut_ptr()) })?;
        // The child has the pages until the pipe is closed.
        let child = fork_child(|| {
            let mut byte = 0u8;
            // SAFETY: Descriptors and a byte of ours.
            unsafe {
                libc::close(ends[1]);
                libc::read(ends[0], (&raw mut byte).cast(), 1);
            }
            0
        })?;
        let pipe = ends[1];
        Ok(Sharer { child, pipe })
    }

    /// Ends the child, and waits for its end.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn end(self) -> std::io::Result<()> {
        // SAFETY: A descriptor of ours.
        check(unsafe { libc::close(self.pipe) })?;
        wait_child(self.child)?;
        Ok(())
    }
}

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
    let path = std::fs::canonicalize(device)?;
    let on = std::fs::read_to_string("/proc/swaps")?;
    if on
        .lines()
        .any(|l| l.split_ascii_whitespace().next() == path.to_str())
    {
        return Ok(());
    }
    make_swap(device)?;
    let name = std::ffi::CString::new(device)?;
    // SAFETY: The name is a C string.
    check(unsafe { libc::swapon(name.as_ptr(), 0) })?;
    Ok(())
}

/// The number after `key` in a file of the kernel's lines, such as
/// /proc/vmstat; 0 if there is none.
pub fn counter(file: &str, key: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let name = words.next()?.trim_end_matches(':');
            (name == key)
                .then(|| words.next())
                .flatten()?
                .parse::<u64>()
                .ok()
        })
        .sum()
}

/// Moves pages to a node, and says how many are there then.
///
/// # Errors
///
/// The system's error.
pub fn move_pages(base: *mut u8, pages: usize, node: i32) -> std::io::Result<usize> {
    /// Those of this process (include/uapi/linux/mempolicy.h).
    const MPOL_MF_MOVE: i32 = 1 << 1;
    let addresses: Vec<*mut u8> = (0..pages).map(|i| base.wrapping_add(i * PAGE)).collect();
    let nodes = vec![node; pages];
    let mut status = vec![-1i32; pages];
    // SAFETY: Vectors of one length.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages,
            addresses.as_ptr(),
            nodes.as_ptr(),
            status.as_mut_ptr(),
            MPOL_MF_MOVE,
        )
    } as i32)?;
    Ok(status.iter().filter(|s| **s == node).count())
}

/// What this process's mappings have in all of `key`, in KiB.
pub fn smaps(key: &str) -> u64 {
    counter("/proc/self/smaps", key)
}

/// Mounts the control groups (version 2) at `path`, if they are not there yet.
///
/// # Errors
///
/// If the folder can't be made or the kernel has none.
pub fn cgroups(path: &std::ffi::CStr) -> std::io::Result<()> {
    std::fs::create_dir_all(path.to_string_lossy().as_ref())?;
    mount(c"cgroup2", path)
}

/// Mounts a file system of the kernel's own at a folder, if it is not there yet.
///
/// # Errors
///
/// If there is no such folder, or the kernel has no such file system.
pub fn mount(kind: &std::ffi::CStr, path: &std::ffi::CStr) -> std::io::Result<()> {
    // SAFETY: Strings with their ends.
    let ret = unsafe {
        libc::mount(
            c"none".as_ptr(),
            path.as_ptr(),
            kind.as_ptr(),
            0,
            std::ptr::null(),
        )
    };
    match check(ret) {
        Err(e) if e.raw_os_error() != Some(libc::EBUSY) => Err(e),
        _ => Ok(()),
    }
}

/// Writes to a file of the kernel's, whose content is known by its name.
///
/// # Errors
///
/// The system's error, with the file's name.
pub fn set(file: &str, value: &str) -> std::io::Result<()> {
    std::fs::write(file, value).map_err(|e| std::io::Error::new(e.kind(), format!("{file}: {e}")))
}

/// The bits of /proc/self/pagemap of `pages` pages.
///
/// # Errors
///
/// The system's error.
pub fn pagemap(base: *mut u8, pages: usize) -> std::io::Result<Vec<u64>> {
    use std::os::unix::fs::FileExt;
    let f = std::fs::File::open("/proc/self/pagemap")?;
    let mut bytes = vec![0u8; pages * 8];
    f.read_exact_at(&mut bytes, (base as u64 / PAGE as u64) * 8)?;
    Ok(bytes
        .chunks_exact(8)
        .map(|b| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
        .collect())
}

/// Takes pages out of the TLB. Who clears accessed bits does not, and what a CPU reaches
/// without looking at the page table again sets none, traced or not.
///
/// # Errors
///
/// The system's error.
pub fn flush_tlb(base: *mut u8, pages: usize) -> std::io::Result<()> {
    for prot in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
        // SAFETY: The programs only name pages that they have mapped so.
        check(unsafe { libc::mprotect(base.cast(), pages * PAGE, prot) })?;
    }
    Ok(())
}

/// Runs the activator and waits for it.
///
/// # Errors
///
/// What it says, if it fails.
pub fn activator(args: &str) -> std::io::Result<String> {
    let out = std::process::Command::new("/bin/activator")
        .args(args.split_ascii_whitespace())
        .output()?;
    if !out.status.success() {
        return Err(std::io::Error::other(format!(
            "activator {args}: {}",
            String::from_utf8_lossy(&out.stderr)
        )));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Waits until `done` says so.
///
/// # Errors
///
/// If it does not for `seconds`.
pub fn wait_for(seconds: u64, what: &str, mut done: impl FnMut() -> bool) -> std::io::Result<()> {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    while !done() {
        if std::time::Instant::now() > end {
            return Err(std::io::Error::other(format!(
                "{what}: not within {seconds} s"
            )));
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Ok(())
}

/// Forks a child that does `work` and exits with its code.
///
/// # Errors
///
/// The system's error.
pub fn fork_child(work: impl FnOnce() -> i32) -> std::io::Result<i32> {
    // SAFETY: Programs fork while they have one thread only, or the child makes
    // system calls only.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        let code = work();
        // SAFETY: The end of the child.
        unsafe { libc::_exit(code) };
    }
    Ok(pid)
}

/// The same; the child has the id `pid`. This changes nothing about the ids that the kernel gives.
///
/// # Errors
///
/// The system's error.
pub fn fork_child_as(pid: libc::pid_t, work: impl FnOnce() -> i32) -> std::io::Result<libc::pid_t> {
    let ids = [pid];
    // SAFETY: Zeroes are a clone_args that asks for nothing.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    args.set_tid = ids.as_ptr() as u64;
    args.set_tid_size = 1;
    // SAFETY: Like fork(), of a program with one thread; the arguments are valid.
    let made = unsafe { libc::syscall(libc::SYS_clone3, &args, size_of_val(&args)) };
    if check(made as i32)? == 0 {
        let code = work();
        // SAFETY: The end of the child.
        unsafe { libc::_exit(code) };
    }
    Ok(pid)
}

/// Waits for a child and gives what waitpid() does.
///
/// # Errors
///
/// The system's error.
pub fn wait_child(pid: i32) -> std::io::Result<i32> {
    let mut status = 0;
    // SAFETY: A child of ours.
    check(unsafe { libc::waitpid(pid, &mut status, 0) })?;
    Ok(status)
}
