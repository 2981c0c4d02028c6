//! Summaries as the rows of a file.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Summary, WorkingSets};
use crate::dataset::Facts;
use crate::dataset::writer::{Column, Kind, Row, Table};
use crate::error::{OutputContext, Result};
use crate::output::{Output, directory};
use crate::unfinished::{self, Registered};

/// A file of summaries that is being written: a table of Parquet, or an object of JSON a line.
pub struct Rows(To);

enum To {
    Json(Output),
    /// The table has a name of its own beside the final one until it is complete.
    Parquet(Box<Table>, TempDir, Registered, PathBuf),
}

/// The name of the table until then.
const UNFINISHED: &str = "summaries.parquet";

impl Rows {
    /// Begins a table if the name ends in .parquet, else lines of JSON, as [`Output::create`] does.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub fn create(path: &Path) -> Result<Self> {
        if path.extension().is_none_or(|ending| ending != "parquet") {
            return Ok(Rows(To::Json(Output::create(path)?)));
        }
        let (staging, registered) = unfinished::directory(|| {
            let mut builder = tempfile::Builder::new();
            builder.prefix(".summaries.").tempdir_in(directory(path))
        })
        .writing(path.display().to_string())?;
        let columns = [&COLUMNS[..], &MORE].concat();
        let table = Table::one_file(staging.path().into(), UNFINISHED, &columns)?;
        let table = Box::new(table);
        Ok(Rows(To::Parquet(table, staging, registered, path.into())))
    }

    /// Writes a row.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub fn add(&mut self, summary: &Summary) -> Result<()> {
        match &mut self.0 {
            To::Json(output) => {
                let name = output.name().to_owned();
                let text = serde_json::to_vec(summary).map_err(io::Error::from);
                let text = text.writing(&name)?;
                output.write_all(&text).writing(&name)?;
                output.write_all(b"\n").writing(&name)
            }
            To::Parquet(table, ..) => {
                let row = cells(summary, table.row());
                let row = cells_of_trace(summary.trace.as_ref(), row);
                row.some_text(summary.selection.as_deref()).end()
            }
        }
    }

    /// Completes the file, and gives it its name. Without this, there is no file.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub fn finish(self) -> Result<()> {
        match self.0 {
            To::Json(output) => output.finish(),
            To::Parquet(table, staging, _registered, path) => {
                table.finish()?;
                let made = staging.path().join(UNFINISHED);
                unfinished::settle(|| std::fs::rename(made, &path))
                    .writing(path.display().to_string())
            }
        }
    }
}

/// Adds the cells of [`COLUMNS`].
fn cells<'t>(of: &Summary, row: Row<'t>) -> Row<'t> {
    let id = of.trace.as_ref().map(|facts| &*facts.trace);
    let host = of.trace.as_ref().and_then(|facts| facts.host.as_deref());
    let source = of.trace.as_ref().map(|facts| &*facts.source);
    let sets = || of.working_sets.iter();
    let classes = |set: &WorkingSets| vec![set.tau_ns; set.sizes.len()];
    let mapped = || of.mapped.iter();
    row.int(of.summary_version)
        .int(of.traces)
        .some_text(id)
        .some_text(host)
        .some_text(source)
        .int(of.page_size)
        .int(of.good)
        .int(of.complete)
        .int(of.bytes)
        .int(of.duration_ns)
        .int(of.references)
        .int(of.renewals)
        .int(of.events)
        .int(of.pages)
        .int(of.lost)
        .int(of.lru.footprint)
        .int(of.lru.cold)
        .ints(of.lru.sizes.iter().copied())
        .ints(of.lru.hits.iter().copied())
        .int(of.opt.footprint)
        .int(of.opt.cold)
        .ints(of.opt.sizes.iter().copied())
        .ints(of.opt.hits.iter().copied())
        .ints(sets().map(|set| set.tau_ns))
        .ints(sets().map(|set| set.samples))
        .ints(sets().map(|set| set.pages))
        .ints(sets().map(|set| set.most_pages))
        .ints(sets().flat_map(classes))
        .ints(sets().flat_map(|set| set.sizes.iter().copied()))
        .ints(sets().flat_map(|set| set.counts.iter().copied()))
        .texts(mapped().map(|m| &*m.name))
        .texts(mapped().map(|m| &*m.kind))
        .ints(mapped().map(|m| m.traces))
        .ints(mapped().map(|m| m.references))
        .ints(mapped().map(|m| m.pages))
        .ints(mapped().map(|m| m.bytes))
        .ints(mapped().map(|m| m.dirtied))
}

/// The columns of a table of summaries: lists whose names begin alike belong together.
pub(super) const COLUMNS: [Column; 37] = [
    Column::new("summary_version", Kind::Int),
    Column::new("traces", Kind::Int),
    Column::optional("trace", Kind::Text),
    Column::optional("host", Kind::Text),
    Column::optional("source", Kind::Text),
    Column::new("page_size", Kind::Int),
    Column::new("good", Kind::Int),
    Column::new("complete", Kind::Int),
    Column::new("bytes", Kind::Int),
    Column::new("duration_ns", Kind::Int),
    Column::new("references", Kind::Int),
    Column::new("renewals", Kind::Int),
    Column::new("events", Kind::Int),
    Column::new("pages", Kind::Int),
    Column::new("lost", Kind::Int),
    Column::new("lru_footprint", Kind::Int),
    Column::new("lru_cold", Kind::Int),
    Column::new("lru_sizes", Kind::Ints),
    Column::new("lru_hits", Kind::Ints),
    Column::new("opt_footprint", Kind::Int),
    Column::new("opt_cold", Kind::Int),
    Column::new("opt_sizes", Kind::Ints),
    Column::new("opt_hits", Kind::Ints),
    Column::new("working_set_tau_ns", Kind::Ints),
    Column::new("working_set_samples", Kind::Ints),
    Column::new("working_set_pages", Kind::Ints),
    Column::new("working_set_most_pages", Kind::Ints),
    Column::new("working_set_class_tau_ns", Kind::Ints),
    Column::new("working_set_class_sizes", Kind::Ints),
    Column::new("working_set_class_counts", Kind::Ints),
    Column::new("mapped_name", Kind::Texts),
    Column::new("mapped_kind", Kind::Texts),
    Column::new("mapped_traces", Kind::Ints),
    Column::new("mapped_references", Kind::Ints),
    Column::new("mapped_pages", Kind::Ints),
    Column::new("mapped_bytes", Kind::Ints),
    Column::new("mapped_dirtied", Kind::Ints),
];

/// Adds the cells of [`MORE`], without the last one.
fn cells_of_trace<'t>(facts: Option<&Facts>, row: Row<'t>) -> Row<'t> {
    let int = |of: fn(&Facts) -> u64| facts.map(of);
    let some = |of: fn(&Facts) -> Option<u64>| facts.and_then(of);
    let text = |of: fn(&Facts) -> &str| facts.map(of);
    let rules = facts.map(|facts| facts.failed_rules.join(","));
    row.some_int(int(|f| f.schema_version))
        .some_text(text(|f| &f.kernel))
        .some_text(text(|f| &f.arch))
        .some_int(int(|f| f.n))
        .some_int(int(|f| f.batch))
        .some_text(text(|f| &f.policy))
        .some_text(text(|f| &f.sets))
        .some_text(text(|f| &f.scope))
        .some_int(int(|f| f.cpus))
        .some_signed(facts.map(|f| f.start_unix_ns))
        .some_int(int(|f| f.start_ns))
        .some_int(int(|f| f.windows))
        .some_int(some(|f| f.first_piece))
        .some_int(some(|f| f.last_piece))
        .some_int(int(|f| f.processes))
        .some_int(some(|f| f.lost_full))
        .some_int(some(|f| f.lost_atomic))
        .some_int(some(|f| f.lost_io))
        .some_int(some(|f| f.uncovered))
        .some_flag(facts.map(|f| f.filtered))
        .some_int(int(|f| f.errors))
        .some_text(rules.as_deref())
}

/// More columns, which tables of earlier versions do not have: those of the table `traces` of a dataset that
/// are not in [`COLUMNS`], which only the row of one trace has; and the selection.
pub(super) const MORE: [Column; 23] = [
    Column::optional("schema_version", Kind::Int),
    Column::optional("kernel", Kind::Text),
    Column::optional("arch", Kind::Text),
    Column::optional("n", Kind::Int),
    Column::optional("batch", Kind::Int),
    Column::optional("policy", Kind::Text),
    Column::optional("sets", Kind::Text),
    Column::optional("scope", Kind::Text),
    Column::optional("cpus", Kind::Int),
    Column::optional(START, Kind::Int),
    Column::optional("start_ns", Kind::Int),
    Column::optional("windows", Kind::Int),
    Column::optional("first_piece", Kind::Int),
    Column::optional("last_piece", Kind::Int),
    Column::optional("processes", Kind::Int),
    Column::optional("lost_full", Kind::Int),
    Column::optional("lost_atomic", Kind::Int),
    Column::optional("lost_io", Kind::Int),
    Column::optional("uncovered", Kind::Int),
    Column::optional("filtered", Kind::Flag),
    Column::optional("errors", Kind::Int),
    Column::optional(RULES, Kind::Text),
    Column::optional(SELECTION, Kind::Text),
];

/// The only number that may be negative.
pub(super) const START: &str = "start_unix_ns";
/// The options that selected the references, of sums, too.
pub(super) const SELECTION: &str = "selection";
/// Names of rules, with commas.
pub(super) const RULES: &str = "failed_rules";
