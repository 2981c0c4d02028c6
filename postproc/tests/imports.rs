//! Traces from elsewhere give what kVMTrace's own give.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::support;
use crate::support::postproc;
use postproc::testing::TraceBuilder;
use postproc::units::{Access, Prot};
use serde_json::Value;

fn json(directory: &Path, args: &[&str]) -> Value {
    let output = postproc(args, directory);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Exit code and message of a command that must fail.
fn refusal(directory: &Path, args: &[&str]) -> String {
    let output = postproc(args, directory);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

fn trace() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut b = TraceBuilder::new(2, 8);
    b.program();
    b.map_anon(0, 10, 1, 0x100_0000, 0x110_0000, Prot(3));
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for i in 0..80_000u64 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let page = (random >> 8) % 60 + i / 500;
        let access = if random % 3 == 0 {
            Access::Write
        } else {
            Access::Read
        };
        b.touch_as(i as u32 & 1, 10, 1, 0x100_0000 + page % 256 * 4096, access);
    }
    std::fs::write(directory.path().join("t.vmtrace"), b.finish()).unwrap();
    directory
}

const SIMULATE: &[&str] = &[
    "simulate",
    "--json",
    "--policy",
    "all",
    "--size",
    "10,50,100",
    "--curve",
    "--points",
    "0",
];

#[test]
fn what_is_exported_simulates_the_same() {
    let directory = trace();
    let d = directory.path();
    let own = json(d, &[SIMULATE, &["t.vmtrace"]].concat());
    for (format, name) in [
        ("txt", "o.txt"),
        ("csv", "o.csv"),
        ("csv", "o.csv.zst"),
        ("oracleGeneral", "o.bin"),
        ("oracleGeneral", "o.zst"),
    ] {
        let made = postproc(&["export", "t.vmtrace", "--format", format, "-o", name], d);
        assert!(made.status.success());
        let foreign = json(d, &[SIMULATE, &["--from", format, name]].concat());
        assert_eq!(foreign["references"], own["references"]);
        assert_eq!(foreign["cold"], own["cold"]);
        for kind in ["sizes", "curve"] {
            let (a, b) = (
                own[kind].as_array().unwrap(),
                foreign[kind].as_array().unwrap(),
            );
            assert_eq!(a.len(), b.len());
            for (a, b) in a.iter().zip(b) {
                let keys = ["policy", "size_pages", "misses"];
                assert_eq!(keys.map(|k| &a[k]), keys.map(|k| &b[k]), "{format}");
                // The others know nothing of writes.
                let writes = if format == "csv" {
                    &a["write_backs"]
                } else {
                    &Value::from(0)
                };
                assert_eq!(&b["write_backs"], writes, "{format}: {b}");
            }
        }
    }
}

/// LRU by the definition.
fn lru_misses(pages: &[u64], size: usize) -> u64 {
    let mut memory: Vec<u64> = Vec::new();
    let mut misses = 0;
    for page in pages {
        match memory.iter().rposition(|p| p == page) {
            Some(at) => drop(memory.remove(at)),
            None => {
                misses += 1;
                if memory.len() == size {
                    memory.remove(0);
                }
            }
        }
        memory.push(*page);
    }
    misses
}

/// A real one, read by a reader of its own.
#[test]
fn lackey_of_valgrind() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let d = directory.path();
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args([
            "--tool=lackey",
            "--trace-mem=yes",
            "--log-file=l.log",
            "/bin/true",
        ])
        .current_dir(d);
    support::run(
        &mut valgrind,
        "run valgrind (Debian: apt-get install valgrind)",
    );
    let log = std::fs::read_to_string(d.join("l.log")).unwrap();
    for page_size in [4096u64, 16384] {
        let (mut pages, mut writes, mut split) = (Vec::new(), 0, 0);
        for line in log.lines().filter(|line| !line.starts_with("==")) {
            let (kind, access) = line.trim_start().split_once(' ').unwrap();
            let (address, size) = access.trim_start().split_once(',').unwrap();
            let address = u64::from_str_radix(address, 16).unwrap();
            let last = address + size.parse::<u64>().unwrap() - 1;
            pages.push(address / page_size);
            if last / page_size > address / page_size {
                pages.push(last / page_size);
                split += 1;
            }
            writes += u64::from(matches!(kind, "S" | "M"));
        }
        assert!(pages.len() > 100_000);
        let page_size_text = page_size.to_string();
        let from = ["--from", "lackey", "l.log", "--page-size", &page_size_text];
        let sizes = ["simulate", "--json", "--size", "2,5,12,30"];
        let found = json(d, &[&sizes[..], &from].concat());
        assert_eq!(found["references"], pages.len());
        assert_eq!(found["cold"], pages.iter().collect::<BTreeSet<_>>().len());
        assert_eq!(found["page_size"], page_size);
        for row in found["sizes"].as_array().unwrap() {
            let size = row["size_pages"].as_u64().unwrap() as usize;
            assert_eq!(row["misses"], lru_misses(&pages, size), "{size} pages");
        }
        let report = ["report", "--json", "-o", "report"];
        let report = json(d, &[&report[..], &from].concat());
        assert!(report["writes"].as_u64().unwrap() >= writes);
        assert!(report["writes"].as_u64().unwrap() <= writes + split);
    }
    let read = |name: &str| std::fs::read_to_string(d.join("report").join(name)).unwrap();
    assert!(read("summary.txt").contains("distinct pages"));
    assert!(read("fault-curve.svg").contains("Misses by size of memory"));
    assert!(!read("fault-curve.svg").contains("a set of N"));
}

#[test]
fn an_access_across_pages_references_both() {
    let directory = tempfile::tempdir().unwrap();
    let d = directory.path();
    let log = "==1== Lackey\nI  1000,4\n L 1ffe,4\n S 3000,8\n M 1fff,1\n\n==1== end\n";
    std::fs::write(d.join("l"), log).unwrap();
    let report = json(d, &["report", "--json", "--from", "lackey", "l", "-o", "r"]);
    // Pages 1, 1, 2, 3, 1.
    assert_eq!(report["references"], 5);
    assert_eq!(report["pages"], 3);
    assert_eq!(report["writes"], 2);
    let found = json(
        d,
        &["simulate", "--json", "--from", "lackey", "l", "--size", "2"],
    );
    assert_eq!(found["sizes"][0]["misses"], 4);
}

#[test]
fn columns_are_found_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let d = directory.path();
    let counts = |text: &str| {
        std::fs::write(d.join("t.csv"), text).unwrap();
        let r = json(
            d,
            &["report", "--json", "--from", "csv", "t.csv", "-o", "r"],
        );
        ["references", "pages", "writes"].map(|key| r[key].as_u64().unwrap())
    };
    assert_eq!(counts("op,Key\nGET,a\nSET,b\nget,a\r\n"), [3, 2, 1]);
    assert_eq!(counts("key,op\n7,R\n07,R\n7,W\n"), [3, 2, 1]);
    assert_eq!(
        counts("# a comment\n\naddress\n0x1000\n0x1fff\n8192\n"),
        [3, 2, 0]
    );
    assert_eq!(
        counts("address,page,dirtied\n0x1,5,1\n0x9999,5,0\n"),
        [2, 1, 1]
    );
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let d = directory.path();
    let say = |format: &str, bytes: &[u8]| {
        std::fs::write(d.join("f"), bytes).unwrap();
        refusal(d, &["simulate", "--from", format, "f", "--size", "1"])
    };
    for (format, bytes, expected) in [
        (
            "txt",
            &b"1\n2\nthree\n"[..],
            "f: line 3: expected a decimal number, found \"three\"",
        ),
        ("txt", b"99999999999999999999\n", "line 1"),
        (
            "lackey",
            b"I  1000,4\nhello\n",
            "line 2: expected an access, found \"hello\"",
        ),
        ("lackey", b" L 1000,0\n", "line 1"),
        (
            "csv",
            b"time,size\n1,2\n",
            "line 1: expected names of columns",
        ),
        ("csv", b"op,key\nGET,a\nGET\n", "line 3: too few columns"),
        ("csv", b"", "no line names the columns"),
        (
            "oracleGeneral",
            &[1; 47],
            "record 2: the file ends inside it",
        ),
        ("txt", &[b'1'; 70_000], "longer than 65536 bytes"),
        ("txt", &[0x28, 0xb5, 0x2f, 0xfd, 9, 9, 9], "cannot read"),
    ] {
        let message = say(format, bytes);
        assert!(message.contains(expected), "{format}: {message}");
    }
    assert!(refusal(d, &["simulate", "--from", "txt", ".", "--size", "1"]).contains("directory"));
    assert!(refusal(d, &["simulate", "--from", "txt", "no", "--size", "1"]).contains("no: cannot"));
    for args in [
        ["--from", "magic", "f", "--size", "1"],
        ["--page-size", "4096", "f", "--size", "1"],
    ] {
        refusal(d, &[&["simulate"], &args[..]].concat());
    }
    refusal(
        d,
        &[
            "simulate",
            "--from",
            "txt",
            "f",
            "--size",
            "1",
            "--page-size",
            "100",
        ],
    );
    for own in ["--allow-loss", "--trust"] {
        let args = ["simulate", "--from", "txt", "f", "--size", "1", own];
        refusal(d, &args);
    }
}
