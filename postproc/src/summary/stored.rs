//! Summaries that are read back from tables of Parquet: those of [`super::Rows`], and those that Spark
//! writes of the rows of `kvmtrace.fleet`.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parquet::basic::{ConvertedType, Repetition, Type as Physical};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use parquet::record::reader::TreeBuilder;
use parquet::record::{Field, Row};
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type};
use serde_json::{Map, Value};

use super::rows::{COLUMNS, MORE, RULES, SELECTION, START};
use super::{Mapped, Misses, Summary, WorkingSets};
use crate::dataset::Facts;
use crate::dataset::writer::{Column, Kind};

type Found<T> = Result<T, String>;

/// What a row of a table has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stored {
    /// A summary, and the id of its trace if it is of one.
    Summary(Box<Summary>, Option<String>),
    /// A row of `kvmtrace.fleet` that has no summary, and why: most often, the trace could not be read.
    NoSummary(Option<String>),
}

/// The column of `kvmtrace.fleet` that has a summary as its line of JSON.
const LINE: Column = Column::optional("summary", Kind::Text);
/// Its column that says why there is none.
const WHY: Column = Column::optional("error", Kind::Text);

/// Rows whose lists are decoded at a time: a row may have millions of values.
const ROWS: usize = 8;

/// Reads a table of summaries row by row. Memory: some rows, and a part of each column.
///
/// # Errors
///
/// What is wrong with the table, or what `each` finds wrong with a row, in words.
pub fn read_table(
    table: impl ChunkReader + 'static,
    mut each: impl FnMut(Stored) -> Found<()>,
) -> Found<()> {
    let table = SerializedFileReader::new(table).map_err(unreadable)?;
    let schema = table.metadata().file_metadata().schema();
    let is_of_fleet = field(schema, LINE.name)?.is_some() && field(schema, "traces")?.is_none();
    let chosen = match is_of_fleet {
        true => chosen(schema, &[LINE], &[WHY])?,
        false => chosen(schema, &COLUMNS, &MORE)?,
    };
    let mut number = 0u64;
    for group in 0..table.num_row_groups() {
        let group = table.get_row_group(group).map_err(unreadable)?;
        let rows = TreeBuilder::new().with_batch_size(ROWS);
        let mut rows = guarded(|| rows.as_iter(chosen.clone(), &*group))?;
        while let Some(row) = guarded(|| rows.next().transpose()).transpose() {
            number += 1;
            let cells = row.map(Cells::of);
            let stored = cells.and_then(|cells| match is_of_fleet {
                true => cells.line(),
                false => cells.summary(),
            });
            let done = stored.and_then(&mut each);
            done.map_err(|why| format!("row {number}: {why}"))?;
        }
    }
    Ok(())
}

/// What the library reads. It asserts some of what a file says, so damage may end in a panic.
fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Found<T> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(done) => done.map_err(unreadable),
        Err(_) => Err("it cannot be read as a table of Parquet: it is damaged".into()),
    }
}

fn unreadable(why: ParquetError) -> String {
    format!("it cannot be read as a table of Parquet: {why}")
}

/// The column of this name.
fn field<'t>(schema: &'t Type, name: &str) -> Found<Option<&'t Arc<Type>>> {
    let fields = schema.get_fields().iter();
    let mut named = fields.filter(|field| field.name() == name);
    match (named.next(), named.next()) {
        (_, Some(_)) => Err(format!(
            "it has several columns {name}: give what `postproc summary -o FILE.parquet` writes"
        )),
        (field, None) => Ok(field),
    }
}

/// Those of a table's columns that are read.
fn chosen(schema: &Type, needed: &[Column], more: &[Column]) -> Found<SchemaDescPtr> {
    let mut fields = Vec::new();
    for (column, is_needed) in needed
        .iter()
        .map(|column| (column, true))
        .chain(more.iter().map(|column| (column, false)))
    {
        let name = column.name;
        match field(schema, name)? {
            Some(field) if has_form(field, column) => fields.push(field.clone()),
            Some(_) => return Err(another_type(name)),
            None if !is_needed => {}
            None => {
                return Err(format!(
                    "it is no table of summaries, because it has no column {name}: give what \
                     `postproc summary -o FILE.parquet` writes"
                ));
            }
        }
    }
    let schema = Type::group_type_builder(schema.name()).with_fields(fields);
    let schema = schema.build().map_err(unreadable)?;
    Ok(Arc::new(SchemaDescriptor::new(Arc::new(schema))))
}

fn another_type(name: &str) -> String {
    format!(
        "the column {name} is of another type than in a table of summaries: give what `postproc summary \
         -o FILE.parquet` writes"
    )
}

/// Whether a field has the type that is read from the column. The library panics at some other types.
fn has_form(field: &Type, column: &Column) -> bool {
    match (column.is_list(), field.is_group()) {
        (false, false) => is_single(field) && has_type(field, column.kind),
        (true, true) => {
            let is_list = field.get_basic_info().converted_type() == ConvertedType::LIST;
            is_single(field) && is_list && has_elements(field, column.kind)
        }
        _ => false,
    }
}

/// Whether each element of a list is one value of this type.
fn has_elements(list: &Type, kind: Kind) -> bool {
    let [group] = list.get_fields() else {
        return false;
    };
    if !group.is_group() || repetition(group) != Some(Repetition::REPEATED) {
        return false;
    }
    matches!(group.get_fields(), [element] if is_single(element) && has_type(element, kind))
}

fn repetition(field: &Type) -> Option<Repetition> {
    let about = field.get_basic_info();
    about.has_repetition().then(|| about.repetition())
}

/// Whether a row has one value, or null.
fn is_single(field: &Type) -> bool {
    repetition(field).is_some_and(|repetition| repetition != Repetition::REPEATED)
}

fn has_type(field: &Type, kind: Kind) -> bool {
    if !field.is_primitive() {
        return false;
    }
    let about = field.get_basic_info();
    let (physical, converted) = (field.get_physical_type(), about.converted_type());
    match kind {
        Kind::Int | Kind::Steady | Kind::Ints => {
            // Times in ns have a logical type alone.
            let is_plain = converted == ConvertedType::NONE && about.logical_type_ref().is_none();
            physical == Physical::INT64 && (is_plain || converted == ConvertedType::INT_64)
        }
        Kind::Flag => physical == Physical::BOOLEAN,
        Kind::Text | Kind::Texts => {
            physical == Physical::BYTE_ARRAY && converted == ConvertedType::UTF8
        }
        // No column of summaries.
        Kind::Moment => false,
    }
}

/// The cells of a row, by the names of their columns.
struct Cells(BTreeMap<String, Field>);

impl Cells {
    fn of(row: Row) -> Self {
        Cells(row.into_columns().into_iter().collect())
    }

    /// A cell that is not null.
    fn get(&self, name: &str) -> Option<&Field> {
        self.0.get(name).filter(|cell| !matches!(cell, Field::Null))
    }

    fn int(&self, name: &str) -> Found<u64> {
        self.get(name)
            .and_then(int)
            .ok_or_else(|| another_type(name))
    }

    fn text(&self, name: &str) -> Found<Option<String>> {
        let cell = self.get(name);
        cell.map(|cell| text(cell).ok_or_else(|| another_type(name)))
            .transpose()
    }

    fn list<T>(&self, name: &str, of: impl Fn(&Field) -> Option<T>) -> Found<Vec<T>> {
        let list = match self.get(name) {
            Some(Field::ListInternal(list)) => list.elements().iter().map(of).collect(),
            _ => None,
        };
        list.ok_or_else(|| another_type(name))
    }

    /// Lists that belong together.
    fn lists<const COUNT: usize>(&self, names: [&str; COUNT]) -> Found<[Vec<u64>; COUNT]> {
        let mut lists = [const { Vec::new() }; COUNT];
        for (list, name) in lists.iter_mut().zip(names) {
            *list = self.list(name, int)?;
        }
        let lengths = || lists.iter().map(Vec::len);
        match lengths().min() == lengths().max() {
            true => Ok(lists),
            false => Err(format!(
                "the lists {} have different lengths: make the table again",
                names.join(", ")
            )),
        }
    }

    /// The row of `kvmtrace.fleet`.
    fn line(&self) -> Found<Stored> {
        let Some(line) = self.text(LINE.name)? else {
            return Ok(Stored::NoSummary(self.text(WHY.name)?));
        };
        let summary: Summary = serde_json::from_str(&line)
            .map_err(|why| format!("the column {} has no summary of traces: {why}", LINE.name))?;
        let id = summary.trace.as_ref().map(|facts| facts.trace.clone());
        Ok(Stored::Summary(Box::new(summary), id))
    }

    fn summary(&self) -> Found<Stored> {
        let summary = Summary {
            summary_version: self.int("summary_version")?,
            traces: self.int("traces")?,
            trace: self.facts()?,
            selection: self.text(SELECTION)?,
            page_size: self.int("page_size")?,
            good: self.int("good")?,
            complete: self.int("complete")?,
            bytes: self.int("bytes")?,
            duration_ns: self.int("duration_ns")?,
            references: self.int("references")?,
            renewals: self.int("renewals")?,
            events: self.int("events")?,
            pages: self.int("pages")?,
            lost: self.int("lost")?,
            lru: self.misses("lru")?,
            opt: self.misses("opt")?,
            working_sets: self.working_sets()?,
            mapped: self.mapped()?,
        };
        Ok(Stored::Summary(Box::new(summary), self.text("trace")?))
    }

    /// What is known of the trace, if the row is of one, and the table has it.
    fn facts(&self) -> Found<Option<Facts>> {
        let is_of_trace = |column: &&Column| column.name != SELECTION;
        let mut of_trace = MORE.iter().filter(is_of_trace);
        let known = of_trace.any(|column| self.get(column.name).is_some());
        if self.get("trace").is_none() || !known {
            return Ok(None);
        }
        let mut facts = Map::new();
        for (name, cell) in &self.0 {
            let value = match cell {
                Field::Long(number) if name == START => (*number).into(),
                Field::Str(rules) if name == RULES => {
                    let rules = rules.split(',').filter(|rule| !rule.is_empty());
                    rules.collect::<Vec<_>>().into()
                }
                Field::Long(number) if matches!(&**name, "good" | "complete") => {
                    Value::Bool(*number != 0)
                }
                Field::Long(number) => (*number as u64).into(),
                Field::Str(text) => text.as_str().into(),
                Field::Bool(flag) => (*flag).into(),
                _ => Value::Null,
            };
            facts.insert(name.clone(), value);
        }
        serde_json::from_value(Value::Object(facts))
            .map(Some)
            .map_err(|why| format!("what the table has of the trace is incomplete: {why}"))
    }

    fn misses(&self, policy: &str) -> Found<Misses> {
        let name = |of: &str| format!("{policy}_{of}");
        let [sizes, hits] = self.lists([&name("sizes"), &name("hits")])?;
        let cold = self.int(&name("cold"))?;
        // What is not cold is a hit in some size.
        let mut references = hits.iter().copied().chain([cold]);
        let references = references.try_fold(0, u64::checked_add);
        Ok(Misses {
            references: references
                .ok_or_else(|| format!("{} are too many: make the table again", name("hits")))?,
            cold,
            footprint: self.int(&name("footprint"))?,
            sizes,
            hits,
        })
    }

    fn working_sets(&self) -> Found<Vec<WorkingSets>> {
        let of = self.lists([
            "working_set_tau_ns",
            "working_set_samples",
            "working_set_pages",
            "working_set_most_pages",
        ])?;
        let classes = self.lists([
            "working_set_class_tau_ns",
            "working_set_class_sizes",
            "working_set_class_counts",
        ])?;
        // The classes are in the order of the sets.
        let (mut sets, mut next) = (Vec::new(), 0);
        for at in 0..of[0].len() {
            let [tau_ns, samples, pages, most_pages] = of.each_ref().map(|list| list[at]);
            let count = classes[0][next..].iter().take_while(|&&tau| tau == tau_ns);
            let own = next..next + count.count();
            next = own.end;
            sets.push(WorkingSets {
                tau_ns,
                samples,
                pages,
                most_pages,
                sizes: classes[1][own.clone()].to_vec(),
                counts: classes[2][own].to_vec(),
            });
        }
        match next == classes[0].len() {
            true => Ok(sets),
            false => Err(
                "the lists of working_set_tau_ns and working_set_class_tau_ns have different times, \
                 or another order: make the table again"
                    .into(),
            ),
        }
    }

    fn mapped(&self) -> Found<Vec<Mapped>> {
        let [traces, references, pages, bytes, dirtied] = self.lists([
            "mapped_traces",
            "mapped_references",
            "mapped_pages",
            "mapped_bytes",
            "mapped_dirtied",
        ])?;
        let (names, kinds) = (
            self.list("mapped_name", text)?,
            self.list("mapped_kind", text)?,
        );
        if names.len() != traces.len() || kinds.len() != traces.len() {
            return Err(
                "the lists of mapped_name, mapped_kind and mapped_traces have different \
                        lengths: make the table again"
                    .into(),
            );
        }
        let named = names.into_iter().zip(kinds).enumerate();
        let row = |(at, (name, kind)): (usize, (String, String))| Mapped {
            name,
            kind,
            traces: traces[at],
            references: references[at],
            pages: pages[at],
            bytes: bytes[at],
            dirtied: dirtied[at],
        };
        Ok(named.map(row).collect())
    }
}

/// A number. One above 2^63 - 1 is negative in the table.
fn int(cell: &Field) -> Option<u64> {
    match cell {
        Field::Long(number) => Some(*number as u64),
        _ => None,
    }
}

fn text(cell: &Field) -> Option<String> {
    match cell {
        Field::Str(text) => Some(text.clone()),
        _ => None,
    }
}
