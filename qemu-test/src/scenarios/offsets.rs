//! Offsets of accesses within their pages (`--offsets`): each record of a program that touches its pages
//! at known offsets has the right one, in traces that are packed and that are not.

use super::Scenario;
use crate::machine::{Machine, Profile, step};
use crate::postproc;
use crate::runner::say;
use ::postproc::trace::{Merge, Step, Trace};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::path::Path;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let one = |name: &str, profile| Scenario {
        name: name.into(),
        about: "each record has the offset of the access that its program made",
        run: Box::new(move |kernel| run(profile, kernel)),
    };
    vec![
        one("offsets", Profile::Fast),
        one("offsets-smp", Profile::Smp),
    ]
}

/// Options of the activator. Only the last run has a CLOCK.
const RUNS: [(&str, &str); 5] = [
    ("plain", ""),
    ("packed", "--pack"),
    ("both", "--virtual-time=60"),
    ("all", "--virtual-time=60 --pack --again"),
    ("clock", "--policy clock"),
];

const PAGE: u64 = 4096;
/// What the guest's program does.
const PAGES: u64 = 200;
const ROUNDS: u64 = 4;
const DATA: u64 = 0x1000_0000_0000;
const PAIRS: u64 = 0x1100_0000_0000;
const CODE: u64 = 0x1200_0000_0000;
const CALLS: u64 = 0x1300_0000_0000;

fn offset(i: u64, round: u64) -> u64 {
    (i * 1103 + round * 517) % (PAGE - 7)
}

/// One reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub(super) access: &'static str,
    pub(super) kernel: bool,
    pub(super) offset: Option<u64>,
}

pub(super) type Pages = BTreeMap<u64, Vec<Seen>>;

/// The references that the program makes to each of its pages.
pub(super) fn program() -> Pages {
    let mut pages = Pages::new();
    let mut touch = |base: u64, i: u64, access, kernel, offset| {
        pages.entry(base + i * PAGE).or_default().push(Seen {
            access,
            kernel,
            offset: Some(offset),
        });
    };
    for i in 0..PAGES {
        for round in 0..ROUNDS {
            let access = ["write", "read"][round as usize % 2];
            touch(DATA, i, access, false, offset(i, round));
        }
        // The second page of an access that spans two is accessed from its first byte on.
        let at = match i % 2 {
            0 => PAGE - 1 - i % 7,
            _ => 0,
        };
        touch(PAIRS, i, "read", false, at);
        touch(CODE, i, "write", false, offset(i, 0));
        touch(CODE, i, "exec", false, offset(i, 0));
        touch(CALLS, i, "write", true, offset(i, 0));
        touch(CALLS, i, "read", true, offset(i, 1));
    }
    pages
}

/// The references in a trace to pages of the program.
pub(super) fn read(path: &Path) -> Result<Pages> {
    let trace = Trace::open(path)?;
    ensure!(trace.header().has_offsets(), "the trace has no offsets");
    let mut merge = Merge::new(&trace);
    let mut pages = Pages::new();
    let mut refs = Vec::new();
    loop {
        let step = merge.fill(&mut refs, 4096)?;
        for r in refs.drain(..) {
            let flags = r.flags();
            if flags.continues() || !(DATA..CALLS + PAGES * PAGE).contains(&r.address()) {
                continue;
            }
            pages.entry(r.address()).or_default().push(Seen {
                access: flags.access().name(),
                kernel: flags.kernel(),
                offset: r.within(),
            });
        }
        if let Step::End = step {
            return Ok(pages);
        }
    }
}

/// Holds what is in the trace against what the program did.
pub(super) fn compare(found: &Pages, made: &Pages) -> Result<()> {
    for (page, made) in made {
        let found = found
            .get(page)
            .with_context(|| format!("no record of page {page:#x}"))?;
        ensure!(
            found == made,
            "page {page:#x}: {found:?} in the trace, and {made:?} made"
        );
    }
    ensure!(found.len() == made.len(), "records of other pages");
    Ok(())
}

/// With second chances, fewer accesses are recorded. Those that only an accessed bit has shown have no
/// offset, and the others have one that the program used.
fn compare_some(found: &Pages, made: &Pages) -> Result<()> {
    let mut seen = 0;
    for (page, found) in found {
        let made = made.get(page).context("a record of another page")?;
        for one in found {
            match one.access {
                "seen" => {
                    ensure!(one.offset.is_none(), "page {page:#x}: {one:?}");
                    seen += 1;
                }
                _ => ensure!(made.contains(one), "page {page:#x}: {one:?} of {made:?}"),
            }
        }
    }
    say!("  clock: {seen} references without an offset");
    Ok(())
}

fn run(profile: Profile, kernel: &str) -> Result<()> {
    let mut steps = Vec::new();
    for (slot, (name, options)) in RUNS.iter().enumerate() {
        let file = format!("/tmp/{name}.vmt");
        let command =
            format!("/bin/activator run -n 64 --offsets {options} -o {file} -- /bin/offsets");
        let argv: Vec<_> = command.split_whitespace().collect();
        steps.push(step(name, &argv));
        let keep = ["/bin/keep", &slot.to_string(), &file];
        steps.push(step(&format!("{name} keep"), &keep));
    }
    let out = Machine {
        name: format!("offsets-{}-{kernel}", profile.name()),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 300,
    }
    .run()?;
    let made = program();
    for (slot, (name, _)) in RUNS.iter().enumerate() {
        for what in [name.to_string(), format!("{name} keep")] {
            let r = out.step(&what)?;
            ensure!(r.rc == 0, "{what}: {r:?}");
        }
        let trace = out.kept(slot, &format!("{name}.vmt"))?;
        let (rc, _) = postproc::json(&["check", "--frames"], &trace)?;
        ensure!(rc == 0, "{name}: {}", postproc::explain(&trace));
        let mut found = read(&trace).with_context(|| name.to_string())?;
        if *name == "clock" {
            compare_some(&found, &made)?;
            continue;
        }
        compare(&found, &made).with_context(|| name.to_string())?;
        // A wrong offset would be found.
        for page in [DATA, PAIRS + PAGE, CODE + 7 * PAGE, CALLS + 199 * PAGE] {
            let records = found.get_mut(&page).context("no such page")?;
            let last = records.last_mut().context("no record")?;
            let right = last.offset;
            last.offset = right.map(|offset| offset ^ 8);
            if compare(&found, &made).is_ok() {
                bail!("{name}: a wrong offset in page {page:#x} is not found");
            }
            if let Some(last) = found.get_mut(&page).and_then(|r| r.last_mut()) {
                last.offset = right;
            }
        }
        let records: usize = made.values().map(Vec::len).sum();
        say!("  {name}: {records} offsets are right");
    }
    Ok(())
}
