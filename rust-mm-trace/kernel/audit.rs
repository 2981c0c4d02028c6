// SPDX-License-Identifier: GPL-2.0

//! The audit: compares page tables and set. C goes through the page tables (audit.c, which says why
//! what is found is so), and this file through the set.

use crate::{
    hot::{self, clock, clock_next, Refs, NUMBERS},
    members::{Cursor, Pause},
    pte::Pte,
    scopes::{self, Scope},
    stay::{Bits, Slot},
    stores::page_at,
    tables::{frame_of, late, Held, PAGE_MASK},
    window::UNAUDITED,
};
use core::ffi::c_int;
use kernel::{bindings, macros::export, sync::atomic::ordering::Relaxed};

/// What an audit may judge: while the set is sealed, faults enable pages that are
/// no members.
fn with_open<R>(none: R, f: impl FnOnce(&Refs) -> R) -> R {
    hot::with(None, |refs| (!refs.is_sealed()).then(|| f(refs))).unwrap_or(none)
}

/// Judges an accessible PTE of `mm`, whose lock is held: VMTRACE_FOUND_*.
///
/// # Safety
///
/// `mm` is valid. `handle` is 0, or that of the PTE.
#[export]
pub unsafe extern "C" fn vmtrace_rs_audit_pte(
    mm: *const bindings::mm_struct,
    addr: u64,
    pfn: u32,
    handle: usize,
) -> c_int {
    let nothing = bindings::vmtrace_found_VMTRACE_FOUND_NOTHING;
    let judge = |refs: &Refs, scope: &Scope| {
        // SAFETY: Valid, as promised.
        let id = unsafe { bindings::vmtrace_mm_id(mm) };
        // SAFETY: The PTE is locked.
        match unsafe { scope.set.frame(page_at(id, addr, handle)) } {
            _ if id == 0 || refs.is_sealed() => nothing,
            Some(frame) if frame == pfn => nothing,
            Some(_) => {
                refs.dangling.add(1u64, Relaxed);
                bindings::vmtrace_found_VMTRACE_FOUND_ASTRAY
            }
            None => {
                refs.funny.add(1u64, Relaxed);
                bindings::vmtrace_found_VMTRACE_FOUND_FUNNY
            }
        }
    };
    // SAFETY: As promised.
    unsafe { hot::with_set(mm, nothing, judge) as c_int }
}

/// Judges the member of `c`, whose page table is locked. What dangles is a member no more after this,
/// lest it outlive its page table. `None` if all is well.
fn audit_member(refs: &Refs, scope: &Scope, c: &Cursor, held: &Held) -> Option<Finding> {
    // SAFETY: The page table is locked. Its stay may have ended meanwhile.
    let (s, is_sound) = unsafe { scope.set.look_at(c.ordinal) }?;
    if refs.is_sealed() {
        return None;
    }
    if !is_sound {
        refs.miscounted.add(1u64, Relaxed);
    }
    let (mm, addr, owner) = (s.mm, s.page & PAGE_MASK, s.owner);
    // SAFETY: The address space of a member is there while its entry is locked.
    let id = unsafe { bindings::vmtrace_mm_id(owner as *const bindings::mm_struct) };
    let pte = held.entry.get();
    let is_it = frame_of(pte) == s.pfn && (id == s.mm || id == 0);
    if pte.is_enabled() && is_it {
        return None;
    }
    refs.dangling.add(1u64, Relaxed);
    let what = match pte.is_enabled() {
        true => bindings::vmtrace_found_VMTRACE_FOUND_ASTRAY,
        false => bindings::vmtrace_found_VMTRACE_FOUND_DANGLING,
    };
    if !pte.is_enabled() {
        let why = bindings::VMTRACE_WHY_OTHER;
        let none = |_: &Slot, _| Bits::default();
        // SAFETY: As above.
        let ended = unsafe {
            scope
                .set
                .end_at(c.ordinal, clock_next(), why, clock(), none)
        };
        refs.count_closed(u64::from(ended));
    }
    Some(Finding {
        what,
        mm,
        addr: addr as usize,
        pte,
    })
}

/// What the set and a page table disagree about: VMTRACE_FOUND_*.
struct Finding {
    what: bindings::vmtrace_found,
    mm: u32,
    addr: usize,
    pte: Pte,
}

/// From the set to the page tables: all members.
fn audit_members(a: &mut bindings::vmtrace_audit) {
    let before = || late(bindings::vmtrace_late_point_VMTRACE_LATE_AUDITING);
    let mut looked = 0u64;
    scopes::for_each(|scope| {
        let audit = |refs: &Refs, scope: &Scope, c: &mut Cursor, held: &Held| {
            looked = looked.wrapping_add(1);
            audit_member(refs, scope, c, held)
        };
        Cursor::for_each(
            scope,
            0,
            || true,
            before,
            audit,
            |f| {
                // SAFETY: `a` is valid.
                unsafe { bindings::vmtrace_report(a, f.what, f.mm, f.addr, f.pte.0) }
            },
        );
    });
    a.looked = a.looked.wrapping_add(looked);
}

/// Counts address spaces that were looked at.
fn count_spaces(a: &bindings::vmtrace_audit) {
    hot::with((), |refs| refs.audits.add(a.mms, Relaxed));
    UNAUDITED.add(a.locked as u32, Relaxed);
}

/// Audits an address space that ends, and all members.
///
/// # Safety
///
/// `a` is valid, and says which address spaces were looked at. The context may sleep.
#[export]
pub unsafe extern "C" fn vmtrace_rs_audit_exit(a: *mut bindings::vmtrace_audit) {
    // SAFETY: As promised.
    let a = unsafe { &mut *a };
    count_spaces(a);
    audit_members(a);
}

/// Audits the trace that is on, in both directions, and pauses the set for a moment. The caller keeps
/// the trace from ending meanwhile. An address space that two processes share is looked at twice, and
/// one that stays locked is not: whoever keeps it may wait for what the end of the trace is needed
/// for.
pub(crate) fn run(a: &mut bindings::vmtrace_audit) {
    // SAFETY: `a` is valid; no lock of the hooks is held.
    unsafe { bindings::vmtrace_audit_spaces(a) };
    count_spaces(a);
    audit_members(a);
    let pause = Pause::new();
    audit_set(a);
    drop(pause);
    if a.wrong != 0 {
        // SAFETY: Only prints.
        unsafe { bindings::vmtrace_report_set(a.wrong) };
    }
}

/// Audits the sets' own figures. No admission is on the way.
fn audit_set(a: &mut bindings::vmtrace_audit) {
    let (f, is_counted) = hot::figures();
    a.size = scopes::size();
    with_open((), |refs| {
        let done = refs.done();
        refs.note_members(f.live);
        a.members = f.live;
        a.first = f.first;
        a.reserved = f.reserved;
        // Each ticket was for an admission, or for one that was given up. Each number was given to
        // one of these, to a stay that goes on, or to nothing.
        let tickets = done.admissions.wrapping_add(done.aborted);
        let numbers = tickets
            .wrapping_add(done.renewed)
            .wrapping_add(done.chances)
            .wrapping_add(NUMBERS.skipped())
            .wrapping_add(refs.start);
        a.wrong = f
            .wrong
            .wrapping_add(u64::from(f.tickets != tickets as u32))
            .wrapping_add(u64::from(!is_counted))
            .wrapping_add(u64::from(numbers != clock_next()));
        refs.miscounted.add(a.wrong, Relaxed);
    });
}
