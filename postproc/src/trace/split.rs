//! Splits a trace into pieces: see [`super::piece`].
//!
//! [`plan`] decides where to split. It looks at the heads of all packets, and for pieces by time at
//! all records. [`split`] then reads the trace once in the order of its records, and writes piece
//! after piece: only then is known what existed when a piece began.
//!
//! A boundary is a sequence number. The next own part begins at the first packet of the file that
//! has a record with this number or a greater one. So a packet that has records of several pieces,
//! or stands late in the file, is always in the own part of its last piece or of a later one, and
//! the pieces before that need copies of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rust_mm_trace::uapi;
use serde::Serialize;

use super::codec::Packer;
use super::describe::Described;
use super::merge::{Merge, Ready};
use super::piece::{Parcel, Piece, PieceEnd, header_of};
use super::source::Trace;
use super::wire::{
    HEAD_SIZE, HEADER_SIZE, MOST, PacketHead, Ref, StreamId, StreamKind, packet_crc, packet_uuid,
};
use crate::error::{Error, OutputContext, Result};
use crate::output::new_directory;
use crate::pipeline::Observer;
use crate::unfinished;
use crate::units::Access;

/// Where pieces begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// Each piece has so many windows.
    Windows(u32),
    /// Each own part has about so many bytes.
    Bytes(u64),
    /// Each piece has the records of so many ns.
    Time(u64),
}

/// The most pieces that a trace is split into.
pub(super) const MOST_PIECES: usize = 100_000;
/// Bytes of copies that pieces may have together, and bytes for each byte of the trace: packets that
/// many pieces have records of are copied to each. The same holds for descriptions: forks make many
/// mappings of one.
const MORE: u64 = 64 << 20;
const MORE_RATIO: u64 = 8;
/// A sequence number that is so much greater than all before it is believed only if the checksum
/// of its packet holds.
const JUMP: u64 = 1 << 22;
/// Bytes that are copied at a time.
const PART: usize = 1 << 20;
/// References that are read at a time.
const BATCH: usize = 4096;

/// The window in the middle of which a piece begins.
#[derive(Clone, Copy, Debug, Default)]
struct Middle {
    /// 0 in a trace without windows.
    number: u32,
    /// The first sequence number of the window; 0 in a trace without windows.
    first_seq: u64,
}

/// The beginning of a piece.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Its first sequence number.
    seq: u64,
    /// Where its own part begins in the trace.
    offset: u64,
    /// The window in the middle of which it begins.
    middle_of: Option<Middle>,
    /// Packets with records of the piece.
    packets: u64,
    /// Packets that streams lack before their packets in it.
    missing: u64,
    /// Records lost in it: for want of room, without a wait, by the output.
    lost: [u64; 3],
    /// The latest time of a packet that ends a window, in ns.
    latest_ns: u64,
}

/// Where a trace is to be split.
#[derive(Debug)]
pub struct Plan {
    cuts: Vec<Cut>,
    /// Pieces, and the packets that they need copies of.
    copies: Vec<(u32, u64)>,
    /// Packets of the trace, without the END packet.
    packets: u64,
    /// Where the trace ends.
    stop: u64,
}

impl Plan {
    /// How many pieces there will be.
    pub fn pieces(&self) -> usize {
        self.cuts.len()
    }
}

/// A piece that was written.
#[derive(Clone, Debug, Serialize)]
pub struct MadePiece {
    /// The name of its file.
    pub file: String,
    /// Its ordinal, from 0.
    pub number: u32,
    /// Its first sequence number.
    pub first_seq: u64,
    /// The next piece's first sequence number; of the last piece, the one after the trace's last.
    pub next_seq: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Of these, bytes of the trace.
    pub own_bytes: u64,
    /// Of these, bytes that describe what existed when the piece began.
    pub description_bytes: u64,
    /// Of these, bytes of copied packets.
    pub copied_bytes: u64,
    /// Records of references.
    pub reference_records: u64,
    /// Events, without the description.
    pub events: u64,
}

/// The pieces that were written.
#[derive(Clone, Debug, Serialize)]
pub struct SplitTrace {
    /// Bytes of the trace, without those that follow its END packet.
    pub trace_bytes: u64,
    /// Bytes of all pieces.
    pub bytes: u64,
    /// The pieces, in order.
    pub pieces: Vec<MadePiece>,
}

/// A packet in the order of the file, and its head; or a damaged part.
pub(super) struct Walk<'a> {
    trace: &'a Trace,
    at: u64,
    stop: u64,
    damage: Vec<(u64, u64)>,
}

impl<'a> Walk<'a> {
    pub fn new(trace: &'a Trace) -> Self {
        let index = trace.index();
        let mut damage: Vec<(u64, u64)> = index.damage.iter().map(|d| (d.start, d.end)).collect();
        damage.sort_unstable_by(|a, b| b.cmp(a));
        Walk {
            trace,
            at: HEADER_SIZE as u64,
            stop: stop(trace),
            damage,
        }
    }

    /// The next packet that can be told from its head: where it begins, and its head.
    pub fn next(&mut self) -> Result<Option<(u64, PacketHead, [u8; HEAD_SIZE])>> {
        loop {
            // The first of them is the last of the list.
            if let Some(&(_, end)) = self.damage.last().filter(|d| d.0 <= self.at) {
                self.damage.pop();
                self.at = self.at.max(end);
                continue;
            }
            if self.stop.saturating_sub(self.at) < HEAD_SIZE as u64 {
                return Ok(None);
            }
            let mut raw = [0; HEAD_SIZE];
            let read = self.trace.bytes().read(self.at, &mut raw);
            read.map_err(|source| self.trace.unreadable(source))?;
            let header = self.trace.header();
            let head = PacketHead::decode(&raw)
                .filter(|head| packet_uuid(&raw) == header.uuid && head.nonsense(header).is_none())
                .filter(|head| head.size() <= self.stop - self.at);
            // It was good when it was found, but the file may have changed since.
            let Some(head) = head else { return Ok(None) };
            let at = self.at;
            self.at += head.size();
            return Ok(Some((at, head, raw)));
        }
    }
}

/// Where the trace ends: behind its END packet.
pub(super) fn stop(trace: &Trace) -> u64 {
    let end = trace.index().end.as_ref();
    end.map_or(trace.file_bytes(), |end| end.end)
}

/// Bytes of copies, or of descriptions, that the pieces of a trace of so many bytes may have.
pub(super) fn more_of(stop: u64) -> u64 {
    MORE.saturating_add(stop.saturating_mul(MORE_RATIO))
}

/// Follows the greatest sequence number of all packets so far.
#[derive(Default)]
struct Greatest {
    seq: u64,
    content: Vec<u8>,
}

impl Greatest {
    /// Takes the numbers of a packet. False if they cannot be believed.
    fn take(
        &mut self,
        trace: &Trace,
        at: u64,
        head: &PacketHead,
        raw: &[u8; HEAD_SIZE],
    ) -> Result<bool> {
        if head.records == 0 || head.first_seq > head.last_seq {
            return Ok(false);
        }
        if head.last_seq.saturating_sub(self.seq) > JUMP {
            self.content.resize(head.content_size as usize, 0);
            let read = trace.bytes().read(at + HEAD_SIZE as u64, &mut self.content);
            read.map_err(|source| trace.unreadable(source))?;
            if packet_crc(raw, &self.content) != head.crc {
                return Ok(false);
            }
        }
        self.seq = self.seq.max(head.last_seq);
        Ok(true)
    }
}

/// Decides where a trace is to be split.
///
/// # Errors
///
/// [`Error::IsPiece`]; [`Error::NoWindows`]; [`Error::ManyPieces`] if there would be too many or too
/// small ones; [`Error::Interrupted`]; or reading failed.
pub fn plan(trace: &Trace, by: By, observer: &mut dyn Observer) -> Result<Plan> {
    if trace.header().is_piece() {
        return Err(Error::IsPiece {
            path: trace.path().into(),
        });
    }
    if trace.is_partial() {
        return Err(Error::IsPart {
            path: trace.path().into(),
        });
    }
    let mut seqs = match by {
        By::Windows(count) => by_windows(trace, count)?,
        By::Bytes(bytes) => by_bytes(trace, bytes.max(1), observer)?,
        By::Time(ns) => by_time(trace, ns.max(1), observer)?,
    };
    let many = || Error::ManyPieces {
        path: trace.path().into(),
        most: MOST_PIECES,
    };
    let windows = Windows::of(trace);
    let middles: Vec<Option<Middle>> = seqs.iter_mut().map(|seq| windows.settle(seq)).collect();
    let cut = |seq, middle_of| Cut {
        seq,
        offset: HEADER_SIZE as u64,
        middle_of,
        packets: 0,
        missing: 0,
        lost: [0; 3],
        latest_ns: 0,
    };
    let mut cuts = vec![cut(0, None)];
    for (seq, middle) in seqs.into_iter().zip(middles) {
        if cuts.last().is_some_and(|last| last.seq < seq) {
            cuts.push(cut(seq, middle));
        }
    }
    if cuts.len() > MOST_PIECES {
        return Err(many());
    }
    let stop = stop(trace);
    let most = more_of(stop);
    let (mut copies, mut copied) = (Vec::new(), 0u64);
    let (mut walk, mut greatest) = (Walk::new(trace), Greatest::default());
    let mut lost_before: BTreeMap<StreamId, [u64; 3]> = BTreeMap::new();
    let mut expected: BTreeMap<StreamId, u64> = BTreeMap::new();
    let mut packets = 0u64;
    let mut own = 0;
    while let Some((at, head, raw)) = walk.next()? {
        if !observer.progress(at, stop) {
            return Err(Error::Interrupted);
        }
        if head.stream.kind == StreamKind::End {
            continue;
        }
        let of = |seq: u64, cuts: &[Cut]| cuts.partition_point(|c| c.seq <= seq).max(1) - 1;
        let known = greatest.take(trace, at, &head, &raw)?;
        while cuts.get(own + 1).is_some_and(|c| c.seq <= greatest.seq) {
            own += 1;
            cuts[own].offset = at;
        }
        let pieces = of(head.first_seq, &cuts)..=of(head.last_seq, &cuts);
        if head.records == 0 {
            cuts[own].packets += 1;
        } else if !known {
            // The reader of the own part judges it by its head, whatever that is worth.
            cuts[own].packets += u64::from(pieces.contains(&own));
        } else {
            for piece in pieces.clone() {
                cuts[piece].packets += 1;
                if piece != own {
                    copied = copied.saturating_add(head.size());
                    if copied > most {
                        return Err(many());
                    }
                    copies.push((piece as u32, at));
                }
            }
        }
        if head.stream.kind == StreamKind::Window {
            let piece = &mut cuts[*pieces.start()];
            piece.latest_ns = piece.latest_ns.max(head.last_time_ns);
        }
        packets += 1;
        let expected = expected.entry(head.stream).or_default();
        let piece = &mut cuts[*pieces.start()];
        piece.missing = piece.missing.saturating_add(head.seq.abs_diff(*expected));
        *expected = head.seq.saturating_add(1);
        let lost = [head.lost_full, head.lost_atomic, head.lost_io];
        let before = lost_before.entry(head.stream).or_default();
        for (i, lost) in lost.into_iter().enumerate() {
            let more = &mut cuts[*pieces.start()].lost[i];
            *more = more.saturating_add(lost.saturating_sub(before[i]));
            before[i] = before[i].max(lost);
        }
    }
    // No packet has a number of the others.
    cuts.truncate(own + 1);
    copies.sort_unstable();
    if let (Some(end), [.., last]) = (&trace.index().end, &mut cuts[..]) {
        // What was lost after the last packet of a stream is in the account only.
        let s = &end.status;
        for (i, whole) in [s.lost_full, s.lost_atomic, s.lost_io]
            .into_iter()
            .enumerate()
        {
            let told = lost_before.values().map(|lost| lost[i]);
            let told = told.fold(0, u64::saturating_add);
            last.lost[i] = last.lost[i].saturating_add(whole.saturating_sub(told));
        }
    }
    Ok(Plan {
        cuts,
        copies,
        packets,
        stop,
    })
}

/// Where windows begin and end.
struct Windows {
    /// Whether the trace has windows.
    any: bool,
    /// The first sequence number of each, and its number.
    starts: Vec<(u64, u64)>,
    /// The last sequence number of each that has ended, by its number.
    ends: BTreeMap<u32, u64>,
}

impl Windows {
    fn of(trace: &Trace) -> Self {
        let accounts = trace.index().windows.iter().map(|w| &w.account);
        Windows {
            any: trace.header().windows.is_some(),
            starts: trace.windows(),
            ends: accounts.map(|a| (a.number, a.last_seq)).collect(),
        }
    }

    /// Says in the middle of which window a piece begins, if it does. A boundary between two windows
    /// is moved to the beginning of the second one.
    fn settle(&self, seq: &mut u64) -> Option<Middle> {
        if !self.any {
            return Some(Middle::default());
        }
        let after = self.starts.partition_point(|s| s.0 <= *seq);
        let (start, number) = *self.starts.get(after.checked_sub(1)?)?;
        if start == *seq {
            return None;
        }
        let number = number as u32;
        if self.ends.get(&number).is_some_and(|end| end < seq) {
            *seq = self.starts.get(after).map_or(*seq, |next| next.0);
            return None;
        }
        Some(Middle {
            number,
            first_seq: start,
        })
    }
}

fn by_windows(trace: &Trace, count: u32) -> Result<Vec<u64>> {
    if trace.header().windows.is_none() {
        return Err(Error::NoWindows {
            path: trace.path().into(),
        });
    }
    let starts = trace.windows();
    let each = starts.iter().step_by(count.max(1) as usize).skip(1);
    Ok(each.map(|start| start.0).collect())
}

fn by_bytes(trace: &Trace, bytes: u64, observer: &mut dyn Observer) -> Result<Vec<u64>> {
    let (mut walk, mut greatest) = (Walk::new(trace), Greatest::default());
    let (mut seqs, mut begun) = (Vec::new(), HEADER_SIZE as u64);
    while let Some((at, head, raw)) = walk.next()? {
        if !observer.progress(at, walk.stop) {
            return Err(Error::Interrupted);
        }
        if head.stream.kind == StreamKind::End {
            continue;
        }
        if at > begun && at + head.size() - begun > bytes && seqs.len() <= MOST_PIECES {
            seqs.push(greatest.seq.saturating_add(1).min(MOST));
            begun = at;
        }
        greatest.take(trace, at, &head, &raw)?;
    }
    Ok(seqs)
}

fn by_time(trace: &Trace, ns: u64, observer: &mut dyn Observer) -> Result<Vec<u64>> {
    let mut merge = Merge::new(trace);
    let (mut seqs, mut any) = (Vec::new(), false);
    let mut next = trace.header().start_time_ns.saturating_add(ns);
    let mut record = |seq: u64, time_ns: u64| {
        if time_ns >= next {
            // A time in which nothing happens makes no piece.
            next = next.saturating_add(((time_ns - next) / ns + 1).saturating_mul(ns));
            if any && seqs.len() <= MOST_PIECES {
                seqs.push(seq);
            }
        }
        any = true;
    };
    let mut refs = Vec::new();
    loop {
        refs.clear();
        let ready = merge.advance(&mut refs, BATCH)?;
        // What continues a stay has an earlier time than its number.
        let begin = refs.iter().filter(|r| !goes_on(r));
        begin.for_each(|r| record(r.seq, r.time_ns));
        if let Some(event) = merge.event() {
            record(event.seq, event.time_ns);
        }
        merge.take_opened();
        merge.take_damage();
        let stop = stop(trace);
        if !observer.progress(merge.bytes_read().min(stop), stop) {
            return Err(Error::Interrupted);
        }
        if ready == Ready::End {
            return Ok(seqs);
        }
    }
}

/// Whether a record continues a stay.
fn goes_on(r: &Ref) -> bool {
    r.flags().continues() || r.flags().access() == Access::Seen
}

/// Splits a trace into pieces, which are files in a new directory.
///
/// # Errors
///
/// Reading or writing failed; then nothing is left behind. [`Error::Interrupted`] if the observer
/// says so.
pub fn split(
    trace: &Trace,
    plan: &Plan,
    directory: &Path,
    observer: &mut dyn Observer,
) -> Result<SplitTrace> {
    let shown = directory.display().to_string();
    let (temporary, _registered) = new_directory(directory).writing(&shown)?;
    let header = trace.header();
    let mut pieces = Pieces {
        trace,
        plan,
        into: temporary.path(),
        shown: &shown,
        packer: match header.features & u64::from(uapi::VMTRACE_PACK) {
            0 => None,
            _ => Some(Packer::new(None).writing(&shown)?),
        },
        crc: crc32c::crc32c(trace.raw_header()),
        carried: [0; 3],
        without_record: 0,
        described: 0,
        now: None,
        made: Vec::new(),
        observer,
    };
    let mut described = Described::new(header);
    pieces.begin(0, &described)?;
    let mut merge = Merge::new(trace);
    let mut refs = Vec::new();
    let mut since_progress = 0;
    loop {
        refs.clear();
        let ready = merge.advance(&mut refs, BATCH)?;
        for r in &refs {
            pieces.reach(r.seq, &described)?;
            pieces.reference(r);
            described.reference(r);
        }
        if let Some(event) = merge.event() {
            pieces.reach(event.seq, &described)?;
            pieces.event(event.seq, event.time_ns);
            described.event(&event);
        }
        merge.take_opened();
        merge.take_damage();
        since_progress += refs.len() + 1;
        if since_progress >= 1 << 16 {
            since_progress = 0;
            if !pieces.progress(merge.bytes_read()) {
                return Err(Error::Interrupted);
            }
        }
        if ready == Ready::End {
            break;
        }
    }
    pieces.reach(u64::MAX, &described)?;
    pieces.end()?;
    let made = std::mem::take(&mut pieces.made);
    drop(pieces);
    unfinished::settle(|| std::fs::rename(temporary.path(), directory)).writing(&shown)?;
    // The temporary directory no longer exists.
    let _ = temporary.keep();
    Ok(SplitTrace {
        trace_bytes: plan.stop,
        bytes: made.iter().map(|piece| piece.bytes).sum(),
        pieces: made,
    })
}

/// The piece that is being written.
struct Now {
    out: BufWriter<File>,
    path: PathBuf,
    piece: Piece,
    end: PieceEnd,
    /// Of the records so far.
    records: u64,
    last_seq: u64,
    made: MadePiece,
}

impl Now {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.made.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}

struct Pieces<'a> {
    trace: &'a Trace,
    plan: &'a Plan,
    into: &'a Path,
    /// What messages call the directory.
    shown: &'a str,
    packer: Option<Packer>,
    /// CRC32C of the trace up to the end of the last own part.
    crc: u32,
    /// Lost records that no piece has room for among its numbers yet.
    carried: [u64; 3],
    /// Numbers so far that have no record.
    without_record: u64,
    /// Bytes of all descriptions, before they were packed.
    described: u64,
    now: Option<Now>,
    made: Vec<MadePiece>,
    observer: &'a mut dyn Observer,
}

impl Pieces<'_> {
    fn progress(&mut self, read: u64) -> bool {
        self.observer
            .progress(read.min(self.plan.stop), self.plan.stop)
    }

    /// Begins the pieces up to the one that has a sequence number.
    fn reach(&mut self, seq: u64, described: &Described) -> Result<()> {
        loop {
            let next = self.made.len() + 1;
            match self.plan.cuts.get(next) {
                Some(cut) if cut.seq <= seq => {
                    self.end()?;
                    self.begin(next, described)?;
                }
                _ => return Ok(()),
            }
        }
    }

    fn reference(&mut self, r: &Ref) {
        let Some(now) = &mut self.now else { return };
        // Numbers that do not ascend are not read.
        if r.seq < now.piece.first_seq {
            return;
        }
        now.end.refs += 1;
        match (r.flags().continues(), r.flags().access()) {
            (true, _) => now.end.renewed += 1,
            (false, Access::Seen) => now.end.chances += 1,
            _ => now.end.admissions += 1,
        }
        now.seen(r.seq, r.time_ns);
    }

    fn event(&mut self, seq: u64, time_ns: u64) {
        let Some(now) = &mut self.now else { return };
        if seq < now.piece.first_seq {
            return;
        }
        now.end.events += 1;
        now.seen(seq, time_ns);
    }

    /// Writes the beginning of a piece, its own part and its copies.
    fn begin(&mut self, number: usize, described: &Described) -> Result<()> {
        let (trace, shown) = (self.trace, self.shown);
        let (header, cut) = (trace.header(), self.plan.cuts[number]);
        let own_end = self.plan.cuts.get(number + 1);
        let own_end = own_end.map_or(self.plan.stop, |next| next.offset);
        let file = format!("{number:05}.vmtrace");
        let path = self.into.join(&file);
        let number = number as u32;
        let piece = Piece {
            number,
            is_middle: cut.middle_of.is_some(),
            is_checkpoint: false,
            state_seq: 0,
            first_seq: cut.seq,
            offset: cut.offset,
            crc: self.crc,
            last_number: number,
            end: None,
        };
        let start_time_ns = described.time_ns();
        let mut now = Now {
            out: BufWriter::with_capacity(1 << 18, File::create(&path).writing(shown)?),
            path,
            end: PieceEnd {
                number,
                is_last: number as usize + 1 == self.plan.cuts.len(),
                size: own_end - cut.offset,
                start_time_ns,
                stop_time_ns: start_time_ns.max(cut.latest_ns),
                packets: cut.packets,
                ..PieceEnd::default()
            },
            records: 0,
            last_seq: 0,
            made: MadePiece {
                file,
                number,
                first_seq: cut.seq,
                next_seq: 0,
                bytes: 0,
                own_bytes: own_end - cut.offset,
                description_bytes: 0,
                copied_bytes: 0,
                reference_records: 0,
                events: 0,
            },
            piece,
        };
        let which = now.piece.encode();
        let parcel = |kind, records, content| Parcel {
            kind,
            uuid: header.uuid,
            number: 0,
            seq: cut.seq,
            time_ns: start_time_ns,
            records,
            window: cut.middle_of.unwrap_or_default().number,
            codec: 0,
            raw_size: 0,
            content,
        };
        let begin = parcel(uapi::VMTRACE_STREAM_PIECE, 1, &which).encode();
        now.write(&header_of(trace.raw_header(), true))
            .and_then(|()| now.write(&begin))
            .writing(shown)?;
        if let Some(window) = cut.middle_of {
            let before = now.made.bytes;
            self.describe(&mut now, window, described)?;
            now.made.description_bytes = now.made.bytes - before;
        }
        now.write(&parcel(uapi::VMTRACE_STREAM_OWN, 0, &[]).encode())
            .writing(shown)?;
        self.own_part(&mut now, cut.offset, own_end)?;
        let before = now.made.bytes;
        self.copies(&mut now)?;
        now.made.copied_bytes = now.made.bytes - before;
        self.now = Some(now);
        Ok(())
    }

    /// Writes the description of what exists when a piece begins.
    fn describe(&mut self, now: &mut Now, window: Middle, described: &Described) -> Result<()> {
        let (header, shown) = (self.trace.header(), self.shown);
        let seq = now.piece.first_seq.saturating_sub(1);
        let (mut content, mut records, mut number) = (Vec::new(), 0, 0);
        let packer = &mut self.packer;
        let mut flush = |content: &mut Vec<u8>, records: &mut u32| -> Result<()> {
            let packed = match packer {
                Some(packer) => packer
                    .pack(header, StreamKind::State, content)
                    .writing(shown)?,
                None => None,
            };
            let (codec, raw_size, stored) = match packed {
                Some((codec, bytes)) => (codec, content.len() as u32, bytes),
                None => (0, 0, &content[..]),
            };
            let parcel = Parcel {
                kind: uapi::VMTRACE_STREAM_STATE,
                uuid: header.uuid,
                number,
                seq,
                time_ns: described.time_ns(),
                records: *records,
                window: window.number,
                codec,
                raw_size,
                content: stored,
            };
            number += 1;
            now.write(&parcel.encode()).writing(shown)?;
            content.clear();
            *records = 0;
            Ok(())
        };
        let room = header.most_content() as usize;
        let (trace, most) = (self.trace, more_of(self.plan.stop));
        let told = &mut self.described;
        described.describe(header, seq, window.first_seq, &mut |event| {
            *told += event.len() as u64;
            if *told > most {
                return Err(Error::ManyPieces {
                    path: trace.path().into(),
                    most: MOST_PIECES,
                });
            }
            if records > 0 && content.len() + event.len() > room {
                flush(&mut content, &mut records)?;
            }
            content.extend_from_slice(event);
            records += 1;
            Ok(())
        })?;
        flush(&mut content, &mut records)
    }

    fn own_part(&mut self, now: &mut Now, mut at: u64, to: u64) -> Result<()> {
        let mut part = Vec::new();
        while at < to {
            if !self.progress(at) {
                return Err(Error::Interrupted);
            }
            part.resize((to - at).min(PART as u64) as usize, 0);
            let read = self.trace.bytes().read(at, &mut part);
            read.map_err(|source| self.trace.unreadable(source))?;
            self.crc = crc32c::crc32c_append(self.crc, &part);
            now.write(&part).writing(self.shown)?;
            at += part.len() as u64;
        }
        now.end.crc = self.crc;
        Ok(())
    }

    /// Copies the packets of later own parts that have records of the piece.
    fn copies(&mut self, now: &mut Now) -> Result<()> {
        let number = now.piece.number;
        let copies = &self.plan.copies;
        let first = copies.partition_point(|c| c.0 < number);
        let mut packet = Vec::new();
        for &(_, at) in copies[first..].iter().take_while(|c| c.0 == number) {
            let bytes = self.trace.bytes();
            let unreadable = |source| self.trace.unreadable(source);
            let head = super::index::head_at(bytes, at).map_err(unreadable)?;
            let header = self.trace.header();
            let fits = |head: &PacketHead| u64::from(head.content_size) <= header.most_content();
            let Some(head) = head.filter(fits) else {
                // It has changed since it was found.
                continue;
            };
            packet.resize(head.size() as usize, 0);
            bytes.read(at, &mut packet).map_err(unreadable)?;
            now.write(&packet).writing(self.shown)?;
        }
        Ok(())
    }

    /// Ends the present piece: all of its records were read.
    fn end(&mut self) -> Result<()> {
        let Some(mut now) = self.now.take() else {
            return Ok(());
        };
        let cut = self.plan.cuts[self.made.len()];
        let next = self.plan.cuts.get(self.made.len() + 1);
        let whole = self.trace.index().end.as_ref().map(|end| &end.status);
        let end = &mut now.end;
        end.next_seq = match (next, whole) {
            (Some(next), _) => next.seq,
            (None, whole) => {
                let given = whole.map_or(0, |status| status.last_seq);
                end.stop_time_ns = end.stop_time_ns.max(whole.map_or(0, |s| s.stop_time_ns));
                now.last_seq.max(given).saturating_add(1).max(cut.seq)
            }
        };
        // Numbers begin with 1.
        let given = end.next_seq - cut.seq.max(1).min(end.next_seq);
        let mut missing = given.saturating_sub(now.records);
        self.without_record = self.without_record.saturating_add(missing);
        let mut unaccounted = cut.missing;
        if let (None, Some(s)) = (next, whole) {
            let refs = self.made.iter().map(|piece| piece.reference_records);
            let events = self.made.iter().map(|piece| piece.events);
            let figures = [
                (s.refs, refs.sum::<u64>() + end.refs),
                (s.events, events.sum::<u64>() + end.events),
                (s.packets, self.plan.packets),
                (
                    s.aborted
                        .saturating_add(s.lost())
                        .saturating_add(s.left_out),
                    self.without_record,
                ),
            ];
            unaccounted += figures.iter().filter(|(told, there)| told != there).count() as u64;
        }
        end.unaccounted = u32::try_from(unaccounted).unwrap_or(u32::MAX);
        for (i, lost) in cut.lost.into_iter().enumerate() {
            let all = self.carried[i].saturating_add(lost);
            let here = all.min(missing);
            missing -= here;
            self.carried[i] = all - here;
            *[&mut end.lost_full, &mut end.lost_atomic, &mut end.lost_io][i] = here;
        }
        end.aborted = missing;
        let packet = Parcel {
            kind: uapi::VMTRACE_STREAM_PIECE_END,
            uuid: self.trace.header().uuid,
            number: 0,
            seq: (end.next_seq.saturating_sub(1)).min(MOST),
            time_ns: end.stop_time_ns.min(MOST),
            records: 1,
            window: 0,
            codec: 0,
            raw_size: 0,
            content: &end.encode(),
        };
        let packet = packet.encode();
        let (refs, events, next_seq) = (end.refs, end.events, end.next_seq);
        now.write(&packet).writing(self.shown)?;
        now.out.flush().writing(now.path.display().to_string())?;
        self.made.push(MadePiece {
            next_seq,
            reference_records: refs,
            events,
            ..now.made
        });
        Ok(())
    }
}

impl Now {
    fn seen(&mut self, seq: u64, time_ns: u64) {
        self.records += 1;
        self.last_seq = self.last_seq.max(seq);
        self.end.stop_time_ns = self.end.stop_time_ns.max(time_ns);
    }
}
