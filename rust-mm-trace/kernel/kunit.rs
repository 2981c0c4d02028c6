// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the pure logic, with the kernel's vectors and layouts.

use crate::{
    evms::{
        self, Admission, Bits, Caller, Claim, Hand, Memory, Page, Reserve, Shape, Shrink, Slot,
        Victim, Words,
    },
    record::{self, EventHead, PacketHead},
    ring::{Base, Meta, Ring, HEAD},
    Store,
};
use kernel::prelude::*;

const PAGE: u64 = 4096;
const MM: u32 = 7;
const WHY_EVICTED: u32 = kernel::bindings::VMTRACE_WHY_EVICTED;

type Evms = evms::Evms<Tables>;

/// The words of the first pages of the first address spaces, in which nothing is huge.
struct Tables(Store<u64>);

const SPACES: usize = 8;
const PAGES: usize = 512;

impl Tables {
    fn new() -> Result<Tables> {
        let words = SPACES.saturating_mul(PAGES);
        Ok(Tables(Store::from_elem(0u64, words, GFP_KERNEL)?))
    }
}

impl Words for Tables {
    fn get(&self, entry: usize) -> u64 {
        self.0.get(entry / 8).copied().unwrap_or(0)
    }

    fn set(&mut self, entry: usize, word: u64) {
        if let Some(w) = self.0.get_mut(entry / 8) {
            *w = word;
        }
    }
}

/// A page of an address space, which has one page table.
fn at(mm: u32, addr: u64) -> Page {
    let entry = (mm as usize) << 12 | (addr >> 9) as usize & 0xff8;
    Page { entry, mm, addr }
}

fn shaped_evms(shape: &Shape, backlog: usize) -> Result<Evms> {
    let memory = Memory {
        slots: Store::from_elem(Slot::EMPTY, evms::slots_for(shape.n, backlog), GFP_KERNEL)?,
        firsts: Store::from_elem(0u64, evms::firsts_for(shape), GFP_KERNEL)?,
        claims: Store::from_elem(Claim::NONE, shape.cpus, GFP_KERNEL)?,
        seats: Store::from_elem(0u16, shape.cpus.saturating_mul(2), GFP_KERNEL)?,
    };
    Evms::new(shape, memory, Tables::new()?, 0).ok_or(EINVAL)
}

/// A CPU that runs the same task all the time.
fn by(cpu: usize, time: u64) -> Caller {
    Caller {
        cpu,
        epoch: 0,
        time,
    }
}

/// No CPU has switched.
fn steady(_: usize) -> u32 {
    0
}

fn shape(n: usize) -> Shape {
    Shape {
        n,
        first: 1,
        cpus: 1,
        clock: false,
        again: false,
        batch: 1,
    }
}

fn new_evms(n: usize, backlog: usize) -> Result<Evms> {
    shaped_evms(&shape(n), backlog)
}

/// The last bits of a PTE.
fn last(dirty: bool) -> Bits {
    Bits {
        young: false,
        dirty,
    }
}

fn admission(page: u64) -> Admission {
    admission_of(MM, page)
}

fn admission_of(mm: u32, page: u64) -> Admission {
    let page = page.wrapping_mul(PAGE);
    Admission {
        owner: 0x1000,
        entry: at(mm, page).entry,
        page,
        mm,
        tid_cpu: 3,
        pfn: 5,
        was_dirty: false,
        vtime: 0,
    }
}

/// Ends the stay of a victim, for the number that was given out last. False if it is no member
/// any more.
fn evict(evms: &mut Evms, victim: u64, dirty: bool, now: u64) -> bool {
    let end = evms.head().wrapping_sub(1);
    evms.evict(victim, WHY_EVICTED, now, end, |_| last(dirty))
}

/// Numbers that are their own sequence numbers, counted from 1.
fn reserve(evms: &mut Evms, time: u64) -> Result<(u64, Option<Victim>)> {
    let seq = evms.head().wrapping_add(1);
    match evms.reserve(by(0, time), steady, || seq) {
        Reserve::Go {
            ordinal, victim, ..
        } => Ok((ordinal, victim)),
        Reserve::Full | Reserve::Hand(_) => Err(EAGAIN),
    }
}

/// What a fault does. Gives the page that had to go.
fn touch(evms: &mut Evms, page: u64) -> Result<Option<u64>> {
    let (ordinal, victim) = reserve(evms, 0)?;
    if let Some(v) = &victim {
        if !evict(evms, v.ordinal, false, 0) {
            return Err(EINVAL);
        }
    }
    evms.admit(ordinal, &admission(page));
    Ok(victim.map(|v| v.addr / PAGE))
}

/// Takes complete records, as sequence number and page with flags.
fn retire(evms: &mut Evms, all: bool) -> Result<KVec<(u64, u64)>> {
    let mut out = KVec::with_capacity(64, GFP_KERNEL)?;
    evms.retire(all, |s| out.push_within_capacity((s.seq, s.page)).is_ok());
    Ok(out)
}

fn new_ring(buffers: usize, records: usize) -> Result<Ring> {
    let size = HEAD.saturating_add(records.saturating_mul(record::REF_SIZE));
    let mut free = Store::with_capacity(buffers, GFP_KERNEL)?;
    let mut full = Store::with_capacity(buffers, GFP_KERNEL)?;
    for _ in 0..buffers {
        free.push(Some(Store::from_elem(0u8, size, GFP_KERNEL)?), GFP_KERNEL)?;
        full.push(None, GFP_KERNEL)?;
    }
    Ok(Ring::new(free, full))
}

/// Writes a record that is all of one byte. Gives what its deltas begin at.
fn push(ring: &mut Ring, seq: u64, time: u64) -> Option<Base> {
    let mut begins = None;
    ring.push(record::REF_SIZE, seq, time, |bytes, base| {
        bytes.fill(seq as u8);
        begins = Some(*base);
    });
    begins
}

/// The `N` bytes at `at`.
fn bytes<const N: usize>(buf: &[u8], at: usize) -> [u8; N] {
    buf.get(at..)
        .and_then(|b| b.first_chunk::<N>())
        .copied()
        .unwrap_or([0; N])
}

/// The field of a little-endian struct of the UAPI header that lies in `buf`.
macro_rules! field {
    ($buf:expr, $struct:ident.$field:ident: $type:ty) => {
        <$type>::from_le_bytes(bytes(
            &$buf,
            core::mem::offset_of!(kernel::bindings::$struct, $field),
        ))
    };
}

#[kunit_tests(rust_vmtrace)]
mod tests {
    use super::*;

    #[test]
    fn evms_is_a_fifo() -> Result {
        let mut evms = new_evms(4, 4)?;
        for page in 1..=50 {
            assert_eq!(
                touch(&mut evms, page)?,
                page.checked_sub(4).filter(|p| *p > 0)
            );
            assert!(evms.contains(at(MM, page * PAGE)));
            assert_eq!(evms.live(), page.min(4));
            retire(&mut evms, false)?;
        }
        assert!(!evms.contains(at(MM, 46 * PAGE)));
        assert!(evms.contains(at(MM, 47 * PAGE)));
        assert_eq!(evms.live_max(), 4);
        Ok(())
    }

    #[test]
    fn evms_knows_address_spaces_apart() -> Result {
        let mut evms = new_evms(4, 4)?;
        for mm in [1, 2] {
            let (ordinal, _) = reserve(&mut evms, 0)?;
            evms.admit(ordinal, &admission_of(mm, 9));
        }
        assert!(evms.contains(at(1, 9 * PAGE)) && evms.contains(at(2, 9 * PAGE)));
        assert!(!evms.contains(at(3, 9 * PAGE)));
        assert!(evms.close(at(1, 9 * PAGE), last(false), 1, 0));
        assert!(!evms.contains(at(1, 9 * PAGE)) && evms.contains(at(2, 9 * PAGE)));
        assert!(!evms.close(at(1, 9 * PAGE), last(false), 1, 0));
        Ok(())
    }

    #[test]
    fn evms_closed_page_keeps_its_place() -> Result {
        let mut evms = new_evms(3, 16)?;
        for page in 1..=3 {
            touch(&mut evms, page)?;
        }
        assert!(evms.close(at(MM, 2 * PAGE), last(false), 1, 0));
        assert_eq!(evms.live(), 2);
        // Nothing has to go for the one that takes the place of page 2.
        assert_eq!(touch(&mut evms, 4)?, Some(1));
        assert_eq!(touch(&mut evms, 5)?, None);
        assert_eq!(touch(&mut evms, 6)?, Some(3));
        assert_eq!(evms.live(), 3);

        let closed = (2 * PAGE) | (1 << evms::WHY_SHIFT);
        let records = retire(&mut evms, false)?;
        assert!(*records == [(1, PAGE), (2, closed), (3, 3 * PAGE)]);
        assert_eq!(evms.retired(), 3);
        Ok(())
    }

    #[test]
    fn evms_retires_in_order_of_admission() -> Result {
        let mut evms = new_evms(3, 16)?;
        for page in 1..=3 {
            touch(&mut evms, page)?;
        }
        // The last of them ends first.
        assert!(evms.close(at(MM, 3 * PAGE), last(false), 0, 0));
        assert_eq!(retire(&mut evms, true)?.len(), 0);
        assert!(evms.close(at(MM, PAGE), last(false), 0, 0));
        assert_eq!(retire(&mut evms, false)?.len(), 0);
        assert!(*retire(&mut evms, true)? == [(1, PAGE)]);
        assert!(evms.close(at(MM, 2 * PAGE), last(false), 0, 0));
        // A record that nobody takes stays.
        evms.retire(true, |_| false);
        assert_eq!(evms.retired(), 1);
        assert!(*retire(&mut evms, true)? == [(2, 2 * PAGE), (3, 3 * PAGE)]);
        assert_eq!(evms.retired(), evms.head());
        Ok(())
    }

    #[test]
    fn evms_full_gives_no_number() -> Result {
        // Four slots: one in the set, three that wait to be written.
        let mut evms = new_evms(1, 3)?;
        for page in 1..=4 {
            touch(&mut evms, page)?;
        }
        let mut numbers = 0;
        let answer = evms.reserve(by(0, 0), steady, || {
            numbers += 1;
            numbers
        });
        assert_eq!(answer, Reserve::Full);
        assert_eq!(numbers, 0);
        assert_eq!(evms.head(), 4);
        assert!(evms.contains(at(MM, 4 * PAGE)));

        assert_eq!(retire(&mut evms, false)?.len(), 3);
        assert_eq!(touch(&mut evms, 5)?, Some(4));
        Ok(())
    }

    #[test]
    fn evms_victim_in_flight_is_waited_for() -> Result {
        let mut evms = new_evms(1, 3)?;
        let (first, _) = reserve(&mut evms, 0)?;
        assert_eq!(reserve(&mut evms, 0), Err(EAGAIN));
        evms.admit(first, &admission(1));
        assert_eq!(touch(&mut evms, 2)?, Some(1));
        Ok(())
    }

    #[test]
    fn evms_aborted_admission_leaves_nothing() -> Result {
        let mut evms = new_evms(1, 3)?;
        let (first, _) = reserve(&mut evms, 0)?;
        evms.abort(first);
        // Too late.
        evms.admit(first, &admission(1));
        assert!(!evms.contains(at(MM, PAGE)));
        assert_eq!(evms.live(), 0);
        assert_eq!(touch(&mut evms, 2)?, None);
        // A member can't be given up.
        evms.abort(first + 1);
        assert!(evms.contains(at(MM, 2 * PAGE)));
        assert_eq!(touch(&mut evms, 3)?, Some(2));
        assert!(*retire(&mut evms, false)? == [(2, 2 * PAGE)]);
        Ok(())
    }

    #[test]
    fn evms_ended_victim_is_left_alone() -> Result {
        let mut evms = new_evms(1, 3)?;
        touch(&mut evms, 1)?;
        let (second, victim) = reserve(&mut evms, 0)?;
        let victim = victim.ok_or(EINVAL)?;
        assert_eq!(victim.addr, PAGE);
        assert_eq!(victim.owner, 0x1000);
        assert_eq!(victim.entry, at(MM, PAGE).entry);
        assert!(evms.close(at(MM, PAGE), last(true), 1, 0));
        assert!(!evict(&mut evms, victim.ordinal, true, 0));
        evms.admit(second, &admission(2));
        assert_eq!(evms.live(), 1);
        let closed = PAGE | evms::DIRTIED | (1 << evms::WHY_SHIFT);
        assert!(*retire(&mut evms, false)? == [(1, closed)]);
        Ok(())
    }

    #[test]
    fn evms_dirtied() -> Result {
        let mut evms = new_evms(4, 4)?;
        for was_dirty in [false, true, true, false] {
            let (ordinal, _) = reserve(&mut evms, 0)?;
            let page = admission(ordinal + 1);
            evms.admit(ordinal, &Admission { was_dirty, ..page });
        }
        // The dirty bit proves a store if it was clear; a noted store always counts.
        assert!(evms.dirtied(at(MM, 3 * PAGE)));
        assert!(!evms.dirtied(at(MM, 5 * PAGE)));
        for (page, dirty) in [(1, true), (2, true), (3, true), (4, false)] {
            assert!(evms.close(at(MM, page * PAGE), last(dirty), 0, 0));
        }
        let records = retire(&mut evms, true)?;
        let expected = [
            (1, PAGE | evms::DIRTIED),
            (2, 2 * PAGE),
            (3, (3 * PAGE) | evms::DIRTIED),
            (4, 4 * PAGE),
        ];
        assert!(*records == expected);
        Ok(())
    }

    #[test]
    fn evms_measures_stays() -> Result {
        let mut evms = new_evms(3, 1)?;
        for time in [1000, 1000, 1000] {
            let (ordinal, _) = reserve(&mut evms, time)?;
            evms.admit(ordinal, &admission(ordinal + 1));
        }
        let unit = 1 << evms::STAY_SHIFT;
        assert!(evms.close(at(MM, PAGE), last(false), 0, 1000 + 17 * unit));
        // A clock that went back, and a stay that does not fit.
        assert!(evms.close(at(MM, 2 * PAGE), last(false), 0, 999));
        assert!(evms.close(at(MM, 3 * PAGE), last(false), 0, u64::MAX));
        let mut stays = KVec::with_capacity(3, GFP_KERNEL)?;
        evms.retire(true, |s| {
            stays.push_within_capacity((s.time, s.stay)).is_ok()
        });
        assert!(*stays == [(1000, 17), (1000, 0), (1000, u32::MAX)]);
        Ok(())
    }

    #[test]
    fn evms_refuses_memory_that_does_not_fit() -> Result {
        let fits = |n: usize, slots: usize, firsts: usize| {
            let memory = Memory {
                slots: Store::from_elem(Slot::EMPTY, slots, GFP_KERNEL)?,
                firsts: Store::from_elem(0u64, firsts, GFP_KERNEL)?,
                claims: Store::from_elem(Claim::NONE, 1, GFP_KERNEL)?,
                seats: Store::from_elem(0u16, 2, GFP_KERNEL)?,
            };
            Ok::<_, Error>(Evms::new(&shape(n), memory, Tables::new()?, 0).is_some())
        };
        assert!(!fits(0, 8, 1)?);
        assert!(!fits(8, 8, 1)?);
        assert!(!fits(4, 7, 1)?);
        assert!(!fits(4, 8, 2)?);
        assert!(fits(7, 8, 1)?);
        Ok(())
    }

    /// A set of 4 that begins with number `start`, when page 1 has this word.
    fn goes_on(start: u64, word: u64) -> Result<Evms> {
        let mut words = Tables::new()?;
        words.set(at(MM, PAGE).entry, word);
        let memory = Memory {
            slots: Store::from_elem(Slot::EMPTY, 8, GFP_KERNEL)?,
            firsts: Store::from_elem(0u64, 1, GFP_KERNEL)?,
            claims: Store::from_elem(Claim::NONE, 1, GFP_KERNEL)?,
            seats: Store::from_elem(0u16, 2, GFP_KERNEL)?,
        };
        Evms::new(&shape(4), memory, words, start).ok_or(EINVAL)
    }

    /// What a set leaves in the words of entries is right for the next one.
    #[test]
    fn evms_goes_on_with_numbers() -> Result {
        // The stay of page 1 ended at number 40, and that was the last number.
        let mut evms = goes_on(40, 40 << 1)?;
        let (ordinal, victim) = reserve(&mut evms, 0)?;
        assert_eq!((ordinal, victim), (40, None));
        assert!(evms.admit(ordinal, &admission(1)).is_some());
        // It goes when four have come after it.
        for page in 2..=4 {
            assert_eq!(touch(&mut evms, page)?, None);
        }
        assert_eq!(touch(&mut evms, 5)?, Some(1));
        assert_eq!((evms.live(), evms.figures(steady).wrong), (4, 0));
        // A number from before the end of the page's stay is refused, and so is the word of a member
        // that an earlier set has left.
        let mut evms = goes_on(39, 40 << 1)?;
        let (ordinal, _) = reserve(&mut evms, 0)?;
        assert_eq!(evms.admit(ordinal, &admission(1)), None);
        evms.abort(ordinal);
        let mut evms = goes_on(40, 20 << 1 | evms::MEMBER)?;
        assert!(!evms.contains(at(MM, PAGE)));
        assert_eq!(touch(&mut evms, 1)?, None);
        assert_eq!((evms.live(), evms.missed()), (1, 0));
        // Of a set with fewer admissions than its size, only the size changes.
        assert_eq!(touch(&mut evms, 2)?, None);
        assert_eq!(evms.shrink(3, 0, steady, || 0), Shrink::Done);
        assert_eq!((evms.size(), evms.live()), (3, 2));
        Ok(())
    }

    /// A page is admitted again, though its stay was not closed.
    #[test]
    fn evms_counts_missed_ends() -> Result {
        let mut evms = new_evms(4, 4)?;
        for page in [1, 2, 1] {
            touch(&mut evms, page)?;
        }
        assert_eq!((evms.live(), evms.missed()), (2, 1));
        assert_eq!(evms.figures(steady).wrong, 0);
        Ok(())
    }

    #[test]
    fn evms_evicts_in_batches() -> Result {
        let four = Shape {
            batch: 4,
            ..shape(8)
        };
        let mut evms = shaped_evms(&four, 32)?;
        assert_eq!(evms.batch(), 4);
        let mut flushes = 0;
        for page in 1..=24 {
            let (ordinal, victim) = reserve(&mut evms, 0)?;
            if let Some(v) = victim {
                let mut gone = 0;
                assert!(
                    evms.evict_batch(v.ordinal, WHY_EVICTED, 0, ordinal, steady, |addr, _| {
                        assert_eq!(addr, v.addr + gone * PAGE);
                        gone += 1;
                        last(false)
                    })
                );
                assert_eq!(gone, 4);
                flushes += 1;
            }
            evms.admit(ordinal, &admission(page));
            assert!(page < 8 || (5..=8).contains(&evms.live()));
            assert_eq!(evms.figures(steady).wrong, 0);
            retire(&mut evms, false)?;
        }
        assert_eq!(flushes, 4);
        // The batch leaves the least set.
        while let Shrink::Evict(v) = evms.shrink(2, 0, steady, || 0) {
            assert!(evict(&mut evms, v.ordinal, false, 0));
        }
        assert_eq!((evms.size(), evms.batch()), (2, 2));
        Ok(())
    }

    #[test]
    fn evms_keeps_what_a_cpu_may_need() -> Result {
        let two = Shape {
            first: 2,
            cpus: 2,
            ..shape(8)
        };
        let mut evms = shaped_evms(&two, 32)?;
        let mut seq = 0;
        for page in 1..=24 {
            // Pages 1 and 2 are CPU 1's, and it admits no more.
            let cpu = usize::from(page <= 2);
            let answer = evms.reserve(by(cpu, 0), steady, || {
                seq += 1;
                seq
            });
            let Reserve::Go {
                ordinal, victim, ..
            } = answer
            else {
                return Err(EAGAIN);
            };
            if let Some(v) = victim {
                assert!(evict(&mut evms, v.ordinal, false, 0));
            }
            evms.admit(ordinal, &admission(page));
        }
        assert!(evms.contains(at(MM, PAGE)) && evms.contains(at(MM, 2 * PAGE)));
        assert!(evms.contains(at(MM, 23 * PAGE)) && evms.contains(at(MM, 24 * PAGE)));
        assert_eq!(evms.live(), 8);
        let before = evms.renewed();
        assert!(before > 0);
        let records = retire(&mut evms, false)?;
        let renewed = PAGE | (u64::from(evms::WHY_RENEWED) << evms::WHY_SHIFT);
        assert!(records.contains(&(1, renewed)));
        assert!(records.iter().any(|r| r.1 == renewed | evms::CONT));

        // CPU 1 switches to another task: its pages go like others.
        for page in 25..=32 {
            let answer = evms.reserve(by(0, 0), |cpu| u32::from(cpu == 1), || 0);
            let Reserve::Go {
                ordinal, victim, ..
            } = answer
            else {
                return Err(EAGAIN);
            };
            if let Some(v) = victim {
                assert!(evict(&mut evms, v.ordinal, false, 0));
            }
            evms.admit(ordinal, &admission(page));
        }
        assert!(!evms.contains(at(MM, PAGE)) && !evms.contains(at(MM, 2 * PAGE)));
        assert_eq!(evms.renewed(), before);
        Ok(())
    }

    #[test]
    fn evms_gives_second_chances() -> Result {
        let clock = Shape {
            clock: true,
            ..shape(2)
        };
        let mut evms = shaped_evms(&clock, 8)?;
        let none = || Bits::default();
        let mut hidden = None;
        let mut seq = 10;
        for page in 1..=2 {
            let (ordinal, _) = reserve(&mut evms, 0)?;
            evms.admit(ordinal, &admission(page));
        }
        assert!(evms.sweep(0, || true));
        // The hand finds page 1 referenced, then page 2 not.
        let Reserve::Hand(v) = evms.reserve(by(0, 0), steady, || 0) else {
            return Err(EINVAL);
        };
        assert_eq!(v.addr, PAGE);
        let young = || Bits {
            young: true,
            dirty: false,
        };
        let hand = evms.hand(v.ordinal, true, 0, || seq, young, |_| Bits::default());
        assert_eq!(hand, Hand::Chance);
        let end = |young| {
            hidden = Some(young);
            Bits::default()
        };
        let hand = evms.hand(v.ordinal, true, 0, || seq, none, end);
        assert_eq!(hand, Hand::Gone);
        seq = 11;
        let Reserve::Hand(v) = evms.reserve(by(0, 0), steady, || 0) else {
            return Err(EINVAL);
        };
        assert_eq!(v.addr, 2 * PAGE);
        let end = |young| {
            hidden = Some(young);
            Bits::default()
        };
        let hand = evms.hand(v.ordinal, true, 0, || seq, none, end);
        assert_eq!(hand, Hand::Evicted);
        // It never was in the second segment, so its accessed bit was left alone.
        assert_eq!(hidden, Some(false));
        // Others still learn that page 1 was used, once; looking changes nothing.
        assert!(evms.hidden(at(MM, PAGE)) && evms.hidden(at(MM, PAGE)));
        assert!(!evms.hidden(at(MM, 2 * PAGE)));
        assert!(evms.aged(at(MM, PAGE), false));
        assert!(!evms.hidden(at(MM, PAGE)));
        assert!(!evms.aged(at(MM, PAGE), false));
        assert!(evms.contains(at(MM, PAGE)) && !evms.contains(at(MM, 2 * PAGE)));
        assert_eq!(evms.chances(), 1);
        let records = retire(&mut evms, false)?;
        let chance = PAGE | evms::AGAIN | (u64::from(evms::WHY_CHANCE) << evms::WHY_SHIFT);
        assert!(*records == [(1, chance)]);
        Ok(())
    }

    #[test]
    fn evms_changes_its_size() -> Result {
        let mut evms = new_evms(2, 61)?;
        for page in 1..=2 {
            touch(&mut evms, page)?;
        }
        assert!(evms.grow(4));
        assert_eq!(touch(&mut evms, 3)?, None);
        assert_eq!(touch(&mut evms, 4)?, None);
        assert_eq!(touch(&mut evms, 5)?, Some(1));
        assert!(!evms.grow(64));
        assert_eq!(evms.shrink(0, 0, steady, || 0), Shrink::Refused);
        for page in 2..=3 {
            let Shrink::Evict(v) = evms.shrink(2, 0, steady, || 0) else {
                return Err(EINVAL);
            };
            assert_eq!(v.addr, page * PAGE);
            assert!(evict(&mut evms, v.ordinal, false, 0));
        }
        assert_eq!(evms.shrink(2, 0, steady, || 0), Shrink::Done);
        assert_eq!(evms.size(), 2);
        assert_eq!(touch(&mut evms, 6)?, Some(4));
        Ok(())
    }

    #[test]
    fn evms_figures_contradict_each_other() -> Result {
        let mut evms = new_evms(2, 2)?;
        touch(&mut evms, 1)?;
        touch(&mut evms, 2)?;
        let f = evms.figures(steady);
        assert_eq!((f.live, f.first, f.reserved, f.wrong), (2, 1, 0, 0));
        // A victim is a member for as long as its admission is under way.
        let (ordinal, victim) = reserve(&mut evms, 0)?;
        assert!(victim.is_some());
        assert_eq!(
            (evms.figures(steady).reserved, evms.figures(steady).wrong),
            (1, 0)
        );
        evms.abort(ordinal);
        assert_eq!(evms.figures(steady).wrong, 1);
        Ok(())
    }

    #[test]
    fn evms_members_are_sought() -> Result {
        let mut evms = new_evms(4, 4)?;
        for page in 0..4 {
            touch(&mut evms, page)?;
        }
        assert!(evms.close(at(MM, PAGE), last(false), 1, 0));
        let (next, member) = evms.seek(1, 4, MM, 4);
        assert_eq!((next, member.map(|v| v.addr)), (3, Some(2 * PAGE)));
        assert_eq!(evms.seek(0, 4, MM.wrapping_add(1), 3), (3, None));
        assert_eq!(evms.frame(at(MM, 3 * PAGE)), Some(5));
        assert_eq!(evms.frame(at(MM, PAGE)), None);
        Ok(())
    }

    #[test]
    fn ring_goes_round() -> Result {
        let mut ring = new_ring(3, 2)?;
        assert_eq!(ring.total(), 3);
        let mut taken = 0;
        for seq in 1..=100 {
            assert!(push(&mut ring, seq, seq * 10).is_some());
            if ring.free() > 0 {
                continue;
            }
            let packet = ring.take().ok_or(EINVAL)?;
            let first = taken * 2 + 1;
            let expected = Meta {
                first_seq: first,
                last_seq: first + 1,
                first_time: first * 10,
                last_time: (first + 1) * 10,
                records: 2,
                used: packet.buf.len(),
                ..Meta::default()
            };
            assert_eq!(packet.meta, expected);
            assert_eq!(bytes(&packet.buf, HEAD), [first as u8; record::REF_SIZE]);
            ring.give(packet.buf);
            taken += 1;
        }
        // 100 records are 50 packets, of which two full ones and the last are left.
        assert_eq!(taken, 48);
        Ok(())
    }

    #[test]
    fn ring_full_takes_nothing() -> Result {
        let mut ring = new_ring(2, 2)?;
        for seq in 1..=4 {
            assert!(push(&mut ring, seq, 0).is_some());
        }
        assert_eq!(ring.free(), 0);
        assert!(push(&mut ring, 5, 0).is_none());
        ring.lost_full += 1;

        let first = ring.take().ok_or(EINVAL)?;
        assert_eq!(first.meta.last_seq, 2);
        assert_eq!(first.meta.lost_full, 0);
        let second = ring.take().ok_or(EINVAL)?;
        assert_eq!(second.meta.first_seq, 3);
        assert!(ring.take().is_none());
        assert!(push(&mut ring, 6, 0).is_none());
        ring.lost_full += 1;

        ring.give(first.buf);
        ring.give(second.buf);
        assert_eq!(ring.free(), 2);
        assert!(push(&mut ring, 7, 0).is_some());
        assert!(!ring.has_full());
        ring.flush();
        assert!(ring.has_full());
        let third = ring.take().ok_or(EINVAL)?;
        assert_eq!(third.meta.first_seq, 7);
        assert_eq!(third.meta.records, 1);
        assert_eq!(third.meta.lost_full, 2);
        Ok(())
    }

    #[test]
    fn ring_parts_what_a_delta_can_not_span() -> Result {
        let mut ring = new_ring(4, 8)?;
        let far = u64::from(u32::MAX);
        let base = |seq, time| Some(Base { seq, time });
        assert_eq!(push(&mut ring, 10, 20), base(10, 20));
        assert_eq!(push(&mut ring, 10 + far, 20 + far), base(10, 20));
        assert_eq!(
            push(&mut ring, 11 + far, 20 + far),
            base(11 + far, 20 + far)
        );
        let later = 21 + far + far;
        assert_eq!(push(&mut ring, 12 + far, later), base(12 + far, later));
        assert_eq!(ring.take().ok_or(EINVAL)?.meta.records, 2);
        assert_eq!(ring.take().ok_or(EINVAL)?.meta.records, 1);
        assert!(ring.take().is_none());
        Ok(())
    }

    #[test]
    fn record_of_a_reference() {
        let mut slot = Slot::EMPTY;
        slot.seq = 0x1_0000_0002;
        slot.time = 1_000_000;
        slot.page = 0x7fff_dead_b000 | evms::DIRTIED;
        slot.mm = 0x1111_2222;
        slot.tid_cpu = 0x3333_4444;
        slot.stay = 0x5555_6666;
        slot.pfn = 0x7777_8888;
        let base = Base {
            seq: 0x1_0000_0000,
            time: 999_000,
        };
        let mut out = [0xff; record::REF_SIZE];
        record::put_ref::<{ record::REF_SIZE }>(&mut out, &slot, &base);
        assert_eq!(field!(out, vmtrace_ref.page: u64), 0x7fff_dead_b008);
        assert_eq!(field!(out, vmtrace_ref.seq: u32), 2);
        assert_eq!(field!(out, vmtrace_ref.time: u32), 1000);
        assert_eq!(field!(out, vmtrace_ref.tid_cpu: u32), 0x3333_4444);
        assert_eq!(field!(out, vmtrace_ref.mm: u32), 0x1111_2222);
        assert_eq!(field!(out, vmtrace_ref.stay: u32), 0x5555_6666);
        assert_eq!(field!(out, vmtrace_ref.pfn: u32), 0x7777_8888);

        slot.vtime = 0x0102_0304_0506_0708;
        const LONG: usize = record::REF_SIZE + record::VTIME_SIZE;
        let mut long = [0xff; LONG];
        record::put_ref::<LONG>(&mut long, &slot, &base);
        assert_eq!(bytes(&long, 0), out);
        assert_eq!(bytes(&long, record::REF_SIZE), slot.vtime.to_le_bytes());
    }

    #[test]
    fn record_of_an_event() {
        assert_eq!(record::event_size(false, 0, 0), Some(40));
        assert_eq!(record::event_size(false, 16, 3), Some(64));
        assert_eq!(record::event_size(true, 16, 3), Some(72));
        assert_eq!(record::event_size(false, usize::MAX, 0), None);
        assert_eq!(record::event_size(false, 65536, 0), None);

        let mut out = [0xff; 64];
        let mut head = EventHead {
            kind: 0x1122,
            size: 64,
            flags: 0x3344_5566,
            seq: 0x0102_0304_0506_0708,
            time: 0x1112_1314_1516_1718,
            tid: 0x2122_2324,
            tgid: 0x3132_3334,
            mm: 0x4142_4344,
            cpu: 0x5152_5354,
            vtime: None,
        };
        record::put_event(&mut out, &head, &[0xaa; 16], b"abc");
        assert_eq!(field!(out, vmtrace_event.type_: u16), head.kind);
        assert_eq!(field!(out, vmtrace_event.size: u16), head.size);
        assert_eq!(field!(out, vmtrace_event.flags: u32), head.flags);
        assert_eq!(field!(out, vmtrace_event.seq: u64), head.seq);
        assert_eq!(field!(out, vmtrace_event.time: u64), head.time);
        assert_eq!(field!(out, vmtrace_event.tid: u32), head.tid);
        assert_eq!(field!(out, vmtrace_event.tgid: u32), head.tgid);
        assert_eq!(field!(out, vmtrace_event.mm: u32), head.mm);
        assert_eq!(field!(out, vmtrace_event.cpu: u32), head.cpu);
        assert_eq!(bytes(&out, 40), [0xaa; 16]);
        assert_eq!(bytes(&out, 56), *b"abc\0\0\0\0\0");

        head.vtime = Some(0x6162_6364_6566_6768);
        let mut long = [0xff; 72];
        record::put_event(&mut long, &head, &[0xaa; 16], b"abc");
        assert_eq!(bytes(&long, 40), 0x6162_6364_6566_6768u64.to_le_bytes());
        assert_eq!(bytes(&long, 48), [0xaa; 16]);
        assert_eq!(bytes(&long, 64), *b"abc\0\0\0\0\0");
    }

    #[test]
    fn record_of_a_packet() {
        let mut out = [0xff; HEAD + 8];
        let uuid = *b"0123456789abcdef";
        let head = PacketHead {
            magic: kernel::bindings::VMTRACE_PACKET_MAGIC,
            uuid: &uuid,
            kind: kernel::bindings::VMTRACE_STREAM_EVENT,
            cpu: 3,
            seq: 4,
            lost_io: 5,
            window: 13,
        };
        let meta = Meta {
            first_seq: 6,
            last_seq: 7,
            first_time: 8,
            last_time: 9,
            records: 10,
            used: HEAD + 8,
            lost_full: 11,
            lost_atomic: 12,
        };
        record::put_packet(&mut out, &head, &meta);
        assert_eq!(field!(out, vmtrace_packet.magic: u64), head.magic);
        let at = core::mem::offset_of!(kernel::bindings::vmtrace_packet, uuid);
        assert_eq!(bytes(&out, at), uuid);
        assert_eq!(field!(out, vmtrace_packet.kind: u32), head.kind);
        assert_eq!(field!(out, vmtrace_packet.cpu: u32), 3);
        assert_eq!(field!(out, vmtrace_packet.seq: u64), 4);
        assert_eq!(field!(out, vmtrace_packet.lost_io: u64), 5);
        assert_eq!(field!(out, vmtrace_packet.window: u32), 13);
        assert_eq!(field!(out, vmtrace_packet.first_seq: u64), 6);
        assert_eq!(field!(out, vmtrace_packet.last_seq: u64), 7);
        assert_eq!(field!(out, vmtrace_packet.first_time: u64), 8);
        assert_eq!(field!(out, vmtrace_packet.last_time: u64), 9);
        assert_eq!(field!(out, vmtrace_packet.records: u32), 10);
        assert_eq!(field!(out, vmtrace_packet.lost_full: u64), 11);
        assert_eq!(field!(out, vmtrace_packet.lost_atomic: u64), 12);
        assert_eq!(field!(out, vmtrace_packet.content_size: u32), 8);
        assert_eq!(field!(out, vmtrace_packet.crc: u32), 0);
        // What follows the head is the caller's.
        assert_eq!(bytes(&out, HEAD), [0xff; 8]);
    }
}
