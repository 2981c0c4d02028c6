//! Re-references that need no VMA: what keeps them in order with changes of mappings, and what
//! happens without. Threads touch pages while others unmap, map and protect them, and the tracer
//! is slow where a reference could come between a change and its event.

use super::Scenario;
use crate::machine::{Machine, Profile, step};
use crate::postproc;
use crate::runner::say;
use anyhow::{Result, bail, ensure};
use serde_json::Value;
use std::ops::Range;

/// What a boot does.
struct Case {
    /// As vmtrace_break= knows it.
    without: &'static str,
    about: &'static str,
    /// Seed, points and microseconds, as `races late` takes them.
    late: &'static str,
    /// What the program does to its pages.
    operations: &'static str,
    /// The activator's further options.
    options: &'static str,
    /// Where the kernel may warn by itself that the protection is missing: a function.
    warns: &'static str,
}

impl Case {
    /// Whether a boot failed only because the kernel has warned where it may.
    fn is_warning(&self, why: &anyhow::Error) -> bool {
        !self.warns.is_empty()
            && format!("{why:#}").contains(&format!("WARNING: at {}+", self.warns))
    }
}

/// Of which each has its own line.
const CASE: Case = Case {
    without: "",
    about: "",
    late: "",
    operations: "",
    options: "",
    warns: "",
};

const CASES: [Case; 5] = [
    Case {
        without: "nowriter",
        about: "a reference looks at whether a mapping is being changed: without, it comes too late",
        // After an event has its number, before what it reports is done.
        late: "1,1000,300",
        operations: "Unmap,MapOver",
        ..CASE
    },
    Case {
        without: "noseq",
        about: "a reference looks again at whether a mapping was changed: without, it comes too late",
        // The same, and before a reference has its number.
        late: "1,1001,300",
        operations: "Unmap,MapOver",
        ..CASE
    },
    Case {
        without: "nozap",
        about: "munmap() keeps its lock until the pages are gone: without, they are referenced later",
        // After a PTE was cleared; the next one of the range is still there.
        late: "1,200,300",
        operations: "Unmap",
        ..CASE
    },
    Case {
        without: "noadvise",
        about: "MADV_DONTNEED keeps faults out until it is logged: without, they come too early",
        // Before an event has its number.
        late: "1,800,300",
        operations: "DontNeed",
        ..CASE
    },
    Case {
        without: "noseal",
        about: "when a window ends, nothing is admitted any more: without, its last members have no record",
        // When stays have ended, and are not counted.
        late: "1,8000,300",
        operations: "Cold",
        options: "--trace 4ms --skip 100us --repeat 100",
        // A page table is freed, and a page in it is still a member.
        warns: "__vmtrace_free_words",
    },
];

/// The seeds of a boot.
const SEEDS: Range<u64> = 1..4;

/// Without a protection, a seed fails in most boots. The CPUs take turns in another way in each boot. If no seed
/// fails in so many boots, the control fails.
const BOOTS: usize = 5;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let mut list = vec![Scenario {
        name: "minor-faults".into(),
        about: "getrusage() counts as many minor faults as without a trace",
        run: Box::new(minor_faults),
    }];
    list.extend(CASES.iter().map(|case| Scenario {
        name: format!("control-{}", case.without),
        about: case.about,
        run: Box::new(move |kernel| run(case, kernel)),
    }));
    list
}

/// A re-reference is no minor fault, and a first touch is one, as without a trace.
fn minor_faults(kernel: &str) -> Result<()> {
    const PROGRAM: [&str; 3] = ["/bin/minor-faults", "300", "20"];
    let mut traced = vec!["/bin/activator", "run", "-n", "64", "-o", "/tmp/t", "--"];
    traced.extend(PROGRAM);
    let out = Machine {
        name: format!("minor-faults-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: false,
        cmdline: String::new(),
        files: vec![],
        deadline_s: 200,
        steps: vec![
            step("plain", &PROGRAM),
            step("traced", &traced),
            step("status", &["/bin/activator", "status", "--json"]),
        ],
    }
    .run()?;
    let (plain, traced) = (out.step("plain")?, out.step("traced")?);
    ensure!(plain.rc == 0 && traced.rc == 0, "{plain:?} {traced:?}");
    let status: Value = serde_json::from_str(&out.step("status")?.stdout)?;
    say!(
        "  {} with {} references",
        traced.stdout.trim(),
        status["refs"]
    );
    ensure!(status["refs"].as_u64() > Some(6000), "{status}");
    ensure!(plain.stdout == traced.stdout, "{plain:?} {traced:?}");
    Ok(())
}

fn run(case: &'static Case, kernel: &str) -> Result<()> {
    let whole = errors(case, "", kernel)?;
    ensure!(
        whole.is_empty(),
        "with all protections: {}",
        whole.join("\n")
    );
    for boot in 1..=BOOTS {
        let broken = match errors(case, case.without, kernel) {
            Err(why) if case.is_warning(&why) => vec![format!("a warning of {}", case.warns)],
            other => other?,
        };
        say!("  {}, boot {boot}: {}", case.without, broken.join("\n  "));
        if !broken.is_empty() {
            return Ok(());
        }
    }
    bail!("no seed fails in {BOOTS} boots: the seeds show nothing")
}

/// What `postproc check --frames` finds in the traces of each seed.
fn errors(case: &Case, without: &str, kernel: &str) -> Result<Vec<String>> {
    let file = |seed: u64| format!("/tmp/{seed}.vmt");
    let mut steps = vec![step("late", &["/bin/races", "late", case.late])];
    for seed in SEEDS {
        let (file, slot) = (file(seed), seed.to_string());
        let line = format!(
            "/bin/activator run -n 64 {} -o {file} -- /bin/races {seed} 200 /tmp {}",
            case.options, case.operations
        );
        let argv: Vec<_> = line.split_whitespace().collect();
        steps.push(step(&format!("traced {seed}"), &argv));
        steps.push(step(&format!("keep {seed}"), &["/bin/keep", &slot, &file]));
    }
    let (name, broken) = match without {
        "" => ("whole", String::new()),
        what => ("broken", format!("vmtrace_break={what}")),
    };
    let out = Machine {
        name: format!("touch-{}-{name}-{kernel}", case.without),
        kernel: kernel.into(),
        profile: Profile::Turns,
        image: false,
        // The hooks for delays are patched in before there is a second CPU.
        cmdline: format!("vmtrace_late=0,0,0 {broken}"),
        files: vec![],
        deadline_s: 900,
        steps,
    }
    .run()?;
    let mut found = Vec::new();
    for seed in SEEDS {
        let r = out.step(&format!("traced {seed}"))?;
        ensure!(r.stdout == "ok\n", "{r:?}");
        let path = out.kept(seed as usize, &format!("{seed}.vmt"))?;
        // That something was broken on purpose is always an error.
        let waived = if without.is_empty() { "" } else { "health" };
        let wrong = postproc::wrong(&path, waived)?;
        found.extend(wrong.iter().map(|what| format!("seed {seed}: {what}")));
    }
    Ok(found)
}
