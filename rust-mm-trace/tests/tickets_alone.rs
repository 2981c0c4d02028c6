//! One call after the other: then the set without a global lock is the specification, `evms.rs`.

use crate::tickets::{
    self, entry, page_of, Bare, Counted, Env, How, Lock, Machine, Record, Table, CHANCES, DROPPED,
    EVICTED,
};
use proptest::prelude::*;
use rust_mm_trace::evms::{self, Claim, Evms, Hand, Reserve, Shrink};
use rust_mm_trace::stay::{self, firsts_for, Admission, Bits, Caller, Shape, Slot};
use rust_mm_trace::tickets::{Atom, Counter, Number, Place, Primitives, PATIENCE};
use std::cell::{Cell, RefCell, RefMut, UnsafeCell};
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

/// A number that one thread has.
struct Alone(Cell<u64>);

impl Atom for Alone {
    fn get(&self) -> u64 {
        self.0.get()
    }

    fn put(&self, value: u64) {
        self.0.set(value);
    }

    fn add(&self, value: u64) -> u64 {
        self.0.replace(self.0.get().wrapping_add(value))
    }

    fn replace(&self, old: u64, new: u64) -> Result<(), u64> {
        match self.0.get() {
            now if now == old => {
                self.0.set(new);
                Ok(())
            }
            now => Err(now),
        }
    }
}

struct OneThread;

impl Primitives for OneThread {
    type Atom = Alone;
    type Place = Bare<Slot>;

    fn barrier() {}
}

impl<T> Lock<T> for RefCell<T> {
    fn new(value: T) -> Self {
        RefCell::new(value)
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.borrow_mut())
    }

    type Guard<'a>
        = RefMut<'a, T>
    where
        T: 'a;

    fn try_lock(&self) -> Option<Self::Guard<'_>> {
        self.try_borrow_mut().ok()
    }
}

impl Env for OneThread {
    type P = OneThread;
    type Word = Bare<u64>;
    type Lock = RefCell<Table>;

    fn atom() -> Alone {
        Alone(Cell::new(0))
    }

    fn place() -> Bare<Slot> {
        Bare(UnsafeCell::new(Slot::EMPTY))
    }

    fn word() -> Bare<u64> {
        Bare(UnsafeCell::new(0))
    }
}

const PAGES: usize = 24;
/// The lock of each page table is free.
const FREE: fn(usize, usize) -> bool = |_, _| true;
const CPUS: usize = 3;

/// The words of the specification, by page.
struct Flat(Rc<RefCell<Vec<u64>>>);

impl evms::Words for Flat {
    fn get(&self, entry: usize) -> u64 {
        self.0.borrow()[page_of(entry)]
    }

    fn set(&mut self, entry: usize, word: u64) {
        self.0.borrow_mut()[page_of(entry)] = word;
    }
}

/// The specification, and the same page tables.
struct Spec {
    evms: Evms<Flat>,
    words: Rc<RefCell<Vec<u64>>>,
    seq: u64,
    epochs: [u32; CPUS],
    ptes: Vec<Option<Bits>>,
    records: Vec<Record>,
}

impl Spec {
    fn new(shape: Shape, start: u64) -> Spec {
        let memory = evms::Memory {
            slots: vec![evms::Held::EMPTY; evms::slots_for(shape.n, 64)],
            firsts: vec![0; firsts_for(&shape)],
            claims: vec![Claim::NONE; shape.cpus],
            seats: vec![0; 2 * shape.cpus],
        };
        let words = Rc::new(RefCell::new(vec![0; PAGES]));
        let evms = Evms::new(&shape, memory, Flat(words.clone()), start);
        Spec {
            evms: evms.expect("it fits"),
            words,
            seq: 0,
            epochs: [0; CPUS],
            ptes: vec![None; PAGES],
            records: Vec::new(),
        }
    }

    fn take(ptes: &mut [Option<Bits>], page: usize) -> Bits {
        ptes[page].take().expect("a member's PTE is enabled")
    }

    fn evict(&mut self, ordinal: u64, now: u64, end: u64) {
        let (ptes, epochs) = (&mut self.ptes, self.epochs);
        let epoch_of = |cpu: usize| epochs[cpu];
        self.evms
            .evict_batch(ordinal, EVICTED, now, end, epoch_of, FREE, |addr, _| {
                Spec::take(ptes, (addr >> 12) as usize)
            });
    }

    fn touch(&mut self, cpu: usize, page: usize, write: bool, time: u64) {
        if let Some(bits) = &mut self.ptes[page] {
            bits.young = true;
            bits.dirty |= write;
            return;
        }
        let ordinal = self.set_out(cpu, time);
        assert!(self.settle(ordinal, cpu, page, write));
    }

    /// Takes a number, and does what comes before its admission.
    fn set_out(&mut self, cpu: usize, time: u64) -> u64 {
        let by = Caller {
            cpu,
            epoch: self.epochs[cpu],
            time,
        };
        let (mut chances, epochs) = (0, self.epochs);
        let (ordinal, victim, passed) = loop {
            let seq = &mut self.seq;
            let next = || {
                *seq += 1;
                *seq
            };
            match self.evms.reserve(by, |cpu| epochs[cpu], next) {
                Reserve::Full => panic!("there is room"),
                Reserve::Go {
                    ordinal,
                    victim,
                    passed,
                } => break (ordinal, victim, passed),
                Reserve::Hand(v) => {
                    let page = page_of(v.entry);
                    let before = self.ptes[page].expect("it is enabled");
                    let mut looked = false;
                    let (ptes, seq) = (&mut self.ptes, &mut self.seq);
                    let hand = self.evms.hand(
                        v.ordinal,
                        chances < CHANCES,
                        time,
                        || {
                            *seq += 1;
                            *seq
                        },
                        || {
                            looked = true;
                            before
                        },
                        |_| Spec::take(ptes, page),
                    );
                    if let (true, Some(bits)) = (looked, &mut self.ptes[page]) {
                        bits.young = false;
                    }
                    chances += usize::from(hand == Hand::Chance);
                }
            }
        };
        if let Some(v) = victim {
            self.evict(v.ordinal, time, ordinal);
        }
        if let Some(v) = passed {
            let bits = &mut self.ptes[page_of(v.entry)];
            self.evms.sweep(v.ordinal, || {
                let bits = bits.as_mut().expect("it is enabled");
                std::mem::take(&mut bits.young)
            });
        }
        ordinal
    }

    /// Makes a page the member of a number. False if the number is given up.
    fn settle(&mut self, ordinal: u64, cpu: usize, page: usize, write: bool) -> bool {
        let a = Admission {
            owner: 1,
            entry: entry(page),
            page: (page as u64) << 12 | u64::from(write),
            mm: 1,
            tid_cpu: cpu as u32,
            pfn: page as u32,
            was_dirty: false,
            vtime: 0,
            address: 0,
        };
        let is_member = self.ptes[page].is_none() && self.evms.admit(ordinal, &a).is_some();
        if is_member {
            self.ptes[page] = Some(Bits {
                young: true,
                dirty: write,
            });
        } else {
            self.evms.abort(ordinal);
        }
        self.retire(false);
        is_member
    }

    /// Gives the set another size. No first segment is in the way.
    fn resize(&mut self, n: u64) {
        if n >= self.evms.size() {
            assert!(self.evms.grow(n));
            return;
        }
        let epochs = self.epochs;
        loop {
            let none = || panic!("a page is renewed");
            match self.evms.shrink(n, 1, |cpu| epochs[cpu], none) {
                Shrink::Done => break,
                Shrink::More => {}
                Shrink::Evict(v) => {
                    let (page, ptes) = (page_of(v.entry), &mut self.ptes);
                    let disable = |_| Spec::take(ptes, page);
                    let end = evms::END_NOW;
                    assert!(self.evms.evict(v.ordinal, EVICTED, 1, end, disable));
                }
                no => panic!("{no:?}"),
            }
        }
        self.retire(false);
    }

    fn page(page: usize) -> stay::Page {
        stay::Page {
            entry: entry(page),
            mm: 1,
            addr: (page as u64) << 12,
        }
    }

    fn drop_page(&mut self, page: usize, time: u64) {
        match self.ptes[page].take() {
            Some(bits) => {
                assert!(self.evms.close(Spec::page(page), bits, DROPPED, time));
            }
            None => self.evms.overtake(entry(page)),
        }
    }

    fn retire(&mut self, all: bool) {
        let records = &mut self.records;
        self.evms.retire(all, |s| {
            records.push(Record::of(s));
            true
        });
    }
}

#[derive(Clone, Debug)]
enum Op {
    Touch {
        cpu: usize,
        page: usize,
        write: bool,
        far: bool,
    },
    Drop {
        page: usize,
    },
    /// Another user clears the accessed bit.
    Age {
        page: usize,
    },
    Wait,
    /// A CPU switches to another task.
    Switch {
        cpu: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let cpu = prop_oneof![6 => Just(0usize), 2 => 0..CPUS];
    prop_oneof![
        30 => (cpu, 0..PAGES, any::<bool>(), any::<bool>())
            .prop_map(|(cpu, page, write, far)| Op::Touch { cpu, page, write, far }),
        3 => (0..PAGES).prop_map(|page| Op::Drop { page }),
        3 => (0..PAGES).prop_map(|page| Op::Age { page }),
        1 => Just(Op::Wait),
        1 => (0..CPUS).prop_map(|cpu| Op::Switch { cpu }),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    (
        1usize..3,
        1..=CPUS,
        0usize..12,
        1usize..5,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(first, cpus, more, batch, clock, again)| {
            let n = stay::least(first, cpus) + more;
            Shape {
                n,
                first,
                cpus,
                clock,
                again,
                batch: batch.min(stay::batch_max(n, first, cpus)),
            }
        })
}

/// A machine and its specification.
struct Pair {
    shape: Shape,
    m: Machine<OneThread>,
    spec: Spec,
    /// The numbers of the counter that the set has taken, by its own ordinals; and the first of
    /// these.
    numbers: Vec<Number>,
    start: u64,
    /// Other sets have the same counter.
    apart: bool,
}

/// The words of a machine.
type Words = Arc<Vec<Bare<u64>>>;

/// The most pages that N can grow by.
const MORE: usize = 8;

impl Pair {
    /// With the counter to itself.
    fn alone(shape: Shape, start: u64) -> Pair {
        let next = Number {
            ordinal: start,
            seq: 1,
        };
        let cells = (shape.n + 1).next_power_of_two();
        let m = Machine::<OneThread>::new(shape, cells, PAGES, next, PATIENCE);
        Pair::of(shape, m, start, false)
    }

    /// One of several that have a counter.
    fn apart(shape: Shape, start: u64, words: Words, counter: &Arc<Counted<OneThread>>) -> Pair {
        let cells = (shape.n + MORE + 1).next_power_of_two();
        let m = Machine::apart(shape, cells, words, start, PATIENCE, counter.clone());
        Pair::of(shape, m, start, true)
    }

    fn of(shape: Shape, m: Machine<OneThread>, start: u64, apart: bool) -> Pair {
        Pair {
            shape,
            m,
            spec: Spec::new(shape, start),
            numbers: Vec::new(),
            start,
            apart,
        }
    }

    /// Notes the numbers that the set takes meanwhile.
    fn counted<R>(&mut self, f: impl FnOnce(&mut Pair) -> R) -> R {
        let (before, head) = (self.m.counter.next(), self.spec.evms.head());
        let answer = f(self);
        let taken = self.spec.evms.head() - head;
        let after = self.m.counter.next();
        assert_eq!(after.ordinal - before.ordinal, taken);
        assert_eq!(after.seq - before.seq, taken);
        self.numbers.extend((0..taken).map(|i| Number {
            ordinal: before.ordinal + i,
            seq: before.seq + i,
        }));
        answer
    }

    fn apply(&mut self, op: &Op, time: &mut u64) {
        self.counted(|p| p.apply_uncounted(op, time));
    }

    fn apply_uncounted(&mut self, op: &Op, time: &mut u64) {
        let shape = self.shape;
        let Pair { m, spec, .. } = self;
        *time += 64;
        match *op {
            Op::Touch {
                cpu,
                page,
                write,
                far,
            } => {
                let cpu = cpu % shape.cpus;
                spec.touch(cpu, page, write, *time);
                let how = if far { How::Far } else { How::Near };
                m.touch(cpu, page, write, how, *time);
            }
            Op::Drop { page } => {
                spec.drop_page(page, *time);
                m.drop_page(page, *time);
            }
            Op::Age { page } => {
                let at = page % tickets::TABLE;
                let take = |b: &mut Bits| std::mem::take(&mut b.young);
                let young = spec.ptes[page].as_mut().map(take);
                let seen = young.map(|y| spec.evms.aged(Spec::page(page), y));
                m.tables[page / tickets::TABLE].with(|table| {
                    let young = table.enabled[at].then(|| take(&mut table.bits[at]));
                    // SAFETY: The page table is locked.
                    let mine = young.map(|y| unsafe { m.set.aged(m.page(page), y) });
                    assert_eq!(mine, seen);
                });
            }
            Op::Wait => *time += stay::CLAIM_NS,
            Op::Switch { cpu } => self.switch(cpu % shape.cpus),
        }
    }

    fn switch(&mut self, cpu: usize) {
        self.spec.epochs[cpu] += 1;
        self.m.epochs[cpu].fetch_add(1, SeqCst);
    }

    fn resize(&mut self, n: u64) {
        // The specification renews first segments, which a CPU has for ever that is alone.
        if self.shape.cpus == 1 && n < self.spec.evms.size() {
            return;
        }
        // So no CPU has one.
        (0..self.shape.cpus).for_each(|cpu| self.switch(cpu));
        self.spec.resize(n);
        self.m.resize(n);
    }

    /// What the specification has for a word of the machine. That of a page that is no member has a
    /// clock, which stands for the set's first number that is not before it.
    fn word(&self, word: u64) -> u64 {
        if !self.apart || word & stay::MEMBER != 0 {
            return word;
        }
        let before = self.numbers.partition_point(|n| n.ordinal < word >> 1);
        (self.start + before as u64) << 1
    }

    /// The word of the specification. No number is before the first one.
    fn spec_word(&self, page: usize) -> u64 {
        let word = self.spec.words.borrow()[page];
        match self.apart {
            true => word.max(self.start << 1),
            false => word,
        }
    }

    /// What the specification has for a record of the machine.
    fn record(&self, record: &Record) -> Record {
        if !self.apart {
            return *record;
        }
        let at = self.numbers.binary_search_by_key(&record.seq, |n| n.seq);
        let seq = at.expect("a number of the set") as u64 + 1;
        Record { seq, ..*record }
    }

    /// Both are the same.
    fn check(&self) {
        let Pair { m, spec, .. } = self;
        assert_eq!(m.set.next(&m.counter), spec.evms.head());
        for page in 0..PAGES {
            // SAFETY: There is one thread.
            let word = self.word(*unsafe { m.words[page].read() });
            assert_eq!(word, self.spec_word(page), "page {page}");
            let at = page % tickets::TABLE;
            m.tables[page / tickets::TABLE].with(|t| {
                let bits = t.enabled[at].then_some(t.bits[at]);
                assert_eq!(bits, spec.ptes[page], "page {page}");
            });
        }
        let records = m.records.lock().unwrap();
        let mut records: Vec<_> = records.iter().map(|r| self.record(r)).collect();
        // Those of a batch may be here earlier.
        records.sort_by_key(|r| r.seq);
        records.truncate(spec.records.len());
        assert_eq!(records, spec.records);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn is_the_specification(
        shape in shape(),
        start in prop_oneof![Just(0u64), 1u64..100, Just((1 << 32) - 5)],
        ops in prop::collection::vec(op(), 1..300),
    ) {
        let mut pair = Pair::alone(shape, start);
        let mut time = 1000;
        for op in &ops {
            pair.apply(op, &mut time);
            pair.check();
        }
        pair.m.finish();
    }
}

/// What happens to one of several sets, or to all.
#[derive(Clone, Debug)]
enum Turn {
    Of(usize, Op),
    /// An event of dropped pages has its number.
    Event,
    /// A set gets another size, so much above the smallest one.
    Resize {
        set: usize,
        more: usize,
    },
    /// The set ends. Its address space comes to another one, whose first number is this.
    Another {
        set: usize,
        start: u64,
    },
    /// A CPU has a number, and before it has admitted its page, all this happens.
    Slow {
        set: usize,
        cpu: usize,
        page: usize,
        meanwhile: Vec<Turn>,
    },
}

const SETS: usize = 3;

fn start() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0u64), 1u64..100, Just((1 << 32) - 5)]
}

/// Mostly to few pages, so that others meddle with what is slow.
fn of() -> impl Strategy<Value = Turn> {
    (0..SETS, op()).prop_map(|(set, op)| Turn::Of(set, op))
}

fn turn() -> impl Strategy<Value = Turn> {
    let meanwhile = prop_oneof![12 => of(), 1 => Just(Turn::Event)];
    let slow = (
        0..SETS,
        0..CPUS,
        0..PAGES,
        prop::collection::vec(meanwhile, 0..8),
        any::<bool>(),
    )
        .prop_map(|(set, cpu, page, mut meanwhile, drop)| {
            if drop {
                meanwhile.push(Turn::Of(set, Op::Drop { page }));
            }
            Turn::Slow {
                set,
                cpu,
                page,
                meanwhile,
            }
        });
    prop_oneof![
        30 => of(),
        1 => Just(Turn::Event),
        1 => (0..SETS, 0..MORE).prop_map(|(set, more)| Turn::Resize { set, more }),
        1 => (0..SETS, start()).prop_map(|(set, start)| Turn::Another { set, start }),
        5 => slow,
    ]
}

/// Sets with one counter.
struct Sets {
    pairs: Vec<Pair>,
    counter: Arc<Counted<OneThread>>,
    time: u64,
    /// Numbers of sets that have ended.
    ended: i64,
}

impl Sets {
    fn new(shapes: &[(Shape, u64)], first: u64) -> Sets {
        let next = Number {
            ordinal: first,
            seq: 1,
        };
        let counter = tickets::counter::<OneThread>(next);
        let pair = |(shape, start): &(Shape, u64)| {
            let words = tickets::words::<OneThread>(PAGES);
            Pair::apart(*shape, *start, words, &counter)
        };
        Sets {
            pairs: shapes.iter().map(pair).collect(),
            counter,
            time: 1000,
            ended: 0,
        }
    }

    fn check(&self) {
        self.pairs.iter().for_each(Pair::check);
    }

    fn apply(&mut self, turn: &Turn) {
        let many = self.pairs.len();
        match turn {
            Turn::Of(set, op) => self.pairs[set % many].apply(op, &mut self.time),
            Turn::Event => {
                self.counter.event();
                self.counter.overtake_all::<OneThread>();
                for pair in &mut self.pairs {
                    pair.spec.evms.overtake_all();
                }
            }
            Turn::Resize { set, more } => {
                let pair = &mut self.pairs[set % many];
                let n = stay::least(pair.shape.first, pair.shape.cpus) + more;
                pair.counted(|p| p.resize(n as u64));
            }
            Turn::Another { set, start } => {
                let pair = &mut self.pairs[set % many];
                self.ended += finish(pair);
                let words = pair.m.words.clone();
                *pair = Pair::apart(pair.shape, *start, words, &self.counter);
            }
            Turn::Slow {
                set,
                cpu,
                page,
                meanwhile,
            } => self.slow(set % many, *cpu, *page, meanwhile),
        }
        self.check();
    }

    fn slow(&mut self, set: usize, cpu: usize, page: usize, meanwhile: &[Turn]) {
        let pair = &mut self.pairs[set];
        let Shape {
            first, cpus, clock, ..
        } = pair.shape;
        let cpu = cpu % cpus;
        if pair.spec.ptes[page].is_some() {
            return;
        }
        let time = self.time;
        let (ordinal, ticket) = pair.counted(|p| {
            let ticket = p.m.set_out(cpu, time).expect("nothing is in the way");
            (p.spec.set_out(cpu, time), ticket)
        });
        assert_eq!(ticket.number.ordinal, ordinal);
        self.check();
        let chances = if clock { CHANCES } else { 0 };
        let most = (1 + first * cpus + chances) as u64;
        for turn in meanwhile {
            if let Turn::Of(to, Op::Touch { cpu: by, .. }) = turn {
                // The specification waits for what is slow, and the set does not. And a CPU has one
                // ticket of a set at a time.
                let Spec { evms, .. } = &self.pairs[set].spec;
                let waits = evms.head() + most > ordinal + evms.size();
                if to % self.pairs.len() == set && (by % cpus == cpu || waits) {
                    continue;
                }
            }
            self.apply(turn);
        }
        let pair = &mut self.pairs[set];
        pair.spec.settle(ordinal, cpu, page, false);
        pair.m.settle(&ticket, page, false);
    }
}

/// Ends a set. Gives how many numbers of the counter it has had.
fn finish(pair: &Pair) -> i64 {
    pair.m.finish();
    pair.m.numbers() + pair.m.skipped() as i64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Each of several sets with one counter does what the specification of a set alone does.
    #[test]
    fn sets_do_not_notice_each_other(
        shapes in prop::collection::vec((shape(), start()), 1..=SETS),
        first in start(),
        turns in prop::collection::vec(turn(), 1..200),
    ) {
        let mut sets = Sets::new(&shapes, first);
        for turn in &turns {
            sets.apply(turn);
        }
        let all = sets.ended + sets.pairs.iter().map(finish).sum::<i64>();
        prop_assert_eq!(all as u64, sets.counter.next().ordinal - first);
    }
}

proptest! {
    /// Two plain counters give the same numbers.
    #[test]
    fn both_numbers_are_whole(
        ordinal in prop_oneof![0u64..4, (1u64 << 32) - 3..1 << 32, (1u64 << 40) - 3..1 << 41],
        seq in prop_oneof![1u64..4, (1u64 << 32) - 3..1 << 32, (1u64 << 40) - 3..1 << 41],
        // So many of one kind, one after the other.
        runs in prop::collection::vec((any::<bool>(), 1u64..6), 1..40),
    ) {
        let first = Number { ordinal, seq };
        let counter = Counter::new(std::array::from_fn(|_| OneThread::atom()), first);
        let mut next = first;
        for (is_admission, times) in runs {
            for _ in 0..times {
                prop_assert_eq!(counter.next(), next);
                if is_admission {
                    prop_assert_eq!(counter.admission(), next);
                    next.ordinal += 1;
                } else {
                    prop_assert_eq!(counter.event(), next.seq);
                }
                next.seq += 1;
            }
        }
    }
}

/// Across the end of a half of the word, with the other half standing still; and across what a
/// counter notes of its numbers.
#[test]
fn events_alone_go_on_for_long() {
    let seq = (1 << 32) - (1 << 21);
    let first = Number { ordinal: 5, seq };
    let counter = Counter::new(std::array::from_fn(|_| OneThread::atom()), first);
    for seq in seq..seq + (5 << 20) {
        assert_eq!(counter.event(), seq);
    }
    assert_eq!(counter.next().ordinal, 5);
}

/// A PTE was cleared and nobody said so. The stay ends when the page is admitted again, has a
/// record, and is counted.
#[test]
fn a_missed_end_is_counted() {
    let shape = Shape {
        n: 4,
        first: 1,
        cpus: 1,
        clock: false,
        again: false,
        batch: 1,
    };
    let next = Number { ordinal: 0, seq: 1 };
    let m = Machine::<OneThread>::new(shape, 8, 4, next, PATIENCE);
    m.touch(0, 2, false, How::Near, 1);
    m.forget(2);
    m.touch(0, 2, false, How::Near, 2);
    assert_eq!(m.missed(), 1);
    m.touch(0, 2, false, How::Near, 3);
    assert_eq!(m.counter.next().ordinal, 2, "it is a member again");
    for page in [0, 1, 3] {
        m.touch(0, page, false, How::Near, 4);
    }
    let records = m.records.lock().unwrap();
    let why = u64::from(stay::WHY_OTHER) << stay::WHY_SHIFT;
    let first = records.first().map(|r| (r.seq, r.page));
    assert_eq!(first, Some((1, 2 << 12 | why)));
}

/// The same in a set whose clock is far ahead of its ordinals. What the word of a member has is an
/// ordinal: an admission with a smaller one is late, and one with a greater one is not.
#[test]
fn a_missed_end_is_found_by_ordinals() {
    let shape = Shape {
        n: 4,
        first: 1,
        cpus: 2,
        clock: false,
        again: false,
        batch: 1,
    };
    // Ahead of the clock, too.
    for start in [0, 2000] {
        let mut sets = Sets::new(&[(shape, start), (shape, 0)], 1000);
        for page in 0..8 {
            sets.apply(&Turn::Of(
                1,
                Op::Touch {
                    cpu: 0,
                    page,
                    write: false,
                    far: false,
                },
            ));
        }
        let m = &sets.pairs[0].m;
        let slow = m.set_out(0, 1).expect("nothing is in the way");
        m.touch(1, 2, false, How::Near, 2);
        m.forget(2);
        m.settle(&slow, 2, false);
        let given_up = || m.given_up.load(SeqCst);
        assert_eq!((m.missed(), given_up()), (0, 1));
        m.touch(1, 2, false, How::Near, 3);
        assert_eq!((m.missed(), given_up()), (1, 1));
        assert_eq!(m.set.next(&m.counter), start + 3);
    }
}

/// An earlier set has left the words of members, which it must not. Their ordinals are not of this set:
/// no page waits for them, and no other page goes for them.
#[test]
fn words_of_members_of_an_earlier_set_do_no_harm() {
    let shape = Shape {
        n: 4,
        first: 1,
        cpus: 2,
        clock: false,
        again: false,
        batch: 1,
    };
    for stale in [0, 1, 2, 100, 5000] {
        let next = Number {
            ordinal: 1000,
            seq: 1,
        };
        let counter = tickets::counter::<OneThread>(next);
        let words = tickets::words::<OneThread>(PAGES);
        // SAFETY: There is one thread.
        *unsafe { words[8].change() } = stale << 1 | stay::MEMBER;
        let m = Machine::<OneThread>::apart(shape, 8, words, 0, PATIENCE, counter);
        for page in [1, 2, 8] {
            m.touch(0, page, false, How::Near, 1);
        }
        assert_eq!(m.admitted.load(SeqCst), 3, "a word with {stale}");
        m.finish();
    }
}

/// Another policy has left its marks, which are no clocks: they hold no admission back, and a page that is
/// dropped is noted in their place.
#[test]
fn words_of_another_policy_count_as_none() {
    let shape = Shape {
        n: 4,
        first: 1,
        cpus: 2,
        clock: false,
        again: false,
        batch: 1,
    };
    for mark in [0, 2, 1 << 20, (1 << 63) - 2] {
        let next = Number { ordinal: 5, seq: 1 };
        let counter = tickets::counter::<OneThread>(next);
        let words = tickets::words::<OneThread>(PAGES);
        // SAFETY: There is one thread.
        *unsafe { words[8].change() } = stay::FOREIGN | mark;
        let m = Machine::<OneThread>::apart(shape, 8, words, 0, PATIENCE, counter);
        // SAFETY: There is one thread.
        unsafe { m.set.overtake(entry(3), &m.counter) };
        m.touch(0, 8, false, How::Near, 1);
        assert_eq!(m.admitted.load(SeqCst), 1, "a mark with {mark}");
        assert_eq!(m.given_up.load(SeqCst), 0, "a mark with {mark}");
        m.finish();
    }
    // A slow admission, whose page is dropped before it is made.
    let next = Number { ordinal: 5, seq: 1 };
    let counter = tickets::counter::<OneThread>(next);
    let words = tickets::words::<OneThread>(PAGES);
    // SAFETY: There is one thread.
    *unsafe { words[8].change() } = stay::FOREIGN;
    let m = Machine::<OneThread>::apart(shape, 8, words, 0, PATIENCE, counter);
    let slow = m.set_out(0, 1).expect("nothing is in the way");
    // SAFETY: There is one thread.
    unsafe { m.set.overtake(entry(8), &m.counter) };
    m.settle(&slow, 8, false);
    assert_eq!(m.given_up.load(SeqCst), 1);
    m.finish();
}
