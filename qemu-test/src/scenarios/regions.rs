//! Regions that are sampled: what the kernel reports of a program whose accesses are known.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, debian, step};
use crate::postproc;
use crate::runner::say;
use ::postproc::damon::record::Record;
use ::postproc::trace::{Body, Merge, RegionBody, Step as Next, StreamKind, Trace};
use anyhow::{Context, Result, bail, ensure};
use kvmtrace_guest::{Step, StepResult};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

mod young;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    type Test = (&'static str, &'static str, fn(&str) -> Result<()>);
    let tests: [Test; 9] = [
        (
            "regions-exact",
            "what is sampled of blocks that are written, read and idle is what the program does",
            |kernel| one_cpu("regions-exact", &EXACT, kernel),
        ),
        (
            "regions-fast",
            "the same with larger blocks, in the host's time",
            |kernel| one_cpu("regions-fast", &FAST, kernel),
        ),
        (
            "regions-turns",
            "the same on two CPUs: which CPU wrote and which one read is known",
            |kernel| two_cpus("regions-turns", &TURNS, kernel),
        ),
        (
            "regions-smp",
            "the same on two CPUs in two threads of the host, in the host's time",
            |kernel| two_cpus("regions-smp", &SMP, kernel),
        ),
        (
            "regions-beside",
            "sampling ends at any time, and beside it reclaim and DAMON work",
            beside,
        ),
        (
            "regions-damon",
            "a working set is estimated no worse than by DAMON with the same intervals",
            against_damon,
        ),
        (
            "regions-control",
            "without flushes of the TLB, most accesses are not seen",
            control,
        ),
        (
            "regions-young",
            "what others see of accessed bits is as without a trace, and no access is missed for them",
            young::run,
        ),
        (
            "regions-refused",
            "starts with times or numbers of regions that make no sense are refused",
            refused,
        ),
    ];
    let scenario = |(name, about, run): Test| Scenario {
        name: name.into(),
        about,
        run: Box::new(run),
    };
    tests.into_iter().map(scenario).collect()
}

/// What shows that a page was accessed.
const WAYS: [&str; 2] = ["accessed", "fault"];

/// Fewest and most regions.
const REGIONS: (usize, usize) = (10, 100);

/// Where the program's first block lies.
const BASE: u64 = 0x1000_0000_0000;

/// The least share of looks at a block in use that find an access, and the largest at the idle block. A region at
/// the border of a block has pages beside it, too. And if the host is busy, an emulated CPU may not run from one
/// look to the next.
const IN_USE: f64 = 0.7;
const IDLE: f64 = 0.2;

/// The least share of the accesses to the written block that are writes.
const WRITES: f64 = 0.95;

/// Without flushes, a block in use has a smaller share.
const UNSEEN: f64 = 0.5;

/// How a program is sampled, and for how long it runs.
struct Plan {
    profile: Profile,
    /// Times, us.
    sample: u64,
    aggregate: u64,
    update: u64,
    /// For so long the blocks are used, ms.
    steady: u64,
    /// After so much of that time, regions have found their places, ms.
    warmup: u64,
    /// Of each block.
    pages: u64,
    /// Pages from the beginning of a block to that of the next one. The blocks are a large part of all memory
    /// there: what is in use within a large region that is idle is found late, or never.
    apart: u64,
    /// Of the program; 0: it has one thread.
    cpus: u64,
    /// Huge pages, too.
    huge: bool,
    /// The least share of looks at a block in use that find an access.
    in_use: f64,
}

/// A CPU executes an instruction in a nanosecond, so a page of a block in use is accessed more than a
/// hundred times from one look to the next. Without a flush, an access is missed only while the TLB has the
/// page. The emulator's TLB has 256 places at first, which the low bits of pages' numbers choose. So both
/// blocks in use have places of their own.
const EXACT: Plan = Plan {
    profile: Profile::Exact,
    sample: 500,
    aggregate: 10_000,
    update: 50_000,
    steady: 400,
    warmup: 200,
    pages: 64,
    apart: 160,
    cpus: 0,
    huge: false,
    in_use: IN_USE,
};

/// The emulated CPU takes a millisecond or two for all pages of both blocks.
const FAST: Plan = Plan {
    profile: Profile::Fast,
    sample: 10_000,
    aggregate: 200_000,
    update: 1_000_000,
    steady: 16_000,
    warmup: 8000,
    pages: 2048,
    apart: 4096,
    cpus: 0,
    huge: true,
    in_use: IN_USE,
};

/// Twice as long as DAMON's defaults are. A flush waits for the other CPU, and each CPU for its turn: of looks
/// that take 5 ms, a third finds no access.
const TURNS: Plan = Plan {
    profile: Profile::Turns,
    sample: 10_000,
    aggregate: 200_000,
    update: 1_000_000,
    steady: 10_000,
    warmup: 5000,
    pages: 512,
    apart: 1024,
    cpus: 2,
    huge: true,
    in_use: IN_USE,
};

/// What is found depends on how busy the host is.
const SMP: Plan = Plan {
    profile: Profile::Smp,
    in_use: 0.5,
    ..TURNS
};

impl Plan {
    /// The activator's options.
    fn options(&self, way: &str) -> String {
        let (least, most) = REGIONS;
        format!(
            "--sample {}us --aggregate {}us --update {}us --regions {least}..{most} --by {way}",
            self.sample, self.aggregate, self.update
        )
    }

    /// The program's command.
    fn heats(&self, huge: bool) -> String {
        self.heats_for(self.steady, huge)
    }

    /// The same for another time, after which its output is the same.
    fn heats_for(&self, ms: u64, huge: bool) -> String {
        let more = if huge { " huge" } else { "" };
        let Plan {
            pages, cpus, apart, ..
        } = self;
        format!("/bin/heats {ms} {pages} {cpus} {apart}{more}")
    }

    /// Looks at a page of a region for a report, at most.
    fn looks(&self) -> u64 {
        self.aggregate / self.sample + 1
    }
}

/// A block of the program.
#[derive(Clone, Copy)]
enum Block {
    Written,
    Idle,
    Read,
}

/// All of them.
const BLOCKS: [Block; 3] = [Block::Written, Block::Idle, Block::Read];

impl Block {
    fn range(self, plan: &Plan) -> (u64, u64) {
        let start = BASE + self as u64 * plan.apart * 4096;
        (start, start + plan.pages * 4096)
    }
}

/// A step of words.
fn words(name: &str, line: &str) -> Step {
    step(name, &line.split_ascii_whitespace().collect::<Vec<_>>())
}

/// A sampled run: its name, its options, and its command.
struct Run {
    name: String,
    options: String,
    command: String,
}

impl Run {
    fn new(name: String, options: String, command: String) -> Self {
        Run {
            name,
            options,
            command,
        }
    }

    fn file(&self) -> String {
        format!("{}.vmt", self.name)
    }

    /// Samples the program, and keeps the trace.
    fn steps(&self, slot: usize) -> [Step; 2] {
        let path = format!("/tmp/{}", self.file());
        let Run {
            name,
            options,
            command,
        } = self;
        [
            words(
                name,
                &format!("/bin/activator run {options} -o {path} -- {command}"),
            ),
            words(&format!("keep-{name}"), &format!("/bin/keep {slot} {path}")),
        ]
    }
}

/// The runs of a boot, and what is run untraced before them: a name and a command each.
struct Boot<'a> {
    name: &'a str,
    kernel: &'a str,
    profile: Profile,
    cmdline: &'a str,
    plain: Vec<(&'a str, String)>,
    runs: Vec<Run>,
}

impl Boot<'_> {
    fn run(&self, more: Vec<Step>) -> Result<Outcome> {
        let plain = self.plain.iter().map(|(name, line)| words(name, line));
        let runs = self.runs.iter().enumerate();
        let mut steps: Vec<_> = plain
            .chain(runs.flat_map(|(slot, r)| r.steps(slot)))
            .collect();
        steps.extend(more);
        boot(self.name, self.kernel, self.profile, self.cmdline, steps)
    }

    /// Runs the program with huge pages, too, if the plan has such.
    fn with_huge(&mut self, plan: &Plan) {
        if !plan.huge {
            return;
        }
        self.plain.push(("huge", plan.heats_for(SHORT, true)));
        for way in WAYS {
            let name = format!("{way}-huge");
            let run = Run::new(name, plan.options(way), plan.heats(true));
            self.runs.push(run);
        }
    }

    /// Holds the runs of the program that are sampled in a way against what it did.
    fn judge(&self, out: &Outcome, plan: &Plan, way: &str) -> Result<()> {
        let (r, path) = self.seen(out, &format!("{way}-small"), "small")?;
        judge(&format!("{way}-small"), plan, way, false, r, &path)?;
        if plan.huge {
            let r = out.step("huge")?;
            ensure!(is_huge(r), "no huge pages: {r:?}");
            let (r, path) = self.seen(out, &format!("{way}-huge"), "huge")?;
            judge(&format!("{way}-huge"), plan, way, true, r, &path)?;
        }
        Ok(())
    }

    /// A run's result and its trace. The program's output is that of the plain run.
    fn seen<'o>(
        &self,
        out: &'o Outcome,
        run: &str,
        plain: &str,
    ) -> Result<(&'o StepResult, PathBuf)> {
        let place = self.runs.iter().position(|r| r.name == run);
        let place = place.with_context(|| format!("no run {run}"))?;
        for name in [run, &format!("keep-{run}"), plain] {
            let r = out.step(name)?;
            ensure!(r.rc == 0, "{r:?}");
        }
        let (ran, untraced) = (out.step(run)?, out.step(plain)?);
        ensure!(
            !untraced.stdout.is_empty() && ran.stdout == untraced.stdout,
            "{run}: another output:\n{}\ninstead of\n{}",
            ran.stdout,
            untraced.stdout
        );
        Ok((ran, out.kept(place, &self.runs[place].file())?))
    }
}

fn boot(
    name: &str,
    kernel: &str,
    profile: Profile,
    cmdline: &str,
    steps: Vec<Step>,
) -> Result<Outcome> {
    Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: cmdline.into(),
        files: vec![],
        steps,
        deadline_s: 600,
    }
    .run()
}

/// A report of a region: its time, ns, and its address space.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Row {
    time: u64,
    mm: u32,
    region: RegionBody,
}

/// The rows of a trace, in order.
fn rows(trace: &Path) -> Result<Vec<Row>> {
    let trace = Trace::open(trace)?;
    let mut merge = Merge::of_kinds(&trace, &[StreamKind::Event]);
    let mut rows = Vec::new();
    while let Next::Event(event) = merge.fill(&mut Vec::new(), 1)? {
        if let Body::Region(region) = event.body {
            rows.push(Row {
                time: event.time_ns,
                mm: event.mm.0,
                region,
            });
        }
    }
    Ok(rows)
}

/// The same of a trace that is good. `postproc regions` has them, too.
fn good(trace: &Path) -> Result<Vec<Row>> {
    let (rc, _) = postproc::json(&["check"], trace)?;
    ensure!(rc == 0, "{}", postproc::explain(trace));
    let rows = rows(trace)?;
    let lines = postproc::regions(trace)?.lines().count();
    ensure!(
        lines == rows.len() + 1,
        "{lines} lines of {} regions and a head",
        rows.len()
    );
    Ok(rows)
}

/// A decimal number.
fn number(text: &str) -> Result<u64> {
    text.parse().with_context(|| format!("no number: {text:?}"))
}

/// When the program's blocks were in use.
fn steady(r: &StepResult) -> Result<(u64, u64)> {
    let line = r.stderr.lines().find_map(|l| l.strip_prefix("steady "));
    let (begin, end) = line
        .and_then(|l| l.split_once(' '))
        .with_context(|| format!("no line \"steady\": {r:?}"))?;
    Ok((number(begin)?, number(end)?))
}

/// What was found of a block.
#[derive(Debug)]
struct Found {
    /// Share of looks that found an access, of all of the block's bytes.
    share: f64,
    /// Accesses and writes of regions that have pages of this block and of no other one. Between blocks nothing
    /// is mapped, so these accesses are the block's, even if the region begins or ends beside it.
    accesses: u64,
    writes: u64,
    /// The CPUs of these.
    cpus: u64,
    /// The largest age of a region that has a part of the block.
    age: u32,
}

/// What was found of the block in one of these ranges.
fn found(rows: &[Row], blocks: &[(u64, u64)], number: usize) -> Result<Found> {
    let (start, end) = blocks[number];
    let (mut looks, mut accesses) = (0.0, 0.0);
    let mut found = Found {
        share: 0.0,
        accesses: 0,
        writes: 0,
        cpus: 0,
        age: 0,
    };
    for r in rows.iter().map(|row| row.region) {
        let common = |&(from, to): &(u64, u64)| r.end.min(to).saturating_sub(r.start.max(from));
        let bytes = common(&(start, end)) as f64;
        looks += bytes * f64::from(r.looks);
        accesses += bytes * f64::from(r.accesses);
        if bytes == 0.0 {
            continue;
        }
        found.age = found.age.max(r.age);
        if blocks.iter().filter(|block| common(block) > 0).count() == 1 {
            found.accesses += u64::from(r.accesses);
            found.writes += u64::from(r.writes);
            found.cpus |= r.cpus;
        }
    }
    ensure!(looks > 0.0, "no look at {start:#x} to {end:#x}");
    found.share = accesses / looks;
    Ok(found)
}

fn of_block(rows: &[Row], plan: &Plan, block: Block) -> Result<Found> {
    found(rows, &BLOCKS.map(|b| b.range(plan)), block as usize)
}

/// Numbers of regions of an address space's reports, in order.
fn reports<'r>(rows: impl Iterator<Item = &'r Row>) -> Vec<usize> {
    let mut list = Vec::new();
    for row in rows {
        match list.last_mut() {
            Some(count) if row.region.index > 0 => *count += 1,
            _ => list.push(1),
        }
    }
    list
}

/// The rows of the program's address space while its blocks were in use, and regions had found their places.
fn of_program(rows: &[Row], plan: &Plan, r: &StepResult) -> Result<(Vec<Row>, u64)> {
    let (begin, end) = steady(r)?;
    let from = begin + plan.warmup * 1_000_000 + plan.aggregate * 1000;
    ensure!(
        from < end,
        "the program ran for {} ms",
        (end - begin) / 1_000_000
    );
    let (start, stop) = (BASE, BASE + 3 * plan.apart * 4096);
    let within = |r: &&Row| r.region.start < stop && r.region.end > start;
    let mms: BTreeSet<_> = rows.iter().filter(within).map(|r| r.mm).collect();
    let in_time = |r: &&Row| mms.contains(&r.mm) && (from..=end).contains(&r.time);
    ensure!(mms.len() == 1, "the blocks are of {mms:?}");
    Ok((rows.iter().filter(in_time).copied().collect(), end - from))
}

/// Reports come as often as they should, and are as large as they may be.
fn is_regular(rows: &[Row], plan: &Plan, took: u64) -> Result<usize> {
    let counts = reports(rows.iter());
    let (least, most) = REGIONS;
    // The first one and the last one may have begun, or go on, at another time.
    let whole = counts.get(1..counts.len().saturating_sub(1)).unwrap_or(&[]);
    let odd = whole.iter().find(|n| !(least..=most).contains(n));
    ensure!(odd.is_none(), "a report of {odd:?} regions");
    let expected = took as f64 / (plan.aggregate * 1000) as f64;
    ensure!(
        (0.5..=2.0).contains(&(counts.len() as f64 / expected)),
        "{} reports, and there should be {expected:.1}",
        counts.len()
    );
    let many = |r: &&Row| u64::from(r.region.looks) > plan.looks();
    let many = rows.iter().find(many);
    ensure!(many.is_none(), "more looks than planned: {many:?}");
    Ok(counts.len())
}

/// Holds a run of the program against what that did.
fn judge(
    name: &str,
    plan: &Plan,
    way: &str,
    huge: bool,
    r: &StepResult,
    path: &Path,
) -> Result<()> {
    let (rows, took) = of_program(&good(path)?, plan, r)?;
    let reports = is_regular(&rows, plan, took)?;
    let of = |block: Block| of_block(&rows, plan, block);
    let (written, idle, read) = (of(Block::Written)?, of(Block::Idle)?, of(Block::Read)?);
    say!(
        "  {name}: {reports} reports of {:.0} regions; shares {:.3} written, {:.3} read, {:.3} idle",
        rows.len() as f64 / reports as f64,
        written.share,
        read.share,
        idle.share
    );
    ensure!(
        written.share >= plan.in_use && read.share >= plan.in_use && idle.share <= IDLE,
        "{name}: written {written:?}, read {read:?}, idle {idle:?}"
    );
    // What is idle all the time is old after half of the reports. What is in use is found idle at times, if the
    // host is busy, and then its age begins anew.
    let old = u32::try_from(reports)? / 2;
    ensure!(
        idle.age >= old && written.age.max(read.age) >= old / 4,
        "{name}: written {written:?}, read {read:?}, idle {idle:?} after {reports} reports"
    );
    let faults = way == "fault";
    if !faults {
        let knows = |r: &&Row| r.region.writes > 0 || r.region.cpus > 0;
        let knows = rows.iter().find(knows);
        ensure!(knows.is_none(), "{name}: nobody can know that: {knows:?}");
    }
    if faults && !huge {
        let writes = written.writes as f64 / written.accesses as f64;
        ensure!(
            writes >= WRITES && read.writes == 0 && idle.writes == 0,
            "{name}: written {written:?}, read {read:?}, idle {idle:?}"
        );
        // The thread that writes is on the first CPU, and that which reads on the last one.
        let last = 1 << plan.cpus.saturating_sub(1);
        ensure!(
            written.cpus == 1 && read.cpus == last,
            "{name}: written by CPUs {:#x}, read by {:#x}",
            written.cpus,
            read.cpus
        );
    }
    Ok(())
}

fn is_huge(r: &StepResult) -> bool {
    let huge = r.stdout.lines().find_map(|l| l.strip_prefix("huge "));
    huge.is_some_and(|kib| kib != "0")
}

/// For so long the program runs untraced, ms.
const SHORT: u64 = 5;

fn one_cpu(name: &str, plan: &Plan, kernel: &str) -> Result<()> {
    let (forks, short) = ("/bin/fork-storm 20", "/bin/hot-cold 1 1");
    let mut b = Boot {
        name,
        kernel,
        profile: plan.profile,
        cmdline: "",
        plain: vec![
            ("small", plan.heats_for(SHORT, false)),
            ("forks", forks.into()),
            ("short", short.into()),
        ],
        runs: vec![],
    };
    for way in WAYS {
        for (what, command) in [
            ("small", plan.heats(false)),
            ("forks", forks.into()),
            ("short", short.into()),
        ] {
            let name = format!("{way}-{what}");
            b.runs.push(Run::new(name, plan.options(way), command));
        }
    }
    b.with_huge(plan);
    let out = b.run(vec![])?;
    for way in WAYS {
        b.judge(&out, plan, way)?;
        // Of these, there may be no report: an address space ends before its first one.
        for what in ["forks", "short"] {
            let name = format!("{way}-{what}");
            let (_, path) = b.seen(&out, &name, what)?;
            say!("  {name}: {} regions", good(&path)?.len());
        }
    }
    Ok(())
}

fn two_cpus(name: &str, plan: &Plan, kernel: &str) -> Result<()> {
    let forks = "/bin/fork-storm 10";
    let mut b = Boot {
        name,
        kernel,
        profile: plan.profile,
        cmdline: "",
        plain: vec![
            ("small", plan.heats_for(SHORT, false)),
            ("forks", forks.into()),
        ],
        runs: vec![],
    };
    for way in WAYS {
        for (what, command) in [("small", plan.heats(false)), ("forks", forks.into())] {
            let name = format!("{way}-{what}");
            b.runs.push(Run::new(name, plan.options(way), command));
        }
    }
    b.with_huge(plan);
    let out = b.run(vec![])?;
    for way in WAYS {
        b.judge(&out, plan, way)?;
        let (_, path) = b.seen(&out, &format!("{way}-forks"), "forks")?;
        good(&path)?;
    }
    Ok(())
}

/// The share of each way that a block in use has without flushes; the smaller one of two blocks.
fn control(kernel: &str) -> Result<()> {
    let mut b = Boot {
        name: "regions-control",
        kernel,
        profile: EXACT.profile,
        cmdline: "vmtrace_break=noflush",
        plain: vec![("small", EXACT.heats_for(SHORT, false))],
        runs: vec![],
    };
    for way in WAYS {
        let run = Run::new(way.into(), EXACT.options(way), EXACT.heats(false));
        b.runs.push(run);
    }
    let out = b.run(vec![])?;
    let mut shares = BTreeMap::new();
    for way in WAYS {
        let (r, path) = b.seen(&out, way, "small")?;
        let (rows, _) = of_program(&rows(&path)?, &EXACT, r)?;
        let of = |block: Block| of_block(&rows, &EXACT, block);
        let least = f64::min(of(Block::Written)?.share, of(Block::Read)?.share);
        say!("  {way}: {least:.3} of looks at a block in use find an access without flushes");
        shares.insert(way, least);
    }
    ensure!(
        shares.values().any(|share| *share < UNSEEN),
        "accesses are seen without flushes: the control shows nothing: {shares:?}"
    );
    Ok(())
}

/// What damon-sample has DAMON do with an aggregation interval of so many ms: DAMON's defaults, but five times as
/// fast, and new mappings are looked for in each of these intervals.
const AS_DAMON: &str = "--sample 1ms --aggregate 20ms --update 20ms --regions 10..1000";
const AGGREGATE_MS: u64 = 20;

/// How much more of the truth the error may be than DAMON's. Both choose pages at random.
const MARGIN: f64 = 0.02;

/// An estimate of a working set, bytes: of each region as much as the share of looks that found an access.
fn estimate(regions: impl Iterator<Item = (u64, u32, u32)>) -> f64 {
    let used = |(bytes, accesses, looks): (u64, u32, u32)| {
        bytes as f64 * f64::from(accesses) / f64::from(looks.max(1))
    };
    regions.map(used).sum()
}

/// The median of estimates, and how far from the truth it is, as a share of the truth.
fn error(mut estimates: Vec<f64>, truth: f64) -> Result<f64> {
    ensure!(estimates.len() >= 20, "{} estimates", estimates.len());
    estimates.sort_by(f64::total_cmp);
    let median = estimates[estimates.len() / 2];
    Ok((median - truth).abs() / truth)
}

/// The program, as kVMTrace and as DAMON see it with the same intervals. What it really uses is known.
fn against_damon(kernel: &str) -> Result<()> {
    let program = "heats 1000 512 0 1024";
    let truth = (2 * 512 * 4096) as f64;
    let beside = format!(
        "damon-sample heats {AGGREGATE_MS} > /tmp/damon.txt & {program}; wait $!; cat /tmp/damon.txt"
    );
    let mut steps = vec![debian("damon", &beside)];
    for (slot, way) in WAYS.iter().enumerate() {
        let path = format!("/tmp/{way}.vmt");
        let run = format!("activator run {AS_DAMON} --by {way} -o {path} -- {program}");
        steps.push(debian(way, &run));
        steps.push(debian("keep", &format!("keep {slot} {path}")));
    }
    let out = Machine {
        name: format!("regions-damon-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 300,
    }
    .run()?;
    for r in &out.results {
        ensure!(r.rc == 0, "{r:?}");
    }
    let text = &out.step("damon")?.stdout;
    let (_, record) = text.split_once("# tracer").context("no record of DAMON")?;
    let path = out.dir.join("damon.txt");
    std::fs::write(&path, record)?;
    let record = Record::open(&path, AGGREGATE_MS * 1_000_000)?;
    let snapshots = record.targets.values().flatten();
    let of_damon = snapshots.map(|snapshot| {
        let regions = snapshot.regions.iter();
        estimate(regions.map(|r| (r.end - r.start, r.accesses, 20)))
    });
    let of_damon = error(of_damon.collect(), truth)?;
    say!("  DAMON: {:.1} % off", 100.0 * of_damon);
    for (slot, way) in WAYS.iter().enumerate() {
        let rows = good(&out.kept(slot, &format!("{way}.vmt"))?)?;
        let within = |r: &&Row| r.region.start < BASE + 1 && r.region.end > BASE;
        let mm = rows
            .iter()
            .find(within)
            .context("the blocks have no region")?
            .mm;
        let own: Vec<&Row> = rows.iter().filter(|r| r.mm == mm).collect();
        let reports = own.chunk_by(|_, next| next.region.index > 0);
        let estimates = reports.map(|rows| {
            let regions = rows.iter().map(|row| row.region);
            estimate(regions.map(|r| (r.end - r.start, r.accesses, r.looks)))
        });
        let own = error(estimates.collect(), truth)?;
        say!("  {way}: {:.1} % off", 100.0 * own);
        ensure!(
            own <= of_damon + MARGIN,
            "{way}: {own:.3} of the truth off, and DAMON {of_damon:.3}"
        );
    }
    Ok(())
}

/// Starts and ends in quick succession.
const TOGGLES: usize = 6;

/// Programs whose work depends on accessed bits, and those that take memory away.
const NEIGHBOURS: [(&str, &str); 3] = [
    ("lru", "/bin/reclaim lru"),
    ("oom", "/bin/reclaim oom"),
    ("damon", "/bin/damon-beside"),
];

fn beside(kernel: &str) -> Result<()> {
    let plan = Plan {
        sample: 1000,
        aggregate: 20_000,
        update: 100_000,
        ..SMP
    };
    let mut steps = Vec::new();
    let on = |steps: &mut Vec<Step>, name: &str, way: &str| {
        let options = plan.options(way);
        let line = format!("/bin/activator on --all {options} -o /tmp/{name}.vmt");
        steps.push(words(&format!("on-{name}"), &line));
    };
    let off = |steps: &mut Vec<Step>, name: &str| {
        steps.push(words(&format!("off-{name}"), "/bin/activator off"));
        let check = format!("/bin/postproc check /tmp/{name}.vmt");
        steps.push(words(&format!("check-{name}"), &check));
    };
    for (name, line) in NEIGHBOURS {
        steps.push(words(&format!("plain-{name}"), line));
    }
    for way in WAYS {
        on(&mut steps, way, way);
        for (name, line) in NEIGHBOURS {
            steps.push(words(&format!("{way}-{name}"), line));
        }
        off(&mut steps, way);
    }
    let mut busy = words("busy", "/bin/heats 600000 512 2 1024");
    busy.background = true;
    steps.push(busy);
    for turn in 0..TOGGLES {
        let name = format!("turn-{turn}");
        on(&mut steps, &name, WAYS[turn % WAYS.len()]);
        // Some end while they begin, and some while regions are sampled.
        if turn >= TOGGLES / 2 {
            steps.push(words(&format!("touch-{turn}"), "/bin/fork-storm 3"));
        }
        off(&mut steps, &name);
    }
    for (slot, way) in WAYS.iter().enumerate() {
        let keep = format!("/bin/keep {slot} /tmp/{way}.vmt");
        steps.push(words(&format!("keep-{way}"), &keep));
    }
    let out = boot("regions-beside", kernel, plan.profile, "", steps)?;
    for r in out.results.iter().filter(|r| r.name != "busy") {
        ensure!(r.rc == 0, "{r:?}");
    }
    for (slot, way) in WAYS.iter().enumerate() {
        for (name, _) in NEIGHBOURS {
            let (plain, beside) = (
                &out.step(&format!("plain-{name}"))?.stdout,
                &out.step(&format!("{way}-{name}"))?.stdout,
            );
            ensure!(
                !plain.contains("false") && plain == beside,
                "{way}: {name} printed\n{beside}\ninstead of\n{plain}"
            );
        }
        let rows = good(&out.kept(slot, &format!("{way}.vmt"))?)?;
        let mms: BTreeSet<_> = rows.iter().map(|r| r.mm).collect();
        say!(
            "  {way}: {} regions of {} address spaces",
            rows.len(),
            mms.len()
        );
        // The guest's first process, and at least one of the others.
        ensure!(mms.len() >= 2, "{way}: {mms:?}");
    }
    Ok(())
}

/// What the program's starts are called that the kernel takes.
const TAKEN: [&str; 11] = [
    "by-accessed",
    "by-fault",
    "packed",
    "shortest",
    "longest",
    "fewest",
    "most",
    "windows",
    "pausable",
    "change",
    "references",
];

/// Sorts what the program printed: the starts that were taken, and those that were refused as they should be.
fn sorted(told: &str) -> Result<(Vec<&str>, Vec<&str>)> {
    let (mut taken, mut refused) = (Vec::new(), Vec::new());
    for line in told.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            [_, "stop", "0"] => {}
            [name, "0"] => taken.push(name),
            [name, "EINVAL"] => refused.push(name),
            _ => bail!("neither taken nor refused: {line:?}"),
        }
    }
    Ok((taken, refused))
}

/// Starts that the program gives and that the kernel is to refuse.
const REFUSED: usize = 34;

fn refused(kernel: &str) -> Result<()> {
    let program = words("odd", "/bin/odd-samplings /tmp/odd.vmt");
    let out = boot("regions-refused", kernel, Profile::Fast, "", vec![program])?;
    let r = out.step("odd")?;
    ensure!(r.rc == 0, "{r:?}");
    let (taken, refused) = sorted(&r.stdout)?;
    ensure!(
        taken == TAKEN && refused.len() == REFUSED,
        "taken: {taken:?}, refused: {refused:?}"
    );
    say!("  {} taken, {} refused", taken.len(), refused.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region that was looked at 20 times.
    fn row(start: u64, end: u64, accesses: u32, writes: u32) -> Row {
        let region = RegionBody {
            start,
            end,
            looks: 20,
            accesses,
            writes,
            age: writes,
            cpus: u64::from(writes),
            index: 0,
            regions: 1,
        };
        Row {
            time: 1000,
            mm: 3,
            region,
        }
    }

    #[test]
    fn a_share_is_that_of_a_blocks_bytes() {
        let rows = [
            row(0x1000, 0x2000, 20, 5),
            row(0x2000, 0x6000, 10, 2),
            row(0x7000, 0x8000, 20, 1),
        ];
        // A page with all looks, and one of four with half of them.
        let blocks = [(0x1000, 0x3000), (0x5000, 0x5800), (0x8000, 0x9000)];
        let f = found(&rows, &blocks, 0).unwrap();
        assert!((f.share - 0.75).abs() < 1e-9, "{f:?}");
        // The second region has a part of the next block, too.
        assert_eq!((f.accesses, f.writes, f.cpus, f.age), (20, 5, 5, 5));
        assert!(found(&rows, &blocks, 2).is_err());
    }

    #[test]
    fn a_region_that_begins_before_a_block_is_the_blocks() {
        let rows = [row(0x7f000, 0x90000, 20, 8), row(0x90000, 0x91000, 3, 2)];
        let f = found(&rows, &[(0x10000, 0x20000), (0x80000, 0x90000)], 1).unwrap();
        assert_eq!((f.accesses, f.writes, f.cpus), (20, 8, 8));
    }

    #[test]
    fn an_error_is_that_of_the_median_estimate() {
        let regions = [(4096, 20, 20), (8192, 5, 20), (4096, 0, 0)];
        assert!((estimate(regions.into_iter()) - 6144.0).abs() < 1e-9);
        let estimates: Vec<f64> = (0..21).map(|i| f64::from(i) * 10.0).collect();
        assert!((error(estimates.clone(), 80.0).unwrap() - 0.25).abs() < 1e-9);
        assert!(error(estimates[..19].to_vec(), 80.0).is_err());
    }

    #[test]
    fn a_report_begins_with_its_first_region() {
        let at = |index| {
            let mut row = row(0, 0x1000, 0, 0);
            row.region.index = index;
            row
        };
        let of = |list: &[u32]| {
            let rows: Vec<_> = list.iter().map(|index| at(*index)).collect();
            reports(rows.iter())
        };
        assert_eq!(of(&[0, 1, 2, 0, 0, 1]), [3, 1, 2]);
        // The rest of one that began before.
        assert_eq!(of(&[4, 5, 0]), [2, 1]);
        assert!(of(&[]).is_empty());
    }

    /// Reports of so many regions, one for each interval.
    fn regular(plan: &Plan, reports: u64, regions: u32) -> Vec<Row> {
        let region = |report: u64, index: u32| {
            let mut row = row(u64::from(index) << 12, (u64::from(index) + 1) << 12, 1, 0);
            row.time = report * plan.aggregate * 1000;
            (row.region.index, row.region.regions) = (index, regions);
            row
        };
        let report = |n| (0..regions).map(move |index| region(n, index));
        (0..reports).flat_map(report).collect()
    }

    #[test]
    fn reports_that_are_late_few_or_large_are_noticed() {
        let took = 20 * EXACT.aggregate * 1000;
        let judge = |rows: &[Row]| is_regular(rows, &EXACT, took);
        assert_eq!(judge(&regular(&EXACT, 20, 10)).unwrap(), 20);
        for (reports, regions) in [(9, 10), (41, 10), (20, 9), (20, 101)] {
            let rows = regular(&EXACT, reports, regions);
            assert!(judge(&rows).is_err(), "{reports} {regions}");
        }
        let mut rows = regular(&EXACT, 20, 10);
        rows[57].region.looks += 1;
        assert!(judge(&rows).is_ok(), "a look more may come");
        rows[57].region.looks += 1;
        assert!(judge(&rows).is_err());
    }

    #[test]
    fn only_the_programs_rows_in_its_steady_time_count() {
        let r = StepResult {
            name: "heats".into(),
            rc: 0,
            stdout: "huge 0\n".into(),
            stderr: "a line\nsteady 1000000000 2000000000\n".into(),
            ns: 0,
        };
        assert!(!is_huge(&r));
        let row = |time, mm, start| Row {
            time,
            mm,
            ..row(start, start + 4096, 1, 0)
        };
        let late = 1_900_000_000;
        let all = [
            row(1_209_999_999, 3, BASE),
            row(1_210_000_000, 3, BASE),
            row(late, 3, 0x5555_0000_0000),
            row(late, 4, 0x5555_0000_0000),
            row(2_000_000_001, 3, BASE),
        ];
        let (rows, took) = of_program(&all, &EXACT, &r).unwrap();
        assert_eq!(rows, all[1..3]);
        assert_eq!(took, 790_000_000);
        let other = [all[1], row(late, 4, BASE)];
        assert!(of_program(&other, &EXACT, &r).is_err());
        assert!(of_program(&all[3..4], &EXACT, &r).is_err());
        assert!(of_program(&all, &FAST, &r).is_err());
    }

    #[test]
    fn another_answer_to_a_start_is_noticed() {
        let (taken, refused) = sorted("a 0\na stop 0\nb EINVAL\n").unwrap();
        assert_eq!((taken, refused), (vec!["a"], vec!["b"]));
        for line in ["a error-16", "a stop EINVAL", "a", ""] {
            assert!(sorted(&format!("{line}\n")).is_err(), "{line}");
        }
    }
}
