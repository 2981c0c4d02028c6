//! Joins the parts of processes: see [`super::part`].
//!
//! The frame says which packets of references the trace had, and in which order. The parts have the
//! records of these packets. They are distributed to a temporary file first, in which stretches of
//! packets that follow each other in the trace have places of their own. Then each stretch is read into
//! memory, and its records are sorted into their packets.
//!
//! Memory: 60 bytes for each packet of references, a buffer for each stretch, and one stretch. One part
//! is open at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use byteorder::{ByteOrder, LittleEndian as LE};
use rust_mm_trace::uapi;

use super::codec::{Packer, Unpacker};
use super::part::{
    FRAME_HEAD, FRAME_MAGIC, FRAME_NAME, FRAME_VERSION, LITERAL, MadePart, PACKED, PLAIN, Reunited,
    Table, VERBATIM,
};
use super::piece::put;
use super::source::{Trace, check_header};
use super::wire::{
    HEAD_SIZE, HEADER_SIZE, Header, PacketHead, StreamId, StreamKind, Uuid, packet_crc,
};
use crate::error::{Error, OutputContext, Result};
use crate::pipeline::Observer;
use crate::unfinished;

/// Bytes of records in a stretch, at least; and how many stretches there are at most. Few bytes in tests
/// of this crate, so that there are several.
const STRETCH: u64 = if cfg!(test) { 1 << 11 } else { 16 << 20 };
const STRETCHES: u64 = 256;
/// Bytes of records of a stretch that are written to the temporary file at a time.
const BUFFER: usize = if cfg!(test) { 1 << 8 } else { 1 << 16 };
/// Bytes that are copied at a time.
const COPY: usize = 1 << 20;
/// What stands before a record in the temporary file: the packet, by its place in the stretch.
const PLACE: usize = 4;

/// Joins the parts of a trace: writes the trace that was divided by processes to `out`, which messages
/// call `name`. Each of `paths` is a part, the frame, or a directory of these.
///
/// # Errors
///
/// The frame or a part is missing, is there twice, was changed, or is of another trace; reading or
/// writing failed; or [`Error::Interrupted`].
pub fn unite(
    paths: &[PathBuf],
    mut out: impl Write,
    name: &str,
    observer: &mut dyn Observer,
) -> Result<Reunited> {
    let of = match paths {
        [only] => only.clone(),
        _ => "these files".into(),
    };
    let (frame, files) = find(paths, &of)?;
    let frame = Frame::open(&frame)?;
    let mut work = Work {
        observer,
        done: 0,
        total: {
            let parts = frame.table.parts.iter();
            let twice = parts.map(|part| part.bytes.saturating_mul(2));
            twice.fold(frame.bytes, u64::saturating_add)
        },
    };
    let parts = identify(&frame, &files, &of, &mut work)?;
    let mut records = Records::of(&frame)?;
    for (part, path) in frame.table.parts.iter().zip(&parts) {
        records.take(path, &mut work)?;
        work.done += part.bytes;
    }
    records.settle()?;
    let bytes = frame.write(&mut records, &mut out, name, &mut work)?;
    out.flush().writing(name)?;
    Ok(Reunited {
        uuid: frame.uuid,
        parts: parts.len() as u64,
        bytes,
    })
}

/// How far the work is.
struct Work<'o> {
    observer: &'o mut dyn Observer,
    done: u64,
    total: u64,
}

impl Work<'_> {
    fn progress(&mut self, more: u64) -> Result<()> {
        let done = self.done.saturating_add(more).min(self.total);
        match self.observer.progress(done, self.total) {
            true => Ok(()),
            false => Err(Error::Interrupted),
        }
    }
}

/// The frame and the other files among those that were given.
fn find(paths: &[PathBuf], of: &Path) -> Result<(PathBuf, Vec<PathBuf>)> {
    let unreadable = |path: &Path| {
        let path = path.to_path_buf();
        move |source| Error::Unreadable { path, source }
    };
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        for entry in path.read_dir().map_err(unreadable(path))? {
            let entry = entry.map_err(unreadable(path))?;
            // Those whose names begin with a full stop are not finished.
            if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                files.push(entry.path());
            }
        }
    }
    files.sort_unstable();
    let mut frame: Option<PathBuf> = None;
    let mut others = Vec::new();
    for path in files {
        // Opening a pipe could wait for ever.
        if !path.metadata().map_err(unreadable(&path))?.is_file() {
            return Err(Error::NotAPart { path });
        }
        let mut magic = [0; 8];
        let file = File::open(&path).map_err(unreadable(&path))?;
        let is_frame = match file.read_exact_at(&mut magic, 0) {
            Ok(()) => magic == FRAME_MAGIC,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(source) => return Err(Error::Unreadable { path, source }),
        };
        match (is_frame, &frame) {
            (false, _) => others.push(path),
            (true, None) => frame = Some(path),
            (true, Some(other)) => {
                let other = other.clone();
                return Err(Error::PartTwice { path, other });
            }
        }
    }
    let missing = || Error::FrameMissing {
        path: of.into(),
        name: FRAME_NAME,
    };
    // A frame that was damaged at its beginning is known by its name.
    let by_name = others.iter().position(|path| path.ends_with(FRAME_NAME));
    match (frame, by_name) {
        (Some(frame), _) => Ok((frame, others)),
        (None, Some(at)) => Ok((others.remove(at), others)),
        (None, None) => Err(missing()),
    }
}

/// Finds out which part each file is, and verifies its checksum. Gives the files of all parts in order.
fn identify(
    frame: &Frame,
    files: &[PathBuf],
    of: &Path,
    work: &mut Work<'_>,
) -> Result<Vec<PathBuf>> {
    let table = &frame.table.parts;
    let mut found: Vec<Option<PathBuf>> = vec![None; table.len()];
    for path in files {
        let trace = Trace::open_watched(path, work.observer).map_err(|error| match error {
            Error::Foreign { path, .. } | Error::Empty { path } => Error::NotAPart { path },
            error => error,
        })?;
        let path = path.clone();
        if !trace.is_partial() {
            return Err(Error::NotAPart { path });
        }
        if trace.header().uuid != frame.uuid {
            return Err(Error::PartOfAnother {
                path,
                found: trace.header().uuid.to_string(),
                other: frame.path.clone(),
                there: frame.uuid.to_string(),
            });
        }
        let damaged = |why: String| Error::PartDamaged {
            path: path.clone(),
            why,
        };
        let Some(part) = trace.part() else {
            let why = "the packet that says which part it is, is missing or damaged";
            return Err(damaged(why.into()));
        };
        let Some(made) = table.get(part.number as usize) else {
            return Err(damaged(format!(
                "it is part {}, and the frame knows {} parts: it is of another division of the trace",
                part.number,
                table.len()
            )));
        };
        if trace.file_bytes() != made.bytes {
            return Err(damaged(format!(
                "it has {} bytes, and the frame says that it had {}",
                trace.file_bytes(),
                made.bytes
            )));
        }
        let (mut crc, mut at, mut bytes) = (0, 0, Vec::new());
        while at < made.bytes {
            work.progress(at)?;
            bytes.resize((made.bytes - at).min(COPY as u64) as usize, 0);
            let read = trace.bytes().read(at, &mut bytes);
            read.map_err(|source| trace.unreadable(source))?;
            crc = crc32c::crc32c_append(crc, &bytes);
            at += bytes.len() as u64;
        }
        work.done += made.bytes;
        if crc != made.crc {
            return Err(damaged(
                "its checksum is not the one in the frame: it was changed, or is of another division \
                 of the trace"
                    .into(),
            ));
        }
        if let Some(other) = found[part.number as usize].replace(path.clone()) {
            return Err(Error::PartTwice { path, other });
        }
    }
    let missing: Vec<&MadePart> = table
        .iter()
        .filter(|part| found.get(part.number as usize).is_none_or(Option::is_none))
        .collect();
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter().take(20).map(|p| p.file.as_str()).collect();
        let more = if missing.len() > names.len() {
            " and others"
        } else {
            ""
        };
        return Err(Error::PartMissing {
            path: of.into(),
            what: format!("{}{more}", names.join(", ")),
        });
    }
    Ok(found.into_iter().flatten().collect())
}

/// The frame of a trace.
struct Frame {
    path: PathBuf,
    file: File,
    bytes: u64,
    uuid: Uuid,
    trace_bytes: u64,
    trace_crc: u32,
    /// Bytes of the items.
    body: u64,
    table: Table,
    header: Header,
}

/// What stands in the body of a frame.
enum Item {
    Literal(Vec<u8>),
    /// The head of a packet of references, and how its content is made.
    Refs(Box<([u8; HEAD_SIZE], PacketHead, Form)>),
}

/// How the content of a packet is stored.
enum Form {
    Plain,
    /// With this N, and at this level of Zstandard, or at none.
    Packed(u32, u8),
    Verbatim(Vec<u8>),
}

/// Reads the items of a body.
struct Items<'f> {
    from: io::Take<BufReader<&'f File>>,
    header: Option<&'f Header>,
}

/// What is wrong with an item.
fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Items<'_> {
    fn next(&mut self) -> io::Result<Option<Item>> {
        let mut kind = [0];
        if self.from.read(&mut kind)? == 0 {
            return Ok(None);
        }
        let form = match kind[0] {
            LITERAL => {
                let mut len = [0; 4];
                self.from.read_exact(&mut len)?;
                return Ok(Some(Item::Literal(self.bytes(u32::from_le_bytes(len))?)));
            }
            PACKED => {
                let mut how = [0; 5];
                self.from.read_exact(&mut how)?;
                Form::Packed(LE::read_u32(&how), how[4])
            }
            PLAIN | VERBATIM => Form::Plain,
            _ => return Err(wrong("an item of an unknown kind")),
        };
        let mut raw = [0; HEAD_SIZE];
        self.from.read_exact(&mut raw)?;
        let head = PacketHead::decode(&raw).filter(|head| head.stream.kind == StreamKind::Ref);
        let good = |head: &PacketHead| self.header.is_none_or(|h| head.nonsense(h).is_none());
        let head = head
            .filter(good)
            .ok_or_else(|| wrong("a packet that cannot be"))?;
        let form = match kind[0] {
            VERBATIM => Form::Verbatim(self.bytes(head.content_size)?),
            _ => form,
        };
        Ok(Some(Item::Refs(Box::new((raw, head, form)))))
    }

    fn bytes(&mut self, len: u32) -> io::Result<Vec<u8>> {
        if u64::from(len) > self.from.limit() {
            return Err(wrong("an item that is longer than what is left"));
        }
        let mut bytes = vec![0; len as usize];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl Frame {
    fn open(path: &Path) -> Result<Self> {
        let unreadable = |source| Error::Unreadable {
            path: path.into(),
            source,
        };
        let damaged = |why: &str| Error::FrameDamaged {
            path: path.into(),
            why: why.into(),
        };
        let mut file = File::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        let mut head = [0; FRAME_HEAD];
        if bytes < FRAME_HEAD as u64 {
            return Err(damaged("it is shorter than its head"));
        }
        file.read_exact(&mut head).map_err(unreadable)?;
        if head[..8] != FRAME_MAGIC {
            return Err(damaged("it does not begin as a frame does"));
        }
        let version = LE::read_u32(&head[8..]);
        if version != FRAME_VERSION {
            return Err(damaged(&format!(
                "its format has version {version}, and this program reads version {FRAME_VERSION} \
                 only: use the one that has written it"
            )));
        }
        let body = LE::read_u64(&head[40..]);
        let own = crc32c::crc32c(&head[..FRAME_HEAD - 4]);
        let (mut crc, mut part) = (own, vec![0; COPY]);
        loop {
            let len = file.read(&mut part).map_err(unreadable)?;
            if len == 0 {
                break;
            }
            crc = crc32c::crc32c_append(crc, &part[..len]);
        }
        if crc != LE::read_u32(&head[FRAME_HEAD - 4..]) || body > bytes - FRAME_HEAD as u64 {
            return Err(damaged("its checksum is wrong"));
        }
        let begin = FRAME_HEAD as u64 + body;
        file.seek(SeekFrom::Start(begin)).map_err(unreadable)?;
        let mut table = Vec::new();
        file.read_to_end(&mut table).map_err(unreadable)?;
        let table: Table =
            serde_json::from_slice(&table).map_err(|_| damaged("its table cannot be read"))?;
        let numbered = table
            .parts
            .iter()
            .zip(0..)
            .all(|(part, n)| part.number == n);
        if !numbered {
            return Err(damaged("its table does not have the parts in order"));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&head[16..32]);
        // The trace begins with its header.
        let mut raw = vec![0; 5 + HEADER_SIZE];
        if body < raw.len() as u64 {
            return Err(damaged("it does not have the trace's header"));
        }
        file.read_exact_at(&mut raw, FRAME_HEAD as u64)
            .map_err(unreadable)?;
        let header = check_header(path, &raw[5..])?;
        Ok(Frame {
            path: path.into(),
            bytes,
            uuid: Uuid(uuid),
            trace_bytes: LE::read_u64(&head[32..]),
            trace_crc: LE::read_u32(&head[12..]),
            body,
            table,
            header,
            file,
        })
    }

    fn items(&self) -> Result<Items<'_>> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(FRAME_HEAD as u64))
            .map_err(|source| self.failed(source))?;
        Ok(Items {
            from: BufReader::with_capacity(1 << 18, file).take(self.body),
            header: Some(&self.header),
        })
    }

    /// What an error of reading the body means.
    fn failed(&self, source: io::Error) -> Error {
        let path = self.path.clone();
        match source.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => Error::FrameDamaged {
                path,
                why: source.to_string(),
            },
            _ => Error::Unreadable { path, source },
        }
    }

    fn damaged(&self, why: String) -> Error {
        Error::FrameDamaged {
            path: self.path.clone(),
            why,
        }
    }

    /// Writes the trace; gives its length.
    fn write(
        &self,
        records: &mut Records,
        out: &mut impl Write,
        name: &str,
        work: &mut Work<'_>,
    ) -> Result<u64> {
        let mut items = self.items()?;
        let (mut bytes, mut crc, mut number) = (0u64, 0, 0);
        let mut packers: BTreeMap<u8, Packer> = BTreeMap::new();
        while let Some(item) = items.next().map_err(|e| self.failed(e))? {
            work.progress(self.body - items.from.limit())?;
            let mut put = |b: &[u8]| {
                crc = crc32c::crc32c_append(crc, b);
                bytes += b.len() as u64;
                out.write_all(b).writing(name)
            };
            let (raw, head, form) = match item {
                Item::Literal(literal) => {
                    put(&literal)?;
                    continue;
                }
                Item::Refs(refs) => *refs,
            };
            let content = records.content(self, number)?;
            number += 1;
            let stored = match &form {
                Form::Plain => content,
                Form::Verbatim(stored) => stored,
                Form::Packed(lag, level) => {
                    let packer = match packers.entry(*level) {
                        std::collections::btree_map::Entry::Occupied(packer) => packer.into_mut(),
                        std::collections::btree_map::Entry::Vacant(place) => {
                            let level = Some(i32::from(*level)).filter(|&level| level > 0);
                            place.insert(Packer::new(level).writing(name)?)
                        }
                    };
                    let packed = packer
                        .pack_with(*lag, &self.header, StreamKind::Ref, content)
                        .writing(name)?;
                    packed.map_or(&[][..], |(_, stored)| stored)
                }
            };
            if packet_crc(&raw, stored) != head.crc {
                return Err(self.damaged(format!(
                    "a packet that the parts give has another checksum than in the trace, which \
                     postproc {} has divided; this is postproc {}, which may pack in another way",
                    self.table.postproc,
                    env!("CARGO_PKG_VERSION")
                )));
            }
            put(&raw)?;
            put(stored)?;
        }
        if (bytes, crc) != (self.trace_bytes, self.trace_crc) {
            return Err(self.damaged("it gives another trace than the one that was divided".into()));
        }
        Ok(bytes)
    }
}

/// A packet of references in the trace.
struct Packet {
    first_seq: u64,
    last_seq: u64,
    first_ns: u64,
    records: u32,
    stretch: u32,
    /// Its place in the stretch.
    place: u32,
}

/// Packets that follow each other, and their records.
#[derive(Default)]
struct Stretch {
    /// The first packet.
    first: usize,
    /// Where its records are in the temporary file, how many there are to be, and how many there are.
    at: u64,
    records: u64,
    taken: u64,
    buffer: Vec<u8>,
}

/// The records of all packets, until these are written.
struct Records {
    packets: Vec<Packet>,
    by_stream: BTreeMap<StreamId, Vec<u32>>,
    stretches: Vec<Stretch>,
    file: File,
    directory: PathBuf,
    /// Bytes of a record, and of one in the temporary file.
    size: usize,
    stored: usize,
    unpacker: Unpacker,
    /// The stretch whose records are in memory, in the order of packets.
    now: Option<u32>,
    sorted: Vec<u8>,
    content: Vec<u8>,
    next: usize,
}

impl Records {
    /// Finds the packets.
    fn of(frame: &Frame) -> Result<Self> {
        let directory = std::env::temp_dir();
        let file = unfinished::nameless_in(&directory).map_err(|source| Error::Spool {
            path: frame.path.clone(),
            directory: directory.clone(),
            source,
        })?;
        let size = frame.header.ref_size();
        let mut records = Records {
            packets: Vec::new(),
            by_stream: BTreeMap::new(),
            stretches: Vec::new(),
            file,
            directory,
            size,
            stored: size + PLACE,
            unpacker: Unpacker::default(),
            now: None,
            sorted: Vec::new(),
            content: Vec::new(),
            next: 0,
        };
        let all = frame.table.parts.iter().map(|p| p.reference_records);
        let all = all.fold(0, u64::saturating_add);
        let most = STRETCH.max(all.saturating_mul(size as u64) / STRETCHES) / size as u64;
        let mut items = frame.items()?;
        let mut at = 0;
        while let Some(item) = items.next().map_err(|e| frame.failed(e))? {
            let Item::Refs(refs) = item else {
                continue;
            };
            let head = refs.1;
            let more = u64::from(head.records);
            if records
                .stretches
                .last()
                .is_none_or(|s| s.records > 0 && s.records + more > most)
            {
                records.stretches.push(Stretch {
                    first: records.packets.len(),
                    at,
                    ..Stretch::default()
                });
            }
            let stretch = records.stretches.len() - 1;
            let last = &mut records.stretches[stretch];
            last.records += more;
            at += more * records.stored as u64;
            let number = records.packets.len() as u32;
            let all = records.by_stream.entry(head.stream).or_default();
            let before = all.last().map(|&n| records.packets[n as usize].last_seq);
            if head.records > 0 {
                if before.is_some_and(|last| last >= head.first_seq) {
                    return Err(frame.damaged("its packets are not in order".into()));
                }
                all.push(number);
            }
            records.packets.push(Packet {
                first_seq: head.first_seq,
                last_seq: head.last_seq,
                first_ns: head.first_time_ns,
                records: head.records,
                stretch: stretch as u32,
                place: number - last.first as u32,
            });
        }
        Ok(records)
    }

    fn spooling(&self, path: &Path) -> impl Fn(io::Error) -> Error + use<> {
        let (path, directory) = (path.to_path_buf(), self.directory.clone());
        move |source| Error::Spool {
            path: path.clone(),
            directory: directory.clone(),
            source,
        }
    }

    /// Takes the records of a part.
    fn take(&mut self, path: &Path, work: &mut Work<'_>) -> Result<()> {
        let trace = Trace::open_watched(path, work.observer)?;
        let damaged = |why: &str| Error::PartDamaged {
            path: path.into(),
            why: why.into(),
        };
        let header = trace.header();
        if header.ref_size() != self.size {
            return Err(damaged("its records have another size than the trace's"));
        }
        let (mut read, mut stored, mut content) = (0, Vec::new(), Vec::new());
        let streams = trace.index().streams.iter();
        for stream in streams.filter(|s| s.id.kind == StreamKind::Ref) {
            let none = Vec::new();
            let packets = self.by_stream.get(&stream.id).unwrap_or(&none);
            // Records come in order, and so do packets.
            let (packets, mut next) = (packets.clone(), 0);
            for at in stream.packets.iter() {
                work.progress(read)?;
                let unreadable = |source| trace.unreadable(source);
                let mut raw = [0; HEAD_SIZE];
                trace.bytes().read(at, &mut raw).map_err(unreadable)?;
                let head = PacketHead::decode(&raw).filter(|h| h.nonsense(header).is_none());
                let head = head.ok_or_else(|| damaged("it has changed while it was read"))?;
                stored.resize(head.content_size as usize, 0);
                let begin = at + HEAD_SIZE as u64;
                trace.bytes().read(begin, &mut stored).map_err(unreadable)?;
                read += head.size();
                if packet_crc(&raw, &stored) != head.crc {
                    return Err(damaged("it has changed while it was read"));
                }
                let records = match head.is_packed() {
                    true => {
                        let unpacker = &mut self.unpacker;
                        unpacker
                            .unpack(header, &head, &stored, &mut content)
                            .map_err(damaged)?;
                        &content
                    }
                    false => &stored,
                };
                for record in records.chunks_exact(self.size) {
                    next = self
                        .place(&packets, next, &head, record)
                        .map_err(self.spooling(path))?
                        .ok_or_else(|| {
                            damaged("it has a record that is in no packet of the trace")
                        })?;
                }
            }
        }
        Ok(())
    }

    /// Puts a record where it belongs, which is in the packet `next` of its stream or a later one; gives
    /// which. `None` if it is in none.
    fn place(
        &mut self,
        packets: &[u32],
        mut next: usize,
        head: &PacketHead,
        record: &[u8],
    ) -> io::Result<Option<usize>> {
        type R = uapi::vmtrace_ref;
        let seq = head.first_seq + u64::from(LE::read_u32(&record[offset_of!(R, seq)..]));
        let ns = head.first_time_ns + u64::from(LE::read_u32(&record[offset_of!(R, time)..]));
        let packet = loop {
            let Some(&number) = packets.get(next) else {
                return Ok(None);
            };
            let packet = &self.packets[number as usize];
            if seq <= packet.last_seq {
                break packet;
            }
            next += 1;
        };
        let inside = seq.checked_sub(packet.first_seq);
        let inside = inside.and_then(|seq| u32::try_from(seq).ok());
        let after = ns.checked_sub(packet.first_ns);
        let after = after.and_then(|ns| u32::try_from(ns).ok());
        let (Some(seq), Some(ns)) = (inside, after) else {
            return Ok(None);
        };
        let stretch = &mut self.stretches[packet.stretch as usize];
        let buffered = (stretch.buffer.len() / self.stored) as u64;
        if stretch.taken + buffered >= stretch.records {
            return Ok(None);
        }
        let buffer = &mut stretch.buffer;
        buffer.extend_from_slice(&packet.place.to_le_bytes());
        let begin = buffer.len();
        buffer.extend_from_slice(record);
        put!(buffer[begin..], R, seq, seq);
        put!(buffer[begin..], R, time, ns);
        if buffer.len() >= BUFFER {
            stretch.settle(&self.file, self.stored)?;
        }
        Ok(Some(next))
    }

    /// All parts were read.
    fn settle(&mut self) -> Result<()> {
        let failed = self.spooling(Path::new("the trace"));
        for stretch in &mut self.stretches {
            stretch.settle(&self.file, self.stored).map_err(&failed)?;
            stretch.buffer = Vec::new();
        }
        Ok(())
    }

    /// The records of a packet. Packets are asked for in order.
    fn content(&mut self, frame: &Frame, number: usize) -> Result<&[u8]> {
        let Some(packet) = self.packets.get(number) else {
            return Err(frame.damaged("it has changed while it was read".into()));
        };
        let (stretch, count) = (packet.stretch, packet.records as usize);
        if self.now != Some(stretch) {
            self.load(stretch)
                .map_err(self.spooling(Path::new("the trace")))?;
            (self.now, self.next) = (Some(stretch), 0);
        }
        self.content.clear();
        let place = self.packets[number].place;
        let mut last = None;
        for _ in 0..count {
            let record = self.sorted.get(self.next..self.next + self.stored);
            let record = record.filter(|r| LE::read_u32(r) == place);
            let seq = record.map(|r| key(r).1);
            let Some(record) = record.filter(|_| last.is_none() || last < seq) else {
                return Err(
                    frame.damaged("the parts do not have the records of its packets".into())
                );
            };
            last = seq;
            self.content.extend_from_slice(&record[PLACE..]);
            self.next += self.stored;
        }
        Ok(&self.content)
    }

    /// Reads the records of a stretch, and sorts them.
    fn load(&mut self, number: u32) -> io::Result<()> {
        let stretch = &self.stretches[number as usize];
        let mut raw = vec![0; (stretch.taken as usize) * self.stored];
        self.file.read_exact_at(&mut raw, stretch.at)?;
        let mut order: Vec<(u32, u32, u32)> = raw
            .chunks_exact(self.stored)
            .zip(0..)
            .map(|(record, at)| {
                let (place, seq) = key(record);
                (place, seq, at)
            })
            .collect();
        order.sort_unstable();
        self.sorted.clear();
        self.sorted.reserve(raw.len());
        for (.., at) in order {
            let begin = at as usize * self.stored;
            self.sorted
                .extend_from_slice(&raw[begin..begin + self.stored]);
        }
        Ok(())
    }
}

/// The packet, by its place, and the number of a record in the temporary file.
fn key(record: &[u8]) -> (u32, u32) {
    let seq = PLACE + offset_of!(uapi::vmtrace_ref, seq);
    (LE::read_u32(record), LE::read_u32(&record[seq..]))
}

impl Stretch {
    /// Writes the buffer to the temporary file.
    fn settle(&mut self, file: &File, stored: usize) -> io::Result<()> {
        let at = self.at + self.taken * stored as u64;
        file.write_all_at(&self.buffer, at)?;
        self.taken += (self.buffer.len() / stored) as u64;
        self.buffer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Unwatched;
    use crate::testing::TraceBuilder;
    use crate::trace::divide;
    use crate::units::Prot;

    /// More records than memory may hold, of more processes than a packet has records.
    #[test]
    fn many_processes_in_little_memory() {
        let mut b = TraceBuilder::new(2, 16);
        b.header_mut().buffer_size = 4096;
        for i in 0..300 {
            b.task(0, 10 + i, 10 + i, 1 + i, "program");
            b.map_anon(0, 10 + i, 1 + i, 0x1000, 0x90_0000, Prot(3));
        }
        for i in 0..9000u32 {
            let process = i * i % 307 % 300;
            let page = u64::from(i) * 7 % 1000 + 1;
            b.touch(i % 2, 10 + process, 1 + process, page << 12);
        }
        let bytes = b.finish();
        let trace = Trace::from_bytes("t", bytes.clone()).expect("a trace");
        let directory = tempfile::tempdir().expect("a directory");
        let parts = directory.path().join("parts");
        let made = divide(&trace, &parts, &mut Unwatched).expect("parts");
        assert!(made.parts.len() > 100);
        // What was held was written several times, although no packet was full.
        let one = Trace::open(parts.join(&made.parts[0].file)).expect("a part");
        let streams = one.index().streams.iter();
        let packets = streams.filter(|s| s.id.kind == StreamKind::Ref);
        let packets: usize = packets.map(|s| s.packets.len()).sum();
        assert!(packets > 4, "{packets}");
        let frame = Frame::open(&parts.join(FRAME_NAME)).expect("a frame");
        let records = Records::of(&frame).expect("packets");
        assert!(records.stretches.len() > 20);
        let mut out = Vec::new();
        unite(&[parts], &mut out, "memory", &mut Unwatched).expect("the trace");
        assert!(out == bytes);
    }
}
