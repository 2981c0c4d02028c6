//! The parts of x86-64 that the plugin must know: a few instructions, and page tables.

use crate::watch::{Question, Target};

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const ACCESSED: u64 = 1 << 5;
/// _PAGE_DIRTY, and _PAGE_SAVED_DIRTY of entries that are write-protected.
const DIRTY: u64 = 1 << 6 | 1 << 58;
const LEAF: u64 = 1 << 7;
const PROTNONE: u64 = 1 << 8;
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// The general register's number if the instruction is `mov %reg, %cr3`.
pub fn loads_table(code: &[u8]) -> Option<usize> {
    match *code {
        [0x0f, 0x22, modrm] if modrm & 0xf8 == 0xd8 => Some(usize::from(modrm & 7)),
        [0x41, 0x0f, 0x22, modrm] if modrm & 0xf8 == 0xd8 => Some(usize::from(modrm & 7) + 8),
        _ => None,
    }
}

/// The part of the TLB that an instruction flushes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// `mov %reg, %cr4`: all of it, if it changes certain bits. The kernel has no
    /// other reason to write it once it has booted.
    All,
    /// `invlpg (%reg)`: the page at the address in the register of this number.
    Page(usize),
}

/// The part of the TLB that the instruction flushes, if it is a flush. [`loads_table`] is for
/// instructions that load another page table.
pub fn flushes(code: &[u8]) -> Option<Flush> {
    let (code, high) = match code {
        [0x41, rest @ ..] => (rest, 8),
        _ => (code, 0),
    };
    match *code {
        [0x0f, 0x22, modrm] if modrm & 0xf8 == 0xe0 => Some(Flush::All),
        // Neither a displacement nor an index follows.
        [0x0f, 0x01, modrm] if modrm & 0xf8 == 0x38 && !matches!(modrm & 7, 4 | 5) => {
            Some(Flush::Page(usize::from(modrm & 7) + high))
        }
        _ => None,
    }
}

/// Whether the instruction returns from a function.
pub fn is_return(code: &[u8]) -> bool {
    matches!(code, [0xc3] | [0xf3, 0xc3] | [0xc2, _, _])
}

/// An entry of the lowest page tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(u64);

impl Entry {
    /// Finds the entry of an address in tables of `levels` levels. `word` reads
    /// eight bytes at a physical address.
    ///
    /// # Errors
    ///
    /// Those of `word`.
    pub fn find<E>(
        levels: u32,
        target: &Target,
        word: impl Fn(u64) -> Result<u64, E>,
    ) -> Result<Self, E> {
        let mut table = target.table;
        for level in (0..levels).rev() {
            let index = target.addr >> (12 + 9 * level) & 0x1ff;
            let entry = word(table + index * 8)?;
            if level == 0 || entry & (PRESENT | LEAF) == PRESENT | LEAF {
                return Ok(Entry(entry));
            }
            if entry & PRESENT == 0 {
                break;
            }
            table = entry & FRAME;
        }
        Ok(Entry(0))
    }

    /// An entry's value.
    pub fn new(value: u64) -> Self {
        Entry(value)
    }

    /// Whether the CPU uses it.
    pub fn is_accessible(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// Whether it allows stores.
    pub fn is_writable(self) -> bool {
        self.0 & WRITABLE != 0
    }

    /// Whether its page was looked up.
    pub fn is_accessed(self) -> bool {
        self.0 & ACCESSED != 0
    }

    /// Whether its page was written.
    pub fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// The physical address of its page.
    pub fn frame(self) -> u64 {
        self.0 & FRAME
    }

    /// Answers a question about the entry.
    pub fn answer(self, target: &Target) -> bool {
        let mapped =
            self.0 & (PRESENT | PROTNONE) != 0 && (!target.write || self.0 & WRITABLE != 0);
        match target.question {
            Question::Mapped => mapped,
            Question::Accessible => mapped && self.0 & PRESENT != 0,
            Question::Accessed => self.0 & (PRESENT | ACCESSED) == PRESENT | ACCESSED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn instructions() {
        assert_eq!(loads_table(&[0x0f, 0x22, 0xd8]), Some(0));
        assert_eq!(loads_table(&[0x0f, 0x22, 0xde]), Some(6));
        assert_eq!(loads_table(&[0x41, 0x0f, 0x22, 0xdf]), Some(15));
        // mov %rax, %cr4; mov %cr3, %rax; something longer.
        assert_eq!(loads_table(&[0x0f, 0x22, 0xe0]), None);
        assert_eq!(loads_table(&[0x0f, 0x20, 0xd8]), None);
        assert_eq!(loads_table(&[0x0f, 0x22, 0xd8, 0x90]), None);
        assert_eq!(flushes(&[0x0f, 0x22, 0xe0]), Some(Flush::All));
        assert_eq!(flushes(&[0x0f, 0x01, 0x3f]), Some(Flush::Page(7)));
        assert_eq!(flushes(&[0x41, 0x0f, 0x01, 0x38]), Some(Flush::Page(8)));
        // mov %rax, %cr3; swapgs; invlpg (%rip).
        assert_eq!(flushes(&[0x0f, 0x22, 0xd8]), None);
        assert_eq!(flushes(&[0x0f, 0x01, 0xf8]), None);
        assert_eq!(flushes(&[0x0f, 0x01, 0x3d, 0, 0, 0, 0]), None);
        assert!(is_return(&[0xc3]) && is_return(&[0xf3, 0xc3]));
        assert!(!is_return(&[0xc3, 0xc3]) && !is_return(&[]));
    }

    fn target(write: bool) -> Target {
        Target {
            table: 0x1000,
            addr: 0x7f12_3456_7000,
            write,
            question: Question::Mapped,
        }
    }

    /// Tables for [`target`] that end in `entry`.
    fn find(levels: u32, entry: u64) -> Entry {
        let mut words = HashMap::new();
        let mut table = 0x1000;
        for level in (0..levels).rev() {
            let at = table + (target(false).addr >> (12 + 9 * level) & 0x1ff) * 8;
            table += 0x1000;
            words.insert(at, if level == 0 { entry } else { table | 0x67 });
        }
        Entry::find(levels, &target(false), |at| {
            words.get(&at).copied().ok_or(at)
        })
        .unwrap()
    }

    #[test]
    fn entries_are_found_and_judged() {
        // Entry; mapped for reading, for writing; accessible for both.
        for (entry, want) in [
            (0, [false; 4]),
            (0x8000_0000_0000_5067, [true; 4]),
            (0x5065, [true, false, true, false]),
            // Disabled by the tracer: writable, then not.
            (0xf_ffff_ffff_a166, [true, true, false, false]),
            (0xf_ffff_ffff_a164, [true, false, false, false]),
            // In swap, where neither bit is ever set.
            (0x7e02, [false; 4]),
        ] {
            for levels in [4, 5] {
                let e = find(levels, entry);
                let ask = |question, write| {
                    e.answer(&Target {
                        question,
                        ..target(write)
                    })
                };
                let got = [
                    ask(Question::Mapped, false),
                    ask(Question::Mapped, true),
                    ask(Question::Accessible, false),
                    ask(Question::Accessible, true),
                ];
                assert_eq!(got, want, "{entry:#x}");
            }
        }
    }

    #[test]
    fn accessed_bits() {
        for (entry, want) in [(0, false), (0x5047, false), (0x5067, true), (0x5166, false)] {
            let ask = Target {
                question: Question::Accessed,
                ..target(false)
            };
            assert_eq!(find(4, entry).answer(&ask), want, "{entry:#x}");
        }
    }

    #[test]
    fn tables_that_end_early_hold_nothing() {
        let e = Entry::find(4, &target(false), |_| Ok::<_, ()>(0)).unwrap();
        assert!(!e.answer(&target(false)));
        assert_eq!(Entry::find(4, &target(false), Err), Err(0x17f0));
    }

    #[test]
    fn a_large_page_is_an_entry() {
        let e = Entry::find(4, &target(false), |_| Ok::<_, ()>(0xe7)).unwrap();
        assert!(e.answer(&Target {
            question: Question::Accessible,
            ..target(true)
        }));
    }
}
