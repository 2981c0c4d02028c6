//! Counts what a guest's CPUs do between two marks of a program: instructions, instructions
//! under locks, stores to cache lines that other CPUs store to, and interrupts from other
//! CPUs. The CPUs take turns, so one of them runs at a time and each figure is exact.

use crate::model::Answer;
use crate::symbols::Symbols;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Bytes of a cache line, by log2.
const LINE_SHIFT: u32 = 6;

/// A lock is shared if of so many times that it was taken, one was by another CPU than the one that
/// took it most. So what a CPU has for itself is not shared because it is emptied now and then.
const SHARED: u64 = 32;

/// What one CPU did.
#[derive(Clone, Default, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Instructions that it ran, of programs and of the kernel.
    pub instructions: u64,
    /// Page faults.
    pub faults: u64,
    /// Numbers that it got for admissions.
    pub admissions: u64,
    /// Of these, for admissions that went on with locks of page tables one after the other.
    pub in_steps: u64,
    /// Calls of `vmtrace_rs_event()`, also for events that belong to no trace.
    pub events: u64,
    /// Interrupts by which another CPU had it call a function, as TLB flushes do.
    pub calls: u64,
    /// Interrupts by which another CPU had it schedule.
    pub wakes: u64,
}

impl Cpu {
    /// `vmtrace_rs_admit_locked()` has answered.
    pub fn answered(&mut self, answer: Option<Answer>) {
        let in_steps = answer == Some(Answer::Far);
        self.admissions += u64::from(in_steps || answer == Some(Answer::Go));
        self.in_steps += u64::from(in_steps);
    }
}

/// Locks of one name that CPUs share.
#[derive(Clone, Default, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedLock {
    /// The lock's symbol, or the function that took the lock first.
    pub name: String,
    /// How many such locks there are.
    pub locks: u64,
    /// How often they were taken.
    pub takes: u64,
    /// Of these, by other CPUs than the one that took the lock most.
    pub others: u64,
    /// Instructions from the call that takes one to the call that drops it, without the wait
    /// for its holder.
    pub instructions: u64,
    /// The same of the one that has most.
    pub longest: u64,
}

/// Cache lines of one name that several CPUs stored to.
#[derive(Clone, Default, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedLine {
    /// The symbol that lies there, or the function that stored there first.
    pub name: String,
    /// How many such lines there are.
    pub lines: u64,
    /// Stores to them.
    pub stores: u64,
    /// Stores by another CPU than the one that stored there before.
    pub moves: u64,
    /// Of the stores, those to lines to which each of the CPUs stored that do the work.
    pub common: u64,
}

/// What a function of the kernel ran, itself and what is inlined in it.
#[derive(Clone, Default, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Its symbol.
    pub name: String,
    /// Instructions, of all CPUs.
    pub instructions: u64,
}

/// All of it.
#[derive(Clone, Default, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// By CPU, in the order in which the CPUs first ran.
    pub cpus: Vec<Cpu>,
    /// Those first of which one has the most instructions.
    pub locks: Vec<SharedLock>,
    /// The lines with the most moves first.
    pub lines: Vec<SharedLine>,
    /// Those with the most instructions first.
    pub functions: Vec<Function>,
}

/// The bit of a CPU. Those from 127 on share one.
fn bit(cpu: usize) -> u128 {
    1 << cpu.min(127)
}

struct Lock {
    caller: u64,
    holder: Option<usize>,
    /// By CPU.
    takes: Vec<u64>,
    instructions: u64,
}

impl Lock {
    fn takes(&self) -> u64 {
        self.takes.iter().sum()
    }

    /// How often other CPUs took it than the one that took it most.
    fn others(&self) -> u64 {
        self.takes() - self.takes.iter().max().copied().unwrap_or_default()
    }

    fn is_shared(&self) -> bool {
        self.others() > 0 && self.others() * SHARED >= self.takes()
    }
}

struct Line {
    addr: u64,
    by: u64,
    last: usize,
    /// A bit for each CPU that stored there.
    cpus: u128,
    stores: u64,
    moves: u64,
}

/// A lock that a CPU holds or waits for, and its instructions when it began to hold it.
struct Held {
    lock: u64,
    since: u64,
}

/// The counts, while a program is between its marks.
pub struct Counter {
    cpus: Vec<Cpu>,
    held: Vec<Vec<Held>>,
    locks: HashMap<u64, Lock>,
    lines: HashMap<u64, Line>,
    /// The CPU that runs, and the instructions of all CPUs that are attributed.
    cpu: usize,
    seen: u64,
}

impl Counter {
    /// Begins when so many instructions were run. `cpu` runs.
    pub fn new(cpu: usize, total: u64) -> Self {
        let mut counter = Counter {
            cpus: vec![],
            held: vec![],
            locks: HashMap::new(),
            lines: HashMap::new(),
            cpu,
            seen: total,
        };
        counter.run(cpu, total);
        counter
    }

    /// `cpu` runs from here on; the CPU before it has run all instructions until `total`.
    pub fn run(&mut self, cpu: usize, total: u64) {
        while self.cpus.len() <= cpu {
            self.cpus.push(Cpu::default());
            self.held.push(vec![]);
        }
        self.cpus[self.cpu].instructions += total - self.seen;
        (self.cpu, self.seen) = (cpu, total);
    }

    /// The CPU that runs.
    pub fn cpu(&mut self) -> &mut Cpu {
        &mut self.cpus[self.cpu]
    }

    /// It wants a lock, or has taken one that it did not wait for. `caller` is where.
    pub fn takes(&mut self, lock: u64, caller: u64) {
        let cpu = self.cpu;
        let since = self.cpus[cpu].instructions;
        self.held[cpu].push(Held { lock, since });
        let known = self.locks.entry(lock).or_insert(Lock {
            caller,
            holder: None,
            takes: vec![],
            instructions: 0,
        });
        if known.takes.len() <= cpu {
            known.takes.resize(cpu + 1, 0);
        }
        known.takes[cpu] += 1;
        known.holder.get_or_insert(cpu);
    }

    /// It drops a lock. One that was taken before the counts began is of no interest.
    pub fn drops(&mut self, lock: u64) {
        let cpu = self.cpu;
        let Some(at) = self.held[cpu].iter().rposition(|h| h.lock == lock) else {
            return;
        };
        let since = self.held[cpu].remove(at).since;
        let Some(known) = self.locks.get_mut(&lock) else {
            return;
        };
        known.instructions += self.cpus[cpu].instructions - since;
        // Those who wait have not held it until now.
        known.holder = None;
        for (other, held) in self.held.iter_mut().enumerate() {
            for h in held.iter_mut().filter(|h| h.lock == lock) {
                h.since = self.cpus[other].instructions;
                known.holder.get_or_insert(other);
            }
        }
    }

    /// It stores to a physical address, which it knows as `addr`; `by` is where.
    pub fn stores(&mut self, physical: u64, addr: u64, by: u64) {
        let cpu = self.cpu;
        let line = self.lines.entry(physical >> LINE_SHIFT).or_insert(Line {
            addr,
            by,
            last: cpu,
            cpus: 0,
            stores: 0,
            moves: 0,
        });
        line.stores += 1;
        line.cpus |= bit(cpu);
        if line.last != cpu {
            line.last = cpu;
            line.moves += 1;
        }
    }

    /// The CPUs that do the work: those with at least a tenth of the admissions of the CPU that has most.
    /// Faults decide if there are no admissions, and events if there are no faults.
    fn workers(&self) -> u128 {
        let figures: [fn(&Cpu) -> u64; 3] = [|c| c.admissions, |c| c.faults, |c| c.events];
        let most = |figure: &fn(&Cpu) -> u64| self.cpus.iter().map(figure).max().unwrap_or(0);
        let Some(figure) = figures.into_iter().find(|figure| most(figure) > 0) else {
            return 0;
        };
        let works = |(_, cpu): &(usize, &Cpu)| figure(cpu) * 10 >= most(&figure);
        let workers = self.cpus.iter().enumerate().filter(works);
        workers.fold(0, |all, (cpu, _)| all | bit(cpu))
    }

    /// What there was, with names. `ran` has the instructions of each symbol, by its place.
    pub fn report(self, symbols: &Symbols, ran: &[u64]) -> Report {
        let name = |addr: u64, by: u64| match symbols.name(addr) {
            Some(name) => name.to_owned(),
            None => format!("in {}", symbols.name(by).unwrap_or("a program")),
        };
        let mut locks = BTreeMap::new();
        for (addr, lock) in self.locks.iter().filter(|(_, lock)| lock.is_shared()) {
            let name = name(*addr, lock.caller);
            let sum: &mut SharedLock = locks.entry(name).or_default();
            sum.locks += 1;
            sum.takes += lock.takes();
            sum.others += lock.others();
            sum.instructions += lock.instructions;
            sum.longest = sum.longest.max(lock.instructions);
        }
        let mut lines = BTreeMap::new();
        let workers = self.workers();
        for line in self.lines.values().filter(|l| l.cpus.count_ones() > 1) {
            let sum: &mut SharedLine = lines.entry(name(line.addr, line.by)).or_default();
            sum.lines += 1;
            sum.stores += line.stores;
            sum.moves += line.moves;
            if line.cpus & workers == workers && workers.count_ones() > 1 {
                sum.common += line.stores;
            }
        }
        let locks = locks.into_iter().map(|(name, l)| SharedLock { name, ..l });
        let lines = lines.into_iter().map(|(name, l)| SharedLine { name, ..l });
        let functions = ran.iter().enumerate().filter(|(_, n)| **n != 0);
        let functions = functions.filter_map(|(place, n)| {
            let name = symbols.name_at(place)?.to_owned();
            let instructions = *n;
            Some(Function { name, instructions })
        });
        let mut report = Report {
            cpus: self.cpus,
            locks: locks.collect(),
            lines: lines.collect(),
            functions: functions.collect(),
        };
        report
            .functions
            .sort_by_key(|f| std::cmp::Reverse(f.instructions));
        report.locks.sort_by_key(|l| std::cmp::Reverse(l.longest));
        report.lines.sort_by_key(|l| std::cmp::Reverse(l.moves));
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "ffffffff81000000 T f\nffffffff81001000 T g\nffffffff82000000 D lock\n\
                       ffffffff82000040 D line\nffffffff82000080 D end\n";
    const F: u64 = 0xffff_ffff_8100_0010;
    const LOCK: u64 = 0xffff_ffff_8200_0000;
    const LINE: u64 = 0xffff_ffff_8200_0048;

    fn report(counter: Counter) -> Report {
        counter.report(&Symbols::parse(MAP).unwrap(), &[])
    }

    #[test]
    fn instructions_belong_to_functions() {
        let symbols = Symbols::parse(MAP).unwrap();
        let mut ran = vec![0; symbols.count()];
        ran[symbols.place(F).unwrap()] += 3;
        ran[symbols.place(F + 0x1000).unwrap()] += 4;
        let r = Counter::new(0, 0).report(&symbols, &ran);
        let told: Vec<_> = r
            .functions
            .iter()
            .map(|f| (f.name.as_str(), f.instructions))
            .collect();
        assert_eq!(told, [("g", 4), ("f", 3)]);
    }

    #[test]
    fn instructions_belong_to_the_cpu_that_ran_them() {
        let mut c = Counter::new(1, 100);
        c.run(0, 110);
        c.run(1, 115);
        c.cpu().faults += 1;
        c.run(1, 116);
        let r = report(c);
        assert_eq!(r.cpus[0].instructions, 5);
        assert_eq!((r.cpus[1].instructions, r.cpus[1].faults), (11, 1));
    }

    #[test]
    fn what_is_refused_is_no_admission() {
        let mut cpu = Cpu::default();
        for (answer, told) in [
            (Some(Answer::Off), (0, 0)),
            (Some(Answer::Full), (0, 0)),
            (Some(Answer::Go), (1, 0)),
            (Some(Answer::Changed), (1, 0)),
            (None, (1, 0)),
            (Some(Answer::Far), (2, 1)),
        ] {
            cpu.answered(answer);
            assert_eq!((cpu.admissions, cpu.in_steps), told, "{answer:?}");
        }
    }

    #[test]
    fn only_locks_of_several_cpus_are_reported() {
        let mut c = Counter::new(0, 0);
        c.takes(0xffff_8880_0000_0000, F);
        c.run(0, 10);
        c.drops(0xffff_8880_0000_0000);
        assert!(report(c).locks.is_empty());
    }

    #[test]
    fn a_lock_that_others_take_now_and_then_is_not_shared() {
        for (others, shared) in [(0, false), (1, false), (2, true), (40, true)] {
            let mut c = Counter::new(0, 0);
            for i in 0..40 + others {
                c.run(usize::from(i >= 40), 0);
                c.takes(LOCK, F);
                c.drops(LOCK);
            }
            let locks = report(c).locks;
            let counts = locks.iter().map(|l| (l.takes, l.others));
            let want = shared.then_some((40 + others, others));
            assert_eq!(counts.collect::<Vec<_>>(), Vec::from_iter(want));
        }
    }

    #[test]
    fn who_waits_for_a_lock_does_not_hold_it() {
        let mut c = Counter::new(0, 0);
        c.takes(LOCK, F);
        c.run(1, 10);
        // Seven instructions of CPU 1 pass in vain, and CPU 0 has run for 13.
        c.takes(LOCK, F);
        c.run(0, 17);
        c.run(0, 20);
        c.drops(LOCK);
        c.run(1, 20);
        c.run(1, 25);
        c.drops(LOCK);
        let r = report(c);
        let [lock] = &r.locks[..] else {
            panic!("{r:?}");
        };
        assert_eq!((lock.name.as_str(), lock.locks, lock.takes), ("lock", 1, 2));
        assert_eq!(lock.instructions, 13 + 5);
    }

    #[test]
    fn locks_within_locks_and_locks_of_before() {
        let mut c = Counter::new(0, 0);
        c.drops(LOCK);
        for cpu in [0, 1] {
            c.run(cpu, 100 * cpu as u64);
            c.takes(LOCK, F);
            c.run(cpu, 100 * cpu as u64 + 10);
            c.takes(0xffff_8880_0000_0000, F);
            c.run(cpu, 100 * cpu as u64 + 30);
            c.drops(LOCK);
            c.run(cpu, 100 * cpu as u64 + 60);
            c.drops(0xffff_8880_0000_0000);
        }
        let r = report(c);
        // The longest one first; the one without a symbol has the name of who took it.
        assert_eq!(
            (r.locks[0].name.as_str(), r.locks[0].instructions),
            ("in f", 100)
        );
        assert_eq!(
            (r.locks[1].name.as_str(), r.locks[1].instructions),
            ("lock", 60)
        );
    }

    #[test]
    fn of_locks_of_one_name_the_longest_is_known() {
        let mut c = Counter::new(0, 0);
        for cpu in [0, 1] {
            for (lock, takes) in [(0x1000, 1), (0x2000, 5)] {
                for _ in 0..takes {
                    c.takes(lock, F);
                    let total = c.seen + 10;
                    c.run(cpu, total);
                    c.drops(lock);
                }
            }
            let total = c.seen;
            c.run(1, total);
        }
        let r = report(c);
        let [lock] = &r.locks[..] else {
            panic!("{r:?}");
        };
        assert_eq!((lock.locks, lock.takes, lock.instructions), (2, 12, 120));
        assert_eq!(lock.longest, 100);
    }

    #[test]
    fn lines_that_one_cpu_stores_to_are_its_own() {
        let mut c = Counter::new(0, 0);
        c.stores(0x1008, LINE, F);
        c.stores(0x2000, 0x7000_0000, 0x40_0000);
        c.run(1, 1);
        c.stores(0x1010, LINE, F);
        c.stores(0x1018, LINE, F);
        c.stores(0x3000, LINE + 0x1000, F);
        let r = report(c);
        let [line] = &r.lines[..] else {
            panic!("{r:?}");
        };
        assert_eq!(line.name, "line");
        assert_eq!((line.lines, line.stores, line.moves), (1, 3, 1));
    }

    #[test]
    fn lines_of_all_workers_are_told_from_those_of_some() {
        // CPU 2 does next to nothing, and CPU 3 nothing.
        for (admissions, common) in [
            ([100, 90, 9, 0], 2),
            ([100, 90, 10, 0], 0),
            ([100, 9, 9, 0], 0),
        ] {
            let mut c = Counter::new(0, 0);
            for (cpu, n) in admissions.into_iter().enumerate() {
                c.run(cpu, 1);
                c.cpu().admissions = n;
                c.cpu().faults = 100;
            }
            for (cpu, addr) in [(0, LINE), (1, LINE), (0, LINE + 0x1000), (3, LINE + 0x1000)] {
                c.run(cpu, 1);
                c.stores(addr, addr, F);
            }
            let r = report(c);
            let all: u64 = r.lines.iter().map(|l| l.common).sum();
            assert_eq!((r.lines.len(), all), (2, common), "{admissions:?}");
        }
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let mut c = Counter::new(0, 0);
        c.run(1, 5);
        c.stores(0, LINE, F);
        c.run(0, 6);
        c.stores(0, LINE, F);
        let r = report(c);
        let text = serde_json::to_string(&r).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), r);
    }
}
