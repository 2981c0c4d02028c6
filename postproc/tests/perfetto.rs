//! What `postproc export --format perfetto` writes, decoded by the rules of protocol buffers alone, and
//! compared with the csv of the same trace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::support;
use crate::support::random::Random;
use postproc::testing::TraceBuilder;
use postproc::trace::Trace;
use postproc::units::{Access, Prot};
use tempfile::TempDir;

fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A field of a message.
#[derive(Clone, Debug)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

fn varint(b: &mut &[u8]) -> u64 {
    let mut number = 0u64;
    for shift in (0..).step_by(7) {
        let byte = b[0];
        *b = &b[1..];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}

/// The fields of a message, by number.
fn message(mut b: &[u8]) -> BTreeMap<u64, Vec<Field>> {
    let mut fields: BTreeMap<u64, Vec<Field>> = BTreeMap::new();
    while !b.is_empty() {
        let key = varint(&mut b);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut b)),
            1 => {
                let (number, rest) = b.split_at(8);
                b = rest;
                Field::Number(u64::from_le_bytes(number.try_into().unwrap()))
            }
            2 => {
                let len = varint(&mut b) as usize;
                let (bytes, rest) = b.split_at(len);
                b = rest;
                Field::Bytes(bytes.to_vec())
            }
            other => panic!("wire type {other}"),
        };
        fields.entry(key >> 3).or_default().push(field);
    }
    fields
}

fn number(of: &BTreeMap<u64, Vec<Field>>, field: u64) -> Option<u64> {
    match of.get(&field)?.last()? {
        Field::Number(number) => Some(*number),
        other => panic!("{other:?}"),
    }
}

fn all(of: &BTreeMap<u64, Vec<Field>>, field: u64) -> Vec<BTreeMap<u64, Vec<Field>>> {
    let fields = of.get(&field).into_iter().flatten();
    let one = |field: &Field| match field {
        Field::Bytes(bytes) => message(bytes),
        other => panic!("{other:?}"),
    };
    fields.map(one).collect()
}

fn text(of: &BTreeMap<u64, Vec<Field>>, field: u64) -> Option<String> {
    match of.get(&field)?.last()? {
        Field::Bytes(bytes) => Some(String::from_utf8(bytes.clone()).unwrap()),
        other => panic!("{other:?}"),
    }
}

#[derive(Default, Debug)]
struct Track {
    parent: u64,
    name: String,
    /// Id, name and creation.
    process: Option<(u64, String, u64)>,
    unit: Option<String>,
}

/// An event that is no value: time, kind, name and track; then its annotations.
#[derive(Clone, Debug)]
struct Happens {
    time_ns: u64,
    kind: u64,
    name: String,
    track: u64,
    about: BTreeMap<String, u64>,
}

#[derive(Default, Debug)]
struct Read {
    clocks: BTreeMap<u64, u64>,
    primary: u64,
    tracks: BTreeMap<u64, Track>,
    /// Values by track: time, and a whole number or a rate.
    values: BTreeMap<u64, Vec<(u64, f64)>>,
    happens: Vec<Happens>,
    packets: usize,
}

const MONOTONIC: u64 = 3;
const INSTANT: u64 = 3;

fn read(bytes: &[u8]) -> Read {
    let mut read = Read::default();
    for packet in all(&message(bytes), 1) {
        read.packets += 1;
        assert_eq!(number(&packet, 10), Some(1));
        for snapshot in all(&packet, 6) {
            assert_eq!(read.packets, 1, "clocks come first");
            read.primary = number(&snapshot, 2).unwrap();
            for clock in all(&snapshot, 1) {
                let (id, time) = (number(&clock, 1).unwrap(), number(&clock, 2).unwrap());
                read.clocks.insert(id, time);
            }
        }
        for track in all(&packet, 60) {
            let process = all(&track, 3).pop();
            let counter = all(&track, 8).pop();
            let new = Track {
                parent: number(&track, 5).unwrap_or(0),
                name: text(&track, 2).unwrap_or_default(),
                process: process.map(|p| {
                    let name = text(&p, 6).unwrap_or_default();
                    (number(&p, 1).unwrap(), name, number(&p, 7).unwrap_or(0))
                }),
                unit: counter.map(|c| text(&c, 6).unwrap()),
            };
            assert!(new.parent == 0 || read.tracks.contains_key(&new.parent));
            let uuid = number(&track, 1).unwrap();
            assert!(read.tracks.insert(uuid, new).is_none());
        }
        for event in all(&packet, 11) {
            let time_ns = number(&packet, 8).unwrap();
            assert_eq!(number(&packet, 58), Some(MONOTONIC));
            let track = number(&event, 11).unwrap();
            // Readers need a track before what is on it.
            assert!(read.tracks.contains_key(&track), "{track}");
            let kind = number(&event, 9).unwrap();
            if kind == 4 {
                let whole = number(&event, 30).map(|n| n as f64);
                let value = whole.or(number(&event, 44).map(f64::from_bits)).unwrap();
                read.values.entry(track).or_default().push((time_ns, value));
                continue;
            }
            let about = all(&event, 4).into_iter().map(|a| {
                let value = number(&a, 3).or(number(&a, 4)).unwrap_or(0);
                (text(&a, 10).unwrap(), value)
            });
            read.happens.push(Happens {
                time_ns,
                kind,
                name: text(&event, 23).unwrap_or_default(),
                track,
                about: about.collect(),
            });
        }
    }
    // A reader sorts by time.
    for values in read.values.values_mut() {
        let sorted = values.is_sorted_by_key(|(time, _)| *time);
        assert!(sorted, "a track's values are in order");
        let times: BTreeSet<u64> = values.iter().map(|v| v.0).collect();
        assert_eq!(times.len(), values.len(), "two values at one moment");
    }
    read
}

impl Read {
    /// The id of the process that a track belongs to; 0 if it is the trace's.
    fn pid(&self, track: u64) -> u64 {
        let track = &self.tracks[&track];
        match &track.process {
            Some((pid, ..)) => *pid,
            None => match track.parent {
                0 => 0,
                parent => self.pid(parent),
            },
        }
    }

    /// The values of a process's track whose name begins so.
    fn values(&self, pid: u64, name: &str) -> Vec<(u64, f64)> {
        let mut tracks = self.tracks.iter().filter(|(uuid, track)| {
            track.unit.is_some() && track.name.starts_with(name) && self.pid(**uuid) == pid
        });
        let track = tracks.next().map(|(uuid, _)| uuid);
        assert!(tracks.next().is_none(), "{name} is ambiguous");
        track.map_or(Vec::new(), |uuid| self.values[uuid].clone())
    }

    fn named(&self, name: &str) -> Vec<&Happens> {
        self.happens.iter().filter(|h| h.name == name).collect()
    }
}

fn export(directory: &Path, trace: &str, format: &str, options: &[&str]) -> Vec<u8> {
    let args = ["export", trace, "--format", format, "-o", "out"];
    let output = support::postproc(&[&args, options].concat(), directory);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options:?}: {errors}");
    let bytes = fs::read(directory.join("out")).unwrap();
    fs::remove_file(directory.join("out")).unwrap();
    bytes
}

/// Processes 10 and 20, which share pages, copy and unmap some, and are idle for a while.
fn busy(n: u32, renewals: bool) -> Vec<u8> {
    let mut b = TraceBuilder::new(2, n);
    b.header_mut().buffer_size = 2048;
    b.program();
    b.map_anon(0, 10, 1, 0x7f00_0000_0000, 0x7f00_0010_0000, Prot(7));
    b.map_file(0, 10, 1, 0x20_0000, 0x28_0000, Prot(5), true, 77, 0);
    b.fork(0, 10, 1, 20, 2);
    let mut random = Random::new(7);
    for i in 0..6_000u64 {
        let (cpu, tid, mm) = match i / 50 % 3 {
            0 => (1, 20, 2),
            _ => (0, 10, 1),
        };
        let page = random.below(96);
        match random.below(4) {
            0 => b.touch_as(cpu, tid, mm, 0x20_0000 + page * 4096, Access::Exec),
            1 => b.touch_as(cpu, tid, mm, 0x7f00_0000_0000 + page * 4096, Access::Write),
            _ => b.touch(cpu, tid, mm, 0x7f00_0000_0000 + page * 4096),
        }
        if renewals && i % 7 == 0 {
            b.renew(cpu, tid, i % 2 == 0);
        }
        if i % 500 == 250 {
            let from = 0x7f00_0000_0000 + random.below(64) * 4096;
            b.unmap(0, 10, 1, from, from + 8 * 4096);
            b.map_anon(0, 10, 1, from, from + 8 * 4096, Prot(7));
        }
        if i % 1_900 == 1_000 {
            b.leap(3_000_000);
        }
    }
    b.finish()
}

/// What the csv says, by process (0: all): references by bin, and working sets and set sizes by end of
/// bin.
struct Expected {
    faults: BTreeMap<u64, BTreeMap<u64, u64>>,
    working: BTreeMap<u64, BTreeMap<u64, u64>>,
    sizes: BTreeMap<u64, u64>,
}

fn expected(csv: &str, bin: u64, tau: u64, last: u64) -> Expected {
    let mut lines = csv.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    let at = |name: &str| columns.iter().position(|c| *c == name).unwrap();
    let (time, page, access, stay, tid) = (
        at("time_ns"),
        at("page"),
        at("access"),
        at("stay_ns"),
        at("tid"),
    );
    let mut of = Expected {
        faults: BTreeMap::new(),
        working: BTreeMap::new(),
        sizes: BTreeMap::new(),
    };
    // Times of references by process and page, times at which pages are freed, and stays.
    let mut references: BTreeMap<(u64, u64), Vec<u64>> = BTreeMap::new();
    let mut freed: BTreeMap<u64, u64> = BTreeMap::new();
    let mut stays = Vec::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |at: usize| fields[at].parse::<u64>().unwrap();
        if fields[access] == "free" {
            assert!(freed.insert(number(page), number(time)).is_none());
            continue;
        }
        stays.push((number(time), number(time) + number(stay)));
        for pid in [0, number(tid)] {
            *of.faults
                .entry(pid)
                .or_default()
                .entry(number(time) / bin)
                .or_default() += 1;
            references
                .entry((pid, number(page)))
                .or_default()
                .push(number(time));
        }
    }
    for bin_number in 0..=last {
        let end = (bin_number + 1) * bin;
        let members = stays
            .iter()
            .filter(|(from, until)| *from < end && *until > end);
        of.sizes.insert(end, members.count() as u64);
        for ((pid, page), times) in &references {
            let is_there = times.iter().any(|time| *time < end && time + tau > end)
                && freed.get(page).is_none_or(|time| *time >= end);
            let sizes = of.working.entry(*pid).or_default();
            *sizes.entry(end).or_default() += u64::from(is_there);
        }
    }
    of
}

/// The value of a track at a moment.
fn value_at(values: &[(u64, f64)], time_ns: u64) -> f64 {
    let at = values.partition_point(|(time, _)| *time <= time_ns);
    at.checked_sub(1).map_or(0.0, |at| values[at].1)
}

fn compare(directory: &Path, (bin, tau): (u64, u64), options: &[&str]) {
    let start = Trace::open(directory.join("t"))
        .unwrap()
        .header()
        .start_time_ns;
    let csv = String::from_utf8(export(directory, "t", "csv", options)).unwrap();
    let (bin_text, tau_text) = (format!("{}us", bin / 1000), format!("{}us", tau / 1000));
    let more = ["--bin", &bin_text, "--tau", &tau_text];
    let read = read(&export(
        directory,
        "t",
        "perfetto",
        &[options, &more].concat(),
    ));
    let last_ns = read.values.values().flatten().map(|v| v.0).max().unwrap() - start;
    let last = last_ns / bin;
    let expected = expected(&csv, bin, tau, last);
    assert!(expected.faults.len() == 3 && last > 20);
    for (pid, counts) in &expected.faults {
        let values = read.values(*pid, "faults");
        for bin_number in 0..=last {
            let count = counts.get(&bin_number).copied().unwrap_or(0);
            let rate = value_at(&values, start + bin_number * bin);
            let found = (rate * bin as f64 / 1e9).round() as u64;
            assert_eq!(found, count, "process {pid}, bin {bin_number}");
        }
        // The counter ends at 0.
        assert_eq!(values.last().unwrap().1, 0.0);
        let sizes = &expected.working[pid];
        let values = read.values(*pid, "working set");
        for (end, size) in sizes {
            let found = value_at(&values, start + end);
            assert_eq!(found as u64, *size, "process {pid}, {end}");
        }
        assert!(sizes.values().max() > Some(&15));
    }
    let values = read.values(0, "set size");
    for (end, size) in &expected.sizes {
        assert_eq!(value_at(&values, start + end) as u64, *size, "{end}");
    }
    assert_eq!(values.last().unwrap().1, 0.0, "all stays end");
}

#[test]
fn counters_are_what_the_csv_says() {
    let directory = scratch();
    fs::write(directory.path().join("t"), busy(16, false)).unwrap();
    for lengths in [(100_000, 50_000), (100_000, 350_000), (70_000, 1_000_000)] {
        compare(directory.path(), lengths, &[]);
    }
    compare(directory.path(), (100_000, 5_000_000), &["--keep-freed"]);
    compare(
        directory.path(),
        (100_000, 350_000),
        &["--pages", "virtual"],
    );
}

/// Renewals are no references, and the stays that they continue go on.
#[test]
fn the_set_has_all_its_members_whatever_continues_their_stays() {
    let directory = scratch();
    fs::write(directory.path().join("t"), busy(16, true)).unwrap();
    let csv = export(directory.path(), "t", "csv", &["--keep-freed"]);
    let references = String::from_utf8(csv).unwrap().lines().count() - 1;
    let bin = 100_000u64;
    let read = read(&export(
        directory.path(),
        "t",
        "perfetto",
        &["--bin", "100us"],
    ));
    let rates = read.values(0, "faults");
    let mut sum = 0;
    for (this, next) in rates.iter().zip(rates.iter().skip(1)) {
        sum += ((next.0 - this.0) / bin) * (this.1 * bin as f64 / 1e9).round() as u64;
    }
    assert_eq!(sum, references as u64);
    let sizes = read.values(0, "set size");
    assert!(sizes.iter().all(|(_, size)| *size <= 16.0));
    let last = sizes.last().unwrap().0;
    let ends = (1..)
        .map(|i| sizes[0].0 + i * bin)
        .take_while(|end| *end < last);
    let full = ends.filter(|end| value_at(&sizes, *end) == 16.0).count();
    assert!(full > 10, "{sizes:?}");
}

#[test]
fn processes_and_kernel_events_have_tracks() {
    let directory = scratch();
    let mut b = TraceBuilder::new(1, 8);
    b.program();
    b.map_anon(0, 10, 1, 0x1000, 0x20_000, Prot(3));
    b.touch(0, 10, 1, 0x1000);
    let before = b.last_seq();
    b.fork(0, 10, 1, 20, 2);
    let after = b.last_seq();
    b.touch(0, 20, 2, 0x1000);
    b.exec(0, 20, 2, 3, "child");
    b.mm_end(0, 20, 2);
    b.exit(0, 20, 3);
    b.mm_end(0, 20, 3);
    // A thread that no event mentions.
    b.touch(0, 99, 1, 0x2000);
    fs::write(directory.path().join("t"), b.finish()).unwrap();
    let read = read(&export(directory.path(), "t", "perfetto", &["--trust"]));
    let trace = Trace::open(directory.path().join("t")).unwrap();
    let header = trace.header();
    assert_eq!(read.primary, MONOTONIC);
    assert_eq!(read.clocks[&MONOTONIC], header.start_time_ns);
    let realtime = header
        .start_time_ns
        .saturating_add_signed(header.realtime_offset_ns);
    assert_eq!(read.clocks[&1], realtime);
    let processes: Vec<_> = read
        .tracks
        .values()
        .filter_map(|t| t.process.clone())
        .collect();
    assert_eq!(processes.len(), 2);
    assert_eq!((processes[0].0, processes[1].0), (10, 20));
    assert_eq!(processes[1].1, "child");
    let one = |name: &str| {
        let all = read.named(name);
        assert_eq!(all.len(), 1, "{name}");
        assert_eq!(all[0].kind, INSTANT);
        all[0].clone()
    };
    let (fork, exec, exit) = (one("fork"), one("exec"), one("exit"));
    assert_eq!(read.pid(fork.track), 10);
    assert_eq!(fork.about["child_tgid"], 20);
    assert!((before + 1..=after).contains(&fork.about["seq"]));
    assert_eq!((read.pid(exec.track), read.pid(exit.track)), (20, 20));
    assert!(fork.time_ns < exec.time_ns && exec.time_ns < exit.time_ns);
    let unknown = read
        .tracks
        .iter()
        .find(|(_, t)| t.name == "unknown process");
    let unknown = *unknown.unwrap().0;
    let of_unknown = |t: &&Track| t.parent == unknown && t.name.starts_with("faults");
    assert_eq!(read.tracks.values().filter(of_unknown).count(), 1);
}

#[test]
fn windows_are_slices() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1/windows.vmt.zst");
    let directory = scratch();
    let path = fixture.to_str().unwrap();
    let trace = Trace::open(&fixture).unwrap();
    let accounts: Vec<_> = trace.index().windows.iter().map(|w| w.account).collect();
    assert!(accounts.len() > 1);
    let all = read(&export(directory.path(), path, "perfetto", &[]));
    for account in &accounts {
        let slices = all.named(&format!("window {}", account.number));
        assert_eq!(slices.len(), 1);
        assert_eq!(slices[0].time_ns, account.start_time_ns);
        let end = |h: &&Happens| h.kind == 2 && h.time_ns == account.stop_time_ns;
        assert_eq!(all.happens.iter().filter(end).count(), 1);
    }
    let one = read(&export(
        directory.path(),
        path,
        "perfetto",
        &["--window", "1"],
    ));
    assert!(one.named("window 0").is_empty() && one.named("window 1").len() == 1);
}

#[test]
fn rotations_and_checkpoints_are_shown() {
    let directory = scratch();
    let mut b = TraceBuilder::new(1, 8);
    b.in_pieces(false);
    b.task(0, 10, 10, 1, "program");
    b.map_anon(0, 10, 1, 0x1000, 0x80_000, Prot(3));
    for piece in 0..3 {
        for i in 0..60u64 {
            b.touch(0, 10, 1, 0x1000 + (i * 7 % 50) * 4096);
        }
        if piece < 2 {
            b.rotate(0);
        }
    }
    let (whole, files) = b.finish_pieces();
    let pieces = directory.path().join("pieces");
    fs::create_dir(&pieces).unwrap();
    for (number, file) in files.iter().enumerate() {
        fs::write(pieces.join(format!("{number:04}")), file).unwrap();
    }
    fs::write(directory.path().join("whole"), whole).unwrap();
    let of_pieces = read(&export(directory.path(), "pieces", "perfetto", &[]));
    let of_whole = read(&export(directory.path(), "whole", "perfetto", &[]));
    for read in [&of_pieces, &of_whole] {
        let begun = read.named("checkpoint");
        assert_eq!(begun.len(), 2);
        let ends = read.happens.iter().filter(|h| h.kind == 2).count();
        assert_eq!(ends, 2);
    }
    for (at, number) in [(0, 1), (1, 2)] {
        let rotation = of_pieces.named(&format!("rotation: piece {number}"));
        assert_eq!(rotation.len(), 1);
        assert!(rotation[0].time_ns >= of_pieces.named("checkpoint")[at].time_ns);
        assert!(
            of_whole
                .named(&format!("rotation: piece {number}"))
                .is_empty()
        );
    }
}

/// The size depends on bins and tracks, not on references.
#[test]
fn more_references_in_the_same_time_take_no_more_packets() {
    let directory = scratch();
    let packets = |references: u64| {
        let mut b = TraceBuilder::new(1, 8);
        b.program();
        b.map_anon(0, 10, 1, 0x10_0000, 0x20_0000, Prot(3));
        for i in 0..references {
            b.touch(0, 10, 1, 0x10_0000 + i % 200 * 4096);
        }
        fs::write(directory.path().join("t"), b.finish()).unwrap();
        let read = read(&export(directory.path(), "t", "perfetto", &["--trust"]));
        let counters = read.tracks.values().filter(|t| t.unit.is_some()).count();
        let most = read.values.values().map(Vec::len).max().unwrap();
        // A value for each of at most 2,000 bins, and the last 0.
        assert!(most <= 2_001, "{most}");
        assert!(read.packets <= counters * 2_001 + 50);
        read.packets
    };
    packets(1_000);
    assert!(packets(200_000) < 15_000);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let directory = scratch();
    let mut b = TraceBuilder::new(1, 8);
    b.virtual_time(2_000);
    b.program();
    b.map_anon(0, 10, 1, 0x1000, 0x20_000, Prot(3));
    b.touch(0, 10, 1, 0x1000);
    b.leap(3_000_000_000);
    b.touch(0, 10, 1, 0x2000);
    fs::write(directory.path().join("t"), b.finish()).unwrap();
    for (options, message) in [
        (&["--time", "virtual"][..], "leave out --time virtual"),
        (&["--bin", "1us"], "at least 4 times as long"),
        (&["--io"], "--io does not work with perfetto"),
    ] {
        let args = ["export", "t", "--format", "perfetto", "-o", "out"];
        let output = support::postproc(&[&args, options].concat(), directory.path());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        assert!(errors.contains(message), "{errors}");
        assert!(!directory.path().join("out").exists());
    }
}
