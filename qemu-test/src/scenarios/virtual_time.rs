//! Virtual time: under icount each record tells to the instruction how long its task
//! had run in user mode, whatever the set's size and so the cost of tracing; and the
//! totals at exit are those of getrusage().

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, step};
use crate::postproc;
use crate::runner::say;
use ::postproc::trace::{Body, Merge, Step, Trace};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;

/// Pages that each thread touches, and turns of the long loop between two of them.
const PAGES: usize = 256;
const LONG: u64 = 100_000;
/// A loop that takes some ticks of the timer: 50 ms.
const BUSY: u64 = 25_000_000;
/// Ns from one tick to the next.
const TICK: u64 = 4_000_000;
/// By how much an interrupt's way into the kernel and back may differ from a fault's.
const WAYS: u64 = 32;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let mut list = vec![
        Scenario {
            name: "virtual-time".into(),
            about: "virtual time counts the program's instructions, whatever tracing costs",
            run: Box::new(exact),
        },
        Scenario {
            name: "virtual-time-smp".into(),
            about: "threads on two CPUs: the virtual time of each advances with its own work",
            run: Box::new(smp),
        },
    ];
    list.extend(controls());
    list
}

/// What fails without a protection.
fn controls() -> Vec<Scenario> {
    vec![Scenario {
        name: "control-noclock".into(),
        about: "if the kernel's time is counted, virtual time contains the cost of faults",
        run: Box::new(noclock),
    }]
}

/// A run of the guest's program under the activator.
struct Run {
    name: &'static str,
    n: u32,
    threads: u64,
    pages: usize,
    long: u64,
    /// Ticks to take off; `None`: as many as the activator measures.
    skip: Option<u64>,
}

fn boot(
    name: &str,
    kernel: &str,
    profile: Profile,
    cmdline: &str,
    runs: &[Run],
) -> Result<Outcome> {
    let mut steps = Vec::new();
    for (slot, r) in runs.iter().enumerate() {
        let file = format!("/tmp/{}.vmt", r.name);
        let skip = r.skip.map_or_else(String::new, |n| format!("={n}"));
        let argv = format!(
            "/bin/activator run -n {} --virtual-time{} -o {file} -- /bin/virtual-time {} {} {}",
            r.n, skip, r.threads, r.pages, r.long
        );
        let argv: Vec<_> = argv.split(' ').collect();
        steps.push(step(r.name, &argv));
        let keep = format!("keep {}", r.name);
        steps.push(step(&keep, &["/bin/keep", &slot.to_string(), &file]));
    }
    let out = Machine {
        name: format!("{name}-{}-{kernel}", profile.name()),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: cmdline.into(),
        files: vec![],
        steps,
        deadline_s: 300,
    }
    .run()?;
    Ok(out)
}

/// A run's trace.
fn kept(out: &Outcome, runs: &[Run], name: &str) -> Result<std::path::PathBuf> {
    let slot = runs
        .iter()
        .position(|r| r.name == name)
        .with_context(|| format!("no run is called {name}"))?;
    for what in [name.to_string(), format!("keep {name}")] {
        let r = out.step(&what)?;
        ensure!(r.rc == 0, "{what}: {r:?}");
    }
    out.kept(slot, &format!("{name}.vmt"))
}

/// Refuses a trace that is not good.
fn good(trace: &Path) -> Result<()> {
    let (rc, report) = postproc::json(&["check"], trace)?;
    ensure!(
        rc == 0,
        "postproc check finds:\n{}",
        postproc::explain(trace)
    );
    let rules = report["rules"].as_array().context("no rules")?;
    ensure!(
        rules.iter().any(|r| r["id"] == "virtual-time"),
        "the rule about virtual time was not applied: {report}"
    );
    Ok(())
}

/// The virtual times of a run in a trace.
struct Told {
    /// By thread's number: virtual times of the first touches of its pages, in order.
    touches: BTreeMap<u64, Vec<u64>>,
    /// Of the process's first thread, at its end: virtual, user and system time, ns.
    exit: (u64, u64, u64),
}

fn read(trace: &Path) -> Result<Told> {
    let trace = Trace::open(trace)?;
    let header = trace.header();
    ensure!(
        header.has_vtime() && header.vtime_text() == "time stamp counter",
        "the header has no virtual time: {header:?}"
    );
    let mut merge = Merge::new(&trace);
    let mut touches: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut next: BTreeMap<u64, u64> = BTreeMap::new();
    let mut exit = None;
    let mut refs = Vec::new();
    loop {
        let step = merge.fill(&mut refs, 4096)?;
        for r in refs.drain(..) {
            let (thread, page) = (r.address() >> 40, (r.address() & ((1 << 40) - 1)) >> 12);
            // A page that was evicted by others' faults may come again.
            let first = next.entry(thread).or_default();
            if (1..=64).contains(&thread) && page == *first {
                *first += 1;
                touches.entry(thread - 1).or_default().push(r.vtime);
            }
        }
        match step {
            Step::Full => {}
            Step::Event(e) => {
                if let Body::Exit {
                    utime_ns, stime_ns, ..
                } = e.body
                {
                    ensure!(e.vtime.is_some(), "an exit without virtual time");
                    if e.tid == e.tgid {
                        let ticks = e.vtime.unwrap_or(0);
                        exit = Some((header.vtime_ns(ticks), utime_ns, stime_ns));
                    }
                }
            }
            Step::End => break,
        }
    }
    Ok(Told {
        touches,
        exit: exit.context("no exit of the first thread")?,
    })
}

/// Instructions from one touch to the next: as the guest's program says.
fn instructions(i: usize, pages: usize, long: u64) -> u64 {
    let turns = if i % pages == 3 {
        long
    } else {
        1 + (i as u64 * 7) % 30
    };
    2 * turns + 6
}

/// By how much virtual time is more than the instructions, from touch to touch.
fn excess(told: &Told, run: &Run) -> Result<Vec<i64>> {
    let mut all = Vec::new();
    for thread in 0..run.threads {
        let times = told
            .touches
            .get(&thread)
            .with_context(|| format!("{}: no touches of thread {thread}", run.name))?;
        ensure!(
            times.len() == run.pages,
            "{}: {} touches of {} pages",
            run.name,
            times.len(),
            run.pages
        );
        for (i, pair) in times.windows(2).enumerate() {
            let wanted = instructions(i, run.pages, run.long);
            all.push((pair[1].wrapping_sub(pair[0]) as i64).wrapping_sub(wanted as i64));
        }
    }
    Ok(all)
}

/// How often each value comes.
fn histogram(values: &[i64]) -> BTreeMap<i64, usize> {
    let mut counts = BTreeMap::new();
    for v in values {
        *counts.entry(*v).or_default() += 1;
    }
    counts
}

fn exact(kernel: &str) -> Result<()> {
    let run = |name, n, threads, pages, long, skip| Run {
        name,
        n,
        threads,
        pages,
        long,
        skip,
    };
    // What a fault's way into the kernel and back takes here.
    let runs = [run("bare", 512, 1, PAGES, LONG, Some(0))];
    let out = boot("virtual-time-bare", kernel, Profile::Exact, "", &runs)?;
    let told = read(&kept(&out, &runs, "bare")?)?;
    let counts = histogram(&excess(&told, &runs[0])?);
    let (&way, &often) = counts
        .iter()
        .max_by_key(|(_, often)| **often)
        .context("no touches")?;
    say!("  a fault's way takes {way} instructions: {counts:?}");
    // It is longer in a kernel that checks locks or memory, but always as long.
    ensure!(
        (1..2000).contains(&way) && often >= PAGES * 9 / 10,
        "the way into the kernel and back is not the same each time: {counts:?}"
    );

    // Without it, time is that of the instructions, whatever the faults have cost.
    let skip = way as u64;
    let runs = [
        run("least", 16, 1, PAGES, LONG, Some(skip)),
        run("most", 512, 1, PAGES, LONG, None),
        run("threads", 64, 4, PAGES, LONG, Some(skip)),
        run("busy", 64, 1, 8, BUSY, Some(skip)),
    ];
    let out = boot("virtual-time", kernel, Profile::Exact, "", &runs)?;
    for r in &runs {
        let path = kept(&out, &runs, r.name)?;
        good(&path)?;
        let taken_off = Trace::open(&path)?.header().vtime_skip;
        ensure!(
            u64::from(taken_off) == skip,
            "{}: the activator has measured {taken_off} ticks, not {skip}",
            r.name
        );
        let told = read(&path)?;
        let counts = histogram(&excess(&told, r)?);
        say!("  {}, N={}: off by {counts:?}", r.name, r.n);
        let ticks = 1 + 2 * r.threads * (r.long + 100 * r.pages as u64) / TICK;
        let off: usize = counts.values().sum::<usize>() - counts.get(&0).copied().unwrap_or(0);
        let most = counts.keys().map(|v| v.unsigned_abs()).max().unwrap_or(0);
        ensure!(
            off as u64 <= ticks && most <= ticks * WAYS,
            "{}: virtual time is not that of the instructions: {counts:?}",
            r.name
        );
    }

    // All of a busy loop's time is virtual time but what the kernel did. Ticks divide
    // it into user and system time, and may be far off; and getrusage() knows what a
    // thread has taken as of the last tick.
    let told = read(&kept(&out, &runs, "busy")?)?;
    let (virt, user, system) = told.exit;
    let printed = &out.step("busy")?.stdout;
    let mut words = printed.split_ascii_whitespace().map(str::parse::<u64>);
    let (Some(Ok(user0)), Some(Ok(system0))) = (words.next(), words.next()) else {
        anyhow::bail!("the program printed {printed:?}");
    };
    say!("  at exit: virtual {virt} ns, user {user}, system {system}; before: {user0}, {system0}");
    ensure!(
        user >= user0 && system >= system0 && user + system - user0 - system0 < 2 * TICK,
        "the totals at exit, {user} and {system} ns, are not getrusage()'s, {user0} and {system0}"
    );
    ensure!(
        (2 * BUSY..=user + system).contains(&virt) && user + system - virt < 3 * TICK,
        "virtual time {virt} ns, of {user} and {system} ns that were taken"
    );
    Ok(())
}

fn smp(kernel: &str) -> Result<()> {
    let runs = [Run {
        name: "threads",
        n: 64,
        threads: 4,
        pages: PAGES,
        long: 5_000_000,
        skip: Some(0),
    }];
    let out = boot("virtual-time", kernel, Profile::Smp, "", &runs)?;
    let path = kept(&out, &runs, "threads")?;
    good(&path)?;
    let told = read(&path)?;
    for (thread, times) in &told.touches {
        // The long loop is most of what each did.
        let long = times[4] - times[3];
        let all = times[times.len() - 1] - times[0];
        say!("  thread {thread}: {long} of {all} ticks in the long loop");
        ensure!(2 * long > all, "thread {thread}: {long} of {all} ticks");
    }
    ensure!(told.touches.len() == 4, "not all threads are told of");
    Ok(())
}

fn noclock(kernel: &str) -> Result<()> {
    let runs = [Run {
        name: "bare",
        n: 512,
        threads: 1,
        pages: PAGES,
        long: LONG,
        skip: Some(0),
    }];
    let out = boot(
        "control-noclock",
        kernel,
        Profile::Exact,
        "vmtrace_break=noclock",
        &runs,
    )?;
    let told = read(&kept(&out, &runs, "bare")?)?;
    let off = excess(&told, &runs[0])?;
    let least = off.iter().min().copied().unwrap_or(0);
    say!("  without the protection each step takes {least} instructions more, or more");
    ensure!(
        least > 500,
        "virtual time does not contain the cost of faults: {:?}",
        histogram(&off)
    );
    Ok(())
}
