//! References counted by process and mapping (`--count`, `activator top`).

use super::Scenario;
use crate::machine::{Machine, Profile, debian};
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "counted".into(),
            about: "counts by process and mapping are those of the trace's references, on two CPUs",
            run: Box::new(counts),
        },
        Scenario {
            name: "counted-alone".into(),
            about: "`activator top` without a trace: counts add up, nothing is written, and it ends well",
            run: Box::new(alone),
        },
    ]
}

/// The last line is the counts of a window that is over, since the trace began.
const COUNTED: &str = r#"
activator run -q -n 64 --count --paused -o /tmp/counted.vmt -- sh -c '
	activator resume
	{ sqlite3 :memory: "CREATE TABLE t(a); INSERT INTO t VALUES (1); SELECT * FROM t;"; fork-cow; } & threads
	fork-storm 4
	wait
	activator pause
	activator top --once --json --by both -d 0.2 >/tmp/counts' >/dev/null
keep 0 /tmp/counted.vmt
cat /tmp/counts
"#;

/// References of a trace that fit an expression.
fn kept(trace: &Path, expr: &str) -> Result<u64> {
    let args = [
        "simulate", "--policy", "lru", "--size", "64", "--where", expr,
    ];
    let (rc, report) = match postproc::json(&args, trace) {
        Err(e) if format!("{e:#}").contains("keeps no reference") => return Ok(0),
        other => other?,
    };
    ensure!(rc == 0, "{expr}: {report}");
    let kept = &report["filter"]["kept"];
    kept.as_u64().with_context(|| format!("{expr}: {report}"))
}

fn counts(kernel: &str) -> Result<()> {
    let out = Machine {
        name: format!("counted-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps: vec![debian("counted", COUNTED)],
        deadline_s: 600,
    }
    .run()?;
    let r = out.step("counted")?;
    ensure!(r.rc == 0, "{r:?}");
    let trace = out.kept(0, "counted.vmt")?;
    let (rc, _) = postproc::json(&["check", "--frames"], &trace)?;
    ensure!(rc == 0, "{}", postproc::explain(&trace));
    let line = r.stdout.lines().last().context("no counts")?;
    let told: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
    let rows = told["mappings"].as_array().context("no rows")?;
    let number =
        |row: &Value, key: &str| row[key].as_u64().with_context(|| format!("{key}: {row}"));
    let mut sum = number(&told, "elsewhere_total")?;
    let (mut same, mut anonymous) = (0, (0, 0));
    for row in rows {
        let all = number(row, "references_total")?;
        sum += all;
        let kind = row["mapping_kind"].as_str().context("kind")?;
        let mapping = row["mapping"].as_str().context("mapping")?;
        if kind == "anon" {
            // The kernel and the events may call it by different names.
            anonymous.0 += all;
            continue;
        }
        let of = format!("mapping_kind == {kind} && mapping == \"{mapping}\"");
        for (key, more) in [
            ("references_total", ""),
            ("writes_total", "&& kind == write && mode == user"),
            ("fetches_total", "&& kind == exec && mode == user"),
            ("kernel_total", "&& mode == kernel"),
        ] {
            let found = kept(&trace, &format!("{of} {more}"))?;
            ensure!(
                number(row, key)? == found,
                "{of} {more}: {found}, and {row}"
            );
        }
        same += 1;
    }
    // A process that was made by vfork() uses its maker's address space, which has one count.
    let processes = told["processes"].as_array().into_iter().flatten();
    let of_all: u64 = processes
        .filter_map(|row| row["references_total"].as_u64())
        .sum();
    anonymous.1 = kept(&trace, "mapping_kind == anon")?;
    let all = kept(&trace, "pid >= 0")?;
    say!("  {all} references; {same} mappings agree, and {anonymous:?} to anonymous memory");
    ensure!(
        anonymous.0 == anonymous.1 && sum == all && of_all == all,
        "{sum} of {all}, anonymous: {anonymous:?}"
    );
    ensure!(
        same >= 8 && number(&told, "references_total")? == all,
        "{told}"
    );
    Ok(())
}

const ALONE: &str = r#"
cd /tmp
activator top --once --json -N 64 -- families 2 2 >once 2>/dev/null
tail -n 1 once
activator top -n 3 -d 0.2 --json -- sh -c 'families 2 2; sleep 2; exit 7' >rounds 2>/dev/null || echo "code $?"
echo "rounds $(wc -l <rounds)"
families 2 40 >/dev/null 2>&1 & work=$!
activator top -p $work -n 2 -d 0.3 2>/dev/null | head -n 30 >table
echo "rows $(grep -c families table)"
activator top -d 0.1 >/dev/null 2>&1 & top=$!
sleep 1
kill -INT $top
rc=0
wait $top || rc=$?
echo "interrupted $rc"
kill $work
echo "state $(activator status --json | grep -o '"state":[0-9]')"
ls *.vmt 2>/dev/null | wc -l
"#;

fn alone(kernel: &str) -> Result<()> {
    let out = Machine {
        name: format!("counted-alone-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps: vec![debian("alone", ALONE)],
        deadline_s: 600,
    }
    .run()?;
    let r = out.step("alone")?;
    say!(
        "  {}",
        r.stdout.lines().skip(1).collect::<Vec<_>>().join("; ")
    );
    ensure!(r.rc == 0, "{r:?}");
    let told: Value = serde_json::from_str(r.stdout.lines().next().context("nothing")?)?;
    let sum = |of: &str| -> u64 {
        let rows = told[of].as_array().into_iter().flatten();
        rows.filter_map(|row| row["references_total"].as_u64())
            .sum()
    };
    let [all, elsewhere, records] =
        ["references_total", "elsewhere_total", "records_total"].map(|key| told[key].as_u64());
    let (all, elsewhere) = (all.context("no sum")?, elsewhere.context("no sum")?);
    say!("  {all} references, {elsewhere} of them elsewhere, {records:?} records");
    ensure!(records == Some(0), "{told}");
    ensure!(all > 1000 && sum("processes") + elsewhere == all, "{told}");
    ensure!(sum("mappings") + elsewhere == all, "{told}");
    for text in ["code 7", "rounds 3", "interrupted 130", "\"state\":0"] {
        ensure!(r.stdout.contains(text), "{text}: {r:?}");
    }
    ensure!(
        !r.stdout.contains("rows 0") && r.stdout.trim().ends_with('0'),
        "{r:?}"
    );
    Ok(())
}
