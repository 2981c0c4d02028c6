//! Several sets: one for each process, or for each control group.

use super::Scenario;
use super::many_cpus::clean;
use crate::machine::{Machine, Outcome, Profile, debian};
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::Step;
use serde_json::Value;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let mut list = Vec::new();
    for profile in [Profile::Fast, Profile::Smp] {
        list.push(Scenario {
            name: format!("sets-process-{}", profile.name()),
            about: "a set for each process, with every policy, windows and a change of N: the same \
                    output, no violation",
            run: Box::new(move |kernel| processes(kernel, profile)),
        });
    }
    list.push(Scenario {
        name: "sets-cgroup".into(),
        about: "a set for each control group: what runs in one of them shares a set",
        run: Box::new(cgroups),
    });
    list.push(Scenario {
        name: "sets-apart".into(),
        about: "two processes make fewer than three times the references of one if each has a set, and \
                more than ten times as many as that in one set",
        run: Box::new(|kernel| apart(kernel, "sets-apart", "")),
    });
    list.push(Scenario {
        name: "sets-many".into(),
        about: "thousands of short processes: their sets are freed while the trace goes on",
        run: Box::new(many),
    });
    list.push(Scenario {
        name: "sets-no-memory".into(),
        about: "no memory for sets: processes share set 0 and are counted, and nothing is lost",
        run: Box::new(no_memory),
    });
    list.extend(controls());
    list
}

/// What fails without a protection.
fn controls() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "control-oneset".into(),
            about: "if processes do not get sets of their own, sets-apart fails",
            run: Box::new(oneset),
        },
        Scenario {
            name: "control-nobury".into(),
            about: "if a set is freed with its last records, the trace does not add up",
            run: Box::new(nobury),
        },
    ]
}

fn boot(
    kernel: &str,
    name: &str,
    profile: Profile,
    cmdline: &str,
    steps: Vec<Step>,
) -> Result<Outcome> {
    Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile,
        image: true,
        cmdline: cmdline.into(),
        files: vec![],
        steps,
        deadline_s: 1200,
    }
    .run()
}

/// A program, untraced, and traced with its status and its check.
fn both(name: &str, options: &str, program: &str) -> Vec<Step> {
    let file = format!("/tmp/{name}.vmt");
    let mut steps = vec![debian(&format!("{name} plain"), program)];
    steps.extend(traced(name, options, program));
    steps.push(debian(
        &format!("{name} info"),
        &format!("postproc info --json {file}"),
    ));
    steps
}

fn traced(name: &str, options: &str, program: &str) -> Vec<Step> {
    let file = format!("/tmp/{name}.vmt");
    let run = format!("activator run {options} -o {file} -- {program}");
    vec![
        debian(name, &run),
        debian(&format!("{name} status"), "activator status --json"),
        debian(&format!("{name} check"), &format!("postproc check {file}")),
    ]
}

fn status(out: &Outcome, name: &str) -> Result<Value> {
    Ok(serde_json::from_str(
        &out.step(&format!("{name} status"))?.stdout,
    )?)
}

/// The status of a trace that is as it should be, of a program that has printed what it prints
/// untraced.
fn same(out: &Outcome, name: &str) -> Result<Value> {
    let (plain, traced) = (out.step(&format!("{name} plain"))?, out.step(name)?);
    ensure!(
        plain.rc == 0 && plain.stdout == traced.stdout,
        "{name}: {plain:?} {traced:?}"
    );
    clean(out, name)
}

fn figure(status: &Value, what: &str) -> Result<u64> {
    status[what]
        .as_u64()
        .with_context(|| format!("no {what} in {status}"))
}

/// Name, options and program.
const RUNS: [(&str, &str, &str); 7] = [
    ("storm", "-n 64", "fork-storm 30"),
    ("batches", "-n 64 --batch 8", "fork-storm 30"),
    ("turns", "-n 100", "take-turns 3 80 30"),
    ("again", "-n 64 --again", "fork-cow"),
    ("clock", "-n 64 --policy clock", "fork-storm 15"),
    ("threads", "-n 48", "threads"),
    ("windows", "-n 64 --trace 2000 --skip 20ms", "fork-storm 30"),
];

fn processes(kernel: &str, profile: Profile) -> Result<()> {
    let mut steps = Vec::new();
    for (name, options, program) in RUNS {
        steps.extend(both(name, &format!("--set-per process {options}"), program));
    }
    // N goes down and up while processes come and go.
    steps.push(debian(
        "resize",
        "activator run --set-per process -n 64 --max 512 -o /tmp/resize.vmt -- fork-storm 60 >/dev/null & \
         for n in 512 40 200 64 300; do sleep 0.3; activator resize $n || true; done; wait $!",
    ));
    steps.push(debian("resize status", "activator status --json"));
    steps.push(debian("resize check", "postproc check /tmp/resize.vmt"));
    let name = format!("sets-process-{}", profile.name());
    let out = boot(kernel, &name, profile, "", steps)?;
    for (name, ..) in RUNS {
        let s = same(&out, name)?;
        let (made, most) = (figure(&s, "sets_made")?, figure(&s, "sets_max")?);
        say!(
            "  {name}: {made} sets, {most} at most at once; {} records",
            s["refs"]
        );
        ensure!(made > 0 && most > 0 && most <= made, "{name}: {s}");
        ensure!(figure(&s, "sets_shared")? == 0, "{name}: {s}");
    }
    let s = clean(&out, "resize")?;
    ensure!(figure(&s, "evms_peak")? > 64, "N was not changed: {s}");
    Ok(())
}

/// Two control groups, in each of which two programs take turns.
fn cgroups(kernel: &str) -> Result<()> {
    let steps = vec![
        debian(
            "mount",
            "mkdir -p /tmp/cgroup && mount -t cgroup2 none /tmp/cgroup && mkdir /tmp/cgroup/a /tmp/cgroup/b",
        ),
        debian(
            "run",
            "activator run --set-per cgroup -n 200 -o /tmp/run.vmt -- sh -c '\
             for g in a b; do (echo 0 >/tmp/cgroup/$g/cgroup.procs; touch-loop 150 40; touch-loop 90 40) & done; wait'",
        ),
        debian("run status", "activator status --json"),
        debian("run check", "postproc check /tmp/run.vmt"),
        debian("run info", "postproc info --json /tmp/run.vmt"),
        debian("groups", "stat -c %i /tmp/cgroup/a /tmp/cgroup/b"),
    ];
    let out = boot(kernel, "sets-cgroup", Profile::Smp, "", steps)?;
    let s = clean(&out, "run")?;
    let info = out.step("run info")?.stdout.clone();
    say!(
        "  {} sets, {} at most at once",
        s["sets_made"],
        s["sets_max"]
    );
    for group in out.step("groups")?.stdout.split_ascii_whitespace() {
        ensure!(info.contains(group), "no set of group {group}: {info}");
    }
    // The programs of a group come after each other, and each begins in a group that has a set or
    // makes it anew. All of them together have no more sets at once than groups.
    ensure!(figure(&s, "sets_max")? <= 3, "{s}");
    Ok(())
}

/// Pages of each of two processes. One fits into a set, and two do not.
const PAGES: u64 = 300;
const N: u64 = 400;

/// A program alone, with another one, and with another one in one set: the records.
fn records_apart(kernel: &str, name: &str, cmdline: &str) -> Result<[u64; 3]> {
    let one = format!("take-turns 1 {PAGES} 50");
    let two = format!("take-turns 2 {PAGES} 50");
    let mut steps = traced("alone", &format!("--set-per process -n {N}"), &one);
    steps.extend(traced("beside", &format!("--set-per process -n {N}"), &two));
    steps.extend(traced("together", &format!("-n {N}"), &two));
    let out = boot(kernel, name, Profile::Smp, cmdline, steps)?;
    let mut refs = [0; 3];
    for (refs, name) in refs.iter_mut().zip(["alone", "beside", "together"]) {
        // A control does not call its traces good.
        let s = if cmdline.is_empty() {
            clean(&out, name)?
        } else {
            status(&out, name)?
        };
        *refs = figure(&s, "admissions")?;
    }
    let [alone, beside, together] = refs;
    say!("  references recorded: {alone} alone, {beside} of two, {together} of two in one set");
    Ok(refs)
}

fn apart(kernel: &str, name: &str, cmdline: &str) -> Result<()> {
    let [alone, beside, together] = records_apart(kernel, name, cmdline)?;
    // Each process has its pages, its program's and its stack's, and is made by fork.
    ensure!(
        beside < 3 * alone,
        "{beside} references of two, {alone} of one"
    );
    ensure!(
        together > 10 * beside,
        "{together} references in one set, {beside} in two"
    );
    Ok(())
}

fn oneset(kernel: &str) -> Result<()> {
    let [alone, beside, _] = records_apart(kernel, "control-oneset", "vmtrace_break=oneset")?;
    ensure!(
        beside > 10 * alone,
        "{beside} and {alone}: the control shows nothing"
    );
    Ok(())
}

fn many(kernel: &str) -> Result<()> {
    let free = |name: &str| {
        debian(
            name,
            "sync; echo 3 >/proc/sys/vm/drop_caches; grep MemAvailable /proc/meminfo",
        )
    };
    let mut steps = vec![free("before")];
    steps.push(debian(
        "run",
        "activator run --set-per process -n 512 -o /tmp/run.vmt -- sh -c 'fork-storm 700; \
         grep MemAvailable /proc/meminfo'",
    ));
    steps.push(debian("run status", "activator status --json"));
    steps.push(debian("run check", "postproc check /tmp/run.vmt"));
    let out = boot(kernel, "sets-many", Profile::Smp, "", steps)?;
    let s = clean(&out, "run")?;
    let (made, most) = (figure(&s, "sets_made")?, figure(&s, "sets_max")?);
    let kib = |text: &str| -> Result<u64> {
        let line = text
            .lines()
            .find(|l| l.starts_with("MemAvailable"))
            .context("no figure")?;
        Ok(line
            .split_ascii_whitespace()
            .nth(1)
            .context("no figure")?
            .parse()?)
    };
    let (before, after) = (
        kib(&out.step("before")?.stdout)?,
        kib(&out.step("run")?.stdout)?,
    );
    let used = before.saturating_sub(after) / 1024;
    say!("  {made} sets of 128 KiB, {most} at most at once; {used} MiB less before the end");
    ensure!(made > 2000 && most < 20, "{s}");
    ensure!(figure(&s, "sets_shared")? == 0, "{s}");
    // All sets would be 256 MiB and more.
    ensure!(used < 150, "{used} MiB are not freed");
    Ok(())
}

/// Sets are asked for at the same time again and again, when the memory that is left is enough for one.
fn no_memory(kernel: &str) -> Result<()> {
    let mut steps = vec![debian(
        "run",
        "activator run --set-per process -n 2000000 -o /tmp/run.vmt -- sh -c \
         'for i in 1 2 3 4; do for j in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1 & done; wait; done'; echo rc $?",
    )];
    steps.push(debian("run status", "activator status --json"));
    steps.push(debian("run check", "postproc check /tmp/run.vmt"));
    let out = boot(kernel, "sets-no-memory", Profile::Smp, "", steps)?;
    let s = status(&out, "run")?;
    let shared = figure(&s, "sets_shared")?;
    say!(
        "  {} sets made; {shared} processes in set 0",
        s["sets_made"]
    );
    ensure!(shared > 0, "there was memory for all: {s}");
    let run = out.step("run")?;
    ensure!(run.stdout.contains("rc 1"), "not told: {run:?}");
    for what in [
        "funny",
        "stuck",
        "dangling",
        "miscounted",
        "lost_full",
        "lost_io",
    ] {
        ensure!(s[what] == 0, "{what} in {s}");
    }
    let check = out.step("run check")?;
    ensure!(
        check.rc == 1 && check.stdout.contains("set 0"),
        "{check:?} of {run:?}, {s}"
    );
    Ok(())
}

fn nobury(kernel: &str) -> Result<()> {
    let steps = traced("run", "--set-per process -n 64", "fork-storm 20");
    let out = boot(
        kernel,
        "control-nobury",
        Profile::Smp,
        "vmtrace_break=nobury",
        steps,
    )?;
    let s = status(&out, "run")?;
    let (admitted, written) = (
        figure(&s, "admissions")? + figure(&s, "renewed")?,
        figure(&s, "refs")?,
    );
    say!("  {admitted} admissions and renewals, {written} records");
    ensure!(written + 1000 < admitted, "the control shows nothing: {s}");
    let check = out.step("run check")?;
    ensure!(check.rc == 1, "a trace without records is good: {check:?}");
    Ok(())
}
