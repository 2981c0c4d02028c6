//! `ctf` and `ctf2`: a directory in the Common Trace Format 1.8 or 2, for babeltrace2, Trace
//! Compass and others.
//!
//! After "Common Trace Format (CTF) specification, v1.8.3" (diamon.org/ctf/v1.8.3), and
//! CTF2-SPEC-2.0. `metadata` describes the rest: in version 1.8 in the format's own language, in
//! version 2 in JSON (see [`super::ctf2`]). The other files are the same; `ref_N` holds the
//! references of CPU N, `event_N` the kernel events of CPU N, and `freed_N` the pages that
//! these events freed. All fields are little-endian and aligned to bytes. Times are those of the trace clock, whose
//! offset from the Unix epoch the metadata states.
//!
//! - A reference is an event `ref`: sequence number, page number, virtual
//!   address, access, whether the kernel made it, whether a store to the
//!   page was made or begun in this stay, length and end of the stay, thread, address
//!   space, frame; and the task's virtual time, if the trace has it, as kernel events do.
//! - A kernel event has its own name and fields, and in common: sequence number,
//!   thread, process, address space, and whether it describes what existed
//!   before.
//! - A page that is freed is an event `freed`, with the time, `seq`, thread, process and address
//!   space of the kernel event that freed it. No reference to that page number follows. With
//!   `--keep-freed` there is no such event.
//! - A packet's `events_discarded` is the loss that the trace's own packets count;
//!   readers report it.
//!
//! Memory holds one packet a stream.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::ctf2;
use super::{DirectoryExporter, FormatEntry, FreedBy, Make};
use crate::error::{Error, OutputContext, Result};
use crate::pipeline::{Batch, Outcome, World};
use crate::trace::{Event, Fields, Header, MapKind, PacketSeen, StreamKind, Why};
use crate::units::{Access, CanonPage};

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "ctf",
    about: "for babeltrace2 and Trace Compass: Common Trace Format 1.8; a directory",
    make: Make::Directory(|directory, _| Ok(Box::new(Ctf::new(directory, Version::One)))),
};

pub(super) const ENTRY_2: FormatEntry = FormatEntry {
    id: "ctf2",
    about: "for babeltrace2 from 2.1 on: Common Trace Format 2; a directory",
    make: Make::Directory(|directory, _| Ok(Box::new(Ctf::new(directory, Version::Two)))),
};

/// Which language the metadata is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    /// Version 1.8.
    One,
    /// Version 2.
    Two,
}

const MAGIC: u32 = 0xc1fc_1fc1;
/// Magic, identity, stream class.
const PACKET_HEADER: usize = 4 + 16 + 4;
/// First and last time, size of the content and of the packet, loss, CPU.
const PACKET_CONTEXT: usize = 5 * 8 + 4;
/// Bytes of content at which a packet is written.
const PACKET_FULL: usize = 1 << 18;
/// The only event of references' streams.
pub(super) const REF_ID: u16 = 0;
/// The only event of the streams of freed pages.
pub(super) const FREED_ID: u16 = 0;

/// What a stream contains; as a number, the `stream_id` of the metadata.
///
/// Freed pages have streams of their own, so their event cannot have the number of a kernel
/// event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    References,
    Events,
    Freed,
}

impl Class {
    fn of(kind: StreamKind) -> Self {
        match kind {
            StreamKind::Ref => Class::References,
            _ => Class::Events,
        }
    }

    /// How the names of its files begin.
    fn name(self) -> &'static str {
        match self {
            Class::References => "ref",
            Class::Events => "event",
            Class::Freed => "freed",
        }
    }
}

/// A stream's class and CPU.
type StreamId = (Class, u32);

/// A stream being written.
struct Stream {
    file: File,
    name: String,
    id: StreamId,
    content: Vec<u8>,
    first_ns: u64,
    last_ns: u64,
    discarded: u64,
}

impl Stream {
    /// Begins an event.
    fn event(&mut self, id: u16, seq: u64, time_ns: u64) -> Result<()> {
        if time_ns < self.last_ns {
            // The format has no place for it.
            return Err(Error::TimeGoesBack { seq });
        }
        if self.content.is_empty() {
            self.first_ns = time_ns;
        }
        self.last_ns = time_ns;
        self.content.extend_from_slice(&id.to_le_bytes());
        self.content.extend_from_slice(&time_ns.to_le_bytes());
        Ok(())
    }

    fn flush(&mut self, uuid: &[u8; 16]) -> Result<()> {
        if self.content.is_empty() {
            return Ok(());
        }
        let bits = 8 * (PACKET_HEADER + PACKET_CONTEXT + self.content.len()) as u64;
        let mut head = Vec::with_capacity(PACKET_HEADER + PACKET_CONTEXT);
        head.extend_from_slice(&MAGIC.to_le_bytes());
        head.extend_from_slice(uuid);
        head.extend_from_slice(&(self.id.0 as u32).to_le_bytes());
        for number in [self.first_ns, self.last_ns, bits, bits, self.discarded] {
            head.extend_from_slice(&number.to_le_bytes());
        }
        head.extend_from_slice(&self.id.1.to_le_bytes());
        self.file.write_all(&head).writing(&self.name)?;
        self.file.write_all(&self.content).writing(&self.name)?;
        self.content.clear();
        Ok(())
    }
}

/// Lines of a `struct` in the metadata.
impl Fields for String {
    fn u64(&mut self, name: &str, _: u64) {
        declare(self, "uint64_t", name);
    }
    fn hex(&mut self, name: &str, _: u64) {
        declare(self, "address_t", name);
    }
    fn u32(&mut self, name: &str, _: u32) {
        declare(self, "uint32_t", name);
    }
    fn i32(&mut self, name: &str, _: i32) {
        declare(self, "int32_t", name);
    }
    fn u8(&mut self, name: &str, _: u8) {
        declare(self, "uint8_t", name);
    }
    fn kind(&mut self, name: &str, _: MapKind) {
        declare(self, "enum map_kind", name);
    }
    fn text(&mut self, name: &str, _: &[u8]) {
        declare(self, "string", name);
    }
}

fn declare(to: &mut String, kind: &str, name: &str) {
    // An underscore keeps names clear of the language's words; readers drop it.
    let _ = writeln!(to, "\t\t{kind} _{name};");
}

/// Bytes of a packet.
impl Fields for Vec<u8> {
    fn u64(&mut self, _: &str, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn hex(&mut self, _: &str, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn u32(&mut self, _: &str, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn i32(&mut self, _: &str, value: i32) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn u8(&mut self, _: &str, value: u8) {
        self.push(value);
    }
    fn kind(&mut self, _: &str, value: MapKind) {
        self.push(value as u8);
    }
    fn text(&mut self, _: &str, value: &[u8]) {
        let end = value.iter().position(|&c| c == 0).unwrap_or(value.len());
        self.extend_from_slice(&value[..end]);
        self.push(0);
    }
}

struct Ctf {
    version: Version,
    directory: PathBuf,
    header: Option<Header>,
    streams: BTreeMap<StreamId, Stream>,
    /// Declarations of the events seen, by number.
    classes: BTreeMap<u16, String>,
    /// Losses counted by packets of streams that have had no record yet.
    discarded: BTreeMap<StreamId, u64>,
    uuid: [u8; 16],
    stay_shift: u32,
    vtime: bool,
}

impl Ctf {
    fn new(directory: &Path, version: Version) -> Self {
        Ctf {
            version,
            directory: directory.into(),
            header: None,
            streams: BTreeMap::new(),
            classes: BTreeMap::new(),
            discarded: BTreeMap::new(),
            uuid: [0; 16],
            stay_shift: 0,
            vtime: false,
        }
    }

    fn stream(&mut self, class: Class, cpu: u32) -> Result<&mut Stream> {
        let id = (class, cpu);
        match self.streams.entry(id) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let name = format!("{}_{cpu}", class.name());
                Ok(entry.insert(Stream {
                    file: File::create(self.directory.join(&name)).writing(&name)?,
                    name,
                    id,
                    content: Vec::with_capacity(PACKET_FULL + 4096),
                    first_ns: 0,
                    last_ns: 0,
                    discarded: self.discarded.get(&id).copied().unwrap_or(0),
                }))
            }
        }
    }
}

impl DirectoryExporter for Ctf {
    fn begin(&mut self, header: &Header) -> Result<()> {
        self.uuid = header.uuid.0;
        self.stay_shift = header.stay_shift;
        self.vtime = header.has_vtime();
        self.header = Some(header.clone());
        Ok(())
    }

    fn packet(&mut self, packet: &PacketSeen) -> Result<()> {
        let (stream, lost) = (packet.head.stream, packet.head.lost());
        let id = (Class::of(stream.kind), stream.cpu);
        if lost > 0 {
            self.discarded.insert(id, lost);
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.discarded = lost;
            }
        }
        Ok(())
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        let (uuid, shift, vtime) = (self.uuid, self.stay_shift, self.vtime);
        for (r, page) in batch.refs.iter().zip(batch.pages) {
            let stream = self.stream(Class::References, r.cpu())?;
            stream.event(REF_ID, r.seq, r.time_ns)?;
            let flags = r.flags();
            let b = &mut stream.content;
            for number in [r.seq, r.address()] {
                b.extend_from_slice(&number.to_le_bytes());
            }
            let stay = r.end_ns(shift).map_or(u64::MAX, |end| end - r.time_ns);
            b.extend_from_slice(&stay.to_le_bytes());
            if vtime {
                b.extend_from_slice(&r.vtime.to_le_bytes());
            }
            for number in [page.0, r.mm.0, r.tid().0, r.pfn] {
                b.extend_from_slice(&number.to_le_bytes());
            }
            b.extend_from_slice(&[
                flags.access() as u8,
                flags.kernel().into(),
                flags.dirtied().into(),
                flags.again().into(),
                flags.why() as u8,
            ]);
            if b.len() >= PACKET_FULL {
                stream.flush(&uuid)?;
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, _world: &World) -> Result<()> {
        let (uuid, vtime, version) = (self.uuid, self.vtime, self.version);
        self.classes.entry(event.number).or_insert_with(|| {
            let name = match event.name() {
                "unknown" => format!("unknown_{}", event.number),
                known => known.into(),
            };
            if version == Version::Two {
                return ctf2::kernel_event(&name, event);
            }
            let mut fields = String::new();
            event.said().fields(&mut fields);
            format!(
                "event {{\n\tname = \"{name}\";\n\tid = {};\n\tstream_id = 1;\n\t\
                 fields := struct {{\n{fields}\t}};\n}};\n\n",
                event.number
            )
        });
        let stream = self.stream(Class::Events, event.cpu)?;
        stream.event(event.number, event.seq, event.time_ns)?;
        let b = &mut stream.content;
        b.extend_from_slice(&event.seq.to_le_bytes());
        for number in [event.tid.0, event.tgid.0, event.mm.0] {
            b.extend_from_slice(&number.to_le_bytes());
        }
        b.push(event.is_snapshot().into());
        if vtime {
            let ticks = event.vtime.unwrap_or(u64::MAX);
            b.extend_from_slice(&ticks.to_le_bytes());
        }
        event.said().fields(b);
        if b.len() >= PACKET_FULL {
            stream.flush(&uuid)?;
        }
        Ok(())
    }

    fn freed(&mut self, pages: &[CanonPage], by: &FreedBy) -> Result<()> {
        let uuid = self.uuid;
        let stream = self.stream(Class::Freed, by.cpu)?;
        for page in pages {
            stream.event(FREED_ID, by.seq, by.time_ns)?;
            let b = &mut stream.content;
            b.extend_from_slice(&by.seq.to_le_bytes());
            for number in [page.0, by.tid.0, by.tgid.0, by.mm.0] {
                b.extend_from_slice(&number.to_le_bytes());
            }
            if b.len() >= PACKET_FULL {
                stream.flush(&uuid)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, _outcome: &Outcome) -> Result<()> {
        for stream in self.streams.values_mut() {
            stream.flush(&self.uuid)?;
        }
        if let Some(header) = &self.header {
            let mut text = match self.version {
                Version::One => metadata(header),
                Version::Two => ctf2::metadata(header),
            };
            text.extend(self.classes.values().map(String::as_str));
            std::fs::write(self.directory.join("metadata"), text).writing("metadata")?;
        }
        Ok(())
    }
}

/// `name = number` for an enumeration.
fn labels<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let pairs: Vec<String> = names
        .enumerate()
        .map(|(number, name)| format!("\"{name}\" = {number}"))
        .collect();
    pairs.join(", ")
}

/// A string literal.
fn quoted(text: &str) -> String {
    let plain = |c: &char| (' '..='~').contains(c) && !matches!(c, '"' | '\\');
    format!("\"{}\"", text.chars().filter(plain).collect::<String>())
}

/// All of the metadata but the kernel's events.
fn metadata(header: &Header) -> String {
    let access = [Access::Read, Access::Write, Access::Exec, Access::Seen];
    let access = labels(access.iter().map(|a| a.name()));
    let why = labels(Why::ALL.iter().map(|why| why.name()));
    let kinds = labels(
        [
            "anon", "file", "shmem", "device", "special", "hugetlb", "unknown",
        ]
        .into_iter(),
    );
    // Ticks of the task's virtual time; 2^64 - 1 if an event has none.
    let vtime = match header.has_vtime() {
        true => "\n\t\tuint64_t _vtime;",
        false => "",
    };
    let uuid = header.uuid;
    let offset_s = header.realtime_offset_ns.div_euclid(1_000_000_000);
    let offset = header.realtime_offset_ns.rem_euclid(1_000_000_000);
    let release = quoted(&header.release);
    let arch = quoted(&header.arch);
    let scope = quoted(&header.scope_text());
    let (evms_size, page_size) = (header.evms_size, header.page_size());
    let sets = quoted(header.sets.text());
    format!(
        r#"/* CTF 1.8 */

typealias integer {{ size = 8; align = 8; signed = false; }} := uint8_t;
typealias integer {{ size = 16; align = 8; signed = false; }} := uint16_t;
typealias integer {{ size = 32; align = 8; signed = false; }} := uint32_t;
typealias integer {{ size = 32; align = 8; signed = true; }} := int32_t;
typealias integer {{ size = 64; align = 8; signed = false; }} := uint64_t;
typealias integer {{ size = 64; align = 8; signed = false; base = 16; }} := address_t;

enum access : uint8_t {{ {access} }};
enum why : uint8_t {{ {why} }};
enum map_kind : uint8_t {{ {kinds} }};

trace {{
	major = 1;
	minor = 8;
	uuid = "{uuid}";
	byte_order = le;
	packet.header := struct {{
		uint32_t magic;
		uint8_t uuid[16];
		uint32_t stream_id;
	}};
}};

env {{
	tracer_name = "kvmtrace";
	kernel_release = {release};
	architecture = {arch};
	scope = {scope};
	evms_size = {evms_size};
	sets = {sets};
	page_size = {page_size};
}};

clock {{
	name = "monotonic";
	description = "CLOCK_MONOTONIC";
	freq = 1000000000;
	offset_s = {offset_s};
	offset = {offset};
}};

typealias integer {{
	size = 64; align = 8; signed = false;
	map = clock.monotonic.value;
}} := time_t;

struct packet_context {{
	time_t timestamp_begin;
	time_t timestamp_end;
	uint64_t content_size;
	uint64_t packet_size;
	uint64_t events_discarded;
	uint32_t cpu_id;
}};

struct event_header {{
	uint16_t id;
	time_t timestamp;
}};

stream {{
	id = 0;
	packet.context := struct packet_context;
	event.header := struct event_header;
}};

stream {{
	id = 1;
	packet.context := struct packet_context;
	event.header := struct event_header;
	event.context := struct {{
		uint64_t _seq;
		uint32_t _tid;
		uint32_t _tgid;
		uint32_t _mm;
		uint8_t _snapshot;{vtime}
	}};
}};

stream {{
	id = 2;
	packet.context := struct packet_context;
	event.header := struct event_header;
}};

event {{
	name = "freed";
	id = {FREED_ID};
	stream_id = 2;
	fields := struct {{
		uint64_t _seq;
		uint32_t _page;
		uint32_t _tid;
		uint32_t _tgid;
		uint32_t _mm;
	}};
}};

event {{
	name = "ref";
	id = {REF_ID};
	stream_id = 0;
	fields := struct {{
		uint64_t _seq;
		address_t _address;
		uint64_t _stay_ns; /* 2^64 - 1: longer than a trace can say */{vtime}
		uint32_t _page;
		uint32_t _mm;
		uint32_t _tid;
		uint32_t _pfn;
		enum access _access;
		uint8_t _kernel;
		uint8_t _dirtied;
		uint8_t _again;
		enum why _why;
	}};
}};

"#
    )
}
