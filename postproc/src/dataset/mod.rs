//! One dataset for any number of traces.
//!
//! docs/dataset.md is the contract: the tables, their columns, and what may change.
//!
//! A dataset is a directory. It has a directory for each table, and this has a directory for each
//! trace, `TABLE/trace=ID`. A trace is made in a hidden directory first. Then its tables are renamed into
//! their places, that of the table `traces` last. So a trace is in the dataset if, and only if, the table
//! `traces` has it: a reader that begins with that table never sees half a trace.

mod facts;
mod tables;
pub(crate) mod writer;

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use self::tables::Tables;
use self::writer::{GROUP_BYTES, Table};
use crate::canon::PageMode;
use crate::check::{CheckReport, Checker};
use crate::error::{OutputContext, Result};
use crate::filter::Chosen;
use crate::pipeline::{self, Freeing, Observer};
use crate::trace::Trace;
use crate::unfinished::{self, Registered};

pub use facts::{Facts, Taken};

/// The version of the tables: docs/dataset.md says what changes it. Datasets of earlier versions take
/// traces, too.
pub const SCHEMA_VERSION: u64 = 2;

/// All tables. `traces` is the last one that a trace comes to, and the first one that it leaves.
const TABLES: [&str; 6] = [
    "references",
    "events",
    "mappings",
    "pages",
    "processes",
    "traces",
];

/// The file that says that a directory is a dataset.
const MARK: &str = "dataset.json";

#[derive(Serialize, Deserialize)]
struct Mark {
    format: String,
    schema_version: u64,
    /// The options that selected the references, if these are not all.
    #[serde(skip_serializing_if = "Option::is_none")]
    selection: Option<String>,
}

const FORMAT: &str = "kvmtrace-dataset";

/// How a trace is added.
#[derive(Clone, Debug, Default)]
pub struct Adding {
    /// Which references are taken, if not all. All traces of a dataset have the same selection.
    pub chosen: Option<Chosen>,
    /// The host on which the trace was made.
    pub host: Option<String>,
    /// Whether a trace with the same id is replaced. Otherwise it is an error.
    pub replace: bool,
    /// Bytes of a row group, if not those of the contract; for tests.
    pub group_bytes: Option<usize>,
}

impl Adding {
    /// The options that select the references, if not all are taken.
    fn words(&self) -> Option<&str> {
        self.chosen.as_ref().map(|chosen| &*chosen.words)
    }
}

/// Which references are in something, in words.
pub(crate) fn selected_text(selection: Option<&str>) -> String {
    match selection {
        Some(words) => format!("the references that {words} selects"),
        None => "all references".into(),
    }
}

/// A trace that was added.
#[derive(Clone, Debug, Serialize)]
pub struct Added {
    /// What the table `traces` has.
    #[serde(flatten)]
    pub facts: Facts,
    /// Whether another one was replaced.
    pub replaced: bool,
    /// Files that were written.
    pub files: u64,
    /// Bytes of these files.
    pub file_bytes: u64,
}

/// A dataset.
pub struct Dataset {
    path: PathBuf,
    /// Directories that are removed if nothing is added.
    _made: Vec<Registered>,
}

impl Dataset {
    /// The dataset in a directory. A directory that does not exist or is empty becomes one with the
    /// first trace that is added.
    ///
    /// # Errors
    ///
    /// The directory has something else, or a dataset of another version.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let made = unfinished::make_directories(path).writing(&name)?;
        match std::fs::read(path.join(MARK)) {
            Ok(text) => drop(understood(&text).writing(&name)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let shown = |entry: &std::fs::DirEntry| {
                    !entry.file_name().as_encoded_bytes().starts_with(b".")
                };
                let mut entries = path.read_dir().writing(&name)?.filter_map(|e| e.ok());
                if entries.any(|entry| shown(&entry)) {
                    let why = "the directory is not empty, and is no dataset: give -o another one";
                    return Err(io::Error::new(io::ErrorKind::AlreadyExists, why)).writing(&name);
                }
            }
            Err(e) => return Err(e).writing(&name),
        }
        Ok(Dataset {
            path: path.into(),
            _made: made,
        })
    }

    /// Reads a trace, checks it and adds it.
    ///
    /// # Errors
    ///
    /// The trace cannot be read, is the part of one process, or is in the dataset already; or writing
    /// failed. Then the dataset is as before.
    pub fn add(
        &self,
        trace: &Trace,
        adding: &Adding,
        mut checker: Checker,
        observer: &mut dyn Observer,
    ) -> Result<(Added, CheckReport)> {
        let name = self.path.display().to_string();
        if trace.is_partial() {
            let why = "a trace's part of one process is not added: add the whole trace";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why))
                .writing(trace.path().display().to_string());
        }
        let id = trace.header().uuid.to_string();
        // Before the work, and again when the tables are put into their places.
        self.allows(&id, adding).writing(&name)?;
        let (staging, _registered) = unfinished::directory(|| {
            tempfile::Builder::new()
                .prefix(".adding.")
                .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
                .tempdir_in(&self.path)
        })
        .writing(&name)?;
        let below = staging.path().join("new");
        let group_bytes = adding.group_bytes.unwrap_or(GROUP_BYTES);
        let chosen = adding.chosen.as_ref();
        let mut tables = Tables::new(below.clone(), &id, trace, chosen, group_bytes)?;
        let outcome = pipeline::run_with(
            trace,
            PageMode::Canonical,
            Freeing::Freed,
            observer,
            &mut [&mut checker, &mut tables],
        )?;
        let filtered = tables.filtered();
        let (references, pages) = tables.finish(&outcome)?;
        if let Some((chosen, filtered)) = chosen.zip(filtered) {
            chosen.demand(trace, references, &filtered)?;
        }
        let taken = Taken {
            chosen,
            references,
            pages,
        };
        let host = adding.host.as_deref();
        let report = checker.report();
        let facts = Facts::new(trace, host, &outcome, taken, &report);
        let directory = below.join("traces").join(format!("trace={id}"));
        let mut table = Table::in_directory(directory, &facts::COLUMNS, group_bytes)?;
        facts.cells(table.row()).end()?;
        table.finish()?;
        let (mut files, mut file_bytes) = (0, 0);
        count(&below, &mut files, &mut file_bytes).writing(&name)?;
        let replaced = self.settle(&staging, &id, adding).writing(&name)?;
        let added = Added {
            facts,
            replaced,
            files,
            file_bytes,
        };
        Ok((added, report))
    }

    /// Whether a trace is in the dataset.
    fn has(&self, id: &str) -> bool {
        self.place("traces", id).exists()
    }

    fn allows(&self, id: &str, adding: &Adding) -> io::Result<()> {
        let mark = match std::fs::read(self.path.join(MARK)) {
            Ok(text) => Some(understood(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let asked = adding.words();
        if let Some(mark) = mark.filter(|mark| mark.selection.as_deref() != asked) {
            let why = format!(
                "the dataset has {}, and {} were asked for: give -o another directory, or the same \
                 selection",
                selected_text(mark.selection.as_deref()),
                selected_text(asked)
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        if self.has(id) && !adding.replace {
            let why = format!("trace {id} is in the dataset already: --replace replaces it");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        Ok(())
    }

    fn place(&self, table: &str, id: &str) -> PathBuf {
        self.path.join(table).join(format!("trace={id}"))
    }

    /// Puts the tables of a trace into their places. Returns whether there was another one.
    fn settle(&self, staging: &TempDir, id: &str, adding: &Adding) -> io::Result<bool> {
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.path.join(".lock"))?;
        // Others that add to the dataset wait. A signal waits, too: see `unfinished`.
        let _lock: Flock<File> = Flock::lock(lock, FlockArg::LockExclusive)
            .map_err(|(_, error)| io::Error::from(error))?;
        self.allows(id, adding)?;
        let (new, old) = (staging.path().join("new"), staging.path().join("old"));
        let mark = self.path.join(MARK);
        let replaced = self.has(id);
        unfinished::settle(|| -> io::Result<()> {
            for table in TABLES {
                std::fs::create_dir_all(self.path.join(table))?;
                std::fs::create_dir_all(old.join(table))?;
            }
            if !mark.exists() {
                let text = serde_json::to_vec_pretty(&Mark {
                    format: FORMAT.into(),
                    schema_version: SCHEMA_VERSION,
                    selection: adding.words().map(Into::into),
                })?;
                let file = staging.path().join(MARK);
                std::fs::write(&file, text)?;
                std::fs::rename(file, &mark)?;
            }
            let mut done: Vec<(PathBuf, PathBuf)> = Vec::new();
            let partition = format!("trace={id}");
            let out = TABLES.iter().rev();
            let out = out.map(|t| (self.place(t, id), old.join(t).join(&partition)));
            let into = TABLES.iter();
            let into = into.map(|t| (new.join(t).join(&partition), self.place(t, id)));
            // What is there without a row of `traces` is left from a process that was killed here.
            for (from, to) in out.filter(|(from, _)| from.exists()).chain(into) {
                if let Err(error) = std::fs::rename(&from, &to) {
                    for (from, to) in done.into_iter().rev() {
                        // The error that was met first is the one that counts.
                        let _ = std::fs::rename(to, from);
                    }
                    return Err(error);
                }
                done.push((from, to));
            }
            Ok(())
        })?;
        Ok(replaced)
    }
}

fn understood(text: &[u8]) -> io::Result<Mark> {
    let mark: Mark = serde_json::from_slice(text)?;
    if mark.format != FORMAT || !(1..=SCHEMA_VERSION).contains(&mark.schema_version) {
        let why = format!(
            "{MARK} has {} of version {}, and this is version {SCHEMA_VERSION}: make another dataset",
            mark.format, mark.schema_version
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(mark)
}

fn count(path: &Path, files: &mut u64, bytes: &mut u64) -> io::Result<()> {
    for entry in path.read_dir()? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            count(&entry.path(), files, bytes)?;
        } else {
            *files += 1;
            *bytes += entry.metadata()?.len();
        }
    }
    Ok(())
}
