//! `postproc dataset`: what DuckDB from PyPI reads is what the trace has, the types are those of the
//! contract, and a trace is in the dataset as a whole or not at all.

use crate::support;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use postproc::check::{CheckOptions, Checker};
use postproc::dataset::{Adding, Dataset};
use postproc::pipeline::Unwatched;
use postproc::summary::{Misses, Summary, read_table};
use postproc::testing::TraceBuilder;
use postproc::trace::Trace;
use postproc::units::{Access, Prot};
use serde_json::{Value, json};

const TABLES: [&str; 6] = [
    "events",
    "mappings",
    "pages",
    "processes",
    "references",
    "traces",
];

fn uuid(number: u8) -> String {
    format!("{number:02x}000000-0000-4000-8000-000000000000")
}

/// A trace with windows, files that all traces have, pages that are freed, and children.
fn trace(number: u8, windows: u64, processes: u32, references: u64) -> Vec<u8> {
    let mut b = TraceBuilder::new(2, 32);
    b.header_mut().uuid = [0; 16];
    b.header_mut().uuid[0] = number;
    b.header_mut().uuid[6] = 0x40;
    b.header_mut().uuid[8] = 0x80;
    for window in 0..windows.max(1) as u32 {
        if windows > 0 {
            b.begin_window(references);
        }
        // Numbers of address spaces are never used again.
        let (at, mm) = (7u64 << 40, window * processes + 1);
        b.snapshot(true);
        b.task(0, 10, 10, mm, "parent");
        b.map_anon(0, 10, mm, at, at + (4 << 20), Prot(3));
        b.map_file(0, 10, mm, 0x20_0000, 0x30_0000, Prot(7), false, 77, 0x4000);
        b.snapshot(false);
        for child in 1..processes {
            b.fork(0, 10, mm, 10 + child, mm + child);
        }
        let mut random = u64::from(number) << 20 | 0x9e37_79b9;
        for i in 0..references {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let who = (i / 20 % u64::from(processes)) as u32;
            let (cpu, tid, mm) = (who % 2, 10 + who, mm + who);
            let page = (random >> 20) % 200 * 4096;
            match random % 4 {
                0 => b.touch_as(cpu, tid, mm, 0x20_0000 + page, Access::Exec),
                1 => b.touch_as(cpu, tid, mm, at + page, Access::Write),
                _ => b.touch_as(cpu, tid, mm, at + page, Access::Read),
            }
            if random % 500 == 1 {
                // A private copy of a file's page is no page of the file.
                b.cow(cpu, tid, mm, 0x20_0000 + page);
                b.touch_as(cpu, tid, mm, 0x20_0000 + page, Access::Write);
            }
        }
        b.unmap(0, 10, mm, at, at + 0x4000);
        if windows > 0 {
            b.end_window(|_| {});
        }
    }
    b.finish()
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    #[track_caller]
    fn postproc(&self, args: &[&str]) -> Output {
        support::postproc(args, self.0.path())
    }

    #[track_caller]
    fn good(&self, args: &[&str]) -> String {
        let output = self.postproc(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The message of a command that must be refused.
    #[track_caller]
    fn refused(&self, args: &[&str]) -> String {
        let output = self.postproc(args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Files of the dataset and their contents.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut left = vec![self.path("data")];
        while let Some(directory) = left.pop() {
            for entry in directory.read_dir().unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => left.push(path),
                    false => drop(files.insert(path.clone(), std::fs::read(path).unwrap())),
                }
            }
        }
        files
    }

    /// What DuckDB answers.
    fn query(&self, queries: &[&str]) -> Vec<Vec<Vec<Value>>> {
        let python = support::python("duckdb-dataset", &["duckdb==2.0.0"]);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/query_by_duckdb.py");
        let mut command = Command::new(python);
        command.arg(script).arg("data");
        for (number, query) in queries.iter().enumerate() {
            let mut query = query.to_string();
            for table in TABLES {
                let read = format!("read_parquet('{table}/**/*.parquet', hive_partitioning=true)");
                query = query.replace(&format!("${table}"), &read);
            }
            self.write(&format!("{number}.sql"), query.as_bytes());
            command.arg(format!("{number}.sql"));
        }
        let rows = support::run(command.current_dir(self.0.path()), "run DuckDB");
        serde_json::from_str(&rows).unwrap()
    }
}

/// The types that Spark has, too.
const TYPES: &str = "
    SELECT DISTINCT column_type FROM (
        SELECT column_type FROM (DESCRIBE FROM $references) UNION SELECT column_type FROM (DESCRIBE FROM $events)
        UNION SELECT column_type FROM (DESCRIBE FROM $mappings) UNION SELECT column_type FROM (DESCRIBE FROM $pages)
        UNION SELECT column_type FROM (DESCRIBE FROM $processes) UNION SELECT column_type FROM (DESCRIBE FROM $traces))
    ORDER BY column_type";

/// All columns that csv has, in its order.
const REFERENCES: &str = "
    SELECT concat_ws(',', seq, time_ns, page, access, if(kernel, 'kernel', 'user'), dirtied::INT, again::INT, why,
                     coalesce(stay_ns::VARCHAR, ''), tid, cpu, mm, format('0x{:x}', address), pfn)
    FROM $references WHERE trace = '01000000-0000-4000-8000-000000000000' ORDER BY seq";

const TRACES: &str = r#"
    SELECT trace, host, n, "references", pages, windows, good, lost_full, complete, schema_version
    FROM $traces ORDER BY trace"#;

/// Figures of each trace that must be equal, whichever table they come from.
const COUNTS: &str = r#"
    SELECT t.trace, t."references" = (SELECT count(*) FROM $references r WHERE r.trace = t.trace),
           t."references" = (SELECT sum("references") FROM $processes p WHERE p.trace = t.trace),
           t."references" = (SELECT sum("references") FROM $pages p WHERE p.trace = t.trace),
           t.pages = (SELECT count(*) FROM $pages p WHERE p.trace = t.trace),
           t.pages = (SELECT count(*) FROM $references r WHERE r.trace = t.trace AND r.first),
           t.events = (SELECT count(*) FROM $events e WHERE e.trace = t.trace),
           t.processes = (SELECT count(*) FROM $processes p WHERE p.trace = t.trace)
    FROM $traces t ORDER BY t.trace"#;

/// Each page of a file is one page in all traces; it lies where its references do. A private copy
/// has the file's name, and is no page of the file.
const FILES: &str = "
    SELECT count(*), count(DISTINCT (device, inode, \"offset\")),
           count(*) FILTER (name <> '/lib/file-77.so' OR inode <> 77 OR device <> 8388609 OR bytes <> 4096)
    FROM $pages WHERE kind = 'file'
    UNION ALL
    SELECT count(*), 0, count(*) FILTER (p.\"offset\" <> address - 2097152 + 16384)
    FROM $references JOIN $pages AS p USING (trace, page) WHERE kind = 'file'
    UNION ALL
    SELECT count(*) FILTER (r.dirtied), 0, count(*) FILTER (inode IS NOT NULL)
    FROM $references AS r JOIN $pages USING (trace, page)
    WHERE kind = 'anon' AND name = '/lib/file-77.so'";

/// References after the end of their page, and pages without a mapping that has their object.
const KEYS: &str = "
    SELECT (SELECT count(*) FROM $references JOIN $pages USING (trace, page) WHERE seq > freed_seq),
           (SELECT count(*) FROM $pages WHERE freed_by = 'unmap') > 0,
           (SELECT count(*) FROM $pages AS p WHERE NOT EXISTS (
                SELECT 1 FROM $mappings AS m WHERE m.trace = p.trace AND m.object = p.object AND m.name = p.name)),
           (SELECT count(*) FROM $references ANTI JOIN $processes USING (trace, process, pid))";

/// Which windows there are: the partition, and what the references of it have.
const WINDOWS: &str = "
    SELECT trace, r.\"window\", count(*)
    FROM $references AS r JOIN $pages AS p USING (trace, page)
    WHERE r.\"window\" = p.\"window\" GROUP BY ALL ORDER BY ALL";

#[test]
fn all_tables_have_what_the_traces_have() {
    let place = Place::new();
    place.write("a.vmt", &trace(1, 0, 3, 4_000));
    place.write("b.vmt", &trace(2, 2, 2, 1_000));
    place.good(&["dataset", "a.vmt", "-o", "data", "--host", "one"]);
    let told = place.good(&["dataset", "b.vmt", "-o", "data", "--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    place.good(&[
        "export",
        "a.vmt",
        "--keep-freed",
        "--format",
        "csv",
        "-o",
        "a.csv",
    ]);
    let csv = std::fs::read_to_string(place.path("a.csv")).unwrap();

    let found = place.query(&[TYPES, REFERENCES, TRACES, COUNTS, FILES, KEYS, WINDOWS]);
    let types = [
        ["BIGINT"],
        ["BOOLEAN"],
        ["TIMESTAMP WITH TIME ZONE"],
        ["VARCHAR"],
    ];
    assert_eq!(json!(found[0]), json!(types));

    let expected: Vec<&str> = csv
        .lines()
        .filter(|line| !line.contains(",free,"))
        .skip(1)
        .collect();
    let rows: Vec<&str> = found[1]
        .iter()
        .map(|row| row[0].as_str().unwrap())
        .collect();
    assert!(rows.len() > 2_000);
    assert_eq!(rows, expected);

    assert_eq!(found[2][0][..3], [json!(uuid(1)), json!("one"), json!(32)]);
    assert_eq!(found[2][1][..2], [json!(uuid(2)), Value::Null]);
    assert_eq!(
        json!(found[2][1][3..]),
        json!([told["references"], told["pages"], 2, true, 0, true, 2])
    );
    for row in &found[3] {
        assert_eq!(row[1..], vec![json!(true); row.len() - 1], "{row:?}");
    }

    // A row for each window, as windows know nothing of each other, and one identity.
    let (rows_of_file, identities) = (found[4][0][0].as_u64(), found[4][0][1].as_u64());
    assert!(
        identities > Some(150) && identities <= Some(200),
        "{:?}",
        found[4]
    );
    assert!(rows_of_file > identities.map(|n| n * 2), "{:?}", found[4]);
    assert_eq!(found[4][0][2], 0);
    assert!(found[4][1][0].as_u64() > Some(500), "{:?}", found[4]);
    assert_eq!(found[4][1][2], 0);
    assert!(
        found[4][2][0].as_u64() > Some(0),
        "no private copy: {:?}",
        found[4]
    );
    assert_eq!(found[4][2][2], 0);
    assert_eq!(json!(found[5]), json!([[0, true, 0, 0]]));

    let windows: Vec<_> = found[6]
        .iter()
        .map(|row| (&row[0], row[1].as_u64()))
        .collect();
    let expected = [
        (&json!(uuid(1)), Some(0)),
        (&json!(uuid(2)), Some(0)),
        (&json!(uuid(2)), Some(1)),
    ];
    assert_eq!(windows, expected);
    let in_windows: u64 = found[6].iter().filter_map(|row| row[2].as_u64()).sum();
    assert_eq!(
        in_windows,
        rows.len() as u64 + told["references"].as_u64().unwrap()
    );
}

#[test]
fn a_trace_is_in_it_once_and_as_a_whole() {
    let place = Place::new();
    place.write("a.vmt", &trace(1, 0, 2, 300));
    place.write("b.vmt", &trace(2, 0, 2, 300));
    // Nothing is left of a dataset that got no trace.
    place.write("none.vmt", b"no trace");
    place.refused(&["dataset", "none.vmt", "-o", "data"]);
    assert!(!place.path("data").exists());

    place.good(&["dataset", "a.vmt", "-o", "data"]);
    let first = place.files();
    let message = place.refused(&["dataset", "a.vmt", "-o", "data"]);
    assert!(message.contains("--replace"), "{message}");
    assert!(message.contains(&uuid(1)), "{message}");
    assert_eq!(place.files(), first);

    // The others are added, whatever becomes of one.
    let message = place.refused(&["dataset", "a.vmt", "none.vmt", "b.vmt", "-o", "data"]);
    assert!(
        message.contains("2 of 3 traces were not added"),
        "{message}"
    );
    let both = place.files();
    assert_eq!(both.len(), 2 * first.len() - 2);

    // Another trace with the same id, with fewer windows and files, takes all of its places.
    place.write("c.vmt", &trace(2, 3, 2, 100));
    place.good(&["dataset", "c.vmt", "--replace", "-o", "data"]);
    let names = |window: u32| format!("references/trace={}/window={window}", uuid(2));
    let window = |number: u32| place.path("data").join(names(number));
    assert!(window(0).exists() && window(1).exists() && window(2).exists());
    place.good(&["dataset", "b.vmt", "--replace", "-o", "data"]);
    assert!(window(0).exists() && !window(1).exists());
    assert_eq!(place.files(), both);

    // What a process left that was killed while it put tables into their places.
    std::fs::remove_dir_all(place.path("data/traces").join(format!("trace={}", uuid(2)))).unwrap();
    place.good(&["dataset", "b.vmt", "-o", "data"]);
    assert_eq!(place.files(), both);

    let message = place.refused(&["dataset", "a.vmt", "-o", "."]);
    assert!(message.contains("no dataset"), "{message}");
    let mark = place.path("data/dataset.json");
    let text = std::fs::read_to_string(&mark)
        .unwrap()
        .replace(": 2", ": 999");
    std::fs::write(&mark, text).unwrap();
    let message = place.refused(&["dataset", "b.vmt", "--replace", "-o", "data"]);
    assert!(message.contains("version 999"), "{message}");
}

#[test]
fn a_part_of_a_process_is_not_added_and_a_bad_trace_is_marked() {
    let place = Place::new();
    let mut bytes = trace(1, 0, 2, 300);
    place.write("a.vmt", &bytes);
    place.good(&["split", "a.vmt", "--by", "process", "-o", "parts"]);
    let part = place.path("parts").read_dir().unwrap();
    let part = part.map(|entry| entry.unwrap().path());
    let part = part
        .into_iter()
        .find(|path| path.extension().unwrap() == "vmtrace")
        .unwrap();
    let message = place.refused(&["dataset", part.to_str().unwrap(), "-o", "data"]);
    assert!(message.contains("whole trace"), "{message}");

    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    place.write("bad.vmt", &bytes);
    let output = place.postproc(&["dataset", "bad.vmt", "-o", "data", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let row: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(row["good"], false);
    let rules = row["failed_rules"].as_array().unwrap();
    assert!(rules.contains(&json!("packet-crc")), "{rules:?}");
}

/// Files depend on windows and bytes, not on processes; a row group has about the bytes that it is to have.
#[test]
fn files_and_row_groups_are_bounded() {
    let place = Place::new();
    let trace = Trace::from_bytes("memory", trace(1, 0, 600, 60_000)).unwrap();
    let dataset = Dataset::open(&place.path("data")).unwrap();
    let group = 100_000;
    let adding = Adding {
        group_bytes: Some(group),
        ..Adding::default()
    };
    let checker = Checker::new(CheckOptions::default());
    let (added, report) = dataset
        .add(&trace, &adding, checker, &mut Unwatched)
        .unwrap();
    assert!(report.good);
    assert_eq!(added.facts.processes, 600);
    let of_references = place.path("data/references");
    let count = |below: &Path| {
        place
            .files()
            .keys()
            .filter(|path| path.starts_with(below))
            .count()
    };
    let (all, references) = (count(&place.path("data")), count(&of_references));
    // With the lock and the file that says that it is a dataset.
    assert_eq!(all as u64, added.files + 2);
    assert!(
        all <= 2 + 5 + references && references <= 3,
        "{all} {references}"
    );
    let groups = place.query(&[
        "SELECT sum(total_compressed_size)::BIGINT FROM parquet_metadata('references/**/*.parquet')
         GROUP BY file_name, row_group_id ORDER BY file_name, row_group_id",
    ]);
    let sizes: Vec<u64> = groups[0]
        .iter()
        .map(|row| row[0].as_u64().unwrap())
        .collect();
    assert!(sizes.len() > 4, "{sizes:?}");
    let (last, whole) = sizes.split_last().unwrap();
    // The first one is smaller, because nothing is known yet.
    assert!(
        whole[1..].iter().all(|&size| size > group as u64 / 3),
        "{sizes:?}"
    );
    assert!(
        sizes.iter().all(|&size| size < 2 * group as u64) && *last > 0,
        "{sizes:?}"
    );
}

/// Figures of a summary that other commands have, too.
#[test]
fn a_summary_has_the_figures_of_other_commands() {
    let place = Place::new();
    place.write("a.vmt", &trace(1, 0, 3, 4_000));
    place.write("b.vmt", &trace(2, 2, 2, 1_000));
    let lines = place.good(&["summary", "a.vmt", "b.vmt", "--host", "one"]);
    let rows: Vec<Summary> = lines
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    for (name, row) in ["a.vmt", "b.vmt"].into_iter().zip(&rows) {
        let json = |args: &[&str]| -> Value {
            serde_json::from_str(&place.good(&[&[args[0], name], &args[1..]].concat())).unwrap()
        };
        for (policy, misses) in [("lru", &row.lru), ("opt", &row.opt)] {
            let curve = json(&[
                "simulate", "--policy", policy, "--curve", "--points", "0", "--json",
            ]);
            let points = curve_of(&curve);
            assert!(points.len() > 200, "{curve}");
            for (size, count) in points {
                assert_eq!(misses.at(size), count, "{policy} of {size} pages");
            }
        }
        let compared = json(&["compare", "a.vmt", "--json"]);
        let run = &compared["runs"][0];
        assert_eq!(run["references"], row.references);
        assert_eq!(run["footprint_pages"], row.lru.footprint);
        let sets = run["working_set"].as_array().unwrap();
        assert!(!sets.is_empty());
        assert_eq!(sets.len(), row.working_sets.len());
        for (set, of) in sets.iter().zip(&row.working_sets) {
            assert_eq!(set["tau_ns"], of.tau_ns);
            // The parser of JSON rounds the mean once more.
            let sum = set["mean_pages"].as_f64().unwrap() * of.samples as f64;
            assert_eq!(sum.round() as u64, of.pages);
            assert_eq!(set["most_pages"], of.most_pages);
            assert_eq!(of.counts.iter().sum::<u64>(), of.samples);
        }
        let facts = row.trace.as_ref().unwrap();
        assert_eq!(
            (facts.host.as_deref(), facts.source.as_str()),
            (Some("one"), name)
        );
        assert_eq!(
            row.mapped.iter().map(|m| m.references).sum::<u64>(),
            row.references
        );
        assert_eq!(row.mapped.iter().map(|m| m.pages).sum::<u64>(), row.pages);
    }
    // Read back by DuckDB, with lists.
    place.good(&["dataset", "a.vmt", "-o", "data"]);
    place.good(&["summary", "a.vmt", "b.vmt", "-o", "data/summaries.parquet"]);
    let found = place.query(&[
        "SELECT \"references\", lru_cold, lru_sizes, lru_hits, opt_hits, mapped_name, mapped_pages,
                list_sum(working_set_class_counts)::BIGINT FROM 'summaries.parquet' ORDER BY source",
    ]);
    for (cells, row) in found[0].iter().zip(&rows) {
        let names: Vec<_> = row.mapped.iter().map(|m| &m.name).collect();
        let pages: Vec<_> = row.mapped.iter().map(|m| m.pages).collect();
        let moments: u64 = row.working_sets.iter().map(|set| set.samples).sum();
        let lru = (&row.lru.sizes, &row.lru.hits);
        let expected = json!([
            row.references,
            row.lru.cold,
            lru.0,
            lru.1,
            row.opt.hits,
            names,
            pages,
            moments
        ]);
        assert_eq!(json!(cells), expected);
    }
    assert_eq!(found[0].len(), 2);
}

/// The misses of each size.
fn curve_of(simulated: &Value) -> Vec<(u64, u64)> {
    let points = simulated["curve"].as_array().unwrap().iter();
    let of = |point: &Value, name: &str| point[name].as_u64().unwrap();
    points
        .map(|p| (of(p, "size_pages"), of(p, "misses")))
        .collect()
}

#[test]
fn merged_summaries_are_the_sum_in_any_order() {
    let place = Place::new();
    for number in 1..=4 {
        let bytes = trace(
            number,
            u64::from(number) % 2 * 2,
            2,
            300 * u64::from(number),
        );
        place.write(&format!("{number}.vmt"), &bytes);
        place.good(&[
            "summary",
            &format!("{number}.vmt"),
            "-o",
            &format!("{number}.ndjson"),
        ]);
    }
    let row = |number: u32| -> Summary {
        let text = std::fs::read_to_string(place.path(&format!("{number}.ndjson"))).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let merge = |args: &[&str]| -> Summary {
        serde_json::from_str(&place.good(&[&["merge", "--json"], args].concat())).unwrap()
    };
    let all = merge(&["1.ndjson", "2.ndjson", "3.ndjson", "4.ndjson"]);
    place.good(&["merge", "3.ndjson", "1.ndjson", "-o", "odd.ndjson.zst"]);
    place.good(&["merge", "4.ndjson", "2.ndjson", "-o", "even.ndjson"]);
    assert_eq!(merge(&["even.ndjson", "odd.ndjson.zst"]), all);
    assert_eq!((all.traces, all.good), (4, 4));
    let rows: Vec<Summary> = (1..=4).map(row).collect();
    let most = rows.iter().map(|row| row.lru.footprint).max().unwrap();
    assert!(most > 200);
    for size in 0..=most + 1 {
        let sum =
            |of: fn(&Summary) -> &Misses| rows.iter().map(|row| of(row).at(size)).sum::<u64>();
        assert_eq!(all.lru.at(size), sum(|row| &row.lru));
        assert_eq!(all.opt.at(size), sum(|row| &row.opt));
        assert!(all.opt.at(size) <= all.lru.at(size));
    }
    let text = place.good(&["merge", "even.ndjson", "odd.ndjson.zst"]);
    assert!(
        text.starts_with("4 traces: 4 good, 4 complete, 0 records lost"),
        "{text}"
    );
    assert!(text.contains("/lib/file-77.so"), "{text}");

    let message = place.refused(&["merge", "1.ndjson", "2.ndjson", "1.ndjson"]);
    assert!(message.contains("already"), "{message}");
    let other = std::fs::read_to_string(place.path("1.ndjson")).unwrap();
    place.write(
        "huge.ndjson",
        other
            .replace("\"page_size\":4096", "\"page_size\":8192")
            .as_bytes(),
    );
    place.write("odd", b"\xff\xfe\n");
    let message = place.refused(&["merge", "2.ndjson", "odd"]);
    assert!(
        message.contains("odd, line 1 is no text: give the lines of JSON or the table of Parquet"),
        "{message}"
    );
    let message = place.refused(&["merge", "2.ndjson", "huge.ndjson"]);
    assert!(
        message.contains("8192") && message.contains("line 1"),
        "{message}"
    );
}

/// Four traces in a.vmt to d.vmt, and their summaries as lines of JSON and as a table.
fn in_both_forms() -> Place {
    let place = Place::new();
    let names = ["a.vmt", "b.vmt", "c.vmt", "d.vmt"];
    for (number, name) in (1..).zip(names) {
        place.write(name, &trace(number, u64::from(number) % 2 * 2, 2, 300));
    }
    for name in ["rows.ndjson", "rows.parquet"] {
        place.good(&[&["summary", "-o", name][..], &names].concat());
    }
    for name in ["one.ndjson", "one.parquet"] {
        place.good(&["summary", "a.vmt", "--host", "é", "-o", name]);
    }
    place
}

/// Each table gives what the lines of JSON give, to the last letter.
#[test]
fn merge_reads_tables_as_it_reads_lines() {
    let place = in_both_forms();
    let merge = |args: &[&str]| place.good(&[&["merge", "--json"], args].concat());
    let all = merge(&["rows.ndjson"]);
    assert_eq!(merge(&["rows.parquet"]), all);
    let text = place.good(&["merge", "rows.parquet"]);
    assert_eq!(text, place.good(&["merge", "rows.ndjson"]));
    assert!(text.starts_with("4 traces: 4 good"), "{text}");
    // The row of one trace has what is known of that trace.
    let one = merge(&["one.ndjson"]);
    assert_eq!(merge(&["one.parquet"]), one);
    let row: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(row["trace"]["host"], "é");
    assert_eq!(
        row["trace"]["kernel"].as_str().map(str::is_empty),
        Some(false)
    );
    // Sums are written and read in both forms, and together.
    for name in ["sum.ndjson", "sum.parquet"] {
        place.good(&["merge", "rows.parquet", "-o", name]);
        assert_eq!(merge(&[name]), all);
    }
    place.good(&["summary", "b.vmt", "c.vmt", "d.vmt", "-o", "others.ndjson"]);
    let mixed = merge(&["others.ndjson", "one.parquet"]);
    assert_eq!(mixed, all);
    // Standard input and a compressed file have no end that can be read first.
    let bytes = std::fs::read(place.path("rows.parquet")).unwrap();
    let packed = zstd::encode_all(&bytes[..], 1).unwrap();
    place.write("rows.parquet.zst", &packed);
    assert_eq!(merge(&["rows.parquet.zst"]), all);
    let piped = Command::new(env!("CARGO_BIN_EXE_postproc"))
        .args(["merge", "--json", "-"])
        .current_dir(place.0.path())
        .stdin(std::fs::File::open(place.path("rows.parquet")).unwrap())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), all);

    let twice = place.refused(&["merge", "rows.ndjson", "one.parquet"]);
    let expected = format!("one.parquet: row 1: trace {} was added already", uuid(1));
    assert!(twice.contains(&expected), "{twice}");
    place.good(&["dataset", "a.vmt", "-o", "data"]);
    let other = format!("data/traces/trace={}/part-00000.parquet", uuid(1));
    let message = place.refused(&["merge", &other]);
    assert!(
        message.contains("it has no column summary_version: give what"),
        "{message}"
    );
    let message = place.refused(&["merge", "data"]);
    assert!(
        message.contains("data is a directory without files .parquet"),
        "{message}"
    );
}

/// Tables that other programs have written: another compression, fewer columns, rows of kvmtrace.fleet.
#[test]
fn merge_reads_tables_of_other_programs() {
    let place = in_both_forms();
    let merge = |name: &str| place.good(&["merge", "--json", name]);
    let all = merge("rows.ndjson");
    for name in ["data", "data/again", "data/fleet"] {
        std::fs::create_dir(place.path(name)).unwrap();
    }
    // DuckDB compresses by Snappy, as Spark does. Before `kernel`, a table had no column of one trace.
    place.query(&[
        "COPY (FROM '../rows.parquet' LIMIT 3) TO 'again/part-0.parquet'",
        "COPY (FROM '../rows.parquet' OFFSET 3) TO 'again/part-1.parquet'",
        "COPY (SELECT * EXCLUDE (schema_version, kernel, arch, n, batch, policy, sets, scope, cpus,
                   start_unix_ns, start_ns, windows, first_piece, last_piece, processes, lost_full,
                   lost_atomic, lost_io, uncovered, filtered, errors, failed_rules)
               FROM '../rows.parquet') TO 'early.parquet'",
        "COPY (SELECT 'x.vmt' AS path, NULL::VARCHAR AS error, line AS summary
               FROM read_csv('../rows.ndjson', columns = {'line': 'VARCHAR'}, delim = '\x01', quote = '',
                             escape = '', header = false)
               UNION ALL SELECT 'y.vmt', 'no trace', NULL) TO 'fleet/part-0.parquet'",
        "COPY (SELECT NULL::VARCHAR AS error, NULL::VARCHAR AS summary
               UNION ALL SELECT 'x.vmt: empty', NULL) TO 'bad.parquet'",
        "COPY (SELECT summary_version, traces FROM '../rows.parquet')
         TO 'odd.parquet'",
    ]);
    assert_eq!(merge("data/again"), all);
    assert_eq!(merge("data/early.parquet"), all);
    let twice = place.refused(&["merge", "data/early.parquet", "one.ndjson"]);
    assert!(twice.contains("was added already"), "{twice}");
    let fleet = place.postproc(&["merge", "--json", "data/fleet"]);
    assert_eq!(String::from_utf8(fleet.stdout).unwrap(), all);
    assert_eq!(fleet.status.code(), Some(2));
    let told = String::from_utf8(fleet.stderr).unwrap();
    let expected = "data/fleet/part-0.parquet: 1 row has no summary and is left out: no trace\n";
    assert!(told.contains(expected), "{told}");
    let bad = place.postproc(&[
        "merge",
        "data/bad.parquet",
        "one.ndjson",
        "-o",
        "two.ndjson",
    ]);
    assert_eq!(bad.status.code(), Some(2));
    let told = String::from_utf8(bad.stderr).unwrap();
    let expected = "data/bad.parquet: 2 rows have no summary and are left out; the first error is: x.vmt: empty\n";
    assert!(told.contains(expected), "{told}");
    assert_eq!(merge("two.ndjson"), merge("one.ndjson"));
    let message = place.refused(&["merge", "data/odd.parquet"]);
    assert!(message.contains("it has no column trace"), "{message}");
}

/// A column of another type, and rows that no sum can be made of, are errors and no panics.
#[test]
fn merge_refuses_other_types_and_wrong_rows() {
    let place = in_both_forms();
    std::fs::create_dir(place.path("data")).unwrap();
    let tables = [
        (
            "CAST(traces AS VARCHAR) AS traces",
            "the column traces is of another type",
        ),
        (
            "INTERVAL 1 DAY AS kernel",
            "the column kernel is of another type",
        ),
        (
            "INTERVAL 1 DAY AS traces",
            "the column traces is of another type",
        ),
        (
            "[INTERVAL 1 DAY] AS lru_sizes",
            "the column lru_sizes is of another type",
        ),
        (
            "lru_sizes::VARCHAR[] AS lru_sizes",
            "the column lru_sizes is of another type",
        ),
        (
            "lru_sizes::DOUBLE[] AS lru_hits",
            "the column lru_hits is of another type",
        ),
        (
            "[lru_sizes] AS lru_sizes",
            "the column lru_sizes is of another type",
        ),
        (
            "[1, 2] AS mapped_name",
            "the column mapped_name is of another type",
        ),
        (
            "MAP {'a': 1} AS mapped_kind",
            "the column mapped_kind is of another type",
        ),
        (
            "{'list': lru_sizes} AS lru_sizes",
            "the column lru_sizes is of another type",
        ),
        (
            "make_timestamp_ns(start_unix_ns) AS start_unix_ns",
            "the column start_unix_ns is of another",
        ),
        (
            "traces::UBIGINT AS traces",
            "the column traces is of another type",
        ),
        (
            "'x'::BLOB AS kernel",
            "the column kernel is of another type",
        ),
        (
            "NULL::BIGINT AS traces",
            "the column traces is of another type",
        ),
        (
            "[NULL::BIGINT] AS lru_sizes",
            "the column lru_sizes is of another type",
        ),
        ("0::BIGINT AS traces", "row 1: a summary of 0 traces"),
        (
            "list_reverse(lru_sizes) AS lru_sizes",
            "row 1: the sizes of lru are not ascending",
        ),
        (
            "[1]::BIGINT[] AS opt_sizes",
            "row 1: the lists opt_sizes, opt_hits have different",
        ),
        (
            "[1::BIGINT for tau in working_set_tau_ns] AS working_set_tau_ns",
            "row 1: the lists of working_set_tau_ns and working_set_class_tau_ns have different times",
        ),
        (
            "list_reverse(mapped_name) AS mapped_name",
            "row 1: the names and kinds of mapped are not ascending",
        ),
    ];
    let names: Vec<_> = (0..tables.len())
        .map(|at| format!("{at}.parquet"))
        .collect();
    let made = names.iter().zip(tables).map(|(name, (columns, _))| {
        format!("COPY (SELECT * REPLACE ({columns}) FROM '../rows.parquet') TO '{name}'")
    });
    let made: Vec<String> = made.collect();
    place.query(&made.iter().map(String::as_str).collect::<Vec<_>>());
    for (name, (columns, why)) in names.iter().zip(tables) {
        let message = place.refused(&["merge", &format!("data/{name}")]);
        let is_panic = message.contains("panicked");
        assert!(message.contains(why) && !is_panic, "{columns}: {message}");
    }

    // Lines of JSON are checked alike, and so is their sum.
    let line = std::fs::read_to_string(place.path("one.ndjson")).unwrap();
    let good: Summary = serde_json::from_str(&line).unwrap();
    type Change = fn(&mut Summary);
    let changes: [(Change, &str); 4] = [
        (|s| s.traces = 0, "a summary of 0 traces"),
        (
            |s| s.lru.hits.push(1),
            "the sizes of lru and their counts are lists of different",
        ),
        (
            |s| s.lru.sizes.reverse(),
            "the sizes of lru are not ascending",
        ),
        (|s| s.traces = u64::MAX, "does not fit into 64 bits"),
    ];
    for (change, why) in changes {
        let mut wrong = good.clone();
        change(&mut wrong);
        wrong.trace.as_mut().unwrap().trace = uuid(9);
        place.write("wrong.ndjson", &serde_json::to_vec(&wrong).unwrap());
        let message = place.refused(&["merge", "rows.parquet", "wrong.ndjson"]);
        let is_named = message.contains("wrong.ndjson, line 1: ");
        assert!(is_named && message.contains(why), "{message}");
    }
}

/// `-` is standard input, although there is a file of this name; of a directory, only files are read.
#[test]
fn merge_reads_what_its_arguments_name() {
    let place = in_both_forms();
    let merge = |args: &[&str]| place.good(&[&["merge", "--json"], args].concat());
    let all = merge(&["rows.ndjson"]);
    let piped = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postproc"));
        command.args(["merge", "--json", "-"]);
        command.current_dir(place.0.path());
        command.stdin(std::fs::File::open(place.path(name)).unwrap());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    std::fs::copy(place.path("one.parquet"), place.path("-")).unwrap();
    assert_eq!(piped("rows.parquet"), all);
    assert_eq!(merge(&["./-"]), merge(&["one.ndjson"]));
    std::fs::remove_file(place.path("-")).unwrap();
    std::fs::create_dir(place.path("-")).unwrap();
    assert_eq!(piped("rows.ndjson"), all);

    std::fs::create_dir_all(place.path("table/no-file.parquet")).unwrap();
    std::fs::copy(
        place.path("rows.parquet"),
        place.path("table/part-0.parquet"),
    )
    .unwrap();
    assert_eq!(merge(&["table"]), all);
}

/// A damaged table is refused or read, and nothing worse happens.
#[test]
fn damaged_tables_are_refused() {
    let place = in_both_forms();
    let good = std::fs::read(place.path("rows.parquet")).unwrap();
    let read = |bytes: Vec<u8>| {
        let mut rows = 0;
        let done = read_table(bytes::Bytes::from(bytes), |_| {
            rows += 1;
            Ok(())
        });
        done.map(|()| rows)
    };
    assert_eq!(read(good.clone()), Ok(4));
    let mut refused = 0;
    for at in (0..good.len()).step_by(good.len() / 1500 + 1) {
        let mut bytes = good.clone();
        bytes[at] ^= 0x55;
        refused += u32::from(read(bytes).is_err());
        let cut = read(good[..at].to_vec());
        assert!(
            cut.is_err_and(|why| why.contains("as a table of Parquet")),
            "{at}"
        );
    }
    assert!(refused > 200, "{refused}");
    place.write("cut.parquet", &good[..good.len() / 2]);
    let message = place.refused(&["merge", "cut.parquet"]);
    assert!(
        message.contains("cut.parquet: it cannot be read as a table"),
        "{message}"
    );
}

/// What `simulate` finds of the references that are selected.
fn curve_of_selected(place: &Place, policy: &str, selection: &[&str]) -> Value {
    let args = [
        "simulate", "a.vmt", "--policy", policy, "--curve", "--points", "0", "--json",
    ];
    serde_json::from_str(&place.good(&[&args[..], selection].concat())).unwrap()
}

/// A row of a selection has the figures that other commands have of the same selection.
#[test]
fn a_summary_of_a_selection_has_its_figures() {
    let place = Place::new();
    place.write("a.vmt", &trace(1, 0, 3, 4_000));
    let row = |selection: &[&str]| -> Summary {
        let line = place.good(&[&["summary", "a.vmt"][..], selection].concat());
        serde_json::from_str(&line).unwrap()
    };
    let whole = row(&[]);
    assert_eq!(whole.selection, None);
    for (selection, words) in [
        (&["--process", "11"][..], "--process 11"),
        (&["--mapping", "file-77.so"], "--mapping file-77.so"),
        (
            &["--comm", "parent", "--where", "kind == write"],
            "--comm parent --where 'kind == write'",
        ),
        (
            &["--address", "0x200000..0x280000"],
            "--address 0x200000..0x280000",
        ),
        (
            &["--until", "60%", "--since", "20%"],
            "--since 20% --until 60%",
        ),
    ] {
        let one = row(selection);
        assert_eq!(one.selection.as_deref(), Some(words));
        let facts = one.trace.as_ref().unwrap();
        assert_eq!(
            (facts.selection.as_deref(), facts.references),
            (Some(words), one.references)
        );
        assert!(
            one.references > 200 && one.references < whole.references,
            "{words}"
        );
        for (policy, misses) in [("lru", &one.lru), ("opt", &one.opt)] {
            let curve = curve_of_selected(&place, policy, selection);
            assert_eq!(curve["references"], one.references, "{words}");
            let points = curve_of(&curve);
            assert!(points.len() > 10, "{words}");
            for (size, count) in points {
                assert_eq!(misses.at(size), count, "{words}: {policy} of {size} pages");
            }
        }
        let sum =
            |of: fn(&postproc::summary::Mapped) -> u64| one.mapped.iter().map(of).sum::<u64>();
        assert_eq!(sum(|m| m.references), one.references);
        assert_eq!((sum(|m| m.pages), facts.pages), (one.pages, one.pages));
        // What is of the whole trace.
        let of_trace = |s: &Summary| (s.events, s.bytes, s.lost, s.good, s.complete);
        assert_eq!(of_trace(&one), of_trace(&whole));
        assert!(!one.working_sets.is_empty());
        if selection[0] != "--until" {
            assert_eq!(one.duration_ns, whole.duration_ns);
            continue;
        }
        let length = one.duration_ns as f64 / whole.duration_ns as f64;
        assert!((length - 0.4).abs() < 0.001, "{length}");
        // No set is counted before the time begins, when it would be empty.
        let sets = &one.working_sets;
        assert!(sets.iter().all(|set| set.sizes[0] > 0), "{sets:?}");
    }
}

/// What is recorded with a row keeps rows of other selections apart.
#[test]
fn rows_of_different_selections_are_not_merged() {
    let place = Place::new();
    for (number, name) in [(1, "a"), (2, "b")] {
        place.write(&format!("{name}.vmt"), &trace(number, 0, 2, 300));
        for (end, selection) in [
            ("whole", &[][..]),
            ("some", &["--comm", "parent", "--process", "10"][..]),
        ] {
            let trace = format!("{name}.vmt");
            for form in ["ndjson", "parquet"] {
                let to = format!("{name}.{end}.{form}");
                place.good(&[&["summary", &trace, "-o", &to][..], selection].concat());
            }
        }
    }
    let expected = "a summary of the references that --comm parent --process 10 selects cannot be added to \
                    one of all references";
    for form in ["ndjson", "parquet"] {
        let (whole, some) = (format!("a.whole.{form}"), format!("b.some.{form}"));
        let message = place.refused(&["merge", &whole, &some]);
        assert!(message.contains(expected), "{message}");
        place.refused(&["merge", &some, &whole]);
    }
    let lines = place.good(&["merge", "a.some.ndjson", "b.some.ndjson", "--json"]);
    assert_eq!(
        place.good(&["merge", "a.some.parquet", "b.some.parquet", "--json"]),
        lines
    );
    let sum: Value = serde_json::from_str(&lines).unwrap();
    assert_eq!(sum["selection"], "--comm parent --process 10");
    let text = place.good(&["merge", "a.some.parquet", "b.some.ndjson"]);
    assert!(
        text.contains("\nselected by --comm parent --process 10\n"),
        "{text}"
    );
    // A row of version 1 is of all references.
    let line = std::fs::read_to_string(place.path("a.whole.ndjson")).unwrap();
    let early = line.replace("\"summary_version\":2", "\"summary_version\":1");
    let early = early.replace(",\"selection\":null", "");
    assert!(line.len() > early.len() + 20, "{line}");
    place.write("early.ndjson", early.as_bytes());
    place.good(&["merge", "early.ndjson", "b.whole.ndjson"]);
    assert!(
        place
            .refused(&["merge", "early.ndjson", "b.some.ndjson"])
            .contains(expected)
    );
    let message = place.refused(&["summary", "a.vmt", "--where", "window == 0"]);
    assert!(message.contains("use --since and --until"), "{message}");
}

/// Of each selection, how many references and pages there are, by the tables themselves.
const SELECTED: &str = r#"
    SELECT t.selection, t."references", (SELECT count(*) FROM $references), (SELECT sum("references") FROM $pages),
           (SELECT sum("references") FROM $processes), (SELECT count(*) FROM $references WHERE first),
           (SELECT count(*) FROM $pages), t.pages,
           (SELECT count(DISTINCT name) FROM $pages), (SELECT count(*) FROM $events) = t.events, t.schema_version
    FROM $traces t"#;

#[test]
fn a_dataset_has_one_selection() {
    let place = Place::new();
    place.write("a.vmt", &trace(1, 0, 3, 2_000));
    place.write("b.vmt", &trace(2, 2, 2, 300));
    let selection = ["--mapping", "file-77.so"];
    let add = |name: &'static str| [&["dataset", name, "-o", "data"][..], &selection].concat();
    place.good(&add("a.vmt"));
    let found = place.query(&[SELECTED]);
    let of = &found[0][0];
    let expected = curve_of_selected(&place, "lru", &selection)["references"]
        .as_u64()
        .unwrap();
    assert!(expected > 300);
    assert_eq!(of[0], "--mapping file-77.so");
    assert!(
        of[1..5]
            .iter()
            .all(|count| count.as_u64() == Some(expected)),
        "{of:?}"
    );
    assert!(
        of[5] == of[6] && of[6] == of[7] && of[7].as_u64() > Some(100),
        "{of:?}"
    );
    assert_eq!(json!(of[8..]), json!([1, true, 2]));

    let before = place.files();
    for (args, why) in [
        (
            &["dataset", "b.vmt", "-o", "data"][..],
            "and all references were asked for",
        ),
        (
            &["dataset", "b.vmt", "-o", "data", "--comm", "parent"],
            "--comm parent selects were asked for",
        ),
        (
            &["dataset", "a.vmt", "-o", "data", "--replace"],
            "the dataset has the references that --mapping",
        ),
        (
            &["dataset", "b.vmt", "-o", "data", "--mapping", "x.so"],
            "another directory",
        ),
        (
            &["dataset", "b.vmt", "-o", "none", "--mapping", "x.so"],
            "--mapping x.so keeps no reference",
        ),
    ] {
        let message = place.refused(args);
        assert!(message.contains(why), "{args:?}: {message}");
        assert_eq!(place.files(), before, "{args:?}");
    }
    assert!(!place.path("none").exists());
    place.good(&add("b.vmt"));

    // A dataset of version 1 goes on with whole traces.
    place.good(&["dataset", "a.vmt", "-o", "early"]);
    let mark = place.path("early/dataset.json");
    let text = std::fs::read_to_string(&mark).unwrap();
    assert!(!text.contains("selection"), "{text}");
    std::fs::write(&mark, text.replace(": 2", ": 1")).unwrap();
    place.good(&["dataset", "b.vmt", "-o", "early"]);
    let message = place.refused(&[
        "dataset",
        "a.vmt",
        "--comm",
        "parent",
        "--replace",
        "-o",
        "early",
    ]);
    assert!(
        message.contains("the dataset has all references"),
        "{message}"
    );
}
