//! DuckDB from PyPI reads what `postproc export --format parquet` writes: all of
//! it, and the example queries of docs/queries.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Read};
use std::path::Path;
use std::process::Command;

use crate::support;
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
    FROM read_parquet('references/*.parquet')
    ORDER BY seq";

/// Of each row group: rows, processes by its statistics, and whether these are sorted.
const GROUPS: &str = "
    SELECT file_name, row_group_id, row_group_num_rows, stats_min_value::INT, stats_max_value::INT
    FROM parquet_metadata('references/*.parquet')
    WHERE path_in_schema = 'process'
    ORDER BY file_name, row_group_id";

/// All rows of freed pages, and what else must hold of them: no reference follows, each page is
/// freed once, and columns that both tables have are of one type.
const FREED: &str = "
    SELECT time_ns, page, process, event
    FROM read_parquet('freed/*.parquet')
    ORDER BY seq, page";

const FREED_WRONGLY: &str = "
    SELECT 'referenced', count(*)
    FROM read_parquet('references/*.parquet') AS r
    JOIN read_parquet('freed/*.parquet') AS f USING (page)
    WHERE r.seq > f.seq
    UNION ALL
    SELECT 'twice', count(*) - count(DISTINCT page)
    FROM read_parquet('freed/*.parquet')
    UNION ALL
    SELECT 'type', count(*)
    FROM (DESCRIBE FROM read_parquet('freed/*.parquet')) AS f
    JOIN (DESCRIBE FROM read_parquet('references/*.parquet')) AS r USING (column_name)
    WHERE f.column_type <> r.column_type";

/// What a reader that goes by names of directories, or by types, must agree with.
const COLUMNS: &str = "
    SELECT name, duckdb_type, count(*)
    FROM parquet_schema('references/*.parquet')
    WHERE duckdb_type IS NOT NULL
    GROUP BY ALL
    ORDER BY name";

fn check(processes: u32, references: u64, virtually: bool) -> tempfile::TempDir {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let d = directory.path();
    write_trace(&d.join("t.vmtrace"), processes, references, virtually);
    postproc(
        d,
        &[
            "export",
            "t.vmtrace",
            "--keep-freed",
            "--format",
            "csv",
            "-o",
            "out.csv",
        ],
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

/// Frees are a table of their own: with the pages and times that the csv has, and without a
/// change of the table of references.
#[test]
fn freed_pages_are_a_table() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let d = directory.path();
    let mut b = TraceBuilder::new(2, 8);
    b.program();
    b.map_anon(0, 10, 1, 0x20_0000, 0x30_0000, Prot(3));
    let pages = 150;
    // More than one row group of freed pages.
    for round in 0..500u64 {
        let end = 0x10_0000 + pages * 4096;
        if round % 2 == 0 {
            b.map_anon(0, 10, 1, 0x10_0000, end, Prot(3));
        }
        for page in 0..pages {
            b.touch(0, 10, 1, 0x10_0000 + page * 4096);
        }
        b.touch(0, 10, 1, 0x20_0000 + round % 256 * 4096);
        match round % 2 {
            0 => b.advise(0, 10, 1, 0x10_0000, end, 4),
            _ => b.unmap(0, 10, 1, 0x10_0000, end),
        }
    }
    b.fork(0, 10, 1, 11, 2);
    b.mm_end(0, 10, 1);
    b.touch(1, 11, 2, 0x20_0000);
    b.mm_end(1, 11, 2);
    std::fs::write(d.join("t.vmtrace"), b.finish()).unwrap();
    let export = |format: &str, output: &str, options: &[&str]| {
        let args = ["export", "t.vmtrace", "--format", format, "-o", output];
        postproc(d, &[&args, options].concat());
    };
    export("csv", "out.csv", &[]);
    export("parquet", "out.parquet", &[]);
    let csv = std::fs::read_to_string(d.join("out.csv")).unwrap();
    let mut expected: Vec<(u64, u64)> = Vec::new();
    for line in csv.lines().filter(|line| line.contains(",free,")) {
        let fields: Vec<&str> = line.split(',').collect();
        expected.push((fields[1].parse().unwrap(), fields[2].parse().unwrap()));
    }
    expected.sort_unstable();
    assert_eq!(expected.len(), 500 * 150 + 256);
    let references = csv.lines().count() - 1 - expected.len();

    let counted = "SELECT count(*) FROM read_parquet('references/*.parquet')";
    std::fs::write(d.join("freed.sql"), FREED).unwrap();
    std::fs::write(d.join("wrongly.sql"), FREED_WRONGLY).unwrap();
    std::fs::write(d.join("count.sql"), counted).unwrap();
    let lifetimes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/queries/lifetimes.sql");
    let queries = [
        &d.join("freed.sql"),
        &d.join("wrongly.sql"),
        &d.join("count.sql"),
        &lifetimes,
    ];
    let queries = queries.map(|path| path.as_path());
    let [freed, wrongly, count, lifetimes]: [serde_json::Value; 4] =
        query(d, &queries).try_into().unwrap();
    let freed = freed.as_array().unwrap();
    let found: Vec<(u64, u64)> = freed
        .iter()
        .map(|row| (row[0].as_u64().unwrap(), row[1].as_u64().unwrap()))
        .collect();
    assert_eq!(found, expected);
    for (i, row) in freed.iter().enumerate() {
        // The child's end frees what the fork has shared.
        let (process, event) = match i {
            75_000.. => (11, "mm_end"),
            _ if i / 150 % 2 == 0 => (10, "advise"),
            _ => (10, "unmap"),
        };
        assert_eq!((&row[2], &row[3]), (&process.into(), &event.into()), "{i}");
    }
    let right = serde_json::json!([["referenced", 0], ["twice", 0], ["type", 0]]);
    assert_eq!(wrongly, right);
    assert_eq!(count, serde_json::json!([[references]]));
    let lifetimes = lifetimes.as_array().unwrap();
    let found: Vec<_> = lifetimes.iter().map(|row| (&row[0], &row[1])).collect();
    let pages = |n: u64| serde_json::Value::from(n);
    let events = ["advise", "unmap", "mm_end"].map(serde_json::Value::from);
    let counts = [37_500, 37_500, 256].map(pages);
    assert_eq!(found, events.iter().zip(&counts).collect::<Vec<_>>());

    // Who wants nothing of it has no such table.
    export("parquet", "kept.parquet", &["--keep-freed"]);
    assert!(!d.join("kept.parquet/freed").exists());
    let part = "references/part-0.parquet";
    let same = |of: &str| std::fs::read(d.join(of).join(part)).unwrap();
    assert!(same("kept.parquet") == same("out.parquet"));
}

#[test]
fn duckdb_reads_all_rows_and_the_example_queries_are_right() {
    check(3, 40_000, false);
}

/// Many processes that take turns: files and row groups are as many as the rows make
/// necessary, and a row group has its share of the processes.
#[test]
fn many_processes() {
    let directory = check(100, 300_000, true);
    let d = directory.path();
    let mut files = 0;
    for entry in d.join("out.parquet/references").read_dir().unwrap() {
        assert!(entry.unwrap().file_type().unwrap().is_file());
        files += 1;
    }
    assert_eq!(files, 1);
    std::fs::write(d.join("groups.sql"), GROUPS).unwrap();
    std::fs::write(d.join("columns.sql"), COLUMNS).unwrap();
    let (groups, columns) = (d.join("groups.sql"), d.join("columns.sql"));
    let [groups, columns]: [serde_json::Value; 2] =
        query(d, &[&groups, &columns]).try_into().unwrap();
    let groups = groups.as_array().unwrap();
    let rows: u64 = groups.iter().map(|g| g[2].as_u64().unwrap()).sum();
    assert!(rows > 250_000);
    // Of 2^16 rows each, but the last of each file.
    assert_eq!(groups.len() as u64, rows.div_ceil(1 << 16));
    // In each run one or two of four have a process's rows.
    for process in 10..110 {
        let has = |g: &&serde_json::Value| {
            let (from, to) = (g[3].as_u64().unwrap(), g[4].as_u64().unwrap());
            (from..=to).contains(&process)
        };
        let groups = groups.iter().filter(has).count();
        assert!(groups <= 4, "process {process} is in {groups} row groups");
    }
    let columns = columns.as_array().unwrap();
    for name in ["process", "window", "page", "tid"] {
        let column = columns.iter().find(|c| c[0] == name).unwrap();
        assert_eq!(column[1], "UINTEGER", "{name}");
        assert_eq!(column[2], 1, "{name}");
    }
}
