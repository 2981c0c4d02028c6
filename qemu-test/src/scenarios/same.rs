//! The same programs on a kernel without anything for debugging the tracer, on the
//! usual one, and on one with lockdep: the traces must be the same, record by record.
//!
//! Compared, in order: the page's address, the kind of access, user or kernel,
//! whether the page was written in its stay, whether it was referenced again, why
//! the stay ended; address spaces and threads by the order in which they appear; and
//! how many records and events there are. Not compared, for it is another kernel:
//! times and lengths of stays; page frames; the numbers of threads and address
//! spaces, which whatever ran before has used up; sequence numbers, of which an
//! admission that is given up takes one, as it does when it meets an interrupt.
//!
//! The programs are of one process and thread, for in what order several run is a
//! matter of time, and rseq is off: what the kernel writes for it comes when the task
//! was preempted.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, step};
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::Step;
use serde_json::Value;

/// Options and programs.
const RUNS: &[(&str, &str)] = &[
    ("-n 64", "touch-loop 100 10"),
    ("-n 64", "cross-page"),
    ("-n 16", "touch-loop 40 5 r"),
    ("-n 64 --again", "hot-cold 200 4"),
    ("-n 64 --policy clock", "hot-cold 200 4"),
    ("-n 64", "kernel-copies"),
    ("-n 64 --policy clock", "kernel-copies results"),
    ("-n 64 --again", "file-map"),
    ("-n 64 --policy clock", "signals"),
    ("-n 64", "edge-turn"),
    ("-n 64", "mprotect-storm"),
    ("-n 64", "mremap-move"),
    ("-n 64", "munmap-remap"),
    ("-n 64", "brk-stack"),
    ("-n 512", "touch-loop 600 3"),
];

/// Columns of the CSV that are compared.
const COLUMNS: [&str; 8] = [
    "address", "access", "mode", "dirtied", "again", "why", "mm", "tid",
];

/// The scenarios, which need more kernels than others.
pub fn scenarios() -> Vec<Scenario> {
    let mut list: Vec<_> = ["base", "lockdep"]
        .into_iter()
        .map(|debug| Scenario {
            name: format!("same-{debug}"),
            about: "a kernel with debugging makes the same traces as one without",
            run: Box::new(move |release| same(release, debug)),
        })
        .collect();
    list.push(Scenario {
        name: "same-control".into(),
        about: "traces that differ are found to differ",
        run: Box::new(differs),
    });
    list
}

fn steps() -> Vec<Step> {
    let quiet = |mut s: Step| {
        s.env = vec![("GLIBC_TUNABLES".into(), "glibc.pthread.rseq=0".into())];
        s
    };
    RUNS.iter()
        .enumerate()
        .flat_map(|(i, (options, program))| {
            let run = format!("/bin/activator run {options} -o /tmp/{i}.vmt -- /bin/{program}");
            let csv =
                format!("/bin/postproc export --format csv --keep-freed --output - /tmp/{i}.vmt");
            let words = |line: &str, name: &str| {
                step(&format!("{name}{i}"), &line.split(' ').collect::<Vec<_>>())
            };
            [
                quiet(words(&run, "run")),
                words("/bin/activator status --json", "status"),
                words(&csv, "csv"),
            ]
        })
        .collect()
}

fn boot(kernel: &str, name: &str, cmdline: &str) -> Result<Outcome> {
    Machine {
        name: format!("same-{name}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: false,
        cmdline: cmdline.into(),
        files: vec![],
        steps: steps(),
        deadline_s: 600,
    }
    .run()
}

/// What is compared of a record, in words.
fn records(csv: &str) -> Result<Vec<String>> {
    let mut lines = csv.lines();
    let head: Vec<_> = lines.next().unwrap_or_default().split(',').collect();
    let at = COLUMNS
        .iter()
        .map(|name| {
            head.iter()
                .position(|c| c == name)
                .with_context(|| format!("csv has no column {name}"))
        })
        .collect::<Result<Vec<_>>>()?;
    let mut seen = [Vec::new(), Vec::new()];
    Ok(lines
        .map(|line| {
            let fields: Vec<_> = line.split(',').collect();
            let words = COLUMNS.iter().zip(&at).map(|(name, &at)| {
                let order = match *name {
                    "mm" => &mut seen[0],
                    "tid" => &mut seen[1],
                    _ => return format!("{name} {}", fields[at]),
                };
                let known = order.iter().position(|n| *n == fields[at]);
                let n = known.unwrap_or_else(|| {
                    order.push(fields[at]);
                    order.len() - 1
                });
                format!("{name} {n}")
            });
            words.collect::<Vec<_>>().join(", ")
        })
        .collect())
}

/// Records and events that are the same in all runs.
fn compare(a: &Outcome, b: &Outcome) -> Result<(usize, u64)> {
    let (mut all, mut all_events) = (0, 0);
    for (i, (options, program)) in RUNS.iter().enumerate() {
        let of = |out: &Outcome| -> Result<_> {
            let run = out.step(&format!("run{i}"))?;
            ensure!(run.rc == 0, "{program} {options}: {run:?}");
            let status: Value = serde_json::from_str(&out.step(&format!("status{i}"))?.stdout)?;
            let figure = |name: &str| {
                status[name]
                    .as_u64()
                    .with_context(|| format!("activator status has no {name}: {status}"))
            };
            let records = records(&out.step(&format!("csv{i}"))?.stdout)?;
            ensure!(
                !records.is_empty() && records.len() as u64 == figure("refs")?,
                "{program} {options}: {} records: {status}",
                records.len()
            );
            Ok((records, figure("events")?))
        };
        let ((a, a_events), (b, b_events)) = (of(a)?, of(b)?);
        if let Some(at) = (0..a.len().max(b.len())).find(|&at| a.get(at) != b.get(at)) {
            let line = |of: &[String]| of.get(at).map_or("nothing", |r| r).to_owned();
            anyhow::bail!(
                "{program} {options}: record {at} is the first that differs:\n  {}\n  {}",
                line(&a),
                line(&b)
            );
        }
        ensure!(
            a_events == b_events,
            "{program} {options}: {a_events} events and {b_events}"
        );
        all += a.len();
        all_events += a_events;
    }
    Ok((all, all_events))
}

fn same(release: &str, debug: &str) -> Result<()> {
    let a = boot(release, &format!("{release}-for-{debug}"), "")?;
    let b = boot(debug, debug, "")?;
    let (records, events) = compare(&a, &b)?;
    say!("  all {records} records agree, and {events} events are as many");
    Ok(())
}

/// A protection that is missing in one of them makes another trace of the first
/// program.
fn differs(release: &str) -> Result<()> {
    let a = boot(release, &format!("{release}-for-control"), "")?;
    let b = boot("base", "control", "vmtrace_break=noflush")?;
    let found = compare(&a, &b)
        .err()
        .context("no difference is found")?
        .to_string();
    say!("  {}", found.lines().next().unwrap_or_default());
    ensure!(
        found.contains("is the first that differs"),
        "another failure: {found}"
    );
    Ok(())
}
