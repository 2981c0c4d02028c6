//! Events are in order with references. A program finds out from a page's content whether the
//! page is an earlier one or a new one, and the trace must name the same page. Another test
//! shows that no event precedes its window.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, step};
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::Step;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "generations".into(),
            about: "a page that another thread drops: each reference is to the page that it found",
            run: Box::new(generations),
        },
        Scenario {
            name: "window-edges".into(),
            about: "files that are truncated, punched and deleted while windows open",
            run: Box::new(window_edges),
        },
        Scenario {
            name: "reasons".into(),
            about: "advice, holes and truncation end stays, and each record contains the reason",
            run: Box::new(reasons),
        },
        Scenario {
            name: "thread-executes".into(),
            about: "a thread that executes takes over its leader's id, and keeps its virtual time",
            run: Box::new(executes),
        },
    ]
}

/// The page that the program drops.
const BASE: u64 = 0x1000_0000_0000;
/// Its first page of those that it touches in between.
const OWN: u64 = 0x2000_0000_0000;

fn boot(name: &str, kernel: &str, image: bool, steps: Vec<Step>) -> Result<Outcome> {
    let out = Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 600,
    }
    .run()?;
    for r in &out.results {
        ensure!(r.rc == 0, "{r:?}");
    }
    Ok(out)
}

/// Steps that trace a command into a slot of the disk.
fn traced(slot: usize, options: &str, command: &str) -> [Step; 2] {
    let file = format!("/tmp/{slot}.vmt");
    let line = format!("/bin/activator run {options} -o {file} -- {command}");
    let argv: Vec<_> = line.split(' ').collect();
    let keep = ["/bin/keep", &slot.to_string(), &file].map(String::from);
    let keep: Vec<_> = keep.iter().map(String::as_str).collect();
    [
        step(&format!("traced {slot}"), &argv),
        step(&format!("keep {slot}"), &keep),
    ]
}

/// Whether each of the program's references was to another page than the one before, by
/// the trace. The pages in between divide the records: an access may fault more than once,
/// and its last record is of the page that it reached.
fn renewed(csv: &str) -> Result<Vec<bool>> {
    let mut lines = csv.lines();
    let columns: Vec<_> = lines.next().unwrap_or_default().split(',').collect();
    let at = |name: &str| {
        let at = columns.iter().position(|c| *c == name);
        at.with_context(|| format!("csv has no column {name}"))
    };
    let (page, address, access) = (at("page")?, at("address")?, at("access")?);
    let mut found: Vec<u64> = Vec::new();
    let mut goes_on = false;
    for line in lines {
        let fields: Vec<_> = line.split(',').collect();
        let address = u64::from_str_radix(fields[address].trim_start_matches("0x"), 16)?;
        if address == BASE && fields[access] == "write" {
            let page = fields[page].parse()?;
            match found.last_mut().filter(|_| goes_on) {
                Some(last) => *last = page,
                None => found.push(page),
            }
            goes_on = true;
        } else if address == OWN {
            goes_on = false;
        }
    }
    let before = [None].into_iter().chain(found.iter().copied().map(Some));
    let pairs = found.iter().zip(before);
    Ok(pairs.map(|(&page, before)| before != Some(page)).collect())
}

fn generations(kernel: &str) -> Result<()> {
    const ROUNDS: usize = 120;
    // Anonymous memory, tmpfs, ext4.
    let runs = ["dontneed", "punch /tmp/page", "punch /root/page"];
    let commands = runs.map(|run| {
        let (how, file) = run.split_once(' ').unwrap_or((run, ""));
        let line = format!("/bin/generations {how} {ROUNDS} {file}");
        line.trim_end().to_string()
    });
    let steps = commands.iter().enumerate();
    let steps = steps.flat_map(|(slot, command)| traced(slot, "-n 64", command));
    let out = boot("generations", kernel, true, steps.collect())?;
    let mut wrong = 0;
    for (slot, run) in runs.iter().enumerate() {
        let path = out.kept(slot, &format!("{slot}.vmt"))?;
        let told = renewed(&postproc::csv(&path)?)?;
        let text = out.step(&format!("traced {slot}"))?.stdout.trim();
        let want: Vec<_> = text.bytes().map(|b| b == b'1').collect();
        ensure!(
            told.len() == want.len() && want.len() == 2 * ROUNDS,
            "{run}: {} references in the trace, {} by the program",
            told.len(),
            want.len()
        );
        let differ = told.iter().zip(&want).filter(|(t, w)| t != w).count();
        let new = want.iter().filter(|w| **w).count();
        // At most one reference of the two in a round.
        let raced = want.chunks(2).filter(|r| r[1]).count();
        let (rc, _) = postproc::json(&["check", "--frames"], &path)?;
        say!(
            "  {run}: {new} new pages, {raced} between two references of a round; {differ} are \
             wrong in the trace; check gives {rc}"
        );
        ensure!(raced > 10, "{run}: {raced} drops came between");
        wrong += differ + usize::from(rc != 0);
    }
    ensure!(
        wrong == 0,
        "{wrong} references are to other pages than in the trace"
    );
    Ok(())
}

fn window_edges(kernel: &str) -> Result<()> {
    const SLOTS: usize = 6;
    let mut steps = Vec::new();
    let mut others = step("others", &["/bin/file-storm", "/tmp/others", "forever"]);
    others.background = true;
    steps.push(others);
    for slot in 0..SLOTS {
        // The output is itself a file of which all pages end.
        let options = "-n 64 --trace 5ms --skip 1ms --force";
        let file = format!("/tmp/{slot}.vmt");
        steps.push(step("old file", &["/bin/file-storm", &file, "2"]));
        steps.extend(traced(slot, options, "/bin/file-storm /tmp/own 300"));
    }
    let out = Machine {
        name: format!("window-edges-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 600,
    }
    .run()?;
    let mut bad = Vec::new();
    let mut all = 0;
    for slot in 0..SLOTS {
        for what in ["traced", "keep"] {
            let r = out.step(&format!("{what} {slot}"))?;
            ensure!(r.rc == 0, "{r:?}");
        }
        let path = out.kept(slot, &format!("{slot}.vmt"))?;
        let (rc, report) = postproc::json(&["check", "--frames"], &path)?;
        let (_, info) = postproc::json(&["info"], &path)?;
        let windows = info["windows"].as_array().map_or(0, Vec::len);
        say!("  {windows} windows, check gives {rc}");
        all += windows;
        if rc != 0 {
            bad.push(report);
        }
    }
    // A host that is busy leaves one of the programs few.
    ensure!(all > 3 * SLOTS, "{all} windows: this shows nothing");
    ensure!(
        bad.is_empty(),
        "{} of {SLOTS} traces are not good: {}",
        bad.len(),
        bad[0]
    );
    Ok(())
}

/// Each page's stay ends in another way, and says which.
fn reasons(kernel: &str) -> Result<()> {
    const WANT: [&str; 6] = [
        "advised",
        "advised",
        "advised",
        "truncated",
        "truncated",
        "truncated",
    ];
    for file in ["/tmp/reasons", "/root/reasons"] {
        let out = Machine {
            name: format!("reasons{}-{kernel}", file.replace('/', "-")),
            kernel: kernel.into(),
            profile: Profile::Exact,
            image: file.starts_with("/root"),
            cmdline: String::new(),
            files: vec![],
            steps: traced(0, "-n 64", &format!("/bin/reasons {file}")).into(),
            deadline_s: 300,
        }
        .run()?;
        for r in &out.results {
            ensure!(r.rc == 0, "{r:?}");
        }
        let path = out.kept(0, "0.vmt")?;
        let (rc, report) = postproc::json(&["check", "--frames"], &path)?;
        ensure!(rc == 0, "{report}");
        let csv = postproc::csv(&path)?;
        let mut lines = csv.lines();
        let columns: Vec<_> = lines.next().unwrap_or_default().split(',').collect();
        let at = |name: &str| columns.iter().position(|c| *c == name).context("no column");
        let (address, why) = (at("address")?, at("why")?);
        // Of each page the last record.
        let mut got = [""; 6];
        for line in lines {
            let fields: Vec<_> = line.split(',').collect();
            let address = u64::from_str_radix(fields[address].trim_start_matches("0x"), 16)?;
            let way = address.wrapping_sub(BASE) >> 30;
            if let Some(why_of) = got.get_mut(way as usize) {
                *why_of = fields[why];
            }
        }
        say!("  {file}: {got:?}");
        ensure!(got == WANT, "{got:?} instead of {WANT:?}");
    }
    Ok(())
}

fn executes(kernel: &str) -> Result<()> {
    let steps = traced(0, "-n 64 --virtual-time", "/bin/thread-executes");
    let out = boot("thread-executes", kernel, false, steps.into())?;
    let path = out.kept(0, "0.vmt")?;
    let (rc, report) = postproc::json(&["check", "--frames"], &path)?;
    ensure!(rc == 0, "{report}");
    let text = &out.step("traced 0")?.stdout;
    ensure!(text.trim() == "executed", "the program printed {text}");
    Ok(())
}
