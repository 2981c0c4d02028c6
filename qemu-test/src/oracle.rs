//! Runs the oracle beside a guest, and holds its log against the trace.

use crate::machine::{Machine, Outcome};
use crate::paths;
use ::oracle::compare::{self, Disagreement};
use ::oracle::log::Log;
use ::oracle::model::{Access, Page, Stay};
use ::postproc::trace::{Merge, Ref, Step, StreamKind, Trace};
use ::postproc::units;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Name of the log in a run's folder.
const LOG: &str = "oracle.log";

/// Where a run's log lies.
pub fn log(out: &Outcome) -> PathBuf {
    out.dir.join(LOG)
}

/// Runs a machine with the plugin loaded, whose model has `n` pages.
///
/// # Errors
///
/// As [`Machine::run`], or if there is no plugin.
pub fn run(machine: &Machine, n: &str) -> Result<Outcome> {
    let plugin = paths::plugin();
    ensure!(
        plugin.exists(),
        "{} is missing: run 'make tools'",
        plugin.display()
    );
    let log = paths::build().join("runs").join(&machine.name).join(LOG);
    machine.run_with(&[
        "-plugin".into(),
        format!(
            "file={},n={n},map={},log={}",
            plugin.display(),
            paths::system_map(&machine.kernel).display(),
            log.display()
        ),
    ])
}

/// What was compared, in a line.
pub struct Agreed {
    /// Records that are the same on both sides.
    pub records: u64,
    /// What the oracle saw.
    pub log: Log,
}

impl std::fmt::Display for Agreed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let c = &self.log.counts;
        write!(
            f,
            "all {} records agree; {} accesses seen, {} by the kernel; {} closings and {} aborts given",
            self.records,
            c.loads + c.stores + c.kernel_loads + c.kernel_stores,
            c.kernel_loads + c.kernel_stores,
            c.closings,
            c.aborts
        )
    }
}

/// Compares a trace with a log.
///
/// # Errors
///
/// The first difference, or why there is nothing to compare.
pub fn compare(trace: &Path, log: &Path) -> Result<Agreed> {
    let mut file = File::open(log).with_context(|| {
        format!(
            "the oracle left no log at {}: no trace ended while it watched",
            log.display()
        )
    })?;
    let log = Log::read(&mut file).map_err(|e| anyhow!("{}: {e}", log.display()))?;
    let trace = Trace::open(trace)?;
    let header = trace.header();
    ensure!(
        header.policy == 0 && header.nr_cpus == 1,
        "the model is a FIFO, which the trace's set is not with CLOCK or several CPUs"
    );
    let records = records(&trace)?;
    match compare::compare(u64::from(header.evms_size), records, &log) {
        Ok(agreement) => Ok(Agreed {
            records: agreement.records,
            log,
        }),
        Err(e @ Disagreement::Empty(_)) => bail!("{e}\n{}", compare::summary(&log)),
        Err(e) => bail!("{e}"),
    }
}

/// All references of a trace that is whole.
fn records(trace: &Trace) -> Result<Vec<Stay>> {
    let end = trace
        .index()
        .end
        .as_ref()
        .context("the trace was cut short")?;
    ensure!(
        end.status.lost() == 0,
        "the trace lost {} records",
        end.status.lost()
    );
    if let Some(damage) = trace.index().damage.first() {
        bail!("the trace is damaged: {damage}");
    }
    let mut merge = Merge::of_kinds(trace, &[StreamKind::Ref]);
    let mut refs: Vec<Ref> = Vec::new();
    while !matches!(merge.fill(&mut refs, usize::MAX), Step::End) {}
    if let Some(damage) = merge.take_damage().next() {
        bail!("the trace is damaged: {damage}");
    }
    ensure!(
        refs.len() as u64 == end.status.refs,
        "the trace has {} references and says {}",
        refs.len(),
        end.status.refs
    );
    refs.iter().map(stay).collect()
}

fn stay(r: &Ref) -> Result<Stay> {
    let flags = r.flags();
    Ok(Stay {
        page: Page {
            mm: r.mm.0,
            addr: r.address(),
        },
        access: match flags.access() {
            units::Access::Read => Access::Read,
            units::Access::Write => Access::Write,
            units::Access::Exec => Access::Exec,
            units::Access::Seen => bail!("record {} is a second chance", r.seq),
        },
        kernel: flags.kernel(),
        dirtied: flags.dirtied(),
        why: flags.why() as u8,
    })
}
