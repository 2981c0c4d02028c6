//! Pages of hugetlb that are larger than a table of PTEs. Those of 2 MiB are among the
//! corners.

use super::Scenario;
use super::corners::healthy;
use crate::machine::{Machine, Profile, step};
use crate::postproc;
use crate::runner::say;
use ::postproc::trace::{Body, Merge, Step, Trace};
use anyhow::{Result, ensure};
use serde_json::Value;

/// The scenario, of `make corners`: it needs 6 GiB.
pub fn full() -> Vec<Scenario> {
    vec![Scenario {
        name: "huge-1g".into(),
        about: "a page of 1 GiB is one member: touched, handed out, copied",
        run: Box::new(run),
    }]
}

const GIB: u64 = 1 << 30;
/// Where the program has it.
const BASE: u64 = 0x1000_0000_0000;
/// Rounds in which it is touched, with more small pages in between than the set has.
const ROUNDS: usize = 10;

fn run(kernel: &str) -> Result<()> {
    let out = Machine {
        name: format!("huge-1g-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: false,
        cmdline: "hugepagesz=1G hugepages=2".into(),
        files: vec![],
        steps: vec![
            step("plain", &["/bin/huge-tlb", "giant"]),
            step(
                "traced",
                &[
                    "/bin/activator",
                    "run",
                    "-n",
                    "64",
                    "-o",
                    "/tmp/a.vmt",
                    "--",
                    "/bin/huge-tlb",
                    "giant",
                ],
            ),
            step("status", &["/bin/activator", "status", "--json"]),
            step("keep", &["/bin/keep", "0", "/tmp/a.vmt"]),
        ],
        deadline_s: 600,
    }
    // Pages of 1 GiB lie where nothing else does: above the hole below 4 GiB.
    .run_with(&["-m".into(), "6144".into()])?;
    for r in &out.results {
        ensure!(r.rc == 0, "{r:?}");
    }
    let plain = &out.step("plain")?.stdout;
    let traced = &out.step("traced")?.stdout;
    ensure!(plain == traced, "{traced:?} instead of {plain:?}");
    ensure!(plain.contains("giant 64 1 60 55"), "{plain:?}");
    let status: Value = serde_json::from_str(&out.step("status")?.stdout)?;
    healthy(&status)?;
    ensure!(status["uncovered"] == 0, "{status}");

    let path = out.kept(0, "a.vmt")?;
    let (rc, report) = postproc::json(&["check", "--frames"], &path)?;
    ensure!(rc == 0, "{report}");
    let trace = Trace::open(&path)?;
    let mut merge = Merge::new(&trace);
    let mut refs = Vec::new();
    let (mut handed, mut copies) = (0, 0);
    loop {
        match merge.fill(&mut refs, usize::MAX)? {
            Step::Full | Step::End => break,
            Step::Event(e) => match e.body {
                Body::Gup { page: BASE, .. } => handed += 1,
                // The first page, and the copy.
                Body::Cow(f) => copies += usize::from(f.page == BASE),
                _ => {}
            },
        }
    }
    refs.retain(|r| !r.flags().continues() && (BASE..BASE + GIB).contains(&r.address()));
    let within = refs.iter().filter(|r| r.address() != BASE).count();
    ensure!(within == 0, "{within} references within the page");
    // And by the child, which reads and writes, and after it.
    ensure!(
        refs.len() >= ROUNDS + 2,
        "{} references to the page",
        refs.len()
    );
    ensure!(handed == 1, "it was handed out {handed} times");
    ensure!(copies == 2, "{copies} copies");
    say!("  {} references to a page of 1 GiB", refs.len());
    Ok(())
}
