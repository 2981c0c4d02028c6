//! `make bench`: instructions under icount, where they are exact; what the set's size costs real
//! programs; and references a second of two processes on two CPUs.

use crate::machine::{Machine, Outcome, Profile, step};
use crate::postproc;
use crate::scenarios::workload;
use crate::targets::{self, Target};
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::Step;
use serde_json::Value;

pub mod pace;

/// Loops of `cost`, and the hooks that each comes by.
const LOOPS: &[(&str, &str)] = &[
    ("minor-fault", "page tables"),
    ("fault", "page tables"),
    ("fork", "fork, copies, exit"),
    ("exec", "exec, mappings"),
    ("mmap", "mappings"),
    ("mprotect", "protections"),
    ("mremap", "moves"),
    ("madvise", "advice"),
    ("truncate", "ends of files' pages"),
    ("read", "reads"),
    ("read-block", "reads"),
    ("write", "writes"),
    ("pipe", "reads and writes"),
    ("switch", "switches, reads and writes"),
    ("open-close", "opens and closes"),
    ("shm", "System V shared memory"),
    ("gup", "pages handed out"),
];

/// What is said of a traced loop, the activator's options, and what `cost` is to do.
const TRACED: [(&str, &str, &str); 11] = [
    ("a traced re-reference", "", "rereference 1024"),
    (
        "with kvmtraced's work and the file's",
        "",
        "rereference-mean 8192",
    ),
    (
        "with that work, records packed",
        "--pack ",
        "rereference-mean 8192",
    ),
    (
        "with that work, packed by Zstandard, too",
        "--pack=zstd ",
        "rereference-mean 8192",
    ),
    ("with offsets", "--offsets ", "rereference 1024"),
    ("with virtual time", "--virtual-time ", "rereference 1024"),
    ("without batches", "--batch 1 ", "rereference 1024"),
    (
        "judged by its thread's name, and kept",
        "--filter comm==\"cost\" ",
        "rereference 1024",
    ),
    (
        "judged by its thread's name, and left out",
        "--filter comm!=\"cost\" ",
        "rereference 1024",
    ),
    (
        "judged by its mapping's name, and kept",
        "--filter mapping!~\"*.so\" ",
        "rereference 1024",
    ),
    ("counted (--count)", "--count ", "rereference 1024"),
];

fn untraced() -> Vec<Step> {
    let loops = LOOPS.iter();
    loops.map(|(l, _)| step(l, &["/bin/cost", l])).collect()
}

fn traced() -> Vec<Step> {
    let steps = TRACED.iter().map(|(what, options, cost)| {
        // What packing costs has rows of its own.
        let pack = if options.contains("--pack") {
            ""
        } else {
            "--pack=no "
        };
        let line =
            format!("/bin/activator run -n 512 {pack}{options}-o /dev/trace -- /bin/cost {cost}");
        let argv: Vec<_> = line.split(' ').collect();
        step(what, &argv)
    });
    steps.collect()
}

fn boot(name: &str, kernel: &str, steps: Vec<Step>) -> Result<Outcome> {
    Machine {
        name: name.into(),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 300,
    }
    .run()
}

fn ticks(out: &Outcome, name: &str) -> Result<u64> {
    let r = out.step(name)?;
    ensure!(r.rc == 0, "{name}: {r:?}");
    r.stdout
        .trim()
        .parse()
        .with_context(|| format!("{name} printed {:?}", r.stdout))
}

/// A re-reference takes at most so many times the instructions of a minor fault.
const OF_A_FAULT: f64 = 0.5;
/// So many percent more instructions at most, while nothing is traced, than on an unpatched kernel.
const WHEN_OFF: f64 = 0.5;

/// Prints what a traced reference costs.
///
/// # Errors
///
/// As [`run`].
pub fn references(kernel: &str) -> Result<()> {
    // The hooks stay on for some time after a trace.
    let steps = [minor_fault()].into_iter().chain(traced()).collect();
    let target = print_references(&boot("bench-references", kernel, steps)?)?;
    targets::settle(&[target], kernel)
}

fn minor_fault() -> Step {
    step("minor-fault", &["/bin/cost", "minor-fault"])
}

fn print_references(base: &Outcome) -> Result<Target> {
    let fault = ticks(base, "minor-fault")?;
    println!("\ninstructions (icount), N=512, batches of the default size");
    println!("{:<40} {fault:>10}", "a minor fault, same kernel");
    for (what, ..) in TRACED {
        let traced = ticks(base, what)?;
        println!(
            "{what:<40} {traced:>10}   ratio {:.2}",
            traced as f64 / fault as f64
        );
    }
    let (what, ..) = TRACED[0];
    let ratio = ticks(base, what)? as f64 / fault as f64;
    Ok(Target::most(
        format!("{what}, times a minor fault"),
        OF_A_FAULT,
        ratio,
    ))
}

/// Runs all and prints the tables.
///
/// # Errors
///
/// If a run fails or gives no figure, or a figure misses its target.
pub fn run(programs: bool, kernel: &str) -> Result<()> {
    let vanilla = boot("bench-vanilla", "vanilla", untraced())?;
    let steps = untraced().into_iter().chain(traced()).collect();
    let base = boot("bench-traced", kernel, steps)?;
    println!("instructions (icount), tracing off: the patched kernel against the unpatched");
    println!(
        "{:<12} {:<26} {:>10} {:>10} {:>8}",
        "loop", "hooks of", "unpatched", "patched", "change"
    );
    let mut targets = vec![];
    for (name, hooks) in LOOPS {
        let (v, b) = (ticks(&vanilla, name)?, ticks(&base, name)?);
        let change = (b as f64 / v as f64 - 1.0) * 100.0;
        println!("{name:<12} {hooks:<26} {v:>10} {b:>10} {change:>+7.2}%");
        let what = format!("tracing off, {name}, % more than unpatched");
        targets.push(Target::most(what, WHEN_OFF, change));
    }
    targets.push(print_references(&base)?);
    if programs {
        targets.extend(whole_programs(&[64, 512, 4096], None, kernel)?);
        targets.extend(pace::run(false, kernel)?);
    }
    println!();
    targets::settle(&targets, kernel)
}

/// At most so many times the instructions of the whole system are executed with a set of N pages. With smaller
/// sets, nothing is promised.
fn times_the_instructions(n: u32) -> Option<f64> {
    match n {
        0..64 => None,
        64..512 => Some(10.0),
        512.. => Some(1.2),
    }
}

/// Measures what tracing costs whole programs, with sets of these sizes and batches of this size. Gives the targets,
/// which are for batches of the default size.
///
/// # Errors
///
/// If a run fails or gives no figure.
pub fn whole_programs(sizes: &[u32], batch: Option<u32>, kernel: &str) -> Result<Vec<Target>> {
    println!(
        "\nsqlite3 (200,000 rows) and gcc on one CPU: how much longer than untraced they take,"
    );
    println!("in instructions of the whole system (icount), and in wall time under TCG");
    println!(
        "{:>6} {:>3} {:>12} {:>9} {:>12} {:>12} {:>14} {:>10}",
        "N", "K", "instructions", "time", "seconds", "references", "references/s", "bytes each"
    );
    let mut targets = vec![];
    let is_default = batch.is_none();
    let batch = batch.map_or(String::new(), |k| format!(" --batch {k}"));
    for n in sizes {
        let set = format!("-n {n}{batch}");
        let name = set.replace([' ', '-'], "");
        // The instructions are those of the whole system, kvmtraced included.
        let options = format!("{set} --pack=no");
        let run = |profile| workload::trace_with(&options, &name, profile, workload::ROWS, kernel);
        let (out, exact) = (run(Profile::Fast)?, run(Profile::Exact)?);
        let plain = out.step("plain")?.ns as f64 / 1e9;
        let traced = out.step("traced")?.ns as f64 / 1e9;
        let status: Value = serde_json::from_str(&out.step("status")?.stdout)?;
        let bytes = status["bytes"]
            .as_u64()
            .context("the status has no bytes")?;
        let k = &status["batch"];
        let (rc, check) = postproc::json(&["check"], &out.trace())?;
        ensure!(
            rc == 0,
            "the trace of N={n} is bad:\n{}",
            postproc::explain(&out.trace())
        );
        let refs = check["references"]
            .as_u64()
            .context("check gives no references")?;
        let times = workload::busy_ratio(&exact)?;
        println!(
            "{n:>6} {k:>3} {times:>11.2}x {:>8.2}x {traced:>12.2} {refs:>12} {:>14.0} {:>10.1}",
            traced / plain,
            refs as f64 / traced,
            bytes as f64 / refs as f64
        );
        if let Some(limit) = times_the_instructions(*n).filter(|_| is_default) {
            let what = format!("N={n}, times the instructions untraced");
            targets.push(Target::most(what, limit, times));
        }
    }
    Ok(targets)
}
