//! References a second: of one process on one CPU, and of two processes on two CPUs, each of which
//! is a thread of the host. Once with a set for each process, once in one set, and once untraced:
//! that is the most that the host gives to two CPUs. And of two threads of one process, with the
//! interrupts for flushes of the TLB.
//!
//! The guest has no icount, which would run all CPUs in one thread. So its clock is the host's, and
//! the time of a run is wall time. All figures are of one boot. The runs are repeated in one order
//! and in the opposite order, by turns, and each figure is a median. So a host that becomes slower
//! or faster meanwhile changes all figures alike.

use crate::machine::{Machine, Outcome, Profile, step};
use crate::targets::Target;
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::Step;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Pages of each process, all of which it reads in turn; and pages of a set.
const PAGES: u64 = 1024;
const N: u64 = 512;
/// How often each page is read, traced and untraced: for about a second.
const ROUNDS: u64 = 256;
const ROUNDS_UNTRACED: u64 = 1 << 16;
/// Of a host that has two CPUs for the guest, two untraced processes make at least so many times as
/// many references as one.
const BUSY: f64 = 1.8;
/// With a set for each process, two processes reach at least so much of the untraced processes' ratio to one.
const SHARE: f64 = 0.8;
/// How often each run is repeated.
const RUNS: usize = 10;

/// How a program is traced.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
enum Tracing {
    Untraced,
    SetPerProcess,
    OneSet,
}

impl Tracing {
    const ALL: [Tracing; 3] = [Tracing::Untraced, Tracing::SetPerProcess, Tracing::OneSet];

    fn name(self) -> &'static str {
        match self {
            Tracing::Untraced => "untraced",
            Tracing::SetPerProcess => "a set for each process",
            Tracing::OneSet => "one set",
        }
    }

    /// The activator's option; none if it does not trace.
    fn sets(self) -> Option<&'static str> {
        match self {
            Tracing::Untraced => None,
            Tracing::SetPerProcess => Some("process"),
            Tracing::OneSet => Some("all"),
        }
    }

    fn rounds(self) -> u64 {
        match self {
            Tracing::Untraced => ROUNDS_UNTRACED,
            Tracing::SetPerProcess | Tracing::OneSet => ROUNDS,
        }
    }
}

/// What each worker is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
enum Workers {
    Processes,
    Threads,
}

/// A number of processes or threads, each on a CPU of its own, and how they are traced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kind {
    tracing: Tracing,
    workers: Workers,
    number: u64,
}

impl Kind {
    /// All kinds, one process before two.
    fn all() -> impl DoubleEndedIterator<Item = Kind> {
        let processes = |tracing| {
            [1, 2].map(|number| Kind {
                tracing,
                workers: Workers::Processes,
                number,
            })
        };
        let threads = Kind {
            tracing: Tracing::OneSet,
            workers: Workers::Threads,
            number: 2,
        };
        let all = Tracing::ALL.into_iter().flat_map(processes);
        all.chain(std::iter::once(threads))
    }

    fn reads(self) -> u64 {
        self.number * PAGES * self.tracing.rounds()
    }

    fn workers(self) -> &'static str {
        match self.workers {
            Workers::Processes => "processes",
            Workers::Threads => "threads",
        }
    }

    fn name(self, run: usize) -> String {
        let (tracing, workers) = (self.tracing.name(), self.workers());
        format!("{tracing} {workers} {} {run}", self.number)
    }

    /// The run, and the account of its trace if it has one.
    fn steps(self, run: usize) -> Vec<Step> {
        let rounds = self.tracing.rounds();
        let (workers, number) = (self.workers(), self.number);
        let plain = format!("/bin/sharers {workers} {number} {PAGES} {rounds}");
        let name = self.name(run);
        let step = |name: &str, line: &str| step(name, &line.split(' ').collect::<Vec<_>>());
        match self.tracing.sets() {
            None => vec![step(&name, &plain)],
            Some(sets) => vec![
                step(
                    &name,
                    &format!(
                        "/bin/activator run -n {N} --pack=no --set-per {sets} -o /dev/trace -- {plain}"
                    ),
                ),
                step(&format!("{name} status"), "/bin/activator status --json"),
            ],
        }
    }
}

/// What `sharers` prints.
#[derive(Deserialize)]
struct Said {
    references: u64,
    ns: u64,
    shootdowns: u64,
}

/// References a second of the runs of a kind; and the interrupts for flushes of the TLB for each
/// reference, as a median.
#[derive(Serialize, Debug)]
struct Row {
    tracing: Tracing,
    workers: Workers,
    number: u64,
    median: f64,
    least: f64,
    most: f64,
    shootdowns: f64,
    runs: Vec<f64>,
}

/// The same of one run.
#[derive(Clone, Copy)]
struct Pace {
    references: f64,
    shootdowns: f64,
}

/// All of it.
#[derive(Serialize, Debug)]
struct Paces {
    rows: Vec<Row>,
    /// For each way to trace, how many times as many references a second two processes on two CPUs
    /// make as one on one CPU.
    ratios: Vec<Ratio>,
}

#[derive(Serialize, Debug)]
struct Ratio {
    tracing: Tracing,
    ratio: f64,
    /// Of that of the untraced processes.
    share: f64,
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> Option<f64> {
    let at = |i: usize| sorted.get(i).copied();
    let half = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => Some(f64::midpoint(at(half.checked_sub(1)?)?, at(half)?)),
        _ => at(half),
    }
}

impl Row {
    /// What its workers are.
    fn of(&self) -> String {
        let what = match (self.workers, self.number) {
            (Workers::Processes, 1) => "process",
            (Workers::Processes, _) => "processes",
            (Workers::Threads, _) => "threads",
        };
        format!("{} {what}", self.number)
    }

    fn new(kind: Kind, runs: &[Pace]) -> Result<Row> {
        let of = |value: fn(&Pace) -> f64| runs.iter().map(value).collect::<Vec<_>>();
        let runs = of(|r| r.references);
        let (paces, shootdowns) = (sorted(runs.clone()), sorted(of(|r| r.shootdowns)));
        Ok(Row {
            tracing: kind.tracing,
            workers: kind.workers,
            number: kind.number,
            median: median(&paces).context("no runs")?,
            least: paces[0],
            most: paces[paces.len() - 1],
            shootdowns: median(&shootdowns).context("no runs")?,
            runs,
        })
    }
}

impl Paces {
    fn new(rows: Vec<Row>) -> Result<Paces> {
        let of = |tracing, number| -> Result<f64> {
            let mut rows = rows.iter().filter(|r| r.workers == Workers::Processes);
            let row = rows.find(|r| (r.tracing, r.number) == (tracing, number));
            Ok(row.context("a row is missing")?.median)
        };
        let two_to_one = |tracing| -> Result<f64> { Ok(of(tracing, 2)? / of(tracing, 1)?) };
        let most = two_to_one(Tracing::Untraced)?;
        let ratios = Tracing::ALL.into_iter().map(|tracing| -> Result<Ratio> {
            let ratio = two_to_one(tracing)?;
            Ok(Ratio {
                tracing,
                ratio,
                share: ratio / most,
            })
        });
        let ratios = ratios.collect::<Result<_>>()?;
        Ok(Paces { rows, ratios })
    }

    fn targets(&self) -> Vec<Target> {
        let ratios = self.ratios.iter();
        let of_sets = ratios.filter(|r| r.tracing == Tracing::SetPerProcess);
        let what = "two processes on two CPUs, a set for each, share of the untraced ratio";
        of_sets
            .map(|r| Target::least(what, SHARE, r.share))
            .collect()
    }
}

/// Reads a second of one run. If it was traced, each read was a reference, but for a few: those of
/// the beginning, and those of the rest of the program.
fn pace(out: &Outcome, kind: Kind, run: usize) -> Result<Pace> {
    let name = kind.name(run);
    let r = out.step(&name)?;
    ensure!(r.rc == 0, "{name}: {r:?}");
    let said: Said = serde_json::from_str(&r.stdout).with_context(|| format!("{r:?}"))?;
    ensure!(
        said.references == kind.reads() && said.ns > 0,
        "{name}: {r:?}"
    );
    if kind.tracing.sets().is_some() {
        let status: Value = serde_json::from_str(&out.step(&format!("{name} status"))?.stdout)?;
        let admissions = status["admissions"].as_u64().context("no admissions")?;
        let reads = kind.reads();
        ensure!(
            (reads..reads + reads / 20).contains(&admissions),
            "{name}: {admissions} references are recorded of {reads} reads"
        );
        for lost in ["lost_full", "lost_io", "funny", "stuck"] {
            ensure!(status[lost] == 0, "{name}: {lost} in {status}");
        }
    }
    Ok(Pace {
        references: said.references as f64 / (said.ns as f64 / 1e9),
        shootdowns: said.shootdowns as f64 / said.references as f64,
    })
}

fn measure(kernel: &str) -> Result<Paces> {
    let mut steps = Vec::new();
    for run in 0..RUNS {
        let kinds: Vec<Kind> = match run % 2 {
            0 => Kind::all().collect(),
            _ => Kind::all().rev().collect(),
        };
        steps.extend(kinds.into_iter().flat_map(|kind| kind.steps(run)));
    }
    let out = Machine {
        name: format!("bench-two-cpus-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 1800,
    }
    .run()?;
    let rows = Kind::all().map(|kind| {
        let runs = (0..RUNS).map(|run| pace(&out, kind, run));
        Row::new(kind, &runs.collect::<Result<Vec<_>>>()?)
    });
    Paces::new(rows.collect::<Result<_>>()?)
}

fn print(paces: &Paces) {
    println!(
        "\nreferences a second, N={N}; two CPUs in two threads of the host; medians of {RUNS} runs"
    );
    println!(
        "{:<24} {:<11} {:>13} {:>13} {:>13} {:>11}",
        "tracing", "of", "median", "least", "most", "shootdowns"
    );
    for r in &paces.rows {
        println!(
            "{:<24} {:<11} {:>13.0} {:>13.0} {:>13.0} {:>11.3}",
            r.tracing.name(),
            r.of(),
            r.median,
            r.least,
            r.most,
            r.shootdowns
        );
    }
    println!(
        "Shootdowns: interrupts that make another CPU flush its TLB, for each reference; medians."
    );
    if let Some(most) = paces.ratios.iter().find(|r| r.tracing == Tracing::Untraced) {
        if most.ratio < BUSY {
            println!(
                "The host did not give a CPU to each of two untraced processes: it is busy, or its \
                 CPUs share a core. These figures say little."
            );
        }
    }
    for r in &paces.ratios {
        println!(
            "{:<24} two make {:.2} times as many as one, {:.0} % of what untraced ones do",
            r.tracing.name(),
            r.ratio,
            100.0 * r.share
        );
    }
}

/// Measures and prints. Gives the targets; as JSON, none.
///
/// # Errors
///
/// If the guest or a program fails, or reads are not recorded.
pub fn run(json: bool, kernel: &str) -> Result<Vec<Target>> {
    let cpus = std::thread::available_parallelism()?;
    ensure!(
        cpus.get() >= 2,
        "the host has one CPU, so that two threads show nothing"
    );
    let paces = measure(kernel)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&paces)?);
        return Ok(vec![]);
    }
    print(&paces);
    Ok(paces.targets())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        let pace = |kind: Kind| match (kind.tracing, kind.number) {
            _ if kind.workers == Workers::Threads => 1.0,
            (Tracing::Untraced, 1) => 100.0,
            (Tracing::Untraced, _) => 190.0,
            (_, 1) => 10.0,
            (Tracing::SetPerProcess, _) => 19.0,
            (Tracing::OneSet, _) => 12.0,
        };
        let rows = Kind::all().map(|kind| {
            let runs = [2.0, 0.5, 0.9, 1.1].map(|part| Pace {
                references: pace(kind) * part,
                shootdowns: part,
            });
            Row::new(kind, &runs).unwrap()
        });
        let paces = Paces::new(rows.collect()).unwrap();
        assert_eq!(paces.rows[0].median, 100.0);
        assert_eq!((paces.rows[0].least, paces.rows[0].most), (50.0, 200.0));
        let ratios: Vec<f64> = paces.ratios.iter().map(|r| r.ratio).collect();
        assert!(paces.rows.iter().all(|r| r.shootdowns == 1.0));
        let wanted = [1.9, 1.9, 1.2];
        assert!(
            ratios.iter().zip(wanted).all(|(r, w)| (r - w).abs() < 1e-9),
            "{ratios:?}"
        );
        assert!((paces.ratios[2].share - 12.0 / 19.0).abs() < 1e-9);
        assert_eq!(paces.targets().len(), 1);
        assert!(Paces::new(vec![]).is_err());
        assert!(
            Row::new(
                Kind {
                    tracing: Tracing::OneSet,
                    workers: Workers::Threads,
                    number: 2
                },
                &[]
            )
            .is_err()
        );
        assert_eq!(median(&[1.0, 5.0, 6.0]), Some(5.0));
    }

    /// Each run comes as often early as late.
    #[test]
    fn kinds_have_names_and_steps_of_their_own() {
        let names: std::collections::BTreeSet<_> = Kind::all()
            .flat_map(|kind| (0..RUNS).flat_map(move |run| kind.steps(run)))
            .map(|step| step.name)
            .collect();
        assert_eq!(names.len(), RUNS * (2 + 5 * 2));
        assert_eq!(RUNS % 2, 0);
    }
}
