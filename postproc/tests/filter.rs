//! `--where`: which references and events are kept, whatever happened to their threads and mappings
//! before and after; and what each command does with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Output;

use crate::support::postproc;
use postproc::canon::PageMode;
use postproc::error::Result;
use postproc::filter::{Clause, Filter, Filtered};
use postproc::pipeline::{self, Batch, Consumer, Freeing, Unwatched};
use postproc::streams::{Selected, Selection};
use postproc::testing::{TraceBuilder, check_bytes};
use postproc::trace::{FileId, Trace, Why};
use postproc::units::{Access, Prot, Tid};
use rust_mm_trace::filter::Subject;
use rust_mm_trace::uapi;
use serde_json::Value;

fn clause(text: &str) -> Clause {
    Clause::parse(text, Subject::References).unwrap_or_else(|e| panic!("{e}"))
}

/// The sequence numbers of the records that come through.
#[derive(Default)]
struct Numbers {
    seqs: Vec<u64>,
    renewals: bool,
}

impl Consumer for Numbers {
    fn wants_continuations(&self) -> bool {
        self.renewals
    }
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.seqs.extend(batch.refs.iter().map(|r| r.seq));
        Ok(())
    }
}

fn read(
    trace: &Trace,
    which: Option<Selection>,
    text: &str,
    renewals: bool,
) -> (Vec<u64>, Filtered) {
    let mut numbers = Numbers {
        renewals,
        ..Numbers::default()
    };
    let filter = Filter::new(&clause(text));
    let mut selected = Selected::filtered(which, Some(filter), &mut numbers);
    let mode = PageMode::Canonical;
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut selected];
    pipeline::run_with(trace, mode, Freeing::Freed, &mut Unwatched, consumers).unwrap();
    let filtered = selected.kept().unwrap();
    assert_eq!(selected.references(), filtered.kept, "{text}");
    (numbers.seqs, filtered)
}

/// The numbers of the references of a trace that fit an expression.
fn kept(trace: &Trace, text: &str) -> Vec<u64> {
    let (seqs, filtered) = read(trace, None, text, false);
    assert_eq!(seqs.len() as u64, filtered.kept, "{text}");
    seqs
}

fn open(builder: TraceBuilder) -> Trace {
    let bytes = builder.finish();
    assert!(check_bytes(&bytes).good, "{:#?}", check_bytes(&bytes));
    Trace::from_bytes("memory", bytes).unwrap()
}

/// A trace of one CPU in which each touch is a reference: gives its number.
struct Touches(TraceBuilder, u64);

impl Touches {
    fn new() -> Self {
        Touches(TraceBuilder::new(1, 4), 0)
    }

    /// Pages are used in turn, so that none is in the set.
    fn touch(&mut self, tid: u32, mm: u32, start: u64) -> u64 {
        self.1 = (self.1 + 1) % 8;
        self.0.touch(0, tid, mm, start + self.1 * 0x1000);
        self.0.last_seq()
    }
}

const HERE: u64 = 0x10_0000;
const THERE: u64 = 0x90_0000;

#[test]
fn a_name_counts_from_the_event_that_gives_it() {
    let mut t = Touches::new();
    t.0.task(0, 10, 10, 1, "sh");
    t.0.map_anon(0, 10, 1, HERE, HERE + 0x8000, Prot(3));
    let as_sh = [t.touch(10, 1, HERE), t.touch(10, 1, HERE)];
    // prctl(PR_SET_NAME), and back.
    t.0.task(0, 10, 10, 1, "renamed");
    let as_renamed = [t.touch(10, 1, HERE)];
    t.0.task(0, 10, 10, 1, "sh");
    let again = [t.touch(10, 1, HERE)];
    // A thread has the name of the thread that made it, whatever that one is called later.
    t.0.thread(0, 10, 10, 1, 11);
    let of_thread = [t.touch(11, 1, HERE)];
    t.0.task(0, 11, 10, 1, "worker");
    let as_worker = [t.touch(11, 1, HERE), t.touch(11, 1, HERE)];
    t.0.task(0, 10, 10, 1, "leader");
    let as_leader = [t.touch(10, 1, HERE)];
    t.0.thread(0, 11, 10, 1, 12);
    let second_worker = [t.touch(12, 1, HERE)];
    // What a thread forks has the thread's name.
    t.0.fork(0, 11, 1, 20, 2);
    let child = [t.touch(20, 2, HERE)];
    t.0.exec(0, 20, 2, 3, "cc1");
    t.0.map_anon(0, 20, 3, HERE, HERE + 0x8000, Prot(3));
    let as_cc1 = [t.touch(20, 3, HERE), t.touch(20, 3, HERE)];
    let trace = open(t.0);
    let workers = [&as_worker[..], &second_worker, &child].concat();
    for (name, seqs) in [
        ("sh", [&as_sh[..], &again, &of_thread].concat()),
        ("renamed", as_renamed.to_vec()),
        ("worker", workers.clone()),
        ("leader", as_leader.to_vec()),
        ("cc1", as_cc1.to_vec()),
        ("", vec![]),
    ] {
        assert_eq!(kept(&trace, &format!("comm == \"{name}\"")), seqs, "{name}");
    }
    assert_eq!(kept(&trace, "comm ~ \"*er\" && pid == 10"), {
        let mut all = [&as_worker[..], &as_leader, &second_worker].concat();
        all.sort_unstable();
        all
    });
    assert_eq!(kept(&trace, "tid == 12"), second_worker);
}

#[test]
fn a_mapping_counts_where_it_is_at_that_moment() {
    let mut t = Touches::new();
    t.0.task(0, 10, 10, 1, "a");
    t.0.map_file(0, 10, 1, HERE, HERE + 0x8000, Prot(3), false, 7, 0);
    let before = [t.touch(10, 1, HERE), t.touch(10, 1, HERE)];
    t.0.relocate(0, 10, 1, HERE..HERE + 0x8000, THERE..THERE + 0x8000, false);
    t.0.map_anon(0, 10, 1, HERE, HERE + 0x8000, Prot(3));
    let moved = [t.touch(10, 1, THERE)];
    let anon = [t.touch(10, 1, HERE), t.touch(10, 1, HERE)];
    t.0.unmap(0, 10, 1, THERE, THERE + 0x8000);
    t.0.map_file(0, 10, 1, THERE, THERE + 0x8000, Prot(3), true, 8, 0);
    let other = [t.touch(10, 1, THERE)];
    let trace = open(t.0);
    let file = [&before[..], &moved].concat();
    assert_eq!(kept(&trace, "mapping == \"/lib/file-7.so\""), file);
    assert_eq!(
        kept(&trace, "mapping ~ \"*.so\" && !(mapping ~ \"*8*\")"),
        file
    );
    assert_eq!(kept(&trace, "mapping_kind == anon"), anon);
    assert_eq!(kept(&trace, "mapping == \"[anon]\""), anon);
    assert_eq!(
        kept(&trace, "mapping in (\"/lib/file-8.so\", \"x\")"),
        other
    );
    let range = format!("addr in {THERE:#x}..{:#x}", THERE + 0x8000);
    assert_eq!(kept(&trace, &range), [moved, other].concat());
    let pages = format!("page >= {:#x}", THERE >> 12);
    assert_eq!(kept(&trace, &pages), [moved, other].concat());
}

#[test]
fn a_file_has_the_name_by_which_it_was_mapped() {
    let mut t = Touches::new();
    let file = FileId {
        dev: 8 << 20,
        ino: 7,
        generation: 1,
    };
    let kind = uapi::VMTRACE_MAP_FILE;
    let map = |t: &mut Touches, start: u64, name: &str| {
        let range = start..start + 0x8000;
        t.0.map(0, 10, 1, range, Prot(3), kind, 0, file, 0, name);
    };
    t.0.task(0, 10, 10, 1, "a");
    map(&mut t, HERE, "/tmp/new");
    let first = t.touch(10, 1, HERE);
    // It was renamed meanwhile.
    map(&mut t, THERE, "/lib/old.so");
    let second = [t.touch(10, 1, THERE), t.touch(10, 1, THERE)];
    let third = t.touch(10, 1, HERE);
    map(&mut t, 2 * THERE, "/tmp/new");
    let fourth = t.touch(10, 1, 2 * THERE);
    let trace = open(t.0);
    assert_eq!(
        kept(&trace, "mapping == \"/tmp/new\""),
        [first, third, fourth]
    );
    assert_eq!(kept(&trace, "mapping ~ \"*.so\""), second);
    assert_eq!(kept(&trace, "mapping_kind == file").len(), 5);
}

#[test]
fn a_control_group_counts_from_the_move() {
    let mut t = Touches::new();
    t.0.task(0, 10, 10, 1, "a");
    t.0.map_anon(0, 10, 1, HERE, HERE + 0x8000, Prot(3));
    let nowhere = [t.touch(10, 1, HERE)];
    t.0.cgroup(0, (10, 10), "/a");
    t.0.thread(0, 10, 10, 1, 11);
    let in_a = [t.touch(10, 1, HERE), t.touch(11, 1, HERE)];
    // One thread alone, and then the leader alone.
    t.0.cgroup(0, (11, 0), "/a/thread");
    let thread = [t.touch(11, 1, HERE)];
    t.0.thread(0, 10, 10, 1, 12);
    let still = [t.touch(10, 1, HERE), t.touch(12, 1, HERE)];
    t.0.cgroup(0, (10, 0), "/a/leader");
    let leader = [t.touch(10, 1, HERE)];
    let others = [t.touch(12, 1, HERE)];
    let own = [t.touch(11, 1, HERE)];
    t.0.fork(0, 11, 1, 20, 2);
    let child = [t.touch(20, 2, HERE)];
    t.0.cgroup(0, (10, 10), "/b");
    let in_b = [
        t.touch(10, 1, HERE),
        t.touch(11, 1, HERE),
        t.touch(12, 1, HERE),
    ];
    let left = [t.touch(20, 2, HERE)];
    let trace = open(t.0);
    assert_eq!(kept(&trace, "cgroup == \"\""), nowhere);
    assert_eq!(
        kept(&trace, "cgroup == \"/a\""),
        [&in_a[..], &still, &others].concat()
    );
    let threads = [&thread[..], &own, &child, &left].concat();
    assert_eq!(kept(&trace, "cgroup == \"/a/thread\""), threads);
    assert_eq!(kept(&trace, "cgroup == \"/a/leader\""), leader);
    assert_eq!(kept(&trace, "cgroup == \"/b\""), in_b);
}

#[test]
fn a_tree_is_a_process_and_all_its_descendants() {
    let mut t = Touches::new();
    t.0.snapshot(true);
    // A child is listed before its parent, whose own parent is not traced.
    t.0.task_of(0, (11, 11), 2, "child", 10);
    t.0.task_of(0, (10, 10), 1, "parent", 5);
    t.0.map_anon(0, 10, 1, HERE, HERE + 0x8000, Prot(3));
    t.0.map_anon(0, 10, 2, HERE, HERE + 0x8000, Prot(3));
    t.0.event(0, 10, 0, uapi::VMTRACE_EV_SNAP_END, &[]);
    t.0.snapshot(false);
    let parent = [t.touch(10, 1, HERE)];
    let child = [t.touch(11, 2, HERE)];
    t.0.fork(0, 11, 2, 12, 3);
    t.0.thread(0, 12, 12, 3, 13);
    let grandchild = [t.touch(13, 3, HERE)];
    t.0.exit(0, 11, 2);
    t.0.mm_end(0, 11, 2);
    // Its id is another process's now.
    t.0.fork(0, 10, 1, 11, 4);
    let other = [t.touch(11, 4, HERE)];
    let orphan = [t.touch(12, 3, HERE)];
    t.0.task(0, 30, 30, 5, "stranger");
    t.0.map_anon(0, 30, 5, HERE, HERE + 0x8000, Prot(3));
    let stranger = [t.touch(30, 5, HERE)];
    let trace = open(t.0);
    let all = [&parent[..], &child, &grandchild, &other, &orphan].concat();
    assert_eq!(kept(&trace, "tree == 5"), all);
    assert_eq!(kept(&trace, "tree == 10"), all);
    assert_eq!(kept(&trace, "tree == 11"), all[1..]);
    assert_eq!(kept(&trace, "tree == 12"), [grandchild, orphan].concat());
    assert_eq!(kept(&trace, "tree == 13"), [0; 0]);
    assert_eq!(kept(&trace, "tree != 10"), stranger);
    assert_eq!(
        kept(&trace, "tree in (12, 30)"),
        [grandchild, orphan, stranger].concat()
    );
}

#[test]
fn parents_of_each_other_have_an_end() {
    let mut t = Touches::new();
    t.0.task_of(0, (10, 10), 1, "a", 11);
    t.0.task_of(0, (11, 11), 2, "b", 10);
    t.0.map_anon(0, 10, 1, HERE, HERE + 0x8000, Prot(3));
    let seq = t.touch(10, 1, HERE);
    let trace = open(t.0);
    assert_eq!(kept(&trace, "tree == 11"), [seq]);
    assert_eq!(kept(&trace, "tree == 99"), [0; 0]);
}

#[test]
fn a_renewal_is_judged_as_its_stay() {
    let mut b = TraceBuilder::new(1, 2);
    b.program();
    b.touch_as(0, 10, 1, 0x1000, Access::Write);
    b.touch(0, 10, 1, 0x2000);
    let renewals = |b: &mut TraceBuilder| {
        // Their own kind of access is none.
        b.renew(0, 10, false);
        b.renew(0, 10, false);
    };
    renewals(&mut b);
    b.task(0, 10, 10, 1, "other");
    renewals(&mut b);
    let trace = open(b);
    for (text, references, records) in [
        ("kind == write", 1, 3),
        ("kind == read", 1, 3),
        ("comm == \"sample\"", 2, 6),
        ("comm == \"other\"", 0, 0),
    ] {
        let (seqs, filtered) = read(&trace, None, text, true);
        assert_eq!((filtered.kept, seqs.len()), (references, records), "{text}");
        assert_eq!(filtered.kept + filtered.left_out, 2);
    }
}

#[test]
fn a_filter_counts_among_the_references_of_a_process_or_set() {
    let mut b = TraceBuilder::new(1, 4);
    b.several_sets();
    for mm in 1..3 {
        b.set(0, 10 * mm, mm, mm);
        b.task(0, 10 * mm, 10 * mm, mm, "p");
        b.map_anon(0, 10 * mm, mm, HERE, HERE + 0x10_0000, Prot(3));
        for i in 0..20 {
            let access = [Access::Read, Access::Write][i as usize % 4 / 3];
            b.touch_as(0, 10 * mm, mm, HERE + (i << 12), access);
        }
    }
    let trace = open(b);
    for which in [Selection::Process(Tid(20)), Selection::Set(2)] {
        let (_, filtered) = read(&trace, Some(which), "kind == write", false);
        assert_eq!((filtered.kept, filtered.left_out), (5, 15));
    }
    assert_eq!(kept(&trace, "set == 2 && kind == write").len(), 5);
    assert_eq!(kept(&trace, "set == 0").len(), 0);
}

/// A number below `n`; the same ones in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// What the model knows about a thread.
#[derive(Clone)]
struct Thread {
    tgid: u32,
    mm: u32,
    comm: String,
    cgroup: String,
    ancestors: Vec<u32>,
}

/// What the model says about a reference.
struct Known {
    seq: u64,
    tid: u32,
    thread: Thread,
    mapping: String,
    kind: Access,
    addr: u64,
}

/// Makes a trace in which everything changes often, and says what each reference was.
fn changes(seed: u64, steps: usize) -> (Trace, Vec<Known>) {
    let mut random = Random(seed);
    let mut b = TraceBuilder::new(1, 8);
    let mut threads: BTreeMap<u32, Thread> = BTreeMap::new();
    // By address space: the names at the places.
    let mut maps: BTreeMap<u32, [Option<u64>; 4]> = BTreeMap::new();
    let mut known = Vec::new();
    let (mut next_id, mut next_mm, mut page) = (100, 2, 0);
    b.task(0, 10, 10, 1, "first");
    let first = Thread {
        tgid: 10,
        mm: 1,
        comm: "first".into(),
        cgroup: String::new(),
        ancestors: vec![10],
    };
    threads.insert(10, first);
    maps.insert(1, [None; 4]);
    let place = |at: usize| HERE + (at as u64 + 1) * 0x100_0000;
    for _ in 0..steps {
        let tids: Vec<u32> = threads.keys().copied().collect();
        let tid = tids[random.below(tids.len() as u64) as usize];
        let thread = threads[&tid].clone();
        let mm = thread.mm;
        let at = random.below(4) as usize;
        let range = place(at)..place(at) + 0x8000;
        match random.below(30) {
            0 if threads.len() < 20 => {
                next_id += 1;
                next_mm += 1;
                b.fork(0, tid, mm, next_id, next_mm);
                let mut child = thread.clone();
                (child.tgid, child.mm) = (next_id, next_mm);
                child.ancestors.push(next_id);
                threads.insert(next_id, child);
                maps.insert(next_mm, maps[&mm]);
            }
            1 if threads.len() < 20 => {
                next_id += 1;
                b.thread(0, tid, thread.tgid, mm, next_id);
                threads.insert(next_id, thread);
            }
            2 => {
                let comm = format!("name-{}", random.below(3));
                b.task(0, tid, thread.tgid, mm, &comm);
                threads.get_mut(&tid).unwrap().comm = comm;
            }
            3 => {
                let path = format!("/group/{}", random.below(3));
                let all = random.below(2) == 0;
                b.cgroup(0, (tid, if all { thread.tgid } else { 0 }), &path);
                for (id, other) in &mut threads {
                    if *id == tid || all && other.tgid == thread.tgid {
                        other.cgroup.clone_from(&path);
                    }
                }
            }
            // Exec ends all other threads.
            4 if tid == thread.tgid => {
                next_mm += 1;
                let comm = format!("prog-{}", random.below(3));
                b.exec(0, tid, mm, next_mm, &comm);
                b.mm_end(0, tid, mm);
                threads.retain(|id, other| *id == tid || other.tgid != thread.tgid);
                let own = threads.get_mut(&tid).unwrap();
                (own.comm, own.mm) = (comm, next_mm);
                maps.insert(next_mm, [None; 4]);
            }
            5..=7 => {
                let places = maps.get_mut(&mm).unwrap();
                if places[at].is_some() {
                    b.unmap(0, tid, mm, range.start, range.end);
                    places[at] = None;
                } else {
                    let ino = random.below(3);
                    match ino {
                        0 => b.map_anon(0, tid, mm, range.start, range.end, Prot(3)),
                        _ => b.map_file(0, tid, mm, range.start, range.end, Prot(3), true, ino, 0),
                    }
                    places[at] = Some(ino);
                }
            }
            8 => {
                let places = maps.get_mut(&mm).unwrap();
                let to = random.below(4) as usize;
                if places[at].is_some() && places[to].is_none() {
                    b.relocate(0, tid, mm, range, place(to)..place(to) + 0x8000, false);
                    places.swap(at, to);
                }
            }
            _ => {
                let Some(ino) = maps[&mm][at] else {
                    continue;
                };
                page = (page + 1) % 8;
                let kind = [Access::Read, Access::Write][random.below(2) as usize];
                let (addr, before) = (range.start + page * 0x1000, b.last_seq());
                b.touch_as(0, tid, mm, addr, kind);
                if b.last_seq() > before {
                    known.push(Known {
                        seq: b.last_seq(),
                        tid,
                        thread,
                        mapping: match ino {
                            0 => "[anon]".into(),
                            _ => format!("/lib/file-{ino}.so"),
                        },
                        kind,
                        addr,
                    });
                }
            }
        }
    }
    (Trace::from_bytes("memory", b.finish()).unwrap(), known)
}

/// What an expression says, and whether a reference fits it.
type Case = (&'static str, fn(&Known) -> bool);

const CASES: &[Case] = &[
    ("comm == \"name-1\"", |k| k.thread.comm == "name-1"),
    ("comm ~ \"prog-*\" && kind == write", |k| {
        k.thread.comm.starts_with("prog-") && k.kind == Access::Write
    }),
    ("cgroup in (\"/group/0\", \"/group/2\")", |k| {
        matches!(k.thread.cgroup.as_str(), "/group/0" | "/group/2")
    }),
    ("cgroup == \"\" || comm == \"first\"", |k| {
        k.thread.cgroup.is_empty() || k.thread.comm == "first"
    }),
    ("mapping ~ \"*.so\" && mapping != \"/lib/file-1.so\"", |k| {
        k.mapping == "/lib/file-2.so"
    }),
    ("mapping_kind == anon && !(comm ~ \"name*\")", |k| {
        k.mapping == "[anon]" && !k.thread.comm.starts_with("name")
    }),
    ("tree == 101 && tree != 103", |k| {
        k.thread.ancestors.contains(&101) && !k.thread.ancestors.contains(&103)
    }),
    ("tree in (102, 104..110) || tid == 10", |k| {
        k.tid == 10
            || k.thread
                .ancestors
                .iter()
                .any(|a| matches!(a, 102 | 104..110))
    }),
    ("pid > 102 && (kind == read || comm == \"name-2\")", |k| {
        k.thread.tgid > 102 && (k.kind == Access::Read || k.thread.comm == "name-2")
    }),
    (
        "addr >= 0x2100000 && comm ~ \"*-0\" || mapping == \"[anon]\" && cgroup !~ \"*1\"",
        |k| {
            k.addr >= 0x210_0000 && k.thread.comm.ends_with("-0")
                || k.mapping == "[anon]" && !k.thread.cgroup.ends_with('1')
        },
    ),
];

#[test]
fn whatever_changes_each_reference_is_judged_at_its_moment() {
    let mut both = BTreeSet::new();
    for seed in 0..if cfg!(debug_assertions) { 12 } else { 60 } {
        let (trace, known) = changes(seed, 4_000);
        assert!(known.len() > 500, "{}", known.len());
        for (text, fits) in CASES {
            let expected: Vec<u64> = known.iter().filter(|k| fits(k)).map(|k| k.seq).collect();
            both.extend((!expected.is_empty()).then_some((text, true)));
            both.extend((expected.len() < known.len()).then_some((text, false)));
            let (seqs, filtered) = read(&trace, None, text, false);
            assert!(seqs == expected, "seed {seed}: {text}");
            assert_eq!(filtered.left_out, (known.len() - expected.len()) as u64);
        }
    }
    // Each of them keeps some, and leaves out some.
    assert_eq!(both.len(), 2 * CASES.len());
}

/// Compares what is remembered with the definition, for each record.
struct Both {
    filter: Filter,
    text: &'static str,
    seen: u64,
    fit: u64,
}

impl Consumer for Both {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        self.filter.begin(trace, false);
        Ok(())
    }
    fn wants_continuations(&self) -> bool {
        true
    }
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for (r, place) in batch.refs.iter().zip(batch.places) {
            let fits = self.filter.fits(r, place, batch.world);
            let defined = self.filter.by_definition(r, place, batch.world);
            assert_eq!(fits, defined, "{}: {}", self.text, r.seq);
            self.seen += 1;
            self.fit += u64::from(fits);
        }
        Ok(())
    }
}

/// All traces that a kernel wrote.
fn fixtures() -> Vec<(String, Trace)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1");
    let mut traces = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "zst") {
            let bytes = zstd::decode_all(&std::fs::read(&path).unwrap()[..]).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            traces.push((name, Trace::from_bytes("memory", bytes).unwrap()));
        }
    }
    assert!(traces.len() >= 13);
    traces
}

const OF_FIXTURES: &[&str] = &[
    "comm ~ \"f*\" && kind == write",
    "mapping ~ \"*/bin/*\" || mapping_kind in (anon, special)",
    "tree == 50 && (mode == kernel || addr < 0x500000)",
    "cgroup == \"/\" && mapping !~ \"[[]*\"",
    "comm == \"activator\" || mapping_kind == file && kind != read",
    "window in 1..3 && time > 1ms || seq < 300",
    "pid == 50 && tid == 50 && cpu == 0 && set == 0 && page > 5",
];

#[test]
fn what_is_remembered_is_what_is_defined() {
    let mut some = 0;
    for (name, trace) in fixtures() {
        for text in OF_FIXTURES.iter() {
            let mut both = Both {
                filter: Filter::new(&clause(text)),
                text,
                seen: 0,
                fit: 0,
            };
            let consumers: &mut [&mut dyn Consumer] = &mut [&mut both];
            pipeline::run(&trace, PageMode::Unnamed, &mut Unwatched, consumers).unwrap();
            some += u64::from(both.fit > 0 && both.fit < both.seen);
            let (seqs, filtered) = read(&trace, None, text, false);
            let (others, rest) = read(&trace, None, &format!("!({text})"), false);
            assert_eq!(
                (filtered.kept, filtered.left_out),
                (rest.left_out, rest.kept),
                "{name}"
            );
            let all: BTreeSet<u64> = seqs.into_iter().chain(others).collect();
            assert_eq!(all.len() as u64, filtered.kept + filtered.left_out);
        }
    }
    assert!(some >= 20, "{some}");
}

/// In a trace of a kernel: a program is called by the name of its parent until exec.
#[test]
fn the_names_of_a_real_program_change_at_exec() {
    let fixtures = fixtures();
    let (_, trace) = fixtures
        .iter()
        .find(|(n, _)| n.starts_with("fork-exec"))
        .unwrap();
    let mut merge = postproc::trace::Merge::of_kinds(trace, &[postproc::trace::StreamKind::Event]);
    let mut execs = Vec::new();
    loop {
        match merge.fill(&mut Vec::new(), 1).unwrap() {
            postproc::trace::Step::Event(event) => {
                if let postproc::trace::Body::Exec { comm, .. } = event.body {
                    let comm = String::from_utf8_lossy(comm).into_owned();
                    execs.push((event.seq, event.tid.0, comm));
                }
            }
            postproc::trace::Step::Full => {}
            postproc::trace::Step::End => break,
        }
    }
    let (seq, tid, comm) = &execs[0];
    let new = kept(trace, &format!("comm == \"{comm}\" && tid == {tid}"));
    let old = kept(trace, &format!("comm != \"{comm}\" && tid == {tid}"));
    assert!(!new.is_empty() && !old.is_empty());
    assert!(new.iter().all(|n| n > seq) && old.iter().all(|n| n < seq));
}

/// A directory with a trace of two windows and two programs, and other inputs.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let mut b = TraceBuilder::new(2, 8);
    b.virtual_time(1_000_000);
    for window in 0..2 {
        b.begin_window(400);
        for (i, (pid, comm)) in [(42, "cc1"), (43, "as")].into_iter().enumerate() {
            let mm = 2 * window + i as u32 + 1;
            b.task(0, pid, pid, mm, comm);
            b.map_anon(0, pid, mm, HERE, HERE + 0x10_0000, Prot(3));
            b.file(
                (0, pid, mm),
                uapi::VMTRACE_EV_OPEN,
                7,
                uapi::VMTRACE_FILE_REGULAR,
                "marker",
            );
            b.io((0, pid, mm), uapi::VMTRACE_EV_READ, 7, 0, 9000);
            for page in 0..100 {
                let access = [Access::Read, Access::Write][page as usize % 4 / 3];
                b.touch_as(page as u32 % 2, pid, mm, HERE + page % 50 * 0x1000, access);
            }
            b.close(mm, HERE, Why::Other);
        }
        b.end_window(|_| {});
    }
    std::fs::write(directory.path().join("t.vmt"), b.finish()).unwrap();
    std::fs::write(directory.path().join("t.txt"), "1\n2\n").unwrap();
    directory
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn run(directory: &tempfile::TempDir, args: &[&str], code: i32) -> Output {
    let output = postproc(args, directory.path());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    output
}

/// The first value that was printed.
fn json(output: &Output) -> Value {
    let values = serde_json::Deserializer::from_slice(&output.stdout);
    values.into_iter().next().unwrap().unwrap()
}

const CC1: &str = "comm == \"cc1\" && kind == write";

/// Of 400 references, 200 are cc1's, of which a quarter are writes.
#[track_caller]
fn is_counted(filter: &Value) {
    assert_eq!(filter["where"], CC1);
    assert_eq!(
        (&filter["kept"], &filter["left_out"]),
        (&50.into(), &350.into()),
        "{filter}"
    );
}

const COUNTED: &str = "--where: 50 of 400 references kept, 350 left out";

#[test]
fn every_command_that_reads_references_counts_what_is_left_out() {
    let directory = directory();
    for (args, to_stderr) in [
        (&["export", "--format", "csv", "-o", "out.csv"][..], true),
        (&["export", "--format", "parquet", "-o", "parquet"], true),
        (&["export", "--format", "ctf", "-o", "ctf"], true),
        (
            &[
                "export",
                "--format",
                "txt",
                "--per-process",
                "-o",
                "out.txt",
            ],
            true,
        ),
        (
            &[
                "reduce",
                "--method",
                "sad",
                "--size",
                "16",
                "-o",
                "out.sad.csv",
            ],
            true,
        ),
        (
            &["simulate", "--size", "10", "--policy", "lru,opt,arc"],
            false,
        ),
        (&["simulate", "--curve"], false),
        (&["simulate", "--limit", "process=10"], false),
        (&["advise"], false),
        (&["info"], false),
        (&["damon"], false),
    ] {
        let args = [args, &["t.vmt", "--where", CC1]].concat();
        let output = run(&directory, &args, 0);
        let said = text(if to_stderr {
            &output.stderr
        } else {
            &output.stdout
        });
        assert!(said.contains(COUNTED), "{args:?}: {said}");
        let _ = std::fs::remove_dir_all(directory.path().join("parquet"));
        let _ = std::fs::remove_dir_all(directory.path().join("ctf"));
        let output = run(&directory, &[&args[..], &["--json"]].concat(), 0);
        is_counted(&json(&output)["filter"]);
    }
    let output = run(
        &directory,
        &["report", "t.vmt", "--where", CC1, "-o", "r"],
        0,
    );
    let said = text(&output.stdout);
    assert!(said.contains("350  references, by --where 'comm"), "{said}");
    assert!(
        said.contains("none: some are left out") && !said.contains("proven, "),
        "{said}"
    );
    let page = std::fs::read_to_string(directory.path().join("r/report.html")).unwrap();
    assert!(page.contains("350 left out by --where") && !page.contains("They are proven"));
    let output = run(
        &directory,
        &["report", "t.vmt", "--where", CC1, "-o", "r.html", "--json"],
        0,
    );
    let summary = json(&output);
    is_counted(&summary["filter"]);
    assert_eq!(summary["references"], 50);
    // Each window has a process of its own.
    let processes = summary["top_processes"].as_array().unwrap();
    assert!(processes.len() == 2 && processes.iter().all(|p| p["references"] == 25));
    assert_eq!(summary["lru"]["valid_from_pages"], Value::Null);
}

/// What the options of a selection are in the language, in the trace of [`directory`].
const SELECTIONS: &[(&[&str], &str)] = &[
    (&["--comm", "cc1"], "comm == \"cc1\""),
    (
        &["--comm", "cc*", "--comm", "x"],
        "(comm ~ \"cc*\" || comm == \"x\")",
    ),
    (&["--process", "cc1"], "process == \"cc1\""),
    (&["--mapping", "[anon]"], "mapping == \"[anon]\""),
    (&["--mapping", "*"], "mapping ~ \"*\""),
    (
        &["--address", "100000-110000"],
        "addr in 0x100000..=0x10ffff",
    ),
    (&["--address", "0x101234"], "addr in 0x101000..=0x101fff"),
    (
        &["--since", "0.01us", "--until", "1min"],
        "time >= 10ns && time < 60s",
    ),
    (
        &["--where", "kind == write", "--comm", "cc1"],
        "(kind == write) && comm == \"cc1\"",
    ),
];

/// Commands that read references, and the files that they write.
const READERS: &[(&str, &[&str])] = &[
    ("info t.vmt", &[]),
    ("simulate t.vmt --size 10 --policy lru,opt,arc", &[]),
    ("simulate t.vmt --curve", &[]),
    ("advise t.vmt", &[]),
    ("compare t.vmt t.vmt --size 10", &[]),
    ("export t.vmt --format csv -o out.csv", &["out.csv"]),
    (
        "reduce t.vmt --method sad --size 16 -o sad.csv",
        &["sad.csv"],
    ),
    ("report t.vmt -o r.html", &["r.html"]),
    ("damon t.vmt", &[]),
];

#[test]
fn a_selection_is_the_same_as_its_filter() {
    let directory = directory();
    let readers: Vec<_> = READERS
        .iter()
        .map(|(line, files)| (line.split(' ').collect::<Vec<_>>(), files))
        .collect();
    let result = |line: &[&str], files: &[&str], more: &[&str]| -> Vec<Vec<u8>> {
        let line = [line, more, &["--json"]].concat();
        // Why there are no bounds is said of what was typed.
        let said = text(&run(&directory, &line, 0).stdout);
        let said = said.replace("the selection leaves", "--where leaves");
        let mut all = vec![said.into_bytes()];
        for file in files {
            let path = directory.path().join(file);
            all.push(std::fs::read(&path).unwrap());
            std::fs::remove_file(path).unwrap();
        }
        all
    };
    for (line, files) in &readers {
        let whole = result(line, files, &[]);
        for (options, expression) in SELECTIONS {
            let selected = result(line, files, options);
            let filtered = result(line, files, &["--where", expression]);
            assert!(selected == filtered, "{line:?} {options:?}");
            assert!(
                selected != whole,
                "{line:?} {options:?}: nothing is selected"
            );
        }
    }
    // What was selected is printed.
    let line = ["simulate", "t.vmt", "--curve", "--comm", "cc1"];
    let said = text(&run(&directory, &[&line[..], &["--since", "0s"]].concat(), 0).stdout);
    let selected = "--since 0s --comm cc1: 200 of 400 references kept, 200 left out";
    assert!(said.contains(selected), "{said}");
    // By its id, a process is what it is by its name: here it has one thread.
    for (line, files) in readers.iter().filter(|(line, _)| line[0] != "compare") {
        let of = |more: &[&str]| {
            let mut results = result(line, files, more);
            let text = text(&results.remove(0));
            let mut json: Value = serde_json::from_str(&text).unwrap_or_default();
            json.as_object_mut().map(|object| object.remove("filter"));
            (json, results)
        };
        let (by_id, by_name) = (of(&["--process", "42"]), of(&["--process", "cc1"]));
        // The page of a report has the expression.
        if line[0] != "report" {
            // An id is no filter everywhere, so reasons and counts beside the results differ.
            assert_eq!(by_id.0["references"], by_name.0["references"], "{line:?}");
            assert!(by_id.1 == by_name.1, "{line:?}");
        }
        // The header has no references; only what was counted differs.
        assert_eq!(by_id != of(&[]), line[0] != "info", "{line:?}");
    }
}

#[test]
fn a_share_of_a_trace_counts_from_its_beginning() {
    let directory = directory();
    let kept = |more: &[&str]| {
        let line = [&["info", "t.vmt", "--json"], more].concat();
        let filter = json(&run(&directory, &line, 0))["filter"].clone();
        (filter["kept"].as_u64().unwrap(), filter["where"].clone())
    };
    let (first, part) = kept(&["--until", "50%"]);
    assert!(part.as_str().unwrap().starts_with("time < "), "{part}");
    assert!((1..400).contains(&first), "{first}");
    assert_eq!(kept(&["--since", "50%"]).0, 400 - first);
    assert_eq!(kept(&["--since", "0%"]).0, 400);
}

/// A trace of the kernel has names of files without their directories. Whoever selects by a path is told
/// so, unless other names of the trace are paths.
#[test]
fn a_path_that_fits_nothing_is_explained() {
    let directory = tempfile::tempdir().unwrap();
    let names = ["libc.so.6", "dev/zero", "[heap]"];
    for (trace, last) in [("kernel.vmt", "ld.so"), ("paths.vmt", "/usr/lib/ld.so")] {
        let mut b = TraceBuilder::new(1, 4);
        b.task(0, 42, 42, 1, "cc1");
        for (ino, name) in (1..).zip(names.into_iter().chain([last])) {
            let start = HERE + ino * 0x10_0000;
            let file = FileId {
                dev: 1,
                ino,
                generation: 0,
            };
            let kind = uapi::VMTRACE_MAP_FILE;
            let range = start..start + 0x10_0000;
            b.map(0, 42, 1, range, Prot(5), kind, 0, file, 0, name);
            for page in 0..10 {
                b.touch(0, 42, 1, start + page * 0x1000);
            }
        }
        std::fs::write(directory.path().join(trace), b.finish()).unwrap();
    }
    let none = "names of files have no directories in this trace";
    let instead = |names: &str| format!("left out; {none}: write {names}");
    let libc = instead("libc.so.6 instead of /usr/lib/libc.so.6");
    let cases: [(&[&str], String); 8] = [
        (&["--mapping", "/usr/lib/libc.so.6"], libc.clone()),
        (&["--where", "mapping == \"/usr/lib/libc.so.6\""], libc),
        (
            &["--mapping", "*/lib/libc*", "--mapping", "/bin/cc"],
            instead("libc* instead of */lib/libc*, cc instead of /bin/cc"),
        ),
        (
            &["--where", "mapping in (\"/bin/cc\", \"x\") && kind == read"],
            instead("cc instead of /bin/cc"),
        ),
        (&["--mapping", "/usr/lib/*"], format!("left out; {none}\n")),
        (&["--mapping", "no.so"], "left out\n".into()),
        (&["--comm", "a/b"], "left out\n".into()),
        (
            &["--where", "mapping == \"no.so\" && mapping != \"/x/y\""],
            "left out\n".into(),
        ),
    ];
    for (args, why) in &cases {
        let line = [&["simulate", "kernel.vmt", "--size", "9"], *args].concat();
        let said = text(&run(&directory, &line, 2).stderr);
        assert!(said.contains(why.as_str()), "{args:?}: {said}");
        assert!(said.contains(" keeps no reference: all 40 are "), "{said}");
        if args.contains(&"/usr/lib/*") {
            continue;
        }
        let line = [&["simulate", "paths.vmt", "--size", "9"], *args].concat();
        let said = text(&run(&directory, &line, 2).stderr);
        assert!(said.contains("left out\n"), "{args:?}: {said}");
    }
    for line in [
        "summary kernel.vmt -o p --mapping /usr/lib/libc.so.6",
        "dataset kernel.vmt -o p --mapping /usr/lib/libc.so.6",
        "report kernel.vmt -o p --mapping /usr/lib/libc.so.6",
    ] {
        let line: Vec<_> = line.split(' ').collect();
        let said = text(&run(&directory, &line, 2).stderr);
        let want =
            "40 are left out; names of files have no directories in this trace: write libc.so.6";
        assert!(said.contains(want), "{line:?}: {said}");
    }
    // A path of a trace that has paths is as good as ever, and so is its last part.
    for name in ["/usr/lib/ld.so", "ld.so", "*lib/ld.so"] {
        let line = ["info", "paths.vmt", "--json", "--mapping", name];
        assert_eq!(json(&run(&directory, &line, 0))["filter"]["kept"], 10);
    }
}

#[test]
fn a_selection_that_makes_no_sense_names_its_option() {
    let directory = directory();
    for (line, why) in [
        (
            "info --since 5",
            "'5' for '--since <TIME>': expected a time",
        ),
        ("info --since 101%", "'101%' for '--since <TIME>'"),
        (
            "info --address 0x2..0x1",
            "'--address <RANGE>': the range is empty",
        ),
        ("check --since 1s", "--since: "),
        ("check --mapping x", "--mapping: "),
        ("maps --comm x", "--comm: maps shows"),
        ("split --by windows -o p --process x", "--process: "),
        ("pack -o p --comm x", "--comm: "),
        (
            "simulate --io --curve --mapping x",
            "--mapping: what read() and write()",
        ),
        (
            "report -o r.html --time virtual --until 1s",
            "--until: `time` is",
        ),
        (
            "simulate --curve --comm none",
            "--comm none keeps no reference: all 400",
        ),
        ("simulate --fill --size 9 --comm x", "--fill"),
    ] {
        let mut line: Vec<_> = line.split(' ').collect();
        line.insert(1, "t.vmt");
        let output = run(&directory, &line, 2);
        let said = text(&output.stderr);
        assert!(said.contains(why), "{line:?}: {said}");
    }
    for option in ["--since=1s", "--comm=x", "--mapping=x", "--address=1-2"] {
        let line = ["simulate", "--from", "txt", "t.txt", "--curve", option];
        let said = text(&run(&directory, &line, 2).stderr);
        let (name, _) = option.split_once('=').unwrap();
        assert!(
            said.contains(&format!("{name}: a trace of format txt")),
            "{said}"
        );
    }
    let listed = |more: &[&str]| {
        let line = [&["events", "t.vmt"], more].concat();
        text(&run(&directory, &line, 0).stdout).lines().count()
    };
    assert_eq!(
        listed(&["--process", "cc1", "--since", "1ns"]),
        listed(&["--where", "process == \"cc1\" && time >= 1ns"])
    );
    assert!(listed(&["--process", "cc1"]) < listed(&[]));
}

#[test]
fn what_is_written_is_what_fits() {
    let directory = directory();
    let csv = |filter: Option<&str>, name: &str| -> Vec<Vec<String>> {
        let mut args = vec![
            "export", "t.vmt", "--format", "csv", "--pages", "virtual", "-o", name,
        ];
        args.extend(filter.iter().flat_map(|text| ["--where", text]));
        run(&directory, &args, 0);
        let text = std::fs::read_to_string(directory.path().join(name)).unwrap();
        let lines = text
            .lines()
            .map(|l| l.split(',').map(String::from).collect());
        lines.collect()
    };
    let all = csv(None, "all.csv");
    let column = |name: &str| all[0].iter().position(|n| n == name).unwrap();
    let (access, cpu, tid, address) = (
        column("access"),
        column("cpu"),
        column("tid"),
        column("address"),
    );
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    type Fits<'f> = &'f dyn Fn(&[String]) -> bool;
    let cases: [(&str, Fits<'_>); 4] = [
        ("kind == write", &|row| row[access] == "write"),
        ("kind == read && cpu == 1", &|row| {
            row[access] == "read" && row[cpu] == "1"
        }),
        ("tid in (42, 99)", &|row| row[tid] == "42"),
        ("addr in 0x110000..0x120000", &|row| {
            (0x11_0000..0x12_0000).contains(&number(&row[address]))
        }),
    ];
    let seqs = |rows: &[Vec<String>], fits: Fits<'_>| -> Vec<String> {
        let rows = rows.iter().skip(1).filter(|row| row[access] != "free");
        rows.filter(|row| fits(row))
            .map(|row| row[0].clone())
            .collect()
    };
    for (text, fits) in cases {
        let expected = seqs(&all, fits);
        assert!(!expected.is_empty() && expected.len() < 400, "{text}");
        assert_eq!(
            seqs(&csv(Some(text), "some.csv"), &|_| true),
            expected,
            "{text}"
        );
    }
}

#[test]
fn windows_are_selected_by_the_filter_or_the_option() {
    let directory = directory();
    let count = |args: &[&str]| {
        let args = [&["info", "t.vmt", "--json"], args].concat();
        let filter = json(&run(&directory, &args, 0))["filter"].clone();
        (
            filter["kept"].as_u64().unwrap(),
            filter["left_out"].as_u64().unwrap(),
        )
    };
    assert_eq!(count(&["--where", "window == 1"]), (200, 200));
    assert_eq!(count(&["--where", "window > 1"]), (0, 400));
    assert_eq!(
        count(&["--window", "1", "--where", "window == 1"]),
        (200, 0)
    );
    assert_eq!(
        count(&["--window", "0", "--where", "window == 1"]),
        (0, 200)
    );
    assert_eq!(count(&["--window", "0", "--where", "time < 1s"]), (200, 0));
    let args = [
        "simulate",
        "t.vmt",
        "--per-window",
        "--size",
        "9",
        "--where",
        CC1,
    ];
    let said = text(&run(&directory, &args, 0).stdout);
    assert_eq!(
        said.matches("25 of 200 references kept, 175 left out")
            .count(),
        2,
        "{said}"
    );
}

#[test]
fn events_are_filtered_by_what_holds_after_them() {
    let directory = directory();
    let lines = |args: &[&str]| {
        let output = run(&directory, &[&["events", "t.vmt"], args].concat(), 0);
        (
            text(&output.stdout)
                .lines()
                .map(String::from)
                .collect::<Vec<_>>(),
            text(&output.stderr),
        )
    };
    let (all, said) = lines(&[]);
    assert!(said.is_empty());
    let (some, said) = lines(&["--where", "comm == \"cc1\" && class in (file, io)"]);
    let expected: Vec<&String> = all
        .iter()
        .filter(|l| l.contains(" pid=42 ") && (l.contains(" open ") || l.contains(" read ")))
        .collect();
    assert_eq!(some.iter().collect::<Vec<_>>(), expected);
    assert_eq!(some.len(), 4);
    let left_out = all.len() - 4;
    let counted = format!(
        "--where: 4 of {} events kept, {left_out} left out\n",
        all.len()
    );
    assert_eq!(said, counted);
    // It counts among the events that the other options select.
    let (some, said) = lines(&["--type", "open", "--where", "tid == 43 && window == 1"]);
    assert_eq!(
        (some.len(), said.as_str()),
        (1, "--where: 1 of 4 events kept, 3 left out\n")
    );
    let (some, _) = lines(&["--where", "event == task && tree == 42"]);
    assert!(
        some.len() == 2 && some.iter().all(|l| l.contains(" pid=42 ")),
        "{some:?}"
    );
    let (some, _) = lines(&["--json", "--where", "event == read"]);
    let last: Value = serde_json::from_str(some.last().unwrap()).unwrap();
    assert_eq!((some.len(), &last["filter"]["kept"]), (5, &4.into()));
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    let directory = directory();
    for (args, reason) in [
        (
            &["check", "t.vmt", "--where", CC1][..],
            "the rules are about all records",
        ),
        (
            &["maps", "t.vmt", "--where", CC1],
            "maps shows no references",
        ),
        (
            &["pack", "t.vmt", "-o", "p", "--where", CC1],
            "the output has all records",
        ),
        (
            &["unpack", "t.vmt", "-o", "p", "--where", CC1],
            "the output has all records",
        ),
        (
            &["recover", "t.vmt", "-o", "p", "--where", CC1],
            "copies whole packets",
        ),
        (
            &[
                "split", "t.vmt", "--by", "windows", "-o", "p", "--since", "1s",
            ],
            "the files have all records",
        ),
        (
            &["join", "t.vmt", "-o", "p", "--process", "cc1"],
            "the files have all records",
        ),
        (
            &["summary", "t.vmt", "--where", "pid == 42 && seq < 9"],
            "use --since and --until",
        ),
        (
            &["summary", "t.vmt", "-o", "p", "--comm", "ld"],
            "t.vmt: --comm ld keeps no reference: all 400 are left out",
        ),
        (
            &["maps", "t.vmt", "--since", "1s"],
            "--since: all events up to a moment are needed",
        ),
        (
            &["maps", "t.vmt", "--comm", "cc1"],
            "--comm: maps shows no references, and no threads",
        ),
        (
            &["regions", "t.vmt", "--where", CC1],
            "--where: reports of regions are no references",
        ),
        (
            &["regions", "t.vmt", "--mapping", "[heap]"],
            "--mapping: regions are of addresses",
        ),
        (
            &["simulate", "t.vmt", "--size", "9", "--fill", "--where", CC1],
            "--fill finds the place of a reference by counting",
        ),
        (
            &[
                "simulate", "--from", "txt", "t.txt", "--size", "9", "--where", CC1,
            ],
            "format txt does not say whose",
        ),
        (
            &[
                "reduce", "--from", "txt", "t.txt", "--method", "sad", "--size", "9", "-o", "p",
                "--where", CC1,
            ],
            "format txt does not say whose",
        ),
        (
            &[
                "report", "--from", "txt", "t.txt", "-o", "p", "--where", CC1,
            ],
            "format txt does not say whose",
        ),
        (
            &[
                "simulate",
                "t.vmt",
                "--size",
                "9",
                "--io",
                "--where",
                "pid == 1 || addr > 5",
            ],
            "  pid == 1 || addr > 5\n              ^^^^",
        ),
        (
            &[
                "export",
                "t.vmt",
                "--format",
                "csv",
                "-o",
                "p",
                "--time",
                "virtual",
                "--where",
                "time > 5s",
            ],
            "`time` is the system's clock",
        ),
        (
            &[
                "report",
                "t.vmt",
                "-o",
                "p",
                "--time",
                "virtual",
                "--where",
                "time > 5s",
            ],
            "`time` is the system's clock",
        ),
        (
            &[
                "damon", "t.vmt", "--record", "t.txt", "--space", "1", "--where", CC1,
            ],
            "the real DAMON of --record saw all",
        ),
        (
            &[
                "export",
                "t.vmt",
                "--format",
                "csv",
                "-o",
                "p",
                "--where",
                "event == exec",
            ],
            "no `event`",
        ),
        (
            &["events", "t.vmt", "--where", "pid == 42 && kind == write"],
            "events have no `kind`",
        ),
        (
            &["info", "t.vmt", "--where", "pdi == 42"],
            "did you mean `pid`?",
        ),
        (&["info", "t.vmt", "--where", ""], "the expression is empty"),
        (
            &[
                "simulate",
                "t.vmt",
                "--size",
                "9",
                "--where",
                "comm == \"ld\"",
            ],
            "keeps no reference: all 400 are left out",
        ),
        (
            &[
                "export",
                "t.vmt",
                "--format",
                "csv",
                "-o",
                "p",
                "--where",
                "comm == \"ld\"",
            ],
            "keeps no reference: all 400 are left out",
        ),
        (
            &["report", "t.vmt", "-o", "p", "--where", "comm == \"ld\""],
            "keeps no reference: all 400 are left out",
        ),
    ] {
        let said = text(&run(&directory, args, 2).stderr);
        assert!(said.contains(reason), "{args:?}: {said}");
        assert!(!directory.path().join("p").exists(), "{args:?}");
    }
}

#[test]
fn io_is_filtered_by_who_did_it() {
    let directory = directory();
    let io = |filter: &str| {
        let args = [
            "simulate", "t.vmt", "--size", "9", "--io", "--json", "--where", filter,
        ];
        let out = json(&run(&directory, &args, 0));
        (
            out["io"].as_u64().unwrap(),
            out["references"].as_u64().unwrap(),
        )
    };
    // Each process reads three pages in each window.
    assert_eq!(io("pid in (42, 43)"), (12, 412));
    assert_eq!(io("comm == \"cc1\""), (6, 206));
    assert_eq!(io("comm == \"cc1\" && mode == kernel"), (6, 6));
    assert_eq!(io("kind == write && pid == 43"), (0, 50));
}

#[test]
fn filtered_references_have_no_bounds() {
    let directory = directory();
    let args = [
        "simulate", "t.vmt", "--size", "100", "--policy", "lru,arc", "--json",
    ];
    let whole = json(&run(&directory, &args, 0));
    assert_eq!(
        (&whole["exact"], &whole["filter"]),
        (&true.into(), &Value::Null)
    );
    assert!(whole["sizes"][0]["low"].is_u64(), "{whole}");
    let some = json(&run(
        &directory,
        &[&args[..], &["--where", "pid > 0"]].concat(),
        0,
    ));
    assert_eq!(some["exact"], false);
    assert!(
        some["why_not_exact"]
            .as_str()
            .unwrap()
            .starts_with("--where leaves")
    );
    assert_eq!(some["sizes"][0]["low"], Value::Null);
    assert_eq!(some["sizes"][0]["misses"], whole["sizes"][0]["misses"]);
}
