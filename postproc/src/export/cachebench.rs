//! `cachebench`: the key trace of CacheLib's benchmark.
//!
//! A line of named columns a reference, as `KVReplayGenerator` of cachebench
//! reads it (generator "replay"; Berg et al., "The CacheLib caching engine",
//! OSDI 2020; cachelib.org, "Replay production traces"):
//!
//! | column | here |
//! |---|---|
//! | key | page number in ten digits |
//! | op | GET: a reference looks for the page; `enableLookaside` then loads what is missing. DELETE: the page is freed |
//! | size | bytes of a page |
//! | op_count | 1 |
//! | key_size | 10 |
//!
//! All keys have one length, because cachebench appends zeros to a key up to
//! `key_size`, which would turn page 1 into page 10. Writes are GETs, too: in
//! cachebench, a SET counts neither as a hit nor as a miss.

use std::io::Write;

use super::{Exporter, FormatEntry, Make};
use crate::error::{OutputContext, Result};
use crate::output::Output;
use crate::pipeline::Batch;
use crate::trace::Header;
use crate::units::CanonPage;

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "cachebench",
    about: "for CacheLib's cachebench: a trace of keys, as CSV",
    make: Make::File(|_| Ok(Box::new(Cachebench::default()))),
};

/// Digits of the largest page number.
const KEY_SIZE: usize = 10;

#[derive(Default)]
struct Cachebench {
    lines: Vec<u8>,
    /// What follows every key that is looked for, and every one that is freed.
    get: Vec<u8>,
    delete: Vec<u8>,
}

impl Exporter for Cachebench {
    fn begin(&mut self, header: &Header, out: &mut Output) -> Result<()> {
        let size = header.page_size();
        self.get = format!(",GET,{size},1,{KEY_SIZE}\n").into_bytes();
        self.delete = format!(",DELETE,{size},1,{KEY_SIZE}\n").into_bytes();
        out.write_all(b"key,op,size,op_count,key_size\n")
            .writing(out.name())
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Output) -> Result<()> {
        lines(&mut self.lines, batch.pages, &self.get);
        out.write_all(&self.lines).writing(out.name())
    }

    fn freed(&mut self, pages: &[CanonPage], _time_ns: u64, out: &mut Output) -> Result<()> {
        lines(&mut self.lines, pages, &self.delete);
        out.write_all(&self.lines).writing(out.name())
    }
}

/// A line for each page, and nothing else.
fn lines(b: &mut Vec<u8>, pages: &[CanonPage], rest: &[u8]) {
    b.clear();
    for page in pages {
        let mut key = [b'0'; KEY_SIZE];
        let mut number = page.0;
        for digit in key.iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        b.extend_from_slice(&key);
        b.extend_from_slice(rest);
    }
}
