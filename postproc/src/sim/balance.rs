//! Two sets of positions, searched for the place up to which they have equal size.
//!
//! Up to every position of the window, the second set has at most as many positions as
//! the first. The search finds a position up to which it has as many. Positions are bits
//! in words of 64. Above the words is a tree of fan-out 16. Its nodes hold for each child
//! by how many positions the first set is ahead before the child, and the least number by
//! which it is ahead within the child.

use super::positions::levels;

const FANOUT: usize = 16;
const WORD: usize = 64;
/// Positions that are looked up at once.
const GROUP: usize = 4;
/// Levels for windows of 2^32 positions, and one more.
const MOST_LEVELS: usize = 8;

/// Lanes behind the `i`th: `BEHIND[i][j]` is all ones if `j > i`.
const BEHIND: [[i32; FANOUT]; FANOUT] = {
    let mut mask = [[0; FANOUT]; FANOUT];
    let mut i = 0;
    while i < FANOUT {
        let mut j = i + 1;
        while j < FANOUT {
            mask[i][j] = -1;
            j += 1;
        }
        i += 1;
    }
    mask
};

/// By bits of the second set, and of the first: by how many the first is ahead at the
/// group's end, and where it is least so.
static GROUPS: [(i32, i32); 1 << (2 * GROUP)] = {
    let mut groups = [(0, 0); 1 << (2 * GROUP)];
    let mut number = 0;
    while number < groups.len() {
        let mut ahead = 0;
        let mut least = i32::MAX;
        let mut at = 0;
        while at < GROUP {
            ahead += (number >> at & 1) as i32 - (number >> (GROUP + at) & 1) as i32;
            if ahead < least {
                least = ahead;
            }
            at += 1;
        }
        groups[number] = (ahead, least);
        number += 1;
    }
    groups
};

#[derive(Clone, Copy, Default)]
struct Word {
    first: u64,
    second: u64,
}

impl Word {
    #[inline]
    fn group(self, at: usize) -> (i32, i32) {
        let mask = (1 << GROUP) - 1;
        let (first, second) = (self.first >> at & mask, self.second >> at & mask);
        GROUPS[(second << GROUP | first) as usize]
    }

    /// By how many the first set is ahead at the end, and where it is least so.
    #[inline]
    fn ahead(self) -> (i32, i32) {
        let (mut ahead, mut least) = (0, i32::MAX);
        for at in (0..WORD).step_by(GROUP) {
            let (end, low) = self.group(at);
            least = least.min(ahead + low);
            ahead += end;
        }
        (ahead, least)
    }

    /// The first bit from `from` on with which the sets are even, if the first is
    /// ahead by `before` at the word's beginning.
    #[inline]
    fn even(self, before: i32, from: usize) -> Option<usize> {
        let mut ahead = before;
        for start in (0..WORD).step_by(GROUP) {
            let (end, low) = self.group(start);
            if start + GROUP > from && ahead + low <= 0 {
                let mut ahead = ahead;
                for at in start..start + GROUP {
                    ahead += (self.first >> at & 1) as i32 - (self.second >> at & 1) as i32;
                    if at >= from && ahead <= 0 {
                        return Some(at);
                    }
                }
            }
            ahead += end;
        }
        None
    }
}

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Node {
    /// By how many the first set is ahead before each child, from the node's
    /// beginning.
    before: [i32; FANOUT],
    /// The least that it is ahead within each, likewise.
    least: [i32; FANOUT],
}

impl Node {
    #[inline]
    fn lowest(&self) -> i32 {
        self.least.iter().fold(i32::MAX, |least, &l| least.min(l))
    }

    /// The first lane from `from` on within which the sets are even.
    #[inline]
    fn even(&self, before: i32, from: usize) -> Option<usize> {
        let mut bits = 0u32;
        for (lane, least) in self.least.iter().enumerate() {
            bits |= u32::from(before + least <= 0) << lane;
        }
        bits &= u32::MAX << from;
        (bits != 0).then(|| bits.trailing_zeros() as usize)
    }
}

/// Two sets of positions; see the module's description.
///
/// Takes 3 bits a position.
#[derive(Clone)]
pub(super) struct Balance {
    words: Vec<Word>,
    /// From the words' parents up to the root.
    levels: Vec<Vec<Node>>,
}

impl Balance {
    /// Empty; for positions below `window`.
    pub fn new(window: usize) -> Self {
        let words = window.div_ceil(WORD);
        Balance {
            words: vec![Word::default(); words],
            levels: levels(words, FANOUT),
        }
    }

    /// Whether a position is in each of the sets.
    #[inline]
    pub fn contains(&self, position: usize) -> (bool, bool) {
        let word = self.words[position / WORD];
        let bit = 1 << (position % WORD);
        (word.first & bit != 0, word.second & bit != 0)
    }

    /// Adds a position to both sets.
    #[inline]
    pub fn add(&mut self, position: usize) {
        let word = &mut self.words[position / WORD];
        // What is ahead is so by as many as before, everywhere.
        word.first |= 1 << (position % WORD);
        word.second |= 1 << (position % WORD);
    }

    /// Removes a position from each of the sets.
    #[inline]
    pub fn remove(&mut self, first: usize, second: usize) {
        let words = (first / WORD, second / WORD);
        self.words[words.0].first &= !(1 << (first % WORD));
        self.words[words.1].second &= !(1 << (second % WORD));
        if words.0 == words.1 {
            self.update(words.0, 0);
        } else {
            self.update(words.0, -1);
            self.update(words.1, 1);
        }
    }

    /// After a change of a word by which the first set is ahead `by` more.
    #[inline]
    fn update(&mut self, word: usize, by: i32) {
        let (_, mut least) = self.words[word].ahead();
        let mut at = word;
        for level in &mut self.levels {
            let lane = at % FANOUT;
            at /= FANOUT;
            let node = &mut level[at];
            let was = node.lowest();
            let sums = node.before.iter_mut().zip(&mut node.least);
            for ((before, least), mask) in sums.zip(&BEHIND[lane]) {
                *before += mask & by;
                *least += mask & by;
            }
            node.least[lane] = node.before[lane] + least;
            least = node.lowest();
            if by == 0 && least == was {
                return;
            }
        }
    }

    /// The first position from this one on up to which the sets are even.
    #[inline]
    pub fn even(&self, position: usize) -> Option<usize> {
        let word = position / WORD;
        // By how many the first set is ahead before the word, and the nodes above it.
        let mut before = [0; MOST_LEVELS];
        let mut ahead = 0;
        for (height, level) in self.levels.iter().enumerate().rev() {
            before[height] = ahead;
            let at = word >> (height as u32 * FANOUT.ilog2());
            ahead += level[at / FANOUT].before[at % FANOUT];
        }
        if let Some(bit) = self.words[word].even(ahead, position % WORD) {
            return Some(word * WORD + bit);
        }
        let mut at = word;
        for (height, level) in self.levels.iter().enumerate() {
            let node = at / FANOUT;
            let mut ahead = before[height];
            let Some(lane) = level[node].even(ahead, at % FANOUT + 1) else {
                at = node;
                continue;
            };
            ahead += level[node].before[lane];
            let mut found = node * FANOUT + lane;
            for level in self.levels[..height].iter().rev() {
                let lane = level[found].even(ahead, 0)?;
                ahead += level[found].before[lane];
                found = found * FANOUT + lane;
            }
            let bit = self.words[found].even(ahead, 0)?;
            return Some(found * WORD + bit);
        }
        None
    }

    /// Moves all positions as told, in order.
    pub fn compacted(&self, moves: &Moves) -> Balance {
        let mut to = Balance::new(moves.window);
        for (at, word) in self.words.iter().enumerate() {
            let mut bits = word.first | word.second;
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let moved = moves.to(at * WORD + bit);
                let into = &mut to.words[moved / WORD];
                into.first |= (word.first >> bit & 1) << (moved % WORD);
                into.second |= (word.second >> bit & 1) << (moved % WORD);
            }
        }
        let mut below: Vec<(i32, i32)> = to.words.iter().map(|word| word.ahead()).collect();
        for level in &mut to.levels {
            let nodes = level.iter_mut().zip(below.chunks(FANOUT));
            below = nodes
                .map(|(node, children)| {
                    let mut ahead = 0;
                    for lane in 0..FANOUT {
                        // Children that are not there come after all others.
                        let (end, least) = children.get(lane).copied().unwrap_or_default();
                        node.before[lane] = ahead;
                        node.least[lane] = ahead + least;
                        ahead += end;
                    }
                    (ahead, node.lowest())
                })
                .collect();
        }
        to
    }
}

/// Where positions go that are to be moved together.
pub(super) struct Moves {
    held: Vec<u64>,
    before: Vec<u32>,
    /// How many they are.
    pub used: usize,
    /// The window that they go to: three times as large or more.
    pub window: usize,
}

impl Moves {
    /// Moves all these positions of a window, and no others, into one that is not
    /// smaller.
    pub fn new(window: usize, positions: impl Iterator<Item = usize>) -> Self {
        let mut held = vec![0u64; window.div_ceil(WORD)];
        for position in positions {
            held[position / WORD] |= 1 << (position % WORD);
        }
        let mut used = 0;
        let before = held
            .iter()
            .map(|word| {
                let before = used;
                used += word.count_ones();
                before
            })
            .collect();
        let used = used as usize;
        Moves {
            held,
            before,
            used,
            window: window.max((3 * used).next_power_of_two()),
        }
    }

    /// Where a position goes.
    #[inline]
    pub fn to(&self, position: usize) -> usize {
        let (word, bit) = (position / WORD, position % WORD);
        let within = (self.held[word] & ((1 << bit) - 1)).count_ones();
        (self.before[word] + within) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_by_counting() {
        let mut window = 700;
        let mut balance = Balance::new(window);
        let (mut first, mut second) = (vec![false; window], vec![false; window]);
        let mut random = 0x2545_f491_4f6c_dd1du64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 20) as usize % below
        };
        let mut tail = 0;
        let (mut here, mut beyond, mut moves) = (0, 0, 0);
        for step in 0..10_000 {
            if tail == window {
                let held = |&at: &usize| first[at] || second[at];
                let map = Moves::new(window, (0..window).filter(held));
                balance = balance.compacted(&map);
                let (mut to, mut as_well) = (vec![false; map.window], vec![false; map.window]);
                for at in (0..window).filter(held) {
                    to[map.to(at)] = first[at];
                    as_well[map.to(at)] = second[at];
                }
                (first, second) = (to, as_well);
                (tail, window) = (map.used, map.window);
                moves += 1;
            }
            balance.add(tail);
            (first[tail], second[tail]) = (true, true);
            tail += 1;
            // Of the second set goes what lies before that of the first, lest there
            // be more of it anywhere.
            let from = next(tail);
            let one = (from..tail).find(|&at| first[at]);
            let other = one.and_then(|one| {
                let ahead = (0..tail).scan(0, |ahead, at| {
                    *ahead += i32::from(first[at]) - i32::from(second[at]);
                    Some(*ahead)
                });
                let ahead: Vec<i32> = ahead.collect();
                // Or behind it, up to where they are even.
                let end = (one..tail).find(|&at| ahead[at] == 0)?;
                let any = next(end + 1);
                (any..=end).find(|&at| second[at])
            });
            if let (Some(one), Some(other), true) = (one, other, step > 200 && step % 60 != 0) {
                balance.remove(one, other);
                (first[one], second[other]) = (false, false);
            }
            let position = next(tail);
            let mut ahead = 0;
            let mut expected = None;
            for at in 0..window {
                ahead += i32::from(first[at]) - i32::from(second[at]);
                assert!(ahead >= 0);
                if at >= position && ahead == 0 {
                    expected = Some(at);
                    break;
                }
            }
            assert_eq!(balance.even(position), expected);
            assert_eq!(
                balance.contains(position),
                (first[position], second[position])
            );
            match expected == Some(position) {
                true => here += 1,
                false => beyond += 1,
            }
        }
        assert!(
            here > 1000 && beyond > 1000 && moves >= 5,
            "{here} {beyond} {moves}"
        );
    }
}
