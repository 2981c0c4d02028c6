//! Traces that a kernel wrote, and what they must give.
//!
//! Each `fixtures/vN/NAME.vmt.zst` is a small trace of format version N, and `NAME.json`
//! beside it has two parts. `bytes` is what the file holds as such, counted here by a
//! walk through the packets that shares no code with the reader: it never changes.
//! `results` is what postproc makes of it. If a result changes on purpose,
//!
//! ```text
//! KVMTRACE_ACCEPT=1 cargo test -p postproc --test it fixtures::each_gives
//! ```
//!
//! writes the new ones; `git diff` shows what changed. `make fixtures` makes the traces
//! of the present version anew, by a kernel, and their expectations with them. The files
//! of an older version stay: a reader of later versions is held against them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::{ACCEPT, postproc};
use serde_json::{Map, Value, json};

/// What the file is called in its own directory, so that no path is in any output.
const NAME: &str = "t.vmt";

/// Memories that are simulated, in pages.
const SIZES: [u64; 3] = [100, 250, 1000];
const POLICIES: [&str; 4] = ["lru", "opt", "clock", "fifo"];

struct Fixture {
    name: String,
    trace: PathBuf,
    expected: PathBuf,
}

/// All fixtures of all versions, in order.
fn fixtures() -> Vec<Fixture> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut list = Vec::new();
    for version in fs::read_dir(root).expect("fixtures") {
        let version = version.expect("entry").path();
        if !version.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&version).expect("a version's fixtures") {
            let trace = entry.expect("entry").path();
            let file = trace.file_name().and_then(|n| n.to_str()).expect("name");
            let Some(stem) = file.strip_suffix(".vmt.zst") else {
                continue;
            };
            let version = version.file_name().and_then(|n| n.to_str()).expect("name");
            list.push(Fixture {
                name: format!("{version}/{stem}"),
                expected: trace.with_file_name(format!("{stem}.json")),
                trace: trace.clone(),
            });
        }
    }
    list.sort_by(|a, b| a.name.cmp(&b.name));
    list
}

impl Fixture {
    fn bytes(&self) -> Vec<u8> {
        let packed = fs::read(&self.trace).expect("fixture");
        zstd::decode_all(&packed[..]).expect("zstd")
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// A stretch of bytes by its length and CRC32C.
fn sum(bytes: &[u8]) -> Value {
    json!({"bytes": bytes.len(), "crc32c": format!("{:08x}", crc32c::crc32c(bytes))})
}

/// What a trace of version 1 holds, by the layout in include/uapi/linux/vmtrace.h. Not
/// the reader's code, and for whole traces only.
fn walk(bytes: &[u8]) -> Value {
    /// vmtrace_header, vmtrace_packet, vmtrace_ref, vmtrace_event.
    const HEADER: usize = 4096;
    const PACKET: usize = 112;
    const REF: usize = 32;
    /// vmtrace_header.features: an u64 more in each record.
    const VTIME: u64 = 1 << 1;
    const CONT: u64 = 0x200;
    const KINDS: [&str; 5] = ["none", "ref", "event", "end", "window"];

    let (version, features) = (u32_at(bytes, 8), u64_at(bytes, 48));
    let vtime = if features & VTIME != 0 { 8 } else { 0 };
    let mut packets: BTreeMap<&str, u64> = BTreeMap::new();
    let mut records: BTreeMap<&str, u64> = BTreeMap::new();
    let mut ends: BTreeMap<String, u64> = BTreeMap::new();
    let mut events: BTreeMap<String, u64> = BTreeMap::new();
    let (mut continued, mut kinds) = (0, [0u64; 4]);
    let mut at = HEADER;
    while at < bytes.len() {
        let head = &bytes[at..at + PACKET];
        let kind = u32_at(head, 24) as usize;
        let (count, size) = (u32_at(head, 96) as usize, u32_at(head, 100) as usize);
        let content = &bytes[at + PACKET..at + PACKET + size];
        *packets.entry(KINDS[kind]).or_default() += 1;
        *records.entry(KINDS[kind]).or_default() += count as u64;
        match KINDS[kind] {
            "ref" => {
                assert_eq!(size, count * (REF + vtime), "content of references");
                for record in content.chunks_exact(REF + vtime) {
                    let page = u64_at(record, 0);
                    continued += u64::from(page & CONT != 0);
                    kinds[(page & 3) as usize] += 1;
                    *ends.entry(format!("{:02}", page >> 5 & 15)).or_default() += 1;
                }
            }
            "event" => {
                let (mut place, mut seen) = (0, 0);
                while place < size {
                    let head = u32_at(content, place);
                    let (number, length) = (head & 0xffff, (head >> 16) as usize);
                    *events.entry(format!("{number:02}")).or_default() += 1;
                    (place, seen) = (place + length, seen + 1);
                }
                assert_eq!(seen, count, "records of events");
            }
            _ => {}
        }
        at += PACKET + size;
    }
    json!({
        "version": version,
        "features": features,
        "file": sum(bytes),
        "packets": packets,
        "records": records,
        "renewals": continued,
        "access_kinds": kinds,
        "ends_by_reason": ends,
        "events_by_type": events,
    })
}

/// The objects that a command prints one after the other.
fn objects(output: &Output) -> Vec<Value> {
    serde_json::Deserializer::from_slice(&output.stdout)
        .into_iter()
        .map(|object| object.unwrap_or_else(|e| panic!("no JSON ({e}): {output:?}")))
        .collect()
}

/// The fields of an object that are named, if it has them.
fn some(object: &Value, names: &[&str]) -> Value {
    let fields = names
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), object.get(name)?.clone())));
    Value::Object(fields.collect::<Map<_, _>>())
}

/// Exit code, and what each rule found, if it found something.
fn checked(directory: &Path, more: &[&str]) -> Value {
    let output = postproc(&[&["check", NAME, "--json"], more].concat(), directory);
    let found: Vec<_> = objects(&output)
        .iter()
        .map(|object| {
            let mut found = Map::new();
            for rule in object["rules"].as_array().expect("rules") {
                let counts = some(rule, &["errors", "warnings", "notes"]);
                let any = counts
                    .as_object()
                    .is_some_and(|c| c.values().any(|v| *v != 0));
                if any {
                    found.insert(rule["id"].as_str().expect("id").to_owned(), counts);
                }
            }
            let mut counts = some(object, &["window", "references", "events", "packets"]);
            counts["rules"] = object["rules"].as_array().map(Vec::len).into();
            counts["found"] = Value::Object(found);
            counts
        })
        .collect();
    json!({"exit": output.status.code(), "checked": found})
}

/// Exit code, lines and checksum of what a command prints.
fn printed(directory: &Path, args: &[&str]) -> Value {
    let output = postproc(args, directory);
    let mut result = sum(&output.stdout);
    result["lines"] = output.stdout.iter().filter(|b| **b == b'\n').count().into();
    result["exit"] = output.status.code().into();
    result
}

/// Misses by policy and size.
fn misses(directory: &Path, more: &[&str]) -> Value {
    let sizes = SIZES.map(|s| s.to_string()).join(",");
    let policies = POLICIES.join(",");
    let args = ["simulate", NAME, "--json", "--allow-loss"];
    let which = ["--policy", &policies, "--size", &sizes];
    let output = postproc(&[&args[..], &which, more].concat(), directory);
    let Some(simulated) = objects(&output).pop() else {
        return json!({"exit": output.status.code()});
    };
    let mut result = json!({
        "exit": output.status.code(),
        "references": simulated["references"],
        "cold": simulated["cold"],
    });
    for row in simulated["sizes"].as_array().expect("sizes") {
        let policy = row["policy"].as_str().expect("policy");
        let size = row["size_pages"].as_u64().expect("size");
        result[policy][format!("{size:05}")] = row["misses"].clone();
    }
    result
}

/// What postproc makes of a trace.
fn results(trace: &[u8]) -> Value {
    let directory = tempfile::tempdir().expect("tempdir");
    let directory = directory.path();
    fs::write(directory.join(NAME), trace).expect("write");

    let output = postproc(&["info", NAME, "--json"], directory);
    let info = objects(&output).pop().expect("info");
    let header = [
        "evms_size",
        "first_segment",
        "policy",
        "scope",
        "nr_cpus",
        "features",
        "classes",
        "windows",
        "vtime_skip",
        "release",
    ];
    let figures = ["complete", "packets", "references", "events", "event_types"];
    let mut shown = some(&info, &figures);
    shown["exit"] = output.status.code().into();
    shown["header"] = some(&info["header"], &header);
    shown["windows"] = info["windows"].as_array().map(Vec::len).into();
    shown["damage"] = info["damage"].as_array().map(Vec::len).into();

    let output = postproc(
        &["report", NAME, "-o", "report", "--allow-loss", "--json"],
        directory,
    );
    let summary = fs::read(directory.join("report/summary.json")).expect("summary");
    let summary: Value = serde_json::from_slice(&summary).expect("JSON");
    let mut reported = some(
        &summary,
        &[
            "references",
            "events",
            "processes",
            "distinct_pages",
            "kinds",
        ],
    );
    reported["exit"] = output.status.code().into();
    reported["page"] = directory.join("report/report.html").exists().into();

    let export = |format| {
        let args = ["export", NAME, "--allow-loss", "--format", format];
        printed(directory, &[&args[..], &["-o", "-"]].concat())
    };
    let mut all = json!({
        "info": shown,
        "check": checked(directory, &["--frames"]),
        "report": reported,
        "simulate": misses(directory, &[]),
        "simulate_io": misses(directory, &["--io"]),
        "events": printed(directory, &["events", NAME]),
        "maps": printed(directory, &["maps", NAME]),
        "export": {
            "txt": export("txt"),
            "csv": export("csv"),
            "din": export("din"),
        },
    });
    if info["windows"].as_array().is_some_and(|w| !w.is_empty()) {
        all["check_per_window"] = checked(directory, &["--per-window"]);
    }
    all
}

/// An object's fields in a row, each by its path.
fn flat(value: &Value, path: &str, into: &mut BTreeMap<String, String>) {
    let mut below = |name: String, value: &Value| {
        let path = if path.is_empty() {
            name
        } else {
            format!("{path}.{name}")
        };
        flat(value, &path, into);
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, v)| below(name.clone(), v)),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .for_each(|(i, v)| below(i.to_string(), v)),
        _ => {
            into.insert(path.to_owned(), value.to_string());
        }
    }
}

/// A line for each field that differs.
fn difference(expected: &Value, got: &Value) -> Vec<String> {
    let (mut old, mut new) = (BTreeMap::new(), BTreeMap::new());
    flat(expected, "", &mut old);
    flat(got, "", &mut new);
    let paths: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let show = |value: Option<&String>| value.map_or("nothing", String::as_str).to_owned();
    paths
        .into_iter()
        .filter(|path| old.get(*path) != new.get(*path))
        .map(|path| {
            let (old, new) = (show(old.get(path)), show(new.get(path)));
            format!("    {path}: expected {old}, got {new}")
        })
        .collect()
}

#[test]
fn each_gives_what_it_must() {
    let accept = std::env::var_os(ACCEPT).is_some_and(|v| !v.is_empty());
    let mut failed = Vec::new();
    for fixture in fixtures() {
        let trace = fixture.bytes();
        let got = json!({"bytes": walk(&trace), "results": results(&trace)});
        let expected: Value = match fs::read(&fixture.expected) {
            Ok(text) => serde_json::from_slice(&text).expect("JSON"),
            Err(_) => Value::Null,
        };
        let mut lines = Vec::new();
        // A fixture is new once. From then on nobody accepts other bytes.
        if expected.is_null() && !accept {
            lines.push("  there is no expectation of it yet".to_owned());
        } else if !expected.is_null() {
            lines.extend(difference(&expected["bytes"], &got["bytes"]));
            if !lines.is_empty() {
                lines.insert(0, "  the trace itself, which must not change:".to_owned());
            }
        }
        let bytes_good = lines.is_empty();
        // The reader's count of what never changes is that of the walk.
        let events = &got["bytes"]["records"]["event"];
        if *events != got["results"]["info"]["events"] {
            lines.push(format!(
                "  {events} events are in the file, postproc info differs"
            ));
        }
        let changed = difference(&expected["results"], &got["results"]);
        if accept && bytes_good {
            if !changed.is_empty() {
                let text = serde_json::to_string_pretty(&got).expect("JSON") + "\n";
                fs::write(&fixture.expected, text).expect("write");
                println!("{}: {} values written", fixture.name, changed.len());
            }
        } else if !changed.is_empty() {
            lines.push("  what postproc makes of it:".to_owned());
            lines.extend(changed);
        }
        if !lines.is_empty() {
            failed.push(format!("{}\n{}", fixture.name, lines.join("\n")));
        }
    }
    assert!(
        failed.is_empty(),
        "{}\n\nIf the results have changed on purpose, this writes them:\n  \
         {ACCEPT}=1 cargo test -p postproc --test it fixtures::each_gives",
        failed.join("\n")
    );
}

#[test]
fn what_they_show_is_there() {
    let mut all: BTreeMap<String, Value> = BTreeMap::new();
    for fixture in fixtures().into_iter().filter(|f| f.name.starts_with("v1/")) {
        let text = fs::read(&fixture.expected).expect("an expectation");
        let packed = fs::metadata(&fixture.trace).expect("fixture").len();
        assert!(packed <= 200 << 10, "{}: {packed} bytes", fixture.name);
        let expected = serde_json::from_slice(&text).expect("JSON");
        all.insert(fixture.name["v1/".len()..].to_owned(), expected);
    }
    let figure = |name: &str, pointer: &str| -> u64 {
        let trace = all.get(name).unwrap_or_else(|| panic!("no fixture {name}"));
        trace
            .pointer(pointer)
            .and_then(Value::as_u64)
            .unwrap_or_else(|| panic!("{name} has no {pointer}"))
    };
    let events = |name: &str, types: &[u32]| {
        types
            .iter()
            .map(|t| figure(name, &format!("/bytes/events_by_type/{t:02}")))
            .min()
    };
    // A FIFO of one process.
    assert!(figure("fifo", "/bytes/ends_by_reason/00") > 1000);
    assert_eq!(figure("fifo", "/bytes/renewals"), 0);
    // COW, MM_DUP, FORK, EXEC, EXIT.
    assert!(events("fork-exec", &[6, 7, 16, 17, 18]) > Some(0));
    // Renewals of two CPUs; second chances, whose access is not known.
    assert!(figure("two-cpus", "/bytes/renewals") > 100);
    assert!(figure("clock", "/bytes/access_kinds/3") > 100);
    assert_eq!(figure("windows", "/results/info/windows"), 3);
    assert!(figure("virtual-time", "/bytes/features") & 2 != 0);
    // Frames that KSM exchanges.
    assert!(events("frames", &[66]) > Some(0));
    assert!(
        figure("file-io", "/results/simulate_io/references")
            > figure("file-io", "/results/simulate/references")
    );
    assert!(figure("early", "/results/report/processes") > 3);
    // A trace that has lost records is not good.
    assert_eq!(figure("loss", "/results/check/exit"), 1);
    for (name, expected) in &all {
        let exit = &expected["results"]["check"]["exit"];
        assert_eq!(*exit, i32::from(name == "loss"), "{name}");
    }
}

/// The test would be worth nothing if a trace that is changed gave the same.
#[test]
fn a_bit_that_is_changed_is_seen() {
    for fixture in fixtures() {
        let mut trace = fixture.bytes();
        let before = walk(&trace);
        // In a record of the first packet.
        let bit = 4096 + 112 + 20;
        trace[bit] ^= 1;
        let lines = difference(&before, &walk(&trace));
        assert!(
            lines.iter().any(|l| l.contains("file.crc32c")),
            "{}: {lines:?}",
            fixture.name
        );
        let directory = tempfile::tempdir().expect("tempdir");
        fs::write(directory.path().join(NAME), &trace).expect("write");
        let output = postproc(&["check", NAME], directory.path());
        assert_eq!(
            output.status.code(),
            Some(1),
            "{}: {output:?}",
            fixture.name
        );
    }
}

/// The report has the errors that were measured with traces of the same policy of the set.
#[test]
fn a_report_has_the_errors_of_traces_like_it() {
    use postproc::sim::measured::{self, How};

    for (name, how) in [("v1/fifo", How::Plain), ("v1/clock", How::Clock)] {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
        let all = fixtures();
        let fixture = all.iter().find(|f| f.name == name).expect(name);
        fs::write(directory.path().join(NAME), fixture.bytes()).expect("trace");
        let args = ["report", NAME, "-o", "r", "--policy", "clock,lru"];
        let run = postproc(&args, directory.path());
        assert!(run.status.success(), "{run:?}");
        let data = fs::read(directory.path().join("r/fault-curve.json")).expect("figures");
        let data: Value = serde_json::from_slice(&data).expect("JSON");
        let lines = data["policies"].as_array().expect("lines");
        let line = |policy: &str| lines.iter().find(|l| l["policy"] == policy).expect("line");
        let error = measured::error("clock", how, 4.0);
        assert_eq!(line("clock")["measured_error"], json!(error), "{name}");
        assert!(line("lru")["measured_error"].is_null());
    }
}
