// SPDX-License-Identifier: GPL-2.0

//! How the thread of a trace is called back from what it does, and how it lets time pass.
//!
//! The thread may wait for locks of address spaces, which a kernel thread can only be called back
//! from by SIGKILL.

use crate::queue::{Queue, Until};
use core::ptr;
use kernel::{
    bindings,
    macros::export,
    prelude::*,
    static_lock_class,
    sync::atomic::{ordering::Relaxed, Atomic},
    task::Task,
};

/// The thread is to end what it does.
static ENDING: Atomic<bool> = Atomic::new(false);

/// This window has all of its references.
static FULL: Atomic<bool> = Atomic::new(false);

/// The thread, when it lets time pass.
static PAUSE: Queue = Queue::new();

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is.
    /// Whoever changes [`SESSION`], or uses the task, has this.
    unsafe(uninit) static CALLING: SpinLock<()> = ();
}

/// The thread, as long as it can be called back; or null. It ends only after it has cleared this.
static SESSION: Atomic<*mut bindings::task_struct> = Atomic::new(ptr::null_mut());

/// Makes the lock and the queue usable.
///
/// # Safety
///
/// Called once, before anything else here.
pub(crate) unsafe fn init() -> Result {
    // SAFETY: This is called once, and nobody has used the lock yet.
    unsafe { CALLING.init() };
    PAUSE.init(c"vmtrace::pause", static_lock_class!())
}

/// Whether the thread is to end what it does. If so, it is called back.
pub(crate) fn set_ending(ending: bool) {
    ENDING.store(ending, Relaxed);
    if !ending {
        return;
    }
    PAUSE.wake();
    let _calling = CALLING.lock();
    let session = SESSION.load(Relaxed);
    if !session.is_null() {
        // SAFETY: The thread has not cleared this, for which it needs the lock. So it is there. The
        // signal comes from the kernel.
        unsafe { bindings::send_sig(bindings::SIGKILL as i32, session, 1) };
    }
}

/// Whether the thread is to end what it does.
pub(crate) fn ending() -> bool {
    ENDING.load(Relaxed)
}

/// The same for C.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_ending() -> bool {
    ending()
}

/// Does `f`, from which this thread of a trace can be called back.
pub(crate) fn recallable(f: impl FnOnce()) {
    // SAFETY: The thread of a trace is a kernel thread, which handles no signals in another way.
    unsafe { bindings::vmtrace_allow_kill() };
    set_session(Task::current_raw());
    f();
    set_session(ptr::null_mut());
    // What follows is not to be cut short.
    // SAFETY: This is the present task.
    unsafe { bindings::flush_signals(Task::current_raw()) };
}

fn set_session(task: *mut bindings::task_struct) {
    let _calling = CALLING.lock();
    SESSION.store(task, Relaxed);
}

/// Whether this is the thread, and can be called back.
pub(crate) fn is_session() -> bool {
    SESSION.load(Relaxed) == Task::current_raw()
}

/// Notes whether this window has all of its references. Page faults call this under a page table
/// lock.
pub(crate) fn set_full(full: bool) {
    FULL.store(full, Relaxed);
    if full {
        PAUSE.wake();
    }
}

/// For the thread: lets `ns` pass, without adding to the load; u64::MAX are for ever. The end of
/// the trace ends that, and so does `holds` when it gives true; who makes it so calls [`wake`].
pub(crate) fn pause(ns: u64, holds: impl Fn() -> bool) {
    // Whatever ended it, the caller looks.
    let _ = PAUSE.wait_ns(Until::Signal, ns, || ending() || holds());
}

/// For the thread: has it run before all ordinary tasks when it is woken, or share a CPU with them.
///
/// A window has a length. An ordinary task that is woken may wait until the one that runs has had its
/// share of the CPU, which can be a tick, while a window of a few milliseconds goes on.
pub(crate) fn set_urgent(urgent: bool) {
    let task = Task::current_raw();
    match urgent {
        // SAFETY: This is the present task, and no lock is held.
        true => unsafe { bindings::sched_set_fifo_low(task) },
        // SAFETY: As above.
        false => unsafe { bindings::sched_set_normal(task, bindings::MIN_NICE) },
    }
}

/// Has the thread look again whether it is to let time pass.
pub(crate) fn wake() {
    PAUSE.wake();
}

/// Whether the window has all of its references.
pub(crate) fn is_full() -> bool {
    FULL.load(Relaxed)
}
