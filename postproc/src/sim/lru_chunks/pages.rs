//! Where each page lies in the window of the stack.

use super::chunk::{DIRTY, GONE, SETTLED, Step};

/// In the state of a page: it is dirty in some size.
pub const WAS_DIRTY: u32 = 1 << 31;

/// The pages of the stack.
///
/// Takes 4 bytes a page.
#[derive(Clone)]
pub struct Pages {
    /// Position of the page's mark, plus one; 0 if it has none. With [`WAS_DIRTY`].
    pages: Vec<u32>,
    /// Where the next upper part begins.
    tail: usize,
    /// Positions of the window.
    window: usize,
}

impl Pages {
    /// None yet, in a window of so many positions.
    pub fn new(window: usize) -> Self {
        Pages {
            pages: Vec::new(),
            tail: 0,
            window,
        }
    }

    /// Whether the window has room for an upper part of so many places.
    pub fn have_room(&self, places: u32) -> bool {
        // The last position of the largest window, plus one, would be `WAS_DIRTY`. No window has a
        // mark there.
        self.tail + (places as usize) < self.window
    }

    /// Moves the pages of steps to where their upper part leaves them. `found` gets their states before.
    /// This is apart from the rest of a merge, so that the processor reads the table at many places at
    /// the same time.
    pub fn move_up<P: Copy + Into<u32>>(&mut self, steps: &[Step<P>], found: &mut Vec<u32>) {
        found.clear();
        found.extend(steps.iter().map(|step| self.move_page(step)));
    }

    #[inline]
    fn move_page<P: Copy + Into<u32>>(&mut self, step: &Step<P>) -> u32 {
        let at = step.page as usize;
        if at >= self.pages.len() {
            // Pages that were never referenced may be freed.
            if step.is(GONE) {
                return 0;
            }
            grow(&mut self.pages, at + 1, 0);
        }
        let page = &mut self.pages[at];
        let dirty = match step.is(SETTLED) {
            true => u32::from(step.is(DIRTY)) * WAS_DIRTY,
            false => *page & WAS_DIRTY,
        };
        let after = match step.is(GONE) {
            true => 0,
            false => (self.tail as u32 + step.place.into() + 1) | dirty,
        };
        std::mem::replace(page, after)
    }

    /// All pages of an upper part of so many places were moved.
    pub fn pass(&mut self, places: u32) {
        self.tail += places as usize;
    }

    /// The pages that have a mark, where it is, and whether they are dirty in some size.
    pub fn marked(&self) -> impl Iterator<Item = (usize, usize, bool)> + '_ {
        let pages = self.pages.iter().enumerate();
        pages.filter_map(|(page, &state)| Some((page, place(state)?, state & WAS_DIRTY != 0)))
    }

    /// Where the mark of a page is that has one.
    pub fn position(&self, page: u32) -> Option<usize> {
        self.pages
            .get(page as usize)
            .and_then(|&state| place(state))
    }

    /// All marks move to other positions, and from now on the window has so many, of which the first
    /// `tail` are used.
    pub fn relocate(&mut self, to: impl Fn(usize) -> u32, tail: usize, window: usize) {
        for state in &mut self.pages {
            if let Some(place) = place(*state) {
                *state = (to(place) + 1) | *state & WAS_DIRTY;
            }
        }
        (self.tail, self.window) = (tail, window);
    }
}

/// The position of the mark of a page with this state.
#[inline]
pub fn place(state: u32) -> Option<usize> {
    ((state & !WAS_DIRTY) as usize).checked_sub(1)
}

/// Makes a table longer, by an eighth or more, so that no entry is copied often.
pub fn grow<T: Clone>(table: &mut Vec<T>, len: usize, value: T) {
    let len = len.max(table.len() + table.len() / 8);
    table.reserve_exact(len - table.len());
    table.resize(len, value);
}
