//! Random traces against slow models that leave no room for cleverness.

use std::collections::{BTreeMap, HashMap};

use postproc::canon::PageMode;
use postproc::error::Result;
use postproc::pipeline::{self, Batch, Consumer, Place, Unwatched, World};
use postproc::sim::policies::lru::Lru;
use postproc::sim::{Access, CurveSimulation, Engine, LruCurve, Simulation};
use postproc::space::Issue;
use postproc::testing::TraceBuilder;
use postproc::trace::{Event, Merge, Step, Trace};
use postproc::units::{self, CanonPage, Prot};
use proptest::prelude::*;
use rust_mm_trace::uapi;

const PAGE: u64 = 4096;
/// Pages of each address space that the scripts use.
const PAGES: u64 = 24;

/// A step of a random program.
#[derive(Clone, Debug)]
enum Op {
    MapAnon {
        mm: u32,
        at: u64,
        len: u64,
        prot: u8,
    },
    MapFile {
        mm: u32,
        at: u64,
        len: u64,
        prot: u8,
        shared: bool,
        ino: u64,
        offset: u64,
    },
    Unmap {
        mm: u32,
        at: u64,
        len: u64,
    },
    Protect {
        mm: u32,
        at: u64,
        len: u64,
        prot: u8,
    },
    Move {
        mm: u32,
        old: u64,
        new: u64,
        len: u64,
        dontunmap: bool,
    },
    Dontneed {
        mm: u32,
        at: u64,
        len: u64,
    },
    Cow {
        mm: u32,
        at: u64,
    },
    Fork {
        mm: u32,
    },
    End {
        mm: u32,
    },
    Truncate {
        ino: u64,
        pages: u64,
    },
    /// Bytes of a file are read or written.
    Io {
        mm: u32,
        ino: u64,
        offset: u64,
        bytes: u64,
        write: bool,
    },
    Touch {
        mm: u32,
        at: u64,
        write: bool,
        cpu: u32,
    },
    /// All pages of all address spaces in turn: so many that they are looked up together.
    Sweep {
        cpu: u32,
    },
}

/// A byte at an edge of a page, or beside it.
fn edge() -> impl Strategy<Value = u64> {
    (0..6u64, 0..3u64).prop_map(|(page, beside)| (page * PAGE + beside).saturating_sub(1))
}

fn op() -> impl Strategy<Value = Op> {
    let mm = 0..3u32;
    let at = 0..PAGES;
    let len = 1..6u64;
    let prot = 0..8u8;
    prop_oneof![
        2 => (mm.clone(), at.clone(), len.clone(), prot.clone())
            .prop_map(|(mm, at, len, prot)| Op::MapAnon { mm, at, len, prot }),
        2 => (mm.clone(), at.clone(), len.clone(), prot.clone(), any::<bool>(), 1..3u64, 0..4u64)
            .prop_map(|(mm, at, len, prot, shared, ino, offset)| {
                Op::MapFile { mm, at, len, prot, shared, ino, offset }
            }),
        1 => (mm.clone(), at.clone(), len.clone()).prop_map(|(mm, at, len)| Op::Unmap { mm, at, len }),
        1 => (mm.clone(), at.clone(), len.clone(), prot)
            .prop_map(|(mm, at, len, prot)| Op::Protect { mm, at, len, prot }),
        1 => (mm.clone(), at.clone(), at.clone(), len.clone(), any::<bool>())
            .prop_map(|(mm, old, new, len, dontunmap)| Op::Move { mm, old, new, len, dontunmap }),
        1 => (mm.clone(), at.clone(), len).prop_map(|(mm, at, len)| Op::Dontneed { mm, at, len }),
        1 => (mm.clone(), at.clone()).prop_map(|(mm, at)| Op::Cow { mm, at }),
        1 => mm.clone().prop_map(|mm| Op::Fork { mm }),
        1 => mm.clone().prop_map(|mm| Op::End { mm }),
        1 => (1..3u64, 0..6u64).prop_map(|(ino, pages)| Op::Truncate { ino, pages }),
        1 => (mm.clone(), 1..4u64, 0..5 * PAGE, 0..3 * PAGE, any::<bool>())
            .prop_map(|(mm, ino, offset, bytes, write)| Op::Io { mm, ino, offset, bytes, write }),
        // From an edge of a page to another, or a byte beside it.
        1 => (mm.clone(), 1..4u64, edge(), edge(), any::<bool>())
            .prop_map(|(mm, ino, from, to, write)| Op::Io {
                mm,
                ino,
                offset: from,
                bytes: to.saturating_sub(from),
                write,
            }),
        12 => (mm, at, any::<bool>(), 0..2u32)
            .prop_map(|(mm, at, write, cpu)| Op::Touch { mm, at, write, cpu }),
        1 => (0..2u32).prop_map(|cpu| Op::Sweep { cpu }),
    ]
}

/// What a page of an address space maps.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Back {
    Anon,
    File { ino: u64, page: u64, shared: bool },
}

/// The brute-force model: every page on its own.
#[derive(Default)]
struct Model {
    maps: BTreeMap<(u32, u64), (u8, Back)>,
    private: HashMap<(u32, u64), u64>,
    files: HashMap<(u64, u64), u64>,
    next: u64,
}

impl Model {
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn identify(&mut self, mm: u32, at: u64) -> u64 {
        let back = self.maps.get(&(mm, at)).map_or(Back::Anon, |m| m.1);
        if let Back::File { ino, page, shared } = back {
            if !shared {
                if let Some(&own) = self.private.get(&(mm, at)) {
                    return own;
                }
            }
            return self.in_file(ino, page);
        }
        if let Some(&own) = self.private.get(&(mm, at)) {
            return own;
        }
        let id = self.fresh();
        self.private.insert((mm, at), id);
        id
    }

    fn in_file(&mut self, ino: u64, page: u64) -> u64 {
        if let Some(&known) = self.files.get(&(ino, page)) {
            return known;
        }
        let id = self.fresh();
        self.files.insert((ino, page), id);
        id
    }

    fn unmap(&mut self, mm: u32, at: u64, len: u64) {
        for page in at..at + len {
            self.maps.remove(&(mm, page));
            self.private.remove(&(mm, page));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    /// In a mapping with this protection, or in none.
    Touch { prot: Option<u8> },
    /// By read() or write().
    Io { write: bool },
}

/// What the model says of one reference.
#[derive(Debug, PartialEq)]
struct Expected {
    what: What,
    id: u64,
}

/// Runs a script on the model and on the builder.
struct Script {
    builder: TraceBuilder,
    model: Model,
    expected: Vec<Expected>,
    /// The address space behind each of the script's three numbers.
    mms: [u32; 3],
    next_mm: u32,
}

fn tid(mm: u32) -> u32 {
    mm + 100
}

impl Script {
    fn new() -> Self {
        let mut builder = TraceBuilder::new(2, 1);
        builder.header_mut().buffer_size = 600;
        for mm in 1..=3 {
            builder.task(0, tid(mm), tid(mm), mm, "script");
        }
        Script {
            builder,
            model: Model::default(),
            expected: Vec::new(),
            mms: [1, 2, 3],
            next_mm: 4,
        }
    }

    fn range(at: u64, len: u64) -> (u64, u64) {
        (at * PAGE, (at + len) * PAGE)
    }

    fn step(&mut self, op: &Op) {
        let b = &mut self.builder;
        let model = &mut self.model;
        match *op {
            Op::MapAnon { mm, at, len, prot } => {
                let mm = self.mms[mm as usize];
                let (start, end) = Self::range(at, len);
                b.unmap(0, tid(mm), mm, start, end);
                b.map_anon(1, tid(mm), mm, start, end, Prot(prot));
                model.unmap(mm, at, len);
                for page in at..at + len {
                    model.maps.insert((mm, page), (prot, Back::Anon));
                }
            }
            Op::MapFile {
                mm,
                at,
                len,
                prot,
                shared,
                ino,
                offset,
            } => {
                let mm = self.mms[mm as usize];
                let (start, end) = Self::range(at, len);
                b.unmap(0, tid(mm), mm, start, end);
                b.map_file(
                    0,
                    tid(mm),
                    mm,
                    start,
                    end,
                    Prot(prot),
                    shared,
                    ino,
                    offset * PAGE,
                );
                model.unmap(mm, at, len);
                for i in 0..len {
                    let back = Back::File {
                        ino,
                        page: offset + i,
                        shared,
                    };
                    model.maps.insert((mm, at + i), (prot, back));
                }
            }
            Op::Unmap { mm, at, len } => {
                let mm = self.mms[mm as usize];
                let (start, end) = Self::range(at, len);
                b.unmap(1, tid(mm), mm, start, end);
                model.unmap(mm, at, len);
            }
            Op::Protect { mm, at, len, prot } => {
                let mm = self.mms[mm as usize];
                let (start, end) = Self::range(at, len);
                b.protect(0, tid(mm), mm, start, end, Prot(prot));
                for page in at..at + len {
                    if let Some(map) = model.maps.get_mut(&(mm, page)) {
                        map.0 = prot;
                    }
                }
            }
            Op::Move {
                mm,
                old,
                new,
                len,
                dontunmap,
            } => {
                let mm = self.mms[mm as usize];
                if old.abs_diff(new) < len {
                    return;
                }
                let (old_start, old_end) = Self::range(old, len);
                let (new_start, new_end) = Self::range(new, len);
                b.unmap(0, tid(mm), mm, new_start, new_end);
                model.unmap(mm, new, len);
                b.relocate(
                    0,
                    tid(mm),
                    mm,
                    old_start..old_end,
                    new_start..new_end,
                    dontunmap,
                );
                for i in 0..len {
                    if let Some(id) = model.private.remove(&(mm, old + i)) {
                        model.private.insert((mm, new + i), id);
                    }
                    if let Some(&map) = model.maps.get(&(mm, old + i)) {
                        model.maps.insert((mm, new + i), map);
                        if !dontunmap {
                            model.maps.remove(&(mm, old + i));
                        }
                    }
                }
            }
            Op::Dontneed { mm, at, len } => {
                let mm = self.mms[mm as usize];
                let (start, end) = Self::range(at, len);
                b.advise(0, tid(mm), mm, start, end, 4);
                for page in at..at + len {
                    model.private.remove(&(mm, page));
                }
            }
            Op::Cow { mm, at } => {
                let mm = self.mms[mm as usize];
                b.cow(0, tid(mm), mm, at * PAGE);
                let id = model.fresh();
                model.private.insert((mm, at), id);
            }
            Op::Fork { mm } => {
                let (mm, child) = (self.mms[mm as usize], self.next_mm);
                self.next_mm += 1;
                b.fork(0, tid(mm), mm, tid(child), child);
                let copy: Vec<_> = model
                    .maps
                    .range((mm, 0)..(mm + 1, 0))
                    .map(|(k, v)| (k.1, *v))
                    .collect();
                for (page, map) in copy {
                    model.maps.insert((child, page), map);
                }
                let copy: Vec<_> = model
                    .private
                    .iter()
                    .filter(|(k, _)| k.0 == mm)
                    .map(|(k, v)| (k.1, *v))
                    .collect();
                for (page, id) in copy {
                    model.private.insert((child, page), id);
                }
                // The child takes the place of another of the three.
                let slot = (child % 3) as usize;
                self.mms[slot] = child;
            }
            Op::End { mm } => {
                let old = std::mem::replace(&mut self.mms[mm as usize], self.next_mm);
                self.next_mm += 1;
                b.mm_end(0, tid(old), old);
                model.maps.retain(|k, _| k.0 != old);
                model.private.retain(|k, _| k.0 != old);
                let mm = self.mms[mm as usize];
                b.task(0, tid(mm), tid(mm), mm, "next");
            }
            Op::Truncate { ino, pages } => {
                b.truncate(1, 1, ino, pages * PAGE);
                model.files.retain(|&(i, page), _| i != ino || page < pages);
            }
            Op::Io {
                mm,
                ino,
                offset,
                bytes,
                write,
            } => {
                let mm = self.mms[mm as usize];
                let number = match write {
                    true => uapi::VMTRACE_EV_WRITE,
                    false => uapi::VMTRACE_EV_READ,
                };
                b.io((1, tid(mm), mm), number, ino, offset, bytes);
                // Byte by byte.
                let mut last = None;
                for page in (offset..offset + bytes).map(|byte| byte / PAGE) {
                    if last.replace(page) != Some(page) {
                        let id = model.in_file(ino, page);
                        self.expected.push(Expected {
                            what: What::Io { write },
                            id,
                        });
                    }
                }
            }
            Op::Touch { mm, at, write, cpu } => self.touch(mm, at, write, cpu),
            Op::Sweep { cpu } => {
                for (at, mm) in (0..PAGES).flat_map(|at| (0..3).map(move |mm| (at, mm))) {
                    self.touch(mm, at, false, cpu);
                }
            }
        }
    }

    fn touch(&mut self, mm: u32, at: u64, write: bool, cpu: u32) {
        let mm = self.mms[mm as usize];
        let access = if write {
            units::Access::Write
        } else {
            units::Access::Read
        };
        // N = 1: the page is a member only if it was touched last.
        let before = self.builder.admissions();
        self.builder.touch_as(cpu, tid(mm), mm, at * PAGE, access);
        if self.builder.admissions() > before {
            let prot = self.model.maps.get(&(mm, at)).map(|m| m.0);
            let id = self.model.identify(mm, at);
            let what = What::Touch { prot };
            self.expected.push(Expected { what, id });
        }
    }
}

#[derive(Default)]
struct Recorder {
    refs: Vec<(What, CanonPage)>,
    io: bool,
    sequence: Vec<u64>,
}

impl Consumer for Recorder {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for ((r, place), page) in batch.refs.iter().zip(batch.places).zip(batch.pages) {
            let prot = match place {
                Place::Mapped { prot, .. } => Some(prot.0),
                _ => None,
            };
            self.refs.push((What::Touch { prot }, *page));
            self.sequence.push(r.seq);
        }
        Ok(())
    }

    fn wants_io(&self) -> bool {
        self.io
    }

    fn io(&mut self, batch: &Batch<'_>) -> Result<()> {
        for (r, page) in batch.refs.iter().zip(batch.pages) {
            // The event comes first.
            assert_eq!(self.sequence.last(), Some(&r.seq));
            assert!(r.flags().kernel());
            let write = r.flags().writes();
            self.refs.push((What::Io { write }, *page));
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, _: &World, _: &[Issue]) -> Result<()> {
        self.sequence.push(event.seq);
        Ok(())
    }
}

fn record(bytes: Vec<u8>, mode: PageMode, io: bool) -> Recorder {
    let trace = Trace::from_bytes("memory", bytes).unwrap();
    let mut recorder = Recorder {
        io,
        ..Recorder::default()
    };
    pipeline::run(&trace, mode, &mut Unwatched, &mut [&mut recorder]).unwrap();
    recorder
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Mappings, protections and identities are those of the model: ids may be
    /// other numbers, but the same ones for the same pages.
    #[test]
    fn mappings_and_identities(
        ops in prop::collection::vec(op(), 1..120),
        io in any::<bool>(),
    ) {
        let mut script = Script::new();
        for op in &ops {
            script.step(op);
        }
        let mut expected = std::mem::take(&mut script.expected);
        expected.retain(|e| io || matches!(e.what, What::Touch { .. }));
        let recorder = record(script.builder.finish(), PageMode::Canonical, io);
        prop_assert_eq!(recorder.refs.len(), expected.len());
        let (mut there, mut back) = (HashMap::new(), HashMap::new());
        for (i, (got, want)) in recorder.refs.iter().zip(&expected).enumerate() {
            prop_assert_eq!(got.0, want.what, "reference {}", i);
            prop_assert_eq!(*there.entry(want.id).or_insert(got.1), got.1, "identity of {}", i);
            prop_assert_eq!(*back.entry(got.1).or_insert(want.id), want.id, "identity of {}", i);
        }
    }

    /// Records of all streams come in the order of their numbers, none missing.
    #[test]
    fn merge_order(ops in prop::collection::vec(op(), 1..200)) {
        let mut script = Script::new();
        for op in &ops {
            script.step(op);
        }
        let recorder = record(script.builder.finish(), PageMode::Unnamed, true);
        let all: Vec<u64> = (1..=recorder.sequence.len() as u64).collect();
        prop_assert_eq!(recorder.sequence, all);
    }

    /// The curve is what LRU memories of every size give, and so is the list.
    #[test]
    fn lru_curve(accesses in prop::collection::vec((1..40u32, any::<bool>()), 0..600)) {
        let accesses: Vec<Access> = accesses
            .into_iter()
            .map(|(page, write)| Access::reference(CanonPage(page), write))
            .collect();
        let mut curve = LruCurve::default();
        curve.references(&accesses);
        let curve = curve.curve();
        for size in 1..45 {
            // The memory as a vector, the newest last.
            let mut memory: Vec<(u32, bool)> = Vec::new();
            let (mut misses, mut write_backs) = (0, 0);
            for access in &accesses {
                let page = access.page.0;
                match memory.iter().position(|m| m.0 == page) {
                    Some(at) => {
                        let (_, dirty) = memory.remove(at);
                        memory.push((page, dirty || access.writes()));
                    }
                    None => {
                        misses += 1;
                        if memory.len() == size {
                            write_backs += u64::from(memory.remove(0).1);
                        }
                        memory.push((page, access.writes()));
                    }
                }
            }
            let dirty_left = memory.iter().filter(|m| m.1).count() as u64;
            let mut engine = Engine::new(Lru::default(), size as u64);
            engine.references(&accesses);
            for (what, counts) in [("curve", curve.at(size as u64)), ("list", engine.counts())] {
                prop_assert_eq!(counts.misses, misses, "{} at {}", what, size);
                prop_assert_eq!(counts.write_backs, Some(write_backs), "{} at {}", what, size);
                prop_assert_eq!(counts.dirty_left, dirty_left, "{} at {}", what, size);
                prop_assert_eq!(counts.cold, curve.cold);
            }
        }
    }
}

/// Many pages and compactions of the curve's window, against the list.
#[test]
fn lru_curve_over_many_windows() {
    let mut random = 88_172_645_463_325_252u64;
    let mut accesses = Vec::new();
    for i in 0..400_000u64 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let spread = 1000 + i / 10;
        let page = 1 + (random % spread) * (random >> 40 & 1) + (random >> 20) % 300;
        accesses.push(Access::reference(CanonPage(page as u32), random >> 60 == 0));
    }
    let mut curve = LruCurve::default();
    curve.references(&accesses);
    let curve = curve.curve();
    for size in [1, 2, 17, 300, 1000, 5000, 20_000, 60_000] {
        let mut engine = Engine::new(Lru::default(), size);
        engine.references(&accesses);
        assert_eq!(curve.at(size), engine.counts(), "{size} pages");
    }
}

/// Events alone can be read, too.
#[test]
fn events_alone() {
    let trace = Trace::from_bytes("memory", TraceBuilder::sample().finish()).unwrap();
    let mut merge = Merge::of_kinds(&trace, &[postproc::trace::StreamKind::Event]);
    let mut count = 0;
    while let Step::Event(_) = merge.fill(&mut Vec::new(), 1).unwrap() {
        count += 1;
    }
    assert_eq!(count, 2);
}
