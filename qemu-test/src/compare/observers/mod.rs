//! Who observes: a line in [`all`] each.
//!
//! Another observer is another line, if the activator makes its trace. Otherwise it is another type that
//! is an [`Observer`].

use super::score::Report;
use super::truth::Scope;
use crate::loads::Program;
use crate::machine::Outcome;
use crate::oracle;
use anyhow::Result;

mod damon;
pub mod regions;
pub mod traced;
pub mod watched;

use damon::Damon;
use regions::Regions;
use traced::Traced;
use watched::Watched;

/// Options of a trace that gives pages and address spaces their names, and costs a fault for each page. An
/// observer that makes no trace is compared in a run with such a trace.
const NAMES: &str = "-n 65536";

/// How a run's truth is called for an observer.
pub trait Observer: Sync {
    /// Its name on the command line and in the table.
    fn name(&self) -> &str;

    /// A shell command that runs `load` while it is observed, and prints what `load` prints.
    /// `named`: the run gives pages their names, which costs something.
    fn command(&self, load: &str, program: &Program, named: bool) -> String;

    /// What it reports of a run.
    ///
    /// # Errors
    ///
    /// What can't be read.
    fn read(&self, out: &Outcome, program: &Program) -> Result<Vec<Reading>>;

    /// Bytes that a run left.
    ///
    /// # Errors
    ///
    /// As [`Observer::read`].
    fn bytes(&self, out: &Outcome) -> Result<u64>;
}

/// One way to read what an observer reports.
pub struct Reading {
    /// What is counted.
    pub what: &'static str,
    /// In the order of the observer.
    pub reports: Vec<Report>,
    /// Intervals of the observer's own: their length, ns, and their ends.
    pub own: Option<(u64, Vec<u64>)>,
    /// What the observer was to see.
    pub scope: Scope,
    /// When the observer began, ns.
    pub begin: u64,
}

/// All observers, in the order of the table.
pub fn all() -> Vec<Box<dyn Observer>> {
    vec![
        traced("N = 64", "-n 64"),
        traced("N = 512", "-n 512"),
        traced("N = 4096", "-n 4096"),
        traced("--interval 10ms", "--interval 10ms"),
        traced("--interval 50ms", "--interval 50ms"),
        traced("--slowdown 1.1", "--slowdown 1.1"),
        traced("--slowdown 1.5", "--slowdown 1.5"),
        damon("DAMON", 100, None),
        damon("DAMON 10 times as fast", 10, None),
        damon("DAMON beside N = 512", 100, Some("-n 512")),
        regions("--sample 5ms", "--sample 5ms"),
        regions("--sample 500us", "--sample 500us"),
        watched_by("mprotect", "mprotect 512"),
        watched_by("RWP", "rwp 512"),
        watched_by("RWP async", "rwp-async 50"),
    ]
}

/// A load, traced with these options of the activator.
fn traced(name: &'static str, options: &'static str) -> Box<dyn Observer> {
    Box::new(Traced { name, options })
}

/// A load that DAMON samples, with an aggregation interval of so many ms, while it is traced with these
/// options or not at all.
fn damon(
    name: &'static str,
    aggregation_ms: u64,
    beside: Option<&'static str>,
) -> Box<dyn Observer> {
    Box::new(Damon {
        name,
        aggregation_ms,
        beside,
    })
}

/// A load whose regions are sampled, with these options of the activator.
fn regions(name: &'static str, options: &'static str) -> Box<dyn Observer> {
    Box::new(Regions { name, options })
}

/// A load under `watch-pages`, with these first arguments.
fn watched_by(name: &'static str, way: &'static str) -> Box<dyn Observer> {
    Box::new(Watched { name, way })
}

/// A word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Runs a load in a trace on the trace disk.
fn in_trace(options: &str, load: &str) -> String {
    let load = quoted(load);
    // As the other observers, which pack nothing.
    format!("activator run --pack=no {options} -o /dev/trace -- /bin/sh -c {load}")
}

/// Runs a machine with the plugin, so that the truth of the run is known.
///
/// # Errors
///
/// As [`oracle::run_streaming`].
pub fn watched(machine: &crate::machine::Machine) -> Result<Outcome> {
    oracle::run_streaming(machine, super::truth::SHAPE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_differ() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|o| o.name()).collect();
        assert_eq!(names.len(), all.len());
    }
}
