//! A real DAMON in the guest, held against the exact trace of the same time.

use super::Scenario;
use crate::machine::{Machine, Profile, debian, step};
use crate::runner::say;
use crate::{loads, paths, postproc};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let record = Scenario {
        name: "damon-record".into(),
        about: "the error of a real DAMON, measured by the trace; of other pages, another error",
        run: Box::new(run),
    };
    let truth = |name: &'static str, program: fn() -> String| Scenario {
        name: format!("damon-truth-{name}"),
        about: "a test of DAMON with a real program knows its working sets to one percent",
        run: Box::new(move |kernel| truth(name, &program(), kernel)),
    };
    vec![
        record,
        truth("python3", || "python3 /work/job.py 200000".into()),
        truth("sqlite3", sqlite3),
    ]
}

fn sqlite3() -> String {
    let fill = "CREATE TABLE t(k INTEGER, more BLOB); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL \
        SELECT i + 1 FROM n WHERE i < 300000) INSERT INTO t SELECT (i * 7919) % 200003, \
        zeroblob(400) FROM n; CREATE INDEX tk ON t(k);";
    let read = "SELECT sum(k) FROM t WHERE k % 3 = 1; PRAGMA integrity_check;";
    format!("sqlite3 /tmp/db \"PRAGMA cache_size = 8000; {fill} {read}\"")
}

/// The test of DAMON, in the style of the kernel's.
const TEST: &str = include_str!("../../selftests/damon_truth.py");

/// Runs the test of DAMON with a program.
fn truth(name: &str, program: &str, kernel: &str) -> Result<()> {
    let helper = paths::build().join("linux/tools/testing/selftests/damon/_damon_sysfs.py");
    let helper = std::fs::read(&helper).with_context(|| helper.display().to_string())?;
    let mut files = loads::files();
    files.push(("damon_truth.py".into(), TEST.into()));
    files.push(("_damon_sysfs.py".into(), helper));
    let test = |options: &str| {
        format!(
            "rm -f /tmp/db; PYTHONDONTWRITEBYTECODE=1 python3 /work/damon_truth.py {options} -- \
             {program}"
        )
    };
    let short = "--least 5 --seconds 1";
    let out = Machine {
        name: format!("damon-truth-{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: true,
        cmdline: String::new(),
        files,
        steps: vec![
            debian("whole", &test("--json --acceptable 100")),
            // The controls: DAMON does not find all, and a trace with long stays is no truth.
            debian("strict", &test(&format!("{short} --acceptable 0.0001"))),
            debian(
                "vague",
                &test(&format!("{short} -n 65536 --interval 200ms")),
            ),
        ],
        deadline_s: 900,
    }
    .run()?;
    let r = out.step("whole")?;
    ensure!(r.rc == 0, "{name}: {r:?}");
    let last = r.stdout.lines().last().unwrap_or_default();
    let found: Value = serde_json::from_str(last).with_context(|| last.to_owned())?;
    let figure = |name: &str| found[name].as_f64().with_context(|| last.to_owned());
    say!(
        "  {name}: working set known to {:.2} %; DAMON's error {:.0} %, found {:.0} %, false {:.0} %",
        100.0 * figure("truth")?,
        100.0 * figure("error")?,
        100.0 * figure("found")?,
        100.0 * figure("false_share")?
    );
    ensure!(figure("truth")? <= 0.01, "{last}");
    for (name, code, told) in [
        ("strict", 1, "the error rate is not acceptable"),
        ("vague", 2, "the truth is not exact enough"),
    ] {
        let r = out.step(name)?;
        ensure!(r.rc == code && r.stdout.contains(told), "{name}: {r:?}");
    }
    Ok(())
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
