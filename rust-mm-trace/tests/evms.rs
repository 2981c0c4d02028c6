//! The set against a naive model: a list of the last N admissions.

use proptest::prelude::*;
use rust_mm_trace::evms::{Admission, Evms, Reserve, Slot};

/// What can happen to the set.
#[derive(Clone, Debug)]
enum Op {
    Touch { mm: u32, page: u64 },
    Clear { mm: u32, page: u64, dirty: bool },
    Dirty { mm: u32, page: u64 },
    Abort,
    Retire,
}

fn op() -> impl Strategy<Value = Op> {
    let page = (1u32..4, 0u64..24);
    prop_oneof![
        12 => page.clone().prop_map(|(mm, page)| Op::Touch { mm, page: page << 12 }),
        3 => (page.clone(), any::<bool>())
            .prop_map(|((mm, page), dirty)| Op::Clear { mm, page: page << 12, dirty }),
        2 => page.prop_map(|(mm, page)| Op::Dirty { mm, page: page << 12 }),
        1 => Just(Op::Abort),
        1 => Just(Op::Retire),
    ]
}

/// One admission of the model.
#[derive(Clone, Debug, PartialEq)]
struct Stay {
    seq: u64,
    mm: u32,
    page: u64,
    live: bool,
    aborted: bool,
    dirtied: bool,
    why: u64,
}

fn new(n: usize, backlog: usize) -> Evms {
    Evms::new(
        vec![Slot::EMPTY; Evms::slots_for(n, backlog)],
        vec![0; Evms::buckets_for(n)],
        n,
    )
    .expect("sizes fit")
}

fn drain(evms: &mut Evms, all: bool, out: &mut Vec<(u64, u32, u64)>) {
    evms.retire(all, |s| {
        out.push((s.seq, s.mm, s.page));
        true
    });
}

proptest! {
    #[test]
    fn equals_the_last_n_admissions(n in 1usize..12, ops in prop::collection::vec(op(), 1..400)) {
        let mut evms = new(n, 8);
        let mut model: Vec<Stay> = Vec::new();
        let (mut seq, mut out) = (0u64, Vec::new());
        for (time, op) in (1u64..).zip(ops) {
            let start = model.len().saturating_sub(n);
            let find = |model: &[Stay], mm, page| {
                (start..model.len()).rev().find(|&i| {
                    model[i].live && model[i].mm == mm && model[i].page == page
                })
            };
            match op {
                Op::Touch { mm, page } if find(&model, mm, page).is_some() => {
                    prop_assert!(evms.contains(mm, page));
                }
                Op::Touch { .. } | Op::Abort => {
                    drain(&mut evms, false, &mut out);
                    let reserve = evms.reserve(time, || { seq += 1; seq });
                    let Reserve::Go(ordinal, victim) = reserve else {
                        return Err(TestCaseError::fail("no room after retiring"));
                    };
                    prop_assert_eq!(ordinal, model.len() as u64);
                    let old = model.len().checked_sub(n).filter(|&v| model[v].live);
                    prop_assert_eq!(victim.map(|v| v.ordinal), old.map(|v| v as u64));
                    if let (Some(v), Some(i)) = (victim, old) {
                        prop_assert_eq!(v.addr, model[i].page);
                        prop_assert!(evms.evict(v.ordinal, 0, time, || false));
                        prop_assert!(!evms.evict(v.ordinal, 0, time, || unreachable!()));
                        model[i].live = false;
                    }
                    let mut stay = Stay {
                        seq, mm: 0, page: 0, live: false, aborted: true, dirtied: false, why: 0,
                    };
                    if let Op::Touch { mm, page } = op {
                        let a = Admission { owner: 1,
                table: 2, page, mm, tid_cpu: 0, pfn: 0, was_dirty: false };
                        evms.admit(ordinal, &a);
                        stay = Stay { mm, page, live: true, aborted: false, ..stay };
                    } else {
                        evms.abort(ordinal);
                    }
                    model.push(stay);
                }
                Op::Clear { mm, page, dirty } => {
                    let i = find(&model, mm, page);
                    prop_assert_eq!(evms.close(mm, page, dirty, 2, time), i.is_some());
                    if let Some(i) = i {
                        model[i].live = false;
                        model[i].dirtied |= dirty;
                        model[i].why = 2;
                    }
                }
                Op::Dirty { mm, page } => {
                    let i = find(&model, mm, page);
                    prop_assert_eq!(evms.dirtied(mm, page), i.is_some());
                    if let Some(i) = i {
                        model[i].dirtied = true;
                    }
                }
                Op::Retire => drain(&mut evms, false, &mut out),
            }
            let live = model.iter().filter(|s| s.live).count() as u64;
            prop_assert_eq!(evms.live(), live);
            prop_assert!(evms.live_max() <= n as u64);
        }
        // The end of a trace: all members are disabled, all records leave.
        while let Some(v) = evms.next_member(0) {
            prop_assert!(evms.evict(v.ordinal, 7, 0, || false));
            model[v.ordinal as usize].why = 7;
        }
        drain(&mut evms, true, &mut out);
        let want: Vec<_> = model
            .iter()
            .filter(|s| !s.aborted)
            .map(|s| (s.seq, s.mm, s.page | u64::from(s.dirtied) << 3 | s.why << 5))
            .collect();
        prop_assert_eq!(out, want);
    }
}

#[test]
fn a_full_backlog_refuses_instead_of_losing() {
    let mut evms = new(2, 2);
    let mut go = 0;
    for i in 0..10u64 {
        if let Reserve::Go(o, victim) = evms.reserve(i, || i) {
            if let Some(v) = victim {
                assert!(evms.evict(v.ordinal, 0, i, || false));
            }
            let a = Admission {
                owner: 1,
                table: 2,
                page: i << 12,
                mm: 1,
                tid_cpu: 0,
                pfn: 0,
                was_dirty: false,
            };
            evms.admit(o, &a);
            go += 1;
        }
    }
    assert_eq!(go, 4, "as many as there are slots");
    let mut records = Vec::new();
    evms.retire(false, |s| {
        records.push(s.page >> 12);
        true
    });
    assert_eq!(records, [0, 1], "those that left the set");
    assert!(matches!(evms.reserve(11, || 11), Reserve::Go(..)));
}

#[test]
fn a_victim_in_flight_is_waited_for() {
    let mut evms = new(2, 2);
    assert_eq!(evms.reserve(0, || 1), Reserve::Go(0, None));
    assert_eq!(evms.reserve(0, || 2), Reserve::Go(1, None));
    assert_eq!(evms.reserve(0, || 3), Reserve::Full);
}
