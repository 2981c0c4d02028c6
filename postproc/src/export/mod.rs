//! Traces in the formats of other programs.
//!
//! A format is a file, a line of [`registry`] and a test. All formats name pages by
//! their canonical or virtual identity. Some add the offset within the page, if the trace has it.

mod cachebench;
mod csv;
mod ctf;
mod ctf2;
mod damon;
mod din;
mod heatmap;
mod lcs;
mod moca_csv;
mod next_use;
mod oracle_general;
mod parquet;
mod perfetto;
mod processes;
mod ramulator;
mod slices;
mod spool;
mod text;
mod txt;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use tempfile::TempDir;

use crate::error::{OutputContext, Result};
use crate::output::{Output, directory, new_directory};
use crate::pipeline::{Batch, Consumer, Freeing, Outcome, World, is_reference};
use crate::space::Issue;
use crate::trace::{Event, Header, PacketSeen, Trace};
use crate::unfinished::{self, Registered};
use crate::units::{CanonPage, Mm, Tid};

pub use perfetto::{MOST_BINS, automatic_bin};
pub use processes::{ExportedProcess, ProcessExports, before_endings};
pub(crate) use text::decimal;

/// Writes one format.
pub trait Exporter {
    /// Before [`Exporter::begin`], for formats that need more of the trace than its header.
    fn trace(&mut self, _trace: &Trace) -> Result<()> {
        Ok(())
    }
    /// Before the first reference.
    fn begin(&mut self, _header: &Header, _out: &mut Output) -> Result<()> {
        Ok(())
    }
    /// As [`Consumer::wants_continuations`].
    fn wants_continuations(&self) -> bool {
        false
    }
    /// A run of references.
    fn references(&mut self, batch: &Batch<'_>, out: &mut Output) -> Result<()>;
    /// An event; `world` has followed it already.
    fn event(&mut self, _event: &Event<'_>, _world: &World, _out: &mut Output) -> Result<()> {
        Ok(())
    }
    /// Pages that were freed at a moment, ns on the trace's clock. Formats that cannot
    /// express it leave it out.
    fn freed(&mut self, _pages: &[CanonPage], _time_ns: u64, _out: &mut Output) -> Result<()> {
        Ok(())
    }
    /// After the last.
    fn finish(&mut self, _outcome: &Outcome, _out: &mut Output) -> Result<()> {
        Ok(())
    }
}

/// Writes one format that is a directory of files.
pub trait DirectoryExporter {
    /// Before the first reference.
    fn begin(&mut self, header: &Header) -> Result<()>;
    /// A packet of the trace was opened; its records are still to come.
    fn packet(&mut self, _packet: &PacketSeen) -> Result<()> {
        Ok(())
    }
    /// A run of references.
    fn references(&mut self, batch: &Batch<'_>) -> Result<()>;
    /// An event; `world` has followed it already.
    fn event(&mut self, _event: &Event<'_>, _world: &World) -> Result<()> {
        Ok(())
    }
    /// Pages that the last event freed.
    fn freed(&mut self, _pages: &[CanonPage], _by: &FreedBy) -> Result<()> {
        Ok(())
    }
    /// After the last.
    fn finish(&mut self, outcome: &Outcome) -> Result<()>;
}

/// The event that frees pages.
#[derive(Clone, Copy, Debug)]
pub struct FreedBy {
    /// Its name.
    pub event: &'static str,
    /// Its sequence number.
    pub seq: u64,
    /// When it happened, ns on the trace's clock.
    pub time_ns: u64,
    /// Where it happened.
    pub cpu: u32,
    /// The thread that caused it.
    pub tid: Tid,
    /// Its process.
    pub tgid: Tid,
    /// The address space that it is about, 0 if none.
    pub mm: Mm,
}

impl FreedBy {
    fn event(event: &Event<'_>) -> Self {
        FreedBy {
            event: event.name(),
            seq: event.seq,
            time_ns: event.time_ns,
            cpu: event.cpu,
            tid: event.tid,
            tgid: event.tgid,
            mm: event.mm,
        }
    }
}

/// Options of formats that count.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    /// Length of a slice of time; DAMON's aggregation interval.
    pub interval_ns: u64,
    /// DAMON's sampling interval.
    pub sampling_ns: u64,
    /// Pages in a block of addresses.
    pub block_pages: u64,
    /// Whether read() and write() are references to pages of files, for formats that
    /// [`FormatEntry::takes_io`].
    pub io: bool,
    /// Whether the pass frees pages; see [`FormatEntry::follows_freed`].
    pub freeing: Freeing,
    /// Length of a bin of Perfetto's counters; 0 for one that depends on the trace's length.
    pub bin_ns: u64,
    /// τ of Perfetto's working sets.
    pub tau_ns: u64,
}

impl Default for ExportOptions {
    /// DAMON's intervals, 100 and 5 ms; blocks of one page; working sets of 100 ms.
    fn default() -> Self {
        ExportOptions {
            interval_ns: 100_000_000,
            sampling_ns: 5_000_000,
            block_pages: 1,
            io: false,
            freeing: Freeing::Kept,
            bin_ns: 0,
            tau_ns: 100_000_000,
        }
    }
}

/// The context of an exporter.
pub struct ExportContext<'a> {
    /// The user's options.
    pub options: ExportOptions,
    /// The directory for temporary files.
    pub scratch: &'a Path,
    /// Set when the user wishes to stop.
    pub stop: Arc<AtomicBool>,
}

/// A format in the registry.
pub struct FormatEntry {
    /// Its stable name.
    pub id: &'static str,
    /// What it is for, in a line of the command's help.
    pub about: &'static str,
    /// Makes its exporter.
    pub make: Make,
}

impl FormatEntry {
    /// Whether the output is a directory, which keeps processes apart itself.
    pub fn is_directory(&self) -> bool {
        matches!(self.make, Make::Directory(_))
    }

    /// Whether the format says when a page is freed. Its reader has the memory of a kernel;
    /// a reader of any other format keeps a page until it is replaced.
    pub fn says_freed(&self) -> bool {
        matches!(self.id, "csv" | "cachebench" | "ctf" | "ctf2" | "parquet")
    }

    /// Whether what the format has depends on when pages are freed: it says so, or counts the pages
    /// that are there.
    pub fn follows_freed(&self) -> bool {
        self.says_freed() || self.id == perfetto::ENTRY.id
    }

    /// Whether the format has the times of the system's clock only.
    pub fn needs_real_time(&self) -> bool {
        self.id == perfetto::ENTRY.id
    }

    /// As [`Consumer::wants_continuations`].
    fn wants_continuations(&self) -> bool {
        self.id == perfetto::ENTRY.id
    }

    /// Whether a trace of regions, which has no references, can be written.
    pub fn takes_regions(&self) -> bool {
        matches!(self.id, "damon" | "ctf" | "ctf2")
    }

    /// Whether references of read() and write() have everything that the format needs. An
    /// address, for example, is missing.
    pub fn takes_io(&self) -> bool {
        matches!(self.id, "oracleGeneral" | "lcs" | "lcs-v2" | "txt")
    }
}

/// Makes an exporter.
#[derive(Clone, Copy)]
pub enum Make {
    /// Of a format that is one file.
    File(fn(&ExportContext<'_>) -> Result<Box<dyn Exporter>>),
    /// Of a format that is a directory, which is there and empty.
    Directory(fn(&Path, &ExportOptions) -> Result<Box<dyn DirectoryExporter>>),
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
        ctf::ENTRY,
        ctf::ENTRY_2,
        parquet::ENTRY,
        perfetto::ENTRY,
    ]
}

/// The result of an export.
#[derive(Clone, Debug, Serialize)]
pub struct Exported {
    /// The format's name.
    pub format: &'static str,
    /// The file or directory.
    pub output: String,
    /// References.
    pub references: u64,
    /// The largest number of a page.
    pub pages: u32,
    /// Bytes; of a file, before its compression.
    pub bytes: u64,
    /// `freed` if the output says when pages are freed, or counts pages only until then; otherwise
    /// its reader keeps them.
    pub freeing: Freeing,
    /// Whether the output counts pages, and has no references.
    #[serde(skip)]
    pub counts_pages: bool,
}

enum Writer {
    File(Box<dyn Exporter>, Output),
    /// The directory has a name of its own beside the final one until it is
    /// complete.
    Directory(Box<dyn DirectoryExporter>, TempDir, Registered, PathBuf),
}

/// Exports the references of a pass.
pub struct ExportConsumer {
    format: &'static str,
    writer: Writer,
    io: bool,
    /// Whether batches have them: see [`Consumer::wants_continuations`].
    continuations: bool,
    references: u64,
    pages: u32,
    /// The last event.
    event: Option<FreedBy>,
    freeing: Freeing,
}

impl ExportConsumer {
    /// Writes `format` to `path`; see [`Output::create`] for names of files. A
    /// directory must not exist, or be empty.
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
        let writer = match format.make {
            Make::File(make) => {
                let temporary = std::env::temp_dir();
                let regular =
                    path != Path::new("-") && path.metadata().map_or(true, |m| m.is_file());
                let scratch = if regular { directory(path) } else { &temporary };
                let exporter = make(&ExportContext {
                    options,
                    scratch,
                    stop,
                })?;
                Writer::File(exporter, Output::create(path)?)
            }
            Make::Directory(make) => {
                let (temporary, registered) =
                    new_directory(path).writing(path.display().to_string())?;
                let exporter = make(temporary.path(), &options)?;
                Writer::Directory(exporter, temporary, registered, path.into())
            }
        };
        Ok(ExportConsumer {
            format: format.id,
            writer,
            io: options.io && format.takes_io(),
            continuations: format.wants_continuations(),
            references: 0,
            pages: 0,
            event: None,
            freeing: options.freeing,
        })
    }

    /// Gives the file or directory its name, after the pass.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub fn commit(self) -> Result<Exported> {
        let (output, bytes) = match self.writer {
            Writer::File(_, output) => {
                let made = (output.name().to_string(), output.written());
                output.finish()?;
                made
            }
            Writer::Directory(exporter, temporary, _registered, path) => {
                // Its files are closed before they are moved.
                drop(exporter);
                let name = path.display().to_string();
                let bytes = bytes_below(temporary.path()).writing(&name)?;
                unfinished::settle(|| std::fs::rename(temporary.path(), &path)).writing(&name)?;
                // The temporary directory no longer exists.
                let _ = temporary.keep();
                (name, bytes)
            }
        };
        Ok(Exported {
            format: self.format,
            output,
            references: self.references,
            pages: self.pages,
            bytes,
            freeing: self.freeing,
            counts_pages: self.format == perfetto::ENTRY.id,
        })
    }
}

fn bytes_below(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in path.read_dir()? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() {
            bytes_below(&entry.path())?
        } else {
            entry.metadata()?.len()
        };
    }
    Ok(bytes)
}

impl Consumer for ExportConsumer {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        match &mut self.writer {
            Writer::File(exporter, output) => {
                exporter.trace(trace)?;
                exporter.begin(trace.header(), output)
            }
            Writer::Directory(exporter, ..) => exporter.begin(trace.header()),
        }
    }

    fn packet(&mut self, packet: &PacketSeen) -> Result<()> {
        match &mut self.writer {
            Writer::File(..) => Ok(()),
            Writer::Directory(exporter, ..) => exporter.packet(packet),
        }
    }

    fn wants_continuations(&self) -> bool {
        self.continuations
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.references += match self.continuations {
            true => {
                let all = batch.refs.iter().zip(batch.places);
                all.filter(|(r, place)| is_reference(r, place)).count() as u64
            }
            false => batch.refs.len() as u64,
        };
        let largest = batch.pages.iter().map(|page| page.0).max();
        self.pages = self.pages.max(largest.unwrap_or(0));
        match &mut self.writer {
            Writer::File(exporter, output) => exporter.references(batch, output),
            Writer::Directory(exporter, ..) => exporter.references(batch),
        }
    }

    fn wants_io(&self) -> bool {
        self.io
    }

    fn io(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.references(batch)
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> Result<()> {
        // Only an event frees pages.
        let Some(by) = &self.event else { return Ok(()) };
        match &mut self.writer {
            Writer::File(exporter, output) => exporter.freed(pages, by.time_ns, output),
            Writer::Directory(exporter, ..) => exporter.freed(pages, by),
        }
    }

    fn event(&mut self, event: &Event<'_>, world: &World, _issues: &[Issue]) -> Result<()> {
        self.event = Some(FreedBy::event(event));
        match &mut self.writer {
            Writer::File(exporter, output) => exporter.event(event, world, output),
            Writer::Directory(exporter, ..) => exporter.event(event, world),
        }
    }

    fn finish(&mut self, _trace: &Trace, outcome: &Outcome) -> Result<()> {
        match &mut self.writer {
            Writer::File(exporter, output) => exporter.finish(outcome, output),
            Writer::Directory(exporter, ..) => exporter.finish(outcome),
        }
    }
}
