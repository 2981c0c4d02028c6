//! What is recorded of a run, held against all accesses of the same run: a small `make compare`.

use super::Scenario;
use crate::compare::observers::traced::readings;
use crate::compare::observers::watched::{self, reading};
use crate::compare::observers::{self, Reading, regions as of_regions};
use crate::compare::score::Report;
use crate::compare::{Judged, OBSERVED, judge};
use crate::machine::{Machine, Outcome, Profile, debian, step};
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use std::collections::HashSet;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let new = |name: &str, about, run: fn(&str) -> Result<()>| Scenario {
        name: format!("compare-{name}"),
        about,
        run: Box::new(run),
    };
    vec![
        new(
            "set",
            "all pages are seen, records are of true uses, and each use is in a stay; less is found if \
             records are left out",
            set,
        ),
        new(
            "interval",
            "each page that is used in an interval has a record in it; less is found if records are left out",
            interval,
        ),
        new(
            "regions",
            "all accesses are known while regions are sampled, and most uses are in regions with accesses",
            regions,
        ),
        new("mprotect", WATCHED, |kernel| {
            watch("mprotect", "mprotect 64", kernel)
        }),
        new("rwp", WATCHED, |kernel| watch("rwp", "rwp 64", kernel)),
        new("rwp-async", WATCHED, |kernel| {
            watch("rwp-async", "rwp-async 10", kernel)
        }),
    ]
}

const WATCHED: &str = "a tracer in user space changes no program, follows children and threads, and reports \
    true uses; at another time, they are not true";

/// Pages, turns, and the rest after each, ms.
const PROGRAM: &str = "/bin/spells 300 25 4";
/// Intervals, ms.
const LENGTHS: [u64; 2] = [10, 50];

fn observed(name: &str, options: &str, kernel: &str) -> Result<Outcome> {
    let line = format!("/bin/activator run {options} -o /dev/trace -- {PROGRAM}");
    let argv: Vec<_> = line.split(' ').collect();
    let out = observers::watched(&Machine {
        name: format!("compare-{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps: vec![step(OBSERVED, &argv)],
        deadline_s: 300,
    })?;
    let r = out.step(OBSERVED)?;
    ensure!(r.rc == 0, "it fails: {r:?}");
    Ok(out)
}

/// The readings by records and by stays, and what came out of them.
fn judged(out: &Outcome) -> Result<([Reading; 2], [Judged; 2])> {
    let readings = readings(&out.trace())?;
    let judged = judge(out, &readings, &LENGTHS)?;
    tell(&judged);
    let two = |_| "a trace has two readings";
    Ok((
        <[Reading; 2]>::try_from(readings).map_err(|r| anyhow::anyhow!(two(r.len())))?,
        <[Judged; 2]>::try_from(judged).map_err(|j| anyhow::anyhow!(two(j.len())))?,
    ))
}

fn tell(judged: &[Judged]) {
    for j in judged {
        let percent = |share: Option<f64>| 100.0 * share.unwrap_or(f64::NAN);
        for (ms, s) in LENGTHS.iter().zip(&j.scores) {
            say!(
                "  {}: {:.2} % of {} pages; of {} uses in {} intervals of {ms} ms {:.3} %, {:.2} % of the \
                 claims are true, {:.1} % of the pairs in order, {:.1} % of the kernel's uses",
                j.what,
                percent(j.pages_seen),
                j.pages,
                s.uses,
                s.intervals,
                percent(s.seen()),
                percent(s.precision()),
                percent(s.order()),
                percent(s.kernel()),
            );
        }
    }
}

/// What comes out if only some of the reports had been made, or others.
fn with(
    out: &Outcome,
    reading: &Reading,
    change: impl FnMut((usize, &Report)) -> Option<Report>,
) -> Result<Judged> {
    let changed = Reading {
        reports: reading
            .reports
            .iter()
            .enumerate()
            .filter_map(change)
            .collect(),
        own: reading.own.clone(),
        scope: reading.scope.clone(),
        ..*reading
    };
    let judged = judge(out, &[changed], &LENGTHS)?;
    judged.into_iter().next().context("nothing was judged")
}

/// A set that is smaller than what the program uses.
fn set(kernel: &str) -> Result<()> {
    let out = observed("set", "-n 64", kernel)?;
    let ([records, stays], [of_records, of_stays]) = judged(&out)?;
    ensure!(
        of_records.pages_seen == Some(1.0) && of_stays.pages_seen == Some(1.0),
        "pages are missing"
    );
    for (r, s) in of_records.scores.iter().zip(&of_stays.scores) {
        ensure!(
            r.intervals >= 2 && r.kernel > 0,
            "too little to judge: {r:?}"
        );
        ensure!(r.precision() == Some(1.0), "a record is of no use: {r:?}");
        ensure!(s.seen() == Some(1.0), "a use is in no stay: {s:?}");
        ensure!(
            s.kernel() == Some(1.0),
            "the kernel's uses are missed: {s:?}"
        );
    }
    // The controls: without a page's records, and with all of them at another time.
    let page = records.reports.first().context("no records")?.at;
    let others = |(_, r): (usize, &Report)| (r.at != page).then_some(*r);
    let without = with(&out, &records, others)?;
    ensure!(
        without.pages_seen < Some(1.0) && without.scores[0].seen() < of_records.scores[0].seen(),
        "a page without records is seen"
    );
    let later = |(_, r): (usize, &Report)| {
        Some(Report {
            from: r.from + 35_000_000,
            to: r.to + 35_000_000,
            ..*r
        })
    };
    let (records, stays) = (with(&out, &records, later)?, with(&out, &stays, later)?);
    ensure!(
        records.scores[0].precision() < Some(0.99) && stays.scores[0].seen() < Some(0.99),
        "records at another time are as good"
    );
    Ok(())
}

/// The share of the uses that intervals show.
const LEAST: f64 = 0.999;

fn interval(kernel: &str) -> Result<()> {
    let out = observed("interval", "--interval 10ms", kernel)?;
    let ([records, _], [of_records, of_stays]) = judged(&out)?;
    let (r, s) = (&of_records.scores[0], &of_stays.scores[0]);
    ensure!(r.intervals >= 5, "too little to judge: {r:?}");
    ensure!(
        r.seen() >= Some(LEAST) && s.seen() == Some(1.0),
        "uses are missed: {r:?}, {s:?}"
    );
    ensure!(r.precision() == Some(1.0), "a record is of no use: {r:?}");
    // The controls: without one record in 100, and with the first record of each page only, as without
    // intervals.
    let fewer = with(&out, &records, |(i, r)| (i % 100 > 0).then_some(*r))?;
    ensure!(fewer.scores[0].seen() < Some(LEAST), "nothing is missed");
    let mut known = HashSet::new();
    let first = with(&out, &records, |(_, r)| known.insert(r.at).then_some(*r))?;
    ensure!(
        first.pages_seen == Some(1.0) && first.scores[0].seen() < Some(0.5),
        "one record for each page shows more than its first use"
    );
    Ok(())
}

/// Regions whose reports come as often as the program's turns. Sampling finds most uses, and not all.
fn regions(kernel: &str) -> Result<()> {
    let out = observed("regions", "--sample 500us", kernel)?;
    let reading = of_regions::reading(&out.trace())?;
    let judged = judge(&out, std::slice::from_ref(&reading), &LENGTHS)?;
    tell(&judged);
    let judged = judged.first().context("nothing was judged")?;
    let s = judged.scores.first().context("no intervals")?;
    // The program reads its 300 pages in each turn. All of that is known without a fault.
    ensure!(
        judged.pages >= 300 && s.intervals >= 5 && s.uses >= 300 * s.intervals / 2,
        "the truth lacks uses: {} pages, {s:?}",
        judged.pages
    );
    ensure!(s.seen() >= Some(0.5), "regions show little: {s:?}");
    // The control: without the regions of the block.
    let block = |r: &Report| r.at.vpn < BLOCK.end && r.at.vpn + r.pages > BLOCK.start;
    let without = with(&out, &reading, |(_, r)| (!block(r)).then_some(*r))?;
    ensure!(
        without.scores.first().and_then(|s| s.seen()) < Some(0.5),
        "the block's regions show nothing"
    );
    Ok(())
}

/// Several processes, one with threads, one with a child that shares its pages, a pipe, and a process that is
/// left behind.
const LOAD: &str = "threads 2; fork-cow; spells 300 6 4 | wc -l; ls /usr | sort; \
    (echo out; echo error >&2; exit 3); echo $?; sleep 1000 > /dev/null 2>&1 &";

/// The block of memory that three of these programs have, and how many of its pages they use: those of the
/// threads, those of a parent and its child, and those that are read again and again.
const BLOCK: std::ops::Range<u64> = 0x1_0000_0000..0x1_0000_1000;
const USED: usize = 256 + 2 * 200 + 300;

/// The share of the claims that are true at least. Of those that are made later, fewer are.
const TRUE: f64 = 0.98;

fn watch(name: &str, way: &str, kernel: &str) -> Result<()> {
    let out = observers::watched(&Machine {
        name: format!("compare-{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps: vec![
            debian("plain", LOAD),
            debian(OBSERVED, &watched::command(way, LOAD, true)),
        ],
        deadline_s: 300,
    })?;
    let (plain, r) = (out.step("plain")?, out.step(OBSERVED)?);
    ensure!(plain.rc == 0 && plain.stdout.ends_with("3\n"), "{plain:?}");
    ensure!(
        (r.rc, &r.stdout) == (0, &plain.stdout)
            && r.stderr.starts_with(&plain.stderr)
            && r.stderr.contains("left behind"),
        "the program does something else: {r:?}, and not {plain:?}"
    );
    let reading = reading(&out, way)?;
    let in_block = reading.reports.iter().map(|r| r.at);
    let in_block: HashSet<_> = in_block.filter(|at| BLOCK.contains(&at.vpn)).collect();
    ensure!(
        in_block.len() == USED,
        "{} pages of {USED} are reported",
        in_block.len()
    );
    let judged = judge(&out, std::slice::from_ref(&reading), &LENGTHS)?;
    tell(&judged);
    let judged = judged.first().context("nothing was judged")?;
    // Memory of files can't be registered.
    let least = if way.starts_with("mprotect") {
        0.9
    } else {
        0.2
    };
    ensure!(
        judged.pages_seen >= Some(least),
        "pages are missing: {:?}",
        judged.pages_seen
    );
    for s in &judged.scores {
        ensure!(s.intervals >= 2, "too little to judge: {s:?}");
        ensure!(s.precision() >= Some(TRUE), "reports are of no use: {s:?}");
    }
    // The controls: at another time, and in an address space that has no such pages.
    let later = with(&out, &reading, |(_, r)| {
        Some(Report {
            from: r.from + 35_000_000,
            to: r.to + 35_000_000,
            ..*r
        })
    })?;
    let elsewhere = with(&out, &reading, |(_, r)| {
        let mut r = *r;
        r.at.vpn += 1 << 20;
        Some(r)
    })?;
    let precision = |j: &Judged| j.scores.first().and_then(|s| s.precision());
    ensure!(
        precision(&later) < Some(TRUE) && elsewhere.pages_seen < Some(0.01),
        "other reports are as good: {:?}, {:?}",
        precision(&later),
        elsewhere.pages_seen
    );
    Ok(())
}
