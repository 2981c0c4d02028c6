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
    &["kernel-copies", "segments"],
    &["kernel-copies", "results"],
    &["other-ways"],
    &["signals"],
    &["fork-cow"],
    &["exec-args"],
    &["munmap-remap"],
    &["mremap-move"],
    &["mprotect-storm"],
    &["brk-stack"],
    &["file-map"],
    &["swap-reuse"],
    &["fork-storm"],
    &["threads"],
    &["random-walk", "1", "600"],
    &["random-walk", "2", "600"],
    &["random-walk", "3", "600"],
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

/// Programs that are run each time at every size: between them, most of what
/// can go wrong. All others are run each time at one size.
const ALWAYS: [&str; 4] = ["cross-page", "signals", "fork-storm", "swap-reuse"];

/// Protections that are taken away (vmtrace_break=), and who needs them.
const CONTROLS: [(&str, &[&str]); 3] = [
    ("noflush", &["touch-loop", "100", "10"]),
    ("noaccess", &["swap-reuse"]),
    ("pmdmove", &["mremap-move"]),
];

/// What is run each time.
pub fn scenarios() -> Vec<Scenario> {
    let mut list = Vec::new();
    for n in SIZES {
        for argv in PROGRAMS {
            if n == "64" || ALWAYS.contains(&argv[0]) {
                list.push(program(argv, n));
            }
        }
    }
    list.extend(
        [real("sqlite3", "512"), real("gcc", "64")]
            .into_iter()
            .flatten(),
    );
    list.push(whole_system("64"));
    list.extend(CONTROLS.into_iter().map(control));
    list
}

/// All of it.
pub fn full() -> Vec<Scenario> {
    let mut list = Vec::new();
    for n in SIZES {
        list.extend(PROGRAMS.iter().map(|argv| program(argv, n)));
        list.extend(REAL.iter().filter_map(|(name, _)| real(name, n)));
        list.push(whole_system(n));
    }
    list.extend(CONTROLS.into_iter().map(control));
    list
}

/// Random walks, a seed each, with sizes in turn.
pub fn walks(seeds: std::ops::Range<u32>) -> Vec<Scenario> {
    seeds
        .map(|seed| {
            let n = SIZES[seed as usize % SIZES.len()];
            let argv = vec!["random-walk".into(), seed.to_string(), "3000".into()];
            small(argv, n)
        })
        .collect()
}

fn program(argv: &[&'static str], n: &'static str) -> Scenario {
    small(argv.iter().map(|a| (*a).into()).collect(), n)
}

fn small(argv: Vec<String>, n: &'static str) -> Scenario {
    Scenario {
        name: format!("oracle-{}-{n}", argv.join("-")),
        about: "the trace is the oracle's, record by record",
        run: Box::new(move |kernel| {
            let argv: Vec<_> = argv.iter().map(String::as_str).collect();
            run_small(&argv, n, kernel)
        }),
    }
}

fn real(name: &'static str, n: &'static str) -> Option<Scenario> {
    let (_, work) = REAL.into_iter().find(|(known, _)| *known == name)?;
    Some(Scenario {
        name: format!("oracle-{name}-{n}"),
        about: "the trace of a real program is the oracle's, record by record",
        run: Box::new(move |kernel| run_real(name, work, n, kernel)),
    })
}

fn whole_system(n: &'static str) -> Scenario {
    Scenario {
        name: format!("oracle-system-{n}"),
        about: "all that lives when a trace begins and when it ends is traced right",
        run: Box::new(move |kernel| run_system(n, kernel)),
    }
}

fn control((what, argv): (&'static str, &'static [&'static str])) -> Scenario {
    Scenario {
        name: format!("oracle-{what}"),
        about: "with a protection taken away, the oracle finds the first wrong record",
        run: Box::new(move |kernel| run_control(what, argv, kernel)),
    }
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

fn run_small(argv: &[&str], n: &str, kernel: &str) -> Result<()> {
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

fn run_real(name: &str, work: &str, n: &str, kernel: &str) -> Result<()> {
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

/// Traces what was there before and is there after, init above all.
fn run_system(n: &str, kernel: &str) -> Result<()> {
    let on = ["/bin/activator", "on", "--all", "-n", n, "-o", "/dev/trace"];
    let mut machine = machine(format!("oracle-system-{n}-{kernel}"), kernel, "", &[""], n);
    machine.steps = vec![
        step("on", &on),
        step("touch", &["/bin/touch-loop", "100", "3"]),
        step("fork", &["/bin/fork-cow"]),
        step("off", &["/bin/activator", "off"]),
    ];
    let out = oracle::run(&machine, n)?;
    for r in &out.results {
        ensure!(r.rc == 0, "it fails: {r:?}");
    }
    let agreed = oracle::compare(&out.trace(), &oracle::log(&out))?;
    println!("  {agreed}");
    ensure!(
        agreed.log.counts.spaces > 3,
        "only {} address spaces were traced",
        agreed.log.counts.spaces
    );
    Ok(())
}

fn run_control(what: &str, argv: &[&str], kernel: &str) -> Result<()> {
    let name = format!("oracle-{what}-{kernel}");
    let cmdline = format!("vmtrace_break={what}");
    let out = oracle::run(&machine(name, kernel, &cmdline, argv, "64"), "64")?;
    let found = oracle::compare(&out.trace(), &oracle::log(&out))
        .err()
        .context("the oracle finds nothing wrong")?
        .to_string();
    println!("  {}", found.lines().next().unwrap_or_default());
    ensure!(
        found.contains("is the first that differs") && found.contains("the page is no member"),
        "another failure than the one that was made:\n{found}"
    );
    Ok(())
}
