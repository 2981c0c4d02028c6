//! The kernel interface of kVMTrace, as user space sees it, and the kernel's
//! pure logic, so that it can be tested here.
//!
//! [`uapi`] is made of `include/uapi/linux/vmtrace.h`, the only truth
//! for ioctls and record layouts. [`tickets`], [`stay`], [`ring`], [`record`], [`pack`], [`pack_refs`],
//! [`unpack_refs`], [`pack_events`], [`judge`], [`tally`], [`stall`], [`patience`], [`back`],
//! [`holes`] and [`regions`] are the very files that the
//! kernel compiles. [`evms`] specifies what [`tickets`] must do. [`pack_first`] reads what
//! earlier kernels have packed. [`filter`] is the language in which
//! users say which references or events they mean. [`amount`] reads the amounts that users write, and
//! [`shell`] writes words of command lines.

/// Types and constants of the UAPI header, made by bindgen (`../bindings`).
#[rustfmt::skip]
#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    unnecessary_transmutes,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    rustdoc::all
)]
pub mod uapi;

/// ioctl request numbers of `/dev/vmtrace`, made as `_IOC()` makes them
/// (include/uapi/asm-generic/ioctl.h).
pub mod ioctl {
    use crate::uapi::{
        vmtrace_config, vmtrace_counts, vmtrace_filter, vmtrace_rings, vmtrace_rotate,
        vmtrace_status, VMTRACE_IOC_MAGIC,
    };

    const WRITE: u32 = 1;
    const READ: u32 = 2;

    const fn ioc(dir: u32, nr: u32, size: usize) -> u32 {
        (dir << 30) | ((size as u32) << 16) | (VMTRACE_IOC_MAGIC << 8) | nr
    }

    /// Starts a trace; takes a `vmtrace_config`.
    pub const START: u32 = ioc(WRITE, 1, size_of::<vmtrace_config>());
    /// Ends the trace; gives the last `vmtrace_status`.
    pub const STOP: u32 = ioc(READ, 2, size_of::<vmtrace_status>());
    /// Gives the present `vmtrace_status`.
    pub const STATUS: u32 = ioc(READ, 3, size_of::<vmtrace_status>());
    /// Changes the size of the set; takes a `u32`.
    pub const RESIZE: u32 = ioc(WRITE, 4, size_of::<u32>());
    /// Begins a window, or ends it; takes a `u32`.
    pub const WINDOW: u32 = ioc(WRITE, 5, size_of::<u32>());
    /// Begins the next piece of the trace; takes a `vmtrace_rotate`.
    pub const ROTATE: u32 = ioc(WRITE, 6, size_of::<vmtrace_rotate>());
    /// Changes which references are recorded; takes a `vmtrace_filter`.
    pub const FILTER: u32 = ioc(WRITE, 7, size_of::<vmtrace_filter>());
    /// Gives how many references there were by process and mapping; takes and gives a
    /// `vmtrace_counts`.
    pub const COUNTS: u32 = ioc(READ | WRITE, 8, size_of::<vmtrace_counts>());
    /// Gives how full the rings are, and what has become of records for them; takes and gives a
    /// `vmtrace_rings`.
    pub const RINGS: u32 = ioc(READ | WRITE, 9, size_of::<vmtrace_rings>());
}

/// Memory that is allocated once: a `KVVec` in the kernel.
pub type Store<T> = Vec<T>;

pub mod amount;
#[path = "../kernel/back.rs"]
pub mod back;
#[path = "../kernel/census.rs"]
pub mod census;
pub mod events;
pub mod evms;
pub mod filter;
#[path = "../kernel/holes.rs"]
pub mod holes;
#[path = "../kernel/judge.rs"]
pub mod judge;
#[path = "../kernel/pack.rs"]
pub mod pack;
#[path = "../kernel/pack_events.rs"]
pub mod pack_events;
pub mod pack_first;
#[path = "../kernel/pack_refs.rs"]
pub mod pack_refs;
#[path = "../kernel/patience.rs"]
pub mod patience;
#[path = "../kernel/record.rs"]
pub mod record;
#[path = "../kernel/regions.rs"]
pub mod regions;
#[path = "../kernel/ring.rs"]
pub mod ring;
pub mod shell;
#[path = "../kernel/stall.rs"]
pub mod stall;
#[path = "../kernel/stay.rs"]
pub mod stay;
#[path = "../kernel/tally.rs"]
pub mod tally;
#[path = "../kernel/tickets.rs"]
pub mod tickets;
#[path = "../kernel/unpack_refs.rs"]
pub mod unpack_refs;
