// SPDX-License-Identifier: GPL-2.0

//! What kvmtraced gets done, and how long others wait while it gets nothing done.

use kernel::{
    bindings,
    sync::atomic::{ordering::Relaxed, Atomic},
    time::msecs_to_jiffies,
};

/// A number that changes.
static PROGRESS: Atomic<u64> = Atomic::new(0);

/// The stall limit of the present trace, in jiffies; 0: none.
static LIMIT: Atomic<u64> = Atomic::new(0);

/// kvmtraced, the only caller, has got something done: what waits for it goes on waiting.
pub(crate) fn progressed() {
    PROGRESS.store(now().wrapping_add(1), Relaxed);
}

/// How far kvmtraced is.
pub(crate) fn now() -> u64 {
    PROGRESS.load(Relaxed)
}

/// A trace begins. Its limit is `stall_ms`, or if that is 0 what the kernel was booted with.
pub(crate) fn set_limit(stall_ms: u32) {
    let limit = match stall_ms {
        // SAFETY: Written at boot only, before there are traces.
        0 => unsafe { (&raw const bindings::vmtrace_stall_limit).read() },
        ms => msecs_to_jiffies(ms),
    };
    LIMIT.store(limit as u64, Relaxed);
}

/// The stall limit, in jiffies; 0: none.
pub(crate) fn limit() -> u64 {
    LIMIT.load(Relaxed)
}
