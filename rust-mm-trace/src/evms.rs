//! The specification of the evicted virtual mapping set (EVMS).
//!
//! The kernel's set, [`tickets`](crate::tickets), must do the same, step by step. Its text says what
//! the set is. Here, one caller after the other has the whole set for itself.
//!
//! The set is the last `n` admissions. Admissions are numbered; number `o` lives
//! in slot `o % capacity`. A page whose stay ends early keeps its place, so
//! records leave in order of admission whatever ended the stays.
//!
//! ```text
//!  retired          head - n                    head
//!     |  closed, not   |   the set: reserved,     |
//!     |  yet written   |   live or closed         |
//! ----+----------------+--------------------------+---> admissions
//! ```
//!
//! The caller brings the memory and the clock.

use crate::{stay::*, Store};
use std::ops::{Deref, DerefMut};

/// The words of page table entries, as [`tickets::Words`](crate::tickets::Words).
pub trait Words {
    /// The word of an entry.
    fn get(&self, entry: usize) -> u64;
    /// Changes it. Does nothing if the handle is 0.
    fn set(&mut self, entry: usize, word: u64);
}

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

/// An admission, and what became of it.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    slot: Slot,
    state: State,
}

impl Held {
    /// What a new store is filled with.
    pub const EMPTY: Held = Held {
        slot: Slot::EMPTY,
        state: State::Aborted,
    };
}

impl Deref for Held {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        &self.slot
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Slot {
        &mut self.slot
    }
}

/// Admissions between two calls of [`Evms::retire`], a power of two.
pub const RETIRE_EVERY: u64 = 16;

/// The end of a stay that makes room for no admission: after all numbers given out.
pub const END_NOW: u64 = u64::MAX;

/// Slots that one call of [`Evms::shrink`] looks at.
const SHRINK_STEP: u32 = 256;

/// What a CPU has to do with the set.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Its admissions, modulo 2^32.
    count: u32,
    /// How many of the last of these are its first segment.
    held: u32,
    /// Admissions since it got its seat.
    used: u32,
    /// Its epoch when it last asked for a number, and the time.
    epoch: u32,
    time: u64,
    /// Its seat, if there are fewer than CPUs.
    seat: u16,
    /// It is in the queue for one.
    waits: bool,
}

impl Claim {
    /// That of a CPU that has admitted nothing.
    pub const NONE: Claim = Claim {
        count: 0,
        held: 0,
        used: 0,
        epoch: 0,
        time: 0,
        seat: NOBODY,
        waits: false,
    };

    /// The CPU wants a number: it has a first segment from here on, unless it has to wait for a
    /// seat.
    #[inline(always)]
    fn attend(&mut self, by: Caller, expires: bool) {
        let idle = by.time.saturating_sub(self.time) >= CLAIM_NS;
        if (idle || self.epoch != by.epoch) && expires {
            self.held = 0;
        }
        (self.epoch, self.time) = (by.epoch, by.time);
    }
}

/// The memory of a set, in the sizes of [`slots_for`] and so on.
pub struct Memory {
    /// The admissions.
    pub slots: Store<Held>,
    /// Places for the first segments: [`firsts_for`].
    pub firsts: Store<u64>,
    /// One for each CPU.
    pub claims: Store<Claim>,
    /// Two for each CPU.
    pub seats: Store<u16>,
}

/// A member of the set, to look at or to disable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Its admission.
    pub ordinal: u64,
    /// Its address space, as given to [`Evms::admit`].
    pub owner: usize,
    /// Its page table entry, as given to [`Evms::admit`].
    pub entry: usize,
    /// Its page address.
    pub addr: u64,
}

/// Answer of [`Evms::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// No room for one more record, or the victim is in flight: do not enable
    /// the page; the access will fault again.
    Full,
    /// Nothing is reserved: the hand of the clock is at this page; try again
    /// after [`Evms::hand`].
    Hand(Victim),
    /// Go on with the admission.
    Go {
        /// Its number.
        ordinal: u64,
        /// To be disabled first, by [`Evms::evict`].
        victim: Option<Victim>,
        /// Came into the second segment: its accessed bit is to be cleared, by
        /// [`Evms::sweep`].
        passed: Option<Victim>,
    },
}

/// Answer of [`Evms::hand`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hand {
    /// Its stay had ended before.
    Gone,
    /// It has a second chance.
    Chance,
    /// Its stay has ended.
    Evicted,
    /// No room for the record of a second chance.
    Full,
}

/// Answer of [`Evms::shrink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shrink {
    /// The set has the size.
    Done,
    /// This page is to be disabled first.
    Evict(Victim),
    /// An admission is in flight, or there is no room for a record: try later.
    Wait,
    /// Nothing is in the way: go on with the next call.
    More,
    /// It can't be that small, or that large.
    Refused,
}

/// The set's figures at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Members.
    pub live: u64,
    /// Of these, in first segments.
    pub first: u64,
    /// Numbers taken by admissions that have not come to an end.
    pub reserved: u64,
    /// What contradicts [`Evms`]'s invariants; 0 if all is well.
    pub wrong: u64,
}

/// The set.
///
/// # Invariants
///
/// `retired <= head <= retired + slots.len()`, `slots.len()` is a power of two, and `live <= n`.
/// Exactly the entries of slots that are live have the word of a member, with the slot's number.
/// `claims` has one of each CPU. If
/// `again`, `firsts` has `first` places for each CPU, and in place `nth % first`
/// of them the ordinal, plus one, of that of the last `first` admissions.
///
/// The word of a page that is no member has the greatest number at which a stay of it ended or
/// it was dropped: for an eviction the number of the admission that it made room for, otherwise
/// what `head` was. `all_from` is the same for all pages, and `u64::MAX` while the set is shut. An
/// admission whose number is smaller than either is given up: its CPU was slow, and other CPUs
/// have admitted its page and ended that stay, or dropped the page. All these numbers are at most
/// `head`, except `all_from` of a shut set. So what takes its number later is not given up. Words
/// outlive a set, so numbers go on in the next one.
///
/// If `nr_seats` is not 0, the first so many of `seats` name the CPUs that may have a first
/// segment; each of them knows its seat, and no other CPU holds pages. The second half of
/// `seats` is the queue: `waiting` CPUs from the place `queue` on, each of them once. First
/// segments together have less than `n` pages.
pub struct Evms<W> {
    words: W,
    slots: Store<Held>,
    firsts: Store<u64>,
    claims: Store<Claim>,
    seats: Store<u16>,
    nr_seats: usize,
    /// First segments expire: a CPU that has the set for itself holds up nobody.
    expires: bool,
    /// Admissions after which a seat is given to another CPU.
    term: u32,
    /// The seat that is looked at next.
    turn: usize,
    queue: usize,
    waiting: usize,
    all_from: u64,
    first: u32,
    n: u64,
    clock: bool,
    again: bool,
    /// As configured; [`Evms::batch`] is what `n` allows of it.
    batch: u64,
    disorder: bool,
    /// The first number.
    start: u64,
    head: u64,
    retired: u64,
    live: u64,
    live_max: u64,
    renewed: u64,
    chances: u64,
    missed: u64,
}

/// Slots needed for a set of up to `n` with room for `backlog` records that
/// wait to be written: a power of two.
pub fn slots_for(n: usize, backlog: usize) -> usize {
    n.saturating_add(backlog).next_power_of_two()
}

impl<W: Words> Evms<W> {
    /// A set over memory of [`slots_for`] slots, [`firsts_for`], one of `claims` and two of
    /// `seats` per CPU, whose first admission is number `start`. No word may say that its page is a
    /// member, or have a number above `start`. `None` if the sizes do not fit.
    pub fn new(shape: &Shape, memory: Memory, words: W, start: u64) -> Option<Self> {
        let Memory {
            slots,
            mut firsts,
            mut claims,
            seats,
        } = memory;
        if !shape.fits(slots.len(), firsts.len(), claims.len(), seats.len()) {
            return None;
        }
        for number in firsts.iter_mut() {
            *number = 0;
        }
        for c in claims.iter_mut() {
            *c = Claim::NONE;
        }
        let mut evms = Evms {
            words,
            slots,
            firsts,
            claims,
            seats,
            nr_seats: 0,
            expires: shape.cpus > 1,
            term: (shape.first as u32).saturating_mul(TERM),
            turn: 0,
            queue: 0,
            waiting: 0,
            all_from: start,
            first: shape.first as u32,
            n: shape.n as u64,
            clock: shape.clock,
            again: shape.again || shape.clock,
            batch: if shape.clock { 1 } else { shape.batch as u64 },
            disorder: false,
            start,
            head: start,
            retired: start,
            live: 0,
            live_max: 0,
            renewed: 0,
            chances: 0,
            missed: 0,
        };
        evms.seat_all(evms.n);
        Some(evms)
    }

    /// Sets up as many seats as a set of `n` has. If that changes anything, all first
    /// segments begin anew.
    fn seat_all(&mut self, n: u64) {
        let seats = seats_for(n, self.first, self.claims.len());
        if seats == self.nr_seats {
            return;
        }
        self.nr_seats = seats;
        (self.turn, self.queue, self.waiting) = (0, 0, 0);
        for s in self.seats.iter_mut() {
            *s = NOBODY;
        }
        for c in self.claims.iter_mut() {
            (c.held, c.used, c.seat, c.waits) = (0, 0, NOBODY, false);
        }
    }

    /// Refuses admissions from here on, also those that have a number already.
    pub fn shut(&mut self) {
        self.all_from = u64::MAX;
    }

    /// Accepts admissions again that get a number from here on.
    pub fn open(&mut self) {
        self.all_from = self.head;
    }

    /// From now on, admissions come in any order: a negative control.
    pub fn disorder(&mut self) {
        self.disorder = true;
    }

    /// From now on, first segments do not expire: a negative control.
    pub fn keep_firsts(&mut self) {
        self.expires = false;
    }

    /// From now on, seats are given up by idle CPUs only: a negative control.
    pub fn keep_seats(&mut self) {
        self.term = u32::MAX;
    }

    /// Pages that can be enabled at once.
    pub fn size(&self) -> u64 {
        self.n
    }

    /// Pages that one admission evicts at most, its victim included.
    pub fn batch(&self) -> u64 {
        let most = batch_max(self.n as usize, self.first as usize, self.claims.len());
        self.batch.min(most as u64).max(1)
    }

    /// Whether an admission may evict more than one page.
    pub fn has_batches(&self) -> bool {
        self.batch != 1
    }

    /// The greatest size that [`Evms::grow`] can give it.
    pub fn size_max(&self) -> u64 {
        (self.slots.len() as u64).saturating_sub(1)
    }

    /// Stays renewed for CPUs that admit less than others.
    pub fn renewed(&self) -> u64 {
        self.renewed
    }

    /// Second chances given.
    pub fn chances(&self) -> u64 {
        self.chances
    }

    /// Stays that ended unnoticed, and were found when the page was admitted again.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Pages enabled now.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Most pages ever enabled at once.
    pub fn live_max(&self) -> u64 {
        self.live_max
    }

    /// Number of the first admission.
    pub fn start(&self) -> u64 {
        self.start
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

    fn slot(&self, ordinal: u64) -> Option<&Held> {
        if ordinal < self.retired || ordinal >= self.head {
            return None;
        }
        self.slots.get(self.index(ordinal) as usize)
    }

    fn slot_mut(&mut self, ordinal: u64) -> Option<&mut Held> {
        if ordinal < self.retired || ordinal >= self.head {
            return None;
        }
        let i = self.index(ordinal) as usize;
        self.slots.get_mut(i)
    }

    /// Whether an admission that has this number is given up.
    #[inline(always)]
    fn is_overtaken(&self, entry: usize, ordinal: u64) -> bool {
        let least = self.words.get(entry) >> 1;
        (ordinal < least || ordinal < self.all_from) && !self.disorder
    }

    /// The slot of a page that is a member.
    #[inline(always)]
    fn find(&self, page: Page) -> Option<u32> {
        let word = self.words.get(page.entry);
        if word & MEMBER == 0 {
            return None;
        }
        let ordinal = word >> 1;
        let s = self.slot(ordinal).filter(|s| s.state == State::Live)?;
        (s.mm == page.mm && (s.page ^ page.addr) & !FLAGS == 0).then(|| self.index(ordinal))
    }

    fn victim(&self, ordinal: u64, s: &Slot) -> Victim {
        Victim {
            ordinal,
            owner: s.owner,
            entry: s.entry,
            addr: s.page & !FLAGS,
        }
    }

    /// Whether a page is in a first segment.
    #[inline]
    fn is_first(&self, s: &Slot, time: u64, epoch_of: impl Fn(usize) -> u32) -> bool {
        let cpu = usize::from(s.cpu);
        match self.claims.get(cpu) {
            Some(c) => c.count.wrapping_sub(s.nth) < c.held && !self.is_over(cpu, time, epoch_of),
            None => false,
        }
    }

    /// Whether a CPU's first segment has expired.
    fn is_over(&self, cpu: usize, time: u64, epoch_of: impl Fn(usize) -> u32) -> bool {
        self.expires
            && self
                .claims
                .get(cpu)
                .is_none_or(|c| time.saturating_sub(c.time) >= CLAIM_NS || c.epoch != epoch_of(cpu))
    }

    /// A CPU wants a number. If it has no seat, it queues up for one. Seats that are free go to
    /// the CPUs that have waited longest.
    #[inline(never)]
    fn seat(&mut self, cpu: usize, epoch: u32, time: u64, epoch_of: impl Fn(usize) -> u32) {
        if self.claims.get(cpu).is_none_or(|c| c.seat != NOBODY) {
            return;
        }
        let by = Caller { cpu, epoch, time };
        let cpus = self.claims.len();
        let expires = self.expires;
        match self.claims.get_mut(by.cpu) {
            Some(c) => c.attend(by, expires),
            None => return,
        }
        if let Some(c) = self.claims.get_mut(by.cpu).filter(|c| !c.waits) {
            c.waits = true;
            self.enqueue(cpus, by.cpu);
        }
        for _ in 0..LOOK {
            let Some(next) = self.front(cpus) else {
                return;
            };
            if next != by.cpu && self.is_over(next, by.time, &epoch_of) {
                // It will queue up again when it wants a number.
                self.dequeue(cpus, next);
                continue;
            }
            let turn = self.turn;
            let after = turn.wrapping_add(1);
            self.turn = if after < self.nr_seats { after } else { 0 };
            let holder = self.seats.get(turn).map_or(NOBODY, |h| *h);
            if !self.is_free(holder, by.time, &epoch_of) {
                continue;
            }
            if let Some(c) = self.claims.get_mut(usize::from(holder)) {
                (c.held, c.seat) = (0, NOBODY);
            }
            self.dequeue(cpus, next);
            if let (Some(seat), Some(c)) = (self.seats.get_mut(turn), self.claims.get_mut(next)) {
                *seat = next as u16;
                (c.held, c.used, c.seat) = (0, 0, turn as u16);
            }
        }
    }

    /// Whether a seat can be given to another CPU.
    fn is_free(&self, holder: u16, time: u64, epoch_of: impl Fn(usize) -> u32) -> bool {
        let holder = usize::from(holder);
        match self.claims.get(holder) {
            Some(c) => c.used >= self.term || self.is_over(holder, time, epoch_of),
            None => true,
        }
    }

    fn enqueue(&mut self, cpus: usize, cpu: usize) {
        let at = self.queue.wrapping_add(self.waiting);
        let at = at.checked_rem(cpus).unwrap_or(0);
        if let Some(place) = self.seats.get_mut(cpus.wrapping_add(at)) {
            *place = cpu as u16;
            self.waiting = self.waiting.wrapping_add(1);
        }
    }

    /// The CPU that has waited longest.
    fn front(&self, cpus: usize) -> Option<usize> {
        let place = self.seats.get(cpus.wrapping_add(self.queue))?;
        (self.waiting != 0).then_some(usize::from(*place))
    }

    /// Takes it out of the queue.
    fn dequeue(&mut self, cpus: usize, front: usize) {
        let after = self.queue.wrapping_add(1);
        self.queue = after.checked_rem(cpus).unwrap_or(0);
        self.waiting = self.waiting.saturating_sub(1);
        if let Some(c) = self.claims.get_mut(front) {
            c.waits = false;
        }
    }

    /// The place in `firsts` of a CPU's `nth` admission.
    fn place(&mut self, cpu: usize, nth: u32) -> Option<&mut u64> {
        let at = nth.checked_rem(self.first)? as usize;
        let start = cpu.checked_mul(self.first as usize)?;
        self.firsts.get_mut(start.checked_add(at)?)
    }

    /// Whether less than one part in `share` of the reserve is taken. The reserve are the slots
    /// beyond those of the set, which take records that find no room.
    pub fn has_spare(&self, share: u64) -> bool {
        let beyond = (self.slots.len() as u64).saturating_sub(self.n);
        let kept = self.head.wrapping_sub(self.retired).saturating_sub(self.n);
        kept < beyond / share.max(1)
    }

    fn has_room(&self) -> bool {
        self.head.wrapping_sub(self.retired) < self.slots.len() as u64
    }

    /// Takes a number for an admission of `by`. `seq` is called for
    /// each record that this begins, `epoch_of` for the epochs of other CPUs. Neither victim
    /// is changed by this; the caller does it with [`Evms::evict`] and [`Evms::sweep`].
    #[inline(always)]
    pub fn reserve(
        &mut self,
        by: Caller,
        epoch_of: impl Fn(usize) -> u32,
        mut seq: impl FnMut() -> u64,
    ) -> Reserve {
        let Caller { cpu, time, .. } = by;
        let all = self.nr_seats == 0;
        if !all {
            self.seat(cpu, by.epoch, time, &epoch_of);
        }
        let (first, expires) = (self.first, self.expires);
        let Some(claim) = self.claims.get_mut(cpu) else {
            return Reserve::Full;
        };
        claim.attend(by, expires);
        // This admission counts already: what it puts out of the first segment has no
        // claim to stay.
        let before = (claim.count, claim.held, claim.used);
        let count = claim.count.wrapping_add(1);
        claim.count = count;
        if all {
            claim.held = claim.held.wrapping_add(1).min(first);
        } else if claim.seat != NOBODY {
            claim.held = claim.held.wrapping_add(1).min(first);
            claim.used = claim.used.saturating_add(1);
        }
        // Each round renews a page that then is among the last `n` admissions.
        // Fewer than `n` can be.
        let victim = loop {
            if !self.has_room() {
                self.withdraw(cpu, before);
                return Reserve::Full;
            }
            let Some(tail) = self.head.checked_sub(self.n) else {
                break None;
            };
            let Some(s) = self.slot(tail) else {
                break None;
            };
            match s.state {
                State::Live if self.is_first(s, time, &epoch_of) => {
                    self.renew(tail, WHY_RENEWED, Bits::default(), time, seq());
                }
                State::Live if self.clock => {
                    let hand = self.victim(tail, s);
                    self.withdraw(cpu, before);
                    return Reserve::Hand(hand);
                }
                State::Live => break Some(self.victim(tail, s)),
                // Another CPU is between reserving and enabling it.
                State::Reserved => {
                    self.withdraw(cpu, before);
                    return Reserve::Full;
                }
                State::Closed | State::Aborted => break None,
            }
        };

        let ordinal = self.head;
        self.head = ordinal.wrapping_add(1);
        let i = self.index(ordinal) as usize;
        if let Some(s) = self.slots.get_mut(i) {
            // The rest is set when the page becomes a member.
            s.seq = seq();
            s.time = time;
            s.nth = count;
            s.cpu = cpu as u16;
            s.state = State::Reserved;
        }
        let passed = if self.again {
            self.pass(cpu, count, ordinal, victim.map(|v| v.ordinal))
        } else {
            None
        };
        Reserve::Go {
            ordinal,
            victim,
            passed,
        }
    }

    /// Takes back the count of an admission that is not made.
    fn withdraw(&mut self, cpu: usize, before: (u32, u32, u32)) {
        if let Some(c) = self.claims.get_mut(cpu) {
            (c.count, c.held, c.used) = before;
        }
    }

    /// The page that comes into the second segment as `ordinal` takes its place in
    /// the first one.
    #[inline(never)]
    fn pass(
        &mut self,
        cpu: usize,
        count: u32,
        ordinal: u64,
        victim: Option<u64>,
    ) -> Option<Victim> {
        let place = self.place(cpu, count)?;
        let before = core::mem::replace(place, ordinal.wrapping_add(1));
        let passed = before.checked_sub(1)?;
        let s = self.slot(passed)?;
        (s.state == State::Live && victim != Some(passed)).then(|| self.victim(passed, s))
    }

    /// Gives the member `from` the number of a new admission, and ends the record
    /// of its stay so far. There is room.
    #[cold]
    fn renew(&mut self, from: u64, why: u32, bits: Bits, time: u64, seq: u64) {
        let Some(&old) = self.slot(from) else {
            return;
        };
        let to = self.head;
        self.head = to.wrapping_add(1);
        let j = self.index(to);
        // The page goes on being a member, so nobody else can admit it.
        self.end(from, bits, why, time, to);

        let flags = if why == WHY_CHANCE {
            SEEN | (old.page & BY_KERNEL)
        } else {
            (old.page & (KIND | BY_KERNEL | DIRTIED)) | CONT
        };
        if let Some(s) = self.slots.get_mut(j as usize) {
            *s = old;
            s.seq = seq;
            s.time = time;
            s.page = (old.page & !FLAGS) | flags;
            s.marks.set_if(bits.dirty, Marks::WAS_DIRTY);
            s.marks.clear(Marks::REFERENCED);
            s.marks
                .set_if(why == WHY_CHANCE && bits.young, Marks::HIDDEN);
        }
        self.words.set(old.entry, to << 1 | MEMBER);
        self.live = self.live.wrapping_add(1);
        if why == WHY_CHANCE {
            self.chances = self.chances.wrapping_add(1);
            return;
        }
        self.renewed = self.renewed.wrapping_add(1);
        if self.again {
            if let Some(place) = self.place(usize::from(old.cpu), old.nth) {
                *place = to.wrapping_add(1);
            }
        }
    }

    /// What the clock's hand does to the page that [`Reserve::Hand`] named, under
    /// its page table lock. `look` is called at most once, if it is a member that
    /// may get a second chance: it clears the accessed bit and gives the bits
    /// there were. If the answer is [`Hand::Evicted`], `disable` was called as
    /// [`Evms::evict`] does. Without `may`, nothing gets a second chance.
    pub fn hand(
        &mut self,
        ordinal: u64,
        may: bool,
        now: u64,
        seq: impl FnOnce() -> u64,
        look: impl FnOnce() -> Bits,
        disable: impl FnOnce(bool) -> Bits,
    ) -> Hand {
        let Some(&s) = self.slot(ordinal) else {
            return Hand::Gone;
        };
        if s.state != State::Live {
            return Hand::Gone;
        }
        if may && s.marks.has(Marks::SWEPT) {
            if !self.has_room() {
                return Hand::Full;
            }
            let bits = look();
            if bits.young || s.marks.has(Marks::REFERENCED) {
                self.renew(ordinal, WHY_CHANCE, bits, now, seq());
                return Hand::Chance;
            }
        }
        let bits = disable(s.marks.has(Marks::HIDDEN));
        self.end(ordinal, bits, 0, now, self.head);
        Hand::Evicted
    }

    /// Clears the accessed bit of a page that came into the second segment, under
    /// its page table lock: `clear` does that if the page is still a member, and
    /// returns whether the bit was set. True if the page is a member. Then a flush
    /// is due even if the bit was clear: another user may have cleared it without a
    /// flush, and the TLB entry would hide the next references.
    pub fn sweep(&mut self, ordinal: u64, clear: impl FnOnce() -> bool) -> bool {
        match self.slot_mut(ordinal) {
            Some(s) if s.state == State::Live => {
                s.marks.set_if(true, Marks::SWEPT);
                s.marks.clear(Marks::REFERENCED);
                s.marks.set_if(clear(), Marks::HIDDEN);
                true
            }
            _ => false,
        }
    }

    /// Notes that another user cleared the accessed bit of a page, which was
    /// `young`, under its page table lock. Returns the value that the other
    /// user is to see.
    pub fn aged(&mut self, page: Page, young: bool) -> bool {
        let i = self.find(page);
        match i.and_then(|i| self.slots.get_mut(i as usize)) {
            Some(s) => {
                s.marks.set_if(young, Marks::REFERENCED);
                let hidden = s.marks.has(Marks::HIDDEN);
                s.marks.clear(Marks::HIDDEN);
                young | hidden
            }
            None => young,
        }
    }

    /// Whether this set has cleared a page's accessed bit, so that it counts as set
    /// for others.
    pub fn hidden(&self, page: Page) -> bool {
        self.again
            && self
                .find(page)
                .and_then(|i| self.slots.get(i as usize))
                .is_some_and(|s| s.marks.has(Marks::HIDDEN))
    }

    /// Ends the stay of a victim of [`Evms::reserve`], under its page table lock.
    /// If the page is still a member, `disable` is called once: it disables the
    /// PTE and returns its last bits; its argument says whether to set the
    /// accessed bit, which this set cleared. Otherwise the stay has ended
    /// meanwhile: then the PTE, whatever it is, must be left alone, and the
    /// answer is false.
    ///
    /// `end` is the number of the admission that takes its place, or [`END_NOW`]. An admission
    /// of the page with a smaller number is given up: its CPU found the page disabled and took
    /// the number, and was then so slow that the page was admitted by another CPU, and went.
    pub fn evict(
        &mut self,
        ordinal: u64,
        why: u32,
        now: u64,
        end: u64,
        disable: impl FnOnce(bool) -> Bits,
    ) -> bool {
        match self.slot(ordinal) {
            Some(s) if s.state == State::Live => {
                let bits = disable(s.marks.has(Marks::HIDDEN));
                self.end(ordinal, bits, why, now, end.min(self.head));
                true
            }
            _ => false,
        }
    }

    /// Ends the stay of a victim as [`Evms::evict`] does, and the stays of its batch. The batch
    /// consists of members among the [`Evms::batch`] numbers from the victim's on that are before
    /// `end`. They are in the victim's page table, whose lock is held, or in one of the first others of
    /// its address space that `lock` could lock, [`TABLES`] in all. They are in no
    /// first segment at the time `now`, and not among the last ones that make the smallest set. `lock`
    /// gets the owner and the handle of an entry. `disable` gets the page's address; its first call is
    /// for the victim. If the victim's stay had ended, nothing is done. With [`END_NOW`], the victim has
    /// no batch, for it makes room for nothing.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub fn evict_batch(
        &mut self,
        ordinal: u64,
        why: u32,
        now: u64,
        end: u64,
        epoch_of: impl Fn(usize) -> u32,
        mut lock: impl FnMut(usize, usize) -> bool,
        mut disable: impl FnMut(u64, bool) -> Bits,
    ) -> bool {
        let to = match end {
            END_NOW => ordinal.wrapping_add(1),
            _ => self.batch_end(ordinal, end),
        };
        let end = end.min(self.head);
        let Some(victim) = self.slot(ordinal).filter(|s| s.state == State::Live) else {
            return false;
        };
        let mut joined = Joined::new(victim.owner, victim.entry);
        let (mut o, mut gone) = (ordinal, 0u64);
        while o < to {
            let i = self.index(o);
            let Some(s) = self.slots.get(i as usize) else {
                break;
            };
            let goes = s.state == State::Live
                && (o == ordinal
                    || joined.has(s.entry, &mut lock) && !self.is_first(s, now, &epoch_of));
            if goes {
                let bits = disable(s.page & !FLAGS, s.marks.has(Marks::HIDDEN));
                self.end_uncounted(o, bits, why, now, end);
                gone = gone.wrapping_add(1);
            }
            o = o.wrapping_add(1);
        }
        self.live = self.live.wrapping_sub(gone);
        true
    }

    /// Where the batch of a victim ends that makes room for the number `end`.
    #[inline(always)]
    fn batch_end(&self, ordinal: u64, end: u64) -> u64 {
        let next = ordinal.wrapping_add(1);
        if self.batch == 1 {
            return next;
        }
        // The set may have grown since `end` was taken: the last ones before it stay all the same.
        let least = least(self.first as usize, self.claims.len()) as u64;
        let most = end.saturating_sub(least.saturating_sub(1));
        ordinal.saturating_add(self.batch()).min(most).max(next)
    }

    /// Ends the stay of a member at the number `end`.
    #[inline(always)]
    fn end(&mut self, ordinal: u64, bits: Bits, why: u32, now: u64, end: u64) {
        self.end_uncounted(ordinal, bits, why, now, end);
        self.live = self.live.wrapping_sub(1);
    }

    /// The same, but the caller takes it off [`Evms::live`]. Inlined, for eviction.
    #[inline(always)]
    fn end_uncounted(&mut self, ordinal: u64, bits: Bits, why: u32, now: u64, end: u64) {
        let i = self.index(ordinal);
        let Some(s) = self.slots.get_mut(i as usize) else {
            return;
        };
        let dirtied = bits.dirty && !s.marks.has(Marks::WAS_DIRTY);
        let again = s.marks.has(Marks::SWEPT) && (bits.young || s.marks.has(Marks::REFERENCED));
        s.page |= u64::from(why) << WHY_SHIFT
            | if dirtied { DIRTIED } else { 0 }
            | if again { AGAIN } else { 0 };
        let stay = now.saturating_sub(s.time) >> STAY_SHIFT;
        s.stay = u32::try_from(stay).unwrap_or(u32::MAX);
        s.state = State::Closed;
        self.words.set(s.entry, end << 1);
    }

    /// Makes the page of a reserved admission a member; the caller enables its
    /// PTE under the same page table lock. Returns the sequence number of its record.
    ///
    /// `None` if a stay of the page ended at a greater number, if the page was dropped after
    /// this number was given out, or if the set is shut. Then the admission is to be given up, and
    /// the access faults again. The caller ensures that the page has the same PTE as before the
    /// reservation.
    #[inline(always)]
    pub fn admit(&mut self, ordinal: u64, a: &Admission) -> Option<u64> {
        if self.is_overtaken(a.entry, ordinal) {
            return None;
        }
        self.admit_last(ordinal, a)
    }

    /// [`Evms::admit`] for the number that was given out last, under the same hold of the lock: no
    /// stay can have ended at a greater one, and the set is not shut.
    #[inline(always)]
    pub fn admit_last(&mut self, ordinal: u64, a: &Admission) -> Option<u64> {
        let word = self.words.get(a.entry);
        if word & MEMBER != 0 {
            self.miss(word >> 1, ordinal);
        }
        let i = self.index(ordinal);
        // What is reserved has not been retired.
        let s = self.slots.get_mut(i as usize)?;
        if s.state != State::Reserved {
            return None;
        }
        s.vtime = a.vtime;
        s.owner = a.owner;
        s.entry = a.entry;
        s.page = a.page;
        s.address = a.address;
        s.mm = a.mm;
        s.tid_cpu = a.tid_cpu;
        s.pfn = a.pfn;
        s.marks = Marks::NONE;
        s.marks.set_if(a.was_dirty, Marks::WAS_DIRTY);
        s.state = State::Live;
        let seq = s.seq;
        self.words.set(a.entry, ordinal << 1 | MEMBER);
        self.live = self.live.wrapping_add(1);
        if self.live > self.live_max {
            self.live_max = self.live;
        }
        Some(seq)
    }

    /// Ends the stay of a member whose page is admitted again, as `next`: what ended the stay was
    /// missed.
    #[cold]
    fn miss(&mut self, ordinal: u64, next: u64) {
        let now = self.slot(next).map_or(0, |s| s.time);
        let s = self.slot(ordinal);
        if s.is_some_and(|s| s.state == State::Live) {
            self.end(ordinal, Bits::default(), WHY_OTHER, now, self.head);
            self.missed = self.missed.wrapping_add(1);
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
    pub fn close(&mut self, page: Page, bits: Bits, why: u32, now: u64) -> bool {
        let found = self.find(page).is_some();
        if found {
            let ordinal = self.words.get(page.entry) >> 1;
            self.end(ordinal, bits, why, now, self.head);
        }
        found
    }

    /// Notes that a page that is no member was dropped, under its page table lock. A new page
    /// at its place may get an equal PTE, and is not the page that an admission with an
    /// earlier number means.
    pub fn overtake(&mut self, entry: usize) {
        let (before, word) = (self.words.get(entry), self.head << 1);
        if before & MEMBER == 0 && before < word {
            self.words.set(entry, word);
        }
    }

    /// Notes that an event has its number about pages that were dropped before it. An
    /// admission that saw such a page, and has a number before the event, means the page
    /// that was dropped: it must not take a new page with an equal PTE for it. Which page
    /// it saw is not known, so all that have a number are given up.
    pub fn overtake_all(&mut self) {
        self.all_from = self.head.max(self.all_from);
    }

    /// Notes a store to a member that its dirty bit can't show. False if it is
    /// no member.
    pub fn dirtied(&mut self, page: Page) -> bool {
        let i = self.find(page);
        match i.and_then(|i| self.slots.get_mut(i as usize)) {
            Some(s) => {
                s.page |= DIRTIED;
                true
            }
            None => false,
        }
    }

    /// True if the page is a member.
    pub fn contains(&self, page: Page) -> bool {
        self.find(page).is_some()
    }

    /// The member with this number, if there is one: its address space's number, its
    /// page frame, and itself.
    pub fn member(&self, ordinal: u64) -> Option<(u32, u32, Victim)> {
        match self.slot(ordinal) {
            Some(s) if s.state == State::Live => Some((s.mm, s.pfn, self.victim(ordinal, s))),
            _ => None,
        }
    }

    /// The page frame that a member was admitted with.
    pub fn frame(&self, page: Page) -> Option<u32> {
        let i = self.find(page)?;
        self.slots.get(i as usize).map(|s| s.pfn)
    }

    /// Looks for a member among the numbers from `from` to before `end`, of address
    /// space `mm` unless that is 0, but at no more than `most` of them. Gives the
    /// number to go on with.
    pub fn seek(&self, from: u64, end: u64, mm: u32, most: u64) -> (u64, Option<Victim>) {
        let mut o = from.max(self.retired);
        let end = end.min(self.head).min(o.saturating_add(most));
        while o < end {
            if let Some((id, _, v)) = self.member(o) {
                if mm == 0 || id == mm {
                    return (o.wrapping_add(1), Some(v));
                }
            }
            o = o.wrapping_add(1);
        }
        (o, None)
    }

    /// Goes through the whole set, and compares what it counts with what it has
    /// counted.
    pub fn figures(&self, epoch_of: impl Fn(usize) -> u32) -> Figures {
        let mut f = Figures::default();
        let begin = self.head.saturating_sub(self.n);
        // Members that are not among the last `n` admissions: victims.
        let mut late = 0u64;
        let mut o = self.retired;
        while o < self.head {
            let (i, at) = (self.index(o), o);
            o = o.wrapping_add(1);
            let Some(s) = self.slots.get(i as usize) else {
                f.wrong = f.wrong.wrapping_add(1);
                continue;
            };
            if s.state == State::Reserved {
                f.reserved = f.reserved.wrapping_add(1);
            }
            if s.state != State::Live {
                continue;
            }
            f.live = f.live.wrapping_add(1);
            late = late.wrapping_add(u64::from(at < begin));
            // A page is a member once, and its entry says so.
            if self.words.get(s.entry) != at << 1 | MEMBER {
                f.wrong = f.wrong.wrapping_add(1);
            }
            // Whatever the time is: each CPU has just asked.
            if self.is_first(s, 0, &epoch_of) {
                f.first = f.first.wrapping_add(1);
                if self.again && self.first_at(s) != at.wrapping_add(1) {
                    f.wrong = f.wrong.wrapping_add(1);
                }
            }
        }
        let holders = match self.nr_seats {
            0 => self.claims.len(),
            seats => seats,
        };
        // Each admission that is under way has one victim at most.
        let all = [
            self.retired <= self.head,
            self.head.wrapping_sub(self.retired) <= self.slots.len() as u64,
            f.live == self.live,
            f.live <= self.n,
            self.live_max >= self.live,
            late <= f.reserved,
            f.first <= u64::from(self.first).wrapping_mul(holders as u64),
            self.are_seated(),
        ];
        let wrong = all.iter().filter(|right| !**right).count() as u64;
        f.wrong = f.wrong.wrapping_add(wrong);
        f
    }

    /// Whether each holder of a seat has one, and nobody else holds pages; and whether the
    /// queue has those who wait.
    fn are_seated(&self) -> bool {
        let (seated, waiting) = self.claims.iter().fold((0usize, 0usize), |(s, w), c| {
            (
                s.wrapping_add(usize::from(c.seat != NOBODY)),
                w.wrapping_add(usize::from(c.waits)),
            )
        });
        let taken = self.seats.iter().take(self.nr_seats).enumerate();
        let mut right = 0usize;
        for (at, holder) in taken {
            if let Some(c) = self.claims.get(usize::from(*holder)) {
                if usize::from(c.seat) != at || c.waits {
                    return false;
                }
                right = right.wrapping_add(1);
            }
        }
        let idle = |c: &Claim| c.seat != NOBODY || c.held == 0;
        seated == right
            && waiting == self.waiting
            && (self.nr_seats == 0 || self.claims.iter().all(idle))
    }

    /// What `firsts` has in the place of a member of a first segment.
    fn first_at(&self, s: &Slot) -> u64 {
        let at = |nth: u32| {
            let start = usize::from(s.cpu).checked_mul(self.first as usize)?;
            start.checked_add(nth.checked_rem(self.first)? as usize)
        };
        at(s.nth)
            .and_then(|at| self.firsts.get(at))
            .copied()
            .unwrap_or(0)
    }

    /// Makes the set larger. False if there is no memory for that.
    pub fn grow(&mut self, n: u64) -> bool {
        if n < self.n || n > self.size_max() {
            return false;
        }
        self.n = n;
        self.seat_all(n);
        true
    }

    /// Makes the set smaller, in steps: the answer is a page to be disabled with
    /// [`Evms::evict`] before the next call.
    pub fn shrink(
        &mut self,
        n: u64,
        time: u64,
        epoch_of: impl Fn(usize) -> u32,
        mut seq: impl FnMut() -> u64,
    ) -> Shrink {
        let least = least(self.first as usize, self.claims.len());
        if n > self.n || n < least as u64 {
            return Shrink::Refused;
        }
        // Before it is that small: what is in first segments stays.
        self.seat_all(n);
        let mut steps = 0u32;
        while self.n > n {
            // The caller holds a lock that others wait for.
            if steps == SHRINK_STEP {
                return Shrink::More;
            }
            steps = steps.wrapping_add(1);
            let given = self.head.saturating_sub(self.start);
            if given < self.n {
                // Fewer admissions than the size was for.
                self.n = given.max(n);
                continue;
            }
            let o = self.head.wrapping_sub(self.n);
            match self.slot(o) {
                Some(s) if s.state == State::Live && self.is_first(s, 0, &epoch_of) => {
                    if !self.has_room() {
                        return Shrink::Wait;
                    }
                    self.renew(o, WHY_RENEWED, Bits::default(), time, seq());
                }
                Some(s) if s.state == State::Live => return Shrink::Evict(self.victim(o, s)),
                Some(s) if s.state == State::Reserved => return Shrink::Wait,
                _ => self.n = self.n.wrapping_sub(1),
            }
        }
        Shrink::Done
    }

    /// True if it pays to call [`Evms::retire`]: every so many admissions, for
    /// one long call is cheaper than many short ones, and when room runs out.
    #[inline]
    pub fn retire_due(&self) -> bool {
        self.head & (RETIRE_EVERY - 1) == 0 || !self.has_room()
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
