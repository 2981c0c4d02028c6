//! The note that a reduced trace has about itself.

use serde::{Deserialize, Serialize};

/// The line of a csv that holds a [`Note`] as JSON begins so.
pub const NOTE_MARK: &str = "#reduced ";

/// How a trace was reduced, and for which memories it stands for the full one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Note {
    /// The method's name.
    pub method: String,
    /// The method's size, in pages.
    pub k: u64,
    /// From this size of memory on, in pages, the reduced trace stands for the
    /// full one.
    pub valid_from_pages: u64,
    /// The policies whose misses are equal from there on; if there are none, all
    /// are near.
    pub exact_for: Vec<String>,
    /// Whether write-backs are equal, too.
    pub write_backs: bool,
    /// The source of this claim.
    pub source: String,
    /// N of the trace that was reduced, if that was by a tracer; 0 if not.
    pub evms_size: u32,
}
