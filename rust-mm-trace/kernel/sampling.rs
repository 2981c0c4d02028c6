// SPDX-License-Identifier: GPL-2.0

//! Sampling of regions: a policy that records no references. A trace may have windows in which the set
//! records them; then regions are sampled between these windows, and *rest* in them.
//!
//! A page of each region of each address space is aimed at, and is checked at the next tick: was it
//! accessed? The regions themselves are regions.rs's, and the walks to pages are C's (sample.c). Here
//! is what a look does to the entry of a page, and when.
//!
//! What becomes known of a page that is aimed at is in the *mark*, the word of its entry:
//!
//! | bits | meaning |
//! |---|---|
//! | [`FOREIGN`] | it is a mark: the page is aimed at |
//! | [`HIDDEN`] | its accessed bit was set, and was cleared to aim at it |
//! | [`SEEN`] | it was accessed since |
//! | [`WRITTEN`] | by a write |
//! | [`CHANGED`] | somebody has changed the entry, so its accessed bit means nothing |
//! | 16 to 31 | the CPU of the access, plus 1 |
//!
//! The mark is read and written under the lock of the page table. The reclaim of pages, and whoever
//! else looks at accessed bits, sees them as if nobody had cleared them, and what it clears is seen
//! here ([`aged`], [`hidden`], [`cleared`]).
//!
//! Lock order: [`SAMPLER`] → window.rs's lock → mmap_lock → page table lock.

use crate::{
    admit,
    drain::ERROR,
    hot::{clock, this_cpu},
    interval::next,
    policy::{Operations, SET},
    pte::Pte,
    recall::{self, ending},
    regions::{Areas, Limits, Look, Regions, Turnover, NOWHERE, ROOM},
    stay::FOREIGN,
    stores::{self, Space},
    tables::{frame_mask, shift_of, Entry, Tables},
    tickets::Words,
    window, Store,
};
use core::ffi::c_void;
use kernel::{
    alloc::Flags,
    bindings,
    error::to_result,
    macros::export,
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
};

/// What is done with pages.
pub(crate) const OPERATIONS: Operations = Operations {
    name: c"vmtrace_regions",
    wanted,
    refs: false,
    attach,
    detach,
    tick,
    fault,
    cleared,
    aged,
    hidden,
};

const HIDDEN: u64 = 1 << 1;
const SEEN: u64 = 1 << 2;
const WRITTEN: u64 = 1 << 3;
const CHANGED: u64 = 1 << 4;
const CPU_SHIFT: u32 = 16;
const CPUS: u64 = (1 << 16) - 1;

/// A look that takes more than twice the larger of `sample` and this does not count, ns.
const LATE_NS: u64 = 2_000_000;

/// Reclaim may wait for a disk, and STOP for what is done here.
const GFP: Flags = GFP_NOWAIT;

const BY_FAULT: u32 = bindings::VMTRACE_BY_FAULT;

/// Reports that say nothing about a change, after a window of references: the first one is about an
/// interval that began before, and regions are to adapt to what they find.
const SETTLING: u32 = 3;

/// Flags that a trace of regions may have.
const FLAGS: u32 = bindings::VMTRACE_REGIONS
    | bindings::VMTRACE_PACK
    | bindings::VMTRACE_ZSTD
    | bindings::VMTRACE_PIECE
    | bindings::VMTRACE_UNWRITTEN;

/// Those that it may have besides, if it has windows of references.
const WINDOW_FLAGS: u32 = bindings::VMTRACE_PAUSABLE
    | bindings::VMTRACE_AGAIN
    | bindings::VMTRACE_VTIME
    | bindings::VMTRACE_OFFSETS
    | bindings::VMTRACE_FILTERED
    | bindings::VMTRACE_COUNTED;

/// Whether there are to be windows of references.
fn has_windows(c: &bindings::vmtrace_config) -> bool {
    c.window_time | c.window_refs != 0 || c.flags & bindings::VMTRACE_PAUSABLE != 0
}

/// Whether `c` asks for it.
fn wanted(c: &bindings::vmtrace_config) -> Result<bool> {
    let s = &c.sampling;
    let is_zero = (
        s.sample | s.aggregate | s.update,
        s.min_regions | s.max_regions | s.by | s.change,
    ) == (0, 0);
    if c.flags & bindings::VMTRACE_REGIONS == 0 {
        return if is_zero { Ok(false) } else { Err(EINVAL) };
    }
    let times = [
        u64::from(bindings::VMTRACE_SAMPLE_MIN),
        s.sample,
        s.aggregate,
        s.update,
        bindings::VMTRACE_INTERVAL_MAX,
    ];
    let regions = [
        bindings::VMTRACE_REGIONS_MIN,
        s.min_regions,
        s.max_regions / 2,
        bindings::VMTRACE_REGIONS_MAX / 2,
    ];
    let flags = match has_windows(c) {
        true => FLAGS | WINDOW_FLAGS,
        false => FLAGS,
    };
    let most_change = match c.flags & bindings::VMTRACE_PAUSABLE {
        0 => 0,
        _ => bindings::VMTRACE_CHANGE_MAX,
    };
    let good = times.is_sorted()
        && regions.is_sorted()
        && s.max_regions <= bindings::VMTRACE_REGIONS_MAX
        && s.by <= BY_FAULT
        && s.change <= most_change
        && c.flags & !flags == 0
        && c.sets == bindings::VMTRACE_SETS_ONE
        && c.interval == 0;
    good.then_some(true).ok_or(EINVAL)
}

/// An address space that is sampled.
///
/// # Invariants
///
/// `mm` was grabbed, so it is there, with or without users.
struct Target {
    mm: *mut bindings::mm_struct,
    /// Its number; 0 after a window of references, until it is found again.
    id: u32,
    regions: Regions,
    /// It was locked when its pages were to be checked. So they have been aimed at for too long.
    late: bool,
    /// When they are too late to be checked, ns.
    until: u64,
    /// Its regions are to be adapted to its mappings when it can be locked.
    outdated: bool,
    /// It has no users any more.
    ended: bool,
}

// SAFETY: The address space may be used and dropped by any task.
unsafe impl Send for Target {}

impl Drop for Target {
    fn drop(&mut self) {
        // SAFETY: It was grabbed, by the type's invariant.
        unsafe { bindings::vmtrace_drop(self.mm) };
    }
}

/// An address space that has users and is locked for reading. What is aimed at is flushed when this
/// is dropped.
///
/// # Invariants
///
/// `vmtrace_look_begin()` has succeeded.
struct Locked {
    mm: *mut bindings::mm_struct,
    /// Entries are disabled.
    disables: bool,
    /// The first pages to be flushed, and how many there are.
    pages: [usize; bindings::VMTRACE_FLUSH_PAGES as usize],
    nr: u32,
}

impl Locked {
    /// # Errors
    ///
    /// ESRCH if it has no users, EAGAIN if a task keeps it locked.
    fn new(target: &Target, disables: bool) -> Result<Locked> {
        let mm = target.mm;
        // SAFETY: It is there, by the type's invariant, and the context may sleep.
        to_result(unsafe { bindings::vmtrace_look_begin(mm, disables) })?;
        Ok(Locked {
            mm,
            disables,
            pages: [0; bindings::VMTRACE_FLUSH_PAGES as usize],
            nr: 0,
        })
    }

    /// Checks what became of a page. `None` if that is not known.
    fn check(&self, page: u64, by: u32) -> Option<Look> {
        // SAFETY: It is locked.
        let found = unsafe { bindings::vmtrace_look_at(self.mm, page as usize, by, false) };
        let has = |bit: bindings::vmtrace_looked| found & bit != 0;
        if has(bindings::vmtrace_looked_VMTRACE_LOOKED_NOT) {
            return None;
        }
        let cpu = found >> bindings::VMTRACE_LOOKED_CPU_SHIFT;
        Some(Look {
            accessed: has(bindings::vmtrace_looked_VMTRACE_LOOKED_ACCESSED),
            written: has(bindings::vmtrace_looked_VMTRACE_LOOKED_WRITTEN),
            cpus: match has(bindings::vmtrace_looked_VMTRACE_LOOKED_CPU) {
                true => 1 << (cpu & 63),
                false => 0,
            },
        })
    }

    /// Aims at a page. False if that cannot be done.
    fn aim(&mut self, page: u64, by: u32) -> bool {
        // SAFETY: It is locked.
        let found = unsafe { bindings::vmtrace_look_at(self.mm, page as usize, by, true) };
        if found & bindings::vmtrace_looked_VMTRACE_LOOKED_FLUSH != 0 {
            if let Some(place) = self.pages.get_mut(self.nr as usize) {
                *place = page as usize;
            }
            self.nr = self.nr.wrapping_add(1);
        }
        found & bindings::vmtrace_looked_VMTRACE_LOOKED_NOT == 0
    }

    /// Its mappings.
    fn areas(&self) -> Areas {
        let mut areas = Areas::new();
        // SAFETY: It is locked, and the areas are used meanwhile by `vmtrace_rs_area` only.
        unsafe { bindings::vmtrace_look_areas(self.mm, (&raw mut areas).cast()) };
        areas
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: By the type's invariant. The pages are as many as C reads of them.
        unsafe {
            bindings::vmtrace_look_end(self.mm, self.pages.as_ptr(), self.nr, self.disables);
        }
    }
}

/// Notes a mapping.
///
/// # Safety
///
/// `areas` is what `Locked::areas` has given to C.
#[export]
pub unsafe extern "C" fn vmtrace_rs_area(areas: *mut c_void, start: usize, end: usize) {
    // SAFETY: As promised.
    let areas = unsafe { &mut *areas.cast::<Areas>() };
    areas.add(start as u64, end as u64);
}

/// What samples the present trace.
struct Sampler {
    plan: bindings::vmtrace_sampling,
    targets: KVVec<Target>,
    /// When regions are reported and adapted next.
    aggregate: u64,
    update: u64,
    /// Seeds of address spaces.
    seed: u64,
    /// Reports until a change is one.
    settling: u32,
}

/// No page is to be aimed at, and reports end early: a window of references is open or about to be, or
/// no window is. Set without the lock, so that whoever is about to take the lock need not wait for
/// reports.
static RESTING: Atomic<bool> = Atomic::new(false);

/// The use of memory has changed since the last window of references, by as much as begins another.
static HAS_CHANGED: Atomic<bool> = Atomic::new(false);

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is.
    unsafe(uninit) static SAMPLER: Mutex<Option<KBox<Sampler>>> = None;
}

/// Makes the lock usable.
///
/// # Safety
///
/// Called once, before anything else here.
pub(crate) unsafe fn init() {
    // SAFETY: By the caller's promise.
    unsafe { SAMPLER.init() };
}

fn attach(c: &bindings::vmtrace_config) -> Result<u64> {
    let sampler = Sampler {
        plan: c.sampling,
        targets: KVVec::new(),
        // The first tick finds address spaces.
        aggregate: 0,
        update: 0,
        seed: clock(),
        settling: SETTLING,
    };
    // A trace with windows begins between two of them.
    RESTING.store(has_windows(c), Relaxed);
    HAS_CHANGED.store(false, Relaxed);
    *SAMPLER.lock() = Some(KBox::new(sampler, GFP_KERNEL)?);
    Ok(c.sampling.sample)
}

/// Lets all pages go that are aimed at, and the address spaces.
fn detach() {
    let sampler = SAMPLER.lock().take();
    if let Some(mut sampler) = sampler {
        let by = sampler.plan.by;
        for target in sampler.targets.iter_mut() {
            target.let_go(by);
        }
    }
}

/// Lets all pages go that are aimed at, and aims at none until [`resume`]. What the regions are is kept.
/// For the thread of the trace, which holds no lock of windows.
pub(crate) fn pause() {
    RESTING.store(true, Relaxed);
    if let Some(sampler) = SAMPLER.lock().as_mut() {
        let by = sampler.plan.by;
        for target in sampler.targets.iter_mut() {
            target.let_go(by);
            target.forget();
        }
    }
}

/// A window has begun in which address spaces are traced without references. As of [`pause`].
pub(crate) fn resume() {
    if let Some(sampler) = SAMPLER.lock().as_mut() {
        (sampler.aggregate, sampler.update) = (0, 0);
        sampler.settling = SETTLING;
        HAS_CHANGED.store(false, Relaxed);
        RESTING.store(false, Relaxed);
    }
}

/// For the thread of the trace: whether a window of references is to begin because the use of memory has
/// changed.
pub(crate) fn has_changed() -> bool {
    HAS_CHANGED.load(Relaxed)
}

fn tick(due: u64) -> u64 {
    let mut sampler = SAMPLER.lock();
    let Some(sampler) = sampler.as_mut() else {
        return u64::MAX;
    };
    let begun = clock();
    if ERROR.load(Relaxed) == 0 && !RESTING.load(Relaxed) {
        sampler.tick();
    }
    let now = clock();
    // Programs get at least as much time as looks.
    let earliest = now.saturating_add(now.saturating_sub(begun));
    next(due, sampler.plan.sample, now).max(earliest)
}

impl Sampler {
    /// Checks the pages that are aimed at, and aims at others. In between, it reports and changes
    /// regions if it is time.
    fn tick(&mut self) {
        let now = clock();
        let updates = now >= self.update;
        if updates {
            let before = self.targets.len();
            self.find();
            // What is traced may be about to begin, or have begun in part.
            let next = match self.targets.is_empty() || self.targets.len() > before {
                true => self.plan.aggregate,
                false => self.plan.update,
            };
            self.update = now.saturating_add(next);
        }
        let reports = now >= self.aggregate;
        if reports {
            self.aggregate = match self.aggregate {
                0 => now.saturating_add(self.plan.aggregate),
                end => next(end, self.plan.aggregate, now),
            };
        }
        let plan = self.plan;
        let mut turnover = Turnover::default();
        for target in self.targets.iter_mut() {
            if is_over() {
                return;
            }
            // Between two address spaces the trace may end.
            window::if_open(|| target.tick(&plan, reports, updates, &mut turnover));
            // SAFETY: The context may sleep.
            unsafe { bindings::vmtrace_resched() };
        }
        self.targets.retain(|target| !target.ended);
        if reports {
            self.judge(turnover);
        }
    }

    /// Has a window of references begin if the use of memory has changed by as much as is asked for.
    fn judge(&mut self, turnover: Turnover) {
        if self.settling > 0 {
            self.settling = self.settling.wrapping_sub(1);
        } else if self.plan.change != 0 && turnover.is_change(self.plan.change) {
            HAS_CHANGED.store(true, Relaxed);
            recall::wake();
        }
    }

    /// Looks for address spaces that are not known yet.
    fn find(&mut self) {
        let me: *mut Sampler = self;
        // SAFETY: It is used meanwhile by `vmtrace_rs_found` only. The context may sleep.
        unsafe { bindings::vmtrace_look_for_spaces(me.cast()) };
    }

    fn add(&mut self, mm: *mut bindings::mm_struct, id: u32) -> Result {
        if let Some(target) = self.targets.iter_mut().find(|target| target.mm == mm) {
            // It is held, so it is the same one, perhaps with a new number.
            target.outdated |= target.id != id;
            target.id = id;
            return Ok(());
        }
        let limits = Limits {
            min: self.plan.min_regions,
            max: self.plan.max_regions,
        };
        self.seed = self.seed.wrapping_add(u64::from(id) << 32 | 1);
        let room = Store::from_elem(Default::default(), ROOM, GFP)?;
        let regions = Regions::new(room, limits, self.seed);
        self.targets.reserve(1, GFP)?;
        // SAFETY: The caller has it.
        unsafe { bindings::vmtrace_grab(mm) };
        let target = Target {
            mm,
            id,
            regions,
            late: false,
            until: 0,
            outdated: true,
            ended: false,
        };
        self.targets.push(target, GFP)?;
        Ok(())
    }
}

/// Notes an address space that is traced, if it is new.
///
/// # Safety
///
/// `sampler` is what `Sampler::find` has given to C, and `mm` is valid.
#[export]
pub unsafe extern "C" fn vmtrace_rs_found(
    sampler: *mut c_void,
    mm: *mut bindings::mm_struct,
    id: u32,
) {
    // SAFETY: As promised.
    let sampler = unsafe { &mut *sampler.cast::<Sampler>() };
    if sampler.add(mm, id).is_err() {
        // It is tried again when regions are adapted next.
        crate::hot::count_uncovered();
    }
}

impl Target {
    fn tick(
        &mut self,
        plan: &bindings::vmtrace_sampling,
        reports: bool,
        updates: bool,
        turnover: &mut Turnover,
    ) {
        if self.id == 0 {
            // SAFETY: It is there, by the type's invariant.
            self.ended = !unsafe { bindings::vmtrace_has_users(self.mm) };
            return;
        }
        self.check(plan.by);
        if self.ended {
            return;
        }
        if reports {
            let most = plan.aggregate.checked_div(plan.sample).unwrap_or(1);
            // A merge would take means of what was before, too.
            turnover.add(self.regions.turnover());
            self.regions.merge(most.min(u64::from(u32::MAX)) as u32);
            self.report();
            self.regions.reset();
            self.grow();
            self.regions.split();
        }
        self.outdated |= updates;
        self.aim(plan);
    }

    /// Locks it; `None` if it has ended, or is locked for long.
    fn lock(&mut self, disables: bool) -> Option<Locked> {
        match Locked::new(self, disables) {
            Ok(locked) => Some(locked),
            Err(e) => {
                self.ended |= e == ESRCH;
                None
            }
        }
    }

    /// Checks the pages that are aimed at.
    fn check(&mut self, by: u32) {
        let Some(locked) = self.lock(false) else {
            self.late = true;
            return;
        };
        let late = self.late || clock() > self.until;
        for (i, region) in self.regions.list_mut().iter_mut().enumerate() {
            let page = core::mem::replace(&mut region.at, NOWHERE);
            if page == NOWHERE {
                continue;
            }
            match locked.check(page, by) {
                Some(look) if !late => region.note(look),
                _ => {}
            }
            rest(i);
        }
        self.late = false;
    }

    /// Aims at a page of each region, after the regions were adapted if they are to be. While
    /// pages are aimed at, no others are.
    fn aim(&mut self, plan: &bindings::vmtrace_sampling) {
        if self.late {
            return;
        }
        if self.outdated {
            self.grow();
        }
        let Some(mut locked) = self.lock(plan.by == BY_FAULT) else {
            return;
        };
        if self.outdated {
            self.regions.update(&locked.areas());
            self.outdated = false;
        }
        self.regions.aim();
        for (i, region) in self.regions.list_mut().iter_mut().enumerate() {
            if region.at != NOWHERE && !locked.aim(region.at, plan.by) {
                region.at = NOWHERE;
            }
            rest(i);
        }
        let most = plan.sample.max(LATE_NS).saturating_mul(2);
        self.until = clock().saturating_add(most);
    }

    /// Pages that are aimed at are as if they had not been.
    fn let_go(&mut self, by: u32) {
        self.late = true;
        self.check(by);
    }

    /// No page is aimed at any more, and its number is not valid. A page that could not be let go, because
    /// the address space was locked, stays as it is: it may become a member of a set, so nobody here
    /// enables it later. Its entry heals on touch, and its mark means nothing to a set.
    fn forget(&mut self) {
        self.id = 0;
        self.late = false;
        for region in self.regions.list_mut() {
            region.at = NOWHERE;
        }
    }

    /// Makes room for more regions, if it lacks. Without memory, the regions stay as they are.
    fn grow(&mut self) {
        while self.regions.lacks_room() {
            let more = self.regions.room().saturating_mul(2);
            let Ok(room) = Store::from_elem(Default::default(), more, GFP) else {
                return;
            };
            drop(self.regions.set_room(room));
        }
    }

    /// Logs what was found out about the regions. If the address space or the trace ends meanwhile, the
    /// rest is left out: a reader does not expect it, and STOP does not wait for it.
    fn report(&self) {
        let list = self.regions.list();
        for (index, region) in list.iter().enumerate() {
            // SAFETY: It is there.
            if is_over() || !unsafe { bindings::vmtrace_has_users(self.mm) } {
                return;
            }
            let event = bindings::vmtrace_ev_region {
                start: region.start,
                end: region.end,
                looks: region.looks,
                accesses: region.accesses,
                writes: region.writes,
                age: region.age,
                cpus: region.cpus,
                index: index as u32,
                regions: list.len() as u32,
            };
            // SAFETY: The context may sleep.
            unsafe { bindings::vmtrace_log_region(self.id, &raw const event) };
        }
    }
}

/// Whether the trace is to end, or its present window.
fn is_over() -> bool {
    ending() || RESTING.load(Relaxed)
}

/// Lets other tasks run, after some regions.
fn rest(region: usize) {
    if region & 255 == 255 {
        // SAFETY: The context may sleep: at most an address space is locked.
        unsafe { bindings::vmtrace_resched() };
    }
}

/// The mark of an entry, if it is aimed at.
///
/// # Safety
///
/// The page table of the entry is locked, or the handle is 0.
unsafe fn mark(handle: usize) -> Option<u64> {
    // SAFETY: As promised.
    let word = unsafe { Tables.get(handle) };
    (word & FOREIGN != 0).then_some(word)
}

/// Changes it.
///
/// # Safety
///
/// As of [`mark`].
unsafe fn set_mark(handle: usize, mark: u64) {
    // SAFETY: As promised.
    unsafe { Tables.set(handle, mark) };
}

/// Aims at a page; `young`: another page table's accessed bit was cleared. Gives VMTRACE_LOOKED_*.
///
/// # Safety
///
/// `ptep` is an entry of an address space that is traced, and locked.
#[export]
pub unsafe extern "C" fn vmtrace_rs_aim(ptep: *mut bindings::pte_t, by: u32, young: bool) -> u32 {
    const NOT: u32 = bindings::vmtrace_looked_VMTRACE_LOOKED_NOT;
    const FLUSH: u32 = bindings::vmtrace_looked_VMTRACE_LOOKED_FLUSH;
    // SAFETY: As promised.
    let entry = unsafe { Entry::new(ptep) };
    let handle = entry.handle();
    let mut old = entry.get();
    loop {
        if !old.is_enabled() && !old.is_disabled() {
            // No page is there. If one comes, its accessed bit shows that.
            // SAFETY: It is locked.
            unsafe { set_mark(handle, 0) };
            return 0;
        }
        // SAFETY: It is locked, so the page is not freed.
        if handle == 0 || unsafe { shift_of(old) } == 0 {
            return NOT;
        }
        // An earlier look or trace may have left it disabled.
        let (new, hides) = match by {
            BY_FAULT if old.is_disabled() => (old, false),
            BY_FAULT => (old.disable(frame_mask()), false),
            _ => (enabled(old).make_old(), old.is_young()),
        };
        match entry.replace(old, new) {
            Ok(()) => {
                // SAFETY: It is locked.
                unsafe {
                    // What an earlier look has left is hidden yet.
                    let mut hidden = mark(handle).unwrap_or(0) & HIDDEN;
                    if hides || young {
                        hidden = HIDDEN;
                    }
                    set_mark(handle, FOREIGN | hidden);
                }
                return if old == new { 0 } else { FLUSH };
            }
            Err(now) => old = now,
        }
    }
}

/// It is enabled, if this tracer has disabled it.
fn enabled(pte: Pte) -> Pte {
    match pte.is_disabled() {
        true => pte.enable(frame_mask()),
        false => pte,
    }
}

/// Checks what became of a page that was aimed at, and lets it go; `young`: another page table's
/// accessed bit is set. Gives VMTRACE_LOOKED_*.
///
/// # Safety
///
/// As of [`vmtrace_rs_aim`].
#[export]
pub unsafe extern "C" fn vmtrace_rs_check(ptep: *mut bindings::pte_t, by: u32, young: bool) -> u32 {
    const NOT: u32 = bindings::vmtrace_looked_VMTRACE_LOOKED_NOT;
    const ACCESSED: u32 = bindings::vmtrace_looked_VMTRACE_LOOKED_ACCESSED;
    const WRITE: u32 = bindings::vmtrace_looked_VMTRACE_LOOKED_WRITTEN;
    const CPU: u32 = bindings::vmtrace_looked_VMTRACE_LOOKED_CPU;
    // SAFETY: As promised.
    let entry = unsafe { Entry::new(ptep) };
    let handle = entry.handle();
    // SAFETY: It is locked.
    let mark = unsafe { mark(handle) };
    let pte = let_go(entry, mark);
    if mark.is_some() {
        // SAFETY: It is locked.
        unsafe { set_mark(handle, 0) };
    }
    let mark = mark.unwrap_or(0);
    if mark & SEEN != 0 && by != BY_FAULT {
        return ACCESSED;
    }
    if mark & SEEN != 0 {
        let written = if mark & WRITTEN != 0 { WRITE } else { 0 };
        let cpu = match (mark >> CPU_SHIFT & CPUS) as u32 {
            0 => 0,
            cpu => CPU | cpu.wrapping_sub(1) << bindings::VMTRACE_LOOKED_CPU_SHIFT,
        };
        return ACCESSED | written | cpu;
    }
    if young {
        return ACCESSED;
    }
    if mark & CHANGED != 0 {
        return NOT;
    }
    match pte.is_enabled() && pte.is_young() {
        // A page that has come since.
        true if by == BY_FAULT && pte.is_dirty() => ACCESSED | WRITE,
        true => ACCESSED,
        false => 0,
    }
}

/// Lets an entry go that is locked. Gives what it was.
fn let_go(entry: Entry, mark: Option<u64>) -> Pte {
    let mut old = entry.get();
    loop {
        let new = match mark {
            Some(mark) if mark & HIDDEN != 0 && (old.is_enabled() || old.is_disabled()) => {
                enabled(old).make_young()
            }
            Some(_) => enabled(old),
            None => return old,
        };
        match entry.replace(old, new) {
            Ok(()) => return old,
            Err(now) => old = now,
        }
    }
}

/// An access to a page that is aimed at.
///
/// # Safety
///
/// As of [`admit::vmtrace_rs_heal`]: what that needs of `t` is set, and no lock is held.
unsafe extern "C" fn fault(t: *mut bindings::vmtrace_touch) {
    // SAFETY: As promised.
    unsafe {
        admit::heal_noted(t, |handle, access| {
            let Some(mut mark) = mark(handle).filter(|_| access.is_reference()) else {
                return;
            };
            // An access that needs more than that its page is enabled may fault again, on another CPU.
            if mark >> CPU_SHIFT & CPUS == 0 {
                mark |= (this_cpu() as u64).wrapping_add(1) << CPU_SHIFT;
            }
            if access.writes() {
                mark |= WRITTEN;
            }
            set_mark(handle, mark | SEEN);
        });
    }
}

/// The entry of a page that is aimed at was cleared.
unsafe fn cleared(_: Space, _: usize, entry: Entry, pte: Pte) -> Pte {
    let handle = entry.handle();
    // SAFETY: It is locked.
    let Some(mark) = (unsafe { mark(handle) }) else {
        return pte;
    };
    let hidden = mark & HIDDEN != 0;
    let mut new = mark & !HIDDEN;
    if pte.is_enabled() && pte.is_young() {
        new |= SEEN;
    }
    // It comes back as whoever has cleared it sees it.
    if (hidden || pte.is_disabled()) && !is_gone() {
        new |= CHANGED;
    }
    // SAFETY: It is locked.
    unsafe { set_mark(handle, new) };
    match hidden && pte.is_enabled() {
        true => pte.make_young(),
        false => pte,
    }
}

/// Whether entries that this task clears now do not come back.
fn is_gone() -> bool {
    matches!(
        stores::why(),
        bindings::VMTRACE_WHY_UNMAPPED
            | bindings::VMTRACE_WHY_COW
            | bindings::VMTRACE_WHY_ADVISED
            | bindings::VMTRACE_WHY_TRUNCATED
            | bindings::VMTRACE_WHY_RECLAIMED
            | bindings::VMTRACE_WHY_EXIT
    )
}

/// The accessed bit of a page that is aimed at was cleared.
unsafe fn aged(_: Space, _: u64, young: bool, handle: usize) -> bool {
    // SAFETY: It is locked.
    let Some(mark) = (unsafe { mark(handle) }) else {
        return young;
    };
    let seen = if young { SEEN } else { 0 };
    // SAFETY: It is locked.
    unsafe { set_mark(handle, mark & !HIDDEN | seen) };
    young || mark & HIDDEN != 0
}

unsafe fn hidden(_: Space, _: u64, handle: usize) -> bool {
    // SAFETY: It is locked.
    unsafe { mark(handle) }.is_some_and(|mark| mark & HIDDEN != 0)
}

const _: () = assert!(SET.refs);
