//! The directory of a trace that is written in pieces.
//!
//! The piece with number 5 is `00005.vmtrace`, as `postproc split` names it. All pieces but the
//! one that is being written are complete and do not change any more. Names that begin with a
//! full stop are for what is not finished: readers of the directory leave them out.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rust_mm_trace::uapi::{
    VMTRACE_HEADER_SIZE, VMTRACE_MAGIC, VMTRACE_PACKET_MAGIC, VMTRACE_STREAM_PIECE,
    VMTRACE_STREAM_PIECE_END, vmtrace_header, vmtrace_packet, vmtrace_piece, vmtrace_piece_end,
};

/// The name of a piece's file.
pub fn name(number: u32) -> String {
    format!("{number:05}.vmtrace")
}

/// The number of the piece whose file has this name.
fn number(name: &str) -> Option<u32> {
    let number = name.strip_suffix(".vmtrace")?.parse().ok()?;
    (self::name(number) == name).then_some(number)
}

/// The numbers of all pieces in a directory, in order, and the bytes of their files.
pub fn list(directory: &Path) -> io::Result<Vec<(u32, u64)>> {
    let mut pieces = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let Some(number) = entry.file_name().to_str().and_then(number) else {
            continue;
        };
        match entry.metadata() {
            Ok(meta) => pieces.push((number, meta.len())),
            // It was removed meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    pieces.sort_unstable();
    Ok(pieces)
}

/// Removes the oldest complete pieces while the others together still have `keep` bytes. The
/// piece that is being written, `present`, and the last one before that stay in any case.
pub fn prune(directory: &Path, keep: u64, present: u32) -> io::Result<Vec<u32>> {
    let mut pieces = list(directory)?;
    pieces.retain(|(number, _)| *number < present);
    let mut left: u64 = pieces.iter().map(|(_, bytes)| bytes).sum();
    pieces.pop();
    let mut removed = Vec::new();
    for (number, bytes) in pieces {
        left -= bytes;
        if left < keep {
            break;
        }
        fs::remove_file(directory.join(name(number)))?;
        removed.push(number);
    }
    Ok(removed)
}

/// What a file says about the piece that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The trace's.
    pub uuid: [u8; 16],
    /// The piece's.
    pub number: u32,
    /// Whether its last packet is there.
    pub is_complete: bool,
}

const HEADER: usize = VMTRACE_HEADER_SIZE as usize;
const HEAD: usize = size_of::<vmtrace_packet>();

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let part = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*part))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let part = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*part))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let part = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*part))
}

fn uuid_at(bytes: &[u8], at: usize) -> Option<[u8; 16]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Whether a packet of this trace begins with these bytes.
fn is_packet(bytes: &[u8], uuid: &[u8; 16], kind: u32, content: usize) -> bool {
    u64_at(bytes, 0) == Some(VMTRACE_PACKET_MAGIC)
        && uuid_at(bytes, offset_of!(vmtrace_packet, uuid)).as_ref() == Some(uuid)
        && u16_at(bytes, offset_of!(vmtrace_packet, kind)).map(u32::from) == Some(kind)
        && u32_at(bytes, offset_of!(vmtrace_packet, content_size)) == Some(content as u32)
}

/// Reads which piece a file is; `None` if it is none. `postproc` checks the rest.
pub fn read(file: &File) -> io::Result<Option<Told>> {
    let mut bytes = [0; HEADER + HEAD + size_of::<vmtrace_piece>()];
    match file.read_exact_at(&mut bytes, 0) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let Some(uuid) = uuid_at(&bytes, offset_of!(vmtrace_header, uuid))
        .filter(|_| u64_at(&bytes, 0) == Some(VMTRACE_MAGIC))
    else {
        return Ok(None);
    };
    let packet = &bytes[HEADER..];
    let size = size_of::<vmtrace_piece>();
    if !is_packet(packet, &uuid, VMTRACE_STREAM_PIECE, size) {
        return Ok(None);
    }
    let at = HEAD + offset_of!(vmtrace_piece, number);
    let Some(number) = u32_at(packet, at) else {
        return Ok(None);
    };
    let mut end = [0; HEAD + size_of::<vmtrace_piece_end>()];
    let at = file.metadata()?.len().saturating_sub(end.len() as u64);
    file.read_exact_at(&mut end, at)?;
    let size = size_of::<vmtrace_piece_end>();
    let at = HEAD + offset_of!(vmtrace_piece_end, number);
    let is_complete =
        is_packet(&end, &uuid, VMTRACE_STREAM_PIECE_END, size) && u32_at(&end, at) == Some(number);
    Ok(Some(Told {
        uuid,
        number,
        is_complete,
    }))
}

/// Pieces that are in a directory of their own now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collected {
    /// The number of the first one.
    pub first: u32,
    /// The number of the last one.
    pub last: u32,
    /// Bytes of their files.
    pub bytes: u64,
    /// Of these, bytes that had to be copied.
    pub copied: u64,
}

/// Why there is no collection of pieces. Nothing is left of it.
#[derive(Debug, PartialEq, Eq)]
pub enum Uncollected {
    /// The caller did not want to go on.
    Interrupted,
    /// The last of the pieces is not there any more.
    Gone,
    /// What is wrong.
    Failed(String),
}

/// A directory that is removed unless it gets its name.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The directory in which a collection is made before it is called `to`.
pub fn unfinished(to: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(to.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    to.with_file_name(name)
}

/// A piece that is to be collected. While it is open, its bytes are there, even if somebody
/// removes it.
struct Source {
    number: u32,
    path: PathBuf,
    /// `None` if too many files are open.
    file: Option<File>,
}

/// The pieces that end with `last`, as many as there are without a gap, from the last one on.
fn sources(directory: &Path, last: u32) -> Result<Vec<Source>, Uncollected> {
    let pieces = list(directory).map_err(|e| failed(directory, &e))?;
    let mut found = Vec::new();
    let mut next = Some(last);
    for (number, _) in pieces.into_iter().rev().skip_while(|(n, _)| *n > last) {
        if next != Some(number) {
            break;
        }
        let path = directory.join(name(number));
        let file = match File::open(&path) {
            Ok(file) => Some(file),
            // Whoever removes pieces begins with the oldest ones.
            Err(e) if e.kind() == io::ErrorKind::NotFound => break,
            Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => None,
            Err(e) => return Err(failed(&path, &e)),
        };
        found.push(Source { number, path, file });
        next = number.checked_sub(1);
    }
    match found.is_empty() {
        true => Err(Uncollected::Gone),
        false => Ok(found),
    }
}

fn failed(path: &Path, e: &io::Error) -> Uncollected {
    Uncollected::Failed(format!("{}: {e}", path.display()))
}

/// Makes the directory `to` with the complete pieces of a trace up to `last` that are in
/// `directory`, without a gap: links to their files if the file system can do that, or else copies.
/// `go_on` is asked now and then; it gets the bytes that were copied, and the bytes of all pieces.
pub fn collect(
    directory: &Path,
    uuid: &[u8; 16],
    last: u32,
    to: &Path,
    go_on: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Collected, Uncollected> {
    let mut sources = sources(directory, last)?;
    let size = |s: &Source| s.file.as_ref().and_then(|f| f.metadata().ok());
    let all: u64 = sources.iter().filter_map(size).map(|m| m.len()).sum();
    let temporary = unfinished(to);
    fs::create_dir(&temporary).map_err(|e| failed(to, &e))?;
    let temporary = Unfinished(temporary);
    let mut done = Collected {
        first: last,
        last,
        bytes: 0,
        copied: 0,
    };
    for source in &mut sources {
        if !go_on(done.copied, all) {
            return Err(Uncollected::Interrupted);
        }
        let path = temporary.0.join(name(source.number));
        let linked = fs::hard_link(&source.path, &path);
        let is_there = match &linked {
            Ok(()) => true,
            Err(e) if e.kind() == io::ErrorKind::NotFound && source.file.is_none() => false,
            Err(_) => copy(source, &path, &mut done.copied, all, go_on)?,
        };
        if !is_there {
            break;
        }
        let file = File::open(&path).map_err(|e| failed(&path, &e))?;
        let told = read(&file).map_err(|e| failed(&path, &e))?;
        let expected = Told {
            uuid: *uuid,
            number: source.number,
            is_complete: true,
        };
        if told != Some(expected) {
            return Err(Uncollected::Failed(format!(
                "{} is not the complete piece {} of this trace",
                source.path.display(),
                source.number
            )));
        }
        done.bytes += file.metadata().map_err(|e| failed(&path, &e))?.len();
        done.first = source.number;
        source.file = None;
    }
    if done.bytes == 0 {
        return Err(Uncollected::Gone);
    }
    let sync = |path: &Path| File::open(path).and_then(|dir| dir.sync_all());
    if done.copied > 0 {
        sync(&temporary.0).map_err(|e| failed(to, &e))?;
    }
    if !go_on(done.copied, all) {
        return Err(Uncollected::Interrupted);
    }
    fs::rename(&temporary.0, to).map_err(|e| failed(to, &e))?;
    std::mem::forget(temporary);
    if done.copied > 0 {
        // It has its name, whatever becomes of that in a crash.
        let _ = to.parent().map(sync);
    }
    Ok(done)
}

/// Bytes that are copied at a time.
const PART: usize = 1 << 20;

/// Copies a piece, and waits until the disk has it. False if it is not there any more.
fn copy(
    source: &mut Source,
    to: &Path,
    copied: &mut u64,
    all: u64,
    go_on: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<bool, Uncollected> {
    let mut from = match source.file.take() {
        Some(file) => file,
        None => match File::open(&source.path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(failed(&source.path, &e)),
        },
    };
    let mut file = File::create_new(to).map_err(|e| failed(to, &e))?;
    let mut part = vec![0; PART];
    loop {
        let n = from.read(&mut part).map_err(|e| failed(&source.path, &e))?;
        if n == 0 {
            break;
        }
        file.write_all(&part[..n]).map_err(|e| failed(to, &e))?;
        *copied += n as u64;
        if !go_on(*copied, all) {
            return Err(Uncollected::Interrupted);
        }
    }
    file.sync_all().map_err(|e| failed(to, &e))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Control;
    use crate::fake::Fake;
    use std::os::fd::AsFd;

    /// A directory with so many pieces, the last of which is being written.
    fn pieces(count: u32) -> (tempfile::TempDir, [u8; 16]) {
        let dir = tempfile::tempdir().expect("tempdir");
        let fake = Fake::default();
        fake.start_in_pieces(dir.path());
        for number in 1..count {
            // Each has some bytes.
            let _ = fake.status();
            let path = dir.path().join(name(number));
            let file = File::create_new(&path).expect("create");
            fake.rotate(&path.to_string_lossy(), file.as_fd())
                .expect("rotated");
        }
        let uuid = fake.status().expect("status").raw.uuid;
        (dir, uuid)
    }

    fn numbers(directory: &Path) -> Vec<u32> {
        let list = list(directory).expect("list");
        list.iter().map(|(number, _)| *number).collect()
    }

    #[test]
    fn names() {
        assert_eq!(name(0), "00000.vmtrace");
        assert_eq!(name(123_456), "123456.vmtrace");
        for n in [0, 7, 99_999, 100_000, u32::MAX] {
            assert_eq!(number(&name(n)), Some(n));
        }
        for other in [
            "0.vmtrace",
            "000000.vmtrace",
            "00000.vmt",
            ".00000.vmtrace",
            "+0001.vmtrace",
        ] {
            assert_eq!(number(other), None, "{other}");
        }
    }

    #[test]
    fn what_a_file_tells() {
        let (dir, uuid) = pieces(2);
        let told = |number| {
            let file = File::open(dir.path().join(name(number))).expect("open");
            read(&file).expect("read")
        };
        let want = |number, is_complete| Told {
            uuid,
            number,
            is_complete,
        };
        assert_eq!(told(0), Some(want(0, true)));
        assert_eq!(told(1), Some(want(1, false)));
        for (number, content) in [(2, vec![]), (3, vec![0; 10_000])] {
            fs::write(dir.path().join(name(number)), content).expect("write");
            assert_eq!(told(number), None);
        }
    }

    #[test]
    fn the_newest_are_kept() {
        let (dir, _) = pieces(6);
        fs::write(dir.path().join("other"), "").expect("write");
        let one = list(dir.path()).expect("list")[0].1;
        assert_eq!(prune(dir.path(), 5 * one, 5).expect("pruned"), [0; 0]);
        assert_eq!(prune(dir.path(), 4 * one + 1, 5).expect("pruned"), [0; 0]);
        assert_eq!(prune(dir.path(), 4 * one, 5).expect("pruned"), [0]);
        assert_eq!(prune(dir.path(), 2 * one + 1, 5).expect("pruned"), [1]);
        assert_eq!(numbers(dir.path()), [2, 3, 4, 5]);
        // The last complete one stays, however small it is.
        assert_eq!(prune(dir.path(), 1, 5).expect("pruned"), [2, 3]);
        assert_eq!(prune(dir.path(), 1, 5).expect("pruned"), [0; 0]);
        assert_eq!(numbers(dir.path()), [4, 5]);
    }

    #[test]
    fn pieces_are_collected() {
        let (dir, uuid) = pieces(5);
        let to = dir.path().join("to");
        let got = collect(dir.path(), &uuid, 3, &to, &mut |_, _| true).expect("collected");
        assert_eq!((got.first, got.last, got.copied), (0, 3, 0));
        assert_eq!(numbers(&to), [0, 1, 2, 3]);
        let bytes: u64 = list(&to).expect("list").iter().map(|p| p.1).sum();
        assert_eq!(got.bytes, bytes);
        // It is there already.
        let again = collect(dir.path(), &uuid, 3, &to, &mut |_, _| true);
        assert!(matches!(again, Err(Uncollected::Failed(_))), "{again:?}");
        // What is before a gap does not belong to it.
        fs::remove_file(dir.path().join(name(1))).expect("removed");
        let to = dir.path().join("gap");
        let got = collect(dir.path(), &uuid, 3, &to, &mut |_, _| true).expect("collected");
        assert_eq!((got.first, got.last), (2, 3));
        let gone = collect(dir.path(), &uuid, 1, &dir.path().join("no"), &mut |_, _| {
            true
        });
        assert_eq!(gone, Err(Uncollected::Gone));
    }

    #[test]
    fn what_is_not_right_is_no_collection() {
        let (dir, uuid) = pieces(4);
        let to = dir.path().join("to");
        let no = collect(dir.path(), &uuid, 3, &to, &mut |_, _| true);
        let Err(Uncollected::Failed(why)) = no else {
            panic!("{no:?}");
        };
        assert!(
            why.ends_with("00003.vmtrace is not the complete piece 3 of this trace"),
            "{why}"
        );
        let other = collect(dir.path(), &[1; 16], 2, &to, &mut |_, _| true);
        assert!(matches!(other, Err(Uncollected::Failed(_))), "{other:?}");
        let mut asked = 0;
        let stopped = collect(dir.path(), &uuid, 2, &to, &mut |_, _| {
            asked += 1;
            asked < 3
        });
        assert_eq!(stopped, Err(Uncollected::Interrupted));
        let left = fs::read_dir(dir.path()).expect("dir").count();
        assert_eq!(left, 4, "nothing is left of them");
    }

    #[test]
    fn pieces_are_copied_to_another_file_system() {
        use std::os::unix::fs::MetadataExt;
        let (dir, uuid) = pieces(4);
        let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev());
        let memory = Path::new("/dev/shm");
        if device(memory).is_err() || device(memory).ok() == device(dir.path()).ok() {
            // There is no other one here.
            return;
        }
        let there = tempfile::tempdir_in(memory).expect("tempdir");
        let to = there.path().join("to");
        let mut told = Vec::new();
        let got = collect(dir.path(), &uuid, 2, &to, &mut |done, of| {
            told.push((done, of));
            true
        });
        let got = got.expect("collected");
        assert_eq!((got.first, got.last, got.copied), (0, 2, got.bytes));
        assert!(told.is_sorted() && told.last() == Some(&(got.bytes, got.bytes)));
        for number in 0..3 {
            let read = |of: &Path| fs::read(of.join(name(number))).expect("read");
            assert!(read(&to) == read(dir.path()));
        }
        let to = there.path().join("stopped");
        let stopped = collect(dir.path(), &uuid, 2, &to, &mut |done, _| done == 0);
        assert_eq!(stopped, Err(Uncollected::Interrupted));
        assert_eq!(fs::read_dir(there.path()).expect("dir").count(), 1);
    }

    #[test]
    fn a_piece_that_is_removed_meanwhile_is_copied_if_it_is_open() {
        let (dir, uuid) = pieces(4);
        let to = dir.path().join("to");
        let got = collect(dir.path(), &uuid, 2, &to, &mut |_, _| {
            let _ = fs::remove_file(dir.path().join(name(0)));
            true
        });
        let got = got.expect("collected");
        assert_eq!((got.first, got.last), (0, 2));
        assert!(got.copied > 0);
        assert_eq!(numbers(&to), [0, 1, 2]);
    }
}
