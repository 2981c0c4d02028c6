//! docs/format.md is enough to read a trace: docs/reader.py, which was written from it, gives the
//! records that postproc gives, and the tables of the page are those of the UAPI header.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::first_form::in_first_form;
use crate::support;
use postproc::pipeline::Unwatched;
use postproc::testing::{TraceBuilder, mend_checksums, packets_of};
use postproc::trace::wire::{HEAD_SIZE, HEADER_SIZE, SwapBody};
use postproc::trace::{
    Body, By, Event, FileBody, FileId, FileKind, Form, FrameBody, IoBody, Merge, Ref, ShmBody,
    Step, StreamKind, Trace, divide, plan, repack, split,
};
use postproc::units::Prot;
use rust_mm_trace::uapi;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The most lines that the reader may have.
const MOST_LINES: usize = 250;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn document() -> String {
    fs::read_to_string(top().join("docs/format.md")).unwrap()
}

fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// What a Python makes of a trace with docs/reader.py.
fn run_with(python: &Path, bytes: &[u8]) -> Output {
    let directory = scratch();
    let trace = directory.path().join("t.vmt");
    fs::write(&trace, bytes).unwrap();
    let mut command = Command::new(python);
    // Nothing but the standard library, unless the Python is one of an environment.
    if python == Path::new("python3") {
        command.args(["-I", "-S"]);
    }
    command
        .arg(top().join("docs/reader.py"))
        .arg(&trace)
        .output()
        .unwrap_or_else(|e| panic!("cannot run Python (Debian: apt-get install python3): {e}"))
}

fn run(bytes: &[u8]) -> Output {
    run_with(Path::new("python3"), bytes)
}

/// The records that it prints.
fn printed(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Traces of all versions that a kernel wrote.
fn fixtures() -> Vec<(String, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let versions = fs::read_dir(root).unwrap().map(|e| e.unwrap().path());
    let mut paths: Vec<PathBuf> = versions
        .filter(|path| path.is_dir())
        .flat_map(|path| fs::read_dir(path).unwrap().map(|e| e.unwrap().path()))
        .filter(|path| path.extension().is_some_and(|e| e == "zst"))
        .collect();
    paths.sort();
    let of = |path: PathBuf| {
        let packed = fs::read(&path).unwrap();
        let bytes = zstd::decode_all(&packed[..]).unwrap();
        (path.display().to_string(), bytes)
    };
    paths.into_iter().map(of).collect()
}

fn fixture(name: &str) -> Vec<u8> {
    let all = fixtures();
    let found = all
        .into_iter()
        .find(|(path, _)| path.ends_with(&format!("v1/{name}.vmt.zst")));
    found.unwrap_or_else(|| panic!("no fixture {name}")).1
}

fn packed(bytes: &[u8], level: Option<i32>) -> Vec<u8> {
    let trace = Trace::from_bytes("memory", bytes.to_vec()).unwrap();
    let mut out = Vec::new();
    let form = Form::Packed(level);
    repack(&trace, form, &mut out, "memory", &mut Unwatched).unwrap();
    out
}

/// How many packets of references a trace has by their codecs.
fn codecs(bytes: &[u8]) -> BTreeMap<u32, usize> {
    type P = uapi::vmtrace_packet;
    let mut all = BTreeMap::new();
    for (start, _) in packets_of(bytes) {
        let half = |at: usize| u16::from_le_bytes([bytes[start + at], bytes[start + at + 1]]);
        if u32::from(half(offset_of!(P, kind))) == uapi::VMTRACE_STREAM_REF {
            *all.entry(half(offset_of!(P, codec)).into()).or_default() += 1;
        }
    }
    all
}

/// Demands that the reader gives what postproc gives of a trace and of its packed forms. The
/// packets of references that each form has.
#[track_caller]
fn reads_all_forms_as_postproc(name: &str, bytes: &[u8]) -> (usize, [usize; 2]) {
    let records = reads_as_postproc(name, bytes);
    let (first, second) = (in_first_form(bytes), packed(bytes, None));
    let forms = [
        ("first", first, uapi::VMTRACE_CODEC_PACK),
        ("second", second, uapi::VMTRACE_CODEC_PACK2),
    ];
    let packets = forms.map(|(form, bytes, codec)| {
        let name = format!("{name}, packed in the {form} form");
        assert_eq!(reads_as_postproc(&name, &bytes), records, "{name}");
        let codecs = codecs(&bytes);
        assert!(codecs.keys().all(|c| [0, codec].contains(c)), "{name}");
        codecs.get(&codec).copied().unwrap_or_default()
    });
    (records, packets)
}

/// A reference as the reader prints it.
fn reference(r: &Ref, trace: &Trace) -> Value {
    let header = trace.header();
    let flags = r.flags();
    // Only while postproc reads: a record of context.
    let is_context = flags.0 & 1 << 11 != 0;
    let mut value = json!({
        "record": if is_context { "context" } else { "reference" },
        "seq": r.seq,
        "time": r.time_ns,
        "cpu": r.cpu(),
        "tid": r.tid().0,
        "mm": r.mm.0,
        "set": r.set,
        "page": r.address(),
        "kind": flags.access().name(),
        "why": flags.why().name(),
        "stay": r.end_ns(header.stay_shift).map(|end| end - r.time_ns),
        "pfn": r.pfn,
        "kernel": flags.kernel(),
        "dirtied": flags.dirtied(),
        "again": flags.again(),
        "cont": flags.continues(),
        "left": flags.is_left_out(),
    });
    if header.has_vtime() {
        value["vtime"] = r.vtime.into();
    }
    if header.has_offsets() {
        value["offset"] = r.within.into();
    }
    value
}

fn number_of(kind: FileKind) -> usize {
    use FileKind::{Block, Char, Directory, Other, Pipe, Regular, Socket};
    let all = [Regular, Directory, Pipe, Socket, Char, Block, Other];
    all.iter().position(|k| *k == kind).unwrap()
}

fn number_of_call(name: &str) -> usize {
    let all = "rw kernel sendfile copy splice tee vmsplice uring aio";
    all.split(' ').position(|n| n == name).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Objects in one.
fn with(one: Value, other: Value) -> Value {
    let (Value::Object(mut one), Value::Object(other)) = (one, other) else {
        panic!("no objects");
    };
    one.extend(other);
    Value::Object(one)
}

fn file(file: &FileId) -> Value {
    json!({"dev": file.dev, "ino": file.ino, "generation": file.generation})
}

fn frame(frame: &FrameBody) -> Value {
    json!({"page": frame.page, "old_pfn": frame.old_pfn, "new_pfn": frame.new_pfn})
}

fn swap(swap: &SwapBody, pfn: &str) -> Value {
    json!({"page": swap.page, pfn: swap.pfn, "arg": u64::from(swap.area) << 56 | swap.slot})
}

fn shm(shm: &ShmBody) -> Value {
    let own = json!({"start": shm.start, "end": shm.end, "shmid": shm.shmid});
    with(own, file(&shm.file))
}

fn opened(body: &FileBody<'_>) -> Value {
    let own = json!({
        "length": body.length, "kind": number_of(body.kind), "text": text(body.name),
    });
    with(own, file(&body.file))
}

fn io(body: &IoBody) -> Value {
    let own = json!({
        "offset": body.offset,
        "bytes": body.bytes,
        "kind": number_of(body.kind),
        "call": number_of_call(body.call.name()),
        "flags": u8::from(body.direct),
    });
    with(own, file(&body.file))
}

/// An event's own fields as the reader prints them, as far as postproc has them.
fn own(body: &Body<'_>) -> Value {
    match body {
        Body::Map(m) => with(
            json!({
                "start": m.start, "end": m.end, "offset": m.offset, "prot": m.prot.0,
                "flags": m.flags, "kind": m.kind.number(), "cause": m.cause, "text": text(m.name),
            }),
            file(&m.file),
        ),
        Body::Unmap { start, end } => json!({"start": start, "end": end}),
        Body::Move {
            old_start,
            old_len,
            new_start,
            new_len,
            dontunmap,
        } => json!({
            "old_start": old_start, "old_len": old_len, "new_start": new_start,
            "new_len": new_len, "flags": u8::from(*dontunmap),
        }),
        Body::Protect { start, end, prot } => json!({"start": start, "end": end, "arg": prot.0}),
        Body::Advise { start, end, advice } => json!({"start": start, "end": end, "arg": advice}),
        Body::Cow(body) | Body::Ksm(body) | Body::Migrate(body) => frame(body),
        Body::Gup {
            page,
            pfn,
            write,
            long_term,
        } => json!({
            "page": page, "new_pfn": pfn, "arg": u8::from(*write) | u8::from(*long_term) << 1,
        }),
        Body::SwapIn(body) => swap(body, "new_pfn"),
        Body::SwapOut(body) => swap(body, "old_pfn"),
        Body::Switch { prev, next } => json!({"prev": prev.0, "next": next.0}),
        Body::MmDup { parent } => json!({"parent": parent.0}),
        Body::Fork {
            child_tid,
            child_tgid,
            child_mm,
            child_start,
        } => json!({
            "child_tid": child_tid.0, "child_tgid": child_tgid.0, "child_mm": child_mm.0,
            "child_start": child_start,
        }),
        Body::Exec {
            old_mm,
            file: of,
            comm,
            name,
        } => with(
            json!({"old_mm": old_mm.0, "comm": text(comm), "text": text(name)}),
            file(of),
        ),
        Body::Exit {
            utime_ns,
            stime_ns,
            code,
        } => json!({"utime": utime_ns, "stime": stime_ns, "code": code}),
        Body::Task {
            tid,
            tgid,
            parent,
            start,
            comm,
        } => json!({
            "tid": tid.0, "tgid": tgid.0, "parent": parent.0, "start": start, "comm": text(comm),
        }),
        Body::Cgroup { tid, tgid, path } => {
            json!({"tid": tid.0, "tgid": tgid.0, "text": text(path)})
        }
        Body::Truncate { file: of, length } => with(json!({"offset": length}), file(of)),
        Body::Punch {
            file: of,
            offset,
            bytes,
        } => with(json!({"offset": offset, "bytes": bytes}), file(of)),
        Body::Delete { file: of, length } => with(json!({"bytes": length}), file(of)),
        Body::Open(body) | Body::Close(body) => opened(body),
        Body::Read(body) | Body::Write(body) => io(body),
        Body::ShmAt(body) | Body::ShmDt(body) | Body::ShmDestroy(body) => shm(body),
        Body::Resize { from, to } => json!({"from": from, "to": to}),
        Body::Set { set, cgroup } => json!({"set": set, "cgroup": cgroup}),
        Body::Filter { tests, expr } => json!({"nr_tests": tests, "text": text(expr)}),
        Body::Region(r) => json!({
            "start": r.start, "end": r.end, "looks": r.looks, "accesses": r.accesses,
            "writes": r.writes, "age": r.age, "cpus": r.cpus, "index": r.index,
            "regions": r.regions,
        }),
        Body::Checkpoint { last_mm } => json!({"last_mm": last_mm.0}),
        Body::MmEnd
        | Body::SnapBegin
        | Body::SnapEnd
        | Body::RefsBegin
        | Body::CheckpointEnd
        | Body::Unknown => json!({}),
        Body::Aside => panic!("what the event says was asked for"),
    }
}

/// Fields of an event that postproc does not keep.
fn is_unkept(event: &str, field: &str) -> bool {
    match event {
        "fork" => field == "clone_flags",
        "unmap" => field == "arg",
        "cow" | "ksm" | "migrate" => field == "arg",
        "gup" | "swap_in" => field == "old_pfn",
        "swap_out" => field == "new_pfn",
        "truncate" => ["bytes", "kind", "call", "flags"].contains(&field),
        "punch" => ["kind", "call", "flags"].contains(&field),
        "delete" => ["offset", "kind", "call", "flags"].contains(&field),
        _ => false,
    }
}

fn event(e: &Event<'_>, trace: &Trace) -> Value {
    let mut value = json!({
        "record": "event",
        "event": e.name(),
        "type": e.number,
        "flags": e.flags,
        "seq": e.seq,
        "time": e.time_ns,
        "tid": e.tid.0,
        "tgid": e.tgid.0,
        "mm": e.mm.0,
        "cpu": e.cpu,
        "own": own(&e.said()),
    });
    if trace.header().has_vtime() {
        value["vtime"] = e.vtime.unwrap_or(u64::MAX).into();
    }
    value
}

/// The records that postproc reads, and how many places are damaged.
fn expected(bytes: &[u8]) -> (Vec<Value>, usize) {
    let trace = Trace::from_bytes("memory", bytes.to_vec()).unwrap();
    let kinds = [StreamKind::Ref, StreamKind::Event, StreamKind::Context];
    let mut merge = Merge::of_kinds(&trace, &kinds);
    let (mut all, mut batch) = (Vec::new(), Vec::new());
    loop {
        batch.clear();
        let step = merge.fill(&mut batch, 100).unwrap();
        all.extend(batch.iter().map(|r| reference(r, &trace)));
        match step {
            Step::Full => {}
            Step::Event(e) => all.push(event(&e, &trace)),
            Step::End => break,
        }
    }
    let damage = trace.index().damage.len() + merge.take_damage().count();
    (all, damage)
}

/// A record of the reader, without what postproc does not keep.
fn kept(mut record: Value) -> Value {
    let event = record["event"].as_str().unwrap_or_default().to_owned();
    if let Some(record) = record.as_object_mut() {
        record.remove("size");
    }
    if let Some(own) = record.get_mut("own").and_then(Value::as_object_mut) {
        let drop = ["pad", "name_len", "expr_len"];
        own.retain(|field, _| !drop.contains(&&field[..]) && !is_unkept(&event, field));
    }
    record
}

/// Demands that the records are the same, and names the first one that is not.
#[track_caller]
fn same(name: &str, got: Vec<Value>, expected: &[Value]) {
    let got: Vec<Value> = got.into_iter().map(kept).collect();
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got, expected, "{name}: record {i}");
    }
    assert_eq!(got.len(), expected.len(), "{name}: records");
}

/// Demands that the reader gives what postproc gives of a good trace.
#[track_caller]
fn reads_as_postproc(name: &str, bytes: &[u8]) -> usize {
    let output = run(bytes);
    assert!(output.status.success(), "{name}: {}", said(&output));
    let (expected, damage) = expected(bytes);
    assert_eq!(damage, 0, "{name}");
    same(name, printed(&output), &expected);
    expected.len()
}

#[test]
fn the_reader_is_short_and_needs_nothing() {
    let reader = fs::read_to_string(top().join("docs/reader.py")).unwrap();
    let lines = reader.lines().count();
    assert!(lines <= MOST_LINES, "docs/reader.py has {lines} lines");
    let long = reader.lines().find(|line| line.len() > 120);
    assert_eq!(long, None, "a line is too long");
    let imports: BTreeSet<&str> = reader
        .lines()
        .filter_map(|line| line.trim().strip_prefix("import "))
        .collect();
    let standard = ["functools", "heapq", "io", "json", "struct", "sys"];
    let others: Vec<_> = imports.iter().filter(|i| !standard.contains(i)).collect();
    assert_eq!(others, [&"zstandard"]);
    assert!(!reader.lines().any(|line| line.trim().starts_with("from ")));
}

#[test]
fn it_reads_every_fixture_as_postproc_does() {
    let all = fixtures();
    assert!(all.len() >= 13, "{} fixtures", all.len());
    let mut records = 0;
    for (name, bytes) in &all {
        let (of_trace, packets) = reads_all_forms_as_postproc(name, bytes);
        assert!(packets.iter().all(|n| *n > 0), "{name}: {packets:?}");
        records += of_trace;
    }
    assert!(records > 40_000, "{records}");
}

/// Packets that are compressed, too; and what the reader says if it cannot decompress them.
#[test]
fn it_reads_what_is_compressed_or_names_what_it_needs() {
    let python = support::python("zstandard", &["zstandard==0.23.0"]);
    for (name, bytes) in fixtures() {
        let bytes = packed(&bytes, Some(3));
        let output = run_with(&python, &bytes);
        assert!(output.status.success(), "{name}: {}", said(&output));
        same(&name, printed(&output), &expected(&bytes).0);
        let output = run(&bytes);
        assert_eq!(output.status.code(), Some(1), "{name}");
        let message = said(&output);
        assert!(message.contains("zstandard is needed"), "{message}");
    }
}

/// An event of a type, each byte of whose fields is another one, as far as that can be.
fn payload(number: u32) -> Vec<u8> {
    let len = events()[&number];
    let mut bytes: Vec<u8> = (1..=len as u8).collect();
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    const NAME: &[u8] = b"a \xff name";
    let named = |at: usize| Some(at);
    let at = match number {
        uapi::VMTRACE_EV_MAP => {
            put(offset_of!(uapi::vmtrace_ev_map, prot), &5u32.to_le_bytes());
            put(
                offset_of!(uapi::vmtrace_ev_map, flags),
                &0x1525_u32.to_le_bytes(),
            );
            put(offset_of!(uapi::vmtrace_ev_map, kind), &1u16.to_le_bytes());
            named(offset_of!(uapi::vmtrace_ev_map, name_len))
        }
        uapi::VMTRACE_EV_EXEC => named(offset_of!(uapi::vmtrace_ev_exec, name_len)),
        uapi::VMTRACE_EV_CGROUP => named(offset_of!(uapi::vmtrace_ev_cgroup, name_len)),
        uapi::VMTRACE_EV_FILTER => named(offset_of!(uapi::vmtrace_ev_filter, expr_len)),
        uapi::VMTRACE_EV_OPEN | uapi::VMTRACE_EV_CLOSE => {
            put(offset_of!(uapi::vmtrace_ev_file, kind), &4u32.to_le_bytes());
            named(offset_of!(uapi::vmtrace_ev_file, name_len))
        }
        uapi::VMTRACE_EV_READ | uapi::VMTRACE_EV_WRITE => {
            put(offset_of!(uapi::vmtrace_ev_io, kind), &3u16.to_le_bytes());
            put(offset_of!(uapi::vmtrace_ev_io, call), &[7, 1]);
            None
        }
        uapi::VMTRACE_EV_MOVE => {
            put(
                offset_of!(uapi::vmtrace_ev_move, flags),
                &1u64.to_le_bytes(),
            );
            None
        }
        uapi::VMTRACE_EV_PROTECT => {
            put(offset_of!(uapi::vmtrace_ev_range, arg), &6u64.to_le_bytes());
            None
        }
        uapi::VMTRACE_EV_GUP => {
            put(offset_of!(uapi::vmtrace_ev_page, arg), &3u64.to_le_bytes());
            None
        }
        _ => None,
    };
    if let Some(at) = at {
        put(at, &(NAME.len() as u32).to_le_bytes());
        bytes.extend_from_slice(NAME);
    }
    bytes
}

/// The sizes of events' fields, by type, as the page has them.
fn events() -> BTreeMap<u32, usize> {
    let text = document();
    let tables = tables(&text);
    let mut all = BTreeMap::new();
    let rows = text.split("### Types of events").nth(1).unwrap().lines();
    let rows = rows.skip_while(|line| !line.starts_with('|')).skip(2);
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells = cells(row);
        let size = match cells[2] {
            "none" => 0,
            layout => {
                let last = tables[&format!("vmtrace_{layout}")].last().unwrap();
                last.at + last.size
            }
        };
        all.insert(cells[0].parse().unwrap(), size);
    }
    all
}

/// A trace with each type of event, and with one that nobody knows.
fn of_all_events(vtime: bool) -> Vec<u8> {
    let mut b = TraceBuilder::new(2, 4);
    if vtime {
        b.virtual_time(1000);
    }
    let numbers: Vec<u32> = events().into_keys().collect();
    for round in 0..3 {
        for number in &numbers {
            b.event(round & 1, 10, 1, *number, &payload(*number));
        }
        b.event(1, 10, 1, 127, &[round as u8; 24]);
    }
    b.finish()
}

/// A trace whose records have offsets, and maybe virtual time.
fn of_offsets(vtime: bool) -> Vec<u8> {
    let mut b = TraceBuilder::new(2, 16);
    b.with_offsets();
    if vtime {
        b.virtual_time(1000);
    }
    b.program();
    for i in 0..2000u64 {
        b.read_early(i % 7 * 10);
        b.touch(
            (i / 3) as u32 & 1,
            10,
            1,
            0x1000 + (i * 7 % (17 + i % 40)) * 0x1000,
        );
        if i % 11 == 0 {
            b.renew(0, 10, i % 22 == 0);
        }
    }
    b.finish()
}

/// A trace of several sets, some of which rest.
fn of_sets() -> Vec<u8> {
    let mut b = TraceBuilder::new(2, 16);
    b.several_sets();
    b.header_mut().buffer_size = 1024;
    for mm in 1..=8 {
        b.set(0, 10 * mm, mm, mm);
        b.task(0, 10 * mm, 10 * mm, mm, "program");
        b.map_anon(0, 10 * mm, mm, 0x10_0000, 0x20_0000, Prot(3));
        for i in 0..400u64 {
            let of = 1 + (i / 40) as u32 % mm;
            let address = 0x10_0000 + ((i * 7 % 101) << 12);
            b.touch((i & 1) as u32, 10 * of, of, address);
        }
    }
    b.finish()
}

#[test]
fn it_reads_all_kinds_of_records_as_postproc_does() {
    let all = [
        ("events", of_all_events(false)),
        ("events with virtual time", of_all_events(true)),
        ("offsets", of_offsets(false)),
        ("offsets and virtual time", of_offsets(true)),
        ("sets", of_sets()),
        ("filtered", TraceBuilder::sample_of_filtered().finish()),
        ("packets", TraceBuilder::sample_of_many_packets().finish()),
    ];
    for (name, bytes) in all {
        let (records, packets) = reads_all_forms_as_postproc(name, &bytes);
        assert!(records > 10, "{name}");
        // The first two have no references.
        let has_references = !name.starts_with("events");
        assert!(packets.iter().all(|n| (*n > 0) == has_references), "{name}");
    }
}

/// Joins the pieces in a directory, as the page says.
fn joined(directory: &Path) -> Vec<u8> {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let mut trace = Vec::new();
    for path in paths {
        let piece = fs::read(path).unwrap();
        let u64_at = |at: usize| u64::from_le_bytes(piece[at..at + 8].try_into().unwrap());
        if trace.is_empty() {
            let mut header = piece[..HEADER_SIZE].to_vec();
            header[48..56].copy_from_slice(&(u64_at(48) & !(1 << 16)).to_le_bytes());
            let crc = crc32c::crc32c(&header[..4092]);
            header[4092..].copy_from_slice(&crc.to_le_bytes());
            trace = header;
        }
        let crc = |trace: &[u8]| u64::from(crc32c::crc32c(trace));
        let content = HEADER_SIZE + HEAD_SIZE;
        assert_eq!(u64_at(content + 16), trace.len() as u64);
        assert_eq!(u64_at(content + 24) & 0xffff_ffff, crc(&trace));
        let mut at = HEADER_SIZE;
        loop {
            let kind = u64_at(at + 24) & 0xffff;
            at += HEAD_SIZE + (u64_at(at + 96) >> 32) as usize;
            if kind == 18 {
                break;
            }
        }
        let end = piece.len() - 128;
        trace.extend_from_slice(&piece[at..at + u64_at(end + 8) as usize]);
        assert_eq!(u64_at(end + 16) & 0xffff_ffff, crc(&trace));
    }
    trace
}

#[test]
fn it_reads_pieces_and_parts_as_postproc_does() {
    let directory = scratch();
    for (name, bytes) in [("sets", of_sets()), ("windows", fixture("windows"))] {
        let trace = Trace::from_bytes("memory", bytes.clone()).unwrap();
        let pieces = directory.path().join(format!("{name} in pieces"));
        let plan = plan(&trace, By::Bytes(bytes.len() as u64 / 4), &mut Unwatched).unwrap();
        split(&trace, &plan, &pieces, &mut Unwatched).unwrap();
        assert!(
            joined(&pieces) == bytes,
            "{name}: the pieces are another trace"
        );
        let parts = directory.path().join(format!("{name} in parts"));
        divide(&trace, &parts, &mut Unwatched).unwrap();
        let mut files = 0;
        for of in [pieces, parts] {
            for entry in fs::read_dir(of).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|e| e == "frame") {
                    continue;
                }
                reads_as_postproc(&path.display().to_string(), &fs::read(&path).unwrap());
                files += 1;
            }
        }
        assert!(files >= 3, "{name}: {files} files");
    }
}

/// Pieces that a kernel wrote have more than is used of their descriptions: see docs/format.md.
#[test]
fn it_reads_the_records_of_pieces_that_a_kernel_wrote() {
    let mut b = TraceBuilder::new(2, 16);
    b.header_mut().buffer_size = 1024;
    b.in_pieces(true);
    for mm in 1..=3 {
        b.task(0, 10 * mm, 10 * mm, mm, "program");
        b.map_anon(0, 10 * mm, mm, 0x10_0000, 0x20_0000, Prot(3));
    }
    for i in 0..900u64 {
        let mm = 1 + (i / 20 % 3) as u32;
        b.touch(i as u32 % 2, 10 * mm, mm, 0x10_0000 + ((i * 7 % 101) << 12));
        if i % 300 == 299 {
            b.rotate(0);
        }
    }
    let (_, files) = b.finish_pieces();
    assert_eq!(files.len(), 4);
    let mut own = 0;
    for (number, bytes) in files.iter().enumerate() {
        let trace = Trace::from_bytes("memory", bytes.clone()).unwrap();
        let first_seq = trace.piece().unwrap().first_seq;
        let of_piece = |all: Vec<Value>| -> Vec<Value> {
            let is_own = |r: &Value| r["seq"].as_u64().unwrap() >= first_seq;
            all.into_iter().filter(is_own).collect()
        };
        let output = run(bytes);
        assert!(output.status.success(), "piece {number}: {}", said(&output));
        let all = printed(&output);
        let described = all.len();
        let expected = of_piece(expected(bytes).0);
        own += expected.len();
        let all = of_piece(all);
        assert_eq!(described > all.len(), number > 0, "piece {number}");
        same(&format!("piece {number}"), all, &expected);
    }
    assert!(own > 900);
}

/// A reference that an interval ended is one only of a trace that has intervals.
#[test]
fn an_interval_ends_stays_only_where_there_are_intervals() {
    type H = uapi::vmtrace_header;
    let mut bytes = TraceBuilder::sample().finish();
    let is_ref = |at: usize| u32::from(bytes[at]) == uapi::VMTRACE_STREAM_REF;
    let mut starts = packets_of(&bytes).into_iter().map(|(start, _)| start);
    let found = starts.find(|start| is_ref(start + offset_of!(uapi::vmtrace_packet, kind)));
    let page = found.unwrap() + HEAD_SIZE;
    let flags = u16::from_le_bytes([bytes[page], bytes[page + 1]]) | uapi::VMTRACE_REF_WHY as u16;
    bytes[page..page + 2].copy_from_slice(&flags.to_le_bytes());
    mend_checksums(&mut bytes);
    let output = run(&bytes);
    assert_eq!(output.status.code(), Some(1));
    let message = said(&output);
    assert!(message.contains("a packet is damaged"), "{message}");
    let (left, damage) = expected(&bytes);
    assert!(damage > 0);
    same("without intervals", printed(&output), &left);
    let interval = offset_of!(H, interval);
    bytes[interval..interval + 8].copy_from_slice(&1_000_000_000u64.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..offset_of!(H, crc)]);
    bytes[offset_of!(H, crc)..HEADER_SIZE].copy_from_slice(&crc.to_le_bytes());
    reads_all_forms_as_postproc("with intervals", &bytes);
    let (all, _) = expected(&bytes);
    assert!(all.len() > left.len());
    assert!(all.iter().any(|record| record["why"] == "interval"));
}

/// A codec that a packet cannot have costs that packet.
#[test]
fn a_codec_that_is_impossible_costs_one_packet() {
    type P = uapi::vmtrace_packet;
    let (pack, pack2) = (uapi::VMTRACE_CODEC_PACK, uapi::VMTRACE_CODEC_PACK2);
    let good = packed(&fixture("windows"), None);
    for (kind, codec) in [
        (uapi::VMTRACE_STREAM_REF, pack | pack2),
        (uapi::VMTRACE_STREAM_REF, 1 << 3),
        (uapi::VMTRACE_STREAM_EVENT, pack2),
    ] {
        let mut bytes = good.clone();
        let packets = packets_of(&good);
        let is_kind = |start: usize| u32::from(good[start + offset_of!(P, kind)]) == kind;
        let (start, _) = packets.into_iter().find(|(at, _)| is_kind(*at)).unwrap();
        bytes[start + offset_of!(P, codec)] = codec as u8;
        mend_checksums(&mut bytes);
        let output = run(&bytes);
        assert_eq!(output.status.code(), Some(1), "{kind} {codec}");
        let message = said(&output);
        assert!(message.contains(&format!("byte {start}: ")), "{message}");
        assert!(message.contains("an unknown way"), "{message}");
        let (left, damage) = expected(&bytes);
        assert!(damage > 0, "{kind} {codec}");
        same("an impossible codec", printed(&output), &left);
    }
}

/// The control: what is changed is found, and costs only the packet that it is in.
#[test]
fn a_byte_that_is_changed_is_reported_and_costs_one_packet() {
    for (name, bytes) in [
        ("two-cpus", fixture("two-cpus")),
        ("packed", packed(&fixture("windows"), None)),
        ("first form", in_first_form(&fixture("windows"))),
    ] {
        let whole = expected(&bytes).0.len();
        let packets = packets_of(&bytes);
        for (i, (start, end)) in packets.iter().copied().enumerate().step_by(3) {
            // In the magic, in the head, in its size, and in the content.
            let at = [start, start + 33, start + 100, (start + end) / 2][i / 3 % 4];
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let output = run(&changed);
            assert_eq!(output.status.code(), Some(1), "{name}, byte {at}");
            let message = said(&output);
            assert!(message.contains(&format!("byte {start}: ")), "{message}");
            let (left, damage) = expected(&changed);
            assert!(damage > 0, "{name}, byte {at}");
            assert!(left.len() <= whole);
            same(&format!("{name}, byte {at}"), printed(&output), &left);
        }
    }
}

/// What must be refused is, and with a message.
#[test]
fn it_refuses_what_the_page_says() {
    type H = uapi::vmtrace_header;
    let good = TraceBuilder::sample().finish();
    let mend = |mut bytes: Vec<u8>| {
        let crc = crc32c::crc32c(&bytes[..offset_of!(H, crc)]);
        bytes[offset_of!(H, crc)..HEADER_SIZE].copy_from_slice(&crc.to_le_bytes());
        bytes
    };
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let field = |at: usize, byte: u8| mend(with(at, byte));
    for (bytes, message) in [
        (with(0, 0), "this is no trace"),
        (zstd::encode_all(&good[..], 1).unwrap(), "this is no trace"),
        (good[..4000].to_vec(), "was cut short"),
        (with(2000, 1), "the header is damaged"),
        (field(offset_of!(H, version), 2), "version"),
        (field(offset_of!(H, header_size), 8), "header_size"),
        (field(offset_of!(H, features) + 1, 2), "unknown features"),
        (field(offset_of!(H, features) + 5, 1), "unknown features"),
        (field(offset_of!(H, policy), 2), "policy"),
        (field(offset_of!(H, scope), 5), "scope"),
        (field(offset_of!(H, page_shift), 11), "page_shift"),
        (field(offset_of!(H, clock), 2), "clock"),
        (field(offset_of!(H, stay_shift), 32), "stay_shift"),
        (field(offset_of!(H, interval), 1), "interval"),
        (field(offset_of!(H, interval) + 5, 4), "interval"),
        (field(offset_of!(H, sets), 3), "sets"),
    ] {
        let output = run(&bytes);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(
            said(&output).contains(message),
            "{message}: {}",
            said(&output)
        );
        assert!(output.stdout.is_empty(), "{message}");
        // postproc refuses it, too, except that it decompresses.
        let trace = Trace::from_bytes("memory", bytes.clone());
        assert!(trace.is_err(), "{message}");
    }
    // A trace that was cut short has all that comes before.
    let (_, end) = *packets_of(&good).last().unwrap();
    let output = run(&good[..end]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("was cut short"), "{}", said(&output));
    same("cut short", printed(&output), &expected(&good).0);
    // The checksum is right, and the kind is unknown.
    let mut bytes = good.clone();
    let (first, end) = packets_of(&good)[0];
    bytes[first + offset_of!(uapi::vmtrace_packet, kind)] = 9;
    mend_checksums(&mut bytes);
    let output = run(&bytes);
    assert_eq!(output.status.code(), Some(1));
    let message = said(&output);
    assert!(message.contains("the unknown kind 9"), "{message}");
    assert!(end - first > HEAD_SIZE);
}

/// A row of a table of a layout.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    at: usize,
    size: usize,
    kind: String,
    field: String,
}

fn cells(row: &str) -> Vec<&str> {
    let row = row.trim().trim_start_matches('|').trim_end_matches('|');
    row.split(" | ").map(str::trim).collect()
}

/// The layouts that the page has, by the names of their structures.
fn tables(text: &str) -> BTreeMap<String, Vec<Row>> {
    let mut all = BTreeMap::new();
    for part in text.split("<!-- layout: ").skip(1) {
        let (name, rest) = part.split_once(" -->").unwrap();
        let rows = rest.lines().skip_while(|line| !line.starts_with('|'));
        let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
        let rows = rows.map(|line| {
            let cells = cells(line);
            assert_eq!(cells.len(), 5, "{name}: {line}");
            Row {
                at: cells[0].parse().unwrap(),
                size: cells[1].parse().unwrap(),
                kind: cells[2].into(),
                field: cells[3].trim_matches('`').into(),
            }
        });
        all.insert(name.to_owned(), rows.collect());
    }
    all
}

fn size_of_kind(kind: &str) -> usize {
    let (one, count) = match kind.trim_end_matches(']').split_once('[') {
        Some((one, count)) => (one, count.parse().unwrap()),
        None => (kind, 1),
    };
    let bits: usize = one[1..].parse().unwrap();
    bits / 8 * count
}

/// Where the fields of a structure are, and its size.
type Layout = (Vec<(&'static str, usize)>, usize);

macro_rules! layout {
    ($all:ident: $($name:ident { $($field:ident)* })*) => {$(
        let fields = vec![$((stringify!($field), offset_of!(uapi::$name, $field))),*];
        $all.insert(stringify!($name), (fields, size_of::<uapi::$name>()));
    )*};
}

#[test]
fn the_layouts_of_the_page_are_those_of_the_header() {
    let mut known: BTreeMap<&str, Layout> = BTreeMap::new();
    layout! { known:
        vmtrace_header {
            magic version header_size uuid start_time realtime_offset features evms_size
            first_segment policy scope scope_pid page_shift nr_cpus clock forced_off loss_mode
            buffer_size nr_buffers stay_shift debug_break release arch reserved sampling interval
            scope_name
            sets batch window_time window_refs warmup skip windows vtime_clock vtime_khz vtime_skip
            classes crc
        }
        vmtrace_packet {
            magic uuid kind codec cpu seq first_seq last_seq first_time last_time lost_full
            __bindgen_anon_1 lost_io raw_size records content_size window crc
        }
        vmtrace_ref { page seq time tid_cpu mm stay pfn }
        vmtrace_packed { numbers time tid_cpu lag }
        vmtrace_event { type_ size flags seq time tid tgid mm cpu }
        vmtrace_ev_map {
            start end offset dev ino generation prot flags kind cause name_len pad
        }
        vmtrace_ev_range { start end arg }
        vmtrace_ev_move { old_start old_len new_start new_len flags }
        vmtrace_ev_page { page old_pfn new_pfn arg }
        vmtrace_ev_mm_dup { parent pad }
        vmtrace_ev_fork { child_tid child_tgid child_mm pad clone_flags child_start }
        vmtrace_ev_exec { old_mm name_len dev ino comm generation pad }
        vmtrace_ev_exit { utime stime code pad }
        vmtrace_ev_task { tid tgid parent pad comm start }
        vmtrace_ev_switch { prev next }
        vmtrace_ev_cgroup { tid tgid name_len pad }
        vmtrace_ev_shm { start end dev ino shmid generation }
        vmtrace_ev_file { dev ino length generation kind name_len pad }
        vmtrace_ev_io { dev ino offset bytes generation kind call flags }
        vmtrace_ev_resize { from to }
        vmtrace_ev_set { set pad cgroup }
        vmtrace_ev_filter { nr_tests expr_len }
        vmtrace_ev_region { start end looks accesses writes age cpus index regions }
        vmtrace_ev_checkpoint { last_mm pad }
        vmtrace_sampling { sample aggregate update min_regions max_regions by change }
        vmtrace_window {
            number why start_time stop_time first_seq last_seq admissions refs events aborted
            renewed chances lost_full lost_atomic lost_io funny
        }
        vmtrace_status {
            size state error scope pid evms_size evms_min nr_cpus uuid start_time stop_time
            last_seq admissions refs events aborted members members_max funny stuck audits dangling
            miscounted uncovered lost_full lost_atomic lost_io waits packets bytes mms renewed
            chances flags first_segment policy batch evms_max evms_peak classes windows
            windows_begun windows_ended unaudited output sets mode sets_made sets_max sets_shared
            stored piece pad piece_bytes left_out scope_name interval ran
        }
        vmtrace_piece { number flags first_seq offset crc pad state_seq }
        vmtrace_piece_end {
            number flags size crc unaccounted next_seq start_time stop_time packets admissions
            refs events aborted renewed chances lost_full lost_atomic lost_io
        }
    }
    let tables = tables(&document());
    for (name, rows) in &tables {
        let mut at = 0;
        for row in rows {
            assert_eq!(
                (row.at, row.size),
                (at, size_of_kind(&row.kind)),
                "{name}: {row:?}"
            );
            at += row.size;
        }
        // Kernels know nothing of parts.
        if name == "part" {
            continue;
        }
        let (fields, size) = &known[&name[..]];
        assert_eq!(at, *size, "{name}");
        let rows: Vec<(&str, usize)> = rows.iter().map(|r| (&r.field[..], r.at)).collect();
        let names = |field: &str| match field {
            "__bindgen_anon_1" => "set".to_owned(),
            field => field.trim_end_matches('_').to_owned(),
        };
        let fields: Vec<_> = fields.iter().map(|(f, at)| (names(f), *at)).collect();
        let rows: Vec<_> = rows.iter().map(|(f, at)| (f.to_string(), *at)).collect();
        assert_eq!(rows, fields, "{name}");
    }
    let missing: Vec<_> = known.keys().filter(|k| !tables.contains_key(**k)).collect();
    assert!(missing.is_empty(), "the page lacks {missing:?}");
}

/// The rows of a table: from the heading or words that come before it.
fn table<'t>(text: &'t str, before: &str) -> Vec<Vec<&'t str>> {
    let rest = text
        .split(before)
        .nth(1)
        .unwrap_or_else(|| panic!("no {before:?}"));
    let rows = rest.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(cells).collect()
}

#[test]
fn the_numbers_of_the_page_are_those_of_the_code() {
    let text = document();
    let types: BTreeMap<u32, String> = table(&text, "### Types of events")
        .iter()
        .map(|row| (row[0].parse().unwrap(), row[1].to_lowercase()))
        .collect();
    let names = rust_mm_trace::events::ALL.iter();
    let names: BTreeMap<u32, String> = names.map(|(n, name, _)| (*n, name.to_string())).collect();
    assert_eq!(types, names);
    let whys: Vec<String> = table(&text, "| 11 | | 0 |")
        .iter()
        .map(|row| row[1].to_lowercase())
        .collect();
    let known = postproc::trace::Why::ALL.map(|why| why.name().to_owned());
    assert_eq!(whys, known);
    let bits: Vec<(u32, String)> = table(&text, "### Feature bits")
        .iter()
        .map(|row| (row[0].parse().unwrap(), row[1].to_owned()))
        .collect();
    for (bit, name) in [
        (uapi::VMTRACE_AGAIN, "AGAIN"),
        (uapi::VMTRACE_VTIME, "VTIME"),
        (uapi::VMTRACE_EARLY, "EARLY"),
        (uapi::VMTRACE_PACK, "PACK"),
        (uapi::VMTRACE_OFFSETS, "OFFSETS"),
        (uapi::VMTRACE_ZSTD, "ZSTD"),
        (uapi::VMTRACE_PAUSABLE, "PAUSABLE"),
        (uapi::VMTRACE_FILTERED, "FILTERED"),
        (uapi::VMTRACE_REGIONS, "REGIONS"),
        (uapi::VMTRACE_PIECE, "PIECE"),
    ] {
        let row = (bit.trailing_zeros(), name.to_owned());
        assert!(bits.contains(&row), "{name}");
    }
    assert_eq!(bits.len(), 11);
    let codecs: Vec<(u32, &str)> = table(&text, "`codec` is the sum of bits:")
        .iter()
        .map(|row| (1 << row[0].parse::<u32>().unwrap(), row[1]))
        .collect();
    let known = [
        (uapi::VMTRACE_CODEC_PACK, "PACK"),
        (uapi::VMTRACE_CODEC_ZSTD, "ZSTD"),
        (uapi::VMTRACE_CODEC_PACK2, "PACK2"),
    ];
    assert_eq!(codecs, known);
    for row in table(&text, "### Classes of events") {
        for name in row[1].split(", ") {
            let number = types.iter().find(|(_, n)| **n == name.to_lowercase());
            let number = *number.unwrap().0 as u16;
            let class = rust_mm_trace::events::class(number);
            assert_eq!(class, 1 << row[0].parse::<u32>().unwrap(), "{name}");
        }
    }
}

/// Bytes as the page writes them: `00 × N` at the end is N bytes of zero.
fn bytes_of(cell: &str) -> Vec<u8> {
    let (bytes, zeros) = match cell.split_once("00 × ") {
        Some((bytes, zeros)) => (bytes, zeros.parse().unwrap()),
        None => (cell, 0),
    };
    let byte = |digits| u8::from_str_radix(digits, 16).unwrap();
    let mut bytes: Vec<u8> = bytes.split_whitespace().map(byte).collect();
    bytes.resize(bytes.len() + zeros, 0);
    bytes
}

#[test]
fn the_bytes_of_the_example_are_those_of_the_fixture() {
    let text = document();
    let plain = fixture("file-io");
    let packed = packed(&plain, None);
    let (mut found, mut numbers) = (0, 0);
    for part in text.split("<!-- bytes of ").skip(1) {
        let (name, rest) = part.split_once(" -->").unwrap();
        let bytes = match name.starts_with("packed.vmt") {
            true => &packed,
            false => &plain,
        };
        let rows = rest.lines().skip_while(|line| !line.starts_with('|'));
        let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
        let mut place: Option<(usize, usize)> = None;
        for line in rows {
            let cells = cells(line);
            assert_eq!(cells.len(), 4, "{line}");
            let at: usize = cells[0].parse().unwrap();
            let these = bytes_of(cells[1]);
            assert_eq!(these, bytes[at..at + these.len()], "{name}: {line}");
            let end = at + these.len();
            // Nothing is left out.
            if let Some((before, after)) = place {
                match name.ends_with("backwards") {
                    true => assert_eq!(end, before, "{name}: {line}"),
                    false => assert_eq!(at, after, "{name}: {line}"),
                }
            }
            place = Some((at, end));
            found += these.len();
            // A value that begins with a number is that of the bytes, unless that is said.
            let value = cells[3].split([':', ' ', ',']).next().unwrap();
            let is_field = cells[2].starts_with('`') && these.len() <= 8;
            let value = match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => value.parse(),
            };
            if let (true, Ok(value)) = (is_field, value) {
                let mut word = [0; 8];
                word[..these.len()].copy_from_slice(&these);
                // A flag's value is written with leading zeros.
                assert_eq!(u64::from_le_bytes(word), value, "{name}: {line}");
                numbers += 1;
            }
        }
    }
    assert!(
        found > 4500 && numbers > 60,
        "{found} bytes, {numbers} numbers"
    );
    // The dump.
    let dump = text
        .split("prints the head of the first packet")
        .nth(1)
        .unwrap();
    let lines = dump.lines().skip_while(|line| !line.starts_with("    "));
    let mut end = 4096;
    for line in lines.take_while(|line| line.starts_with("    ")) {
        let (at, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        assert_eq!(at.parse::<usize>().unwrap(), end, "{line}");
        let these = bytes_of(rest);
        assert_eq!(these, plain[end..end + these.len()], "{line}");
        end += these.len();
    }
    assert_eq!(end, 4096 + 144);
    // What the example says of the two forms.
    let sizes = |bytes: &[u8]| packets_of(bytes).first().map(|(start, end)| end - start);
    assert_eq!(sizes(&plain), Some(HEAD_SIZE + 6976));
    assert_eq!(sizes(&packed), Some(HEAD_SIZE + 1906));
}
