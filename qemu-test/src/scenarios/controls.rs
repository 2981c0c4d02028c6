//! Negative controls: with one protection of the kernel taken away
//! (vmtrace_break=), its test must fail.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, step};
use crate::postproc;
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The three controls.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "control-noflush".into(),
            about: "without the flush at eviction, references are missed",
            run: Box::new(noflush),
        },
        Scenario {
            name: "control-noaccess".into(),
            about: "without the filter in ptep_set_access_flags(), funny PTEs appear",
            run: Box::new(|k| funny(k, "noaccess", &["/bin/swap-reuse"])),
        },
        Scenario {
            name: "control-pmdmove".into(),
            about: "with page tables moved by mremap(), funny PTEs appear",
            run: Box::new(|k| funny(k, "pmdmove", &["/bin/mremap-move"])),
        },
    ]
}

fn boot(kernel: &str, name: &str, cmdline: &str, argv: &[&str]) -> Result<Outcome> {
    let mut traced = vec![
        "/bin/activator",
        "run",
        "-n",
        "64",
        "-o",
        "/dev/trace",
        "--",
    ];
    traced.extend(argv);
    Machine {
        name: format!("control-{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: false,
        cmdline: cmdline.into(),
        files: vec![],
        steps: vec![
            step("traced", &traced),
            step("status", &["/bin/activator", "status", "--json"]),
        ],
        deadline_s: 300,
    }
    .run()
}

fn figure(out: &Outcome, name: &str) -> Result<u64> {
    let status: Value = serde_json::from_str(&out.step("status")?.stdout)?;
    status[name]
        .as_u64()
        .with_context(|| format!("activator status has no {name}: {status}"))
}

/// 100 pages in a cycle with N=64: every touch is an admission.
fn noflush(kernel: &str) -> Result<()> {
    let argv = ["/bin/touch-loop", "100", "20"];
    let whole = figure(&boot(kernel, "flush", "", &argv)?, "admissions")?;
    let broken = figure(
        &boot(kernel, "noflush", "vmtrace_break=noflush", &argv)?,
        "admissions",
    )?;
    println!("  admissions with the flush {whole}, without {broken}");
    ensure!(whole >= 2000, "only {whole} admissions of 2000 touches");
    ensure!(
        broken < 2000,
        "{broken} admissions without the flush: the control shows nothing"
    );
    Ok(())
}

fn funny(kernel: &str, control: &str, argv: &[&str]) -> Result<()> {
    let whole = boot(kernel, &format!("with-{control}"), "", argv)?;
    let n = figure(&whole, "funny")?;
    ensure!(
        n == 0 && whole.step("traced")?.rc == 0,
        "{n} funny PTEs with the protection"
    );
    let broken = boot(kernel, control, &format!("vmtrace_break={control}"), argv)?;
    let n = figure(&broken, "funny")?;
    println!("  funny PTEs without the protection: {n}");
    ensure!(
        n > 0,
        "no funny PTE without the protection: the control shows nothing"
    );
    ensure!(
        broken.step("traced")?.rc == 1,
        "the activator calls such a trace good"
    );
    let (rc, _) = postproc::json(&["check"], &broken.trace())?;
    ensure!(rc == 1, "postproc check calls such a trace good");
    Ok(())
}
