//! A trace in pieces, as a kernel writes it that rotates its output.
//!
//! [`TraceBuilder::rotate`] is a rotation. Its parts can be done one by one, with anything in between:
//! [`TraceBuilder::open_next`], [`TraceBuilder::describe`] of each address space,
//! [`TraceBuilder::end_checkpoint`], [`TraceBuilder::cut`] and [`TraceBuilder::switch`].

use std::collections::BTreeMap;
use std::ops::Range;

use rust_mm_trace::uapi;

use super::{TraceBuilder, copy_name};
use crate::process::Tasks;
use crate::space::Space;
use crate::trace::codec::Packer;
use crate::trace::piece::{Parcel, Piece, PieceEnd, header_of};
use crate::trace::wire::{HEAD_SIZE, HEADER_SIZE, Header, Uuid, decode_event};
use crate::trace::{Body, StreamKind, Why};
use crate::units::{Mm, Tid};

/// The file of the next piece, until that begins.
struct Next {
    /// Copies of packets that have events of the description, or later ones.
    copies: Vec<u8>,
    state_seq: u64,
    /// Its first number, when all stays have ended.
    first_seq: Option<u64>,
    counts: PieceEnd,
}

/// The pieces of a trace that is being built.
pub(super) struct Pieces {
    raw_header: Vec<u8>,
    header: Header,
    packer: Option<Packer>,
    header_written: bool,
    crc: u32,
    offset: u64,
    /// What the events have made.
    space: Space,
    tasks: Tasks,
    last_mm: u32,
    /// The present piece: what stands before its own part, that, and what it has.
    piece: Piece,
    head: Vec<u8>,
    own: Vec<u8>,
    counts: PieceEnd,
    next: Option<Next>,
    files: Vec<Vec<u8>>,
    unborn: Vec<Vec<u8>>,
}

fn first(number: u32) -> Piece {
    Piece {
        number,
        is_middle: number > 0,
        is_checkpoint: number > 0,
        state_seq: 0,
        first_seq: 0,
        offset: HEADER_SIZE as u64,
        crc: 0,
        last_number: number,
        end: None,
    }
}

impl Pieces {
    fn new(raw_header: Vec<u8>, pack: bool) -> Option<Self> {
        let header = Header::decode(raw_header.first_chunk()?);
        let crc = crc32c::crc32c(&raw_header);
        let mut pieces = Pieces {
            packer: if pack { Packer::new(None).ok() } else { None },
            header_written: false,
            crc,
            offset: HEADER_SIZE as u64,
            space: Space::default(),
            tasks: Tasks::default(),
            last_mm: 0,
            piece: Piece { crc, ..first(0) },
            head: Vec::new(),
            own: Vec::new(),
            counts: PieceEnd {
                start_time_ns: header.start_time_ns,
                ..PieceEnd::default()
            },
            next: None,
            files: Vec::new(),
            unborn: Vec::new(),
            header,
            raw_header,
        };
        pieces.head = pieces.begin(&[]);
        Some(pieces)
    }

    pub fn number(&self) -> u32 {
        self.piece.number
    }

    /// What stands before the own part of the present piece.
    fn begin(&self, copies: &[u8]) -> Vec<u8> {
        let piece = &self.piece;
        let which = piece.encode();
        let which = self.parcel(uapi::VMTRACE_STREAM_PIECE, piece.first_seq, 1, &which);
        let own = self.parcel(uapi::VMTRACE_STREAM_OWN, piece.first_seq, 0, &[]);
        [&header_of(&self.raw_header, true)[..], &which, copies, &own].concat()
    }

    fn parcel(&self, kind: u32, seq: u64, records: u32, content: &[u8]) -> Vec<u8> {
        Parcel {
            kind,
            uuid: Uuid(self.header.uuid.0),
            number: 0,
            seq,
            time_ns: self.counts.stop_time_ns,
            records,
            window: 0,
            codec: 0,
            raw_size: 0,
            content,
        }
        .encode()
    }

    /// Ends the present file. The next piece begins with this number.
    fn end(&mut self, next_seq: u64, is_last: bool) {
        let mut end = self.counts;
        end.number = self.piece.number;
        end.is_last = is_last;
        end.size = self.own.len() as u64;
        end.crc = self.crc;
        end.next_seq = next_seq;
        let given = next_seq - self.piece.first_seq.max(1);
        end.aborted = given - end.refs - end.events - end.lost_full;
        let end = self.parcel(
            uapi::VMTRACE_STREAM_PIECE_END,
            next_seq - 1,
            1,
            &end.encode(),
        );
        let head = std::mem::take(&mut self.head);
        let own = std::mem::take(&mut self.own);
        self.files.push([&head[..], &own, &end].concat());
    }

    pub fn write(&mut self, bytes: &[u8]) {
        if !std::mem::replace(&mut self.header_written, true) {
            return;
        }
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.offset += bytes.len() as u64;
        self.own.extend_from_slice(bytes);
    }

    pub fn pack(&mut self, kind: u32, content: &[u8]) -> Option<((u16, u32), Vec<u8>)> {
        let kind = match kind {
            uapi::VMTRACE_STREAM_REF => StreamKind::Ref,
            _ => StreamKind::Event,
        };
        let packed = self
            .packer
            .as_mut()?
            .pack(&self.header, kind, content)
            .ok()??;
        Some(((packed.0, content.len() as u32), packed.1.to_vec()))
    }

    /// A packet is about to be written that has records with these numbers.
    pub fn packet(&mut self, is_event: bool, numbers: Range<u64>, head: &[u8], content: &[u8]) {
        let Some(next) = &mut self.next else {
            self.counts.packets += 1;
            return;
        };
        let first = next.first_seq.unwrap_or(u64::MAX);
        self.counts.packets += u64::from(numbers.start < first);
        next.counts.packets += u64::from(numbers.end > first);
        if is_event {
            next.copies.extend_from_slice(head);
            next.copies.extend_from_slice(content);
        }
    }

    /// The counts of the piece that has the next record.
    fn counts(&mut self) -> &mut PieceEnd {
        match &mut self.next {
            Some(next) if next.first_seq.is_some() => &mut next.counts,
            _ => &mut self.counts,
        }
    }

    pub fn reference(&mut self, page: u64) {
        let counts = self.counts();
        counts.refs += 1;
        let seen = page & u64::from(uapi::VMTRACE_REF_KIND) == u64::from(uapi::VMTRACE_REF_SEEN);
        match page & u64::from(uapi::VMTRACE_REF_CONT) != 0 {
            true => counts.renewed += 1,
            false if seen => counts.chances += 1,
            false => counts.admissions += 1,
        }
    }

    pub fn event(&mut self, bytes: &[u8]) {
        self.counts().events += 1;
        let Ok((event, _)) = decode_event(bytes, 0, &self.header) else {
            return;
        };
        self.last_mm = self.last_mm.max(event.mm.0);
        if let Body::Fork { child_mm, .. } = event.body {
            self.last_mm = self.last_mm.max(child_mm.0);
        }
        self.space.apply(&event);
        self.tasks.apply(&event);
    }

    pub fn lose(&mut self) {
        self.counts().lost_full += 1;
    }
}

const DESCRIBES: u32 = uapi::VMTRACE_EVF_SNAPSHOT | uapi::VMTRACE_EVF_CHECKPOINT;

/// Whoever rotates.
const ROTATOR: u32 = 1;

impl TraceBuilder {
    /// Ends the trace, and gives its bytes and the files of its pieces.
    pub fn finish_pieces(self) -> (Vec<u8>, Vec<Vec<u8>>) {
        let (last_seq, now) = (self.last_seq(), self.now());
        let mut files = Vec::new();
        let whole = self.finish_with(|pieces| {
            pieces.counts.stop_time_ns = now;
            pieces.end(last_seq + 1, true);
            files = std::mem::take(&mut pieces.files);
        });
        (whole.unwrap_or_default(), files)
    }
}

impl<W: std::io::Write> TraceBuilder<W> {
    /// The trace is written in pieces, too, whose packets are packed on request. The header must not
    /// change from here on.
    pub fn in_pieces(&mut self, pack: bool) {
        if pack {
            self.header.features |= u64::from(uapi::VMTRACE_PACK);
        }
        self.pieces = Pieces::new(self.header_bytes(), pack).map(Box::new);
    }

    /// Files that were made for pieces that did not begin.
    pub fn unborn(&mut self) -> Vec<Vec<u8>> {
        let pieces = self.pieces.as_mut();
        pieces.map_or_else(Vec::new, |pieces| std::mem::take(&mut pieces.unborn))
    }

    /// The address spaces that exist.
    pub fn living(&self) -> Vec<u32> {
        let living = self.pieces.as_ref().map(|p| p.space.living());
        living.iter().flatten().map(|mm| mm.0).collect()
    }

    /// Begins the next piece: describes all that exists, ends all stays and goes on in another file.
    pub fn rotate(&mut self, cpu: u32) {
        self.open_next(cpu);
        for mm in self.living() {
            self.describe(cpu, mm);
        }
        self.end_checkpoint(cpu);
        self.cut();
        self.switch();
    }

    /// Makes the next piece's file, and begins its description.
    pub fn open_next(&mut self, cpu: u32) {
        let state_seq = self.seq + 1;
        let Some(pieces) = &mut self.pieces else {
            return;
        };
        pieces.next = Some(Next {
            copies: Vec::new(),
            state_seq,
            first_seq: None,
            counts: PieceEnd::default(),
        });
        let last_mm = u64::from(pieces.last_mm);
        let payload = last_mm.to_le_bytes();
        self.event(cpu, ROTATOR, 0, uapi::VMTRACE_EV_CHECKPOINT, &payload);
    }

    /// Describes an address space: its tasks, its set and its mappings.
    pub fn describe(&mut self, cpu: u32, mm: u32) {
        let Some(pieces) = &self.pieces else { return };
        let tasks = &pieces.tasks;
        let threads = tasks.living_threads();
        let threads = threads.map(|(tid, id)| (tid, tasks.process(id)));
        let threads: Vec<_> = threads
            .filter(|(_, process)| process.mm.0 == mm)
            .map(|(tid, p)| (tid.0, p.tgid.0, tasks.comm(tid).to_string(), p.start_ns))
            .collect();
        let set = pieces.space.set_of(Mm(mm));
        let space = pieces.space.get(Mm(mm)).cloned();
        let objects = pieces.space.objects().to_vec();
        self.describes(|b| {
            for (tid, tgid, comm, start) in threads {
                b.describe_task(cpu, (tid, tgid), mm, &comm, start);
            }
            if set != 0 {
                b.set_event(cpu, ROTATOR, mm, set, 0);
            }
            for m in space.iter().flat_map(|space| space.mappings()) {
                let object = &objects[m.object.0 as usize];
                let name = match &*object.name {
                    "[anon]" => "",
                    name => name,
                };
                let kind = m.kind.number().unwrap_or(u32::MAX);
                let range = m.start..m.end;
                let (prot, flags) = (m.prot, m.flags);
                let (file, offset) = (object.file, m.offset);
                b.map(
                    cpu, ROTATOR, mm, range, prot, kind, flags, file, offset, name,
                );
            }
        });
    }

    /// The events that are made meanwhile are of the description.
    pub fn describes(&mut self, describe: impl FnOnce(&mut Self)) {
        let flags = std::mem::replace(&mut self.flags, DESCRIBES);
        describe(self);
        self.flags = flags;
    }

    fn describe_task(
        &mut self,
        cpu: u32,
        (tid, tgid): (u32, u32),
        mm: u32,
        comm: &str,
        start: u64,
    ) {
        type T = uapi::vmtrace_ev_task;
        let mut p = [0; size_of::<T>()];
        let put = |p: &mut [u8], at: usize, v: u32| p[at..at + 4].copy_from_slice(&v.to_le_bytes());
        put(&mut p, std::mem::offset_of!(T, tid), tid);
        put(&mut p, std::mem::offset_of!(T, tgid), tgid);
        copy_name(&mut p[std::mem::offset_of!(T, comm)..], comm);
        let at = std::mem::offset_of!(T, start);
        p[at..at + 8].copy_from_slice(&start.to_le_bytes());
        self.event(cpu, tid, mm, uapi::VMTRACE_EV_TASK, &p);
    }

    /// Describes control groups, and ends the description.
    pub fn end_checkpoint(&mut self, cpu: u32) {
        let Some(pieces) = &self.pieces else { return };
        let tasks = &pieces.tasks;
        let processes = tasks.living_threads().map(|(_, id)| tasks.process(id));
        let groups: BTreeMap<Tid, (Mm, String)> = processes
            .filter(|process| !process.cgroup.is_empty())
            .map(|process| (process.tgid, (process.mm, process.cgroup.clone())))
            .collect();
        self.describes(|b| {
            b.tell_filter(cpu);
            for (tgid, (mm, path)) in groups {
                b.cgroup_of(cpu, (tgid.0, tgid.0), mm.0, &path);
            }
        });
        self.event(cpu, ROTATOR, 0, uapi::VMTRACE_EV_CHECKPOINT_END, &[]);
    }

    /// The description is given up, and its file with it.
    pub fn abandon(&mut self) {
        let Some(pieces) = &mut self.pieces else {
            return;
        };
        if let Some(next) = pieces.next.take() {
            // The place of the packet that says which piece it is.
            let place = vec![0; HEAD_SIZE + size_of::<uapi::vmtrace_piece>()];
            let header = header_of(&pieces.raw_header, true);
            pieces
                .unborn
                .push([&header[..], &place, &next.copies].concat());
        }
    }

    /// Ends all stays. The next number is the first one of the next piece.
    pub fn cut(&mut self) {
        if self.pieces.as_ref().is_none_or(|p| p.next.is_none()) {
            return;
        }
        let now = self.time;
        self.end_all(Why::Piece, now);
        for ring in 0..self.rings.len() {
            if self.rings[ring].kind == uapi::VMTRACE_STREAM_REF {
                self.flush(ring);
            }
        }
        let first_seq = self.seq + 1;
        if let Some(pieces) = &mut self.pieces {
            pieces.counts.stop_time_ns = now;
            if let Some(next) = &mut pieces.next {
                next.first_seq = Some(first_seq);
                next.counts.start_time_ns = now;
            }
        }
    }

    /// Writes the events that are left of the present piece, and goes on in the next file.
    pub fn switch(&mut self) {
        let is_cut = |p: &Pieces| p.next.as_ref().is_some_and(|next| next.first_seq.is_some());
        if !self.pieces.as_deref().is_some_and(is_cut) {
            return;
        }
        for ring in 0..self.rings.len() {
            if self.rings[ring].kind == uapi::VMTRACE_STREAM_EVENT {
                self.flush(ring);
            }
        }
        let Some(pieces) = &mut self.pieces else {
            return;
        };
        let Some(next) = pieces.next.take() else {
            return;
        };
        let first_seq = next.first_seq.unwrap_or(self.seq + 1);
        pieces.end(first_seq, false);
        pieces.counts = next.counts;
        pieces.piece = Piece {
            state_seq: next.state_seq,
            first_seq,
            offset: pieces.offset,
            crc: pieces.crc,
            ..first(pieces.piece.number + 1)
        };
        pieces.head = pieces.begin(&next.copies);
    }

    /// Ends the trace, and gives its pieces to `take` before they are gone.
    fn finish_with(mut self, take: impl FnOnce(&mut Pieces)) -> std::io::Result<W> {
        self.end_trace();
        if let Some(pieces) = &mut self.pieces {
            take(pieces);
        }
        self.failed?;
        self.out.flush()?;
        Ok(self.out)
    }
}
