//! Many lists of blocks in one temporary file.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::ExportContext;
use crate::error::{OutputContext, Result};

const SCRATCH: &str = "temporary file";
/// Before each block: where the list's next is, 0 if there is none, and its length.
const HEAD: usize = 16;

/// Blocks appended to lists that are read back one list after the other.
///
/// Memory holds two numbers a list, however long it is: blocks are chained in
/// the file.
pub(super) struct Spool {
    file: File,
    end: u64,
    /// First and last block.
    lists: BTreeMap<u32, (u64, u64)>,
}

impl Spool {
    pub fn new(context: &ExportContext<'_>) -> Result<Self> {
        let file = crate::unfinished::nameless_in(context.scratch)
            .writing(format!("{SCRATCH} in {}", context.scratch.display()))?;
        Ok(Spool {
            file,
            // 0 stands for no block.
            end: HEAD as u64,
            lists: BTreeMap::new(),
        })
    }

    /// Adds a block at a list's end.
    pub fn push(&mut self, list: u32, block: &[u8]) -> Result<()> {
        let at = self.end;
        let mut bytes = vec![0; HEAD];
        bytes[8..].copy_from_slice(&(block.len() as u64).to_le_bytes());
        bytes.extend_from_slice(block);
        self.file.write_all_at(&bytes, at).writing(SCRATCH)?;
        self.end += bytes.len() as u64;
        let (_, last) = self.lists.entry(list).or_insert((at, at));
        if *last != at {
            self.file
                .write_all_at(&at.to_le_bytes(), *last)
                .writing(SCRATCH)?;
            *last = at;
        }
        Ok(())
    }

    /// All lists, by number.
    pub fn lists(&self) -> Vec<u32> {
        self.lists.keys().copied().collect()
    }

    /// Reads a list's blocks in order.
    pub fn read(&self, list: u32, mut visit: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut at = self.lists.get(&list).map_or(0, |list| list.0);
        let mut block = Vec::new();
        while at != 0 {
            let (mut next, mut length) = ([0; 8], [0; 8]);
            self.file.read_exact_at(&mut next, at).writing(SCRATCH)?;
            self.file
                .read_exact_at(&mut length, at + 8)
                .writing(SCRATCH)?;
            block.resize(u64::from_le_bytes(length) as usize, 0);
            self.file
                .read_exact_at(&mut block, at + HEAD as u64)
                .writing(SCRATCH)?;
            visit(&block)?;
            at = u64::from_le_bytes(next);
        }
        Ok(())
    }
}
