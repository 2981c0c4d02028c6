//! A trace of references.

use super::{Observer, Reading, in_trace};
use crate::compare::score::{Place, Report};
use crate::compare::truth::Scope;
use crate::loads::Program;
use crate::machine::Outcome;
use ::postproc::damon::is_timed;
use ::postproc::trace::{Merge, Step, StreamKind, Trace, Why};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::path::Path;

/// A trace of the kernel.
pub struct Traced {
    /// Its name in the table.
    pub name: &'static str,
    /// Options of the activator.
    pub options: &'static str,
}

impl Observer for Traced {
    fn name(&self) -> &str {
        self.name
    }

    fn command(&self, load: &str, _: &Program, _: bool) -> String {
        in_trace(self.options, load)
    }

    /// Two ways: a record says that the page was used when its stay began, and that it may have been used
    /// as long as the stay lasts.
    fn read(&self, out: &Outcome, _: &Program) -> Result<Vec<Reading>> {
        readings(&out.trace())
    }

    fn bytes(&self, out: &Outcome) -> Result<u64> {
        bytes_of(&out.trace())
    }
}

/// Bytes of a trace.
///
/// # Errors
///
/// If the trace is not whole.
pub fn bytes_of(path: &Path) -> Result<u64> {
    let trace = Trace::open(path)?;
    let end = trace
        .index()
        .end
        .as_ref()
        .context("the trace was cut short")?;
    Ok(end.status.bytes)
}

/// The two readings of a trace: the moments at which stays began, and the stays.
///
/// # Errors
///
/// If the trace is not whole.
pub fn readings(path: &Path) -> Result<Vec<Reading>> {
    let trace = Trace::open(path)?;
    let header = trace.header();
    let end = trace
        .index()
        .end
        .as_ref()
        .context("the trace was cut short")?;
    ensure!(end.status.lost() == 0, "the trace lost records");
    let shift = header.stay_shift;
    let begin = header.start_time_ns;
    let interval = header.interval_ns;
    let mut merge = Merge::of_kinds(&trace, &[StreamKind::Ref]);
    let (mut records, mut stays) = (Vec::new(), Vec::new());
    let mut ends = BTreeSet::new();
    let mut refs = Vec::new();
    loop {
        let step = merge.fill(&mut refs, 1 << 16)?;
        for r in refs.drain(..) {
            let at = Place {
                mm: r.mm.0,
                vpn: r.address() >> 12,
            };
            let end = r.end_ns(shift);
            if let (Some(end), Why::Interval) = (end, r.flags().why()) {
                ends.insert(end);
            }
            let report = |to| Report {
                at,
                pages: 1,
                from: r.time_ns,
                to,
                timed: true,
            };
            if is_timed(&r) {
                records.push(report(r.time_ns));
            }
            // The length of a stay is rounded down.
            let end = end.map_or(u64::MAX >> 1, |end| end.saturating_add((1 << shift) - 1));
            stays.push(report(end));
        }
        if matches!(step, Step::End) {
            break;
        }
    }
    let own = (interval > 0).then(|| (interval, first_of_each(&ends, interval / 2)));
    let reading = |what, reports| Reading {
        what,
        reports,
        own: own.clone(),
        scope: Scope::all(),
        begin,
    };
    Ok(vec![reading("records", records), reading("stays", stays)])
}

/// The first moments of intervals' ends: the ends of one interval are less than `apart` from the first of them.
pub fn first_of_each(ends: &BTreeSet<u64>, apart: u64) -> Vec<u64> {
    let mut first = Vec::new();
    for &end in ends {
        if first.last().is_none_or(|last| end >= last + apart) {
            first.push(end);
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_begins_with_the_first_end_of_a_stay() {
        let ends: BTreeSet<u64> = [1000, 1001, 1040, 2000, 2049, 2050].into();
        assert_eq!(first_of_each(&ends, 50), [1000, 2000, 2050]);
        assert!(first_of_each(&BTreeSet::new(), 50).is_empty());
    }
}
