//! Linked lists of pages in one table, which is indexed by page.

use crate::units::CanonPage;

/// A page's place, or one end of a list.
#[derive(Clone, Copy, Default)]
struct Node {
    older: u32,
    newer: u32,
    /// The list's number plus one; 0 if in none.
    list: u8,
    note: u8,
}

/// `K` lists, each in order of insertion. A page is in at most one list, and has room for a
/// small number, its *note*.
///
/// Takes 12 bytes a page. The first `K` nodes are the lists' ends; page `p` is
/// node `p + K - 1`, since no page has number 0.
pub(super) struct Lists<const K: usize> {
    nodes: Vec<Node>,
    len: [usize; K],
}

impl<const K: usize> Default for Lists<K> {
    fn default() -> Self {
        let end = |i| Node {
            older: i,
            newer: i,
            ..Node::default()
        };
        Lists {
            nodes: (0..K as u32).map(end).collect(),
            len: [0; K],
        }
    }
}

impl<const K: usize> Lists<K> {
    const OFFSET: usize = K - 1;

    /// Makes room for pages below `pages`.
    pub fn grow(&mut self, pages: usize) {
        let nodes = (pages + Self::OFFSET).max(self.nodes.len());
        self.nodes.resize(nodes, Node::default());
    }

    #[inline]
    fn node(page: CanonPage) -> usize {
        page.index() + Self::OFFSET
    }

    #[inline]
    fn page(node: u32) -> Option<CanonPage> {
        (node as usize >= K).then(|| CanonPage(node - Self::OFFSET as u32))
    }

    /// How many pages are in a list.
    #[inline]
    pub fn len(&self, list: usize) -> usize {
        self.len[list]
    }

    /// The list that a page is in.
    #[inline]
    pub fn list_of(&self, page: CanonPage) -> Option<usize> {
        (self.nodes[Self::node(page)].list as usize).checked_sub(1)
    }

    /// The page's note; kept when the page moves from list to list.
    #[inline]
    pub fn note(&mut self, page: CanonPage) -> &mut u8 {
        &mut self.nodes[Self::node(page)].note
    }

    /// Adds a page that is in no list at a list's newest end.
    #[inline]
    pub fn push(&mut self, list: usize, page: CanonPage) {
        let at = Self::node(page);
        let newest = self.nodes[list].older;
        let node = &mut self.nodes[at];
        (node.older, node.newer) = (newest, list as u32);
        node.list = list as u8 + 1;
        self.nodes[newest as usize].newer = at as u32;
        self.nodes[list].older = at as u32;
        self.len[list] += 1;
    }

    /// Removes a page from its list.
    #[inline]
    pub fn remove(&mut self, page: CanonPage) {
        let node = &mut self.nodes[Self::node(page)];
        let (older, newer) = (node.older, node.newer);
        let Some(list) = (node.list as usize).checked_sub(1) else {
            return;
        };
        node.list = 0;
        self.nodes[older as usize].newer = newer;
        self.nodes[newer as usize].older = older;
        self.len[list] -= 1;
    }

    /// Moves a page to a list's newest end.
    #[inline]
    pub fn move_to(&mut self, list: usize, page: CanonPage) {
        if self.nodes[list].older as usize != Self::node(page) {
            self.remove(page);
            self.push(list, page);
        }
    }

    /// The oldest page of a list.
    #[inline]
    pub fn oldest(&self, list: usize) -> Option<CanonPage> {
        Self::page(self.nodes[list].newer)
    }

    /// The page that was added to the same list next.
    #[inline]
    pub fn newer(&self, page: CanonPage) -> Option<CanonPage> {
        Self::page(self.nodes[Self::node(page)].newer)
    }

    /// Removes and returns the oldest page of a list.
    #[inline]
    pub fn pop(&mut self, list: usize) -> Option<CanonPage> {
        let page = self.oldest(list)?;
        self.remove(page);
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_move_between_lists() {
        let mut lists = Lists::<2>::default();
        lists.grow(6);
        for page in 1..=5 {
            lists.push(page as usize % 2, CanonPage(page));
        }
        *lists.note(CanonPage(1)) = 7;
        lists.move_to(0, CanonPage(1));
        lists.move_to(0, CanonPage(2));
        lists.remove(CanonPage(3));
        assert_eq!(lists.list_of(CanonPage(3)), None);
        assert_eq!(lists.newer(CanonPage(1)), Some(CanonPage(2)));
        assert_eq!((lists.len(0), lists.len(1)), (3, 1));
        assert_eq!(*lists.note(CanonPage(1)), 7);
        let order: Vec<_> = std::iter::from_fn(|| lists.pop(0)).map(|p| p.0).collect();
        assert_eq!(order, [4, 1, 2]);
        assert_eq!(lists.pop(1), Some(CanonPage(5)));
        assert_eq!(lists.pop(1), None);
    }
}
