//! `postproc summary` and `postproc merge`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::report::{bytes_text, printable};
use crate::summary::{
    Mapped, Rows, Stored, Sum, Summary, Threads, Wanted, demand_times, read_table,
};
use crate::trace::Trace;
use anyhow::Context;
use clap::Args;

use super::screen::{Opening, Progress, grouped, numbered, print, stop_flag};
use super::{Checks, FAILED, Where, for_each_trace, note, verdict};

/// Summarize traces: a row for each, which `postproc merge` adds up
///
/// A row has the trace's figures, its losses and the verdict of the rules; the misses of all sizes of
/// memory under LRU and OPT, and working sets, as histograms; and what is mapped, with its references and
/// pages. If a trace cannot be read, the others are summarized nevertheless. docs/fleet.md describes the
/// fields.
///
/// A selection is recorded in each row. The row's references, pages, misses, working sets and mappings are
/// then those of the references that are selected, and --since and --until also give its duration. Losses,
/// events and the verdict are those of the whole trace. Rows of different selections are never added up.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc summary run.vmt\n  \
    postproc summary web-*.vmt --host web -o web.ndjson\n  \
    postproc summary web-*.vmt -o web.parquet\n  \
    postproc summary web-*.vmt --process sqlite3 --since 10% -o sqlite3.ndjson")]
pub struct SummaryArgs {
    /// The traces: files, or directories with the pieces of a trace
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// The output file; `-` is standard output. A name that ends in .parquet makes a table of Parquet;
    /// any other name, an object of JSON a line, which is compressed if the name ends in .zst
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// The host on which these traces were made: a trace does not have it
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    #[command(flatten)]
    only: Where,
    #[command(flatten)]
    checks: Checks,
}

/// Add up summaries of traces
///
/// The result is that of all traces together: each trace has a memory of its own, and the misses of all
/// of them are added. It is exact, whatever the order, and can be added up again.
///
/// Rows of `kvmtrace.fleet` that have no summary, because their traces could not be read, are left out. All
/// others are added up nevertheless, and the exit code is 2.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc summary web-*.vmt -o web.ndjson\n  \
    postproc merge web.ndjson\n  \
    postproc merge web.ndjson -o all.ndjson\n  \
    postproc summary db-*.vmt -o db.parquet\n  \
    postproc merge db.parquet --json")]
pub struct MergeArgs {
    /// The summaries: files that `postproc summary` or `postproc merge` has written, as lines of JSON or
    /// as tables of Parquet; `-` is standard input
    ///
    /// Rows of `kvmtrace.fleet` that Spark has written as Parquet are read, too. A directory stands for
    /// its files .parquet.
    #[arg(required = true)]
    summaries: Vec<PathBuf>,
    /// Print the summary as JSON on standard output
    #[arg(long)]
    json: bool,
    /// Write the summary to a file, as `postproc summary` does
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(args: &SummaryArgs) -> anyhow::Result<ExitCode> {
    demand_times(&args.only)?;
    let mut rows = Rows::create(&args.output)?;
    let code = for_each_trace(
        &args.traces,
        "summarized",
        |path| summarize(args, path),
        |summary| Ok(rows.add(&summary)?),
    )?;
    rows.finish()?;
    Ok(code)
}

fn summarize(args: &SummaryArgs, path: &Path) -> anyhow::Result<(Summary, ExitCode)> {
    let trace = Trace::open_watched(path, &mut Opening::default())?;
    trace.demand_references()?;
    let checker = args.checks.checker();
    let mut progress = Progress::new("summarizing", stop_flag());
    let chosen = args.only.chosen(&trace)?;
    let wanted = Wanted {
        host: args.host.as_deref(),
        chosen: chosen.as_ref(),
        threads: Threads::Several,
    };
    let (summary, report) = Summary::of(&trace, &wanted, checker, &mut progress)?;
    drop(progress);
    Ok((summary, verdict(&report)))
}

/// What a table of Parquet begins with.
const PARQUET: &[u8] = b"PAR1";

pub fn run_merge(args: &MergeArgs) -> anyhow::Result<ExitCode> {
    let mut sum = Sum::default();
    let mut code = ExitCode::SUCCESS;
    for path in &args.summaries {
        for file in files(path)? {
            if !add_file(&mut sum, &file)? {
                code = ExitCode::from(FAILED);
            }
        }
    }
    let sum = sum.summary();
    anyhow::ensure!(sum.traces > 0, "there is no summary to add up");
    if let Some(path) = &args.output {
        let mut rows = Rows::create(path)?;
        rows.add(sum)?;
        rows.finish()?;
    }
    if args.json {
        let mut line = serde_json::to_vec(sum)?;
        line.push(b'\n');
        print(&line)?;
    } else if args.output.is_none() {
        print(text(sum)?.as_bytes())?;
    }
    Ok(code)
}

/// Whether the path stands for standard input, although there may be a file of this name.
fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// The file itself, or the tables of a directory: programs such as Spark write a table as a directory.
fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if is_stdin(path) || !path.is_dir() {
        return Ok(vec![path.into()]);
    }
    let name = path.display();
    let entries = path
        .read_dir()
        .and_then(|entries| entries.collect::<io::Result<Vec<_>>>())
        .with_context(|| format!("cannot read {name}"))?;
    let is_part = |path: &PathBuf| {
        let is_hidden = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b".");
        path.extension().is_some_and(|ending| ending == "parquet")
            && !path.file_name().is_some_and(is_hidden)
            && path.is_file()
    };
    let paths = entries.into_iter().map(|entry| entry.path());
    let mut parts: Vec<PathBuf> = paths.filter(is_part).collect();
    parts.sort();
    anyhow::ensure!(
        !parts.is_empty(),
        "{name} is a directory without files .parquet: give files that `postproc summary` has written, \
         or the directory of a table"
    );
    Ok(parts)
}

/// Adds the summaries of a file. Returns whether each row has one.
fn add_file(sum: &mut Sum, path: &Path) -> anyhow::Result<bool> {
    let name = match is_stdin(path) {
        true => "standard input".into(),
        false => path.display().to_string(),
    };
    let cannot_read = || format!("cannot read {name}");
    let mut content = open(path).with_context(cannot_read)?;
    let is_table = content.fill_buf().with_context(cannot_read)?;
    if !is_table.starts_with(PARQUET) {
        return add_lines(sum, &name, content).map(|()| true);
    }
    let (mut left_out, mut first) = (0u64, None);
    let add = |row| match row {
        Stored::Summary(summary, id) => sum.add_trace(&summary, id.as_deref()),
        Stored::NoSummary(why) => {
            left_out += 1;
            first = first.take().or(why);
            Ok(())
        }
    };
    // The end of a table is read first.
    let added = match is_plain(path) {
        true => read_table(File::open(path).with_context(cannot_read)?, add),
        false => {
            let mut table = Vec::new();
            content.read_to_end(&mut table).with_context(cannot_read)?;
            read_table(bytes::Bytes::from(table), add)
        }
    };
    added.map_err(|why| anyhow::anyhow!("{name}: {why}"))?;
    let first = first.map(|why| printable(&why, 400)).unwrap_or_default();
    match (left_out, first.is_empty()) {
        (0, _) => {}
        (1, true) => note!("{name}: 1 row has no summary and is left out"),
        (1, false) => note!("{name}: 1 row has no summary and is left out: {first}"),
        (more, true) => note!(
            "{name}: {} rows have no summary and are left out",
            grouped(more)
        ),
        (more, false) => note!(
            "{name}: {} rows have no summary and are left out; the first error is: {first}",
            grouped(more)
        ),
    }
    Ok(left_out == 0)
}

fn add_lines(sum: &mut Sum, name: &str, lines: impl BufRead) -> anyhow::Result<()> {
    for (number, line) in (1..).zip(lines.lines()) {
        let line = line.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => anyhow::anyhow!(
                "{name}, line {number} is no text: give the lines of JSON or the table of Parquet that \
                 `postproc summary` has written"
            ),
            _ => anyhow::Error::new(error).context(format!("cannot read {name}")),
        })?;
        if line.trim().is_empty() {
            continue;
        }
        let at = || format!("{name}, line {number}");
        let summary: Summary = serde_json::from_str(&line)
            .with_context(|| format!("{} is no summary of traces", at()))?;
        let added = sum.add(&summary);
        added.map_err(|why| anyhow::anyhow!("{}: {why}", at()))?;
    }
    Ok(())
}

/// Whether a file is one that is not compressed as a whole.
fn is_plain(path: &Path) -> bool {
    !is_stdin(path) && path.is_file() && path.extension().is_none_or(|ending| ending != "zst")
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    if is_stdin(path) {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(path)?;
    Ok(
        match path.extension().is_some_and(|ending| ending == "zst") {
            true => Box::new(BufReader::new(zstd::Decoder::new(file)?)),
            false => Box::new(BufReader::new(file)),
        },
    )
}

/// Rows of each table, at most.
const ROWS: usize = 25;

fn text(sum: &Summary) -> Result<String, std::fmt::Error> {
    let mut t = String::new();
    let page_size = sum.page_size;
    writeln!(
        t,
        "{}: {} good, {} complete, {} lost",
        numbered(sum.traces, "trace"),
        grouped(sum.good),
        grouped(sum.complete),
        numbered(sum.lost, "record")
    )?;
    writeln!(
        t,
        "{} to {} ({}), {}",
        numbered(sum.references, "reference"),
        numbered(sum.pages, "page"),
        bytes_text(sum.pages.saturating_mul(page_size)),
        numbered(sum.events, "event")
    )?;
    if let Some(selection) = &sum.selection {
        writeln!(t, "selected by {}", printable(selection, 160))?;
    }
    writeln!(
        t,
        "\nMisses, if each trace has a memory of this size to itself:"
    )?;
    writeln!(
        t,
        "  {:>12}  {:>10}  {:>15}  {:>15}",
        "pages", "size", "LRU", "OPT"
    )?;
    let last = sum.lru.footprint;
    let sizes = (0..64)
        .map(|power| 1u64 << power)
        .take_while(|&size| size < last);
    for size in sizes.chain([last]) {
        writeln!(
            t,
            "  {:>12}  {:>10}  {:>15}  {:>15}",
            grouped(size),
            bytes_text(size.saturating_mul(page_size)),
            grouped(sum.lru.at(size)),
            grouped(sum.opt.at(size))
        )?;
    }
    writeln!(t, "\nWorking sets, in pages:")?;
    writeln!(t, "  {:>12}  {:>12}  {:>12}", "τ", "mean", "largest")?;
    for set in &sum.working_sets {
        writeln!(
            t,
            "  {:>12}  {:>12.1}  {:>12}",
            format!("{:?}", std::time::Duration::from_nanos(set.tau_ns)),
            set.pages as f64 / set.samples.max(1) as f64,
            grouped(set.most_pages)
        )?;
    }
    writeln!(t, "\nMost memory:")?;
    writeln!(
        t,
        "  {:>10}  {:>8}  {:>15}  name",
        "size", "traces", "references"
    )?;
    let mut mapped: Vec<&Mapped> = sum.mapped.iter().collect();
    mapped.sort_by_key(|m| std::cmp::Reverse(m.bytes));
    for m in mapped.iter().take(ROWS) {
        writeln!(
            t,
            "  {:>10}  {:>8}  {:>15}  {}",
            bytes_text(m.bytes),
            grouped(m.traces),
            grouped(m.references),
            printable(&m.name, 60)
        )?;
    }
    Ok(t)
}
