//! The rows of one trace.
//!
//! docs/dataset.md describes each table and column.

use std::ops::Range;
use std::path::PathBuf;

use parquet::data_type::ByteArray;
use rustc_hash::FxHashMap;

use super::writer::{Column, Kind, Table};
use crate::canon::Origin;
use crate::error::Result;
use crate::filter::{Chosen, Filter, Filtered};
use crate::pipeline::{Batch, Consumer, Outcome, Place, World};
use crate::space::{Issue, ObjectId};
use crate::trace::{Body, Event, FileId, Header, Members, Ref, Trace, Why};
use crate::units::{Access, CanonPage, Tid};

const REFERENCES: [Column; 21] = [
    Column::new("seq", Kind::Steady),
    Column::new("time_ns", Kind::Steady),
    Column::optional("process", Kind::Int),
    Column::new("pid", Kind::Int),
    Column::new("tid", Kind::Int),
    Column::new("cpu", Kind::Int),
    Column::new("mm", Kind::Int),
    Column::new("set", Kind::Int),
    Column::new("page", Kind::Int),
    Column::optional("object", Kind::Int),
    Column::new("address", Kind::Int),
    Column::optional("offset", Kind::Int),
    Column::new("access", Kind::Text),
    Column::new("kernel", Kind::Flag),
    Column::new("dirtied", Kind::Flag),
    Column::new("again", Kind::Flag),
    Column::new("why", Kind::Text),
    Column::optional("stay_ns", Kind::Int),
    Column::optional("pfn", Kind::Int),
    Column::optional("vtime", Kind::Steady),
    Column::new("first", Kind::Flag),
];

const EVENTS: [Column; 13] = [
    Column::new("window", Kind::Int),
    Column::new("seq", Kind::Steady),
    Column::new("time_ns", Kind::Steady),
    Column::optional("process", Kind::Int),
    Column::new("pid", Kind::Int),
    Column::new("tid", Kind::Int),
    Column::new("cpu", Kind::Int),
    Column::new("mm", Kind::Int),
    Column::new("event", Kind::Text),
    Column::new("snapshot", Kind::Flag),
    Column::new("no_news", Kind::Flag),
    Column::optional("vtime", Kind::Steady),
    Column::new("fields", Kind::Text),
];

const MAPPINGS: [Column; 18] = [
    Column::new("window", Kind::Int),
    Column::new("seq", Kind::Steady),
    Column::new("time_ns", Kind::Steady),
    Column::optional("process", Kind::Int),
    Column::new("pid", Kind::Int),
    Column::new("mm", Kind::Int),
    Column::new("snapshot", Kind::Flag),
    Column::new("start", Kind::Int),
    Column::new("end", Kind::Int),
    Column::new("prot", Kind::Text),
    Column::new("shared", Kind::Flag),
    Column::new("kind", Kind::Text),
    Column::optional("object", Kind::Int),
    Column::optional("device", Kind::Int),
    Column::optional("inode", Kind::Int),
    Column::optional("generation", Kind::Int),
    Column::optional("offset", Kind::Int),
    Column::new("name", Kind::Text),
];

const PAGES: [Column; 18] = [
    Column::new("window", Kind::Int),
    Column::new("page", Kind::Int),
    Column::new("bytes", Kind::Int),
    Column::new("kind", Kind::Text),
    Column::optional("device", Kind::Int),
    Column::optional("inode", Kind::Int),
    Column::optional("generation", Kind::Int),
    Column::optional("offset", Kind::Int),
    Column::optional("object", Kind::Int),
    Column::optional("name", Kind::Text),
    Column::new("references", Kind::Int),
    Column::new("dirtied", Kind::Int),
    Column::new("first_seq", Kind::Int),
    Column::new("first_ns", Kind::Int),
    Column::new("last_ns", Kind::Int),
    Column::optional("freed_seq", Kind::Int),
    Column::optional("freed_ns", Kind::Int),
    Column::optional("freed_by", Kind::Text),
];

const PROCESSES: [Column; 11] = [
    Column::new("process", Kind::Int),
    Column::new("pid", Kind::Int),
    Column::optional("parent", Kind::Int),
    Column::optional("start_ns", Kind::Int),
    Column::new("comm", Kind::Text),
    Column::optional("exe", Kind::Text),
    Column::optional("cgroup", Kind::Text),
    Column::new("mm", Kind::Int),
    Column::new("utime_ns", Kind::Int),
    Column::new("stime_ns", Kind::Int),
    Column::new("references", Kind::Int),
];

/// A page that exists.
struct Live {
    window: u32,
    object: Option<ObjectId>,
    origin: Option<Origin>,
    references: u64,
    dirtied: u64,
    first_seq: u64,
    first_ns: u64,
    last_ns: u64,
}

/// The event that frees a page.
struct FreedBy {
    seq: u64,
    ns: u64,
    event: &'static str,
}

/// What a frame's number is if it is too great for a record.
const NO_FRAME: u32 = u32::MAX;

/// Writes the tables of one trace, each to a directory of its own below one directory.
///
/// Memory: a row group of each table that is written, and each page that exists at a time.
pub(crate) struct Tables {
    directory: PathBuf,
    /// The part of each directory's name that is the trace.
    partition: String,
    group_bytes: usize,
    /// The present window, and the references in it.
    references: Option<(u32, Box<Table>)>,
    events: Table,
    mappings: Table,
    pages: Table,
    /// The first sequence number of each window, and its number.
    windows: Vec<(u64, u64)>,
    /// The window of these sequence numbers.
    window: (Range<u64>, u32),
    start_ns: u64,
    stay_shift: u32,
    page_size: u64,
    vtime: bool,
    live: FxHashMap<CanonPage, Live>,
    /// What the next batch's new pages are pages of.
    origins: FxHashMap<CanonPage, Origin>,
    /// Which references are taken, if not all.
    filter: Option<Filter>,
    /// References that were taken.
    taken: u64,
    /// Pages that were referenced.
    referenced: u64,
    /// By process: references.
    by_process: Vec<u64>,
    freed_by: Option<FreedBy>,
    access: [ByteArray; 4],
    why: [ByteArray; Why::ALL.len()],
}

impl Tables {
    /// Tables below `directory`, in the partition of the trace `id`, with these references only if any
    /// are chosen. A row group takes about `group_bytes`.
    pub(crate) fn new(
        directory: PathBuf,
        id: &str,
        trace: &Trace,
        chosen: Option<&Chosen>,
        group_bytes: usize,
    ) -> Result<Self> {
        let header: &Header = trace.header();
        let partition = format!("trace={id}");
        let table = |name: &str, columns: &[Column]| {
            Table::in_directory(directory.join(name).join(&partition), columns, group_bytes)
        };
        let access = [Access::Read, Access::Write, Access::Exec, Access::Seen];
        Ok(Tables {
            references: None,
            events: table("events", &EVENTS)?,
            mappings: table("mappings", &MAPPINGS)?,
            pages: table("pages", &PAGES)?,
            windows: trace.windows(),
            window: (0..0, 0),
            start_ns: header.start_time_ns,
            stay_shift: header.stay_shift,
            page_size: header.page_size(),
            vtime: header.has_vtime(),
            live: FxHashMap::default(),
            origins: FxHashMap::default(),
            filter: chosen.map(|chosen| Filter::new(&chosen.clause)),
            taken: 0,
            referenced: 0,
            by_process: Vec::new(),
            freed_by: None,
            access: access.map(|access| ByteArray::from(access.name())),
            why: Why::ALL.map(|why| ByteArray::from(why.name())),
            directory,
            partition,
            group_bytes,
        })
    }

    fn window(&mut self, seq: u64) -> u32 {
        let (known, window) = &self.window;
        if known.contains(&seq) {
            return *window;
        }
        let after = self.windows.partition_point(|&(first, _)| first <= seq);
        let (from, window) = match after.checked_sub(1) {
            Some(at) => self.windows[at],
            // An event before the first window is of that one.
            None => (0, self.windows.first().map_or(0, |&(_, window)| window)),
        };
        let to = self.windows.get(after).map_or(u64::MAX, |&(to, _)| to);
        self.window = (from..to, window as u32);
        window as u32
    }

    fn since_start(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.start_ns)
    }

    /// The table of references of a window. Windows follow each other, so one is open at a time.
    fn references_of(&mut self, window: u32) -> Result<&mut Table> {
        let table = match self.references.take() {
            Some((of, table)) if of == window => table,
            before => {
                if let Some((_, table)) = before {
                    table.finish()?;
                }
                let name = format!("window={window}");
                let directory = self.directory.join("references").join(&self.partition);
                Box::new(Table::in_directory(
                    directory.join(name),
                    &REFERENCES,
                    self.group_bytes,
                )?)
            }
        };
        Ok(&mut self.references.insert((window, table)).1)
    }

    fn reference(&mut self, r: &Ref, place: &Place, page: CanonPage, world: &World) -> Result<()> {
        let window = self.window(r.seq);
        let time_ns = self.since_start(r.time_ns);
        let (tid, flags) = (r.tid(), r.flags());
        let process = world.tasks.find(tid);
        if let Some(process) = process {
            let at = process.0 as usize;
            if at >= self.by_process.len() {
                self.by_process.resize(at + 1, 0);
            }
            self.by_process[at] += 1;
        }
        let object = match place {
            Place::Mapped { object, .. } => Some(*object),
            _ => None,
        };
        let mut first = false;
        let live = self.live.entry(page).or_insert_with(|| {
            first = true;
            Live {
                window,
                object,
                origin: self.origins.remove(&page),
                references: 0,
                dirtied: 0,
                first_seq: r.seq,
                first_ns: time_ns,
                last_ns: time_ns,
            }
        });
        self.taken += 1;
        self.referenced += u64::from(first);
        live.references += 1;
        live.dirtied += u64::from(flags.dirtied());
        live.last_ns = time_ns;
        let stay_ns = r.end_ns(self.stay_shift).map(|end| end - r.time_ns);
        let vtime = self.vtime.then_some(r.vtime);
        let access = self.access[flags.access() as usize].clone();
        let why = self.why[flags.why() as usize].clone();
        self.references_of(window)?
            .row()
            .int(r.seq)
            .int(time_ns)
            .some_int(process.map(|process| process.0))
            .int(process.map_or(tid, |p| world.tasks.process(p).tgid).0)
            .int(tid.0)
            .int(r.cpu())
            .int(r.mm.0)
            .int(r.set)
            .int(page.0)
            .some_int(object.map(|object| object.0))
            .int(r.address())
            .some_int(r.within())
            .text(&access)
            .flag(flags.kernel())
            .flag(flags.dirtied())
            .flag(flags.again())
            .text(&why)
            .some_int(stay_ns)
            .some_int(Some(r.pfn).filter(|&pfn| pfn != NO_FRAME))
            .some_int(vtime)
            .flag(first)
            .end()
    }

    fn page(
        &mut self,
        page: CanonPage,
        live: &Live,
        freed: Option<&FreedBy>,
        world: &World,
    ) -> Result<()> {
        let object = live.object.map(|id| world.space.object(id));
        let bytes = object.and_then(|o| o.huge).unwrap_or(self.page_size);
        let (kind, file) = match live.origin {
            Some(Origin::File(file, number)) => {
                let kind = object.map_or("file", |object| object.kind.name());
                (kind, Some((file, number * self.page_size)))
            }
            Some(Origin::Object(id, _)) => (world.space.object(id).kind.name(), None),
            None => ("anon", None),
        };
        self.pages
            .row()
            .int(live.window)
            .int(page.0)
            .int(bytes)
            .text(&kind.into())
            .some_int(file.map(|(file, _)| file.dev))
            .some_int(file.map(|(file, _)| file.ino))
            .some_int(file.map(|(file, _)| file.generation))
            .some_int(file.map(|(_, offset)| offset))
            .some_int(live.object.map(|object| object.0))
            .some_text(object.map(|object| &*object.name))
            .int(live.references)
            .int(live.dirtied)
            .int(live.first_seq)
            .int(live.first_ns)
            .int(live.last_ns)
            .some_int(freed.map(|by| by.seq))
            .some_int(freed.map(|by| by.ns))
            .some_text(freed.map(|by| by.event))
            .end()
    }

    fn mapping(&mut self, event: &Event<'_>, world: &World) -> Result<()> {
        let Body::Map(map) = event.body else {
            return Ok(());
        };
        let window = self.window(event.seq);
        let time_ns = self.since_start(event.time_ns);
        let space = world.space.get(event.mm);
        let mapping = space.and_then(|space| space.find(map.start));
        let name = match &mapping {
            Some(mapping) => world.space.name(mapping).into(),
            None => String::from_utf8_lossy(map.name),
        };
        let file = Some(map.file).filter(|file| *file != FileId::default());
        self.mappings
            .row()
            .int(window)
            .int(event.seq)
            .int(time_ns)
            .some_int(process_of(event, world))
            .int(event.tgid.0)
            .int(event.mm.0)
            .flag(event.is_snapshot())
            .int(map.start)
            .int(map.end)
            .text(&ByteArray::from(map.prot.to_string().as_str()))
            .flag(map.flags & rust_mm_trace::uapi::VMTRACE_MAP_SHARED != 0)
            .text(&map.kind.name().into())
            .some_int(mapping.map(|mapping| mapping.object.0))
            .some_int(file.map(|file| file.dev))
            .some_int(file.map(|file| file.ino))
            .some_int(file.map(|file| file.generation))
            .some_int(file.map(|_| map.offset))
            .text(&ByteArray::from(&*name))
            .end()
    }

    /// What was kept and left out, if not all was taken.
    pub(crate) fn filtered(&self) -> Option<Filtered> {
        self.filter.as_ref().map(Filter::filtered)
    }

    /// Writes what is left, when the trace is over. Returns how many references were taken, and how many
    /// pages these are to.
    pub(crate) fn finish(mut self, outcome: &Outcome) -> Result<(u64, u64)> {
        let world = &outcome.world;
        let mut live: Vec<_> = std::mem::take(&mut self.live).into_iter().collect();
        live.sort_unstable_by_key(|(page, _)| *page);
        for (page, live) in &live {
            self.page(*page, live, None, world)?;
        }
        // A trace without references has an empty table, so that each trace has the same tables.
        if self.references.is_none() {
            let window = self.windows.first().map_or(0, |&(_, window)| window);
            self.references_of(window as u32)?;
        }
        if let Some((_, table)) = self.references.take() {
            table.finish()?;
        }
        self.processes(world)?;
        self.events.finish()?;
        self.mappings.finish()?;
        self.pages.finish()?;
        Ok((self.taken, self.referenced))
    }

    fn processes(&self, world: &World) -> Result<()> {
        let directory = self.directory.join("processes").join(&self.partition);
        let mut table = Table::in_directory(directory, &PROCESSES, self.group_bytes)?;
        let tasks = &world.tasks;
        for (number, process) in tasks.processes().iter().enumerate() {
            let id = crate::process::ProcessId(number as u32);
            let start = Some(process.start_ns).filter(|&ns| ns != 0);
            let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            table
                .row()
                .int(id.0)
                .int(process.tgid.0)
                .some_int(tasks.parent(id).map(|parent| parent.0))
                .some_signed(start.map(|ns| (ns as i64).wrapping_sub(self.start_ns as i64)))
                .text(&ByteArray::from(process.comm.as_str()))
                .some_text(some(&process.exe).as_deref())
                .some_text(some(&process.cgroup).as_deref())
                .int(process.mm.0)
                .int(process.utime_ns)
                .int(process.stime_ns)
                .int(self.by_process.get(number).copied().unwrap_or(0))
                .end()?;
        }
        table.finish()
    }
}

/// The process that an event is of.
fn process_of(event: &Event<'_>, world: &World) -> Option<u32> {
    let find = |tid: Tid| world.tasks.find(tid);
    let process = find(event.tid).or_else(|| find(event.tgid));
    process.map(|process| process.0)
}

impl Consumer for Tables {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        if let Some(filter) = &mut self.filter {
            filter.begin(trace, false);
        }
        Ok(())
    }

    fn wants_origins(&self) -> bool {
        true
    }

    fn origins(&mut self, pages: &[(CanonPage, Origin)]) -> Result<()> {
        self.origins.extend(pages.iter().copied());
        Ok(())
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        let all = batch.refs.iter().zip(batch.places).zip(batch.pages);
        for ((r, place), &page) in all {
            let keeps = |filter: &mut Filter| filter.judge(r, place, batch.world);
            if self.filter.as_mut().is_none_or(keeps) {
                self.reference(r, place, page, batch.world)?;
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, world: &World, _issues: &[Issue]) -> Result<()> {
        let window = self.window(event.seq);
        let ns = self.since_start(event.time_ns);
        self.freed_by = Some(FreedBy {
            seq: event.seq,
            ns,
            event: event.name(),
        });
        let mut fields = Members::default();
        event.said().fields(&mut fields);
        self.events
            .row()
            .int(window)
            .int(event.seq)
            .int(ns)
            .some_int(process_of(event, world))
            .int(event.tgid.0)
            .int(event.tid.0)
            .int(event.cpu)
            .int(event.mm.0)
            .text(&event.name().into())
            .flag(event.is_snapshot())
            .flag(event.aside.is_some())
            .some_int(event.vtime)
            .text(&ByteArray::from(fields.to_string().as_str()))
            .end()?;
        self.mapping(event, world)
    }

    fn freed(&mut self, pages: &[CanonPage], world: &World) -> Result<()> {
        let by = self.freed_by.take();
        for &page in pages {
            self.origins.remove(&page);
            // One that was only copied was never referenced.
            if let Some(live) = self.live.remove(&page) {
                self.page(page, &live, by.as_ref(), world)?;
            }
        }
        Ok(())
    }
}
