//! A machine around the set without a global lock: page tables with locks, and CPUs that touch and
//! drop pages. It runs under any model of memory and threads: see [`Env`].

// Each test uses a part of this.
#![allow(dead_code)]

use rust_mm_trace::stay::{firsts_for, Admission, Bits, Caller, Page, Shape, Slot, MEMBER};
use rust_mm_trace::tickets::{
    Cell, Claim, Counter, End, Memory, Number, Place, Primitives, Set, Tail, Ticket, Way, Words,
    NUMBERS,
};
use std::cell::{RefCell, UnsafeCell};
use std::ops::DerefMut;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// A lock.
pub trait Lock<T> {
    fn new(value: T) -> Self;
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a;
    /// `None` if somebody has it.
    fn try_lock(&self) -> Option<Self::Guard<'_>>;
}

/// Page tables that a CPU has locked, by their numbers.
type Locked<'a> = Vec<(usize, Box<dyn DerefMut<Target = Table> + 'a>)>;

/// One of them.
fn locked<'a>(all: &'a mut Locked<'_>, table: usize) -> &'a mut Table {
    let (_, held) = all.iter_mut().find(|t| t.0 == table).expect("it is locked");
    held
}

/// Threads and memory, as the system has them or as a model checker does.
pub trait Env: Sized + 'static {
    type P: Primitives;
    type Word: Place<u64>;
    type Lock: Lock<Table>;
    fn atom() -> <Self::P as Primitives>::Atom;
    fn place() -> <Self::P as Primitives>::Place;
    fn word() -> Self::Word;
}

/// A place without a check, for what runs on one thread at a time.
pub struct Bare<T>(pub UnsafeCell<T>);

// SAFETY: One thread runs at a time, and changes to another one only between accesses.
unsafe impl<T> Sync for Bare<T> {}
// SAFETY: As above.
unsafe impl<T> Send for Bare<T> {}

impl<T> Place<T> for Bare<T> {
    type Ref<'a>
        = &'a T
    where
        T: 'a;
    type Mut<'a>
        = &'a mut T
    where
        T: 'a;

    unsafe fn read(&self) -> &T {
        // SAFETY: See above.
        unsafe { &*self.0.get() }
    }

    #[allow(clippy::mut_from_ref)]
    unsafe fn change(&self) -> &mut T {
        // SAFETY: See above.
        unsafe { &mut *self.0.get() }
    }
}

/// The owner of all pages.
pub const OWNER: usize = 1;
/// Pages of a page table.
pub const TABLE: usize = 2;

/// A page table.
#[derive(Default)]
pub struct Table {
    pub enabled: [bool; TABLE],
    pub bits: [Bits; TABLE],
    /// The clock at which a page was evicted last: no later stay has a smaller one.
    evicted: [u64; TABLE],
}

/// The words of all of them.
pub struct AllWords<E: Env>(Arc<Vec<E::Word>>);

impl<E: Env> Words for AllWords<E> {
    unsafe fn get(&self, entry: usize) -> u64 {
        // SAFETY: Its page table is locked.
        *unsafe { self.0[page_of(entry)].read() }
    }

    unsafe fn set(&self, entry: usize, word: u64) {
        // SAFETY: As above.
        *unsafe { self.0[page_of(entry)].change() } = word;
    }
}

/// The handle of a page's entry.
pub fn entry(page: usize) -> usize {
    (1 + page / TABLE) << 12 | (page % TABLE) << 3
}

pub fn page_of(entry: usize) -> usize {
    ((entry >> 12) - 1) * TABLE + (entry >> 3 & (TABLE - 1))
}

/// What is known of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub seq: u64,
    pub page: u64,
    pub tid_cpu: u32,
    pub stay: u32,
    pub time: u64,
}

impl Record {
    pub fn of(s: &Slot) -> Record {
        Record {
            seq: s.seq,
            page: s.page,
            tid_cpu: s.tid_cpu,
            stay: s.stay,
            time: s.time,
        }
    }
}

pub const EVICTED: u32 = 0;
pub const DROPPED: u32 = 1;
/// Second chances for one admission.
pub const CHANCES: usize = 4;

/// What admissions and records are counted with.
pub type Counted<E> = Counter<<<E as Env>::P as Primitives>::Atom>;

pub fn counter<E: Env>(next: Number) -> Arc<Counted<E>> {
    Arc::new(Counter::new(std::array::from_fn(|_| E::atom()), next))
}

pub fn words<E: Env>(pages: usize) -> Arc<Vec<E::Word>> {
    Arc::new((0..pages).map(|_| E::word()).collect())
}

/// The machine.
pub struct Machine<E: Env> {
    pub set: Set<E::P, AllWords<E>>,
    pub words: Arc<Vec<E::Word>>,
    pub counter: Arc<Counted<E>>,
    pub tables: Vec<E::Lock>,
    /// What only the test looks at: pages enabled, records, admissions given up.
    enabled: AtomicI64,
    /// The number of each CPU's last record.
    last: Mutex<Vec<u64>>,
    pub records: Mutex<Vec<Record>>,
    /// The numbers of tickets: ordinal, clock, and number of the record.
    taken: Mutex<Vec<[u64; 3]>>,
    pub given_up: AtomicI64,
    pub admitted: AtomicI64,
    pub renewed: AtomicI64,
    pub chances: AtomicI64,
    /// The epochs of CPUs.
    pub epochs: Vec<AtomicU32>,
    /// The page tables of a batch stay locked until its end. Otherwise each one but the victim's is
    /// locked only while an entry is disabled: a negative control.
    pub keeps_locks: bool,
}

/// The CPU itself sets a PTE's bits, if it is enabled.
fn is_member(table: &mut Table, page: usize, write: bool) -> bool {
    let at = page % TABLE;
    if table.enabled[at] {
        table.bits[at].young = true;
        table.bits[at].dirty |= write;
    }
    table.enabled[at]
}

/// How a CPU goes about an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// In one hold of its page table's lock, if the locks of others are free.
    Near,
    /// Each lock for itself.
    Far,
}

impl<E: Env> Machine<E> {
    pub fn new(
        shape: Shape,
        cells: usize,
        pages: usize,
        next: Number,
        patience: u64,
    ) -> Machine<E> {
        let (words, counter) = (words::<E>(pages), counter::<E>(next));
        let set = Machine::set(&shape, cells, &words, next.ordinal, patience);
        Machine::around(set, &shape, words, counter)
    }

    /// One of several machines that use a counter. Its set has ordinals of its own, from `start` on.
    pub fn apart(
        shape: Shape,
        cells: usize,
        words: Arc<Vec<E::Word>>,
        start: u64,
        patience: u64,
        counter: Arc<Counted<E>>,
    ) -> Machine<E> {
        let mut set = Machine::set(&shape, cells, &words, start, patience);
        set.count_apart();
        Machine::around(set, &shape, words, counter)
    }

    fn set(
        shape: &Shape,
        cells: usize,
        words: &Arc<Vec<E::Word>>,
        start: u64,
        patience: u64,
    ) -> Set<E::P, AllWords<E>> {
        let memory = Memory {
            cells: (0..cells)
                .map(|_| Cell {
                    turn: E::atom(),
                    late: E::atom(),
                    entry: E::atom(),
                    place: E::place(),
                })
                .collect(),
            firsts: (0..firsts_for(shape)).map(|_| E::atom()).collect(),
            claims: (0..shape.cpus)
                .map(|_| Claim {
                    counts: E::atom(),
                    epoch: E::atom(),
                    time: E::atom(),
                    used: E::atom(),
                    seat: E::atom(),
                    waits: E::atom(),
                })
                .collect(),
            seats: (0..2 * shape.cpus).map(|_| E::atom()).collect(),
            numbers: std::array::from_fn::<_, NUMBERS, _>(|_| E::atom()),
        };
        let set = Set::new(shape, memory, AllWords(words.clone()), start);
        let mut set = set.expect("it fits");
        set.set_patience(patience);
        set
    }

    fn around(
        set: Set<E::P, AllWords<E>>,
        shape: &Shape,
        words: Arc<Vec<E::Word>>,
        counter: Arc<Counted<E>>,
    ) -> Machine<E> {
        Machine {
            set,
            counter,
            tables: (0..words.len().div_ceil(TABLE))
                .map(|_| E::Lock::new(Table::default()))
                .collect(),
            words,
            enabled: AtomicI64::new(0),
            last: Mutex::new(vec![0; shape.cpus]),
            records: Mutex::new(Vec::new()),
            taken: Mutex::new(Vec::new()),
            given_up: AtomicI64::new(0),
            admitted: AtomicI64::new(0),
            renewed: AtomicI64::new(0),
            chances: AtomicI64::new(0),
            epochs: (0..shape.cpus).map(|_| AtomicU32::new(0)).collect(),
            keeps_locks: true,
        }
    }

    fn epoch_of(&self, cpu: usize) -> u32 {
        self.epochs[cpu].load(SeqCst)
    }

    fn admission(&self, cpu: usize, page: usize, kind: u64) -> Admission {
        Admission {
            owner: OWNER,
            entry: entry(page),
            page: (page as u64) << 12 | kind,
            mm: 1,
            tid_cpu: cpu as u32,
            pfn: page as u32,
            was_dirty: false,
            vtime: 0,
            address: 0,
        }
    }

    pub fn page(&self, page: usize) -> Page {
        Page {
            entry: entry(page),
            mm: 1,
            addr: (page as u64) << 12,
        }
    }

    /// Writes a record into a CPU's stream, whose records are in order.
    fn emit(&self, cpu: usize, s: &Slot) {
        let last = std::mem::replace(&mut self.last.lock().unwrap()[cpu], s.seq);
        assert!(last < s.seq, "{} is written after {last}", s.seq);
        self.records.lock().unwrap().push(Record::of(s));
    }

    /// The same where there may be no room, which is so for some pages.
    fn try_emit(&self, cpu: usize, s: &Slot) -> bool {
        let has_room = (s.page >> 12) % 3 != 0;
        if has_room {
            self.emit(cpu, s);
        }
        has_room
    }

    /// Disables a page's PTE.
    fn disable(&self, table: &mut Table, page: usize) -> Bits {
        let at = page % TABLE;
        assert!(table.enabled[at], "a member's PTE is enabled");
        table.enabled[at] = false;
        self.enabled.fetch_sub(1, SeqCst);
        std::mem::take(&mut table.bits[at])
    }

    /// The same for an admission with this clock.
    fn evict(&self, table: &mut Table, page: usize, clock: u64) -> Bits {
        table.evicted[page % TABLE] = clock;
        self.disable(table, page)
    }

    fn enable(&self, table: &mut Table, page: usize, write: bool) {
        let at = page % TABLE;
        assert!(!table.enabled[at]);
        let before = self.enabled.fetch_add(1, SeqCst);
        assert!(
            before < self.set.size() as i64,
            "more than n pages are enabled"
        );
        table.enabled[at] = true;
        table.bits[at] = Bits {
            young: true,
            dirty: write,
        };
    }

    fn tail(&self, t: &Ticket) -> Tail {
        self.set.out(t).map_or(Tail::Nothing, |o| self.set.tail(&o))
    }

    fn write(&self, t: &Ticket) {
        if let Some(out) = self.set.out(t) {
            self.set.write(&out, |s| self.emit(t.cpu(), s));
        }
    }

    /// Ends the stay of what a slow CPU has left, with its page table locked.
    fn help(&self, t: &Ticket, ordinal: u64, table: &mut Table) {
        self.end_at(ordinal, t.clock, table);
    }

    fn end_at(&self, ordinal: u64, end: u64, table: &mut Table) {
        let disable = |s: &Slot, _: bool| self.evict(table, (s.page >> 12) as usize, end);
        // SAFETY: The page table is locked.
        unsafe { self.set.end_at(ordinal, end, EVICTED, 1, disable) };
    }

    /// Gives the set another size, while no ticket is on the way.
    pub fn resize(&self, n: u64) {
        assert!(self.set.can_be(n));
        let (before, next) = (self.set.size(), self.set.next(&self.counter));
        let end = self.counter.next().ordinal;
        let begin = next.saturating_sub(before).max(self.set.start());
        for o in begin..next.saturating_sub(n).max(begin) {
            if let Some(e) = self.set.member(o) {
                self.tables[page_of(e) / TABLE].with(|table| self.end_at(o, end, table));
            }
            self.set.clear(o, |s| {
                self.emit(0, s);
                true
            });
        }
        self.set.resize(n);
    }

    /// Does [`Set::end`] with page tables that are locked, that of `entry` among them. False if another
    /// number is needed.
    fn end<'a>(
        &'a self,
        t: &mut Ticket,
        chances: &mut usize,
        mut tables: Locked<'a>,
        entry: usize,
    ) -> bool {
        let way = Way {
            why: EVICTED,
            now: t.time,
            may: *chances < CHANCES,
            renews: true,
            epoch_of: |cpu| self.epoch_of(cpu),
        };
        let out = self.set.out(t).unwrap();
        let (own, at) = (page_of(entry) / TABLE, page_of(entry) % TABLE);
        let before = locked(&mut tables, own).bits[at];
        let mut looked = false;
        let tables = RefCell::new(tables);
        let answer = {
            let look = |_: &Slot| {
                looked = true;
                before
            };
            let clock = t.clock;
            let disable = |s: &Slot, _: bool| {
                let page = (s.page >> 12) as usize;
                let (place, mut tables) = (page / TABLE, tables.borrow_mut());
                if !self.keeps_locks && place != own {
                    return self.tables[place].with(|table| self.evict(table, page, clock));
                }
                self.evict(locked(&mut tables, place), page, clock)
            };
            let lock = |owner: usize, entry: usize| {
                let (table, mut tables) = (page_of(entry) / TABLE, tables.borrow_mut());
                assert_eq!(owner, OWNER);
                if !self.keeps_locks || tables.iter().any(|t| t.0 == table) {
                    return true;
                }
                let guard = self.tables[table].try_lock();
                guard.is_some_and(|guard| {
                    tables.push((table, Box::new(guard)));
                    true
                })
            };
            let cpu = t.cpu();
            let emit = |s: &Slot| self.try_emit(cpu, s);
            // SAFETY: The page table is locked.
            unsafe { self.set.end(t, &out, &way, look, disable, lock, emit) }
        };
        self.write(t);
        if looked {
            locked(&mut tables.borrow_mut(), own).bits[at].young = false;
        }
        match answer {
            End::Gone | End::Evicted(_) => true,
            End::Chance => {
                *chances += 1;
                self.chances.fetch_add(1, SeqCst);
                false
            }
            End::Renewed => {
                self.renewed.fetch_add(1, SeqCst);
                false
            }
        }
    }

    fn sweep(&self, table: &mut Table, passed: (u64, usize)) {
        let at = page_of(passed.1) % TABLE;
        let clear = |_: &Slot| std::mem::take(&mut table.bits[at].young);
        // SAFETY: The page table is locked.
        unsafe { self.set.sweep(passed, clear) };
    }

    /// Makes the page a member, with its page table locked.
    fn admit(&self, t: &Ticket, table: &mut Table, page: usize, write: bool) {
        let a = self.admission(t.cpu(), page, u64::from(write));
        // SAFETY: The page table is locked.
        match unsafe { self.set.admit(t, &a, &self.counter) } {
            Some(_) => {
                self.admitted.fetch_add(1, SeqCst);
                assert!(t.clock >= table.evicted[page % TABLE], "stays overlap");
                self.enable(table, page, write);
            }
            None => {
                self.given_up.fetch_add(1, SeqCst);
            }
        }
    }

    /// A CPU touches a page.
    pub fn touch(&self, cpu: usize, page: usize, write: bool, how: How, time: u64) {
        let own = page / TABLE;
        if how == How::Far {
            if !self.tables[own].with(|table| is_member(table, page, write)) {
                if let Some(t) = self.set_out(cpu, time) {
                    self.settle(&t, page, write);
                }
            }
            return;
        }
        let rest = self.tables[own].with(|table| {
            if is_member(table, page, write) {
                return None;
            }
            let mut t = self.ticket(cpu, time)?;
            let mut chances = 0;
            loop {
                let tail = self.tail(&t);
                let done = match tail {
                    Tail::Nothing => true,
                    Tail::Record => {
                        self.write(&t);
                        true
                    }
                    Tail::Slow(o, e) => {
                        let place = page_of(e) / TABLE;
                        if place == own {
                            self.help(&t, o, table);
                            continue;
                        }
                        match self.tables[place].try_lock() {
                            Some(mut other) => self.help(&t, o, &mut other),
                            None => return Some((t, chances, tail)),
                        }
                        continue;
                    }
                    Tail::Member(e) => {
                        let place = page_of(e) / TABLE;
                        let mut tables: Locked<'_> = vec![(own, Box::new(&mut *table))];
                        if place != own {
                            match self.tables[place].try_lock() {
                                Some(other) => tables.push((place, Box::new(other))),
                                None => return Some((t, chances, tail)),
                            }
                        }
                        self.end(&mut t, &mut chances, tables, e)
                    }
                };
                if done {
                    break;
                }
                self.draw(&mut t);
            }
            if let Some(passed) = self.set.pass(&t) {
                let place = page_of(passed.1) / TABLE;
                if place == own {
                    self.sweep(table, passed);
                } else {
                    // The kernel does this without the lock of `page`, and looks again.
                    let other = &self.tables[place];
                    let Some(mut other) = other.try_lock() else {
                        self.set.abort(&t);
                        self.given_up.fetch_add(1, SeqCst);
                        return None;
                    };
                    self.sweep(&mut other, passed);
                }
            }
            self.admit(&t, table, page, write);
            None
        });
        if let Some((t, chances, tail)) = rest {
            self.far(t, chances, tail, page, write);
        }
    }

    fn far(&self, t: Ticket, chances: usize, tail: Tail, page: usize, write: bool) {
        let t = self.make_way(t, chances, tail);
        self.settle(&t, page, write);
    }

    /// A CPU takes a ticket.
    pub fn ticket(&self, cpu: usize, time: u64) -> Option<Ticket> {
        let by = Caller {
            cpu,
            epoch: self.epoch_of(cpu),
            time,
        };
        let t = self.set.take(by, &self.counter, |cpu| self.epoch_of(cpu))?;
        self.note(&t);
        Some(t)
    }

    fn draw(&self, t: &mut Ticket) {
        self.set.draw(t, &self.counter);
        self.note(t);
    }

    fn note(&self, t: &Ticket) {
        let numbers = [t.number.ordinal, t.clock, t.number.seq];
        self.taken.lock().unwrap().push(numbers);
    }

    /// The same, and what comes before an admission, each lock for itself: for [`Machine::settle`].
    pub fn set_out(&self, cpu: usize, time: u64) -> Option<Ticket> {
        let t = self.ticket(cpu, time)?;
        Some(self.make_way(t, 0, self.tail(&t)))
    }

    /// Numbers of the counter that the set took, and that are no ordinals.
    pub fn skipped(&self) -> u64 {
        self.counter.skipped()
    }

    /// Stays whose end was missed.
    pub fn missed(&self) -> u64 {
        self.counter.missed()
    }

    fn make_way(&self, mut t: Ticket, mut chances: usize, mut tail: Tail) -> Ticket {
        loop {
            let done = match tail {
                Tail::Nothing => true,
                Tail::Record => {
                    self.write(&t);
                    true
                }
                Tail::Slow(o, e) => {
                    self.tables[page_of(e) / TABLE].with(|other| self.help(&t, o, other));
                    tail = self.tail(&t);
                    continue;
                }
                Tail::Member(e) => {
                    let place = page_of(e) / TABLE;
                    self.tables[place].with(|other| {
                        let tables: Locked<'_> = vec![(place, Box::new(other))];
                        self.end(&mut t, &mut chances, tables, e)
                    })
                }
            };
            if done {
                break;
            }
            self.draw(&mut t);
            tail = self.tail(&t);
        }
        if let Some(passed) = self.set.pass(&t) {
            self.tables[page_of(passed.1) / TABLE].with(|other| self.sweep(other, passed));
        }
        t
    }

    /// Makes the page a member, unless it is one.
    pub fn settle(&self, t: &Ticket, page: usize, write: bool) {
        self.tables[page / TABLE].with(|table| {
            if table.enabled[page % TABLE] {
                self.set.abort(t);
                self.given_up.fetch_add(1, SeqCst);
            } else {
                self.admit(t, table, page, write);
            }
        });
    }

    /// Somebody clears a page's PTE, and the set does not get to know.
    pub fn forget(&self, page: usize) {
        self.tables[page / TABLE].with(|table| {
            self.disable(table, page);
        });
    }

    /// Somebody clears a page's PTE.
    pub fn drop_page(&self, page: usize, time: u64) {
        self.tables[page / TABLE].with(|table| {
            if table.enabled[page % TABLE] {
                let bits = self.disable(table, page);
                // SAFETY: The page table is locked.
                let closed = unsafe {
                    self.set
                        .close(self.page(page), bits, DROPPED, time, &self.counter)
                };
                assert!(closed, "an enabled page is a member");
            } else {
                // SAFETY: As above.
                unsafe { self.set.overtake(entry(page), &self.counter) };
            }
        });
    }

    /// Ends the trace: no ticket is on the way. Checks what must hold then.
    pub fn finish(&self) {
        let next = self.set.next(&self.counter);
        let clock = self.counter.next().ordinal;
        let begin = next.saturating_sub(self.set.size());
        let mut members = 0;
        for page in 0..self.words.len() {
            self.tables[page / TABLE].with(|table| {
                // SAFETY: The page table is locked.
                let word = *unsafe { self.words[page].read() };
                let is_member = word & MEMBER != 0;
                assert_eq!(is_member, table.enabled[page % TABLE], "page {page}");
                assert!(word >> 1 <= if is_member { next } else { clock });
                if !is_member {
                    return;
                }
                assert!(
                    word >> 1 >= begin,
                    "{} of {next} is still a member",
                    word >> 1
                );
                members += 1;
                let bits = self.disable(table, page);
                // SAFETY: As above.
                let closed = unsafe {
                    self.set
                        .close(self.page(page), bits, DROPPED, 0, &self.counter)
                };
                assert!(closed, "its slot is live");
            });
        }
        assert!(members <= self.set.size());
        assert_eq!(self.enabled.load(SeqCst), 0);
        for o in begin..next {
            self.set.clear(o, |s| {
                self.emit(0, s);
                true
            });
        }
        assert!(self.set.is_idle(), "a slot is not free");
        assert_eq!(self.missed(), 0);
        let records = self.records.lock().unwrap();
        let mut seqs: Vec<u64> = records.iter().map(|r| r.seq).collect();
        seqs.sort_unstable();
        let all = seqs.len();
        seqs.dedup();
        assert_eq!(seqs.len(), all, "a record is written twice: {records:?}");
        let numbers = self.numbers();
        let expected = numbers - self.given_up.load(SeqCst);
        assert_eq!(all as i64, expected, "each stay has a record");
        assert_eq!(
            numbers as u64,
            next - self.set.start(),
            "each number is accounted for"
        );
        self.are_in_order();
    }

    /// Checks the numbers of all tickets: the orders of the three agree.
    pub fn are_in_order(&self) {
        let mut taken = self.taken.lock().unwrap().clone();
        taken.sort_unstable();
        let ordinals = taken.iter().map(|n| n[0]);
        assert!(
            ordinals.eq(self.set.start()..self.set.next(&self.counter)),
            "{taken:?}"
        );
        let follows = |a: &[u64; 3], b: &[u64; 3]| a[1] < b[1] && a[2] < b[2];
        assert!(taken.is_sorted_by(follows), "the orders differ: {taken:?}");
    }

    /// What became of all numbers of the set.
    pub fn numbers(&self) -> i64 {
        let all = [&self.admitted, &self.renewed, &self.chances, &self.given_up];
        all.iter().map(|n| n.load(SeqCst)).sum()
    }
}
