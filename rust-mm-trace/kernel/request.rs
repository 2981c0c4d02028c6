// SPDX-License-Identifier: GPL-2.0

//! Windows that begin and end on request.
//!
//! Requests are steps: odd ones begin a window, even ones end it. Whoever asks for what the last step
//! gives anyway takes none. The thread of the trace does each step in turn, so none is left out: a
//! window that is to end and to begin again does both. If a window ends by itself, the thread takes
//! the step that would end it.

use crate::{
    changes,
    drain::PATIENCE,
    recall::{self, ending},
    session, window,
};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{Acquire, Full, Relaxed, Release},
        Atomic,
    },
};

/// The last step that was asked for, and the last that was done.
static ASKED: Atomic<u64> = Atomic::new(0);
static DONE: Atomic<u64> = Atomic::new(0);
/// No window begins any more.
static OVER: Atomic<bool> = Atomic::new(false);

/// A trace begins, and is between windows.
pub(crate) fn reset() {
    ASKED.store(0, Relaxed);
    DONE.store(0, Relaxed);
    OVER.store(false, Relaxed);
}

/// Whether a step begins a window.
fn begins(step: u64) -> bool {
    step & 1 != 0
}

/// For the thread: whether there is a step to do.
pub(crate) fn is_due() -> bool {
    ASKED.load(Acquire) != DONE.load(Relaxed)
}

/// For the thread: the step that was due is done, or the window has ended by itself.
pub(crate) fn done() {
    let before = DONE.load(Relaxed);
    let step = before.wrapping_add(1);
    // If it was asked for meanwhile, it is not asked for again.
    let _ = ASKED.cmpxchg(before, step, Full);
    DONE.store(step, Release);
    changes::changed();
}

/// For the thread: there were as many windows as there are to be.
pub(crate) fn over() {
    OVER.store(true, Release);
    changes::changed();
}

/// Asks for a window to begin or to end. Gives the step to wait for. The caller keeps the trace from
/// ending meanwhile, for the next trace has steps of its own.
pub(crate) fn ask(begin: bool) -> u64 {
    let mut asked = ASKED.load(Relaxed);
    while begins(asked) != begin {
        let step = asked.wrapping_add(1);
        match ASKED.cmpxchg(asked, step, Full) {
            Ok(_) => return step,
            Err(now) => asked = now,
        }
    }
    asked
}

/// Begins or ends a window, and waits until that is done.
///
/// # Errors
///
/// As of VMTRACE_IOC_WINDOW.
pub(crate) fn request(begin: bool) -> Result {
    let (trace, step) = session::ask_window(begin)?;
    recall::wake();
    loop {
        let seen = changes::seen();
        if session::pausable() != Ok(trace) || ending() {
            return Err(ENODATA);
        }
        if DONE.load(Acquire) >= step {
            return Ok(());
        }
        if OVER.load(Acquire) {
            return match begin {
                true => Err(ENODATA),
                false => Ok(()),
            };
        }
        // What else the thread does has its own limits.
        let patience = match window::WRITING.load(Relaxed) {
            true => PATIENCE,
            false => 0,
        };
        changes::wait(seen, patience).map_err(|e| match e {
            ETIMEDOUT => EINPROGRESS,
            e => e,
        })?;
    }
}
