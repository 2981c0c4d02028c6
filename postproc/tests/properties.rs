//! Random traces against slow models that leave no room for cleverness.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use postproc::canon::PageMode;
use postproc::error::Result;
use postproc::pipeline::{self, Batch, Consumer, Freeing, Place, Unwatched, World};
use postproc::sim::policies::lru::Lru;
use postproc::sim::{
    self, Access, CurveSimulation, Engine, LruCurve, Simulation, SimulationConsumer,
};
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
pub enum Op {
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
    Advise {
        mm: u32,
        at: u64,
        len: u64,
        advice: u64,
    },
    Cow {
        mm: u32,
        at: u64,
    },
    Fork {
        mm: u32,
        /// A page that is pinned: fork copies it at once.
        pinned: Option<u64>,
    },
    End {
        mm: u32,
    },
    Exec {
        mm: u32,
    },
    Truncate {
        ino: u64,
        bytes: u64,
    },
    Punch {
        ino: u64,
        offset: u64,
        bytes: u64,
    },
    Delete {
        ino: u64,
    },
    /// All is forgotten: a window begins.
    Snap,
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
        1 => (mm.clone(), at.clone(), len, prop::sample::select(vec![4, 8, 9, 24]))
            .prop_map(|(mm, at, len, advice)| Op::Advise { mm, at, len, advice }),
        1 => (mm.clone(), at.clone()).prop_map(|(mm, at)| Op::Cow { mm, at }),
        1 => (mm.clone(), prop::option::of(at.clone()))
            .prop_map(|(mm, pinned)| Op::Fork { mm, pinned }),
        1 => mm.clone().prop_map(|mm| Op::End { mm }),
        1 => mm.clone().prop_map(|mm| Op::Exec { mm }),
        1 => (1..3u64, edge()).prop_map(|(ino, bytes)| Op::Truncate { ino, bytes }),
        1 => (1..3u64, edge(), edge()).prop_map(|(ino, from, to)| Op::Punch {
            ino,
            offset: from,
            bytes: to.saturating_sub(from),
        }),
        1 => (1..3u64).prop_map(|ino| Op::Delete { ino }),
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

/// Long scripts have a window or two more.
pub fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![99 => op(), 1 => Just(Op::Snap)];
    prop::collection::vec(op, 1..most)
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
    /// Pages that something has.
    live: BTreeSet<u64>,
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

    /// What nothing has any more, and had before.
    fn freed(&mut self) -> Vec<u64> {
        let places = self.private.values().chain(self.files.values());
        let live: BTreeSet<u64> = places.copied().collect();
        let freed = self.live.difference(&live).copied().collect();
        self.live = live;
        freed
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
    /// No reference: the page is freed.
    Freed,
}

/// What the model says of one reference, or of the end of a page.
#[derive(Debug, PartialEq)]
struct Expected {
    what: What,
    id: u64,
}

/// Runs a script on the model and on the builder.
pub struct Script {
    pub builder: TraceBuilder,
    model: Model,
    expected: Vec<Expected>,
    /// How many pages each event freed, of those that freed any.
    freed: Vec<usize>,
    /// The address space behind each of the script's three numbers.
    mms: [u32; 3],
    next_mm: u32,
}

fn tid(mm: u32) -> u32 {
    mm + 100
}

impl Script {
    pub fn new() -> Self {
        let mut builder = TraceBuilder::new(2, 1);
        builder.header_mut().buffer_size = 600;
        for mm in 1..=3 {
            builder.task(0, tid(mm), tid(mm), mm, "script");
        }
        Script {
            builder,
            model: Model::default(),
            expected: Vec::new(),
            freed: Vec::new(),
            mms: [1, 2, 3],
            next_mm: 4,
        }
    }

    fn range(at: u64, len: u64) -> (u64, u64) {
        (at * PAGE, (at + len) * PAGE)
    }

    /// A step, and what it frees: one event of it at most does.
    pub fn step(&mut self, op: &Op) {
        self.follow(op);
        let freed = self.model.freed();
        if !freed.is_empty() {
            self.freed.push(freed.len());
        }
        let what = What::Freed;
        let freed = freed.into_iter().map(|id| Expected { what, id });
        self.expected.extend(freed);
    }

    fn follow(&mut self, op: &Op) {
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
            Op::Advise {
                mm,
                at,
                len,
                advice,
            } => {
                let mm = self.mms[mm as usize];
                let (start, end) = Self::range(at, len);
                b.advise(0, tid(mm), mm, start, end, advice);
                // MADV_FREE is taken as if it kept the pages.
                for page in (at..at + len).filter(|_| advice != 8) {
                    model.private.remove(&(mm, page));
                }
            }
            Op::Cow { mm, at } => {
                let mm = self.mms[mm as usize];
                b.cow(0, tid(mm), mm, at * PAGE);
                let id = model.fresh();
                model.private.insert((mm, at), id);
            }
            Op::Fork { mm, pinned } => {
                let (mm, child) = (self.mms[mm as usize], self.next_mm);
                self.next_mm += 1;
                let pages: Vec<u64> = pinned.iter().map(|at| at * PAGE).collect();
                b.fork_pinned(0, tid(mm), mm, tid(child), child, &pages);
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
                if let Some(at) = pinned {
                    let id = model.fresh();
                    model.private.insert((child, at), id);
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
            Op::Exec { mm } => {
                let old = std::mem::replace(&mut self.mms[mm as usize], self.next_mm);
                self.next_mm += 1;
                let new = self.mms[mm as usize];
                b.exec(0, tid(old), old, new, "next");
                b.task(0, tid(new), tid(new), new, "next");
                b.mm_end(0, tid(old), old);
                model.maps.retain(|k, _| k.0 != old);
                model.private.retain(|k, _| k.0 != old);
            }
            Op::Truncate { ino, bytes } => {
                b.truncate(1, 1, ino, bytes);
                // The page that is cut in two stays.
                let stays = |page: u64| page * PAGE < bytes;
                model.files.retain(|&(i, page), _| i != ino || stays(page));
                // Private copies of what the file loses go, too.
                let maps = &model.maps;
                model.private.retain(|at, _| match maps.get(at) {
                    Some((
                        _,
                        Back::File {
                            ino: i,
                            page,
                            shared: false,
                        },
                    )) => *i != ino || stays(*page),
                    _ => true,
                });
            }
            Op::Punch { ino, offset, bytes } => {
                b.io((1, 1, 0), uapi::VMTRACE_EV_PUNCH, ino, offset, bytes);
                let stays = |page: u64| page * PAGE < offset || (page + 1) * PAGE > offset + bytes;
                model.files.retain(|&(i, page), _| i != ino || stays(page));
            }
            Op::Delete { ino } => {
                b.io((1, 1, 0), uapi::VMTRACE_EV_DELETE, ino, 0, 0);
                model.files.retain(|&(i, _), _| i != ino);
            }
            Op::Snap => {
                b.event(0, 0, 0, uapi::VMTRACE_EV_SNAP_BEGIN, &[]);
                model.maps.clear();
                model.private.clear();
                model.files.clear();
                for mm in &mut self.mms {
                    *mm = self.next_mm;
                    self.next_mm += 1;
                    b.task(0, tid(*mm), tid(*mm), *mm, "window");
                }
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
    follows_freed: bool,
    /// How many pages were freed at a time.
    freed: Vec<usize>,
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

    fn follows_freed(&self) -> bool {
        self.follows_freed
    }

    fn freed(&mut self, pages: &[CanonPage], _: &World) -> Result<()> {
        self.freed.push(pages.len());
        self.refs
            .extend(pages.iter().map(|&page| (What::Freed, page)));
        Ok(())
    }
}

fn record(bytes: Vec<u8>, mode: PageMode, io: bool) -> Recorder {
    record_with(bytes, mode, io, Freeing::Kept, false)
}

fn record_with(
    bytes: Vec<u8>,
    mode: PageMode,
    io: bool,
    freeing: Freeing,
    follows_freed: bool,
) -> Recorder {
    let trace = Trace::from_bytes("memory", bytes).unwrap();
    let mut recorder = Recorder {
        io,
        follows_freed,
        ..Recorder::default()
    };
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut recorder];
    pipeline::run_with(&trace, mode, freeing, &mut Unwatched, consumers).unwrap();
    recorder
}

/// Simulations of all policies and both curves.
fn simulations() -> SimulationConsumer {
    let mut all = SimulationConsumer::default();
    let sizes = sim::registry().iter();
    all.sizes = sizes
        .flat_map(|entry| [1, 3, 8, 25].map(|size| (entry.simulate)(size)))
        .collect();
    all.curve = Some(Box::new(LruCurve::default()));
    all
}

/// What they counted.
fn counted(all: &SimulationConsumer) -> (Vec<sim::Counts>, sim::Curve) {
    let sizes = all.sizes.iter().map(|one| one.counts()).collect();
    (sizes, all.curve.as_ref().unwrap().curve())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Mappings, protections and identities are those of the model: ids may be
    /// other numbers, but the same ones for the same pages.
    #[test]
    fn mappings_and_identities(
        ops in ops(120),
        io in any::<bool>(),
    ) {
        let mut script = Script::new();
        for op in &ops {
            script.step(op);
        }
        let mut expected = std::mem::take(&mut script.expected);
        expected.retain(|e| match e.what {
            What::Touch { .. } => true,
            What::Io { .. } => io,
            What::Freed => false,
        });
        let recorder = record(script.builder.finish(), PageMode::Canonical, io);
        prop_assert_eq!(recorder.refs.len(), expected.len());
        let (mut there, mut back) = (HashMap::new(), HashMap::new());
        for (i, (got, want)) in recorder.refs.iter().zip(&expected).enumerate() {
            prop_assert_eq!(got.0, want.what, "reference {}", i);
            prop_assert_eq!(*there.entry(want.id).or_insert(got.1), got.1, "identity of {}", i);
            prop_assert_eq!(*back.entry(got.1).or_insert(want.id), want.id, "identity of {}", i);
        }
    }

    /// Each event frees what the model has nowhere any more. Numbers that are given again
    /// are those of freed pages, and there are no more than pages that live at one time.
    #[test]
    fn pages_are_freed_when_nothing_has_them(
        ops in ops(160),
        io in any::<bool>(),
        again in any::<bool>(),
    ) {
        let mut script = Script::new();
        let (mut most, mut pending) = (0, 0);
        // Without reads and writes, the model is not to have the pages that they name.
        let io_left_out = |op: &&Op| io || !matches!(op, Op::Io { .. });
        for op in ops.iter().filter(io_left_out) {
            let freed = script.freed.len();
            script.step(op);
            // Freed pages have their numbers up to the next event; a copy has one, too,
            // before the page that is copied gives up its own.
            let has_event = match op {
                Op::Touch { .. } | Op::Sweep { .. } => false,
                Op::Move { old, new, len, .. } => old.abs_diff(*new) >= *len,
                _ => true,
            };
            if has_event {
                pending = script.freed[freed..].iter().sum();
            }
            most = most.max(script.model.live.len() + pending + 1);
        }
        let expected = std::mem::take(&mut script.expected);
        let groups = std::mem::take(&mut script.freed);
        let bytes = script.builder.finish();
        let recorder = record_with(bytes, PageMode::Canonical, io, Freeing::Freed, again);
        let whats = |what: &mut dyn Iterator<Item = What>| what.collect::<Vec<_>>();
        prop_assert_eq!(
            whats(&mut recorder.refs.iter().map(|r| r.0)),
            whats(&mut expected.iter().map(|e| e.what))
        );
        let (mut there, mut back) = (HashMap::new(), HashMap::new());
        prop_assert_eq!(&recorder.freed, &groups);
        let (mut at, mut groups) = (0, groups.into_iter());
        while at < expected.len() {
            let group = match expected[at].what {
                What::Freed => groups.next().unwrap(),
                _ => 1,
            };
            let (run, got) = (&expected[at..at + group], &recorder.refs[at..at + group]);
            at += group;
            if run[0].what != What::Freed {
                let (want, got) = (run[0].id, got[0].1);
                prop_assert_eq!(*there.entry(want).or_insert(got), got);
                prop_assert_eq!(*back.entry(got).or_insert(want), want);
                continue;
            }
            // Pages that were never referenced have no number that is known.
            let known: BTreeSet<u64> = run.iter().map(|e| e.id).filter(|id| there.contains_key(id)).collect();
            let freed: BTreeSet<u64> = got.iter().filter_map(|r| back.get(&r.1).copied()).collect();
            prop_assert_eq!(&freed, &known);
            if again {
                for id in known {
                    back.remove(&there.remove(&id).unwrap());
                }
            }
        }
        if again {
            let largest = recorder.refs.iter().map(|r| r.1.index()).max();
            prop_assert!(largest.unwrap_or(0) <= most, "{:?} of {}", largest, most);
        }
    }

    /// Simulations count the same whether numbers are given again or not, and what they
    /// count of the model's pages.
    #[test]
    fn numbers_that_are_given_again_change_no_count(ops in ops(200)) {
        let mut script = Script::new();
        for op in ops.iter().filter(|op| !matches!(op, Op::Io { .. })) {
            script.step(op);
        }
        let expected = std::mem::take(&mut script.expected);
        let bytes = script.builder.finish();
        let trace = Trace::from_bytes("memory", bytes).unwrap();
        let run = |consumers: &mut [&mut dyn Consumer]| {
            let mode = PageMode::Canonical;
            pipeline::run_with(&trace, mode, Freeing::Freed, &mut Unwatched, consumers).unwrap();
        };
        let (mut again, mut never) = (simulations(), simulations());
        run(&mut [&mut again]);
        run(&mut [&mut never, &mut Recorder::default()]);
        prop_assert_eq!(counted(&again), counted(&never));
        let accesses: Vec<Access> = expected
            .iter()
            .map(|e| match e.what {
                What::Freed => Access::free(CanonPage(e.id as u32)),
                What::Touch { .. } => Access::reference(CanonPage(e.id as u32), false),
                What::Io { .. } => unreachable!("no step was one"),
            })
            .collect();
        let mut model = simulations();
        model.sizes.iter_mut().for_each(|one| one.references(&accesses));
        model.curve.as_mut().unwrap().references(&accesses);
        let misses = |all: &SimulationConsumer| {
            let (sizes, curve) = counted(all);
            // The model frees pages in an order of its own, which clocks of frames notice.
            let ids = sim::registry().iter().flat_map(|entry| [entry.id; 4]);
            let no_clock = |id: &str| !["clock", "clock-set", "wsclock"].contains(&id);
            let sizes = ids.zip(sizes).filter(|(id, _)| no_clock(id));
            let sizes: Vec<_> = sizes.map(|(id, c)| (id, c.misses, c.cold)).collect();
            (sizes, curve.hits_from)
        };
        prop_assert_eq!(misses(&again), misses(&model));
    }

    /// Records of all streams come in the order of their numbers, none missing.
    #[test]
    fn merge_order(ops in ops(200)) {
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
