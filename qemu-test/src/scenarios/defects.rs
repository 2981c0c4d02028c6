//! What kVMTrace 0.6 recorded wrongly: events as they must be, each field, and no others.

use super::Scenario;
use super::frames::events;
use crate::machine::{Machine, Outcome, Profile, step};
use crate::runner::say;
use ::postproc::trace::{Body, Event};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;

/// The scenario.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "defects".into(),
            about: "moves, copies, stacks, children: the exact events that 0.6 got wrong",
            run: Box::new(run),
        },
        Scenario {
            name: "cow-race-smp".into(),
            about: "two CPUs copy a page at the same moment: one copy is recorded",
            run: Box::new(race),
        },
    ]
}

/// Pages of the program, which prints what happens to these.
const BASE: u64 = 0x1000_0000_0000;
/// Processes of it have larger numbers than this, which 16 bits do not hold.
const PIDS: u32 = 1 << 16;

/// An event as the program prints it.
fn line(event: &Event<'_>) -> Option<String> {
    let (start, rest) = match event.body {
        Body::Map(map) => (map.start, format!("{:#x} {:#x}", map.start, map.end)),
        Body::Unmap { start, end } => (start, format!("{start:#x} {end:#x}")),
        Body::Move {
            old_start,
            old_len,
            new_start,
            new_len,
            ..
        } => {
            let grown = (new_len != old_len).then(|| format!(" to {new_len}"));
            let rest = format!("{old_start:#x} {new_start:#x} {old_len}");
            (old_start, rest + &grown.unwrap_or_default())
        }
        Body::Cow(f) => (f.page, format!("{:#x} {} {}", f.page, f.old_pfn, f.new_pfn)),
        Body::Fork {
            child_tid,
            child_tgid,
            child_mm,
            ..
        } if child_tid.0 > PIDS => {
            // Of an address space of its own, by its parent.
            let new = if child_mm == event.mm { " here" } else { "" };
            return Some(format!(
                "fork {} {} by {}{new}",
                child_tid.0, child_tgid.0, event.tgid.0
            ));
        }
        Body::Exit { .. } if event.tid.0 > PIDS => return Some(format!("exit {}", event.tid.0)),
        _ => return None,
    };
    let mine = (BASE..BASE + (1 << 33)).contains(&start);
    mine.then(|| format!("{} {rest}", event.name()))
}

/// Runs a program traced; all steps must succeed.
fn traced(name: &str, kernel: &str, profile: Profile, program: &str) -> Result<Outcome> {
    let activator = format!("/bin/activator run -n 64 -o /tmp/a.vmt -- {program}");
    let activator: Vec<_> = activator.split(' ').collect();
    let out = Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps: vec![
            step("traced", &activator),
            step("keep", &["/bin/keep", "0", "/tmp/a.vmt"]),
        ],
        deadline_s: 300,
    }
    .run()?;
    for r in &out.results {
        ensure!(r.rc == 0, "{r:?}");
    }
    Ok(out)
}

/// Pages that two threads write at once.
const RACED: i64 = 2000;

fn race(kernel: &str) -> Result<()> {
    let program = format!("/bin/cow-race {RACED}");
    let out = traced("cow-race-smp", kernel, Profile::Smp, &program)?;
    let mut copies = BTreeMap::new();
    events(&out.kept(0, "a.vmt")?, |e| {
        if let Body::Cow(f) = e.body {
            *copies.entry(f.page).or_insert(0) += i64::from(f.page >= BASE && f.page < 2 * BASE);
        }
        None::<()>
    })?;
    copies.retain(|_, n| *n > 0);
    let twice = copies.iter().find(|(_, n)| **n != 1);
    ensure!(
        twice.is_none(),
        "a copy that was not made is told: {twice:?}"
    );
    let told = copies.len() as i64;
    ensure!(told == RACED, "{told} of {RACED} copies are told");
    let faults = out.step("traced")?.stdout.trim().to_owned();
    let faults: i64 = faults
        .strip_prefix("faults ")
        .and_then(|n| n.parse().ok())
        .with_context(|| format!("the program printed {faults:?}"))?;
    let lost = faults - RACED;
    ensure!(lost > 20, "only {lost} faults lost: nothing is shown");
    say!("  {told} copies, {lost} faults more");
    Ok(())
}

fn run(kernel: &str) -> Result<()> {
    let out = traced("defects", kernel, Profile::Exact, "/bin/defects")?;
    let mut parent = None;
    let got = events(&out.kept(0, "a.vmt")?, |e| {
        let line = line(e)?;
        let told_of = ["fork ", "exit "].iter().any(|w| line.starts_with(w));
        if told_of {
            return Some(line);
        }
        // The first of the pages' events is of the parent.
        let parent = *parent.get_or_insert(e.mm);
        Some(if e.mm == parent {
            line
        } else {
            // Whose frames the program does not print.
            let words: Vec<_> = line.split(' ').take(2).collect();
            format!("child {}", words.join(" "))
        })
    })?;
    let told = &out.step("traced")?.stdout;
    let want: Vec<_> = told.lines().collect();
    let differ = got.iter().zip(&want).position(|(g, w)| g != w);
    let at = differ.unwrap_or(got.len().min(want.len()));
    ensure!(
        got == want,
        "event {at} is {:?} and should be {:?}",
        got.get(at),
        want.get(at)
    );
    for kind in ["fork", "exit", "child cow", "cow", "move", "unmap", "map"] {
        let of = |l: &&&str| l.starts_with(&format!("{kind} "));
        want.iter().find(of).with_context(|| format!("no {kind}"))?;
    }
    say!("  {} events", got.len());
    Ok(())
}
