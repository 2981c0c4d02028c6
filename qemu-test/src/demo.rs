//! The main job: trace real programs, check, and hand on simulator input.

use crate::machine::Profile;
use crate::scenarios::workload;
use crate::{paths, postproc};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::process::Command;

/// Runs it with a set of `n` pages and prints the summary.
///
/// # Errors
///
/// If anything fails, differs, is lost or is violated.
pub fn run(n: u32, kernel: &str) -> Result<()> {
    eprintln!("booting the patched kernel; tracing sqlite3 (200,000 rows) and gcc with N={n} …");
    let out = workload::trace(n, Profile::Fast, workload::ROWS, kernel)?;
    let trace = out.trace();
    let dir = paths::build().join("out");
    std::fs::create_dir_all(&dir)?;

    eprintln!("validating {} …", trace.display());
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
        .context("the activator's figures can't be read")?;
    let figure = |name: &str| status[name].as_u64().unwrap_or(u64::MAX);
    let summary: Value = serde_json::from_slice(&std::fs::read(dir.join("summary.json"))?)?;
    let plain = out.step("plain")?.ns as f64 / 1e9;
    let traced = out.step("traced")?.ns as f64 / 1e9;
    let lost = figure("lost_full") + figure("lost_atomic") + figure("lost_io");
    let violations: u64 = check["rules"]
        .as_array()
        .context("postproc check names no rules")?
        .iter()
        .map(|r| r["errors"].as_u64().unwrap_or(1))
        .sum();
    println!();
    println!(
        "references      {:>12}   in a set of N={n} pages",
        figure("refs")
    );
    println!("events          {:>12}", figure("events"));
    println!(
        "pages           {:>12}   distinct, canonical",
        summary["distinct_pages"].as_u64().unwrap_or(u64::MAX)
    );
    println!(
        "processes       {:>12}",
        summary["processes"].as_u64().unwrap_or(u64::MAX)
    );
    println!(
        "faults / second {:>12.0}",
        figure("admissions") as f64 / traced
    );
    println!(
        "slowdown        {:>11.2}x   {plain:.2} s untraced, {traced:.2} s traced",
        traced / plain
    );
    println!("violations      {violations:>12}");
    println!("lost            {lost:>12}");
    println!("funny PTEs      {:>12}", figure("funny"));
    println!("fault curve     {}", dir.join("fault-curve.svg").display());
    println!("simulator input {}", export.display());
    println!("the trace       {}", trace.display());
    if rc != 0 || violations != 0 || lost != 0 || figure("funny") != 0 {
        bail!("the trace is not good:\n{}", postproc::explain(&trace));
    }
    Ok(())
}
