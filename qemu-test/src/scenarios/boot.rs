//! The unpatched kernel boots, and the activator says what is missing.

use super::Scenario;
use crate::machine::{Machine, Profile, step};
use anyhow::{Result, ensure};

/// The scenario of `make corners`: its kernel takes minutes to build. That the activator
/// reports what a kernel lacks is also a test of its own, on the host.
pub fn full() -> Vec<Scenario> {
    vec![Scenario {
        name: "unpatched".into(),
        about: "an unpatched kernel runs the programs; the activator reports what it lacks",
        run: Box::new(|_| run()),
    }]
}

fn run() -> Result<()> {
    let out = Machine {
        name: "unpatched".into(),
        kernel: "plain".into(),
        profile: Profile::Fast,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps: vec![
            step("touch", &["/bin/touch-loop", "10", "2"]),
            step("status", &["/bin/activator", "status"]),
        ],
        deadline_s: 120,
    }
    .run()?;
    ensure!(out.step("touch")?.rc == 0, "touch-loop failed");
    let status = out.step("status")?;
    ensure!(
        status.rc == 2 && status.stderr.contains("CONFIG_VMTRACE"),
        "activator status: {status:?}"
    );
    Ok(())
}
