//! What a program does to files, as events should tell it: lines in the words and the
//! order of events, where a `-` stands for what the program can't know.

use crate::check;
use std::ffi::CString;
use std::fmt;
use std::io::{Error, Result};

/// A file, as events name it.
#[derive(Clone)]
pub struct Id(String);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What events should tell.
pub struct Log {
    /// Where the files are.
    pub dir: String,
    lines: Vec<String>,
}

/// Bytes done, as a call returned.
///
/// # Errors
///
/// The system's error.
pub fn done(n: isize) -> Result<usize> {
    usize::try_from(n).map_err(|_| Error::last_os_error())
}

/// The file of a descriptor, whose generation `-` stands for if it has none.
///
/// # Errors
///
/// The system's error.
pub fn id(fd: i32) -> Result<Id> {
    const FS_IOC_GETVERSION: u64 = 0x8008_7601;
    // SAFETY: Zeros are a stat, which the kernel fills in.
    let st = unsafe {
        let mut st: libc::stat = std::mem::zeroed();
        check(libc::fstat(fd, &mut st))?;
        st
    };
    let mut version = 0u64;
    // SAFETY: A word for a word.
    let known = unsafe { libc::ioctl(fd, FS_IOC_GETVERSION as _, &mut version) } == 0;
    let (major, minor) = match mounted(fd)? {
        Some(device) => device,
        None => (libc::major(st.st_dev), libc::minor(st.st_dev)),
    };
    let dev = u64::from(major) << 20 | u64::from(minor);
    let generation = if known && st.st_mode & libc::S_IFMT == libc::S_IFREG {
        (version as u32).to_string()
    } else {
        "-".into()
    };
    Ok(Id(format!("{dev} {} {generation}", st.st_ino)))
}

/// The device of a file of btrfs as the kernel has it, and /proc/PID/maps: stat() gives
/// another one for each subvolume.
fn mounted(fd: i32) -> Result<Option<(u32, u32)>> {
    // SAFETY: Zeros are a statfs, which the kernel fills in.
    let kind = unsafe {
        let mut st: libc::statfs = std::mem::zeroed();
        check(libc::fstatfs(fd, &mut st))?;
        st.f_type
    };
    if kind != libc::BTRFS_SUPER_MAGIC {
        return Ok(None);
    }
    // Not by /proc/self/mountinfo: whoever calls this is traced while it reads.
    const SYS_STATMOUNT: libc::c_long = 457;
    const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
    const STATMOUNT_SB_BASIC: u64 = 1;
    let mut found = [0u32; 128];
    // SAFETY: Zeros are a statx, which the kernel fills in; struct mnt_id_req, and room for a
    // struct statmount.
    unsafe {
        let mut st: libc::statx = std::mem::zeroed();
        let (empty, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
        check(libc::statx(fd, empty, flags, STATX_MNT_ID_UNIQUE, &mut st))?;
        let request = [24, st.stx_mnt_id, STATMOUNT_SB_BASIC];
        let size = std::mem::size_of_val(&found);
        let n = libc::syscall(SYS_STATMOUNT, &request, found.as_mut_ptr(), size, 0);
        check(n as i32)?;
    }
    // Its size, options and mask come first.
    Ok(Some((found[4], found[5])))
}

impl Log {
    /// Of nothing yet, in a directory.
    #[must_use]
    pub fn new(dir: String) -> Self {
        let lines = Vec::new();
        Log { dir, lines }
    }

    /// Tells of a file that was opened or closed.
    pub fn file(&mut self, what: &str, id: &Id, length: u64, kind: &str, name: &str) {
        self.lines
            .push(format!("{what} {} {length} {kind} {name}", id.0));
    }

    /// Tells of a read or a write: of what kind of file, by which call.
    pub fn io(&mut self, what: &str, id: &Id, offset: u64, bytes: usize, kind_call: &str) {
        self.lines
            .push(format!("{what} {} {offset} {bytes} {kind_call} 0", id.0));
    }

    /// The same by a descriptor with O_DIRECT.
    pub fn direct(&mut self, what: &str, id: &Id, offset: u64, bytes: usize, kind_call: &str) {
        self.lines
            .push(format!("{what} {} {offset} {bytes} {kind_call} 1", id.0));
    }

    /// Tells of anything else.
    pub fn note(&mut self, line: String) {
        self.lines.push(line);
    }

    /// The name of DIR/`name`.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn path(&self, name: &str) -> Result<CString> {
        Ok(CString::new(format!("{}/{name}", self.dir))?)
    }

    /// Opens DIR/`name`, which has `length` bytes then.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn open(&mut self, name: &str, flags: i32, length: u64) -> Result<(i32, Id)> {
        let path = self.path(name)?;
        // SAFETY: A C string.
        let fd = check(unsafe { libc::open(path.as_ptr(), flags, 0o600) })?;
        let id = id(fd)?;
        if flags & libc::O_TRUNC != 0 && flags & libc::O_CREAT == 0 {
            self.note(format!("truncate {} 0", id.0));
        }
        self.file("open", &id, length, "regular", name);
        Ok((fd, id))
    }

    /// Tells of a descriptor that a call has made.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn made(&mut self, fd: i32, kind: &str, name: &str) -> Result<Id> {
        let id = id(fd)?;
        self.file("open", &id, 0, kind, name);
        Ok(id)
    }

    /// Closes a descriptor, the last one of an open file.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn close(&mut self, fd: i32, id: &Id, length: u64, kind: &str, name: &str) -> Result<()> {
        // SAFETY: A descriptor of ours.
        check(unsafe { libc::close(fd) })?;
        self.file("close", id, length, kind, name);
        Ok(())
    }

    /// Forgets what was told so far.
    pub fn clear(&mut self) {
        self.lines.clear();
    }

    /// Prints all lines.
    pub fn print(&self) {
        for line in &self.lines {
            println!("{line}");
        }
    }
}

/// A buffer, for calls that take many.
pub fn iov(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}
