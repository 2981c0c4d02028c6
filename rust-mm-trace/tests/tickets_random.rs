//! The set without a global lock on several CPUs, in orders that are drawn at random: longer than
//! what loom goes through, with all kinds of sets.

mod tickets;

use proptest::prelude::*;
use rust_mm_trace::stay::{self, Shape, Slot};
use rust_mm_trace::tickets::{Atom, Number, Primitives, PATIENCE};
use shuttle::scheduler::{PctScheduler, RandomScheduler, RoundRobinScheduler};
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::sync::{Arc, Mutex, RwLock};
use shuttle::{thread, Config, Runner};
use std::cell::UnsafeCell;
use tickets::{Bare, Env, How, Lock, Machine, Table};

struct Number64(AtomicU64);

impl Atom for Number64 {
    fn get(&self) -> u64 {
        self.0.load(SeqCst)
    }

    fn put(&self, value: u64) {
        self.0.store(value, SeqCst);
    }

    fn add(&self, value: u64) -> u64 {
        self.0.fetch_add(value, SeqCst)
    }

    fn replace(&self, old: u64, new: u64) -> Result<(), u64> {
        self.0
            .compare_exchange(old, new, SeqCst, SeqCst)
            .map(|_| ())
    }
}

struct Random;

impl Primitives for Random {
    type Atom = Number64;
    type Place = Bare<Slot>;

    fn barrier() {}
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

impl Env for Random {
    type P = Random;
    type Word = Bare<u64>;
    type Lock = Mutex<Table>;

    fn atom() -> Number64 {
        Number64(AtomicU64::new(0))
    }

    fn place() -> Bare<Slot> {
        Bare(UnsafeCell::new(Slot::EMPTY))
    }

    fn word() -> Bare<u64> {
        Bare(UnsafeCell::new(0))
    }
}

const PAGES: usize = 12;

#[derive(Clone, Copy, Debug)]
enum Op {
    Touch {
        page: usize,
        write: bool,
        far: bool,
    },
    Drop {
        page: usize,
    },
    /// An event of dropped pages has its number.
    Event,
    /// The CPU switches to another task.
    Switch,
    /// Another size, so much above the smallest one.
    Resize {
        more: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        160 => (0..PAGES, any::<bool>(), any::<bool>())
            .prop_map(|(page, write, far)| Op::Touch { page, write, far }),
        20 => (0..PAGES).prop_map(|page| Op::Drop { page }),
        3 => Just(Op::Event),
        10 => Just(Op::Switch),
        1 => (0usize..6).prop_map(|more| Op::Resize { more }),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    let kinds = (any::<bool>(), any::<bool>());
    (1usize..3, 2usize..5, 0usize..5, 1usize..4, kinds).prop_map(
        |(first, cpus, more, batch, (clock, again))| {
            let n = stay::least(first, cpus) + more;
            Shape {
                n,
                first,
                cpus,
                clock,
                again,
                batch: batch.min(stay::batch_max(n, first, cpus)),
            }
        },
    )
}

/// A set, how many slots it has for each one that it needs, and how often a CPU waits for another
/// one; and what each CPU does.
type Program = (Shape, usize, u64, Vec<Vec<Op>>);

fn program() -> impl Strategy<Value = Program> {
    (shape(), 1usize..5, prop_oneof![Just(0u64), 0u64..4]).prop_flat_map(
        |(shape, room, patience)| {
            let list = prop::collection::vec(op(), 1..30);
            (
                Just(shape),
                Just(room),
                Just(patience),
                prop::collection::vec(list, shape.cpus),
            )
        },
    )
}

fn step(m: &Machine<Random>, grace: &RwLock<()>, least: usize, cpu: usize, op: Op) {
    match op {
        Op::Touch { page, write, far } => {
            let _reader = grace.read().unwrap();
            let how = if far { How::Far } else { How::Near };
            m.touch(cpu, page, write, how, 1);
        }
        Op::Drop { page } => m.drop_page(page, 1),
        Op::Event => {
            m.counter.event();
            m.set.overtake_all(&m.counter);
        }
        Op::Switch => {
            m.epochs[cpu].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
        Op::Resize { more } => {
            let n = (least + more) as u64;
            m.set.pause();
            let _writer = grace.write().unwrap();
            if m.set.can_be(n) {
                m.resize(n);
            }
            m.set.go_on();
        }
    }
}

fn run((shape, room, patience, lists): &Program) {
    let cells = (room * (shape.n + 1)).next_power_of_two();
    let next = Number { ordinal: 3, seq: 1 };
    let m = Arc::new(Machine::<Random>::new(
        *shape, cells, PAGES, next, *patience,
    ));
    // A ticket is taken and done by a reader. A writer knows that none is on the way.
    let grace = Arc::new(RwLock::new(()));
    let least = stay::least(shape.first, shape.cpus);
    let cpus = lists.iter().cloned().enumerate();
    let threads: Vec<_> = cpus
        .map(|(cpu, list)| {
            let (m, grace) = (m.clone(), grace.clone());
            thread::spawn(move || {
                for op in list {
                    step(&m, &grace, least, cpu, op);
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
    m.finish();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn what_holds_in_any_order(program in program(), seed in any::<u64>(), pct in any::<bool>()) {
        let again = program.clone();
        if pct {
            let scheduler = PctScheduler::new_from_seed(seed, 4, 20);
            Runner::new(scheduler, Config::new()).run(move || run(&again));
        } else {
            let scheduler = RandomScheduler::new_from_seed(seed, 20);
            Runner::new(scheduler, Config::new()).run(move || run(&again));
        }
    }
}

/// More CPUs than pages go in step, and each wants pages of its own. Gives how many admissions there
/// are, and how many were given up.
fn in_step(cpus: usize, patience: u64) -> (i64, i64) {
    const ROUNDS: usize = 600;
    let shape = Shape {
        n: 8,
        first: 4,
        cpus,
        clock: false,
        again: false,
        batch: 1,
    };
    let counts = std::sync::Arc::new(std::sync::Mutex::new((0, 0)));
    let result = counts.clone();
    let run = move || {
        let next = Number { ordinal: 3, seq: 1 };
        let pages = cpus * tickets::TABLE;
        let m = Arc::new(Machine::<Random>::new(shape, 64, pages, next, patience));
        let threads: Vec<_> = (0..cpus)
            .map(|cpu| {
                let m = m.clone();
                thread::spawn(move || {
                    for round in 0..ROUNDS {
                        let page = cpu * tickets::TABLE + round % tickets::TABLE;
                        m.touch(cpu, page, false, How::Near, 1);
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        m.finish();
        let of = |n: &std::sync::atomic::AtomicI64| n.load(std::sync::atomic::Ordering::SeqCst);
        *counts.lock().unwrap() = (of(&m.admitted), of(&m.given_up));
    };
    let mut config = Config::new();
    config.max_steps = shuttle::MaxSteps::None;
    Runner::new(RoundRobinScheduler::new(1), config).run(run);
    *result.lock().unwrap()
}

#[test]
fn cpus_in_step_get_on_in_a_small_set() {
    // How the steps of CPUs meet depends on how many CPUs there are.
    let all = |patience| {
        let each = (24..=40).map(|cpus| in_step(cpus, patience));
        each.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    };
    let (admitted, given_up) = all(PATIENCE);
    assert!(
        given_up < admitted / 4,
        "{admitted} admissions, {given_up} given up"
    );
    // Without patience, they give up most of each other's.
    let (admitted, given_up) = all(0);
    assert!(
        given_up > 2 * admitted,
        "{admitted} admissions, {given_up} given up"
    );
}
