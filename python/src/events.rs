//! The table of events: the fields that `postproc events --json` prints.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::types::{Int8Type, Int16Type};
use arrow_array::{ArrayRef, Int32Array, StringArray, UInt32Array, UInt64Array};
use arrow_buffer::ScalarBuffer;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use postproc::error::Error;
use postproc::filter::{Clause, EventFilter};
use postproc::pipeline::Observer;
use postproc::places::Places;
use postproc::select::Options;
use postproc::trace::wire::event_fields;
use postproc::trace::{Event, Fields, MapKind, Merge, NoNews, Step, StreamKind, Trace};

use crate::columns::{bools, coded, event_words, field, i64s, nulls, small_words, some_i64s, u32s};
use crate::fail::{Failure, Result};
use crate::references::event_list;
use crate::table::{self, Output, Table};

/// Rows of a batch: fewer than of references, for most columns are empty in most rows.
const ROWS: usize = 1 << 13;

/// Why an event is no news.
const NO_NEWS: [&str; 2] = ["checkpoint", "undescribed"];

/// The type of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Address,
    U64,
    U32,
    I32,
    U8,
    Text,
}

impl Kind {
    fn data_type(self) -> DataType {
        match self {
            Kind::Address => DataType::Int64,
            Kind::U64 => DataType::UInt64,
            Kind::U32 | Kind::U8 => DataType::UInt32,
            Kind::I32 => DataType::Int32,
            Kind::Text => DataType::Utf8,
        }
    }
}

/// Collects the names and types of fields.
#[derive(Default)]
struct Known(Vec<(String, Kind)>);

impl Known {
    fn put(&mut self, name: &str, kind: Kind) {
        if !self.0.iter().any(|(known, _)| known == name) {
            self.0.push((name.into(), kind));
        }
    }
}

impl Fields for Known {
    fn u64(&mut self, name: &str, _value: u64) {
        self.put(name, Kind::U64);
    }
    fn hex(&mut self, name: &str, _value: u64) {
        self.put(name, Kind::Address);
    }
    fn u32(&mut self, name: &str, _value: u32) {
        self.put(name, Kind::U32);
    }
    fn i32(&mut self, name: &str, _value: i32) {
        self.put(name, Kind::I32);
    }
    fn u8(&mut self, name: &str, _value: u8) {
        self.put(name, Kind::U8);
    }
    fn kind(&mut self, name: &str, _value: MapKind) {
        self.put(name, Kind::Text);
    }
    fn text(&mut self, name: &str, _value: &[u8]) {
        self.put(name, Kind::Text);
    }
}

/// The values of a field, which most events may not have.
enum Values {
    I64(Vec<i64>),
    U64(Vec<u64>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    Text(Vec<String>),
}

struct Own {
    values: Values,
    known: Vec<bool>,
}

impl Own {
    fn new(kind: Kind) -> Self {
        Own {
            values: match kind {
                Kind::Address => Values::I64(Vec::new()),
                Kind::U64 => Values::U64(Vec::new()),
                Kind::U32 | Kind::U8 => Values::U32(Vec::new()),
                Kind::I32 => Values::I32(Vec::new()),
                Kind::Text => Values::Text(Vec::new()),
            },
            known: Vec::new(),
        }
    }

    /// Completes a row that has no such field.
    fn fill(&mut self, rows: usize) {
        self.known.resize(rows, false);
        match &mut self.values {
            Values::I64(values) => values.resize(rows, 0),
            Values::U64(values) => values.resize(rows, 0),
            Values::U32(values) => values.resize(rows, 0),
            Values::I32(values) => values.resize(rows, 0),
            Values::Text(values) => values.resize(rows, String::new()),
        }
    }

    fn array(self) -> ArrayRef {
        let nulls = nulls(&self.known);
        match self.values {
            Values::I64(values) => some_i64s(values, self.known),
            Values::U64(values) => Arc::new(UInt64Array::new(ScalarBuffer::from(values), nulls)),
            Values::U32(values) => Arc::new(UInt32Array::new(ScalarBuffer::from(values), nulls)),
            Values::I32(values) => Arc::new(Int32Array::new(ScalarBuffer::from(values), nulls)),
            Values::Text(values) => {
                let texts = values.into_iter().zip(&self.known);
                Arc::new(StringArray::from_iter(
                    texts.map(|(text, known)| known.then_some(text)),
                ))
            }
        }
    }
}

/// Which events are wanted.
pub struct Wanted {
    pub types: Vec<String>,
    pub pid: Option<u32>,
    pub mm: Option<u32>,
    pub clause: Option<Clause>,
    /// Of these, the places. The others are in `clause`.
    pub options: Options,
}

/// The rows so far.
struct Rows {
    schema: SchemaRef,
    kinds: Vec<Kind>,
    /// The place of each field.
    places: HashMap<String, usize>,
    /// Of each type of event.
    numbers: HashMap<&'static str, i16>,
    names: ArrayRef,
    why: ArrayRef,
    rows: usize,
    seq: Vec<i64>,
    time: Vec<i64>,
    cpu: Vec<u32>,
    tid: Vec<u32>,
    pid: Vec<u32>,
    mm: Vec<u32>,
    event: Vec<i16>,
    snapshot: Vec<bool>,
    no_news: (Vec<i8>, Vec<bool>),
    vtime: (Vec<i64>, Vec<bool>),
    own: Vec<Own>,
}

impl Rows {
    fn new(schema: SchemaRef, fields: &[(String, Kind)]) -> Self {
        let list = event_list();
        let kinds: Vec<Kind> = fields.iter().map(|(_, kind)| *kind).collect();
        let places = fields.iter().enumerate();
        Rows {
            schema,
            places: places.map(|(at, (name, _))| (name.clone(), at)).collect(),
            numbers: list.iter().zip(0..).map(|(name, at)| (*name, at)).collect(),
            names: Arc::new(StringArray::from(list)),
            why: Arc::new(StringArray::from(NO_NEWS.to_vec())),
            rows: 0,
            seq: Vec::new(),
            time: Vec::new(),
            cpu: Vec::new(),
            tid: Vec::new(),
            pid: Vec::new(),
            mm: Vec::new(),
            event: Vec::new(),
            snapshot: Vec::new(),
            no_news: Default::default(),
            vtime: Default::default(),
            own: kinds.iter().map(|&kind| Own::new(kind)).collect(),
            kinds,
        }
    }

    fn push(&mut self, event: &Event<'_>, start_ns: u64) {
        let number = self.numbers.get(event.name()).copied();
        self.seq.push(event.seq as i64);
        self.time
            .push(event.time_ns.saturating_sub(start_ns) as i64);
        self.cpu.push(event.cpu);
        self.tid.push(event.tid.0);
        self.pid.push(event.tgid.0);
        self.mm.push(event.mm.0);
        // The last name is that of what is not known.
        self.event
            .push(number.unwrap_or(self.numbers.len() as i16 - 1));
        self.snapshot.push(event.is_snapshot());
        self.no_news.1.push(event.aside.is_some());
        self.no_news
            .0
            .push(i8::from(event.aside == Some(NoNews::Undescribed)));
        self.vtime.1.push(event.vtime.is_some());
        self.vtime.0.push(event.vtime.unwrap_or(0) as i64);
        event.said().fields(&mut Members(self));
        self.rows += 1;
        for own in &mut self.own {
            own.fill(self.rows);
        }
    }

    fn take(&mut self) -> Result<arrow_array::RecordBatch> {
        let rows = std::mem::take(&mut self.rows);
        let (no_news, vtime) = (
            std::mem::take(&mut self.no_news),
            std::mem::take(&mut self.vtime),
        );
        let mut columns = vec![
            i64s(std::mem::take(&mut self.seq)),
            i64s(std::mem::take(&mut self.time)),
            u32s(std::mem::take(&mut self.cpu)),
            u32s(std::mem::take(&mut self.tid)),
            u32s(std::mem::take(&mut self.pid)),
            u32s(std::mem::take(&mut self.mm)),
            coded::<Int16Type>(std::mem::take(&mut self.event), &[], &self.names)?,
            bools(&std::mem::take(&mut self.snapshot)),
            coded::<Int8Type>(no_news.0, &no_news.1, &self.why)?,
            some_i64s(vtime.0, vtime.1),
        ];
        let new = self.kinds.iter().map(|&kind| Own::new(kind)).collect();
        let own: Vec<Own> = std::mem::replace(&mut self.own, new);
        columns.extend(own.into_iter().map(Own::array));
        table::batch(&self.schema, columns, rows)
    }
}

/// Puts an event's own fields into the present row.
struct Members<'r>(&'r mut Rows);

impl Members<'_> {
    fn put(&mut self, name: &str, value: u64, text: &dyn Fn() -> String) {
        let Some(&at) = self.0.places.get(name) else {
            return;
        };
        let own = &mut self.0.own[at];
        // A field that is there twice has its first value.
        if own.known.len() > self.0.rows {
            return;
        }
        own.known.push(true);
        match &mut own.values {
            Values::I64(values) => values.push(value as i64),
            Values::U64(values) => values.push(value),
            Values::U32(values) => values.push(value as u32),
            Values::I32(values) => values.push(value as i32),
            Values::Text(values) => values.push(text()),
        }
    }

    fn number(&mut self, name: &str, value: u64) {
        self.put(name, value, &|| value.to_string());
    }
}

impl Fields for Members<'_> {
    fn u64(&mut self, name: &str, value: u64) {
        self.number(name, value);
    }
    fn hex(&mut self, name: &str, value: u64) {
        self.number(name, value);
    }
    fn u32(&mut self, name: &str, value: u32) {
        self.number(name, value.into());
    }
    fn i32(&mut self, name: &str, value: i32) {
        self.put(name, value as u32 as u64, &|| value.to_string());
    }
    fn u8(&mut self, name: &str, value: u8) {
        self.number(name, value.into());
    }
    fn kind(&mut self, name: &str, value: MapKind) {
        self.put(name, 0, &|| value.name().into());
    }
    fn text(&mut self, name: &str, value: &[u8]) {
        self.put(name, 0, &|| String::from_utf8_lossy(value).into_owned());
    }
}

/// Events of the trace that were read without a look at the reader.
const UNWATCHED: u32 = 1 << 12;

/// The table of the events that are wanted. Its columns are what all events have, and the own fields
/// of the wanted types.
///
/// # Errors
///
/// There is no such type of event.
pub fn table(trace: &Arc<Trace>, wanted: Wanted) -> Result<Table> {
    let all = event_list();
    if let Some(name) = wanted.types.iter().find(|t| !all.contains(&t.as_str())) {
        let text = format!("no event is called {name:?}; there are {}", all.join(", "));
        return Err(Failure::argument(text));
    }
    let mut known = Known::default();
    for name in all {
        if wanted.types.is_empty() || wanted.types.iter().any(|t| t == name) {
            event_fields(name, &mut known);
        }
    }
    let mut fields: Vec<Field> = vec![
        field("seq", DataType::Int64, false),
        field("time_ns", DataType::Int64, false),
        field("cpu", DataType::UInt32, false),
        field("tid", DataType::UInt32, false),
        field("pid", DataType::UInt32, false),
        field("mm", DataType::UInt32, false),
        field("event", event_words(), false),
        field("snapshot", DataType::Boolean, false),
        field("no_news", small_words(), true),
        field("vtime", DataType::Int64, true),
    ];
    let own = known.0.iter();
    fields.extend(own.map(|(name, kind)| field(name, kind.data_type(), true)));
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let (trace, of_rows, known) = (trace.clone(), schema.clone(), known.0);
    let make = move |output: &Output| {
        let mut rows = Rows::new(of_rows.clone(), &known);
        let start = trace.header().start_time_ns;
        let mut merge = Merge::of_kinds(&trace, &[StreamKind::Event]);
        let mut filter = wanted.clause.as_ref().map(|c| EventFilter::new(c, &trace));
        let mut places = Places::new(&wanted.options, &trace);
        let (mut observer, mut unwatched) = (output.observer(), 0);
        while let Step::Event(event) = merge.fill(&mut Vec::new(), 1)? {
            unwatched += 1;
            if unwatched == UNWATCHED {
                unwatched = 0;
                if !observer.progress(0, 0) {
                    return Err(Error::Interrupted.into());
                }
            }
            if let Some(filter) = &mut filter {
                filter.follow(&event);
            }
            let is_wanted = (wanted.types.is_empty()
                || wanted.types.iter().any(|t| t == event.name()))
                && wanted.pid.is_none_or(|pid| event.tgid.0 == pid)
                && wanted.mm.is_none_or(|mm| event.mm.0 == mm);
            let is_there = places.as_mut().is_none_or(|places| places.judge(&event));
            if !is_there || !is_wanted || !filter.as_mut().is_none_or(|f| f.judge(&event)) {
                continue;
            }
            rows.push(&event, start);
            if rows.rows == ROWS {
                output.send(rows.take()?)?;
            }
        }
        if rows.rows > 0 {
            output.send(rows.take()?)?;
        }
        Ok(())
    };
    Ok(Table::new(schema, Arc::new(make)))
}
