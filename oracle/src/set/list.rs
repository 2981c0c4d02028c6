//! All sets of a trace.
//!
//! A CPU does one thing at a time, with one set. To others, a number is that among the admissions of
//! all sets: here it is translated from that of a set and back.

use super::{Ask, Change, Clock, Outcome, Part, Set, Task, View, Word, extend};
use crate::model::{Page, Sets, Shape, Why};
use std::collections::{BTreeMap, HashMap};

/// A task asks where a set of size `n` begins. When it asked, that was `from`.
struct Resize {
    number: u32,
    n: u64,
    from: u64,
}

/// The sets, by their numbers.
pub struct SetList {
    shape: Shape,
    clock: Clock,
    sets: HashMap<u32, (Set, View)>,
    /// Where their words lie: where ranges begin and end, and the set.
    ranges: BTreeMap<u64, (u64, u32)>,
    /// Set and number of each number among those of all sets; `None` if it was not used.
    of: Vec<Option<(u32, u64)>>,
    /// The set that each CPU does something with.
    current: Vec<Option<u32>>,
    /// By the stack of a task.
    resizes: HashMap<u64, Resize>,
    /// By CPU: a page whose disabled entry was cleared, until the next number was read.
    drops: Vec<Option<Page>>,
    /// Sets that may have something to tell.
    told: Vec<u32>,
    paused: bool,
    wrong: Vec<String>,
    changes: Vec<Change>,
}

impl SetList {
    /// Set 0, which is empty and lies there. The counter's word is `word`, the next number about
    /// `near`.
    pub fn new(shape: Shape, cpus: usize, view: View, word: u64, near: u64) -> Self {
        let start = extend(word as u32, near);
        let mut list = SetList {
            shape,
            clock: Clock {
                start,
                next: start,
                word,
                ended: HashMap::new(),
                all_ended: start,
                logging: vec![None; cpus],
            },
            sets: HashMap::new(),
            ranges: BTreeMap::new(),
            of: Vec::new(),
            current: vec![None; cpus],
            resizes: HashMap::new(),
            drops: vec![None; cpus],
            told: Vec::new(),
            paused: false,
            wrong: Vec::new(),
            changes: Vec::new(),
        };
        list.add(view);
        list
    }

    /// A set that is new, or known already.
    pub fn add(&mut self, view: View) {
        let number = view.number();
        if let Some((_, known)) = self.sets.get(&number) {
            if *known != view {
                self.wrong.push(format!(
                    "set {number} lies at {view:x?}, and lay at {known:x?}"
                ));
            }
            return;
        }
        let common = self.sets.get(&0);
        let apart = self.shape.sets != Sets::One;
        if view.is_apart() != apart || common.is_some_and(|(_, c)| c.counter() != view.counter()) {
            self.wrong
                .push(format!("set {number} counts in another way: {view:x?}"));
        }
        for range in view.ranges().into_iter().filter(|r| !r.is_empty()) {
            let before = self.ranges.range(..range.end).next_back();
            if let Some((_, (end, other))) = before.filter(|(_, (end, _))| *end > range.start) {
                self.wrong.push(format!(
                    "set {number} lies where set {other} does, before {end:#x}"
                ));
            }
            self.ranges.insert(range.start, (range.end, number));
        }
        let n = common.map_or(self.shape.size as u64, |(set, _)| set.n);
        let start = if view.is_apart() { 0 } else { self.clock.start };
        let mut set = Set::new(self.shape, self.current.len(), &view, n, start);
        set.paused = self.paused;
        self.sets.insert(number, (set, view));
    }

    /// Whether a set is known.
    pub fn knows(&self, number: u32) -> bool {
        self.sets.contains_key(&number)
    }

    /// What has come to pass since this was called last.
    pub fn changes(&mut self) -> Vec<Change> {
        let mut all = std::mem::take(&mut self.changes);
        for number in std::mem::take(&mut self.told) {
            let Some((set, _)) = self.sets.get_mut(&number) else {
                continue;
            };
            let changes = std::mem::take(&mut set.changes);
            all.extend(changes.into_iter().map(|c| c.map(|o| set.clock_of(o))));
            self.wrong.append(&mut set.wrong);
        }
        all
    }

    /// What was not as it must be, up to the last call of [`SetList::changes`].
    pub fn wrong(&mut self) -> Vec<String> {
        std::mem::take(&mut self.wrong)
    }

    /// The first number of this trace.
    pub fn start(&self) -> u64 {
        self.clock.start
    }

    /// No admission begins any more.
    pub fn seal(&mut self) {
        self.sets
            .values_mut()
            .for_each(|(set, _)| set.sealed = true);
    }

    /// Whether the trace goes on, and admissions do not.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    fn set(&mut self, number: u32) -> Option<(&mut Set, &mut Clock)> {
        let (set, _) = self.sets.get_mut(&number)?;
        if self.told.last() != Some(&number) {
            self.told.push(number);
        }
        Some((set, &mut self.clock))
    }

    /// The set that a CPU does something with.
    fn at(&mut self, cpu: usize) -> Option<(&mut Set, &mut Clock)> {
        self.set(self.current[cpu]?)
    }

    fn look_at(&self, cpu: usize) -> Option<&Set> {
        self.sets.get(&self.current[cpu]?).map(|(set, _)| set)
    }

    /// A CPU does something else, with this set or with none that is known.
    fn turn_to(&mut self, cpu: usize, number: u32) -> Option<(&mut Set, &mut Clock)> {
        (self.drops[cpu], self.clock.logging[cpu]) = (None, None);
        let next = self.knows(number).then_some(number);
        if self.current[cpu] != next {
            if let Some((set, _)) = self.at(cpu) {
                set.begin(cpu, Task::None);
            }
            self.current[cpu] = next;
        }
        self.at(cpu)
    }

    /// Set and number, of a number among those of all sets.
    fn find_number(&self, clock: u64) -> Option<(u32, u64)> {
        let at = clock.checked_sub(self.clock.start)?;
        *self.of.get(usize::try_from(at).ok()?)?
    }

    fn of_number(&mut self, clock: u64) -> Option<(&mut Set, u64)> {
        let (number, ordinal) = self.find_number(clock)?;
        let (set, _) = self.set(number)?;
        Some((set, ordinal))
    }

    // What CPUs ask of a set.

    /// A CPU asks a set for the admission of a page.
    pub fn ask(&mut self, cpu: usize, number: u32, ask: Ask) {
        if let Some((set, clock)) = self.turn_to(cpu, number) {
            set.ask(cpu, ask, clock);
        }
    }

    /// It is about to make the page a member, or to give up.
    pub fn settles(&mut self, cpu: usize) {
        if let Some((set, clock)) = self.at(cpu) {
            set.settles(cpu, clock);
        }
    }

    /// It has its answer.
    pub fn admitted(&mut self, cpu: usize) -> Option<Outcome> {
        self.at(cpu)?.0.admitted(cpu)
    }

    /// It has got none, and no number.
    pub fn unanswered(&mut self, cpu: usize) {
        if let Some((set, _)) = self.at(cpu) {
            set.unanswered(cpu);
        }
    }

    /// Only the number was drawn, although the entry was locked. This must have a reason.
    pub fn went_far(&mut self, cpu: usize) {
        if let Some((set, _)) = self.at(cpu) {
            set.went_far(cpu);
        }
    }

    /// The way is clear: see `Set::passed`.
    pub fn passed(&mut self, cpu: usize) {
        if let Some((set, _)) = self.at(cpu) {
            set.passed(cpu);
        }
    }

    /// The number that a CPU has drawn in its set, while it is about to use it.
    pub fn drawn(&self, cpu: usize) -> Option<u64> {
        self.look_at(cpu)?.drawn(cpu)
    }

    /// Whether this is what a CPU keeps of its number.
    pub fn has(&self, cpu: usize, number: u64, clock: u64, time: u64) -> bool {
        let set = self.look_at(cpu);
        set.is_some_and(|set| set.has(cpu, number, clock, time))
    }

    /// The page that a CPU asks for.
    pub fn asks(&self, cpu: usize) -> Option<Page> {
        self.look_at(cpu)?.asks(cpu)
    }

    /// Whether an admission with a CPU's number is too late for its page; `None` while that is being
    /// changed.
    pub fn is_overtaken(&self, cpu: usize) -> Option<bool> {
        self.look_at(cpu)?.is_overtaken(cpu, &self.clock)
    }

    /// The kernel has cleared the entry of a page, of an address space in this set.
    pub fn close(&mut self, cpu: usize, number: u32, page: Page) {
        if let Some((set, _)) = self.turn_to(cpu, number) {
            set.close(cpu, page);
        }
    }

    /// The page whose entry a CPU has cleared, while it tells the set so.
    pub fn closes(&self, cpu: usize) -> Option<Page> {
        self.look_at(cpu)?.closes(cpu)
    }

    /// It has cleared the disabled entry of a page, for good.
    pub fn drop(&mut self, cpu: usize, number: u32, page: Page) {
        self.begin(cpu, number);
        self.drops[cpu] = Some(page);
    }

    /// An event of such pages has its number.
    pub fn drop_logged(&mut self, cpu: usize) {
        let number = self.current[cpu].unwrap_or_default();
        self.begin(cpu, number);
        self.clock.logging[cpu] = Some(None);
    }

    fn begin(&mut self, cpu: usize, number: u32) {
        if let Some((set, _)) = self.turn_to(cpu, number) {
            set.begin(cpu, Task::None);
        }
    }

    /// Members of a set from a number of its own on are to be drained.
    pub fn drain(&mut self, cpu: usize, number: u32, at: u64, why: Why) {
        if let Some((set, _)) = self.turn_to(cpu, number) {
            set.drain(cpu, at, why);
        }
    }

    /// What a CPU was doing is done, unless it is an admission.
    pub fn done(&mut self, cpu: usize) {
        self.drops[cpu] = None;
        if let Some(next) = self.clock.logging[cpu].take() {
            // It may have been interrupted for so long that another task had the CPU.
            let next = next.unwrap_or_default();
            self.clock.all_ended = self.clock.all_ended.max(next);
        }
        if let Some((set, _)) = self.at(cpu) {
            set.done(cpu);
        }
    }

    /// Admissions to a set are made no more, or again, while the trace goes on. It begins with set 0.
    pub fn pause(&mut self, number: u32, on: bool) {
        if number == 0 {
            self.paused = on;
        }
        if let Some((set, _)) = self.set(number) {
            set.pause(on);
        }
    }

    /// The task on this stack asks where a set of this size begins: it is to have it. Other tasks
    /// may run on its CPU before it has the answer.
    pub fn resizing(&mut self, stack: u64, number: u32, n: u64) {
        if let Some((set, _)) = self.set(number) {
            let from = set.begin_of(n);
            self.resizes.insert(stack, Resize { number, n, from });
        }
    }

    /// It has its answer.
    pub fn begins_at(&mut self, stack: u64, begin: u64) {
        let Some(Resize { number, n, from }) = self.resizes.remove(&stack) else {
            return;
        };
        if let Some((set, _)) = self.set(number) {
            set.begins_at(n, from, begin);
        }
    }

    /// A set has this size from here on.
    pub fn resized(&mut self, cpu: usize, number: u32, n: u64) {
        if let Some((set, _)) = self.turn_to(cpu, number) {
            set.resized(cpu, n);
        }
    }

    /// Nobody is in a set any more.
    pub fn retire(&mut self, number: u32) {
        if let Some((set, _)) = self.set(number) {
            set.retire();
        }
    }

    /// Somebody is in a set that nobody was in.
    pub fn revive(&mut self, number: u32) {
        if let Some((set, _)) = self.set(number) {
            set.retired = false;
        }
    }

    /// Whether there are sets that nobody is in.
    pub fn has_retired(&self) -> bool {
        self.sets.values().any(|(set, _)| set.retired)
    }

    /// Sets that nobody is in, and of which nothing is left. The kernel frees such.
    pub fn done_with(&self) -> Vec<u32> {
        let sets = self.sets.iter();
        let done = sets.filter(|(_, (set, _))| set.retired && set.is_done());
        done.map(|(number, _)| *number).collect()
    }

    /// A set is no more.
    pub fn forget(&mut self, number: u32) {
        for current in self.current.iter_mut().filter(|c| **c == Some(number)) {
            *current = None;
        }
        self.sets.remove(&number);
        self.ranges.retain(|_, (_, of)| *of != number);
    }

    // Members, by their numbers among those of all sets.

    /// Whether a number is a member's.
    pub fn is_live(&self, clock: u64) -> bool {
        let found = self.find_number(clock);
        let set = found.and_then(|(n, ordinal)| Some((self.sets.get(&n)?, ordinal)));
        set.is_some_and(|((set, _), ordinal)| set.is_live(ordinal))
    }

    /// Somebody else clears the accessed bit of a member.
    pub fn aged(&mut self, clock: u64, young: bool) {
        if let Some((set, ordinal)) = self.of_number(clock) {
            set.aged(ordinal, young);
        }
    }

    /// Whether a member was swept, and whether somebody else has found its accessed bit set since
    /// then.
    pub fn marks(&mut self, clock: u64) -> (bool, bool) {
        self.of_number(clock)
            .map_or((false, false), |(set, ordinal)| set.marks(ordinal))
    }

    /// The entry at a place of its page table is disabled. Returns the member whose stay ends with
    /// that.
    pub fn takes(&mut self, cpu: usize, place: u64) -> Option<u64> {
        let Some((set, _)) = self.at(cpu) else {
            self.wrong
                .push(format!("entry {place} is disabled on CPU {cpu} for no set"));
            return None;
        };
        let ordinal = set.takes(cpu, place)?;
        Some(set.clock_of(ordinal))
    }

    /// An accessed bit is cleared. Returns the member whose it is.
    pub fn sweeps(&mut self, cpu: usize) -> Option<u64> {
        let Some((set, _)) = self.at(cpu) else {
            self.wrong
                .push(format!("CPU {cpu} clears an accessed bit for no set"));
            return None;
        };
        let ordinal = set.sweeps(cpu)?;
        Some(set.clock_of(ordinal))
    }

    /// These bits were found. Returns whether this was a look for a second chance.
    pub fn swept(&mut self, cpu: usize, clock: u64, young: bool) -> bool {
        self.of_number(clock)
            .is_some_and(|(set, ordinal)| set.swept(cpu, ordinal, young))
    }

    // Words.

    /// Whether an address is that of a word of a set, or of what lies between such words.
    pub fn watches(&self, addr: u64) -> bool {
        self.owner(addr).is_some() || self.is_counter(addr)
    }

    fn is_counter(&self, addr: u64) -> bool {
        self.sets
            .get(&0)
            .is_some_and(|(_, view)| view.counter() == addr)
    }

    fn owner(&self, addr: u64) -> Option<u32> {
        let (_, (end, number)) = self.ranges.range(..=addr).next_back()?;
        (addr < *end).then_some(*number)
    }

    /// The set that a word is of.
    fn find(&self, addr: u64) -> Option<(u32, Part)> {
        let number = self.owner(addr)?;
        let (_, view) = self.sets.get(&number)?;
        Some((number, view.find(addr)?))
    }

    /// A CPU has asked for another one's switches.
    pub fn switches(&mut self, cpu: usize, of: usize, value: u32) {
        if let Some((set, _)) = self.at(cpu) {
            set.switches(cpu, of, value);
        }
    }

    /// A CPU has loaded a word.
    pub fn loaded(&mut self, cpu: usize, addr: u64, value: u64) {
        if self.is_counter(addr) {
            self.counter_loaded(cpu, value);
        } else if let Some((number, part)) = self.find(addr) {
            if let Some((set, clock)) = self.set(number) {
                set.load(cpu, part, value, clock);
            }
        }
    }

    fn counter_loaded(&mut self, cpu: usize, value: u64) {
        let next = extend(value as u32, self.clock.next);
        if let Some(page) = self.drops[cpu] {
            let before = self.clock.ended.entry(page).or_default();
            *before = next.max(*before);
        }
        if let Some(read) = &mut self.clock.logging[cpu] {
            read.get_or_insert(next);
        }
        if let Some((set, clock)) = self.at(cpu) {
            set.load(cpu, Part::Counter, value, clock);
        }
    }

    /// A CPU has stored a word. Returns whether it has drawn a number of its set with that.
    pub fn stored(&mut self, cpu: usize, addr: u64, value: u64, word: Word<'_>) -> bool {
        let before = self.drawn(cpu);
        if self.is_counter(addr) {
            self.counter_stored(cpu, value);
        } else if let Some((number, part)) = self.find(addr) {
            if let Some((set, clock)) = self.set(number) {
                set.store(cpu, part, value, clock, word);
            }
        } else {
            return false;
        }
        let (clock, drawn) = match self.look_at(cpu).and_then(|set| set.admission(cpu)) {
            Some(a) => (a.clock, a.number.filter(|_| a.number != before)),
            None => return false,
        };
        if let (Some(number), Some(ordinal)) = (self.current[cpu], drawn) {
            let at = clock.wrapping_sub(self.clock.start) as usize;
            if let Some(of) = self.of.get_mut(at) {
                *of = Some((number, ordinal));
            }
        }
        drawn.is_some()
    }

    fn counter_stored(&mut self, cpu: usize, word: u64) {
        let step = word.wrapping_sub(self.clock.word);
        self.clock.word = word;
        match step {
            // An event; a number that another CPU has drawn first.
            0 | 0x1_0000_0000 => return,
            0x1_0000_0001 => {}
            _ => {
                self.wrong.push(format!("the counter goes on by {step:#x}"));
                self.clock.next = extend(word as u32, self.clock.next);
                return;
            }
        }
        let number = self.clock.next;
        self.clock.next += 1;
        self.of.push(None);
        self.changes.push(Change::Drawn);
        match self.at(cpu) {
            Some((set, _)) => set.counted(cpu, number),
            None => self
                .wrong
                .push(format!("CPU {cpu} draws number {number} for nothing")),
        }
    }
}

impl Change {
    /// The same with other numbers.
    fn map(self, f: impl Fn(u64) -> u64) -> Self {
        match self {
            Change::Admitted { cpu, ordinal } => Change::Admitted {
                cpu,
                ordinal: f(ordinal),
            },
            Change::Renewed {
                cpu,
                from,
                to,
                chance,
            } => Change::Renewed {
                cpu,
                from: f(from),
                to: f(to),
                chance,
            },
            Change::Ended { ordinal, cause } => Change::Ended {
                ordinal: f(ordinal),
                cause,
            },
            Change::GivenUp { ordinal } => Change::GivenUp {
                ordinal: f(ordinal),
            },
            Change::Drawn | Change::Skipped { .. } | Change::Batched => self,
        }
    }
}
