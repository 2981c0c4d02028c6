//! `postproc simulate`.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use clap::builder::PossibleValuesParser;
use postproc::check::Checker;
use postproc::pipeline;
use postproc::sim::{self, Counts, CurvePoint, PolicyEntry, SimulationConsumer};
use postproc::trace::Trace;
use serde::Serialize;

use super::screen::{Progress, grouped, print, print_json, stop_flag};
use super::{Input, Pages, Waivers, verdict};

/// Simulate a page-replacement policy
///
/// A miss is a reference to a page that is not in memory; misses include cold
/// ones, which are first references. A write-back is a dirty page that is
/// replaced; pages that are dirty at the end are not among them.
///
/// The trace is reduced by a FIFO of N pages (`postproc info` shows N): results
/// mean something for memories of 4 N pages and more.
///
/// This stage simplifies: all processes share one memory; a page keeps its place
/// after munmap and exit until it is replaced; read() and write() reference
/// nothing; a private page that nobody touched before a fork counts once in the
/// parent and once in the child.
#[derive(Args)]
#[command(
    group = clap::ArgGroup::new("what").required(true).multiple(true).args(["size", "curve"]),
    after_help = "Examples:\n  \
    postproc simulate run.vmtrace --policy lru --size 1000,2000,4000\n  \
    postproc simulate run.vmtrace --policy lru --curve --points 200 --json > curve.json"
)]
pub struct SimulateArgs {
    #[command(flatten)]
    input: Input,
    /// The policy
    #[arg(long, default_value = "lru", value_parser = PossibleValuesParser::new(sim::registry().iter().map(|p| p.id)))]
    policy: String,
    /// Sizes of memory, in pages
    #[arg(long, value_delimiter = ',', value_name = "PAGES", value_parser = clap::value_parser!(u64).range(1..))]
    size: Vec<u64>,
    /// All sizes in one pass
    #[arg(long)]
    curve: bool,
    /// Points of the curve to print, of equal ratio; 0 prints every size
    #[arg(long, default_value_t = 64, requires = "curve")]
    points: usize,
    /// How references are named
    #[arg(long, value_enum, default_value = "canonical")]
    pages: Pages,
    #[command(flatten)]
    waivers: Waivers,
}

#[derive(Serialize)]
struct Simulated {
    path: String,
    policy: &'static str,
    references: u64,
    cold: u64,
    evms_size: u32,
    page_size: u64,
    good: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sizes: Vec<Counts>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    curve: Vec<CurvePoint>,
}

fn policy(id: &str) -> anyhow::Result<&'static PolicyEntry> {
    sim::registry()
        .iter()
        .find(|p| p.id == id)
        .ok_or_else(|| anyhow::anyhow!("no policy is called {id}"))
}

pub fn run(args: &SimulateArgs) -> anyhow::Result<ExitCode> {
    let entry = policy(&args.policy)?;
    let mut simulation = SimulationConsumer::default();
    simulation.sizes = args
        .size
        .iter()
        .map(|&size| (entry.simulate)(size))
        .collect();
    if args.curve {
        let Some(make) = entry.curve else {
            anyhow::bail!(
                "{} gives no curve in one pass; name sizes with --size",
                entry.id
            );
        };
        simulation.curve = Some(make());
    }
    let trace = Trace::open(&args.input.trace)?;
    let mut checker = Checker::integrity(args.waivers.options(3));
    let outcome = {
        let mut progress = Progress::new("simulating", stop_flag());
        let consumers: &mut [&mut dyn pipeline::Consumer] = &mut [&mut checker, &mut simulation];
        pipeline::run(&trace, args.pages.into(), &mut progress, consumers)?
    };
    let report = checker.report();
    let sizes: Vec<Counts> = simulation.sizes.iter().map(|s| s.counts()).collect();
    let curve = simulation.curve.map(|c| c.curve());
    let points = curve
        .as_ref()
        .map_or_else(Vec::new, |curve| match args.points {
            0 => curve.points().collect(),
            count => curve.sampled(count),
        });
    let simulated = Simulated {
        path: trace.path().display().to_string(),
        policy: entry.id,
        references: outcome.world.refs,
        cold: curve.map_or_else(|| sizes.first().map_or(0, |c| c.cold), |c| c.cold),
        evms_size: trace.header().evms_size,
        page_size: trace.header().page_size(),
        good: report.good,
        sizes,
        curve: points,
    };
    if args.input.json {
        print_json(&simulated)?;
    } else {
        print(text(&simulated)?.as_bytes())?;
    }
    Ok(verdict(&report))
}

fn text(s: &Simulated) -> Result<String, std::fmt::Error> {
    let mut t = String::new();
    let mib = |pages: u64| (pages * s.page_size) as f64 / f64::from(1 << 20);
    let percent = |misses: u64| 100.0 * misses as f64 / s.references.max(1) as f64;
    writeln!(
        t,
        "{}: {}, {} references, {} cold; N = {}\n",
        s.path,
        s.policy,
        grouped(s.references),
        grouped(s.cold),
        grouped(s.evms_size.into())
    )?;
    writeln!(
        t,
        "{:>12} {:>10} {:>16} {:>8} {:>16}",
        "pages", "MiB", "misses", "", "write-backs"
    )?;
    let rows = s
        .sizes
        .iter()
        .map(|c| (c.size_pages, c.misses, c.write_backs))
        .chain(
            s.curve
                .iter()
                .map(|p| (p.size_pages, p.misses, p.write_backs)),
        );
    for (size, misses, write_backs) in rows {
        writeln!(
            t,
            "{:>12} {:>10.2} {:>16} {:>7.3}% {:>16}",
            grouped(size),
            mib(size),
            grouped(misses),
            percent(misses),
            grouped(write_backs)
        )?;
    }
    Ok(t)
}
