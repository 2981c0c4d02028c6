//! The full stream: every reference that the plugin saw, in order.
//!
//! A reference consists of the stay that it falls in (the number of the model's record),
//! and whether it is a store. So the page of each reference is the page of a record of
//! the trace, and both streams give a page the same name: that of the trace.
//!
//! No reference is left out, so the stream is exact for every policy, also for those that
//! measure time or count references.
//!
//! A byte contains one of 127 slots and, in its highest bit, whether the reference is a
//! store. The slot of a stay is its number modulo 127. If the reference is not to the
//! last stay of its slot, slot 127 comes first, followed by the number of the stay plus
//! one, with seven bits in each byte, the lowest first. The number 0 ends the stream.
//! After it comes the number of references in 8 bytes, little-endian.

use std::io::{self, BufRead, Write};

/// First bytes of a stream.
pub const MAGIC: [u8; 8] = *b"VMTstrm2";

const SLOTS: usize = 127;
const OTHER: u8 = 127;
const STORE: u8 = 0x80;
/// Number of bytes that are written at once.
const CHUNK: usize = 1 << 16;

/// Writes a stream.
pub struct Writer<W> {
    out: W,
    /// The first error of the writer.
    failed: Option<io::Error>,
    bytes: Vec<u8>,
    /// The last stay of each slot, plus one.
    slots: [u64; SLOTS],
    references: u64,
}

impl<W: Write> Writer<W> {
    /// An empty stream.
    pub fn new(out: W) -> Self {
        Writer {
            out,
            failed: None,
            bytes: MAGIC.to_vec(),
            slots: [0; SLOTS],
            references: 0,
        }
    }

    /// Adds a reference. [`Writer::finish`] reports errors.
    #[inline]
    pub fn reference(&mut self, stay: usize, store: bool) {
        let stay = stay as u64;
        self.references += 1;
        let store = if store { STORE } else { 0 };
        let slot = (stay % SLOTS as u64) as usize;
        if self.slots[slot] == stay + 1 {
            self.bytes.push(slot as u8 | store);
        } else {
            self.slots[slot] = stay + 1;
            self.bytes.push(OTHER | store);
            self.number(stay + 1);
        }
        if self.bytes.len() >= CHUNK {
            self.flush();
        }
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn flush(&mut self) {
        if self.failed.is_none() {
            self.failed = self.out.write_all(&self.bytes).err();
        }
        self.bytes.clear();
    }

    /// Ends the stream.
    ///
    /// # Errors
    ///
    /// The first of the writer's.
    pub fn finish(mut self) -> io::Result<W> {
        self.bytes.push(OTHER);
        self.number(0);
        self.bytes.extend(self.references.to_le_bytes());
        self.flush();
        match self.failed {
            Some(e) => Err(e),
            None => Ok(self.out),
        }
    }
}

/// Reads a stream to its end. `each` takes the stay of each reference, and whether the
/// reference is a store. Returns the number of references.
///
/// # Errors
///
/// If the stream is too short or invalid, and the errors of `each`.
pub fn read(
    mut input: impl BufRead,
    mut each: impl FnMut(usize, bool) -> Result<(), String>,
) -> Result<u64, String> {
    let mut magic = [0; 8];
    input
        .read_exact(&mut magic)
        .map_err(|e| format!("the stream can't be read: {e}"))?;
    if magic != MAGIC {
        return Err("not a stream of references".into());
    }
    let mut bytes = Bytes { input, at: 0 };
    let mut slots = [0u64; SLOTS];
    let mut references = 0;
    loop {
        let head = bytes.next()?;
        let slot = head & !STORE;
        let stay = if slot == OTHER {
            let number = bytes.number()?;
            if number == 0 {
                break;
            }
            slots[((number - 1) % SLOTS as u64) as usize] = number;
            number - 1
        } else {
            slots[usize::from(slot)]
                .checked_sub(1)
                .ok_or("a slot is referenced that holds nothing")?
        };
        references += 1;
        let stay = usize::try_from(stay).map_err(|e| e.to_string())?;
        each(stay, head & STORE != 0)?;
    }
    let mut announced = [0; 8];
    for byte in &mut announced {
        *byte = bytes.next()?;
    }
    match u64::from_le_bytes(announced) {
        announced if announced == references => Ok(references),
        announced => Err(format!(
            "{references} references where {announced} are announced"
        )),
    }
}

struct Bytes<R> {
    input: R,
    /// Of the reader's buffer, what is used up.
    at: usize,
}

impl<R: BufRead> Bytes<R> {
    #[inline]
    fn next(&mut self) -> Result<u8, String> {
        let failed = |e: io::Error| format!("the stream can't be read: {e}");
        let buffer = self.input.fill_buf().map_err(failed)?;
        let byte = *buffer
            .get(self.at)
            .ok_or("the stream ends before its time")?;
        self.at += 1;
        if self.at == buffer.len() {
            self.input.consume(self.at);
            self.at = 0;
        }
        Ok(byte)
    }

    fn number(&mut self) -> Result<u64, String> {
        let mut number = 0u64;
        for shift in (0..63).step_by(7) {
            let byte = self.next()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number of the stream is too long".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(references: &[(usize, bool)]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        for &(stay, store) in references {
            writer.reference(stay, store);
        }
        writer.finish().expect("memory takes all")
    }

    fn read_all(bytes: &[u8]) -> Result<Vec<(usize, bool)>, String> {
        let mut got = Vec::new();
        let references = read(bytes, |stay, store| {
            got.push((stay, store));
            Ok(())
        })?;
        assert_eq!(references, got.len() as u64);
        Ok(got)
    }

    #[test]
    fn what_is_written_is_read() {
        // Slots are taken away from one another, and numbers are long.
        let references: Vec<_> = (0..5000usize)
            .map(|i| {
                let stay = i * i % 977 * if i % 3 == 0 { 1 } else { 1 << 22 };
                (stay, i % 5 == 0)
            })
            .collect();
        assert_eq!(read_all(&written(&references)), Ok(references));
    }

    #[test]
    fn runs_are_kept() {
        let references: Vec<_> = (0..40).map(|i| (i / 10, i % 7 < 3)).collect();
        assert_eq!(read_all(&written(&references)), Ok(references));
    }

    #[test]
    fn every_shorter_stream_is_refused() {
        let whole = written(&[(0, false), (1, true), (128, false), (1, false), (0, true)]);
        for len in 0..whole.len() {
            assert!(read_all(&whole[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut empty_slot = MAGIC.to_vec();
        empty_slot.push(5);
        assert!(read_all(&empty_slot).is_err());
        let mut endless = MAGIC.to_vec();
        endless.extend([0xff; 16]);
        assert!(read_all(&endless).is_err());
        let mut wrong = written(&[(0, false), (1, true)]);
        let last = wrong.len() - 8;
        wrong[last] = 3;
        assert!(read_all(&wrong).unwrap_err().contains("announced"));
    }

    #[test]
    fn a_failing_writer_is_told_of() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::other("full"))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writer = Writer::new(Full);
        for i in 0..CHUNK {
            writer.reference(i, false);
        }
        assert!(writer.finish().is_err());
    }
}
