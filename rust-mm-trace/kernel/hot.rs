// SPDX-License-Identifier: GPL-2.0

//! What runs in page faults: the functions that C calls, and the state behind
//! them.
//!
//! CPUs share a counter ([`NUMBERS`]) and the slots of the set, and no lock. Each CPU has a ring of
//! records, and each ring has a lock. The lock is taken by its CPU, by kvmtraced, which empties the
//! ring, and by whoever adds up the figures of all CPUs.
//!
//! Lock order: page table lock → the lock of a ring. Under the lock of a ring, nobody waits for the
//! lock of a page table or of another ring: a page table's lock is only trylocked. The TLB is
//! flushed under it, so it is waited for with interrupts enabled only. kvmtraced is woken after the
//! lock is dropped. The last admission of a window wakes the thread of the trace under the lock:
//! who has a lock of that wake-up never waits for the lock of a ring of references.

use crate::{
    drain::kick,
    record,
    ring::{self, Base, Packet, Ring},
    stay::{is_beside, Admission, Bits, Caller, Page, Slot, MEMBER},
    tickets::{
        Atom, Cell, Claim, Counter, End, Figures, Out, Place, Primitives, Set, Tail, Ticket, Way,
        Words,
    },
    window::UNAUDITED,
    Store,
};
use core::{cell::UnsafeCell, ffi::c_int, mem::size_of, ptr};
use kernel::{
    bindings,
    cpu::CpuId,
    macros::export,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Full, Relaxed, Release},
            Atomic,
        },
        barrier::{smp_mb, Read},
        rcu, SpinLock,
    },
};

/// What the set is made of here.
pub(crate) struct Kernel;

impl Primitives for Kernel {
    type Atom = Word;
    type Place = Shared;

    #[inline(always)]
    fn barrier() {
        smp_mb(Full);
    }
}

/// A number that CPUs change.
pub(crate) struct Word(Atomic<u64>);

impl Word {
    pub(crate) const fn new() -> Word {
        Word(Atomic::new(0))
    }
}

impl Atom for Word {
    #[inline(always)]
    fn get(&self) -> u64 {
        self.0.load(Acquire)
    }

    #[inline(always)]
    fn put(&self, value: u64) {
        self.0.store(value, Release);
    }

    #[inline(always)]
    fn add(&self, value: u64) -> u64 {
        self.0.fetch_add(value, Full)
    }

    #[inline(always)]
    fn replace(&self, old: u64, new: u64) -> Result<(), u64> {
        self.0.cmpxchg(old, new, Full).map(|_| ())
    }
}

/// An admission.
pub(crate) struct Shared(UnsafeCell<Slot>);

impl Shared {
    pub(crate) const fn new() -> Shared {
        Shared(UnsafeCell::new(Slot::EMPTY))
    }
}

// SAFETY: [`Place`]'s functions demand that nobody else changes it meanwhile.
unsafe impl Sync for Shared {}

impl Place<Slot> for Shared {
    type Ref<'a> = &'a Slot;
    type Mut<'a> = &'a mut Slot;

    #[inline(always)]
    unsafe fn read(&self) -> &Slot {
        // SAFETY: Nobody changes it meanwhile, as promised.
        unsafe { &*self.0.get() }
    }

    #[inline(always)]
    unsafe fn change(&self) -> &mut Slot {
        // SAFETY: Nobody else uses it meanwhile, as promised.
        unsafe { &mut *self.0.get() }
    }
}

/// The words of the entries of page tables. A handle is the address of a word, with
/// VMTRACE_ENTRY_* in its low bits, or 0.
pub(crate) struct Tables;

/// The address of a word, null if there is none.
fn word_of(entry: usize) -> *mut u64 {
    (entry & !(bindings::VMTRACE_ENTRY_HUGE as usize)) as *mut u64
}

impl Words for Tables {
    #[inline(always)]
    unsafe fn get(&self, entry: usize) -> u64 {
        let word = word_of(entry);
        if word.is_null() {
            return 0;
        }
        // SAFETY: The page table is locked, as promised. So it is not freed, and its words are
        // freed with it. They are written under its lock only.
        unsafe { word.read() }
    }

    #[inline(always)]
    unsafe fn set(&self, entry: usize, value: u64) {
        let word = word_of(entry);
        if !word.is_null() {
            // SAFETY: As above.
            unsafe { word.write(value) };
        }
    }
}

/// A CPU's records of references.
struct Records {
    ring: Ring,
    /// A CPU is on the far way: it takes locks of page tables between its records. Other CPUs that
    /// use this ring get no ticket meanwhile, for the records of a ring are in order. Their
    /// accesses fault again.
    busy: bool,
    /// What the CPU has done in this trace.
    done: Done,
}

/// Numbers that were given out, by what became of them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Done {
    pub(crate) admissions: u64,
    pub(crate) aborted: u64,
    pub(crate) renewed: u64,
    pub(crate) chances: u64,
    /// Stays that ended.
    ended: u64,
}

#[pin_data]
struct Lane {
    #[pin]
    records: SpinLock<Records>,
    /// Stays that ended without the lock of `records`.
    closed: Atomic<u64>,
}

/// References: the set and its streams.
pub(crate) struct Refs {
    pub(crate) set: Set<Kernel, Tables>,
    lanes: KVVec<Pin<KBox<Lane>>>,
    /// The lane of each CPU.
    of: Store<u16>,
    /// Records carry virtual time.
    vtime: bool,
    /// `SEALED` and `LIMITED`; 0 most of the time.
    mode: Atomic<u32>,
    /// Of a window with a limit: admissions that it may begin yet, and that it lacks.
    credit: Atomic<u64>,
    lacks: Atomic<u64>,
    pub(crate) funny: Atomic<u64>,
    pub(crate) stuck: Atomic<u64>,
    /// Address spaces audited, and what audits found.
    pub(crate) audits: Atomic<u64>,
    pub(crate) dangling: Atomic<u64>,
    pub(crate) miscounted: Atomic<u64>,
    pub(crate) uncovered: Atomic<u64>,
    /// Smaller numbers have no record that is still to be written.
    collected: Atomic<u64>,
    /// The most members that anybody counted: see [`Refs::members`].
    pub(crate) peak: Atomic<u64>,
}

/// No admission any more: faults enable pages without a record.
const SEALED: u32 = 1 << 0;
/// The window has a limit.
const LIMITED: u32 = 1 << 1;

/// Those of the present trace, or null. Read under RCU.
static PRESENT: Atomic<*mut Refs> = Atomic::new(ptr::null_mut());

/// The numbers of admissions and of all records. Those of admissions go on over traces.
pub(crate) static NUMBERS: Counter<Word> = Counter::zero(Word::new(), Word::new(), Word::new());
/// Times that a task waited for room.
pub(crate) static WAITS: Atomic<u64> = Atomic::new(0);
/// Address spaces traced.
pub(crate) static MMS: Atomic<u64> = Atomic::new(0);
/// A trace from boot that has no output yet: nothing makes room, so no task waits
/// for room, and a record without room is lost.
pub(crate) static EARLY: Atomic<bool> = Atomic::new(false);

/// Of x86-64: bits of an address within a page.
const PAGE_SHIFT: u32 = 12;
const PAGE_SIZE: usize = 1 << PAGE_SHIFT;

/// The sequence number of what has no record: VMTRACE_NO_SEQ.
pub(crate) const NO_SEQ: u64 = u64::MAX;

/// A CPU reads the time before it takes a number. It may be interrupted in between, while other CPUs
/// go on. So in the order of numbers, times of several CPUs go back by as long as that takes. Packets
/// leave this much room for it, ns.
const EARLY_NS: u64 = 1 << 28;

/// Comparisons of what is counted with what there is.
const TRIES: u32 = 8;

/// Slots that one step over all of them looks at.
const STEP: u64 = 256;

pub(crate) fn next_seq() -> u64 {
    NUMBERS.event()
}

/// The number of the last record.
pub(crate) fn last_seq() -> u64 {
    NUMBERS.next().seq.wrapping_sub(1)
}

pub(crate) fn clock() -> u64 {
    // SAFETY: May be called in any context.
    unsafe { bindings::ktime_get_mono_fast_ns() }
}

/// Any CPU's stream will do, so a migration after this is harmless.
pub(crate) fn this_cpu() -> usize {
    CpuId::current().as_u32() as usize
}

/// A CPU's epoch, which may change at any moment.
fn epoch_of(cpu: usize) -> u32 {
    // SAFETY: Loads a number, of any CPU.
    unsafe { bindings::vmtrace_epoch_of(cpu as u32) }
}

/// Tasks on a CPU wait for room from here on: the ring that it uses is short of it.
pub(crate) fn congest(cpu: usize) {
    // SAFETY: Only stores a flag, of any CPU.
    unsafe { bindings::vmtrace_congest(cpu as u32) }
}

/// The page of an address.
fn page_at(mm: u32, addr: u64, entry: usize) -> Page {
    let addr = addr >> PAGE_SHIFT << PAGE_SHIFT;
    Page { entry, mm, addr }
}

// C looks for members in what it frees.
const _: () = assert!(bindings::VMTRACE_WORD_MEMBER as u64 == MEMBER);

/// [`Admission`] is the beginning of `struct vmtrace_admission`, and [`Ticket`] is `struct
/// vmtrace_ticket`.
const _: () = {
    use bindings::vmtrace_admission as C;
    use core::mem::offset_of;
    assert!(offset_of!(C, mm) == offset_of!(Admission, owner));
    assert!(offset_of!(C, entry) == offset_of!(Admission, entry));
    assert!(offset_of!(C, page) == offset_of!(Admission, page));
    assert!(offset_of!(C, mm_id) == offset_of!(Admission, mm));
    assert!(offset_of!(C, tid_cpu) == offset_of!(Admission, tid_cpu));
    assert!(offset_of!(C, pfn) == offset_of!(Admission, pfn));
    assert!(offset_of!(C, was_dirty) == offset_of!(Admission, was_dirty));
    assert!(offset_of!(C, vtime) == offset_of!(Admission, vtime));
    assert!(size_of::<C>() >= size_of::<Admission>());
    assert!(size_of::<bindings::vmtrace_ticket>() == size_of::<Ticket>());
};

impl Records {
    /// Whether an admission may begin: there is room for what it writes.
    fn has_room(&self) -> bool {
        self.ring.free() > 0 || EARLY.load(Relaxed)
    }

    /// Writes a record. It counts as lost if there is no room.
    #[inline(never)]
    fn emit(&mut self, vtime: bool, slot: &Slot) {
        if !self.try_emit(vtime, slot) {
            self.ring.lost_full = self.ring.lost_full.wrapping_add(1);
        }
    }

    /// Writes a record, if there is room.
    #[inline(always)]
    fn try_emit(&mut self, vtime: bool, slot: &Slot) -> bool {
        const LONG: usize = record::REF_SIZE + record::VTIME_SIZE;
        match vtime {
            true => self.emit_as::<LONG>(slot),
            false => self.emit_as::<{ record::REF_SIZE }>(slot),
        }
    }

    #[inline(always)]
    fn emit_as<const SIZE: usize>(&mut self, slot: &Slot) -> bool {
        let write = |out: &mut [u8], base: &Base| record::put_ref::<SIZE>(out, slot, base);
        self.ring.push(SIZE, slot.seq, slot.time, write)
    }
}

impl Refs {
    /// An empty set, and no admission yet. `rings` are by CPU; a CPU whose ring has no sub-buffer
    /// uses another one. Each ring keeps so many sub-buffers for those who must not wait.
    pub(crate) fn new(
        set: Set<Kernel, Tables>,
        rings: Store<Ring>,
        kept: usize,
        vtime: bool,
    ) -> Result<KBox<Refs>> {
        let mut of = Store::from_elem(0u16, rings.len(), GFP_KERNEL)?;
        if !ring::share_out(&mut of, |cpu| rings.get(cpu).is_some_and(|r| r.total() > 0)) {
            return Err(EAGAIN);
        }
        let mut lanes = KVVec::with_capacity(rings.len(), GFP_KERNEL)?;
        let several = rings.len() > 1;
        for mut ring in rings {
            ring.keep(kept);
            if several {
                ring.expect_early(EARLY_NS);
            }
            let records = Records {
                ring,
                busy: false,
                done: Done::default(),
            };
            let lane = pin_init!(Lane {
                records <- new_spinlock!(records, "vmtrace::hot::records"),
                closed: Atomic::new(0),
            });
            lanes.push(KBox::pin_init(lane, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        let refs = Refs {
            set,
            lanes,
            of,
            vtime,
            mode: Atomic::new(0),
            credit: Atomic::new(0),
            lacks: Atomic::new(0),
            funny: Atomic::new(0),
            stuck: Atomic::new(0),
            audits: Atomic::new(0),
            dangling: Atomic::new(0),
            miscounted: Atomic::new(0),
            uncovered: Atomic::new(0),
            collected: Atomic::new(0),
            peak: Atomic::new(0),
        };
        Ok(KBox::new(refs, GFP_KERNEL)?)
    }

    /// The lane that a CPU's records go into.
    #[inline(always)]
    fn lane_of(&self, cpu: usize) -> Option<&Lane> {
        let at = usize::from(*self.of.get(cpu)?);
        Some(self.lanes.get(at)?)
    }

    /// What became of all numbers.
    pub(crate) fn done(&self) -> Done {
        let mut all = Done::default();
        for lane in self.lanes.iter() {
            let mut done = lane.records.lock().done;
            done.ended = done.ended.wrapping_add(lane.closed.load(Relaxed));
            all.admissions = all.admissions.wrapping_add(done.admissions);
            all.aborted = all.aborted.wrapping_add(done.aborted);
            all.renewed = all.renewed.wrapping_add(done.renewed);
            all.chances = all.chances.wrapping_add(done.chances);
            all.ended = all.ended.wrapping_add(done.ended);
        }
        all
    }

    /// Does `f` with each ring that has sub-buffers, under its lock.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&mut Ring)) {
        for lane in self.lanes.iter() {
            let mut records = lane.records.lock();
            if records.ring.total() > 0 {
                f(&mut records.ring);
            }
        }
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.mode.load(Relaxed) & SEALED != 0
    }

    /// No admission begins any more.
    pub(crate) fn seal(&self) {
        let mut mode = self.mode.load(Relaxed);
        while let Err(now) = self.mode.cmpxchg(mode, mode | SEALED, Relaxed) {
            mode = now;
        }
    }

    /// Begins a window of at most `limit` admissions, or is `sealed`. No admission is on the way.
    pub(crate) fn begin(&self, limit: u64, sealed: bool) {
        self.credit.store(limit, Relaxed);
        self.lacks.store(limit, Relaxed);
        self.set.open(NUMBERS.next().ordinal);
        let limited = if limit != u64::MAX { LIMITED } else { 0 };
        self.mode
            .store(limited | if sealed { SEALED } else { 0 }, Release);
    }

    /// Whether the window has all of its admissions.
    pub(crate) fn is_full(&self) -> bool {
        self.is_limited() && self.lacks.load(Relaxed) == 0
    }

    /// Whether the window has a limit.
    fn is_limited(&self) -> bool {
        self.mode.load(Relaxed) & LIMITED != 0
    }

    /// Takes one of the admissions that a window with a limit may have yet.
    #[cold]
    fn borrow(&self) -> bool {
        let mut left = self.credit.load(Relaxed);
        while let Some(less) = left.checked_sub(1) {
            match self.credit.cmpxchg(left, less, Relaxed) {
                Ok(_) => return true,
                Err(now) => left = now,
            }
        }
        false
    }

    /// The window has an admission more, or one that was to be was given up.
    #[cold]
    fn settle(&self, admitted: bool) {
        if !admitted {
            self.credit.add(1u64, Relaxed);
        } else if self.lacks.fetch_sub(1u64, Relaxed) == 1 {
            self.seal();
            // SAFETY: Stores a flag and wakes a task, which any context here may do.
            unsafe { bindings::vmtrace_window_full(true) };
        }
    }

    /// Counts what became of an admission.
    #[inline(always)]
    fn count(&self, done: &mut Done, limited: bool, admitted: bool) {
        match admitted {
            true => done.admissions = done.admissions.wrapping_add(1),
            false => done.aborted = done.aborted.wrapping_add(1),
        }
        if limited {
            self.settle(admitted);
        }
    }

    /// Members; while CPUs change the set, not more than there were at some moment.
    pub(crate) fn members(&self) -> u64 {
        // What ended is looked at last. So the difference is never too large.
        let admitted = self.done().admissions;
        let ended = self.done().ended.wrapping_add(self.set.missed());
        let members = admitted.saturating_sub(ended);
        self.note_members(members);
        members
    }

    /// Notes how many members somebody counted.
    fn note_members(&self, members: u64) {
        let mut peak = self.peak.load(Relaxed);
        while peak < members {
            match self.peak.cmpxchg(peak, members, Relaxed) {
                Ok(_) => break,
                Err(now) => peak = now,
            }
        }
    }

    /// The set's figures, and whether there are as many members as were counted. No admission is on
    /// the way; but stays may end at any time, and are counted after that.
    fn figures(&self) -> (Figures, bool) {
        let mut is_counted = false;
        let mut f = Figures::default();
        for _ in 0..TRIES {
            let before = self.done().ended;
            f = self.set.figures(NUMBERS.next().ordinal);
            let done = self.done();
            let ended = done.ended.wrapping_add(self.set.missed());
            is_counted = done.admissions.wrapping_sub(ended) == f.live;
            if is_counted {
                break;
            }
            // If stays have ended meanwhile, this says nothing.
            is_counted = before != done.ended;
        }
        (f, is_counted)
    }

    /// Counts stays that ended without the lock of records.
    fn count_closed(&self, many: u64) {
        if let Some(lane) = self.lane_of(this_cpu()) {
            lane.closed.add(many, Relaxed);
        }
    }

    /// Moves all records to this CPU's ring; no admission is on the way. False if there is no room.
    pub(crate) fn collect(&self) -> bool {
        self.collect_before(NUMBERS.next().ordinal)
    }

    /// The same for smaller numbers than `end`.
    fn collect_before(&self, end: u64) -> bool {
        let Some(lane) = self.lane_of(this_cpu()) else {
            return true;
        };
        let mut at = self
            .begin_of(self.set.size())
            .max(self.collected.load(Relaxed));
        while at < end {
            let to = at.saturating_add(STEP).min(end);
            let mut records = lane.records.lock();
            while at < to {
                if !self.set.clear(at, |s| records.try_emit(self.vtime, s)) {
                    self.collected.store(at, Relaxed);
                    return false;
                }
                at = at.wrapping_add(1);
            }
        }
        self.collected.store(at, Relaxed);
        true
    }

    /// Drops all records that are in no ring yet; no admission is on the way. Gives how many.
    pub(crate) fn discard(&self) -> u64 {
        let mut lost = 0u64;
        let mut at = self.begin_of(self.set.size());
        while at < NUMBERS.next().ordinal {
            self.set.clear(at, |_| {
                lost = lost.wrapping_add(1);
                true
            });
            at = at.wrapping_add(1);
        }
        lost
    }

    /// The first number that a set of size `n` can have a member of.
    fn begin_of(&self, n: u64) -> u64 {
        let next = NUMBERS.next().ordinal;
        next.saturating_sub(n).max(self.set.start())
    }

    /// Renews the member that a ticket puts out of the set, or ends its stay and those of its batch.
    /// `NEAR` makes two functions of this, so that the way of most admissions is compiled in line.
    ///
    /// # Safety
    ///
    /// `ptep` is the PTE of `entry`, in a page table that is locked. `disabled` is valid.
    #[inline(always)]
    unsafe fn end<const NEAR: bool>(
        &self,
        t: &mut Ticket,
        out: &Out<'_, Kernel>,
        ptep: *mut bindings::pte_t,
        (may, renews): (bool, bool),
        records: &mut Records,
        disabled: *mut bindings::vmtrace_batch,
    ) -> End {
        let mut range = Range::NONE;
        let mut swept = Range::NONE;
        let way = Way {
            why: bindings::VMTRACE_WHY_EVICTED,
            now: t.time,
            may,
            renews,
            epoch_of,
        };
        // SAFETY: It is the PTE of the slot that is looked at, and locked.
        let look = |s: &Slot| unsafe { swept.sweep(ptep, s) };
        // SAFETY: It is in the page table of `ptep`, which is locked.
        let disable = |s: &Slot, young| unsafe { range.take(self, ptep, s, young) };
        let emit = |s: &Slot| records.try_emit(self.vtime, s);
        // SAFETY: The page table is locked.
        let answer = unsafe { self.set.end(t, out, &way, look, disable, emit) };
        let done = &mut records.done;
        match answer {
            End::Renewed => done.renewed = done.renewed.wrapping_add(1),
            End::Chance => done.chances = done.chances.wrapping_add(1),
            End::Evicted(pages) => done.ended = done.ended.wrapping_add(pages),
            End::Gone => {}
        }
        if answer == End::Chance {
            range = swept;
        }
        // SAFETY: `disabled` is valid.
        unsafe { range.put(disabled) };
        answer
    }
}

/// Nothing must be flushed.
const NOTHING: bindings::vmtrace_batch = bindings::vmtrace_batch {
    mm: ptr::null_mut(),
    start: 0,
    end: 0,
};

/// What must be flushed.
struct Range {
    mm: usize,
    from: u64,
    to: u64,
}

impl Range {
    const NONE: Range = Range {
        mm: 0,
        from: u64::MAX,
        to: 0,
    };

    /// Disables the PTE of a member.
    ///
    /// # Safety
    ///
    /// `ptep` is in the member's page table, which is locked. A member that is not a PTE is that of
    /// `ptep`.
    #[inline(always)]
    unsafe fn take(
        &mut self,
        refs: &Refs,
        ptep: *mut bindings::pte_t,
        s: &Slot,
        young: bool,
    ) -> Bits {
        // A page table is a page, and so are its words, and they are of one size.
        let place = s.entry & (PAGE_SIZE - 1) & !(bindings::VMTRACE_ENTRY_HUGE as usize);
        let at = (ptep as usize & !(PAGE_SIZE - 1) | place) as *mut bindings::pte_t;
        // SAFETY: It is locked.
        let last = unsafe { bindings::vmtrace_pte_take(at, young) };
        if last == 0 {
            refs.stuck.add(1u64, Relaxed);
        } else {
            self.add(s);
        }
        pte_bits(last)
    }

    #[inline(always)]
    fn add(&mut self, s: &Slot) {
        let addr = s.page & !(PAGE_SIZE as u64 - 1);
        self.mm = s.owner;
        self.from = self.from.min(addr);
        self.to = self.to.max(addr);
    }

    /// Clears a member's accessed bit. A flush is due even if the bit was clear: another user may
    /// have cleared it without a flush, and the TLB entry would hide the next references.
    ///
    /// # Safety
    ///
    /// `ptep` is the member's PTE, which is locked.
    unsafe fn sweep(&mut self, ptep: *mut bindings::pte_t, s: &Slot) -> Bits {
        let mut cleared = 0;
        // SAFETY: As promised.
        unsafe { bindings::vmtrace_pte_sweep(ptep, &raw mut cleared) };
        self.add(s);
        bits(cleared)
    }

    /// # Safety
    ///
    /// `disabled` is valid to be written.
    #[inline(always)]
    unsafe fn put(&self, disabled: *mut bindings::vmtrace_batch) {
        if self.mm != 0 {
            let range = bindings::vmtrace_batch {
                mm: self.mm as *mut bindings::mm_struct,
                start: self.from as usize,
                end: (self.to as usize).saturating_add(PAGE_SIZE),
            };
            // SAFETY: It is valid, as promised.
            unsafe { disabled.write(range) };
        }
    }
}

/// What a PTE has.
fn pte_bits(pte: u64) -> Bits {
    const YOUNG: u64 = 1 << bindings::vmtrace_pte_bit_VMTRACE_PTE_BIT_ACCESSED;
    const DIRTY: u64 = 1 << bindings::vmtrace_pte_bit_VMTRACE_PTE_BIT_DIRTY
        | 1 << bindings::vmtrace_pte_bit_VMTRACE_PTE_BIT_SAVED_DIRTY;
    Bits {
        young: pte & YOUNG != 0,
        dirty: pte & DIRTY != 0,
    }
}

/// What a PTE had, as C reports it.
fn bits(raw: u32) -> Bits {
    Bits {
        young: raw & bindings::VMTRACE_PTE_YOUNG != 0,
        dirty: raw & bindings::VMTRACE_PTE_DIRTY != 0,
    }
}

/// Does `f` with the references of the present trace, if there are such. `f` must not sleep.
#[inline(always)]
pub(crate) fn with<R>(none: R, f: impl FnOnce(&Refs) -> R) -> R {
    let _guard = rcu::read_lock();
    // SAFETY: This is a read-side critical section of RCU.
    unsafe { with_kept(none, f) }
}

/// The same.
///
/// # Safety
///
/// This is in a read-side critical section of RCU. To have preemption disabled is one.
#[inline(always)]
unsafe fn with_kept<R>(none: R, f: impl FnOnce(&Refs) -> R) -> R {
    let refs = PRESENT.load(Acquire);
    if refs.is_null() {
        return none;
    }
    // SAFETY: Freed after a grace period only.
    f(unsafe { &*refs })
}

/// Puts those of a trace that begins in place.
pub(crate) fn install(refs: KBox<Refs>) {
    let (cells, claims, seats) = refs.set.parts();
    let view = bindings::vmtrace_view {
        counter: &raw const NUMBERS as usize,
        cells: cells.as_ptr() as usize,
        nr_cells: cells.len(),
        cell_size: size_of::<Cell<Kernel>>(),
        claims: claims.as_ptr() as usize,
        nr_claims: claims.len(),
        claim_size: size_of::<Claim<Kernel>>(),
        seats: seats.as_ptr() as usize,
    };
    // SAFETY: One trace begins at a time. Who reads it does so from outside.
    unsafe { (&raw mut bindings::vmtrace_view).write(view) };
    PRESENT.store(KBox::into_raw(refs), Release);
}

/// Those of a trace that has ended. To be dropped where the context may sleep.
pub(crate) struct Removed(#[allow(dead_code)] KBox<Refs>);

impl Drop for Removed {
    fn drop(&mut self) {
        rcu::synchronize_rcu();
    }
}

/// Takes them away.
pub(crate) fn remove() -> Option<Removed> {
    let refs = PRESENT.xchg(ptr::null_mut(), Relaxed);
    if refs.is_null() {
        return None;
    }
    let none = bindings::vmtrace_view::default();
    // SAFETY: As in `install`.
    unsafe { (&raw mut bindings::vmtrace_view).write(none) };
    // SAFETY: `install` has made it of a `KBox`, and nobody else has taken it from there.
    Some(Removed(unsafe { KBox::from_raw(refs) }))
}

/// Takes the oldest full sub-buffer of a CPU.
pub(crate) fn take(cpu: usize) -> Option<Packet> {
    with(None, |refs| {
        let packet = refs.lanes.get(cpu)?.records.lock().ring.take()?;
        refs.members();
        Some(packet)
    })
}

/// Gives back the sub-buffer of a packet. The caller frees what this returns, for that may sleep.
pub(crate) fn give(cpu: usize, buf: Store<u8>) -> Option<Store<u8>> {
    with(None, |refs| {
        refs.lanes.get(cpu)?.records.lock().ring.give(buf)
    })
}

/// Whether the ring that a CPU uses has room.
pub(crate) fn has_room(cpu: usize) -> bool {
    with(true, |refs| {
        refs.is_sealed()
            || refs
                .lane_of(cpu)
                .is_none_or(|lane| !lane.records.lock().ring.is_low())
    })
}

/// Moves all records into sub-buffers that can be taken; no admission is on the way. True if none
/// is left to be taken.
pub(crate) fn collect() -> bool {
    with(true, |refs| {
        let mut none = refs.collect();
        let all = none;
        refs.for_each(|ring| {
            if all {
                ring.flush();
            }
            none &= !ring.has_full();
        });
        none
    })
}

/// Whether references of an address space with this number are recorded, as `vmtrace_mm_refs()`.
/// The numbers of an era become invalid before the set is opened again. So who has found the set
/// open, and then asks this, takes no number of the era before for a valid one. x86 keeps these
/// loads in order, and the stores of who opens the set. Events carry numbers without the bit for
/// quiet. For such a number, this is whether the address space is traced.
#[inline(always)]
pub(crate) fn is_of_this_era(id: u32) -> bool {
    // SAFETY: A word that is written as a whole.
    let first = unsafe { (&raw const bindings::vmtrace_first_id).read_volatile() };
    id as i32 >= first as i32
}

/// Takes a number for an admission and makes the page a member, in one go. Its PTE is locked and
/// has allowed the access. The answer is
///
/// - VMTRACE_RESERVE_GO: the page is a member. Its PTE is to be enabled.
/// - VMTRACE_RESERVE_FAR: only the number was taken. [`vmtrace_rs_clear_way`] does the rest.
/// - VMTRACE_RESERVE_CHANGED: mmap_lock may have had a writer before the number was taken. The
///   number is given up.
/// - VMTRACE_RESERVE_FULL: the access faults again, also because the admission was given up.
/// - VMTRACE_RESERVE_OFF: nothing was done.
///
/// With VMTRACE_RESERVE_KICK in it, kvmtraced is to be woken when the locks are dropped.
///
/// # Safety
///
/// `l` is valid, and what C sets in it is set. Preemption is disabled. `l.ptep` is in the page
/// table that `l.a.entry` is of, which is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_admit_locked(l: *mut bindings::vmtrace_locked) {
    let off = bindings::vmtrace_reserve_VMTRACE_RESERVE_OFF;
    // SAFETY: Preemption is disabled, and `l` is as promised.
    let answer = unsafe { with_kept(off, |refs| admit_locked(refs, l, true)) };
    // SAFETY: `l` is valid. C has not initialised all of it, so there is no reference to it.
    unsafe { (&raw mut (*l).answer).write(answer as c_int) };
}

/// Takes the number only, as [`vmtrace_rs_admit_locked`] does if the answer is
/// VMTRACE_RESERVE_FAR. The PTE need not be locked.
///
/// # Safety
///
/// As of [`vmtrace_rs_admit_locked`], but for the lock.
#[export]
pub unsafe extern "C" fn vmtrace_rs_reserve(l: *mut bindings::vmtrace_locked) {
    let off = bindings::vmtrace_reserve_VMTRACE_RESERVE_OFF;
    // SAFETY: Preemption is disabled, and `l` is as promised.
    let answer = unsafe { with_kept(off, |refs| admit_locked(refs, l, false)) };
    // SAFETY: As above.
    unsafe { (&raw mut (*l).answer).write(answer as c_int) };
}

/// Gives the answer.
///
/// # Safety
///
/// As of [`vmtrace_rs_admit_locked`] if `near`, else of [`vmtrace_rs_reserve`].
#[inline(always)]
unsafe fn admit_locked(
    refs: &Refs,
    l: *mut bindings::vmtrace_locked,
    near: bool,
) -> bindings::vmtrace_reserve {
    const KICK: bindings::vmtrace_reserve = bindings::vmtrace_reserve_VMTRACE_RESERVE_KICK;
    const FULL: bindings::vmtrace_reserve = bindings::vmtrace_reserve_VMTRACE_RESERVE_FULL;
    const FAR: bindings::vmtrace_reserve = bindings::vmtrace_reserve_VMTRACE_RESERVE_FAR;
    // SAFETY: `l` is valid, and C has set these.
    let (id, epoch) = unsafe { ((*l).a.mm_id, (*l).epoch) };
    // Before the number of the era, which changes while the set is sealed.
    let mode = refs.mode.load(Acquire);
    if mode & SEALED != 0 || !is_of_this_era(id) {
        return bindings::vmtrace_reserve_VMTRACE_RESERVE_OFF;
    }
    let cpu = this_cpu();
    let Some(lane) = refs.lane_of(cpu) else {
        return FULL;
    };
    let mut guard = lane.records.lock();
    let records = &mut *guard;
    let limited = mode & LIMITED != 0;
    if records.busy || !records.has_room() || limited && !refs.borrow() {
        if !records.has_room() {
            congest(cpu);
        }
        return FULL | KICK;
    }
    let by = Caller {
        cpu,
        epoch,
        time: clock(),
    };
    let Some(mut t) = refs.set.take(by, &NUMBERS, epoch_of) else {
        if limited {
            refs.settle(false);
        }
        return FULL;
    };
    // SAFETY: `l` is valid; its page table is locked if `near`.
    let done = near && unsafe { near_way(refs, l, &mut t, records) };
    if !done {
        records.busy = true;
        // SAFETY: `l` is valid, and a ticket is what C has there.
        unsafe { (&raw mut (*l).ticket).cast::<Ticket>().write(t) };
        return FAR;
    }
    // SAFETY: `l` is valid, and C has set what is read here. No field of `a` is written by
    // others. Its page table is locked.
    let record = unsafe {
        let a: *const bindings::vmtrace_admission = &raw const (*l).a;
        match is_changed(l) {
            true => Err(()),
            // It begins like this, as asserted above.
            false => Ok(refs.set.admit(&t, &*a.cast::<Admission>())),
        }
    };
    if record.is_err() {
        refs.set.abort(&t);
    }
    refs.count(&mut records.done, limited, matches!(record, Ok(Some(_))));
    let scarce = records.ring.is_low() && !EARLY.load(Relaxed);
    if scarce {
        congest(cpu);
    }
    let mut answer = match record {
        Ok(Some(seq)) => {
            // SAFETY: `l` is valid.
            unsafe { (&raw mut (*l).record).write(seq) };
            bindings::vmtrace_reserve_VMTRACE_RESERVE_GO
        }
        Ok(None) => FULL,
        Err(()) => bindings::vmtrace_reserve_VMTRACE_RESERVE_CHANGED,
    };
    if records.ring.has_turned() || scarce {
        answer |= KICK;
    }
    answer
}

/// Does what comes before an admission, if that needs no lock of another page table, or such a lock
/// is free. False if [`vmtrace_rs_clear_way`] has to go on.
///
/// # Safety
///
/// As of [`vmtrace_rs_admit_locked`].
#[inline(always)]
unsafe fn near_way(
    refs: &Refs,
    l: *mut bindings::vmtrace_locked,
    t: &mut Ticket,
    records: &mut Records,
) -> bool {
    if refs.set.looks() {
        return false;
    }
    let mut renewals = 0u32;
    while let Some(out) = refs.set.out(t) {
        let mut end = End::Gone;
        match refs.set.tail(&out) {
            Tail::Nothing => return true,
            Tail::Slow(..) => return false,
            Tail::Record => {}
            Tail::Member(entry) => {
                let mut disabled = NOTHING;
                let mut far = ptr::null_mut();
                // SAFETY: `l` is as promised.
                let Some(ptep) = (unsafe { lock_near(l, entry, &raw mut far) }) else {
                    return false;
                };
                // The victims' PTEs are disabled, but not none. So their page table and their
                // address space are there until its lock is dropped: whoever takes them away has
                // to clear the PTEs first, under that lock.
                // SAFETY: `ptep` is the entry's, and locked; if that is another lock than that of
                // `l.ptep`, it is `far`.
                unsafe {
                    end =
                        refs.end::<true>(t, &out, ptep, (false, true), records, &raw mut disabled);
                    bindings::vmtrace_flush_entry(entry, &raw const disabled);
                    if !far.is_null() {
                        bindings::vmtrace_unlock_entry(far);
                    }
                }
            }
        }
        refs.set.write(&out, |s| records.emit(refs.vtime, s));
        if matches!(end, End::Gone | End::Evicted(_)) {
            return true;
        }
        refs.set.draw(t, &NUMBERS);
        renewals = renewals.wrapping_add(1);
        if renewals == NEAR_RENEWALS {
            return false;
        }
    }
    true
}

/// The PTE of an entry, if its page table is the one that the caller has locked, or could be
/// locked without waiting: the lock is `far` then. `None` for a huge page.
///
/// # Safety
///
/// As of [`vmtrace_rs_admit_locked`]. The entry was a member's since preemption was disabled. `far`
/// is valid.
#[inline(always)]
unsafe fn lock_near(
    l: *mut bindings::vmtrace_locked,
    entry: usize,
    far: *mut *mut bindings::spinlock_t,
) -> Option<*mut bindings::pte_t> {
    // SAFETY: `l` is valid, and C has set these.
    let (own, ptep) = unsafe { ((*l).a.entry, (*l).ptep) };
    if (entry | own) & bindings::VMTRACE_ENTRY_HUGE as usize != 0 {
        return None;
    }
    if (entry ^ own) >> PAGE_SHIFT == 0 {
        // Words and PTEs are of one size.
        let words = (entry as isize).wrapping_sub(own as isize);
        // SAFETY: Both are in one page table.
        return Some(unsafe { ptep.byte_offset(words) });
    }
    // SAFETY: Its page table is freed after a grace period, which has not ended.
    let ptep = unsafe { bindings::vmtrace_trylock_entry(entry, far) };
    (!ptep.is_null()).then_some(ptep)
}

/// Second chances that one admission can give, and members of first segments that it can renew. It
/// bounds the time without preemption; and the records of an admission have room in the sub-buffer
/// that is free when it begins. After so many, pages are evicted, whatever they are.
const CHANCES: u32 = 16;
const RENEWALS: u32 = 64;
/// Of these, with the lock of the page's page table.
const NEAR_RENEWALS: u32 = 4;
const _: () = {
    let most = (CHANCES + RENEWALS + NEAR_RENEWALS + 1) as usize;
    let room = crate::session::LEAST_SIZE as usize - ring::HEAD;
    assert!(most * (record::REF_SIZE + record::VTIME_SIZE) <= room);
};

/// Does what comes before an admission whose number was taken: ends the stay of the page that it
/// puts out of the set. Takes locks of page tables one after the other.
///
/// # Safety
///
/// `l` is valid, and has a ticket. Preemption has been disabled since that was taken. No lock of a
/// page table is held.
#[export]
pub unsafe extern "C" fn vmtrace_rs_clear_way(l: *mut bindings::vmtrace_locked) {
    with((), |refs| {
        // SAFETY: `l` is valid, and has a ticket.
        let t = unsafe { &mut *(&raw mut (*l).ticket).cast::<Ticket>() };
        let Some(lane) = refs.lane_of(t.cpu()) else {
            return;
        };
        let (mut chances, mut renewals) = (0u32, 0u32);
        while let Some(out) = refs.set.out(t) {
            let mut end = End::Gone;
            let tail = refs.set.tail(&out);
            match tail {
                Tail::Nothing => break,
                Tail::Record => {}
                // SAFETY: No lock is held. The entry was a member's since preemption was disabled.
                Tail::Member(entry) | Tail::Slow(_, entry) => unsafe {
                    let may = (chances < CHANCES, renewals < RENEWALS);
                    end = refs.end_far(t, &out, tail, entry, may, lane);
                },
            }
            if matches!(tail, Tail::Slow(..)) {
                continue;
            }
            let emit = |s: &Slot| lane.records.lock().emit(refs.vtime, s);
            refs.set.write(&out, emit);
            match end {
                End::Gone | End::Evicted(_) => break,
                End::Renewed => renewals = renewals.wrapping_add(1),
                End::Chance => chances = chances.wrapping_add(1),
            }
            refs.set.draw(t, &NUMBERS);
        }
        if let Some(passed) = refs.set.pass(t) {
            let mut disabled = NOTHING;
            let mut ptl = ptr::null_mut();
            // SAFETY: As above.
            unsafe {
                let ptep = bindings::vmtrace_lock_entry(passed.1, &raw mut ptl);
                let mut range = Range::NONE;
                refs.set.sweep(passed, |s| range.sweep(ptep, s).young);
                range.put(&raw mut disabled);
                bindings::vmtrace_flush_entry(passed.1, &raw const disabled);
                bindings::vmtrace_unlock_entry(ptl);
            }
        }
    });
}

/// Makes a page a member under the number that was taken for it. Its PTE is locked, and the same as
/// before. Returns the sequence number of its record, [`NO_SEQ`] if it gets none: then it is no
/// member, and the number is given up.
///
/// # Safety
///
/// `l` is valid, has a ticket, and all fields of `l.a` are set. `l.a.entry` is the handle of the
/// PTE, which is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_admit(l: *mut bindings::vmtrace_locked) -> u64 {
    with(NO_SEQ, |refs| {
        // SAFETY: `l` is valid, and has a ticket. It begins like this, as asserted above.
        let (t, a) = unsafe {
            (
                *(&raw const (*l).ticket).cast::<Ticket>(),
                &*(&raw const (*l).a).cast::<Admission>(),
            )
        };
        // SAFETY: The page table is locked.
        let record = unsafe { refs.set.admit(&t, a) };
        refs.finish(&t, record.is_some());
        record.unwrap_or(NO_SEQ)
    })
}

/// Gives up an admission; its victim's stay has ended all the same.
///
/// # Safety
///
/// `l` is valid, and has a ticket.
#[export]
pub unsafe extern "C" fn vmtrace_rs_abort(l: *mut bindings::vmtrace_locked) {
    with((), |refs| {
        // SAFETY: As promised.
        let t = unsafe { *(&raw const (*l).ticket).cast::<Ticket>() };
        refs.set.abort(&t);
        refs.finish(&t, false);
    })
}

impl Refs {
    /// Does what [`Set::tail`] asks for with the lock of a member's page table.
    ///
    /// # Safety
    ///
    /// No lock of a page table is held. The entry was a member's since preemption was disabled.
    unsafe fn end_far(
        &self,
        t: &mut Ticket,
        out: &Out<'_, Kernel>,
        tail: Tail,
        entry: usize,
        may: (bool, bool),
        lane: &Lane,
    ) -> End {
        let mut disabled = NOTHING;
        let mut ptl = ptr::null_mut();
        // SAFETY: The page table is there until this CPU enables preemption, as promised.
        let ptep = unsafe { bindings::vmtrace_lock_entry(entry, &raw mut ptl) };
        let end = if let Tail::Slow(ordinal, _) = tail {
            let mut range = Range::NONE;
            // SAFETY: It is the member's, and locked.
            let disable = |s: &Slot, young| unsafe { range.take(self, ptep, s, young) };
            let why = bindings::VMTRACE_WHY_EVICTED;
            // SAFETY: The page table is locked.
            unsafe {
                let ended = self
                    .set
                    .end_at(ordinal, t.number.ordinal, why, t.time, disable);
                range.put(&raw mut disabled);
                self.count_closed(u64::from(ended));
            }
            End::Gone
        } else {
            let mut records = lane.records.lock();
            // SAFETY: `ptep` is the member's, and locked.
            unsafe { self.end::<false>(t, out, ptep, may, &mut records, &raw mut disabled) }
        };
        // SAFETY: The page table is locked; `ptl` is its lock.
        unsafe {
            bindings::vmtrace_flush_entry(entry, &raw const disabled);
            bindings::vmtrace_unlock_entry(ptl);
        }
        end
    }

    /// Ends an admission that went the far way.
    fn finish(&self, t: &Ticket, admitted: bool) {
        let Some(lane) = self.lane_of(t.cpu()) else {
            return;
        };
        let mut records = lane.records.lock();
        records.busy = false;
        self.count(&mut records.done, self.is_limited(), admitted);
        let scarce = records.ring.is_low() && !EARLY.load(Relaxed);
        let full = records.ring.has_full();
        drop(records);
        if scarce {
            congest(t.cpu());
        }
        if scarce || full {
            kick();
        }
    }
}

/// Whether mmap_lock has had a writer since before the number was taken, as
/// `mmap_lock_speculate_retry()`.
///
/// # Safety
///
/// `l` is valid, and its pointer to mmap_lock's count is null or valid.
#[inline(always)]
unsafe fn is_changed(l: *const bindings::vmtrace_locked) -> bool {
    // SAFETY: `l` is valid, and C has set this.
    let count = unsafe { (*l).lock_seq };
    if count.is_null() {
        return false;
    }
    // The count is read after the number was taken.
    smp_mb(Read);
    // SAFETY: It is that of an address space in use, whose writers store whole words. C has set
    // `seq` with it.
    unsafe { count.read_volatile() != (*l).seq }
}

/// Ends the stay of a page whose enabled PTE was cleared; gives VMTRACE_CLOSE_*.
/// A page that is no member may have a funny PTE; the caller knows that.
///
/// # Safety
///
/// `entry` is 0, or the handle of the entry, whose page table is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_close(
    mm: u32,
    addr: u64,
    last: u32,
    why: u32,
    entry: usize,
) -> c_int {
    let funny = bindings::vmtrace_close_VMTRACE_CLOSE_FUNNY;
    with(funny, |refs| {
        let page = page_at(mm, addr, entry);
        // SAFETY: As promised.
        let (hidden, closed) = unsafe {
            (
                refs.set.hidden(page),
                refs.set.close(page, bits(last), why, clock(), &NUMBERS),
            )
        };
        if closed {
            refs.count_closed(1);
        }
        match closed {
            true if hidden => bindings::vmtrace_close_VMTRACE_CLOSE_YOUNG,
            true => bindings::vmtrace_close_VMTRACE_CLOSE_MEMBER,
            false => funny,
        }
    }) as c_int
}

/// Notes that the disabled PTE of a page that is dropped was cleared; see
/// [`Set::overtake`]. The oracle reads which page that is.
///
/// # Safety
///
/// `entry` is 0, or the handle of the entry, whose page table is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_dropped(_mm: u32, _addr: u64, entry: usize) {
    // SAFETY: As promised.
    with((), |refs| unsafe { refs.set.overtake(entry, &NUMBERS) });
}

/// Notes that the event of a drop has its number, while no new page can take the place of
/// those that it dropped; see [`Set::overtake_all`].
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_drop_logged() {
    with((), |refs| refs.set.overtake_all(&NUMBERS));
}

/// Counts a funny PTE: one that was enabled and no member's.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_funny() {
    with((), |refs| {
        if !refs.is_sealed() {
            refs.funny.add(1u64, Relaxed);
        }
    })
}

/// Whether the set has cleared the accessed bit of a page, and no other user
/// has seen that it was set.
///
/// # Safety
///
/// `entry` is 0, or the handle of the entry, whose page table is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_hidden(mm: u32, addr: u64, entry: usize) -> bool {
    // SAFETY: As promised.
    with(false, |refs| unsafe {
        refs.set.hidden(page_at(mm, addr, entry))
    })
}

/// Notes that another user cleared the accessed bit of a page, which was `young`.
/// Returns the value that the other user is to see.
///
/// # Safety
///
/// `entry` is 0, or the handle of the entry, whose page table is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_aged(mm: u32, addr: u64, young: bool, entry: usize) -> bool {
    // SAFETY: As promised.
    with(young, |refs| unsafe {
        refs.set.aged(page_at(mm, addr, entry), young)
    })
}

/// Notes a store to a member.
///
/// # Safety
///
/// `entry` is 0, or the handle of the entry, whose page table is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_dirtied(mm: u32, addr: u64, entry: usize) -> bool {
    // SAFETY: As promised.
    with(false, |refs| unsafe {
        refs.set.dirtied(page_at(mm, addr, entry))
    })
}

/// Whether a page is a member.
///
/// # Safety
///
/// `entry` is 0, or the handle of the entry, whose page table is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_member(mm: u32, addr: u64, entry: usize) -> bool {
    // SAFETY: As promised.
    with(false, |refs| unsafe {
        refs.set.frame(page_at(mm, addr, entry)).is_some()
    })
}

/// Names the next member from number `at` on, if there is one near: its number and its entry. False
/// if there can be no more. Who has had all of them in turn looks at each slot once.
///
/// # Safety
///
/// `c` is valid. Preemption is disabled for as long as the entry is used.
#[export]
pub unsafe extern "C" fn vmtrace_rs_next_member(c: *mut bindings::vmtrace_cursor) -> bool {
    // SAFETY: As promised.
    let c = unsafe { &mut *c };
    c.entry = 0;
    with(false, |refs| {
        let next = NUMBERS.next().ordinal;
        if c.end == 0 {
            // Members that come in later are left out, so that this comes to an end.
            c.end = next.saturating_add(refs.set.size());
        }
        let begin = next.saturating_sub(refs.set.size()).max(refs.set.start());
        c.at = c.at.max(begin);
        let end = c.end.min(next);
        let to = c.at.saturating_add(STEP).min(end);
        while c.at < to {
            c.ordinal = c.at;
            c.at = c.at.wrapping_add(1);
            if let Some(entry) = refs.set.member(c.ordinal) {
                c.entry = entry;
                break;
            }
        }
        c.at < end
    })
}

/// Ends the stay of the member of `c` and those of members after it that are in the same page
/// table, as far as they follow each other and are below `c.end`, and disables their PTEs.
/// `disabled` gets their range.
///
/// # Safety
///
/// The pointers are valid, and `ptep` is the entry's PTE, which is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_drain(
    c: *mut bindings::vmtrace_cursor,
    ptep: *mut bindings::pte_t,
    why: u32,
    now: u64,
    disabled: *mut bindings::vmtrace_batch,
) {
    // SAFETY: As promised.
    let c = unsafe { &mut *c };
    with((), |refs| {
        let mut range = Range::NONE;
        let next = NUMBERS.next().ordinal;
        let (mut at, mut ended) = (c.ordinal, 0u64);
        for _ in 0..DRAIN {
            if at >= c.end {
                break;
            }
            let Some(entry) = refs.set.member(at) else {
                break;
            };
            if entry != c.entry && !is_beside(entry, c.entry) {
                break;
            }
            // SAFETY: It is in the page table of `ptep`, which is locked.
            unsafe {
                let disable = |s: &Slot, young| range.take(refs, ptep, s, young);
                let done = refs.set.end_at(at, next, why, now, disable);
                ended = ended.wrapping_add(u64::from(done));
            }
            at = at.wrapping_add(1);
        }
        c.at = c.at.max(at);
        refs.count_closed(ended);
        // SAFETY: As promised.
        unsafe { range.put(disabled) };
    });
}

/// Members whose stays one call of [`vmtrace_rs_drain`] ends.
const DRAIN: u32 = 64;

/// Pauses the set, or lets it go on: while it is paused, no tickets are given. Those on the way end
/// before a grace period of RCU has passed.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_pause(pause: bool) {
    with((), |refs| match pause {
        true => refs.set.pause(),
        false => refs.set.go_on(),
    });
}

/// Where the set of size `n` begins; 0 if there is no set.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_begin_of(n: u64) -> u64 {
    with(0, |refs| refs.begin_of(n))
}

/// Writes the records of what was before the number `to`, as far as there is room. No admission is
/// on the way, and there is no member before `to`. True if all are written.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_shrink(to: u64) -> bool {
    with(true, |refs| refs.collect_before(to))
}

/// The set has this size from here on. No admission is on the way, and no member is beyond it.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_sized(n: u64) {
    with((), |refs| refs.set.resize(n));
}

/// What an audit may judge: while the set is sealed, faults enable pages that are
/// no members.
fn with_open<R>(none: R, f: impl FnOnce(&Refs) -> R) -> R {
    with(None, |refs| (!refs.is_sealed()).then(|| f(refs))).unwrap_or(none)
}

/// Counts an address space that is audited.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_audited() {
    with((), |refs| refs.audits.add(1u64, Relaxed))
}

/// Counts an address space that could not be audited.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_unaudited() {
    UNAUDITED.add(1u32, Relaxed);
}

/// Judges an accessible PTE of `mm`, whose lock is held: VMTRACE_FOUND_*.
///
/// # Safety
///
/// `mm` is valid. `entry` is 0, or the handle of the PTE.
#[export]
pub unsafe extern "C" fn vmtrace_rs_audit_pte(
    mm: *const bindings::mm_struct,
    addr: u64,
    pfn: u32,
    entry: usize,
) -> c_int {
    let found = with_open(bindings::vmtrace_found_VMTRACE_FOUND_NOTHING, |refs| {
        // The trace that this set is of must be the one that `mm` is of.
        // SAFETY: Valid, as promised.
        let id = unsafe { bindings::vmtrace_mm_id(mm) };
        // SAFETY: The PTE is locked.
        match unsafe { refs.set.frame(page_at(id, addr, entry)) } {
            _ if id == 0 => bindings::vmtrace_found_VMTRACE_FOUND_NOTHING,
            Some(frame) if frame == pfn => bindings::vmtrace_found_VMTRACE_FOUND_NOTHING,
            Some(_) => {
                refs.dangling.add(1u64, Relaxed);
                bindings::vmtrace_found_VMTRACE_FOUND_ASTRAY
            }
            None => {
                refs.funny.add(1u64, Relaxed);
                bindings::vmtrace_found_VMTRACE_FOUND_FUNNY
            }
        }
    });
    found as c_int
}

/// Judges the member of `c`, whose PTE is locked, and perhaps `enabled`, with this frame.
/// VMTRACE_FOUND_*. `m` gets what the set knows of it. What dangles is a member no more after this,
/// lest it outlive its page table.
///
/// # Safety
///
/// The pointers are valid.
#[export]
pub unsafe extern "C" fn vmtrace_rs_audit_member(
    c: *const bindings::vmtrace_cursor,
    enabled: bool,
    pfn: u32,
    m: *mut bindings::vmtrace_member,
) -> c_int {
    // SAFETY: As promised.
    let (c, m) = unsafe { (&*c, &mut *m) };
    let found = with_open(bindings::vmtrace_found_VMTRACE_FOUND_NOTHING, |refs| {
        // SAFETY: The PTE is locked.
        let Some((s, is_sound)) = (unsafe { refs.set.look_at(c.ordinal) }) else {
            // Its stay ended meanwhile.
            return bindings::vmtrace_found_VMTRACE_FOUND_NOTHING;
        };
        if !is_sound {
            refs.miscounted.add(1u64, Relaxed);
        }
        m.mm = s.owner as *mut bindings::mm_struct;
        m.addr = s.page & !(PAGE_SIZE as u64 - 1);
        m.mm_id = s.mm;
        // SAFETY: The address space of a member is there while its PTE is locked.
        let id = unsafe { bindings::vmtrace_mm_id(m.mm) };
        if enabled && s.pfn == pfn && (id == s.mm || id == 0) {
            return bindings::vmtrace_found_VMTRACE_FOUND_NOTHING;
        }
        refs.dangling.add(1u64, Relaxed);
        if enabled {
            return bindings::vmtrace_found_VMTRACE_FOUND_ASTRAY;
        }
        let next = NUMBERS.next().ordinal;
        let why = bindings::VMTRACE_WHY_OTHER;
        // SAFETY: As above.
        let ended = unsafe {
            refs.set
                .end_at(c.ordinal, next, why, clock(), |_, _| Bits::default())
        };
        refs.count_closed(u64::from(ended));
        bindings::vmtrace_found_VMTRACE_FOUND_DANGLING
    });
    found as c_int
}

/// Audits the set's own figures. No admission is on the way.
///
/// # Safety
///
/// `a` is valid.
#[export]
pub unsafe extern "C" fn vmtrace_rs_audit_set(a: *mut bindings::vmtrace_audit) {
    // SAFETY: As promised.
    let a = unsafe { &mut *a };
    with_open((), |refs| {
        let (f, is_counted) = refs.figures();
        let done = refs.done();
        a.size = refs.set.size();
        refs.note_members(f.live);
        a.members = f.live;
        a.first = f.first;
        a.reserved = f.reserved;
        // Each ticket was for an admission, or for one that was given up. Each number was given to
        // one of these, or to a stay that goes on.
        let tickets = done.admissions.wrapping_add(done.aborted);
        let numbers = tickets
            .wrapping_add(done.renewed)
            .wrapping_add(done.chances)
            .wrapping_add(refs.set.start());
        a.wrong = f
            .wrong
            .wrapping_add(u64::from(f.tickets != tickets as u32))
            .wrapping_add(u64::from(!is_counted))
            .wrapping_add(u64::from(numbers != NUMBERS.next().ordinal));
        refs.miscounted.add(a.wrong, Relaxed);
    });
}

/// Counts memory that is accessed without the tracer.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_uncovered() {
    with((), |refs| refs.uncovered.add(1u64, Relaxed))
}

/// Counts a wait for room.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_waited() {
    WAITS.add(1u64, Relaxed);
}

/// Whether less than one part in `share` of the reserve is taken that this CPU's ring has. Then an
/// admission need not wait.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_spare(share: bindings::vmtrace_spare) -> bool {
    with(true, |refs| {
        refs.lane_of(this_cpu())
            .is_none_or(|lane| lane.records.lock().ring.has_reserve(share as usize))
    })
}

/// Counts an address space.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_mm() {
    MMS.add(1u64, Relaxed);
}
