//! The numbers of a report, and their form as text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Serialize;

use super::classes::Class;
use super::grouped;
use super::statistics::{Counters, Statistics};
use crate::check::{CheckReport, Severity};
use crate::filter::{Filtered, LeftOut};
use crate::pipeline::{Freeing, Outcome, World};
use crate::sim::{Band, Certificate, Curve, CurvePoint};
use crate::trace::{Header, MapKind, Part, RefFlags, Status, Trace, Why};
use crate::units::Access;

/// Processes and mappings in a table, at most.
const ROWS: usize = 25;
/// Points of the curve in the summary, at most.
pub(super) const POINTS: usize = 256;

/// References of one kind of access, by who made the access.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct KindCounts {
    /// References that the program itself made.
    pub user: u64,
    /// References that the kernel made on the program's behalf.
    pub kernel: u64,
}

/// References by kind of access.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Kinds {
    /// Loads.
    pub read: KindCounts,
    /// Stores.
    pub write: KindCounts,
    /// Instruction fetches.
    pub exec: KindCounts,
    /// Second chances, whose kind of access is unknown.
    pub seen: KindCounts,
}

/// A process and its references.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessRow {
    /// The process id; 0 for threads that no event mentions.
    pub pid: u32,
    /// The name of the process.
    pub comm: String,
    /// The file that the process executed.
    pub exe: String,
    /// The references of the process.
    #[serde(flatten)]
    pub counters: Counters,
}

/// A mapped object and the references to it.
#[derive(Clone, Debug, Serialize)]
pub struct MappingRow {
    /// The name of the object.
    pub name: String,
    /// The kind of mapping.
    pub kind: MapKind,
    /// The object's use by a program.
    pub class: Class,
    /// The object's number; none for references outside all mappings.
    #[serde(skip)]
    pub object: Option<usize>,
    /// The references to the object.
    #[serde(flatten)]
    pub counters: Counters,
}

/// A size of the LRU curve, and its band.
#[derive(Clone, Debug, Serialize)]
pub struct BoundedPoint {
    /// The result for the references in the trace.
    #[serde(flatten)]
    pub point: CurvePoint,
    /// `low` and `high`: the proven bounds on the misses that all references of the run would
    /// give.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
}

impl BoundedPoint {
    /// The points of a curve, at most `count`.
    pub(super) fn of(curve: &Curve, count: usize, certificate: Option<&Certificate>) -> Vec<Self> {
        let bounded = |point: CurvePoint| BoundedPoint {
            band: certificate.and_then(|c| c.lru(point.size_pages)),
            point,
        };
        curve.sampled(count).into_iter().map(bounded).collect()
    }
}

/// The LRU curve at some sizes.
#[derive(Clone, Debug, Serialize)]
pub struct CurveSummary {
    /// The smallest memory that has only cold misses, in pages.
    pub footprint_pages: u64,
    /// Cold misses, which no memory avoids.
    pub cold: u64,
    /// The smallest memory for which the results stand for all references, in pages; `None` if
    /// none does, because the references are to several sets, or a filter has left some out.
    pub valid_from_pages: Option<u64>,
    /// The points, each size the same factor above the one before it.
    pub points: Vec<BoundedPoint>,
}

/// The sets of a trace that has several.
#[derive(Clone, Debug, Serialize)]
pub struct SetsSummary {
    /// What each set is of, and how many there were.
    pub of: String,
    /// Whether the references are to one set nevertheless. Only then are there bands.
    pub exact: bool,
    /// If not, why.
    pub why_not_exact: Option<&'static str>,
}

impl SetsSummary {
    fn of(header: &Header, status: Option<&Status>, world: &World) -> Option<Self> {
        let several = world.has_several_sets();
        header.sets.are_several().then(|| SetsSummary {
            of: header.sets.counted(status),
            exact: !several,
            why_not_exact: several.then_some(
                "The references are to several sets. A reference is in the trace if the page was \
                 not in its own set, which says nothing about how many pages of other sets were \
                 referenced since. So there are no proven bands. `postproc simulate --set NUMBER` \
                 gives the bands of one set.",
            ),
        })
    }
}

/// All numbers of a report.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The trace's file.
    pub path: String,
    /// The trace's UUID.
    pub uuid: String,
    /// Kernel release and machine.
    pub kernel: String,
    /// The processes that were traced.
    pub scope: String,
    /// N, in pages.
    pub evms_size: u32,
    /// The sets, if the trace has several, each of N pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sets: Option<SetsSummary>,
    /// Bytes of a page.
    pub page_size: u64,
    /// Possible CPUs.
    pub cpus: u32,
    /// The time at which tracing began, in nanoseconds since the Unix epoch.
    pub started_unix_ns: i128,
    /// The time from the start of tracing to its end.
    pub duration_ns: u64,
    /// Bytes of the trace.
    pub bytes: u64,
    /// Packets read.
    pub packets: u64,
    /// References: stays that began, and second chances. With a filter, those that it kept.
    pub references: u64,
    /// What a filter has kept and left out. All figures about references, pages, processes and
    /// mappings are about what it kept; events and the checks are those of the whole trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filtered>,
    /// What the kernel's filter has left out, if the trace may have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filtered: Option<LeftOut>,
    /// Which process's part of a trace this is, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// Renewals: records of stays that went on, which do not count as references.
    pub renewals: u64,
    /// Events.
    pub events: u64,
    /// Events by type.
    pub event_types: BTreeMap<&'static str, u64>,
    /// Distinct canonical pages.
    pub distinct_pages: u64,
    /// The bytes of these pages.
    pub distinct_bytes: u64,
    /// The sizes of huge pages that were mapped, in bytes. Each huge page is one of
    /// `distinct_pages`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub huge_page_sizes: BTreeSet<u64>,
    /// References to huge pages.
    pub huge_references: u64,
    /// Processes seen.
    pub processes: u64,
    /// References per second. All of them are page faults, except second chances.
    pub faults_per_second: f64,
    /// References by kind.
    pub kinds: Kinds,
    /// Stays in which a store to the page was made or begun.
    pub dirtied: u64,
    /// Records by the reason why they ended.
    pub ended: BTreeMap<Why, u64>,
    /// References that lie in no mapping, that the mapping's protection forbids, or that are to
    /// an address space that does not exist.
    pub violations: u64,
    /// Records lost; `None` if the trace has no end.
    pub lost: Option<u64>,
    /// Enabled pages that were not in the set; `None` if the trace has no end.
    pub funny: Option<u64>,
    /// The kernel's account.
    pub status: Option<Status>,
    /// The processes with the most references.
    pub top_processes: Vec<ProcessRow>,
    /// The mapped objects with the most references.
    pub top_mappings: Vec<MappingRow>,
    /// Whether freed pages left memory at once, or were kept.
    pub freeing: Freeing,
    /// LRU misses by size of memory.
    pub lru: CurveSummary,
    /// The findings of the rules.
    pub check: CheckReport,
}

impl Summary {
    /// Combines the results of a pass.
    pub fn new(
        trace: &Trace,
        outcome: &Outcome,
        statistics: &Statistics,
        check: CheckReport,
        curve: &Curve,
        certificate: Option<&Certificate>,
        freeing: Freeing,
    ) -> Self {
        let header = trace.header();
        let status = trace.index().end.as_ref().map(|e| e.status.clone());
        let span = statistics
            .last_ns
            .saturating_sub(statistics.first_ns.unwrap_or(0));
        let duration_ns = status
            .as_ref()
            .and_then(|s| s.stop_time_ns.checked_sub(s.start_time_ns))
            .filter(|&d| d > 0)
            .unwrap_or(span);
        let world = &outcome.world;
        let mut kinds = Kinds::default();
        let mut dirtied = 0;
        let mut ended = BTreeMap::new();
        for (index, &count) in statistics
            .by_flags
            .iter()
            .enumerate()
            .filter(|(_, c)| **c > 0)
        {
            let flags = RefFlags(index as u16);
            let kind = match flags.access() {
                Access::Read => &mut kinds.read,
                Access::Write => &mut kinds.write,
                Access::Exec => &mut kinds.exec,
                Access::Seen => &mut kinds.seen,
            };
            *(if flags.kernel() {
                &mut kind.kernel
            } else {
                &mut kind.user
            }) += count;
            dirtied += if flags.dirtied() { count } else { 0 };
            *ended.entry(flags.why()).or_insert(0) += count;
        }
        let (huge_references, huge_bytes) = huge(outcome, statistics, header.page_size());
        let errors = |id: &str| check.rule(id).map_or(0, |r| r.errors);
        Summary {
            path: trace.path().display().to_string(),
            uuid: header.uuid.to_string(),
            kernel: format!("{} {}", header.release, header.arch),
            scope: header.scope_text(),
            evms_size: header.evms_size,
            sets: SetsSummary::of(header, status.as_ref(), world),
            page_size: header.page_size(),
            cpus: header.nr_cpus,
            started_unix_ns: i128::from(header.start_time_ns)
                + i128::from(header.realtime_offset_ns),
            duration_ns,
            bytes: trace.index().stop,
            packets: outcome.packets,
            references: world.references,
            filter: None,
            filtered: None,
            part: trace.part().cloned(),
            renewals: world.renewals,
            events: world.events,
            event_types: statistics.events.clone(),
            distinct_pages: statistics.distinct_pages,
            distinct_bytes: statistics
                .distinct_pages
                .saturating_mul(header.page_size())
                .saturating_add(huge_bytes),
            huge_page_sizes: world.space.huge_pages().clone(),
            huge_references,
            processes: world.tasks.processes().len() as u64,
            faults_per_second: world.references as f64 / (duration_ns.max(1) as f64 / 1e9),
            kinds,
            dirtied,
            ended,
            violations: errors("mapped") + errors("permitted") + errors("lifecycle"),
            lost: status.as_ref().map(Status::lost),
            funny: status.as_ref().map(|s| s.funny),
            status,
            top_processes: process_rows(outcome, statistics),
            top_mappings: mapping_rows(outcome, statistics),
            freeing,
            lru: CurveSummary {
                footprint_pages: curve.footprint(),
                cold: curve.cold,
                valid_from_pages: Some(4 * u64::from(header.evms_size))
                    .filter(|_| !world.has_several_sets() && !trace.is_partial()),
                points: BoundedPoint::of(curve, POINTS, certificate),
            },
            check,
        }
    }
}

impl Summary {
    /// The results are about references that a filter has kept.
    pub fn filter(&mut self, filtered: Filtered) {
        self.references = filtered.kept;
        self.faults_per_second = self.references as f64 / (self.duration_ns.max(1) as f64 / 1e9);
        self.lru.valid_from_pages = None;
        self.filter = Some(filtered);
    }

    /// The trace may have a filter of the kernel.
    pub fn left_out(&mut self, left_out: LeftOut) {
        if left_out.is_any {
            self.lru.valid_from_pages = None;
        }
        self.filtered = Some(left_out);
    }

    /// Which process's part it is, in words.
    pub(super) fn part_text(&self) -> Option<String> {
        let part = self.part.as_ref()?;
        let comm = printable(&part.comm, 16);
        let text = format!("the part of process {} {comm}", part.pid.0);
        Some(text.trim_end().into())
    }

    /// Whether references are missing by a filter.
    pub(super) fn lacks(&self) -> bool {
        let by_kernel = self
            .filtered
            .as_ref()
            .is_some_and(|left_out| left_out.is_any);
        by_kernel || self.filter.is_some()
    }
}

/// The references to huge pages, and the bytes that these pages have beyond those of as many
/// small ones.
fn huge(outcome: &Outcome, statistics: &Statistics, page_size: u64) -> (u64, u64) {
    let objects = outcome.world.space.objects().iter();
    let counted = objects.zip(&statistics.by_object);
    let huge = counted.filter_map(|(object, counters)| object.huge.zip(Some(counters)));
    huge.fold((0, 0), |(references, bytes), (size, counters)| {
        let more = size.saturating_sub(page_size);
        (
            references + counters.references,
            bytes.saturating_add(counters.new_pages.saturating_mul(more)),
        )
    })
}

/// Sizes in bytes, in words.
pub fn sizes_text(sizes: &BTreeSet<u64>) -> String {
    let sizes: Vec<_> = sizes.iter().map(|&size| bytes_text(size)).collect();
    sizes.join(" and ")
}

/// The name of a process, by which --process finds it, and the file that it executed if that has another
/// name.
fn process_text(comm: &str, exe: &str) -> String {
    // The kernel cuts the name.
    const LONGEST: usize = 15;
    let file = exe.rsplit('/').next().unwrap_or(exe);
    let is_cut = comm.len() == LONGEST && file.starts_with(comm);
    match file.is_empty() || file == comm || is_cut {
        true => comm.into(),
        false => format!("{comm} ({exe})"),
    }
}

fn process_rows(outcome: &Outcome, statistics: &Statistics) -> Vec<ProcessRow> {
    let mut rows: Vec<ProcessRow> = outcome
        .world
        .tasks
        .processes()
        .iter()
        .zip(&statistics.by_process)
        .filter(|(_, counters)| counters.references > 0)
        .map(|(process, &counters)| ProcessRow {
            pid: process.tgid.0,
            comm: process.comm.clone(),
            exe: process.exe.clone(),
            counters,
        })
        .collect();
    if statistics.unknown_process.references > 0 {
        rows.push(ProcessRow {
            pid: 0,
            comm: "(unknown)".into(),
            exe: String::new(),
            counters: statistics.unknown_process,
        });
    }
    rows.sort_by_key(|r| (std::cmp::Reverse(r.counters.references), r.pid));
    rows.truncate(ROWS);
    rows
}

fn mapping_rows(outcome: &Outcome, statistics: &Statistics) -> Vec<MappingRow> {
    let mut rows: Vec<MappingRow> = outcome
        .world
        .space
        .objects()
        .iter()
        .zip(&statistics.by_object)
        .enumerate()
        .filter(|(_, (_, counters))| counters.references > 0)
        .map(|(number, (object, &counters))| MappingRow {
            name: object.name.to_string(),
            kind: object.kind,
            class: Class::of(object, &outcome.world),
            object: Some(number),
            counters,
        })
        .collect();
    if statistics.no_object.references > 0 {
        rows.push(MappingRow {
            name: "(not mapped)".into(),
            kind: MapKind::Unknown,
            class: Class::Unmapped,
            object: None,
            counters: statistics.no_object,
        });
    }
    rows.sort_by(|a, b| (b.counters.references, &a.name).cmp(&(a.counters.references, &b.name)));
    rows.truncate(ROWS);
    rows
}

/// A size in bytes, in words.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A name that a traced program chose, in a form that a terminal can show.
pub fn printable(text: &str, width: usize) -> String {
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    let length = clean.chars().count();
    if length <= width {
        return clean;
    }
    // The end of a path is its most useful part.
    let tail: String = clean.chars().skip(length + 1 - width).collect();
    format!("…{tail}")
}

/// The summary as text.
pub fn text(s: &Summary) -> String {
    let mut t = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(&mut t, s);
    t
}

fn write_text(t: &mut String, s: &Summary) -> std::fmt::Result {
    let share = |n: u64| 100.0 * n as f64 / s.references.max(1) as f64;
    writeln!(t, "Trace of the {}, Linux {}", s.scope, s.kernel)?;
    writeln!(t, "{}\n", s.path)?;
    let mut line = |name: &str, value: String, more: String| {
        writeln!(t, "  {name:<18} {value:>16}  {more}").map(|_| ())
    };
    line(
        "references",
        grouped(s.references),
        format!(
            "page faults and second chances; {} N = {} pages",
            match s.sets {
                None => "the set has",
                Some(_) => "each set has",
            },
            grouped(s.evms_size.into())
        ),
    )?;
    if let Some(filter) = &s.filter {
        line(
            "left out",
            grouped(filter.left_out),
            format!("references, by --where '{}'", printable(&filter.text, 160)),
        )?;
    }
    if let Some(text) = s.part_text() {
        line("", String::new(), format!("this is {text}"))?;
    }
    if let Some(left_out) = &s.filtered {
        line("", String::new(), left_out.text(grouped))?;
    }
    if let Some(sets) = &s.sets {
        line("sets", String::new(), sets.of.clone())?;
    }
    line(
        "renewals",
        grouped(s.renewals),
        "stays that went on; not counted as references".into(),
    )?;
    line(
        "distinct pages",
        grouped(s.distinct_pages),
        format!("{} in all", bytes_text(s.distinct_bytes)),
    )?;
    if !s.huge_page_sizes.is_empty() {
        line(
            "to huge pages",
            grouped(s.huge_references),
            format!(
                "references; a page of {} counts as one page",
                sizes_text(&s.huge_page_sizes)
            ),
        )?;
    }
    line("processes", grouped(s.processes), String::new())?;
    line(
        "duration",
        format!("{:.3} s", s.duration_ns as f64 / 1e9),
        String::new(),
    )?;
    line(
        "per second",
        grouped(s.faults_per_second.round() as u64),
        String::new(),
    )?;
    line("events", grouped(s.events), String::new())?;
    line(
        "trace",
        bytes_text(s.bytes),
        format!(
            "{:.1} bytes a record",
            s.bytes as f64 / (s.references + s.renewals + s.events).max(1) as f64
        ),
    )?;
    let known = |n: Option<u64>| n.map_or("unknown".into(), grouped);
    line(
        "violations",
        grouped(s.violations),
        "references that no mapping allowed".into(),
    )?;
    line("lost", known(s.lost), "records".into())?;
    line(
        "funny PTEs",
        known(s.funny),
        "enabled pages that were not in the set".into(),
    )?;

    writeln!(
        t,
        "\nKind                     user           kernel    share"
    )?;
    for (name, kind) in [
        ("read", s.kinds.read),
        ("write", s.kinds.write),
        ("exec", s.kinds.exec),
        ("seen", s.kinds.seen),
    ] {
        // Only CLOCK makes records of this kind.
        if name == "seen" && kind.user + kind.kernel == 0 {
            continue;
        }
        writeln!(
            t,
            "  {name:<10} {:>16} {:>16} {:>7.1}%",
            grouped(kind.user),
            grouped(kind.kernel),
            share(kind.user + kind.kernel)
        )?;
    }
    writeln!(
        t,
        "  {:<10} {:>16} {:>16} {:>7.1}%",
        "dirtied",
        grouped(s.dirtied),
        "",
        share(s.dirtied)
    )?;

    writeln!(t, "\nWhy stays ended")?;
    let mut ended: Vec<_> = s.ended.iter().collect();
    ended.sort_by_key(|(why, count)| (std::cmp::Reverse(**count), **why));
    for (why, count) in ended {
        writeln!(
            t,
            "  {:<10} {:>16} {:>7.1}%",
            why.name(),
            grouped(*count),
            share(*count)
        )?;
    }

    let columns = [
        "references",
        "reads",
        "writes",
        "execs",
        "kernel",
        "new pages",
    ];
    let cells = |c: &Counters| {
        [
            c.references,
            c.reads,
            c.writes,
            c.execs,
            c.kernel,
            c.new_pages,
        ]
        .map(grouped)
    };
    let mut table = |title: &str, rows: Vec<(String, [String; 6])>| -> std::fmt::Result {
        write!(t, "\n{title:<46}")?;
        for name in columns {
            write!(t, " {name:>12}")?;
        }
        writeln!(t)?;
        for (name, cells) in rows {
            write!(t, "  {name:<44}")?;
            for cell in cells {
                write!(t, " {cell:>12}")?;
            }
            writeln!(t)?;
        }
        Ok(())
    };
    let process = |r: &ProcessRow| {
        let name = process_text(&r.comm, &r.exe);
        (
            format!("{:>7} {}", r.pid, printable(&name, 36)),
            cells(&r.counters),
        )
    };
    table("Process", s.top_processes.iter().map(process).collect())?;
    let mapping = |r: &MappingRow| (printable(&r.name, 44), cells(&r.counters));
    table("Mapping", s.top_mappings.iter().map(mapping).collect())?;

    writeln!(
        t,
        "\nLRU memory        misses   of references  proven bounds on the misses of all references"
    )?;
    let total = s.lru.footprint_pages;
    let wanted = [1, 2, 4, 8, 16, 32, 64, 100].map(|p| (total * p / 100).max(1));
    let mut shown = 0;
    for BoundedPoint { point, band } in &s.lru.points {
        if wanted.iter().any(|&w| w > shown && w <= point.size_pages) {
            shown = point.size_pages;
            writeln!(
                t,
                "  {:>10} {:>12} {:>12.2}%  {}",
                bytes_text(point.size_pages.saturating_mul(s.page_size)),
                grouped(point.misses),
                share(point.misses),
                match band {
                    Some(band) => format!("{} to {}", grouped(band.low), grouped(band.high)),
                    None if s.lacks() => "none: some are left out".into(),
                    None if s.part.is_some() => "none: one process's part".into(),
                    None if s.lru.valid_from_pages.is_none() => "none: several sets".into(),
                    None if s.lru.valid_from_pages > Some(point.size_pages) => {
                        "unknown: memory too small".into()
                    }
                    None => "unknown".into(),
                }
            )?;
        }
    }
    writeln!(
        t,
        "  {} of the misses are cold: first references, which no memory avoids; {}.",
        grouped(s.lru.cold),
        s.freeing.text()
    )?;

    writeln!(t, "\nChecks")?;
    for rule in &s.check.rules {
        let mark = match (rule.errors, rule.warnings) {
            (0, 0) => "ok".to_string(),
            (0, n) => format!("{} waived", grouped(n)),
            (n, _) => format!("{} ERRORS", grouped(n)),
        };
        writeln!(t, "  {:<14} {mark:<12} {}", rule.id, rule.about)?;
        for finding in rule
            .examples
            .iter()
            .filter(|f| f.severity != Severity::Note)
            .take(3)
        {
            writeln!(t, "    {}", printable(&finding.message, 160))?;
        }
    }
    writeln!(
        t,
        "\n{}",
        if s.check.good {
            "The trace is good."
        } else {
            "THE TRACE IS NOT GOOD."
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_have_the_names_that_select_them() {
        assert_eq!(process_text("cc1", "/usr/libexec/gcc/cc1"), "cc1");
        assert_eq!(process_text("sh", "dash"), "sh (dash)");
        assert_eq!(
            process_text("redis-server", "redis-check-rdb"),
            "redis-server (redis-check-rdb)"
        );
        assert_eq!(
            process_text("systemd-journal", "systemd-journald"),
            "systemd-journal"
        );
        assert_eq!(process_text("init", ""), "init");
    }
}
