//! The processes that are traced.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rust_mm_trace::uapi::{
    VMTRACE_SCOPE_ALL, VMTRACE_SCOPE_CGROUP, VMTRACE_SCOPE_COMM, VMTRACE_SCOPE_TREE, vmtrace_config,
};

use crate::control::check_pid;
use crate::error::Failure;

/// Bytes of a name of a process, at most: TASK_COMM_LEN of the kernel, without its NUL.
const COMM_MAX: usize = 15;
/// Where the file system of control groups usually is.
const GROUPS: &str = "/sys/fs/cgroup";

/// The processes that are traced.
#[derive(Clone, Debug)]
pub enum Scope {
    /// Every address space except the caller's.
    All,
    /// A process and all its descendants.
    Tree(i32),
    /// The processes of a control group and of those below it, and all their descendants.
    Group(Group),
    /// Processes whose names fit a pattern, and all their descendants.
    Comm(Pattern),
}

/// A control group of version 2 that exists.
#[derive(Clone, Debug)]
pub struct Group {
    directory: Arc<File>,
    path: PathBuf,
}

/// A pattern for names of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

/// What the user asked for: at most one of them. With none, all processes are meant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// The root of a tree.
    pub pid: Option<i32>,
    /// The name or the directory of a control group.
    pub group: Option<&'a Path>,
    /// A pattern for names.
    pub comm: Option<&'a Pattern>,
}

impl Asked<'_> {
    /// Whether something was asked for.
    pub fn is_some(&self) -> bool {
        self.pid.is_some() || self.group.is_some() || self.comm.is_some()
    }

    /// The scope.
    ///
    /// # Errors
    ///
    /// There is no such process or group.
    pub fn scope(&self) -> Result<Scope, Failure> {
        if let Some(pid) = self.pid {
            check_pid(pid)?;
            return Ok(Scope::Tree(pid));
        }
        if let Some(path) = self.group {
            return Group::open(path).map(Scope::Group);
        }
        Ok(self.comm.cloned().map_or(Scope::All, Scope::Comm))
    }
}

impl Scope {
    /// Fills in the request of the kernel. The scope must stay as long as the request is in use.
    pub fn put(&self, raw: &mut vmtrace_config) {
        raw.scope = match self {
            Self::All => VMTRACE_SCOPE_ALL,
            Self::Tree(_) => VMTRACE_SCOPE_TREE,
            Self::Group(_) => VMTRACE_SCOPE_CGROUP,
            Self::Comm(_) => VMTRACE_SCOPE_COMM,
        };
        match self {
            Self::All => {}
            Self::Tree(pid) => raw.pid = *pid,
            Self::Group(group) => raw.cgroup_fd = group.directory.as_raw_fd(),
            Self::Comm(pattern) => pattern.put(&mut raw.comm),
        }
    }

    /// What an error calls the scope; `None` for all processes.
    pub fn name(&self) -> Option<String> {
        match self {
            Self::All => None,
            Self::Tree(pid) => Some(format!("pid {pid}")),
            Self::Group(group) => Some(format!("control group {}", group.path.display())),
            Self::Comm(pattern) => Some(format!("--comm '{}'", pattern.0)),
        }
    }
}

impl Group {
    /// Opens a control group: the directory at `path`, or the one of that name in the file system
    /// of control groups.
    ///
    /// # Errors
    ///
    /// There is no such group of version 2.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        Self::open_in(&mount_of(&mounts), path)
    }

    fn open_in(mount: &Path, path: &Path) -> Result<Self, Failure> {
        let below = mount.join(path.strip_prefix("/").unwrap_or(path));
        let candidates = [below, path.to_owned()];
        let is_group = |path: &&PathBuf| path.join("cgroup.procs").exists();
        let Some(found) = candidates.iter().find(is_group) else {
            return Err(Failure::usage(format!(
                "there is no control group {} of version 2: give a directory below {}, or a name \
                 as in /proc/PID/cgroup, such as /system.slice/cron.service",
                path.display(),
                mount.display()
            )));
        };
        let directory = File::open(found).map_err(|e: io::Error| {
            Failure::usage(format!("can't open control group {}: {e}", found.display()))
        })?;
        Ok(Self {
            directory: Arc::new(directory),
            path: found.clone(),
        })
    }
}

/// Where control groups of version 2 are mounted, by the text of /proc/self/mounts.
fn mount_of(mounts: &str) -> PathBuf {
    let of_kind = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
    let at = mounts.lines().find(of_kind);
    let at = at.and_then(|line| line.split(' ').nth(1));
    PathBuf::from(at.unwrap_or(GROUPS))
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    ///
    /// It is empty or too long, or no name of a process fits it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let room = vmtrace_config::default().comm.len() - 1;
        let is_plain = !text.contains(['*', '?', '[', '\\']);
        if text.is_empty() {
            return Err("the pattern is empty; '*' fits all names".to_owned());
        }
        if text.contains('\0') {
            return Err("no name of a process has a NUL byte".to_owned());
        }
        if is_plain && text.len() > COMM_MAX {
            // Not in the middle of a character.
            let cut = (0..=COMM_MAX).rev().find(|at| text.is_char_boundary(*at));
            let (short, _) = text.split_at(cut.unwrap_or(0));
            return Err(format!(
                "the kernel cuts names of processes off after {COMM_MAX} bytes; use '{short}' or \
                 '{short}*'"
            ));
        }
        if text.len() > room {
            return Err(format!("the pattern is longer than {room} bytes"));
        }
        Ok(Self(text.to_owned()))
    }

    fn put(&self, to: &mut [libc::c_char]) {
        for (to, from) in to.iter_mut().zip(self.0.bytes()) {
            *to = from as libc::c_char;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_what_a_name_can_fit() {
        for good in ["cc1", "python3*", "[ab]?", "exactly15bytes.", "a*"] {
            assert_eq!(Pattern::parse(good), Ok(Pattern(good.to_owned())));
        }
        let bad = |text: &str| Pattern::parse(text).expect_err(text);
        assert!(bad("").contains("empty"));
        assert!(bad("a\0b").contains("NUL"));
        assert!(
            bad("gnome-session-binary").contains("use 'gnome-session-b' or 'gnome-session-b*'")
        );
        assert!(bad("abcdefghijklmn\u{e9}x").contains("'abcdefghijklmn'"));
        assert!(bad(&"?".repeat(60)).contains("longer than 59 bytes"));
        assert!(Pattern::parse(&"?".repeat(59)).is_ok());
    }

    #[test]
    fn groups_are_found_by_name_and_by_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = dir.path().join("system.slice/a.service");
        fs::create_dir_all(&group).expect("a directory");
        fs::write(group.join("cgroup.procs"), "").expect("a file");
        for path in ["/system.slice/a.service", "system.slice/a.service"] {
            let found = Group::open_in(dir.path(), Path::new(path)).expect(path);
            assert_eq!(found.path, group);
        }
        let elsewhere = Group::open_in(Path::new("/nowhere"), &group).expect("by its path");
        assert_eq!(elsewhere.path, group);
        for bad in ["system.slice", "b.service"] {
            let error = Group::open_in(dir.path(), Path::new(bad)).expect_err(bad);
            assert!(
                error.message.contains("there is no control group"),
                "{error:?}"
            );
        }
        let mut raw = vmtrace_config::default();
        let scope = Scope::Group(elsewhere);
        scope.put(&mut raw);
        assert_eq!((raw.scope, raw.pid), (VMTRACE_SCOPE_CGROUP, 0));
        assert!(raw.cgroup_fd > 2);
    }

    #[test]
    fn mounts_name_the_groups() {
        let mounts = "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount_of(mounts), Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(mount_of(""), Path::new(GROUPS));
    }

    #[test]
    fn the_request_has_the_pattern() {
        let mut raw = vmtrace_config::default();
        Scope::Comm(Pattern("cc1*".to_owned())).put(&mut raw);
        assert_eq!(raw.scope, VMTRACE_SCOPE_COMM);
        let comm: Vec<u8> = raw.comm.iter().map(|c| *c as u8).collect();
        assert_eq!(comm.get(..5), Some(&b"cc1*\0"[..]));
    }
}
