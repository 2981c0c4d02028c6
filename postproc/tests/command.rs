//! The command as a user runs it.

use std::path::Path;
use std::process::{Command, Output};

use crate::support::postproc;
use postproc::sim;
use postproc::testing::TraceBuilder;
use postproc::units::Prot;
use rust_mm_trace::uapi;

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A directory with a good, a bad, a lossy and a cut trace.
fn traces() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: Vec<u8>| std::fs::write(directory.path().join(name), bytes);
    let good = TraceBuilder::sample_of_many_packets().finish();
    write("cut.vmtrace", good[..good.len() - 700].to_vec()).unwrap();
    write("good.vmtrace", good).unwrap();
    let mut bad = TraceBuilder::sample();
    bad.unmap(0, 10, 1, 0x1000, 0x2000);
    bad.touch(0, 10, 1, 0x1000);
    write("bad.vmtrace", bad.finish()).unwrap();
    let mut lossy = TraceBuilder::sample();
    lossy.lose_reference(1);
    write("lossy.vmtrace", lossy.finish()).unwrap();
    write("empty.vmtrace", Vec::new()).unwrap();
    directory
}

#[test]
fn exit_codes() {
    let traces = traces();
    let code = |args: &[&str]| postproc(args, traces.path()).status.code().unwrap();
    for (file, expected) in [
        ("good", 0),
        ("bad", 1),
        ("lossy", 1),
        ("cut", 1),
        ("empty", 2),
        ("missing", 2),
    ] {
        assert_eq!(
            code(&["check", &format!("{file}.vmtrace")]),
            expected,
            "check {file}"
        );
        assert_eq!(
            code(&["check", "--json", &format!("{file}.vmtrace")]),
            expected
        );
        assert_eq!(
            code(&["report", &format!("{file}.vmtrace"), "-o", "report"]),
            expected,
            "report {file}"
        );
    }
    assert_eq!(code(&["check", "--allow-loss", "lossy.vmtrace"]), 0);
    // What is made of a trace is made of one that breaks no rule.
    for (trust, expected) in [(None, 1), (Some("--trust"), 0)] {
        let with = |args: &[&'static str]| args.iter().copied().chain(trust).collect::<Vec<_>>();
        for args in [
            &["export", "bad.vmtrace", "--format", "txt", "-o", "out.txt"][..],
            &["simulate", "bad.vmtrace", "--size", "4"],
        ] {
            assert_eq!(code(&with(args)), expected, "{args:?} {trust:?}");
        }
    }
    for (file, expected) in [("good", 0), ("cut", 1), ("lossy", 1), ("empty", 2)] {
        let file = format!("{file}.vmtrace");
        assert_eq!(
            code(&["simulate", &file, "--size", "4"]),
            expected,
            "simulate {file}"
        );
        assert_eq!(
            code(&["export", &file, "--format", "txt", "-o", "out.txt"]),
            expected,
            "export {file}"
        );
    }
    assert_eq!(code(&["info", "good.vmtrace"]), 0);
    assert_eq!(code(&["info", "cut.vmtrace"]), 1);
    assert_eq!(code(&["info", "empty.vmtrace"]), 2);
    assert_eq!(code(&["--help"]), 0);
    assert_eq!(code(&["simulate", "good.vmtrace"]), 2);
    assert_eq!(code(&["simulate", "good.vmtrace", "--size", "0"]), 2);
    assert_eq!(
        code(&[
            "simulate",
            "good.vmtrace",
            "--policy",
            "magic",
            "--size",
            "1"
        ]),
        2
    );
    assert_eq!(
        code(&[
            "export",
            "good.vmtrace",
            "--format",
            "txt",
            "-o",
            "no/such/dir"
        ]),
        2
    );
    assert_eq!(
        code(&[
            "export",
            "good.vmtrace",
            "--format",
            "txt",
            "-o",
            "-",
            "--json"
        ]),
        2
    );
}

#[test]
fn policies_side_by_side() {
    let traces = traces();
    let run = |args: &[&str]| postproc(args, traces.path());
    let all = run(&["simulate", "good.vmtrace", "--policy", "all", "--size", "5"]);
    assert!(all.status.success());
    let table = text(&all.stdout);
    for policy in sim::registry() {
        let row = |line: &&str| line.split_whitespace().any(|word| word == policy.id);
        assert_eq!(table.lines().filter(row).count(), 1, "{}", policy.id);
    }
    let help = text(&run(&["simulate", "--help"]).stdout);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for policy in sim::registry() {
        let line = format!("- {}: {}", policy.id, policy.about);
        assert!(help.contains(&line), "{line}");
    }
    let none = run(&["simulate", "good.vmtrace", "--policy", "fifo", "--curve"]);
    assert_eq!(none.status.code(), Some(2));
    let message = text(&none.stderr);
    assert!(message.contains("fifo cannot compute a curve"), "{message}");
    assert!(message.contains("--size"), "{message}");
}

/// A result without a proven band comes with the error that was measured, whatever the policy.
#[test]
fn policies_without_a_band_have_measured_errors() {
    let traces = traces();
    let run = |args: &[&str]| text(&postproc(args, traces.path()).stdout);
    for policy in sim::registry() {
        let id = policy.id;
        let shown = run(&["simulate", "good.vmtrace", "--size", "16", "--policy", id]);
        // It was added after the measurement.
        let measured = match id {
            "s4-fifo" => format!("{id}: no bound is proven, and the error was not measured."),
            _ => format!("{id}: no bound is proven. With four measured programs"),
        };
        let bounded = ["lru", "opt"].contains(&id);
        assert_eq!(shown.contains(&measured), !bounded, "{shown}");
        let hint = "With --fill, they were off by";
        // SIEVE replaces a new page before any other if nobody refers to it again, and a trace
        // lacks the reference that follows at once.
        if ["clock", "lirs", "sieve"].contains(&id) {
            assert!(shown.contains(hint), "{shown}");
        }
        let filled = [
            "simulate",
            "good.vmtrace",
            "--size",
            "16",
            "--fill",
            "--policy",
            id,
        ];
        let filled = run(&filled);
        assert!(!filled.contains(hint), "{filled}");
        run(&[
            "report",
            "good.vmtrace",
            "--policy",
            &format!("lru,{id}"),
            "-o",
            "report",
        ]);
        let page = traces.path().join("report/report.html");
        let page = std::fs::read_to_string(page).unwrap();
        assert_eq!(
            page.contains(&format!("mean and worst: {id} ")),
            !bounded && id != "s4-fifo",
            "{id}"
        );
    }
}

#[test]
fn json_everywhere() {
    let traces = traces();
    let run = |args: &[&str]| json(&postproc(args, traces.path()));
    let info = run(&["info", "--json", "good.vmtrace"]);
    assert_eq!(info["complete"], true);
    assert_eq!(info["header"]["evms_size"], 4);
    let check = run(&["check", "--json", "bad.vmtrace"]);
    assert_eq!(check["good"], false);
    let rules = check["rules"].as_array().unwrap();
    let mapped = rules.iter().find(|r| r["id"] == "mapped").unwrap();
    assert_eq!(mapped["errors"], 1);
    assert!(
        mapped["examples"][0]["related"]["text"]
            .as_str()
            .unwrap()
            .contains("unmap")
    );
    let simulate = run(&[
        "simulate",
        "--json",
        "good.vmtrace",
        "--size",
        "5,8",
        "--curve",
        "--points",
        "0",
    ]);
    assert_eq!(simulate["sizes"][1]["misses"], 8);
    assert_eq!(simulate["curve"].as_array().unwrap().len(), 8);
    assert_eq!(
        simulate["curve"][4]["misses"],
        simulate["sizes"][0]["misses"]
    );
    let both = run(&[
        "simulate",
        "--json",
        "good.vmtrace",
        "--policy",
        "opt,lru",
        "--size",
        "5,8",
        "--curve",
    ]);
    assert_eq!(both["policies"], serde_json::json!(["lru", "opt"]));
    let rows = both["sizes"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert_eq!(
            row["hits"].as_u64().unwrap() + row["misses"].as_u64().unwrap(),
            both["references"].as_u64().unwrap()
        );
        assert_eq!(
            row["cold"].as_u64().unwrap() + row["capacity"].as_u64().unwrap(),
            row["misses"].as_u64().unwrap()
        );
    }
    assert_eq!(rows[0], simulate["sizes"][0]);
    assert_eq!(both["curve"][0]["policy"], "lru");
    let export = run(&[
        "export",
        "--json",
        "good.vmtrace",
        "--format",
        "txt",
        "-o",
        "o.txt",
    ]);
    assert_eq!(export["references"], info["reference_records"]);
    let report = run(&["report", "--json", "good.vmtrace", "-o", "r"]);
    assert_eq!(report["violations"], 0);
    let saved = std::fs::read(traces.path().join("r/summary.json")).unwrap();
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&saved).unwrap(),
        report
    );
}

#[test]
fn exports_agree_with_each_other() {
    let traces = traces();
    let export = |format: &str, name: &str| {
        let args = ["export", "good.vmtrace", "--format", format, "-o", name];
        let output = postproc(&args, traces.path());
        assert!(output.status.success(), "{}", text(&output.stderr));
        std::fs::read(traces.path().join(name)).unwrap()
    };
    let txt = text(&export("txt", "o.txt"));
    let pages: Vec<u64> = txt.lines().map(|l| l.parse().unwrap()).collect();
    let packed = export("oracleGeneral", "o.zst");
    let records = zstd::decode_all(&packed[..]).unwrap();
    assert_eq!(records, export("oracleGeneral", "o.bin"));
    assert_eq!(records.len(), pages.len() * 24);
    for (i, record) in records.chunks(24).enumerate() {
        let page = u64::from_le_bytes(record[4..12].try_into().unwrap());
        let size = u32::from_le_bytes(record[12..16].try_into().unwrap());
        let next = i64::from_le_bytes(record[16..24].try_into().unwrap());
        assert_eq!((page, size), (pages[i], 1));
        let later = pages[i + 1..].iter().position(|&p| p == page);
        assert_eq!(next, later.map_or(-1, |n| (i + 1 + n + 1) as i64));
    }
    let csv = text(&export("csv", "o.csv"));
    let mut lines = csv.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    let at = columns.iter().position(|&c| c == "page").unwrap();
    let from_csv: Vec<u64> = lines
        .map(|l| l.split(',').nth(at).unwrap().parse().unwrap())
        .collect();
    assert_eq!(from_csv, pages);
    let left: Vec<_> = std::fs::read_dir(traces.path())
        .unwrap()
        .filter(|e| {
            e.as_ref()
                .unwrap()
                .file_name()
                .to_string_lossy()
                .starts_with('.')
        })
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    // More than any pipe's buffer holds, 1 MiB for a user who is not root.
    const LARGE: usize = 2 << 20;
    let directory = tempfile::tempdir().unwrap();
    let mut trace = TraceBuilder::new(1, 16);
    trace.program();
    for i in 0..30_000u64 {
        let address = 0x4000_0000 + i * 8192;
        trace.map_anon(0, 10, 1, address, address + 4096, Prot(3));
        trace.touch(0, 10, 1, address);
    }
    std::fs::write(directory.path().join("large.vmtrace"), trace.finish()).unwrap();
    for args in [
        &["export", "large.vmtrace", "--format", "csv", "-o", "-"][..],
        &["events", "large.vmtrace"],
        &["maps", "large.vmtrace", "--json"],
    ] {
        let whole = postproc(args, directory.path());
        assert!(whole.status.success(), "{args:?}");
        assert!(
            whole.stdout.len() > LARGE,
            "{args:?}: {}",
            whole.stdout.len()
        );
        let mut child = Command::new(env!("CARGO_BIN_EXE_postproc"))
            .args(args)
            .current_dir(directory.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut reader = child.stdout.take().unwrap();
        std::io::Read::read_exact(&mut reader, &mut [0; 100]).unwrap();
        drop(reader);
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), text(&output.stderr).as_str()),
            (Some(0), ""),
            "{args:?}"
        );
    }
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.vmtrace");
    let file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    let mut builder = TraceBuilder::to(file, 1, 16);
    builder.program();
    builder.map_anon(
        0,
        10,
        1,
        0x10_0000,
        0x10_0000 + 4096 * 5000,
        postproc::units::Prot(3),
    );
    for i in 0..2_000_000u64 {
        builder.touch(0, 10, 1, 0x10_0000 + (i * 7 % 5000) * 4096);
    }
    builder.finish_to().unwrap();
    for (format, output) in [("csv", "out.csv.zst"), ("parquet", "out.parquet")] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_postproc"))
            .args(["export", "large.vmtrace", "--format", format, "-o", output])
            .current_dir(directory.path())
            .spawn()
            .unwrap();
        // Its temporary file or directory shows that it is under way.
        let entries = || std::fs::read_dir(directory.path()).unwrap().count();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while entries() < 2 && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // The shell's own: a small system has no program of that name.
        let sent = Command::new("sh")
            .args(["-c", &format!("kill -INT {}", child.id())])
            .status()
            .unwrap();
        assert!(sent.success());
        let code = child.wait().unwrap().code();
        assert_eq!(code, Some(130), "{format}");
        assert_eq!(entries(), 1, "{format}");
    }
}

#[test]
fn reads_and_limits_are_simulated() {
    let directory = tempfile::tempdir().unwrap();
    let mut t = TraceBuilder::sample();
    let at = (0, 10, 1);
    // Pages 0 to 2 of a file that nothing maps, and 2 again.
    t.io(at, uapi::VMTRACE_EV_READ, 7, 4095, 4098);
    t.io(at, uapi::VMTRACE_EV_WRITE, 7, 3 * 4096 - 1, 1);
    std::fs::write(directory.path().join("t.vmtrace"), t.finish()).unwrap();
    let run = |args: &[&str]| -> serde_json::Value {
        let all = [&["simulate", "t.vmtrace", "--json"], args].concat();
        let output = postproc(&all, directory.path());
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let without = run(&["--size", "100"]);
    let with = run(&["--size", "100", "--io"]);
    assert_eq!(number(&with["io"]), 4);
    for (what, more) in [("references", 4), ("cold", 3)] {
        assert_eq!(number(&with[what]), number(&without[what]) + more);
    }
    assert_eq!(
        number(&with["sizes"][0]["dirty_left"]),
        number(&without["sizes"][0]["dirty_left"]) + 1
    );
    let exported = |io: &[&str]| {
        let args = ["export", "t.vmtrace", "--format", "txt", "-o", "-"];
        let output = postproc(&[&args, io].concat(), directory.path());
        text(&output.stdout).lines().count() as u64
    };
    assert_eq!(exported(&[]), number(&without["references"]));
    assert_eq!(exported(&["--io"]), number(&with["references"]));
    // One process has it all.
    let limits = run(&["--limit", "process=100", "--io"]);
    assert_eq!(limits["limits"][0]["misses"], with["sizes"][0]["misses"]);
    assert_eq!(limits["cold"], with["cold"]);
    let others = run(&["--limit", "comm:nobody=1", "--io"]);
    assert_eq!(others["left_out"], with["references"]);
    for wrong in [
        &["--io", "--size", "9", "--pages", "virtual"][..],
        &["--limit", "process=9", "--size", "9,10"],
        &["--limit", "process", "--size", "9"],
        &["--limit", "process=9", "--curve"],
        &[],
    ] {
        let output = postproc(
            &[&["simulate", "t.vmtrace"], wrong].concat(),
            directory.path(),
        );
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn events_are_listed_with_their_fields() {
    let directory = tempfile::tempdir().unwrap();
    let mut t = TraceBuilder::sample();
    let at = (0, 10, 1);
    t.file(
        at,
        uapi::VMTRACE_EV_OPEN,
        7,
        uapi::VMTRACE_FILE_REGULAR,
        "data base",
    );
    t.io(at, uapi::VMTRACE_EV_READ, 7, 4096, 512);
    t.io(at, uapi::VMTRACE_EV_WRITE, 7, 0, 1);
    t.file(
        (1, 11, 2),
        uapi::VMTRACE_EV_CLOSE,
        9,
        uapi::VMTRACE_FILE_PIPE,
        "",
    );
    t.truncate(0, 10, 7, 10);
    std::fs::write(directory.path().join("t.vmtrace"), t.finish()).unwrap();

    let lines = |args: &[&str]| {
        let output = postproc(&[&["events", "t.vmtrace"], args].concat(), directory.path());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let json: Vec<serde_json::Value> = lines(&["--json", "--type", "open,close,read,write"])
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let fields: Vec<_> = json
        .iter()
        .map(|e| {
            let of = |name: &str| e.get(name).cloned().unwrap_or_default();
            (
                ["event", "tid", "mm", "ino"].map(of),
                ["kind", "length", "offset", "bytes", "name"].map(of),
            )
        })
        .collect();
    let expected: serde_json::Value = serde_json::json!([
        [
            ["open", 10, 1, 7],
            ["regular", 700, null, null, "data base"]
        ],
        [["read", 10, 1, 7], ["regular", null, 4096, 512, null]],
        [["write", 10, 1, 7], ["regular", null, 0, 1, null]],
        [["close", 11, 2, 9], ["pipe", 900, null, null, ""]],
    ]);
    assert_eq!(serde_json::to_value(fields).unwrap(), expected);

    let all = lines(&[]);
    let info = json_of_info(directory.path(), "t.vmtrace");
    assert_eq!(all.lines().count() as u64, info["events"].as_u64().unwrap());
    assert!(
        all.contains(" cpu=0 tid=10 pid=10 mm=1 read dev=8388609 ino=7 "),
        "{all}"
    );
    assert!(
        lines(&["--pid", "11"])
            .lines()
            .all(|l| l.contains(" pid=11 "))
    );
    assert_eq!(lines(&["--mm", "2", "--type", "close"]).lines().count(), 1);
    let unknown = postproc(
        &["events", "t.vmtrace", "--type", "opened"],
        directory.path(),
    );
    assert_eq!(unknown.status.code(), Some(2));

    let traces = traces();
    let cut = postproc(&["events", "cut.vmtrace"], traces.path());
    assert_eq!(cut.status.code(), Some(1));
    assert!(text(&cut.stderr).contains("cut short"));
}

#[test]
fn maps_are_those_of_a_moment() {
    let directory = tempfile::tempdir().unwrap();
    let mut t = TraceBuilder::sample();
    t.protect(0, 10, 1, 0x3000, 0x5000, Prot(1));
    t.file((0, 10, 1), uapi::VMTRACE_EV_OPEN, 7, 0, "marker");
    // Its child has what it has, but for what either unmaps.
    t.fork(0, 10, 1, 11, 2);
    t.unmap(0, 10, 1, 0x1000, 0x4000);
    t.protect(0, 11, 2, 0x3000, 0x5000, Prot(3));
    // Another's deletion is of no process here.
    t.file((0, 99, 0), uapi::VMTRACE_EV_CLOSE, 7, 0, "marker");
    std::fs::write(directory.path().join("t.vmtrace"), t.finish()).unwrap();

    let maps = |args: &[&str]| {
        let args = [&["maps", "t.vmtrace", "--json"], args].concat();
        let value = json(&postproc(&args, directory.path()));
        let mut ranges = Vec::new();
        for p in value["processes"].as_array().unwrap() {
            for r in p["maps"].as_array().unwrap() {
                let n = |v: &serde_json::Value| v.as_u64().unwrap();
                ranges.push((n(&p["pid"]), n(&r["start"]), n(&r["end"]), n(&r["prot"])));
            }
        }
        (value["seq"].as_u64().unwrap(), ranges)
    };
    let (seq, then) = maps(&["--at-open", "marker"]);
    let parts = [
        (0x1000, 0x3000, 3),
        (0x3000, 0x5000, 1),
        (0x5000, 0x9000, 3),
    ];
    assert_eq!(then, parts.map(|(s, e, p)| (10, s, e, p)));
    assert_eq!(maps(&["--seq", &seq.to_string()]), (seq, then));
    let before = maps(&["--seq", &(seq - 2).to_string()]).1;
    assert_eq!(before, [(10, 0x1000, 0x9000, 3)]);
    // What is alike is one range again.
    let end = [
        (10, 0x4000, 0x5000, 1),
        (10, 0x5000, 0x9000, 3),
        (11, 0x1000, 0x9000, 3),
    ];
    assert_eq!(maps(&[]).1, end);
    assert_eq!(maps(&["--pid", "11"]).1, end[2..]);
    assert_eq!(maps(&["--process", "11"]).1, end[2..]);
    // The child has the name of its parent.
    for name in ["sample", "s*e"] {
        assert_eq!(maps(&["--process", name]).1, end, "{name}");
    }
    assert_eq!(maps(&["--process", "other"]).1, []);
    // Some of the mappings.
    assert_eq!(maps(&["--address", "0x4abc"]).1, [end[0], end[2]]);
    let one = ["--address", "5000-6000", "--process", "10"];
    assert_eq!(maps(&one).1, end[1..2]);
    assert_eq!(maps(&["--address", "0..0x1000"]).1, []);
    assert_eq!(maps(&["--mapping", "*"]).1, end);
    assert_eq!(maps(&["--mapping", "no such"]).1, []);
    // Events of the moment itself have not happened yet.
    assert_eq!(maps(&["--until", "0s"]), (0, vec![]));
    assert_eq!(maps(&["--until", "1h"]).1, end);
    let opens = ["events", "t.vmtrace", "--json", "--type", "open"];
    let opens = text(&postproc(&opens, directory.path()).stdout);
    let open: serde_json::Value = serde_json::from_str(opens.lines().next().unwrap()).unwrap();
    let ns = open["ns"].as_u64().unwrap();
    let until = |ns: u64| maps(&["--until", &format!("{ns}ns")]);
    assert_eq!(until(ns), maps(&["--seq", &(seq - 1).to_string()]));
    assert_eq!(until(ns + 1), maps(&["--seq", &seq.to_string()]));

    let text = text(&postproc(&["maps", "t.vmtrace", "--pid", "11"], directory.path()).stdout);
    assert!(
        text.contains("00001000-00009000 rw-p 00000000 00:00 0"),
        "{text}"
    );
    let never = postproc(&["maps", "t.vmtrace", "--at-open", "no"], directory.path());
    assert_eq!(never.status.code(), Some(2));
}

fn json_of_info(directory: &Path, name: &str) -> serde_json::Value {
    json(&postproc(&["info", "--json", name], directory))
}

#[test]
fn a_report_is_a_page_and_its_data() {
    let traces = traces();
    let output = postproc(
        &["report", "good.vmtrace", "-o", "deep/report"],
        traces.path(),
    );
    assert!(output.status.success());
    let read =
        |name: &str| std::fs::read_to_string(traces.path().join("deep/report").join(name)).unwrap();
    assert_eq!(read("summary.txt"), text(&output.stdout));
    assert!(read("summary.txt").contains("The trace is good."));
    assert!(read("fault-curve.svg").trim_end().ends_with("</svg>"));
    assert!(read("fault-curve.svg").contains("Misses by size of memory"));
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = postproc(&["completions", shell], Path::new("/"));
        assert!(output.status.success());
        assert!(text(&output.stdout).contains("simulate"));
    }
}

/// Every command has a page, with its examples.
#[test]
fn manual_pages_of_all_commands() {
    let directory = tempfile::tempdir().unwrap();
    let output = postproc(&["man", "-o", "man"], directory.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    for name in [
        "",
        "-check",
        "-simulate",
        "-advise",
        "-compare",
        "-export",
        "-reduce",
        "-report",
        "-damon",
        "-info",
        "-man",
    ] {
        let page = directory.path().join(format!("man/postproc{name}.1"));
        let page = std::fs::read_to_string(&page).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(page.contains(".TH") && page.contains("Examples:"), "{name}");
        assert!(
            page.contains(&format!("postproc{}", name.replace('-', "\\-"))),
            "{name}"
        );
    }
    let page = postproc(&["man"], directory.path());
    let page = text(&page.stdout);
    let (_, codes) = page.split_once("Exit codes:").unwrap();
    for code in [0, 1, 2, 3, 129, 130, 143] {
        assert!(codes.contains(&format!("\n  {code} ")), "{code}");
    }
}

/// Every command's help has an example of it.
#[test]
fn help_has_examples() {
    let help = text(&postproc(&["--help"], Path::new("/")).stdout);
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.len() >= 9, "{commands:?}");
    for command in commands {
        let help = text(&postproc(&[command, "--help"], Path::new("/")).stdout);
        let example = format!("postproc {command} ");
        let (_, examples) = help.split_once("Example").unwrap_or_default();
        assert!(examples.contains(&example), "{command}: {help}");
    }
}

#[test]
fn what_follows_from_a_trace_is_put_in_if_asked() {
    let traces = traces();
    let run = |more: &[&str]| {
        let args = "simulate good.vmtrace --policy lru,clock --size 2 --json";
        let args: Vec<_> = args.split(' ').chain(more.iter().copied()).collect();
        let output = postproc(&args, traces.path());
        assert!(output.status.success(), "{}", text(&output.stderr));
        json(&output)
    };
    let (plain, filled) = (run(&[]), run(&["--fill"]));
    assert_eq!(
        (&plain["fill"], &filled["fill"]),
        (&false.into(), &true.into())
    );
    assert_eq!(plain["references"], filled["references"]);
    for (i, misses_stay) in [(0, true), (1, false)] {
        let of = |run: &serde_json::Value, name: &str| run["sizes"][i][name].as_u64().unwrap();
        // Each page that comes is referenced twice, which LRU does not care for.
        assert_eq!(2 * of(&plain, "references"), of(&filled, "references"));
        let same = of(&plain, "misses") == of(&filled, "misses");
        assert!(same || !misses_stay, "{plain} {filled}");
    }
    let foreign = ["simulate", "--from", "csv", "-", "--fill", "--size", "2"];
    assert_eq!(postproc(&foreign, traces.path()).status.code(), Some(2));
}

/// Of one thread, virtual time is what its records tell.
#[test]
fn offsets_within_pages() {
    let directory = tempfile::tempdir().unwrap();
    let mut builder = TraceBuilder::new(1, 4);
    builder.with_offsets();
    builder.program();
    for i in 0..20 {
        builder.touch(0, 10, 1, 0x1000 + i % 8 * 0x1000);
    }
    std::fs::write(directory.path().join("t.vmtrace"), builder.finish()).unwrap();
    let run = |args: &[&str]| {
        let out = postproc(args, directory.path());
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    let info = run(&["info", "t.vmtrace"]);
    assert!(info.contains("offsets    of accesses"), "{info}");
    let export = |trace: &str, format: &str| -> Vec<String> {
        let out = run(&["export", trace, "--format", format, "-o", "-"]);
        out.lines().map(str::to_owned).collect()
    };
    let csv = export("t.vmtrace", "csv");
    let (head, rows) = csv.split_first().unwrap();
    assert!(head.ends_with(",pfn,offset"), "{head}");
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let rows: Vec<Vec<&str>> = rows.iter().map(|row| row.split(',').collect()).collect();
    assert_eq!(rows.len(), 20);
    let (din, ramulator) = (export("t.vmtrace", "din"), export("t.vmtrace", "ramulator"));
    let moca = export("t.vmtrace", "moca-csv");
    for ((row, din), dram) in rows.iter().zip(&din).zip(&ramulator) {
        let seq: u64 = row[0].parse().unwrap();
        let (address, pfn) = (hex(row[12]), row[13].parse::<u64>().unwrap());
        let offset: u64 = row[14].parse().unwrap();
        assert_eq!(offset, seq * 8);
        let page: u64 = row[2].parse().unwrap();
        assert_eq!(hex(&din[2..]), page << 12 | offset);
        assert_eq!(hex(dram.split(' ').next().unwrap()), pfn << 12 | offset);
        let line = format!("{:x}, {:x}, ", address + offset, pfn << 12 | offset);
        assert!(moca.iter().any(|l| l.starts_with(&line)), "{line}");
    }
    // Packing keeps them.
    run(&["pack", "t.vmtrace", "-o", "packed.vmtrace"]);
    assert_eq!(export("packed.vmtrace", "csv"), csv);
    run(&["unpack", "packed.vmtrace", "-o", "again.vmtrace"]);
    let bytes = |name: &str| std::fs::read(directory.path().join(name)).unwrap();
    assert_eq!(bytes("again.vmtrace"), bytes("t.vmtrace"));
    run(&["check", "packed.vmtrace"]);
}

#[test]
fn times_may_be_virtual() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: Vec<u8>| std::fs::write(directory.path().join(name), bytes);
    write("real.vmtrace", TraceBuilder::sample().finish()).unwrap();
    let mut builder = TraceBuilder::new(1, 4);
    // Two ticks are a microsecond.
    builder.virtual_time(2_000);
    builder.program();
    for i in 0..20 {
        builder.set_vtime(10, 1_000 * (i + 1));
        builder.touch(0, 10, 1, 0x1000 + i % 8 * 0x1000);
    }
    write("virtual.vmtrace", builder.finish()).unwrap();
    let run = |args: &[&str]| postproc(args, directory.path());

    let column = |time: &str, name: &str| -> Vec<u64> {
        let csv = run(&[
            "export",
            "virtual.vmtrace",
            "--format",
            "csv",
            "--time",
            time,
            "-o",
            "-",
        ]);
        assert_eq!(csv.status.code(), Some(0), "{}", text(&csv.stderr));
        let csv = text(&csv.stdout);
        let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let head = lines.next().unwrap();
        let at = head.iter().position(|h| *h == name).unwrap();
        lines.map(|fields| fields[at].parse().unwrap()).collect()
    };
    // Each record takes ten ticks more.
    let ticks: Vec<u64> = (1..=20).map(|i| 1_000 * i + 10).collect();
    assert_eq!(column("real", "vtime"), ticks);
    assert_eq!(column("virtual", "vtime"), ticks);
    let steps = |times: Vec<u64>| -> Vec<u64> { times.windows(2).map(|t| t[1] - t[0]).collect() };
    assert_eq!(steps(column("real", "time_ns")), [100; 19]);
    assert_eq!(steps(column("virtual", "time_ns")), [500_000; 19]);

    let info = text(&run(&["info", "virtual.vmtrace"]).stdout);
    assert!(info.contains("time stamp counter, 2,000 ticks"), "{info}");
    let events = text(&run(&["events", "virtual.vmtrace"]).stdout);
    assert!(events.contains(" vtime="), "{events}");
    let report = run(&["report", "virtual.vmtrace", "--time", "virtual", "-o", "r"]);
    assert_eq!(report.status.code(), Some(0), "{}", text(&report.stderr));
    let set = std::fs::read_to_string(directory.path().join("r/working-set.csv")).unwrap();
    let last: u64 = set
        .lines()
        .last()
        .unwrap()
        .split(',')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    // From the trace's start; the first touch came 500 microseconds after it at most.
    assert!((9_500_000..=10_005_000).contains(&last), "{set}");

    for command in ["export", "report"] {
        let format: &[&str] = if command == "export" {
            &["--format", "csv"]
        } else {
            &[]
        };
        let all = [
            &[command, "real.vmtrace", "--time", "virtual", "-o", "x"],
            format,
        ]
        .concat();
        let refused = run(&all);
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains("--virtual-time"));
    }
}
