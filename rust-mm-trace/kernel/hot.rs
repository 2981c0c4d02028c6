// SPDX-License-Identifier: GPL-2.0

//! The references of the present trace: the set, and each CPU's ring of records.
//!
//! CPUs share a counter ([`NUMBERS`]) and the slots of the set, and no lock. Each CPU has a ring of
//! records, and each ring has a lock. The lock is taken by its CPU, by kvmtraced, which empties the
//! ring, and by whoever adds up the figures of all CPUs.
//!
//! Lock order: page table lock → the lock of a ring. Under the lock of a ring, nobody waits for the
//! lock of a page table or of another ring: a page table's lock is only trylocked. The TLB is
//! flushed under it, so it is waited for with interrupts enabled only. The last admission of a
//! window wakes the thread of the trace under the lock: who has a lock of that wake-up never waits
//! for the lock of a ring of references.

use crate::{
    recall,
    record::{self, Extras, OFFSET_SIZE, REF_SIZE, VTIME_SIZE},
    ring::{self, Base, Packet, Ring},
    scopes::{self, Of, Scope},
    stay::{Slot, LEFT},
    tables::{id_of, is_broken, late},
    tickets::{Atom, Counter, Figures, Place, Primitives},
    Store,
};
use core::{
    cell::UnsafeCell,
    ptr::{self, NonNull},
};
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
        barrier::smp_mb,
        rcu, Arc, SpinLock,
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

    #[inline(always)]
    fn looks_again() -> bool {
        !is_broken(bindings::VMTRACE_BREAK_NOLIVE)
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

/// An admission. Zeros are [`Slot::EMPTY`].
pub(crate) struct Shared(UnsafeCell<Slot>);

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

/// A CPU's records of references.
pub(crate) struct Records {
    pub(crate) ring: Ring,
    /// A CPU is on the far way: it takes locks of page tables between its records. Other CPUs that
    /// use this ring get no ticket meanwhile, for the records of a ring are in order. Their
    /// accesses fault again.
    pub(crate) busy: bool,
    /// Which one it is.
    lane: usize,
    /// Records have more than [`REF_SIZE`] bytes: these.
    extras: Extras,
    /// Records may be left out.
    filters: bool,
    /// One of both.
    unusual: bool,
    /// What the CPU has done in this trace.
    pub(crate) done: Done,
}

/// Numbers that were given out, by what became of them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Done {
    pub(crate) admissions: u64,
    pub(crate) aborted: u64,
    pub(crate) renewed: u64,
    pub(crate) chances: u64,
    /// Stays that ended.
    pub(crate) ended: u64,
    /// Records that a filter has left out.
    pub(crate) left_out: u64,
}

#[pin_data]
pub(crate) struct Lane {
    #[pin]
    pub(crate) records: SpinLock<Records>,
    /// Stays that ended without the lock of `records`.
    closed: Atomic<u64>,
}

/// References: their streams, and set 0. Those of the present trace are found under RCU ([`with`]). So
/// who has a reference to them is in a section that keeps grace periods of RCU from ending.
///
/// # Invariants
///
/// `of` points to lanes in `lanes`, which stay where they are.
pub(crate) struct Refs {
    pub(crate) common: Arc<Scope>,
    /// There is no other set.
    alone: bool,
    /// The first number of the trace, among those of all sets.
    pub(crate) start: u64,
    lanes: KVVec<Pin<KBox<Lane>>>,
    /// The lane of each CPU.
    of: Store<NonNull<Lane>>,
    /// `SEALED` and `LIMITED`; 0 most of the time.
    pub(crate) mode: Atomic<u32>,
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
    /// The most members that anybody counted: see [`Refs::members`].
    pub(crate) peak: Atomic<u64>,
}

/// No admission any more: faults enable pages without a record.
pub(crate) const SEALED: u32 = 1 << 0;
/// The window has a limit.
pub(crate) const LIMITED: u32 = 1 << 1;

/// Those of the present trace, or null. Read under RCU.
static PRESENT: Atomic<*mut Refs> = Atomic::new(ptr::null_mut());

/// The numbers of admissions and of all records. Those of admissions go on over traces.
pub(crate) static NUMBERS: Counter<Word> = {
    Counter::zero(
        Word::new(),
        Word::new(),
        Word::new(),
        Word::new(),
        Word::new(),
        Word::new(),
    )
};
/// Times that a task waited for room.
pub(crate) static WAITS: Atomic<u64> = Atomic::new(0);
/// Address spaces traced.
pub(crate) static MMS: Atomic<u64> = Atomic::new(0);
/// A trace from boot that has no output yet: nothing makes room, so no task waits
/// for room, and a record without room is lost.
pub(crate) static EARLY: Atomic<bool> = Atomic::new(false);
/// A trace that discards: no task waits for room, and a record without room is lost.
pub(crate) static DISCARDS: Atomic<bool> = Atomic::new(false);

/// The sequence number of what has no record.
pub(crate) const NO_SEQ: u64 = u64::MAX;

/// A CPU reads the time before it takes a number. It may be interrupted in between, while other CPUs
/// go on. So in the order of numbers, times of several CPUs go back by as long as that takes. Packets
/// leave this much room for it, ns.
const EARLY_NS: u64 = 1 << 28;

/// Comparisons of what is counted with what there is.
const TRIES: u32 = 8;

/// Slots that one step over all of them looks at.
pub(crate) const STEP: u64 = 256;

pub(crate) fn next_seq() -> u64 {
    NUMBERS.event()
}

/// The next number of an admission, among those of all sets.
pub(crate) fn clock_next() -> u64 {
    NUMBERS.next().ordinal
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
pub(crate) fn epoch_of(cpu: usize) -> u32 {
    // SAFETY: Loads a number, of any CPU.
    unsafe { bindings::vmtrace_epoch_of(cpu as u32) }
}

impl Records {
    /// Whether an admission may begin: there is room for what it writes.
    pub(crate) fn has_room(&self) -> bool {
        self.ring.free() > 0 || EARLY.load(Relaxed) || DISCARDS.load(Relaxed)
    }

    /// Whether little room is left, so that the CPU's tasks are to wait for more.
    #[inline(always)]
    pub(crate) fn is_scarce(&self) -> bool {
        self.ring.is_low() && !EARLY.load(Relaxed)
    }

    /// Writes a record. It counts as lost if there is no room.
    #[inline(never)]
    pub(crate) fn emit(&mut self, slot: &Slot, scope: &Scope) {
        if !self.try_emit(slot, scope) {
            self.ring.had.lost_full = self.ring.had.lost_full.wrapping_add(1);
            let lane = self.lane;
            Of { scope, lane }.lose();
        }
    }

    /// Writes a record, if there is room, or leaves it out.
    #[inline(always)]
    pub(crate) fn try_emit(&mut self, slot: &Slot, scope: &Scope) -> bool {
        const LONG: usize = REF_SIZE + VTIME_SIZE;
        match self.unusual {
            true => match self.extras {
                Extras::VTIME if !self.filters => self.emit_as::<LONG, false>(slot, scope),
                _ => self.emit_unusual(slot, scope),
            },
            false => self.emit_as::<REF_SIZE, false>(slot, scope),
        }
    }

    /// Counts a record that is left out. False if a control has it written.
    fn leave_out(&mut self) -> bool {
        let leaves = !is_broken(bindings::VMTRACE_BREAK_KEEPLEFT);
        self.done.left_out = self.done.left_out.wrapping_add(u64::from(leaves));
        leaves
    }

    /// Writes a record with an offset, or one that may be left out.
    #[cold]
    #[inline(never)]
    fn emit_unusual(&mut self, slot: &Slot, scope: &Scope) -> bool {
        const LONG: usize = REF_SIZE + VTIME_SIZE;
        if slot.page & LEFT != 0 && self.leave_out() {
            return true;
        }
        match self.extras {
            Extras::NONE => self.emit_as::<REF_SIZE, false>(slot, scope),
            Extras::VTIME => self.emit_as::<LONG, false>(slot, scope),
            Extras::OFFSET => self.emit_as::<{ REF_SIZE + OFFSET_SIZE }, true>(slot, scope),
            _ => self.emit_as::<{ LONG + OFFSET_SIZE }, true>(slot, scope),
        }
    }

    #[inline(always)]
    fn emit_as<const SIZE: usize, const OFFSET: bool>(
        &mut self,
        slot: &Slot,
        scope: &Scope,
    ) -> bool {
        let write = |out: &mut [u8], base: &Base| record::put_ref::<SIZE, OFFSET>(out, slot, base);
        let lane = self.lane;
        let of = Of { scope, lane };
        self.ring.push(SIZE, slot.seq, slot.time, &of, write)
    }
}

impl Refs {
    /// An empty set, and no admission yet. `rings` are by CPU; a CPU whose ring has no sub-buffer
    /// uses another one. Each ring keeps so many sub-buffers for those who must not wait.
    pub(crate) fn new(
        common: Arc<Scope>,
        rings: Store<Ring>,
        kept: usize,
        extras: Extras,
        filters: bool,
    ) -> Result<KBox<Refs>> {
        let mut of = Store::from_elem(0u16, rings.len(), GFP_KERNEL)?;
        if !ring::share_out(&mut of, |cpu| rings.get(cpu).is_some_and(|r| r.total() > 0)) {
            return Err(EAGAIN);
        }
        let mut lanes: KVVec<Pin<KBox<Lane>>> = KVVec::with_capacity(rings.len(), GFP_KERNEL)?;
        let several = rings.len() > 1;
        for (lane, mut ring) in rings.into_iter().enumerate() {
            ring.keep(kept);
            if several {
                ring.expect_early(EARLY_NS);
            }
            let records = Records {
                ring,
                busy: false,
                lane,
                extras,
                filters,
                unusual: extras != Extras::NONE || filters,
                done: Done::default(),
            };
            let lane = pin_init!(Lane {
                records <- new_spinlock!(records, "vmtrace::hot::records"),
                closed: Atomic::new(0),
            });
            lanes.push(KBox::pin_init(lane, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        let mut lane_of = Store::with_capacity(of.len(), GFP_KERNEL)?;
        for at in of.iter() {
            let lane = lanes.get(usize::from(*at)).ok_or(EINVAL)?;
            lane_of.push(NonNull::from(&**lane), GFP_KERNEL)?;
        }
        let refs = Refs {
            alone: common.set.own_ordinals().is_none(),
            common,
            start: clock_next(),
            lanes,
            of: lane_of,
            mode: Atomic::new(0),
            credit: Atomic::new(0),
            lacks: Atomic::new(0),
            funny: Atomic::new(0),
            stuck: Atomic::new(0),
            audits: Atomic::new(0),
            dangling: Atomic::new(0),
            miscounted: Atomic::new(0),
            uncovered: Atomic::new(0),
            peak: Atomic::new(0),
        };
        Ok(KBox::new(refs, GFP_KERNEL)?)
    }

    /// Set 0, if there is no other.
    pub(crate) fn only_scope(&self) -> Option<*const Scope> {
        self.alone.then(|| Arc::as_ptr(&self.common))
    }

    /// The lane that a CPU's records go into.
    #[inline(always)]
    pub(crate) fn lane_of(&self, cpu: usize) -> Option<&Lane> {
        // SAFETY: By the type's invariant.
        Some(unsafe { self.of.get(cpu)?.as_ref() })
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
            all.left_out = all.left_out.wrapping_add(done.left_out);
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

    /// Does `f` with a CPU's ring and with what became of the numbers that it has given out, under the
    /// ring's lock. `None` if the ring has no sub-buffers.
    pub(crate) fn with_ring<R>(&self, cpu: usize, f: impl FnOnce(&Ring, &Done) -> R) -> Option<R> {
        let records = self.lanes.get(cpu)?.records.lock();
        (records.ring.total() > 0).then(|| f(&records.ring, &records.done))
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
        NUMBERS.open();
        let limited = if limit != u64::MAX { LIMITED } else { 0 };
        self.mode
            .store(limited | if sealed { SEALED } else { 0 }, Release);
    }

    /// Whether the window has all of its admissions.
    pub(crate) fn is_full(&self) -> bool {
        self.is_limited() && self.lacks.load(Relaxed) == 0
    }

    /// Whether the window has a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.mode.load(Relaxed) & LIMITED != 0
    }

    /// Takes one of the admissions that a window with a limit may have yet.
    #[cold]
    pub(crate) fn borrow(&self) -> bool {
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
    pub(crate) fn settle(&self, admitted: bool) {
        if !admitted {
            self.credit.add(1u64, Relaxed);
        } else if self.lacks.fetch_sub(1u64, Relaxed) == 1 {
            self.seal();
            recall::set_full(true);
        }
    }

    /// Counts what became of an admission.
    #[inline(always)]
    pub(crate) fn count(&self, done: &mut Done, limited: bool, admitted: bool) {
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
        let ended = self.done().ended.wrapping_add(NUMBERS.missed());
        let members = admitted.saturating_sub(ended);
        self.note_members(members);
        members
    }

    /// Notes how many members somebody counted.
    pub(crate) fn note_members(&self, members: u64) {
        let mut peak = self.peak.load(Relaxed);
        while peak < members {
            match self.peak.cmpxchg(peak, members, Relaxed) {
                Ok(_) => break,
                Err(now) => peak = now,
            }
        }
    }

    /// Counts stays that ended without the lock of records.
    pub(crate) fn count_closed(&self, many: u64) {
        late(bindings::vmtrace_late_point_VMTRACE_LATE_COUNTING);
        if let Some(lane) = self.lane_of(this_cpu()) {
            lane.closed.add(many, Relaxed);
        }
    }
}

/// The figures of all sets, and whether there are as many members as were counted. No admission is on
/// the way; but stays may end at any time, and are counted after that. The context may sleep.
pub(crate) fn figures() -> (Figures, bool) {
    let mut f = Figures::default();
    for _ in 0..TRIES {
        let before = Ended::now();
        f = scopes::figures();
        let mut after = Ended::now();
        if after.leave(f.live) {
            return (f, true);
        }
        if after.ended == before.ended {
            // A CPU may have ended a stay before `f` was taken, and be about to count it. It is in a
            // section of RCU until it has.
            // SAFETY: The context may sleep, and is in no such section.
            unsafe { bindings::synchronize_rcu_expedited() };
            after = Ended::now();
        }
        // If stays have ended meanwhile, this says nothing.
        if after.ended == before.ended {
            return (f, after.leave(f.live));
        }
    }
    (f, true)
}

/// How many stays have begun and ended.
struct Ended {
    begun: u64,
    ended: u64,
}

impl Ended {
    fn now() -> Ended {
        let done = with(Done::default(), Refs::done);
        Ended {
            begun: done.admissions,
            ended: done.ended.wrapping_add(NUMBERS.missed()),
        }
    }

    /// Whether so many stays go on.
    fn leave(&self, live: u64) -> bool {
        self.begun.wrapping_sub(self.ended) == live
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
pub(crate) unsafe fn with_kept<R>(none: R, f: impl FnOnce(&Refs) -> R) -> R {
    let refs = PRESENT.load(Acquire);
    if refs.is_null() {
        return none;
    }
    // SAFETY: Freed after a grace period only.
    f(unsafe { &*refs })
}

/// Does `f` with the references of the present trace and the set of an address space, if its
/// references are recorded. `f` must not sleep.
///
/// # Safety
///
/// `mm` is valid.
#[inline(always)]
pub(crate) unsafe fn with_set<R>(
    mm: *const bindings::mm_struct,
    none: R,
    f: impl FnOnce(&Refs, &Scope) -> R,
) -> R {
    let _guard = rcu::read_lock();
    // SAFETY: This is a read-side critical section of RCU, and `mm` is valid.
    let (refs, set) = unsafe {
        let valid = is_of_this_era(id_of(mm));
        let refs = PRESENT.load(Acquire);
        (if valid { refs } else { ptr::null_mut() }, set_of(mm))
    };
    if refs.is_null() || set.is_null() {
        return none;
    }
    // SAFETY: Both are freed after a grace period only, which has not begun while the number was
    // valid: see scopes.rs.
    unsafe { f(&*refs, &*set) }
}

/// The set of an address space. It is there in the section of RCU in which its number is valid.
///
/// # Safety
///
/// `mm` is valid.
#[inline(always)]
pub(crate) unsafe fn set_of(mm: *const bindings::mm_struct) -> *const Scope {
    // SAFETY: Valid, as promised. The pointer is stored as a whole.
    unsafe {
        (&raw const (*mm).__bindgen_anon_1.vmtrace_set)
            .read_volatile()
            .cast()
    }
}

/// Puts those of a trace that begins in place, and the sets.
pub(crate) fn install(refs: KBox<Refs>, list: KBox<scopes::List>) {
    scopes::install(list);
    // SAFETY: One trace begins at a time. Who reads it does so from outside.
    unsafe { (&raw mut bindings::vmtrace_view).write(refs.common.view()) };
    PRESENT.store(KBox::into_raw(refs), Release);
}

/// Those of a trace that has ended. To be dropped where the context may sleep.
pub(crate) struct Removed(
    #[allow(dead_code)] KBox<Refs>,
    #[allow(dead_code)] Option<KBox<scopes::List>>,
);

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
    let refs = unsafe { KBox::from_raw(refs) };
    Some(Removed(refs, scopes::remove()))
}

/// Takes the oldest full sub-buffer of a CPU.
pub(crate) fn take(cpu: usize) -> Option<Packet> {
    with(None, |refs| {
        let packet = refs.lanes.get(cpu)?.records.lock().ring.take()?;
        refs.members();
        Some(packet)
    })
}

/// Takes the oldest full sub-buffer of a CPU, if it has a number below `seq`.
pub(crate) fn take_before(cpu: usize, seq: u64) -> Option<Packet> {
    with(None, |refs| {
        let mut records = refs.lanes.get(cpu)?.records.lock();
        records.ring.take_before(seq)
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
    let all = scopes::collect();
    with(true, |refs| {
        let mut none = all;
        refs.for_each(|ring| {
            if all {
                ring.flush();
            }
            none &= !ring.has_full();
        });
        none
    })
}

/// Some time has passed: what a ring has had since the last call can be taken.
pub(crate) fn tick() {
    with((), |refs| refs.for_each(Ring::tick));
}

/// Whether references of an address space with this number are recorded, as `vmtrace_mm_refs()`.
/// The numbers of an era become invalid before the set is opened again. So who has found the set
/// open, and then asks this, takes no number of the era before for a valid one. x86 keeps these
/// loads in order, and the stores of who opens the set. Events carry numbers without the bit for
/// quiet. For such a number, this is whether the address space is traced.
#[inline(always)]
pub(crate) fn is_of_this_era(id: u32) -> bool {
    id as i32 >= first_id() as i32
}

/// Address spaces with smaller numbers are of earlier traces or windows.
#[inline(always)]
pub(crate) fn first_id() -> u32 {
    // SAFETY: A word that is written as a whole.
    unsafe { (&raw const bindings::vmtrace_first_id).read_volatile() }
}

/// Counts a funny entry: one that was enabled and no member's.
pub(crate) fn count_funny() {
    with((), |refs| {
        if !refs.is_sealed() {
            refs.funny.add(1u64, Relaxed);
        }
    })
}

/// Counts memory that is accessed without the tracer.
pub(crate) fn count_uncovered() {
    with((), |refs| refs.uncovered.add(1u64, Relaxed))
}

/// Counts memory that is accessed without the tracer.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_uncovered() {
    count_uncovered();
}

/// Who takes room of the reserve of a ring. The value is the part of the reserve that may be taken:
/// a half or a quarter. So tasks that the output needs find room when system calls find none.
#[derive(Clone, Copy)]
pub(crate) enum Spare {
    Needed = 2,
    Calls = 4,
}

/// Whether less than this share of the reserve is taken that this CPU's ring has. Then an admission
/// need not wait. Takes the ring's lock.
pub(crate) fn has_spare(share: Spare) -> bool {
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
