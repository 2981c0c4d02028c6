//! Traces that start and stop in quick succession beside threads that fault.
//!
//! QEMU's emulation of several CPUs in several host threads can execute a breakpoint that
//! `text_poke` has already replaced (docs/correctness.md, "Kernels that patch themselves").
//! So the test with patches has its CPUs take turns in one thread. The other test has two
//! threads, and shows that traces in quick succession patch nothing.

use super::Scenario;
use crate::machine::{Machine, Profile, step};
use anyhow::{Context, Result, ensure};

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let scenario = |name: &str, about, profile, what, times| Scenario {
        name: name.into(),
        about,
        run: Box::new(move |kernel| run(profile, what, times, kernel)),
    };
    vec![
        scenario(
            "toggles-smp",
            "traces start and stop many times beside threads that fault",
            Profile::Smp,
            "trace",
            20,
        ),
        scenario(
            "toggles-turns",
            "static branches of the page fault path are patched many times beside faults",
            Profile::Turns,
            "perf",
            2000,
        ),
    ]
}

fn run(profile: Profile, what: &str, times: u32, kernel: &str) -> Result<()> {
    let times = times.to_string();
    let out = Machine {
        name: format!("toggles-{}-{kernel}", profile.name()),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps: vec![step("toggles", &["/bin/toggles", what, &times])],
        deadline_s: 600,
    }
    .run()?;
    let r = out.step("toggles")?;
    ensure!(
        r.rc == 0 && r.stdout.contains(&format!("{what}: {times} times")),
        "{r:?}"
    );
    let rounds = r.stdout.split_whitespace().rev().nth(1);
    let rounds: u64 = rounds.context("no rounds")?.parse()?;
    ensure!(rounds > 0, "no thread faulted: {r:?}");
    Ok(())
}
