//! How large the set must be so that tracing costs programs no more than the user allows.
//!
//! The share of their time that programs lose is known from the times of a reference and of an event,
//! which are measured before the trace begins, from the numbers of both, and from the time that
//! the programs have had a CPU. A larger set makes fewer references. How many fewer depends on the
//! program: some have hardly fewer until the set has all that they use, and then none.
//!
//! So N follows what was lost, step by step. What programs have lost too much is a debt, which is
//! to be paid back over some time: meanwhile they may lose less than their share. If N is as large
//! as it may be, and programs still lose too much, the window is closed until the debt is paid.

use std::time::Duration;

/// Between two looks, at the beginning and later.
const SOON: Duration = Duration::from_millis(20);
const LATER: Duration = Duration::from_millis(100);
/// So many looks come soon.
const EARLY_LOOKS: u32 = 50;
/// Programs must have run so long since the last step before the next one, ns. Less says little
/// about them.
const ENOUGH: f64 = 5e6;
/// A debt is paid back over this time of the programs, or over a part of the time until now,
/// whichever is longer, ns.
const LEAST_TERM: f64 = 0.5e9;
const TERM: f64 = 0.25;
/// The share that is aimed at lies between these parts of the share that is allowed.
const LEAST_AIM: f64 = 0.1;
const GREATEST_AIM: f64 = 2.5;
/// By how much of what seems right N is changed, as a power, and the factors that limit a change.
const GAIN: f64 = 0.7;
const SHRINK: f64 = 0.5;
const GROW: f64 = 4.0;
/// Smaller changes are not worth an event in the trace.
const DEAD: f64 = 0.06;
/// At most so much time of the programs may be unused budget, ns. So programs that rested do not pay
/// for that with a long time of a tiny set.
const MOST_CREDIT: f64 = 10e9;
/// With windows, the debt goes up and down by what programs may lose in this part of their time until
/// now, within these limits, ns. So a program that ends after a second has kept to its budget, and
/// the windows of long ones are long.
const SWING: f64 = 0.05;
const LEAST_SWING: f64 = 0.1e9;
const GREATEST_SWING: f64 = 2e9;

/// What the user allows, and what a reference costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// How many times as long programs may take: 1.1.
    pub slowdown: f64,
    /// The time of a reference, ns.
    pub reference_ns: f64,
    /// The time of an event, ns.
    pub event_ns: f64,
    /// The smallest N.
    pub least: u32,
    /// The largest N.
    pub most: u32,
    /// Whether windows may be ended and begun.
    pub windows: bool,
}

impl Budget {
    /// The time that what was counted has taken, ns.
    fn lost(&self, look: &Look) -> f64 {
        look.references as f64 * self.reference_ns + look.events as f64 * self.event_ns
    }

    /// How many times as long programs took that have these counts; `None` if they did not run.
    pub fn slowdown_of(&self, look: &Look) -> Option<f64> {
        slowdown(look.ran as f64, self.lost(look))
    }
}

/// How many times as long programs took that have had a CPU for `ran` ns, of which they have lost so
/// many; `None` if they did not run.
pub fn slowdown(ran: f64, lost: f64) -> Option<f64> {
    (ran > 0.0).then(|| ran / own(ran, lost))
}

/// Of the time `ran`, what programs would have taken without a trace. If the reference takes
/// less time than was measured, more may seem to be lost than there was.
fn own(ran: f64, lost: f64) -> f64 {
    (ran - lost).max(ran / 100.0)
}

/// What the kernel has counted until a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// For how long programs have had a CPU, ns.
    pub ran: u64,
    /// References.
    pub references: u64,
    /// Events. Their number does not depend on N.
    pub events: u64,
    /// N.
    pub n: u32,
    /// Whether a window is open, or has ended and its records are still being written.
    pub is_open: bool,
    /// Windows that have begun.
    pub windows: u32,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Keep,
    /// N is to be this.
    Resize(u32),
    /// The window is to end.
    Pause,
    /// The next window is to begin.
    Resume,
}

/// Follows a trace.
#[derive(Clone, Debug)]
pub struct Governor {
    budget: Budget,
    looks: u32,
    last: Look,
    /// What programs have lost more than they may, ns; negative if they may lose more.
    debt: f64,
    /// What programs have run without what they have lost, ns.
    own: f64,
    /// If a window was ended here: how many had begun until then.
    paused: Option<u32>,
    /// Half of what windows cost by themselves, as far as that is known.
    dear: f64,
    /// What was lost when the window began, and the debt at the first look at it.
    window_began: f64,
    first_debt: Option<f64>,
    /// Whether programs lost too much with the largest N.
    exceeded: bool,
}

impl Governor {
    /// Begins with a trace that has just begun.
    pub fn new(budget: Budget) -> Self {
        Self {
            budget,
            looks: 0,
            last: Look::default(),
            debt: 0.0,
            own: 0.0,
            paused: None,
            dear: 0.0,
            window_began: 0.0,
            first_debt: None,
            exceeded: false,
        }
    }

    /// What the user allows.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Whether programs lost more than they may although N was as large as it may be.
    pub fn is_exceeded(&self) -> bool {
        self.exceeded
    }

    /// How far the debt goes up with a window and down without one, ns.
    fn swing(&self) -> f64 {
        let share = self.budget.slowdown - 1.0;
        let time = (SWING * self.own).clamp(LEAST_SWING, GREATEST_SWING);
        self.dear.max(share * time)
    }

    /// When the next look is due. An open window costs much where windows are needed, so a late look
    /// would be dear.
    pub fn rest(&self) -> Duration {
        let is_largest = self.last.n >= self.budget.most;
        let is_window = self.budget.windows && is_largest && self.paused.is_none();
        match is_window || self.looks < EARLY_LOOKS {
            true => SOON,
            false => LATER,
        }
    }

    /// Looks at what was counted, and gives what is to be done.
    pub fn look(&mut self, now: Look) -> Step {
        self.looks = self.looks.saturating_add(1);
        let ran = now.ran.saturating_sub(self.last.ran) as f64;
        if ran < ENOUGH {
            return Step::Keep;
        }
        let budget = self.budget;
        let share = budget.slowdown - 1.0;
        let lost = (budget.lost(&now) - budget.lost(&self.last)).max(0.0);
        let own = own(ran, lost);
        self.last = now;
        self.own += own;
        self.debt = (self.debt + lost - share * own).max(-share * MOST_CREDIT);
        // Somebody else may have begun one meanwhile.
        self.paused = self.paused.filter(|windows| *windows == now.windows);
        if self.paused.is_some() || !now.is_open {
            return self.closed(now.is_open);
        }
        self.first_debt.get_or_insert(self.debt);
        let term = LEAST_TERM.max(TERM * self.own);
        let aim = (share - self.debt / term).clamp(LEAST_AIM * share, GREATEST_AIM * share);
        let was = lost / own;
        if now.n >= budget.most && was > aim && self.debt > self.swing() {
            return self.pause();
        }
        // A little less than the whole working set can cost many times as much. So N shrinks only
        // when nothing is owed: what that costs is paid back first.
        let shrink = if self.debt > 0.0 { 1.0 } else { SHRINK };
        let factor = (was / aim).powf(GAIN).clamp(shrink, GROW);
        let n = (f64::from(now.n) * factor).round() as u32;
        let n = n.clamp(budget.least, budget.most);
        let change = f64::from(n) / f64::from(now.n.max(1));
        // At the ends of the range, small steps arrive, too.
        let is_end = n == budget.least || n == budget.most;
        match n == now.n || ((change - 1.0).abs() < DEAD && !is_end) {
            true => Step::Keep,
            false => Step::Resize(n),
        }
    }

    /// Too much is lost with the largest N.
    fn pause(&mut self) -> Step {
        self.exceeded = true;
        if !self.budget.windows {
            return Step::Keep;
        }
        // A window costs something by itself: the first reference to each page. If that alone is as
        // much as may be owed, the next window is to begin when there is as much to spend.
        let lost = self.budget.lost(&self.last) - self.window_began;
        let is_dear = self
            .first_debt
            .take()
            .is_some_and(|debt| debt > self.swing());
        self.dear = if is_dear { lost / 2.0 } else { 0.0 };
        self.paused = Some(self.last.windows);
        Step::Pause
    }

    /// No window is open, or one that has just ended is being written. One that somebody else has
    /// ended is not begun here.
    fn closed(&mut self, is_written: bool) -> Step {
        self.first_debt = None;
        if self.paused.is_none() || is_written || self.debt > -self.swing() {
            return Step::Keep;
        }
        self.paused = None;
        self.window_began = self.budget.lost(&self.last);
        Step::Resume
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A program that makes so many references in a second of its own time, if N is that.
    trait Program {
        fn rate(&self, n: u32, at: f64) -> f64;
        /// References at the beginning of a window.
        fn first(&self) -> f64 {
            0.0
        }
        /// Events in a second of its own time.
        fn events(&self) -> f64 {
            0.0
        }
    }

    impl<F: Fn(u32, f64) -> f64> Program for F {
        fn rate(&self, n: u32, at: f64) -> f64 {
            self(n, at)
        }
    }

    /// What came of a run.
    #[derive(Debug)]
    struct Ran {
        slowdown: f64,
        resizes: usize,
        windows: usize,
        /// Share of the program's own time in windows.
        open: f64,
        last: u32,
        exceeded: bool,
    }

    /// Runs a program for `seconds` of its own time. A reference takes `really` ns.
    fn run(budget: Budget, really: f64, program: &dyn Program, seconds: f64) -> Ran {
        let mut governor = Governor::new(budget);
        let mut look = Look {
            n: 512.clamp(budget.least, budget.most),
            is_open: true,
            ..Look::default()
        };
        let (mut at, mut lost, mut references, mut open) = (0.0, 0.0, program.first(), 0.0);
        let mut events = 0.0;
        let (mut resizes, mut windows) = (0, 1);
        while at < seconds {
            // It runs for as long as the governor rests.
            let wall = governor.rest().as_secs_f64();
            let rate = match look.is_open {
                true => program.rate(look.n, at),
                false => 0.0,
            };
            let logged = if look.is_open { program.events() } else { 0.0 };
            let own = wall / (1.0 + (rate * really + logged * budget.event_ns) / 1e9);
            at += own;
            events += logged * own;
            open += if look.is_open { own } else { 0.0 };
            references += rate * own;
            lost = references * really + events * budget.event_ns;
            look.events = events as u64;
            look.ran = (at * 1e9 + lost) as u64;
            look.references = references as u64;
            match governor.look(look) {
                Step::Keep => {}
                Step::Resize(n) => {
                    resizes += 1;
                    look.n = n;
                    assert!((budget.least..=budget.most).contains(&n), "{n}");
                }
                Step::Pause => look.is_open = false,
                Step::Resume => {
                    windows += 1;
                    look.is_open = true;
                    references += program.first();
                }
            }
        }
        Ran {
            slowdown: 1.0 + lost / (at * 1e9),
            resizes,
            windows,
            open: open / at,
            last: look.n,
            exceeded: governor.is_exceeded(),
        }
    }

    fn budget(slowdown: f64) -> Budget {
        Budget {
            slowdown,
            reference_ns: 800.0,
            event_ns: 600.0,
            least: 32,
            most: 1 << 16,
            windows: false,
        }
    }

    /// Within a fifth of what programs may lose.
    fn is_near(ran: &Ran, slowdown: f64) -> bool {
        ((ran.slowdown - 1.0) / (slowdown - 1.0) - 1.0).abs() <= 0.2
    }

    /// References fall with N as a power of it.
    fn smooth(power: f64) -> impl Fn(u32, f64) -> f64 {
        move |n, _| 3e6 * (64.0 / f64::from(n)).powf(power)
    }

    /// Hardly any references when N has reached `size`, and many before.
    fn cliff(size: u32) -> impl Fn(u32, f64) -> f64 {
        move |n, _| if n < size { 1.5e6 } else { 300.0 }
    }

    #[test]
    fn programs_of_many_kinds() {
        for slowdown in [1.05, 1.1, 1.5, 3.0] {
            for power in [0.6, 1.0, 2.0, 4.0] {
                let ran = run(budget(slowdown), 800.0, &smooth(power), 5.0);
                assert!(is_near(&ran, slowdown), "{slowdown} {power}: {ran:?}");
            }
            for size in [100, 500, 3000, 20_000] {
                let ran = run(budget(slowdown), 800.0, &cliff(size), 10.0);
                // N goes up and down the cliff. Below it, a program takes 2.2 times as long.
                let most = slowdown.min(2.2);
                assert!(is_near(&ran, most), "{slowdown} {size}: {ran:?}");
            }
            let phases = |n: u32, at: f64| match at as u64 % 3 {
                0 => smooth(1.0)(n, at),
                1 => smooth(2.0)(4 * n, at),
                _ => cliff(2000)(n, at),
            };
            let ran = run(budget(slowdown), 800.0, &phases, 20.0);
            assert!(is_near(&ran, slowdown), "{slowdown}: {ran:?}");
        }
    }

    #[test]
    fn budget_that_was_not_used_has_a_limit() {
        let (quiet, busy) = (200.0, 30.0);
        let late = |n: u32, at: f64| if at < quiet { 0.0 } else { smooth(1.0)(n, at) };
        let ran = run(budget(1.1), 800.0, &late, quiet + busy);
        let lost = (ran.slowdown - 1.0) * (quiet + busy);
        // What it may lose in its busy time, and what was left of the budget before.
        let most = 0.1 * (busy + MOST_CREDIT / 1e9);
        assert!(
            lost > 0.1 * busy && lost < 1.2 * most,
            "{lost} s of {most} s: {ran:?}"
        );
    }

    #[test]
    fn a_program_that_needs_no_set() {
        // Even with the smallest set it loses less than it may.
        let ran = run(budget(1.1), 800.0, &|_: u32, _: f64| 1000.0, 5.0);
        assert!(ran.slowdown < 1.01 && ran.last == 32, "{ran:?}");
        assert!(!ran.exceeded && ran.resizes < 10, "{ran:?}");
    }

    #[test]
    fn a_program_for_which_no_set_is_large_enough() {
        let stream = |_: u32, _: f64| 1e6;
        let ran = run(budget(1.1), 800.0, &stream, 5.0);
        assert!(ran.slowdown > 1.7 && ran.exceeded, "{ran:?}");
        assert_eq!((ran.last, ran.windows, ran.open), (1 << 16, 1, 1.0));
        let windows = Budget {
            windows: true,
            ..budget(1.1)
        };
        let ran = run(windows, 800.0, &stream, 20.0);
        assert!(is_near(&ran, 1.1) && ran.exceeded, "{ran:?}");
        assert!(ran.windows > 5 && ran.open > 0.08, "{ran:?}");
    }

    #[test]
    fn programs_that_end_soon_or_late_with_windows() {
        let windows = Budget {
            windows: true,
            most: 64,
            ..budget(1.5)
        };
        // With the largest set, they take ten times as long.
        let stream = |_: u32, _: f64| 11e6;
        for seconds in (20..200).step_by(3) {
            let ran = run(windows, 800.0, &stream, f64::from(seconds) / 20.0);
            assert!(is_near(&ran, 1.5), "{seconds}: {ran:?}");
        }
    }

    #[test]
    fn windows_do_not_grow_longer_and_longer() {
        let windows = Budget {
            windows: true,
            most: 64,
            ..budget(1.5)
        };
        let stream = |_: u32, _: f64| 11e6;
        let ran = run(windows, 800.0, &stream, 2000.0);
        assert!(is_near(&ran, 1.5) && ran.windows > 400, "{ran:?}");
    }

    #[test]
    fn windows_that_are_dear_themselves() {
        struct Large;
        impl Program for Large {
            fn rate(&self, _: u32, _: f64) -> f64 {
                5e5
            }
            fn first(&self) -> f64 {
                50_000.0
            }
        }
        let windows = Budget {
            windows: true,
            ..budget(1.1)
        };
        let ran = run(windows, 800.0, &Large, 60.0);
        assert!(is_near(&ran, 1.1), "{ran:?}");
        assert!(ran.windows > 10 && ran.windows < 200, "{ran:?}");
    }

    #[test]
    fn events_take_time_too() {
        struct Reader;
        impl Program for Reader {
            fn rate(&self, n: u32, _: f64) -> f64 {
                smooth(1.0)(n, 0.0)
            }
            fn events(&self) -> f64 {
                60_000.0
            }
        }
        let ran = run(budget(1.1), 800.0, &Reader, 5.0);
        assert!(is_near(&ran, 1.1), "{ran:?}");
        let fewer = run(budget(1.1), 800.0, &smooth(1.0), 5.0);
        assert!(ran.last > fewer.last, "{ran:?} {fewer:?}");
        // They alone take more than is allowed.
        let ran = run(budget(1.02), 800.0, &Reader, 5.0);
        assert!(ran.exceeded && ran.last == 1 << 16, "{ran:?}");
    }

    #[test]
    fn looks_at_programs_that_rest_change_nothing() {
        let mut governor = Governor::new(budget(1.1));
        let look = Look {
            ran: 50_000_000,
            references: 60_000,
            n: 512,
            is_open: true,
            ..Look::default()
        };
        assert!(matches!(governor.look(look), Step::Resize(n) if n > 512));
        let before = governor.clone();
        for _ in 0..100 {
            assert_eq!(governor.look(look), Step::Keep);
        }
        let state = |g: &Governor| (g.debt, g.own, g.last, g.paused);
        assert_eq!(state(&governor), state(&before));
        // It need not look so often any more.
        assert!(governor.rest() > before.rest());
    }

    #[test]
    fn windows_that_are_still_written_and_that_somebody_else_begins() {
        let mut governor = Governor::new(Budget {
            windows: true,
            most: 512,
            ..budget(1.1)
        });
        let mut look = Look {
            n: 512,
            is_open: true,
            windows: 1,
            ..Look::default()
        };
        let mut until = |look: &mut Look, references, want, most| {
            for looks in 0..=most {
                look.ran += 20_000_000;
                look.references += references;
                let step = governor.look(*look);
                if step == want {
                    return looks;
                }
                assert_eq!(step, Step::Keep, "{look:?}");
            }
            panic!("no {want:?}: {look:?}");
        };
        until(&mut look, 20_000, Step::Pause, 10);
        // Its records are being written for long after the debt is paid: N stays, and no other begins.
        for _ in 0..100 {
            until(&mut look, 0, Step::Keep, 0);
        }
        look.is_open = false;
        assert_eq!(until(&mut look, 0, Step::Resume, 0), 0);
        (look.is_open, look.windows) = (true, 2);
        until(&mut look, 20_000, Step::Pause, 100);
        // Now somebody else begins one, which is then treated like any other.
        look.windows = 3;
        until(&mut look, 20_000, Step::Pause, 100);
    }

    #[test]
    fn a_window_that_somebody_else_has_ended() {
        let mut governor = Governor::new(Budget {
            windows: true,
            ..budget(1.1)
        });
        let mut look = Look {
            n: 1 << 16,
            ..Look::default()
        };
        for _ in 0..1000 {
            look.ran += 20_000_000;
            assert_eq!(governor.look(look), Step::Keep);
        }
    }

    #[test]
    fn slowdown_of_a_run() {
        let budget = budget(1.1);
        let slowdown = |ran, references, events| {
            let counted = Look {
                ran,
                references,
                events,
                ..Look::default()
            };
            budget.slowdown_of(&counted)
        };
        assert_eq!(slowdown(0, 0, 0), None);
        let near = |got: Option<f64>, want: f64| got.is_some_and(|g| (g - want).abs() < 1e-9);
        assert!(near(slowdown(1_800_000, 1000, 0), 1.8));
        assert!(near(slowdown(2_800_000, 1000, 2000), 3.5));
        // More than there was.
        assert!(near(slowdown(1000, 1000, 0), 100.0));
    }

    proptest! {
        /// Whatever comes, N stays within its limits, and windows end and begin in turn.
        #[test]
        fn limits_hold(
            looks in prop::collection::vec((0u64..200_000_000, 0u64..1_000_000), 1..300),
            slowdown in 1.01f64..10.0,
        ) {
            let budget = Budget { windows: true, most: 4096, ..budget(slowdown) };
            let mut governor = Governor::new(budget);
            let mut look = Look { n: 512, is_open: true, ..Look::default() };
            for (ran, references) in looks {
                look.ran += ran;
                look.references += if look.is_open { references } else { 0 };
                match governor.look(look) {
                    Step::Keep => {}
                    Step::Resize(n) => {
                        prop_assert!(look.is_open && n != look.n);
                        prop_assert!((budget.least..=budget.most).contains(&n));
                        look.n = n;
                    }
                    Step::Pause => {
                        prop_assert!(look.is_open && look.n == budget.most);
                        look.is_open = false;
                    }
                    Step::Resume => {
                        prop_assert!(!look.is_open);
                        look.is_open = true;
                    }
                }
            }
        }
    }
}
