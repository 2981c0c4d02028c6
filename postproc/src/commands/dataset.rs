//! `postproc dataset`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::dataset::{Added, Adding, Dataset};
use crate::trace::Trace;
use clap::Args;

use super::screen::{Opening, Progress, grouped, print_with, stop_flag};
use super::{Checks, Where, for_each_trace, verdict};

/// Add traces to a dataset: tables of Parquet for any number of traces
///
/// A dataset is a directory of tables, with types that DuckDB, Polars and Spark have: references, events,
/// mappings, pages, processes and traces. Each trace is a partition of each table, and each window one of the
/// references. A trace is identified by its UUID. It appears in the dataset when all of its tables are
/// complete. If a trace cannot be read or added, the others are added nevertheless. docs/dataset.md
/// describes the tables.
///
/// With a selection, the tables of references and pages have only what is selected, and the other tables
/// describe the whole trace. A dataset records its selection, and takes traces with the same selection
/// only.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc dataset run.vmt -o data\n  \
    postproc dataset web-*.vmt --host web -o web\n  \
    postproc dataset run.vmt --replace -o data\n  \
    postproc dataset web-*.vmt --mapping '[anon]' -o anonymous")]
pub struct DatasetArgs {
    /// The traces: files, or directories with the pieces of a trace
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// The directory of the dataset, which is made if it does not exist
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// The host on which these traces were made, for the table `traces`: a trace does not have it
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Replace traces that are in the dataset already, instead of refusing them
    #[arg(long)]
    replace: bool,
    /// Print JSON on standard output: an object for each trace, one a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    only: Where,
    #[command(flatten)]
    checks: Checks,
}

pub fn run(args: &DatasetArgs) -> anyhow::Result<ExitCode> {
    let dataset = Dataset::open(&args.output)?;
    for_each_trace(
        &args.traces,
        "added",
        |path| add(args, &dataset, path),
        |added| show(args, &added),
    )
}

fn add(args: &DatasetArgs, dataset: &Dataset, path: &Path) -> anyhow::Result<(Added, ExitCode)> {
    let trace = Trace::open_watched(path, &mut Opening::default())?;
    trace.demand_references()?;
    let adding = Adding {
        chosen: args.only.chosen(&trace)?,
        host: args.host.clone(),
        replace: args.replace,
        group_bytes: None,
    };
    let mut progress = Progress::new("adding", stop_flag());
    let checker = args.checks.checker();
    let (added, report) = dataset.add(&trace, &adding, checker, &mut progress)?;
    drop(progress);
    Ok((added, verdict(&report)))
}

fn show(args: &DatasetArgs, added: &Added) -> anyhow::Result<()> {
    if args.json {
        print_with(|out| {
            serde_json::to_writer(&mut *out, added)?;
            out.write_all(b"\n")
        })?;
    } else {
        eprintln!("{}", text(added));
    }
    Ok(())
}

fn text(added: &Added) -> String {
    let facts = &added.facts;
    format!(
        "{}: trace {}{}: {} references to {} pages; {} files, {} bytes",
        facts.source,
        facts.trace,
        if added.replaced { ", replaced" } else { "" },
        grouped(facts.references),
        grouped(facts.pages),
        grouped(added.files),
        grouped(added.file_bytes)
    )
}
