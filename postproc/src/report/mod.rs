//! The report of a trace: a page with pictures, and the data of the pictures.
//!
//! Consumers ([`Statistics`], [`heat`], [`WorkingSet`], [`Reuse`]) count in one pass, in memory
//! that does not grow with the length of the trace. A [`Figure`] is made from their results.
//! A new figure is a new file, and a line where [`Report`] lists the figures: the page shows all
//! of them, in this order.

pub mod chart;
mod classes;
pub mod comparison;
pub mod comparison_page;
mod contents;
mod embed;
mod fault_curve;
mod faults;
mod foreign;
pub mod heat;
mod page;
mod pixels;
mod policies;
mod reuse;
mod statistics;
mod summary;
mod svg;
mod timeline;
mod working_set;

use std::path::Path;

use crate::error::{OutputContext, Result};
use crate::output::{write_files, written};

pub use classes::Class;
pub use contents::{Changed, Content, Contents, Identity, PageRange};
pub use fault_curve::{Caption, LinePoint, PolicyLine};
pub use foreign::{ForeignSummary, ForeignViews};
pub use page::{Report, Views};
pub use policies::{Plan, lines_of};
pub use reuse::{BySize, Reuse, Slice};
pub use statistics::{Counters, Statistics};
pub use summary::{SetsSummary, Summary, bytes_text, printable, sizes_text, text};
pub use working_set::{EnabledPages, SizeByTau, Working, WorkingSet};

/// A picture and the data that it shows.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The stable name of the figure and of its files.
    pub id: String,
    /// The title.
    pub title: String,
    /// Figures that follow each other and have the same section are shown one at a time. If empty,
    /// the figure is shown by itself.
    pub section: &'static str,
    /// How to read the picture.
    pub about: String,
    /// The picture.
    pub svg: String,
    /// The same picture for a reader who has a browser, which draws it anew for the part that is looked
    /// at: [`chart::LineChart::explored`], [`heat`], or null if there is none.
    pub explored: serde_json::Value,
    /// The data as a table.
    pub csv: String,
    /// All of the data.
    pub json: serde_json::Value,
}

fn write_file(path: &Path, content: &[u8]) -> Result<()> {
    written(path, content)?.finish()
}

fn to_json(value: &impl serde::Serialize, what: &str) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(value)
        .map_err(std::io::Error::from)
        .writing(what)
}

/// Each figure's picture and data, as files.
fn figure_files(figures: &[Figure]) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for figure in figures {
        let json = serde_json::to_vec(&figure.json)
            .map_err(std::io::Error::from)
            .writing(figure.id.clone())?;
        files.push((
            format!("{}.svg", figure.id),
            figure.svg.clone().into_bytes(),
        ));
        files.push((
            format!("{}.csv", figure.id),
            figure.csv.clone().into_bytes(),
        ));
        files.push((format!("{}.json", figure.id), json));
    }
    Ok(files)
}

/// A name as a field of a CSV file.
fn quoted(name: &str) -> String {
    if name.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.into()
    }
}

/// A number's digits in groups of three, with commas.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things, of which one is called `name` and several have an s: `1 page`, `1,234 pages`.
pub fn numbered(number: u64, name: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {name}{plural}", grouped(number))
}

#[cfg(test)]
mod tests {
    use super::{grouped, numbered, quoted};

    #[test]
    fn one_is_no_plural() {
        assert_eq!(numbered(0, "page"), "0 pages");
        assert_eq!(numbered(1, "page"), "1 page");
        assert_eq!(numbered(1234, "more mapping"), "1,234 more mappings");
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(12_345_678), "12,345,678");
    }

    #[test]
    fn names_are_one_field() {
        assert_eq!(quoted("/usr/lib/libc.so.6"), "/usr/lib/libc.so.6");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
