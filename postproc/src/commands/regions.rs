//! `postproc regions`.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use crate::canon::PageMode;
use crate::error::OutputContext;
use crate::output::Output;
use crate::pipeline::{self, Consumer, World};
use crate::regions::{Owners, Part, SpaceSummary, Summaries};
use crate::select::{Addresses, Moment, Who};
use crate::space::Issue;
use crate::trace::{Body, Event, Header, Sampling, Trace};
use clap::Args;
use serde::Serialize;

use super::screen::{Progress, grouped, print, print_json, stop_flag};
use super::{Checks, Input, NoMapping, NoReferences, name_of, verdict};

/// Show which memory was accessed, from a trace of regions
///
/// `activator run --sample` makes such a trace. It has no references. Instead, the kernel looked at one
/// page of each region of memory at a time, and reported how many of these looks found an access. The
/// table has a line for each address space (`space` is its number): its reports, the mean number of
/// regions in a report, the bytes of addresses that the regions cover (`covered`, with gaps between
/// mappings), and the estimate of the working set within the time of a look (`accessed`): the sum of
/// size * accesses / looks over the regions of a report. `written` is the same for writes. p50 and p95:
/// half of the reports, and 95 of 100, have no more.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc regions regions.vmt\n  \
    postproc regions regions.vmt --process 1234 --json\n  \
    postproc regions regions.vmt --since 50% --address 0x7f0000000000..0x800000000000\n  \
    postproc regions regions.vmt --csv > regions.csv\n  \
    postproc export regions.vmt --format damon -o damon.data; damo report heatmap")]
pub struct RegionsArgs {
    #[command(flatten)]
    input: Input,
    /// Print a line for each region of each report: time_ns (since the trace's start), process, mm,
    /// start, end, looks, accesses, writes, age, cpus (bits: CPU modulo 64)
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Show only this process: its id, or its name, which may be a pattern such as 'python*'
    #[arg(long, value_name = "PID|NAME")]
    process: Option<Who>,
    /// Take reports from this time on: 1.5s, 250ms, or 90% of the trace
    #[arg(long, value_name = "TIME")]
    since: Option<Moment>,
    /// Take reports before this time
    #[arg(long, value_name = "TIME")]
    until: Option<Moment>,
    /// Take only these addresses: 0x7f00..0x8f00 (the end is not included), a range as in
    /// /proc/PID/maps (7f00-8f00), or an address, which stands for its page; can be given several
    /// times
    ///
    /// Of a region that has other addresses, too, the table counts the part with these. `--csv` prints the
    /// whole region.
    #[arg(long, value_name = "RANGE")]
    address: Vec<Addresses>,
    #[command(flatten)]
    no_references: NoReferences,
    #[command(flatten)]
    no_mapping: NoMapping,
    #[command(flatten)]
    checks: Checks,
}

#[derive(Serialize)]
struct Shown<'a> {
    path: String,
    sampling: &'a Sampling,
    good: bool,
    /// Reports that are left out, because a part of them is missing.
    cut: u64,
    /// Not all reports and addresses are selected.
    #[serde(skip)]
    is_part: bool,
    spaces: &'a [SpaceSummary],
}

/// Writes regions line by line.
struct Lines<'a> {
    out: Output,
    owners: Owners,
    start_ns: u64,
    process: Option<&'a Who>,
    part: Part,
    found: bool,
}

const COLUMNS: &str = "time_ns,process,mm,start,end,looks,accesses,writes,age,cpus";

impl<'a> Lines<'a> {
    fn new(header: &Header, process: Option<&'a Who>, part: Part) -> crate::error::Result<Self> {
        let mut out = Output::create(Path::new("-"))?;
        writeln!(out, "{COLUMNS}").writing(out.name())?;
        Ok(Lines {
            out,
            owners: Owners::default(),
            start_ns: header.start_time_ns,
            process,
            part,
            found: false,
        })
    }
}

impl Consumer for Lines<'_> {
    fn event(
        &mut self,
        event: &Event<'_>,
        world: &World,
        _issues: &[Issue],
    ) -> crate::error::Result<()> {
        self.owners.event(event, &world.tasks);
        let Body::Region(r) = event.body else {
            return Ok(());
        };
        let (pid, comm) = self.owners.of(event.mm);
        if self.process.is_some_and(|only| !only.is(pid, comm)) {
            return Ok(());
        }
        self.found = true;
        let since = event.time_ns.saturating_sub(self.start_ns);
        if !self.part.has_time(since) || !self.part.has_region(&r) {
            return Ok(());
        }
        writeln!(
            self.out,
            "{since},{pid},{},{:#x},{:#x},{},{},{},{},{:#x}",
            event.mm.0, r.start, r.end, r.looks, r.accesses, r.writes, r.age, r.cpus
        )
        .writing(self.out.name())
    }
}

/// Why there is nothing else to select.
const NO_REFERENCES: &str = "reports of regions are no references: --process, --since, --until and \
                             --address select some of them";

pub fn run(args: &RegionsArgs) -> anyhow::Result<ExitCode> {
    args.no_references.refuse(NO_REFERENCES)?;
    args.no_mapping.refuse(
        "regions are of addresses, and may span several mappings: `postproc maps --mapping` shows the \
         addresses of a mapping, for --address",
    )?;
    args.input.each(|trace| run_one(args, trace))
}

fn run_one(args: &RegionsArgs, trace: &Trace) -> anyhow::Result<ExitCode> {
    let header = trace.header();
    let sampling = header.sampling.as_ref().filter(|_| header.has_regions());
    let Some(sampling) = sampling else {
        anyhow::bail!(
            "{}: the trace has references, and no regions: `postproc report` and `postproc damon` \
             show which memory was referenced; `activator run --sample` makes a trace of regions",
            name_of(trace)
        );
    };
    let mut checker = args.checks.checker();
    let mut pass = |consumer: &mut dyn Consumer| {
        let mut progress = Progress::new("reading", stop_flag());
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut checker, consumer];
        pipeline::run(trace, PageMode::Unnamed, &mut progress, consumers)
    };
    let process = args.process.as_ref();
    let moment = |option, moment: Option<Moment>| {
        let ns = moment.map(|moment| moment.after_begin(option, trace));
        ns.transpose()
    };
    let since = moment("--since", args.since)?.unwrap_or(0);
    let until = moment("--until", args.until)?.unwrap_or(u64::MAX);
    let bounds = args.address.iter().map(|a| a.bounds(header.page_size()));
    let part = Part::new(since..until, bounds.collect());
    if args.csv {
        let mut lines = Lines::new(header, process, part)?;
        pass(&mut lines)?;
        lines.out.finish()?;
        is_there(process, lines.found)?;
        return Ok(verdict(&checker.report()));
    }
    let mut summaries = Summaries::of(part);
    pass(&mut summaries)?;
    let report = checker.report();
    let cut = summaries.cut();
    let mut spaces = summaries.spaces();
    spaces.retain(|s| process.is_none_or(|only| only.is(s.pid, &s.comm)));
    is_there(process, !spaces.is_empty())?;
    let shown = Shown {
        path: name_of(trace),
        sampling,
        good: report.good,
        cut,
        is_part: args.since.is_some() || args.until.is_some() || !args.address.is_empty(),
        spaces: &spaces,
    };
    if args.input.json {
        print_json(&shown)?;
    } else {
        print(text(&shown)?.as_bytes())?;
    }
    Ok(verdict(&report))
}

/// Refuses a process that has no region.
fn is_there(process: Option<&Who>, found: bool) -> anyhow::Result<()> {
    match process.filter(|_| !found) {
        None => Ok(()),
        Some(who) => anyhow::bail!(
            "process {who} has no regions in the trace; `postproc regions` without --process lists \
             the processes"
        ),
    }
}

/// How regions are sampled, in words.
pub(super) fn sampling_text(s: &Sampling) -> String {
    let ms = |ns: u64| format!("{} ms", ns as f64 / 1e6);
    format!(
        "a look each {} by {}, a report each {}, {} to {} regions",
        ms(s.sample_ns),
        s.by.text(),
        ms(s.aggregate_ns),
        grouped(s.min_regions.into()),
        grouped(s.max_regions.into())
    )
}

fn text(shown: &Shown<'_>) -> Result<String, std::fmt::Error> {
    let mut t = String::new();
    writeln!(t, "{}: {}", shown.path, sampling_text(shown.sampling))?;
    let kib = |bytes: u64| format!("{} KiB", grouped(bytes / 1024));
    let shows_writes = shown.spaces.iter().any(|s| s.written.is_some());
    write!(
        t,
        "\n{:>8} {:<16}{:>8}{:>9}{:>9}{:>16}{:>16}{:>16}",
        "process",
        "name",
        "space",
        "reports",
        "regions",
        "covered p50",
        "accessed p50",
        "accessed p95"
    )?;
    writeln!(t, "{}", if shows_writes { "     written p50" } else { "" })?;
    for s in shown.spaces {
        let comm = super::info::printable(&s.comm);
        write!(
            t,
            "{:>8} {comm:<16}{:>8}{:>9}{:>9.1}{:>16}{:>16}{:>16}",
            s.pid,
            s.mm,
            grouped(s.reports),
            s.regions,
            kib(s.bytes.p50),
            kib(s.working_set.p50),
            kib(s.working_set.p95)
        )?;
        if let Some(written) = &s.written {
            write!(t, "{:>16}", kib(written.p50))?;
        }
        writeln!(t)?;
    }
    if shown.spaces.is_empty() && shown.is_part {
        writeln!(
            t,
            "\nno report is selected by --since, --until and --address"
        )?;
    } else if shown.spaces.is_empty() && shown.cut == 0 {
        writeln!(
            t,
            "\nno reports: no address space was there for long enough; a shorter --update of the activator \
             finds them sooner, and a shorter --aggregate reports them sooner"
        )?;
    }
    if shown.cut > 0 {
        writeln!(
            t,
            "\n{} reports are left out, because a part of them is missing",
            grouped(shown.cut)
        )?;
    }
    Ok(t)
}
