// SPDX-License-Identifier: GPL-2.0

//! The evicted virtual mapping set (EVMS), as pure logic, without a lock that all CPUs share.
//!
//! The set is the last `n` admissions. Admissions are numbered. A page whose stay ends early keeps
//! its place in the set.
//!
//! It has two segments. The last `first` admissions of each CPU are its *first
//! segment*: the pages that one instruction needs, which no other CPU can take
//! from it. All others are the *second segment*.
//!
//! A CPU has a first segment for as long as one instruction may still need it. The
//! *epoch* of a CPU changes when it switches to another task, the idle one included, and
//! so does what it runs; and no instruction takes [`CLAIM_NS`] for one fault. After
//! either, the CPU's first segment is empty, and what it admits from then on makes a new
//! one.
//!
//! First segments of all CPUs must leave room for the second one. In a set that is too
//! small for that, only some CPUs have a first segment at a time: those with a *seat*. A
//! seat whose holder's first segment is over, or that has served for some instructions,
//! goes to the CPU that has waited longest.
//!
//! When its turn to go comes, a page
//!
//! - of a first segment, whose CPU admits less than others do, is *renewed*: it
//!   gets the number of a new admission, and a record says how far its stay
//!   has come;
//! - of the second segment is evicted, or if [`Shape::clock`] is set and it was
//!   referenced since it came into the second segment or since the hand of the
//!   clock came by, gets a *second chance*: it is renewed too, and the new
//!   record is that of a reference.
//!
//! So order is never restored over more than `n` admissions, and CLOCK is the
//! same FIFO with reinsertion.
//!
//! An eviction may take some of the pages that come next with it, its *batch*: those of the same
//! address space that are in no first segment, and in no more than [`TABLES`](crate::stay::TABLES)
//! page tables whose locks are free. One flush covers all of them. A
//! later admission that would have evicted one of them finds that its stay has ended. So a set
//! with batches of `k` has from `n - k + 1` to `n` pages.
//!
//! Each entry of a page table has a *word* of 64 bits beside it, which says whether its page is a
//! member, and from which number on it may become one: see [`Words`].
//!
//! # Tickets
//!
//! A *ticket* is the number of an admission and its sequence number, from one counter:
//! [`Counter`]. Number `o` lives in slot `o % capacity`, and two CPUs have to do with it:
//!
//! - the one that got ticket `o` fills the slot;
//! - the one that gets ticket `o + n` ends the stay if it has not ended, writes the record, and
//!   frees the slot.
//!
//! A CPU that evicts a batch also writes the records of those of its pages whose numbers follow each
//! other, so the CPUs with later tickets find nothing to do. Each record is written once, and
//! neither CPU has to wait for the other one: if the second CPU comes first, the admission `o` is
//! given up. It is also given up if its slot is not free yet. Then its page stays disabled, and the
//! access faults again.
//!
//! ```text
//!           the one with ticket o                  the one with ticket o + n
//!
//!   Done --------> Reserved --------> Live ---------> Closed ---------> Done
//!     |  \             \                  whoever clears the PTE
//!     |   \             Overdue: given up; the first one frees the slot
//!     |    the slot has an older admission: given up
//!     `late`: the other one was here before: given up
//! ```
//!
//! What a slot holds belongs to the CPU with ticket `o` until it is live, then to whoever has the
//! lock of the page's page table, then to the CPU with ticket `o + n`. The handle of the entry is
//! an exception: it names the lock, so it is read before the lock is held.
//!
//! Words are read and written with the page table's lock held.
//!
//! # Several sets
//!
//! Sets may share a counter ([`Set::count_apart`]): each one has ordinals of its own then, and the
//! numbers of records are one sequence. A ticket has three numbers: that of its record, its *clock*,
//! which is that of the admission among those of all sets, and its ordinal, which is that among those
//! of its set. The orders of all three agree. With one set, the ordinal is the clock. What words
//! remember of stays that ended are clocks, because words outlive sets, and address spaces may come
//! to another set.
//!
//! A caller keeps preemption disabled from [`Set::take`] until its ticket is done. Who has called
//! [`Set::pause`] waits until all CPUs have enabled it once: then no ticket is on the way.

use crate::{
    stay::{
        batch_max, least, seats_for, Admission, Bits, Caller, Joined, Marks, Page, Shape, Slot,
        AGAIN, BY_KERNEL, CLAIM_NS, CONT, DIRTIED, FLAGS, FOREIGN, KIND, LEFT, LOOK, MEMBER, SEEN,
        STAY_SHIFT, TERM, WHY_CHANCE, WHY_OTHER, WHY_RENEWED, WHY_SHIFT,
    },
    Store,
};
use core::ops::{Deref, DerefMut};

/// A number of 64 bits that several CPUs change.
pub trait Atom {
    /// What it is. Later accesses see what was stored before it was set to that ("acquire").
    fn get(&self) -> u64;
    /// Sets it, after all accesses before ("release").
    fn put(&self, value: u64);
    /// Adds to it, and gives what it was. Ordered with all accesses before and after.
    fn add(&self, value: u64) -> u64;
    /// Sets it if it is `old`; otherwise gives what it is. Ordered like [`Atom::add`], if it is
    /// `old`.
    fn replace(&self, old: u64, new: u64) -> Result<(), u64>;

    /// Sets it to the greater of the two.
    fn raise(&self, value: u64) {
        let mut old = self.get();
        while old < value {
            match self.replace(old, value) {
                Ok(()) => return,
                Err(now) => old = now,
            }
        }
    }
}

/// A place whose owner the protocol of slots determines.
pub trait Place<T> {
    /// To read it.
    type Ref<'a>: Deref<Target = T>
    where
        Self: 'a;
    /// To change it.
    type Mut<'a>: DerefMut<Target = T>
    where
        Self: 'a;

    /// Reads it.
    ///
    /// # Safety
    ///
    /// Nobody changes it meanwhile.
    unsafe fn read(&self) -> Self::Ref<'_>;
    /// Changes it.
    ///
    /// # Safety
    ///
    /// Nobody else reads or changes it meanwhile.
    unsafe fn change(&self) -> Self::Mut<'_>;
}

/// What the kernel, or a model checker, has for these.
pub trait Primitives {
    /// See [`Atom`].
    type Atom: Atom;
    /// See [`Place`].
    type Place: Place<Slot>;
    /// Orders all accesses before with all accesses after (`smp_mb()`).
    fn barrier();
    /// Whether [`Set::end`] looks again at whether the stay has ended. Only a negative control does not.
    #[inline(always)]
    fn looks_again() -> bool {
        true
    }
}

/// The words of page table entries, each by its handle and under the lock of its page table. The
/// kernel's handle is the address of the word; see `vmtrace_entry()` in mm/vmtrace/pte.h. The words
/// of a page table are a page, so two handles that differ in the low twelve bits only are of the
/// same page table. The low three bits are for the caller, and not 0 for an entry that maps a huge
/// page.
///
/// A word is
///
/// - `ordinal << 1 | 1` for a member, which was admitted or last renewed with that number;
/// - otherwise `clock << 1`. The page's last stay ended at `clock`, or the page was dropped when
///   `clock` was the next to be given out. An admission with a smaller clock is given up.
///
/// With [`FOREIGN`] in it, it counts as 0.
///
/// The words of a new page table are 0. Handle 0 stands for an entry without a word. It reads as 0.
pub trait Words {
    /// The word of an entry.
    ///
    /// # Safety
    ///
    /// Its page table is locked, or the handle is 0.
    unsafe fn get(&self, entry: usize) -> u64;
    /// Changes it.
    ///
    /// # Safety
    ///
    /// As of [`Words::get`].
    unsafe fn set(&self, entry: usize, word: u64);
}

/// The number of an admission, and its place in the order of all records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Number {
    /// Among admissions.
    pub ordinal: u64,
    /// Among records.
    pub seq: u64,
}

/// Counts admissions and records, in one word: an admission is both, an event is a record.
///
/// The word is `records << 32` plus `admissions`, modulo 2^64. All 64 bits of both follow from it
/// and from what they were not long ago: the word has the low half of the admissions, and its high
/// half is the low half of the records plus the high half of the admissions.
#[repr(C)]
pub struct Counter<A> {
    word: A,
    /// Both, as they were at some time in the last 2^31 records.
    ordinals: A,
    seqs: A,
    /// Admissions with smaller clocks are given up. Each admission reads this, and hardly any changes
    /// it: so it is in another cache line than the number that all change.
    from: Apart<A>,
    skipped: Apart<A>,
    missed: A,
}

/// In a cache line that begins here.
#[repr(C, align(64))]
struct Apart<A>(A);

/// Numbers between two changes of what they were not long ago.
const NOTE: u64 = 1 << 20;

impl<A: Atom> Counter<A> {
    /// What is next is number `ordinal`; `seq` records were before. The six words are 0.
    pub fn new(words: [A; 6], next: Number) -> Self {
        let [word, ordinals, seqs, from, skipped, missed] = words;
        word.put((next.seq << 32).wrapping_add(next.ordinal));
        ordinals.put(next.ordinal);
        seqs.put(next.seq);
        from.put(next.ordinal);
        Self::zero(word, ordinals, seqs, from, skipped, missed)
    }

    /// The first number is 0, and so is that of the first record.
    pub const fn zero(word: A, ordinals: A, seqs: A, from: A, skipped: A, missed: A) -> Self {
        Counter {
            word,
            ordinals,
            seqs,
            from: Apart(from),
            skipped: Apart(skipped),
            missed,
        }
    }

    /// Numbers that a set with ordinals of its own took and gave to no ticket, since the start.
    pub fn skipped(&self) -> u64 {
        self.skipped.0.get()
    }

    /// Stays that ended unnoticed, and were found when the page was admitted again, since the start.
    pub fn missed(&self) -> u64 {
        self.missed.get()
    }

    /// Admissions are made again that have a number from the next one on. None is on the way.
    pub fn open(&self) {
        self.from.0.put(self.next().ordinal);
    }

    /// Notes that an event has its number about pages that were dropped before it. An admission that
    /// saw such a page, and has a number before the event, means the page that was dropped: it must
    /// not take a new page with an equal PTE for it. Which page it saw is not known, so all that have
    /// a number are given up.
    pub fn overtake_all<P: Primitives>(&self) {
        self.from.0.raise(self.next_after_change::<P>());
    }

    /// A trace starts: begins records with number `seq` again. Nobody takes a number meanwhile.
    pub fn restart(&self, seq: u64) {
        let ordinal = self.next().ordinal;
        self.word.put((seq << 32).wrapping_add(ordinal));
        self.seqs.put(seq);
        self.skipped.0.put(0);
        self.missed.put(0);
    }

    /// Takes the numbers of an admission.
    #[inline(always)]
    pub fn admission(&self) -> Number {
        self.numbers(self.word.add(1 << 32 | 1))
    }

    /// The same, if they are these. Nobody has taken them then.
    fn admission_if(&self, next: Number) -> bool {
        let word = (next.seq << 32).wrapping_add(next.ordinal);
        let after = word.wrapping_add(1 << 32 | 1);
        let taken = self.word.replace(word, after).is_ok();
        if taken {
            self.note(next);
        }
        taken
    }

    /// Takes the number of an event.
    #[inline(always)]
    pub fn event(&self) -> u64 {
        self.numbers(self.word.add(1 << 32)).seq
    }

    /// What would be taken next.
    pub fn next(&self) -> Number {
        self.numbers(self.word.get())
    }

    /// The next ordinal, after a page table entry was changed. Whoever takes it, or a greater one,
    /// and then reads the entry without its lock, finds it changed.
    fn next_after_change<P: Primitives>(&self) -> u64 {
        P::barrier();
        self.next().ordinal
    }

    #[inline(always)]
    fn note(&self, n: Number) {
        if n.ordinal & (NOTE - 1) == 0 || n.seq & (NOTE - 1) == 0 {
            self.ordinals.raise(n.ordinal);
            self.seqs.raise(n.seq);
        }
    }

    #[inline(always)]
    fn numbers(&self, word: u64) -> Number {
        let ordinal = extend(word as u32, self.ordinals.get());
        let high = (word >> 32) as u32;
        let seq = extend(high.wrapping_sub((ordinal >> 32) as u32), self.seqs.get());
        let number = Number { ordinal, seq };
        self.note(number);
        number
    }
}

/// The number with these low bits that is nearest to `near`.
fn extend(low: u32, near: u64) -> u64 {
    let ahead = low.wrapping_sub(near as u32) as i32;
    near.wrapping_add_signed(i64::from(ahead))
}

/// What a slot is, in the low bits of [`Cell::turn`].
mod turn {
    /// Free. The CPU with the number's ticket has done what it had to do.
    pub(super) const DONE: u64 = 0;
    pub(super) const RESERVED: u64 = 1;
    pub(super) const LIVE: u64 = 2;
    pub(super) const CLOSED: u64 = 3;
    pub(super) const OVERDUE: u64 = 4;
    const BITS: u32 = 3;

    /// A state, and of which number; numbers begin at 1 here.
    pub(super) fn new(ordinal: u64, state: u64) -> u64 {
        ordinal.wrapping_add(1) << BITS | state
    }

    pub(super) fn state(turn: u64) -> u64 {
        turn & ((1 << BITS) - 1)
    }

    /// Whether the slot is free for a number.
    pub(super) fn is_free(turn: u64, ordinal: u64) -> bool {
        state(turn) == DONE && is_before(turn, ordinal)
    }

    pub(super) fn ordinal(turn: u64) -> u64 {
        (turn >> BITS).wrapping_sub(1)
    }

    pub(super) fn is_of(turn: u64, ordinal: u64) -> bool {
        turn >> BITS == ordinal.wrapping_add(1)
    }

    pub(super) fn is_before(turn: u64, ordinal: u64) -> bool {
        turn >> BITS <= ordinal
    }
}

/// A slot, in cache lines of its own. It lies in memory like this for whoever looks at the set from
/// outside: `struct vmtrace_view`.
#[repr(C, align(128))]
pub struct Cell<P: Primitives> {
    /// A number and what the slot is for it; 0 in a new set.
    pub turn: P::Atom,
    /// The greatest number, plus one, whose admission was given up because the CPU with the
    /// ticket that frees it came first.
    pub late: P::Atom,
    /// The handle of the entry. Changed only while the slot is reserved.
    pub entry: P::Atom,
    /// The admission and its record.
    pub place: P::Place,
}

/// What a CPU has to do with the set. Only the CPU itself changes it, except `seat`. It has a cache
/// line for itself, and lies in memory like this, as [`Cell`].
#[repr(C, align(64))]
pub struct Claim<P: Primitives> {
    /// Its admissions, modulo 2^32, in the high half. In the low one, how many of the last of
    /// these are its first segment.
    pub counts: P::Atom,
    /// Its epoch when it last asked for a number.
    pub epoch: P::Atom,
    /// The time of that.
    pub time: P::Atom,
    /// Admissions since it got its seat.
    pub used: P::Atom,
    /// The seat that it had last, plus one, and whether it is in the queue for one. Changed with
    /// the seats' lock.
    pub seat: P::Atom,
    /// How often it has waited for another CPU's admission, see [`PATIENCE`].
    pub waits: P::Atom,
}

/// In a set with few pages for its CPUs, a CPU takes no ticket that would put an admission out of
/// the set that is on the way. Its access faults again. It does so as many times, and then the
/// other CPU is slow. Without this, CPUs that go in step would give up each other's admissions for
/// ever.
pub const PATIENCE: u64 = 64;

/// Bits of [`Set::state`], which is 0 most of the time: no tickets are given; the set has ordinals of
/// its own.
const PAUSED: u64 = 1 << 0;
const APART: u64 = 1 << 1;

/// Bit of [`Claim::seat`]: it is in the queue for one.
const WAITS: u64 = 1 << 32;

/// The memory of a set. All numbers are 0.
pub struct Memory<P: Primitives> {
    /// A power of two, more than the set's size.
    pub cells: Store<Cell<P>>,
    /// Places of first segments, as of [`firsts_for`](crate::stay::firsts_for).
    pub firsts: Store<P::Atom>,
    /// One for each CPU.
    pub claims: Store<Claim<P>>,
    /// Two for each CPU.
    pub seats: Store<P::Atom>,
    /// For the set's own numbers.
    pub numbers: [P::Atom; NUMBERS],
}

/// Numbers that a set has besides.
pub const NUMBERS: usize = 6;

/// A set. See the module's text.
///
/// # Invariants
///
/// While an entry's page table is locked: the entry's word says that its page is a member if and
/// only if the slot of that number is live and has this entry. The word of a page that is no member
/// has the greatest clock at which a stay of it ended or it was dropped: for an eviction that of the
/// admission that it made room for, otherwise the next one. [`Counter::overtake_all`] is the same for
/// all pages. An admission whose clock is smaller than either is given up: its CPU was slow, and other
/// CPUs have admitted its page and ended that stay, or dropped the page. All these clocks are at
/// most the next one, so what takes its number later is not given up. Words outlive a set, so
/// the counter goes on in the next one.
///
/// Place `i` of `seats` has the CPU in seat `i`, plus one. The second half of `seats` is the queue.
///
/// `cells` has a power of two of slots, and `mask` is one less.
pub struct Set<P: Primitives, W> {
    words: W,
    cells: Store<Cell<P>>,
    mask: usize,
    firsts: Store<P::Atom>,
    claims: Store<Claim<P>>,
    seats: Store<P::Atom>,
    first: u32,
    clock: bool,
    again: bool,
    batch: u64,
    start: u64,
    /// First segments expire: a CPU that has the set for itself holds up nobody.
    expires: bool,
    /// Admissions after which a seat is given to another CPU.
    term: u64,
    /// Admissions come in any order: a negative control.
    disordered: bool,
    /// See [`PATIENCE`]; and the size below which it is asked for.
    patience: u64,
    crowded: u64,
    /// Ordinals are those of the counter: there is one set.
    alone: bool,
    /// Otherwise: the next ordinal.
    ordinals: Apart<P::Atom>,
    /// Pages that can be enabled at once, and seats in the high half. Changed only while no ticket
    /// is on the way.
    size: P::Atom,
    /// [`PAUSED`] and [`APART`]. Only who pauses the set changes it.
    state: P::Atom,
    /// The seats' lock: 1 while somebody has it. Nobody waits for it.
    seating: P::Atom,
    /// The seat that is looked at next.
    turn: P::Atom,
    /// The queue: its front in the high half, its length in the low one. Both with the lock.
    queue: P::Atom,
}

/// What a set is made of: slots, claims and seats.
pub type Parts<'a, P> = (&'a [Cell<P>], &'a [Claim<P>], &'a [<P as Primitives>::Atom]);

/// A number, and what goes with it. C keeps it for Rust: `struct vmtrace_ticket`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Ticket {
    /// The number.
    pub number: Number,
    /// The time, read before the number was taken.
    pub time: u64,
    /// The number among the admissions of all sets.
    pub clock: u64,
    /// Of the CPU's admissions.
    nth: u32,
    cpu: u16,
}

impl Ticket {
    /// The CPU that has it.
    pub fn cpu(&self) -> usize {
        usize::from(self.cpu)
    }
}

/// The number that a ticket puts out of the set, and its slot.
pub struct Out<'a, P: Primitives> {
    ordinal: u64,
    cell: &'a Cell<P>,
}

/// What a ticket's CPU has to do first, about the admission that it puts out of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    Nothing,
    /// Write its record: [`Set::write`].
    Record,
    /// Lock the page table of this entry, and call [`Set::end`].
    Member(usize),
    /// The CPU with ticket `o + n` has found that the one with ticket `o` is slow, so slow that it
    /// may not have ended the stay of `o - n`. That is a member of this number and entry. Lock the
    /// page table, call [`Set::end_at`], and ask again.
    Slow(u64, usize),
}

/// The set's figures while no ticket is on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Members.
    pub live: u64,
    /// Numbers that first segments have.
    pub first: u64,
    /// Admissions that are on the way nevertheless.
    pub reserved: u64,
    /// Tickets taken by all CPUs, modulo 2^32.
    pub tickets: u32,
    /// What contradicts [`Set`]'s invariants; 0 if all is well.
    pub wrong: u64,
}

/// How a ticket's CPU ends stays.
#[derive(Clone, Copy, Debug)]
pub struct Way<E> {
    /// VMTRACE_WHY_*.
    pub why: u32,
    /// Now.
    pub now: u64,
    /// A page may get a second chance.
    pub may: bool,
    /// A page of a first segment is renewed.
    pub renews: bool,
    /// The epochs of CPUs.
    pub epoch_of: E,
}

/// Answer of [`Set::end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its stay had ended.
    Gone,
    /// Its stay has ended, and those of its batch: so many in all.
    Evicted(u64),
    /// It has the ticket's number now, for it is in a first segment. The access needs another
    /// number: [`Set::draw`].
    Renewed,
    /// The same, by a second chance.
    Chance,
}

impl<P: Primitives, W: Words> Set<P, W> {
    /// The slots, the CPUs' claims and the seats.
    pub fn parts(&self) -> Parts<'_, P> {
        (&self.cells, &self.claims, &self.seats)
    }

    /// CPUs that there are claims for.
    pub fn cpus(&self) -> usize {
        self.claims.len()
    }

    /// An empty set, whose first admission is number `start`. No word may say that its page is a
    /// member, or have a clock above the next one. `None` if the sizes do not fit.
    pub fn new(shape: &Shape, memory: Memory<P>, words: W, start: u64) -> Option<Self> {
        let Memory {
            cells,
            firsts,
            claims,
            seats,
            numbers: [size, state, seating, turn, queue, ordinals],
        } = memory;
        if !shape.fits(cells.len(), firsts.len(), claims.len(), seats.len()) {
            return None;
        }
        let set = Set {
            words,
            mask: cells.len().wrapping_sub(1),
            cells,
            firsts,
            claims,
            seats,
            first: shape.first as u32,
            clock: shape.clock,
            again: shape.again || shape.clock,
            batch: if shape.clock { 1 } else { shape.batch as u64 },
            start,
            expires: shape.cpus > 1,
            term: u64::from((shape.first as u32).saturating_mul(TERM)),
            disordered: false,
            patience: PATIENCE,
            crowded: (shape.cpus as u64).saturating_mul(2),
            alone: true,
            ordinals: Apart(ordinals),
            size,
            state,
            seating,
            turn,
            queue,
        };
        set.resize(shape.n as u64);
        Some(set)
    }

    /// From now on, the set has ordinals of its own, from `start` on: other sets use the same counter.
    pub fn count_apart(&mut self) {
        self.alone = false;
        self.state.put(APART);
        self.ordinals.0.put(self.start);
    }

    /// The next ordinal, if the set has ordinals of its own.
    pub fn own_ordinals(&self) -> Option<&P::Atom> {
        (!self.alone).then_some(&self.ordinals.0)
    }

    /// The next ordinal.
    pub fn next(&self, counter: &Counter<P::Atom>) -> u64 {
        match self.alone {
            true => counter.next().ordinal,
            false => self.ordinals.0.get(),
        }
    }

    /// From now on, admissions come in any order: a negative control.
    pub fn disorder(&mut self) {
        self.disordered = true;
    }

    /// From now on, first segments do not expire: a negative control.
    pub fn keep_firsts(&mut self) {
        self.expires = false;
    }

    /// From now on, seats are given up by idle CPUs only: a negative control.
    pub fn keep_seats(&mut self) {
        self.term = u64::MAX;
    }

    /// From now on, a CPU waits so many times for another CPU's admission, instead of [`PATIENCE`].
    pub fn set_patience(&mut self, times: u64) {
        self.patience = times;
        if times == 0 {
            self.crowded = 0;
        }
    }

    /// Pages that can be enabled at once.
    pub fn size(&self) -> u64 {
        self.size.get() & u64::from(u32::MAX)
    }

    fn nr_seats(&self) -> usize {
        (self.size.get() >> 32) as usize
    }

    /// Gives the set another size. If the number of seats changes, all first segments begin anew.
    /// What is beyond a smaller size has to be ended by the caller. No ticket is on the way.
    pub fn resize(&self, n: u64) {
        let seats = seats_for(n, self.first, self.claims.len());
        if seats != self.nr_seats() {
            self.turn.put(0);
            self.queue.put(0);
            for s in self.seats.iter() {
                s.put(0);
            }
            for c in self.claims.iter() {
                c.counts.put(c.counts.get() & !u64::from(u32::MAX));
                c.used.put(0);
                c.seat.put(0);
            }
        }
        self.size.put((seats as u64) << 32 | n);
    }

    /// Number of the first admission.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Whether all slots are free. No ticket is on the way.
    pub fn is_idle(&self) -> bool {
        let free = |c: &Cell<P>| turn::state(c.turn.get()) == turn::DONE;
        self.cells.iter().all(free)
    }

    /// Whether a size is possible.
    pub fn can_be(&self, n: u64) -> bool {
        n >= least(self.first as usize, self.claims.len()) as u64 && n < self.cells.len() as u64
    }

    /// No ticket is given from here on. Tickets may still be on the way.
    pub fn pause(&self) {
        self.state.put(self.state.get() | PAUSED);
    }

    /// Tickets are given again.
    pub fn go_on(&self) {
        self.state.put(self.state.get() & !PAUSED);
    }

    /// Whether accessed bits are looked at.
    pub fn looks(&self) -> bool {
        self.again
    }

    #[inline(always)]
    fn cell(&self, ordinal: u64) -> &Cell<P> {
        // SAFETY: `mask` is less than the number of slots, by the type's invariant.
        unsafe { self.cells.get_unchecked(ordinal as usize & self.mask) }
    }

    /// The slot of a member.
    #[inline(always)]
    fn live(&self, ordinal: u64) -> Option<&Cell<P>> {
        let cell = self.cell(ordinal);
        (cell.turn.get() == turn::new(ordinal, turn::LIVE)).then_some(cell)
    }

    /// The same if it is the member of this entry, whose page table is locked. A word that an earlier
    /// set has left may have the ordinal of another page of this set.
    fn live_at(&self, ordinal: u64, entry: usize) -> Option<&Cell<P>> {
        self.live(ordinal)
            .filter(|cell| cell.entry.get() as usize == entry)
    }

    /// Takes a ticket for an admission of `by`. `None` while the set is paused, or if another CPU is
    /// to come first: then the access faults again.
    #[inline(always)]
    pub fn take(
        &self,
        by: Caller,
        counter: &Counter<P::Atom>,
        epoch_of: impl Fn(usize) -> u32,
    ) -> Option<Ticket> {
        let claim = self.claims.get(by.cpu)?;
        let (number, clock) = match (self.state.get(), self.nr_seats()) {
            (0, 0) => {
                self.claim(claim, by, true);
                let number = counter.admission();
                (number, number.ordinal)
            }
            (state, seats) => self.take_otherwise(claim, by, state, seats, counter, epoch_of)?,
        };
        Some(Ticket {
            number,
            time: by.time,
            clock,
            // Nobody else changes it.
            nth: (claim.counts.get() >> 32) as u32,
            cpu: by.cpu as u16,
        })
    }

    /// The same in a set that is paused, has ordinals of its own, or has not a seat for each CPU.
    #[inline(never)]
    fn take_otherwise(
        &self,
        claim: &Claim<P>,
        by: Caller,
        state: u64,
        seats: usize,
        counter: &Counter<P::Atom>,
        epoch_of: impl Fn(usize) -> u32,
    ) -> Option<(Number, u64)> {
        if state & PAUSED != 0 {
            return None;
        }
        if seats != 0 {
            return self.take_seated(claim, by, seats, counter, epoch_of);
        }
        self.claim(claim, by, true);
        Some(self.number(counter))
    }

    /// The same where not all CPUs have a first segment.
    fn take_seated(
        &self,
        claim: &Claim<P>,
        by: Caller,
        seats: usize,
        counter: &Counter<P::Atom>,
        epoch_of: impl Fn(usize) -> u32,
    ) -> Option<(Number, u64)> {
        let number = match self.size() < self.crowded {
            true => Some(self.number_in_turn(claim, counter)?),
            false => None,
        };
        let mut seated = self.is_seated(by.cpu, claim);
        if !seated {
            claim.counts.put(claim.counts.get() & !u64::from(u32::MAX));
            claim.used.put(0);
            seated = self.seat(by, seats, &epoch_of);
        }
        self.claim(claim, by, seated);
        if seated {
            claim.used.put(claim.used.get().saturating_add(1));
        }
        Some(number.unwrap_or_else(|| self.number(counter)))
    }

    /// Counts an admission of a CPU. It counts before it has a number: what it puts out of the first
    /// segment has no claim to stay.
    #[inline(always)]
    fn claim(&self, claim: &Claim<P>, by: Caller, seated: bool) {
        let counts = claim.counts.get();
        let (count, mut held) = ((counts >> 32) as u32, counts as u32);
        if self.expires {
            let idle = by.time.saturating_sub(claim.time.get()) >= CLAIM_NS;
            if idle || claim.epoch.get() != u64::from(by.epoch) {
                held = 0;
            }
            claim.epoch.put(u64::from(by.epoch));
            claim.time.put(by.time);
        }
        if seated {
            held = held.wrapping_add(1).min(self.first);
        }
        let count = count.wrapping_add(1);
        claim.counts.put(u64::from(count) << 32 | u64::from(held));
    }

    /// Takes the numbers of an admission, and its clock.
    #[inline(always)]
    fn number(&self, counter: &Counter<P::Atom>) -> (Number, u64) {
        match self.alone {
            true => {
                let number = counter.admission();
                (number, number.ordinal)
            }
            false => self.number_apart(counter),
        }
    }

    /// The same in a set with ordinals of its own. Each turn of the loop means that another CPU has
    /// got a number of this set meanwhile.
    #[inline(never)]
    fn number_apart(&self, counter: &Counter<P::Atom>) -> (Number, u64) {
        loop {
            if let Some(taken) = self.number_if(self.ordinals.0.get(), counter) {
                return taken;
            }
        }
    }

    /// Takes the ordinal that was found to be the next one of this set, and a clock for it. `None` if
    /// another CPU was faster: then the clock is given up.
    ///
    /// Ordinals and clocks are in the same order. The one after this ordinal is found to be the next
    /// one only when this one is taken, with its clock; and its own clock is taken after that.
    fn number_if(&self, next: u64, counter: &Counter<P::Atom>) -> Option<(Number, u64)> {
        let Number {
            ordinal: clock,
            seq,
        } = counter.admission();
        if self.ordinals.0.replace(next, next.wrapping_add(1)).is_err() {
            counter.skipped.0.add(1);
            return None;
        }
        let ordinal = next;
        Some((Number { ordinal, seq }, clock))
    }

    /// Takes a number that puts no admission out of the set that is on the way; or any number, after
    /// some tries. With its clock.
    #[inline(never)]
    fn number_in_turn(
        &self,
        claim: &Claim<P>,
        counter: &Counter<P::Atom>,
    ) -> Option<(Number, u64)> {
        let waits = claim.waits.get();
        loop {
            let next = counter.next();
            let ordinal = match self.alone {
                true => next.ordinal,
                false => self.ordinals.0.get(),
            };
            if self.is_under_way(ordinal) && waits < self.patience {
                claim.waits.put(waits.wrapping_add(1));
                return None;
            }
            let taken = match self.alone {
                true => counter.admission_if(next).then_some((next, next.ordinal)),
                false => self.number_if(ordinal, counter),
            };
            if taken.is_some() {
                claim.waits.put(0);
                return taken;
            }
        }
    }

    /// Whether the admission is on the way that the number `next` would put out of the set.
    fn is_under_way(&self, next: u64) -> bool {
        let out = next.checked_sub(self.size()).filter(|o| *o >= self.start);
        let Some(out) = out else {
            return false;
        };
        let turn = self.cell(out).turn.get();
        turn::is_before(turn, out) || turn == turn::new(out, turn::RESERVED)
    }

    /// Takes another number for the same access, because a renewed member has the ticket's number.
    #[inline(always)]
    pub fn draw(&self, t: &mut Ticket, counter: &Counter<P::Atom>) {
        (t.number, t.clock) = self.number(counter);
    }

    /// What a ticket puts out of the set. `None` if the set has had fewer numbers than pages.
    #[inline(always)]
    pub fn out(&self, t: &Ticket) -> Option<Out<'_, P>> {
        let ordinal = t.number.ordinal.checked_sub(self.size())?;
        let cell = self.cell(ordinal);
        (ordinal >= self.start).then_some(Out { ordinal, cell })
    }

    /// What is to be done first.
    #[inline(always)]
    pub fn tail(&self, out: &Out<'_, P>) -> Tail {
        let (ordinal, cell) = (out.ordinal, out.cell);
        let turn = cell.turn.get();
        if turn == turn::new(ordinal, turn::DONE) {
            return Tail::Nothing;
        }
        if turn == turn::new(ordinal, turn::LIVE) {
            return Tail::Member(cell.entry.get() as usize);
        }
        if turn == turn::new(ordinal, turn::CLOSED) {
            return Tail::Record;
        }
        self.odd_tail(ordinal)
    }

    /// The same, if the admission with that number has been given up, or is now, for its CPU is
    /// slow. Then that CPU may not have done yet what its ticket puts out of the set. If that
    /// number is given up too, its CPU may be slow as well, and so on: each CPU has one ticket at a
    /// time.
    #[cold]
    fn odd_tail(&self, mut ordinal: u64) -> Tail {
        let (n, own) = (self.size(), ordinal);
        for _ in 0..=self.claims.len() {
            let cell = self.cell(ordinal);
            match self.overdue(cell, ordinal) {
                turn::LIVE if ordinal == own => return Tail::Member(cell.entry.get() as usize),
                turn::LIVE => match self.member(ordinal) {
                    Some(entry) => return Tail::Slow(ordinal, entry),
                    None => break,
                },
                turn::CLOSED if ordinal == own => return Tail::Record,
                turn::CLOSED | turn::DONE => break,
                _ => {}
            }
            ordinal = match ordinal.checked_sub(n) {
                Some(o) if o >= self.start => o,
                _ => break,
            };
        }
        Tail::Nothing
    }

    /// Gives up the admission with a number if it is on the way. Gives the state of its slot:
    /// live, closed or done if the CPU has done what its ticket puts out of the set.
    #[cold]
    fn overdue(&self, cell: &Cell<P>, ordinal: u64) -> u64 {
        loop {
            let turn = cell.turn.get();
            if !turn::is_of(turn, ordinal) {
                // Whoever has that ticket has not come yet, or has given up, or is long done.
                cell.late.raise(ordinal.wrapping_add(1));
                // The order that go_live() relies on, also if that has changed nothing.
                cell.late.add(0);
                if turn::is_of(cell.turn.get(), ordinal) {
                    continue;
                }
                return turn::OVERDUE;
            }
            let state = turn::state(turn);
            if state != turn::RESERVED {
                return state;
            }
            let overdue = turn::new(ordinal, turn::OVERDUE);
            if cell.turn.replace(turn, overdue).is_ok() {
                return turn::OVERDUE;
            }
        }
    }

    /// Ends the stay of the member with this number at the clock `end`. False if it had ended. Its
    /// record is left to whom it belongs. For [`Tail::Slow`], where `end` is the ticket's clock,
    /// and for [`Set::member`]. `disable` is as of [`Set::end`].
    ///
    /// # Safety
    ///
    /// The page table of the member's entry is locked.
    #[cold]
    pub unsafe fn end_at(
        &self,
        ordinal: u64,
        end: u64,
        why: u32,
        now: u64,
        disable: impl FnOnce(&Slot, bool) -> Bits,
    ) -> bool {
        let Some(cell) = self.live(ordinal) else {
            return false;
        };
        let bits = |s: &Slot| disable(s, s.marks.has(Marks::HIDDEN));
        // SAFETY: The page table is locked, and the slot is live.
        unsafe { self.close_at(cell, ordinal, why, now, end, bits) };
        true
    }

    /// The entry of the member with this number, if there is one. Without its lock, it may be a
    /// member no more.
    pub fn member(&self, ordinal: u64) -> Option<usize> {
        let entry = self.live(ordinal)?.entry.get() as usize;
        // If it is still live, the handle was its.
        self.live(ordinal).map(|_| entry)
    }

    /// What is known of a member, and whether its entry says that it is this one.
    ///
    /// # Safety
    ///
    /// The page table of the member's entry is locked, for as long as the answer is used.
    pub unsafe fn look_at(
        &self,
        ordinal: u64,
    ) -> Option<(<P::Place as Place<Slot>>::Ref<'_>, bool)> {
        let cell = self.live(ordinal)?;
        // SAFETY: The page table is locked, and the slot is live.
        let (s, word) = unsafe {
            let s = cell.place.read();
            let word = self.words.get(s.entry);
            (s, word)
        };
        Some((s, word == ordinal << 1 | MEMBER))
    }

    /// Goes through the whole set, while no ticket is on the way. `next` is the next number.
    pub fn figures(&self, next: u64) -> Figures {
        let mut f = Figures::default();
        let begin = next.saturating_sub(self.size()).max(self.start);
        let mut count = 0u64;
        let mut wrong = |is: bool| count = count.wrapping_add(u64::from(is));
        for cell in self.cells.iter() {
            let turn = cell.turn.get();
            let ordinal = turn::ordinal(turn);
            match turn::state(turn) {
                turn::DONE => continue,
                turn::LIVE => f.live = f.live.wrapping_add(1),
                turn::CLOSED => {}
                // Only on the way.
                _ => {
                    f.reserved = f.reserved.wrapping_add(1);
                    wrong(true);
                }
            }
            wrong(!(begin..next).contains(&ordinal) || !core::ptr::eq(self.cell(ordinal), cell));
        }
        let mut waiting = 0usize;
        for (cpu, c) in self.claims.iter().enumerate() {
            let counts = c.counts.get();
            f.tickets = f.tickets.wrapping_add((counts >> 32) as u32);
            wrong(counts as u32 > self.first);
            if self.nr_seats() == 0 || self.is_seated(cpu, c) {
                f.first = f.first.wrapping_add(u64::from(counts as u32));
            }
            waiting = waiting.wrapping_add(usize::from(c.seat.get() & WAITS != 0));
        }
        wrong(f.live > self.size() || f.first > self.size());
        wrong(waiting != self.queue().1);
        for (at, holder) in self.seats.iter().take(self.nr_seats()).enumerate() {
            if let Some(cpu) = holder.get().checked_sub(1) {
                let knows = |c: &Claim<P>| c.seat.get() & !WAITS == at as u64 + 1;
                wrong(!self.claims.get(cpu as usize).is_some_and(knows));
            }
        }
        f.wrong = count;
        f
    }

    /// Writes the record of the stay that a ticket puts out of the set, if the stay has ended. `emit`
    /// gets it. To be called after [`Tail::Record`] and [`Set::end`].
    #[inline(always)]
    pub fn write(&self, out: &Out<'_, P>, emit: impl FnOnce(&Slot)) {
        self.write_at(out.cell, out.ordinal, |s| {
            emit(s);
            true
        });
    }

    /// Writes the record with this number if there is one. False if `emit` has no room for it. No
    /// ticket puts this number out of the set; and its page, if it has one, is a member no more.
    pub fn clear(&self, ordinal: u64, emit: impl FnOnce(&Slot) -> bool) -> bool {
        self.write_at(self.cell(ordinal), ordinal, emit)
    }

    /// Writes the record of a stay that has ended, if it has this number.
    #[inline(always)]
    fn write_at(&self, cell: &Cell<P>, ordinal: u64, emit: impl FnOnce(&Slot) -> bool) -> bool {
        if cell.turn.get() != turn::new(ordinal, turn::CLOSED) {
            return true;
        }
        // SAFETY: A closed slot belongs to whoever writes its record, which is this CPU.
        let written = emit(&*unsafe { cell.place.read() });
        if written {
            cell.turn.put(turn::new(ordinal, turn::DONE));
        }
        written
    }

    /// Goes on after [`Tail::Member`]: renews the member, or ends its stay and those of its batch.
    /// After it, whatever the answer, [`Set::write`] writes the record of the number that the ticket
    /// puts out.
    ///
    /// - `look` is called at most once, if a page may get a second chance: it clears the accessed
    ///   bit, and gives the bits there were. Without `may`, there are no second chances.
    /// - `disable` gets the slot of a page and whether to set its accessed bit. It disables the
    ///   PTE, and gives its last bits. If there are calls, the first one is for the member.
    /// - `lock` gets an address space and an entry that was a member's just now. It locks the entry's
    ///   page table if that is one of the address space, without waiting, and keeps it locked until
    ///   after the call. False if it does not.
    /// - `emit` gets the records of the member and of those of its batch that come next. False if
    ///   there is no room for one: then it is left to whom it belongs.
    ///
    /// # Safety
    ///
    /// The page table of the entry is locked. One of which `lock` says so is locked until after the
    /// call, and is of that address space.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn end<E: Fn(usize) -> u32>(
        &self,
        t: &mut Ticket,
        out: &Out<'_, P>,
        way: &Way<E>,
        look: impl FnOnce(&Slot) -> Bits,
        mut disable: impl FnMut(&Slot, bool) -> Bits,
        mut lock: impl FnMut(usize, usize) -> bool,
        mut emit: impl FnMut(&Slot) -> bool,
    ) -> End {
        let Out { ordinal, mut cell } = *out;
        if cell.turn.get() != turn::new(ordinal, turn::LIVE) && P::looks_again() {
            return End::Gone;
        }
        let mut seen = false;
        // SAFETY: The page table is locked, and the slot is live. A negative control breaks this.
        let first = way.renews && unsafe { self.is_first(cell, t.time, &way.epoch_of) };
        if first || self.clock && way.may {
            // SAFETY: As above.
            match unsafe { self.keep(t, cell, ordinal, first, way.now, look) } {
                Ok(end) => return end,
                // Cleared for a second chance that there is not.
                Err(cleared) => seen = cleared,
            }
        }
        let to = match self.batch {
            1 => ordinal,
            _ => ordinal.saturating_add(self.batch()),
        };
        let mut joined = {
            // SAFETY: As above.
            let s = unsafe { cell.place.read() };
            Joined::new(s.owner, s.entry)
        };
        // Records leave a CPU in the order of numbers. So those after a gap are left to later tickets.
        let (mut at, mut in_row, mut ended) = (ordinal, true, 0u64);
        loop {
            let bits = |s: &Slot| {
                let mut bits = disable(s, seen || s.marks.has(Marks::HIDDEN));
                bits.young |= seen;
                bits
            };
            let write = |s: &Slot| {
                in_row = in_row && emit(s);
                in_row
            };
            let end = t.clock;
            // SAFETY: As above; see `beside` for those of the batch.
            unsafe { self.close_and_emit(cell, at, way.why, way.now, end, bits, write) };
            seen = false;
            ended = ended.wrapping_add(1);
            cell = loop {
                at = at.wrapping_add(1);
                if at >= to {
                    return End::Evicted(ended);
                }
                // SAFETY: The page tables that have joined are locked.
                match unsafe { self.beside(at, &mut joined, &mut lock, t, way) } {
                    Some(beside) => break beside,
                    None => in_row = false,
                }
            };
        }
    }

    /// Renews a member, if it is in a first segment, or if it gets a second chance. Otherwise its
    /// stay is to be ended, and the answer is whether its accessed bit was cleared here.
    ///
    /// # Safety
    ///
    /// The page table of the member is locked. Its slot is live.
    #[cold]
    #[inline(never)]
    unsafe fn keep(
        &self,
        t: &Ticket,
        cell: &Cell<P>,
        ordinal: u64,
        first: bool,
        now: u64,
        look: impl FnOnce(&Slot) -> Bits,
    ) -> Result<End, bool> {
        let (end, why, time) = match first {
            true => (End::Renewed, WHY_RENEWED, t.time),
            false => (End::Chance, WHY_CHANCE, now),
        };
        let mut bits = Bits::default();
        if !first {
            // SAFETY: As promised.
            let s = unsafe { cell.place.read() };
            if !s.marks.has(Marks::SWEPT) {
                return Err(false);
            }
            bits = look(&s);
            if !bits.young && !s.marks.has(Marks::REFERENCED) {
                return Err(false);
            }
        }
        // SAFETY: As promised.
        match unsafe { self.renew(t, cell, ordinal, why, bits, time) } {
            true => Ok(end),
            false => Err(bits.young),
        }
    }

    /// The slot of a member that is in a page table that has joined, or joins now, and in no first
    /// segment.
    ///
    /// # Safety
    ///
    /// The page tables that have joined are locked.
    #[inline(always)]
    unsafe fn beside<E: Fn(usize) -> u32>(
        &self,
        ordinal: u64,
        joined: &mut Joined,
        lock: impl FnMut(usize, usize) -> bool,
        t: &Ticket,
        way: &Way<E>,
    ) -> Option<&Cell<P>> {
        let cell = self.live(ordinal)?;
        // The slot is not ours. It may have had another number when the handle was read: so look
        // again. If it is live with an entry in a locked page table, it stays so. Before a lock is
        // taken, this look shows that the handle was a member's.
        let is_live = || cell.turn.get() == turn::new(ordinal, turn::LIVE);
        let entry = cell.entry.get() as usize;
        let mut lock = lock;
        if !joined.has(entry, |owner, entry| is_live() && lock(owner, entry)) || !is_live() {
            return None;
        }
        // SAFETY: Its page table is locked, and the slot is live.
        let first = unsafe { self.is_first(cell, t.time, &way.epoch_of) };
        (!first).then_some(cell)
    }

    /// Pages that one admission evicts at most, its victim included.
    pub fn batch(&self) -> u64 {
        let most = batch_max(self.size() as usize, self.first as usize, self.claims.len());
        self.batch.min(most as u64).max(1)
    }

    /// Gives the member `from` the number of a ticket, and ends the record of its stay so far. False
    /// if that number has no slot: then nothing is changed.
    ///
    /// # Safety
    ///
    /// The page table of the member is locked. Its slot is live.
    #[cold]
    unsafe fn renew(
        &self,
        t: &Ticket,
        from: &Cell<P>,
        ordinal: u64,
        why: u32,
        bits: Bits,
        time: u64,
    ) -> bool {
        let to = t.number.ordinal;
        // SAFETY: As promised.
        let old = *unsafe { from.place.read() };
        let cell = self.cell(to);
        if !self.go_live(cell, to, old.entry) {
            return false;
        }
        // SAFETY: As promised.
        unsafe { self.close_at(from, ordinal, why, time, t.clock, |_| bits) };
        let flags = if why == WHY_CHANCE {
            SEEN | (old.page & BY_KERNEL)
        } else {
            (old.page & (KIND | BY_KERNEL | DIRTIED)) | CONT
        };
        let mut new = old;
        new.seq = t.number.seq;
        new.time = time;
        // It is judged as the reference that began the stay.
        new.page = (old.page & (!FLAGS | LEFT)) | flags;
        new.marks.set_if(bits.dirty, Marks::WAS_DIRTY);
        new.marks.clear(Marks::REFERENCED);
        new.marks
            .set_if(why == WHY_CHANCE && bits.young, Marks::HIDDEN);
        // SAFETY: The slot is live since just now, and its page table is locked.
        unsafe {
            *cell.place.change() = new;
            self.words.set(old.entry, to << 1 | MEMBER);
        }
        if self.again && why != WHY_CHANCE {
            if let Some(place) = self.place(usize::from(old.cpu), old.nth) {
                // Its CPU may have gone on. Then the page has left the first segment.
                let _ = place.replace(ordinal.wrapping_add(1), to.wrapping_add(1));
            }
        }
        true
    }

    /// Takes the slot of a number, and makes it live. False if it is not free, or if it is too late:
    /// the admission is given up.
    #[inline(always)]
    fn go_live(&self, cell: &Cell<P>, ordinal: u64, entry: usize) -> bool {
        let before = cell.turn.get();
        let [done, reserved, live] =
            [turn::DONE, turn::RESERVED, turn::LIVE].map(|state| turn::new(ordinal, state));
        if !turn::is_free(before, ordinal) || cell.turn.replace(before, reserved).is_err() {
            return false;
        }
        // In overdue(), it is the other way round: at least one of the two sees the other one.
        let late = cell.late.get() > ordinal;
        if !late {
            // Not before: the slot may have been another number's.
            cell.entry.put(entry as u64);
        }
        if late || cell.turn.replace(reserved, live).is_err() {
            cell.turn.put(done);
            return false;
        }
        true
    }

    /// Ends the stay of a member at the clock `end`, with the last bits of its PTE.
    ///
    /// # Safety
    ///
    /// The page table of the member is locked. Its slot is live.
    #[inline(always)]
    unsafe fn close_at(
        &self,
        cell: &Cell<P>,
        ordinal: u64,
        why: u32,
        now: u64,
        end: u64,
        bits: impl FnOnce(&Slot) -> Bits,
    ) {
        // SAFETY: As promised.
        unsafe { self.close_and_emit(cell, ordinal, why, now, end, bits, |_| false) }
    }

    /// The same, and its record is written if `emit` has room for it.
    ///
    /// # Safety
    ///
    /// As of [`Set::close_at`].
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    unsafe fn close_and_emit(
        &self,
        cell: &Cell<P>,
        ordinal: u64,
        why: u32,
        now: u64,
        end: u64,
        bits: impl FnOnce(&Slot) -> Bits,
        emit: impl FnOnce(&Slot) -> bool,
    ) {
        // SAFETY: As promised.
        let mut s = unsafe { cell.place.change() };
        let bits = bits(&s);
        let dirtied = bits.dirty && !s.marks.has(Marks::WAS_DIRTY);
        let again = s.marks.has(Marks::SWEPT) && (bits.young || s.marks.has(Marks::REFERENCED));
        s.page |= u64::from(why) << WHY_SHIFT
            | if dirtied { DIRTIED } else { 0 }
            | if again { AGAIN } else { 0 };
        let stay = now.saturating_sub(s.time) >> STAY_SHIFT;
        s.stay = stay.min(u64::from(u32::MAX)) as u32;
        let entry = s.entry;
        let state = match emit(&s) {
            true => turn::DONE,
            false => turn::CLOSED,
        };
        drop(s);
        // SAFETY: As promised.
        unsafe { self.words.set(entry, end << 1) };
        cell.turn.put(turn::new(ordinal, state));
    }

    /// Makes the page of a ticket's admission a member. The caller enables its PTE under the same
    /// page table lock. Gives the sequence number of the record. `None` if the admission is given
    /// up; the ticket is done then, too.
    ///
    /// # Safety
    ///
    /// The page table of `a.entry` is locked.
    #[inline(always)]
    pub unsafe fn admit(
        &self,
        t: &Ticket,
        a: &Admission,
        counter: &Counter<P::Atom>,
    ) -> Option<u64> {
        let ordinal = t.number.ordinal;
        // SAFETY: As promised.
        let word = unsafe { self.words.get(a.entry) };
        let cell = self.cell(ordinal);
        let is_late = t.clock < counter.from.0.get();
        if word & MEMBER != 0 {
            // SAFETY: As promised.
            unsafe { self.miss(word >> 1, is_late, a.entry, t, counter)? };
        } else if (is_late || t.clock < word >> 1 && word < FOREIGN) && !self.disordered {
            self.abort(t);
            return None;
        }
        if !self.go_live(cell, ordinal, a.entry) {
            return None;
        }
        // SAFETY: The page table is locked, and the slot is live since just now.
        unsafe {
            let mut s = cell.place.change();
            s.seq = t.number.seq;
            s.time = t.time;
            s.vtime = a.vtime;
            s.owner = a.owner;
            s.entry = a.entry;
            s.page = a.page;
            s.address = a.address;
            s.mm = a.mm;
            s.tid_cpu = a.tid_cpu;
            s.pfn = a.pfn;
            s.nth = t.nth;
            s.cpu = t.cpu;
            s.marks = Marks::NONE;
            s.marks.set_if(a.was_dirty, Marks::WAS_DIRTY);
            drop(s);
            self.words.set(a.entry, ordinal << 1 | MEMBER);
        }
        Some(t.number.seq)
    }

    /// What ended the stay of a member was missed. Ends it when a ticket admits its page again. `None`
    /// if the admission `is_late`, or later than the member: then it is given up.
    ///
    /// # Safety
    ///
    /// The page table of the member's entry is locked.
    #[cold]
    unsafe fn miss(
        &self,
        ordinal: u64,
        is_late: bool,
        entry: usize,
        t: &Ticket,
        counter: &Counter<P::Atom>,
    ) -> Option<()> {
        // The word may be one of an earlier set.
        let cell = self.live_at(ordinal, entry);
        let is_passed = cell.is_some() && t.number.ordinal < ordinal;
        if (is_late || is_passed) && !self.disordered {
            self.abort(t);
            return None;
        }
        if let Some(cell) = cell {
            let bits = |_: &Slot| Bits::default();
            // SAFETY: As promised, and the slot is live.
            unsafe { self.close_at(cell, ordinal, WHY_OTHER, t.time, t.clock, bits) };
            counter.missed.add(1);
        }
        Some(())
    }

    /// Gives up a ticket's admission, once, and after what [`Set::tail`] has asked for. The CPU with
    /// the ticket that frees the slot relies on that.
    pub fn abort(&self, t: &Ticket) {
        let ordinal = t.number.ordinal;
        let cell = self.cell(ordinal);
        let before = cell.turn.get();
        if turn::is_free(before, ordinal) {
            // If that fails, the slot is another number's already.
            let _ = cell.turn.replace(before, turn::new(ordinal, turn::DONE));
        }
    }

    /// The slot of a page that is a member, and its number.
    ///
    /// # Safety
    ///
    /// The page table of the entry is locked.
    #[inline(always)]
    unsafe fn find(&self, page: Page) -> Option<(&Cell<P>, u64)> {
        // SAFETY: As promised.
        let word = unsafe { self.words.get(page.entry) };
        if word & MEMBER == 0 {
            return None;
        }
        let ordinal = word >> 1;
        let cell = self.live(ordinal)?;
        // SAFETY: The page table is locked, and the slot is live.
        let s = unsafe { cell.place.read() };
        let is_it = s.mm == page.mm && (s.page ^ page.addr) & !FLAGS == 0;
        drop(s);
        is_it.then_some((cell, ordinal))
    }

    /// Does `f` with the slot of a page that is a member.
    ///
    /// # Safety
    ///
    /// The page table of the entry is locked.
    unsafe fn with<R>(&self, page: Page, f: impl FnOnce(&mut Slot) -> R) -> Option<R> {
        // SAFETY: As promised.
        let (cell, _) = unsafe { self.find(page) }?;
        // SAFETY: The page table is locked, and the slot is live.
        Some(f(&mut *unsafe { cell.place.change() }))
    }

    /// Ends the stay of a page whose PTE was cleared, at the next number. False if the page is no
    /// member.
    ///
    /// # Safety
    ///
    /// The page table of the entry is locked.
    pub unsafe fn close(
        &self,
        page: Page,
        bits: Bits,
        why: u32,
        now: u64,
        counter: &Counter<P::Atom>,
    ) -> bool {
        let next = counter.next_after_change::<P>();
        // SAFETY: As promised.
        match unsafe { self.find(page) } {
            Some((cell, ordinal)) => {
                // SAFETY: As promised, and the slot is live.
                unsafe { self.close_at(cell, ordinal, why, now, next, |_| bits) };
                true
            }
            None => false,
        }
    }

    /// Notes that a page that is no member was dropped. A new page at its place may get an equal PTE,
    /// and is not the page that an admission with an earlier number means.
    ///
    /// # Safety
    ///
    /// The page table of the entry is locked.
    pub unsafe fn overtake(&self, entry: usize, counter: &Counter<P::Atom>) {
        let next = counter.next_after_change::<P>();
        // SAFETY: As promised.
        unsafe {
            let before = self.words.get(entry);
            if before & MEMBER == 0 && (before < next << 1 || before >= FOREIGN) {
                self.words.set(entry, next << 1);
            }
        }
    }

    /// Notes a store to a member that its dirty bit can't show. False if it is no member.
    ///
    /// # Safety
    ///
    /// The page table of the entry is locked.
    pub unsafe fn dirtied(&self, page: Page) -> bool {
        // SAFETY: As promised.
        unsafe { self.with(page, |s| s.page |= DIRTIED) }.is_some()
    }

    /// Notes that another user cleared the accessed bit of a page, which was `young`. Returns the
    /// value that the other user is to see.
    ///
    /// # Safety
    ///
    /// The page table of the entry is locked.
    pub unsafe fn aged(&self, page: Page, young: bool) -> bool {
        let note = |s: &mut Slot| {
            s.marks.set_if(young, Marks::REFERENCED);
            let hidden = s.marks.has(Marks::HIDDEN);
            s.marks.clear(Marks::HIDDEN);
            hidden
        };
        // SAFETY: As promised.
        young | unsafe { self.with(page, note) }.unwrap_or(false)
    }

    /// Whether this set has cleared a page's accessed bit, so that it counts as set for others.
    ///
    /// # Safety
    ///
    /// The page table of the entry is locked.
    pub unsafe fn hidden(&self, page: Page) -> bool {
        // SAFETY: As promised.
        self.again && unsafe { self.with(page, |s| s.marks.has(Marks::HIDDEN)) } == Some(true)
    }

    /// The page frame that a member was admitted with.
    ///
    /// # Safety
    ///
    /// The page table of the entry is locked.
    pub unsafe fn frame(&self, page: Page) -> Option<u32> {
        // SAFETY: As promised.
        unsafe { self.with(page, |s| s.pfn) }
    }

    /// The number and the entry of the page that comes into the second segment when a ticket's
    /// admission takes its place in the first one. To be called once for each access, after
    /// [`Set::end`]. The caller locks the entry's page table and calls [`Set::sweep`].
    pub fn pass(&self, t: &Ticket) -> Option<(u64, usize)> {
        if !self.again {
            return None;
        }
        let place = self.place(usize::from(t.cpu), t.nth)?;
        let mut before = place.get();
        while let Err(now) = place.replace(before, t.number.ordinal.wrapping_add(1)) {
            before = now;
        }
        let passed = before.checked_sub(1)?;
        // Nobody frees its page table before this CPU enables preemption.
        self.member(passed).map(|entry| (passed, entry))
    }

    /// Clears the accessed bit of a page that came into the second segment: `clear` does that if the
    /// page is still a member, and returns whether the bit was set. True if the page is a member.
    /// Then a flush is due even if the bit was clear: another user may have cleared it without a
    /// flush, and the TLB entry would hide the next references. The entry is that of [`Set::pass`].
    ///
    /// # Safety
    ///
    /// The page table of the entry is locked.
    pub unsafe fn sweep(&self, passed: (u64, usize), clear: impl FnOnce(&Slot) -> bool) -> bool {
        let Some(cell) = self.live(passed.0) else {
            return false;
        };
        // A number has one entry only. So it is this one's that is live, and its table is locked.
        // SAFETY: As promised, and the slot is live.
        let mut s = unsafe { cell.place.change() };
        s.marks.set_if(true, Marks::SWEPT);
        s.marks.clear(Marks::REFERENCED);
        let young = clear(&s);
        s.marks.set_if(young, Marks::HIDDEN);
        true
    }

    /// The place in `firsts` of a CPU's `nth` admission.
    fn place(&self, cpu: usize, nth: u32) -> Option<&P::Atom> {
        let at = nth.checked_rem(self.first)? as usize;
        let start = cpu.checked_mul(self.first as usize)?;
        self.firsts.get(start.checked_add(at)?)
    }

    /// Whether a member is in a first segment.
    ///
    /// # Safety
    ///
    /// The page table of the member is locked. Its slot is live.
    #[inline(always)]
    unsafe fn is_first(&self, cell: &Cell<P>, time: u64, epoch_of: impl Fn(usize) -> u32) -> bool {
        // SAFETY: As promised.
        let s = unsafe { cell.place.read() };
        let (cpu, nth) = (usize::from(s.cpu), s.nth);
        drop(s);
        let Some(claim) = self.claims.get(cpu) else {
            return false;
        };
        let counts = claim.counts.get();
        let (count, held) = ((counts >> 32) as u32, counts as u32);
        count.wrapping_sub(nth) < held
            && (self.nr_seats() == 0 || self.is_seated(cpu, claim))
            && !self.is_over(cpu, time, epoch_of)
    }

    /// Whether a CPU's first segment has expired.
    fn is_over(&self, cpu: usize, time: u64, epoch_of: impl Fn(usize) -> u32) -> bool {
        let over = |c: &Claim<P>| {
            time.saturating_sub(c.time.get()) >= CLAIM_NS
                || c.epoch.get() != u64::from(epoch_of(cpu))
        };
        self.expires && self.claims.get(cpu).is_none_or(over)
    }

    /// Whether a CPU has a seat.
    fn is_seated(&self, cpu: usize, claim: &Claim<P>) -> bool {
        let seat = (claim.seat.get() & !WAITS).checked_sub(1);
        let holder = seat.and_then(|s| self.seats.get(s as usize));
        holder.is_some_and(|h| h.get() == cpu as u64 + 1)
    }

    /// A CPU without a seat wants a number: it queues up for one. Seats that are free go to the CPUs
    /// that have waited longest. True if the CPU has one then. Does nothing while another CPU does
    /// this.
    #[inline(never)]
    fn seat(&self, by: Caller, seats: usize, epoch_of: impl Fn(usize) -> u32) -> bool {
        if self.seating.replace(0, 1).is_err() {
            return false;
        }
        // Another CPU may have given it one since the look without the lock.
        let seated = |c: &Claim<P>| self.is_seated(by.cpu, c);
        if !self.claims.get(by.cpu).is_some_and(seated) {
            self.seat_locked(by, seats, epoch_of);
        }
        let seated = self
            .claims
            .get(by.cpu)
            .is_some_and(|c| self.is_seated(by.cpu, c));
        self.seating.put(0);
        seated
    }

    fn seat_locked(&self, by: Caller, seats: usize, epoch_of: impl Fn(usize) -> u32) {
        let cpus = self.claims.len();
        let Some(claim) = self.claims.get(by.cpu) else {
            return;
        };
        // So that it counts as one that is not over.
        claim.epoch.put(u64::from(by.epoch));
        claim.time.put(by.time);
        if claim.seat.get() & WAITS == 0 {
            claim.seat.put(claim.seat.get() | WAITS);
            self.enqueue(cpus, by.cpu);
        }
        for _ in 0..LOOK {
            let Some(next) = self.front(cpus) else {
                return;
            };
            if next != by.cpu && self.is_over(next, by.time, &epoch_of) {
                // It will queue up again when it wants a number.
                self.dequeue(cpus, next, None);
                continue;
            }
            let turn = self.turn.get() as usize;
            let after = turn.wrapping_add(1);
            self.turn.put(if after < seats { after as u64 } else { 0 });
            let Some(seat) = self.seats.get(turn) else {
                return;
            };
            if self.is_free(seat.get(), by.time, &epoch_of) {
                self.dequeue(cpus, next, Some(turn));
                seat.put(next as u64 + 1);
            }
        }
    }

    /// Whether a seat can be given to another CPU.
    fn is_free(&self, holder: u64, time: u64, epoch_of: impl Fn(usize) -> u32) -> bool {
        let Some(cpu) = holder.checked_sub(1).map(|c| c as usize) else {
            return true;
        };
        match self.claims.get(cpu) {
            Some(c) => c.used.get() >= self.term || self.is_over(cpu, time, epoch_of),
            None => true,
        }
    }

    fn queue(&self) -> (usize, usize) {
        let queue = self.queue.get();
        ((queue >> 32) as usize, queue as u32 as usize)
    }

    fn set_queue(&self, front: usize, waiting: usize) {
        self.queue.put((front as u64) << 32 | waiting as u64);
    }

    fn enqueue(&self, cpus: usize, cpu: usize) {
        let (front, waiting) = self.queue();
        let at = front.wrapping_add(waiting).checked_rem(cpus).unwrap_or(0);
        if let Some(place) = self.seats.get(cpus.wrapping_add(at)) {
            place.put(cpu as u64);
            self.set_queue(front, waiting.wrapping_add(1));
        }
    }

    /// The CPU that has waited longest.
    fn front(&self, cpus: usize) -> Option<usize> {
        let (front, waiting) = self.queue();
        let place = self.seats.get(cpus.wrapping_add(front))?;
        (waiting != 0).then(|| place.get() as usize)
    }

    /// Takes it out of the queue, perhaps for a seat.
    fn dequeue(&self, cpus: usize, cpu: usize, seat: Option<usize>) {
        let (front, waiting) = self.queue();
        let after = front.wrapping_add(1).checked_rem(cpus).unwrap_or(0);
        self.set_queue(after, waiting.saturating_sub(1));
        if let Some(c) = self.claims.get(cpu) {
            c.seat.put(match seat {
                Some(seat) => seat as u64 + 1,
                None => c.seat.get() & !WAITS,
            });
        }
    }
}
