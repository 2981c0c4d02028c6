// SPDX-License-Identifier: GPL-2.0

//! The evicted virtual mapping set (EVMS), as pure logic.
//!
//! The set is the last `n` admissions, a FIFO. Admissions are numbered; number
//! `o` lives in slot `o % capacity`. A page whose stay ends early keeps its
//! place, so records leave in order of admission whatever ended the stays.
//!
//! ```text
//!  retired          head - n                    head
//!     |  closed, not   |   the set: reserved,     |
//!     |  yet written   |   live or closed         |
//! ----+----------------+--------------------------+---> admissions
//! ```
//!
//! Nothing here allocates, sleeps, panics or knows the kernel: the caller
//! brings the memory, the lock and the clock. The same file is compiled into
//! the kernel and, for property tests, into the crate `rust-mm-trace`.

use crate::Store;

/// No slot: end of a hash chain.
const NIL: u32 = u32::MAX;

/// What became of an admission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// A slot is taken; the page is not enabled yet.
    Reserved,
    /// The page is enabled: a member.
    Live,
    /// The stay is over and its record complete.
    Closed,
    /// Given up: no page was enabled and no record is due.
    Aborted,
}

/// One admission, and the record of its stay.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Sequence number of the admission.
    pub seq: u64,
    /// Time of the admission, ns.
    pub time: u64,
    /// The address space's pointer, opaque here. Meaningful while live.
    pub owner: usize,
    /// Where its page table is found, opaque here. Meaningful while live.
    pub table: usize,
    /// Page address in the high bits, VMTRACE_REF_* flags in the low twelve.
    pub page: u64,
    /// Number of the address space.
    pub mm: u32,
    /// Thread and CPU, as in `struct vmtrace_ref`.
    pub tid_cpu: u32,
    /// Page frame number, saturating.
    pub pfn: u32,
    /// Length of the stay in units of `1 << STAY_SHIFT` ns, saturating.
    pub stay: u32,
    next: u32,
    state: State,
    was_dirty: bool,
}

impl Slot {
    /// A slot that holds nothing; what a new store is filled with.
    pub const EMPTY: Slot = Slot {
        seq: 0,
        time: 0,
        owner: 0,
        table: 0,
        page: 0,
        mm: 0,
        tid_cpu: 0,
        pfn: 0,
        stay: 0,
        next: NIL,
        state: State::Aborted,
        was_dirty: false,
    };
}

/// Admissions between two calls of [`Evms::retire`], a power of two.
pub const RETIRE_EVERY: u64 = 16;

/// Low bits of [`Slot::page`] that are flags.
pub const FLAGS: u64 = 0xfff;
/// Flag: written during the stay (VMTRACE_REF_DIRTIED).
pub const DIRTIED: u64 = 0x8;
/// Position of the reason in the flags (VMTRACE_REF_WHY_SHIFT).
pub const WHY_SHIFT: u32 = 5;
/// Unit of [`Slot::stay`] (VMTRACE_STAY_SHIFT).
pub const STAY_SHIFT: u32 = 6;

/// A page that must be disabled before the new one is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Its admission.
    pub ordinal: u64,
    /// Its address space, as given to [`Evms::admit`].
    pub owner: usize,
    /// Its page table, as given to [`Evms::admit`].
    pub table: usize,
    /// Its page address.
    pub addr: u64,
}

/// Answer of [`Evms::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// No room for one more record, or the victim is in flight: do not enable
    /// the page; the access will fault again.
    Full,
    /// Go on with this admission, after disabling the victim if there is one.
    Go(u64, Option<Victim>),
}

/// What is known when a page is enabled.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// The address space's pointer, opaque.
    pub owner: usize,
    /// Where its page table is found, opaque.
    pub table: usize,
    /// Page address and flags of the access.
    pub page: u64,
    /// Number of the address space.
    pub mm: u32,
    /// Thread and CPU.
    pub tid_cpu: u32,
    /// Page frame number.
    pub pfn: u32,
    /// The PTE's dirty bit was set before and stays set, so that finding it
    /// set at the end proves no store.
    pub was_dirty: bool,
}

/// The set.
///
/// # Invariants
///
/// `retired <= head <= retired + slots.len()`, `slots.len()` and
/// `buckets.len()` are powers of two, `live <= n`, and exactly the slots that
/// are live are in the hash.
pub struct Evms {
    slots: Store<Slot>,
    buckets: Store<u32>,
    n: u64,
    head: u64,
    retired: u64,
    live: u64,
    live_max: u64,
}

impl Evms {
    /// Slots needed for a set of `n` with room for `backlog` records that wait
    /// to be written: a power of two.
    pub fn slots_for(n: usize, backlog: usize) -> usize {
        n.saturating_add(backlog).next_power_of_two()
    }

    /// Hash buckets for a set of `n`: a power of two.
    pub fn buckets_for(n: usize) -> usize {
        n.saturating_mul(2).next_power_of_two()
    }

    /// A set of at most `n` over memory of [`Evms::slots_for`] slots and
    /// [`Evms::buckets_for`] buckets. `None` if the sizes do not fit.
    pub fn new(slots: Store<Slot>, mut buckets: Store<u32>, n: usize) -> Option<Evms> {
        if n == 0
            || slots.len() <= n
            || !slots.len().is_power_of_two()
            || !buckets.len().is_power_of_two()
            || slots.len() >= NIL as usize
        {
            return None;
        }
        for b in buckets.iter_mut() {
            *b = NIL;
        }
        Some(Evms {
            slots,
            buckets,
            n: n as u64,
            head: 0,
            retired: 0,
            live: 0,
            live_max: 0,
        })
    }

    /// Pages enabled now.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Most pages ever enabled at once.
    pub fn live_max(&self) -> u64 {
        self.live_max
    }

    /// Number of the next admission.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Oldest admission whose record has not left.
    pub fn retired(&self) -> u64 {
        self.retired
    }

    fn index(&self, ordinal: u64) -> u32 {
        (ordinal as usize & (self.slots.len().wrapping_sub(1))) as u32
    }

    fn slot(&self, ordinal: u64) -> Option<&Slot> {
        if ordinal < self.retired || ordinal >= self.head {
            return None;
        }
        self.slots.get(self.index(ordinal) as usize)
    }

    fn slot_mut(&mut self, ordinal: u64) -> Option<&mut Slot> {
        if ordinal < self.retired || ordinal >= self.head {
            return None;
        }
        let i = self.index(ordinal) as usize;
        self.slots.get_mut(i)
    }

    fn bucket(&self, mm: u32, page: u64) -> usize {
        // Fibonacci hashing of the page number and the address space.
        let key = (page >> 12) ^ (u64::from(mm) << 36);
        let h = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (h >> 32) as usize & (self.buckets.len().wrapping_sub(1))
    }

    fn find(&self, mm: u32, addr: u64) -> Option<u32> {
        let mut i = *self.buckets.get(self.bucket(mm, addr))?;
        while let Some(s) = self.slots.get(i as usize) {
            if s.mm == mm && (s.page ^ addr) & !FLAGS == 0 {
                return Some(i);
            }
            i = s.next;
        }
        None
    }

    fn link(&mut self, i: u32) {
        let Some((mm, page)) = self.slots.get(i as usize).map(|s| (s.mm, s.page)) else {
            return;
        };
        let b = self.bucket(mm, page);
        if let (Some(head), Some(s)) = (self.buckets.get_mut(b), self.slots.get_mut(i as usize)) {
            s.next = *head;
            *head = i;
        }
    }

    fn unlink(&mut self, i: u32) {
        let Some((mm, page, next)) = self.slots.get(i as usize).map(|s| (s.mm, s.page, s.next))
        else {
            return;
        };
        let b = self.bucket(mm, page);
        let Some(head) = self.buckets.get_mut(b) else {
            return;
        };
        if *head == i {
            *head = next;
            return;
        }
        let mut at = *head;
        while let Some(s) = self.slots.get_mut(at as usize) {
            if s.next == i {
                s.next = next;
                return;
            }
            at = s.next;
        }
    }

    /// Takes a number for an admission at `time`. `seq` is called once, if and
    /// only if the answer is [`Reserve::Go`]. The victim, if any, is not
    /// disabled by this; the caller does it with [`Evms::evict`].
    pub fn reserve(&mut self, time: u64, seq: impl FnOnce() -> u64) -> Reserve {
        let o = self.head;
        if o.wrapping_sub(self.retired) >= self.slots.len() as u64 {
            return Reserve::Full;
        }
        let mut victim = None;
        if let Some(v) = o.checked_sub(self.n) {
            if let Some(s) = self.slot(v) {
                match s.state {
                    State::Live => {
                        victim = Some(Victim {
                            ordinal: v,
                            owner: s.owner,
                            table: s.table,
                            addr: s.page & !FLAGS,
                        })
                    }
                    // Another CPU is between reserving and enabling it.
                    State::Reserved => return Reserve::Full,
                    State::Closed | State::Aborted => {}
                }
            }
        }
        let i = self.index(o) as usize;
        self.head = o.wrapping_add(1);
        if let Some(s) = self.slots.get_mut(i) {
            // The rest is set when the page becomes a member.
            s.seq = seq();
            s.time = time;
            s.state = State::Reserved;
        }
        Reserve::Go(o, victim)
    }

    /// Ends the stay of a victim of [`Evms::reserve`], under its page table
    /// lock. `disable` is called once if it is still a member, disables its PTE
    /// and gives its last dirty bit. Otherwise its stay has ended meanwhile:
    /// then its PTE, whatever it is, must be left alone, and the answer is
    /// false.
    pub fn evict(
        &mut self,
        ordinal: u64,
        why: u32,
        now: u64,
        disable: impl FnOnce() -> bool,
    ) -> bool {
        match self.slot(ordinal) {
            Some(s) if s.state == State::Live => {
                let i = self.index(ordinal);
                self.end(i, disable(), why, now);
                true
            }
            _ => false,
        }
    }

    /// Ends the stay in slot `i`, which is in the hash.
    fn end(&mut self, i: u32, dirty: bool, why: u32, now: u64) {
        self.unlink(i);
        self.live = self.live.wrapping_sub(1);
        if let Some(s) = self.slots.get_mut(i as usize) {
            if dirty && !s.was_dirty {
                s.page |= DIRTIED;
            }
            s.page |= u64::from(why) << WHY_SHIFT;
            let stay = now.saturating_sub(s.time) >> STAY_SHIFT;
            s.stay = u32::try_from(stay).unwrap_or(u32::MAX);
            s.state = State::Closed;
        }
    }

    /// Makes the page of a reserved admission a member; the caller enables its
    /// PTE under the same page table lock.
    pub fn admit(&mut self, ordinal: u64, a: &Admission) {
        let i = self.index(ordinal);
        match self.slot_mut(ordinal) {
            Some(s) if s.state == State::Reserved => {
                s.owner = a.owner;
                s.table = a.table;
                s.page = a.page;
                s.mm = a.mm;
                s.tid_cpu = a.tid_cpu;
                s.pfn = a.pfn;
                s.was_dirty = a.was_dirty;
                s.state = State::Live;
            }
            _ => return,
        }
        self.link(i);
        self.live = self.live.wrapping_add(1);
        if self.live > self.live_max {
            self.live_max = self.live;
        }
    }

    /// Gives up a reserved admission.
    pub fn abort(&mut self, ordinal: u64) {
        if let Some(s) = self.slot_mut(ordinal) {
            if s.state == State::Reserved {
                s.state = State::Aborted;
            }
        }
    }

    /// Ends the stay of a page whose PTE was cleared. False if it is no member.
    pub fn close(&mut self, mm: u32, addr: u64, dirty: bool, why: u32, now: u64) -> bool {
        match self.find(mm, addr) {
            Some(i) => {
                self.end(i, dirty, why, now);
                true
            }
            None => false,
        }
    }

    /// Notes a store to a member that its dirty bit can't tell of. False if it
    /// is no member.
    pub fn dirtied(&mut self, mm: u32, addr: u64) -> bool {
        let i = self.find(mm, addr);
        match i.and_then(|i| self.slots.get_mut(i as usize)) {
            Some(s) => {
                s.page |= DIRTIED;
                true
            }
            None => false,
        }
    }

    /// True if the page is a member.
    pub fn contains(&self, mm: u32, addr: u64) -> bool {
        self.find(mm, addr).is_some()
    }

    /// The member at or after `ordinal`, for disabling all of them.
    pub fn next_member(&self, ordinal: u64) -> Option<Victim> {
        let mut o = ordinal.max(self.retired);
        while let Some(s) = self.slot(o) {
            if s.state == State::Live {
                return Some(Victim {
                    ordinal: o,
                    owner: s.owner,
                    table: s.table,
                    addr: s.page & !FLAGS,
                });
            }
            o = o.wrapping_add(1);
        }
        None
    }

    /// True if it pays to call [`Evms::retire`]: every so many admissions, for
    /// one long call is cheaper than many short ones, and when room runs out.
    #[inline]
    pub fn retire_due(&self) -> bool {
        self.head & (RETIRE_EVERY - 1) == 0
            || self.head.wrapping_sub(self.retired) >= self.slots.len() as u64
    }

    /// Hands out complete records in order of admission, as long as `emit`
    /// takes them. With `all`, those still within the set too, for the end of
    /// a trace.
    pub fn retire(&mut self, all: bool, mut emit: impl FnMut(&Slot) -> bool) {
        let end = if all {
            self.head
        } else {
            self.head.saturating_sub(self.n)
        };
        while self.retired < end {
            let Some(s) = self.slot(self.retired) else {
                return;
            };
            match s.state {
                State::Closed => {
                    if !emit(s) {
                        return;
                    }
                }
                State::Aborted => {}
                State::Reserved | State::Live => return,
            }
            self.retired = self.retired.wrapping_add(1);
        }
    }
}
