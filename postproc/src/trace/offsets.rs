//! Where the packets of a stream begin, whatever memory there is.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use byteorder::{ByteOrder, LittleEndian as LE};
use memmap2::{Mmap, UncheckedAdvice};

/// Offsets that go to the temporary file together.
const BLOCK: usize = 512;
const WORD: usize = size_of::<u64>();

/// Offsets of packets, in order; those of a long trace lie in a temporary file.
///
/// Memory holds half a megabyte for all streams, less than a block more for each, and
/// four bytes for each block in the file: one for 30 million bytes of trace.
#[derive(Clone, Debug, Default)]
pub struct Offsets {
    /// Which of the stream's packets are meant.
    first: usize,
    len: usize,
    /// The number of each block in the file.
    blocks: Arc<[u32]>,
    spilled: Option<Arc<Mmap>>,
    /// Those that are in no block.
    tail: Arc<[u64]>,
}

impl Offsets {
    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where packet `i` begins, in bytes.
    pub fn get(&self, i: usize) -> Option<u64> {
        if i >= self.len {
            return None;
        }
        let i = self.first + i;
        let (block, part) = (i / BLOCK, i % BLOCK);
        let Some(&number) = self.blocks.get(block) else {
            return self.tail.get(i - self.blocks.len() * BLOCK).copied();
        };
        let at = (number as usize * BLOCK + part) * WORD;
        let word = self.spilled.as_ref()?.get(at..at + WORD)?;
        Some(LE::read_u64(word))
    }

    /// The first.
    pub fn first(&self) -> Option<u64> {
        self.get(0)
    }

    /// The last.
    pub fn last(&self) -> Option<u64> {
        self.get(self.len.checked_sub(1)?)
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.len).map_while(|i| self.get(i))
    }

    /// How many come before the first that `below` is not true of; it must be true
    /// of none after that.
    pub fn partition_point(&self, mut below: impl FnMut(u64) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(middle).is_some_and(&mut below) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// `len` of them from `first` on, or those that there are.
    #[must_use]
    pub fn slice(&self, first: usize, len: usize) -> Self {
        let first = first.min(self.len);
        Offsets {
            first: self.first + first,
            len: len.min(self.len - first),
            ..self.clone()
        }
    }

    /// Unmaps what was read of the temporary file.
    pub(crate) fn release(&self) {
        if let Some(map) = &self.spilled {
            // SAFETY: the mapping is of a file, shared and never written to: MADV_DONTNEED loses
            // nothing, the next access reads the same bytes from the file.
            let done = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
            // Only memory is at stake.
            let _ = done;
        }
    }
}

/// Takes the offsets of many streams, in any order among the streams.
pub(super) struct Spill {
    /// Offsets to hold in memory before the file is begun.
    memory: usize,
    held: usize,
    file: Option<File>,
    /// Blocks in the file.
    written: u32,
    /// There was no room: what is not in the file yet stays in memory.
    failed: bool,
}

/// One stream's offsets, as they come.
#[derive(Default)]
pub(super) struct Growing {
    blocks: Vec<u32>,
    tail: Vec<u64>,
}

impl Spill {
    /// Holds half a megabyte before it makes a file in the system's directory for
    /// temporary files. Without room there, memory has to do.
    pub fn new() -> Self {
        Self::after(1 << 16)
    }

    fn after(memory: usize) -> Self {
        Spill {
            memory,
            held: 0,
            file: None,
            written: 0,
            failed: false,
        }
    }

    /// Adds one more of a stream.
    pub fn push(&mut self, stream: &mut Growing, offset: u64) {
        stream.tail.push(offset);
        self.held += 1;
        if self.failed || self.held <= self.memory || stream.tail.len() < BLOCK {
            return;
        }
        let whole = stream.tail.len() / BLOCK * BLOCK;
        match self.write(&stream.tail[..whole]) {
            Ok(()) => {
                let blocks = (whole / BLOCK) as u32;
                stream.blocks.extend(self.written..self.written + blocks);
                self.written += blocks;
                stream.tail.drain(..whole);
                stream.tail.shrink_to(BLOCK);
                self.held -= whole;
            }
            Err(_) => self.failed = true,
        }
    }

    fn write(&mut self, offsets: &[u64]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self
                .file
                .insert(crate::unfinished::nameless_in(&std::env::temp_dir())?),
        };
        let mut bytes = vec![0; offsets.len() * WORD];
        LE::write_u64_into(offsets, &mut bytes);
        file.write_all(&bytes)
    }

    /// Ends the file, before any stream may be read.
    ///
    /// # Errors
    ///
    /// The file cannot be mapped.
    pub fn finish(self) -> io::Result<Option<Arc<Mmap>>> {
        let Some(file) = self.file.filter(|_| self.written > 0) else {
            return Ok(None);
        };
        // SAFETY: the file has no name and this process alone has it, which from
        // here on only reads it: no byte changes, and it gets no shorter.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Some(Arc::new(map)))
    }
}

impl Growing {
    /// All that were added, with the file that [`Spill::finish`] gave.
    pub fn finish(self, spilled: Option<&Arc<Mmap>>) -> Offsets {
        Offsets {
            first: 0,
            len: self.blocks.len() * BLOCK + self.tail.len(),
            blocks: self.blocks.into(),
            spilled: spilled.cloned(),
            tail: self.tail.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three streams of different density, held in memory and spilled at once or late.
    #[test]
    fn offsets_are_the_same_wherever_they_lie() {
        for memory in [0, 100, 3_000, 1 << 20] {
            let mut spill = Spill::after(memory);
            let mut streams: [Growing; 3] = Default::default();
            let mut expected: [Vec<u64>; 3] = Default::default();
            for i in 0..10_000u64 {
                let which = if i % 10 == 0 { 0 } else { 1 + i as usize % 2 };
                expected[which].push(i * 100);
                spill.push(&mut streams[which], i * 100);
            }
            let spilled = spill.finish().expect("room for a temporary file");
            assert_eq!(spilled.is_some(), memory < 10_000);
            let held: usize = streams.iter().map(|s| s.tail.len()).sum();
            assert!(held < memory + 3 * BLOCK, "{held} of {memory} held");
            for (stream, expected) in streams.into_iter().zip(expected) {
                let offsets = stream.finish(spilled.as_ref());
                assert_eq!(offsets.iter().collect::<Vec<_>>(), expected);
                assert_eq!(offsets.len(), expected.len());
                assert_eq!(offsets.last(), expected.last().copied());
                assert_eq!(offsets.get(expected.len()), None);
                for wanted in [0, 100, 512_000, 777_777, 2_000_000] {
                    let at = expected.partition_point(|&o| o < wanted);
                    assert_eq!(offsets.partition_point(|o| o < wanted), at);
                }
                let (first, len) = (500, expected.len() - 600);
                let part = offsets.slice(first, len);
                offsets.release();
                assert_eq!(
                    part.iter().collect::<Vec<_>>(),
                    expected[first..first + len]
                );
                assert_eq!(part.slice(20, 5).first(), Some(expected[first + 20]));
                assert_eq!(part.slice(len, 1).len(), 0);
            }
        }
    }

    /// No room for a file: memory has to do.
    #[test]
    fn offsets_stay_in_memory_without_a_file() {
        let mut spill = Spill::after(0);
        spill.failed = true;
        let mut stream = Growing::default();
        (0..2_000).for_each(|i| spill.push(&mut stream, i));
        assert!(spill.finish().expect("nothing to write").is_none());
        assert!(stream.finish(None).iter().eq(0..2_000));
    }
}
