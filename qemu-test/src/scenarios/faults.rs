//! Operations of the kernel that fail while something is traced: allocations of pages and
//! objects, copies from and to user space, requests to disks (the kernel's
//! Documentation/fault-injection/). The flavour `wide` has what makes them fail.
//!
//! In the guest, `inject` has operations fail and traces meanwhile, `faulty` is the program
//! that bears it and checks every value that it finds, and `fail-nth` has each operation of
//! each ioctl fail, one after the other.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, step};
use crate::paths;
use crate::runner::say;
use anyhow::{Context, Result, bail, ensure};
use kvmtrace_guest::{Step, StepResult};
use serde_json::Value;
use std::collections::BTreeMap;

/// Whose operations fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// The traced program's.
    Task,
    /// Those of all tasks, kernel threads included.
    All,
    /// Those that the tracer asks for, in whatever task.
    Tracer,
}

/// What fails, and what is done meanwhile.
struct Fault {
    name: &'static str,
    about: &'static str,
    /// As `inject` has it.
    kinds: &'static str,
    /// Percent.
    probability: &'static str,
    interval: &'static str,
    who: Who,
    rounds: &'static str,
    /// So many operations must fail.
    least: u64,
    options: &'static [&'static str],
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "task-page",
        about: "allocations of pages fail for the traced program: the trace is good",
        kinds: "page",
        probability: "10",
        interval: "1",
        who: Who::Task,
        rounds: "3",
        least: 100,
        options: &[],
    },
    Fault {
        name: "task-slab",
        about: "allocations of objects fail for the traced program: the trace is good",
        kinds: "slab",
        probability: "10",
        interval: "1",
        who: Who::Task,
        rounds: "3",
        least: 100,
        options: &[],
    },
    Fault {
        name: "task-usercopy",
        about: "copies from and to user space fail for the traced program: the trace is good",
        kinds: "usercopy",
        probability: "10",
        interval: "1",
        who: Who::Task,
        rounds: "3",
        least: 100,
        options: &[],
    },
    Fault {
        name: "task-swap",
        about: "the swap disk fails for the traced program: the trace is good",
        kinds: "request",
        probability: "20",
        interval: "1",
        who: Who::Task,
        rounds: "9",
        least: 100,
        options: &["fail:/dev/swap"],
    },
    Fault {
        name: "all-page",
        about: "allocations of pages fail for everybody while traces begin and end",
        kinds: "page",
        probability: "10",
        interval: "5",
        who: Who::All,
        rounds: "12",
        least: 100,
        options: &[],
    },
    Fault {
        name: "all-slab",
        about: "allocations of objects fail for everybody while traces begin and end",
        kinds: "slab",
        probability: "10",
        interval: "20",
        who: Who::All,
        rounds: "12",
        least: 100,
        options: &[],
    },
    Fault {
        name: "all-usercopy",
        about: "copies from and to user space fail for everybody while traces begin and end",
        kinds: "usercopy",
        probability: "10",
        interval: "20",
        who: Who::All,
        rounds: "12",
        least: 10,
        options: &[],
    },
    Fault {
        name: "all-request",
        about: "requests to the output's disk fail, whoever makes them",
        kinds: "request",
        probability: "50",
        interval: "3",
        who: Who::All,
        rounds: "18",
        least: 20,
        options: &["--force", "-o", "/dev/swap", "fail:/dev/swap"],
    },
    Fault {
        name: "tracer",
        about: "allocations that the tracer asks for fail",
        kinds: "page+slab",
        probability: "10",
        interval: "4",
        who: Who::Tracer,
        rounds: "16",
        least: 20,
        options: &[],
    },
    // The tracer copies little, and only for the calls of the activator.
    Fault {
        name: "tracer-usercopy",
        about: "copies from and to user space that the tracer asks for fail",
        kinds: "usercopy",
        probability: "20",
        interval: "1",
        who: Who::Tracer,
        rounds: "16",
        least: 5,
        options: &[],
    },
];

/// All of them, which need the flavour `wide`.
pub fn full() -> Vec<Scenario> {
    let mut list: Vec<_> = FAULTS
        .iter()
        .map(|fault| Scenario {
            name: format!("faults-{}", fault.name),
            about: fault.about,
            run: Box::new(move |kernel| run(fault, kernel)),
        })
        .collect();
    list.push(Scenario {
        name: "faults-nth".into(),
        about: "each operation of each ioctl fails, one after the other",
        run: Box::new(nth),
    });
    list
}

fn boot(name: &str, kernel: &str, profile: Profile, steps: Vec<Step>) -> Result<Outcome> {
    let config = paths::build().join("kernel").join(kernel).join(".config");
    let config = std::fs::read_to_string(config)?;
    ensure!(
        config.contains("CONFIG_FAULT_INJECTION_USERCOPY=y"),
        "the {kernel} kernel has no fault injection: scripts/kernel.sh wide, and --kernel wide"
    );
    Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: "log_buf_len=16M".into(),
        files: vec![],
        steps,
        deadline_s: 1500,
    }
    .run()
}

/// Where the code of mm/vmtrace lies: the longest part of the kernel in which no 16 KiB are
/// without a function of it.
fn code(kernel: &str) -> Result<String> {
    let map = std::fs::read_to_string(paths::system_map(kernel))?;
    let mut at = Vec::new();
    for line in map.lines().filter(|l| l.contains("vmtrace")) {
        let mut words = line.split(' ');
        let address = words.next().unwrap_or_default();
        if matches!(words.next(), Some("t" | "T")) {
            at.push(u64::from_str_radix(address, 16)?);
        }
    }
    at.sort_unstable();
    let parts = at.chunk_by(|a, b| b - a < 0x4000);
    let part = parts.max_by_key(|p| p.len()).context("no tracer")?;
    match part {
        [first, .., last] => Ok(format!("{first:#x}-{:#x}", last + 1)),
        _ => bail!("no tracer"),
    }
}

/// Errors of system calls that a kernel gives if such operations fail, traced or not
/// (errno(3)): ENOMEM, EAGAIN (fork), EFAULT, EIO.
fn errors(kinds: &str) -> &'static [&'static str] {
    match kinds {
        "usercopy" => &["14"],
        "request" => &["5", "12"],
        _ => &["11", "12", "14"],
    }
}

/// Signals of the same kind: SIGBUS for a page that can't be read.
fn signals(kinds: &str) -> &'static [&'static str] {
    match kinds {
        "request" => &["7"],
        _ => &[],
    }
}

/// What was counted while a scenario ran.
#[derive(Default)]
struct Counts {
    good: u32,
    bad: u32,
    /// Rounds without a trace: the activator could not begin.
    none: u32,
    injected: u64,
    steps: u64,
    errors: u64,
    longest: u64,
}

/// What the program found, in one line of `inject`.
fn judge_program(line: &str, kinds: &str, counts: &mut Counts) -> Result<()> {
    let mut whole = false;
    for part in line.split(" | ") {
        let words: Vec<_> = part.split_whitespace().collect();
        // The first part has the round and the exit code before it.
        let Some(i) = words
            .iter()
            .position(|w| ["error", "signal", "steps", "wrong"].contains(w))
        else {
            continue;
        };
        match words[i..] {
            ["error", call, errno, many] => {
                ensure!(
                    errors(kinds).contains(&errno),
                    "{call} failed with {errno}: {line}"
                );
                counts.errors += many.parse::<u64>()?;
            }
            ["signal", signal, _] => {
                ensure!(signals(kinds).contains(&signal), "a child: {line}");
            }
            ["steps", many] => counts.steps += many.parse::<u64>()?,
            ["wrong", many] => {
                ensure!(many == "0", "wrong values: {line}");
                whole = true;
            }
            _ => bail!("{part}: {line}"),
        }
    }
    // A page that the swap disk did not give ends the program.
    let code = line.split(' ').nth(2).unwrap_or_default();
    let killed = signals(kinds)
        .iter()
        .any(|s| code == format!("{}", 128 + s.parse::<i32>().unwrap_or(0)));
    ensure!(whole || killed, "the program did not end: {line}");
    Ok(())
}

/// A round: whatever the activator claims is so.
fn judge_round(line: &str, fault: &Fault, counts: &mut Counts) -> Result<()> {
    let round: Value = serde_json::from_str(line)?;
    let number = |v: &Value| v.as_i64().with_context(|| line.to_string());
    let check = number(&round["check"])?;
    let codes = round["codes"].as_array().context("no codes")?;
    let codes = codes.iter().map(number).collect::<Result<Vec<_>>>()?;
    ensure!(!codes.contains(&200), "a hang: {line}");
    let seconds = number(&round["seconds"])?.unsigned_abs();
    counts.longest = counts.longest.max(seconds);
    ensure!(
        [0, 1, 2, 255].contains(&check),
        "postproc check failed: {line}"
    );
    // The program's own end is judged by its words.
    let claims = codes.iter().all(|c| *c == 0);
    ensure!(!claims || check == 0, "called good, and is not: {line}");
    let status = round["status"].as_str().unwrap_or_default();
    if let Ok(status) = serde_json::from_str::<Value>(&status.replace(" | ", " ")) {
        let problems = status["problems"].as_array().context("no problems")?;
        let good = problems.is_empty();
        ensure!(
            good == (check == 0),
            "`run` and `check` don't agree: {line}"
        );
    }
    if fault.who == Who::Task {
        ensure!(check == 0, "the tracer lost something: {line}");
    }
    match check {
        0 => counts.good += 1,
        255 => counts.none += 1,
        _ => counts.bad += 1,
    }
    Ok(())
}

/// All that `inject` printed.
fn judge(r: &StepResult, fault: &Fault) -> Result<Counts> {
    ensure!(r.rc == 0, "{r:?}");
    let mut counts = Counts::default();
    let mut said = BTreeMap::new();
    for line in r.stdout.lines() {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        match key {
            "program" | "companion" => judge_program(line, fault.kinds, &mut counts)?,
            "round" => judge_round(rest, fault, &mut counts)?,
            "after" => ensure!(
                rest.split(' ').skip(1).take(2).eq(["0", "0"]),
                "the trace after it: {line}"
            ),
            "injected" => {
                let (_, many) = rest.split_once(' ').context("how many?")?;
                let many: u64 = many.parse()?;
                ensure!(many > 0, "nothing failed: {line}");
                counts.injected += many;
            }
            "bad" => bail!("the kernel reported a problem: {rest}"),
            _ => {
                said.insert(key, rest);
            }
        }
    }
    ensure!(
        counts.injected >= fault.least,
        "{} faults only: {r:?}",
        counts.injected
    );
    let stacks = |key: &str| -> Result<u64> {
        Ok(said
            .get(key)
            .with_context(|| format!("no {key}"))?
            .parse()?)
    };
    match (fault.who, fault.kinds) {
        (Who::Task, "page") => ensure!(stacks("stacks-faults")? > 0, "no page fault failed"),
        (Who::Task, _) => {}
        _ => ensure!(stacks("stacks-tracer")? > 0, "nothing of the tracer failed"),
    }
    say!(
        "  {} faults; of {} stacks in the log, {} are of the tracer and {} of page faults",
        counts.injected,
        stacks("stacks")?,
        stacks("stacks-tracer")?,
        stacks("stacks-faults")?
    );
    Ok(counts)
}

fn run(fault: &Fault, kernel: &str) -> Result<()> {
    let who = match fault.who {
        Who::Task => "task".into(),
        Who::All => "all".into(),
        Who::Tracer => code(kernel)?,
    };
    let argv = |who, scene| {
        let mut argv = vec![
            "/bin/inject",
            fault.kinds,
            fault.probability,
            fault.interval,
            who,
            scene,
            fault.rounds,
        ];
        argv.extend(fault.options);
        argv
    };
    let scene = if fault.who == Who::Task {
        "run"
    } else {
        "both"
    };
    let traced = Step {
        timeout_s: 1400,
        ..step("traced", &argv(&who, scene))
    };
    let plain = step("plain", &argv("task", "plain"));
    let steps = match fault.who {
        Who::Task => vec![plain, traced],
        _ => vec![traced],
    };
    // What fails for one task is quicker on one CPU.
    let profile = match fault.who {
        Who::Task => Profile::Fast,
        _ => Profile::Smp,
    };
    let out = boot(&format!("faults-{}", fault.name), kernel, profile, steps)?;
    if fault.who == Who::Task {
        // The same program bears the same without a tracer.
        let mut counts = Counts::default();
        let r = out.step("plain")?;
        ensure!(r.rc == 0, "{r:?}");
        let line = r.stdout.lines().find(|l| l.starts_with("program "));
        judge_program(line.context("no program")?, fault.kinds, &mut counts)?;
        say!(
            "  untraced: {} steps, {} errors",
            counts.steps,
            counts.errors
        );
    }
    let counts = judge(out.step("traced")?, fault)?;
    say!(
        "  {} traces good, {} say that they are not, {} did not begin; {} steps of the program, \
         {} errors; no round took more than {} s",
        counts.good,
        counts.bad,
        counts.none,
        counts.steps,
        counts.errors,
        counts.longest
    );
    Ok(())
}

fn nth(kernel: &str) -> Result<()> {
    let all = Step {
        timeout_s: 1400,
        ..step("nth", &["/bin/fail-nth"])
    };
    let out = boot("faults-nth", kernel, Profile::Fast, vec![all])?;
    let r = out.step("nth")?;
    say!("{}", r.stdout);
    ensure!(r.rc == 0, "{r:?}");
    ensure!(!r.stdout.contains("DISAGREES"), "{r:?}");
    let number = |key: &str| -> Result<u64> {
        let line = r.stdout.lines().find_map(|l| l.strip_prefix(key));
        let words = line.with_context(|| format!("no {key}: {r:?}"))?;
        Ok(words.trim().parse()?)
    };
    // Less would mean that nothing failed.
    ensure!(number("START operations")? >= 10, "{r:?}");
    ensure!(number("START error 12 trace none:")? > 0, "{r:?}");
    let memory = r.stdout.lines().find_map(|l| l.strip_prefix("memory "));
    let (before, after) = memory
        .and_then(|m| m.split_once(' '))
        .context("no figures of memory")?;
    let lost = before.parse::<i64>()? - after.parse::<i64>()?;
    ensure!(lost < 4096, "{lost} KiB are lost: {r:?}");
    Ok(())
}
