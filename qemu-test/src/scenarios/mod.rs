//! What is tested in the guest: a file each, a line each in [`all`].

use anyhow::Result;

pub mod bad_input;
pub mod boot;
pub mod controls;
pub mod programs;
pub mod workload;

/// One test.
pub struct Scenario {
    /// Name on the command line.
    pub name: String,
    /// What it shows.
    pub about: &'static str,
    /// Runs it on a kernel; an error is the failure.
    pub run: Box<dyn Fn(&str) -> Result<()>>,
}

/// All scenarios, in the order in which they run.
pub fn all() -> Vec<Scenario> {
    let mut list = vec![boot::scenario()];
    list.extend(programs::scenarios());
    list.extend(controls::scenarios());
    list.extend(bad_input::scenarios());
    list.extend(workload::scenarios());
    list
}
