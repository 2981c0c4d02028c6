//! The marks of a chunk: at the last reference of each page, and at each hole.
//!
//! Marks are bits of words. For each word, two 16-bit numbers give the marks before it: those of
//! its group of 32 words, and those of the groups before. So counting reads a word and two
//! numbers, and a mark that is taken away changes two rows of 32 numbers, which compilers turn
//! into vector code. Marks are added at the end only, so that no number changes then: the numbers
//! of a word are set when its first mark is added.

const WORD: usize = 64;
/// Words of a group, and groups.
pub(super) const ROW: usize = 32;

/// Numbers behind the `i`th: `BEHIND[i][j]` is 1 if `j > i`.
const BEHIND: [[u16; ROW]; ROW] = {
    let mut behind = [[0; ROW]; ROW];
    let mut i = 0;
    while i < ROW {
        let mut j = i + 1;
        while j < ROW {
            behind[i][j] = 1;
            j += 1;
        }
        i += 1;
    }
    behind
};

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Row([u16; ROW]);

impl Row {
    /// One less for each number behind the `i`th.
    #[inline]
    fn shrink_behind(&mut self, i: usize) {
        for (count, one) in self.0.iter_mut().zip(&BEHIND[i]) {
            *count = count.wrapping_sub(*one);
        }
    }
}

/// Marks of at most 65,536 positions.
pub(super) struct Marks {
    bits: Vec<u64>,
    /// For each word of a group, the marks before it in the group.
    words: Vec<Row>,
    /// For each group, the marks before it.
    groups: Row,
    count: u16,
}

impl Marks {
    /// Nothing marked.
    pub fn new(positions: usize) -> Self {
        let words = positions.div_ceil(WORD);
        Marks {
            bits: vec![0; words],
            words: vec![Row([0; ROW]); words.div_ceil(ROW)],
            groups: Row([0; ROW]),
            count: 0,
        }
    }

    /// Takes all marks away; they are at positions below `end`.
    pub fn reset(&mut self, end: usize) {
        self.bits[..end.div_ceil(WORD)].fill(0);
        self.count = 0;
    }

    /// Adds a mark at a position; before, all smaller positions were added.
    #[inline]
    pub fn push(&mut self, position: usize) {
        let word = position / WORD;
        if position % WORD == 0 {
            let (group, lane) = (word / ROW, word % ROW);
            if lane == 0 {
                self.groups.0[group] = self.count;
            }
            let in_group = self.count.wrapping_sub(self.groups.0[group]);
            self.words[group].0[lane] = in_group;
        }
        self.bits[word] |= 1 << (position % WORD);
        // With 65,536 marks, no number is set any more.
        self.count = self.count.wrapping_add(1);
    }

    /// How many marks lie before a position.
    #[inline]
    pub fn before(&self, position: usize) -> u32 {
        let (word, bit) = (position / WORD, 1u64 << (position % WORD));
        let (group, lane) = (word / ROW, word % ROW);
        let in_group = u32::from(self.words[group].0[lane]);
        let in_word = (self.bits[word] & (bit - 1)).count_ones();
        u32::from(self.groups.0[group % ROW]) + in_group + in_word
    }

    /// Takes a mark away; gives how many marks lie before it.
    #[inline]
    pub fn clear(&mut self, position: usize) -> u32 {
        let before = self.before(position);
        let word = position / WORD;
        self.bits[word] &= !(1 << (position % WORD));
        self.words[word / ROW].shrink_behind(word % ROW);
        self.groups.shrink_behind(word / ROW % ROW);
        self.count = self.count.wrapping_sub(1);
        before
    }
}
