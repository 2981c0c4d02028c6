//! How full the rings are, and what has become of records for them (`VMTRACE_IOC_RINGS`).

use super::Scenario;
use super::waits::{boot, said};
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::StepResult;
use serde_json::Value;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    vec![Scenario {
        name: "rings".into(),
        about: "`activator top` shows how full the rings are, and all losses; they add up to the status",
        run: Box::new(rings),
    }]
}

/// What the status has of all rings together.
const SUMS: [&str; 6] = [
    "lost_full",
    "lost_atomic",
    "admissions",
    "renewed",
    "chances",
    "left_out",
];

/// Programs run into a frozen output: first they wait, and then much is lost.
const RINGS: &str = r#"
small='-n 32 --pack=no --buffers 8 --buffer-size 4K'
line() { echo "$1 $(activator top --once --json -d 0.2 2>/dev/null)"; }
for mode in block discard; do
	rm -f /tmp/go
	sh -c 'until [ -e /tmp/go ]; do sleep 0.1; done
	touch-loop 600 100000000 & touch-loop 600 100000000 & wait' & pid=$!
	activator on --pid $pid --mode $mode --stall-limit 10min $small -o /tmp/x/$mode >/dev/null
	touch /tmp/go
	until [ "$(stat -c %s /tmp/x/$mode)" -gt 100000 ]; do sleep 0.1; done
	fsfreeze -f /tmp/x
	sleep 2
	line $mode-frozen
	# Those that wait for room stop when there is some.
	pkill -STOP touch-loop
	sleep 1
	line $mode-rest
	echo "$mode-status $(activator status --json || [ $? = 1 ])"
	fsfreeze -u /tmp/x
	while activator top --once --json -d 0.2 2>/dev/null | grep -q '"waiting":[1-9]'; do :; done
	line $mode-thawed
	activator off --json >/dev/null 2>&1 || echo "$mode-off $?"
	pkill -KILL touch-loop
	wait $pid
	rm /tmp/x/$mode
done
"#;

/// A line of JSON that was printed after `key`.
fn json(r: &StepResult, key: &str) -> Result<Value> {
    let text = said(r, key)?;
    serde_json::from_str(text).with_context(|| format!("{key}: {text}"))
}

/// The rings of a line of `top`.
fn of(line: &Value) -> Result<&Vec<Value>> {
    line["rings"].as_array().with_context(|| line.to_string())
}

fn sum(rings: &[Value], key: &str) -> Result<u64> {
    rings
        .iter()
        .map(|ring| ring[key].as_u64().with_context(|| format!("{key}: {ring}")))
        .sum()
}

fn rings(kernel: &str) -> Result<()> {
    let out = boot("rings", kernel, RINGS)?;
    let r = out.step("rings")?;
    ensure!(r.rc == 0, "{r:?}");
    for mode in ["block", "discard"] {
        let line = |when: &str| json(r, &format!("{mode}-{when}"));
        let (frozen, rest, status, thawed) = (
            line("frozen")?,
            line("rest")?,
            line("status")?,
            line("thawed")?,
        );
        // Two CPUs, two kinds.
        ensure!(of(&frozen)?.len() == 4, "{frozen}");
        let fullest = of(&frozen)?
            .iter()
            .filter_map(|ring| Some((ring["free"].as_f64()?, ring["buffers"].as_f64()?)))
            .map(|(free, buffers)| 1.0 - free / buffers)
            .fold(0.0, f64::max);
        let lost = sum(of(&rest)?, "lost_full")?;
        say!(
            "  {mode}: the fullest ring is {:.0} % full, {lost} records are lost",
            fullest * 100.0
        );
        // Tasks wait when a ring has only what it keeps for those who cannot: 10 of 18 sub-buffers of
        // references here. What is lost found none at all.
        let least = if mode == "block" { 0.4 } else { 1.0 };
        ensure!(fullest >= least, "{mode}: {frozen}");
        ensure!((lost > 0) == (mode == "discard"), "{mode}: {rest}");
        for key in SUMS {
            let (rings, all) = (sum(of(&rest)?, key)?, &status[key]);
            ensure!(
                *all == rings,
                "{mode}: {key}: {rings} in all rings, {all} in the status"
            );
        }
        ensure!(sum(of(&rest)?, "waiting")? > 0, "{mode}: {rest}");
        ensure!(sum(of(&thawed)?, "waiting")? == 0, "{mode}: {thawed}");
    }
    let ended = said(r, "discard-off")?;
    ensure!(ended == "1" && said(r, "block-off").is_err(), "{r:?}");
    Ok(())
}
