//! A kernel of two CPUs that does what each test tells it, step by step.

use super::*;
use crate::model::Sets;
use crate::set::{CLAIM_NS, Field, State as Slot, Turn};
use crate::watch::{PF_USER, PF_WRITE};
use Answer::{Changed, Far, Full, Go, Off};

const CPUS: usize = 2;
const STACKS: [u64; CPUS] = [0xffff_8880_0000_4000, 0xffff_8880_0000_8000];
const MM: u64 = 0xffff_8880_1234_5000;
const CR3: u64 = 0x1000_0000;
const PC: u64 = 0x40_0000;
const TIME: u64 = 1_000_000_000;
/// The first number: there was an earlier trace.
const START: u64 = 1000;
const SLOTS: u64 = 32;
/// Where the kernel's structures lie.
const COUNTER: u64 = 0x1000;
const CELLS: u64 = 0x2000;
const CLAIMS: u64 = 0x3800;
const SEATS: u64 = 0x4000;
/// Set 0, as the address space has it.
const SCOPE: u64 = 0x4800;
const LAST: u64 = 0x5000;
const CURSOR: u64 = 0x6000;
const LOCK_SEQ: u64 = 0x7000;
const LOCKED: [u64; CPUS] = [0x8000, 0x9000];
/// Words and entries of page tables.
const WORDS: u64 = 0x10_0000;
const TABLES: u64 = 0x20_0000;

struct Guest {
    replay: Replay,
    words: HashMap<u64, u64>,
    n: u64,
    /// The next number of all sets.
    clock: u64,
    /// The set at hand, and the other ones.
    set: Own,
    others: Vec<Own>,
}

/// A set, and the address space in it.
#[derive(Clone, Default)]
struct Own {
    /// The number of both.
    which: u64,
    /// The next number.
    next: u64,
    /// The CPU of each number, which of its admissions that is, and the number of all sets.
    whose: HashMap<u64, (usize, u32, u64)>,
}

/// Where the second set and the following ones lie, how far apart, and the next number in each.
const SETS: u64 = 0x40_0000;
const STEP: u64 = 0x1_0000;
const ORDINALS: u64 = 0x5800;

fn guest(size: usize, clock: bool) -> Guest {
    guest_with(Shape {
        first: 1,
        again: clock,
        clock,
        ..Shape::fifo(size)
    })
}

fn guest_with(shape: Shape) -> Guest {
    let mut replay = Replay::new(shape, CPUS);
    for cpu in 0..CPUS {
        replay.spaces().switching(cpu, MM);
        replay.spaces().table_loaded(cpu, CR3);
    }
    let mut words = HashMap::from([(COUNTER, 5 << 32 | START), (COUNTER + 8, START - 9)]);
    words.extend(scope(0, false));
    let view = view_of(&words);
    replay.begin(view, &mut |at| words.get(&at).copied().unwrap_or(0));
    replay.spaces().comes(STACKS[0], MM, false);
    replay.entering(STACKS[0], MM, 7);
    replay.entered(STACKS[0], 0);
    replay.space_numbered(STACKS[0]);
    let set = Own {
        which: 1,
        next: START,
        ..Own::default()
    };
    Guest {
        replay,
        words,
        n: shape.size as u64,
        clock: START,
        set,
        others: Vec::new(),
    }
}

/// Where a set's words begin: set 0 is that of tests with one set.
fn base(set: u64) -> u64 {
    if set == 0 { 0 } else { SETS + set * STEP }
}

/// The words that describe where a set lies.
fn scope(set: u64, apart: bool) -> impl Iterator<Item = (u64, u64)> {
    let base = base(set);
    let ordinals = if apart { base + ORDINALS } else { 0 };
    let [cells, claims, seats] = [CELLS, CLAIMS, SEATS].map(|at| base + at);
    let cpus = CPUS as u64;
    let words = [
        COUNTER, cells, SLOTS, 128, claims, cpus, 64, seats, ordinals, set,
    ];
    (0..).map(move |i| base + SCOPE + i * 8).zip(words)
}

fn view_of(words: &HashMap<u64, u64>) -> View {
    let word = |i: usize| words[&(SCOPE + i as u64 * 8)];
    View::new(std::array::from_fn(word)).unwrap()
}

/// Two processes that have sets of their own, 1 and 2. The first one is loaded.
fn processes(size: usize, first: usize) -> Guest {
    several(size, first, Sets::Process)
}

/// The same, or two control groups.
fn several(size: usize, first: usize, sets: Sets) -> Guest {
    let shape = Shape {
        first,
        sets,
        ..Shape::fifo(size)
    };
    let mut replay = Replay::new(shape, CPUS);
    let mut words = HashMap::from([(COUNTER, 5 << 32 | START), (COUNTER + 8, START - 9)]);
    for set in 0..3 {
        words.extend(scope(set, true));
    }
    let view = view_of(&words);
    replay.begin(view, &mut |at| words.get(&at).copied().unwrap_or(0));
    let set = |which| Own {
        which,
        ..Own::default()
    };
    let mut g = Guest {
        replay,
        words,
        n: shape.size as u64,
        clock: START,
        set: set(1),
        others: vec![set(2)],
    };
    for _ in 0..2 {
        g.arrive(0);
        g.comes();
        g.other();
    }
    g.arrive(0);
    g.arrive(1);
    g
}

fn page(n: u64) -> Page {
    Page {
        mm: 1,
        addr: n << 12,
    }
}

/// The handle of a page's entry, and the entry's address.
fn handle(n: u64) -> u64 {
    WORDS + n * 8
}

fn ptep(n: u64) -> u64 {
    TABLES + n * 8
}

fn turn_at(ordinal: u64) -> u64 {
    CELLS + ordinal % SLOTS * 128
}

fn claim_at(cpu: usize, field: Field) -> u64 {
    CLAIMS + cpu as u64 * 64 + field as u64 * 8
}

impl Guest {
    /// Where the words of the set at hand begin.
    fn base(&self) -> u64 {
        base(if self.others.is_empty() {
            0
        } else {
            self.set.which
        })
    }

    fn turn_at(&self, ordinal: u64) -> u64 {
        self.base() + turn_at(ordinal)
    }

    fn claim_at(&self, cpu: usize, field: Field) -> u64 {
        self.base() + claim_at(cpu, field)
    }

    /// The address space of the set at hand: its mm_struct and its table.
    fn mm(&self) -> [u64; 2] {
        let other = self.set.which - 1;
        [MM + other * 0x1000, CR3 + other * 0x1000]
    }

    fn page(&self, n: u64) -> Page {
        Page {
            mm: self.set.which as u32,
            ..page(n)
        }
    }

    /// The other set is at hand from here on, and the one that was so.
    fn other(&mut self) {
        let next = self.others.remove(0);
        self.others.push(std::mem::replace(&mut self.set, next));
    }

    /// A CPU loads the address space of the set at hand.
    fn arrive(&mut self, cpu: usize) {
        let [mm, table] = self.mm();
        self.replay.spaces().switching(cpu, mm);
        self.replay.spaces().table_loaded(cpu, table);
    }

    /// This address space gets its set and its number.
    fn comes(&mut self) {
        let [mm, _] = self.mm();
        self.replay.spaces().comes(STACKS[0], mm, false);
        self.replay.entering(STACKS[0], mm, self.set.which);
        self.replay.entered(STACKS[0], self.set.which as u32);
        self.replay.space_numbered(STACKS[0]);
    }

    /// The number of all sets that a number of the set at hand is.
    fn clock_of(&self, ordinal: u64) -> u64 {
        self.set
            .whose
            .get(&ordinal)
            .map_or(ordinal, |whose| whose.2)
    }

    fn word(&self, at: u64) -> u64 {
        self.words.get(&at).copied().unwrap_or(0)
    }

    fn load(&mut self, cpu: usize, at: u64) -> u64 {
        let value = self.word(at);
        self.replay.loaded(cpu, at, value);
        value
    }

    /// Does something with the replay that reads memory.
    fn tell<R>(&mut self, f: impl FnOnce(&mut Replay, Word<'_>) -> R) -> R {
        let words = &self.words;
        f(&mut self.replay, &mut |at| {
            words.get(&at).copied().unwrap_or(0)
        })
    }

    fn put(&mut self, cpu: usize, at: u64, value: u64) {
        self.words.insert(at, value);
        self.tell(|replay, word| replay.stored(cpu, at, value, word));
    }

    /// A slot changes its state.
    fn turn(&mut self, cpu: usize, ordinal: u64, state: Slot) {
        self.put(cpu, self.turn_at(ordinal), Turn::new(ordinal, state).word());
    }

    fn state(&self, ordinal: u64) -> Option<Slot> {
        let turn = Turn::read(self.word(self.turn_at(ordinal)));
        let states = [
            Slot::Done,
            Slot::Reserved,
            Slot::Live,
            Slot::Closed,
            Slot::Overdue,
        ];
        states
            .into_iter()
            .find(|s| turn == Some(Turn::new(ordinal, *s)))
    }

    fn fault(&mut self, cpu: usize, n: u64, code: u64) {
        let fault = Fault {
            stack: STACKS[cpu],
            addr: n << 12 | 8,
            code,
            cr3: self.mm()[1],
            ip: PC,
        };
        self.replay.fault(cpu, &fault);
        let write = if code & PF_WRITE != 0 { FLAG_WRITE } else { 0 };
        self.replay
            .handling(cpu, STACKS[cpu], fault.addr, write, true);
    }

    /// Asks for a page, which has faulted, with or without the lock of its entry.
    fn ask(&mut self, cpu: usize, n: u64, near: bool) {
        let l = LOCKED[cpu];
        let tid = 100 + cpu as u64;
        self.words.extend([
            (l + L_MM, self.mm()[0]),
            (l + L_ENTRY, handle(n)),
            (l + L_PAGE, n << 12),
            (
                l + L_MM_ID,
                self.set.which | (tid | (cpu as u64) << TID_BITS) << 32,
            ),
            (l + L_PFN, 0x500 + n),
            (l + L_PTEP, ptep(n)),
            (ptep(n), 0x8000_0000_0000_0100 | n << 12),
        ]);
        self.tell(|replay, word| replay.ask(cpu, STACKS[cpu], l, near, word));
        self.put(cpu, l + L_SET, self.base() + SCOPE);
    }

    /// Draws a number, and stores of the claim what is due.
    fn number(&mut self, cpu: usize) -> u64 {
        let counts = self.load(cpu, self.claim_at(cpu, Field::Counts));
        self.load(cpu, self.claim_at(cpu, Field::Time));
        self.load(cpu, self.claim_at(cpu, Field::Epoch));
        self.put(cpu, self.claim_at(cpu, Field::Epoch), 0);
        self.put(cpu, self.claim_at(cpu, Field::Time), TIME);
        let idle = self.word(self.claim_at(cpu, Field::Counts)) == 0;
        let first = self.replay.shape.first as u64;
        let held = (counts as u32 as u64 * u64::from(!idle) + 1).min(first);
        let count = (counts >> 32) + 1;
        self.put(cpu, self.claim_at(cpu, Field::Counts), count << 32 | held);
        let ordinal = self.draw(cpu, count as u32);
        self.load(cpu, self.claim_at(cpu, Field::Counts));
        ordinal
    }

    fn draw(&mut self, cpu: usize, nth: u32) -> u64 {
        let clock = self.count(cpu);
        let ordinal = self.set.next;
        if self.others.is_empty() {
            self.set.next = clock;
        } else {
            self.load(cpu, self.base() + ORDINALS);
            self.put(cpu, self.base() + ORDINALS, ordinal + 1);
        }
        self.set.whose.insert(self.set.next, (cpu, nth, clock));
        self.set.next += 1;
        self.set.next - 1
    }

    /// Draws a number of all sets, after a look at the next one of its set.
    fn count(&mut self, cpu: usize) -> u64 {
        if !self.others.is_empty() {
            self.load(cpu, self.base() + ORDINALS);
        }
        let word = self.word(COUNTER).wrapping_add(1 << 32 | 1);
        self.put(cpu, COUNTER, word);
        self.clock += 1;
        self.clock - 1
    }

    /// A slot changes its state if nobody was faster.
    fn exchange(&mut self, cpu: usize, ordinal: u64, state: Slot) {
        self.load(cpu, self.turn_at(ordinal));
        self.turn(cpu, ordinal, state);
    }

    fn reserve(&mut self, cpu: usize, ordinal: u64) {
        self.load(cpu, self.turn_at(ordinal));
        self.exchange(cpu, ordinal, Slot::Reserved);
        self.load(cpu, self.turn_at(ordinal) + 8);
    }

    /// A page faults, and gets a number.
    fn begin(&mut self, cpu: usize, n: u64, near: bool) -> u64 {
        self.fault(cpu, n, PF_USER);
        self.ask(cpu, n, near);
        self.number(cpu)
    }

    /// Looks at the member that a number puts out. True if it is one.
    fn look(&mut self, cpu: usize, out: u64) -> bool {
        self.load(cpu, self.turn_at(out));
        let live = self.state(out) == Some(Slot::Live);
        if live {
            self.load(cpu, self.turn_at(out) + 16);
            self.load(cpu, self.turn_at(out));
            self.judge(cpu, out);
        }
        live
    }

    /// Reads what shows whether a member is in a first segment.
    fn judge(&mut self, cpu: usize, ordinal: u64) {
        let (of, nth, _) = self.set.whose[&ordinal];
        let counts = self.load(cpu, self.claim_at(of, Field::Counts));
        let since = ((counts >> 32) as u32).wrapping_sub(nth);
        if since < counts as u32 {
            self.load(cpu, self.claim_at(of, Field::Time));
            self.load(cpu, self.claim_at(of, Field::Epoch));
            self.replay.epoch_asked(cpu, of as u64);
            let switches = u64::from(self.replay.switches[of].seen);
            self.replay.epoch_answered(cpu, switches);
        }
    }

    /// Disables the entry of a page, which has these bits.
    fn take(&mut self, cpu: usize, n: u64, bits: u64) {
        self.replay.pte_taken(cpu, ptep(n));
        let bits = Bits::new(bits);
        let pte = [(bits.young, PTE_ACCESSED), (bits.dirty, PTE_DIRTY)];
        let pte = pte.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum();
        self.replay.pte_took(cpu, pte);
    }

    /// A stay ends at a number, and its slot is closed, or done if the record is written at once.
    fn shut(&mut self, cpu: usize, ordinal: u64, end: u64, state: Slot) {
        let entry = self.word(self.turn_at(ordinal) + 16);
        self.words.insert(entry, end << 1);
        self.turn(cpu, ordinal, state);
    }

    /// Disables a member for a number.
    fn evict_for(&mut self, cpu: usize, ordinal: u64, number: u64, bits: u64, state: Slot) {
        let n = (self.word(self.turn_at(ordinal) + 16) - WORDS) / 8;
        self.take(cpu, n, bits);
        self.shut(cpu, ordinal, self.clock_of(number), state);
    }

    /// Does what comes before a number is used: the member that it puts out goes, alone.
    fn clear_way(&mut self, cpu: usize, number: u64) {
        let start = if self.others.is_empty() { START } else { 0 };
        let Some(out) = number.checked_sub(self.n).filter(|o| *o >= start) else {
            return;
        };
        if self.look(cpu, out) {
            self.evict_for(cpu, out, number, 0, Slot::Done);
        }
        self.write(cpu, out);
    }

    /// Writes the record of a number, if it is still to be written.
    fn write(&mut self, cpu: usize, ordinal: u64) {
        self.load(cpu, self.turn_at(ordinal));
        if self.state(ordinal) == Some(Slot::Closed) {
            self.turn(cpu, ordinal, Slot::Done);
        }
    }

    /// The member that a number puts out gets the number.
    fn renew(&mut self, cpu: usize, from: u64, to: u64) {
        let entry = self.word(self.turn_at(from) + 16);
        self.reserve(cpu, to);
        self.enter(cpu, to, entry);
        self.turn(cpu, from, Slot::Closed);
        self.words.insert(entry, to << 1 | 1);
        let (cpu_of, nth, _) = self.set.whose[&from];
        let clock = self.clock_of(to);
        self.set.whose.insert(to, (cpu_of, nth, clock));
        self.write(cpu, from);
    }

    /// A reserved slot gets live, for this entry.
    fn enter(&mut self, cpu: usize, ordinal: u64, entry: u64) {
        self.put(cpu, self.turn_at(ordinal) + 16, entry);
        self.exchange(cpu, ordinal, Slot::Live);
    }

    /// Draws another number after that, for the same admission.
    fn again(&mut self, cpu: usize) -> u64 {
        let nth = (self.word(self.claim_at(cpu, Field::Counts)) >> 32) as u32;
        self.draw(cpu, nth)
    }

    /// The page that a CPU asks for is a member.
    fn live(&mut self, cpu: usize, ordinal: u64) {
        let entry = self.word(LOCKED[cpu] + L_ENTRY);
        if self.state(ordinal) != Some(Slot::Reserved) {
            self.reserve(cpu, ordinal);
        }
        self.enter(cpu, ordinal, entry);
        self.words.insert(entry, ordinal << 1 | 1);
    }

    /// The admission of a number is given up, and its slot is free.
    fn give_up(&mut self, cpu: usize, ordinal: u64) {
        self.load(cpu, self.turn_at(ordinal));
        self.exchange(cpu, ordinal, Slot::Done);
    }

    fn answer(&mut self, cpu: usize, answer: Answer) {
        self.words
            .insert(LOCKED[cpu] + L_ANSWER, answer as u64 | 1 << 32);
        self.tell(|replay, word| replay.asked(cpu, word));
    }

    fn answer_far(&mut self, cpu: usize, number: u64) {
        let l = LOCKED[cpu];
        self.words.extend([
            (l + L_ORDINAL, number),
            (l + L_TIME, TIME),
            (l + L_CLOCK, self.clock_of(number)),
        ]);
        self.answer(cpu, Far);
    }

    fn cleared(&mut self, cpu: usize) {
        self.tell(|replay, word| replay.cleared(cpu, word));
    }

    /// The far way's second half, after all is clear.
    fn admit_far(&mut self, cpu: usize, ordinal: u64) {
        self.settle(cpu, true);
        self.live(cpu, ordinal);
        self.settled(cpu, Some(7));
    }

    fn settle(&mut self, cpu: usize, admits: bool) {
        self.tell(|replay, word| replay.settles(cpu, admits, word));
    }

    fn settled(&mut self, cpu: usize, answer: Option<u64>) {
        self.tell(|replay, word| replay.settled(cpu, answer, word));
        self.replay.handled(STACKS[cpu]);
    }

    /// An admission in one go is done.
    fn go(&mut self, cpu: usize, ordinal: u64) {
        self.live(cpu, ordinal);
        self.answer(cpu, Go);
        self.replay.flush_done(cpu);
        self.replay.handled(STACKS[cpu]);
    }

    /// All of a read fault's admission, and the read.
    fn read(&mut self, cpu: usize, n: u64) -> u64 {
        let far = self.replay.shape.sweeps();
        let ordinal = self.begin(cpu, n, true);
        if far {
            self.answer_far(cpu, ordinal);
        }
        self.clear_way(cpu, ordinal);
        if far {
            self.pass(cpu, None);
            self.admit_far(cpu, ordinal);
        } else {
            self.go(cpu, ordinal);
        }
        self.touch(cpu, n);
        ordinal
    }

    /// A number's way is clear: what has passed into the second segment is swept, with these bits.
    fn pass(&mut self, cpu: usize, swept: Option<u64>) {
        if let Some(bits) = swept {
            self.sweep(cpu, bits);
            self.replay.flush_done(cpu);
        }
        self.cleared(cpu);
    }

    fn sweep(&mut self, cpu: usize, bits: u64) {
        self.words.insert(LAST, bits);
        self.replay.pte_sweeps(cpu, LAST);
        self.tell(|replay, word| replay.pte_swept(cpu, word));
    }

    /// An admission of a set that sweeps, after which this number's page is swept.
    fn read_sweeping(&mut self, cpu: usize, n: u64, swept: u64) -> u64 {
        let ordinal = self.begin(cpu, n, true);
        self.answer_far(cpu, ordinal);
        self.clear_way(cpu, ordinal);
        self.load(cpu, self.turn_at(swept));
        self.pass(cpu, Some(YOUNG));
        self.admit_far(cpu, ordinal);
        ordinal
    }

    /// Clears the entry of a page, which has these bits.
    fn close(&mut self, cpu: usize, n: u64, last: u64) {
        self.replay.close(cpu, self.page(n), last, 1);
        self.load(cpu, COUNTER);
        let ordinal = self.word(handle(n)) >> 1;
        if self.word(handle(n)) & 1 != 0 {
            self.shut(cpu, ordinal, self.clock, Slot::Closed);
        }
        self.replay.closed(cpu);
    }

    /// Clears the disabled entry of a page.
    fn drop(&mut self, cpu: usize, n: u64) {
        self.replay.dropped(cpu, self.page(n));
        self.load(cpu, COUNTER);
        self.replay.finished(cpu);
    }

    fn drop_logged(&mut self, cpu: usize) {
        self.replay.drop_logged(cpu);
        self.load(cpu, COUNTER);
        self.replay.finished(cpu);
    }

    /// A far admission is given up.
    fn abort(&mut self, cpu: usize, ordinal: u64) {
        self.settle(cpu, false);
        self.give_up(cpu, ordinal);
        self.settled(cpu, None);
    }

    /// Drains these members, for this reason.
    fn drain(&mut self, cpu: usize, ordinals: impl IntoIterator<Item = u64>, why: Why) {
        let mut ordinals = ordinals.into_iter().peekable();
        let Some(first) = ordinals.peek() else {
            return;
        };
        let scope = self.base() + SCOPE;
        self.words
            .extend([(CURSOR + C_ORDINAL, *first), (CURSOR + C_SCOPE, scope)]);
        self.tell(|replay, word| replay.drain(cpu, CURSOR, why, word));
        self.load(cpu, COUNTER);
        for ordinal in ordinals {
            let n = (self.word(self.turn_at(ordinal) + 16) - WORDS) / 8;
            self.take(cpu, n, 0);
            self.shut(cpu, ordinal, self.clock, Slot::Closed);
        }
        self.replay.finished(cpu);
        self.replay.flush_done(cpu);
    }

    /// Nothing is on the way, and the set is to have `n` pages.
    fn pause(&mut self, n: u64) {
        self.hold(true);
        self.resizing(n);
    }

    /// The set gives no numbers, or gives them again.
    fn hold(&mut self, on: bool) {
        let scope = self.base() + SCOPE;
        self.tell(|replay, word| replay.pause(on, scope, word));
    }

    /// The set is to have `n` pages.
    fn resizing(&mut self, n: u64) {
        self.asks_begin(0, n);
        self.gets_begin(0, self.begin_of(n));
    }

    /// A task of this number asks where a set of `n` pages begins.
    fn asks_begin(&mut self, task: usize, n: u64) {
        let (scope, stack) = (self.base() + SCOPE, STACKS[task] + 0x20);
        self.tell(|replay, word| replay.resizing(0, stack, n, scope, word));
    }

    /// It gets this answer.
    fn gets_begin(&mut self, task: usize, begin: u64) {
        self.replay.begins_at(STACKS[task] + 0x28, begin);
    }

    /// The right answer.
    fn begin_of(&self, n: u64) -> u64 {
        match self.others.is_empty() {
            true => (self.clock - n).max(START),
            false => self.word(self.base() + ORDINALS).saturating_sub(n),
        }
    }

    /// It has them.
    fn resized(&mut self, n: u64) {
        let scope = self.base() + SCOPE;
        self.tell(|replay, word| replay.resized(0, n, scope, word));
        self.replay.finished(0);
        self.hold(false);
        self.n = n;
    }

    fn touch(&mut self, cpu: usize, n: u64) {
        self.replay.access(cpu, PC, n << 12, 8, false);
    }

    fn store(&mut self, cpu: usize, n: u64) {
        self.replay.access(cpu, PC, n << 12, 8, true);
    }

    /// Counts of violations, in the order of their names in [`Counts`].
    fn wrong(&self) -> [u64; 6] {
        let c = &self.replay.counts;
        [
            c.escaped,
            c.foreign_closings,
            c.unfounded,
            c.misplaced,
            c.mistold + self.replay.suspects.len() as u64,
            c.confused,
        ]
    }

    /// Nothing was wrong until now.
    #[track_caller]
    fn right(&self) {
        assert_eq!(self.wrong(), [0; 6], "{}", self.replay.notes.text());
    }

    /// What was wrong is what the set must not do.
    #[track_caller]
    fn misplaced(&self, what: &str) {
        let text = self.replay.notes.text();
        let mut wrong = self.wrong();
        wrong[3] = wrong[3].min(1);
        assert_eq!(wrong, [0, 0, 0, 1, 0, 0], "{text}");
        assert!(text.contains(what), "{text}");
    }

    fn is_live(&self, ordinal: u64) -> bool {
        let clock = self.clock_of(ordinal);
        self.replay.sets.as_ref().unwrap().is_live(clock)
    }

    fn end(mut self) -> Log {
        self.replay.quiesced();
        for _ in 0..=self.others.len() {
            let all = self.set.whose.keys().copied();
            let mut live: Vec<_> = all.filter(|o| self.is_live(*o)).collect();
            live.sort_unstable();
            for ordinal in live {
                self.drain(0, [ordinal], DRAINED);
            }
            if !self.others.is_empty() {
                self.other();
            }
        }
        self.replay.end().unwrap()
    }
}

/// Pages 1 to 4 are members of a full set of four, 1 and 2 by CPU 0, 3 and 4 by CPU 1.
fn full() -> Guest {
    let mut g = guest(4, false);
    for (cpu, n) in [(0, 1), (0, 2), (1, 3), (1, 4)] {
        g.read(cpu, n);
    }
    g.right();
    g
}

#[test]
fn a_full_set_evicts_its_oldest() {
    let mut g = full();
    g.read(0, 5);
    g.right();
    assert_eq!(g.replay.members.len(), 4);
    let log = g.end();
    assert_eq!(log.counts.violations(), 0, "{}", log.notes);
    let told: Vec<_> = log
        .stays
        .iter()
        .zip(&log.whos)
        .map(|(s, w)| (s.page.addr >> 12, s.why, w.cpu, w.tid, w.pfn))
        .collect();
    assert_eq!(
        told,
        [
            (1, EVICTED, 0, 100, 0x501),
            (2, DRAINED, 0, 100, 0x502),
            (3, DRAINED, 1, 101, 0x503),
            (4, DRAINED, 1, 101, 0x504),
            (5, DRAINED, 0, 100, 0x505),
        ]
    );
}

/// CPU 1 has a number for page 6, which puts out the first segment of CPU 0.
fn held() -> (Guest, u64) {
    let mut g = full();
    g.read(1, 5);
    let ordinal = g.begin(1, 6, true);
    (g, ordinal)
}

#[test]
fn the_first_segment_of_another_cpu_is_renewed() {
    let (mut g, number) = held();
    let out = number - 4;
    assert!(g.look(1, out));
    g.renew(1, out, number);
    let next = g.again(1);
    g.clear_way(1, next);
    g.go(1, next);
    g.right();
    g.touch(0, 2);
    g.touch(1, 6);
    g.right();
    assert_eq!((g.replay.counts.renewed, next), (1, number + 1));
    let log = g.end();
    let told: Vec<_> = log
        .stays
        .iter()
        .map(|s| (s.page.addr >> 12, s.goes_on, s.why))
        .collect();
    assert_eq!(
        told[1..],
        [
            (2, false, RENEWED),
            (3, false, EVICTED),
            (4, false, DRAINED),
            (5, false, DRAINED),
            (2, true, DRAINED),
            (6, false, DRAINED),
        ]
    );
    assert_eq!(log.counts.violations(), 0, "{}", log.notes);
}

#[test]
fn what_must_be_renewed_must_not_go() {
    let (mut g, number) = held();
    g.clear_way(1, number);
    g.misplaced("must be renewed, for it is in a first segment");
}

#[test]
fn what_must_go_must_not_be_renewed() {
    let mut g = full();
    let number = g.begin(1, 6, true);
    assert!(g.look(1, number - 4));
    g.renew(1, number - 4, number);
    g.misplaced("is neither in a first segment nor referenced");
}

#[test]
fn a_first_segment_ends_with_time_or_a_switch() {
    for switched in [false, true] {
        let (mut g, number) = held();
        if switched {
            g.replay.switched(0);
        } else {
            let time = claim_at(0, Field::Time);
            g.words.insert(time, TIME - CLAIM_NS);
        }
        g.clear_way(1, number);
        g.go(1, number);
        g.right();
    }
}

#[test]
fn another_number_than_the_next_is_a_violation() {
    for (step, wrong) in [
        (1 << 32, false),
        (1 << 32 | 2, true),
        (1, true),
        (2 << 32 | 1, true),
        (u64::MAX, true),
    ] {
        let mut g = guest(4, false);
        let word = g.word(COUNTER).wrapping_add(step);
        g.put(0, COUNTER, word);
        assert_eq!(g.wrong()[3] != 0, wrong, "{step:#x}");
    }
}

#[test]
fn a_number_is_drawn_for_an_admission_and_only_one() {
    let mut g = guest(4, false);
    g.draw(0, 1);
    g.misplaced("for nothing");
    let mut g = guest(4, false);
    g.begin(0, 1, true);
    g.draw(0, 1);
    g.misplaced("draws 1001 and has 1000");
    let mut g = guest(4, false);
    g.begin(0, 1, true);
    g.ask(0, 1, true);
    g.misplaced("leaves its number 1000 behind");
}

#[test]
fn another_victim_is_a_violation() {
    for (n, what) in [(2, "entry 2 is disabled"), (9, "entry 9 is disabled")] {
        let mut g = full();
        let number = g.begin(1, 6, true);
        g.look(1, number - 4);
        g.take(1, n, 0);
        g.misplaced(what);
    }
    // There is none.
    let mut g = guest(4, false);
    g.read(0, 1);
    g.begin(0, 2, true);
    g.take(0, 1, 0);
    g.misplaced("out of its turn");
}

#[test]
fn a_victim_that_stays_is_a_violation() {
    let mut g = full();
    let number = g.begin(1, 6, false);
    g.answer_far(1, number);
    g.look(1, number - 4);
    g.cleared(1);
    g.admit_far(1, number);
    g.misplaced("goes on before 1000");
    assert!(g.replay.notes.text().contains("5 pages are members"));
}

#[test]
fn a_victim_whose_record_is_not_written_is_a_violation() {
    let mut g = full();
    let number = g.begin(1, 6, true);
    g.look(1, number - 4);
    g.evict_for(1, number - 4, number, 0, Slot::Closed);
    g.go(1, number);
    g.misplaced("goes on before 1000");
}

#[test]
fn a_stay_ends_at_the_number_that_puts_it_out() {
    let mut g = full();
    let number = g.begin(1, 6, true);
    g.look(1, number - 4);
    g.take(1, 1, 0);
    g.shut(1, number - 4, number + 1, Slot::Done);
    g.misplaced("ends at 1004");
    // And at the next number, if it is closed.
    let mut g = full();
    g.replay.close(0, page(1), 0, 1);
    g.load(0, COUNTER);
    g.shut(0, START, g.set.next - 1, Slot::Closed);
    g.misplaced("ends at 1004");
}

#[test]
fn a_member_has_its_number_noted() {
    let mut g = guest(4, false);
    let number = g.begin(0, 1, true);
    g.live(0, number);
    g.words.insert(handle(1), number << 1);
    g.answer(0, Go);
    g.misplaced("is noted");
}

#[test]
fn only_who_may_changes_a_slot() {
    type Act = fn(&mut Guest);
    let acts: [Act; 13] = [
        // Of another CPU's number.
        |g| g.turn(0, START, Slot::Closed),
        |g| g.turn(0, START + 1, Slot::Done),
        |g| g.turn(1, START + 4, Slot::Live),
        |g| g.turn(1, START + 4, Slot::Done),
        |g| g.turn(1, START + 5, Slot::Reserved),
        |g| g.turn(1, START + 5, Slot::Done),
        // In another slot, or a state that does not follow.
        |g| g.put(0, turn_at(7), Turn::new(START + 4, Slot::Reserved).word()),
        |g| g.turn(0, START + 4, Slot::Closed),
        |g| g.turn(0, START + 4, Slot::Done),
        |g| g.put(0, turn_at(START + 4), 7),
        // What was reserved is not given up like that; nor reserved twice.
        |g| g.give_up(0, START + 4),
        |g| g.turn(0, START + 4 + SLOTS, Slot::Reserved),
        // The entry of another number's slot.
        |g| g.put(1, turn_at(START + 4) + 16, handle(3)),
    ];
    for (i, act) in acts.into_iter().enumerate() {
        let mut g = full();
        let number = g.begin(0, 5, true);
        g.clear_way(0, number);
        g.reserve(0, number);
        g.right();
        act(&mut g);
        assert_ne!(g.wrong()[3], 0, "act {i}");
    }
}

/// CPU 0 has a number and is slow; CPU 1 fills the set behind it.
fn slow(reserves: bool) -> (Guest, u64) {
    let mut g = guest(4, false);
    g.fault(0, 1, PF_USER);
    g.ask(0, 1, true);
    let slow = g.number(0);
    if reserves {
        g.reserve(0, slow);
    }
    for n in 2..=4 {
        g.read(1, n);
    }
    (g, slow)
}

#[test]
fn what_is_overdue_is_given_up() {
    for frees in [true, false] {
        let (mut g, slow) = slow(true);
        let number = g.begin(1, 5, true);
        g.load(1, turn_at(slow));
        g.turn(1, slow, Slot::Overdue);
        g.go(1, number);
        g.right();
        if frees {
            g.put(0, turn_at(slow) + 16, handle(1));
            g.exchange(0, slow, Slot::Done);
            g.answer(0, Full);
            g.right();
            assert_eq!(g.replay.counts.aborts, 1);
        } else {
            g.enter(0, slow, handle(1));
            g.misplaced("makes");
        }
    }
}

#[test]
fn what_comes_late_is_given_up() {
    for frees in [true, false] {
        let (mut g, slow) = slow(false);
        let number = g.begin(1, 5, true);
        g.load(1, turn_at(slow));
        g.put(1, turn_at(slow) + 8, slow + 1);
        g.load(1, turn_at(slow));
        g.go(1, number);
        g.right();
        g.reserve(0, slow);
        if frees {
            g.turn(0, slow, Slot::Done);
            g.answer(0, Full);
            g.right();
            assert_eq!(g.replay.counts.aborts, 1);
        } else {
            // It has read that it is late.
            g.enter(0, slow, handle(1));
            g.misplaced("makes");
        }
    }
    // Given up for another reason, nobody looks at that.
    let (mut g, number) = slow(false);
    let next = g.begin(1, 5, true);
    g.put(1, turn_at(number) + 8, number + 1);
    g.load(1, turn_at(number));
    g.go(1, next);
    g.words
        .extend([(LOCKED[0] + L_LOCK_SEQ, LOCK_SEQ), (LOCK_SEQ, 8)]);
    g.give_up(0, number);
    g.answer(0, Changed);
    g.right();
    // Whose turn it is not.
    let (mut g, slow) = slow(false);
    g.begin(1, 5, true);
    g.put(1, turn_at(slow) + 8, slow + 2);
    g.misplaced("is late");
    // Without its being late.
    let mut g = guest(4, false);
    let number = g.begin(0, 1, true);
    g.reserve(0, number);
    g.turn(0, number, Slot::Done);
    g.misplaced("makes");
    // And without a look whether it is late.
    let mut g = guest(4, false);
    let number = g.begin(0, 1, true);
    g.turn(0, number, Slot::Reserved);
    g.enter(0, number, handle(1));
    g.misplaced("makes");
}

#[test]
fn what_is_not_overdue_is_waited_for_by_nobody() {
    for reserves in [true, false] {
        let (mut g, slow) = slow(reserves);
        let number = g.begin(1, 5, true);
        g.load(1, turn_at(slow));
        g.go(1, number);
        g.misplaced("goes on before 1000");
    }
}

#[test]
fn a_slot_that_is_not_free_is_a_reason_to_give_up() {
    for (older, answer, wrong) in [(true, Full, false), (true, Go, true), (false, Full, true)] {
        let mut g = guest(4, false);
        g.fault(0, 1, PF_USER);
        g.ask(0, 1, true);
        let number = g.number(0);
        if older {
            // Of a CPU that was slow for a whole round.
            let turn = Turn::new(number - SLOTS, Slot::Overdue).word();
            g.words.insert(turn_at(number), turn);
        }
        g.load(0, turn_at(number));
        g.answer(0, answer);
        if !older {
            g.misplaced("is neither used nor given up");
        }
        assert_eq!(g.wrong()[3] != 0, wrong, "{older} {answer:?}");
    }
}

#[test]
fn claims_are_what_follows_from_what_was_read() {
    type Act = fn(&mut Guest);
    let acts: [(Act, bool); 6] = [
        (|_| {}, false),
        (|g| g.put(0, claim_at(0, Field::Counts), 2 << 32 | 1), true),
        (|g| g.put(0, claim_at(0, Field::Counts), 1 << 32), true),
        (|g| g.put(0, claim_at(0, Field::Epoch), 3), true),
        (|g| g.put(0, claim_at(1, Field::Counts), 3), true),
        (|g| g.put(0, SEATS, 1), true),
    ];
    for (i, (act, wrong)) in acts.into_iter().enumerate() {
        let mut g = guest(4, false);
        g.fault(0, 1, PF_USER);
        g.ask(0, 1, true);
        for field in [Field::Counts, Field::Time, Field::Epoch] {
            g.load(0, claim_at(0, field));
        }
        g.put(0, claim_at(0, Field::Epoch), 0);
        g.put(0, claim_at(0, Field::Time), TIME);
        g.put(0, claim_at(0, Field::Counts), 1 << 32 | 1);
        act(&mut g);
        let number = g.draw(0, 1);
        g.reserve(0, number);
        assert_eq!(g.wrong()[3] != 0, wrong, "act {i}");
    }
    // Nobody stores there without a reason.
    let mut g = guest(4, false);
    g.put(0, claim_at(0, Field::Used), 1);
    g.misplaced("draws no number");
}

/// A set that is too small for the first segments of both CPUs has one seat.
fn seats(stores: &[(u64, u64)]) -> Guest {
    let mut g = guest_with(Shape {
        first: 2,
        ..Shape::fifo(6)
    });
    g.fault(1, 1, PF_USER);
    g.ask(1, 1, true);
    let own = |field| claim_at(1, field);
    g.load(1, own(Field::Seat));
    g.load(1, own(Field::Counts));
    g.put(1, own(Field::Counts), 0);
    g.put(1, own(Field::Used), 0);
    // With the lock.
    g.load(1, own(Field::Seat));
    g.put(1, own(Field::Epoch), 0);
    g.put(1, own(Field::Time), TIME);
    g.load(1, own(Field::Seat));
    g.load(1, own(Field::Seat));
    for (at, value) in stores {
        // The queue, and the seat, are read before they are stored.
        if *at >= SEATS + 16 {
            g.put(1, *at, *value);
            g.load(1, *at);
            g.load(1, SEATS);
        } else {
            g.put(1, *at, *value);
        }
    }
    g.load(1, own(Field::Seat));
    g.load(1, SEATS);
    g.load(1, own(Field::Counts));
    g.load(1, own(Field::Time));
    g.load(1, own(Field::Epoch));
    g.put(1, own(Field::Epoch), 0);
    g.put(1, own(Field::Time), TIME);
    g.put(1, own(Field::Counts), 1 << 32 | 1);
    g.load(1, own(Field::Used));
    g.put(1, own(Field::Used), 1);
    let number = g.draw(1, 1);
    g.reserve(1, number);
    g
}

#[test]
fn seats_are_given_in_turn() {
    let own = claim_at(1, Field::Seat);
    let right = [(own, 1 << 32), (SEATS + 16, 1), (own, 1), (SEATS, 2)];
    seats(&right).right();
    // Another seat; another CPU's; no place in the queue.
    let mut other = right;
    other[3] = (SEATS, 1);
    assert_ne!(seats(&other).wrong()[3], 0);
    assert_ne!(seats(&right[1..]).wrong()[3], 0);
    assert_ne!(seats(&right[..3]).wrong()[3], 0);
}

#[test]
fn an_admission_in_one_go_goes_far_only_with_a_reason() {
    // Page 515 is in another page table than page 1.
    for (n, found, wrong) in [(5, true, true), (515, true, false), (515, false, true)] {
        let mut g = full();
        let number = g.begin(1, n, true);
        if found {
            g.look(1, number - 4);
        }
        g.answer_far(1, number);
        assert_eq!(g.wrong()[3] != 0, wrong, "{n} {found}");
    }
}

#[test]
fn an_admission_whose_victim_is_elsewhere_goes_on_in_steps() {
    let mut g = full();
    let number = g.begin(1, 515, true);
    g.look(1, number - 4);
    g.answer_far(1, number);
    assert!(g.is_live(number - 4));
    g.clear_way(1, number);
    g.replay.flush_done(1);
    g.cleared(1);
    g.admit_far(1, number);
    g.touch(1, 515);
    g.right();
    assert_eq!(g.end().counts.violations(), 0);
}

#[test]
fn what_a_far_admission_keeps_is_its_number() {
    for (at, value) in [(L_ORDINAL, 1), (L_TIME, 1)] {
        let mut g = full();
        let number = g.begin(1, 515, true);
        g.look(1, number - 4);
        let l = LOCKED[1];
        g.words
            .extend([(l + L_ORDINAL, number), (l + L_TIME, TIME)]);
        g.words.insert(l + at, value);
        g.answer(1, Far);
        g.misplaced("is kept as");
    }
}

#[test]
fn what_gives_up_in_one_go_must_have_looked_at_the_lock() {
    for (count, answer, wrong) in [
        (Some(8), Changed, false),
        (Some(7), Changed, true),
        (None, Changed, true),
        (Some(8), Full, true),
    ] {
        let mut g = guest(4, false);
        g.fault(0, 1, PF_USER);
        if let Some(count) = count {
            let l = LOCKED[0];
            g.words.extend([
                (l + L_LOCK_SEQ, LOCK_SEQ),
                (l + L_SEQ, 7),
                (LOCK_SEQ, count),
            ]);
        }
        g.ask(0, 1, true);
        let number = g.number(0);
        g.give_up(0, number);
        g.answer(0, answer);
        assert_eq!(g.wrong()[3] != 0, wrong, "{count:?} {answer:?}");
        // It is no member.
        g.touch(0, 1);
        assert_eq!(g.wrong()[0], 1);
    }
}

#[test]
fn what_was_changed_is_not_admitted() {
    let mut g = guest(4, false);
    g.fault(0, 1, PF_USER);
    let l = LOCKED[0];
    g.words
        .extend([(l + L_LOCK_SEQ, LOCK_SEQ), (l + L_SEQ, 7), (LOCK_SEQ, 8)]);
    g.ask(0, 1, true);
    let number = g.number(0);
    g.go(0, number);
    g.misplaced("mappings were changed");
}

#[test]
fn an_admission_after_the_end_seals() {
    for (mm, sealed) in [(MM, true), (MM + 64, false)] {
        let mut g = guest(4, false);
        g.fault(0, 1, PF_USER);
        g.ask(0, 1, true);
        g.words.insert(LOCKED[0] + L_MM, mm);
        g.answer(0, Off);
        // Otherwise, it is of another trace.
        assert_eq!(g.replay.sealed, sealed);
        g.right();
    }
}

#[test]
fn without_room_nothing_changes() {
    let mut g = guest(4, false);
    g.fault(0, 1, PF_USER);
    g.ask(0, 1, true);
    g.answer(0, Full);
    assert_eq!((g.replay.counts.full, g.replay.places.len()), (1, 0));
    g.right();
    g.fault(0, 1, PF_USER);
    g.ask(0, 1, true);
    g.answer(0, Go);
    g.misplaced("without a number");
}

#[test]
fn an_admission_is_given_up_with_a_reason() {
    type Act = fn(&mut Guest);
    let acts: [(Act, bool); 5] = [
        (|_| {}, true),
        (|g| _ = g.words.insert(ptep(1), 0), false),
        (|g| _ = g.read(1, 1), false),
        (|g| _ = g.read(1, 2), true),
        (
            |g| {
                let l = LOCKED[0];
                g.words
                    .extend([(l + L_LOCK_SEQ, LOCK_SEQ), (l + L_SEQ, 7), (LOCK_SEQ, 8)]);
            },
            false,
        ),
    ];
    for (i, (act, wrong)) in acts.into_iter().enumerate() {
        let mut g = guest_with(Shape {
            first: 1,
            again: true,
            ..Shape::fifo(4)
        });
        let number = g.begin(0, 1, true);
        g.answer_far(0, number);
        g.cleared(0);
        act(&mut g);
        g.abort(0, number);
        assert_eq!(
            g.wrong()[3] != 0,
            wrong,
            "act {i}: {}",
            g.replay.notes.text()
        );
        assert_eq!(g.replay.counts.aborts, 1);
    }
}

#[test]
fn until_the_flush_an_evicted_page_may_be_used_elsewhere() {
    type Act = fn(&mut Guest);
    let acts: [(Act, u64); 7] = [
        (|_| {}, 0),
        // Its own flush, of this page and of another one.
        (|g| g.replay.flushed(0, Some(0x1fff)), 1),
        (|g| g.replay.flushed(0, Some(0x3000)), 0),
        (|g| g.replay.flushed(0, None), 1),
        (|g| g.replay.flush_done(1), 1),
        // The other CPU goes on without a flush.
        (|g| g.replay.fetch(1, 0x3000), 1),
        (|g| g.replay.aged(1, MM, 9 << 12, false), 1),
    ];
    for (i, (act, escaped)) in acts.into_iter().enumerate() {
        let mut g = full();
        g.touch(0, 1);
        let number = g.begin(1, 6, true);
        g.clear_way(1, number);
        act(&mut g);
        g.touch(0, 1);
        assert_eq!(g.wrong(), [escaped, 0, 0, 0, 0, 0], "act {i}");
        let late = u64::from(escaped == 0);
        assert_eq!((g.replay.counts.late, g.replay.counts.stale), (late, late));
    }
}

#[test]
fn what_is_done_to_a_page_that_is_going_belongs_to_no_stay() {
    let mut g = full();
    let number = g.begin(1, 6, true);
    g.look(1, number - 4);
    g.take(1, 1, 0);
    // The set does not know yet that the page is no member.
    g.store(0, 1);
    assert_eq!(g.replay.counts.late, 1);
    g.shut(1, number - 4, number, Slot::Done);
    g.go(1, number);
    g.right();
}

#[test]
fn what_is_done_to_a_page_that_is_being_disabled_may_be_told() {
    for pte in [0, PTE_DIRTY | PTE_ACCESSED] {
        let mut g = full();
        let number = g.begin(1, 6, true);
        g.look(1, number - 4);
        g.replay.pte_taken(1, ptep(1));
        // The entry may be enabled yet, so that this CPU needs no stale one.
        g.replay.flushed(0, None);
        g.store(0, 1);
        g.replay.pte_took(1, pte);
        g.shut(1, number - 4, number, Slot::Done);
        g.go(1, number);
        g.right();
    }
}

#[test]
fn an_admission_must_be_what_faulted() {
    type Change = fn(&mut Guest);
    let changes: [(Change, u64); 5] = [
        (|g| g.fault(0, 1, PF_USER), 0),
        (|g| g.fault(0, 1, PF_USER | PF_WRITE), 1),
        (|g| g.fault(0, 1, 0), 1),
        (|g| g.fault(0, 2, PF_USER), 1),
        (|g| g.fault(1, 1, PF_USER), 1),
    ];
    for (i, (fault, unfounded)) in changes.into_iter().enumerate() {
        let mut g = guest(4, false);
        fault(&mut g);
        g.ask(0, 1, true);
        let number = g.number(0);
        g.go(0, number);
        assert_eq!(g.wrong(), [0, 0, unfounded, 0, 0, 0], "change {i}");
    }
    // The handle must be that of the page's entry.
    let mut g = guest(4, false);
    let number = g.begin(0, 1, true);
    g.words.insert(LOCKED[0] + L_ENTRY, handle(2));
    g.go(0, number);
    assert_eq!(g.wrong()[2], 1);
}

/// CPU 0 has a number for page `n` when something is done; then it goes on or not.
fn late(n: u64, act: impl FnOnce(&mut Guest), given: bool) -> Guest {
    let mut g = guest(4, false);
    let number = g.begin(0, n, true);
    act(&mut g);
    // It looks whether it is late between this and its slot.
    g.load(0, turn_at(number - 4));
    if given {
        g.go(0, number);
    } else {
        g.give_up(0, number);
        g.answer(0, Full);
    }
    g
}

#[test]
fn an_admission_that_is_overtaken_is_given_up() {
    type Act = fn(&mut Guest);
    let acts: [(Act, bool); 6] = [
        (|_| {}, false),
        (|g| _ = g.read(1, 1), true),
        (
            |g| {
                g.read(1, 2);
                g.close(1, 2, 0);
            },
            false,
        ),
        (|g| g.drop(1, 1), true),
        (|g| g.drop(1, 2), false),
        (|g| g.drop_logged(1), true),
    ];
    for (i, (act, overtaken)) in acts.into_iter().enumerate() {
        for given in [true, false] {
            let act = |g: &mut Guest| {
                act(g);
                if i == 1 {
                    g.close(1, 1, 0);
                }
            };
            let g = late(1, act, given);
            let text = g.replay.notes.text();
            assert_eq!(
                g.wrong()[3] != 0,
                overtaken == given,
                "act {i}, {given}: {text}"
            );
        }
    }
    // While the event gets its number, either is right.
    for given in [true, false] {
        let act = |g: &mut Guest| {
            g.replay.drop_logged(1);
            g.load(1, COUNTER);
        };
        late(1, act, given).right();
    }
    // A later number is not overtaken.
    let mut g = guest(4, false);
    g.read(1, 1);
    g.close(1, 1, 0);
    g.drop_logged(1);
    g.read(0, 1);
    g.right();
}

/// The other CPU has looked page 1 up, for a store that goes on on page 2, and its
/// fault there is heard of only when the first page's stay is over.
#[test]
fn a_fault_on_the_next_page_tells_who_used_the_first() {
    type Act = fn(&mut Guest);
    let acts: [(Act, u64, u64, u64); 5] = [
        (|_| {}, 0x2000, PF_USER | PF_WRITE, 0),
        // A load leaves no dirty bit; not the page's end; another page.
        (|_| {}, 0x2000, PF_USER, 1),
        (|_| {}, 0x2008, PF_USER | PF_WRITE, 1),
        (|_| {}, 0x3000, PF_USER | PF_WRITE, 1),
        // The CPU has run in user mode since.
        (|g| g.replay.fetch(1, 0x5000), 0x2000, PF_USER | PF_WRITE, 1),
    ];
    for (i, (before, addr, code, mistold)) in acts.into_iter().enumerate() {
        let mut g = guest(4, false);
        g.read(0, 1);
        g.read(1, 5);
        g.close(0, 1, DIRTY);
        g.replay.flush_done(0);
        before(&mut g);
        let fault = Fault {
            stack: STACKS[1],
            addr,
            code,
            cr3: CR3,
            ip: PC,
        };
        g.replay.fault(1, &fault);
        assert_eq!(g.wrong(), [0, 0, 0, 0, mistold, 0], "act {i}");
    }
}

/// A set of eight pages whose references are told. CPU 0 has admitted 1 and then 2, so that 1 was
/// swept.
fn swept() -> Guest {
    let mut g = guest(8, true);
    let first = g.read(0, 1);
    g.read_sweeping(0, 2, first);
    g.right();
    g
}

/// Another CPU had looked up an instruction on the page, and its turn came after the
/// stay's end, with the interrupt of the flush.
#[test]
fn an_interrupt_after_a_stay_tells_who_looked_it_up() {
    type Act = fn(&mut Guest);
    let acts: [(Act, u64); 6] = [
        (|g| g.replay.interrupted(1, 0x1ffe), 0),
        // The instruction begins on the page before.
        (|g| g.replay.interrupted(1, 0xffe), 0),
        (|_| {}, 1),
        // Another page; a CPU that has run on since.
        (|g| g.replay.interrupted(1, 0x5000), 1),
        (
            |g| {
                g.replay.fetch(1, 0x5000);
                g.replay.interrupted(1, 0x1ffe);
            },
            1,
        ),
        // An instruction is not written.
        (
            |g| {
                g.close(0, 5, DIRTY);
                g.replay.flush_done(0);
                g.replay.interrupted(1, 0x1ffe);
                g.replay.interrupted(1, 0x5000);
            },
            1,
        ),
    ];
    for (i, (act, mistold)) in acts.into_iter().enumerate() {
        let mut g = swept();
        g.read(1, 5);
        g.close(0, 1, YOUNG);
        g.replay.flush_done(0);
        act(&mut g);
        assert_eq!(g.wrong(), [0, 0, 0, 0, mistold, 0], "act {i}");
    }
}

#[test]
fn each_admission_needs_its_own_fault() {
    let mut g = guest(4, false);
    g.read(0, 1);
    g.ask(0, 2, true);
    let number = g.number(0);
    g.go(0, number);
    assert_eq!(g.wrong(), [0, 0, 1, 0, 0, 0]);
}

#[test]
fn a_member_is_not_admitted() {
    let mut g = guest(4, false);
    g.read(0, 1);
    g.read(0, 1);
    g.misplaced("is a member already");
}

#[test]
fn stores_and_what_is_told_of_them_agree() {
    type Act = fn(&mut Guest);
    let acts: [(Act, u64, u64); 7] = [
        (|_| {}, 0, 0),
        (|_| {}, DIRTY, 1),
        (|g| g.store(0, 1), DIRTY, 0),
        (|g| g.store(0, 1), 0, 1),
        (|g| g.replay.dirtied(0, page(1)), 0, 1),
        // A write fault on the member, and a store that lies on the next page, too.
        (
            |g| {
                g.fault(0, 1, PF_USER | PF_WRITE);
                g.replay.handled(STACKS[0]);
            },
            DIRTY,
            0,
        ),
        (
            |g| {
                let fault = Fault {
                    stack: STACKS[0],
                    addr: 0x2000,
                    code: PF_USER | PF_WRITE,
                    cr3: CR3,
                    ip: PC,
                };
                g.replay.fault(0, &fault);
            },
            DIRTY,
            0,
        ),
    ];
    for (i, (act, last, mistold)) in acts.into_iter().enumerate() {
        let mut g = guest(4, false);
        g.read(0, 1);
        act(&mut g);
        g.close(0, 1, last);
        assert_eq!(g.wrong(), [0, 0, 0, 0, mistold, 0], "act {i}");
    }
}

#[test]
fn references_after_a_sweep_and_what_is_told_of_them_agree() {
    // Referenced by the other CPU before the flush, or after, or about to be, or not; told, or not.
    for (early, late, about, last, mistold, unsure) in [
        (false, false, false, 0, 0, 0),
        (false, false, false, YOUNG, 1, 0),
        (true, false, false, 0, 0, 1),
        (true, false, false, YOUNG, 0, 1),
        (false, true, false, YOUNG, 0, 0),
        (false, true, false, 0, 1, 0),
        (false, false, true, YOUNG, 0, 0),
        (false, false, true, 0, 0, 0),
    ] {
        let mut g = guest(8, true);
        let first = g.read(0, 1);
        let number = g.begin(0, 2, true);
        g.answer_far(0, number);
        g.load(0, turn_at(first));
        g.sweep(0, YOUNG);
        if early {
            g.touch(1, 1);
        }
        g.pass(0, None);
        g.replay.flush_done(0);
        g.admit_far(0, number);
        if late {
            g.touch(1, 1);
        }
        if about {
            g.replay.interrupted(1, 0xffe);
        }
        g.close(0, 1, last);
        assert_eq!(g.wrong(), [0, 0, 0, 0, mistold, 0]);
        assert_eq!(g.replay.counts.unsure, unsure);
    }
}

#[test]
fn a_reference_while_the_bit_is_cleared_may_be_told() {
    type Act = fn(&mut Guest);
    let acts: [(Act, u64); 4] = [
        (|g| g.touch(1, 1), 1),
        // Switching to another address space and back, it has flushed.
        (
            |g| {
                g.replay.flushed(1, None);
                g.touch(1, 1);
            },
            1,
        ),
        // The end of a fault that was not granted.
        (
            |g| {
                g.fault(1, 1, PF_USER);
                g.replay.handled(STACKS[1]);
            },
            0,
        ),
        (|g| g.replay.interrupted(1, 0x1ffe), 0),
    ];
    for (i, (act, unsure)) in acts.into_iter().enumerate() {
        for last in [0, YOUNG] {
            let mut g = guest(8, true);
            let first = g.read(0, 1);
            let number = g.begin(0, 2, true);
            g.answer_far(0, number);
            g.load(0, turn_at(first));
            g.words.insert(LAST, YOUNG);
            g.replay.pte_sweeps(0, LAST);
            act(&mut g);
            g.tell(|replay, word| replay.pte_swept(0, word));
            g.pass(0, None);
            g.admit_far(0, number);
            g.close(0, 1, last);
            assert_eq!(g.wrong(), [0; 6], "act {i}, {last}");
            assert_eq!(g.replay.counts.unsure, unsure);
        }
    }
}

#[test]
fn what_passes_is_swept_and_nothing_else() {
    let mut g = guest(8, true);
    let first = g.read(0, 1);
    let number = g.begin(0, 2, true);
    g.answer_far(0, number);
    g.load(0, turn_at(first));
    g.cleared(0);
    g.misplaced("is not swept");
    // Nothing has passed.
    let mut g = guest(8, true);
    let number = g.begin(0, 1, true);
    g.answer_far(0, number);
    g.sweep(0, 0);
    g.misplaced("what passes is []");
    // It has ended before it was looked at.
    let mut g = guest(8, true);
    let first = g.read(0, 1);
    let number = g.begin(0, 2, true);
    g.answer_far(0, number);
    g.close(1, 1, 0);
    g.load(0, turn_at(first));
    g.cleared(0);
    g.admit_far(0, number);
    g.right();
    g.sweep(1, 0);
    g.misplaced("without a number");
}

/// A CLOCK of four pages, and CPU 1 has a number, for which page 1 is looked at, with these bits,
/// and was used or not.
fn clock(bits: u64, used: bool) -> (Guest, u64) {
    let mut g = guest(4, true);
    let first = g.read(0, 1);
    g.read_sweeping(0, 2, first);
    g.read(1, 3);
    g.read_sweeping(1, 4, g.set.next - 1);
    if used {
        g.touch(0, 1);
    }
    let number = g.begin(1, 5, true);
    g.answer_far(1, number);
    assert!(g.look(1, first));
    g.right();
    g.sweep(1, bits);
    (g, number)
}

#[test]
fn the_clock_gives_a_chance_or_the_place() {
    let (mut g, number) = clock(YOUNG, true);
    g.renew(1, START, number);
    g.right();
    assert_eq!(g.replay.counts.chances, 1);
    assert!(g.replay.find(page(1)).is_some());
    let next = g.again(1);
    assert_eq!(next, number + 1);
    let (mut g, number) = clock(0, false);
    g.evict_for(1, START, number, 0, Slot::Done);
    g.load(1, turn_at(START + 3));
    g.sweep(1, 0);
    g.cleared(1);
    g.admit_far(1, number);
    g.right();
    assert!(g.replay.find(page(1)).is_none());
}

#[test]
fn a_chance_that_is_due_is_given_and_no_other() {
    let (mut g, number) = clock(YOUNG, true);
    g.evict_for(1, START, number, 0, Slot::Done);
    assert!(g.replay.notes.text().contains("must get a second chance"));
    let (mut g, number) = clock(0, false);
    g.renew(1, START, number);
    g.misplaced("neither in a first segment nor referenced");
    // Without a look.
    let mut g = guest(4, true);
    let first = g.read(0, 1);
    g.read_sweeping(0, 2, first);
    g.read(1, 3);
    g.read_sweeping(1, 4, g.set.next - 1);
    let number = g.begin(1, 5, true);
    g.answer_far(1, number);
    g.look(1, first);
    g.evict_for(1, first, number, 0, Slot::Done);
    g.misplaced("must be looked at first");
}

/// CPU 1 has a number for which a member is to be renewed, and the number's slot is not free: it is
/// that of an older one, as that CPU reads it.
fn without_slot(g: &mut Guest, number: u64) {
    let turn = Turn::new(number - SLOTS, Slot::Overdue).word();
    g.words.insert(turn_at(number), turn);
    g.load(1, turn_at(number));
}

#[test]
fn without_a_slot_nothing_is_renewed() {
    // A first segment.
    let (mut g, number) = held();
    g.look(1, number - 4);
    without_slot(&mut g, number);
    g.evict_for(1, number - 4, number, 0, Slot::Done);
    g.load(1, turn_at(number));
    g.answer(1, Full);
    g.right();
    // What the look for a second chance has cleared is told all the same.
    for told in [true, false] {
        let (mut g, number) = clock(if told { YOUNG } else { 0 }, told);
        without_slot(&mut g, number);
        g.evict_for(1, START, number, 0, Slot::Done);
        g.right();
        g.replay.flush_done(1);
        g.settle(1, true);
        g.load(1, turn_at(number));
        g.settled(1, Some(NO_SEQ));
        g.right();
        let again = g.replay.place(START).map(|p| p.stay.again);
        assert_eq!(again, Some(told));
    }
}

#[test]
fn references_around_a_look_belong_to_their_stays() {
    // After the look, and before the stay has its new number.
    let (mut g, number) = clock(YOUNG, true);
    g.replay.flush_done(1);
    g.touch(0, 1);
    g.renew(1, START, number);
    g.again(1);
    g.right();
    g.close(0, 1, YOUNG);
    g.right();
    let (mut g, number) = clock(YOUNG, true);
    g.replay.flush_done(1);
    g.renew(1, START, number);
    g.again(1);
    g.close(0, 1, YOUNG);
    assert_eq!(g.wrong(), [0, 0, 0, 0, 1, 0]);
}

#[test]
fn an_epoch_is_one_that_the_cpu_had_since_the_question() {
    // Switches before the question, and until the answer.
    for (value, misplaced) in [(0, 1), (1, 0), (2, 0), (4, 0), (5, 1)] {
        let mut g = guest(4, false);
        g.read(1, 1);
        let base = g.replay.switches[1].base.unwrap();
        g.replay.switched(1);
        g.replay.switched(1);
        g.replay.epoch_asked(0, 1);
        g.replay.switched(1);
        g.replay.switched(1);
        g.replay
            .epoch_answered(0, u64::from(base.wrapping_add(value)));
        assert_eq!(g.wrong(), [0, 0, 0, misplaced, 0, 0], "{value}");
    }
}

#[test]
fn an_access_to_no_member_and_a_closing_of_none_are_violations() {
    let mut g = guest(4, false);
    g.touch(1, 1);
    g.close(0, 1, 0);
    assert_eq!(g.wrong(), [1, 1, 0, 0, 0, 0]);
}

#[test]
fn what_is_closed_ends_its_stay() {
    let mut g = guest(4, false);
    g.read(0, 1);
    g.replay.close(0, page(1), 0, 1);
    g.load(0, COUNTER);
    g.replay.closed(0);
    g.misplaced("stays, and its entry is cleared");
    // Another page's.
    let mut g = guest(4, false);
    g.read(0, 1);
    g.read(0, 2);
    g.replay.close(0, page(1), 0, 1);
    g.load(0, COUNTER);
    g.shut(0, START + 1, g.set.next, Slot::Closed);
    assert_ne!(g.wrong()[3], 0);
}

#[test]
fn a_set_gets_smaller_and_larger() {
    let mut g = guest(8, false);
    for n in 1..=8 {
        g.read(0, n);
    }
    g.pause(5);
    g.drain(0, START..START + 3, EVICTED);
    for ordinal in START..START + 3 {
        g.write(0, ordinal);
    }
    g.resized(5);
    g.read(0, 9);
    g.right();
    assert_eq!((g.replay.members.len(), g.is_live(START + 3)), (5, false));
    g.pause(6);
    g.resized(6);
    g.read(0, 10);
    g.right();
    assert_eq!(g.replay.members.len(), 6);
    assert_eq!(g.end().counts.violations(), 0);
}

#[test]
fn a_set_gets_smaller_while_others_admit() {
    let mut g = guest(8, false);
    for n in 1..=8 {
        g.read(0, n);
    }
    // CPU 1 has a number when the set is to be smaller, and puts out what goes.
    let number = g.begin(1, 9, true);
    g.resizing(5);
    assert!(g.look(1, START));
    g.drain(0, START + 1..START + 3, EVICTED);
    g.evict_for(1, START, number, 0, Slot::Done);
    g.go(1, number);
    // Number 9 was drawn before.
    g.drain(0, [START + 3], EVICTED);
    // This one has nothing left to do but to write.
    g.read(1, 10);
    g.right();
    g.pause(5);
    g.drain(0, [START + 4], EVICTED);
    for ordinal in START + 2..START + 5 {
        g.write(0, ordinal);
    }
    g.resized(5);
    g.read(0, 11);
    g.right();
    assert_eq!(g.replay.members.len(), 5);
    assert_eq!(g.end().counts.violations(), 0);
}

#[test]
fn other_tasks_may_run_before_a_task_knows_where_a_set_begins() {
    // 8 pages are members when it asks, 10 when it has the answer, which may be of any moment in
    // between.
    for (begin, right) in [(2, false), (3, true), (4, true), (5, true), (6, false)] {
        let mut g = guest(8, false);
        for n in 1..=8 {
            g.read(0, n);
        }
        g.asks_begin(1, 5);
        g.read(0, 9);
        g.read(0, 10);
        g.gets_begin(1, START + begin);
        match right {
            true => g.drain(0, START + 2..START + begin, EVICTED),
            false => {
                g.misplaced("does not follow from the next number");
                continue;
            }
        }
        g.right();
        g.drain(0, [START + begin], EVICTED);
        g.misplaced("which has its place in the smaller set");
    }
}

#[test]
fn a_set_gets_another_size_in_order() {
    type Act = fn(&mut Guest);
    let acts: [(Act, &str); 11] = [
        // While others admit.
        (|g| g.resized(9), "may be on the way"),
        (
            |g| g.drain(0, [START], EVICTED),
            "which has its place in the smaller set",
        ),
        (
            |g| {
                g.resizing(5);
                g.drain(0, START..START + 4, EVICTED);
            },
            "which has its place in the smaller set",
        ),
        (
            |g| {
                g.resizing(5);
                g.resized(5);
            },
            "may be on the way",
        ),
        (
            |g| {
                g.asks_begin(0, 5);
                g.gets_begin(0, START + 2);
            },
            "does not follow from the next number",
        ),
        (
            |g| {
                g.asks_begin(0, 5);
                g.gets_begin(0, START + 4);
            },
            "does not follow from the next number",
        ),
        (
            |g| {
                g.begin(1, 9, true);
                g.pause(5);
            },
            "is on the way on CPU 1",
        ),
        (
            |g| {
                g.pause(5);
                g.begin(1, 9, true);
            },
            "is drawn while the set is paused",
        ),
        // A member that has its place in the smaller set goes.
        (
            |g| {
                g.pause(5);
                g.drain(0, START..START + 4, EVICTED);
            },
            "which has its place in the smaller set",
        ),
        // One of the members that are beyond the smaller set stays.
        (
            |g| {
                g.pause(5);
                g.drain(0, START..START + 2, EVICTED);
                g.resized(5);
            },
            "beyond a set of 5",
        ),
        (|g| g.drain(0, [START], DRAINED), "before the end"),
    ];
    for (act, what) in acts {
        let mut g = guest(8, false);
        for n in 1..=8 {
            g.read(0, n);
        }
        act(&mut g);
        let text = g.replay.notes.text();
        assert!(text.contains(what), "{what}: {text}");
        assert_ne!(g.wrong()[3], 0);
    }
}

#[test]
fn a_pause_is_not_the_end() {
    let mut g = guest(4, false);
    g.hold(true);
    g.replay.quiesced();
    assert!(!g.replay.sealed);
    g.hold(false);
    g.replay.quiesced();
    assert!(g.replay.sealed);
}

/// A set of eight pages that CPU 0 has filled with the pages 1 to 6, 513 and 7, and evicts up
/// to four at a time; or CPU 1 has admitted 4, which is its first segment.
fn batches(other: bool) -> Guest {
    let mut g = guest_with(Shape {
        first: 1,
        batch: 4,
        ..Shape::fifo(8)
    });
    for n in [1, 2, 3] {
        g.read(0, n);
    }
    g.read(usize::from(other), 4);
    for n in [513, 5, 6, 7] {
        g.read(0, n);
    }
    g.right();
    g
}

/// The same, with a number for an admission of page 8, for which page 1 has to go.
fn batch_due(other: bool) -> (Guest, u64) {
    let mut g = batches(other);
    let number = g.begin(0, 8, true);
    assert!(g.look(0, START));
    (g, number)
}

impl Guest {
    /// Evicts these numbers together, with these bits of their entries, and looks at the others of
    /// `batch` numbers. Records are written as long as they follow each other, and those of the
    /// first `room`.
    fn evict_batch_of(
        &mut self,
        (cpu, number): (usize, u64),
        all: &[(u64, u64)],
        batch: u64,
        room: usize,
    ) {
        let out = number - self.n;
        let (mut row, mut written) = (true, 0);
        for ordinal in out..out + batch {
            let goes = all.iter().find(|(o, _)| START + o == ordinal);
            let locks = goes.is_some();
            if ordinal > out && self.look_beside(cpu, ordinal, out, locks) {
                self.judge(cpu, ordinal);
            }
            let Some((_, bits)) = goes else {
                row = false;
                continue;
            };
            row &= written < room;
            written += 1;
            let state = if row { Slot::Done } else { Slot::Closed };
            self.evict_for(cpu, ordinal, number, *bits, state);
        }
        self.write(cpu, out);
    }

    /// Looks whether a number is that of a member that may go with another one: is its page table the
    /// same, or does the CPU lock it?
    fn look_beside(&mut self, cpu: usize, ordinal: u64, out: u64, locks: bool) -> bool {
        self.load(cpu, turn_at(ordinal));
        let live = self.state(ordinal) == Some(Slot::Live);
        if live {
            let entry = self.load(cpu, turn_at(ordinal) + 16);
            if (entry ^ self.word(turn_at(out) + 16)) >> 12 != 0 {
                self.load(cpu, turn_at(ordinal));
                if !locks {
                    return false;
                }
            }
            self.load(cpu, turn_at(ordinal));
        }
        live
    }

    /// The same for a batch of four, with room for all records.
    fn evict_batch(&mut self, cpu: usize, number: u64, all: &[(u64, u64)]) {
        self.evict_batch_of((cpu, number), all, 4, 4);
    }
}

#[test]
fn a_batch_goes_with_its_victim() {
    let (mut g, number) = batch_due(false);
    // Each has the bits of its own entry: 3 is dirty by a store.
    g.store(0, 3);
    g.evict_batch(0, number, &[(0, 0), (1, 0), (2, DIRTY), (3, 0)]);
    g.go(0, number);
    g.right();
    // Three numbers have no victim, as their places are free already. Their records are written.
    for n in [1, 2, 3] {
        g.read(0, n);
    }
    // The next one has a batch over two page tables, but the other one is locked by another CPU.
    let next = g.begin(0, 4, true);
    assert!(g.look(0, next - 8));
    g.evict_batch(0, next, &[(4, 0)]);
    g.go(0, next);
    g.right();
    assert_eq!((g.replay.counts.batched, g.replay.members.len()), (3, 8));
    let log = g.end();
    let told: Vec<_> = log.stays.iter().map(|s| (s.why, s.dirtied)).collect();
    let mut want = [(EVICTED, false); 13];
    want[2].1 = true;
    want[5..].fill((DRAINED, false));
    assert_eq!(told, want);
    assert_eq!(log.counts.violations(), 0);
}

/// A number for which page 513 has to go. The pages 5, 6 and 7, of another page table, may go with it.
fn two_tables_due() -> (Guest, u64) {
    let (mut g, number) = batch_due(false);
    g.evict_batch(0, number, &[(0, 0), (1, 0), (2, 0), (3, 0)]);
    g.go(0, number);
    for n in [1, 2, 3] {
        g.read(0, n);
    }
    let next = g.begin(0, 4, true);
    assert!(g.look(0, next - 8));
    (g, next)
}

/// Page 513 goes, and then those of another page table that these numbers have: the lock of that may
/// become free at any time. Numbers are those of 513, and of the pages 5, 6 and 7.
fn goes_over_two_tables(all: &[u64]) -> Guest {
    let (mut g, next) = two_tables_due();
    let all: Vec<_> = all.iter().map(|o| (*o, 0)).collect();
    g.evict_batch(0, next, &all);
    g.go(0, next);
    g
}

#[test]
fn a_batch_is_of_the_page_tables_that_are_free() {
    for right in [&[4][..], &[4, 5, 6, 7], &[4, 6, 7], &[4, 7]] {
        let g = goes_over_two_tables(right);
        g.right();
        assert_eq!(g.replay.counts.batched, 3 + right.len() as u64 - 1);
    }
    // A page table that is locked stays so until the flush.
    for wrong in [&[4, 5][..], &[4, 5, 6], &[4, 5, 7], &[4, 6]] {
        assert_ne!(goes_over_two_tables(wrong).wrong()[3], 0, "{wrong:?}");
    }
}

#[test]
fn another_batch_is_a_violation() {
    for all in [
        &[0, 1, 2][..],
        &[0],
        &[0, 1, 3],
        &[0, 1, 2, 3, 4],
        &[0, 1, 2, 5],
    ] {
        let (mut g, number) = batch_due(false);
        let all: Vec<_> = all.iter().map(|o| (*o, 0)).collect();
        g.evict_batch_of((0, number), &all, 6, 6);
        g.go(0, number);
        assert_ne!(g.wrong()[3], 0, "{all:?}");
    }
    // In another order.
    let (mut g, number) = batch_due(false);
    g.look_beside(0, START + 1, START, true);
    g.judge(0, START + 1);
    g.evict_for(0, START + 1, number, 0, Slot::Done);
    assert_ne!(g.wrong()[3], 0);
}

#[test]
fn records_of_a_batch_are_written_in_a_row_as_far_as_there_is_room() {
    for room in 0..4 {
        let (mut g, number) = batch_due(false);
        let all = [(0, 0), (1, 0), (2, 0), (3, 0)];
        g.evict_batch_of((0, number), &all, 4, room);
        g.go(0, number);
        let left = (START + 1..START + 4).filter(|o| g.state(*o) == Some(Slot::Closed));
        assert_eq!(left.count(), 3 - room.saturating_sub(1));
        // Later numbers write the others.
        for n in [1, 2, 3] {
            g.read(0, n);
        }
        g.right();
        assert_eq!(g.end().counts.violations(), 0);
    }
    // After one that was left, none is written; nor after a gap.
    for (first, gap) in [(Slot::Closed, false), (Slot::Done, true)] {
        let (mut g, number) = batch_due(false);
        if gap {
            g.close(1, 2, 0);
        }
        g.evict_for(0, START, number, 0, first);
        let next = START + 1 + u64::from(gap);
        g.look_beside(0, START + 1, START, true);
        g.look_beside(0, next, START, true);
        g.judge(0, next);
        g.evict_for(0, next, number, 0, Slot::Done);
        g.misplaced("makes Turn");
    }
    // Only who puts a number out writes its record, and not that of a page that was closed.
    let mut g = full();
    g.replay.close(0, page(1), 0, 1);
    g.load(0, COUNTER);
    g.shut(0, START, g.set.next, Slot::Done);
    g.misplaced("makes Turn");
}

#[test]
fn a_batch_is_of_what_was_live_when_it_was_looked_at() {
    // Its second number has no page yet then, and gets one before the CPU goes on.
    let mut g = guest_with(Shape {
        first: 1,
        batch: 4,
        ..Shape::fifo(8)
    });
    g.read(0, 1);
    let slow = g.begin(1, 2, true);
    for n in [3, 4, 513, 5, 6, 7] {
        g.read(0, n);
    }
    let number = g.begin(0, 8, true);
    assert!(g.look(0, START));
    g.evict_batch(0, number, &[(0, 0), (2, 0), (3, 0)]);
    g.go(1, slow);
    g.go(0, number);
    g.right();
}

#[test]
fn a_batch_leaves_first_segments_as_long_as_they_last() {
    // Whether page 4 is the first segment of CPU 1, and its epoch when that is asked for.
    for (other, switched, goes) in [
        (false, false, true),
        (true, false, false),
        (true, true, true),
    ] {
        let (mut g, number) = batch_due(other);
        if switched {
            g.replay.switched(1);
        }
        let all = [(0, 0), (1, 0), (2, 0), (3, 0)];
        g.evict_batch(0, number, if goes { &all } else { &all[..3] });
        g.go(0, number);
        g.right();
        assert_eq!(g.is_live(START + 3), !goes, "{other} {switched}");
    }
}

/// The lock of another page table was free, but the page there is in a first segment, as seen then. It
/// stays, and what the CPU has seen of that segment is not what it sees for the next page.
#[test]
fn a_page_may_stay_although_its_page_table_was_locked() {
    for locks in [true, false] {
        let mut g = guest_with(Shape {
            first: 2,
            batch: 4,
            ..Shape::fifo(12)
        });
        // The second and the third are the first segment of CPU 1.
        g.read(0, 1);
        g.read(1, 513);
        g.read(1, 4);
        for n in 5..=13 {
            g.read(0, n);
        }
        g.right();
        let number = g.begin(0, 14, true);
        assert!(g.look(0, START));
        g.evict_for(0, START, number, 0, Slot::Done);
        if g.look_beside(0, START + 1, START, locks) {
            g.judge(0, START + 1);
        }
        // The segment ends now.
        g.replay.switched(1);
        for ordinal in [START + 2, START + 3] {
            assert!(g.look_beside(0, ordinal, START, true));
            g.judge(0, ordinal);
            g.evict_for(0, ordinal, number, 0, Slot::Closed);
        }
        g.write(0, START);
        g.go(0, number);
        g.right();
        assert!(g.is_live(START + 1));
    }
}

/// A page whose page table was locked, and that is in no first segment, must go. That the CPU looks at it
/// once more later does not show that its page table was locked.
#[test]
fn a_page_whose_page_table_was_locked_goes() {
    for locks in [true, false] {
        let (mut g, next) = two_tables_due();
        let out = next - 8;
        g.evict_for(0, out, next, 0, Slot::Done);
        for ordinal in out + 1..out + 4 {
            if g.look_beside(0, ordinal, out, locks) {
                g.judge(0, ordinal);
            }
        }
        g.write(0, out);
        for ordinal in [out, out + 3, out + 3, out + 3] {
            g.load(0, turn_at(ordinal));
        }
        g.go(0, next);
        match locks {
            true => g.misplaced("must go with others"),
            false => g.right(),
        }
    }
}

#[test]
fn what_another_cpu_has_ended_is_in_no_batch() {
    // The member whose turn it is, and another one.
    for (n, rest) in [(1, &[][..]), (2, &[(0, 0), (2, 0), (3, 0)])] {
        let mut g = batches(false);
        g.close(1, n, 0);
        g.replay.flush_done(1);
        let number = g.begin(0, 8, true);
        g.look(0, START);
        g.evict_batch(0, number, rest);
        g.go(0, number);
        g.right();
        assert_eq!(g.replay.members.len(), 8 - rest.len());
    }
}

#[test]
fn a_batch_leaves_room_for_two_first_segments() {
    let mut g = batches(false);
    g.pause(4);
    g.drain(0, START..START + 4, EVICTED);
    for ordinal in START..START + 4 {
        g.write(0, ordinal);
    }
    g.resized(4);
    g.read(0, 1);
    let number = g.begin(0, 8, true);
    g.look(0, number - 4);
    // Page 1 is in no first segment either.
    let all = [(5, 0), (6, 0), (7, 0)];
    g.evict_batch_of((0, number), &all, 3, 3);
    g.go(0, number);
    g.right();
    assert_eq!(g.replay.members.len(), 2);
}

#[test]
fn until_the_flush_all_of_a_batch_may_be_used_elsewhere() {
    for (flushed, escaped) in [(false, 0), (true, 3)] {
        let (mut g, number) = batch_due(false);
        g.evict_batch(0, number, &[(0, 0), (1, 0), (2, 0), (3, 0)]);
        if flushed {
            g.replay.flush_done(0);
        } else {
            // One page of them.
            g.replay.flushed(1, Some(0x2000));
        }
        for n in [1, 3, 4] {
            g.touch(1, n);
        }
        assert_eq!(g.wrong(), [escaped, 0, 0, 0, 0, 0]);
        assert_eq!(g.replay.counts.late, 3 - escaped);
    }
}

#[test]
fn what_has_not_ended_is_a_violation() {
    let mut g = guest(4, false);
    g.read(0, 1);
    let log = g.replay.end().unwrap();
    assert_eq!((log.counts.misplaced, log.stays.len()), (1, 0));
    assert!(g.replay.end().is_none());
}

/// The fourth renewal with the lock of the entry held is the last one.
#[test]
fn an_admission_that_renews_often_goes_far() {
    for (renewals, far, wrong) in [
        (4, true, false),
        (3, true, true),
        (4, false, false),
        (5, false, true),
    ] {
        let mut g = guest_with(Shape {
            first: 5,
            ..Shape::fifo(20)
        });
        for page in 1..=20 {
            g.read(usize::from(page > 5), page);
        }
        let mut number = g.begin(1, 21, true);
        for _ in 0..renewals {
            let out = number - 20;
            assert!(g.look(1, out));
            g.renew(1, out, number);
            number = g.again(1);
        }
        if far {
            g.answer_far(1, number);
        }
        assert_eq!(g.wrong()[3] != 0, wrong, "{renewals} {far}");
    }
}

/// Two processes with full sets of four: pages 1 to 4 of the first, 11 to 14 of the second, in turn.
fn two_full() -> Guest {
    let mut g = processes(4, 1);
    for n in 1..5 {
        g.read_in(1, 0, n);
        g.read_in(2, 1, 10 + n);
    }
    g.right();
    g
}

impl Guest {
    /// The set at hand is that of this process.
    fn turn_to(&mut self, which: u64) {
        if self.set.which != which {
            self.other();
        }
    }

    /// A process reads a page on a CPU, which is admitted.
    fn read_in(&mut self, which: u64, cpu: usize, n: u64) -> u64 {
        self.turn_to(which);
        self.arrive(cpu);
        self.read(cpu, n)
    }

    /// A process asks for a page on a CPU, up to the number.
    fn begin_in(&mut self, which: u64, cpu: usize, n: u64) {
        self.turn_to(which);
        self.arrive(cpu);
        self.fault(cpu, n, PF_USER);
        self.ask(cpu, n, true);
        self.claim(cpu);
    }

    /// Stores of the claim what is due.
    fn claim(&mut self, cpu: usize) {
        let counts = self.load(cpu, self.claim_at(cpu, Field::Counts));
        self.load(cpu, self.claim_at(cpu, Field::Time));
        self.load(cpu, self.claim_at(cpu, Field::Epoch));
        self.put(cpu, self.claim_at(cpu, Field::Epoch), 0);
        self.put(cpu, self.claim_at(cpu, Field::Time), TIME);
        let count = (counts >> 32) + 1;
        self.put(cpu, self.claim_at(cpu, Field::Counts), count << 32 | 1);
    }

    /// A CPU gets the next number of the set at hand for a number of all sets.
    fn get(&mut self, cpu: usize, clock: u64) -> u64 {
        let ordinal = self.load(cpu, self.base() + ORDINALS);
        let count = (self.word(self.claim_at(cpu, Field::Counts)) >> 32) as u32;
        self.set.whose.insert(ordinal, (cpu, count, clock));
        self.put(cpu, self.base() + ORDINALS, ordinal + 1);
        self.set.next = ordinal + 1;
        ordinal
    }

    /// All of an admission that has its number.
    fn finish(&mut self, cpu: usize, ordinal: u64) {
        self.clear_way(cpu, ordinal);
        self.go(cpu, ordinal);
    }

    /// The process of the set at hand ends: all of its pages are closed.
    fn exit(&mut self, cpu: usize, pages: &[u64]) {
        for n in pages {
            self.close(cpu, *n, 0);
        }
        let [mm, _] = self.mm();
        self.replay.leaving(mm);
    }
}

#[test]
fn each_set_evicts_its_own_oldest() {
    let mut g = two_full();
    g.begin_in(1, 0, 5);
    let clock = g.count(0);
    let ordinal = g.get(0, clock);
    assert_eq!((clock, ordinal), (START + 8, 4));
    g.finish(0, ordinal);
    g.touch(0, 2);
    g.right();
    g.turn_to(2);
    g.arrive(1);
    g.touch(1, 11);
    g.right();
    let log = g.end();
    let told: Vec<_> = log
        .stays
        .iter()
        .map(|s| (s.page.mm, s.page.addr >> 12, s.why))
        .collect();
    let all = [
        (1, 1, EVICTED),
        (2, 11, DRAINED),
        (1, 2, DRAINED),
        (2, 12, DRAINED),
        (1, 3, DRAINED),
        (2, 13, DRAINED),
        (1, 4, DRAINED),
        (2, 14, DRAINED),
        (1, 5, DRAINED),
    ];
    assert_eq!(told, all);
    assert_eq!(log.counts.violations(), 0);
}

#[test]
fn an_eviction_by_the_numbers_of_all_sets_is_a_violation() {
    // Its set has room for another page: only all sets together have had as many numbers.
    let mut g = processes(4, 1);
    for n in 1..3 {
        g.read_in(1, 0, n);
        g.read_in(2, 1, 10 + n);
    }
    g.begin_in(1, 0, 3);
    let clock = g.count(0);
    g.get(0, clock);
    g.take(0, 1, 0);
    g.misplaced("out of its turn");
    // And what its own set must evict, stays.
    let mut g = two_full();
    g.begin_in(1, 0, 5);
    let clock = g.count(0);
    let ordinal = g.get(0, clock);
    g.go(0, ordinal);
    g.misplaced("is done");
}

#[test]
fn the_oldest_of_another_set_is_no_victim() {
    let mut g = two_full();
    g.begin_in(1, 0, 5);
    let clock = g.count(0);
    g.get(0, clock);
    g.take(0, 11, 0);
    g.misplaced("and number 0 is in entry 1");
}

#[test]
fn what_is_noted_is_the_number_of_all_sets_only_when_a_stay_ends() {
    type Act = fn(&mut Guest, u64, u64);
    let acts: [(Act, &str); 3] = [
        // It ends at a number of the set.
        (
            |g, ordinal, _| {
                g.look(0, 0);
                g.take(0, 1, 0);
                g.shut(0, 0, ordinal, Slot::Done);
            },
            "is noted",
        ),
        // Or a member is one by a number of all sets.
        (
            |g, ordinal, clock| {
                g.clear_way(0, ordinal);
                g.live(0, ordinal);
                g.words.insert(handle(5), clock << 1 | 1);
                g.answer(0, Go);
            },
            "is noted",
        ),
        // Or what is kept is not both.
        (
            |g, ordinal, _| {
                g.set.whose.get_mut(&ordinal).unwrap().2 -= 1;
                g.answer_far(0, ordinal);
            },
            "is kept as",
        ),
    ];
    for (act, what) in acts {
        let mut g = two_full();
        g.begin_in(1, 0, 5);
        let clock = g.count(0);
        let ordinal = g.get(0, clock);
        act(&mut g, ordinal, clock);
        let text = g.replay.notes.text();
        assert!(g.wrong()[3] > 0 && text.contains(what), "{text}");
    }
}

#[test]
fn a_number_is_skipped_only_if_another_cpu_was_faster() {
    // The other CPU is in the same set, in another one, or nowhere.
    for (other, right) in [(Some(1), true), (Some(2), false), (None, false)] {
        let mut g = processes(4, 1);
        g.begin_in(1, 0, 1);
        g.count(0);
        if let Some(which) = other {
            g.begin_in(which, 1, 21);
            let clock = g.count(1);
            let ordinal = g.get(1, clock);
            g.finish(1, ordinal);
        }
        g.turn_to(1);
        let clock = g.count(0);
        let ordinal = g.get(0, clock);
        g.finish(0, ordinal);
        assert_eq!(g.replay.counts.skipped, 1);
        if right {
            g.right();
            let log = g.end();
            // The faster one comes first.
            let pages: Vec<_> = log.stays.iter().map(|s| s.page.addr >> 12).collect();
            assert_eq!((pages, log.counts.violations()), (vec![21, 1], 0));
        } else {
            g.misplaced("no other CPU was faster");
        }
    }
}

#[test]
fn numbers_of_a_set_are_in_the_order_of_those_of_all() {
    let mut g = processes(4, 1);
    g.begin_in(1, 0, 1);
    let first = g.count(0);
    g.begin_in(1, 1, 2);
    let second = g.count(1);
    let ordinal = g.get(1, second);
    g.finish(1, ordinal);
    g.right();
    g.get(0, first);
    g.misplaced("and the one before is");
}

#[test]
fn a_number_of_a_set_needs_one_of_all() {
    let mut g = processes(4, 1);
    g.begin_in(1, 0, 1);
    g.get(0, START);
    g.misplaced("makes 1 the next number");
    // Nor are two drawn at once.
    let mut g = processes(4, 1);
    g.begin_in(1, 0, 1);
    g.count(0);
    let at = g.base() + ORDINALS;
    g.put(0, at, 2);
    g.misplaced("makes 2 the next number");
    // Another CPU's exchange that has failed is none.
    let mut g = processes(4, 1);
    g.begin_in(1, 0, 1);
    g.count(0);
    g.put(0, at, 0);
    g.right();
}

#[test]
fn a_page_is_asked_for_in_the_set_of_its_process() {
    let mut g = processes(4, 1);
    g.turn_to(1);
    g.arrive(0);
    g.fault(0, 1, PF_USER);
    let l = LOCKED[0];
    g.words.extend([
        (l + L_MM, MM),
        (l + L_PAGE, 1 << 12),
        (l + L_MM_ID, 1 | 100 << 32),
    ]);
    g.tell(|replay, word| replay.ask(0, STACKS[0], l, true, word));
    g.put(0, l + L_SET, base(2) + SCOPE);
    g.misplaced("is asked for in set 2, and is of set 1");
    // Nor does a CPU store in another set than it has asked.
    let mut g = two_full();
    g.begin_in(1, 0, 5);
    g.turn_to(2);
    g.claim(0);
    g.misplaced("draws no number");
}

#[test]
fn a_set_that_lies_elsewhere_or_counts_otherwise_is_a_violation() {
    for (word, value, what) in [
        (0, COUNTER + 64, "counts in another way"),
        (8, 0, "counts in another way"),
        (4, base(1) + CLAIMS, "lies where set 1 does"),
    ] {
        let mut g = processes(4, 1);
        g.read_in(1, 0, 1);
        g.words.insert(base(2) + SCOPE + word * 8, value);
        g.begin_in(2, 1, 11);
        let text = g.replay.notes.text();
        assert!(g.wrong()[3] > 0 && text.contains(what), "{text}");
    }
    let mut g = processes(4, 1);
    g.read_in(1, 0, 1);
    g.words.insert(base(1) + SCOPE + 8, base(1) + CELLS + 8);
    g.begin_in(1, 0, 2);
    assert!(g.replay.notes.text().contains("and lay at"));
}

#[test]
fn the_records_of_a_process_that_has_ended_are_written_by_anybody() {
    for ended in [true, false] {
        let mut g = two_full();
        g.turn_to(1);
        // The other process is about to use a number.
        g.begin_in(2, 1, 15);
        g.count(1);
        g.turn_to(1);
        if ended {
            g.exit(0, &[1, 2, 3, 4]);
        } else {
            g.close(0, 1, 0);
        }
        g.turn(0, 0, Slot::Done);
        assert_eq!(g.wrong()[3], u64::from(!ended));
        if !ended {
            continue;
        }
        assert!(g.replay.sets.as_ref().unwrap().knows(1));
        (1..4).for_each(|ordinal| g.turn(0, ordinal, Slot::Done));
        // Its memory may be anything from here on.
        assert!(!g.replay.sets.as_ref().unwrap().knows(1));
        g.put(0, turn_at(0) + base(1), 77);
        g.right();
    }
}

#[test]
fn the_set_of_a_new_process_may_lie_where_another_one_was() {
    let mut g = two_full();
    g.turn_to(1);
    g.exit(0, &[1, 2, 3, 4]);
    for ordinal in 0..4 {
        g.turn(0, ordinal, Slot::Done);
    }
    // The same mm_struct and memory, and another number.
    let words: Vec<_> = (g.words.keys().copied())
        .filter(|at| (base(1)..base(2)).contains(at))
        .collect();
    words.iter().for_each(|at| {
        g.words.remove(at);
    });
    g.words.extend(scope(1, true));
    g.words.insert(base(1) + SCOPE + View::NUMBER, 3);
    g.replay.spaces().comes(STACKS[0], MM, false);
    g.replay.entering(STACKS[0], MM, 7);
    g.replay.entered(STACKS[0], 3);
    g.replay.space_numbered(STACKS[0]);
    g.arrive(0);
    g.fault(0, 5, PF_USER);
    let l = LOCKED[0];
    g.words.extend([
        (l + L_MM, MM),
        (l + L_ENTRY, handle(5)),
        (l + L_PAGE, 5 << 12),
        (l + L_MM_ID, 3 | 100 << 32),
        (l + L_PTEP, ptep(5)),
    ]);
    g.tell(|replay, word| replay.ask(0, STACKS[0], l, true, word));
    g.put(0, l + L_SET, base(1) + SCOPE);
    g.claim(0);
    let clock = g.count(0);
    let ordinal = g.get(0, clock);
    assert_eq!(ordinal, 0);
    g.finish(0, ordinal);
    g.right();
    assert!(g.is_live(0));
}

#[test]
fn a_set_that_nobody_is_in_is_empty() {
    let mut g = two_full();
    g.turn_to(1);
    g.exit(0, &[1, 2]);
    g.misplaced("it has 2 members");
    // A set of two processes, where each must have its own.
    let mut g = processes(4, 1);
    g.replay.spaces().comes(STACKS[0], MM + 0x9000, false);
    g.replay.entering(STACKS[0], MM + 0x9000, 7);
    g.replay.entered(STACKS[0], 2);
    g.replay.space_numbered(STACKS[0]);
    assert_eq!(g.wrong(), [0, 0, 0, 0, 0, 1]);
}

#[test]
fn what_overtakes_an_admission_is_a_number_of_all_sets() {
    // The page is dropped before a slow CPU uses its number, or before it draws it.
    for late in [true, false] {
        for given_up in [true, false] {
            let mut g = two_full();
            if !late {
                g.turn_to(1);
                g.drop(1, 5);
            }
            g.begin_in(1, 0, 5);
            let clock = g.count(0);
            let ordinal = g.get(0, clock);
            g.clear_way(0, ordinal);
            if late {
                // The number of the set is far smaller than that of all.
                g.drop(1, 5);
            }
            if given_up {
                g.give_up(0, ordinal);
                g.answer(0, Full);
            } else {
                g.live(0, ordinal);
                g.answer(0, Go);
            }
            let right = late == given_up;
            assert_eq!(g.wrong()[3] == 0, right, "{}", g.replay.notes.text());
        }
    }
}

#[test]
fn each_set_gets_another_size() {
    let mut g = processes(4, 1);
    for n in 1..5 {
        g.read_in(1, 0, n);
        g.read_in(2, 1, 10 + n);
    }
    g.turn_to(1);
    g.pause(3);
    g.drain(0, [0], EVICTED);
    g.turn(0, 0, Slot::Done);
    g.resized(3);
    g.right();
    // The other one is as large as it was.
    g.turn_to(2);
    g.arrive(1);
    g.touch(1, 11);
    g.right();
    g.turn_to(1);
    g.arrive(0);
    g.touch(0, 1);
    assert_eq!(g.wrong(), [1, 0, 0, 0, 0, 0]);
    // It begins where its own numbers say.
    let mut g = processes(4, 1);
    for n in 1..5 {
        g.read_in(1, 0, n);
    }
    g.pause(3);
    g.drain(0, [0, 1], EVICTED);
    g.misplaced("has its place in the smaller set");
}

#[test]
fn a_cpu_that_wants_a_certain_number_of_a_small_set_may_skip_one_of_all() {
    for moved in [true, false] {
        let mut g = processes(2, 1);
        for cpu in 0..CPUS {
            g.arrive(cpu);
            g.fault(cpu, 1 + cpu as u64, PF_USER);
            g.ask(cpu, 1 + cpu as u64, true);
        }
        let next = g.base() + ORDINALS;
        g.count(1);
        g.load(0, next);
        g.count(0);
        // The other CPU has a smaller number of all sets.
        if moved {
            g.put(1, next, 1);
        }
        g.load(0, next);
        g.count(0);
        assert_eq!(g.replay.counts.skipped, 1);
        match moved {
            true => g.right(),
            false => g.misplaced("no other CPU was faster"),
        }
        // Nor is the last one used, if the set gives no number.
        g.answer(0, Full);
        assert_eq!(g.replay.counts.skipped, 2);
    }
}

#[test]
fn a_drain_ends_each_stay_at_the_number_that_is_next_then() {
    // Another CPU admits a page of another process in between.
    for right in [true, false] {
        let mut g = two_full();
        g.turn_to(1);
        g.resizing(2);
        let scope = g.base() + SCOPE;
        g.words
            .extend([(CURSOR + C_ORDINAL, 0), (CURSOR + C_SCOPE, scope)]);
        g.tell(|replay, word| replay.drain(0, CURSOR, EVICTED, word));
        for ordinal in 0..2 {
            g.load(0, COUNTER);
            let end = if right { g.clock } else { START + 8 };
            g.take(0, 1 + ordinal, 0);
            g.shut(0, ordinal, end, Slot::Closed);
            g.read_in(2, 1, 15 + ordinal);
            g.turn_to(1);
        }
        if right {
            g.right();
        } else {
            g.misplaced("is noted");
        }
    }
}

#[test]
fn a_set_that_somebody_may_come_to_is_not_forgotten() {
    for (comes, written) in [(true, true), (true, false), (false, true)] {
        let mut g = several(4, 1, Sets::Cgroup);
        g.read_in(1, 0, 1);
        g.read_in(1, 0, 2);
        let mm = MM + 0x9000;
        if comes {
            g.replay.entering(STACKS[1], mm, 1);
        }
        g.exit(0, &[1, 2]);
        g.turn(0, 0, Slot::Done);
        if written {
            g.turn(0, 1, Slot::Done);
        }
        assert_eq!(g.replay.sets.as_ref().unwrap().knows(1), comes);
        if comes {
            // Its numbers go on, and so its records wait for others.
            g.replay.spaces().comes(STACKS[1], mm, false);
            g.replay.entered(STACKS[1], 1);
            g.replay.space_numbered(STACKS[1]);
            g.right();
            if !written {
                g.turn(0, 1, Slot::Done);
                g.misplaced("makes");
            }
        }
    }
}

#[test]
fn a_cpu_leaves_no_number_of_a_set_behind() {
    let mut g = two_full();
    g.begin_in(1, 0, 5);
    let clock = g.count(0);
    g.get(0, clock);
    g.turn_to(2);
    g.close(0, 11, 0);
    g.misplaced("set 1: CPU 0 leaves its number 4 behind");
}

#[test]
fn a_set_that_is_used_first_during_a_pause_is_paused() {
    for paused in [true, false] {
        let mut g = processes(4, 1);
        if paused {
            g.tell(|replay, word| replay.pause(true, SCOPE, word));
        }
        g.turn_to(1);
        g.fault(0, 1, PF_USER);
        g.ask(0, 1, true);
        g.answer(0, Full);
        g.resizing(3);
        let scope = g.base() + SCOPE;
        g.tell(|replay, word| replay.resized(0, 3, scope, word));
        match paused {
            true => g.right(),
            false => g.misplaced("may be on the way"),
        }
    }
}
