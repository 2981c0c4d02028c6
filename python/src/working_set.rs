//! The working set over time: the data and the pictures of `postproc report`.

use postproc::report::chart::Unit;
use postproc::report::{EnabledPages, Working, grouped};
use postproc::trace::Trace;
use postproc::virtual_time;
use serde_json::json;

use crate::fail::{Failure, Result, Signals};
use crate::reading::{self, Reading};

/// The samples and the percentiles as JSON, with the pictures.
pub fn json(
    trace: &Trace,
    signals: &mut Signals,
    reading: &Reading,
    (trust, allow_loss): (bool, bool),
) -> Result<String> {
    let mut working = match reading.in_virtual_time {
        // The length need not be exact.
        true => Working::new(
            trace.header().start_time_ns,
            virtual_time::length_ns(trace).unwrap_or(0),
        ),
        false => Working::of(trace),
    };
    let mut checker = reading::checker(trust, allow_loss, 3);
    let passed = reading.run_some(trace, signals, &mut [&mut checker], &mut working)?;
    let report = checker.report();
    let enabled = EnabledPages {
        n: trace.header().evms_size,
        several: passed.outcome.world.has_several_sets(),
    };
    let subtitle = format!("{} references", grouped(passed.references));
    let page_size = trace.header().page_size();
    let figures = working
        .set
        .figures(Unit::Nanos, page_size, Some(enabled), &subtitle);
    let figures: Vec<_> = figures
        .iter()
        .map(|f| json!({"id": f.id, "title": f.title, "about": f.about, "svg": f.svg, "data": f.json}))
        .collect();
    let bad = "the trace failed its checks: the results may be wrong. Trace.check() says more";
    let warnings: Vec<&str> = (!report.good).then_some(bad).into_iter().collect();
    let all = json!({
        "references": passed.references,
        "evms_size": enabled.n,
        "page_size": page_size,
        "good": report.good,
        "findings": reading::findings(&report),
        "warnings": warnings,
        "filter": passed.filtered,
        "filtered": passed.left_out,
        "figures": figures,
    });
    serde_json::to_string(&all).map_err(|error| Failure::trace(error.to_string()))
}
