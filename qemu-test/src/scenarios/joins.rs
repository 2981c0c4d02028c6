//! Traces of a control group, and of processes by their names: which processes they have.

use super::Scenario;
use super::waits::{all_said, sh};
use crate::machine::{Machine, Outcome, Profile, debian, step};
use crate::postproc;
use ::postproc::trace::{Body, Merge, Step, Trace};
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::StepResult;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "scope-cgroup".into(),
            about: "a trace of a control group has all references of whoever is in it or joins it, \
                    and none of others",
            run: Box::new(|kernel| exactly(kernel, "cgroup")),
        },
        Scenario {
            name: "scope-comm".into(),
            about: "a trace of processes by their names has all references of whoever has or gets \
                    such a name, and none of others",
            run: Box::new(|kernel| exactly(kernel, "comm")),
        },
        Scenario {
            name: "scope-joins".into(),
            about: "processes join and leave in great numbers, also while windows begin: no \
                    violation, the same output",
            run: Box::new(storm),
        },
    ]
}

fn boot(kernel: &str, name: &str, steps: Vec<kvmtrace_guest::Step>) -> Result<Outcome> {
    Machine {
        name: format!("scope-{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 600,
    }
    .run()
}

/// Pages that a role touches in a turn.
const PAGES: usize = 200;

fn exactly(kernel: &str, what: &str) -> Result<()> {
    let file = format!("/tmp/{what}.vmt");
    let out = boot(
        kernel,
        what,
        vec![
            step("joins", &["/bin/joins", what, &file]),
            debian("status", "activator status"),
            step("off", &["/bin/activator", "off"]),
            debian("keep", &format!("keep 0 {file}")),
        ],
    )?;
    for name in ["joins", "status", "off", "keep"] {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{r:?}");
    }
    let (name, text) = match what {
        "cgroup" => ("control group /in", "control group /in"),
        _ => ("processes named al[op]*", "processes named al[op]*"),
    };
    let status = &out.step("status")?.stdout;
    ensure!(status.contains(name), "{status}");
    let path = out.kept(0, &format!("{what}.vmt"))?;
    let (rc, _) = postproc::json(&["check", "--frames"], &path)?;
    ensure!(rc == 0, "{}", postproc::explain(&path));
    ensure!(Trace::open(&path)?.header().scope_text() == text);
    turns(out.step("joins")?, &path)
}

/// What the trace has.
#[derive(Default)]
struct Had {
    /// The time and the address of each reference.
    refs: Vec<(u64, u64)>,
    /// All processes.
    processes: BTreeSet<u32>,
    /// By process, files that were open before the process was traced.
    files: BTreeMap<u32, u32>,
}

fn read(path: &Path) -> Result<Had> {
    let trace = Trace::open(path)?;
    let mut merge = Merge::new(&trace);
    let (mut had, mut refs) = (Had::default(), Vec::new());
    loop {
        let step = merge.fill(&mut refs, 4096)?;
        let new = refs.drain(..).map(|r| (r.time_ns, r.address()));
        had.refs.extend(new);
        match step {
            Step::Full => {}
            Step::Event(e) => match e.body {
                Body::Task { tgid, .. } => drop(had.processes.insert(tgid.0)),
                Body::Fork { child_tgid, .. } => drop(had.processes.insert(child_tgid.0)),
                Body::Open { .. } if e.is_snapshot() => {
                    *had.files.entry(e.tgid.0).or_default() += 1;
                }
                _ => {}
            },
            Step::End => return Ok(had),
        }
    }
}

/// Each turn that is to be traced has a record of each of its pages, and no other turn has one.
fn turns(r: &StepResult, path: &Path) -> Result<()> {
    let had = read(path)?;
    let (mut traced, mut others) = (0, 0);
    for line in r.stdout.lines() {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["turn", role, expected, begin, end] => {
                let place = role.parse::<u64>()? + 1;
                let times = begin.parse::<u64>()?..=end.parse::<u64>()?;
                let mine = |r: &&(u64, u64)| r.1 >> 40 == place && times.contains(&r.0);
                let pages: BTreeSet<_> = had.refs.iter().filter(mine).map(|r| r.1).collect();
                let due = if expected == "1" { PAGES } else { 0 };
                ensure!(
                    pages.len() == due,
                    "{line}: {} pages in the trace",
                    pages.len()
                );
                *(if due > 0 { &mut traced } else { &mut others }) += 1;
            }
            ["never", pid] => ensure!(
                !had.processes.contains(&pid.parse()?),
                "{line}: the trace has this process"
            ),
            _ => {}
        }
    }
    ensure!(
        traced >= 9 && others >= 5,
        "{traced} and {others} turns: {r:?}"
    );
    Ok(())
}

/// Programs that enter and leave the group while a trace of it is on.
const STORM: &str = r#"
mkdir -p /tmp/cgroup
mount -t cgroup2 none /tmp/cgroup
mkdir /tmp/cgroup/in /tmp/cgroup/out
plain=$(fork-storm 6)
move() { echo $1 >/tmp/cgroup/$2/cgroup.procs 2>/dev/null || true; }
storm() {
	for turn in 1 2 3 4 5 6 7 8; do
		fork-storm 6 >/tmp/out.$1.$turn & pid=$!
		for group in in out in out; do
			move $pid $group
			for child in $(cat /proc/$pid/task/*/children 2>/dev/null); do
				move $child in
			done
		done
		wait $pid || echo "failed $1 $turn"
		[ "$(cat /tmp/out.$1.$turn)" = "$plain" ] || echo "differs $1 $turn"
	done
}
try() {
	name=$1
	shift
	activator on --cgroup in -n 64 -o /tmp/$name.vmt "$@" >/dev/null
	storm $name-a & a=$!
	storm $name-b & b=$!
	wait $a $b
	cat /sys/kernel/debug/vmtrace/audit >/tmp/audit
	activator off >/dev/null || echo "off $name: $?"
	postproc check /tmp/$name.vmt >/tmp/check || { cat /tmp/check; exit 1; }
	echo "$name good, $(postproc info --json /tmp/$name.vmt | tr -d ' ' | grep -o '"reference_records":[0-9]*' | head -1 | grep -c '[1-9][0-9][0-9]') with references"
}
mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug
try whole
try windows --trace 15ms --skip 5ms
try sets --set-per process
"#;

fn storm(kernel: &str) -> Result<()> {
    let out = boot(kernel, "joins", vec![sh("storm", STORM)])?;
    let r = out.step("storm")?;
    let lines: Vec<_> = r.stdout.lines().collect();
    all_said(
        r,
        &[
            "whole good, 1 with references",
            "windows good, 1 with references",
            "sets good, 1 with references",
        ],
    )?;
    lines
        .iter()
        .all(|line| {
            !line.starts_with("differs") && !line.starts_with("failed") && !line.starts_with("off")
        })
        .then_some(())
        .with_context(|| format!("{r:?}"))
}
