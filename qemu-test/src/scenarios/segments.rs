//! The set's two segments: what is told of references in the second one, CLOCK, what
//! a CPU keeps, and a size that changes.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, step};
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The page that hot-cold touches all the time, and its first cold one.
const HOT: u64 = 0x2000_0000_0000;
const COLD: u64 = 0x1000_0000_0000;
const PAGES: u64 = 200;
const ROUNDS: u64 = 10;
const N: u64 = 64;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let mut list = vec![
        Scenario {
            name: "segments-again".into(),
            about: "each record shows whether its page was referenced in the second segment",
            run: Box::new(again),
        },
        Scenario {
            name: "segments-clock".into(),
            about: "CLOCK keeps a page that is referenced, and records its second chances",
            run: Box::new(clock),
        },
        Scenario {
            name: "segments-million".into(),
            about: "N grows to a million while a program runs, and shrinks again",
            run: Box::new(million),
        },
    ];
    list.push(Scenario {
        name: "segments-stop".into(),
        about: "the time to stop a set, or to make it small, is proportional to the members",
        run: Box::new(stop),
    });
    list.extend(controls());
    for profile in [Profile::Exact, Profile::Smp] {
        list.push(Scenario {
            name: format!("segments-resize-{}", profile.name()),
            about: "N changes while programs run",
            run: Box::new(move |kernel| resize(kernel, profile)),
        });
        for policy in ["fifo", "clock"] {
            list.push(Scenario {
                name: format!("segments-least-{policy}-{}", profile.name()),
                about: "no second segment: programs go on, no violation",
                run: Box::new(move |kernel| least(kernel, profile, policy)),
            });
        }
    }
    list
}

/// What fails without a protection.
fn controls() -> Vec<Scenario> {
    vec![Scenario {
        name: "control-nosweep".into(),
        about: "without the flush, references in the second segment are missed",
        run: Box::new(nosweep),
    }]
}

fn boot(
    kernel: &str,
    name: &str,
    profile: Profile,
    cmdline: &str,
    traced: &str,
) -> Result<Outcome> {
    let traced: Vec<_> = traced.split(' ').collect();
    let out = Machine {
        name: format!("segments-{name}-{}-{kernel}", profile.name()),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: cmdline.into(),
        files: vec![],
        steps: vec![
            step("traced", &traced),
            step("status", &["/bin/activator", "status", "--json"]),
        ],
        deadline_s: 300,
    }
    .run()?;
    let r = out.step("traced")?;
    ensure!(r.rc == 0, "the traced program failed: {r:?}");
    Ok(out)
}

fn status(out: &Outcome) -> Result<Value> {
    Ok(serde_json::from_str(&out.step("status")?.stdout)?)
}

fn good(out: &Outcome) -> Result<()> {
    let (rc, _) = postproc::json(&["check"], &out.trace())?;
    ensure!(
        rc == 0,
        "postproc check finds:\n{}",
        postproc::explain(&out.trace())
    );
    Ok(())
}

/// The content of a record.
struct Record {
    address: u64,
    access: String,
    again: bool,
    why: String,
}

fn records(out: &Outcome) -> Result<Vec<Record>> {
    let csv = postproc::csv(&out.trace())?;
    let mut lines = csv.lines();
    let columns: Vec<_> = lines.next().unwrap_or_default().split(',').collect();
    let at = |name: &str| {
        columns
            .iter()
            .position(|c| *c == name)
            .with_context(|| format!("csv has no column {name}"))
    };
    let (address, access, again, why) = (at("address")?, at("access")?, at("again")?, at("why")?);
    lines
        .map(|line| {
            let fields: Vec<_> = line.split(',').collect();
            Ok(Record {
                address: u64::from_str_radix(fields[address].trim_start_matches("0x"), 16)?,
                access: fields[access].into(),
                again: fields[again] == "1",
                why: fields[why].into(),
            })
        })
        .collect()
}

fn run_hot_cold(options: &str) -> String {
    format!("/bin/activator run -n {N} -o /dev/trace {options} -- /bin/hot-cold {PAGES} {ROUNDS}")
}

/// Of the hot page's stays those that say so, and all; the same of cold pages.
fn counts(out: &Outcome) -> Result<[(usize, usize); 2]> {
    let records = records(out)?;
    let count = |from: u64, pages: u64| {
        let range = from..from + pages * 4096;
        let of = records.iter().filter(|r| range.contains(&r.address));
        let again = of.clone().filter(|r| r.again).count();
        (again, of.count())
    };
    Ok([count(HOT, 1), count(COLD, PAGES)])
}

fn again(kernel: &str) -> Result<()> {
    let out = boot(
        kernel,
        "again",
        Profile::Exact,
        "",
        &run_hot_cold("--again"),
    )?;
    good(&out)?;
    let [(hot_again, hot), (cold_again, cold)] = counts(&out)?;
    say!("  hot page: {hot_again} of {hot} stays; cold pages: {cold_again} of {cold}");
    ensure!(
        cold as u64 == PAGES * ROUNDS && cold_again == 0,
        "{cold_again} of {cold} stays of cold pages say that they were referenced again"
    );
    all_told(hot_again, hot)
}

/// Checks how many stays the hot page had, and how many say that it was referenced again.
fn all_told(hot_again: usize, hot: usize) -> Result<()> {
    // Evicted once in each turn, which has itself and what the program's own code
    // and stack need.
    let turns = (PAGES * ROUNDS / N) as usize;
    ensure!(
        hot >= turns,
        "only {hot} stays of the hot page in {turns} turns"
    );
    ensure!(
        hot_again + 1 >= hot,
        "{} stays of the hot page say that it was not referenced again",
        hot - hot_again
    );
    Ok(())
}

fn nosweep(kernel: &str) -> Result<()> {
    let out = boot(
        kernel,
        "nosweep",
        Profile::Exact,
        "vmtrace_break=noflush",
        &run_hot_cold("--again"),
    )?;
    let [(hot_again, hot), _] = counts(&out)?;
    say!("  without the flush {hot_again} of {hot} stays of the hot page");
    // It keeps its place in the TLB, so that few faults or few accessed bits show it.
    ensure!(
        all_told(hot_again, hot).is_err(),
        "all {hot} stays are marked without the flush: the control shows nothing"
    );
    Ok(())
}

fn clock(kernel: &str) -> Result<()> {
    let out = boot(
        kernel,
        "clock",
        Profile::Exact,
        "",
        &run_hot_cold("--policy clock"),
    )?;
    good(&out)?;
    let all = records(&out)?;
    let hot: Vec<_> = all.iter().filter(|r| r.address == HOT).collect();
    let seen = hot.iter().filter(|r| r.access == "seen").count();
    let evicted = hot.iter().filter(|r| r.why == "evicted").count();
    let cold = all
        .iter()
        .filter(|r| (COLD..COLD + PAGES * 4096).contains(&r.address));
    let (cold, cold_seen) = (
        cold.clone().count() as u64,
        cold.filter(|r| r.access == "seen").count(),
    );
    say!(
        "  hot page: {} records, {seen} second chances, {evicted} evictions; cold pages: {cold}",
        hot.len()
    );
    ensure!(
        evicted == 0 && hot.len() == seen + 1,
        "the hot page was evicted {evicted} times"
    );
    ensure!(
        seen as u64 >= PAGES * ROUNDS / N,
        "only {seen} second chances of the hot page"
    );
    ensure!(
        cold == PAGES * ROUNDS && cold_seen == 0,
        "{cold} records of cold pages, {cold_seen} second chances"
    );
    let status = status(&out)?;
    let chances = all.iter().filter(|r| r.access == "seen").count() as u64;
    ensure!(
        status["chances"].as_u64() == Some(chances),
        "the kernel counted {} second chances, {chances} are in the trace",
        status["chances"]
    );
    Ok(())
}

fn resize(kernel: &str, profile: Profile) -> Result<()> {
    let out = boot(
        kernel,
        "resize",
        profile,
        "",
        "/bin/activator run -n 512 --max 4096 -o /dev/trace -- \
         /bin/resize-storm 5 64 4096 100 2000 32 512",
    )?;
    good(&out)?;
    let stdout = &out.step("traced")?.stdout;
    ensure!(
        stdout.contains("resized 30 times"),
        "not all changes were made: {stdout}"
    );
    let status = status(&out)?;
    ensure!(
        status["evms_size"] == 512 && status["evms_peak"] == 4096,
        "the last size and the largest are wrong: {status}"
    );
    let members = status["members_max"].as_u64().unwrap_or(0);
    ensure!(
        (513..=4096).contains(&members),
        "{members} pages were enabled at most"
    );
    Ok(())
}

/// A million members: what is touched in so large a set stays, until it shrinks.
fn million(kernel: &str) -> Result<()> {
    const MANY: u64 = 1_000_000;
    const LEAST: u64 = 64;
    const TOUCHED: u64 = 100_000;
    const AFTER: u64 = 1000;
    let out = boot(
        kernel,
        "million",
        Profile::Fast,
        "",
        &format!(
            "/bin/activator run -n {LEAST} --max {MANY} -o /dev/trace -- \
             /bin/many-members {TOUCHED} {MANY} {LEAST} {AFTER}"
        ),
    )?;
    good(&out)?;
    let status = status(&out)?;
    let members = status["members_max"].as_u64().unwrap_or(0);
    ensure!(
        status["evms_peak"] == MANY && status["evms_size"] == LEAST && members >= TOUCHED,
        "N, its peak and the members are wrong: {status}"
    );
    let range = COLD..COLD + TOUCHED * 4096;
    let records = records(&out)?;
    let touches = records
        .iter()
        .filter(|r| range.contains(&r.address))
        .count() as u64;
    // Of those touched with the small set, the last were members still when it grew.
    let all = 2 * TOUCHED + AFTER;
    ensure!(
        (all - LEAST..=all).contains(&touches),
        "{touches} stays instead of {all}"
    );
    say!("  {members} members at most; {touches} stays of {TOUCHED} pages");
    Ok(())
}

/// The time that STOP takes grows with the members, and no faster. A change of N that is
/// under way is given up for it. Under icount, which counts an instruction as a nanosecond. A
/// million members take less than a second. A kernel that checks locks or memory needs several
/// times as many instructions.
fn stop(kernel: &str) -> Result<()> {
    const MANY: u64 = 1_000_000;
    let most: u64 = match kernel {
        "lockdep" | "kasan" | "kcsan" => 10_000_000_000,
        _ => 1_000_000_000,
    };
    let runs = [
        (MANY / 10, "off"),
        (MANY / 10, "resize"),
        (MANY, "off"),
        (MANY, "resize"),
        (MANY, "both"),
    ];
    let mut steps = Vec::new();
    for (pages, how) in runs {
        let (name, n, file) = (format!("{how} {pages}"), pages + 1000, "/tmp/stop.vmt");
        let line = format!("/bin/stop-large {pages} {n} {how} {file}");
        steps.push(step(&name, &line.split(' ').collect::<Vec<_>>()));
        steps.push(step("status", &["/bin/activator", "status", "--json"]));
        steps.push(step("check", &["/bin/postproc", "check", file]));
    }
    let out = Machine {
        name: format!("segments-stop-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 900,
    }
    .run()?;
    let mut slow = Vec::new();
    for (i, (pages, how)) in runs.iter().enumerate() {
        let [r, status, check] = [0, 1, 2].map(|k| &out.results[3 * i + k]);
        ensure!(r.rc == 0 && check.rc == 0, "{r:?} {check:?}");
        let status: Value = serde_json::from_str(&status.stdout)?;
        let members = status["members_max"].as_u64().unwrap_or(0);
        ensure!(members >= *pages, "{members} members of {pages}");
        for line in r.stdout.lines() {
            let (what, ns) = line.split_once(' ').context("no time")?;
            if what == "exit" {
                let size = status["evms_size"].as_u64().unwrap_or(0);
                say!("  {how}: `resize` exited with {ns}, {size} pages were left");
                ensure!(
                    ns == "2" && size > *pages / 2,
                    "`off` waited for the change of N: exit code {ns}, {size} pages left"
                );
                continue;
            }
            say!("  {pages} members: {line} ns");
            if ns.parse::<u64>()? > most {
                slow.push(format!("{what} of {pages}: {ns} ns"));
            }
        }
    }
    ensure!(slow.is_empty(), "more than {most} ns: {slow:?}");
    Ok(())
}

/// N is what the first segments have, and nothing is left for the second.
fn least(kernel: &str, profile: Profile, policy: &str) -> Result<()> {
    let n = match profile {
        Profile::Smp | Profile::Turns | Profile::Turns4 | Profile::Alone => 32,
        Profile::Exact | Profile::Fast => 16,
    };
    let out = boot(
        kernel,
        &format!("least-{policy}"),
        profile,
        "",
        &format!("/bin/activator run -n {n} --policy {policy} -o /dev/trace -- /bin/threads"),
    )?;
    good(&out)?;
    let status = status(&out)?;
    let members = status["members_max"].as_u64().unwrap_or(u64::MAX);
    ensure!(
        members <= n,
        "{members} pages were enabled at one time, N={n}"
    );
    Ok(())
}
