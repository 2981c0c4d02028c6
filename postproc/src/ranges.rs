//! A map of ranges that do not overlap, whose copy costs nothing, and in which a change of
//! many ranges costs as much as that of one.
//!
//! It is a balanced tree of shared nodes. A change that concerns a part of the tree is noted
//! at the root of that part, and handed down when somebody changes what is below. So
//! `mprotect()` and `mremap()` of a whole address space make a few nodes, however much is
//! mapped, and a child that does so shares all other nodes with its parent.

use std::rc::Rc;

/// A range.
pub(crate) trait Ranged: Clone {
    /// What can happen to a range, besides that it is moved.
    type Edit: Clone + Default;

    /// Its first address.
    fn start(&self) -> u64;
    /// Its length, for [`Ranges::covered`].
    fn length(&self) -> u64;
    /// Moves it. Addresses wrap around.
    fn shift(&mut self, by: u64);
    /// Edits it.
    fn edit(&mut self, edit: &Self::Edit);
    /// Makes two edits, one after the other, one.
    fn then(first: &mut Self::Edit, next: &Self::Edit);
}

/// What happens to all ranges of a part.
#[derive(Clone, Default)]
pub(crate) struct Change<E> {
    /// Addresses are higher by this, or lower if it wraps around.
    pub(crate) by: u64,
    pub(crate) edit: E,
}

impl<E: Clone + Default> Change<E> {
    fn apply<V: Ranged<Edit = E>>(&self, value: &mut V) {
        value.shift(self.by);
        value.edit(&self.edit);
    }

    fn then<V: Ranged<Edit = E>>(&mut self, next: &Self) {
        self.by = self.by.wrapping_add(next.by);
        V::then(&mut self.edit, &next.edit);
    }
}

#[derive(Clone)]
struct Node<V: Ranged> {
    left: Tree<V>,
    right: Tree<V>,
    value: V,
    /// The length of all ranges here and below.
    covered: u64,
    height: u8,
    /// What has not happened to `left` and `right` yet.
    due: Option<Box<Change<V::Edit>>>,
}

type Tree<V> = Option<Rc<Node<V>>>;

fn height<V: Ranged>(tree: &Tree<V>) -> u8 {
    tree.as_ref().map_or(0, |node| node.height)
}

fn covered<V: Ranged>(tree: &Tree<V>) -> u64 {
    tree.as_ref().map_or(0, |node| node.covered)
}

impl<V: Ranged> Node<V> {
    /// After a change of the value, or below.
    fn update(&mut self) {
        self.height = height(&self.left).max(height(&self.right)) + 1;
        let below = covered(&self.left).wrapping_add(covered(&self.right));
        self.covered = below.wrapping_add(self.value.length());
    }

    fn hand_down(&mut self) {
        if let Some(due) = self.due.take() {
            change(&mut self.left, &due);
            change(&mut self.right, &due);
        }
    }

    fn is_balanced(&self) -> bool {
        height(&self.left).abs_diff(height(&self.right)) <= SLACK
    }
}

/// The most by which the heights of siblings differ.
const SLACK: u8 = 2;

fn change<V: Ranged>(tree: &mut Tree<V>, change: &Change<V::Edit>) {
    if let Some(node) = tree {
        let node = Rc::make_mut(node);
        change.apply(&mut node.value);
        match &mut node.due {
            Some(due) => due.then::<V>(change),
            None => node.due = Some(Box::new(change.clone())),
        }
    }
}

fn open<V: Ranged>(node: Rc<Node<V>>) -> (Tree<V>, V, Tree<V>) {
    let mut node = Rc::unwrap_or_clone(node);
    node.hand_down();
    (node.left, node.value, node.right)
}

/// A tree of two whose heights are about the same.
fn create<V: Ranged>(left: Tree<V>, value: V, right: Tree<V>) -> Tree<V> {
    let mut node = Node {
        left,
        right,
        value,
        covered: 0,
        height: 0,
        due: None,
    };
    node.update();
    Some(Rc::new(node))
}

/// A tree of two whose heights differ by one more than they may.
fn balance<V: Ranged>(left: Tree<V>, value: V, right: Tree<V>) -> Tree<V> {
    let heights = (height(&left), height(&right));
    match (left, right) {
        (Some(left), right) if heights.0 > heights.1 + SLACK => {
            let (outer, middle, inner) = open(left);
            match inner {
                Some(inner) if height(&outer) < inner.height => {
                    let (a, between, b) = open(inner);
                    create(create(outer, middle, a), between, create(b, value, right))
                }
                inner => create(outer, middle, create(inner, value, right)),
            }
        }
        (left, Some(right)) if heights.1 > heights.0 + SLACK => {
            let (inner, middle, outer) = open(right);
            match inner {
                Some(inner) if height(&outer) < inner.height => {
                    let (a, between, b) = open(inner);
                    create(create(left, value, a), between, create(b, middle, outer))
                }
                inner => create(create(left, value, inner), middle, outer),
            }
        }
        (left, right) => create(left, value, right),
    }
}

/// A tree of two, whatever their heights are.
fn join<V: Ranged>(left: Tree<V>, value: V, right: Tree<V>) -> Tree<V> {
    let heights = (height(&left), height(&right));
    match (left, right) {
        (Some(left), right) if heights.0 > heights.1 + SLACK => {
            let (outer, middle, inner) = open(left);
            balance(outer, middle, join(inner, value, right))
        }
        (left, Some(right)) if heights.1 > heights.0 + SLACK => {
            let (inner, middle, outer) = open(right);
            balance(join(left, value, inner), middle, outer)
        }
        (left, right) => create(left, value, right),
    }
}

fn take_first<V: Ranged>(node: Rc<Node<V>>) -> (V, Tree<V>) {
    match open(node) {
        (None, value, right) => (value, right),
        (Some(left), value, right) => {
            let (first, left) = take_first(left);
            (first, join(left, value, right))
        }
    }
}

fn take_last<V: Ranged>(node: Rc<Node<V>>) -> (Tree<V>, V) {
    match open(node) {
        (left, value, None) => (left, value),
        (left, value, Some(right)) => {
            let (right, last) = take_last(right);
            (join(left, value, right), last)
        }
    }
}

/// What begins below an address, and what does not.
fn split<V: Ranged>(tree: Tree<V>, at: u64) -> (Tree<V>, Tree<V>) {
    let Some(node) = tree else {
        return (None, None);
    };
    let (left, value, right) = open(node);
    if value.start() < at {
        let (lower, upper) = split(right, at);
        (join(left, value, lower), upper)
    } else {
        let (lower, upper) = split(left, at);
        (lower, join(upper, value, right))
    }
}

fn insert<V: Ranged>(tree: &mut Tree<V>, value: V) {
    let Some(node) = tree else {
        *tree = create(None, value, None);
        return;
    };
    let node = Rc::make_mut(node);
    node.hand_down();
    match value.start().cmp(&node.value.start()) {
        std::cmp::Ordering::Less => insert(&mut node.left, value),
        std::cmp::Ordering::Equal => node.value = value,
        std::cmp::Ordering::Greater => insert(&mut node.right, value),
    }
    settle(tree);
}

/// Takes out the range that begins at an address, if there is one.
fn remove<V: Ranged>(tree: &mut Tree<V>, start: u64) {
    let Some(node) = tree else { return };
    let node = Rc::make_mut(node);
    node.hand_down();
    match start.cmp(&node.value.start()) {
        std::cmp::Ordering::Less => remove(&mut node.left, start),
        std::cmp::Ordering::Greater => remove(&mut node.right, start),
        std::cmp::Ordering::Equal => match (node.left.take(), node.right.take()) {
            (side, None) | (None, side) => {
                *tree = side;
                return;
            }
            (left, Some(right)) => {
                let (first, right) = take_first(right);
                (node.left, node.value, node.right) = (left, first, right);
            }
        },
    }
    settle(tree);
}

/// After a change below a node that nobody shares.
fn settle<V: Ranged>(tree: &mut Tree<V>) {
    let Some(node) = tree.as_mut().and_then(Rc::get_mut) else {
        return;
    };
    node.update();
    if !node.is_balanced() {
        if let Some(node) = tree.take() {
            let (left, value, right) = open(node);
            *tree = balance(left, value, right);
        }
    }
}

fn end<V: Ranged>(tree: Tree<V>, ended: &mut impl FnMut(V)) {
    // Of a node that others have too, nothing ends.
    if let Some(node) = tree.and_then(Rc::into_inner) {
        end(node.left, ended);
        ended(node.value);
        end(node.right, ended);
    }
}

/// A map from first addresses to ranges.
#[derive(Clone)]
pub(crate) struct Ranges<V: Ranged> {
    root: Tree<V>,
}

impl<V: Ranged> Default for Ranges<V> {
    fn default() -> Self {
        Ranges { root: None }
    }
}

/// A range as it stands in its tree, and what has not happened to it yet.
pub(crate) struct Seen<'t, V: Ranged> {
    pub(crate) value: &'t V,
    due: Option<Change<V::Edit>>,
}

impl<V: Ranged> Seen<'_, V> {
    /// How far the range is from where it stands.
    pub(crate) fn by(&self) -> u64 {
        self.due.as_ref().map_or(0, |due| due.by)
    }

    /// The range.
    pub(crate) fn get(&self) -> V {
        let mut value = self.value.clone();
        if let Some(due) = &self.due {
            due.apply(&mut value);
        }
        value
    }
}

impl<V: Ranged> Ranges<V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// The length of all ranges.
    pub(crate) fn covered(&self) -> u64 {
        covered(&self.root)
    }

    /// The last range that begins at an address or below.
    pub(crate) fn at_or_below(&self, address: u64) -> Option<Seen<'_, V>> {
        self.nearest(|start| start <= address, |node| (&node.right, &node.left))
    }

    /// The first range that begins at an address or above.
    pub(crate) fn at_or_above(&self, address: u64) -> Option<Seen<'_, V>> {
        self.nearest(|start| start >= address, |node| (&node.left, &node.right))
    }

    /// The best of those that are good. `sides` gives the side where better ones are, and
    /// the one where others are.
    fn nearest<'t>(
        &'t self,
        good: impl Fn(u64) -> bool + Copy,
        sides: impl Fn(&'t Node<V>) -> (&'t Tree<V>, &'t Tree<V>) + Copy,
    ) -> Option<Seen<'t, V>> {
        let (mut tree, mut by, mut best) = (&self.root, 0u64, None);
        let mut is_due = false;
        while let Some(node) = tree {
            let (better, other) = sides(node);
            let good = good(node.value.start().wrapping_add(by));
            tree = if good { better } else { other };
            if good {
                best = Some(&node.value);
            }
            if let Some(due) = &node.due {
                by = by.wrapping_add(due.by);
                is_due = true;
            }
        }
        let due = match best {
            Some(value) if is_due => Some(self.due(value, good, sides)),
            _ => None,
        };
        best.map(|value| Seen { value, due })
    }

    /// What has not happened to a range yet that [`Ranges::nearest`] finds.
    #[cold]
    fn due<'t>(
        &'t self,
        value: &V,
        good: impl Fn(u64) -> bool,
        sides: impl Fn(&'t Node<V>) -> (&'t Tree<V>, &'t Tree<V>),
    ) -> Change<V::Edit> {
        let (mut tree, mut all) = (&self.root, Change::default());
        while let Some(node) = tree.as_ref().filter(|n| !std::ptr::eq(&n.value, value)) {
            let (better, other) = sides(node);
            let good = good(node.value.start().wrapping_add(all.by));
            tree = if good { better } else { other };
            if let Some(due) = &node.due {
                let next = std::mem::replace(&mut all, (**due).clone());
                all.then::<V>(&next);
            }
        }
        all
    }

    /// The last range that begins at an address or below. Its first address and its length
    /// must stay.
    pub(crate) fn get_mut(&mut self, address: u64) -> Option<&mut V> {
        let start = self.at_or_below(address)?.get().start();
        let mut tree = &mut self.root;
        loop {
            let node = Rc::make_mut(tree.as_mut()?);
            node.hand_down();
            tree = match start.cmp(&node.value.start()) {
                std::cmp::Ordering::Less => &mut node.left,
                std::cmp::Ordering::Equal => return Some(&mut node.value),
                std::cmp::Ordering::Greater => &mut node.right,
            };
        }
    }

    /// Puts a range in, in the place of another one that begins at the same address.
    pub(crate) fn insert(&mut self, value: V) {
        insert(&mut self.root, value);
    }

    /// Takes out the range that begins at an address.
    pub(crate) fn remove(&mut self, start: u64) {
        remove(&mut self.root, start);
    }

    /// Takes out what begins at an address or above.
    pub(crate) fn split_off(&mut self, at: u64) -> Self {
        let (lower, upper) = split(self.root.take(), at);
        self.root = lower;
        Ranges { root: upper }
    }

    /// Puts in ranges that lie behind all others.
    pub(crate) fn append(&mut self, upper: Self) {
        self.root = match (self.root.take(), upper.root) {
            (lower, None) => lower,
            (None, upper) => upper,
            (lower, Some(upper)) => {
                let (first, rest) = take_first(upper);
                join(lower, first, rest)
            }
        };
    }

    pub(crate) fn pop_first(&mut self) -> Option<V> {
        let (first, rest) = take_first(self.root.take()?);
        self.root = rest;
        Some(first)
    }

    pub(crate) fn pop_last(&mut self) -> Option<V> {
        let (rest, last) = take_last(self.root.take()?);
        self.root = rest;
        Some(last)
    }

    /// Changes all ranges.
    pub(crate) fn change(&mut self, by: u64, edit: V::Edit) {
        change(&mut self.root, &Change { by, edit });
    }

    /// All ranges, ascending.
    pub(crate) fn iter(&self) -> Iter<'_, V> {
        let mut iter = Iter { above: Vec::new() };
        iter.descend(&self.root, Change::default());
        iter
    }

    /// Takes out all ranges, and hands over each that no other tree shares, ascending. What
    /// has not happened to a range yet does not happen any more.
    pub(crate) fn end(self, ended: &mut impl FnMut(V)) {
        end(self.root, ended);
    }
}

/// See [`Ranges::iter`].
pub(crate) struct Iter<'t, V: Ranged> {
    /// Nodes whose left side has been given, the lowest last.
    above: Vec<(&'t Node<V>, Change<V::Edit>)>,
}

impl<'t, V: Ranged> Iter<'t, V> {
    fn descend(&mut self, mut tree: &'t Tree<V>, mut due: Change<V::Edit>) {
        while let Some(node) = tree {
            let mut below = node.due.as_deref().cloned().unwrap_or_default();
            below.then::<V>(&due);
            self.above.push((node, due));
            (tree, due) = (&node.left, below);
        }
    }
}

impl<V: Ranged> Iterator for Iter<'_, V> {
    type Item = V;

    fn next(&mut self) -> Option<V> {
        let (node, due) = self.above.pop()?;
        let mut value = node.value.clone();
        due.apply(&mut value);
        let mut below = node.due.as_deref().cloned().unwrap_or_default();
        below.then::<V>(&due);
        self.descend(&node.right, below);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::{Ranged, Ranges, Tree, height};

    /// First address, length, marks.
    #[derive(Clone, Debug, PartialEq)]
    struct Piece(u64, u64, Vec<u8>);

    impl Ranged for Piece {
        type Edit = Vec<u8>;

        fn start(&self) -> u64 {
            self.0
        }
        fn length(&self) -> u64 {
            self.1
        }
        fn shift(&mut self, by: u64) {
            self.0 = self.0.wrapping_add(by);
        }
        fn edit(&mut self, edit: &Vec<u8>) {
            self.2.extend(edit);
        }
        fn then(first: &mut Vec<u8>, next: &Vec<u8>) {
            first.extend(next);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u64),
        Mark(u64, u64, u8),
        Change(u64, u64),
        Cut(u64, u64),
        /// To where nothing is.
        Move(u64, u64),
        Remove(u64),
        PopFirst,
        PopLast,
        Fork,
        Swap,
        Drop,
    }

    fn steps() -> impl Strategy<Value = Step> {
        let key = || 0..300u64;
        let two = || (key(), key()).prop_map(|(a, b)| (a.min(b), a.max(b)));
        prop_oneof![
            12 => (key(), 1..9u64).prop_map(|(k, n)| Step::Insert(k, n)),
            4 => (two(), any::<u8>()).prop_map(|((a, b), m)| Step::Mark(a, b, m)),
            2 => (key(), 0..9u64).prop_map(|(k, n)| Step::Change(k, n)),
            2 => two().prop_map(|(a, b)| Step::Cut(a, b)),
            3 => two().prop_map(|(a, b)| Step::Move(a, b)),
            6 => key().prop_map(Step::Remove),
            1 => Just(Step::PopFirst),
            1 => Just(Step::PopLast),
            2 => Just(Step::Fork),
            2 => Just(Step::Swap),
            1 => Just(Step::Drop),
        ]
    }

    fn is_balanced(tree: &Tree<Piece>) -> bool {
        tree.as_ref().is_none_or(|node| {
            node.is_balanced()
                && node.height == height(&node.left).max(height(&node.right)) + 1
                && is_balanced(&node.left)
                && is_balanced(&node.right)
        })
    }

    type Model = BTreeMap<u64, Piece>;

    fn step(tree: &mut Ranges<Piece>, model: &mut Model, step: &Step) {
        match *step {
            Step::Insert(k, n) => {
                tree.insert(Piece(k, n, vec![]));
                model.insert(k, Piece(k, n, vec![]));
            }
            Step::Mark(a, b, mark) => {
                let mut part = tree.split_off(a);
                let upper = part.split_off(b);
                part.change(0, vec![mark]);
                tree.append(part);
                tree.append(upper);
                model.range_mut(a..b).for_each(|(_, p)| p.2.push(mark));
            }
            Step::Change(k, n) => {
                if let Some(piece) = tree.get_mut(k) {
                    piece.2.push(n as u8);
                }
                if let Some((_, piece)) = model.range_mut(..=k).next_back() {
                    piece.2.push(n as u8);
                }
            }
            Step::Cut(a, b) => {
                let mut part = tree.split_off(a);
                tree.append(part.split_off(b));
                model.retain(|k, _| !(a..b).contains(k));
            }
            Step::Move(a, b) => {
                // Above all others, or from there to the bottom.
                let top = model.keys().next_back().map_or(0, |k| k + 1);
                let mut part = tree.split_off(a);
                tree.append(part.split_off(b));
                part.change(top.wrapping_sub(a), vec![1]);
                tree.append(part);
                let keys: Vec<u64> = model.range(a..b).map(|(k, _)| *k).collect();
                for k in keys {
                    let mut piece = model.remove(&k).unwrap();
                    piece.0 = k - a + top;
                    piece.2.push(1);
                    model.insert(piece.0, piece);
                }
            }
            Step::Remove(k) => {
                // The last that begins there or below.
                let start = model.range(..=k).next_back().map_or(k, |(&start, _)| start);
                tree.remove(start);
                model.remove(&start);
            }
            Step::PopFirst => assert_eq!(tree.pop_first(), model.pop_first().map(|e| e.1)),
            Step::PopLast => assert_eq!(tree.pop_last(), model.pop_last().map(|e| e.1)),
            Step::Fork | Step::Swap | Step::Drop => {}
        }
    }

    proptest! {
        /// Copies and their origins go their own ways, as copies of a whole map would.
        #[test]
        fn it_is_a_map(
            steps in prop::collection::vec(steps(), 1..200),
            probes in prop::collection::vec(0..600u64, 8),
        ) {
            let mut trees = vec![(Ranges::default(), Model::new())];
            for one in steps {
                match one {
                    Step::Fork => trees.push(trees.last().unwrap().clone()),
                    Step::Swap => trees.rotate_left(1),
                    Step::Drop if trees.len() > 1 => drop(trees.pop()),
                    _ => {
                        let (tree, model) = trees.last_mut().unwrap();
                        step(tree, model, &one);
                    }
                }
            }
            for (tree, model) in &trees {
                prop_assert!(is_balanced(&tree.root));
                prop_assert!(tree.iter().eq(model.values().cloned()));
                prop_assert_eq!(tree.covered(), model.values().map(|p| p.1).sum::<u64>());
                prop_assert_eq!(tree.is_empty(), model.is_empty());
                for &k in &probes {
                    let below = model.range(..=k).next_back().map(|e| e.1.clone());
                    prop_assert_eq!(tree.at_or_below(k).map(|s| s.get()), below);
                    let above = model.range(k..).next().map(|e| e.1.clone());
                    prop_assert_eq!(tree.at_or_above(k).map(|s| s.get()), above);
                }
            }
            // Each is handed over once, by the last tree that has it.
            let last = trees.pop().unwrap().0;
            let copy = last.clone();
            let mut ended = 0;
            last.end(&mut |_| ended += 1);
            prop_assert_eq!(ended, 0);
            let left: usize = copy.iter().count();
            drop(trees);
            copy.end(&mut |_| ended += 1);
            prop_assert_eq!(ended, left);
        }
    }
}
