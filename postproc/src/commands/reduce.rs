//! `postproc reduce`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::amount::MemorySize;
use crate::error::Result;
use crate::filter::{Filtered, LeftOut};
use crate::pipeline::{Batch, Consumer, World};
use crate::reduce::{self, MethodEntry, Reduced, Reduction};
use crate::sim::{Access, Footprint, push_accesses, push_freed};
use crate::trace::Trace;
use crate::units::CanonPage;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};

use super::screen::{Progress, grouped, print_json, stop_flag};
use super::{
    Checks, Foreign, Input, Keeping, NO_BOUNDS, OfFiltered, Pages, Reading, Which, filtered_text,
    left_out_text, verdict, warn_of_piece, warn_of_several_sets,
};

/// Leave out references that make no difference for memories of K pages and more
///
/// Writes a csv of pages and kinds of access, which `simulate` and `report` read (--from
/// csv). The first line of the csv is JSON: the method, and the smallest memory for which
/// the reduced trace can replace the full one. In memories of K pages and more, sad
/// preserves the misses and write-backs of LRU and OPT, and olr preserves the misses of
/// LRU. In memories of 4 K pages and more, fifo and clock nearly preserve the misses of
/// LRU. The csv also records which pages were freed, unless --keep-freed is given. Another
/// page may get the number of a freed page later. A reduced trace has fewer references and
/// hits, so its hit ratio is lower.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc reduce run.vmt --method sad --size 4096 -o run.sad.csv.zst\n  \
    postproc reduce run.vmt --where 'mode == user' --method sad --size 64 -o user.sad.csv\n  \
    postproc reduce --from lackey lackey.log --method olr --size 64 -o lackey.olr.csv\n  \
    postproc simulate --from csv lackey.olr.csv --policy lru --size 64,128,256")]
#[command(
    mut_arg("trust", |trust| trust.conflicts_with("from")),
    mut_arg("process", |process| process.conflicts_with("from")),
    mut_arg("set", |set| set.conflicts_with("from"))
)]
pub struct ReduceArgs {
    #[command(flatten)]
    input: Input,
    /// The method
    #[arg(long, value_parser = method_names())]
    method: String,
    /// K: the smallest memory that the reduced trace is to be used for: 4000 (pages), 16MiB, or 0.1
    /// (of the footprint, which is the largest number of pages that exist at one time)
    #[arg(long, value_name = "SIZE")]
    size: MemorySize,
    /// The output file; `-` is standard output; a file whose name ends in .zst is compressed
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// What counts as one page
    #[arg(long, value_enum, default_value = "canonical", conflicts_with = "from")]
    pages: Pages,
    #[command(flatten)]
    foreign: Foreign,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    keeping: Keeping,
    #[command(flatten)]
    checks: Checks,
}

fn method_names() -> PossibleValuesParser {
    let named = |m: &MethodEntry| PossibleValue::new(m.id).help(m.about);
    PossibleValuesParser::new(reduce::registry().iter().map(named))
}

/// Feeds a pass's references to a reduction.
struct Reducing {
    reduction: Reduction,
    accesses: Vec<Access>,
}

impl Consumer for Reducing {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.accesses.clear();
        push_accesses(batch, &mut self.accesses);
        self.reduction.accesses(&self.accesses)
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> Result<()> {
        self.accesses.clear();
        push_freed(pages, &mut self.accesses);
        self.reduction.accesses(&self.accesses)
    }
}

pub fn run(args: &ReduceArgs) -> anyhow::Result<ExitCode> {
    let to_stdout = args.output.as_os_str() == "-";
    if to_stdout && args.input.json {
        anyhow::bail!("--json and -o - both need standard output: give -o a file");
    }
    let method = reduce::registry()
        .iter()
        .find(|m| m.id == args.method)
        .ok_or_else(|| anyhow::anyhow!("no method is called {}", args.method))?;
    if to_stdout && args.input.windows.per_window {
        anyhow::bail!("--per-window writes a file for each window: give -o a name instead of -");
    }
    let Some(import) = args.foreign.open(&args.input.trace)? else {
        return args.input.each(|trace| run_one(args, trace, method));
    };
    let format = args.foreign.from.as_deref().unwrap_or_default();
    args.input.windows.none_in(format)?;
    args.which.only.none_in(format)?;
    let size = k(args, args.foreign.page_size, || {
        anyhow::ensure!(
            args.input.trace != Path::new("-"),
            "--size: a share of the footprint needs two passes, and standard input can be read only \
             once: give a file, or pages or bytes"
        );
        let mut footprint = Footprint::default();
        let mut progress = Progress::new("counting pages", stop_flag());
        let import = args.foreign.open(&args.input.trace)?;
        let import = import.ok_or_else(|| anyhow::anyhow!("no format was named"))?;
        import.run(&mut progress, |accesses, _| {
            footprint.accesses(&args.keeping.of(accesses));
            Ok(())
        })?;
        Ok(footprint.pages())
    })?;
    let mut reduction = Reduction::create(method, size, 0, &args.output)?;
    let mut progress = Progress::new("reducing", stop_flag());
    import.run(&mut progress, |accesses, note| {
        if let Some(note) = note {
            reduction.reduced_before(note);
        }
        reduction.accesses(&args.keeping.of(accesses))
    })?;
    drop(progress);
    tell(args, &reduction.commit()?, None, None)?;
    Ok(ExitCode::SUCCESS)
}

/// The largest K, pages.
const MOST: u64 = 1 << 29;

/// K in pages; `footprint` counts the pages that exist at one time.
fn k(
    args: &ReduceArgs,
    page_size: u64,
    footprint: impl FnOnce() -> anyhow::Result<u64>,
) -> anyhow::Result<u64> {
    let footprint = match args.size.needs_footprint() {
        true => footprint()?,
        false => 0,
    };
    let size = args.size.pages(page_size, footprint);
    let size = size.map_err(|why| anyhow::anyhow!("--size: {why}"))?;
    anyhow::ensure!(size <= MOST, "--size: give at most {MOST} pages");
    Ok(size)
}

fn run_one(
    args: &ReduceArgs,
    trace: &Trace,
    method: &'static MethodEntry,
) -> anyhow::Result<ExitCode> {
    trace.demand_references()?;
    warn_of_piece(trace, NO_BOUNDS);
    let output = args.input.windows.output(&args.output, trace);
    let n = trace.header().evms_size;
    let reading = Reading {
        mode: args.pages.into(),
        freeing: args.keeping.freeing(),
        selection: args.which.selection(),
        clause: args.which.clause(trace, false, false)?,
        in_virtual_time: false,
    };
    let size = k(args, trace.header().page_size(), || {
        let mut footprint = Footprint::default();
        let mut progress = Progress::new("counting pages", stop_flag());
        reading.run(trace, &mut progress, &mut [], &mut footprint)?;
        Ok(footprint.pages())
    })?;
    let mut reducing = Reducing {
        reduction: Reduction::create(method, size, n, &output)?,
        accesses: Vec::new(),
    };
    let mut checker = args.checks.checker();
    let passed = {
        let mut progress = Progress::new("reducing", stop_flag());
        reading.run(trace, &mut progress, &mut [&mut checker], &mut reducing)?
    };
    if args.which.selection().is_none() && passed.outcome.world.has_several_sets() {
        warn_of_several_sets();
    }
    let reduced = reducing.reduction.commit()?;
    let left_out = passed.left_out.as_ref();
    tell(args, &reduced, passed.filtered.as_ref(), left_out)?;
    Ok(verdict(&checker.report()))
}

fn tell(
    args: &ReduceArgs,
    reduced: &Reduced,
    filter: Option<&Filtered>,
    filtered: Option<&LeftOut>,
) -> anyhow::Result<()> {
    if args.input.json {
        let result = reduced;
        return Ok(print_json(&OfFiltered {
            result,
            filter,
            filtered,
        })?);
    }
    if args.output.as_os_str() != "-" {
        eprintln!("{}", text(reduced));
    }
    if let Some(left_out) = filtered {
        eprintln!("{}", left_out_text(left_out));
    }
    if let Some(filtered) = filter {
        eprintln!("{}", filtered_text(filtered));
    }
    Ok(())
}

fn text(r: &Reduced) -> String {
    let why = r.why_larger();
    let why = why.map_or_else(String::new, |why| format!(", {why}"));
    format!(
        "{}: {} of {} references left (1 in {:.1}); for memories of {} pages and more{why}",
        r.output,
        grouped(r.left),
        grouped(r.references),
        r.references as f64 / r.left.max(1) as f64,
        grouped(r.note.valid_from_pages)
    )
}
