//! Tables in Markdown.

use super::score::Score;
use super::{LENGTHS, MEMORIES, Row};
use std::fmt::Write;

/// The place in [`LENGTHS`] of the intervals for which order, the kernel's uses and the working set are
/// shown.
const MAIN: usize = 1;

fn percent(share: Option<f64>, digits: usize) -> String {
    share.map_or("–".into(), |s| format!("{:.digits$}", 100.0 * s))
}

fn signed(share: Option<f64>) -> String {
    share.map_or("–".into(), |s| format!("{:+.1}", 100.0 * s))
}

/// Bytes with a unit.
fn bytes(n: f64) -> String {
    match n {
        n if n >= 1e6 => format!("{:.1} MB", n / 1e6),
        n => format!("{:.0} kB", n / 1e3),
    }
}

/// The mean; none of none.
fn mean(numbers: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let some: Vec<f64> = numbers.flatten().collect();
    (!some.is_empty()).then(|| some.iter().sum::<f64>() / some.len() as f64)
}

/// The geometric mean; none of none.
fn geometric(numbers: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    mean(numbers.map(|n| n.map(f64::ln))).map(f64::exp)
}

/// The cells of the means of some rows, which are one row or the same observer's.
fn cells(rows: &[&Row]) -> String {
    let mut t = String::new();
    let of = |figure: &dyn Fn(&Row) -> Option<f64>| mean(rows.iter().map(|row| figure(row)));
    let _ = write!(t, " {} |", percent(of(&|r| r.pages_seen), 2));
    let score = |at: usize, figure: fn(&Score) -> Option<f64>| {
        of(&move |r| r.scores.get(at).and_then(figure))
    };
    for at in 0..LENGTHS.len() {
        let seen = percent(score(at, Score::seen), 2);
        let precision = percent(score(at, Score::precision), 1);
        let _ = write!(t, " {seen} / {precision} |");
    }
    let _ = write!(t, " {} |", percent(score(MAIN, Score::order), 1));
    let _ = write!(t, " {} |", percent(score(MAIN, Score::kernel), 1));
    for at in 0..MEMORIES.len() {
        let error = of(&|r| r.lru.get(at).copied().flatten());
        let _ = write!(t, " {} |", percent(error, 2));
    }
    for at in 0..2 {
        let error = of(&|r| r.scores.get(MAIN)?.working_set_errors()[at]);
        let _ = write!(t, " {} |", signed(error));
    }
    let factor = geometric(rows.iter().map(|r| r.instructions));
    let factor = factor.map_or("–".into(), |f| format!("{f:.2}"));
    let size = of(&|r| Some(r.bytes as f64)).unwrap_or(0.0);
    let _ = write!(t, " {factor} | {} |", bytes(size));
    t
}

/// A row, for people who wait.
pub fn line(row: &Row) -> String {
    format!(
        "| {} | {} | {} |{}",
        row.program,
        row.observer,
        row.what,
        cells(&[row])
    )
}

fn head(first: &str) -> String {
    let mut t = format!("| {first}observer | counted | pages |");
    for ms in LENGTHS {
        let _ = write!(t, " page × {ms} ms |");
    }
    let _ = write!(t, " order | kernel's |");
    for from in MEMORIES {
        let _ = write!(t, " LRU ≥ {from} |");
    }
    t += " p50 | p95 | instructions | bytes |\n";
    let columns = t.matches('|').count() - 1;
    let words = 2 + usize::from(!first.is_empty());
    let _ = write!(
        t,
        "|{}{}",
        "---|".repeat(words),
        "--:|".repeat(columns - words)
    );
    t
}

/// The means over all programs, the programs, and each by itself.
pub fn tables(rows: &[Row]) -> Result<String, std::fmt::Error> {
    let mut t = String::from("Means of all programs:\n\n");
    writeln!(t, "{}", head(""))?;
    let mut done: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        let key = (row.observer.as_str(), row.what.as_str());
        if done.contains(&key) {
            continue;
        }
        done.push(key);
        let same = rows
            .iter()
            .filter(|r| (r.observer.as_str(), r.what.as_str()) == key);
        let same: Vec<&Row> = same.collect();
        writeln!(t, "| {} | {} |{}", key.0, key.1, cells(&same))?;
    }
    writeln!(t, "\nBy program:\n\n{}", head("program | "))?;
    for row in rows {
        writeln!(t, "{}", line(row))?;
    }
    writeln!(t, "\nThe runs:\n")?;
    writeln!(
        t,
        "| program | observer | references | pages | time, ms | intervals |"
    )?;
    writeln!(t, "|---|---|--:|--:|--:|--:|")?;
    for row in rows {
        let intervals: Vec<String> = row.scores.iter().map(|s| s.intervals.to_string()).collect();
        writeln!(
            t,
            "| {} | {} | {} | {} | {:.0} | {} |",
            row.program,
            row.observer,
            row.references,
            row.pages,
            row.time_ns as f64 / 1e6,
            intervals.join(", ")
        )?;
    }
    Ok(t)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(observer: &str, seen: Option<f64>, instructions: f64) -> Row {
        let score = Score {
            uses: 4,
            claims: 2,
            both: 1,
            ..Score::default()
        };
        Row {
            program: "gcc".into(),
            observer: observer.into(),
            what: "records".into(),
            references: 10,
            pages: 3,
            time_ns: 2_000_000,
            pages_seen: seen,
            scores: vec![score; LENGTHS.len()],
            lru: vec![Some(0.01), None],
            instructions: Some(instructions),
            bytes: 1_500_000,
        }
    }

    #[test]
    fn means_are_of_the_same_observer() {
        let rows = [
            row("a", Some(1.0), 2.0),
            row("b", Some(0.25), 3.0),
            row("a", Some(0.5), 8.0),
            row("a", None, 4.0),
        ];
        let text = tables(&rows).unwrap();
        let of = |start: &str| text.lines().find(|l| l.starts_with(start)).unwrap();
        // Of two that are known, and of three; the geometric mean.
        assert!(of("| a | records |").contains("| 75.00 | 25.00 / 50.0 |"));
        assert!(of("| a | records |").contains("| 1.00 | – |"));
        assert!(of("| a | records |").ends_with("| 4.00 | 1.5 MB |"));
        assert!(of("| b | records |").contains("| 25.00 |"));
        let columns = |l: &str| l.matches('|').count();
        assert_eq!(columns(of("| observer")), columns(of("| a | records")));
        assert_eq!(
            columns(of("| program | observer | counted")),
            columns(of("| gcc | a | records"))
        );
    }
}
