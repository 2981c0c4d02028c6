//! The set against a naive model: lists of admissions.

use proptest::prelude::*;
use rust_mm_trace::evms::{
    self, Claim, Hand, Held, Memory, Reserve, Shrink, Victim, Words, END_NOW,
};
use rust_mm_trace::stay::{self, Admission, Bits, Caller, Shape, CLAIM_NS};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// What can happen to the set.
#[derive(Clone, Debug)]
enum Op {
    Touch {
        cpu: usize,
        page: Page,
        write: bool,
        /// In the same hold of the lock as the number, if it is not a member.
        at_once: bool,
    },
    Clear {
        page: Page,
    },
    /// Reclaim looks at the accessed bit, and clears it.
    Age {
        page: Page,
    },
    /// A store that the dirty bit can't tell.
    Dirty {
        page: Page,
    },
    Abort {
        cpu: usize,
    },
    Resize {
        n: usize,
    },
    /// A CPU switches to another task.
    Switch {
        cpu: usize,
    },
    /// Time passes.
    Wait {
        ns: u64,
    },
    Retire,
}

/// The words of entries, by handle. Clones have the same words.
#[derive(Clone, Default)]
struct Tables(Rc<RefCell<HashMap<usize, u64>>>);

impl Words for Tables {
    fn get(&self, entry: usize) -> u64 {
        let words = self.0.borrow();
        words.get(&(entry & !7)).copied().unwrap_or(0)
    }

    fn set(&mut self, entry: usize, word: u64) {
        if entry != 0 {
            self.0.borrow_mut().insert(entry & !7, word);
        }
    }
}

type Evms = evms::Evms<Tables>;

/// Address space and address.
type Page = (u32, u64);

/// The page table of a page: each address space has several of its own, with eight pages each.
fn table(page: Page) -> usize {
    (page.0 as usize) << 8 | (page.1 >> 15) as usize
}

/// Whether a page table of an address space can be locked. Every fifth is somebody else's for ever.
fn is_free(space: usize, table: usize) -> bool {
    table >> 8 == space && table % 5 != 0
}

/// The page with its entry in one of these page tables.
fn small(page: Page) -> stay::Page {
    let place = (page.1 >> 12) as usize & 7;
    stay::Page {
        entry: table(page) << 12 | place << 3,
        mm: page.0,
        addr: page.1,
    }
}

/// A page in a page table of the usual size.
fn at(mm: u32, addr: u64) -> stay::Page {
    let (table, place) = ((addr >> 21) as usize, (addr >> 12) as usize & 511);
    stay::Page {
        entry: ((mm as usize) << 28 | table) << 12 | place << 3,
        mm,
        addr,
    }
}

const CPUS: usize = 3;
const CAPACITY: usize = 64;
/// Second chances for one admission.
const CHANCES: usize = 4;

fn op() -> impl Strategy<Value = Op> {
    let page = (1u32..4, 0u64..24).prop_map(|(mm, page)| (mm, page << 12));
    // One CPU has most of the work.
    let cpu = prop_oneof![6 => Just(0usize), 1 => 1..CPUS];
    prop_oneof![
        24 => (cpu.clone(), page.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(cpu, page, write, at_once)| Op::Touch { cpu, page, write, at_once }),
        4 => page.clone().prop_map(|page| Op::Clear { page }),
        2 => page.clone().prop_map(|page| Op::Age { page }),
        2 => page.prop_map(|page| Op::Dirty { page }),
        1 => cpu.prop_map(|cpu| Op::Abort { cpu }),
        1 => (2usize..24).prop_map(|n| Op::Resize { n }),
        1 => (0..CPUS).prop_map(|cpu| Op::Switch { cpu }),
        1 => prop_oneof![Just(CLAIM_NS - 1), Just(CLAIM_NS)].prop_map(|ns| Op::Wait { ns }),
        2 => Just(Op::Retire),
    ]
}

/// A record: the page, what admitted it, how it ended.
#[derive(Clone, Debug, PartialEq)]
struct Stay {
    seq: u64,
    page: Page,
    cpu: usize,
    kind: u64,
    goes_on: bool,
    live: bool,
    aborted: bool,
    second: bool,
    swept: bool,
    /// Seen by others who cleared the accessed bit.
    referenced: bool,
    was_dirty: bool,
    dirtied: bool,
    again: bool,
    why: u64,
}

const WRITE: u64 = 1;
const SEEN: u64 = 3;

/// Seats or CPUs in the queue that one admission looks at.
const LOOK: usize = 8;

/// What a CPU has, besides its history.
#[derive(Clone, Default)]
struct Cpu {
    /// The epoch and the time when it asked last.
    epoch: u32,
    time: u64,
    /// Its first segment: admissions, or the newest records of renewed stays.
    held: Vec<usize>,
    /// Admissions in its seat.
    used: usize,
}

/// As the module's text says it, without a thought for speed.
struct Model {
    shape: Shape,
    stays: Vec<Stay>,
    seq: u64,
    /// Page tables: of members only.
    ptes: HashMap<Page, Bits>,
    /// The clock, and the epochs.
    time: u64,
    epochs: [u32; CPUS],
    cpus: Vec<Cpu>,
    /// Who has a seat, and who waits for one. No seats: each has a first segment.
    seats: Vec<Option<usize>>,
    queue: VecDeque<usize>,
    turn: usize,
}

/// How many CPUs have a first segment at a time; 0: each.
fn seats(shape: &Shape) -> usize {
    match shape.n {
        n if n >= 2 * shape.first * shape.cpus => 0,
        n => (n / shape.first / 8).max(1),
    }
}

impl Model {
    fn new(shape: Shape) -> Model {
        Model {
            shape,
            stays: Vec::new(),
            seq: 0,
            ptes: HashMap::new(),
            time: 0,
            epochs: [0; CPUS],
            cpus: vec![Cpu::default(); CPUS],
            seats: vec![None; seats(&shape)],
            queue: VecDeque::new(),
            turn: 0,
        }
    }

    /// Pages that one admission evicts at most.
    fn batch(&self) -> usize {
        match self.shape.clock {
            true => 1,
            false => (self.shape.batch).min(self.shape.n - stay::least(self.shape.first, CPUS) + 1),
        }
    }

    fn resize(&mut self, n: usize) {
        let before = seats(&self.shape);
        let now = seats(&Shape { n, ..self.shape });
        if before == now && self.seats.len() == now {
            return;
        }
        self.seats = vec![None; now];
        self.queue.clear();
        self.turn = 0;
        for c in &mut self.cpus {
            c.held.clear();
            c.used = 0;
        }
    }

    /// A CPU's first segment is over: it ran something else since, or has not asked.
    fn is_over(&self, cpu: usize) -> bool {
        let c = &self.cpus[cpu];
        c.epoch != self.epochs[cpu] || self.time - c.time >= CLAIM_NS
    }

    fn is_seated(&self, cpu: usize) -> bool {
        self.seats.is_empty() || self.seats.contains(&Some(cpu))
    }

    /// A CPU asks for a number.
    fn attend(&mut self, cpu: usize) {
        if self.is_over(cpu) {
            self.cpus[cpu].held.clear();
        }
        (self.cpus[cpu].epoch, self.cpus[cpu].time) = (self.epochs[cpu], self.time);
        if self.is_seated(cpu) {
            return;
        }
        if !self.queue.contains(&cpu) {
            self.queue.push_back(cpu);
        }
        for _ in 0..LOOK {
            let Some(&next) = self.queue.front() else {
                return;
            };
            if self.is_over(next) {
                self.queue.pop_front();
                continue;
            }
            let turn = self.turn;
            self.turn = (turn + 1) % self.seats.len();
            if let Some(holder) = self.seats[turn] {
                if !self.is_over(holder) && self.cpus[holder].used < 4 * self.shape.first {
                    continue;
                }
                self.cpus[holder].held.clear();
            }
            self.queue.pop_front();
            self.seats[turn] = Some(next);
            self.cpus[next].used = 0;
        }
    }

    /// Whether a record is of a page in a first segment.
    fn is_first(&self, i: usize) -> bool {
        (0..CPUS).any(|cpu| !self.is_over(cpu) && self.cpus[cpu].held.contains(&i))
    }

    /// The same, whatever the time is.
    fn is_held(&self, i: usize) -> bool {
        (0..CPUS).any(|cpu| {
            let c = &self.cpus[cpu];
            c.epoch == self.epochs[cpu] && c.held.contains(&i)
        })
    }

    fn member(&self, page: Page) -> Option<usize> {
        self.stays.iter().rposition(|s| s.live && s.page == page)
    }

    fn end(&mut self, i: usize, why: u64) {
        let bits = self
            .ptes
            .remove(&self.stays[i].page)
            .expect("a member's PTE");
        self.note(i, bits, why);
    }

    fn note(&mut self, i: usize, bits: Bits, why: u64) {
        let s = &mut self.stays[i];
        s.live = false;
        s.dirtied |= bits.dirty && !s.was_dirty;
        s.again = s.swept && (bits.young || s.referenced);
        s.why = why;
    }

    fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// The oldest of a CPU's last admissions, if it has made enough.
    fn passing(&self, cpu: usize) -> Option<usize> {
        // A renewed stay has its predecessor's place.
        let own: Vec<usize> = self.lasts(cpu);
        (own.len() == self.shape.first).then(|| own[0])
    }

    /// The last admissions of a CPU, in order; of those renewed, the newest
    /// record.
    fn lasts(&self, cpu: usize) -> Vec<usize> {
        let mut own: Vec<usize> = Vec::new();
        for (i, s) in self.stays.iter().enumerate() {
            if s.cpu != cpu || s.kind == SEEN {
                continue;
            }
            if s.goes_on {
                // A stay among the CPU's last.
                if let Some(at) = own
                    .iter()
                    .position(|&o| self.stays[o].page == s.page && self.stays[o].why == 12)
                {
                    own[at] = i;
                }
                continue;
            }
            own.push(i);
            if own.len() > self.shape.first {
                own.remove(0);
            }
        }
        own
    }

    fn renew(&mut self, i: usize, why: u64) {
        let mut s = self.stays[i].clone();
        if why == 13 {
            let bits = self.ptes[&s.page];
            self.note(
                i,
                Bits {
                    young: true,
                    ..bits
                },
                why,
            );
            self.ptes.get_mut(&s.page).expect("a member's PTE").young = false;
            s.was_dirty |= bits.dirty;
            s.kind = SEEN;
            s.goes_on = false;
            s.dirtied = false;
        } else {
            self.note(i, Bits::default(), why);
            s.goes_on = true;
        }
        s.referenced = false;
        s.seq = self.next_seq();
        s.live = true;
        for c in &mut self.cpus {
            if let Some(held) = c.held.iter_mut().find(|held| **held == i) {
                *held = self.stays.len();
            }
        }
        self.stays.push(s);
    }

    /// Makes room for one more; gives the new one's number.
    fn admit(&mut self, cpu: usize) -> usize {
        let passing = self.passing(cpu);
        self.attend(cpu);
        // The oldest has no claim any more.
        if self.cpus[cpu].held.len() == self.shape.first {
            self.cpus[cpu].held.remove(0);
        }
        let mut chances = 0;
        while let Some(tail) = self.stays.len().checked_sub(self.shape.n) {
            let s = &self.stays[tail];
            if !s.live {
                break;
            }
            if self.is_first(tail) {
                self.renew(tail, 12);
                continue;
            }
            let s = &self.stays[tail];
            let young = self.ptes[&s.page].young || s.referenced;
            if self.shape.clock && s.swept && young && chances < CHANCES {
                chances += 1;
                self.renew(tail, 13);
                continue;
            }
            self.end(tail, 0);
            let batch = self.batch();
            let (space, own) = (self.stays[tail].page.0, table(self.stays[tail].page));
            let mut tables = vec![own];
            for i in tail + 1..tail + batch {
                let s = &self.stays[i];
                let place = table(s.page);
                if !s.live || s.page.0 != space {
                    continue;
                }
                if !tables.contains(&place) {
                    if tables.len() == stay::TABLES || !is_free(space as usize, place) {
                        continue;
                    }
                    tables.push(place);
                }
                if !self.is_first(i) {
                    self.end(i, 0);
                }
            }
            break;
        }
        if let Some(p) = passing.filter(|&p| self.stays[p].live) {
            self.stays[p].second = true;
            if self.shape.again || self.shape.clock {
                self.stays[p].swept = true;
                self.stays[p].referenced = false;
                let page = self.stays[p].page;
                self.ptes.get_mut(&page).expect("a member's PTE").young = false;
            }
        }
        let seq = self.next_seq();
        self.stays.push(Stay {
            seq,
            page: (0, 0),
            cpu,
            kind: 0,
            goes_on: false,
            live: false,
            aborted: true,
            second: false,
            swept: false,
            referenced: false,
            was_dirty: false,
            dirtied: false,
            again: false,
            why: 0,
        });
        let new = self.stays.len() - 1;
        if self.is_seated(cpu) {
            self.cpus[cpu].held.push(new);
            self.cpus[cpu].used += 1;
        }
        new
    }
}

/// The set, with page tables as the kernel's.
struct Real {
    evms: Evms,
    seq: u64,
    ptes: HashMap<Page, Bits>,
    /// Whether a page was used since reclaim last looked, for all of the time.
    used: HashMap<Page, bool>,
    out: Vec<(u64, u32, u64)>,
    time: u64,
    epochs: Vec<u32>,
}

impl Real {
    fn new(evms: Evms, cpus: usize) -> Real {
        Real {
            evms,
            seq: 0,
            ptes: HashMap::new(),
            used: HashMap::new(),
            out: Vec::new(),
            time: 0,
            epochs: vec![0; cpus],
        }
    }

    fn page(&self, v: &Victim) -> Page {
        (v.owner as u32, v.addr)
    }

    /// Members that an audit finds, of an address space or of all.
    fn found(&self, mm: u32) -> usize {
        let (mut at, mut found) = (0, 0);
        while at < self.evms.head() {
            let (next, member) = self.evms.seek(at, u64::MAX, mm, 5);
            assert!(next > at);
            at = next;
            if let Some(v) = member {
                let (id, frame, same) = self.evms.member(v.ordinal).expect("a member");
                assert!((mm == 0 || id == mm) && same == v);
                let page = stay::Page {
                    entry: v.entry,
                    mm: id,
                    addr: v.addr,
                };
                assert_eq!(self.evms.frame(page), Some(frame));
                assert!(self.ptes.contains_key(&self.page(&v)));
                found += 1;
            }
        }
        found
    }

    fn take(&mut self, v: &Victim) -> Bits {
        let page = self.page(v);
        self.ptes.remove(&page).expect("a member's PTE")
    }

    fn retire(&mut self, all: bool) {
        let out = &mut self.out;
        self.evms.retire(all, |s| {
            out.push((s.seq, s.mm, s.page));
            true
        });
    }

    fn evict(&mut self, v: &Victim, why: u32, end: u64) {
        let bits = self.take(v);
        let used = self.used[&self.page(v)];
        assert!(self.evms.evict(v.ordinal, why, 0, end, |young| {
            assert_eq!(young || bits.young, used, "others can see that it was used");
            bits
        }));
        assert!(!self.evms.evict(v.ordinal, why, 0, end, |_| unreachable!()));
    }

    /// The same for an admission, with its batch.
    fn evict_batch(&mut self, v: &Victim, end: u64) {
        let (ptes, used, epochs) = (&mut self.ptes, &self.used, &self.epochs);
        let mut first = true;
        let was_member = self.evms.evict_batch(
            v.ordinal,
            0,
            self.time,
            end,
            |cpu| epochs[cpu],
            |owner, entry| is_free(owner, entry >> 12),
            |addr, young| {
                assert!(!std::mem::take(&mut first) || addr == v.addr);
                let page = (v.owner as u32, addr);
                let bits = ptes.remove(&page).expect("a member's PTE");
                assert_eq!(young || bits.young, used[&page]);
                bits
            },
        );
        assert!(was_member);
    }

    fn reserve(&mut self, cpu: usize) -> u64 {
        for chances in 0.. {
            self.retire(false);
            let (seq, epochs) = (&mut self.seq, &self.epochs);
            let by = Caller {
                cpu,
                epoch: epochs[cpu],
                time: self.time,
            };
            let answer = self.evms.reserve(
                by,
                |cpu| epochs[cpu],
                || {
                    *seq += 1;
                    *seq
                },
            );
            match answer {
                Reserve::Full => panic!("no room after retiring"),
                Reserve::Hand(v) => {
                    let page = self.page(&v);
                    let used = self.used[&page];
                    let (seq, evms) = (&mut self.seq, &mut self.evms);
                    let pte = std::cell::Cell::new(self.ptes[&page]);
                    let hand = evms.hand(
                        v.ordinal,
                        chances < CHANCES,
                        0,
                        || {
                            *seq += 1;
                            *seq
                        },
                        || {
                            let old = pte.get();
                            pte.set(Bits {
                                young: false,
                                ..old
                            });
                            old
                        },
                        |young| {
                            assert_eq!(young || pte.get().young, used);
                            pte.get()
                        },
                    );
                    match hand {
                        Hand::Chance => {
                            self.ptes.insert(page, pte.get());
                        }
                        Hand::Evicted => {
                            self.ptes.remove(&page);
                        }
                        Hand::Gone | Hand::Full => panic!("{hand:?}"),
                    }
                }
                Reserve::Go {
                    ordinal,
                    victim,
                    passed,
                } => {
                    match victim {
                        Some(v) if self.evms.batch() > 1 => self.evict_batch(&v, ordinal),
                        Some(v) => self.evict(&v, 0, ordinal),
                        None => {}
                    }
                    if let Some(v) = passed {
                        let page = self.page(&v);
                        // It may have been in the batch.
                        let pte = self.ptes.get_mut(&page);
                        let member = pte.is_some();
                        let flush = self.evms.sweep(v.ordinal, || {
                            std::mem::take(&mut pte.expect("a member's PTE").young)
                        });
                        assert_eq!(flush, member);
                    }
                    return ordinal;
                }
            }
        }
        unreachable!()
    }
}

fn new(shape: &Shape, capacity: usize, backlog: usize) -> Evms {
    made(shape, capacity, backlog).expect("sizes fit")
}

fn made(shape: &Shape, capacity: usize, backlog: usize) -> Option<Evms> {
    over(shape, capacity, backlog, Tables::default())
}

fn over(shape: &Shape, capacity: usize, backlog: usize, words: Tables) -> Option<Evms> {
    let memory = Memory {
        slots: vec![Held::EMPTY; evms::slots_for(capacity, backlog)],
        firsts: vec![0; stay::firsts_for(shape)],
        claims: vec![Claim::NONE; shape.cpus],
        seats: vec![0; 2 * shape.cpus],
    };
    Evms::new(shape, memory, words, 0)
}

/// A CPU that nothing has switched, at a time when nothing has expired.
fn by(cpu: usize) -> Caller {
    Caller {
        cpu,
        epoch: 0,
        time: 0,
    }
}

/// Nothing has switched.
fn steady(_: usize) -> u32 {
    0
}

fn shapes() -> impl Strategy<Value = Shape> {
    let batch = prop_oneof![Just(1usize), 1usize..20];
    (1usize..4, 0usize..20, any::<bool>(), any::<bool>(), batch).prop_map(
        |(first, more, clock, again, batch)| Shape {
            n: stay::least(first, CPUS) + more,
            first,
            cpus: CPUS,
            clock,
            again,
            batch: batch.min(more + 1),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn is_its_model(shape in shapes(), ops in prop::collection::vec(op(), 1..400)) {
        let mut real = Real::new(new(&shape, CAPACITY, 8), CPUS);
        let mut model = Model::new(shape);
        for op in ops {
            match op {
                Op::Touch { page, write, .. } if model.member(page).is_some() => {
                    prop_assert!(real.evms.contains(small(page)));
                    for ptes in [&mut model.ptes, &mut real.ptes] {
                        let pte = ptes.get_mut(&page).expect("a member's PTE");
                        pte.young = true;
                        pte.dirty |= write;
                    }
                    real.used.insert(page, true);
                }
                Op::Touch { cpu, page, write, at_once } => {
                    let i = model.admit(cpu);
                    let s = &mut model.stays[i];
                    *s = Stay {
                        page,
                        live: true,
                        aborted: false,
                        kind: u64::from(write),
                        dirtied: write,
                        ..s.clone()
                    };
                    let ordinal = real.reserve(cpu);
                    prop_assert_eq!(ordinal, i as u64);
                    let flags = if write { WRITE | 0x8 } else { 0 };
                    let admission = Admission {
                        owner: page.0 as usize,
                        entry: small(page).entry,
                        page: page.1 | flags,
                        mm: page.0,
                        tid_cpu: 0,
                        pfn: 0,
                        was_dirty: false,
                        vtime: 0,
                        address: 0,
                    };
                    let record = if at_once {
                        real.evms.admit_last(ordinal, &admission)
                    } else {
                        real.evms.admit(ordinal, &admission)
                    };
                    prop_assert_eq!(record, Some(model.stays[i].seq));
                    for ptes in [&mut model.ptes, &mut real.ptes] {
                        ptes.insert(page, Bits { young: true, dirty: write });
                    }
                    real.used.insert(page, true);
                }
                Op::Abort { cpu } => {
                    let i = model.admit(cpu);
                    let ordinal = real.reserve(cpu);
                    prop_assert_eq!(ordinal, i as u64);
                    real.evms.abort(ordinal);
                }
                Op::Clear { page } => {
                    let i = model.member(page);
                    let bits = real.ptes.remove(&page).unwrap_or_default();
                    prop_assert_eq!(real.evms.close(small(page), bits, 2, 0), i.is_some());
                    if let Some(i) = i {
                        model.end(i, 2);
                    }
                }
                Op::Age { page } => {
                    let young = real.ptes.get_mut(&page).map(|pte| std::mem::take(&mut pte.young));
                    if let Some(young) = young {
                        let used = real.used.insert(page, false);
                        prop_assert_eq!(Some(real.evms.aged(small(page), young)), used);
                    }
                    if let Some(i) = model.member(page) {
                        let pte = model.ptes.get_mut(&page).expect("a member's PTE");
                        model.stays[i].referenced |= std::mem::take(&mut pte.young);
                    }
                }
                Op::Dirty { page } => {
                    let i = model.member(page);
                    prop_assert_eq!(real.evms.dirtied(small(page)), i.is_some());
                    if let Some(i) = i {
                        model.stays[i].dirtied = true;
                    }
                }
                Op::Resize { n } => {
                    let n = n.max(stay::least(shape.first, CPUS));
                    model.resize(n);
                    if n >= model.shape.n {
                        prop_assert!(real.evms.grow(n as u64));
                        model.shape.n = n;
                        continue;
                    }
                    // As many as leave, and not one more.
                    while model.shape.n > n {
                        let Some(tail) = model.stays.len().checked_sub(model.shape.n) else {
                            model.shape.n -= 1;
                            continue;
                        };
                        if model.stays[tail].live && model.is_held(tail) {
                            model.renew(tail, 12);
                            continue;
                        }
                        if model.stays[tail].live {
                            model.end(tail, 0);
                        }
                        model.shape.n -= 1;
                    }
                    loop {
                        real.retire(false);
                        let (seq, epochs) = (&mut real.seq, &real.epochs);
                        match real.evms.shrink(n as u64, 0, |cpu| epochs[cpu], || { *seq += 1; *seq }) {
                            Shrink::Done => break,
                            Shrink::Evict(v) => real.evict_batch(&v, END_NOW),
                            other => return Err(TestCaseError::fail(format!("{other:?}"))),
                        }
                    }
                }
                Op::Switch { cpu } => {
                    for epochs in [&mut real.epochs[..], &mut model.epochs[..]] {
                        epochs[cpu] += 1;
                    }
                }
                Op::Wait { ns } => {
                    real.time += ns;
                    model.time += ns;
                }
                Op::Retire => real.retire(false),
            }
            prop_assert_eq!(&real.ptes, &model.ptes);
            prop_assert_eq!(real.evms.live(), model.ptes.len() as u64);
            prop_assert!(real.evms.live() <= real.evms.size());
            prop_assert_eq!(real.evms.size(), model.shape.n as u64);
            prop_assert_eq!(real.evms.batch(), model.batch() as u64);
            let f = real.evms.figures(|cpu| real.epochs[cpu]);
            prop_assert_eq!((f.live, f.reserved, f.wrong), (real.evms.live(), 0, 0), "{:?}", f);
            let firsts = (0..model.stays.len()).filter(|&i| model.stays[i].live && model.is_held(i));
            prop_assert_eq!(f.first, firsts.count() as u64);
            prop_assert_eq!(real.found(0), real.ptes.len());
            // What an instruction needs is still there.
            for cpu in (0..CPUS).filter(|&cpu| !model.is_over(cpu)) {
                for &i in &model.cpus[cpu].held {
                    prop_assert!(model.stays[i].aborted || model.stays[i].why == 2
                        || model.stays[i].live, "CPU {cpu} lost {:?}", model.stays[i]);
                }
            }
        }
        // The end of a trace: all members are disabled, all records leave.
        let mut from = 0;
        while from < real.evms.head() {
            let (at, v) = real.evms.seek(from, u64::MAX, 0, 5);
            if let Some(v) = v {
                real.evict(&v, 7, END_NOW);
            }
            from = at;
        }
        for i in 0..model.stays.len() {
            if model.stays[i].live {
                model.end(i, 7);
            }
        }
        real.retire(true);
        let want: Vec<_> = model
            .stays
            .iter()
            .filter(|s| !s.aborted)
            .map(|s| {
                let flags = s.kind
                    | u64::from(s.dirtied) << 3
                    | u64::from(s.again) << 4
                    | s.why << 5
                    | u64::from(s.goes_on) << 9;
                (s.seq, s.page.0, s.page.1 | flags)
            })
            .collect();
        prop_assert_eq!(real.out, want);
    }
}

/// A set of four with as many pages, the numbers that they got, and one more.
fn audited(pages: [u64; 4]) -> Evms {
    audited_over(Tables::default(), pages)
}

/// The same over these words.
fn audited_over(words: Tables, pages: [u64; 4]) -> Evms {
    let shape = Shape {
        n: 4,
        first: 1,
        cpus: 1,
        clock: false,
        again: true,
        batch: 1,
    };
    let mut evms = over(&shape, 4, 4, words).expect("sizes fit");
    for page in pages {
        let Reserve::Go { ordinal, .. } = evms.reserve(by(0), steady, || 0) else {
            panic!("no room");
        };
        evms.admit(
            ordinal,
            &Admission {
                owner: 1,
                entry: at(3, page << 12).entry,
                page: page << 12,
                mm: 3,
                tid_cpu: 0,
                pfn: page as u32,
                was_dirty: false,
                vtime: 0,
                address: 0,
            },
        );
    }
    evms
}

#[test]
fn figures_contradict_each_other() {
    assert_eq!(audited([1, 2, 3, 4]).figures(steady).wrong, 0);
    // A page that became a member again though its stay was not closed.
    let evms = audited([1, 2, 3, 1]);
    assert_eq!((evms.missed(), evms.live()), (1, 3));
    assert_eq!(evms.figures(steady).wrong, 0);
    // A member whose word does not lead to it.
    for word in [0, 7 << 1, 7 << 1 | stay::MEMBER] {
        let mut words = Tables::default();
        let evms = audited_over(words.clone(), [1, 2, 3, 4]);
        words.set(at(3, 2 << 12).entry, word);
        assert_eq!(evms.figures(steady).wrong, 1);
    }
    // A victim is a member until it is disabled, but no longer than its admission
    // is under way.
    let mut evms = audited([1, 2, 3, 4]);
    let Reserve::Go {
        ordinal, victim, ..
    } = evms.reserve(by(0), steady, || 0)
    else {
        panic!("no room");
    };
    assert!(victim.is_some());
    assert_eq!(
        (evms.figures(steady).reserved, evms.figures(steady).wrong),
        (1, 0)
    );
    evms.abort(ordinal);
    assert_eq!(
        (evms.figures(steady).reserved, evms.figures(steady).wrong),
        (0, 1)
    );
}

#[test]
fn an_audit_looks_at_one_address_space() {
    let evms = audited([1, 2, 3, 4]);
    assert_eq!(evms.seek(0, u64::MAX, 3, 1).0, 1);
    assert_eq!(evms.seek(0, u64::MAX, 4, 9), (4, None));
    assert_eq!(evms.seek(0, 2, 4, 9), (2, None));
    assert_eq!(
        (evms.frame(at(3, 4 << 12)), evms.frame(at(4, 4 << 12))),
        (Some(4), None)
    );
}

const ONE: Shape = Shape {
    n: 2,
    first: 2,
    cpus: 1,
    clock: false,
    again: false,
    batch: 1,
};

fn page(i: u64) -> Admission {
    Admission {
        owner: OWNER,
        entry: at(1, i << 12).entry,
        page: i << 12,
        mm: 1,
        tid_cpu: 0,
        pfn: 0,
        was_dirty: false,
        vtime: 0,
        address: 0,
    }
}

/// The owner of pages, a page table that is another's, and one that is never free.
const OWNER: usize = 1;
const FOREIGN: usize = 8;
const BUSY: usize = 9;
/// Whether a page table of an owner can be locked.
const MINE: fn(usize, usize) -> bool = |owner, entry| match entry >> 12 {
    BUSY => false,
    FOREIGN => owner != OWNER,
    _ => owner == OWNER,
};

/// A set on one CPU that has been filled, in which each page that is admitted is a new one.
fn filled(n: usize, batch: usize) -> Evms {
    let shape = Shape { n, batch, ..ONE };
    let mut evms = new(&shape, 4 * n, 1024);
    for i in 0..n as u64 {
        assert_eq!(admit(&mut evms, &page(i)), (0, 0));
    }
    evms
}

/// Admits a page: evictions that need a flush, and the pages that they end.
fn admit(evms: &mut Evms, a: &Admission) -> (usize, usize) {
    let Reserve::Go {
        ordinal, victim, ..
    } = evms.reserve(by(0), steady, || 0)
    else {
        panic!("no room");
    };
    let (mut flushes, mut pages) = (0, 0);
    if let Some(v) = victim {
        flushes += 1;
        assert!(
            evms.evict_batch(v.ordinal, 0, 0, ordinal, steady, MINE, |_, _| {
                pages += 1;
                Bits::default()
            })
        );
    }
    assert!(evms.admit(ordinal, a).is_some());
    evms.retire(false, |_| true);
    (flushes, pages)
}

/// One flush for each batch, and never less in the set than the batch allows.
#[test]
fn a_batch_needs_one_flush() {
    const N: usize = 64;
    for batch in [1, 2, 8, 17, 63] {
        let mut evms = filled(N, batch);
        let (mut flushes, mut pages) = (0, 0);
        for i in 0..10 * batch as u64 {
            // All in one page table.
            let (f, p) = admit(&mut evms, &page((N as u64 + i) % 512));
            (flushes, pages) = (flushes + f, pages + p);
            let live = evms.live() as usize;
            assert!((N - batch + 1..=N).contains(&live), "{live}");
            assert_eq!(evms.figures(steady).wrong, 0);
        }
        assert_eq!((flushes, pages), (10, 10 * batch), "K={batch}");
    }
}

/// Of the members that come after a victim, those of other address spaces stay, and those of page
/// tables that are not free, or too many.
#[test]
fn a_batch_is_of_a_few_page_tables() {
    let other = |i: u64| match i {
        1 => Admission {
            owner: 9,
            entry: FOREIGN << 12 | 8,
            ..page(i)
        },
        2 => Admission {
            entry: BUSY << 12 | 16,
            ..page(i)
        },
        3..=8 => Admission {
            // Two pages of one page table, and four of others.
            entry: (19 + (i as usize).max(4)) << 12 | (i as usize) << 3,
            ..page(i)
        },
        _ => page(i),
    };
    let shape = Shape {
        n: 12,
        batch: 11,
        ..ONE
    };
    let mut evms = new(&shape, 12, 64);
    for i in 0..12 {
        admit(&mut evms, &other(i));
    }
    // 0, 3, 4, 5, 6, 9 and 10. There is no room for the page tables of 7 and 8.
    assert_eq!(admit(&mut evms, &page(12)), (1, 7));
    let is_member = |evms: &Evms, i: u64| {
        let entry = other(i).entry;
        evms.contains(stay::Page {
            entry,
            ..at(1, i << 12)
        })
    };
    let stay: Vec<_> = (0..13).filter(|i| is_member(&evms, *i)).collect();
    assert_eq!(stay, [1, 2, 7, 8, 11, 12]);
    // Their turn comes. With 7, 8 goes.
    assert_eq!(admit(&mut evms, &page(13)), (1, 1));
    assert_eq!(admit(&mut evms, &page(14)), (1, 5));
    for i in 15..19 {
        assert_eq!(admit(&mut evms, &page(i)).0, 0, "{i}");
    }
}

/// What comes after the admission that a batch makes room for is not in it, nor are the last ones
/// before, though the set has become larger meanwhile.
#[test]
fn a_batch_ends_before_its_admission() {
    let mut evms = filled(64, 60);
    while let Shrink::Evict(v) = evms.shrink(4, 0, steady, || 0) {
        assert!(evms.evict(v.ordinal, 0, 0, END_NOW, |_| Bits::default()));
    }
    assert_eq!((evms.size(), evms.batch()), (4, 3));
    let Reserve::Go {
        ordinal, victim, ..
    } = evms.reserve(by(0), steady, || 0)
    else {
        panic!("no room");
    };
    let victim = victim.expect("the set is full");
    assert!(evms.grow(64));
    assert_eq!(evms.batch(), 60);
    for i in 100..120 {
        assert_eq!(admit(&mut evms, &page(i)), (0, 0));
    }
    let before = evms.live();
    let mut gone = Vec::new();
    assert!(
        evms.evict_batch(victim.ordinal, 0, 0, ordinal, steady, MINE, |addr, _| {
            gone.push(addr >> 12);
            Bits::default()
        })
    );
    // The smallest set has the admission and the page before it.
    assert_eq!(gone, [60, 61, 62]);
    assert_eq!(evms.live(), before - 3);
    assert!((100..120).all(|i| evms.contains(at(1, i << 12))));
    // A victim whose stay has ended takes nothing with it.
    let end = evms.head();
    assert!(!evms.evict_batch(
        victim.ordinal,
        0,
        0,
        end,
        steady,
        MINE,
        |_, _| unreachable!()
    ));
}

/// What makes room for no admission goes alone, whatever comes after it.
#[test]
fn what_ends_now_has_no_batch() {
    let mut evms = filled(64, 8);
    let Shrink::Evict(v) = evms.shrink(63, 0, steady, || 0) else {
        panic!("the set is full");
    };
    let mut gone = Vec::new();
    let disable = |addr: u64, _| {
        gone.push(addr >> 12);
        Bits::default()
    };
    assert!(evms.evict_batch(v.ordinal, 0, 0, END_NOW, steady, MINE, disable));
    assert_eq!((gone, evms.live()), (vec![0], 63));
    assert_eq!(evms.figures(steady).wrong, 0);
    // The control: a number ends a batch.
    assert_eq!(evms.shrink(63, 0, steady, || 0), Shrink::Done);
    assert_eq!(admit(&mut evms, &page(64)), (1, 8));
}

/// What has a number is admitted once, also in the same hold of the lock, whatever became of the
/// page before its number.
#[test]
fn a_number_is_used_once() {
    let mut evms = filled(8, 1);
    assert!(evms.close(at(1, 5 << 12), Bits::default(), 1, 0));
    evms.overtake_all();
    let Reserve::Go {
        ordinal, victim, ..
    } = evms.reserve(by(0), steady, || 9)
    else {
        panic!("no room");
    };
    let victim = victim.expect("the set is full");
    // It makes room for this number, and is of the same page table.
    let disable = |_, _| Bits::default();
    assert!(evms.evict_batch(victim.ordinal, 0, 0, ordinal, steady, MINE, disable));
    assert_eq!(evms.admit_last(ordinal, &page(5)), Some(9));
    assert_eq!(evms.admit_last(ordinal, &page(16)), None);
    assert!(evms.contains(at(1, 5 << 12)) && !evms.contains(at(1, 16 << 12)));
    assert_eq!((evms.live(), evms.figures(steady).wrong), (7, 0));
}

/// What a batch may be.
#[test]
fn a_batch_leaves_the_least_set() {
    assert_eq!(stay::batch_max(64, 16, 4), 33);
    assert_eq!(stay::batch_max(32, 16, 4), 1);
    assert_eq!(stay::batch_max(16, 16, 1), 1);
    let of = |batch, clock| Shape {
        n: 8,
        first: 2,
        cpus: 2,
        clock,
        again: false,
        batch,
    };
    assert_eq!(new(&of(5, false), 8, 8).batch(), 5);
    assert_eq!(new(&of(5, true), 8, 8).batch(), 1);
    for batch in [0, 6] {
        assert!(made(&of(batch, false), 8, 8).is_none());
    }
}

/// No call looks at all of a large set, for the caller holds a lock meanwhile.
#[test]
fn a_large_set_shrinks_in_steps() {
    const N: u64 = 2000;
    let shape = Shape {
        n: N as usize,
        ..ONE
    };
    let mut evms = new(&shape, N as usize, N as usize);
    for i in 0..N {
        let Reserve::Go { ordinal, .. } = evms.reserve(by(0), steady, || i) else {
            panic!("no room");
        };
        evms.admit(ordinal, &page(i));
        assert!(evms.close(at(1, i << 12), Bits::default(), 0, i));
    }
    let mut size = N;
    while evms.shrink(2, 0, steady, || 0) == Shrink::More {
        assert!((1..=256).contains(&(size - evms.size())));
        size = evms.size();
    }
    assert_eq!(
        (evms.size(), evms.shrink(2, 0, steady, || 0)),
        (2, Shrink::Done)
    );
}

#[test]
fn a_full_backlog_refuses_instead_of_losing() {
    let mut evms = new(&ONE, 2, 2);
    let mut go = 0;
    for i in 0..10u64 {
        if let Reserve::Go {
            ordinal, victim, ..
        } = evms.reserve(by(0), steady, || i)
        {
            if let Some(v) = victim {
                assert!(evms.evict(v.ordinal, 0, i, ordinal, |_| Bits::default()));
            }
            evms.admit(ordinal, &page(i));
            go += 1;
        }
    }
    assert_eq!(go, 4, "as many as there are slots");
    let mut records = Vec::new();
    evms.retire(false, |s| {
        records.push(s.page >> 12);
        true
    });
    assert_eq!(records, [0, 1], "those that left the set");
    assert!(matches!(
        evms.reserve(by(0), steady, || 11),
        Reserve::Go { .. }
    ));
}

#[test]
fn a_victim_in_flight_is_waited_for() {
    let mut evms = new(&ONE, 2, 2);
    for seq in 1..=2 {
        assert!(matches!(
            evms.reserve(by(0), steady, || seq),
            Reserve::Go { .. }
        ));
    }
    assert_eq!(evms.reserve(by(0), steady, || 3), Reserve::Full);
}

/// What the hand of the clock leaves enabled is what was referenced.
#[test]
fn the_clock_keeps_what_is_referenced() {
    let shape = Shape {
        n: 4,
        first: 1,
        cpus: 1,
        clock: true,
        again: false,
        batch: 1,
    };
    let mut real = Real::new(new(&shape, 4, 8), 1);
    // Page 0 is used all the time, the others once.
    for i in 0..40u64 {
        if let Some(pte) = real.ptes.get_mut(&(1, 0)) {
            pte.young = true;
            if i == 0 {
                continue;
            }
        }
        let ordinal = real.reserve(0);
        real.evms.admit(ordinal, &page(i));
        let young = Bits {
            young: true,
            dirty: false,
        };
        real.ptes.insert((1, i << 12), young);
        real.used.insert((1, i << 12), true);
    }
    assert!(real.evms.contains(at(1, 0)));
    assert_eq!(real.evms.chances(), 12, "once in each turn");
}

/// An admission is numbered before its page is enabled. What became of the page on
/// another CPU in between has greater numbers, and would be told after it.
#[test]
fn an_admission_that_was_overtaken_is_given_up() {
    let shape = Shape {
        n: 8,
        first: 2,
        cpus: 2,
        ..ONE
    };
    let reserve = |evms: &mut Evms, cpu| match evms.reserve(by(cpu), steady, || 0) {
        Reserve::Go { ordinal, .. } => ordinal,
        other => panic!("{other:?}"),
    };
    let close =
        |evms: &mut Evms, i: u64| assert!(evms.close(at(1, i << 12), Bits::default(), 1, 0));
    let mut evms = new(&shape, 8, 8);

    // Another CPU's stay of the page, from before the reservation or after it.
    for before in [true, false] {
        let (late, other) = if before {
            let other = reserve(&mut evms, 1);
            (reserve(&mut evms, 0), other)
        } else {
            (reserve(&mut evms, 0), reserve(&mut evms, 1))
        };
        assert!(evms.admit(other, &page(5)).is_some());
        close(&mut evms, 5);
        assert_eq!(evms.admit(late, &page(5)), None);
        evms.abort(late);
        // Next time it is admitted.
        let again = reserve(&mut evms, 0);
        assert!(evms.admit(again, &page(5)).is_some());
        close(&mut evms, 5);
    }

    // Other pages do not matter, nor what was closed before the reservation.
    let mut evms = new(&shape, 8, 8);
    let other = reserve(&mut evms, 1);
    evms.admit(other, &page(6));
    let late = reserve(&mut evms, 0);
    close(&mut evms, 6);
    assert!(evms.admit(late, &page(5)).is_some());
    let next = reserve(&mut evms, 0);
    assert!(evms.admit(next, &page(6)).is_some());

    // A page that was dropped without having been a member: what has an equal PTE is another.
    close(&mut evms, 5);
    let late = reserve(&mut evms, 0);
    evms.overtake(at(1, 5 << 12).entry);
    assert_eq!(evms.admit(late, &page(5)), None);
    evms.abort(late);
    let again = reserve(&mut evms, 0);
    assert!(evms.admit(again, &page(5)).is_some());

    // A page that was dropped before the reservation, whose event has a greater number: the
    // admission may have seen it. So all that have a number are given up.
    close(&mut evms, 5);
    let late = reserve(&mut evms, 0);
    evms.overtake_all();
    assert_eq!(evms.admit(late, &page(5)), None);
    evms.abort(late);
    let again = reserve(&mut evms, 0);
    assert!(evms.admit(again, &page(5)).is_some());
    close(&mut evms, 5);
    // What is shut stays so.
    let member = reserve(&mut evms, 0);
    assert!(evms.admit(member, &page(5)).is_some());
    evms.shut();
    evms.overtake_all();
    close(&mut evms, 5);
    let late = reserve(&mut evms, 0);
    assert_eq!(evms.admit(late, &page(5)), None);
    evms.abort(late);
    evms.open();

    // The control.
    evms.disorder();
    let late = reserve(&mut evms, 0);
    close(&mut evms, 6);
    assert!(evms.admit(late, &page(6)).is_some());
}

/// A machine whose CPUs run instructions that need some pages each, all at the same time.
struct Machine {
    real: Real,
    /// What each runs, and the instructions that it has finished.
    needs: Vec<Vec<u64>>,
    done: Vec<usize>,
    next: u64,
    renewed: u64,
}

impl Machine {
    fn new(shape: Shape) -> Machine {
        Machine {
            real: Real::new(new(&shape, 4 * shape.n, 1024), shape.cpus),
            needs: vec![Vec::new(); shape.cpus],
            done: vec![0; shape.cpus],
            next: 0,
            renewed: 0,
        }
    }

    /// A CPU tries its instruction, which faults on the first page that is not enabled. Each
    /// instruction is on `pages` new ones.
    fn step(&mut self, cpu: usize, pages: usize) {
        if self.needs[cpu].is_empty() {
            self.needs[cpu] = (self.next..).take(pages).collect();
            self.next += pages as u64;
        }
        let evms = &self.real.evms;
        let missing = |p: &&u64| !evms.contains(at(1, **p << 12));
        match self.needs[cpu].iter().find(missing).copied() {
            None => {
                self.needs[cpu].clear();
                self.done[cpu] += 1;
            }
            Some(p) => {
                let ordinal = self.real.reserve(cpu);
                self.real.evms.admit(ordinal, &page(p));
                self.real.ptes.insert((1, p << 12), Bits::default());
                self.real.used.insert((1, p << 12), false);
            }
        }
        if self.real.evms.head() % 64 == 0 {
            let f = self.real.evms.figures(|cpu| self.real.epochs[cpu]);
            assert_eq!(f.wrong, 0, "{f:?}");
        }
        self.renewed = self.real.evms.renewed();
    }
}

fn many(n: usize, cpus: usize) -> Shape {
    Shape {
        n,
        first: 16,
        cpus,
        clock: false,
        again: false,
        batch: 1,
    }
}

/// Instructions that the CPU with the fewest has finished, after so many rounds in which
/// each CPU has one fault, and the last one only now and then.
fn progress(n: usize, cpus: usize, rounds: usize, turns: bool) -> usize {
    let mut m = Machine::new(many(n, cpus));
    if !turns {
        m.real.evms.keep_seats();
    }
    for round in 0..rounds {
        m.real.time += 1000;
        for cpu in 0..cpus {
            if cpu + 1 < cpus || round % 5 == 0 {
                m.step(cpu, 16);
            }
        }
    }
    m.done.into_iter().min().unwrap_or(0)
}

/// Each CPU gets on, whatever N is, though all of them need 16 pages at a time.
#[test]
fn all_cpus_get_on_in_a_small_set() {
    for (n, cpus, rounds) in [
        (32, 2, 400),
        (32, 64, 12_000),
        (64, 8, 2_000),
        (512, 64, 4_000),
    ] {
        let done = progress(n, cpus, rounds, true);
        println!("N={n}, {cpus} CPUs: {done} instructions at least");
        assert!(done > 0, "N={n}, {cpus} CPUs");
    }
    // The control: without turns, it is the same CPUs that get on.
    for (n, cpus, rounds) in [(32, 2, 400), (64, 8, 2_000)] {
        assert_eq!(progress(n, cpus, rounds, false), 0, "N={n}, {cpus} CPUs");
    }
}

/// Records of renewals among 100, while 4 CPUs are busy and the others idle after 20
/// admissions each.
fn idle_share(n: usize, cpus: usize, how: impl Fn(&mut Machine, usize)) -> u64 {
    let mut m = Machine::new(many(n, cpus));
    for cpu in 4..cpus {
        for _ in 0..20 {
            m.step(cpu, 1);
        }
        how(&mut m, cpu);
    }
    let begin = m.real.evms.head();
    for _ in 0..4000 {
        for cpu in 0..4 {
            m.step(cpu, 1);
        }
    }
    100 * m.renewed / (m.real.evms.head() - begin)
}

/// What an idle CPU was last to touch goes as other pages do.
#[test]
fn idle_cpus_keep_no_pages() {
    for (n, cpus) in [(64, 8), (512, 64), (2048, 64)] {
        // It switches to the idle task; or nothing happens there for long.
        let switched = idle_share(n, cpus, |m, cpu| m.real.epochs[cpu] += 1);
        let expired = idle_share(n, cpus, |m, _| m.real.time += CLAIM_NS);
        assert_eq!((switched, expired), (0, 0), "N={n}, {cpus} CPUs");
    }
    // The control.
    let kept = idle_share(2048, 64, |m, cpu| {
        m.real.evms.keep_firsts();
        m.real.epochs[cpu] += 1;
    });
    assert!(kept > 20, "{kept} %");
}

/// The least set, and the seats of small ones.
#[test]
fn the_least_set_does_not_depend_on_possible_cpus() {
    for cpus in [2, 8, 64, 1024] {
        assert_eq!(stay::least(16, cpus), 32);
        let mut m = Machine::new(many(32, cpus));
        for cpu in 0..cpus {
            m.step(cpu, 1);
            m.step(cpu, 1);
        }
        assert_eq!(m.done, vec![1; cpus]);
    }
    assert_eq!(stay::least(16, 1), 16);
}
