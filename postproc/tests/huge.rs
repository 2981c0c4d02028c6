//! Huge pages of hugetlb: each counts as one page, and every result says so.

use std::process::Output;

use postproc::testing::TraceBuilder;
use postproc::trace::FileId;
use postproc::units::Prot;
use rust_mm_trace::uapi;
use serde_json::{Value, json};

use crate::support::postproc;

const HUGE: u64 = 2 << 20;

/// Four small pages, and three huge ones, of which one is referenced again.
fn trace(huge: bool) -> Vec<u8> {
    let mut b = TraceBuilder::new(1, 2);
    b.task(0, 10, 10, 1, "huge");
    b.map_anon(0, 10, 1, 0x1000, 0x9000, Prot(3));
    let (kind, shift) = match huge {
        true => (uapi::VMTRACE_MAP_HUGETLB, 21),
        false => (uapi::VMTRACE_MAP_SHMEM, 0),
    };
    let flags = uapi::VMTRACE_MAP_SHARED | shift << uapi::VMTRACE_MAP_PAGE_SHIFT;
    let file = FileId {
        dev: 8 << 20,
        ino: 7,
        generation: 0,
    };
    let range = HUGE..8 * HUGE;
    b.map(0, 10, 1, range, Prot(3), kind, flags, file, 0, "memfd:huge");
    for address in [
        0x1000,
        HUGE,
        0x2000,
        2 * HUGE,
        0x3000,
        3 * HUGE,
        0x4000,
        HUGE,
    ] {
        b.touch(0, 10, 1, address);
    }
    b.finish()
}

fn output(huge: bool, args: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("t.vmt"), trace(huge)).unwrap();
    let out = postproc(args, directory.path());
    assert!(out.status.success(), "{args:?}: {out:?}");
    out
}

fn text(huge: bool, args: &[&str]) -> String {
    String::from_utf8(output(huge, args).stdout).unwrap()
}

fn value(huge: bool, args: &[&str]) -> Value {
    serde_json::from_slice(&output(huge, args).stdout).unwrap()
}

#[test]
fn simulate_says_that_a_huge_page_is_one_page() {
    let args = ["simulate", "t.vmt", "--size", "100"];
    let line = "Huge pages of 2.0 MiB are mapped: each counts as one page.";
    assert!(text(true, &args).contains(line));
    assert!(!text(false, &args).contains("uge pages"));
    let args = ["simulate", "t.vmt", "--size", "100", "--json"];
    let with = value(true, &args);
    assert_eq!(with["huge_page_sizes"], json!([HUGE]));
    assert_eq!(with["cold"], 7, "{with}");
    assert_eq!(value(false, &args)["huge_page_sizes"], Value::Null);
}

#[test]
fn the_summary_counts_their_bytes_whole() {
    let args = ["report", "t.vmt", "-o", "page"];
    assert!(text(true, &args).contains("4  references; a page of 2.0 MiB counts as one page"));
    assert!(!text(false, &args).contains("to huge pages"));
    let args = ["report", "t.vmt", "-o", "page", "--json"];
    let with = value(true, &args);
    assert_eq!(with["distinct_pages"], 7, "{with}");
    assert_eq!(with["distinct_bytes"], 3 * HUGE + 4 * 4096);
    assert_eq!(with["huge_references"], 4);
    let without = value(false, &args);
    assert_eq!(without["distinct_bytes"], 7 * 4096);
    assert_eq!(without["huge_references"], 0);
}
