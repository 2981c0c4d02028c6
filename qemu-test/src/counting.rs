//! What a reference costs the CPUs together, counted and not timed: instructions, the part of
//! them under locks that CPUs share, stores to cache lines that others store to, and
//! interrupts from other CPUs. The same for tracers in user mode, which do what they can with
//! userfaultfd or mprotect().

use crate::machine::{Machine, Outcome, Profile, step};
use crate::paths;
use crate::targets::{self, Target};
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::Step;
use oracle::count::{Cpu, Report, SharedLock};
use postproc::report::chart::{LineChart, Series, Unit};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// CPUs of the guests.
pub const CPUS: [usize; 4] = [1, 2, 8, 64];
/// Pages of each worker, and times that it reads each of them between the marks.
const PAGES: u64 = 1024;
pub const ROUNDS: u64 = 4;
/// Pages that a tracer keeps enabled.
const N: u64 = 512;

/// Programs: what they are called, and arguments of `sharers`.
const PROGRAMS: [(&str, &str); 5] = [
    ("one program", "processes 1"),
    ("two processes", "processes 2"),
    (EIGHT, "processes 8"),
    ("two threads", "threads 2"),
    (MAPPERS, "mappers 2"),
];

/// Each on a CPU of its own. The guest must have so many.
const EIGHT: &str = "eight processes";

/// Two processes that map and unmap pages, and read none: figures are for each event.
pub const MAPPERS: &str = "two mappers";

/// With a set for each process: what two processes share then.
pub const SETS: &str = "K=13, sets";

/// With batches of the default size.
const BATCHES: &str = "kVMTrace, K=13";

/// How a program is traced.
#[derive(Clone, Copy)]
enum Way {
    /// By the activator, evicting up to so many pages at once.
    Activator(u32),
    /// By the activator, evicting up to 13 pages at once, with a set for each process.
    Sets,
    /// By `sharers` itself, which has this argument.
    Own(&'static str),
}

/// Who traces: in tables, and how. RWP is userfaultfd's mode for reads and writes.
const TRACERS: [(&str, Way); 7] = [
    ("kVMTrace", Way::Activator(1)),
    (BATCHES, Way::Activator(13)),
    ("kVMTrace, K=32", Way::Activator(32)),
    (SETS, Way::Sets),
    ("RWP, signals", Way::Own("rwp-signal")),
    ("RWP, a thread", Way::Own("rwp-thread")),
    ("mprotect", Way::Own("segv")),
];

impl Way {
    /// Whether it is tried with a program. What batches save is flushes: without interrupts from
    /// other CPUs, and with them.
    fn traces(self, program: &str, cpus: usize) -> bool {
        match self {
            _ if program == EIGHT && cpus != 8 => false,
            Way::Activator(1) => true,
            Way::Sets => ["two processes", EIGHT].contains(&program),
            // Events have no batches.
            Way::Activator(13) => program != MAPPERS,
            Way::Activator(_) => !["two processes", EIGHT, MAPPERS].contains(&program),
            Way::Own(_) => ![EIGHT, MAPPERS].contains(&program),
        }
    }
}

/// What was counted for a program of a guest.
#[derive(Serialize, Debug)]
pub struct Row {
    /// CPUs of the guest.
    pub cpus: usize,
    /// Who traces.
    pub tracer: &'static str,
    /// What.
    pub program: &'static str,
    /// References, by all CPUs; of [`MAPPERS`], events.
    pub references: u64,
    /// Ticks of the first worker's time stamp counter meanwhile. While one CPU runs, a tick is an
    /// instruction.
    pub ticks: u64,
    /// Instructions for each, of programs and the kernel.
    pub instructions: f64,
    /// Of these, under that lock that CPUs share which has most.
    pub longest: f64,
    /// The lock's name.
    pub lock: String,
    /// Instructions under all such locks. Those under two of them count twice.
    pub locked: f64,
    /// Locks of that kind taken for each reference.
    pub takes: f64,
    /// Stores for each reference to lines that several CPUs store to.
    pub stores: f64,
    /// Of these, after another CPU's.
    pub moves: f64,
    /// Of the stores, those to lines to which all CPUs store that admit references.
    pub common: f64,
    /// Interrupts from other CPUs for each reference.
    pub interrupts: f64,
    /// The share of admissions that took locks of page tables one after the other.
    pub in_steps: f64,
    /// All of it.
    pub report: Report,
}

impl Row {
    /// What a report says of a program. Figures are for each event of [`MAPPERS`]. Otherwise they are
    /// for each admission if the kernel admits references, and for each page fault if not.
    fn new(
        (cpus, rounds): (usize, u64),
        (tracer, program): (&'static str, &'static str),
        ticks: u64,
        report: Report,
    ) -> Result<Row> {
        let sum = |figure: fn(&Cpu) -> u64| report.cpus.iter().map(figure).sum::<u64>();
        let references = match sum(|c| c.admissions) {
            _ if program == MAPPERS => sum(|c| c.events),
            0 => sum(|c| c.faults),
            admissions => admissions,
        };
        // Each mapper logs two events for each page; the second one may log some of them after the
        // first one's end.
        let least = PAGES * rounds * if program == MAPPERS { 2 } else { 1 };
        ensure!(
            references >= least,
            "{tracer}, {program}: {references} references or events, and not {least}"
        );
        let each = |n: u64| n as f64 / references as f64;
        let none = SharedLock::default();
        let longest = report.locks.first().unwrap_or(&none);
        Ok(Row {
            cpus,
            tracer,
            program,
            references,
            ticks,
            instructions: each(sum(|c| c.instructions)),
            longest: each(longest.longest),
            lock: readable(&longest.name),
            locked: each(report.locks.iter().map(|l| l.instructions).sum()),
            takes: each(report.locks.iter().map(|l| l.takes).sum()),
            stores: each(report.lines.iter().map(|l| l.stores).sum()),
            moves: each(report.lines.iter().map(|l| l.moves).sum()),
            common: each(report.lines.iter().map(|l| l.common).sum()),
            interrupts: each(sum(|c| c.calls + c.wakes)),
            in_steps: each(sum(|c| c.in_steps)),
            report,
        })
    }

    /// The most references that `cpus` CPUs can admit while one of them runs a million
    /// instructions, by Amdahl's law: what is under the longest lock they do one after the
    /// other.
    fn limit(&self, cpus: f64) -> f64 {
        let serial = self.longest / self.instructions;
        1e6 / self.instructions / (serial + (1.0 - serial) / cpus)
    }
}

/// Functions of the tracer's Rust that lock page tables, and nothing else.
const LOCK_PAGE_TABLES: [&str; 2] = ["in vmtrace_rs_touch", "in vmtrace_rs_readmit"];

impl Row {
    /// Stores for each reference to shared lines whose name contains this.
    pub fn stores_to(&self, name: &str) -> f64 {
        let lines = self.report.lines.iter();
        let named = lines.filter(|l| readable(&l.name).contains(name));
        named.map(|l| l.stores).sum::<u64>() as f64 / self.references as f64
    }

    /// Locks of the tracer's Rust that CPUs share, and how often other CPUs took them for each
    /// reference than the one that took them most. Locks of page tables are left out.
    pub fn tracer_locks(&self) -> (String, f64) {
        let ours = |l: &&SharedLock| {
            (l.name.contains("vmtrace_rs_") || l.name.contains("7vmtrace"))
                && !LOCK_PAGE_TABLES.iter().any(|f| l.name.ends_with(f))
        };
        let locks = || self.report.locks.iter().filter(ours);
        let others: u64 = locks().map(|l| l.others).sum();
        let names: Vec<_> = locks().map(|l| readable(&l.name)).collect();
        (names.join(", "), others as f64 / self.references as f64)
    }
}

/// The name of a Rust item without its crate's hash; other names are as they are.
fn readable(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}

/// Those whose name, tracer and program, contains one of the words; all if there are none.
fn steps(cpus: usize, words: &[String], rounds: u64) -> Vec<(&'static str, &'static str, Step)> {
    let mut list = vec![];
    for (tracer, way) in TRACERS {
        for (program, shape) in PROGRAMS.into_iter().filter(|p| way.traces(p.0, cpus)) {
            let plain = format!("/bin/sharers {shape} {PAGES} {rounds}");
            let line = match way {
                Way::Activator(batch) => {
                    format!(
                        "/bin/activator run -n {N} --pack=no --batch {batch} -o /dev/trace -- {plain}"
                    )
                }
                Way::Sets => format!(
                    "/bin/activator run -n {N} --pack=no --batch 13 --set-per process -o /dev/trace -- {plain}"
                ),
                Way::Own(way) => format!("{plain} {way} {N}"),
            };
            let argv: Vec<_> = line.split(' ').collect();
            let name = format!("{tracer}, {program}");
            if words.is_empty() || words.iter().any(|w| name.contains(w.as_str())) {
                list.push((tracer, program, step(&name, &argv)));
            }
        }
    }
    list
}

/// What `sharers` prints.
#[derive(Deserialize)]
struct Said {
    ticks: u64,
}

fn boot(cpus: usize, steps: Vec<Step>, kernel: &str) -> Result<(Outcome, Vec<Report>)> {
    let name = format!("count-{cpus}-{kernel}");
    let plugin = paths::plugin();
    ensure!(
        plugin.exists(),
        "{} is missing: run 'make tools'",
        plugin.display()
    );
    let counts = paths::build().join("runs").join(&name).join("counts");
    let out = Machine {
        name,
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 1200,
    }
    .run_with(&[
        "-smp".into(),
        cpus.to_string(),
        "-plugin".into(),
        format!(
            "file={},count={},map={}",
            plugin.display(),
            counts.display(),
            paths::system_map(kernel).display()
        ),
    ])?;
    let text = fs::read_to_string(&counts)
        .with_context(|| format!("no program reached its marks: {}", counts.display()))?;
    let reports = text.lines().map(serde_json::from_str);
    let reports = reports.collect::<Result<Vec<_>, _>>()?;
    Ok((out, reports))
}

/// Counts in guests of so many CPUs, while each worker reads its pages so many times. Of tracers and programs,
/// those are run whose names contain one of the words.
///
/// # Errors
///
/// If no name contains one of the words, a guest or a program fails, or a tracer has missed a reference.
pub fn count(cpus: &[usize], words: &[String], rounds: u64, kernel: &str) -> Result<Vec<Row>> {
    let mut rows = vec![];
    for &cpus in cpus {
        let steps = steps(cpus, words, rounds);
        if steps.is_empty() {
            continue;
        }
        eprintln!("{cpus} CPUs …");
        let list = steps.iter().map(|(.., step)| step.clone()).collect();
        let (out, reports) = boot(cpus, list, kernel)?;
        ensure!(
            reports.len() == steps.len(),
            "{} of {} programs reached their marks",
            reports.len(),
            steps.len()
        );
        for ((tracer, program, step), report) in steps.into_iter().zip(reports) {
            let r = out.step(&step.name)?;
            ensure!(r.rc == 0, "{r:?}");
            let said: Said = serde_json::from_str(&r.stdout).with_context(|| format!("{r:?}"))?;
            rows.push(Row::new(
                (cpus, rounds),
                (tracer, program),
                said.ticks,
                report,
            )?);
        }
    }
    ensure!(
        !rows.is_empty(),
        "no name of a tracer and a program contains one of the words"
    );
    Ok(rows)
}

/// Prints the table.
pub fn print(rows: &[Row]) {
    println!(
        "N={N}; for each reference, in rows of {MAPPERS} for each event; counted under icount. \
         Lines count if several CPUs stored to them, and locks if they did not leave them to one \
         of them. Moves: stores after another CPU's. All: stores to lines to which each CPU \
         stores that admits references. K: pages that an eviction takes at most, 1 where there is no \
         K; sets: each process has a set of its own. Steps: the share of admissions that took locks of page tables one after the \
         other. The last two columns: references while one CPU runs a million \
         instructions, of 1 CPU and at most of 64"
    );
    println!(
        "{:<14} {:<15} {:>4} {:>7} {:>7} {:>7} {:>6} {:>7} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}  longest of the locks",
        "tracer",
        "program",
        "CPUs",
        "instr.",
        "longest",
        "locked",
        "locks",
        "stores",
        "moves",
        "all",
        "IPIs",
        "steps",
        "1",
        "64"
    );
    for r in rows {
        println!(
            "{:<14} {:<15} {:>4} {:>7.0} {:>7.1} {:>7.1} {:>6.2} {:>7.2} {:>6.2} {:>6.2} {:>6.3} {:>6.3} {:>6.0} {:>6.0}  {}",
            r.tracer,
            r.program,
            r.cpus,
            r.instructions,
            r.longest,
            r.locked,
            r.takes,
            r.stores,
            r.moves,
            r.common,
            r.interrupts,
            r.in_steps,
            r.limit(1.0),
            r.limit(64.0),
            r.lock
        );
    }
}

/// Prints what the functions of the kernel that run most run for each reference.
fn print_functions(rows: &[Row], most: usize) {
    for r in rows {
        let each = |n: u64| n as f64 / r.references as f64;
        println!(
            "\n{}, {}, {} CPUs: {:.1} instructions for each {}, of which",
            r.tracer,
            r.program,
            r.cpus,
            r.instructions,
            if r.program == MAPPERS {
                "event"
            } else {
                "reference"
            }
        );
        for f in r.report.functions.iter().take(most) {
            println!("{:>8.1}  {}", each(f.instructions), readable(&f.name));
        }
        let rest = r.report.functions.iter().skip(most);
        let rest = rest.map(|f| f.instructions).sum();
        println!("{:>8.1}  other functions of the kernel", each(rest));
        let kernel: u64 = r.report.functions.iter().map(|f| f.instructions).sum();
        println!("{:>8.1}  programs", r.instructions - each(kernel));
    }
}

/// Draws the most that several CPUs can do, by what two processes do on two CPUs. (In guests with
/// more, what the other CPUs do while they are idle counts, too.)
pub fn draw(rows: &[Row]) -> String {
    let of = |r: &&Row| r.cpus == 2 && r.program == "two processes";
    let series: Vec<_> = rows
        .iter()
        .filter(of)
        .map(|r| Series {
            name: r.tracer.into(),
            points: (0..=6)
                .map(|p| f64::from(1 << p))
                .map(|cpus| (cpus, r.limit(cpus)))
                .collect(),
            dots: true,
            ..Series::default()
        })
        .collect();
    let all = series.iter().flat_map(|s| &s.points).map(|p| p.1);
    let (least, most) = all.fold((f64::MAX, 1.0f64), |(l, m), y| (l.min(y), m.max(y)));
    LineChart {
        title: "References that several CPUs can admit".into(),
        subtitle: format!("at most, by the longest lock that two processes share; N={N}"),
        x_label: "CPUs".into(),
        y_label: "references in a million instructions' time".into(),
        x: (Unit::Count, true),
        y: (Unit::Count, true),
        x_range: (1.0, 64.0),
        y_range: (least, most),
        series,
        zones: vec![],
        uprights: vec![],
        levels: vec![],
        notes: vec![],
        over_time: false,
    }
    .draw()
}

/// With batches of 13, two threads have at most so many interrupts for each reference: about one for eight.
const INTERRUPTS: f64 = 0.13;
/// With a set for each process, processes share the counter only. For each reference, at most so many instructions
/// are under a lock, so many stores are to lines of all CPUs, and there are so many interrupts.
const UNDER_LOCK: f64 = 5.0;
const STORES: f64 = 5.0;
const INTERRUPTS_OF_SETS: f64 = 0.01;
/// Other tracers take at least so many times the instructions.
const TIMES: f64 = 5.0;

/// What the rows with the default size of batches must show; nothing of rows that are not there.
fn targets(rows: &[Row]) -> Vec<Target> {
    let several = |tracer: &'static str| {
        let of = move |r: &&Row| r.cpus > 1 && r.tracer == tracer && r.program != MAPPERS;
        rows.iter().filter(of)
    };
    let mut targets = vec![];
    let mut most = |what: &str, limit: f64, figures: &mut dyn Iterator<Item = f64>| {
        let worst = figures.reduce(f64::max);
        targets.extend(worst.map(|worst| Target::most(what, limit, worst)));
    };
    let of_threads = several(BATCHES).filter(|r| r.program == "two threads");
    most(
        "two threads, IPIs a reference",
        INTERRUPTS,
        &mut of_threads.map(|r| r.interrupts),
    );
    most(
        "a set for each process, instructions under a lock, a reference",
        UNDER_LOCK,
        &mut several(SETS).map(|r| r.longest),
    );
    most(
        "a set for each process, stores to lines of all CPUs, a reference",
        STORES,
        &mut several(SETS).map(|r| r.common),
    );
    most(
        "a set for each process, IPIs a reference",
        INTERRUPTS_OF_SETS,
        &mut several(SETS).map(|r| r.interrupts),
    );
    for (other, _) in TRACERS.iter().filter(|t| matches!(t.1, Way::Own(_))) {
        let pairs = rows.iter().filter(|r| r.tracer == *other).filter_map(|r| {
            let same = |o: &&Row| (o.tracer, o.cpus, o.program) == (BATCHES, r.cpus, r.program);
            Some(r.instructions / rows.iter().find(same)?.instructions)
        });
        let what = format!("{other}, times the instructions of {BATCHES}");
        let least = pairs.reduce(f64::min);
        targets.extend(least.map(|least| Target::least(what, TIMES, least)));
    }
    targets
}

/// Counts, prints, judges, and draws to `plot`.
///
/// # Errors
///
/// As [`count`]; if a figure misses its target; if the plot can't be written, or `cpus` are without the 2 that it shows.
pub fn run(
    cpus: &[usize],
    words: &[String],
    json: bool,
    functions: Option<usize>,
    plot: Option<&Path>,
    kernel: &str,
) -> Result<()> {
    ensure!(
        plot.is_none() || cpus.contains(&2),
        "--plot shows what 2 CPUs do, and --cpus has no 2"
    );
    ensure!(
        plot.is_none() || words.is_empty(),
        "--plot shows all tracers: leave out the words"
    );
    let rows = count(cpus, words, ROUNDS, kernel)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print(&rows);
        if let Some(most) = functions {
            print_functions(&rows, most);
        }
    }
    if let Some(plot) = plot {
        fs::write(plot, draw(&rows)).with_context(|| format!("{}", plot.display()))?;
    }
    match json {
        true => Ok(()),
        false => targets::settle(&targets(&rows), kernel),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(report: Report) -> Result<Row> {
        Row::new((2, ROUNDS), ("kVMTrace", "two processes"), 1, report)
    }

    fn cpu(instructions: u64, admissions: u64) -> Cpu {
        Cpu {
            instructions,
            admissions,
            faults: admissions + 7,
            calls: admissions / 2,
            wakes: 0,
            in_steps: 0,
            events: 2 * 4096,
        }
    }

    #[test]
    fn figures_are_for_each_reference() {
        let lock = |name: &str, instructions| SharedLock {
            name: name.into(),
            locks: 1,
            takes: 4096,
            others: 2048,
            instructions,
            longest: instructions,
        };
        let row = row(Report {
            cpus: vec![cpu(3000 * 4096, 4096), cpu(1000 * 4096, 4096)],
            locks: vec![lock("one", 409_600), lock("other", 8192)],
            lines: vec![],
            functions: vec![],
        });
        let row = row.unwrap();
        assert_eq!((row.references, row.instructions), (8192, 2000.0));
        assert_eq!((row.longest, row.locked, row.takes), (50.0, 51.0, 1.0));
        assert_eq!(row.interrupts, 0.5);
        // One part in forty is done by one CPU after the other.
        assert!((row.limit(1.0) - 500.0).abs() < 1e-9);
        assert!((row.limit(1e9) - 40.0 * 500.0).abs() < 1.0);
    }

    #[test]
    fn figures_of_mappers_are_for_each_event() {
        let report = Report {
            cpus: vec![cpu(3000 * 4096, 7), cpu(1000 * 4096, 0)],
            ..Report::default()
        };
        let row = Row::new((2, ROUNDS), ("kVMTrace", MAPPERS), 1, report).unwrap();
        assert_eq!((row.references, row.instructions), (4 * 4096, 1000.0));
    }

    #[test]
    fn names_of_rust_are_readable() {
        let name = readable("_RNvNtCs4hzefAxeQS0_7vmtrace3hot7NUMBERS");
        assert_eq!(name, "vmtrace::hot::NUMBERS");
        assert_eq!(readable("in __vmtrace_touch"), "in __vmtrace_touch");
    }

    #[test]
    fn too_few_references_are_an_error() {
        let report = Report {
            cpus: vec![cpu(1, 4095)],
            ..Report::default()
        };
        assert!(row(report).is_err());
    }

    /// Rows of two threads, and of two processes with a set each, on two CPUs: the instructions of both and of another
    /// tracer, and the interrupts of the threads.
    fn judged(ours: u64, theirs: u64, calls: u64) -> Vec<bool> {
        let row = |tracer, program, instructions: u64, calls| {
            let cpu = Cpu {
                calls,
                ..cpu(instructions * 4096, 4096)
            };
            let report = Report {
                cpus: vec![cpu],
                ..Report::default()
            };
            Row::new((2, ROUNDS), (tracer, program), 1, report).unwrap()
        };
        let rows = [
            row(BATCHES, "two threads", ours, calls),
            row("mprotect", "two threads", theirs, 4096),
            row(SETS, "two processes", ours, 0),
            row("kVMTrace", MAPPERS, ours, 4096),
        ];
        targets(&rows).iter().map(Target::is_met).collect()
    }

    #[test]
    fn rows_meet_their_targets_or_miss_them() {
        assert_eq!(judged(1000, 8000, 400), [true; 5]);
        assert_eq!(
            judged(1000, 8000, 2048),
            [false, true, true, true, true],
            "an IPI for every second reference"
        );
        assert_eq!(
            judged(2000, 8000, 400),
            [true, true, true, true, false],
            "four times as many"
        );
        assert!(targets(&[]).is_empty());
    }

    #[test]
    fn each_tracer_has_a_line() {
        let rows: Vec<_> = TRACERS
            .iter()
            .filter(|(_, way)| way.traces("two processes", 2))
            .map(|(tracer, _)| {
                let report = Report {
                    cpus: vec![cpu(1 << 30, 4096)],
                    ..Report::default()
                };
                Row::new((2, ROUNDS), (tracer, "two processes"), 1, report).unwrap()
            })
            .collect();
        let svg = draw(&rows);
        for (tracer, way) in TRACERS {
            assert_eq!(
                svg.contains(tracer),
                way.traces("two processes", 2),
                "{svg}"
            );
        }
    }
}
