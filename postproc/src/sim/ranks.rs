//! Numbers at positions, searched for a smaller one before.

const FANOUT: usize = 16;

/// Nothing at a position.
pub(super) const NONE: u32 = u32::MAX;

/// A number or nothing at each position of a window, and a tree of their minima.
///
/// Needs 4.3 bytes a position.
#[derive(Clone)]
pub(super) struct Ranks {
    /// From the numbers up to the root; each a whole number of nodes.
    levels: Vec<Vec<[u32; FANOUT]>>,
}

impl Ranks {
    /// Nothing anywhere; for positions below `window`.
    pub fn new(window: usize) -> Self {
        let mut levels = Vec::new();
        let mut count = window;
        loop {
            count = count.div_ceil(FANOUT);
            levels.push(vec![[NONE; FANOUT]; count]);
            if count <= 1 {
                return Ranks { levels };
            }
        }
    }

    /// What is at a position.
    #[inline]
    pub fn get(&self, position: usize) -> u32 {
        self.levels[0][position / FANOUT][position % FANOUT]
    }

    /// Puts a number, or nothing, at a position.
    #[inline]
    pub fn set(&mut self, position: usize, rank: u32) {
        let (mut at, mut least) = (position, rank);
        for level in &mut self.levels {
            let node = &mut level[at / FANOUT];
            let before = least_of(node);
            node[at % FANOUT] = least;
            least = least_of(node);
            if least == before {
                return;
            }
            at /= FANOUT;
        }
    }

    /// The last position before `end` with a number below `limit`.
    #[inline]
    pub fn last_below(&self, end: usize, limit: u32) -> Option<usize> {
        let mut at = end;
        for (height, level) in self.levels.iter().enumerate() {
            // Those of the node that come before.
            if let Some(node) = level.get(at / FANOUT) {
                let found = below(node, limit) & ((1 << (at % FANOUT)) - 1);
                if found != 0 {
                    let mut found = at / FANOUT * FANOUT + last(found);
                    for level in self.levels[..height].iter().rev() {
                        found = found * FANOUT + last(below(&level[found], limit));
                    }
                    return Some(found);
                }
            }
            at /= FANOUT;
        }
        None
    }
}

#[inline]
fn least_of(node: &[u32; FANOUT]) -> u32 {
    node.iter().fold(NONE, |least, &rank| least.min(rank))
}

/// A bit for each number below `limit`.
#[inline]
fn below(node: &[u32; FANOUT], limit: u32) -> u32 {
    let mut bits = 0;
    for (lane, &rank) in node.iter().enumerate() {
        bits |= u32::from(rank < limit) << lane;
    }
    bits
}

#[inline]
fn last(bits: u32) -> usize {
    (u32::BITS - 1 - bits.leading_zeros()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_a_table() {
        const WINDOW: usize = 700;
        let mut ranks = Ranks::new(WINDOW);
        let mut table = [NONE; WINDOW];
        let mut random = 0x2545_f491_4f6c_dd1du64;
        for _ in 0..20_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = (random >> 20) as usize % WINDOW;
            let rank = match random % 4 {
                0 => (random >> 50) as u32,
                _ => NONE,
            };
            ranks.set(at, rank);
            table[at] = rank;
            let end = (random >> 30) as usize % (WINDOW + 1);
            let limit = (random >> 48) as u32 % (1 << 14) + 1;
            let expected = table[..end].iter().rposition(|&rank| rank < limit);
            assert_eq!(ranks.last_below(end, limit), expected);
            assert_eq!(ranks.get(at), rank);
        }
    }
}
