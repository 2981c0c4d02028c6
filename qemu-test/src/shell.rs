//! A shell in the patched guest, in a folder that the host has, too.

use crate::machine::{Machine, Profile, debian};
use crate::paths;
use crate::shared::Shared;
use anyhow::Result;
use std::fs;
use std::path::{Path, PathBuf};

/// What runs in the guest. A trace that is still on when the shell ends is ended in order,
/// so that it is whole.
const SHELL: &str = "cd /shared
export PS1='guest:\\w# ' HISTFILE=
setsid -c /bin/bash --norc -i </dev/console >/dev/console 2>&1
activator off >/dev/console 2>/dev/null
exit 0";

/// Lets the user have the guest's console, and says where the host has the files that were
/// written in the guest's /shared.
///
/// # Errors
///
/// If the guest can't be started, or its files can't be taken.
pub fn run(kernel: &str, folder: Option<&Path>) -> Result<()> {
    let folder = folder.map_or_else(|| paths::build().join("shared"), PathBuf::from);
    let shared = Shared::new(&folder)?;
    eprintln!(
        "this terminal becomes the guest's console; 'exit' or Ctrl-A x ends the guest\n\
         the guest's /shared, where the shell begins, is {} here: files in it stay\n\
         to begin with: kvmtrace record -o ls.vmt ls -lR /usr/bin; kvmtrace --help",
        paths::shown(&folder)
    );
    let name = format!("shell-{}", std::process::id());
    let ended = Machine {
        name: name.clone(),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps: vec![debian("shell", SHELL)],
        deadline_s: u64::MAX / 4_000_000_000,
    }
    .run_with(&shared.args());
    let _ = fs::remove_dir_all(paths::build().join("runs").join(name));
    let files = shared.collect()?;
    ended?;
    eprintln!("\n{}", said(&folder, &files));
    Ok(())
}

/// What the guest left, and what to do with it.
fn said(folder: &Path, files: &[PathBuf]) -> String {
    if files.is_empty() {
        return format!(
            "the guest wrote nothing in /shared ({})",
            paths::shown(folder)
        );
    }
    let mut text = String::from("written in the guest's /shared, and here now:\n");
    for file in files {
        let bytes = fs::metadata(file).map_or(0, |m| m.len());
        text += &format!("  {bytes:>12} bytes  {}\n", paths::shown(file));
    }
    let trace = files
        .iter()
        .find(|f| f.extension().is_some_and(|e| e == "vmt"));
    if let Some(trace) = trace {
        let (postproc, trace) = (paths::command("postproc"), paths::shown(trace));
        text += &format!(
            "next:\n  {postproc} check {trace}\n  {postproc} report {trace} -o {}\n",
            paths::shown(&folder.join("report"))
        );
    }
    text.pop();
    text
}
