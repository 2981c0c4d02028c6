// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the pure logic, with the kernel's vectors and layouts.

use crate::{
    back::{self, Part, Rest},
    census::{events_from, Kinds},
    holes::{Hole, Span},
    hot::{Kernel, Word},
    judge::{self, Reference, Test},
    patience::{Kind, Patience, Verdict},
    pte::{Access, Allowed, Pte},
    record::{self, EventHead, PacketHead},
    ring::{Base, Before, Meta, Only, Packet, Ring, HEAD},
    scopes::{memory, words},
    session,
    stall::{self, Stall, FOREVER, PARTS},
    stay::{self, Admission, Bits, Caller, Page, Shape, Slot},
    tables::frame_mask,
    tally::{self, Count, Tally},
    tickets::{Atom, Counter, End, Memory, Number, Place, Set, Tail, Ticket, Way, Words},
    Store,
};
use core::cell::Cell;
use kernel::{bindings, prelude::*};

const PAGE: u64 = 4096;
const MM: u32 = 7;
const WHY_EVICTED: u32 = bindings::VMTRACE_WHY_EVICTED;

/// The words of the first pages of the first address spaces, in which nothing is huge.
struct Tables(Store<Cell<u64>>);

const SPACES: usize = 8;
const PAGES: usize = 512;

impl Tables {
    fn new() -> Result<Tables> {
        let words = SPACES.saturating_mul(PAGES);
        Ok(Tables(Store::from_elem(Cell::new(0), words, GFP_KERNEL)?))
    }

    fn word(&self, entry: usize) -> Option<&Cell<u64>> {
        self.0.get(entry / 8)
    }
}

impl Words for Tables {
    unsafe fn get(&self, entry: usize) -> u64 {
        self.word(entry).map_or(0, Cell::get)
    }

    unsafe fn set(&self, entry: usize, word: u64) {
        if let Some(w) = self.word(entry) {
            w.set(word);
        }
    }
}

/// A page of an address space, which has one page table.
fn at(mm: u32, addr: u64) -> Page {
    let entry = (mm as usize) << 12 | (addr >> 9) as usize & 0xff8;
    Page { entry, mm, addr }
}

/// The page of an entry.
fn page_of(entry: usize) -> Page {
    at((entry >> 12) as u32, (entry as u64 & 0xff8) << 9)
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
        address: page.wrapping_add(8),
    }
}

/// A set and what is around it: page tables, and CPUs that touch and drop pages. A test runs on one
/// thread, and no call is made within another one. So each page table counts as locked in each call.
struct Machine {
    set: Set<Kernel, Tables>,
    counter: Counter<Word>,
    /// The bits of each PTE that is enabled.
    ptes: Store<Cell<Option<Bits>>>,
    /// Pages that had to go for the last ticket, in order, and whether their accessed bits were to
    /// be set.
    gone: KVec<(u64, bool)>,
    /// All records in the order in which they were written.
    records: KVec<Slot>,
    /// Of these, how many the test has seen.
    seen: usize,
    /// Records of stays that went on.
    renewed: u64,
    chances: u64,
    /// The epochs of the first CPUs.
    epochs: [u32; 2],
    /// An address space whose page table another CPU has locked.
    busy: Option<u32>,
}

/// Tickets that a test may need for an access, and pages that may have to go for one. A test that
/// needs more fails.
const MANY: usize = 16;
/// Records of a test.
const RECORDS: usize = 128;

/// Disables the PTE of a member.
fn disable(
    ptes: &[Cell<Option<Bits>>],
    gone: &mut KVec<(u64, bool)>,
    s: &Slot,
    young: bool,
) -> Bits {
    let pte = ptes.get(s.entry / 8).and_then(Cell::take);
    // A PTE that is not enabled shows as a page that there is not.
    let page = pte.map_or(u64::MAX, |_| s.page / PAGE);
    let _ = gone.push_within_capacity((page, young));
    pte.unwrap_or_default()
}

/// Clears the accessed bit of a PTE, if it is enabled. Gives what it was.
fn sweep(pte: &Cell<Option<Bits>>) -> bool {
    let bits = pte.get();
    pte.set(bits.map(|b| Bits { young: false, ..b }));
    bits.is_some_and(|b| b.young)
}

/// A record without room is missing where the test looks for it.
fn keep(records: &mut KVec<Slot>, s: &Slot) {
    let _ = records.push_within_capacity(*s);
}

impl Machine {
    /// The first admission has number `start`, and its record has that plus one.
    fn with(shape: &Shape, slots: usize, words: Tables, start: u64) -> Result<Machine> {
        let memory = memory(slots, stay::firsts_for(shape), shape.cpus)?;
        let next = Number {
            ordinal: start,
            seq: start.wrapping_add(1),
        };
        let ptes = SPACES.saturating_mul(PAGES);
        Ok(Machine {
            set: Set::new(shape, memory, words, start).ok_or(EINVAL)?,
            counter: Counter::new(core::array::from_fn(|_| Word::new()), next),
            ptes: Store::from_elem(Cell::new(None), ptes, GFP_KERNEL)?,
            gone: KVec::with_capacity(MANY, GFP_KERNEL)?,
            records: KVec::with_capacity(RECORDS, GFP_KERNEL)?,
            seen: 0,
            renewed: 0,
            chances: 0,
            epochs: [0; 2],
            busy: None,
        })
    }

    fn shaped(shape: &Shape, slots: usize) -> Result<Machine> {
        Machine::with(shape, slots, Tables::new()?, 0)
    }

    /// A set of `n` for one CPU.
    fn new(n: usize) -> Result<Machine> {
        Machine::shaped(&shape(n), n.saturating_add(1).next_power_of_two())
    }

    fn epoch_of(&self, cpu: usize) -> u32 {
        self.epochs.get(cpu).copied().unwrap_or(0)
    }

    /// A CPU takes a ticket.
    fn take(&self, cpu: usize, time: u64) -> Result<Ticket> {
        let by = Caller {
            cpu,
            epoch: self.epoch_of(cpu),
            time,
        };
        let epoch_of = |cpu| self.epoch_of(cpu);
        self.set.take(by, &self.counter, epoch_of).ok_or(EAGAIN)
    }

    /// Ends the stay of the member that a ticket puts out of the set, or renews it.
    fn end(&mut self, t: &mut Ticket) -> End {
        let (ptes, gone, records) = (&self.ptes, &mut self.gone, &mut self.records);
        let (epochs, busy) = (&self.epochs, self.busy);
        let way = Way {
            why: WHY_EVICTED,
            now: t.time,
            may: true,
            renews: true,
            epoch_of: |cpu: usize| epochs.get(cpu).copied().unwrap_or(0),
        };
        let look = |s: &Slot| {
            let pte = ptes.get(s.entry / 8);
            let bits = pte.and_then(Cell::get).unwrap_or_default();
            if let Some(pte) = pte {
                sweep(pte);
            }
            bits
        };
        let disable = |s: &Slot, young| disable(ptes, gone, s, young);
        let emit = |s: &Slot| {
            keep(records, s);
            true
        };
        let Some(out) = self.set.out(t) else {
            return End::Gone;
        };
        let lock = |_: usize, entry| Some(page_of(entry).mm) != busy;
        // SAFETY: The test runs on one thread, and none of these functions calls the set. So nobody
        // else uses the page tables during the call.
        let end = unsafe { self.set.end(t, &out, &way, look, disable, lock, emit) };
        self.set.write(&out, |s| keep(&mut self.records, s));
        end
    }

    /// Ends a stay, whoever has to do that.
    fn end_at(&mut self, ordinal: u64, end: u64) {
        let (ptes, gone) = (&self.ptes, &mut self.gone);
        let disable = |s: &Slot, young| disable(ptes, gone, s, young);
        // SAFETY: As in `end`.
        unsafe { self.set.end_at(ordinal, end, WHY_EVICTED, 0, disable) };
    }

    /// Writes the record of a stay that has ended, as its ticket has to.
    fn write(&mut self, t: &Ticket) {
        if let Some(out) = self.set.out(t) {
            self.set.write(&out, |s| keep(&mut self.records, s));
        }
    }

    /// What a ticket's CPU has to do first.
    fn tail(&self, t: &Ticket) -> Tail {
        self.set
            .out(t)
            .map_or(Tail::Nothing, |out| self.set.tail(&out))
    }

    /// Does what comes before an admission.
    fn make_way(&mut self, t: &mut Ticket) -> Result {
        self.gone = KVec::with_capacity(MANY, GFP_KERNEL)?;
        let mut tries = 0..MANY;
        loop {
            tries.next().ok_or(EINVAL)?;
            let end = match self.tail(t) {
                Tail::Nothing => break,
                Tail::Record => {
                    self.write(t);
                    break;
                }
                Tail::Slow(ordinal, _) => {
                    self.end_at(ordinal, t.clock);
                    continue;
                }
                Tail::Member(_) => self.end(t),
            };
            match end {
                End::Gone | End::Evicted(_) => break,
                End::Renewed => self.renewed = self.renewed.wrapping_add(1),
                End::Chance => self.chances = self.chances.wrapping_add(1),
            }
            self.set.draw(t, &self.counter);
        }
        if let Some(passed) = self.set.pass(t) {
            let pte = self.ptes.get(passed.1 / 8);
            // SAFETY: As in `end`.
            unsafe { self.set.sweep(passed, |_| pte.is_some_and(sweep)) };
        }
        Ok(())
    }

    /// Makes a page a member. Gives the sequence number of its record, unless the admission is given
    /// up.
    fn admit(&self, t: &Ticket, a: &Admission) -> Option<u64> {
        // SAFETY: The test runs on one thread. So nobody else uses the page table during the call.
        let seq = unsafe { self.set.admit(t, a, &self.counter) }?;
        self.ptes.get(a.entry / 8)?.set(Some(Bits {
            young: true,
            dirty: a.was_dirty,
        }));
        Some(seq)
    }

    /// What a fault does. Gives the page that had to go, or the first one of these.
    fn touch_by(&mut self, cpu: usize, page: u64) -> Result<Option<u64>> {
        let mut t = self.take(cpu, 0)?;
        self.make_way(&mut t)?;
        self.admit(&t, &admission(page)).ok_or(EAGAIN)?;
        Ok(self.gone.first().map(|g| g.0))
    }

    fn touch(&mut self, page: u64) -> Result<Option<u64>> {
        self.touch_by(0, page)
    }

    /// A CPU uses a page that is enabled.
    fn access(&self, page: Page, write: bool) {
        if let Some(pte) = self.ptes.get(page.entry / 8) {
            pte.set(pte.get().map(|b| Bits {
                young: true,
                dirty: b.dirty || write,
            }));
        }
    }

    /// Somebody clears a PTE, and the set does not get to know.
    fn forget(&self, page: Page) -> Bits {
        let pte = self.ptes.get(page.entry / 8).and_then(Cell::take);
        pte.unwrap_or_default()
    }

    /// Somebody clears a PTE. False if its page is no member.
    fn close(&self, page: Page, why: u32, now: u64) -> bool {
        let bits = self.forget(page);
        // SAFETY: As in `admit`.
        unsafe { self.set.close(page, bits, why, now, &self.counter) }
    }

    fn frame(&self, page: Page) -> Option<u32> {
        // SAFETY: As in `admit`.
        unsafe { self.set.frame(page) }
    }

    fn dirtied(&self, page: Page) -> bool {
        // SAFETY: As in `admit`.
        unsafe { self.set.dirtied(page) }
    }

    /// Another user of accessed bits clears that of a page.
    fn aged(&self, page: Page) -> bool {
        let pte = self.ptes.get(page.entry / 8);
        let young = pte.is_some_and(sweep);
        // SAFETY: As in `admit`.
        unsafe { self.set.aged(page, young) }
    }

    fn hidden(&self, page: Page) -> bool {
        // SAFETY: As in `admit`.
        unsafe { self.set.hidden(page) }
    }

    fn contains(&self, page: Page) -> bool {
        self.frame(page).is_some()
    }

    /// Whether a page of the usual address space is a member.
    fn has(&self, page: u64) -> bool {
        self.contains(at(MM, page.wrapping_mul(PAGE)))
    }

    /// Members. It is an error if other PTEs than theirs are enabled, or too many.
    fn live(&self) -> Result<u64> {
        let mut live = 0u64;
        for (i, pte) in self.ptes.iter().enumerate() {
            let is_member = self.contains(page_of(i.saturating_mul(8)));
            if is_member != pte.get().is_some() {
                return Err(EINVAL);
            }
            live = live.wrapping_add(u64::from(is_member));
        }
        if live > self.set.size() {
            return Err(EINVAL);
        }
        Ok(live)
    }

    /// The records since the last call, as sequence number and page with flags.
    fn records(&mut self) -> Result<KVec<(u64, u64)>> {
        let mut out = KVec::with_capacity(RECORDS, GFP_KERNEL)?;
        for s in self.records.iter().skip(self.seen) {
            out.push((s.seq, s.page), GFP_KERNEL)?;
        }
        self.seen = self.records.len();
        Ok(out)
    }

    /// The numbers in a set of `n`: from which one on, and what is the next one.
    fn numbers(&self, n: u64) -> (u64, u64) {
        let next = self.counter.next().ordinal;
        (next.saturating_sub(n).max(self.set.start()), next)
    }

    /// Writes the records of all stays that have ended. No ticket is on the way.
    fn collect(&mut self) {
        let (begin, next) = self.numbers(self.set.size());
        for o in begin..next {
            self.set.clear(o, |s| {
                keep(&mut self.records, s);
                true
            });
        }
    }

    /// Changes the size. No ticket is on the way.
    fn resize(&mut self, n: u64) -> Result {
        if !self.set.can_be(n) {
            return Err(EINVAL);
        }
        self.gone = KVec::with_capacity(MANY, GFP_KERNEL)?;
        let (begin, next) = self.numbers(self.set.size());
        for o in begin..self.numbers(n).0 {
            self.end_at(o, next);
            self.set.clear(o, |s| {
                keep(&mut self.records, s);
                true
            });
        }
        self.set.resize(n);
        Ok(())
    }

    /// Ends all stays. Whether no slot is in use then, and each number has one record, but for so
    /// many that were given up.
    fn finish(&mut self, given_up: u64) -> Result<bool> {
        for i in 0..self.ptes.len() {
            self.close(page_of(i.saturating_mul(8)), WHY_EVICTED, 0);
        }
        self.collect();
        let next = self.counter.next().ordinal;
        let records = self.records.len() as u64;
        let all = self
            .set
            .start()
            .wrapping_add(records)
            .wrapping_add(given_up);
        Ok(self.live()? == 0 && self.set.is_idle() && next == all)
    }
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
    ring.push(record::REF_SIZE, seq, time, &Only, |bytes, base| {
        bytes.fill(seq as u8);
        begins = Some(*base);
    });
    begins
}

/// What is said of the only packet of a sub-buffer. `None` if it has several.
fn only(packet: &mut Packet) -> Option<Meta> {
    let (mut only, mut packets) = (None, 0usize);
    packet.each(|_, meta| {
        only = Some(*meta);
        packets = packets.wrapping_add(1);
    });
    only.filter(|_| packets == 1)
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
            core::mem::offset_of!(bindings::$struct, $field),
        ))
    };
}

#[kunit_tests(rust_vmtrace)]
mod tests {
    use super::*;

    #[test]
    fn set_is_a_fifo() -> Result {
        let mut m = Machine::new(4)?;
        for page in 1..=50 {
            assert_eq!(m.touch(page)?, page.checked_sub(4).filter(|p| *p > 0));
            assert_eq!(m.gone.len() as u64, u64::from(page > 4));
            assert!(m.has(page));
            assert_eq!(m.live()?, page.min(4));
        }
        assert!(!m.has(46) && m.has(47));
        let records = m.records()?;
        assert_eq!(records.len(), 46);
        for (page, record) in (1..).zip(records.iter()) {
            assert_eq!(*record, (page, page * PAGE));
        }
        assert!(m.finish(0)?);
        Ok(())
    }

    #[test]
    fn an_interval_that_is_late_leaves_others_out() {
        use crate::interval::next;
        assert_eq!(next(100, 50, 100), 150);
        assert_eq!(next(100, 50, 149), 150);
        assert_eq!(next(100, 50, 150), 200);
        assert_eq!(next(100, 50, 1_003), 1_050);
        assert_eq!(next(u64::MAX - 5, 50, u64::MAX), u64::MAX);
    }

    /// The name of the policy that a configuration asks for; `None` if it asks for what cannot be.
    fn asked(c: &bindings::vmtrace_config) -> Option<&'static CStr> {
        crate::policy::new(c).ok().map(|policy| policy.name)
    }

    #[test]
    fn a_policy_is_the_one_that_is_asked_for() {
        let none: bindings::vmtrace_config = pin_init::zeroed();
        assert!(asked(&none) == Some(c"vmtrace_set"));
        let mut c = none;
        c.interval = 50_000_000;
        assert!(asked(&c) == Some(c"vmtrace_interval"));
        c.interval = 1;
        assert!(asked(&c).is_none());
        let mut c = none;
        c.flags = bindings::VMTRACE_REGIONS;
        assert!(asked(&c).is_none());
        let good = bindings::vmtrace_sampling {
            sample: 5_000_000,
            aggregate: 100_000_000,
            update: 1_000_000_000,
            min_regions: 10,
            max_regions: 1000,
            by: bindings::VMTRACE_BY_FAULT,
            change: 0,
        };
        c.sampling = good;
        assert!(asked(&c) == Some(c"vmtrace_regions"));
        let bad: [fn(&mut bindings::vmtrace_config); 11] = [
            |c| c.flags = 0,
            |c| c.flags |= bindings::VMTRACE_VTIME,
            |c| c.sampling.sample = 99_999,
            |c| c.sampling.aggregate = 4_999_999,
            |c| c.sampling.update = 99_999_999,
            |c| c.sampling.min_regions = 2,
            |c| c.sampling.max_regions = 19,
            |c| c.sampling.by = 2,
            |c| c.interval = 50_000_000,
            |c| c.sampling.change = 1,
            |c| c.sets = bindings::VMTRACE_SETS_PROCESS,
        ];
        for change in bad {
            let mut c = c;
            change(&mut c);
            assert!(asked(&c).is_none());
        }
        // With windows, what is about references makes sense.
        c.flags |= bindings::VMTRACE_VTIME | bindings::VMTRACE_AGAIN;
        assert!(asked(&c).is_none());
        let mut planned = c;
        planned.window_time = 1_000_000;
        assert!(asked(&planned) == Some(c"vmtrace_regions"));
        planned.sampling.change = 1;
        assert!(asked(&planned).is_none());
        c.flags |= bindings::VMTRACE_PAUSABLE;
        c.sampling.change = bindings::VMTRACE_CHANGE_MAX;
        assert!(asked(&c) == Some(c"vmtrace_regions"));
        c.sampling.change = c.sampling.change.saturating_add(1);
        assert!(asked(&c).is_none());
    }

    #[test]
    fn set_knows_address_spaces_apart() -> Result {
        let mut m = Machine::new(4)?;
        for mm in [1, 2] {
            let t = m.take(0, 0)?;
            assert!(m.admit(&t, &admission_of(mm, 9)).is_some());
        }
        assert!(m.contains(at(1, 9 * PAGE)) && m.contains(at(2, 9 * PAGE)));
        assert!(!m.contains(at(3, 9 * PAGE)));
        // An entry of another page, or of another address space, is not theirs.
        let entry = at(1, 9 * PAGE).entry;
        for page in [at(1, 10 * PAGE), at(2, 9 * PAGE)] {
            assert!(!m.contains(Page { entry, ..page }));
        }
        assert!(m.close(at(1, 9 * PAGE), 1, 0));
        assert!(!m.contains(at(1, 9 * PAGE)) && m.contains(at(2, 9 * PAGE)));
        assert!(!m.close(at(1, 9 * PAGE), 1, 0));
        assert_eq!(m.live()?, 1);
        assert!(m.finish(0)?);
        Ok(())
    }

    #[test]
    fn set_closed_page_keeps_its_place() -> Result {
        let mut m = Machine::new(3)?;
        for page in 1..=3 {
            m.touch(page)?;
        }
        assert!(m.close(at(MM, 2 * PAGE), 1, 0));
        assert_eq!(m.live()?, 2);
        // Nothing has to go for the one that takes the place of page 2.
        assert_eq!(m.touch(4)?, Some(1));
        assert_eq!(m.touch(5)?, None);
        assert_eq!(m.touch(6)?, Some(3));
        assert_eq!(m.live()?, 3);

        let closed = (2 * PAGE) | (1 << stay::WHY_SHIFT);
        assert!(*m.records()? == [(1, PAGE), (2, closed), (3, 3 * PAGE)]);
        assert!(m.finish(0)?);
        Ok(())
    }

    /// The record of number `o` is written by the ticket with number `o + n`.
    #[test]
    fn set_writes_records_in_order_of_admission() -> Result {
        let mut m = Machine::new(3)?;
        for page in 1..=3 {
            m.touch(page)?;
        }
        // The last of them ends first.
        assert!(m.close(at(MM, 3 * PAGE), 0, 0));
        assert!(m.close(at(MM, PAGE), 0, 0));
        assert_eq!(m.records()?.len(), 0);
        assert_eq!(m.touch(4)?, None);
        assert!(*m.records()? == [(1, PAGE)]);
        assert!(m.close(at(MM, 2 * PAGE), 0, 0));
        assert_eq!(m.records()?.len(), 0);
        assert_eq!(m.touch(5)?, None);
        assert!(*m.records()? == [(2, 2 * PAGE)]);
        // A ticket on the way keeps the record.
        let mut t = m.take(0, 0)?;
        assert_eq!(m.tail(&t), Tail::Record);
        assert_eq!(m.records()?.len(), 0);
        m.make_way(&mut t)?;
        assert!(*m.records()? == [(3, 3 * PAGE)]);
        // It is written once.
        m.write(&t);
        assert_eq!(m.tail(&t), Tail::Nothing);
        assert!(m.admit(&t, &admission(6)).is_some());
        // At the end, a record is written whose ticket was never taken. A member has none yet.
        assert!(m.close(at(MM, 5 * PAGE), 0, 0));
        m.collect();
        assert!(*m.records()? == [(5, 5 * PAGE)]);
        assert_eq!(m.live()?, 2);
        assert!(m.finish(0)?);
        assert!(*m.records()? == [(4, 4 * PAGE), (6, 6 * PAGE)]);
        Ok(())
    }

    /// Two CPUs, which can be slow.
    fn two() -> Shape {
        Shape {
            cpus: 2,
            ..shape(4)
        }
    }

    /// The slot is that of a stay whose ticket, of another CPU, is on the way.
    #[test]
    fn set_gives_up_an_admission_without_a_slot() -> Result {
        let mut m = Machine::shaped(&Shape { n: 5, ..two() }, 8)?;
        for page in 1..=5 {
            m.touch(page)?;
        }
        let mut slow = m.take(1, 0)?;
        assert_eq!(m.touch(7)?, Some(2));
        assert_eq!(m.touch(8)?, Some(3));
        // What the ticket puts out of the set goes nevertheless.
        assert_eq!(m.touch(9), Err(EAGAIN));
        assert!(*m.gone == [(4, false)]);
        assert!(m.has(1) && !m.has(9));
        assert_eq!(m.live()?, 4);
        // The slow CPU is not disturbed.
        m.make_way(&mut slow)?;
        assert!(*m.gone == [(1, false)]);
        assert_eq!(m.admit(&slow, &admission(6)), Some(6));
        let order = [(2, 2 * PAGE), (3, 3 * PAGE), (4, 4 * PAGE), (1, PAGE)];
        assert!(*m.records()? == order);
        // The access gets another number. Nobody has to go for what number 8 did not admit.
        m.epochs = [0, 1];
        for (page, gone) in (9..).zip([5, 6, 7, 8]) {
            assert_eq!(m.touch(page)?, Some(gone));
        }
        assert_eq!(m.touch(13)?, None);
        assert_eq!(m.live()?, 5);
        assert!(m.finish(1)?);
        Ok(())
    }

    /// The ticket that frees a slot comes before the one that fills it.
    #[test]
    fn set_gives_up_an_overdue_admission() -> Result {
        let mut m = Machine::shaped(&two(), 16)?;
        for page in 1..=4 {
            m.touch(page)?;
        }
        let mut slow = m.take(1, 0)?;
        for page in 6..=8 {
            assert_eq!(m.touch(page)?, Some(page - 4));
        }
        assert_eq!(m.live()?, 4);
        // It ends what the slow CPU has left, which would be one page too many.
        let mut t = m.take(0, 0)?;
        assert_eq!(m.tail(&t), Tail::Slow(0, at(MM, PAGE).entry));
        m.make_way(&mut t)?;
        assert!(*m.gone == [(1, false)]);
        assert!(m.admit(&t, &admission(9)).is_some());
        assert_eq!(m.live()?, 4);
        // The record is the slow CPU's all the same.
        assert!(*m.records()? == [(2, 2 * PAGE), (3, 3 * PAGE), (4, 4 * PAGE)]);
        assert_eq!(m.tail(&slow), Tail::Record);
        m.make_way(&mut slow)?;
        assert!(*m.records()? == [(1, PAGE)]);
        assert_eq!(m.admit(&slow, &admission(5)), None);
        assert!(!m.has(5));
        assert_eq!(m.touch(5)?, Some(6));
        assert!(m.finish(1)?);

        // The same if it gives up by itself.
        let mut m = Machine::shaped(&two(), 16)?;
        let slow = m.take(1, 0)?;
        for page in 2..=5 {
            assert_eq!(m.touch(page)?, None);
        }
        m.set.abort(&slow);
        assert_eq!(m.live()?, 4);
        assert!(m.finish(1)?);
        Ok(())
    }

    /// In a small set, a CPU waits for an admission that its ticket would put out of the set, for
    /// some time.
    #[test]
    fn set_waits_for_an_admission_on_the_way() -> Result {
        let mut m = Machine::shaped(&Shape { n: 2, ..two() }, 8)?;
        m.set.set_patience(3);
        let first = m.take(0, 0)?;
        assert_eq!(m.touch_by(1, 2)?, None);
        assert_eq!(m.touch_by(1, 3), Err(EAGAIN));
        assert_eq!(m.counter.next().ordinal, 2);
        assert!(m.admit(&first, &admission(1)).is_some());
        // CPU 0 switches to another task: its page is not renewed.
        m.epochs = [1, 0];
        assert_eq!(m.touch_by(1, 3)?, Some(1));

        let mut slow = m.take(0, 0)?;
        m.make_way(&mut slow)?;
        assert!(*m.gone == [(2, false)]);
        assert_eq!(m.touch_by(1, 5)?, Some(3));
        for _ in 0..3 {
            assert_eq!(m.touch_by(1, 6), Err(EAGAIN));
        }
        assert_eq!(m.touch_by(1, 6)?, None);
        assert_eq!(m.admit(&slow, &admission(4)), None);
        assert!(!m.has(4) && m.has(5) && m.has(6));
        assert_eq!(m.live()?, 2);
        assert!(m.finish(1)?);
        Ok(())
    }

    #[test]
    fn set_gives_no_ticket_while_it_is_paused() -> Result {
        let mut m = Machine::new(1)?;
        m.touch(1)?;
        let mut t = m.take(0, 0)?;
        m.set.pause();
        assert_eq!(m.touch(3), Err(EAGAIN));
        assert_eq!(m.counter.next().ordinal, 2);
        // A ticket that was on the way goes on.
        m.make_way(&mut t)?;
        assert_eq!(m.admit(&t, &admission(2)), Some(2));
        assert_eq!(m.touch(3), Err(EAGAIN));
        m.set.go_on();
        assert_eq!(m.touch(3)?, Some(2));
        assert!(m.finish(0)?);
        Ok(())
    }

    #[test]
    fn set_aborted_admission_leaves_nothing() -> Result {
        let mut m = Machine::new(1)?;
        let mut t = m.take(0, 0)?;
        m.make_way(&mut t)?;
        m.set.abort(&t);
        assert!(m.set.is_idle());
        assert_eq!(m.live()?, 0);
        assert_eq!(m.touch(2)?, None);
        assert_eq!(m.touch(3)?, Some(2));
        assert!(*m.records()? == [(2, 2 * PAGE)]);
        // Nor does one that no other follows.
        let mut t = m.take(0, 0)?;
        m.make_way(&mut t)?;
        assert!(*m.gone == [(3, false)]);
        m.set.abort(&t);
        assert_eq!(m.live()?, 0);
        assert!(m.finish(2)?);
        Ok(())
    }

    /// An admission that saw what was dropped later does not take what is there now for it.
    #[test]
    fn set_gives_up_what_is_overtaken() -> Result {
        let mut m = Machine::new(8)?;
        let entry = admission(1).entry;
        let t = m.take(0, 0)?;
        // SAFETY: As in `Machine::admit`.
        unsafe { m.set.overtake(entry, &m.counter) };
        assert_eq!(m.admit(&t, &admission(1)), None);
        // Other pages are not concerned, and neither are later numbers.
        let t = m.take(0, 0)?;
        // SAFETY: As above.
        unsafe { m.set.overtake(entry, &m.counter) };
        assert!(m.admit(&t, &admission(2)).is_some());
        assert_eq!(m.touch(1)?, None);
        // Nor is a member.
        // SAFETY: As above.
        unsafe { m.set.overtake(entry, &m.counter) };
        assert_eq!(m.live()?, 2);
        // A stay has ended after the number was taken.
        let t = m.take(0, 0)?;
        assert!(m.close(at(MM, PAGE), 0, 0));
        assert_eq!(m.admit(&t, &admission(1)), None);
        // It is not known which pages are dropped.
        let mut t = m.take(0, 0)?;
        m.make_way(&mut t)?;
        m.counter.overtake_all::<Kernel>();
        assert_eq!(m.admit(&t, &admission(3)), None);
        assert_eq!(m.touch(3)?, None);
        assert_eq!(m.live()?, 2);
        assert!(m.finish(3)?);
        Ok(())
    }

    #[test]
    fn set_ended_victim_is_left_alone() -> Result {
        let mut m = Machine::new(1)?;
        m.touch(1)?;
        let mut t = m.take(0, 0)?;
        assert_eq!(m.tail(&t), Tail::Member(at(MM, PAGE).entry));
        m.access(at(MM, PAGE), true);
        // Before its page table is locked, somebody clears the PTE.
        assert!(m.close(at(MM, PAGE), 1, 0));
        assert_eq!(m.end(&mut t), End::Gone);
        assert_eq!(m.gone.len(), 0);
        assert!(m.admit(&t, &admission(2)).is_some());
        assert_eq!(m.live()?, 1);
        let closed = PAGE | stay::DIRTIED | (1 << stay::WHY_SHIFT);
        assert!(*m.records()? == [(1, closed)]);
        assert!(m.finish(0)?);
        Ok(())
    }

    #[test]
    fn set_dirtied() -> Result {
        let mut m = Machine::new(4)?;
        for was_dirty in [false, true, true, false] {
            let t = m.take(0, 0)?;
            let page = admission(t.number.seq);
            m.admit(&t, &Admission { was_dirty, ..page });
        }
        // The dirty bit proves a store if it was clear; a noted store always counts.
        m.access(at(MM, PAGE), true);
        assert!(m.dirtied(at(MM, 3 * PAGE)));
        assert!(!m.dirtied(at(MM, 5 * PAGE)));
        for page in 1..=4 {
            assert!(m.close(at(MM, page * PAGE), 0, 0));
        }
        m.collect();
        let expected = [
            (1, PAGE | stay::DIRTIED),
            (2, 2 * PAGE),
            (3, (3 * PAGE) | stay::DIRTIED),
            (4, 4 * PAGE),
        ];
        assert!(*m.records()? == expected);
        assert!(m.finish(0)?);
        Ok(())
    }

    #[test]
    fn set_measures_stays() -> Result {
        let mut m = Machine::new(4)?;
        for page in 1..=4 {
            let t = m.take(0, 1000)?;
            assert!(m.admit(&t, &admission(page)).is_some());
        }
        let unit = 1 << stay::STAY_SHIFT;
        assert!(m.close(at(MM, PAGE), 0, 1000 + 17 * unit));
        // A clock that went back, and a stay that does not fit.
        assert!(m.close(at(MM, 2 * PAGE), 0, 999));
        assert!(m.close(at(MM, 3 * PAGE), 0, u64::MAX));
        m.collect();
        // One that ends when another page comes.
        for _ in 1..=4 {
            let mut t = m.take(0, 1000 + 5 * unit)?;
            m.make_way(&mut t)?;
            m.set.abort(&t);
        }
        let mut stays = KVec::with_capacity(4, GFP_KERNEL)?;
        for s in m.records.iter() {
            stays.push((s.time, s.stay), GFP_KERNEL)?;
        }
        assert!(*stays == [(1000, 17), (1000, 0), (1000, u32::MAX), (1000, 5)]);
        assert!(m.finish(4)?);
        Ok(())
    }

    #[test]
    fn set_refuses_memory_that_does_not_fit() -> Result {
        // Slots, places of first segments, CPUs, and places of seats.
        let fits = |shape: &Shape, [slots, firsts, cpus, seats]: [usize; 4]| {
            let memory = Memory {
                seats: words(seats)?,
                ..memory(slots, firsts, cpus)?
            };
            Ok::<_, Error>(Set::new(shape, memory, Tables::new()?, 0).is_some())
        };
        assert!(!fits(&shape(0), [8, 1, 1, 2])?);
        assert!(!fits(&shape(8), [8, 1, 1, 2])?);
        assert!(!fits(&shape(4), [7, 1, 1, 2])?);
        assert!(!fits(&shape(4), [8, 2, 1, 2])?);
        assert!(!fits(&shape(4), [8, 1, 2, 2])?);
        assert!(!fits(&shape(4), [8, 1, 1, 4])?);
        assert!(fits(&shape(7), [8, 1, 1, 2])?);
        let batch = |batch| Shape { batch, ..shape(4) };
        assert!(!fits(&batch(0), [8, 1, 1, 2])?);
        assert!(!fits(&batch(5), [8, 1, 1, 2])?);
        assert!(fits(&batch(4), [8, 1, 1, 2])?);
        // A first segment, and as much beside it.
        assert!(!fits(&Shape { n: 1, ..two() }, [8, 2, 2, 4])?);
        assert!(fits(&Shape { n: 2, ..two() }, [8, 2, 2, 4])?);
        Ok(())
    }

    /// A set of 4 that begins with number `start`, when page 1 has this word.
    fn goes_on(start: u64, word: u64) -> Result<Machine> {
        let words = Tables::new()?;
        words.word(at(MM, PAGE).entry).ok_or(EINVAL)?.set(word);
        Machine::with(&shape(4), 8, words, start)
    }

    /// What a set leaves in the words of entries is right for the next one.
    #[test]
    fn set_goes_on_with_numbers() -> Result {
        // The stay of page 1 ended at number 40, and that was the last number.
        let mut m = goes_on(40, 40 << 1)?;
        let mut t = m.take(0, 0)?;
        assert_eq!(t.number.ordinal, 40);
        m.make_way(&mut t)?;
        assert_eq!(m.gone.len(), 0);
        assert_eq!(m.admit(&t, &admission(1)), Some(41));
        // It goes when four have come after it.
        for page in 2..=4 {
            assert_eq!(m.touch(page)?, None);
        }
        assert_eq!(m.touch(5)?, Some(1));
        assert_eq!(m.live()?, 4);
        assert!(m.finish(0)?);
        // A number from before the end of the page's stay is refused, and so is the word of a member
        // that an earlier set has left.
        let mut m = goes_on(39, 40 << 1)?;
        assert_eq!(m.touch(1), Err(EAGAIN));
        assert_eq!(m.touch(1)?, None);
        assert!(m.finish(1)?);
        let mut m = goes_on(40, 20 << 1 | stay::MEMBER)?;
        assert!(!m.has(1));
        assert_eq!(m.touch(1)?, None);
        assert_eq!((m.live()?, m.counter.missed()), (1, 0));
        // Of a set with fewer admissions than its size, only the size changes.
        assert_eq!(m.touch(2)?, None);
        m.resize(3)?;
        assert_eq!(m.gone.len(), 0);
        assert_eq!((m.set.size(), m.live()?), (3, 2));
        assert!(m.finish(0)?);
        Ok(())
    }

    /// Both numbers are in one word, and both have 64 bits.
    #[test]
    fn set_counts_records_and_admissions() -> Result {
        let mut m = goes_on((1 << 32) - 2, 0)?;
        let seq = (1 << 32) - 1;
        m.touch(1)?;
        assert_eq!(m.counter.event(), seq + 1);
        assert_eq!(m.counter.event(), seq + 2);
        for page in 2..=5 {
            m.touch(page)?;
        }
        let next = Number {
            ordinal: (1 << 32) + 3,
            seq: seq + 7,
        };
        assert_eq!(m.counter.next(), next);
        assert_eq!(m.touch(6)?, Some(2));
        assert!(*m.records()? == [(seq, PAGE), (seq + 3, 2 * PAGE)]);
        // Another trace begins.
        m.counter.restart(1);
        assert_eq!(m.counter.event(), 1);
        let next = Number {
            ordinal: (1 << 32) + 4,
            seq: 2,
        };
        assert_eq!(m.counter.next(), next);
        assert!(m.finish(0)?);
        Ok(())
    }

    /// A page is admitted again, though its stay was not closed.
    #[test]
    fn set_counts_missed_ends() -> Result {
        let mut m = Machine::new(4)?;
        m.touch(1)?;
        m.touch(2)?;
        m.forget(at(MM, PAGE));
        m.touch(1)?;
        assert_eq!((m.live()?, m.counter.missed()), (2, 1));
        m.touch(3)?;
        assert_eq!(m.touch(4)?, None);
        let missed = PAGE | (u64::from(stay::WHY_OTHER) << stay::WHY_SHIFT);
        assert!(*m.records()? == [(1, missed)]);
        assert!(m.finish(0)?);
        Ok(())
    }

    #[test]
    fn set_evicts_in_batches() -> Result {
        let four = Shape {
            batch: 4,
            ..shape(8)
        };
        let mut m = Machine::shaped(&four, 16)?;
        assert_eq!(m.set.batch(), 4);
        let mut flushes = 0;
        for page in 1..=24 {
            if let Some(victim) = m.touch(page)? {
                assert_eq!(m.gone.len(), 4);
                for (page, gone) in (victim..).zip(m.gone.iter()) {
                    assert_eq!(*gone, (page, false));
                }
                flushes += 1;
            }
            assert!(page < 8 || (5..=8).contains(&m.live()?));
        }
        assert_eq!(flushes, 4);
        // Their records are in order all the same.
        let records = m.records()?;
        assert_eq!(records.len(), 16);
        for (page, record) in (1..).zip(records.iter()) {
            assert_eq!(*record, (page, page * PAGE));
        }
        // The batch leaves the least set.
        m.resize(2)?;
        assert_eq!((m.set.size(), m.set.batch()), (2, 2));
        assert!(m.finish(0)?);

        // Pages of other page tables go with them, as far as these can be locked.
        let four = Shape {
            batch: 4,
            ..shape(4)
        };
        for busy in [None, Some(2)] {
            let mut m = Machine::shaped(&four, 8)?;
            m.busy = busy;
            for (mm, page) in [(1, 1), (2, 2), (1, 3), (1, 4)] {
                let t = m.take(0, 0)?;
                assert!(m.admit(&t, &admission_of(mm, page)).is_some());
            }
            assert_eq!(m.touch(5)?, Some(1));
            let stays = |page| busy.is_some() && page == 2;
            let gone = (1..5).filter(|page| !stays(*page));
            assert!(m.gone.iter().copied().eq(gone.map(|page| (page, false))));
            assert_eq!(m.contains(at(2, 2 * PAGE)), busy.is_some());
            assert_eq!(m.live()?, 1 + u64::from(busy.is_some()));
            assert!(m.finish(0)?);
        }

        // There are no more than a few of them.
        let eight = Shape {
            batch: 8,
            ..shape(8)
        };
        let mut m = Machine::shaped(&eight, 16)?;
        for mm in [1, 2, 3, 4, 5, 3, 5, 1] {
            let t = m.take(0, 0)?;
            let page = t.number.ordinal.wrapping_add(1);
            assert!(m.admit(&t, &admission_of(mm, page)).is_some());
        }
        assert_eq!(m.touch(9)?, Some(1));
        assert!(m.gone.iter().map(|g| g.0).eq([1, 2, 3, 4, 6, 8]));
        assert!(m.finish(0)?);
        Ok(())
    }

    #[test]
    fn set_keeps_what_a_cpu_may_need() -> Result {
        let two = Shape {
            n: 8,
            first: 2,
            ..two()
        };
        let mut m = Machine::shaped(&two, 16)?;
        for page in 1..=24 {
            // Pages 1 and 2 are CPU 1's, and it admits no more.
            m.touch_by(usize::from(page <= 2), page)?;
        }
        assert!(m.has(1) && m.has(2) && m.has(23) && m.has(24));
        assert_eq!(m.live()?, 8);
        let before = m.renewed;
        assert!(before > 0);
        let records = m.records()?;
        let renewed = PAGE | (u64::from(stay::WHY_RENEWED) << stay::WHY_SHIFT);
        assert!(records.contains(&(1, renewed)));
        assert!(records.iter().any(|r| r.1 == renewed | stay::CONT));

        // CPU 1 switches to another task: its pages go like others.
        m.epochs = [0, 1];
        for page in 25..=32 {
            m.touch(page)?;
        }
        assert!(!m.has(1) && !m.has(2));
        assert_eq!((m.live()?, m.renewed), (8, before));
        assert!(m.finish(0)?);
        Ok(())
    }

    #[test]
    fn set_gives_second_chances() -> Result {
        let clock = Shape {
            clock: true,
            ..shape(2)
        };
        let mut m = Machine::shaped(&clock, 8)?;
        let page = at(MM, PAGE);
        // Page 2 puts page 1 into the second segment, where its accessed bit is cleared.
        m.touch(1)?;
        m.touch(2)?;
        assert!(m.hidden(page));
        assert!(m.aged(page));
        assert!(!m.hidden(page));
        m.access(page, false);
        // Page 1 was referenced, page 2 was not.
        assert_eq!(m.touch(3)?, Some(2));
        // That never was in the second segment, so its accessed bit was left alone.
        assert!(*m.gone == [(2, false)]);
        assert!(m.has(1) && !m.has(2));
        assert_eq!((m.live()?, m.chances), (2, 1));
        let chance = PAGE | stay::AGAIN | (u64::from(stay::WHY_CHANCE) << stay::WHY_SHIFT);
        assert!(*m.records()? == [(1, chance), (2, 2 * PAGE)]);
        // Others still learn that page 1 was used, once; looking changes nothing.
        assert!(m.hidden(page) && m.hidden(page));
        assert!(!m.hidden(at(MM, 2 * PAGE)));
        assert!(m.aged(page));
        assert!(!m.hidden(page));
        assert!(!m.aged(page));
        // It goes when it was not referenced again.
        assert_eq!(m.touch(4)?, Some(1));
        assert!(*m.gone == [(1, false)]);
        assert!(*m.records()? == [(3, PAGE | stay::SEEN)]);
        // What this set has hidden is there when a page goes.
        assert!(m.hidden(at(MM, 3 * PAGE)));
        assert_eq!(m.touch(5)?, Some(3));
        assert!(*m.gone == [(3, true)]);
        assert_eq!(m.chances, 1);
        // Another user has found page 4 referenced, and knows.
        let page = at(MM, 4 * PAGE);
        m.access(page, false);
        assert!(m.aged(page));
        assert_eq!(m.touch(6)?, Some(5));
        assert_eq!(m.chances, 2);
        assert!(m.has(4) && !m.hidden(page));
        assert!(m.finish(0)?);
        Ok(())
    }

    #[test]
    fn set_changes_its_size() -> Result {
        let mut m = Machine::shaped(&shape(2), 64)?;
        for page in 1..=2 {
            m.touch(page)?;
        }
        m.resize(4)?;
        assert_eq!(m.touch(3)?, None);
        assert_eq!(m.touch(4)?, None);
        assert_eq!(m.touch(5)?, Some(1));
        assert!(!m.set.can_be(64) && m.set.can_be(63));
        assert!(!m.set.can_be(0) && m.set.can_be(1));
        m.resize(2)?;
        assert!(*m.gone == [(2, false), (3, false)]);
        assert_eq!((m.set.size(), m.live()?), (2, 2));
        assert_eq!(m.touch(6)?, Some(4));
        // Places of a set that grows are empty.
        m.resize(4)?;
        assert_eq!(m.touch(7)?, None);
        assert_eq!(m.touch(8)?, None);
        assert_eq!(m.touch(9)?, Some(5));
        assert_eq!(m.live()?, 4);
        let records = m.records()?;
        assert_eq!(records.len(), 5);
        for (page, record) in (1..).zip(records.iter()) {
            assert_eq!(*record, (page, page * PAGE));
        }
        assert!(m.finish(0)?);
        Ok(())
    }

    #[test]
    fn set_has_figures() -> Result {
        let mut m = Machine::shaped(&Shape { n: 2, ..two() }, 8)?;
        for page in 1..=3 {
            m.touch(page)?;
        }
        let figures = |m: &Machine| m.set.figures(m.counter.next().ordinal);
        let all = figures(&m);
        assert_eq!((all.live, all.first, all.tickets), (2, 1, 3));
        assert_eq!((all.reserved, all.wrong), (0, 0));
        // A slot that is on the way, or whose number is not in the set, is wrong.
        let (cells, claims, seats) = m.set.parts();
        let slot = cells.get(2).ok_or(EINVAL)?;
        let before = slot.turn.get();
        slot.turn.put(before - 1);
        assert_eq!((figures(&m).reserved, figures(&m).wrong), (1, 1));
        for numbers in [-8, -1, 1, 8] {
            slot.turn.put(before.wrapping_add_signed(numbers << 3));
            assert_eq!(figures(&m).wrong, 1);
        }
        slot.turn.put(before);
        // And so are a first segment that is too long, and seats and a queue that CPUs do not know.
        let claim = claims.first().ok_or(EINVAL)?;
        for (word, value) in [
            (&claim.counts, claim.counts.get() + 1),
            (&claim.seat, 0),
            (&claim.seat, claim.seat.get() | 1 << 32),
            (seats.first().ok_or(EINVAL)?, 2),
        ] {
            let before = word.get();
            word.put(value);
            assert_eq!(figures(&m).wrong, 1);
            word.put(before);
        }
        assert_eq!(figures(&m), all);
        // SAFETY: As in `Machine::admit`.
        let is_sound = |m: &Machine| unsafe { m.set.look_at(2) }.is_some_and(|(_, sound)| sound);
        assert!(is_sound(&m));
        // SAFETY: The test runs on one thread.
        unsafe { slot.place.change() }.entry = at(MM, 5 * PAGE).entry;
        assert!(!is_sound(&m));
        Ok(())
    }

    #[test]
    fn set_members_are_sought() -> Result {
        let mut m = Machine::new(4)?;
        for page in 0..4 {
            m.touch(page)?;
        }
        assert!(m.close(at(MM, PAGE), 1, 0));
        assert_eq!(m.set.member(1), None);
        assert_eq!(m.set.member(2), Some(at(MM, 2 * PAGE).entry));
        // SAFETY: As in `Machine::admit`.
        let slot = |o| unsafe { m.set.look_at(o) }.map(|(s, _)| *s);
        let known = slot(2).map(|s| (s.owner, s.mm, s.page, s.seq));
        assert_eq!(known, Some((0x1000, MM, 2 * PAGE, 3)));
        assert!(slot(1).is_none());
        // Not yet, and not any more, whatever is in the slot.
        m.touch(4)?;
        assert_eq!(m.set.member(0), None);
        assert_eq!(m.set.member(10), None);
        assert_eq!(m.frame(at(MM, 3 * PAGE)), Some(5));
        assert_eq!(m.frame(at(MM, PAGE)), None);
        assert!(m.finish(0)?);
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
            let mut packet = ring.take().ok_or(EINVAL)?;
            let first = taken * 2 + 1;
            let expected = Meta {
                first_seq: first,
                last_seq: first + 1,
                first_time: first * 10,
                last_time: (first + 1) * 10,
                records: 2,
                used: packet.buf.len(),
                set: 0,
                before: Before {
                    packets: taken,
                    ..Before::default()
                },
            };
            assert_eq!(only(&mut packet), Some(expected));
            assert_eq!((packet.records(), packet.last_seq()), (2, first + 1));
            assert_eq!(packet.bytes().len(), packet.buf.len());
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
        ring.had.lost_full += 1;

        let mut first = ring.take().ok_or(EINVAL)?;
        let meta = only(&mut first).ok_or(EINVAL)?;
        assert_eq!((meta.last_seq, meta.before.lost_full), (2, 0));
        let mut second = ring.take().ok_or(EINVAL)?;
        let meta = only(&mut second).ok_or(EINVAL)?;
        assert_eq!((meta.first_seq, meta.before.lost_full), (3, 0));
        assert!(ring.take().is_none());
        assert!(push(&mut ring, 6, 0).is_none());
        ring.had.lost_full += 1;

        ring.give(first.buf);
        ring.give(second.buf);
        assert_eq!(ring.free(), 2);
        assert!(push(&mut ring, 7, 0).is_some());
        assert!(!ring.has_full());
        ring.flush();
        assert!(ring.has_full());
        let mut third = ring.take().ok_or(EINVAL)?;
        let meta = only(&mut third).ok_or(EINVAL)?;
        assert_eq!((meta.first_seq, meta.records), (7, 1));
        assert_eq!((meta.before.packets, meta.before.lost_full), (2, 2));
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
        // Two packets are in the first sub-buffer, and for a third head there was no room.
        let mut first = ring.take().ok_or(EINVAL)?;
        assert_eq!(first.records(), 3);
        assert_eq!(first.last_seq(), 11 + far);
        let mut all = KVec::with_capacity(2, GFP_KERNEL)?;
        first.each(|bytes, meta| {
            let whole = bytes.len() == meta.used;
            let packet = (whole, meta.before.packets, meta.first_seq, meta.records);
            let _ = all.push_within_capacity(packet);
        });
        assert!(*all == [(true, 0, 10, 2), (true, 1, 11 + far, 1)]);
        assert!(ring.take().is_none());
        ring.flush();
        let meta = only(&mut ring.take().ok_or(EINVAL)?).ok_or(EINVAL)?;
        assert_eq!((meta.before.packets, meta.records), (2, 1));
        Ok(())
    }

    #[test]
    fn record_of_a_reference() {
        let mut slot = Slot::EMPTY;
        slot.seq = 0x1_0000_0002;
        slot.time = 1_000_000;
        slot.page = 0x7fff_dead_b000 | stay::DIRTIED;
        slot.mm = 0x1111_2222;
        slot.tid_cpu = 0x3333_4444;
        slot.stay = 0x5555_6666;
        slot.pfn = 0x7777_8888;
        let base = Base {
            seq: 0x1_0000_0000,
            time: 999_000,
        };
        let mut out = [0xff; record::REF_SIZE];
        record::put_ref::<{ record::REF_SIZE }, false>(&mut out, &slot, &base);
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
        record::put_ref::<LONG, false>(&mut long, &slot, &base);
        assert_eq!(bytes(&long, 0), out);
        assert_eq!(bytes(&long, record::REF_SIZE), slot.vtime.to_le_bytes());

        slot.address = 0x7fff_dead_bff9;
        let mut last = [0xff; LONG];
        record::put_ref::<LONG, true>(&mut last, &slot, &base);
        assert_eq!(bytes(&last, 0), out);
        assert_eq!(bytes(&last, record::REF_SIZE), 0xff9u64.to_le_bytes());
        let mut both = [0xff; LONG + record::OFFSET_SIZE];
        record::put_ref::<{ LONG + record::OFFSET_SIZE }, true>(&mut both, &slot, &base);
        assert_eq!(bytes(&both, 0), long);
        assert_eq!(bytes(&both, LONG), 0xff9u64.to_le_bytes());

        // Only the accessed bit has shown the access.
        slot.page |= stay::SEEN;
        record::put_ref::<LONG, true>(&mut last, &slot, &base);
        assert_eq!(
            bytes(&last, record::REF_SIZE),
            stay::NO_OFFSET.to_le_bytes()
        );
        // Of a huge page.
        (slot.page, slot.address) = (0x4020_0000, 0x403f_fff8);
        assert_eq!(slot.offset(), 0x1f_fff8);
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
            magic: bindings::VMTRACE_PACKET_MAGIC,
            uuid: &uuid,
            kind: bindings::VMTRACE_STREAM_EVENT,
            cpu: 3,
            window: 13,
            packed: None,
        };
        let meta = Meta {
            first_seq: 6,
            last_seq: 7,
            first_time: 8,
            last_time: 9,
            records: 10,
            used: HEAD + 8,
            set: 0,
            before: Before {
                packets: 4,
                lost_full: 11,
                lost_atomic: 12,
            },
        };
        record::put_packet(&mut out, &head, &meta);
        assert_eq!(field!(out, vmtrace_packet.magic: u64), head.magic);
        let at = core::mem::offset_of!(bindings::vmtrace_packet, uuid);
        assert_eq!(bytes(&out, at), uuid);
        assert_eq!(u32::from(field!(out, vmtrace_packet.kind: u16)), head.kind);
        assert_eq!(field!(out, vmtrace_packet.codec: u16), 0);
        assert_eq!(field!(out, vmtrace_packet.cpu: u32), 3);
        assert_eq!(field!(out, vmtrace_packet.seq: u64), 4);
        assert_eq!(field!(out, vmtrace_packet.lost_io: u32), 0);
        assert_eq!(field!(out, vmtrace_packet.raw_size: u32), 0);
        assert_eq!(field!(out, vmtrace_packet.window: u32), 13);
        assert_eq!(field!(out, vmtrace_packet.first_seq: u64), 6);
        assert_eq!(field!(out, vmtrace_packet.last_seq: u64), 7);
        assert_eq!(field!(out, vmtrace_packet.first_time: u64), 8);
        assert_eq!(field!(out, vmtrace_packet.last_time: u64), 9);
        assert_eq!(field!(out, vmtrace_packet.records: u32), 10);
        assert_eq!(field!(out, vmtrace_packet.lost_full: u64), 11);
        assert_eq!(bytes(&out, 80), 12u64.to_le_bytes());
        assert_eq!(field!(out, vmtrace_packet.content_size: u32), 8);
        assert_eq!(field!(out, vmtrace_packet.crc: u32), 0);
        // What follows the head is the caller's.
        assert_eq!(bytes(&out, HEAD), [0xff; 8]);
        // References are of a set, and are not lost in that way.
        record::put_packet(&mut out, &head, &Meta { set: 14, ..meta });
        assert_eq!(bytes(&out, 80), 14u64.to_le_bytes());
        // The content is packed into five bytes.
        let packed = PacketHead {
            packed: Some((3, 5)),
            ..head
        };
        record::put_packet(&mut out, &packed, &meta);
        assert_eq!(field!(out, vmtrace_packet.codec: u16), 3);
        assert_eq!(field!(out, vmtrace_packet.raw_size: u32), 8);
        assert_eq!(field!(out, vmtrace_packet.content_size: u32), 5);
        assert_eq!(u32::from(field!(out, vmtrace_packet.kind: u16)), head.kind);
    }

    /// What the kernel's own functions say of an entry.
    fn facts(pte: u64, pkru: u32) -> bindings::vmtrace_pte_facts {
        let mut f = pin_init::zeroed();
        // SAFETY: `f` is valid. The function only computes.
        unsafe { bindings::vmtrace_pte_facts(pte, pkru, &mut f) };
        f
    }

    #[test]
    fn a_trace_from_boot_is_taken_as_it_is() {
        let (early, pack) = (bindings::VMTRACE_EARLY, bindings::VMTRACE_PACK);
        let (zstd, piece) = (bindings::VMTRACE_ZSTD, bindings::VMTRACE_PIECE);
        for how in [
            0,
            pack,
            pack | zstd,
            piece,
            piece | pack,
            piece | pack | zstd,
        ] {
            assert!(session::can_take(early | how));
            // Without the flag, it would be another trace.
            assert!(!session::can_take(how));
        }
        for how in [
            zstd,
            piece | zstd,
            bindings::VMTRACE_PAUSABLE,
            piece | bindings::VMTRACE_FILTERED,
        ] {
            assert!(!session::can_take(early | how));
        }
        // A piece ends where its file does.
        assert!(session::good_output(early | piece, true) && session::good_output(early, false));
        assert!(!session::good_output(early | piece, false));
    }

    #[test]
    fn stall_is_time_without_progress() {
        let mut stall = Stall::new(5);
        for progress in [5, 6, 9, 5] {
            // One part less than the limit, and then something is done.
            for _ in 1..PARTS {
                assert!(!stall.passed(progress));
            }
        }
        let mut stall = Stall::new(u64::MAX);
        for _ in 1..PARTS {
            assert!(!stall.passed(u64::MAX));
        }
        assert!(!stall.passed(0));
        for _ in 1..PARTS {
            assert!(!stall.passed(0));
        }
        // It stays passed, until there is progress.
        assert!(stall.passed(0) && stall.passed(0) && !stall.passed(1));
        assert_eq!(stall.seen(), 1);
    }

    #[test]
    fn stall_has_parts_of_the_limit() {
        for limit in [1, 7, 8, 9, 1000, FOREVER] {
            let part = Stall::part(limit);
            let whole = u128::from(part) * u128::from(PARTS);
            assert!(part > 0 && whole >= u128::from(limit));
            assert!(whole < u128::from(limit) + u128::from(PARTS));
        }
        assert_eq!(stall::limit(0, 0), FOREVER);
        assert_eq!(stall::limit(0, 5), FOREVER);
        assert_eq!(stall::limit(5, 0), FOREVER);
        assert_eq!((stall::limit(5, 7), stall::limit(7, 5)), (5, 5));
    }

    /// What becomes of a wait without progress: how long it lasts, and how it ends.
    fn waited(kind: Kind, limit: u64, spare: bool) -> (u64, Verdict) {
        let mut patience = Patience::new(kind, limit, 3000, 1);
        for parts in 1..=u64::from(PARTS) {
            match patience.passed(1, || spare) {
                Verdict::Wait => {}
                end => return (patience.part().saturating_mul(parts), end),
            }
        }
        (u64::MAX, Verdict::Wait)
    }

    #[test]
    fn patience_has_an_end() {
        let usual = Kind::default();
        let exits = Kind {
            exits: true,
            ..usual
        };
        for spare in [false, true] {
            assert_eq!(waited(usual, 800, spare), (800, Verdict::Failed));
            assert_eq!(waited(usual, 8000, spare), (8000, Verdict::Failed));
            // With a shorter limit the log fails, whoever finds that.
            assert_eq!(waited(exits, 3000, spare), (3000, Verdict::Failed));
            // Without a limit only a task that exits comes to an end.
            assert!(waited(usual, 0, spare).0 > 1 << 62);
        }
        for limit in [0, 3001, 8000] {
            assert_eq!(waited(exits, limit, true), (3000, Verdict::GoOn));
            assert_eq!(waited(exits, limit, false), (3000, Verdict::Failed));
        }
        // Progress begins the time anew.
        let mut patience = Patience::new(exits, 0, 3000, 1);
        for _ in 1..PARTS {
            assert_eq!(patience.passed(1, || true), Verdict::Wait);
        }
        for _ in 0..PARTS {
            assert_eq!(patience.passed(2, || true), Verdict::Wait);
        }
        assert_eq!(patience.passed(2, || true), Verdict::GoOn);
        assert_eq!(patience.seen(), 2);
    }

    #[test]
    fn patience_is_not_for_all() {
        for bits in 0..16u32 {
            let [exits, kernel, worker, flusher] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
            let kind = Kind {
                exits,
                kernel,
                worker,
                flusher,
            };
            assert_eq!(kind.returns(), bits & 7 == 0);
            assert_eq!(kind.is_needed(false), bits & 10 != 0);
            assert_eq!(kind.is_needed(true), bits & 11 != 0);
        }
    }

    #[test]
    fn back_writes_everything_once() {
        for size in [0, 1, back::LEAST, 3 * back::LEAST + 1, 99 << 20] {
            let mut rest = Rest::new(size);
            let (mut sent, mut waited) = (0, 0);
            while let Some(Part { send, wait }) = rest.part() {
                if let Some((from, last)) = send {
                    assert!(from == sent && last >= from);
                    sent = last.wrapping_add(1);
                }
                assert!(wait.0 == waited && wait.1 >= wait.0);
                waited = wait.1.wrapping_add(1);
                // The next part is on its way.
                let part = waited.wrapping_sub(wait.0);
                assert!(sent == size || sent >= waited.wrapping_add(part));
                rest.took(waited >> 20 & 15, 3, 12);
            }
            assert_eq!((sent, waited), (size, size));
        }
    }

    #[test]
    fn back_parts_are_as_large_as_the_disk_is_fast() {
        let mut rest = Rest::new(u64::MAX);
        let mut size = |time: u64| {
            let (from, last) = rest.part().map_or((1, 0), |part| part.wait);
            rest.took(time, 3, 12);
            last.wrapping_sub(from).wrapping_add(1)
        };
        let least = back::LEAST;
        // Too small, well, well, too large.
        for (time, expected) in [(2, 1), (3, 2), (12, 2), (2, 2), (13, 4), (12, 2), (99, 2)] {
            assert_eq!(size(time), expected * least);
        }
        for _ in 0..9 {
            size(13);
        }
        assert_eq!(size(0), least);
        for _ in 0..9 {
            size(0);
        }
        assert_eq!(size(0), back::LARGEST);
    }

    #[test]
    fn packets_are_counted() {
        let reference = |page: u64| {
            let mut bytes = [0u8; record::REF_SIZE];
            record::put(&mut bytes, 0, &page.to_le_bytes());
            bytes
        };
        let mut refs = [0u8; 4 * record::REF_SIZE];
        let pages = [PAGE, PAGE | stay::CONT, PAGE | stay::SEEN, PAGE | 1];
        for (i, page) in pages.into_iter().enumerate() {
            record::put(
                &mut refs,
                i.wrapping_mul(record::REF_SIZE),
                &reference(page),
            );
        }
        let mut kinds = Kinds::default();
        kinds.count(&refs, record::REF_SIZE);
        assert_eq!((kinds.admissions, kinds.renewed, kinds.chances), (2, 1, 1));
        let mut events = [0u8; 120];
        for (at, size, seq) in [(0usize, 48u16, 5u64), (48, 72, 8)] {
            record::put(&mut events, at + 2, &size.to_le_bytes());
            record::put(&mut events, at + 8, &seq.to_le_bytes());
        }
        for (from, many) in [(0, 2), (5, 2), (6, 1), (8, 1), (9, 0)] {
            assert_eq!(events_from(&events, from), many);
        }
    }

    /// A reference whose numbers are those of their fields, and whose texts are `cc1`.
    struct Fixed;

    impl Reference for Fixed {
        fn number(&self, field: u16) -> u64 {
            u64::from(field)
        }

        fn is(&self, _field: u16, text: &[u8]) -> bool {
            text == b"cc1"
        }

        fn fits(&self, _field: u16, pattern: &[u8]) -> bool {
            pattern == b"cc*\0"
        }
    }

    #[test]
    fn references_are_judged_by_their_tests() {
        const TEXTS: &[u8] = b"cc1\0cc*\0ls\0";
        let range = |field: u16, low: u64, high: u64, yes: u16, no: u16| Test {
            field,
            op: judge::RANGE,
            yes,
            no,
            low,
            high,
        };
        let text = |op: u16, low: u64, high: u64, yes: u16, no: u16| Test {
            op,
            ..range(judge::COMM, low, high, yes, no)
        };
        let (keep, leave) = (judge::KEEP, judge::LEAVE);
        assert!(judge::keeps(&[], TEXTS, &Fixed));
        // Both must hold.
        for (comm, low, kept) in [(0, 4, true), (8, 4, false), (0, 5, false)] {
            let len = if comm == 0 { 3 } else { 2 };
            let tests = [
                text(judge::TEXT, comm, len, 1, leave),
                range(4, low, 9, keep, leave),
            ];
            assert!(judge::are_good(&tests, TEXTS));
            assert_eq!(judge::keeps(&tests, TEXTS, &Fixed), kept);
        }
        let fits = [text(judge::GLOB, 4, 3, keep, leave)];
        assert!(judge::are_good(&fits, TEXTS) && judge::keeps(&fits, TEXTS, &Fixed));
        // Back, too far, a field or a way that there is not, no end, a number as a text, a text as a
        // number.
        for bad in [
            range(0, 0, 9, 0, keep),
            range(0, 0, 9, keep, 1),
            range(judge::LAST_FIELD + 1, 0, 9, keep, leave),
            text(3, 0, 3, keep, leave),
            text(judge::TEXT, 0, 2, keep, leave),
            text(judge::TEXT, 8, 9, keep, leave),
            text(judge::TEXT, u64::MAX, u64::MAX, keep, leave),
            text(judge::GLOB, 0, 7, keep, leave),
            range(judge::COMM, 0, 3, keep, leave),
            Test {
                op: judge::TEXT,
                ..range(0, 0, 3, keep, leave)
            },
        ] {
            assert!(!judge::are_good(&[bad], TEXTS));
        }
        // One text for several tests would make the judge slow.
        let again = text(judge::TEXT, 0, 3, keep, leave);
        assert!(judge::are_good(&[again; 1], TEXTS));
        assert!(!judge::are_good(
            &[text(judge::TEXT, 0, 3, 1, 1), again, again],
            &TEXTS[..4]
        ));
        let both = range(0, 0, 9, keep, leave);
        let mapped = range(judge::LAST_FIELD, 0, 9, keep, leave);
        assert_eq!(judge::fields(&[both]) & judge::OF_MAPPING, 0);
        assert_ne!(judge::fields(&[both, mapped]) & judge::OF_MAPPING, 0);
    }

    #[test]
    fn counts_are_given_up_and_not_lost() -> Result {
        let places = Store::from_elem(tally::Place::FREE, tally::WAYS, GFP_KERNEL)?;
        let mut t = Tally::new(places, Store::from_elem(0, 1, GFP_KERNEL)?);
        let many = 3 * tally::WAYS as u64;
        for ino in 1..=many {
            t.add(&Count {
                made: [1, 0, ino, 0],
                ino,
                ..Count::NONE
            });
        }
        let part = t.part(0, 1);
        let kept = part.places.iter().filter_map(tally::Place::get);
        let sum = kept.fold(0u64, |sum, count| sum + count.sum());
        assert_eq!(sum + part.gone, many + many * (many + 1) / 2);
        assert!(part.gone > 0 && part.next.is_none());
        Ok(())
    }

    fn span(start: i64, end: i64) -> Span {
        Span { start, end }
    }

    /// A call that ends these bytes.
    fn call(start: i64, end: i64) -> Hole {
        Hole {
            whole: span(start, end),
            logged: span(0, 0),
        }
    }

    #[test]
    fn holes_are_logged_as_they_are_made() {
        const P: i64 = PAGE as i64;
        // In two steps, from the end on, and more than was asked for.
        let mut hole = call(2 * P, 6 * P);
        assert!(hole.is_left());
        assert_eq!(hole.dropped(span(4 * P, 9 * P)), Some(span(4 * P, 6 * P)));
        assert!(hole.is_left());
        assert_eq!(hole.dropped(span(0, 4 * P)), Some(span(2 * P, 4 * P)));
        assert!(!hole.is_left());
        // Something else, and nothing.
        for other in [span(0, 2 * P), span(6 * P, 7 * P), span(3 * P, 3 * P)] {
            assert_eq!(hole.dropped(other), None);
        }
        assert_eq!(hole.logged, span(2 * P, 6 * P));
        // Two steps that do not touch each other: what lies between them is left.
        let steps = [span(2 * P, 3 * P), span(5 * P, 6 * P)];
        for [first, second] in [steps, [steps[1], steps[0]]] {
            let mut hole = call(2 * P, 6 * P);
            assert_eq!(hole.dropped(first), Some(first));
            assert_eq!(hole.dropped(second), Some(second));
            assert!(hole.is_left());
        }
    }

    #[test]
    fn holes_are_of_whole_pages() {
        const P: i64 = PAGE as i64;
        let all = span(P + 1, 4 * P - 1);
        // Whole pages were dropped, and the rest was cleared: all is logged at once.
        let mut hole = call(all.start, all.end);
        assert_eq!(hole.dropped(span(2 * P, 3 * P)), Some(all));
        assert!(!hole.is_left());
        // A byte less of a page, and that page is left.
        for less in [span(2 * P + 1, 3 * P), span(2 * P, 3 * P - 1)] {
            let mut hole = call(all.start, all.end);
            assert_eq!(hole.dropped(less), Some(less));
            assert!(hole.is_left());
        }
        // What begins where a page begins, and ends behind the file.
        let mut hole = call(2 * P, i64::MAX);
        assert_eq!(
            hole.dropped(span(2 * P, i64::MAX)),
            Some(span(2 * P, i64::MAX))
        );
        assert!(!hole.is_left() && !call(P, P).is_left() && !call(P, 0).is_left());
        // Less than a page, and nothing was dropped: this is logged, to be sure.
        assert!(call(1, 9).is_left());
    }

    /// All combinations of the bits that mean something, with some frames.
    #[test]
    fn entries_are_what_c_says() {
        // The functions of C translate between Xen's frames and the kernel's.
        // SAFETY: Only looks at what the CPU is.
        if !unsafe { bindings::vmtrace_owns_tables() } {
            return;
        }
        let has_config = cfg!(CONFIG_X86_USER_SHADOW_STACK);
        const BITS: [u32; 13] = [0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 58, 59, 63];
        const FRAMES: [u64; 4] = [0, 1, 0x12_3456, 0xf_ffff_ffff];
        for combination in 0..1u64 << BITS.len() {
            let bits = BITS
                .iter()
                .enumerate()
                .fold(0, |all, (at, bit)| all | (combination >> at & 1) << *bit);
            for frame in FRAMES {
                let raw = bits | frame << 12 & frame_mask();
                let (pte, f) = (Pte(raw), facts(raw, 0));
                // Dirty, and not writable. The CPU may have them although the kernel does not.
                let is_stack = raw & (1 << 1 | 1 << 6) == 1 << 6;
                let [disabled, enabled] = [pte.disable(frame_mask()), pte.enable(frame_mask())];
                let all_equal = pte.is_enabled() == f.enabled
                    && pte.is_disabled() == f.disabled
                    && (pte.is_writable() || f.has_shadow_stacks && is_stack) == f.writable
                    && pte.is_shadow_stack() == (has_config && is_stack)
                    && pte.is_young() == f.young
                    && pte.is_dirty() == f.dirty
                    && pte.is_special() == f.special
                    && pte.frame(frame_mask()) == f.pfn
                    && disabled.0 == f.disable
                    && enabled.0 == f.enable
                    && pte.make_young().0 == f.make_young
                    && pte.make_old().0 == f.make_old
                    && pte.make_dirty().0 == f.make_dirty
                    && pte.make_clean().0 == f.make_clean;
                assert!(all_equal);
                // The bit of "no access" means something else in a present entry.
                if f.enabled && raw >> 8 & 1 == 0 {
                    assert!(disabled.is_disabled() && disabled.enable(frame_mask()) == pte);
                    assert_eq!(disabled.frame(frame_mask()), f.pfn);
                }
            }
        }
    }

    /// Disabling and enabling keeps the two bits, whatever the CPU has.
    #[test]
    fn shadow_stacks_stay_what_they_are() {
        use bindings::{fault_flag_FAULT_FLAG_USER as USER, fault_flag_FAULT_FLAG_WRITE as WRITE};
        // Present, of user mode, accessed, dirty, and not writable.
        let stack = Pte(1 | 1 << 2 | 1 << 5 | 1 << 6 | 0x12_3456 << 12);
        let disabled = stack.disable(frame_mask());
        let [load, store] = [USER, USER | WRITE].map(|flags| Access { flags });
        assert!(disabled.is_disabled() && disabled.may_enable(load));
        assert!(!disabled.is_writable());
        // Without its VMA, a store is taken for a plain one.
        assert!(disabled.allows(load, 0) == Allowed::Yes);
        assert!(disabled.allows(store, 0) == Allowed::NoRight);
        assert!(disabled.touched(load, frame_mask()) == stack);
        if cfg!(CONFIG_X86_USER_SHADOW_STACK) {
            assert!(disabled.may_enable(store) && disabled.takes_stores());
            assert!(disabled.touched(store, frame_mask()) == stack);
        } else {
            assert!(!disabled.may_enable(store) && !disabled.takes_stores());
        }
        // What only can be read is not one, dirty or not.
        let read = Pte(stack.0 & !(1 << 6) | 1 << 58).disable(frame_mask());
        assert!(read.is_dirty() && !read.is_shadow_stack() && !read.may_enable(store));
    }

    #[test]
    fn accesses_are_allowed_as_c_says() {
        use bindings::{
            fault_flag_FAULT_FLAG_INSTRUCTION as FETCH, fault_flag_FAULT_FLAG_WRITE as WRITE,
        };
        let mut seen = [false; 3];
        for combination in 0..1u64 << 8 {
            let bit = |at: u32, to: u32| (combination >> at & 1) << to;
            // RW, UFFD and NX, and four bits of the key.
            let raw = 1 << 2 | 1 << 8 | bit(0, 1) | bit(1, 10) | bit(2, 63);
            let raw = raw | (combination >> 3 & 15) << 59;
            for pkru in [0, 0x5555_5554, 0xaaaa_aaa8, 0xffff_ffff, 0x1b2d_8e74] {
                let f = facts(raw, pkru);
                for (flags, right, key) in [
                    (0, true, f.key_reads),
                    (WRITE, f.writable, f.key_reads && f.key_writes),
                    (FETCH, f.executable, true),
                ] {
                    let expected = match (right && !f.uffd, key) {
                        (false, _) => Allowed::NoRight,
                        (true, false) => Allowed::NoKey,
                        (true, true) => Allowed::Yes,
                    };
                    assert_eq!(Pte(raw).allows(Access { flags }, pkru), expected);
                    if let Some(seen) = seen.get_mut(expected as usize) {
                        *seen = true;
                    }
                }
            }
        }
        assert_eq!(seen, [true; 3]);
    }
}
