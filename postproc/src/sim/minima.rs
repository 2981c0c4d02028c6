//! A row of numbers that can be searched for the first one that is small enough.

const FANOUT: usize = 16;

/// Larger than any number that is searched for.
pub(super) const NONE: u32 = u32::MAX;

/// A row of numbers that grows, and a tree of their minima.
///
/// Needs 4.3 bytes a number.
#[derive(Clone)]
pub(super) struct Minima {
    /// The levels from the numbers up to the root; each is a whole number of nodes.
    levels: Vec<Vec<[u32; FANOUT]>>,
}

impl Default for Minima {
    fn default() -> Self {
        Minima {
            levels: vec![vec![[NONE; FANOUT]]],
        }
    }
}

impl Minima {
    /// The number at a place; [`NONE`] if no number was ever put there.
    #[inline]
    pub fn get(&self, at: usize) -> u32 {
        let node = self.levels[0].get(at / FANOUT);
        node.map_or(NONE, |node| node[at % FANOUT])
    }

    /// Puts a number at a place.
    #[inline]
    pub fn set(&mut self, at: usize, number: u32) {
        if at / FANOUT >= self.levels[0].len() {
            self.grow(at);
        }
        let (mut at, mut least) = (at, number);
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

    #[cold]
    fn grow(&mut self, at: usize) {
        let mut nodes = (at / FANOUT + 1).next_power_of_two();
        let mut height = 0;
        loop {
            if height == self.levels.len() {
                // The old root now has a parent.
                let mut root = [NONE; FANOUT];
                root[0] = least_of(&self.levels[height - 1][0]);
                self.levels.push(vec![root]);
            }
            self.levels[height].resize(nodes, [NONE; FANOUT]);
            if nodes == 1 {
                return;
            }
            nodes = nodes.div_ceil(FANOUT);
            height += 1;
        }
    }

    /// Changes every number except [`NONE`].
    pub fn map(&mut self, change: impl Fn(u32) -> u32) {
        let numbers = self.levels[0].iter_mut().flatten();
        for number in numbers.filter(|number| **number != NONE) {
            *number = change(*number);
        }
        for height in 1..self.levels.len() {
            let (below, above) = self.levels.split_at_mut(height);
            for (at, node) in below[height - 1].iter().enumerate() {
                above[0][at / FANOUT][at % FANOUT] = least_of(node);
            }
        }
    }

    /// The first place with a number of at most `limit`.
    #[inline]
    pub fn first_upto(&self, limit: u32) -> Option<usize> {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let mut bits = 0u32;
            for (lane, &number) in level[at].iter().enumerate() {
                bits |= u32::from(number <= limit) << lane;
            }
            if bits == 0 {
                return None;
            }
            at = at * FANOUT + bits.trailing_zeros() as usize;
        }
        Some(at)
    }
}

#[inline]
fn least_of(node: &[u32; FANOUT]) -> u32 {
    node.iter().fold(NONE, |least, &number| least.min(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_a_table() {
        let mut minima = Minima::default();
        let mut table = vec![];
        let mut random = 0x2545_f491_4f6c_dd1du64;
        for step in 0..20_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = (random >> 20) as usize % (step / 20 + 1);
            let number = (random >> 48) as u32 % 5000 + 100;
            if at >= table.len() {
                table.resize(at + 1, NONE);
            }
            minima.set(at, number);
            table[at] = number;
            let limit = (random >> 30) as u32 % 5000;
            let expected = table.iter().position(|&number| number <= limit);
            assert_eq!(minima.first_upto(limit), expected);
            let at = (random >> 10) as usize % 2000;
            assert_eq!(minima.get(at), table.get(at).copied().unwrap_or(NONE));
            if step % 1000 == 999 {
                let change = |number| number - number / 7;
                minima.map(change);
                for number in table.iter_mut().filter(|number| **number != NONE) {
                    *number = change(*number);
                }
            }
        }
    }
}
