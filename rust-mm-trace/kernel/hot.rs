// SPDX-License-Identifier: GPL-2.0

//! What runs in page faults: the functions that C calls, and the state behind
//! them.
//!
//! Lock order: page table lock → [`HOT`] or [`EVENTS`], which are leaves and
//! never held together. kvmtraced is woken after they are dropped.

use crate::{
    drain::kick,
    evms::{Admission, Evms, Reserve, Victim},
    record::{self, EventHead},
    ring::Ring,
    Store,
};
use core::ffi::c_int;
use kernel::{
    bindings,
    cpu::CpuId,
    macros::export,
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
};

/// References: the set and its streams.
pub(crate) struct Hot {
    pub(crate) evms: Evms,
    /// One ring per CPU. Records of references are given out in order of
    /// admission under one lock, so each stream is in that order too.
    pub(crate) rings: Store<Ring>,
    /// No admission any more: faults enable pages without a record.
    pub(crate) sealed: bool,
    pub(crate) admissions: u64,
    pub(crate) aborted: u64,
    pub(crate) funny: u64,
    pub(crate) stuck: u64,
    pub(crate) uncovered: u64,
}

/// Events: one ring per CPU.
pub(crate) struct Events {
    pub(crate) rings: Store<Ring>,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is, before anything can trace.
    pub(crate) unsafe(uninit) static HOT: SpinLock<Option<KBox<Hot>>> = None;
}

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is, before anything can trace.
    pub(crate) unsafe(uninit) static EVENTS: SpinLock<Option<KBox<Events>>> = None;
}

/// Sequence numbers given out; references and events share them.
pub(crate) static SEQ: Atomic<u64> = Atomic::new(0);
/// Times that a task waited for room.
pub(crate) static WAITS: Atomic<u64> = Atomic::new(0);
/// Address spaces traced.
pub(crate) static MMS: Atomic<u64> = Atomic::new(0);

fn next_seq() -> u64 {
    SEQ.fetch_add(1u64, Relaxed).wrapping_add(1)
}

pub(crate) fn clock() -> u64 {
    // SAFETY: May be called in any context.
    unsafe { bindings::vmtrace_clock() }
}

/// Any CPU's stream will do, so a migration after this is harmless.
fn this_cpu() -> usize {
    CpuId::current().as_u32() as usize
}

fn congest() {
    // SAFETY: Only stores a flag when it is set to true.
    unsafe { bindings::vmtrace_set_congested(true) }
}

impl Hot {
    /// Moves complete records to the present CPU's ring. True if a sub-buffer
    /// became full.
    pub(crate) fn retire(&mut self, all: bool) -> bool {
        let Some(ring) = self.rings.get_mut(this_cpu()) else {
            return false;
        };
        let before = ring.has_full();
        let mut short = false;
        self.evms.retire(all, |slot| {
            match ring.push(record::REF_SIZE, slot.seq, slot.time) {
                Some((out, base)) => {
                    record::put_ref(out, slot, &base);
                    true
                }
                None => {
                    short = true;
                    false
                }
            }
        });
        if short || ring.free() == 0 {
            congest();
        }
        short || (ring.has_full() && !before)
    }
}

fn with_hot<R>(none: R, f: impl FnOnce(&mut Hot) -> R) -> R {
    match HOT.lock().as_mut() {
        Some(hot) => f(hot),
        None => none,
    }
}

/// Takes a number for an admission to `mm`'s page and names the page that must
/// be disabled first.
///
/// # Safety
///
/// All pointers are valid, and preemption is disabled.
#[export]
pub unsafe extern "C" fn vmtrace_rs_reserve(
    victim: *mut bindings::vmtrace_victim,
    mm: *mut bindings::mm_struct,
    ordinal: *mut u64,
    time: *mut u64,
) -> c_int {
    let mut full = false;
    let mut ret = bindings::vmtrace_reserve_VMTRACE_RESERVE_OFF;
    with_hot((), |hot| {
        if hot.sealed {
            return;
        }
        let now = clock();
        if hot.evms.retire_due() {
            full = hot.retire(false);
        }
        match hot.evms.reserve(now, next_seq) {
            Reserve::Full => ret = bindings::vmtrace_reserve_VMTRACE_RESERVE_FULL,
            Reserve::Go(o, v) => {
                ret = bindings::vmtrace_reserve_VMTRACE_RESERVE_GO;
                // SAFETY: The pointers are valid by the caller's promise. The
                // victim's address space is alive while it is a member, for its
                // end clears all its PTEs first, and that ends the stay under
                // the lock held here.
                unsafe {
                    *ordinal = o;
                    *time = now;
                    put_victim(victim, v, mm);
                }
            }
        }
    });
    if full {
        kick();
    }
    ret as c_int
}

/// # Safety
///
/// `out` is valid; the victim is a member and [`HOT`]'s lock is held.
unsafe fn put_victim(
    out: *mut bindings::vmtrace_victim,
    v: Option<Victim>,
    current_mm: *mut bindings::mm_struct,
) {
    let mut value = bindings::vmtrace_victim {
        mm: core::ptr::null_mut(),
        pmd: core::ptr::null_mut(),
        addr: 0,
        ordinal: 0,
        grabbed: false,
    };
    if let Some(v) = v {
        value.mm = v.owner as *mut bindings::mm_struct;
        value.pmd = v.table as *mut bindings::pmd_t;
        value.addr = v.addr as usize;
        value.ordinal = v.ordinal;
        // The faulting task keeps its own address space.
        if value.mm != current_mm {
            // SAFETY: Alive, as the caller promises.
            unsafe { bindings::mmgrab(value.mm) };
            value.grabbed = true;
        }
    }
    // SAFETY: Valid by the caller's promise.
    unsafe { *out = value };
}

/// Names a member, for disabling all of them. False if there is none.
///
/// # Safety
///
/// `victim` is valid.
#[export]
pub unsafe extern "C" fn vmtrace_rs_next_member(victim: *mut bindings::vmtrace_victim) -> bool {
    with_hot(false, |hot| match hot.evms.next_member(0) {
        // SAFETY: `victim` is valid, the lock is held.
        Some(v) => unsafe {
            put_victim(victim, Some(v), core::ptr::null_mut());
            true
        },
        None => false,
    })
}

/// Ends a victim's stay and disables its PTE, whose lock is held; null if its
/// page table is gone. True if the PTE was disabled, so that a flush is due;
/// false if the stay had ended before.
///
/// A member without an enabled PTE means that a clearing was missed: counted.
///
/// # Safety
///
/// `ptep` is null, or valid and locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_evict(
    ordinal: u64,
    ptep: *mut bindings::pte_t,
    why: u32,
    now: u64,
) -> bool {
    let mut taken = false;
    with_hot((), |hot| {
        let mut dirty = false;
        let member = hot.evms.evict(ordinal, why, now, || {
            // SAFETY: The PTE is locked by the caller's promise.
            taken = !ptep.is_null() && unsafe { bindings::vmtrace_pte_take(ptep, &raw mut dirty) };
            dirty
        });
        if member && !taken {
            hot.stuck = hot.stuck.wrapping_add(1);
        }
    });
    taken
}

/// Makes a page a member; its page table lock is held.
///
/// # Safety
///
/// `a` is valid and all its fields are set.
#[export]
pub unsafe extern "C" fn vmtrace_rs_admit(a: *const bindings::vmtrace_admission) {
    // SAFETY: By the caller's promise.
    let a = unsafe { &*a };
    with_hot((), |hot| {
        hot.admissions = hot.admissions.wrapping_add(1);
        hot.evms.admit(
            a.ordinal,
            &Admission {
                owner: a.mm as usize,
                table: a.pmd as usize,
                page: a.page,
                mm: a.mm_id,
                tid_cpu: a.tid_cpu,
                pfn: a.pfn,
                was_dirty: a.was_dirty,
            },
        );
    })
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

/// Ends the stay of a page whose enabled PTE was cleared; 0 if it is no member,
/// which is a funny PTE.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_close(mm: u32, addr: u64, dirty: bool, why: u32) -> c_int {
    with_hot(0, |hot| {
        if hot.evms.close(mm, addr, dirty, why, clock()) {
            return 1;
        }
        if !hot.sealed {
            hot.funny = hot.funny.wrapping_add(1);
        }
        0
    })
}

/// Notes a store to a member.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_dirtied(mm: u32, addr: u64) -> bool {
    with_hot(false, |hot| hot.evms.dirtied(mm, addr & !0xfff))
}

/// Whether a page is a member.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_member(mm: u32, addr: u64) -> bool {
    with_hot(false, |hot| hot.evms.contains(mm, addr & !0xfff))
}

/// Counts a funny PTE that an audit found.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_funny() {
    with_hot((), |hot| hot.funny = hot.funny.wrapping_add(1))
}

/// Counts memory that is reached past the tracer.
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

/// Counts an address space.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_mm() {
    MMS.add(1u64, Relaxed);
}

/// # Safety
///
/// `p` points to `len` bytes that nobody changes for as long as the result is
/// used, or `len` is 0.
unsafe fn bytes<'a>(p: *const core::ffi::c_void, len: u16) -> &'a [u8] {
    if len == 0 || p.is_null() {
        return &[];
    }
    // SAFETY: By the caller's promise.
    unsafe { core::slice::from_raw_parts(p.cast::<u8>(), len as usize) }
}

/// Logs an event.
///
/// # Safety
///
/// `e` and what it points to are valid. If `may_sleep`, the context may.
#[export]
pub unsafe extern "C" fn vmtrace_rs_event(e: *const bindings::vmtrace_event_in) {
    // SAFETY: By the caller's promise.
    let e = unsafe { &*e };
    // SAFETY: By the caller's promise.
    let (payload, name) = unsafe { (bytes(e.payload, e.payload_len), bytes(e.name, e.name_len)) };
    let Some(size) = record::event_size(payload.len(), name.len()) else {
        return;
    };
    // SAFETY: A plain flag.
    if e.may_sleep && unsafe { core::ptr::read_volatile(&raw const bindings::vmtrace_congested) } {
        // SAFETY: The context may sleep, as the caller says.
        unsafe { bindings::__vmtrace_throttle() };
    }
    let mut full = false;
    {
        let mut guard = EVENTS.lock();
        let Some(events) = guard.as_mut() else {
            return;
        };
        let cpu = this_cpu();
        let Some(ring) = events.rings.get_mut(cpu) else {
            return;
        };
        let before = ring.has_full();
        let seq = next_seq();
        let time = clock();
        match ring.push(usize::from(size), seq, time) {
            Some((out, _)) => {
                let head = EventHead {
                    kind: e.type_,
                    size,
                    flags: e.flags,
                    seq,
                    time,
                    tid: e.tid,
                    tgid: e.tgid,
                    mm: e.mm,
                    cpu: cpu as u32,
                };
                record::put_event(out, &head, payload, name);
            }
            None if e.may_sleep => ring.lost_full = ring.lost_full.wrapping_add(1),
            None => ring.lost_atomic = ring.lost_atomic.wrapping_add(1),
        }
        // The last quarter is for events that can't wait.
        if ring.free() <= ring.total() / 4 {
            congest();
            full = true;
        }
        full |= ring.has_full() && !before;
    }
    if full {
        kick();
    }
}
