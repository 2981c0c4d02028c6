//! `lcs`: libCacheSim's own binary format, version 1, and `lcs-v2` with the kind
//! of access and the process.
//!
//! After lcs.h of libCacheSim (Yang, Yue, Vinayak 2020, github.com/1a1a11a/libCacheSim).
//! Little-endian, packed. A header of 8,192 bytes:
//!
//! | bytes | field | here |
//! |---|---|---|
//! | 0..8 | u64 magic | 0x123456789abcdef0 |
//! | 8..16 | u64 version | 1 or 2 |
//! | 16..8016 | statistics | see [`header`]; what is not known of pages is 0 |
//! | 8016..8184 | unused | 0 |
//! | 8184..8192 | u64 magic | as above |
//!
//! Then records; version 1 is oracleGeneral's with another "never":
//!
//! | v1 | v2 | field | here |
//! |---|---|---|---|
//! | 0..4 | 0..4 | u32 time | whole seconds of the trace clock since the trace's start |
//! | 4..12 | 4..12 | u64 object | page number |
//! | 12..16 | 12..16 | u32 size | 1: sizes of caches are then in pages |
//! | | 16..17 | u8 operation | 12 read, 13 write (a store to the page was made or begun in this stay); never 9, delete |
//! | | 17..20 | u24 tenant | process id |
//! | 16..24 | 20..28 | i64 next access | index, from 1, of the page's next reference; 2^63 - 1 if there is none |
//!
//! No version says when pages are freed. libCacheSim's reader knows an operation "delete", but
//! its simulator does not look at operations (0.3.5, and the sources of 2024-10): it would
//! count a deletion as a reference and keep the page.

use byteorder::{ByteOrder, LittleEndian as LE};

use super::next_use::{Layout, NextUse, Totals};
use super::oracle_general::request_24;
use super::{FormatEntry, Make};

pub(super) const V1: FormatEntry = FormatEntry {
    id: "lcs",
    about: "for libCacheSim: as oracleGeneral, with a header of statistics",
    make: Make::File(|context| NextUse::boxed(context, LAYOUT_1)),
};

pub(super) const V2: FormatEntry = FormatEntry {
    id: "lcs-v2",
    about: "for libCacheSim: as lcs, with read or write, and the process",
    make: Make::File(|context| NextUse::boxed(context, LAYOUT_2)),
};

const LAYOUT_1: Layout = Layout {
    header: |totals| header(totals, 1),
    record_size: 24,
    record: |request, to| request_24(request, NEVER, to),
};

const LAYOUT_2: Layout = Layout {
    header: |totals| header(totals, 2),
    record_size: 28,
    record: |request, to| {
        request_24(request, NEVER, to);
        to.copy_within(16..24, 20);
        let operation = if request.write { OP_WRITE } else { OP_READ };
        LE::write_u32(&mut to[16..], operation | request.process << 8);
    },
};

const MAGIC: u64 = 0x1234_5678_9abc_def0;
const HEADER_SIZE: usize = 8192;
const NEVER: i64 = i64::MAX;
/// `req_op_e` of libCacheSim's enum.h.
const OP_READ: u32 = 12;
const OP_WRITE: u32 = 13;

/// Writes the version of the statistics; requests, objects and the bytes of both
/// (every page is of size 1); first and last second; reads, writes, deletions;
/// smallest and largest size; and, behind what is left 0, the tenants.
fn header(totals: &Totals, version: u64) -> Vec<u8> {
    const STATISTICS: usize = 16;
    const TENANTS: usize = STATISTICS + (10 + 26 + 33) * 8;
    let mut b = vec![0; HEADER_SIZE];
    LE::write_u64(&mut b[0..], MAGIC);
    LE::write_u64(&mut b[8..], version);
    let reads = totals.requests - totals.writes;
    let numbers = [
        1,
        totals.requests,
        totals.pages,
        totals.requests,
        totals.pages,
        totals.first_s.into(),
        totals.last_s.into(),
        reads,
        totals.writes,
        0,
        1,
        1,
    ];
    for (i, number) in numbers.into_iter().enumerate() {
        LE::write_u64(&mut b[STATISTICS + 8 * i..], number);
    }
    let tenants = if version == 1 { 1 } else { totals.processes };
    LE::write_u32(&mut b[TENANTS..], tenants as u32);
    LE::write_u64(&mut b[HEADER_SIZE - 8..], MAGIC);
    b
}

#[cfg(test)]
mod tests {
    use super::super::next_use::Request;
    use super::*;

    #[test]
    fn version_2_says_who_and_what() {
        let request = Request {
            time_s: 7,
            page: 5,
            write: true,
            process: 0x31_2233,
            next: None,
        };
        let mut record = [0xff; 28];
        (LAYOUT_2.record)(&request, &mut record);
        assert_eq!(record[..4], [7, 0, 0, 0]);
        assert_eq!(record[4..12], [5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(record[12..20], [1, 0, 0, 0, 13, 0x33, 0x22, 0x31]);
        assert_eq!(record[20..28], [255, 255, 255, 255, 255, 255, 255, 127]);
    }
}
