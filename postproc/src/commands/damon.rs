//! `postproc damon`.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::canon::PageMode;
use crate::check::CheckReport;
use crate::damon::compare::{Comparer, Comparison};
use crate::damon::record::{Record, Snapshot};
use crate::damon::{Exact, Percentiles, Summaries, TargetSummary};
use crate::filter::{Filtered, LeftOut};
use crate::pipeline::{self, Batch, Consumer, Freeing, Outcome, World};
use crate::select::Who;
use crate::space::Issue;
use crate::trace::{Event, Sets, Trace};
use crate::units::Mm;
use clap::Args;
use serde::Serialize;

use super::screen::{Progress, grouped, print, print_json, stop_flag};
use super::{
    Checks, Input, Reading, Where, filtered_text, left_out_text, microseconds, verdict,
    warn_of_piece,
};

/// Set when the user wishes to stop.
type Stop = Arc<AtomicBool>;

/// Compute DAMON's figures exactly, or measure a real DAMON's error
///
/// Prints for each address space: the working set of the aggregation intervals (as
/// percentiles, like `damo report wss`), the number of regions of equal nr_accesses, and
/// how many pages had how many accesses. A trace does not record when a page was
/// referenced again during its stay among the N enabled pages. So each figure is a pair:
/// the smallest and the largest possible value.
///
/// With --record, compares the trace with a record that DAMON made during the same run: a
/// file of `damo record`, or the text of the tracepoint damon:damon_aggregated. Only the
/// distance to the nearer of the two bounds counts as DAMON's error.
///
/// `postproc export --format damon` writes all regions in damo's format.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc damon run.vmt --sampling 5ms --aggregation 100ms\n  \
    postproc damon run.vmt --where 'mapping_kind == anon'\n  \
    postproc damon run.vmt --json | jq '.targets[0].working_set_least'\n  \
    postproc damon run.vmt --record damon.data --process 1234\n\n\
    To record process 1234 without damo, as root (with the times of kVMTrace's clock):\n  \
    cd /sys/kernel/tracing; echo mono > trace_clock; echo 1 > events/damon/damon_aggregated/enable\n  \
    cat trace_pipe > damon.txt &\n  \
    cd /sys/kernel/mm/damon/admin/kdamonds; echo 1 > nr_kdamonds; echo 1 > 0/contexts/nr_contexts\n  \
    cd 0; echo vaddr > contexts/0/operations; echo 1 > contexts/0/targets/nr_targets\n  \
    echo 1234 > contexts/0/targets/0/pid_target; echo on > state\n  \
    postproc damon run.vmt --record damon.txt --process 1234 --sampling 5ms")]
#[command(mut_arg("process", |process| process.long_help(
    "Take only this process: its id, or its name, which may be a pattern such as 'python*'. With \
     --record, the id of the process that was DAMON's target; of several programs that it executed, \
     the last one counts"
)))]
pub struct DamonArgs {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    only: Where,
    /// Length of a sampling interval: 250us, 5ms [default: that of the record if it has one,
    /// else a twentieth of --aggregation]
    #[arg(long, value_name = "TIME", value_parser = microseconds)]
    sampling: Option<u64>,
    /// Length of an aggregation interval; with --record, the record's own lengths are used
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = microseconds)]
    aggregation: u64,
    /// The record of a real DAMON, which is compared with the trace
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The target to compare, if the record has several targets
    #[arg(long, value_name = "ID", requires = "record")]
    target: Option<u64>,
    /// The address space that was DAMON's target, by its number in the trace
    #[arg(
        long,
        value_name = "NUMBER",
        requires = "record",
        conflicts_with = "process"
    )]
    space: Option<u32>,
    /// The record's times count from the trace's start, as in records of `postproc export`
    #[arg(long, requires = "record")]
    since_start: bool,
    #[command(flatten)]
    checks: Checks,
}

#[derive(Serialize)]
struct Answered<'a> {
    path: String,
    sampling_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    aggregation_ns: Option<u64>,
    evms_size: u32,
    /// What has a set of its own, of N pages, if there are several sets.
    #[serde(skip_serializing_if = "Option::is_none")]
    sets: Option<&'static str>,
    page_size: u64,
    good: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    targets: Option<&'a [TargetSummary]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    space: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<&'a Comparison>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<Filtered>,
    /// What the kernel's filter has left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    filtered: Option<LeftOut>,
}

/// Follows the events alone.
#[derive(Default)]
struct Processes(Option<Mm>, u32);

impl Consumer for Processes {
    fn references(&mut self, _batch: &Batch<'_>) -> crate::error::Result<()> {
        Ok(())
    }

    fn event(
        &mut self,
        _event: &Event<'_>,
        _world: &World,
        _issues: &[Issue],
    ) -> crate::error::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _trace: &Trace, outcome: &Outcome) -> crate::error::Result<()> {
        let processes = outcome.world.tasks.processes();
        let found = processes.iter().rfind(|p| p.tgid.0 == self.1);
        self.0 = found.map(|p| p.mm);
        Ok(())
    }
}

/// The address space of a process.
fn space_of(trace: &Trace, pid: u32, stop: &Stop) -> anyhow::Result<Mm> {
    let mut processes = Processes(None, pid);
    let mut progress = Progress::new("finding the process", stop.clone());
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut processes];
    pipeline::run(trace, PageMode::Unnamed, &mut progress, consumers)?;
    processes.0.ok_or_else(|| {
        anyhow::anyhow!("the trace has no process {pid}; `postproc report` lists them")
    })
}

/// Snapshots that do not overlap, as far as they lie within the trace's time.
fn usable(args: &DamonArgs, trace: &Trace, snapshots: &[Snapshot]) -> (Vec<Snapshot>, usize) {
    let header = trace.header();
    let start = header.start_time_ns;
    let stop = match &trace.index().end {
        Some(end) => end.status.stop_time_ns,
        None => trace.index().time_span().map_or(start, |s| s.1),
    };
    let offset = if args.since_start { start } else { 0 };
    let mut kept: Vec<Snapshot> = Vec::new();
    for snapshot in snapshots {
        let moved = Snapshot {
            start: snapshot.start.saturating_add(offset),
            end: snapshot.end.saturating_add(offset),
            regions: snapshot.regions.clone(),
        };
        let after = kept.last().map_or(0, |last| last.end);
        let within = moved.start >= start && moved.end <= stop.max(start);
        if within && moved.start < moved.end && moved.start >= after {
            kept.push(moved);
        }
    }
    let left_out = snapshots.len() - kept.len();
    (kept, left_out)
}

fn pass(
    args: &DamonArgs,
    trace: &Trace,
    exact: &mut dyn Consumer,
    stop: &Stop,
) -> anyhow::Result<(CheckReport, Option<Filtered>, Option<LeftOut>)> {
    let mut checker = args.checks.checker();
    let mut progress = Progress::new("counting", stop.clone());
    let reading = Reading {
        mode: PageMode::Unnamed,
        freeing: Freeing::Kept,
        selection: None,
        clause: args.only.clause(trace, false, false)?,
        in_virtual_time: false,
    };
    let passed = reading.run(trace, &mut progress, &mut [&mut checker], exact)?;
    Ok((checker.report(), passed.filtered, passed.left_out))
}

fn answered<'a>(trace: &Trace, sampling_ns: u64, good: bool) -> Answered<'a> {
    Answered {
        path: trace.path().display().to_string(),
        sampling_ns,
        aggregation_ns: None,
        evms_size: trace.header().evms_size,
        sets: Some(trace.header().sets)
            .filter(|sets| sets.are_several())
            .map(Sets::text),
        page_size: trace.header().page_size(),
        good,
        targets: None,
        space: None,
        comparison: None,
        filter: None,
        filtered: None,
    }
}

pub fn run(args: &DamonArgs) -> anyhow::Result<ExitCode> {
    args.input.each(|trace| {
        trace.demand_references()?;
        warn_of_piece(
            trace,
            "they seem to be unused until they are referenced with one. The directory with all \
             pieces has them",
        );
        run_one(args, trace)
    })
}

fn run_one(args: &DamonArgs, trace: &Trace) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.record {
        args.only.no_filter(
            "the real DAMON of --record saw all references of its target, so it cannot be compared \
             with some of them",
        )?;
        let record = Record::open(path, args.aggregation * 1000)?;
        return run_compare(args, trace, &record);
    }
    let aggregation_ns = args.aggregation * 1000;
    let sampling_ns = args
        .sampling
        .map_or(aggregation_ns / 20, |us| us * 1000)
        .max(1);
    if sampling_ns > aggregation_ns {
        anyhow::bail!("--sampling is longer than --aggregation");
    }
    let mut summaries = Summaries::new(aggregation_ns, sampling_ns);
    let (report, filter, filtered) = pass(args, trace, &mut summaries, &stop_flag())?;
    let (targets, largest) = (summaries.targets(), summaries.largest());
    let answered = Answered {
        aggregation_ns: Some(aggregation_ns),
        targets: Some(&targets),
        filter,
        filtered,
        ..answered(trace, sampling_ns, report.good)
    };
    if args.input.json {
        print_json(&answered)?;
    } else {
        print(summary_text(&answered, &targets, largest)?.as_bytes())?;
    }
    Ok(verdict(&report))
}

fn run_compare(args: &DamonArgs, trace: &Trace, record: &Record) -> anyhow::Result<ExitCode> {
    let ids: Vec<u64> = record.targets.keys().copied().collect();
    let id = match (args.target, &ids[..]) {
        (Some(id), _) => id,
        (None, [only]) => *only,
        (None, _) => anyhow::bail!(
            "the record has targets {}; choose one with --target",
            ids.iter()
                .map(u64::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    let snapshots = record
        .targets
        .get(&id)
        .ok_or_else(|| anyhow::anyhow!("the record has no target {id}"))?;
    let stop = stop_flag();
    let mm = match (&args.only.options.process, args.space) {
        (Some(Who::Id(pid)), _) => space_of(trace, *pid, &stop)?,
        (_, Some(number)) => Mm(number),
        (_, None) => {
            anyhow::bail!("give the process that was DAMON's target: --process or --space")
        }
    };
    let sampling_ns = args
        .sampling
        .map(|us| us * 1000)
        .or(record.sampling_ns)
        .ok_or_else(|| anyhow::anyhow!("the record has no sampling interval; give --sampling"))?;
    let (snapshots, left_out) = usable(args, trace, snapshots);
    if snapshots.is_empty() {
        anyhow::bail!(
            "none of the record's {left_out} snapshots lies within the trace's time: was the \
             record made with another clock (echo mono > trace_clock), or do its times begin at 0 \
             (--since-start)?"
        );
    }
    let intervals = snapshots.iter().map(|s| (s.start, s.end)).collect();
    let comparer = Comparer::new(trace.header().page_shift, snapshots);
    let mut exact = Exact::new(mm, intervals, sampling_ns, comparer);
    let (report, _, filtered) = pass(args, trace, &mut exact, &stop)?;
    let mut comparison = exact.sink.comparison();
    comparison.outside += left_out as u64;
    let answered = Answered {
        space: Some(mm.0),
        comparison: Some(&comparison),
        filtered,
        ..answered(trace, sampling_ns, report.good)
    };
    if args.input.json {
        print_json(&answered)?;
    } else {
        print(comparison_text(&answered, &comparison)?.as_bytes())?;
    }
    Ok(verdict(&report))
}

fn milliseconds(ns: u64) -> String {
    format!("{} ms", ns as f64 / 1e6)
}

const COLUMNS: &str =
    "           min          25 %          50 %          75 %           max          mean";

fn percentiles(t: &mut String, name: &str, p: &Percentiles) -> std::fmt::Result {
    write!(t, "  {name:<24}")?;
    for bytes in [p.min, p.p25, p.p50, p.p75, p.max, p.mean.round() as u64] {
        write!(t, "{:>14}", format!("{} KiB", grouped(bytes / 1024)))?;
    }
    writeln!(t)
}

/// What N is about, if there are several sets.
fn in_each(a: &Answered<'_>) -> &'static str {
    a.sets.map_or("", |_| " in each set")
}

fn summary_text(
    a: &Answered<'_>,
    targets: &[TargetSummary],
    largest: u64,
) -> Result<String, std::fmt::Error> {
    let mut t = String::new();
    if let Some(left_out) = &a.filtered {
        writeln!(t, "{}", left_out_text(left_out))?;
    }
    if let Some(filtered) = &a.filter {
        writeln!(t, "{}", filtered_text(filtered))?;
    }
    writeln!(
        t,
        "{}: sampled every {}, aggregated every {}; N = {}{}",
        a.path,
        milliseconds(a.sampling_ns),
        milliseconds(a.aggregation_ns.unwrap_or(0)),
        grouped(a.evms_size.into()),
        in_each(a)
    )?;
    for target in targets {
        writeln!(
            t,
            "\naddress space {}, {} ({}): {} intervals, {:.1} regions in each",
            target.mm,
            target.comm,
            target.pid,
            grouped(target.intervals),
            target.regions
        )?;
        writeln!(t, "  {:<24}{COLUMNS}", "working set")?;
        percentiles(&mut t, "at least", &target.working_set_least)?;
        percentiles(&mut t, "at most", &target.working_set_most)?;
        let total: u64 = target.by_accesses.iter().sum();
        write!(t, "  pages by nr_accesses, which is at most {largest}:")?;
        for (i, count) in target.by_accesses.iter().enumerate() {
            if *count > 0 {
                let upto = (i as u64 + 1) * largest;
                write!(
                    t,
                    "  to {} {:.1} %",
                    upto.div_ceil(10),
                    100.0 * *count as f64 / total.max(1) as f64
                )?;
            }
        }
        writeln!(t)?;
    }
    Ok(t)
}

fn comparison_text(a: &Answered<'_>, c: &Comparison) -> Result<String, std::fmt::Error> {
    let mut t = String::new();
    if let Some(left_out) = &a.filtered {
        writeln!(t, "{}", left_out_text(left_out))?;
    }
    writeln!(
        t,
        "{}, address space {}: {} snapshots of DAMON, sampled every {}; N = {}{}",
        a.path,
        a.space.unwrap_or(0),
        grouped(c.snapshots),
        milliseconds(a.sampling_ns),
        grouped(a.evms_size.into()),
        in_each(a)
    )?;
    if c.outside > 0 {
        writeln!(
            t,
            "{} snapshots lie outside the trace's time, or overlap, and are left out",
            grouped(c.outside)
        )?;
    }
    writeln!(t, "\n  {:<24}{COLUMNS}", "working set")?;
    percentiles(&mut t, "DAMON", &c.damon)?;
    percentiles(&mut t, "the trace, at least", &c.least)?;
    percentiles(&mut t, "the trace, at most", &c.most)?;
    writeln!(t)?;
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    for (name, value, about) in [
        (
            "working set's error",
            percent(c.working_set_error),
            "mean distance to the nearer bound, as a share of that bound",
        ),
        (
            "nr_accesses' error",
            format!("{:.3}", c.accesses_error),
            "mean distance to the nearer bound, over all pages of regions",
        ),
        (
            "nr_accesses' bias",
            format!("{:+.3}", c.accesses_bias),
            "the same with the sign kept",
        ),
        (
            "wrong",
            percent(c.wrong),
            "pages of regions whose nr_accesses is outside the bounds",
        ),
        (
            "found",
            percent(c.found),
            "share of the referenced pages that DAMON calls accessed",
        ),
        (
            "false",
            percent(c.false_share),
            "share of the pages that DAMON calls accessed and that were not",
        ),
        (
            "missed",
            grouped(c.missed),
            "referenced pages that are in no region, over all snapshots",
        ),
        (
            "regions",
            format!("{:.1}", c.regions),
            "mean number in a snapshot",
        ),
    ] {
        writeln!(t, "  {name:<24}{value:>14}  {about}")?;
    }
    Ok(t)
}
