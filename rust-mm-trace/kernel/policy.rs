// SPDX-License-Identifier: GPL-2.0

//! Policies of observation: how accesses to pages become known.
//!
//! | policy | what it does |
//! |---|---|
//! | [`SET`] | few pages are enabled, and an access to another one is a reference |
//! | [`interval::OPERATIONS`] | the same, and all pages are disabled from time to time |
//! | [`sampling::OPERATIONS`] | one page of each region of memory is looked at from time to time |
//!
//! A policy is a table of [`Operations`] in a file of its own, and a line of [`TABLE`]. All that
//! other files know of policies is this table. For an address space whose references are recorded, the functions
//! of [`SET`] are called directly, which costs no indirect call.

use crate::{
    admit,
    hot::clock,
    interval,
    pte::Pte,
    recall::{self, ending},
    sampling, session,
    stores::{self, Space},
    tables::Entry,
};
use core::ptr;
use kernel::{
    bindings,
    kthread::KThread,
    prelude::*,
    sync::atomic::{
        ordering::{Acquire, Release},
        Atomic,
    },
};

/// What a policy does. Pages are those of traced address spaces.
pub(crate) struct Operations {
    /// What its thread is called.
    pub(crate) name: &'static CStr,
    /// Whether a configuration asks for it. EINVAL if it asks for what cannot be.
    pub(crate) wanted: fn(&bindings::vmtrace_config) -> Result<bool>,
    /// Whether references are recorded. If not, address spaces are quiet.
    pub(crate) refs: bool,
    /// Makes what a trace needs that is about to begin. Gives after how many ns the first tick is to
    /// be; 0: the policy has no ticks, and no thread.
    pub(crate) attach: fn(&bindings::vmtrace_config) -> Result<u64>,
    /// Takes that away, when the trace is over. The context may sleep.
    pub(crate) detach: fn(),
    /// This time, ns, has passed. Gives when the next tick is to be. The context may sleep.
    pub(crate) tick: fn(u64) -> u64,
    /// An access has found a disabled entry. No lock is held. What this demands is what
    /// [`admit::vmtrace_rs_heal`] does.
    pub(crate) fault: unsafe extern "C" fn(*mut bindings::vmtrace_touch),
    /// The entry at an address was cleared; the last argument is its old value. Gives the value that
    /// the caller is to see. The entry is locked, and the caller keeps the page.
    pub(crate) cleared: unsafe fn(Space, usize, Entry, Pte) -> Pte,
    /// Somebody else has cleared the accessed bit of a page, which was set or not. Gives what they are
    /// to see. The handle is 0 or that of the entry, whose page table is locked.
    pub(crate) aged: unsafe fn(Space, u64, bool, usize) -> bool,
    /// Whether the accessed bit of a page was cleared by the policy and is to be seen by others. As
    /// `aged`.
    pub(crate) hidden: unsafe fn(Space, u64, usize) -> bool,
}

/// The set: the policy of all traces that ask for no other one.
pub(crate) const SET: Operations = Operations {
    name: c"vmtrace_set",
    wanted: |_| Ok(true),
    refs: true,
    attach: |_| Ok(0),
    detach: || (),
    tick: |due| due,
    fault: admit::vmtrace_rs_readmit,
    cleared: stores::cleared,
    aged: stores::aged,
    hidden: stores::hidden,
};

/// All policies. Of those that are wanted, the last one is taken.
static TABLE: [Operations; 3] = [SET, interval::OPERATIONS, sampling::OPERATIONS];

/// The policy that a configuration asks for.
///
/// # Errors
///
/// EINVAL if it asks for what cannot be.
pub(crate) fn new(c: &bindings::vmtrace_config) -> Result<&'static Operations> {
    let [first, ..] = &TABLE;
    let mut taken = first;
    for policy in &TABLE {
        if (policy.wanted)(c)? {
            taken = policy;
        }
    }
    Ok(taken)
}

/// Whether a configuration asks for the set, and for nothing else.
pub(crate) fn is_set(c: &bindings::vmtrace_config) -> bool {
    let [first, ..] = &TABLE;
    new(c).is_ok_and(|policy| ptr::eq(policy, first))
}

/// That of the present trace; null is [`SET`]'s.
static PRESENT: Atomic<*mut Operations> = Atomic::new(ptr::null_mut());

/// A trace by the set begins.
pub(crate) fn reset() {
    PRESENT.store(ptr::null_mut(), Release);
}

/// The policy of address spaces whose references are not recorded, if the present one has such.
pub(crate) fn of_quiet() -> Option<&'static Operations> {
    // SAFETY: It is null, or one of `TABLE`.
    unsafe { PRESENT.load(Acquire).as_ref() }.filter(|policy| !policy.refs)
}

/// Makes what a policy needs for the trace that `c` describes, and starts its thread, if it has
/// ticks. The thread ends by itself when the trace is to end, or is not made.
pub(crate) fn start(
    policy: &'static Operations,
    c: &bindings::vmtrace_config,
    session: u64,
) -> Result<Option<KThread>> {
    let first = (policy.attach)(c)?;
    PRESENT.store(ptr::from_ref(policy).cast_mut(), Release);
    if first == 0 {
        return Ok(None);
    }
    let thread = KThread::spawn(policy.name, move |_| {
        run(policy, first, session);
        Ok(())
    });
    match thread {
        Ok(thread) => Ok(Some(thread)),
        Err(e) => {
            (policy.detach)();
            Err(e)
        }
    }
}

/// Does what a policy does from time to time, until the trace is to end.
fn run(policy: &Operations, first: u64, session: u64) {
    if session::made(session) {
        let mut due = clock().saturating_add(first);
        while !ending() {
            recall::pause(due.saturating_sub(clock()), || false);
            if !ending() && clock() >= due {
                due = (policy.tick)(due);
            }
        }
    }
    (policy.detach)();
}
