// SPDX-License-Identifier: GPL-2.0

//! What runs in page faults: the functions that C calls, and the state behind
//! them.
//!
//! Lock order: page table lock → [`HOT`]. Nobody waits for a lock under [`HOT`], with one
//! exception: waking the thread of windows takes locks. Under [`HOT`], a page table's lock is only
//! trylocked. kvmtraced is woken after [`HOT`] is dropped.

use crate::{
    drain::kick,
    evms::{
        self, Admission, Bits, Caller, Evms, Hand, Page, Reserve, Shrink, Victim, Words, END_NOW,
        MEMBER, RETIRE_EVERY,
    },
    record,
    ring::{Base, Rings},
    window::UNAUDITED,
};
use core::{ffi::c_int, mem::size_of};
use kernel::{
    bindings,
    cpu::CpuId,
    macros::export,
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
    sync::barrier::{smp_mb, Read},
};

/// The words of the entries of page tables. A handle is the address of a word, with
/// VMTRACE_ENTRY_* in its low bits, or 0.
///
/// # Invariants
///
/// The set that has this is given only handles that are 0, or of an entry whose page table is
/// locked, or not reachable by others. It uses a handle only while that is so, or while the entry is
/// a member's. A locked page table is not freed. One with a member is not freed either: its PTEs are
/// cleared first, and that ends the stay. The words are freed only with the page table.
pub(crate) struct Tables(());

impl Tables {
    /// The words that all page tables have.
    ///
    /// # Safety
    ///
    /// A set that gets this is given only handles as the invariants say. It is used under
    /// [`HOT`]'s lock, and one set has this at a time.
    pub(crate) unsafe fn new() -> Tables {
        // INVARIANT: As promised.
        Tables(())
    }
}

/// The page of an address.
fn page_at(mm: u32, addr: u64, entry: usize) -> Page {
    let addr = addr >> PAGE_SHIFT << PAGE_SHIFT;
    Page { entry, mm, addr }
}

/// The address of a word, null if there is none.
fn word_of(entry: usize) -> *mut u64 {
    (entry & !(bindings::VMTRACE_ENTRY_HUGE as usize)) as *mut u64
}

impl Words for Tables {
    #[inline(always)]
    fn get(&self, entry: usize) -> u64 {
        let word = word_of(entry);
        if word.is_null() {
            return 0;
        }
        // SAFETY: By the invariants it is there. Words are aligned, and written only under the lock
        // that is held here.
        unsafe { word.read() }
    }

    #[inline(always)]
    fn set(&mut self, entry: usize, value: u64) {
        let word = word_of(entry);
        if !word.is_null() {
            // SAFETY: As above.
            unsafe { word.write(value) };
        }
    }
}

/// References: the set and its streams.
pub(crate) struct Hot {
    pub(crate) evms: Evms<Tables>,
    /// One ring per CPU. Records of references are given out in order of
    /// admission under one lock, so each stream is in that order too.
    pub(crate) rings: Rings,
    /// Records carry virtual time.
    pub(crate) vtime: bool,
    /// No admission any more: faults enable pages without a record.
    pub(crate) sealed: bool,
    /// Admissions that the window may have, more than there can be if it has no limit;
    /// and those that it may have yet: one counter for all there are, and for its end.
    limit: u64,
    left: u64,
    /// Admissions before the window.
    before: u64,
    pub(crate) aborted: u64,
    pub(crate) funny: u64,
    stuck: u64,
    /// Address spaces audited, and what audits found.
    pub(crate) audits: u64,
    pub(crate) dangling: u64,
    pub(crate) miscounted: u64,
    pub(crate) uncovered: u64,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is, before anything can trace.
    pub(crate) unsafe(uninit) static HOT: SpinLock<Option<KBox<Hot>>> = None;
}

/// Sequence numbers given out; references and events share them.
pub(crate) static SEQ: Atomic<u64> = Atomic::new(0);
/// Number of the first admission of the next set.
pub(crate) static NEXT_SET: Atomic<u64> = Atomic::new(0);
/// Times that a task waited for room.
pub(crate) static WAITS: Atomic<u64> = Atomic::new(0);
/// Address spaces traced.
pub(crate) static MMS: Atomic<u64> = Atomic::new(0);
/// A trace from boot that has no output yet: nothing makes room, so no task waits
/// for room, and a record without room is lost.
pub(crate) static EARLY: Atomic<bool> = Atomic::new(false);

/// Of x86-64: bits of an address within a page and within a page table's range, and the
/// entries of a page table.
const PAGE_SHIFT: u32 = 12;
const PMD_SHIFT: u32 = 21;
const PTRS_PER_PTE: usize = 1 << (PMD_SHIFT - PAGE_SHIFT);

/// Slots that one step over all of them looks at under [`HOT`]'s lock.
const STEP: u64 = 256;

/// The sequence number of what has no record: VMTRACE_NO_SEQ.
pub(crate) const NO_SEQ: u64 = u64::MAX;

pub(crate) fn next_seq() -> u64 {
    SEQ.fetch_add(1u64, Relaxed).wrapping_add(1)
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

// C looks for members in what it frees.
const _: () = assert!(bindings::VMTRACE_WORD_MEMBER as u64 == MEMBER);

/// [`Admission`] is the beginning of `struct vmtrace_admission`.
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
};

impl Hot {
    /// Moves complete records to the present CPU's ring. True if a sub-buffer
    /// became full.
    pub(crate) fn retire(&mut self, all: bool) -> bool {
        const LONG: usize = record::REF_SIZE + record::VTIME_SIZE;
        if self.vtime {
            self.retire_records::<LONG>(all)
        } else {
            self.retire_records::<{ record::REF_SIZE }>(all)
        }
    }

    /// The same with records of `SIZE` bytes.
    fn retire_records<const SIZE: usize>(&mut self, all: bool) -> bool {
        let cpu = this_cpu();
        let Some(ring) = self.rings.of(cpu) else {
            return false;
        };
        let before = ring.has_full();
        let early = EARLY.load(Relaxed);
        let mut short = false;
        self.evms.retire(all, |slot| {
            let write = |out: &mut [u8], base: &Base| record::put_ref::<SIZE>(out, slot, base);
            if ring.push(SIZE, slot.seq, slot.time, write) {
                return true;
            }
            if early {
                ring.lost_full = ring.lost_full.wrapping_add(1);
            } else {
                short = true;
            }
            early
        });
        if early {
            return false;
        }
        if short || ring.free() == 0 {
            congest(cpu);
        }
        short || (ring.has_full() && !before)
    }

    /// An empty set, and no admission yet.
    pub(crate) fn new(evms: Evms<Tables>, rings: Rings, vtime: bool) -> Hot {
        Hot {
            evms,
            rings,
            vtime,
            sealed: false,
            limit: u64::MAX,
            left: u64::MAX,
            before: 0,
            aborted: 0,
            funny: 0,
            stuck: 0,
            audits: 0,
            dangling: 0,
            miscounted: 0,
            uncovered: 0,
        }
    }

    /// Admissions until now.
    pub(crate) fn admissions(&self) -> u64 {
        self.before.wrapping_add(self.limit.wrapping_sub(self.left))
    }

    /// Victims that could not be disabled, and stays that ended unnoticed.
    pub(crate) fn stuck(&self) -> u64 {
        self.stuck.wrapping_add(self.evms.missed())
    }

    /// Begins a window of at most `limit` admissions, or is `sealed`.
    pub(crate) fn begin(&mut self, limit: u64, sealed: bool) {
        self.before = self.admissions();
        (self.limit, self.left) = (limit, limit);
        self.sealed = sealed;
        self.evms.open();
    }

    /// Whether the window has all of its admissions.
    pub(crate) fn is_full(&self) -> bool {
        self.left == 0
    }

    /// That was the window's last admission.
    #[cold]
    #[inline(never)]
    fn fill(&mut self) {
        self.sealed = true;
        // Others have their numbers already.
        self.evms.shut();
        // SAFETY: Stores a flag and wakes a task, which any context here may do.
        unsafe { bindings::vmtrace_window_full(true) };
    }

    fn admit(&mut self, a: &bindings::vmtrace_admission) -> u64 {
        let with_number: *const bindings::vmtrace_admission = a;
        // SAFETY: What it refers to begins like this, as asserted above.
        let admission = unsafe { &*with_number.cast::<Admission>() };
        let record = self.evms.admit(a.ordinal, admission);
        self.count(record)
    }

    /// Counts an admission whose record has this number, which it returns.
    #[inline(always)]
    fn count(&mut self, record: Option<u64>) -> u64 {
        let Some(seq) = record else { return NO_SEQ };
        self.left = self.left.wrapping_sub(1);
        if self.left == 0 {
            self.fill();
        }
        seq
    }

    /// Ends the stays of a member and of its batch, and disables their PTEs. If that disables any,
    /// `disabled` gets their range.
    ///
    /// # Safety
    ///
    /// `ptep` is the victim's PTE in a page table that is locked. `disabled` is valid.
    #[inline(always)]
    unsafe fn evict(
        &mut self,
        victim: Victim,
        ptep: *mut bindings::pte_t,
        why: u32,
        now: u64,
        end: u64,
        disabled: *mut bindings::vmtrace_batch,
    ) {
        // SAFETY: As promised.
        unsafe {
            if self.evms.has_batches() {
                self.evict_batch(victim, ptep, why, now, end, disabled);
            } else {
                self.evict_one(victim, ptep, why, now, end, disabled);
            }
        }
    }

    /// The same without a batch.
    ///
    /// # Safety
    ///
    /// As of [`Hot::evict`].
    #[inline(never)]
    unsafe fn evict_one(
        &mut self,
        victim: Victim,
        ptep: *mut bindings::pte_t,
        why: u32,
        now: u64,
        end: u64,
        disabled: *mut bindings::vmtrace_batch,
    ) {
        let mut last = 0;
        let ended = self.evms.evict(victim.ordinal, why, now, end, |young| {
            // SAFETY: It is the victim's, and locked.
            last = unsafe { bindings::vmtrace_pte_take(ptep, young) };
            pte_bits(last)
        });
        if last != 0 {
            let range = bindings::vmtrace_batch {
                mm: victim.owner as *mut bindings::mm_struct,
                start: victim.addr as usize,
                end: (victim.addr as usize).saturating_add(1 << PAGE_SHIFT),
            };
            // SAFETY: It is valid, as promised.
            unsafe { disabled.write(range) };
        } else if ended {
            self.stuck = self.stuck.wrapping_add(1);
        }
    }

    /// The same with a batch.
    ///
    /// # Safety
    ///
    /// As of [`Hot::evict`].
    #[inline(never)]
    unsafe fn evict_batch(
        &mut self,
        victim: Victim,
        ptep: *mut bindings::pte_t,
        why: u32,
        now: u64,
        end: u64,
        disabled: *mut bindings::vmtrace_batch,
    ) {
        let mut stuck = 0u64;
        let (mut from, mut to) = (u64::MAX, 0);
        let disable = |addr: u64, young| {
            // SAFETY: If `addr` is the victim's, this is `ptep`. Otherwise this is of another
            // member that is in the victim's page table, and neither is a huge page. A page
            // table is a page of PTEs, so both are in it, and it is locked.
            let last = unsafe {
                let ptep = ptep.offset(entries_between(victim.addr, addr));
                bindings::vmtrace_pte_take(ptep, young)
            };
            if last != 0 {
                from = from.min(addr);
                to = to.max(addr);
            } else {
                stuck = stuck.wrapping_add(1);
            }
            pte_bits(last)
        };
        self.evms
            .evict_batch(victim.ordinal, why, now, end, epoch_of, disable);
        self.stuck = self.stuck.wrapping_add(stuck);
        if from <= to {
            let range = bindings::vmtrace_batch {
                mm: victim.owner as *mut bindings::mm_struct,
                start: from as usize,
                end: (to as usize).saturating_add(1 << PAGE_SHIFT),
            };
            // SAFETY: By the contract.
            unsafe { disabled.write(range) };
        }
    }
}

fn with_hot<R>(none: R, f: impl FnOnce(&mut Hot) -> R) -> R {
    match HOT.lock().as_mut() {
        Some(hot) => f(hot),
        None => none,
    }
}

/// Takes a number for an admission to `mm`'s page and names the pages that must
/// be disabled or swept first; or names the one that the clock's hand is at, for
/// [`vmtrace_rs_hand`].
///
/// # Safety
///
/// All pointers are valid, and preemption is disabled.
#[export]
pub unsafe extern "C" fn vmtrace_rs_reserve(
    r: *mut bindings::vmtrace_reservation,
    mm: *mut bindings::mm_struct,
    epoch: u32,
) -> c_int {
    let mut full = false;
    let mut ret = bindings::vmtrace_reserve_VMTRACE_RESERVE_OFF;
    with_hot((), |hot| {
        if hot.sealed {
            return;
        }
        // SAFETY: By the caller's promise; the lock is held.
        let answer = unsafe { reserve(hot, r, mm, epoch, clock()) };
        (ret, full) = answer;
    });
    if full {
        kick();
    }
    ret as c_int
}

/// Gives the answer of VMTRACE_RESERVE_*, and whether a sub-buffer became full.
///
/// # Safety
///
/// All pointers are valid, and [`HOT`]'s lock is held.
#[inline(never)]
unsafe fn reserve(
    hot: &mut Hot,
    r: *mut bindings::vmtrace_reservation,
    mm: *mut bindings::mm_struct,
    epoch: u32,
    now: u64,
) -> (bindings::vmtrace_reserve, bool) {
    let full = hot.evms.retire_due() && hot.retire(false);
    // C has not initialised all of `r`, so there is no reference to it.
    // SAFETY: Valid by the caller's promise.
    unsafe { (&raw mut (*r).time).write(now) };
    let by = Caller {
        cpu: this_cpu(),
        epoch,
        time: now,
    };
    let ret = match hot.evms.reserve(by, epoch_of, next_seq) {
        Reserve::Full => bindings::vmtrace_reserve_VMTRACE_RESERVE_FULL,
        // SAFETY: The address space of a member is alive, for its end clears all
        // its PTEs first, and that ends the stay under the lock held here.
        Reserve::Hand(v) => unsafe {
            put_victim(&raw mut (*r).victim, Some(v), mm);
            bindings::vmtrace_reserve_VMTRACE_RESERVE_HAND
        },
        Reserve::Go {
            ordinal,
            victim,
            passed,
        } => {
            // SAFETY: As above; `r` is valid by the caller's promise.
            unsafe {
                (&raw mut (*r).ordinal).write(ordinal);
                put_victim(&raw mut (*r).victim, victim, mm);
                put_victim(&raw mut (*r).passed, passed, mm);
            }
            bindings::vmtrace_reserve_VMTRACE_RESERVE_GO
        }
    };
    (ret, full)
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

/// What the clock's hand does to the victim of `r`: a second chance if it `may`
/// have one and was referenced, or the end of its stay, which also takes the
/// number for the admission. The victim's PTE is locked.
///
/// # Safety
///
/// All pointers are valid, preemption is disabled.
#[export]
pub unsafe extern "C" fn vmtrace_rs_hand(
    r: *mut bindings::vmtrace_reservation,
    mm: *mut bindings::mm_struct,
    ptep: *mut bindings::pte_t,
    may: bool,
    flush: *mut bool,
    epoch: u32,
) -> c_int {
    let mut full = false;
    let mut ret = bindings::vmtrace_reserve_VMTRACE_RESERVE_OFF;
    with_hot((), |hot| {
        if hot.sealed {
            return;
        }
        let now = clock();
        let mut cleared = 0;
        let mut found = true;
        // SAFETY: Valid by the caller's promise.
        let ordinal = unsafe { (*r).victim.ordinal };
        let hand = hot.evms.hand(
            ordinal,
            may,
            now,
            next_seq,
            || {
                // SAFETY: The PTE is locked by the caller's promise.
                unsafe { bindings::vmtrace_pte_sweep(ptep, &raw mut cleared) };
                bits(cleared)
            },
            |young| {
                // SAFETY: As above.
                let taken = unsafe { bindings::vmtrace_pte_take(ptep, young) };
                found = taken != 0;
                pte_bits(taken)
            },
        );
        if !found {
            hot.stuck = hot.stuck.wrapping_add(1);
        }
        // SAFETY: Valid by the caller's promise.
        unsafe { *flush = hand == Hand::Evicted && found || hand == Hand::Chance };
        (ret, full) = match hand {
            Hand::Full => (bindings::vmtrace_reserve_VMTRACE_RESERVE_FULL, false),
            Hand::Gone | Hand::Chance => (bindings::vmtrace_reserve_VMTRACE_RESERVE_AGAIN, false),
            // SAFETY: By the caller's promise; the lock is held.
            Hand::Evicted => unsafe { reserve(hot, r, mm, epoch, now) },
        };
    });
    if full {
        kick();
    }
    ret as c_int
}

/// Clears the accessed bit of a page that came into the second segment; its PTE
/// is locked. True if a flush is due.
///
/// # Safety
///
/// `ptep` is valid and locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_sweep(ordinal: u64, ptep: *mut bindings::pte_t) -> bool {
    with_hot(false, |hot| {
        hot.evms.sweep(ordinal, || {
            let mut cleared = 0;
            // SAFETY: By the caller's promise.
            unsafe { bindings::vmtrace_pte_sweep(ptep, &raw mut cleared) };
            bits(cleared).young
        })
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
    with_hot(young, |hot| hot.evms.aged(page_at(mm, addr, entry), young))
}

/// One step towards a set of `n`: a member that must be disabled before the next,
/// or VMTRACE_SHRINK_*.
///
/// # Safety
///
/// `victim` is valid, and preemption is disabled.
#[export]
pub unsafe extern "C" fn vmtrace_rs_shrink(victim: *mut bindings::vmtrace_victim, n: u64) -> c_int {
    let mut ret = bindings::vmtrace_shrink_VMTRACE_SHRINK_REFUSED;
    with_hot((), |hot| {
        hot.retire(false);
        ret = match hot.evms.shrink(n, clock(), epoch_of, next_seq) {
            Shrink::Done => bindings::vmtrace_shrink_VMTRACE_SHRINK_DONE,
            Shrink::Wait => bindings::vmtrace_shrink_VMTRACE_SHRINK_WAIT,
            Shrink::More => bindings::vmtrace_shrink_VMTRACE_SHRINK_MORE,
            Shrink::Refused => bindings::vmtrace_shrink_VMTRACE_SHRINK_REFUSED,
            // SAFETY: `victim` is valid, the lock is held.
            Shrink::Evict(v) => unsafe {
                put_victim(victim, Some(v), core::ptr::null_mut());
                bindings::vmtrace_shrink_VMTRACE_SHRINK_EVICT
            },
        }
    });
    ret as c_int
}

/// # Safety
///
/// `out` is valid to be written, and may be uninitialised; the victim is a member and
/// [`HOT`]'s lock is held.
unsafe fn put_victim(
    out: *mut bindings::vmtrace_victim,
    v: Option<Victim>,
    current_mm: *mut bindings::mm_struct,
) {
    let Some(v) = v else {
        // SAFETY: Valid by the caller's promise.
        unsafe { (&raw mut (*out).mm).write(core::ptr::null_mut()) };
        return;
    };
    let mm = v.owner as *mut bindings::mm_struct;
    // The faulting task keeps its own address space.
    let grabbed = mm != current_mm;
    if grabbed {
        // SAFETY: Alive, as the caller promises.
        unsafe { bindings::mmgrab(mm) };
    }
    // SAFETY: Valid by the caller's promise.
    unsafe {
        out.write(bindings::vmtrace_victim {
            mm,
            entry: v.entry,
            addr: v.addr as usize,
            ordinal: v.ordinal,
            grabbed,
        });
    }
}

/// Names the next member after `c`, if there is one near, for disabling all of them. False
/// if there can be no more. Who has had all of them in turn looks at each slot once.
///
/// # Safety
///
/// The pointers are valid.
#[export]
pub unsafe extern "C" fn vmtrace_rs_next_member(
    victim: *mut bindings::vmtrace_victim,
    c: *mut bindings::vmtrace_cursor,
) -> bool {
    // SAFETY: Valid by the caller's promise.
    unsafe { (*victim).mm = core::ptr::null_mut() };
    with_hot(false, |hot| {
        // SAFETY: As above.
        let from = unsafe { (*c).at };
        let (at, member) = hot.evms.seek(from, u64::MAX, 0, STEP);
        // SAFETY: The pointers are valid, the lock is held.
        unsafe {
            (*c).at = at;
            put_victim(victim, member, core::ptr::null_mut());
        }
        at < hot.evms.head()
    })
}

/// Members that one step of the end of a trace disables under a page table's lock and
/// [`HOT`]'s.
const DRAIN: u32 = 64;

/// Ends the stays of a member that [`vmtrace_rs_next_member`] gave and of those after it
/// that are in the same page table, as far as they follow each other, and disables their
/// PTEs. `table` is its first PTE. True if a flush is due.
///
/// # Safety
///
/// The pointers are valid, and the page table is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_drain(
    v: *const bindings::vmtrace_victim,
    c: *mut bindings::vmtrace_cursor,
    table: *mut bindings::pte_t,
    now: u64,
) -> bool {
    let mut flush = false;
    with_hot((), |hot| {
        // SAFETY: By the caller's promise; `v` has a member.
        let (entry, first) = unsafe { ((*v).entry, (*v).ordinal) };
        let mut at = first;
        for _ in 0..DRAIN {
            let Some((_, _, m)) = hot.evms.member(at) else {
                break;
            };
            if !evms::is_beside(m.entry, entry) {
                break;
            }
            let mut taken = false;
            hot.evms
                .evict(at, bindings::VMTRACE_WHY_DRAINED, now, END_NOW, |young| {
                    let slot = (m.addr >> PAGE_SHIFT) as usize & (PTRS_PER_PTE - 1);
                    // SAFETY: The PTE is in the page table, which is locked.
                    let last = unsafe { bindings::vmtrace_pte_take(table.add(slot), young) };
                    taken = last != 0;
                    pte_bits(last)
                });
            if !taken {
                hot.stuck = hot.stuck.wrapping_add(1);
            }
            flush |= taken;
            at = at.wrapping_add(1);
        }
        // SAFETY: By the caller's promise.
        unsafe { (*c).at = (*c).at.max(at) };
    });
    flush
}

/// Ends a victim's stay and disables its PTE, whose lock is held. Does the same for the
/// victim's batch, see [`Evms::evict_batch`]. `end` is where the stays end, for [`Evms::evict`].
/// `disabled` gets what must be flushed, if anything. If the stay had ended before, nothing is
/// done.
///
/// A member without an enabled PTE means that a clearing was missed: counted.
///
/// # Safety
///
/// `ptep` is valid and locked. `disabled` is valid to be written.
#[export]
pub unsafe extern "C" fn vmtrace_rs_evict(
    ordinal: u64,
    ptep: *mut bindings::pte_t,
    why: u32,
    now: u64,
    end: u64,
    disabled: *mut bindings::vmtrace_batch,
) {
    with_hot((), |hot| {
        if let Some((_, _, v)) = hot.evms.member(ordinal) {
            // SAFETY: The pointers are as promised.
            unsafe { hot.evict(v, ptep, why, now, end, disabled) };
        }
    });
}

/// Takes a number for an admission and makes the page a member, in one go. Its PTE is locked and
/// has allowed the access. The answer is
///
/// - VMTRACE_RESERVE_GO: the page is a member. Its PTE is to be enabled when what was disabled
///   was flushed.
/// - VMTRACE_RESERVE_FAR: only the number was taken. Either the victim could not be disabled
///   here, because its page table could not be locked at once or a page is huge; or a page must be
///   swept first.
/// - VMTRACE_RESERVE_HAND: as of [`vmtrace_rs_reserve`].
/// - VMTRACE_RESERVE_CHANGED: mmap_lock may have had a writer before the number was taken. The
///   number is given up. What was disabled is to be flushed all the same.
/// - VMTRACE_RESERVE_FULL or _OFF: nothing was done.
///
/// The number is taken while the PTE is locked, so no stay of the page can have ended at a
/// greater number, and the page was not dropped since: nothing has overtaken this admission.
///
/// # Safety
///
/// `l` is valid, and what C sets in it is set. Preemption is disabled. `l.ptep` is in the page
/// table that `l.a.entry` is of, which is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_admit_locked(l: *mut bindings::vmtrace_locked) {
    let mut guard = HOT.lock();
    let (answer, full) = match guard.as_mut() {
        // SAFETY: `l` is as promised, and the lock is held.
        Some(hot) => unsafe { admit_locked(hot, l) },
        None => (bindings::vmtrace_reserve_VMTRACE_RESERVE_OFF, false),
    };
    // The oracle reads the answer when the lock is dropped.
    // SAFETY: `l` is valid. C has not initialised all of it, so there is no reference to it.
    unsafe {
        (&raw mut (*l).full).write(full);
        (&raw mut (*l).answer).write(answer as c_int);
    }
}

/// Gives the answer, and whether a sub-buffer became full.
///
/// # Safety
///
/// As of [`vmtrace_rs_admit_locked`], and [`HOT`]'s lock is held.
#[inline(always)]
unsafe fn admit_locked(
    hot: &mut Hot,
    l: *mut bindings::vmtrace_locked,
) -> (bindings::vmtrace_reserve, bool) {
    // SAFETY: `l` is valid, and C has set these.
    let (mm, id, epoch) = unsafe { ((*l).a.mm, (*l).a.mm_id, (*l).epoch) };
    if hot.sealed || !is_of_this_era(id) {
        let off = bindings::vmtrace_reserve_VMTRACE_RESERVE_OFF;
        return (off, false);
    }
    let mut full = hot.evms.head() & (RETIRE_EVERY - 1) == 0 && hot.retire(false);
    let by = Caller {
        cpu: this_cpu(),
        epoch,
        time: clock(),
    };
    // SAFETY: `l` is valid, and the lock is held.
    unsafe { (&raw mut (*l).r.time).write(by.time) };
    let (ordinal, victim, passed) = match hot.evms.reserve(by, epoch_of, next_seq) {
        Reserve::Full => {
            // For the next try.
            full |= hot.retire(false);
            return (bindings::vmtrace_reserve_VMTRACE_RESERVE_FULL, full);
        }
        Reserve::Hand(v) => {
            // SAFETY: `l` is valid, the lock is held, and `v` is a member.
            unsafe { put_victim(&raw mut (*l).r.victim, Some(v), mm) };
            let hand = bindings::vmtrace_reserve_VMTRACE_RESERVE_HAND;
            return (hand, full);
        }
        Reserve::Go {
            ordinal,
            victim,
            passed,
        } => (ordinal, victim, passed),
    };
    // SAFETY: As above; the victim is a member.
    let near = match victim {
        Some(_) if passed.is_some() => None,
        Some(v) => unsafe { lock_victim(l, v) }.map(|ptep| (v, ptep)),
        None => None,
    };
    if let Some((v, ptep)) = near {
        let why = bindings::VMTRACE_WHY_EVICTED;
        // SAFETY: `ptep` is the victim's, and locked.
        unsafe { hot.evict(v, ptep, why, by.time, ordinal, &raw mut (*l).disabled) };
    } else if victim.is_some() || passed.is_some() {
        // SAFETY: As above.
        unsafe {
            (&raw mut (*l).r.ordinal).write(ordinal);
            put_victim(&raw mut (*l).r.victim, victim, mm);
            put_victim(&raw mut (*l).r.passed, passed, mm);
        }
        let far = bindings::vmtrace_reserve_VMTRACE_RESERVE_FAR;
        return (far, full);
    }
    // SAFETY: `l` is valid, and C has set what is read here. No field of `a` is written by
    // others.
    let record = unsafe {
        (&raw mut (*l).a.ordinal).write(ordinal);
        let a: *const bindings::vmtrace_admission = &raw const (*l).a;
        match is_changed(l) {
            true => None,
            // It begins like this, as asserted above.
            false => hot.evms.admit_last(ordinal, &*a.cast::<Admission>()),
        }
    };
    let record = hot.count(record);
    if record == NO_SEQ {
        hot.aborted = hot.aborted.wrapping_add(1);
        hot.evms.abort(ordinal);
        return (bindings::vmtrace_reserve_VMTRACE_RESERVE_CHANGED, full);
    }
    // SAFETY: `l` is valid.
    unsafe { (&raw mut (*l).record).write(record) };
    (bindings::vmtrace_reserve_VMTRACE_RESERVE_GO, full)
}

/// The PTE of a victim, if its page table is the one that the caller has locked, or could be
/// locked without waiting: the lock is `l.far` then. `None` for a huge page.
///
/// # Safety
///
/// As of [`vmtrace_rs_admit_locked`], [`HOT`]'s lock is held, and `v` is a member. So its page
/// table and its address space are there, for whatever ends them ends the stay first, under that
/// lock.
#[inline(always)]
unsafe fn lock_victim(l: *mut bindings::vmtrace_locked, v: Victim) -> Option<*mut bindings::pte_t> {
    // SAFETY: `l` is valid, and C has set these.
    let (entry, ptep) = unsafe { ((*l).a.entry, (*l).ptep) };
    if (v.entry | entry) & bindings::VMTRACE_ENTRY_HUGE as usize != 0 {
        return None;
    }
    if (v.entry ^ entry) >> PAGE_SHIFT == 0 {
        // Words and PTEs are of one size.
        let words = (v.entry as isize).wrapping_sub(entry as isize);
        // SAFETY: Both are in one page table.
        return Some(unsafe { ptep.byte_offset(words) });
    }
    let mm = v.owner as *mut bindings::mm_struct;
    // SAFETY: `v` is a member, and its page table is there.
    let ptep = unsafe { bindings::vmtrace_trylock_victim(mm, v.entry, l) };
    (!ptep.is_null()).then_some(ptep)
}

/// Whether references of an address space with this number are recorded, as `vmtrace_mm_refs()`.
/// Under [`HOT`]'s lock while the set is open: the numbers of an era become invalid before the
/// set is opened again. Events carry numbers without the bit for quiet. For such a number, this is
/// whether the address space is traced.
#[inline(always)]
pub(crate) fn is_of_this_era(id: u32) -> bool {
    // SAFETY: A word that is written as a whole.
    let first = unsafe { (&raw const bindings::vmtrace_first_id).read_volatile() };
    id as i32 >= first as i32
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

/// How many entries of their page table the page `to` is behind `from`; flags don't matter.
fn entries_between(from: u64, to: u64) -> isize {
    let entry = |addr: u64| (addr >> PAGE_SHIFT) as isize & (PTRS_PER_PTE as isize - 1);
    entry(to).wrapping_sub(entry(from))
}

/// Makes a page a member; its page table lock is held, and its PTE is the same as before the
/// reservation. Returns the sequence number of its record, [`NO_SEQ`] if
/// it gets none: then it is no member.
///
/// # Safety
///
/// `a` is valid and all its fields are set. `a.entry` is the handle of the PTE, which is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_admit(a: *const bindings::vmtrace_admission) -> u64 {
    // SAFETY: By the caller's promise.
    let a = unsafe { &*a };
    with_hot(NO_SEQ, |hot| hot.admit(a))
}

/// Gives up an admission; its victim's stay has ended all the same.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_abort(ordinal: u64) {
    with_hot((), |hot| {
        hot.aborted = hot.aborted.wrapping_add(1);
        hot.evms.abort(ordinal);
    })
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
    with_hot(funny, |hot| {
        let page = page_at(mm, addr, entry);
        let hidden = hot.evms.hidden(page);
        if hot.evms.close(page, bits(last), why, clock()) {
            return if hidden {
                bindings::vmtrace_close_VMTRACE_CLOSE_YOUNG
            } else {
                bindings::vmtrace_close_VMTRACE_CLOSE_MEMBER
            };
        }
        funny
    }) as c_int
}

/// Notes that the disabled PTE of a page that is dropped was cleared; see
/// [`Evms::overtake`]. The oracle reads which page that is.
///
/// # Safety
///
/// `entry` is 0, or the handle of the entry, whose page table is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_dropped(_mm: u32, _addr: u64, entry: usize) {
    with_hot((), |hot| hot.evms.overtake(entry));
}

/// Notes that the event of a drop has its number, while no new page can take the place of
/// those that it dropped; see [`Evms::overtake_all`].
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_drop_logged() {
    with_hot((), |hot| hot.evms.overtake_all());
}

/// Counts a funny PTE: one that was enabled and no member's.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_funny() {
    with_hot((), |hot| {
        if !hot.sealed {
            hot.funny = hot.funny.wrapping_add(1);
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
    with_hot(false, |hot| hot.evms.hidden(page_at(mm, addr, entry)))
}

/// Notes a store to a member.
///
/// # Safety
///
/// `entry` is 0, or the handle of the entry, whose page table is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_dirtied(mm: u32, addr: u64, entry: usize) -> bool {
    with_hot(false, |hot| hot.evms.dirtied(page_at(mm, addr, entry)))
}

/// Whether a page is a member.
///
/// # Safety
///
/// `entry` is 0, or the handle of the entry, whose page table is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_member(mm: u32, addr: u64, entry: usize) -> bool {
    with_hot(false, |hot| hot.evms.contains(page_at(mm, addr, entry)))
}

/// What an audit may judge: while the set is sealed, faults enable pages that are
/// no members.
fn with_open<R>(none: R, f: impl FnOnce(&mut Hot) -> R) -> R {
    match HOT.lock().as_mut() {
        Some(hot) if !hot.sealed => f(hot),
        _ => none,
    }
}

/// Counts an address space that is audited.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_audited() {
    with_hot((), |hot| hot.audits = hot.audits.wrapping_add(1))
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
    let found = with_open(bindings::vmtrace_found_VMTRACE_FOUND_NOTHING, |hot| {
        // The trace that this set is of must be the one that `mm` is of.
        // SAFETY: Valid by the caller's promise.
        let id = unsafe { bindings::vmtrace_mm_id(mm) };
        match hot.evms.frame(page_at(id, addr, entry)) {
            _ if id == 0 => bindings::vmtrace_found_VMTRACE_FOUND_NOTHING,
            Some(frame) if frame == pfn => bindings::vmtrace_found_VMTRACE_FOUND_NOTHING,
            Some(_) => {
                hot.dangling = hot.dangling.wrapping_add(1);
                bindings::vmtrace_found_VMTRACE_FOUND_ASTRAY
            }
            None => {
                hot.funny = hot.funny.wrapping_add(1);
                bindings::vmtrace_found_VMTRACE_FOUND_FUNNY
            }
        }
    });
    found as c_int
}

/// Names the next member that `c` is after, if there is one near. False if there
/// can be no more. Members that come in behind where the set ended at first, and
/// room for all that was in it again, are left out, so that this comes to an end.
///
/// # Safety
///
/// The pointers are valid but `mm`, which is what `c` is after or null.
#[export]
pub unsafe extern "C" fn vmtrace_rs_audit_next(
    v: *mut bindings::vmtrace_victim,
    c: *mut bindings::vmtrace_cursor,
    mm: *mut bindings::mm_struct,
) -> bool {
    // SAFETY: Valid by the caller's promise.
    let c = unsafe { &mut *c };
    // SAFETY: As above.
    unsafe { (*v).mm = core::ptr::null_mut() };
    with_open(false, |hot| {
        if c.end == 0 {
            c.end = hot.evms.head().saturating_add(hot.evms.size());
        }
        let (at, member) = hot.evms.seek(c.at, c.end, c.mm, STEP);
        c.at = at;
        // SAFETY: `v` is valid, the lock is held.
        unsafe { put_victim(v, member, mm) };
        at < c.end.min(hot.evms.head())
    })
}

/// Judges a member whose PTE is locked, or whose address space has ended: whether it is
/// `enabled`, its frame number, and that of its address space. VMTRACE_FOUND_*. What dangles is a
/// member no more after this, lest it outlive its page table.
///
/// # Safety
///
/// `v` is valid.
#[export]
pub unsafe extern "C" fn vmtrace_rs_audit_member(
    v: *const bindings::vmtrace_victim,
    mm: u32,
    enabled: bool,
    pfn: u32,
) -> c_int {
    // SAFETY: Valid by the caller's promise.
    let v = unsafe { &*v };
    let found = with_open(bindings::vmtrace_found_VMTRACE_FOUND_NOTHING, |hot| {
        let (id, frame) = match hot.evms.member(v.ordinal) {
            Some((id, frame, m)) if m.owner == v.mm as usize && m.addr == v.addr as u64 => {
                (id, frame)
            }
            // Its stay ended meanwhile.
            _ => return bindings::vmtrace_found_VMTRACE_FOUND_NOTHING,
        };
        if enabled && (id, frame) == (mm, pfn) {
            return bindings::vmtrace_found_VMTRACE_FOUND_NOTHING;
        }
        hot.dangling = hot.dangling.wrapping_add(1);
        if enabled {
            return bindings::vmtrace_found_VMTRACE_FOUND_ASTRAY;
        }
        hot.evms.evict(
            v.ordinal,
            bindings::VMTRACE_WHY_OTHER,
            clock(),
            END_NOW,
            |_| Bits::default(),
        );
        bindings::vmtrace_found_VMTRACE_FOUND_DANGLING
    });
    found as c_int
}

/// Audits the set's own figures: one pass under the lock, some ns a slot, at the end
/// of a trace and when root asks.
///
/// # Safety
///
/// `a` is valid.
#[export]
pub unsafe extern "C" fn vmtrace_rs_audit_set(a: *mut bindings::vmtrace_audit) {
    // SAFETY: Valid by the caller's promise.
    let a = unsafe { &mut *a };
    with_open((), |hot| {
        let f = hot.evms.figures(epoch_of);
        a.size = hot.evms.size();
        a.members = f.live;
        a.first = f.first;
        a.reserved = f.reserved;
        // Each number was given to an admission, to one that was given up, or to a
        // stay that goes on.
        let numbers = hot
            .admissions()
            .wrapping_add(hot.aborted)
            .wrapping_add(hot.evms.renewed())
            .wrapping_add(hot.evms.chances())
            .wrapping_add(f.reserved)
            .wrapping_add(hot.evms.start());
        a.wrong = f.wrong.wrapping_add(u64::from(numbers != hot.evms.head()));
        hot.miscounted = hot.miscounted.wrapping_add(a.wrong);
    });
}

/// Counts memory that is accessed without the tracer.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_uncovered() {
    with_hot((), |hot| hot.uncovered = hot.uncovered.wrapping_add(1))
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

/// Whether less than one part in `share` of the set's reserve is taken. Then an admission finds
/// a place there, and need not wait.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_spare(share: bindings::vmtrace_spare) -> bool {
    with_hot(true, |hot| hot.evms.has_spare(u64::from(share)))
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
