// SPDX-License-Identifier: GPL-2.0

//! What is done to many members at once: the end of a trace, and changes of the set's size.

use crate::{
    hot::{self, clock, clock_next, Refs, STEP},
    recall::ending,
    ring::Ring,
    scopes::{self, Scope},
    stay::{is_beside, Slot},
    tables::{late, Entry, Flush, Held},
};
use kernel::{
    bindings,
    prelude::*,
    sync::lock::GlobalGuard,
    time::{delay::fsleep, Delta},
};

/// Members whose stays one call of [`vmtrace_rs_drain`] ends.
const DRAIN: u32 = 64;

/// Pages by which a set is made smaller while no admission can be made.
const SHRINK_STEP: u32 = 1 << 16;

/// How long a step of a change of the size waits for room, and how long a cut does, which may move the
/// records of all pages of large sets, ns.
const STEP_NS: u64 = 5_000_000_000;
const CUT_NS: u64 = 60_000_000_000;

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is.
    /// Whoever pauses the set has this. Only waits for CPUs that run without preemption.
    unsafe(uninit) static PAUSING: Mutex<()> = ();
}

/// Makes the lock usable.
///
/// # Safety
///
/// Called once, before anything else here.
pub(crate) unsafe fn init() {
    // SAFETY: By the caller's promise.
    unsafe { PAUSING.init() };
}

/// Members of a set that are looked for. The oracle reads it.
#[repr(C)]
pub(crate) struct Cursor {
    /// Numbers from here on; below `end`, if that is not 0.
    at: u64,
    end: u64,
    /// Of the member that was found.
    pub(crate) ordinal: u64,
    /// Its handle, or 0 if there was none near.
    pub(crate) handle: usize,
    /// The set.
    scope: *const Scope,
}

impl Cursor {
    /// All members of a set below `end`; with 0, all members.
    fn new(scope: &Scope, end: u64) -> Cursor {
        Cursor {
            at: 0,
            end,
            ordinal: 0,
            handle: 0,
            scope,
        }
    }

    /// Goes to the next member, if there is one near. False if there can be no more. Whoever has had
    /// all of them in turn looks at each slot once. The handle is valid until the caller's section of
    /// RCU ends.
    fn step(&mut self, scope: &Scope) -> bool {
        self.handle = 0;
        let next = scope.next();
        let size = scope.set.size();
        if self.end == 0 {
            // Members that come in later are left out, so that this comes to an end.
            self.end = next.saturating_add(size);
        }
        self.at = self.at.max(scope.begin_of(size));
        let end = self.end.min(next);
        let to = self.at.saturating_add(STEP).min(end);
        while self.at < to {
            self.ordinal = self.at;
            self.at = self.at.wrapping_add(1);
            if let Some(handle) = scope.set.member(self.ordinal) {
                self.handle = handle;
                break;
            }
        }
        self.at < end
    }

    /// Does `f` with each member of a set in turn, if it is below `end` or that is 0, and with its
    /// page table locked, as long as `goes_on` gives true. `before` is called before that lock is
    /// taken, and `after`, with what `f` gives, after it was dropped. The context may sleep.
    pub(crate) fn for_each<T>(
        scope: &Scope,
        end: u64,
        goes_on: impl Fn() -> bool,
        before: impl Fn(),
        mut f: impl FnMut(&Refs, &Scope, &mut Cursor, &Held) -> Option<T>,
        mut after: impl FnMut(T),
    ) {
        let mut c = Cursor::new(scope, end);
        loop {
            let mut found = None;
            let more = hot::with(false, |refs| {
                let more = c.step(scope);
                if c.handle != 0 {
                    before();
                    // SAFETY: It is a member's in this section of RCU.
                    let held = unsafe { Held::member(c.handle) };
                    found = f(refs, scope, &mut c, &held);
                }
                more
            });
            if let Some(found) = found {
                after(found);
            }
            // SAFETY: The context may sleep.
            unsafe { bindings::vmtrace_resched() };
            if !more || !goes_on() {
                return;
            }
        }
    }
}

/// Ends the stays of all members of a set with numbers below `end`, or of all that there are.
fn drain_all(scope: &Scope, end: u64, why: u32) {
    drain_while(scope, end, why, || true);
}

/// The same, as long as `goes_on` gives true.
fn drain_while(scope: &Scope, end: u64, why: u32, goes_on: impl Fn() -> bool) {
    let drain = |_: &Refs, scope: &Scope, c: &mut Cursor, held: &Held| {
        let handle = c.handle;
        let mut todo = Flush::default();
        // SAFETY: The entry is the member's, and locked.
        unsafe {
            vmtrace_rs_drain(c, held.entry, why, clock(), &mut todo, scope);
            todo.run(handle);
        }
        None::<()>
    };
    Cursor::for_each(scope, end, goes_on, || (), drain, |()| ());
}

// The oracle follows calls of the functions with C's names, and their arguments.

/// Ends the stay of the member of `c` and those of members after it that are in the same page
/// table, as far as they follow each other and are below `c.end`, and disables their entries.
/// `todo` gets what is to be flushed before the lock is dropped.
///
/// # Safety
///
/// The entry is that of the member, and locked.
#[no_mangle]
#[inline(never)]
unsafe extern "C" fn vmtrace_rs_drain(
    c: &mut Cursor,
    entry: Entry,
    why: u32,
    now: u64,
    todo: &mut Flush,
    scope: &Scope,
) {
    hot::with((), |refs| {
        let (mut at, mut ended) = (c.ordinal, 0u64);
        for _ in 0..DRAIN {
            if at >= c.end {
                break;
            }
            let Some(handle) = scope.set.member(at) else {
                break;
            };
            if handle != c.handle && !is_beside(handle, c.handle) {
                break;
            }
            // SAFETY: It is in the page table of `entry`, which is locked.
            unsafe {
                let disable = |s: &Slot, young| refs.take(todo, entry, s, young);
                let done = scope.set.end_at(at, clock_next(), why, now, disable);
                ended = ended.wrapping_add(u64::from(done));
            }
            at = at.wrapping_add(1);
        }
        c.at = c.at.max(at);
        refs.count_closed(ended);
    });
}

/// Pauses a set, or lets it go on: while it is paused, no tickets are given. Those on the way end
/// before a grace period of RCU has passed.
#[no_mangle]
#[inline(never)]
extern "C" fn vmtrace_rs_pause(pause: bool, scope: &Scope) {
    match pause {
        true => scope.set.pause(),
        false => scope.set.go_on(),
    }
}

/// Where a set of size `n` begins.
#[no_mangle]
#[inline(never)]
extern "C" fn vmtrace_rs_begin_of(n: u64, scope: &Scope) -> u64 {
    let begin = scope.begin_of(n);
    late(bindings::vmtrace_late_point_VMTRACE_LATE_RESIZING);
    begin
}

/// A set has this size from here on. No admission is on the way, and no member is beyond it.
#[no_mangle]
#[inline(never)]
extern "C" fn vmtrace_rs_sized(n: u64, scope: &Scope) {
    scope.set.resize(n);
}

/// Disables all members, at the end of a trace: none can be added meanwhile. Each slot of a set is
/// looked at once.
pub(crate) fn evict_all() {
    scopes::for_each(|scope| drain_all(scope, 0, bindings::VMTRACE_WHY_DRAINED));
}

/// Ends all stays that there are, while references go on. STOP does not wait for that.
pub(crate) fn end_all() {
    let why = bindings::VMTRACE_WHY_INTERVAL;
    scopes::for_each(|scope| drain_while(scope, scope.next(), why, || !ending()));
}

/// Ends all stays, and moves their records into sub-buffers that can be taken, and that have no other
/// ones. Then it calls `f`, and references begin again. False if there was no room.
fn try_cut(f: &mut dyn FnMut()) -> bool {
    let end_all = || {
        scopes::for_each(|scope| drain_all(scope, scope.next(), bindings::VMTRACE_WHY_PIECE));
    };
    // Most of them, so that the pause is short.
    end_all();
    let _pause = Pause::new();
    end_all();
    if !scopes::collect() {
        return false;
    }
    hot::with((), |refs| refs.for_each(Ring::flush));
    f();
    true
}

/// The same, and waits for room.
///
/// # Errors
///
/// As [`resize`].
pub(crate) fn cut(mut f: impl FnMut()) -> Result {
    until_done(CUT_NS, || try_cut(&mut f))
}

/// No admission begins or is on the way until this is dropped.
pub(crate) struct Pause(#[allow(dead_code)] GlobalGuard<PAUSING>);

impl Pause {
    /// The context may sleep.
    pub(crate) fn new() -> Pause {
        let guard = PAUSING.lock();
        scopes::pause(true, |scope| vmtrace_rs_pause(true, scope));
        // SAFETY: The context may sleep, and is in no section of RCU.
        unsafe { bindings::synchronize_rcu_expedited() };
        Pause(guard)
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        scopes::pause(false, |scope| vmtrace_rs_pause(false, scope));
    }
}

/// Does `f` while no admission begins or is on the way, until it succeeds.
///
/// # Errors
///
/// As [`resize`].
pub(crate) fn while_paused(mut f: impl FnMut() -> bool) -> Result {
    until_done(STEP_NS, || {
        let _pause = Pause::new();
        f()
    })
}

/// Makes all sets as large as `n`, if there is room for the records of what was beyond.
fn try_resize(n: u32) -> bool {
    let _pause = Pause::new();
    let mut all = true;
    scopes::set_size(n);
    scopes::for_each(|scope| {
        let begin = vmtrace_rs_begin_of(u64::from(n), scope);
        if begin != 0 {
            drain_all(scope, begin, bindings::VMTRACE_WHY_EVICTED);
        }
        // Writes the records of what was before, as far as there is room.
        let done = scopes::resize(scope, begin, |scope| vmtrace_rs_sized(u64::from(n), scope));
        all &= done;
    });
    all
}

/// The same, and waits for room.
fn resize_step(n: u32) -> Result {
    until_done(STEP_NS, || try_resize(n))
}

/// Does what needs room for records until that succeeds, for so long at most.
fn until_done(most_ns: u64, mut step: impl FnMut() -> bool) -> Result {
    let begun = clock();
    let mut pause = 1;
    while !step() {
        if ending() {
            return Err(ENODATA);
        }
        // SAFETY: May be called in any context of a task.
        if unsafe { bindings::vmtrace_killed() } {
            return Err(EINTR);
        }
        if clock().saturating_sub(begun) > most_ns {
            return Err(ETIMEDOUT);
        }
        crate::drain::kick();
        fsleep(Delta::from_millis(pause));
        // Each try makes records.
        pause = (pause * 2).min(64);
    }
    Ok(())
}

/// Changes the size of all sets. Admissions are made meanwhile, except for moments: most members that
/// go are disabled first, and the size changes in steps.
///
/// # Errors
///
/// `EINTR` after a fatal signal, `ENODATA` if STOP was called, which waits for this, or `ETIMEDOUT`
/// if there is no room for records: then a set may have a size in between.
pub(crate) fn resize(from: u32, to: u32) -> Result {
    if to < from {
        scopes::for_each(|scope| {
            let begin = vmtrace_rs_begin_of(u64::from(to), scope);
            if begin != 0 {
                drain_all(scope, begin, bindings::VMTRACE_WHY_EVICTED);
            }
        });
    }
    let mut size = from;
    loop {
        size = to.max(size.saturating_sub(SHRINK_STEP));
        resize_step(size)?;
        if ending() {
            return Err(ENODATA);
        }
        // SAFETY: The context may sleep.
        unsafe { bindings::vmtrace_resched() };
        if size == to {
            return Ok(());
        }
    }
}
