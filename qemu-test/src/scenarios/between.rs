//! Windows of references in a trace that samples regions between them.

use super::{Scenario, budget};
use crate::machine::{Machine, Outcome, Profile, debian};
use crate::postproc;
use crate::runner::say;
use ::postproc::trace::{Body, Merge, Step as Next, StreamKind, Trace, WindowAccount};
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::{Step, StepResult};
use std::collections::BTreeSet;
use std::path::Path;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let mut all = vec![
        Scenario {
            name: "between-exact".into(),
            about: "a change of behaviour begins a window of all references, and nothing else does",
            run: Box::new(change),
        },
        Scenario {
            name: "between-plan".into(),
            about: "regions are sampled between windows by a plan, in pieces",
            run: Box::new(plan),
        },
        Scenario {
            name: "between-smp".into(),
            about: "on two CPUs, many ask for windows and pieces while a system is sampled",
            run: Box::new(requests),
        },
    ];
    for (program, amount, times) in budget::PROGRAMS {
        all.push(Scenario {
            name: format!("between-cost-{program}"),
            about: "windows of a twentieth of the time make a program a twentieth slower at most",
            run: Box::new(move |kernel| {
                let name = format!("between-cost-{program}");
                cost(&name, &budget::work(program, amount, times)?, kernel)
            }),
        });
    }
    all
}

/// Windows for a twentieth of the time, and regions with DAMON's default times. Reads and writes of files are
/// no events: there are up to 70,000 of them in a second.
const TWENTIETH: &str = "--between 5ms --trace 5ms --skip 95ms --events file,shm,gup";

/// How many times as long a program may have the CPU.
const MOST: f64 = 1.05;

fn cost(name: &str, work: &str, kernel: &str) -> Result<()> {
    let ran = budget::run(name, work, TWENTIETH, kernel)?;
    ensure!(ran.slowdown <= MOST, "{:.3} times as long", ran.slowdown);
    Ok(())
}

/// The two blocks of the program: pages of each, and from the beginning of one to that of the other.
const PAGES: u64 = 64;
const APART: u64 = 160;
const BASE: u64 = 0x1000_0000_0000;

/// Turns of the program, and how long each is, ms.
const TURNS: usize = 6;
const TURN_MS: u64 = 400;

/// Less than a block, so each access to the next page of a block is a reference.
const N: u64 = 32;

/// How regions are sampled: an emulated instruction takes a nanosecond.
const SAMPLING: &str = "--between 500us --aggregate 10ms --update 50ms --regions 10..100";

/// A window, and the time after the beginning of a turn within which it begins, ms: two reports, and a
/// moment until the thread of the trace runs.
const WINDOW_MS: u64 = 15;
const WITHIN_MS: u64 = 60;

/// The least time between two windows, ms.
const SKIP_MS: u64 = 100;

fn machine(name: &str, kernel: &str, profile: Profile, steps: Vec<Step>) -> Result<Outcome> {
    Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 600,
    }
    .run()
}

/// Runs the program in a trace with these options, and keeps the trace.
fn traced(slot: usize, name: &str, options: &str, turns: usize) -> [Step; 2] {
    let program = format!("phases {PAGES} {APART} {TURN_MS} {turns}");
    let line = format!("activator run {SAMPLING} {options} -n {N} -o /tmp/{name}.vmt -- {program}");
    [
        debian(name, &line),
        debian(
            &format!("keep {name}"),
            &format!("keep {slot} /tmp/{name}.vmt"),
        ),
    ]
}

/// A trace that is good.
fn good(path: &Path) -> Result<Trace> {
    let (rc, _) = postproc::json(&["check", "--frames"], path)?;
    ensure!(rc == 0, "{}", postproc::explain(path));
    Ok(Trace::open(path)?)
}

fn accounts(trace: &Trace) -> Vec<WindowAccount> {
    trace.index().windows.iter().map(|w| w.account).collect()
}

/// The accounts of windows of references.
fn of_references(trace: &Trace) -> Vec<WindowAccount> {
    let mut all = accounts(trace);
    all.retain(|w| !w.why.is_of_regions());
    all
}

/// When a turn began and ended, ns.
type Span = (u64, u64);

/// The program's turns.
fn turns(r: &StepResult) -> Result<Vec<Span>> {
    let lines = r.stderr.lines().filter_map(|l| l.strip_prefix("turn "));
    let turn = |line: &str| -> Result<Span> {
        let (begin, end) = line.split_once(' ').context("two times")?;
        Ok((begin.parse()?, end.parse()?))
    };
    lines.map(turn).collect()
}

/// The reports of regions of a trace, without and within windows of references.
fn reports(trace: &Trace) -> Result<[usize; 2]> {
    let windows = accounts(trace);
    let mut merge = Merge::of_kinds(trace, &[StreamKind::Event]);
    let mut found = [0, 0];
    while let Next::Event(event) = merge.fill(&mut Vec::new(), 1)? {
        if matches!(event.body, Body::Region(_)) {
            let has = |w: &&WindowAccount| (w.first_seq..=w.last_seq).contains(&event.seq);
            let window = windows.iter().find(has).context("a report in no window")?;
            found[usize::from(!window.why.is_of_regions())] += 1;
        }
    }
    Ok(found)
}

/// The pages of the program's blocks that a window has references to, and how many references these are.
fn block_pages(trace: &Trace, window: u32) -> Result<(BTreeSet<u64>, usize)> {
    let trace = trace.only_window(window)?;
    let mut merge = Merge::of_kinds(&trace, &[StreamKind::Ref]);
    let (mut refs, mut pages, mut count) = (Vec::new(), BTreeSet::new(), 0);
    loop {
        let step = merge.fill(&mut refs, 1 << 16)?;
        for r in refs.drain(..) {
            let page = (r.address() >> 12).wrapping_sub(BASE >> 12);
            if page < APART + PAGES && !r.flags().continues() {
                pages.insert(page);
                count += 1;
            }
        }
        if matches!(step, Next::End) {
            return Ok((pages, count));
        }
    }
}

fn change(kernel: &str) -> Result<()> {
    let options = format!("--trace {WINDOW_MS}ms --skip {SKIP_MS}ms --on-change 30%");
    let mut steps = vec![debian(
        "plain",
        &format!("phases {PAGES} {APART} {TURN_MS} 1"),
    )];
    steps.extend(traced(0, "turns", &options, TURNS));
    // Nothing changes.
    steps.extend(traced(1, "steady", &options, 1));
    let out = machine("between-exact", kernel, Profile::Exact, steps)?;
    let plain = out.step("plain")?;
    for name in ["turns", "steady"] {
        let r = out.step(name)?;
        ensure!(r.rc == 0 && r.stdout == plain.stdout, "{r:?}");
    }
    // A program that begins is a change, too.
    let (trace, turn) = (
        good(&out.kept(1, "steady.vmt")?)?,
        turns(out.step("steady")?)?,
    );
    let begin = turn.first().context("no turn")?.0;
    let late = |w: &WindowAccount| w.start_time_ns.saturating_sub(begin) / 1_000_000;
    let windows = of_references(&trace);
    ensure!(
        windows.len() < 2 && windows.iter().all(|w| late(w) < SKIP_MS + WITHIN_MS),
        "{windows:?}, although nothing changes"
    );

    let trace = good(&out.kept(0, "turns.vmt")?)?;
    let [between, within] = reports(&trace)?;
    ensure!(
        between > 100 && within == 0,
        "{between} regions, {within} in windows"
    );
    let turns = turns(out.step("turns")?)?;
    ensure!(turns.len() == TURNS, "{turns:?}");
    let windows = of_references(&trace);
    // Each turn but the first one begins with a change.
    let mut missed: BTreeSet<usize> = (1..TURNS).collect();
    let (mut latest, mut again) = (0, Vec::new());
    for w in &windows {
        let after = turns.partition_point(|(begin, _)| *begin <= w.start_time_ns);
        let turn = after
            .checked_sub(1)
            .context("a window before the first turn")?;
        let late = w.start_time_ns - turns[turn].0;
        if late < WITHIN_MS * 1_000_000 {
            latest = latest.max(late);
        } else {
            // At the beginning, all is new. And the block that comes into use may be found later than it
            // is noticed that the other one has gone out of use. Then a window is due, and waits for its time.
            again.push(turn);
            let within = WITHIN_MS + SKIP_MS + WINDOW_MS;
            ensure!(
                late < within * 1_000_000 && (turn == 0 || !missed.contains(&turn)),
                "window {} begins {late} ns after turn {turn}",
                w.number
            );
        }
        missed.remove(&turn);
        let length = w.stop_time_ns - w.start_time_ns;
        ensure!(
            (WINDOW_MS..2 * WINDOW_MS).contains(&(length / 1_000_000)),
            "window {} takes {length} ns",
            w.number
        );
        let (pages, count) = block_pages(&trace, w.number)?;
        let first = if turn % 2 == 0 { 0 } else { APART };
        let block: BTreeSet<u64> = (first..first + PAGES).collect();
        ensure!(
            pages == block && count > 10 * PAGES as usize,
            "window {} has {count} references to {} pages of the blocks",
            w.number,
            pages.len()
        );
    }
    ensure!(
        missed.is_empty(),
        "turns {missed:?} have no window: {windows:?}"
    );
    ensure!(
        again.len() <= 2,
        "further windows in the turns {again:?}: {windows:?}"
    );
    say!(
        "  {} windows, {} of them within {:.1} ms of a change; {between} regions",
        windows.len(),
        windows.len() - again.len(),
        latest as f64 / 1e6
    );
    Ok(())
}

fn plan(kernel: &str) -> Result<()> {
    let program = format!("phases {PAGES} {APART} 100 4");
    let options = format!("{SAMPLING} --trace 10ms --skip 40ms --warmup 20ms -n {N}");
    let steps = vec![
        debian(
            "run",
            &format!("activator run {options} --rotate 100ms -o /tmp/pieces -- {program}"),
        ),
        debian("join", "postproc join /tmp/pieces -o /tmp/plan.vmt"),
        debian("keep", "keep 0 /tmp/plan.vmt"),
    ];
    let out = machine("between-plan", kernel, Profile::Exact, steps)?;
    for step in ["run", "join"] {
        let r = out.step(step)?;
        ensure!(r.rc == 0, "{r:?}");
    }
    let trace = good(&out.kept(0, "plan.vmt")?)?;
    let why: Vec<&str> = accounts(&trace).iter().map(|w| w.why.name()).collect();
    let kinds: Vec<bool> = accounts(&trace)
        .iter()
        .map(|w| w.why.is_of_regions())
        .collect();
    // The first window is one of regions, and no two of references follow each other.
    ensure!(
        kinds[0] && kinds.windows(2).all(|two| two[0] || two[1]),
        "{why:?}: {kinds:?}"
    );
    let of_references = trace.windows_of_references().len();
    ensure!((6..=9).contains(&of_references), "{why:?}");
    let [between, within] = reports(&trace)?;
    ensure!(
        between > 20 && within == 0,
        "{between} regions, {within} in windows"
    );
    let pieces = out.step("run")?;
    say!(
        "  {of_references} windows of {} with regions between them",
        why.len()
    );
    ensure!(!pieces.stderr.contains("BAD"), "{pieces:?}");
    Ok(())
}

fn requests(kernel: &str) -> Result<()> {
    let ask =
        |word: &str| format!("for i in $(seq 12); do activator {word} >/dev/null; sleep 0.2; done");
    let steps = vec![
        debian(
            "on",
            "activator on --all --between 5ms --aggregate 50ms --update 200ms --on-change 20% \
             --trace 300ms --skip 500ms -n 512 --rotate 1h -o /tmp/pieces",
        ),
        debian(
            "work",
            &format!(
                "({}) & ({}) & ({}) & (for i in $(seq 6); do activator rotate; sleep 0.4; done) & \
                 for i in $(seq 20); do phases 256 2048 200 2 >/dev/null 2>&1; ls -lR /usr/share >/dev/null; done; \
                 wait",
                ask("resume"),
                ask("pause"),
                ask("status"),
            ),
        ),
        debian("off", "activator off --json"),
        debian("pieces", "ls /tmp/pieces | wc -l"),
        debian("check", "postproc check /tmp/pieces"),
        debian("join", "postproc join /tmp/pieces -o /tmp/all.vmt"),
        debian("keep", "keep 0 /tmp/all.vmt"),
    ];
    let out = machine("between-smp", kernel, Profile::Smp, steps)?;
    for step in ["on", "work", "off", "check", "join"] {
        let r = out.step(step)?;
        ensure!(r.rc == 0, "{r:?}");
    }
    let trace = good(&out.kept(0, "all.vmt")?)?;
    let all = accounts(&trace);
    let windows = of_references(&trace).len();
    let because = |name: &str| {
        all.iter()
            .filter(|w| w.why.is_of_regions() && w.why.name() == name)
            .count()
    };
    let (asked, changed) = (because("resume"), because("change"));
    let pieces: usize = out.step("pieces")?.stdout.trim().parse()?;
    let [between, within] = reports(&trace)?;
    say!(
        "  {} windows of references ({asked} asked for, {changed} for a change), {pieces} pieces, {between} regions",
        windows
    );
    ensure!(
        asked > 0 && changed > 0 && pieces > 3,
        "{asked} windows were asked for, {changed} began for a change; {pieces} pieces"
    );
    ensure!(
        between > 50 && within == 0,
        "{between} regions, {within} in windows"
    );
    Ok(())
}
