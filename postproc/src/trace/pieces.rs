//! The pieces of a trace, together: read as one trace, or joined.
//!
//! All pieces are the trace: its header and all own parts. If the first ones are missing, because a
//! flight recorder has deleted them, or the last ones, because they were not written yet, the others
//! are read as one piece. Its description is that of the first of them, and its end has the sums of all
//! ends. That is for pieces that a kernel has made: they begin with empty sets
//! (`VMTRACE_PIECE_CHECKPOINT`), and have no copies of later packets. Those that `postproc split` makes
//! are read all together or one by one.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rust_mm_trace::uapi;
use serde::Serialize;

use super::input::{self, Input};
use super::piece::{NO_PIECE, Parcel, Piece, PieceEnd, header_of};
use super::source::{Bytes, check_header};
use super::wire::{HEADER_SIZE, MOST, Uuid};
use crate::error::{Error, OutputContext, Result};
use crate::pipeline::Observer;
use crate::unfinished;

/// Where the bytes of a piece are.
enum Source {
    /// In a file that is opened when it is needed: there may be more pieces than files can be open.
    Named { dev: u64, ino: u64 },
    /// In a copy of what was compressed or came from a pipe.
    Held(Arc<File>),
}

/// Copies that are open at a time; others are in one file, up to the ends of their own parts.
const HELD: usize = 32;
/// A part of a copy with only zeros becomes a hole if it is so long.
const BLOCK: usize = 1 << 12;

/// A temporary file with pieces that were compressed: there may be more of them than files can be
/// open.
#[derive(Default)]
struct Spool {
    held: usize,
    file: Option<Arc<File>>,
    len: u64,
}

impl Spool {
    /// Takes the copy that a piece is held in, if that is one too many.
    fn take(&mut self, one: &mut One) -> Result<()> {
        let Source::Held(copy) = &one.source else {
            return Ok(());
        };
        if self.held < HELD {
            self.held += 1;
            return Ok(());
        }
        let directory = std::env::temp_dir();
        let file = match &self.file {
            Some(file) => Ok(file.clone()),
            None => unfinished::nameless_in(&directory).map(Arc::new),
        };
        let moved = file.and_then(|file| {
            let mut part = vec![0; PART];
            let (mut done, size) = (0, one.own + one.size);
            while done < size {
                let len = (size - done).min(PART as u64) as usize;
                copy.read_exact_at(&mut part[..len], done)?;
                for (block, at) in part[..len].chunks(BLOCK).zip((0..).step_by(BLOCK)) {
                    if block.iter().any(|&b| b != 0) {
                        file.write_all_at(block, self.len + done + at)?;
                    }
                }
                done += len as u64;
            }
            // It may end with a hole.
            file.set_len(self.len + size)?;
            Ok(file)
        });
        let file = moved.map_err(|source| Error::Spool {
            path: one.path.clone(),
            directory,
            source,
        })?;
        one.source = Source::Held(file.clone());
        self.file = Some(file);
        one.begin = self.len;
        self.len += one.own + one.size;
        Ok(())
    }
}

/// A piece that was found.
struct One {
    path: PathBuf,
    source: Source,
    header: Vec<u8>,
    uuid: Uuid,
    piece: Piece,
    /// Where it begins in the file; behind how many bytes its own part begins, and bytes of that.
    begin: u64,
    own: u64,
    size: u64,
    /// Packets before the own part that have records of the piece before, too.
    common: u64,
    /// It has copies of later packets.
    has_copies: bool,
}

/// What a file turned out to be.
enum Found {
    Piece(Box<One>),
    Unborn(Unborn),
}

/// The file of a piece that did not begin.
struct Unborn {
    path: PathBuf,
    /// Of the trace, if the file has it.
    header: Option<(Uuid, Vec<u8>)>,
}

/// A part of what is read.
struct Segment {
    /// Where it begins.
    at: u64,
    len: u64,
    from: From,
}

/// Where its bytes are.
enum From {
    Here(Vec<u8>),
    /// What stands before the own part of this piece.
    Head(usize),
    /// The own part of this piece.
    Own(usize),
}

/// Parts that follow each other.
#[derive(Default)]
struct Segments {
    all: Vec<Segment>,
    len: u64,
}

impl Segments {
    fn add(&mut self, len: u64, from: From) {
        let at = self.len;
        self.all.push(Segment { at, len, from });
        self.len = self.len.saturating_add(len);
    }
}

/// Files that are open at a time.
const OPEN: usize = 64;
/// Bytes that are copied at a time.
const PART: usize = 1 << 20;

/// The pieces of a trace, read as the trace or as one piece.
pub(super) struct Pieces {
    pieces: Vec<One>,
    segments: Segments,
    /// Files that are left out.
    left_out: Vec<PathBuf>,
    /// What is missing, and where.
    lost: Vec<(u64, String)>,
    /// The files that were used last, by the number of the piece.
    open: Mutex<VecDeque<(usize, Arc<File>)>>,
}

/// The beginning of another piece than the first one that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaterPiece {
    /// Its number.
    pub number: u32,
    /// When the piece before it ended, ns on the trace's clock.
    pub time_ns: u64,
    /// Whether the kernel rotated its output then, in the middle of a trace or of a window.
    pub is_rotation: bool,
}

/// What was joined.
#[derive(Clone, Debug, Serialize)]
pub struct Joined {
    /// The trace's identity.
    pub uuid: Uuid,
    /// Pieces.
    pub pieces: u64,
    /// Bytes of the trace.
    pub bytes: u64,
    /// The first and the last piece, if they are not all of the trace: then they are one piece now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numbers: Option<(u32, u32)>,
    /// Files of pieces that did not begin, which were left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<PathBuf>,
}

/// The files in a directory, in the order of their names; without those whose names begin with a
/// full stop, which are not finished.
fn files_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let files = entries_in(directory)?;
    // Opening a pipe could wait for ever.
    match files.iter().find(|path| !is_file(path)) {
        Some(path) => Err(Error::NotAPiece { path: path.clone() }),
        None => Ok(files),
    }
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file())
}

/// The same, with what is no file.
fn entries_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = |source| Error::Unreadable {
        path: directory.into(),
        source,
    };
    let mut files = Vec::new();
    for entry in directory.read_dir().map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        files.push(entry.path());
    }
    files.sort_unstable();
    match files.is_empty() {
        true => Err(Error::NoPieces {
            path: directory.into(),
        }),
        false => Ok(files),
    }
}

impl One {
    fn open(path: &Path, observer: &mut dyn Observer) -> Result<Found> {
        let no_piece = || Error::NotAPiece { path: path.into() };
        let check = |path: &Path, head: &[u8]| match check_header(path, head)?.is_piece() {
            true => Ok(()),
            false => Err(Error::NotAPiece { path: path.into() }),
        };
        let input = match input::open(path, &check, observer) {
            // The machine has stopped before the header was on the disk.
            Err(Error::Empty { path }) => return Ok(Found::Unborn(Unborn { path, header: None })),
            input => input.map_err(|error| match error {
                Error::Foreign { path, .. }
                | Error::ShortHeader { path, .. }
                | Error::NotAFile { path, .. } => Error::NotAPiece { path },
                error => error,
            })?,
        };
        let Input {
            path,
            file,
            len,
            damage,
        } = input;
        let bytes = Bytes::File(file, len);
        let unreadable = |source| Error::Unreadable {
            path: path.clone(),
            source,
        };
        let mut raw = vec![0; len.min(HEADER_SIZE as u64) as usize];
        bytes.read(0, &mut raw).map_err(unreadable)?;
        let header = match check_header(&path, &raw) {
            Ok(header) if header.is_piece() => header,
            Ok(_) | Err(Error::Foreign { .. } | Error::ShortHeader { .. }) => {
                return Err(no_piece());
            }
            Err(error) => return Err(error),
        };
        let damaged = |why: &str| Error::PieceDamaged {
            path: path.clone(),
            why: why.into(),
        };
        let piece = Piece::read(&bytes, &header).map_err(unreadable)?;
        let Some(piece) = piece else {
            return match Piece::is_unborn(&bytes).map_err(unreadable)? {
                true => Ok(Found::Unborn(Unborn {
                    path,
                    header: Some((header.uuid, header_of(&raw, false))),
                })),
                false => Err(damaged(NO_PIECE)),
            };
        };
        let own = piece.own_part(&bytes, &header).map_err(unreadable)?;
        let own = own.ok_or_else(|| damaged("no mark tells where its own part begins"));
        let (own, common) = own?;
        let size = match &piece.end {
            Some(end) => end.size,
            None => len - own,
        };
        let end = piece.end.map_or(len, |end| end.at);
        if own.checked_add(size).is_none_or(|to| to > end) {
            return Err(damaged("it is shorter than its own part"));
        }
        if piece.end.is_none() && damage.is_some() {
            return Err(damaged("the Zstandard stream is damaged or cut off"));
        }
        let Bytes::File(file, _) = bytes else {
            return Err(no_piece());
        };
        let meta = file.metadata().map_err(unreadable)?;
        // A copy without a name cannot be opened a second time.
        let named = path.metadata();
        let named = named.is_ok_and(|n| (n.dev(), n.ino()) == (meta.dev(), meta.ino()));
        Ok(Found::Piece(Box::new(One {
            source: match named && meta.is_file() {
                true => Source::Named {
                    dev: meta.dev(),
                    ino: meta.ino(),
                },
                false => Source::Held(Arc::new(file)),
            },
            header: header_of(&raw, false),
            uuid: header.uuid,
            path,
            begin: 0,
            own,
            size,
            common,
            has_copies: piece.end.is_some_and(|piece| piece.at > own + size),
            piece,
        })))
    }

    fn file(&self) -> io::Result<Arc<File>> {
        match &self.source {
            Source::Held(file) => Ok(file.clone()),
            Source::Named { dev, ino } => {
                let file = File::open(&self.path)?;
                let meta = file.metadata()?;
                if (meta.dev(), meta.ino()) != (*dev, *ino) {
                    return Err(io::Error::other("it was replaced while it was read"));
                }
                Ok(Arc::new(file))
            }
        }
    }
}

/// Numbers of pieces in words, of which some follow each other.
fn numbers(missing: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in missing {
        match runs.last_mut() {
            Some(run) if run.1.checked_add(1) == Some(number) => run.1 = number,
            _ => runs.push((number, number)),
        }
    }
    let one = |&(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        _ => format!("{first} to {last}"),
    };
    let what = if missing.len() == 1 {
        "piece"
    } else {
        "pieces"
    };
    let shown: Vec<String> = runs.iter().take(20).map(one).collect();
    let more = if runs.len() > 20 { " and others" } else { "" };
    format!("{what} {}{more}", shown.join(", "))
}

impl Pieces {
    /// Finds all pieces that a directory has.
    ///
    /// # Errors
    ///
    /// As [`Pieces::of`]; [`Error::NoPieces`].
    pub fn in_directory(directory: &Path, observer: &mut dyn Observer) -> Result<Self> {
        Self::of(directory, &files_in(directory)?, false, observer)
    }

    /// Takes these files as pieces of a trace, which messages call `name`. With `whole`, the last
    /// one must not be cut short. A file that was made for a piece that did not begin is left out.
    ///
    /// # Errors
    ///
    /// One of them is no piece, damaged, or of another trace; a piece is missing or there twice; or
    /// reading failed.
    pub fn of(
        name: &Path,
        files: &[PathBuf],
        whole: bool,
        observer: &mut dyn Observer,
    ) -> Result<Self> {
        let (mut pieces, mut spool) = (Vec::new(), Spool::default());
        let mut unborn = Vec::new();
        for path in files {
            if !observer.progress(0, input::UNKNOWN) {
                return Err(Error::Interrupted);
            }
            match One::open(path, observer)? {
                Found::Piece(mut one) => {
                    spool.take(&mut one)?;
                    pieces.push(*one);
                }
                Found::Unborn(one) => unborn.push(one),
            }
        }
        pieces.sort_by_key(|one| one.piece.number);
        Self::of_one_trace(name, &pieces, &unborn)?;
        for pair in pieces.windows(2) {
            if pair[0].piece.number == pair[1].piece.number {
                return Err(Error::PieceTwice {
                    path: pair[1].path.clone(),
                    other: pair[0].path.clone(),
                    number: pair[0].piece.number,
                });
            }
        }
        Self::complete(name, &pieces, whole)?;
        Ok(Pieces {
            segments: Self::segments(&pieces),
            left_out: unborn.into_iter().map(|one| one.path).collect(),
            lost: Vec::new(),
            open: Mutex::default(),
            pieces,
        })
    }

    /// What is read of pieces.
    fn segments(pieces: &[One]) -> Segments {
        let mut segments = Segments::default();
        if let Some(first) = pieces.first() {
            match Self::are_one_piece(pieces) {
                true => segments.add(first.own, From::Head(0)),
                false => segments.add(HEADER_SIZE as u64, From::Here(first.header.clone())),
            }
        }
        for (number, one) in pieces.iter().enumerate() {
            segments.add(one.size, From::Own(number));
        }
        if let Some(end) = Self::end(pieces) {
            segments.add(end.len() as u64, From::Here(end));
        }
        segments
    }

    /// Whether they are read as one piece: the first ones of the trace are not there, or the last ones.
    fn are_one_piece(pieces: &[One]) -> bool {
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
            return false;
        };
        if first.piece.number > 0 {
            return first.piece.is_checkpoint;
        }
        let by_kernel = match pieces.get(1) {
            Some(second) => second.piece.is_checkpoint,
            None => !first.has_copies,
        };
        by_kernel && last.piece.end.is_some_and(|end| !end.is_last)
    }

    /// The end of the one piece that they are read as, unless the last one has none.
    fn end(pieces: &[One]) -> Option<Vec<u8>> {
        let (first, last) = (pieces.first()?, pieces.last()?.piece.end?);
        if !Self::are_one_piece(pieces) {
            return None;
        }
        let mut sum = PieceEnd {
            number: last.number,
            is_last: last.is_last,
            crc: last.crc,
            next_seq: last.next_seq,
            start_time_ns: first.piece.end?.start_time_ns,
            ..PieceEnd::default()
        };
        for one in pieces {
            let end = one.piece.end?;
            // Only the first one's description is read.
            let common = if one.piece.number == first.piece.number {
                0
            } else {
                one.common
            };
            sum.size = sum.size.saturating_add(one.size);
            sum.unaccounted = sum.unaccounted.saturating_add(end.unaccounted);
            sum.stop_time_ns = sum.stop_time_ns.max(end.stop_time_ns);
            sum.packets = sum
                .packets
                .saturating_add(end.packets.saturating_sub(common));
            for (sum, one) in [
                (&mut sum.admissions, end.admissions),
                (&mut sum.refs, end.refs),
                (&mut sum.events, end.events),
                (&mut sum.aborted, end.aborted),
                (&mut sum.renewed, end.renewed),
                (&mut sum.chances, end.chances),
                (&mut sum.lost_full, end.lost_full),
                (&mut sum.lost_atomic, end.lost_atomic),
                (&mut sum.lost_io, end.lost_io),
            ] {
                *sum = sum.saturating_add(one);
            }
        }
        let parcel = Parcel {
            kind: uapi::VMTRACE_STREAM_PIECE_END,
            uuid: first.uuid,
            number: 0,
            seq: sum.next_seq.saturating_sub(1).min(MOST),
            time_ns: sum.stop_time_ns.min(MOST),
            records: 1,
            window: 0,
            codec: 0,
            raw_size: 0,
            content: &sum.encode(),
        };
        Some(parcel.encode())
    }

    /// Which pieces they are, if they are read as one.
    pub fn numbers(&self) -> Option<(u32, u32)> {
        let (first, last) = (self.pieces.first()?, self.pieces.last()?);
        Self::are_one_piece(&self.pieces).then_some((first.piece.number, last.piece.last_number))
    }

    /// Files of pieces that did not begin.
    pub fn left_out(&self) -> &[PathBuf] {
        &self.left_out
    }

    /// Where pieces after the first one begin.
    pub fn later(&self) -> Vec<LaterPiece> {
        let pairs = self.pieces.windows(2);
        pairs
            .filter_map(|pair| {
                Some(LaterPiece {
                    number: pair[1].piece.number,
                    time_ns: pair[0].piece.end?.stop_time_ns,
                    is_rotation: pair[1].piece.is_checkpoint,
                })
            })
            .collect()
    }
    /// Whether all are of one trace.
    fn of_one_trace(name: &Path, pieces: &[One], unborn: &[Unborn]) -> Result<()> {
        let Some(first) = pieces.first() else {
            return Err(Error::NoPieces { path: name.into() });
        };
        let headers = pieces.iter().map(|one| (&one.path, one.uuid, &one.header));
        let made = unborn.iter().filter_map(|one| {
            let (uuid, header) = one.header.as_ref()?;
            Some((&one.path, *uuid, header))
        });
        for (path, uuid, header) in headers.chain(made) {
            if (uuid, header) != (first.uuid, &first.header) {
                return Err(Error::PieceOfAnother {
                    path: path.clone(),
                    found: uuid.to_string(),
                    other: first.path.clone(),
                    there: first.uuid.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Takes what is left of the pieces in a directory: some may be missing, damaged or cut short.
    /// Own parts follow each other, whatever was between them.
    ///
    /// # Errors
    ///
    /// [`Error::NoPieces`], or why the first one is none, if none is left; [`Error::PieceOfAnother`];
    /// or reading failed.
    pub fn rescue(directory: &Path, observer: &mut dyn Observer) -> Result<Self> {
        let (mut pieces, mut spool) = (Vec::new(), Spool::default());
        // Nobody knows where what is none belongs.
        let (mut lost, mut first_error) = (Vec::new(), None);
        let mut unborn = Vec::new();
        for path in entries_in(directory)? {
            if !observer.progress(0, input::UNKNOWN) {
                return Err(Error::Interrupted);
            }
            let opened = match is_file(&path) {
                true => One::open(&path, observer),
                false => Err(Error::NotAPiece { path }),
            };
            match opened {
                Ok(Found::Piece(mut one)) => {
                    spool.take(&mut one)?;
                    pieces.push(*one);
                }
                Ok(Found::Unborn(one)) => unborn.push(one),
                Err(
                    error @ (Error::NotAPiece { .. }
                    | Error::PieceDamaged { .. }
                    | Error::Compressed { .. }
                    | Error::HeaderCrc { .. }),
                ) => {
                    lost.push((HEADER_SIZE as u64, error.to_string()));
                    first_error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        pieces.sort_by_key(|one| one.piece.number);
        if let (true, Some(error)) = (pieces.is_empty(), first_error) {
            return Err(error);
        }
        Self::of_one_trace(directory, &pieces, &unborn)?;
        pieces.dedup_by(|one, before| {
            let number = one.piece.number;
            let is_twice = number == before.piece.number;
            if is_twice {
                let (path, other) = (one.path.clone(), before.path.clone());
                let error = Error::PieceTwice {
                    path,
                    other,
                    number,
                };
                lost.push((HEADER_SIZE as u64, error.to_string()));
            }
            is_twice
        });
        let (mut at, mut next) = match pieces.first() {
            Some(first) if Self::are_one_piece(&pieces) => (first.own, first.piece.number),
            _ => (HEADER_SIZE as u64, 0),
        };
        for i in 0..pieces.len() {
            let after = pieces
                .get(i + 1)
                .map(|after| (after.piece.number, after.piece.offset));
            let one = &mut pieces[i];
            let number = one.piece.number;
            if next < number {
                let missing: Vec<u32> = (next..number).take(1000).collect();
                lost.push((at, format!("missing: {} of the trace", numbers(&missing))));
            }
            if one.piece.end.is_none() {
                // Behind its own part are copies, if it was not cut short before.
                if let Some((_, offset)) =
                    after.filter(|after| number.checked_add(1) == Some(after.0))
                {
                    let own = offset.saturating_sub(one.piece.offset);
                    one.size = one.size.min(own);
                }
                let what = format!("{}: it was cut short: it has no end", one.path.display());
                lost.push((at.saturating_add(one.size), what));
            }
            at = at.saturating_add(one.size);
            next = one.piece.last_number.saturating_add(1);
        }
        let is_last = |one: &One| one.piece.end.is_none_or(|end| end.is_last);
        if !Self::are_one_piece(&pieces) && !pieces.last().is_none_or(is_last) {
            lost.push((
                at,
                format!("missing: piece {next} and perhaps others of the trace"),
            ));
        }
        lost.sort_by_key(|lost| lost.0);
        Ok(Pieces {
            segments: Self::segments(&pieces),
            left_out: unborn.into_iter().map(|one| one.path).collect(),
            lost,
            open: Mutex::default(),
            pieces,
        })
    }

    /// What [`Pieces::rescue`] found missing: where, and what.
    pub fn take_lost(&mut self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.lost)
    }

    /// Whether all pieces are there, and follow each other.
    fn complete(name: &Path, pieces: &[One], whole: bool) -> Result<()> {
        let are_one = Self::are_one_piece(pieces);
        let first = pieces.first().map(|one| &one.piece);
        let first = first.filter(|piece| are_one && piece.number > 0);
        let (mut missing, mut next) = (Vec::new(), first.map_or(0, |piece| piece.number));
        for one in pieces {
            // A number may be forged, so not all that are missing are listed.
            let number = one.piece.number;
            missing.extend((next..number).take(1000));
            next = one.piece.last_number.saturating_add(1);
        }
        if !missing.is_empty() {
            return Err(Error::PieceMissing {
                path: name.into(),
                what: numbers(&missing),
            });
        }
        let damaged = |one: &One, why: &str| Error::PieceDamaged {
            path: one.path.clone(),
            why: why.into(),
        };
        let (mut offset, mut next_seq) = match first {
            Some(piece) => (piece.offset, piece.first_seq),
            None => (HEADER_SIZE as u64, 0),
        };
        let mut crc = match first {
            Some(piece) => Some(piece.crc),
            None => pieces.first().map(|one| crc32c::crc32c(&one.header)),
        };
        for (at, one) in pieces.iter().enumerate() {
            let is_final = at + 1 == pieces.len();
            let piece = &one.piece;
            if piece.offset != offset || Some(piece.crc) != crc || piece.first_seq != next_seq {
                return Err(damaged(
                    one,
                    match at {
                        0 => "it does not begin where the trace does",
                        _ => {
                            "it does not go on where the piece before it ends: they were not made \
                             together, or one of them was changed"
                        }
                    },
                ));
            }
            match &piece.end {
                Some(end) if end.is_last && !is_final => {
                    return Err(damaged(
                        one,
                        "it says that it is the last piece, and others follow",
                    ));
                }
                Some(end) if !end.is_last && is_final && !are_one => {
                    return Err(Error::PieceMissing {
                        path: name.into(),
                        what: format!("piece {} and perhaps others", u64::from(piece.number) + 1),
                    });
                }
                Some(_) => {}
                None if whole || !is_final => {
                    return Err(damaged(one, "it was cut short: it has no end"));
                }
                None => {}
            }
            crc = piece.end.map(|end| end.crc);
            next_seq = piece.end.map_or(0, |end| end.next_seq);
            offset = offset.saturating_add(one.size);
        }
        Ok(())
    }

    /// Bytes of the trace.
    pub fn len(&self) -> u64 {
        self.segments.len
    }

    fn file(&self, number: usize) -> io::Result<Arc<File>> {
        let one = &self.pieces[number];
        if let Source::Held(file) = &one.source {
            return Ok(file.clone());
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.iter().position(|known| known.0 == number) {
            let file = open[at].1.clone();
            if at >= OPEN / 2 {
                if let Some(known) = open.remove(at) {
                    open.push_front(known);
                }
            }
            return Ok(file);
        }
        let file = one.file()?;
        open.push_front((number, file.clone()));
        open.truncate(OPEN);
        Ok(file)
    }

    /// Copies bytes of a segment.
    fn part(&self, segment: &Segment, within: u64, to: &mut [u8]) -> io::Result<()> {
        let (number, from) = match segment.from {
            From::Here(ref bytes) => {
                let len = to.len();
                to.copy_from_slice(&bytes[within as usize..][..len]);
                return Ok(());
            }
            From::Head(number) => (number, self.pieces[number].begin),
            From::Own(number) => {
                let one = &self.pieces[number];
                (number, one.begin + one.own)
            }
        };
        let file = self.file(number);
        let read = file.and_then(|file| file.read_exact_at(to, from + within));
        read.map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => e,
            kind => {
                let path = &self.pieces[number].path;
                io::Error::new(kind, format!("{}: {e}", path.display()))
            }
        })
    }

    /// Copies bytes of the trace from `at` on until `to` is full.
    ///
    /// # Errors
    ///
    /// Reading failed; [`io::ErrorKind::UnexpectedEof`] if there are too few bytes.
    pub fn read(&self, mut at: u64, mut to: &mut [u8]) -> io::Result<()> {
        let segments = &self.segments.all;
        let after = segments.partition_point(|segment| segment.at <= at);
        let mut number = after.saturating_sub(1);
        while !to.is_empty() {
            let segment = segments.get(number).ok_or(io::ErrorKind::UnexpectedEof)?;
            let within = at - segment.at;
            let len = segment.len.saturating_sub(within).min(to.len() as u64) as usize;
            if len > 0 {
                let (part, rest) = to.split_at_mut(len);
                self.part(segment, within, part)?;
                to = rest;
                at += len as u64;
            }
            number += 1;
        }
        Ok(())
    }
}

/// Joins pieces: writes the trace that they are pieces of to `out`, which messages call `name`. Each
/// of `paths` is a piece or a directory of pieces. Each piece's checksum is verified. If the first
/// pieces of the trace are not there, one piece is written.
///
/// # Errors
///
/// One of them is no piece, damaged, cut short, or of another trace; a piece is missing or there
/// twice; reading or writing failed; or [`Error::Interrupted`].
pub fn join(
    paths: &[PathBuf],
    mut out: impl Write,
    name: &str,
    observer: &mut dyn Observer,
) -> Result<Joined> {
    let mut files = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => files.extend(files_in(path)?),
            false => files.push(path.clone()),
        }
    }
    let of = match paths {
        [only] => only.clone(),
        _ => "these files".into(),
    };
    let pieces = Pieces::of(&of, &files, true, observer)?;
    let is_one = Pieces::are_one_piece(&pieces.pieces);
    let first = &pieces.pieces[0];
    let mut crc = match is_one {
        true => first.piece.crc,
        false => crc32c::crc32c(&first.header),
    };
    let mut part = vec![0; PART];
    for segment in &pieces.segments.all {
        // What stands before the own part of the one piece is no part of the trace.
        let own = match segment.from {
            From::Own(number) => Some(&pieces.pieces[number]),
            From::Head(_) | From::Here(_) => None,
        };
        let mut done = 0;
        while done < segment.len {
            if !observer.progress(segment.at + done, pieces.len()) {
                return Err(Error::Interrupted);
            }
            let len = (segment.len - done).min(PART as u64) as usize;
            let part = &mut part[..len];
            let read = pieces.part(segment, done, part);
            read.map_err(|source| Error::Unreadable {
                path: own.map_or(of.clone(), |one| one.path.clone()),
                source,
            })?;
            if own.is_some() {
                crc = crc32c::crc32c_append(crc, part);
            }
            out.write_all(part).writing(name)?;
            done += len as u64;
        }
        let wrong = |one: &&One| one.piece.end.is_none_or(|end| end.crc != crc);
        if let Some(one) = own.filter(wrong) {
            return Err(Error::PieceDamaged {
                path: one.path.clone(),
                why: "the checksum of its own part is wrong".into(),
            });
        }
    }
    out.flush().writing(name)?;
    Ok(Joined {
        uuid: pieces.pieces[0].uuid,
        pieces: pieces.pieces.len() as u64,
        bytes: pieces.len(),
        numbers: pieces.numbers(),
        left_out: pieces.left_out,
    })
}
