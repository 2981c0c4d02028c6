//! The pieces of a trace, together: read as one trace, or joined.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::input::{self, Input};
use super::piece::{NO_PIECE, Piece, header_of};
use super::source::{Bytes, check_header};
use super::wire::{HEADER_SIZE, Uuid};
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

/// Copies that are open at a time; the own parts of others are in one file.
const HELD: usize = 32;
/// A part of a copy with only zeros becomes a hole if it is so long.
const BLOCK: usize = 1 << 12;

/// A temporary file with the own parts of pieces that were compressed: there may be more of them
/// than files can be open.
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
            let mut done = 0;
            while done < one.size {
                let len = (one.size - done).min(PART as u64) as usize;
                copy.read_exact_at(&mut part[..len], one.own + done)?;
                for (block, at) in part[..len].chunks(BLOCK).zip((0..).step_by(BLOCK)) {
                    if block.iter().any(|&b| b != 0) {
                        file.write_all_at(block, self.len + done + at)?;
                    }
                }
                done += len as u64;
            }
            // It may end with a hole.
            file.set_len(self.len + one.size)?;
            Ok(file)
        });
        let file = moved.map_err(|source| Error::Spool {
            path: one.path.clone(),
            directory,
            source,
        })?;
        one.source = Source::Held(file.clone());
        self.file = Some(file);
        one.own = self.len;
        self.len += one.size;
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
    /// Where its own part begins in the file, and bytes of that.
    own: u64,
    size: u64,
    /// Where its own part begins in the trace, or in what is left of it.
    at: u64,
}

/// Files that are open at a time.
const OPEN: usize = 64;
/// Bytes that are copied at a time.
const PART: usize = 1 << 20;

/// All pieces of a trace, read as the trace.
pub(super) struct Pieces {
    header: Vec<u8>,
    pieces: Vec<One>,
    len: u64,
    /// What is missing, and where.
    lost: Vec<(u64, String)>,
    /// The files that were used last, by the number of the piece.
    open: Mutex<VecDeque<(usize, Arc<File>)>>,
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
    fn open(path: &Path, observer: &mut dyn Observer) -> Result<Self> {
        let no_piece = || Error::NotAPiece { path: path.into() };
        let check = |path: &Path, head: &[u8]| match check_header(path, head)?.is_piece() {
            true => Ok(()),
            false => Err(Error::NotAPiece { path: path.into() }),
        };
        let Input {
            path,
            file,
            len,
            damage,
        } = input::open(path, &check, observer).map_err(|error| match error {
            Error::Foreign { path, .. }
            | Error::ShortHeader { path, .. }
            | Error::NotAFile { path, .. }
            | Error::Empty { path } => Error::NotAPiece { path },
            error => error,
        })?;
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
        let piece = piece.ok_or_else(|| damaged(NO_PIECE))?;
        let own = Piece::own_part(&bytes, &header).map_err(unreadable)?;
        let own = own.ok_or_else(|| damaged("no mark tells where its own part begins"))?;
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
        Ok(One {
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
            own,
            size,
            at: piece.offset,
            piece,
        })
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
    /// one must not be cut short.
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
        for path in files {
            if !observer.progress(0, input::UNKNOWN) {
                return Err(Error::Interrupted);
            }
            let mut one = One::open(path, observer)?;
            spool.take(&mut one)?;
            pieces.push(one);
        }
        pieces.sort_by_key(|one| one.piece.number);
        let first = Self::of_one_trace(name, &pieces)?;
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
        let len = HEADER_SIZE as u64 + pieces.iter().map(|one| one.size).sum::<u64>();
        Ok(Pieces {
            header: first.header.clone(),
            len,
            lost: Vec::new(),
            open: Mutex::default(),
            pieces,
        })
    }

    /// The first piece, if all are of one trace.
    fn of_one_trace<'p>(name: &Path, pieces: &'p [One]) -> Result<&'p One> {
        let Some(first) = pieces.first() else {
            return Err(Error::NoPieces { path: name.into() });
        };
        for one in pieces {
            if (one.uuid, &one.header) != (first.uuid, &first.header) {
                return Err(Error::PieceOfAnother {
                    path: one.path.clone(),
                    found: one.uuid.to_string(),
                    other: first.path.clone(),
                    there: first.uuid.to_string(),
                });
            }
        }
        Ok(first)
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
        for path in entries_in(directory)? {
            if !observer.progress(0, input::UNKNOWN) {
                return Err(Error::Interrupted);
            }
            let opened = match is_file(&path) {
                true => One::open(&path, observer),
                false => Err(Error::NotAPiece { path }),
            };
            match opened {
                Ok(mut one) => {
                    spool.take(&mut one)?;
                    pieces.push(one);
                }
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
        let header = Self::of_one_trace(directory, &pieces)?.header.clone();
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
        let (mut at, mut next) = (HEADER_SIZE as u64, 0);
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
            one.at = at;
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
            next = number.saturating_add(1);
        }
        if pieces
            .last()
            .is_some_and(|one| one.piece.end.is_some_and(|end| !end.is_last))
        {
            lost.push((
                at,
                format!("missing: piece {next} and perhaps others of the trace"),
            ));
        }
        lost.sort_by_key(|lost| lost.0);
        Ok(Pieces {
            header,
            len: at,
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
        let (mut missing, mut next) = (Vec::new(), 0);
        for one in pieces {
            // A number may be forged, so not all that are missing are listed.
            let number = one.piece.number;
            missing.extend((next..number).take(1000));
            next = number.saturating_add(1);
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
        let (mut offset, mut next_seq) = (HEADER_SIZE as u64, 0);
        let mut crc = pieces.first().map(|one| crc32c::crc32c(&one.header));
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
                Some(end) if !end.is_last && is_final => {
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
        self.len
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

    /// Copies bytes of the trace from `at` on until `to` is full.
    ///
    /// # Errors
    ///
    /// Reading failed; [`io::ErrorKind::UnexpectedEof`] if there are too few bytes.
    pub fn read(&self, mut at: u64, mut to: &mut [u8]) -> io::Result<()> {
        if let Some(rest) = usize::try_from(at)
            .ok()
            .and_then(|at| self.header.get(at..))
        {
            let len = rest.len().min(to.len());
            to[..len].copy_from_slice(&rest[..len]);
            to = &mut to[len..];
            at += len as u64;
        }
        let after = self.pieces.partition_point(|one| one.at <= at);
        let mut number = after.saturating_sub(1);
        while !to.is_empty() {
            let one = self
                .pieces
                .get(number)
                .ok_or(io::ErrorKind::UnexpectedEof)?;
            let within = at - one.at;
            let len = one.size.saturating_sub(within).min(to.len() as u64) as usize;
            if len > 0 {
                let (part, rest) = to.split_at_mut(len);
                let read = self
                    .file(number)
                    .and_then(|file| file.read_exact_at(part, one.own + within));
                read.map_err(|e| match e.kind() {
                    io::ErrorKind::UnexpectedEof => e,
                    kind => io::Error::new(kind, format!("{}: {e}", one.path.display())),
                })?;
                to = rest;
                at += len as u64;
            }
            number += 1;
        }
        Ok(())
    }
}

/// Joins pieces: writes the trace that they are pieces of to `out`, which messages call `name`. Each
/// of `paths` is a piece or a directory of pieces. Each piece's checksum is verified.
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
    out.write_all(&pieces.header).writing(name)?;
    let mut crc = crc32c::crc32c(&pieces.header);
    let mut part = vec![0; PART];
    for one in &pieces.pieces {
        let unreadable = |source| Error::Unreadable {
            path: one.path.clone(),
            source,
        };
        let file = one.file().map_err(unreadable)?;
        let mut done = 0;
        while done < one.size {
            if !observer.progress(one.piece.offset + done, pieces.len) {
                return Err(Error::Interrupted);
            }
            let len = (one.size - done).min(PART as u64) as usize;
            let read = file.read_exact_at(&mut part[..len], one.own + done);
            read.map_err(unreadable)?;
            crc = crc32c::crc32c_append(crc, &part[..len]);
            out.write_all(&part[..len]).writing(name)?;
            done += len as u64;
        }
        if one.piece.end.is_none_or(|end| end.crc != crc) {
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
        bytes: pieces.len,
    })
}
