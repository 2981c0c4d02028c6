//! DuckDB from PyPI reads what `postproc export --format parquet` writes: all of
//! it, and the example queries of docs/queries.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Read};
use std::path::Path;
use std::process::Command;

use postproc::testing::TraceBuilder;
use postproc::units::{Access, Prot};

/// References of so many processes, which share a file.
fn write_trace(path: &Path, processes: u32, references: u64, virtually: bool) {
    let mut b = TraceBuilder::to(BufWriter::new(File::create(path).unwrap()), 2, 64);
    if virtually {
        b.virtual_time(2_000);
    }
    b.task(0, 10, 10, 1, "parent");
    b.map_anon(0, 10, 1, 0x7f00_0000_0000, 0x7f00_0100_0000, Prot(3));
    b.map_file(0, 10, 1, 0x20_0000, 0x30_0000, Prot(5), true, 77, 0);
    for child in 1..processes {
        b.fork(0, 10, 1, 10 + child, 1 + child);
    }
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for i in 0..references {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let who = (i / 20 % u64::from(processes)) as u32;
        let page = (random >> 20) % 120 + 30 * u64::from(who);
        let (address, access) = match random % 4 {
            0 => (0x20_0000 + page % 256 * 4096, Access::Exec),
            1 => (0x7f00_0000_0000 + page * 4096, Access::Write),
            _ => (0x7f00_0000_0000 + page * 4096, Access::Read),
        };
        b.touch_as(who % 2, 10 + who, 1 + who, address, access);
        if random % 500 == 1 {
            b.cow(who % 2, 10 + who, 1 + who, 0x7f00_0000_0000 + page * 4096);
        }
    }
    b.finish_to().unwrap();
}

fn postproc(directory: &Path, args: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postproc"));
    support::run(command.args(args).current_dir(directory), "run postproc");
}

fn query(directory: &Path, queries: &[&Path]) -> Vec<serde_json::Value> {
    let python = support::python("duckdb", &["duckdb==2.0.0"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/query_by_duckdb.py");
    let mut command = Command::new(python);
    command.arg(script).arg("out.parquet").args(queries);
    let rows = support::run(command.current_dir(directory), "run DuckDB");
    serde_json::from_str(&rows).unwrap()
}

/// All columns of all rows, in the order of the csv. Without virtual time, neither has
/// the last one.
const EVERYTHING: &str = "
    SELECT concat_ws(',', seq, time_ns, page, access, if(kernel, 'kernel', 'user'), dirtied::INT, again::INT, why,
                     coalesce(stay_ns::VARCHAR, ''), tid, cpu, mm, format('0x{:x}', address), pfn, vtime),
           process, \"window\"
    FROM read_parquet('references/**/*.parquet', hive_partitioning = true)
    ORDER BY seq";

fn check(processes: u32, references: u64, virtually: bool) -> tempfile::TempDir {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let d = directory.path();
    write_trace(&d.join("t.vmtrace"), processes, references, virtually);
    postproc(
        d,
        &["export", "t.vmtrace", "--format", "csv", "-o", "out.csv"],
    );
    let args = [
        "export",
        "t.vmtrace",
        "--format",
        "parquet",
        "-o",
        "out.parquet",
    ];
    postproc(d, &args);
    let mut csv = String::new();
    let mut file = File::open(d.join("out.csv")).unwrap();
    file.read_to_string(&mut csv).unwrap();
    let rows: Vec<Vec<&str>> = csv
        .lines()
        .skip(1)
        .map(|l| l.split(',').collect())
        .collect();
    let number = |row: &[&str], at: usize| row[at].parse::<u64>().unwrap();

    std::fs::write(d.join("everything.sql"), EVERYTHING).unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/queries");
    let examples = ["working-set", "returning-pages", "sharing"]
        .map(|name| examples.join(name).with_extension("sql"));
    let everything = d.join("everything.sql");
    let mut queries = vec![everything.as_path()];
    queries.extend(examples.iter().map(|path| path.as_path()));
    let [all, working_set, returning, sharing]: [serde_json::Value; 4] =
        query(d, &queries).try_into().unwrap();

    let all = all.as_array().unwrap();
    assert_eq!(all.len(), rows.len());
    for (found, (line, row)) in all.iter().zip(csv.lines().skip(1).zip(&rows)) {
        assert_eq!(found[0], line);
        assert_eq!(
            found[1],
            number(row, 9),
            "the leader's thread is the process"
        );
        assert_eq!(found[2], 0);
    }

    let mut tenths: BTreeMap<u64, (BTreeSet<u64>, u64)> = BTreeMap::new();
    let mut times: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut pages: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for row in &rows {
        let (time, page, process) = (number(row, 1), number(row, 2), number(row, 9));
        let tenth = tenths.entry(time / 100_000_000).or_default();
        tenth.0.insert(page);
        tenth.1 += 1;
        times.entry(page).or_default().push(time);
        pages.entry(page).or_default().insert(process);
    }
    let expected: Vec<_> = tenths
        .iter()
        .map(|(tenth, (pages, references))| serde_json::json!([tenth, pages.len(), references]))
        .collect();
    assert_eq!(working_set, serde_json::Value::from(expected));

    let mut most: Vec<_> = times.iter().map(|(page, t)| (t.len() - 1, page)).collect();
    most.sort_by_key(|&(n, page)| (std::cmp::Reverse(n), page));
    for (found, (n, page)) in returning.as_array().unwrap().iter().zip(&most) {
        let t = &times[page];
        let mean = (t[t.len() - 1] - t[0]) as f64 / *n as f64;
        assert_eq!((&found[0], &found[1]), (&(**page).into(), &(*n).into()));
        assert!((found[2].as_f64().unwrap() - mean).abs() < 1e-3 * mean);
    }
    assert_eq!(returning.as_array().unwrap().len(), 10);

    let sharing = sharing.as_array().unwrap();
    assert_eq!(sharing.len(), processes as usize);
    for row in sharing {
        let process = row[0].as_u64().unwrap();
        let its: Vec<_> = pages
            .values()
            .filter(|users| users.contains(&process))
            .collect();
        assert_eq!(
            row[1], "parent",
            "children have the name of who forked them"
        );
        assert_eq!(row[2], its.len());
        assert_eq!(row[3], its.iter().filter(|users| users.len() > 1).count());
    }
    directory
}

#[test]
fn duckdb_reads_all_rows_and_the_example_queries_are_right() {
    check(3, 40_000, false);
}

/// More partitions than files may be open, more rows than may be in memory.
#[test]
fn many_processes() {
    let directory = check(100, 300_000, true);
    let parts = |process: u32| {
        let partition = format!("out.parquet/references/window=0/process={process}");
        directory.path().join(partition).read_dir().unwrap().count()
    };
    assert!((10..110).any(|process| parts(process) > 1));
}
