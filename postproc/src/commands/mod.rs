//! The subcommands: arguments, and what is printed.

mod advise;
mod check;
mod compare;
mod damon;
mod dataset;
mod events;
mod export;
mod info;
mod man;
mod maps;
mod measure;
mod pack;
mod recover;
mod reduce;
mod regions;
mod report;
mod screen;
mod select;
mod signals;
mod simulate;
mod split;
mod summary;

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use crate::canon::PageMode;
use crate::check::{CheckOptions, CheckReport, Checker};
use crate::error::Error;
use crate::export::before_endings;
use crate::filter::{Clause, Filter, Filtered, LeftOut};
use crate::import::{self, Import, ImportEntry};
use crate::pipeline::{self, Consumer, Freeing, Outcome};
use crate::select::Where;
use crate::sim::Access;
use crate::streams::{Selected, Selection};
use crate::trace::{Piece, Trace};
use crate::virtual_time::InVirtualTime;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use rust_mm_trace::amount::{Size, time};
use rust_mm_trace::filter::Subject;
use serde::Serialize;

use self::screen::{Opening, Progress};
use self::select::{NoBegin, NoMapping, NoReferences, NoWhere, Which};

/// Exit code: the trace failed its checks.
pub const BAD_TRACE: u8 = 1;
/// Exit code: usage, or input or output failed.
pub const FAILED: u8 = 2;

/// Exit code: a run needs more memory than `compare --fail-above` permits.
pub const NEEDS_MORE: u8 = 3;

/// Checks kVMTrace's traces, simulates page-replacement policies with them, and writes
/// reports and input for other simulators
#[derive(Parser)]
#[command(
    version,
    after_help = "Exit codes:\n  \
        0    good\n  \
        1    the trace failed its checks\n  \
        2    wrong usage, or input or output failed\n  \
        3    more memory is needed than compare --fail-above permits\n  \
        129  ended by SIGHUP\n  \
        130  ended by SIGINT (Ctrl-C)\n  \
        143  ended by SIGTERM\n\
        Each of these signals ends every command within a second. No temporary file remains,\n\
        and each output file is either complete or absent.\n\n\
        Examples:\n  \
        postproc check run.vmt\n  \
        ssh guest cat /mnt/run.vmt | postproc check -\n  \
        postproc report run.vmt -o run.html\n  \
        postproc damon run.vmt --sampling 5ms --aggregation 100ms\n  \
        postproc regions regions.vmt\n  \
        postproc simulate run.vmt --policy lru --size 1000,2000,4000\n  \
        postproc advise run.vmt --slack 1%\n  \
        postproc compare base.vmt new.vmt --fail-above 5%\n  \
        postproc export run.vmt --where 'comm == \"cc1\" && kind == write' --format csv -o cc1.csv\n  \
        postproc export run.vmt --format oracleGeneral -o run.oracleGeneral.zst\n  \
        postproc reduce run.vmt --method sad --size 4096 -o run.sad.csv.zst\n  \
        postproc pack run.vmt --zstd -o small.vmt\n  \
        postproc split run.vmt --by size=64MiB -o pieces"
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Info(info::InfoArgs),
    Events(events::EventsArgs),
    Maps(maps::MapsArgs),
    Check(check::CheckArgs),
    Simulate(simulate::SimulateArgs),
    Advise(advise::AdviseArgs),
    Compare(compare::CompareArgs),
    Export(export::ExportArgs),
    Dataset(dataset::DatasetArgs),
    Summary(summary::SummaryArgs),
    Merge(summary::MergeArgs),
    Reduce(reduce::ReduceArgs),
    Pack(pack::PackArgs),
    Unpack(pack::UnpackArgs),
    Recover(recover::RecoverArgs),
    Split(split::SplitArgs),
    Join(split::JoinArgs),
    Report(report::ReportArgs),
    Damon(damon::DamonArgs),
    Regions(regions::RegionsArgs),
    /// Print shell completions
    #[command(
        after_help = "Example:\n  postproc completions bash > /etc/bash_completion.d/postproc"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    Man(man::ManArgs),
}

#[derive(Args)]
struct Input {
    /// The trace: a file, a block device or a pipe; `-` is standard input. It may be compressed by
    /// Zstandard. A directory has the pieces of a trace, and is read as that trace
    trace: PathBuf,
    /// Print JSON on standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    windows: Windows,
}

impl Input {
    /// Applies `one` to the trace, or to those of its windows that the user asked for.
    fn each(
        &self,
        one: impl FnMut(&Trace) -> anyhow::Result<ExitCode>,
    ) -> anyhow::Result<ExitCode> {
        self.windows.each(&self.trace, one)
    }
}

/// Whether a command has refused a window because it has no references.
fn is_of_regions(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::OnlyRegions { .. }))
}

/// Which part of a trace is meant.
#[derive(Args)]
struct Windows {
    /// Read only window K, as a trace by itself; the first window is 0
    #[arg(long, value_name = "K", conflicts_with = "per_window")]
    window: Option<u32>,
    /// Read each window as a trace by itself, one after the other; windows of regions are left out
    /// where references are needed
    #[arg(long)]
    per_window: bool,
}

impl Windows {
    /// Applies `one` to the trace in `path`, or to those of its windows that the user asked
    /// for. Returns the first exit code that is not success.
    fn each(
        &self,
        path: &Path,
        mut one: impl FnMut(&Trace) -> anyhow::Result<ExitCode>,
    ) -> anyhow::Result<ExitCode> {
        let trace = Trace::open_watched(path, &mut Opening::default())?;
        if let Some(number) = self.window {
            return one(&trace.only_window(number)?);
        }
        if !self.per_window {
            return one(&trace);
        }
        let numbers = trace.window_numbers();
        if numbers.is_empty() {
            trace.only_window(0)?;
        }
        let mut code = ExitCode::SUCCESS;
        for number in numbers {
            if screen::stop_flag().load(Ordering::Relaxed) {
                return Err(Error::Interrupted.into());
            }
            let of_this = match one(&trace.only_window(number)?) {
                Err(e) if is_of_regions(&e) => continue,
                of_this => of_this?,
            };
            if code == ExitCode::SUCCESS {
                code = of_this;
            }
        }
        Ok(code)
    }

    /// Refuses the options about windows for another program's trace, which has none.
    fn none_in(&self, format: &str) -> anyhow::Result<()> {
        if self.window.is_some() || self.per_window {
            anyhow::bail!(
                "a trace of format {format} has no windows: leave out --window and --per-window"
            );
        }
        Ok(())
    }

    /// The output file for `trace`. If each window gets a file, the window's number stands
    /// before the endings of the name.
    fn output(&self, path: &Path, trace: &Trace) -> PathBuf {
        let Some(number) = trace.window().filter(|_| self.per_window) else {
            return path.into();
        };
        before_endings(path, &number.to_string())
    }
}

/// A trace's name, with its window.
fn name_of(trace: &Trace) -> String {
    let path = trace.path().display();
    match trace.window() {
        Some(number) => format!("{path}, window {number}"),
        None => path.to_string(),
    }
}

/// Another program's trace.
#[derive(Args)]
struct Foreign {
    /// Read another program's trace, which has this format; `-` is standard input
    #[arg(long, value_name = "FORMAT", value_parser = import_names(), conflicts_with_all = ["allow_loss"])]
    from: Option<String>,
    /// Size of a page in bytes, for another program's trace
    #[arg(long, value_name = "BYTES", default_value_t = 4096, requires = "from", value_parser = page_size)]
    page_size: u64,
}

fn import_names() -> PossibleValuesParser {
    let named = |f: &ImportEntry| PossibleValue::new(f.id).help(f.about);
    PossibleValuesParser::new(import::registry().iter().map(named))
}

fn page_size(text: &str) -> Result<u64, String> {
    match Size::read_bytes(text)? {
        size if size.is_power_of_two() && size <= 1 << 30 => Ok(size),
        _ => Err("expected a power of two, at most 1GiB".into()),
    }
}

impl Foreign {
    /// Opens the trace, if another program wrote it.
    fn open(&self, path: &Path) -> anyhow::Result<Option<Import>> {
        let Some(name) = &self.from else {
            return Ok(None);
        };
        let format = import::registry()
            .iter()
            .find(|f| f.id == *name)
            .ok_or_else(|| anyhow::anyhow!("no format is called {name}"))?;
        let page_shift = self.page_size.trailing_zeros();
        Ok(Some(Import::open(format, path, page_shift)?))
    }
}

#[derive(Args)]
struct Waivers {
    /// Accept a trace that lost records, if the losses are counted
    #[arg(long)]
    allow_loss: bool,
}

impl Waivers {
    fn options(&self, examples: usize) -> CheckOptions {
        CheckOptions {
            allow_loss: self.allow_loss,
            examples,
        }
    }
}

/// How a trace is checked in the pass that uses it.
#[derive(Args)]
struct Checks {
    /// Do not check the records: apply only the rules about the file as such
    ///
    /// Without this option, every rule of `postproc check` is applied in the same pass.
    #[arg(long)]
    trust: bool,
    #[command(flatten)]
    waivers: Waivers,
}

impl Checks {
    fn checker(&self) -> Checker {
        let options = self.waivers.options(3);
        match self.trust {
            true => Checker::integrity(options),
            false => Checker::new(options),
        }
    }
}

/// What happens to freed pages.
#[derive(Args)]
struct Keeping {
    /// Keep freed pages in memory until the policy replaces them
    ///
    /// Without this option, a page leaves memory when it is freed: by munmap(),
    /// MADV_DONTNEED, exec or exit, once no process maps the page any more; or by
    /// truncation or deletion of its file. libCacheSim and older papers assume that
    /// freed pages stay. With this option, `export` and `reduce` do not record which
    /// pages are freed.
    #[arg(long)]
    keep_freed: bool,
}

impl Keeping {
    /// The accesses of a block of another program's trace that count.
    fn of<'a>(&self, accesses: &'a [Access]) -> Cow<'a, [Access]> {
        match self.keep_freed {
            true => accesses
                .iter()
                .copied()
                .filter(|a| a.is_reference())
                .collect(),
            false => accesses.into(),
        }
    }

    fn freeing(&self) -> Freeing {
        match self.keep_freed {
            true => Freeing::Kept,
            false => Freeing::Freed,
        }
    }
}

fn clause_of_events(text: &str) -> Result<Clause, String> {
    Clause::parse(text, Subject::Events)
}

/// A result, and what the filter of `--where` has kept for it.
#[derive(Serialize)]
struct OfFiltered<'a, T: Serialize> {
    #[serde(flatten)]
    result: &'a T,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<&'a Filtered>,
    /// What the kernel's filter has left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    filtered: Option<&'a LeftOut>,
}

/// What a filter has kept, in words.
fn filtered_text(filtered: &Filtered) -> String {
    format!(
        "{}: {} of {} references kept, {} left out",
        filtered.by,
        screen::grouped(filtered.kept),
        screen::grouped(filtered.kept.saturating_add(filtered.left_out)),
        screen::grouped(filtered.left_out)
    )
}

/// Refuses to go on with nothing.
fn keeps_some(filtered: &Filtered) -> anyhow::Result<()> {
    anyhow::ensure!(
        filtered.kept > 0 || filtered.left_out == 0,
        "{}",
        filtered.keeps_none(&filtered.by, screen::grouped)
    );
    Ok(())
}

/// What the kernel's filter has left out, in words.
fn left_out_text(left_out: &LeftOut) -> String {
    left_out.text(screen::grouped)
}

/// Why references to several sets have no bounds together.
const SEVERAL_SETS: &str = "the references are to several sets. A reference is in the trace if the \
                            page was not in its own set, which says nothing about how many pages \
                            of other sets were referenced since. So what one memory for all would \
                            do has no proven bounds. --set NUMBER takes the references to one set, \
                            whose results have bounds";

/// Says on standard error that references to several sets are read together.
fn warn_of_several_sets() {
    note!("warning: {SEVERAL_SETS}");
}

/// Says on standard error that a piece does not begin with an empty set, if it does not, and what
/// that means for a result.
fn warn_of_piece(trace: &Trace, so: &str) {
    if trace.piece().is_some_and(Piece::begins_blindly) {
        note!(
            "warning: {} is a piece that begins in the middle of a trace or a window. Pages \
             that were enabled before are referenced without a record, so {so}",
            trace.path().display()
        );
    }
    if trace.is_partial() && so == NO_BOUNDS {
        note!("warning: {}: {PART}", trace.path().display());
    }
}

/// What a piece means for simulated misses.
const NO_BOUNDS: &str = "results have no proven bounds. The directory with all pieces has them, and so \
                         have pieces of whole windows";

/// Why the references of a part have no bounds.
const PART: &str = "this is the part of one process. The bounds follow from the references of all \
                    pages of a set, so results of a part have no proven bounds";

/// Why references that a filter keeps have no bounds.
fn why_filtered(filtered: &Filtered) -> &'static str {
    match filtered.by == "--where" {
        true => {
            "--where leaves references out. The bounds follow from the references of all pages of a \
             set, so those that are left have no proven bounds. A trace with a set for each process or \
             control group (--set-per) has them: select the set by --set NUMBER"
        }
        false => {
            "the selection leaves references out. The bounds follow from the references of all pages of a \
             set, so those that are left have no proven bounds. A trace with a set for each process or \
             control group (--set-per) has them: select the set by --set NUMBER"
        }
    }
}

/// Why references of a trace with a filter have no bounds.
const LEFT_OUT: &str = "a filter of the kernel has left references out of the trace. The bounds follow \
                        from the references of all pages of a set, so those that are left have no \
                        proven bounds";

/// What a reading has given.
struct Passed {
    outcome: Outcome,
    /// References that the consumer got.
    references: u64,
    /// What the filter has kept, if there is one.
    filtered: Option<Filtered>,
    /// What the kernel's filter has left out, if the trace may have one.
    left_out: Option<LeftOut>,
}

/// How a trace is read.
struct Reading {
    mode: PageMode,
    freeing: Freeing,
    /// The references to read, if not all.
    selection: Option<Selection>,
    /// Which of these to read, if not all.
    clause: Option<Clause>,
    in_virtual_time: bool,
}

impl Reading {
    /// Reads the trace once for `consumer`, and for the consumers `beside` it, which always
    /// get the whole trace.
    fn run(
        &self,
        trace: &Trace,
        progress: &mut Progress,
        beside: &mut [&mut dyn Consumer],
        consumer: &mut dyn Consumer,
    ) -> anyhow::Result<Passed> {
        if self.selection.is_none() && self.clause.is_none() {
            let outcome = self.pass(trace, progress, beside, consumer)?;
            return Ok(Passed {
                references: outcome.world.references,
                left_out: LeftOut::of(trace, &outcome.world.filters),
                outcome,
                filtered: None,
            });
        }
        let filter = self.clause.as_ref().map(Filter::new);
        let mut selected = Selected::filtered(self.selection, filter, consumer);
        let outcome = self.pass(trace, progress, beside, &mut selected)?;
        let (references, filtered) = (selected.references(), selected.kept());
        if let Some(filtered) = filtered.as_ref().filter(|_| references == 0) {
            keeps_some(filtered)?;
        }
        match self.selection {
            Some(Selection::Process(pid)) if references == 0 => anyhow::bail!(
                "process {} has no reference in the trace; `postproc report` and \
                 `postproc export --per-process` list the processes",
                pid.0
            ),
            Some(Selection::Set(set)) if references == 0 => anyhow::bail!(
                "set {set} has no reference in the trace; `postproc info` lists the sets"
            ),
            _ => Ok(Passed {
                left_out: LeftOut::of(trace, &outcome.world.filters),
                outcome,
                references,
                filtered,
            }),
        }
    }

    fn pass(
        &self,
        trace: &Trace,
        progress: &mut Progress,
        beside: &mut [&mut dyn Consumer],
        consumer: &mut dyn Consumer,
    ) -> crate::error::Result<Outcome> {
        let mut virtually;
        let consumer: &mut dyn Consumer = if self.in_virtual_time {
            virtually = InVirtualTime::new(consumer);
            &mut virtually
        } else {
            consumer
        };
        let mut consumers: Vec<&mut dyn Consumer> = Vec::with_capacity(beside.len() + 1);
        for other in beside {
            consumers.push(&mut **other);
        }
        consumers.push(consumer);
        pipeline::run_with(trace, self.mode, self.freeing, progress, &mut consumers)
    }
}

/// Parses a time of whole microseconds.
fn microseconds(text: &str) -> Result<u64, String> {
    let ns = time(text).ok_or("expected a time with its unit (250us, 1.5ms, 2s, 2min)")?;
    // A trace's times are below 2^64 ns.
    match (ns / 1000, ns % 1000) {
        (time @ 1..=1_000_000_000_000, 0) => Ok(time),
        (1..=1_000_000_000_000, _) => Err("expected a whole number of microseconds".into()),
        _ => Err("expected 1us to 1000000s".into()),
    }
}

/// What counts as one page.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pages {
    /// The page itself, no matter how many processes map it
    Canonical,
    /// Each page of each address space, even if several share its content
    Virtual,
}

impl From<Pages> for PageMode {
    fn from(pages: Pages) -> Self {
        match pages {
            Pages::Canonical => PageMode::Canonical,
            Pages::Virtual => PageMode::Virtual,
        }
    }
}

/// The clock that the times of references are from.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Time {
    /// The system's clock
    Real,
    /// The time that all traced tasks together spent in user mode. The kernel, other
    /// programs and the cost of tracing do not count. The trace must have been made with
    /// --virtual-time
    Virtual,
}

impl Time {
    /// Whether the time is virtual. Refuses a trace that has no virtual time.
    fn is_virtual(self, trace: &Trace) -> anyhow::Result<bool> {
        if self == Time::Virtual && !trace.header().has_vtime() {
            anyhow::bail!(
                "{}: the trace has no virtual time; `activator run --virtual-time` makes a trace \
                 that has it",
                trace.path().display()
            );
        }
        Ok(self == Time::Virtual)
    }
}

/// The name of the command that people have called, if it is not `postproc`.
static NAME: OnceLock<&'static str> = OnceLock::new();

/// What messages begin with.
pub(crate) fn own_name() -> &'static str {
    NAME.get().copied().unwrap_or("postproc")
}

/// A message with its commands under the name that people have called.
fn named(text: &str) -> String {
    match own_name() {
        "postproc" => text.into(),
        name => ["`postproc ", "`activator "]
            .iter()
            .fold(text.into(), |text, other| {
                text.replace(other, &format!("`{name} "))
            }),
    }
}

/// Prints a message on standard error.
macro_rules! note {
    ($($arg:tt)*) => {
        eprintln!("{}: {}", $crate::commands::own_name(), $crate::commands::named(&format!($($arg)*)))
    };
}
use note;

/// Does what the command line `args` asks for; the calling process has one thread.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    signals::watch();
    execute(Cli::parse_from(args), Cli::command())
}

/// Does what a command line asks for; the calling process has one thread. `whole` is the command
/// with all subcommands, for manual pages and completions; messages begin with its name.
pub fn execute_as(cli: Cli, whole: clap::Command) -> ExitCode {
    // The first name stays.
    let _ = NAME.set(whole.get_name().to_owned().leak());
    signals::watch();
    execute(cli, whole)
}

fn execute(cli: Cli, whole: clap::Command) -> ExitCode {
    let error = match run(cli, whole) {
        Ok(code) => return code,
        Err(error) => error,
    };
    // After a signal, an error may be a mere consequence of it.
    if let Some(code) = signals::exit_code() {
        eprintln!("{}", signals::message());
        return ExitCode::from(code);
    }
    match error.downcast_ref::<Error>() {
        // The reader of the output has closed its end, as `head` does.
        Some(e) if e.is_broken_pipe() => ExitCode::SUCCESS,
        _ => {
            note!("{error:#}");
            ExitCode::from(FAILED)
        }
    }
}

/// Runs a subcommand.
fn run(cli: Cli, mut whole: clap::Command) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Info(args) => info::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Maps(args) => maps::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Dataset(args) => dataset::run(&args),
        Command::Summary(args) => summary::run(&args),
        Command::Merge(args) => summary::run_merge(&args),
        Command::Reduce(args) => reduce::run(&args),
        Command::Pack(args) => pack::pack(&args),
        Command::Unpack(args) => pack::unpack(&args),
        Command::Recover(args) => recover::run(&args),
        Command::Split(args) => split::run(&args),
        Command::Join(args) => split::run_join(&args),
        Command::Report(args) => report::run(&args),
        Command::Damon(args) => damon::run(&args),
        Command::Regions(args) => regions::run(&args),
        Command::Man(args) => man::run(&args, whole),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            let name = whole.get_name().to_owned();
            clap_complete::generate(shell, &mut whole, name, &mut script);
            screen::print(&script)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Does `work` with each trace, and `then` with what `work` gives. If one of several traces fails, the
/// others are done nevertheless. `done` is what a message says of a trace, such as "added". Returns the
/// exit code.
///
/// # Errors
///
/// The error of the only trace; that of a signal; those of `then`.
fn for_each_trace<T>(
    paths: &[PathBuf],
    done: &str,
    mut work: impl FnMut(&Path) -> anyhow::Result<(T, ExitCode)>,
    mut then: impl FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    let mut failed = 0;
    for path in paths {
        match work(path) {
            Ok((result, of_this)) => {
                then(result)?;
                if of_this != ExitCode::SUCCESS {
                    code = ExitCode::from(BAD_TRACE);
                }
            }
            Err(error) if paths.len() == 1 => return Err(error),
            Err(error) => {
                if let Some(Error::Interrupted) = error.downcast_ref() {
                    return Err(error);
                }
                note!("{error:#}");
                failed += 1;
            }
        }
    }
    if failed > 0 {
        note!("{failed} of {} traces were not {done}", paths.len());
        code = ExitCode::from(FAILED);
    }
    Ok(code)
}

/// Reports on standard error what is wrong with a trace that was used nevertheless.
/// Returns the exit code.
fn verdict(report: &CheckReport) -> ExitCode {
    for rule in &report.rules {
        for finding in &rule.examples {
            note!(
                "{}: {}: {}",
                finding.severity.name(),
                finding.rule,
                finding.message
            );
        }
    }
    if report.good {
        ExitCode::SUCCESS
    } else {
        note!("the trace failed its checks: the results may be wrong");
        ExitCode::from(BAD_TRACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_for_each_window() {
        let mut builder = crate::testing::TraceBuilder::new(1, 4);
        builder.begin_window(1);
        builder.end_window(|_| {});
        let trace = Trace::from_bytes("t", builder.finish()).expect("a trace");
        let first = trace.only_window(0).expect("there");
        let windows = |per_window| Windows {
            window: None,
            per_window,
        };
        let named = |per_window: bool, path: &str, trace: &Trace| {
            let path = windows(per_window).output(Path::new(path), trace);
            path.display().to_string()
        };
        assert_eq!(
            named(true, "/a.b/run.csv.zst", &first),
            "/a.b/run.0.csv.zst"
        );
        assert_eq!(named(true, "run", &first), "run.0");
        assert_eq!(named(true, ".run", &first), ".run.0");
        assert_eq!(named(false, "run.csv", &first), "run.csv");
        assert_eq!(named(true, "run.csv", &trace), "run.csv");
        assert_eq!(name_of(&first), "t, window 0");
        assert!(windows(true).none_in("lackey").is_err());
    }

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
