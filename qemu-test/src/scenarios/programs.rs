//! Programs with known behaviour, untraced and traced: the same output, and a
//! trace without a violation.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, step};
use crate::postproc;
use ::postproc::testing::mend_checksums;
use ::postproc::trace::{Body, Merge, Step, StreamKind, Trace};
use anyhow::{Result, ensure};
use rust_mm_trace::uapi;
use std::mem::offset_of;

const PROGRAMS: &[&[&str]] = &[
    &["touch-loop", "200", "20"],
    &["fork-cow"],
    &["mremap-move"],
    &["mprotect-storm"],
    &["munmap-remap"],
    &["exec-args"],
    &["brk-stack"],
    &["swap-reuse"],
    &["file-map"],
    &["threads"],
    &["fork-storm"],
];

/// A scenario per size of the set and profile: all programs in one boot, each
/// with a trace of its own.
pub fn scenarios() -> Vec<Scenario> {
    let mut list = Vec::new();
    for (n, profile) in [
        ("32", Profile::Exact),
        ("64", Profile::Exact),
        ("512", Profile::Exact),
        ("64", Profile::Smp),
        ("512", Profile::Smp),
    ] {
        for argv in PROGRAMS {
            // One boot takes three seconds; the minimum is for a few only.
            if n == "32" && !["touch-loop", "exec-args", "threads"].contains(&argv[0]) {
                continue;
            }
            list.push(Scenario {
                name: format!("{}-{n}-{}", argv[0], profile.name()),
                about: "the same output untraced and traced; no violation in the trace",
                run: Box::new(move |kernel| run(argv, n, profile, "", kernel)),
            });
        }
    }
    // With five levels of page tables exec fills its stack elsewhere.
    list.push(Scenario {
        name: "exec-args-64-no5lvl".into(),
        about: "the same where exec's stack grows in its last place",
        run: Box::new(|kernel| run(&["exec-args"], "64", Profile::Exact, "no5lvl", kernel)),
    });
    list
}

fn run(argv: &[&str], n: &str, profile: Profile, cmdline: &str, kernel: &str) -> Result<()> {
    let program = format!("/bin/{}", argv[0]);
    let mut plain = vec![program.as_str()];
    plain.extend(&argv[1..]);
    let mut traced = vec!["/bin/activator", "run", "-n", n, "-o", "/dev/trace", "--"];
    traced.extend(&plain);
    let out = Machine {
        name: format!("{}-{n}-{}{cmdline}-{kernel}", argv[0], profile.name()),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: cmdline.into(),
        files: vec![],
        steps: vec![
            step("plain", &plain),
            step("traced", &traced),
            step("after", &plain),
        ],
        deadline_s: 600,
    }
    .run()?;
    let plain = out.step("plain")?;
    ensure!(
        plain.rc == 0 && !plain.stdout.is_empty(),
        "untraced it fails: {plain:?}"
    );
    for name in ["traced", "after"] {
        let r = out.step(name)?;
        ensure!(
            r.rc == plain.rc,
            "{name}: exit code {} instead of {}: {}",
            r.rc,
            plain.rc,
            r.stderr
        );
        ensure!(
            r.stdout == plain.stdout,
            "{name}: another output:\n{}\ninstead of\n{}",
            r.stdout,
            plain.stdout
        );
    }
    let (rc, _) = postproc::json(&["check", "--frames"], &out.trace())?;
    ensure!(
        rc == 0,
        "postproc check finds:\n{}",
        postproc::explain(&out.trace())
    );
    match argv[0] {
        "fork-cow" => without_copies(&out),
        _ => Ok(()),
    }
}

/// A control: if the trace did not tell of copies on write, canonical pages would not be
/// what page frames say, and nothing else would be wrong.
fn without_copies(out: &Outcome) -> Result<()> {
    let trace = Trace::open(out.trace())?;
    let mut bytes = trace.bytes()[..trace.index().stop as usize].to_vec();
    let mut merge = Merge::of_kinds(&trace, &[StreamKind::Event]);
    while let Step::Event(event) = merge.fill(&mut Vec::new(), 1) {
        if let Body::Cow { .. } = event.body {
            // With the same fields, and no page becomes another one.
            let at = event.offset as usize + offset_of!(uapi::vmtrace_event, type_);
            let other = uapi::VMTRACE_EV_SWAP_IN as u16;
            bytes[at..at + 2].copy_from_slice(&other.to_le_bytes());
        }
    }
    mend_checksums(&mut bytes);
    let path = out.dir.join("without-copies.vmt");
    std::fs::write(&path, bytes)?;
    let (rc, report) = postproc::json(&["check", "--frames"], &path)?;
    ensure!(rc == 1, "postproc check calls it good: {report}");
    for rule in report["rules"].as_array().into_iter().flatten() {
        ensure!(
            (rule["id"] == "frames") == (rule["errors"] != 0),
            "without copies on write: {rule}"
        );
    }
    Ok(())
}
