//! Traces against the oracle's: every record, in order.

use super::Scenario;
use crate::machine::{Machine, Profile, step};
use crate::oracle;
use anyhow::{Context, Result, ensure};

const PROGRAMS: &[&[&str]] = &[
    &["touch-loop", "100", "10"],
    &["touch-loop", "600", "3", "r"],
    &["cross-page"],
    &["kernel-copies"],
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
