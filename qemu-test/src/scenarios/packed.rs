//! Traces that the kernel has packed: they are good, they are small, and they are what postproc
//! makes of the unpacked trace.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, step};
use crate::paths;
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let one = |name: &str, profile| Scenario {
        name: name.into(),
        about: "traces that the kernel packs: good, small, and byte for byte what postproc packs",
        run: Box::new(move |kernel| run(profile, kernel)),
    };
    vec![
        one("packed", Profile::Fast),
        one("packed-smp", Profile::Smp),
    ]
}

/// Options of the activator, and the program.
const RUNS: [(&str, &str, &str); 10] = [
    ("loop", "-n 64", "/bin/touch-loop 600 30"),
    ("batches", "-n 512", "/bin/random-walk 1 3000"),
    ("again", "-n 64 --again", "/bin/random-walk 2 1000"),
    ("clock", "-n 64 --policy clock", "/bin/random-walk 3 1000"),
    ("vtime", "-n 64 --virtual-time=60", "/bin/fork-storm"),
    ("sets", "-n 64 --set-per process", "/bin/fork-storm"),
    (
        "windows",
        "-n 64 --trace 2000 --skip 1ms --repeat 4",
        "/bin/random-walk 4 2000",
    ),
    (
        "events",
        "-n 64 --events file,io,shm,gup,swap,frame,switch",
        "/bin/file-map",
    ),
    (COMPRESSED, "-n 64", "/bin/random-walk 5 3000"),
    (PLAIN, "-n 64", "/bin/touch-loop 600 30"),
];

/// The run without an option of packing, that whose packets are compressed, too, and that whose packets are not
/// packed.
const DEFAULT: &str = "batches";
const COMPRESSED: &str = "zstd";
const PLAIN: &str = "plain";

fn boot(profile: Profile, kernel: &str) -> Result<Outcome> {
    let mut steps = Vec::new();
    for (slot, (name, options, program)) in RUNS.iter().enumerate() {
        let file = format!("/tmp/{name}.vmt");
        let pack = match *name {
            DEFAULT => "",
            COMPRESSED => "--pack=zstd",
            PLAIN => "--pack=no",
            _ => "--pack",
        };
        let command = format!("/bin/activator run {pack} {options} -o {file} -- {program}");
        let argv: Vec<_> = command.split_whitespace().collect();
        steps.push(step(name, &argv));
        let status = ["/bin/activator", "status", "--json"];
        steps.push(step(&format!("{name} status"), &status));
        let keep = ["/bin/keep", &slot.to_string(), &file];
        steps.push(step(&format!("{name} keep"), &keep));
    }
    Machine {
        name: format!("packed-{}-{kernel}", profile.name()),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 300,
    }
    .run()
}

/// Whether the kernel says that it packs.
fn is_packed(status: &Value) -> Option<bool> {
    let flags = status["flags"].as_u64()?;
    Some(flags & u64::from(rust_mm_trace::uapi::VMTRACE_PACK) != 0)
}

/// Copies a trace by a command of postproc.
fn copy(command: &str, from: &Path, to: &Path) -> Result<Value> {
    let out = Command::new(paths::tool("postproc"))
        .args([command, "--json", "-o"])
        .args([to, from])
        .output()
        .context("postproc is missing: run 'make tools'")?;
    ensure!(
        out.status.success(),
        "postproc {command}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(serde_json::from_slice(&out.stdout)?)
}

fn run(profile: Profile, kernel: &str) -> Result<()> {
    let out = boot(profile, kernel)?;
    for (slot, (name, ..)) in RUNS.iter().enumerate() {
        for what in [name.to_string(), format!("{name} keep")] {
            let r = out.step(&what)?;
            ensure!(r.rc == 0, "{what}: {r:?}");
        }
        let packed = out.kept(slot, &format!("{name}.vmt"))?;
        let (rc, _) = postproc::json(&["check", "--frames"], &packed)?;
        ensure!(rc == 0, "{name}: {}", postproc::explain(&packed));
        // The kernel's account, and the file.
        let status: Value = serde_json::from_str(&out.step(&format!("{name} status"))?.stdout)?;
        let figure = |field: &str| {
            let value = status[field].as_u64();
            value.with_context(|| format!("{name}: no {field} in {status}"))
        };
        let (bytes, stored) = (figure("bytes")?, figure("stored")?);
        if *name == PLAIN {
            ensure!(
                bytes == stored && is_packed(&status) == Some(false),
                "{name}: {bytes} bytes packed into {stored}: {status}"
            );
            continue;
        }
        let plain = packed.with_extension("plain");
        let unpacked = copy("unpack", &packed, &plain)?;
        let sizes = |of: &Value, which: &str| -> Result<(u64, u64)> {
            let at = |i: usize| of[which][i].as_u64().context("no sizes");
            Ok((at(0)?, at(1)?))
        };
        let (small, large) = sizes(&unpacked, "bytes")?;
        // The END packet comes after what is counted.
        let end = small
            .checked_sub(stored)
            .context("a file that is too short")?;
        ensure!(
            large == bytes + end && end < 2000,
            "{name}: {bytes} bytes packed into {stored}; the file has {small}, {large} unpacked"
        );
        ensure!(
            stored * 2 < bytes,
            "{name}: {bytes} bytes packed into {stored}"
        );
        let (rc, _) = postproc::json(&["check", "--frames"], &plain)?;
        ensure!(rc == 0, "{name}: {}", postproc::explain(&plain));
        let again = packed.with_extension("again");
        copy("pack", &plain, &again)?;
        let (again_bytes, packed_bytes) = (std::fs::read(&again)?, std::fs::read(&packed)?);
        if *name == COMPRESSED {
            // Versions of Zstandard differ in what they make of the same bytes.
            ensure!(
                packed_bytes.len() * 10 < again_bytes.len() * 9,
                "{name}: {} bytes compressed, {} packed only",
                packed_bytes.len(),
                again_bytes.len()
            );
        } else {
            ensure!(
                again_bytes == packed_bytes,
                "{name}: postproc packs it into other bytes than the kernel"
            );
        }
        let (references, events) = (
            sizes(&unpacked, "reference_bytes")?.0 as f64,
            sizes(&unpacked, "event_bytes")?.0 as f64,
        );
        say!(
            "  {name}: {:.2} bytes for each of {} references, {:.1} for each of {} events",
            references / figure("refs")?.max(1) as f64,
            figure("refs")?,
            events / figure("events")?.max(1) as f64,
            figure("events")?
        );
        for copy in [plain, again] {
            std::fs::remove_file(copy)?;
        }
    }
    Ok(())
}
