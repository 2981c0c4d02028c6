//! The file or block device that a trace goes to.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::control::{LONGEST_NAME, takes_nothing};
use crate::error::Failure;
use crate::pieces;
use crate::sys;
use crate::units::bytes;

/// Less room than this is worth a warning.
const LITTLE_ROOM: u64 = 64 << 20;
/// The least size of a trace: its header.
const HEADER: usize = rust_mm_trace::uapi::VMTRACE_HEADER_SIZE as usize;

/// An output that is open for a trace that may fail to begin: [`commit`] when
/// the trace has begun, [`discard`] when it has not.
///
/// [`commit`]: Output::commit
/// [`discard`]: Output::discard
#[derive(Debug)]
pub struct Output {
    file: File,
    /// The absolute path, as the status and messages show it.
    path: PathBuf,
    made: Made,
    warning: Option<String>,
}

#[derive(Debug)]
enum Made {
    /// A block device.
    Nothing,
    /// The file at `path`.
    File,
    /// A file in the same directory, which replaces the one at `path` on commit. Until the
    /// new trace has begun, the old one is not lost.
    Beside(PathBuf),
    /// The file at `path`, the first one in its directory, which was made for it, or was empty.
    Piece { in_new: bool },
}

impl Output {
    /// The same as [`Output::open`]. An output that hangs, because its file system is frozen
    /// for example, is given up after `limit`. Nothing is left there then.
    pub fn open_within(path: &Path, force: bool, limit: Duration) -> Result<Self, Failure> {
        Self::within(path, limit, || Self::open(path, force))
    }

    /// The same as [`Output::pieces`], with a limit.
    pub fn pieces_within(path: &Path, limit: Duration) -> Result<Self, Failure> {
        Self::within(path, limit, || Self::pieces(path))
    }

    fn within(
        path: &Path,
        limit: Duration,
        open: impl FnOnce() -> Result<Self, Failure>,
    ) -> Result<Self, Failure> {
        let work = || {
            let output = open();
            (told(&output), output)
        };
        let fd = |output: &Result<Self, Failure>| output.as_ref().ok().map(|o| o.file.as_raw_fd());
        let undo = |output: Result<Self, Failure>| output.map_or((), Self::discard);
        match sys::apart(limit, work, fd, undo) {
            Ok(Some((text, fd))) => heard(&text, fd)
                .unwrap_or_else(|| Err(Failure::usage(format!("can't open {}", path.display())))),
            Ok(None) => Err(takes_nothing(&path.display().to_string())),
            Err(e) => Err(Failure::usage(format!(
                "can't open {} in a child process: {e}",
                path.display()
            ))),
        }
    }

    /// Opens `path` to be written by the kernel. A file that exists is only
    /// overwritten with `force`.
    pub fn open(path: &Path, force: bool) -> Result<Self, Failure> {
        let name = path.display();
        let refuse = |why: &str| Err(Failure::usage(format!("{name} {why}")));
        match fs::metadata(path) {
            Ok(meta) => {
                let kind = meta.file_type();
                if kind.is_dir() {
                    refuse("is a directory: give -o the path of a file in it")
                } else if kind.is_block_device() {
                    Self::block_device(path)
                } else if !kind.is_file() {
                    let kind = match () {
                        () if kind.is_char_device() => "a character device",
                        () if kind.is_fifo() => "a pipe",
                        () if kind.is_socket() => "a socket",
                        () => "not a file",
                    };
                    refuse(&format!(
                        "is {kind}: give -o a regular file or an unmounted block device"
                    ))
                } else if force {
                    Self::replacing(path)
                } else {
                    refuse("exists: give -o another path, or --force to overwrite it")
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Self::new_file(path),
            Err(e) => Err(cant_open(path, &e)),
        }
    }

    /// Creates the first piece of a trace in a directory, which is new or empty.
    pub fn pieces(directory: &Path) -> Result<Self, Failure> {
        let shown = directory.display();
        let refuse = |why: &str| Err(Failure::usage(format!("{shown} {why}")));
        let in_new = match fs::read_dir(directory) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return refuse("is not empty: give -o a new directory");
                }
                false
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::create_dir(directory).map_err(|e| cant_open(directory, &e))?;
                true
            }
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                return refuse("is no directory: with --rotate, give -o a new one");
            }
            Err(e) => return Err(cant_open(directory, &e)),
        };
        let path = absolute(directory).join(pieces::name(0));
        let undo = |failure| {
            if in_new {
                let _ = fs::remove_dir(directory);
            }
            Err(failure)
        };
        // Who looks for the pieces later finds them by this name.
        let longest = pieces::name(u32::MAX).len() - pieces::name(0).len();
        match path.to_str() {
            Some(text) if text.len() + longest <= LONGEST_NAME => {}
            Some(_) => return undo(Failure::usage(format!("{shown}: the path is too long"))),
            None => return undo(Failure::usage(format!("{shown}: the path is not UTF-8"))),
        }
        let output = create(&path).map_err(|e| cant_open(&path, &e));
        let output = output.and_then(|file| {
            Self {
                file,
                path,
                made: Made::Piece { in_new },
                warning: None,
            }
            .with_room()
        });
        // A file that could be created is removed already, and its directory with it.
        output.or_else(undo)
    }

    fn new_file(path: &Path) -> Result<Self, Failure> {
        if path.is_symlink() {
            return Err(Failure::usage(format!(
                "{} is a symbolic link to nothing: remove it or give -o another path",
                path.display()
            )));
        }
        let file = create(path).map_err(|e| cant_open(path, &e))?;
        Self {
            file,
            path: absolute(path),
            made: Made::File,
            warning: None,
        }
        .with_room()
    }

    fn replacing(path: &Path) -> Result<Self, Failure> {
        // Symbolic links are followed, so that a link stays a link.
        let path = fs::canonicalize(path).map_err(|e| cant_open(path, &e))?;
        // --force must override only the check for an existing file.
        OpenOptions::new()
            .write(true)
            .open(&path)
            .map_err(|e| cant_open(&path, &e))?;
        let mut beside = path.clone().into_os_string();
        beside.push(format!(".{}.new", std::process::id()));
        let beside = PathBuf::from(beside);
        let file = create(&beside).map_err(|e| cant_open(&beside, &e))?;
        Self {
            file,
            path,
            made: Made::Beside(beside),
            warning: None,
        }
        .with_room()
    }

    fn block_device(path: &Path) -> Result<Self, Failure> {
        // On a block device, O_EXCL fails if something else, such as a mount,
        // has claimed the device. This claim lasts as long as the kernel keeps
        // the file open.
        let mut file = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_EXCL)
            .open(path)
            .map_err(|e| match e.raw_os_error() {
                Some(libc::EBUSY) => Failure::usage(format!(
                    "{0} is in use (mounted, swap or part of another device): `umount {0}` \
                     first, or give -o another path",
                    path.display()
                )),
                _ => cant_open(path, &e),
            })?;
        let size = file
            .seek(SeekFrom::End(0))
            .and_then(|size| file.rewind().map(|()| size))
            .map_err(|e| cant_open(path, &e))?;
        if size < HEADER as u64 {
            return Err(Failure::usage(format!(
                "{} has only {} bytes, too few for a trace: give -o a larger device",
                path.display(),
                size
            )));
        }
        let path = absolute(path);
        Ok(Self {
            warning: little_room(&path, size),
            file,
            path,
            made: Made::Nothing,
        })
    }

    /// Makes sure that there is room for the header, and warns if there is little more.
    /// The kernel would notice only after the start.
    fn with_room(mut self) -> Result<Self, Failure> {
        let room = self
            .file
            .write_all_at(&[0; HEADER], 0)
            .and_then(|()| self.file.set_len(0))
            .and_then(|()| sys::free_space(self.file.as_fd()));
        match room {
            Ok(room) => {
                self.warning = little_room(&self.path, room);
                Ok(self)
            }
            Err(e) => {
                let failure = cant_open(&self.path, &e);
                self.discard();
                Err(failure)
            }
        }
    }

    /// The descriptor to give to the kernel.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The absolute path as text.
    pub fn name(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// A warning that the user should see before the trace starts.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Gives the trace its final name, after it has begun, and closes it: the kernel keeps it
    /// open. A file system may wait in close() until all is written, as NFS does, for as long
    /// as its server does not answer; so it is closed as long as the output is well.
    pub fn commit(self) -> Result<(), Failure> {
        if let Made::Beside(beside) = &self.made {
            fs::rename(beside, &self.path).map_err(|e| {
                Failure::usage(format!(
                    "can't replace {}: {e}; the trace is in {}",
                    self.path.display(),
                    beside.display()
                ))
            })?;
        }
        Ok(())
    }

    /// Restores the state before [`Output::open`], because no trace has begun.
    pub fn discard(self) {
        let _ = match &self.made {
            Made::Nothing => Ok(()),
            Made::File => fs::remove_file(&self.path),
            Made::Beside(beside) => fs::remove_file(beside),
            Made::Piece { in_new } => {
                let removed = fs::remove_file(&self.path);
                match self.path.parent() {
                    Some(directory) if *in_new => fs::remove_dir(directory),
                    _ => removed,
                }
            }
        };
    }
}

/// What a child process says of the output that it has opened: its parts with NULs between
/// them, or an exit code and a message.
fn told(output: &Result<Output, Failure>) -> Vec<u8> {
    match output {
        Ok(o) => {
            let (kind, beside) = match &o.made {
                Made::Nothing => (0, Path::new("")),
                Made::File => (1, Path::new("")),
                Made::Beside(path) => (2, path.as_path()),
                Made::Piece { in_new } => (3 + u8::from(*in_new), Path::new("")),
            };
            let warning = o.warning.as_deref().unwrap_or_default();
            let parts = [
                o.path.as_os_str().as_bytes(),
                beside.as_os_str().as_bytes(),
                warning.as_bytes(),
            ];
            [&[0, kind][..], &parts.join(&0)].concat()
        }
        Err(failure) => [&[failure.code][..], failure.message.as_bytes()].concat(),
    }
}

/// The output, of what [`told`] makes of it.
fn heard(text: &[u8], fd: Option<OwnedFd>) -> Option<Result<Output, Failure>> {
    let (&code, text) = text.split_first()?;
    let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if code != 0 {
        return Some(Err(Failure::new(code, string(text))));
    }
    let (kind, text) = text.split_first()?;
    let mut parts = text.split(|b| *b == 0);
    let mut path = || Some(PathBuf::from(OsString::from_vec(parts.next()?.to_vec())));
    let (path, beside) = (path()?, path()?);
    let warning = string(parts.next()?);
    Some(Ok(Output {
        file: File::from(fd?),
        path,
        made: match kind {
            0 => Made::Nothing,
            1 => Made::File,
            3 | 4 => Made::Piece { in_new: *kind == 4 },
            _ => Made::Beside(beside),
        },
        warning: (!warning.is_empty()).then_some(warning),
    }))
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

fn absolute(path: &Path) -> PathBuf {
    fs::canonicalize(path)
        .or_else(|_| std::path::absolute(path))
        .unwrap_or_else(|_| path.to_owned())
}

fn little_room(path: &Path, room: u64) -> Option<String> {
    (room < LITTLE_ROOM).then(|| {
        format!(
            "warning: only {} free for {}: room for about {} references, or more if they are packed",
            bytes(room),
            path.display(),
            crate::units::count(room / size_of::<rust_mm_trace::uapi::vmtrace_ref>() as u64)
        )
    })
}

fn cant_open(path: &Path, e: &io::Error) -> Failure {
    let name = path.display();
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    Failure::usage(match e.raw_os_error() {
        // In /proc, for example, nobody can create a file.
        Some(libc::ENOENT) if parent.is_dir() => {
            format!(
                "no file can be created in {}: give -o another path",
                parent.display()
            )
        }
        Some(libc::ENOENT) => format!(
            "there is no directory {0}: create it with `mkdir -p {0}`, or give -o another path",
            parent.display()
        ),
        Some(libc::ENOTDIR) => format!("{name}: a part of the path is a file, not a directory"),
        Some(libc::EEXIST) => {
            format!("{name} exists: give -o another path, or --force to overwrite it")
        }
        Some(libc::EROFS) => format!(
            "{name} is on a read-only file system or device: give -o a path that can be written"
        ),
        Some(libc::EACCES | libc::EPERM) => {
            format!("no permission to write {name}: run this as root, or give -o another path")
        }
        Some(libc::ENOSPC | libc::EDQUOT) => {
            format!("no room for {name}: free some space, or give -o a path on another file system")
        }
        Some(libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM) => {
            format!("there is no device behind {name}: give -o another path")
        }
        _ => format!("can't open {name}: {e}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn refused(path: &Path, force: bool) -> String {
        let failure = Output::open(path, force).map(drop).expect_err("refused");
        assert_eq!(failure.code, 2);
        failure.message
    }

    #[test]
    fn new_file_is_made_and_discarded() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("t.vmt");
        let output = Output::open(&path, false).expect("open");
        assert_eq!(fs::metadata(&path).expect("made").len(), 0);
        assert_eq!(output.name(), absolute(&path).to_string_lossy());
        assert_eq!(
            refused(&path, false),
            format!(
                "{} exists: give -o another path, or --force to overwrite it",
                path.display()
            )
        );
        output.discard();
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_of_pieces() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("t");
        for open in [Output::pieces, |path: &Path| {
            Output::pieces_within(path, Duration::from_secs(60))
        }] {
            let output = open(&path).expect("open");
            let first = path.join("00000.vmtrace");
            assert_eq!(output.name(), absolute(&first).to_string_lossy());
            assert_eq!(fs::metadata(&first).expect("made").len(), 0);
            let refused = |path: &Path| open(path).map(drop).expect_err("refused").message;
            assert!(refused(&path).ends_with("t is not empty: give -o a new directory"));
            assert!(refused(&first).contains("is no directory: with --rotate"));
            assert!(refused(&dir.path().join("no/such")).contains("there is no directory"));
            let long = dir
                .path()
                .join("d".repeat(250 - dir.path().as_os_str().len()));
            assert!(refused(&long).ends_with("the path is too long"));
            assert!(!long.exists());
            output.discard();
            assert!(!path.exists());
            // A directory that was there stays.
            fs::create_dir(&path).expect("mkdir");
            open(&path).expect("open").discard();
            fs::remove_dir(&path).expect("empty");
        }
    }

    #[test]
    fn force_keeps_the_old_until_the_new_has_begun() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (path, link) = (dir.path().join("t.vmt"), dir.path().join("link"));
        fs::write(&path, "old").expect("write");
        symlink("t.vmt", &link).expect("symlink");
        Output::open(&path, true).expect("open").discard();
        assert_eq!(fs::read(&path).expect("read"), b"old");

        let output = Output::open(&link, true).expect("open");
        assert_eq!(fs::read(&path).expect("read"), b"old");
        output.file.write_all_at(b"new", 0).expect("write");
        output.commit().expect("commit");
        assert_eq!(fs::read(&path).expect("read"), b"new");
        assert!(link.is_symlink());
        assert_eq!(fs::read_dir(dir.path()).expect("dir").count(), 2);
    }

    #[test]
    fn another_process_opens_it() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("t.vmt");
        let open = |force| Output::open_within(&path, force, Duration::from_secs(60));
        let output = open(false).expect("open");
        output.file.write_all_at(b"old", 0).expect("write");
        assert_eq!(output.name(), absolute(&path).to_string_lossy());
        assert_eq!(
            open(false).map(drop).expect_err("refused"),
            Output::open(&path, false).map(drop).expect_err("refused")
        );
        let new = open(true).expect("open");
        new.file.write_all_at(b"new", 0).expect("write");
        assert_eq!(fs::read(&path).expect("read"), b"old");
        new.commit().expect("commit");
        assert_eq!(fs::read(&path).expect("read"), b"new");
        open(true).expect("open").discard();
        assert_eq!(fs::read_dir(dir.path()).expect("dir").count(), 1);
    }

    #[test]
    fn an_output_that_hangs_is_given_up() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("t.vmt");
        let slow = || {
            std::thread::sleep(Duration::from_millis(300));
            let output = Output::open(&path, false);
            (told(&output), output)
        };
        let none = sys::apart(
            Duration::from_millis(50),
            slow,
            |_| None,
            |o| o.map_or((), Output::discard),
        );
        assert!(none.expect("child").is_none());
        // Nothing is left when it gets that far.
        std::thread::sleep(Duration::from_millis(600));
        assert!(!path.exists());
        assert!(takes_nothing("t").message.starts_with("t takes no data"));
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().expect("tempdir");
        let at = |name: &str| dir.path().join(name);
        assert!(
            refused(dir.path(), true).ends_with("is a directory: give -o the path of a file in it")
        );
        for device in ["/dev/null", "/dev/full"] {
            assert_eq!(
                refused(Path::new(device), true),
                format!(
                    "{device} is a character device: give -o a regular file or an unmounted \
                     block device"
                )
            );
        }
        let pause = crate::sys::forks::pause();
        assert!(
            std::process::Command::new("mkfifo")
                .arg(at("pipe"))
                .status()
                .expect("mkfifo")
                .success()
        );
        drop(pause);
        assert!(refused(&at("pipe"), false).contains("is a pipe: give -o"));
        let _listener = std::os::unix::net::UnixListener::bind(at("socket")).expect("bind");
        assert!(refused(&at("socket"), false).contains("is a socket: give -o"));
        symlink("nowhere", at("dangling")).expect("symlink");
        assert!(refused(&at("dangling"), true).contains("is a symbolic link to nothing"));
        let missing = refused(&at("no/such/t.vmt"), false);
        assert!(
            missing.contains("there is no directory") && missing.contains("mkdir -p"),
            "{missing}"
        );
        assert_eq!(
            refused(Path::new("/proc/t.vmt"), false),
            "no file can be created in /proc: give -o another path"
        );
        fs::write(at("file"), "").expect("write");
        assert!(refused(&at("file/t.vmt"), false).contains("is a file, not a directory"));
    }

    #[test]
    fn errors_say_what_to_do() {
        let message =
            |errno| cant_open(Path::new("t.vmt"), &io::Error::from_raw_os_error(errno)).message;
        for (errno, want) in [
            (libc::ENOENT, "no file can be created in ."),
            (
                libc::EROFS,
                "t.vmt is on a read-only file system or device: give -o",
            ),
            (
                libc::EACCES,
                "no permission to write t.vmt: run this as root",
            ),
            (libc::ENOSPC, "no room for t.vmt: free some space"),
            (libc::ENXIO, "there is no device behind t.vmt"),
            (libc::EIO, "can't open t.vmt: "),
        ] {
            assert!(message(errno).starts_with(want), "{}", message(errno));
        }
    }

    #[test]
    fn little_room_is_told() {
        let path = Path::new("/t.vmt");
        assert_eq!(little_room(path, LITTLE_ROOM), None);
        assert_eq!(
            little_room(path, 32 << 20).as_deref(),
            Some(
                "warning: only 32.0 MiB free for /t.vmt: room for about 1,048,576 references, or \
                 more if they are packed"
            )
        );
    }
}
