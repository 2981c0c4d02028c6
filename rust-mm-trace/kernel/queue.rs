// SPDX-License-Identifier: GPL-2.0

//! Queues of tasks that wait until something holds: the kernel's wait queues, as its
//! `wait_event_*()` use them.
//!
//! `kernel::sync::CondVar` has no waits with a time limit that only a fatal signal ends, or none at
//! all. Also, all who wait in it must take a lock to look at what they wait for.

use core::{marker::PhantomPinned, ptr};
use kernel::{
    bindings,
    ffi::c_long,
    prelude::*,
    sync::{LockClassKey, SetOnce},
    task::{might_sleep, Task},
    types::Opaque,
};

/// What ends a wait besides what is waited for, and besides its limit.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Until {
    /// Nothing else. The task adds to the load.
    Never = bindings::TASK_UNINTERRUPTIBLE,
    /// Nothing else. The task does not add to the load.
    Idle = bindings::TASK_IDLE,
    /// A fatal signal.
    Killed = bindings::TASK_KILLABLE,
    /// Any signal.
    Signal = bindings::TASK_INTERRUPTIBLE,
}

/// How a wait has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// What was waited for holds.
    Met,
    /// The limit has passed.
    Late,
    /// A signal came.
    Signal,
}

#[pin_data]
struct Head {
    #[pin]
    head: Opaque<bindings::wait_queue_head>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: A wait queue has a lock of its own, and is for all threads.
unsafe impl Send for Head {}

// SAFETY: As above.
unsafe impl Sync for Head {}

/// A queue. Nobody waits in it before it was initialised.
pub(crate) struct Queue(SetOnce<Pin<KBox<Head>>>);

impl Queue {
    pub(crate) const fn new() -> Queue {
        Queue(SetOnce::new())
    }

    /// Makes it usable. `key` is the class of its lock.
    pub(crate) fn init(&self, name: &'static CStr, key: Pin<&'static LockClassKey>) -> Result {
        let head = pin_init!(Head {
            _pin: PhantomPinned,
            // SAFETY: `slot` is memory for a queue that stays where it is. The name and the key are
            // there for ever.
            head <- Opaque::ffi_init(|slot| unsafe {
                bindings::__init_waitqueue_head(slot, name.as_char_ptr(), key.as_ptr())
            }),
        });
        self.0.populate(KBox::pin_init(head, GFP_KERNEL)?);
        Ok(())
    }

    /// Wakes all who wait, so that they look again. It may be called wherever tasks can be woken
    /// up, under spinlocks, too.
    pub(crate) fn wake(&self) {
        let Some(head) = self.0.as_ref() else {
            return;
        };
        // SAFETY: The queue is initialised. 0 is for all.
        unsafe { bindings::__wake_up(head.head.get(), bindings::TASK_NORMAL, 0, ptr::null_mut()) };
    }

    /// Waits until `holds` gives true, for `jiffies` at most. It sleeps; `holds` must not.
    pub(crate) fn wait(&self, until: Until, jiffies: u64, holds: impl Fn() -> bool) -> End {
        let mut left = c_long::try_from(jiffies).unwrap_or(c_long::MAX);
        self.wait_with(until, holds, || {
            // SAFETY: It is no negative time. The task's state is that of one that sleeps.
            left = unsafe { bindings::schedule_timeout(left) };
            left == 0
        })
    }

    /// The same, for `ns` at most; from `i64::MAX` on, that is for ever.
    pub(crate) fn wait_ns(&self, until: Until, ns: u64, holds: impl Fn() -> bool) -> End {
        // SAFETY: May be called in any context.
        let now = unsafe { bindings::ktime_get() };
        let mut end = match i64::try_from(ns) {
            Err(_) | Ok(i64::MAX) => None,
            Ok(ns) => Some(now.saturating_add(ns)),
        };
        // SAFETY: This is the present task, and nobody else changes its slack.
        let slack = unsafe { (*Task::current_raw()).timer_slack_ns };
        self.wait_with(until, holds, || {
            let end = end.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
            let mode = bindings::hrtimer_mode_HRTIMER_MODE_ABS;
            // SAFETY: `end` is null, which is for ever, or valid. The task's state is that of one
            // that sleeps.
            unsafe { bindings::schedule_hrtimeout_range(end, slack, mode) == 0 }
        })
    }

    /// `wait_event_*()`. `sleep` sleeps in the task's state, and gives whether the limit has
    /// passed.
    fn wait_with(
        &self,
        until: Until,
        holds: impl Fn() -> bool,
        mut sleep: impl FnMut() -> bool,
    ) -> End {
        might_sleep();
        let Some(head) = self.0.as_ref() else {
            return End::Late;
        };
        if holds() {
            return End::Met;
        }
        let head = head.head.get();
        let entry = Opaque::<bindings::wait_queue_entry>::uninit();
        // SAFETY: It is memory for an entry, and stays where it is until `finish_wait()`.
        unsafe { bindings::init_wait_entry(entry.get(), 0) };
        let end = loop {
            // The task is in the queue, and its state is set, before the look. Between the two is a
            // full barrier. Who makes `holds` true does so before the look at the queue, and takes
            // the queue's lock for that. So either the look finds it, or the task is woken.
            // SAFETY: Both are initialised.
            let signal =
                unsafe { bindings::prepare_to_wait_event(head, entry.get(), until as i32) };
            if holds() {
                break End::Met;
            }
            // Only in states that a signal ends.
            if signal != 0 {
                break End::Signal;
            }
            let late = sleep();
            if holds() {
                break End::Met;
            }
            if late {
                break End::Late;
            }
        };
        // SAFETY: As above. After this, the entry is in no queue.
        unsafe { bindings::finish_wait(head, entry.get()) };
        end
    }
}
