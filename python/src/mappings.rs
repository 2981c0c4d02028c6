//! What was mapped at a moment: what `postproc maps --json` prints.

use std::sync::Arc;

use arrow_schema::{DataType, Schema, SchemaRef};
use postproc::process::{Process, Tasks};
use postproc::space::{Mapping, MmState, Space};
use postproc::trace::{Body, Merge, Step, StreamKind, Trace};

use crate::columns::{bools, field, i64s, texts, u32s, u64s};
use crate::fail::{Failure, Result, Signals};
use crate::table::{self, Batch};

/// The moment, and whose mappings.
pub struct Wanted {
    pub pid: Option<u32>,
    /// After the event with this number.
    pub seq: Option<u64>,
    /// When a file of this name was first opened.
    pub at_open: Option<String>,
}

struct Range<'s> {
    mapping: Mapping,
    end: u64,
    offset: u64,
    dev: u64,
    ino: u64,
    name: &'s str,
}

fn range<'s>(space: &'s Space, mapping: Mapping) -> Range<'s> {
    let file = space.object(mapping.object).file;
    Range {
        end: mapping.end,
        offset: if file.ino == 0 { 0 } else { mapping.offset },
        dev: file.dev,
        ino: file.ino,
        name: space.name(&mapping),
        mapping,
    }
}

/// Whether two ranges are one to the reader, as they are in /proc/PID/maps.
fn follows(before: &Range<'_>, range: &Range<'_>) -> bool {
    let like = |r: &Range<'_>| (r.mapping.prot, r.mapping.is_shared(), r.dev, r.ino);
    let length = before.end - before.mapping.start;
    before.end == range.mapping.start
        && like(before) == like(range)
        && before.name == range.name
        && (range.ino == 0 || before.offset.wrapping_add(length) == range.offset)
}

/// The mappings of the processes that live at the moment, by process and address.
pub fn table(trace: &Trace, wanted: &Wanted, signals: &mut Signals) -> Result<Batch> {
    let (mut space, mut tasks) = (Space::default(), Tasks::default());
    let mut merge = Merge::of_kinds(trace, &[StreamKind::Event]);
    let mut found = wanted.seq.is_none() && wanted.at_open.is_none();
    let (mut last, limit) = (0, wanted.seq.unwrap_or(u64::MAX));
    while let Step::Event(event) = merge.fill(&mut Vec::new(), 1)? {
        if event.seq > limit {
            found = true;
            break;
        }
        last = event.seq;
        space.apply(&event);
        tasks.apply(&event);
        let here = |name: &[u8]| {
            wanted
                .at_open
                .as_ref()
                .is_some_and(|n| n.as_bytes() == name)
        };
        if matches!(event.body, Body::Open(open) if here(open.name)) {
            found = true;
            break;
        }
        if !signals.go_on() {
            return Err(Failure::Gone);
        }
    }
    if !found && last != limit {
        return Err(Failure::trace("the trace ends before that moment"));
    }
    let mut living: Vec<&Process> = tasks
        .living()
        .filter(|p| wanted.pid.is_none_or(|pid| p.tgid.0 == pid))
        .filter(|p| space.state(p.mm) == MmState::Live)
        .collect();
    living.sort_by_key(|p| p.tgid.0);
    let mut rows: Vec<(&Process, Range<'_>)> = Vec::new();
    for process in living {
        let mappings = space.get(process.mm).into_iter();
        let mut ranges = mappings
            .flat_map(|s| s.mappings())
            .map(|mapping| range(&space, mapping))
            .peekable();
        while let Some(mut first) = ranges.next() {
            while let Some(next) = ranges.next_if(|next| follows(&first, next)) {
                first.end = next.end;
            }
            rows.push((process, first));
        }
    }
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
    let prots: Vec<String> = rows.iter().map(|r| r.1.mapping.prot.to_string()).collect();
    let shared: Vec<bool> = rows.iter().map(|r| r.1.mapping.is_shared()).collect();
    let columns = vec![
        u32s(rows.iter().map(|r| r.0.tgid.0).collect()),
        texts(rows.iter().map(|r| &*r.0.comm)),
        u32s(rows.iter().map(|r| r.0.mm.0).collect()),
        i64s(rows.iter().map(|r| r.1.mapping.start as i64).collect()),
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
