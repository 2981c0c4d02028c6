//! The status as text.

use std::fmt::Write;

use rust_mm_trace::uapi::{
    VMTRACE_MODE_BLOCK, VMTRACE_PACK, VMTRACE_PAUSABLE, VMTRACE_POLICY_CLOCK,
};

use crate::status::{State, Status};
use crate::units::{bytes, count, duration};

/// How a command under `run` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this exit code.
    Exited(u8),
    /// Killed by this signal.
    Killed(u8),
}

impl Ended {
    /// The exit code that a shell would give.
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128 + signal,
        }
    }
}

/// The end of a command under `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// How it ended.
    pub ended: Ended,
    /// Whether somebody else ended the trace before the command ended.
    pub cut_short: bool,
}

/// What is wrong with the trace; nothing, if it is good.
pub fn problems(status: &Status, command: Option<Command>) -> Vec<String> {
    let mut problems = status.problems();
    if command.is_some_and(|c| c.cut_short) {
        problems.push("the trace was ended before the command ended".to_owned());
    }
    problems
}

/// The progress of the windows, if the trace has windows.
pub fn windows(status: &Status) -> Option<String> {
    let raw = &status.raw;
    let has_any = raw.windows != 0 || raw.windows_begun != 0 || raw.flags & VMTRACE_PAUSABLE != 0;
    if !has_any {
        return None;
    }
    let mut text = count(raw.windows_ended.into());
    if raw.windows != 0 {
        text += &format!(" of {}", count(raw.windows.into()));
    }
    if status.has_regions() {
        text += ", of references or of regions";
    }
    if raw.windows_begun > raw.windows_ended {
        text += &format!("; in window {}", raw.windows_ended);
    } else if status.is_on() {
        text += match raw.windows {
            n if n == raw.windows_ended => "; all have ended; `activator off` ends the trace",
            _ if raw.flags & VMTRACE_PAUSABLE != 0 => "; paused",
            _ => "; between two",
        };
    }
    Some(text)
}

/// The present piece, if the trace is written in pieces.
fn piece(status: &Status) -> Option<String> {
    let directory = status.directory()?;
    let raw = &status.raw;
    let text = format!(
        "{}, {} of the trace; in {}",
        count(raw.piece.into()),
        bytes(raw.piece_bytes),
        directory.display()
    );
    Some(match (status.is_on(), status.is_rotated) {
        (true, Some(false)) => text + "; nobody rotates this trace",
        _ => text,
    })
}

/// The set of enabled pages.
fn pages(status: &Status) -> String {
    let raw = &status.raw;
    let mut set = format!("N={}{}", count(raw.evms_size.into()), status.for_each());
    if raw.batch > 1 {
        set += &format!(", batches of {}", raw.batch);
    }
    if u32::from(raw.policy) == VMTRACE_POLICY_CLOCK {
        set += &format!(", CLOCK, {} second chances", count(raw.chances));
    }
    if raw.interval > 0 {
        set += &format!("; all stays end each {} ms", raw.interval as f64 / 1e6);
    }
    match status.is_on() {
        true => format!(
            "{} enabled now, {} at most; {set}",
            count(raw.members),
            count(raw.members_max)
        ),
        false => format!("{} enabled at most; {set}", count(raw.members_max)),
    }
}

/// What `postproc` reads as the trace.
pub fn trace(status: &Status) -> String {
    let directory = status.directory().map(|d| d.display().to_string());
    directory.unwrap_or_else(|| status.output())
}

/// Writes the status in aligned lines.
pub fn human(status: &Status, command: Option<Command>) -> String {
    let raw = &status.raw;
    if status.is_never() {
        return "tracing    off; there was no trace since boot\n".to_owned();
    }
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{name:<11}{value}");
    };
    match command.map(|c| c.ended) {
        Some(Ended::Exited(code)) => line("command", format!("exited with {code}")),
        Some(Ended::Killed(signal)) => line("command", format!("killed by signal {signal}")),
        None => line(
            "tracing",
            match (status.state(), status.failure()) {
                (State::Failed, Some(why)) => format!("ended by itself: {why}"),
                (State::Off, _) => "off; this was the last trace".to_owned(),
                (state, _) => state.to_string(),
            },
        ),
    }
    line(
        "scope",
        format!(
            "{}; {} address space{}",
            status.scope(),
            count(raw.mms),
            if raw.mms == 1 { "" } else { "s" }
        ),
    );
    line("output", status.output());
    line(
        "written",
        match raw.flags & VMTRACE_PACK != 0 {
            false => format!("{} in {} packets", bytes(raw.bytes), count(raw.packets)),
            true => format!(
                "{} in {} packets, packed from {}",
                bytes(raw.stored),
                count(raw.packets),
                bytes(raw.bytes)
            ),
        },
    );
    line(
        "duration",
        match raw.ran {
            0 => duration(status.duration_ns()),
            ran => format!(
                "{}; programs had a CPU for {}",
                duration(status.duration_ns()),
                duration(ran)
            ),
        },
    );
    match status.is_of_regions() {
        true => line(
            "regions",
            "are sampled and reported as events; no reference is recorded".to_owned(),
        ),
        false => line(
            "references",
            format!(
                "{} ({} per second)",
                count(status.references()),
                count(status.rate() as u64)
            ),
        ),
    }
    if status.is_filtered() {
        line(
            "filter",
            format!("{} records of references left out", count(raw.left_out)),
        );
    }
    if status.is_counted() && status.is_on() {
        line(
            "counts",
            "by process and mapping; `activator top` shows them".to_owned(),
        );
    }
    line("events", count(raw.events));
    if let Some(windows) = windows(status) {
        line("windows", windows);
    }
    if let Some(piece) = piece(status) {
        line("piece", piece);
    }
    if let Some(what) = status.set_per() {
        line(
            "sets",
            format!(
                "one for each {what}; {} made, {} at most at once; {} address space{} set 0",
                count(raw.sets_made),
                count(raw.sets_max),
                count(raw.sets_shared),
                if raw.sets_shared == 1 {
                    " shares"
                } else {
                    "s share"
                }
            ),
        );
    }
    // Without references, no page is enabled or disabled.
    if !status.is_of_regions() {
        line("pages", pages(status));
    }
    line(
        "waits",
        match raw.mode {
            VMTRACE_MODE_BLOCK => format!("{} for room in the buffers", count(raw.waits)),
            _ => format!("none; {}", status.mode()),
        },
    );
    line(
        "uncovered",
        format!("{} accesses that cannot be traced", count(raw.uncovered)),
    );
    line(
        "lost",
        match status.lost() {
            0 => "0".to_owned(),
            lost => format!(
                "{} ({} buffers full, {} could not wait, {} output failed)",
                count(lost),
                count(raw.lost_full),
                count(raw.lost_atomic),
                count(raw.lost_io)
            ),
        },
    );
    line("funny", count(raw.funny));
    line("stuck", count(raw.stuck));
    let mut audits = format!(
        "{}; {} dangling members, {} counts wrong",
        count(raw.audits),
        count(raw.dangling),
        count(raw.miscounted)
    );
    if raw.unaudited > 0 {
        audits += &format!(
            "; not audited: {}, which stayed locked",
            count(raw.unaudited.into())
        );
    }
    line("audits", audits);
    let problems = problems(status, command);
    for problem in &problems {
        line("BAD", problem.clone());
    }
    if problems.is_empty() && status.state() == State::Off && status.is_written() {
        let next = match status.is_of_regions() {
            true => "regions",
            false => "check",
        };
        line("next", format!("postproc {next} {}", trace(status)));
    }
    text
}

/// Writes the status as one line of JSON.
pub fn json(status: &Status, command: Option<Command>) -> String {
    let mut map = status.json();
    map.insert("problems".into(), problems(status, command).into());
    map.insert("of_regions".into(), status.is_of_regions().into());
    if let Some(directory) = status.directory() {
        map.insert("directory".into(), directory.to_string_lossy().into());
    }
    if let Some(is_rotated) = status.is_rotated {
        map.insert("rotated_by_somebody".into(), is_rotated.into());
    }
    if let Some(command) = command {
        map.insert("command_exit_code".into(), command.ended.code().into());
    }
    format!("{}\n", serde_json::Value::from(map))
}

/// Adds fields to what [`json`] has written.
pub fn with<const K: usize>(text: String, fields: [(&str, serde_json::Value); K]) -> String {
    match serde_json::from_str(&text) {
        Ok(serde_json::Value::Object(mut map)) => {
            map.extend(fields.map(|(name, value)| (name.to_owned(), value)));
            format!("{}\n", serde_json::Value::from(map))
        }
        _ => text,
    }
}

/// The column headings of the table that [`watch_row`] fills.
pub const WATCH_HEAD: &str =
    "     time   references  refs/s       events    written  pages      waits  lost\n";

/// Writes the status as a row; `before` is the status in the last row.
pub fn watch_row(status: &Status, before: Option<&Status>) -> String {
    let (refs, ns) = match before {
        Some(b) => (
            status.references().saturating_sub(b.references()),
            status.duration_ns().saturating_sub(b.duration_ns()),
        ),
        None => (status.references(), status.duration_ns()),
    };
    let rate = if ns == 0 {
        0.0
    } else {
        refs as f64 * 1e9 / ns as f64
    };
    format!(
        "{:>9} {:>12} {:>7} {:>12} {:>10} {:>6} {:>10} {:>5}\n",
        duration(status.duration_ns()),
        count(status.references()),
        count(rate as u64),
        count(status.raw.events),
        bytes(status.raw.stored),
        count(status.raw.members),
        count(status.raw.waits),
        count(status.lost()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use rust_mm_trace::uapi::{
        VMTRACE_FILTERED, VMTRACE_PIECE, VMTRACE_SETS_CGROUP, VMTRACE_SETS_PROCESS,
        VMTRACE_STATE_ON,
    };

    fn status() -> Status {
        Fake::example()
    }

    fn exited(ended: Ended) -> Option<Command> {
        Some(Command {
            ended,
            cut_short: false,
        })
    }

    #[test]
    fn a_good_trace() {
        assert_eq!(
            human(&status(), exited(Ended::Exited(0))),
            "\
command    exited with 0
scope      process 42 and its children; 3 address spaces
output     /data/t.vmt
written    37.7 MiB in 605 packets
duration   12.5 s
references 1,234,567 (98,765 per second)
events     1,234
pages      512 enabled at most; N=512
waits      7 for room in the buffers
uncovered  2 accesses that cannot be traced
lost       0
funny      0
stuck      0
audits     0; 0 dangling members, 0 counts wrong
next       postproc check /data/t.vmt
"
        );
    }

    #[test]
    fn a_trace_that_is_on() {
        let mut status = status();
        status.raw.state = VMTRACE_STATE_ON;
        (status.raw.members, status.raw.unaudited) = (500, 2);
        let text = human(&status, None);
        assert!(text.starts_with("tracing    on\nscope "), "{text}");
        assert!(text.contains("\npages      500 enabled now, 512 at most; N=512\n"));
        assert!(text.ends_with(" 0 counts wrong; not audited: 2, which stayed locked\n"));
        status.raw.batch = 8;
        let text = human(&status, None);
        assert!(text.contains("at most; N=512, batches of 8\n"), "{text}");
    }

    #[test]
    fn sets_of_a_trace() {
        let mut status = status();
        let lines = |status: &Status| {
            let text = human(status, exited(Ended::Exited(0)));
            let found = text
                .lines()
                .filter(|l| ["sets ", "pages ", "BAD "].iter().any(|w| l.starts_with(w)));
            found.map(str::to_owned).collect::<Vec<_>>()
        };
        // With one set, there is nothing new.
        assert_eq!(lines(&status), ["pages      512 enabled at most; N=512"]);
        status.raw.sets = VMTRACE_SETS_PROCESS;
        (status.raw.sets_made, status.raw.sets_max) = (1234, 5);
        (status.raw.members_max, status.raw.batch) = (2000, 8);
        assert_eq!(
            lines(&status),
            [
                "sets       one for each process; 1,234 made, 5 at most at once; 0 address spaces \
                 share set 0",
                "pages      2,000 enabled at most; N=512 for each process, batches of 8",
            ]
        );
        (status.raw.sets, status.raw.sets_shared) = (VMTRACE_SETS_CGROUP, 1);
        assert_eq!(
            lines(&status),
            [
                "sets       one for each control group; 1,234 made, 5 at most at once; 1 address \
                 space shares set 0",
                "pages      2,000 enabled at most; N=512 for each control group, batches of 8",
                "BAD        1 address spaces share set 0, because there was no memory for sets of \
                 their own",
            ]
        );
        let value: serde_json::Value = serde_json::from_str(&json(&status, None)).expect("JSON");
        for (field, want) in [
            ("sets", 2),
            ("sets_made", 1234),
            ("sets_max", 5),
            ("sets_shared", 1),
        ] {
            assert_eq!(value[field], want, "{field}");
        }
    }

    #[test]
    fn a_packed_trace() {
        let mut s = status();
        let written = |s: &Status| {
            let text = human(s, None);
            let line = text.lines().find(|line| line.starts_with("written "));
            line.map(str::to_owned)
        };
        let plain = written(&s).expect("a line");
        assert!(!plain.contains("packed"), "{plain}");
        (s.raw.stored, s.raw.flags) = (s.raw.bytes / 8, VMTRACE_PACK);
        let packed = written(&s).expect("a line");
        assert!(
            packed.contains("4.7 MiB in 605 packets, packed from 37.7 MiB"),
            "{packed}"
        );
    }

    #[test]
    fn references_left_out() {
        let mut s = status();
        assert!(!human(&s, None).contains("\nfilter "));
        s.raw.flags = VMTRACE_FILTERED;
        let told = |s: &Status, want: &str| {
            let text = human(s, None);
            assert!(text.contains(want), "{text}");
        };
        told(&s, "\nfilter     0 records of references left out\nevents ");
        (s.raw.refs, s.raw.left_out) = (234_567, 1_000_000);
        told(&s, "references 1,234,567 (");
        told(
            &s,
            "\nfilter     1,000,000 records of references left out\n",
        );
        assert!(!human(&s, None).contains("BAD"));
        let value: serde_json::Value = serde_json::from_str(&json(&s, None)).expect("JSON");
        assert_eq!(value["left_out"], 1_000_000);
    }

    #[test]
    fn windows_of_a_trace() {
        let told = |on: bool, windows, begun, ended| {
            let mut s = status();
            (s.raw.state, s.raw.windows) = (u32::from(on), windows);
            (s.raw.windows_begun, s.raw.windows_ended) = (begun, ended);
            windows_line(&human(&s, None))
        };
        assert_eq!(told(true, 0, 0, 0), None);
        let some = |s: &str| Some(s.to_owned());
        assert_eq!(told(true, 10, 3, 2), some("2 of 10; in window 2"));
        assert_eq!(told(true, 10, 3, 3), some("3 of 10; between two"));
        assert_eq!(
            told(true, 10, 10, 10),
            some("10 of 10; all have ended; `activator off` ends the trace")
        );
        assert_eq!(told(false, 10, 3, 3), some("3 of 10"));
        assert_eq!(told(true, 0, 4, 3), some("3; in window 3"));
    }

    #[test]
    fn pieces_of_a_trace() {
        let mut s = status();
        assert!(!human(&s, None).contains("\npiece "));
        (s.raw.flags, s.raw.piece, s.raw.piece_bytes) = (VMTRACE_PIECE, 12, 5 << 20);
        s.raw.output = crate::control::raw_rotate("/data/t/00012.vmtrace", 1).output;
        let told = |s: &Status, want: &str| {
            let text = human(s, None);
            assert!(text.contains(want), "{text}");
        };
        told(&s, "\npiece      12, 5.0 MiB of the trace; in /data/t\n");
        told(&s, "\nnext       postproc check /data/t\n");
        s.raw.state = VMTRACE_STATE_ON;
        s.is_rotated = Some(true);
        told(&s, "; in /data/t\n");
        s.is_rotated = Some(false);
        told(&s, "; in /data/t; nobody rotates this trace\n");
        let value: serde_json::Value = serde_json::from_str(&json(&s, None)).expect("JSON");
        for (field, want) in [
            ("piece", 12.into()),
            ("piece_bytes", (5 << 20).into()),
            ("directory", "/data/t".into()),
            ("rotated_by_somebody", serde_json::Value::from(false)),
        ] {
            assert_eq!(value[field], want, "{field}");
        }
    }

    fn windows_line(text: &str) -> Option<String> {
        let line = text.lines().find_map(|l| l.strip_prefix("windows"))?;
        Some(line.trim_start().to_owned())
    }

    #[test]
    fn a_bad_trace() {
        let mut status = status();
        (status.raw.lost_full, status.raw.lost_io) = (5, 1000);
        let text = human(&status, exited(Ended::Killed(9)));
        assert!(text.starts_with("command    killed by signal 9\n"));
        assert!(text.contains(
            "\nlost       1,005 (5 buffers full, 0 could not wait, 1,000 output failed)\n"
        ));
        assert!(
            text.ends_with(
                "BAD        5 records lost because the buffers were full\n\
                 BAD        1,000 records lost because the output failed\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn json_is_a_line() {
        let text = json(&status(), exited(Ended::Killed(15)));
        assert_eq!(text.lines().count(), 1);
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["refs"], 1_234_567);
        assert_eq!(value["command_exit_code"], 143);
    }

    #[test]
    fn rows_fit_their_head() {
        let row = watch_row(&status(), None);
        assert_eq!(row.len(), WATCH_HEAD.len(), "\n{WATCH_HEAD}{row}");
        let mut later = status();
        later.raw.stop_time += 2_000_000_000;
        later.raw.refs += 5000;
        assert!(watch_row(&later, Some(&status())).contains(" 2,500 "));
    }
}
