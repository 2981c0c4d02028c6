//! Several CPUs between a number and its admission, against what a trace promises: the stays of
//! a page do not overlap, and none is of a page that took the place of a dropped one after its
//! number. Other events are not modelled.
//!
//! This does with the set what `rust-mm-trace/kernel/pte.c` does, in its order, with a step
//! wherever the kernel holds no lock of the set. A CPU may stop before any step, while the others
//! go on.

use proptest::prelude::*;
use rust_mm_trace::evms::{
    Admission, Bits, Caller, Claim, Evms, Hand, Memory, Reserve, Shape, Shrink, Slot, Victim,
    END_NOW,
};

const CPUS: usize = 3;
const PAGES: usize = 12;
const MM: u32 = 1;

/// A page table entry, and who has its lock.
#[derive(Clone, Copy, Default)]
struct Pte {
    enabled: bool,
    frame: u32,
    locked: bool,
}

impl Pte {
    fn is_same(&self, other: &Pte) -> bool {
        (self.enabled, self.frame) == (other.enabled, other.frame)
    }
}

/// A number, and what it is for.
#[derive(Clone, Copy)]
struct Numbered {
    page: usize,
    was: Pte,
    ordinal: u64,
    victim: Option<Victim>,
    same: bool,
}

/// Where a CPU is.
#[derive(Clone, Copy)]
enum At {
    User,
    Faulted {
        page: usize,
        was: Pte,
    },
    Reserved(Numbered),
    Compared(Numbered),
    Evicted(Numbered),
    /// A member, with the lock held; its PTE is still disabled.
    Admitted(usize),
}

/// What is known of the stays of a page.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The first number that its next stay may have.
    from: u64,
    stays: bool,
}

struct Machine {
    evms: Evms,
    seq: u64,
    ptes: Vec<Pte>,
    known: Vec<Known>,
    cpus: Vec<At>,
    /// Pages of a page table, which has one lock.
    table: usize,
    frames: u32,
    admitted: usize,
    overtaken: usize,
    in_vain: usize,
}

fn page_of(v: &Victim) -> usize {
    (v.addr >> 12) as usize
}

/// Whether somebody has the lock of a page's PTE, in page tables of `table` pages.
fn is_locked(ptes: &[Pte], table: usize, page: usize) -> bool {
    let first = page - page % table;
    ptes[first..first + table].iter().any(|pte| pte.locked)
}

impl Machine {
    fn new(shape: &Shape, pages: usize, groups: usize) -> Machine {
        let memory = Memory {
            slots: vec![Slot::EMPTY; Evms::slots_for(shape.n, 16)],
            buckets: vec![0; Evms::buckets_for(shape.n)],
            groups: vec![0; groups],
            firsts: vec![0; Evms::firsts_for(shape)],
            claims: vec![Claim::NONE; shape.cpus],
            seats: vec![0; 2 * shape.cpus],
        };
        Machine {
            evms: Evms::new(shape, memory).expect("sizes fit"),
            seq: 0,
            ptes: vec![Pte::default(); pages],
            known: vec![Known::default(); pages],
            cpus: vec![At::User; shape.cpus],
            table: if shape.batch == 1 { 1 } else { 4 },
            frames: 0,
            admitted: 0,
            overtaken: 0,
            in_vain: 0,
        }
    }

    /// Disables a page whose stay ends at number `end`.
    fn evict(&mut self, v: &Victim, end: u64) {
        let page = page_of(v);
        if self.evms.evict(v.ordinal, 0, 0, end, |_| Bits::default()) {
            self.ended(page, end.min(self.evms.head()));
        }
    }

    /// The same for an admission, with its batch.
    fn evict_batch(&mut self, v: &Victim, end: u64) {
        let mut gone = Vec::new();
        self.evms.evict_batch(
            v.ordinal,
            0,
            0,
            end,
            |_| 0,
            |addr, _| {
                gone.push((addr >> 12) as usize);
                Bits::default()
            },
        );
        assert!(gone
            .iter()
            .all(|page| page / self.table == page_of(v) / self.table));
        let end = end.min(self.evms.head());
        gone.into_iter().for_each(|page| self.ended(page, end));
    }

    /// Changes N, as far as nothing is in the way.
    fn resize(&mut self, n: u64) {
        if self.evms.grow(n) {
            return;
        }
        loop {
            self.evms.retire(false, |_| true);
            let seq = &mut self.seq;
            let next = || {
                *seq += 1;
                *seq
            };
            match self.evms.shrink(n, 0, |_| 0, next) {
                Shrink::Evict(v) if !is_locked(&self.ptes, self.table, page_of(&v)) => {
                    self.evict(&v, END_NOW)
                }
                Shrink::More => {}
                _ => return,
            }
        }
    }

    fn ended(&mut self, page: usize, end: u64) {
        assert!(self.ptes[page].enabled && self.known[page].stays);
        self.ptes[page].enabled = false;
        self.known[page] = Known {
            from: end,
            stays: false,
        };
    }

    /// A number for `cpu`, unless there is none now, or the clock's hand is at a locked page.
    fn reserve(&mut self, cpu: usize) -> Option<(u64, Option<Victim>, Option<Victim>)> {
        self.evms.retire(false, |_| true);
        let by = Caller {
            cpu,
            epoch: 0,
            time: 0,
        };
        loop {
            let seq = &mut self.seq;
            let mut next = || {
                *seq += 1;
                *seq
            };
            match self.evms.reserve(by, |_| 0, &mut next) {
                Reserve::Full => return None,
                Reserve::Go {
                    ordinal,
                    victim,
                    passed,
                } => return Some((ordinal, victim, passed)),
                Reserve::Hand(v) if is_locked(&self.ptes, self.table, page_of(&v)) => return None,
                Reserve::Hand(v) => {
                    let used = Bits {
                        // Every second page was used since.
                        young: v.ordinal % 2 == 0,
                        dirty: false,
                    };
                    let hand = self
                        .evms
                        .hand(v.ordinal, true, 0, &mut next, || used, |_| used);
                    if hand == Hand::Evicted {
                        self.ended(page_of(&v), self.evms.head());
                    }
                }
            }
        }
    }

    /// One step of a CPU; `page` is what it refers to if it is in user mode.
    fn step(&mut self, cpu: usize, page: usize) {
        self.cpus[cpu] = match self.cpus[cpu] {
            At::User if self.ptes[page].enabled => At::User,
            At::User => At::Faulted {
                page,
                was: self.ptes[page],
            },
            At::Faulted { page, was } => match self.reserve(cpu) {
                Some((ordinal, victim, passed)) => {
                    if let Some(v) = passed {
                        self.evms.sweep(v.ordinal, || true);
                    }
                    At::Reserved(Numbered {
                        page,
                        was,
                        ordinal,
                        victim,
                        same: false,
                    })
                }
                None => At::User,
            },
            At::Reserved(n) => At::Compared(Numbered {
                same: self.ptes[n.page].is_same(&n.was),
                ..n
            }),
            At::Compared(n) => match n.victim {
                Some(v) if is_locked(&self.ptes, self.table, page_of(&v)) => At::Compared(n),
                victim => {
                    if let Some(v) = victim {
                        self.evict_batch(&v, n.ordinal);
                    }
                    At::Evicted(n)
                }
            },
            At::Evicted(n) if is_locked(&self.ptes, self.table, n.page) => At::Evicted(n),
            At::Evicted(n) => {
                if n.same && self.ptes[n.page].is_same(&n.was) && self.admit(&n) {
                    self.ptes[n.page].locked = true;
                    At::Admitted(n.page)
                } else {
                    self.evms.abort(n.ordinal);
                    At::User
                }
            }
            At::Admitted(page) => {
                self.ptes[page].enabled = true;
                self.ptes[page].locked = false;
                At::User
            }
        };
    }

    fn admit(&mut self, n: &Numbered) -> bool {
        let admission = Admission {
            owner: MM as usize,
            table: n.page / self.table,
            page: (n.page as u64) << 12,
            mm: MM,
            tid_cpu: 0,
            pfn: n.was.frame,
            was_dirty: false,
            vtime: 0,
        };
        let known = self.known[n.page];
        let late = known.from > n.ordinal;
        if self.evms.admit(n.ordinal, &admission).is_none() {
            self.overtaken += usize::from(late);
            self.in_vain += usize::from(!late);
            return false;
        }
        assert!(!known.stays, "page {} is a member already", n.page);
        assert!(
            !late,
            "page {} is admitted as {}, and its former stay or its former frame ended at {}",
            n.page, n.ordinal, known.from
        );
        self.known[n.page].stays = true;
        self.admitted += 1;
        true
    }

    /// Another CPU drops a page, whose place gets a new one.
    fn drop_page(&mut self, page: usize) {
        let (addr, pte) = ((page as u64) << 12, self.ptes[page]);
        if is_locked(&self.ptes, self.table, page) {
            return;
        }
        let end = self.evms.head();
        if pte.enabled {
            assert!(self.evms.close(MM, addr, Bits::default(), 1, 0));
            self.ended(page, end);
        } else {
            self.evms.overtake(MM, addr);
            self.known[page].from = end;
        }
        // A frame that was freed is used again, so that the PTE is the same again.
        self.frames += 1;
        self.ptes[page].frame = self.frames % 2;
    }
}

/// What comes next.
#[derive(Clone, Debug)]
enum Turn {
    /// A CPU goes on for some steps, in which it refers to pages from this one on.
    Go {
        cpu: usize,
        steps: usize,
        page: usize,
    },
    Drop {
        page: usize,
    },
    /// N becomes so much more than the least.
    Resize {
        more: u64,
    },
}

/// The most that N is above the least.
const MORE: u64 = 6;

fn turn() -> impl Strategy<Value = Turn> {
    let steps = prop_oneof![3 => 1usize..4, 1 => 20usize..80];
    let go = (0..CPUS, steps, 0..PAGES);
    prop_oneof![
        20 => go.prop_map(|(cpu, steps, page)| Turn::Go { cpu, steps, page }),
        2 => (0..PAGES).prop_map(|page| Turn::Drop { page }),
        1 => (0..MORE).prop_map(|more| Turn::Resize { more }),
    ]
}

fn shapes() -> impl Strategy<Value = Shape> {
    let sizes = (
        1usize..3,
        0..MORE as usize,
        prop_oneof![Just(1usize), 1usize..6],
    );
    (sizes, any::<bool>(), any::<bool>()).prop_map(|((first, more, batch), clock, again)| Shape {
        n: Evms::least(first, CPUS) + more,
        first,
        cpus: CPUS,
        clock,
        again,
        batch: batch.min(more + 1),
    })
}

fn run(machine: &mut Machine, shape: &Shape, turns: &[Turn]) {
    let least = Evms::least(shape.first, shape.cpus) as u64;
    for t in turns {
        match *t {
            Turn::Go { cpu, steps, page } => {
                (0..steps).for_each(|i| machine.step(cpu, (page + i) % PAGES));
            }
            Turn::Drop { page } => machine.drop_page(page),
            Turn::Resize { more } => machine.resize(least + more),
        }
        let f = machine.evms.figures(|_| 0);
        assert_eq!(f.wrong, 0, "{f:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(3000)
    })]

    #[test]
    fn stays_do_not_overlap(shape in shapes(), turns in prop::collection::vec(turn(), 1..120)) {
        // Few groups, so that pages share them.
        run(&mut Machine::new(&shape, PAGES, 2), &shape, &turns);
    }
}

/// A CPU takes a number and stops; others admit the page as an earlier number, and evict it.
#[test]
fn a_page_that_came_and_went_is_not_admitted_late() {
    let shape = Shape {
        n: 6,
        first: 1,
        cpus: CPUS,
        clock: false,
        again: false,
        batch: 1,
    };
    let mut m = Machine::new(&shape, PAGES, 64);
    // CPU 0 has a number for page 0, and so has CPU 1, a greater one.
    (0..2).for_each(|_| m.step(0, 0));
    (0..3).for_each(|_| m.step(1, 0));
    (0..4).for_each(|_| m.step(0, 0));
    assert!(m.ptes[0].enabled);
    // Page 0 is no first segment any more, and then goes, as the first page of six.
    for page in 1..6 {
        (0..6).for_each(|_| m.step(if page == 1 { 0 } else { 2 }, page));
    }
    assert!(!m.ptes[0].enabled && m.ptes[1].enabled);
    (0..2).for_each(|_| m.step(1, 0));
    assert!(matches!(m.cpus[1], At::User) && !m.ptes[0].enabled);
    assert_eq!((m.overtaken, m.in_vain), (1, 0));
    // The next time it is.
    (0..6).for_each(|_| m.step(1, 0));
    assert!(m.ptes[0].enabled);
}

/// What is in flight on one of many CPUs is seldom given up because of other pages.
#[test]
fn few_are_given_up_in_vain() {
    const ALL: usize = 1 << 16;
    let shape = Shape {
        n: 1024,
        first: 4,
        cpus: 64,
        clock: false,
        again: false,
        batch: 1,
    };
    let mut m = Machine::new(&shape, ALL, Evms::groups_for(shape.cpus));
    let mut dice = 1usize;
    for _ in 0..200_000 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        m.step(dice >> 40 & 63, dice >> 48);
    }
    let share = 100.0 * m.in_vain as f64 / m.admitted as f64;
    println!("{} admitted, {share:.2} % given up in vain", m.admitted);
    assert!(m.admitted > 30_000 && share < 3.0, "{share} %");
}
