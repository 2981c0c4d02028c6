//! The set against a naive model: lists of admissions.

use proptest::prelude::*;
use rust_mm_trace::evms::{Admission, Bits, Evms, Hand, Reserve, Shape, Shrink, Slot, Victim};
use std::collections::HashMap;

/// What can happen to the set.
#[derive(Clone, Debug)]
enum Op {
    Touch {
        cpu: usize,
        page: Page,
        write: bool,
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
    Retire,
}

/// Address space and address.
type Page = (u32, u64);

const CPUS: usize = 3;
const CAPACITY: usize = 64;
/// Second chances for one admission.
const CHANCES: usize = 4;

fn op() -> impl Strategy<Value = Op> {
    let page = (1u32..4, 0u64..24).prop_map(|(mm, page)| (mm, page << 12));
    // One CPU has most of the work.
    let cpu = prop_oneof![6 => Just(0usize), 1 => 1..CPUS];
    prop_oneof![
        24 => (cpu.clone(), page.clone(), any::<bool>())
            .prop_map(|(cpu, page, write)| Op::Touch { cpu, page, write }),
        4 => page.clone().prop_map(|page| Op::Clear { page }),
        2 => page.clone().prop_map(|page| Op::Age { page }),
        2 => page.prop_map(|page| Op::Dirty { page }),
        1 => cpu.prop_map(|cpu| Op::Abort { cpu }),
        1 => (6usize..24).prop_map(|n| Op::Resize { n }),
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

/// As the module's text says it, without a thought for speed.
struct Model {
    shape: Shape,
    stays: Vec<Stay>,
    seq: u64,
    /// Page tables: of members only.
    ptes: HashMap<Page, Bits>,
}

impl Model {
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

    /// The oldest of a CPU's first segment, if that is full.
    fn passing(&self, cpu: usize) -> Option<usize> {
        // A renewed stay has its predecessor's place.
        let own: Vec<usize> = self.firsts(cpu);
        (own.len() == self.shape.first).then(|| own[0])
    }

    /// The last admissions of a CPU, in order; of those renewed, the newest
    /// record.
    fn firsts(&self, cpu: usize) -> Vec<usize> {
        let mut own: Vec<usize> = Vec::new();
        for (i, s) in self.stays.iter().enumerate() {
            if s.cpu != cpu || s.kind == SEEN {
                continue;
            }
            if s.goes_on {
                // A stay that the CPU's first segment has.
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
        self.stays.push(s);
    }

    /// Makes room for one more; gives the new one's number.
    fn admit(&mut self, cpu: usize) -> usize {
        let passing = self.passing(cpu);
        let mut chances = 0;
        while let Some(tail) = self.stays.len().checked_sub(self.shape.n) {
            let s = &self.stays[tail];
            if !s.live {
                break;
            }
            if !s.second && passing != Some(tail) {
                self.renew(tail, 12);
                continue;
            }
            let young = self.ptes[&s.page].young || s.referenced;
            if self.shape.clock && s.swept && young && chances < CHANCES {
                chances += 1;
                self.renew(tail, 13);
                continue;
            }
            self.end(tail, 0);
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
        self.stays.len() - 1
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
}

impl Real {
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
                assert_eq!(self.evms.frame(id, v.addr), Some(frame));
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

    fn evict(&mut self, v: &Victim, why: u32) {
        let bits = self.take(v);
        let used = self.used[&self.page(v)];
        assert!(self.evms.evict(v.ordinal, why, 0, |young| {
            assert_eq!(young || bits.young, used, "others can see that it was used");
            bits
        }));
        assert!(!self.evms.evict(v.ordinal, why, 0, |_| unreachable!()));
    }

    fn reserve(&mut self, cpu: usize) -> u64 {
        for chances in 0.. {
            self.retire(false);
            let seq = &mut self.seq;
            let answer = self.evms.reserve(cpu, 0, || {
                *seq += 1;
                *seq
            });
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
                    if let Some(v) = victim {
                        self.evict(&v, 0);
                    }
                    if let Some(v) = passed {
                        let page = self.page(&v);
                        let pte = self.ptes.get_mut(&page).expect("a member's PTE");
                        let flush = self
                            .evms
                            .sweep(v.ordinal, || std::mem::take(&mut pte.young));
                        assert!(flush, "what passes is a member");
                    }
                    return ordinal;
                }
            }
        }
        unreachable!()
    }
}

fn new(shape: &Shape, capacity: usize, backlog: usize) -> Evms {
    Evms::new(
        shape,
        vec![Slot::EMPTY; Evms::slots_for(capacity, backlog)],
        vec![0; Evms::buckets_for(capacity)],
        vec![0; Evms::firsts_for(shape)],
        vec![0; shape.cpus],
    )
    .expect("sizes fit")
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1usize..4, 0usize..8, any::<bool>(), any::<bool>()).prop_map(|(first, more, clock, again)| {
        Shape {
            n: first * CPUS + more,
            first,
            cpus: CPUS,
            clock,
            again,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn is_its_model(shape in shapes(), ops in prop::collection::vec(op(), 1..400)) {
        let mut real = Real {
            evms: new(&shape, CAPACITY, 8),
            seq: 0,
            ptes: HashMap::new(),
            used: HashMap::new(),
            out: Vec::new(),
        };
        let mut model = Model { shape, stays: Vec::new(), seq: 0, ptes: HashMap::new() };
        for op in ops {
            match op {
                Op::Touch { page, write, .. } if model.member(page).is_some() => {
                    prop_assert!(real.evms.contains(page.0, page.1));
                    for ptes in [&mut model.ptes, &mut real.ptes] {
                        let pte = ptes.get_mut(&page).expect("a member's PTE");
                        pte.young = true;
                        pte.dirty |= write;
                    }
                    real.used.insert(page, true);
                }
                Op::Touch { cpu, page, write } => {
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
                    real.evms.admit(ordinal, &Admission {
                        owner: page.0 as usize,
                        table: 2,
                        page: page.1 | flags,
                        mm: page.0,
                        tid_cpu: 0,
                        pfn: 0,
                        was_dirty: false,
                    });
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
                    prop_assert_eq!(real.evms.close(page.0, page.1, bits, 2, 0), i.is_some());
                    if let Some(i) = i {
                        model.end(i, 2);
                    }
                }
                Op::Age { page } => {
                    let young = real.ptes.get_mut(&page).map(|pte| std::mem::take(&mut pte.young));
                    if let Some(young) = young {
                        let used = real.used.insert(page, false);
                        prop_assert_eq!(Some(real.evms.aged(page.0, page.1, young)), used);
                    }
                    if let Some(i) = model.member(page) {
                        let pte = model.ptes.get_mut(&page).expect("a member's PTE");
                        model.stays[i].referenced |= std::mem::take(&mut pte.young);
                    }
                }
                Op::Dirty { page } => {
                    let i = model.member(page);
                    prop_assert_eq!(real.evms.dirtied(page.0, page.1), i.is_some());
                    if let Some(i) = i {
                        model.stays[i].dirtied = true;
                    }
                }
                Op::Resize { n } => {
                    let n = n.max(Evms::firsts_for(&shape));
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
                        if model.stays[tail].live && !model.stays[tail].second {
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
                        let seq = &mut real.seq;
                        match real.evms.shrink(n as u64, 0, || { *seq += 1; *seq }) {
                            Shrink::Done => break,
                            Shrink::Evict(v) => real.evict(&v, 0),
                            other => return Err(TestCaseError::fail(format!("{other:?}"))),
                        }
                    }
                }
                Op::Retire => real.retire(false),
            }
            prop_assert_eq!(&real.ptes, &model.ptes);
            prop_assert_eq!(real.evms.live(), model.ptes.len() as u64);
            prop_assert!(real.evms.live() <= real.evms.size());
            prop_assert_eq!(real.evms.size(), model.shape.n as u64);
            let f = real.evms.figures();
            prop_assert_eq!((f.live, f.reserved, f.wrong), (real.evms.live(), 0, 0), "{:?}", f);
            let firsts = model.stays.iter().filter(|s| s.live && !s.second).count();
            prop_assert_eq!(f.first, firsts as u64);
            prop_assert_eq!(real.found(0), real.ptes.len());
            // What an instruction needs is still there.
            for cpu in 0..CPUS {
                for i in model.firsts(cpu) {
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
                real.evict(&v, 7);
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
    let shape = Shape {
        n: 4,
        first: 1,
        cpus: 1,
        clock: false,
        again: true,
    };
    let mut evms = new(&shape, 4, 4);
    for page in pages {
        let Reserve::Go { ordinal, .. } = evms.reserve(0, 0, || 0) else {
            panic!("no room");
        };
        evms.admit(
            ordinal,
            &Admission {
                owner: 1,
                table: 2,
                page: page << 12,
                mm: 3,
                tid_cpu: 0,
                pfn: page as u32,
                was_dirty: false,
            },
        );
    }
    evms
}

#[test]
fn figures_contradict_each_other() {
    assert_eq!(audited([1, 2, 3, 4]).figures().wrong, 0);
    // A page that became a member again though its stay was not closed.
    assert!(audited([1, 2, 3, 1]).figures().wrong > 0);
    // A victim is a member until it is disabled, but no longer than its admission
    // is under way.
    let mut evms = audited([1, 2, 3, 4]);
    let Reserve::Go {
        ordinal, victim, ..
    } = evms.reserve(0, 0, || 0)
    else {
        panic!("no room");
    };
    assert!(victim.is_some());
    assert_eq!((evms.figures().reserved, evms.figures().wrong), (1, 0));
    evms.abort(ordinal);
    assert_eq!((evms.figures().reserved, evms.figures().wrong), (0, 1));
}

#[test]
fn an_audit_looks_at_one_address_space() {
    let evms = audited([1, 2, 3, 4]);
    assert_eq!(evms.seek(0, u64::MAX, 3, 1).0, 1);
    assert_eq!(evms.seek(0, u64::MAX, 4, 9), (4, None));
    assert_eq!(evms.seek(0, 2, 4, 9), (2, None));
    assert_eq!(
        (evms.frame(3, 4 << 12), evms.frame(4, 4 << 12)),
        (Some(4), None)
    );
}

const ONE: Shape = Shape {
    n: 2,
    first: 2,
    cpus: 1,
    clock: false,
    again: false,
};

fn page(i: u64) -> Admission {
    Admission {
        owner: 1,
        table: 2,
        page: i << 12,
        mm: 1,
        tid_cpu: 0,
        pfn: 0,
        was_dirty: false,
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
        let Reserve::Go { ordinal, .. } = evms.reserve(0, i, || i) else {
            panic!("no room");
        };
        evms.admit(ordinal, &page(i));
        assert!(evms.close(1, i << 12, Bits::default(), 0, i));
    }
    let mut size = N;
    while evms.shrink(2, 0, || 0) == Shrink::More {
        assert!((1..=256).contains(&(size - evms.size())));
        size = evms.size();
    }
    assert_eq!((evms.size(), evms.shrink(2, 0, || 0)), (2, Shrink::Done));
}

#[test]
fn a_full_backlog_refuses_instead_of_losing() {
    let mut evms = new(&ONE, 2, 2);
    let mut go = 0;
    for i in 0..10u64 {
        if let Reserve::Go {
            ordinal, victim, ..
        } = evms.reserve(0, i, || i)
        {
            if let Some(v) = victim {
                assert!(evms.evict(v.ordinal, 0, i, |_| Bits::default()));
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
    assert!(matches!(evms.reserve(0, 11, || 11), Reserve::Go { .. }));
}

#[test]
fn a_victim_in_flight_is_waited_for() {
    let mut evms = new(&ONE, 2, 2);
    for seq in 1..=2 {
        assert!(matches!(evms.reserve(0, 0, || seq), Reserve::Go { .. }));
    }
    assert_eq!(evms.reserve(0, 0, || 3), Reserve::Full);
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
    };
    let mut real = Real {
        evms: new(&shape, 4, 8),
        seq: 0,
        ptes: HashMap::new(),
        used: HashMap::new(),
        out: Vec::new(),
    };
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
    assert!(real.evms.contains(1, 0));
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
    let reserve = |evms: &mut Evms, cpu| match evms.reserve(cpu, 0, || 0) {
        Reserve::Go { ordinal, .. } => ordinal,
        other => panic!("{other:?}"),
    };
    let close = |evms: &mut Evms, i: u64| assert!(evms.close(1, i << 12, Bits::default(), 1, 0));
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

    // The control.
    evms.disorder();
    let late = reserve(&mut evms, 0);
    close(&mut evms, 6);
    assert!(evms.admit(late, &page(6)).is_some());
}
