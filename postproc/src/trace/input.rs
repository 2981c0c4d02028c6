//! What a trace may be read from: a file, a pipe, and either of them compressed by Zstandard.
//!
//! A trace is read at several places at once. So what can only be read from its beginning to its
//! end is copied to a temporary file without a name first, in the directory that TMPDIR names. The
//! copy has holes where the trace has only zeros. The first bytes must be those of a trace, or
//! nothing more is read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

use super::wire::HEADER_SIZE;
use crate::error::{Error, Result};
use crate::pipeline::Observer;

/// What a trace is read from, when it can be read at any place.
pub(super) struct Input {
    /// What messages call it.
    pub path: PathBuf,
    pub file: File,
    /// Bytes in the file.
    pub len: u64,
    /// Why the trace does not go on after these bytes, if its Zstandard frames are damaged.
    pub damage: Option<String>,
}

/// Checks the beginning of a trace, before the rest is copied.
pub(super) type CheckHead<'a> = &'a dyn Fn(&Path, &[u8]) -> Result<()>;

/// What [`Observer::progress`] gets as the total if nobody knows it.
pub const UNKNOWN: u64 = u64::MAX;

/// The largest window of a frame of Zstandard that is accepted, as a power of two: what `zstd`
/// accepts without `--long`, or `zstd --long` makes.
const WINDOW_LOG: u32 = 27;
/// A frame of Zstandard may say much in a few bytes. A copy takes at most so many bytes of disk for
/// each compressed byte, and so many bytes more.
const RATIO: u64 = 1000;
const FREE: u64 = 64 << 20;
/// Bytes that are copied at a time.
const PART: usize = 1 << 17;
/// A part of a copy with only zeros becomes a hole if it is so long.
const BLOCK: usize = 1 << 12;

/// Standard input was read to its end.
static STDIN_TAKEN: AtomicBool = AtomicBool::new(false);

/// Whether a frame of Zstandard begins with these bytes, or one that is to be skipped.
fn is_zstd(head: &[u8]) -> bool {
    let magic = head.first_chunk().map(|m| u32::from_le_bytes(*m));
    matches!(magic, Some(0xfd2f_b528 | 0x184d_2a50..=0x184d_2a5f))
}

/// Opens what `path` names; `-` is standard input.
///
/// # Errors
///
/// [`Error::Unreadable`], [`Error::NotAFile`], [`Error::Empty`], [`Error::StdinTwice`];
/// [`Error::Spool`], [`Error::Window`] or [`Error::Expands`] if it cannot be copied;
/// [`Error::Interrupted`]; and what `check` gives.
pub(super) fn open(
    path: &Path,
    check: CheckHead<'_>,
    observer: &mut dyn Observer,
) -> Result<Input> {
    let is_stdin = path == Path::new("-");
    let path: PathBuf = match is_stdin {
        true => "standard input".into(),
        false => path.into(),
    };
    let unreadable = |source| Error::Unreadable {
        path: path.clone(),
        source,
    };
    let stdin = io::stdin();
    let mut file = match is_stdin {
        true => stdin.as_fd().try_clone_to_owned().map(File::from),
        false => File::open(&path),
    }
    .map_err(unreadable)?;
    let meta = file.metadata().map_err(unreadable)?;
    let kind = meta.file_type();
    let what = match kind {
        k if k.is_dir() => Some("a directory"),
        k if k.is_char_device() => Some("a character device"),
        _ => None,
    };
    if let Some(what) = what {
        return Err(Error::NotAFile { path, what });
    }
    let mut place = 0;
    if kind.is_file() || kind.is_block_device() {
        // Standard input may have been read in part.
        place = file.stream_position().map_err(unreadable)?;
        // stat() says 0 for a block device; its end says how long it is.
        let len = file.seek(SeekFrom::End(0)).map_err(unreadable)?;
        file.seek(SeekFrom::Start(place)).map_err(unreadable)?;
        if len <= place {
            return Err(Error::Empty { path });
        }
        let mut head = [0; 4];
        let is_compressed = len - place >= 4
            && std::os::unix::fs::FileExt::read_exact_at(&file, &mut head, place)
                .map(|()| is_zstd(&head))
                .map_err(unreadable)?;
        if !is_compressed && place == 0 {
            return Ok(Input {
                path,
                file,
                len,
                damage: None,
            });
        }
        place = len - place;
    } else if is_standard_input(&meta) && STDIN_TAKEN.swap(true, Ordering::Relaxed) {
        return Err(Error::StdinTwice { path });
    }
    let total = match place {
        0 => UNKNOWN,
        left => left,
    };
    let mut copy = Copy::new(path, total, check, observer)?;
    copy.take(file)?;
    copy.finish()
}

/// Whether this is the pipe or socket that is standard input, whatever its name.
fn is_standard_input(meta: &std::fs::Metadata) -> bool {
    let stdin = io::stdin().as_fd().try_clone_to_owned().map(File::from);
    let same = |m: std::fs::Metadata| (m.dev(), m.ino()) == (meta.dev(), meta.ino());
    stdin.and_then(|f| f.metadata()).is_ok_and(same)
}

/// Copies a stream to a temporary file.
struct Copy<'a> {
    path: PathBuf,
    directory: PathBuf,
    file: File,
    /// Bytes of the trace so far.
    len: u64,
    /// Of these, bytes that are no holes.
    stored: u64,
    /// Bytes that were read.
    read: u64,
    total: u64,
    /// The first bytes, until they are checked.
    head: Option<Vec<u8>>,
    damage: Option<String>,
    check: CheckHead<'a>,
    observer: &'a mut dyn Observer,
}

impl<'a> Copy<'a> {
    fn new(
        path: PathBuf,
        total: u64,
        check: CheckHead<'a>,
        observer: &'a mut dyn Observer,
    ) -> Result<Self> {
        let directory = std::env::temp_dir();
        let file = crate::unfinished::nameless_in(&directory).map_err(|source| Error::Spool {
            path: path.clone(),
            directory: directory.clone(),
            source,
        })?;
        Ok(Copy {
            path,
            directory,
            file,
            len: 0,
            stored: 0,
            read: 0,
            total,
            head: Some(Vec::new()),
            damage: None,
            check,
            observer,
        })
    }

    fn unreadable(&self, source: io::Error) -> Error {
        Error::Unreadable {
            path: self.path.clone(),
            source,
        }
    }

    /// Copies all that the stream has.
    fn take(&mut self, from: File) -> Result<()> {
        let mut from = BufReader::with_capacity(PART, from);
        // A pipe may give its first bytes one by one.
        let mut first = Vec::new();
        let read = from.by_ref().take(4).read_to_end(&mut first);
        read.map_err(|e| self.unreadable(e))?;
        let mut from = io::Cursor::new(first.clone()).chain(from);
        if is_zstd(&first) {
            return self.decompress(&mut from);
        }
        loop {
            let part = filled(&mut from).map_err(|e| self.unreadable(e))?;
            if part.is_empty() {
                return Ok(());
            }
            let len = part.len();
            self.push(part)?;
            from.consume(len);
            self.progress(len)?;
        }
    }

    fn progress(&mut self, more: usize) -> Result<()> {
        self.read += more as u64;
        match self.observer.progress(self.read, self.total) {
            true => Ok(()),
            false => Err(Error::Interrupted),
        }
    }

    /// Decompresses frame after frame.
    fn decompress(&mut self, from: &mut dyn BufRead) -> Result<()> {
        let mut decoder = Decoder::new().map_err(|e| self.unreadable(e))?;
        let window = zstd::zstd_safe::DParameter::WindowLogMax(WINDOW_LOG);
        decoder
            .set_parameter(window)
            .map_err(|e| self.unreadable(e))?;
        let mut plain = vec![0; PART];
        // Whether a frame has begun and not ended, and the bytes of it that were written.
        let mut inside = false;
        loop {
            let part = filled(from).map_err(|e| self.unreadable(e))?;
            if part.is_empty() {
                if inside {
                    self.damage = Some("the Zstandard stream is cut off".into());
                }
                return Ok(());
            }
            let mut input = InBuffer::around(part);
            let mut failed = None;
            // Of one part of the input, all that it gives.
            loop {
                let mut output = OutBuffer::around(&mut plain[..]);
                let before = input.pos();
                let hint = match decoder.run(&mut input, &mut output) {
                    Ok(hint) => hint,
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                };
                let written = output.pos();
                inside = hint != 0;
                self.push(&plain[..written])?;
                let allowed = self.read.saturating_add(input.pos() as u64);
                if self.stored > FREE.saturating_add(allowed.saturating_mul(RATIO)) {
                    return Err(Error::Expands {
                        path: self.path.clone(),
                        ratio: RATIO,
                    });
                }
                // Holes take no disk, but time.
                if !self.observer.progress(self.read, self.total) {
                    return Err(Error::Interrupted);
                }
                if hint == 0 {
                    decoder.reinit().map_err(|e| self.unreadable(e))?;
                }
                let over = input.pos() == part.len() && (hint == 0 || written < PART);
                if over || (input.pos() == before && written == 0) {
                    break;
                }
            }
            let len = part.len();
            if let Some(error) = failed {
                let said = error.to_string();
                if said.contains("too much memory") {
                    return Err(Error::Window {
                        path: self.path.clone(),
                        log: WINDOW_LOG,
                    });
                }
                let at = self.read.saturating_add(input.pos() as u64);
                self.damage = Some(format!(
                    "the Zstandard stream is damaged near its byte {at} ({said}), and cannot be \
                     read on"
                ));
                return Ok(());
            }
            from.consume(len);
            self.progress(len)?;
        }
    }

    /// Adds bytes of the trace.
    fn push(&mut self, mut part: &[u8]) -> Result<()> {
        if let Some(head) = &mut self.head {
            let more = part.len().min(HEADER_SIZE - head.len());
            head.extend_from_slice(&part[..more]);
            part = &part[more..];
            if head.len() < HEADER_SIZE {
                return Ok(());
            }
            self.begin()?;
        }
        while !part.is_empty() {
            // Of a block that ends where one of the file does.
            let room = BLOCK - (self.len % BLOCK as u64) as usize;
            let (block, rest) = part.split_at(room.min(part.len()));
            self.write(block)?;
            part = rest;
        }
        Ok(())
    }

    /// Checks the first bytes, and writes them.
    fn begin(&mut self) -> Result<()> {
        let Some(head) = self.head.take() else {
            return Ok(());
        };
        if head.is_empty() {
            return Ok(());
        }
        (self.check)(&self.path, &head)?;
        self.write(&head)
    }

    fn write(&mut self, block: &[u8]) -> Result<()> {
        let wrote = if block.iter().all(|&b| b == 0) {
            self.file.seek_relative(block.len() as i64)
        } else {
            self.stored += block.len() as u64;
            self.file.write_all(block)
        };
        self.len += block.len() as u64;
        wrote.map_err(|source| self.no_room(source))
    }

    fn no_room(&self, source: io::Error) -> Error {
        Error::Spool {
            path: self.path.clone(),
            directory: self.directory.clone(),
            source,
        }
    }

    fn finish(mut self) -> Result<Input> {
        self.begin()?;
        if self.len == 0 {
            return Err(match self.damage {
                Some(why) => Error::Compressed {
                    path: self.path,
                    why,
                },
                None => Error::Empty { path: self.path },
            });
        }
        // It may end with a hole.
        self.file
            .set_len(self.len)
            .map_err(|source| self.no_room(source))?;
        Ok(Input {
            path: self.path,
            file: self.file,
            len: self.len,
            damage: self.damage,
        })
    }
}

/// What can be read now; empty at the end.
fn filled(from: &mut (impl BufRead + ?Sized)) -> io::Result<&[u8]> {
    loop {
        match from.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
            Ok(_) => break,
        }
    }
    from.fill_buf()
}
