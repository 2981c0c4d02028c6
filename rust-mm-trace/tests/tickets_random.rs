//! The set without a global lock on several CPUs, in orders that are drawn at random: longer than
//! what loom goes through, with all kinds of sets.

use crate::tickets::{self, Bare, Env, How, Lock, Machine, Table};
use proptest::prelude::*;
use rust_mm_trace::stay::{self, Shape, Slot};
use rust_mm_trace::tickets::{Atom, Number, Primitives, PATIENCE};
use shuttle::scheduler::{
    PctScheduler, RandomScheduler, RoundRobinScheduler, Schedule, Scheduler, Task, TaskId,
};
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::sync::{Arc, Mutex, MutexGuard, RwLock};
use shuttle::{thread, Config, Runner};
use std::cell::UnsafeCell;

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

    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn try_lock(&self) -> Option<Self::Guard<'_>> {
        self.try_lock().ok()
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

/// A machine, and who has a ticket of its set: a reader takes a ticket and is done with it. A writer
/// knows that none is on the way.
struct Rig {
    m: Machine<Random>,
    grace: RwLock<()>,
    least: usize,
}

impl Rig {
    fn new(m: Machine<Random>, shape: &Shape) -> Rig {
        Rig {
            m,
            grace: RwLock::new(()),
            least: stay::least(shape.first, shape.cpus),
        }
    }

    fn step(&self, cpu: usize, op: Op) {
        let m = &self.m;
        match op {
            Op::Touch { page, write, far } => {
                let _reader = self.grace.read().unwrap();
                let how = if far { How::Far } else { How::Near };
                m.touch(cpu, page, write, how, 1);
            }
            Op::Drop { page } => m.drop_page(page, 1),
            Op::Event => {
                m.counter.event();
                m.counter.overtake_all::<Random>();
            }
            Op::Switch => {
                m.epochs[cpu].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
            Op::Resize { more } => {
                let n = (self.least + more) as u64;
                m.set.pause();
                let _writer = self.grace.write().unwrap();
                if m.set.can_be(n) {
                    m.resize(n);
                }
                m.set.go_on();
            }
        }
    }
}

/// What each CPU does to the sets, in turn.
fn run_cpus(rigs: &Arc<Vec<Rig>>, lists: &[Vec<(usize, Op)>]) {
    let cpus = lists.iter().cloned().enumerate();
    let threads: Vec<_> = cpus
        .map(|(cpu, list)| {
            let rigs = rigs.clone();
            thread::spawn(move || {
                for (set, op) in list {
                    rigs[set % rigs.len()].step(cpu, op);
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
}

fn run((shape, room, patience, lists): &Program) {
    let cells = (room * (shape.n + 1)).next_power_of_two();
    let next = Number { ordinal: 3, seq: 1 };
    let m = Machine::<Random>::new(*shape, cells, PAGES, next, *patience);
    let rigs = Arc::new(vec![Rig::new(m, shape)]);
    let of_one = |list: &Vec<Op>| list.iter().map(|op| (0, *op)).collect();
    let lists: Vec<_> = lists.iter().map(of_one).collect();
    run_cpus(&rigs, &lists);
    rigs[0].m.finish();
}

/// Sets with one counter, as of [`Program`] and with the first number of each; and what each CPU does.
type Apart = (Vec<(Shape, usize, u64, u64)>, Vec<Vec<(usize, Op)>>);

const SETS: usize = 3;

fn program_apart() -> impl Strategy<Value = Apart> {
    // Ordinals are behind the counter, or ahead of it.
    let start = prop_oneof![0u64..100, 2000u64..2100];
    let set = (shape(), 1usize..5, prop_oneof![Just(0u64), 0u64..4], start);
    (2usize..5, prop::collection::vec(set, 1..=SETS)).prop_flat_map(|(cpus, mut sets)| {
        for (shape, ..) in &mut sets {
            let more = shape.n - stay::least(shape.first, shape.cpus);
            shape.cpus = cpus;
            shape.n = stay::least(shape.first, cpus) + more;
        }
        let list = prop::collection::vec((0..SETS, op()), 1..30);
        (Just(sets), prop::collection::vec(list, cpus))
    })
}

fn run_apart((sets, lists): &Apart) {
    const FIRST: u64 = 1000;
    let next = Number {
        ordinal: FIRST,
        seq: 1,
    };
    let counter = tickets::counter::<Random>(next);
    let rig = |(shape, room, patience, start): &(Shape, usize, u64, u64)| {
        let cells = (room * (shape.n + 1)).next_power_of_two();
        let words = tickets::words::<Random>(PAGES);
        let m = Machine::apart(*shape, cells, words, *start, *patience, counter.clone());
        Rig::new(m, shape)
    };
    let rigs: Arc<Vec<Rig>> = Arc::new(sets.iter().map(rig).collect());
    run_cpus(&rigs, lists);
    let mut all = 0;
    for rig in rigs.iter() {
        rig.m.finish();
        all += rig.m.numbers() as u64;
    }
    let next = counter.next();
    assert_eq!(
        all + counter.skipped(),
        next.ordinal - FIRST,
        "one is in no account"
    );
    let of_cpus = lists.iter().flatten();
    let events = of_cpus.filter(|(_, op)| matches!(op, Op::Event)).count() as u64;
    assert_eq!(next.seq - 1, next.ordinal - FIRST + events);
}

/// Runs it in twenty orders.
fn in_orders(seed: u64, pct: bool, f: impl Fn() + Send + Sync + 'static) {
    let config = Config::new();
    if pct {
        Runner::new(PctScheduler::new_from_seed(seed, 4, 20), config).run(f);
    } else {
        Runner::new(RandomScheduler::new_from_seed(seed, 20), config).run(f);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn what_holds_in_any_order(program in program(), seed in any::<u64>(), pct in any::<bool>()) {
        in_orders(seed, pct, move || run(&program));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// The same with several sets that have one counter. Each number is in one account.
    #[test]
    fn what_holds_of_several_sets(
        program in program_apart(),
        seed in any::<u64>(),
        pct in any::<bool>(),
    ) {
        in_orders(seed, pct, move || run_apart(&program));
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

/// So many tickets each for CPUs of a set that counts apart, which no CPU has to wait for. Gives how
/// many numbers of the counter went to none of them.
fn tickets_apart(
    cpus: usize,
    rounds: usize,
    scheduler: impl Scheduler + 'static,
    most: usize,
) -> u64 {
    let shape = Shape {
        n: 2 * cpus,
        first: 1,
        cpus,
        clock: false,
        again: false,
        batch: 1,
    };
    let skipped = std::sync::Arc::new(std::sync::Mutex::new(0));
    let result = skipped.clone();
    let run = move || {
        let next = Number { ordinal: 3, seq: 1 };
        let cells = (2 * cpus + 1).next_power_of_two();
        let (counter, words) = (
            tickets::counter::<Random>(next),
            tickets::words::<Random>(2),
        );
        let m = Machine::<Random>::apart(shape, cells, words, 0, 0, counter);
        let m = Arc::new(m);
        let threads: Vec<_> = (0..cpus)
            .map(|cpu| {
                let m = m.clone();
                thread::spawn(move || {
                    for _ in 0..rounds {
                        assert!(m.ticket(cpu, 1).is_some());
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(m.set.next(&m.counter), (cpus * rounds) as u64);
        m.are_in_order();
        *skipped.lock().unwrap() = m.skipped();
    };
    let mut config = Config::new();
    config.max_steps = shuttle::MaxSteps::FailAfter(most);
    Runner::new(scheduler, config).run(run);
    *result.lock().unwrap()
}

/// Two CPUs take turns: after a first one, each turn has so many steps more than one.
struct Turns {
    first: usize,
    others: usize,
    left: usize,
    turns: usize,
}

impl Scheduler for Turns {
    fn new_execution(&mut self) -> Option<Schedule> {
        let is_first = self.turns == 0;
        (self.left, self.turns) = (self.first, 1);
        is_first.then(|| Schedule::new(0))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        _: bool,
    ) -> Option<TaskId> {
        let goes_on = runnable.iter().find(|t| Some(t.id()) == current);
        // The first thread begins, and waits for the other two.
        if runnable.len() != 2 || runnable[0].id() == TaskId::from(0) {
            return Some(goes_on.unwrap_or(runnable.last()?).id());
        }
        let Some(on) = goes_on else {
            return Some(runnable[0].id());
        };
        if let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            return Some(on.id());
        }
        self.turns += 1;
        self.left = if self.turns == 2 {
            self.first
        } else {
            self.others
        };
        runnable.iter().find(|t| t.id() != on.id()).map(|t| t.id())
    }

    fn next_u64(&mut self) -> u64 {
        0
    }
}

/// CPUs that ask for numbers again and again do not keep each other from them for ever, whatever the
/// step is in which they go. A turn of eight steps used to be the wrong one.
#[test]
fn one_of_two_cpus_gets_a_number() {
    for first in 0..60 {
        for others in 0..40 {
            let turns = Turns {
                first,
                others,
                left: 0,
                turns: 0,
            };
            tickets_apart(2, 2, turns, 2000);
        }
    }
}

/// Each number that is skipped is one that another CPU has got meanwhile.
#[test]
fn cpus_in_step_get_numbers() {
    const ROUNDS: usize = 50;
    for cpus in [2, 3, 8, 40] {
        let scheduler = RoundRobinScheduler::new(1);
        let skipped = tickets_apart(cpus, ROUNDS, scheduler, 10_000_000);
        let most = (cpus - 1) * cpus * ROUNDS;
        assert!(skipped <= most as u64, "{skipped} with {cpus} CPUs");
    }
}
