//! What `activator top` shows of an interval: tables for people, and JSON.

use serde_json::{Map, Value, json};

use crate::counts::{Interval, Of, Process, Row, Sort, Tally};
use crate::summary;
use crate::units::{count, duration};

/// What is shown.
#[derive(Clone, Debug)]
pub struct View {
    /// The tables.
    pub of: Vec<Of>,
    /// The order of rows.
    pub sort: Sort,
    /// Rows of each table, at most.
    pub rows: Option<usize>,
    /// The time of one reference, ns, if it is known.
    pub cost: Option<f64>,
    /// Whether that time could not be measured, and nobody was told.
    pub is_unmeasured: bool,
    /// Whether `activator top` has begun the trace.
    pub is_own: bool,
}

/// Columns and lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Characters in a line.
    pub columns: usize,
    /// Lines.
    pub lines: usize,
}

/// The message for a trace that has no counts.
pub const UNCOUNTED: &str = "begin the trace with --count to see processes and mappings";

/// The message for a time that is not known.
pub const UNMEASURED: &str = "the time of a reference could not be measured; --cost NS gives it";

/// A name from bytes. What does not print is escaped: a process can have any name.
pub fn printable(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' | '"' => text.push(c),
                // So that escapes can be told from names that look like them.
                _ => text.extend(c.escape_debug()),
            }
        }
        for byte in chunk.invalid() {
            text += &format!("\\x{byte:02x}");
        }
    }
    text
}

/// The beginning of a text that is too long for `room` characters, and an ellipsis.
pub fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    match room.checked_sub(1) {
        None => String::new(),
        Some(kept) => text.chars().take(kept).chain(['…']).collect(),
    }
}

/// The end of a text that is too long: of a path, that is the part that matters.
pub fn cut_front(text: &str, room: usize) -> String {
    let all = text.chars().count();
    if all <= room {
        return text.to_owned();
    }
    match room.checked_sub(1) {
        None => String::new(),
        Some(kept) => ['…']
            .into_iter()
            .chain(text.chars().skip(all - kept))
            .collect(),
    }
}

/// A number in at most six characters: `99,999`, `123k`, `9,999k`, `12M`.
fn short(n: f64) -> String {
    let mut n = n.max(0.0).round() as u64;
    if n < 100_000 {
        return count(n);
    }
    let mut last = "";
    for unit in ["k", "M", "G", "T", "P"] {
        n /= 1000;
        last = unit;
        if n < 10_000 {
            break;
        }
    }
    count(n) + last
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

/// The time of one reference: `850 ns`, `1.02 us`.
fn nanoseconds(ns: f64) -> String {
    if ns < 1000.0 {
        format!("{ns:.0} ns")
    } else {
        format!("{:.2} us", ns / 1000.0)
    }
}

/// What is known of the trace as a whole: lines without their ends.
fn head(interval: &Interval, view: &View) -> Vec<String> {
    let (status, raw) = (&interval.status, &interval.status.raw);
    let mut lines = Vec::new();
    let mut line = |name: &str, value: String| lines.push(format!("{name:<11}{value}"));
    let written = match status.is_written() {
        true => format!("into {}", printable(summary::trace(status).as_bytes())),
        false => "counts only".to_owned(),
    };
    line(
        "trace",
        format!(
            "{}; {}; {written}",
            status.scope(),
            duration(status.duration_ns())
        ),
    );
    line(
        "references",
        format!(
            "{} a second; {} since the start",
            count(interval.rate(interval.references).round() as u64),
            count(interval.total),
        ),
    );
    if let Some(cost) = view.cost {
        let part = interval.rate(interval.references) * cost / 1e9;
        line(
            "slowdown",
            format!(
                "references take about {} of one CPU's time, at {} each",
                percent(part),
                nanoseconds(cost)
            ),
        );
    }
    if view.is_unmeasured {
        line("slowdown", UNMEASURED.to_owned());
    }
    line(
        "pages",
        format!(
            "{} enabled; N={}{}",
            count(raw.members),
            count(raw.evms_size.into()),
            status.for_each()
        ),
    );
    let new = |of: fn(&crate::status::Status) -> u64| {
        let n = of(status).saturating_sub(of(&interval.before));
        count(interval.rate(n).round() as u64)
    };
    let mut records = format!("{} a second written", new(|s| s.raw.refs));
    if status.is_filtered() {
        records += &format!(", {} left out", new(|s| s.raw.left_out));
    }
    line(
        "records",
        format!(
            "{records}; {} lost; {} waits a second",
            count(status.lost()),
            new(|s| s.raw.waits)
        ),
    );
    if let Some(windows) = summary::windows(status) {
        line("windows", windows);
    }
    if interval.elsewhere > 0 {
        line(
            "elsewhere",
            format!(
                "{} a second in mappings whose counts the kernel has given up",
                count(interval.rate(interval.elsewhere).round() as u64)
            ),
        );
    }
    for problem in status.problems() {
        line("BAD", problem);
    }
    lines
}

/// A column of numbers: its head, and what it has for a row.
type Column<'a> = (&'static str, Box<dyn Fn(&Row) -> String + 'a>);

/// Characters of a column of numbers, with the space before it.
const COLUMN: usize = 8;
/// The least room for a name.
const NAME: usize = 12;

/// The columns of numbers for a table. The least important ones come last.
fn columns<'a>(interval: &'a Interval, view: &'a View, of: Of) -> Vec<Column<'a>> {
    let rate = |name, of: fn(Tally) -> u64| -> Column<'a> {
        let text = move |row: &Row| short(interval.rate(of(row.new)));
        (name, Box::new(text))
    };
    let mut columns = vec![
        rate("REFS/S", Tally::sum),
        (
            "SHARE",
            Box::new(|row: &Row| percent(interval.share(row.new.sum()))),
        ),
    ];
    if of == Of::Process {
        if let Some(cost) = view.cost {
            columns.push((
                "%CPU",
                Box::new(move |row: &Row| {
                    percent(interval.rate(row.new.sum()) * cost / 1e9).replace('%', "")
                }),
            ));
        }
    }
    columns.push(rate("READS", |t| t.reads));
    columns.push(rate("WRITES", |t| t.writes));
    columns.push(rate("FETCHES", |t| t.fetches));
    columns.push(rate("KERNEL", |t| t.kernel));
    columns
}

/// A table: its head and its rows, of at most `width` characters.
fn table(interval: &Interval, view: &View, of: Of, width: usize) -> (String, Vec<String>) {
    let mut columns = columns(interval, view, of);
    if of != Of::Process {
        columns.truncate(2);
    }
    let is_of_process = of != Of::Mapping;
    let fixed = match of {
        Of::Process => 8,
        Of::Mapping => 9,
        // A comm has 15 characters.
        Of::Pair => 8 + 16 + 9,
    };
    while columns.len() > 1 && fixed + COLUMN * columns.len() + NAME > width {
        columns.pop();
    }
    let room = width
        .saturating_sub(fixed + COLUMN * columns.len())
        .max(NAME);
    let mut top = String::new();
    if is_of_process {
        top += "    PID";
    }
    for (name, _) in &columns {
        top += &format!("{name:>COLUMN$}");
    }
    top += match of {
        Of::Process => " NAME",
        Of::Mapping => " KIND    MAPPING",
        Of::Pair => " NAME            KIND    MAPPING",
    };
    let rows = interval.rows(of, view.sort, false);
    let rows = rows.iter().map(|row| {
        let mut text = String::new();
        if let Some(Process { pid, .. }) = &row.process {
            text += &format!("{pid:>7}");
        }
        for (_, number) in &columns {
            text += &format!("{:>COLUMN$}", number(row));
        }
        let comm = row.process.as_ref().map(|p| printable(&p.comm));
        match (comm, &row.mapping) {
            (Some(comm), None) => text += &format!(" {}", cut(&comm, room)),
            (comm, Some(mapping)) => {
                if let Some(comm) = comm {
                    text += &format!(" {:<15}", cut(&comm, 15));
                }
                let name = cut_front(&printable(&mapping.name), room);
                text += &format!(" {:<8}{name}", mapping.kind());
            }
            (None, None) => {}
        }
        text
    });
    (top, rows.collect())
}

/// How many rows of each table are shown, if there is room for `room` rows of all tables.
fn divide(tables: &[usize], room: usize) -> Vec<usize> {
    let mut given = vec![0; tables.len()];
    let mut left = room;
    // Who needs less leaves the rest to others.
    loop {
        let open: Vec<_> = (0..tables.len())
            .filter(|&i| given[i] < tables[i])
            .collect();
        let part = match left.checked_div(open.len()) {
            None => return given,
            Some(0) => {
                open.iter().take(left).for_each(|&i| given[i] += 1);
                return given;
            }
            Some(part) => part,
        };
        for i in open {
            let more = part.min(tables[i] - given[i]);
            given[i] += more;
            left -= more;
        }
    }
}

/// Lines that a table needs to be worth something: an empty one, a head, and three rows.
const FEW: usize = 5;

/// The tables as lines that end in a newline. With a size, no line has more characters than that,
/// and there are fewer lines.
pub fn text(interval: &Interval, view: &View, size: Option<Size>) -> String {
    let width = size.map_or(usize::MAX / 2, |s| s.columns);
    let mut lines = head(interval, view);
    let most = view.rows.unwrap_or(usize::MAX);
    if interval.is_counted {
        let tables = view.of.iter().map(|of| table(interval, view, *of, width));
        let mut tables: Vec<_> = tables.collect();
        let free = size.map(|s| s.lines.saturating_sub(1).saturating_sub(lines.len()));
        // On a small terminal, one table with rows is better than two without.
        while tables.len() > 1 && free.is_some_and(|free| free < tables.len() * FEW) {
            tables.pop();
        }
        let needs: Vec<_> = tables
            .iter()
            .map(|(_, rows)| rows.len().min(most))
            .collect();
        // An empty line and a head for each.
        let room = free.map_or(usize::MAX, |free| free.saturating_sub(2 * tables.len()));
        for ((top, rows), shown) in tables.iter().zip(divide(&needs, room)) {
            lines.push(String::new());
            lines.push(top.clone());
            lines.extend(rows.iter().take(shown).cloned());
            if size.is_none() && shown < rows.len() {
                lines.push(format!("and {} more", count((rows.len() - shown) as u64)));
            }
        }
    } else {
        lines.push(String::new());
        lines.push(UNCOUNTED.to_owned());
    }
    if let Some(size) = size {
        lines.truncate(size.lines.saturating_sub(1));
    }
    lines
        .iter()
        .map(|line| cut(line, width) + "\n")
        .collect::<String>()
}

/// Draws a text over what is on the terminal.
pub fn frame(text: &str) -> String {
    let mut frame = String::from("\x1b[H");
    for line in text.lines() {
        frame += line;
        // What is left of an older line.
        frame += "\x1b[K\r\n";
    }
    frame + "\x1b[J"
}

/// Prepares the terminal: an empty screen without a cursor, on which long lines are not continued.
pub const BEGIN: &str = "\x1b[?25l\x1b[?7l\x1b[2J";
/// Makes the terminal as it was, with the cursor below the table.
pub const END: &str = "\x1b[?7h\x1b[?25h";

/// The interval as one line of JSON. Numbers are those of the interval, and with `_total`, of the
/// whole trace.
pub fn json(interval: &Interval, view: &View) -> String {
    let (now, before) = (&interval.status, &interval.before);
    let mut map = Map::new();
    let mut put = |name: &str, value: Value| {
        map.insert(name.to_owned(), value);
    };
    put("trace", now.uuid().into());
    put("begun_by_top", view.is_own.into());
    put("time_ns", interval.time.into());
    put("interval_ns", interval.ns.into());
    put("n", now.raw.evms_size.into());
    put("members", now.raw.members.into());
    put("counted", interval.is_counted.into());
    let mut both = |name: &str, new: u64, total: u64| {
        put(name, new.into());
        put(&format!("{name}_total"), total.into());
    };
    both("references", interval.references, interval.total);
    both("elsewhere", interval.elsewhere, interval.elsewhere_total);
    for (name, of) in [
        (
            "records",
            (|s| s.raw.refs) as fn(&crate::status::Status) -> u64,
        ),
        ("left_out", |s| s.raw.left_out),
        ("lost", crate::status::Status::lost),
        ("waits", |s| s.raw.waits),
    ] {
        both(name, of(now).saturating_sub(of(before)), of(now));
    }
    put("windows_begun", now.raw.windows_begun.into());
    put("windows_ended", now.raw.windows_ended.into());
    put(
        "references_per_second",
        json!(interval.rate(interval.references)),
    );
    put("reference_ns", json!(view.cost));
    let cpu = |n: u64| view.cost.map(|cost| interval.rate(n) * cost / 1e9);
    put("cpu_share", json!(cpu(interval.references)));
    put("problems", json!(now.problems()));
    for of in &view.of {
        let name = match of {
            Of::Process => "processes",
            Of::Mapping => "mappings",
            Of::Pair => "pairs",
        };
        let rows = interval.rows(*of, view.sort, true);
        let most = view.rows.unwrap_or(usize::MAX);
        let rows = rows.iter().take(most).map(|row| json_row(interval, row));
        put(name, rows.collect::<Vec<_>>().into());
    }
    format!("{}\n", Value::from(map))
}

fn json_row(interval: &Interval, row: &Row) -> Value {
    let mut map = Map::new();
    let mut put = |name: &str, value: Value| {
        map.insert(name.to_owned(), value);
    };
    if let Some(process) = &row.process {
        put("pid", process.pid.into());
        put("comm", String::from_utf8_lossy(&process.comm).into());
    }
    if let Some(mapping) = &row.mapping {
        put("mapping", String::from_utf8_lossy(&mapping.name).into());
        put("mapping_kind", mapping.kind().into());
        put("dev", mapping.dev.into());
        put("ino", mapping.ino.into());
    }
    let sum = row.new.sum();
    put("references", sum.into());
    put("references_total", row.total.sum().into());
    put("references_per_second", json!(interval.rate(sum)));
    put("share", json!(interval.share(sum)));
    for (name, of) in [
        ("reads", (|t| t.reads) as fn(Tally) -> u64),
        ("writes", |t| t.writes),
        ("fetches", |t| t.fetches),
        ("kernel", |t| t.kernel),
    ] {
        put(name, of(row.new).into());
        put(&format!("{name}_total"), of(row.total).into());
    }
    Value::from(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::{Counts, Look, entry};
    use crate::fake::Fake;
    use rust_mm_trace::uapi::{
        VMTRACE_COUNTED, VMTRACE_FILTERED, VMTRACE_STATE_ON, VMTRACE_UNWRITTEN, vmtrace_count,
    };

    fn view(of: &[Of]) -> View {
        View {
            of: of.to_vec(),
            sort: Sort::Refs,
            rows: None,
            cost: None,
            is_unmeasured: false,
            is_own: true,
        }
    }

    fn interval(elsewhere: u64, list: Vec<vmtrace_count>) -> Interval {
        let mut status = Fake::example();
        status.raw.flags = VMTRACE_COUNTED | VMTRACE_UNWRITTEN | VMTRACE_FILTERED;
        status.raw.state = VMTRACE_STATE_ON;
        status.raw.scope = 1;
        (status.raw.refs, status.raw.members, status.raw.waits) = (0, 498, 0);
        let before = Look {
            status,
            counts: Some(Counts::none(0)),
        };
        status.raw.left_out = 1000;
        let sum = list
            .iter()
            .map(|c| c.reads + c.writes + c.fetches + c.kernel);
        let counts = Counts {
            time: 2_000_000_000,
            references: sum.sum::<u64>() + elsewhere,
            elsewhere,
            list,
            is_complete: true,
        };
        let now = Look {
            status,
            counts: Some(counts),
        };
        Interval::new(&before, &now)
    }

    fn example() -> Interval {
        interval(
            0,
            vec![
                entry(
                    1234,
                    "sqlite3",
                    ("/lib/x86_64-linux-gnu/libc.so.6", 7),
                    [10, 0, 300, 0],
                ),
                entry(1234, "sqlite3", ("[heap]", 0), [1_000_000, 400_000, 0, 90]),
                entry(9, "sh", ("[stack]", 0), [0, 200, 0, 0]),
            ],
        )
    }

    #[test]
    fn both_tables() {
        let size = Some(Size {
            columns: 80,
            lines: 24,
        });
        let got = text(&example(), &view(&[Of::Process, Of::Mapping]), size);
        assert_eq!(
            got,
            "\
trace      all processes; 12.5 s; counts only
references 700,300 a second; 1,400,600 since the start
pages      498 enabled; N=512
records    0 a second written, 500 left out; 0 lost; 0 waits a second

    PID  REFS/S   SHARE   READS  WRITES FETCHES  KERNEL NAME
   1234    700k  100.0%    500k    200k     150      45 sqlite3
      9     100    0.0%       0     100       0       0 sh

  REFS/S   SHARE KIND    MAPPING
    700k  100.0% anon    [heap]
     155    0.0% file    /lib/x86_64-linux-gnu/libc.so.6
     100    0.0% anon    [stack]
"
        );
    }

    #[test]
    fn time_that_references_take() {
        let mut view = view(&[Of::Process]);
        view.cost = Some(500.0);
        let got = text(&example(), &view, None);
        assert!(
            got.contains(
                "\nslowdown   references take about 35.0% of one CPU's time, at 500 ns each\n"
            ),
            "{got}"
        );
        assert!(got.contains("   SHARE    %CPU   READS"), "{got}");
        assert!(
            got.contains("   1234    700k  100.0%    35.0    500k"),
            "{got}"
        );
        assert!(!got.contains(UNMEASURED));
        view.cost = Some(1500.0);
        assert!(text(&example(), &view, None).contains(", at 1.50 us each\n"));
    }

    #[test]
    fn a_time_that_could_not_be_measured() {
        let mut view = view(&[]);
        view.is_unmeasured = true;
        let got = text(&example(), &view, None);
        assert!(
            got.contains(&format!("\nslowdown   {UNMEASURED}\n")),
            "{got}"
        );
    }

    #[test]
    fn pairs_and_rows() {
        let mut view = view(&[Of::Pair]);
        view.rows = Some(1);
        let got = text(&example(), &view, None);
        let (_, table) = got.split_once("\n\n").expect("a table");
        assert_eq!(
            table,
            "    PID  REFS/S   SHARE NAME            KIND    MAPPING\n   1234    700k  100.0% sqlite3         \
             anon    [heap]\nand 2 more\n"
        );
    }

    #[test]
    fn what_is_elsewhere_and_what_is_bad() {
        let got = text(&example(), &view(&[]), None);
        assert!(!got.contains("elsewhere") && !got.contains("BAD"), "{got}");
        let mut interval = interval(50, Vec::new());
        interval.status.raw.funny = 1;
        let got = text(&interval, &view(&[]), None);
        assert!(got.contains("\nelsewhere  25 a second in mappings whose counts"));
        assert!(got.contains("\nBAD        1 funny PTEs"), "{got}");
    }

    #[test]
    fn a_trace_without_counts() {
        let mut interval = example();
        interval.is_counted = false;
        let got = text(&interval, &view(&[Of::Process]), None);
        assert!(
            got.ends_with(&format!("a second\n\n{UNCOUNTED}\n")),
            "{got}"
        );
        assert!(!got.contains("PID"));
    }

    #[test]
    fn nothing_is_wider_or_longer_than_the_terminal() {
        let list = (1..=60)
            .map(|i| {
                entry(
                    i,
                    "a rather long ü",
                    ("/a/näme/that/is/long/enough/to/be/cut/é.so", 7),
                    [u64::from(i), 1, 1, 1],
                )
            })
            .collect();
        let mut interval = interval(0, list);
        interval.status.raw.lost_io = 1;
        for of in [&[Of::Process, Of::Mapping][..], &[Of::Pair], &[Of::Process]] {
            for columns in [0, 1, 10, 20, 33, 40, 57, 64, 79, 80, 81, 200] {
                for lines in [0, 1, 2, 5, 9, 10, 24, 100] {
                    let size = Some(Size { columns, lines });
                    let got = text(&interval, &view(of), size);
                    assert!(got.lines().count() <= lines.saturating_sub(1));
                    for line in got.lines() {
                        assert!(line.chars().count() <= columns, "{columns}: {line}");
                    }
                }
            }
        }
        // Where there is room, there are all numbers; else the first ones.
        let at = |columns| {
            let size = Some(Size { columns, lines: 24 });
            text(&interval, &view(&[Of::Process]), size)
        };
        assert!(at(80).contains("KERNEL NAME"));
        assert!(at(67).contains("  WRITES FETCHES NAME"), "{}", at(67));
        assert!(at(30).contains("  REFS/S NAME"), "{}", at(30));
        let mapped = |columns| {
            let size = Some(Size { columns, lines: 24 });
            text(&interval, &view(&[Of::Mapping]), size)
        };
        assert!(
            mapped(40).contains(" file    …to/be/cut/é.so\n"),
            "{}",
            mapped(40)
        );
    }

    #[test]
    fn a_small_terminal_has_one_table() {
        let at = |lines| {
            let size = Some(Size { columns: 80, lines });
            text(&example(), &view(&[Of::Process, Of::Mapping]), size)
        };
        assert!(at(15).contains(" KIND "), "{}", at(15));
        assert!(!at(14).contains(" KIND ") && at(14).contains(" sqlite3\n"));
        assert!(at(8).ends_with(" sqlite3\n"), "{}", at(8));
    }

    #[test]
    fn rows_are_divided() {
        assert_eq!(divide(&[5, 50], 20), [5, 15]);
        assert_eq!(divide(&[50, 50], 21), [11, 10]);
        assert_eq!(divide(&[50, 2], 20), [18, 2]);
        assert_eq!(divide(&[1, 2], 20), [1, 2]);
        assert_eq!(divide(&[1, 2], 0), [0, 0]);
        assert_eq!(divide(&[], 5), [0; 0]);
        assert_eq!(divide(&[3, 4], usize::MAX), [3, 4]);
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        for (name, want) in [
            (&b"plain name"[..], "plain name"),
            (b"\x1b[2Jx\n\t\x07", "\\u{1b}[2Jx\\n\\t\\u{7}"),
            ("\u{9b}2J\u{202e}é日".as_bytes(), "\\u{9b}2J\\u{202e}é日"),
            (b"it's \"a\" \\", "it's \"a\" \\\\"),
            (b"cut \xc3", "cut \\xc3"),
        ] {
            assert_eq!(printable(name), want);
        }
        let evil = "\x1b]0;x\x07";
        let interval = interval(0, vec![entry(1, evil, (evil, 0), [1, 0, 0, 0])]);
        for of in [Of::Process, Of::Mapping, Of::Pair] {
            for size in [
                None,
                Some(Size {
                    columns: 80,
                    lines: 24,
                }),
            ] {
                let got = text(&interval, &view(&[of]), size);
                assert!(got.contains("\\u{1b}]0;x\\u{7}"), "{got}");
                assert!(!got.contains(|c: char| c.is_control() && c != '\n'));
            }
            assert!(!json(&interval, &view(&[of])).contains('\x1b'));
        }
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("äöü", 2), "ä…");
        assert_eq!(cut_front("/usr/lib/libé.so", 8), "…libé.so");
        for room in 0..3 {
            assert!(cut("日本語", room).chars().count() <= room);
            assert!(cut_front("日本語", room).chars().count() <= room);
        }
    }

    #[test]
    fn numbers_have_six_characters() {
        for (n, want) in [
            (0.0, "0"),
            (99_999.4, "99,999"),
            (100_000.0, "100k"),
            (9_999_999.0, "9,999k"),
            (10_000_000.0, "10M"),
            (1e13, "10T"),
            (1.8e19, "18,000P"),
        ] {
            assert_eq!(short(n), want);
        }
        assert_eq!(short(-1.0), "0");
    }

    #[test]
    fn a_frame_leaves_nothing_of_the_last_one() {
        assert_eq!(frame("a\nb\n"), "\x1b[Ha\x1b[K\r\nb\x1b[K\r\n\x1b[J");
    }

    #[test]
    fn json_has_the_interval_and_totals() {
        let mut view = view(&[Of::Process, Of::Mapping, Of::Pair]);
        view.cost = Some(500.0);
        let line = json(&example(), &view);
        assert_eq!(line.matches('\n').count(), 1);
        let json: Value = serde_json::from_str(&line).expect("JSON");
        for (field, want) in [
            ("begun_by_top", json!(true)),
            ("counted", json!(true)),
            ("time_ns", json!(2_000_000_000)),
            ("interval_ns", json!(2_000_000_000)),
            ("references", json!(1_400_600)),
            ("references_total", json!(1_400_600)),
            ("references_per_second", json!(700_300.0)),
            ("left_out", json!(1000)),
            ("left_out_total", json!(1000)),
            ("members", json!(498)),
            ("n", json!(512)),
            ("elsewhere", json!(0)),
            ("reference_ns", json!(500.0)),
            ("cpu_share", json!(0.35015)),
            ("problems", json!([])),
        ] {
            assert_eq!(json[field], want, "{field}");
        }
        let row = &json["processes"][0];
        for (field, want) in [
            ("pid", json!(1234)),
            ("comm", json!("sqlite3")),
            ("references", json!(1_400_400)),
            ("reads", json!(1_000_010)),
            ("writes_total", json!(400_000)),
            ("fetches", json!(300)),
            ("kernel", json!(90)),
        ] {
            assert_eq!(row[field], want, "{field}");
        }
        assert_eq!(json["mappings"][1]["mapping_kind"], "file");
        assert_eq!(json["mappings"][1]["ino"], 7);
        assert_eq!(json["pairs"].as_array().map(Vec::len), Some(3));
        view.of.truncate(1);
        let line = super::json(&example(), &view);
        let json: Value = serde_json::from_str(&line).expect("JSON");
        assert!(json.get("mappings").is_none());
    }
}
