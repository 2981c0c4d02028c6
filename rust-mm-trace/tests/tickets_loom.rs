//! The set without a global lock on two CPUs, in every order that the memory model allows, up to so
//! many preemptions: loom runs each test again and again. It also finds accesses to a slot or a word
//! that nothing orders.

use crate::tickets::{
    self, Counted, Env,
    How::{self, Far, Near},
    Lock, Machine, Table,
};
use loom::cell::{ConstPtr, MutPtr, UnsafeCell};
use loom::sync::atomic::{
    fence, AtomicU64,
    Ordering::{AcqRel, Acquire, Release, SeqCst},
};
use loom::sync::{Arc, Mutex, MutexGuard};
use loom::thread;
use rust_mm_trace::stay::{Shape, Slot};
use rust_mm_trace::tickets::{Atom, Number, Place, Primitives};
use std::ops::{Deref, DerefMut};

/// loom takes a load for independent of a store if the storing thread has loaded in between: so it
/// leaves out orders. If `ALL`, what loads looks like what stores, so that no order is left out; but then
/// nobody loads a value that is no longer the last one. So each test is run in both ways.
struct Number64<const ALL: bool>(AtomicU64);

impl<const ALL: bool> Atom for Number64<ALL> {
    fn get(&self) -> u64 {
        const NONE: u64 = 0xdead_dead_dead_dead;
        match ALL {
            true => match self.0.compare_exchange(NONE, NONE, Acquire, Acquire) {
                Ok(now) | Err(now) => now,
            },
            false => self.0.load(Acquire),
        }
    }

    fn put(&self, value: u64) {
        self.0.store(value, Release);
    }

    // The kernel's are ordered with all accesses before and after.
    fn add(&self, value: u64) -> u64 {
        fence(SeqCst);
        let before = self.0.fetch_add(value, AcqRel);
        fence(SeqCst);
        before
    }

    fn replace(&self, old: u64, new: u64) -> Result<(), u64> {
        fence(SeqCst);
        self.0.compare_exchange(old, new, AcqRel, Acquire)?;
        fence(SeqCst);
        Ok(())
    }
}

/// loom reports accesses that are not ordered.
struct Checked<T>(UnsafeCell<T>);

struct Reads<T>(ConstPtr<T>);

impl<T> Deref for Reads<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: loom checks it.
        unsafe { self.0.deref() }
    }
}

struct Changes<T>(MutPtr<T>);

impl<T> Deref for Changes<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: loom checks it.
        unsafe { self.0.deref() }
    }
}

impl<T> DerefMut for Changes<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: loom checks it.
        unsafe { self.0.deref() }
    }
}

impl<T> Place<T> for Checked<T> {
    type Ref<'a>
        = Reads<T>
    where
        T: 'a;
    type Mut<'a>
        = Changes<T>
    where
        T: 'a;

    unsafe fn read(&self) -> Reads<T> {
        Reads(self.0.get())
    }

    unsafe fn change(&self) -> Changes<T> {
        Changes(self.0.get_mut())
    }
}

/// Unless `LOOKS`, nobody looks at whether a stay has ended meanwhile.
struct Loom<const ALL: bool, const LOOKS: bool = true>;

impl<const ALL: bool, const LOOKS: bool> Primitives for Loom<ALL, LOOKS> {
    type Atom = Number64<ALL>;
    type Place = Checked<Slot>;

    fn barrier() {
        fence(SeqCst);
    }

    fn looks_again() -> bool {
        LOOKS
    }
}

impl<T> Lock<T> for Mutex<T> {
    fn new(value: T) -> Self {
        Mutex::new(value)
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.lock().unwrap())
    }

    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn try_lock(&self) -> Option<Self::Guard<'_>> {
        self.try_lock().ok()
    }
}

impl<const ALL: bool, const LOOKS: bool> Env for Loom<ALL, LOOKS> {
    type P = Self;
    type Word = Checked<u64>;
    type Lock = Mutex<Table>;

    fn atom() -> Number64<ALL> {
        Number64(AtomicU64::new(0))
    }

    fn place() -> Checked<Slot> {
        Checked(UnsafeCell::new(Slot::EMPTY))
    }

    fn word() -> Checked<u64> {
        Checked(UnsafeCell::new(0))
    }
}

/// What a CPU does.
#[derive(Clone, Copy)]
enum Do {
    /// Touch a page.
    Touch(usize, How),
    /// Clear its PTE.
    Drop(usize),
}
use Do::{Drop, Touch};

/// Sets with first segments of one page.
const PLAIN: Shape = Shape {
    n: 2,
    first: 1,
    cpus: 2,
    clock: false,
    again: false,
    batch: 1,
};

/// Runs two CPUs in all orders with at most so many preemptions, after what is `before`.
fn explore(
    set: (Shape, usize, u64),
    before: &'static [Do],
    cpus: [&'static [Do]; 2],
    preemptions: usize,
) {
    explore_as::<false, true>(set, before, cpus, preemptions);
    explore_as::<true, true>(set, before, cpus, preemptions);
}

fn explore_as<const ALL: bool, const LOOKS: bool>(
    (shape, cells, patience): (Shape, usize, u64),
    before: &'static [Do],
    cpus: [&'static [Do]; 2],
    preemptions: usize,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 100_000;
    model.check(move || {
        let next = Number { ordinal: 7, seq: 1 };
        let m = Machine::<Loom<ALL, LOOKS>>::new(shape, cells, 6, next, patience);
        let m = Arc::new(m);
        run(&m, 0, before);
        let threads = [0, 1].map(|cpu| {
            let m = m.clone();
            let list = cpus[cpu];
            thread::spawn(move || run(&m, cpu, list))
        });
        for t in threads {
            t.join().unwrap();
        }
        m.finish();
    });
}

fn run<E: Env>(m: &Machine<E>, cpu: usize, list: &[Do]) {
    for what in list {
        match *what {
            Touch(page, how) => m.touch(cpu, page, true, how, 1),
            Drop(page) => m.drop_page(page, 1),
        }
    }
}

#[test]
fn two_admissions_evict_each_other() {
    const BEFORE: &[Do] = &[Touch(0, Near), Touch(2, Near)];
    for how in [Near, Far] {
        let one: &[Do] = match how {
            Near => &[Touch(4, Near), Touch(0, Near)],
            Far => &[Touch(4, Far), Touch(0, Far)],
        };
        explore(
            (PLAIN, 8, 0),
            BEFORE,
            [one, &[Touch(1, Near), Touch(2, Near)]],
            2,
        );
    }
}

#[test]
fn a_page_is_dropped_while_it_is_evicted() {
    const BEFORE: &[Do] = &[Touch(0, Near), Touch(2, Near)];
    explore(
        (PLAIN, 8, 0),
        BEFORE,
        [
            &[Touch(4, Near), Touch(1, Far)],
            &[Drop(0), Drop(2), Drop(4)],
        ],
        3,
    );
}

/// The model finds out if a CPU ends a stay that another one has ended while the page table was not
/// locked.
#[test]
#[should_panic(expected = "a member's PTE is enabled")]
fn a_stay_that_was_not_looked_at_again_is_ended_twice() {
    const BEFORE: &[Do] = &[Touch(0, Near), Touch(2, Near)];
    explore_as::<false, false>((PLAIN, 8, 0), BEFORE, [&[Touch(4, Far)], &[Drop(0)]], 2);
}

/// The slow one has a ticket, and perhaps nothing else, when the other one needs its slot. The
/// member that it puts out of the set goes all the same.
#[test]
fn a_slow_admission_is_given_up() {
    const BEFORE: &[Do] = &[Touch(0, Near), Touch(1, Near)];
    explore(
        (PLAIN, 8, 0),
        BEFORE,
        [&[Touch(4, Far)], &[Touch(2, Near), Touch(3, Near)]],
        2,
    );
}

/// The same, and the other one comes round to its slot again.
#[test]
fn a_slot_that_is_not_free_is_not_used() {
    const BEFORE: &[Do] = &[Touch(0, Near), Touch(1, Near)];
    const MANY: &[Do] = &[
        Touch(2, Near),
        Touch(3, Near),
        Touch(5, Near),
        Touch(2, Near),
    ];
    explore((PLAIN, 4, 0), BEFORE, [&[Touch(4, Near)], MANY], 2);
}

/// One CPU clears the accessed bit of a page that the other one drops or evicts.
#[test]
fn a_page_is_dropped_while_it_passes() {
    const BEFORE: &[Do] = &[Touch(0, Near), Touch(2, Near)];
    let again = Shape {
        again: true,
        ..PLAIN
    };
    explore(
        (again, 8, 0),
        BEFORE,
        [&[Touch(4, Far), Touch(1, Near)], &[Drop(2), Touch(3, Near)]],
        2,
    );
}

/// The same with second chances.
#[test]
fn a_page_gets_a_second_chance_while_it_is_dropped() {
    const BEFORE: &[Do] = &[Touch(0, Near), Touch(2, Near)];
    let clock = Shape {
        clock: true,
        again: true,
        ..PLAIN
    };
    explore(
        (clock, 8, 0),
        BEFORE,
        [&[Touch(4, Far)], &[Drop(2), Touch(3, Far)]],
        2,
    );
}

/// Three pages, two of which go together.
const BATCHES: Shape = Shape {
    n: 3,
    batch: 2,
    ..PLAIN
};

/// A batch has a page that the other CPU drops, or wants to evict.
#[test]
fn a_batch_meets_another_cpu() {
    const BEFORE: &[Do] = &[Touch(0, Near), Touch(1, Near), Touch(2, Near)];
    explore(
        (BATCHES, 8, 0),
        BEFORE,
        [
            &[Touch(4, Near)],
            &[Drop(1), Touch(3, Near), Touch(1, Near)],
        ],
        2,
    );
}

/// The victim is in one page table, and the page that goes with it in another one.
const IN_TWO_TABLES: &[Do] = &[Touch(0, Near), Touch(2, Near), Touch(1, Near)];

/// The same, and that page is in another page table than the victim.
#[test]
fn a_batch_over_page_tables_meets_another_cpu() {
    explore(
        (BATCHES, 8, 0),
        IN_TWO_TABLES,
        [
            &[Touch(4, Near)],
            &[Drop(2), Touch(3, Near), Touch(2, Near)],
        ],
        2,
    );
    explore(
        (BATCHES, 8, 0),
        IN_TWO_TABLES,
        [&[Touch(4, Far)], &[Touch(3, Far), Drop(2), Touch(2, Far)]],
        2,
    );
}

/// The control: the locks of other page tables are not kept until the end of the batch.
#[test]
#[should_panic(expected = "currently writing to cell")]
fn a_batch_without_locks_meets_another_cpu() {
    loom::model(move || {
        let mut m = Machine::<Loom<false>>::new(BATCHES, 8, 6, FIRST, 0);
        m.keeps_locks = false;
        let m = Arc::new(m);
        run(&m, 0, IN_TWO_TABLES);
        let other = m.clone();
        let other = thread::spawn(move || run(&other, 1, &[Drop(2)]));
        run(&m, 0, &[Touch(4, Far)]);
        other.join().unwrap();
        m.finish();
    });
}

/// The CPUs take their numbers in turn.
#[test]
fn a_cpu_waits_for_another_one() {
    const BEFORE: &[Do] = &[Touch(0, Near), Touch(1, Near)];
    explore(
        (PLAIN, 8, 1),
        BEFORE,
        [&[Touch(4, Far)], &[Touch(2, Near), Touch(3, Near)]],
        1,
    );
}

/// The first number of the counter, and the first ordinal of a set that counts apart.
const FIRST: Number = Number { ordinal: 7, seq: 1 };
const START: u64 = 3;

/// The numbers of an admission to a set that counts apart: ordinal, clock and number of the record.
type Three = [u64; 3];

/// What the numbers of a set must be like: each CPU's, in its order.
fn are_in_order(of_cpus: &[Vec<Three>]) {
    for own in of_cpus {
        assert!(own.is_sorted_by(|a, b| a[0] < b[0]), "{own:?}");
    }
    let mut all = of_cpus.concat();
    all.sort_unstable();
    let ordinals = all.iter().map(|n| n[0]);
    assert!(ordinals.eq(START..START + all.len() as u64), "{all:?}");
    let follows = |a: &Three, b: &Three| a[1] < b[1] && a[2] < b[2];
    assert!(all.is_sorted_by(follows), "the orders differ: {all:?}");
}

/// What another set takes of the counter. Gives how many numbers of admissions.
fn take_others<const ALL: bool>(counter: &Counted<Loom<ALL>>) -> u64 {
    counter.admission();
    counter.event();
    counter.admission();
    2
}

/// CPUs take tickets of one set, so many each, and if another set uses the counter, it does so
/// meanwhile.
fn explore_numbers(set: (Shape, u64), each: [usize; 2], others: bool, preemptions: usize) {
    explore_numbers_as::<false>(set, each, others, preemptions);
    explore_numbers_as::<true>(set, each, others, preemptions);
}

fn explore_numbers_as<const ALL: bool>(
    (shape, patience): (Shape, u64),
    each: [usize; 2],
    others: bool,
    preemptions: usize,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 100_000;
    model.check(move || {
        let counter = tickets::counter::<Loom<ALL>>(FIRST);
        let words = tickets::words::<Loom<ALL>>(2);
        let m = Machine::<Loom<ALL>>::apart(shape, 8, words, START, patience, counter);
        let m = Arc::new(m);
        let cpus = [0, 1].map(|cpu| {
            let m = m.clone();
            thread::spawn(move || {
                // None, if another CPU is to come first.
                let tickets = (0..each[cpu]).filter_map(|_| m.ticket(cpu, 1));
                let numbers = tickets.map(|t| [t.number.ordinal, t.clock, t.number.seq]);
                numbers.collect::<Vec<Three>>()
            })
        });
        let (others, events) = match others {
            true => (take_others(&m.counter), 1),
            false => (0, 0),
        };
        let all = cpus.map(|cpu| cpu.join().unwrap());
        are_in_order(&all);
        let tickets = all.concat().len() as u64;
        assert_eq!(m.set.next(&m.counter), START + tickets);
        let numbers = m.counter.next();
        let taken = tickets + m.skipped() + others;
        assert_eq!(
            numbers.ordinal - FIRST.ordinal,
            taken,
            "one is in no account"
        );
        assert_eq!(numbers.seq - FIRST.seq, taken + events);
    });
}

/// No seats, and no waiting: as in a set that is large enough.
const LARGE: Shape = Shape { n: 4, ..PLAIN };

#[test]
fn ordinals_and_clocks_are_in_one_order() {
    explore_numbers((LARGE, 0), [1, 1], true, 3);
    explore_numbers((LARGE, 0), [2, 2], false, 3);
}

/// The same in a set in which CPUs take their numbers in turn.
#[test]
fn numbers_in_turn_are_in_one_order() {
    explore_numbers((PLAIN, 1), [1, 1], false, 2);
}

/// What a set would do that took its ordinal without regard to when it has taken its clock.
fn careless(counter: &Counted<Loom<true>>, ordinals: &Number64<true>) -> Three {
    loop {
        let number = counter.admission();
        let next = ordinals.get();
        if ordinals.replace(next, next + 1).is_ok() {
            return [next, number.ordinal, number.seq];
        }
    }
}

/// The model finds out.
#[test]
#[should_panic(expected = "the orders differ")]
fn numbers_taken_without_care_are_not() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let counter = tickets::counter::<Loom<true>>(FIRST);
        let ordinals = std::sync::Arc::new(Number64(AtomicU64::new(START)));
        let cpus = [0, 1].map(|_| {
            let (counter, ordinals) = (counter.clone(), ordinals.clone());
            thread::spawn(move || vec![careless(&counter, &ordinals)])
        });
        are_in_order(&cpus.map(|cpu| cpu.join().unwrap()));
    });
}
