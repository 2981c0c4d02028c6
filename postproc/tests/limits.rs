//! Memories of limits, against each one's references alone.

use std::collections::HashMap;

use postproc::canon::PageMode;
use postproc::error::Result;
use postproc::pipeline::{self, Batch, Consumer, Freeing, Unwatched, World};
use postproc::sim::{self, Access, Counts, Limit, Limits};
use postproc::testing::TraceBuilder;
use postproc::trace::Trace;
use postproc::units::{self, CanonPage, Prot};
use proptest::prelude::*;
use rust_mm_trace::uapi;

const PAGES: u64 = 12;
const ANON: u64 = 0x10_0000;
const SHARED: u64 = 0x20_0000;
const NAMES: [&str; 3] = ["make", "gcc", "ld"];
const GROUPS: [&str; 4] = ["/", "/build", "/build/one", "/builder"];

#[derive(Clone, Debug)]
enum Op {
    Touch {
        process: usize,
        page: u64,
        shared: bool,
        write: bool,
    },
    Read {
        process: usize,
        page: u64,
    },
    /// A page of memory of its own is unmapped and mapped again.
    Unmap {
        process: usize,
        page: u64,
    },
    /// The file that all share is cut.
    Truncate {
        pages: u64,
    },
    Rename {
        process: usize,
        name: usize,
    },
    Move {
        process: usize,
        group: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let process = 0..4usize;
    prop_oneof![
        20 => (process.clone(), 0..PAGES, any::<bool>(), any::<bool>())
            .prop_map(|(process, page, shared, write)| Op::Touch { process, page, shared, write }),
        2 => (process.clone(), 0..PAGES + 4).prop_map(|(process, page)| Op::Read { process, page }),
        2 => (process.clone(), 0..PAGES).prop_map(|(process, page)| Op::Unmap { process, page }),
        1 => (0..2 * PAGES).prop_map(|pages| Op::Truncate { pages }),
        1 => (process.clone(), 0..3usize).prop_map(|(process, name)| Op::Rename { process, name }),
        1 => (process, 0..4usize).prop_map(|(process, group)| Op::Move { process, group }),
    ]
}

/// The trace, and of each reference in it whose it is: process, name and group.
type Whose = (usize, &'static str, &'static str);

fn play(ops: &[Op]) -> (Vec<u8>, Vec<Whose>) {
    let mut builder = TraceBuilder::new(1, 1);
    // Processes 0 to 2, and 3, which 0 forks.
    let mut who: Vec<Whose> = Vec::new();
    for process in 0..3u32 {
        let (tid, mm) = (10 + process, 1 + process);
        builder.task(0, tid, tid, mm, NAMES[0]);
        let end = |start| start + PAGES * 4096;
        builder.map_anon(0, tid, mm, ANON, end(ANON), Prot(3));
        builder.map_file(0, tid, mm, SHARED, end(SHARED), Prot(3), true, 7, 0);
        who.push((process as usize, NAMES[0], ""));
    }
    builder.fork(0, 10, 1, 13, 4);
    who.push((3, NAMES[0], ""));
    let mut whose = Vec::new();
    for op in ops {
        match *op {
            Op::Touch {
                process,
                page,
                shared,
                write,
            } => {
                let at = if shared { SHARED } else { ANON } + page * 4096;
                let access = match write {
                    true => units::Access::Write,
                    false => units::Access::Read,
                };
                let before = builder.admissions();
                let (tid, mm) = (10 + process as u32, 1 + process as u32);
                builder.touch_as(0, tid, mm, at, access);
                if builder.admissions() > before {
                    whose.push(who[process]);
                }
            }
            Op::Read { process, page } => {
                let at = (0, 10 + process as u32, 1 + process as u32);
                builder.io(at, uapi::VMTRACE_EV_READ, 7, page * 4096, 10);
                whose.push(who[process]);
            }
            Op::Unmap { process, page } => {
                let (tid, mm) = (10 + process as u32, 1 + process as u32);
                let at = ANON + page * 4096;
                builder.unmap(0, tid, mm, at, at + 4096);
                builder.map_anon(0, tid, mm, at, at + 4096, Prot(3));
            }
            Op::Truncate { pages } => builder.truncate(0, 10, 7, pages * 4096),
            Op::Rename { process, name } => {
                let (tid, mm) = (10 + process as u32, 1 + process as u32);
                builder.task(0, tid, tid, mm, NAMES[name]);
                who[process].1 = NAMES[name];
            }
            Op::Move { process, group } => {
                let tid = 10 + process as u32;
                builder.cgroup(0, (tid, tid), GROUPS[group]);
                who[process].2 = GROUPS[group];
            }
        }
    }
    (builder.finish(), whose)
}

/// All references as they come.
#[derive(Default)]
struct All(Vec<Access>);

impl Consumer for All {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        sim::push_accesses(batch, &mut self.0);
        Ok(())
    }

    fn wants_io(&self) -> bool {
        true
    }

    fn io(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.references(batch)
    }

    fn freed(&mut self, pages: &[CanonPage], _: &World) -> Result<()> {
        sim::push_freed(pages, &mut self.0);
        Ok(())
    }
}

/// Adds reads to what limits are given.
struct WithReads(Limits);

impl Consumer for WithReads {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.0.references(batch)
    }

    fn wants_io(&self) -> bool {
        true
    }

    fn io(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.0.references(batch)
    }

    fn follows_freed(&self) -> bool {
        self.0.follows_freed()
    }

    fn freed(&mut self, pages: &[CanonPage], world: &World) -> Result<()> {
        self.0.freed(pages, world)
    }

    fn event(
        &mut self,
        event: &postproc::trace::Event<'_>,
        world: &World,
        issues: &[postproc::space::Issue],
    ) -> Result<()> {
        self.0.event(event, world, issues)
    }

    fn finish(&mut self, trace: &Trace, outcome: &pipeline::Outcome) -> Result<()> {
        self.0.finish(trace, outcome)
    }
}

/// Runs a trace with limits; gives each memory's name and counts, and how many
/// references were left out.
fn simulate(
    trace: &Trace,
    freeing: Freeing,
    limits: &[&str],
    rest: Option<u64>,
) -> (Vec<(String, Vec<Counts>)>, u64) {
    let limits: Vec<Limit> = limits.iter().map(|text| text.parse().unwrap()).collect();
    let policies = sim::registry().iter().collect();
    let mut limits = WithReads(Limits::new(limits, policies, rest));
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut limits];
    let mode = PageMode::Canonical;
    pipeline::run_with(trace, mode, freeing, &mut Unwatched, consumers).unwrap();
    let memories = limits.0.memories().iter();
    let memories = memories.map(|memory| (memory.name.clone(), memory.counts().collect()));
    (memories.collect(), limits.0.left_out())
}

/// The same by sorting references first, each memory's to its name; the end of a page to
/// all that have it.
fn expect(
    all: &[Access],
    whose: &[Whose],
    memory: impl Fn(&Whose) -> Option<(String, u64)>,
) -> (Vec<(String, Vec<Counts>)>, u64) {
    let mut order: Vec<(String, u64)> = Vec::new();
    let mut parts: HashMap<String, Vec<Access>> = HashMap::new();
    let mut left_out = 0;
    let mut whose = whose.iter();
    for access in all {
        if !access.is_reference() {
            // Of a page that it never had, a memory takes no notice.
            for part in parts.values_mut() {
                part.push(*access);
            }
            continue;
        }
        match memory(whose.next().unwrap()) {
            None => left_out += 1,
            Some((name, size)) => {
                let part = parts.entry(name.clone()).or_insert_with(|| {
                    order.push((name, size));
                    Vec::new()
                });
                part.push(*access);
            }
        }
    }
    let memories = order.into_iter().map(|(name, size)| {
        let counts = sim::registry().iter().map(|policy| {
            let mut simulation = (policy.simulate)(size);
            simulation.references(&parts[&name]);
            simulation.counts()
        });
        let counts = counts.collect();
        (name, counts)
    });
    (memories.collect(), left_out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Every memory counts what its references alone give.
    #[test]
    fn memories_are_their_references_alone(
        ops in prop::collection::vec(op(), 1..400),
        size in 1..20u64,
        freeing in prop::sample::select(vec![Freeing::Freed, Freeing::Kept]),
    ) {
        let (bytes, whose) = play(&ops);
        let trace = Trace::from_bytes("memory", bytes).unwrap();
        let mut all = All::default();
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut all];
        let mode = PageMode::Canonical;
        pipeline::run_with(&trace, mode, freeing, &mut Unwatched, consumers).unwrap();
        let all = all.0;
        prop_assert_eq!(all.iter().filter(|a| a.is_reference()).count(), whose.len());

        // Each process by itself, by its last name.
        let got = simulate(&trace, freeing, &[&format!("process={size}")], None);
        let mut last = [NAMES[0]; 4];
        for op in &ops {
            if let Op::Rename { process, name } = *op {
                last[process] = NAMES[name];
            }
        }
        let own = |&(process, ..): &Whose| {
            Some((format!("{} {}", 10 + process, last[process]), size))
        };
        prop_assert_eq!(got, expect(&all, &whose, own));

        // By name, the others left out.
        let got = simulate(&trace, freeing, &[&format!("comm:gcc={size}")], None);
        let by_name = |&(_, name, _): &Whose| (name == "gcc").then(|| ("comm:gcc".into(), size));
        prop_assert_eq!(got, expect(&all, &whose, by_name));

        // By control group, the first one that is for it; the others share.
        let limits = [&format!("cgroup:/build={size}"), "comm:ld=3"];
        let got = simulate(&trace, freeing, &limits, Some(size + 1));
        let by_group = |&(_, name, group): &Whose| {
            Some(match group {
                "/build" | "/build/one" => ("cgroup:/build".into(), size),
                _ if name == "ld" => ("comm:ld".into(), 3),
                _ => ("others".into(), size + 1),
            })
        };
        prop_assert_eq!(got, expect(&all, &whose, by_group));
    }
}
