//! A folder of the host that a guest has as /shared.
//!
//! The guest sees it as a disk with ext4: a traced system writes its trace there as it does
//! on any machine, and programs find a file system of the usual kind. The disk is made from
//! the folder before the guest boots. Afterwards the files that are new or changed on the
//! disk go back to the folder, even if the guest was switched off without notice.

use crate::paths;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Room for new files on the disk. The disk is sparse: what is not used takes no room.
const ROOM: u64 = 16 << 30;

/// What shows that a file is not the one it was.
#[derive(PartialEq, Eq, Clone, Debug)]
enum Stamp {
    /// Length and time of the last change, s: ext4's from mke2fs has no more.
    File(u64, i64),
    /// Where a symbolic link leads.
    Link(PathBuf),
}

/// The folder, and the disk of one guest.
#[derive(Debug)]
pub struct Shared {
    folder: PathBuf,
    disk: PathBuf,
    /// The files that the disk was made with. Of a disk that an earlier run left behind
    /// nobody knows them.
    before: Option<BTreeMap<PathBuf, Stamp>>,
}

impl Shared {
    /// Makes the disk from `folder`, which is made if there is none. Whatever a run that was
    /// killed has left on its disk goes back to the folder first.
    ///
    /// # Errors
    ///
    /// If the folder can't be read, or mke2fs fails.
    pub fn new(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        let folder = folder.canonicalize()?;
        for disk in left_behind(&folder)? {
            let old = Shared {
                folder: folder.clone(),
                disk,
                before: None,
            };
            let files = old.collect()?;
            if !files.is_empty() {
                eprintln!(
                    "{} files of a guest that was killed are in {} now",
                    files.len(),
                    paths::shown(&folder)
                );
            }
        }
        let before = stamps(&folder)?;
        let bytes: u64 = before.values().map(Stamp::len).sum();
        let disk = disk_of(&folder, std::process::id());
        let size = ROOM + bytes + bytes / 4;
        let made = File::create(&disk).and_then(|f| f.set_len(size));
        made.with_context(|| format!("{}", disk.display()))?;
        let shared = Shared {
            folder,
            disk,
            before: Some(before),
        };
        let out = tool("mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-m", "0", "-L", "shared"])
            .args(["-E", "lazy_itable_init=1,root_owner=0:0"])
            .arg("-d")
            .args([&shared.folder, &shared.disk])
            .output()
            .context("mke2fs is missing: run 'make setup'")?;
        if !out.status.success() {
            let _ = fs::remove_file(&shared.disk);
            bail!(
                "no disk could be made from {}: {}",
                shared.folder.display(),
                String::from_utf8_lossy(&out.stderr).trim()
            );
        }
        Ok(shared)
    }

    /// QEMU's arguments for the disk, by whose serial the guest knows it.
    pub fn args(&self) -> [String; 4] {
        [
            "-drive".into(),
            // A comma in a path is written twice.
            format!(
                "if=none,id=shared,format=raw,cache=unsafe,file={}",
                self.disk.display().to_string().replace(',', ",,")
            ),
            "-device".into(),
            "virtio-blk-pci,drive=shared,serial=shared".into(),
        ]
    }

    /// Takes what is new or changed on the disk into the folder, and removes the disk. Gives
    /// the paths of the files, in order. A file that the guest has removed stays.
    ///
    /// # Errors
    ///
    /// If the disk can't be read or the folder can't be written. The disk is kept then, and
    /// the next guest with this folder tries again.
    pub fn collect(self) -> Result<Vec<PathBuf>> {
        let kept = || format!("what the guest wrote is still in {}", self.disk.display());
        let copy = copy_of(&self.disk);
        let result = self.collect_by(&copy).with_context(kept);
        let _ = fs::remove_dir_all(&copy);
        let files = result?;
        fs::remove_file(&self.disk)?;
        Ok(files)
    }

    fn collect_by(&self, copy: &Path) -> Result<Vec<PathBuf>> {
        // A guest that was switched off has left its journal to be replayed.
        let out = tool("e2fsck").args(["-f", "-y"]).arg(&self.disk).output()?;
        ensure!(
            out.status.code().is_some_and(|rc| rc < 4),
            "e2fsck: {}",
            text(&out)
        );
        let _ = fs::remove_dir_all(copy);
        fs::create_dir(copy)?;
        let out = tool("debugfs")
            .args(["-R", "rdump / ."])
            .arg(&self.disk)
            .current_dir(copy)
            .output()?;
        // debugfs ends well whatever happened. Its first line is its version. Only root can
        // give files to others.
        let errors = String::from_utf8_lossy(&out.stderr);
        let error = errors
            .lines()
            .find(|l| !l.starts_with("debugfs ") && !l.contains("changing ownership"));
        if let Some(error) = error {
            bail!("debugfs: {error}");
        }
        ensure!(out.status.success(), "debugfs: {}", text(&out));

        let mut taken = Vec::new();
        for (name, stamp) in stamps(copy)? {
            let to = self.folder.join(&name);
            let unchanged = match &self.before {
                Some(before) => before.get(&name) == Some(&stamp),
                None => self::stamp(&to).is_some_and(|own| !stamp.newer_than(&own)),
            };
            if unchanged {
                continue;
            }
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::rename(copy.join(&name), &to).with_context(|| format!("{}", to.display()))?;
            taken.push(to);
        }
        Ok(taken)
    }
}

impl Stamp {
    fn len(&self) -> u64 {
        match self {
            Stamp::File(len, _) => *len,
            Stamp::Link(_) => 0,
        }
    }

    fn newer_than(&self, other: &Stamp) -> bool {
        matches!((self, other), (Stamp::File(_, time), Stamp::File(_, other)) if time > other)
    }
}

/// The disk lies beside the folder and has the name of the process that uses it, so that
/// two guests have a disk each.
fn disk_of(folder: &Path, process: u32) -> PathBuf {
    beside(folder, &format!(".{process}.img"))
}

/// A folder of the disk's own for what is copied, on the file system of the shared one.
fn copy_of(disk: &Path) -> PathBuf {
    beside(disk, ".copy")
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or(OsStr::new("shared")).to_owned();
    name.push(ending);
    path.with_file_name(name)
}

/// Disks of processes that have ended.
fn left_behind(folder: &Path) -> Result<Vec<PathBuf>> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Ok(vec![]);
    };
    let mut list = Vec::new();
    for entry in fs::read_dir(parent)? {
        let path = entry?.path();
        let process = path
            .file_name()
            .and_then(OsStr::to_str)
            .zip(name.to_str())
            .and_then(|(file, name)| file.strip_prefix(name)?.strip_prefix('.'))
            .and_then(|rest| rest.strip_suffix(".img")?.parse::<u32>().ok());
        let ended = |process: u32| {
            process != std::process::id() && !Path::new(&format!("/proc/{process}")).exists()
        };
        if process.is_some_and(ended) {
            list.push(path);
        }
    }
    Ok(list)
}

/// The regular files and symbolic links below a folder, by their paths in it. Where a file
/// system was made there is `lost+found`, which is nobody's.
fn stamps(folder: &Path) -> Result<BTreeMap<PathBuf, Stamp>> {
    let mut list = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(within) = folders.pop() {
        let path = folder.join(&within);
        let entries = fs::read_dir(&path).with_context(|| format!("{}", path.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = within.join(entry.file_name());
            if name == Path::new("lost+found") {
                continue;
            }
            if entry.file_type()?.is_dir() {
                folders.push(name);
            } else if let Some(stamp) = stamp(&entry.path()) {
                list.insert(name, stamp);
            }
        }
    }
    Ok(list)
}

/// What a file is like; none if it is neither a regular file nor a symbolic link.
fn stamp(path: &Path) -> Option<Stamp> {
    let meta = fs::symlink_metadata(path).ok()?;
    if meta.is_symlink() {
        return fs::read_link(path).ok().map(Stamp::Link);
    }
    meta.is_file()
        .then(|| Stamp::File(meta.len(), meta.mtime()))
}

/// A tool of e2fsprogs, which a user's search path may not have.
fn tool(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("env");
    command
        .arg(format!("PATH={path}:/usr/sbin:/sbin"))
        .arg(name)
        .stdin(Stdio::null());
    command
}

fn text(out: &Output) -> String {
    let all = [&out.stdout[..], &out.stderr[..]].concat();
    String::from_utf8_lossy(&all).trim().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed at the end.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Temporary(path)
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// What a guest does, by debugfs.
    fn guest(disk: &Path, requests: &[String]) {
        for request in requests {
            let out = tool("debugfs")
                .args(["-w", "-R", request])
                .arg(disk)
                .output()
                .unwrap();
            assert!(out.status.success(), "{request}: {}", text(&out));
        }
    }

    #[test]
    fn what_is_new_or_changed_comes_back_and_all_else_stays() {
        let at = Temporary::new("kvmtrace-shared");
        let folder = at.0.join("a folder, shared");
        fs::create_dir_all(folder.join("sub")).unwrap();
        fs::write(folder.join("same"), "as it was").unwrap();
        fs::write(folder.join("sub/changed"), "old").unwrap();
        fs::write(folder.join("removed"), "still here").unwrap();
        let new = at.0.join("new");
        fs::write(&new, vec![7; 3 << 20]).unwrap();

        let shared = Shared::new(&folder).unwrap();
        let disk = shared.disk.clone();
        guest(
            &disk,
            &[
                format!("write {} trace.vmt", new.display()),
                "rm sub/changed".into(),
                format!("write {} sub/changed", new.display()),
                "rm removed".into(),
                "mkdir made".into(),
                format!("write {} made/deep", new.display()),
                "symlink link made/deep".into(),
            ],
        );
        // The host has changed a file that the guest has not changed.
        fs::write(folder.join("same"), "changed on the host").unwrap();
        let taken = shared.collect().unwrap();
        let folder = folder.canonicalize().unwrap();
        let names: Vec<_> = taken
            .iter()
            .map(|p| p.strip_prefix(&folder).unwrap().to_str().unwrap())
            .collect();
        assert_eq!(names, ["link", "made/deep", "sub/changed", "trace.vmt"]);
        let read = |name: &str| fs::read(folder.join(name)).unwrap();
        assert_eq!(read("trace.vmt"), vec![7; 3 << 20]);
        assert_eq!(read("sub/changed"), vec![7; 3 << 20]);
        assert_eq!(read("link"), vec![7; 3 << 20]);
        assert_eq!(read("same"), b"changed on the host");
        assert_eq!(read("removed"), b"still here");
        // Neither the disk nor the copy is left.
        let mut left: Vec<_> = fs::read_dir(&at.0)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["a folder, shared", "new"]);
    }

    #[test]
    fn what_a_killed_run_left_comes_back_the_next_time() {
        let at = Temporary::new("kvmtrace-killed");
        let folder = at.0.join("shared");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("own"), "first").unwrap();
        let new = at.0.join("new");
        fs::write(&new, "written in the guest").unwrap();
        let shared = Shared::new(&folder).unwrap();
        guest(
            &shared.disk,
            &[format!("write {} trace.vmt", new.display())],
        );
        // Process ids end before this one.
        let left = disk_of(&folder.canonicalize().unwrap(), 1 << 30);
        fs::rename(&shared.disk, &left).unwrap();
        fs::write(folder.join("own"), "second").unwrap();

        let next = Shared::new(&folder).unwrap();
        assert!(!left.exists());
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(read("trace.vmt"), "written in the guest");
        assert_eq!(read("own"), "second");
        assert!(next.collect().unwrap().is_empty());
    }

    #[test]
    fn a_disk_that_cannot_be_read_is_kept() {
        let at = Temporary::new("kvmtrace-broken");
        let folder = at.0.join("shared");
        let shared = Shared::new(&folder).unwrap();
        let disk = shared.disk.clone();
        fs::write(&disk, vec![0; 1 << 20]).unwrap();
        let why = format!("{:#}", shared.collect().unwrap_err());
        assert!(why.contains("e2fsck") && why.contains("still in"), "{why}");
        assert!(disk.exists());
    }
}
