//! Tables of references and of freed pages: the columns that `postproc export --format parquet`
//! writes, in the order of the trace.

use std::sync::Arc;

use arrow_array::types::{Int8Type, Int16Type, Int32Type};
use arrow_array::{ArrayRef, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use postproc::error::Error;
use postproc::pipeline::{Batch, Consumer, Freeing, Place, World};
use postproc::space::{Issue, ObjectId};
use postproc::trace::wire::event_names;
use postproc::trace::{Event, Header, Ref, Trace, Why};
use postproc::units::{Access, CanonPage, Tid};

use crate::columns::{
    bools, coded, event_words, field, i64s, small_words, some_i64s, trace_words, u32s,
};
use crate::fail::{Failure, Result};
use crate::reading::Reading;
use crate::table::{self, Output, ROWS, Table};

/// A column of the table of references.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    Window,
    Process,
    Seq,
    Time,
    Page,
    Address,
    Access,
    Kernel,
    Dirtied,
    Again,
    Why,
    Stay,
    Tid,
    Cpu,
    Mm,
    Pfn,
    Vtime,
    Offset,
    Set,
    Mapping,
}

/// Each column, and whether it is in the table if nobody asks for others.
const COLUMNS: &[(Which, &str, bool)] = &[
    (Which::Window, "window", true),
    (Which::Process, "process", true),
    (Which::Seq, "seq", true),
    (Which::Time, "time_ns", true),
    (Which::Page, "page", true),
    (Which::Address, "address", true),
    (Which::Access, "access", true),
    (Which::Kernel, "kernel", true),
    (Which::Dirtied, "dirtied", true),
    (Which::Again, "again", true),
    (Which::Why, "why", true),
    (Which::Stay, "stay_ns", true),
    (Which::Tid, "tid", true),
    (Which::Cpu, "cpu", true),
    (Which::Mm, "mm", true),
    (Which::Pfn, "pfn", true),
    (Which::Vtime, "vtime", true),
    (Which::Offset, "offset", true),
    (Which::Set, "set", false),
    (Which::Mapping, "mapping", false),
];

impl Which {
    fn field(self, name: &str) -> Field {
        use Which::*;
        let kind = match self {
            Window | Process | Page | Tid | Cpu | Mm | Pfn | Set => DataType::UInt32,
            Seq | Time | Address | Stay | Vtime | Offset => DataType::Int64,
            Access | Why => small_words(),
            Kernel | Dirtied | Again => DataType::Boolean,
            Mapping => trace_words(),
        };
        field(name, kind, matches!(self, Stay | Vtime | Offset | Mapping))
    }
}

/// The columns of these names; those of every table if there are none.
fn chosen(names: Option<Vec<String>>) -> Result<(Vec<Which>, SchemaRef)> {
    let Some(names) = names else {
        let usual = COLUMNS.iter().filter(|(.., usual)| *usual);
        let fields: Vec<Field> = usual.clone().map(|(w, name, _)| w.field(name)).collect();
        let which = usual.map(|(which, ..)| *which).collect();
        return Ok((which, Arc::new(Schema::new(fields))));
    };
    let mut which = Vec::new();
    let mut fields = Vec::new();
    for name in names {
        let found = COLUMNS.iter().find(|(_, known, _)| *known == name);
        let &(column, known, _) = found.ok_or_else(|| {
            let known: Vec<&str> = COLUMNS.iter().map(|(_, name, _)| *name).collect();
            Failure::argument(format!(
                "references have no column {name:?}; they have {}",
                known.join(", ")
            ))
        })?;
        which.push(column);
        fields.push(column.field(known));
    }
    Ok((which, Arc::new(Schema::new(fields))))
}

/// The windows of a trace by the first sequence number of each.
pub struct Windows {
    windows: Vec<(u64, u64)>,
    /// The place behind the present one.
    next: usize,
}

impl Windows {
    pub fn of(trace: &Trace) -> Self {
        let windows = match trace.window() {
            Some(number) => vec![(0, number.into())],
            None => trace.windows(),
        };
        Windows { windows, next: 0 }
    }

    /// The window of a record, 0 if there are none. Numbers must not fall.
    fn at(&mut self, seq: u64) -> u32 {
        while self.windows.get(self.next).is_some_and(|w| w.0 <= seq) {
            self.next += 1;
        }
        let present = self.next.checked_sub(1).map(|at| self.windows[at].1);
        present.unwrap_or(0) as u32
    }
}

/// The process of each thread, as long as no event comes.
#[derive(Default)]
struct Processes {
    last: Option<(Tid, u32)>,
}

impl Processes {
    fn of(&mut self, tid: Tid, world: &World) -> u32 {
        if let Some((_, process)) = self.last.filter(|(known, _)| *known == tid) {
            return process;
        }
        let process = world.tasks.find(tid);
        let id = process.map_or(tid, |p| world.tasks.process(p).tgid).0;
        self.last = Some((tid, id));
        id
    }
}

/// Names of mappings, and the number of each in the present batch.
#[derive(Default)]
struct Names {
    names: Vec<String>,
    by_name: std::collections::HashMap<String, i32>,
    last: Option<(ObjectId, i32)>,
}

impl Names {
    /// The number of the name of the mapping that a reference lies in, if it lies in one.
    fn of(&mut self, r: &Ref, place: &Place, world: &World) -> Option<i32> {
        let Place::Mapped { object, .. } = *place else {
            return None;
        };
        if let Some((_, number)) = self.last.filter(|(known, _)| *known == object) {
            return Some(number);
        }
        let space = &world.space;
        let known = space.object(object);
        let mapping = match known.has_aliases {
            true => space.get(r.mm).and_then(|s| s.find(r.address())),
            false => None,
        };
        let name = mapping.map_or(&*known.name, |mapping| space.name(&mapping));
        let number = match self.by_name.get(name) {
            Some(number) => *number,
            None => {
                let number = self.names.len() as i32;
                self.names.push(name.into());
                self.by_name.insert(name.into(), number);
                number
            }
        };
        self.last = (!known.has_aliases).then_some((object, number));
        Some(number)
    }

    /// The list, which begins anew.
    fn take(&mut self) -> ArrayRef {
        let names = std::mem::take(self);
        Arc::new(StringArray::from(names.names))
    }
}

/// The values of a column in the making.
enum Values {
    U32(Vec<u32>),
    I64(Vec<i64>),
    Some(Vec<i64>, Vec<bool>),
    Bool(Vec<bool>),
    Word(Vec<i8>),
    Name(Vec<i32>, Vec<bool>),
}

impl Values {
    fn new(which: Which) -> Self {
        use Which::*;
        match which {
            Window | Process | Page | Tid | Cpu | Mm | Pfn | Set => {
                Values::U32(Vec::with_capacity(ROWS))
            }
            Seq | Time | Address => Values::I64(Vec::with_capacity(ROWS)),
            Stay | Vtime | Offset => {
                Values::Some(Vec::with_capacity(ROWS), Vec::with_capacity(ROWS))
            }
            Kernel | Dirtied | Again => Values::Bool(Vec::with_capacity(ROWS)),
            Access | Why => Values::Word(Vec::with_capacity(ROWS)),
            Mapping => Values::Name(Vec::with_capacity(ROWS), Vec::with_capacity(ROWS)),
        }
    }
}

/// Makes the rows of references in a pass.
struct Rows<'o> {
    output: &'o Output,
    schema: SchemaRef,
    which: Vec<Which>,
    values: Vec<Values>,
    rows: usize,
    start_ns: u64,
    stay_shift: u32,
    has_vtime: bool,
    windows: Windows,
    names: Names,
    access: ArrayRef,
    why: ArrayRef,
    /// Why the pass has ended, if that is none of the errors of postproc.
    failure: Option<Failure>,
}

impl<'o> Rows<'o> {
    fn new(output: &'o Output, schema: SchemaRef, which: Vec<Which>, trace: &Trace) -> Self {
        let access = [Access::Read, Access::Write, Access::Exec, Access::Seen];
        let header: &Header = trace.header();
        Rows {
            output,
            schema,
            values: which.iter().map(|&w| Values::new(w)).collect(),
            which,
            rows: 0,
            start_ns: header.start_time_ns,
            stay_shift: header.stay_shift,
            has_vtime: header.has_vtime(),
            windows: Windows::of(trace),
            names: Names::default(),
            access: Arc::new(StringArray::from_iter_values(access.map(Access::name))),
            why: Arc::new(StringArray::from_iter_values(Why::ALL.map(Why::name))),
            failure: None,
        }
    }

    /// Adds references, which fit into the batch.
    fn push(&mut self, refs: &[Ref], places: &[Place], pages: &[CanonPage], world: &World) {
        use Which::*;
        let mut processes = Processes::default();
        let (start, shift, has_vtime) = (self.start_ns, self.stay_shift, self.has_vtime);
        for (which, values) in self.which.iter().zip(&mut self.values) {
            match (which, values) {
                (Window, Values::U32(to)) => {
                    to.extend(refs.iter().map(|r| self.windows.at(r.seq)));
                }
                (Process, Values::U32(to)) => {
                    to.extend(refs.iter().map(|r| processes.of(r.tid(), world)));
                }
                (Page, Values::U32(to)) => to.extend(pages.iter().map(|page| page.0)),
                (Tid, Values::U32(to)) => to.extend(refs.iter().map(|r| r.tid().0)),
                (Cpu, Values::U32(to)) => to.extend(refs.iter().map(|r| r.cpu())),
                (Mm, Values::U32(to)) => to.extend(refs.iter().map(|r| r.mm.0)),
                (Pfn, Values::U32(to)) => to.extend(refs.iter().map(|r| r.pfn)),
                (Set, Values::U32(to)) => to.extend(refs.iter().map(|r| r.set)),
                (Seq, Values::I64(to)) => to.extend(refs.iter().map(|r| r.seq as i64)),
                (Time, Values::I64(to)) => {
                    to.extend(refs.iter().map(|r| r.time_ns.saturating_sub(start) as i64));
                }
                (Address, Values::I64(to)) => to.extend(refs.iter().map(|r| r.address() as i64)),
                (Kernel, Values::Bool(to)) => to.extend(refs.iter().map(|r| r.flags().kernel())),
                (Dirtied, Values::Bool(to)) => to.extend(refs.iter().map(|r| r.flags().dirtied())),
                (Again, Values::Bool(to)) => to.extend(refs.iter().map(|r| r.flags().again())),
                (Which::Access, Values::Word(to)) => {
                    to.extend(refs.iter().map(|r| r.flags().access() as i8));
                }
                (Which::Why, Values::Word(to)) => {
                    to.extend(refs.iter().map(|r| r.flags().why() as i8));
                }
                (Stay, Values::Some(to, known)) => {
                    let stay = |r: &Ref| r.end_ns(shift).map(|end| end - r.time_ns);
                    push_some(refs, to, known, stay);
                }
                (Vtime, Values::Some(to, known)) => {
                    push_some(refs, to, known, |r| has_vtime.then_some(r.vtime));
                }
                (Offset, Values::Some(to, known)) => push_some(refs, to, known, Ref::within),
                (Mapping, Values::Name(to, known)) => {
                    for (r, place) in refs.iter().zip(places) {
                        let name = self.names.of(r, place, world);
                        known.push(name.is_some());
                        to.push(name.unwrap_or(0));
                    }
                }
                // `Values::new` has made the kind for the column.
                _ => {}
            }
        }
        self.rows += refs.len();
    }

    fn flush(&mut self) -> postproc::error::Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        match self.take() {
            Ok(batch) => self.output.send(batch),
            Err(failure) => {
                self.failure = Some(failure);
                Err(Error::Interrupted)
            }
        }
    }

    /// The rows so far.
    fn take(&mut self) -> Result<arrow_array::RecordBatch> {
        let rows = std::mem::take(&mut self.rows);
        let names = self.names.take();
        let mut columns = Vec::with_capacity(self.which.len());
        for (&which, values) in self.which.iter().zip(&mut self.values) {
            let values = std::mem::replace(values, Values::new(which));
            columns.push(match values {
                Values::U32(values) => u32s(values),
                Values::I64(values) => i64s(values),
                Values::Some(values, known) => some_i64s(values, known),
                Values::Bool(values) => bools(&values),
                Values::Word(keys) => {
                    let list = match which {
                        Which::Why => &self.why,
                        _ => &self.access,
                    };
                    coded::<Int8Type>(keys, &[], list)?
                }
                Values::Name(keys, known) => coded::<Int32Type>(keys, &known, &names)?,
            });
        }
        table::batch(&self.schema, columns, rows)
    }
}

fn push_some(
    refs: &[Ref],
    to: &mut Vec<i64>,
    known: &mut Vec<bool>,
    of: impl Fn(&Ref) -> Option<u64>,
) {
    for r in refs {
        let value = of(r);
        known.push(value.is_some());
        to.push(value.unwrap_or(0) as i64);
    }
}

impl Consumer for Rows<'_> {
    fn references(&mut self, batch: &Batch<'_>) -> postproc::error::Result<()> {
        let mut done = 0;
        while done < batch.refs.len() {
            let end = batch.refs.len().min(done + ROWS - self.rows);
            let part = done..end;
            self.push(
                &batch.refs[part.clone()],
                &batch.places[part.clone()],
                &batch.pages[part],
                batch.world,
            );
            done = end;
            if self.rows == ROWS {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn event(
        &mut self,
        _event: &Event<'_>,
        _world: &World,
        _issues: &[Issue],
    ) -> postproc::error::Result<()> {
        // Its name may be another one now.
        self.names.last = None;
        Ok(())
    }
}

/// The table of references that a reading gives.
///
/// # Errors
///
/// There is no such column.
pub fn table(trace: &Arc<Trace>, reading: Reading, names: Option<Vec<String>>) -> Result<Table> {
    let (which, schema) = chosen(names)?;
    let (trace, of_rows) = (trace.clone(), schema.clone());
    let make = move |output: &Output| {
        let mut rows = Rows::new(output, of_rows.clone(), which.clone(), &trace);
        let mut observer = output.observer();
        let read = reading.run(&trace, &mut observer, &mut [], &mut rows);
        let last = read.and_then(|_| Ok(rows.flush()?));
        match rows.failure {
            Some(failure) => Err(failure),
            None => last,
        }
    };
    Ok(Table::new(schema, Arc::new(make)))
}

/// Makes the rows of freed pages in a pass.
struct FreedRows<'o> {
    output: &'o Output,
    schema: SchemaRef,
    start_ns: u64,
    windows: Windows,
    events: ArrayRef,
    names: Vec<&'static str>,
    by: (u64, u64, u32, i16),
    window: Vec<u32>,
    process: Vec<u32>,
    seq: Vec<i64>,
    time: Vec<i64>,
    page: Vec<u32>,
    event: Vec<i16>,
    failure: Option<Failure>,
}

impl FreedRows<'_> {
    fn take(&mut self) -> Result<arrow_array::RecordBatch> {
        let rows = self.page.len();
        let columns = vec![
            u32s(std::mem::take(&mut self.window)),
            u32s(std::mem::take(&mut self.process)),
            i64s(std::mem::take(&mut self.seq)),
            i64s(std::mem::take(&mut self.time)),
            u32s(std::mem::take(&mut self.page)),
            coded::<Int16Type>(std::mem::take(&mut self.event), &[], &self.events)?,
        ];
        table::batch(&self.schema, columns, rows)
    }

    fn flush(&mut self) -> postproc::error::Result<()> {
        if self.page.is_empty() {
            return Ok(());
        }
        match self.take() {
            Ok(batch) => self.output.send(batch),
            Err(failure) => {
                self.failure = Some(failure);
                Err(Error::Interrupted)
            }
        }
    }
}

impl Consumer for FreedRows<'_> {
    fn event(
        &mut self,
        event: &Event<'_>,
        _world: &World,
        _issues: &[Issue],
    ) -> postproc::error::Result<()> {
        let name = event.name();
        let place = self.names.iter().position(|known| *known == name);
        let time = event.time_ns.saturating_sub(self.start_ns);
        self.by = (
            event.seq,
            time,
            event.tgid.0,
            place.unwrap_or(self.names.len() - 1) as i16,
        );
        Ok(())
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> postproc::error::Result<()> {
        let (seq, time, process, event) = self.by;
        for page in pages {
            self.window.push(self.windows.at(seq));
            self.process.push(process);
            self.seq.push(seq as i64);
            self.time.push(time as i64);
            self.page.push(page.0);
            self.event.push(event);
            if self.page.len() >= ROWS {
                self.flush()?;
            }
        }
        Ok(())
    }
}

/// The names of all events, and one for those that are not known.
pub fn event_list() -> Vec<&'static str> {
    let mut names = event_names();
    names.push("unknown");
    names
}

/// The table of the pages that are freed.
pub fn freed_table(trace: &Arc<Trace>, reading: Reading) -> Table {
    let reading = Reading {
        freeing: Freeing::Freed,
        ..reading
    };
    let schema: SchemaRef = Arc::new(Schema::new(vec![
        field("window", DataType::UInt32, false),
        field("process", DataType::UInt32, false),
        field("seq", DataType::Int64, false),
        field("time_ns", DataType::Int64, false),
        field("page", DataType::UInt32, false),
        field("event", event_words(), false),
    ]));
    let (trace, of_rows) = (trace.clone(), schema.clone());
    let make = move |output: &Output| {
        let names = event_list();
        let mut rows = FreedRows {
            output,
            schema: of_rows.clone(),
            start_ns: trace.header().start_time_ns,
            windows: Windows::of(&trace),
            events: Arc::new(StringArray::from(names.clone())),
            names,
            by: (0, 0, 0, 0),
            window: Vec::new(),
            process: Vec::new(),
            seq: Vec::new(),
            time: Vec::new(),
            page: Vec::new(),
            event: Vec::new(),
            failure: None,
        };
        let mut observer = output.observer();
        let read = reading.run(&trace, &mut observer, &mut [], &mut rows);
        let last = read.and_then(|_| Ok(rows.flush()?));
        match rows.failure {
            Some(failure) => Err(failure),
            None => last,
        }
    };
    Table::new(schema, Arc::new(make))
}
