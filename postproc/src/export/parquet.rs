//! `parquet`: a directory of tables for DuckDB, Polars, Spark and others.
//!
//! Apache Parquet (parquet.apache.org/docs/file-format), zstd-compressed.
//! `references/part-0.parquet` and those that follow have a row for each reference:
//!
//! | column | type | |
//! |---|---|---|
//! | window | uint32 | number of the window |
//! | process | uint32 | process id, or the thread's own if no event says more |
//! | seq | int64 | global sequence number of the admission |
//! | time_ns | int64 | time of the admission since the trace's start |
//! | page | uint32 | page number, as in the other formats |
//! | address | int64 | virtual address of the page |
//! | access | string | read, write or exec; seen for a second chance |
//! | kernel | boolean | whether the kernel made the access for the program |
//! | dirtied | boolean | whether a store to the page was made or begun in this stay |
//! | again | boolean | whether it was referenced in the second segment, where that is known |
//! | why | string | why the stay ended |
//! | stay_ns | int64 | length of the stay; null if it saturated |
//! | tid, cpu, mm, pfn | uint32 | thread, CPU, address space, page frame |
//! | vtime | int64 | the thread's virtual time, in ticks; null if the trace has none |
//! | offset | int64 | bytes from address to the access that began the stay; null if the trace has no offsets, or this one is not known |
//!
//! `freed/part-0.parquet` and those that follow have a row for each page that is freed:
//!
//! | column | type | |
//! |---|---|---|
//! | window | uint32 | number of the window |
//! | process | uint32 | process of the thread that freed the page |
//! | seq | int64 | global sequence number of the event that freed it |
//! | time_ns | int64 | time of that event since the trace's start |
//! | page | uint32 | page number; no reference with a greater `seq` has it |
//! | event | string | that event: unmap, mm_end, advise, cow, truncate, snap_begin and others |
//!
//! Freed pages are no references, so they are a table of their own: `count(*)` of `references`
//! is the number of references, whether pages are freed or not. No page is freed twice, so
//! `page` is the key of `freed`. `seq` orders the rows of both tables. With `--keep-freed`
//! there is no table `freed`.
//!
//! `processes/part-0.parquet` has the last name and program of each process id.
//!
//! Each table is a directory. A reader that takes only the files of the directory that it is
//! given, as Spark does, then finds no table in the wrong place and reports that.
//!
//! Numbers of 64 bits are signed: differences may be negative, and Spark has no unsigned
//! ones. Sequence numbers, times and addresses of programs fit.
//!
//! Rows of `references` come in runs of at most 2^18. Within a run, rows are sorted by window, process and
//! `seq`. A row group is a part of a run, so it has few windows and processes. A reader that
//! needs one of them skips most row groups by their statistics. The number of files and row
//! groups depends on the number of references, not on the number of processes. The names of
//! the files have no meaning.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

use super::{DirectoryExporter, FormatEntry, FreedBy, Make};
use crate::error::{OutputContext, Result};
use crate::pipeline::{Batch, Freeing, Outcome};
use crate::trace::{Header, PacketSeen, Ref, RefFlags, Why};
use crate::units::{Access, CanonPage};

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "parquet",
    about: "for DuckDB, Polars and Spark: tables of references, freed pages and processes; a directory",
    make: Make::Directory(|directory, options| {
        let freed = options.freeing == Freeing::Freed;
        Ok(Box::new(Tables::new(directory, freed)?))
    }),
};

/// Rows that are sorted together; all that are in memory.
const RUN: usize = 1 << 18;
/// Rows of a row group, at most: few enough that one process has a good share of it.
const GROUP: usize = 1 << 16;
/// Rows of a file. What is known of a file's row groups is in memory until it is complete.
const FILE: u64 = 1 << 24;

type Written<T> = std::result::Result<T, ParquetError>;

fn named<T>(result: Written<T>, what: &str) -> Result<T> {
    result.map_err(io::Error::from).writing(what)
}

/// Words that rows share, so that they take no memory in each.
struct Names {
    access: [ByteArray; 4],
    why: [ByteArray; Why::ALL.len()],
}

impl Names {
    fn new() -> Self {
        let access = [Access::Read, Access::Write, Access::Exec, Access::Seen];
        Names {
            access: access.map(|access| ByteArray::from(access.name())),
            why: Why::ALL.map(|why| ByteArray::from(why.name())),
        }
    }
}

/// What the header says of all references.
#[derive(Default)]
struct Origin {
    start_ns: u64,
    stay_shift: u32,
    vtime: bool,
}

/// A row as it waits for its turn.
#[derive(Clone, Copy)]
struct Row {
    window: u32,
    process: u32,
    page: CanonPage,
    reference: Ref,
}

/// A row of the table of freed pages.
struct FreedRow {
    window: u32,
    process: u32,
    seq: u64,
    time_ns: u64,
    page: CanonPage,
    event: ByteArray,
}

/// Writes a row group of freed pages.
fn write_freed(mut to: SerializedRowGroupWriter<'_, File>, rows: &[FreedRow]) -> Written<()> {
    fn values<T>(rows: &[FreedRow], of: impl Fn(&FreedRow) -> T) -> Vec<T> {
        rows.iter().map(of).collect()
    }
    column::<Int32Type>(&mut to, &values(rows, |row| row.window as i32), None)?;
    column::<Int32Type>(&mut to, &values(rows, |row| row.process as i32), None)?;
    column::<Int64Type>(&mut to, &values(rows, |row| row.seq as i64), None)?;
    column::<Int64Type>(&mut to, &values(rows, |row| row.time_ns as i64), None)?;
    column::<Int32Type>(&mut to, &values(rows, |row| row.page.0 as i32), None)?;
    column::<ByteArrayType>(&mut to, &values(rows, |row| row.event.clone()), None)?;
    to.close()?;
    Ok(())
}

/// Writes a row group of references, column by column.
struct Group<'g, 'f> {
    to: SerializedRowGroupWriter<'f, File>,
    rows: &'g [Row],
    from: &'g Origin,
    names: &'g Names,
}

impl Group<'_, '_> {
    fn u32(&mut self, of: impl Fn(&Row) -> u32) -> Written<()> {
        // Parquet keeps unsigned numbers in signed ones of their size. Readers know from the
        // schema that these are unsigned.
        let values: Vec<i32> = self.rows.iter().map(|row| of(row) as i32).collect();
        column::<Int32Type>(&mut self.to, &values, None)
    }

    fn u64(&mut self, of: impl Fn(&Row) -> u64) -> Written<()> {
        let values: Vec<i64> = self.rows.iter().map(|row| of(row) as i64).collect();
        column::<Int64Type>(&mut self.to, &values, None)
    }

    fn optional(&mut self, of: impl Fn(&Row) -> Option<u64>) -> Written<()> {
        let all = self.rows.iter().map(&of);
        let known: Vec<i16> = all.clone().map(|value| value.is_some().into()).collect();
        let values: Vec<i64> = all.flatten().map(|value| value as i64).collect();
        column::<Int64Type>(&mut self.to, &values, Some(&known))
    }

    fn flag(&mut self, of: impl Fn(RefFlags) -> bool) -> Written<()> {
        let flags = self.rows.iter().map(|row| of(row.reference.flags()));
        let values: Vec<bool> = flags.collect();
        column::<BoolType>(&mut self.to, &values, None)
    }

    fn text(&mut self, of: impl Fn(&Names, RefFlags) -> ByteArray) -> Written<()> {
        let flags = self.rows.iter().map(|row| row.reference.flags());
        let values: Vec<ByteArray> = flags.map(|flags| of(self.names, flags)).collect();
        column::<ByteArrayType>(&mut self.to, &values, None)
    }

    fn write(mut self) -> Written<()> {
        let Origin {
            start_ns,
            stay_shift,
            vtime,
        } = *self.from;
        self.u32(|row| row.window)?;
        self.u32(|row| row.process)?;
        self.u64(|row| row.reference.seq)?;
        self.u64(|row| row.reference.time_ns.saturating_sub(start_ns))?;
        self.u32(|row| row.page.0)?;
        self.u64(|row| row.reference.address())?;
        self.text(|names, flags| names.access[flags.access() as usize].clone())?;
        self.flag(RefFlags::kernel)?;
        self.flag(RefFlags::dirtied)?;
        self.flag(RefFlags::again)?;
        self.text(|names, flags| names.why[flags.why() as usize].clone())?;
        self.optional(|row| {
            let end = row.reference.end_ns(stay_shift);
            end.map(|end| end - row.reference.time_ns)
        })?;
        self.u32(|row| row.reference.tid().0)?;
        self.u32(|row| row.reference.cpu())?;
        self.u32(|row| row.reference.mm.0)?;
        self.u32(|row| row.reference.pfn)?;
        self.optional(|row| vtime.then_some(row.reference.vtime))?;
        self.optional(|row| row.reference.within())?;
        self.to.close()?;
        Ok(())
    }
}

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
    known: Option<&[i16]>,
) -> Written<()> {
    let mut column = group
        .next_column()?
        .ok_or_else(|| ParquetError::General("more columns than the schema has".into()))?;
    column.typed::<T>().write_batch(values, known, None)?;
    column.close()
}

fn field(name: &str, physical: Physical, logical: Option<LogicalType>) -> Written<TypePtr> {
    let repetition = match name {
        "stay_ns" | "vtime" | "offset" => Repetition::OPTIONAL,
        _ => Repetition::REQUIRED,
    };
    let field = Type::primitive_type_builder(name, physical)
        .with_repetition(repetition)
        .with_logical_type(logical)
        .build()?;
    Ok(Arc::new(field))
}

fn i64_field(name: &str) -> Written<TypePtr> {
    field(name, Physical::INT64, None)
}

fn u32_field(name: &str) -> Written<TypePtr> {
    field(name, Physical::INT32, Some(LogicalType::integer(32, false)))
}

fn text_field(name: &str) -> Written<TypePtr> {
    field(name, Physical::BYTE_ARRAY, Some(LogicalType::String))
}

fn table(name: &str, fields: Vec<TypePtr>) -> Written<TypePtr> {
    let schema = Type::group_type_builder(name).with_fields(fields).build()?;
    Ok(Arc::new(schema))
}

fn references_schema() -> Written<TypePtr> {
    let fields = vec![
        u32_field("window")?,
        u32_field("process")?,
        i64_field("seq")?,
        i64_field("time_ns")?,
        u32_field("page")?,
        i64_field("address")?,
        text_field("access")?,
        field("kernel", Physical::BOOLEAN, None)?,
        field("dirtied", Physical::BOOLEAN, None)?,
        field("again", Physical::BOOLEAN, None)?,
        text_field("why")?,
        i64_field("stay_ns")?,
        u32_field("tid")?,
        u32_field("cpu")?,
        u32_field("mm")?,
        u32_field("pfn")?,
        i64_field("vtime")?,
        i64_field("offset")?,
    ];
    table("references", fields)
}

fn freed_schema() -> Written<TypePtr> {
    let fields = vec![
        u32_field("window")?,
        u32_field("process")?,
        i64_field("seq")?,
        i64_field("time_ns")?,
        u32_field("page")?,
        text_field("event")?,
    ];
    table("freed", fields)
}

fn processes_schema() -> Written<TypePtr> {
    let fields = vec![
        u32_field("process")?,
        text_field("comm")?,
        text_field("exe")?,
    ];
    table("processes", fields)
}

/// Numbers whose neighbours differ by little: their differences are kept, which every
/// reader of Parquet 2 knows. A dictionary of them would be as long as they are.
const STEADY: [&str; 4] = ["seq", "time_ns", "stay_ns", "vtime"];

fn properties() -> Written<WriterProperties> {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_created_by(concat!("kvmtrace postproc ", env!("CARGO_PKG_VERSION")).into());
    for name in STEADY {
        properties = properties
            .set_column_dictionary_enabled(name.into(), false)
            .set_column_encoding(name.into(), Encoding::DELTA_BINARY_PACKED);
    }
    Ok(properties.build())
}

/// The file that rows go to.
struct Part {
    writer: SerializedFileWriter<File>,
    name: String,
    rows: u64,
}

impl Part {
    fn close(self) -> Result<()> {
        named(self.writer.close(), &self.name).map(drop)
    }
}

/// A table, which is a directory of files.
struct Table {
    directory: PathBuf,
    name: &'static str,
    schema: TypePtr,
    properties: WriterPropertiesPtr,
    part: Option<Part>,
    parts: u64,
}

impl Table {
    fn new(
        directory: &Path,
        name: &'static str,
        schema: Written<TypePtr>,
        properties: &WriterPropertiesPtr,
    ) -> Result<Self> {
        std::fs::create_dir(directory.join(name)).writing(name)?;
        Ok(Table {
            directory: directory.into(),
            name,
            schema: named(schema, name)?,
            properties: properties.clone(),
            part: None,
            parts: 0,
        })
    }

    /// A new file.
    fn create(&mut self) -> Result<Part> {
        let name = format!("{}/part-{}.parquet", self.name, self.parts);
        self.parts += 1;
        let file = File::create(self.directory.join(&name)).writing(&name)?;
        let (schema, properties) = (self.schema.clone(), self.properties.clone());
        Ok(Part {
            writer: named(SerializedFileWriter::new(file, schema, properties), &name)?,
            name,
            rows: 0,
        })
    }

    /// Adds a row group of so many rows.
    fn group(
        &mut self,
        rows: usize,
        write: impl FnOnce(SerializedRowGroupWriter<'_, File>) -> Written<()>,
    ) -> Result<()> {
        let mut part = match self.part.take() {
            Some(part) => part,
            None => self.create()?,
        };
        let group = named(part.writer.next_row_group(), &part.name)?;
        named(write(group), &part.name)?;
        part.rows += rows as u64;
        if part.rows >= FILE {
            return part.close();
        }
        self.part = Some(part);
        Ok(())
    }

    /// Completes the last file. A table without rows has a file without rows.
    fn finish(&mut self) -> Result<()> {
        if self.parts == 0 {
            self.part = Some(self.create()?);
        }
        self.part.take().map_or(Ok(()), Part::close)
    }
}

struct Tables {
    names: Names,
    references: Table,
    /// The table of freed pages and the rows that wait for a row group, if pages are freed.
    freed: Option<(Table, Vec<FreedRow>)>,
    processes: Table,
    origin: Origin,
    /// Windows by the first sequence number of a packet of theirs.
    windows: BTreeMap<u64, u32>,
    /// The window of these sequence numbers.
    window: (Range<u64>, u32),
    run: Vec<Row>,
    sorted: Vec<Row>,
}

impl Tables {
    fn new(directory: &Path, freed: bool) -> Result<Self> {
        let properties = Arc::new(named(properties(), "parquet")?);
        let table = |name, schema| Table::new(directory, name, schema, &properties);
        Ok(Tables {
            names: Names::new(),
            references: table("references", references_schema())?,
            freed: match freed {
                true => Some((table("freed", freed_schema())?, Vec::new())),
                false => None,
            },
            processes: table("processes", processes_schema())?,
            origin: Origin::default(),
            windows: BTreeMap::new(),
            window: (0..0, 0),
            run: Vec::new(),
            sorted: Vec::new(),
        })
    }

    fn window(&mut self, seq: u64) -> u32 {
        let (known, window) = &self.window;
        if known.contains(&seq) {
            return *window;
        }
        let before = self.windows.range(..=seq).next_back();
        let (&from, &window) = before.unwrap_or((&0, &0));
        let after = self.windows.range((Excluded(seq), Unbounded)).next();
        let to = after.map_or(u64::MAX, |(&to, _)| to);
        self.window = (from..to, window);
        window
    }

    /// Writes the run's rows in order of their keys.
    fn flush(&mut self) -> Result<()> {
        let mut order: Vec<(u32, u32, u32)> = Vec::with_capacity(self.run.len());
        for (i, row) in self.run.iter().enumerate() {
            order.push((row.window, row.process, i as u32));
        }
        // Of equal keys the one that came first is first.
        order.sort_unstable();
        let mut sorted = std::mem::take(&mut self.sorted);
        for group in order.chunks(GROUP) {
            sorted.clear();
            sorted.extend(group.iter().map(|&(.., i)| self.run[i as usize]));
            self.write(&sorted)?;
        }
        self.sorted = sorted;
        self.run.clear();
        Ok(())
    }

    fn write(&mut self, rows: &[Row]) -> Result<()> {
        let (from, names) = (&self.origin, &self.names);
        self.references.group(rows.len(), |to| {
            let group = Group {
                to,
                rows,
                from,
                names,
            };
            group.write()
        })
    }

    fn write_processes(&mut self, outcome: &Outcome) -> Result<()> {
        let mut by_id = BTreeMap::new();
        for process in outcome.world.tasks.processes() {
            by_id.insert(process.tgid, process);
        }
        self.processes.group(by_id.len(), |mut to| {
            let ids: Vec<i32> = by_id.keys().map(|tgid| tgid.0 as i32).collect();
            column::<Int32Type>(&mut to, &ids, None)?;
            let text = |text: &str| ByteArray::from(text);
            let comms: Vec<_> = by_id.values().map(|p| text(&p.comm)).collect();
            column::<ByteArrayType>(&mut to, &comms, None)?;
            let exes: Vec<_> = by_id.values().map(|p| text(&p.exe)).collect();
            column::<ByteArrayType>(&mut to, &exes, None)?;
            to.close()?;
            Ok(())
        })?;
        self.processes.finish()
    }
}

impl DirectoryExporter for Tables {
    fn begin(&mut self, header: &Header) -> Result<()> {
        self.origin = Origin {
            start_ns: header.start_time_ns,
            stay_shift: header.stay_shift,
            vtime: header.has_vtime(),
        };
        Ok(())
    }

    fn packet(&mut self, packet: &PacketSeen) -> Result<()> {
        // A window's packets follow those of the window before it.
        let head = &packet.head;
        if self.window(head.first_seq) != head.window {
            self.windows.insert(head.first_seq, head.window);
            self.window = (0..0, 0);
        }
        Ok(())
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        let tasks = &batch.world.tasks;
        for (r, &page) in batch.refs.iter().zip(batch.pages) {
            let tid = r.tid();
            let row = Row {
                window: self.window(r.seq),
                process: tasks.find(tid).map_or(tid, |p| tasks.process(p).tgid).0,
                page,
                reference: *r,
            };
            self.run.push(row);
            if self.run.len() == RUN {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn freed(&mut self, pages: &[CanonPage], by: &FreedBy) -> Result<()> {
        let window = self.window(by.seq);
        let Some((table, rows)) = &mut self.freed else {
            return Ok(());
        };
        let event = ByteArray::from(by.event);
        for &page in pages {
            rows.push(FreedRow {
                window,
                process: by.tgid.0,
                seq: by.seq,
                time_ns: by.time_ns.saturating_sub(self.origin.start_ns),
                page,
                event: event.clone(),
            });
            if rows.len() == GROUP {
                table.group(GROUP, |to| write_freed(to, rows))?;
                rows.clear();
            }
        }
        Ok(())
    }

    fn finish(&mut self, outcome: &Outcome) -> Result<()> {
        self.flush()?;
        self.references.finish()?;
        if let Some((table, rows)) = &mut self.freed {
            if !rows.is_empty() {
                table.group(rows.len(), |to| write_freed(to, rows))?;
            }
            table.finish()?;
        }
        self.write_processes(outcome)
    }
}
