//! What is tested in the guest: a file each, a line each in [`all`].

use anyhow::Result;

pub mod audit;
pub mod bad_input;
pub mod between;
pub mod boot;
pub mod budget;
pub mod compare;
pub mod controls;
pub mod corners;
pub mod counting;
pub mod damon;
pub mod day;
pub mod defects;
pub mod early;
pub mod early_pieces;
pub mod faults;
pub mod fidelity;
pub mod files;
pub mod filesystems;
pub mod filter;
pub mod frames;
pub mod huge;
pub mod interval;
pub mod joins;
pub mod kunit;
pub mod long;
pub mod many_cpus;
pub mod maps;
pub mod modes;
pub mod offsets;
pub mod oracle;
pub mod order;
pub mod packed;
pub mod pausable;
pub mod permissions;
pub mod plan;
pub mod programs;
pub mod protections;
pub mod races;
pub mod regions;
pub mod rings;
pub mod robustness;
pub mod rotate;
pub mod same;
pub mod segments;
pub mod selftests;
pub mod servers;
pub mod sets;
pub mod shell;
pub mod toggles;
pub mod top;
pub mod touch;
pub mod tracepoints;
pub mod versions;
pub mod virtual_time;
pub mod waits;
pub mod wide;
pub mod windows;
pub mod workload;
pub mod xen;

/// A test's body: runs on a kernel flavour, beside others; an error is the failure.
pub type Body = Box<dyn Fn(&str) -> Result<()> + Send + Sync>;

/// One test.
pub struct Scenario {
    /// Name on the command line.
    pub name: String,
    /// What it shows.
    pub about: &'static str,
    /// What it does.
    pub run: Body,
}

/// All scenarios. [`plan`] has the order in which they run.
pub fn all() -> Vec<Scenario> {
    let mut list = vec![kunit::scenario()];
    list.extend(workload::scenarios());
    list.extend(programs::scenarios());
    list.extend(segments::scenarios());
    list.extend(many_cpus::scenarios());
    list.extend(sets::scenarios());
    list.extend(oracle::scenarios());
    list.extend(audit::scenarios());
    list.extend(fidelity::scenarios());
    list.extend(compare::scenarios());
    list.extend(controls::scenarios());
    list.extend(corners::scenarios());
    list.extend(files::scenarios());
    list.extend(frames::scenarios());
    list.extend(defects::scenarios());
    list.extend(order::scenarios());
    list.extend(offsets::scenarios());
    list.extend(filter::scenarios());
    list.extend(top::scenarios());
    list.extend(packed::scenarios());
    list.extend(pausable::scenarios());
    list.extend(races::scenarios());
    list.extend(regions::scenarios());
    list.extend(between::scenarios());
    list.extend(budget::scenarios());
    list.extend(interval::scenarios());
    list.extend(joins::scenarios());
    list.extend(permissions::scenarios());
    list.extend(rings::scenarios());
    list.extend(rotate::scenarios());
    list.extend(day::scenarios());
    list.extend(touch::scenarios());
    list.extend(maps::scenarios());
    list.extend(early::scenarios());
    list.extend(early_pieces::scenarios());
    list.extend(bad_input::scenarios());
    list.extend(modes::scenarios());
    list.extend(waits::scenarios());
    list.extend(robustness::scenarios());
    list.extend(servers::scenarios());
    list.extend(versions::scenarios());
    list.extend(virtual_time::scenarios());
    list.extend(windows::scenarios());
    list.extend(shell::scenarios());
    list.extend(toggles::scenarios());
    list.push(tracepoints::scenario());
    list.extend(damon::scenarios());
    list.push(counting::scenario());
    list
}
