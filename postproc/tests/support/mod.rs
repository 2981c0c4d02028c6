//! Programs of others that tests compare with.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod random;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

/// Runs a command that must succeed; gives its standard output.
#[track_caller]
pub fn run(command: &mut Command, purpose: &str) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("cannot {purpose}: {command:?}: {e}"));
    assert!(
        output.status.success(),
        "cannot {purpose}: {command:?} gave {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Set, and not empty: results that differ are written, not reported.
pub const ACCEPT: &str = "KVMTRACE_ACCEPT";

/// Runs `postproc` in a directory, whatever it ends with.
#[track_caller]
pub fn postproc(args: &[&str], directory: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_postproc"))
        .args(args)
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A Python that has packages of PyPI, installed in the target directory once.
///
/// Each name belongs to one test program, whose tests run in its threads: who comes second waits
/// for the installation rather than begin it again over the first one's head.
pub fn python(name: &str, packages: &[&str]) -> PathBuf {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{name}"));
    let (python, done) = (directory.join("bin/python"), directory.join("done"));
    let wanted = packages.join(" ");
    if std::fs::read_to_string(&done).is_ok_and(|found| found == wanted) {
        return python;
    }
    run(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&directory),
        "make a Python environment (Debian: apt-get install python3-venv)",
    );
    run(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet"])
            .args(["--disable-pip-version-check"])
            .args(["--only-binary", ":all:", "--no-deps"])
            .args(packages),
        "install packages from PyPI (the comparison needs them)",
    );
    std::fs::write(done, wanted).unwrap();
    python
}
