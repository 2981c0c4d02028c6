//! The report of another program's trace, which contains references only.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use super::chart::Unit;
use super::fault_curve::{self, Caption, PolicyLine};
use super::heat::PageHeat;
use super::page::Page;
use super::summary::{BoundedPoint, CurveSummary, POINTS, bytes_text};
use super::working_set::WorkingSet;
use super::{Figure, figure_files, grouped, reuse, to_json, write_file, write_files};
use crate::error::Result;
use crate::import::Imported;
use crate::sim::{Access, Curve};

/// References in a column of time at the beginning: time is measured in references.
const COLUMN: u64 = 1 << 10;

/// The data of the page about references, in their order.
pub struct ForeignViews {
    heat: PageHeat,
    set: WorkingSet,
    references: u64,
}

impl Default for ForeignViews {
    fn default() -> Self {
        let length = COLUMN * super::timeline::COLUMNS as u64 - 1;
        ForeignViews {
            heat: PageHeat::new(0, length),
            set: WorkingSet::new(0, length),
            references: 0,
        }
    }
}

impl ForeignViews {
    /// Adds references.
    pub fn references(&mut self, accesses: &[Access]) {
        for access in accesses {
            if !access.is_reference() {
                self.heat.free(access.page.0);
                self.set.free(self.references, access.page.0);
                continue;
            }
            self.heat.reference(self.references, access.page.0);
            self.set.reference(self.references, access.page.0);
            self.references += 1;
        }
    }

    /// Ends the last column.
    pub fn finish(&mut self) {
        self.set.finish();
    }
}

/// All numbers of such a report.
#[derive(Clone, Debug, Serialize)]
pub struct ForeignSummary {
    /// The trace's file.
    pub path: String,
    /// The result of reading the trace.
    #[serde(flatten)]
    pub imported: Imported,
    /// Bytes of a page.
    pub page_size: u64,
    /// LRU misses by size of memory.
    pub lru: CurveSummary,
}

impl ForeignSummary {
    /// Combines the result of reading with the LRU curve.
    pub fn new(path: &Path, imported: Imported, page_size: u64, curve: &Curve) -> Self {
        let valid_from_pages = imported.note.as_ref().map_or(1, |n| n.valid_from_pages);
        ForeignSummary {
            path: path.display().to_string(),
            imported,
            page_size,
            lru: CurveSummary {
                footprint_pages: curve.footprint(),
                cold: curve.cold,
                valid_from_pages: Some(valid_from_pages),
                points: BoundedPoint::of(curve, POINTS, None),
            },
        }
    }

    fn figures(&self, views: &ForeignViews, curve: &Curve, lines: &[PolicyLine]) -> Vec<Figure> {
        let caption = Caption {
            references: self.imported.references,
            distinct_pages: self.imported.pages.into(),
            page_size: self.page_size,
            scope: self.imported.format,
            evms_size: 0,
            sets: None,
            filter: None,
            filtered: None,
            is_part: false,
        };
        let subtitle = caption.subtitle();
        let mut figures = vec![fault_curve::figure(&caption, lines, curve.cold)];
        if let Some(note) = &self.imported.note {
            let from = grouped(note.valid_from_pages);
            figures[0].about.push_str(&format!(
                " The trace was reduced by {}: below {from} pages, the curves are meaningless.",
                note.method
            ));
        }
        figures.push(views.heat.figure(Unit::Count, 0, &subtitle));
        figures.extend(
            views
                .set
                .figures(Unit::Count, self.page_size, None, &subtitle),
        );
        figures.push(reuse::histogram(curve, self.page_size, &subtitle));
        figures
    }

    /// Writes report.html, summary.json, summary.txt, and each figure as SVG, CSV and
    /// JSON into a directory, which is created if necessary. With `page_alone`, writes only the
    /// page, to `path`.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub fn write(
        &self,
        path: &Path,
        page_alone: bool,
        views: &ForeignViews,
        curve: &Curve,
        lines: &[PolicyLine],
    ) -> Result<()> {
        let figures = self.figures(views, curve, lines);
        let json = to_json(self, "summary.json")?;
        let pages = u64::from(self.imported.pages);
        let mut facts = vec![
            ("trace", self.path.clone()),
            ("format", self.imported.format.into()),
            ("references", grouped(self.imported.references)),
            ("writes", grouped(self.imported.writes)),
            (
                "distinct pages",
                format!(
                    "{} ({})",
                    grouped(pages),
                    bytes_text(pages.saturating_mul(self.page_size))
                ),
            ),
        ];
        if let Some(note) = &self.imported.note {
            facts.push((
                "reduced",
                format!(
                    "by {} with K = {} pages; stands for the full trace in memories of {} pages and \
                     more",
                    note.method,
                    grouped(note.k),
                    grouped(note.valid_from_pages)
                ),
            ));
        }
        let page = Page {
            title: "Report of another program's trace",
            subject: "The trace",
            verdict: None,
            facts,
            badges: Vec::new(),
            findings: Vec::new(),
            figures: &figures,
            tables: Vec::new(),
            data: &String::from_utf8_lossy(&json),
        };
        let html = page.html().into_bytes();
        if page_alone {
            return write_file(path, &html);
        }
        let mut files = vec![
            ("report.html".to_string(), html),
            ("summary.txt".into(), self.text().into_bytes()),
        ];
        files.extend(figure_files(&figures)?);
        files.push(("summary.json".into(), json));
        write_files(path, &files)
    }

    /// The summary as text.
    pub fn text(&self) -> String {
        let mut t = String::new();
        let i = &self.imported;
        let pages = u64::from(i.pages);
        let footprint = bytes_text(pages.saturating_mul(self.page_size));
        // Writing to a string cannot fail.
        let _ = writeln!(t, "Another program's trace: {}\n{}\n", i.format, self.path);
        let mut line = |name: &str, value: u64, more: &str| {
            let _ = writeln!(t, "  {name:<18} {:>16}  {more}", grouped(value));
        };
        line("references", i.references, "");
        line("writes", i.writes, "");
        line("distinct pages", pages, &footprint);
        if let Some(note) = &i.note {
            let _ = writeln!(
                t,
                "\nReduced by {} with K = {} pages; stands for the full trace in memories of {} \
                 pages and more ({}).",
                note.method,
                grouped(note.k),
                grouped(note.valid_from_pages),
                note.source
            );
        }
        let _ = writeln!(t, "\n  {:>12} {:>16}", "memory, pages", "LRU misses");
        for BoundedPoint { point, .. } in self
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
