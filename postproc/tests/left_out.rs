//! Traces from which a filter of the kernel has left references out: what is read from them, and what
//! is said about them.

use std::fs;
use std::mem::offset_of;
use std::process::Output;
use std::slice::from_ref;

use crate::support::postproc;
use postproc::canon::PageMode;
use postproc::check::{CheckOptions, CheckReport, Checker};
use postproc::filter::LeftOut;
use postproc::pipeline::{self, Consumer, Unwatched};
use postproc::sim::Certifier;
use postproc::testing::{
    Asked, TraceBuilder, check_bytes, filter_bytes, mend_checksums, packets_of,
};
use postproc::trace::wire::HEAD_SIZE;
use postproc::trace::{
    Body, By, Form, Merge, Ref, Step, StreamKind, Trace, Why, join, plan, repack, split,
};
use postproc::units::Prot;
use rust_mm_trace::uapi;
use serde_json::Value;

const LOW: &str = "addr < 0x110000";

fn low(a: Asked) -> bool {
    a.address < 0x11_0000
}

/// Two programs, and references of which a half are below 0x110000.
fn programs(b: &mut TraceBuilder) {
    for (pid, mm) in [(10, 1), (20, 2)] {
        b.task(0, pid, pid, mm, "program");
        b.map_anon(0, pid, mm, 0x10_0000, 0x20_0000, Prot(3));
    }
}

fn work(b: &mut TraceBuilder) {
    for i in 0..384u64 {
        let mm = 1 + (i / 20 % 2) as u32;
        let page = i * 7 % 32;
        b.touch((i / 3 % 2) as u32, 10 * mm, mm, 0x10_0000 + (page << 12));
    }
}

/// A trace of two CPUs, and a set of eight pages.
fn small(several: bool) -> TraceBuilder {
    let mut b = TraceBuilder::new(2, 8);
    b.header_mut().buffer_size = 1024;
    if several {
        b.several_sets();
    }
    b
}

fn filtered(several: bool) -> TraceBuilder {
    let mut b = small(several);
    b.filtered();
    if several {
        b.set(0, 10, 1, 1);
        b.set(0, 20, 2, 2);
    }
    programs(&mut b);
    b.filter(0, LOW, low);
    work(&mut b);
    b
}

fn open(bytes: &[u8]) -> Trace {
    Trace::from_bytes("memory", bytes.to_vec()).unwrap()
}

fn left_out(trace: &Trace) -> Option<LeftOut> {
    let outcome = pipeline::run(trace, PageMode::Unnamed, &mut Unwatched, &mut []).unwrap();
    LeftOut::of(trace, &outcome.world.filters)
}

fn plain(number: u64) -> String {
    number.to_string()
}

/// What rules say of one.
fn messages(report: &CheckReport, id: &str) -> String {
    let examples = &report.rule(id).unwrap().examples;
    let all = examples.iter().map(|finding| &*finding.message);
    all.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_line_says_how_many_and_by_what() {
    assert_eq!(left_out(&open(&TraceBuilder::sample().finish())), None);
    let said = |b: TraceBuilder| left_out(&open(&b.finish())).unwrap();
    let of = said(filtered(false));
    assert_eq!(
        (of.left_out, of.of, of.is_any),
        (Some(192), Some(384), true)
    );
    assert_eq!(
        of.text(plain),
        "filter: 192 of 384 records of references were left out by: addr < 0x110000"
    );
    let mut b = filtered(false);
    b.filter(0, "kind == read", |_| true);
    b.filter(0, "", |_| true);
    let seq = b.last_seq();
    let line = said(b).text(plain);
    let expected = format!(
        "left out by: addr < 0x110000; from sequence number {} on by: kind == read; from sequence \
         number {seq} on by: nothing, for all are recorded",
        seq - 1
    );
    assert!(line.ends_with(&expected), "{line}");
    for _ in 0..4 {
        let mut b = filtered(false);
        for i in 0..5 {
            b.filter(0, &format!("page > {i}"), |_| true);
        }
        let line = said(b).text(plain);
        assert!(line.ends_with("page > 2; and by 2 more"), "{line}");
    }
    // What a terminal would obey, and what is no text.
    let mut b = filtered(false);
    let payload = filter_bytes(1, b"\x1b[31m\xff");
    b.event(0, 1, 0, uapi::VMTRACE_EV_FILTER, &payload);
    let line = said(b).text(plain);
    assert!(line.ends_with("on by: \u{fffd}[31m\u{fffd}"), "{line:?}");
    // All references fit.
    let mut b = small(false);
    b.filtered();
    programs(&mut b);
    b.filter(0, "", |_| true);
    work(&mut b);
    let of = said(b);
    assert_eq!((of.left_out, of.of, of.is_any), (Some(0), Some(384), false));
    let mut b = small(false);
    b.filtered();
    let line = said(b).text(plain);
    assert!(
        line.ends_with("a filter that the trace does not tell"),
        "{line}"
    );
}

/// A trace that was cut short, and a piece, do not say how many.
#[test]
fn nobody_knows_how_many_are_missing_from_a_piece() {
    let bytes = filtered(false).finish();
    let mut b = small(false);
    b.filtered();
    b.in_pieces(false);
    programs(&mut b);
    b.filter(0, LOW, low);
    work(&mut b);
    b.rotate(0);
    work(&mut b);
    let (_, pieces) = b.finish_pieces();
    for bytes in [&bytes[..bytes.len() - 40], &pieces[0], &pieces[1]] {
        let of = left_out(&open(bytes)).unwrap();
        assert_eq!((of.left_out, of.of, of.is_any), (None, None, true));
        assert_eq!(
            of.text(plain),
            "filter: an unknown number of references was left out by: addr < 0x110000"
        );
    }
}

fn certified(bytes: &[u8], set: Option<u32>) -> bool {
    let trace = open(bytes);
    let mut certifier = Certifier::of_set(set);
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut certifier];
    pipeline::run(&trace, PageMode::Canonical, &mut Unwatched, consumers).unwrap();
    certifier.certificate().is_some()
}

/// The bounds are about all references of a set.
#[test]
fn only_a_trace_from_which_nothing_is_missing_has_bounds() {
    let all = |filters: bool, expr: &str| {
        let mut b = small(false);
        if filters {
            b.filtered();
        }
        programs(&mut b);
        if filters {
            b.filter(0, expr, |_| true);
        }
        work(&mut b);
        b.finish()
    };
    assert!(certified(&all(false, ""), None));
    assert!(certified(&all(true, ""), None));
    // Everything fits.
    assert!(certified(&all(true, "kind == read"), None));
    assert!(!certified(&filtered(false).finish(), None));
    assert!(!certified(&filtered(true).finish(), Some(1)));
    // Of a piece, nobody knows that.
    let pieces = |expr: &str| {
        let mut b = small(false);
        b.filtered();
        b.in_pieces(false);
        programs(&mut b);
        b.filter(0, expr, |_| true);
        work(&mut b);
        b.rotate(0);
        work(&mut b);
        b.finish_pieces().1
    };
    assert!(pieces("").iter().all(|piece| certified(piece, None)));
    assert!(
        !pieces("kind == read")
            .iter()
            .any(|piece| certified(piece, None))
    );
}

/// A trace of two sets with a filter, of which one goes on for so many references more, and then
/// something happens.
fn two_sets(rest: u64, change: impl Fn(&mut TraceBuilder)) -> CheckReport {
    let mut b = filtered(true);
    for page in [0x10_1000, 0x10_2000] {
        b.close(1, page, Why::Other);
        b.touch(0, 10, 1, page);
    }
    // The other set goes on, and all of it is left out.
    for i in 0..rest {
        b.touch(1, 20, 2, 0x12_0000 + ((i % 16) << 12));
    }
    change(&mut b);
    work(&mut b);
    check_bytes(&b.finish())
}

/// Evictions depend on the records that are missing, the rest of the rule does not.
#[test]
fn several_sets_with_a_filter() {
    for rest in [0, 100, 1_000] {
        let report = two_sets(rest, |_| {});
        assert!(report.good, "{report:#?}");
        let notes = messages(&report, "residency");
        assert_eq!(
            notes.contains("evictions are not judged"),
            rest > 256,
            "{notes}"
        );
    }
    // Evicted long before its turn, and long after.
    let early = |b: &mut TraceBuilder| {
        b.close(1, 0x10_1000, Why::Evicted);
        b.leap(1_000_000);
    };
    let late = |b: &mut TraceBuilder| b.close_after(1, 0x10_1000, Why::Evicted, 1 << 30);
    assert_eq!(two_sets(0, early).errors(), 1);
    for (rest, errors) in [(0, 1), (100, 1), (1_000, 0)] {
        assert_eq!(two_sets(rest, late).errors(), errors, "{rest}");
    }
    // A stay that nothing continues, and a page that is admitted twice.
    let spoils: [fn(&mut TraceBuilder); 2] = [
        |b| {
            b.touch(0, 10, 1, 0x10_0000);
            b.close(1, 0x10_0000, Why::Renewed);
        },
        |b| {
            b.touch(0, 10, 1, 0x10_0000);
            b.admit_member_again();
        },
    ];
    for (i, spoil) in spoils.into_iter().enumerate() {
        let mut b = filtered(true);
        spoil(&mut b);
        work(&mut b);
        let report = check_bytes(&b.finish());
        assert!(
            report.rule("residency").unwrap().errors > 0,
            "{i}: {report:#?}"
        );
    }
}

/// A trace of a negative control has all records, and all commands see them.
#[test]
fn what_is_marked_is_read_like_the_rest() {
    let trace = |keeps: bool| {
        let mut b = small(false);
        b.with_offsets();
        if keeps {
            b.keep_left_out();
        }
        programs(&mut b);
        if keeps {
            b.filter(0, LOW, low);
        }
        work(&mut b);
        b.finish()
    };
    let (whole, marked) = (trace(false), trace(true));
    // The addresses and the flags of all records.
    let read = |bytes: &[u8]| {
        let trace = open(bytes);
        let mut merge = Merge::of_kinds(&trace, &[StreamKind::Ref]);
        let (mut refs, mut batch) = (Vec::new(), Vec::new());
        loop {
            batch.clear();
            let is_end = matches!(merge.fill(&mut batch, 100).unwrap(), Step::End);
            let of = |r: &Ref| (r.address(), r.flags().index());
            refs.extend(batch.iter().map(of));
            if is_end {
                return refs;
            }
        }
    };
    let (all, and_marked) = (read(&whole), read(&marked));
    assert_eq!(all.len(), 384);
    assert!(all == and_marked);
    let report = check_bytes(&marked);
    let bad: Vec<_> = report.rules.iter().filter(|r| r.errors > 0).collect();
    // It is a negative control, and nothing else is wrong.
    assert_eq!(bad.iter().map(|r| r.id).collect::<Vec<_>>(), ["health"]);
    assert_eq!(
        messages(&report, "filter"),
        "192 records fit the filter, and 192 do not and are marked as left out"
    );
    let of = left_out(&open(&marked)).unwrap();
    assert_eq!((of.left_out, of.is_any), (Some(0), false));
    // Packed and back, with all marks.
    let form = |bytes: &[u8], form| {
        let mut out = Vec::new();
        repack(&open(bytes), form, &mut out, "memory", &mut Unwatched).unwrap();
        out
    };
    for bytes in [&marked, &filtered(false).finish()] {
        let packed = form(bytes, Form::Packed(Some(1)));
        assert!(packed.len() < bytes.len());
        assert!(&form(&packed, Form::Unpacked) == bytes);
        let again = check_bytes(&packed);
        assert_eq!(again.errors(), check_bytes(bytes).errors());
    }
}

/// The pieces of a trace, which `postproc split` makes, have the filter in their descriptions.
#[test]
fn pieces_have_the_filter_that_is_in_force() {
    let mut b = filtered(false);
    b.filter(0, "addr >= 0x110000 && kind == read", |a| !low(a));
    work(&mut b);
    b.filter(0, "", |_| true);
    work(&mut b);
    let bytes = b.finish();
    let directory = tempfile::tempdir().unwrap();
    let pieces = directory.path().join("pieces");
    let trace = open(&bytes);
    let plan = plan(&trace, By::Bytes(4_000), &mut Unwatched).unwrap();
    let made = split(&trace, &plan, &pieces, &mut Unwatched).unwrap();
    assert!(made.pieces.len() > 6);
    let mut back = Vec::new();
    join(from_ref(&pieces), &mut back, "memory", &mut Unwatched).unwrap();
    assert!(back == bytes);
    let whole = check_bytes(&bytes);
    assert!(whole.good, "{whole:#?}");
    let (mut seen, mut kept) = (Vec::new(), 0);
    for (number, piece) in made.pieces.iter().enumerate() {
        let trace = Trace::open(pieces.join(&piece.file)).unwrap();
        let mut checker = Checker::new(CheckOptions {
            allow_loss: false,
            examples: 3,
        });
        pipeline::run(
            &trace,
            PageMode::Unnamed,
            &mut Unwatched,
            &mut [&mut checker],
        )
        .unwrap();
        let report = checker.report();
        assert!(report.good, "{number}: {report:#?}");
        let message = messages(&report, "filter");
        let (count, _) = message.split_once(' ').unwrap();
        kept += count.parse::<u64>().unwrap();
        let mut merge = Merge::of_kinds(&trace, &[StreamKind::Event]);
        let mut first = None;
        while let Step::Event(event) = merge.fill(&mut Vec::new(), 1).unwrap() {
            if let (Body::Filter { expr, .. }, true) = (event.body, event.is_state()) {
                assert!(first.is_none());
                first = Some(String::from_utf8_lossy(expr).into_owned());
            }
        }
        assert_eq!(first.is_some(), number > 0);
        seen.extend(first);
    }
    assert_eq!(
        messages(&whole, "filter"),
        format!("{kept} records fit the filter")
    );
    seen.dedup();
    assert_eq!(seen, [LOW, "addr >= 0x110000 && kind == read", ""]);
    // A piece with another filter than the one that was in force.
    let path = pieces.join(&made.pieces[1].file);
    let mut piece = fs::read(&path).unwrap();
    let at = piece
        .windows(LOW.len())
        .position(|part| part == LOW.as_bytes());
    let at = at.unwrap();
    piece[at..at + LOW.len()].copy_from_slice(b"addr < 0x010000");
    mend_checksums(&mut piece);
    assert!(check_bytes(&piece).rule("filter").unwrap().errors > 0);
}

/// Kernels without filters have a shorter account.
#[test]
fn an_older_account_has_nothing_left_out() {
    let mut bytes = TraceBuilder::sample().finish();
    let end = packets_of(&bytes).last().unwrap().1;
    let size = size_of::<uapi::vmtrace_status>();
    assert_eq!(bytes.len(), end + HEAD_SIZE + size);
    let older = offset_of!(uapi::vmtrace_status, left_out);
    bytes.truncate(end + HEAD_SIZE + older);
    let put = |bytes: &mut [u8], at: usize| {
        bytes[at..at + 4].copy_from_slice(&(older as u32).to_le_bytes());
    };
    put(
        &mut bytes,
        end + offset_of!(uapi::vmtrace_packet, content_size),
    );
    put(
        &mut bytes,
        end + HEAD_SIZE + offset_of!(uapi::vmtrace_status, size),
    );
    mend_checksums(&mut bytes);
    let report = check_bytes(&bytes);
    assert!(report.good, "{report:#?}");
    let trace = open(&bytes);
    assert_eq!(trace.index().end.as_ref().unwrap().status.left_out, 0);
}

/// A length that is longer than the event, or than expressions can be, costs the packet.
#[test]
fn a_text_that_is_too_long_is_damage() {
    for (claimed, is_damage) in [
        (7, false),
        (8, false),
        (9, true),
        (401, true),
        (u32::MAX, true),
    ] {
        let mut b = filtered(false);
        let mut payload = filter_bytes(1, b"cpu < 9");
        payload[4..8].copy_from_slice(&claimed.to_le_bytes());
        b.event(0, 1, 0, uapi::VMTRACE_EV_FILTER, &payload);
        let trace = open(&b.finish());
        let outcome = pipeline::run(&trace, PageMode::Unnamed, &mut Unwatched, &mut []).unwrap();
        assert_eq!(!outcome.damage.is_empty(), is_damage, "{claimed}");
    }
    // The longest one.
    let mut b = filtered(false);
    let text = format!("cpu < {:0>394}", 9);
    b.filter(0, &text, |_| true);
    assert_eq!(text.len(), uapi::VMTRACE_FILTER_EXPR as usize);
    let report = check_bytes(&b.finish());
    assert!(report.good, "{report:#?}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const LINE: &str = "filter: 192 of 384 records of references were left out by: addr < 0x110000";

#[test]
fn every_command_that_reads_references_says_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("t.vmt"), filtered(false).finish()).unwrap();
    let mut b = small(false);
    programs(&mut b);
    work(&mut b);
    fs::write(at("whole.vmt"), b.finish()).unwrap();
    let run = |args: &[&str]| -> Output {
        let output = postproc(args, directory.path());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
        output
    };
    let json = |output: &Output| -> Value {
        let values = serde_json::Deserializer::from_slice(&output.stdout);
        values.into_iter().next().unwrap().unwrap()
    };
    for (args, to_stderr) in [
        (&["info"][..], false),
        (&["check"], false),
        (
            &["simulate", "--size", "20", "--policy", "lru,opt,arc"],
            false,
        ),
        (&["simulate", "--curve"], false),
        (&["simulate", "--limit", "process=10"], false),
        (&["advise"], false),
        (&["report", "-o", "r"], false),
        (&["damon"], false),
        (&["maps"], true),
        (&["export", "--format", "csv", "-o", "out.csv"], true),
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
            &["reduce", "--method", "sad", "--size", "16", "-o", "s.csv"],
            true,
        ),
    ] {
        let told = |file: &str, more: &[&str]| {
            let output = run(&[args, &[file], more].concat());
            let said = match to_stderr {
                true => text(&output.stderr),
                false => text(&output.stdout),
            };
            let values = run(&[args, &[file, "--json"], more].concat());
            (said, json(&values))
        };
        let (said, value) = told("t.vmt", &[]);
        assert_eq!(said.matches(LINE).count(), 1, "{args:?}: {said}");
        assert_eq!(value["filtered"]["left_out"], 192, "{args:?}: {value}");
        assert_eq!(value["filtered"]["filter"][0]["text"], LOW);
        assert!(value["filtered"]["filter"][0]["from_seq"].as_u64().unwrap() > 0);
        let (said, value) = told("whole.vmt", &[]);
        assert!(!said.contains("filter: "), "{said}");
        assert!(value.get("filtered").is_none());
    }
    // No bounds, and no errors that were measured with whole traces.
    let simulated = |file: &str| {
        let args = ["simulate", file, "--size", "40", "--policy", "lru,opt,arc"];
        let said = text(&run(&args).stdout);
        (said, json(&run(&[&args[..], &["--json"]].concat())))
    };
    let (said, value) = simulated("t.vmt");
    assert!(said.contains("no bound on the misses is proven"), "{said}");
    assert_eq!(value["exact"], false);
    assert!(
        value["why_not_exact"]
            .as_str()
            .unwrap()
            .contains("of the kernel")
    );
    let rows = value["sizes"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert!(
            row.get("low").is_none() && row.get("measured_error").is_none(),
            "{row}"
        );
    }
    let (said, value) = simulated("whole.vmt");
    assert!(!said.contains("So no bound"), "{said}");
    assert!(value["exact"] == true && value["sizes"][0].get("low").is_some());
    let report = text(&run(&["report", "t.vmt", "-o", "r"]).stdout);
    assert!(report.contains("none: some are left out"), "{report}");
    let page = fs::read_to_string(at("r/report.html")).unwrap();
    assert!(page.contains("192 left out by the kernel") && !page.contains("They are proven"));
    let filled = postproc(
        &["simulate", "t.vmt", "--fill", "--size", "40"],
        directory.path(),
    );
    assert_eq!(filled.status.code(), Some(2));
    assert!(text(&filled.stderr).contains("leave out --fill"));
}

#[test]
fn the_event_is_shown_like_others() {
    let directory = tempfile::tempdir().unwrap();
    let mut b = filtered(false);
    let payload = filter_bytes(1, b"comm == \"\xff\"");
    b.event(0, 1, 0, uapi::VMTRACE_EV_FILTER, &payload);
    fs::write(directory.path().join("t.vmt"), b.finish()).unwrap();
    let events = |more: &[&str]| {
        let args = [&["events", "t.vmt", "--type", "filter"], more].concat();
        text(&postproc(&args, directory.path()).stdout)
    };
    let shown = events(&[]);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(
        lines[0].ends_with(" tests=1 expr=addr < 0x110000"),
        "{shown}"
    );
    assert!(
        lines[1].ends_with(" tests=1 expr=comm == \\\"\\xff\\\""),
        "{shown}"
    );
    let first: Value = serde_json::from_str(events(&["--json"]).lines().next().unwrap()).unwrap();
    assert_eq!(
        (&first["event"], &first["expr"]),
        (&"filter".into(), &LOW.into())
    );
    let where_ = events(&["--where", "event == filter && class == always"]);
    assert_eq!(where_.lines().count(), 2);
    let info = text(&postproc(&["info", "t.vmt"], directory.path()).stdout);
    assert!(info.contains("  filter                  2\n"), "{info}");
    let export = ["export", "t.vmt", "--trust", "--format", "ctf", "-o", "ctf"];
    assert_eq!(postproc(&export, directory.path()).status.code(), Some(0));
    let metadata = fs::read_to_string(directory.path().join("ctf/metadata")).unwrap();
    assert!(metadata.contains("string _expr"), "{metadata}");
}
