//! `postproc events --mapping` and `--address`: the events that are about a place.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use postproc::maps::{Only, State, When};
use postproc::testing::TraceBuilder;
use postproc::trace::{FileId, Trace};
use postproc::units::{Mm, Prot};
use rust_mm_trace::uapi;
use serde_json::Value;

use crate::support;

/// Traces of the kernel: one with forks, copies on write and exec, and one with pages of other frames.
const TRACES: [&str; 2] = ["fork-exec", "frames"];

fn path(name: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    format!("{root}/tests/fixtures/v1/{name}.vmt.zst")
}

/// The events that are printed.
#[track_caller]
fn events(name: &str, args: &[&str]) -> Vec<Value> {
    let path = path(name);
    let output = support::postproc(
        &[&["events", &path, "--json"], args].concat(),
        Path::new("."),
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let values = text.lines().map(|line| serde_json::from_str(line).unwrap());
    values
        .filter(|value: &Value| value["seq"].is_u64())
        .collect()
}

/// What an event is about, by the fields that are printed.
fn places(event: &Value) -> Vec<Range<u64>> {
    let field = |name: &str| event[name].as_u64();
    let range = |start, end| field(start).zip(field(end)).map(|(start, end)| start..end);
    let long = |start, length| {
        field(start)
            .zip(field(length))
            .map(|(at, long)| at..at + long)
    };
    let page = field("page").map(|page| page..page + 4096);
    let all = [
        range("start", "end"),
        long("old_start", "old_len"),
        long("new_start", "new_len"),
        page,
    ];
    all.into_iter().flatten().collect()
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn numbers<'e>(events: impl IntoIterator<Item = &'e Value>) -> Vec<u64> {
    let all = events
        .into_iter()
        .map(|event| event["seq"].as_u64().unwrap());
    all.collect()
}

#[test]
fn events_of_addresses() {
    for name in TRACES {
        let all = events(name, &[]);
        let kinds: BTreeSet<_> = all
            .iter()
            .filter(|event| !places(event).is_empty())
            .map(|event| event["event"].to_string())
            .collect();
        assert!(kinds.len() >= 4, "{name}: {kinds:?}");
        // The range of each twentieth event with one, and its last byte.
        let some: Vec<_> = all.iter().flat_map(places).step_by(20).collect();
        assert!(some.len() > 5, "{name}");
        for wanted in some {
            let last = wanted.end - 1;
            for (text, wanted) in [
                (format!("{:#x}..{:#x}", wanted.start, wanted.end), wanted),
                (format!("{last:#x}"), last & !0xfff..(last | 0xfff) + 1),
            ] {
                let is_there = |e: &&Value| places(e).iter().any(|place| overlap(place, &wanted));
                let expected = numbers(all.iter().filter(is_there));
                assert!(
                    !expected.is_empty() && expected.len() < all.len(),
                    "{name} {text}"
                );
                let found = numbers(&events(name, &["--address", &text]));
                assert_eq!(found, expected, "{name} --address {text}");
            }
        }
    }
}

/// Whether a mapping of this name overlaps a place, after the event with a number.
fn is_mapped(trace: &Trace, seq: u64, event: &Value, only: &Only) -> bool {
    let when = When {
        seq: Some(seq),
        ..When::default()
    };
    let state = State::at(&when, trace, || true).unwrap();
    let mm = Mm(event["mm"].as_u64().unwrap() as u32);
    let mut ranges = state.ranges(mm, only);
    ranges.any(|r| {
        places(event)
            .iter()
            .any(|place| overlap(place, &(r.start..r.end)))
    })
}

/// Names of mappings of each trace, of which all have some events.
const NAMES: [&[&str]; 2] = [
    &["[stack]", "[anon]", "fork-cow", "fork*"],
    &["[stack]", "[anon]", "ksm"],
];

#[test]
fn events_of_mappings() {
    for (name, wanted) in TRACES.into_iter().zip(NAMES) {
        let trace = Trace::open(path(name)).unwrap();
        let all = events(name, &[]);
        for wanted in wanted {
            let only = Only::new(&[(*wanted).into()], &[], &trace);
            let is_there = |e: &&Value| {
                let seq = e["seq"].as_u64().unwrap();
                let around = [seq.saturating_sub(1), seq];
                around.iter().any(|&seq| is_mapped(&trace, seq, e, &only))
            };
            let expected = numbers(all.iter().filter(is_there));
            let some = 1..all.len();
            assert!(some.contains(&expected.len()), "{name} {wanted}");
            let found = numbers(&events(name, &["--mapping", wanted]));
            assert_eq!(found, expected, "{name} --mapping {wanted}");
        }
    }
}

/// All selections must fit.
#[test]
fn places_beside_other_selections() {
    let name = TRACES[0];
    let stack = events(name, &["--mapping", "[stack]"]);
    let last = numbers(&stack).last().copied();
    let time = stack.last().unwrap()["ns"].to_string() + "ns";
    let late = events(name, &["--mapping", "[stack]", "--since", &time]);
    assert_eq!(numbers(&late).last().copied(), last);
    assert!(late.len() < stack.len());
    let cow = events(name, &["--mapping", "[stack]", "--type", "cow"]);
    let is_cow = |e: &&Value| e["event"] == "cow";
    let expected = numbers(stack.iter().filter(is_cow));
    assert!(!expected.is_empty() && expected.len() < stack.len());
    assert_eq!(numbers(&cow), expected);
    // Files are nowhere.
    let opened = events(
        name,
        &["--type", "open,read", "--address", "0..0x7fffffffffff"],
    );
    assert_eq!(opened, Vec::<Value>::new());
}

const HUGE: u64 = 2 << 20;

/// A trace with two mappings side by side, huge pages, and a page that is pinned when its process forks.
fn made() -> TraceBuilder {
    let mut b = TraceBuilder::new(1, 8);
    b.task(0, 10, 10, 1, "one");
    b.map_anon(0, 10, 1, 0x1000, 0x3000, Prot(3));
    let file = FileId {
        dev: 8 << 20,
        ino: 7,
        generation: 0,
    };
    let (file_map, huge) = (uapi::VMTRACE_MAP_FILE, uapi::VMTRACE_MAP_HUGETLB);
    b.map(
        0,
        10,
        1,
        0x3000..0x5000,
        Prot(3),
        file_map,
        0,
        file,
        0,
        "data",
    );
    let flags = 21 << uapi::VMTRACE_MAP_PAGE_SHIFT;
    let range = HUGE..3 * HUGE;
    b.map(
        0,
        10,
        1,
        range,
        Prot(3),
        huge,
        flags,
        FileId { ino: 8, ..file },
        0,
        "huge",
    );
    // Of both of the first mappings.
    b.protect(0, 10, 1, 0x2000, 0x4000, Prot(1));
    b.cow(0, 10, 1, 2 * HUGE);
    b.fork_pinned(0, 10, 1, 11, 2, &[0x1000]);
    b.unmap(0, 10, 1, 0x3000, 0x5000);
    b
}

/// The names of the events that are printed.
#[track_caller]
fn kinds(args: &[&str]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("t.vmt"), made().finish()).unwrap();
    let args = [&["events", "t.vmt", "--json"], args].concat();
    let output = support::postproc(&args, directory.path());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let values = text.lines().map(|line| serde_json::from_str(line).unwrap());
    values
        .map(|e: Value| e["event"].as_str().unwrap().into())
        .collect()
}

#[test]
fn one_part_of_an_event_fits_both_options() {
    assert_eq!(kinds(&["--mapping", "data"]), ["map", "protect", "unmap"]);
    assert_eq!(
        kinds(&["--mapping", "data", "--address", "0x3000..0x4000"]),
        ["map", "protect", "unmap"]
    );
    // The protection is of this page, which is not the file's.
    let both = ["--mapping", "data", "--address", "0x2000"];
    assert_eq!(kinds(&both), Vec::<String>::new());
    assert_eq!(kinds(&["--address", "0x2000"]), ["map", "protect"]);
}

#[test]
fn a_huge_page_is_as_large_as_it_is() {
    let last = format!("{:#x}", 3 * HUGE - 1);
    assert_eq!(kinds(&["--address", &last]), ["map", "cow"]);
    let before = format!("{:#x}", 2 * HUGE - 1);
    assert_eq!(kinds(&["--address", &before]), ["map"]);
}

#[test]
fn a_page_that_fork_copies_at_once_is_where_the_parent_has_it() {
    assert_eq!(kinds(&["--mapping", "[anon]"]), ["map", "protect", "cow"]);
    assert_eq!(kinds(&["--address", "0x1000"]), ["map", "cow"]);
}
