//! docs/format.md is enough to read a trace: docs/reader.py, which was written from it, gives the
//! records that postproc gives, and the tables of the page are those of the UAPI header.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::first_form::in_first_form;
use crate::support::{self, ACCEPT};
use postproc::pipeline::Unwatched;
use postproc::testing::{TraceBuilder, mend_checksums, packets_of};
use postproc::trace::wire::{HEAD_SIZE, HEADER_SIZE};
use postproc::trace::{
    By, Event, Form, Members, Merge, Ref, Step, StreamKind, Trace, divide, plan, repack, split,
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

/// An event's own fields as the page describes them: the structure, then a text if there is a length of one.
fn own(e: &Event<'_>, page: &Page) -> Value {
    let Some(layout) = page.layout_of(e.number.into()) else {
        return json!({});
    };
    let (bytes, size) = (e.payload, size_of_rows(layout));
    let mut own = serde_json::Map::new();
    for row in layout {
        let mut word = [0; 8];
        let field = &bytes[row.at..row.at + row.size];
        if row.kind.contains('[') {
            let end = field.iter().position(|c| *c == 0).unwrap_or(row.size);
            own.insert(row.field.clone(), text(&field[..end]).into());
            continue;
        }
        let is_negative = row.kind.starts_with('i') && field[row.size - 1] > 127;
        word.fill(if is_negative { 255 } else { 0 });
        word[..row.size].copy_from_slice(field);
        let value = match row.kind.starts_with('i') {
            true => json!(i64::from_le_bytes(word)),
            false => json!(u64::from_le_bytes(word)),
        };
        if row.is_length_of_text() {
            let length = u64::from_le_bytes(word) as usize;
            own.insert("text".into(), text(&bytes[size..size + length]).into());
        }
        own.insert(row.field.clone(), value);
    }
    own.into()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What postproc must give as a field of an event, by the event's own fields. A field of another name than
/// in the header, or with a name in place of a number, is here.
fn given(event: &str, field: &str, own: &Value) -> Value {
    let number = |field: &str| own[field].as_u64().unwrap();
    let named = |names: &str, otherwise: &str, field: &str| {
        let mut names = names.split(' ');
        let name = names.nth(number(field) as usize);
        json!(name.unwrap_or(otherwise))
    };
    match (event, field) {
        ("map", "kind") => named("anon file shmem device special hugetlb", "unknown", field),
        (_, "kind") => named("regular directory pipe socket char block", "other", field),
        (_, "call") => named(
            "rw kernel sendfile copy splice tee vmsplice uring aio",
            "other",
            field,
        ),
        ("map", "prot") => json!(number("prot") & 7),
        ("protect", "prot") => json!(number("arg") & 7),
        (_, "direct" | "dontunmap") => json!(number("flags") & 1),
        ("gup", "write") => json!(number("arg") & 1),
        ("gup", "long_term") => json!(number("arg") >> 1 & 1),
        ("gup" | "swap_in", "pfn") => own["new_pfn"].clone(),
        ("swap_out", "pfn") => own["old_pfn"].clone(),
        (_, "area") => json!(number("arg") >> 56),
        (_, "slot") => json!(number("arg") & ((1 << 56) - 1)),
        (_, "advice") => own["arg"].clone(),
        ("truncate", "length") => own["offset"].clone(),
        ("delete", "length") => own["bytes"].clone(),
        (_, "tests") => own["nr_tests"].clone(),
        (_, "name" | "path" | "expr") => own["text"].clone(),
        _ => {
            let field = field.strip_prefix("task_").unwrap_or(field);
            own[field.strip_suffix("_ns").unwrap_or(field)].clone()
        }
    }
}

/// Demands that postproc gives an event's own fields as they are.
fn gives(e: &Event<'_>, own: &Value) {
    let mut members = Members::default();
    e.said().fields(&mut members);
    let members: Value = serde_json::from_str(&members.to_string()).unwrap();
    for (field, value) in members.as_object().unwrap() {
        let wanted = given(e.name(), field, own);
        assert_eq!(*value, wanted, "{field} of {}: {own}", e.name());
    }
}

fn event(e: &Event<'_>, trace: &Trace, page: &Page) -> Value {
    let own = own(e, page);
    gives(e, &own);
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
        "own": own,
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
    let page = Page::new();
    loop {
        batch.clear();
        let step = merge.fill(&mut batch, 100).unwrap();
        all.extend(batch.iter().map(|r| reference(r, &trace)));
        match step {
            Step::Full => {}
            Step::Event(e) => all.push(event(&e, &trace, &page)),
            Step::End => break,
        }
    }
    let damage = trace.index().damage.len() + merge.take_damage().count();
    (all, damage)
}

/// A record of the reader, without the size of events.
fn kept(mut record: Value) -> Value {
    if let Some(record) = record.as_object_mut() {
        record.remove("size");
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
fn payload(number: u32, page: &Page) -> Vec<u8> {
    const NAME: &[u8] = b"a \xff name";
    let layout = page.layout_of(number).unwrap_or_default();
    let mut bytes: Vec<u8> = (1..=size_of_rows(layout) as u8).collect();
    if number == uapi::VMTRACE_EV_MAP {
        // A page has no size of any number of bits.
        bytes[offset_of!(uapi::vmtrace_ev_map, flags) + 1] = 0x15;
    }
    if let Some(length) = layout.iter().find(|row| row.is_length_of_text()) {
        let value = (NAME.len() as u32).to_le_bytes();
        bytes[length.at..length.at + length.size].copy_from_slice(&value);
        bytes.extend_from_slice(NAME);
    }
    bytes
}

/// A trace with each type of event, and with one that nobody knows.
fn of_all_events(vtime: bool) -> Vec<u8> {
    let mut b = TraceBuilder::new(2, 4);
    if vtime {
        b.virtual_time(1000);
    }
    let page = Page::new();
    for round in 0..3 {
        for number in page.layouts.keys() {
            b.event(round & 1, 10, 1, *number, &payload(*number, &page));
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
struct Row {
    at: usize,
    size: usize,
    kind: String,
    field: String,
    meaning: String,
}

impl Row {
    fn is_length_of_text(&self) -> bool {
        self.field.ends_with("_len") && self.size == 4
    }

    fn line(&self) -> String {
        let Row {
            at,
            size,
            kind,
            field,
            meaning,
        } = self;
        format!("| {at} | {size} | {kind} | `{field}` | {meaning} |")
    }
}

fn cells(row: &str) -> Vec<&str> {
    let row = row.trim();
    let row = row.strip_prefix('|').unwrap_or(row);
    let row = row.strip_suffix('|').unwrap_or(row);
    row.split('|').map(str::trim).collect()
}

/// The layouts that the page has, by the names of their structures.
fn tables(text: &str) -> BTreeMap<String, Vec<Row>> {
    let mut all = BTreeMap::new();
    for part in text.split("<!-- layout: ").skip(1) {
        let (name, rest) = part.split_once(" -->").unwrap();
        let rows = table(rest, "").into_iter().map(|cells| {
            assert_eq!(cells.len(), 5, "{name}: {cells:?}");
            Row {
                at: cells[0].parse().unwrap(),
                size: cells[1].parse().unwrap(),
                kind: cells[2].into(),
                field: cells[3].trim_matches('`').into(),
                meaning: cells[4].into(),
            }
        });
        all.insert(name.to_owned(), rows.collect());
    }
    all
}

fn size_of_rows(rows: &[Row]) -> usize {
    rows.last().map_or(0, |last| last.at + last.size)
}

/// What the page says of events: the fields of each type.
struct Page {
    tables: BTreeMap<String, Vec<Row>>,
    /// By type, the name of the structure; of an event without fields, none.
    layouts: BTreeMap<u32, Option<String>>,
}

impl Page {
    fn new() -> Self {
        let text = document();
        let layout = |cell: &str| (cell != "none").then(|| format!("vmtrace_{cell}"));
        let rows = table(&text, TYPES);
        let rows = rows.iter();
        Page {
            tables: tables(&text),
            layouts: rows
                .map(|row| (row[0].parse().unwrap(), layout(row[2])))
                .collect(),
        }
    }

    /// `None` of an unknown type, and of one without fields.
    fn layout_of(&self, number: u32) -> Option<&[Row]> {
        let name = self.layouts.get(&number)?.as_ref()?;
        Some(&self.tables[name])
    }
}

/// What comes before the tables of events.
const TYPES: &str = "### Types of events";
const CLASSES: &str = "### Classes of events";
/// What comes behind the last structure of an event.
const BEHIND: &str = "### Snapshots and checkpoints";

/// In the head of a packet: `set`, in packets of references.
const UNION: &str = "__bindgen_anon_1";

/// The header in C, and what bindgen makes of it.
struct Header {
    c: String,
    rust: String,
}

impl Header {
    fn new() -> Self {
        let read = |path| fs::read_to_string(top().join("rust-mm-trace").join(path)).unwrap();
        Header {
            c: read("uapi/linux/vmtrace.h"),
            rust: read("src/uapi.rs"),
        }
    }

    /// Bytes of a type in Rust.
    fn size_of(&self, kind: &str) -> usize {
        if let Some((one, count)) = kind.strip_prefix('[').and_then(|k| k.split_once("; ")) {
            let count: usize = count.strip_suffix("usize]").unwrap().parse().unwrap();
            return count * self.size_of(one);
        }
        let bits = kind.strip_prefix("__u").or(kind.strip_prefix("__s"));
        match bits.and_then(|bits| bits.parse::<usize>().ok()) {
            Some(bits) => bits / 8,
            None if kind.ends_with("::c_char") => 1,
            None => self.size_of_structure(kind),
        }
    }

    /// What bindgen asserts.
    fn size_of_structure(&self, name: &str) -> usize {
        let found = self.rust.split(&format!("\"Size of {name}\"")).nth(1);
        let size = found.and_then(|rest| rest.split(" - ").nth(1)?.split("usize").next());
        size.unwrap_or_else(|| panic!("the header has no {name}"))
            .parse()
            .unwrap()
    }

    /// The fields of a structure, without meanings. There is no room between them.
    fn layout(&self, name: &str) -> Vec<Row> {
        let rest = self.rust.split(&format!("pub struct {name} {{")).nth(1);
        let (fields, _) = rest.unwrap().split_once('}').unwrap();
        let mut at = 0;
        let fields = fields
            .lines()
            .filter_map(|line| line.trim().strip_prefix("pub "));
        let rows: Vec<Row> = fields
            .map(|field| {
                let (field, kind) = field.trim_end_matches(',').split_once(": ").unwrap();
                let size = self.size_of(kind);
                at += size;
                Row {
                    at: at - size,
                    size,
                    kind: match kind.strip_prefix("__") {
                        Some(kind) => kind.replace('s', "i"),
                        // The union is of numbers.
                        None if field == UNION => "u64".into(),
                        None => format!("u8[{size}]"),
                    },
                    field: match field {
                        UNION => "set".into(),
                        field => field.trim_end_matches('_').into(),
                    },
                    meaning: String::new(),
                }
            })
            .collect();
        assert_eq!(at, self.size_of_structure(name), "{name}");
        rows
    }

    /// The structure of an event, by the comment of its number.
    fn structure(&self, event: &str) -> Option<&str> {
        let name = format!("#define VMTRACE_EV_{event}");
        let mut lines = self.c.lines();
        let line = lines.find(|line| line.split_whitespace().take(2).eq(name.split(' ')));
        let (_, comment) = line.unwrap().split_once("/* struct ")?;
        comment.split_whitespace().next()
    }

    /// What the comment of a structure says of it, or of a field.
    fn comment(&self, name: &str, of: &str) -> String {
        let comment = self.c.split(&format!(" * struct {name} - ")).nth(1);
        let comment = comment.and_then(|rest| rest.split("*/").next());
        let mut found = Vec::new();
        let mut is_of = of.is_empty();
        for line in comment.unwrap_or_default().lines() {
            let line = line.trim_start_matches(" *").trim();
            if let Some(field) = line.strip_prefix('@') {
                let (field, rest) = field.split_once(':').unwrap_or((field, ""));
                is_of = field == of;
                found.extend(is_of.then(|| rest.trim()));
            } else if line.is_empty() {
                is_of = false;
            } else if is_of {
                found.push(line);
            }
        }
        found.join(" ")
    }
}

/// A text with other rows in the table that comes behind some words.
fn with_rows(text: &str, before: &str, rows: &[String]) -> String {
    let (begin, rest) = text.split_once(before).unwrap();
    let (head, rest) = rest.split_once("|---|").unwrap();
    let (rule, rest) = rest.split_once('\n').unwrap();
    let old = rest.split_inclusive('\n');
    let old: usize = old
        .take_while(|line| line.starts_with('|'))
        .map(str::len)
        .sum();
    let (rows, rest) = (rows.join("\n"), &rest[old..]);
    format!("{begin}{before}{head}|---|{rule}\n{rows}\n{rest}")
}

/// The page, made of what it has and of the header: numbers, names, offsets and sizes are those of the header.
/// What the page says of a field or an event stays; what it does not have gets the words of the header.
fn made_of(page: &str, header: &Header) -> String {
    let mut made = page.to_owned();
    let known = rust_mm_trace::events::ALL;
    let old = table(page, TYPES);
    let mut types: Vec<(u32, String)> = Vec::new();
    for (number, name, _) in known {
        let name = name.to_uppercase();
        let layout = header.structure(&name);
        let old = old.iter().find(|row| row[0] == number.to_string());
        let (text, meaning) = match (old, layout) {
            (Some(row), _) => (row[3].to_owned(), row[4].to_owned()),
            (None, Some(layout)) => (String::new(), header.comment(layout, "")),
            (None, None) => Default::default(),
        };
        let text = if text.is_empty() {
            text
        } else {
            format!("{text} ")
        };
        let layout = layout.map_or("none", |layout| layout.strip_prefix("vmtrace_").unwrap());
        let row = format!("| {number} | {name} | {layout} | {text}| {meaning} |");
        types.push((*number, row));
        let head = format!("<!-- layout: vmtrace_{layout} -->\n");
        if layout != "none" && !made.contains(&head) {
            let new = format!(
                "{layout}:\n\n{head}\n| offset | size | type | field | meaning |\n|---|---|---|---|---|\n\n{BEHIND}"
            );
            made = made.replacen(BEHIND, &new, 1);
        }
    }
    types.sort();
    let types: Vec<String> = types.into_iter().map(|(_, row)| row).collect();
    made = with_rows(&made, TYPES, &types);
    let classes = (0..32).filter_map(|bit| {
        let of_class = known.iter().filter(|(.., class)| *class == 1 << bit);
        let names: Vec<String> = of_class.map(|(_, name, _)| name.to_uppercase()).collect();
        (!names.is_empty()).then(|| format!("| {bit} | {} |", names.join(", ")))
    });
    made = with_rows(&made, CLASSES, &classes.collect::<Vec<_>>());
    for (name, old) in tables(&made) {
        // Kernels know nothing of parts.
        if name == "part" {
            continue;
        }
        let rows = header.layout(&name).into_iter().map(|row| {
            let old = old.iter().find(|old| old.field == row.field);
            let meaning = match (old, &row.field[..]) {
                (Some(old), _) => old.meaning.clone(),
                (None, "pad") => "0".into(),
                (None, field) => header.comment(&name, field),
            };
            Row { meaning, ..row }.line()
        });
        let rows: Vec<String> = rows.collect();
        made = with_rows(&made, &format!("<!-- layout: {name} -->"), &rows);
    }
    made
}

/// Structures of the header that are in files, apart from those of events.
const OTHERS: [&str; 10] = [
    "header",
    "packet",
    "ref",
    "packed",
    "event",
    "sampling",
    "window",
    "status",
    "piece",
    "piece_end",
];

/// `KVMTRACE_ACCEPT=1` writes what differs.
#[test]
fn the_tables_of_the_page_are_those_of_the_header() {
    let mut page = document();
    let made = made_of(&page, &Header::new());
    if std::env::var_os(ACCEPT).is_some_and(|word| !word.is_empty()) && made != page {
        fs::write(top().join("docs/format.md"), &made).unwrap();
        page = made.clone();
    }
    let mut lines = page.lines().zip(made.lines());
    let differs = lines.find(|(page, made)| page != made);
    assert!(
        page == made,
        "docs/format.md is not what the header says; {ACCEPT}=1 writes it. The first line: {differs:?}"
    );
    let tables = tables(&page);
    let others = OTHERS.map(|name| format!("vmtrace_{name}"));
    let missing: Vec<_> = others.iter().filter(|n| !tables.contains_key(*n)).collect();
    assert!(missing.is_empty(), "the page lacks {missing:?}");
    for (name, rows) in &tables {
        let mut at = 0;
        for row in rows {
            let field = &row.field;
            assert_eq!(row.at, at, "{name}: {field}");
            assert!(!row.meaning.is_empty(), "{name}: {field} has no meaning");
            at += row.size;
        }
    }
}

/// The control: what is missing or wrong is made anew, and what the page says remains.
#[test]
fn a_table_that_differs_is_made_anew() {
    let (page, header) = (document(), Header::new());
    let good = made_of(&page, &header);
    for (from, to) in [
        ("| 80 | GUP |", "| 79 | GUP |"),
        ("| GUP | ev_page |", "| GUP | ev_range |"),
        ("| 3 | GUP |", "| 3 | GUP, MAP |"),
        (
            "| 16 | 8 | u64 | `new_pfn` |",
            "| 16 | 4 | u32 | `new_pfn` |",
        ),
        (
            "| 24 | 8 | u64 | `child_start` |",
            "| 24 | 8 | u64 | `start` |",
        ),
    ] {
        assert!(page.contains(from), "{from}");
        let changed = page.replace(from, to);
        let made = made_of(&changed, &header);
        assert!(made != changed, "{from}");
        // Only words may be lost.
        let numbers = |text: &str| {
            let row = |line: &str| line.rsplitn(3, '|').last().unwrap_or_default().to_owned();
            text.lines().map(row).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&made), numbers(&good), "{from}");
    }
    // A structure that the page does not have.
    let (begin, rest) = page.split_once("ev_resize:\n").unwrap();
    let (_, rest) = rest.split_once("ev_set:\n").unwrap();
    let made = made_of(&format!("{begin}ev_set:\n{rest}"), &header);
    let rows = "| 0 | 4 | u32 | `from` | what it was |\n| 4 | 4 | u32 | `to` | what it will be |\n\n### Snap";
    assert!(made.contains(rows), "{made}");
}

/// The rows of a table: from the heading or words that come before it.
fn table<'t>(text: &'t str, before: &str) -> Vec<Vec<&'t str>> {
    let (_, rest) = text
        .split_once(before)
        .unwrap_or_else(|| panic!("no {before:?}"));
    let rows = rest.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(cells).collect()
}

#[test]
fn the_numbers_of_the_page_are_those_of_the_code() {
    let text = document();
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
