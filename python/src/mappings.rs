//! What was mapped at a moment: what `postproc maps --json` prints.

use std::sync::Arc;

use arrow_schema::{DataType, Schema, SchemaRef};
use postproc::maps::{Only, Range, State, When};
use postproc::process::Process;
use postproc::select::Who;
use postproc::trace::Trace;
use postproc::units::Prot;

use crate::columns::{bools, field, i64s, texts, u32s, u64s};
use crate::fail::{Result, Signals};
use crate::table::{self, Batch};

/// The mappings of the processes that live at the moment, by process and address. With `process`, of
/// the processes that it fits.
pub fn table(
    trace: &Trace,
    when: &When,
    process: Option<&Who>,
    only: &Only,
    signals: &mut Signals,
) -> Result<Batch> {
    let state = State::at(when, trace, || signals.go_on())?;
    let living = state.living().into_iter();
    let wanted = living.filter(|p| process.is_none_or(|who| who.is(p.tgid.0, &p.comm)));
    let rows: Vec<(&Process, Range<'_>)> = wanted
        .flat_map(|p| state.ranges(p.mm, only).map(move |range| (p, range)))
        .collect();
    let schema: SchemaRef = Arc::new(Schema::new(vec![
        field("process", DataType::UInt32, false),
        field("comm", DataType::Utf8, false),
        field("mm", DataType::UInt32, false),
        field("start", DataType::Int64, false),
        field("end", DataType::Int64, false),
        field("prot", DataType::Utf8, false),
        field("shared", DataType::Boolean, false),
        field("offset", DataType::UInt64, false),
        field("dev", DataType::UInt64, false),
        field("ino", DataType::UInt64, false),
        field("name", DataType::Utf8, false),
    ]));
    let prots: Vec<String> = rows.iter().map(|r| Prot(r.1.prot).to_string()).collect();
    let shared: Vec<bool> = rows.iter().map(|r| r.1.shared).collect();
    let columns = vec![
        u32s(rows.iter().map(|r| r.0.tgid.0).collect()),
        texts(rows.iter().map(|r| &*r.0.comm)),
        u32s(rows.iter().map(|r| r.0.mm.0).collect()),
        i64s(rows.iter().map(|r| r.1.start as i64).collect()),
        i64s(rows.iter().map(|r| r.1.end as i64).collect()),
        texts(prots.iter().map(String::as_str)),
        bools(&shared),
        u64s(rows.iter().map(|r| r.1.offset).collect()),
        u64s(rows.iter().map(|r| r.1.dev).collect()),
        u64s(rows.iter().map(|r| r.1.ino).collect()),
        texts(rows.iter().map(|r| r.1.name)),
    ];
    Ok(Batch(table::batch(&schema, columns, rows.len())?))
}
