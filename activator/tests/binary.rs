//! The real program, as far as it goes without a kernel that traces.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

fn activator(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_activator"))
        .args(args)
        .output()
        .expect("runs")
}

fn refused(args: &[&str]) -> String {
    let output = activator(args);
    let message = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    assert!(output.stdout.is_empty());
    message
}

#[test]
fn no_device() {
    let dir = tempfile::tempdir().expect("tempdir");
    let output = dir.path().join("t.vmt");
    let output = output.to_str().expect("UTF-8");
    for args in [
        &["on", "--all", "-o", output][..],
        &["off"],
        &["status"],
        &["run", "-o", output, "--", "true"],
        &["top"],
    ] {
        let message = refused(&[&["--device", "/dev/no-vmtrace"], args].concat());
        assert_eq!(
            message,
            "activator: /dev/no-vmtrace does not exist: this kernel has no CONFIG_VMTRACE; boot \
             the patched kernel (`make shell` in kVMTrace's source tree boots it in QEMU)\n"
        );
        assert!(!Path::new(output).exists());
    }
}

#[test]
fn other_device() {
    // ENOTTY: what a kernel of another version says, too.
    for args in [
        &["off"][..],
        &["status", "--json"],
        &["on", "--all"],
        &["top"],
    ] {
        let message = refused(&[&["--device", "/dev/null"], args].concat());
        assert!(
            message.starts_with("activator: the kernel's vmtrace interface is not the one"),
            "{message}"
        );
    }
}

#[test]
fn no_permission() {
    let dir = tempfile::tempdir().expect("tempdir");
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    };
    let (device, program) = (dir.path().join("vmtrace"), dir.path().join("activator"));
    fs::write(&device, "").expect("write");
    set_mode(&device, 0);
    // Root may open anything, so the program must run as somebody else, who
    // may not reach where it was built. Copied by another process: a child that
    // a test beside this one forks would inherit the file while it is written,
    // and then it can't be run ("Text file busy").
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_activator"))
        .arg(&program)
        .status()
        .expect("cp");
    assert!(copied.success());
    set_mode(dir.path(), 0o755);
    let mut command = Command::new(program);
    if fs::File::open(&device).is_ok() {
        command.uid(65534).gid(65534);
    }
    let output = command
        .arg("--device")
        .arg(&device)
        .arg("status")
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).expect("UTF-8"),
        format!(
            "activator: {}: permission denied; run this as root, e.g. with sudo (tracing needs \
             CAP_SYS_ADMIN, or CAP_PERFMON if vm.vmtrace_paranoid is 0)\n",
            device.display()
        )
    );
}

#[test]
fn command_comes_before_the_device() {
    let output = activator(&["run", "--", "/no/such/command"]);
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(
        String::from_utf8(output.stderr).expect("UTF-8"),
        "activator: /no/such/command: command not found\n"
    );
}

#[test]
fn usage() {
    for args in [
        &["on"][..],
        &["run"],
        &["run", "-o", "t.vmt"],
        &["frobnicate"],
        &["run", "--frobnicate", "--", "true"],
        &["status", "--watch=0"],
    ] {
        let message = refused(args);
        assert!(message.contains("--help"), "{args:?}: {message}");
    }
}

#[test]
fn help_has_examples() {
    for command in [
        "",
        "on",
        "off",
        "status",
        "run",
        "rotate",
        "snapshot",
        "filter",
        "top",
        "completions",
        "man",
    ] {
        let args: Vec<_> = [command, "--help"]
            .into_iter()
            .filter(|a| !a.is_empty())
            .collect();
        let output = activator(&args);
        let help = String::from_utf8(output.stdout).expect("UTF-8");
        assert_eq!(output.status.code(), Some(0));
        assert!(
            help.contains("Examples:\n  activator "),
            "{command}: {help}"
        );
    }
    let version = activator(&["--version"]);
    assert_eq!(
        String::from_utf8(version.stdout).expect("UTF-8"),
        concat!(
            "activator ",
            env!("CARGO_PKG_VERSION"),
            " (kernel interface 1)\n"
        )
    );
}

#[test]
fn completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = activator(&["completions", shell]);
        let script = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(
            output.status.success() && script.contains("wait-all"),
            "{shell}"
        );
        assert!(script.contains("filter"), "{shell}");
        assert!(script.contains("rounds"), "{shell}");
    }
}

#[test]
fn manual_pages() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("UTF-8");
    assert!(activator(&["man", "-o", path]).status.success());
    for name in [
        "",
        "-on",
        "-off",
        "-status",
        "-run",
        "-resize",
        "-rotate",
        "-snapshot",
        "-filter",
        "-top",
        "-completions",
        "-man",
    ] {
        let page = directory.path().join(format!("activator{name}.1"));
        let page = std::fs::read_to_string(page).expect(name);
        assert!(page.contains(".TH") && page.contains("Examples:"), "{name}");
    }
}

#[test]
fn reader_that_goes_away_is_no_error() {
    let (read, write) = UnixStream::pair().expect("pair");
    drop(read);
    let status = Command::new(env!("CARGO_BIN_EXE_activator"))
        .args(["completions", "bash"])
        .stdout(OwnedFd::from(write))
        .status()
        .expect("runs");
    assert!(status.success());
}
