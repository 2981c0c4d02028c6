// SPDX-License-Identifier: GPL-2.0

//! Which processes a trace is of. The work is done in roots.c.

use kernel::{bindings, error::to_result, ffi::c_char, prelude::*};

/// What the traced processes descend from, as configured. There may be no such process or group.
#[derive(Clone, Copy)]
pub(crate) struct Roots {
    /// VMTRACE_SCOPE_*
    pub(crate) kind: u32,
    /// The root of a tree, or 0.
    pub(crate) pid: i32,
    /// The directory of a control group, or 0.
    group: i32,
    /// A pattern for names, or empty.
    comm: [c_char; 60],
}

impl Roots {
    /// What `c` asks for.
    ///
    /// # Errors
    ///
    /// EINVAL if it is of no kind, or of several.
    pub(crate) fn new(c: &bindings::vmtrace_config) -> Result<Roots> {
        let has_comm = c.comm.first().is_some_and(|c| *c != 0);
        let is_clean = match c.scope {
            bindings::VMTRACE_SCOPE_ALL => (c.pid, c.cgroup_fd, has_comm) == (0, 0, false),
            bindings::VMTRACE_SCOPE_TREE => c.pid > 0 && (c.cgroup_fd, has_comm) == (0, false),
            bindings::VMTRACE_SCOPE_CGROUP => (c.pid, has_comm) == (0, false) && c.cgroup_fd >= 0,
            bindings::VMTRACE_SCOPE_COMM => (c.pid, c.cgroup_fd, has_comm) == (0, 0, true),
            _ => false,
        };
        let ends = c.comm.last().is_some_and(|c| *c == 0);
        if !is_clean || !ends {
            return Err(EINVAL);
        }
        Ok(Roots {
            kind: c.scope,
            pid: c.pid,
            group: c.cgroup_fd,
            comm: c.comm,
        })
    }

    /// Whether it is all processes.
    pub(crate) fn is_all(&self) -> bool {
        self.kind == bindings::VMTRACE_SCOPE_ALL
    }

    /// Makes it that of the trace that is to begin. The context may sleep.
    ///
    /// # Errors
    ///
    /// As of `vmtrace_set_scope()`.
    pub(crate) fn set(&self) -> Result {
        // SAFETY: The context may sleep. The pattern ends within the array.
        to_result(unsafe {
            bindings::vmtrace_set_scope(self.kind, self.pid, self.group, self.comm.as_ptr())
        })
    }

    /// The trace is over, or has not begun: nothing becomes a part of it any more. The context may
    /// sleep.
    pub(crate) fn clear() {
        // SAFETY: The context may sleep.
        unsafe { bindings::vmtrace_clear_scope() };
    }
}
