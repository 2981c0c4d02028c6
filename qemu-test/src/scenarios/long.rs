//! Scenarios that `make test` leaves out, because each of them takes a minute or more, or repeats
//! what another one shows with other sets. `make test-all` runs them.

use super::{Scenario, all};

/// Names: a scenario, and the one in `make test` that shows the same in less time.
const LONG: [(&str, &str); 46] = [
    ("workload-64-smp", "workload-64-fast"),
    ("workload-512-smp", "workload-512-fast"),
    ("programs-32-exact", "programs-64-exact"),
    ("programs-512-exact", "programs-64-exact"),
    ("programs-512-smp", "programs-64-smp"),
    ("late-copies", "late-admissions"),
    ("segments-stop", "segments-million"),
    ("segments-resize-smp", "segments-resize-exact"),
    ("segments-least-fifo-smp", "segments-least-fifo-exact"),
    ("segments-least-clock-smp", "segments-least-clock-exact"),
    ("cpus-idle-64", "cpus-idle-2"),
    ("sets-process-smp", "sets-process-fast"),
    ("oracle-programs-16-0", "oracle-programs-64-0"),
    ("oracle-programs-64-1", "oracle-programs-64-0"),
    ("oracle-programs-512-0", "oracle-programs-64-0"),
    ("oracle-programs-64-again-0", "oracle-programs-64-clock-0"),
    ("oracle-programs-16-clock-0", "oracle-programs-64-clock-0"),
    ("oracle-programs-512-clock-0", "oracle-programs-64-clock-0"),
    ("oracle-programs-32-batch17-0", "oracle-programs-64-batch8-0"),
    ("oracle-programs-64-batch49-0", "oracle-programs-64-batch8-0"),
    ("oracle-programs-64-again-batch8-0", "oracle-programs-64-batch8-0"),
    ("oracle-programs-64-again-sets-0", "oracle-programs-64-sets-0"),
    ("oracle-programs-64-clock-sets-0", "oracle-programs-64-sets-0"),
    ("oracle-programs-64-batch8-sets-0", "oracle-programs-64-sets-0"),
    ("oracle-gcc-64", "oracle-sqlite3-512"),
    ("oracle-system-64", "oracle-system-64-sets"),
    ("replay-random-walk-1-300-4-64-clock", "replay-threads-64"),
    ("replay-resize-storm-2-64-600-48-300-512", "replay-resize-storm-2-64-600-48-300-64-sets"),
    ("replay4-random-walk-2-300-4-64-again", "replay-threads-64"),
    (
        "replay-resize-storm-2-64-600-48-300-64-again-batch33",
        "replay-resize-storm-2-64-600-48-300-64-sets",
    ),
    ("replay4-fork-storm-64-batch8", "replay-threads-64-batch8"),
    ("replay-threads-64-sets", "replay-fork-storm-64-sets"),
    ("replay4-fork-storm-64-clock-sets", "replay-fork-storm-64-sets"),
    ("replay-fork-storm-64-groups", "replay-fork-storm-64-sets"),
    ("oracle-noflush-64-again", "oracle-noflush"),
    ("oracle-noflush-64-sets", "oracle-noflush"),
    ("oracle-noflush-512-again", "oracle-noflush"),
    ("replay-noflush-64-sets", "replay-noflush"),
    ("audit-exact", "audit-smp"),
    ("fidelity-touch-loop", "fidelity-sqlite3"),
    ("filter-marks", "filter-smp"),
    ("filter-noorder", "filter-changes"),
    ("races-repeat", "races-1-6-turns"),
    ("control-races", "late-admissions"),
    ("dropped-at-start", "window-edges"),
    ("interval-fast", "interval-smp"),
];

/// What `make test` runs.
pub fn quick() -> Vec<Scenario> {
    let is_long = |s: &Scenario| LONG.iter().any(|(long, _)| s.name == *long);
    all().into_iter().filter(|s| !is_long(s)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_exists_and_something_like_it_runs() {
        let all = all();
        let quick = quick();
        let is_in = |list: &[Scenario], name: &str| list.iter().any(|s| s.name == name);
        for (long, short) in LONG {
            assert!(is_in(&all, long), "{long}");
            assert!(!is_in(&quick, long), "{long}");
            assert!(is_in(&quick, short), "{short}");
        }
        assert_eq!(quick.len() + LONG.len(), all.len());
    }
}
