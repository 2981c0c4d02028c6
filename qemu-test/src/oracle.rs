//! Runs the oracle beside a guest, and holds its log against the trace.

use crate::machine::{Machine, Outcome, Profile};
use crate::paths;
use ::oracle::compare::{self, Disagreement, Pages};
use ::oracle::log::Log;
use ::oracle::model::{Access, CHANCE, Page, Sets, Shape, Stay, Who};
use ::postproc::trace::{Header, Merge, Ref, Step, StreamKind, Trace, wire};
use ::postproc::units;
use anyhow::{Context, Result, anyhow, bail, ensure};
use rust_mm_trace::uapi;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Names in a run's folder, of the log and of the stream of references.
const LOG: &str = "oracle.log";
const STREAM: &str = "references.zst";

/// Where a run's log lies.
pub fn log(out: &Outcome) -> PathBuf {
    out.dir.join(LOG)
}

/// Where the log of a run's trace number `n` lies, counted from 1.
pub fn log_of(out: &Outcome, n: usize) -> PathBuf {
    match n {
        1 => log(out),
        n => log(out).with_extension(format!("log.{n}")),
    }
}

/// Where the log of a run's last trace lies: the stream is of that trace.
pub fn last_log(out: &Outcome) -> PathBuf {
    let logs = (1..).map(|n| log_of(out, n));
    let last = logs.take_while(|path| path.exists()).last();
    last.unwrap_or_else(|| log(out))
}

/// Where the stream of a run's references lies.
pub fn stream(out: &Outcome) -> PathBuf {
    out.dir.join(STREAM)
}

/// Runs a machine with the plugin loaded, whose model is of this kind. With more than
/// one CPU the trace is replayed.
///
/// # Errors
///
/// As [`Machine::run`], or if there is no plugin.
pub fn run(machine: &Machine, shape: Shape) -> Result<Outcome> {
    run_with(machine, shape, &[])
}

/// The same, and every reference is kept.
///
/// # Errors
///
/// As [`run`].
pub fn run_streaming(machine: &Machine, shape: Shape) -> Result<Outcome> {
    let stream = paths::build().join("runs").join(&machine.name).join(STREAM);
    run_plugin(
        machine,
        shape,
        &format!(",stream={}", stream.display()),
        &[],
    )
}

/// The same as [`run`], with more arguments for QEMU.
///
/// # Errors
///
/// As [`run`].
pub fn run_with(machine: &Machine, shape: Shape, more: &[String]) -> Result<Outcome> {
    run_plugin(machine, shape, "", more)
}

fn run_plugin(machine: &Machine, shape: Shape, plus: &str, more: &[String]) -> Result<Outcome> {
    let plugin = paths::plugin();
    ensure!(
        plugin.exists(),
        "{} is missing: run 'make tools'",
        plugin.display()
    );
    let log = paths::build().join("runs").join(&machine.name).join(LOG);
    let on = |on: bool| if on { "on" } else { "off" };
    let plugin = [
        "-plugin".into(),
        format!(
            "file={},n={},first={},batch={},again={},clock={},sets={},replay={},map={},log={}{plus}",
            plugin.display(),
            shape.size,
            shape.first,
            shape.batch,
            on(shape.again),
            on(shape.clock),
            shape.sets as u32,
            on(matches!(machine.profile, Profile::Turns | Profile::Turns4)),
            paths::system_map(&machine.kernel).display(),
            log.display()
        ),
    ];
    machine.run_with(&[&plugin, more].concat())
}

/// What was compared, in a line.
pub struct Agreed {
    /// Records that are the same on both sides.
    pub records: u64,
    /// The stays that were referenced in the second segment.
    pub again: usize,
    /// Those that end with a second chance.
    pub chances: usize,
    /// CPUs.
    pub cpus: u32,
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
        )?;
        if !self.log.whos.is_empty() {
            write!(
                f,
                "; {} of {} flushes left stale entries that {} accesses used, {} after a sweep; {} \
                 stays renewed, {} second chances, {} evicted with a victim",
                c.stale, c.flushes, c.late, c.unsure, c.renewed, c.chances, c.batched
            )?;
        }
        if self.log.shape.sets != Sets::One {
            write!(f, "; {} numbers skipped", c.skipped)?;
        }
        if self.log.shape.sweeps() {
            write!(
                f,
                "; {} were referenced again, {} are second chances; {} accessed bits given",
                self.again, self.chances, c.looks
            )?;
        }
        Ok(())
    }
}

/// Which pages a trace and a log have records of.
///
/// # Errors
///
/// If one of them can't be read.
pub fn pages(trace: &Path, log: &Path) -> Result<Pages> {
    let refs = references(&Trace::open(trace)?)?;
    let pages = refs.iter().map(|r| told(r).0.page);
    Ok(compare::pages(pages, &read(log)?))
}

fn read(log: &Path) -> Result<Log> {
    let mut file = File::open(log).with_context(|| {
        format!(
            "the oracle left no log at {}: no trace ended while it watched",
            log.display()
        )
    })?;
    Log::read(&mut file).map_err(|e| anyhow!("{}: {e}", log.display()))
}

/// Compares a trace with a log.
///
/// # Errors
///
/// The first difference, or why there is nothing to compare.
pub fn compare(trace: &Path, log: &Path) -> Result<Agreed> {
    let log = read(log)?;
    let trace = Trace::open(trace)?;
    let header = trace.header();
    let sets = sets_of(header)?;
    ensure!(
        header.policy <= uapi::VMTRACE_POLICY_CLOCK,
        "the model is a FIFO or CLOCK, which the trace's set is not"
    );
    ensure!(
        header.nr_cpus == 1 || !log.whos.is_empty(),
        "the model is of one CPU, and the trace of {}",
        header.nr_cpus
    );
    let shape = Shape {
        size: header.evms_size as usize,
        first: header.first_segment as usize,
        batch: header.batch as usize,
        again: header.features & u64::from(uapi::VMTRACE_AGAIN) != 0,
        clock: header.policy == uapi::VMTRACE_POLICY_CLOCK,
        sets,
    };
    let refs = references(&trace)?;
    if let Err(e) = compare::sets(refs.iter().map(|r| (r.mm.0, r.set)), &log) {
        bail!("{e}");
    }
    match compare::compare(shape, refs.iter().map(told), &log) {
        Ok(agreement) => Ok(Agreed {
            records: agreement.records,
            again: log.stays.iter().filter(|s| s.again).count(),
            chances: log.stays.iter().filter(|s| s.why == CHANCE).count(),
            cpus: header.nr_cpus,
            log,
        }),
        Err(e @ Disagreement::Empty(_)) => bail!("{e}\n{}", compare::summary(&log)),
        Err(e) => bail!("{e}"),
    }
}

/// What has a set of its own, as a trace's header says.
fn sets_of(header: &Header) -> Result<Sets> {
    Ok(match header.sets {
        wire::Sets::One => Sets::One,
        wire::Sets::Process => Sets::Process,
        wire::Sets::Cgroup => Sets::Cgroup,
        wire::Sets::Unknown => bail!("the trace has sets of an unknown kind"),
    })
}

/// All references of a trace that is whole.
fn references(trace: &Trace) -> Result<Vec<Ref>> {
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
    while !matches!(merge.fill(&mut refs, usize::MAX)?, Step::End) {}
    if let Some(damage) = merge.take_damage().next() {
        bail!("the trace is damaged: {damage}");
    }
    ensure!(
        refs.len() as u64 == end.status.refs,
        "the trace has {} references and says {}",
        refs.len(),
        end.status.refs
    );
    Ok(refs)
}

fn told(r: &Ref) -> (Stay, Who) {
    let flags = r.flags();
    let stay = Stay {
        page: Page {
            mm: r.mm.0,
            addr: r.address(),
        },
        access: match flags.access() {
            units::Access::Read => Access::Read,
            units::Access::Write => Access::Write,
            units::Access::Exec => Access::Exec,
            units::Access::Seen => Access::Seen,
        },
        kernel: flags.kernel(),
        dirtied: flags.dirtied(),
        again: flags.again(),
        goes_on: flags.continues(),
        why: flags.why() as u8,
    };
    let who = Who {
        tid: r.tid().0,
        cpu: r.cpu(),
        pfn: r.pfn,
    };
    (stay, who)
}
