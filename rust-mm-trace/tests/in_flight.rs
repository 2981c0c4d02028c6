//! Several CPUs between a number and its admission, against what a trace promises: the stays of
//! a page do not overlap, and none is of a page that took the place of a dropped one after its
//! number. Of events, it is modelled that all numbers before them are given up.
//!
//! This does with the set what `rust-mm-trace/kernel/admit.rs` does, in its order, with a step
//! wherever the kernel holds no lock of the set. A CPU may stop before any step, while the others
//! go on. An admission is given up only for its own page's sake, or for an event's. An admission
//! goes one of two ways:
//!
//! - In one hold of the set's lock, with the PTE locked: the number, the eviction of its victim,
//!   and [`Evms::admit_last`]. If that is not possible, it goes on as the other one.
//! - In steps, with as many holds: the number, the eviction, and [`Evms::admit`].
//!
//! A second set goes along, to which all the same happens. But what the first one admits in one
//! hold, the second one admits as if in steps. Both must give the same answers.

use proptest::prelude::*;
use rust_mm_trace::evms::{
    self, Claim, Hand, Held, Memory, Reserve, Shrink, Victim, Words, END_NOW,
};
use rust_mm_trace::stay::{self, Admission, Bits, Caller, Page, Shape};
use std::fmt::Debug;

/// The words of entries. Page tables are smaller here, so a handle is no place in memory.
struct Tables(Vec<u64>);

impl Words for Tables {
    fn get(&self, entry: usize) -> u64 {
        self.0[place(entry)]
    }

    fn set(&mut self, entry: usize, word: u64) {
        self.0[place(entry)] = word;
    }
}

/// Most pages of a page table here.
const TABLE: usize = 4;

/// The handle of a page's entry in page tables of so many pages; and which page's it is.
fn entry(page: usize, table: usize) -> usize {
    (1 + page / table) << 12 | (table << 6) | (page % table) << 3
}

fn place(entry: usize) -> usize {
    let (number, table) = ((entry >> 12) - 1, entry >> 6 & 0x3f);
    number * table + (entry >> 3 & (2 * TABLE - 1))
}

type Evms = evms::Evms<Tables>;

const CPUS: usize = 3;
const PAGES: usize = 12;
const MM: u32 = 1;
/// Pages that one admission can give a second chance.
const CHANCES: usize = 4;

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
    passed: Option<Victim>,
    same: bool,
}

/// How a CPU admits a page.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// In steps.
    Steps,
    /// In one hold of the set's lock.
    Here,
    /// The same, but when there is a number, the address space has changed.
    Changed,
}

/// Where a CPU is.
#[derive(Clone, Copy)]
enum At {
    User,
    Faulted {
        page: usize,
        was: Pte,
        way: Way,
    },
    Reserved(Numbered),
    Compared(Numbered),
    Evicted(Numbered),
    /// A member, or given up, with the lock held; the PTE of a member is still disabled. The
    /// lock of a page table whose pages were evicted may be held, too.
    Done {
        page: usize,
        is_member: bool,
        far: Option<usize>,
    },
}

/// What became of the admissions that were to be in one hold.
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    /// Members, after the eviction of nothing, and in the same or in another page table.
    alone: usize,
    near: usize,
    beside: usize,
    /// Given up.
    changed: usize,
    /// To go on in steps, with a number or without.
    far: usize,
    hand: usize,
}

/// What is known of the stays of a page.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The first number that its next stay may have.
    from: u64,
    stays: bool,
}

/// The set, and the one that goes along; and the last sequence number of each.
struct Sets {
    evms: Evms,
    along: Evms,
    seqs: (u64, u64),
}

impl Sets {
    /// What happens to both.
    fn both<R: PartialEq + Debug>(
        &mut self,
        mut f: impl FnMut(&mut Evms, &mut dyn FnMut() -> u64) -> R,
    ) -> R {
        let mut on = |evms: &mut Evms, seq: &mut u64| {
            f(evms, &mut || {
                *seq += 1;
                *seq
            })
        };
        let answer = on(&mut self.evms, &mut self.seqs.0);
        assert_eq!(on(&mut self.along, &mut self.seqs.1), answer);
        answer
    }

    /// Number of the next admission.
    fn head(&self) -> u64 {
        self.evms.head()
    }

    /// Admits what has the number given out last.
    fn admit_last(&mut self, ordinal: u64, a: &Admission) -> Option<u64> {
        let record = self.evms.admit_last(ordinal, a);
        let in_steps = self.along.admit(ordinal, a);
        assert_eq!(in_steps, record, "in steps it would have been refused");
        record
    }
}

struct Machine {
    sets: Sets,
    ptes: Vec<Pte>,
    known: Vec<Known>,
    /// The first number that any page may have; and whether no number is given out.
    from: u64,
    sealed: bool,
    cpus: Vec<At>,
    /// Pages of a page table, which has one lock.
    table: usize,
    /// Pages that one admission evicts at most.
    batch: usize,
    frames: u32,
    admitted: usize,
    overtaken: usize,
    answers: Answers,
}

fn page_of(v: &Victim) -> usize {
    (v.addr >> 12) as usize
}

impl Machine {
    fn new(shape: &Shape, pages: usize) -> Machine {
        let evms = || {
            let memory = Memory {
                slots: vec![Held::EMPTY; evms::slots_for(shape.n, 16)],
                firsts: vec![0; stay::firsts_for(shape)],
                claims: vec![Claim::NONE; shape.cpus],
                seats: vec![0; 2 * shape.cpus],
            };
            let words = Tables(vec![0; pages]);
            Evms::new(shape, memory, words, 0).expect("sizes fit")
        };
        Machine {
            sets: Sets {
                evms: evms(),
                along: evms(),
                seqs: (0, 0),
            },
            ptes: vec![Pte::default(); pages],
            known: vec![Known::default(); pages],
            from: 0,
            sealed: false,
            cpus: vec![At::User; shape.cpus],
            table: if shape.batch == 1 { 1 } else { TABLE },
            batch: shape.batch,
            frames: 0,
            admitted: 0,
            overtaken: 0,
            answers: Answers::default(),
        }
    }

    /// Whether somebody has the lock of a page's PTE.
    fn is_locked(&self, page: usize) -> bool {
        let first = page - page % self.table;
        let table = &self.ptes[first..first + self.table];
        table.iter().any(|pte| pte.locked)
    }

    /// Disables a page whose stay ends at number `end`, and for an admission its batch. The lock of the
    /// page's page table is held.
    fn evict(&mut self, v: &Victim, end: u64) {
        let pages = 0..PAGES;
        let is_free: Vec<bool> = pages.map(|page| !self.is_locked(page)).collect();
        let lock = |owner, entry| owner == MM as usize && is_free[place(entry)];
        let gone = self.sets.both(|evms, _| {
            let mut gone = Vec::new();
            let disable = |addr: u64, _| {
                gone.push((addr >> 12) as usize);
                Bits::default()
            };
            let was_member = evms.evict_batch(v.ordinal, 0, 0, end, |_| 0, lock, disable);
            assert_eq!(was_member, !gone.is_empty());
            gone
        });
        let most = if end == END_NOW { 1 } else { self.batch };
        assert!(gone.len() <= most, "a batch of {gone:?}");
        assert!(gone.first().is_none_or(|first| *first == page_of(v)));
        let own = page_of(v) / self.table;
        let is_held = |page: &usize| page / self.table == own || is_free[*page];
        assert!(gone.iter().all(is_held));
        let end = end.min(self.sets.head());
        gone.into_iter().for_each(|page| self.ended(page, end));
    }

    /// Changes N, as far as nothing is in the way.
    fn resize(&mut self, n: u64) {
        if self.sets.both(|evms, _| evms.grow(n)) {
            return;
        }
        loop {
            self.retire();
            match self.sets.both(|evms, seq| evms.shrink(n, 0, |_| 0, seq)) {
                Shrink::Evict(v) if !self.is_locked(page_of(&v)) => self.evict(&v, END_NOW),
                Shrink::More => {}
                _ => return,
            }
        }
    }

    fn retire(&mut self) {
        self.sets.both(|evms, _| evms.retire(false, |_| true));
    }

    fn ended(&mut self, page: usize, end: u64) {
        assert!(self.ptes[page].enabled && self.known[page].stays);
        self.ptes[page].enabled = false;
        self.known[page] = Known {
            from: end,
            stays: false,
        };
    }

    fn reserve(&mut self, cpu: usize) -> Reserve {
        if self.sealed {
            return Reserve::Full;
        }
        self.retire();
        let by = Caller {
            cpu,
            epoch: 0,
            time: 0,
        };
        self.sets.both(|evms, seq| evms.reserve(by, |_| 0, seq))
    }

    /// A number for `cpu`, unless there is none now, or the clock's hand is at a locked page.
    fn turn(&mut self, cpu: usize) -> Option<(u64, Option<Victim>, Option<Victim>)> {
        let mut chances = 0..CHANCES;
        loop {
            match self.reserve(cpu) {
                Reserve::Full => return None,
                Reserve::Go {
                    ordinal,
                    victim,
                    passed,
                } => return Some((ordinal, victim, passed)),
                Reserve::Hand(v) if self.is_locked(page_of(&v)) => return None,
                Reserve::Hand(v) => {
                    let used = Bits {
                        // Every second page was used since.
                        young: v.ordinal % 2 == 0,
                        dirty: false,
                    };
                    let may = chances.next().is_some();
                    let hand = self
                        .sets
                        .both(|evms, seq| evms.hand(v.ordinal, may, 0, seq, || used, |_| used));
                    if hand == Hand::Evicted {
                        self.ended(page_of(&v), self.sets.head());
                    }
                }
            }
        }
    }

    /// One step of a CPU; `page` is what it refers to if it is in user mode, and `way` how.
    fn step(&mut self, cpu: usize, page: usize, way: Way) {
        self.cpus[cpu] = match self.cpus[cpu] {
            At::User if self.ptes[page].enabled => At::User,
            At::User => At::Faulted {
                page,
                was: self.ptes[page],
                way,
            },
            At::Faulted {
                page,
                was,
                way: Way::Steps,
            } => match self.turn(cpu) {
                Some((ordinal, victim, passed)) => At::Reserved(Numbered {
                    page,
                    was,
                    ordinal,
                    victim,
                    passed,
                    same: false,
                }),
                None => At::User,
            },
            at @ At::Faulted { page, .. } if self.is_locked(page) => at,
            At::Faulted { page, was, .. } if !self.ptes[page].is_same(&was) => At::User,
            At::Faulted { page, was, way } => self.admit_here(cpu, page, was, way),
            At::Reserved(n) => At::Compared(Numbered {
                same: self.ptes[n.page].is_same(&n.was),
                ..n
            }),
            At::Compared(n) => match n.victim {
                Some(v) if self.is_locked(page_of(&v)) => At::Compared(n),
                victim => {
                    if let Some(v) = victim {
                        self.evict(&v, n.ordinal);
                    }
                    At::Evicted(n)
                }
            },
            At::Evicted(n) => match n.passed {
                Some(v) if self.is_locked(page_of(&v)) => At::Evicted(n),
                Some(v) => {
                    self.sets.both(|evms, _| evms.sweep(v.ordinal, || true));
                    At::Evicted(Numbered { passed: None, ..n })
                }
                None if self.is_locked(n.page) => At::Evicted(n),
                None if n.same && self.ptes[n.page].is_same(&n.was) && self.admit(&n) => {
                    self.ptes[n.page].locked = true;
                    At::Done {
                        page: n.page,
                        is_member: true,
                        far: None,
                    }
                }
                None => {
                    self.sets.both(|evms, _| evms.abort(n.ordinal));
                    At::User
                }
            },
            At::Done {
                page,
                is_member,
                far: Some(far),
            } => {
                self.ptes[far].locked = false;
                At::Done {
                    page,
                    is_member,
                    far: None,
                }
            }
            At::Done {
                page, is_member, ..
            } => {
                self.ptes[page].enabled = is_member;
                self.ptes[page].locked = false;
                At::User
            }
        };
    }

    /// Admits a page whose PTE is locked, in one hold of the set's lock, as far as that can be.
    fn admit_here(&mut self, cpu: usize, page: usize, was: Pte, way: Way) -> At {
        let (ordinal, victim, passed) = match self.reserve(cpu) {
            Reserve::Full => return At::User,
            Reserve::Hand(_) => {
                self.answers.hand += 1;
                let way = Way::Steps;
                return At::Faulted { page, was, way };
            }
            Reserve::Go {
                ordinal,
                victim,
                passed,
            } => (ordinal, victim, passed),
        };
        let n = Numbered {
            page,
            was,
            ordinal,
            victim,
            passed,
            same: true,
        };
        if passed.is_some() || victim.is_some_and(|v| self.is_locked(page_of(&v))) {
            self.answers.far += 1;
            return At::Reserved(n);
        }
        if let Some(v) = &victim {
            self.evict(v, ordinal);
        }
        let beside = |victim: &usize| victim / self.table != page / self.table;
        let far = victim.as_ref().map(page_of).filter(beside);
        for page in [Some(page), far].into_iter().flatten() {
            self.ptes[page].locked = true;
        }
        let is_member = matches!(way, Way::Here);
        if is_member {
            let record = self.sets.admit_last(ordinal, &self.admission(&n));
            assert!(record.is_some(), "the number is reserved");
            self.admitted(&n);
            match (victim, far) {
                (None, _) => self.answers.alone += 1,
                (_, None) => self.answers.near += 1,
                (_, Some(_)) => self.answers.beside += 1,
            }
        } else {
            self.sets.both(|evms, _| evms.abort(ordinal));
            self.answers.changed += 1;
        }
        At::Done {
            page,
            is_member,
            far,
        }
    }

    fn admission(&self, n: &Numbered) -> Admission {
        Admission {
            owner: MM as usize,
            entry: entry(n.page, self.table),
            page: (n.page as u64) << 12,
            mm: MM,
            tid_cpu: 0,
            pfn: n.was.frame,
            was_dirty: false,
            vtime: 0,
            address: 0,
        }
    }

    fn page(&self, page: usize) -> Page {
        Page {
            entry: entry(page, self.table),
            mm: MM,
            addr: (page as u64) << 12,
        }
    }

    fn is_late(&self, n: &Numbered) -> bool {
        self.from.max(self.known[n.page].from) > n.ordinal
    }

    /// Admits a page that has had its number for some time.
    fn admit(&mut self, n: &Numbered) -> bool {
        let admission = self.admission(n);
        let record = self.sets.both(|evms, _| evms.admit(n.ordinal, &admission));
        if record.is_none() {
            assert!(self.is_late(n), "page {} is refused in vain", n.page);
            self.overtaken += 1;
            return false;
        }
        self.admitted(n);
        true
    }

    /// A page is a member.
    fn admitted(&mut self, n: &Numbered) {
        let known = self.known[n.page];
        assert!(!known.stays, "page {} is a member already", n.page);
        assert!(
            !self.is_late(n),
            "page {} is admitted as {}, and its former stay or its former frame ended at {}, \
             those of others at {}",
            n.page,
            n.ordinal,
            known.from,
            self.from
        );
        self.known[n.page].stays = true;
        self.admitted += 1;
    }

    /// An event has its number.
    fn log(&mut self) {
        self.sets.both(|evms, _| evms.overtake_all());
        self.from = self.from.max(self.sets.head());
    }

    /// A window ends, or the next one begins.
    fn seal(&mut self, seals: bool) {
        match (self.sealed, seals) {
            (false, true) => {
                self.sets.both(|evms, _| evms.shut());
                self.from = u64::MAX;
            }
            (true, false) => {
                self.sets.both(|evms, _| evms.open());
                self.from = self.sets.head();
            }
            _ => {}
        }
        self.sealed = seals;
    }

    /// The sets count right, and both the same.
    fn check(&mut self) {
        let (f, _) = self
            .sets
            .both(|evms, _| (evms.figures(|_| 0), evms.live_max()));
        assert_eq!(f.wrong, 0, "{f:?}");
        let stays = self.known.iter().filter(|known| known.stays).count();
        assert_eq!(f.live, stays as u64);
    }

    /// Another CPU drops a page, whose place gets a new one.
    fn drop_page(&mut self, page: usize) {
        let (pte, page_here) = (self.ptes[page], self.page(page));
        if self.is_locked(page) {
            return;
        }
        let end = self.sets.head();
        if pte.enabled {
            let close = |evms: &mut Evms| evms.close(page_here, Bits::default(), 1, 0);
            assert!(self.sets.both(|evms, _| close(evms)));
            self.ended(page, end);
        } else {
            self.sets.both(|evms, _| evms.overtake(page_here.entry));
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
        way: Way,
    },
    Drop {
        page: usize,
    },
    /// An event.
    Log,
    /// The end of a window, or the begin of one.
    Seal {
        seals: bool,
    },
    /// N becomes so much more than the least.
    Resize {
        more: u64,
    },
}

/// A set without anything special.
const SMALL: Shape = Shape {
    n: 6,
    first: 1,
    cpus: CPUS,
    clock: false,
    again: false,
    batch: 1,
};

/// The most that N is above the least.
const MORE: u64 = 6;

fn turn() -> impl Strategy<Value = Turn> {
    let steps = prop_oneof![3 => 1usize..4, 1 => 20usize..80];
    let way = prop_oneof![
        4 => Just(Way::Steps),
        5 => Just(Way::Here),
        1 => Just(Way::Changed),
    ];
    let go = (0..CPUS, steps, 0..PAGES, way);
    prop_oneof![
        80 => go.prop_map(|(cpu, steps, page, way)| Turn::Go { cpu, steps, page, way }),
        8 => (0..PAGES).prop_map(|page| Turn::Drop { page }),
        4 => (0..MORE).prop_map(|more| Turn::Resize { more }),
        2 => Just(Turn::Log),
        1 => Just(Turn::Seal { seals: true }),
        4 => Just(Turn::Seal { seals: false }),
    ]
}

fn shapes() -> impl Strategy<Value = Shape> {
    let sizes = (
        1usize..3,
        0..MORE as usize,
        prop_oneof![Just(1usize), 1usize..6],
    );
    (sizes, any::<bool>(), any::<bool>()).prop_map(|((first, more, batch), clock, again)| Shape {
        n: stay::least(first, CPUS) + more,
        first,
        cpus: CPUS,
        clock,
        again,
        batch: batch.min(more + 1),
    })
}

fn run(machine: &mut Machine, shape: &Shape, turns: &[Turn]) {
    let least = stay::least(shape.first, shape.cpus) as u64;
    for t in turns {
        match *t {
            Turn::Go {
                cpu,
                steps,
                page,
                way,
            } => {
                (0..steps).for_each(|i| machine.step(cpu, (page + i) % PAGES, way));
            }
            Turn::Drop { page } => machine.drop_page(page),
            Turn::Resize { more } => machine.resize(least + more),
            Turn::Log => machine.log(),
            Turn::Seal { seals } => machine.seal(seals),
        }
        machine.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(3000)
    })]

    #[test]
    fn stays_do_not_overlap(shape in shapes(), turns in prop::collection::vec(turn(), 1..120)) {
        run(&mut Machine::new(&shape, PAGES), &shape, &turns);
    }
}

/// A CPU takes a number and stops; others admit the page as an earlier number, and evict it.
#[test]
fn a_page_that_came_and_went_is_not_admitted_late() {
    let mut m = Machine::new(&SMALL, PAGES);
    let way = Way::Steps;
    // CPU 0 has a number for page 0, and so has CPU 1, a greater one.
    (0..2).for_each(|_| m.step(0, 0, way));
    (0..3).for_each(|_| m.step(1, 0, way));
    (0..4).for_each(|_| m.step(0, 0, way));
    assert!(m.ptes[0].enabled);
    // Page 0 is no first segment any more, and then goes, as the first page of six.
    for page in 1..6 {
        (0..6).for_each(|_| m.step(if page == 1 { 0 } else { 2 }, page, way));
    }
    assert!(!m.ptes[0].enabled && m.ptes[1].enabled);
    (0..2).for_each(|_| m.step(1, 0, way));
    assert!(matches!(m.cpus[1], At::User) && !m.ptes[0].enabled);
    assert_eq!(m.overtaken, 1);
    // The next time it is.
    (0..6).for_each(|_| m.step(1, 0, way));
    assert!(m.ptes[0].enabled);
}

/// The same, but another CPU admits the page in one hold, as a later number. The page is dropped,
/// and the one that takes its place gets an equal PTE.
#[test]
fn a_page_that_was_admitted_at_once_is_not_admitted_late() {
    let mut m = Machine::new(&SMALL, PAGES);
    (0..3).for_each(|_| m.step(1, 0, Way::Steps));
    (0..3).for_each(|_| m.step(0, 0, Way::Here));
    assert!(m.ptes[0].enabled && m.answers.alone == 1);
    (0..2).for_each(|_| m.drop_page(0));
    (0..2).for_each(|_| m.step(1, 0, Way::Steps));
    assert!(matches!(m.cpus[1], At::User) && !m.ptes[0].enabled);
    assert_eq!(m.overtaken, 1);
    // The next time it is, either way.
    (0..3).for_each(|_| m.step(1, 0, Way::Here));
    assert!(m.ptes[0].enabled && m.answers.alone == 2);
    m.check();
}

/// Numbers whose upper bits look random.
fn dice() -> impl Iterator<Item = usize> {
    let next = |dice: &usize| Some(dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    std::iter::successors(Some(1), next).skip(1)
}

/// An admission that is to be in one hold comes to each end that it can have.
#[test]
fn one_hold_has_each_answer() {
    let answers = |clock, again| {
        let shape = Shape {
            n: 8,
            first: 1,
            cpus: CPUS,
            clock,
            again,
            batch: 4,
        };
        let mut m = Machine::new(&shape, PAGES);
        for dice in dice().take(40_000) {
            let way = match dice >> 60 {
                0 => Way::Changed,
                1..6 => Way::Steps,
                _ => Way::Here,
            };
            m.step((dice >> 40) % CPUS, (dice >> 48) % PAGES, way);
        }
        m.check();
        println!("{:?}", m.answers);
        m.answers
    };
    let a = answers(false, false);
    assert!(
        [a.alone, a.near, a.beside, a.changed, a.far]
            .iter()
            .all(|n| *n > 100),
        "{a:?}"
    );
    // Most of what comes into the second segment is another page's, with a lock of its own.
    let a = answers(false, true);
    assert!(a.alone > 0 && a.far > 100, "{a:?}");
    let a = answers(true, false);
    assert!(a.alone > 0 && a.hand > 100, "{a:?}");
}

/// What is in flight on one of many CPUs is given up because of what happened to its page, and
/// never because of other pages: [`Machine::admit`] asserts that.
#[test]
fn none_is_given_up_in_vain() {
    const ALL: usize = 1 << 16;
    let shape = Shape {
        n: 1024,
        first: 4,
        cpus: 64,
        clock: false,
        again: false,
        batch: 1,
    };
    let mut m = Machine::new(&shape, ALL);
    for dice in dice().take(200_000) {
        // Half of the references are to few pages, on which CPUs meet, and which are dropped.
        let page = if dice >> 39 & 1 == 0 {
            dice >> 48
        } else {
            dice >> 59
        };
        if dice >> 34 & 31 == 0 {
            m.drop_page(dice >> 59);
        }
        m.step(dice >> 40 & 63, page, Way::Steps);
    }
    println!("{} admitted, {} given up", m.admitted, m.overtaken);
    assert!(m.admitted > 15_000 && m.overtaken > 100);
}
