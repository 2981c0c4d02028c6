//! The second form of packed references as Documentation/mm/vmtrace.rst describes it, and nothing for
//! speed: what `pack_refs` writes must be the same bytes.

use std::collections::BTreeMap;

use super::{has, Record};
use rust_mm_trace::record::Extras;
use rust_mm_trace::stay::NO_OFFSET;

/// What is remembered of a page.
#[derive(Clone, Copy, Default)]
struct Place {
    address: u64,
    flags: u64,
    mm: u32,
    pfn: u32,
    offset: u64,
}

/// What came after two pages.
#[derive(Clone, Copy)]
struct Successor {
    place: u32,
    flags: u64,
    offset: u64,
}

/// What is neither an offset nor [`NO_OFFSET`].
const ODD: u64 = u32::MAX as u64;

/// The offset as the tables have it.
fn narrow(offset: u64) -> u64 {
    match offset {
        0..0x8000_0000 => offset,
        NO_OFFSET => 1 << 31,
        _ => ODD,
    }
}

/// The fewest bytes, of `least` or more, that have a number with its sign.
fn signed(number: i64, least: usize) -> Vec<u8> {
    let len = (least..8).find(|len| {
        let half = 1i128 << (8 * len) >> 1;
        (-half..half.max(1)).contains(&i128::from(number))
    });
    number.to_le_bytes()[..len.unwrap_or(8)].to_vec()
}

/// A new page's differences, and the byte before them.
fn new_page(page: u64, pfn: u32, newest: Place) -> Vec<Vec<u8>> {
    let far = (page & !0xfff).wrapping_sub(newest.address) as i64 / 4096;
    let far = signed(far, 1);
    let frame = signed(pfn.wrapping_sub(newest.pfn) as i32 as i64, 1);
    vec![vec![(far.len() | frame.len() << 4) as u8], far, frame]
}

/// An offset that the token does not have.
fn offset_items(offset: u64, foretold: u64) -> Vec<Vec<u8>> {
    let now = narrow(offset);
    let is_odd = now == ODD;
    let eighths = offset.wrapping_sub(foretold) as i64;
    if !is_odd && now == foretold {
        vec![vec![16]]
    } else if offset == NO_OFFSET {
        vec![vec![17]]
    } else if !is_odd
        && foretold < 1 << 31
        && eighths % 8 == 0
        && (-112..112).contains(&(eighths / 8))
    {
        vec![vec![(144 + eighths / 8) as u8]]
    } else if offset < 0x1000 {
        vec![vec![(offset >> 8) as u8], vec![offset as u8]]
    } else {
        let len = (0..8).find(|len| offset >> (8 * len) == 0).unwrap_or(8);
        vec![vec![18 + len as u8], offset.to_le_bytes()[..len].to_vec()]
    }
}

/// How much more than the last one the end of a stay is.
fn end_bytes(more: u32) -> Vec<u8> {
    let less = more.wrapping_neg();
    match more {
        0..0xe0 => vec![more as u8],
        0xe0..0x1ee0 => vec![(0xe0 + ((more - 0xe0) >> 8)) as u8, (more - 0xe0) as u8],
        _ if (1..=0x1_0000).contains(&less) => {
            [&[0xfe][..], &((less - 1) as u16).to_le_bytes()].concat()
        }
        _ => [&[0xff][..], &more.to_le_bytes()].concat(),
    }
}

/// Packs records. `lag` and `shift` are those of the hint.
pub fn pack(extras: Extras, lag: u32, shift: u32, records: &[Record]) -> Vec<u8> {
    let lag = if lag < 1 << 24 { lag } else { 0 };
    let mut places = BTreeMap::<u32, Place>::new();
    let mut successors = BTreeMap::<u32, Successor>::new();
    let (mut newest, mut context) = (Place::default(), 0u32);
    let (mut tokens, mut numbers, mut items) = (vec![], vec![], vec![]);
    let mut before = Record {
        seq: u32::MAX,
        mm: 0,
        stay: 0,
        vtime: 0,
        offset: 0,
        ..records[0]
    };
    let end = |r: &Record| (r.time >> shift).wrapping_add(r.stay);
    let mut last_end = 0u32;
    for (i, &r) in records.iter().enumerate() {
        let (address, flags) = (r.page & !0xfff, r.page & 0xfff);
        let key = (address >> 12) ^ (u64::from(r.mm) << 44);
        let place = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as u32;
        let known = places.get(&place).copied();
        let known = known.filter(|p| (p.address, p.mm) == (address, r.mm));
        let next = successors.get(&context).copied();
        let next = next.filter(|next| known.is_some() && next.place == place);
        let same_thread = r.thread == before.thread;
        let good = |flags_: u64, p: Place| flags_ == flags && p.pfn == r.pfn && same_thread;
        let (code, foretold_flags, foretold) = match (known, next) {
            (Some(p), Some(next)) if good(next.flags, p) => (0, next.flags, p),
            (Some(p), Some(next)) if !good(p.flags, p) => (0, next.flags, p),
            (Some(p), _) => (1, p.flags, p),
            (None, _) => (
                2,
                newest.flags,
                Place {
                    mm: before.mm,
                    pfn: r.pfn,
                    ..newest
                },
            ),
        };
        match code {
            0 => {}
            1 => items.push((place as u16).to_le_bytes().to_vec()),
            _ => items.extend(new_page(r.page, r.pfn, newest)),
        }
        let others = u8::from(foretold_flags != flags)
            | u8::from(!same_thread) << 1
            | u8::from(foretold.pfn != r.pfn) << 2
            | u8::from(foretold.mm != r.mm) << 3;
        if others == 1 && flags < 128 {
            items.push(vec![128 | flags as u8]);
        } else if others != 0 {
            items.push(vec![others]);
            let all: [(u8, Vec<u8>); 4] = [
                (1, (flags as u16).to_le_bytes().to_vec()),
                (2, r.thread.to_le_bytes().to_vec()),
                (4, r.pfn.to_le_bytes().to_vec()),
                (8, r.mm.to_le_bytes().to_vec()),
            ];
            items.extend(
                all.into_iter()
                    .filter(|(bit, _)| others & bit != 0)
                    .map(|(_, item)| item),
            );
        }
        let mut page_code = code;
        let mut offset = 0;
        if has(extras, Extras::OFFSET) {
            offset = narrow(r.offset);
            let foretold = match code {
                0 => next.map_or(0, |next| next.offset),
                1 => known.map_or(0, |p| p.offset),
                _ => narrow(before.offset),
            };
            let is_foretold = offset == foretold && offset != ODD;
            if code == 0 && others == 0 && is_foretold {
                page_code = 3;
            } else {
                items.extend(offset_items(r.offset, foretold));
            }
        }
        let page = Place {
            address,
            flags,
            mm: r.mm,
            pfn: r.pfn,
            offset,
        };
        if code != 0 || others != 0 {
            places.insert(place, page);
            successors.insert(
                context,
                Successor {
                    place,
                    flags,
                    offset,
                },
            );
        } else {
            // Only the offset may be another one.
            places.entry(place).and_modify(|p| p.offset = offset);
            successors.entry(context).and_modify(|s| s.offset = offset);
        }
        if code == 2 {
            newest = page;
        }
        context = ((context << 9) ^ (place.wrapping_mul(0x9e5))) % 16384;
        if has(extras, Extras::VTIME) {
            let ticks = signed(r.vtime.wrapping_sub(before.vtime) as i64, 0);
            items.push(vec![ticks.len() as u8]);
            items.push(ticks);
        }
        let evicted = i.checked_sub(lag as usize).filter(|_| lag != 0);
        let eviction = evicted.map_or(0, |e| {
            records[e].time.wrapping_add(records[e].stay << shift)
        });
        let early = r.time.wrapping_sub(eviction);
        let since = r.time.wrapping_sub(before.time);
        let more = end(&r).wrapping_sub(last_end);
        let skip = r.seq.wrapping_sub(before.seq);
        let class = match (has(extras, Extras::OFFSET), page_code) {
            (true, 0) => None,
            (true, 3) => Some(0),
            (_, code) => Some(code),
        };
        let form = match (early, since) {
            (_, 0..0x1_0000) if more == 0 => 1,
            (0..0x100, _) => 0,
            (_, 0..0x1_0000) => 2,
            _ => 3,
        };
        if form != 1 {
            numbers.extend(end_bytes(more));
        }
        match class {
            Some(class) if form == 0 && early < 64 && others == 0 && skip == 1 => {
                tokens.push(class | (early as u8) << 2);
            }
            _ => {
                match form {
                    0 => numbers.push(early as u8),
                    1 | 2 => numbers.extend((since as u16).to_le_bytes()),
                    _ if since < 0xff_ffff => numbers.extend(&since.to_le_bytes()[..3]),
                    _ => numbers.extend([&[0xff; 3][..], &since.to_le_bytes()].concat()),
                }
                match skip {
                    1 => {}
                    2..256 => numbers.push(skip as u8),
                    _ => numbers.extend([&[0][..], &skip.to_le_bytes()].concat()),
                }
                let other = u8::from(others != 0) << 4 | u8::from(skip != 1) << 5;
                tokens.push(3 | page_code << 2 | other | form << 6);
            }
        }
        (before, last_end) = (r, end(&r));
    }
    let mut all = (numbers.len() as u32).to_le_bytes().to_vec();
    for word in [records[0].time, records[0].thread, lag | shift << 24] {
        all.extend(word.to_le_bytes());
    }
    all.extend(tokens);
    all.extend(numbers);
    all.extend(items.into_iter().rev().flatten());
    all.extend([0; 8]);
    all
}
