//! Windows of a trace, by the command: each is what a trace of its own would be.

use std::process::Output;

use crate::support::postproc;
use postproc::testing::TraceBuilder;
use postproc::units::Prot;

/// Page `i`th touched in window `k`, which has 20 k references more than the first.
fn page(k: u64, i: u64) -> u64 {
    0x1000 + (i * (2 * k + 3) % 13) * 0x1000
}

fn fill(builder: &mut TraceBuilder, k: u64) {
    let mm = k as u32 + 1;
    builder.task(0, 10, 10, mm, "program");
    builder.map_anon(0, 10, mm, 0x1000, 0xe000, Prot(3));
    for i in 0..60 + 20 * k {
        builder.touch((i & 1) as u32, 10, mm, page(k, i));
    }
}

const WINDOWS: u64 = 3;

/// A trace of three windows, and a trace of each alone.
fn traces() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("tempdir");
    let write = |name: String, bytes: Vec<u8>| {
        std::fs::write(directory.path().join(name), bytes).expect("write");
    };
    let mut builder = TraceBuilder::new(2, 4);
    builder.header_mut().buffer_size = 1024;
    for k in 0..WINDOWS {
        builder.begin_window(1000);
        fill(&mut builder, k);
        builder.end_window(|_| {});
        let mut alone = TraceBuilder::new(2, 4);
        fill(&mut alone, k);
        write(format!("alone.{k}.vmt"), alone.finish());
    }
    write("windows.vmt".into(), builder.finish());
    directory
}

fn objects(output: &Output) -> Vec<serde_json::Value> {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::Deserializer::from_slice(&output.stdout)
        .into_iter()
        .map(|object| object.expect("JSON"))
        .collect()
}

#[test]
fn each_is_simulated_as_a_trace_of_its_own() {
    let traces = traces();
    let simulate = |trace: &str, more: &[&str]| {
        let args = [
            "simulate",
            trace,
            "--policy",
            "lru,opt,clock",
            "--size",
            "6",
        ];
        let args = [&args[..], &["--json"], more].concat();
        objects(&postproc(&args, traces.path()))
    };
    let each = simulate("windows.vmt", &["--per-window"]);
    assert_eq!(each.len(), WINDOWS as usize);
    for (k, of_window) in each.iter().enumerate() {
        let alone = simulate(&format!("alone.{k}.vmt"), &[]);
        assert_eq!(of_window["sizes"], alone[0]["sizes"], "window {k}");
        assert_eq!(of_window["window"], k);
        assert!(alone[0].get("window").is_none());
        let one = simulate("windows.vmt", &["--window", &k.to_string()]);
        assert_eq!(one[0], *of_window);
    }
    // All in one: what a page was in another window, nothing tells.
    let whole = &simulate("windows.vmt", &[])[0];
    let sum = |field: &str| each.iter().map(|w| w[field].as_u64()).sum::<Option<u64>>();
    assert_eq!(whole["references"].as_u64(), sum("references"));
    assert_eq!(whole["cold"].as_u64(), sum("cold"));
}

#[test]
fn each_has_a_file_of_its_own() {
    let traces = traces();
    let there = |name: &str| traces.path().join(name);
    let read = |name: &str| std::fs::read_to_string(there(name)).expect(name);
    let export = |trace: &str, to: &str, more: &[&str]| {
        let args = ["export", trace, "--format", "txt", "-o", to];
        let output = postproc(&[&args[..], more].concat(), traces.path());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    };
    export("windows.vmt", "w.txt", &["--per-window"]);
    for k in 0..WINDOWS {
        let alone = format!("alone.{k}.vmt");
        export(&alone, "alone.txt", &[]);
        assert_eq!(read(&format!("w.{k}.txt")), read("alone.txt"), "window {k}");
    }
    assert!(!there("w.txt").exists());
    let report = ["report", "windows.vmt", "-o", "r.html", "--per-window"];
    let output = postproc(&report, traces.path());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!((0..WINDOWS).all(|k| there(&format!("r.{k}.html")).exists()));
    let reduce = ["reduce", "windows.vmt", "--method", "sad", "--size", "8"];
    let output = postproc(
        &[&reduce[..], &["-o", "s.csv", "--per-window"]].concat(),
        traces.path(),
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(there("s.2.csv").exists());
}

#[test]
fn each_is_checked_and_listed() {
    let traces = traces();
    let run = |args: &[&str]| postproc(args, traces.path());
    let checks = objects(&run(&["check", "windows.vmt", "--per-window", "--json"]));
    let refs: Vec<_> = checks.iter().map(|c| c["references"].as_u64()).collect();
    assert_eq!(refs, [Some(60), Some(80), Some(100)]);
    let info = String::from_utf8(run(&["info", "windows.vmt"]).stdout).expect("text");
    let lines = info.lines().skip_while(|l| !l.contains("begins"));
    let rows: Vec<_> = lines.skip(1).take(3).collect();
    assert!(rows[2].starts_with("2 ") && rows[2].ends_with("references"));
    assert!(info.contains("  windows    without limit, of 1,000 references\n"));
    let events = run(&["events", "windows.vmt", "--window", "1"]);
    let events = String::from_utf8(events.stdout).expect("text");
    assert_eq!(events.lines().count(), 3, "{events}");
    assert!(events.contains(" mm=2 task"), "{events}");
}

#[test]
fn what_is_not_there_is_refused() {
    let traces = traces();
    let refused = |args: &[&str]| {
        let output = postproc(args, traces.path());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let none = refused(&["check", "windows.vmt", "--window", "3"]);
    assert!(
        none.contains("there is no window 3: it has 0 to 2"),
        "{none}"
    );
    for way in [&["--window", "0"][..], &["--per-window"]] {
        let args = [&["check", "alone.0.vmt"][..], way].concat();
        let none = refused(&args);
        assert!(none.contains("a trace without windows"), "{none}");
    }
    let one = ["export", "windows.vmt", "--format", "txt", "-o", "-"];
    let one = refused(&[&one[..], &["--per-window"]].concat());
    assert!(one.contains("writes a file for each window"), "{one}");
    std::fs::write(traces.path().join("l.txt"), "1\n2\n").expect("write");
    let args = ["simulate", "l.txt", "--from", "txt", "--size", "1"];
    let elsewhere = refused(&[&args[..], &["--window", "0"]].concat());
    assert!(elsewhere.contains("has no windows"), "{elsewhere}");
}
