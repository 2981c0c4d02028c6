//! Looks for races. The guest's program `races` does by a seed what several CPUs can do to
//! the same pages, and the kernel is slow at points that the seed chooses too: wherever the
//! tracer has dropped a lock or not yet taken it. Four judge: the program itself, to which
//! tracing must make no difference, the kernel's counters, its audit in the middle and at the
//! end, and `postproc check --frames`.

use super::corners::{figure, healthy};
use super::{Scenario, corners};
use crate::machine::{Machine, Outcome, Profile, step};
use crate::paths;
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, bail, ensure};
use kvmtrace_guest::Step;
use serde_json::Value;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Seeds that run each time, in turns: each costs some seconds of one CPU.
const USUAL: Range<u64> = 1..7;
/// The same in two threads, where CPUs that wait cost time.
const USUAL_SMP: Range<u64> = 4..7;
/// Seeds that found an error in most runs, once. 4026: a load of a page of zeros, a guard that
/// comes and goes, and a load with an equal PTE; the number between the two was taken when the
/// page was gone and the event of the guard had no number yet.
const FOUND: Range<u64> = 4026..4027;
/// Seeds of `make corners`.
pub const MANY: Range<u64> = 100..400;
/// Seeds of which one at least must fail without the check of the order. Of the first 40 seeds
/// these do so in some runs.
const CONTROL: [u64; 7] = [2, 8, 10, 13, 17, 21, 37];
/// What control-races takes away: all of that check, and only the comparison of the PTE with
/// the one that was there before the number was taken, which admissions once did not make.
const UNORDERED: [&str; 2] = ["noorder", "nocompare"];
/// Seeds that run twice on two CPUs. In 5 and 17 KSM merges memory.
const REPEATED: [u64; 3] = [2, 5, 17];
/// The same on four CPUs.
const REPEATED_FOUR: u64 = 9;
/// Seeds in one boot.
const BATCH: u64 = 10;
/// Changes by each thread that makes some.
const STEPS: &str = "60";
/// The same in a long run, and the touches of pages between two of them.
const MANY_STEPS: &str = "200";
const MANY_TOUCHES: &str = "1500";
/// Seeds in one boot of a long run.
const MANY_BATCH: u64 = 5;

/// Two threads on two CPUs, and nearly all that they do are re-references.
const KCSAN_PROGRAM: &str = "/bin/sharers threads 2 100 20";

/// Where CPUs run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cpus {
    /// Two in two threads of the host.
    Two,
    /// Four in four.
    Four,
    /// Two in turns, by the number of instructions. Each boot is the same.
    Turns,
    /// Four in turns.
    FourTurns,
    /// Two in turns, with disks of the host, so that each boot is another race.
    Disks,
}

impl Cpus {
    fn name(self) -> &'static str {
        match self {
            Cpus::Two => "2",
            Cpus::Four => "4",
            Cpus::Turns => "turns",
            Cpus::FourTurns => "turns4",
            Cpus::Disks => "disks",
        }
    }

    fn profile(self) -> Profile {
        match self {
            Cpus::Two | Cpus::Four => Profile::Smp,
            Cpus::Turns | Cpus::FourTurns => Profile::Alone,
            Cpus::Disks => Profile::Turns,
        }
    }

    /// For QEMU: two nodes of memory.
    fn args(self) -> Vec<String> {
        let mut args = corners::nodes(Profile::Smp);
        if matches!(self, Cpus::Four | Cpus::FourTurns) {
            for arg in &mut args {
                *arg = match arg.as_str() {
                    "2,sockets=2,cores=1,threads=1" => "4,sockets=2,cores=2,threads=1".into(),
                    arg => arg
                        .replace(",cpus=0", ",cpus=0-1")
                        .replace(",cpus=1", ",cpus=2-3"),
                };
            }
        }
        args
    }
}

/// The scenarios that run each time.
pub fn scenarios() -> Vec<Scenario> {
    let mut list = vec![
        batch(USUAL_SMP, Cpus::Two),
        batch(USUAL, Cpus::Turns),
        batch(FOUND, Cpus::Disks),
    ];
    list.push(Scenario {
        name: "races-repeat".into(),
        about: "seeds repeat: two boots write the same traces, byte by byte",
        run: Box::new(repeat),
    });
    list.push(Scenario {
        name: "guarded-again".into(),
        about: "a guard comes and goes while a load is admitted: the load is of the page after it",
        run: Box::new(guarded),
    });
    list.push(Scenario {
        name: "control-nostamp".into(),
        about: "without the look at later events, the load comes before the guard that it saw go",
        run: Box::new(unstamped),
    });
    list.push(Scenario {
        name: "dropped-at-start".into(),
        about: "windows begin while pages are dropped: each drop is in order with the loads",
        run: Box::new(dropped),
    });
    list.push(Scenario {
        name: "numbered-late".into(),
        about: "windows end while address spaces get their numbers: such a number is not used",
        run: Box::new(numbered),
    });
    list.push(Scenario {
        name: "smaller-ids".into(),
        about: "windows begin while processes with smaller ids than their makers' are made: each is traced",
        run: Box::new(smaller),
    });
    list.push(Scenario {
        name: "control-races".into(),
        about: "without the check of the order, or a part of it, one of a few seeds fails",
        run: Box::new(control),
    });
    list.push(Scenario {
        name: "control-nosame".into(),
        about: "a re-reference that does not compare the locked PTE restores what is gone",
        run: Box::new(|kernel| blind("nosame", kernel, is_bad_pte)),
    });
    list.push(Scenario {
        name: "control-nolive".into(),
        about: "a stay that is not looked at again is ended twice: the audit finds wrong counts",
        run: Box::new(|kernel| blind("nolive", kernel, is_miscounted)),
    });
    list
}

/// Those of `make corners`, with these seeds.
pub fn full(seeds: Range<u64>) -> Vec<Scenario> {
    let mut list = Vec::new();
    let mut first = seeds.start;
    while first < seeds.end {
        let end = seeds.end.min(first.saturating_add(BATCH));
        // In turns every second batch, on four CPUs the others.
        let turns = (first / BATCH) % 2 == 0;
        list.push(batch(
            first..end,
            if turns { Cpus::Turns } else { Cpus::Four },
        ));
        first = end;
    }
    list.push(Scenario {
        name: "control-kcsan".into(),
        about: "KCSAN reports a data race of the tracer, and none without one",
        run: Box::new(kcsan),
    });
    list
}

/// Seeds that share a boot, as on the command line.
///
/// # Errors
///
/// If there are none, or more than the slots for their traces.
pub fn repeated(text: &str) -> Result<Range<u64>, String> {
    let seeds = match text.parse::<u64>() {
        Ok(seed) => seed..seed.saturating_add(1),
        Err(_) => seeds(text)?,
    };
    match seeds.end - seeds.start {
        1..=16 => Ok(seeds),
        n => Err(format!("{n} seeds: 1 to 16 can share a boot")),
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|e| format!("{text}: {e}"))
}

/// Seeds as on the command line.
///
/// # Errors
///
/// If there are none.
pub fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (first, end) = text.split_once("..").ok_or("not FIRST..END")?;
    let seeds = number(first)?..number(end)?;
    if seeds.is_empty() {
        return Err(format!("{text} is empty"));
    }
    Ok(seeds)
}

fn batch(seeds: Range<u64>, cpus: Cpus) -> Scenario {
    Scenario {
        name: format!("races-{}-{}-{}", seeds.start, seeds.end - 1, cpus.name()),
        about: "random programs on several CPUs with a slow tracer: nothing is wrong",
        run: Box::new(move |kernel| run(seeds.clone(), cpus, kernel)),
    }
}

/// What a seed's trace is like.
fn options(seed: u64) -> String {
    let n = ["64", "64", "96", "256"][(seed / 7 % 4) as usize];
    let more = [
        "",
        "--policy clock",
        "--again",
        "",
        "--trace 20ms --skip 2ms",
    ][(seed % 5) as usize];
    format!("-n {n} {more}{}", batches(seed))
}

/// Of sets without a CLOCK, two of three evict in batches.
fn batches(seed: u64) -> &'static str {
    match (seed % 5, seed / 11 % 3) {
        (1, _) => "",
        (_, 0) => " --batch 1",
        (_, 1) => " --batch 8",
        _ => " --batch 33",
    }
}

fn name(what: &str, seed: u64) -> String {
    format!("{what} {seed}")
}

fn words(line: &str) -> Vec<&str> {
    line.split_ascii_whitespace().collect()
}

fn steps(seed: u64, slot: u64) -> Vec<Step> {
    let (plain, late) = (
        format!("/bin/races {seed} {STEPS}"),
        format!("/bin/races late {seed}"),
    );
    steps_of(seed, slot, &plain, &options(seed), &late)
}

/// A program untraced and traced, with delays.
fn steps_of(seed: u64, slot: u64, plain: &str, options: &str, late: &str) -> Vec<Step> {
    let file = format!("/tmp/{seed}.vmt");
    let traced = format!("/bin/activator run {options} -o {file} -- {plain}");
    vec![
        step(&name("plain", seed), &words(plain)),
        step(&name("late", seed), &words(late)),
        step(&name("traced", seed), &words(&traced)),
        step(
            &name("status", seed),
            &["/bin/activator", "status", "--json"],
        ),
        step("passed", &["/bin/races", "late"]),
        step("quick", &["/bin/races", "late", "0"]),
        step(
            &name("keep", seed),
            &["/bin/keep", &slot.to_string(), &file],
        ),
    ]
}

/// With KCSAN, what is traced is watched more closely than the boot: one of at most so many
/// accesses, for at most 2 microseconds. CPUs that take turns wait by giving the others a turn.
/// Seeds on four CPUs did not end in four minutes with as close a watch as those on two.
fn watched(mut steps: Vec<Step>, cpus: Cpus, kernel: &str) -> Vec<Step> {
    let skip = match cpus {
        Cpus::Four | Cpus::FourTurns => "1000",
        _ => "100",
    };
    if kernel == "kcsan" {
        for step in steps
            .iter_mut()
            .filter(|step| step.name.starts_with("traced"))
        {
            let words = ["/bin/kcsan", skip, "2"];
            step.argv.splice(..0, words.map(Into::into));
        }
    }
    steps
}

fn boot(label: &str, cmdline: &str, cpus: Cpus, steps: Vec<Step>, kernel: &str) -> Result<Outcome> {
    let steps = watched(steps, cpus, kernel);
    Machine {
        name: format!("{label}-{}-{kernel}", cpus.name()),
        kernel: kernel.into(),
        profile: cpus.profile(),
        image: false,
        // The hooks for delays are patched in before there is a second CPU.
        cmdline: format!("vmtrace_late=0,0,0 {cmdline}"),
        files: vec![],
        deadline_s: 120 + 120 * steps.len() as u64,
        steps,
    }
    .run_with(&cpus.args())
}

/// Steps of several seeds, each with a slot of the disk.
fn all_steps(seeds: impl IntoIterator<Item = u64>) -> Vec<Step> {
    let each = seeds.into_iter().zip(0..);
    each.flat_map(|(seed, slot)| steps(seed, slot)).collect()
}

/// What the kernel counted for a seed, if tracing changed nothing.
fn status(out: &Outcome, seed: u64) -> Result<Value> {
    for what in ["plain", "traced"] {
        let r = out.step(&name(what, seed))?;
        // The exit code is the activator's, which judges too.
        ensure!(r.stdout == "ok\n", "{r:?}");
    }
    let text = &out.step(&name("status", seed))?.stdout;
    serde_json::from_str(text).with_context(|| format!("activator status: {text}"))
}

fn judge(out: &Outcome, seed: u64, slot: usize) -> Result<u64> {
    let status = status(out, seed)?;
    for what in ["plain", "late", "traced", "keep"] {
        let r = out.step(&name(what, seed))?;
        ensure!(r.rc == 0, "{r:?}");
    }
    healthy(&status)?;
    for found in ["dangling", "miscounted"] {
        ensure!(figure(&status, found) == 0, "{found}: {status}");
    }
    let path = out.kept(slot, &format!("{seed}.vmt"))?;
    let (rc, _) = postproc::json(&["check", "--frames"], &path)?;
    ensure!(
        rc == 0,
        "postproc check finds:\n{}",
        postproc::explain(&path)
    );
    // The disk of the whole boot has it, too.
    std::fs::remove_file(path)?;
    let n = figure(&status, "admissions");
    say!(
        "  seed {seed}: {n} admissions, {} given up, {:.1} s",
        figure(&status, "aborted"),
        out.step(&name("traced", seed))?.ns as f64 / 1e9
    );
    Ok(n)
}

fn run(seeds: Range<u64>, cpus: Cpus, kernel: &str) -> Result<()> {
    static ALL: AtomicU64 = AtomicU64::new(0);
    // KCSAN makes a CPU wait at accesses that it watches, for which turns are enough. In threads
    // of the host, such CPUs took five minutes for a program of some seconds.
    let cpus = match (cpus, kernel) {
        (Cpus::Four, "kcsan") => Cpus::FourTurns,
        (cpus, _) => cpus,
    };
    let label = format!("races-{}", seeds.start);
    let out = boot(&label, "", cpus, all_steps(seeds.clone()), kernel)?;
    let mut failed = Vec::new();
    for (slot, seed) in seeds.clone().enumerate() {
        match judge(&out, seed, slot) {
            Ok(n) => {
                ALL.fetch_add(n, Relaxed);
            }
            Err(e) => failed.push(format!("seed {seed}, {}: {e:#}", options(seed))),
        }
    }
    say!("  {} admissions until now, in all", ALL.load(Relaxed));
    if !failed.is_empty() {
        let again = match cpus {
            Cpus::Turns => format!(
                "\nagain with: qemu-test races --short --repeat {}..{}",
                seeds.start, seeds.end
            ),
            _ => String::new(),
        };
        bail!("{}{again}", failed.join("\n"));
    }
    Ok(())
}

/// What was an error of the tracer once: an admission that does not look at what other CPUs
/// did since it took its number.
fn control(kernel: &str) -> Result<()> {
    'next: for what in UNORDERED {
        // Each boot is another race.
        for _ in 0..3 {
            if fails_without(what, kernel)? {
                continue 'next;
            }
        }
        bail!("no seed fails with {what}: the seeds show nothing");
    }
    Ok(())
}

fn fails_without(what: &str, kernel: &str) -> Result<bool> {
    let (label, cmdline) = (format!("control-{what}"), format!("vmtrace_break={what}"));
    let out = boot(&label, &cmdline, Cpus::Disks, all_steps(CONTROL), kernel)?;
    let mut found = Vec::new();
    for (slot, seed) in CONTROL.into_iter().enumerate() {
        status(&out, seed)?;
        let path = out.kept(slot, &format!("{seed}.vmt"))?;
        // That something was broken on purpose is always an error.
        let wrong = postproc::wrong(&path, "health")?;
        if !wrong.is_empty() {
            found.push(format!("seed {seed}: {}", wrong.join(", ")));
        }
    }
    say!("  {what}: {}", found.join("\n  "));
    Ok(!found.is_empty())
}

/// Without a look at what the locked page table or the slot has now, one of a few seeds must fail as
/// `sign` knows it: from the lines of the console, and from those that programs printed.
fn blind(what: &str, kernel: &str, sign: fn(&str) -> bool) -> Result<()> {
    let (label, cmdline) = (format!("control-{what}"), format!("vmtrace_break={what}"));
    // Each boot is another race.
    for _ in 0..3 {
        let reports = match boot(&label, &cmdline, Cpus::Disks, all_steps(CONTROL), kernel) {
            Ok(out) => out.results.iter().map(|r| r.stdout.clone()).collect(),
            Err(e) if format!("{e:#}").starts_with("the kernel reported a problem") => {
                let run = format!("{label}-{}-{kernel}", Cpus::Disks.name());
                let console =
                    std::fs::read(paths::build().join("runs").join(run).join("console.log"))?;
                vec![String::from_utf8_lossy(&console).into_owned()]
            }
            Err(e) => return Err(e),
        };
        let mut lines = reports.iter().flat_map(|text| text.lines());
        if let Some(line) = lines.find(|line| sign(line)) {
            say!("  {what}: {line}");
            return Ok(());
        }
    }
    bail!("no seed fails as it must with {what}: the seeds show nothing")
}

/// The kernel's report of a PTE that maps a page which is free, or has another user.
fn is_bad_pte(line: &str) -> bool {
    line.contains("BUG: Bad page map")
}

/// A line of the audit: figures that do not add up.
fn is_miscounted(line: &str) -> bool {
    let count = line.strip_prefix("miscounted ");
    count.is_some_and(|count| count.parse().is_ok_and(|count: u64| count > 0))
}

/// KCSAN's seeds show something only if KCSAN reports a data race of the tracer.
fn kcsan(kernel: &str) -> Result<()> {
    ensure!(
        kernel == "kcsan",
        "a kernel without KCSAN: use --kernel kcsan"
    );
    let traced = format!("/bin/activator run -n 64 -o /tmp/t.vmt -- {KCSAN_PROGRAM}");
    let steps = vec![step("traced", &words(&traced))];
    let out = boot("kcsan-whole", "", Cpus::Turns, steps.clone(), kernel)?;
    let r = out.step("traced")?;
    ensure!(r.rc == 0, "{r:?}");
    say!("  {}", r.stderr.lines().last().unwrap_or_default());

    let broken = boot(
        "kcsan-race",
        "vmtrace_break=race",
        Cpus::Turns,
        steps,
        kernel,
    );
    let Err(e) = broken else {
        bail!("KCSAN reports nothing of a counter that CPUs change without a lock");
    };
    let told = format!("{e:#}");
    ensure!(
        told.contains("BUG: KCSAN: data-race in __vmtrace_late / __vmtrace_late"),
        "another failure than a report of the counter: {told}"
    );
    Ok(())
}

/// What differs between two boots that did the same: results of steps, and the traces of seeds
/// in the order of their slots.
fn differences(once: &Outcome, again: &Outcome, seeds: &[u64]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    ensure!(
        once.results.len() == again.results.len(),
        "not the same steps"
    );
    for (a, b) in once.results.iter().zip(&again.results) {
        let (a, b) = (format!("{a:?}"), format!("{b:?}"));
        if a != b {
            found.push(format!("once {a}, and again {b}"));
        }
    }
    for (slot, seed) in seeds.iter().enumerate() {
        let name = format!("{seed}.vmt");
        let trace = |out: &Outcome| -> Result<_> { Ok(std::fs::read(out.kept(slot, &name)?)?) };
        let what = difference(&trace(once)?, &trace(again)?);
        found.extend(what.map(|what| format!("traces of seed {seed}: {what}")));
    }
    Ok(found)
}

fn difference(once: &[u8], again: &[u8]) -> Option<String> {
    let at = once.iter().zip(again).position(|(a, b)| a != b);
    let (a, b) = (once.len(), again.len());
    match at {
        Some(at) => Some(format!("byte {at} of {a} and {b} differs")),
        None if a != b => Some(format!("{a} bytes and {b} bytes")),
        None => None,
    }
}

/// Boots twice, and fails if anything differs.
fn twice(steps: &[Step], seeds: &[u64], cpus: Cpus, kernel: &str) -> Result<[Outcome; 2]> {
    let once = boot("races-once", "", cpus, steps.to_vec(), kernel)?;
    let again = boot("races-again", "", cpus, steps.to_vec(), kernel)?;
    let found = differences(&once, &again, seeds)?;
    ensure!(
        found.is_empty(),
        "two boots differ: {}\n(kept in {} and {})",
        found.join("\n"),
        crate::paths::shown(&once.dir),
        crate::paths::shown(&again.dir)
    );
    Ok([once, again])
}

fn repeat(kernel: &str) -> Result<()> {
    let [once, _] = twice(&all_steps(REPEATED), &REPEATED, Cpus::Turns, kernel)?;
    let (mut merged, mut back) = (0, 0);
    for (slot, seed) in REPEATED.into_iter().enumerate() {
        // As `races` prints it: pages merged at the end, and swapped by the boot until then.
        let told = &once.step(&name("plain", seed))?.stderr;
        let last = words(told.lines().last().unwrap_or_default());
        if let [n, "merged", _, "out", swapped, "back"] = last[..] {
            merged += n.parse::<u64>()?;
            back = swapped.parse::<u64>()?;
        }
        judge(&once, seed, slot)?;
    }
    say!("  the same again, with {merged} pages merged and {back} read from swap");
    ensure!(merged > 0 && back > 0, "this shows nothing of KSM and swap");

    let seed = REPEATED_FOUR;
    let [once, _] = twice(&steps(seed, 0), &[seed], Cpus::FourTurns, kernel)?;
    let mut others = steps(seed, 0);
    let late = others.iter_mut().find(|s| s.name == name("late", seed));
    let late = late.context("no delays")?;
    late.argv = words(&format!("/bin/races late {}", seed - 1))
        .into_iter()
        .map(Into::into)
        .collect();
    let other = boot("races-other", "", Cpus::FourTurns, others, kernel)?;
    let found = differences(&once, &other, &[seed])?;
    let traces = found.iter().find(|what| what.starts_with("traces"));
    say!("  with other delays: {}", traces.context("no difference")?);
    judge(&once, seed, 0).map(drop)
}

/// Boots twice with these seeds, and says whether both boots are the same and what is wrong with
/// the seeds: those of a long run, or else those of `corners` on two CPUs.
///
/// # Errors
///
/// If the boots differ, or a seed fails.
pub fn again(seeds: Range<u64>, long: bool, kernel: &str) -> Result<()> {
    let (cpus, steps) = match long {
        true => (Cpus::FourTurns, many_of(&seeds)),
        false => (Cpus::Turns, all_steps(seeds.clone())),
    };
    let all: Vec<_> = seeds.clone().collect();
    let [once, other] = twice(&steps, &all, cpus, kernel)?;
    println!("both boots are the same, and each trace, byte by byte");
    let mut failed = Vec::new();
    for (slot, seed) in seeds.enumerate() {
        if let Err(e) = judge(&once, seed, slot) {
            failed.push(format!("seed {seed}: {e:#}"));
        }
    }
    println!(
        "they are kept in {} and {}",
        crate::paths::shown(&once.dir),
        crate::paths::shown(&other.dir)
    );
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// A page is loaded for the first time, a guard takes it away and goes, and the page is loaded
/// again. Both times it is the page of zeros, so the PTE is the same again. An admission that
/// began before the guard must not end after it.
fn guarded(kernel: &str) -> Result<()> {
    let path = guards("guarded-again", "", kernel)?;
    let (rc, _) = postproc::json(&["check", "--frames"], &path)?;
    ensure!(rc == 0, "{}", postproc::explain(&path));
    Ok(())
}

/// Without the look at later events, such a load is of the page before the guard. Each boot is another race.
fn unstamped(kernel: &str) -> Result<()> {
    for _ in 0..5 {
        let path = guards("control-nostamp", "vmtrace_break=nostamp", kernel)?;
        let wrong = postproc::wrong(&path, "health")?;
        say!("  nostamp: {}", wrong.join(", "));
        if wrong.iter().any(|rule| rule.ends_with("of residency")) {
            return Ok(());
        }
    }
    bail!("nothing fails with nostamp: the guards show nothing")
}

/// A trace of guards that come and go.
fn guards(name: &str, cmdline: &str, kernel: &str) -> Result<PathBuf> {
    // After the number was taken, and before the PTE is locked.
    const POINTS: &str = "1,24,300";
    const SEED: u64 = 110;
    let file = format!("/tmp/{SEED}.vmt");
    let line = format!("/bin/activator run -n 64 -o {file} -- /bin/races {SEED} 400 /tmp Guard");
    let list = vec![
        step("late", &["/bin/races", "late", POINTS]),
        step("traced", &words(&line)),
        step("keep", &["/bin/keep", "0", &file]),
    ];
    let out = boot(name, cmdline, Cpus::Disks, list, kernel)?;
    for r in &out.results {
        // The activator reports what was removed.
        let is_known = r.name == "traced" && r.rc == 1 && !cmdline.is_empty();
        ensure!(r.rc == 0 || is_known, "{r:?}");
    }
    let path = out.kept(0, "guarded.vmt")?;
    let guards = postproc::events(&["--type", "advise"], &path)?.len();
    say!("  {guards} guards came or went");
    ensure!(guards > 200, "{guards} guards: this shows nothing");
    Ok(path)
}

/// Windows begin while a thread drops pages by madvise(MADV_DONTNEED). Such a call may have
/// begun before its window, and then must keep faults out all the same until its event has a
/// number. The event comes late, so that a fault would come between.
fn dropped(kernel: &str) -> Result<()> {
    // While a fault holds the lock of its VMA, and before an event has a number.
    const POINTS: &str = "1,801,300";
    const SEEDS: Range<u64> = 1..6;
    let of = |seed: u64| {
        let file = format!("/tmp/{seed}.vmt");
        let program = format!("/bin/races {seed} 400 /tmp DontNeed");
        let line =
            format!("/bin/activator run -n 64 --trace 3ms --skip 1ms -o {file} -- {program}");
        [
            step("traced", &words(&line)),
            step("keep", &["/bin/keep", &seed.to_string(), &file]),
        ]
    };
    let mut list = vec![step("late", &["/bin/races", "late", POINTS])];
    list.extend(SEEDS.flat_map(of));
    let out = boot("dropped-at-start", "", Cpus::Two, list, kernel)?;
    for r in &out.results {
        ensure!(r.rc == 0, "{r:?}");
    }
    let mut wrong = Vec::new();
    for seed in SEEDS {
        let path = out.kept(seed as usize, &format!("{seed}.vmt"))?;
        let drops = postproc::events(&["--type", "advise"], &path)?.len();
        let (rc, _) = postproc::json(&["check", "--frames"], &path)?;
        say!("  seed {seed}: {drops} drops, check gives {rc}");
        ensure!(drops > 20, "{drops} drops: this shows nothing");
        if rc != 0 {
            wrong.push(postproc::explain(&path));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Address spaces get their numbers late: their window has ended, and the next one is about
/// to begin. Such an address space belongs to no window, so the next one attaches it again.
/// Otherwise faults would enable pages between windows in an address space that counts as
/// traced, and the next window would find them enabled without a record.
fn numbered(kernel: &str) -> Result<()> {
    // After a reason for a number was seen, and before earlier numbers become invalid.
    const POINTS: &str = "1,180000,3";
    const PROGRAMS: [&str; 4] = [
        "/bin/fork-storm 150",
        "/bin/births",
        "/bin/births",
        "/bin/births",
    ];
    let mut list = vec![step("late", &["/bin/races", "late", POINTS])];
    for (slot, program) in (0..).zip(PROGRAMS) {
        let file = format!("/tmp/{slot}.vmt");
        let line =
            format!("/bin/activator run -n 64 --trace 3ms --skip 1ms -o {file} -- {program}");
        list.extend([
            step("traced", &words(&line)),
            step(
                &name("status", slot),
                &["/bin/activator", "status", "--json"],
            ),
            step("passed", &["/bin/races", "late"]),
            step("keep", &["/bin/keep", &slot.to_string(), &file]),
        ]);
    }
    let out = boot("numbered-late", "", Cpus::Two, list, kernel)?;
    let mut all = 0;
    let mut wrong = Vec::new();
    for r in out.results.iter().filter(|r| r.rc != 0) {
        wrong.push(format!("{r:?}"));
    }
    for (slot, program) in (0..).zip(PROGRAMS) {
        let text = &out.step(&name("status", slot))?.stdout;
        let status = serde_json::from_str(text).with_context(|| text.clone())?;
        let (funny, windows) = (figure(&status, "funny"), figure(&status, "windows_ended"));
        let path = out.kept(slot as usize, &format!("{slot}.vmt"))?;
        let (rc, _) = postproc::json(&["check", "--frames"], &path)?;
        say!("  {program}: {windows} windows, {funny} funny, check gives {rc}");
        all += windows;
        if rc != 0 || healthy(&status).is_err() {
            wrong.push(format!("{program}: {}", postproc::explain(&path)));
        }
    }
    ensure!(all > 30, "{all} windows: this shows nothing");
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// A process by its own word: how it was made, when its maker asked for it, and when it had
/// touched all its pages again.
struct Lived {
    pid: u64,
    how: String,
    asked: u64,
    turns: Vec<u64>,
}

/// Pages of each of them, which it touches one after the other; more than N, so that each touch
/// is a reference.
const LIVED_PAGES: usize = 100;

fn lived(text: &str) -> Result<Vec<Lived>> {
    let lines = text.lines().filter_map(|l| l.strip_prefix("lived "));
    let one = |line: &str| {
        let mut words = line.split(' ');
        let mut word = || words.next().with_context(|| format!("not a life: {line}"));
        Ok(Lived {
            pid: word()?.parse()?,
            how: word()?.into(),
            asked: word()?.parse()?,
            turns: words.map(str::parse).collect::<Result<_, _>>()?,
        })
    };
    lines.map(one).collect()
}

/// What was made in one way.
#[derive(Default, Debug)]
struct Made {
    /// While a snapshot was taken.
    meanwhile: u64,
    /// Without all references.
    missed: u64,
    /// Without an event that describes the process.
    undescribed: u64,
}

/// Windows begin while processes are made that have smaller ids than their makers. The snapshot
/// comes to processes by id. So it has passed the id of such a process before that is made, and
/// comes to its maker later. From the snapshot's end on, each touch of its pages is a reference.
/// An event of the window describes each such process: a task event, or the fork that made it.
///
/// When a process is made is a matter of the host's speed. So this boots again, until processes of
/// each kind were made while a window began.
fn smaller(kernel: &str) -> Result<()> {
    const BOOTS: u32 = 4;
    // By how they were made.
    let mut sums = BTreeMap::<String, Made>::new();
    let shows = |sums: &BTreeMap<String, Made>| {
        let made: u64 = sums.values().map(|s| s.meanwhile).sum();
        sums.values().filter(|s| s.meanwhile > 0).count() == 4 && made >= 12
    };
    for _ in 0..BOOTS {
        let wrong = smaller_in_a_boot(kernel, &mut sums)?;
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        if shows(&sums) {
            break;
        }
    }
    for (how, sum) in &sums {
        say!(
            "  {how}: {} made while a window began, {} missed, {} without an event",
            sum.meanwhile,
            sum.missed,
            sum.undescribed
        );
    }
    ensure!(shows(&sums), "{sums:?}: this shows nothing");
    Ok(())
}

/// One boot of [`smaller`]: adds what was made to `sums`, and returns what is wrong.
fn smaller_in_a_boot(kernel: &str, sums: &mut BTreeMap<String, Made>) -> Result<Vec<String>> {
    // While an address space is about to get its number, and its pages are about to be disabled: 5 to
    // 10 ms each.
    const POINTS: &str = "1,110000,16";
    const WINDOW: u64 = 200_000_000;
    const RUNS: u64 = 2;
    let of = |slot: u64| {
        let file = format!("/tmp/{slot}.vmt");
        let line = format!(
            "/bin/activator run -n 64 --trace 200ms --skip 10ms -o {file} -- /bin/small-ids 80"
        );
        [
            step(&name("traced", slot), &words(&line)),
            step(
                &name("status", slot),
                &["/bin/activator", "status", "--json"],
            ),
            step(
                &name("keep", slot),
                &["/bin/keep", &slot.to_string(), &file],
            ),
        ]
    };
    let mut list = vec![step("late", &["/bin/races", "late", POINTS])];
    list.extend((0..RUNS).flat_map(of));
    let out = boot("smaller-ids", "", Cpus::Two, list, kernel)?;
    let mut wrong = Vec::new();
    for r in out.results.iter().filter(|r| r.rc != 0) {
        wrong.push(format!("{r:?}"));
    }
    for slot in 0..RUNS {
        let text = &out.step(&name("status", slot))?.stdout;
        let status = serde_json::from_str(text).with_context(|| text.clone())?;
        let path = out.kept(slot as usize, &format!("{slot}.vmt"))?;
        let (rc, _) = postproc::json(&["check", "--frames"], &path)?;
        if rc != 0 || healthy(&status).is_err() {
            wrong.push(postproc::explain(&path));
        }
        let (_, info) = postproc::json(&["info"], &path)?;
        let lives = lived(&out.step(&name("traced", slot))?.stdout)?;
        for (k, w) in info["windows"]
            .as_array()
            .context("no windows")?
            .iter()
            .enumerate()
        {
            let number = k.to_string();
            let ends = postproc::events(&["--window", &number, "--type", "snap_end"], &path)?;
            // The last window may have none.
            let Some(end) = ends.first() else { continue };
            let began = figure(w, "start_time_ns");
            let traced = began + figure(end, "ns");
            let stop = (traced + WINDOW).min(figure(w, "stop_time_ns"));
            let csv = postproc::csv_of(&path, &["--window", &number])?;
            let tasks = postproc::events(&["--window", &number, "--type", "task,fork"], &path)?;
            for life in &lives {
                let in_window = |t: &[u64]| t[0] >= traced && t[1] <= stop;
                let turns = life.turns.windows(2).filter(|t| in_window(t)).count();
                let meanwhile = began < life.asked && life.asked < traced;
                let tid = life.pid.to_string();
                let refs = csv.lines().filter(|l| l.split(',').nth(9) == Some(&tid));
                let refs = refs.count();
                if turns == 0 {
                    continue;
                }
                let sum = sums.entry(life.how.clone()).or_default();
                sum.meanwhile += u64::from(meanwhile && life.pid < 1000);
                let who = format!(
                    "{} ({}, asked for {} us before the snapshot ended)",
                    life.pid,
                    life.how,
                    traced.saturating_sub(life.asked) / 1000
                );
                if refs < turns * LIVED_PAGES {
                    sum.missed += 1;
                    wrong.push(format!(
                        "run {slot}, window {k}: {refs} references by {who}, which touched \
                         {LIVED_PAGES} pages {turns} times"
                    ));
                }
                let described = tasks.iter().any(|e| match e["event"].as_str() {
                    Some("task") => e["task_tid"] == life.pid,
                    _ => e["child_tid"] == life.pid,
                });
                if !described {
                    sum.undescribed += 1;
                    wrong.push(format!("run {slot}, window {k}: no event describes {who}"));
                }
            }
        }
    }
    Ok(wrong)
}

/// The trace of a seed of a long run: more pages than N, so that most touches are references.
fn many_options(seed: u64) -> String {
    let n = ["64", "64", "96", "128"][(seed / 7 % 4) as usize];
    let more = ["", "--policy clock", "--again", "", "--policy clock"][(seed % 5) as usize];
    let batch = if seed % 5 == 4 { "" } else { batches(seed) };
    format!("-n {n} {more}{batch}")
}

/// Seldom long delays, which take most of the host's time: three of four seeds have nearly none.
fn many_steps(seed: u64, slot: u64) -> Vec<Step> {
    let plain = format!("/bin/races many {seed} {MANY_STEPS} {MANY_TOUCHES}");
    let longest = match seed / 3 % 16 {
        0 => 10,
        1..4 => 3,
        _ => 1,
    };
    let late = format!("/bin/races late {seed} {longest}");
    steps_of(seed, slot, &plain, &many_options(seed), &late)
}

/// What a long run has seen.
#[derive(Default, Debug, PartialEq, Eq)]
struct Sums {
    seeds: u64,
    admissions: u64,
    funny: u64,
    stuck: u64,
    lost: u64,
    /// Errors of `postproc check --frames`; at least one for a seed that failed in another way.
    differences: u64,
    failed: Vec<String>,
}

impl Sums {
    fn add(&mut self, seed: u64, status: &Value, errors: u64, verdict: Result<u64>) {
        // A seed whose program failed may have no status.
        let figure = |what: &str| status[what].as_u64().unwrap_or(0);
        self.seeds += 1;
        self.funny += figure("funny");
        self.stuck += figure("stuck");
        self.lost += figure("lost_full") + figure("lost_atomic") + figure("lost_io");
        self.differences += errors;
        match verdict {
            Ok(n) => self.admissions += n,
            Err(e) => {
                self.differences += u64::from(errors == 0);
                let options = many_options(seed);
                self.failed.push(format!("seed {seed}, {options}: {e:#}"));
            }
        }
    }
}

impl std::fmt::Display for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} admissions, {} seeds: {} funny, {} stuck, {} lost, {} differences",
            self.admissions, self.seeds, self.funny, self.stuck, self.lost, self.differences
        )
    }
}

/// Errors that `postproc check --frames` finds in the trace of a seed that failed.
fn errors(out: &Outcome, seed: u64) -> u64 {
    let path = out.dir.join(format!("{seed}.vmt"));
    let Ok((_, report)) = postproc::json(&["check", "--frames"], &path) else {
        return 0;
    };
    let rules = report["rules"].as_array().into_iter().flatten();
    rules.filter_map(|r| r["errors"].as_u64()).sum()
}

/// Steps of seeds of a long run.
fn many_of(seeds: &Range<u64>) -> Vec<Step> {
    let each = seeds.clone().zip(0..);
    each.flat_map(|(seed, slot)| many_steps(seed, slot))
        .collect()
}

/// One boot of a long run.
fn many(seeds: Range<u64>, kernel: &str, sums: &Mutex<Sums>) {
    let label = format!("races-many-{}", seeds.start);
    let range = format!("{}..{}", seeds.start, seeds.end);
    let out = boot(&label, "", Cpus::FourTurns, many_of(&seeds), kernel);
    let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
    let out = match out {
        Ok(out) => out,
        Err(e) => {
            let what = format!("seeds {} to {}: {e:#}", seeds.start, seeds.end - 1);
            sums.differences += 1;
            return sums.failed.push(what);
        }
    };
    let before = sums.failed.len();
    for (slot, seed) in seeds.enumerate() {
        let verdict = judge(&out, seed, slot);
        let errors = verdict.as_ref().map_or_else(|_| errors(&out, seed), |_| 0);
        let status = status(&out, seed).unwrap_or_default();
        sums.add(seed, &status, errors, verdict);
    }
    for what in &sums.failed[before..] {
        println!(
            "FAILED {what}\n  kept in {}; again with: qemu-test races --repeat {range}",
            crate::paths::shown(&out.dir)
        );
    }
    if sums.failed.len() == before {
        let _ = std::fs::remove_dir_all(&out.dir);
    }
}

fn clock(time: Duration) -> String {
    let minutes = time.as_secs() / 60;
    format!("{}:{:02} h", minutes / 60, minutes % 60)
}

/// Runs seeds from `first` on, until there were so many admissions on four CPUs in turns.
///
/// # Errors
///
/// If any seed fails.
pub fn long(admissions: u64, first: u64, kernel: &str, jobs: NonZero<usize>) -> Result<()> {
    let (begin, next) = (Instant::now(), AtomicU64::new(first));
    let sums = Mutex::new(Sums::default());
    let lock = || sums.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..jobs.get() {
            scope.spawn(|| {
                while lock().admissions < admissions && lock().failed.len() < 10 {
                    let first = next.fetch_add(MANY_BATCH, Relaxed);
                    many(first..first + MANY_BATCH, kernel, &sums);
                    let (sums, spent) = (lock(), begin.elapsed());
                    let share = sums.admissions as f64 / admissions as f64;
                    let left = spent.mul_f64((1.0 / share.max(1e-9) - 1.0).clamp(0.0, 1e6));
                    println!(
                        "{sums}; {:.2} %, {:.0} a second, {} gone, {} left; go on with --seed {}",
                        100.0 * share,
                        sums.admissions as f64 / spent.as_secs_f64(),
                        clock(spent),
                        clock(left),
                        next.load(Relaxed)
                    );
                }
            });
        }
    });
    let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{sums}");
    ensure!(sums.failed.is_empty(), "{}", sums.failed.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn traces_that_differ() {
        assert_eq!(difference(b"abc", b"abc"), None);
        assert!(difference(b"abc", b"abd").is_some_and(|d| d.contains("byte 2")));
        assert!(difference(b"abc", b"ab").is_some_and(|d| d.contains("3 bytes and 2")));
    }

    #[test]
    fn seeds_that_share_a_boot() {
        assert_eq!(repeated("17"), Ok(17..18));
        assert_eq!(repeated("10..26"), Ok(10..26));
        for wrong in ["10..27", "10..10", "x", "9..8"] {
            assert!(repeated(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_long_run_sums_up_what_each_seed_has() {
        let status = |funny: u64, lost: u64| {
            json!({ "admissions": 9, "funny": funny, "stuck": 0, "lost_full": lost,
                "lost_atomic": 1, "lost_io": 0 })
        };
        let mut sums = Sums::default();
        sums.add(1, &status(0, 0), 0, Ok(9));
        assert_eq!((sums.lost, sums.failed.len()), (1, 0));
        sums.add(2, &status(2, 3), 4, Err(anyhow::anyhow!("bad")));
        sums.add(3, &Value::Null, 0, Err(anyhow::anyhow!("worse")));
        assert_eq!((sums.seeds, sums.admissions), (3, 9));
        assert_eq!((sums.differences, sums.failed.len()), (5, 2));
        assert!(sums.failed[0].contains("seed 2"), "{sums}");
    }
}
