// SPDX-License-Identifier: GPL-2.0

//! What files.c asks about calls of fallocate() that go on.

use crate::holes::{Hole, Span};
use kernel::{bindings, macros::export};

fn hole(h: &bindings::vmtrace_hole) -> Hole {
    Hole {
        whole: Span {
            start: h.start,
            end: h.end,
        },
        logged: Span {
            start: h.from,
            end: h.to,
        },
    }
}

/// The file system has dropped what `now_from` and `now_to` say. Gives whether anything of it is to
/// be logged. Then these two are that, and `from` and `to` are up to date.
///
/// # Safety
///
/// `h` is valid, and nobody else uses it.
#[export]
pub unsafe extern "C" fn vmtrace_rs_hole_made(h: *mut bindings::vmtrace_hole) -> bool {
    // SAFETY: It is a variable of the function that calls this, which gives its address to nobody
    // else.
    let h = unsafe { &mut *h };
    let mut hole = hole(h);
    let dropped = Span {
        start: h.now_from,
        end: h.now_to,
    };
    let Some(ends) = hole.dropped(dropped) else {
        return false;
    };
    (h.now_from, h.now_to) = (ends.start, ends.end);
    (h.from, h.to) = (hole.logged.start, hole.logged.end);
    true
}

/// Whether the call, which has succeeded, has dropped whole pages that have not been logged.
///
/// # Safety
///
/// `h` is valid, and nobody changes it.
#[export]
pub unsafe extern "C" fn vmtrace_rs_hole_left(h: *const bindings::vmtrace_hole) -> bool {
    // SAFETY: As above.
    hole(unsafe { &*h }).is_left()
}
