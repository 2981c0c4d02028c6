//! The temporary files of the process, so that they can be removed when the process ends.
//!
//! A value that is dropped removes its own file. A process that ends by a signal drops
//! nothing, so all names stand in one register, which [`remove_all`] empties. One lock
//! makes that sound: a file is created and registered under the lock, and gets its final
//! name under the lock. [`remove_all`] never releases the lock. After it, no file is created
//! and none gets its final name. So nothing unfinished is left, and nothing finished is
//! removed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How a name is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    /// With all that is in it.
    Tree,
    /// A directory that was made for files which are not there yet: only if it is empty.
    Empty,
}

#[derive(Debug, Default)]
struct Register {
    next: u64,
    names: BTreeMap<u64, (PathBuf, Kind)>,
}

static REGISTER: Mutex<Register> = Mutex::new(Register {
    next: 0,
    names: BTreeMap::new(),
});

/// The longest that [`remove_all`] waits, for the lock and for each directory.
const PATIENCE: Duration = Duration::from_millis(200);

fn register() -> MutexGuard<'static, Register> {
    REGISTER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name in the register. When it is dropped, the register forgets the name.
#[derive(Debug)]
pub(crate) struct Registered(u64);

impl Registered {
    fn new(register: &mut Register, path: &Path, kind: Kind) -> Self {
        // The file must be found at the end whatever the current directory is then.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let number = register.next;
        register.next += 1;
        register.names.insert(number, (path, kind));
        Registered(number)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut register = register();
        if let Some((path, Kind::Empty)) = register.names.remove(&self.0) {
            // It has files in it if all went well.
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// The error without the temporary name, which means nothing to the user.
fn cause(error: io::Error) -> io::Error {
    // tempfile appends the name to the system's message, and gives neither by itself.
    let text = error.to_string();
    match text.split_once(" at path \"") {
        Some((said, _)) => io::Error::new(error.kind(), said),
        None => error,
    }
}

/// Makes a temporary file with a name.
pub(crate) fn file(
    make: impl FnOnce() -> io::Result<tempfile::NamedTempFile>,
) -> io::Result<(tempfile::NamedTempFile, Registered)> {
    let mut register = register();
    let file = make().map_err(cause)?;
    let registered = Registered::new(&mut register, file.path(), Kind::File);
    Ok((file, registered))
}

/// Makes a temporary directory.
pub(crate) fn directory(
    make: impl FnOnce() -> io::Result<tempfile::TempDir>,
) -> io::Result<(tempfile::TempDir, Registered)> {
    let mut register = register();
    let directory = make().map_err(cause)?;
    let registered = Registered::new(&mut register, directory.path(), Kind::Tree);
    Ok((directory, registered))
}

/// Makes a directory and its parents, as far as they do not exist. A directory that is still
/// empty when its value is dropped is removed.
pub(crate) fn make_directories(path: &Path) -> io::Result<Vec<Registered>> {
    let mut register = register();
    let missing: Vec<_> = path
        .ancestors()
        .take_while(|p| !p.as_os_str().is_empty() && !p.exists())
        .collect();
    std::fs::create_dir_all(path)?;
    // The innermost comes first, and is dropped first.
    let made = missing.into_iter();
    Ok(made
        .map(|path| Registered::new(&mut register, path, Kind::Empty))
        .collect())
}

/// Makes a temporary file without a name. Some file systems can only make a file with a name,
/// which is then removed.
pub(crate) fn nameless_in(directory: &Path) -> io::Result<File> {
    let _register = register();
    tempfile::tempfile_in(directory).map_err(cause)
}

/// Gives files their final names. [`remove_all`] waits while this function runs; after
/// [`remove_all`], this function does not begin.
pub(crate) fn settle<T>(names: impl FnOnce() -> T) -> T {
    let _register = register();
    names()
}

/// Removes everything that is unfinished. The process must end after that: a thread that then
/// creates or finishes a temporary file waits for ever.
pub fn remove_all() {
    let deadline = Instant::now() + PATIENCE;
    let register = loop {
        match REGISTER.try_lock() {
            Ok(register) => break register,
            Err(TryLockError::Poisoned(e)) => break e.into_inner(),
            // A file system that does not answer would keep the lock.
            Err(TryLockError::WouldBlock) if Instant::now() > deadline => return,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    remove(&register);
    std::mem::forget(register);
}

fn remove(register: &Register) {
    let names = || register.names.values();
    for (path, _) in names().filter(|name| name.1 == Kind::File) {
        let _ = std::fs::remove_file(path);
    }
    for (path, _) in names().filter(|name| name.1 == Kind::Tree) {
        let deadline = Instant::now() + PATIENCE;
        // Another thread may add files to it meanwhile.
        while std::fs::remove_dir_all(path).is_err() && path.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    for (path, _) in names().filter(|name| name.1 == Kind::Empty) {
        let _ = std::fs::remove_dir(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unfinished_goes_and_the_finished_stays() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let names: Vec<_> = ["file", "tree", "made", "made-and-used", "other"]
            .iter()
            .map(|name| at(name))
            .collect();
        std::fs::write(&names[0], "").unwrap();
        std::fs::create_dir_all(names[1].join("a/b")).unwrap();
        std::fs::write(names[1].join("a/b/c"), "").unwrap();
        std::fs::create_dir(&names[2]).unwrap();
        std::fs::create_dir(&names[3]).unwrap();
        std::fs::write(names[3].join("file"), "").unwrap();
        std::fs::write(&names[4], "").unwrap();
        let mut register = Register::default();
        let kinds = [Kind::File, Kind::Tree, Kind::Empty, Kind::Empty];
        for (path, kind) in names.iter().zip(kinds) {
            std::mem::forget(Registered::new(&mut register, path, kind));
        }
        remove(&register);
        let there: Vec<_> = names.iter().map(|path| path.exists()).collect();
        assert_eq!(there, [false, false, false, true, true]);
    }

    #[test]
    fn a_directory_that_stays_empty_goes() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("a/b");
        drop(make_directories(&inner).unwrap());
        assert!(directory.path().exists() && !directory.path().join("a").exists());
        let made = make_directories(&inner).unwrap();
        std::fs::write(inner.join("file"), "").unwrap();
        drop(made);
        drop(make_directories(&inner).unwrap());
        assert!(inner.join("file").exists());
    }
}
