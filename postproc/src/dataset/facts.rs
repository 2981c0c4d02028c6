//! What is known of a trace as a whole.

use parquet::data_type::ByteArray;
use rust_mm_trace::uapi;
use serde::{Deserialize, Serialize};

use super::SCHEMA_VERSION;
use super::writer::{Column, Kind, Row};
use crate::check::CheckReport;
use crate::filter::Chosen;
use crate::pipeline::Outcome;
use crate::trace::{Status, Trace};

/// What is known of a trace as a whole: a row of the table `traces`, and the head of a summary.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// The trace's id: the UUID that the kernel gave it.
    pub trace: String,
    /// The version of the tables.
    pub schema_version: u64,
    /// The file or directory, as the command line named it.
    pub source: String,
    /// The host, if the command line names it: a trace does not.
    pub host: Option<String>,
    /// The kernel's release.
    pub kernel: String,
    /// The machine.
    pub arch: String,
    /// N, pages of a set.
    pub n: u64,
    /// K, pages that one admission evicts at most.
    pub batch: u64,
    /// The policy of the set: fifo or clock.
    pub policy: String,
    /// What has a set of its own: one, process or cgroup.
    pub sets: String,
    /// Which processes were traced, in words.
    pub scope: String,
    /// Possible CPUs.
    pub cpus: u64,
    /// Bytes of a page.
    pub page_size: u64,
    /// When the trace began, ns since the Unix epoch.
    pub start_unix_ns: i64,
    /// When the trace began, ns of the clock that counts from boot.
    pub start_ns: u64,
    /// From the beginning of the trace to its end, or the part of this time that was selected.
    pub duration_ns: u64,
    /// Windows; 0 if the whole run was traced.
    pub windows: u64,
    /// The first piece that is there, if some are missing.
    pub first_piece: Option<u64>,
    /// The last of these pieces.
    pub last_piece: Option<u64>,
    /// Bytes of the trace.
    pub bytes: u64,
    /// References that were taken.
    pub references: u64,
    /// Renewals, which are no references.
    pub renewals: u64,
    /// Events.
    pub events: u64,
    /// Distinct pages that these are to.
    pub pages: u64,
    /// Processes.
    pub processes: u64,
    /// Whether the trace has its end, the kernel's account.
    pub complete: bool,
    /// Records that were lost for want of room; `None` without the kernel's account, as for the
    /// figures that follow.
    pub lost_full: Option<u64>,
    /// Events that were lost where the kernel could not wait.
    pub lost_atomic: Option<u64>,
    /// Records that could not be written.
    pub lost_io: Option<u64>,
    /// Accesses that could not be traced.
    pub uncovered: Option<u64>,
    /// Whether a filter of the kernel may have left references out.
    pub filtered: bool,
    /// Whether the trace passed its checks.
    pub good: bool,
    /// Findings that make it bad.
    pub errors: u64,
    /// The rules that found these.
    pub failed_rules: Vec<String>,
    /// The options that selected the references, if not all were taken.
    pub selection: Option<String>,
}

/// What was taken of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Taken<'a> {
    /// The selection; `None` if everything was taken.
    pub chosen: Option<&'a Chosen>,
    /// References.
    pub references: u64,
    /// Distinct pages that these are to.
    pub pages: u64,
}

impl Facts {
    /// Combines the results of a pass. `host` is where the trace was made, if that is known.
    pub fn new(
        trace: &Trace,
        host: Option<&str>,
        outcome: &Outcome,
        taken: Taken<'_>,
        report: &CheckReport,
    ) -> Self {
        let (header, world) = (trace.header(), &outcome.world);
        let status: Option<&Status> = trace.index().end.as_ref().map(|end| &end.status);
        let span = trace.index().time_span();
        let span = span.map_or(0, |(first, last)| last.saturating_sub(first));
        let counted = status.and_then(|s| s.stop_time_ns.checked_sub(s.start_time_ns));
        let duration_ns = counted.filter(|&ns| ns > 0).unwrap_or(span);
        let piece = trace.piece();
        let failed = report.rules.iter().filter(|rule| rule.errors > 0);
        Facts {
            trace: header.uuid.to_string(),
            schema_version: SCHEMA_VERSION,
            source: trace.path().display().to_string(),
            host: host.map(Into::into),
            kernel: header.release.clone(),
            arch: header.arch.clone(),
            n: header.evms_size.into(),
            batch: header.batch.into(),
            policy: match header.policy {
                uapi::VMTRACE_POLICY_CLOCK => "clock".into(),
                _ => "fifo".into(),
            },
            sets: match header.sets {
                crate::trace::Sets::One => "one".into(),
                crate::trace::Sets::Process => "process".into(),
                crate::trace::Sets::Cgroup => "cgroup".into(),
                crate::trace::Sets::Unknown => "unknown".into(),
            },
            scope: header.scope_text(),
            cpus: header.nr_cpus.into(),
            page_size: header.page_size(),
            start_unix_ns: (header.start_time_ns as i64).wrapping_add(header.realtime_offset_ns),
            start_ns: header.start_time_ns,
            duration_ns: taken
                .chosen
                .map_or(duration_ns, |chosen| chosen.length(duration_ns)),
            windows: trace.window_numbers().len() as u64,
            first_piece: piece.map(|piece| piece.number.into()),
            last_piece: piece.map(|piece| piece.last_number.into()),
            bytes: trace.index().stop,
            references: taken.references,
            renewals: world.renewals,
            events: world.events,
            pages: taken.pages,
            processes: world.tasks.processes().len() as u64,
            complete: status.is_some(),
            lost_full: status.map(|s| s.lost_full),
            lost_atomic: status.map(|s| s.lost_atomic),
            lost_io: status.map(|s| s.lost_io),
            uncovered: status.map(|s| s.uncovered),
            filtered: trace.may_lack_references(),
            good: report.good,
            errors: report.rules.iter().map(|rule| rule.errors).sum(),
            failed_rules: failed.map(|rule| rule.id.to_owned()).collect(),
            selection: taken.chosen.map(|chosen| chosen.words.clone()),
        }
    }

    /// Records that were lost, whatever the cause.
    pub fn lost(&self) -> u64 {
        let causes = [self.lost_full, self.lost_atomic, self.lost_io];
        causes.into_iter().flatten().fold(0, u64::saturating_add)
    }

    /// Adds the cells of [`COLUMNS`].
    pub(crate) fn cells<'t>(&self, row: Row<'t>) -> Row<'t> {
        let text = |text: &str| ByteArray::from(text);
        row.int(self.schema_version)
            .text(&text(&self.source))
            .some_text(self.host.as_deref())
            .text(&text(&self.kernel))
            .text(&text(&self.arch))
            .int(self.n)
            .int(self.batch)
            .text(&text(&self.policy))
            .text(&text(&self.sets))
            .text(&text(&self.scope))
            .int(self.cpus)
            .int(self.page_size)
            .signed(self.start_unix_ns.div_euclid(1000))
            .signed(self.start_unix_ns)
            .int(self.start_ns)
            .int(self.duration_ns)
            .int(self.windows)
            .some_int(self.first_piece)
            .some_int(self.last_piece)
            .int(self.bytes)
            .int(self.references)
            .int(self.renewals)
            .int(self.events)
            .int(self.pages)
            .int(self.processes)
            .flag(self.complete)
            .some_int(self.lost_full)
            .some_int(self.lost_atomic)
            .some_int(self.lost_io)
            .some_int(self.uncovered)
            .flag(self.filtered)
            .flag(self.good)
            .int(self.errors)
            .text(&text(&self.failed_rules.join(",")))
            .some_text(self.selection.as_deref())
    }
}

/// The columns of the table `traces`, without the id, which the name of the directory has.
pub(crate) const COLUMNS: [Column; 35] = [
    Column::new("schema_version", Kind::Int),
    Column::new("source", Kind::Text),
    Column::optional("host", Kind::Text),
    Column::new("kernel", Kind::Text),
    Column::new("arch", Kind::Text),
    Column::new("n", Kind::Int),
    Column::new("batch", Kind::Int),
    Column::new("policy", Kind::Text),
    Column::new("sets", Kind::Text),
    Column::new("scope", Kind::Text),
    Column::new("cpus", Kind::Int),
    Column::new("page_size", Kind::Int),
    Column::new("start", Kind::Moment),
    Column::new("start_unix_ns", Kind::Int),
    Column::new("start_ns", Kind::Int),
    Column::new("duration_ns", Kind::Int),
    Column::new("windows", Kind::Int),
    Column::optional("first_piece", Kind::Int),
    Column::optional("last_piece", Kind::Int),
    Column::new("bytes", Kind::Int),
    Column::new("references", Kind::Int),
    Column::new("renewals", Kind::Int),
    Column::new("events", Kind::Int),
    Column::new("pages", Kind::Int),
    Column::new("processes", Kind::Int),
    Column::new("complete", Kind::Flag),
    Column::optional("lost_full", Kind::Int),
    Column::optional("lost_atomic", Kind::Int),
    Column::optional("lost_io", Kind::Int),
    Column::optional("uncovered", Kind::Int),
    Column::new("filtered", Kind::Flag),
    Column::new("good", Kind::Flag),
    Column::new("errors", Kind::Int),
    Column::new("failed_rules", Kind::Text),
    Column::optional("selection", Kind::Text),
];
