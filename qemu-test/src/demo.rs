//! The main job: traces real programs, checks the trace, and writes simulator input.

use crate::machine::Profile;
use crate::scenarios::workload;
use crate::{paths, postproc};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Command;

/// Runs it with a set of `n` pages and prints the summary.
///
/// # Errors
///
/// If anything fails, differs, is lost or is violated.
pub fn run(n: u32, kernel: &str) -> Result<()> {
    eprintln!("booting the patched kernel; tracing sqlite3 (200,000 rows) and gcc with N={n} …");
    let out = workload::trace(n, Profile::Fast, workload::ROWS, kernel)?;
    let dir = paths::build().join("out");
    fs::create_dir_all(&dir)?;
    let trace = dir.join("trace.vmt");
    copy(&out.trace(), &trace)?;

    eprintln!("checking {} …", paths::shown(&trace));
    let (rc, check) = postproc::json(&["check"], &trace)?;
    eprintln!("drawing the report …");
    let report = Command::new(paths::tool("postproc"))
        .arg("report")
        .arg(&trace)
        .arg("-o")
        .arg(&dir)
        .stdout(std::process::Stdio::null())
        .status()?;
    let export = dir.join("trace.oracleGeneral.zst");
    eprintln!("writing simulator input …");
    let exported = Command::new(paths::tool("postproc"))
        .arg("export")
        .arg(&trace)
        .args(["--format", "oracleGeneral", "-o"])
        .arg(&export)
        .stdout(std::process::Stdio::null())
        .status()?;
    if !report.success() || !exported.success() {
        bail!("postproc failed: report {report}, export {exported}");
    }

    let status: Value = serde_json::from_str(&out.step("status")?.stdout)
        .context("cannot read the activator's status")?;
    let figure = |name: &str| status[name].as_u64().unwrap_or(u64::MAX);
    let summary: Value = serde_json::from_slice(&fs::read(dir.join("summary.json"))?)?;
    let plain = out.step("plain")?.ns as f64 / 1e9;
    let traced = out.step("traced")?.ns as f64 / 1e9;
    let lost = figure("lost_full") + figure("lost_atomic") + figure("lost_io");
    let violations: u64 = check["rules"]
        .as_array()
        .context("`postproc check` lists no rules")?
        .iter()
        .map(|r| r["errors"].as_u64().unwrap_or(1))
        .sum();
    let traced_by = [
        format!(
            "references      {:>12}   in a set of N={n} pages",
            check["references"].as_u64().unwrap_or(u64::MAX)
        ),
        format!("events          {:>12}", figure("events")),
        format!(
            "pages           {:>12}   distinct, canonical",
            summary["distinct_pages"].as_u64().unwrap_or(u64::MAX)
        ),
        format!(
            "processes       {:>12}",
            summary["processes"].as_u64().unwrap_or(u64::MAX)
        ),
        format!(
            "faults / second {:>12.0}",
            figure("admissions") as f64 / traced
        ),
        format!(
            "slowdown        {:>11.2}x   {plain:.2} s untraced, {traced:.2} s traced",
            traced / plain
        ),
        format!("violations      {violations:>12}"),
        format!("lost            {lost:>12}"),
        format!("funny PTEs      {:>12}", figure("funny")),
    ];
    let report = dir.join("report.html");
    fs::metadata(&report).with_context(|| format!("{}", report.display()))?;
    println!();
    print!("{}", next(&dir, &trace));
    println!();
    for line in traced_by {
        println!("{line}");
    }
    println!("the trace       {}", paths::shown(&trace));
    println!("the report      {}", paths::shown(&report));
    println!(
        "fault curve     {}",
        paths::shown(&dir.join("fault-curve.svg"))
    );
    println!("simulator input {}", paths::shown(&export));
    if rc != 0 || violations != 0 || lost != 0 || figure("funny") != 0 {
        bail!("the trace is not good:\n{}", postproc::explain(&trace));
    }
    Ok(())
}

/// What to do next, with commands that work as they are printed.
fn next(dir: &Path, trace: &Path) -> String {
    let (postproc, trace) = (paths::command("postproc"), paths::shown(trace));
    format!(
        "next: open {report} in a browser; or\n\
         \x20   # misses of a memory of each size\n\
         \x20   {postproc} simulate {trace} --policy lru,opt --curve\n\
         \x20   # what each program mapped, started and executed\n\
         \x20   {postproc} events {trace} --type map,fork,exec\n\
         \x20   # trace programs of your own\n\
         \x20   make shell\n",
        report = paths::shown(&dir.join("report.html"))
    )
}

/// Takes the trace off the guest's raw disk, as a file of its length.
fn copy(disk: &Path, file: &Path) -> Result<()> {
    let (_, info) = postproc::json(&["info"], disk)?;
    let bytes = info["bytes"]
        .as_u64()
        .context("`postproc info` gives no length")?;
    let copied = std::io::copy(&mut File::open(disk)?.take(bytes), &mut File::create(file)?)?;
    anyhow::ensure!(copied == bytes, "{} is cut short", disk.display());
    Ok(())
}
