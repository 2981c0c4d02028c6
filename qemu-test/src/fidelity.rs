//! `make fidelity`: what simulations make of a trace, against what they make of all
//! references of the same run. docs/fidelity.md says how, and what came out.

use crate::loads::{self, Amount, PROGRAMS, Program};
use crate::machine::{Machine, Outcome, Profile, debian};
use crate::scenarios::oracle::Set;
use crate::{oracle, paths};
use ::postproc::sim::{self, Access, Band, Certificate, Curve, Job, Workers};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;

mod picture;
pub mod sets;
mod streams;

use picture::{Line, Panel};
use streams::{Naming, Streams};
pub use streams::{Whose, survey};

/// Policies that are simulated. The first two give all sizes at once.
const POLICIES: [&str; 16] = [
    "lru",
    "opt",
    "clock",
    "2q",
    "arc",
    "fifo",
    "segq",
    "active-inactive",
    "mglru",
    "car",
    "clock-pro",
    "lirs",
    "s3-fifo",
    "sieve",
    "wsclock",
    "clock-set",
];
/// Bounds from which on sizes count, in multiples of N.
const FROM: [u64; 4] = [1, 4, 10, 30];
/// Policies that give one size at a time are simulated at every second size.
const SPARSE: usize = 2;
/// Times in a stay that accessed bits are looked at, in what a kernel could do.
const PARTS: u64 = 8;

/// What is simulated in place of all references.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Reduction {
    Fifo,
    /// Of a FIFO that evicts as many pages at once as it does by default.
    Batches,
    FifoFilled,
    Clock,
    ClockFilled,
    Parts,
    Ends,
}

impl Reduction {
    const ALL: [(Reduction, &'static str); 7] = [
        (Reduction::Fifo, "FIFO"),
        (Reduction::Batches, "FIFO, batches"),
        (Reduction::FifoFilled, "FIFO --again, filled"),
        (Reduction::Clock, "CLOCK"),
        (Reduction::ClockFilled, "CLOCK, filled"),
        (Reduction::Parts, "last reference to N/8 (not built)"),
        (Reduction::Ends, "last reference exactly (not built)"),
    ];

    fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// What came out of one reading of references.
struct Simulated {
    /// By policy, and in it by size.
    misses: Vec<Vec<u64>>,
    /// All sizes of LRU.
    lru: Curve,
}

/// A size of memory under a policy, simulated twice.
#[derive(Clone, Copy)]
struct Point {
    program: &'static str,
    n: u64,
    reduction: Reduction,
    policy: usize,
    /// The size is N times the square root of two to this power.
    step: u32,
    size: u64,
    footprint: u64,
    full: u64,
    reduced: u64,
}

impl Point {
    fn error(&self) -> f64 {
        self.reduced.abs_diff(self.full) as f64 / (self.full + self.footprint) as f64
    }
}

/// Sizes from N to the footprint, of equal ratio.
fn sizes(n: u64, footprint: u64) -> Vec<u64> {
    (0..)
        .map(|step| size(n, step))
        .take_while(|&size| size < footprint)
        .collect()
}

fn size(n: u64, step: u32) -> u64 {
    (n as f64 * 2f64.powf(f64::from(step) / 2.0)).round() as u64
}

/// Misses of all policies, or the first `policies` of them, with the references
/// that `feed` hands on.
fn simulate(
    policies: usize,
    sizes: &[u64],
    feed: impl FnOnce(&mut dyn FnMut(&[Access])) -> Result<()>,
) -> Result<Simulated> {
    let mut jobs = Vec::new();
    for id in &POLICIES[..policies] {
        let entry = sim::registry().iter().find(|p| p.id == *id);
        let entry = entry.with_context(|| format!("there is no policy {id}"))?;
        match entry.curve {
            Some(curve) => jobs.push(Job::Curve(curve())),
            None => {
                let sizes = sizes.iter().step_by(SPARSE);
                jobs.extend(sizes.map(|&size| Job::Size((entry.simulate)(size))));
            }
        }
    }
    let jobs = std::thread::scope(|scope| -> Result<_> {
        let mut workers = Workers::start(scope, jobs);
        feed(&mut |accesses| workers.accesses(accesses))?;
        Ok(workers.join())
    })?;
    let (mut curves, mut singles) = (Vec::new(), Vec::new());
    for job in jobs {
        match job {
            Job::Curve(curve) => curves.push(curve.finish()),
            Job::Size(simulation) => singles.push(simulation.counts().misses),
        }
    }
    let at_sizes = |curve: &Curve| sizes.iter().map(|&size| curve.at(size).misses).collect();
    let mut misses: Vec<Vec<u64>> = curves.iter().map(at_sizes).collect();
    let singles = singles.chunks(sizes.len().div_ceil(SPARSE).max(1));
    misses.extend(singles.map(<[u64]>::to_vec));
    let lru = curves.into_iter().next().context("LRU has no curve")?;
    Ok(Simulated { misses, lru })
}

/// LRU's misses with the references that `feed` hands on, at all sizes of memory.
///
/// # Errors
///
/// Those of `feed`.
pub fn lru(feed: impl FnOnce(&mut dyn FnMut(&[Access])) -> Result<()>) -> Result<Curve> {
    Ok(simulate(1, &[], feed)?.lru)
}

fn in_blocks(accesses: &[Access], to: &mut dyn FnMut(&[Access])) -> Result<()> {
    accesses.chunks(1 << 15).for_each(to);
    Ok(())
}

/// How many results of all references have bounds, and which lie outside of their bounds.
#[derive(Default)]
struct Bounded {
    sizes: usize,
    outside: Vec<String>,
}

impl Bounded {
    fn judge(&mut self, policy: &str, size: u64, misses: u64, band: Option<Band>) {
        let Some(band) = band else {
            return;
        };
        self.sizes += 1;
        if !(band.low..=band.high).contains(&misses) {
            self.outside.push(format!(
                "all references miss {misses} in {size} pages under {policy}, outside {band:?}"
            ));
        }
    }
}

/// Holds the misses of all references against the bounds that the trace gives for them
/// (postproc's `sim::Certificate`). `full` are LRU's and OPT's misses of all references, or
/// LRU's alone, at these sizes.
fn bounded(
    certificate: &Certificate,
    streams: &Streams,
    sizes: &[u64],
    full: &[Vec<u64>],
) -> Result<Bounded> {
    let mut bounded = Bounded::default();
    for (&size, &misses) in sizes.iter().zip(&full[0]) {
        bounded.judge("LRU", size, misses, certificate.lru(size));
    }
    let Some(full) = full.get(1) else {
        return Ok(bounded);
    };
    let mut asked: Vec<u64> = sizes
        .iter()
        .flat_map(|&size| certificate.sizes_for_opt(size))
        .collect();
    asked.sort_unstable();
    asked.dedup();
    let trace = simulate(2, &asked, |to| in_blocks(&streams.plain, to))?;
    let at = |size| {
        let place = asked.binary_search(&size);
        place.map_or(0, |place| trace.misses[1][place])
    };
    for (&size, &misses) in sizes.iter().zip(full) {
        bounded.judge("OPT", size, misses, certificate.opt(at, size));
    }
    Ok(bounded)
}

/// Fails if the misses of all references do not lie in the bands that the trace gives for them.
fn within_bands(streams: &Streams, sizes: &[u64], full: &[Vec<u64>]) -> Result<()> {
    let Some(certificate) = &streams.certificate else {
        return Ok(());
    };
    match bounded(certificate, streams, sizes, full)?.outside.first() {
        Some(outside) => bail!("{outside}"),
        None => Ok(()),
    }
}

/// What LRU does in so many pages that it was proven not to do (postproc's `sim::Filler`).
fn lru_break(
    n: u64,
    size: u64,
    reduction: Reduction,
    full: &Curve,
    reduced: &Curve,
) -> Option<String> {
    let of = |curve: &Curve, size| curve.at(size).misses;
    let got = of(reduced, size);
    match reduction {
        Reduction::Ends if size >= 2 * n => {
            let exact = of(full, size);
            (exact != got).then(|| {
                format!(
                    "{size} pages miss {exact}, and {got} with each stay's first and last reference"
                )
            })
        }
        Reduction::Fifo | Reduction::Batches | Reduction::FifoFilled | Reduction::Parts
            if size >= 4 * n =>
        {
            let (least, most) = (of(full, size + 2 * n), of(full, size - 2 * n));
            (!(least..=most).contains(&got)).then(|| {
                format!(
                    "{}: {size} pages miss {got}, which is not between {least} and {most}",
                    reduction.name()
                )
            })
        }
        _ => None,
    }
}

/// Fails if LRU does what it was proven not to do.
fn lru_bounds(
    n: u64,
    sizes: &[u64],
    reduction: Reduction,
    full: &Curve,
    reduced: &Curve,
) -> Result<()> {
    let mut breaks = sizes
        .iter()
        .filter_map(|&size| lru_break(n, size, reduction, full, reduced));
    match breaks.next() {
        Some(text) => bail!("{text}"),
        None => Ok(()),
    }
}

/// What is known of a run, beside its points.
struct Row {
    program: &'static str,
    set: String,
    records: u64,
    references: u64,
    footprint: u64,
    seconds: [f64; 2],
}

fn machine(program: &Program, quick: bool, set: Set, kernel: &str) -> Machine {
    boot(
        program.name,
        &program.script(Amount::of_fidelity(quick)),
        set,
        kernel,
    )
}

/// A guest that traces a shell's script.
fn boot(name: &str, script: &str, set: Set, kernel: &str) -> Machine {
    Machine {
        name: format!("fidelity-{name}-{}-{kernel}", set.name()),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: true,
        cmdline: String::new(),
        files: loads::files(),
        steps: vec![debian(
            "traced",
            &format!(
                "activator run {} -- /bin/sh -c '{}'",
                set.options("trace").join(" "),
                script.replace('\'', "'\\''")
            ),
        )],
        deadline_s: 900,
    }
}

fn trace(program: &Program, quick: bool, set: Set, kernel: &str) -> Result<Outcome> {
    let out = oracle::run_streaming(&machine(program, quick, set, kernel), set.shape())?;
    let r = out.step("traced")?;
    ensure!(
        r.rc == 0 && r.stdout.trim_end().ends_with("DONE"),
        "{} fails: {r:?}",
        program.name
    );
    Ok(out)
}

fn measure(
    program: &'static Program,
    quick: bool,
    set: Set,
    kernel: &str,
    points: &mut Vec<Point>,
) -> Result<Row> {
    let start = Instant::now();
    let out = trace(program, quick, set, kernel)?;
    let ran = start.elapsed().as_secs_f64();
    // The records must be the oracle's, for its stays are the pages' names.
    let agreed = oracle::compare(&out.trace(), &oracle::log(&out))?;
    let path = oracle::stream(&out);
    let log = oracle::log(&out);
    let streams = Streams::load(&out.trace(), &log, &path, Naming::Canonical, Whose::All)?;
    streams.same_pages()?;
    let clock = set.shape().clock;
    let sizes = sizes(streams.n, streams.footprint);
    let all = POLICIES.len();
    let full = simulate(all, &sizes, |to| streams.full(to))?;
    within_bands(&streams, &sizes, &full.misses)?;
    let mut add = |reduction, accesses: &[Access]| -> Result<()> {
        let reduced = simulate(all, &sizes, |to| in_blocks(accesses, to))?;
        lru_bounds(streams.n, &sizes, reduction, &full.lru, &reduced.lru)?;
        let policies = full.misses.iter().zip(&reduced.misses);
        for (policy, (full, reduced)) in policies.enumerate() {
            let every = if full.len() == sizes.len() { 1 } else { SPARSE };
            let sizes = (0..).zip(&sizes).step_by(every);
            let both = full.iter().zip(reduced).zip(sizes);
            points.extend(both.map(|((&full, &reduced), (step, &size))| Point {
                program: program.name,
                n: streams.n,
                reduction,
                policy,
                step,
                size,
                footprint: streams.footprint,
                full,
                reduced,
            }));
        }
        Ok(())
    };
    if clock {
        add(Reduction::Clock, &streams.plain)?;
        add(Reduction::ClockFilled, &streams.filled)?;
    } else if set.shape().batch > 1 {
        add(Reduction::Batches, &streams.plain)?;
    } else {
        add(Reduction::Fifo, &streams.plain)?;
        add(Reduction::FifoFilled, &streams.filled)?;
        add(Reduction::Parts, &streams.parts(PARTS))?;
        add(Reduction::Ends, &streams.ends()?)?;
    }
    std::fs::remove_file(&path)?;
    Ok(Row {
        program: program.name,
        set: set.name(),
        records: agreed.records,
        references: streams.references,
        footprint: streams.footprint,
        seconds: [ran, start.elapsed().as_secs_f64() - ran],
    })
}

/// Mean and worst error of some points; none of none.
fn error<'p>(points: impl Iterator<Item = &'p Point>) -> Option<(f64, f64)> {
    let errors: Vec<f64> = points.map(Point::error).collect();
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    (!errors.is_empty()).then(|| (mean, errors.iter().fold(0.0, |a: f64, &b| a.max(b))))
}

fn cell(error: Option<(f64, f64)>) -> String {
    error.map_or_else(
        || " |".into(),
        |(mean, worst)| format!(" {:.3} / {:.2} |", 100.0 * mean, 100.0 * worst),
    )
}

/// Tables in Markdown.
fn tables(rows: &[Row], points: &[Point]) -> Result<String, std::fmt::Error> {
    let mut t = String::new();
    writeln!(
        t,
        "| program | set | references | records | one in | pages |"
    )?;
    writeln!(t, "|---|---|--:|--:|--:|--:|")?;
    for r in rows {
        writeln!(
            t,
            "| {} | {} | {} | {} | {:.0} | {} |",
            r.program,
            r.set,
            r.references,
            r.records,
            r.references as f64 / r.records as f64,
            r.footprint
        )?;
    }
    writeln!(t, "\nMean / worst error in %, of all programs and sets:\n")?;
    write!(t, "| policy | simulated |")?;
    for from in FROM {
        write!(t, " ≥ {from} N |")?;
    }
    writeln!(t, "\n|---|---|{}", "--:|".repeat(FROM.len()))?;
    for (policy, id) in POLICIES.iter().enumerate() {
        for (reduction, name) in Reduction::ALL {
            write!(t, "| {id} | {name} |")?;
            for from in FROM {
                let chosen = points.iter().filter(|p| {
                    p.policy == policy && p.reduction == reduction && p.size >= from * p.n
                });
                write!(t, "{}", cell(error(chosen)))?;
            }
            writeln!(t)?;
        }
    }
    writeln!(t, "\nThe same at 4 N and more, by program:\n")?;
    let programs: Vec<_> = {
        let mut names: Vec<_> = rows.iter().map(|r| r.program).collect();
        names.dedup();
        names
    };
    write!(t, "| policy | simulated | N |")?;
    for program in &programs {
        write!(t, " {program} |")?;
    }
    writeln!(t, "\n|---|---|--:|{}", "--:|".repeat(programs.len()))?;
    let mut ns: Vec<u64> = points.iter().map(|p| p.n).collect();
    ns.sort_unstable();
    ns.dedup();
    for (policy, id) in POLICIES.iter().enumerate() {
        for (reduction, name) in &Reduction::ALL[..5] {
            for &n in &ns {
                write!(t, "| {id} | {name} | {n} |")?;
                for program in &programs {
                    let chosen = points.iter().filter(|p| {
                        (p.policy, p.reduction, p.program) == (policy, *reduction, *program)
                            && p.n == n
                            && p.size >= 4 * n
                    });
                    write!(t, "{}", cell(error(chosen)))?;
                }
                writeln!(t)?;
            }
        }
    }
    Ok(t)
}

/// Errors by size in multiples of N, the mean of programs and sets.
fn plot(points: &[Point]) -> String {
    let panels: Vec<_> = POLICIES
        .iter()
        .enumerate()
        .map(|(policy, id)| Panel {
            title: id.to_uppercase(),
            lines: Reduction::ALL
                .iter()
                .map(|&(reduction, _)| {
                    let mut by_step: BTreeMap<u32, Vec<&Point>> = BTreeMap::new();
                    for p in points {
                        if p.policy == policy && p.reduction == reduction {
                            by_step.entry(p.step).or_default().push(p);
                        }
                    }
                    let means = by_step.into_iter().filter_map(|(step, points)| {
                        let (mean, _) = error(points.into_iter())?;
                        Some((2f64.powf(f64::from(step) / 2.0), mean))
                    });
                    Line {
                        kind: reduction as usize,
                        points: means.collect(),
                    }
                })
                .collect(),
        })
        .collect();
    let legend = Reduction::ALL.map(|(_, name)| name);
    let largest = points.iter().map(|p| p.step).max().unwrap_or(2);
    picture::draw(
        "Error of misses, by size of memory: |Δ| / (misses + pages)",
        &legend,
        &panels,
        2f64.powf(f64::from(largest) / 2.0),
    )
}

fn csv(points: &[Point]) -> String {
    let mut t =
        String::from("program,n,simulated,policy,pages,footprint,misses,misses_simulated\n");
    for p in points {
        let _ = writeln!(
            t,
            "{},{},{:?},{},{},{},{},{}",
            p.program, p.n, p.reduction, POLICIES[p.policy], p.size, p.footprint, p.full, p.reduced
        );
    }
    t
}

/// Writes a file for people into build/out.
///
/// # Errors
///
/// If it can't be written.
pub fn write(name: &str, text: &str) -> Result<()> {
    let dir = paths::build().join("out");
    std::fs::create_dir_all(&dir)?;
    let path = dir.join(name);
    std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    println!("{}", path.display());
    Ok(())
}

/// Sets that are compared: CLOCKs, FIFOs whose records say whether pages were referenced again, and the FIFOs
/// that the activator makes by default. With `quick`, those of 64 pages.
const SETS: [&str; 6] = [
    "64-again",
    "64-clock",
    "64-batch4",
    "512-again-128",
    "512-clock-128",
    "512-batch13",
];

/// Runs the programs whose names, or the names of whose sets, contain one of the words, and prints what came out.
///
/// # Errors
///
/// If a run fails, a record differs from the oracle's, the two streams have other
/// pages, LRU does what was proven that it doesn't, or its mean error is above 0.1 %
/// at 4 N and more; or as [`sets::run`].
pub fn run(words: &[String], quick: bool, kernel: &str) -> Result<()> {
    let chosen = |name: &str| words.is_empty() || words.iter().any(|w| name.contains(w.as_str()));
    let alone = PROGRAMS.iter().any(|p| chosen(p.name)) || SETS.iter().any(|s| chosen(s));
    ensure!(
        alone || sets::PAIRS.iter().any(|p| chosen(p.name)),
        "no name of a program or of a set contains one of the words"
    );
    if alone {
        one_by_one(&chosen, quick, kernel)?;
    }
    sets::run(chosen, quick, kernel)
}

/// Traces of one set, of one program each.
fn one_by_one(chosen: &impl Fn(&str) -> bool, quick: bool, kernel: &str) -> Result<()> {
    let (mut rows, mut points) = (Vec::new(), Vec::new());
    let sets = if quick { &SETS[..3] } else { &SETS[..] };
    for program in &PROGRAMS {
        for set in sets {
            if !chosen(program.name) && !chosen(set) {
                continue;
            }
            let set: Set = set.parse().map_err(|e| anyhow!("{e}"))?;
            let row = measure(program, quick, set, kernel, &mut points)
                .with_context(|| format!("{} with a set of {}", program.name, set.name()))?;
            println!(
                "{:<8} {:<14} {:>9} records of {:>9} references; page sets \
                 equal: 100.00 % of {}; {:.0} s run, {:.0} s simulated",
                row.program,
                row.set,
                row.records,
                row.references,
                row.footprint,
                row.seconds[0],
                row.seconds[1]
            );
            rows.push(row);
        }
    }
    ensure!(
        !rows.is_empty(),
        "none of the sets that are measured with --quick has such a name"
    );
    let tables = tables(&rows, &points)?;
    println!("\n{tables}");
    write("fidelity.md", &tables)?;
    write("fidelity.csv", &csv(&points))?;
    write("fidelity.svg", &plot(&points))?;
    let filled = points
        .iter()
        .filter(|p| p.policy == 0 && p.reduction == Reduction::FifoFilled && p.size >= 4 * p.n);
    if let Some((mean, _)) = error(filled) {
        ensure!(
            mean < 1e-3,
            "LRU's mean error is {:.3} % at 4 N and more",
            100.0 * mean
        );
    } else {
        ensure!(
            rows.iter().all(|r| !r.set.contains("-again")),
            "no size is 4 N or larger"
        );
    }
    Ok(())
}

/// The mean error of LRU misses at sizes of `from` times N and more, of these references. Pages
/// have their addresses as names, so that nothing else need be right.
///
/// # Errors
///
/// If the page sets differ, there is no such size, or what can't be read.
pub fn lru_error(out: &Outcome, whose: Whose, from: u64) -> Result<f64> {
    let (log, stream) = (oracle::log(out), oracle::stream(out));
    let streams = Streams::load(&out.trace(), &log, &stream, Naming::Virtual, whose)?;
    streams.same_pages()?;
    // All of them: of a short run's few sizes, one where a handful of misses differ by
    // chance would decide.
    let sizes: Vec<u64> = (from * streams.n..streams.footprint).collect();
    let full = simulate(2, &sizes, |to| streams.full(to))?;
    within_bands(&streams, &sizes, &full.misses)?;
    let reduced = simulate(1, &sizes, |to| in_blocks(&streams.filled, to))?;
    let points = full.misses[0].iter().zip(&reduced.misses[0]);
    let errors: Vec<f64> = points
        .map(|(&full, &reduced)| reduced.abs_diff(full) as f64 / (full + streams.footprint) as f64)
        .collect();
    ensure!(
        !errors.is_empty(),
        "it has no more than {} pages",
        streams.footprint
    );
    Ok(errors.iter().sum::<f64>() / errors.len() as f64)
}
