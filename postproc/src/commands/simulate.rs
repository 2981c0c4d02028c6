//! `postproc simulate`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use crate::amount::MemorySize;
use crate::check::CheckReport;
use crate::filter::{Filtered, LeftOut};
use crate::import::Note;
use crate::io_limit::IoLimit;
use crate::pipeline::{Batch, Consumer, Freeing, Outcome, World};
use crate::report::sizes_text;
use crate::sim::measured::{self, How};
use crate::sim::{
    self, Access, Band, Certificate, Certifier, Counts, CurvePoint, Estimate, Filler, Footprint,
    Job, Limit, Limits, Memory, PolicyEntry, Sampler, Workers,
};
use crate::space::Issue;
use crate::trace::{Event, Trace};
use crate::units::CanonPage;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use rust_mm_trace::uapi;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::note;
use super::screen::{Progress, grouped, print, print_json, stop_flag};
use super::{
    Checks, Foreign, Input, Keeping, LEFT_OUT, NO_BOUNDS, PART, Pages, Reading, SEVERAL_SETS,
    Which, filtered_text, left_out_text, name_of, verdict, warn_of_piece, warn_of_several_sets,
    why_filtered,
};

/// Every policy of the registry.
const ALL: &str = "all";
/// The policies that have bands.
const LRU: &str = "lru";
const OPT: &str = "opt";

/// Simulate page-replacement policies
///
/// Reads the trace once for any number of policies and sizes, and uses all processors.
/// A miss is a reference to a page that is not in memory. The first reference to a page
/// is a cold miss. Every other miss is a capacity miss, which a larger memory or a
/// better policy may avoid. A write-back is a dirty page that the policy replaces. Pages
/// that are dirty at the end, and freed pages, need no write-back.
///
/// The trace has one reference for each stay of a page in the set of N pages
/// (`postproc info` shows N). The run made many more references, nearly all of them
/// hits. For LRU and OPT, the number of misses on all references of the run is proven to
/// lie between the columns "at least" and "at most". The bounds begin at memories of
/// 2 N - 1 pages for LRU (3 N - 2 if the trace has second chances), and of N pages for
/// OPT. For the other policies, docs/fidelity.md has measured errors.
///
/// A trace may have several sets, each of N pages: one for each process, or for each control
/// group (`postproc info` lists them). The bounds are then about the references to one set:
/// --set NUMBER takes these. Without --set, the references to all sets share one memory, and
/// no bounds are proven. With --limit process=SIZE, no memory is shared.
///
/// --fill adds references that follow from the trace, although the trace does not
/// contain them. It adds a second reference directly after each reference that begins a
/// stay. If the trace records that the page was referenced again
/// (`activator run --again`), --fill adds a third reference later in the stay. At 4 N
/// pages and more, the measured mean errors become smaller by a factor of two (LRU, OPT,
/// 2Q) to seven (CLOCK).
///
/// --sample SHARE simulates only this share of the pages (SHARDS), in the same share of
/// the time, and estimates the misses of all pages. The column "+-" is the error of the
/// estimate, computed from eight parts of the sample. JSON also has a 95 % band: `low`
/// and `high`.
///
/// With --io, read() and write() reference the pages of files, too. Each call makes one
/// reference to each page, for the bytes that were really read or written. A file cache
/// receives this traffic. The trace must contain events of the class io, as it does by
/// default (`activator run --events io`).
///
/// --limit divides memory: each process, all processes of one name, or all processes in
/// one control group get a memory of their own. All other processes share one memory of
/// --size pages, or are left out if --size is not given.
///
/// A page that is freed (munmap, MADV_DONTNEED, truncation, exec, exit) leaves memory at
/// once, and makes room for another page. With --keep-freed, a freed page stays until the
/// policy replaces it, as libCacheSim and older papers assume.
///
/// One simplification remains: a private page that was not touched before a fork counts
/// once in the parent and once in the child.
#[derive(Args)]
#[command(
    group = clap::ArgGroup::new("what").required(true).multiple(true).args(["size", "curve", "limit"]),
    after_help = "Examples:\n  \
    postproc simulate run.vmt --policy lru --size 1000,2000,4000\n  \
    postproc simulate run.vmt --policy all --size 16MiB\n  \
    postproc simulate run.vmt --policy lru,arc --size 0.1,0.25,0.5\n  \
    postproc simulate run.vmt --per-window --size 4000\n  \
    postproc simulate run.vmt --policy opt,arc,lru --size 1000,4000 --json | jq .sizes\n  \
    postproc simulate run.vmt --policy lru --curve --points 200 --json > curve.json\n  \
    postproc simulate run.vmt --fill --policy clock,arc --size 1000\n  \
    postproc simulate run.vmt --policy all --size 100000 --sample 0.01\n  \
    postproc simulate run.vmt --io --policy lru,opt --curve\n  \
    postproc simulate sets.vmt --set 17 --policy lru,opt --curve\n  \
    postproc simulate run.vmt --where 'tree == 42 && mapping_kind == anon' --size 1000\n  \
    postproc simulate run.vmt --policy lru,arc --limit process=1000\n  \
    postproc simulate run.vmt --limit comm:cc1=2000 --limit cgroup:/a/b=500 --size 8000\n  \
    postproc simulate --from lackey lackey.log --policy lru,opt --size 100\n  \
    valgrind --tool=lackey --trace-mem=yes --log-fd=9 9>&1 >/dev/null true | \\\n    \
    postproc simulate --from lackey - --curve"
)]
#[command(
    mut_arg("trust", |trust| trust.conflicts_with("from")),
    mut_arg("process", |process| process.conflicts_with("from")),
    mut_arg("set", |set| set.conflicts_with_all(["from", "io", "limit"]))
)]
pub struct SimulateArgs {
    #[command(flatten)]
    input: Input,
    /// The policies, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "lru", value_parser = policy_names())]
    policy: Vec<String>,
    /// Sizes of memory, separated by commas: 4000 (pages), 16MiB, or 0.1 (of the footprint, which is
    /// the largest number of pages that exist at one time)
    #[arg(long, value_delimiter = ',', value_name = "SIZE")]
    size: Vec<MemorySize>,
    /// Compute all sizes in one pass, for the policies that allow it
    #[arg(long)]
    curve: bool,
    /// Number of sizes of the curve to print, in equal ratios; 0 prints every size
    #[arg(long, default_value_t = 64, requires = "curve")]
    points: usize,
    /// Estimate the misses, and the error of the estimate, from this share of the pages
    #[arg(long, value_name = "SHARE", value_parser = share)]
    sample: Option<f64>,
    /// Add references that follow from the trace, although they are not in it
    #[arg(long, conflicts_with = "from")]
    fill: bool,
    /// Let read() and write() reference the pages of files
    #[arg(long, conflicts_with = "from")]
    io: bool,
    /// Allow read() and write() this many references [default: 2,097,152 and two for each byte
    /// of the trace]
    #[arg(long, value_name = "REFERENCES", requires = "io")]
    io_limit: Option<u64>,
    /// Give some processes a memory of their own: process=SIZE (each process by itself),
    /// comm:NAME=SIZE, cgroup:/PATH=SIZE; if several match a process, the first one applies. SIZE is
    /// 4000 (pages) or 16MiB
    #[arg(long, value_name = "LIMIT", conflicts_with_all = ["from", "curve", "sample", "fill"])]
    limit: Vec<Limit>,
    /// What counts as one page
    #[arg(long, value_enum, default_value = "canonical", conflicts_with = "from")]
    pages: Pages,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    keeping: Keeping,
    #[command(flatten)]
    foreign: Foreign,
    #[command(flatten)]
    checks: Checks,
}

impl SimulateArgs {
    /// Whether to give bounds: the misses are those of the whole trace, or of one of its sets, in
    /// one memory, and LRU or OPT is simulated.
    fn wants_bands(&self) -> bool {
        let proven = |entry: &&PolicyEntry| matches!(entry.id, LRU | OPT);
        self.wants_errors() && policies(&self.policy).iter().any(proven)
    }

    /// Whether the misses are those of the whole trace, or of one of its sets, in one memory: only
    /// of these are errors known.
    fn wants_errors(&self) -> bool {
        !self.which.only.is_given() && self.limit.is_empty() && !self.io && self.sample.is_none()
    }
}

pub(super) fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("expected a number above 0 and not above 1".into()),
    }
}

pub(super) fn policy_names() -> PossibleValuesParser {
    let all = PossibleValue::new(ALL).help("all policies");
    let named = |p: &PolicyEntry| PossibleValue::new(p.id).help(p.about);
    PossibleValuesParser::new(sim::registry().iter().map(named).chain([all]))
}

#[derive(Serialize)]
struct Simulated {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<u32>,
    policies: Vec<&'static str>,
    references: u64,
    cold: u64,
    evms_size: u32,
    /// The set whose references were taken (`--set`).
    #[serde(skip_serializing_if = "Option::is_none")]
    set: Option<u32>,
    /// False if references to several sets share a memory, or some were left out by `--where` or by
    /// the kernel's filter.
    /// Then there is a reason, and no bounds.
    exact: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not_exact: Option<&'static str>,
    /// What `--where` has kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<Filtered>,
    /// What the kernel's filter has left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    filtered: Option<LeftOut>,
    page_size: u64,
    /// The sizes of huge pages that were mapped, in bytes. Each huge page counts as one page.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    huge_page_sizes: BTreeSet<u64>,
    good: bool,
    /// Whether references that follow from the trace were added (`--fill`).
    fill: bool,
    /// Whether freed pages left memory at once, or were kept (`--keep-freed`).
    freeing: Freeing,
    /// How the trace was reduced, if its first line says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<Note>,
    /// References of read() and write() to pages of files, with `--io`. `references`
    /// includes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    io: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sizes: Vec<SizeRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limits: Vec<LimitRow>,
    /// References of processes that no `--limit` fits, if `--size` gives them no memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    curve: Vec<CurveRow>,
    /// The share of pages from which the estimates were made.
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    estimates: Vec<EstimateRow>,
}

/// For a policy without a band: the errors that were measured with other programs.
#[derive(Clone, Copy, Default, Serialize)]
struct Measured {
    /// Of simulations like this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_error: Option<measured::Error>,
    /// With `--fill`, if this simulation is without it, and the error would be less than half.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_error_with_fill: Option<measured::Error>,
}

#[derive(Serialize)]
struct EstimateRow {
    policy: &'static str,
    #[serde(flatten)]
    estimate: Estimate,
}

#[derive(Serialize)]
struct SizeRow {
    policy: &'static str,
    #[serde(flatten)]
    counts: Counts,
    hits: u64,
    capacity: u64,
    /// `low` and `high`: the proven bounds on the misses that all references of the run would
    /// give.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    band: Option<Band>,
    #[serde(flatten)]
    measured: Measured,
}

#[derive(Serialize)]
struct LimitRow {
    memory: String,
    #[serde(flatten)]
    row: SizeRow,
}

impl SizeRow {
    fn new(policy: &'static str, counts: Counts) -> Self {
        SizeRow {
            policy,
            counts,
            hits: counts.hits(),
            capacity: counts.capacity(),
            band: None,
            measured: Measured::default(),
        }
    }
}

#[derive(Serialize)]
struct CurveRow {
    policy: &'static str,
    #[serde(flatten)]
    point: CurvePoint,
    /// `low` and `high`: the proven bounds on the misses that all references of the run would
    /// give.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    band: Option<Band>,
    #[serde(flatten)]
    measured: Measured,
}

/// The policies that were asked for, each once.
pub(super) fn policies(names: &[String]) -> Vec<&'static PolicyEntry> {
    let all = names.iter().any(|name| name == ALL);
    sim::registry()
        .iter()
        .filter(|p| all || names.iter().any(|name| name == p.id))
        .collect()
}

/// The simulations to run, each with the name of its policy.
fn jobs(
    entries: &[&'static PolicyEntry],
    args: &SimulateArgs,
    sizes: &[u64],
) -> anyhow::Result<Vec<(&'static str, Job)>> {
    let mut jobs = Vec::new();
    for entry in entries {
        for &size in sizes {
            jobs.push((entry.id, Job::Size((entry.simulate)(size))));
        }
        if !args.curve {
            continue;
        }
        if let Some(make) = entry.curve {
            jobs.push((entry.id, Job::Curve(make())));
        } else if sizes.is_empty() {
            let able = sim::registry().iter().filter(|p| p.curve.is_some());
            anyhow::bail!(
                "{} cannot compute a curve in one pass (only these policies can: {}); give sizes \
                 with --size",
                entry.id,
                able.map(|p| p.id).collect::<Vec<_>>().join(", ")
            );
        }
    }
    Ok(jobs)
}

/// The errors that were measured with other programs, for a policy without a band.
fn measured_errors(
    args: &SimulateArgs,
    trace: Option<&Trace>,
    input: &Read,
    policy: &str,
    size: u64,
) -> Measured {
    // They were measured with whole traces of one set.
    let is_partial = trace.is_some_and(Trace::is_partial);
    let is_whole = !input.several_sets && !input.lacks() && !is_partial;
    let known = args.wants_errors() && is_whole && !matches!(policy, LRU | OPT);
    let Some(trace) = trace.filter(|_| known) else {
        return Measured::default();
    };
    let header = trace.header();
    let clock = header.policy == uapi::VMTRACE_POLICY_CLOCK;
    let times = size as f64 / f64::from(header.evms_size.max(1));
    let of = |fill| measured::error(policy, How::of(clock, fill), times);
    let measured_error = of(args.fill);
    let half = measured_error.map_or(0.0, |error| error.mean_percent / 2.0);
    Measured {
        measured_error,
        measured_error_with_fill: of(true).filter(|error| error.mean_percent < half),
    }
}

/// The sizes at which OPT must be simulated to get its bounds, in addition to the sizes that
/// were asked for.
fn sizes_that_bound_opt(args: &SimulateArgs, trace: &Trace, sizes: &[u64]) -> Vec<u64> {
    if !args.wants_bands() || args.curve {
        return Vec::new();
    }
    let more = Certifier::members(trace) - 1;
    let mut bounding: Vec<u64> = sizes
        .iter()
        .flat_map(|&size| [size.saturating_sub(more), size.saturating_add(more)])
        .filter(|size| *size > 0 && !sizes.contains(size))
        .collect();
    bounding.sort_unstable();
    bounding.dedup();
    bounding
}

/// The sizes that were asked for, in pages. Shares of the footprint need a pass of their own.
fn sizes(args: &SimulateArgs, trace: Option<&Trace>) -> anyhow::Result<Vec<u64>> {
    let of_footprint = args.size.iter().any(|size| size.needs_footprint());
    let footprint = match of_footprint {
        true => footprint(args, trace)?,
        false => 0,
    };
    let page_size = trace.map_or(args.foreign.page_size, |trace| trace.header().page_size());
    let pages = |size: &MemorySize| size.pages(page_size, footprint);
    let sizes = args.size.iter().map(pages).collect::<Result<_, _>>();
    sizes.map_err(|why| anyhow::anyhow!("--size: {why}"))
}

/// The largest number of pages of the references that were asked for that exist at one time.
fn footprint(args: &SimulateArgs, trace: Option<&Trace>) -> anyhow::Result<u64> {
    anyhow::ensure!(
        args.limit.is_empty(),
        "--size: with --limit, give pages or bytes: the processes that share this memory have a \
         footprint that is not known before"
    );
    let mut footprint = Footprint::default();
    let mut progress = Progress::new("counting pages", stop_flag());
    let Some(trace) = trace else {
        anyhow::ensure!(
            args.input.trace != Path::new("-"),
            "--size: a share of the footprint needs two passes, and standard input can be read only \
             once: give a file, or pages or bytes"
        );
        let import = args.foreign.open(&args.input.trace)?;
        let import = import.ok_or_else(|| anyhow::anyhow!("no format was named"))?;
        import.run(&mut progress, |accesses, _| {
            footprint.accesses(&args.keeping.of(accesses));
            Ok(())
        })?;
        return Ok(footprint.pages());
    };
    let mut feed = Feed {
        sink: &mut footprint,
        // What is filled in are pages that are there.
        fill: false,
        io: args.io,
        filler: None,
        accesses: Vec::new(),
        io_references: 0,
    };
    let mut limit = args.io.then(|| IoLimit::new(trace, args.io_limit));
    let mut beside: Vec<&mut dyn Consumer> = Vec::new();
    beside.extend(limit.as_mut().map(|c| c as &mut dyn Consumer));
    reading(args, trace)?.run(trace, &mut progress, &mut beside, &mut feed)?;
    Ok(footprint.pages())
}

/// How the trace is read.
fn reading(args: &SimulateArgs, trace: &Trace) -> anyhow::Result<Reading> {
    Ok(Reading {
        mode: args.pages.into(),
        freeing: args.keeping.freeing(),
        selection: args.which.selection(),
        clause: args.which.clause(trace, args.io, false)?,
        in_virtual_time: false,
    })
}

/// The results of reading a trace other than the simulations.
struct Read {
    references: u64,
    io: Option<u64>,
    evms_size: u32,
    page_size: u64,
    huge: BTreeSet<u64>,
    report: Option<CheckReport>,
    note: Option<Note>,
    /// References to several sets share one memory.
    several_sets: bool,
    filtered: Option<Filtered>,
    left_out: Option<LeftOut>,
    /// Bounds on the misses that all references of the run would give, if they were asked for
    /// and exist.
    certificate: Option<Certificate>,
}

impl Read {
    /// Whether a filter of the kernel may have left references out.
    fn lacks(&self) -> bool {
        self.left_out
            .as_ref()
            .is_some_and(|left_out| left_out.is_any)
    }
}

/// A destination of the accesses that are read.
pub(super) trait Sink: Consumer {
    fn accesses(&mut self, accesses: &[Access]);
}

impl Sink for Workers<'_> {
    fn accesses(&mut self, accesses: &[Access]) {
        Workers::accesses(self, accesses);
    }
}

impl Sink for Sampler {
    fn accesses(&mut self, accesses: &[Access]) {
        Sampler::accesses(self, accesses);
    }
}

impl Sink for Footprint {
    fn accesses(&mut self, accesses: &[Access]) {
        Footprint::accesses(self, accesses);
    }
}

impl Sink for Limits {
    // These accesses do not say which process made them.
    fn accesses(&mut self, _accesses: &[Access]) {}
}

/// Passes on the references that were asked for: filled in, or with those of read() and write().
struct Feed<'s> {
    sink: &'s mut dyn Sink,
    fill: bool,
    io: bool,
    filler: Option<Filler>,
    accesses: Vec<Access>,
    /// References to pages of files by read() and write().
    io_references: u64,
}

impl Consumer for Feed<'_> {
    fn begin(&mut self, trace: &Trace) -> crate::error::Result<()> {
        self.filler = self.fill.then(|| Filler::new(trace.header()));
        self.sink.begin(trace)
    }

    fn wants_continuations(&self) -> bool {
        self.fill
    }

    fn references(&mut self, batch: &Batch<'_>) -> crate::error::Result<()> {
        let Some(filler) = &mut self.filler else {
            return self.sink.references(batch);
        };
        self.accesses.clear();
        filler.batch(batch, &mut self.accesses);
        self.sink.accesses(&self.accesses);
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        self.sink.follows_freed()
    }

    fn freed(&mut self, pages: &[CanonPage], world: &World) -> crate::error::Result<()> {
        let Some(filler) = &mut self.filler else {
            return self.sink.freed(pages, world);
        };
        self.accesses.clear();
        filler.freed(pages, &mut self.accesses);
        self.sink.accesses(&self.accesses);
        Ok(())
    }

    fn wants_io(&self) -> bool {
        self.io
    }

    fn io(&mut self, batch: &Batch<'_>) -> crate::error::Result<()> {
        self.io_references += batch.refs.len() as u64;
        self.sink.references(batch)
    }

    fn event(
        &mut self,
        event: &Event<'_>,
        world: &World,
        issues: &[Issue],
    ) -> crate::error::Result<()> {
        self.sink.event(event, world, issues)
    }

    fn finish(&mut self, trace: &Trace, outcome: &Outcome) -> crate::error::Result<()> {
        if let Some(filler) = &mut self.filler {
            self.accesses.clear();
            filler.finish(&mut self.accesses);
            self.sink.accesses(&self.accesses);
        }
        self.sink.finish(trace, outcome)
    }
}

fn read(args: &SimulateArgs, trace: Option<&Trace>, sink: &mut dyn Sink) -> anyhow::Result<Read> {
    let stop = stop_flag();
    let Some(trace) = trace else {
        let import = args.foreign.open(&args.input.trace)?;
        let import = import.ok_or_else(|| anyhow::anyhow!("no format was named"))?;
        let mut progress = Progress::new("simulating", stop);
        let imported = import.run(&mut progress, |accesses, _| {
            sink.accesses(&args.keeping.of(accesses));
            Ok(())
        })?;
        return Ok(Read {
            references: imported.references,
            io: None,
            evms_size: imported.note.as_ref().map_or(0, |note| note.evms_size),
            page_size: args.foreign.page_size,
            huge: BTreeSet::new(),
            report: None,
            note: imported.note,
            several_sets: false,
            filtered: None,
            left_out: None,
            certificate: None,
        });
    };
    let mut checker = args.checks.checker();
    let mut progress = Progress::new("simulating", stop);
    let mut feed = Feed {
        sink,
        fill: args.fill,
        io: args.io,
        filler: None,
        accesses: Vec::new(),
        io_references: 0,
    };
    let reading = reading(args, trace)?;
    let certifier = || Certifier::of_set(args.which.set);
    let mut certifier = args.wants_bands().then(certifier);
    let mut beside: Vec<&mut dyn Consumer> = vec![&mut checker];
    beside.extend(certifier.as_mut().map(|c| c as &mut dyn Consumer));
    let mut limit = args.io.then(|| IoLimit::new(trace, args.io_limit));
    beside.extend(limit.as_mut().map(|c| c as &mut dyn Consumer));
    let pass = reading.run(trace, &mut progress, &mut beside, &mut feed)?;
    drop(beside);
    let report = checker.report();
    // The proof assumes a trace that passes its checks.
    let certificate = certifier.filter(|_| report.good);
    let certificate = certificate.and_then(|c| c.certificate());
    let references = match args.which.process().is_some() || pass.filtered.is_some() {
        // This number includes references of read() and write().
        true => pass.references,
        false => pass.references + feed.io_references,
    };
    Ok(Read {
        references,
        io: args.io.then_some(feed.io_references),
        evms_size: trace.header().evms_size,
        page_size: trace.header().page_size(),
        huge: pass.outcome.world.space.huge_pages().clone(),
        report: Some(report),
        note: None,
        several_sets: args.which.selection().is_none()
            && args.limit.is_empty()
            && pass.outcome.world.has_several_sets(),
        filtered: pass.filtered,
        left_out: pass.left_out,
        certificate,
    })
}

/// The estimator of all policies and sizes that were asked for.
fn sampler(
    rate: f64,
    entries: &[&'static PolicyEntry],
    args: &SimulateArgs,
    sizes: &[u64],
) -> anyhow::Result<Sampler> {
    let mut asked = Vec::new();
    for &entry in entries {
        asked.extend(sizes.iter().map(|&size| (entry, Some(size))));
        if args.curve {
            asked.push((entry, None));
        }
    }
    let sampler = Sampler::new(rate, asked);
    let smallest = sampler.smallest();
    if let Some(size) = sizes.iter().find(|&&size| size < smallest) {
        anyhow::bail!(
            "a sample of {rate} gives no estimate for {size} pages, only for {smallest} and more; \
             give a larger share with --sample"
        );
    }
    Ok(sampler)
}

pub fn run(args: &SimulateArgs) -> anyhow::Result<ExitCode> {
    let entries = policies(&args.policy);
    if args.io && args.pages != Pages::Canonical {
        anyhow::bail!("--io needs --pages canonical: read() and write() have no virtual pages");
    }
    if args.fill && args.which.only.filters() {
        anyhow::bail!(
            "--fill finds the place of a reference by counting the records of its set, of which \
             --where leaves some out: leave out one of the two"
        );
    }
    if let Some(format) = &args.foreign.from {
        args.input.windows.none_in(format)?;
        args.which.only.none_in(format)?;
        return run_one(args, None, &entries);
    }
    args.input.each(|trace| {
        anyhow::ensure!(
            !args.fill || !trace.may_lack_references(),
            "--fill finds the place of a reference by counting the records of its set, of which a \
             filter of the kernel has left some out: leave out --fill"
        );
        trace.demand_references()?;
        warn_of_piece(trace, NO_BOUNDS);
        match args.limit.is_empty() {
            true => run_one(args, Some(trace), &entries),
            false => run_limits(args, trace, &entries),
        }
    })
}

fn run_one(
    args: &SimulateArgs,
    trace: Option<&Trace>,
    entries: &[&'static PolicyEntry],
) -> anyhow::Result<ExitCode> {
    let sizes = sizes(args, trace)?;
    let (names, mut jobs): (Vec<_>, Vec<_>) = jobs(entries, args, &sizes)?.into_iter().unzip();
    let bounding = trace.map_or_else(Vec::new, |trace| sizes_that_bound_opt(args, trace, &sizes));
    if let Some(opt) = entries.iter().find(|entry| entry.id == OPT) {
        jobs.extend(bounding.iter().map(|&size| Job::Size((opt.simulate)(size))));
    }
    let (input, mut jobs, estimates) = match args.sample {
        Some(rate) => {
            let mut sampler = sampler(rate, entries, args, &sizes)?;
            let input = read(args, trace, &mut sampler)?;
            (input, Vec::new(), sampler.estimates(args.points))
        }
        None => std::thread::scope(|scope| {
            let mut workers = Workers::start(scope, jobs);
            let input = read(args, trace, &mut workers)?;
            Ok::<_, anyhow::Error>((input, workers.join(), Vec::new()))
        })?,
    };
    let mut simulated = Simulated::new(args, trace, entries, &input);
    let mut opt_misses: FxHashMap<u64, u64> = FxHashMap::default();
    for job in jobs.split_off(names.len().min(jobs.len())) {
        if let Job::Size(simulation) = job {
            let counts = simulation.counts();
            opt_misses.insert(counts.size_pages, counts.misses);
        }
    }
    for (policy, job) in names.into_iter().zip(jobs) {
        match job {
            Job::Size(simulation) => {
                let counts = simulation.counts();
                simulated.cold = counts.cold;
                simulated.sizes.push(SizeRow::new(policy, counts));
            }
            Job::Curve(curve) => {
                let curve = curve.finish();
                simulated.cold = curve.cold;
                let points: Vec<CurvePoint> = match args.points {
                    0 => curve.points().collect(),
                    count => curve.sampled(count),
                };
                let band = |size| {
                    let certificate = input.certificate.as_ref()?;
                    match policy {
                        LRU => certificate.lru(size),
                        OPT => certificate.opt(|size| curve.at(size).misses, size),
                        _ => None,
                    }
                };
                let row = |point: CurvePoint| CurveRow {
                    policy,
                    point,
                    band: band(point.size_pages),
                    measured: measured_errors(args, trace, &input, policy, point.size_pages),
                };
                simulated.curve.extend(points.into_iter().map(row));
            }
        }
    }
    for row in &mut simulated.sizes {
        row.measured = measured_errors(args, trace, &input, row.policy, row.counts.size_pages);
    }
    let of_opt = simulated.sizes.iter().filter(|row| row.policy == OPT);
    opt_misses.extend(of_opt.map(|row| (row.counts.size_pages, row.counts.misses)));
    if let Some(certificate) = &input.certificate {
        for row in &mut simulated.sizes {
            let size = row.counts.size_pages;
            let bounds = certificate.sizes_for_opt(size);
            row.band = match row.policy {
                LRU => certificate.lru(size),
                OPT if bounds.iter().all(|size| opt_misses.contains_key(size)) => {
                    certificate.opt(|size| opt_misses.get(&size).copied().unwrap_or(0), size)
                }
                _ => None,
            };
        }
    }
    for (policy, estimate) in estimates {
        simulated.cold = estimate.cold;
        simulated.estimates.push(EstimateRow { policy, estimate });
    }
    if args.input.json {
        print_json(&simulated)?;
    } else {
        print(text(&simulated)?.as_bytes())?;
    }
    if input.several_sets {
        warn_of_several_sets();
    }
    if let Some(note) = &simulated.note {
        let from = note.valid_from_pages;
        if args.curve || sizes.iter().any(|&size| size < from) {
            note!(
                "the trace was reduced by {}: results for memories smaller than {} pages \
                 are meaningless",
                note.method,
                grouped(from)
            );
        }
    }
    Ok(input
        .report
        .map_or(ExitCode::SUCCESS, |report| verdict(&report)))
}

impl Simulated {
    /// The result before any simulation is added to it.
    fn new(
        args: &SimulateArgs,
        trace: Option<&Trace>,
        entries: &[&'static PolicyEntry],
        input: &Read,
    ) -> Self {
        let is_part = trace.is_some_and(Trace::is_partial);
        Simulated {
            path: trace.map_or_else(|| args.input.trace.display().to_string(), name_of),
            window: trace.and_then(Trace::window),
            policies: entries.iter().map(|entry| entry.id).collect(),
            references: input.references,
            cold: 0,
            evms_size: input.evms_size,
            set: args.which.set,
            exact: !input.several_sets && input.filtered.is_none() && !input.lacks() && !is_part,
            // First what another command line, or another file, changes.
            why_not_exact: match &input.filtered {
                _ if input.several_sets => Some(SEVERAL_SETS),
                Some(filtered) => Some(why_filtered(filtered)),
                None if is_part => Some(PART),
                None if input.lacks() => Some(LEFT_OUT),
                None => None,
            },
            filter: input.filtered.clone(),
            filtered: input.left_out.clone(),
            page_size: input.page_size,
            huge_page_sizes: input.huge.clone(),
            fill: args.fill,
            freeing: args.keeping.freeing(),
            good: input.report.as_ref().is_none_or(|report| report.good),
            note: input.note.clone(),
            io: input.io,
            sizes: Vec::new(),
            limits: Vec::new(),
            left_out: None,
            curve: Vec::new(),
            sample: args.sample,
            estimates: Vec::new(),
        }
    }
}

/// Simulates a memory that is divided.
fn run_limits(
    args: &SimulateArgs,
    trace: &Trace,
    entries: &[&'static PolicyEntry],
) -> anyhow::Result<ExitCode> {
    if args.size.len() > 1 {
        anyhow::bail!(
            "with --limit, give one --size: it is the memory that all other processes share"
        );
    }
    let rest = sizes(args, Some(trace))?.first().copied();
    let page_size = trace.header().page_size();
    let limits = args.limit.iter().cloned();
    let limits: Result<_, _> = limits.map(|limit| limit.in_pages(page_size)).collect();
    let limits = limits.map_err(|why| anyhow::anyhow!("--limit: {why}"))?;
    let mut limits = Limits::new(limits, entries.to_vec(), rest);
    let mut input = read(args, Some(trace), &mut limits)?;
    let mut memories = limits.memories().iter();
    input.several_sets = memories.any(Memory::has_several_sets);
    let mut simulated = Simulated::new(args, Some(trace), entries, &input);
    simulated.left_out = Some(limits.left_out());
    for memory in limits.memories() {
        for (i, (entry, counts)) in entries.iter().zip(memory.counts()).enumerate() {
            // Each memory once, whatever the policies.
            simulated.cold += if i == 0 { counts.cold } else { 0 };
            simulated.limits.push(LimitRow {
                memory: memory.name.clone(),
                row: SizeRow::new(entry.id, counts),
            });
        }
    }
    if args.input.json {
        print_json(&simulated)?;
    } else {
        print(limits_text(&simulated)?.as_bytes())?;
    }
    if input.several_sets {
        warn_of_several_sets();
    }
    Ok(input
        .report
        .map_or(ExitCode::SUCCESS, |report| verdict(&report)))
}

fn limits_text(s: &Simulated) -> Result<String, std::fmt::Error> {
    let mut t = heading(s)?;
    writeln!(
        t,
        "{:<24} {:>12} {:<16} {:>14} {:>14} {:>8} {:>14} {:>14}",
        "memory", "pages", "policy", "references", "misses", "ratio", "capacity", "write-backs"
    )?;
    for LimitRow { memory, row } in &s.limits {
        let c = &row.counts;
        writeln!(
            t,
            "{memory:<24} {:>12} {:<16} {:>14} {:>14} {:>7.3}% {:>14} {:>14}",
            grouped(c.size_pages),
            row.policy,
            grouped(c.references),
            grouped(c.misses),
            100.0 * c.misses as f64 / c.references.max(1) as f64,
            grouped(row.capacity),
            count_or_dash(c.write_backs)
        )?;
    }
    if let Some(left_out @ 1..) = s.left_out {
        writeln!(
            t,
            "\n{} references are left out: no limit fits their processes. --size gives these \
             processes a memory.",
            grouped(left_out)
        )?;
    }
    Ok(t)
}

/// A count, or a dash for one that is not known.
fn count_or_dash(count: Option<u64>) -> String {
    count.map_or("-".into(), grouped)
}

/// The measured errors of each policy in a result, at the smallest of the result's sizes.
fn measured_at_least(s: &Simulated) -> Vec<(&'static str, measured::Error, Measured)> {
    let sizes = s
        .sizes
        .iter()
        .map(|r| (r.policy, r.counts.size_pages, r.measured));
    let points = s
        .curve
        .iter()
        .map(|r| (r.policy, r.point.size_pages, r.measured));
    let least = u64::from(s.evms_size) * u64::from(measured::LEAST);
    let mut errors: Vec<(&'static str, measured::Error, Measured)> = Vec::new();
    for (policy, size, measured) in sizes.chain(points) {
        if let Some(error) = measured.measured_error.filter(|_| size >= least) {
            match errors.iter_mut().find(|known| known.0 == policy) {
                // The smallest of the sizes has the largest error.
                Some(known) if error.mean_percent > known.1.mean_percent => {
                    *known = (policy, error, measured);
                }
                Some(_) => {}
                None => errors.push((policy, error, measured)),
            }
        }
    }
    errors
}

/// The line about what was read, and an empty line.
fn heading(s: &Simulated) -> Result<String, std::fmt::Error> {
    let mut t = String::new();
    writeln!(
        t,
        "{}: {} references, {} cold{}{}; {}\n",
        s.path,
        grouped(s.references),
        grouped(s.cold),
        match s.io {
            None => String::new(),
            Some(io) => format!("; {} by read() and write()", grouped(io)),
        },
        match s.evms_size {
            0 => String::new(),
            n => match s.set {
                None => format!("; N = {}", grouped(n.into())),
                Some(set) => format!("; set {set}; N = {}", grouped(n.into())),
            },
        },
        s.freeing.text()
    )?;
    if let Some(left_out) = &s.filtered {
        let which = left_out_text(left_out);
        let so = match left_out.is_any {
            true => "\nSo no bound on the misses is proven.",
            false => "",
        };
        writeln!(t, "{which}{so}\n")?;
    }
    if let Some(filtered) = &s.filter {
        let which = filtered_text(filtered);
        writeln!(t, "{which}; no bound on the misses is proven.\n")?;
    }
    if s.why_not_exact == Some(SEVERAL_SETS) {
        writeln!(
            t,
            "These are references to several sets in one memory: no bound on the misses is proven.\n"
        )?;
    }
    if !s.huge_page_sizes.is_empty() {
        writeln!(
            t,
            "Huge pages of {} are mapped: each counts as one page.\n",
            sizes_text(&s.huge_page_sizes)
        )?;
    }
    Ok(t)
}

/// A table of estimates, in the order of the request.
fn estimates_text(s: &Simulated, t: &mut String) -> std::fmt::Result {
    writeln!(
        t,
        "{:>12} {:>10} {:<16} {:>14} {:>12} {:>8} {:>14}",
        "pages", "MiB", "policy", "misses", "+-", "ratio", "write-backs"
    )?;
    for row in &s.estimates {
        let e = &row.estimate;
        let whole = |number: f64| grouped(number.round() as u64);
        writeln!(
            t,
            "{:>12} {:>10.2} {:<16} {:>14} {:>12} {:>7.3}% {:>14}",
            grouped(e.size_pages),
            (e.size_pages * s.page_size) as f64 / f64::from(1 << 20),
            row.policy,
            whole(e.misses),
            whole(e.misses_error),
            100.0 * e.misses / s.references.max(1) as f64,
            e.write_backs.map_or("-".into(), whole)
        )?;
    }
    Ok(())
}

fn text(s: &Simulated) -> Result<String, std::fmt::Error> {
    let mut t = heading(s)?;
    let mib = |pages: u64| (pages * s.page_size) as f64 / f64::from(1 << 20);
    let percent = |misses: u64| 100.0 * misses as f64 / s.references.max(1) as f64;
    if s.sample.is_some() {
        estimates_text(s, &mut t)?;
        return Ok(t);
    }
    writeln!(
        t,
        "{:>12} {:>10} {:<16} {:>14} {:>8} {:>14} {:>14} {:>14} {:>14}",
        "pages",
        "MiB",
        "policy",
        "misses",
        "ratio",
        "at least",
        "at most",
        "capacity",
        "write-backs"
    )?;
    let points = s.curve.iter().map(|row| (row.policy, row.point, row.band));
    let mut rows: Vec<(&str, CurvePoint, Option<Band>)> = s
        .sizes
        .iter()
        .map(|row| {
            let point = CurvePoint {
                size_pages: row.counts.size_pages,
                misses: row.counts.misses,
                write_backs: row.counts.write_backs,
            };
            (row.policy, point, row.band)
        })
        .chain(points)
        .collect();
    // Policies are compared at one size; a stable sort keeps their order.
    rows.sort_by_key(|(_, point, _)| point.size_pages);
    rows.dedup();
    let mut bounded = false;
    let mut unknown = BTreeSet::new();
    for (policy, point, band) in rows {
        bounded |= band.is_some();
        if band.is_none() && !measured::is_known(policy) {
            unknown.insert(policy);
        }
        writeln!(
            t,
            "{:>12} {:>10.2} {policy:<16} {:>14} {:>7.3}% {:>14} {:>14} {:>14} {:>14}",
            grouped(point.size_pages),
            mib(point.size_pages),
            grouped(point.misses),
            percent(point.misses),
            count_or_dash(band.map(|band| band.low)),
            count_or_dash(band.map(|band| band.high)),
            grouped(point.misses - s.cold),
            count_or_dash(point.write_backs)
        )?;
    }
    for (policy, error, measured) in measured_at_least(s) {
        writeln!(
            t,
            "\n{policy}: no bound is proven. With four measured programs, the misses at {} N pages \
             and more were off by {} % on average and {} % at worst (docs/fidelity.md).",
            measured::LEAST,
            error.mean_percent,
            error.worst_percent
        )?;
        if let Some(error) = measured.measured_error_with_fill {
            writeln!(
                t,
                "With --fill, they were off by {} % on average and {} % at worst.",
                error.mean_percent, error.worst_percent
            )?;
        }
    }
    for policy in unknown {
        writeln!(
            t,
            "\n{policy}: no bound is proven, and the error was not measured."
        )?;
    }
    if bounded {
        writeln!(
            t,
            "\nThe number of misses on all references of the run is proven to lie between the \
             columns\n\"at least\" and \"at most\" (docs/fidelity.md)."
        )?;
    }
    Ok(t)
}
