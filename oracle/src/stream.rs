//! The full stream: every reference that the plugin saw, in order.
//!
//! A reference consists of the stay that it falls in (the number of the model's record),
//! and whether it is a store. So the page of each reference is the page of a record of
//! the trace, and both streams give a page the same name: that of the trace. Marks between
//! references say what time it is, and whether the kernel or a program makes the next ones.
//!
//! No reference is left out, so the stream is exact for every policy, also for those that
//! measure time or count references.
//!
//! A byte contains one of 127 slots and, in its highest bit, whether the reference is a
//! store. The slot of a stay is its number modulo 127. If the reference is not to the
//! last stay of its slot, slot 127 comes first, followed by the number of the stay plus
//! four, with seven bits in each byte, the lowest first. Smaller numbers are no stays:
//!
//! - 0 ends the stream. After it comes the number of references in 8 bytes, little-endian.
//! - 1 is a time. After it comes, in the same form as a number, how many ns have passed since the
//!   last time, or since 0.
//! - 2: a program makes the next references, as it does those at the beginning.
//! - 3: the kernel makes the next references.

use std::io::{self, BufRead, Write};

/// First bytes of a stream.
pub const MAGIC: [u8; 8] = *b"VMTstrm3";

const SLOTS: usize = 127;
const OTHER: u8 = 127;
const STORE: u8 = 0x80;
/// Number of bytes that are written at once.
const CHUNK: usize = 1 << 16;
/// Numbers that are no stays.
const END: u64 = 0;
const TIME: u64 = 1;
const PROGRAM: u64 = 2;
const KERNEL: u64 = 3;
/// Of stays, the first number.
const STAYS: u64 = 4;
/// How much a time must differ from the last one to be written, ns. Some hundred references are made in
/// it.
const STEP: u64 = 1000;

/// What a stream consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item {
    /// A reference to the page of a stay.
    Reference {
        /// The number of the stay.
        stay: usize,
        /// It is a store.
        store: bool,
        /// The kernel makes it.
        kernel: bool,
    },
    /// The references from here on are not before this time, ns.
    Time(u64),
}

/// Writes a stream.
pub struct Writer<W> {
    out: W,
    /// The first error of the writer.
    failed: Option<io::Error>,
    bytes: Vec<u8>,
    /// The last stay of each slot, as a number.
    slots: [u64; SLOTS],
    references: u64,
    /// The last time that was written.
    time: u64,
    /// The kernel made the last reference.
    kernel: bool,
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
            time: 0,
            kernel: false,
        }
    }

    /// Says when the next references are made, by the guest's clock (ns), and whether by the kernel.
    #[inline]
    pub fn at(&mut self, time: u64, kernel: bool) {
        if time >= self.time + STEP {
            self.bytes.push(OTHER);
            self.number(TIME);
            self.number(time - self.time);
            self.time = time;
        }
        if kernel != self.kernel {
            self.bytes.push(OTHER);
            self.number(if kernel { KERNEL } else { PROGRAM });
            self.kernel = kernel;
        }
    }

    /// Adds a reference. [`Writer::finish`] reports errors.
    #[inline]
    pub fn reference(&mut self, stay: usize, store: bool) {
        let stay = stay as u64;
        self.references += 1;
        let store = if store { STORE } else { 0 };
        let slot = (stay % SLOTS as u64) as usize;
        if self.slots[slot] == stay + STAYS {
            self.bytes.push(slot as u8 | store);
        } else {
            self.slots[slot] = stay + STAYS;
            self.bytes.push(OTHER | store);
            self.number(stay + STAYS);
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
        self.number(END);
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
    input: impl BufRead,
    mut each: impl FnMut(usize, bool) -> Result<(), String>,
) -> Result<u64, String> {
    read_all(input, |item| match item {
        Item::Reference { stay, store, .. } => each(stay, store),
        Item::Time(_) => Ok(()),
    })
}

/// Reads a stream to its end, with its marks. Returns the number of references.
///
/// # Errors
///
/// As [`read`].
pub fn read_all(
    mut input: impl BufRead,
    mut each: impl FnMut(Item) -> Result<(), String>,
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
    let (mut time, mut kernel) = (0u64, false);
    loop {
        let head = bytes.next()?;
        let slot = head & !STORE;
        let stay = if slot == OTHER {
            let number = bytes.number()?;
            match number {
                END => break,
                TIME => {
                    time = time.saturating_add(bytes.number()?);
                    each(Item::Time(time))?;
                    continue;
                }
                PROGRAM | KERNEL => {
                    kernel = number == KERNEL;
                    continue;
                }
                _ => {}
            }
            slots[((number - STAYS) % SLOTS as u64) as usize] = number;
            number - STAYS
        } else {
            slots[usize::from(slot)]
                .checked_sub(STAYS)
                .ok_or("a slot is referenced that holds nothing")?
        };
        references += 1;
        let stay = usize::try_from(stay).map_err(|e| e.to_string())?;
        let store = head & STORE != 0;
        each(Item::Reference {
            stay,
            store,
            kernel,
        })?;
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

    fn told(bytes: &[u8]) -> Result<Vec<(usize, bool)>, String> {
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
        assert_eq!(told(&written(&references)), Ok(references));
    }

    #[test]
    fn times_and_modes_are_marks() {
        let mut writer = Writer::new(Vec::new());
        // Time does not go back, and small steps are left out.
        for (time, kernel, stay) in [
            (5_000, false, 0),
            (5_100, false, 1),
            (4_000, true, 0),
            (6_000, true, 128),
            (1 << 40, false, 1),
        ] {
            writer.at(time, kernel);
            writer.reference(stay, kernel);
        }
        let mut got = Vec::new();
        let bytes = writer.finish().expect("memory takes all");
        let read = read_all(&bytes[..], |item| {
            got.push(item);
            Ok(())
        });
        let reference = |stay, kernel| Item::Reference {
            stay,
            store: kernel,
            kernel,
        };
        let want = [
            Item::Time(5_000),
            reference(0, false),
            reference(1, false),
            reference(0, true),
            Item::Time(6_000),
            reference(128, true),
            Item::Time(1 << 40),
            reference(1, false),
        ];
        assert_eq!((read, &got[..]), (Ok(5), &want[..]));
        let plain = told(&bytes).expect("marks are passed over");
        assert_eq!(plain[..2], [(0, false), (1, false)]);
        assert_eq!(plain.len(), 5);
    }

    #[test]
    fn runs_are_kept() {
        let references: Vec<_> = (0..40).map(|i| (i / 10, i % 7 < 3)).collect();
        assert_eq!(told(&written(&references)), Ok(references));
    }

    #[test]
    fn every_shorter_stream_is_refused() {
        let whole = written(&[(0, false), (1, true), (128, false), (1, false), (0, true)]);
        for len in 0..whole.len() {
            assert!(told(&whole[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut empty_slot = MAGIC.to_vec();
        empty_slot.push(5);
        assert!(told(&empty_slot).is_err());
        let mut endless = MAGIC.to_vec();
        endless.extend([0xff; 16]);
        assert!(told(&endless).is_err());
        let mut wrong = written(&[(0, false), (1, true)]);
        let last = wrong.len() - 8;
        wrong[last] = 3;
        assert!(told(&wrong).unwrap_err().contains("announced"));
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
