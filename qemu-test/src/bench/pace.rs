//! References a second: of one process on one CPU, and of two processes on two CPUs, each of which
//! is a thread of the host. Once with a set for each process, once in one set, and once untraced:
//! that is the most that the host gives to two CPUs.
//!
//! The guest has no icount, which would run all CPUs in one thread. So its clock is the host's, and
//! the time of a run is wall time. All figures are of one boot. The runs are repeated in one order
//! and in the opposite order, by turns, and each figure is a median. So a host that becomes slower
//! or faster meanwhile changes all figures alike.

use crate::machine::{Machine, Outcome, Profile, step};
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

/// A number of processes, each on a CPU of its own, and how they are traced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kind {
    tracing: Tracing,
    processes: u64,
}

impl Kind {
    /// All kinds, one process before two.
    fn all() -> impl DoubleEndedIterator<Item = Kind> {
        Tracing::ALL
            .into_iter()
            .flat_map(|tracing| [1, 2].map(|processes| Kind { tracing, processes }))
    }

    fn reads(self) -> u64 {
        self.processes * PAGES * self.tracing.rounds()
    }

    fn name(self, run: usize) -> String {
        format!("{} {} {run}", self.tracing.name(), self.processes)
    }

    /// The run, and the account of its trace if it has one.
    fn steps(self, run: usize) -> Vec<Step> {
        let rounds = self.tracing.rounds();
        let plain = format!("/bin/sharers processes {} {PAGES} {rounds}", self.processes);
        let name = self.name(run);
        let step = |name: &str, line: &str| step(name, &line.split(' ').collect::<Vec<_>>());
        match self.tracing.sets() {
            None => vec![step(&name, &plain)],
            Some(sets) => vec![
                step(
                    &name,
                    &format!("/bin/activator run -n {N} --set-per {sets} -o /dev/trace -- {plain}"),
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
}

/// References a second of the runs of a kind.
#[derive(Serialize, Debug)]
struct Row {
    tracing: Tracing,
    processes: u64,
    median: f64,
    least: f64,
    most: f64,
    runs: Vec<f64>,
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

fn median(sorted: &[f64]) -> Option<f64> {
    let at = |i: usize| sorted.get(i).copied();
    let half = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => Some(f64::midpoint(at(half.checked_sub(1)?)?, at(half)?)),
        _ => at(half),
    }
}

impl Row {
    fn new(kind: Kind, runs: Vec<f64>) -> Result<Row> {
        let mut sorted = runs.clone();
        sorted.sort_by(f64::total_cmp);
        let median = median(&sorted).context("no runs")?;
        Ok(Row {
            tracing: kind.tracing,
            processes: kind.processes,
            median,
            least: sorted[0],
            most: sorted[sorted.len() - 1],
            runs,
        })
    }
}

impl Paces {
    fn new(rows: Vec<Row>) -> Result<Paces> {
        let of = |tracing, processes| -> Result<f64> {
            let mut rows = rows.iter();
            let row = rows.find(|r| (r.tracing, r.processes) == (tracing, processes));
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
}

/// Reads a second of one run. If it was traced, each read was a reference, but for a few: those of
/// the beginning, and those of the rest of the program.
fn pace(out: &Outcome, kind: Kind, run: usize) -> Result<f64> {
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
    Ok(said.references as f64 / (said.ns as f64 / 1e9))
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
        Row::new(kind, runs.collect::<Result<_>>()?)
    });
    Paces::new(rows.collect::<Result<_>>()?)
}

fn print(paces: &Paces) {
    println!(
        "\nreferences a second, N={N}; two CPUs in two threads of the host; medians of {RUNS} runs"
    );
    println!(
        "{:<24} {:>9} {:>13} {:>13} {:>13}",
        "tracing", "processes", "median", "least", "most"
    );
    for r in &paces.rows {
        println!(
            "{:<24} {:>9} {:>13.0} {:>13.0} {:>13.0}",
            r.tracing.name(),
            r.processes,
            r.median,
            r.least,
            r.most
        );
    }
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

/// Measures and prints.
///
/// # Errors
///
/// If the guest or a program fails, or reads are not recorded. Figures themselves are never errors.
pub fn run(json: bool, kernel: &str) -> Result<()> {
    let cpus = std::thread::available_parallelism()?;
    ensure!(
        cpus.get() >= 2,
        "the host has one CPU, so that two threads show nothing"
    );
    let paces = measure(kernel)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&paces)?);
    } else {
        print(&paces);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        let pace = |kind: Kind| match (kind.tracing, kind.processes) {
            (Tracing::Untraced, 1) => 100.0,
            (Tracing::Untraced, _) => 190.0,
            (_, 1) => 10.0,
            (Tracing::SetPerProcess, _) => 19.0,
            (Tracing::OneSet, _) => 12.0,
        };
        let rows = Kind::all().map(|kind| {
            let p = pace(kind);
            Row::new(kind, vec![p * 2.0, p * 0.5, p * 0.9, p * 1.1]).unwrap()
        });
        let paces = Paces::new(rows.collect()).unwrap();
        assert_eq!(paces.rows[0].median, 100.0);
        assert_eq!((paces.rows[0].least, paces.rows[0].most), (50.0, 200.0));
        let ratios: Vec<f64> = paces.ratios.iter().map(|r| r.ratio).collect();
        let wanted = [1.9, 1.9, 1.2];
        assert!(
            ratios.iter().zip(wanted).all(|(r, w)| (r - w).abs() < 1e-9),
            "{ratios:?}"
        );
        assert!((paces.ratios[2].share - 12.0 / 19.0).abs() < 1e-9);
        assert!(Paces::new(vec![]).is_err());
        assert!(
            Row::new(
                Kind {
                    tracing: Tracing::OneSet,
                    processes: 1
                },
                vec![]
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
        assert_eq!(names.len(), RUNS * (2 + 4 * 2));
        assert_eq!(RUNS % 2, 0);
    }
}
