//! A trace of regions.

use super::traced::{bytes_of, first_of_each};
use super::{Observer, Reading, in_trace};
use crate::compare::score::{Place, Report};
use crate::compare::truth::Scope;
use crate::loads::Program;
use crate::machine::Outcome;
use ::postproc::regions::Reports;
use ::postproc::trace::{Merge, Step, StreamKind, Trace};
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

/// Regions of all address spaces, which the kernel samples.
pub struct Regions {
    /// Its name in the table.
    pub name: &'static str,
    /// Options of the activator.
    pub options: &'static str,
}

impl Observer for Regions {
    fn name(&self) -> &str {
        self.name
    }

    fn command(&self, load: &str, _: &Program, _: bool) -> String {
        in_trace(self.options, load)
    }

    fn read(&self, out: &Outcome, _: &Program) -> Result<Vec<Reading>> {
        Ok(vec![reading(&out.trace())?])
    }

    fn bytes(&self, out: &Outcome) -> Result<u64> {
        bytes_of(&out.trace())
    }
}

/// What a trace of regions says: all pages of a region may have been used since the report before, if a
/// look has found an access.
///
/// # Errors
///
/// If the trace is not whole, or has no report of regions.
pub fn reading(path: &Path) -> Result<Reading> {
    let trace = Trace::open(path)?;
    let header = trace.header();
    let end = trace.index().end.as_ref();
    let end = end.context("the trace was cut short")?;
    ensure!(end.status.lost() == 0, "the trace lost records");
    let sampling = header.sampling.context("the trace has no regions")?;
    let (aggregate, begin) = (sampling.aggregate_ns, header.start_time_ns);
    let (mut open, mut reports) = (Reports::default(), Vec::new());
    let mut last: HashMap<u32, u64> = HashMap::new();
    let mut ends = BTreeSet::new();
    let mut merge = Merge::of_kinds(&trace, &[StreamKind::Event]);
    while let Step::Event(event) = merge.fill(&mut Vec::new(), 1)? {
        let Some(report) = open.event(&event) else {
            continue;
        };
        let (mm, to) = (report.mm.0, report.time_ns);
        let from = last.insert(mm, to).unwrap_or(0);
        ends.insert(to);
        for region in report.regions.iter().filter(|r| r.accesses > 0) {
            let vpn = region.start >> 12;
            reports.push(Report {
                at: Place { mm, vpn },
                pages: region.end.div_ceil(4096).saturating_sub(vpn),
                // An address space is younger than an interval when it is reported first.
                from: from.max(to.saturating_sub(aggregate)),
                to: to.saturating_sub(1),
                timed: false,
            });
        }
    }
    ensure!(!ends.is_empty(), "no report of regions was made");
    Ok(Reading {
        what: "regions",
        reports,
        own: Some((aggregate, first_of_each(&ends, aggregate / 2))),
        scope: Scope {
            quiet: true,
            ..Scope::all()
        },
        begin,
    })
}
