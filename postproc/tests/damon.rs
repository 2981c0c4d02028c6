//! `postproc damon`: exact counts against those of a CSV, and against a record.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::support;
use postproc::damon::record::{Record, Snapshot};
use postproc::testing::TraceBuilder;
use postproc::units::Prot;
use serde_json::Value;

fn trace() -> Vec<u8> {
    let mut b = TraceBuilder::new(1, 6);
    for (tid, mm) in [(10, 1), (20, 2)] {
        b.task(0, tid, tid, mm, "program");
        b.map_anon(0, tid, mm, 0x10_0000, 0x20_0000, Prot(3));
    }
    let mut random = 11u64;
    for i in 0..9_000u64 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (tid, mm) = if random % 3 == 0 { (20, 2) } else { (10, 1) };
        b.touch(
            0,
            tid,
            mm,
            0x10_0000 + (random >> 8) % (20 + i / 100) * 4096,
        );
    }
    b.finish()
}

struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("t.vmtrace"), trace()).unwrap();
        Fixture(directory)
    }

    fn run(&self, args: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postproc"));
        support::run(
            command.args(args).current_dir(self.0.path()),
            "run postproc",
        )
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(args)).unwrap()
    }

    /// Exit code and what is said.
    fn fails(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = support::postproc(args, self.0.path());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    }
}

/// What a record has, by target.
fn snapshots(f: &Fixture, name: &str) -> BTreeMap<u64, Vec<Snapshot>> {
    Record::open(&f.0.path().join(name), 0).unwrap().targets
}

const INTERVAL: u64 = 100_000;

#[test]
fn working_sets_are_those_of_the_references() {
    let f = Fixture::new();
    let args = "damon t.vmtrace --aggregation 100us --sampling 5us --json";
    let found = f.json(&args.split(' ').collect::<Vec<_>>());
    let csv = f.run(&[
        "export",
        "t.vmtrace",
        "--keep-freed",
        "--format",
        "csv",
        "-o",
        "-",
    ]);
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |name: &str| names.iter().position(|n| *n == name).unwrap();
    let (time, mm, address) = (column("time_ns"), column("mm"), column("address"));
    let mut pages: BTreeMap<(u64, u64), BTreeSet<&str>> = BTreeMap::new();
    let mut samples: BTreeSet<(u64, u64, &str)> = BTreeSet::new();
    let mut end = 0;
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        let at: u64 = fields[time].parse().unwrap();
        let space: u64 = fields[mm].parse().unwrap();
        pages
            .entry((space, at / INTERVAL))
            .or_default()
            .insert(fields[address]);
        samples.insert((space, at / 5_000, fields[address]));
        end = end.max(at / INTERVAL);
    }
    for target in found["targets"].as_array().unwrap() {
        let space = target["mm"].as_u64().unwrap();
        let mut sizes: Vec<u64> = (0..end)
            .map(|i| pages.get(&(space, i)).map_or(0, |p| p.len() as u64 * 4096))
            .collect();
        sizes.sort_unstable();
        let set = &target["working_set_least"];
        assert_eq!(target["intervals"].as_u64().unwrap(), sizes.len() as u64);
        for (name, share) in [
            ("min", 0),
            ("p25", 25),
            ("p50", 50),
            ("p75", 75),
            ("max", 100),
        ] {
            assert_eq!(set[name], sizes[(sizes.len() - 1) * share / 100], "{name}");
            // Most is least, and what is still enabled: never more than N pages.
            let most = target["working_set_most"][name].as_u64().unwrap();
            let least = set[name].as_u64().unwrap();
            assert!(
                least <= most && most <= least + 7 * 4096,
                "{name}: {least} {most}"
            );
        }
    }
    // All pages and intervals but the last, which is not complete.
    let counted: u64 = found["targets"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|t| t["by_accesses"].as_array().unwrap())
        .map(|n| n.as_u64().unwrap())
        .sum();
    let complete = pages.iter().filter(|((_, i), _)| *i < end);
    assert_eq!(counted, complete.map(|(_, p)| p.len() as u64).sum::<u64>());
    assert!(samples.len() as u64 > counted);
}

/// A record that says what was is without error; one that is spoilt is not.
#[test]
fn a_record_is_held_against_the_trace() {
    let f = Fixture::new();
    let export = "export t.vmtrace --format damon --interval 100us --sampling 5us -o out.damon";
    f.run(&export.split(' ').collect::<Vec<_>>());
    let args = "damon t.vmtrace --record out.damon --target 1 --space 1 --since-start --json";
    let args: Vec<&str> = args.split(' ').collect();
    let exact = &f.json(&args)["comparison"];
    assert!(exact["snapshots"].as_u64().unwrap() > 5, "{exact}");
    for name in [
        "accesses_error",
        "working_set_error",
        "wrong",
        "false_share",
    ] {
        assert_eq!(exact[name], 0.0, "{name}: {exact}");
    }
    assert_eq!(
        (&exact["found"], &exact["missed"]),
        (&1.0.into(), &0.into())
    );
    assert_eq!(exact["damon"], exact["least"]);

    // The same as a tracepoint prints it, but every region one access more, and the
    // first region of each snapshot left out.
    let packed = std::fs::File::open(f.0.path().join("out.damon")).unwrap();
    let records: Value = serde_json::from_reader(flate2::read::ZlibDecoder::new(packed)).unwrap();
    let mut text = String::new();
    for snapshot in records[0]["snapshots"].as_array().unwrap() {
        let regions = &snapshot["regions"].as_array().unwrap()[1..];
        for r in regions {
            let accesses = r["nr_accesses"]["samples"].as_u64().unwrap() + 1;
            let end = snapshot["end_time"].as_u64().unwrap();
            text += &format!(
                "  kdamond.0-9 [000] .....  {}.{:09}: damon_aggregated: target_id=0 nr_regions={} {}-{}: {accesses} 0\n",
                end / 1_000_000_000,
                end % 1_000_000_000,
                regions.len(),
                r["start"],
                r["end"]
            );
        }
    }
    std::fs::write(f.0.path().join("out.txt"), text).unwrap();
    let args = "damon t.vmtrace --record out.txt --process 10 --since-start --sampling 5us --aggregation 100us";
    let mut args: Vec<&str> = args.split(' ').collect();
    let table = f.run(&args);
    args.push("--json");
    let spoilt = &f.json(&args)["comparison"];
    let number = |name: &str| spoilt[name].as_f64().unwrap();
    assert!(
        number("accesses_bias") > 0.3 && number("accesses_error") > 0.3,
        "{spoilt}"
    );
    assert!(number("found") < 1.0 && number("missed") > 0.0, "{spoilt}");
    assert!(number("wrong") > 0.3, "{spoilt}");
    assert!(
        table.contains("working set's error") && table.contains("DAMON"),
        "{table}"
    );
}

#[test]
fn what_cannot_be_compared_is_told() {
    let f = Fixture::new();
    let export = "export t.vmtrace --format damon --interval 100us -o out.damon";
    f.run(&export.split(' ').collect::<Vec<_>>());
    for (more, why) in [
        ("--space 1", "choose one with --target"),
        ("--space 1 --target 9", "no target 9"),
        ("--target 1", "--process or --space"),
        ("--target 1 --process 999", "no process 999"),
    ] {
        let mut args = vec!["damon", "t.vmtrace", "--record", "out.damon"];
        args.extend(more.split(' '));
        let (code, said) = f.fails(&args);
        assert_eq!(code, Some(2), "{more}");
        assert!(said.contains(why), "{more}: {said}");
    }
    let late = " 9999999.5: damon_aggregated: target_id=0 nr_regions=1 0-4096: 1 0\n";
    std::fs::write(f.0.path().join("late.txt"), late).unwrap();
    let args = "damon t.vmtrace --record late.txt --space 1 --sampling 5us";
    let (code, said) = f.fails(&args.split(' ').collect::<Vec<_>>());
    assert_eq!(code, Some(2));
    assert!(said.contains("lies within the trace's time"), "{said}");
}

/// What CLOCK's second chances tell is no reference at a known time: neither the command nor
/// the export counts it.
#[test]
fn second_chances_are_not_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut b = TraceBuilder::new(1, 4);
    b.program();
    for i in 0..8 {
        b.touch(0, 10, 1, 0x1000 + i * 0x1000);
    }
    // Much later the hand finds that two pages were referenced at some time since.
    b.leap(1_000_000);
    b.renew(0, 10, true);
    b.renew(0, 10, true);
    b.leap(1_000_000);
    b.touch(0, 10, 1, 0x1000);
    std::fs::write(directory.path().join("t.vmtrace"), b.finish()).unwrap();
    let f = Fixture(directory);
    let options = "--sampling 5us --interval 100us -o out.damon";
    let export = format!("export t.vmtrace --format damon {options}");
    f.run(&export.split(' ').collect::<Vec<_>>());
    let counted: u64 = snapshots(&f, "out.damon")[&1]
        .iter()
        .flat_map(|s| &s.regions)
        .map(|r| u64::from(r.accesses) * (r.end - r.start) / 4096)
        .sum();
    assert_eq!(counted, 9, "eight admissions and one more");
    let args = "damon t.vmtrace --sampling 5us --aggregation 100us --json";
    let found = f.json(&args.split(' ').collect::<Vec<_>>());
    let by_accesses = found["targets"][0]["by_accesses"].as_array().unwrap();
    let pages: u64 = by_accesses.iter().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(pages, 8, "the last interval is not complete");
}

const YEAR_NS: u64 = 365 * 24 * 3600 * 1_000_000_000;

/// A record's counts are those of the references, page by page; its snapshots follow each
/// other, and it is of the size of what was referenced.
#[test]
fn a_record_is_exact_and_of_the_size_of_what_was_active() {
    let directory = tempfile::tempdir().unwrap();
    let mut b = TraceBuilder::new(1, 16);
    for i in 1..=4 {
        b.task(0, 10 * i, 10 * i, i, "program");
        b.map_anon(0, 10 * i, i, 0x10_0000, 0x4010_0000, Prot(3));
    }
    let mut random = 5u64;
    for i in 0..6_000u64 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // The fourth is referenced now and then, the others in turns.
        let mm = if i % 1_000 == 0 {
            4
        } else {
            1 + (i / 300 % 3) as u32
        };
        // Few pages, far apart: what is idle would be thousands of regions.
        let page = (random >> 8) % 4 * 60_000 + (random >> 16) % 1_000 * 3;
        b.touch(0, 10 * mm, mm, 0x10_0000 + page * 4096);
        if i % 500 == 499 {
            let start = 0x10_0000 + page * 4096;
            b.unmap(0, 10 * mm, mm, start, start + 64 * 4096);
            b.map_anon(0, 10 * mm, mm, start, start + 64 * 4096, Prot(3));
        }
        if i == 3_000 {
            b.leap(YEAR_NS);
        }
    }
    b.mm_end(0, 10, 1);
    b.leap(YEAR_NS);
    std::fs::write(directory.path().join("t.vmtrace"), b.finish()).unwrap();
    let f = Fixture(directory);
    let options = "--interval 20us --sampling 1us -o out.damon";
    let export = format!("export t.vmtrace --format damon {options}");
    f.run(&export.split(' ').collect::<Vec<_>>());

    let csv = f.run(&[
        "export",
        "t.vmtrace",
        "--keep-freed",
        "--format",
        "csv",
        "-o",
        "-",
    ]);
    let names: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let column = |name: &str| names.iter().position(|n| *n == name).unwrap();
    let (time, mm, address) = (column("time_ns"), column("mm"), column("address"));
    // By address space, interval and page: sampling intervals.
    let mut expected: BTreeMap<(u64, u64, u64), BTreeSet<u64>> = BTreeMap::new();
    for line in csv.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let at: u64 = fields[time].parse().unwrap();
        let space: u64 = fields[mm].parse().unwrap();
        let page = u64::from_str_radix(&fields[address][2..], 16).unwrap() / 4096;
        let key = (space, at / 20_000, page);
        expected.entry(key).or_default().insert(at / 1_000);
    }
    let expected: BTreeMap<_, _> = expected.into_iter().map(|(k, s)| (k, s.len())).collect();

    let mut found = BTreeMap::new();
    let (mut regions, mut merged) = (0, 0);
    let mut singly = BTreeSet::new();
    let targets = snapshots(&f, "out.damon");
    assert_eq!(targets.len(), 4);
    for (target, snapshots) in &targets {
        for pair in snapshots.windows(2) {
            assert_eq!(pair[0].end, pair[1].start, "no time is left out");
        }
        for snapshot in snapshots {
            let active = snapshot.regions.iter().filter(|r| r.accesses > 0);
            let slices = (snapshot.end - snapshot.start) / 20_000;
            if active.clone().count() == 0 {
                merged += u64::from(slices > 1);
                if slices == 1 {
                    singly.insert(*target);
                }
            } else {
                assert_eq!(slices, 1);
            }
            for r in active.clone() {
                for page in r.start / 4096..r.end / 4096 {
                    let key = (*target, snapshot.start / 20_000, page);
                    assert_eq!(found.insert(key, r.accesses as usize), None);
                }
            }
            let gaps = snapshot.regions.windows(2);
            let gaps = gaps.map(|pair| pair[1].start.checked_sub(pair[0].end).unwrap());
            assert!(gaps.filter(|gap| *gap > 0).count() <= 2);
            assert!(snapshot.regions.len() <= 2 * active.count() + 3);
            regions += snapshot.regions.len();
        }
    }
    assert_eq!(found, expected);
    assert!(merged > 3 && singly.len() >= 3, "{merged} {singly:?}");
    assert!(regions <= 10 * expected.len(), "{regions}");
}

/// A trace of a few kB, in whose time a year passes between two references.
#[test]
fn absurd_times_cost_no_more_than_their_records() {
    let directory = tempfile::tempdir().unwrap();
    let mut b = TraceBuilder::new(1, 64);
    b.program();
    b.map_anon(0, 10, 1, 0x9000, 0x10_0000, Prot(3));
    // Time has room for 292 years.
    for i in 0..200 {
        b.leap(YEAR_NS);
        b.touch(0, 10, 1, 0x1000 + i % 100 * 0x1000);
    }
    std::fs::write(directory.path().join("t.vmtrace"), b.finish()).unwrap();
    let f = Fixture(directory);
    let begun = std::time::Instant::now();
    let export = "export t.vmtrace --format damon --interval 1us --sampling 1us -o out.damon";
    f.run(&export.split(' ').collect::<Vec<_>>());
    let args = "damon t.vmtrace --aggregation 1us --sampling 1us --json";
    let found = f.json(&args.split(' ').collect::<Vec<_>>());
    let intervals = found["targets"][0]["intervals"].as_u64().unwrap();
    assert!(intervals > 199 * (YEAR_NS / 1_000));
    // Each reference has a snapshot, and the year before it one, or one and those few that
    // it was paid for.
    let written = snapshots(&f, "out.damon")[&1].len();
    assert!((399..=600).contains(&written), "{written}");
    assert!(f.0.path().join("out.damon").metadata().unwrap().len() < 100_000);
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}
