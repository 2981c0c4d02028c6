//! `fuse serve FOLDER COMMAND…`: a file system with one folder and files in memory, by the
//! protocol of /dev/fuse. Mounts it, runs the command, takes the file system away when that
//! has ended, and prints its exit code and how many requests there were of each kind.
//! `fuse use FOLDER`: writes, reads and maps files there, and prints their sum.
use kvmtrace_guest::{PAGE, arg, check};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;

// include/uapi/linux/fuse.h
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const UNLINK: u32 = 10;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const RELEASEDIR: u32 = 29;
const CREATE: u32 = 35;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;
const FATTR_SIZE: u32 = 1 << 3;
const BIG_WRITES: u32 = 1 << 5;
const MAX_WRITE: usize = 128 << 10;

struct Server {
    device: File,
    /// The folder is number 1.
    files: BTreeMap<u64, Vec<u8>>,
    names: BTreeMap<Vec<u8>, u64>,
    counts: BTreeMap<u32, u64>,
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    b.get(at..at + 4)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u32::from_le_bytes)
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

impl Server {
    /// struct fuse_attr
    fn attr(&self, node: u64) -> Vec<u8> {
        let size = self.files.get(&node).map_or(0, Vec::len) as u64;
        let mut out = Vec::new();
        for word in [node, size, size.div_ceil(512), 0, 0, 0] {
            out.extend(word.to_le_bytes());
        }
        let mode = if node == 1 { 0o40755 } else { 0o100_644 };
        for word in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0u32] {
            out.extend(word.to_le_bytes());
        }
        out
    }

    /// struct fuse_entry_out
    fn entry(&self, node: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for word in [node, 0, 3600, 3600, 0] {
            out.extend(u64::to_le_bytes(word));
        }
        out.extend(self.attr(node));
        out
    }

    /// What a request gives, or its error; none if it wants no answer.
    fn answer(&mut self, request: &[u8]) -> Option<std::result::Result<Vec<u8>, i32>> {
        let (code, node) = (u32_at(request, 4), u64_at(request, 16));
        let body = request.get(40..).unwrap_or_default();
        let name = |at: usize| {
            let name = body.get(at..).unwrap_or_default();
            name.split(|b| *b == 0).next().unwrap_or_default().to_vec()
        };
        *self.counts.entry(code).or_default() += 1;
        Some(match code {
            FORGET | BATCH_FORGET => return None,
            INIT => {
                let mut out = Vec::new();
                // Version, most read ahead, flags; background requests, most written.
                for word in [
                    7,
                    31,
                    u32_at(body, 8),
                    BIG_WRITES,
                    12 | 8 << 16,
                    MAX_WRITE as u32,
                    1,
                    0,
                ] {
                    out.extend(word.to_le_bytes());
                }
                out.resize(64, 0);
                Ok(out)
            }
            LOOKUP => match self.names.get(&name(0)) {
                Some(node) => Ok(self.entry(*node)),
                None => Err(libc::ENOENT),
            },
            GETATTR | SETATTR => {
                if code == SETATTR && u32_at(body, 0) & FATTR_SIZE != 0 {
                    let size = u64_at(body, 16) as usize;
                    if let Some(file) = self.files.get_mut(&node) {
                        file.resize(size, 0);
                    }
                }
                let mut out = Vec::new();
                out.extend(3600u64.to_le_bytes());
                out.extend(0u64.to_le_bytes());
                out.extend(self.attr(node));
                Ok(out)
            }
            CREATE => {
                let new = 2 + self.files.len() as u64;
                self.files.insert(new, Vec::new());
                self.names.insert(name(16), new);
                let mut out = self.entry(new);
                out.extend([0; 16]);
                Ok(out)
            }
            OPEN | OPENDIR => Ok(vec![0; 16]),
            READ => {
                let file = self.files.get(&node).map_or(&[][..], |f| f);
                let (at, len) = (u64_at(body, 8) as usize, u32_at(body, 16) as usize);
                let end = (at + len).min(file.len());
                Ok(file.get(at..end).unwrap_or_default().to_vec())
            }
            WRITE => {
                let (at, len) = (u64_at(body, 8) as usize, u32_at(body, 16) as usize);
                let data = body.get(40..40 + len).unwrap_or_default();
                let Some(file) = self.files.get_mut(&node) else {
                    return Some(Err(libc::EBADF));
                };
                if file.len() < at + len {
                    file.resize(at + len, 0);
                }
                file[at..at + data.len()].copy_from_slice(data);
                let mut out = (data.len() as u32).to_le_bytes().to_vec();
                out.extend([0; 4]);
                Ok(out)
            }
            UNLINK => match self.names.remove(&name(0)) {
                Some(_) => Ok(vec![]),
                None => Err(libc::ENOENT),
            },
            STATFS => Ok(vec![0; 80]),
            RELEASE | FSYNC | FLUSH | RELEASEDIR | DESTROY => Ok(vec![]),
            _ => Err(libc::ENOSYS),
        })
    }

    /// Answers requests until the file system is gone.
    fn serve(&mut self) -> Result<()> {
        let mut buffer = vec![0u8; MAX_WRITE + PAGE];
        loop {
            let n = match self.device.read(&mut buffer) {
                Ok(n) => n,
                Err(e) => match e.raw_os_error() {
                    Some(libc::ENODEV) => return Ok(()),
                    // The request was taken back.
                    Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => continue,
                    _ => return Err(e),
                },
            };
            let request = buffer[..n].to_vec();
            let Some(answer) = self.answer(&request) else {
                continue;
            };
            let (error, data) = match answer {
                Ok(data) => (0, data),
                Err(e) => (-e, vec![]),
            };
            let mut out = ((16 + data.len()) as u32).to_le_bytes().to_vec();
            out.extend(error.to_le_bytes());
            out.extend(u64_at(&request, 8).to_le_bytes());
            out.extend(data);
            match self.device.write_all(&out) {
                // Nobody waits for it any more.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                other => other?,
            }
        }
    }
}

fn serve(folder: &str, command: &[String]) -> Result<()> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
        device.as_raw_fd()
    );
    std::fs::create_dir_all(folder)?;
    let strings = [folder, &options].map(CString::new);
    let [Ok(target), Ok(options)] = strings else {
        return Err(Error::other("a name with a 0"));
    };
    // SAFETY: Strings with their ends.
    check(unsafe {
        libc::mount(
            c"kvmtrace".as_ptr(),
            target.as_ptr(),
            c"fuse".as_ptr(),
            libc::MS_NOSUID | libc::MS_NODEV,
            options.as_ptr().cast(),
        )
    })?;
    let command = command.to_vec();
    let user = std::thread::spawn(move || {
        let [program, args @ ..] = &command[..] else {
            return 127;
        };
        let status = std::process::Command::new(program).args(args).status();
        // SAFETY: A string with its end. The server ends when the file system is gone.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        match status {
            Ok(s) => s.code().unwrap_or(128 + s.signal().unwrap_or(0)),
            Err(_) => 126,
        }
    });
    let mut server = Server {
        device,
        files: BTreeMap::new(),
        names: BTreeMap::new(),
        counts: BTreeMap::new(),
    };
    server.serve()?;
    let code = user.join().unwrap_or(125);
    let written = server.counts.get(&WRITE).copied().unwrap_or(0);
    let read = server.counts.get(&READ).copied().unwrap_or(0);
    eprintln!("{written} writes, {read} reads");
    println!("code {code} served {}", written > 0 && read > 0);
    std::io::stdout().flush()?;
    if code != 0 {
        std::process::exit(1);
    }
    Ok(())
}

fn use_it(folder: &str) -> Result<()> {
    let pages = arg(3, 64);
    let mut sum = 0u64;
    for n in 0..4u8 {
        let path = format!("{folder}/file{n}");
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        for page in 0..pages {
            let data = vec![n.wrapping_mul(31).wrapping_add(page as u8); PAGE];
            file.write_all_at(&data, (page * PAGE) as u64)?;
        }
        file.sync_all()?;
        // SAFETY: A new mapping of the file.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                pages * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            if at == libc::MAP_FAILED {
                return Err(Error::last_os_error());
            }
            let at = at.cast::<u8>();
            for page in 0..pages {
                let byte = at.add(page * PAGE + 5);
                byte.write_volatile(byte.read_volatile().wrapping_add(3));
            }
            check(libc::msync(at.cast(), pages * PAGE, libc::MS_SYNC))?;
            // Out of the cache, so that it is read again.
            libc::madvise(at.cast(), pages * PAGE, libc::MADV_DONTNEED);
            libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
            for page in 0..pages {
                sum += u64::from(at.add(page * PAGE + 5).read_volatile());
            }
            check(libc::munmap(at.cast(), pages * PAGE))?;
        }
        let mut data = vec![0u8; PAGE];
        file.read_exact_at(&mut data, 0)?;
        sum += data.iter().map(|b| u64::from(*b)).sum::<u64>();
    }
    println!("sum {sum}");
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    match &args[..] {
        [_, what, folder, command @ ..] if what == "serve" => serve(folder, command),
        [_, what, folder, ..] if what == "use" => use_it(folder),
        _ => Err(Error::other(
            "fuse serve FOLDER COMMAND…, or fuse use FOLDER",
        )),
    }
}
