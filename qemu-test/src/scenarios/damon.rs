//! A real DAMON in the guest, held against the exact trace of the same time.

use super::Scenario;
use crate::machine::{Machine, Profile, step};
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The scenario.
pub fn scenario() -> Scenario {
    Scenario {
        name: "damon-record".into(),
        about: "the error of a real DAMON, measured by the trace; of other pages, another error",
        run: Box::new(run),
    }
}

/// Seconds that DAMON samples.
const SECONDS: &str = "4";

fn run(kernel: &str) -> Result<()> {
    let out = Machine {
        name: format!("damon-record-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps: vec![step("record", &["/bin/damon-record", SECONDS])],
        deadline_s: 600,
    }
    .run()?;
    let r = out.step("record")?;
    ensure!(r.rc == 0, "it fails: {r:?}");
    let (pid, record) = r
        .stdout
        .split_once('\n')
        .context("a process and a record")?;
    let compare = |name: &str, record: &str| -> Result<Value> {
        let path = out.dir.join(name);
        std::fs::write(&path, record)?;
        let path = path.to_string_lossy();
        let args = [
            "damon",
            "--record",
            &path,
            "--process",
            pid,
            "--sampling",
            "5ms",
        ];
        let (rc, answer) = postproc::json(&args, &out.trace())?;
        ensure!(rc == 0, "postproc damon exits with {rc}: {answer}");
        Ok(answer["comparison"].clone())
    };
    let figure = |c: &Value, name: &str| c[name].as_f64().context(format!("{name} in {c}"));
    let right = compare("damon.txt", record)?;
    let snapshots = figure(&right, "snapshots")?;
    ensure!(snapshots >= 20.0, "{snapshots} snapshots within the trace");
    // The trace is exact where every page is used in every interval or in none.
    ensure!(
        right["least"] == right["most"],
        "the working set's bounds differ: {right}"
    );
    for name in ["found", "false_share", "wrong", "working_set_error"] {
        say!("  {name} {:.1} %", 100.0 * figure(&right, name)?);
    }
    // How much it finds is chance: 37 and 49 % were seen. The control: elsewhere.
    let elsewhere = compare("elsewhere.txt", &moved(record))?;
    let (found, there) = (figure(&right, "found")?, figure(&elsewhere, "found")?);
    ensure!(
        found > 0.15 && there == 0.0,
        "found {found}, and {there} by a record of other pages"
    );
    Ok(())
}

/// Further on, where the program has no memory.
const AWAY: u64 = 1 << 30;

/// The record with all regions elsewhere.
fn moved(record: &str) -> String {
    let word = |w: &str| {
        let range = w.strip_suffix(':').and_then(|range| range.split_once('-'));
        let number = |text: &str| text.parse::<u64>().ok();
        match range.and_then(|(a, b)| Some((number(a)?, number(b)?))) {
            Some((a, b)) => format!("{}-{}:", a + AWAY, b + AWAY),
            None => w.into(),
        }
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    record.lines().map(line).collect::<Vec<_>>().join("\n")
}
