//! An installed system, from its boot loader on: Debian 13 gets our packages, boots our kernel, a user traces, and
//! the packages go. `packaging/test-machine.sh` has what happens in the system.

use crate::machine::{self, CPU_OF_SCENARIOS};
use crate::{paths, postproc};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a PC boots by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Firmware {
    Bios,
    Uefi,
}

/// The stages, in order. Each is one boot.
const STAGES: [(&str, Firmware); 5] = [
    ("install", Firmware::Bios),
    ("record", Firmware::Bios),
    ("lost", Firmware::Bios),
    ("boot", Firmware::Uefi),
    ("remove", Firmware::Uefi),
];

/// A stage takes a few minutes. The emulator takes most of them for the making of a kernel's initial memory disk.
const DEADLINE: Duration = Duration::from_secs(45 * 60);

/// The firmware of a PC with UEFI.
const UEFI: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";

/// Bytes of the disk that a stage leaves its results on.
const RESULTS: u64 = 4 << 30;

/// Installs, traces, upgrades and removes, and checks the traces here.
///
/// # Errors
///
/// If something is missing or a stage fails.
pub fn run() -> Result<()> {
    let dir = paths::build().join("metal");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    let disk = dir.join("disk.img");
    let template = paths::build().join("machine/disk.img");
    ensure!(
        Path::new(UEFI).exists(),
        "no UEFI firmware: install Debian's package ovmf"
    );
    ensure!(
        template.exists(),
        "{} is missing: run 'scripts/disk.sh'",
        template.display()
    );
    command("cp", |c| {
        c.args(["--sparse=always", "--reflink=auto"])
            .arg(&template)
            .arg(&disk)
    })?;
    let given = dir.join("given");
    packages(&given)?;
    for (stage, firmware) in STAGES {
        let begin = Instant::now();
        eprintln!("{stage}, with {firmware:?} …");
        let results = boot(&dir, &disk, &given, stage, firmware)?;
        let before = results.join("before");
        if before.exists() {
            fs::copy(before, given.join("before"))?;
        }
        let log = fs::read_to_string(dir.join(stage).join("log"))?;
        for line in log.lines().filter(|l| l.starts_with("test-machine: ")) {
            eprintln!("  {line}");
        }
        eprintln!("{stage}: good, {} s", begin.elapsed().as_secs());
    }
    let sqlite = dir.join("record/results/sqlite.vmt");
    for trace in [
        &sqlite,
        &dir.join("boot/results/boot.vmt"),
        &dir.join("boot/results/second.vmt"),
        &dir.join("boot/results/third.vmt"),
    ] {
        let (rc, check) = postproc::json(&["check"], trace)?;
        let references = check["references"].as_u64().unwrap_or(0);
        ensure!(
            rc == 0 && references > 0,
            "{} is not good:\n{}",
            trace.display(),
            postproc::explain(trace)
        );
        println!("{}: {references} references, good", paths::shown(trace));
    }
    let report = dir.join("report");
    command(paths::tool("postproc"), |c| {
        c.arg("report").arg(&sqlite).arg("-o").arg(&report)
    })?;
    println!(
        "the report of what the user traced: {}",
        paths::shown(&report.join("report.html"))
    );
    Ok(())
}

/// What all stages are given: the packages, later versions of them, and the scripts.
fn packages(given: &Path) -> Result<()> {
    fs::create_dir_all(given.join("newer"))?;
    let kernel = the_one(
        &paths::build().join("deb-kernel"),
        "linux-image-",
        "make deb-kernel",
    )?;
    fs::copy(&kernel, given.join(file_name(&kernel)?))?;
    for package in ["kvmtrace_", "python3-kvmtrace_"] {
        let deb = the_one(&paths::build().join("deb"), package, "make deb-tools")?;
        fs::copy(&deb, given.join(file_name(&deb)?))?;
        // The same files with a later version.
        let tree = given.join("tree");
        command("dpkg-deb", |c| c.arg("-R").arg(&deb).arg(&tree))?;
        let control = tree.join("DEBIAN/control");
        let text = fs::read_to_string(&control)?;
        let later = text
            .lines()
            .map(|line| match line.strip_prefix("Version: ") {
                Some(version) => format!("Version: {version}+later\n"),
                None => format!("{line}\n"),
            })
            .collect::<String>();
        fs::write(&control, later)?;
        command("dpkg-deb", |c| {
            c.args(["--root-owner-group", "-Znone", "-b"])
                .arg(&tree)
                .arg(given.join("newer"))
        })?;
        fs::remove_dir_all(&tree)?;
    }
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    for script in ["test-machine.sh", "state.sh"] {
        fs::copy(packaging.join(script), given.join(script))?;
    }
    Ok(())
}

/// The file whose name begins so. There must be just one: with two, either could be the old one.
fn the_one(dir: &Path, begins: &str, made_by: &str) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("no packages: run '{made_by}'"))? {
        let path = entry?.path();
        let name = file_name(&path)?;
        if name.starts_with(begins) && name.ends_with(".deb") && !name.contains("-dbg_") {
            found.push(path);
        }
    }
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => bail!("{} has no {begins}*.deb: run '{made_by}'", dir.display()),
        more => bail!("several packages of one name: {more:?}: run '{made_by}'"),
    }
}

fn file_name(path: &Path) -> Result<&str> {
    path.file_name()
        .and_then(|n| n.to_str())
        .with_context(|| format!("{} has no name", path.display()))
}

/// Runs a command that must succeed.
fn command(
    program: impl AsRef<std::ffi::OsStr>,
    more: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<()> {
    let mut command = Command::new(program);
    more(&mut command).stdout(Stdio::null());
    let status = command
        .status()
        .with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// Boots the disk once, runs a stage, and returns the folder of its results.
fn boot(dir: &Path, disk: &Path, given: &Path, stage: &str, firmware: Firmware) -> Result<PathBuf> {
    let out = dir.join(stage);
    fs::create_dir_all(&out)?;
    fs::write(
        given.join("stage"),
        format!("exec bash ./test-machine.sh {stage}\n"),
    )?;
    let (into, from) = (out.join("in.img"), out.join("out.img"));
    command("tar", |c| {
        c.args(["--owner=0", "--group=0", "-cf"])
            .arg(&into)
            .arg("-C")
            .arg(given)
            .arg(".")
    })?;
    File::create(&from)?.set_len(RESULTS)?;

    let console = out.join("console.log");
    let mut qemu = Command::new(paths::build().join("qemu/qemu-system-x86_64"));
    qemu.args([
        "-nodefaults",
        "-no-user-config",
        "-nic",
        "none",
        "-display",
        "none",
    ])
    .args(["-vga", "std", "-m", "2048", "-no-reboot", "-machine", "q35"])
    .args(["-smp", "2", "-accel", "tcg,thread=multi,tb-size=512"])
    .args(["-cpu", CPU_OF_SCENARIOS])
    .arg("-serial")
    .arg(format!("file:{}", console.display()))
    .stdin(Stdio::null());
    if firmware == Firmware::Uefi {
        // What the firmware remembers is of one machine.
        let variables = dir.join("uefi-variables");
        if !variables.exists() {
            fs::copy("/usr/share/OVMF/OVMF_VARS_4M.fd", &variables)
                .context("no UEFI firmware: install Debian's package ovmf")?;
        }
        qemu.arg("-drive")
            .arg(format!("if=pflash,format=raw,readonly=on,file={UEFI}"))
            .arg("-drive")
            .arg(format!("if=pflash,format=raw,file={}", variables.display()));
    }
    for (name, file) in [("disk", disk), ("in", &into), ("out", &from)] {
        qemu.arg("-drive")
            .arg(format!(
                "if=none,id={name},format=raw,cache=unsafe,file={}",
                file.display()
            ))
            .arg("-device")
            .arg(format!("virtio-blk-pci,drive={name},serial={name}"));
    }
    let status = machine::run_to_end(&format!("metal-{stage}"), &mut qemu, DEADLINE)?;
    let tail = |path: &Path| {
        let text = fs::read(path).unwrap_or_default();
        machine::tail(&String::from_utf8_lossy(&text), path)
    };
    let Some(status) = status else {
        bail!(
            "{stage}: the system did not turn off within {} s\n{}",
            DEADLINE.as_secs(),
            tail(&console)
        );
    };
    ensure!(status.success(), "{stage}: QEMU: {status}");
    machine::healthy(&console)?;
    command("tar", |c| c.arg("-xf").arg(&from).arg("-C").arg(&out))
        .with_context(|| format!("{stage} left nothing\n{}", tail(&console)))?;
    for file in [into, from] {
        fs::remove_file(file)?;
    }
    let rc = fs::read_to_string(out.join("rc"))?;
    ensure!(
        rc.trim() == "0",
        "{stage} ended with exit code {}:\n{}",
        rc.trim(),
        tail(&out.join("log"))
    );
    Ok(out.join("results"))
}
