//! Waits that end: time without progress, and the parts of what is written back.

use proptest::prelude::*;
use rust_mm_trace::back::{Rest, LARGEST, LEAST};
use rust_mm_trace::patience::{Kind, Patience, Verdict};
use rust_mm_trace::stall::{Stall, FOREVER, PARTS};

proptest! {
    /// A limit has passed if and only if the last so many looks found what the look before had.
    #[test]
    fn a_limit_passes_without_progress(steps in prop::collection::vec(any::<bool>(), 0..200)) {
        let mut progress = 0u64;
        let mut stall = Stall::new(progress);
        let mut without = 0;
        for step in steps {
            progress = progress.wrapping_sub(u64::from(step));
            without = if step { 0 } else { without + 1 };
            prop_assert_eq!(stall.passed(progress), without >= PARTS);
            prop_assert_eq!(stall.seen(), progress);
        }
    }

    #[test]
    fn the_parts_are_the_limit(limit in prop_oneof![1u64..100, 1..=FOREVER]) {
        let part = Stall::part(limit);
        let whole = u128::from(part) * u128::from(PARTS);
        prop_assert!(part > 0 && whole >= limit.into());
        prop_assert!(whole < u128::from(limit) + u128::from(PARTS));
    }

    /// Nobody waits longer than a limit without progress, and a task that exits not longer than its
    /// own limit. Only such a task goes on without room, and only with a reserve.
    #[test]
    fn nobody_waits_for_ever(
        exits: bool,
        spare: bool,
        limit in prop_oneof![Just(0u64), 1u64..100_000],
        exit in 1u64..10_000,
    ) {
        let kind = Kind { exits, ..Kind::default() };
        let mut patience = Patience::new(kind, limit, exit, 7);
        let mut waited = 0u64;
        let verdict = loop {
            waited = waited.saturating_add(patience.part());
            match patience.passed(7, || spare) {
                Verdict::Wait => continue,
                verdict => break verdict,
            }
        };
        let whole = if limit == 0 { FOREVER } else { limit };
        let most = if exits { whole.min(exit) } else { whole };
        prop_assert!(waited >= most && waited < most + u64::from(PARTS));
        let goes_on = exits && spare && whole > exit;
        prop_assert_eq!(verdict, if goes_on { Verdict::GoOn } else { Verdict::Failed });
    }

    /// All is sent once and in order, and waited for once it was sent. Not more than two parts are
    /// on their way.
    #[test]
    fn all_is_written_back(
        size in prop_oneof![0u64..200_000, 0u64..1 << 30],
        times in prop::collection::vec(0u64..20, 1..50),
    ) {
        let mut rest = Rest::new(size);
        let (mut sent, mut waited, mut part) = (0, 0, LEAST);
        let mut times = times.iter().cycle();
        while let Some(next) = rest.part() {
            if let Some((from, last)) = next.send {
                prop_assert!(from == sent && last >= from);
                sent = last + 1;
            }
            let (from, last) = next.wait;
            prop_assert_eq!(from, waited);
            waited = last + 1;
            prop_assert_eq!(waited - from, part.min(size - from));
            // After a part was made smaller, more may be on its way.
            prop_assert!(sent >= (from + 2 * part).min(size));
            prop_assert!(sent <= from + 4 * part);
            let time = *times.next().unwrap_or(&0);
            rest.took(time, 3, 12);
            part = match time {
                0..3 => (part * 2).min(LARGEST),
                13.. => (part / 2).max(LEAST),
                _ => part,
            };
        }
        prop_assert_eq!((sent, waited), (size, size));
    }
}
