//! Opening a trace file, and reading it piece by piece.
//!
//! Nothing is mapped into memory. Another process may truncate the file while it is read, and
//! an access to a mapping of the truncated part ends a process by SIGBUS, before it can remove
//! its temporary files. A read of that part is an error like any other.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use byteorder::{ByteOrder, LittleEndian as LE};
use rust_mm_trace::uapi;

use super::damage::{Damage, DamageKind};
use super::index::{self, PacketIndex, Strictness};
use super::input;
use super::part::{self, Part};
use super::piece::Piece;
use super::pieces::{LaterPiece, Pieces};
use super::wire::{HEADER_SIZE, Header, KNOWN_FEATURES, MOST, PacketHead, Sets, StreamKind, Uuid};
use crate::error::{Error, Result};
use crate::pipeline::{Observer, Unwatched};

/// A trace whose header was verified and whose packets were found.
pub struct Trace {
    path: PathBuf,
    bytes: Arc<Bytes>,
    raw_header: Arc<[u8]>,
    header: Header,
    index: PacketIndex,
    window: Option<u32>,
    piece: Option<Piece>,
    part: Option<Part>,
}

/// The bytes of a trace.
pub(super) enum Bytes {
    /// Of a file, and how many there were when it was opened.
    File(File, u64),
    Owned(Vec<u8>),
    /// Of all pieces of a trace.
    Pieces(Pieces),
}

impl Bytes {
    /// How many.
    pub fn len(&self) -> u64 {
        match self {
            Bytes::File(_, len) => *len,
            Bytes::Owned(bytes) => bytes.len() as u64,
            Bytes::Pieces(pieces) => pieces.len(),
        }
    }

    /// Copies the bytes from `at` on until `to` is full.
    ///
    /// # Errors
    ///
    /// Reading failed; [`io::ErrorKind::UnexpectedEof`] if there are too few bytes.
    pub fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        match self {
            Bytes::File(file, _) => file.read_exact_at(to, at),
            Bytes::Pieces(pieces) => pieces.read(at, to),
            Bytes::Owned(bytes) => {
                let part = usize::try_from(at)
                    .ok()
                    .and_then(|at| bytes.get(at..)?.get(..to.len()))
                    .ok_or(io::ErrorKind::UnexpectedEof)?;
                to.copy_from_slice(part);
                Ok(())
            }
        }
    }
}

/// An error of reading a trace that had `len` bytes when it was opened.
fn unreadable(path: &Path, len: u64, source: io::Error) -> Error {
    let path = path.into();
    match source.kind() {
        io::ErrorKind::UnexpectedEof => Error::Shortened { path, len },
        _ => Error::Unreadable { path, source },
    }
}

impl Trace {
    /// Opens a trace without telling anybody how far it is: see [`Trace::open_watched`].
    ///
    /// # Errors
    ///
    /// As [`Trace::open_watched`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_watched(path, &mut Unwatched)
    }

    /// Opens a regular file, a block device or a pipe; `-` is standard input. A file or a pipe
    /// that begins with a frame of Zstandard is decompressed. A directory has pieces, and is read as
    /// the trace that they are pieces of.
    ///
    /// A pipe, and what is compressed, is copied to a temporary file first. If a compressed trace
    /// is damaged or cut off, the trace is what comes before that place.
    ///
    /// # Errors
    ///
    /// Each of [`Error`]'s variants about the header and about copying has one cause; damage
    /// behind the header is no error. So has each of those about pieces. [`Error::Interrupted`] if the
    /// observer says so.
    pub fn open_watched(path: impl AsRef<Path>, observer: &mut dyn Observer) -> Result<Self> {
        let directory = path.as_ref();
        if directory.is_dir() {
            if part::are_parts(&[directory.into()]) {
                return Err(Error::AreParts {
                    path: directory.into(),
                });
            }
            let bytes = Bytes::Pieces(Pieces::in_directory(directory, observer)?);
            return Self::new(directory.into(), bytes, Strictness::Heads, None, None);
        }
        let check = |path: &Path, head: &[u8]| check_header(path, head).map(|_| ());
        let input = input::open(path.as_ref(), &check, observer)?;
        let bytes = Bytes::File(input.file, input.len);
        Self::new(input.path, bytes, Strictness::Heads, None, input.damage)
    }

    /// Opens a trace to rescue what is left of it: only packets whose checksum holds are found,
    /// so everything else is damage. `header_of` is a file that begins with the trace's header,
    /// if the trace's own header is damaged.
    ///
    /// # Errors
    ///
    /// As [`Trace::open_watched`]; [`Error::HeaderLost`] if the header is damaged and `header_of`
    /// is not given; [`Error::HeaderOfAnother`] if that is the header of another trace.
    pub fn open_damaged(
        path: impl AsRef<Path>,
        header_of: Option<&Path>,
        observer: &mut dyn Observer,
    ) -> Result<Self> {
        let head = match header_of {
            Some(other) => {
                let check = |path: &Path, head: &[u8]| check_header(path, head).map(|_| ());
                let other = input::open(other, &check, observer)?;
                let mut head = vec![0; other.len.min(HEADER_SIZE as u64) as usize];
                let failed = |source| unreadable(&other.path, other.len, source);
                other.file.read_exact_at(&mut head, 0).map_err(failed)?;
                let header = check_header(&other.path, &head)?;
                Some((other.path, head, header))
            }
            None => None,
        };
        let directory = path.as_ref();
        if directory.is_dir() {
            let mut pieces = Pieces::rescue(directory, observer)?;
            let lost = pieces.take_lost();
            let mut trace = Self::rescue(directory.into(), Bytes::Pieces(pieces), head, None)?;
            let damage = &mut trace.index.damage;
            damage.extend(lost.into_iter().map(|(at, detail)| Damage {
                kind: DamageKind::Piece,
                start: at,
                end: at,
                stream: None,
                gap: None,
                detail,
            }));
            damage.sort_by_key(|damage| damage.start);
            return Ok(trace);
        }
        let input = input::open(path.as_ref(), &|_, _| Ok(()), observer)?;
        let bytes = Bytes::File(input.file, input.len);
        Self::rescue(input.path, bytes, head, input.damage)
    }

    /// As [`Trace::open_damaged`], of a trace that lies in memory.
    ///
    /// # Errors
    ///
    /// As [`Trace::open_damaged`].
    pub fn damaged_from_bytes(path: impl Into<PathBuf>, bytes: Vec<u8>) -> Result<Self> {
        let path = path.into();
        if bytes.is_empty() {
            return Err(Error::Empty { path });
        }
        Self::rescue(path, Bytes::Owned(bytes), None, None)
    }

    fn rescue(
        path: PathBuf,
        bytes: Bytes,
        other: Option<(PathBuf, Vec<u8>, Header)>,
        cut: Option<String>,
    ) -> Result<Self> {
        let len = bytes.len();
        let failed = |source| unreadable(&path, len, source);
        let mut head = vec![0; len.min(HEADER_SIZE as u64) as usize];
        bytes.read(0, &mut head).map_err(failed)?;
        let lost = match check_header(&path, &head) {
            Ok(header) => {
                if let Some((other, _, of)) = other.filter(|o| o.2.uuid != header.uuid) {
                    return Err(Error::HeaderOfAnother {
                        path: other,
                        found: of.uuid.to_string(),
                        there: header.uuid.to_string(),
                    });
                }
                return Self::new(path, bytes, Strictness::Checksums, None, cut);
            }
            // The header is whole, but this program cannot read the trace.
            Err(e @ Error::Features { .. } | e @ Error::HeaderField { .. }) => return Err(e),
            Err(e) => e,
        };
        let there = index::uuids(&bytes).map_err(failed)?;
        let Some((other, copy, header)) = other else {
            // Nothing in it is of a trace.
            if there.is_empty() {
                return Err(lost);
            }
            return Err(Error::HeaderLost {
                path,
                found: uuids_text(&there),
                source: Box::new(lost),
            });
        };
        if !there.iter().any(|t| t.0 == header.uuid) {
            return Err(Error::HeaderOfAnother {
                path: other,
                found: header.uuid.to_string(),
                there: uuids_text(&there),
            });
        }
        Self::new(
            path,
            bytes,
            Strictness::Checksums,
            Some((copy, header)),
            cut,
        )
    }

    /// Takes a trace that lies in memory; `path` is for messages.
    ///
    /// # Errors
    ///
    /// As [`Trace::open`].
    pub fn from_bytes(path: impl Into<PathBuf>, bytes: Vec<u8>) -> Result<Self> {
        let path = path.into();
        if bytes.is_empty() {
            return Err(Error::Empty { path });
        }
        Self::new(path, Bytes::Owned(bytes), Strictness::Heads, None, None)
    }

    /// Finds the packets. `copy` is the header, if another file has it; `cut` is why the trace
    /// ends where it does, if that is not the end of its file.
    fn new(
        path: PathBuf,
        bytes: Bytes,
        strictness: Strictness,
        copy: Option<(Vec<u8>, Header)>,
        cut: Option<String>,
    ) -> Result<Self> {
        let len = bytes.len();
        let failed = |source| unreadable(&path, len, source);
        let is_copy = copy.is_some();
        let (raw_header, header) = match copy {
            Some(copy) => copy,
            None => {
                let mut head = vec![0; len.min(HEADER_SIZE as u64) as usize];
                bytes.read(0, &mut head).map_err(failed)?;
                let header = check_header(&path, &head)?;
                (head, header)
            }
        };
        let piece = match header.is_piece() {
            true => Piece::read(&bytes, &header).map_err(failed)?,
            false => None,
        };
        let piece = piece.map(|piece| match &bytes {
            Bytes::Pieces(pieces) => Piece {
                last_number: pieces.numbers().map_or(piece.number, |numbers| numbers.1),
                ..piece
            },
            _ => piece,
        });
        let part = match header.is_part() {
            true => Part::read(&bytes, &header).map_err(failed)?,
            false => None,
        };
        let index = PacketIndex::build(&bytes, &header, strictness, piece.as_ref());
        let mut index = index.map_err(failed)?;
        let missing = match &part {
            None if header.is_part() => {
                Some("the packet that says whose part of the trace this is, is missing or damaged")
            }
            Some(part) if index.records(StreamKind::Context) != u64::from(part.context_records) => {
                Some("records of other processes that name pages are missing")
            }
            _ => None,
        };
        if let Some(missing) = missing {
            index.damage.push(Damage {
                kind: DamageKind::Malformed,
                start: HEADER_SIZE as u64,
                end: HEADER_SIZE as u64,
                stream: None,
                gap: None,
                detail: missing.into(),
            });
            index.damage.sort_by_key(|damage| damage.start);
        }
        if is_copy {
            index.damage.insert(
                0,
                Damage {
                    kind: DamageKind::Header,
                    start: 0,
                    end: len.min(HEADER_SIZE as u64),
                    stream: None,
                    gap: None,
                    detail: "the header is damaged; another file's copy of it is used".into(),
                },
            );
        }
        if let Some(detail) = cut {
            index.damage.push(Damage {
                kind: DamageKind::Compression,
                start: len,
                end: len,
                stream: None,
                gap: None,
                detail,
            });
        }
        Ok(Trace {
            path,
            bytes: Arc::new(bytes),
            raw_header: raw_header.into(),
            header,
            index,
            window: None,
            piece,
            part,
        })
    }

    /// The header as it is in the file.
    pub(super) fn raw_header(&self) -> &[u8] {
        &self.raw_header
    }

    /// One of its windows, as a trace of its own that begins when the window did.
    ///
    /// # Errors
    ///
    /// [`Error::NoWindow`], or reading failed.
    pub fn only_window(&self, number: u32) -> Result<Self> {
        let index = match self.header.windows {
            Some(_) => self
                .index
                .window(&self.bytes, &self.header, number)
                .map_err(|source| self.unreadable(source))?,
            None => None,
        };
        let index = index.ok_or_else(|| Error::NoWindow {
            path: self.path.clone(),
            number,
            there: self.window_numbers(),
        })?;
        if self.has_a_part_of(number) {
            return Err(Error::PartOfWindow {
                path: self.path.clone(),
                number,
            });
        }
        let mut header = self.header.clone();
        if let Some(window) = index.windows.first() {
            header.start_time_ns = window.account.start_time_ns;
        } else if let Some((first, _)) = index.time_span() {
            header.start_time_ns = first;
        }
        Ok(Trace {
            path: self.path.clone(),
            bytes: self.bytes.clone(),
            raw_header: self.raw_header.clone(),
            header,
            index,
            window: Some(number),
            // All of the window's records are the piece's.
            piece: None,
            part: self.part.clone(),
        })
    }

    /// The window in the middle of which a piece begins.
    pub(crate) fn described_window(&self) -> Option<u32> {
        let mut streams = self.index.streams.iter();
        let described = streams.find(|s| s.id.kind == StreamKind::State)?;
        let is_middle = self.piece.as_ref().is_some_and(|piece| piece.is_middle);
        (is_middle && self.header.windows.is_some()).then(|| described.first_window())
    }

    /// Whether a piece has only a part of a window.
    fn has_a_part_of(&self, number: u32) -> bool {
        let Some(piece) = &self.piece else {
            return false;
        };
        let windows = &self.index.windows;
        let ends = windows.iter().any(|w| w.account.number == number);
        self.described_window() == Some(number) || (!ends && !piece.is_last())
    }

    /// Whether a filter of the kernel may have left references out. Nobody knows that of a piece or a
    /// part alone, or of a trace without an end.
    pub fn may_lack_references(&self) -> bool {
        self.header.is_filtered()
            && !self.header.keeps_left_out()
            && self
                .left_out_by_kernel()
                .is_none_or(|left_out| left_out > 0)
    }

    /// How many records of references a filter of the kernel has left out; `None` if the file does not
    /// tell. The end of a piece does not tell them from numbers that were given up, and a part does not
    /// tell them from records of other processes.
    pub(crate) fn left_out_by_kernel(&self) -> Option<u64> {
        let is_whole = self.piece.is_none() && !self.is_partial();
        let tells = is_whole || self.header.keeps_left_out();
        let end = self.index.end.as_ref().filter(|_| tells);
        end.map(|end| end.status.left_out)
    }

    /// Which piece of a trace this is, if it is one.
    pub fn piece(&self) -> Option<&Piece> {
        self.piece.as_ref()
    }

    /// Which process's part of a trace this is, if it is one.
    pub fn part(&self) -> Option<&Part> {
        self.part.as_ref()
    }

    /// Refuses a trace of regions, for what needs references.
    ///
    /// # Errors
    ///
    /// [`Error::OnlyRegions`].
    pub fn demand_references(&self) -> Result<()> {
        let is_of_regions = match (self.header.windows, self.window) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(_), Some(number)) => self.is_of_regions(number),
        };
        match self.header.has_regions() && is_of_regions {
            true => Err(Error::OnlyRegions {
                path: self.path().into(),
            }),
            false => Ok(()),
        }
    }

    /// Whether the trace has nothing but regions: no window of references either.
    pub fn has_only_regions(&self) -> bool {
        self.demand_references().is_err()
    }

    /// Whether regions were sampled in this window, and no references recorded. A window whose account is
    /// missing counts as one of references.
    pub fn is_of_regions(&self, window: u32) -> bool {
        let mut accounts = self.index.windows.iter().map(|w| &w.account);
        accounts.any(|a| a.number == window && a.why.is_of_regions())
    }

    /// Whether records of references are missing that the sets had: it is the part of one process.
    pub fn is_partial(&self) -> bool {
        self.header.is_part()
    }

    /// Files in the directory of its pieces that are left out: no piece has begun in them.
    pub fn left_out(&self) -> &[PathBuf] {
        match &*self.bytes {
            Bytes::Pieces(pieces) => pieces.left_out(),
            _ => &[],
        }
    }

    /// Where the pieces after the first one begin, if this is a directory of pieces.
    pub fn later_pieces(&self) -> Vec<LaterPiece> {
        match &*self.bytes {
            Bytes::Pieces(pieces) => pieces.later(),
            _ => Vec::new(),
        }
    }

    /// Which of its windows this is, if it is one.
    pub fn window(&self) -> Option<u32> {
        self.window
    }

    /// The numbers of its windows, in order; none if it has no windows.
    pub fn window_numbers(&self) -> Vec<u32> {
        if self.header.windows.is_none() {
            return Vec::new();
        }
        let heads = self.windows().into_iter().map(|(_, number)| number as u32);
        let accounts = self.index.windows.iter().map(|w| w.account.number);
        let mut all: Vec<u32> = heads.chain(accounts).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Of these, the windows in which references were recorded.
    pub fn windows_of_references(&self) -> Vec<u32> {
        let mut all = self.window_numbers();
        all.retain(|window| !self.is_of_regions(*window));
        all
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file, when it was opened.
    pub fn file_bytes(&self) -> u64 {
        self.bytes.len()
    }

    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// What a failed read of the file means.
    pub(super) fn unreadable(&self, source: io::Error) -> Error {
        unreadable(&self.path, self.bytes.len(), source)
    }

    /// The trace header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The trace's windows: the first sequence number of each, and its number.
    pub fn windows(&self) -> Vec<(u64, u64)> {
        self.index.windows()
    }

    /// Shows the heads of all packets of references, or of each `step`th.
    ///
    /// # Errors
    ///
    /// Reading failed.
    pub(crate) fn heads_of_references(
        &self,
        step: usize,
        mut show: impl FnMut(&PacketHead),
    ) -> Result<()> {
        let streams = self.index.streams.iter();
        let streams = streams.filter(|s| s.id.kind == StreamKind::Ref);
        let all = streams.flat_map(|s| s.packets.iter());
        for at in all.step_by(step.max(1)) {
            let head = index::head_at(&self.bytes, at).map_err(|e| self.unreadable(e))?;
            head.iter().for_each(&mut show);
        }
        Ok(())
    }

    /// Where the packets are.
    pub fn index(&self) -> &PacketIndex {
        &self.index
    }
}

/// The traces of which packets were found, and how many packets.
fn uuids_text(there: &[(Uuid, u64)]) -> String {
    let one = |(uuid, count): &(Uuid, u64)| format!("{uuid} ({count} packets)");
    match there {
        [] => "none".into(),
        some => some.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}

pub(super) fn check_header(path: &Path, bytes: &[u8]) -> Result<Header> {
    let short = || Error::ShortHeader {
        path: path.into(),
        len: bytes.len() as u64,
        need: HEADER_SIZE as u64,
    };
    let magic = uapi::VMTRACE_MAGIC.to_le_bytes();
    // A short file that begins as a trace does is a truncated trace.
    let common = bytes.len().min(magic.len());
    if bytes[..common] != magic[..common] {
        let mut first = [0; 8];
        first[..common].copy_from_slice(&bytes[..common]);
        return Err(Error::Foreign {
            path: path.into(),
            found: u64::from_le_bytes(first),
            want: uapi::VMTRACE_MAGIC,
            hint: foreign_hint(bytes),
        });
    }
    let field = offset_of!(uapi::vmtrace_header, version);
    let version = LE::read_u32(bytes.get(field..field + 4).ok_or_else(short)?);
    if version != uapi::VMTRACE_VERSION {
        return Err(Error::Version {
            path: path.into(),
            found: version,
            known: uapi::VMTRACE_VERSION,
        });
    }
    let head: &[u8; HEADER_SIZE] = bytes.first_chunk().ok_or_else(short)?;
    let at = offset_of!(uapi::vmtrace_header, crc);
    let (found, computed) = (LE::read_u32(&head[at..]), crc32c::crc32c(&head[..at]));
    if found != computed {
        return Err(Error::HeaderCrc {
            path: path.into(),
            offset: at as u64,
            found,
            computed,
        });
    }
    let header = Header::decode(head);
    type H = uapi::vmtrace_header;
    let unknown = header.features & !KNOWN_FEATURES;
    if unknown != 0 {
        return Err(Error::Features {
            path: path.into(),
            offset: offset_of!(H, features) as u64,
            features: header.features,
            unknown,
        });
    }
    let size = LE::read_u32(&head[offset_of!(H, header_size)..]);
    // What is good, the field, its place, its value, and what would do.
    macro_rules! demand {
        ($good:expr, $field:ident, $value:expr, $expected:expr) => {
            if !$good {
                return Err(Error::HeaderField {
                    path: path.into(),
                    field: stringify!($field),
                    offset: offset_of!(H, $field) as u64,
                    value: u64::from($value),
                    expected: $expected,
                });
            }
        };
    }
    let h = &header;
    demand!(size as usize == HEADER_SIZE, header_size, size, "4096");
    demand!(
        h.start_time_ns <= MOST,
        start_time,
        h.start_time_ns,
        "less than 2^63"
    );
    demand!(
        (1..=uapi::VMTRACE_EVMS_MAX).contains(&h.evms_size),
        evms_size,
        h.evms_size,
        "1 to 4194304"
    );
    demand!(
        h.policy <= uapi::VMTRACE_POLICY_CLOCK,
        policy,
        h.policy,
        "0 (FIFO) or 1 (CLOCK)"
    );
    demand!(
        (uapi::VMTRACE_SCOPE_ALL..=uapi::VMTRACE_SCOPE_COMM).contains(&h.scope),
        scope,
        h.scope,
        "1 (all), 2 (a tree of processes), 3 (a control group) or 4 (processes by name)"
    );
    demand!(
        h.interval_ns == 0
            || (u64::from(uapi::VMTRACE_INTERVAL_MIN)..=uapi::VMTRACE_INTERVAL_MAX)
                .contains(&h.interval_ns),
        interval,
        h.interval_ns,
        "0 (none), or 1 ms to 1 h"
    );
    demand!(
        h.sets != Sets::Unknown,
        sets,
        LE::read_u32(&head[offset_of!(H, sets)..]),
        "0 (one set), 1 (one for each process) or 2 (one for each control group)"
    );
    demand!(
        (12..=16).contains(&h.page_shift),
        page_shift,
        h.page_shift,
        "12 to 16"
    );
    // A reference has ten bits for its CPU.
    demand!(
        (1..=1 << (u32::BITS - uapi::VMTRACE_TID_BITS)).contains(&h.nr_cpus),
        nr_cpus,
        h.nr_cpus,
        "1 to 1024"
    );
    demand!(
        h.least_n(h.first_segment) <= h.evms_size.into(),
        first_segment,
        h.first_segment,
        "at most half of the EVMS, or all of it if there is one CPU"
    );
    demand!(
        u64::from(h.batch) <= h.most_batch(h.evms_size.into()),
        batch,
        h.batch,
        "at most 64, 1 with a CLOCK, and so few that the first segments stay in the EVMS"
    );
    demand!(
        h.clock == uapi::VMTRACE_CLOCK_MONOTONIC,
        clock,
        h.clock,
        "1 (CLOCK_MONOTONIC)"
    );
    demand!(
        (256..=1 << 20).contains(&h.buffer_size),
        buffer_size,
        h.buffer_size,
        "256 to 1048576"
    );
    demand!(h.stay_shift < 32, stay_shift, h.stay_shift, "less than 32");
    demand!(
        !h.has_vtime() || h.vtime_khz != 0,
        vtime_khz,
        h.vtime_khz,
        "not 0"
    );
    Ok(header)
}

fn foreign_hint(bytes: &[u8]) -> &'static str {
    const KNOWN: &[(&[u8], &str)] = &[
        (&[0x1f, 0x8b], " (gzip data: decompress it first)"),
        (b"\x7fELF", " (an ELF file)"),
        (b"PERFILE2", " (perf.data)"),
        (b"PAR1", " (a table of Parquet)"),
        (&[0xc1, 0x1f, 0xfc, 0xc1], " (a CTF stream)"),
    ];
    if bytes.iter().take(4096).all(|&b| b == 0) {
        return " (all zero: was a trace ever written to it?)";
    }
    KNOWN
        .iter()
        .find(|(magic, _)| bytes.starts_with(magic))
        .map_or("", |(_, hint)| hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TraceBuilder;

    /// The batch that a trace says, of a set of 64 on two CPUs with first segments of 16.
    fn batch(change: impl FnOnce(&mut uapi::vmtrace_header)) -> Result<u32> {
        let mut builder = TraceBuilder::new(2, 64);
        builder.header_mut().first_segment = 16;
        change(builder.header_mut());
        Trace::from_bytes("memory", builder.finish()).map(|trace| trace.header().batch)
    }

    #[test]
    fn a_batch_is_one_if_it_is_not_told_and_is_not_too_large() {
        for (told, is) in [(0, 1), (1, 1), (8, 8), (33, 33)] {
            assert_eq!(batch(|h| h.batch = told).expect("a trace"), is);
        }
        let clock = |batch| {
            move |h: &mut uapi::vmtrace_header| {
                h.policy = uapi::VMTRACE_POLICY_CLOCK;
                h.batch = batch;
            }
        };
        assert_eq!(batch(clock(1)).expect("a trace"), 1);
        let large = |n, batch| {
            move |h: &mut uapi::vmtrace_header| {
                h.evms_size = n;
                h.batch = batch;
            }
        };
        assert_eq!(batch(large(1024, 64)).expect("a trace"), 64);
        for refused in [
            batch(|h| h.batch = 34),
            batch(clock(2)),
            batch(large(1024, 65)),
            batch(large(32, 2)),
            batch(|h| h.batch = u32::MAX),
        ] {
            let error = refused.expect_err("no trace").to_string();
            assert!(error.contains("batch"), "{error}");
        }
    }

    #[test]
    fn sets_of_an_unknown_kind_are_refused() {
        let sets = |sets| {
            let mut builder = TraceBuilder::new(1, 4);
            builder.header_mut().sets = sets;
            Trace::from_bytes("memory", builder.finish()).map(|trace| trace.header().sets)
        };
        assert_eq!(sets(0).expect("a trace"), Sets::One);
        assert_eq!(sets(1).expect("a trace"), Sets::Process);
        assert_eq!(sets(2).expect("a trace"), Sets::Cgroup);
        let error = sets(3).expect_err("no trace").to_string();
        assert!(error.contains("sets"), "{error}");
    }
}
