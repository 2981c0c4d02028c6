//! What makes a file the part of one process, and the frame that holds what no part has.
//!
//! `postproc split --by process` divides the records of references by the process that made them.
//! Each *part* has the references of one process, and is readable by itself; the *frame* has all the
//! rest. Kernels know neither of them, so their format is described here, and not in `vmtrace.h`.
//!
//! # A part
//!
//! A part is a trace: a header, packets, and the END packet, if the trace has one. These differ:
//!
//! - The header has the feature [`FEATURE`], so readers that do not know parts refuse the file.
//! - The first packet is of kind [`KIND_PART`]. Its content says which part it is ([`Part`]).
//! - Packets of references have the records of the process, in streams of the same CPUs and sets as
//!   in the trace. Packets of events have the events that a reader of these records needs:
//!   [`super::parts`] says which. The packets of each stream are numbered anew. Records and events keep
//!   their sequence numbers.
//! - Packets of kind [`KIND_CONTEXT`] have *context*: records of other processes that gave private
//!   pages their identities, which the process may share after a fork. A reader names pages by them, and
//!   does not count them.
//! - The accounts (WINDOW and END packets) have the counts of the part. What they say of lost records
//!   and of numbers that were given up is about the whole trace.
//!
//! # The frame
//!
//! The frame is [`FRAME_HEAD`] bytes, the body, and a table in JSON. All numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | [`FRAME_MAGIC`] |
//! | 4 | [`FRAME_VERSION`] |
//! | 4 | CRC32C of the trace |
//! | 16 | the trace's UUID |
//! | 8 | bytes of the trace |
//! | 8 | bytes of the body |
//! | 12 | zero |
//! | 4 | CRC32C of the bytes before, and of the body and the table |
//!
//! The body has the trace's bytes in their order, as items that begin with one byte:
//!
//! | item | what follows |
//! |---|---|
//! | [`LITERAL`] | their number (4 bytes), and bytes of the trace |
//! | [`PLAIN`] | the head of a packet of references, whose content is the records as they are |
//! | [`PACKED`] | `vmtrace_packed.lag` (4 bytes), the level of Zstandard or 0 (1 byte), and the head of a packet whose content is the records, packed with these |
//! | [`VERBATIM`] | a packet of references that this version would pack in another way, as it is |

use std::io;
use std::mem::offset_of;
use std::path::PathBuf;

use byteorder::{ByteOrder, LittleEndian as LE};
use rust_mm_trace::uapi;
use serde::{Deserialize, Serialize};

use super::piece::{put, verified};
use super::source::Bytes;
use super::wire::{HEAD_SIZE, HEADER_SIZE, Header, StreamId, StreamKind, Uuid, packet_crc};
use crate::units::Tid;

/// `vmtrace_header.features` of a part. The kernel's features fit into 32 bits.
pub(crate) const FEATURE: u64 = 1 << 32;
/// `vmtrace_packet.kind` of the packet that says which part a file is, and of context. The kernel's
/// kinds are smaller.
pub(crate) const KIND_PART: u32 = 32;
pub(crate) const KIND_CONTEXT: u32 = 33;
/// In [`super::Ref::page`] while a trace is read: the record is of context. No record in a file has it.
pub(crate) const CONTEXT: u64 = 1 << 11;

/// Bytes of the content that says which part a file is.
pub(super) const PART_SIZE: usize = 48;

/// The name of the frame in the directory that `split` writes.
pub const FRAME_NAME: &str = "whole.frame";
pub(super) const FRAME_MAGIC: [u8; 8] = *b"VMTframe";
pub(super) const FRAME_VERSION: u32 = 1;
pub(super) const FRAME_HEAD: usize = 64;
pub(super) const LITERAL: u8 = 0;
pub(super) const PLAIN: u8 = 1;
pub(super) const PACKED: u8 = 2;
pub(super) const VERBATIM: u8 = 3;

/// Which part of a trace a file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Ordinal, from 0, in the order of the processes' first references.
    pub number: u32,
    /// How many parts the trace has.
    pub parts: u32,
    /// The id of the process; of a thread that no event mentions, the id of the thread.
    pub pid: Tid,
    /// When the process was created, ns; 0 if the trace does not say.
    pub start_ns: u64,
    /// The last name of the process; empty if the trace does not say.
    pub comm: String,
    /// Records and events of the trace that are not in the part, and those that a filter of the kernel
    /// has left out of the trace.
    pub left_out: u64,
    /// Records of context.
    pub context_records: u32,
}

impl Part {
    /// Reads which part a file is, whose header says that it is one. `None` if that is missing or
    /// damaged.
    ///
    /// # Errors
    ///
    /// Reading failed.
    pub(super) fn read(bytes: &Bytes, header: &Header) -> io::Result<Option<Self>> {
        let at = HEADER_SIZE as u64;
        let Some(b) = verified(bytes, header, at, StreamKind::Part, PART_SIZE)? else {
            return Ok(None);
        };
        let comm = &b[32..];
        let len = comm.iter().position(|&c| c == 0).unwrap_or(comm.len());
        Ok(Some(Part {
            number: LE::read_u32(&b),
            parts: LE::read_u32(&b[4..]),
            pid: Tid(LE::read_u32(&b[8..])),
            context_records: LE::read_u32(&b[12..]),
            start_ns: LE::read_u64(&b[16..]),
            left_out: LE::read_u64(&b[24..]),
            comm: String::from_utf8_lossy(&comm[..len]).into_owned(),
        }))
    }

    /// The packet that says it.
    pub(super) fn packet(&self, uuid: Uuid) -> Vec<u8> {
        let mut b = [0; PART_SIZE];
        LE::write_u32(&mut b, self.number);
        LE::write_u32(&mut b[4..], self.parts);
        LE::write_u32(&mut b[8..], self.pid.0);
        LE::write_u32(&mut b[12..], self.context_records);
        LE::write_u64(&mut b[16..], self.start_ns);
        LE::write_u64(&mut b[24..], self.left_out);
        for (to, from) in b[32..47].iter_mut().zip(self.comm.bytes()) {
            *to = from;
        }
        let heading = Heading {
            records: 1,
            ..Heading::new(StreamId {
                kind: StreamKind::Part,
                cpu: 0,
                set: 0,
            })
        };
        heading.packet(uuid, (0, 0), &b)
    }
}

/// What the head of a packet says of its records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heading {
    pub stream: StreamId,
    /// The packet's number in its stream.
    pub number: u64,
    pub seqs: (u64, u64),
    pub times_ns: (u64, u64),
    pub records: u32,
    pub window: u32,
}

impl Heading {
    pub fn new(stream: StreamId) -> Self {
        Heading {
            stream,
            number: 0,
            seqs: (0, 0),
            times_ns: (0, 0),
            records: 0,
            window: 0,
        }
    }

    /// The packet, whose content is stored by a codec and had so many bytes before.
    pub fn packet(&self, uuid: Uuid, (codec, raw_size): (u16, u32), content: &[u8]) -> Vec<u8> {
        type P = uapi::vmtrace_packet;
        let kind = match self.stream.kind {
            StreamKind::Ref => uapi::VMTRACE_STREAM_REF,
            StreamKind::Event => uapi::VMTRACE_STREAM_EVENT,
            StreamKind::Context => KIND_CONTEXT,
            _ => KIND_PART,
        };
        let mut head = [0; HEAD_SIZE];
        put!(head, P, magic, uapi::VMTRACE_PACKET_MAGIC);
        head[offset_of!(P, uuid)..][..16].copy_from_slice(&uuid.0);
        put!(head, P, kind, (kind as u16));
        put!(head, P, codec, codec);
        put!(head, P, cpu, self.stream.cpu);
        put!(head, P, seq, self.number);
        put!(head, P, first_seq, self.seqs.0);
        put!(head, P, last_seq, self.seqs.1);
        put!(head, P, first_time, self.times_ns.0);
        put!(head, P, last_time, self.times_ns.1);
        put!(head, P, __bindgen_anon_1, u64::from(self.stream.set));
        put!(head, P, raw_size, raw_size);
        put!(head, P, records, self.records);
        put!(head, P, content_size, (content.len() as u32));
        put!(head, P, window, self.window);
        let crc = packet_crc(&head, content);
        put!(head, P, crc, crc);
        [&head[..], content].concat()
    }
}

/// A part that was written: an entry of the frame's table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadePart {
    /// The name of its file.
    pub file: String,
    /// Its ordinal, from 0.
    pub number: u32,
    /// The id of its process.
    pub pid: u32,
    /// When the process was created, ns; 0 if the trace does not say.
    pub start_ns: u64,
    /// The name of the process.
    pub comm: String,
    /// Records of references.
    pub reference_records: u64,
    /// Events.
    pub events: u64,
    /// Records of other processes that name pages.
    pub context_records: u64,
    /// Bytes of the file, and the CRC32C of these.
    pub bytes: u64,
    /// CRC32C of the file.
    pub crc: u32,
}

/// The table at the end of a frame.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Table {
    /// The version of this program.
    pub postproc: String,
    pub parts: Vec<MadePart>,
}

/// What a trace was divided into.
#[derive(Clone, Debug, Serialize)]
pub struct DividedTrace {
    /// Bytes of the trace, without those that follow its END packet.
    pub trace_bytes: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Of these, bytes of the frame.
    pub frame_bytes: u64,
    /// The parts, in order.
    pub parts: Vec<MadePart>,
}

/// What was joined of parts.
#[derive(Clone, Debug, Serialize)]
pub struct Reunited {
    /// The trace's identity.
    pub uuid: Uuid,
    /// Parts.
    pub parts: u64,
    /// Bytes of the trace.
    pub bytes: u64,
}

/// Bytes of a header up to the end of its features.
const BEGIN: usize = offset_of!(uapi::vmtrace_header, features) + 8;

/// Whether files, or those of a directory, are parts of processes or a frame, and not pieces.
pub fn are_parts(paths: &[PathBuf]) -> bool {
    let begins = |path: &PathBuf| {
        let mut head = [0; BEGIN];
        // A pipe can be read only once.
        let is_file = path.metadata().is_ok_and(|meta| meta.is_file());
        let read = |file: std::fs::File| {
            std::os::unix::fs::FileExt::read_at(&file, &mut head, 0).unwrap_or(0)
        };
        let read = std::fs::File::open(path)
            .ok()
            .filter(|_| is_file)
            .map_or(0, read);
        let magic = uapi::VMTRACE_MAGIC.to_le_bytes();
        let is_part = read == head.len()
            && head.starts_with(&magic)
            && LE::read_u64(&head[offset_of!(uapi::vmtrace_header, features)..]) & FEATURE != 0;
        is_part || head.starts_with(&FRAME_MAGIC)
    };
    paths.iter().any(|path| match path.is_dir() {
        true => path.join(FRAME_NAME).exists() || first_file(path).is_some_and(|f| begins(&f)),
        false => begins(path),
    })
}

/// The first file of a directory, by its name.
fn first_file(directory: &std::path::Path) -> Option<PathBuf> {
    let names = directory.read_dir().ok()?.flatten();
    let names = names.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    names.map(|entry| entry.path()).min()
}

/// A header with the feature of parts.
pub(super) fn header_of_part(raw: &[u8]) -> Vec<u8> {
    type H = uapi::vmtrace_header;
    let mut header = raw.to_vec();
    let features = LE::read_u64(&header[offset_of!(H, features)..]) | FEATURE;
    put!(header, H, features, features);
    let crc = crc32c::crc32c(&header[..offset_of!(H, crc)]);
    put!(header, H, crc, crc);
    header
}
