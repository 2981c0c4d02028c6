// SPDX-License-Identifier: GPL-2.0

//! Who may control a trace, and who may know what is traced.
//!
//! A trace shows addresses, file names and the behaviour of all processes, and slows them down. So the
//! right is one in the initial user namespace: who is root only in another namespace does not have it.

use kernel::{
    bindings,
    capability::{capable, Capability},
    prelude::*,
};

/// Whether the caller may control traces. To be asked only if it is about to do so.
pub(crate) fn may_trace() -> bool {
    // SAFETY: It only reads a number.
    let paranoid = unsafe { bindings::vmtrace_is_paranoid() };
    (!paranoid && capable(Capability::PERFMON)) || capable(Capability::SYS_ADMIN)
}

/// Whether the caller may know which process is traced, and names of files.
pub(crate) fn may_know() -> bool {
    // SAFETY: It only looks at the rights of the present task.
    unsafe { bindings::vmtrace_may_know() }
}

/// EPERM if the caller may not control traces.
pub(crate) fn need() -> Result {
    if may_trace() {
        Ok(())
    } else {
        Err(EPERM)
    }
}
