//! A file for each process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{ExportConsumer, ExportOptions, Exported, FormatEntry};
use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, World};
use crate::space::Issue;
use crate::streams::{Stream, Whose};
use crate::trace::{Event, Trace};
use crate::units::{CanonPage, Tid};

/// The number of files that are written at one time: a third of the usual limit of open files,
/// because some formats have temporary files as well.
const AT_ONCE: usize = 128;

/// Exports the references of each process to a file of its own.
///
/// Processes come in order of their first reference. As many as can be written at one
/// time are written in one pass; [`ProcessExports::commit`] says whether another one is
/// needed for the rest.
pub struct ProcessExports<'t> {
    trace: &'t Trace,
    format: &'static FormatEntry,
    path: PathBuf,
    options: ExportOptions,
    stop: Arc<AtomicBool>,
    at_once: usize,
    /// Processes of passes before this one.
    done: usize,
    /// Processes of this pass so far.
    seen: FxHashMap<Whose, usize>,
    /// How many had an id before.
    ids: FxHashMap<Tid, usize>,
    files: Vec<ProcessFile>,
    touched: Vec<usize>,
}

struct ProcessFile {
    whose: Whose,
    tgid: Tid,
    comm: String,
    stream: Stream,
    export: ExportConsumer,
}

/// The export of one process.
#[derive(Clone, Debug, Serialize)]
pub struct ExportedProcess {
    /// Its id.
    pub tgid: Tid,
    /// Its last name; empty if the trace does not say.
    pub comm: String,
    /// The file.
    #[serde(flatten)]
    pub exported: Exported,
}

impl<'t> ProcessExports<'t> {
    /// Writes `format` to files named after `path`, with the process id before its
    /// endings: `run.csv.zst` is `run.1234.csv.zst`, and `run.1234-2.csv.zst` for the
    /// second process that has this id.
    pub fn new(
        trace: &'t Trace,
        format: &'static FormatEntry,
        path: &Path,
        options: ExportOptions,
        stop: Arc<AtomicBool>,
    ) -> Self {
        ProcessExports {
            trace,
            format,
            path: path.into(),
            options,
            stop,
            at_once: AT_ONCE,
            done: 0,
            seen: FxHashMap::default(),
            ids: FxHashMap::default(),
            files: Vec::new(),
            touched: Vec::new(),
        }
    }

    /// Names the files of the pass. `Some` is the same for the next pass, if there are
    /// more processes than this one could write.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub fn commit(self) -> Result<(Vec<ExportedProcess>, Option<Self>)> {
        let mut exported = Vec::new();
        for file in self.files {
            exported.push(ExportedProcess {
                tgid: file.tgid,
                comm: file.comm,
                exported: file.export.commit()?,
            });
        }
        let done = self.done + self.at_once;
        let next = (self.seen.len() > done).then(|| ProcessExports {
            at_once: self.at_once,
            done,
            ..Self::new(
                self.trace,
                self.format,
                &self.path,
                self.options,
                self.stop.clone(),
            )
        });
        Ok((exported, next))
    }

    /// The process's place among all; its file is begun if it is this pass's to write.
    fn place(&mut self, whose: Whose, world: &World) -> Result<usize> {
        if let Some(&place) = self.seen.get(&whose) {
            return Ok(place);
        }
        let place = self.seen.len();
        self.seen.insert(whose, place);
        let tgid = whose.tgid(world);
        let had = self.ids.entry(tgid).or_insert(0);
        *had += 1;
        if (self.done..self.done + self.at_once).contains(&place) {
            let name = match *had {
                1 => tgid.0.to_string(),
                n => format!("{}-{n}", tgid.0),
            };
            let path = before_endings(&self.path, &name);
            let mut export =
                ExportConsumer::create(self.format, &path, self.options, self.stop.clone())?;
            export.begin(self.trace)?;
            self.files.push(ProcessFile {
                whose,
                tgid,
                comm: String::new(),
                stream: Stream::default(),
                export,
            });
        }
        Ok(place)
    }

    /// Gives each file its part of a batch.
    fn divide(
        &mut self,
        batch: &Batch<'_>,
        to: fn(&mut ExportConsumer, &Batch<'_>) -> Result<()>,
    ) -> Result<()> {
        self.touched.clear();
        let mut last = None;
        for (i, r) in batch.refs.iter().enumerate() {
            let tid = r.tid();
            let place = match last {
                Some((same, place)) if same == tid => place,
                _ => self.place(Whose::of(tid, batch.world), batch.world)?,
            };
            if last.is_none_or(|(same, _)| same != tid) {
                self.touched.push(place);
            }
            last = Some((tid, place));
            let file = place.checked_sub(self.done);
            if let Some(file) = file.and_then(|file| self.files.get_mut(file)) {
                file.stream.push(batch, i);
            }
        }
        for place in self.touched.drain(..) {
            let file = place.checked_sub(self.done);
            if let Some(file) = file.and_then(|file| self.files.get_mut(file)) {
                let export = &mut file.export;
                file.stream.pass_on(batch.world, |part| to(export, part))?;
            }
        }
        Ok(())
    }
}

/// `run.csv.zst` and `1234` to `run.1234.csv.zst`.
pub fn before_endings(path: &Path, what: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let at = name.find('.').filter(|at| *at > 0).unwrap_or(name.len());
    path.with_file_name(format!("{}.{what}{}", &name[..at], &name[at..]))
}

impl Consumer for ProcessExports<'_> {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.divide(batch, ExportConsumer::references)
    }

    fn wants_continuations(&self) -> bool {
        self.format.wants_continuations()
    }

    fn wants_io(&self) -> bool {
        self.options.io && self.format.takes_io()
    }

    fn io(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.divide(batch, ExportConsumer::io)
    }

    fn event(&mut self, event: &Event<'_>, world: &World, issues: &[Issue]) -> Result<()> {
        for file in &mut self.files {
            file.export.event(event, world, issues)?;
        }
        Ok(())
    }

    fn freed(&mut self, pages: &[CanonPage], world: &World) -> Result<()> {
        for file in &mut self.files {
            let numbers = file.stream.freed(pages, false);
            if !numbers.is_empty() {
                file.export.freed(&numbers, world)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, trace: &Trace, outcome: &Outcome) -> Result<()> {
        for file in &mut self.files {
            if let Whose::Process(id) = file.whose {
                file.comm.clone_from(&outcome.world.tasks.process(id).comm);
            }
            file.export.finish(trace, outcome)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canon::PageMode;
    use crate::export::registry;
    use crate::pipeline::{Unwatched, run};
    use crate::testing::TraceBuilder;
    use crate::units::Prot;

    /// As many passes as are needed give what one would give.
    #[test]
    fn more_processes_than_files_at_one_time() {
        let mut trace = TraceBuilder::new(1, 4);
        for i in 0..7 {
            trace.task(0, 10 + i, 10 + i, 1 + i, "program");
            trace.map_anon(0, 10 + i, 1 + i, 0x1000, 0x9000, Prot(3));
        }
        for i in 0..100u32 {
            let process = i * i % 7;
            let page = u64::from(i % 8 + 1) * 4096;
            trace.touch(0, 10 + process, 1 + process, page);
        }
        // A process that no event mentions.
        trace.touch(0, 99, 1, 0x1000);
        let trace = Trace::from_bytes("t", trace.finish()).expect("a trace");
        let directory = tempfile::tempdir().expect("a directory");
        let format = registry().iter().find(|f| f.id == "txt");
        let files = |at_once| {
            let path = directory.path().join(format!("of-{at_once}.txt"));
            let mut exports = ProcessExports::new(
                &trace,
                format.expect("txt"),
                &path,
                ExportOptions::default(),
                Arc::default(),
            );
            exports.at_once = at_once;
            let (mut passes, mut told) = (0, Vec::new());
            let mut next = Some(exports);
            while let Some(mut exports) = next {
                let consumers: &mut [&mut dyn Consumer] = &mut [&mut exports];
                run(&trace, PageMode::Canonical, &mut Unwatched, consumers).expect("written");
                let (processes, rest) = exports.commit().expect("room for files");
                assert!(processes.len() <= at_once);
                told.extend(processes.into_iter().map(|p| {
                    let text = std::fs::read_to_string(p.exported.output).expect("text");
                    (p.tgid, p.comm, p.exported.references, text)
                }));
                next = rest;
                passes += 1;
            }
            (passes, told)
        };
        let (passes, expected) = files(128);
        assert_eq!(passes, 1);
        let references = expected.iter().map(|(_, _, references, _)| references);
        assert_eq!(references.sum::<u64>(), 101);
        assert!(
            expected
                .iter()
                .any(|(id, comm, ..)| id.0 == 99 && comm.is_empty())
        );
        for at_once in 1..6 {
            let (passes, told) = files(at_once);
            assert_eq!(told, expected);
            assert_eq!(passes, expected.len().div_ceil(at_once));
        }
    }
}
