//! DAMON, beside a trace or alone.

use super::{NAMES, Observer, Reading, in_trace, quoted};
use crate::compare::OBSERVED;
use crate::compare::score::{Place, Report};
use crate::compare::truth::{Scope, Spaces};
use crate::loads::Program;
use crate::machine::Outcome;
use ::postproc::canon::PageMode;
use ::postproc::damon::record::Record;
use ::postproc::error;
use ::postproc::pipeline::{self, Batch, Consumer, Freeing, Unwatched};
use ::postproc::trace::{Ref, Trace};
use anyhow::{Context, Result};
use std::path::Path;

/// DAMON, which samples the process that does most of the work.
pub struct Damon {
    /// Its name in the table.
    pub name: &'static str,
    /// An aggregation interval has 20 sampling intervals, as by default.
    pub aggregation_ms: u64,
    /// Options of a trace that is on at the same time.
    pub beside: Option<&'static str>,
}

/// What follows the load's output.
const RECORD: &str = "DAMON-RECORD";

impl Observer for Damon {
    fn name(&self) -> &str {
        self.name
    }

    fn command(&self, load: &str, program: &Program, named: bool) -> String {
        let names = named.then_some(NAMES);
        let load = match self.beside.or(names) {
            Some(options) => in_trace(options, load),
            None => format!("/bin/sh -c {}", quoted(load)),
        };
        format!(
            "damon-sample {} {} > /tmp/damon.txt & {load}; wait $!; echo {RECORD}; cat /tmp/damon.txt",
            program.main, self.aggregation_ms
        )
    }

    fn read(&self, out: &Outcome, program: &Program) -> Result<Vec<Reading>> {
        let text = record(out)?;
        let (pid, text) = text.split_once('\n').context("a process and a record")?;
        let pid: u32 = pid.trim().parse().context("the number of a process")?;
        let path = out.dir.join("damon.txt");
        std::fs::write(&path, text)?;
        let mm = space(&out.trace(), pid, program.main)?;
        let aggregation = self.aggregation_ms * 1_000_000;
        let record = Record::open(&path, aggregation)?;
        let mut snapshots = record.targets.into_values().flatten().peekable();
        let begin = snapshots.peek().map_or(0, |first| first.start);
        let (mut reports, mut ends) = (Vec::new(), Vec::new());
        for snapshot in snapshots {
            ends.push(snapshot.end);
            for region in snapshot.regions.iter().filter(|r| r.accesses > 0) {
                let vpn = region.start >> 12;
                reports.push(Report {
                    at: Place { mm, vpn },
                    pages: region.end.div_ceil(4096).saturating_sub(vpn),
                    from: snapshot.start,
                    to: snapshot.end.saturating_sub(1),
                    timed: false,
                });
            }
        }
        let to = ends.last().copied().unwrap_or(0);
        Ok(vec![Reading {
            what: "regions",
            reports,
            own: Some((aggregation, ends)),
            scope: Scope {
                from: begin,
                to: to.saturating_sub(1),
                ..Scope::of(Spaces::Only(mm))
            },
            begin,
        }])
    }

    fn bytes(&self, out: &Outcome) -> Result<u64> {
        Ok(record(out)?.len() as u64)
    }
}

/// What `damon-sample` printed: the number of the process, and the text of the tracepoint.
fn record(out: &Outcome) -> Result<String> {
    let r = out.step(OBSERVED)?;
    let (_, text) = r
        .stdout
        .split_once(RECORD)
        .with_context(|| format!("there is no record of DAMON: {}", r.stderr))?;
    Ok(text.trim_start().into())
}

/// The address space of a process while it has this name.
fn space(trace: &Path, pid: u32, comm: &str) -> Result<u32> {
    struct Find<'f> {
        pid: u32,
        comm: &'f str,
        found: Option<u32>,
    }
    impl Consumer for Find<'_> {
        fn references(&mut self, batch: &Batch<'_>) -> error::Result<()> {
            let tasks = &batch.world.tasks;
            let its = |r: &&Ref| {
                let process = tasks.find(r.tid()).map(|id| tasks.process(id));
                process.is_some_and(|p| p.tgid.0 == self.pid && p.comm == self.comm)
            };
            if self.found.is_none() {
                self.found = batch.refs.iter().find(its).map(|r| r.mm.0);
            }
            Ok(())
        }
    }
    let trace = Trace::open(trace)?;
    let mut find = Find {
        pid,
        comm,
        found: None,
    };
    let (mode, kept) = (PageMode::Virtual, Freeing::Kept);
    pipeline::run_with(&trace, mode, kept, &mut Unwatched, &mut [&mut find])?;
    find.found
        .with_context(|| format!("the trace has no reference of process {pid}, {comm}"))
}
