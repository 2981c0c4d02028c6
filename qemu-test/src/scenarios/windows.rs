//! Windows of a trace: each begins and ends as planned, is a trace of its own, and has all
//! of the processes that are to be traced, including those that existed before.

use super::Scenario;
use super::maps::{Range, difference, of, parse};
use crate::machine::{Machine, Outcome, Profile, step};
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, bail, ensure};
use kvmtrace_guest::Step;
use serde_json::Value;
use std::path::PathBuf;

/// ns
const MS: u64 = 1_000_000;
/// ns of a tick in /proc/PID/stat.
const TICK: u64 = 10 * MS;
/// By how much more a time can be than planned: without a timer of its own, which this
/// machine's CPU has not, two ticks of the kernel's, and what a window's end takes, which
/// is more in a kernel that checks locks or memory.
fn late(kernel: &str) -> u64 {
    match kernel {
        "base" => 10 * MS,
        _ => 40 * MS,
    }
}

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let exact = |name: &'static str, about, run: fn(&str, Profile, &str) -> Result<()>| Scenario {
        name: name.into(),
        about,
        run: Box::new(move |kernel| run(name, Profile::Exact, kernel)),
    };
    let smp = |name: &'static str, about, run: fn(&str, Profile, &str) -> Result<()>| Scenario {
        name: name.into(),
        about,
        run: Box::new(move |kernel| run(name, Profile::Smp, kernel)),
    };
    vec![
        exact(
            "windows",
            "windows by time and by references: as long as planned, apart as planned",
            lengths,
        ),
        exact(
            "windows-tree",
            "orphans, what is forked between windows, ids used again: in each window, whole",
            tree,
        ),
        exact(
            "windows-crowded",
            "windows end in time, however many tasks want the CPU",
            crowded,
        ),
        smp(
            "windows-smp",
            "many short windows of threads on two CPUs: each is good by itself",
            many,
        ),
        smp(
            "windows-all",
            "windows of the whole system, attached to what runs; the status shows their progress",
            whole,
        ),
    ]
}

/// A run under the activator: name, options, command.
type Run = (&'static str, &'static str, &'static str);

fn boot(name: &str, profile: Profile, kernel: &str, runs: &[Run]) -> Result<Outcome> {
    let mut steps = Vec::new();
    for (slot, (run, options, command)) in runs.iter().enumerate() {
        let file = format!("/tmp/{run}.vmt");
        let line = format!("/bin/activator run --json {options} -o {file} -- {command}");
        steps.push(step(
            run,
            &line.split_ascii_whitespace().collect::<Vec<_>>(),
        ));
        let keep = format!("keep {run}");
        steps.push(step(&keep, &["/bin/keep", &slot.to_string(), &file]));
    }
    machine(name, profile, kernel, steps).run()
}

fn machine(name: &str, profile: Profile, kernel: &str, steps: Vec<Step>) -> Machine {
    Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 600,
    }
}

fn kept(out: &Outcome, runs: &[Run], name: &str) -> Result<PathBuf> {
    let slot = runs.iter().position(|r| r.0 == name);
    for what in [name.to_string(), format!("keep {name}")] {
        let r = out.step(&what)?;
        ensure!(r.rc == 0, "{what}: {r:?}");
    }
    out.kept(slot.context("no such run")?, &format!("{name}.vmt"))
}

/// The kernel's account of a window.
struct Window {
    start: u64,
    stop: u64,
    refs: u64,
    why: String,
}

/// Checks a trace as a whole and window by window; gives the accounts. With several CPUs, a
/// process that shares its parent's memory, as between vfork and exec, may refer to it
/// before a window's snapshot comes to it.
fn good(trace: &std::path::Path, profile: Profile) -> Result<Vec<Window>> {
    for way in [
        &["check", "--frames"][..],
        &["check", "--frames", "--window", "0"],
    ] {
        let (rc, _) = postproc::json(way, trace)?;
        ensure!(rc == 0, "{way:?} finds:\n{}", postproc::explain(trace));
    }
    let (_, info) = postproc::json(&["info"], trace)?;
    let windows = info["windows"].as_array().context("no windows")?;
    let (mut refs, mut events) = (0, 0);
    let mut list = Vec::new();
    for (k, w) in windows.iter().enumerate() {
        let number = k.to_string();
        let (rc, checked) = postproc::json(&["check", "--frames", "--window", &number], trace)?;
        ensure!(rc == 0 && checked["window"] == k, "window {k}: {checked}");
        let n = |name: &str| w[name].as_u64().context("not in the account");
        ensure!(
            checked["reference_records"] == w["refs"] && checked["events"] == w["events"],
            "window {k}: {checked}, the kernel says {w}"
        );
        // No event before its window describes what a reference needs.
        let rules = checked["rules"].as_array().context("no rules")?;
        for rule in rules.iter().filter(|r| r["id"] == "lifecycle") {
            let told = rule["notes"] == 0 || profile == Profile::Smp;
            ensure!(told && rule["errors"] == 0, "window {k}: {rule}");
        }
        (refs, events) = (refs + n("refs")?, events + n("events")?);
        list.push(Window {
            start: n("start_time_ns")?,
            stop: n("stop_time_ns")?,
            refs: n("refs")?,
            why: w["why"].as_str().unwrap_or_default().into(),
        });
    }
    ensure!(
        info["reference_records"] == refs && info["events"] == events,
        "{refs} references and {events} events in windows: {info}"
    );
    Ok(list)
}

fn lengths(name: &str, profile: Profile, kernel: &str) -> Result<()> {
    // 200 pages again and again, for some 60 ms without faults. With N = 64 each touch in a
    // window is a reference.
    let program = "/bin/touch-loop 200 100000";
    let runs: &[Run] = &[
        (
            "references",
            "-n 64 --trace 300 --skip 5ms --repeat 4 --warmup 2ms",
            program,
        ),
        (
            "time",
            "-n 64 --trace 20ms --skip 10ms --warmup 5ms",
            program,
        ),
        // All of 200 pages are members: for want of faults only time ends a window.
        (
            "both",
            "-n 512 --trace 8ms,1M --skip 4ms --repeat 2",
            program,
        ),
        ("none", "-n 64 --trace 5ms --warmup 1min", program),
    ];
    let out = boot(name, profile, kernel, runs)?;
    let late = late(kernel);
    let output = &out.step("none")?.stdout;
    for (run, ..) in runs {
        let r = out.step(run)?;
        ensure!(r.rc == 0, "{run}: {r:?}");
        ensure!(r.stdout == *output, "{run} wrote {:?}", r.stdout);
    }
    let span = |run: &str| {
        let r = out.step(run)?;
        let json = r.stderr.lines().rev().find(|l| l.starts_with('{'));
        let json: Value = serde_json::from_str(json.context("no status")?)?;
        Ok::<_, anyhow::Error>(json)
    };

    let windows = good(&kept(&out, runs, "references")?, profile)?;
    let all: Vec<_> = windows.iter().map(|w| (w.refs, w.why.as_str())).collect();
    ensure!(all == [(300, "references"); 4], "{all:?}");
    for pair in windows.windows(2) {
        let gap = pair[1].start - pair[0].stop;
        ensure!(
            (5 * MS..5 * MS + late).contains(&gap),
            "{gap} ns between two"
        );
    }
    let status = span("references")?;
    let began = windows[0].start - status["start_time"].as_u64().context("no start")?;
    ensure!(
        (2 * MS..2 * MS + late).contains(&began),
        "the first began after {began} ns"
    );
    ensure!(
        status["windows_begun"] == 4 && status["windows_ended"] == 4 && status["refs"] == 1200,
        "{status}"
    );
    say!("  4 windows of 300 references; the first after {began} ns");

    let windows = good(&kept(&out, runs, "time")?, profile)?;
    let (last, others) = windows.split_last().context("no window")?;
    ensure!(others.len() >= 2, "{} windows", windows.len());
    for w in others {
        let length = w.stop - w.start;
        ensure!(
            w.why == "time" && (20 * MS..20 * MS + late).contains(&length) && w.refs > 1000,
            "{length} ns, {} references, ended by {}",
            w.refs,
            w.why
        );
    }
    ensure!(
        last.why == "stop" || last.stop - last.start < 20 * MS + late,
        "the last one ended by {}",
        last.why
    );
    say!("  {} windows of 20 ms", windows.len());

    let windows = good(&kept(&out, runs, "both")?, profile)?;
    ensure!(windows.len() == 2, "{} windows", windows.len());
    for w in &windows {
        let length = w.stop - w.start;
        ensure!(
            w.why == "time" && (8 * MS..8 * MS + late).contains(&length) && w.refs >= 200,
            "{length} ns, {} references",
            w.refs
        );
    }

    let trace = kept(&out, runs, "none")?;
    let (_, info) = postproc::json(&["info"], &trace)?;
    ensure!(
        info["windows"].as_array().is_some_and(Vec::is_empty) && info["events"] == 0,
        "{info}"
    );
    Ok(())
}

fn crowded(name: &str, profile: Profile, kernel: &str) -> Result<()> {
    let runs: &[Run] = &[(
        "crowd",
        "-n 64 --trace 20ms --skip 20ms",
        "/bin/crowd 6 6 40 100000",
    )];
    let out = boot(name, profile, kernel, runs)?;
    let trace = kept(&out, runs, "crowd")?;
    let mut windows = good(&trace, profile)?;
    // The program may end within the last one.
    windows.pop();
    ensure!(windows.len() >= 5, "{} windows", windows.len());
    let mut longest = 0;
    for (k, w) in windows.iter().enumerate() {
        let args = ["--window", &k.to_string(), "--type", "snap_begin,snap_end"];
        let events = postproc::events(&args, &trace)?;
        let times: Vec<_> = events.iter().filter_map(|e| e["ns"].as_u64()).collect();
        let [begin, end] = times[..] else {
            bail!("window {k}: {events:?}");
        };
        // From the moment on at which all that is to be traced is described.
        longest = longest.max((w.stop - w.start) - (end - begin));
    }
    say!(
        "  {} windows of 20 ms, of which the longest was whole for {:.1} ms",
        windows.len(),
        longest as f64 / MS as f64
    );
    // With a thread that waits for its turn like any other task, it was 40 to 48 ms.
    ensure!(
        longest < 25 * MS + late(kernel),
        "{longest} ns in a window of 20 ms"
    );
    Ok(())
}

/// A process by its own word.
struct Life {
    pid: u64,
    ticks: u64,
    from: u64,
    to: u64,
    maps: Vec<Range>,
}

fn lives(text: &str) -> Result<Vec<Life>> {
    let mut list: Vec<Life> = Vec::new();
    let mut maps = String::new();
    for line in text.lines().filter(|l| !l.starts_with("zero")) {
        let Some(life) = line.strip_prefix("life ") else {
            maps += line;
            maps.push('\n');
            continue;
        };
        let n: Vec<u64> = life.split(' ').filter_map(|w| w.parse().ok()).collect();
        let [pid, ticks, from, to] = n[..] else {
            bail!("not a life: {line}");
        };
        let moments = parse(&std::mem::take(&mut maps))?;
        let own = moments.get(&0).and_then(|m| m.get(&pid));
        list.push(Life {
            pid,
            ticks,
            from,
            to,
            maps: own.context("a life without maps")?.1.clone(),
        });
    }
    Ok(list)
}

fn tree(name: &str, profile: Profile, kernel: &str) -> Result<()> {
    let runs: &[Run] = &[(
        "heirs",
        "-n 64 --warmup 100ms --trace 100ms --skip 100ms --repeat 3",
        "/bin/heirs",
    )];
    let out = boot(name, profile, kernel, runs)?;
    let trace = kept(&out, runs, "heirs")?;
    let windows = good(&trace, profile)?;
    ensure!(windows.len() == 3, "{} windows", windows.len());
    let lives = lives(&out.step("heirs")?.stdout)?;
    // The first, the heir, two of its own, and three with one id.
    ensure!(
        lives.len() == 7,
        "{} processes reported themselves",
        lives.len()
    );
    let (mut whole, mut parts) = (0, 0);
    for (k, w) in windows.iter().enumerate() {
        let number = k.to_string();
        let args = ["--window", &number, "--type", "task,fork,exit"];
        let events = postproc::events(&args, &trace)?;
        let (rc, told) = postproc::json(&["maps", "--window", &number], &trace)?;
        ensure!(rc == 0, "window {k}: events contradict others");
        let csv = postproc::csv_of(&trace, &["--window", &number])?;
        for life in lives.iter().filter(|l| l.from < w.stop && l.to > w.start) {
            // Told of by the snapshot or by its parent's fork, with the start that /proc has.
            let start = events.iter().find_map(|e| {
                let of_task = e["task_tid"] == life.pid && e["event"] == "task";
                let of_fork = e["child_tid"] == life.pid && e["event"] == "fork";
                let start = match (of_task, of_fork) {
                    (true, _) => &e["task_start_ns"],
                    (_, true) => &e["child_start_ns"],
                    _ => return None,
                };
                start.as_u64()
            });
            let start = start.with_context(|| format!("window {k} has no process {}", life.pid))?;
            ensure!(
                start / TICK == life.ticks,
                "window {k}: {} began at {start} ns, /proc says {} ticks",
                life.pid,
                life.ticks
            );
            let refs = csv
                .lines()
                .filter(|l| l.split(',').any(|w| w == life.pid.to_string()));
            ensure!(
                refs.count() > 40,
                "window {k}: hardly a reference by {}",
                life.pid
            );
            if life.to <= w.stop {
                parts += 1;
                continue;
            }
            whole += 1;
            if let Some((a, b)) = difference(&life.maps, &of(&told, life.pid)) {
                bail!(
                    "window {k}, {}: /proc/PID/maps has {a:?}, events say {b:?}",
                    life.pid
                );
            }
        }
    }
    // The first and the heir in all three, and two of its own in the second and the third;
    // in each one that had the same id. Where windows' ends take longer, the last ones come
    // later than those processes expect.
    let as_planned = match kernel {
        "base" => (whole, parts) == (10, 3),
        _ => whole >= 6 && whole + parts >= 11,
    };
    ensure!(
        as_planned,
        "{whole} processes at windows' ends, {parts} that ended in one"
    );
    // Who is in three windows is one process, and three with one id are three.
    let each = ["simulate", "--limit", "process=1000"];
    let (_, report) = postproc::json(&each, &trace)?;
    let memories = report["limits"].as_array().context("no memories")?.len();
    ensure!(memories == lives.len(), "{memories} processes: {report}");
    say!("  {whole} address spaces as in /proc/PID/maps, {parts} that ended within a window");
    Ok(())
}

fn whole(name: &str, profile: Profile, kernel: &str) -> Result<()> {
    let tool = |name: &str, line: &str| step(name, &line.split(' ').collect::<Vec<_>>());
    let idle = Step {
        background: true,
        ..tool("idle", "/bin/activator status --watch=3600")
    };
    let on = "/bin/activator on --all -n 64 --trace 30ms --skip 10ms --repeat 3 -o /tmp/all.vmt";
    let steps = vec![
        idle,
        tool("on", on),
        tool("busy", "/bin/fork-storm 200"),
        tool("status", "/bin/activator status"),
        tool("off", "/bin/activator off --json"),
        tool("keep", "/bin/keep 0 /tmp/all.vmt"),
    ];
    let out = machine(name, profile, kernel, steps).run()?;
    for r in out.results.iter().filter(|r| r.name != "idle") {
        ensure!(r.rc == 0, "{}: {r:?}", r.name);
    }
    let said = &out.step("status")?.stdout;
    ensure!(
        said.contains("3 of 3; all have ended; `activator off` ends the trace"),
        "{said}"
    );
    let trace = out.kept(0, "all.vmt")?;
    let windows = good(&trace, profile)?;
    let refs: Vec<_> = windows.iter().map(|w| w.refs).collect();
    ensure!(
        refs.len() == 3 && refs.iter().all(|n| *n > 0) && refs.iter().sum::<u64>() > 100,
        "references by window: {refs:?}"
    );
    // The job's first process and who waits are in each, though they did nothing.
    for number in ["0", "1", "2"] {
        let (_, told) = postproc::json(&["maps", "--window", number], &trace)?;
        ensure!(
            !of(&told, 1).is_empty(),
            "window {number} has no process 1: {told}"
        );
    }
    say!("  references by window: {refs:?}");
    Ok(())
}

fn many(name: &str, profile: Profile, kernel: &str) -> Result<()> {
    let runs: &[Run] = &[
        (
            "threads",
            "-n 64 --trace 2000 --skip 1ms",
            "/bin/threads 200000",
        ),
        (
            "forks",
            "-n 64 --trace 5ms --skip 2ms",
            "/bin/fork-storm 60",
        ),
        (
            "resize",
            "-n 64 --max 1024 --trace 5ms --skip 2ms",
            "/bin/resize-storm 6 700 100",
        ),
    ];
    let out = boot(name, profile, kernel, runs)?;
    for (run, ..) in runs {
        let windows = good(&kept(&out, runs, run)?, profile)?;
        let refs: u64 = windows.iter().map(|w| w.refs).sum();
        ensure!(
            windows.len() >= 3 && refs > 1000,
            "{run}: {} windows, {refs} references",
            windows.len()
        );
        say!("  {run}: {} windows, {refs} references", windows.len());
    }
    // A window that begins with another N than the header's has an event about N first.
    let trace = kept(&out, runs, "resize")?;
    let last = good(&trace, profile)?.len() - 1;
    let events = postproc::events(&["--window", &last.to_string()], &trace)?;
    let first = events.first().context("no event")?;
    ensure!(
        first["event"] == "resize" && first["from"] == 64 && first["to"] != 64,
        "the last window begins with {first}"
    );
    Ok(())
}
