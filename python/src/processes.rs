//! The processes of a trace.

use std::sync::Arc;

use arrow_schema::{DataType, Schema, SchemaRef};
use postproc::process::Tasks;
use postproc::trace::{Merge, Step, StreamKind, Trace};

use crate::columns::{field, i64s, texts, u32s};
use crate::fail::{Failure, Result, Signals};
use crate::table::{self, Batch};

/// Every process of the trace, in the order in which events told of them.
pub fn table(trace: &Trace, signals: &mut Signals) -> Result<Batch> {
    let mut tasks = Tasks::default();
    let mut merge = Merge::of_kinds(trace, &[StreamKind::Event]);
    while let Step::Event(event) = merge.fill(&mut Vec::new(), 1)? {
        tasks.apply(&event);
        if !signals.go_on() {
            return Err(Failure::Gone);
        }
    }
    let all = tasks.processes();
    let schema: SchemaRef = Arc::new(Schema::new(vec![
        field("process", DataType::UInt32, false),
        field("comm", DataType::Utf8, false),
        field("exe", DataType::Utf8, false),
        field("cgroup", DataType::Utf8, false),
        field("mm", DataType::UInt32, false),
        field("start_ns", DataType::Int64, false),
        field("utime_ns", DataType::Int64, false),
        field("stime_ns", DataType::Int64, false),
    ]));
    let columns = vec![
        u32s(all.iter().map(|p| p.tgid.0).collect()),
        texts(all.iter().map(|p| &*p.comm)),
        texts(all.iter().map(|p| &*p.exe)),
        texts(all.iter().map(|p| &*p.cgroup)),
        u32s(all.iter().map(|p| p.mm.0).collect()),
        i64s(all.iter().map(|p| p.start_ns as i64).collect()),
        i64s(all.iter().map(|p| p.utime_ns as i64).collect()),
        i64s(all.iter().map(|p| p.stime_ns as i64).collect()),
    ];
    Ok(Batch(table::batch(&schema, columns, all.len())?))
}
