//! `make compare`: what observers report of the same programs, against all accesses of the same run.
//! docs/compare.md has the definitions, and what came out.

use crate::loads::{self, Amount, PROGRAMS, Program};
use crate::machine::{Machine, Outcome, Profile, debian};
use crate::oracle;
use anyhow::{Context, Result, bail, ensure};
use observers::{Observer, Reading};
use score::{Grid, Score};
use serde::Serialize;
use std::path::Path;
use truth::{Scope, Truth};

mod cost;
pub mod observers;
pub mod score;
mod table;
pub mod truth;

/// The step of a run in which a load is observed.
pub const OBSERVED: &str = "observed";

/// Lengths of the intervals by which uses are counted, ms.
pub const LENGTHS: [u64; 3] = [10, 50, 100];

/// Errors under LRU are of memories from these numbers of pages on: 4 N of N = 64, and of N = 512.
pub const MEMORIES: [u64; 2] = [256, 2048];

/// A line of the table: a reading of what an observer reports of a program.
#[derive(Serialize)]
pub struct Row {
    /// The program.
    pub program: String,
    /// The observer.
    pub observer: String,
    /// What is counted of its reports.
    pub what: String,
    /// All references that the observer was to see.
    pub references: u64,
    /// The pages of these.
    pub pages: u64,
    /// From the first reference to the last one, ns.
    pub time_ns: u64,
    /// The share of the pages that are seen.
    pub pages_seen: Option<f64>,
    /// By [`LENGTHS`].
    pub scores: Vec<Score>,
    /// By [`MEMORIES`].
    pub lru: Vec<Option<f64>>,
    /// The factor by which instructions grow.
    pub instructions: Option<f64>,
    /// Bytes that the observer left.
    pub bytes: u64,
}

/// The intervals of one length by which a reading is judged: its own, if some of them are as long.
fn grid(reading: &Reading, length: u64) -> Grid {
    if let Some((own, ends)) = &reading.own {
        if length % own == 0 {
            let every = (length / own) as usize;
            let ends = ends.iter().skip(every - 1).step_by(every);
            return Grid::Ends(ends.copied().collect());
        }
    }
    Grid::Equal {
        begin: reading.begin,
        length,
    }
}

/// What came out of a reading.
pub struct Judged {
    /// What is counted.
    pub what: &'static str,
    /// All references.
    pub references: u64,
    /// Pages.
    pub pages: u64,
    /// From the first reference to the last one, ns.
    pub time_ns: u64,
    /// The share of the pages that are seen.
    pub pages_seen: Option<f64>,
    /// By length of intervals.
    pub scores: Vec<Score>,
    /// By [`MEMORIES`].
    pub lru: Vec<Option<f64>>,
}

/// Holds readings of a run against its truth, by intervals of these lengths, ms.
///
/// # Errors
///
/// If the truth can't be read.
pub fn judge(out: &Outcome, readings: &[Reading], lengths: &[u64]) -> Result<Vec<Judged>> {
    let mut known: Option<(Scope, Vec<Grid>, Truth)> = None;
    let mut judged = Vec::new();
    for reading in readings {
        let lengths = lengths.iter().map(|ms| ms * 1_000_000);
        let grids: Vec<Grid> = lengths.map(|ns| grid(reading, ns)).collect();
        let (_, grids, truth) = match known.take() {
            Some(known) if (&known.0, &known.1) == (&reading.scope, &grids) => known,
            _ => {
                let truth = Truth::read(out, &reading.scope, &grids)?;
                (reading.scope.clone(), grids, truth)
            }
        };
        let reports = &reading.reports;
        let pages = truth.names.len() as u64;
        let of_grids = truth.uses.iter().zip(&grids);
        let reported = truth.lru_of(reports)?;
        let lru = MEMORIES.map(|from| score::lru_error(&truth.lru, &reported, from, pages));
        judged.push(Judged {
            what: reading.what,
            references: truth.references,
            pages,
            time_ns: truth.span[1] - truth.span[0],
            pages_seen: score::pages_seen(&truth.names, reports),
            scores: of_grids
                .map(|(uses, grid)| score::score(uses, &truth.names, reports, grid))
                .collect(),
            lru: lru.to_vec(),
        });
        known = Some((reading.scope.clone(), grids, truth));
    }
    Ok(judged)
}

/// Runs a program while it is observed, with the plugin.
fn observe(program: &Program, amount: Amount, o: &dyn Observer, kernel: &str) -> Result<Outcome> {
    let name: String = o.name().replace(|c: char| !c.is_alphanumeric(), "");
    let out = observers::watched(&Machine {
        name: format!("compare-{}-{name}-{kernel}", program.name),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: true,
        cmdline: String::new(),
        files: loads::files(),
        steps: vec![
            // The first run fills the page cache: under icount, time leaps while the disk is waited for.
            debian(
                "warm",
                &format!("{}; {}", program.script(Amount::Small), loads::CLEAN),
            ),
            debian(OBSERVED, &o.command(&program.script(amount), program, true)),
        ],
        deadline_s: 1800,
    })?;
    let r = out.step(OBSERVED)?;
    let done = r.stdout.lines().any(|line| line == "DONE");
    ensure!(r.rc == 0 && done, "{} fails: {r:?}", program.name);
    Ok(out)
}

fn measure(
    program: &Program,
    amount: Amount,
    observer: &dyn Observer,
    instructions: Option<f64>,
    kernel: &str,
) -> Result<Vec<Row>> {
    let out = observe(program, amount, observer, kernel)?;
    let judged = judge(&out, &observer.read(&out, program)?, &LENGTHS)?;
    let bytes = observer.bytes(&out)?;
    std::fs::remove_file(oracle::stream(&out))?;
    std::fs::remove_file(out.trace())?;
    let rows = judged.into_iter().map(|j| Row {
        program: program.name.into(),
        observer: observer.name().into(),
        what: j.what.into(),
        references: j.references,
        pages: j.pages,
        time_ns: j.time_ns,
        pages_seen: j.pages_seen,
        scores: j.scores,
        lru: j.lru,
        instructions,
        bytes,
    });
    Ok(rows.collect())
}

/// Those whose names contain one of the words; all, if no word is in any name.
fn chosen<T>(all: Vec<T>, words: &[String], name: impl Fn(&T) -> String) -> Vec<T> {
    let fits = |one: &T| words.iter().any(|w| name(one).contains(w.as_str()));
    let any = all.iter().any(&fits);
    all.into_iter().filter(|one| !any || fits(one)).collect()
}

/// Compares observers of programs, those whose names contain one of the words, and prints a table; or only
/// the instructions that they take.
///
/// # Errors
///
/// If a word is in no name, a run fails, or what it left can't be read.
pub fn run(
    words: &[String],
    quick: bool,
    only_instructions: bool,
    json: Option<&Path>,
    kernel: &str,
) -> Result<()> {
    let programs: Vec<&Program> = PROGRAMS.iter().collect();
    let observers = observers::all();
    for word in words {
        let names = observers.iter().map(|o| o.name());
        let mut names = names.chain(programs.iter().map(|p| p.name));
        if !names.any(|name| name.contains(word.as_str())) {
            bail!("no program's and no observer's name contains {word:?}");
        }
    }
    let programs = chosen(programs, words, |p| p.name.into());
    let observers = chosen(observers, words, |o| o.name().into());
    let amount = Amount::of_compare(quick);
    let mut rows = Vec::new();
    for program in programs {
        let cost = cost::measure(program, amount, &observers, kernel)
            .with_context(|| format!("what it costs to observe {}", program.name))?;
        if only_instructions {
            for (observer, factor) in observers.iter().zip(cost) {
                let factor = factor.unwrap_or(f64::NAN);
                println!("{:<8} {:<24} {factor:.3}", program.name, observer.name());
            }
            continue;
        }
        for (observer, instructions) in observers.iter().zip(cost) {
            let begin = std::time::Instant::now();
            let some = measure(program, amount, observer.as_ref(), instructions, kernel)
                .with_context(|| format!("{} observed by {}", program.name, observer.name()))?;
            for row in &some {
                println!("{}", table::line(row));
            }
            println!("  {:.0} s", begin.elapsed().as_secs_f64());
            rows.extend(some);
            if let Some(path) = json {
                let text = serde_json::to_vec_pretty(&rows)?;
                std::fs::write(path, text).with_context(|| path.display().to_string())?;
            }
        }
    }
    if only_instructions {
        return Ok(());
    }
    let tables = table::tables(&rows)?;
    println!("\n{tables}");
    crate::fidelity::write("compare.md", &tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observer_is_judged_by_its_own_intervals_if_they_fit() {
        let ends = vec![110, 210, 310, 410, 510];
        let mut reading = Reading {
            what: "records",
            reports: Vec::new(),
            own: Some((100, ends.clone())),
            scope: Scope::all(),
            begin: 10,
        };
        assert_eq!(grid(&reading, 100), Grid::Ends(ends));
        assert_eq!(grid(&reading, 200), Grid::Ends(vec![210, 410]));
        let equal = |length| Grid::Equal { begin: 10, length };
        assert_eq!(grid(&reading, 50), equal(50));
        reading.own = None;
        assert_eq!(grid(&reading, 100), equal(100));
    }

    #[test]
    fn words_choose_programs_and_observers() {
        fn of(words: &[&str], all: &[&'static str]) -> Vec<&'static str> {
            let words: Vec<String> = words.iter().map(|w| (*w).into()).collect();
            chosen(all.to_vec(), &words, |name| (*name).into())
        }
        let programs = ["sqlite3", "gcc"];
        assert_eq!(of(&["gcc", "DAMON"], &programs), ["gcc"]);
        assert_eq!(of(&["DAMON"], &programs), programs);
        assert_eq!(of(&[], &programs), programs);
    }
}
