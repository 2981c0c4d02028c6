//! An expression as a list of comparisons with jumps.

use super::{Depends, Expr, Field, Test, Values};

/// Where to go on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Next {
    /// The record fits.
    Accept,
    /// The record does not fit.
    Reject,
    /// The comparison with this number decides, which is greater than that of any before it.
    Test(u8),
}

/// A comparison, and where to go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The comparison.
    pub test: Test,
    /// If it holds.
    pub yes: Next,
    /// If it does not.
    pub no: Next,
}

/// An expression that is ready to be evaluated.
///
/// Sets of comparisons are the bits of a `u64`, as there are [`super::MOST_TESTS`] at most.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    entries: Vec<Entry>,
    tasks: u64,
    mappings: u64,
}

impl Program {
    /// Translates an expression, of which [`Expr::parse`] has seen that it is not too long. If it
    /// has more comparisons than that, those that are left over reject.
    pub fn new(expr: &Expr) -> Self {
        // From the end: what a comparison jumps to is there already.
        let mut entries = Vec::new();
        emit(expr, Next::Accept, Next::Reject, &mut entries);
        let count = entries.len().min(super::MOST_TESTS);
        let skipped = entries.len() - count;
        entries.reverse();
        entries.truncate(count);
        let turned = |next: Next| match next {
            Next::Test(at) if usize::from(at) < skipped => Next::Reject,
            Next::Test(at) => Next::Test((count + skipped - 1 - usize::from(at)) as u8),
            end => end,
        };
        for entry in &mut entries {
            (entry.yes, entry.no) = (turned(entry.yes), turned(entry.no));
        }
        let of = |depends| {
            let numbered = entries.iter().enumerate();
            let those = numbered.filter(|(_, e)| e.test.field.depends() == depends);
            those.fold(0, |bits, (at, _)| bits | 1 << at)
        };
        Program {
            tasks: of(Depends::Task),
            mappings: of(Depends::Mapping),
            entries,
        }
    }

    /// The comparisons. The first one is where to begin.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The comparisons of fields that depend on the thread alone.
    pub fn tasks(&self) -> u64 {
        self.tasks
    }

    /// The comparisons of fields that depend on the mapped object alone.
    pub fn mappings(&self) -> u64 {
        self.mappings
    }

    /// Whether an expression is about a field.
    pub fn uses(&self, field: Field) -> bool {
        self.entries.iter().any(|entry| entry.test.field == field)
    }

    /// Which of these comparisons hold.
    pub fn results(&self, of: u64, values: &impl Values) -> u64 {
        let mut holding = 0;
        for (at, entry) in self.entries.iter().enumerate() {
            if of >> at & 1 != 0 && entry.test.holds(values) {
                holding |= 1 << at;
            }
        }
        holding
    }

    /// How far the comparisons in `known` decide, of which those in `holding` hold: the end, or the
    /// first comparison that is not known.
    pub fn decided(&self, known: u64, holding: u64) -> Next {
        self.follow(Next::Test(0), |at, _| {
            (known >> at & 1 != 0).then_some(holding >> at & 1 != 0)
        })
    }

    /// Whether a record fits of which the comparisons in `known` need not be made, because those
    /// in `holding` hold; `from` is what [`Program::decided`] gives for them.
    #[inline]
    pub fn resume(&self, from: Next, known: u64, holding: u64, values: &impl Values) -> bool {
        let end = self.follow(from, |at, test| {
            Some(match known >> at & 1 != 0 {
                true => holding >> at & 1 != 0,
                false => test.holds(values),
            })
        });
        end == Next::Accept
    }

    /// Whether a record fits.
    pub fn accepts(&self, values: &impl Values) -> bool {
        self.resume(Next::Test(0), 0, 0, values)
    }

    /// Goes on from a comparison as long as `result` knows whether it holds.
    #[inline]
    fn follow(&self, mut next: Next, result: impl Fn(u8, &Test) -> Option<bool>) -> Next {
        // Each jump is forwards, so this ends.
        while let Next::Test(at) = next {
            let Some(entry) = self.entries.get(usize::from(at)) else {
                return Next::Reject;
            };
            next = match result(at, &entry.test) {
                Some(true) => entry.yes,
                Some(false) => entry.no,
                None => return next,
            };
        }
        next
    }
}

/// Appends the comparisons of an expression from its end; returns where it begins.
fn emit(expr: &Expr, yes: Next, no: Next, entries: &mut Vec<Entry>) -> Next {
    match expr {
        Expr::Test(test) => {
            entries.push(Entry {
                test: test.clone(),
                yes,
                no,
            });
            u8::try_from(entries.len() - 1).map_or(Next::Reject, Next::Test)
        }
        Expr::Not(inner) => emit(inner, no, yes, entries),
        Expr::All(parts) => parts
            .iter()
            .rev()
            .fold(yes, |next, part| emit(part, next, no, entries)),
        Expr::Any(parts) => parts
            .iter()
            .rev()
            .fold(no, |next, part| emit(part, yes, next, entries)),
    }
}
