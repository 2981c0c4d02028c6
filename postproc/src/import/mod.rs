//! Other programs' traces, for simulations.
//!
//! A format is a file, a line of [`registry`] and a test. Any file may be compressed
//! by zstd. The names in a foreign trace (numbers, addresses, keys) get page numbers in
//! the order in which they first appear. Memory holds these names and one block of
//! references, however long the trace is.

mod csv;
mod lackey;
mod lines;
mod note;
mod oracle_general;
mod txt;

use std::fs::File;
use std::hash::Hash;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::pipeline::Observer;
use crate::sim::Access;
use crate::units::CanonPage;

pub use note::{NOTE_MARK, Note};

/// Reads one format.
pub trait Importer {
    /// Reads on, for about a block of references; false at the end.
    fn read(&mut self, input: &mut dyn BufRead, to: &mut Accesses) -> Parsed<bool>;
    /// The trace's note about its reduction, known when the whole trace has been read.
    fn note(&self) -> Option<&Note> {
        None
    }
}

/// What reading a part of a foreign trace gives.
pub type Parsed<T> = std::result::Result<T, Fault>;

/// Why a foreign trace cannot be read.
#[derive(Debug)]
pub enum Fault {
    /// Reading failed.
    Io(io::Error),
    /// It is not what it should be.
    Malformed {
        /// Line from 1, or record from 1.
        place: String,
        /// What is wrong there.
        why: String,
    },
    /// More distinct pages than identities.
    TooManyPages,
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Self {
        Fault::Io(e)
    }
}

/// A format that can be read.
pub struct ImportEntry {
    /// Its stable name.
    pub id: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Makes a reader for pages of `2^page_shift` bytes.
    pub make: fn(page_shift: u32) -> Box<dyn Importer>,
}

/// All formats.
pub fn registry() -> &'static [ImportEntry] {
    &[lackey::ENTRY, txt::ENTRY, csv::ENTRY, oracle_general::ENTRY]
}

/// References in a block, about.
const BLOCK: usize = 1 << 15;

/// References read, by names that become page numbers.
#[derive(Default)]
pub struct Accesses {
    numbers: FxHashMap<u64, u32>,
    words: FxHashMap<Box<[u8]>, u32>,
    named: u32,
    block: Vec<Access>,
}

impl Accesses {
    /// A reference to what has a number.
    pub fn number(&mut self, number: u64, write: bool) -> Parsed<()> {
        let page = match self.numbers.get(&number) {
            Some(&page) => page,
            None => {
                let page = fresh(&mut self.named)?;
                remember(&mut self.numbers, number, page)
            }
        };
        self.push(page, write);
        Ok(())
    }

    /// A reference to what has a name.
    pub fn word(&mut self, word: &[u8], write: bool) -> Parsed<()> {
        let page = match self.words.get(word) {
            Some(&page) => page,
            None => {
                let page = fresh(&mut self.named)?;
                remember(&mut self.words, word.into(), page)
            }
        };
        self.push(page, write);
        Ok(())
    }

    /// What has a number is freed. Nothing happens if it was never referenced.
    pub fn free_number(&mut self, number: u64) {
        if let Some(&page) = self.numbers.get(&number) {
            self.block.push(Access::free(CanonPage(page)));
        }
    }

    /// What has a name is freed. Nothing happens if it was never referenced.
    pub fn free_word(&mut self, word: &[u8]) {
        if let Some(&page) = self.words.get(word) {
            self.block.push(Access::free(CanonPage(page)));
        }
    }

    fn push(&mut self, page: u32, write: bool) {
        let page = CanonPage(page);
        self.block.push(Access::reference(page, write));
    }

    /// Whether a block is complete.
    pub fn is_full(&self) -> bool {
        self.block.len() >= BLOCK
    }
}

fn remember<K: Hash + Eq>(names: &mut FxHashMap<K, u32>, name: K, page: u32) -> u32 {
    names.insert(name, page);
    page
}

fn fresh(named: &mut u32) -> Parsed<u32> {
    if *named >= crate::canon::MAX_PAGES {
        return Err(Fault::TooManyPages);
    }
    *named += 1;
    Ok(*named)
}

/// The result of reading a foreign trace.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Imported {
    /// The format's name.
    pub format: &'static str,
    /// References.
    pub references: u64,
    /// Those that write.
    pub writes: u64,
    /// Distinct pages.
    pub pages: u32,
    /// The trace's note about its reduction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<Note>,
}

/// Counts what is read of a file.
struct Counted<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(to)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

const BUFFER: usize = 1 << 18;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A foreign trace that is open.
pub struct Import {
    path: PathBuf,
    format: &'static str,
    input: Box<dyn BufRead>,
    importer: Box<dyn Importer>,
    read: Arc<AtomicU64>,
    total: u64,
}

impl Import {
    /// Opens a file; `-` is the standard input.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`].
    pub fn open(format: &'static ImportEntry, path: &Path, page_shift: u32) -> Result<Self> {
        let unreadable = |source| Error::Unreadable {
            path: path.into(),
            source,
        };
        let read = Arc::new(AtomicU64::new(0));
        let (file, total): (Box<dyn Read>, u64) = if path == Path::new("-") {
            (Box::new(io::stdin()), 0)
        } else {
            let file = File::open(path).map_err(unreadable)?;
            let meta = file.metadata().map_err(unreadable)?;
            if meta.is_dir() {
                return Err(unreadable(io::ErrorKind::IsADirectory.into()));
            }
            let length = meta.len();
            (Box::new(file), length)
        };
        let counted = Counted {
            inner: file,
            read: read.clone(),
        };
        let mut plain = BufReader::with_capacity(BUFFER, counted);
        let packed = plain
            .fill_buf()
            .map_err(unreadable)?
            .starts_with(&ZSTD_MAGIC);
        let input: Box<dyn BufRead> = if packed {
            let decoder = zstd::Decoder::with_buffer(plain).map_err(unreadable)?;
            Box::new(BufReader::with_capacity(BUFFER, decoder))
        } else {
            Box::new(plain)
        };
        Ok(Import {
            path: path.into(),
            format: format.id,
            input,
            importer: (format.make)(page_shift),
            read,
            total,
        })
    }

    /// Reads all of it, block by block; `visit` also gets what the trace has said
    /// of its reduction so far.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`], [`Error::Import`], [`Error::TooManyPages`],
    /// [`Error::Interrupted`], or what `visit` returned.
    pub fn run(
        mut self,
        observer: &mut dyn Observer,
        mut visit: impl FnMut(&[Access], Option<&Note>) -> Result<()>,
    ) -> Result<Imported> {
        let mut accesses = Accesses::default();
        let mut imported = Imported {
            format: self.format,
            ..Imported::default()
        };
        loop {
            let more = self
                .importer
                .read(&mut *self.input, &mut accesses)
                .map_err(|fault| self.error(fault))?;
            let references = accesses.block.iter().filter(|a| a.is_reference());
            imported.references += references.count() as u64;
            imported.writes += accesses.block.iter().filter(|a| a.writes()).count() as u64;
            visit(&accesses.block, self.importer.note())?;
            accesses.block.clear();
            let read = self.read.load(Ordering::Relaxed);
            if !observer.progress(read, self.total.max(read)) {
                return Err(Error::Interrupted);
            }
            if !more {
                break;
            }
        }
        imported.pages = accesses.named;
        imported.note = self.importer.note().cloned();
        Ok(imported)
    }

    fn error(&self, fault: Fault) -> Error {
        let path = self.path.clone();
        match fault {
            Fault::Io(source) => Error::Unreadable { path, source },
            Fault::Malformed { place, why } => Error::Import {
                path,
                format: self.format,
                place,
                why,
            },
            Fault::TooManyPages => Error::TooManyPages { path },
        }
    }
}
