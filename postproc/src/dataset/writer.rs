//! Tables of Parquet, written row by row.
//!
//! Apache Parquet (parquet.apache.org/docs/file-format), zstd-compressed. A row group takes about
//! [`GROUP_BYTES`], the size that readers of many files are made for. The library does not say how much
//! a column takes until the column is complete. So the first row group of a table is small, and each
//! one has as many rows as the row groups before it make expect, but no more than four times as many as
//! the one before. Until a row group is complete, its columns wait in memory, encoded and compressed. So
//! memory is bounded by the size of a row group, whatever the number of rows.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use parquet::basic::{
    Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel,
};
use parquet::column::page::{CompressedPage, PageWriteSpec, PageWriter};
use parquet::column::writer::{ColumnWriter, get_column_writer};
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite};
use parquet::schema::types::{ColumnPath, SchemaDescriptor, Type, TypePtr};

use crate::error::{OutputContext, Result};

/// Bytes of a row group, about: the columns as they are in the file.
pub(crate) const GROUP_BYTES: usize = 128 << 20;
/// Row groups of a file. What is known of them is in memory until the file is complete.
const GROUPS: usize = 8;
/// Rows that are encoded at a time.
const BATCH: usize = 1 << 12;
/// Rows of the first row group.
const FIRST: usize = 1 << 20;
/// Rows of a row group, at most and at least.
const MOST: usize = 1 << 26;
const LEAST: usize = 1 << 12;

type Written<T> = std::result::Result<T, ParquetError>;

/// The type of a column: those that DuckDB, Polars and Spark read alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// INT64.
    Int,
    /// INT64 that grows little from row to row.
    Steady,
    /// BOOLEAN.
    Flag,
    /// STRING.
    Text,
    /// TIMESTAMP, microseconds of UTC.
    Moment,
    /// A list of INT64.
    Ints,
    /// A list of STRING.
    Texts,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    optional: bool,
}

impl Column {
    pub(crate) const fn new(name: &'static str, kind: Kind) -> Self {
        let optional = false;
        Column {
            name,
            kind,
            optional,
        }
    }

    /// A column that may be null.
    pub(crate) const fn optional(name: &'static str, kind: Kind) -> Self {
        let optional = true;
        Column {
            name,
            kind,
            optional,
        }
    }

    pub(crate) fn is_list(&self) -> bool {
        matches!(self.kind, Kind::Ints | Kind::Texts)
    }

    fn schema(&self) -> Written<TypePtr> {
        let repetition = match self.optional {
            true => Repetition::OPTIONAL,
            false => Repetition::REQUIRED,
        };
        let (physical, logical) = match self.kind {
            Kind::Int | Kind::Steady | Kind::Ints => (Physical::INT64, None),
            Kind::Flag => (Physical::BOOLEAN, None),
            Kind::Text | Kind::Texts => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Moment => {
                let logical = LogicalType::timestamp(true, TimeUnit::MICROS);
                (Physical::INT64, Some(logical))
            }
        };
        let value =
            |name| Type::primitive_type_builder(name, physical).with_logical_type(logical.clone());
        if !self.is_list() {
            return Ok(Arc::new(
                value(self.name).with_repetition(repetition).build()?,
            ));
        }
        let element = value("element").with_repetition(Repetition::REQUIRED);
        let list = Type::group_type_builder("list")
            .with_repetition(Repetition::REPEATED)
            .with_fields(vec![Arc::new(element.build()?)]);
        let outer = Type::group_type_builder(self.name)
            .with_repetition(Repetition::REQUIRED)
            .with_logical_type(Some(LogicalType::List))
            .with_fields(vec![Arc::new(list.build()?)]);
        Ok(Arc::new(outer.build()?))
    }
}

/// Bytes of a column that wait for their row group.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<Vec<u8>>>);

impl Waiting {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Waiting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes the pages of one column.
struct Pages(TrackedWrite<Waiting>);

impl PageWriter for Pages {
    fn write_page(&mut self, page: CompressedPage) -> Written<PageWriteSpec> {
        SerializedPageWriter::new(&mut self.0).write_page(page)
    }

    fn close(&mut self) -> Written<()> {
        Ok(self.0.flush()?)
    }
}

enum Values {
    Ints(Vec<i64>),
    Flags(Vec<bool>),
    Texts(Vec<ByteArray>),
}

/// A column of the present row group.
struct Chunk {
    column: Column,
    /// Values of rows that are not encoded yet.
    values: Values,
    /// Which of these rows have a value, of a column that may be null or is a list.
    known: Vec<i16>,
    /// Which of these values goes on with the list of the value before, of a list.
    goes_on: Vec<i16>,
    writer: Option<ColumnWriter<'static>>,
    waiting: Waiting,
}

impl Chunk {
    fn new(column: Column) -> Self {
        Chunk {
            column,
            values: match column.kind {
                Kind::Flag => Values::Flags(Vec::new()),
                Kind::Text | Kind::Texts => Values::Texts(Vec::new()),
                _ => Values::Ints(Vec::new()),
            },
            known: Vec::new(),
            goes_on: Vec::new(),
            writer: None,
            waiting: Waiting::default(),
        }
    }

    /// Encodes what is there.
    fn encode(&mut self) -> Written<()> {
        let known = (self.column.optional || self.column.is_list()).then_some(&self.known[..]);
        let goes_on = self.column.is_list().then_some(&self.goes_on[..]);
        match (&mut self.writer, &mut self.values) {
            (Some(ColumnWriter::Int64ColumnWriter(to)), Values::Ints(values)) => {
                to.write_batch(values, known, goes_on)?;
                values.clear();
            }
            (Some(ColumnWriter::BoolColumnWriter(to)), Values::Flags(values)) => {
                to.write_batch(values, known, goes_on)?;
                values.clear();
            }
            (Some(ColumnWriter::ByteArrayColumnWriter(to)), Values::Texts(values)) => {
                to.write_batch(values, known, goes_on)?;
                values.clear();
            }
            _ => return Err(ParquetError::General("a column of another type".into())),
        }
        self.known.clear();
        self.goes_on.clear();
        Ok(())
    }
}

/// The file that row groups go to.
struct Part {
    writer: SerializedFileWriter<File>,
    name: String,
    groups: usize,
}

/// A table: a directory of files, or one file.
pub(crate) struct Table {
    directory: PathBuf,
    /// The name of the only file, if there is to be one.
    only: Option<String>,
    schema: TypePtr,
    properties: WriterPropertiesPtr,
    chunks: Vec<Chunk>,
    /// Rows that are not encoded yet. A row with long lists counts as several, here and below.
    rows: usize,
    /// Rows of this row group that are encoded.
    encoded: usize,
    /// Rows of this row group, at most.
    most: usize,
    group_bytes: usize,
    part: Option<Part>,
    parts: u32,
}

fn properties(columns: &[Column]) -> Written<WriterProperties> {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_created_by(concat!("kvmtrace postproc ", env!("CARGO_PKG_VERSION")).into());
    // Their differences are kept, which every reader of Parquet 2 knows. A dictionary of them would
    // be as long as they are.
    for column in columns.iter().filter(|column| column.kind == Kind::Steady) {
        properties = properties
            .set_column_dictionary_enabled(ColumnPath::from(column.name), false)
            .set_column_encoding(ColumnPath::from(column.name), Encoding::DELTA_BINARY_PACKED);
    }
    Ok(properties.build())
}

impl Table {
    /// A table of files `part-00000.parquet` and so on in a directory, which is made.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub(crate) fn in_directory(
        directory: PathBuf,
        columns: &[Column],
        group_bytes: usize,
    ) -> Result<Self> {
        std::fs::create_dir_all(&directory).writing(directory.display().to_string())?;
        Table::new(directory, None, columns, group_bytes)
    }

    /// A table that is one file of this name.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub(crate) fn one_file(directory: PathBuf, name: &str, columns: &[Column]) -> Result<Self> {
        Table::new(directory, Some(name.into()), columns, GROUP_BYTES)
    }

    fn new(
        directory: PathBuf,
        only: Option<String>,
        columns: &[Column],
        group_bytes: usize,
    ) -> Result<Self> {
        let make = || -> Written<_> {
            let fields = columns.iter().map(Column::schema);
            let fields = fields.collect::<Written<Vec<_>>>()?;
            let schema = Type::group_type_builder("table").with_fields(fields);
            Ok((Arc::new(schema.build()?), Arc::new(properties(columns)?)))
        };
        let (schema, properties) = make()
            .map_err(io::Error::from)
            .writing(directory.display().to_string())?;
        Ok(Table {
            directory,
            only,
            schema,
            properties,
            chunks: columns.iter().map(|&column| Chunk::new(column)).collect(),
            rows: 0,
            encoded: 0,
            most: FIRST.min(group_bytes / 64).max(LEAST),
            group_bytes,
            part: None,
            parts: 0,
        })
    }

    /// The next row. Its cells follow in the order of the columns.
    #[inline]
    pub(crate) fn row(&mut self) -> Row<'_> {
        Row {
            table: self,
            at: 0,
            listed: 0,
        }
    }

    fn named<T>(&self, result: Written<T>) -> Result<T> {
        result
            .map_err(io::Error::from)
            .writing(self.directory.display().to_string())
    }

    fn end_row(&mut self, listed: usize) -> Result<()> {
        self.rows += 1 + listed / self.chunks.len();
        if self.rows < BATCH {
            return Ok(());
        }
        let encoded = self.encode();
        self.named(encoded)?;
        match self.encoded < self.most {
            true => Ok(()),
            false => self.end_group(),
        }
    }

    fn encode(&mut self) -> Written<()> {
        self.encoded += std::mem::take(&mut self.rows);
        let columns = SchemaDescriptor::new(self.schema.clone());
        for (at, chunk) in self.chunks.iter_mut().enumerate() {
            if chunk.writer.is_none() {
                let pages = Box::new(Pages(TrackedWrite::new(chunk.waiting.clone())));
                let properties = self.properties.clone();
                chunk.writer = Some(get_column_writer(columns.column(at), properties, pages));
            }
            chunk.encode()?;
        }
        Ok(())
    }

    /// Writes the row group.
    fn end_group(&mut self) -> Result<()> {
        let mut part = match self.part.take() {
            Some(part) => part,
            None => self.create()?,
        };
        let mut bytes = 0;
        let mut write = || -> Written<()> {
            let mut group = part.writer.next_row_group()?;
            for chunk in &mut self.chunks {
                let Some(writer) = chunk.writer.take() else {
                    continue;
                };
                let closed = writer.close()?;
                let waiting = bytes::Bytes::from(chunk.waiting.take());
                bytes += waiting.len();
                group.append_column(&waiting, closed)?;
            }
            group.close()?;
            Ok(())
        };
        write().map_err(io::Error::from).writing(&part.name)?;
        let rows = std::mem::take(&mut self.encoded);
        // In 128 bits, no product overflows.
        let fitting = rows as u128 * self.group_bytes as u128 / bytes.max(1) as u128;
        let upto = self.most.saturating_mul(4).min(MOST);
        self.most = usize::try_from(fitting)
            .unwrap_or(MOST)
            .clamp(LEAST, upto.max(LEAST));
        part.groups += 1;
        if part.groups == GROUPS && self.only.is_none() {
            return close(part);
        }
        self.part = Some(part);
        Ok(())
    }

    fn create(&mut self) -> Result<Part> {
        let number = format!("part-{:05}.parquet", self.parts);
        self.parts += 1;
        let path = self.directory.join(self.only.as_ref().unwrap_or(&number));
        let name = path.display().to_string();
        let file = File::create(&path).writing(&name)?;
        let (schema, properties) = (self.schema.clone(), self.properties.clone());
        let writer = SerializedFileWriter::new(file, schema, properties);
        Ok(Part {
            writer: writer.map_err(io::Error::from).writing(&name)?,
            name,
            groups: 0,
        })
    }

    /// Completes the last file. A table without rows has a file without rows.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub(crate) fn finish(mut self) -> Result<()> {
        if self.rows > 0 {
            let encoded = self.encode();
            self.named(encoded)?;
        }
        if self.chunks.iter().any(|chunk| chunk.writer.is_some()) {
            self.end_group()?;
        }
        if self.parts == 0 {
            self.part = Some(self.create()?);
        }
        self.part.take().map_or(Ok(()), close)
    }
}

fn close(part: Part) -> Result<()> {
    let closed = part.writer.close().map(drop);
    closed.map_err(io::Error::from).writing(part.name)
}

/// A row that is being made.
pub(crate) struct Row<'t> {
    table: &'t mut Table,
    at: usize,
    /// Values of its lists.
    listed: usize,
}

impl Row<'_> {
    #[inline]
    fn next(&mut self) -> &mut Chunk {
        let chunk = &mut self.table.chunks[self.at];
        self.at += 1;
        chunk
    }

    /// A number. One above 2^63 - 1, which no good trace has, becomes negative.
    #[inline]
    pub(crate) fn int(self, value: impl Into<u64>) -> Self {
        self.signed(value.into() as i64)
    }

    /// A number that may be negative.
    #[inline]
    pub(crate) fn signed(mut self, value: i64) -> Self {
        if let Values::Ints(values) = &mut self.next().values {
            values.push(value);
        }
        self
    }

    /// A number that may be missing.
    #[inline]
    pub(crate) fn some_int(self, value: Option<impl Into<u64>>) -> Self {
        self.some_signed(value.map(|value| value.into() as i64))
    }

    /// A number that may be missing, and may be negative.
    #[inline]
    pub(crate) fn some_signed(mut self, value: Option<i64>) -> Self {
        let chunk = self.next();
        chunk.known.push(value.is_some().into());
        if let (Values::Ints(values), Some(value)) = (&mut chunk.values, value) {
            values.push(value);
        }
        self
    }

    #[inline]
    pub(crate) fn flag(mut self, value: bool) -> Self {
        if let Values::Flags(values) = &mut self.next().values {
            values.push(value);
        }
        self
    }

    /// A flag that may be missing.
    pub(crate) fn some_flag(mut self, value: Option<bool>) -> Self {
        let chunk = self.next();
        chunk.known.push(value.is_some().into());
        if let Values::Flags(values) = &mut chunk.values {
            values.extend(value);
        }
        self
    }

    #[inline]
    pub(crate) fn text(mut self, value: &ByteArray) -> Self {
        if let Values::Texts(values) = &mut self.next().values {
            values.push(value.clone());
        }
        self
    }

    /// A text that may be missing.
    #[inline]
    pub(crate) fn some_text(mut self, value: Option<&str>) -> Self {
        let chunk = self.next();
        chunk.known.push(value.is_some().into());
        if let (Values::Texts(values), Some(value)) = (&mut chunk.values, value) {
            values.push(ByteArray::from(value));
        }
        self
    }

    /// A list of numbers.
    pub(crate) fn ints(mut self, list: impl IntoIterator<Item = u64>) -> Self {
        let chunk = self.next();
        let before = chunk.known.len();
        if let Values::Ints(values) = &mut chunk.values {
            for value in list {
                values.push(value as i64);
                chunk.goes_on.push((chunk.known.len() > before).into());
                chunk.known.push(1);
            }
        }
        let listed = chunk.end_list(before);
        self.listed += listed;
        self
    }

    /// A list of texts.
    pub(crate) fn texts<'a>(mut self, list: impl IntoIterator<Item = &'a str>) -> Self {
        let chunk = self.next();
        let before = chunk.known.len();
        if let Values::Texts(values) = &mut chunk.values {
            for value in list {
                values.push(ByteArray::from(value));
                chunk.goes_on.push((chunk.known.len() > before).into());
                chunk.known.push(1);
            }
        }
        let listed = chunk.end_list(before);
        self.listed += listed;
        self
    }

    /// Ends the row.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    #[inline]
    pub(crate) fn end(self) -> Result<()> {
        debug_assert_eq!(self.at, self.table.chunks.len(), "a cell for each column");
        self.table.end_row(self.listed)
    }
}

impl Chunk {
    /// Ends a list that began after so many values; returns its length.
    fn end_list(&mut self, before: usize) -> usize {
        let listed = self.known.len() - before;
        // An empty list has no value, and is known to be there.
        if listed == 0 {
            self.known.push(0);
            self.goes_on.push(0);
        }
        listed
    }
}
