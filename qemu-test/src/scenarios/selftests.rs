//! The kernel's own mm selftests (tools/testing/selftests/mm), untraced and traced: each
//! must end in the same way, case by case.
//!
//! `scripts/selftests.sh` builds them from the patched tree. Each group runs in two boots,
//! one untraced and one in which each program is traced, so that both begin in the same
//! state. Cases that tracing changes on purpose stand in [`CHANGED`], with the reason. Such a
//! case may be skipped or left out, but it must not fail; and a line of that table to which
//! nothing corresponds is an error.

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
            "uffd-wp-mremap",
        ],
    ),
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
            "gup_test -u -n 1",
            "gup_test -u -n -1",
            "gup_test -a -n 1",
            "gup_test -a -n -1",
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
        ],
    ),
    ("hmm", &["hmm-tests"]),
    (
        "thp",
        &[
            "split_huge_page_test",
            "khugepaged",
            "transhuge-stress -d 5",
            "folio_split_race_test",
        ],
    ),
];

/// Why there are no huge pages.
const NO_THP: &str = "no transparent huge page of PMD size while tracing is on";

/// Cases that tracing changes on purpose: program, some words of the case, and why.
const CHANGED: &[(&str, &str, &str)] = &[
    ("cow", "THP", NO_THP),
    ("cow", "huge zeropage", NO_THP),
    ("cow", "collapsing", NO_THP),
    ("mkdirty", "SIGSEGV generated, page not modified", NO_THP),
    ("mkdirty", "Did not get a THP populated", NO_THP),
    ("process_madv", "process_madvise.remote_collapse", NO_THP),
    ("soft-dirty", "Test test_hugepage huge page", NO_THP),
    ("uffd-unit-tests", "minor-collapse on shmem", NO_THP),
    ("uffd-wp-mremap", "test_one_folio(size=2097152", NO_THP),
    ("uffd-wp-mremap", "MADV_PAGEOUT did not work", NO_THP),
    // The program takes a folio that it does not get for a failure.
    ("uffd-wp-mremap", FAILS, NO_THP),
];

/// The words of the case that fails while tracing is on, because its program cannot skip it.
const FAILS: &str = "alloc_one_folio() failed";

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

fn one(test: &str, traced: bool) -> Step {
    let activator = match traced {
        true => {
            "/opt/kvmtrace/bin/activator run -q -n 64 --status-file /tmp/status -o /dev/trace -- "
        }
        false => "",
    };
    // A file of its own for each stream would hide their order.
    let script = format!(
        "cd /shared; rm -f /tmp/status; timeout {LIMIT} {activator}./{test} 2>&1; rc=$?; \
         [ ! -e /tmp/status ] || tr -d '\\n ' </tmp/status >&2; exit $rc"
    );
    Step {
        timeout_s: LIMIT + 60,
        ..debian(test, &script)
    }
}

fn boot(group: &str, tests: &[&str], kernel: &str, traced: bool) -> Result<Outcome> {
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
            if traced { "traced" } else { "plain" }
        ),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps: tests.iter().map(|test| one(test, traced)).collect(),
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
    let plain = boot(group, tests, kernel, false)?;
    let traced = boot(group, tests, kernel, true)?;
    let mut wrong = Vec::new();
    let (mut equal, mut skipped, mut failing, mut changed) = (0, 0, 0, 0);
    let mut used = vec![false; CHANGED.len()];
    for test in tests {
        let before = cases(plain.step(test)?);
        let result = traced.step(test)?;
        let after = cases(result);
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        for name in names {
            let (b, a) = (before.get(name), after.get(name));
            if b == a {
                equal += 1;
                skipped += usize::from(b.is_some_and(|b| b.contains("skip")));
                failing += usize::from(b.is_some_and(|b| b.contains("not ok")));
                continue;
            }
            let why = CHANGED
                .iter()
                .position(|c| c.0 == *test && name.contains(c.1));
            match why {
                Some(i) if CHANGED[i].1 == FAILS || !a.is_some_and(|a| a.contains("not ok")) => {
                    used[i] = true;
                    changed += 1;
                }
                _ => wrong.push(format!("{test}: {name}: {b:?} untraced, {a:?} traced")),
            }
        }
        judge(test, result, &mut wrong).with_context(|| format!("{test}: {result:?}"))?;
    }
    for (line, used) in CHANGED.iter().zip(used) {
        if tests.contains(&line.0) && !used {
            wrong.push(format!("{}: {}: tracing changes nothing", line.0, line.1));
        }
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    say!(
        "  {} programs, {equal} cases with the same end ({skipped} skipped, {failing} fail), {changed} \
         changed on purpose",
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
