//! scripts/targets.py and scripts/bench_curves.py, which judge the figures of `make bench`.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::shown::top;

/// The exit code of a script of scripts/, and the lines about targets that it prints.
fn judged(script: &str, args: &[&str], input: &str, judge: &str) -> (Option<i32>, Vec<String>) {
    let mut child = Command::new("python3")
        .arg(top().join("scripts").join(script))
        .args(args)
        .env("JUDGE", judge)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines = lines.lines().filter(|line| line.starts_with("target: "));
    (output.status.code(), lines.map(str::to_owned).collect())
}

#[test]
fn a_figure_meets_its_target_or_misses_it() {
    let judged = |args: &[&str], judge| judged("targets.py", args, "", judge);
    let met = ["a", "most", "1.2", "1.2", "b c", "least", "1000", "1000.5"];
    let lines = [
        "target: a, at most 1.2: met (1.200)",
        "target: b c, at least 1,000: met (1,000.500)",
    ];
    assert_eq!(judged(&met, ""), (Some(0), lines.map(str::to_owned).into()));
    for (bound, figure) in [("most", "1.201"), ("least", "1.199"), ("most", "nan")] {
        let missed = [&met[..], &["d", bound, "1.2", figure]].concat();
        let (code, lines) = judged(&missed, "");
        assert_eq!(code, Some(1), "{bound} {figure}");
        let line = format!("target: d, at {bound} 1.2: missed ({figure})");
        assert_eq!(lines[2], line);
        // It only reports.
        assert_eq!(judged(&missed, "0"), (Some(0), lines));
    }
    for wrong in [&[][..], &met[1..], &["a", "more", "1", "1"]] {
        assert_eq!(judged(wrong, "").0, Some(2), "{wrong:?}");
    }
}

/// A table of lru_curves: its pages, the speed of one thread and of two, and the bytes a page of one.
fn table(pages: u32, one: f64, two: f64, bytes: f64) -> String {
    let row = |name: &str, speed: f64, bytes: f64| {
        let times = speed / 9.0;
        format!("{name:<28} {speed:>9.2} {times:>6.2} {speed:>12.2} {times:>6.2} {bytes:>13.1}\n")
    };
    let rows = [
        format!(
            "10000000 references, local, to {pages} pages; all curves are equal; 5 rounds\n{:<28} {:>9} {:>6} {:>12} \
             {:>6} {:>13}\n",
            "", "M refs/s", "times", "by CPU time", "times", "bytes a page"
        ),
        row("Fenwick tree, 64-bit leaves", 9.0, 6.5),
        row("LruCurve", 7.0, 67.3),
        row("LruChunks", one, bytes),
        row("LruChunks, 2 threads", two, 23.4),
        row("Increment-and-Freeze", 2.0, 290.3),
        row("the same, bounded", 2.5, 151.4),
        row("the same, 2 threads", 4.0, 197.7),
    ];
    rows.concat()
}

#[test]
fn a_curve_that_is_slow_or_large_misses_a_target() {
    let verdicts = |table: &str| {
        let (code, lines) = judged("bench_curves.py", &[], table, "");
        let is_met = |line: &String| line.contains(": met (");
        (code, lines.iter().map(is_met).collect::<Vec<_>>())
    };
    let (fine, bad) = (Some(0), Some(1));
    let good = table(954_301, 14.0, 24.9, 21.2);
    assert_eq!(verdicts(&good), (fine, vec![true; 4]));
    // Slower than Increment-and-Freeze and the tree, two threads too slow, too large.
    let slow = table(954_301, 3.9, 24.9, 21.2);
    assert_eq!(verdicts(&slow), (bad, vec![false, false, true, true]));
    let slow = table(954_301, 14.0, 23.0, 21.2);
    assert_eq!(verdicts(&slow), (bad, vec![true, true, false, true]));
    let large = table(954_301, 14.0, 24.9, 24.1);
    assert_eq!(verdicts(&large), (bad, vec![true, true, true, false]));
    // Few pages fit in a cache.
    let few = table(90_000, 8.0, 12.0, 32.4);
    assert_eq!(verdicts(&few), (fine, vec![true]));
    // A table that lacks a row, and none.
    let (rest, _) = good.split_once("the same").unwrap();
    let (rest, _) = rest.split_once("LruChunks,").unwrap();
    assert_eq!(verdicts(rest), (Some(2), vec![]));
    assert_eq!(verdicts(""), (Some(2), vec![]));
}
