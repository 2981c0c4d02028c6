//! What kVMTrace 0.6 told wrongly: events as they must be, each field, and no others.

use super::Scenario;
use super::frames::events;
use crate::machine::{Machine, Profile, step};
use crate::runner::say;
use ::postproc::trace::{Body, Event};
use anyhow::{Context, Result, ensure};

/// The scenario.
pub fn scenarios() -> Vec<Scenario> {
    vec![Scenario {
        name: "defects".into(),
        about: "moves, copies, stacks, children: what 0.6 got wrong, by exact events",
        run: Box::new(run),
    }]
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

fn run(kernel: &str) -> Result<()> {
    let activator = "/bin/activator run -n 64 -o /tmp/defects.vmt -- /bin/defects";
    let activator: Vec<_> = activator.split(' ').collect();
    let out = Machine {
        name: format!("defects-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps: vec![
            step("traced", &activator),
            step("keep", &["/bin/keep", "0", "/tmp/defects.vmt"]),
        ],
        deadline_s: 300,
    }
    .run()?;
    for r in &out.results {
        ensure!(r.rc == 0, "{r:?}");
    }
    let mut parent = None;
    let got = events(&out.kept(0, "defects.vmt")?, |e| {
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
