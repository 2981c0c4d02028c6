//! What is recorded of a run, held against all accesses of the same run: a small `make compare`.

use super::Scenario;
use crate::compare::observers::{Reading, readings, watched};
use crate::compare::score::Report;
use crate::compare::{Judged, OBSERVED, judge};
use crate::machine::{Machine, Outcome, Profile, step};
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
    ]
}

/// Pages, turns, and the rest after each, ms.
const PROGRAM: &str = "/bin/spells 300 25 4";
/// Intervals, ms.
const LENGTHS: [u64; 2] = [10, 50];

fn observed(name: &str, options: &str, kernel: &str) -> Result<Outcome> {
    let line = format!("/bin/activator run {options} -o /dev/trace -- {PROGRAM}");
    let argv: Vec<_> = line.split(' ').collect();
    let out = watched(&Machine {
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
    for j in &judged {
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
    let two = |_| "a trace has two readings";
    Ok((
        <[Reading; 2]>::try_from(readings).map_err(|r| anyhow::anyhow!(two(r.len())))?,
        <[Judged; 2]>::try_from(judged).map_err(|j| anyhow::anyhow!(two(j.len())))?,
    ))
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
