// SPDX-License-Identifier: GPL-2.0

//! The protocol of a reference: reserve, evict, admit.
//!
//! An access has found a disabled entry. C has found its page table (pte.c), and keeps it by a
//! section without preemption. Then
//!
//! 1. the entry is locked, and must still be what was found;
//! 2. a number is taken: [`Set::take`](crate::tickets::Set::take);
//! 3. the stay of the member that this number puts out of the set is ended, with those of its
//!    batch: [`Set::end`](crate::tickets::Set::end);
//! 4. the page becomes a member: [`Set::admit`](crate::tickets::Set::admit);
//! 5. its entry is enabled.
//!
//! ```text
//!                      [`readmit`]
//!                           |
//!              lock the entry; is it the same?  --no-->  done: the access comes again
//!                           |
//!                  [`admit_here`]: 2, 3, 4, 5
//!                    |              |
//!                   Go             Far: the victim's page table is locked by another CPU,
//!                    |              |    accessed bits are looked at, a page is huge, another CPU
//!                    |              |    is slow, or several members were renewed
//!                 unlock         unlock
//!                    |              |
//!                  done         [`admit_far`]: 3 with the victim's lock; lock the entry again;
//!                                   is it the same?  --no-->  give up the number
//!                                   |
//!                                  4, 5, unlock
//! ```
//!
//! Preemption is disabled from 1 to the end. So a CPU has at most one number on the way, and no
//! grace period of RCU passes, which keeps the page tables of members.
//!
//! Lock order: page table lock → the lock of a ring. Nobody waits for a page table's lock with
//! another one held, or with that of a ring held: in 3, the victim's is trylocked on the near way,
//! and waited for on the far way, where nothing is held. Those of other pages of a batch are
//! trylocked. kvmtraced is woken after the locks are dropped.

use crate::{
    drain::kick,
    hot::{self, clock, epoch_of, is_of_this_era, this_cpu, Kernel, Records, Refs},
    hot::{LIMITED, NO_SEQ, NUMBERS, SEALED},
    pte::{Access, Allowed, Pte},
    record, ring,
    scopes::Scope,
    stay::{Admission, Caller, Slot, LEFT},
    stores::Observed,
    tables::{
        frame_mask, frame_of, id_of, is_broken, is_late_apart, is_looked_at, late, Entry, Flush,
        Held, Others, HUGE, PAGE_MASK, PAGE_SHIFT,
    },
    throttle,
    tickets::{End, Out, Tail, Ticket, Way},
};
use core::{ffi::c_int, hint::assert_unchecked, mem::size_of};
use kernel::{
    bindings,
    macros::export,
    sync::{
        atomic::ordering::{Acquire, Relaxed},
        barrier::{smp_mb, Read},
    },
};

/// What became of an access: VMTRACE_RESERVE_*.
type Answer = bindings::vmtrace_reserve;
const OFF: Answer = bindings::vmtrace_reserve_VMTRACE_RESERVE_OFF;
const FULL: Answer = bindings::vmtrace_reserve_VMTRACE_RESERVE_FULL;
const GO: Answer = bindings::vmtrace_reserve_VMTRACE_RESERVE_GO;
const CHANGED: Answer = bindings::vmtrace_reserve_VMTRACE_RESERVE_CHANGED;
const WORDLESS: Answer = bindings::vmtrace_reserve_VMTRACE_RESERVE_WORDLESS;
const FAR: Answer = bindings::vmtrace_reserve_VMTRACE_RESERVE_FAR;
const KICK: Answer = bindings::vmtrace_reserve_VMTRACE_RESERVE_KICK;

/// [`Admission`] is the beginning of `struct vmtrace_touch`, and [`Ticket`] is `struct
/// vmtrace_ticket`.
const _: () = {
    use bindings::vmtrace_admission as C;
    use core::mem::offset_of;
    assert!(offset_of!(bindings::vmtrace_touch, a) == 0);
    assert!(offset_of!(C, mm) == offset_of!(Admission, owner));
    assert!(offset_of!(C, entry) == offset_of!(Admission, entry));
    assert!(offset_of!(C, page) == offset_of!(Admission, page));
    assert!(offset_of!(C, mm_id) == offset_of!(Admission, mm));
    assert!(offset_of!(C, tid_cpu) == offset_of!(Admission, tid_cpu));
    assert!(offset_of!(C, pfn) == offset_of!(Admission, pfn));
    assert!(offset_of!(C, was_dirty) == offset_of!(Admission, was_dirty));
    assert!(offset_of!(C, vtime) == offset_of!(Admission, vtime));
    assert!(offset_of!(C, address) == offset_of!(Admission, address));
    assert!(size_of::<C>() >= size_of::<Admission>());
    assert!(size_of::<bindings::vmtrace_ticket>() == size_of::<Ticket>());
};

/// An access that found a disabled entry.
///
/// # Invariants
///
/// The struct is valid, and this CPU's alone. C has set what `struct vmtrace_touch` says that C
/// sets: the entry is in a page table that is not freed meanwhile, and the lock is that of the page
/// table. Not all of it is initialised, so there is no reference to it.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Touch(*mut bindings::vmtrace_touch);

/// Reads a field that C has set.
macro_rules! c {
    ($touch:expr, $($field:tt)+) => {
        // SAFETY: It is valid, and C has set this, by the type's invariant.
        unsafe { (*$touch.0).$($field)+ }
    };
}

/// Sets a field.
macro_rules! set {
    ($touch:expr, $($field:tt).+ = $value:expr) => {
        // SAFETY: It is valid, and nobody else uses it, by the type's invariant.
        unsafe { (&raw mut (*$touch.0).$($field).+).write($value) }
    };
}

impl Touch {
    fn mm(self) -> *mut bindings::mm_struct {
        c!(self, a.mm)
    }

    fn handle(self) -> usize {
        c!(self, a.entry)
    }

    fn access(self) -> Access {
        let flags = c!(self, flags);
        Access { flags }
    }

    /// Whether a filter leaves it out.
    #[inline(always)]
    fn is_left(self) -> bool {
        is_looked_at() && c!(self, flags) & bindings::VMTRACE_TOUCH_LEFT != 0
    }

    /// The entry, as it was found.
    fn pte(self) -> Pte {
        Pte(c!(self, pte.pte) as u64)
    }

    #[inline(always)]
    fn entry(self) -> Entry {
        let ptep = c!(self, ptep);
        // SAFETY: The page table is not freed, by the type's invariant.
        unsafe { Entry::new(ptep) }
    }

    /// Locks the entry. To be called without a lock of a page table or of a ring.
    #[inline(always)]
    fn lock(self) -> Held {
        let lock = c!(self, ptl);
        // SAFETY: It is that of the page table, by the type's invariant.
        unsafe { Held::new(self.entry(), lock) }
    }

    /// Notes the answer of the set, for the oracle too.
    fn answer(self, answer: Answer) {
        set!(self, answer = answer as c_int);
    }

    /// What is known of the admission.
    ///
    /// # Safety
    ///
    /// [`Touch::prepare`] was called, which initialises it; and is not called again while this is in
    /// use.
    unsafe fn admission(&self) -> &Admission {
        // SAFETY: It begins like this, as asserted above, and is initialised, as promised.
        unsafe { &*self.0.cast::<Admission>() }
    }

    /// The ticket.
    ///
    /// # Safety
    ///
    /// The set has answered [`FAR`], which is when the ticket was stored. No other reference to it
    /// is in use.
    unsafe fn ticket(&mut self) -> &mut Ticket {
        // SAFETY: It is valid and of this layout, as asserted above, and initialised, as promised.
        unsafe { &mut *(&raw mut (*self.0).ticket).cast::<Ticket>() }
    }

    /// The set.
    ///
    /// # Safety
    ///
    /// The set has answered [`FAR`], and preemption has been disabled since.
    unsafe fn scope<'a>(self) -> &'a Scope {
        let set = c!(self, set);
        // SAFETY: It was stored before that answer, and is there in this section of RCU.
        unsafe { &*set.cast::<Scope>() }
    }

    /// Fills in which page of which address space is accessed, and how. Who knows that no huge page
    /// is accessed need not look.
    #[inline(always)]
    fn identify<const HUGE_TOO: bool>(self) {
        let mask = match HUGE_TOO && self.handle() & HUGE != 0 {
            true => c!(self, mask) as u64,
            false => PAGE_MASK,
        };
        let mut page = c!(self, a.address) as u64 & mask | self.access().reference();
        if self.is_left() {
            page |= LEFT;
        }
        set!(self, a.page = page);
        // SAFETY: The address space is there: it is the one that faults.
        let id = unsafe { id_of(self.mm()) };
        set!(self, a.mm_id = id);
    }

    /// Fills in what the record has to say of an access to `pte`, which is what the locked entry is.
    /// Gives what the entry is to be when the page is a member. `held` is the lock of this entry.
    #[inline(always)]
    fn prepare<const HUGE_TOO: bool>(self, held: &Held, mut pte: Pte) -> Pte {
        let access = self.access();
        // Hardly any is dirty.
        if !access.writes() && pte.is_dirty() {
            // SAFETY: `held` has been locked since the entry was read, so it is still `pte`.
            pte = unsafe { move_dirty(held, pte) };
        }
        let touched = pte.touched(access, frame_mask());
        self.identify::<HUGE_TOO>();
        set!(self, a.pfn = frame_of(touched));
        set!(self, a.was_dirty = pte.is_dirty());
        touched
    }

    /// The page is a member: enables its entry, which is locked and becomes `touched`.
    ///
    /// # Safety
    ///
    /// [`Touch::prepare`] was called.
    #[inline(always)]
    unsafe fn enable(self, held: &Held, touched: Pte, seq: u64) {
        late(bindings::vmtrace_late_point_VMTRACE_LATE_ADMITTED);
        if is_looked_at() {
            let flags = c!(self, flags) | bindings::VMTRACE_TOUCH_ADMITTED;
            set!(self, flags = flags);
        }
        // SAFETY: As promised.
        trace(seq, unsafe { self.admission() });
        held.set(touched);
    }

    /// Whether mmap_lock has had a writer since before the access found its entry, as
    /// `mmap_lock_speculate_retry()`. Asked after a number was taken.
    #[inline(always)]
    fn is_changed(self) -> bool {
        let count: *const u32 = c!(self, lock_seq);
        if count.is_null() {
            return false;
        }
        smp_mb(Read);
        // SAFETY: It is that of the address space, whose writers store whole words.
        let now = unsafe { count.read_volatile() };
        now != c!(self, seq) && !is_broken(bindings::VMTRACE_BREAK_NOSEQ)
    }
}

/// The tracepoint of a reference.
#[inline(always)]
fn trace(seq: u64, a: &Admission) {
    #[cfg(not(CONFIG_TRACEPOINTS))]
    let _ = (seq, a);
    #[cfg(CONFIG_TRACEPOINTS)]
    // SAFETY: The key is defined by C. The function may be called in any context.
    unsafe {
        if kernel::jump_label::static_branch_unlikely!(
            bindings::__tracepoint_vmtrace_ref,
            bindings::tracepoint,
            key
        ) {
            // What a filter leaves out has no record.
            let seq = if a.page & LEFT == 0 { seq } else { NO_SEQ };
            bindings::vmtrace_trace_ref(seq, a.mm, a.page, a.pfn);
        }
    }
}

/// A load may go through a `pte` that is dirty already, and a later store must still be recorded. So
/// this moves the dirty bit to the folio, where the kernel looks too. A write-protected entry can
/// keep its dirty bit, because a store will fault.
///
/// # Safety
///
/// `pte` is what the locked entry is.
#[cold]
#[inline(never)]
unsafe fn move_dirty(_held: &Held, pte: Pte) -> Pte {
    if !pte.is_writable() || is_broken(bindings::VMTRACE_BREAK_NODIRTY) {
        return pte;
    }
    // Memory that has no struct page of its own, or the page of zeros.
    if !pte.is_special() {
        // SAFETY: Whoever frees the page clears the entry first, and that needs its lock.
        unsafe { bindings::vmtrace_dirty_frame(pte.frame(frame_mask())) };
    }
    pte.make_clean()
}

/// Whether an entry allows an access, or a negative control lets it pass.
#[inline(always)]
fn allows(pte: Pte, access: Access, pkru: u32) -> bool {
    match pte.allows(access, pkru) {
        Allowed::Yes => true,
        Allowed::NoRight => is_broken(bindings::VMTRACE_BREAK_NORIGHTS),
        Allowed::NoKey => is_broken(bindings::VMTRACE_BREAK_NOKEYS),
    }
}

/// A page fault whose VMA was not looked up: admits the page if its entry is disabled and says that
/// it allows the access. The answer is VMTRACE_RESERVE_*: with _GO and _FULL the fault is done, and
/// the access comes again. With _OFF, _CHANGED and _WORDLESS nothing was admitted.
///
/// # Safety
///
/// What [`Touch`] demands. Preemption is disabled, and no lock of a page table or of a ring is held.
#[export]
pub unsafe extern "C" fn vmtrace_rs_touch(t: *mut bindings::vmtrace_touch) -> c_int {
    let t = Touch(t);
    let pte = t.pte();
    if !pte.is_disabled() || !allows(pte, t.access(), c!(t, pkru)) {
        return OFF as c_int;
    }
    late(bindings::vmtrace_late_point_VMTRACE_LATE_FAULTING);
    if t.handle() == 0 {
        return WORDLESS as c_int;
    }
    // A huge page has no PTE.
    readmit::<false>(t) as c_int
}

/// Admits the page of a fault whose VMA is locked, if its entry is disabled and needs nothing else.
/// If the trace is over, the entry is enabled without a record.
///
/// # Safety
///
/// As of [`vmtrace_rs_touch`].
#[export]
pub unsafe extern "C" fn vmtrace_rs_readmit(t: *mut bindings::vmtrace_touch) {
    let t = Touch(t);
    if t.pte().may_enable(t.access()) && readmit::<true>(t) == OFF {
        heal(t, |_| ());
    }
}

/// Of an address space whose references are not recorded, or not any more: enables the entry of an
/// access without a record, if it is disabled and needs nothing else. The policy notes the access.
///
/// # Safety
///
/// Of `t`, `a.mm`, `a.entry`, `flags`, `ptep`, `pte` and `ptl` are set. The caller keeps the page
/// table. No lock of a page table or of a ring is held.
#[export]
pub unsafe extern "C" fn vmtrace_rs_heal(t: *mut bindings::vmtrace_touch) {
    let touch = Touch(t);
    if !touch.pte().is_disabled() {
        return;
    }
    // SAFETY: The address space is the one that faults.
    match unsafe { Observed::new(touch.mm()) } {
        // SAFETY: As promised.
        Observed::Quiet(_, policy) => unsafe { (policy.fault)(t) },
        _ => heal(touch, |_| ()),
    }
}

/// The same, and calls `note` with the access under the entry's lock, if it is the same, whatever else
/// the access needs.
///
/// # Safety
///
/// As of [`vmtrace_rs_heal`].
pub(crate) unsafe fn heal_noted(t: *mut bindings::vmtrace_touch, note: impl FnOnce(usize, Access)) {
    let touch = Touch(t);
    heal(touch, |access| note(touch.handle(), access));
}

fn heal(t: Touch, note: impl FnOnce(Access)) {
    let held = t.lock();
    let pte = held.entry.get();
    if pte != t.pte() || !pte.is_disabled() {
        return;
    }
    note(t.access());
    if pte.may_enable(t.access()) {
        held.set(pte.touched(t.access(), frame_mask()));
    }
}

/// Whether an admission is to take its number before it takes the entry's lock. Only controls and
/// delays ask for this: they need a gap between the number and the lock.
#[inline(always)]
fn is_apart() -> bool {
    is_unordered() || is_late_apart()
}

/// Whether a negative control skips the comparison of the entry.
#[inline(always)]
fn is_unordered() -> bool {
    is_broken(bindings::VMTRACE_BREAK_NOORDER) || is_broken(bindings::VMTRACE_BREAK_NOCOMPARE)
}

/// Admits a page whose entry is disabled and needs nothing else: the re-reference, which is nearly
/// all that a traced program does. Preemption is disabled. With [`GO`], the page was admitted, or
/// another CPU was faster.
///
/// The page table was found without its lock. That it holds the same entry, which maps a page, when
/// it is locked, says that it is still in its place. Then it is so for a victim in the same page
/// table too, and one lock does for both.
///
/// If there is a count of mmap_lock's writers: what is done under that lock for writing also gets
/// its event under it. If nobody has held it for writing since before this admission got its number,
/// there are two kinds of such events. Some have smaller numbers, and their changes are done. The
/// others have greater numbers, and their changes have not begun.
#[inline(always)]
fn readmit<const HUGE_TOO: bool>(t: Touch) -> Answer {
    if is_apart() {
        return admit_apart(t);
    }
    let held = t.lock();
    let is_same = held.entry.get() == t.pte() || is_broken(bindings::VMTRACE_BREAK_NOSAME);
    let answer = match is_same {
        true => admit_here::<HUGE_TOO>(t, &held),
        false => GO,
    };
    drop(held);
    match answer {
        GO => GO,
        _ => go_on(t, answer),
    }
}

/// Takes a number without the entry's lock, and admits.
#[cold]
#[inline(never)]
fn admit_apart(t: Touch) -> Answer {
    t.identify::<true>();
    // SAFETY: Preemption is disabled, and the page is known.
    unsafe { vmtrace_rs_reserve(t) };
    go_on(t, c!(t, answer) as Answer)
}

/// What is to be done when the locks are dropped.
#[cold]
#[inline(never)]
fn go_on(t: Touch, answer: Answer) -> Answer {
    if answer & KICK != 0 {
        kick();
    }
    match answer & !KICK {
        FAR => admit_far(t),
        answer => answer,
    }
}

/// Admits a page in one hold of its page table's lock. The entry is the same.
#[inline(always)]
fn admit_here<const HUGE_TOO: bool>(t: Touch, held: &Held) -> Answer {
    let touched = t.prepare::<HUGE_TOO>(held, t.pte());
    // SAFETY: The entry is locked, preemption is disabled, and the admission is prepared.
    unsafe { vmtrace_rs_admit_locked(t) };
    let answer = c!(t, answer) as Answer;
    if answer & !KICK == GO {
        let seq = c!(t, record);
        // SAFETY: It is prepared.
        unsafe { t.enable(held, touched, seq) };
    }
    answer
}

/// Finishes an admission that could not be made in one hold of the locks. Its number has been taken,
/// and no lock is held. First does what comes before it, even if this admission is given up: nobody
/// else does it, unless a whole set of later numbers was taken meanwhile.
///
/// The address space may not be traced (yet) by the trace that the number is of: a task may have
/// been preempted after it had looked, until a later window.
#[cold]
#[inline(never)]
fn admit_far(t: Touch) -> Answer {
    late(bindings::vmtrace_late_point_VMTRACE_LATE_RESERVED);
    // The record is of the entry that was there before the number was taken: an event about what
    // replaced it may have a greater one. See Set::admit().
    let is_same = |pte: Pte| pte == t.pte() || is_unordered();
    let was_same = is_same(t.entry().get());
    // SAFETY: `go_on` has called this for FAR, and preemption was disabled before `readmit`.
    unsafe { vmtrace_rs_clear_way(t) };
    // It may have taken another number.
    let is_same_yet = was_same && is_same(t.entry().get());

    late(bindings::vmtrace_late_point_VMTRACE_LATE_ADMITTING);
    let (mut changed, mut admitted) = (false, false);
    if is_same_yet {
        let held = t.lock();
        let now = held.entry.get();
        changed = t.is_changed();
        if !changed && now.may_enable(t.access()) && is_same(now) {
            let touched = t.prepare::<true>(&held, now);
            // After the number was taken.
            if is_of_this_era(c!(t, a.mm_id)) {
                admitted = true;
                // SAFETY: The answer was FAR; `held` locks the entry, and the admission is prepared.
                unsafe {
                    let seq = vmtrace_rs_admit(t);
                    if seq != NO_SEQ {
                        t.enable(&held, touched, seq);
                    }
                }
            }
        }
    }
    if !admitted {
        late(bindings::vmtrace_late_point_VMTRACE_LATE_ABORTING);
        // SAFETY: The answer was FAR, and nothing has taken the ticket: it was not admitted.
        unsafe { vmtrace_rs_abort(t) };
    }
    match changed {
        true => CHANGED,
        false => GO,
    }
}

// The oracle follows calls of these functions by their names, and reads the struct.

/// Takes a number for an admission and makes the page a member, in one go. Its entry is locked and
/// has allowed the access. The answer is
///
/// - [`GO`]: the page is a member. Its entry is to be enabled.
/// - [`FAR`]: only the number was taken. [`vmtrace_rs_clear_way`] does the rest.
/// - [`CHANGED`]: mmap_lock may have had a writer before the number was taken. The number is given
///   up.
/// - [`FULL`]: the access faults again, also because the admission was given up.
/// - [`OFF`]: nothing was done.
///
/// With [`KICK`] in it, kvmtraced is to be woken when the locks are dropped.
///
/// # Safety
///
/// The entry is locked, preemption is disabled, and the admission is prepared.
#[no_mangle]
#[inline(never)]
unsafe extern "C" fn vmtrace_rs_admit_locked(t: Touch) {
    // SAFETY: As promised.
    t.answer(unsafe { hot::with_kept(OFF, |refs| refs.reserve::<true>(t)) });
}

/// Takes the number only, as [`vmtrace_rs_admit_locked`] does if the answer is [`FAR`].
///
/// # Safety
///
/// Preemption is disabled, and [`Touch::identify`] was called.
#[no_mangle]
#[inline(never)]
unsafe extern "C" fn vmtrace_rs_reserve(t: Touch) {
    // SAFETY: As promised.
    t.answer(unsafe { hot::with_kept(OFF, |refs| refs.reserve::<false>(t)) });
}

/// Does what comes before an admission whose number was taken: ends the stay of the page that it
/// puts out of the set. Takes locks of page tables one after the other. No lock is held.
///
/// # Safety
///
/// The set has answered [`FAR`], and preemption has been disabled since.
#[no_mangle]
#[inline(never)]
unsafe extern "C" fn vmtrace_rs_clear_way(mut t: Touch) {
    // SAFETY: As promised.
    let (scope, ticket) = unsafe { (t.scope(), t.ticket()) };
    hot::with((), |refs| refs.far_way(scope, ticket));
}

/// Makes a page a member under the number that was taken for it. Its entry is locked, and the same
/// as before. Returns the sequence number of its record, [`NO_SEQ`] if it gets none: then it is no
/// member, and the number is given up.
///
/// # Safety
///
/// The entry is locked, and the admission is prepared. The set has answered [`FAR`].
#[no_mangle]
#[inline(never)]
unsafe extern "C" fn vmtrace_rs_admit(mut t: Touch) -> u64 {
    hot::with(NO_SEQ, |refs| {
        // SAFETY: As promised.
        let (ticket, record) = unsafe {
            let ticket = *t.ticket();
            let record = t.scope().set.admit(&ticket, t.admission(), &NUMBERS);
            (ticket, record)
        };
        refs.finish(&ticket, record.is_some(), t.is_left());
        record.unwrap_or(NO_SEQ)
    })
}

/// Gives up an admission; its victim's stay has ended all the same.
///
/// # Safety
///
/// The set has answered [`FAR`].
#[no_mangle]
#[inline(never)]
unsafe extern "C" fn vmtrace_rs_abort(mut t: Touch) {
    hot::with((), |refs| {
        // SAFETY: As promised.
        let (scope, ticket) = unsafe { (t.scope(), *t.ticket()) };
        scope.set.abort(&ticket);
        refs.finish(&ticket, false, t.is_left());
    })
}

/// Second chances that one admission can give, and members of first segments that it can renew. It
/// bounds the time without preemption; and the records of an admission have room in the sub-buffer
/// that is free when it begins. After so many, pages are evicted, whatever they are.
const CHANCES: u32 = 16;
const RENEWALS: u32 = 64;
/// Of these, with the lock of the page's page table. Sets that give chances go the far way only.
const NEAR_RENEWALS: u32 = 4;
const _: () = {
    assert!(NEAR_RENEWALS <= CHANCES);
    let most = (CHANCES + RENEWALS + 1) as usize;
    let room = crate::session::LEAST_SIZE as usize - ring::HEAD;
    assert!(most * (record::REF_SIZE + record::VTIME_SIZE + record::OFFSET_SIZE) <= room);
};

/// Gives that answer, which is rare: so the compiler puts what is done otherwise in line.
#[cold]
#[inline(never)]
fn refuse(answer: Answer) -> Answer {
    answer
}

impl Refs {
    /// Takes a number; if `NEAR`, also ends the stay of the victim and admits, as far as that needs
    /// no other lock than those that are free.
    ///
    /// # Safety
    ///
    /// As of [`vmtrace_rs_admit_locked`] if `NEAR`, else of [`vmtrace_rs_reserve`].
    #[inline(always)]
    unsafe fn reserve<const NEAR: bool>(&self, t: Touch) -> Answer {
        // Before the number of the era, which changes while the set is sealed.
        let mode = self.mode.load(Acquire);
        let sealed = mode & SEALED != 0 && !is_broken(bindings::VMTRACE_BREAK_NOSEAL);
        if sealed || !is_of_this_era(c!(t, a.mm_id)) {
            return refuse(OFF);
        }
        // SAFETY: The address space is the one that faults.
        let set = unsafe { hot::set_of(t.mm()) };
        set!(t, set = set.cast());
        // SAFETY: It is there in this section of RCU, for the number is valid. That it is not null
        // follows from that, too: see scopes.rs.
        let scope = unsafe { &*set };
        let cpu = this_cpu();
        // SAFETY: There is a claim and a lane for each possible CPU.
        unsafe { assert_unchecked(cpu < scope.set.cpus()) };
        let Some(lane) = self.lane_of(cpu) else {
            return refuse(FULL);
        };
        let mut guard = lane.records.lock();
        let records = &mut *guard;
        // A window has so many references that are recorded.
        let limited = mode & LIMITED != 0 && !t.is_left();
        if records.busy || !records.has_room() || limited && !self.borrow() {
            if !records.has_room() {
                throttle::congest(cpu);
            }
            return refuse(FULL | KICK);
        }
        let by = Caller {
            cpu,
            epoch: c!(t, epoch),
            time: clock(),
        };
        let Some(mut ticket) = scope.set.take(by, &NUMBERS, epoch_of) else {
            if limited {
                self.settle(false);
            }
            return refuse(FULL);
        };
        // SAFETY: The page table is locked if `NEAR`.
        let done = NEAR && unsafe { self.near_way(t, scope, &mut ticket, records) };
        if !done {
            records.busy = true;
            // SAFETY: It is valid, and a ticket is what C has there.
            unsafe { (&raw mut (*t.0).ticket).cast::<Ticket>().write(ticket) };
            return FAR;
        }
        let mut answer = if t.is_changed() {
            scope.set.abort(&ticket);
            self.count(&mut records.done, limited, false);
            refuse(CHANGED)
        } else {
            // SAFETY: The page table is locked, and the admission is prepared.
            let record = unsafe { scope.set.admit(&ticket, t.admission(), &NUMBERS) };
            self.count(&mut records.done, limited, record.is_some());
            match record {
                Some(seq) => {
                    set!(t, record = seq);
                    GO
                }
                None => refuse(FULL),
            }
        };
        let scarce = records.is_scarce();
        if scarce {
            throttle::congest(cpu);
        }
        if records.ring.has_turned() || scarce {
            answer |= KICK;
        }
        answer
    }

    /// Does what comes before an admission, if that needs no lock of another page table, or such a
    /// lock is free. False if [`Refs::far_way`] has to go on.
    ///
    /// # Safety
    ///
    /// As of [`vmtrace_rs_admit_locked`].
    #[inline(always)]
    unsafe fn near_way(
        &self,
        t: Touch,
        scope: &Scope,
        ticket: &mut Ticket,
        records: &mut Records,
    ) -> bool {
        let set = &scope.set;
        if set.looks() {
            return false;
        }
        let mut renewals = 0u32;
        while let Some(out) = set.out(ticket) {
            let mut end = End::Gone;
            match set.tail(&out) {
                Tail::Nothing => return true,
                Tail::Slow(..) => return false,
                Tail::Record => {}
                Tail::Member(handle) => {
                    // SAFETY: It was a member's in this section of RCU.
                    let Some((entry, _held)) = (unsafe { lock_near(t, handle) }) else {
                        return false;
                    };
                    let at = (handle, entry);
                    let mut others = Others::new(t.mm(), t.handle());
                    let mut todo = Flush::default();
                    // SAFETY: The entry is that of the member, and locked: by `_held`, or as that of
                    // the access. So are all in its page table. Other page tables with pages in `todo`
                    // are locked by `others`, or as that of the access.
                    unsafe {
                        end = self.end::<true>(
                            scope,
                            ticket,
                            &out,
                            at,
                            (false, true),
                            records,
                            (&mut todo, &mut others),
                        );
                        todo.run(handle);
                    }
                    // Here the locks are dropped.
                }
            }
            set.write(&out, |s| records.emit(s, scope));
            if matches!(end, End::Gone | End::Evicted(_)) {
                return true;
            }
            set.draw(ticket, &NUMBERS);
            renewals = renewals.wrapping_add(1);
            if renewals == NEAR_RENEWALS {
                return false;
            }
        }
        true
    }

    /// Does what comes before an admission whose number was taken, and waits for locks of page
    /// tables. No lock is held.
    fn far_way(&self, scope: &Scope, t: &mut Ticket) {
        let set = &scope.set;
        let Some(lane) = self.lane_of(t.cpu()) else {
            return;
        };
        let (mut chances, mut renewals) = (0u32, 0u32);
        while let Some(out) = set.out(t) {
            let mut end = End::Gone;
            let tail = set.tail(&out);
            match tail {
                Tail::Nothing => break,
                Tail::Record => {}
                Tail::Member(handle) => {
                    let may = (chances < CHANCES, renewals < RENEWALS);
                    // SAFETY: It was a member's in this section of RCU.
                    let held = unsafe { Held::member(handle) };
                    let mut others = Others::default();
                    let mut todo = Flush::default();
                    // SAFETY: The entry is the member's, and locked by `held`. Other page tables with
                    // pages in `todo` are locked by `others`.
                    unsafe {
                        let mut records = lane.records.lock();
                        end = self.end::<false>(
                            scope,
                            t,
                            &out,
                            (handle, held.entry),
                            may,
                            &mut records,
                            (&mut todo, &mut others),
                        );
                        drop(records);
                        todo.run(handle);
                    }
                    // Here the locks are dropped.
                }
                Tail::Slow(ordinal, handle) => {
                    self.end_slow(scope, t, ordinal, handle);
                    continue;
                }
            }
            let emit = |s: &Slot| lane.records.lock().emit(s, scope);
            set.write(&out, emit);
            match end {
                End::Gone | End::Evicted(_) => break,
                End::Renewed => renewals = renewals.wrapping_add(1),
                End::Chance => chances = chances.wrapping_add(1),
            }
            set.draw(t, &NUMBERS);
        }
        if let Some(passed) = set.pass(t) {
            let handle = passed.1;
            let mut todo = Flush::default();
            // SAFETY: It was a member's in this section of RCU.
            let held = unsafe { Held::member(handle) };
            // SAFETY: The entry is locked, and that of the page that is looked at.
            unsafe {
                set.sweep(passed, |s| todo.sweep(held.entry, s).young);
                todo.run(handle);
            }
        }
    }

    /// Ends the stay of a member for a slow CPU: see [`Tail::Slow`]. No lock is held.
    #[cold]
    fn end_slow(&self, scope: &Scope, t: &Ticket, ordinal: u64, handle: usize) {
        let mut todo = Flush::default();
        // SAFETY: It was a member's in this section of RCU.
        let held = unsafe { Held::member(handle) };
        // SAFETY: The entry is locked, and the member's.
        let disable = |s: &Slot, young| unsafe { self.take(&mut todo, held.entry, s, young) };
        let why = bindings::VMTRACE_WHY_EVICTED;
        // SAFETY: The page table is locked.
        unsafe {
            let ended = scope.set.end_at(ordinal, t.clock, why, t.time, disable);
            self.count_closed(u64::from(ended));
            todo.run(handle);
        }
    }

    /// Renews the member that a ticket puts out of the set, or ends its stay and those of its batch.
    /// `todo` gets what is to be flushed before the locks are dropped, `others` the locks of the other
    /// page tables of the batch. `NEAR` makes two functions of this, so that the way of most
    /// admissions is compiled in line.
    ///
    /// # Safety
    ///
    /// The entry is the member's, of that handle, in a page table that is locked. So is that which
    /// `others` was made with, if any.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    unsafe fn end<const NEAR: bool>(
        &self,
        scope: &Scope,
        t: &mut Ticket,
        out: &Out<'_, Kernel>,
        (handle, entry): (usize, Entry),
        (may, renews): (bool, bool),
        records: &mut Records,
        (todo, others): (&mut Flush, &mut Others),
    ) -> End {
        let way = Way {
            why: bindings::VMTRACE_WHY_EVICTED,
            now: t.time,
            may,
            renews,
            epoch_of,
        };
        let mut swept = Flush::default();
        // SAFETY: It is the entry of the slot that is looked at, and locked.
        let look = |s: &Slot| unsafe { swept.sweep(entry, s) };
        // SAFETY: It is in the page table of `entry`, which is locked, or in one of which `lock` has
        // said that it is locked: by `others`, or as that of the access.
        let disable = |s: &Slot, young| unsafe {
            let beside = match (s.entry ^ handle) >> PAGE_SHIFT {
                0 => entry,
                _ => Entry::member(s.entry),
            };
            self.take(todo, beside, s, young)
        };
        // SAFETY: It was a member's in this section of RCU.
        let lock = |mm, handle| unsafe { others.lock(mm, handle) };
        let emit = |s: &Slot| records.try_emit(s, scope);
        // SAFETY: The page table is locked. So are those of which `lock` says so, until `others` is
        // dropped.
        let answer = unsafe { scope.set.end(t, out, &way, look, disable, lock, emit) };
        let done = &mut records.done;
        match answer {
            End::Renewed => done.renewed = done.renewed.wrapping_add(1),
            End::Chance => done.chances = done.chances.wrapping_add(1),
            End::Evicted(pages) => done.ended = done.ended.wrapping_add(pages),
            End::Gone => {}
        }
        // What was swept, and evicted after that, is in `todo` already.
        if answer == End::Chance {
            *todo = swept;
        }
        answer
    }

    /// Disables the entry of a member.
    ///
    /// # Safety
    ///
    /// As of [`Flush::take`].
    #[inline(always)]
    pub(crate) unsafe fn take(
        &self,
        todo: &mut Flush,
        beside: Entry,
        s: &Slot,
        young: bool,
    ) -> crate::stay::Bits {
        // SAFETY: As promised.
        let (last, enabled) = unsafe { todo.take(beside, s, young) };
        if !enabled {
            self.stuck.add(1u64, Relaxed);
        }
        last
    }

    /// Ends an admission that went the far way; `left`: a filter leaves it out.
    fn finish(&self, t: &Ticket, admitted: bool, left: bool) {
        let Some(lane) = self.lane_of(t.cpu()) else {
            return;
        };
        let mut records = lane.records.lock();
        records.busy = false;
        self.count(&mut records.done, self.is_limited() && !left, admitted);
        let scarce = records.is_scarce();
        let full = records.ring.has_full();
        drop(records);
        if scarce {
            throttle::congest(t.cpu());
        }
        if scarce || full {
            kick();
        }
    }
}

/// The entry of a handle, if its page table is the one that the access has locked, or could be
/// locked without waiting: then the lock, too. `None` for a huge page.
///
/// # Safety
///
/// The entry of the access is locked. The handle was a member's since preemption was disabled.
#[inline(always)]
unsafe fn lock_near(t: Touch, handle: usize) -> Option<(Entry, Option<Held>)> {
    let own = t.handle();
    if (handle | own) & HUGE != 0 {
        return None;
    }
    if (handle ^ own) >> PAGE_SHIFT == 0 {
        // SAFETY: Both are in one page table.
        return Some((unsafe { t.entry().beside(handle) }, None));
    }
    // SAFETY: As promised.
    let held = unsafe { Held::try_member(handle) }?;
    Some((held.entry, Some(held)))
}
