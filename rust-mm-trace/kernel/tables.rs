// SPDX-License-Identifier: GPL-2.0

//! Page tables, as the rest of the Rust side sees them: entries in memory, their locks, their
//! [words](crate::tickets::Words), and what has to be flushed. C finds the page tables (pte.c).
//!
//! Lock order: page table lock → the lock of a ring. With the lock of a page table or of a ring
//! held, the lock of another page table is only trylocked.

use crate::{
    pte::Pte,
    stay::{Bits, Slot, MEMBER, TABLES},
    tickets::Words,
};
use core::{mem::MaybeUninit, ptr};
use kernel::{
    bindings,
    prelude::*,
    sync::atomic::{
        ordering::{Full, Relaxed},
        Atomic,
    },
    task::Task,
};

/// Of x86-64: bits of an address within a page.
pub(crate) const PAGE_SHIFT: u32 = 12;
pub(crate) const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// The others.
pub(crate) const PAGE_MASK: u64 = !(PAGE_SIZE as u64 - 1);

/// The low bits of the handle of an entry that maps a huge page.
pub(crate) const HUGE: usize = bindings::VMTRACE_ENTRY_HUGE as usize;

/// The bits of an entry that are the frame: PTE_PFN_MASK.
#[inline(always)]
pub(crate) fn frame_mask() -> u64 {
    #[cfg(CONFIG_DYNAMIC_PHYSICAL_MASK)]
    // SAFETY: Written at boot only, before there are processes.
    let mask = unsafe { (&raw const bindings::physical_mask).read() };
    #[cfg(not(CONFIG_DYNAMIC_PHYSICAL_MASK))]
    let mask = (1u64 << 52) - 1;
    mask & PAGE_MASK
}

/// The number of an entry's frame, as a record has it.
#[inline(always)]
pub(crate) fn frame_of(pte: Pte) -> u32 {
    pte.frame(frame_mask()).min(u64::from(u32::MAX)) as u32
}

/// An entry of a page table, in memory.
///
/// # Invariants
///
/// The page table is not freed while this is used. It is locked; or the CPU is in a section that
/// keeps grace periods of RCU from ending, and the page table was in use in that section; or C keeps
/// it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Entry(*mut bindings::pte_t);

impl Entry {
    /// # Safety
    ///
    /// The type's invariant holds.
    #[inline(always)]
    pub(crate) unsafe fn new(ptep: *mut bindings::pte_t) -> Entry {
        Entry(ptep)
    }

    #[inline(always)]
    fn word(&self) -> &Atomic<u64> {
        // SAFETY: By the type's invariant. The CPU sets bits in it at any time, so the kernel
        // changes it by whole words.
        unsafe { Atomic::from_ptr(self.0.cast::<u64>()) }
    }

    /// What it is. Without the lock, it may be something else at once.
    #[inline(always)]
    pub(crate) fn get(self) -> Pte {
        Pte(self.word().load(Relaxed))
    }

    /// Stores it if it is `old`; otherwise gives what it is.
    #[inline(always)]
    pub(crate) fn replace(self, old: Pte, new: Pte) -> Result<(), Pte> {
        match self.word().cmpxchg(old.0, new.0, Full) {
            Ok(_) => Ok(()),
            Err(now) => Err(Pte(now)),
        }
    }

    /// The entry in the same page table that a handle is of.
    ///
    /// # Safety
    ///
    /// The handle is of an entry in the page table of this one.
    #[inline(always)]
    pub(crate) unsafe fn beside(self, handle: usize) -> Entry {
        // A page table is a page, and so are its words, and they are of one size.
        let place = handle & (PAGE_SIZE - 1) & !HUGE;
        Entry((self.0 as usize & !(PAGE_SIZE - 1) | place) as *mut bindings::pte_t)
    }

    /// The entry of a handle.
    ///
    /// # Safety
    ///
    /// The handle was a member's in this section that keeps grace periods of RCU from ending.
    #[inline(always)]
    pub(crate) unsafe fn member(handle: usize) -> Entry {
        // SAFETY: So its page table is still there, and its words are.
        Entry(unsafe { bindings::vmtrace_entry_at(handle) })
    }

    /// Its handle, without the low bits of a huge page; 0 if its page table has no words.
    pub(crate) fn handle(self) -> usize {
        // SAFETY: The page table is there, by the type's invariant.
        unsafe { bindings::vmtrace_entry_of(self.0) }
    }
}

/// The size of what an entry maps, by log2; 0 if such memory is not covered.
///
/// # Safety
///
/// The page that it maps is not freed meanwhile.
#[inline(always)]
pub(crate) unsafe fn shift_of(pte: Pte) -> u32 {
    match pte.has_pse() {
        false => PAGE_SHIFT,
        // SAFETY: As promised.
        true => unsafe { bindings::vmtrace_pse_shift(pte.0) },
    }
}

/// A page table is locked until this is dropped.
pub(crate) struct Held {
    /// An entry of it.
    pub(crate) entry: Entry,
    lock: *mut bindings::spinlock_t,
}

impl Held {
    /// Locks the page table of an entry. The CPU has the lock of no page table and of no ring.
    ///
    /// # Safety
    ///
    /// `lock` is that of the page table of `entry`.
    #[inline(always)]
    pub(crate) unsafe fn new(entry: Entry, lock: *mut bindings::spinlock_t) -> Held {
        // SAFETY: It is valid, as promised.
        unsafe { bindings::vmtrace_lock(lock) };
        Held { entry, lock }
    }

    /// Locks the page table of an entry that is, or was, a member's. The CPU has the lock of no page
    /// table and of no ring.
    ///
    /// # Safety
    ///
    /// The handle was a member's in this section that keeps grace periods of RCU from ending. So its
    /// page table is still there, whatever became of the member.
    pub(crate) unsafe fn member(handle: usize) -> Held {
        let mut lock = ptr::null_mut();
        // SAFETY: As promised.
        let ptep = unsafe { bindings::vmtrace_lock_entry(handle, &raw mut lock) };
        Held {
            entry: Entry(ptep),
            lock,
        }
    }

    /// The same for the entry of a page table of PTEs, if the lock is free. The CPU may have other
    /// locks: whoever has this lock may wait for the CPU's, so it is not waited for.
    ///
    /// # Safety
    ///
    /// As of [`Held::member`]. The entry does not map a huge page.
    #[inline(always)]
    pub(crate) unsafe fn try_member(handle: usize) -> Option<Held> {
        let mut lock = ptr::null_mut();
        // SAFETY: As promised.
        let ptep = unsafe { bindings::vmtrace_trylock_entry(handle, &raw mut lock) };
        if ptep.is_null() {
            return None;
        }
        Some(Held {
            entry: Entry(ptep),
            lock,
        })
    }

    /// The same, if the page table is one of the address space `mm`.
    ///
    /// # Safety
    ///
    /// As of [`Held::try_member`].
    unsafe fn try_member_of(mm: usize, handle: usize) -> Option<Held> {
        // SAFETY: As promised, so its words are there. `mm` is only compared.
        if !unsafe { bindings::vmtrace_entry_is_of(handle, mm as *const _) } {
            return None;
        }
        // SAFETY: As promised.
        unsafe { Held::try_member(handle) }
    }

    /// Stores the entry, which is not enabled: so the CPU sets no bits in it meanwhile.
    #[inline(always)]
    pub(crate) fn set(&self, pte: Pte) {
        self.entry.word().store(pte.0, Relaxed);
    }
}

impl Drop for Held {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: This CPU has it, since this was made.
        unsafe { bindings::vmtrace_unlock(self.lock) };
    }
}

/// Locks of page tables that a batch has pages of, besides its victim's. They are dropped with this.
///
/// # Invariants
///
/// The first `nr` are initialised. The page table of `own`, if that is not 0, is one of `mm`, and is
/// locked for as long as this is used.
pub(crate) struct Others {
    mm: usize,
    own: usize,
    nr: usize,
    held: [MaybeUninit<Held>; TABLES - 1],
}

impl Default for Others {
    #[inline(always)]
    fn default() -> Others {
        Others::new(ptr::null_mut(), 0)
    }
}

impl Others {
    /// The CPU has locked the page table of the entry `own` of `mm` already.
    #[inline(always)]
    pub(crate) fn new(mm: *mut bindings::mm_struct, own: usize) -> Others {
        Others {
            mm: mm as usize,
            own,
            nr: 0,
            held: [const { MaybeUninit::uninit() }; TABLES - 1],
        }
    }

    /// Locks the page table of an entry, if it is one of `mm`, and its lock is free. Not to be called
    /// again for the same page table.
    ///
    /// # Safety
    ///
    /// The handle was a member's in this section that keeps grace periods of RCU from ending. The
    /// entry does not map a huge page.
    pub(crate) unsafe fn lock(&mut self, mm: usize, handle: usize) -> bool {
        if (handle ^ self.own) >> PAGE_SHIFT == 0 {
            return mm == self.mm;
        }
        let Some(place) = self.held.get_mut(self.nr) else {
            return false;
        };
        // SAFETY: As promised.
        let Some(held) = (unsafe { Held::try_member_of(mm, handle) }) else {
            return false;
        };
        place.write(held);
        self.nr = self.nr.wrapping_add(1);
        true
    }
}

impl Drop for Others {
    #[inline(always)]
    fn drop(&mut self) {
        for held in self.held.iter_mut().take(self.nr) {
            // SAFETY: It is initialised, by the type's invariant, and dropped once.
            unsafe { held.assume_init_drop() };
        }
    }
}

/// The words of the entries of page tables. A handle is the address of a word, with
/// VMTRACE_ENTRY_* in its low bits, or 0.
pub(crate) struct Tables;

// C looks for members in what it frees.
const _: () = assert!(bindings::VMTRACE_WORD_MEMBER as u64 == MEMBER);

/// The address of a word, null if there is none.
fn word_of(entry: usize) -> *mut u64 {
    (entry & !HUGE) as *mut u64
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

/// Pages of one address space whose entries were changed, and that are to be flushed.
///
/// # Invariants
///
/// As many `pages` are initialised as there are, or all.
#[repr(C)]
pub(crate) struct Flush {
    mm: usize,
    nr: u32,
    /// The first of them.
    pages: [MaybeUninit<usize>; LISTED],
}

/// More pages are flushed with all the others of their address space.
const LISTED: usize = bindings::VMTRACE_FLUSH_PAGES as usize;

impl Default for Flush {
    #[inline(always)]
    fn default() -> Flush {
        Flush {
            mm: 0,
            nr: 0,
            pages: [const { MaybeUninit::uninit() }; LISTED],
        }
    }
}

impl Flush {
    #[inline(always)]
    fn add(&mut self, s: &Slot) {
        self.mm = s.owner;
        if let Some(place) = self.pages.get_mut(self.nr as usize) {
            place.write((s.page & PAGE_MASK) as usize);
        }
        self.nr = self.nr.wrapping_add(1);
    }

    /// Disables the entry of a member, and gives the bits that it had; and whether it was enabled.
    ///
    /// # Safety
    ///
    /// `beside` is in the member's page table, which is locked.
    #[inline(always)]
    pub(crate) unsafe fn take(&mut self, beside: Entry, s: &Slot, young: bool) -> (Bits, bool) {
        // SAFETY: As promised.
        let last = Pte(unsafe { vmtrace_pte_take(beside.beside(s.entry), young) });
        let enabled = last.0 != 0;
        if enabled {
            self.add(s);
        }
        let bits = Bits {
            young: last.is_young(),
            dirty: last.is_dirty(),
        };
        (bits, enabled)
    }

    /// Clears a member's accessed bit. A flush is due even if the bit was clear: another user may
    /// have cleared it without a flush, and the TLB entry would hide the next references.
    ///
    /// # Safety
    ///
    /// `entry` is the member's, and locked.
    pub(crate) unsafe fn sweep(&mut self, entry: Entry, s: &Slot) -> Bits {
        let mut last = 0;
        // SAFETY: As promised.
        unsafe { vmtrace_pte_sweep(entry, &mut last) };
        self.add(s);
        bits_of_raw(last)
    }

    /// Flushes. To be called before the locks are dropped, so that the change is not visible while
    /// stale TLB entries are in use: a reference through such an entry belongs to the earlier state.
    ///
    /// # Safety
    ///
    /// `handle` is of one of the pages, and their page tables are locked. If it is of a huge page, there
    /// is no other.
    #[inline(always)]
    pub(crate) unsafe fn run(&self, handle: usize) {
        if self.nr == 0 {
            return;
        }
        let pages = self.pages.as_ptr().cast::<usize>();
        // SAFETY: The pages are initialised, by the type's invariant. The address space of pages
        // whose entries are not none is there: whoever takes it away has to clear the entries first,
        // under the lock of the page table.
        unsafe { bindings::vmtrace_flush(self.mm as *mut _, pages, self.nr, handle) };
    }
}

/// What VMTRACE_PTE_* mean.
pub(crate) fn bits_of_raw(raw: u32) -> Bits {
    Bits {
        young: raw & bindings::VMTRACE_PTE_YOUNG != 0,
        dirty: raw & bindings::VMTRACE_PTE_DIRTY != 0,
    }
}

/// VMTRACE_PTE_* of an entry.
#[inline(always)]
pub(crate) fn raw_bits(pte: Pte) -> u32 {
    let mut raw = 0;
    if pte.is_young() {
        raw |= bindings::VMTRACE_PTE_YOUNG;
    }
    if pte.is_dirty() {
        raw |= bindings::VMTRACE_PTE_DIRTY;
    }
    raw
}

// The oracle follows calls of these two functions by their names.

/// Disables a member's entry, which is locked; with `young`, gives back the accessed bit that
/// [`vmtrace_pte_sweep`] took. Gives what it was, or 0 if it is not enabled.
///
/// # Safety
///
/// The entry is locked.
#[no_mangle]
#[inline(never)]
unsafe extern "C" fn vmtrace_pte_take(entry: Entry, young: bool) -> u64 {
    let mut old = entry.get();
    while old.is_enabled() {
        let kept = if young { old.make_young() } else { old };
        match entry.replace(old, kept.disable(frame_mask())) {
            Ok(()) => return old.0,
            Err(now) => old = now,
        }
    }
    0
}

/// Clears a member's accessed bit. `last` gets VMTRACE_PTE_* of what the entry was.
///
/// # Safety
///
/// The entry is locked.
#[no_mangle]
#[inline(never)]
unsafe extern "C" fn vmtrace_pte_sweep(entry: Entry, last: &mut u32) {
    let mut old = entry.get();
    loop {
        *last = raw_bits(old);
        if !old.is_young() {
            return;
        }
        match entry.replace(old, old.make_old()) {
            Ok(()) => return,
            Err(now) => old = now,
        }
    }
}

/// The number of an address space, with the bit for a quiet one, as it is now.
///
/// # Safety
///
/// `mm` is valid.
#[inline(always)]
pub(crate) unsafe fn id_of(mm: *const bindings::mm_struct) -> u32 {
    // SAFETY: As promised. It is written as a whole.
    unsafe { (&raw const (*mm).__bindgen_anon_1.vmtrace_id).read_volatile() }
}

/// Whether a protection was taken away, one of VMTRACE_BREAK_*: a negative control.
#[inline(always)]
pub(crate) fn is_broken(what: u32) -> bool {
    if !cfg!(CONFIG_VMTRACE_DEBUG) {
        return false;
    }
    // SAFETY: Written at boot only.
    let broken = unsafe { (&raw const bindings::vmtrace_break).read() };
    broken >> what & 1 != 0
}

/// Bytes of a thread's name, the last of which is zero.
pub(crate) const COMM: usize = 16;

/// The name of the present thread, which others may be changing.
pub(crate) fn own_comm() -> [u8; COMM] {
    let mut out = [0u8; COMM];
    // SAFETY: The present task is there.
    let comm = unsafe { &raw const (*Task::current_raw()).comm }.cast::<[u8; COMM]>();
    for (at, byte) in out.iter_mut().take(COMM - 1).enumerate() {
        // SAFETY: It has so many bytes, each of which is written as a whole.
        *byte = unsafe { comm.cast::<u8>().add(at).read_volatile() };
    }
    out
}

/// Whether references are looked at: by a filter, or to be counted.
#[inline(always)]
pub(crate) fn is_looked_at() -> bool {
    // SAFETY: The key is defined by C.
    unsafe {
        kernel::jump_label::static_branch_unlikely!(
            bindings::vmtrace_look_key,
            bindings::vmtrace_look_key,
            key
        )
    }
}

/// Whether points of the tracer can be made slow, to look for races: late.h.
#[inline(always)]
fn is_late() -> bool {
    #[cfg(CONFIG_VMTRACE_DEBUG)]
    // SAFETY: The key is defined by C.
    return unsafe {
        kernel::jump_label::static_branch_unlikely!(
            bindings::vmtrace_late_key,
            bindings::vmtrace_late_key,
            key
        )
    };
    #[cfg(not(CONFIG_VMTRACE_DEBUG))]
    false
}

/// A point that can be made slow, one of VMTRACE_LATE_*.
#[inline(always)]
pub(crate) fn late(point: bindings::vmtrace_late_point) {
    if is_late() {
        #[cfg(CONFIG_VMTRACE_DEBUG)]
        // SAFETY: May be called in any context, except for points that sleep (late.h). In Rust, only
        // vmtrace_rs_begin_of() passes such a point. Its callers change the size of sets, and may sleep.
        unsafe {
            bindings::__vmtrace_late(point)
        };
    }
    #[cfg(not(CONFIG_VMTRACE_DEBUG))]
    let _ = point;
}

/// Whether an admission is to take more than one hold of its locks, although one would do: between
/// several holds there is something to make slow.
#[inline(always)]
pub(crate) fn is_late_apart() -> bool {
    #[cfg(CONFIG_VMTRACE_DEBUG)]
    // SAFETY: May be called in any context.
    return is_late() && unsafe { bindings::__vmtrace_late_apart() };
    #[cfg(not(CONFIG_VMTRACE_DEBUG))]
    false
}
