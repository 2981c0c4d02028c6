//! `txt`: a decimal number a line, as `postproc export` and libCacheSim have it.
//!
//! All references count as reads.

use super::lines::{ByLine, Lines, Wrong, decimal, shown};
use super::{Accesses, ImportEntry};

pub(super) const ENTRY: ImportEntry = ImportEntry {
    id: "txt",
    about: "one decimal number a line; no writes",
    make: |_| ByLine::boxed(Txt),
};

struct Txt;

impl Lines for Txt {
    fn line(&mut self, line: &[u8], to: &mut Accesses) -> Result<(), Wrong> {
        if line.is_empty() {
            return Ok(());
        }
        match decimal(line) {
            Some(number) => Ok(to.number(number, false)?),
            None => Err(format!("expected a decimal number, found {}", shown(line)).into()),
        }
    }
}
