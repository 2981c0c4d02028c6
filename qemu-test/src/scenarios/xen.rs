//! A paravirtualized guest of Xen, whose page tables are Xen's. Nothing can be traced there, and all
//! that is asked for is refused.

use super::Scenario;
use crate::machine::{Machine, Profile, debian, step};
use crate::{paths, runner::say};
use anyhow::{Result, ensure};
use std::fs;

/// The scenario.
pub fn scenario() -> Scenario {
    Scenario {
        name: "wide-xen".into(),
        about: "a paravirtualized guest of Xen: no trace from boot, and each request is refused",
        run: Box::new(run),
    }
}

fn run(kernel: &str) -> Result<()> {
    let xen = paths::xen();
    ensure!(
        xen.exists(),
        "{} is missing: run 'scripts/xen.sh'",
        xen.display()
    );
    let out = Machine {
        name: format!("wide-xen-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: true,
        cmdline: "vmtrace=early,refs".into(),
        files: vec![],
        steps: vec![
            step("untraced", &["/bin/touch-loop", "100", "2"]),
            step("status", &["/bin/activator", "status"]),
            step(
                "run",
                &[
                    "/bin/activator",
                    "run",
                    "-o",
                    "/tmp/trace",
                    "--",
                    "/bin/touch-loop",
                    "100",
                    "2",
                ],
            ),
            step(
                "takes",
                &["/bin/activator", "on", "--early", "-o", "/tmp/t"],
            ),
            debian(
                "audit",
                "mount -t debugfs none /sys/kernel/debug; ! cat /sys/kernel/debug/vmtrace/audit",
            ),
            step("after", &["/bin/touch-loop", "100", "2"]),
        ],
        deadline_s: 300,
    }
    .run_under(Some(&xen), &[])?;
    let console = fs::read_to_string(out.dir.join("console.log"))?;
    for line in [
        "Booting kernel on Xen",
        "a paravirtualized guest of Xen cannot be traced",
        "vmtrace: no trace from boot (-19)",
    ] {
        ensure!(
            console.contains(line),
            "no {line:?} in {}",
            out.dir.join("console.log").display()
        );
    }
    let untraced = out.step("untraced")?;
    let after = out.step("after")?;
    ensure!(untraced.rc == 0 && after.rc == 0, "{untraced:?}, {after:?}");
    for name in ["status", "run", "takes"] {
        let refused = out.step(name)?;
        ensure!(
            refused.rc != 0 && refused.stderr.contains("paravirtualized guest of Xen"),
            "{name}: {refused:?}"
        );
        say!("  {name}: {}", refused.stderr.trim());
    }
    let audit = out.step("audit")?;
    ensure!(
        audit.rc == 0 && audit.stderr.contains("No such device\n"),
        "{audit:?}"
    );
    Ok(())
}
