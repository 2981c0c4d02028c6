//! The names of events, and the classes that they are recorded by.

use crate::uapi;

/// The names of events, as in `VMTRACE_EV_*`, each with its number.
pub const NAMES: &[(u32, &str)] = &[
    (uapi::VMTRACE_EV_MAP, "map"),
    (uapi::VMTRACE_EV_UNMAP, "unmap"),
    (uapi::VMTRACE_EV_MOVE, "move"),
    (uapi::VMTRACE_EV_PROTECT, "protect"),
    (uapi::VMTRACE_EV_ADVISE, "advise"),
    (uapi::VMTRACE_EV_COW, "cow"),
    (uapi::VMTRACE_EV_MM_DUP, "mm_dup"),
    (uapi::VMTRACE_EV_MM_END, "mm_end"),
    (uapi::VMTRACE_EV_FORK, "fork"),
    (uapi::VMTRACE_EV_EXEC, "exec"),
    (uapi::VMTRACE_EV_EXIT, "exit"),
    (uapi::VMTRACE_EV_TASK, "task"),
    (uapi::VMTRACE_EV_SWITCH, "switch"),
    (uapi::VMTRACE_EV_CGROUP, "cgroup"),
    (uapi::VMTRACE_EV_SHMAT, "shmat"),
    (uapi::VMTRACE_EV_SHMDT, "shmdt"),
    (uapi::VMTRACE_EV_SHM_DESTROY, "shm_destroy"),
    (uapi::VMTRACE_EV_OPEN, "open"),
    (uapi::VMTRACE_EV_CLOSE, "close"),
    (uapi::VMTRACE_EV_READ, "read"),
    (uapi::VMTRACE_EV_WRITE, "write"),
    (uapi::VMTRACE_EV_TRUNCATE, "truncate"),
    (uapi::VMTRACE_EV_PUNCH, "punch"),
    (uapi::VMTRACE_EV_DELETE, "delete"),
    (uapi::VMTRACE_EV_SWAP_IN, "swap_in"),
    (uapi::VMTRACE_EV_SWAP_OUT, "swap_out"),
    (uapi::VMTRACE_EV_KSM, "ksm"),
    (uapi::VMTRACE_EV_MIGRATE, "migrate"),
    (uapi::VMTRACE_EV_GUP, "gup"),
    (uapi::VMTRACE_EV_RESIZE, "resize"),
    (uapi::VMTRACE_EV_SET, "set"),
    (uapi::VMTRACE_EV_FILTER, "filter"),
    (uapi::VMTRACE_EV_REGION, "region"),
    (uapi::VMTRACE_EV_SNAP_BEGIN, "snap_begin"),
    (uapi::VMTRACE_EV_SNAP_END, "snap_end"),
    (uapi::VMTRACE_EV_REFS_BEGIN, "refs_begin"),
    (uapi::VMTRACE_EV_CHECKPOINT, "checkpoint"),
    (uapi::VMTRACE_EV_CHECKPOINT_END, "checkpoint_end"),
];

/// The bit of `VMTRACE_CLASS_*` that has events of this number recorded; 0 if they are always
/// recorded, because which page an address refers to depends on them.
pub fn class(number: u16) -> u32 {
    match u32::from(number) {
        uapi::VMTRACE_EV_OPEN | uapi::VMTRACE_EV_CLOSE => uapi::VMTRACE_CLASS_FILE,
        uapi::VMTRACE_EV_READ | uapi::VMTRACE_EV_WRITE => uapi::VMTRACE_CLASS_IO,
        uapi::VMTRACE_EV_SHMAT | uapi::VMTRACE_EV_SHMDT | uapi::VMTRACE_EV_SHM_DESTROY => {
            uapi::VMTRACE_CLASS_SHM
        }
        uapi::VMTRACE_EV_GUP => uapi::VMTRACE_CLASS_GUP,
        uapi::VMTRACE_EV_SWAP_IN | uapi::VMTRACE_EV_SWAP_OUT => uapi::VMTRACE_CLASS_SWAP,
        uapi::VMTRACE_EV_KSM | uapi::VMTRACE_EV_MIGRATE => uapi::VMTRACE_CLASS_FRAME,
        uapi::VMTRACE_EV_SWITCH => uapi::VMTRACE_CLASS_SWITCH,
        _ => 0,
    }
}
