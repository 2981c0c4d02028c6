// SPDX-License-Identifier: GPL-2.0

//! Waits for room in the log: which CPU is short of it, and who waits for how long.
//!
//! The output of a trace may stop taking data: its file system is frozen, its device hangs, or its
//! server waits for a task that is traced. So no wait here is for ever, see [`Patience`].

use crate::{
    drain::{self, kick, nr_cpus},
    events,
    hot::{self, this_cpu, Spare, DISCARDS, WAITS},
    patience::{Kind, Patience, Verdict},
    progress,
    queue::{End, Queue, Until},
    recall,
    tables::is_broken,
};
use core::ffi::c_int;
use kernel::{
    bindings,
    macros::export,
    prelude::*,
    static_lock_class,
    sync::atomic::{ordering::Relaxed, Atomic},
    task::Task,
};

const HZ: u64 = bindings::HZ as u64;

/// An exiting task waits no longer than that without progress, whatever the limit is. Then no
/// exiting task waits until there is progress, for one may have thousands of events.
const EXIT_WAIT: u64 = 30 * HZ;

/// How long a task that accesses another task's memory waits at most. Then no such task waits until
/// there is progress, for each of its pages is an event.
const OTHER_WAIT: u64 = HZ;

/// How far kvmtraced was when a task of a kind gave up.
struct GivenUp(Atomic<u64>);

impl GivenUp {
    const fn new() -> GivenUp {
        GivenUp(Atomic::new(u64::MAX))
    }

    fn was_at(&self, progress: u64) -> bool {
        self.0.load(Relaxed) == progress
    }

    fn set(&self, progress: u64) {
        self.0.store(progress, Relaxed);
    }
}

static EXITING: GivenUp = GivenUp::new();
static OTHERS: GivenUp = GivenUp::new();

/// Nobody waits for room: the trace or its window has ended, or the log has failed. Whoever makes
/// the log congested after this makes no one wait.
static LET_GO: Atomic<bool> = Atomic::new(false);

/// Those who wait for room.
static ROOM: Queue = Queue::new();

/// Makes the queue usable.
pub(crate) fn init() -> Result {
    ROOM.init(c"vmtrace::room", static_lock_class!())
}

/// Whether one of the rings that a CPU uses is short of room: tasks that run there wait before they
/// fault again, and tasks on other CPUs go on. `None` if there is never such a CPU. C looks at its
/// own CPU's flag whenever a task faults or returns to user mode.
fn congested(cpu: usize) -> Option<&'static Atomic<bool>> {
    // SAFETY: It only calculates an address.
    let flag = unsafe { bindings::vmtrace_congested_on(cpu as u32) };
    if flag.is_null() {
        return None;
    }
    // SAFETY: It is a variable of a possible CPU, which is there for as long as the kernel runs. C
    // only reads it, by one instruction.
    Some(unsafe { Atomic::from_ptr(flag) })
}

fn all_congested() -> impl Iterator<Item = (usize, &'static Atomic<bool>)> {
    (0..nr_cpus()).filter_map(|cpu| Some((cpu, congested(cpu)?)))
}

/// Makes tasks on a CPU wait for room: a ring that it uses is short of it. Only functions that wake
/// those who wait clear the flag. Called under the lock of a ring.
#[cold]
#[inline(never)]
pub(crate) fn congest(cpu: usize) {
    if LET_GO.load(Relaxed) {
        return;
    }
    if let Some(flag) = congested(cpu) {
        flag.store(true, Relaxed);
    }
}

/// Makes tasks on all CPUs wait, until kvmtraced has looked at the rings.
pub(crate) fn congest_all() {
    for (_, flag) in all_congested() {
        flag.store(true, Relaxed);
    }
}

/// Lets the tasks go on that wait on CPUs which have room again. If a ring becomes full meanwhile,
/// its flag may be cleared all the same. The next record sets it again. This takes locks of rings,
/// one after the other, so no such lock is held here.
pub(crate) fn relieve() {
    let mut any = false;
    for (cpu, flag) in all_congested() {
        if flag.load(Relaxed) && hot::has_room(cpu) && events::has_room(cpu) {
            flag.store(false, Relaxed);
            any = true;
        }
    }
    if any {
        ROOM.wake();
    }
}

/// Whether tasks wait for room from here on. It wakes those who wait, so it may be called wherever
/// tasks can be woken up.
pub(crate) fn set_waits(wait: bool) {
    LET_GO.store(!wait, Relaxed);
    for (_, flag) in all_congested() {
        flag.store(false, Relaxed);
    }
    ROOM.wake();
}

/// Whether no task on this CPU needs to wait. The caller may move to another one after this.
fn has_room() -> bool {
    let short = congested(this_cpu()).is_some_and(|flag| flag.load(Relaxed));
    !short || LET_GO.load(Relaxed)
}

/// What the present task is.
fn kind() -> Kind {
    const FLUSHER: u32 = bindings::PF_MEMALLOC_NOIO | bindings::PF_LOCAL_THROTTLE;
    // SAFETY: This is the present task, and nobody else changes its flags.
    let flags = unsafe { (*Task::current_raw()).flags };
    Kind {
        exits: flags & bindings::PF_EXITING != 0,
        kernel: flags & bindings::PF_KTHREAD != 0,
        worker: flags & bindings::PF_USER_WORKER != 0,
        flusher: flags & FLUSHER == FLUSHER,
    }
}

/// The number of the address space that the present task's events are of; 0 if it is not traced.
fn own_mm() -> u32 {
    // SAFETY: Looks at the present task.
    unsafe { bindings::vmtrace_own_mm() }
}

/// Whether the address space that the present task uses is traced.
fn is_traced() -> bool {
    // SAFETY: This is the present task, and nobody else changes which address space it uses. So
    // that is there.
    unsafe {
        let mm = (*Task::current_raw()).mm;
        !mm.is_null() && bindings::vmtrace_mm_id(mm) != 0
    }
}

/// Whether the present task returns to user mode, and so can wait for room then.
pub(crate) fn can_owe() -> bool {
    kind().returns()
}

/// Lets the present task wait for room before it returns to user mode, if it returns there.
pub(crate) fn owe() {
    if can_owe() {
        owe_anyway();
    }
}

fn owe_anyway() {
    // SAFETY: Sets a flag of the present task, at which that looks before it returns to user mode.
    unsafe { bindings::vmtrace_owe() };
}

/// A fault of a system call finds room in reserve, for the call may hold locks that the output
/// needs: those of an inode, or that against freezing. The task waits when the call has ended. As
/// the reserve is not without an end, a call that faults on more pages than that has room for waits
/// where it is, until the stall limit.
fn may_owe(kind: Kind) -> bool {
    if !hot::has_spare(Spare::Calls) {
        return false;
    }
    // Workers don't return to user mode.
    if !kind.worker {
        owe_anyway();
    }
    true
}

/// Whether the present task is one that the output may need to get on, and there is room for it.
fn is_needed(kind: Kind) -> bool {
    kind.is_needed(EXITING.was_at(progress::now())) && hot::has_spare(Spare::Needed)
}

/// Waits until there is room in the log. EINTR if a fatal signal came first. It sleeps.
fn wait_room(kind: Kind) -> Result {
    kick();
    let mut patience = Patience::new(kind, progress::limit(), EXIT_WAIT, progress::now());
    // No signal reaches a task that exits.
    let until = match kind.exits {
        true => Until::Never,
        false => Until::Killed,
    };
    while !has_room() {
        match ROOM.wait(until, patience.part(), has_room) {
            End::Met => continue,
            End::Signal => return Err(EINTR),
            End::Late => {}
        }
        match patience.passed(progress::now(), || hot::has_spare(Spare::Needed)) {
            Verdict::Wait => {}
            Verdict::GoOn => {
                EXITING.set(patience.seen());
                return Ok(());
            }
            // Then nobody waits any more.
            Verdict::Failed => drain::fail(ETIMEDOUT),
        }
    }
    Ok(())
}

/// The same for a traced task, counted.
fn wait_own(kind: Kind) -> Result {
    WAITS.add(1u64, Relaxed);
    if is_broken(bindings::VMTRACE_BREAK_NOBLOCK) {
        kick();
        return Ok(());
    }
    wait_room(kind)
}

/// Waits for room in the log. Called before a fault takes a lock, and before a task that owes a
/// wait returns to user mode. kvmtraced does not wait here, because it has no address space. Gives
/// -EINTR if a fatal signal came first.
///
/// `call`: a fault of a system call, which can wait when the call has ended.
///
/// # Safety
///
/// The context may sleep.
#[export]
pub unsafe extern "C" fn __vmtrace_throttle(call: bool) -> c_int {
    if own_mm() == 0 || LET_GO.load(Relaxed) || DISCARDS.load(Relaxed) {
        return 0;
    }
    let kind = kind();
    if is_needed(kind) || (call && may_owe(kind)) {
        return 0;
    }
    match wait_own(kind) {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}

/// Waits for room for an event. False if this task is not to wait (any more); then its event is
/// lost if the ring is full. It sleeps. The caller may hold mmap_lock, which kvmtraced never takes.
/// Others may want it, so this is called only if hardly any room is left.
///
/// The thread of a trace waits, too, although it has no address space that is traced. It may hold
/// the lock that keeps windows from changing (window.rs) meanwhile, or mmap_lock of an address
/// space whose last user it is.
pub(crate) fn wait_to_log() -> bool {
    if LET_GO.load(Relaxed) {
        return false;
    }
    let waited = if recall::is_session() {
        wait_snapshot()
    } else {
        let kind = kind();
        let must_not = own_mm() == 0 || DISCARDS.load(Relaxed) || is_needed(kind);
        if must_not || is_broken(bindings::VMTRACE_BREAK_NOBLOCK) {
            return false;
        }
        wait_own(kind)
    };
    waited.is_ok() && !LET_GO.load(Relaxed)
}

/// The same for the thread of a trace, which describes what there is when a trace or a window
/// begins. Nothing depends on that thread, and it holds no lock here that the output could need.
/// STOP ends this wait: see [`recall::set_ending`].
fn wait_snapshot() -> Result {
    if has_room() {
        return Ok(());
    }
    wait_room(kind())
}

/// For the thread of a trace. Gives -EINTR if STOP came first.
///
/// # Safety
///
/// The context may sleep.
#[export]
pub unsafe extern "C" fn vmtrace_rs_throttle_snapshot() -> c_int {
    match wait_snapshot() {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}

/// The same for a task that is not traced and fills the log with events about other tasks. The
/// output of the log may depend on this task, so the wait is short. After it, an event that finds
/// no room is counted as lost.
///
/// # Safety
///
/// The context may sleep.
#[export]
pub unsafe extern "C" fn vmtrace_rs_throttle_other() {
    let at = progress::now();
    if has_room() || OTHERS.was_at(at) || is_traced() || DISCARDS.load(Relaxed) {
        return;
    }
    kick();
    if ROOM.wait(Until::Killed, OTHER_WAIT, has_room) == End::Late {
        OTHERS.set(at);
    }
}
