//! A trace gives the LRU misses that all references of its run give.

use super::Scenario;
use super::oracle::Set;
use crate::machine::{Machine, Profile, debian, step};
use crate::runner::say;
use crate::{fidelity, oracle};
use anyhow::{Result, anyhow, ensure};
use kvmtrace_guest::Step;

/// A loop over more pages than the set has misses at every size up to that of the
/// loop. What is not flushed is referenced and not traced.
const LOOP: &str =
    "/bin/activator run -n 64 --first 16 --again -o /dev/trace -- /bin/touch-loop 100 20";

const SQLITE: &str = "activator run -n 64 --first 16 --again -o /dev/trace -- sqlite3 :memory: \
    \"CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, name TEXT); \
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) \
      INSERT INTO t SELECT i, (i * 7919) % 20003, printf('row %d', i) FROM n; \
    CREATE INDEX tk ON t(k); SELECT count(*), sum(k), max(name) FROM t;\"";

/// Both runs, and one that must fail.
pub fn scenarios() -> Vec<Scenario> {
    let new = |name: &str, about, run: fn(&str) -> Result<()>| Scenario {
        name: format!("fidelity-{name}"),
        about,
        run: Box::new(run),
    };
    let about = "all references of the run are to the trace's pages, and LRU misses are near";
    vec![
        new("sqlite3", about, |kernel| {
            let error = run("sqlite3", kernel, "", debian("traced", SQLITE), 4)?;
            ensure!(error < 1e-3, "LRU's mean error is {error:.6} from 4 N on");
            Ok(())
        }),
        new("touch-loop", about, |kernel| {
            let error = touch_loop("touch-loop", kernel, "")?;
            ensure!(error < BOUND, "LRU's mean error is {error:.6} from N on");
            Ok(())
        }),
        new(
            "noflush",
            "without flushes, LRU misses of the same are far off",
            |kernel| {
                let error = touch_loop("noflush", kernel, "vmtrace_break=noflush")?;
                ensure!(
                    error > 10.0 * BOUND,
                    "LRU's mean error is no more than {error:.6}"
                );
                Ok(())
            },
        ),
    ]
}

/// Of the loop.
const BOUND: f64 = 0.005;

fn touch_loop(name: &str, kernel: &str, cmdline: &str) -> Result<f64> {
    let argv: Vec<_> = LOOP.split(' ').collect();
    run(name, kernel, cmdline, step("traced", &argv), 1)
}

/// The mean error from `from` times N on.
fn run(name: &str, kernel: &str, cmdline: &str, traced: Step, from: u64) -> Result<f64> {
    let set: Set = "64-again".parse().map_err(|e| anyhow!("{e}"))?;
    let machine = Machine {
        name: format!("fidelity-{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: traced.chroot,
        cmdline: cmdline.into(),
        files: vec![],
        steps: vec![traced],
        deadline_s: 300,
    };
    let out = oracle::run_streaming(&machine, set.shape())?;
    let r = out.step("traced")?;
    ensure!(r.rc == 0 && !r.stdout.is_empty(), "it fails: {r:?}");
    let error = fidelity::lru_error(&out, from)?;
    say!(
        "  LRU's mean error is {:.4} % from {from} N on",
        100.0 * error
    );
    Ok(error)
}
