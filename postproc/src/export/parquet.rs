//! `parquet`: a directory of tables for DuckDB, Polars, Spark and others.
//!
//! Apache Parquet (parquet.apache.org/docs/file-format), zstd-compressed.
//! `references/` is partitioned by window and process in the way of Hive, as
//! `references/window=0/process=10/part-0.parquet`, so that a query that names
//! one of them reads that part alone. A reference is a row:
//!
//! | column | type | |
//! |---|---|---|
//! | seq | uint64 | global sequence number of the admission |
//! | time_ns | uint64 | time of the admission since the trace's start |
//! | page | uint32 | page number, as in the other formats |
//! | address | uint64 | virtual address of the page |
//! | access | string | read, write or exec |
//! | kernel | boolean | whether the kernel made the access for the program |
//! | dirtied | boolean | whether the page was written during the stay |
//! | again | boolean | whether it was referenced in the second segment, where that is told |
//! | why | string | why the stay ended |
//! | stay_ns | uint64 | length of the stay; null if it saturated |
//! | tid, cpu, mm, pfn | uint32 | thread, CPU, address space, page frame |
//! | vtime | uint64 | the thread's virtual time, in ticks; null if the trace has none |
//!
//! `process` is the process id, or the thread's own if no event told it.
//! `processes.parquet` has the last name and program of each process id.
//!
//! Memory holds at most 2^18 rows, however many partitions there are: if there
//! are more, the partition with the most rows is written as a row group. At
//! most 64 files are open; a partition whose file was closed goes on in another
//! part.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

use super::{DirectoryExporter, FormatEntry, Make};
use crate::error::{OutputContext, Result};
use crate::pipeline::{Batch, Outcome};
use crate::trace::{Header, PacketSeen, Ref, Why};
use crate::units::{Access, CanonPage};

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "parquet",
    about: "Parquet tables by window and process, for DuckDB and others; a directory",
    make: Make::Directory(|directory| Ok(Box::new(Tables::new(directory)?))),
};

/// Rows in memory, at most, but for one batch.
const ROWS: usize = 1 << 18;
/// Files open, at most.
const FILES: usize = 64;

type Written<T> = std::result::Result<T, ParquetError>;

fn named<T>(result: Written<T>, what: &str) -> Result<T> {
    result.map_err(io::Error::from).writing(what)
}

/// Window and process.
type Key = (u32, u32);

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

/// The rows of a partition that are not yet written, column by column.
#[derive(Default)]
struct Rows {
    seq: Vec<i64>,
    time_ns: Vec<i64>,
    page: Vec<i32>,
    address: Vec<i64>,
    access: Vec<ByteArray>,
    kernel: Vec<bool>,
    dirtied: Vec<bool>,
    again: Vec<bool>,
    why: Vec<ByteArray>,
    stay_ns: Vec<i64>,
    /// 1 where there is a stay.
    stay_known: Vec<i16>,
    tid: Vec<i32>,
    cpu: Vec<i32>,
    mm: Vec<i32>,
    pfn: Vec<i32>,
    vtime: Vec<i64>,
    /// 1 where there is one.
    vtime_known: Vec<i16>,
}

impl Rows {
    fn len(&self) -> usize {
        self.seq.len()
    }

    fn push(&mut self, r: &Ref, page: CanonPage, from: &Origin, names: &Names) {
        // Parquet keeps unsigned numbers in signed ones of their size.
        let flags = r.flags();
        self.seq.push(r.seq as i64);
        self.time_ns
            .push(r.time_ns.saturating_sub(from.start_ns) as i64);
        self.page.push(page.0 as i32);
        self.address.push(r.address() as i64);
        self.access
            .push(names.access[flags.access() as usize].clone());
        self.kernel.push(flags.kernel());
        self.dirtied.push(flags.dirtied());
        self.again.push(flags.again());
        self.why.push(names.why[flags.why() as usize].clone());
        let stay = r.end_ns(from.stay_shift).map(|end| end - r.time_ns);
        self.stay_known.push(stay.is_some().into());
        self.stay_ns.extend(stay.map(|stay| stay as i64));
        self.tid.push(r.tid().0 as i32);
        self.cpu.push(r.cpu() as i32);
        self.mm.push(r.mm.0 as i32);
        self.pfn.push(r.pfn as i32);
        self.vtime_known.push(from.vtime.into());
        self.vtime.extend(from.vtime.then_some(r.vtime as i64));
    }

    fn write(&self, file: &mut SerializedFileWriter<File>) -> Written<()> {
        let mut group = file.next_row_group()?;
        column::<Int64Type>(&mut group, &self.seq, None)?;
        column::<Int64Type>(&mut group, &self.time_ns, None)?;
        column::<Int32Type>(&mut group, &self.page, None)?;
        column::<Int64Type>(&mut group, &self.address, None)?;
        column::<ByteArrayType>(&mut group, &self.access, None)?;
        column::<BoolType>(&mut group, &self.kernel, None)?;
        column::<BoolType>(&mut group, &self.dirtied, None)?;
        column::<BoolType>(&mut group, &self.again, None)?;
        column::<ByteArrayType>(&mut group, &self.why, None)?;
        column::<Int64Type>(&mut group, &self.stay_ns, Some(&self.stay_known))?;
        column::<Int32Type>(&mut group, &self.tid, None)?;
        column::<Int32Type>(&mut group, &self.cpu, None)?;
        column::<Int32Type>(&mut group, &self.mm, None)?;
        column::<Int32Type>(&mut group, &self.pfn, None)?;
        column::<Int64Type>(&mut group, &self.vtime, Some(&self.vtime_known))?;
        group.close()?;
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
        "stay_ns" | "vtime" => Repetition::OPTIONAL,
        _ => Repetition::REQUIRED,
    };
    let field = Type::primitive_type_builder(name, physical)
        .with_repetition(repetition)
        .with_logical_type(logical)
        .build()?;
    Ok(Arc::new(field))
}

fn unsigned(bit_width: i8) -> Option<LogicalType> {
    Some(LogicalType::integer(bit_width, false))
}

fn u64_field(name: &str) -> Written<TypePtr> {
    field(name, Physical::INT64, unsigned(64))
}

fn u32_field(name: &str) -> Written<TypePtr> {
    field(name, Physical::INT32, unsigned(32))
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
        u64_field("seq")?,
        u64_field("time_ns")?,
        u32_field("page")?,
        u64_field("address")?,
        text_field("access")?,
        field("kernel", Physical::BOOLEAN, None)?,
        field("dirtied", Physical::BOOLEAN, None)?,
        field("again", Physical::BOOLEAN, None)?,
        text_field("why")?,
        u64_field("stay_ns")?,
        u32_field("tid")?,
        u32_field("cpu")?,
        u32_field("mm")?,
        u32_field("pfn")?,
        u64_field("vtime")?,
    ];
    table("references", fields)
}

fn processes_schema() -> Written<TypePtr> {
    let fields = vec![
        u32_field("process")?,
        text_field("comm")?,
        text_field("exe")?,
    ];
    table("processes", fields)
}

/// A partition's open file.
struct Part {
    writer: SerializedFileWriter<File>,
    name: String,
    /// When it was written to last; counts writes.
    used: u64,
}

struct Tables {
    directory: PathBuf,
    names: Names,
    schema: TypePtr,
    properties: WriterPropertiesPtr,
    origin: Origin,
    /// Windows by the first sequence number of a packet of theirs.
    windows: BTreeMap<u64, u32>,
    rows: BTreeMap<Key, Rows>,
    in_memory: usize,
    open: BTreeMap<Key, Part>,
    /// Parts that each partition has had.
    parts: BTreeMap<Key, u32>,
    writes: u64,
}

impl Tables {
    fn new(directory: &Path) -> Result<Self> {
        let level = named(ZstdLevel::try_new(3), "parquet")?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(level))
            .set_created_by(concat!("kvmtrace postproc ", env!("CARGO_PKG_VERSION")).into())
            .build();
        Ok(Tables {
            directory: directory.into(),
            names: Names::new(),
            schema: named(references_schema(), "parquet")?,
            properties: Arc::new(properties),
            origin: Origin::default(),
            windows: BTreeMap::new(),
            rows: BTreeMap::new(),
            in_memory: 0,
            open: BTreeMap::new(),
            parts: BTreeMap::new(),
            writes: 0,
        })
    }

    fn window(&self, seq: u64) -> u32 {
        let (_, &window) = self.windows.range(..=seq).next_back().unwrap_or((&0, &0));
        window
    }

    fn close(part: Part) -> Result<()> {
        named(part.writer.close(), &part.name).map(drop)
    }

    /// A new file; of too many, closes the one that was written to longest ago.
    fn new_part(&mut self, key: Key) -> Result<Part> {
        if self.open.len() == FILES {
            let oldest = self.open.iter().min_by_key(|(_, part)| part.used);
            let oldest = oldest.map(|(&key, _)| key);
            if let Some(part) = oldest.and_then(|key| self.open.remove(&key)) {
                Self::close(part)?;
            }
        }
        let number = self.parts.entry(key).or_insert(0);
        let (window, process) = key;
        let folder = format!("references/window={window}/process={process}");
        let name = format!("{folder}/part-{number}.parquet");
        *number += 1;
        std::fs::create_dir_all(self.directory.join(&folder)).writing(&folder)?;
        let file = File::create(self.directory.join(&name)).writing(&name)?;
        let writer = SerializedFileWriter::new(file, self.schema.clone(), self.properties.clone());
        Ok(Part {
            writer: named(writer, &name)?,
            name,
            used: 0,
        })
    }

    /// Writes a partition's rows as a row group.
    fn flush(&mut self, key: Key) -> Result<()> {
        let Some(rows) = self.rows.remove(&key) else {
            return Ok(());
        };
        self.in_memory -= rows.len();
        let mut part = match self.open.remove(&key) {
            Some(part) => part,
            None => self.new_part(key)?,
        };
        named(rows.write(&mut part.writer), &part.name)?;
        self.writes += 1;
        part.used = self.writes;
        self.open.insert(key, part);
        Ok(())
    }

    fn write_processes(&self, outcome: &Outcome) -> Written<()> {
        let mut by_id = BTreeMap::new();
        for process in outcome.world.tasks.processes() {
            by_id.insert(process.tgid, process);
        }
        let file = File::create(self.directory.join("processes.parquet"))?;
        let mut writer =
            SerializedFileWriter::new(file, processes_schema()?, self.properties.clone())?;
        let mut group = writer.next_row_group()?;
        let ids: Vec<i32> = by_id.keys().map(|tgid| tgid.0 as i32).collect();
        column::<Int32Type>(&mut group, &ids, None)?;
        let text = |text: &str| ByteArray::from(text);
        let comms: Vec<_> = by_id.values().map(|p| text(&p.comm)).collect();
        column::<ByteArrayType>(&mut group, &comms, None)?;
        let exes: Vec<_> = by_id.values().map(|p| text(&p.exe)).collect();
        column::<ByteArrayType>(&mut group, &exes, None)?;
        group.close()?;
        writer.close()?;
        Ok(())
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
        }
        Ok(())
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        let tasks = &batch.world.tasks;
        for (r, &page) in batch.refs.iter().zip(batch.pages) {
            let tid = r.tid();
            let process = tasks.find(tid).map_or(tid, |p| tasks.process(p).tgid).0;
            let key = (self.window(r.seq), process);
            let rows = self.rows.entry(key).or_default();
            rows.push(r, page, &self.origin, &self.names);
            self.in_memory += 1;
        }
        while self.in_memory > ROWS {
            let largest = self.rows.iter().max_by_key(|(_, rows)| rows.len());
            let Some((&key, _)) = largest else { break };
            self.flush(key)?;
        }
        Ok(())
    }

    fn finish(&mut self, outcome: &Outcome) -> Result<()> {
        while let Some(&key) = self.rows.keys().next() {
            self.flush(key)?;
        }
        for part in std::mem::take(&mut self.open).into_values() {
            Self::close(part)?;
        }
        named(self.write_processes(outcome), "processes.parquet")
    }
}
