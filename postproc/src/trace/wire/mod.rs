//! Decoding of the structures of `vmtrace.h`.
//!
//! Bytes are read as the structures that bindgen makes of the header, so they always agree with the
//! header. Only a field of a structure of which nothing else is needed is read by its offset.
//! No length in the file is trusted: each read is from a slice whose size is checked.

#[cfg(target_endian = "big")]
compile_error!("traces are little-endian, and postproc reads them without turning bytes around");

/// A field of a structure, by its offset.
macro_rules! get {
    ($b:expr, $t:ty, $f:ident, u64) => {
        LE::read_u64(&$b[offset_of!($t, $f)..])
    };
    ($b:expr, $t:ty, $f:ident, i64) => {
        LE::read_i64(&$b[offset_of!($t, $f)..])
    };
    ($b:expr, $t:ty, $f:ident, u32) => {
        LE::read_u32(&$b[offset_of!($t, $f)..])
    };
    ($b:expr, $t:ty, $f:ident, i32) => {
        LE::read_i32(&$b[offset_of!($t, $f)..])
    };
    ($b:expr, $t:ty, $f:ident, u16) => {
        LE::read_u16(&$b[offset_of!($t, $f)..])
    };
}

/// A structure that shows one of the header. Each field is listed once: its name, its type, and what it is
/// made of, which is the field of the same name in the header if nothing else is said.
macro_rules! view {
    (@ $same:expr) => { $same };
    (@ $same:expr, $value:expr) => { $value };
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident of |$raw:ident: $uapi:ty $(, $arg:ident: $type_of_arg:ty)*| {
            $($(#[$of_field:meta])* $seen:vis $field:ident: $type:ty $(= $value:expr)?,)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$of_field])* $seen $field: $type,)*
        }

        impl $name {
            fn of($raw: &$uapi $(, $arg: $type_of_arg)*) -> Self {
                $name { $($field: view!(@ $raw.$field $(, $value)?),)* }
            }
        }
    };
}
pub(super) use view;

mod body;
mod event;
mod header;
mod packet;
mod reference;
mod status;

use std::ffi::c_char;

pub(crate) use rust_mm_trace::stay::NO_OFFSET;
use rust_mm_trace::uapi;
use serde::Serialize;
use zerocopy::FromBytes;

pub use body::{
    Body, Call, FileBody, FileId, FileKind, FrameBody, IoBody, MapBody, MapKind, Place, RegionBody,
    ShmBody, SwapBody,
};
pub use event::{Event, NoNews, event_fields, event_name, event_names};
pub(crate) use event::{NO_VTIME, decode_event, peek_event_seq, peek_event_time};
#[cfg(any(test, feature = "testing"))]
pub(crate) use header::KEEPLEFT;
pub(crate) use header::KNOWN_FEATURES;
pub use header::{Header, SampledBy, Sampling, Sets, WindowPlan};
pub(crate) use packet::{EARLY_NS, packet_crc, packet_magic, packet_uuid};
pub use packet::{PacketHead, StreamId, StreamKind, mend_checksums};
pub use reference::{Ref, RefFlags, Why};
pub use status::{Status, WindowAccount, WindowEnd};

/// Bytes of a packet's head.
pub const HEAD_SIZE: usize = size_of::<uapi::vmtrace_packet>();
/// Bytes of a reference record.
pub const REF_SIZE: usize = size_of::<uapi::vmtrace_ref>();
/// Bytes of an event record's head.
pub const EVENT_SIZE: usize = size_of::<uapi::vmtrace_event>();
/// Bytes of the virtual time that follows a reference record or an event's head, if the trace
/// has virtual time.
pub const VTIME_SIZE: usize = size_of::<u64>();
/// Bytes of the offset that ends a reference record, if the trace has offsets.
pub const OFFSET_SIZE: usize = size_of::<u64>();
/// Bytes of the trace header.
pub const HEADER_SIZE: usize = uapi::VMTRACE_HEADER_SIZE as usize;

/// No time in ns, sequence number or user address is larger than this, so the sum of two of
/// them does not overflow.
pub(crate) const MOST: u64 = u64::MAX >> 1;

/// An identity of a trace, shown as hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Uuid(pub [u8; 16]);

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl Serialize for Uuid {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// The structure at the start of `b`; `None` if `b` is shorter.
pub(super) fn read<T: FromBytes>(b: &[u8]) -> Option<T> {
    T::read_from_prefix(b).ok().map(|(raw, _)| raw)
}

/// A text that ends at the first NUL, or with its field.
fn text(field: &[c_char]) -> String {
    let field: Vec<u8> = field.iter().map(|&c| c as u8).collect();
    let end = field.iter().position(|&c| c == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}
