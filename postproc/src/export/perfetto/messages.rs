//! The messages of Perfetto's protocol that an export needs, with the fields that it needs.
//!
//! After `protos/perfetto/trace/` of Perfetto (perfetto.dev/docs/reference/trace-packet-proto). A
//! trace is a sequence of packets, each of which is field 1 of the message `Trace`. Readers ignore
//! fields that are absent, so messages are as small as they can be.

use prost::{Enumeration, Message, Oneof};

/// `TracePacket`.
#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    /// ns on the clock of `timestamp_clock_id`.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// `BuiltinClock`; see [`MONOTONIC`].
    #[prost(uint32, optional, tag = "58")]
    pub timestamp_clock_id: Option<u32>,
    /// Which sequence of packets this is of; 0 is none.
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// What it has.
    #[prost(oneof = "Data", tags = "6, 11, 60")]
    pub data: Option<Data>,
}

/// `TracePacket.data`.
#[derive(Clone, PartialEq, Oneof)]
pub enum Data {
    /// What several clocks show at one moment.
    #[prost(message, tag = "6")]
    ClockSnapshot(ClockSnapshot),
    /// An event or a value on a track.
    #[prost(message, tag = "11")]
    TrackEvent(TrackEvent),
    /// A track.
    #[prost(message, tag = "60")]
    TrackDescriptor(TrackDescriptor),
}

/// `BUILTIN_CLOCK_REALTIME`.
pub const REALTIME: u32 = 1;
/// `BUILTIN_CLOCK_MONOTONIC`, the clock of a trace of kVMTrace.
pub const MONOTONIC: u32 = 3;

/// `ClockSnapshot`.
#[derive(Clone, PartialEq, Message)]
pub struct ClockSnapshot {
    /// Each clock.
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
    /// The clock by which a reader orders the trace.
    #[prost(uint32, optional, tag = "2")]
    pub primary_trace_clock: Option<u32>,
}

/// `ClockSnapshot.Clock`.
#[derive(Clone, PartialEq, Message)]
pub struct Clock {
    /// `BuiltinClock`.
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    /// ns.
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// `TrackDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    /// Its identity.
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    /// The track below which it is shown.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    /// What it is called.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// The process, of a track that stands for one.
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    /// Of a track of numbers.
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
    /// More about it.
    #[prost(string, optional, tag = "14")]
    pub description: Option<String>,
}

/// `ProcessDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessDescriptor {
    /// Its id.
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    /// The program.
    #[prost(string, repeated, tag = "2")]
    pub cmdline: Vec<String>,
    /// Its name.
    #[prost(string, optional, tag = "6")]
    pub process_name: Option<String>,
    /// When it was created, ns.
    #[prost(int64, optional, tag = "7")]
    pub start_timestamp_ns: Option<i64>,
}

/// `CounterDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct CounterDescriptor {
    /// What is counted.
    #[prost(string, optional, tag = "6")]
    pub unit_name: Option<String>,
}

/// `TrackEvent.Type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Enumeration)]
#[repr(i32)]
pub enum Type {
    /// None.
    Unspecified = 0,
    /// A slice begins.
    SliceBegin = 1,
    /// The innermost slice ends.
    SliceEnd = 2,
    /// A moment.
    Instant = 3,
    /// A number, until the next one of the track.
    Counter = 4,
}

/// `TrackEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    /// What it is.
    #[prost(enumeration = "Type", optional, tag = "9")]
    pub r#type: Option<i32>,
    /// Where it is shown.
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    /// What it is called.
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    /// What it belongs to.
    #[prost(string, repeated, tag = "22")]
    pub categories: Vec<String>,
    /// More about it.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    /// A whole number.
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
    /// Any number.
    #[prost(double, optional, tag = "44")]
    pub double_counter_value: Option<f64>,
}

/// `DebugAnnotation`.
#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    /// What the value is.
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
    /// The value.
    #[prost(oneof = "Value", tags = "3, 4, 6")]
    pub value: Option<Value>,
}

/// `DebugAnnotation.value`.
#[derive(Clone, PartialEq, Oneof)]
pub enum Value {
    /// A number.
    #[prost(uint64, tag = "3")]
    Uint(u64),
    /// A number that may be below 0.
    #[prost(int64, tag = "4")]
    Int(i64),
    /// Text.
    #[prost(string, tag = "6")]
    Text(String),
}
