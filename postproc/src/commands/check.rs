//! `postproc check`.

use std::fmt::Write;
use std::process::ExitCode;

use crate::canon::PageMode;
use crate::check::{CheckReport, Checker, Cited};
use crate::filter::LeftOut;
use crate::pipeline;
use crate::trace::Trace;
use clap::Args;
use serde::Serialize;

use super::screen::{Progress, grouped, print, print_json, stop_flag};
use super::{BAD_TRACE, Input, NoWhere, Waivers, left_out_text, name_of};

/// Check a trace against every rule
///
/// Prints the number of findings of each rule, and the first findings of each rule with
/// the records that contradict each other. A finding does not end the check.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc check run.vmt\n  \
    ssh guest cat /mnt/run.vmt | postproc check -\n  \
    postproc check run.vmt.zst\n  \
    postproc check --frames run.vmt\n  \
    postproc check --per-window run.vmt\n  \
    postproc check --json run.vmt | jq '.rules[] | select(.errors > 0)'")]
pub struct CheckArgs {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    no_filter: NoWhere,
    #[command(flatten)]
    waivers: Waivers,
    /// Also compare canonical pages with page frames
    ///
    /// Among the pages that are enabled at one time, each canonical page must lie in one
    /// frame, and each frame must hold one canonical page. This option compares what the
    /// events report about forks, copies and files with the page tables. With this
    /// option, the check takes up to four times as long.
    #[arg(long)]
    frames: bool,
    /// Number of findings to show for each rule
    #[arg(long, default_value_t = 5, value_name = "COUNT")]
    examples: usize,
}

#[derive(Serialize)]
struct Checked<'a> {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<u32>,
    references: u64,
    renewals: u64,
    /// All records in the streams of references, including renewals and second chances of
    /// unmapped pages.
    reference_records: u64,
    events: u64,
    packets: u64,
    /// What the kernel's filter has left out, if the trace may have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    filtered: Option<LeftOut>,
    #[serde(flatten)]
    report: &'a CheckReport,
}

pub fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    args.no_filter.refuse(
        "the rules are about all records. If some were left out, the trace would seem to have lost \
         them. Check the whole trace; commands that take --where do so while they read it",
    )?;
    args.input.each(|trace| run_one(args, trace))
}

fn run_one(args: &CheckArgs, trace: &Trace) -> anyhow::Result<ExitCode> {
    let options = args.waivers.options(args.examples);
    let (mut checker, mode) = match args.frames {
        true => (Checker::with_pages(options), PageMode::Canonical),
        false => (Checker::new(options), PageMode::Unnamed),
    };
    let outcome = {
        let mut progress = Progress::new("checking", stop_flag());
        pipeline::run(trace, mode, &mut progress, &mut [&mut checker])?
    };
    let report = checker.report();
    let checked = Checked {
        path: name_of(trace),
        window: trace.window(),
        references: outcome.world.references,
        renewals: outcome.world.renewals,
        reference_records: outcome.world.records,
        events: outcome.world.events,
        packets: outcome.packets,
        filtered: LeftOut::of(trace, &outcome.world.filters),
        report: &report,
    };
    if args.input.json {
        print_json(&checked)?;
    } else {
        print(text(&checked)?.as_bytes())?;
    }
    Ok(if report.good {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(BAD_TRACE)
    })
}

fn text(checked: &Checked<'_>) -> Result<String, std::fmt::Error> {
    let mut t = String::new();
    writeln!(
        t,
        "{}: {} references, {} renewals, {} events, {} packets\n",
        checked.path,
        grouped(checked.references),
        grouped(checked.renewals),
        grouped(checked.events),
        grouped(checked.packets)
    )?;
    if let Some(left_out) = &checked.filtered {
        writeln!(t, "{}\n", left_out_text(left_out))?;
    }
    writeln!(
        t,
        "{:<14} {:>10} {:>9} {:>9}  demands that",
        "rule", "errors", "warnings", "notes"
    )?;
    for rule in &checked.report.rules {
        writeln!(
            t,
            "{:<14} {:>10} {:>9} {:>9}  {}",
            rule.id,
            grouped(rule.errors),
            grouped(rule.warnings),
            grouped(rule.notes),
            rule.about
        )?;
    }
    for rule in &checked.report.rules {
        if rule.examples.is_empty() {
            continue;
        }
        let total = rule.errors + rule.warnings + rule.notes;
        writeln!(
            t,
            "\n{}: the first {} of {}",
            rule.id,
            rule.examples.len(),
            grouped(total)
        )?;
        for finding in &rule.examples {
            let at = finding
                .offset
                .map_or_else(String::new, |o| format!(" (byte {o})"));
            writeln!(t, "  {}: {}{at}", finding.severity.name(), finding.message)?;
            for (label, cited) in [("record", &finding.record), ("against", &finding.related)] {
                if let Some(Cited { seq, offset, text }) = cited {
                    writeln!(t, "    {label:<8} #{seq} at byte {offset}: {text}")?;
                }
            }
        }
    }
    if checked.report.good {
        writeln!(t, "\ngood")?;
    } else {
        writeln!(t, "\nNOT GOOD: {} errors", grouped(checked.report.errors()))?;
    }
    Ok(t)
}
