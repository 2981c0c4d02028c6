//! Sampled pages whose accessed bits others clear, or look at: what they see is what they see without a trace,
//! and no access is missed for them. Without the hooks there, both fail.

use super::{Block, Boot, EXACT, Plan, Row, Run, of_block, of_program, rows};
use crate::machine::Outcome;
use crate::runner::say;
use anyhow::{Context, Result, ensure};

/// The program that clears accessed bits waits for so long after that, us: a few times as long as a look takes.
const PAUSE: u64 = 2000;

/// The least share of looks at its pages that find an access, and the largest one without the hooks. A look finds
/// one if the pages are read in its time, which is a fourth of the time from one round to the next.
const SEEN: f64 = 0.12;
const UNSEEN: f64 = 0.04;

fn clear(ms: u64) -> String {
    format!("/bin/young clear {ms} {} {PAUSE}", EXACT.pages)
}

fn see(ms: u64) -> String {
    format!("/bin/young see {ms} {}", EXACT.pages)
}

/// With all hooks, and without them.
pub fn run(kernel: &str) -> Result<()> {
    let (share, sees, alone) = boot("regions-young", "", kernel)?;
    say!("  {share:.3} of looks find an access that others hide; smaps: {sees}");
    ensure!(share >= SEEN, "accesses are missed: {share:.3} are found");
    let all = format!("{} KiB are referenced", 4 * EXACT.pages);
    ensure!(alone == all, "smaps, untraced: {alone} instead of {all}");
    ensure!(sees == alone, "smaps: {sees} instead of {alone}");
    let (share, sees, _) = boot("regions-young-without", "vmtrace_break=noyoung", kernel)?;
    say!("  without hooks: {share:.3}; smaps: {sees}");
    ensure!(
        share <= UNSEEN && sees != alone,
        "without hooks, {share:.3} are found, and smaps has {sees}: the control shows nothing"
    );
    Ok(())
}

/// The share of looks that find an access, and what smaps has of the pages while they are sampled, and untraced.
fn boot(name: &str, cmdline: &str, kernel: &str) -> Result<(f64, String, String)> {
    let plan = &EXACT;
    let options = plan.options("accessed");
    let b = Boot {
        name,
        kernel,
        profile: plan.profile,
        cmdline,
        plain: vec![("alone", see(super::SHORT))],
        runs: vec![
            Run::new("clear".into(), options.clone(), clear(plan.steady)),
            Run::new("see".into(), options, see(plan.steady)),
        ],
    };
    let out = b.run(vec![])?;
    for r in &out.results {
        ensure!(r.rc == 0, "{r:?}");
    }
    let sampled = rows(&out.kept(1, "see.vmt")?)?;
    ensure!(!sampled.is_empty(), "nothing was sampled");
    let text = |step: &str| -> Result<String> { Ok(out.step(step)?.stdout.trim().into()) };
    Ok((share(&out, plan)?, text("see")?, text("alone")?))
}

fn share(out: &Outcome, plan: &Plan) -> Result<f64> {
    let path = out.kept(0, "clear.vmt").context("the first run")?;
    let (rows, _): (Vec<Row>, _) = of_program(&rows(&path)?, plan, out.step("clear")?)?;
    Ok(of_block(&rows, plan, Block::Written)?.share)
}
