//! The kernel's own tests of the tracer's logic and of the abstractions that it
//! brings, run at boot.

use super::Scenario;
use crate::machine::{Machine, Profile, step};
use anyhow::{Result, ensure};
use std::fs;

/// KUnit suites that must have run.
const SUITES: &[&str] = &["rust_vmtrace", "rust_kthread", "vmtrace_flush"];

/// The scenario.
pub fn scenario() -> Scenario {
    Scenario {
        name: "kunit".into(),
        about: "KUnit: the set, the ring, the layouts, flushes; kernel threads in Rust",
        run: Box::new(run),
    }
}

fn run(kernel: &str) -> Result<()> {
    let out = Machine {
        name: format!("kunit-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Fast,
        image: false,
        cmdline: "kunit.enable=1 kunit.autorun=1".into(),
        files: vec![],
        steps: vec![step("touch", &["/bin/touch-loop", "10", "2"])],
        deadline_s: 120,
    }
    .run()?;
    let console = fs::read_to_string(out.dir.join("console.log"))?;
    // KTAP: a suite's line is not indented.
    for suite in SUITES {
        ensure!(
            console
                .lines()
                .any(|l| l.starts_with("ok ") && l.trim_end().ends_with(suite)),
            "KUnit has no \"ok\" for {suite}; see {}",
            out.dir.join("console.log").display()
        );
    }
    let failed: Vec<_> = console.lines().filter(|l| l.contains("not ok ")).collect();
    ensure!(failed.is_empty(), "KUnit: {}", failed.join("\n"));
    Ok(())
}
