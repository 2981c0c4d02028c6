//! What `watch-pages` leaves: a file of entries of 16 bytes, in the order in which things happened.

use std::fs::File;
use std::io::{BufWriter, Error, Result, Write};

/// First bytes of the file.
pub const MAGIC: [u8; 16] = *b"kVMTrace watch 1";

const ENTRY: usize = 16;

/// Bits of an entry's second number: a page's number, a process's, and what the entry says.
const VPN_BITS: u32 = 36;
const PID_BITS: u32 = 22;

/// A page of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Used {
    /// By CLOCK_MONOTONIC, ns.
    pub time: u64,
    /// The process.
    pub pid: u32,
    /// The page's address by the size of a page.
    pub vpn: u64,
}

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// The page is used at this time.
    Now(Used),
    /// The page was used at some moment of the interval whose end comes next in the file, and before this
    /// time.
    Within(Used),
    /// An interval has ended at this time, ns, and the next one has begun.
    End(u64),
}

impl Entry {
    fn bytes(self) -> [u8; ENTRY] {
        let (kind, used) = match self {
            Entry::Now(used) => (0, used),
            Entry::Within(used) => (1, used),
            Entry::End(time) => {
                let none = Used {
                    time,
                    pid: 0,
                    vpn: 0,
                };
                (2, none)
            }
        };
        let what = (kind << PID_BITS | u64::from(used.pid)) << VPN_BITS | used.vpn;
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&used.time.to_le_bytes());
        bytes[8..].copy_from_slice(&what.to_le_bytes());
        bytes
    }

    fn of(bytes: &[u8; ENTRY]) -> Option<Self> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (time, what) = (word(0), word(8));
        let used = Used {
            time,
            pid: (what >> VPN_BITS) as u32 & ((1 << PID_BITS) - 1),
            vpn: what & ((1 << VPN_BITS) - 1),
        };
        match what >> (VPN_BITS + PID_BITS) {
            0 => Some(Entry::Now(used)),
            1 => Some(Entry::Within(used)),
            2 => Some(Entry::End(time)),
            _ => None,
        }
    }
}

/// Reads a file's entries.
///
/// # Errors
///
/// If it is no such file, or was cut short.
pub fn read(file: &[u8]) -> Result<Vec<Entry>> {
    let wrong = |what: &str| Error::other(format!("the reports of watch-pages {what}"));
    let entries = file
        .strip_prefix(&MAGIC)
        .ok_or_else(|| wrong("begin with something else"))?;
    let mut chunks = entries.chunks_exact(ENTRY);
    let all = chunks
        .by_ref()
        .map(|chunk| <&[u8; ENTRY]>::try_from(chunk).ok().and_then(Entry::of));
    let all: Option<Vec<Entry>> = all.collect();
    if !chunks.remainder().is_empty() {
        return Err(wrong("were cut short"));
    }
    all.ok_or_else(|| wrong("have an entry of an unknown kind"))
}

/// Writes a file.
pub struct Writer {
    file: BufWriter<File>,
}

impl Writer {
    /// A new file at `path`.
    ///
    /// # Errors
    ///
    /// The system's error, with the file's name.
    pub fn create(path: &str) -> Result<Self> {
        let named = |e: Error| Error::new(e.kind(), format!("{path}: {e}"));
        let mut file = BufWriter::new(File::create(path).map_err(named)?);
        file.write_all(&MAGIC).map_err(named)?;
        Ok(Writer { file })
    }

    /// Adds an entry.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn add(&mut self, entry: Entry) -> Result<()> {
        self.file.write_all(&entry.bytes())
    }

    /// Writes what is left.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn finish(mut self) -> Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_what_was_written() {
        let used = Used {
            time: 1 << 60 | 7,
            pid: (1 << PID_BITS) - 1,
            vpn: (1 << 35) - 1,
        };
        let entries = [Entry::Now(used), Entry::Within(used), Entry::End(u64::MAX)];
        let mut file = MAGIC.to_vec();
        entries.iter().for_each(|e| file.extend(e.bytes()));
        assert_eq!(read(&file).ok().as_deref(), Some(&entries[..]));
        // Not whole, of another kind, and another file.
        assert!(read(&file[..file.len() - 1]).is_err());
        let last = file.len() - 1;
        file[last] = 0xff;
        assert!(read(&file).is_err());
        assert!(read(b"kVMTrace").is_err());
    }
}
