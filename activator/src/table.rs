//! What `activator top` shows of an interval: tables for people, and JSON.

use serde_json::{Map, Value, json};

use crate::budget;
use crate::counts::{Interval, Of, Process, Row, Sort, Tally};
use crate::rings::{self, Changes, Kind};
use crate::summary;
use crate::units::{count, duration};

/// What is shown.
#[derive(Clone, Debug)]
pub struct View {
    /// The tables of counts.
    pub of: Vec<Of>,
    /// Whether there is a table of rings.
    pub is_by_ring: bool,
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

/// The message for a kernel that does not report its rings.
pub const RINGLESS: &str = "this kernel is too old to report its rings; boot one that was built \
     with this program";

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

/// How many times as long programs took in the interval, if a reference takes `cost` ns. `None` if they
/// did not run, or the kernel does not report for how long.
fn slowdown(interval: &Interval, cost: f64) -> Option<f64> {
    let (now, before) = (&interval.status.raw, &interval.before.raw);
    let ran = now.ran.saturating_sub(before.ran) as f64;
    budget::slowdown(ran, interval.references as f64 * cost)
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
        let longer = match slowdown(interval, cost) {
            Some(factor) => format!("programs take about {factor:.2} times as long: "),
            None => String::new(),
        };
        line(
            "slowdown",
            format!(
                "{longer}references take about {} of one CPU's time, at {} each",
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
    if let Some(rings) = &interval.rings {
        line("rings", rings_in_short(rings));
    }
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

/// How full the fullest rings are, and whether records were lost.
fn rings_in_short(changes: &Changes) -> String {
    let fill = |kind| changes.fullest(kind).map(|row| (percent(row.fill()), row));
    let mut parts = Vec::new();
    if let Some((full, row)) = fill(Kind::References) {
        parts.push(format!(
            "references {full} full at most (CPU {})",
            row.ring.cpu
        ));
    }
    if let Some((full, row)) = fill(Kind::Events) {
        parts.push(match parts.is_empty() {
            false => format!("events {full}"),
            true => format!("events {full} full at most (CPU {})", row.ring.cpu),
        });
    }
    let fills = match parts.is_empty() {
        // As between windows.
        true => "none now".to_owned(),
        false => parts.join(", "),
    };
    let since = |total| format!("{} since the start", count(total));
    match changes.lost() {
        (0, 0) => format!("{fills}; 0 records lost"),
        (0, total) => format!("{fills}; 0 records lost, {}", since(total)),
        // A narrow terminal cuts the end.
        (new, total) => format!("LOST {} records, {}; {fills}", count(new), since(total)),
    }
}

/// The table of rings: its head and its rows, of at most `width` characters.
fn ring_table(changes: &Changes, view: &View, width: usize) -> (String, Vec<String>) {
    type Column<'a> = (&'static str, Box<dyn Fn(&rings::Row) -> String + 'a>);
    fn number<'a>(name: &'static str, of: fn(&rings::Row) -> u64) -> Column<'a> {
        (name, Box::new(move |row| short(of(row) as f64)))
    }
    let mut columns: Vec<Column<'_>> = vec![
        ("FULL", Box::new(|row| percent(row.fill()))),
        number("WAITING", |row| row.ring.waiting),
        (
            "RECS/S",
            Box::new(|row| {
                let rate = row.records.map(|n| short(changes.rate(n)));
                rate.unwrap_or_else(|| "-".to_owned())
            }),
        ),
        number("LOST", |row| row.lost),
        number("TOTAL", |row| row.lost_total),
        number("BUFFERS", |row| row.ring.buffers.into()),
    ];
    // The CPU and the kind.
    let fixed = 7 + 11;
    while columns.len() > 1 && fixed + COLUMN * columns.len() > width {
        columns.pop();
    }
    let heads = columns.iter().map(|(name, _)| format!("{name:>COLUMN$}"));
    let top = format!("    CPU {:<10}{}", "KIND", heads.collect::<String>());
    let rows = changes.rows(view.sort);
    let rows = rows.iter().map(|row| {
        let numbers = columns
            .iter()
            .map(|(_, text)| format!("{:>COLUMN$}", text(row)));
        let numbers = numbers.collect::<String>();
        format!("{:>7} {:<10}{numbers}", row.ring.cpu, row.kind().word())
    });
    (top, rows.collect())
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
    let tables: Result<Vec<_>, _> = match (&interval.rings, view.is_by_ring) {
        (Some(rings), true) => Ok(vec![ring_table(rings, view, width)]),
        (None, true) => Err(RINGLESS),
        (_, false) if interval.is_counted => {
            let tables = view.of.iter().map(|of| table(interval, view, *of, width));
            Ok(tables.collect())
        }
        (_, false) => Err(UNCOUNTED),
    };
    match tables {
        Ok(mut tables) => {
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
        }
        Err(message) => {
            lines.push(String::new());
            lines.push(message.to_owned());
        }
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
    put("ran_ns", now.raw.ran.saturating_sub(before.raw.ran).into());
    let factor = view.cost.and_then(|cost| slowdown(interval, cost));
    put("slowdown", json!(factor));
    put("problems", json!(now.problems()));
    let rings = interval.rings.as_ref().map(|changes| {
        let most = match view.is_by_ring {
            true => view.rows.unwrap_or(usize::MAX),
            false => usize::MAX,
        };
        let rows = changes.rows(view.sort);
        let rows = rows.iter().take(most).map(|row| json_ring(changes, row));
        rows.collect::<Vec<_>>()
    });
    put("rings", json!(rings));
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

/// The kernel's figures under the kernel's names, and what follows from them.
fn json_ring(changes: &Changes, row: &rings::Row) -> Value {
    let mut map = Map::new();
    macro_rules! fields {
        ($($name:ident)*) => {
            $(map.insert(stringify!($name).into(), json!(row.ring.$name));)*
        };
    }
    fields!(cpu buffers buffer_size free full waiting lost_full lost_atomic);
    fields!(admissions renewed chances left_out);
    let mut put = |name: &str, value: Value| {
        map.insert(name.to_owned(), value);
    };
    put("kind", row.kind().word().into());
    put("fill", json!(row.fill()));
    put("records", json!(row.records));
    put("records_total", json!(row.records_total));
    let rate = row.records.map(|n| changes.rate(n));
    put("records_per_second", json!(rate));
    put("lost", row.lost.into());
    put("lost_total", row.lost_total.into());
    Value::from(map)
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
    use crate::rings::{Rings, ring};
    use rust_mm_trace::uapi::{
        VMTRACE_COUNTED, VMTRACE_FILTERED, VMTRACE_STATE_ON, VMTRACE_UNWRITTEN, vmtrace_count,
        vmtrace_ring,
    };

    fn view(of: &[Of]) -> View {
        View {
            of: of.to_vec(),
            is_by_ring: false,
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
            rings: None,
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
            rings: None,
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

    /// Rings of two CPUs in an interval of 2 s. Of the references of CPU 1, so many were lost
    /// before the interval and in it.
    fn with_rings([before, new]: [u64; 2]) -> Interval {
        let mut interval = example();
        let at = |time, admissions, lost_full| Rings {
            time,
            list: vec![
                ring(Kind::References, 0, [7, 0]),
                ring(Kind::Events, 0, [7, 0]),
                vmtrace_ring {
                    waiting: 123_456,
                    admissions,
                    lost_full,
                    ..ring(Kind::References, 1, [2, 5])
                },
                ring(Kind::Events, 1, [6, 0]),
            ],
            is_complete: true,
        };
        let earlier = at(0, 10_000, before);
        let now = at(2_000_000_000, 410_000 + new, before + new);
        interval.rings = Some(Changes::new(Some(&earlier), &now));
        interval
    }

    #[test]
    fn rings_in_the_head() {
        let line = |interval: &Interval, size| {
            let got = text(interval, &view(&[Of::Process]), size);
            let mut lines = got.lines().filter(|l| l.starts_with("rings "));
            let line = lines.next().map(str::to_owned);
            assert_eq!(lines.next(), None);
            line
        };
        assert_eq!(line(&example(), None), None);
        let fills = "references 75.0% full at most (CPU 1), events 25.0%";
        for (lost, want) in [
            ([0, 0], format!("{fills}; 0 records lost")),
            (
                [4567, 0],
                format!("{fills}; 0 records lost, 4,567 since the start"),
            ),
            (
                [0, 123],
                format!("LOST 123 records, 123 since the start; {fills}"),
            ),
            (
                [4567, 123],
                format!("LOST 123 records, 4,690 since the start; {fills}"),
            ),
        ] {
            assert_eq!(
                line(&with_rings(lost), None),
                Some(format!("rings      {want}"))
            );
        }
        // Nothing is cut from what matters.
        let size = Some(Size {
            columns: 30,
            lines: 24,
        });
        assert_eq!(
            line(&with_rings([0, 123]), size).as_deref(),
            Some("rings      LOST 123 records, …")
        );
        // Between windows, and with events only.
        let mut interval = example();
        let rings = |list| {
            let now = Rings {
                list,
                ..Rings::none(1)
            };
            Some(Changes::new(Some(&Rings::none(0)), &now))
        };
        interval.rings = rings(Vec::new());
        let want = "rings      none now; 0 records lost";
        assert_eq!(line(&interval, None).as_deref(), Some(want));
        interval.rings = rings(vec![ring(Kind::Events, 3, [4, 1])]);
        let want = "rings      events 50.0% full at most (CPU 3); 0 records lost";
        assert_eq!(line(&interval, None).as_deref(), Some(want));
    }

    fn by_ring() -> View {
        View {
            is_by_ring: true,
            sort: Sort::Full,
            ..view(&[])
        }
    }

    #[test]
    fn a_table_of_rings() {
        let got = text(&with_rings([4567, 123]), &by_ring(), None);
        let (_, table) = got.split_once("\n\n").expect("a table");
        assert_eq!(
            table,
            "    CPU KIND          FULL WAITING  RECS/S    LOST   TOTAL BUFFERS
      1 references   75.0%    123k    200k     123   4,690       8
      1 events       25.0%       0       -       0       0       8
      0 references   12.5%       0       0       0       0       8
      0 events       12.5%       0       -       0       0       8
"
        );
        let mut view = by_ring();
        (view.rows, view.sort) = (Some(3), Sort::Cpu);
        let got = text(&with_rings([0, 0]), &view, None);
        let rows: Vec<_> = got.lines().rev().take(4).collect();
        assert!(rows[1].starts_with("      1 references "), "{got}");
        assert!(rows[3].starts_with("      0 references "), "{got}");
        assert_eq!(rows[0], "and 1 more");
        // It needs no counts.
        let mut interval = with_rings([0, 0]);
        interval.is_counted = false;
        let got = text(&interval, &by_ring(), None);
        assert!(
            got.contains("      1 events ") && !got.contains(UNCOUNTED),
            "{got}"
        );
        let got = text(&interval, &self::view(&[Of::Process]), None);
        assert!(
            got.contains("\nrings ") && got.ends_with(&format!("\n\n{UNCOUNTED}\n")),
            "{got}"
        );
        // An old kernel has none.
        let got = text(&example(), &by_ring(), None);
        assert!(got.ends_with(&format!("\n\n{RINGLESS}\n")), "{got}");
    }

    #[test]
    fn a_table_of_rings_fits_on_the_terminal() {
        for columns in [0, 1, 10, 18, 26, 40, 57, 65, 66, 80, 200] {
            for lines in [0, 1, 2, 5, 9, 10, 24] {
                let size = Some(Size { columns, lines });
                let got = text(&with_rings([4567, 123]), &by_ring(), size);
                assert!(got.lines().count() <= lines.saturating_sub(1));
                for line in got.lines() {
                    assert!(line.chars().count() <= columns, "{columns}: {line}");
                }
            }
        }
        let at = |columns| {
            let size = Some(Size { columns, lines: 24 });
            text(&with_rings([4567, 123]), &by_ring(), size)
        };
        assert!(at(66).contains("   TOTAL BUFFERS\n"), "{}", at(66));
        assert!(at(65).contains("    LOST   TOTAL\n"), "{}", at(65));
        assert!(at(20).contains("    CPU KIND       "), "{}", at(20));
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
        // In 2 s: programs ran for 1 s, of which 700.3 ms were for references.
        let mut busy = example();
        busy.status.raw.ran = busy.before.raw.ran + 1_000_000_000;
        let longer = text(&busy, &view, None);
        let told = "\nslowdown   programs take about 3.34 times as long: references take";
        assert!(longer.contains(told), "{longer}");
        let json: serde_json::Value = serde_json::from_str(&json(&busy, &view)).expect("JSON");
        assert_eq!(json["ran_ns"], 1_000_000_000);
        assert!(
            json["slowdown"]
                .as_f64()
                .is_some_and(|f| (f - 3.3367).abs() < 1e-3),
            "{json}"
        );
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
        assert_eq!(json["rings"], Value::Null);
        view.of.truncate(1);
        let line = super::json(&example(), &view);
        let json: Value = serde_json::from_str(&line).expect("JSON");
        assert!(json.get("mappings").is_none());
    }

    #[test]
    fn json_has_all_rings() {
        let told = |interval: &Interval, view: &View| {
            let line = json(interval, view);
            let told: Value = serde_json::from_str(&line).expect("JSON");
            told["rings"].as_array().expect("rings").clone()
        };
        let rings = told(&with_rings([4567, 123]), &view(&[Of::Process]));
        assert_eq!(
            rings[0],
            json!({
                "kind": "references", "cpu": 1, "buffers": 8, "buffer_size": 65536,
                "free": 2, "full": 5, "waiting": 123_456, "fill": 0.75,
                "lost_full": 4690, "lost_atomic": 0, "lost": 123, "lost_total": 4690,
                "admissions": 410_123, "renewed": 0, "chances": 0, "left_out": 0,
                "records": 400_000, "records_total": 405_433, "records_per_second": 200_000.0,
            })
        );
        assert_eq!(rings[1]["kind"], "events");
        for field in ["records", "records_total", "records_per_second"] {
            assert_eq!(rings[1].get(field), Some(&Value::Null));
        }
        // --rows is about tables.
        let mut view = view(&[Of::Process]);
        view.rows = Some(1);
        assert_eq!(told(&with_rings([0, 0]), &view).len(), 4);
        view.is_by_ring = true;
        assert_eq!(told(&with_rings([0, 0]), &view).len(), 1);
    }
}
