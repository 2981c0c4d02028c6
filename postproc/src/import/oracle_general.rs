//! `oracleGeneral`: libCacheSim's binary format; see export/oracle_general.rs.
//!
//! Requests of size 0 are skipped, as in libCacheSim; any other size counts as one
//! page. All references count as reads. The next uses in the file are ignored, and
//! computed where they are needed.

use std::io::{BufRead, ErrorKind};

use byteorder::{ByteOrder, LittleEndian as LE};

use super::{Accesses, Fault, ImportEntry, Importer, Parsed};

pub(super) const ENTRY: ImportEntry = ImportEntry {
    id: "oracleGeneral",
    about: "libCacheSim's binary format; no writes",
    make: |_| Box::new(OracleGeneral { records: 0 }),
};

const RECORD_SIZE: usize = 24;

struct OracleGeneral {
    records: u64,
}

impl Importer for OracleGeneral {
    fn read(&mut self, input: &mut dyn BufRead, to: &mut Accesses) -> Parsed<bool> {
        let mut record = [0; RECORD_SIZE];
        while !to.is_full() {
            if input.fill_buf()?.is_empty() {
                return Ok(false);
            }
            self.records += 1;
            input.read_exact(&mut record).map_err(|e| match e.kind() {
                ErrorKind::UnexpectedEof => Fault::Malformed {
                    place: format!("record {}", self.records),
                    why: "the file ends inside it".into(),
                },
                _ => Fault::Io(e),
            })?;
            if LE::read_u32(&record[12..]) != 0 {
                to.number(LE::read_u64(&record[4..]), false)?;
            }
        }
        Ok(true)
    }
}
