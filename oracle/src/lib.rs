//! A second opinion on the kernel's traces.
//!
//! A QEMU plugin (`oracle/plugin`) sees every access that the guest makes and
//! every page fault. [`watch::Watch`] attributes them to the traced address
//! spaces and feeds [`model::Model`], a naive set of the last N admissions that
//! shares no code with the kernel's. What comes out is a log ([`log::Log`]) of
//! the records that the kernel must have written, and [`compare::compare`] puts
//! them side by side.
//!
//! ```text
//! QEMU → plugin → watch → model → log ─┐
//! kernel → trace → postproc's reader ──┴→ compare
//! ```
//!
//! What the kernel tells the oracle, and what it does not:
//!
//! - *given*: which address spaces are traced and their numbers; when the trace
//!   begins and ends; which PTEs were cleared and why (unmap, copy-on-write,
//!   reclaim, exit); aborted admissions, which take a place without a record; an
//!   accessed bit where an access may lie on two pages (see [`watch`]), which is
//!   checked afterwards.
//! - *predicted*: every admission, its order, its kind of access, whether the
//!   page was written in its stay, every eviction, whether a page was referenced
//!   again in the second segment, and every second chance.
//!
//! A page is referenced again by each access after it was swept, by user or kernel
//! mode: the sweep flushes, so the access is looked up in the page tables, which
//! sets the accessed bit. A store to a write-protected page does not set it, but the
//! fault's handler does (`pte_mkyoung()`), and so does a write fault that the kernel
//! makes for itself. What reclaim and others clear does not matter, for the kernel
//! must tell it all the same.
//!
//! Two things count as a store in the stay they fall in although the program has
//! not stored there, for the CPU or the kernel sets the dirty bit all the same:
//!
//! - a store that lies on two pages and faults on the second has set the first
//!   one's dirty bit, and may find that page evicted when it comes again;
//! - the kernel's own write fault on a member (`MADV_POPULATE_WRITE`, pages pinned
//!   to be written past the mapping).
//!
//! An attempt, a page fault that the kernel's own fault handler grants, admits
//! the page it is about. An access that succeeds must be to a member: if it is
//! not, the kernel left a page enabled that it should not have, which is counted
//! as a violation, and the model admits the page, so that the two logs differ
//! from there on. A fault on a member admits nothing: if the kernel logs one,
//! the logs differ too.

pub mod compare;
pub mod log;
pub mod machine;
pub mod model;
pub mod replay;
pub mod spaces;
pub mod stream;
pub mod symbols;
pub mod watch;
