//! Scenarios that `make test` leaves out, because each of them takes a minute or more, or repeats
//! what another one shows with other sets. `make test-all` runs them.

use super::{Scenario, all};

/// A scenario in `make test`, and those that show the same with more time or other sets.
const LONG: &[(&str, &[&str])] = &[
    (
        "workload-64-fast",
        &["workload-64-smp", "workload-512-fast", "workload-512-smp"],
    ),
    (
        "control-nozap",
        &["control-noseq", "control-nowriter", "control-noadvise"],
    ),
    (
        "programs-64-exact",
        &["programs-32-exact", "programs-512-exact"],
    ),
    ("programs-64-smp", &["programs-512-smp"]),
    (
        "late-admissions",
        &[
            "late-copies",
            "control-races",
            "control-nosame",
            "control-nolive",
        ],
    ),
    ("segments-million", &["segments-stop"]),
    ("segments-resize-exact", &["segments-resize-smp"]),
    ("segments-least-fifo-exact", &["segments-least-fifo-smp"]),
    ("segments-least-clock-exact", &["segments-least-clock-smp"]),
    ("cpus-idle-2", &["cpus-idle-64"]),
    ("sets-process-fast", &["sets-process-smp"]),
    (
        "oracle-programs-64-0",
        &[
            "oracle-programs-16-0",
            "oracle-programs-64-1",
            "oracle-programs-512-0",
        ],
    ),
    (
        "oracle-programs-64-clock-0",
        &[
            "oracle-programs-64-again-0",
            "oracle-programs-16-clock-0",
            "oracle-programs-512-clock-0",
        ],
    ),
    (
        "oracle-programs-64-batch8-0",
        &[
            "oracle-programs-32-batch17-0",
            "oracle-programs-64-batch49-0",
            "oracle-programs-64-again-batch8-0",
        ],
    ),
    (
        "oracle-programs-64-sets-0",
        &[
            "oracle-programs-64-again-sets-0",
            "oracle-programs-64-clock-sets-0",
            "oracle-programs-64-batch8-sets-0",
            "oracle-programs-64-groups-0",
        ],
    ),
    ("oracle-sqlite3-512", &["oracle-gcc-64"]),
    ("oracle-system-64-sets", &["oracle-system-64"]),
    (
        "replay-threads-64",
        &[
            "replay-threads-64-batch8",
            "replay4-fork-storm-64-batch8",
            "replay-random-walk-1-300-4-64-clock",
            "replay4-random-walk-2-300-4-64-again",
        ],
    ),
    (
        "replay-resize-storm-2-64-600-48-300-64-sets",
        &[
            "replay-resize-storm-2-64-600-48-300-512",
            "replay-resize-storm-2-64-600-48-300-64-again-batch33",
        ],
    ),
    (
        "replay-fork-storm-64-sets",
        &[
            "replay-threads-64-sets",
            "replay4-fork-storm-64-clock-sets",
            "replay-fork-storm-64-groups",
        ],
    ),
    (
        "oracle-noflush",
        &[
            "oracle-noflush-64-again",
            "oracle-noflush-64-sets",
            "oracle-noflush-64-batch8",
            "oracle-noflush-512-again",
        ],
    ),
    ("replay-noflush", &["replay-noflush-64-sets"]),
    ("audit-smp", &["audit-exact"]),
    ("fidelity-sqlite3", &["fidelity-touch-loop"]),
    ("fidelity-sets", &["fidelity-one-set"]),
    ("fidelity-noflush", &["fidelity-sets-noflush"]),
    ("packed-smp", &["packed"]),
    // It removes pieces, too, in some seconds, and leaves out how much memory that takes.
    ("rotate-keep", &["day-2h", "day-control"]),
    ("filter-smp", &["filter-marks"]),
    ("filter-changes", &["filter-noorder"]),
    ("races-1-6-turns", &["races-repeat"]),
    ("window-edges", &["dropped-at-start"]),
    ("damon-truth-python3", &["damon-truth-sqlite3"]),
    ("interval-turns", &["interval-fast", "interval-smp"]),
    ("regions-exact", &["regions-fast", "regions-damon"]),
    ("regions-turns", &["regions-smp"]),
    ("compare-rwp", &["compare-mprotect"]),
    (
        "between-exact",
        &[
            "between-cost-sqlite3",
            "between-cost-gcc",
            "between-cost-python3",
            "between-cost-redis",
        ],
    ),
    (
        "budget-windows-exact",
        &[
            "budget-sqlite3-1.1-exact",
            "budget-sqlite3-1.5-exact",
            "budget-gcc-1.1-exact",
            "budget-gcc-1.5-exact",
            "budget-python3-1.1-exact",
            "budget-python3-1.5-exact",
            "budget-redis-1.1-exact",
            "budget-redis-1.5-exact",
        ],
    ),
];

/// What `make test` runs.
pub fn quick() -> Vec<Scenario> {
    let is_long = |s: &Scenario| LONG.iter().any(|(_, long)| long.contains(&s.name.as_str()));
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
        for (short, long) in LONG {
            assert!(is_in(&quick, short), "{short}");
            for name in *long {
                assert!(is_in(&all, name), "{name}");
                assert!(!is_in(&quick, name), "{name}");
            }
        }
        let left_out: usize = LONG.iter().map(|(_, long)| long.len()).sum();
        assert_eq!(quick.len() + left_out, all.len());
    }
}
