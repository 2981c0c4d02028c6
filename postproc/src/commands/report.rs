//! `postproc report`.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::available_parallelism;

use crate::canon::PageMode;
use crate::check::Checker;
use crate::filter::{Clause, Filter, Filtered, LeftOut};
use crate::pipeline;
use crate::report::{
    self, ForeignSummary, ForeignViews, Plan, PolicyLine, Report, Statistics, Views,
};
use crate::sim::measured::How;
use crate::sim::{Certificate, Certifier, Curve, CurveSimulation, LruChunks, PolicyEntry, Workers};
use crate::streams::Selected;
use crate::trace::Trace;
use crate::virtual_time::InVirtualTime;
use clap::Args;
use rust_mm_trace::uapi;

use super::note;
use super::screen::{Progress, print, print_json, stop_flag};
use super::simulate::{policies, policy_names, share};
use super::{
    BAD_TRACE, Foreign, Input, Keeping, NO_BOUNDS, Time, Waivers, Where, keeps_some, warn_of_piece,
    warn_of_several_sets,
};

/// Check a trace, and write a page of pictures and figures
///
/// Prints a summary, and writes a directory. In the directory, report.html is the page,
/// which needs no other file and no network. Each picture of the page is also written as
/// SVG, and the data of the picture as CSV and JSON. summary.txt and summary.json contain
/// the summary. If the name of the output ends in .html, writes only the page.
///
/// The page shows whether the trace is good; the fault curves of several policies; when each
/// page and each address was referenced; the working set W(t, tau); reuse distances; misses
/// and write-backs by kind of mapping; processes and mappings; and the trace's windows, or
/// slices of its time, side by side.
///
/// The trace is read twice, because policies other than LRU are simulated at sizes that
/// depend on the result of the first pass. If a simulation would take too long or too much
/// memory, it is replaced by an estimate from a sample of the pages (--sample). Estimates
/// are marked.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc report run.vmt                      # run.html\n  \
    postproc report run.vmt -o run.report        # run.report/report.html and its data\n  \
    postproc report run.vmt -o run.html          # the page alone\n  \
    postproc report run.vmt -o run.html --policy lru,opt,lirs,mglru\n  \
    postproc report run.vmt -o cc1.html --where 'comm == \"cc1\"'\n  \
    postproc report --from lackey lackey.log -o lackey.report")]
pub struct ReportArgs {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    only: Where,
    /// Directory for the files, created if it does not exist; or a name that ends in .html
    /// [default: TRACE.html beside the trace, which must not exist]
    #[arg(short, long, value_name = "DIR|FILE.html")]
    output: Option<PathBuf>,
    /// Policies of the fault curves, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "opt,lru,fifo,clock,2q,arc,mglru", value_parser = policy_names())]
    policy: Vec<String>,
    /// Simulate only this share of the pages for the policies other than LRU; 1 is all pages
    /// [default: all, unless that would take too long]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    sample: Option<f64>,
    /// The clock for the times in the pictures
    #[arg(long, value_enum, default_value = "real", conflicts_with = "from")]
    time: Time,
    #[command(flatten)]
    keeping: Keeping,
    #[command(flatten)]
    foreign: Foreign,
    #[command(flatten)]
    waivers: Waivers,
}

impl ReportArgs {
    /// Where the report goes: what was asked for, or a new page beside the trace.
    fn output(&self, trace: Option<&Trace>) -> anyhow::Result<PathBuf> {
        let named = self.output.clone();
        let path = named.unwrap_or_else(|| beside(&self.input.trace));
        let path = trace.map_or(path.clone(), |trace| {
            self.input.windows.output(&path, trace)
        });
        if self.output.is_none() {
            anyhow::ensure!(
                !path.exists(),
                "{} exists already: `postproc report -o {0}` overwrites it, and -o with another name \
                 keeps it",
                path.display()
            );
        }
        Ok(path)
    }

    /// Says where the report is, if the user did not.
    fn written(&self, path: &Path) {
        if self.output.is_none() {
            note!("the report is {}", path.display());
        }
    }

    /// The policies in the order of the request.
    fn policies(&self) -> Vec<&'static PolicyEntry> {
        let mut entries = policies(&self.policy);
        entries.sort_by_key(|entry| self.policy.iter().position(|name| name == entry.id));
        entries
    }
}

/// Whether the output is the page alone.
fn page_alone(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "html")
}

/// Endings of traces, which the name of their report does not have.
const ENDINGS: [&str; 3] = [".zst", ".vmt", ".vmtrace"];

/// The page of a trace: beside it if it is a file or a directory, or else in this directory.
fn beside(trace: &Path) -> PathBuf {
    let name = trace.file_name().map(|name| name.to_string_lossy());
    let mut name = name.filter(|name| name != "-").unwrap_or("report".into());
    for ending in ENDINGS {
        if let Some(stem) = name.strip_suffix(ending).filter(|stem| !stem.is_empty()) {
            name = stem.to_owned().into();
        }
    }
    let page = format!("{name}.html");
    match trace.is_file() || trace.is_dir() {
        true => trace.with_file_name(page),
        false => page.into(),
    }
}

/// A consumer of the references that a filter keeps, or of all.
enum Only<'c> {
    All(&'c mut dyn pipeline::Consumer),
    Kept(Box<Selected<'c>>),
}

impl<'c> Only<'c> {
    fn new(clause: Option<&Clause>, inner: &'c mut dyn pipeline::Consumer) -> Self {
        match clause.map(Filter::new) {
            None => Only::All(inner),
            filter => Only::Kept(Box::new(Selected::filtered(None, filter, inner))),
        }
    }

    fn consumer(&mut self) -> &mut dyn pipeline::Consumer {
        match self {
            Only::All(inner) => *inner,
            Only::Kept(selected) => &mut **selected,
        }
    }

    fn filtered(&self) -> Option<Filtered> {
        match self {
            Only::All(_) => None,
            Only::Kept(selected) => selected.kept(),
        }
    }
}

/// Runs the simulations of a plan; `read` reads the trace once.
fn simulate(
    plan: &Plan,
    certificate: Option<&Certificate>,
    read: impl Fn(&mut dyn super::simulate::Sink) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<PolicyLine>> {
    if plan.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(mut sampler) = plan.sampler() {
        read(&mut sampler)?;
        return Ok(plan.estimated(sampler.estimates(plan.points())));
    }
    std::thread::scope(|scope| {
        let mut workers = Workers::start(scope, plan.jobs());
        read(&mut workers)?;
        Ok(plan.lines(workers.join(), certificate))
    })
}

/// Writes the report of another program's trace.
fn run_foreign(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let path = &args.input.trace;
    let output = args.output(None)?;
    let stop = stop_flag();
    let open = || {
        let import = args.foreign.open(path)?;
        import.ok_or_else(|| anyhow::anyhow!("no format was named"))
    };
    let mut entries = args.policies();
    if path == Path::new("-") {
        // Standard input can be read only once.
        let asked = entries.len();
        entries.retain(|entry| entry.id == "lru");
        if entries.len() < asked {
            note!(
                "only lru is simulated from standard input, which can be read only once; \
                 give a file for the other policies"
            );
        }
    }
    let mut lru = LruChunks::default();
    lru.use_threads(available_parallelism().map_or(1, NonZero::get));
    let mut views = ForeignViews::default();
    let imported = {
        let mut progress = Progress::new("reading", stop.clone());
        open()?.run(&mut progress, |accesses, _| {
            let accesses = &args.keeping.of(accesses);
            views.references(accesses);
            lru.references(accesses);
            Ok(())
        })?
    };
    views.finish();
    let curve = Box::new(lru).finish();
    let plan = Plan::new(&entries, &curve, 0, args.sample);
    let others = simulate(&plan, None, |sink| {
        let mut progress = Progress::new("simulating", stop.clone());
        open()?.run(&mut progress, |accesses, _| {
            sink.accesses(&args.keeping.of(accesses));
            Ok(())
        })?;
        Ok(())
    })?;
    let lines = report::lines_of(&entries, &curve, others, None);
    let summary = ForeignSummary::new(path, imported, args.foreign.page_size, &curve);
    summary.write(&output, page_alone(&output), &views, &curve, &lines)?;
    args.written(&output);
    if args.input.json {
        print_json(&summary)?;
    } else {
        print(summary.text().as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    if let Some(format) = &args.foreign.from {
        args.input.windows.none_in(format)?;
        args.only.none_in(format)?;
        return run_foreign(args);
    }
    args.input.each(|trace| run_one(args, trace))
}

fn run_one(args: &ReportArgs, trace: &Trace) -> anyhow::Result<ExitCode> {
    trace.demand_references()?;
    warn_of_piece(trace, NO_BOUNDS);
    let stop = stop_flag();
    let freeing = args.keeping.freeing();
    let output = args.output(Some(trace))?;
    let mut checker = Checker::new(args.waivers.options(5));
    let mut statistics = Statistics::default();
    let mut certifier = Certifier::default();
    let in_virtual_time = args.time.is_virtual(trace)?;
    let mut views = if in_virtual_time {
        Views::in_virtual_time(trace)
    } else {
        Views::new(trace)
    };
    let clause = args.only.clause(trace, false, in_virtual_time)?;
    let (outcome, filtered) = {
        let mut progress = Progress::new("reading", stop.clone());
        let mut counted = Only::new(clause.as_ref(), &mut statistics);
        let mut viewed = Only::new(clause.as_ref(), &mut views);
        let mut virtually;
        let viewer: &mut dyn pipeline::Consumer = if in_virtual_time {
            virtually = InVirtualTime::new(viewed.consumer());
            &mut virtually
        } else {
            viewed.consumer()
        };
        let consumers: &mut [&mut dyn pipeline::Consumer] =
            &mut [&mut checker, counted.consumer(), &mut certifier, viewer];
        let outcome = pipeline::run_with(
            trace,
            PageMode::Canonical,
            freeing,
            &mut progress,
            consumers,
        )?;
        (outcome, counted.filtered())
    };
    if let Some(filtered) = &filtered {
        keeps_some(filtered)?;
    }
    let curve: Curve = views.reuse.curve();
    let check = checker.report();
    // The proof assumes a trace that passes its checks, and is about all its references.
    let proven = check.good && filtered.is_none();
    let certificate = certifier.certificate().filter(|_| proven);
    let entries = args.policies();
    let plan = Plan::new(&entries, &curve, trace.header().evms_size, args.sample);
    let others = simulate(&plan, certificate.as_ref(), |sink| {
        let mut progress = Progress::new("simulating", stop.clone());
        let mut only = Only::new(clause.as_ref(), sink);
        let consumers: &mut [&mut dyn pipeline::Consumer] = &mut [only.consumer()];
        pipeline::run_with(
            trace,
            PageMode::Canonical,
            freeing,
            &mut progress,
            consumers,
        )?;
        Ok(())
    })?;
    let mut lines = report::lines_of(&entries, &curve, others, certificate.as_ref());
    let how = How::of(trace.header().policy == uapi::VMTRACE_POLICY_CLOCK, false);
    // The errors were measured with whole traces of one set.
    let several_sets = outcome.world.has_several_sets();
    let left_out = LeftOut::of(trace, &outcome.world.filters);
    let lacks = left_out.as_ref().is_some_and(|left_out| left_out.is_any);
    if several_sets {
        warn_of_several_sets();
    } else if filtered.is_none() && !lacks && !trace.is_partial() {
        lines.iter_mut().for_each(|line| line.measure(how));
    }
    let mut summary = report::Summary::new(
        trace,
        &outcome,
        &statistics,
        check,
        &curve,
        certificate.as_ref(),
        freeing,
    );
    if let Some(filtered) = filtered {
        summary.filter(filtered);
    }
    if let Some(left_out) = left_out {
        summary.left_out(left_out);
    }
    let report = Report::new(summary, &views, &curve, &lines);
    if page_alone(&output) {
        report.write_page(&output)?;
    } else {
        report.write(&output)?;
    }
    args.written(&output);
    let summary = &report.summary;
    if args.input.json {
        print_json(summary)?;
    } else {
        print(report::text(summary).as_bytes())?;
    }
    Ok(if summary.check.good {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(BAD_TRACE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_beside_its_trace() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        for (trace, page) in [
            ("a.vmt", "a.html"),
            ("a.vmt.zst", "a.html"),
            ("a.b", "a.b.html"),
            (".vmt", ".vmt.html"),
        ] {
            std::fs::write(path(trace), "").expect("a file");
            assert_eq!(beside(&path(trace)), path(page));
        }
        std::fs::create_dir(path("pieces")).expect("a directory");
        assert_eq!(beside(&path("pieces/")), path("pieces.html"));
        assert_eq!(beside(Path::new("-")), Path::new("report.html"));
        assert_eq!(beside(Path::new("/dev/null")), Path::new("null.html"));
    }
}
