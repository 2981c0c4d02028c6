//! When each scenario runs, so that all of them together take little time.
//!
//! Without a plan, a job waits at the end for the other one's last scenario, or before a scenario that
//! nothing may run beside, or for a second CPU of the host. And while a scenario waits for a time limit of the
//! kernel, its job's CPU is idle. A scenario is right wherever it runs; the lists save time and no more.

use super::Scenario;

/// Nothing may run beside them ([`crate::runner::alone`]). They run before any other one, so that no
/// job waits for the end of what another job has begun.
const ALONE: &[&str] = &["server-nbd"];

/// Those of one CPU, or of CPUs in one thread of the host, that take longest. They begin first, so that
/// what comes last of their kind is short.
const LONGEST: &[&str] = &[
    "corners-64-exact",
    "workload-64-fast",
    "counts",
    "control-nozap",
];

/// How the names of others of that kind begin. They run together and before those of several CPUs: a guest
/// with several CPUs waits for as many of the host's, and one of these waits until its other one is free.
const ONE_CPU: &[&str] = &[
    "bad-input",
    "control-",
    "corners-",
    "damon-record",
    "defects",
    "fidelity-",
    "file-events",
    "frames",
    "kunit",
    "minor-faults",
    "oracle-",
    "output-full",
    "programs-64-exact",
    "reasons",
    "regions-control",
    "regions-exact",
    "regions-refused",
    "regions-turns",
    "regions-young",
    "replay-",
    "segments-",
    "stacked-files",
    "toggles-turns",
    "versions",
    "workload-",
];

/// Those whose CPUs are idle for most of the time, because they wait for time limits, or for a disk that
/// is slow. They run beside the others, one at a time.
const WAITING: &[&str] = &[
    "answers",
    "attach-stop",
    "disk-hangs",
    "frozen-all",
    "frozen-calls",
    "frozen-control",
    "frozen-pid",
    "rotate-between",
    "rotate-full",
    "slow-turns",
    "stop-locks",
];

/// When a scenario runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Turn {
    /// Before all others.
    Alone,
    /// Before those that take less time.
    Longest,
    /// Before those of several CPUs.
    OneCpu,
    /// In the list's order.
    Usual,
    /// Beside the others, if there is more than one job.
    Waiting,
}

/// When the scenario of this name runs.
pub fn turn(name: &str) -> Turn {
    let lists = [
        (ALONE, Turn::Alone),
        (LONGEST, Turn::Longest),
        (WAITING, Turn::Waiting),
    ];
    let found = lists.iter().find(|(list, _)| list.contains(&name));
    let one_cpu = ONE_CPU.iter().any(|begin| name.starts_with(begin));
    let other = if one_cpu { Turn::OneCpu } else { Turn::Usual };
    found.map_or(other, |(_, turn)| *turn)
}

/// Puts scenarios into the order in which they are to begin.
pub fn arrange(list: &mut [Scenario]) {
    let place = |s: &Scenario| LONGEST.iter().position(|name| *name == s.name);
    list.sort_by_key(|s| (turn(&s.name), place(s)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::{all, long};

    #[test]
    fn the_lists_name_what_make_test_runs_and_each_once() {
        let quick = long::quick();
        let mut names: Vec<_> = [ALONE, LONGEST, WAITING].concat();
        for name in &names {
            assert!(quick.iter().any(|s| s.name == *name), "{name}");
        }
        for begin in ONE_CPU {
            assert!(quick.iter().any(|s| s.name.starts_with(begin)), "{begin}");
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn the_longest_come_after_what_is_alone_and_before_all_others() {
        let mut list = all();
        let count = list.len();
        arrange(&mut list);
        let turns: Vec<_> = list.iter().map(|s| turn(&s.name)).collect();
        assert!(turns.is_sorted());
        let names: Vec<_> = list.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names.len(), count);
        let longest = names.iter().skip(ALONE.len()).take(LONGEST.len());
        assert!(longest.eq(LONGEST));
        // The others stay in their order.
        let usual = |list: &[Scenario]| -> Vec<String> {
            let usual = list.iter().filter(|s| turn(&s.name) == Turn::Usual);
            usual.map(|s| s.name.clone()).collect()
        };
        assert_eq!(usual(&list), usual(&all()));
    }
}
