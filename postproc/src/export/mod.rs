//! Traces in the formats that others read.
//!
//! A format is a file of its own, a line of [`registry`] and a test. All name
//! pages by their canonical or virtual identity, never by an offset within: a
//! page trace has none.

mod cachebench;
mod csv;
mod damon;
mod din;
mod heatmap;
mod lcs;
mod moca_csv;
mod next_use;
mod oracle_general;
mod ramulator;
mod slices;
mod spool;
mod text;
mod txt;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;

use crate::error::Result;
use crate::output::{Output, directory};
use crate::pipeline::{Batch, Consumer, Outcome, World};
use crate::space::Issue;
use crate::trace::{Event, Header, Trace};

/// Writes one format.
pub trait Exporter {
    /// Before the first reference.
    fn begin(&mut self, _header: &Header, _out: &mut Output) -> Result<()> {
        Ok(())
    }
    /// A run of references.
    fn references(&mut self, batch: &Batch<'_>, out: &mut Output) -> Result<()>;
    /// An event; `world` has followed it already.
    fn event(&mut self, _event: &Event<'_>, _world: &World, _out: &mut Output) -> Result<()> {
        Ok(())
    }
    /// After the last.
    fn finish(&mut self, _out: &mut Output) -> Result<()> {
        Ok(())
    }
}

/// What formats that count may be told.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    /// Length of a slice of time; DAMON's aggregation interval.
    pub interval_ns: u64,
    /// DAMON's sampling interval.
    pub sampling_ns: u64,
    /// Pages in a block of addresses.
    pub block_pages: u64,
}

impl Default for ExportOptions {
    /// DAMON's intervals, 100 and 5 ms; blocks of one page.
    fn default() -> Self {
        ExportOptions {
            interval_ns: 100_000_000,
            sampling_ns: 5_000_000,
            block_pages: 1,
        }
    }
}

/// What an exporter may need.
pub struct ExportContext<'a> {
    /// What the user wishes.
    pub options: ExportOptions,
    /// Where temporary files may lie.
    pub scratch: &'a Path,
    /// Set when the user wishes to stop.
    pub stop: Arc<AtomicBool>,
}

/// A format that can be asked for by name.
pub struct FormatEntry {
    /// Its stable name.
    pub id: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Makes its exporter.
    pub make: fn(&ExportContext<'_>) -> Result<Box<dyn Exporter>>,
}

/// All formats.
pub fn registry() -> &'static [FormatEntry] {
    &[
        oracle_general::ENTRY,
        lcs::V1,
        lcs::V2,
        txt::ENTRY,
        csv::ENTRY,
        din::ENTRY,
        ramulator::ENTRY,
        cachebench::ENTRY,
        moca_csv::ENTRY,
        damon::ENTRY,
        heatmap::ENTRY,
    ]
}

/// What was written.
#[derive(Clone, Debug, Serialize)]
pub struct Exported {
    /// The format's name.
    pub format: &'static str,
    /// The file.
    pub output: String,
    /// References.
    pub references: u64,
    /// Distinct pages.
    pub pages: u32,
    /// Bytes, before compression.
    pub bytes: u64,
}

/// Exports the references of a pass.
pub struct ExportConsumer {
    format: &'static str,
    exporter: Box<dyn Exporter>,
    output: Output,
    references: u64,
    pages: u32,
}

impl ExportConsumer {
    /// Writes `format` to `path`; see [`Output::create`] for names.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub fn create(
        format: &'static FormatEntry,
        path: &Path,
        options: ExportOptions,
        stop: Arc<AtomicBool>,
    ) -> Result<Self> {
        let temporary = std::env::temp_dir();
        let regular = path != Path::new("-") && path.metadata().map_or(true, |m| m.is_file());
        let scratch = if regular { directory(path) } else { &temporary };
        let exporter = (format.make)(&ExportContext {
            options,
            scratch,
            stop,
        })?;
        let output = Output::create(path)?;
        Ok(ExportConsumer {
            format: format.id,
            exporter,
            output,
            references: 0,
            pages: 0,
        })
    }

    /// Gives the file its name, after the pass.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub fn commit(self) -> Result<Exported> {
        let exported = Exported {
            format: self.format,
            output: self.output.name().into(),
            references: self.references,
            pages: self.pages,
            bytes: self.output.written(),
        };
        self.output.finish()?;
        Ok(exported)
    }
}

impl Consumer for ExportConsumer {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        self.exporter.begin(trace.header(), &mut self.output)
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.references += batch.refs.len() as u64;
        self.exporter.references(batch, &mut self.output)
    }

    fn event(&mut self, event: &Event<'_>, world: &World, _issues: &[Issue]) -> Result<()> {
        self.exporter.event(event, world, &mut self.output)
    }

    fn finish(&mut self, _trace: &Trace, outcome: &Outcome) -> Result<()> {
        self.pages = outcome.pages;
        self.exporter.finish(&mut self.output)
    }
}
