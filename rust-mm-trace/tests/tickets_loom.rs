//! The set without a global lock on two CPUs, in every order that the memory model allows, up to so
//! many preemptions: loom runs each test again and again. It also finds accesses to a slot or a word
//! that nothing orders.

mod tickets;

use loom::cell::{ConstPtr, MutPtr, UnsafeCell};
use loom::sync::atomic::{
    fence, AtomicU64,
    Ordering::{AcqRel, Acquire, Release, SeqCst},
};
use loom::sync::{Arc, Mutex};
use loom::thread;
use rust_mm_trace::stay::{Shape, Slot};
use rust_mm_trace::tickets::{Atom, Number, Place, Primitives};
use std::ops::{Deref, DerefMut};
use tickets::{
    Env,
    How::{self, Far, Near},
    Lock, Machine, Table,
};

struct Number64(AtomicU64);

impl Atom for Number64 {
    fn get(&self) -> u64 {
        self.0.load(Acquire)
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

struct Loom;

impl Primitives for Loom {
    type Atom = Number64;
    type Place = Checked<Slot>;

    fn barrier() {
        fence(SeqCst);
    }
}

impl<T> Lock<T> for Mutex<T> {
    fn new(value: T) -> Self {
        Mutex::new(value)
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.lock().unwrap())
    }

    fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        Some(f(&mut *self.try_lock().ok()?))
    }
}

impl Env for Loom {
    type P = Loom;
    type Word = Checked<u64>;
    type Lock = Mutex<Table>;

    fn atom() -> Number64 {
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
        let m = Arc::new(Machine::<Loom>::new(shape, cells, 6, next, patience));
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

fn run(m: &Machine<Loom>, cpu: usize, list: &[Do]) {
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

/// A batch has a page that the other CPU drops, or wants to evict.
#[test]
fn a_batch_meets_another_cpu() {
    const BEFORE: &[Do] = &[Touch(0, Near), Touch(1, Near), Touch(2, Near)];
    let batch = Shape {
        n: 3,
        batch: 2,
        ..PLAIN
    };
    explore(
        (batch, 8, 0),
        BEFORE,
        [
            &[Touch(4, Near)],
            &[Drop(1), Touch(3, Near), Touch(1, Near)],
        ],
        2,
    );
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
