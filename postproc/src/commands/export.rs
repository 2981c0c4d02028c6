//! `postproc export`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::amount::MemorySize;
use crate::check::{CheckOptions, Checker};
use crate::export::{self, ExportConsumer, ExportOptions, Exported, FormatEntry, ProcessExports};
use crate::filter::{Filtered, LeftOut};
use crate::io_limit::IoLimit;
use crate::pipeline::{Consumer, Freeing};
use crate::trace::Trace;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};

use super::screen::{Progress, grouped, print_json, stop_flag};
use super::{
    Checks, Input, Keeping, OfFiltered, Pages, Passed, Reading, Time, Which, filtered_text,
    left_out_text, microseconds, name_of, verdict, warn_of_piece,
};

/// Write a trace's references in a format that other programs read
///
/// Pages are numbered from 1 in the order in which they first appear. The size of a
/// request is 1 page. In oracleGeneral, times are whole seconds since the trace's start.
/// The next access is the index of the page's next reference, where the first reference of
/// the trace has index 1. Unless --keep-freed is given, five formats also record each page
/// that is freed: csv and cachebench by a line, ctf and ctf2 by an event, and parquet by a row of
/// the table `freed`. Readers of the other formats assume that a page stays until it is
/// replaced. Of a trace of regions, which has no references, damon has the reports, and ctf and ctf2
/// have the events. perfetto has counters instead of references. The output appears under its name
/// only when it is complete. docs/exports.md describes the formats.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc export run.vmt --format oracleGeneral -o run.oracleGeneral.zst\n  \
    postproc export run.vmt --format csv -o - | head\n  \
    postproc export run.vmt --format lcs-v2 -o run.lcs\n  \
    postproc export run.vmt --per-process --format txt -o run.txt.zst\n  \
    postproc export run.vmt --where 'comm == \"cc1\" && kind == read' --format csv -o cc1.csv\n  \
    postproc export run.vmt --io --format oracleGeneral -o run.oracleGeneral\n  \
    postproc export run.vmt --format damon --interval 100ms -o damon.data; damo report heatmap\n  \
    postproc export run.vmt --format heatmap --interval 10ms --block 16 -o run.heat\n  \
    postproc export run.vmt --format perfetto --tau 50ms -o run.pftrace")]
pub struct ExportArgs {
    #[command(flatten)]
    input: Input,
    /// The format
    #[arg(long, value_parser = format_names())]
    format: String,
    /// The output file; `-` is standard output; a file whose name ends in .zst is compressed
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// What counts as one page
    #[arg(long, value_enum, default_value = "canonical")]
    pages: Pages,
    /// The clock for the times
    #[arg(long, value_enum, default_value = "real")]
    time: Time,
    /// Length of an interval of time: 250us, 100ms, 2s [moca-csv, damon, heatmap]
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = microseconds)]
    interval: u64,
    /// Length of a sampling interval [damon] [default: a twentieth of --interval]
    #[arg(long, value_name = "TIME", value_parser = microseconds)]
    sampling: Option<u64>,
    /// Size of a block of addresses: 16 (pages), or 64KiB [heatmap]
    #[arg(long, value_name = "SIZE", default_value = "1", value_parser = block)]
    block: MemorySize,
    /// Length of a bin of time: each counter has one value for each [perfetto] [default: so long
    /// that there are at most 2,000]
    #[arg(long, value_name = "TIME", value_parser = microseconds)]
    bin: Option<u64>,
    /// τ of the working sets: how long ago a page may have been referenced [perfetto]
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = microseconds)]
    tau: u64,
    /// Let read() and write() reference the pages of files [oracleGeneral, lcs, lcs-v2, txt]
    #[arg(long, conflicts_with = "set")]
    io: bool,
    /// Allow read() and write() this many references [default: 2,097,152 and two for each byte
    /// of the trace]
    #[arg(long, value_name = "REFERENCES", requires = "io")]
    io_limit: Option<u64>,
    #[command(flatten)]
    which: Which,
    /// Write a file for each process: with -o run.csv, process 1234 goes to run.1234.csv, and
    /// its pages are numbered from 1
    #[arg(long, conflicts_with_all = ["process", "set"])]
    per_process: bool,
    #[command(flatten)]
    keeping: Keeping,
    #[command(flatten)]
    checks: Checks,
}

fn format_names() -> PossibleValuesParser {
    let named = |f: &FormatEntry| PossibleValue::new(f.id).help(f.about);
    PossibleValuesParser::new(export::registry().iter().map(named))
}

pub fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let to_stdout = args.output.as_os_str() == "-";
    if to_stdout && args.input.json {
        anyhow::bail!("--json and -o - both need standard output: give -o a file");
    }
    let format = export::registry()
        .iter()
        .find(|f| f.id == args.format)
        .ok_or_else(|| anyhow::anyhow!("no format is called {}", args.format))?;
    let sampling = args.sampling.unwrap_or((args.interval / 20).max(1));
    if sampling > args.interval {
        anyhow::bail!("--sampling is longer than --interval");
    }
    if args.io && !format.takes_io() {
        anyhow::bail!(
            "--io does not work with {}: a record of this format needs more than read() and \
             write() have",
            format.id
        );
    }
    if args.io && args.pages != Pages::Canonical {
        anyhow::bail!("--io needs --pages canonical: read() and write() have no virtual pages");
    }
    let options = ExportOptions {
        interval_ns: args.interval * 1000,
        sampling_ns: sampling * 1000,
        // It depends on the size of the trace's pages.
        block_pages: 1,
        io: args.io,
        freeing: match format.follows_freed() {
            true => args.keeping.freeing(),
            false => Freeing::Kept,
        },
        bin_ns: args.bin.map_or(0, |bin| bin * 1000),
        tau_ns: args.tau * 1000,
    };
    if (args.per_process || args.which.selection().is_some()) && format.is_directory() {
        anyhow::bail!(
            "{} already keeps processes apart: leave out --process, --set and --per-process",
            format.id
        );
    }
    if to_stdout && args.per_process {
        anyhow::bail!("--per-process writes a file for each process: give -o a name instead of -");
    }
    if to_stdout && args.input.windows.per_window {
        anyhow::bail!("--per-window writes a file for each window: give -o a name instead of -");
    }
    args.input
        .each(|trace| run_one(args, trace, format, options))
}

fn block(text: &str) -> Result<MemorySize, String> {
    MemorySize::absolute(
        text,
        "a block is a part of the addresses, not of the footprint",
    )
}

/// The largest block, pages.
const LARGEST_BLOCK: u64 = 1 << 32;

fn run_one(
    args: &ExportArgs,
    trace: &Trace,
    format: &'static FormatEntry,
    mut options: ExportOptions,
) -> anyhow::Result<ExitCode> {
    let block = args.block.pages(trace.header().page_size(), 0);
    options.block_pages = block.map_err(|why| anyhow::anyhow!("--block: {why}"))?;
    anyhow::ensure!(
        options.block_pages <= LARGEST_BLOCK,
        "--block: give at most {LARGEST_BLOCK} pages"
    );
    let only_regions = trace.has_only_regions();
    if only_regions {
        if !format.takes_regions() {
            trace.demand_references()?;
        }
        let is_part = args.per_process
            || args.which.selection().is_some()
            || args.which.clause(trace, args.io, false)?.is_some();
        anyhow::ensure!(
            !is_part,
            "{}: the trace has samples of regions, and no references that could be selected: leave out \
             the options that select; `postproc regions` has --process",
            name_of(trace)
        );
    }
    warn_of_piece(
        trace,
        "they are missing until they are referenced with one. The directory with all pieces has \
         their earlier references",
    );
    let output = args.input.windows.output(&args.output, trace);
    let in_virtual_time = args.time.is_virtual(trace)?;
    if in_virtual_time && format.needs_real_time() {
        anyhow::bail!(
            "{} has the times of the system's clock: leave out --time virtual",
            format.id
        );
    }
    if let Some((first, last)) = trace.index().time_span() {
        let bins = (last.saturating_sub(first) / options.bin_ns.max(1)).saturating_add(1);
        if options.bin_ns > 0 && bins > export::MOST_BINS {
            anyhow::bail!(
                "with --bin so short, the trace has {} bins: give a time at least {} times as long",
                grouped(bins),
                bins.div_ceil(export::MOST_BINS)
            );
        }
    }
    let reading = Reading {
        freeing: options.freeing,
        mode: args.pages.into(),
        selection: args.which.selection(),
        clause: args.which.clause(trace, args.io, in_virtual_time)?,
        in_virtual_time,
    };
    let mut checker = args.checks.checker();
    let stop = stop_flag();
    let read = |checker: &mut Checker, export: &mut dyn Consumer| {
        let mut progress = Progress::new("exporting", stop.clone());
        let mut beside: Vec<&mut dyn Consumer> = vec![checker];
        let mut limit = args.io.then(|| IoLimit::new(trace, args.io_limit));
        beside.extend(limit.as_mut().map(|c| c as &mut dyn Consumer));
        reading.run(trace, &mut progress, &mut beside, export)
    };
    if args.per_process {
        let mut exports = ProcessExports::new(trace, format, &output, options, stop.clone());
        let Passed {
            filtered, left_out, ..
        } = read(&mut checker, &mut exports)?;
        let told = (filtered.as_ref(), left_out.as_ref());
        while let Some(mut rest) = tell_processes(args, exports, told)? {
            let mut once = Checker::with(vec![], CheckOptions::default());
            read(&mut once, &mut rest)?;
            exports = rest;
        }
        if let Some(left_out) = left_out.filter(|_| !args.input.json) {
            eprintln!("{}", left_out_text(&left_out));
        }
        if let Some(filtered) = filtered.filter(|_| !args.input.json) {
            eprintln!("{}", filtered_text(&filtered));
        }
        return Ok(verdict(&checker.report()));
    }
    let mut export = ExportConsumer::create(format, &output, options, stop.clone())?;
    let Passed {
        filtered, left_out, ..
    } = read(&mut checker, &mut export)?;
    let exported = export.commit()?;
    if args.input.json {
        print_json(&OfFiltered {
            result: &exported,
            filter: filtered.as_ref(),
            filtered: left_out.as_ref(),
        })?;
    } else {
        if args.output.as_os_str() != "-" {
            match only_regions {
                true => eprintln!(
                    "{}: reports of regions, {} bytes",
                    exported.output, exported.bytes
                ),
                false => eprintln!("{}", text(&exported)),
            }
        }
        if let Some(left_out) = &left_out {
            eprintln!("{}", left_out_text(left_out));
        }
        if let Some(filtered) = &filtered {
            eprintln!("{}", filtered_text(filtered));
        }
    }
    Ok(verdict(&checker.report()))
}

/// Puts a pass's files in place and reports them. Returns the processes that are left for the
/// next pass.
fn tell_processes<'t>(
    args: &ExportArgs,
    exports: ProcessExports<'t>,
    (filter, filtered): (Option<&Filtered>, Option<&LeftOut>),
) -> anyhow::Result<Option<ProcessExports<'t>>> {
    let (processes, rest) = exports.commit()?;
    for process in &processes {
        if args.input.json {
            let result = process;
            print_json(&OfFiltered {
                result,
                filter,
                filtered,
            })?;
        } else {
            eprintln!("{} ({})", text(&process.exported), process.comm);
        }
    }
    Ok(rest)
}

fn text(exported: &Exported) -> String {
    format!(
        "{}: {} references to {} pages; {}",
        exported.output,
        grouped(exported.references),
        grouped(exported.pages.into()),
        match (exported.counts_pages, exported.freeing) {
            (false, Freeing::Freed) => "it records when pages are freed",
            (false, Freeing::Kept) => "it does not record when pages are freed",
            (true, Freeing::Freed) => "freed pages leave the working sets",
            (true, Freeing::Kept) => "freed pages stay in the working sets",
        }
    )
}
