//! Events of the machine, which are recorded on request: pages that get other frames, by
//! swapping, KSM and migration; context switches.

use super::Scenario;
use super::corners::nodes;
use crate::machine::{Machine, Outcome, Profile, step};
use crate::postproc;
use crate::runner::say;
use ::postproc::trace::{Body, Event, Merge, Step, StreamKind, Trace};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let switches = |profile: Profile| Scenario {
        name: match profile {
            Profile::Smp => "switches-smp".into(),
            _ => "switches".into(),
        },
        about: "context switches: no gap, and as many as the kernel counts",
        run: Box::new(move |kernel| switches(kernel, profile)),
    };
    vec![
        Scenario {
            name: "frames".into(),
            about: "swapping, KSM and migration: each page, as pagemap shows it",
            run: Box::new(frames),
        },
        switches(Profile::Exact),
        switches(Profile::Smp),
    ]
}

/// Runs a program twice: with the events of a class, and with the usual ones.
fn run(
    name: &str,
    kernel: &str,
    profile: Profile,
    program: &[&str],
    classes: &str,
) -> Result<Outcome> {
    let traced = |events, trace| {
        let activator = ["/bin/activator", "run", "-n", "64", "--events", events];
        [&activator[..], &["-o", trace, "--"], program].concat()
    };
    let machine = Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps: vec![
            step("asked", &traced(classes, "/tmp/asked.vmt")),
            step("keep asked", &["/bin/keep", "0", "/tmp/asked.vmt"]),
            step("usual", &traced("usual", "/tmp/usual.vmt")),
            step("keep usual", &["/bin/keep", "1", "/tmp/usual.vmt"]),
        ],
        deadline_s: 300,
    };
    let out = machine.run_with(&nodes(profile))?;
    for r in &out.results {
        ensure!(r.rc == 0, "{r:?}");
    }
    Ok(out)
}

/// What `line` makes of the events of a trace that `postproc check` calls good.
pub(super) fn events<T>(
    path: &Path,
    mut line: impl FnMut(&Event<'_>) -> Option<T>,
) -> Result<Vec<T>> {
    let (rc, _) = postproc::json(&["check", "--frames"], path)?;
    ensure!(rc == 0, "check finds:\n{}", postproc::explain(path));
    let trace = Trace::open(path)?;
    let mut merge = Merge::of_kinds(&trace, &[StreamKind::Event]);
    let mut lines = Vec::new();
    while let Step::Event(event) = merge.fill(&mut Vec::new(), 1)? {
        lines.extend(line(&event));
    }
    Ok(lines)
}

/// Pages of the program, which prints what it does to these alone.
const BASE: u64 = 0x1000_0000_0000;

/// An event as the program prints it.
fn line(event: &Event<'_>) -> Option<String> {
    let (page, rest) = match event.body {
        Body::SwapIn(s) | Body::SwapOut(s) => (s.page, format!("{} {} {}", s.pfn, s.area, s.slot)),
        Body::Ksm(f) | Body::Migrate(f) => (f.page, format!("{} {}", f.old_pfn, f.new_pfn)),
        _ => return None,
    };
    let mine = (BASE..BASE + (1 << 33)).contains(&page);
    mine.then(|| format!("{} {page:#x} {rest}", event.name()))
}

fn frames(kernel: &str) -> Result<()> {
    let program = ["/bin/frames"];
    let out = run("frames", kernel, Profile::Exact, &program, "swap,frame")?;
    let mut parent = None;
    let path = out.kept(0, "asked.vmt")?;
    let mut got = events(&path, |e| {
        let line = line(e)?;
        // The first of them is of the parent.
        let parent = *parent.get_or_insert(e.mm);
        Some(if e.mm == parent {
            line
        } else {
            format!("child {line}")
        })
    })?;
    let told = &out.step("asked")?.stdout;
    let mut want: Vec<_> = told.lines().map(String::from).collect();
    // In what order pages are swapped out is the kernel's affair; none goes twice the
    // same way but at other times to other places.
    got.sort();
    want.sort();
    for kind in ["swap_out", "swap_in", "migrate", "ksm", "child swap_in"] {
        let n = want.iter().filter(|l| l.starts_with(kind)).count();
        ensure!(n >= 39, "{n} of {kind}: the program shows nothing:\n{told}");
        say!("  {n} {kind}");
    }
    let differ = got.iter().zip(&want).find(|(g, w)| g != w);
    ensure!(
        got == want,
        "{} events, {} lines; the first that differ: {differ:?}",
        got.len(),
        want.len()
    );
    let usual = events(&out.kept(1, "usual.vmt")?, line)?;
    ensure!(usual.is_empty(), "not asked for: {usual:?}");
    Ok(())
}

fn switches(kernel: &str, profile: Profile) -> Result<()> {
    let program = ["/bin/switches", "200"];
    let name = format!("switches-{}", profile.name());
    let out = run(&name, kernel, profile, &program, "switch")?;
    let told = &out.step("asked")?.stdout;
    let number = |after: &str| -> Result<u64> {
        let mut words = told.split_ascii_whitespace();
        let word = words.find(|w| *w == after).and_then(|_| words.next());
        word.and_then(|w| w.parse().ok())
            .with_context(|| format!("no {after} in {told:?}"))
    };
    let (parent, child, counted) = (number("parent")?, number("child")?, number("switches")?);
    let switch = |e: &Event<'_>| match e.body {
        Body::Switch { prev, next } => Some((e.cpu, u64::from(prev.0), u64::from(next.0))),
        _ => None,
    };
    let got = events(&out.kept(0, "asked.vmt")?, switch)?;
    // Its last one may come after its parent has asked.
    let left = got.iter().filter(|s| s.1 == child).count() as u64;
    ensure!(
        counted >= 100 && (counted..=counted + 1).contains(&left),
        "the child left the CPU {left} times, {counted} as the kernel has it"
    );
    // Who got a CPU is who leaves it, if that is traced.
    let mut on = BTreeMap::new();
    for &(cpu, prev, next) in &got {
        if let Some(last) = on.insert(cpu, next) {
            ensure!(
                last == prev || ![last, prev].iter().any(|t| [parent, child].contains(t)),
                "CPU {cpu} went to {last}, and from {prev}: {told}"
            );
        }
    }
    say!("  {} switches, {left} from the child", got.len());
    let usual = events(&out.kept(1, "usual.vmt")?, switch)?;
    ensure!(usual.is_empty(), "not asked for: {usual:?}");
    Ok(())
}
