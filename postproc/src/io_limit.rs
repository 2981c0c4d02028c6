//! A limit to the references that reads and writes make.
//!
//! An event of a few bytes says that 2 GiB were read, which are 524,288 references. A trace
//! of a megabyte, made by a kernel or forged, could so ask for hours of work and for all
//! memory. A real trace has far fewer, because a program touches most of what it reads.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::pipeline::{Batch, Consumer};
use crate::trace::Trace;

/// References that any trace may have.
const LEAST: u64 = 1 << 21;
/// References that it may have for each of its bytes.
const PER_BYTE: u64 = 2;

/// Counts the references of reads and writes in a pass, and ends the pass with
/// [`Error::TooMuchIo`] if there are too many.
pub struct IoLimit {
    path: PathBuf,
    left: u64,
    most: u64,
}

impl IoLimit {
    /// A limit of `most`, or of what a trace of this size usually has at most.
    pub fn new(trace: &Trace, most: Option<u64>) -> Self {
        let usual = LEAST.saturating_add(trace.file_bytes().saturating_mul(PER_BYTE));
        let most = most.unwrap_or(usual);
        IoLimit {
            path: trace.path().into(),
            left: most,
            most,
        }
    }
}

impl Consumer for IoLimit {
    fn wants_io(&self) -> bool {
        true
    }

    fn io(&mut self, batch: &Batch<'_>) -> Result<()> {
        match self.left.checked_sub(batch.refs.len() as u64) {
            Some(left) => self.left = left,
            None => {
                return Err(Error::TooMuchIo {
                    path: self.path.clone(),
                    most: self.most,
                });
            }
        }
        Ok(())
    }
}
