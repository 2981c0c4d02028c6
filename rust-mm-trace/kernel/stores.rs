// SPDX-License-Identifier: GPL-2.0

//! What the rest of the kernel does to page table entries of traced address spaces: the hooks of the
//! primitives that store, clear and age them.
//!
//! Invariant: every entry of a traced address space through which user mode can reach a page belongs
//! to a member of the set. Whatever stores an entry stores it disabled ([`vmtrace_rs_filter`]); only
//! an admission enables one; whatever clears an enabled one ends its stay ([`vmtrace_rs_cleared`]).
//! All three happen under the entry's lock.

use crate::{
    hot::{self, clock, first_id, Kernel, Refs, NUMBERS},
    policy::{self, Operations, SET},
    pte::Pte,
    scopes::Scope,
    stay::Page,
    tables::{
        bits_of_raw, frame_mask, id_of, is_broken, late, raw_bits, shift_of, Entry, Tables,
        PAGE_SHIFT,
    },
    tickets::Set,
};
use core::ffi::c_int;
use kernel::{bindings, macros::export};

/// An address space that is traced.
#[derive(Clone, Copy)]
pub(crate) struct Space {
    pub(crate) mm: *mut bindings::mm_struct,
    /// Its number, without the bit for a quiet one.
    id: u32,
}

/// How an address space is observed.
pub(crate) enum Observed {
    /// It is not traced.
    Not,
    /// Its references are recorded: what happens to its pages is for [`SET`].
    Set(Space),
    /// Its references are not recorded, and this policy observes it in another way.
    Quiet(Space, &'static Operations),
}

impl Observed {
    /// # Safety
    ///
    /// `mm` is valid for as long as this is used.
    #[inline(always)]
    pub(crate) unsafe fn new(mm: *mut bindings::mm_struct) -> Observed {
        // SAFETY: As promised.
        match unsafe { (Space::new(mm), id_of(mm)) } {
            (Some(space), _) => Observed::Set(space),
            (None, 0) => Observed::Not,
            (None, id) => Observed::quiet(mm, id),
        }
    }

    #[cold]
    fn quiet(mm: *mut bindings::mm_struct, id: u32) -> Observed {
        let number = id & !bindings::VMTRACE_ID_QUIET;
        match policy::of_quiet() {
            Some(policy) if number != id && number >= first_id() => {
                Observed::Quiet(Space { mm, id: number }, policy)
            }
            _ => Observed::Not,
        }
    }
}

impl Space {
    /// `None` if its references are not recorded: `vmtrace_mm_refs()`.
    ///
    /// # Safety
    ///
    /// `mm` is valid for as long as this is used.
    #[inline(always)]
    unsafe fn new(mm: *mut bindings::mm_struct) -> Option<Space> {
        // SAFETY: As promised.
        let id = unsafe { id_of(mm) };
        // The number of a quiet one is negative.
        (id as i32 >= first_id() as i32).then_some(Space { mm, id })
    }

    /// Whether it has users. What ends with its address space is not referenced any more.
    fn lives(self) -> bool {
        // SAFETY: It is valid, as `new` demands. The count is read as a whole.
        let users =
            unsafe { (&raw const (*self.mm).__bindgen_anon_1.mm_users.counter).read_volatile() };
        users != 0
    }
}

/// The beginning of what an entry maps at an address.
fn begin_of(addr: usize, shift: u32) -> u64 {
    addr as u64 >> shift << shift
}

/// Why entries are cleared by this task now: VMTRACE_WHY_*.
pub(crate) fn why() -> u32 {
    // SAFETY: Looks at the present task only.
    unsafe { bindings::vmtrace_why() }
}

/// `pte` was cleared at an entry, so its stay in the set is over. Gives the entry as it would be if
/// this tracer had not cleared its accessed bit.
///
/// # Safety
///
/// The entry is locked, and whoever cleared it keeps the page.
unsafe fn clear(space: Space, addr: usize, entry: Entry, pte: Pte) -> Pte {
    // SAFETY: As promised.
    let shift = unsafe { shift_of(pte) };
    if shift == 0 {
        return pte;
    }
    let addr = begin_of(addr, shift);
    let why = why();
    // Only if its page table and its address space remain.
    if is_broken(bindings::VMTRACE_BREAK_NOCLOSE) && why == bindings::VMTRACE_WHY_ADVISED {
        return pte;
    }
    late(bindings::vmtrace_late_point_VMTRACE_LATE_CLOSING);
    let handle = entry.handle();
    // SAFETY: The entry is locked.
    let closed = unsafe { vmtrace_rs_close(space.id, addr, raw_bits(pte), why, handle, space.mm) };
    let pte = match closed as u32 {
        bindings::vmtrace_close_VMTRACE_CLOSE_FUNNY => {
            // SAFETY: Looks at a flag of a valid address space.
            if !unsafe { bindings::vmtrace_is_attaching(space.mm) } {
                hot::count_funny();
            }
            return pte;
        }
        bindings::vmtrace_close_VMTRACE_CLOSE_YOUNG => pte.make_young(),
        _ => pte,
    };
    late(bindings::vmtrace_late_point_VMTRACE_LATE_CLOSED);
    // The caller may store the entry again and decide by its own copy of it that no flush is needed,
    // although the stored one is disabled. Without this flush, the stale entry of the TLB would hide
    // the next references. It takes the place of the flush at eviction, which this stay won't see.
    if space.lives() && !is_broken(bindings::VMTRACE_BREAK_NOREFLUSH) {
        // SAFETY: The address space is valid, and the context that of a primitive of page tables.
        unsafe { bindings::vmtrace_flush_page(space.mm, addr as usize, shift) };
    }
    pte
}

/// `pte` was cleared at an entry and is no member's. If the page is gone for good, an admission that
/// has its number already must not take a new page for it. It would do so if the new page's entry is
/// equal: that of the zero page, or of a frame that was freed and used again.
///
/// # Safety
///
/// As of [`clear`].
unsafe fn overtake(space: Space, addr: usize, entry: Entry, pte: Pte) {
    let gone = [
        bindings::VMTRACE_WHY_ADVISED,
        bindings::VMTRACE_WHY_TRUNCATED,
    ];
    if gone.contains(&why()) && pte.is_disabled() && space.lives() {
        // SAFETY: As promised.
        unsafe {
            let addr = begin_of(addr, shift_of(pte));
            vmtrace_rs_dropped(space.id, addr, entry.handle(), space.mm);
        }
    }
}

/// An entry was cleared, which was `pte`. Gives what whoever cleared it is to see.
///
/// # Safety
///
/// `mm` is valid. If it is traced, `ptep` is an entry of it that is locked, and the caller keeps the
/// page.
#[export]
pub unsafe extern "C" fn vmtrace_rs_cleared(
    mm: *mut bindings::mm_struct,
    addr: usize,
    ptep: *mut bindings::pte_t,
    pte: u64,
) -> u64 {
    let pte = Pte(pte);
    // SAFETY: As promised; the address space is traced where that matters.
    unsafe {
        let entry = Entry::new(ptep);
        let seen = match Observed::new(mm) {
            Observed::Not => pte,
            Observed::Set(space) => (SET.cleared)(space, addr, entry, pte),
            Observed::Quiet(space, policy) => (policy.cleared)(space, addr, entry, pte),
        };
        seen.0
    }
}

/// The same for the set.
///
/// # Safety
///
/// As of [`clear`].
pub(crate) unsafe fn cleared(space: Space, addr: usize, entry: Entry, pte: Pte) -> Pte {
    // SAFETY: As promised.
    unsafe {
        if pte.is_enabled() {
            return clear(space, addr, entry, pte);
        }
        overtake(space, addr, entry, pte);
    }
    pte
}

/// What to store at an entry, and at those after it, instead of `pte`. `access_flags`: the caller
/// changes bits of an entry that stays what it is.
///
/// # Safety
///
/// `mm` is valid. If it is traced, `ptep` is the first of `nr` entries of one page table that is
/// locked, and the caller keeps the pages.
#[export]
pub unsafe extern "C" fn vmtrace_rs_filter(
    mm: *mut bindings::mm_struct,
    addr: usize,
    ptep: *mut bindings::pte_t,
    pte: u64,
    nr: u32,
    access_flags: bool,
) -> u64 {
    let pte = Pte(pte);
    // SAFETY: As promised.
    let (space, entry) = unsafe { (Space::new(mm), Entry::new(ptep)) };
    let control = match access_flags {
        true => bindings::VMTRACE_BREAK_NOACCESS,
        false => bindings::VMTRACE_BREAK_NOFILTER,
    };
    let Some(space) = space.filter(|_| !is_broken(control)) else {
        return pte.0;
    };
    // SAFETY: As promised; the address space is traced.
    let shift = unsafe { shift_of(pte) };
    if shift == 0 {
        hot::count_uncovered();
        return pte.0;
    }
    late(bindings::vmtrace_late_point_VMTRACE_LATE_FILTERING);
    let old = entry.get();
    if !old.is_enabled() {
        return pte.disable(frame_mask()).0;
    }
    let begin = begin_of(addr, shift);
    if nr == 1 && old.frame(frame_mask()) == pte.frame(frame_mask()) {
        // An update of a live member in place. If a fault makes it dirty, that is a store. The dirty
        // bit may not show that store at the end of the stay, because it may have been set before.
        // A CPU without shadow stacks may leave the bits of one on an entry that takes no store.
        let took = old.is_writable() || old.is_shadow_stack() && pte.is_shadow_stack();
        let stores = access_flags && pte.takes_stores() && pte.is_dirty() && !took;
        // SAFETY: The entry is locked.
        unsafe {
            if stores && !is_broken(bindings::VMTRACE_BREAK_NOUPGRADE) {
                vmtrace_rs_dirtied(space.id, begin, entry.handle(), space.mm);
            }
            // DAMON stores a huge entry to clear its accessed bit.
            if old.is_young() && !pte.is_young() {
                vmtrace_rs_aged(space.mm, begin, true, entry.handle());
            }
        }
        return pte.0;
    }
    // Replaced without having been cleared.
    // SAFETY: As promised. What was mapped until now is not freed before its entry is stored.
    unsafe { clear(space, begin as usize, entry, old) };
    pte.disable(frame_mask()).0
}

/// Disables or enables an entry, as a trace begins or ends. A member's is left as it is.
///
/// # Safety
///
/// `ptep` is an entry of `mm` that is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_pte_switch(
    ptep: *mut bindings::pte_t,
    mm: *mut bindings::mm_struct,
    addr: usize,
    disable: bool,
) {
    // SAFETY: As promised.
    let entry = unsafe { Entry::new(ptep) };
    let mut old = entry.get();
    loop {
        let new = match disable {
            true => {
                // SAFETY: The entry is locked, so what it maps is not freed.
                let stays =
                    || unsafe { shift_of(old) == 0 || is_member(mm, addr as u64, entry.handle()) };
                if !old.is_enabled() || stays() {
                    return;
                }
                old.disable(frame_mask())
            }
            false => {
                if !old.is_disabled() {
                    return;
                }
                old.enable(frame_mask())
            }
        };
        match entry.replace(old, new) {
            Ok(()) => return,
            Err(now) => old = now,
        }
    }
}

/// Whether a page is a member.
///
/// # Safety
///
/// `mm` is valid. `handle` is 0, or that of the entry, whose page table is locked.
unsafe fn is_member(mm: *const bindings::mm_struct, addr: u64, handle: usize) -> bool {
    // SAFETY: As promised.
    unsafe { with_page(mm, addr, handle, None, |set, page| set.frame(page)) }.is_some()
}

/// The set of an address space.
type Kept = Set<Kernel, Tables>;

/// Does `f` with a page of an address space, and with its set.
///
/// # Safety
///
/// `mm` is valid.
unsafe fn with_page<R>(
    mm: *const bindings::mm_struct,
    addr: u64,
    handle: usize,
    none: R,
    f: impl FnOnce(&Kept, Page) -> R,
) -> R {
    // SAFETY: As promised.
    unsafe {
        hot::with_set(mm, none, |_, scope| {
            f(&scope.set, page_at(id_of(mm), addr, handle))
        })
    }
}

/// The page of an address.
pub(crate) fn page_at(mm: u32, addr: u64, handle: usize) -> Page {
    let addr = addr >> PAGE_SHIFT << PAGE_SHIFT;
    Page {
        entry: handle,
        mm,
        addr,
    }
}

// The oracle follows calls of these functions by their names, and their arguments.

/// Ends the stay of a page whose enabled PTE was cleared; gives VMTRACE_CLOSE_*.
/// A page that is no member may have a funny PTE; the caller knows that.
///
/// # Safety
///
/// `owner` is valid, and `mm` is its number. `handle` is 0, or that of the entry, whose page table is
/// locked.
#[no_mangle]
#[inline(never)]
unsafe extern "C" fn vmtrace_rs_close(
    mm: u32,
    addr: u64,
    last: u32,
    why: u32,
    handle: usize,
    owner: *const bindings::mm_struct,
) -> c_int {
    let funny = bindings::vmtrace_close_VMTRACE_CLOSE_FUNNY;
    let close = |refs: &Refs, scope: &Scope| {
        let (set, page) = (&scope.set, page_at(mm, addr, handle));
        // SAFETY: As promised.
        let (hidden, closed) = unsafe {
            let hidden = set.hidden(page);
            (
                hidden,
                set.close(page, bits_of_raw(last), why, clock(), &NUMBERS),
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
    };
    // SAFETY: As promised.
    unsafe { hot::with_set(owner, funny, close) as c_int }
}

/// Notes that the disabled PTE of a page that is dropped was cleared; see
/// `Set::overtake()`. The oracle reads which page that is.
///
/// # Safety
///
/// `owner` is valid, and `mm` is its number. `handle` is 0, or that of the entry, whose page table is
/// locked.
#[no_mangle]
#[inline(never)]
unsafe extern "C" fn vmtrace_rs_dropped(
    mm: u32,
    addr: u64,
    handle: usize,
    owner: *const bindings::mm_struct,
) {
    // The compiler leaves out arguments that nobody uses. The oracle reads them.
    core::hint::black_box((mm, addr));
    // SAFETY: As promised.
    unsafe { hot::with_set(owner, (), |_, scope| scope.set.overtake(handle, &NUMBERS)) };
}

/// Notes that the event of a drop has its number, while no new page can take the place of
/// those that it dropped; see `Set::overtake_all()`.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_drop_logged() {
    NUMBERS.overtake_all::<Kernel>();
}

/// Whether a policy has cleared the accessed bit of a page, and no other user
/// has seen that it was set.
///
/// # Safety
///
/// `mm` is valid. `handle` is 0, or that of the entry, whose page table is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_hidden(
    mm: *mut bindings::mm_struct,
    addr: u64,
    handle: usize,
) -> bool {
    // SAFETY: As promised.
    unsafe {
        match Observed::new(mm) {
            Observed::Not => false,
            Observed::Set(space) => (SET.hidden)(space, addr, handle),
            Observed::Quiet(space, policy) => (policy.hidden)(space, addr, handle),
        }
    }
}

/// Whether the set has.
///
/// # Safety
///
/// The address space is valid. `handle` is 0, or that of the entry, whose page table is locked.
pub(crate) unsafe fn hidden(space: Space, addr: u64, handle: usize) -> bool {
    // SAFETY: As promised.
    unsafe { with_page(space.mm, addr, handle, false, |set, page| set.hidden(page)) }
}

/// Notes that another user cleared the accessed bit of a page, which was `young`.
/// Returns the value that the other user is to see.
///
/// # Safety
///
/// `mm` is valid. `handle` is 0, or that of the entry, whose page table is locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_aged(
    mm: *mut bindings::mm_struct,
    addr: u64,
    young: bool,
    handle: usize,
) -> bool {
    // SAFETY: As promised.
    unsafe {
        match Observed::new(mm) {
            Observed::Not => young,
            Observed::Set(space) => (SET.aged)(space, addr, young, handle),
            Observed::Quiet(space, policy) => (policy.aged)(space, addr, young, handle),
        }
    }
}

/// The same for the set.
///
/// # Safety
///
/// The address space is valid. `handle` is 0, or that of the entry, whose page table is locked.
pub(crate) unsafe fn aged(space: Space, addr: u64, young: bool, handle: usize) -> bool {
    // SAFETY: As promised.
    unsafe {
        with_page(space.mm, addr, handle, young, |set, page| {
            set.aged(page, young)
        })
    }
}

/// Notes a store to a member.
///
/// # Safety
///
/// `owner` is valid, and `mm` is its number. `handle` is 0, or that of the entry, whose page table is
/// locked.
#[no_mangle]
#[inline(never)]
unsafe extern "C" fn vmtrace_rs_dirtied(
    mm: u32,
    addr: u64,
    handle: usize,
    owner: *const bindings::mm_struct,
) -> bool {
    let page = page_at(mm, addr, handle);
    // SAFETY: As promised.
    unsafe { hot::with_set(owner, false, |_, scope| scope.set.dirtied(page)) }
}
