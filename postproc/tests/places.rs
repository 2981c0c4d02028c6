//! `postproc events --mapping` and `--address`: the events that are about a place.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use postproc::maps::{Only, State, When};
use postproc::trace::Trace;
use postproc::units::Mm;
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

#[test]
fn events_of_mappings() {
    for name in TRACES {
        let trace = Trace::open(path(name)).unwrap();
        let all = events(name, &[]);
        for wanted in ["[stack]", "[heap]", "[anon]", "ld-*", "busy*"] {
            let only = Only::new(&[wanted.into()], &[], &trace);
            let is_there = |e: &&Value| {
                let seq = e["seq"].as_u64().unwrap();
                [seq.saturating_sub(1), seq]
                    .iter()
                    .any(|&seq| is_mapped(&trace, seq, e, &only))
            };
            let expected = numbers(all.iter().filter(is_there));
            println!("{name} {wanted}: {} of {}", expected.len(), all.len());
            let found = numbers(&events(name, &["--mapping", wanted]));
            assert_eq!(found, expected, "{name} --mapping {wanted}");
        }
    }
}

/// Both fit, and other selections, too.
#[test]
fn all_selections_must_fit() {
    let name = TRACES[0];
    let stack = events(name, &["--mapping", "[stack]"]);
    let wanted = places(stack.last().unwrap())[0].clone();
    let address = format!("{:#x}..{:#x}", wanted.start, wanted.end);
    let both = events(name, &["--mapping", "[stack]", "--address", &address]);
    let there = numbers(&events(name, &["--address", &address]));
    assert!(!both.is_empty() && both.len() < stack.len());
    assert!(numbers(&both).iter().all(|seq| there.contains(seq)));
    let late = events(name, &["--mapping", "[stack]", "--since", "50%"]);
    let cow = events(name, &["--mapping", "[stack]", "--type", "cow"]);
    assert!(late.len() < stack.len() && cow.len() < stack.len());
    // Files are nowhere.
    let opened = events(
        name,
        &["--type", "open,read", "--address", "0..0x7fffffffffff"],
    );
    assert_eq!(opened, Vec::<Value>::new());
}
