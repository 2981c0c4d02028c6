//! The kernel's own mm selftests (tools/testing/selftests/mm), untraced and traced: each
//! must end in the same way, case by case.
//!
//! `scripts/selftests.sh` builds them from the patched tree. Each group runs in two boots,
//! one untraced and one in which each program is traced, so that both begin in the same
//! state. Cases that tracing changes on purpose stand in [`CHANGED`]: they need transparent
//! huge pages of PMD size. In a third boot, their programs run untraced, but are not given
//! such pages: each such case must end as it does there. A line of that table to which nothing
//! corresponds is an error. Of programs in [`ONLY_HUGE`] only the trace is judged, and cases in
//! [`UNSTABLE`] may end in either way.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, debian};
use crate::paths;
use crate::runner::say;
use anyhow::{Context, Result, bail, ensure};
use kvmtrace_guest::{Step, StepResult};
use std::collections::{BTreeMap, BTreeSet};

/// Programs with their arguments, by group. The arguments are those of run_vmtests.sh, or
/// fewer pages and rounds where QEMU would take minutes.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "cow",
        &[
            "cow",
            "gup_longterm",
            "mkdirty",
            "rmap",
            "memfd_secret",
            "mdwe_test",
        ],
    ),
    (
        "map",
        &[
            "map_fixed_noreplace",
            "map_populate",
            "droppable",
            "mremap_test",
            "mremap_dontunmap",
            "mseal_test",
            "merge",
            "guard-regions",
            "madv_populate",
            "process_madv",
            "mrelease_test",
            "mlock-random-test",
            "mlock2-tests",
            "on-fault-limit",
            "pfnmap",
            "va_high_addr_switch",
            "memory-failure",
        ],
    ),
    (
        "bits",
        &[
            "soft-dirty",
            "pagemap_ioctl",
            "protection_keys_64",
            "pkey_sighandler_tests_64",
        ],
    ),
    (
        "uffd",
        &[
            "uffd-unit-tests",
            "uffd-stress anon 20 2",
            "uffd-stress shmem 20 2",
            "uffd-stress shmem-private 20 2",
            "uffd-stress hugetlb 64 2",
            "uffd-stress hugetlb-private 64 2",
        ],
    ),
    ("remap", &["uffd-wp-mremap"]),
    (
        "moves",
        &[
            "migration",
            "compaction_test",
            "ksm_functional_tests",
            "ksm_tests -M -p 10",
            "ksm_tests -U",
            "ksm_tests -Z -p 10 -z 0",
            "ksm_tests -Z -p 10 -z 1",
            "ksm_tests -N -m 1",
            "ksm_tests -N -m 0",
            "ksm_tests -H -s 100",
            "ksm_tests -P -s 100",
            "gup_test -u -n 1",
            "gup_test -u -n -1",
            "gup_test -a -n 1",
            "gup_test -a -n -1",
            "gup_test -t -U -w -n 512",
            "gup_test -T -U -W -S -n 123",
            "gup_test -t -L -w -S -n 512",
            "gup_test -T -L -W -n -1",
            "gup_test -H -m 16 -b -w -n 123",
            "gup_test -ct -F 0x1 0 19 0x1000",
        ],
    ),
    (
        "huge",
        &[
            "hugetlb-mmap",
            "hugetlb-shm",
            "hugetlb-mremap",
            "hugetlb-madvise",
            "hugetlb_dio",
            "hugetlb_fault_after_madv",
            "hugetlb_madv_vs_map",
            "thuge-gen",
            "prctl_thp_disable",
            "hugetlb-soft-offline",
            "hugetlb-read-hwpoison",
            "hugetlb_reparenting_test.sh -cgroup-v2",
        ],
    ),
    ("hmm", &["hmm-tests"]),
    (
        "thp",
        &[
            "split_huge_page_test",
            "khugepaged",
            "khugepaged -s 2",
            "khugepaged all:shmem",
            "khugepaged -s 4 all:shmem",
            "khugepaged -c 4 mthp_khugepaged:anon",
            "transhuge-stress -d 5",
            "folio_split_race_test",
        ],
    ),
];

/// What of tools/testing/selftests/mm is in no group, and why.
#[cfg(test)]
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "charge_reserved_hugetlb.sh",
        "takes minutes untraced, and more than ten traced",
    ),
    (
        "write_to_hugetlbfs",
        "is run by hugetlb_reparenting_test.sh",
    ),
    (
        "write_hugetlb_memory.sh",
        "is run by charge_reserved_hugetlb.sh",
    ),
    ("protection_keys", "is built for other architectures"),
    ("pkey_sighandler_tests", "is built for other architectures"),
    ("protection_keys_32", "needs the libraries of 32 bits"),
    ("pkey_sighandler_tests_32", "needs the libraries of 32 bits"),
    (
        "test_vmalloc.sh",
        "loads a module, and touches no user memory",
    ),
    (
        "test_page_frag.sh",
        "loads a module, and touches no user memory",
    ),
    (
        "test_hmm.sh",
        "loads the driver, which is built in, and runs hmm-tests",
    ),
    (
        "va_high_addr_switch.sh",
        "looks for a configuration, and runs va_high_addr_switch",
    ),
    ("run_vmtests.sh", "runs all of them"),
];

/// Cases that tracing changes on purpose, because there are no transparent huge pages of PMD
/// size while tracing is on: program, and some words of the case.
const CHANGED: &[(&str, &str)] = &[
    ("cow", "THP"),
    ("cow", "huge zeropage"),
    ("cow", "collapsing"),
    ("mkdirty", "SIGSEGV generated, page not modified"),
    ("mkdirty", "Did not get a THP populated"),
    ("process_madv", "process_madvise.remote_collapse"),
    ("soft-dirty", "Test test_hugepage huge page"),
    ("uffd-unit-tests", "minor-collapse on shmem"),
    ("uffd-wp-mremap", "test_one_folio(size=2097152"),
    ("uffd-wp-mremap", "MADV_PAGEOUT did not work"),
    // The program takes a folio that it does not get for a failure.
    ("uffd-wp-mremap", "alloc_one_folio() failed"),
    // MADV_COLLAPSE fails.
    ("hmm-tests", "hmm_device_private.migrate_anon_huge_fault"),
    // One allocation fails, which is to be that of a huge page: all of a huge page is migrated
    // in small ones then; of small pages, one stays.
    ("hmm-tests", "hmm_device_private.migrate_anon_huge_err"),
    ("hmm-tests", "hmm_device_private.migrate_anon_huge_zero_err"),
];

/// Programs that do nothing without transparent huge pages of PMD size, and also change by
/// themselves who is given such pages, so that a third boot would not be without. They run
/// traced, and only the trace is judged.
const ONLY_HUGE: &[(&str, &str)] = &[
    ("khugepaged", "each case collapses pages to huge ones"),
    ("prctl_thp_disable", "each case expects huge pages"),
    ("folio_split_race_test", "splits huge pages of shmem"),
];

/// Cases that end in one way or the other untraced: program, words of the case, and why.
const UNSTABLE: &[(&str, &str, &str)] = &[
    (
        "ksm_tests -U",
        "KSM unmerging",
        "waits for the end of one scan, which may have begun before its writes",
    ),
    (
        "ksm_tests -N -m 1",
        "KSM NUMA merging",
        "waits for the ends of two scans, of which the first may have begun before its writes",
    ),
    (
        "hugetlb-soft-offline",
        "enabled_soft_offline=1",
        "looks at errno after a call that succeeded, and errno is what it was",
    ),
    (
        "hmm-tests",
        "benchmark_thp_migration",
        "needs about as much memory as the guest has: the OOM killer may end it",
    ),
];

/// Programs that need large folios of other sizes, which PR_SET_THP_DISABLE would take away,
/// too. The file by which they choose that size has no effect instead.
const SIZES: &[&str] = &["uffd-wp-mremap"];

/// No anonymous folios of PMD size, whatever is written to the file that chooses. The kernel
/// makes those of shmem while it traces, too, and maps them by PTEs.
const NO_PMD_SIZE: &str = "cd /sys/kernel/mm/transparent_hugepage/hugepages-2048kB; \
     echo never >enabled; cat enabled >/tmp/enabled; mount --bind /tmp/enabled enabled; ";

/// Programs whose cases have numbers in their words that depend on the time.
const NUMBERED: &[&str] = &["mrelease_test"];

/// The scenarios: one for each group.
pub fn full() -> Vec<Scenario> {
    let of = |&(group, tests): &(&'static str, &'static [&'static str])| Scenario {
        name: format!("selftests-{group}"),
        about: "the kernel's own mm selftests end in the same way, traced and untraced",
        run: Box::new(move |kernel| run(group, tests, kernel)),
    };
    GROUPS.iter().map(of).collect()
}

/// Seconds that a program may take.
const LIMIT: u64 = 600;

/// How the programs run.
#[derive(Clone, Copy)]
enum How {
    Plain,
    Traced,
    /// Untraced, and without transparent huge pages.
    Small,
}

fn one(test: &str, how: How) -> Step {
    let by = match how {
        How::Plain => "",
        How::Traced => {
            "/opt/kvmtrace/bin/activator run -q -n 64 --status-file /tmp/status -o /dev/trace -- "
        }
        How::Small if SIZES.contains(&test) => "",
        How::Small => "/opt/kvmtrace/bin/no-huge ",
    };
    let before = match how {
        How::Small if SIZES.contains(&test) => NO_PMD_SIZE,
        _ => "",
    };
    // A file of its own for each stream would hide their order.
    let script = format!(
        "{before}cd /shared; rm -f /tmp/status; timeout {LIMIT} {by}./{test} 2>&1; rc=$?; \
         [ ! -e /tmp/status ] || tr -d '\\n ' </tmp/status >&2; exit $rc"
    );
    Step {
        timeout_s: LIMIT + 60,
        ..debian(test, &script)
    }
}

fn boot(group: &str, tests: &[&str], kernel: &str, how: How) -> Result<Outcome> {
    let disk = paths::build().join("selftests.ext4");
    ensure!(
        disk.exists(),
        "{} is missing: run scripts/selftests.sh",
        disk.display()
    );
    let mut more = super::corners::nodes(Profile::Smp);
    more.push("-drive".into());
    more.push(format!(
        "if=none,id=shared,format=raw,snapshot=on,file={}",
        disk.display()
    ));
    more.push("-device".into());
    more.push("virtio-blk-pci,drive=shared,serial=shared".into());
    Machine {
        name: format!(
            "selftests-{group}-{}-{kernel}",
            match how {
                How::Plain => "plain",
                How::Traced => "traced",
                How::Small => "small",
            }
        ),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps: tests.iter().map(|test| one(test, how)).collect(),
        deadline_s: 3000,
    }
    .run_with(&more)
}

/// How each case ended, by its words; the program itself is a case without words.
fn cases(r: &StepResult) -> BTreeMap<String, String> {
    let mut cases = BTreeMap::new();
    cases.insert(String::new(), format!("exit code {}", r.rc));
    for line in r.stdout.lines() {
        let line = line.trim_start_matches("# ");
        let (verdict, rest) = match line.strip_prefix("not ok ") {
            Some(rest) => ("not ok", rest),
            None => match line.strip_prefix("ok ") {
                Some(rest) => ("ok", rest),
                None => continue,
            },
        };
        let words = rest.trim_start_matches(|c: char| c.is_ascii_digit()).trim();
        let (words, verdict) = match words.split_once("# SKIP") {
            // Some programs name nothing except the reason.
            Some((words, why)) if words.trim().is_empty() => (why.trim(), "skip"),
            Some((words, _)) => (words.trim(), "skip"),
            None => (words, verdict),
        };
        let mut words = words.to_string();
        if NUMBERED.contains(&r.name.as_str()) {
            words.retain(|c| !c.is_ascii_digit());
        }
        // Cases of one name are counted.
        let known = cases.entry(words).or_default();
        if !known.is_empty() {
            known.push_str(", ");
        }
        known.push_str(verdict);
    }
    cases
}

fn run(group: &str, tests: &[&str], kernel: &str) -> Result<()> {
    let plain = boot(group, tests, kernel, How::Plain)?;
    let traced = boot(group, tests, kernel, How::Traced)?;
    let mut wrong = Vec::new();
    let (mut equal, mut skipped, mut failing, mut traced_only) = (0, 0, 0, 0);
    let mut used = vec![false; CHANGED.len()];
    // Of each program, the cases that tracing changes, and how they end then.
    let mut changed: BTreeMap<&str, BTreeMap<String, Option<String>>> = BTreeMap::new();
    for test in tests {
        let result = traced.step(test)?;
        let program = test.split(' ').next().unwrap_or_default();
        if ONLY_HUGE.iter().any(|o| o.0 == program) {
            judge(test, result, &mut wrong).with_context(|| format!("{test}: {result:?}"))?;
            traced_only += 1;
            continue;
        }
        let before = cases(plain.step(test)?);
        let after = cases(result);
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        for name in names {
            let (b, a) = (before.get(name), after.get(name));
            if b == a {
                equal += 1;
                // A kernel without the driver that a case needs.
                for (line, used) in CHANGED.iter().zip(&mut used) {
                    let skips = b.is_some_and(|b| b == "skip");
                    *used |= skips && line.0 == *test && name.contains(line.1);
                }
                skipped += usize::from(b.is_some_and(|b| b.contains("skip")));
                failing += usize::from(b.is_some_and(|b| b.contains("not ok")));
                continue;
            }
            let unstable =
                |u: &&(&str, &str, &str)| u.0 == *test && (name.is_empty() || name.contains(u.1));
            if UNSTABLE.iter().any(|u| unstable(&u)) {
                continue;
            }
            // The exit code is that of any of its cases.
            let line = CHANGED
                .iter()
                .position(|c| c.0 == *test && (name.is_empty() || name.contains(c.1)));
            let Some(line) = line else {
                wrong.push(format!("{test}: {name}: {b:?} untraced, {a:?} traced"));
                continue;
            };
            used[line] |= !name.is_empty();
            let cases = changed.entry(test).or_default();
            cases.insert(name.clone(), a.cloned());
        }
        judge(test, result, &mut wrong).with_context(|| format!("{test}: {result:?}"))?;
    }
    for (line, used) in CHANGED.iter().zip(used) {
        if tests.contains(&line.0) && !used {
            wrong.push(format!("{}: {}: tracing changes nothing", line.0, line.1));
        }
    }
    if !changed.is_empty() {
        let tests: Vec<&str> = changed.keys().copied().collect();
        let small = boot(group, &tests, kernel, How::Small)?;
        for (test, changed) in &changed {
            let without = cases(small.step(test)?);
            for (name, a) in changed {
                let s = without.get(name);
                if s != a.as_ref() {
                    wrong.push(format!(
                        "{test}: {name}: {s:?} untraced without huge pages, {a:?} traced"
                    ));
                }
            }
        }
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    let changed: usize = changed.values().map(BTreeMap::len).sum();
    say!(
        "  {} programs, {equal} cases with the same end ({skipped} skipped, {failing} fail), {changed} \
         that need huge pages; of {traced_only} programs only the traces are judged",
        tests.len()
    );
    Ok(())
}

/// The trace itself: nothing lost, no funny PTE.
fn judge(test: &str, r: &StepResult, wrong: &mut Vec<String>) -> Result<()> {
    let status: serde_json::Value = serde_json::from_str(&r.stderr)?;
    for name in [
        "funny",
        "stuck",
        "dangling",
        "miscounted",
        "lost_full",
        "lost_atomic",
        "lost_io",
    ] {
        let found = status[name].as_u64().context("no such figure")?;
        if found != 0 {
            wrong.push(format!("{test}: {name}: {found}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{GROUPS, LEFT_OUT};
    use std::collections::BTreeSet;

    /// Each program that the Makefile of the selftests builds is in a group or left out.
    #[test]
    fn no_program_is_forgotten() {
        let makefile = crate::paths::build().join("linux/tools/testing/selftests/mm/Makefile");
        // There is no source before `make kernel`.
        let Ok(makefile) = std::fs::read_to_string(makefile) else {
            return;
        };
        let in_groups = GROUPS.iter().flat_map(|g| g.1);
        let known: BTreeSet<&str> = in_groups
            .filter_map(|test| test.split(' ').next())
            .chain(LEFT_OUT.iter().map(|l| l.0))
            .collect();
        let mut missing = Vec::new();
        for line in makefile.lines() {
            let names = ["TEST_GEN_FILES", "TEST_FILES"]
                .iter()
                .find_map(|variable| {
                    let rest = line.trim().strip_prefix(variable)?.trim_start();
                    rest.strip_prefix("+=").or_else(|| rest.strip_prefix('='))
                });
            let names = names.unwrap_or_default().split_whitespace();
            for name in names.filter(|n| !n.starts_with('$') && !known.contains(n)) {
                missing.push(name.to_string());
            }
        }
        assert!(missing.is_empty(), "in no group: {missing:?}");
    }
}
