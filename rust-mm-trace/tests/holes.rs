//! What a call of fallocate() ends: all of its whole pages are logged, and nothing else is.

use proptest::prelude::*;
use rust_mm_trace::holes::{Hole, Span};

const PAGE: i64 = 4096;
const PAGES: i64 = 16;

/// Positions at and beside the borders of pages.
fn position() -> impl Strategy<Value = i64> {
    (0..=PAGES, -2i64..3).prop_map(|(page, beside)| (page * PAGE + beside).max(0))
}

/// Whole pages of a span.
fn pages(s: Span) -> impl Iterator<Item = i64> {
    (0..=PAGES).filter(move |page| s.start <= page * PAGE && (page + 1) * PAGE <= s.end)
}

proptest! {
    #[test]
    fn all_whole_pages_are_logged(
        start in position(),
        end in position(),
        steps in prop::collection::vec((position(), position()), 0..8),
    ) {
        let whole = Span { start, end };
        let mut hole = Hole { whole, logged: Span { start: 0, end: 0 } };
        let mut logged = vec![false; ((PAGES + 1) * PAGE) as usize];
        let mut log = |s: Span| logged[s.start as usize..s.end as usize].fill(true);
        for (start, end) in steps {
            let dropped = Span { start, end };
            let now = hole.dropped(dropped);
            if let Some(now) = now {
                prop_assert!(now.start < now.end);
                prop_assert!(now.start >= whole.start && now.end <= whole.end);
                log(now);
            }
            // Of the pages that end, none that was dropped is left out, and only such are logged.
            let of_call = |page: &i64| pages(whole).any(|p| p == *page);
            let seen: Vec<i64> = now.into_iter().flat_map(pages).collect();
            prop_assert_eq!(seen, pages(dropped).filter(of_call).collect::<Vec<_>>());
        }
        // What is left is logged as a whole.
        if hole.is_left() {
            prop_assert!(start < end);
            log(whole);
        }
        // Two steps may each clear a part of a page.
        for page in pages(whole) {
            let at = (page * PAGE) as usize;
            prop_assert!(logged[at..at + PAGE as usize].iter().all(|byte| *byte));
        }
    }

    /// What was logged in steps that touch each other is not logged again.
    #[test]
    fn nothing_is_left_after_all_steps(cuts in prop::collection::vec(0..=PAGES, 2..8)) {
        let mut cuts = cuts;
        cuts.sort_unstable();
        let at = |i: usize| cuts[i] * PAGE;
        let whole = Span { start: at(0), end: at(cuts.len() - 1) };
        let mut hole = Hole { whole, logged: Span { start: 0, end: 0 } };
        for i in 1..cuts.len() {
            prop_assert_eq!(hole.is_left(), hole.logged.end < whole.end && whole.start < whole.end);
            hole.dropped(Span { start: at(i - 1), end: at(i) });
        }
        prop_assert!(!hole.is_left());
    }
}
