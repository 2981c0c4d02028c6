//! The report of a trace from elsewhere: what references alone tell.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use super::fault_curve::{Caption, draw};
use super::summary::{CurveSummary, POINTS, bytes_text};
use super::{grouped, write_files};
use crate::error::{OutputContext, Result};
use crate::import::Imported;
use crate::sim::Curve;

/// All figures of such a report.
#[derive(Clone, Debug, Serialize)]
pub struct ForeignSummary {
    /// The trace's file.
    pub path: String,
    /// What was read.
    #[serde(flatten)]
    pub imported: Imported,
    /// Bytes of a page.
    pub page_size: u64,
    /// LRU misses by size of memory.
    pub lru: CurveSummary,
}

impl ForeignSummary {
    /// Puts what was read and its curve together.
    pub fn new(path: &Path, imported: Imported, page_size: u64, curve: &Curve) -> Self {
        let valid_from_pages = imported.note.as_ref().map_or(1, |n| n.valid_from_pages);
        ForeignSummary {
            path: path.display().to_string(),
            imported,
            page_size,
            lru: CurveSummary {
                footprint_pages: curve.footprint(),
                cold: curve.cold,
                valid_from_pages,
                points: curve.sampled(POINTS),
            },
        }
    }

    /// Writes summary.json, summary.txt and fault-curve.svg into a directory,
    /// which is made if need be.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`], or [`crate::error::Error::Draw`].
    pub fn write(&self, directory: &Path, curve: &Curve) -> Result<()> {
        std::fs::create_dir_all(directory).writing(directory.display().to_string())?;
        let json = serde_json::to_vec_pretty(self)
            .map_err(std::io::Error::from)
            .writing("summary.json")?;
        let caption = Caption {
            references: self.imported.references,
            distinct_pages: self.imported.pages.into(),
            page_size: self.page_size,
            scope: self.imported.format,
            evms_size: 0,
        };
        let svg = draw(&caption, curve)?;
        write_files(directory, &json, &self.text(), &svg)
    }

    /// The summary for a person.
    pub fn text(&self) -> String {
        let mut t = String::new();
        let i = &self.imported;
        let pages = u64::from(i.pages);
        let footprint = bytes_text(pages.saturating_mul(self.page_size));
        // Writing to a string cannot fail.
        let _ = writeln!(t, "Trace of another kind: {}\n{}\n", i.format, self.path);
        let mut line = |name: &str, value: u64, more: &str| {
            let _ = writeln!(t, "  {name:<18} {:>16}  {more}", grouped(value));
        };
        line("references", i.references, "");
        line("writes", i.writes, "");
        line("distinct pages", pages, &footprint);
        if let Some(note) = &i.note {
            let _ = writeln!(
                t,
                "\nReduced by {} of {} pages: stands for the full trace in memories of {} pages and \
                 more ({}).",
                note.method,
                grouped(note.k),
                grouped(note.valid_from_pages),
                note.source
            );
        }
        let _ = writeln!(t, "\n  {:>12} {:>16}", "memory, pages", "LRU misses");
        for point in self
            .lru
            .points
            .iter()
            .step_by(1 + self.lru.points.len() / 16)
        {
            let (size, misses) = (grouped(point.size_pages), grouped(point.misses));
            let _ = writeln!(t, "  {size:>12} {misses:>16}");
        }
        t
    }
}
