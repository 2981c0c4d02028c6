//! Packs the references of a packet in the first form (VMTRACE_CODEC_PACK), and unpacks them.
//!
//! Kernels wrote this form before they wrote that of [`pack_refs`](crate::pack_refs). Traces of theirs are
//! still read. [`pack`] is for tests of reading.
//!
//! A reference takes 32 bytes in a sub-buffer, and most of these bytes can be foretold: a program
//! goes from page to page as it did before, a page keeps its address space and its frame, and the
//! time of an admission is when the stay of the page that it evicts has ended. So both sides keep
//! the same tables of what came before in the packet, and the packed content has only what differs
//! from what the tables foretell. No other packet is needed to unpack one.
//!
//! ```text
//! the head       PACKED_HEAD bytes: struct vmtrace_packed
//! tokens         one byte for each record: see PAGE_NEXT and what follows
//! numbers        forward: times, ends of stays, sequence numbers
//! pages          backward, from the end: pages, flags, frames, threads, virtual times, offsets
//! ```
//!
//! A record is read as words, and all arithmetic on them wraps around. So records can be packed,
//! whatever their bytes are.

use crate::{
    record::{put, Extras, OFFSET_SIZE, REF_SIZE, VTIME_SIZE},
    stay::NO_OFFSET,
    Store,
};

/// Bytes of the head of packed content.
pub const PACKED_HEAD: usize = 16;
/// Bytes that packed content has at its end, so that each read of a column can take eight bytes.
const TAIL: usize = 8;

/// Pages that are remembered at most. Here, a *slot* is an index of them, of 12 bits. The
/// documentation calls it a place.
const PAGES: usize = 1 << 12;
/// Successors of two pages that are remembered at most.
const SUCCESSORS: usize = 1 << 14;
/// Ends of stays that are remembered: the greatest [`Hint::lag`] that is used. A larger one helps only if
/// a packet has more records than that.
const ENDS: usize = 1 << 13;

/// The flags in the low bits of `vmtrace_ref.page`.
const FLAGS: u64 = 0xfff;

// The token of a record. Its lowest two bits are one of PAGE_*.
/// The page and its flags are those that came last time after the two pages before.
const PAGE_NEXT: u8 = 0;
/// The page has been referenced before: its slot follows, two bytes. Its flags are those of then.
const PAGE_SLOT: u8 = 1;
/// The page is a new one.
const PAGE_NEW: u8 = 2;
/// [`PAGE_NEXT`], and the offset is as foretold. Only where there are offsets: see [`put_offset`].
const PAGE_NEXT_OFFSET: u8 = 3;
const PAGE_CODE: u8 = 3;
/// Flags, thread or frame are others than foretold: a byte of [`OTHER_FLAGS`] and the like follows.
const OTHER: u8 = 1 << 2;
/// How the time is written.
const TIME_AT: u32 = 3;
/// How the end of the stay is written.
const END_AT: u32 = 5;
/// The sequence number is not the next one.
const SKIP: u8 = 1 << 7;

const OTHER_FLAGS: u8 = 1;
const OTHER_THREAD: u8 = 1 << 1;
const OTHER_FRAME: u8 = 1 << 2;
/// Of a new page: the address space.
const OTHER_SPACE: u8 = 1 << 3;
const OTHERS: u8 = OTHER_FLAGS | OTHER_THREAD | OTHER_FRAME | OTHER_SPACE;

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
#[derive(Clone, Copy, Default)]
pub struct Page {
    /// Its address, and the flags of the reference.
    word: u64,
    /// Its address space, and its frame above that.
    owner: u64,
}

/// A slot in the low 12 bits, the packet's [`Age`] above, and above that the flags of a reference.
type Successor = u32;

/// The number of a packet: what a table has of another packet is not there. So tables need not be
/// cleared for each packet. 0 is that of no packet.
type Age = u8;

/// Memory for what has come before in a packet.
pub struct Tables {
    /// [`PAGES`] of them.
    pages: Store<Page>,
    /// Of which packet they are.
    ages: Store<Age>,
    /// [`SUCCESSORS`] of them.
    successors: Store<Successor>,
    /// [`ENDS`] of them.
    ends: Store<u32>,
    /// Of references with offsets: [`OFFSETS`] of them, of pages and then of successors. They need no
    /// age, for each is set when its page or successor is.
    offsets: Store<Offset>,
    age: Age,
}

/// An offset as the tables have it.
type Offset = u32;
/// [`NO_OFFSET`].
const NONE: Offset = 1 << 31;
/// A word that is neither an offset nor [`NO_OFFSET`].
const ODD: Offset = u32::MAX;
const OFFSETS: usize = PAGES + SUCCESSORS;

/// The same as arrays, so that no index needs to be checked.
struct Arrays<'t> {
    pages: &'t mut [Page; PAGES],
    ages: &'t mut [Age; PAGES],
    successors: &'t mut [Successor; SUCCESSORS],
    ends: &'t mut [u32; ENDS],
    /// Empty unless there are offsets.
    offsets: &'t mut [Offset],
    age: Age,
}

impl Tables {
    /// Takes the memory for tables, all zero. `None` if one has too little.
    pub fn new(
        pages: Store<Page>,
        ages: Store<u8>,
        successors: Store<u32>,
        ends: Store<u32>,
        offsets: Store<u32>,
    ) -> Option<Tables> {
        let enough = pages.len() >= PAGES
            && ages.len() >= PAGES
            && successors.len() >= SUCCESSORS
            && ends.len() >= ENDS;
        enough.then_some(Tables {
            pages,
            ages,
            successors,
            ends,
            offsets,
            age: 0,
        })
    }

    /// Entries of the four tables that are always needed.
    pub const SIZES: (usize, usize, usize, usize) = (PAGES, PAGES, SUCCESSORS, ENDS);

    /// Entries of the table of offsets.
    pub fn offsets(extras: Extras) -> usize {
        match extras {
            Extras::NONE | Extras::VTIME => 0,
            _ => OFFSETS,
        }
    }

    /// The tables of the next packet, with nothing in them.
    fn begin(&mut self) -> Option<Arrays<'_>> {
        self.age = match self.age.checked_add(1) {
            Some(age) => age,
            None => {
                self.ages.fill(0);
                self.successors.fill(0);
                1
            }
        };
        Some(Arrays {
            pages: self.pages.first_chunk_mut()?,
            ages: self.ages.first_chunk_mut()?,
            successors: self.successors.first_chunk_mut()?,
            ends: self.ends.first_chunk_mut()?,
            offsets: &mut self.offsets,
            age: self.age,
        })
    }
}

/// The words of a record.
#[derive(Clone, Copy, Default)]
struct Record {
    /// Address and flags.
    page: u64,
    seq: u32,
    time: u32,
    thread: u32,
    /// Address space, and frame above that.
    owner: u64,
    stay: u32,
    vtime: u64,
    offset: u64,
}

/// Whether records of a size have virtual time.
const fn has_vtime(size: usize, offset: bool) -> bool {
    size == REF_SIZE + VTIME_SIZE + if offset { OFFSET_SIZE } else { 0 }
}

fn word<const AT: usize>(bytes: &[u8]) -> u64 {
    let word = bytes.get(AT..).and_then(|b| b.first_chunk::<8>());
    word.map_or(0, |w| u64::from_le_bytes(*w))
}

impl Record {
    #[inline(always)]
    fn get<const SIZE: usize, const OFFSET: bool>(bytes: &[u8; SIZE]) -> Record {
        let (fifth, sixth) = match SIZE {
            40 => (word::<32>(bytes), word::<32>(bytes)),
            48 => (word::<32>(bytes), word::<40>(bytes)),
            _ => (0, 0),
        };
        let (times, who, what) = (word::<8>(bytes), word::<16>(bytes), word::<24>(bytes));
        Record {
            page: word::<0>(bytes),
            seq: times as u32,
            time: (times >> 32) as u32,
            thread: who as u32,
            owner: who >> 32 | what >> 32 << 32,
            stay: what as u32,
            vtime: if has_vtime(SIZE, OFFSET) { fifth } else { 0 },
            offset: if OFFSET { sixth } else { 0 },
        }
    }

    #[inline(always)]
    fn put<const SIZE: usize, const OFFSET: bool>(&self, out: &mut [u8; SIZE]) {
        let times = u64::from(self.seq) | u64::from(self.time) << 32;
        let who = u64::from(self.thread) | self.owner << 32;
        let what = u64::from(self.stay) | self.owner >> 32 << 32;
        put(out, 0, &self.page.to_le_bytes());
        put(out, 8, &times.to_le_bytes());
        put(out, 16, &who.to_le_bytes());
        put(out, 24, &what.to_le_bytes());
        put(out, 32, &self.vtime.to_le_bytes());
        if OFFSET {
            put(out, SIZE - OFFSET_SIZE, &self.offset.to_le_bytes());
        }
    }
}

/// A successor of this packet.
#[derive(Clone, Copy)]
struct Next {
    slot: usize,
    page: Page,
    flags: u64,
}

impl Next {
    fn word(&self) -> u64 {
        self.page.word & !FLAGS | self.flags
    }
}

impl Arrays<'_> {
    /// Where a page is looked for.
    #[inline(always)]
    fn slot(address: u64, owner: u64) -> usize {
        let key = (address >> 12) ^ (owner << 44);
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % PAGES
    }

    /// What came last time where `context` is.
    #[inline(always)]
    fn next(&self, context: usize) -> Option<Next> {
        let next = self.successors[context % SUCCESSORS];
        let slot = next as usize % PAGES;
        let page = self.pages[slot];
        (next >> 12 & 0xff == u32::from(self.age)).then_some(Next {
            slot,
            page,
            flags: u64::from(next >> 20),
        })
    }

    /// The page of a slot, if it is of this packet.
    fn page(&self, slot: usize) -> Option<Page> {
        (self.ages[slot % PAGES] == self.age).then_some(self.pages[slot % PAGES])
    }

    /// A page was referenced that could not be foretold in full.
    #[inline(always)]
    fn learn(&mut self, context: usize, slot: usize, page: Page) {
        self.pages[slot % PAGES] = page;
        self.ages[slot % PAGES] = self.age;
        self.successors[context % SUCCESSORS] =
            (slot % PAGES) as u32 | u32::from(self.age) << 12 | ((page.word & FLAGS) as u32) << 20;
    }

    /// What is known of the time of record `i`: when the page was evicted that was admitted so
    /// many records before it. 0 if that is not in the packet.
    #[inline(always)]
    fn eviction(&self, i: usize, lag: usize) -> u32 {
        match i.checked_sub(lag) {
            Some(before) if lag != 0 => self.ends[before % ENDS],
            _ => 0,
        }
    }

    /// A stay ends.
    #[inline(always)]
    fn ends(&mut self, i: usize, time: u32, stay: u32, shift: u32) {
        self.ends[i % ENDS] = time.wrapping_add(stay.wrapping_shl(shift));
    }
}

impl Arrays<'_> {
    /// The offsets of a page and of a successor.
    #[inline(always)]
    fn offsets(&mut self, context: usize, slot: usize) -> Option<(&mut Offset, &mut Offset)> {
        let (pages, successors) = self.offsets.split_at_mut_checked(PAGES)?;
        let page = pages.get_mut(slot % PAGES)?;
        Some((page, successors.get_mut(context % SUCCESSORS)?))
    }

    /// The offset that is foretold for a token: that of the successor, of the page, or of the record
    /// before.
    #[inline(always)]
    fn foretell(
        &mut self,
        (context, slot): (usize, usize),
        token: u8,
        last: Offset,
    ) -> Option<Offset> {
        let (page, successor) = self.offsets(context, slot)?;
        Some(match token & PAGE_CODE {
            PAGE_SLOT => *page,
            PAGE_NEW => last,
            _ => *successor,
        })
    }

    /// Notes the offset of a record.
    #[inline(always)]
    fn note_offset(&mut self, (context, slot): (usize, usize), offset: Offset) -> Option<()> {
        let (page, successor) = self.offsets(context, slot)?;
        (*page, *successor) = (offset, offset);
        Some(())
    }
}

/// An offset as the tables have it.
#[inline(always)]
fn narrow(offset: u64) -> Offset {
    match offset {
        0..0x8000_0000 => offset as Offset,
        NO_OFFSET => NONE,
        _ => ODD,
    }
}

/// The offset that the tables have. Nothing is foretold as [`ODD`].
#[inline(always)]
fn widen(offset: Offset) -> u64 {
    match offset {
        NONE => NO_OFFSET,
        offset => u64::from(offset),
    }
}

// The first byte of an offset that is not as foretold by PAGE_NEXT_OFFSET. Up to 15: these are its
// bits 8 to 11, and a byte with the bits below follows.
/// As foretold.
const OFFSET_SAME: u8 = 16;
/// [`NO_OFFSET`].
const OFFSET_NONE: u8 = 17;
/// All bytes of the word follow: as many as this is more than that, from 0 to 8.
const OFFSET_WORD: u8 = 18;
/// From this on: the foretold one, and eight times as much as this is more than [`OFFSET_ZERO`].
const OFFSET_NEAR: u8 = 32;
const OFFSET_ZERO: u8 = 144;

/// Writes an offset that is not as foretold, or belongs to no successor.
#[inline(never)]
fn put_offset(offset: u64, foretold: Offset, out: &mut Back<'_>) -> Option<()> {
    let now = narrow(offset);
    if now != ODD && now == foretold {
        return out.push(u64::from(OFFSET_SAME), 1);
    }
    if now == NONE {
        return out.push(u64::from(OFFSET_NONE), 1);
    }
    let steps = offset.wrapping_sub(u64::from(foretold)).wrapping_add(896) / 8;
    if now != ODD && foretold < NONE && offset % 8 == u64::from(foretold) % 8 && steps < 224 {
        return out.push(steps.wrapping_add(u64::from(OFFSET_NEAR)), 1);
    }
    if offset < 0x1000 {
        out.push(offset >> 8, 1)?;
        return out.push(offset & 0xff, 1);
    }
    let len = len_of(offset);
    out.push(u64::from(OFFSET_WORD).wrapping_add(len as u64), 1)?;
    out.push_some(offset, len)
}

/// Reads what [`put_offset`] has written.
#[inline(never)]
fn get_offset(foretold: Offset, from: &mut BackRead<'_>) -> Option<u64> {
    let near = widen(foretold);
    Some(match from.pop(1)? as u8 {
        high @ 0..16 => u64::from(high) << 8 | from.pop(1)? & 0xff,
        OFFSET_SAME => near,
        OFFSET_NONE => NO_OFFSET,
        len @ OFFSET_WORD..OFFSET_NEAR => from.pop_some(len.wrapping_sub(OFFSET_WORD).into())?,
        steps => near
            .wrapping_add(8 * u64::from(steps))
            .wrapping_sub(8 * u64::from(OFFSET_ZERO)),
    })
}

/// Where the successor of two pages is, after one more page.
#[inline(always)]
fn step(context: usize, slot: usize) -> usize {
    (context << 9 ^ slot.wrapping_mul(0x9e5)) % SUCCESSORS
}

/// What pages are written relative to.
#[derive(Clone, Copy)]
struct Before {
    /// The last record's.
    thread: u32,
    owner: u64,
    /// The page that was new last.
    newest: Page,
    /// The last record's.
    offset: Offset,
}

/// Whether a page is that of a record.
fn is_page(page: &Page, r: &Record) -> bool {
    (page.word ^ r.page) & !FLAGS == 0 && page.owner as u32 == r.owner as u32
}

/// Writes what [`PAGE_NEXT`] does not foretell. Gives the token and the slot.
#[inline(never)]
fn put_page(
    t: &mut Arrays<'_>,
    context: usize,
    before: &mut Before,
    r: &Record,
    out: &mut Back<'_>,
) -> Option<(u8, usize)> {
    let found = Arrays::slot(r.page & !FLAGS, r.owner);
    let page = Page {
        word: r.page,
        owner: r.owner,
    };
    let (code, slot, flags, frame);
    if let Some(next) = t.next(context).filter(|next| is_page(&next.page, r)) {
        (code, slot) = (PAGE_NEXT, next.slot);
        (flags, frame) = (next.flags, next.page.owner >> 32);
    } else if let Some(page) = t.page(found).filter(|page| is_page(page, r)) {
        out.push(found as u64, 2)?;
        (code, slot) = (PAGE_SLOT, found);
        (flags, frame) = (page.word & FLAGS, page.owner >> 32);
    } else {
        let newest = before.newest;
        let far = fold((r.page >> 12).wrapping_sub(newest.word >> 12));
        let frames = fold((r.owner >> 32).wrapping_sub(newest.owner >> 32));
        out.push_two(far, frames)?;
        before.newest = page;
        (code, slot) = (PAGE_NEW, found);
        // All of the frame is written.
        (flags, frame) = (newest.word & FLAGS, r.owner >> 32);
    }
    let same_space = code != PAGE_NEW || r.owner as u32 == before.owner as u32;
    let same = flags == r.page & FLAGS && r.thread == before.thread && frame == r.owner >> 32;
    let mut token = code;
    if !(same && same_space) {
        let if_so = |which: u8, differs: bool| if differs { which } else { 0 };
        let other = if_so(OTHER_FLAGS, flags != r.page & FLAGS)
            | if_so(OTHER_THREAD, r.thread != before.thread)
            | if_so(OTHER_FRAME, frame != r.owner >> 32)
            | if_so(OTHER_SPACE, !same_space);
        token |= OTHER;
        put_other(r, other, out)?;
    }
    t.learn(context, slot, page);
    Some((token, slot))
}

/// Writes what is not as foretold.
#[inline(never)]
fn put_other(r: &Record, other: u8, out: &mut Back<'_>) -> Option<()> {
    out.push(u64::from(other), 1)?;
    let mut push = |which: u8, value: u64, len| match other & which {
        0 => Some(()),
        _ => out.push(value, len),
    };
    push(OTHER_FLAGS, r.page & FLAGS, 2)?;
    push(OTHER_THREAD, u64::from(r.thread), 4)?;
    push(OTHER_FRAME, r.owner >> 32, 4)?;
    push(OTHER_SPACE, r.owner & u64::from(u32::MAX), 4)
}

/// Reads what [`put_page`] has written: the record, without its numbers, and the slot.
#[inline(never)]
fn get_page(
    t: &mut Arrays<'_>,
    context: usize,
    before: &mut Before,
    token: u8,
    from: &mut BackRead<'_>,
) -> Option<(Record, usize)> {
    let code = token & PAGE_CODE;
    let mut r = Record {
        thread: before.thread,
        ..Record::default()
    };
    let mut slot = 0;
    match code {
        PAGE_NEXT | PAGE_NEXT_OFFSET => {
            let next = t.next(context)?;
            (slot, r.page, r.owner) = (next.slot, next.word(), next.page.owner);
        }
        PAGE_SLOT => {
            slot = from.pop(2)? as usize;
            let page = t.page(slot).filter(|_| slot < PAGES)?;
            (r.page, r.owner) = (page.word, page.owner);
        }
        PAGE_NEW => {
            let lens = from.pop(1)? as usize;
            let far = unfold(from.pop_some(lens & 0xf)?);
            let frame = unfold(from.pop_some(lens >> 4)?);
            let newest = before.newest;
            let address = (newest.word >> 12).wrapping_add(far) << 12;
            r.page = address | newest.word & FLAGS;
            let frame = (newest.owner >> 32).wrapping_add(frame);
            r.owner = frame << 32 | before.owner & u64::from(u32::MAX);
        }
        _ => return None,
    }
    if token & OTHER != 0 {
        let other = from.pop(1)? as u8;
        if other & !OTHERS != 0 {
            return None;
        }
        let mut pop = |which: u8, len| match other & which {
            0 => Some(None),
            _ => from.pop(len).map(Some),
        };
        if let Some(flags) = pop(OTHER_FLAGS, 2)? {
            if flags > FLAGS {
                return None;
            }
            r.page = r.page & !FLAGS | flags;
        }
        if let Some(thread) = pop(OTHER_THREAD, 4)? {
            r.thread = thread as u32;
        }
        if let Some(frame) = pop(OTHER_FRAME, 4)? {
            r.owner = r.owner & u64::from(u32::MAX) | frame << 32;
        }
        if let Some(space) = pop(OTHER_SPACE, 4)? {
            r.owner = r.owner >> 32 << 32 | space;
        }
    }
    let page = Page {
        word: r.page,
        owner: r.owner,
    };
    if code == PAGE_NEW {
        slot = Arrays::slot(r.page & !FLAGS, r.owner);
        before.newest = page;
    }
    t.learn(context, slot, page);
    Some((r, slot))
}

/// The larger column, written from the end of `bytes` to their beginning.
struct Back<'b> {
    bytes: &'b mut [u8],
    at: usize,
}

impl Back<'_> {
    /// Adds the lowest `len` bytes of `value`, of 1 to 8. Those below are overwritten.
    #[inline(always)]
    fn push(&mut self, value: u64, len: usize) -> Option<()> {
        let from = self.at.checked_sub(8)?;
        let room = self.bytes.get_mut(from..)?.first_chunk_mut::<8>()?;
        *room = (value << (64usize.wrapping_sub(8 * len) & 63)).to_le_bytes();
        self.at = self.at.wrapping_sub(len);
        Some(())
    }

    /// Adds two numbers, and a byte that says how long each is, to be read before them.
    #[inline(always)]
    fn push_two(&mut self, first: u64, second: u64) -> Option<()> {
        let lens = (len_of(first), len_of(second));
        let both = (lens.0 | lens.1 << 4) as u64;
        let all = lens.0.wrapping_add(lens.1);
        if all > 7 {
            self.push(both, 1)?;
            self.push_some(first, lens.0)?;
            return self.push_some(second, lens.1);
        }
        // One below the other.
        let first = first << (56usize.wrapping_sub(8 * lens.0) & 63);
        let second = second.wrapping_shl(56u32.wrapping_sub(8 * all as u32));
        let word = both << 56 | if lens.0 == 0 { 0 } else { first };
        let word = word | if lens.1 == 0 { 0 } else { second };
        let from = self.at.checked_sub(8)?;
        let room = self.bytes.get_mut(from..)?.first_chunk_mut::<8>()?;
        *room = word.to_le_bytes();
        self.at = self.at.wrapping_sub(all.wrapping_add(1));
        Some(())
    }

    /// Adds a number of 0 to 8 bytes that is written somewhere else.
    fn push_some(&mut self, value: u64, len: usize) -> Option<()> {
        match len {
            0 => Some(()),
            len => self.push(value, len),
        }
    }
}

/// The same when it is read.
struct BackRead<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl BackRead<'_> {
    #[inline(always)]
    fn pop(&mut self, len: usize) -> Option<u64> {
        let from = self.at.checked_sub(8)?;
        let word = *self.bytes.get(from..)?.first_chunk::<8>()?;
        self.at = self.at.wrapping_sub(len);
        Some(u64::from_le_bytes(word) >> (64usize.wrapping_sub(8 * len) & 63))
    }

    fn pop_some(&mut self, len: usize) -> Option<u64> {
        match len {
            0 => Some(0),
            1..=8 => self.pop(len),
            _ => None,
        }
    }
}

/// Bytes that a number needs.
fn len_of(value: u64) -> usize {
    (71usize.wrapping_sub(value.leading_zeros() as usize)) / 8
}

/// A signed difference as a number that is small if the difference is.
fn fold(difference: u64) -> u64 {
    difference << 1 ^ ((difference as i64) >> 63) as u64
}

fn unfold(folded: u64) -> u64 {
    folded >> 1 ^ (folded & 1).wrapping_neg()
}

/// What a head has: bytes of the numbers, the first record's time and thread, and the hint.
struct Head {
    numbers: u32,
    time: u32,
    thread: u32,
    hint: Hint,
}

impl Head {
    fn put(&self, out: &mut [u8]) {
        put(out, 0, &self.numbers.to_le_bytes());
        put(out, 4, &self.time.to_le_bytes());
        put(out, 8, &self.thread.to_le_bytes());
        put(
            out,
            12,
            &(self.hint.lag | self.hint.shift << 24).to_le_bytes(),
        );
    }

    fn get(packed: &[u8]) -> Option<Head> {
        let head = packed.first_chunk::<PACKED_HEAD>()?;
        let (first, second) = (word::<0>(head), word::<8>(head));
        Some(Head {
            numbers: first as u32,
            time: (first >> 32) as u32,
            thread: second as u32,
            hint: Hint {
                lag: (second >> 32) as u32 & 0xff_ffff,
                shift: (second >> 56) as u32,
            },
        })
    }
}

/// What is known before the first record.
fn before(thread: u32) -> Before {
    Before {
        thread,
        owner: 0,
        newest: Page::default(),
        offset: 0,
    }
}

/// Packs the `content` of a packet, which is records with these extras. Gives how many bytes of `out`
/// that takes; `None` if `out` has no room, or the content is of another size, or there is no table
/// for offsets. Content that cannot be packed into as many bytes as it has is better left as it is.
pub fn pack(
    tables: &mut Tables,
    extras: Extras,
    hint: Hint,
    content: &[u8],
    out: &mut [u8],
) -> Option<usize> {
    match extras {
        Extras::VTIME => pack_as::<{ REF_SIZE + VTIME_SIZE }, false>(tables, hint, content, out),
        Extras::OFFSET => pack_as::<{ REF_SIZE + OFFSET_SIZE }, true>(tables, hint, content, out),
        Extras::BOTH => {
            pack_as::<{ REF_SIZE + VTIME_SIZE + OFFSET_SIZE }, true>(tables, hint, content, out)
        }
        _ => pack_as::<REF_SIZE, false>(tables, hint, content, out),
    }
}

fn pack_as<const SIZE: usize, const OFFSET: bool>(
    tables: &mut Tables,
    hint: Hint,
    content: &[u8],
    out: &mut [u8],
) -> Option<usize> {
    let records = content.len() / SIZE;
    if records.checked_mul(SIZE)? != content.len() || hint.shift > 8 {
        return None;
    }
    // Ends that are further back are not remembered.
    let lag = Some(hint.lag).filter(|lag| *lag as usize <= ENDS);
    let hint = Hint {
        lag: lag.unwrap_or(0),
        ..hint
    };
    let first = Record::get::<SIZE, OFFSET>(content.first_chunk()?);
    let mut head = Head {
        numbers: 0,
        time: first.time,
        thread: first.thread,
        hint,
    };
    let mut t = tables.begin()?;
    let (room, rest) = out.split_at_mut_checked(PACKED_HEAD)?;
    let (tokens, columns) = rest.split_at_mut_checked(records)?;
    let at = columns.len().checked_sub(TAIL)?;
    columns.get_mut(at..)?.fill(0);
    let mut pages = Back { bytes: columns, at };
    put_pages::<SIZE, OFFSET>(&mut t, head.thread, content, tokens, &mut pages)?;
    let Back { bytes, at } = pages;
    let (room_of_numbers, _) = bytes.split_at_mut_checked(at)?;
    let numbers = put_numbers::<SIZE, OFFSET>(&mut t, &head, content, tokens, room_of_numbers)?;
    let behind = bytes.len().wrapping_sub(at);
    // The columns side by side: eight bytes at a time, as there may be a gap of any size.
    let (mut from, mut to) = (at, numbers);
    while let Some(word) = bytes
        .get(from..)
        .and_then(|b| b.first_chunk::<8>())
        .copied()
    {
        *bytes.get_mut(to..)?.first_chunk_mut::<8>()? = word;
        (from, to) = (from.wrapping_add(8), to.wrapping_add(8));
    }
    while let Some(byte) = bytes.get(from).copied() {
        *bytes.get_mut(to)? = byte;
        (from, to) = (from.wrapping_add(1), to.wrapping_add(1));
    }
    head.numbers = numbers as u32;
    head.put(room);
    let columns = numbers.wrapping_add(behind);
    Some(PACKED_HEAD.wrapping_add(records).wrapping_add(columns))
}

/// Writes the pages of all records, and the tokens as far as they are about pages. A pass of its own
/// for these, and one for the numbers, needs fewer registers at a time.
fn put_pages<const SIZE: usize, const OFFSET: bool>(
    t: &mut Arrays<'_>,
    thread: u32,
    content: &[u8],
    tokens: &mut [u8],
    out: &mut Back<'_>,
) -> Option<()> {
    let mut before = before(thread);
    let (mut context, mut vtime) = (0usize, 0u64);
    for (bytes, token) in content.chunks_exact(SIZE).zip(tokens.iter_mut()) {
        let r = Record::get::<SIZE, OFFSET>(bytes.first_chunk()?);
        let next = t.next(context).filter(|next| {
            let wrong = next.word() ^ r.page | next.page.owner ^ r.owner;
            wrong | u64::from(before.thread ^ r.thread) == 0
        });
        let slot;
        (*token, slot) = match next {
            Some(next) => (PAGE_NEXT, next.slot),
            None => put_page(t, context, &mut before, &r, out)?,
        };
        if OFFSET {
            let now = narrow(r.offset);
            let foretold = t.foretell((context, slot), *token, before.offset)?;
            if now == foretold && now != ODD && *token & PAGE_CODE == PAGE_NEXT {
                *token |= PAGE_NEXT_OFFSET;
            } else {
                put_offset(r.offset, foretold, out)?;
            }
            t.note_offset((context, slot), now)?;
            before.offset = now;
        }
        context = step(context, slot);
        (before.thread, before.owner) = (r.thread, r.owner);
        if has_vtime(SIZE, OFFSET) {
            let ticks = fold(r.vtime.wrapping_sub(vtime));
            let len = len_of(ticks);
            out.push(len as u64, 1)?;
            out.push_some(ticks, len)?;
            vtime = r.vtime;
        }
    }
    Some(())
}

/// Writes the numbers of all records, and what the tokens say of them. Gives how many bytes that
/// takes.
fn put_numbers<const SIZE: usize, const OFFSET: bool>(
    t: &mut Arrays<'_>,
    head: &Head,
    content: &[u8],
    tokens: &mut [u8],
    out: &mut [u8],
) -> Option<usize> {
    let (lag, shift) = (head.hint.lag as usize, head.hint.shift);
    let (mut at, mut last_seq, mut last_time, mut last_end) = (0usize, u32::MAX, head.time, 0u32);
    for (i, (bytes, token)) in content
        .chunks_exact(SIZE)
        .zip(tokens.iter_mut())
        .enumerate()
    {
        let r = Record::get::<SIZE, OFFSET>(bytes.first_chunk()?);
        let room = out.get_mut(at..)?.first_chunk_mut::<16>()?;
        let early = r.time.wrapping_sub(t.eviction(i, lag));
        let since = r.time.wrapping_sub(last_time);
        let (time, len) = match early >> shift {
            0 => (early, 1u32),
            _ => (since, len_of(u64::from(since)).clamp(2, 4) as u32),
        };
        let end = (r.time >> shift).wrapping_add(r.stay);
        let stay = end.wrapping_sub(last_end);
        let stay_len = match stay {
            0 => 0,
            1..256 => 1,
            256..65536 => 2,
            _ => 4u32,
        };
        let word = u64::from(time) | u64::from(stay) << ((8 * len) & 63);
        put(room, 0, &word.to_le_bytes());
        at = at.wrapping_add((len.wrapping_add(stay_len)) as usize);
        let mut code = (len.wrapping_sub(1) << TIME_AT | stay_len.min(3) << END_AT) as u8;
        t.ends(i, r.time, r.stay, shift);
        let skip = r.seq.wrapping_sub(last_seq);
        if skip != 1 {
            code |= SKIP;
            at = put_skip(out, at, skip)?;
        }
        *token |= code;
        (last_seq, last_time, last_end) = (r.seq, r.time, end);
    }
    Some(at)
}

/// Writes a number that is not the next one.
fn put_skip(out: &mut [u8], at: usize, skip: u32) -> Option<usize> {
    let (word, len) = match skip {
        2..256 => (u64::from(skip), 1usize),
        _ => (u64::from(skip) << 8, 5),
    };
    *out.get_mut(at..)?.first_chunk_mut::<8>()? = word.to_le_bytes();
    Some(at.wrapping_add(len))
}

/// Unpacks what [`pack`] has packed into `out`, which has as many bytes as there were. False if
/// `packed` is something else; what `out` has then means nothing.
pub fn unpack(tables: &mut Tables, extras: Extras, packed: &[u8], out: &mut [u8]) -> bool {
    let done = match extras {
        Extras::VTIME => unpack_as::<{ REF_SIZE + VTIME_SIZE }, false>(tables, packed, out),
        Extras::OFFSET => unpack_as::<{ REF_SIZE + OFFSET_SIZE }, true>(tables, packed, out),
        Extras::BOTH => {
            unpack_as::<{ REF_SIZE + VTIME_SIZE + OFFSET_SIZE }, true>(tables, packed, out)
        }
        _ => unpack_as::<REF_SIZE, false>(tables, packed, out),
    };
    done.is_some()
}

fn unpack_as<const SIZE: usize, const OFFSET: bool>(
    tables: &mut Tables,
    packed: &[u8],
    out: &mut [u8],
) -> Option<()> {
    let records = out.len() / SIZE;
    let head = Head::get(packed)?;
    let hint = head.hint;
    if records.checked_mul(SIZE)? != out.len() || hint.shift > 8 || hint.lag as usize > ENDS {
        return None;
    }
    let mut t = tables.begin()?;
    let tokens = packed.get(PACKED_HEAD..)?.get(..records)?;
    let mut numbers = PACKED_HEAD.wrapping_add(records);
    let numbers_end = numbers.checked_add(head.numbers as usize)?;
    let mut pages = BackRead {
        bytes: packed,
        at: packed.len().checked_sub(TAIL)?,
    };
    let mut before = before(head.thread);
    let (lag, shift) = (hint.lag as usize, hint.shift);
    let (mut context, mut end, mut vtime) = (0usize, 0u32, 0u64);
    let (mut seq, mut time) = (u32::MAX, head.time);
    for (i, (bytes, &token)) in out.chunks_exact_mut(SIZE).zip(tokens).enumerate() {
        if !OFFSET && token & PAGE_CODE == PAGE_NEXT_OFFSET {
            return None;
        }
        let (mut r, slot) = match token & (PAGE_CODE | OTHER) {
            PAGE_NEXT | PAGE_NEXT_OFFSET => {
                let next = t.next(context)?;
                let r = Record {
                    page: next.word(),
                    owner: next.page.owner,
                    thread: before.thread,
                    ..Record::default()
                };
                (r, next.slot)
            }
            code => get_page(&mut t, context, &mut before, code, &mut pages)?,
        };
        if OFFSET {
            let foretold = t.foretell((context, slot), token, before.offset)?;
            r.offset = match token & PAGE_CODE {
                PAGE_NEXT_OFFSET => widen(foretold),
                _ => get_offset(foretold, &mut pages)?,
            };
            before.offset = narrow(r.offset);
            t.note_offset((context, slot), before.offset)?;
        }
        context = step(context, slot);
        (before.thread, before.owner) = (r.thread, r.owner);
        if has_vtime(SIZE, OFFSET) {
            let len = pages.pop(1)? as usize;
            vtime = vtime.wrapping_add(unfold(pages.pop_some(len)?));
            r.vtime = vtime;
        }
        let len = u32::from(token >> TIME_AT & 3).wrapping_add(1);
        let stay_len = u32::from(token >> END_AT & 3);
        let stay_len = stay_len.wrapping_add(u32::from(stay_len == 3));
        let word = u64::from_le_bytes(*packed.get(numbers..)?.first_chunk::<8>()?);
        numbers = numbers.wrapping_add((len.wrapping_add(stay_len)) as usize);
        // A branch would often be foretold wrong.
        let by_eviction = u32::from(len == 1).wrapping_neg();
        let base = t.eviction(i, lag) & by_eviction | time & !by_eviction;
        time = base.wrapping_add(word as u32 & low(len));
        end = end.wrapping_add((word >> ((8 * len) & 63)) as u32 & low(stay_len));
        (r.time, r.stay) = (time, end.wrapping_sub(time >> shift));
        t.ends(i, r.time, r.stay, shift);
        let mut skip = 1;
        if token & SKIP != 0 {
            let word = u64::from_le_bytes(*packed.get(numbers..)?.first_chunk::<8>()?);
            let far = word & 0xff == 0;
            skip = match far {
                true => (word >> 8) as u32,
                false => word as u32 & 0xff,
            };
            numbers = numbers.wrapping_add(if far { 5 } else { 1 });
        }
        seq = seq.wrapping_add(skip);
        r.seq = seq;
        r.put::<SIZE, OFFSET>(bytes.first_chunk_mut()?);
    }
    (numbers == numbers_end && pages.at == numbers_end).then_some(())
}

/// The lowest bytes, of 0 to 4.
fn low(bytes: u32) -> u32 {
    1u64.wrapping_shl(8 * bytes).wrapping_sub(1) as u32
}
