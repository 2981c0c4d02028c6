// SPDX-License-Identifier: GPL-2.0

//! Waits for kvmtraced, and for the end of a trace: for a change of a number, which is read before
//! a look at what is waited for.

use crate::{
    progress,
    queue::{End, Queue, Until},
    stall::{self, Stall},
};
use kernel::{
    bindings,
    prelude::*,
    static_lock_class,
    sync::atomic::{
        ordering::{Acquire, Relaxed, Release},
        Atomic,
    },
    task::Task,
    time::msecs_to_jiffies,
};

static CHANGES: Atomic<u32> = Atomic::new(0);
static QUEUE: Queue = Queue::new();

/// Makes the queue usable.
pub(crate) fn init() -> Result {
    QUEUE.init(c"vmtrace::changes", static_lock_class!())
}

/// What [`wait`] is to be given, read before a look at what is waited for.
pub(crate) fn seen() -> u32 {
    // Before what is looked at next.
    CHANGES.load(Acquire)
}

/// Wakes all who [`wait`]. The context may be any in which tasks can be woken up.
pub(crate) fn changed() {
    // After what has changed.
    CHANGES.fetch_add(1u32, Release);
    QUEUE.wake();
}

/// Waits for a change since [`seen`] gave this number. ETIMEDOUT if kvmtraced gets nothing done for
/// `most` ms, or for as long as the stall limit if that is shorter; 0 ms are for ever, and so is
/// all if there is no stall limit. EINTR if the task is to die; no signal reaches a kernel thread.
/// It sleeps.
pub(crate) fn wait(seen: u32, most: u32) -> Result {
    let most = msecs_to_jiffies(most) as u64;
    let part = Stall::part(stall::limit(progress::limit(), most));
    let mut stall = Stall::new(progress::now());
    // SAFETY: This is the present task, and nobody else changes its flags.
    let flags = unsafe { (*Task::current_raw()).flags };
    let until = match flags & bindings::PF_KTHREAD {
        0 => Until::Killed,
        _ => Until::Idle,
    };
    loop {
        match QUEUE.wait(until, part, || CHANGES.load(Relaxed) != seen) {
            End::Met => return Ok(()),
            End::Signal => return Err(EINTR),
            End::Late if stall.passed(progress::now()) => return Err(ETIMEDOUT),
            End::Late => {}
        }
    }
}
