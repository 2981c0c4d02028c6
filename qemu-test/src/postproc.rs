//! Runs postproc on the host.

use crate::paths;
use crate::runner::say;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Exit code and JSON of `postproc ARGS… --json`.
///
/// # Errors
///
/// If it can't be run or prints no JSON.
pub fn json(args: &[&str], trace: &Path) -> Result<(i32, Value)> {
    let out = Command::new(paths::tool("postproc"))
        .arg(args.first().copied().unwrap_or("info"))
        .arg(trace)
        .args(args.iter().skip(1))
        .arg("--json")
        .output()
        .context("postproc is missing: run 'make tools'")?;
    let rc = out.status.code().unwrap_or(255);
    let value = serde_json::from_slice(&out.stdout).with_context(|| {
        format!(
            "postproc {args:?} printed no JSON (exit code {rc}): {}",
            String::from_utf8_lossy(&out.stderr)
        )
    })?;
    Ok((rc, value))
}

/// What `postproc events --json ARGS…` lists, of a trace that is whole.
///
/// # Errors
///
/// If it can't be run or fails.
pub fn events(args: &[&str], trace: &Path) -> Result<Vec<Value>> {
    let out = Command::new(paths::tool("postproc"))
        .args(["events", "--json"])
        .args(args)
        .arg(trace)
        .output()
        .context("postproc is missing: run 'make tools'")?;
    anyhow::ensure!(
        out.status.success(),
        "postproc events failed: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout)?
        .lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

/// The reports of regions as `postproc regions --csv` writes them, of a trace that is whole.
///
/// # Errors
///
/// If it can't be run or fails.
pub fn regions(trace: &Path) -> Result<String> {
    let out = Command::new(paths::tool("postproc"))
        .args(["regions", "--csv"])
        .arg(trace)
        .output()
        .context("postproc is missing: run 'make tools'")?;
    anyhow::ensure!(
        out.status.success(),
        "postproc regions failed: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(String::from_utf8(out.stdout)?)
}

/// The references as `postproc export --format csv` writes them, of a trace that is not good
/// too.
///
/// # Errors
///
/// If it can't be run or fails.
pub fn csv(trace: &Path) -> Result<String> {
    csv_of(trace, &[])
}

/// The same with more arguments.
///
/// # Errors
///
/// If it can't be run or fails.
pub fn csv_of(trace: &Path, args: &[&str]) -> Result<String> {
    let out = Command::new(paths::tool("postproc"))
        .args([
            "export",
            "--format",
            "csv",
            "--keep-freed",
            "--allow-loss",
            "--output",
            "-",
        ])
        .args(args)
        .arg(trace)
        .output()
        .context("postproc is missing: run 'make tools'")?;
    anyhow::ensure!(
        matches!(out.status.code(), Some(0 | 1)),
        "postproc export failed: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(String::from_utf8(out.stdout)?)
}

/// Holds the misses of postproc's policies on a trace against libCacheSim's, by the test
/// that does so with traces made to order.
///
/// # Errors
///
/// If any differ, or the test can't be run.
pub fn compare_with_libcachesim(trace: &Path) -> Result<()> {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let system = std::env::var("PATH").unwrap_or_default();
    let out = Command::new("cargo")
        .args(["test", "--locked", "--manifest-path", sources])
        // As scripts/check.sh has it, so that all is built. With -p, crates would have other features.
        .args(["--workspace", "--exclude", "kvmtrace-guest"])
        .args(["--test", "it", "--"])
        .args(["--ignored", "--nocapture", "--exact"])
        .arg("libcachesim::misses_of_real_programs_are_those_of_libcachesim")
        .env("PATH", format!("/usr/bin:{system}"))
        .env("CARGO_TARGET_DIR", paths::build().join("target"))
        .env("KVMTRACE_TEST_TRACE", trace)
        .output()
        .context("cargo is missing: run 'make setup'")?;
    let text = String::from_utf8_lossy(&out.stdout);
    // libtest ends well, too, if it knows no such test.
    anyhow::ensure!(
        out.status.success() && text.contains("test result: ok. 1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let compared = text.lines().filter(|line| line.contains(" pages: "));
    say!("  {} numbers of misses are libCacheSim's", compared.count());
    Ok(())
}

/// What `check --frames` finds in a trace: errors of rules other than `waived`.
///
/// # Errors
///
/// If `postproc` gives no report.
pub fn wrong(trace: &Path, waived: &str) -> Result<Vec<String>> {
    let (_, report) = json(&["check", "--frames"], trace)?;
    let rules = report["rules"].as_array().into_iter().flatten();
    let wrong = rules.filter(|r| r["id"] != waived && r["errors"] != 0);
    let text = |r: &Value| format!("{} of {}", r["errors"], r["id"].as_str().unwrap_or("?"));
    Ok(wrong.map(text).collect())
}

/// Human output of postproc's checks, for a failure's message: what was found, without
/// the rules that found nothing.
pub fn explain(trace: &Path) -> String {
    let out = Command::new(paths::tool("postproc"))
        .args(["check", "--frames"])
        .arg(trace)
        .output();
    let Ok(out) = out else { return String::new() };
    let text = String::from_utf8_lossy(&out.stdout);
    let nothing = |line: &&str| line.split_whitespace().skip(1).take(3).eq(["0"; 3]);
    let found: Vec<_> = text.lines().filter(|line| !nothing(line)).collect();
    format!(
        "{}\n{}",
        found.join("\n"),
        String::from_utf8_lossy(&out.stderr)
    )
}
