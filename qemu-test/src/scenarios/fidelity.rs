//! A trace gives the LRU misses that all references of its run give.

use super::Scenario;
use super::oracle::Set;
use crate::fidelity::Whose;
use crate::fidelity::sets::{self, Found};
use crate::machine::{Machine, Outcome, Profile, debian, step};
use crate::runner::say;
use crate::{fidelity, oracle};
use anyhow::{Context, Result, anyhow, ensure};
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

/// The runs, and those that must fail.
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
        new(
            "sets",
            "of processes that take turns, each with a set of its own, each one's LRU and OPT \
             misses are near, and those of all in one memory are not",
            by_set,
        ),
        new(
            "one-set",
            "of processes that take turns in one set, each one's LRU and OPT misses are near, and \
             those of all",
            in_one_set,
        ),
        new(
            "sets-noflush",
            "without flushes, LRU misses of each set are far off",
            sets_without_flushes,
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
    let out = boot(name, kernel, cmdline, traced, set("64-again")?)?;
    let error = fidelity::lru_error(&out, Whose::All, from)?;
    say!(
        "  LRU's mean error is {:.4} % from {from} N on",
        100.0 * error
    );
    Ok(error)
}

fn set(name: &str) -> Result<Set> {
    name.parse().map_err(|e| anyhow!("{e}"))
}

/// A run of which every reference is kept.
fn boot(name: &str, kernel: &str, cmdline: &str, traced: Step, set: Set) -> Result<Outcome> {
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
    Ok(out)
}

/// Of each set from 4 N on, as for sqlite3.
const SETS_BOUND: f64 = 0.001;

/// Turns of each process.
const TURNS: &str = "40";

/// Three processes that take turns, traced with such a set.
fn three(name: &str, kernel: &str, cmdline: &str, set: Set) -> Result<Outcome> {
    let options = set.options("trace");
    let mut argv = vec!["/bin/activator", "run"];
    argv.extend(options.iter().map(String::as_str));
    argv.extend(["--", "/bin/different-turns", TURNS]);
    boot(name, kernel, cmdline, step("traced", &argv), set)
}

fn told(of: &str, found: &Found) {
    let percent = |error: Option<(f64, f64)>| 100.0 * error.map_or(f64::NAN, |e| e.0);
    let (equal, sizes) = found.exact.unwrap_or_default();
    say!(
        "  {of}: {} records of {} references to {} pages; {} of {} results are outside of \
         their bounds, {} are what LRU cannot do; {equal} of {sizes} sizes are exact with last \
         references; LRU's mean error is {:.4} %, filled {:.4} %",
        found.records,
        found.references,
        found.pages,
        found.outside.len(),
        found.bounded,
        found.broken.len(),
        percent(found.error(0, false, 4)),
        percent(found.error(0, true, 4)),
    );
}

/// Of a process with a set of its own, and of all processes with sets of their own in one memory.
fn by_set(kernel: &str) -> Result<()> {
    let set = set("64-again-sets")?;
    let out = three("sets", kernel, "", set)?;
    oracle::compare(&out.trace(), &oracle::log(&out))?;
    let parts = sets::parts(&out, set)?;
    for (whose, comm) in &parts {
        let of = format!("{comm}, {whose:?}");
        let found = sets::judge(&out, *whose, false).with_context(|| of.clone())?;
        told(&of, &found);
        found.accept().with_context(|| of)?;
        let (error, _) = found
            .error(0, true, 4)
            .context("no size is 4 N or larger")?;
        ensure!(
            error < SETS_BOUND,
            "LRU's mean error is {error:.6} from 4 N on"
        );
    }
    // All in one memory: one process rests with its pages in its set, and no record shows them.
    sets::without_bounds(&out, set.shape().size as u64)?;
    let all = sets::judge(&out, Whose::All, false)?;
    told("all of them in one memory", &all);
    let (equal, of) = all.exact.unwrap_or_default();
    let (error, _) = all.error(0, true, 4).context("no size is 4 N or larger")?;
    ensure!(
        !all.outside.is_empty() && equal < of && error > 10.0 * SETS_BOUND,
        "several sets in one memory show nothing wrong"
    );
    Ok(())
}

/// The same without flushes. The records are not the oracle's then, so pages have their addresses
/// as names.
fn sets_without_flushes(kernel: &str) -> Result<()> {
    let set = set("64-again-sets")?;
    let out = three("sets-noflush", kernel, "vmtrace_break=noflush", set)?;
    let (mut least, mut most) = (f64::INFINITY, 0f64);
    for (whose, comm) in sets::parts(&out, set)? {
        let error = fidelity::lru_error(&out, whose, 4)?;
        say!(
            "  {comm}, {whose:?}: LRU's mean error is {:.4} %",
            100.0 * error
        );
        (least, most) = (least.min(error), most.max(error));
    }
    // None is accepted. The cycles are far off, for each of their references is missed if no page is
    // ever flushed.
    ensure!(
        least > SETS_BOUND && most > 10.0 * SETS_BOUND,
        "LRU's mean errors are {least:.6} and {most:.6}"
    );
    Ok(())
}

/// The same in one set: each process by itself, and all together.
fn in_one_set(kernel: &str) -> Result<()> {
    let set = set("64-again")?;
    let out = three("one-set", kernel, "", set)?;
    oracle::compare(&out.trace(), &oracle::log(&out))?;
    for (whose, comm) in sets::parts(&out, set)? {
        let of = format!("{comm}, {whose:?}");
        let found = sets::judge(&out, whose, false).with_context(|| of.clone())?;
        told(&of, &found);
        found.accept().with_context(|| of)?;
    }
    let all = sets::judge(&out, Whose::All, false)?;
    told("all of them in one memory", &all);
    all.accept()
}
