//! What `postproc export` writes, read back by readers that are written apart
//! from it, and compared with the csv of the same trace.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output};

use crate::support;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use postproc::testing::TraceBuilder;
use postproc::units::{Access, Prot};
use serde_json::Value;

/// A line of the csv.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    seq: u64,
    time_ns: u64,
    page: u64,
    access: String,
    dirtied: bool,
    tid: u64,
    cpu: u64,
    mm: u64,
    address: u64,
    pfn: u64,
}

impl Row {
    fn writes(&self) -> bool {
        self.access == "write" || self.dirtied
    }
}

struct Fixture {
    directory: tempfile::TempDir,
    rows: Vec<Row>,
}

impl Fixture {
    /// Without a trace.
    fn empty() -> Self {
        Fixture {
            directory: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
            rows: Vec::new(),
        }
    }

    fn new() -> Self {
        Fixture::of(false)
    }

    /// Two processes on two CPUs that share a file and copy pages on write; all
    /// kinds of access.
    fn of(virtually: bool) -> Self {
        let mut fixture = Fixture::empty();
        let mut b = TraceBuilder::new(2, 16);
        b.header_mut().buffer_size = 2048;
        if virtually {
            b.virtual_time(2_000);
        }
        b.program();
        b.map_anon(0, 10, 1, 0x7f00_0000_0000, 0x7f00_0010_0000, Prot(7));
        b.map_file(0, 10, 1, 0x20_0000, 0x28_0000, Prot(5), true, 77, 0);
        b.fork(0, 10, 1, 20, 2);
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for i in 0..6_000u64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (cpu, tid, mm) = if i / 50 % 3 == 0 {
                (1, 20, 2)
            } else {
                (0, 10, 1)
            };
            let page = (random >> 20) % 96;
            let (address, access) = match random % 4 {
                0 => (0x20_0000 + page * 4096, Access::Exec),
                1 => (0x7f00_0000_0000 + page * 4096, Access::Write),
                _ => (0x7f00_0000_0000 + page * 4096, Access::Read),
            };
            b.touch_as(cpu, tid, mm, address, access);
            if i == 2_000 {
                b.cow(1, 20, 2, 0x7f00_0000_3000);
            }
        }
        std::fs::write(fixture.path().join("t.vmtrace"), b.finish()).unwrap();
        let csv = fixture.export_text("csv", &["--keep-freed"]);
        fixture.rows = rows(&csv);
        assert!(fixture.rows.len() > 4_000);
        fixture
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn run(&self, args: &[&str]) -> String {
        let output = support::postproc(args, self.path());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn export(&self, format: &str, options: &[&str]) -> Vec<u8> {
        let name = format!("out.{format}");
        let args = ["export", "t.vmtrace", "--format", format, "-o", &name];
        self.run(&[&args, options].concat());
        std::fs::read(self.path().join(name)).unwrap()
    }

    fn export_text(&self, format: &str, options: &[&str]) -> String {
        String::from_utf8(self.export(format, options)).unwrap()
    }
}

fn hexadecimal(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap()
}

fn rows(csv: &str) -> Vec<Row> {
    let mut lines = csv.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let text = |name| fields[columns.iter().position(|&c| c == name).unwrap()];
            let number = |name| text(name).parse().unwrap();
            Row {
                seq: number("seq"),
                time_ns: number("time_ns"),
                page: number("page"),
                access: text("access").into(),
                dirtied: text("dirtied") == "1",
                tid: number("tid"),
                cpu: number("cpu"),
                mm: number("mm"),
                address: hexadecimal(&text("address")[2..]),
                pfn: number("pfn"),
            }
        })
        .collect()
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().unwrap())
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().unwrap())
}

#[test]
fn lcs_has_a_header_of_statistics_and_the_records_of_oracle_general() {
    let f = Fixture::new();
    let oracle = f.export("oracleGeneral", &[]);
    let v1 = f.export("lcs", &[]);
    let v2 = f.export("lcs-v2", &[]);
    let writes = f.rows.iter().filter(|r| r.writes()).count() as u64;
    let pages = f.rows.iter().map(|r| r.page).max().unwrap();
    for (version, b) in [(1, &v1), (2, &v2)] {
        assert_eq!(u64_at(b, 0), 0x1234_5678_9abc_def0);
        assert_eq!(u64_at(b, 8), version);
        assert_eq!(u64_at(b, 24), f.rows.len() as u64);
        assert_eq!(u64_at(b, 32), pages);
        assert_eq!(u64_at(b, 72) + u64_at(b, 80), f.rows.len() as u64);
        assert_eq!(u64_at(b, 80), writes);
        assert_eq!(u64_at(b, 8184), 0x1234_5678_9abc_def0);
    }
    assert_eq!(v1.len(), 8192 + 24 * f.rows.len());
    assert_eq!(v2.len(), 8192 + 28 * f.rows.len());
    for (i, row) in f.rows.iter().enumerate() {
        let expected = &oracle[24 * i..][..24];
        let (one, two) = (&v1[8192 + 24 * i..][..24], &v2[8192 + 28 * i..][..28]);
        assert_eq!(one[..16], expected[..16]);
        assert_eq!(two[..16], expected[..16]);
        let next = match u64_at(expected, 16) {
            u64::MAX => i64::MAX as u64,
            next => next,
        };
        assert_eq!((u64_at(one, 16), u64_at(two, 20)), (next, next));
        assert_eq!(two[16], if row.writes() { 13 } else { 12 });
        assert_eq!(u64::from(u32_at(two, 16) >> 8), row.tid);
    }
}

#[test]
fn din_labels_and_addresses() {
    let f = Fixture::new();
    let text = f.export_text("din", &[]);
    assert_eq!(text.lines().count(), f.rows.len());
    let mut labels = [0; 3];
    for (line, row) in text.lines().zip(&f.rows) {
        let (label, address) = line.split_once(' ').unwrap();
        assert_eq!(hexadecimal(address), row.page * 4096);
        let label: usize = label.parse().unwrap();
        labels[label] += 1;
        let expected = match row.access.as_str() {
            _ if row.writes() => 1,
            "exec" => 2,
            _ => 0,
        };
        assert_eq!(label, expected, "{row:?}");
    }
    assert!(labels.iter().all(|&n| n > 100), "{labels:?}");
}

#[test]
fn ramulator_takes_physical_addresses() {
    let f = Fixture::new();
    let text = f.export_text("ramulator", &[]);
    assert_eq!(text.lines().count(), f.rows.len());
    for (line, row) in text.lines().zip(&f.rows) {
        let (address, kind) = line.split_once(' ').unwrap();
        assert_eq!(
            hexadecimal(address.strip_prefix("0x").unwrap()),
            row.pfn * 4096
        );
        assert_eq!(kind, if row.writes() { "W" } else { "R" });
    }
}

/// Reads a key trace by the rules of cachebench's KVReplayGenerator: columns by
/// name, keys filled with zeros from behind up to `key_size`.
#[test]
fn cachebench_keys_are_pages() {
    let f = Fixture::new();
    let text = f.export_text("cachebench", &["--keep-freed"]);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("key,op,size,op_count,key_size"));
    let mut pages_of_keys = BTreeMap::new();
    let mut count = 0;
    for (line, row) in lines.zip(&f.rows) {
        let fields: Vec<&str> = line.split(',').collect();
        let size: usize = fields[4].parse().unwrap();
        let mut key = fields[0].to_string();
        while key.len() < size.min(256) {
            key.push('0');
        }
        assert_eq!(fields[1..4], ["GET", "4096", "1"]);
        // A key for every page, a page for every key.
        assert_eq!(*pages_of_keys.entry(key).or_insert(row.page), row.page);
        count += 1;
    }
    assert_eq!(count, f.rows.len());
    let pages: BTreeSet<_> = f.rows.iter().map(|r| r.page).collect();
    assert_eq!(pages_of_keys.len(), pages.len());
}

/// The same cells, from the csv.
#[test]
fn heatmap_counts_every_reference() {
    let f = Fixture::new();
    let text = f.export_text("heatmap", &["--interval", "50us", "--block", "4"]);
    let same = f.export_text("heatmap", &["--interval", "0.05ms", "--block", "16KiB"]);
    assert_eq!(same, text);
    assert!(text.starts_with("# time_ns address count mm\n"));
    let cells: Vec<Vec<u64>> = text
        .lines()
        .skip(1)
        .map(|line| line.split(' ').map(|n| n.parse().unwrap()).collect())
        .collect();
    let mut expected = BTreeMap::new();
    for r in &f.rows {
        let key = (r.time_ns / 50_000, r.mm, r.address / 16384);
        *expected.entry(key).or_insert(0) += 1;
    }
    let expected: Vec<Vec<u64>> = expected
        .into_iter()
        .map(|((slice, mm, block), count)| vec![slice * 50_000, block * 16384, count, mm])
        .collect();
    assert!(expected.len() > 500);
    assert_eq!(cells, expected);
}

#[test]
fn moca_has_chunks_of_tasks() {
    let f = Fixture::new();
    let text = f.export_text("moca-csv", &["--interval", "50us"]);
    let mut lines = text.lines();
    assert_eq!(
        lines.next(),
        Some("@Virt, @Phy, Nreads, Nwrites, CPUMask, Start, End, TaskId")
    );
    // By chunk, task and page: reads, writes, CPUs.
    let mut expected: BTreeMap<(u64, u64, u64), (u64, u64, u64)> = BTreeMap::new();
    let mut clock_at_end = BTreeMap::new();
    for (i, r) in f.rows.iter().enumerate() {
        let slice = r.time_ns / 50_000;
        let cell = expected.entry((slice, r.tid, r.address)).or_default();
        cell.0 += u64::from(!r.writes());
        cell.1 += u64::from(r.writes());
        cell.2 |= 1 << r.cpu;
        clock_at_end.insert(slice, i as u64 + 1);
    }
    let slices: Vec<u64> = clock_at_end.keys().copied().collect();
    let mut found = BTreeMap::new();
    for line in lines {
        let fields: Vec<&str> = line.split(", ").collect();
        let number = |at: usize| fields[at].parse::<u64>().unwrap();
        let slice = *slices
            .iter()
            .find(|s| clock_at_end[s] == number(6))
            .unwrap();
        let before = slices.iter().filter(|&&s| s < slice).max();
        assert_eq!(number(5), before.map_or(0, |s| clock_at_end[s]));
        assert_eq!(fields[4].len(), 2, "a digit a CPU");
        let (address, cpus) = (
            hexadecimal(fields[0]),
            u64::from_str_radix(fields[4], 2).unwrap(),
        );
        // What the synthetic trace has for frames.
        assert_eq!(hexadecimal(fields[1]), address & 0xffff_ffff << 12);
        let cell = (number(2), number(3), cpus);
        assert_eq!(found.insert((slice, number(7), address), cell), None);
    }
    assert_eq!(found, expected);
}

/// damo reads the record and says what is in it.
#[test]
fn damo_reads_what_was_accessed_when() {
    let f = Fixture::new();
    f.export("damon", &["--interval", "100us", "--sampling", "5us"]);
    let python = support::python("damo", &["damo==3.4.3"]);
    let damo = |args: &[&str]| {
        let mut command = Command::new(python.with_file_name("damo"));
        command
            .args(args)
            .args(["-i", "out.damon"])
            .current_dir(f.path());
        support::run(&mut command, "run damo")
    };
    let records: serde_json::Value =
        serde_json::from_str(&damo(&["report", "access", "--json", "--raw_number"])).unwrap();
    let number = |v: &serde_json::Value| -> u64 {
        let text = v.as_str().map_or_else(|| v.to_string(), str::to_string);
        text.trim_end_matches(|c: char| !c.is_ascii_digit())
            .replace(',', "")
            .parse()
            .unwrap()
    };
    // By interval, address space and page: sampling intervals with a reference.
    let mut samples: BTreeMap<(u64, u64, u64), BTreeSet<u64>> = BTreeMap::new();
    for r in &f.rows {
        let key = (r.time_ns / 100_000, r.mm, r.address / 4096);
        samples.entry(key).or_default().insert(r.time_ns / 5_000);
    }
    let mut found = BTreeMap::new();
    let mut idle = 0;
    for record in records.as_array().unwrap() {
        let mm = number(&record["target_id"]);
        for snapshot in record["snapshots"].as_array().unwrap() {
            let slice = number(&snapshot["start_time"]) / 100_000;
            assert_eq!(number(&snapshot["end_time"]), (slice + 1) * 100_000);
            for region in snapshot["regions"].as_array().unwrap() {
                let accesses = number(&region["nr_accesses"]["samples"]) as usize;
                let pages = number(&region["start"]) / 4096..number(&region["end"]) / 4096;
                for page in pages {
                    if accesses > 0 {
                        found.insert((slice, mm, page), accesses);
                    } else {
                        idle += 1;
                        assert!(!samples.contains_key(&(slice, mm, page)));
                    }
                }
            }
        }
    }
    let expected: BTreeMap<_, _> = samples.into_iter().map(|(k, s)| (k, s.len())).collect();
    assert_eq!(found, expected);
    assert!(found.values().any(|&n| n > 1) && idle > 100);
    let heat = damo(&["report", "heatmap", "--output", "raw", "--resol", "4", "8"]);
    assert!(
        heat.lines()
            .filter(|l| l.split_whitespace().count() == 3)
            .count()
            >= 16,
        "{heat}"
    );
}

/// The same record of damo with each long snapshot split into one for each interval, and how
/// many were split.
fn with_short_snapshots(record: &[u8]) -> (Vec<u8>, usize) {
    let mut text = String::new();
    ZlibDecoder::new(record).read_to_string(&mut text).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    let number = |v: &serde_json::Value| -> u64 {
        let text = v.as_str().map_or_else(|| v.to_string(), str::to_string);
        text.parse().unwrap()
    };
    let mut split = 0;
    for target in record.as_array_mut().unwrap() {
        let interval = 1_000 * number(&target["intervals"]["aggr_us"]);
        let mut short = Vec::new();
        for snapshot in target["snapshots"].as_array().unwrap() {
            let from = number(&snapshot["start_time"]);
            let intervals = (number(&snapshot["end_time"]) - from) / interval;
            split += usize::from(intervals > 1);
            for i in 0..intervals {
                let mut one = snapshot.clone();
                one["start_time"] = (from + i * interval).into();
                one["end_time"] = (from + (i + 1) * interval).into();
                for region in one["regions"].as_array_mut().unwrap() {
                    let age = &mut region["age"]["aggr_intervals"];
                    *age = (number(age) - (intervals - 1 - i)).into();
                }
                short.push(one);
            }
        }
        target["snapshots"] = short.into();
    }
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(record.to_string().as_bytes()).unwrap();
    (packed.finish().unwrap(), split)
}

/// A long idle time is one snapshot. damo draws the same heatmap of it as of one snapshot for
/// each interval; its working set sizes are of snapshots.
#[test]
fn damo_draws_idle_times_of_any_length() {
    let f = Fixture::empty();
    let mut b = TraceBuilder::new(1, 4);
    b.program();
    b.map_anon(0, 10, 1, 0x10_0000, 0x20_0000, Prot(3));
    for round in 0..12u64 {
        for i in 0..40 {
            b.touch(0, 10, 1, 0x10_0000 + (i * i + 7 * round) % 200 * 4096);
        }
        // Of 100 us: shorter and longer than what may be written one by one.
        b.leap(150_000 << round.min(7));
    }
    std::fs::write(f.path().join("t.vmtrace"), b.finish()).unwrap();
    let merged = f.export("damon", &["--interval", "100us", "--sampling", "5us"]);
    let (short, split) = with_short_snapshots(&merged);
    assert!(split >= 4, "{split} snapshots are longer than an interval");
    std::fs::write(f.path().join("short.damon"), short).unwrap();
    let python = support::python("damo", &["damo==3.4.3"]);
    let damo = |input: &str, args: &[&str]| {
        let mut command = Command::new(python.with_file_name("damo"));
        let command = command.args(args).args(["-i", input]);
        support::run(command.current_dir(f.path()), "run damo")
    };
    let both = |args: &[&str]| (damo("out.damon", args), damo("short.damon", args));
    for resolution in [["10", "20"], ["97", "31"]] {
        let heatmap = ["report", "heatmap", "--output", "raw", "--resol"];
        let (one, other) = both(&[heatmap.as_slice(), &resolution].concat());
        assert!(one == other, "{resolution:?}\n{one}\n{other}");
        let hot = |line: &&str| line.split_whitespace().nth(2).is_some_and(|h| h != "0.0");
        assert!(one.lines().filter(hot).count() > 10, "{one}");
        assert!(one.lines().any(|line| line.ends_with("\t0.0")), "{one}");
    }
    let (one, other) = both(&["report", "wss"]);
    assert_ne!(one, other);
}

/// babeltrace2 reads all of it and has nothing to complain of.
#[test]
fn babeltrace_reads_references_and_events() {
    let f = Fixture::new();
    let name = "out.ctf";
    f.run(&["export", "t.vmtrace", "--format", "ctf", "-o", name]);
    let mut babeltrace = Command::new("babeltrace2");
    babeltrace
        .args(["--clock-cycles", "--fields", "all", name])
        .current_dir(f.path());
    let output = babeltrace
        .output()
        .expect("babeltrace2 runs (Debian: apt-get install babeltrace2)");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    // Numbers are followed by what an enumeration calls them.
    let field = |line: &str, name: &str| {
        let at = line
            .find(&format!(" {name} = "))
            .unwrap_or_else(|| panic!("{name}: {line}"));
        let value = &line[at + name.len() + 4..];
        let end = value.find([',', ' ']).unwrap_or(value.len());
        let value = &value[..end];
        match value.strip_prefix("0x") {
            Some(digits) => hexadecimal(&digits.to_lowercase()),
            None => value.parse().unwrap(),
        }
    };
    let mut found = Vec::new();
    let mut events = BTreeMap::new();
    for line in text.lines() {
        let time: u64 = line[1..line.find(']').unwrap()]
            .trim_start_matches('0')
            .parse()
            .unwrap();
        let name = line.split(") ").nth(1).unwrap().split(':').next().unwrap();
        if name == "ref" {
            let access = ["read", "write", "exec"]
                .into_iter()
                .find(|a| line.contains(&format!("access = ( \"{a}\"")));
            found.push(Row {
                seq: field(line, "seq"),
                time_ns: time - 1_000,
                page: field(line, "page"),
                access: access.unwrap().into(),
                dirtied: field(line, "dirtied") == 1,
                tid: field(line, "tid"),
                cpu: field(line, "cpu_id"),
                mm: field(line, "mm"),
                address: field(line, "address"),
                pfn: field(line, "pfn"),
            });
        } else {
            *events.entry(name.to_string()).or_insert(0) += 1;
            if name == "fork" {
                assert_eq!((field(line, "child_tid"), field(line, "child_mm")), (20, 2));
            }
            if line.contains("file-77.so") {
                assert_eq!((field(line, "ino"), field(line, "prot")), (77, 5));
                assert!(line.contains("kind = ( \"file\""), "{line}");
            }
        }
    }
    assert_eq!(found, f.rows);
    let expected = [
        ("cow", 1),
        ("fork", 1),
        ("freed", 1),
        ("map", 3),
        ("mm_dup", 1),
        ("task", 1),
    ];
    assert_eq!(events, expected.map(|(n, c)| (n.to_string(), c)).into());
}

/// The fragments of CTF 2's metadata: a JSON text sequence by RFC 7464.
fn fragments(metadata: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(metadata).unwrap();
    let mut texts = text.split('\u{1e}');
    assert_eq!(texts.next(), Some(""), "a record separator comes first");
    let parse = |text: &str| {
        assert!(text.ends_with('\n'), "{text}");
        serde_json::from_str(text).unwrap()
    };
    texts.map(parse).collect()
}

/// Reads a field by its class; numbers go to `to` by their names, and by their roles.
fn read_field(class: &Value, name: &str, b: &mut &[u8], to: &mut BTreeMap<String, Value>) {
    let value = match class["type"].as_str().unwrap() {
        "structure" => {
            for member in class["member-classes"].as_array().unwrap() {
                let name = member["name"].as_str().unwrap();
                read_field(&member["field-class"], name, b, to);
            }
            return;
        }
        "null-terminated-string" => {
            let end = b.iter().position(|&c| c == 0).unwrap();
            let text = String::from_utf8(b[..end].to_vec()).unwrap();
            *b = &b[end + 1..];
            Value::from(text)
        }
        "static-length-blob" => {
            let (blob, rest) = b.split_at(class["length"].as_u64().unwrap() as usize);
            *b = rest;
            Value::from(blob)
        }
        kind @ ("fixed-length-unsigned-integer" | "fixed-length-signed-integer") => {
            assert_eq!(
                (&class["alignment"], &class["byte-order"]),
                (&8.into(), &"little-endian".into())
            );
            let (bytes, rest) = b.split_at(class["length"].as_u64().unwrap() as usize / 8);
            *b = rest;
            let mut all = [0; 8];
            all[..bytes.len()].copy_from_slice(bytes);
            let number = u64::from_le_bytes(all);
            match kind {
                "fixed-length-unsigned-integer" => Value::from(number),
                _ => Value::from(number as u32 as i32),
            }
        }
        other => panic!("a field class that no reader of this test knows: {other}"),
    };
    for role in class["roles"].as_array().into_iter().flatten() {
        to.insert(format!("role:{}", role.as_str().unwrap()), value.clone());
    }
    if let Some(mappings) = class["mappings"].as_object() {
        let label = mappings.iter().find(|(_, ranges)| {
            let ranges = ranges.as_array().unwrap();
            ranges.iter().any(|range| {
                let number = value.as_u64().unwrap();
                (range[0].as_u64().unwrap()..=range[1].as_u64().unwrap()).contains(&number)
            })
        });
        to.insert(
            format!("label:{name}"),
            Value::from(label.map(|l| l.0.as_str())),
        );
    }
    to.insert(name.to_string(), value);
}

/// All records of a directory of CTF 2, by nothing but its metadata: their names and fields, by
/// stream.
fn read_ctf2(directory: &Path) -> Vec<(String, BTreeMap<String, Value>)> {
    let metadata = fragments(&std::fs::read(directory.join("metadata")).unwrap());
    let of = |kind: &str| {
        metadata
            .iter()
            .filter(|f| f["type"] == kind)
            .collect::<Vec<_>>()
    };
    let (streams, events) = (of("data-stream-class"), of("event-record-class"));
    let packet_header = &of("trace-class")[0]["packet-header-field-class"];
    let mut files: Vec<_> = directory
        .read_dir()
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    files.retain(|path| path.file_name().unwrap() != "metadata");
    files.sort();
    let mut records = Vec::new();
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let mut packet = BTreeMap::new();
            let mut b = rest;
            read_field(packet_header, "", &mut b, &mut packet);
            assert_eq!(packet["role:packet-magic-number"], 0xc1fc_1fc1u32);
            assert_eq!(packet["role:metadata-stream-uuid"], metadata[0]["uuid"]);
            let id = packet["role:data-stream-class-id"].clone();
            let stream = streams.iter().find(|s| s["id"] == id).unwrap();
            read_field(
                &stream["packet-context-field-class"],
                "",
                &mut b,
                &mut packet,
            );
            let bytes_of = |role: &str| packet[role].as_u64().unwrap() as usize / 8;
            let total = bytes_of("role:packet-total-length");
            let head = rest.len() - b.len();
            b = &b[..bytes_of("role:packet-content-length") - head];
            let first = packet["role:default-clock-timestamp"].clone();
            let mut latest = first.clone();
            while !b.is_empty() {
                let mut fields = BTreeMap::from([("cpu".to_string(), packet["cpu_id"].clone())]);
                let header = &stream["event-record-header-field-class"];
                read_field(header, "", &mut b, &mut fields);
                let common = &stream["event-record-common-context-field-class"];
                if !common.is_null() {
                    read_field(common, "", &mut b, &mut fields);
                }
                let number = fields["role:event-record-class-id"].clone();
                let is = |e: &&&Value| e["data-stream-class-id"] == id && e["id"] == number;
                let class = events.iter().find(is).unwrap();
                read_field(&class["payload-field-class"], "", &mut b, &mut fields);
                latest = fields["role:default-clock-timestamp"].clone();
                records.push((class["name"].as_str().unwrap().to_string(), fields));
            }
            assert_eq!(packet["role:packet-end-default-clock-timestamp"], latest);
            rest = &rest[total..];
        }
    }
    records
}

/// The metadata alone says what is in the data streams.
#[test]
fn ctf2_describes_itself() {
    for virtually in [false, true] {
        let f = Fixture::of(virtually);
        f.run(&["export", "t.vmtrace", "--format", "ctf2", "-o", "out.ctf2"]);
        let directory = f.path().join("out.ctf2");
        let metadata = fragments(&std::fs::read(directory.join("metadata")).unwrap());
        assert_eq!(
            (&metadata[0]["type"], &metadata[0]["version"]),
            (&"preamble".into(), &2.into())
        );
        let kinds: Vec<&str> = metadata
            .iter()
            .map(|f| f["type"].as_str().unwrap())
            .collect();
        assert_eq!(kinds.iter().filter(|k| **k == "trace-class").count(), 1);
        // What a fragment names is described before it.
        for (at, fragment) in metadata.iter().enumerate() {
            let before = |kind: &str, id: &Value| {
                let mut earlier = metadata[..at].iter();
                assert!(
                    earlier.any(|f| f["type"] == kind && f["id"] == *id),
                    "{fragment}"
                );
            };
            match kinds[at] {
                "data-stream-class" => before("clock-class", &fragment["default-clock-class-id"]),
                "event-record-class" => {
                    before("data-stream-class", &fragment["data-stream-class-id"])
                }
                _ => {}
            }
        }
        let mut found = Vec::new();
        let mut events = BTreeMap::new();
        for (name, fields) in read_ctf2(&directory) {
            let number = |name: &str| fields[name].as_u64().unwrap();
            if name != "ref" {
                *events.entry(name).or_insert(0) += 1;
                continue;
            }
            assert_eq!(fields.contains_key("vtime"), virtually);
            found.push(Row {
                seq: number("seq"),
                time_ns: number("role:default-clock-timestamp") - 1_000,
                page: number("page"),
                access: fields["label:access"].as_str().unwrap().into(),
                dirtied: number("dirtied") == 1,
                tid: number("tid"),
                cpu: number("cpu"),
                mm: number("mm"),
                address: number("address"),
                pfn: number("pfn"),
            });
        }
        found.sort_by_key(|row| row.seq);
        assert_eq!(found, f.rows);
        let expected = [
            ("cow", 1),
            ("fork", 1),
            ("freed", 1),
            ("map", 3),
            ("mm_dup", 1),
            ("task", 1),
        ];
        assert_eq!(events, expected.map(|(n, c)| (n.to_string(), c)).into());
        // Nothing but the metadata differs from version 1.8.
        f.run(&["export", "t.vmtrace", "--format", "ctf", "-o", "out.ctf"]);
        for entry in directory.read_dir().unwrap() {
            let name = entry.unwrap().file_name();
            let both = ["out.ctf", "out.ctf2"].map(|d| std::fs::read(f.path().join(d).join(&name)));
            let [one, two] = both.map(Result::unwrap);
            assert_eq!(one == two, name != "metadata", "{name:?}");
        }
    }
}

/// babeltrace2 prints the same of both versions. Before 2.1, it cannot read version 2: then only
/// that it says so is tested. The one that BABELTRACE2 names can (scripts/babeltrace.sh).
#[test]
fn babeltrace_reads_ctf2() {
    let named = std::env::var_os("BABELTRACE2");
    let program = named.clone().unwrap_or("babeltrace2".into());
    let run = |arguments: &[&str], directory: &Path| {
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(directory);
        let output = command.output();
        output.unwrap_or_else(|e| panic!("{program:?} (Debian: apt-get install babeltrace2): {e}"))
    };
    let f = Fixture::of(true);
    for format in ["ctf", "ctf2"] {
        f.run(&["export", "t.vmtrace", "--format", format, "-o", format]);
    }
    let version = String::from_utf8(run(&["--version"], f.path()).stdout).unwrap();
    let number = version.split(' ').nth(1).unwrap();
    let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap());
    let is_able = (parts.next().unwrap(), parts.next().unwrap()) >= (2, 1);
    assert!(
        is_able || named.is_none(),
        "BABELTRACE2 names babeltrace2 {number}, which cannot read CTF 2: name 2.1 or later"
    );
    let print = |name| {
        run(
            &["--clock-cycles", "--fields", "all", "--names", "all", name],
            f.path(),
        )
    };
    let two = print("ctf2");
    let errors = String::from_utf8_lossy(&two.stderr);
    assert_eq!(
        two.status.success(),
        is_able,
        "babeltrace2 {number}: {errors}"
    );
    if !is_able {
        println!("babeltrace2 {number} cannot read CTF 2: 2.1 or later can");
        return;
    }
    let one = print("ctf");
    assert!(errors.is_empty(), "{errors}");
    assert!(one.status.success());
    let lines = |output: &Output| {
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        text.lines().map(str::to_string).collect::<Vec<_>>()
    };
    let (one, two) = (lines(&one), lines(&two));
    assert!(two.len() > f.rows.len());
    assert_eq!(one, two);
}

#[test]
fn babeltrace_reads_virtual_time() {
    let f = Fixture::of(true);
    let csv = f.export_text("csv", &["--keep-freed"]);
    let column = csv.lines().next().unwrap().split(',');
    let column = column.clone().position(|c| c == "vtime").unwrap();
    let told: Vec<&str> = csv
        .lines()
        .skip(1)
        .map(|l| l.split(',').nth(column).unwrap())
        .collect();
    f.run(&["export", "t.vmtrace", "--format", "ctf", "-o", "out.ctf"]);
    let mut babeltrace = Command::new("babeltrace2");
    babeltrace.arg("out.ctf").current_dir(f.path());
    let text = support::run(&mut babeltrace, "run babeltrace2 (Debian's package)");
    // A freed page has the number of the event that freed it, and no time of its own.
    let (references, events): (Vec<&str>, Vec<&str>) = text
        .lines()
        .filter(|line| !line.contains(" freed: "))
        .partition(|line| line.contains(" ref: "));
    let vtime = |line: &&str| {
        let value = line
            .split(" vtime = ")
            .nth(1)
            .unwrap_or_else(|| panic!("{line}"));
        value.split([',', ' ']).next().unwrap().to_string()
    };
    let found: Vec<String> = references.iter().map(vtime).collect();
    assert_eq!(found, told);
    let found: Vec<String> = events.iter().map(vtime).collect();
    let mut list = Command::new(env!("CARGO_BIN_EXE_postproc"));
    list.args(["events", "t.vmtrace", "--json"])
        .current_dir(f.path());
    let told: Vec<String> = support::run(&mut list, "run postproc")
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["vtime"].clone())
        .map(|ticks| ticks.as_u64().unwrap_or(u64::MAX).to_string())
        .collect();
    assert_eq!(found, told);
    assert!(found.iter().any(|ticks| ticks != "0"));
}

#[test]
fn a_directory_is_not_written_over() {
    let f = Fixture::new();
    std::fs::create_dir(f.path().join("full")).unwrap();
    std::fs::write(f.path().join("full/precious"), "x").unwrap();
    for output in ["full", "-", "full/precious"] {
        let args = ["export", "t.vmtrace", "--format", "ctf", "-o", output];
        let done = support::postproc(&args, f.path());
        assert_eq!(done.status.code(), Some(2), "{output}");
        assert!(!done.stderr.is_empty());
    }
    assert_eq!(std::fs::read_dir(f.path().join("full")).unwrap().count(), 1);
    assert_eq!(std::fs::read(f.path().join("full/precious")).unwrap(), b"x");
    // An empty one is.
    std::fs::create_dir(f.path().join("empty")).unwrap();
    f.run(&["export", "t.vmtrace", "--format", "ctf", "-o", "empty"]);
    assert!(f.path().join("empty/metadata").exists());
}

/// What babeltrace2 says is freed: sequence number, time and page; and the sequence numbers of
/// all unmap events.
fn freed_by_babeltrace(f: &Fixture, options: &[&str]) -> (Vec<(u64, u64, u64)>, BTreeSet<u64>) {
    let name = format!("freed{}.ctf", options.len());
    let args = ["export", "t.vmtrace", "--format", "ctf", "-o", &name];
    f.run(&[&args, options].concat());
    let mut babeltrace = Command::new("babeltrace2");
    babeltrace
        .args(["--clock-cycles", &name])
        .current_dir(f.path());
    let text = support::run(&mut babeltrace, "run babeltrace2 (Debian's package)");
    let number = |line: &str, name: &str| -> u64 {
        let value = line.split(&format!(" {name} = ")).nth(1);
        let value = value.unwrap_or_else(|| panic!("{name}: {line}"));
        value.split([',', ' ']).next().unwrap().parse().unwrap()
    };
    let (mut freed, mut unmaps) = (Vec::new(), BTreeSet::new());
    for line in text.lines() {
        if line.contains(" unmap: ") {
            unmaps.insert(number(line, "seq"));
        } else if line.contains(" freed: ") {
            let time = line[1..line.find(']').unwrap()].trim_start_matches('0');
            let time = time.parse::<u64>().unwrap() - 1_000;
            freed.push((number(line, "seq"), time, number(line, "page")));
            assert_eq!((number(line, "tgid"), number(line, "mm")), (10, 1));
        }
    }
    (freed, unmaps)
}

/// A page that is freed is deleted from the cache, has a line of its own in csv, and is an
/// event in CTF.
#[test]
fn freed_pages_are_deleted() {
    let f = Fixture::empty();
    let mut b = TraceBuilder::new(1, 8);
    b.program();
    for round in 0..3 {
        b.map_anon(0, 10, 1, 0x10_0000, 0x14_0000, Prot(3));
        for i in 0..60 {
            b.touch(0, 10, 1, 0x10_0000 + i * (round + 1) % 64 * 4096);
        }
        b.unmap(0, 10, 1, 0x10_0000, 0x14_0000);
    }
    std::fs::write(f.path().join("t.vmtrace"), b.finish()).unwrap();
    let csv = f.export_text("csv", &[]);
    let keys = f.export_text("cachebench", &[]);
    let freed: Vec<u64> = csv
        .lines()
        .filter(|line| line.contains(",free,"))
        .map(|line| line.split(',').nth(2).unwrap().parse().unwrap())
        .collect();
    let deleted: Vec<u64> = keys
        .lines()
        .filter(|line| line.contains(",DELETE,"))
        .map(|line| line.split(',').next().unwrap().parse().unwrap())
        .collect();
    assert!(freed.len() > 10, "{freed:?}");
    assert_eq!(freed, deleted);
    let (events, ends) = freed_by_babeltrace(&f, &[]);
    let with_times: Vec<(u64, u64)> = csv
        .lines()
        .filter(|line| line.contains(",free,"))
        .map(|line| line.split(',').collect::<Vec<_>>())
        .map(|fields| (fields[1].parse().unwrap(), fields[2].parse().unwrap()))
        .collect();
    let found: Vec<(u64, u64)> = events.iter().map(|e| (e.1, e.2)).collect();
    assert_eq!(found, with_times);
    assert_eq!(ends.len(), 3);
    assert!(events.iter().all(|(seq, ..)| ends.contains(seq)));
    let (kept, ends) = freed_by_babeltrace(&f, &["--keep-freed"]);
    assert_eq!((kept.len(), ends.len()), (0, 3));
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == columns));
    // No reference to a page follows its end.
    let mut gone = std::collections::BTreeSet::new();
    for line in csv.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let page: u64 = fields[2].parse().unwrap();
        match fields[3] {
            "free" => assert!(gone.insert(page), "{line}"),
            _ => assert!(!gone.contains(&page), "{line}"),
        }
    }
}
