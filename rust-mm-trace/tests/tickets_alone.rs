//! One call after the other: then the set without a global lock is the specification, `evms.rs`.

mod tickets;

use proptest::prelude::*;
use rust_mm_trace::evms::{self, Claim, Evms, Hand, Reserve};
use rust_mm_trace::stay::{self, firsts_for, Admission, Bits, Caller, Shape, Slot};
use rust_mm_trace::tickets::{Atom, Counter, Number, Place, Primitives, PATIENCE};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use tickets::{
    entry, page_of, Bare, Env, How, Lock, Machine, Record, Table, CHANCES, DROPPED, EVICTED,
};

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

    fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        Some(f(&mut *self.try_borrow_mut().ok()?))
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
            .evict_batch(ordinal, EVICTED, now, end, epoch_of, |addr, _| {
                Spec::take(ptes, (addr >> 12) as usize)
            });
    }

    fn touch(&mut self, cpu: usize, page: usize, write: bool, time: u64) {
        if let Some(bits) = &mut self.ptes[page] {
            bits.young = true;
            bits.dirty |= write;
            return;
        }
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
        let a = Admission {
            owner: 1,
            entry: entry(page),
            page: (page as u64) << 12 | u64::from(write),
            mm: 1,
            tid_cpu: cpu as u32,
            pfn: page as u32,
            was_dirty: false,
            vtime: 0,
        };
        assert!(self.evms.admit(ordinal, &a).is_some());
        self.ptes[page] = Some(Bits {
            young: true,
            dirty: write,
        });
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn is_the_specification(
        shape in shape(),
        start in prop_oneof![Just(0u64), 1u64..100, Just((1 << 32) - 5)],
        ops in prop::collection::vec(op(), 1..300),
    ) {
        let mut spec = Spec::new(shape, start);
        let next = Number { ordinal: start, seq: 1 };
        let cells = (shape.n + 1).next_power_of_two();
        let m = Machine::<OneThread>::new(shape, cells, PAGES, next, PATIENCE);
        let mut time = 1000;
        for op in &ops {
            time += 64;
            match *op {
                Op::Touch { cpu, page, write, far } => {
                    let cpu = cpu % shape.cpus;
                    spec.touch(cpu, page, write, time);
                    let how = if far { How::Far } else { How::Near };
                    m.touch(cpu, page, write, how, time);
                }
                Op::Drop { page } => {
                    spec.drop_page(page, time);
                    m.drop_page(page, time);
                }
                Op::Age { page } => {
                    let at = page % tickets::TABLE;
                    let young = spec.ptes[page].as_mut().map(|b| std::mem::take(&mut b.young));
                    let seen = young.map(|y| spec.evms.aged(Spec::page(page), y));
                    m.tables[page / tickets::TABLE].with(|table| {
                        let young = table.enabled[at]
                            .then(|| std::mem::take(&mut table.bits[at].young));
                        // SAFETY: The page table is locked.
                        let mine = young.map(|y| unsafe { m.set.aged(m.page(page), y) });
                        assert_eq!(mine, seen);
                    });
                }
                Op::Wait => time += stay::CLAIM_NS,
                Op::Switch { cpu } => {
                    let cpu = cpu % shape.cpus;
                    spec.epochs[cpu] += 1;
                    m.epochs[cpu].fetch_add(1, SeqCst);
                }
            }
            prop_assert_eq!(m.counter.next().ordinal, spec.evms.head());
            for page in 0..PAGES {
                // SAFETY: There is one thread.
                let word = *unsafe { m.words[page].read() };
                prop_assert_eq!(word, spec.words.borrow()[page], "page {}", page);
                let at = page % tickets::TABLE;
                m.tables[page / tickets::TABLE].with(|t| {
                    let bits = t.enabled[at].then_some(t.bits[at]);
                    assert_eq!(bits, spec.ptes[page], "page {page}");
                });
            }
            // Those of a batch may be here earlier.
            let mut records = m.records.lock().unwrap().clone();
            records.sort_by_key(|r| r.seq);
            records.truncate(spec.records.len());
            prop_assert_eq!(&records, &spec.records);
        }
        m.finish();
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
    assert_eq!(m.set.missed(), 1);
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
