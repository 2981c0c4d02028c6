//! What it costs to observe: instructions of the whole system, under icount, without the plugin.

use super::OBSERVED;
use super::observers::Observer;
use crate::loads::{self, Amount, CLEAN, Program};
use crate::machine::{Machine, Outcome, Profile, debian};
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::Step;

/// Prints for how long the CPU has done what, in hundredths of a second.
const TIMES: &str = "grep '^cpu ' /proc/stat";

/// The factors by which the instructions of a program grow, by observer.
///
/// # Errors
///
/// If a run fails.
pub fn measure(
    program: &Program,
    amount: Amount,
    observers: &[Box<dyn Observer>],
    kernel: &str,
) -> Result<Vec<Option<f64>>> {
    let load = program.script(amount);
    let mut steps: Vec<Step> = Vec::new();
    let mut add = |name: String, command: &str| {
        steps.push(debian("clean", CLEAN));
        steps.push(debian(&format!("before {name}"), TIMES));
        steps.push(debian(&name, command));
        steps.push(debian(&format!("after {name}"), TIMES));
    };
    // The first run fills the page cache for all.
    add("warm".into(), &load);
    add("plain".into(), &load);
    for (i, observer) in observers.iter().enumerate() {
        add(
            format!("{OBSERVED} {i}"),
            &observer.command(&load, program, false),
        );
    }
    let out = Machine {
        name: format!("compare-{}-cost-{kernel}", program.name),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: true,
        cmdline: String::new(),
        files: loads::files(),
        steps,
        deadline_s: 1800,
    }
    .run()?;
    let plain = busy(&out, "plain")?;
    let of = (0..observers.len()).map(|i| {
        let busy = busy(&out, &format!("{OBSERVED} {i}"))?;
        Ok(Some(busy / plain))
    });
    of.collect()
}

/// For how long the CPU was busy in a step, s: as many thousand millions of instructions.
fn busy(out: &Outcome, name: &str) -> Result<f64> {
    let r = out.step(name)?;
    let done = r.stdout.lines().any(|line| line == "DONE");
    ensure!(r.rc == 0 && done, "it fails: {r:?}");
    let at = |when: &str| -> Result<f64> {
        let text = &out.step(&format!("{when} {name}"))?.stdout;
        idle(text).with_context(|| format!("no times: {text:?}"))
    };
    // The step's own time has all digits. Where the CPU is never idle, there is nothing to round.
    Ok(r.ns as f64 / 1e9 - (at("after")? - at("before")?))
}

/// The time for which the CPU was idle, s. Under icount, the clock leaps while the CPU waits for the host's
/// disk, and this time is apart.
fn idle(text: &str) -> Option<f64> {
    let mut times = text.split_whitespace().skip(4).map(str::parse::<f64>);
    let (idle, waits) = (times.next()?.ok()?, times.next()?.ok()?);
    Some((idle + waits) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::idle;

    #[test]
    fn a_cpu_that_waits_for_a_disk_is_idle() {
        assert_eq!(idle("cpu  10 0 20 300 45 0 7 0 0 0\n"), Some(3.45));
        assert_eq!(idle("cpu  10 0 20 300\n"), None);
    }
}
