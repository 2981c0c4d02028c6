// SPDX-License-Identifier: GPL-2.0

//! A trace by intervals: all stays end from time to time, so that each page that is used in an interval
//! has a record in it, and few have more than one.
//!
//! The set is large then, and its size does not decide what is recorded. A thread of its own ends the
//! stays, one page table after the other, while references go on. So there is no moment at which the
//! set is empty. A stay that begins while the others are ended lasts until the next time.

use crate::{
    drain::ERROR,
    hot::clock,
    members,
    recall::{self, ending},
    session, window,
};
use kernel::{bindings, kthread::KThread, prelude::*, sync::atomic::ordering::Relaxed};

/// What `c` asks for, ns; 0: stays do not end so.
///
/// # Errors
///
/// EINVAL if it is out of range.
pub(crate) fn new(c: &bindings::vmtrace_config) -> Result<u64> {
    let range = u64::from(bindings::VMTRACE_INTERVAL_MIN)..=bindings::VMTRACE_INTERVAL_MAX;
    match c.interval {
        0 => Ok(0),
        ns if range.contains(&ns) => Ok(ns),
        _ => Err(EINVAL),
    }
}

/// When the interval ends that `now` is in, if one has ended at `end`.
pub(crate) fn next(end: u64, ns: u64, now: u64) -> u64 {
    let passed = now.saturating_sub(end).checked_div(ns).unwrap_or(0);
    end.saturating_add(ns.saturating_mul(passed.saturating_add(1)))
}

/// Ends intervals until the trace is to end.
fn run(ns: u64, session: u64) {
    if !session::made(session) {
        return;
    }
    let mut end = clock().saturating_add(ns);
    while !ending() {
        recall::pause(end.saturating_sub(clock()), || false);
        let begun = clock();
        if !ending() && begun >= end && ERROR.load(Relaxed) == 0 {
            window::if_open(members::end_all);
            let now = clock();
            // References get at least as much time as the ends of stays.
            let rest = now.saturating_add(now.saturating_sub(begun));
            end = next(end, ns, now).max(rest);
        } else if begun >= end {
            end = next(end, ns, begun);
        }
    }
}

/// Starts the thread, which ends by itself when the trace is to end.
pub(crate) fn start(ns: u64, session: u64) -> Result<KThread> {
    KThread::spawn(c"vmtrace_interval", move |_| {
        run(ns, session);
        Ok(())
    })
}
