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
    policy::{Operations, SET},
    window,
};
use kernel::{
    bindings,
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
};

/// What is done besides what the set does.
pub(crate) const OPERATIONS: Operations = Operations {
    name: c"vmtrace_interval",
    wanted: |c| Ok(new(c)? != 0),
    attach,
    tick,
    ..SET
};

/// How long an interval of the present trace is, ns.
static LENGTH: Atomic<u64> = Atomic::new(0);

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

/// Notes how long intervals are.
fn attach(c: &bindings::vmtrace_config) -> Result<u64> {
    let ns = new(c)?;
    LENGTH.store(ns, Relaxed);
    Ok(ns)
}

/// An interval has ended.
fn tick(end: u64) -> u64 {
    let ns = LENGTH.load(Relaxed);
    let begun = clock();
    if ERROR.load(Relaxed) != 0 {
        return next(end, ns, begun);
    }
    window::if_open(members::end_all);
    let now = clock();
    // References get at least as much time as the ends of stays.
    let rest = now.saturating_add(now.saturating_sub(begun));
    next(end, ns, now).max(rest)
}
