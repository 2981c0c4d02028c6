//! An independent check of the kernel's traces.
//!
//! A QEMU plugin (`oracle/plugin`) sees every access that the guest makes and
//! every page fault. [`watch::Watch`] attributes them to the traced address
//! spaces and feeds [`model::Model`], a simple set of the last N admissions that
//! shares no code with the kernel's. The result is a log ([`log::Log`]) of the
//! records that the kernel must have written. [`compare::compare`] compares the
//! log with the trace.
//!
//! ```text
//! QEMU → plugin → watch → model → log ─┐
//! kernel → trace → postproc's reader ──┴→ compare
//! ```
//!
//! The facts that the kernel gives to the oracle, and those that the oracle predicts:
//!
//! - *given*: the traced address spaces and their numbers, and their control groups if each of
//!   these has a set; the number of a new set; the beginning and the end of the trace; the PTEs that were cleared, and why (unmap, copy-on-write, reclaim,
//!   exit); aborted admissions, which take a place without a record; an accessed bit if
//!   an access may lie on two pages (see [`watch`]), which is checked afterwards.
//! - *predicted*: which set each address space is in; every admission, its order, its kind of access, whether the
//!   page was written in its stay, every eviction, whether a page was referenced
//!   again in the second segment, and every second chance.
//!
//! Each access to a page after it was swept, in user or kernel mode, references the page
//! again: the sweep flushes, so the CPU looks the access up in the page tables, which
//! sets the accessed bit. A store to a write-protected page does not set the bit, but the
//! fault's handler sets it (`pte_mkyoung()`), and so does a write fault that the kernel
//! makes for itself. It does not matter whether reclaim or others clear the bit, because
//! the kernel must record the reference nevertheless.
//!
//! Two things count as a store in the stay in which they happen, although the program did
//! not store there, because the CPU or the kernel sets the dirty bit:
//!
//! - a store that lies on two pages and faults on the second has set the first
//!   one's dirty bit, and may find that page evicted when it comes again;
//! - the kernel's own write fault on a member (`MADV_POPULATE_WRITE`, or pages that are
//!   pinned to be written without the mapping).
//!
//! A page fault that the kernel's own fault handler grants (an *attempt*) admits the
//! faulting page. An access that succeeds must be to a member. If it is not, the kernel
//! left a page enabled by mistake. This counts as a violation, and the model admits the
//! page, so that the two logs differ from there on. A fault on a member admits nothing: if
//! the kernel records an admission for it, the logs differ, too.

pub mod compare;
pub mod count;
pub mod log;
pub mod machine;
pub mod model;
pub mod replay;
pub mod scopes;
pub mod set;
pub mod spaces;
pub mod stream;
pub mod symbols;
pub mod watch;
