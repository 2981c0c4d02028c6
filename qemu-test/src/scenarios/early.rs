//! Traces from boot: vmtrace=early on the kernel command line. All that is known of the
//! processes comes from events, so all of /proc/PID/maps must follow from them.

use super::Scenario;
use super::maps::{Processes, difference, of, parse};
use crate::machine::{Machine, Outcome, Profile, debian, step};
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, bail, ensure};
use kvmtrace_guest::Step;
use serde_json::Value;
use std::path::Path;

/// The scenarios that run each time.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "early".into(),
            about: "events from boot, then references: mappings by the events = /proc/PID/maps",
            run: Box::new(events),
        },
        Scenario {
            name: "early-refs".into(),
            about: "events and references from the first program's first page on",
            run: Box::new(|kernel| references("early-refs", Profile::Fast, kernel)),
        },
        Scenario {
            name: "early-refs-smp".into(),
            about: "the same on two CPUs",
            run: Box::new(|kernel| references("early-refs-smp", Profile::Smp, kernel)),
        },
        Scenario {
            name: "early-small".into(),
            about: "too little memory for a boot: the boot goes on, and losses are counted",
            run: Box::new(small),
        },
        Scenario {
            name: "early-unwanted".into(),
            about: "a trace from boot that nobody takes: each of its records counts as lost",
            run: Box::new(unwanted),
        },
        Scenario {
            name: "early-wrong".into(),
            about: "wrong options for a trace from boot: reported, and the boot goes on",
            run: Box::new(wrong),
        },
    ]
}

/// What takes minutes.
pub fn full() -> Vec<Scenario> {
    vec![Scenario {
        name: "early-debian".into(),
        about: "a boot of Debian with its own init, gcc and sqlite: as early, of every process",
        run: Box::new(whole_debian),
    }]
}

fn tool(name: &str, line: &str) -> Step {
    step(name, &line.split_ascii_whitespace().collect::<Vec<_>>())
}

/// Sleeps until the job ends.
fn idle(name: &str) -> Step {
    Step {
        background: true,
        ..tool(name, "/bin/activator status --watch=3600")
    }
}

fn machine(name: &str, kernel: &str, option: &str, profile: Profile, steps: Vec<Step>) -> Machine {
    Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: format!("vmtrace={option}"),
        files: vec![],
        steps,
        deadline_s: 900,
    }
}

/// Programs that map, move, fork and execute; then who takes the trace; then the same
/// programs, and the maps of all processes.
fn steps() -> Vec<Step> {
    let programs = |when: &str| {
        ["mremap-move", "mprotect-storm", "brk-stack", "fork-storm"]
            .map(|p| tool(&format!("{when} {p}"), &format!("/bin/{p} 3")))
    };
    let mut steps = vec![idle("idle"), tool("early", "/bin/activator status --json")];
    steps.extend(programs("before"));
    steps.push(tool("on", "/bin/activator on --early -o /dev/trace"));
    steps.extend(programs("after"));
    steps.extend([
        idle("idle later"),
        tool("maps", "/bin/all-maps"),
        tool("off", "/bin/activator off --json"),
    ]);
    steps
}

fn all_end_well(out: &Outcome) -> Result<()> {
    match out.results.iter().find(|r| r.rc != 0) {
        Some(r) => bail!("{}: {r:?}", r.name),
        None => Ok(()),
    }
}

fn status(out: &Outcome, step: &str) -> Result<Value> {
    let text = &out.step(step)?.stdout;
    serde_json::from_str(text).with_context(|| format!("{step} is no JSON: {text}"))
}

fn checked(out: &Outcome) -> Result<()> {
    let (rc, _) = postproc::json(&["check"], &out.trace())?;
    ensure!(rc == 0, "not good:\n{}", postproc::explain(&out.trace()));
    Ok(())
}

fn events(kernel: &str) -> Result<()> {
    let out = machine("early", kernel, "early", Profile::Smp, steps()).run()?;
    all_end_well(&out)?;
    let early = status(&out, "early")?;
    ensure!(
        early["state"] == 3 && early["bytes"] == 0 && early["admissions"] == 0,
        "before anybody took it: {early}"
    );
    checked(&out)?;
    let trace = out.trace();
    let began = postproc::events(&["--type", "refs_begin"], &trace)?;
    let [began] = began.as_slice() else {
        bail!("references began {} times", began.len());
    };
    let (_, info) = postproc::json(&["info"], &trace)?;
    ensure!(
        info["reference_records"].as_u64() > Some(1000) && info["refs_begin_ns"].as_u64() > Some(0),
        "too few references, or at the wrong time: {info}"
    );
    let csv = postproc::csv(&trace)?;
    let first = csv.lines().nth(1).context("no reference")?;
    say!("  references began after event {}: {first}", began["seq"]);
    first_program(&trace)?;
    compare(&trace, &out.step("maps")?.stdout, 4)
}

fn references(name: &str, profile: Profile, kernel: &str) -> Result<()> {
    let option = "early,refs,evms=64,size=48M";
    let out = machine(name, kernel, option, profile, steps()).run()?;
    all_end_well(&out)?;
    let early = status(&out, "early")?;
    ensure!(
        early["state"] == 3 && early["evms_size"] == 64 && early["admissions"].as_u64() > Some(100),
        "before anybody took it: {early}"
    );
    checked(&out)?;
    let trace = out.trace();
    ensure!(
        postproc::events(&["--type", "refs_begin"], &trace)?.is_empty(),
        "references began late"
    );
    let first = first_program(&trace)?;
    // Its first instruction is a reference, before it could open or write anything.
    let (_, pages) = postproc::json(&["info"], &trace)?;
    let due = status(&out, "off")?["admissions"].clone();
    ensure!(
        pages["reference_records"].as_u64() >= due.as_u64(),
        "{pages} references of {due} admissions"
    );
    let csv = postproc::csv(&trace)?;
    let one = csv.lines().nth(1).context("no reference")?;
    say!("  the first program is process 1, event {first}; the first reference is {one}");
    compare(&trace, &out.step("maps")?.stdout, 4)
}

/// The event of the first program's start, which nothing but its own mappings
/// came before.
pub(super) fn first_program(trace: &Path) -> Result<u64> {
    let all = postproc::events(&[], trace)?;
    let at = all.iter().position(|e| e["event"] == "exec");
    let at = at.context("no program was executed")?;
    let exec = &all[at];
    ensure!(
        exec["pid"] == 1 && exec["name"] == "init" && all[at - 1]["event"] == "task",
        "the first program is {exec}, after {}",
        all[at - 1]
    );
    if let Some(e) = all[..at].iter().find(|e| {
        let kind = e["event"].as_str().unwrap_or("");
        !matches!(
            kind,
            "snap_begin" | "snap_end" | "map" | "unmap" | "move" | "protect" | "task" | "truncate"
        )
    }) {
        bail!("before the first program: {e}");
    }
    exec["seq"].as_u64().context("no number")
}

/// Compares what `all-maps` wrote with what the events say, for every process of either.
fn compare(trace: &Path, text: &str, least: usize) -> Result<()> {
    let moments = parse(text)?;
    let (k, processes) = moments.first_key_value().context("no moment")?;
    let at = format!("all-maps.moment-{k}");
    let (rc, told) = postproc::json(&["maps", "--at-open", &at], trace)?;
    ensure!(rc == 0, "postproc maps says that events contradict others");
    let ranges = match same(processes, &told)? {
        Some(what) => bail!("{what}"),
        None => processes
            .values()
            .map(|(_, maps)| maps.len())
            .sum::<usize>(),
    };
    let names: Vec<_> = processes.values().map(|(comm, _)| comm.as_str()).collect();
    say!(
        "  {} processes with {ranges} ranges: {names:?}",
        processes.len()
    );
    ensure!(processes.len() >= least, "hardly any process");

    // The control: an event left out of those that made what is there at that moment. The
    // last ones of a kind are tried, for what they did may have been done twice.
    let end = told["seq"].as_u64().context("no number")?;
    let mut noticed = Vec::new();
    for kind in ["map", "unmap", "protect", "exec"] {
        let events = postproc::events(&["--type", kind], trace)?;
        let last = events
            .iter()
            .rev()
            .filter(|e| e["seq"].as_u64() < Some(end) && is_decisive(e, &told));
        for event in last.take(5) {
            let seq = event["seq"].to_string();
            let less = ["maps", "--at-open", &at, "--without", &seq];
            let (_, other) = postproc::json(&less, trace)?;
            if let Some(what) = same(processes, &other)? {
                noticed.push(format!("{kind}: {what}"));
                break;
            }
        }
    }
    for what in &noticed {
        say!("  without one {what}");
    }
    ensure!(noticed.len() >= 3, "the control has noticed {noticed:?}");
    Ok(())
}

/// Whether `event` is about what lives at that moment.
fn is_decisive(event: &Value, told: &Value) -> bool {
    let all = told["processes"].as_array().into_iter().flatten();
    let Some(process) = all.into_iter().find(|p| p["mm"] == event["mm"]) else {
        return false;
    };
    let mut maps = process["maps"].as_array().into_iter().flatten();
    let (start, end) = (event["start"].as_u64(), event["end"].as_u64());
    match event["event"].as_str() {
        Some("exec") => true,
        Some("unmap") => maps.all(|r| r["end"].as_u64() <= start || r["start"].as_u64() >= end),
        _ => maps.any(|r| r["start"].as_u64() <= start && r["end"].as_u64() >= end),
    }
}

/// What differs, if anything does.
fn same(processes: &Processes, told: &Value) -> Result<Option<String>> {
    let all = told["processes"].as_array().context("no processes")?;
    let mut pids: Vec<_> = all.iter().filter_map(|p| p["pid"].as_u64()).collect();
    pids.sort_unstable();
    let real: Vec<_> = processes.keys().copied().collect();
    if pids != real {
        return Ok(Some(format!(
            "the processes are {real:?}, by events {pids:?}"
        )));
    }
    for (pid, (comm, maps)) in processes {
        if let Some((a, b)) = difference(maps, &of(told, *pid)) {
            return Ok(Some(format!(
                "{comm} {pid}: /proc/PID/maps has {a:?}, events say {b:?}"
            )));
        }
    }
    Ok(None)
}

fn small(kernel: &str) -> Result<()> {
    let mut steps = steps();
    steps.extend([
        tool("next", "/bin/activator run -o /tmp/next -- /bin/fork-cow"),
        tool("check next", "/bin/postproc check /tmp/next"),
    ]);
    let option = "early,refs,evms=64,size=64k";
    let out = machine("early-small", kernel, option, Profile::Fast, steps).run()?;
    for r in &out.results {
        let due = i32::from(matches!(r.name.as_str(), "early" | "on" | "off"));
        ensure!(r.rc == due, "{}: not {due}: {r:?}", r.name);
    }
    let lost = |v: &Value| v["lost_full"].as_u64().unwrap_or(0);
    let (early, off) = (status(&out, "early")?, status(&out, "off")?);
    ensure!(
        lost(&early) > 100 && lost(&off) >= lost(&early) && off["lost_io"] == 0,
        "{early} and {off}"
    );
    // Nothing was lost any more once somebody drained: what came after is all there.
    let (rc, check) = postproc::json(&["check"], &out.trace())?;
    let errors = |rule: &str| {
        let all = check["rules"].as_array().into_iter().flatten();
        all.filter(|r| r["id"] == rule)
            .filter_map(|r| r["errors"].as_u64())
            .sum::<u64>()
    };
    ensure!(
        rc == 1 && errors("loss") > 0 && errors("conservation") == 0,
        "check: {rc}, {check}"
    );
    let admitted = off["admissions"].as_u64().unwrap_or(0) + off["renewed"].as_u64().unwrap_or(0);
    let kept = off["refs"].as_u64().unwrap_or(0);
    ensure!(
        kept < admitted && admitted <= kept + lost(&off),
        "{admitted} admissions, {kept} references and {} lost",
        lost(&off)
    );
    say!(
        "  {} records lost of a boot, {kept} references kept",
        lost(&off)
    );
    Ok(())
}

fn unwanted(kernel: &str) -> Result<()> {
    for option in [
        "early,refs,evms=512,size=64k",
        "early,refs,evms=512,size=16M",
    ] {
        let steps = vec![
            idle("idle"),
            tool("fork", "/bin/fork-storm 60"),
            tool("off", "/bin/activator off --json"),
        ];
        let name = format!("early-unwanted-{}", option.len());
        let out = machine(&name, kernel, option, Profile::Fast, steps).run()?;
        let off = status(&out, "off")?;
        let sum = |keys: &[&str]| keys.iter().filter_map(|k| off[*k].as_u64()).sum::<u64>();
        ensure!(sum(&["refs", "events"]) == 0, "{off}");
        // Each number is that of a record, or of an admission that was given up.
        let lost = sum(&["lost_full", "lost_atomic", "lost_io"]);
        let numbers = sum(&["last_seq"]);
        ensure!(
            lost > 512 && numbers == lost + sum(&["aborted"]),
            "{numbers} numbers, {lost} lost: {off}"
        );
        say!("  {option}: {lost} records lost");
    }
    Ok(())
}

fn wrong(kernel: &str) -> Result<()> {
    let steps = |more: &[&str]| -> Vec<Step> {
        more.iter()
            .enumerate()
            .map(|(i, line)| tool(&format!("{i}"), line))
            .collect()
    };
    // What is not understood; what is more than a quarter of the memory; and a trace that
    // nobody wants: dropped, and another one can begin.
    let take = "/bin/activator on --early -o /dev/trace";
    let runs: [(&str, &[&str], &[i32], &str); 3] = [
        (
            "early,sizes=1M",
            &[take],
            &[2],
            "vmtrace: sizes on the command line is not understood",
        ),
        ("early,size=100G", &[take], &[2], "no trace from boot (-12)"),
        (
            "early,size=1M,classes=file+shm",
            &[
                "/bin/activator off",
                take,
                "/bin/activator run -o /dev/trace -- /bin/fork-cow",
                "/bin/postproc check /dev/trace",
            ],
            &[1, 2, 0, 0],
            "tracing from boot into 1048576 bytes",
        ),
    ];
    for (option, lines, codes, says) in runs {
        let name = format!("early-wrong-{}", lines.len() + option.len());
        let out = machine(&name, kernel, option, Profile::Fast, steps(lines)).run()?;
        let console = std::fs::read_to_string(out.dir.join("console.log"))?;
        ensure!(console.contains(says), "{option}: the console lacks {says}");
        let got: Vec<_> = out.results.iter().map(|r| r.rc).collect();
        ensure!(got == codes, "{option}: {:?}", out.results);
    }
    Ok(())
}

/// Compiles, fills a data base, leaves a server behind.
const WORK: &str = "set -e; cd /tmp; \
    echo 'int main(void) { return 0; }' >m.c; gcc -O2 m.c -o m; ./m; \
    echo 'create table t(a, b); with recursive c(i) as (select 1 union all select i + 1 \
    from c where i < 5000) insert into t select i, hex(i) from c; select count(*) from t;' | \
    sqlite3 t.db; \
    redis-server --port 0 --unixsocket /tmp/r.sock --save '' --daemonize yes; \
    until redis-cli -s /tmp/r.sock ping; do sleep 0.1; done";

fn whole_debian(kernel: &str) -> Result<()> {
    let bin = |name: &str, line: &str| debian(name, &format!("/opt/kvmtrace/bin/{line}"));
    let mut m = machine(
        "early-debian",
        kernel,
        "early",
        Profile::Smp,
        vec![
            Step {
                chroot: true,
                ..step("init", &["/sbin/init"])
            },
            bin("early", "activator status --json"),
            debian("work", WORK),
            bin("on", "activator on --early -o /dev/trace"),
            debian("work again", "cd /tmp; gcc -O1 m.c -o n && ./n"),
            bin("maps", "all-maps"),
            bin("off", "activator off --json"),
            debian("services", "ps -e -o pid,comm"),
        ],
    );
    m.image = true;
    m.deadline_s = 1800;
    let out = m.run()?;
    all_end_well(&out)?;
    say!("  {}", out.step("services")?.stdout.replace('\n', ";"));
    checked(&out)?;
    compare(&out.trace(), &out.step("maps")?.stdout, 6)
}
