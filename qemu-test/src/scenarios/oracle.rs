//! Traces against the oracle's: every record, in order.

use super::Scenario;
use crate::machine::{Machine, Profile, debian, step};
use crate::oracle;
use anyhow::{Context, Result, ensure};

const PROGRAMS: &[&[&str]] = &[
    &["touch-loop", "100", "10"],
    &["touch-loop", "600", "3", "r"],
    &["cross-page"],
    &["kernel-copies", "pipe"],
    &["kernel-copies", "file"],
    &["kernel-copies", "vectors"],
    &["kernel-copies", "results"],
    &["signals"],
    &["fork-cow"],
    &["exec-args"],
    &["munmap-remap"],
    &["mremap-move"],
    &["mprotect-storm"],
    &["brk-stack"],
    &["file-map"],
    &["fork-storm"],
];

/// Programs of the Debian root. What they print tells that they have worked.
const REAL: [(&str, &str); 2] = [
    (
        "sqlite3",
        "sqlite3 :memory: \"CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, name TEXT); \
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) \
         INSERT INTO t SELECT i, (i * 7919) % 20003, printf('row %d', i) FROM n; \
         CREATE INDEX tk ON t(k); SELECT count(*), sum(k), max(name) FROM t; \
         PRAGMA integrity_check;\"",
    ),
    (
        "gcc",
        "cd /tmp && echo 'int f(int n) { int s = 0; while (n) s += n-- * n; return s; }' > f.c && \
         gcc -O2 -c f.c && cksum f.o",
    ),
];

/// The least that one CPU takes, a small set, a middling one.
const SIZES: [&str; 3] = ["16", "64", "512"];

/// What is run each time.
pub fn scenarios() -> Vec<Scenario> {
    full()
        .into_iter()
        .filter(|s| s.name.ends_with("-64") || s.name.contains("noflush"))
        .collect()
}

/// All of it.
pub fn full() -> Vec<Scenario> {
    let mut list = Vec::new();
    for n in SIZES {
        for argv in PROGRAMS {
            list.push(Scenario {
                name: format!("oracle-{}-{n}", argv.join("-")),
                about: "the trace is the oracle's, record by record",
                run: Box::new(move |kernel| small(argv, n, kernel)),
            });
        }
    }
    for (name, work) in REAL {
        for n in SIZES {
            list.push(Scenario {
                name: format!("oracle-{name}-{n}"),
                about: "the trace of a real program is the oracle's, record by record",
                run: Box::new(move |kernel| real(name, work, n, kernel)),
            });
        }
    }
    list.push(Scenario {
        name: "oracle-control-noflush".into(),
        about: "without the flush at eviction, the oracle finds the first record missing",
        run: Box::new(noflush),
    });
    list
}

fn machine(name: String, kernel: &str, cmdline: &str, argv: &[&str], n: &str) -> Machine {
    let program = format!("/bin/{}", argv[0]);
    let mut traced = vec!["/bin/activator", "run", "-n", n, "-o", "/dev/trace", "--"];
    traced.push(&program);
    traced.extend(&argv[1..]);
    Machine {
        name,
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: false,
        cmdline: cmdline.into(),
        files: vec![],
        steps: vec![step("traced", &traced)],
        deadline_s: 300,
    }
}

fn small(argv: &[&str], n: &str, kernel: &str) -> Result<()> {
    let name = format!("oracle-{}-{n}-{kernel}", argv.join("-"));
    let out = oracle::run(&machine(name, kernel, "", argv, n), n)?;
    let r = out.step("traced")?;
    ensure!(
        r.rc == 0 && !r.stdout.is_empty(),
        "the program fails: {r:?}"
    );
    let agreed = oracle::compare(&out.trace(), &oracle::log(&out))?;
    println!("  {agreed}");
    Ok(())
}

fn real(name: &str, work: &str, n: &str, kernel: &str) -> Result<()> {
    let script = work.replace('\'', "'\\''");
    let machine = Machine {
        image: true,
        steps: vec![
            debian("plain", work),
            debian(
                "traced",
                &format!("activator run -n {n} -o /dev/trace -- /bin/sh -c '{script}'"),
            ),
        ],
        deadline_s: 900,
        ..machine(
            format!("oracle-{name}-{n}-{kernel}"),
            kernel,
            "",
            &[name],
            n,
        )
    };
    let out = oracle::run(&machine, n)?;
    let (plain, traced) = (out.step("plain")?, out.step("traced")?);
    ensure!(
        traced.rc == 0 && !plain.stdout.is_empty() && traced.stdout == plain.stdout,
        "untraced {plain:?}, traced {traced:?}"
    );
    let agreed = oracle::compare(&out.trace(), &oracle::log(&out))?;
    println!("  {agreed}");
    Ok(())
}

fn noflush(kernel: &str) -> Result<()> {
    let argv = ["touch-loop", "100", "10"];
    let out = oracle::run(
        &machine(
            format!("oracle-noflush-{kernel}"),
            kernel,
            "vmtrace_break=noflush",
            &argv,
            "64",
        ),
        "64",
    )?;
    let found = oracle::compare(&out.trace(), &oracle::log(&out))
        .err()
        .context("without the flush, the oracle finds nothing wrong")?
        .to_string();
    println!("  {}", found.lines().next().unwrap_or_default());
    ensure!(
        found.contains("is the first that differs") && found.contains("the page is no member"),
        "another failure than the one that was made:\n{found}"
    );
    Ok(())
}
