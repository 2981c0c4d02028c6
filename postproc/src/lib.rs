//! Reads kVMTrace's traces, judges them, and feeds them to page-replacement
//! simulators.
//!
//! ```text
//! trace::Trace → trace::Merge → pipeline::run ─┬→ check::Checker
//!   (packets)     (in order)    (mappings and  ├→ sim::SimulationConsumer
//!                                pages known)  ├→ export::ExportConsumer
//!                                              ├→ damon::Exact
//!                                              └→ report::{Statistics, Views}
//! ```
//!
//! Traces of other tools come in by [`import`] and go to simulations alone.
//!
//! [`pipeline::run`] reads a trace once, in order, in memory that does not grow
//! with its length, and hands every run of references to each
//! [`pipeline::Consumer`]. [`stretch`] does the same with stretches of one trace at the same time.
//!
//! ```no_run
//! use postproc::canon::PageMode;
//! use postproc::check::{CheckOptions, Checker};
//! use postproc::pipeline::{Unwatched, run};
//! use postproc::trace::Trace;
//!
//! let trace = Trace::open("run.vmt")?;
//! let mut checker = Checker::new(CheckOptions { allow_loss: false, examples: 10 });
//! run(&trace, PageMode::Canonical, &mut Unwatched, &mut [&mut checker])?;
//! assert!(checker.report().good);
//! # Ok::<(), postproc::error::Error>(())
//! ```
//!
//! The feature `cli`, which is on by default, has `commands` and what only they need. Without it, nothing here
//! parses arguments or writes to the terminal. The feature `testing` has what makes artificial traces.

pub mod amount;
pub mod canon;
pub mod check;
#[cfg(feature = "cli")]
pub mod commands;
pub mod damon;
pub mod dataset;
pub mod error;
pub mod export;
pub mod filter;
pub mod import;
pub mod io_limit;
pub mod maps;
pub mod output;
pub mod pipeline;
pub mod places;
pub mod process;
mod radix;
mod ranges;
pub mod reduce;
pub mod regions;
pub mod report;
pub mod select;
pub mod sim;
pub mod space;
pub mod streams;
pub mod stretch;
pub mod summary;
pub mod tee;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;
pub mod unfinished;
pub mod units;
mod varint;
pub mod virtual_time;
