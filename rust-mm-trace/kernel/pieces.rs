// SPDX-License-Identifier: GPL-2.0

//! The piece of the trace that kvmtraced writes, what it has counted in it, and the file of the next
//! one. See `struct vmtrace_piece`.
//!
//! From the moment at which the next file is there, each packet of events is written to both files:
//! whoever begins to read with the next piece needs the events since the checkpoint, and only when
//! the checkpoint is complete is it known with which number that piece begins. In a trace with windows,
//! pieces begin between windows, and need no event of before.

use crate::{
    census::{events_from, Kinds},
    drain::{self, crc, Output, EVENT_RECORDS, REFS},
    events,
    hot::{self, clock, last_seq},
    record::{put, ref_size, Extras},
    ring::{Meta, Packet, Ring, HEAD},
    rotate::{PIECE, PIECE_BYTES},
    sink::Sink,
};
use core::mem::{offset_of, size_of};
use kernel::{
    bindings, crc32::crc32c, prelude::*, sync::atomic::ordering::Relaxed, transmute::AsBytes,
};

const HEADER: usize = bindings::VMTRACE_HEADER_SIZE as usize;

/// Bytes of the packet that tells which piece a file is.
const PARCEL: usize = HEAD + size_of::<Begin>();

#[repr(transparent)]
struct Begin(bindings::vmtrace_piece);

// SAFETY: Integers without padding.
unsafe impl AsBytes for Begin {}

#[repr(transparent)]
struct End(bindings::vmtrace_piece_end);

// SAFETY: Integers without padding.
unsafe impl AsBytes for End {}

const _: () = assert!(size_of::<Begin>() == 40);
const _: () = assert!(size_of::<End>() == 128);

/// Records that were lost until a moment.
#[derive(Clone, Copy, Default)]
struct Lost {
    full: u64,
    atomic: u64,
}

impl Lost {
    fn now() -> Lost {
        let mut lost = Lost::default();
        let mut count = |r: &Ring| {
            lost.full = lost.full.wrapping_add(r.had.lost_full);
            lost.atomic = lost.atomic.wrapping_add(r.had.lost_atomic);
        };
        events::for_each(|ring| count(ring));
        hot::with((), |refs| refs.for_each(|ring| count(ring)));
        lost
    }
}

/// How often what was lost is counted until no record comes meanwhile.
const TRIES: u32 = 100;

/// A boundary between two pieces: all stays have ended, and none has begun.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    /// The first number of the next piece, and the time, ns.
    pub(crate) seq: u64,
    time: u64,
    /// The number and the time of the event that begins the checkpoint.
    state: (u64, u64),
    lost: Lost,
}

impl Cut {
    /// One that is made now.
    pub(crate) fn new(state: (u64, u64)) -> Cut {
        let mut seq = last_seq();
        let mut lost = Lost::now();
        // An event may be lost after the number was read. If events come all the time, some may be
        // counted in the piece before theirs.
        for _ in 0..TRIES {
            let now = last_seq();
            if now == seq {
                break;
            }
            seq = now;
            lost = Lost::now();
        }
        Cut {
            seq: seq.wrapping_add(1),
            time: clock(),
            state,
            lost,
        }
    }
}

/// What packets of events have that is of the next piece.
#[derive(Clone, Copy, Default)]
struct Late {
    packets: u64,
    events: u64,
}

/// The next piece, which has not begun yet.
struct Next {
    sink: Sink,
    late: Late,
}

/// The present piece.
pub(crate) struct Piece {
    /// The header of a piece.
    header: KVec<u8>,
    number: u32,
    first_seq: u64,
    start_time: u64,
    /// Bytes of a reference.
    ref_size: usize,
    /// The trace has windows, between which pieces begin.
    windows: bool,
    /// Bytes of the trace before its own part.
    offset: u64,
    /// Bytes of its own part, and CRC32C of the trace until now, before the last inversion.
    own: u64,
    sum: u32,
    packets: u64,
    kinds: Kinds,
    /// What was counted when it began.
    refs: u64,
    events: u64,
    lost: Lost,
    next: Option<Next>,
}

/// A number in a header.
fn word(header: &[u8], at: usize) -> u64 {
    let bytes = header.get(at..).and_then(|b| b.first_chunk::<8>());
    bytes.map_or(0, |b| u64::from_le_bytes(*b))
}

/// Gives a header other features.
fn put_features(header: &mut [u8], features: u64) {
    let at = offset_of!(bindings::vmtrace_header, features);
    put(header, at, &features.to_le_bytes());
    let at = offset_of!(bindings::vmtrace_header, crc);
    let sum = header.get(..at).map_or(0, crc);
    put(header, at, &sum.to_le_bytes());
}

impl Piece {
    /// The first piece of a trace with this header.
    pub(crate) fn new(header: &[u8]) -> Result<Piece> {
        let mut copy = KVec::with_capacity(header.len(), GFP_KERNEL)?;
        copy.extend_from_slice(header, GFP_KERNEL)?;
        let mut header = copy;
        let features = word(&header, offset_of!(bindings::vmtrace_header, features));
        let start_time = word(&header, offset_of!(bindings::vmtrace_header, start_time));
        let has = |bit: u32| features & u64::from(bit) != 0;
        let extras = Extras::new(has(bindings::VMTRACE_VTIME), has(bindings::VMTRACE_OFFSETS));
        let ends = |at: usize| word(&header, at) != 0;
        let windows = ends(offset_of!(bindings::vmtrace_header, window_time))
            || ends(offset_of!(bindings::vmtrace_header, window_refs))
            || has(bindings::VMTRACE_PAUSABLE);
        // The checksum is of the trace's header, which does not have that it is a piece.
        put_features(&mut header, features & !u64::from(bindings::VMTRACE_PIECE));
        let sum = crc32c(!0, &header);
        put_features(&mut header, features);
        Ok(Piece {
            header,
            number: 0,
            first_seq: 0,
            start_time,
            ref_size: ref_size(extras),
            windows,
            offset: HEADER as u64,
            own: 0,
            sum,
            packets: 0,
            kinds: Kinds::default(),
            refs: 0,
            events: 0,
            lost: Lost::default(),
            next: None,
        })
    }

    /// Which piece it is. `state` is the number of the event that begins its description.
    fn begin(&self, flags: u32, state: u64) -> Begin {
        Begin(bindings::vmtrace_piece {
            number: self.number,
            flags,
            first_seq: self.first_seq,
            offset: self.offset,
            crc: !self.sum,
            pad: 0,
            state_seq: state,
        })
    }

    /// What it has, up to a boundary.
    fn end(&self, cut: &Cut, last: bool) -> End {
        let late = self.next.as_ref().map_or(0, |next| next.late.events);
        let refs = REFS.load(Relaxed).wrapping_sub(self.refs);
        let events = EVENT_RECORDS.load(Relaxed).wrapping_sub(self.events);
        let events = events.wrapping_sub(late);
        let full = cut.lost.full.wrapping_sub(self.lost.full);
        let atomic = cut.lost.atomic.wrapping_sub(self.lost.atomic);
        // Numbers begin with 1.
        let given = cut.seq.saturating_sub(self.first_seq.max(1));
        let there = refs.wrapping_add(events).wrapping_add(full);
        End(bindings::vmtrace_piece_end {
            number: self.number,
            flags: if last {
                bindings::VMTRACE_PIECE_LAST
            } else {
                0
            },
            size: self.own,
            crc: !self.sum,
            unaccounted: 0,
            next_seq: cut.seq,
            start_time: self.start_time,
            stop_time: cut.time,
            packets: self.packets,
            admissions: self.kinds.admissions,
            refs,
            events,
            aborted: given.saturating_sub(there.wrapping_add(atomic)),
            renewed: self.kinds.renewed,
            chances: self.kinds.chances,
            lost_full: full,
            lost_atomic: atomic,
            lost_io: 0,
        })
    }

    /// Bytes of the trace were written.
    pub(crate) fn wrote(&mut self, data: &[u8]) {
        self.own = self.own.wrapping_add(data.len() as u64);
        self.sum = crc32c(self.sum, data);
        PIECE_BYTES.store(self.own, Relaxed);
    }

    /// Counts what is in a packet that is about to be written. `cut` is the number with which the
    /// next piece begins, or 0 if that is not known.
    pub(crate) fn count(&mut self, kind: u32, packet: &[u8], meta: &Meta, cut: u64) {
        // A sub-buffer may have packets of both.
        if cut == 0 || meta.first_seq < cut {
            self.packets = self.packets.wrapping_add(1);
        }
        let content = packet.get(HEAD..).unwrap_or_default();
        match kind {
            bindings::VMTRACE_STREAM_REF => self.kinds.count(content, self.ref_size),
            bindings::VMTRACE_STREAM_EVENT if cut != 0 && meta.last_seq >= cut => {
                if let Some(next) = &mut self.next {
                    next.late.packets = next.late.packets.wrapping_add(1);
                    let later = events_from(content, cut);
                    next.late.events = next.late.events.wrapping_add(later);
                }
            }
            _ => {}
        }
    }

    /// A packet of events was written, which the next piece needs, too, unless it begins between windows.
    /// Gives an error if that cannot be written.
    pub(crate) fn copy(&mut self, data: &[u8]) -> Result {
        match &mut self.next {
            Some(next) if !self.windows => next.sink.write(data),
            _ => Ok(()),
        }
    }

    /// Whether the next file is there.
    pub(crate) fn has_next(&self) -> bool {
        self.next.is_some()
    }

    /// Gives up the next piece.
    pub(crate) fn give_up(&mut self) {
        if let Some(next) = self.next.take() {
            next.sink.close();
        }
    }
}

// What is written of pieces besides bytes of the trace.
impl Output {
    /// A packet that only a piece has.
    fn parcel(&mut self, kind: u32, content: &[u8], seq: u64, time: u64) -> Result<Packet> {
        let mut packet = drain::packet(content, seq, time).ok_or(ENOMEM)?;
        if content.is_empty() {
            packet.without_records();
        }
        self.seal(kind, 0, &mut packet, None);
        Ok(packet)
    }

    /// Writes the beginning of the first piece behind the header, if that is the header of a piece.
    pub(crate) fn begin_pieces(&mut self, header: &[u8]) -> Result {
        let features = word(header, offset_of!(bindings::vmtrace_header, features));
        if features & u64::from(bindings::VMTRACE_PIECE) == 0 {
            return Ok(());
        }
        let piece = Piece::new(header)?;
        let (begin, time) = (piece.begin(0, 0), piece.start_time);
        self.piece = Some(piece);
        let begin = self.parcel(bindings::VMTRACE_STREAM_PIECE, begin.as_bytes(), 0, time)?;
        self.sink.write(begin.bytes())?;
        self.begin_own(0, time)
    }

    /// Writes that the piece's own part begins.
    fn begin_own(&mut self, seq: u64, time: u64) -> Result {
        let own = self.parcel(bindings::VMTRACE_STREAM_OWN, &[], seq, time)?;
        self.sink.write(own.bytes())
    }

    /// Writes the beginning of the next piece's file, and leaves room for which piece it is.
    pub(crate) fn open_next(&mut self, mut sink: Sink) -> Result {
        let opened = match &self.piece {
            // Nor can it be the present piece, which is not empty.
            _ if !sink.is_new() => Err(EINVAL),
            Some(piece) => sink
                .write(&piece.header)
                .and_then(|()| sink.write(&[0; PARCEL])),
            None => Err(EOPNOTSUPP),
        };
        match (opened, &mut self.piece) {
            (Ok(()), Some(piece)) => {
                let late = Late::default();
                piece.next = Some(Next { sink, late });
                Ok(())
            }
            (opened, _) => {
                sink.close();
                opened
            }
        }
    }

    /// Writes the end of the present piece, whose records are all written, and the beginning of the
    /// next one. From here on, all goes to the next file.
    pub(crate) fn turn(&mut self, cut: &Cut) -> Result {
        self.end_piece(cut, false)?;
        let Some(piece) = &mut self.piece else {
            return Err(EIO);
        };
        let next = piece.next.take().ok_or(EIO)?;
        let offset = piece.offset.wrapping_add(piece.own);
        piece.number = piece.number.wrapping_add(1);
        piece.first_seq = cut.seq;
        piece.start_time = cut.state.1;
        piece.offset = offset;
        piece.own = 0;
        piece.packets = next.late.packets;
        piece.kinds = Kinds::default();
        piece.refs = REFS.load(Relaxed);
        piece.events = EVENT_RECORDS.load(Relaxed).wrapping_sub(next.late.events);
        piece.lost = cut.lost;
        let number = piece.number;
        let flags = match piece.windows {
            true => 0,
            false => bindings::VMTRACE_PIECE_MIDDLE | bindings::VMTRACE_PIECE_CHECKPOINT,
        };
        let begin = piece.begin(flags, cut.state.0);
        let mut former = core::mem::replace(&mut self.sink, next.sink);
        former.send();
        former.close();
        let kind = bindings::VMTRACE_STREAM_PIECE;
        let begin = self.parcel(kind, begin.as_bytes(), cut.seq, cut.state.1)?;
        self.sink.write_over(HEADER, begin.bytes())?;
        self.begin_own(cut.seq, cut.state.1)?;
        PIECE.store(number, Relaxed);
        PIECE_BYTES.store(0, Relaxed);
        Ok(())
    }

    /// Writes the end of the last piece, behind that of the trace.
    pub(crate) fn end_pieces(&mut self) -> Result {
        let cut = Cut::new((0, 0));
        match self.piece {
            Some(_) => self.end_piece(&cut, true),
            None => Ok(()),
        }
    }

    fn end_piece(&mut self, cut: &Cut, last: bool) -> Result {
        let Some(piece) = &self.piece else {
            return Err(EIO);
        };
        let end = piece.end(cut, last);
        let seq = cut.seq.wrapping_sub(1);
        let kind = bindings::VMTRACE_STREAM_PIECE_END;
        let end = self.parcel(kind, end.as_bytes(), seq, cut.time)?;
        self.sink.write(end.bytes())
    }
}
