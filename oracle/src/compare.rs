//! Compares the kernel's records with the oracle's.
//!
//! Records are compared in order of admission, by these fields: address space, page, kind
//! of access, user or kernel, whether the page was written, whether it was referenced in
//! the second segment, whether an earlier stay goes on, and why the stay ended. If the
//! log is that of a replay, thread, CPU and page frame are compared, too.
//!
//! No difference is tolerated. The cases in which a page counts as written although no
//! store succeeded are modelled; see the crate's documentation. A difference by design
//! would be listed here with its reason. There is none.

use crate::log::Log;
use crate::model::{Access, Page, Shape, Stay, Who};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::{self, Display, Write};

/// Records of either side that are shown before and after a difference.
const CONTEXT: usize = 6;

/// The fields of a record that the log contains.
type Told = (Stay, Option<Who>);

/// The result for two logs that agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreement {
    /// Records compared.
    pub records: u64,
}

/// Why two logs do not agree.
#[derive(Debug)]
pub enum Disagreement {
    /// Nothing was compared.
    Empty(&'static str),
    /// The model's set was of another kind than the kernel's.
    Shape {
        /// The set in the trace's header.
        kernel: Shape,
        /// The model's.
        oracle: Shape,
    },
    /// The first record that differs, or that only one side has.
    Record {
        /// Its number, from 0.
        at: u64,
        /// Both sides around it.
        context: String,
    },
    /// The first record that is in another set than its address space.
    Set {
        /// Its number, from 0.
        at: u64,
        /// The address space.
        mm: u32,
        /// The set in the trace.
        set: u32,
        /// That of the address space.
        must: u32,
    },
    /// The records are the same, but the oracle counted a violation, or met something that it
    /// could not explain.
    Violations(String),
}

impl Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Disagreement::Empty(what) => write!(f, "{what}: nothing was compared"),
            Disagreement::Shape { kernel, oracle } => {
                write!(f, "the kernel's set is {kernel}, the oracle's {oracle}")
            }
            Disagreement::Record { at, context } => {
                write!(f, "record {at} is the first that differs:\n{context}")
            }
            Disagreement::Set { at, mm, set, must } => write!(
                f,
                "record {at} is in set {set}, and its address space {mm} in set {must}"
            ),
            Disagreement::Violations(what) => f.write_str(what),
        }
    }
}

fn show((s, who): &Told) -> String {
    let who = who.map_or(String::new(), |w| {
        format!(", thread {} on CPU {}, frame {:#x}", w.tid, w.cpu, w.pfn)
    });
    format!(
        "mm {:<3} {:#014x} {} {} {} {} {}ended by {}{who}",
        s.page.mm,
        s.page.addr,
        match s.access {
            Access::Read => "read ",
            Access::Write => "write",
            Access::Exec => "exec ",
            Access::Seen => "seen ",
        },
        if s.kernel { "kernel" } else { "user  " },
        if s.dirtied { "dirtied" } else { "clean  " },
        if s.again { "again" } else { "     " },
        if s.goes_on { "goes on, " } else { "" },
        why(s.why),
    )
}

fn why(number: u8) -> &'static str {
    const NAMES: [&str; 16] = [
        "eviction",
        "unmap",
        "copy-on-write",
        "protect",
        "reclaim",
        "move",
        "exit",
        "the trace's end",
        "migration",
        "advice",
        "truncation",
        "another clearing",
        "renewal",
        "second chance",
        "another piece",
        "the end of an interval",
    ];
    NAMES.get(usize::from(number)).unwrap_or(&"?")
}

/// Pages that either side has records of.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Pages {
    /// Pages that both sides have.
    pub both: u64,
    /// Pages that at least one side has.
    pub either: u64,
}

/// Compares the pages that records are about, whatever else differs.
pub fn pages(kernel: impl IntoIterator<Item = Page>, log: &Log) -> Pages {
    let kernel: HashSet<Page> = kernel.into_iter().collect();
    let ours: HashSet<Page> = log.stays.iter().map(|s| s.page).collect();
    let both = kernel.intersection(&ours).count() as u64;
    Pages {
        both,
        either: (kernel.len() + ours.len()) as u64 - both,
    }
}

/// Whether each of the kernel's records, of which these are the address space and the set that the
/// trace has it in, is in the set of its address space.
///
/// # Errors
///
/// The first one that is not.
pub fn sets(kernel: impl IntoIterator<Item = (u32, u32)>, log: &Log) -> Result<(), Disagreement> {
    let sets: HashMap<u32, u32> = log.sets.iter().copied().collect();
    for (at, (mm, set)) in (0..).zip(kernel) {
        let must = sets.get(&mm).copied().unwrap_or(0);
        if set != must {
            return Err(Disagreement::Set { at, mm, set, must });
        }
    }
    Ok(())
}

/// Compares the kernel's records, in order, with the oracle's log. `shape` is the kind of the
/// set in the trace's header.
///
/// # Errors
///
/// The first disagreement.
pub fn compare(
    shape: Shape,
    kernel: impl IntoIterator<Item = (Stay, Who)>,
    log: &Log,
) -> Result<Agreement, Disagreement> {
    let c = &log.counts;
    if log.shape != shape {
        return Err(Disagreement::Shape {
            kernel: shape,
            oracle: log.shape,
        });
    }
    if log.stays.is_empty() {
        return Err(Disagreement::Empty("the oracle's log has no records"));
    }
    if c.fetches == 0 || c.loads == 0 || c.stores == 0 {
        return Err(Disagreement::Empty("the oracle saw no accesses"));
    }
    let mut kernel = kernel
        .into_iter()
        .map(|(stay, who)| (stay, (!log.whos.is_empty()).then_some(who)));
    let mut before = VecDeque::new();
    let mut records = 0u64;
    for at in 0..log.stays.len() {
        let got = kernel.next();
        if got != told(log, at) {
            if at == 0 && got.is_none() {
                return Err(Disagreement::Empty("the trace has no records"));
            }
            return Err(difference(log, at, &before, got, &mut kernel));
        }
        if before.len() == CONTEXT {
            before.pop_front();
        }
        before.extend(got);
        records += 1;
    }
    if let Some(extra) = kernel.next() {
        return Err(difference(
            log,
            log.stays.len(),
            &before,
            Some(extra),
            &mut kernel,
        ));
    }
    if c.violations() > 0 {
        return Err(Disagreement::Violations(format!(
            "all {records} records agree, but the oracle saw violations:\n{}",
            summary(log)
        )));
    }
    Ok(Agreement { records })
}

/// The oracle's record.
fn told(log: &Log, at: usize) -> Option<Told> {
    Some((*log.stays.get(at)?, log.whos.get(at).copied()))
}

fn difference(
    log: &Log,
    at: usize,
    before: &VecDeque<Told>,
    got: Option<Told>,
    kernel: &mut impl Iterator<Item = Told>,
) -> Disagreement {
    let mut text = String::new();
    let first = at - before.len();
    for (i, s) in before.iter().enumerate() {
        let _ = writeln!(text, "  both   {:>8}  {}", first + i, show(s));
    }
    let none = "(no more records)".to_owned();
    let side = |text: &mut String, name: &str, records: Vec<String>| {
        for (i, s) in records.iter().enumerate() {
            let mark = if i == 0 { '>' } else { ' ' };
            let _ = writeln!(text, "{mark} {name} {:>8}  {s}", at + i);
        }
    };
    let mut theirs: Vec<_> = got.iter().map(show).collect();
    theirs.extend(kernel.take(CONTEXT).map(|s| show(&s)));
    let ours = (at..=at + CONTEXT).map_while(|at| told(log, at));
    let mut ours: Vec<_> = ours.map(|s| show(&s)).collect();
    for list in [&mut theirs, &mut ours] {
        if list.is_empty() {
            list.push(none.clone());
        }
    }
    side(&mut text, "kernel", theirs);
    side(&mut text, "oracle", ours);
    text.push_str(&summary(log));
    Disagreement::Record {
        at: at as u64,
        context: text,
    }
}

/// The oracle's counts and notes, for people.
pub fn summary(log: &Log) -> String {
    let names = crate::log::Counts::NAMES.iter();
    let counts: Vec<_> = names
        .zip(log.counts.values())
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    format!(
        "the oracle: {} records, {}\n{}",
        log.stays.len(),
        counts.join(", "),
        log.notes
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Counts;
    use crate::model::{Model, Sets};

    fn log() -> Log {
        Log {
            counts: Counts {
                fetches: 1,
                loads: 1,
                stores: 1,
                ..Counts::default()
            },
            ..crate::log::tests::example()
        }
    }

    fn shape() -> Shape {
        log().shape
    }

    /// Records that tell no more than the stays.
    fn of(stays: &[Stay]) -> Vec<(Stay, Who)> {
        stays.iter().map(|s| (*s, Who::default())).collect()
    }

    fn first(kernel: Vec<Stay>, log: &Log) -> Option<u64> {
        match compare(shape(), of(&kernel), log) {
            Err(Disagreement::Record { at, .. }) => Some(at),
            _ => None,
        }
    }

    #[test]
    fn the_same_agrees() {
        let log = log();
        let agreement = compare(shape(), of(&log.stays), &log).unwrap();
        assert_eq!(agreement.records, 4);
    }

    /// A change of a stay.
    type Change = fn(&mut Stay);

    #[test]
    fn each_field_counts() {
        let log = log();
        let changes: [Change; 9] = [
            |s| s.page.addr += 4096,
            |s| s.page.mm += 1,
            |s| s.access = Access::Read,
            |s| s.kernel = !s.kernel,
            |s| s.dirtied = !s.dirtied,
            |s| s.why = 1,
            |s| s.access = Access::Seen,
            |s| s.again = !s.again,
            |s| s.goes_on = true,
        ];
        for (i, change) in changes.iter().enumerate() {
            let mut kernel = log.stays.clone();
            change(&mut kernel[1]);
            assert_eq!(first(kernel, &log), Some(1), "change {i}");
        }
    }

    #[test]
    fn each_field_of_a_replay_counts() {
        let log = Log {
            counts: log().counts,
            ..crate::log::tests::replayed()
        };
        let told = || {
            log.stays
                .iter()
                .copied()
                .zip(log.whos.iter().copied())
                .collect::<Vec<_>>()
        };
        assert_eq!(compare(shape(), told(), &log).unwrap().records, 4);
        let changes: [fn(&mut Who); 3] = [|w| w.tid += 1, |w| w.cpu += 1, |w| w.pfn += 1];
        for change in changes {
            let mut kernel = told();
            change(&mut kernel[2].1);
            let found = compare(shape(), kernel, &log);
            assert!(matches!(found, Err(Disagreement::Record { at: 2, .. })));
        }
    }

    #[test]
    fn pages_of_one_side_only_are_told() {
        let log = log();
        let mut kernel: Vec<_> = log.stays.iter().map(|s| s.page).collect();
        let same = pages(kernel.clone(), &log);
        assert_eq!((same.both, same.either), (3, 3));
        kernel.remove(0);
        kernel.push(Page { mm: 9, addr: 0 });
        let other = pages(kernel, &log);
        assert_eq!((other.both, other.either), (2, 4));
    }

    #[test]
    fn a_missing_an_extra_and_an_exchanged_record_are_found() {
        let log = log();
        let mut short = log.stays.clone();
        short.pop();
        assert_eq!(first(short, &log), Some(3));
        let mut long = log.stays.clone();
        long.push(log.stays[0]);
        assert_eq!(first(long, &log), Some(4));
        let mut swapped = log.stays.clone();
        swapped.swap(0, 1);
        assert_eq!(first(swapped, &log), Some(0));
    }

    #[test]
    fn a_difference_shows_both_sides() {
        let log = log();
        let mut kernel = log.stays.clone();
        kernel[2].kernel = true;
        let text = compare(shape(), of(&kernel), &log).unwrap_err().to_string();
        for part in [
            "record 2 is the first",
            "both          1  mm 3   0x7fffffffe000 write kernel dirtied",
            "> kernel        2  mm 3   0x000000003000 read  kernel",
            "> oracle        2  mm 3   0x000000003000 read  user",
            "a line",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn nothing_does_not_agree_with_nothing() {
        let mut empty = log();
        empty.stays.clear();
        assert!(matches!(
            compare(shape(), vec![], &empty),
            Err(Disagreement::Empty(_))
        ));
        assert!(matches!(
            compare(shape(), vec![], &log()),
            Err(Disagreement::Empty(_))
        ));
        let mut blind = log();
        blind.counts.stores = 0;
        assert!(matches!(
            compare(shape(), of(&blind.stays), &blind),
            Err(Disagreement::Empty(_))
        ));
    }

    #[test]
    fn another_set_does_not_agree() {
        let log = log();
        assert!(matches!(
            compare(Shape::fifo(16), of(&log.stays), &log),
            Err(Disagreement::Shape { .. })
        ));
        for other in [
            Shape {
                first: 17,
                ..shape()
            },
            Shape {
                again: false,
                ..shape()
            },
            Shape {
                clock: false,
                ..shape()
            },
            Shape {
                batch: 4,
                ..shape()
            },
            Shape {
                sets: Sets::Process,
                ..shape()
            },
        ] {
            let found = compare(other, of(&log.stays), &log).unwrap_err();
            assert!(
                found.to_string().contains("the oracle's a CLOCK"),
                "{found}"
            );
        }
    }

    #[test]
    fn a_record_in_another_set_is_found() {
        // The log has sets for address spaces 3 and 4.
        let log = log();
        assert!(sets([(3, 1), (4, 7), (5, 0), (3, 1)], &log).is_ok());
        for wrong in [(3, 7), (4, 0), (5, 1)] {
            let found = sets([(3, 1), wrong], &log);
            assert!(matches!(found, Err(Disagreement::Set { at: 1, .. })));
        }
    }

    #[test]
    fn records_of_several_sets_have_one_order() {
        // Two processes with sets of two read three pages each, in turn.
        let sets = |sets| {
            let mut model = Model::new(Shape {
                first: 1,
                sets,
                ..Shape::fifo(2)
            });
            for mm in [1, 2] {
                model.enter(mm, if sets == Sets::One { 0 } else { mm });
            }
            for n in 1..4 {
                for mm in [1, 2] {
                    let page = Page { mm, addr: n << 12 };
                    model.admit(page, Access::Read, false);
                }
            }
            model.finish()
        };
        let log = Log {
            stays: sets(Sets::Process),
            ..log()
        };
        assert_eq!(first(log.stays.clone(), &log), None);
        // In the order of the sets; by the numbers of all sets.
        let mut sorted = log.stays.clone();
        sorted.sort_by_key(|s| s.page.mm);
        assert_eq!(first(sorted, &log), Some(1));
        assert_eq!(first(sets(Sets::One), &log), Some(2));
    }

    #[test]
    fn violations_fail_although_the_records_agree() {
        for spoil in [
            |c: &mut Counts| c.escaped = 1,
            |c: &mut Counts| c.foreign_closings = 1,
            |c: &mut Counts| c.confused = 1,
            |c: &mut Counts| c.unfounded = 1,
            |c: &mut Counts| c.misplaced = 1,
            |c: &mut Counts| c.mistold = 1,
        ] {
            let mut log = log();
            spoil(&mut log.counts);
            assert!(matches!(
                compare(shape(), of(&log.stays), &log),
                Err(Disagreement::Violations(_))
            ));
        }
    }
}
