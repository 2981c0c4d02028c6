//! What is hard to trace: docs/coverage.md has a line for each, and the programs of
//! the guest are named there. Each program runs untraced and traced with the same
//! output, its trace has no violation, and more is asked of it here.
//!
//! All programs run in one boot, each with a trace of its own, which goes to a slot
//! of the trace's disk.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, step};
use crate::postproc;
use crate::runner::say;
use ::postproc::trace::{Body, MapKind, Merge, Ref, Step, Trace, Why};
use ::postproc::units::{Access, Tid};
use anyhow::{Context, Result, bail, ensure};
use kvmtrace_guest::Step as Job;
use rust_mm_trace::uapi;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

const BASE: u64 = 0x1000_0000_0000;
const PAGE: u64 = 4096;

/// Who is traced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// The program, from its start.
    Run,
    /// The program has itself traced; its arguments say so, and where to.
    Itself,
    /// The whole system.
    All,
}

/// A program, and what its trace must show.
struct Corner {
    argv: &'static [&'static str],
    how: How,
    shows: fn(&Seen) -> Result<()>,
}

const fn corner(argv: &'static [&'static str], how: How, shows: fn(&Seen) -> Result<()>) -> Corner {
    Corner { argv, how, shows }
}

/// Run each time.
const CORNERS: &[Corner] = &[
    corner(&["huge-pages", "thp"], How::Itself, thp),
    corner(&["huge-pages", "shmem"], How::Itself, thp),
    corner(&["huge-pages", "others"], How::Itself, others),
    corner(&["huge-pages", "mthp"], How::Run, mthp),
    corner(&["huge-tlb", "run"], How::Run, huge_tlb),
    corner(&["huge-tlb", "before"], How::Itself, huge_table),
    corner(&["ksm"], How::Run, known),
    corner(&["swap-disk"], How::Run, swap),
    corner(&["idle-pages"], How::Run, known),
    corner(&["reclaim", "lru"], How::Run, known),
    corner(&["reclaim", "mglru"], How::Run, known),
    corner(&["reclaim", "oom"], How::Run, known),
    corner(&["damon-beside"], How::Run, known),
    corner(&["uffd"], How::Run, known),
    corner(&["guards"], How::Run, known),
    corner(&["passes-by", "/dev/small"], How::Run, passes_by),
    corner(&["futexes"], How::Run, known),
    corner(&["xsave-signals"], How::Run, known),
    corner(&["births"], How::All, births),
    corner(&["device-maps"], How::Run, devices),
    corner(&["migrate", "move"], How::Run, migrate),
    corner(&["migrate", "balance"], How::Itself, known),
    corner(&["attach-loop", "5"], How::Itself, known),
];

/// The scenarios that run each time.
pub fn scenarios() -> Vec<Scenario> {
    vec![all("64", "", Profile::Exact), stress(20_000)]
}

/// All of them.
pub fn full() -> Vec<Scenario> {
    let mut list = Vec::new();
    for profile in [Profile::Exact, Profile::Smp] {
        for (n, options) in [
            ("32", ""),
            ("64", ""),
            ("512", ""),
            ("64", "--again"),
            ("64", "--policy clock"),
            ("512", "--policy clock"),
        ] {
            list.push(all(n, options, profile));
        }
    }
    list.push(stress(500_000));
    list.push(stress(10_000_000));
    list
}

fn all(n: &'static str, options: &'static str, profile: Profile) -> Scenario {
    let kind = options.split(' ').next_back().unwrap_or_default();
    let kind = kind.trim_start_matches('-');
    Scenario {
        name: format!(
            "corners-{n}{}{kind}-{}",
            if kind.is_empty() { "" } else { "-" },
            profile.name()
        ),
        about: "difficult cases: the same output, no violation, the right records",
        run: Box::new(move |kernel| run(n, options, profile, kernel)),
    }
}

fn stress(admissions: u64) -> Scenario {
    let name = match admissions {
        10_000_000 => "stress-10m".into(),
        n => format!("stress-{}k", n / 1000),
    };
    Scenario {
        name,
        about: "everything that ends stays, at once on two CPUs: members never above N, 0 funny, 0 lost",
        run: Box::new(move |kernel| run_stress(admissions, kernel)),
    }
}

/// A mapping that an event reported.
struct Mapping {
    range: Range<u64>,
    kind: MapKind,
    flags: u32,
    name: String,
}

/// A page that get_user_pages() handed out.
struct Handed {
    seq: u64,
    page: u64,
    write: bool,
    long_term: bool,
}

/// What a trace has.
pub(super) struct Seen {
    refs: Vec<Ref>,
    mappings: Vec<Mapping>,
    handed: Vec<Handed>,
    /// Threads that were made, and their address spaces.
    forks: BTreeMap<Tid, u32>,
    /// What was executed in which address space.
    execs: Vec<(u32, String)>,
    status: Value,
    /// Findings of the checks that are no errors.
    notes: Value,
}

impl Seen {
    pub(super) fn read(path: &PathBuf, status: Value, notes: Value) -> Result<Self> {
        let trace = Trace::open(path)?;
        let mut seen = Seen {
            refs: Vec::new(),
            mappings: Vec::new(),
            handed: Vec::new(),
            forks: BTreeMap::new(),
            execs: Vec::new(),
            status,
            notes,
        };
        let mut merge = Merge::new(&trace);
        loop {
            match merge.fill(&mut seen.refs, usize::MAX)? {
                Step::Full | Step::End => break,
                Step::Event(e) => match e.body {
                    Body::Map(m) => seen.mappings.push(Mapping {
                        range: m.start..m.end,
                        kind: m.kind,
                        flags: m.flags,
                        name: String::from_utf8_lossy(m.name).into_owned(),
                    }),
                    Body::Gup {
                        page,
                        write,
                        long_term,
                        ..
                    } => seen.handed.push(Handed {
                        seq: e.seq,
                        page,
                        write,
                        long_term,
                    }),
                    Body::Fork {
                        child_tid,
                        child_mm,
                        ..
                    } => {
                        seen.forks.insert(child_tid, child_mm.0);
                    }
                    Body::Exec { comm, .. } => seen
                        .execs
                        .push((e.mm.0, String::from_utf8_lossy(comm).into_owned())),
                    _ => {}
                },
            }
        }
        // What goes on is no reference.
        seen.refs.retain(|r| !r.flags().continues());
        ensure!(!seen.refs.is_empty(), "the trace is empty");
        Ok(seen)
    }

    /// References to pages from `at` on.
    pub(super) fn of(&self, at: u64, pages: u64) -> Vec<&Ref> {
        let range = at..at + pages * PAGE;
        self.refs
            .iter()
            .filter(|r| range.contains(&r.address()))
            .collect()
    }

    /// How often pages from `at` on were handed out.
    pub(super) fn handed_out(&self, at: u64, pages: u64) -> usize {
        let range = at..at + pages * PAGE;
        let within = |h: &&Handed| range.contains(&h.page);
        self.handed.iter().filter(within).count()
    }

    fn pages(&self, at: u64, pages: u64) -> u64 {
        let set: BTreeSet<_> = self.of(at, pages).iter().map(|r| r.address()).collect();
        set.len() as u64
    }

    fn ended(&self, why: Why) -> usize {
        self.refs.iter().filter(|r| r.flags().why() == why).count()
    }

    fn figure(&self, name: &str) -> Result<u64> {
        self.status[name]
            .as_u64()
            .with_context(|| format!("the status has no {name}: {}", self.status))
    }
}

/// Nothing is unknown: an event has reported each thread that references memory.
fn known(seen: &Seen) -> Result<()> {
    let rules = seen.notes.as_array().context("no rules were checked")?;
    let lifecycle = rules
        .iter()
        .find(|r| r["id"] == "lifecycle")
        .context("no rule about lifecycles")?;
    ensure!(lifecycle["notes"] == 0, "{lifecycle}");
    Ok(())
}

/// Every page of what was huge has records of its own, more than one.
fn thp(seen: &Seen) -> Result<()> {
    for at in [BASE, BASE << 1] {
        let pages = seen.pages(at, 2048);
        ensure!(pages == 2048, "{pages} of 2048 pages at {at:#x}");
    }
    let n = seen.of(BASE, 2048).len();
    ensure!(n >= 2 * 2048, "{n} references to 2048 pages, twice around");
    ensure!(seen.figure("uncovered")? == 0, "{}", seen.status);
    known(seen)
}

/// Pages whose page tables others have taken away have records before and after that.
fn others(seen: &Seen) -> Result<()> {
    let pages = seen.pages(BASE, 4096);
    ensure!(pages == 4096, "{pages} of 4096 pages");
    let n = seen.of(BASE, 4096).len();
    ensure!(
        n >= 2 * 4096,
        "{n} references to 4096 pages, at least twice around"
    );
    ensure!(seen.figure("uncovered")? == 0, "{}", seen.status);
    known(seen)
}

fn mthp(seen: &Seen) -> Result<()> {
    let pages = seen.pages(BASE, 256);
    ensure!(pages == 256, "{pages} of 256 pages");
    known(seen)
}

/// The size of a page of hugetlb, and its small pages.
const HUGE: u64 = 2 << 20;
const SMALL_PAGES: u64 = HUGE / PAGE;

/// Places of the program huge-tlb, by their numbers.
const fn place(n: u64) -> u64 {
    BASE + (n << 36)
}

/// Each huge page has one name, that of its first byte, in all records.
fn huge(seen: &Seen) -> Result<()> {
    let mapped = seen.mappings.iter().filter(|m| m.kind == MapKind::Hugetlb);
    let mut mappings = 0;
    for m in mapped {
        let shift = (m.flags & uapi::VMTRACE_MAP_PAGE) >> uapi::VMTRACE_MAP_PAGE_SHIFT;
        ensure!(1 << shift == HUGE, "{} has pages of 1 << {shift}", m.name);
        mappings += 1;
    }
    ensure!(mappings > 0, "no mapping of hugetlb");
    let all = seen.of(place(0), (place(6) - place(0)) / PAGE);
    let astray = all.iter().filter(|r| r.address() % HUGE != 0).count();
    ensure!(astray == 0, "{astray} references within huge pages");
    let handed = |h: &&Handed| (place(0)..place(6)).contains(&h.page) && h.page % HUGE != 0;
    let astray = seen.handed.iter().filter(handed).count();
    ensure!(astray == 0, "{astray} parts of huge pages were handed out");
    ensure!(seen.figure("uncovered")? == 0, "{}", seen.status);
    known(seen)
}

fn huge_tlb(seen: &Seen) -> Result<()> {
    huge(seen)?;
    for (n, pages) in [
        (0, 8),
        (1, 4),
        (2, 2),
        (3, 4),
        (4, 4),
        (5, 6),
        (7, 3),
        (8, 2),
    ] {
        let is = seen.pages(place(n), 512 * SMALL_PAGES);
        ensure!(is == pages, "{is} of {pages} huge pages at {:#x}", place(n));
    }
    // Ten rounds, and once when all are read. The small pages leave room for none.
    let rounds = seen.of(place(0), 8 * SMALL_PAGES).len();
    let least = match seen.figure("evms_size")? <= 64 {
        true => 8 * 11,
        false => 8,
    };
    ensure!(rounds >= least, "{rounds} references to 8 huge pages");
    let moved = seen.of(place(7), 3 * SMALL_PAGES);
    let moved = moved.iter().filter(|r| r.flags().why() == Why::Migrated);
    ensure!(moved.count() >= 6, "huge pages were hardly migrated");
    let spliced = seen.handed_out(place(1) + 2 * HUGE, 1);
    ensure!(spliced == 1, "vmsplice() was handed {spliced} pages");
    let read = seen.handed_out(place(2), 1);
    ensure!(read == 1, "process_vm_readv() was handed {read} pages");
    Ok(())
}

/// Two processes refer to the same pages in turn.
fn huge_table(seen: &Seen) -> Result<()> {
    huge(seen)?;
    let all = seen.of(place(5), 6 * SMALL_PAGES);
    let mms: BTreeSet<_> = all.iter().map(|r| r.mm).collect();
    ensure!(mms.len() == 2, "{} address spaces", mms.len());
    let pages = seen.pages(place(5), 6 * SMALL_PAGES);
    ensure!(pages == 6, "{pages} of 6 huge pages");
    ensure!(all.len() >= 12, "{} references of two processes", all.len());
    Ok(())
}

fn swap(seen: &Seen) -> Result<()> {
    let pages = seen.pages(BASE, 600);
    ensure!(pages == 600, "{pages} of 600 pages");
    ensure!(seen.ended(Why::Reclaimed) > 0, "no stay ended by reclaim");
    known(seen)
}

fn migrate(seen: &Seen) -> Result<()> {
    ensure!(seen.ended(Why::Migrated) > 0, "no stay ended by migration");
    known(seen)
}

/// Each page that was handed out is recorded, and became accessible by nothing else
/// than the program's own touch after it.
fn passes_by(seen: &Seen) -> Result<()> {
    const PAGES: u64 = 16;
    let area = |n: u64| BASE + n * 64 * PAGE;
    let handed = |n: u64| {
        let range = area(n)..area(n) + PAGES * PAGE;
        seen.handed
            .iter()
            .filter(|h| range.contains(&h.page))
            .collect::<Vec<_>>()
    };
    // Area, times handed out, of these to be written, for a long time.
    for (n, times, writes, long) in [
        (0, 16, 0, 0),
        (1, 16, 16, 0),
        (2, 16 + 16 + 1 + 4 + 2, 16 + 4 + 1, 0),
        (3, 0, 0, 0),
        (4, 16, 0, 0),
        (5, 16, 16, 16),
        (6, 0, 0, 0),
    ] {
        let h = handed(n);
        let found = (
            h.len(),
            h.iter().filter(|h| h.write).count(),
            h.iter().filter(|h| h.long_term).count(),
        );
        ensure!(
            found == (times, writes, long),
            "area {n} was handed out {found:?} times instead of {:?}",
            (times, writes, long)
        );
    }
    for n in [1, 5] {
        let refs = seen.of(area(n), PAGES);
        let last = handed(n).iter().map(|h| h.seq).max().unwrap_or(0);
        ensure!(
            refs.len() == 16
                && refs
                    .iter()
                    .all(|r| r.seq > last && r.flags().access() == Access::Read),
            "area {n}: {} references, or some before it was handed out",
            refs.len()
        );
    }
    let kernel = seen
        .of(area(6), PAGES)
        .iter()
        .filter(|r| r.flags().kernel() && r.flags().access() == Access::Write)
        .filter(|r| seen.forks.contains_key(&r.tid()))
        .count();
    ensure!(kernel == 16, "a worker's thread made {kernel} references");
    known(seen)
}

/// What the kernel started is traced too, from its exec on.
fn births(seen: &Seen) -> Result<()> {
    let mms: Vec<u32> = seen
        .execs
        .iter()
        .filter(|(_, comm)| comm.starts_with("births"))
        .map(|(mm, _)| *mm)
        .collect();
    // The program itself, and the crash's collector.
    ensure!(
        mms.len() == 2,
        "{} times executed: {:?}",
        mms.len(),
        seen.execs
    );
    for mm in mms {
        let n = seen.refs.iter().filter(|r| r.mm.0 == mm).count();
        ensure!(n > 20, "{n} references in address space {mm}");
    }
    // The kernel read the core without the process's page tables.
    let range = BASE..BASE + 80 * PAGE;
    let n = seen
        .handed
        .iter()
        .filter(|h| range.contains(&h.page))
        .count();
    ensure!(n >= 80, "the core holds {n} of 80 pages");
    known(seen)
}

fn devices(seen: &Seen) -> Result<()> {
    for at in [0x1100_0000_0000, 0x1200_0000_0000] {
        let n = seen.of(at, 1).len();
        ensure!(n >= 10, "{n} references to the device at {at:#x}");
        let told = seen
            .mappings
            .iter()
            .any(|m| m.range.start == at && m.flags & uapi::VMTRACE_MAP_PFN != 0);
        ensure!(told, "the mapping at {at:#x} is not said to be a device's");
    }
    for (name, access) in [("[vdso]", Access::Exec), ("[vvar]", Access::Read)] {
        // The activator's child had others before it executed the program.
        let all = seen.mappings.iter().filter(|m| m.name == name);
        let n: usize = all
            .map(|m| {
                seen.of(m.range.start, (m.range.end - m.range.start) / PAGE)
                    .iter()
                    // With CLOCK, some are known from the accessed bit only.
                    .filter(|r| [access, Access::Seen].contains(&r.flags().access()))
                    .count()
            })
            .sum();
        ensure!(n >= 10, "{n} references to {name}");
    }
    ensure!(seen.figure("uncovered")? == 0, "{}", seen.status);
    known(seen)
}

/// Two nodes of memory; a second CPU, if there is one, is on the second.
pub(super) fn nodes(profile: Profile) -> Vec<String> {
    let mut args = Vec::new();
    for node in 0..2 {
        args.push("-object".into());
        args.push(format!("memory-backend-ram,id=mem{node},size=512M"));
        args.push("-numa".into());
        let cpus = match (node, profile) {
            (0, _) => ",cpus=0",
            (_, Profile::Smp) => ",cpus=1",
            _ => "",
        };
        args.push(format!("node,nodeid={node},memdev=mem{node}{cpus}"));
    }
    if profile == Profile::Smp {
        // No two nodes share a package.
        args.extend(["-smp", "2,sockets=2,cores=1,threads=1"].map(String::from));
    }
    args
}

fn file(c: &Corner) -> String {
    let name: Vec<_> = c
        .argv
        .iter()
        .map(|a| a.trim_start_matches('/').replace('/', "-"))
        .collect();
    format!("/tmp/{}.vmt", name.join("-"))
}

fn name(c: &Corner, what: &str) -> String {
    format!("{}: {what}", c.argv.join(" "))
}

/// What the guest does for a program.
fn steps(c: &Corner, slot: usize, n: &str, options: &str) -> Vec<Job> {
    let program = format!("/bin/{}", c.argv[0]);
    let plain: Vec<&str> = std::iter::once(program.as_str())
        .chain(c.argv[1..].iter().copied())
        .collect();
    let output = file(c);
    let options: Vec<_> = options.split_ascii_whitespace().collect();
    let with = |words: &[&str], tail: &[&str]| {
        let mut all = words.to_vec();
        all.extend(["-n", n, "-o", &output]);
        all.extend(&options);
        all.extend(tail);
        all.iter().map(|s| (*s).to_string()).collect::<Vec<_>>()
    };
    let job = |what: &str, argv: Vec<String>| Job {
        argv,
        ..step(&name(c, what), &[])
    };
    // A program that has itself traced is asked to leave the trace.
    let untraced = match (c.how, c.argv[0]) {
        (How::Itself, "attach-loop") => vec![program.as_str(), "0"],
        _ => plain.clone(),
    };
    let mut list = vec![step(&name(c, "plain"), &untraced)];
    match c.how {
        How::Run => {
            let mut tail = vec!["--"];
            tail.extend(&plain);
            list.push(job("traced", with(&["/bin/activator", "run"], &tail)));
        }
        How::All => {
            list.push(job("on", with(&["/bin/activator", "on", "--all"], &[])));
            list.push(step(&name(c, "traced"), &plain));
            list.push(step(&name(c, "off"), &["/bin/activator", "off"]));
        }
        How::Itself => {
            let mut argv = plain.clone();
            if c.argv[0] != "attach-loop" {
                argv.push("1");
            }
            argv.push(&output);
            list.push(step(&name(c, "traced"), &argv));
        }
    }
    list.push(step(
        &name(c, "status"),
        &["/bin/activator", "status", "--json"],
    ));
    list.push(step(&name(c, "after"), &untraced));
    list.push(step(
        &name(c, "keep"),
        &["/bin/keep", &slot.to_string(), &output],
    ));
    list
}

pub(super) fn figure(status: &Value, name: &str) -> u64 {
    status[name].as_u64().unwrap_or(u64::MAX)
}

/// Nothing went wrong that the kernel counts.
pub(super) fn healthy(status: &Value) -> Result<()> {
    for name in ["funny", "stuck", "lost_full", "lost_atomic", "lost_io"] {
        ensure!(figure(status, name) == 0, "{name}: {status}");
    }
    ensure!(
        figure(status, "members_max") <= figure(status, "evms_peak"),
        "more members than N: {status}"
    );
    Ok(())
}

fn judge(c: &Corner, slot: usize, out: &Outcome) -> Result<()> {
    let plain = out.step(&name(c, "plain"))?;
    ensure!(
        plain.rc == 0 && !plain.stdout.is_empty(),
        "untraced it fails: {plain:?}"
    );
    for what in ["traced", "after"] {
        let r = out.step(&name(c, what))?;
        ensure!(r.rc == 0, "{what}: {r:?}");
        ensure!(
            r.stdout == plain.stdout,
            "{what}: another output:\n{}\ninstead of\n{}",
            r.stdout,
            plain.stdout
        );
    }
    let status: Value = serde_json::from_str(&out.step(&name(c, "status"))?.stdout)?;
    healthy(&status)?;
    let kept = out.step(&name(c, "keep"))?;
    ensure!(kept.rc == 0, "the trace is not kept: {kept:?}");
    let path = out.kept(slot, file(c).trim_start_matches("/tmp/"))?;
    let (rc, report) = postproc::json(&["check", "--frames"], &path)?;
    ensure!(
        rc == 0,
        "postproc check finds:\n{}",
        postproc::explain(&path)
    );
    let seen = Seen::read(&path, status, report["rules"].clone())?;
    (c.shows)(&seen)?;
    say!(
        "  {:<24} {:>8} references, {:>6} pages handed out, {:.1} s untraced, {:.1} s traced",
        c.argv.join(" "),
        seen.refs.len(),
        seen.handed.len(),
        plain.ns as f64 / 1e9,
        out.step(&name(c, "traced"))?.ns as f64 / 1e9
    );
    Ok(())
}

fn run(n: &str, options: &str, profile: Profile, kernel: &str) -> Result<()> {
    let wanted = std::env::var("KVMTRACE_CORNERS").unwrap_or_default();
    let list: Vec<&Corner> = CORNERS
        .iter()
        .filter(|c| wanted.is_empty() || wanted.split(',').any(|w| c.argv.join(" ").contains(w)))
        .collect();
    let out = Machine {
        name: format!(
            "corners-{n}{}-{}-{kernel}",
            options.replace(' ', ""),
            profile.name()
        ),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps: list
            .iter()
            .enumerate()
            .flat_map(|(slot, c)| steps(c, slot, n, options))
            .collect(),
        deadline_s: 1800,
    }
    .run_with(&nodes(profile))?;
    let mut failed = Vec::new();
    for (slot, c) in list.iter().enumerate() {
        if let Err(e) = judge(c, slot, &out) {
            failed.push(format!("{}: {e:#}", c.argv.join(" ")));
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(())
}

fn run_stress(admissions: u64, kernel: &str) -> Result<()> {
    let want = admissions.to_string();
    let mut traced = step(
        "traced",
        &[
            "/bin/activator",
            "run",
            "-n",
            "256",
            "--max",
            "4096",
            "-o",
            "/dev/trace",
            "--",
            "/bin/mixed-stress",
            &want,
        ],
    );
    // Some hundred admissions a second at least, with all checks on.
    traced.timeout_s = 300 + admissions / 200;
    let deadline_s = traced.timeout_s + 300;
    let out = Machine {
        name: format!("stress-{want}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps: vec![
            traced,
            step("status", &["/bin/activator", "status", "--json"]),
        ],
        deadline_s,
    }
    .run()?;
    let r = out.step("traced")?;
    ensure!(
        r.rc == 0 && r.stdout == "all values right\n",
        "it fails: {r:?}"
    );
    let status: Value = serde_json::from_str(&out.step("status")?.stdout)?;
    healthy(&status)?;
    let n = figure(&status, "admissions");
    ensure!(n >= admissions, "only {n} admissions");
    say!(
        "  {n} admissions, {} aborted, at most {} members of {}, {} address spaces, 0 funny, 0 lost; {:.0} s",
        figure(&status, "aborted"),
        figure(&status, "members_max"),
        figure(&status, "evms_peak"),
        figure(&status, "mms"),
        r.ns as f64 / 1e9
    );
    let (rc, _) = postproc::json(&["check", "--frames"], &out.trace())?;
    ensure!(
        rc == 0,
        "postproc check finds:\n{}",
        postproc::explain(&out.trace())
    );
    Ok(())
}
