// SPDX-License-Identifier: GPL-2.0

//! Unpacks the references of a packet, as pure logic: see `pack` for the form.

use crate::{
    pack::*,
    record::{put, Extras, OFFSET_SIZE, REF_SIZE, VTIME_SIZE},
    stay::NO_OFFSET,
};

const OTHERS: u8 = OTHER_FLAGS | OTHER_THREAD | OTHER_FRAME | OTHER_SPACE;

/// The offset that the tables have. Nothing is foretold as [`ODD`].
#[inline(always)]
fn widen(offset: Offset) -> u64 {
    match offset {
        NONE => NO_OFFSET,
        offset => u64::from(offset),
    }
}

impl Head {
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

/// The numbers, as far as they are not read yet.
struct Numbers<'b>(&'b [u8]);

impl Numbers<'_> {
    #[inline(always)]
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }

    #[inline(always)]
    fn byte(&mut self) -> Option<u32> {
        self.take::<1>().map(|[byte]| byte.into())
    }

    #[inline(always)]
    fn two(&mut self) -> Option<u32> {
        self.take().map(|two| u16::from_le_bytes(two).into())
    }

    #[inline(always)]
    fn four(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// The end of a stay: what it is more than the one before.
    #[inline(always)]
    fn end(&mut self) -> Option<u32> {
        Some(match self.byte()? {
            one @ 0..END_TWO => one,
            END_BEFORE => self.two()?.wrapping_add(1).wrapping_neg(),
            END_FAR => self.four()?,
            high => {
                let more = high.wrapping_sub(END_TWO) << 8 | self.byte()?;
                more.wrapping_add(END_TWO)
            }
        })
    }

    /// The time since the one before.
    fn far_time(&mut self) -> Option<u32> {
        let [a, b, c] = self.take()?;
        match u32::from_le_bytes([a, b, c, 0]) {
            FAR_TIME => self.four(),
            since => Some(since),
        }
    }

    /// What a sequence number is more than the one before.
    fn skip(&mut self) -> Option<u32> {
        match self.byte()? {
            0 => self.four(),
            skip => Some(skip),
        }
    }
}

/// The pages, as far as they are not read yet, and all that is before them.
struct Pages<'b>(&'b [u8]);

impl Pages<'_> {
    /// The last `len` bytes, of 0 to 8.
    #[inline(always)]
    fn pop(&mut self, len: usize) -> Option<u64> {
        let word = u64::from_le_bytes(*self.0.last_chunk()?);
        self.0 = self.0.get(..self.0.len().checked_sub(len)?)?;
        // Twice: a shift by 64 bits is none.
        let half = 32usize.checked_sub(len.checked_mul(4)?)?;
        Some(word >> half >> half)
    }

    /// The same, with the sign extended.
    #[inline(always)]
    fn signed(&mut self, len: usize) -> Option<u64> {
        let word = u64::from_le_bytes(*self.0.last_chunk()?);
        self.0 = self.0.get(..self.0.len().checked_sub(len)?)?;
        match len {
            0 => Some(0),
            len => Some((word as i64 >> (64usize.wrapping_sub(len.wrapping_mul(8)) & 63)) as u64),
        }
    }

    fn byte(&mut self) -> Option<u8> {
        self.pop(1).map(|byte| byte as u8)
    }

    /// What is not as foretold of a page and its thread.
    #[inline(never)]
    fn others(&mut self, page: &mut Page, thread: &mut u32) -> Option<()> {
        let others = self.byte()?;
        if others & OTHER_FEW != 0 {
            page.word = page.word & !FLAGS | u64::from(others & !OTHER_FEW);
            return Some(());
        }
        if others & !OTHERS != 0 {
            return None;
        }
        if others & OTHER_FLAGS != 0 {
            let flags = self.pop(2)?;
            page.word = page.word & !FLAGS | Some(flags).filter(|flags| *flags <= FLAGS)?;
        }
        if others & OTHER_THREAD != 0 {
            *thread = self.pop(4)? as u32;
        }
        if others & OTHER_FRAME != 0 {
            page.pfn = self.pop(4)? as u32;
        }
        if others & OTHER_SPACE != 0 {
            page.mm = self.pop(4)? as u32;
        }
        Some(())
    }

    /// An offset that is not one of a successor that is as foretold.
    #[inline(never)]
    fn offset(&mut self, foretold: Offset) -> Option<u64> {
        let near = widen(foretold);
        Some(match self.byte()? {
            high @ 0..16 => u64::from(high) << 8 | self.pop(1)?,
            OFFSET_SAME => near,
            OFFSET_NONE => NO_OFFSET,
            len @ OFFSET_WORD..OFFSET_NEAR => self.pop(len.wrapping_sub(OFFSET_WORD).into())?,
            steps => near
                .wrapping_add(8 * u64::from(steps))
                .wrapping_sub(8 * u64::from(OFFSET_ZERO)),
        })
    }
}

/// What has come before in the packet.
struct State<'t, 'p> {
    t: Arrays<'t>,
    pages: Pages<'p>,
    context: u32,
    newest: Page,
    thread: u32,
    /// The address space of the record before.
    mm: u32,
}

impl State<'_, '_> {
    /// Reads a page that is not [`PAGE_NEXT`], or has something that is not as foretold: the page and
    /// its slot.
    #[inline(always)]
    fn page(&mut self, code: u8, other: bool) -> Option<(Page, usize)> {
        let (mut page, mut slot);
        match code {
            PAGE_SLOT => {
                slot = self.pages.pop(2)? as usize;
                page = self.t.page(slot).filter(|_| slot < PAGES)?;
            }
            PAGE_NEW => {
                let lens = self.pages.byte()?;
                let far = self.pages.signed((lens & 0xf).into())?;
                let frame = self.pages.signed((lens >> 4).into())?;
                let newest = self.newest;
                page = Page {
                    word: newest.word.wrapping_add(far << 12),
                    mm: self.mm,
                    pfn: newest.pfn.wrapping_add(frame as u32),
                };
                slot = 0;
            }
            _ => Next { slot, page } = self.t.next(self.context)?,
        }
        if other {
            self.pages.others(&mut page, &mut self.thread)?;
        }
        if code == PAGE_NEW {
            slot = Arrays::slot(&page);
            self.newest = page;
        }
        self.t.learn(self.context, slot, page);
        Some((page, slot))
    }
}

/// Unpacks what `pack_refs` has packed into `out`, which has as many bytes as there were. False if
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
    let (lag, shift) = (head.hint.lag as usize, head.hint.shift);
    if records.checked_mul(SIZE)? != out.len() || shift > 8 {
        return None;
    }
    let tokens = packed.get(PACKED_HEAD..)?.get(..records)?;
    let begin = PACKED_HEAD.checked_add(records)?;
    let pages_begin = begin.checked_add(head.numbers as usize)?;
    let mut numbers = Numbers(packed.get(begin..pages_begin)?);
    let pages = packed.get(..packed.len().checked_sub(TAIL)?)?;
    let mut s = State {
        t: tables.begin()?,
        pages: Pages(pages),
        context: 0,
        newest: Page::default(),
        thread: head.thread,
        mm: 0,
    };
    let (mut end, mut vtime, mut offset): (u32, u64, Offset) = (0, 0, 0);
    let (mut seq, mut time) = (u32::MAX, head.time);
    for (i, &token) in tokens.iter().enumerate() {
        let is_full = token % 4 == FULL;
        let (mut code, form) = match is_full {
            true => (token >> PAGE_AT & 3, token >> TIME_AT),
            false => (token % 4, TIME_EARLY),
        };
        let other = is_full && token & OTHER != 0;
        if is_full && code == PAGE_NEXT_OFFSET && (!OFFSET || other) {
            return None;
        }
        // The class PAGE_NEXT stands for it.
        let as_foretold = OFFSET && (code == PAGE_NEXT_OFFSET || !is_full && code == PAGE_NEXT);
        code %= PAGE_NEXT_OFFSET;
        if form != TIME_SAME_END {
            end = end.wrapping_add(numbers.end()?);
        }
        time = match form {
            TIME_EARLY => {
                let early = match is_full {
                    true => numbers.byte()?,
                    false => (token >> EARLY_AT).into(),
                };
                early.wrapping_add(eviction::<SIZE>(out, i, lag, shift))
            }
            TIME_FAR => time.wrapping_add(numbers.far_time()?),
            _ => time.wrapping_add(numbers.two()?),
        };
        let skip = match is_full && token & SKIP != 0 {
            true => numbers.skip()?,
            false => 1,
        };
        seq = seq.wrapping_add(skip);
        let (page, slot) = match (code, other) {
            (PAGE_NEXT, false) => {
                let next = s.t.next(s.context)?;
                (next.page, next.slot)
            }
            _ => s.page(code, other)?,
        };
        s.mm = page.mm;
        let mut word = 0;
        if OFFSET {
            let at = (s.context, slot);
            let foretold = s.t.foretell(at, code, offset)?;
            word = match as_foretold {
                true => widen(foretold),
                false => s.pages.offset(foretold)?,
            };
            offset = narrow(word);
            s.t.note_offset(at, offset)?;
        }
        s.context = step(s.context, slot);
        if has_vtime(SIZE, OFFSET) {
            let len = s.pages.byte()?;
            vtime = vtime.wrapping_add(s.pages.signed(len.into())?);
        }
        let stay = end.wrapping_sub(time.wrapping_shr(shift));
        let record = out.get_mut(i.checked_mul(SIZE)?..)?;
        let record = record.first_chunk_mut::<SIZE>()?;
        let pair = |low: u32, high: u32| (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
        put(record, 0, &page.word.to_le_bytes());
        put(record, 8, &pair(seq, time));
        put(record, 16, &pair(s.thread, page.mm));
        put(record, 24, &pair(stay, page.pfn));
        if has_vtime(SIZE, OFFSET) {
            put(record, REF_SIZE, &vtime.to_le_bytes());
        }
        if OFFSET {
            put(record, SIZE - OFFSET_SIZE, &word.to_le_bytes());
        }
    }
    (numbers.0.is_empty() && s.pages.0.len() == pages_begin).then_some(())
}

/// When the page was evicted that was admitted `lag` records before record `i`; 0 if that is not known.
#[inline(always)]
fn eviction<const SIZE: usize>(out: &[u8], i: usize, lag: usize, shift: u32) -> u32 {
    let at = match lag {
        0 => None,
        lag => i.checked_sub(lag).and_then(|i| i.checked_mul(SIZE)),
    };
    let record = at.and_then(|at| out.get(at..)?.first_chunk::<SIZE>());
    record.map_or(0, |r| {
        let (time, stay) = ((word::<8>(r) >> 32) as u32, word::<24>(r) as u32);
        time.wrapping_add(stay.wrapping_shl(shift))
    })
}
