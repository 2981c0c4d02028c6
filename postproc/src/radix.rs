//! A map from numbers whose copy costs nothing: a radix tree of shared nodes.
//!
//! A fork copies an address space, and most children change little of their copy before
//! they end. Here a copy shares all of the tree; a change copies the nodes between the
//! root and the place that changes, sixteen at most, and nothing else.
//!
//! A node stands only where keys differ, so that the depth of a tree and its memory follow
//! the number of its values, whatever the keys are.

use std::rc::Rc;

/// Bits of the key that a node looks at.
const BITS: u32 = 4;

const WIDTH: usize = 1 << BITS;

/// A value that has its key with it.
pub(crate) trait Keyed {
    /// The key; it must not change while the value is in a tree.
    fn key(&self) -> u64;
}

enum Slot<V> {
    Empty,
    Value(Rc<V>),
    Inner(Rc<Node<V>>),
}

impl<V> Clone for Slot<V> {
    fn clone(&self) -> Self {
        match self {
            Slot::Empty => Slot::Empty,
            Slot::Value(value) => Slot::Value(value.clone()),
            Slot::Inner(node) => Slot::Inner(node.clone()),
        }
    }
}

/// Keys below a node agree in all bits above those that the node looks at.
struct Node<V> {
    /// The lowest key that has its place below this node.
    base: u64,
    /// Bits below those that this node looks at.
    shift: u32,
    /// Two are in use at least.
    slots: [Slot<V>; WIDTH],
}

impl<V> Clone for Node<V> {
    fn clone(&self) -> Self {
        Node {
            base: self.base,
            shift: self.shift,
            slots: self.slots.clone(),
        }
    }
}

impl<V> Node<V> {
    /// The highest key that has its place below this node.
    fn last(&self) -> u64 {
        self.base | u64::MAX >> u64::BITS.saturating_sub(BITS + self.shift)
    }

    fn covers(&self, key: u64) -> bool {
        (self.base ^ key) >> self.shift >> BITS == 0
    }

    #[inline]
    fn at(&self, key: u64) -> usize {
        (key >> self.shift) as usize % WIDTH
    }

    /// What stands in the node's place if it decides nothing.
    fn less(&mut self) -> Option<Slot<V>> {
        let mut left = self.slots.iter_mut().filter(|s| !matches!(s, Slot::Empty));
        match (left.next(), left.next()) {
            (Some(_), Some(_)) => None,
            (None, _) => Some(Slot::Empty),
            (Some(only), None) => Some(std::mem::replace(only, Slot::Empty)),
        }
    }

    /// A node for two keys that differ, with nothing in it.
    fn between(one: u64, other: u64) -> Self {
        let differ = u64::BITS - 1 - (one ^ other).leading_zeros();
        let shift = differ / BITS * BITS;
        let below = u64::MAX >> u64::BITS.saturating_sub(BITS + shift);
        Node {
            base: one & !below,
            shift,
            slots: [const { Slot::Empty }; WIDTH],
        }
    }
}

/// A map from `u64` that is copied in no time.
pub(crate) struct Radix<V> {
    root: Slot<V>,
}

impl<V> Default for Radix<V> {
    fn default() -> Self {
        Radix { root: Slot::Empty }
    }
}

impl<V> Clone for Radix<V> {
    fn clone(&self) -> Self {
        Radix {
            root: self.root.clone(),
        }
    }
}

impl<V: Keyed> Radix<V> {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.root, Slot::Empty)
    }

    /// The value of a key.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<&V> {
        let mut slot = &self.root;
        loop {
            match slot {
                Slot::Inner(node) => slot = &node.slots[node.at(key)],
                Slot::Value(value) => return (value.key() == key).then_some(value),
                Slot::Empty => return None,
            }
        }
    }

    /// The value of a key. This tree shares no node above the value with another tree
    /// any more; the value itself may be shared.
    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut Rc<V>> {
        // A way that leads nowhere is not copied.
        self.get(key)?;
        let mut slot = &mut self.root;
        loop {
            match slot {
                Slot::Inner(node) => {
                    let at = node.at(key);
                    slot = &mut Rc::make_mut(node).slots[at];
                }
                Slot::Value(value) => return Some(value),
                Slot::Empty => return None,
            }
        }
    }

    /// The same, of a value that is made if there is none.
    pub(crate) fn entry(&mut self, key: u64, make: impl Fn() -> Rc<V>) -> &mut Rc<V> {
        let mut slot = &mut self.root;
        loop {
            let other = match slot {
                Slot::Value(value) => Some(value.key()).filter(|&other| other != key),
                Slot::Inner(node) => Some(node.base).filter(|_| !node.covers(key)),
                Slot::Empty => {
                    *slot = Slot::Value(make());
                    None
                }
            };
            if let Some(other) = other {
                let mut node = Node::between(key, other);
                let at = node.at(other);
                node.slots[at] = std::mem::replace(slot, Slot::Empty);
                *slot = Slot::Inner(Rc::new(node));
            }
            match slot {
                Slot::Inner(node) => {
                    let at = node.at(key);
                    slot = &mut Rc::make_mut(node).slots[at];
                }
                Slot::Value(value) => return value,
                Slot::Empty => {}
            }
        }
    }

    /// Puts a value in, in the place of another one of its key.
    pub(crate) fn insert(&mut self, value: V) {
        let value = Rc::new(value);
        *self.entry(value.key(), || value.clone()) = value.clone();
    }

    /// The value of the lowest key that is no lower than this one.
    pub(crate) fn at_or_above(&self, key: u64) -> Option<&V> {
        lowest(&self.root, key)
    }

    /// The values of keys `first..=last`, ascending.
    pub(crate) fn range(&self, first: u64, last: u64) -> impl Iterator<Item = &V> {
        let next = move |key| self.at_or_above(key).filter(|v| v.key() <= last);
        std::iter::successors(next(first), move |v| next(v.key().checked_add(1)?))
    }

    /// Takes out the values of keys `first..=last`, and hands over each that stands in no
    /// other tree by way of a shared node. What is shared costs nothing.
    pub(crate) fn cut(&mut self, first: u64, last: u64, ended: &mut impl FnMut(Rc<V>)) {
        if self.range(first, last).next().is_some() {
            cut(&mut self.root, first, last, ended);
        }
    }

    /// Takes out the values of keys that are no lower than this one.
    pub(crate) fn split_off(&mut self, key: u64) -> Self {
        let (lower, upper) = split(std::mem::take(self).root, key);
        self.root = lower;
        Radix { root: upper }
    }

    /// Puts in the values of another tree, which has other keys.
    pub(crate) fn append(&mut self, other: Self) {
        self.root = union(std::mem::take(self).root, other.root);
    }

    /// Takes out all values, as [`Radix::cut`].
    pub(crate) fn end(self, ended: &mut impl FnMut(Rc<V>)) {
        end(self.root, ended);
    }
}

fn lowest<V: Keyed>(slot: &Slot<V>, key: u64) -> Option<&V> {
    match slot {
        Slot::Empty => None,
        Slot::Value(value) => (value.key() >= key).then_some(value),
        Slot::Inner(node) if key > node.last() => None,
        Slot::Inner(node) => {
            let slots = node.slots[node.at(key.max(node.base))..].iter();
            slots.filter_map(|slot| lowest(slot, key)).next()
        }
    }
}

fn cut<V: Keyed>(slot: &mut Slot<V>, first: u64, last: u64, ended: &mut impl FnMut(Rc<V>)) {
    let whole = match slot {
        Slot::Empty => return,
        Slot::Value(value) if (first..=last).contains(&value.key()) => true,
        Slot::Value(_) => return,
        Slot::Inner(node) if node.last() < first || last < node.base => return,
        Slot::Inner(node) => first <= node.base && node.last() <= last,
    };
    if whole {
        end(std::mem::replace(slot, Slot::Empty), ended);
        return;
    }
    let Slot::Inner(node) = slot else { return };
    let node = Rc::make_mut(node);
    for slot in &mut node.slots {
        cut(slot, first, last, ended);
    }
    if let Some(less) = node.less() {
        *slot = less;
    }
}

fn split<V: Keyed>(slot: Slot<V>, key: u64) -> (Slot<V>, Slot<V>) {
    let node = match slot {
        Slot::Inner(node) if node.base < key && key <= node.last() => node,
        Slot::Inner(ref node) if node.base < key => return (slot, Slot::Empty),
        Slot::Value(ref value) if value.key() < key => return (slot, Slot::Empty),
        slot => return (Slot::Empty, slot),
    };
    let mut lower = Rc::unwrap_or_clone(node);
    let mut upper = Node {
        base: lower.base,
        shift: lower.shift,
        slots: [const { Slot::Empty }; WIDTH],
    };
    let at = lower.at(key);
    let taken = lower.slots[at..].iter_mut().zip(&mut upper.slots[at..]);
    for (from, to) in taken {
        std::mem::swap(from, to);
    }
    let between = std::mem::replace(&mut upper.slots[at], Slot::Empty);
    (lower.slots[at], upper.slots[at]) = split(between, key);
    let whole = |mut node: Node<V>| node.less().unwrap_or_else(|| Slot::Inner(Rc::new(node)));
    (whole(lower), whole(upper))
}

fn union<V: Keyed>(one: Slot<V>, other: Slot<V>) -> Slot<V> {
    // The first key that has its place there, and the bits below those that are looked at.
    let place = |slot: &Slot<V>| match slot {
        Slot::Empty => None,
        Slot::Value(value) => Some((value.key(), 0)),
        Slot::Inner(node) => Some((node.base, node.shift + BITS)),
    };
    let (Some(of_one), Some(of_other)) = (place(&one), place(&other)) else {
        return if matches!(one, Slot::Empty) {
            other
        } else {
            one
        };
    };
    let ((key, bits), (mut large, small)) = match of_one.1 < of_other.1 {
        true => (of_one, (other, one)),
        false => (of_other, (one, other)),
    };
    let mut node = match &mut large {
        Slot::Inner(node) if node.covers(key) => {
            let node = Rc::make_mut(node);
            match small {
                Slot::Inner(small) if bits == node.shift + BITS => {
                    let small = Rc::unwrap_or_clone(small);
                    for (to, from) in node.slots.iter_mut().zip(small.slots) {
                        let before = std::mem::replace(to, Slot::Empty);
                        *to = union(before, from);
                    }
                }
                small => {
                    let to = &mut node.slots[(key >> node.shift) as usize % WIDTH];
                    let before = std::mem::replace(to, Slot::Empty);
                    *to = union(before, small);
                }
            }
            return large;
        }
        _ => Node::between(of_one.0, of_other.0),
    };
    for slot in [large, small] {
        if let Some((key, _)) = place(&slot) {
            let at = node.at(key);
            node.slots[at] = slot;
        }
    }
    Slot::Inner(Rc::new(node))
}

fn end<V>(slot: Slot<V>, ended: &mut impl FnMut(Rc<V>)) {
    match slot {
        Slot::Empty => {}
        Slot::Value(value) => ended(value),
        Slot::Inner(node) => {
            // Of a node that others have too, nothing ends.
            for slot in Rc::into_inner(node).into_iter().flat_map(|node| node.slots) {
                end(slot, ended);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::{Keyed, Radix};

    #[derive(Clone, Debug, PartialEq)]
    struct Pair(u64, u32);

    impl Keyed for Pair {
        fn key(&self) -> u64 {
            self.0
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u32),
        Change(u64, u32),
        Cut(u64, u64),
        /// Splits off, and puts the values below back in.
        Split(u64),
        Fork,
        Swap,
        Drop,
    }

    fn keys() -> impl Strategy<Value = u64> {
        let edges = [0, 1, 15, 16, 1 << 60, u64::MAX - 1, u64::MAX];
        prop_oneof![
            0..64u64,
            (0..40u64).prop_map(|n| n << 12),
            (0..64u32).prop_map(|n| 1 << n),
            prop::sample::select(edges.to_vec()),
            any::<u64>(),
        ]
    }

    fn steps() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (keys(), any::<u32>()).prop_map(|(k, v)| Step::Insert(k, v)),
            4 => (keys(), any::<u32>()).prop_map(|(k, v)| Step::Change(k, v)),
            3 => (keys(), keys()).prop_map(|(a, b)| Step::Cut(a.min(b), a.max(b))),
            2 => keys().prop_map(Step::Split),
            2 => Just(Step::Fork),
            2 => Just(Step::Swap),
            1 => Just(Step::Drop),
        ]
    }

    proptest! {
        /// Copies and their origins go their own ways, as copies of a whole map would.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec(steps(), 1..200), probes in prop::collection::vec(keys(), 8)) {
            let mut trees = vec![(Radix::default(), BTreeMap::new())];
            for step in steps {
                let (tree, model) = trees.last_mut().unwrap();
                match step {
                    Step::Insert(k, v) => {
                        tree.insert(Pair(k, v));
                        model.insert(k, v);
                    }
                    Step::Change(k, v) => {
                        let found = tree.get_mut(k).map(|pair| Rc::make_mut(pair).1 = v);
                        let expected = model.get_mut(&k).map(|old| *old = v);
                        prop_assert_eq!(found, expected);
                    }
                    Step::Cut(first, last) => {
                        tree.cut(first, last, &mut drop);
                        model.retain(|k, _| !(first..=last).contains(k));
                    }
                    Step::Split(k) => {
                        let mut upper = tree.split_off(k);
                        let keys = |tree: &Radix<Pair>| -> Vec<u64> {
                            tree.range(0, u64::MAX).map(|p| p.0).collect()
                        };
                        prop_assert!(keys(tree).into_iter().eq(model.range(..k).map(|e| *e.0)));
                        prop_assert!(keys(&upper).into_iter().eq(model.range(k..).map(|e| *e.0)));
                        upper.append(std::mem::take(tree));
                        *tree = upper;
                    }
                    Step::Fork => {
                        let copy = (tree.clone(), model.clone());
                        trees.push(copy);
                    }
                    Step::Swap => trees.rotate_left(1),
                    Step::Drop if trees.len() > 1 => drop(trees.pop()),
                    Step::Drop => {}
                }
            }
            for (tree, model) in &trees {
                let all: Vec<_> = tree.range(0, u64::MAX).map(|p| (p.0, p.1)).collect();
                let expected: Vec<_> = model.iter().map(|(&k, &v)| (k, v)).collect();
                prop_assert_eq!(all, expected);
                for &k in &probes {
                    let key = |(k, _): (&u64, &u32)| *k;
                    prop_assert_eq!(tree.get(k).map(|p| p.1), model.get(&k).copied());
                    prop_assert_eq!(tree.at_or_above(k).map(|p| p.0), model.range(k..).next().map(key));
                }
            }
            // Each value ends once, by the last tree that has it.
            let distinct: std::collections::BTreeSet<_> = trees
                .iter()
                .flat_map(|(tree, _)| tree.range(0, u64::MAX).map(|p| std::ptr::from_ref(p) as usize))
                .collect();
            let mut ended = 0;
            for (tree, _) in trees {
                tree.end(&mut |value| ended += usize::from(Rc::into_inner(value).is_some()));
            }
            prop_assert_eq!(ended, distinct.len());
        }
    }
}
