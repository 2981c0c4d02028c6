//! Traces whose stays end from time to time.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, debian};
use crate::postproc;
use crate::runner::say;
use ::postproc::trace::{Merge, Step, Trace, Why};
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::Step as GuestStep;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let mut list = Vec::new();
    for profile in [Profile::Turns, Profile::Fast, Profile::Smp] {
        list.push(Scenario {
            name: format!("interval-{}", profile.name()),
            about: "each page that is used in an interval has a record in it, and hardly any has more",
            run: Box::new(move |kernel| intervals(kernel, profile)),
        });
    }
    list
}

/// Pages that the program uses in each turn, turns, and the least rest after each, ms.
const PAGES: usize = 300;
const TURNS: usize = 100;
const REST: u32 = 4;

/// Names of runs, and their options.
fn runs(profile: Profile) -> [(&'static str, String); 7] {
    let times = slowness(profile);
    let ms = |least: u32| format!("{}ms", least * times);
    let short = format!("--interval {}", ms(10));
    [
        ("short", short.clone()),
        ("long", format!("--interval {}", ms(100))),
        ("whole", "-n 65536".into()),
        ("small", format!("{short} -n 64")),
        ("again", format!("{short} --again")),
        ("clock", format!("{short} --policy clock")),
        (
            "windows",
            format!("--interval {} --trace {} --skip {}", ms(5), ms(60), ms(20)),
        ),
    ]
}

/// How much longer all times are: a turn is to be shorter than the shortest interval, and CPUs that
/// take turns execute an instruction in 32 ns.
fn slowness(profile: Profile) -> u32 {
    match profile {
        Profile::Turns | Profile::Turns4 | Profile::Alone => 5,
        Profile::Exact | Profile::Fast | Profile::Smp => 1,
    }
}

fn boot(kernel: &str, profile: Profile) -> Result<Outcome> {
    let program = format!("spells {PAGES} {TURNS} {}", REST * slowness(profile));
    let mut steps: Vec<GuestStep> = Vec::new();
    for (slot, (name, options)) in runs(profile).iter().enumerate() {
        let file = format!("/tmp/{name}.vmt");
        steps.push(debian(
            name,
            &format!("activator run {options} -o {file} -- {program}"),
        ));
        steps.push(debian("keep", &format!("keep {slot} {file}")));
    }
    let storm = "activator run --interval 1ms --set-per process -o /tmp/storm.vmt -- fork-storm 20";
    steps.push(debian("plain", "fork-storm 20"));
    steps.push(debian("storm", storm));
    steps.push(debian("check", "postproc check --frames /tmp/storm.vmt"));
    Machine {
        name: format!("interval-{}-{kernel}", profile.name()),
        kernel: kernel.into(),
        profile,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 600,
    }
    .run()
}

/// Stays of the program's pages: their beginnings, ends, and why they ended.
type Stays = BTreeMap<u64, Vec<(u64, u64, Why)>>;

fn stays(path: &Path) -> Result<Stays> {
    let trace = Trace::open(path)?;
    let shift = trace.header().stay_shift;
    let mut merge = Merge::new(&trace);
    let (mut all, mut refs) = (Stays::new(), Vec::new());
    loop {
        let step = merge.fill(&mut refs, 4096)?;
        for r in refs.drain(..).filter(|r| r.address() >> 40 == 0x10) {
            let end = r.end_ns(shift).unwrap_or(u64::MAX);
            let stay = (r.time_ns, end.saturating_add(1 << shift), r.flags().why());
            all.entry(r.address()).or_default().push(stay);
        }
        if matches!(step, Step::End) {
            return Ok(all);
        }
    }
}

/// Each page has a stay in each turn. Gives the number of stays, and of intervals that ended some.
fn covers(name: &str, stdout: &str, path: &Path) -> Result<(usize, usize)> {
    let turns: Vec<(u64, u64)> = stdout
        .lines()
        .filter_map(|line| line.strip_prefix("turn ")?.split_once(' '))
        .map(|(begin, end)| Ok((begin.parse()?, end.parse()?)))
        .collect::<Result<_>>()?;
    ensure!(turns.len() == TURNS, "{name}: {} turns", turns.len());
    let stays = stays(path)?;
    ensure!(stays.len() == PAGES, "{name}: {} pages", stays.len());
    let all = || stays.values().flatten();
    // The end of an interval takes a moment, in which the ends of stays differ.
    let ends: BTreeSet<u64> = all()
        .filter(|s| s.2 == Why::Interval)
        .map(|s| s.1)
        .collect();
    let mut intervals: Vec<(u64, u64)> = Vec::new();
    for end in ends {
        match intervals.last_mut() {
            Some((_, last)) if end <= *last + 2_000_000 => *last = end,
            _ => intervals.push((end, end)),
        }
    }
    for (page, stays) in &stays {
        for (begin, end) in &turns {
            let lasts = |stay: &(u64, u64, Why)| stay.0 <= *end && stay.1 >= *begin;
            if stays.iter().any(lasts) {
                continue;
            }
            // A stay ends a moment before its page is flushed. Until then, another CPU can use the page. If the
            // emulator changes CPUs in that moment, the program has a whole turn in it.
            let before = stays.iter().map(|s| s.1).filter(|e| e < begin).max();
            let before = before.unwrap_or(0);
            let ends_now = |(first, last): &(u64, u64)| *first <= before && begin <= last;
            ensure!(
                intervals.iter().any(ends_now),
                "{name}: page {page:#x} has no stay in the turn from {begin} to {end}; the last one before ended at \
                 {before}"
            );
            say!(
                "  {name}: page {page:#x} is used {} ns after its stay, while an interval ends",
                begin - before
            );
        }
    }
    Ok((all().count(), intervals.len()))
}

fn intervals(kernel: &str, profile: Profile) -> Result<()> {
    let out = boot(kernel, profile)?;
    let mut told = BTreeMap::new();
    for (slot, (name, _)) in runs(profile).iter().enumerate() {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{r:?}");
        let path = out.kept(slot, &format!("{name}.vmt"))?;
        let (rc, _) = postproc::json(&["check", "--frames"], &path)?;
        ensure!(rc == 0, "{name}: {}", postproc::explain(&path));
        if *name != "windows" {
            let (records, ends) = covers(name, &r.stdout, &path)?;
            say!("  {name}: {records} records of {PAGES} pages, {ends} intervals");
            told.insert(*name, (records, ends));
        }
    }
    let of = |name: &str| told.get(name).copied().context("no such run");
    // Without intervals, a page has one record: the set has room for all.
    ensure!(of("whole")? == (PAGES, 0), "{:?}", of("whole")?);
    // A page that is used has one record in each interval, or none if nothing was used in it.
    for name in ["short", "long", "again", "clock"] {
        let (records, ends) = of(name)?;
        ensure!(
            ends >= 3 && records > PAGES,
            "{name}: {records} records, {ends} intervals"
        );
        let most = (ends + 2) * PAGES;
        ensure!(
            records <= most,
            "{name}: {records} records of at most {most}"
        );
    }
    let ((short, _), (long, _), (small, _)) = (of("short")?, of("long")?, of("small")?);
    // A small set has a record for nearly each turn instead.
    ensure!(
        long < short && short < small,
        "{long}, {short}, {small} records"
    );
    let (plain, storm) = (out.step("plain")?, out.step("storm")?);
    ensure!(storm.rc == 0 && plain.stdout == storm.stdout, "{storm:?}");
    let check = out.step("check")?;
    ensure!(check.rc == 0, "{check:?}");
    Ok(())
}
