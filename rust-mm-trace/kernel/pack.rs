// SPDX-License-Identifier: GPL-2.0

//! What packing and unpacking of references have in common, as pure logic: see `pack_refs` and
//! `unpack_refs`.
//!
//! A reference takes 32 bytes in a sub-buffer, and most of these bytes can be foretold: a program
//! goes from page to page as it did before, a page keeps its address space and its frame, and the
//! time of an admission is when the stay of the page that it evicts has ended. So both sides keep
//! the same tables of what came before in the packet, and the packed content has only what differs
//! from what the tables foretell. No other packet is needed to unpack one.
//!
//! ```text
//! the head       PACKED_HEAD bytes: struct vmtrace_packed
//! tokens         one byte for each record: see FULL and what follows
//! numbers        forward: times, ends of stays, sequence numbers
//! pages          backward, from the end: pages, flags, frames, threads, virtual times, offsets
//! ```
//!
//! All arithmetic on the words of a record wraps around. So records can be packed, whatever their
//! bytes are.
//!
//! This is the second form of packed references (VMTRACE_CODEC_PACK2). The first one is only read,
//! by user space.

use crate::{
    record::{put, Extras, OFFSET_SIZE, REF_SIZE, VTIME_SIZE},
    stay::NO_OFFSET,
    Store,
};

/// Bytes of the head of packed content.
pub const PACKED_HEAD: usize = 16;
/// Bytes that packed content has at its end, so that each read of a column can take eight bytes.
pub(crate) const TAIL: usize = 8;

/// Pages that are remembered at most. Here, a *slot* is an index of them, of 12 bits. The
/// documentation calls it a place.
pub(crate) const PAGES: usize = 1 << 12;
/// Successors of two pages that are remembered at most.
pub(crate) const SUCCESSORS: usize = 1 << 14;

/// The flags in the low bits of `vmtrace_ref.page`.
pub(crate) const FLAGS: u64 = 0xfff;

// Where the page of a record comes from.
/// The page and its flags are those that came last time after the two pages before. With offsets, as
/// the class of a token: [`PAGE_NEXT_OFFSET`].
pub(crate) const PAGE_NEXT: u8 = 0;
/// The page has been referenced before: its slot follows, two bytes. Its flags are those of then.
pub(crate) const PAGE_SLOT: u8 = 1;
/// The page is a new one.
pub(crate) const PAGE_NEW: u8 = 2;
/// [`PAGE_NEXT`], and the offset is as foretold. Only where there are offsets, and no class of a
/// token.
pub(crate) const PAGE_NEXT_OFFSET: u8 = 3;
/// The bits of them.
pub(crate) const PAGE_CODE: u8 = 3;

// A token. Its lowest two bits are its class: one of PAGE_*, and the other bits are the low byte of
// the time, which is less than EARLY; nothing else is unforeseen. Or:
/// The class of a token whose other bits say what the record has.
pub(crate) const FULL: u8 = 3;
/// Position of the time in a token, if it is there.
pub(crate) const EARLY_AT: u32 = 2;
/// Times that fit there.
pub(crate) const EARLY: u32 = 64;
/// Position of PAGE_* in a full token.
pub(crate) const PAGE_AT: u32 = 2;
/// Flags, thread or frame are others than foretold: a byte of [`OTHER_FLAGS`] and the like follows.
pub(crate) const OTHER: u8 = 1 << 4;
/// The sequence number is not the next one.
pub(crate) const SKIP: u8 = 1 << 5;
/// Position of TIME_* in a full token.
pub(crate) const TIME_AT: u32 = 6;

// How a full token's time is written.
/// One byte, added to when the page was evicted that was admitted [`Hint::lag`] records before.
pub(crate) const TIME_EARLY: u8 = 0;
/// Two bytes since the time before, and the stay ends with the one before.
pub(crate) const TIME_SAME_END: u8 = 1;
/// Two bytes since the time before.
pub(crate) const TIME_SINCE: u8 = 2;
/// Three bytes since the time before, or [`FAR_TIME`] and four bytes.
pub(crate) const TIME_FAR: u8 = 3;
/// Three bytes that stand for four more.
pub(crate) const FAR_TIME: u32 = 0xff_ffff;

// The first byte of the end of a stay, less the end before. Below END_TWO, it is that.
/// From this on: with a second byte, what it is more than [`END_TWO`].
pub(crate) const END_TWO: u32 = 0xe0;
/// Two bytes follow: how much more than 1 it is less than 0.
/// The first that takes no two bytes.
pub(crate) const END_TWO_END: u32 = END_TWO + (END_BEFORE - END_TWO) * 256;
pub(crate) const END_BEFORE: u32 = 0xfe;
/// Four bytes follow: all of it.
pub(crate) const END_FAR: u32 = 0xff;

pub(crate) const OTHER_FLAGS: u8 = 1;
pub(crate) const OTHER_THREAD: u8 = 1 << 1;
pub(crate) const OTHER_FRAME: u8 = 1 << 2;
/// Of a new page: the address space.
pub(crate) const OTHER_SPACE: u8 = 1 << 3;
/// Only the flags are others, and these are the other bits.
pub(crate) const OTHER_FEW: u8 = 1 << 7;

/// The largest [`Hint::lag`].
pub(crate) const MOST_LAG: u32 = 0xff_ffff;

/// What is known of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// N: an admission evicts the page that was admitted so many admissions before it, on one CPU. 0
    /// if that is not known.
    pub lag: u32,
    /// VMTRACE_STAY_SHIFT
    pub shift: u32,
}

/// A page as it was referenced last.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Page {
    /// Its address, and the flags of the reference.
    pub(crate) word: u64,
    /// Its address space.
    pub(crate) mm: u32,
    /// Its frame.
    pub(crate) pfn: u32,
}

impl Page {
    /// Whether it is the page of another reference.
    #[inline(always)]
    pub(crate) fn is(&self, other: &Page) -> bool {
        (self.word ^ other.word) & !FLAGS == 0 && self.mm == other.mm
    }
}

/// A slot in the low 12 bits, above that the flags of a reference, and above that the packet's [`Age`].
pub(crate) type Successor = u32;
const AGE_AT: u32 = 24;
const FIRST_AGE: Age = 1 << AGE_AT;

/// The number of a packet, of 1 to 255 in the bits from [`AGE_AT`] on: what a table has of another packet
/// is not there. So tables need not be cleared for each packet. 0 is that of no packet.
type Age = u32;

/// Memory for what has come before in a packet.
pub struct Tables {
    /// [`PAGES`] of them.
    pages: Store<Page>,
    /// [`SUCCESSORS`] of them, and then an [`Age`] of each page. One table takes fewer registers than two.
    successors: Store<Successor>,
    /// Of references with offsets: [`OFFSETS`] of them, of pages and then of successors. They need no
    /// age, for each is set when its page or successor is.
    offsets: Store<Offset>,
    age: Age,
}

/// An offset as the tables have it.
pub(crate) type Offset = u32;
/// [`NO_OFFSET`].
pub(crate) const NONE: Offset = 1 << 31;
/// A word that is neither an offset nor [`NO_OFFSET`].
pub(crate) const ODD: Offset = u32::MAX;
const OFFSETS: usize = PAGES + SUCCESSORS;

/// The same as arrays, so that no index needs to be checked.
pub(crate) struct Arrays<'t> {
    pages: &'t mut [Page; PAGES],
    successors: &'t mut [Successor; SUCCESSORS + PAGES],
    /// Empty unless there are offsets.
    offsets: &'t mut [Offset],
    age: Age,
}

impl Tables {
    /// Takes the memory for tables, all zero. `None` if one has too little.
    pub fn new(pages: Store<Page>, successors: Store<u32>, offsets: Store<u32>) -> Option<Tables> {
        let enough = pages.len() >= PAGES && successors.len() >= SUCCESSORS + PAGES;
        enough.then_some(Tables {
            pages,
            successors,
            offsets,
            age: 0,
        })
    }

    /// Entries of the two tables that are always needed.
    pub const SIZES: (usize, usize) = (PAGES, SUCCESSORS + PAGES);

    /// Entries of the table of offsets.
    pub fn offsets(extras: Extras) -> usize {
        match extras {
            Extras::NONE | Extras::VTIME => 0,
            _ => OFFSETS,
        }
    }

    /// The tables of the next packet, with nothing in them.
    pub(crate) fn begin(&mut self) -> Option<Arrays<'_>> {
        self.age = match self.age.checked_add(FIRST_AGE) {
            Some(age) => age,
            None => {
                self.successors.fill(0);
                FIRST_AGE
            }
        };
        Some(Arrays {
            pages: self.pages.first_chunk_mut()?,
            successors: self.successors.first_chunk_mut()?,
            offsets: &mut self.offsets,
            age: self.age,
        })
    }
}

/// A successor of this packet.
#[derive(Clone, Copy)]
pub(crate) struct Next {
    pub(crate) slot: usize,
    /// The page, with the flags of the successor.
    pub(crate) page: Page,
}

impl Arrays<'_> {
    /// Where a page is looked for.
    #[inline(always)]
    pub(crate) fn slot(page: &Page) -> usize {
        let key = (page.word >> 12) ^ (u64::from(page.mm) << 44);
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize
    }

    /// What came last time where `context` is.
    #[inline(always)]
    pub(crate) fn next(&self, context: u32) -> Option<Next> {
        let next = self.successors[context as usize % SUCCESSORS] ^ self.age;
        if next >> AGE_AT != 0 {
            return None;
        }
        let slot = next as usize % PAGES;
        let page = self.pages[slot];
        Some(Next {
            slot,
            page: Page {
                word: page.word & !FLAGS | u64::from(next >> 12),
                ..page
            },
        })
    }

    /// The page of a slot, if it is of this packet.
    #[inline(always)]
    pub(crate) fn page(&self, slot: usize) -> Option<Page> {
        let slot = slot % PAGES;
        (self.successors[SUCCESSORS + slot] == self.age).then_some(self.pages[slot])
    }

    /// A page was referenced that could not be foretold in full.
    #[inline(always)]
    pub(crate) fn learn(&mut self, context: u32, slot: usize, page: Page) {
        self.keep(slot, page);
        self.follow(context, self.successor(slot, page.word));
    }

    /// The page of a slot is another one.
    #[inline(always)]
    pub(crate) fn keep(&mut self, slot: usize, page: Page) {
        self.pages[slot % PAGES] = page;
        self.successors[SUCCESSORS + slot % PAGES] = self.age;
    }

    /// A successor, with the flags of `word`.
    #[inline(always)]
    pub(crate) fn successor(&self, slot: usize, word: u64) -> Successor {
        let flags = (word & FLAGS) as u32;
        (slot % PAGES) as u32 | flags << 12 | self.age
    }

    /// It came where `context` is.
    #[inline(always)]
    pub(crate) fn follow(&mut self, context: u32, successor: Successor) {
        self.successors[context as usize % SUCCESSORS] = successor;
    }
}

impl Arrays<'_> {
    /// The offsets of a page and of a successor.
    #[inline(always)]
    fn offsets(&mut self, context: u32, slot: usize) -> Option<(&mut Offset, &mut Offset)> {
        let (pages, successors) = self.offsets.split_at_mut_checked(PAGES)?;
        let page = pages.get_mut(slot % PAGES)?;
        Some((page, successors.get_mut(context as usize % SUCCESSORS)?))
    }

    /// The offset that is foretold for PAGE_*: that of the successor, of the page, or of the record
    /// before.
    #[inline(always)]
    pub(crate) fn foretell(
        &mut self,
        (context, slot): (u32, usize),
        code: u8,
        last: Offset,
    ) -> Option<Offset> {
        let (page, successor) = self.offsets(context, slot)?;
        Some(match code {
            PAGE_SLOT => *page,
            PAGE_NEW => last,
            _ => *successor,
        })
    }

    /// Notes the offset of a record.
    #[inline(always)]
    pub(crate) fn note_offset(
        &mut self,
        (context, slot): (u32, usize),
        offset: Offset,
    ) -> Option<()> {
        let (page, successor) = self.offsets(context, slot)?;
        (*page, *successor) = (offset, offset);
        Some(())
    }
}

/// An offset as the tables have it.
#[inline(always)]
pub(crate) fn narrow(offset: u64) -> Offset {
    match offset {
        0..0x8000_0000 => offset as Offset,
        NO_OFFSET => NONE,
        _ => ODD,
    }
}

// The first byte of an offset that is not as foretold by PAGE_NEXT_OFFSET. Up to 15: these are its
// bits 8 to 11, and a byte with the bits below follows.
/// As foretold.
pub(crate) const OFFSET_SAME: u8 = 16;
/// [`NO_OFFSET`].
pub(crate) const OFFSET_NONE: u8 = 17;
/// All bytes of the word follow: as many as this is more than that, from 0 to 8.
pub(crate) const OFFSET_WORD: u8 = 18;
/// From this on: the foretold one, and eight times as much as this is more than [`OFFSET_ZERO`].
pub(crate) const OFFSET_NEAR: u8 = 32;
pub(crate) const OFFSET_ZERO: u8 = 144;

/// Where the successor of two pages is, after one more page, modulo [`SUCCESSORS`].
#[inline(always)]
pub(crate) fn step(context: u32, slot: usize) -> u32 {
    context << 9 ^ (slot as u32).wrapping_mul(0x9e5)
}

/// A signed difference as a number that is small if the difference is.
#[inline(always)]
pub(crate) fn fold(difference: i64) -> u64 {
    (difference << 1 ^ difference >> 63) as u64
}

/// Eight bytes as a number.
#[inline(always)]
pub(crate) fn word<const AT: usize>(bytes: &[u8]) -> u64 {
    let word = bytes.get(AT..).and_then(|b| b.first_chunk::<8>());
    word.map_or(0, |w| u64::from_le_bytes(*w))
}

/// Whether records of a size have virtual time.
pub(crate) const fn has_vtime(size: usize, offset: bool) -> bool {
    size == REF_SIZE + VTIME_SIZE + if offset { OFFSET_SIZE } else { 0 }
}

/// What a head has: bytes of the numbers, the first record's time and thread, and the hint.
pub(crate) struct Head {
    pub(crate) numbers: u32,
    pub(crate) time: u32,
    pub(crate) thread: u32,
    pub(crate) hint: Hint,
}

impl Head {
    pub(crate) fn put(&self, out: &mut [u8]) {
        put(out, 0, &self.numbers.to_le_bytes());
        put(out, 4, &self.time.to_le_bytes());
        put(out, 8, &self.thread.to_le_bytes());
        put(
            out,
            12,
            &(self.hint.lag | self.hint.shift << 24).to_le_bytes(),
        );
    }
}
