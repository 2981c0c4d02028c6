//! The kernel's audit of itself, from page tables to the set and back, while programs
//! run: there is nothing to find, and it must find nothing. What it finds when there
//! is, the controls show.

use super::Scenario;
use crate::machine::{Machine, Profile, step};
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Beside what audits run. Each changes the set in its own way. A round of the forks is three new
/// address spaces; how many audits that makes is checked.
const PROGRAMS: &[Beside] = &[
    ("threads", &[], &["/bin/threads"]),
    ("forks", &["--policy", "clock"], &["/bin/fork-storm", "20"]),
    ("swap", &["--again"], &["/bin/swap-reuse"]),
    ("moves", &["--policy", "clock"], &["/bin/mremap-move"]),
];

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let mut list: Vec<_> = [Profile::Exact, Profile::Smp]
        .into_iter()
        .map(|profile| Scenario {
            name: format!("audit-{}", profile.name()),
            about: "audits of running programs, and of each program at its end, find nothing",
            run: Box::new(move |kernel| run(profile.name(), profile, "", PROGRAMS, kernel)),
        })
        .collect();
    list.push(Scenario {
        name: "audit-late".into(),
        about: "stays that have ended and are counted late do not mislead an audit",
        run: Box::new(|kernel| {
            // After stays have ended, and before they are counted.
            const LATE: &str = "vmtrace_late=1,8000,300";
            const FORKS: Beside = ("forks", &["--policy", "clock"], &["/bin/fork-storm", "12"]);
            run("late", Profile::Smp, LATE, &[FORKS], kernel)
        }),
    });
    list
}

/// What runs beside audits: its name, what the activator is told more, and the program.
type Beside = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

fn run(
    name: &str,
    profile: Profile,
    cmdline: &str,
    programs: &[Beside],
    kernel: &str,
) -> Result<()> {
    let mut steps = vec![step("off", &["/bin/protection", "dontneed"])];
    for (name, options, argv) in programs {
        let mut run = vec!["/bin/activator", "run", "-n", "64"];
        run.extend(["-o", "/dev/trace"]);
        run.extend(*options);
        run.extend(["--", "/bin/protection", "beside"]);
        run.extend(*argv);
        steps.push(step(name, &run));
        steps.push(step(
            &format!("status-{name}"),
            &["/bin/activator", "status", "--json"],
        ));
    }
    // Only root.
    let mut other = step("other", &["/bin/protection", "dontneed"]);
    other.uid = 1000;
    steps.push(other);
    let out = Machine {
        name: format!("audit-{name}-{kernel}"),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: format!("vmtrace_audit=1 {cmdline}"),
        files: vec![],
        steps,
        deadline_s: 600,
    }
    .run()?;
    let off = out.step("off")?;
    ensure!(
        off.rc == 1 && off.stderr.contains("code: 61"),
        "without a trace there is nothing to audit: {off:?}"
    );
    let other = out.step("other")?;
    ensure!(
        other.rc == 1 && other.stderr.contains("code: 13"),
        "anybody can audit: {other:?}"
    );
    for (name, ..) in programs {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{name}: {r:?}");
        ensure!(!r.stdout.contains("finding"), "{name}: {}", r.stdout);
        let told = |what: &str| {
            r.stdout
                .lines()
                .find_map(|l| l.strip_prefix(what)?.strip_prefix(' ')?.parse::<u64>().ok())
                .with_context(|| {
                    format!(
                        "{name}: the audits report nothing about {what}: {}",
                        r.stdout
                    )
                })
        };
        for what in ["funny", "dangling", "astray", "miscounted", "leaves"] {
            ensure!(told(what)? == 0, "{name}: {}", r.stdout);
        }
        let (audits, looked) = (told("audits")?, told("looked_at")?);
        let (accessible, spaces) = (told("accessible")?, told("spaces")?);
        say!(
            "  {name}: {audits} audits of {spaces} address spaces, {accessible} accessible PTEs, \
             {looked} members"
        );
        ensure!(
            audits > 3 && spaces > audits && looked > 10 * audits && accessible > 10 * audits,
            "{name}: hardly anything was looked at"
        );
        let status: Value = serde_json::from_str(&out.step(&format!("status-{name}"))?.stdout)?;
        // One more for each as it ended.
        ensure!(
            status["audits"].as_u64() > Some(spaces),
            "{name}: ends were not audited: {status}"
        );
    }
    Ok(())
}
