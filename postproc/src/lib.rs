//! Reads what the kernel recorded, says whether it can be trusted, and hands
//! it to page-replacement simulators.
//!
//! The way of a record: [`trace`] indexes the packets of a memory-mapped file
//! and merges their streams by sequence number; [`space`] keeps what is mapped
//! where; [`canon`] gives each virtual page an identity apart from mappings;
//! [`check`], [`sim`], [`export`] and [`report`] consume the result. One pass
//! ([`pass`]) feeds any number of consumers. Memory is bounded by the number
//! of packets, live mappings and distinct pages, never by that of records.

#![warn(missing_docs, clippy::undocumented_unsafe_blocks)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod canon;
pub mod check;
pub mod error;
pub mod export;
pub mod info;
pub mod output;
pub mod pass;
pub mod progress;
pub mod report;
pub mod sim;
pub mod space;
pub mod trace;
pub mod units;

pub use error::{Error, Result};
