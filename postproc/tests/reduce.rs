//! What a reduced trace gives is what the full one gives, from the bound on.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::Path;

use crate::support;
use postproc::reduce::{self, MethodEntry};
use postproc::sim::{self, Access, Counts};
use postproc::testing::TraceBuilder;
use postproc::units::{CanonPage, Prot};
use proptest::prelude::*;

fn method(id: &str) -> &'static MethodEntry {
    reduce::registry().iter().find(|m| m.id == id).unwrap()
}

fn reduced(id: &str, k: u64, trace: &[Access]) -> Vec<Access> {
    let mut reducer = (method(id).make)(k);
    let mut kept = Vec::new();
    for &access in trace {
        reducer.reference(access, &mut kept);
    }
    reducer.finish(&mut kept);
    kept
}

fn counts(policy: &str, size: u64, trace: &[Access]) -> Counts {
    let entry = sim::registry().iter().find(|p| p.id == policy).unwrap();
    let mut simulation = (entry.simulate)(size);
    simulation.references(trace);
    simulation.counts()
}

fn accesses(trace: &[(u32, bool)]) -> Vec<Access> {
    trace
        .iter()
        .map(|&(page, write)| Access::reference(CanonPage(page), write))
        .collect()
}

/// Loads of an LRU memory of `k` pages and what each replaces.
fn behaviour(k: usize, pages: &[u32]) -> Vec<(u32, Option<u32>)> {
    let mut memory: Vec<u32> = Vec::new();
    let mut loads = Vec::new();
    for &page in pages {
        match memory.iter().position(|&p| p == page) {
            Some(at) => drop(memory.remove(at)),
            None => {
                let victim = (memory.len() == k).then(|| memory.remove(0));
                loads.push((page, victim));
            }
        }
        memory.push(page);
    }
    loads
}

fn pages(trace: &[Access]) -> Vec<u32> {
    trace.iter().map(|a| a.page.0).collect()
}

/// Whether `part` is `whole` with references left out.
fn is_part(part: &[u32], whole: &[u32]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|page| rest.any(|p| p == page))
}

/// References with locality: runs over few pages, and wide jumps.
fn traces() -> impl Strategy<Value = Vec<(u32, bool)>> {
    let near = (0u32..6, any::<bool>());
    let runs = (0u32..14, prop::collection::vec(near, 1..12));
    prop::collection::vec(runs, 1..40).prop_map(|runs| {
        let of = |(base, run): (u32, Vec<(u32, bool)>)| {
            run.into_iter()
                .map(move |(page, write)| (base + page + 1, write))
        };
        runs.into_iter().flat_map(of).collect()
    })
}

/// The same, with pages that are freed: those near a run, after it. The number of a freed
/// page is given to another one with the same name, as csv has it, or never again, as in a
/// pass over a trace.
fn traces_with_frees() -> impl Strategy<Value = Vec<Access>> {
    let near = (0u32..6, any::<bool>());
    let freed = prop::collection::vec(0u32..8, 0..4);
    let runs = (0u32..14, prop::collection::vec(near, 1..12), freed);
    let runs = prop::collection::vec(runs, 1..40);
    (runs, any::<bool>()).prop_map(|(runs, again)| {
        let (mut numbers, mut last) = (HashMap::new(), 100);
        let mut number = |name: u32, numbers: &mut HashMap<u32, u32>| {
            let next = if again { name + 1 } else { last + 1 };
            last += 1;
            CanonPage(*numbers.entry(name).or_insert(next))
        };
        let mut trace = Vec::new();
        for (base, run, freed) in runs {
            for (page, write) in run {
                trace.push(Access::reference(number(base + page, &mut numbers), write));
            }
            for page in freed {
                trace.push(Access::free(number(base + page, &mut numbers)));
                numbers.remove(&(base + page));
            }
        }
        trace
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn sad_is_exact_with_pages_that_are_freed(trace in traces_with_frees(), k in 1u64..14) {
        let kept = reduced("sad", k, &trace);
        let left = |t: &[Access]| -> Vec<u32> {
            t.iter().map(|a| 2 * a.page.0 + u32::from(a.is_reference())).collect()
        };
        prop_assert!(is_part(&left(&kept), &left(&trace)));
        let frees = |t: &[Access]| t.iter().filter(|a| !a.is_reference()).count();
        prop_assert_eq!(frees(&kept), frees(&trace));
        let references = (kept.len() - frees(&kept)) as u64;
        for size in (k..k + 6).chain([20, 30]) {
            for policy in ["lru", "opt"] {
                let (full, short) = (counts(policy, size, &trace), counts(policy, size, &kept));
                let expected = Counts { references, ..full };
                prop_assert_eq!(short, expected, "{} of {}, k = {}", policy, size, k);
            }
        }
    }
}

/// Loads of an LRU memory of `k` pages, with what each replaces, and frees, in their order.
fn behaviour_with_frees(k: usize, trace: &[Access]) -> Vec<(u32, Option<Option<u32>>)> {
    let mut memory: Vec<u32> = Vec::new();
    let mut happened = Vec::new();
    for access in trace {
        let page = access.page.0;
        let at = memory.iter().position(|&p| p == page);
        at.map(|at| memory.remove(at));
        if !access.is_reference() {
            happened.push((page, None));
            continue;
        }
        if at.is_none() {
            let victim = (memory.len() == k).then(|| memory.remove(0));
            happened.push((page, Some(victim)));
        }
        memory.push(page);
    }
    happened
}

/// The fewest references that have the loads, replacements and frees of a trace, in their
/// order.
fn shortest_with_frees(k: usize, trace: &[Access]) -> usize {
    let wanted = behaviour_with_frees(k, trace);
    let mut seen = BTreeSet::new();
    // An LRU memory, oldest first, and what has happened so far.
    let mut now: Vec<(Vec<u32>, usize)> = vec![(Vec::new(), 0)];
    for length in 0.. {
        let mut next = Vec::new();
        while let Some((mut memory, done)) = now.pop() {
            let Some(&(page, load)) = wanted.get(done) else {
                return length;
            };
            for at in 0..memory.len() {
                let mut touched = memory.clone();
                let page = touched.remove(at);
                touched.push(page);
                next.push((touched, done));
            }
            match load {
                None => {
                    // Costs nothing.
                    memory.retain(|&p| p != page);
                    if seen.insert((memory.clone(), done + 1)) {
                        now.push((memory, done + 1));
                    }
                }
                Some(victim) => {
                    let replaced = (memory.len() == k).then(|| memory.remove(0));
                    if replaced == victim {
                        memory.push(page);
                        next.push((memory, done + 1));
                    }
                }
            }
        }
        next.retain(|state| seen.insert(state.clone()));
        assert!(!next.is_empty(), "the trace itself is a way");
        now = next;
    }
    unreachable!()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn olr_is_exact_with_pages_that_are_freed(trace in traces_with_frees(), k in 1u64..14) {
        let kept = reduced("olr", k, &trace);
        prop_assert_eq!(
            behaviour_with_frees(k as usize, &kept),
            behaviour_with_frees(k as usize, &trace)
        );
        for size in (k..k + 6).chain([20, 30]) {
            let (full, short) = (counts("lru", size, &trace), counts("lru", size, &kept));
            prop_assert_eq!((short.misses, short.cold), (full.misses, full.cold), "{}", size);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn olr_is_the_shortest_with_pages_that_are_freed(
        steps in prop::collection::vec((1u32..8, prop::bool::weighted(0.15)), 1..40),
        k in 1usize..6,
    ) {
        let of = |&(page, free): &(u32, bool)| match free {
            true => Access::free(CanonPage(page)),
            false => Access::reference(CanonPage(page), false),
        };
        let trace: Vec<Access> = steps.iter().map(of).collect();
        let kept = reduced("olr", k as u64, &trace);
        let references = kept.iter().filter(|a| a.is_reference()).count();
        prop_assert_eq!(references, shortest_with_frees(k, &trace), "{:?}", kept);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn sad_is_exact_for_lru_and_opt(trace in traces(), k in 1u64..14) {
        let trace = accesses(&trace);
        let kept = reduced("sad", k, &trace);
        prop_assert!(is_part(&pages(&kept), &pages(&trace)));
        for size in (k..k + 6).chain([20, 30]) {
            for policy in ["lru", "opt"] {
                let (full, short) = (counts(policy, size, &trace), counts(policy, size, &kept));
                let expected = Counts { references: kept.len() as u64, ..full };
                prop_assert_eq!(short, expected, "{} of {}, k = {}", policy, size, k);
            }
        }
    }

    /// After every drop that the definition allows there is nothing left to drop.
    #[test]
    fn sad_leaves_nothing_to_drop(trace in traces(), k in 1usize..14) {
        let kept = pages(&reduced("sad", k as u64, &accesses(&trace)));
        for (first, page) in kept.iter().enumerate() {
            let same: Vec<usize> = (first + 1..kept.len()).filter(|&i| kept[i] == *page).collect();
            if let [_, third, ..] = same[..] {
                let others: BTreeSet<_> = kept[first..third].iter().filter(|p| *p != page).collect();
                prop_assert!(others.len() >= k, "{first} to {third} of {kept:?}, k = {k}");
            }
        }
    }

    #[test]
    fn olr_is_exact_for_lru(trace in traces(), k in 1u64..14) {
        let trace = accesses(&trace);
        let kept = reduced("olr", k, &trace);
        prop_assert_eq!(behaviour(k as usize, &pages(&kept)), behaviour(k as usize, &pages(&trace)));
        for size in (k..k + 6).chain([20, 30]) {
            let (full, short) = (counts("lru", size, &trace), counts("lru", size, &kept));
            prop_assert_eq!((short.misses, short.cold), (full.misses, full.cold), "{}", size);
        }
        prop_assert!(kept.len() <= reduced("sad", k, &trace).len());
    }

    #[test]
    fn filters_are_their_models(trace in traces(), k in 1usize..14) {
        let trace = accesses(&trace);
        for second_chance in [false, true] {
            let id = if second_chance { "clock" } else { "fifo" };
            let kept = reduced(id, k as u64, &trace);
            let expected = filter_model(k, second_chance, &trace);
            prop_assert_eq!(&kept, &expected, "{}", id);
            // No write is lost.
            let written = |t: &[Access]| -> BTreeSet<u32> {
                t.iter().filter(|a| a.writes()).map(|a| a.page.0).collect()
            };
            prop_assert_eq!(written(&kept), written(&trace));
        }
        let misses = counts("fifo", k as u64, &trace).misses;
        prop_assert_eq!(reduced("fifo", k as u64, &trace).len() as u64, misses);
    }
}

/// A stay, as (page, whether it lives, referenced, written), or the free of a page.
type Entry = (u32, Option<(bool, bool, bool)>);

/// A queue of stays and frees, of which `k` are stays.
fn filter_model_with_frees(k: usize, second_chance: bool, trace: &[Access]) -> Vec<Access> {
    let of = |(page, stay): Entry| match stay {
        None => Access::free(CanonPage(page)),
        Some((.., written)) => Access::reference(CanonPage(page), written),
    };
    let mut queue: VecDeque<Entry> = VecDeque::new();
    let mut kept = Vec::new();
    for access in trace {
        let page = access.page.0;
        let mut stays = queue.iter_mut().filter(|e| e.0 == page);
        let lives = stays.find_map(|e| e.1.as_mut().filter(|stay| stay.0));
        match (lives, access.is_reference()) {
            (Some(stay), true) => {
                (stay.1, stay.2) = (true, stay.2 | access.writes());
                continue;
            }
            (Some(stay), false) => stay.0 = false,
            _ => {}
        }
        if !access.is_reference() {
            queue.push_back((page, None));
            continue;
        }
        while queue.iter().filter(|e| e.1.is_some()).count() == k {
            let entry = queue.pop_front().unwrap();
            kept.push(of(entry));
            match entry {
                (page, Some((true, true, _))) if second_chance => {
                    queue.push_back((page, Some((true, false, false))));
                }
                _ => {}
            }
        }
        queue.push_back((page, Some((true, false, access.writes()))));
    }
    kept.extend(queue.into_iter().map(of));
    kept
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn filters_are_their_models_with_pages_that_are_freed(
        trace in traces_with_frees(),
        k in 1usize..14,
    ) {
        for (id, second_chance) in [("fifo", false), ("clock", true)] {
            let kept = reduced(id, k as u64, &trace);
            prop_assert_eq!(&kept, &filter_model_with_frees(k, second_chance, &trace), "{}", id);
        }
    }
}

/// A queue of (page, referenced, written); what leaves it is left.
fn filter_model(k: usize, second_chance: bool, trace: &[Access]) -> Vec<Access> {
    let mut queue: VecDeque<(u32, bool, bool)> = VecDeque::new();
    let mut kept = Vec::new();
    for access in trace {
        if let Some(entry) = queue.iter_mut().find(|e| e.0 == access.page.0) {
            entry.1 = true;
            entry.2 |= access.writes();
            continue;
        }
        while queue.len() == k {
            let (page, referenced, written) = queue.pop_front().unwrap();
            kept.push((page, written));
            if second_chance && referenced {
                queue.push_back((page, false, false));
            }
        }
        queue.push_back((access.page.0, false, access.writes()));
    }
    kept.extend(queue.iter().map(|e| (e.0, e.2)));
    accesses(&kept)
}

/// The fewest references that have the loads and replacements of a trace: a
/// search that knows nothing of how it is done.
fn shortest(k: usize, pages: &[u32]) -> usize {
    let wanted = behaviour(k, pages);
    // An LRU memory, oldest first, and the loads so far.
    let mut seen = BTreeSet::new();
    let mut now = vec![(Vec::new(), 0usize)];
    for length in 0.. {
        let mut next = Vec::new();
        for (memory, loads) in now {
            if loads == wanted.len() {
                return length;
            }
            for at in 0..memory.len() {
                let mut touched: Vec<u32> = memory.clone();
                let page = touched.remove(at);
                touched.push(page);
                next.push((touched, loads));
            }
            let (page, victim) = wanted[loads];
            let mut loaded = memory.clone();
            let replaced = (loaded.len() == k).then(|| loaded.remove(0));
            if replaced == victim {
                loaded.push(page);
                next.push((loaded, loads + 1));
            }
        }
        next.retain(|state| seen.insert(state.clone()));
        assert!(!next.is_empty(), "the trace itself is a way");
        now = next;
    }
    unreachable!()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn olr_is_the_shortest(trace in prop::collection::vec(1u32..8, 1..60), k in 1usize..6) {
        let whole: Vec<(u32, bool)> = trace.iter().map(|&page| (page, false)).collect();
        let kept = reduced("olr", k as u64, &accesses(&whole));
        prop_assert_eq!(kept.len(), shortest(k, &trace), "{:?}", pages(&kept));
    }
}

fn postproc(directory: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = support::postproc(args, directory);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn json(directory: &Path, args: &[&str]) -> serde_json::Value {
    let (code, out, errors) = postproc(directory, args);
    assert_eq!(code, Some(0), "{args:?}: {errors}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn a_reduced_file_says_what_it_is_good_for() {
    let directory = tempfile::tempdir().unwrap();
    let d = directory.path();
    let mut b = TraceBuilder::new(1, 8);
    b.program();
    b.map_anon(0, 10, 1, 0x100_0000, 0x120_0000, Prot(3));
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for i in 0..60_000u64 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let page = (random >> 8) % 90 + i / 500;
        b.touch(0, 10, 1, 0x100_0000 + page * 4096);
    }
    std::fs::write(d.join("t.vmtrace"), b.finish()).unwrap();
    let sizes = ["--size", "64,100,128", "--policy", "lru,opt"];
    let full = json(
        d,
        &[&["simulate", "--json", "t.vmtrace"][..], &sizes].concat(),
    );
    for (id, compared) in [("sad", 6), ("olr", 3)] {
        let args = [
            "reduce",
            "--json",
            "t.vmtrace",
            "--method",
            id,
            "--size",
            "64",
            "-o",
            "r.csv.zst",
        ];
        let made = json(d, &args);
        assert_eq!(made["references"], full["references"]);
        assert!(made["left"].as_u64().unwrap() < made["references"].as_u64().unwrap());
        // 4 N is 32.
        assert_eq!(
            (&made["valid_from_pages"], &made["evms_size"]),
            (&64.into(), &8.into())
        );
        // The text says why the memory is larger than what was asked for.
        let told = |size: &str| {
            let args = [
                "reduce",
                "t.vmtrace",
                "--method",
                id,
                "--size",
                size,
                "-o",
                "k.csv",
            ];
            let output = support::postproc(&args, d);
            assert!(output.status.success());
            String::from_utf8(output.stderr).unwrap()
        };
        assert!(told("64").ends_with("for memories of 64 pages and more\n"));
        let raised = told("10");
        let why = "for memories of 32 pages and more, which is 4 N of the trace (N=8); --size gave 10 pages\n";
        assert!(raised.ends_with(why), "{raised}");
        let from = ["simulate", "--json", "--from", "csv", "r.csv.zst"];
        let short = json(d, &[&from[..], &sizes].concat());
        assert_eq!(short["references"], made["left"]);
        assert_eq!(short["note"]["valid_from_pages"], 64);
        let exact: Vec<&str> = short["note"]["exact_for"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_str().unwrap())
            .collect();
        let rows = full["sizes"].as_array().unwrap().iter();
        let mut equal = 0;
        for (a, b) in rows.zip(short["sizes"].as_array().unwrap()) {
            if exact.contains(&a["policy"].as_str().unwrap()) {
                assert_eq!(a["misses"], b["misses"], "{id}: {a}");
                equal += 1;
            }
        }
        assert_eq!(equal, compared);
        // Below the bound results mean nothing, and it is said.
        let low = ["simulate", "--from", "csv", "r.csv.zst", "--size", "63"];
        let (code, _, errors) = postproc(d, &low);
        assert_eq!(code, Some(0));
        assert!(errors.contains("smaller than 64 pages"), "{errors}");
    }
    // Of a reduced trace the larger bound holds.
    for (again, size, bound, exact) in [
        ("sad", "20", 64, 1),
        ("olr", "90", 90, 1),
        ("fifo", "10", 64, 0),
    ] {
        let args = [
            "reduce",
            "--json",
            "--from",
            "csv",
            "r.csv.zst",
            "--method",
            again,
            "--size",
            size,
        ];
        let made = json(d, &[&args[..], &["-o", "again.csv"]].concat());
        assert_eq!(made["valid_from_pages"], bound, "{again}");
        assert_eq!(
            made["exact_for"].as_array().unwrap().len(),
            exact,
            "{again}"
        );
    }
    let (code, out, _) = postproc(
        d,
        &[
            "reduce",
            "t.vmtrace",
            "--method",
            "fifo",
            "--size",
            "16",
            "-o",
            "-",
        ],
    );
    assert_eq!(code, Some(0));
    let mut lines = out.lines();
    let note = lines.next().unwrap().strip_prefix("#reduced ").unwrap();
    let note: serde_json::Value = serde_json::from_str(note).unwrap();
    assert_eq!(note["valid_from_pages"], 64);
    assert_eq!(note["exact_for"], serde_json::json!([]));
    assert_eq!(lines.next(), Some("page,access"));
    let bad = [
        "reduce",
        "--json",
        "t.vmtrace",
        "--method",
        "sad",
        "--size",
        "0",
        "-o",
        "x",
    ];
    assert_eq!(postproc(d, &bad).0, Some(2));
    let cut = std::fs::read(d.join("t.vmtrace")).unwrap();
    std::fs::write(d.join("cut.vmtrace"), &cut[..cut.len() - 700]).unwrap();
    let bad = [
        "reduce",
        "cut.vmtrace",
        "--method",
        "sad",
        "--size",
        "9",
        "-o",
        "x",
    ];
    assert_eq!(postproc(d, &bad).0, Some(1));
}
