//! `postproc report`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use postproc::canon::PageMode;
use postproc::check::Checker;
use postproc::import::Import;
use postproc::pipeline;
use postproc::report::{self, ForeignSummary, Statistics};
use postproc::sim::{CurveSimulation, LruCurve, SimulationConsumer};
use postproc::trace::Trace;

use super::screen::{Progress, print, print_json, stop_flag};
use super::{BAD_TRACE, Foreign, Input, Waivers};

/// Check a trace, and write a summary and its fault curve
///
/// Writes summary.txt, summary.json and fault-curve.svg into a directory, and
/// prints the summary.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc report run.vmtrace -o run.report\n  \
    postproc report --from lackey lackey.log -o lackey.report")]
pub struct ReportArgs {
    #[command(flatten)]
    input: Input,
    /// Directory for the files; made if it does not exist
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    foreign: Foreign,
    #[command(flatten)]
    waivers: Waivers,
}

/// Reports what a trace from elsewhere tells.
fn run_foreign(args: &ReportArgs, import: Import) -> anyhow::Result<ExitCode> {
    let mut curve = LruCurve::default();
    let imported = {
        let mut progress = Progress::new("reading", stop_flag());
        import.run(&mut progress, |accesses, _| {
            curve.references(accesses);
            Ok(())
        })?
    };
    let curve = curve.curve();
    let path = &args.input.trace;
    let summary = ForeignSummary::new(path, imported, args.foreign.page_size, &curve);
    summary.write(&args.output, &curve)?;
    if args.input.json {
        print_json(&summary)?;
    } else {
        print(summary.text().as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    if let Some(import) = args.foreign.open(&args.input.trace)? {
        return run_foreign(args, import);
    }
    let trace = Trace::open(&args.input.trace)?;
    let mut checker = Checker::new(args.waivers.options(5));
    let mut statistics = Statistics::default();
    let mut simulation = SimulationConsumer::default();
    simulation.curve = Some(Box::new(LruCurve::default()));
    let outcome = {
        let mut progress = Progress::new("reading", stop_flag());
        let consumers: &mut [&mut dyn pipeline::Consumer] =
            &mut [&mut checker, &mut statistics, &mut simulation];
        pipeline::run(&trace, PageMode::Canonical, &mut progress, consumers)?
    };
    let curve = simulation.curve.map(|c| c.curve()).unwrap_or_default();
    let summary = report::Summary::new(&trace, &outcome, &statistics, checker.report(), &curve);
    report::write(&args.output, &summary, &curve)?;
    if args.input.json {
        print_json(&summary)?;
    } else {
        print(report::text(&summary).as_bytes())?;
    }
    Ok(if summary.check.good {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(BAD_TRACE)
    })
}
