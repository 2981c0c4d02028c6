//! Traces against the oracle's: every record, in order.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, debian, step};
use crate::runner::say;
use crate::{oracle, paths};
use ::oracle::compare::Pages;
use ::oracle::log::Counts;
use ::oracle::model::{Sets, Shape};
use anyhow::{Context, Result, anyhow, bail, ensure};
use kvmtrace_guest::{Step, StepResult};
use rust_mm_trace::uapi;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

const PROGRAMS: &[&[&str]] = &[
    &["touch-loop", "100", "10"],
    &["touch-loop", "600", "3", "r"],
    &["cross-page"],
    &["edge-turn"],
    &["hot-cold", "200", "2", "40", "100"],
    &["kernel-copies", "pipe"],
    &["kernel-copies", "file"],
    &["kernel-copies", "vectors"],
    &["kernel-copies", "segments"],
    &["kernel-copies", "results"],
    &["kernel-copies", "large"],
    &["other-ways"],
    &["signals"],
    &["fork-cow"],
    &["exec-args"],
    &["munmap-remap"],
    &["mremap-move"],
    &["mprotect-storm"],
    &["brk-stack"],
    &["file-map"],
    &["swap-reuse"],
    &["fork-storm"],
    &["threads"],
    &["random-walk", "1", "600"],
    &["random-walk", "2", "600"],
    &["random-walk", "3", "600"],
    &["resize-storm", "2", "64", "600", "48", "300"],
];

/// Programs of the Debian root. Their output shows that they have worked.
const REAL: [(&str, &str); 3] = [
    (
        "sqlite3",
        "sqlite3 :memory: \"CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, name TEXT); \
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) \
         INSERT INTO t SELECT i, (i * 7919) % 20003, printf('row %d', i) FROM n; \
         CREATE INDEX tk ON t(k); SELECT count(*), sum(k), max(name) FROM t; \
         PRAGMA integrity_check;\"",
    ),
    (
        "gcc",
        "cd /tmp && echo 'int f(int n) { int s = 0; while (n) s += n-- * n; return s; }' > f.c && \
         gcc -O2 -c f.c && cksum f.o",
    ),
    (
        "python3",
        "PYTHONHASHSEED=0 python3 -S -c \"import json, re; \
         d = {str(i): [i * 7919 % 20003, 'x' * (i % 50)] for i in range(1500)}; \
         s = json.dumps(d); e = json.loads(s); \
         print(len(s), sum(v[0] for v in e.values()), len(re.findall('x{7}', s)))\"",
    ),
];

/// The one that changes the set's size.
const RESIZES: &str = "resize-storm";

/// The least that one CPU takes, a small set, a middling one.
const SIZES: [usize; 3] = [16, 64, 512];

/// How a set is managed, and what its records contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Fifo,
    /// A FIFO that records references in its second segment.
    Again,
    Clock,
}

/// A set, as the activator and the model are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Set {
    n: usize,
    first: usize,
    kind: Kind,
    /// Pages that one admission evicts at most.
    batch: usize,
    /// What has such a set of its own.
    sets: Sets,
}

impl std::str::FromStr for Set {
    type Err = String;

    /// As in names of scenarios: 64, 64-again, 64-clock, 64-clock-32, 64-batch8, 64-again-batch8,
    /// and each of these with -sets or -groups at the end.
    fn from_str(s: &str) -> Result<Self, String> {
        let pages = |s: &str| s.parse::<usize>().map_err(|e| format!("{s}: {e}"));
        let mut parts: Vec<_> = s.split('-').collect();
        let sets = match parts.last() {
            Some(&"sets") => Sets::Process,
            Some(&"groups") => Sets::Cgroup,
            _ => Sets::One,
        };
        if sets != Sets::One {
            parts.pop();
        }
        let batch = parts.last().and_then(|last| last.strip_prefix("batch"));
        let batch = batch.map(pages).transpose()?;
        if batch.is_some() {
            parts.pop();
        }
        let (n, kind, first) = match parts[..] {
            [n] => (n, Kind::Fifo, None),
            [n, "again"] => (n, Kind::Again, None),
            [n, "clock"] => (n, Kind::Clock, None),
            [n, "again", first] => (n, Kind::Again, Some(first)),
            [n, "clock", first] => (n, Kind::Clock, Some(first)),
            _ => return Err(format!("no kind of set: {s}")),
        };
        let first = first.map_or(Ok(Shape::FIRST), pages)?;
        let set = Set {
            first,
            sets,
            ..Set::batched(pages(n)?, kind, batch.unwrap_or(1))
        };
        if set.n < first || first < Shape::FIRST {
            return Err(format!("at least {} pages", first.max(Shape::FIRST)));
        }
        let most = match kind {
            Kind::Clock => 1,
            Kind::Fifo | Kind::Again => uapi::VMTRACE_BATCH_MAX as usize,
        };
        if set.batch == 0 || set.batch != set.shape().batch_of(set.n, 1).min(most) {
            return Err(format!("no batch of such a set: {}", set.batch));
        }
        Ok(set)
    }
}

impl Set {
    const fn new(n: usize, kind: Kind) -> Self {
        Set::batched(n, kind, 1)
    }

    const fn batched(n: usize, kind: Kind, batch: usize) -> Self {
        Set {
            n,
            first: Shape::FIRST,
            kind,
            batch,
            sets: Sets::One,
        }
    }

    /// One for each process or control group.
    const fn for_each(self, sets: Sets) -> Self {
        Set { sets, ..self }
    }

    fn fifo(n: usize) -> Self {
        Set::new(n, Kind::Fifo)
    }

    /// Its part of names.
    pub fn name(self) -> String {
        let kind = match self.kind {
            Kind::Fifo => "",
            Kind::Again => "-again",
            Kind::Clock => "-clock",
        };
        let first = match self.first {
            Shape::FIRST => String::new(),
            first => format!("-{first}"),
        };
        let batch = match self.batch {
            1 => String::new(),
            batch => format!("-batch{batch}"),
        };
        let sets = match self.sets {
            Sets::One => "",
            Sets::Process => "-sets",
            Sets::Cgroup => "-groups",
        };
        format!("{}{kind}{first}{batch}{sets}", self.n)
    }

    /// The activator's options, to trace to a disk of this name.
    pub fn options(self, disk: &str) -> Vec<String> {
        let more = match self.kind {
            Kind::Fifo => "",
            Kind::Again => " --again",
            Kind::Clock => " --policy clock",
        };
        let sets = match self.sets {
            Sets::One => "",
            Sets::Process => " --set-per process",
            Sets::Cgroup => " --set-per cgroup",
        };
        format!(
            "-n {} --first {} --batch {} -o /dev/{disk}{more}{sets}",
            self.n, self.first, self.batch
        )
        .split(' ')
        .map(Into::into)
        .collect()
    }

    pub fn shape(self) -> Shape {
        Shape {
            again: self.kind != Kind::Fifo,
            clock: self.kind == Kind::Clock,
            first: self.first,
            batch: self.batch,
            size: self.n,
            sets: self.sets,
        }
    }

    /// Whether there is a second segment whose references are told. With several CPUs there is
    /// one: not all of them have a first segment all the time.
    fn sweeps(self, cpus: u32) -> bool {
        self.shape().sweeps() && (cpus > 1 || self.n > self.first)
    }
}

/// Sets with references told. A CLOCK of 16 pages has no second segment.
const TOLD: [Set; 5] = [
    Set::new(64, Kind::Again),
    Set::new(16, Kind::Clock),
    Set::new(64, Kind::Clock),
    Set::new(512, Kind::Clock),
    Set {
        n: 64,
        first: 48,
        kind: Kind::Clock,
        batch: 1,
        sets: Sets::One,
    },
];

/// Sets that evict in batches: small ones, and the largest batch of some sizes. The first size to
/// which `resize-storm` makes a set smaller has no room for a batch of 49.
const BATCHED: [Set; 5] = [
    Set::batched(64, Kind::Fifo, 8),
    Set::batched(32, Kind::Fifo, 17),
    Set::batched(64, Kind::Fifo, 49),
    Set::batched(512, Kind::Fifo, 64),
    Set::batched(64, Kind::Again, 8),
];

/// Sets for each process or control group. There is one such group only, whose set is not set 0.
const SEVERAL: [Set; 5] = [
    Set::new(64, Kind::Fifo).for_each(Sets::Process),
    Set::new(64, Kind::Again).for_each(Sets::Process),
    Set::new(64, Kind::Clock).for_each(Sets::Process),
    Set::batched(64, Kind::Fifo, 8).for_each(Sets::Process),
    Set::new(64, Kind::Fifo).for_each(Sets::Cgroup),
];

/// What is run each time of these: programs of several processes above all.
const SEVERAL_ALWAYS: [(&[&str], Set); 12] = [
    (&["touch-loop", "100", "10"], SEVERAL[0]),
    (&["fork-cow"], SEVERAL[0]),
    (&["fork-storm"], SEVERAL[0]),
    (&["exec-args"], SEVERAL[0]),
    (&["swap-reuse"], SEVERAL[0]),
    (&["random-walk", "1", "600"], SEVERAL[0]),
    (&["resize-storm", "2", "64", "600", "48", "300"], SEVERAL[0]),
    (&["edge-turn"], SEVERAL[1]),
    (&["fork-storm"], SEVERAL[1]),
    (&["fork-storm"], SEVERAL[2]),
    (&["fork-storm"], SEVERAL[3]),
    (&["fork-storm"], SEVERAL[4]),
];

/// What is run each time of these.
const BATCHED_ALWAYS: [(&[&str], Set); 13] = [
    (&["touch-loop", "100", "10"], BATCHED[0]),
    (&["hot-cold", "200", "2", "40", "100"], BATCHED[0]),
    (&["fork-storm"], BATCHED[0]),
    (&["swap-reuse"], BATCHED[0]),
    (&["mremap-move"], BATCHED[0]),
    (&["threads"], BATCHED[0]),
    (&["random-walk", "1", "600"], BATCHED[0]),
    (&["cross-page"], BATCHED[1]),
    (&["signals"], BATCHED[1]),
    (&["resize-storm", "2", "64", "600", "48", "300"], BATCHED[2]),
    (&["random-walk", "2", "600"], BATCHED[2]),
    (&["edge-turn"], BATCHED[4]),
    (&["swap-reuse"], BATCHED[4]),
];

/// What is run each time of these.
const TOLD_ALWAYS: [(&[&str], Set); 7] = [
    (&["edge-turn"], Set::new(64, Kind::Again)),
    (&["swap-reuse"], Set::new(64, Kind::Again)),
    (&["touch-loop", "100", "10"], Set::new(16, Kind::Clock)),
    (&["edge-turn"], Set::new(64, Kind::Clock)),
    // More pages are referenced than one newcomer can spare.
    (
        &["hot-cold", "200", "2", "40", "100"],
        Set::new(64, Kind::Clock),
    ),
    (&["fork-storm"], Set::new(64, Kind::Clock)),
    (&["swap-reuse"], Set::new(512, Kind::Clock)),
];

/// Programs that are run each time at every size: between them, most of what
/// can go wrong. All others are run each time at one size.
const ALWAYS: [&str; 4] = ["cross-page", "signals", "fork-storm", "swap-reuse"];

/// Protections that are taken away (vmtrace_break=), who needs them, and what must
/// be found wrong, apart from the first record that differs.
const CONTROLS: [(&str, &[&str], Set, &str); 7] = [
    (
        "noflush",
        &["touch-loop", "100", "10"],
        Set::new(64, Kind::Fifo),
        ESCAPED,
    ),
    (
        "noflush",
        &["touch-loop", "100", "10"],
        Set::new(64, Kind::Again),
        ESCAPED,
    ),
    ("noflush", &["touch-loop", "100", "10"], SEVERAL[0], ESCAPED),
    // The flush of a batch.
    ("noflush", &["touch-loop", "100", "10"], BATCHED[0], ESCAPED),
    // Nothing is evicted: only the flush after a sweep is missed.
    (
        "noflush",
        &["touch-loop", "100", "10"],
        Set::new(512, Kind::Again),
        MISSED,
    ),
    (
        "noaccess",
        &["swap-reuse"],
        Set::new(64, Kind::Fifo),
        ESCAPED,
    ),
    (
        "pmdmove",
        &["mremap-move"],
        Set::new(64, Kind::Fifo),
        ESCAPED,
    ),
];

const ESCAPED: &str = "the page is no member";
const MISSED: &str =
    "escaped 0, foreign_closings 0, unfounded 0, misplaced 0, mistold 0, confused 0";

/// Programs whose traces are replayed: two CPUs and four, threads, tasks that race.
const REPLAYED: &[&[&str]] = &[
    &["threads"],
    &["fork-storm"],
    &["swap-reuse"],
    &["random-walk", "1", "300", "4"],
    &["random-walk", "2", "300", "4"],
    &["random-walk", "3", "300", "4"],
    &["resize-storm", "2", "64", "600", "48", "300"],
];

/// A real program to be replayed.
struct Replayed {
    name: &'static str,
    /// A command, with AMOUNT where its load is told.
    work: &'static str,
    /// The amount with the least set, with less than 512 pages, and with more. A small
    /// set makes each access to memory slow: a trace of the full load takes an hour.
    amounts: [u32; 3],
}

impl Replayed {
    fn work(&self, set: Set) -> String {
        let [least, some, all] = self.amounts;
        let amount = match set.n {
            512.. => all,
            64.. => some,
            _ => least,
        };
        self.work.replace("AMOUNT", &amount.to_string())
    }
}

/// Real programs that run at once, or with threads.
const REPLAYED_REAL: [Replayed; 2] = [
    Replayed {
        name: "sqlite3-gcc",
        work: "cd /tmp && echo 'int f(int n) { int s = 0; while (n) s += n-- * n; return s; }' > f.c && \
     if [ AMOUNT -lt 1000 ]; then stage=-E; else stage=-c; fi && \
     { gcc -pipe -O2 $stage f.c -o f.o & } && \
     sqlite3 :memory: \"CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, name TEXT); \
     WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < AMOUNT) \
     INSERT INTO t SELECT i, (i * 7919) % 20003, printf('row %d', i) FROM n; \
     CREATE INDEX tk ON t(k); SELECT count(*), sum(k), max(name) FROM t; \
     PRAGMA integrity_check;\" && wait && cksum f.o",
        amounts: [100, 3000, 3000],
    },
    Replayed {
        name: "redis",
        work: "cd /tmp && { redis-server --port 0 --unixsocket /tmp/redis.sock --save '' \
     --io-threads 2 --appendonly yes --appendfsync everysec > redis.log & } && \
     server=$! && until [ -S /tmp/redis.sock ]; do sleep 5; done && \
     redis-benchmark -s /tmp/redis.sock -q -c 8 -n AMOUNT -d 200 \
     -t set,get,incr,lpush,rpop,sadd,hset,zadd,mset > bench.log && \
     redis-cli -s /tmp/redis.sock keys '*' | sort && \
     kill $server && wait; rm -rf appendonlydir",
        amounts: [3, 20, 300],
    },
];

/// The least that several CPUs take, a small set, a middling one.
const REPLAYED_SETS: [Set; 13] = [
    Set::new(32, Kind::Fifo),
    Set::new(64, Kind::Fifo),
    Set::new(512, Kind::Fifo),
    Set::new(64, Kind::Again),
    Set::new(64, Kind::Clock),
    Set::new(512, Kind::Clock),
    Set::batched(64, Kind::Fifo, 8),
    Set::batched(64, Kind::Again, 33),
    Set::batched(512, Kind::Fifo, 64),
    Set::new(32, Kind::Fifo).for_each(Sets::Process),
    SEVERAL[0],
    SEVERAL[2],
    SEVERAL[4],
];

/// What is replayed each time.
const REPLAYED_ALWAYS: [(usize, Set, Profile); 12] = [
    (0, Set::new(64, Kind::Fifo), Profile::Turns),
    (3, Set::new(64, Kind::Clock), Profile::Turns),
    (6, Set::new(512, Kind::Fifo), Profile::Turns),
    (4, Set::new(64, Kind::Again), Profile::Turns4),
    (0, Set::batched(64, Kind::Fifo, 8), Profile::Turns),
    (6, Set::batched(64, Kind::Again, 33), Profile::Turns),
    (1, Set::batched(64, Kind::Fifo, 8), Profile::Turns4),
    // Threads of one process, and processes at once.
    (0, SEVERAL[0], Profile::Turns),
    (1, SEVERAL[0], Profile::Turns),
    (1, SEVERAL[2], Profile::Turns4),
    (6, SEVERAL[0], Profile::Turns),
    (1, SEVERAL[4], Profile::Turns),
];

/// As [`CONTROLS`], of a replay.
const REPLAYED_CONTROLS: [(&str, &[&str], Set, &str); 3] = [
    ("noflush", &["threads"], Set::new(64, Kind::Fifo), ESCAPED),
    ("noflush", &["threads"], SEVERAL[0], ESCAPED),
    (
        "noaccess",
        &["swap-reuse"],
        Set::new(64, Kind::Fifo),
        ESCAPED,
    ),
];

/// What is run each time.
pub fn scenarios() -> Vec<Scenario> {
    let mut by_set: Vec<(Set, Vec<&'static [&'static str]>)> = Vec::new();
    let fifos = SIZES.into_iter().flat_map(|n| {
        let programs = PROGRAMS.iter().copied();
        let chosen = programs.filter(move |argv| n == 64 || ALWAYS.contains(&argv[0]));
        chosen.map(move |argv| (argv, Set::fifo(n)))
    });
    let more = TOLD_ALWAYS.into_iter().chain(BATCHED_ALWAYS);
    for (argv, set) in fifos.chain(more).chain(SEVERAL_ALWAYS) {
        match by_set.iter_mut().find(|(known, _)| *known == set) {
            Some((_, programs)) => programs.push(argv),
            None => by_set.push((set, vec![argv])),
        }
    }
    let mut list = Vec::new();
    for (set, programs) in by_set {
        for (part, some) in programs.chunks(PART).enumerate() {
            list.push(together(some.to_vec(), set, part));
        }
    }
    list.extend(
        [real("sqlite3", Set::fifo(512)), real("gcc", Set::fifo(64))]
            .into_iter()
            .flatten(),
    );
    list.push(whole_system(Set::fifo(64)));
    list.push(whole_system(SEVERAL[0]));
    list.extend(REPLAYED_ALWAYS.map(|(n, set, cpus)| replay(REPLAYED[n], set, cpus)));
    list.extend(controls());
    list
}

/// The sets of one CPU.
fn sets() -> impl Iterator<Item = Set> {
    let one = SIZES.map(Set::fifo).into_iter().chain(TOLD).chain(BATCHED);
    one.chain(SEVERAL)
}

/// All of it, a boot for each.
pub fn full() -> Vec<Scenario> {
    let programs = |set| PROGRAMS.iter().map(move |argv| program(argv, set));
    let mut list: Vec<_> = sets().flat_map(programs).collect();
    list.extend(beside_table());
    list
}

/// What is not in the table.
pub fn beside_table() -> Vec<Scenario> {
    let mut list = Vec::new();
    for set in sets() {
        list.extend(REAL.iter().filter_map(|(name, _)| real(name, set)));
        list.push(whole_system(set));
    }
    for set in REPLAYED_SETS {
        for cpus in [Profile::Turns, Profile::Turns4] {
            list.extend(REPLAYED.iter().map(|argv| replay(argv, set, cpus)));
        }
        list.extend(REPLAYED_REAL.iter().map(|real| replay_real(real, set)));
    }
    list.extend(controls());
    list
}

/// What the oracle finds when a protection is taken away.
fn controls() -> Vec<Scenario> {
    let exact = CONTROLS.into_iter().map(|c| control(c, Profile::Exact));
    let turns = REPLAYED_CONTROLS
        .into_iter()
        .map(|c| control(c, Profile::Turns));
    exact.chain(turns).collect()
}

/// What became of one program with one set.
pub struct Row {
    /// The program and its arguments.
    pub program: String,
    /// The set's name.
    pub set: String,
    /// Records that were compared, or the first difference.
    pub found: Result<u64>,
    /// Records that report that the page was referenced again.
    again: usize,
    /// The pages of both sides' records, if there are both.
    pub pages: Pages,
}

impl Row {
    /// Prints what is wrong, of which the row has only the first line.
    fn new(program: String, set: Set, found: Result<oracle::Agreed>, pages: Pages) -> Self {
        let again = found.as_ref().map_or(0, |agreed| agreed.again);
        let found = found.map(|agreed| agreed.records).map_err(|e| {
            let text = format!("{e:#}");
            say!("{program}, set {}: {text}", set.name());
            anyhow!(text.lines().next().unwrap_or_default().to_owned())
        });
        Row {
            program,
            set: set.name(),
            found,
            again,
            pages,
        }
    }
}

/// All programs of the initramfs that are not replayed with all sets, in a boot for
/// each set.
pub fn table(words: &[String], kernel: &str, jobs: NonZero<usize>) -> Vec<Row> {
    let wanted: Vec<_> = PROGRAMS
        .iter()
        .copied()
        .filter(|argv| words.is_empty() || words.iter().any(|w| argv.join("-").contains(w)))
        .collect();
    let parts: Vec<_> = sets()
        .flat_map(|set| {
            let parts = wanted.chunks(PART).enumerate();
            parts.map(move |(part, some)| (set, part, some))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let found: Mutex<BTreeMap<usize, Vec<Row>>> = Mutex::default();
    let work = || loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some((set, part, some)) = parts.get(at) else {
            return;
        };
        let begin = Instant::now();
        let rows = table_part(some, *set, *part, kernel);
        eprintln!(
            "  {}-{part}: {} of {} programs agree, {:.0} s",
            set.name(),
            rows.iter().filter(|r| r.found.is_ok()).count(),
            rows.len(),
            begin.elapsed().as_secs_f64()
        );
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        found.insert(at, rows);
    };
    thread::scope(|scope| {
        for _ in 0..jobs.get() {
            scope.spawn(work);
        }
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.into_values().flatten().collect()
}

/// Programs in one boot: as many as a machine has slots for.
const PART: usize = 16;

/// Some programs in one boot, each with a trace of its own.
fn together(programs: Vec<&'static [&'static str]>, set: Set, part: usize) -> Scenario {
    Scenario {
        name: format!("oracle-programs-{}-{part}", set.name()),
        about: "the traces of small programs agree with the oracle's, record by record",
        run: Box::new(move |kernel| {
            let rows = table_part(&programs, set, part, kernel);
            let (agreed, wrong): (Vec<_>, Vec<_>) = rows.iter().partition(|r| r.found.is_ok());
            let wrong: Vec<_> = wrong.iter().map(|r| r.program.as_str()).collect();
            ensure!(wrong.is_empty(), "not equal: {}", wrong.join(", "));
            let again: usize = agreed.iter().map(|r| r.again).sum();
            ensure!(
                (again > 0) == set.sweeps(1),
                "{again} records report that the page was referenced again"
            );
            let records: u64 = rows.iter().filter_map(|r| r.found.as_ref().ok()).sum();
            say!(
                "  {} programs, {records} records, {again} report that the page was referenced again",
                rows.len()
            );
            Ok(())
        }),
    }
}

fn table_part(programs: &[&[&str]], set: Set, part: usize, kernel: &str) -> Vec<Row> {
    let steps = programs.iter().enumerate();
    let steps = steps.map(|(i, argv)| traced(argv, set, &format!("trace{}", i + 1)));
    let machine = Machine {
        steps: steps.collect(),
        deadline_s: 1800,
        ..machine(
            format!("oracle-table-{part}-{}-{kernel}", set.name()),
            kernel,
            "",
            &["init"],
            set,
        )
    };
    let dir = paths::build()
        .join("runs")
        .join(format!("{}-disks", machine.name));
    let out =
        disks(&dir, programs.len()).and_then(|more| oracle::run_with(&machine, set.shape(), &more));
    let rows = programs.iter().enumerate().map(|(i, argv)| {
        let disk = format!("trace{}", i + 1);
        let trace = dir.join(format!("{disk}.img"));
        let (found, pages) = match &out {
            Ok(out) => {
                let log = oracle::log_of(out, i + 1);
                let worked = out.step(&disk).and_then(|r| worked(argv, r));
                let found = worked.and_then(|()| oracle::compare(&trace, &log));
                (found, oracle::pages(&trace, &log).unwrap_or_default())
            }
            Err(e) => (Err(anyhow!("{e:#}")), Pages::default()),
        };
        Row::new(format!("oracle {}", argv.join(" ")), set, found, pages)
    });
    let rows = rows.collect();
    let _ = std::fs::remove_dir_all(&dir);
    rows
}

/// Arguments for as many disks for traces, which lie in `dir`.
fn disks(dir: &std::path::Path, number: usize) -> Result<Vec<String>> {
    let _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir_all(dir)?;
    let mut args = Vec::new();
    for i in 1..=number {
        let name = format!("trace{i}");
        let file = dir.join(format!("{name}.img"));
        std::fs::File::create(&file)?.set_len(1 << 30)?;
        args.extend([
            "-drive".into(),
            format!(
                "if=none,id={name},format=raw,cache=unsafe,file={}",
                file.display()
            ),
            "-device".into(),
            format!("virtio-blk-pci,drive={name},serial={name}"),
        ]);
    }
    Ok(args)
}

/// Rows of programs that had a boot for themselves.
static ROWS: Mutex<Vec<Row>> = Mutex::new(Vec::new());

/// Prints these rows and those of all programs that have run otherwise, and on how many pages both sides have records.
///
/// # Errors
///
/// If any row is no agreement, or if there is none.
pub fn print(mut rows: Vec<Row>) -> Result<()> {
    if let Ok(mut more) = ROWS.lock() {
        rows.append(&mut more);
    }
    println!("{:<40} {:<12} {:>10}", "program", "set", "records");
    let mut wrong = 0;
    for row in &rows {
        match &row.found {
            Ok(records) => println!("{:<40} {:<12} {records:>10} equal", row.program, row.set),
            Err(e) => {
                wrong += 1;
                println!("{:<40} {:<12} {e:#}", row.program, row.set);
            }
        }
    }
    let records: u64 = rows.iter().filter_map(|r| r.found.as_ref().ok()).sum();
    println!(
        "{} of {} traces are the oracle's, {records} records",
        rows.len() - wrong,
        rows.len()
    );
    let both: u64 = rows.iter().map(|r| r.pages.both).sum();
    let either: u64 = rows.iter().map(|r| r.pages.either).sum();
    println!(
        "page set equal: {:.2} % ({both} of {either} pages)",
        100.0 * both as f64 / either.max(1) as f64
    );
    if rows.is_empty() || wrong > 0 {
        bail!("not all traces are the oracle's");
    }
    Ok(())
}

/// Random walks, a seed each, with one set or FIFOs of all sizes in turn.
pub fn walks(seeds: std::ops::Range<u32>, set: Option<Set>) -> Vec<Scenario> {
    seeds
        .map(|seed| {
            let set = set.unwrap_or(Set::fifo(SIZES[seed as usize % SIZES.len()]));
            let argv = vec!["random-walk".into(), seed.to_string(), "3000".into()];
            small(argv, set)
        })
        .collect()
}

fn program(argv: &[&'static str], set: Set) -> Scenario {
    small(argv.iter().map(|a| (*a).into()).collect(), set)
}

fn small(argv: Vec<String>, set: Set) -> Scenario {
    Scenario {
        name: format!("oracle-{}-{}", argv.join("-"), set.name()),
        about: "the trace agrees with the oracle's, record by record",
        run: Box::new(move |kernel| {
            let argv: Vec<_> = argv.iter().map(String::as_str).collect();
            run_small(&argv, set, Profile::Exact, kernel)
        }),
    }
}

fn replay(argv: &'static [&'static str], set: Set, cpus: Profile) -> Scenario {
    Scenario {
        name: format!("{}-{}-{}", prefix(cpus), argv.join("-"), set.name()),
        about: "every access on several CPUs is to a member, and the trace agrees with the replay",
        run: Box::new(move |kernel| run_small(argv, set, cpus, kernel)),
    }
}

fn replay_real(real: &'static Replayed, set: Set) -> Scenario {
    let (name, work) = (real.name, real.work(set));
    Scenario {
        name: format!("replay-{name}-{}", set.name()),
        about: "real programs at once on two CPUs, whose trace agrees with the replay",
        run: Box::new(move |kernel| run_real(name, &work, set, Profile::Turns, kernel)),
    }
}

fn real(name: &'static str, set: Set) -> Option<Scenario> {
    let (_, work) = REAL.into_iter().find(|(known, _)| *known == name)?;
    Some(Scenario {
        name: format!("oracle-{name}-{}", set.name()),
        about: "the trace of a real program agrees with the oracle's, record by record",
        run: Box::new(move |kernel| run_real(name, work, set, Profile::Exact, kernel)),
    })
}

fn whole_system(set: Set) -> Scenario {
    Scenario {
        name: format!("oracle-system-{}", set.name()),
        about: "processes that live when a trace begins or ends are traced correctly",
        run: Box::new(move |kernel| run_system(set, kernel)),
    }
}

fn control(
    (what, argv, set, sign): (&'static str, &'static [&'static str], Set, &'static str),
    profile: Profile,
) -> Scenario {
    let how = prefix(profile);
    Scenario {
        name: match (set.kind, set.batch, set.sets) {
            (Kind::Fifo, 1, Sets::One) => format!("{how}-{what}"),
            _ => format!("{how}-{what}-{}", set.name()),
        },
        about: "if a protection is removed, the oracle finds the first wrong record",
        run: Box::new(move |kernel| run_control(what, argv, set, sign, profile, kernel)),
    }
}

/// How names begin.
fn prefix(profile: Profile) -> &'static str {
    match profile {
        Profile::Turns | Profile::Alone => "replay",
        Profile::Turns4 => "replay4",
        Profile::Exact | Profile::Fast | Profile::Smp => "oracle",
    }
}

fn machine(name: String, kernel: &str, cmdline: &str, argv: &[&str], set: Set) -> Machine {
    Machine {
        name,
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: false,
        cmdline: cmdline.into(),
        files: vec![],
        steps: vec![traced(argv, set, "trace")],
        deadline_s: 1800,
    }
}

/// A program, traced to a disk of this name.
fn traced(argv: &[&str], set: Set, disk: &str) -> Step {
    let program = format!("/bin/{}", argv[0]);
    let options = set.options(disk);
    let mut traced = vec!["/bin/activator", "run"];
    traced.extend(options.iter().map(String::as_str));
    if argv[0] == RESIZES {
        traced.extend(["--max", "1024"]);
    }
    traced.extend(["--", &program]);
    traced.extend(&argv[1..]);
    step(disk, &traced)
}

/// What a traced program said: that it worked.
fn worked(argv: &[&str], r: &StepResult) -> Result<()> {
    ensure!(
        r.rc == 0 && !r.stdout.is_empty(),
        "the program fails: {r:?}"
    );
    if let [RESIZES, rounds, sizes @ ..] = argv {
        let want = format!("resized {} times", rounds.parse::<usize>()? * sizes.len());
        ensure!(r.stdout.contains(&want), "not {want}: {r:?}");
    }
    Ok(())
}

/// Compares what a run left, which must have something to compare, and keeps a row of
/// the table. Returns what the oracle counted.
fn agree(out: &Outcome, set: Set, program: &str) -> Result<Counts> {
    let (trace, log) = (out.trace(), oracle::log(out));
    let agreed = oracle::compare(&trace, &log);
    let pages = oracle::pages(&trace, &log).unwrap_or_default();
    let agreed = match agreed {
        Ok(agreed) => agreed,
        Err(e) => {
            let text = format!("{e:#}");
            keep(Row::new(program.into(), set, Err(e), pages));
            bail!("{text}");
        }
    };
    say!("  {agreed}");
    let (sweeps, again) = (set.sweeps(agreed.cpus), agreed.again);
    let counts = agreed.log.counts;
    keep(Row::new(program.into(), set, Ok(agreed), pages));
    ensure!(
        (again > 0) == sweeps,
        "{again} records say that the page was referenced again"
    );
    Ok(counts)
}

fn keep(row: Row) {
    if let Ok(mut rows) = ROWS.lock() {
        rows.push(row);
    }
}

/// Whoever makes a set smaller sleeps when it knows where that set begins, so that other tasks run.
const SLOW_RESIZES: &str = "vmtrace_late=1,800000,8";

fn run_small(argv: &[&str], set: Set, profile: Profile, kernel: &str) -> Result<()> {
    let name = format!(
        "{}-{}-{}-{kernel}",
        prefix(profile),
        argv.join("-"),
        set.name()
    );
    let cmdline = match (profile, argv) {
        (Profile::Turns | Profile::Turns4, [RESIZES, ..]) => SLOW_RESIZES,
        _ => "",
    };
    let machine = Machine {
        profile,
        ..machine(name, kernel, cmdline, argv, set)
    };
    let out = oracle::run(&machine, set.shape())?;
    worked(argv, out.step("trace")?)?;
    agree(
        &out,
        set,
        &format!("{} {}", prefix(profile), argv.join(" ")),
    )?;
    Ok(())
}

fn run_real(name: &str, work: &str, set: Set, profile: Profile, kernel: &str) -> Result<()> {
    let script = work.replace('\'', "'\\''");
    let options = set.options("trace").join(" ");
    let machine = Machine {
        image: true,
        profile,
        steps: vec![
            debian("plain", work),
            debian(
                "traced",
                &format!("activator run {options} -- /bin/sh -c '{script}'"),
            ),
        ],
        deadline_s: 1800,
        ..machine(
            format!("{}-{name}-{}-{kernel}", prefix(profile), set.name()),
            kernel,
            "",
            &[name],
            set,
        )
    };
    let out = oracle::run(&machine, set.shape())?;
    let (plain, traced) = (out.step("plain")?, out.step("traced")?);
    ensure!(
        traced.rc == 0 && !plain.stdout.is_empty() && traced.stdout == plain.stdout,
        "untraced {plain:?}, traced {traced:?}"
    );
    agree(&out, set, &format!("{} {name}", prefix(profile)))?;
    Ok(())
}

/// Traces what was there before and is there after, init above all.
fn run_system(set: Set, kernel: &str) -> Result<()> {
    let options = set.options("trace");
    let mut on = vec!["/bin/activator", "on", "--all"];
    on.extend(options.iter().map(String::as_str));
    let name = format!("oracle-system-{}-{kernel}", set.name());
    let mut machine = machine(name, kernel, "", &[""], set);
    machine.steps = vec![
        step("on", &on),
        step("touch", &["/bin/touch-loop", "100", "3"]),
        step("fork", &["/bin/fork-cow"]),
        step("off", &["/bin/activator", "off"]),
    ];
    let out = oracle::run(&machine, set.shape())?;
    for r in &out.results {
        ensure!(r.rc == 0, "it fails: {r:?}");
    }
    let counts = agree(&out, set, "oracle system")?;
    ensure!(
        counts.spaces > 3,
        "only {} address spaces were traced",
        counts.spaces
    );
    Ok(())
}

fn run_control(
    what: &str,
    argv: &[&str],
    set: Set,
    sign: &str,
    profile: Profile,
    kernel: &str,
) -> Result<()> {
    let name = format!("{}-{what}-{}-{kernel}", prefix(profile), set.name());
    let cmdline = format!("vmtrace_break={what}");
    let machine = Machine {
        profile,
        ..machine(name, kernel, &cmdline, argv, set)
    };
    let out = oracle::run(&machine, set.shape())?;
    let found = oracle::compare(&out.trace(), &oracle::log(&out))
        .err()
        .context("the oracle finds nothing wrong")?
        .to_string();
    say!("  {}", found.lines().next().unwrap_or_default());
    // A replay follows what the kernel did, so that the records may be the same.
    let what = match profile {
        Profile::Turns | Profile::Turns4 | Profile::Alone => "violations",
        Profile::Exact | Profile::Fast | Profile::Smp => "is the first that differs",
    };
    ensure!(
        found.contains(what) && found.contains(sign),
        "another failure than the one that was made:\n{found}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_set_is_the_set() {
        let replayed = REPLAYED_SETS.into_iter();
        for set in sets().chain(replayed) {
            assert_eq!(set.name().parse(), Ok(set));
        }
        assert_eq!(BATCHED.map(Set::name)[0], "64-batch8");
        assert_eq!(SEVERAL.map(Set::name)[3], "64-batch8-sets");
        let groups: Set = "64-clock-groups".parse().unwrap();
        assert_eq!((groups.sets, groups.kind), (Sets::Cgroup, Kind::Clock));
        assert_eq!("64-clock-32-batch1".parse(), "64-clock-32".parse::<Set>());
        for wrong in [
            "64-batch0",
            "64-batch50",
            "128-batch65",
            "64-clock-batch2",
            "64-batch8-again",
            "batch8",
            "64-batch",
            "64-sets-batch8",
            "sets",
            "15",
        ] {
            assert!(wrong.parse::<Set>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn all_sets_tell_their_batch() {
        for set in sets() {
            let options = set.options("trace").join(" ");
            assert!(
                options.contains(&format!("--batch {}", set.batch)),
                "{options}"
            );
            assert_eq!(
                options.contains("--set-per process"),
                set.sets == Sets::Process
            );
        }
    }
}
