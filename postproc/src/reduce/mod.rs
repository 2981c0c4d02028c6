//! Shorter traces that give the same, or nearly the same, results.
//!
//! A method is a file, a line of [`registry`] and a test. All methods take references one
//! by one. They need memory for the last references to `k` pages, and some bytes for each
//! page. None reads a trace twice.

mod filter;
mod olr;
mod recent;
mod sad;

use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::error::{OutputContext, Result};
use crate::import::{NOTE_MARK, Note};
use crate::output::Output;
use crate::sim::{Access, Kind};

/// Leaves out references.
pub trait Reducer {
    /// Takes a reference, or the end of a page. Passes on the
    /// references that are now certain to stay, in order.
    fn reference(&mut self, access: Access, to: &mut Vec<Access>);
    /// After the last.
    fn finish(&mut self, to: &mut Vec<Access>);
}

/// A method that can be asked for by name.
pub struct MethodEntry {
    /// Its stable name.
    pub id: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// Makes it for `k` pages, at least 1.
    pub make: fn(k: u64) -> Box<dyn Reducer>,
    /// Results hold for memories of so many times `k`.
    pub valid_from_times: u64,
    /// Policies whose misses are then equal.
    pub exact_for: &'static [&'static str],
    /// Whether write-backs are then equal, too.
    pub write_backs: bool,
    /// The source of this claim.
    pub source: &'static str,
}

/// All methods.
pub fn registry() -> &'static [MethodEntry] {
    &[sad::ENTRY, olr::ENTRY, filter::FIFO, filter::CLOCK]
}

/// What was written.
#[derive(Clone, Debug, Serialize)]
pub struct Reduced {
    /// What the output says of itself.
    #[serde(flatten)]
    pub note: Note,
    /// The file.
    pub output: String,
    /// References read.
    pub references: u64,
    /// References written.
    pub left: u64,
}

impl Reduced {
    /// Why the smallest memory is larger than what was asked for, in words; `None` if it is not.
    pub fn why_larger(&self) -> Option<String> {
        let note = &self.note;
        let method = registry().iter().find(|m| m.id == note.method)?;
        let asked = note.k * method.valid_from_times;
        let of_n = u64::from(note.evms_size) * FIFO_TIMES;
        if note.valid_from_pages <= asked {
            return None;
        }
        Some(match note.valid_from_pages == of_n {
            true => format!(
                "which is {FIFO_TIMES} N of the trace (N={}); --size gave {} pages",
                note.evms_size, note.k
            ),
            false => format!("as it was read; --size gave {} pages", note.k),
        })
    }
}

/// Writes a reduced trace as csv, which begins with a [`Note`].
pub struct Reduction {
    method: &'static MethodEntry,
    k: u64,
    /// N of the tracer that made the trace, and what a reduction before said.
    evms_size: u32,
    before: Option<Note>,
    reducer: Box<dyn Reducer>,
    output: Output,
    begun: bool,
    references: u64,
    left: u64,
    kept: Vec<Access>,
    lines: Vec<u8>,
}

/// A FIFO-reduced trace is good from four times its N on; see docs/fidelity.md.
pub const FIFO_TIMES: u64 = 4;

impl Reduction {
    /// Reduces to `path` by `method`; `evms_size` is N of the trace, 0 if no
    /// tracer reduced it.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub fn create(
        method: &'static MethodEntry,
        k: u64,
        evms_size: u32,
        path: &Path,
    ) -> Result<Self> {
        let k = k.max(1);
        Ok(Reduction {
            method,
            k,
            evms_size,
            before: None,
            reducer: (method.make)(k),
            output: Output::create(path)?,
            begun: false,
            references: 0,
            left: 0,
            kept: Vec::new(),
            lines: Vec::new(),
        })
    }

    /// Records that the trace was reduced before; to be called before the first reference.
    pub fn reduced_before(&mut self, note: &Note) {
        if !self.begun {
            self.before = Some(note.clone());
        }
    }

    fn note(&self) -> Note {
        let m = self.method;
        let before = self.before.as_ref();
        let evms_size = self.evms_size.max(before.map_or(0, |note| note.evms_size));
        let exact = |id: &&&str| before.is_none_or(|note| note.exact_for.iter().any(|e| e == **id));
        Note {
            method: m.id.into(),
            k: self.k,
            valid_from_pages: (self.k * m.valid_from_times)
                .max(u64::from(evms_size) * FIFO_TIMES)
                .max(before.map_or(0, |note| note.valid_from_pages)),
            exact_for: m
                .exact_for
                .iter()
                .filter(exact)
                .map(|id| id.to_string())
                .collect(),
            write_backs: m.write_backs && before.is_none_or(|note| note.write_backs),
            source: m.source.into(),
            evms_size,
        }
    }

    fn write(&mut self) -> Result<()> {
        let b = &mut self.lines;
        b.clear();
        if !self.begun {
            self.begun = true;
            let note = self.note();
            let b = &mut self.lines;
            b.extend_from_slice(NOTE_MARK.as_bytes());
            serde_json::to_writer(&mut *b, &note)
                .map_err(std::io::Error::from)
                .writing(self.output.name())?;
            b.extend_from_slice(b"\npage,access\n");
        }
        let b = &mut self.lines;
        for access in &self.kept {
            crate::export::decimal(b, access.page.0.into());
            b.extend_from_slice(match access.kind {
                Kind::Read => b",read\n",
                Kind::Write => b",write\n",
                Kind::Free => b",free\n",
            });
            self.left += u64::from(access.is_reference());
        }
        self.kept.clear();
        self.output.write_all(b).writing(self.output.name())
    }

    /// Takes references.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub fn accesses(&mut self, accesses: &[Access]) -> Result<()> {
        for &access in accesses {
            self.references += u64::from(access.is_reference());
            self.reducer.reference(access, &mut self.kept);
        }
        self.write()
    }

    /// Gives the file its name.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub fn commit(mut self) -> Result<Reduced> {
        self.reducer.finish(&mut self.kept);
        self.write()?;
        let reduced = Reduced {
            note: self.note(),
            output: self.output.name().into(),
            references: self.references,
            left: self.left,
        };
        self.output.finish()?;
        Ok(reduced)
    }
}

#[cfg(test)]
mod testing {
    use super::MethodEntry;
    use crate::sim::Access;
    use crate::units::CanonPage;

    /// Reduces a trace of one-letter pages; capitals write.
    pub fn reduced(method: MethodEntry, k: u64, trace: &str) -> String {
        let mut reducer = (method.make)(k);
        let mut kept = Vec::new();
        for word in trace.split(' ') {
            let letter = word.as_bytes()[0];
            let page = CanonPage(u32::from(letter.to_ascii_lowercase() - b'a') + 1);
            let access = Access::reference(page, letter.is_ascii_uppercase());
            reducer.reference(access, &mut kept);
        }
        reducer.finish(&mut kept);
        let word = |access: &Access| {
            let letter = char::from(b'a' + access.page.0 as u8 - 1);
            if access.writes() {
                letter.to_ascii_uppercase().to_string()
            } else {
                letter.to_string()
            }
        };
        kept.iter().map(word).collect::<Vec<_>>().join(" ")
    }
}
