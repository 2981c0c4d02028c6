// SPDX-License-Identifier: GPL-2.0

//! Packs the references of a packet, as pure logic: see `pack` for the form.
//!
//! One pass over the records writes their pages, and one their numbers. Each needs few registers, so
//! a record takes fewer instructions than in one pass for both. What is rare is done out of line.

use crate::{
    pack::*,
    record::{Extras, OFFSET_SIZE, REF_SIZE, VTIME_SIZE},
};

/// Bytes of room that packing needs beyond what it writes.
pub const SPARE: usize = 8;

/// A record, whose words are read when they are needed.
#[derive(Clone, Copy)]
struct Record<'c, const SIZE: usize>(&'c [u8; SIZE]);

impl<'c, const SIZE: usize> Record<'c, SIZE> {
    #[inline(always)]
    fn half<const AT: usize>(self) -> u32 {
        let half = self.0.get(AT..).and_then(|b| b.first_chunk::<4>());
        half.map_or(0, |h| u32::from_le_bytes(*h))
    }

    #[inline(always)]
    fn seq(self) -> u32 {
        self.half::<8>()
    }

    #[inline(always)]
    fn time(self) -> u32 {
        self.half::<12>()
    }

    /// Thread and address space.
    #[inline(always)]
    fn who(self) -> u64 {
        word::<16>(self.0)
    }

    #[inline(always)]
    fn stay(self) -> u32 {
        self.half::<24>()
    }

    /// When its page was evicted.
    #[inline(always)]
    fn eviction(self, shift: u32) -> u32 {
        self.time().wrapping_add(self.stay().wrapping_shl(shift))
    }

    #[inline(always)]
    fn page(self) -> Page {
        Page {
            word: word::<0>(self.0),
            mm: self.half::<20>(),
            pfn: self.half::<28>(),
        }
    }

    #[inline(always)]
    fn vtime(self) -> u64 {
        word::<REF_SIZE>(self.0)
    }

    #[inline(always)]
    fn offset(self) -> u64 {
        let at = SIZE.wrapping_sub(OFFSET_SIZE);
        let offset = self.0.get(at..).and_then(|b| b.first_chunk::<8>());
        offset.map_or(0, |o| u64::from_le_bytes(*o))
    }
}

/// What is free of a column of pages, which is written to its end.
struct Pages<'b>(&'b mut [u8]);

impl<'b> Pages<'b> {
    /// Adds the highest `LEN` bytes of a word. Those below are overwritten.
    #[inline(always)]
    fn high<const LEN: usize>(self, word: u64) -> Option<Pages<'b>> {
        *self.0.last_chunk_mut()? = word.to_le_bytes();
        let left = self.0.len().checked_sub(LEN)?;
        Some(Pages(self.0.get_mut(..left)?))
    }

    /// Adds the lowest `len` bytes of `value`, of 0 to 8.
    #[inline(always)]
    fn low(self, value: u64, len: usize) -> Option<Pages<'b>> {
        // Twice: a shift by 64 bits is none.
        let half = 32usize.wrapping_sub(len.wrapping_mul(4)) & 63;
        *self.0.last_chunk_mut()? = (value << half << half).to_le_bytes();
        let left = self.0.len().checked_sub(len)?;
        Some(Pages(self.0.get_mut(..left)?))
    }

    /// Adds the differences of a new page, and a byte that says how long each is, to be read before
    /// them.
    #[inline(always)]
    fn new_page(self, far: i64, frame: i32) -> Option<Pages<'b>> {
        let lens = (len_of(fold(far) | 1), len_of(fold(frame.into()) | 1));
        let pages = self.low((lens.0 | lens.1 << 4) as u64, 1)?;
        pages.low(far as u64, lens.0)?.low(frame as u64, lens.1)
    }

    /// Adds what is not as foretold.
    fn others(self, others: u8, page: &Page, thread: u32) -> Option<Pages<'b>> {
        let flags = page.word & FLAGS;
        if others == OTHER_FLAGS && flags < OTHER_FEW.into() {
            return self.low(flags | u64::from(OTHER_FEW), 1);
        }
        let mut pages = self.low(others.into(), 1)?;
        let items = [
            (OTHER_FLAGS, flags, 2),
            (OTHER_THREAD, thread.into(), 4),
            (OTHER_FRAME, page.pfn.into(), 4),
            (OTHER_SPACE, page.mm.into(), 4),
        ];
        for (which, value, len) in items {
            if others & which != 0 {
                pages = pages.low(value, len)?;
            }
        }
        Some(pages)
    }

    /// Adds a virtual time, as a difference.
    #[inline(always)]
    fn vtime(self, ticks: u64) -> Option<Pages<'b>> {
        let len = len_of(fold(ticks as i64));
        self.low(len as u64, 1)?.low(ticks, len)
    }

    /// Adds an offset that is not as foretold, or belongs to no successor.
    #[inline(never)]
    fn offset(self, offset: u64, foretold: Offset) -> Option<Pages<'b>> {
        let now = narrow(offset);
        if now != ODD && now == foretold {
            return self.low(OFFSET_SAME.into(), 1);
        }
        if now == NONE {
            return self.low(OFFSET_NONE.into(), 1);
        }
        const BELOW: u64 = 8 * (OFFSET_ZERO - OFFSET_NEAR) as u64;
        let steps = offset.wrapping_sub(u64::from(foretold)).wrapping_add(BELOW) / 8;
        if now != ODD && foretold < NONE && offset % 8 == u64::from(foretold) % 8 && steps < 224 {
            return self.low(steps.wrapping_add(OFFSET_NEAR.into()), 1);
        }
        if offset < 0x1000 {
            return self.low(offset >> 8, 1)?.low(offset & 0xff, 1);
        }
        let len = len_of(offset);
        let pages = self.low(u64::from(OFFSET_WORD).wrapping_add(len as u64), 1)?;
        pages.low(offset, len)
    }
}

/// Bytes that a number needs.
fn len_of(value: u64) -> usize {
    (71usize.wrapping_sub(value.leading_zeros() as usize)) / 8
}

/// In a token that has no numbers yet: [`OTHER`] less [`PAGE_AT`]. Below it is PAGE_*.
const OTHER_PAGE: u8 = OTHER >> PAGE_AT;

/// What pages are compared with.
#[derive(Clone, Copy)]
struct Before {
    context: u32,
    /// Thread and address space of the last record.
    who: u64,
    /// Address and flags of the page that was new last, and its frame.
    newest: (u64, u32),
    /// A successor with its flags, in slot 0.
    successor: Successor,
    vtime: u64,
    offset: Offset,
}

/// Writes the pages of all records, and the tokens as far as they are about pages: PAGE_*, and
/// [`OTHER_PAGE`]. Gives what is free then.
fn put_pages<'b, const SIZE: usize, const OFFSET: bool>(
    t: &mut Arrays<'_>,
    thread: u32,
    mut content: &[u8],
    mut tokens: &mut [u8],
    mut pages: Pages<'b>,
) -> Option<Pages<'b>> {
    let mut before = Before {
        context: 0,
        who: thread.into(),
        newest: (0, 0),
        successor: t.successor(0, 0),
        vtime: 0,
        offset: 0,
    };
    loop {
        if !OFFSET && !has_vtime(SIZE, OFFSET) {
            let (done, left) = put_few::<SIZE>(t, &mut before, content, tokens, pages)?;
            pages = left;
            content = content.get(done.checked_mul(SIZE)?..)?;
            tokens = tokens.get_mut(done..)?;
        }
        let Some((token, rest)) = tokens.split_first_mut() else {
            return Some(pages);
        };
        let (r, others) = content.split_first_chunk::<SIZE>()?;
        let r = Record(r);
        let (code, slot);
        (code, slot, pages) = put_page(t, &mut before, r, pages)?;
        *token = code;
        if OFFSET {
            let (now, at) = (narrow(r.offset()), (before.context, slot));
            let foretold = t.foretell(at, code & PAGE_CODE, before.offset)?;
            if now == foretold && now != ODD && code == PAGE_NEXT {
                *token = PAGE_NEXT_OFFSET;
            } else {
                pages = pages.offset(r.offset(), foretold)?;
            }
            t.note_offset(at, now)?;
            before.offset = now;
        }
        before.context = step(before.context, slot);
        if has_vtime(SIZE, OFFSET) {
            pages = pages.vtime(r.vtime().wrapping_sub(before.vtime))?;
            before.vtime = r.vtime();
        }
        (content, tokens) = (others, rest);
    }
}

/// The same for records of which [`put_page`] writes no more than the slot of a page, or two bytes of
/// differences, until there is another one: with fewer instructions. Gives how many these are.
#[inline(never)]
fn put_few<'b, const SIZE: usize>(
    t: &mut Arrays<'_>,
    before: &mut Before,
    content: &[u8],
    tokens: &mut [u8],
    mut pages: Pages<'b>,
) -> Option<(usize, Pages<'b>)> {
    let Before {
        mut context,
        who,
        mut newest,
        successor,
        ..
    } = *before;
    let mm = (who >> 32) as u32;
    let mut done = 0usize;
    for (token, r) in tokens.iter_mut().zip(content.chunks_exact(SIZE)) {
        let r = Record::<SIZE>(r.first_chunk()?);
        if r.who() != who {
            break;
        }
        let page = Page { mm, ..r.page() };
        let (code, slot);
        if let Some(next) = t.next(context).filter(|next| next.page == page) {
            (code, slot) = (PAGE_NEXT, next.slot);
        } else {
            slot = Arrays::slot(&page);
            let known = t.page(slot).filter(|known| known.is(&page));
            if known == Some(page) {
                pages = pages.high::<2>((slot as u64) << 48)?;
                t.follow(context, t.successor(slot, page.word));
                code = PAGE_SLOT;
            } else {
                // Flags that differ become high bits.
                let far = page.word.wrapping_sub(newest.0).wrapping_add(0x80 << 12);
                let far = far.rotate_right(12);
                let frame = page.pfn.wrapping_sub(newest.1).wrapping_add(0x80);
                if known.is_some() || far > 0xff || frame > 0xff {
                    break;
                }
                let both = (far << 8 | u64::from(frame)) ^ 0x11_8080;
                pages = pages.high::<3>(both << 40)?;
                newest = (page.word, page.pfn);
                t.keep(slot, page);
                t.follow(context, slot as u32 | successor);
                code = PAGE_NEW;
            }
        }
        context = step(context, slot);
        *token = code;
        done = done.wrapping_add(1);
    }
    (before.context, before.newest) = (context, newest);
    Some((done, pages))
}

/// Writes a page, whatever it is like. Gives the token and the slot.
#[inline(never)]
fn put_page<'b, const SIZE: usize>(
    t: &mut Arrays<'_>,
    before: &mut Before,
    r: Record<'_, SIZE>,
    mut pages: Pages<'b>,
) -> Option<(u8, usize, Pages<'b>)> {
    let (page, thread) = (r.page(), r.who() as u32);
    let found = Arrays::slot(&page);
    let same_thread = thread == before.who as u32;
    let known = t.page(found).filter(|known| known.is(&page));
    // A page is nowhere but in the slot where it is looked for.
    let next = t.next(before.context).filter(|next| next.slot == found);
    let last_mm = (before.who >> 32) as u32;
    before.who = r.who();
    let (code, foretold) = match (known, next) {
        (Some(_), Some(next)) if next.page == page && same_thread => {
            return Some((PAGE_NEXT, found, pages));
        }
        // As long as the slot, if that has something else, too.
        (Some(known), Some(next)) if known != page || !same_thread => (PAGE_NEXT, next.page),
        (Some(known), _) => {
            pages = pages.high::<2>((found as u64) << 48)?;
            (PAGE_SLOT, known)
        }
        (None, _) => {
            let (word, pfn) = before.newest;
            let far = (page.word & !FLAGS).wrapping_sub(word & !FLAGS) as i64 >> 12;
            pages = pages.new_page(far, page.pfn.wrapping_sub(pfn) as i32)?;
            let foretold = Page {
                word,
                mm: last_mm,
                pfn: page.pfn,
            };
            before.newest = (page.word, page.pfn);
            before.successor = t.successor(0, page.word);
            (PAGE_NEW, foretold)
        }
    };
    t.learn(before.context, found, page);
    let if_so = |which: u8, so: bool| if so { which } else { 0 };
    let others = if_so(OTHER_FLAGS, (foretold.word ^ page.word) & FLAGS != 0)
        | if_so(OTHER_THREAD, !same_thread)
        | if_so(OTHER_FRAME, foretold.pfn != page.pfn)
        | if_so(OTHER_SPACE, foretold.mm != page.mm);
    if others == 0 {
        return Some((code, found, pages));
    }
    let pages = pages.others(others, &page, thread)?;
    Some((code | OTHER_PAGE, found, pages))
}

/// What is free of a column of numbers, which is written to its beginning.
struct Numbers<'b>(&'b mut [u8]);

impl<'b> Numbers<'b> {
    /// Adds the lowest `len` bytes of a word, of 0 to 8. Those above are overwritten.
    #[inline(always)]
    fn put(self, word: u64, len: usize) -> Option<Numbers<'b>> {
        *self.0.first_chunk_mut()? = word.to_le_bytes();
        Some(Numbers(self.0.get_mut(len..)?))
    }

    /// Adds the end of a stay: what it is more than the one before.
    #[inline(always)]
    fn end(self, more: u32) -> Option<Numbers<'b>> {
        let less = more.wrapping_neg().wrapping_sub(1);
        let (word, len) = match more {
            0..END_TWO => (more.into(), 1),
            END_TWO..END_TWO_END => {
                let more = more.wrapping_sub(END_TWO);
                let high = (more >> 8).wrapping_add(END_TWO);
                (u64::from(high | (more & 0xff) << 8), 2)
            }
            _ if less < 0x1_0000 => (u64::from(END_BEFORE | less << 8), 3),
            _ => (u64::from(END_FAR) | u64::from(more) << 8, 5),
        };
        self.put(word, len)
    }

    /// Adds a time that is not that of an eviction, and is not of two bytes.
    #[inline(always)]
    fn far_time(self, since: u32) -> Option<Numbers<'b>> {
        let (far, since) = (FAR_TIME.into(), u64::from(since));
        match since < far {
            true => self.put(since, 3),
            false => self.put(far | since << 24, 7),
        }
    }

    /// Adds a sequence number that is not the next one.
    #[inline(always)]
    fn skip(self, skip: u32) -> Option<Numbers<'b>> {
        match skip {
            2..256 => self.put(skip.into(), 1),
            _ => self.put(u64::from(skip) << 8, 5),
        }
    }
}

/// What numbers are compared with, of the record before.
#[derive(Clone, Copy)]
struct Last {
    seq: u32,
    time: u32,
    /// When the stay ended, in its units.
    end: u32,
}

/// Writes the numbers of records that follow one another, and what the tokens say of them. `evicted`
/// begins with the record that was admitted [`Hint::lag`] records before the first one; if not `LAG`, it
/// is not used, as there is none. Gives what is free then.
#[inline(never)]
fn put_numbers<'b, const SIZE: usize, const OFFSET: bool, const LAG: bool>(
    last: &mut Last,
    shift: u32,
    (records, evicted): (&[u8], &[u8]),
    tokens: &mut [u8],
    mut free: Numbers<'b>,
) -> Option<Numbers<'b>> {
    let Last {
        mut seq,
        mut time,
        mut end,
    } = *last;
    let records = records.chunks_exact(SIZE).zip(evicted.chunks_exact(SIZE));
    for (token, (r, evicted)) in tokens.iter_mut().zip(records) {
        let r = Record::<SIZE>(r.first_chunk()?);
        let evicted = Record::<SIZE>(evicted.first_chunk()?);
        let now = r.time();
        let ends = now.wrapping_shr(shift).wrapping_add(r.stay());
        let more = ends.wrapping_sub(end);
        let since = now.wrapping_sub(time);
        let page = *token;
        seq = seq.wrapping_add(1);
        let is_next = r.seq() == seq;
        'numbers: {
            if more == 0 && since < 0x1_0000 {
                *token = FULL | page << PAGE_AT | TIME_SAME_END << TIME_AT;
                free = free.put(since.into(), 2)?;
                break 'numbers;
            }
            let early = now.wrapping_sub(if LAG { evicted.eviction(shift) } else { 0 });
            free = free.end(more)?;
            let class = class::<OFFSET>(page);
            if early < EARLY && class < FULL && is_next {
                *token = class | (early << EARLY_AT) as u8;
                break 'numbers;
            }
            let (form, left) = match (early, since) {
                (0..0x100, _) => (TIME_EARLY, free.put(early.into(), 1)?),
                (_, 0..0x1_0000) => (TIME_SINCE, free.put(since.into(), 2)?),
                _ => (TIME_FAR, free.far_time(since)?),
            };
            *token = FULL | page << PAGE_AT | form << TIME_AT;
            free = left;
        }
        if !is_next {
            *token |= SKIP;
            free = free.skip(r.seq().wrapping_sub(seq).wrapping_add(1))?;
            seq = r.seq();
        }
        (time, end) = (now, ends);
    }
    *last = Last { seq, time, end };
    Some(free)
}

/// The class of a token with this page; not less than [`FULL`] if there is none.
#[inline(always)]
fn class<const OFFSET: bool>(page: u8) -> u8 {
    match (OFFSET, page) {
        (false, page) => page,
        (true, PAGE_NEXT) => FULL,
        // As a class, PAGE_NEXT stands for it.
        (true, PAGE_NEXT_OFFSET) => PAGE_NEXT,
        (true, page) => page,
    }
}

/// Packs the `content` of a packet, which is records with these extras. Gives how many bytes of `out`
/// that takes; `None` if `out` has no room for [`SPARE`] bytes more, or the content is of another size,
/// or there is no table for offsets. Content that cannot be packed into as many bytes as it has is
/// better left as it is.
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
    let first = Record::<SIZE>(content.first_chunk()?);
    // The head has 24 bits for it.
    let lag = Some(hint.lag).filter(|lag| *lag <= MOST_LAG).unwrap_or(0);
    let mut head = Head {
        numbers: 0,
        time: first.time(),
        thread: first.who() as u32,
        hint: Hint { lag, ..hint },
    };
    let (room, rest) = out.split_at_mut_checked(PACKED_HEAD)?;
    let (tokens, columns) = rest.split_at_mut_checked(records)?;
    let (free, tail) = columns.split_at_mut_checked(columns.len().checked_sub(TAIL)?)?;
    tail.fill(0);
    let mut t = tables.begin()?;
    let pages = Pages(free);
    let pages = put_pages::<SIZE, OFFSET>(&mut t, head.thread, content, tokens, pages)?;
    let pages_at = pages.0.len();
    // Those that were admitted when the page that they evicted was not in the packet yet.
    let early = match lag as usize {
        0 => records,
        lag => lag.min(records),
    };
    let (first, others) = content.split_at_checked(early.checked_mul(SIZE)?)?;
    let (first_tokens, tokens) = tokens.split_at_mut_checked(early)?;
    let mut last = Last {
        seq: u32::MAX,
        time: head.time,
        end: 0,
    };
    let (last, shift, free) = (&mut last, hint.shift, Numbers(pages.0));
    let of = (first, first);
    let free = put_numbers::<SIZE, OFFSET, false>(last, shift, of, first_tokens, free)?;
    let of = (others, content);
    let numbers = put_numbers::<SIZE, OFFSET, true>(last, shift, of, tokens, free)?;
    let gap = numbers.0.len();
    let numbers = pages_at.checked_sub(gap)?;
    head.numbers = numbers as u32;
    head.put(room);
    move_down(columns.get_mut(numbers..)?, gap)?;
    let columns = columns.len().checked_sub(gap)?;
    Some(PACKED_HEAD.wrapping_add(records).wrapping_add(columns))
}

/// Moves what is behind a gap to the beginning of `bytes`.
fn move_down(bytes: &mut [u8], gap: usize) -> Option<()> {
    if gap <= bytes.len() {
        bytes.copy_within(gap.., 0);
    }
    Some(())
}
