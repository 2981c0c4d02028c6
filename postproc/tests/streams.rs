//! Streams of single processes, of a trace made to order.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::postproc;
use postproc::testing::TraceBuilder;
use postproc::units::Prot;

const PAGE: u64 = 4096;

/// Writes a trace; gives the file of each reference's process, in order.
///
/// 10 has a thread and two children, which share its pages until they copy them. One of
/// these ends, and its id is used again.
fn write_trace(path: &Path) -> Vec<&'static str> {
    let mut trace = TraceBuilder::new(2, 8);
    let mut whose = Vec::new();
    let mut random = 0x1234_5678u64;
    trace.program();
    trace.task(0, 11, 10, 1, "thread");
    let at = 0x10_0000;
    trace.map_anon(0, 10, 1, at, at + 16 * PAGE, Prot(3));
    let mut touch = |trace: &mut TraceBuilder, tasks: &[(u32, u32, &'static str)]| {
        for _ in 0..200 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let (tid, mm, name) = tasks[(random >> 33) as usize % tasks.len()];
            let before = trace.admissions();
            trace.touch(0, tid, mm, at + (random >> 40) % 16 * PAGE);
            // What is in the set already is no reference.
            whose.extend((trace.admissions() > before).then_some(name));
        }
    };
    touch(&mut trace, &[(10, 1, "10"), (11, 1, "10")]);
    trace.fork(0, 10, 1, 20, 2);
    trace.fork(0, 11, 1, 30, 3);
    let all = [(10, 1, "10"), (11, 1, "10"), (20, 2, "20"), (30, 3, "30")];
    touch(&mut trace, &all);
    for page in 0..4 {
        trace.cow(0, 20, 2, at + page * PAGE);
    }
    touch(&mut trace, &all);
    trace.exit(0, 20, 2);
    trace.mm_end(0, 20, 2);
    trace.fork(0, 30, 3, 20, 4);
    touch(&mut trace, &[(10, 1, "10"), (20, 4, "20-2"), (30, 3, "30")]);
    std::fs::write(path, trace.finish()).expect("room for a trace");
    whose
}

fn rows(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).expect("a csv file");
    let rows = text.lines().map(|l| l.split(',').map(String::from));
    rows.map(Iterator::collect).collect()
}

fn done(directory: &Path, args: &[&str]) {
    let output = postproc(args, directory);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
}

#[test]
fn each_process_has_its_references() {
    let directory = tempfile::tempdir().expect("a directory");
    let d = directory.path();
    let whose = write_trace(&d.join("t"));
    let export = [
        "export",
        "t",
        "--keep-freed",
        "--format",
        "csv",
        "-o",
        "all.csv",
    ];
    done(d, &export);
    done(d, &[&export[..], &["--per-process"]].concat());
    let merged = rows(&d.join("all.csv"));
    let column = merged[0].iter().position(|c| c == "page").expect("a page");
    assert_eq!(merged.len() - 1, whose.len());

    let mut expected: BTreeMap<&str, Vec<Vec<String>>> = BTreeMap::new();
    let mut numbers: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for (row, name) in merged[1..].iter().zip(&whose) {
        let known = numbers.keys().filter(|(other, _)| other == name).count();
        let key = (*name, row[column].clone());
        let number = *numbers.entry(key).or_insert(known + 1);
        let mut row = row.clone();
        row[column] = number.to_string();
        expected.entry(name).or_default().push(row);
    }
    for (name, expected) in &expected {
        let own = rows(&d.join(format!("all.{name}.csv")));
        assert_eq!(own[0], merged[0]);
        assert_eq!(&own[1..], expected, "{name}");
    }
    let files = std::fs::read_dir(d).expect("readable");
    assert_eq!(files.count(), 2 + expected.len(), "the trace, all, each");

    // One alone, and what follows from it.
    done(d, &[&export[..6], &["one.csv", "--process", "30"]].concat());
    assert_eq!(rows(&d.join("one.csv")), rows(&d.join("all.30.csv")));
    // Both that had the id, one after the other.
    let of_20 = [&export[..6], &["both.csv", "--process", "20"]].concat();
    done(d, &of_20);
    let both = rows(&d.join("both.csv")).len() - 1;
    assert_eq!(both, expected["20"].len() + expected["20-2"].len());

    done(
        d,
        &[
            "export",
            "t",
            "--format",
            "txt",
            "-o",
            "all.txt",
            "--per-process",
        ],
    );
    let simulate = |args: &[&str]| {
        let sizes = ["--policy", "lru,opt,arc", "--size", "3,9", "--json"];
        let output = postproc(&[&["simulate"], args, &sizes[..]].concat(), d);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
        (json["sizes"].clone(), json["references"].clone())
    };
    let alone = simulate(&["t", "--process", "10"]);
    assert_eq!(alone, simulate(&["--from", "txt", "all.10.txt"]));
    assert_ne!(alone, simulate(&["t"]));
    for (args, output) in [
        (vec!["t", "--process", "10"], "alone.csv"),
        (vec!["--from", "txt", "all.10.txt"], "txt.csv"),
    ] {
        let how = ["--method", "fifo", "--size", "4", "-o", output];
        done(d, &[&["reduce"], &args[..], &how[..]].concat());
    }
    let pages = |name: &str| -> Vec<String> {
        let rows = rows(&d.join(name));
        let head = rows.iter().position(|r| r.contains(&"page".into()));
        let head = head.expect("names of columns");
        let column = rows[head].iter().position(|c| c == "page");
        let column = column.expect("a page");
        rows[head + 1..].iter().map(|r| r[column].clone()).collect()
    };
    assert!(pages("alone.csv").len() > 100);
    assert_eq!(pages("alone.csv"), pages("txt.csv"));
}

#[test]
fn what_has_no_stream_is_said() {
    let directory = tempfile::tempdir().expect("a directory");
    let d = directory.path();
    write_trace(&d.join("t"));
    for (args, why) in [
        (
            &["txt", "--process", "99"][..],
            "process 99 has no reference in the trace",
        ),
        (
            &["parquet", "--process", "10"],
            "already keeps processes apart",
        ),
        (&["ctf", "--per-process"], "already keeps processes apart"),
        (
            &["txt", "--process", "10", "--per-process"],
            "cannot be used",
        ),
    ] {
        let output = postproc(&[&["export", "t", "-o", "o", "--format"], args].concat(), d);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(why), "{args:?}: {said}");
    }
    let to_stdout = ["export", "t", "--format", "txt", "-o", "-", "--per-process"];
    assert_eq!(postproc(&to_stdout, d).status.code(), Some(2));
    assert_eq!(std::fs::read_dir(d).expect("readable").count(), 1);
}
