//! The metadata of `ctf2`: a JSON text sequence that describes the data streams.
//!
//! After CTF2-SPEC-2.0 (diamon.org/ctf), whose metadata stream is a JSON text sequence by RFC 7464: each
//! fragment is a JSON object between a record separator and a line feed. The order is that of the
//! specification: the preamble, the trace class, the clock class, the data stream classes, and the event
//! record classes behind the class of their stream. [`super::ctf`] writes the data streams, which are
//! those of version 1.8.

use serde_json::{Value, json};

use super::ctf::{FREED_ID, REF_ID};
use crate::trace::{Event, Fields, Header, MapKind, Why};
use crate::units::Access;

/// The id of the only clock class.
const CLOCK: &str = "monotonic";
/// The data stream classes: those of references, of kernel events, and of freed pages.
const REFERENCES: u64 = 0;
const EVENTS: u64 = 1;
const FREED: u64 = 2;

/// The kinds of mappings, by number.
const KINDS: [&str; 7] = [
    "anon", "file", "shmem", "device", "special", "hugetlb", "unknown",
];

/// Member classes of a structure.
#[derive(Default)]
struct Members(Vec<Value>);

/// A field class of an unsigned number of so many bits.
fn unsigned(bits: u32) -> Value {
    json!({
        "type": "fixed-length-unsigned-integer",
        "length": bits,
        "alignment": 8,
        "byte-order": "little-endian",
    })
}

/// The same, which is shown in hexadecimal.
fn hexadecimal() -> Value {
    let mut class = unsigned(64);
    class["preferred-display-base"] = json!(16);
    class
}

/// The same of a byte, whose values have these names, from 0 on.
fn named<'a>(names: impl Iterator<Item = &'a str>) -> Value {
    let mut class = unsigned(8);
    let mappings = (0..).zip(names).map(|(number, name): (u64, &str)| {
        let range = json!([[number, number]]);
        (name.to_string(), range)
    });
    class["mappings"] = Value::Object(mappings.collect());
    class
}

/// The same, which has a meaning to the reader.
fn with_role(mut class: Value, role: &str) -> Value {
    class["roles"] = json!([role]);
    class
}

impl Members {
    fn add(&mut self, name: &str, class: Value) {
        self.0.push(json!({"name": name, "field-class": class}));
    }

    fn structure(self) -> Value {
        json!({"type": "structure", "member-classes": self.0})
    }
}

impl Fields for Members {
    fn u64(&mut self, name: &str, _: u64) {
        self.add(name, unsigned(64));
    }
    fn hex(&mut self, name: &str, _: u64) {
        self.add(name, hexadecimal());
    }
    fn u32(&mut self, name: &str, _: u32) {
        self.add(name, unsigned(32));
    }
    fn i32(&mut self, name: &str, _: i32) {
        let mut class = unsigned(32);
        class["type"] = json!("fixed-length-signed-integer");
        self.add(name, class);
    }
    fn u8(&mut self, name: &str, _: u8) {
        self.add(name, unsigned(8));
    }
    fn kind(&mut self, name: &str, _: MapKind) {
        self.add(name, named(KINDS.into_iter()));
    }
    fn text(&mut self, name: &str, _: &[u8]) {
        self.add(name, json!({"type": "null-terminated-string"}));
    }
}

/// A fragment of the sequence.
fn fragment(value: &Value) -> String {
    format!("\u{1e}{value}\n")
}

fn event_record_class(stream: u64, id: u16, name: &str, payload: Members) -> String {
    fragment(&json!({
        "type": "event-record-class",
        "data-stream-class-id": stream,
        "id": id,
        "name": name,
        "payload-field-class": payload.structure(),
    }))
}

/// The class of a kernel event.
pub fn kernel_event(name: &str, event: &Event<'_>) -> String {
    let mut payload = Members::default();
    event.said().fields(&mut payload);
    event_record_class(EVENTS, event.number, name, payload)
}

fn data_stream_class(id: u64, name: &str, common: Option<Members>) -> String {
    let mut context = Members::default();
    for (member, bits, role) in [
        ("timestamp_begin", 64, Some("default-clock-timestamp")),
        (
            "timestamp_end",
            64,
            Some("packet-end-default-clock-timestamp"),
        ),
        ("content_size", 64, Some("packet-content-length")),
        ("packet_size", 64, Some("packet-total-length")),
        (
            "events_discarded",
            64,
            Some("discarded-event-record-counter-snapshot"),
        ),
        ("cpu_id", 32, None),
    ] {
        let class = unsigned(bits);
        context.add(
            member,
            match role {
                Some(role) => with_role(class, role),
                None => class,
            },
        );
    }
    let mut header = Members::default();
    header.add("id", with_role(unsigned(16), "event-record-class-id"));
    let time = with_role(unsigned(64), "default-clock-timestamp");
    header.add("timestamp", time);
    let mut class = json!({
        "type": "data-stream-class",
        "id": id,
        "name": name,
        "default-clock-class-id": CLOCK,
        "packet-context-field-class": context.structure(),
        "event-record-header-field-class": header.structure(),
    });
    if let Some(common) = common {
        class["event-record-common-context-field-class"] = common.structure();
    }
    fragment(&class)
}

fn reference(header: &Header) -> Members {
    let mut to = Members::default();
    to.u64("seq", 0);
    to.hex("address", 0);
    // 2^64 - 1: longer than a trace can say.
    to.u64("stay_ns", 0);
    if header.has_vtime() {
        to.u64("vtime", 0);
    }
    for name in ["page", "mm", "tid", "pfn"] {
        to.u32(name, 0);
    }
    let access = [Access::Read, Access::Write, Access::Exec, Access::Seen];
    to.add("access", named(access.iter().map(|a| a.name())));
    for name in ["kernel", "dirtied", "again"] {
        to.u8(name, 0);
    }
    to.add("why", named(Why::ALL.iter().map(|why| why.name())));
    to
}

/// All of the metadata but the kernel's events, which may follow.
pub fn metadata(header: &Header) -> String {
    let mut packet = Members::default();
    packet.add("magic", with_role(unsigned(32), "packet-magic-number"));
    let uuid = json!({"type": "static-length-blob", "length": 16});
    packet.add("uuid", with_role(uuid, "metadata-stream-uuid"));
    packet.add("stream_id", with_role(unsigned(32), "data-stream-class-id"));
    let offset_s = header.realtime_offset_ns.div_euclid(1_000_000_000);
    let offset = header.realtime_offset_ns.rem_euclid(1_000_000_000);
    let mut common = Members::default();
    common.u64("seq", 0);
    for name in ["tid", "tgid", "mm"] {
        common.u32(name, 0);
    }
    common.u8("snapshot", 0);
    if header.has_vtime() {
        // Ticks of the task's virtual time; 2^64 - 1 if an event has none.
        common.u64("vtime", 0);
    }
    let mut freed = Members::default();
    freed.u64("seq", 0);
    for name in ["page", "tid", "tgid", "mm"] {
        freed.u32(name, 0);
    }
    [
        fragment(&json!({"type": "preamble", "version": 2, "uuid": header.uuid.0})),
        fragment(&json!({
            "type": "trace-class",
            "uid": header.uuid.to_string(),
            "packet-header-field-class": packet.structure(),
            "environment": {
                "tracer_name": "kvmtrace",
                "kernel_release": header.release,
                "architecture": header.arch,
                "scope": header.scope_text(),
                "evms_size": header.evms_size,
                "sets": header.sets.text(),
                "page_size": header.page_size(),
            },
        })),
        fragment(&json!({
            "type": "clock-class",
            "id": CLOCK,
            "name": CLOCK,
            "description": "CLOCK_MONOTONIC",
            "frequency": 1_000_000_000,
            "origin": "unix-epoch",
            "offset-from-origin": {"seconds": offset_s, "cycles": offset},
        })),
        data_stream_class(REFERENCES, "references", None),
        data_stream_class(EVENTS, "events", Some(common)),
        data_stream_class(FREED, "freed", None),
        event_record_class(FREED, FREED_ID, "freed", freed),
        event_record_class(REFERENCES, REF_ID, "ref", reference(header)),
    ]
    .concat()
}
