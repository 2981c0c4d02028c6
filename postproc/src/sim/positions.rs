//! An ordered set of small numbers.

const WORD: usize = 64;

/// Positions of a window, as bits. The bits of each higher level show which words of the
/// level below are not empty.
///
/// Needs a bit a position, and a 63rd of that.
#[derive(Clone)]
pub(super) struct Positions {
    levels: Vec<Vec<u64>>,
}

impl Positions {
    /// Empty; for positions below `window`.
    pub fn new(window: usize) -> Self {
        Positions {
            levels: levels(window, WORD),
        }
    }

    /// Adds a position.
    #[inline]
    pub fn insert(&mut self, position: usize) {
        let mut at = position;
        for level in &mut self.levels {
            let word = &mut level[at / WORD];
            let was_empty = *word == 0;
            *word |= 1 << (at % WORD);
            if !was_empty {
                return;
            }
            at /= WORD;
        }
    }

    /// Removes a position.
    #[inline]
    pub fn remove(&mut self, position: usize) {
        let mut at = position;
        for level in &mut self.levels {
            let word = &mut level[at / WORD];
            *word &= !(1 << (at % WORD));
            if *word != 0 {
                return;
            }
            at /= WORD;
        }
    }

    /// Whether a position is in the set.
    #[inline]
    pub fn contains(&self, position: usize) -> bool {
        self.levels[0][position / WORD] >> (position % WORD) & 1 != 0
    }

    /// The largest position.
    #[inline]
    pub fn last(&self) -> Option<usize> {
        // The highest level has one word.
        if *self.levels.last()?.first()? == 0 {
            return None;
        }
        self.at_or_before(self.levels[0].len() * WORD - 1)
    }

    /// The same positions, for a larger window.
    pub fn widened(&self, window: usize) -> Self {
        let mut wider = Positions::new(window);
        for (i, &word) in self.levels[0].iter().enumerate() {
            let mut bits = word;
            while bits != 0 {
                wider.insert(i * WORD + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
        wider
    }

    /// The largest position that is not larger than this one.
    #[inline]
    pub fn at_or_before(&self, position: usize) -> Option<usize> {
        let mut at = position;
        let mut level = 0;
        // Up, until a word has something before; the first level counts the
        // position itself.
        let mut upto = u64::MAX >> (WORD - 1 - at % WORD);
        let bits = loop {
            let bits = self.levels[level].get(at / WORD)? & upto;
            if bits != 0 {
                break bits;
            }
            at /= WORD;
            level += 1;
            if level == self.levels.len() {
                return None;
            }
            upto = (1 << (at % WORD)) - 1;
        };
        // And down again, always to the last.
        let last = |bits: u64| WORD - 1 - bits.leading_zeros() as usize;
        let mut found = at / WORD * WORD + last(bits);
        while level > 0 {
            level -= 1;
            found = found * WORD + last(self.levels[level][found]);
        }
        Some(found)
    }
}

/// An empty tree over so many leaves: a node for each `fanout` of what is below it, from
/// the leaves' parents up to the root.
pub(super) fn levels<Node: Clone + Default>(leaves: usize, fanout: usize) -> Vec<Vec<Node>> {
    let mut levels = Vec::new();
    let mut count = leaves;
    loop {
        count = count.div_ceil(fanout);
        levels.push(vec![Node::default(); count]);
        if count <= 1 {
            return levels;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn as_a_tree_set() {
        const WINDOW: u64 = 9000;
        let mut positions = Positions::new(WINDOW as usize);
        let mut tree = BTreeSet::new();
        let mut random = 0x2545_f491_4f6c_dd1du64;
        for step in 0..60_000u64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = (random >> 20) % WINDOW;
            // Full half of the time, nearly empty the other half.
            if random % 8 < if step % 20_000 < 10_000 { 6 } else { 1 } {
                positions.insert(at as usize);
                tree.insert(at as usize);
            } else {
                positions.remove(at as usize);
                tree.remove(&(at as usize));
            }
            let query = ((random >> 40) % WINDOW) as usize;
            let expected = tree.range(..=query).next_back().copied();
            assert_eq!(positions.at_or_before(query), expected);
            assert_eq!(positions.contains(query), tree.contains(&query));
            assert_eq!(positions.last(), tree.last().copied());
        }
    }
}
