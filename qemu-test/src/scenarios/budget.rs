//! `--slowdown`: programs take as much longer as they may, by what they take untraced.
//!
//! Under icount, a CPU executes an instruction in a nanosecond, so the time for which a program has
//! the guest's only CPU is exact. Untraced, that is the time for which the CPU is busy. Traced, it is
//! `ran` of the status; the CPU is also busy with the activator and with kvmtraced.

use super::Scenario;
use super::workload::{busy, uptime};
use crate::machine::{Machine, Profile, debian};
use crate::runner::say;
use crate::{loads, postproc};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A program, how much it has to do so that it runs for some seconds, and how often it is run in a
/// trace.
pub(super) const PROGRAMS: [(&str, u32, u32); 4] = [
    ("sqlite3", 40_000, 1),
    ("gcc", 1000, 12),
    ("python3", 300_000, 1),
    ("redis", 10_000, 1),
];

/// How many times as long the programs may take.
const SLOWDOWNS: [f64; 2] = [1.1, 1.5];

/// What programs lose may differ by this from what they may lose, as a share of it.
const NEAR: f64 = 0.2;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let mut list = vec![
        Scenario {
            name: "budget-windows-exact".into(),
            about: "if no set is large enough, windows keep a program to --slowdown",
            run: Box::new(windows),
        },
        Scenario {
            name: "cpu-time-turns".into(),
            about: "the status has for how long traced programs had CPUs, and no others",
            run: Box::new(cpu_time),
        },
    ];
    for (program, amount, times) in PROGRAMS {
        for slowdown in SLOWDOWNS {
            list.push(Scenario {
                name: format!("budget-{program}-{slowdown}-exact"),
                about: "--slowdown: a program loses as much time as it may",
                run: Box::new(move |kernel| {
                    let work = work(program, amount, times)?;
                    let name = format!("budget-{program}-{slowdown}");
                    keeps_to(&name, &work, slowdown, "", kernel).map(drop)
                }),
            });
        }
    }
    list
}

pub(super) fn work(program: &str, amount: u32, times: u32) -> Result<String> {
    let script = loads::script(program, amount)?;
    let once = format!("rm -rf /tmp/db /tmp/dump.rdb && {script}");
    Ok(vec![once; times as usize].join(" && "))
}

/// What came of a run.
pub(super) struct Ran {
    /// How many times as long the program had the CPU as without a trace.
    pub(super) slowdown: f64,
    status: Value,
}

/// Runs a program without a trace, and in one with these options.
pub(super) fn run(name: &str, work: &str, options: &str, kernel: &str) -> Result<Ran> {
    let quoted = work.replace('\'', "'\\''");
    let traced = format!(
        "activator run {options} -o /dev/trace --status-file /tmp/status.json -- /bin/sh -c '{quoted}'"
    );
    let out = Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: true,
        cmdline: String::new(),
        files: loads::files(),
        steps: vec![
            // The first run fills the page cache for both.
            debian("warm", work),
            uptime("start"),
            debian("plain", work),
            uptime("between"),
            debian("traced", &traced),
            uptime("end"),
            debian("status", "cat /tmp/status.json"),
        ],
        deadline_s: 900,
    }
    .run()?;
    let (plain, traced) = (out.step("plain")?, out.step("traced")?);
    ensure!(plain.rc == 0, "untraced it fails: {plain:?}");
    ensure!(traced.rc == 0, "traced it fails: {traced:?}");
    let (rc, _) = postproc::json(&["check", "--frames"], &out.trace())?;
    ensure!(rc == 0, "{}", postproc::explain(&out.trace()));
    let (start, between) = (busy(&out, "start")?, busy(&out, "between")?);
    let end = busy(&out, "end")?;
    let status: Value = serde_json::from_str(&out.step("status")?.stdout)?;
    let ran = status["ran"].as_f64().context("no time")? / 1e9;
    let (plain, busy) = (between - start, end - between);
    let slowdown = ran / plain;
    // The activator looks at the counts now and then, and has measured the time of a reference.
    ensure!(
        ran > 0.0 && ran < busy,
        "{name}: programs ran for {ran} s of {busy} s"
    );
    say!(
        "  {name}: {plain:.2} s, {slowdown:.3} times as long, {:.3} with all other work; told {:.3}; \
         {} ns for a reference; {} references; N={} at last",
        busy / plain,
        status["slowdown"].as_f64().unwrap_or(f64::NAN),
        status["reference_ns"].as_f64().unwrap_or(f64::NAN).round(),
        status["refs"],
        status["evms_size"],
    );
    Ok(Ran { slowdown, status })
}

fn is_near(got: f64, slowdown: f64) -> bool {
    ((got - 1.0) / (slowdown - 1.0) - 1.0).abs() <= NEAR
}

/// Runs it with a budget, and holds what it took against that.
fn keeps_to(name: &str, work: &str, slowdown: f64, more: &str, kernel: &str) -> Result<Ran> {
    let options = format!("--slowdown {slowdown} {more}");
    let ran = run(name, work, &options, kernel)?;
    ensure!(
        is_near(ran.slowdown, slowdown),
        "{name}: {:.3} times as long instead of {slowdown}",
        ran.slowdown
    );
    // What the user reads is as near to what there was.
    let told = ran.status["slowdown"].as_f64().context("no slowdown")?;
    ensure!(
        is_near(told, ran.slowdown),
        "{name}: told {told:.3} instead of {:.3}",
        ran.slowdown
    );
    Ok(ran)
}

/// With N of 64 pages at most, sqlite3 takes many times as long, so only windows help.
fn windows(kernel: &str) -> Result<()> {
    let few = "--slowdown 1.5 --max 64 -n 64";
    let short = work("sqlite3", 6_000, 1)?;
    let ran = run("budget-too-small", &short, few, kernel)?;
    // The control: this is what the windows are for.
    ensure!(
        ran.slowdown > 2.0 && ran.status["slowdown_exceeded"] == true,
        "{:.3} times as long",
        ran.slowdown
    );
    let (work, few) = (work("sqlite3", 60_000, 1)?, "--max 64 -n 64 --pausable");
    let ran = keeps_to("budget-windows", &work, 1.5, few, kernel)?;
    let windows = ran.status["windows_ended"].as_u64().unwrap_or(0);
    say!("  {windows} windows");
    ensure!(windows >= 3, "{windows} windows");
    Ok(())
}

/// Three processes that each take a third of a second of CPU time; prints what they took, s.
const FAMILY: &str = "
import os, resource, time
def spin():
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
for _ in range(2):
    if os.fork() == 0:
        spin()
        os._exit(0)
spin()
os.wait()
os.wait()
uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(sum(use.ru_utime + use.ru_stime for use in uses), flush=True)
os._exit(0)
";

/// On two CPUs: processes of which some wait for a CPU, while others run that are not traced; and a
/// process that runs on a CPU of its own before the trace begins, and switches hardly ever.
fn cpu_time(kernel: &str) -> Result<()> {
    let spin = "python3 -c 'while True: pass'";
    let alone = format!("taskset -c 1 {spin}");
    let on = "taskset -c 0 activator on -n 4096 --pid $!";
    let out = Machine {
        name: format!("cpu-time-turns-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Turns,
        image: true,
        cmdline: String::new(),
        files: vec![("family.py".into(), FAMILY.into())],
        steps: vec![
            debian(
                "family",
                &format!(
                    "{spin} & activator run -n 4096 -o /dev/trace --status-file /tmp/status.json -- \
                     python3 /work/family.py; kill $!"
                ),
            ),
            debian("family-status", "cat /tmp/status.json"),
            debian(
                "spinner",
                &format!(
                    "{alone} & sleep 0.5; {on} -o /tmp/spin.vmt >&2 && sleep 2 && activator off --json; \
                     kill $!"
                ),
            ),
            debian(
                "windows",
                &format!(
                    "{alone} & sleep 0.5; {on} --pausable -o /tmp/w.vmt >&2 && sleep 0.5 && \
                     activator pause >&2 && sleep 1.5 && activator off --json; kill $!"
                ),
            ),
            // What a CPU has counted that is offline when the next trace begins.
            debian(
                "offline",
                &format!(
                    "{alone} & sleep 0.5; {on} -o /tmp/o.vmt >&2 && sleep 1 && activator off >&2; kill $!; \
                     wait; echo 0 > /sys/devices/system/cpu/cpu1/online && \
                     activator run -q -o /tmp/p.vmt --status-file /tmp/short.json -- true && \
                     cat /tmp/short.json"
                ),
            ),
        ],
        deadline_s: 300,
    }
    .run()?;
    let ran = |name: &str| -> Result<(f64, f64)> {
        let text = &out.step(name)?.stdout;
        let status: Value = serde_json::from_str(text).with_context(|| text.clone())?;
        let s = |field: &str| {
            status[field]
                .as_f64()
                .context("no such field")
                .map(|ns| ns / 1e9)
        };
        Ok((s("ran")?, s("stop_time")? - s("start_time")?))
    };
    let family = out.step("family")?;
    let took: f64 = family
        .stdout
        .trim()
        .parse()
        .with_context(|| format!("{family:?}"))?;
    let (counted, lasted) = ran("family-status")?;
    say!("  a family took {took:.3} s, counted {counted:.3} s; the trace lasted {lasted:.3} s");
    // The kernel counts what processes take until they are gone, and a busy host takes time of
    // guests that only one of both clocks sees. Had the other process been counted, or a task
    // twice, it would be about twice as much.
    ensure!(
        took > 0.9 && counted >= 0.99 * took && counted < 1.25 * took,
        "processes took {took} s, and {counted} s were counted"
    );
    for name in ["spinner", "windows"] {
        let (counted, lasted) = ran(name)?;
        say!("  {name}: counted {counted:.3} s of {lasted:.3} s");
        ensure!(
            lasted > 1.9 && counted > 0.9 * lasted && counted <= lasted,
            "{name}: a process that ran all the time is counted with {counted} s of {lasted} s"
        );
    }
    let (counted, lasted) = ran("offline")?;
    say!("  with a CPU offline: counted {counted:.3} s of {lasted:.3} s");
    ensure!(
        counted > 0.0 && counted <= lasted,
        "one CPU is online, and {counted} s of {lasted} s are counted"
    );
    Ok(())
}
