//! Who observes: a line in [`all`] each.
//!
//! Another observer is another line, if the activator makes its trace. Otherwise it is another type that
//! is an [`Observer`].

use super::score::{Place, Report};
use super::truth::Scope;
use crate::loads::Program;
use crate::machine::Outcome;
use crate::oracle;
use ::postproc::canon::PageMode;
use ::postproc::damon::{is_timed, record::Record};
use ::postproc::error;
use ::postproc::pipeline::{self, Batch, Consumer, Freeing, Unwatched};
use ::postproc::trace::{Merge, Ref, Step, StreamKind, Trace, Why};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::path::Path;

/// Options of a trace that gives pages and address spaces their names, and costs a fault for each page. An
/// observer that makes no trace is compared in a run with such a trace.
const NAMES: &str = "-n 65536";

/// How a run's truth is called for an observer.
pub trait Observer: Sync {
    /// Its name on the command line and in the table.
    fn name(&self) -> &str;

    /// A shell command that runs `load` while it is observed, and prints what `load` prints.
    /// `named`: the run gives pages their names, which costs something.
    fn command(&self, load: &str, program: &Program, named: bool) -> String;

    /// What it reports of a run.
    ///
    /// # Errors
    ///
    /// What can't be read.
    fn read(&self, out: &Outcome, program: &Program) -> Result<Vec<Reading>>;

    /// Bytes that a run left.
    ///
    /// # Errors
    ///
    /// As [`Observer::read`].
    fn bytes(&self, out: &Outcome) -> Result<u64>;
}

/// One way to read what an observer reports.
pub struct Reading {
    /// What is counted.
    pub what: &'static str,
    /// In the order of the observer.
    pub reports: Vec<Report>,
    /// Intervals of the observer's own: their length, ns, and their ends.
    pub own: Option<(u64, Vec<u64>)>,
    /// What the observer was to see.
    pub scope: Scope,
    /// When the observer began, ns.
    pub begin: u64,
}

/// All observers, in the order of the table.
pub fn all() -> Vec<Box<dyn Observer>> {
    vec![
        traced("N = 64", "-n 64"),
        traced("N = 512", "-n 512"),
        traced("N = 4096", "-n 4096"),
        traced("--interval 10ms", "--interval 10ms"),
        traced("--interval 50ms", "--interval 50ms"),
        traced("--slowdown 1.1", "--slowdown 1.1"),
        traced("--slowdown 1.5", "--slowdown 1.5"),
        damon("DAMON", 100, None),
        damon("DAMON 10 times as fast", 10, None),
        damon("DAMON beside N = 512", 100, Some("-n 512")),
    ]
}

/// A load, traced with these options of the activator.
fn traced(name: &'static str, options: &'static str) -> Box<dyn Observer> {
    Box::new(Traced { name, options })
}

/// A load that DAMON samples, with an aggregation interval of so many ms, while it is traced with these
/// options or not at all.
fn damon(
    name: &'static str,
    aggregation_ms: u64,
    beside: Option<&'static str>,
) -> Box<dyn Observer> {
    Box::new(Damon {
        name,
        aggregation_ms,
        beside,
    })
}

/// A trace of the kernel.
struct Traced {
    name: &'static str,
    options: &'static str,
}

/// A word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Runs a load in a trace on the trace disk.
fn in_trace(options: &str, load: &str) -> String {
    let load = quoted(load);
    // As the other observers, which pack nothing.
    format!("activator run --pack=no {options} -o /dev/trace -- /bin/sh -c {load}")
}

impl Observer for Traced {
    fn name(&self) -> &str {
        self.name
    }

    fn command(&self, load: &str, _: &Program, _: bool) -> String {
        in_trace(self.options, load)
    }

    /// Two ways: a record says that the page was used when its stay began, and that it may have been used
    /// as long as the stay lasts.
    fn read(&self, out: &Outcome, _: &Program) -> Result<Vec<Reading>> {
        readings(&out.trace())
    }

    fn bytes(&self, out: &Outcome) -> Result<u64> {
        let trace = Trace::open(out.trace())?;
        let end = trace
            .index()
            .end
            .as_ref()
            .context("the trace was cut short")?;
        Ok(end.status.bytes)
    }
}

/// The two readings of a trace: the moments at which stays began, and the stays.
///
/// # Errors
///
/// If the trace is not whole.
pub fn readings(path: &Path) -> Result<Vec<Reading>> {
    let trace = Trace::open(path)?;
    let header = trace.header();
    let end = trace
        .index()
        .end
        .as_ref()
        .context("the trace was cut short")?;
    ensure!(end.status.lost() == 0, "the trace lost records");
    let shift = header.stay_shift;
    let begin = header.start_time_ns;
    let interval = header.interval_ns;
    let mut merge = Merge::of_kinds(&trace, &[StreamKind::Ref]);
    let (mut records, mut stays) = (Vec::new(), Vec::new());
    let mut ends = BTreeSet::new();
    let mut refs = Vec::new();
    loop {
        let step = merge.fill(&mut refs, 1 << 16)?;
        for r in refs.drain(..) {
            let at = Place {
                mm: r.mm.0,
                vpn: r.address() >> 12,
            };
            let end = r.end_ns(shift);
            if let (Some(end), Why::Interval) = (end, r.flags().why()) {
                ends.insert(end);
            }
            let report = |to| Report {
                at,
                pages: 1,
                from: r.time_ns,
                to,
            };
            if is_timed(&r) {
                records.push(report(r.time_ns));
            }
            // The length of a stay is rounded down.
            let end = end.map_or(u64::MAX >> 1, |end| end.saturating_add((1 << shift) - 1));
            stays.push(report(end));
        }
        if matches!(step, Step::End) {
            break;
        }
    }
    let own = (interval > 0).then(|| (interval, first_of_each(&ends, interval / 2)));
    let reading = |what, reports| Reading {
        what,
        reports,
        own: own.clone(),
        scope: Scope::ALL,
        begin,
    };
    Ok(vec![reading("records", records), reading("stays", stays)])
}

/// When the ends of stays began that an interval has ended: the ends of one interval are less than `apart`
/// from the first of them.
fn first_of_each(ends: &BTreeSet<u64>, apart: u64) -> Vec<u64> {
    let mut first = Vec::new();
    for &end in ends {
        if first.last().is_none_or(|last| end >= last + apart) {
            first.push(end);
        }
    }
    first
}

/// DAMON, which samples the process that does most of the work.
struct Damon {
    name: &'static str,
    /// An aggregation interval has 20 sampling intervals, as by default.
    aggregation_ms: u64,
    /// Options of a trace that is on at the same time.
    beside: Option<&'static str>,
}

/// What follows the load's output.
const RECORD: &str = "DAMON-RECORD";

impl Observer for Damon {
    fn name(&self) -> &str {
        self.name
    }

    fn command(&self, load: &str, program: &Program, named: bool) -> String {
        let names = named.then_some(NAMES);
        let load = match self.beside.or(names) {
            Some(options) => in_trace(options, load),
            None => format!("/bin/sh -c {}", quoted(load)),
        };
        format!(
            "damon-sample {} {} > /tmp/damon.txt & {load}; wait $!; echo {RECORD}; cat /tmp/damon.txt",
            program.main, self.aggregation_ms
        )
    }

    fn read(&self, out: &Outcome, program: &Program) -> Result<Vec<Reading>> {
        let text = record(out)?;
        let (pid, text) = text.split_once('\n').context("a process and a record")?;
        let pid: u32 = pid.trim().parse().context("the number of a process")?;
        let path = out.dir.join("damon.txt");
        std::fs::write(&path, text)?;
        let mm = space(&out.trace(), pid, program.main)?;
        let aggregation = self.aggregation_ms * 1_000_000;
        let record = Record::open(&path, aggregation)?;
        let mut snapshots = record.targets.into_values().flatten().peekable();
        let begin = snapshots.peek().map_or(0, |first| first.start);
        let (mut reports, mut ends) = (Vec::new(), Vec::new());
        for snapshot in snapshots {
            ends.push(snapshot.end);
            for region in snapshot.regions.iter().filter(|r| r.accesses > 0) {
                let vpn = region.start >> 12;
                reports.push(Report {
                    at: Place { mm, vpn },
                    pages: region.end.div_ceil(4096).saturating_sub(vpn),
                    from: snapshot.start,
                    to: snapshot.end.saturating_sub(1),
                });
            }
        }
        let to = ends.last().copied().unwrap_or(0);
        Ok(vec![Reading {
            what: "regions",
            reports,
            own: Some((aggregation, ends)),
            scope: Scope {
                mm: Some(mm),
                from: begin,
                to: to.saturating_sub(1),
            },
            begin,
        }])
    }

    fn bytes(&self, out: &Outcome) -> Result<u64> {
        Ok(record(out)?.len() as u64)
    }
}

/// What `damon-sample` printed: the number of the process, and the text of the tracepoint.
fn record(out: &Outcome) -> Result<String> {
    let r = out.step(super::OBSERVED)?;
    let (_, text) = r
        .stdout
        .split_once(RECORD)
        .with_context(|| format!("there is no record of DAMON: {}", r.stderr))?;
    Ok(text.trim_start().into())
}

/// The address space of a process while it has this name.
fn space(trace: &Path, pid: u32, comm: &str) -> Result<u32> {
    struct Find<'f> {
        pid: u32,
        comm: &'f str,
        found: Option<u32>,
    }
    impl Consumer for Find<'_> {
        fn references(&mut self, batch: &Batch<'_>) -> error::Result<()> {
            let tasks = &batch.world.tasks;
            let its = |r: &&Ref| {
                let process = tasks.find(r.tid()).map(|id| tasks.process(id));
                process.is_some_and(|p| p.tgid.0 == self.pid && p.comm == self.comm)
            };
            if self.found.is_none() {
                self.found = batch.refs.iter().find(its).map(|r| r.mm.0);
            }
            Ok(())
        }
    }
    let trace = Trace::open(trace)?;
    let mut find = Find {
        pid,
        comm,
        found: None,
    };
    let (mode, kept) = (PageMode::Virtual, Freeing::Kept);
    pipeline::run_with(&trace, mode, kept, &mut Unwatched, &mut [&mut find])?;
    find.found
        .with_context(|| format!("the trace has no reference of process {pid}, {comm}"))
}

/// Runs a machine with the plugin, so that the truth of the run is known.
///
/// # Errors
///
/// As [`oracle::run_streaming`].
pub fn watched(machine: &crate::machine::Machine) -> Result<Outcome> {
    oracle::run_streaming(machine, super::truth::SHAPE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_begins_with_the_first_end_of_a_stay() {
        let ends: BTreeSet<u64> = [1000, 1001, 1040, 2000, 2049, 2050].into();
        assert_eq!(first_of_each(&ends, 50), [1000, 2000, 2050]);
        assert!(first_of_each(&BTreeSet::new(), 50).is_empty());
    }

    #[test]
    fn names_differ() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|o| o.name()).collect();
        assert_eq!(names.len(), all.len());
    }
}
