// SPDX-License-Identifier: GPL-2.0

//! Packs the events of a packet, and unpacks them, as pure logic.
//!
//! An event is much like the last one of its kind. So each word is written as what differs from that
//! event's word, and of that only the bytes that are not zero. The sequence number and the time are
//! written as differences from the event before.
//!
//! ```text
//! for each event:
//!   u8                the kind
//!   for each word:
//!     u8              which bytes of the difference are not zero, a bit for each
//!     u8[]            these bytes; or, if there are none, how many words follow that have none either
//! ```

use crate::record::{put, EVENT_SIZE};

/// Kinds that can be packed: numbers below this.
const KINDS: usize = 128;
/// Words of an event's head: the first has kind and size, the next two are number and time.
const NUMBER: usize = 1;
const TIME: usize = 2;

/// What came before an event. It is small enough for the kernel's stack.
struct Model {
    /// The last event of each kind: where it begins, and 1 more.
    last: [u32; KINDS],
    number: u64,
    time: u64,
}

impl Model {
    fn new() -> Model {
        Model {
            last: [0; KINDS],
            number: 0,
            time: 0,
        }
    }

    /// What word `i` of the next event of a kind is compared with. `done` has the events before.
    fn like(&self, done: &[u8], kind: usize, i: usize) -> u64 {
        match i {
            NUMBER => self.number,
            TIME => self.time,
            _ => self.word_of_last(done, kind, i).unwrap_or(0),
        }
    }

    /// A word of the last event of a kind, if there was one that had so many words.
    fn word_of_last(&self, done: &[u8], kind: usize, i: usize) -> Option<u64> {
        let start = self.last.get(kind)?.checked_sub(1)? as usize;
        let (_, size) = shape(word(done, start)?, usize::MAX)?;
        match i < size / 8 {
            true => word(done, start.checked_add(8 * i)?),
            false => None,
        }
    }

    fn differs(i: usize, word: u64, like: u64) -> u64 {
        match i {
            NUMBER | TIME => word.wrapping_sub(like),
            _ => word ^ like,
        }
    }

    fn restored(i: usize, differs: u64, like: u64) -> u64 {
        match i {
            NUMBER | TIME => differs.wrapping_add(like),
            _ => differs ^ like,
        }
    }

    /// The event that begins at `start` of `done` was the last one.
    fn learn(&mut self, done: &[u8], kind: usize, start: usize) {
        if let Some(last) = self.last.get_mut(kind) {
            *last = (start as u32).wrapping_add(1);
        }
        self.number = word(done, start.saturating_add(8 * NUMBER)).unwrap_or(0);
        self.time = word(done, start.saturating_add(8 * TIME)).unwrap_or(0);
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*word))
}

/// Kind and size of an event that begins with this word, if it can be an event with so many bytes
/// left.
fn shape(first: u64, left: usize) -> Option<(usize, usize)> {
    let kind = (first & 0xffff) as usize;
    let size = (first >> 16 & 0xffff) as usize;
    let good = kind < KINDS && size >= EVENT_SIZE && size % 8 == 0 && size <= left;
    good.then_some((kind, size))
}

/// Bytes that are written one after the other, as far as there is room.
struct Out<'b> {
    bytes: &'b mut [u8],
    at: usize,
    /// Where the number of words without a difference stands that were written last.
    zeros: Option<usize>,
}

impl Out<'_> {
    fn byte(&mut self, byte: u8) -> Option<()> {
        *self.bytes.get_mut(self.at)? = byte;
        self.at = self.at.wrapping_add(1);
        Some(())
    }

    fn word(&mut self, differs: u64) -> Option<()> {
        if differs == 0 {
            if let Some(zeros) = self.zeros.and_then(|at| self.bytes.get_mut(at)) {
                if let Some(more) = zeros.checked_add(1) {
                    *zeros = more;
                    return Some(());
                }
            }
            self.byte(0)?;
            self.zeros = Some(self.at);
            return self.byte(0);
        }
        self.zeros = None;
        let bytes = differs.to_le_bytes();
        let mut which = 0u8;
        for (i, byte) in bytes.iter().enumerate() {
            which |= u8::from(*byte != 0) << i;
        }
        self.byte(which)?;
        for byte in bytes.iter().filter(|byte| **byte != 0) {
            self.byte(*byte)?;
        }
        Some(())
    }
}

/// Packs the `content` of a packet of events. Gives how many bytes of `out` that takes; `None` if
/// `out` has no room, or the content is something else.
pub fn pack(content: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut m = Model::new();
    let mut out = Out {
        bytes: out,
        at: 0,
        zeros: None,
    };
    let mut start = 0usize;
    while start < content.len() {
        let left = content.len().wrapping_sub(start);
        let (kind, size) = shape(word(content, start)?, left)?;
        out.byte(kind as u8)?;
        out.zeros = None;
        for i in 0..size / 8 {
            let word = word(content, start.wrapping_add(8 * i))?;
            out.word(Model::differs(i, word, m.like(content, kind, i)))?;
        }
        m.learn(content, kind, start);
        start = start.wrapping_add(size);
    }
    Some(out.at)
}

/// Bytes that are read one after the other.
struct In<'b> {
    bytes: &'b [u8],
    /// Words that follow without a difference.
    zeros: u8,
}

impl In<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*byte)
    }

    fn word(&mut self) -> Option<u64> {
        if let Some(left) = self.zeros.checked_sub(1) {
            self.zeros = left;
            return Some(0);
        }
        let which = self.byte()?;
        if which == 0 {
            self.zeros = self.byte()?;
            return Some(0);
        }
        let mut differs = 0u64;
        for i in (0..8u32).filter(|i| which >> i & 1 != 0) {
            differs |= u64::from(self.byte()?) << (8 * i);
        }
        Some(differs)
    }
}

/// Unpacks what [`pack`] has packed into `out`, which has as many bytes as there were. False if
/// `packed` is something else; what `out` has then means nothing.
pub fn unpack(packed: &[u8], out: &mut [u8]) -> bool {
    unpack_all(packed, out).is_some()
}

fn unpack_all(packed: &[u8], out: &mut [u8]) -> Option<()> {
    let mut m = Model::new();
    let mut from = In {
        bytes: packed,
        zeros: 0,
    };
    let mut start = 0usize;
    while start < out.len() {
        let kind = usize::from(from.byte()?);
        let first = from.word()? ^ m.like(out, kind, 0);
        let (same, size) = shape(first, out.len().wrapping_sub(start))?;
        if same != kind {
            return None;
        }
        put(out, start, &first.to_le_bytes());
        for i in 1..size / 8 {
            let word = Model::restored(i, from.word()?, m.like(out, kind, i));
            put(out, start.wrapping_add(8 * i), &word.to_le_bytes());
        }
        if from.zeros != 0 {
            return None;
        }
        m.learn(out, kind, start);
        start = start.wrapping_add(size);
    }
    from.bytes.is_empty().then_some(())
}
