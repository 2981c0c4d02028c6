//! Windows that begin and end on request: by the activator, by what it waits for, and by the traced
//! programs themselves.

use super::Scenario;
use super::waits::{all_said, boot, said, took};
use crate::machine::{Machine, Profile, debian};
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::StepResult;
use serde_json::Value;
use std::path::Path;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "pausable-program".into(),
            about: "a program says which of its parts are traced: these are, whole, and nothing else is",
            run: Box::new(program),
        },
        Scenario {
            name: "pausable-smp".into(),
            about: "windows begin and end by commands, by a list, by signals and by files; and by many at a time",
            run: Box::new(commands),
        },
        Scenario {
            name: "pausable-frozen".into(),
            about: "no pause waits for an output that is frozen, and no resume for ever",
            run: Box::new(frozen),
        },
    ]
}

/// Pages that the program touches in each turn, and turns.
const PAGES: usize = 300;
const TURNS: usize = 8;

/// The base of the program's pages.
const BASE: u64 = 0x1000_0000_0000;

/// The windows that `postproc info` reports.
fn windows(path: &Path) -> Result<Vec<Value>> {
    let (_, info) = postproc::json(&["info"], path)?;
    info["windows"].as_array().cloned().context("no windows")
}

fn is_good(path: &Path) -> Result<()> {
    let (rc, _) = postproc::json(&["check", "--frames"], path)?;
    ensure!(rc == 0, "{}", postproc::explain(path));
    Ok(())
}

fn program(kernel: &str) -> Result<()> {
    let of = |slot: usize, name: &str, more: &str, uid: u32| {
        let line = format!(
            "activator run {more} -n 64 -o /tmp/{name}.vmt -- pauses {PAGES} {TURNS} {uid}"
        );
        [
            debian(name, &line),
            debian(&format!("status {name}"), "activator status --json"),
            debian("keep", &format!("keep {slot} /tmp/{name}.vmt")),
        ]
    };
    let mut steps = Vec::from(of(0, "root", "--paused", 0));
    steps.push(debian("mode", "chmod 666 /dev/vmtrace"));
    steps.extend(of(1, "user", "--pausable", 1000));
    // Not in the tree, and nobody who may.
    let mut other = debian("other", "pauses 1 2");
    other.uid = 1000;
    steps.push(debian(
        "on",
        "sleep 100 & activator on --paused --pid $! -o /tmp/other.vmt",
    ));
    steps.push(other);
    steps.push(debian("off", "activator off --json"));
    let out = Machine {
        name: format!("pausable-program-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 300,
    }
    .run()?;
    for (name, slot) in [("root", 0), ("user", 1)] {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{r:?}");
        let path = out.kept(slot, &format!("{name}.vmt"))?;
        turns(name, r, &path)?;
        let status: Value = serde_json::from_str(&out.step(&format!("status {name}"))?.stdout)?;
        ensure!(
            status["windows_begun"] == status["windows_ended"],
            "{status}"
        );
    }
    let other = out.step("other")?;
    ensure!(
        other.rc != 0 && other.stderr.contains("not permitted"),
        "{other:?}"
    );
    let off: Value = serde_json::from_str(&out.step("off")?.stdout)?;
    ensure!(off["windows_begun"] == 0, "{off}");
    Ok(())
}

/// Each traced turn has a record of each of its pages, and no other turn has one.
fn turns(name: &str, r: &StepResult, path: &Path) -> Result<()> {
    is_good(path)?;
    let (mut traced, mut paused) = (Vec::new(), Vec::new());
    for line in r.stdout.lines().filter_map(|l| l.strip_prefix("turn ")) {
        let words: Vec<_> = line.split(' ').collect();
        let [kind, begin, end] = words[..] else {
            anyhow::bail!("not a turn: {line}");
        };
        let times = (begin.parse::<u64>()?, end.parse::<u64>()?);
        match kind {
            "traced" => traced.push(times),
            _ => paused.push(times),
        }
    }
    ensure!(
        traced.len() == TURNS / 2 && paused.len() == TURNS / 2,
        "{r:?}"
    );
    let windows = windows(path)?;
    let why: Vec<_> = windows.iter().map(|w| w["why"].as_str()).collect();
    // The last turn is traced to its end. With --pausable, what is before the first pause is, too.
    let first = windows.len() - TURNS / 2;
    ensure!(
        first == usize::from(name == "user")
            && why[..why.len() - 1].iter().all(|w| *w == Some("pause"))
            && why.last() == Some(&Some("stop")),
        "{windows:?}"
    );
    for (w, (begin, end)) in windows[first..].iter().zip(&traced) {
        let span = (w["start_time_ns"].as_u64(), w["stop_time_ns"].as_u64());
        ensure!(
            span.0 < Some(*begin) && Some(*end) < span.1,
            "a turn from {begin} to {end} is not in {w}"
        );
        for (from, to) in &paused {
            ensure!(
                Some(*to) < span.0 || Some(*from) > span.1,
                "a turn from {from} to {to} is in {w}"
            );
        }
        let number = w["number"].to_string();
        let csv = postproc::csv_of(path, &["--window", &number])?;
        let mut pages = vec![false; PAGES];
        for line in csv.lines().skip(1) {
            let address = line.split(',').nth(ADDRESS).unwrap_or_default();
            let address = u64::from_str_radix(address.trim_start_matches("0x"), 16)?;
            if let Some(seen) = pages.get_mut((address.wrapping_sub(BASE) >> 12) as usize) {
                *seen = true;
            }
        }
        let missing = pages.iter().filter(|seen| !**seen).count();
        ensure!(missing == 0, "window {number} lacks {missing} of the pages");
    }
    say!(
        "  {name}: {} windows, each with all {PAGES} pages",
        TURNS / 2
    );
    Ok(())
}

/// The column of addresses.
const ADDRESS: usize = 12;

const COMMANDS: &str = r#"
touch-loop 300 100000000 & pid=$!
sleep 0.3
activator pause 2>none || echo "off $?"
activator on --pid $pid -n 64 -o /tmp/x/whole >/dev/null
activator pause 2>err || echo "whole $?"
grep -q -- --pausable err && echo "told"
activator off >/dev/null
activator on --pid $pid -n 64 --paused --trace 2000 --repeat 3 -o /tmp/x/t >on
grep -q 'activator resume' on && echo "advised"
activator pause
activator status | grep -o paused
for i in 1 2; do activator resume; sleep 0.2; activator pause; done
activator resume; sleep 2
activator resume 2>err || echo "fourth $?"
activator off --json >status
kill $pid
echo "windows $(field windows_begun) $(field windows_ended)"
postproc check --frames /tmp/x/t >/dev/null && echo "limited is good"
printf '# begin,end\n100ms,300ms\n500ms,600ms\n' >list
activator run -q --windows list -n 64 -o /tmp/x/list -- touch-loop 300 3000000 && echo "list 0"
activator run -q --resume-on signal:USR1 --pause-on file:/tmp/x/stop -n 64 -o /tmp/x/signal -- sh -c '
  touch-loop 300 1000; kill -USR1 $PPID; sleep 0.5; touch-loop 300 1000
  touch /tmp/x/stop; sleep 0.5; touch-loop 300 1000' && echo "signal 0"
activator run -q --resume-on file:/tmp/x/stop -o /tmp/x/none -- true 2>err || echo "exists $?"
grep -q 'exists already' err && echo "why"
activator run -q --paused -n 64 -o /tmp/x/many -- pauses many 4 100 && echo "many 0"
for t in list signal many; do
  postproc check --frames /tmp/x/$t >/dev/null && echo "$t is good"
  postproc info --json /tmp/x/$t >info
  tr ',' '\n' <info | grep -c '"why"' | sed "s/^/$t windows /"
  tr ',{' '\n\n' <info | grep '"why"' | sort | uniq -c | sed "s/^ */$t /"
done
"#;

fn commands(kernel: &str) -> Result<()> {
    let out = boot("pausable-smp", kernel, COMMANDS)?;
    let r = out.step("pausable-smp")?;
    all_said(
        r,
        &[
            "off 2",
            "whole 2",
            "told",
            "advised",
            "paused",
            "tracing window 0",
            "tracing window 1",
            "tracing window 2",
            "fourth 2",
            "windows 3 3",
            "limited is good",
            "list 0",
            "list windows 2",
            "list is good",
            "signal 0",
            "signal windows 1",
            "signal is good",
            "exists 2",
            "why",
            "many 0",
            "many is good",
        ],
    )?;
    let many: u64 = said(r, "many windows")?.parse()?;
    say!("  {many} windows of four programs that each begin and end them");
    ensure!(many > 20, "{r:?}");
    Ok(())
}

const FROZEN: &str = r#"
touch-loop 300 100000000 & pid=$!
sleep 0.3
activator on --pid $pid -n 64 --pausable --stall-limit 10min -o /tmp/x/t >/dev/null
sleep 0.3
fsfreeze -f /tmp/x
begin=$(now)
activator pause
echo "pause-seconds $(since $begin)"
begin=$(now)
activator resume 2>err || echo "resume $?"
echo "resume-seconds $(since $begin)"
grep -q 'takes no data' err && echo "why"
fsfreeze -u /tmp/x
i=0
until activator status | grep -q 'in window 1'; do
  [ $((i += 1)) -lt 100 ] || break
  sleep 0.1
done
[ $i -lt 100 ] && echo "resumed"
activator pause
activator off >/dev/null && postproc check --frames /tmp/x/t >/dev/null && echo "good"
kill $pid
"#;

fn frozen(kernel: &str) -> Result<()> {
    let out = boot("pausable-frozen", kernel, FROZEN)?;
    let r = out.step("pausable-frozen")?;
    all_said(
        r,
        &[
            "paused after window 0",
            "resume 1",
            "why",
            "resumed",
            "paused after window 1",
            "good",
        ],
    )?;
    took(r, "pause-seconds", 0.0, 5.0)?;
    took(r, "resume-seconds", 0.9, 20.0)?;
    Ok(())
}
