//! `oracleGeneral`: libCacheSim's binary format with the time of next use.
//!
//! 24 bytes a request, little-endian, packed, no header:
//!
//! | bytes | field | here |
//! |---|---|---|
//! | 0..4 | u32 time | whole seconds of the trace clock since the trace's start |
//! | 4..12 | u64 object | page number |
//! | 12..16 | u32 size | 1: sizes of caches are then in pages |
//! | 16..24 | i64 next access | index, from 1, of the page's next reference; -1 if there is none |

use byteorder::{ByteOrder, LittleEndian as LE};

use super::next_use::{Layout, NextUse, Request};
use super::{FormatEntry, Make};

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "oracleGeneral",
    about: "for libCacheSim: binary, with the time of next use",
    make: Make::File(|context| NextUse::boxed(context, LAYOUT)),
};

const LAYOUT: Layout = Layout {
    header: |_| Vec::new(),
    record_size: 24,
    record: |request, to| request_24(request, -1, to),
};

/// The record that oracleGeneral and lcs share, but for what stands for "never".
pub(super) fn request_24(request: &Request, never: i64, to: &mut [u8]) {
    LE::write_u32(&mut to[0..], request.time_s);
    LE::write_u64(&mut to[4..], request.page.into());
    LE::write_u32(&mut to[12..], 1);
    let next = request.next.and_then(|next| i64::try_from(next).ok());
    LE::write_i64(&mut to[16..], next.unwrap_or(never));
}
