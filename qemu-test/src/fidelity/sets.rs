//! Traces of a set for each process: what simulations make of each process's references, against
//! what they make of all references of that process, while other programs run.
//!
//! The same rules hold as for a program that is traced alone, from the same sizes of memory on. The
//! results of `postproc simulate --set` must be those that are judged here.

use super::{
    Naming, Reduction, Streams, Whose, boot, bounded, cell, in_blocks, lru_break, simulate, sizes,
    survey, write,
};
use crate::loads::{Amount, PROGRAMS, Program};
use crate::machine::Outcome;
use crate::scenarios::oracle::Set;
use crate::{oracle, postproc};
use ::oracle::model::Sets;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use std::fmt::Write;

/// Two programs that run at the same time.
pub struct Pair {
    /// Both names.
    pub name: &'static str,
    programs: [&'static str; 2],
}

/// The pairs of `make fidelity`.
pub const PAIRS: [Pair; 2] = [
    Pair {
        name: "sqlite3-gcc",
        programs: ["sqlite3", "gcc"],
    },
    Pair {
        name: "python3-redis",
        programs: ["python3", "redis"],
    },
];

/// Sets that are compared. Those without `-sets` are one set for all programs.
const SETS: [&str; 4] = [
    "64-again-sets",
    "64-again",
    "64-clock-sets",
    "512-again-128-sets",
];

/// Policies with proven bounds, in the order of [`super::POLICIES`].
const PROVEN: [&str; 2] = ["lru", "opt"];

/// Whose references were looked at, and what came out.
pub struct Found {
    /// N.
    pub n: u64,
    /// The trace's references.
    pub records: u64,
    /// All references.
    pub references: u64,
    /// Distinct pages.
    pub pages: u64,
    /// Results of LRU and OPT that have bounds.
    pub bounded: usize,
    /// Those that lie outside of their bounds, in words.
    pub outside: Vec<String>,
    /// What LRU does that it was proven not to do.
    pub broken: Vec<String>,
    /// Sizes of 2 N pages and more, and how many of them miss under LRU what all references miss if
    /// the first and the last reference of each stay are known; none for a CLOCK.
    pub exact: Option<(usize, usize)>,
    /// Each of LRU's and OPT's errors.
    errors: Vec<Point>,
}

/// A size of memory under a policy, simulated twice.
struct Point {
    policy: usize,
    filled: bool,
    size: u64,
    error: f64,
}

impl Found {
    /// The mean and the worst error under a policy at sizes of `from` times N and more.
    pub fn error(&self, policy: usize, filled: bool, from: u64) -> Option<(f64, f64)> {
        let fits = |p: &&Point| (p.policy, p.filled) == (policy, filled) && p.size >= from * self.n;
        let errors: Vec<f64> = self.errors.iter().filter(fits).map(|p| p.error).collect();
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        (!errors.is_empty()).then(|| (mean, errors.iter().fold(0.0, |a: f64, &b| a.max(b))))
    }

    /// Whether there was something to judge, and all of it is as it was proven to be.
    ///
    /// # Errors
    ///
    /// The first result that is not.
    pub fn accept(&self) -> Result<()> {
        let mut wrong = self.outside.iter().chain(&self.broken);
        if let Some(text) = wrong.next() {
            bail!("{text}; and {} more are wrong", wrong.count());
        }
        ensure!(self.bounded > 0, "no result has bounds");
        if let Some((equal, of)) = self.exact {
            ensure!(equal == of && of > 0, "{equal} of {of} sizes are exact");
        }
        Ok(())
    }
}

/// Simulates a run's references: those of the trace, and all that there were. The records must be
/// the oracle's, for its stays are the pages' names.
///
/// If postproc gives no bounds for these references, the bounds are those that it would give if
/// they were all of those to one set.
///
/// # Errors
///
/// If the two streams have other pages, or what can't be read.
pub fn judge(out: &Outcome, whose: Whose, clock: bool) -> Result<Found> {
    let (log, path) = (oracle::log(out), oracle::stream(out));
    let streams = Streams::load(&out.trace(), &log, &path, Naming::Canonical, whose)?;
    streams.same_pages()?;
    let (n, pages) = (streams.n, streams.footprint);
    ensure!(pages > n, "there are only {pages} pages");
    // Both policies give all sizes at once.
    let all: Vec<u64> = (n..pages).collect();
    let full = simulate(PROVEN.len(), &all, |to| streams.full(to))?;
    let certificate = streams.certificate.as_ref().or(streams.alone.as_ref());
    let certificate = certificate.context("a protection of the kernel was taken away")?;
    // As for a program that is traced alone.
    let least = if clock { 3 * n - 2 } else { 2 * n - 1 };
    let bounded = bounded(certificate, &streams, &all, &full.misses)?;
    ensure!(
        certificate.least() <= least
            && bounded.sizes as u64 == pages.saturating_sub(certificate.least()) + (pages - n),
        "of {} sizes, {} have bounds, and LRU's begin with {} pages",
        all.len(),
        bounded.sizes,
        certificate.least()
    );
    let mut broken = Vec::new();
    let mut errors = Vec::new();
    let some = sizes(n, pages);
    let kinds = match clock {
        true => [Reduction::Clock, Reduction::ClockFilled],
        false => [Reduction::Fifo, Reduction::FifoFilled],
    };
    for (kind, accesses) in kinds.into_iter().zip([&streams.plain, &streams.filled]) {
        let reduced = simulate(PROVEN.len(), &all, |to| in_blocks(accesses, to))?;
        let breaks = |&size: &u64| lru_break(n, size, kind, &full.lru, &reduced.lru);
        broken.extend(all.iter().filter_map(breaks));
        for (policy, (full, reduced)) in full.misses.iter().zip(&reduced.misses).enumerate() {
            let of = all.iter().zip(full.iter().zip(reduced));
            let of = of.filter(|(size, _)| some.contains(size));
            errors.extend(of.map(|(&size, (&full, &reduced))| Point {
                policy,
                filled: kind == kinds[1],
                size,
                error: reduced.abs_diff(full) as f64 / (full + pages) as f64,
            }));
        }
        if let (Whose::Set(set), true) = (whose, kind == kinds[0]) {
            let known = Known {
                sizes: &some,
                all: &all,
                full: &full.misses,
                reduced: &reduced.misses,
            };
            as_postproc(out, set, least, &known)?;
        }
    }
    let exact = match clock {
        true => None,
        false => {
            let ends = simulate(1, &all, |to| in_blocks(&streams.ends()?, to))?;
            let of: Vec<_> = all.iter().filter(|&&size| size >= 2 * n).collect();
            let equal =
                |&&size: &&u64| lru_break(n, size, Reduction::Ends, &full.lru, &ends.lru).is_none();
            Some((of.iter().filter(|size| equal(size)).count(), of.len()))
        }
    };
    let records = streams.plain.iter().filter(|a| a.is_reference()).count();
    Ok(Found {
        n,
        records: records as u64,
        references: streams.references,
        pages,
        bounded: bounded.sizes,
        outside: bounded.outside,
        broken,
        exact,
        errors,
    })
}

/// Misses by policy, at all sizes.
struct Known<'k> {
    /// Sizes that postproc is asked for.
    sizes: &'k [u64],
    all: &'k [u64],
    full: &'k [Vec<u64>],
    reduced: &'k [Vec<u64>],
}

/// What `postproc simulate` says.
#[derive(Deserialize)]
struct Said {
    exact: bool,
    sizes: Vec<SizeSaid>,
}

#[derive(Deserialize)]
struct SizeSaid {
    policy: String,
    size_pages: u64,
    misses: u64,
    low: Option<u64>,
    high: Option<u64>,
}

/// Asks `postproc simulate` for LRU and OPT.
fn said(out: &Outcome, sizes: &[u64], more: &[&str]) -> Result<Said> {
    let list: Vec<String> = sizes.iter().map(u64::to_string).collect();
    let list = list.join(",");
    let policies = PROVEN.join(",");
    let args = ["simulate", "--policy", &policies, "--size", &list];
    let (rc, value) = postproc::json(&[&args, more].concat(), &out.trace())?;
    ensure!(rc == 0, "postproc simulate {more:?} ends with {rc}");
    Ok(serde_json::from_value(value)?)
}

/// Fails unless `postproc simulate --set` gives these misses, and bounds between which the misses
/// of all references lie: LRU's from `least` pages on, and OPT's at all sizes.
fn as_postproc(out: &Outcome, set: u32, least: u64, known: &Known<'_>) -> Result<()> {
    let said = said(out, known.sizes, &["--set", &set.to_string()])?;
    ensure!(
        said.exact,
        "postproc calls the results of set {set} inexact"
    );
    ensure!(
        said.sizes.len() == PROVEN.len() * known.sizes.len(),
        "postproc gives {} results for set {set}",
        said.sizes.len()
    );
    for row in &said.sizes {
        let policy = PROVEN.iter().position(|p| *p == row.policy);
        let at = known.all.binary_search(&row.size_pages).ok();
        let (policy, at) = policy.zip(at).context("a result nobody asked for")?;
        let (full, reduced) = (known.full[policy][at], known.reduced[policy][at]);
        let what = format!("set {set}, {} pages under {}", row.size_pages, row.policy);
        ensure!(
            row.misses == reduced,
            "{what}: postproc says {} misses, and here there are {reduced}",
            row.misses
        );
        match row.low.zip(row.high) {
            Some((low, high)) => ensure!(
                (low..=high).contains(&full),
                "{what}: all references miss {full}, outside of {low} to {high}"
            ),
            None => ensure!(
                policy == 0 && row.size_pages < least,
                "{what}: postproc gives no bounds"
            ),
        }
    }
    Ok(())
}

/// Fails unless postproc calls the results of all sets in one memory inexact, and gives no bounds.
///
/// # Errors
///
/// As said, or if postproc fails.
pub fn without_bounds(out: &Outcome, n: u64) -> Result<()> {
    let said = said(out, &[2 * n, 4 * n, 8 * n], &[])?;
    let bounds = said.sizes.iter().any(|row| row.low.or(row.high).is_some());
    ensure!(
        !said.exact && !bounds && !said.sizes.is_empty(),
        "postproc gives bounds for several sets in one memory"
    );
    Ok(())
}

/// Whose references are judged by themselves: of each set, or of each address space of one set,
/// if there are sizes of 4 N pages and more. With their names.
///
/// # Errors
///
/// If the trace can't be read, or there are not two.
pub fn parts(out: &Outcome, set: Set) -> Result<Vec<(Whose, String)>> {
    let shape = set.shape();
    let spaces = survey(&out.trace())?;
    let large = spaces
        .iter()
        .filter(|(_, known)| known.pages > 4 * shape.size as u64);
    let parts: Vec<_> = large
        .map(|(&mm, known)| {
            let whose = match shape.sets {
                Sets::One => Whose::Space(mm),
                Sets::Process | Sets::Cgroup => Whose::Set(known.set),
            };
            (whose, known.comm.clone())
        })
        .collect();
    ensure!(
        parts.len() >= 2,
        "{} address spaces have more than {} pages",
        parts.len(),
        4 * shape.size
    );
    Ok(parts)
}

/// What all together are called.
const ALL: &str = "all processes";

/// A line of the table.
struct Row {
    pair: &'static str,
    set: String,
    /// Whose references.
    of: String,
    found: Found,
}

impl Row {
    /// In Markdown.
    fn text(&self) -> String {
        let f = &self.found;
        let mut t = format!(
            "| {} | {} | {} | {} | {} | {} |",
            self.pair, self.set, self.of, f.references, f.records, f.pages
        );
        for (policy, filled) in [(0, false), (0, true), (1, false)] {
            t += &cell(f.error(policy, filled, 4));
        }
        let _ = write!(t, " {} of {} |", f.bounded - f.outside.len(), f.bounded);
        let _ = match f.exact {
            Some((equal, of)) => write!(t, " {equal} of {of} |"),
            None => write!(t, " – |"),
        };
        t
    }
}

const HEAD: &str = "| programs | set | references of | references | records | pages | LRU | LRU, \
                    filled | OPT | in bounds | exact with last references |\n\
                    |---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|";

fn program(name: &str) -> Result<&'static Program> {
    let found = PROGRAMS.iter().find(|p| p.name == name);
    found.with_context(|| format!("there is no program {name}"))
}

/// Traces both programs of a pair.
fn trace(pair: &Pair, quick: bool, set: Set, kernel: &str) -> Result<Outcome> {
    let [first, second] = pair.programs;
    let amount = Amount::of_fidelity(quick);
    let script = format!(
        "( {} ) > /tmp/first 2>&1 & ( {} ) > /tmp/second 2>&1 & wait; tail -n 1 /tmp/first /tmp/second",
        program(first)?.script(amount),
        program(second)?.script(amount)
    );
    let machine = boot(pair.name, &script, set, kernel);
    let out = oracle::run_streaming(&machine, set.shape())?;
    let r = out.step("traced")?;
    let done = r.stdout.lines().filter(|line| *line == "DONE").count();
    ensure!(r.rc == 0 && done == 2, "{} fails: {r:?}", pair.name);
    Ok(out)
}

/// Traces a pair, and judges what is records of each process that is large enough, and of all
/// together.
fn measure(pair: &'static Pair, quick: bool, set: Set, kernel: &str) -> Result<Vec<Row>> {
    let out = trace(pair, quick, set, kernel)?;
    oracle::compare(&out.trace(), &oracle::log(&out))?;
    let shape = set.shape();
    let several = shape.sets != Sets::One;
    let mut rows = Vec::new();
    let mut add = |whose, of: String| -> Result<()> {
        let found = judge(&out, whose, shape.clock).with_context(|| of.clone())?;
        // All sets in one memory are judged, too, to show what they are not.
        if !several || whose != Whose::All {
            found.accept().with_context(|| of.clone())?;
        }
        let row = Row {
            pair: pair.name,
            set: set.name(),
            of,
            found,
        };
        println!("{}", row.text());
        rows.push(row);
        Ok(())
    };
    for (whose, comm) in parts(&out, set)? {
        add(whose, comm)?;
    }
    add(Whose::All, ALL.into())?;
    if several {
        without_bounds(&out, shape.size as u64)?;
    }
    std::fs::remove_file(oracle::stream(&out))?;
    Ok(rows)
}

/// Runs the pairs with a chosen name, and prints what came out.
///
/// # Errors
///
/// If a run fails, a record differs from the oracle's, the two streams of a process have other
/// pages, LRU or OPT does what was proven that it doesn't, or LRU's mean error of all FIFO sets of 64
/// pages is above 0.1 % at 4 N and more.
pub fn run(chosen: impl Fn(&str) -> bool, quick: bool, kernel: &str) -> Result<()> {
    let sets = if quick { &SETS[..2] } else { &SETS };
    let mut rows = Vec::new();
    for pair in PAIRS.iter().filter(|p| chosen(p.name)) {
        for set in sets {
            let set: Set = set.parse().map_err(|e| anyhow!("{e}"))?;
            if rows.is_empty() {
                println!("\n{HEAD}");
            }
            let found = measure(pair, quick, set, kernel);
            rows.extend(found.with_context(|| format!("{} with {}", pair.name, set.name()))?);
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = rows.iter().map(Row::text).collect();
    write(
        "fidelity-sets.md",
        &format!("{HEAD}\n{}\n", lines.join("\n")),
    )?;
    // Sets of 512 pages leave few sizes, which would decide by themselves.
    let alone = rows.iter().filter(|r| r.set == SETS[0] && r.of != ALL);
    let points = alone.flat_map(|r| r.found.errors.iter().map(|p| (p, 4 * r.found.n)));
    let points = points.filter(|(p, from)| (p.policy, p.filled) == (0, true) && p.size >= *from);
    let errors: Vec<f64> = points.map(|(p, _)| p.error).collect();
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    println!(
        "LRU's mean error of the processes with {} is {:.4} % at 4 N and more, of {} sizes",
        SETS[0],
        100.0 * mean,
        errors.len()
    );
    ensure!(
        mean < 1e-3,
        "LRU's mean error of the processes is {:.3} % at 4 N and more",
        100.0 * mean
    );
    Ok(())
}
