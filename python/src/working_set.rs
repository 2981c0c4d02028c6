//! The working set over time: the data and the pictures of `postproc report`.

use postproc::pipeline::{Batch, Consumer, World};
use postproc::report::chart::Unit;
use postproc::report::{EnabledPages, WorkingSet, grouped};
use postproc::space::Issue;
use postproc::trace::{Event, Trace};
use postproc::units::CanonPage;
use postproc::virtual_time;
use serde_json::json;

use crate::fail::{Failure, Result, Signals};
use crate::reading::{self, Reading};

struct Counting {
    set: WorkingSet,
    event_ns: u64,
}

impl Consumer for Counting {
    fn references(&mut self, batch: &Batch<'_>) -> postproc::error::Result<()> {
        for (r, page) in batch.refs.iter().zip(batch.pages) {
            self.set.reference(r.time_ns, page.0);
        }
        Ok(())
    }

    fn event(
        &mut self,
        event: &Event<'_>,
        _world: &World,
        _issues: &[Issue],
    ) -> postproc::error::Result<()> {
        self.event_ns = event.time_ns;
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> postproc::error::Result<()> {
        for page in pages {
            self.set.free(self.event_ns, page.0);
        }
        Ok(())
    }
}

/// The samples and the percentiles as JSON, with the pictures.
pub fn json(
    trace: &Trace,
    signals: &mut Signals,
    reading: &Reading,
    (trust, allow_loss): (bool, bool),
) -> Result<String> {
    let start = trace.header().start_time_ns;
    let (first, last) = trace.index().time_span().unwrap_or((start, start));
    let (start, length) = match reading.in_virtual_time {
        // The length need not be exact.
        true => (start, virtual_time::length_ns(trace).unwrap_or(0)),
        // A trace may end long after its last reference.
        false => {
            let start = start.min(first);
            (start, last.saturating_sub(start))
        }
    };
    let mut counting = Counting {
        set: WorkingSet::new(start, length),
        event_ns: start,
    };
    let mut checker = reading::checker(trust, allow_loss, 3);
    let passed = reading.run_some(trace, signals, &mut [&mut checker], &mut counting)?;
    counting.set.finish();
    let report = checker.report();
    let enabled = EnabledPages {
        n: trace.header().evms_size,
        several: passed.outcome.world.has_several_sets(),
    };
    let subtitle = format!("{} references", grouped(passed.references));
    let page_size = trace.header().page_size();
    let figures = counting
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
